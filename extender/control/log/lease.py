"""The lease as this process holds it, with an expiry by the clock of this process.

The database decides which process may write; this module decides whether this process may act. `prolong` and `end` are
for the thread that renews while the event loop is busy; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import msgspec

from extender.control.log.history_guard import HistoryGuard
from extender.core.model.ids import Epoch
from extender.ports.log_ports import Clock, EventLog, LeaseGrant
from extender.runtime.wakeup import Wakeup


class LeaseIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of this replica in the lease row, and its intervals."""

    holder: str  # the same after a restart, so that a replica killed with -9 does not wait for its own lease
    address: str  # where this replica answers HTTP
    ttl_ms: int
    checkpoint_events: int = 2_000  # a start folds about so many at most
    checkpoint_ms: int = 60_000


async def keep_clock() -> None:
    """Leave a clock as it is: one that is the database's clock."""


class Lease:
    """The granted lease, and its expiry."""

    def __init__(
        self,
        event_log: EventLog,
        clock: Clock,
        identity: LeaseIdentity,
        history: HistoryGuard,
        sync_clock: Callable[[], Awaitable[None]] = keep_clock,
    ) -> None:
        self._log = event_log
        self._clock = clock
        self._identity = identity
        self._history = history
        self._sync_clock = sync_clock
        self.asked_ms = 0  # when it was asked for last
        self.prolonged = Wakeup()  # changes when the expiry is set
        self.grant: LeaseGrant | None = None
        self.terms = 0
        self.until_ms = 0
        self.renewed_ms = 0  # when the last renewal was asked for
        self._changes = threading.Lock()

    @property
    def epoch(self) -> Epoch:
        """Return the epoch of the grant, 0 without one."""
        return self.grant.epoch if self.grant is not None else Epoch(0)

    def holds(self) -> bool:
        """Return whether this process certainly holds the lease, by its own clock."""
        return self.grant is not None and self._clock.monotonic_ms() < self.until_ms

    async def acquire(self) -> LeaseGrant:
        """Acquire the lease, with an epoch above all known epochs; it counts only after `activate`.

        Raises:
            LeaseHeld: Another process holds it.
            StoreUnavailable: No answer; try again.
        """
        # the first event of the epoch must not be ahead of the database's clock
        await self._sync_clock()
        self.asked_ms = self._clock.monotonic_ms()
        grant = await self._log.take(
            holder=self._identity.holder,
            address=self._identity.address,
            ttl_ms=self._identity.ttl_ms,
            above=self._history.epoch,
        )
        self.terms += 1
        self._history.observe_grant(grant)
        self.grant = grant
        return grant

    def activate(self) -> None:
        """Let the lease that was acquired last count, from the time of its request.

        Not before the log has been compared with what this process knows: the log may be an older copy.
        """
        self.renew_from(self.asked_ms)

    def renew_from(self, asked_ms: int) -> None:
        """Set the expiry: one term after the request was sent, less a tenth for clock drift."""
        with self._changes:
            self._extend(asked_ms)
        self.prolonged.wake()

    def prolong(self, grant: LeaseGrant, asked_ms: int) -> None:
        """Extend the expiry of a grant that the database has renewed; for another thread. Another grant stays as it is."""
        with self._changes:
            if self.grant is grant:
                self._extend(asked_ms)

    def end(self, grant: LeaseGrant) -> None:
        """Let a grant expire at once, because another process has the lease; for another thread."""
        with self._changes:
            if self.grant is grant:
                self.until_ms = 0

    def _extend(self, asked_ms: int) -> None:
        """Extend the expiry; an answer that was late for a busy event loop does not shorten it."""
        until_ms = asked_ms + self._identity.ttl_ms - self._identity.ttl_ms // 10
        self.until_ms = max(self.until_ms, until_ms)
        self.renewed_ms = max(self.renewed_ms, asked_ms)

    async def watch_expiry(self, on_expired: Callable[[], None], every_s: float) -> None:
        """Call `on_expired` once each time when the lease has expired by the clock of this process; run until cancelled."""
        held = False
        while True:
            before, held = held, self.holds()
            if before and not held and self.grant is not None:
                on_expired()
            await asyncio.sleep(every_s)
