"""The plan request of one tree as it is now: built again after each wait, because cluster and state may have changed."""

from __future__ import annotations

import msgspec

from extender.control.loop.loop_parts import LoopParts
from extender.core.decisions.admit.hold_planning import HoldRequests
from extender.core.decisions.preempt.disruption_units import EvictableContext
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import PlanRequest


class TreeRequest(msgspec.Struct, frozen=True):
    """A tree and its plan request, both of the same view."""

    tree: Tree
    request: PlanRequest


class CurrentRequests:
    """Builds requests from the newest view and the pending state."""

    def __init__(self, parts: LoopParts) -> None:
        self._cluster = parts.cluster
        self._leader = parts.leader
        self._clock = parts.clock
        self._barriers = parts.barriers
        self._observer = parts.observer
        self._requests = parts.requests
        self._rejections = parts.exchange.rejections

    def about(self, tree: Tree) -> TreeRequest | None:
        """Return a tree and its request as they are now, or None if there is nothing to plan any more."""
        view, forest, state = self._observer.observe()
        current = forest.trees.get(tree.root.key)
        if current is None or current.problems or current.root.uid != tree.root.uid:
            return None
        hints, now_ms = self._rejections.hints(view), self._clock.now_us() // 1000
        request = self._requests.about(view, state, current, hints, now_ms)
        return TreeRequest(current, request) if request is not None else None

    def for_hold(self, tree_request: TreeRequest) -> HoldRequests:
        """Return the requests that show where capacity could be held for a tree."""
        view = self._cluster.view()
        return self._requests.for_hold(
            view,
            self._leader.pending_state,
            tree_request.tree,
            tree_request.request,
            self._rejections.hints(view),
            self._clock.now_us(),
        )

    def with_evictable(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request with the units that could be evicted for its tree."""
        view, state = self._cluster.view(), self._leader.pending_state
        return self._requests.with_evictable(
            view,
            state,
            self._observer.forest,
            tree_request.tree,
            tree_request.request,
            hints=self._rejections.hints(view),
            moment=EvictableContext(
                releasing=self._barriers.started(), now_us=self._clock.now_us()
            ),
        )
