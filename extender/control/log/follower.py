"""What a replica without the lease does all day: fold the log as it grows, and know how far behind it is.

So a take-over needs only the tail, questions are answered from memory, and whoever calls is sent on to the
replica that the lease names. How far behind is counted in time: how long ago the fold stood at the end of the
log. One number then covers a fold that is too slow, a log that cannot be read and a database that is away.

The surprise: what was followed is not trusted at a take-over before the log was asked whether it still has the
last fact of it. A database that came back as an older copy is another log; what this process has seen of the
one before is evidence of that (`history`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from extender.control.log.history_guard import HistoryGuard
from extender.core.log.events import RecordedEvent
from extender.core.log.reservation_state import EMPTY, ReservationState, fold
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.protocols import Clock, EventLog, LeaseRecord, LogHead, LogMark, Snapshots
from extender.snapshots.state_loader import fold_from, load_state

log = logging.getLogger(__name__)

BEHIND_MS = 5_000  # a replica that is further behind is not ready and takes nothing over
AGAIN_S = 0.2  # after a log that could not be read
PAUSE_S = 1.0  # after one that could not be folded: another history, or facts of a later version

Pages = Callable[[Position], AsyncIterator[Sequence[RecordedEvent]]]


class Follower:
    """The fold of the log, the lease row as it was last read, and the distance to the end."""

    def __init__(
        self, event_log: EventLog, checkpoints: Snapshots, history: HistoryGuard, clock: Clock
    ) -> None:
        self._log = event_log
        self._checkpoints = checkpoints
        self._history = history
        self._clock = clock
        self._mark: LogMark | None = None  # the end of what `state` is the fold of
        self._current_ms: int | None = None  # when the fold last stood at the end of the log
        self._trouble = "it has not been read yet"
        self._free_since_ms: int | None = None
        self.state: ReservationState = EMPTY
        self.lease: LeaseRecord | None = None
        self.fault: CorruptLog | None = None  # why the log cannot be folded at all
        self.loaded = asyncio.Event()
        self.source: Pages = lambda after: event_log.follow(after=after)

    def behind(self) -> str:
        """Say why this replica must not take over, or the empty string."""
        if self._current_ms is None:
            return f"the log is not followed: {self._trouble}"
        late_ms = self._clock.monotonic_ms() - self._current_ms
        if late_ms <= BEHIND_MS:
            return ""
        why = f": {self._trouble}" if self._trouble else ", it grows faster than it is read here"
        return (
            f"{late_ms / 1000:.0f} s behind the log, at position {self.state.position}{why}; "
            f"more than {BEHIND_MS // 1000} s is too old to lead from"
        )

    def free_ms(self) -> int:
        """Say for how long nobody has held the lease, as far as it was seen; 0 while somebody does."""
        since_ms = self._free_since_ms
        return 0 if since_ms is None else max(1, self._clock.monotonic_ms() - since_ms)

    def deposed(self) -> None:
        """Hear that this process leads no more: who does is known at the next look, and callers may wait so long."""
        self.lease, self._free_since_ms = None, self._clock.monotonic_ms()

    async def look(self) -> LeaseRecord | None:
        """Read who leads, and where the log ends.

        Raises:
            StoreUnavailable: No answer; what was known stays, and grows old.
        """
        asked_ms = self._clock.monotonic_ms()
        try:
            self.lease, head = await self._log.lease(), await self._log.head()
        except StoreUnavailable as error:
            self._trouble = str(error)
            raise
        held = self.lease is not None and not self.lease.expired
        self._free_since_ms = None if held else (self._free_since_ms or asked_ms)
        if self.lease is not None:
            self._history.heard(self.lease.epoch)
        if self._mark is not None and self.state.position >= head.position:
            self._current_ms, self._trouble = asked_ms, ""
        return self.lease

    async def run(self, on_fold: Callable[[ReservationState], None]) -> None:
        """Fold for ever; the fold begins anew, from the newest checkpoint, when the log is another one."""
        while True:
            try:
                await self._load()
                on_fold(self.state)
                self.loaded.set()
                async for page in self.source(self.state.position):
                    self._fold(page)
                    on_fold(self.state)
                    await asyncio.sleep(0)
            except StoreUnavailable as error:
                self._trouble = str(error)
                await asyncio.sleep(AGAIN_S)
            except CorruptLog as error:
                log.warning("the log cannot be followed", extra={"error": str(error)})
                self._forget(str(error))
                await asyncio.sleep(PAUSE_S)

    async def _load(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        head = await self._log.head()
        try:
            state = await load_state(self._log, self._checkpoints, until=head.position)
        except CorruptLog as error:
            self.fault = error
            self.loaded.set()  # there is nothing to wait for
            raise
        self.state, self.fault = state, None
        self._mark = LogMark(position=head.position, epoch=state.epoch, chain=head.chain)
        self._current_ms, self._trouble = asked_ms, ""

    def _fold(self, page: Sequence[RecordedEvent]) -> None:
        self.state = fold(self.state, page)
        for event in page:
            self._history.acknowledged(event)
        last = page[-1]
        self._mark = LogMark(position=last.position, epoch=last.epoch, event_id=last.event_id)

    def _forget(self, why: str) -> None:
        self._mark, self._current_ms, self._trouble = None, None, why
        self.loaded.clear()

    async def until(self, head: LogHead) -> ReservationState:
        """Give the fold up to an end of the log: what was followed and the tail, if the log still has that.

        Raises:
            CorruptLog: The log breaks its own rules.
            StoreUnavailable: Try again.
        """
        mark = self._mark
        if mark is not None and mark.position <= head.position and await self._log.holds(mark):
            if mark.position == head.position:
                return self.state
            return await fold_from(self.state, self._log, until=head.position)
        return await load_state(self._log, self._checkpoints, until=head.position)
