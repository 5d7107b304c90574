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
    "expect_head", "append", "append_one", "lease_acquire", "lease_renew", "lease_release", "lease_revoke", "refuse_change",
    "preemptor_of", "preempting_message", "oldest_replacement_hold", "project_end", "project_reserved", "project_bound",
    "project_hold_used", "project_replacement_hold", "project_preemption", "project_gang", "project_event", "project",
    "reset_projection", "references_of", "index_references",
)  # fmt: skip
VIEWS = (  # a view stands behind those that it reads
    "v_event", "v_leader_term", "v_decision", "v_member_terminated", "v_preemption", "v_victim", "v_pending", "v_queue_bypass",
    "v_reserved", "v_largest_free", "v_largest_free_used",
)  # fmt: skip

# Times as the views write them, so that they use the indexes
SINCE = "to_timestamp(from_at_us / 1e6::double precision)"
UNTIL = "coalesce(to_timestamp(to_at_us / 1e6::double precision), 'infinity'::timestamptz)"


def execute(name: str) -> None:
    """Run one file of one statement, past SQLAlchemy's search for `:parameters`."""
    op.get_bind().exec_driver_sql((SQL / f"{name}.sql").read_text(encoding="utf-8"))


def upgrade() -> None:
    # Alembic makes the table, with the revision alone; `env.py` fills this column after each migration.
    op.add_column("migration", sa.Column("oldest_compatible", sa.Text, nullable=True), schema="gx")
    create_event()
    create_lease()
    create_snapshot()
    create_decision_inputs()
    create_placement()
    create_gang_state()
    create_preemption()
    create_projection()
    create_event_reference()
    for name in FUNCTIONS:
        execute(name)
    for table in ("event", "decision_input_chunk", "decision_input", "pruning"):
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
        sa.Column("schema_version", sa.SmallInteger, nullable=False),
        sa.Column("gang_uid", sa.Text, nullable=False),
        sa.Column("stream_version", sa.Integer, nullable=False),
        sa.Column("gang", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("cause_position", sa.BigInteger, nullable=True),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("position", name="event_pkey"),
        sa.UniqueConstraint("event_id", name="event_event_id_key"),
        sa.UniqueConstraint("gang_uid", "stream_version", name="event_gang_uid_stream_version_key"),
        sa.CheckConstraint("position > 0", name="event_position_check"),
        sa.CheckConstraint("stream_version > 0", name="event_stream_version_check"),
        sa.CheckConstraint("cause_position < position", name="event_cause_position_check"),
        sa.CheckConstraint("octet_length(hash) = 32", name="event_hash_check"),
        schema="gx",
    )
    op.create_index("event_gang_position_idx", "event", ["gang", "position"], schema="gx")
    op.create_index("event_type_position_idx", "event", ["type", "position"], schema="gx")
    op.create_index("event_at_us_position_idx", "event", ["at_us", "position"], schema="gx")
    namespace = sa.text("split_part(gang, '/', 1)")
    op.create_index("event_namespace_position_idx", "event", [namespace, "position"], schema="gx")
    at = sa.text("to_timestamp(at_us / 1e6::double precision)")  # as the views write it
    reported = "'GangAdmitted', 'GangExtended', 'GangUnschedulable', 'GangInvalid', 'MemberTerminated', 'CapacityMeasured'"
    op.create_index(
        "event_reported_idx", "event", ["type", at], schema="gx", postgresql_where=sa.text(f"type IN ({reported})")
    )  # fmt: skip


