"""The plan request of one tree in one moment: built again after each wait, because cluster and state may have changed."""

from __future__ import annotations

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.request_builder import TreeRequest
from extender.core.holds.hold_planning import HoldRequests
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import PlanRequest
from extender.core.preempt.disruption_units import EvictableContext


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
        request = self._requests.about(now, current, hints, now_ms)
        return TreeRequest(current, request, now) if request is not None else None

    def anew(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request of the whole tree as if none of its pods had a node."""
        return self._requests.anew(tree_request)

    def for_hold(self, tree_request: TreeRequest) -> HoldRequests:
        """Return the requests that show where capacity could be held for a tree."""
        hints = self._rejections.hints(tree_request.now.view)
        return self._requests.for_hold(tree_request, hints, self._clock.now_us())

    def with_evictable(self, tree_request: TreeRequest) -> PlanRequest:
        """Return the request with the units that could be evicted for its tree."""
        hints = self._rejections.hints(tree_request.now.view)
        moment = EvictableContext(releasing=self._barriers.started(), now_us=self._clock.now_us())
        return self._requests.with_evictable(tree_request, hints, moment)
