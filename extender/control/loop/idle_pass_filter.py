"""Whether a pass has anything to admit: not while every pending tree stands refused and there is only less room.

Most changes of a busy cluster take room, or give it where nobody waits for it. A pass that found every
pending tree refused on no less room than now need not be repeated tree by tree. Where something ends by time
(vetoes, pauses, questions for victims), that is looked at once in `LOOK_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from extender.core.decisions.admit.plan_request import TreePart
from extender.core.decisions.admit.unschedulable_cache import only_less
from extender.core.decisions.capacity.free_capacity import NodeRowCache
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NIL_ROOT, NodeName, PodUid
from extender.core.model.object_identity import same_objects
from extender.core.model.pod_groups import Forest
from extender.core.planner.plan_types import PlanNode

LOOK_MS = 1_000
PATIENT_MS = 5_000  # where nothing is last to end by time


class _RefusedPass(msgspec.Struct):
    """What a pass saw in which nobody could be admitted."""

    at_ms: int
    same: tuple[object, ...]  # as long as these are the same objects ...
    hints: Mapping[PodUid, NodeName]
    nodes: dict[int, tuple[PlanNode, ...]]  # ... and these offer no more, by priority


class IdlePassFilter:
    """Remembers the last pass that found every pending tree refused."""

    def __init__(self, rows: NodeRowCache) -> None:
        """Prepare.

        Args:
            rows: Shared with whoever makes requests, which keeps its rows the same objects.
        """
        self._rows = rows
        self._last: _RefusedPass | None = None

    def begin_pass(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        pending: Iterable[TreePart],
        hints: Mapping[PodUid, NodeName],
        now_ms: int,
    ) -> _RefusedPass | None:
        """Look around before a pass; nothing where a pending tree depends on more than room."""
        parts = tuple(pending)
        if any(
            part.claims
            or part.tree.root.uid in state.preemptions  # room that comes free is held for it
            or any(shape.rules for shape in part.shapes)
            for part in parts
        ):
            return None
        priorities = {part.tree.root.priority for part in parts}
        return _RefusedPass(
            now_ms,
            _compared_objects(view, state, forest),
            hints,
            self._nodes(view, state, priorities),
        )

    def end_pass(self, refused: _RefusedPass | None) -> None:
        """Remember what a pass began with that found every tree refused; None for any other pass."""
        self._last = refused

    def nothing_to_admit(
        self,
        view: ClusterView,
        state: ReservationState,
        forest: Forest,
        hints: Mapping[PodUid, NodeName],
        now_ms: int,
        *,
        by_time: Callable[[int, int], bool],
    ) -> bool:
        """Say whether a pass could only find every pending tree refused again.

        Args:
            view: The cluster.
            state: What is decided.
            forest: The trees of the view.
            hints: As `begin` had them.
            now_ms: Now.
            by_time: Says of the highest priority that waits, and of the time of that pass, whether time alone
                may have changed an answer since.
        """
        last = self._last
        if last is None or last.hints != hints:
            return False
        age_ms = now_ms - last.at_ms
        highest = max(last.nodes, default=0)
        if age_ms >= LOOK_MS and (age_ms >= PATIENT_MS or by_time(highest, last.at_ms)):
            return False
        now = _compared_objects(view, state, forest)
        if not same_objects(last.same, now):
            return False
        nodes = self._nodes(view, state, last.nodes)
        if not all(only_less(last.nodes[p], rows) for p, rows in nodes.items()):
            return False
        last.nodes = nodes  # the next look compares less
        return True

    def _nodes(
        self, view: ClusterView, state: ReservationState, priorities: Iterable[int]
    ) -> dict[int, tuple[PlanNode, ...]]:
        return {
            p: self._rows.rows(view, self._rows.taken(view, state, priority=p, root_uid=NIL_ROOT))
            for p in sorted(priorities)
        }


def _compared_objects(
    view: ClusterView, state: ReservationState, forest: Forest
) -> tuple[object, ...]:
    return (forest, state.roots, state.vetoes, state.preemptions, view.keeping_off)
