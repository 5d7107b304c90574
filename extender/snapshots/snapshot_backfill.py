"""Make checkpoints along the whole log, where they are missing: after an upgrade with another codec of checkpoints.

While the service leads it leaves some behind as it goes. Those of another codec are of no use, so the log is folded
once from its beginning and saved on the way; afterwards every moment of the past is near one again.
"""

from __future__ import annotations

from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import Position
from extender.ports.protocols import START, EventLog, Snapshots
from extender.snapshots.state_loader import fold_from, nearest_checkpoint, restored, save_past


async def fill_ladder(
    event_log: EventLog, checkpoints: Snapshots, *, until: Position, every: int
) -> int:
    """Save a checkpoint in each stretch of the log that has none.

    Args:
        event_log: To read.
        checkpoints: To look up and to save.
        until: Position up to which it is filled.
        every: Events in a stretch.

    Returns:
        How many were saved.

    Raises:
        CorruptLog: The log breaks its own rules.
        StoreUnavailable: Try again; what was saved stays.
    """
    made, state = 0, EMPTY
    for rung in range(every, until + 1, every):
        near = await nearest_checkpoint(checkpoints, Position(rung))
        if near is not None and near.position > rung - every:
            continue
        start = near.position if near is not None else START
        if state.position < start:
            state = await restored(near)
        state = await fold_from(state, event_log, until=Position(rung), past=True)
        head = await event_log.at(state.position)
        assert head is not None
        await save_past(checkpoints, state, head)
        made += 1
    return made
