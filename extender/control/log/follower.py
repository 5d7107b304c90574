"""A replica without the lease folds the log as it grows, and knows how far behind the log it is.

So a new leader reads only the tail of the log, queries are answered from memory, and calls are forwarded to the
replica that the lease names. The lag is measured in time: how long ago the fold was at the end of the log. It
grows when the fold is too slow, when the log cannot be read and when the database does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from extender.control.log.history_guard import HistoryGuard
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.log.state_projector import fold
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import (
    Clock,
    EventLog,
    LeaseRecord,
    LogHead,
    LogMark,
    LogPage,
    Snapshots,
)
from extender.snapshots.state_loader import fold_from, load_state

log = logging.getLogger(__name__)

BEHIND_MS = 5_000  # a replica that is further behind is not ready and does not acquire the lease
AGAIN_S = 0.2  # after a log that could not be read
PAUSE_S = 1.0  # after a log that could not be folded: another history, or events of a later version

Pages = Callable[[Position], AsyncIterator[LogPage]]


class Follower:
    """The fold of the log, the lease row as it was last read, and the lag."""

    def __init__(
        self, event_log: EventLog, snapshots: Snapshots, history: HistoryGuard, clock: Clock
    ) -> None:
        self._log = event_log
        self._snapshots = snapshots
        self._history = history
        self._clock = clock
        self._mark: LogMark | None = None  # the end of what `state` is the fold of
        self._current_ms: int | None = None  # when the fold last stood at the end of the log
        self._problem = "it has not been read yet"
        self._free_since_ms: int | None = None  # since when no process holds the lease
        self.state: ReservationState = EMPTY
        self.lease: LeaseRecord | None = None
        self.fault: CorruptLog | None = None  # why the log cannot be folded at all
        self.loaded = asyncio.Event()
        self.source: Pages = lambda after: event_log.follow(after=after)

    def lag_reason(self) -> str:
        """Return the reason why this replica must not acquire the lease, or an empty string."""
        if self._current_ms is None:
            return f"the log is not followed: {self._problem}"
        late_ms = self._clock.monotonic_ms() - self._current_ms
        if late_ms <= BEHIND_MS:
            return ""
        reason = f": {self._problem}" if self._problem else ", it grows faster than it is read here"
        return (
            f"{late_ms / 1000:.0f} s behind the log, at position {self.state.position}{reason}; "
            f"more than {BEHIND_MS // 1000} s is too old to lead from"
        )

    def lease_free_ms(self) -> int:
        """Return for how long the lease has been seen free, in milliseconds; 0 while it is held."""
        since_ms = self._free_since_ms
        return 0 if since_ms is None else max(1, self._clock.monotonic_ms() - since_ms)

    def forget_lease(self) -> None:
        """Forget the lease row because this process does not lead any more; callers wait until it is read again."""
        self.lease, self._free_since_ms = None, self._clock.monotonic_ms()

    async def read_lease(self) -> LeaseRecord | None:
        """Read the lease row and the end of the log.

        Raises:
            StoreUnavailable: No answer; what was read before is kept.
        """
        asked_ms = self._clock.monotonic_ms()
        try:
            self.lease, head = await self._log.lease(), await self._log.head()
        except StoreUnavailable as error:
            self._problem = str(error)
            raise
        held = self.lease is not None and not self.lease.expired
        self._free_since_ms = None if held else (self._free_since_ms or asked_ms)
        if self.lease is not None:
            self._history.observe_epoch(self.lease.epoch)
        if self._mark is not None and self.state.position >= head.position:
            self._current_ms, self._problem = asked_ms, ""
        return self.lease

    async def run(self, on_fold: Callable[[ReservationState], None]) -> None:
        """Follow the log until cancelled; start again from the newest snapshot when the log cannot be folded."""
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
                self._problem = str(error)
                await asyncio.sleep(AGAIN_S)
            except CorruptLog as error:
                log.warning("the log cannot be followed", extra={"error": str(error)})
                self._mark, self._current_ms, self._problem = None, None, str(error)
                self.loaded.clear()
                await asyncio.sleep(PAUSE_S)

    async def _load(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        await self._history.compare_seen()
        head = await self._log.head()
        try:
            state = await load_state(self._log, self._snapshots, until=head.position)
        except CorruptLog as error:
            self.fault = error
            self.loaded.set()  # there is nothing to wait for
            raise
        self.state, self.fault = state, None
        self._mark = LogMark(position=head.position, epoch=state.epoch, chain=head.chain)
        self._history.observe_loaded(self._mark)
        self._current_ms, self._problem = asked_ms, ""

    def _fold(self, page: LogPage) -> None:
        self.state = fold(self.state, page)
        self._history.observe_followed(page)
        last = page[-1]
        self._mark = LogMark(position=last.position, epoch=last.epoch, chain=page.chain)

    async def state_at(self, head: LogHead) -> ReservationState:
        """Return the fold up to `head`: the followed state and the tail, or all anew if the log has changed.

        Raises:
            CorruptLog: The log cannot be folded.
        """
        mark = self._mark
        # the log must still have the last folded event: a database restored from an older copy is another log
        if mark is not None and mark.position <= head.position and await self._log.holds(mark):
            if mark.position == head.position:
                return self.state
            return await fold_from(self.state, self._log, until=head.position)
        return await load_state(self._log, self._snapshots, until=head.position)
