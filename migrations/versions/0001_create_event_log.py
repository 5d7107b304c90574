"""Create the event log, the lease, checkpoints and inputs of decisions.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSON, UUID

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision
FUNCTIONS = ("append", "take", "renew", "release", "evict", "refuse_change")


def execute(name: str) -> None:
    """Run one file of one statement, past SQLAlchemy's search for `:parameters`."""
    op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))


def upgrade() -> None:
    create_event()
    create_leader()
    create_checkpoint()
    create_decision_inputs()
    for name in FUNCTIONS:
        execute(name)
    for table in ("event", "decision_part", "decision_input"):
        op.execute(
            f"CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON gx.{table} "
            "FOR EACH ROW EXECUTE FUNCTION gx.refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON gx.{table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION gx.refuse_change()"
        )
    execute("v_event")
    execute("v_leadership")
    execute("grants")


def create_event() -> None:
    op.create_table(
        "event",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("event_id", UUID(as_uuid=False), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("ver", sa.SmallInteger, nullable=False),
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("cause_position", sa.BigInteger, nullable=True),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("position", name="event_pkey"),
        sa.UniqueConstraint("event_id", name="event_event_id_key"),
        sa.UniqueConstraint("root_uid", "version", name="event_root_uid_version_key"),
        sa.CheckConstraint("position > 0", name="event_position_check"),
        sa.CheckConstraint("version > 0", name="event_version_check"),
        sa.CheckConstraint("cause_position < position", name="event_cause_position_check"),
        sa.CheckConstraint("octet_length(hash) = 32", name="event_hash_check"),
        schema="gx",
    )
    op.create_index("event_root_position_idx", "event", ["root", "position"], schema="gx")
    op.create_index("event_type_position_idx", "event", ["type", "position"], schema="gx")
    op.create_index("event_at_us_position_idx", "event", ["at_us", "position"], schema="gx")
    namespace = sa.text("split_part(root, '/', 1)")
    op.create_index("event_namespace_position_idx", "event", [namespace, "position"], schema="gx")


def create_leader() -> None:
    op.create_table(
        "leader",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("lease", UUID(as_uuid=False), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ttl_ms", sa.Integer, nullable=False),
        sa.Column("backend", sa.Integer, nullable=True),
        sa.Column("timeline", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="leader_pkey"),
        sa.CheckConstraint("id = 1", name="leader_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute(
        "INSERT INTO gx.leader (id, epoch, lease, holder, address, ttl_ms, timeline) "
        "VALUES (1, 0, gen_random_uuid(), '', '', 0, '')"
    )


def create_checkpoint() -> None:
    op.create_table(
        "checkpoint",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("codec", sa.Text, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column(
            "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("position", "codec", name="checkpoint_pkey"),
        schema="gx",
    )
    # Bodies come compressed; a second try by the server would only burn time.
    op.execute("ALTER TABLE gx.checkpoint ALTER COLUMN body SET STORAGE EXTERNAL")


def create_decision_inputs() -> None:
    op.create_table(
        "decision_part",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="decision_part_pkey"),
        sa.UniqueConstraint("digest", name="decision_part_digest_key"),
        sa.CheckConstraint("octet_length(digest) = 32", name="decision_part_digest_check"),
        schema="gx",
    )
    op.execute("ALTER TABLE gx.decision_part ALTER COLUMN body SET STORAGE EXTERNAL")
    op.create_table(
        "decision_input",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("parts", sa.LargeBinary, nullable=False),
        sa.Column(
            "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("digest", name="decision_input_pkey"),
        schema="gx",
    )
