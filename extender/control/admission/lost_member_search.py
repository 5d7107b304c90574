"""Place lost members of a running gang outside of their domain, or evict the gang to be placed anew, where its groups ask for it (D26).

A search begins only while the refusal of the tree holds: what its required domains can take is decided by the planner as ever.
"""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.request_builder import TreeRequest
from extender.control.admission.tree_searches import TreeSearches, WantedSearch
from extender.core.admit.plan_request import choices_of, in_vain_text, with_wider_domains
from extender.core.admit.verdict_events import (
    ComparedNodes,
    EventContext,
    decide_verdict,
    still_holds,
    would_be_refused,
)
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import GangUid
from extender.core.model.nodes import LostMembers
from extender.core.planner.plan_types import DecisionInput, Plan, PlanRequest
from extender.core.preempt.preemption_planning import decide_give_up, unbound_reservations


class _InVain(msgspec.Struct, frozen=True, gc=False):
    """A search that did not help, and why, as sentences."""

    request: PlanRequest
    reasons: tuple[str, ...]


class LostMemberSearch:
    """Searches for one gang after the other; remembers beside the log only which searches were in vain, and publishes it."""

    def __init__(self, parts: LoopParts, searches: TreeSearches) -> None:
        self._parts = parts
        self._searches = searches
        self._in_vain: dict[GangUid, _InVain] = {}

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees."""
        if self._in_vain.keys() - roots:
            self._in_vain = {uid: each for uid, each in self._in_vain.items() if uid in roots}
            self._publish()

    def may_help(self, refused: TreeRequest, compared: ComparedNodes) -> bool:
        """Return whether to search for a tree that would be refused as before."""
        uid, state = refused.tree.root.uid, refused.now.pending
        if uid in state.preemptions or not choices_of(state, refused.tree, refused.request):
            return False
        before = self._in_vain.get(uid)
        return before is None or not would_be_refused(before.request, refused.request, compared)

    async def perform(self, search: WantedSearch, current: TreeRequest) -> None:
        """Search for a tree, and append what follows; in its turn.

        Args:
            current: The tree and its request when the turn began, which would be refused as before.
        """
        choices = choices_of(current.now.pending, current.tree, current.request)
        attempts = [("Widen", self._widen), ("GiveUp", self._give_up)]
        reasons: list[str] = []
        try:
            for attempt in (attempt for choice, attempt in attempts if choice in choices):
                reason = await attempt(current)
                if not reason:
                    self._in_vain.pop(search.uid, None)
                    await self._parts.appends.flush()
                    self._parts.barriers.wakeup.wake()
                    return
                reasons.append(reason)
        except BrokenProcessPool:
            pass  # it has no more reasons
        self._in_vain[search.uid] = _InVain(current.request, tuple(reasons))
        self._publish()

    def _publish(self) -> None:
        self._parts.exchange.published.lost_in_vain = {
            u: each.reasons for u, each in self._in_vain.items()
        }

    async def _widen(self, current: TreeRequest) -> str:
        """Place lost members in the nearest other domains; return why that is not possible either, or an empty string."""
        request = with_wider_domains(current.request, current.tree, proved=True)
        encoded, verdict, moment = await self._searches.planned(request)
        if not isinstance(verdict, Plan) or not verdict.assignments:
            return in_vain_text("Widen", verdict)
        now = self._refused_still(current, moment)
        if now is None:
            return ""
        if still_holds(request, verdict, with_wider_domains(now.request, now.tree, proved=True)):
            view, state = now.now.view, now.now.pending
            context = self._context(state, now, encoded, "Widen")
            drafts = decide_verdict(state, now.tree, request, verdict, context)
            after = self._parts.appends.append_nowait(drafts, encoded)
            where = {a.uid: a.node for a in verdict.assignments}
            now_ms = self._parts.clock.monotonic_ms()
            self._parts.readmissions.admitted(view, after, now.tree, where, now_ms)
        return ""

    async def _give_up(self, current: TreeRequest) -> str:
        """Evict a gang that fits as a whole without its pods; return why it does not, or an empty string."""
        encoded, verdict, moment = await self._searches.planned(self._parts.requests.anew(current))
        if not isinstance(verdict, Plan) or not verdict.assignments:
            return in_vain_text("GiveUp", verdict)
        now = self._refused_still(current, moment)
        if now is None:
            return ""
        view, state, forest = now.now.view, now.now.pending, now.now.forest
        held = unbound_reservations(view, state, forest, {pod.uid for pod in now.tree.pods})
        if self._parts.barriers.maybe_bound().isdisjoint(reservation.uid for reservation in held):
            context = self._context(state, now, encoded, "GiveUp")
            drafts = decide_give_up(view, state, forest, now.tree, verdict, context)
            self._parts.appends.append_nowait(drafts, encoded)
        return ""

    def _refused_still(self, current: TreeRequest, moment: Moment) -> TreeRequest | None:
        """Return a tree after its search; None if its refusal may not hold any more: the next pass plans it again."""
        now = self._parts.requests.about(moment, current.tree)
        if now is None or not would_be_refused(current.request, now.request, ComparedNodes()):
            return None
        return now

    def _context(
        self, state: ReservationState, now: TreeRequest, encoded: DecisionInput, choice: LostMembers
    ) -> EventContext:
        """Return the context of the events, whose cause names the refusal that proves that the domain is full."""
        decision = state.gangs[now.tree.root.uid].last_decision
        proof = f" proves (position {decision.position})" if decision is not None else ""
        cause = f"lostMembers {choice}: no node of the domain takes the lost members, as the last refusal{proof}"
        return self._parts.event_context(encoded.digest, cause)
