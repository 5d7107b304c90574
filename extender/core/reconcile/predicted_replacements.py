"""Replacement holds for losses that are not recorded yet.

A loss is recorded by the next pass, after the API server has answered how the pod ended. But kube-scheduler and the
planner see the capacity as free as soon as the pod is gone; without these holds they would use it before that.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

import msgspec

from extender.core.admit.plan_request import group_key_of
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim
from extender.core.log.each_gang import EachGang
from extender.core.log.reservation_state import ReservationState
from extender.core.log.state_projector import replacement_hold
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import PodUid
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Forest
from extender.core.reconcile.cluster_reconciliation import losses_with_hold
from extender.core.reconcile.drift import ReconcileContext

NO_PODS: frozenset[PodUid] = frozenset()


class PredictedLosses:
    """Cache of the holds; valid as long as members, state and awaited answers are the same."""

    def __init__(self) -> None:
        self._lost: IdentityMemo[frozenset[PodUid]] = IdentityMemo()
        self._holds: IdentityMemo[tuple[CapacityClaim, ...]] = IdentityMemo()
        self._predicted: IdentityMemo[ReservationState] = IdentityMemo()

    def of(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        before: ClusterView,
        now: ReconcileContext,
        gangs: EachGang | None = None,
    ) -> ReservationState:
        """Return the state with a replacement hold for each loss that it does not contain yet.

        Args:
            forest: The trees, perhaps of a slightly older view.
            before: The view of the last pass.
            now: The context of the next pass; pods with an awaited answer count as answered.
            gangs: How each gang is predicted; None: exceptions are raised.
        """
        each = gangs or EachGang()
        lost = self._lost.get(
            lambda: frozenset((*now.awaited, *vanished(before, view))),
            same=(view.members, before.members, now.awaited),
        )
        if not lost:
            return state
        holds = self._holds.get(
            lambda: tuple(_holds(view, state, forest, lost, now, each)),
            same=(lost, view.nodes, view.groups, view.ends, state.gangs, state.trees, now.ends),
        )
        if not holds:
            return state
        return self._predicted.get(lambda: _with(state, holds), same=(state, holds))


def vanished(before: ClusterView, view: ClusterView) -> Iterator[PodUid]:
    """Yield the members that had a node and are not in the view any more."""
    if view.members is before.members:
        return
    for uid in changed_pods(before, view):
        pod = before.pods.get(uid)
        if (
            uid not in view.pods
            and pod is not None
            and pod.group is not None
            and pod.node is not None
        ):
            yield uid


def _holds(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    lost_pods: Collection[PodUid],
    now: ReconcileContext,
    gangs: EachGang,
) -> Iterator[CapacityClaim]:
    answered = msgspec.structs.replace(now, awaited=NO_PODS)
    for gang_uid in sorted({state.gang_of[uid] for uid in lost_pods if uid in state.gang_of}):
        root = state.gangs[gang_uid]
        tree = forest.trees.get(group_key_of(root))
        losses = functools.partial(losses_with_hold, view, state, root, tree, answered)
        for lost in gangs.result(gang_uid, f"losses of {root.gang}", losses) or ():
            yield replacement_hold(
                root.bound[lost.uid], root, at_us=now.now_us, until_us=lost.held_until_us
            )


def _with(state: ReservationState, holds: Collection[CapacityClaim]) -> ReservationState:
    claims_on = state.claims_on
    for hold in holds:
        claims = claims_on.get(hold.node, NO_CLAIMS).set(hold.key, hold)
        claims_on = claims_on.set(hold.node, claims)
    return msgspec.structs.replace(state, claims_on=claims_on)
