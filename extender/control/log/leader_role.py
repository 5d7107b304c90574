"""The role of this process, the reason for it, and what both allow.

Role and reason change only in `become`. It wakes the control loop and the tasks in `until_may_act` when the role changes.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Literal

from extender.control.log.history_guard import HistoryGuard
from extender.control.log.lease import Lease
from extender.core.model.ids import Epoch
from extender.ports.log_ports import LeaseGrant
from extender.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

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
