"""The whole schema as SQLAlchemy Core metadata, for the test that the migrations create exactly these tables.

Note: functions, triggers and grants, which keep the log append-only, are not here, because SQLAlchemy cannot
express them; see `migrations/sql`.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, UUID

from extender.store.tables import SCHEMA

METADATA = sa.MetaData(schema=SCHEMA)

EVENT = sa.Table(
    "event",
    METADATA,
    sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
    sa.Column("event_id", UUID(as_uuid=False), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),  # microseconds since 1970, never decreasing
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("schema_version", sa.SmallInteger, nullable=False),
    sa.Column("gang_uid", sa.Text, nullable=False),  # text: groups read from files have no UUID
    sa.Column("stream_version", sa.Integer, nullable=False),
    sa.Column("gang", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("cause_position", sa.BigInteger, nullable=True),
    sa.Column("payload", JSON, nullable=False),  # json, not jsonb: the hash covers these very bytes
    sa.Column("hash", sa.LargeBinary, nullable=False),
    sa.PrimaryKeyConstraint("position", name="event_pkey"),
    sa.UniqueConstraint("event_id", name="event_event_id_key"),
    sa.UniqueConstraint("gang_uid", "stream_version", name="event_gang_uid_stream_version_key"),
    sa.CheckConstraint("position > 0", name="event_position_check"),
    sa.CheckConstraint("stream_version > 0", name="event_stream_version_check"),
    sa.CheckConstraint("cause_position < position", name="event_cause_position_check"),
    sa.CheckConstraint("octet_length(hash) = 32", name="event_hash_check"),
    sa.Index("event_gang_position_idx", "gang", "position"),
    sa.Index("event_type_position_idx", "type", "position"),
    sa.Index("event_at_us_position_idx", "at_us", "position"),
    sa.Index("event_namespace_position_idx", sa.text("split_part(gang, '/', 1)"), "position"),
    # for reports by time; the expression must equal that of the views
    sa.Index(
        "event_reported_idx",
        "type",
        sa.text("to_timestamp(at_us / 1e6::double precision)"),
        postgresql_where=sa.text(
            "type IN ('GangAdmitted', 'GangExtended', 'GangUnschedulable', 'GangInvalid', 'MemberTerminated', 'CapacityMeasured')"
        ),
    ),
)

LEASE = sa.Table(
    "lease",
    METADATA,
    sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_id", UUID(as_uuid=False), nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=True),  # NULL: released
    sa.Column("ttl_ms", sa.Integer, nullable=False),
    # pid of the writing session, for administrators
    sa.Column("backend", sa.Integer, nullable=True),
    sa.Column("timeline", sa.Text, nullable=False),  # WAL timeline at acquisition: shows a failover
    sa.PrimaryKeyConstraint("id", name="lease_pkey"),
    sa.CheckConstraint("id = 1", name="lease_id_check"),
    # Half-empty pages keep renewals heap-only (HOT) updates: no index entry, pruned in place.
    postgresql_with={"fillfactor": "50"},
)

SNAPSHOT = sa.Table(
    "snapshot",
    METADATA,
    sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
    sa.Column("codec", sa.Text, nullable=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
    sa.Column("sha256", sa.LargeBinary, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column(
        "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    ),
    # HMAC-SHA-256 with a key that the database does not have; NULL: the service had none
    sa.Column("mac", sa.LargeBinary, nullable=True),
    sa.PrimaryKeyConstraint("position", "codec", name="snapshot_pkey"),
)

DECISION_INPUT_CHUNK = sa.Table(
    "decision_input_chunk",
    METADATA,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),  # SHA-256 of the bytes before compression
    sa.Column("body", sa.LargeBinary, nullable=False),  # zlib
    sa.PrimaryKeyConstraint("id", name="decision_input_chunk_pkey"),
    sa.UniqueConstraint("digest", name="decision_input_chunk_digest_key"),
    sa.CheckConstraint("octet_length(digest) = 32", name="decision_input_chunk_digest_check"),
)

DECISION_INPUT = sa.Table(
    "decision_input",
    METADATA,
    sa.Column("digest", sa.Text, nullable=False),
    # Ids of the head and the parts, in order: differences as JSON integers, zlib. Five thousand
    # consecutive ids take some dozen bytes, five thousand digests would take 160 kB.
    sa.Column("parts", sa.LargeBinary, nullable=False),
    sa.Column(
        "saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    ),
    sa.PrimaryKeyConstraint("digest", name="decision_input_pkey"),
)

# One row from the first `db prune` on. As append-only as the inputs: `prune` disables its triggers, too.
PRUNING = sa.Table(
    "pruning",
    METADATA,
    sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
    # inputs of decisions before this time may have been removed; microseconds since 1970
    sa.Column("before_us", sa.BigInteger, nullable=False),
    # another one after each removal: part numbers that were read before it may be void
    sa.Column("generation", UUID(as_uuid=False), nullable=False),
    sa.PrimaryKeyConstraint("id", name="pruning_pkey"),
    sa.CheckConstraint("id = 1", name="pruning_id_check"),
)

# The names that events contain beside their root; gx.index_references fills it after the appends, up to the position in EVENT_REFERENCE_CURSOR.
EVENT_REFERENCE = sa.Table(
    "event_reference",
    METADATA,
    sa.Column("kind", sa.Text, nullable=False),  # node | victim | plan
    # name of the node, UID of the victim, id of the plan
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger, autoincrement=False, nullable=False),
    sa.PrimaryKeyConstraint("kind", "name", "position", name="event_reference_pkey"),
)

EVENT_REFERENCE_CURSOR = sa.Table(
    "event_reference_cursor",
    METADATA,
    sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("id", name="event_reference_cursor_pkey"),
    sa.CheckConstraint("id = 1", name="event_reference_cursor_id_check"),
    postgresql_with={"fillfactor": "50"},
)

# Up to where the receiver of notifications has been notified; no row: notifications were never switched on.
NOTIFICATION_CURSOR = sa.Table(
    "notification_cursor",
    METADATA,
    sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    # gangs that had waited for too long at this time; microseconds since 1970
    sa.Column("waited_us", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("id", name="notification_cursor_pkey"),
    sa.CheckConstraint("id = 1", name="notification_cursor_id_check"),
    postgresql_with={"fillfactor": "50"},
)

# Interval tables, written by gx.project alone; COMMENT ON in migrations/sql describes the columns.
_UNTIL = sa.text(  # the end of an interval; must equal the expression of the views
    "coalesce(to_timestamp(to_at_us / 1e6::double precision), 'infinity'::timestamptz)"
)
_SINCE = sa.text("to_timestamp(from_at_us / 1e6::double precision)")  # its begin
PLACEMENT = sa.Table(
    "placement",
    METADATA,
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
    sa.CheckConstraint("kind IN ('reserved', 'bound', 'replacement')", name="placement_kind_check"),
    # coalesce: one range of the index finds open intervals and those that ended later
    sa.Index("placement_node_idx", "node", sa.text("coalesce(to_position, 9223372036854775807)")),
    sa.Index("placement_pod_idx", "pod", "from_position"),
    sa.Index("placement_gang_idx", "gang", "from_position"),
    sa.Index(
        "placement_reserved_idx", _UNTIL, _SINCE, postgresql_where=sa.text("kind = 'reserved'")
    ),
    # both columns: a gang has a thousand open intervals; an event about one member must not read the others
    sa.Index(
        "placement_open_pod_idx",
        "gang_uid",
        "pod_uid",
        postgresql_where=sa.text("to_position IS NULL"),
    ),
    sa.Index(  # in the order of gx.oldest_replacement_hold
        "placement_replacement_idx",
        "gang_uid",
        "pod_group",
        "from_at_us",
        sa.text('pod COLLATE "C"'),
        sa.text('pod_uid COLLATE "C"'),
        postgresql_where=sa.text("to_position IS NULL AND kind = 'replacement'"),
    ),
    postgresql_with={"fillfactor": "80"},
)

GANG_STATE = sa.Table(
    "gang_state",
    METADATA,
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
    sa.Index(
        "gang_state_open_idx",
        "gang_uid",
        unique=True,
        postgresql_where=sa.text("to_position IS NULL"),
    ),
    sa.Index("gang_state_gang_idx", "gang", "from_position"),
    sa.Index(
        "gang_state_pending_idx",
        _UNTIL,
        _SINCE,
        postgresql_where=sa.text(
            "state IN ('observed', 'waiting', 'unschedulable', 'preempting', 'invalid')"
        ),
    ),
    sa.Index("gang_state_state_idx", "state", "from_position"),
    postgresql_with={"fillfactor": "80"},
)

PREEMPTION = sa.Table(
    "preemption",
    METADATA,
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
    sa.Index(
        "preemption_pending_idx", "gang_uid", unique=True, postgresql_where=sa.text("pending")
    ),
    sa.Index("preemption_gang_idx", "gang", "position"),
)

VICTIM = sa.Table(
    "victim",
    METADATA,
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
    sa.CheckConstraint("status IN ('terminating', 'gone', 'spared')", name="victim_status_check"),
    sa.Index("victim_pod_uid_idx", "pod_uid", "position"),
    sa.Index("victim_pod_idx", "pod", "position"),
)

PROJECTION = sa.Table(
    "projection",
    METADATA,
    sa.Column("id", sa.SmallInteger, autoincrement=False, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column(
        "projected_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    ),
    sa.PrimaryKeyConstraint("id", name="projection_pkey"),
    sa.CheckConstraint("id = 1", name="projection_id_check"),
)
