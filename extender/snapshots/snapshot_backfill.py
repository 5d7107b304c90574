"""Saves the historical snapshots that are missing along the log, after an upgrade that cannot read older ones.

The leader saves snapshots as the log grows. If the new version cannot read them, the log is folded once from its
start and saved on the way, so that every position of the log is near a snapshot again.
"""

from __future__ import annotations

from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import Position
from extender.ports.log_ports import START, EventLog, Snapshots
from extender.snapshots.state_loader import (
    fold_from,
    nearest_snapshot,
    save_historical,
    state_of_snapshot,
)


async def backfill_snapshots(
    event_log: EventLog, snapshots: Snapshots, *, until: Position, every: int
) -> int:
    """Save a snapshot in each section of the log that has none.

    Args:
        until: Last position to fill up to.

    Returns:
        The number of snapshots saved.

    Raises:
        CorruptLog: The log is not valid.
        StoreUnavailable: Try again; what was saved is kept.
    """
    saved, state = 0, EMPTY
    for position in range(every, until + 1, every):
        nearest = await nearest_snapshot(snapshots, Position(position))
        if nearest is not None and nearest.position > position - every:
            continue
        start = nearest.position if nearest is not None else START
        if state.position < start:
            state = await state_of_snapshot(nearest)
        state = await fold_from(state, event_log, until=Position(position), past=True)
        head = await event_log.at(state.position)
        assert head is not None
        await save_historical(snapshots, state, head)
        saved += 1
    return saved
