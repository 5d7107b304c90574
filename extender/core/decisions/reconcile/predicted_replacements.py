"""Losses that the log is about to learn: who vanished leaves its room to its replacement from that moment on.

A loss is recorded by the next pass, and not before the API server was asked how the pod ended. kube-scheduler and the
planner see the room as soon as the pod is gone; without this they would have given it away by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from extender.core.decisions.admit.plan_request import group_key_of
from extender.core.decisions.capacity.replacement_holds import NO_VACANCIES
from extender.core.decisions.reconcile.cluster_reconciliation import losses_that_hold
from extender.core.decisions.reconcile.drift import ReconcileContext
from extender.core.log.reservation_state import ReplacementHold, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.object_identity import same_objects
from extender.core.model.pod_groups import Forest

NOBODY: frozenset[PodUid] = frozenset()


class PredictedLosses:
    """Remembers what it found for as long as members, log and what is awaited are the same."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._gone: frozenset[PodUid] = NOBODY
        self._rests_on: tuple[object, ...] = ()
        self._found: tuple[ReplacementHold, ...] = ()
        self._state: ReservationState | None = None
        self._given: ReservationState | None = None

    def of(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        before: ClusterView,
        now: ReconcileContext,
    ) -> ReservationState:
        """Give the state with the room that members leave of whose loss it does not know.

        Args:
            view: As it is.
            state: What is known.
            forest: The trees, at most a moment old.
            before: The view that the last pass compared with the log.
            now: What the next pass will know; whose end is awaited counts as told.
        """
        seen = (view.members, before.members, now.awaited)
        if not same_objects(self._seen, seen):
            self._seen, self._gone = seen, frozenset((*now.awaited, *vanished(before, view)))
        if not self._gone:
            return state
        rests_on = (self._gone, view.nodes, view.groups, view.ends, state.roots, now.ends)
        if not same_objects(self._rests_on, rests_on):
            self._found = tuple(_vacancies(view, state, forest, self._gone, now))
            self._rests_on, self._state = rests_on, None
        if not self._found:
            return state
        if self._state is not state or self._given is None:
            self._state, self._given = state, _with(state, self._found)
        return self._given


def vanished(before: ClusterView, view: ClusterView) -> Iterator[PodUid]:
    """Give the members that had a node and are not in the view any more."""
    if view.members is before.members:
        return
    for leaf, pods in before.members.items():
        there = view.members.get(leaf)
        if there is not pods:
            for uid, pod in pods.items():
                if pod.node is not None and uid not in view.pods:
                    yield uid


def _vacancies(
    view: ClusterView,
    state: ReservationState,
    forest: Forest,
    gone: Collection[PodUid],
    now: ReconcileContext,
) -> Iterator[ReplacementHold]:
    told = msgspec.structs.replace(now, awaited=NOBODY)
    for root_uid in sorted({state.root_of[uid] for uid in gone if uid in state.root_of}):
        root = state.roots[root_uid]
        tree = forest.trees.get(group_key_of(root))
        for lost in losses_that_hold(view, state, root, tree, told):
            member = root.bound[lost.uid]
            yield ReplacementHold(
                plan=member.plan, root_uid=root_uid, pod=member.pod, uid=member.uid, group=member.group,
                node=member.node, requests=member.requests, priority=root.priority, at_us=now.now_us,
                until_us=lost.room_until_us,
            )  # fmt: skip


def _with(state: ReservationState, found: Collection[ReplacementHold]) -> ReservationState:
    vacant_on = state.vacant_on
    for vacancy in found:
        node = NodeName(vacancy.node)
        here = vacant_on.get(node, NO_VACANCIES).set(vacancy.uid, vacancy)
        vacant_on = vacant_on.set(node, here)
    return msgspec.structs.replace(state, vacant_on=vacant_on)
