"""The plan request of one tree in one moment: built again after each wait, because cluster and state may have changed."""

from __future__ import annotations

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.core.holds.hold_planning import HoldRequests
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import PlanRequest
from extender.core.preempt.disruption_units import EvictableContext


class TreeRequest(msgspec.Struct, frozen=True):
    """A tree and its plan request, both of the same moment unless the request is one that was answered."""

    tree: Tree
    request: PlanRequest
    now: Moment  # of `tree`


class CurrentRequests:
    """Builds requests from one moment."""

    def __init__(self, parts: LoopParts) -> None:
        self._clock = parts.clock
        self._barriers = parts.barriers
        self._requests = parts.requests
        self._rejections = parts.exchange.rejections

    def about(self, now: Moment, tree: Tree) -> TreeRequest | None:
        """Return a tree and its request as they are in a moment, or None if there is nothing to plan any more."""
        current = now.forest.trees.get(tree.root.key)
        if current is None or current.problems or current.root.uid != tree.root.uid:
            return None
        hints, now_ms = self._rejections.hints(now.view), self._clock.now_us() // 1000
        request = self._requests.about(now.view, now.state, current, hints, now_ms)
        return TreeRequest(current, request, now) if request is not None else None

    def anew(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request of the whole tree as if none of its pods had a node."""
        now = tree_request.now
        return self._requests.anew(now.view, now.state, tree_request.tree)

    def for_hold(self, tree_request: TreeRequest) -> HoldRequests:
        """Return the requests that show where capacity could be held for a tree."""
        now = tree_request.now
        return self._requests.for_hold(
            now.view,
            now.state,
            tree_request.tree,
            tree_request.request,
            self._rejections.hints(now.view),
            self._clock.now_us(),
        )

    def with_evictable(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request with the units that could be evicted for its tree."""
        now = tree_request.now
        return self._requests.with_evictable(
            now.view,
            now.state,
            now.forest,
            tree_request.tree,
            tree_request.request,
            hints=self._rejections.hints(now.view),
            moment=EvictableContext(
                releasing=self._barriers.started(), now_us=self._clock.now_us()
            ),
        )
