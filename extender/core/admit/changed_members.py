"""The members that a look at reservations and their pods has to look at again."""

from __future__ import annotations

from immutables import Map

from extender.core.log.capacity_claim import NO_CLAIMS, ClaimsOnNode
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.object_identity import changed_keys


class ChangedMembers:
    """Remembers pods and reservations of the last call."""

    def __init__(self) -> None:
        self._view = ClusterView()
        self._claims_on: Map[NodeName, ClaimsOnNode] = Map()

    def since_last(self, view: ClusterView, state: ReservationState) -> set[PodUid]:
        """Return the UIDs of all pods that, or whose reservations, may differ from those of the last call."""
        uids = changed_pods(self._view, view)
        for node in changed_keys(self._claims_on, state.claims_on):
            before = self._claims_on.get(node, NO_CLAIMS)
            claims = changed_keys(before, state.claims_on.get(node, NO_CLAIMS))
            uids |= {uid for kind, _, uid in claims if kind == "reservation"}
        self._view, self._claims_on = view, state.claims_on
        return uids
