"""What the planner is asked about a tree, made from view and state; what did not change is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from extender.core.decisions.admit.interpod_rules import InterpodRules
from extender.core.decisions.admit.node_rejections import NodeRejections
from extender.core.decisions.admit.plan_request import TreePart, TreeParts, plan_request, ruled_part
from extender.core.decisions.capacity.free_capacity import NodeRowCache
from extender.core.decisions.preempt.disruption_units import EvictableContext
from extender.core.decisions.preempt.preemption_planning import preemption_request
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GroupKey, NodeName, PodUid, RootUid
from extender.core.model.pod_groups import Forest, Tree
from extender.core.planner.plan_types import PlanRequest

Hints = Mapping[PodUid, NodeName]


class RequestBuilder:
    """Makes requests, one after the other."""

    def __init__(self, budget: int) -> None:
        """Prepare.

        Args:
            budget: Search nodes that a request may cost.
        """
        self.rows = NodeRowCache()
        self._budget = budget
        self._rules = InterpodRules()
        self._parts = TreeParts()
        self._vetoes = NodeRejections()

    def part(self, state: ReservationState, tree: Tree, hints: Hints) -> TreePart:
        """Give what a request takes from its tree alone."""
        return self._parts.of(tree, state.roots.get(tree.root.uid), hints)

    def pending(
        self, state: ReservationState, forest: Forest, hints: Hints
    ) -> Iterator[tuple[Tree, TreePart | None]]:
        """Give the trees that are broken or want something, highest priority first, then oldest.

        A broken tree has no part: it is never planned, and may be as deep as its owner likes.
        """
        found: list[tuple[Tree, TreePart | None]] = []
        for tree in forest.trees.values():
            part = None if tree.problems else self.part(state, tree, hints)
            if part is None or part.wanting:
                found.append((tree, part))
        yield from sorted(found, key=lambda f: _queue_order(f[0]))

    def retain(self, trees: Collection[RootUid], wanting: set[RootUid]) -> None:
        """Forget trees that are gone, and rules of those that want nothing."""
        self._parts.keep(trees)
        self._rules.keep(wanting)

    def about(
        self, view: ClusterView, state: ReservationState, tree: Tree, hints: Hints, now_ms: int
    ) -> PlanRequest | None:
        """Ask where the waiting members of a tree can go; None where none waits."""
        part = self.part(state, tree, hints)
        if not part.wanting:
            return None
        return plan_request(
            view,
            state,
            part,
            rows=self.rows,
            book=self._rules,
            budget=self._budget,
            vetoes=self._vetoes.holding(view, state, now_ms),
        )

    def with_evictable(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        tree: Tree,
        request: PlanRequest,
        *,
        hints: Hints,
        moment: EvictableContext,
    ) -> PlanRequest:
        """Ask as well who could be evicted for a tree."""
        part = self.part(state, tree, hints)
        return preemption_request(
            view,
            state,
            forest,
            tree,
            request,
            ruled=ruled_part(view, state, part, rows=self.rows, book=self._rules),
            moment=moment,
        )


def _queue_order(tree: Tree) -> tuple[int, int, GroupKey]:
    return (-tree.root.priority, tree.root.created_us, tree.root.key)
