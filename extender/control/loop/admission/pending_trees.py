"""Admit all pending trees of one pass: in order of priority and age, then the reasons of refusals, then what was postponed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from extender.control.loop.admission.current_requests import CurrentRequests
from extender.control.loop.admission.preemption_search import PreemptionSearch
from extender.control.loop.admission.refusal_explanations import RefusalExplanations
from extender.control.loop.admission.tree_admission import AdmissionProgress, TreeAdmission
from extender.control.loop.loop_parts import LoopParts
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Tree
from extender.runtime.cooperative_yield import SlicePace

INVALID_PER_PASS = 50  # invalid trees that one pass records
EXPLAIN_MS = 200  # of a pass for explaining refusals; the next pass explains the others


class PendingTrees:
    """The trees that are invalid or have members to place."""

    def __init__(self, parts: LoopParts) -> None:
        self._leader = parts.leader
        self._clock = parts.clock
        self._wakeup = parts.barriers.wakeup
        self._observer = parts.observer
        self._appends = parts.appends
        self._rejections = parts.exchange.rejections
        self._builder = parts.requests
        self._idle_filter = parts.idle_filter
        self._preemption_policy = parts.preemption_policy
        self._readmissions = parts.readmissions
        self._requests = CurrentRequests(parts)
        self._preemptions = PreemptionSearch(parts, self._requests)
        self._admission = TreeAdmission(parts, self._requests, self._preemptions)

    def nothing_to_admit(self) -> bool:
        """Return whether no pending tree can be admitted, as in the last pass."""
        view, forest, state = self._observer.observe()
        hints, now_ms = self._rejections.hints(view), self._clock.monotonic_ms()

        def by_time(priority: int, since_ms: int) -> bool:
            return (
                self._readmissions.ends_after(since_ms)
                or self._admission.paused_after(since_ms)
                or bool(state.rejections)
                or self._preemption_policy.lower_priority_exists(view, state, priority)
            )

        return self._idle_filter.nothing_to_admit(
            view, state, forest, hints, now_ms, by_time=by_time
        )

    @property
    def explanations(self) -> RefusalExplanations:
        """Return the explanations that run in the background."""
        return self._admission.explanations

    async def record_explanations(self) -> None:
        """Append the refusals that were explained since the last pass."""
        self._admission.record_explanations()
        await self._appends.flush()

    async def admit(self) -> None:
        """Try to admit every pending tree, then explain refusals, then try what was postponed."""
        self._idle_filter.end_pass(None)
        view, forest, state = self._observer.observe()
        hints = self._rejections.hints(view)
        pending = tuple(self._builder.pending(state, forest, hints))
        self._retain([tree for tree, _ in pending])
        parts = (part for _, part in pending if part is not None)
        before = self._idle_filter.begin_pass(
            view, state, forest, parts, hints, self._clock.monotonic_ms()
        )
        progress = AdmissionProgress()
        try:
            await self._try_each([tree for tree, part in pending if part is not None], progress)
            await self._record_invalid([tree for tree, part in pending if part is None], progress)
        finally:
            await self._appends.flush()
        await self._explain(progress.to_explain)
        for tree in progress.postponed:
            await self._admission.admit(tree, progress, last=True)
        await self._appends.flush()
        idle = progress.all_stay_refused and not self._builder.holds_back
        self._idle_filter.end_pass(before if idle else None)

    async def _try_each(self, pending: Sequence[Tree], progress: AdmissionProgress) -> None:
        pace = SlicePace(self._clock)
        for seen in pending:
            tree = self._observer.forest.trees.get(seen.root.key)
            if tree is not None:
                outcome = await self._admission.admit(tree, progress)
                progress.all_stay_refused &= outcome.stays_refused
            await pace.yield_if_due()

    async def _record_invalid(self, found: Sequence[Tree], progress: AdmissionProgress) -> None:
        """Record why trees are invalid, `INVALID_PER_PASS` of them, by turns of their namespaces; the next pass goes on."""
        pace = SlicePace(self._clock)
        by_namespace: dict[str, list[Tree]] = {}
        for tree in found:
            if not self._admission.is_recorded_invalid(tree):
                by_namespace.setdefault(tree.root.key.namespace, []).append(tree)
            await pace.yield_if_due()
        turns = zip_longest(*by_namespace.values())
        in_turn = [tree for turn in turns for tree in turn if tree is not None]
        self._admission.record_invalid(in_turn[:INVALID_PER_PASS])
        if in_turn:
            progress.all_stay_refused = False
        if len(in_turn) > INVALID_PER_PASS:
            self._wakeup.wake()

    async def _explain(self, refused: Sequence[GroupKey]) -> None:
        """Search the reasons of refused trees, or victims for them, for about `EXPLAIN_MS`."""
        began_ms = self._clock.monotonic_ms()
        # trees without recorded reasons first
        state = self._leader.pending_state
        for key in sorted(refused, key=lambda k: self._answered(state, k)):
            tree = self._observer.forest.trees.get(key)
            if tree is None:
                continue
            if self._clock.monotonic_ms() - began_ms > EXPLAIN_MS:
                self._wakeup.wake()  # the next pass, which starts at once, explains the others
                break
            current = self._requests.about(tree)
            if current is None:
                continue
            if not self._preemptions.may_follow(
                current, "explain"
            ) or not await self._preemptions.preempt(current, None):
                await self._admission.search(current)
        await self._appends.flush()

    def _answered(self, state: ReservationState, key: GroupKey) -> bool:
        tree = self._observer.forest.trees.get(key)
        root = state.gangs.get(tree.root.uid) if tree is not None else None
        return root is not None and root.last_decision is not None

    def _retain(self, pending: Sequence[Tree]) -> None:
        """Forget all trees that are not pending any more."""
        wanted = {tree.root.uid for tree in pending}
        trees = {tree.root.uid for tree in self._observer.forest.populated.values()}
        self._admission.retain(wanted)
        self._preemption_policy.retain(wanted)
        self._builder.retain(trees, wanted)
