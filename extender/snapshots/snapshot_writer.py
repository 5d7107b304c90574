"""Saves snapshots of the state, so that the next start and historical queries read only few events behind one.

Historical snapshots are saved more often than full ones: they are smaller, because full ones have the version of
every stream that ever existed.
"""

from __future__ import annotations

import asyncio
import logging

from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import START, Clock, EventLog, Snapshots
from extender.snapshots.state_loader import (
    fold_from,
    nearest_snapshot,
    save_historical,
    save_snapshot,
    state_of_snapshot,
)

log = logging.getLogger(__name__)

FULL_EVERY = 5  # full snapshots are this many times rarer: a start folds the events between two in a tenth of a second


class SnapshotWriter:
    """Saves snapshots as the log grows.

    Args:
        clock: For `ms`.
        ms: Time between two full snapshots, if there are new events.
    """

    def __init__(
        self, event_log: EventLog, snapshots: Snapshots, clock: Clock, *, events: int, ms: int
    ) -> None:
        self._log = event_log
        self._snapshots = snapshots
        self._clock = clock
        self._events = events
        self._ms = ms
        self._saved = START
        self._full = START
        self._full_ms = 0
        self._one_at_a_time = asyncio.Lock()

    async def save_if_due(self, state: ReservationState) -> None:
        """Save a snapshot after enough events or enough time; a failure is logged, and the next call tries again."""
        fresh = state.position - self._full
        age_ms = self._clock.monotonic_ms() - self._full_ms
        try:
            if fresh >= FULL_EVERY * self._events or (fresh > 0 and age_ms >= self._ms):
                await self.save(state)
            elif state.position - self._saved >= self._events:
                await self._save_historical(state)
        except StoreUnavailable as error:
            log.warning("snapshot not saved", extra={"error": str(error)})

    async def save(self, state: ReservationState) -> None:
        """Save a full snapshot, unless the log has later events.

        Raises:
            StoreUnavailable: Not saved.
        """
        async with self._one_at_a_time:
            head = await self._log.head()
            if head.position != state.position or state.position == self._full:
                return  # the log is growing; a later call saves
            await save_snapshot(self._snapshots, state, head)
            self._saved = self._full = state.position
            self._full_ms = self._clock.monotonic_ms()

    async def _save_historical(self, state: ReservationState) -> None:
        async with self._one_at_a_time:
            head = await self._log.head()
            if head.position == state.position:
                await save_historical(self._snapshots, state, head)
                self._saved = state.position

    async def discard(self) -> None:
        """Delete all snapshots, also the one that is being saved; call it when the state is right.

        Raises:
            StoreUnavailable: Not deleted, or the outcome is unknown.
        """
        async with self._one_at_a_time:
            self._saved = self._full = START
            await self._snapshots.delete_all()


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
