"""Members whose volumes and claims kube-scheduler commits now: let through filter, not at bind yet (DESIGN 9.7).

They count as arrived: kube-scheduler has accepted their node, what it commits cannot be taken back, and a volume
that is made first may take longer than a barrier waits. A mark has_arrived as long as a call at bind would be held,
because nobody tells when kube-scheduler has died meanwhile. Memory only: after a restart calls come again.
"""

from __future__ import annotations

import msgspec

from extender.core.decisions.verbs.filter_and_prioritize import reservation_of
from extender.core.log.reservation_state import GangState, Reservation, ReservationState
from extender.core.model.ids import PlanId, PodUid
from extender.core.model.pods import Pod
from extender.ports.protocols import Clock


class _Mark(msgspec.Struct, frozen=True):
    plan: PlanId
    since_ms: int  # monotonic
    message: str  # what kube-scheduler had message of the pod before


class PreBindTracker:
    """Who is between filter and bind with volumes or claims."""

    def __init__(self, clock: Clock, counts_s: float) -> None:
        """Prepare.

        Args:
            clock: Tells the age of marks.
            counts_s: How long one has_arrived as arrived.
        """
        self._clock = clock
        self._counts_ms = counts_s * 1000
        self._marks: dict[PodUid, _Mark] = {}

    def mark(self, reservation: Reservation, pod: Pod) -> bool:
        """Mark a member; False where it had_arrived already."""
        before, had_arrived = self._marks.get(pod.uid), self.has_arrived(reservation)
        message = before.message if before is not None and had_arrived else pod.unschedulable
        self._marks[pod.uid] = _Mark(reservation.plan, self._clock.monotonic_ms(), message)
        return not had_arrived

    def unmark(self, uid: PodUid) -> None:
        """Forget a member."""
        self._marks.pop(uid, None)

    def clear(self) -> None:
        """Forget all."""
        self._marks.clear()

    def retain_reserved(self, state: ReservationState) -> None:
        """Forget those whose reservation is given back, or became a bound member."""
        for uid, mark in list(self._marks.items()):
            held = reservation_of(state, uid)
            if held is None or held.plan != mark.plan:
                del self._marks[uid]

    def has_arrived(self, reservation: Reservation) -> bool:
        """Say whether a member has arrived by what is committed for it."""
        mark = self._marks.get(reservation.uid)
        if mark is None or mark.plan != reservation.plan:
            return False
        return self._clock.monotonic_ms() - mark.since_ms < self._counts_ms

    def arrived_of(self, root: GangState) -> tuple[Reservation, ...]:
        """Give the reservations of a root whose members count."""
        held = (root.held.get(uid) for uid in self._marks)
        return tuple(r for r in held if r is not None and self.has_arrived(r))

    def in_progress(self, pod: Pod) -> bool:
        """Say whether kube-scheduler has message nothing new of a pod since it was let through, however long that takes."""
        mark = self._marks.get(pod.uid)
        return mark is not None and mark.message == pod.unschedulable
