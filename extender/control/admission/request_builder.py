"""Build the plan request of one tree in one moment, again after each wait, because cluster and state may have changed.

Parts that did not change are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from immutables import Map

from extender.control.admission.cluster_observer import Moment
from extender.core.admit.interpod_rules import InterpodRulePart, InterpodRules
from extender.core.admit.node_rejections import NodeRejections, RejectionEvidence
from extender.core.admit.plan_request import (
    TreePart,
    TreeParts,
    group_key_of,
    plan_request,
    request_anew,
    ruled_part,
)
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.fairness.search_turns import SearchBackoff
from extender.core.holds.hold_planning import HoldRequests
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.object_identity import changed_keys
from extender.core.model.pod_groups import Forest, Group, Tree
from extender.core.planner.plan_types import PlanRequest
from extender.core.preempt.disruption_units import EvictableContext
from extender.core.preempt.moves_lifecycle import with_new_node
from extender.core.preempt.preemption_lifecycle import is_stuck
from extender.core.preempt.preemption_planning import preemption_request
from extender.ports.log_ports import Clock
from extender.settings import Settings

Hints = Mapping[PodUid, NodeName]
PARTS_MIN: Final = 1000  # kept parts of trees that are gone are not looked for below this number


class TreeRequest(msgspec.Struct, frozen=True):
    """A tree and its plan request, both of the same moment unless the request is one that was answered."""

    tree: Tree
    request: PlanRequest
    now: Moment  # of `tree`

    def asks_as(self, request: PlanRequest) -> bool:
        """Return whether the tree and its pods ask for the same as in another request."""
        return (self.request.root, self.request.shapes) == (request.root, request.shapes)


class RequestBuilder:
    """Builds plan requests, one after the other."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        evidence: RejectionEvidence,
        started: Callable[[], frozenset[GangUid]],
        maybe_bound: Callable[[], frozenset[PodUid]],
    ) -> None:
        """Prepare; `started`: returns the roots of which members are, or may be, bound, `maybe_bound`: those members."""
        self._settings = settings
        self._clock = clock
        self._evidence = evidence
        self._started, self._maybe_bound = started, maybe_bound
        # returns whether a tree with this root is not to be planned yet; set before the loop runs
        self.is_held: Callable[[Group], bool] = lambda _: False
        self.holds_back = False  # whether a tree was left out, which a later pass may have to plan
        self.rows = NodeRowCache(settings.topology_keys)
        self._budget = settings.search_budget  # of a request; more after searches that used it up
        self.backoff = SearchBackoff(self._budget)
        self._rules = InterpodRules()
        self._parts = TreeParts()
        self._rejections = NodeRejections()
        # Trees with members that are invalid or to place, and what they were found in
        self._pending: dict[GroupKey, Tree] = {}
        self._held_elsewhere: set[GroupKey] = set()  # left out for `_is_held_elsewhere`
        self._populated: Mapping[GroupKey, Tree] = {}
        self._gangs: Mapping[GangUid, GangState] = Map()

    def part(self, state: ReservationState, tree: Tree, hints: Hints) -> TreePart:
        """Return the part of a request that depends on its tree only."""
        hints = with_new_node(state, tree, hints)
        return self._parts.of(tree, state.gangs.get(tree.root.uid), hints)

    def pending(
        self, state: ReservationState, forest: Forest, hints: Hints
    ) -> Iterator[tuple[Tree, TreePart | None]]:
        """Yield the trees with members that are invalid or to place, highest priority first, then oldest.

        An invalid tree has no part: it is never planned, and its depth is not limited. A tree that is held is left out, as
        is one of whose members another root has a reservation.
        """
        self._follow(state, forest)
        self.holds_back = False
        for tree in sorted(self._pending.values(), key=_queue_order):
            if self.is_held(tree.root):
                self.holds_back = True
            else:
                yield tree, None if tree.problems else self.part(state, tree, hints)

    def _follow(self, state: ReservationState, forest: Forest) -> None:
        """Find the pending trees among those that have changed since the last look, or whose state has."""
        populated, gangs = forest.populated, state.gangs
        changed = changed_keys(self._populated, populated) | self._held_elsewhere
        self._held_elsewhere = set()
        for uid in changed_keys(self._gangs, gangs):
            changed.add(group_key_of(gangs.get(uid) or self._gangs[uid]))
        for key in changed:
            tree = populated.get(key)
            self._pending.pop(key, None)
            if tree is None:
                continue
            wants = not tree.problems and self._parts.wanting(tree, gangs.get(tree.root.uid))
            if wants and _is_held_elsewhere(state, tree):
                self._held_elsewhere.add(key)
            elif tree.problems or wants:
                self._pending[key] = tree
        self._populated, self._gangs = populated, gangs
        if self._parts.count > PARTS_MIN + 2 * len(populated):
            self._parts.keep({tree.root.uid for tree in populated.values()})

    def retain(self, wanting: set[GangUid]) -> None:
        """Forget the rules and the budgets of all trees outside of `wanting`."""
        self._rules.keep(wanting)
        self.backoff.retain(wanting)

    def about(self, now: Moment, tree: Tree) -> TreeRequest | None:
        """Return a tree and its request as they are in a moment, or None if there is nothing to plan any more."""
        view, state = now.view, now.state
        current = now.forest.trees.get(tree.root.key)
        if current is None or current.problems or current.root.uid != tree.root.uid:
            return None
        if not self._parts.wanting(current, state.gangs.get(current.root.uid)):
            return None
        part = self.part(state, current, self._evidence.hints(view))
        request = plan_request(
            view,
            state,
            part,
            rows=self.rows,
            book=self._rules,
            budget=self._budget,
            rejections=self._rejections.holding(view, state, self._clock.now_us() // 1000),
        )
        budget = self.backoff.budget(current.root.uid, request.root, request.shapes)
        if budget != self._budget:
            request = msgspec.structs.replace(request, budget=budget)
        return TreeRequest(current, request, now)

    def anew(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the plan request of a tree as if none of its pods had a node, or had been refused one."""
        now = tree_request.now
        rows = NodeRowCache(self._settings.topology_keys)  # those of `rows` stay as they are
        return request_anew(now.view, now.state, tree_request.tree, rows=rows, budget=self._budget)

    def _ruled(self, tree_request: TreeRequest) -> InterpodRulePart:
        now = tree_request.now
        part = self.part(now.state, tree_request.tree, self._evidence.hints(now.view))
        return ruled_part(now.view, now.state, part, rows=self.rows, book=self._rules)

    def with_evictable(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request with the units that could be evicted for its tree."""
        now, ruled = tree_request.now, self._ruled(tree_request)
        moment = EvictableContext(
            releasing=self._started(),
            maybe_bound=self._maybe_bound(),
            now_us=self._clock.now_us(),
        )
        return preemption_request(
            now.view, now.state, now.forest, tree_request.tree, tree_request.request,
            ruled=ruled, moment=moment,
        )  # fmt: skip

    def for_hold(self, tree_request: TreeRequest) -> HoldRequests:
        """Return the requests that show where capacity could be held for a tree; see `HoldRequests`."""
        now, ruled, now_us = tree_request.now, self._ruled(tree_request), self._clock.now_us()
        stuck = frozenset(pod.uid for pod in now.view.pods.values() if is_stuck(pod, now_us))
        return HoldRequests(
            now.view, now.state, tree_request.tree, tree_request.request, ruled,
            staying=stuck, max_percent=self._settings.hold_capacity_max_percent,
        )  # fmt: skip


def _is_held_elsewhere(state: ReservationState, tree: Tree) -> bool:
    """Return whether another root has the reservation of a member: that from before a group was made again.

    It ends when it is known whether the member was bound, see `cluster_reconciliation`. A plan before that would make the
    pod a member of two roots.
    """
    uid, gang_of = tree.root.uid, state.gang_of
    return any(pod.node is None and gang_of.get(pod.uid, uid) != uid for pod in tree.pods)


def _queue_order(tree: Tree) -> tuple[int, int, GroupKey]:
    return (-tree.root.priority, tree.root.created_us, tree.root.key)
