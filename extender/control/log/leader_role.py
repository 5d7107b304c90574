"""The role of this process, the lease that it holds, and what both allow.

Role and reason change only in `become`. It wakes the control loop and the tasks in `until_may_act` when the role changes.

The database decides which process may write; the lease here has an expiry by the clock of this process, and decides whether this
process may act. `prolong` and `end` are for the thread that renews while the event loop is busy; everything else runs on the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

from extender.control.log.history_guard import HistoryGuard
from extender.core.model.ids import Epoch
from extender.ports.log_ports import Clock, EventLog, LeaseGrant
from extender.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

SyncClock: TypeAlias = Callable[[], Awaitable[None]]  # brings a clock to that of the database
Role = Literal["starting", "following", "leading", "settling", "stopped"]


class LeaderRole(ABC):
    """The role, and what follows from role, lease and recovery; the lease loop and the settlement change it."""

    def __init__(self, lease: Lease, history: HistoryGuard) -> None:
        self._role_changed = Wakeup()  # also when a recovery ends
        self.lease = lease
        self.history = history
        self.wakeup = Wakeup()  # changes with the committed state and with the role
        self.role: Role = "starting"
        self.not_leading_reason = "starting"
        self.recovery_reason = ""  # why no admission is appended while leading, or an empty string
        self.draining = False  # this process ends soon: it does not acquire the lease again

    # -- changes --------------------------------------------------------------------------------

    def become(self, role: Role, reason: str) -> None:
        """Change role and reason.

        Args:
            reason: Why this process does not lead; empty when it leads.
        """
        changed = role != self.role
        self.role, self.not_leading_reason = role, reason
        if changed:
            self._role_changed.wake()
            self.wakeup.wake()

    def explain(self, reason: str) -> None:
        """Change the reason and keep the role."""
        self.become(self.role, reason)

    def begin_recovery(self, reason: str) -> None:
        """Forbid admissions and writes to the cluster: the log has lost events and must be compared with the cluster."""
        self.recovery_reason = reason

    def end_recovery(self, terms: int) -> None:
        """End the recovery from a loss of events: the log has been compared with the cluster.

        Args:
            terms: The value of `terms` when the comparison began; after another acquisition nothing ends.
        """
        if self.recovery_reason and terms == self.terms and self.history.unrecorded is None:
            log.info(
                "compared with the cluster after a loss of history", extra={"epoch": self.epoch}
            )
            self.recovery_reason = ""
            self._role_changed.wake()

    @abstractmethod
    def lose(self, reason: str) -> None:
        """Stop leading: fail the appends in flight, and follow from now on."""

    @abstractmethod
    def on_lease_expired(self) -> None:
        """Let waiting calls be answered, because the lease has expired by the clock of this process."""

    @abstractmethod
    async def record_lease(self, grant: LeaseGrant) -> None:
        """Append the event of a new epoch, and the loss of events that was found with it; a failure is logged."""

    # -- queries --------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Return whether writes to the cluster are allowed now: the lease is held, and the state is that of the log."""
        return self._role_may_act() and self.lease.holds()

    async def until_may_act(self) -> None:
        """Wait until `may_act`. A lease that expires needs no wake-up: it only ends the permission."""
        while not self.may_act():
            if self._role_may_act():
                await self.lease.prolonged.wait(self.lease.prolonged.revision)
            else:
                await self._role_changed.wait(self._role_changed.revision)

    def _role_may_act(self) -> bool:
        return self.role in ("leading", "settling") and not self.recovery_reason

    async def until_lost(self) -> None:
        """Wait until this process, which leads or settles now, has lost or released the lease."""
        while self.lease.grant is not None:
            await self._role_changed.wait(self._role_changed.revision)

    def may_record(self) -> bool:
        """Return whether events can be appended now."""
        return self.role == "leading" and self.lease.holds()

    def may_measure(self) -> bool:
        """Return whether events about the cluster can be appended now, which is not being compared with a log that lost events."""
        return self.may_record() and not self.recovery_reason

    def leads(self) -> bool:
        """Return whether this process is the one that answers kube-scheduler, ready or not."""
        return self.lease.grant is not None and self.role in ("leading", "settling")

    def not_ready_reason(self) -> str:
        """Return the reason why this process must not answer from its state, or an empty string."""
        if not self.leads():
            return f"not leading: {self.not_leading_reason}"
        return "" if self.lease.holds() else "the lease has run out"

    @property
    def epoch(self) -> Epoch:
        """Return the epoch of the grant, 0 without one."""
        return self.lease.epoch

    @property
    def terms(self) -> int:
        """Return how often the lease was acquired; a pass under an earlier acquisition does not make this one ready."""
        return self.lease.terms


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
        sync_clock: SyncClock = keep_clock,
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
