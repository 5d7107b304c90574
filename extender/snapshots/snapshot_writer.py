"""Save the folded state now and then, so that the next start reads only the tail of the log, and so does a look back.

To look back from, states are saved more often: they are smaller than whole ones, which have the version of every
stream that ever was.
"""

from __future__ import annotations

import logging

from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import StoreUnavailable
from extender.ports.protocols import START, Clock, EventLog, Snapshots
from extender.snapshots.state_loader import save_checkpoint, save_past

log = logging.getLogger(__name__)

WHOLE_EVERY = 5  # as many times as many events lie between two whole ones: a start folds them in a tenth of a second


class SnapshotWriter:
    """Saves states as the log grows.

    Args:
        event_log: Where they stand.
        checkpoints: Where they are kept.
        clock: Says when some are due.
        events: Facts between two of them.
        ms: Time between two whole ones, if there are any facts.
    """

    def __init__(
        self, event_log: EventLog, checkpoints: Snapshots, clock: Clock, *, events: int, ms: int
    ) -> None:
        self._log = event_log
        self._checkpoints = checkpoints
        self._clock = clock
        self._events = events
        self._ms = ms
        self._saved = START
        self._whole = START
        self._whole_ms = 0

    async def save_if_due(self, state: ReservationState) -> None:
        """Save when enough facts or enough time have passed; a failure is logged, the next look tries again."""
        fresh = state.position - self._whole
        age_ms = self._clock.monotonic_ms() - self._whole_ms
        try:
            if fresh >= WHOLE_EVERY * self._events or (fresh > 0 and age_ms >= self._ms):
                await self.save(state)
            elif state.position - self._saved >= self._events:
                await self._save_past(state)
        except StoreUnavailable as error:
            log.warning("checkpoint not saved", extra={"error": str(error)})

    async def save(self, state: ReservationState) -> None:
        """Save a whole state, unless the log has moved on from it.

        Raises:
            StoreUnavailable: Not saved.
        """
        head = await self._log.head()
        if head.position != state.position or state.position == self._whole:
            return  # the log moves; the next look will find it still
        await save_checkpoint(self._checkpoints, state, head)
        self._saved = self._whole = state.position
        self._whole_ms = self._clock.monotonic_ms()

    async def _save_past(self, state: ReservationState) -> None:
        head = await self._log.head()
        if head.position == state.position:
            await save_past(self._checkpoints, state, head)
            self._saved = state.position
