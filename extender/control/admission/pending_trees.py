"""Admit all pending trees of one pass, in order of priority and age; then long searches, then what was postponed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, zip_longest

import msgspec

from extender.control.admission.capacity_hold_search import CapacityHoldSearch
from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.lost_member_search import LostMemberSearch
from extender.control.admission.preemption_search import PreemptionSearch
from extender.control.admission.refusal_explanations import RefusalExplanations
from extender.control.admission.tree_admission import (
    AdmissionOutcome,
    AdmissionProgress,
    TreeAdmission,
)
from extender.control.admission.tree_searches import TreeSearches, WantedSearch
from extender.core.admit.plan_request import TreePart
from extender.core.admit.verdict_events import is_recorded_invalid, only_less
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.fairness.new_gang_limits import NewGangLimits
from extender.core.log.gang_phase import minimum_is_bound
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PodUid
from extender.core.model.object_identity import same_objects
from extender.core.model.pod_groups import Tree
from extender.core.planner.plan_types import PlanNode
from extender.runtime.cooperative_yield import SlicePace
from extender.runtime.periodic import ObjectFaults
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

NAMESPACE_MS = 50  # of a pass for trees of one namespace, while other namespaces have trees of the same priority
LATE_MS = 300  # of a pass for trees of all namespaces that took longer, by priority
INVALID_PER_PASS = 50  # invalid trees that one pass records


class PendingTrees:
    """The trees that are invalid or have members to place."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._rejections = parts.exchange.rejections
        self._published = parts.exchange.published
        self._wakeup = parts.barriers.wakeup
        self._policy = parts.preemption_policy
        self.searches = TreeSearches(parts)
        self._preemptions = PreemptionSearch(parts, self.searches)
        lost = LostMemberSearch(parts, self.searches)
        self._admission = TreeAdmission(parts, self._preemptions, self.searches, lost)
        self._faults: ObjectFaults[str] = ObjectFaults("admission", parts.clock.monotonic_ms)
        self._holds = CapacityHoldSearch(parts, self.searches)
        self._idle_filter = IdlePassFilter(parts.requests.rows)
        self.searches.set_up(self._perform)
        self._postponed: list[Tree] = []
        self._tried_late: set[GangUid] = set()
        self._limits = NewGangLimits(parts.settings.max_new_gangs_per_minute)
        self._limited: set[str] = set()  # namespaces with gangs that wait for that reason

    async def _perform(self, search: WantedSearch, now: Moment) -> None:
        perform = self._holds.perform if search.work == "hold" else self._admission.perform
        await perform(search, now)

    async def hold_capacity(self, now: Moment) -> None:
        """Let the tree that has waited longest search the capacity that is held for it; publish before which trees pause, and why."""
        published = self._published
        published.paused = self._parts.readmissions.pauses()
        published.planned_again_us = self._admission.planned_again_us()
        published.victims_again_us = self._policy.searches_again_us(now.pending)
        self._holds.want(now)

    def nothing_to_admit(self, now: Moment) -> bool:
        """Return whether no pending tree can be admitted, as in the last pass."""
        view, state = now.view, now.state
        hints, now_ms = self._rejections.hints(view), self._parts.clock.monotonic_ms()

        def by_time(priority: int, since_ms: int) -> bool:
            return (
                self._parts.readmissions.ends_after(since_ms)
                or self._admission.paused_after(since_ms)
                or bool(state.rejections)
                or self._policy.lower_priority_exists(view, state, priority)
                or self._policy.some_terminate(view)
            )

        return self._idle_filter.nothing_to_admit(now, hints, now_ms, by_time=by_time)

    @property
    def explanations(self) -> RefusalExplanations:
        """Return the explanations that run in the background."""
        return self._admission.explanations

    async def record_explanations(self, now: Moment) -> None:
        """Append the refusals that were explained since the last pass."""
        self._admission.record_explanations(now)
        await self._parts.appends.flush()

    async def admit(self, now: Moment) -> None:
        """Try to admit every pending tree; those that need the planner process wait for their turn there."""
        if self.nothing_to_admit(now):
            return
        self.searches.begin_pass()
        self._idle_filter.end_pass(None)
        hints, now_ms = self._rejections.hints(now.view), self._parts.clock.monotonic_ms()
        pending = tuple(self._parts.requests.pending(now.state, now.forest, hints))
        self._retain([tree for tree, _ in pending])
        parts = (part for _, part in pending if part is not None)
        before = self._idle_filter.begin_pass(now, parts, hints, now_ms)
        progress = AdmissionProgress(now)
        self._limits.begin()
        try:
            await self._try_each([tree for tree, part in pending if part is not None], progress)
            await self._record_invalid([tree for tree, part in pending if part is None], progress)
            self._report_limited(progress)
        finally:
            await self._parts.appends.flush()
        self._postponed = progress.postponed
        idle = progress.all_stay_refused and not self._parts.requests.holds_back
        self._idle_filter.end_pass(before if idle else None)

    async def _try_each(self, pending: Sequence[Tree], progress: AdmissionProgress) -> None:
        """Try trees in their order; a namespace that took long comes after the others of the same priority."""
        pace = SlicePace(self._parts.clock)
        for _, group in groupby(pending, key=lambda tree: tree.root.priority):
            equals = [tree for tree in group if self._may_begin(progress.now, tree)]
            without_minimum = {t.root.uid for t in equals if _lacks_minimum(progress.now, t)}
            used_ms: Counter[str] = Counter()
            late = []
            for tree in equals:
                namespace = tree.root.key.namespace
                if used_ms[namespace] >= NAMESPACE_MS:
                    late.append(tree)
                    continue
                without_minimum.discard(tree.root.uid)
                # extra members of later trees come after those of earlier ones
                progress.minima_wait = bool(without_minimum or progress.extras_later)
                used_ms[namespace] += await self._try(tree, progress, pace)
            await self._try_late(late, progress, pace)
            progress.minima_wait = False
            extras_later, progress.extras_later = progress.extras_later, []
            for tree in extras_later:
                await self._try(tree, progress, pace)

    async def _try_late(
        self, late: Sequence[Tree], progress: AdmissionProgress, pace: SlicePace
    ) -> None:
        """Try trees of namespaces that took long, for `LATE_MS`; the next pass begins with the others of them."""
        used_ms = 0
        for tree in sorted(late, key=lambda tree: tree.root.uid in self._tried_late):
            if used_ms >= LATE_MS:
                progress.all_stay_refused = False
                self._wakeup.wake()
                return
            self._tried_late.add(tree.root.uid)
            used_ms += await self._try(tree, progress, pace)
        self._tried_late -= {tree.root.uid for tree in late}

    def _may_begin(self, now: Moment, tree: Tree) -> bool:
        """Return whether the log has a gang, or may get it now."""
        root = tree.root
        if root.uid in now.pending.gangs:
            return True
        now_ms = self._parts.clock.monotonic_ms()
        return self._limits.may_begin(root.key.namespace, root.uid, now_ms)

    def _report_limited(self, progress: AdmissionProgress) -> None:
        """Publish which gangs wait because their namespace has too many new ones; a later pass tries them."""
        waiting = self._limits.waiting()
        self._published.limited = waiting
        METRICS.new_gangs_limited.set(len(waiting))
        progress.all_stay_refused &= not waiting
        limited = set(self._limits.limited_namespaces())
        for namespace in limited - self._limited:
            log.warning(
                "a namespace has more new gangs than allowed; further ones wait",
                extra={"namespace": namespace, "setting": "max_new_gangs_per_minute"},
            )
        self._limited = limited

    async def _try(self, tree: Tree, progress: AdmissionProgress, pace: SlicePace) -> int:
        """Try a tree as it is now; return how many milliseconds that took."""
        began_ms = self._parts.clock.monotonic_ms()
        outcome = await self._admit_alone(tree, progress)
        progress.all_stay_refused &= outcome is not None and outcome.stays_refused
        took_ms = self._parts.clock.monotonic_ms() - began_ms
        await pace.yield_if_due()
        return took_ms

    async def _admit_alone(
        self, tree: Tree, progress: AdmissionProgress, *, last: bool = False
    ) -> AdmissionOutcome | None:
        """Try a tree; None: a defect with it, which does not keep the others, or it waits after one."""
        path = tree.root.key.path
        if self._faults.waits(path) or self.searches.pauses_after_fault(tree):
            return None
        progress.now = self._parts.observer.after_appends(progress.now)
        with self._faults.alone(path):
            return await self._admission.admit(tree, progress, last=last)
        return None

    async def _record_invalid(self, invalid: Sequence[Tree], progress: AdmissionProgress) -> None:
        """Record why trees are invalid, `INVALID_PER_PASS` of them, by turns of their namespaces; the next pass goes on."""
        pace = SlicePace(self._parts.clock)
        by_namespace: dict[str, list[Tree]] = {}
        for tree in invalid:
            is_recorded = is_recorded_invalid(progress.now.pending, tree)
            if not is_recorded and self._may_begin(progress.now, tree):
                by_namespace.setdefault(tree.root.key.namespace, []).append(tree)
            await pace.yield_if_due()
        turns = zip_longest(*by_namespace.values())
        in_turn = [tree for turn in turns for tree in turn if tree is not None]
        progress.now = self._parts.observer.after_appends(progress.now)
        self._admission.record_invalid(progress.now, in_turn[:INVALID_PER_PASS])
        progress.all_stay_refused &= not in_turn
        if len(in_turn) > INVALID_PER_PASS:
            self._wakeup.wake()

    async def admit_postponed(self) -> Moment | None:
        """Try the trees that waited for a takeover by trees of higher priority.

        Returns:
            The moment in which that was; None: there are no such trees.
        """
        postponed, self._postponed = self._postponed, []
        if not postponed:
            return None
        now = self._parts.observer.observe()
        for tree in postponed:
            await self._admit_alone(tree, AdmissionProgress(now), last=True)
        await self._parts.appends.flush()
        return now

    def _retain(self, pending: Sequence[Tree]) -> None:
        """Forget all trees that are not pending any more."""
        roots = {tree.root.uid for tree in pending}
        self._admission.retain(roots)
        self.searches.retain(roots)
        self._limits.retain(roots, self._parts.clock.monotonic_ms())
        self._policy.retain(roots)
        self._tried_late &= roots
        self._parts.requests.retain(roots)


def _lacks_minimum(now: Moment, tree: Tree) -> bool:
    """Return whether a tree has never been admitted, or its reservations were all released, or it has lost members of its minimum."""
    root = now.pending.gangs.get(tree.root.uid)
    return root is None or not (root.reservations or minimum_is_bound(root))


LOOK_MS = 1_000
PATIENT_MS = 5_000  # at most, where nothing is known to end by time


class _RefusedPass(msgspec.Struct):
    """What a pass saw that refused every pending tree."""

    at_ms: int
    same: tuple[object, ...]  # compared by identity
    hints: Mapping[PodUid, NodeName]
    nodes: dict[int, tuple[PlanNode, ...]]  # by priority; compared by capacity


class IdlePassFilter:
    """Skips the admission of a pass when every pending tree is refused and no node has gained capacity.

    Most changes of a busy cluster take capacity, or free it where no pending tree can use it. Where something ends by
    time (node rejections, pauses, back-off of preemption), a pass is skipped for at most `LOOK_MS`.
    """

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