def create_lease() -> None:
    op.create_table(
        "lease",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("lease_id", UUID(as_uuid=False), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ttl_ms", sa.Integer, nullable=False),
        sa.Column("backend", sa.Integer, nullable=True),
        sa.Column("timeline", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="lease_pkey"),
        sa.CheckConstraint("id = 1", name="lease_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute(
        "INSERT INTO gx.lease (id, epoch, lease_id, holder, address, ttl_ms, timeline) "
        "VALUES (1, 0, gen_random_uuid(), '', '', 0, '')"
    )


def create_snapshot() -> None:
    op.create_table(
        "snapshot",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("codec", sa.Text, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column(
            "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("mac", sa.LargeBinary, nullable=True),
        sa.PrimaryKeyConstraint("position", "codec", name="snapshot_pkey"),
        schema="gx",
    )
    # Bodies come compressed; a second try by the server would only burn time.
    op.execute("ALTER TABLE gx.snapshot ALTER COLUMN body SET STORAGE EXTERNAL")


def create_decision_inputs() -> None:
    op.create_table(
        "decision_input_chunk",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="decision_input_chunk_pkey"),
        sa.UniqueConstraint("digest", name="decision_input_chunk_digest_key"),
        sa.CheckConstraint("octet_length(digest) = 32", name="decision_input_chunk_digest_check"),
        schema="gx",
    )
    op.execute("ALTER TABLE gx.decision_input_chunk ALTER COLUMN body SET STORAGE EXTERNAL")
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
    op.create_table(
        "pruning",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("before_us", sa.BigInteger, nullable=False),
        sa.Column("generation", UUID(as_uuid=False), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pruning_pkey"),
        sa.CheckConstraint("id = 1", name="pruning_id_check"),
        schema="gx",
    )


def create_placement() -> None:
    op.create_table(
        "placement",
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("gang_uid", sa.Text, nullable=False),
        sa.Column("gang", sa.Text, nullable=False),
        sa.Column("pod_group", sa.Text, nullable=False),
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
        sa.Column("end_reason", sa.Text, nullable=True),
        sa.Column("by_gang", sa.Text, nullable=True),
        sa.Column("by_position", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("pod_uid", "from_position", name="placement_pkey"),
        sa.CheckConstraint(
            "kind IN ('reserved', 'bound', 'replacement')", name="placement_kind_check"
        ),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    until = sa.text("coalesce(to_position, 9223372036854775807)")
    op.create_index("placement_node_idx", "placement", ["node", until], schema="gx")
    op.create_index("placement_pod_idx", "placement", ["pod", "from_position"], schema="gx")
    op.create_index("placement_gang_idx", "placement", ["gang", "from_position"], schema="gx")
    op.create_index(
        "placement_reserved_idx", "placement", [sa.text(UNTIL), sa.text(SINCE)], schema="gx",
        postgresql_where=sa.text("kind = 'reserved'"),
    )  # fmt: skip
    op.create_index(
        "placement_open_pod_idx", "placement", ["gang_uid", "pod_uid"], schema="gx",
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    c = 'COLLATE "C"'  # the order of gx.oldest_replacement_hold, which takes the first
    op.create_index(
        "placement_replacement_idx", "placement",
        ["gang_uid", "pod_group", "from_at_us", sa.text(f"pod {c}"), sa.text(f"pod_uid {c}")], schema="gx",
        postgresql_where=sa.text("to_position IS NULL AND kind = 'replacement'"),
    )  # fmt: skip


def create_gang_state() -> None:
    op.create_table(
        "gang_state",
        sa.Column("gang_uid", sa.Text, nullable=False),
        sa.Column("gang", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("reasons", ARRAY(sa.Text), nullable=False),
        sa.Column("last_decision_position", sa.BigInteger, nullable=True),
        sa.Column("from_position", sa.BigInteger, nullable=False),
        sa.Column("from_at_us", sa.BigInteger, nullable=False),
        sa.Column("to_position", sa.BigInteger, nullable=True),
        sa.Column("to_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("gang_uid", "from_position", name="gang_state_pkey"),
        sa.CheckConstraint(
            "state IN ('observed', 'waiting', 'unschedulable', 'preempting', 'invalid', 'admitted', 'scheduled', 'removed')",
            name="gang_state_state_check",
        ),
        schema="gx",
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "gang_state_open_idx", "gang_state", ["gang_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("to_position IS NULL"),
    )  # fmt: skip
    op.create_index("gang_state_gang_idx", "gang_state", ["gang", "from_position"], schema="gx")
    pending = "'observed', 'waiting', 'unschedulable', 'preempting', 'invalid'"
    op.create_index(
        "gang_state_pending_idx", "gang_state", [sa.text(UNTIL), sa.text(SINCE)], schema="gx",
        postgresql_where=sa.text(f"state IN ({pending})"),
    )  # fmt: skip
    op.create_index("gang_state_state_idx", "gang_state", ["state", "from_position"], schema="gx")


def create_preemption() -> None:
    op.create_table(
        "preemption",
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("preemption", sa.Text, nullable=False),
        sa.Column("gang_uid", sa.Text, nullable=False),
        sa.Column("gang", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False),
        sa.Column("started_units", ARRAY(sa.Text), nullable=False),
        sa.Column("evicted", sa.Integer, nullable=False),
        sa.Column("pending", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("ended_position", sa.BigInteger, nullable=True),
        sa.Column("ended_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", name="preemption_pkey"),
        schema="gx",
    )
    op.create_index(
        "preemption_pending_idx", "preemption", ["gang_uid"], schema="gx", unique=True,
        postgresql_where=sa.text("pending"),
    )  # fmt: skip
    op.create_index("preemption_gang_idx", "preemption", ["gang", "position"], schema="gx")
    op.create_table(
        "victim",
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("pod_uid", sa.Text, nullable=False),
        sa.Column("pod", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("unit_priority", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("via", sa.Text, nullable=True),
        sa.Column("gone_position", sa.BigInteger, nullable=True),
        sa.Column("gone_at_us", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("position", "pod_uid", name="victim_pkey"),
        sa.CheckConstraint(
            "status IN ('terminating', 'gone', 'spared')", name="victim_status_check"
        ),
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


def create_event_reference() -> None:
    op.create_table(
        "event_reference",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "position", name="event_reference_pkey"),
        schema="gx",
    )
    op.create_table(
        "event_reference_cursor",
        sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="event_reference_cursor_pkey"),
        sa.CheckConstraint("id = 1", name="event_reference_cursor_id_check"),
        schema="gx",
        postgresql_with={"fillfactor": "50"},
    )
    op.execute("INSERT INTO gx.event_reference_cursor (id, position) VALUES (1, 0)")
