"""The interval tables, and other names of the schema that several modules use.

`migrations/` alone defines and changes the schema, with constraints, indexes, functions, triggers and grants, and COMMENT ON describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.core.log.interval_row_projection import (
    GangRow,
    IntervalRow,
    PlacementRow,
    PreemptionRow,
    VictimStatusRow,
)

SCHEMA = "gx"
POSITION_MAX = 2**63 - 1  # of a bigint
CHANNEL = "gx_event"  # NOTIFY channel; the payload is the last position


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
