"""Create the schema: the event log, the lease, caches of the log, inputs of decisions, and views.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql" / revision
FUNCTIONS = (  # a function of language SQL stands behind those that it calls
    "expect_head", "append", "append_one", "take", "renew", "release", "evict", "refuse_change",
    "who_evicts", "preempting_text", "kept_longest", "project_end", "project_reserved", "project_bound",
    "project_filled", "project_kept", "project_preemption", "project_root", "project_fact", "project",
    "forget_projection", "mentions_of", "note_mentions",
)  # fmt: skip
VIEWS = (  # a view stands behind those that it reads
    "v_event", "v_leadership", "v_decision", "v_loss", "v_preemption", "v_victim", "v_pending", "v_passed_over",
    "v_reserved", "v_room", "v_room_taken",
)  # fmt: skip

# Times as the views write them, so that they use the indexes
SINCE = "to_timestamp(from_at_us / 1e6::double precision)"
UNTIL = "coalesce(to_timestamp(to_at_us / 1e6::double precision), 'infinity'::timestamptz)"


def execute(name: str) -> None:
    """Run one file of one statement, past SQLAlchemy's search for `:parameters`."""
    op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))


def upgrade() -> None:
    create_event()
    create_leader()
    create_checkpoint()
    create_decision_inputs()
    create_placement()
    create_root_state()
    create_preemption()
    create_projection()
    create_mention()
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
    for name in (*VIEWS, "table_comments", "view_comments", "grants"):
        execute(name)


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
    at = sa.text("to_timestamp(at_us / 1e6::double precision)")  # as the views write it
    reported = (
        "'GangAdmitted', 'GangExtended', 'GangRefused', 'RootInvalid', 'MemberLost', 'RoomMeasured'"
    )
    op.create_index(
        "event_reported_idx", "event", ["type", at], schema="gx", postgresql_where=sa.text(f"type IN ({reported})")
    )  # fmt: skip


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


def create_placement() -> None:
    op.create_table(
        "placement",
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("leaf", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=True),
        sa.Column("extra", sa.Boolean, nullable=True),
        sa.Column("resources", JSONB, nullable=True),
        sa.Column("from_position", sa.BigInteger, nullable=False),
        sa.Column("from_at_us", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=True),
        sa.Column("to_at_us", sa.BigInteger, nullable=True),
        sa.Column("end_type", sa.Text, nullable=True),
        sa.Column("end_why", sa.Text, nullable=True),
        sa.Column("by_root", sa.Text, nullable=True),
        sa.Column("by_position", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("pod_uid", "from_position", name="placement_pkey"),
        sa.CheckConstraint("kind IN ('reserved', 'bound', 'kept')", name="placement_kind_check"),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    until = sa.text("coalesce(to_position, 9223372036854775807)")
    op.create_index("placement_node_idx", "placement", ["node", until], schema="gx")
    op.create_index("placement_pod_idx", "placement", ["pod", "from_position"], schema="gx")
    op.create_index("placement_root_idx", "placement", ["root", "from_position"], schema="gx")
    op.create_index(
        "placement_reserved_idx", "placement", [sa.text(UNTIL), sa.text(SINCE)], schema="gx",
        postgresql_where=sa.text("kind = 'reserved'"),
    )  # fmt: skip
    op.create_index(
        "placement_open_pod_idx", "placement", ["root_uid", "pod_uid"], schema="gx",
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    c = 'COLLATE "C"'  # the order of gx.kept_longest, which takes the first
    op.create_index(
        "placement_kept_idx", "placement",
        ["root_uid", "leaf", "from_at_us", sa.text(f"pod {c}"), sa.text(f"pod_uid {c}")], schema="gx",
        postgresql_where=sa.text("to_position IS NULL AND kind = 'kept'"),
    )  # fmt: skip


def create_root_state() -> None:
    op.create_table(
        "root_state",
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("reasons", ARRAY(sa.Text), nullable=False),
        sa.Column("answer_position", sa.BigInteger, nullable=True),
        sa.Column("from_position", sa.BigInteger, nullable=False),
        sa.Column("from_at_us", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=True),
        sa.Column("to_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("root_uid", "from_position", name="root_state_pkey"),
        sa.CheckConstraint(
            "state IN ('observed', 'waiting', 'refused', 'preempting', 'invalid', 'admitted', 'satisfied', 'gone')",
            name="root_state_state_check",
        ),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "root_state_open_idx", "root_state", ["root_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    op.create_index("root_state_root_idx", "root_state", ["root", "from_position"], schema="gx")
    pending = "'observed', 'waiting', 'refused', 'preempting', 'invalid'"
    op.create_index(
        "root_state_pending_idx", "root_state", [sa.text(UNTIL), sa.text(SINCE)], schema="gx",
        postgresql_where=sa.text(f"state IN ({pending})"),
    )  # fmt: skip
    op.create_index("root_state_state_idx", "root_state", ["state", "from_position"], schema="gx")


def create_preemption() -> None:
    op.create_table(
        "preemption",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("preemption", sa.Text, nullable=False),
        sa.Column("root_uid", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("begun", ARRAY(sa.Text), nullable=False),
        sa.Column("evicted", sa.Integer, nullable=False),
        sa.Column("pending", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("ended_position", sa.BigInteger, nullable=True),
        sa.Column("ended_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", name="preemption_pkey"),
        schema="gx",
    )
    op.create_index(
        "preemption_pending_idx", "preemption", ["root_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("pending"),
    )  # fmt: skip
    op.create_index("preemption_root_idx", "preemption", ["root", "position"], schema="gx")
    op.create_table(
        "victim",
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("unit_priority", sa.BigInteger, nullable=False),
        sa.Column("fate", sa.Text, nullable=False),
        sa.Column("how", sa.Text, nullable=True),
        sa.Column("gone_position", sa.BigInteger, nullable=True),
        sa.Column("gone_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", "pod_uid", name="victim_pkey"),
        sa.CheckConstraint("fate IN ('going', 'gone', 'spared')", name="victim_fate_check"),
        schema="gx",
    )
    op.create_index("victim_pod_uid_idx", "victim", ["pod_uid", "position"], schema="gx")
    op.create_index("victim_pod_idx", "victim", ["pod", "position"], schema="gx")


def create_projection() -> None:
    op.create_table(
        "projection",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column(
            "projected_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name="projection_pkey"),
        sa.CheckConstraint("id = 1", name="projection_id_check"),
        schema="gx",
    )  # fmt: skip
    op.execute("INSERT INTO gx.projection (id, position, at_us) VALUES (1, 0, 0)")


def create_mention() -> None:
    op.create_table(
        "mention",
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("what", "name", "position", name="mention_pkey"),
        schema="gx",
    )
    op.create_table(
        "noted",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="noted_pkey"),
        sa.CheckConstraint("id = 1", name="noted_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("INSERT INTO gx.noted (id, position) VALUES (1, 0)")
