"""Save the folded state now and then, so that the next start reads only the tail of the log."""

from __future__ import annotations

import logging

from extender.core.errors import StoreUnavailable
from extender.core.state import ReservationState
from extender.service.ports import START, Checkpoints, Clock, EventLog
from extender.service.replay import save_checkpoint

log = logging.getLogger(__name__)


class Checkpointing:
    """Saves states that stand at the head of the log."""

    def __init__(
        self, event_log: EventLog, checkpoints: Checkpoints, clock: Clock, *, events: int, ms: int
    ) -> None:
        self._log = event_log
        self._checkpoints = checkpoints
        self._clock = clock
        self._events = events
        self._ms = ms
        self._saved = START
        self._saved_ms = 0

    async def save_if_due(self, state: ReservationState) -> None:
        """Save when enough facts or enough time have passed; a failure is logged, the next look tries again."""
        fresh = state.position - self._saved
        age_ms = self._clock.monotonic_ms() - self._saved_ms
        if fresh >= self._events or (fresh > 0 and age_ms >= self._ms):
            try:
                await self.save(state)
            except StoreUnavailable as error:
                log.warning("checkpoint not saved", extra={"error": str(error)})

    async def save(self, state: ReservationState) -> None:
        """Save a state, unless the log has moved on from it.

        Raises:
            StoreUnavailable: Not saved.
        """
        head = await self._log.head()
        if head.position != state.position or state.position == self._saved:
            return  # the log moves; the next look will find it still
        await save_checkpoint(self._checkpoints, state, head)
        self._saved, self._saved_ms = state.position, self._clock.monotonic_ms()
