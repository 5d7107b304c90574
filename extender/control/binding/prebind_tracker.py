"""Members between filter and bind, whose volumes and claims kube-scheduler commits now (K35).

They count as arrived: kube-scheduler has accepted their node, its commits cannot be undone, and provisioning of a
volume may take longer than a barrier waits. A mark expires after the timeout of the barrier, because a crash of
kube-scheduler is not reported. In memory only: after a restart kube-scheduler calls filter again.
"""

from __future__ import annotations

import msgspec

from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    reservation_of,
)
from extender.core.model.ids import PlanId, PodUid
from extender.core.model.pods import Pod
from extender.ports.log_ports import Clock


class _Mark(msgspec.Struct, frozen=True):
    plan: PlanId
    since_ms: int  # monotonic
    message: str  # the PodScheduled message before the mark


class PreBindTracker:
    """The members with volumes or claims between filter and bind."""

    def __init__(self, clock: Clock, counts_s: float) -> None:
        """Prepare.

        Args:
            clock: For the age of marks.
            counts_s: How long a marked member counts as arrived.
        """
        self._clock = clock
        self._counts_ms = counts_s * 1000
        self._marks: dict[PodUid, _Mark] = {}

    def mark(self, reservation: Reservation, pod: Pod) -> bool:
        """Mark a member; return False if it counted as arrived already."""
        before, had_arrived = self._marks.get(pod.uid), self.has_arrived(reservation)
        message = before.message if before is not None and had_arrived else pod.unschedulable
        self._marks[pod.uid] = _Mark(reservation.plan, self._clock.monotonic_ms(), message)
        return not had_arrived

    def unmark(self, uid: PodUid) -> None:
        """Remove the mark of a member."""
        self._marks.pop(uid, None)

    def clear(self) -> None:
        """Remove all marks."""
        self._marks.clear()

    def retain_reserved(self, state: ReservationState) -> None:
        """Remove the marks of members without the reservation of their mark."""
        for uid, mark in list(self._marks.items()):
            held = reservation_of(state, uid)
            if held is None or held.plan != mark.plan:
                del self._marks[uid]

    def has_arrived(self, reservation: Reservation) -> bool:
        """Return whether a member counts as arrived by its mark."""
        mark = self._marks.get(reservation.uid)
        if mark is None or mark.plan != reservation.plan:
            return False
        return self._clock.monotonic_ms() - mark.since_ms < self._counts_ms

    def arrived_of(self, root: GangState) -> tuple[Reservation, ...]:
        """Return the reservations of a root whose members count as arrived."""
        held = (root.reservations.get(uid) for uid in self._marks)
        return tuple(r for r in held if r is not None and self.has_arrived(r))

    def in_progress(self, pod: Pod) -> bool:
        """Return whether kube-scheduler has not changed the message of a pod since its mark, of any age."""
        mark = self._marks.get(pod.uid)
        return mark is not None and mark.message == pod.unschedulable
