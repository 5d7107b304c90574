"""Reservations that do not fit any more, on nodes that are examined repeatedly while their members are bound.

A member that is bound as reserved moves from the reservations of its node to the usage of the node: their sum stays.
So a node that was examined once is examined again only after another change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from extender.core.log.capacity_claim import NO_CLAIMS, ClaimsOnNode
from extender.core.log.reservation_state import ReservationState, reservation_of
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pods import Pod
from extender.core.reconcile.reservation_checks import (
    is_unassigned,
    oversubscribed_on,
)

# Beyond so many remembered nodes, and twice those with reservations, the others are forgotten
NODES_MIN: Final = 1_000


class _Fits(NamedTuple):
    """What a node was examined with when all its reservations fitted."""

    node: Node
    claims: ClaimsOnNode


class OversubscriptionTracker:
    """Follows view and state, at the cost of what has changed; its results are those of `oversubscribed_on`."""

    def __init__(self) -> None:
        self._view = ClusterView()  # up to which changes of pods are followed
        self._fit: dict[NodeName, _Fits] = {}

    def oversubscribed_on(
        self, view: ClusterView, state: ReservationState, name: NodeName
    ) -> tuple[PodUid, ...]:
        """Return the reservations on a node that do not fit any more; see `oversubscribed_on`.

        Args:
            view: The cluster, not older than that of the call before.
        """
        self._follow(view, state)
        node, claims = view.nodes.get(name), state.claims_on.get(name, NO_CLAIMS)
        fit = self._fit.get(name)
        if fit is not None and fit.node is node and fit.claims is claims:
            return ()
        uids = tuple(oversubscribed_on(view, state, name))
        self._fit.pop(name, None)
        # what is held for preemptors follows their victims
        follows_victims = any(claim.kind == "preemption" for claim in claims.values())
        if node is not None and not uids and not follows_victims:
            self._fit[name] = _Fits(node, claims)
        return uids

    def _follow(self, view: ClusterView, state: ReservationState) -> None:
        """Forget the nodes on which a pod needs more than before."""
        last, self._view = self._view, view
        if view is last or not self._fit:
            return  # with nothing remembered, all pods of the cluster are of no interest
        for uid in changed_pods(last, view):
            before, pod = last.pods.get(uid), view.pods.get(uid)
            if is_unassigned(pod):
                if not is_unassigned(before):
                    held = reservation_of(state, uid)
                    if held is not None:
                        self._fit.pop(held.node, None)
            elif pod is not None and pod.node is not None and not _uses_no_more(before, pod, state):
                self._fit.pop(pod.node, None)
        if len(self._fit) > NODES_MIN + 2 * len(state.claims_on):
            on = state.claims_on
            self._fit = {name: fits for name, fits in self._fit.items() if name in on}


def _uses_no_more(before: Pod | None, pod: Pod, state: ReservationState) -> bool:
    """Return whether an assigned pod uses what it, or its reservation on this node, used before."""
    if before is not None and before.node == pod.node:
        return before.shape == pod.shape
    held = reservation_of(state, pod.uid)
    return (
        held is not None
        and is_unassigned(before)
        and held.node == pod.node
        and held.requests == dict(pod.shape.requests)
    )
