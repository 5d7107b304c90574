"""Search victims for one tree in the planner process, and append the preemption."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.preemption_policy import SearchedCapacity
from extender.control.admission.request_builder import TreeRequest
from extender.control.admission.tree_searches import TreeSearches
from extender.core.planner.plan_types import DecisionInput, Plan, PlanRequest, Verdict
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.judgement import Judgement
from extender.core.planner.preempt.victim_search import (
    PreemptionPlan,
    may_trigger_preemption,
    only_awaiting,
)
from extender.core.preempt.preemption_lifecycle import takeovers_by_plan
from extender.core.preempt.preemption_planning import (
    decide_preemption,
    preemption_still_holds,
    unbound_reservations,
    victim_uids,
)
from extender.telemetry import METRICS

# A tree waits so long after its search crashed the planner process twice.
CRASHED_MS = 60_000


class JudgedTree(msgspec.Struct, frozen=True):
    """A judgement without victims, and what it follows from."""

    judged: Judgement
    request: PlanRequest  # with what could be evicted
    encoded: DecisionInput
    now: Moment  # when the search ended


class PreemptionSearch:
    """Preempts for refused trees."""

    def __init__(self, parts: LoopParts, searches: TreeSearches) -> None:
        self._parts = parts
        self._wakeup = parts.barriers.wakeup
        self._policy = parts.preemption_policy
        self._searches = searches

    def may_follow(self, tree_request: TreeRequest, verdict: Verdict | DeferredWork) -> bool:
        """Return whether to search for victims after this answer: no member can be placed without them."""
        if isinstance(verdict, Plan) and verdict.assignments:
            # members that fit are admitted first; the next pass may preempt for the others
            return False
        # an answer that is not known yet may lead to preemption
        leads = isinstance(verdict, str) or may_trigger_preemption(tree_request.request, verdict)
        view, state = tree_request.now.view, tree_request.now.pending
        return leads and self._policy.may_search(view, state, tree_request.tree, complete=True)

    async def preempt(
        self, tree_request: TreeRequest, verdict: Verdict | None, *, explain: bool
    ) -> JudgedTree | None:
        """Search victims, and append the preemption if it still holds then.

        Args:
            verdict: The answer of the planner to its request without an explanation, if known.

        Returns:
            The judgement, if there are no victims. None: there are, even if the next pass must search again; or the
            planner process died.
        """
        uid = tree_request.tree.root.uid
        request = self._parts.requests.with_evictable(tree_request)
        now = tree_request.now
        if not self._policy.may_evict_for(now.view, now.pending, tree_request.tree):
            request = only_awaiting(request)
        if request.nodes is not tree_request.request.nodes:
            verdict = None  # less is free for a preemptor: claims of others hold against it
        searched = SearchedCapacity.of(now.view, now.pending, tree_request.tree, request)
        asked = msgspec.structs.replace(request, explain=explain and request.explain)
        encoded = self._parts.planner.encode(asked)
        try:
            judged, took_ms, now = await self._searches.away(
                self._parts.planner.judge(encoded, verdict)
            )
        except BrokenProcessPool:
            self._policy.answered(uid, None, CRASHED_MS)
            self._wakeup.wake()  # it is refused without victims meanwhile
            return None
        answer = judged.preemption
        if answer is not None:
            METRICS.preemption_answered(answer, took_ms)
        if not isinstance(answer, PreemptionPlan):
            self._policy.answered(uid, answer, took_ms, searched)
            return JudgedTree(judged, request, encoded, now)
        current = self._parts.requests.about(now, tree_request.tree)
        if current is not None and self._still_holds(current, request, answer):
            view, state, forest = current.now.view, current.now.pending, current.now.forest
            cause = f"cluster revision {view.revision}"
            context = self._parts.event_context(encoded.digest, cause)
            eviction = self._parts.evictor.eviction_context(context.actor, cause, view, state)
            *first, planned = decide_preemption(
                view, state, forest, current.tree, request, answer, context
            )
            drafts = [*first, *takeovers_by_plan(view, state, planned, eviction), planned]
            self._policy.answered(uid, None, took_ms)
            self._policy.allow_retry(drafts)
            self._parts.appends.append_nowait(drafts, encoded)
            await self._parts.appends.flush()
            # the next pass starts the deletions, or admits if there are none
            self._wakeup.wake()
        return None

    def _still_holds(
        self, current: TreeRequest, request: PlanRequest, answer: PreemptionPlan
    ) -> bool:
        """Return whether to append the preemption; wake the next pass if it may search again at once."""
        view, state, forest = current.now.view, current.now.pending, current.now.forest
        if not self._policy.may_search(view, state, current.tree, complete=True):
            return False
        newest = self._parts.requests.with_evictable(current)
        at_once = self._parts.planner.at_once
        if not preemption_still_holds(request, answer, newest, view, at_once):
            # the cluster has changed: the next pass searches again
            self._wakeup.wake()
            return False
        held = unbound_reservations(view, state, forest, victim_uids(answer.victims))
        # A member of a victim may be bound: when that is known, it is evicted with its unit, or its reservation released. A
        # pass follows with the change that shows it, or by time; to search before would only repeat this answer.
        return self._parts.barriers.maybe_bound().isdisjoint(r.uid for r in held)
