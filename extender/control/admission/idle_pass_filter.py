"""Skip the admission of a pass when every pending tree is refused and no node has gained capacity.

Most changes of a busy cluster take capacity, or free it where no pending tree can use it. Where something ends by
time (node rejections, pauses, back-off of preemption), a pass is skipped for at most `LOOK_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.core.admit.plan_request import TreePart
from extender.core.admit.verdict_events import only_less
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.model.ids import NIL_GANG, NodeName, PodUid
from extender.core.model.object_identity import same_objects
from extender.core.planner.plan_types import PlanNode

LOOK_MS = 1_000
PATIENT_MS = 5_000  # at most, where nothing is known to end by time


class _RefusedPass(msgspec.Struct):
    """What a pass saw that refused every pending tree."""

    at_ms: int
    same: tuple[object, ...]  # compared by identity
    hints: Mapping[PodUid, NodeName]
    nodes: dict[int, tuple[PlanNode, ...]]  # by priority; compared by capacity


class IdlePassFilter:
    """Remembers the last pass that refused every pending tree."""

    def __init__(self, rows: NodeRowCache) -> None:
        """Prepare; `rows`: shared with the request builder, so that unchanged rows are the same objects."""
        self._rows = rows
        self._last: _RefusedPass | None = None

    def begin_pass(
        self,
        now: Moment,
        pending: Iterable[TreePart],
        hints: Mapping[PodUid, NodeName],
        now_ms: int,
    ) -> _RefusedPass | None:
        """Return what a pass sees at its start, or None if a pending tree depends on more than capacity."""
        parts = tuple(pending)
        if any(
            part.claims
            or part.tree.root.uid in now.state.preemptions  # freed capacity is held for it
            or any(shape.rules for shape in part.shapes)
            for part in parts
        ):
            return None
        priorities = {part.tree.root.priority for part in parts}
        return _RefusedPass(now_ms, _compared_objects(now), hints, self._nodes(now, priorities))

    def end_pass(self, refused: _RefusedPass | None) -> None:
        """Remember what a pass that refused every tree saw at its start; None for any other pass."""
        self._last = refused

    def nothing_to_admit(
        self,
        now: Moment,
        hints: Mapping[PodUid, NodeName],
        now_ms: int,
        *,
        by_time: Callable[[int, int], bool],
    ) -> bool:
        """Return whether a pass would only refuse every pending tree again.

        Args:
            hints: The same as for `begin_pass`.
            by_time: Takes the highest pending priority and the time of that pass; returns whether time alone may
                have changed an answer since.
        """
        last = self._last
        if last is None or last.hints != hints:
            return False
        age_ms = now_ms - last.at_ms
        highest = max(last.nodes, default=0)
        if age_ms >= LOOK_MS and (age_ms >= PATIENT_MS or by_time(highest, last.at_ms)):
            return False
        if not same_objects(last.same, _compared_objects(now)):
            return False
        nodes = self._nodes(now, last.nodes)
        if not all(only_less(last.nodes[p], rows) for p, rows in nodes.items()):
            return False
        last.nodes = nodes  # the next call compares less
        return True

    def _nodes(self, now: Moment, priorities: Iterable[int]) -> dict[int, tuple[PlanNode, ...]]:
        view, state, rows = now.view, now.state, self._rows
        return {
            p: rows.rows(view, rows.taken(view, state, priority=p, gang_uid=NIL_GANG))
            for p in sorted(priorities)
        }


def _compared_objects(now: Moment) -> tuple[object, ...]:
    state = now.state
    return (now.forest, state.gangs, state.rejections, state.preemptions, now.view.keeping_off)
