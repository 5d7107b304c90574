"""The tables and columns that queries are built of, as SQLAlchemy Core has them.

`migrations/` alone defines and changes them, with constraints, indexes, functions, triggers and grants, and COMMENT ON describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON, UUID
from sqlalchemy.types import TypeEngine

from extender.core.log.interval_row_projection import (
    GangRow,
    IntervalRow,
    PlacementRow,
    PreemptionRow,
    VictimStatusRow,
)

SCHEMA = "gx"
CHANNEL = "gx_event"  # NOTIFY channel; the payload is the last position
UUID_TEXT = UUID(as_uuid=False)

Type = type[TypeEngine[Any]] | TypeEngine[Any]


def _table(name: str, /, **columns: Type) -> sa.TableClause:
    return sa.table(
        name, *(sa.column(column, kind) for column, kind in columns.items()), schema=SCHEMA
    )


EVENT = _table(
    "event",
    position=sa.BigInteger,
    event_id=UUID_TEXT,
    epoch=sa.BigInteger,
    at_us=sa.BigInteger,  # microseconds since 1970, never decreasing
    type=sa.Text,
    schema_version=sa.SmallInteger,
    gang_uid=sa.Text,  # text: groups read from files have no UUID
    stream_version=sa.Integer,
    gang=sa.Text,
    actor=sa.Text,
    cause=sa.Text,
    cause_position=sa.BigInteger,
    payload=JSON,  # json, not jsonb: the hash covers these very bytes
    hash=sa.LargeBinary,
)
SNAPSHOT = _table(
    "snapshot",
    position=sa.BigInteger,
    codec=sa.Text,
    chain=sa.LargeBinary,
    sha256=sa.LargeBinary,
    body=sa.LargeBinary,
    saved_at=sa.DateTime(timezone=True),
    mac=sa.LargeBinary,  # with a key that the database does not have; NULL: the service had none
)
DECISION_INPUT_CHUNK = _table(
    "decision_input_chunk", id=sa.BigInteger, digest=sa.LargeBinary, body=sa.LargeBinary
)
DECISION_INPUT = _table("decision_input", digest=sa.Text, parts=sa.LargeBinary)
# The names that events contain beside their root, up to the position in EVENT_REFERENCE_CURSOR.
EVENT_REFERENCE = _table("event_reference", kind=sa.Text, name=sa.Text, position=sa.BigInteger)
EVENT_REFERENCE_CURSOR = _table(
    "event_reference_cursor", id=sa.SmallInteger, position=sa.BigInteger
)
PLACEMENT = _table(
    "placement",
    pod=sa.Text,
    gang=sa.Text,
    pod_group=sa.Text,
    node=sa.Text,
    kind=sa.Text,
    from_position=sa.BigInteger,
    from_at_us=sa.BigInteger,
    to_position=sa.BigInteger,
    to_at_us=sa.BigInteger,
    end_type=sa.Text,
    end_reason=sa.Text,
    by_gang=sa.Text,
)
PROJECTION = _table("projection", position=sa.BigInteger)


class IntervalTable(msgspec.Struct, frozen=True):
    """An interval table: its name, the columns of its key with their types, and the position where a row begins."""

    name: str
    key: Mapping[str, str]
    begin: str


INTERVAL_TABLES: Final[Mapping[type[IntervalRow], IntervalTable]] = {
    PlacementRow: IntervalTable(
        "placement", {"pod_uid": "text", "from_position": "bigint"}, "from_position"
    ),
    GangRow: IntervalTable(
        "gang_state", {"gang_uid": "text", "from_position": "bigint"}, "from_position"
    ),
    PreemptionRow: IntervalTable("preemption", {"position": "bigint"}, "position"),
    VictimStatusRow: IntervalTable("victim", {"position": "bigint", "pod_uid": "text"}, "position"),
}
# the columns of a row; the victims of a preemption are rows of their own
COLUMNS: Final = {
    kind: tuple(name for name in kind.__struct_fields__ if name != "victims")
    for kind in INTERVAL_TABLES
}
