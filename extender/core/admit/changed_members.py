"""The members that a look at reservations and their pods has to look at again."""

from __future__ import annotations

from immutables import Map

from extender.core.capacity.free_capacity import NO_HOLDS
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.object_identity import changed_keys


class ChangedMembers:
    """Remembers pods and reservations of the last call."""

    def __init__(self) -> None:
        self._view = ClusterView()
        self._reservations_on: Map[NodeName, Map[PodUid, Reservation]] = Map()

    def since_last(self, view: ClusterView, state: ReservationState) -> set[PodUid]:
        """Return the UIDs of all pods that, or whose reservations, may differ from those of the last call."""
        uids = changed_pods(self._view, view)
        for node in changed_keys(self._reservations_on, state.reservations_on):
            before = self._reservations_on.get(node, NO_HOLDS)
            uids |= changed_keys(before, state.reservations_on.get(node, NO_HOLDS))
        self._view, self._reservations_on = view, state.reservations_on
        return uids
