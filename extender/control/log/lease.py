"""The lease as this process holds it: taken, counted by our own clock, given back.

Only the database decides who may write; this says whether we may still act. The surprise: a lease that
was just taken does not count before `begin`, because the log that came with it may be another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from extender.control.log.history_guard import HistoryGuard
from extender.core.model.ids import Epoch
from extender.ports.protocols import Clock, EventLog, LeaseGrant


class LeaseIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to the lease."""

    holder: str  # stable over restarts of the same replica, so that a restart after kill -9 does not wait
    address: str  # where we answer HTTP
    ttl_ms: int
    checkpoint_events: int = 2_000  # a look back folds about so many at most
    checkpoint_ms: int = 60_000


class Lease:
    """What we hold, and until when."""

    def __init__(
        self, event_log: EventLog, clock: Clock, identity: LeaseIdentity, history: HistoryGuard
    ) -> None:
        self._log = event_log
        self._clock = clock
        self._me = identity
        self._history = history
        self._asked_ms = 0
        self.grant: LeaseGrant | None = None
        self.takes = 0
        self.until_ms = 0

    @property
    def epoch(self) -> Epoch:
        """Give the epoch of our grant, 0 without one."""
        return self.grant.epoch if self.grant is not None else Epoch(0)

    def holds(self) -> bool:
        """Say whether the lease is ours for certain, by our own clock."""
        return self.grant is not None and self._clock.monotonic_ms() < self.until_ms

    async def take(self) -> LeaseGrant:
        """Take the lease, with an epoch above all that are known from anywhere.

        Raises:
            LeaseHeld: Somebody else has it.
            StoreUnavailable: No answer.
        """
        self._asked_ms = self._clock.monotonic_ms()
        grant = await self._log.take(
            holder=self._me.holder,
            address=self._me.address,
            ttl_ms=self._me.ttl_ms,
            above=self._history.epoch,
        )
        self.takes += 1
        self._history.granted(grant)
        self.grant = grant
        return grant

    def begin(self) -> None:
        """Count the lease that was taken last."""
        self.prolong(self._asked_ms)

    def prolong(self, asked_ms: int) -> None:
        """Count our lease from before the database was asked, less a tenth for the drift of clocks."""
        self.until_ms = asked_ms + self._me.ttl_ms - self._me.ttl_ms // 10

    async def watch(self, on_lapse: Callable[[], None], every_s: float) -> None:
        """Tell, for ever, when the lease has run out by our clock; once each time."""
        held = False
        while True:
            before, held = held, self.holds()
            if before and not held and self.grant is not None:
                on_lapse()
            await asyncio.sleep(every_s)
