"""Search in the planner process where capacity could be held for a tree that has waited for long, and record the hold."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from typing import Final

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.request_builder import TreeRequest
from extender.control.admission.tree_searches import TreeSearches, WantedSearch
from extender.core.admit.plan_request import group_key_of
from extender.core.admit.verdict_events import still_holds
from extender.core.holds.hold_planning import (
    NO_PLACE,
    HoldRefusal,
    HoldRequests,
    decide_hold,
    trees_to_hold_for,
)
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, PlanId
from extender.core.planner.plan_types import DecisionInput, Plan, PlanRequest

# a tree for which no place was found is looked at again after this time, ...
AGAIN_MS: Final = 60_000
AGAIN_MS_MAX: Final = 600_000  # ... doubled each time up to this
# ... or after this time, if the cluster has changed too much during the search
CHANGED_MS: Final = 2_000
LOOK_MS: Final = 1_000  # a hold becomes due by time: at least so often the gangs are looked at


class _Pause(msgspec.Struct, frozen=True):
    until_ms: int  # monotonic
    lasts_ms: int
    # The holds beside which the search found none; the end of one of them ends the pause.
    beside: frozenset[PlanId] = frozenset()
    refusal: HoldRefusal | None = None  # what the search found

    def holds(self, view: ClusterView, state: ReservationState) -> bool:
        """Return whether the holds and the pods that the search met are still there."""
        pods = self.refusal.pods if self.refusal is not None else ()
        holds = {hold.hold for hold in state.capacity_holds.values()}
        return self.beside <= holds and all(uid in view.pods for uid in pods)

    def is_over(self, view: ClusterView, state: ReservationState, now_ms: int) -> bool:
        """Return whether a search may find something else now: a change is looked at after `CHANGED_MS` at the earliest."""
        begun_ms = self.until_ms - self.lasts_ms
        return self.until_ms <= now_ms or (
            now_ms - begun_ms >= CHANGED_MS and not self.holds(view, state)
        )


class _Place(msgspec.Struct, frozen=True):
    """A plan on nodes that may free, with the request that it follows from."""

    request: PlanRequest
    plan: Plan
    encoded: DecisionInput


class CapacityHoldSearch:
    """Holds capacity for one tree after the other; what it remembers beside the log is only when to try again."""

    def __init__(self, parts: LoopParts, searches: TreeSearches) -> None:
        self._parts = parts
        self._wakeup = parts.barriers.wakeup
        self._searches = searches
        self._pauses: dict[GangUid, _Pause] = {}
        self._looked: object = None  # gangs of which none had its turn, ...
        self._looked_ms = 0  # ... and when that was

    def want(self, now: Moment) -> None:
        """Let the tree whose turn it is wait for its search in the planner process, if there is one."""
        state, now_ms = now.pending, self._parts.clock.monotonic_ms()
        if not self._parts.settings.hold_capacity_after_s:
            return
        self._pauses = {uid: pause for uid, pause in self._pauses.items() if uid in state.gangs}
        self._publish(now)
        # a look at the same state shortly before found nothing; passes may be frequent
        if self._looked is state.gangs and now_ms - self._looked_ms < LOOK_MS:
            return
        for root in self._due(now):
            tree = now.forest.trees.get(group_key_of(root))
            if tree is None or tree.root.uid != root.uid or self._searches.is_wanted(root.uid):
                continue
            self._searches.want(WantedSearch(tree, "hold", answered=True, holds_up=False))
            return
        self._looked, self._looked_ms = state.gangs, now_ms

    def _publish(self, now: Moment) -> None:
        """Publish why no capacity is held for trees, as far as it is still so."""
        view, state = now.view, now.pending
        self._parts.exchange.published.unheld = {
            uid: pause.refusal
            for uid, pause in self._pauses.items()
            if pause.refusal is not None
            and uid in state.gangs
            and state.gangs[uid].refused_since_us
            and pause.holds(view, state)
        }

    def _due(self, now: Moment) -> tuple[GangState, ...]:
        now_ms = self._parts.clock.monotonic_ms()
        paused = (
            u for u, p in self._pauses.items() if not p.is_over(now.view, now.pending, now_ms)
        )
        return trees_to_hold_for(
            now.pending,
            now_us=self._parts.clock.now_us(),
            after_us=self._parts.settings.hold_capacity_after_s * 1_000_000,
            paused=set(paused),
        )

    async def perform(self, search: WantedSearch, now: Moment) -> None:
        """Search where capacity could be held for a tree, and append the hold; in its turn."""
        current = self._parts.requests.about(now, search.tree)
        if current is None:
            return
        requests = self._parts.requests.for_hold(current)
        beside = frozenset(h.hold for h in now.pending.capacity_holds.values())
        try:
            place, now = await self._place(requests, now)
        except BrokenProcessPool:
            place = None
        if not isinstance(place, _Place):
            self._pause(search.uid, beside, place, now)
            return
        newest = self._parts.requests.about(now, search.tree)
        if newest is None or not self._is_current(newest, place):
            until_ms = self._parts.clock.monotonic_ms() + CHANGED_MS
            self._pauses[search.uid] = _Pause(until_ms, AGAIN_MS // 2)
            return
        # whatever ends the hold: at most one in this time, so that the log does not grow fast
        self._pauses[search.uid] = _Pause(
            self._parts.clock.monotonic_ms() + AGAIN_MS, AGAIN_MS // 2
        )
        self._append(newest, place)
        await self._parts.appends.flush()
        self._wakeup.wake()

    async def _place(
        self, requests: HoldRequests, now: Moment
    ) -> tuple[_Place | HoldRefusal, Moment]:
        """Return the place for which the fewest pods must leave, or why no capacity is held, and the moment of the last answer."""
        search, last_place = requests.search(), None
        request = next(search)
        while True:
            encoded, verdict, now = await self._searches.planned(request)
            plan = verdict if isinstance(verdict, Plan) and verdict.assignments else None
            last_place = _Place(request, plan, encoded) if plan is not None else last_place
            try:
                request = search.send(plan)
            except StopIteration as end:
                return end.value or last_place or NO_PLACE, now

    def _is_current(self, now: TreeRequest, place: _Place) -> bool:
        """Return whether the tree and the nodes of the plan are as they were planned; what runs there may have changed."""
        if not now.asks_as(place.request):
            return False
        if all(gang.uid != now.tree.root.uid for gang in self._due(now.now)):
            return False
        return still_holds(place.request, place.plan, self._parts.requests.for_hold(now).all_free())

    def _append(self, now: TreeRequest, place: _Place) -> None:
        view, state = now.now.view, now.now.pending
        cause = f"cluster revision {view.revision}"
        drafts = decide_hold(
            view,
            state,
            now.tree,
            place.request,
            place.plan,
            self._parts.event_context(place.encoded.digest, cause),
            until_us=self._parts.clock.now_us()
            + self._parts.settings.hold_capacity_for_s * 1_000_000,
        )
        self._parts.appends.append_nowait(drafts, place.encoded)

    def _pause(
        self, uid: GangUid, beside: frozenset[PlanId], refusal: HoldRefusal | None, now: Moment
    ) -> None:
        before = self._pauses.get(uid)
        lasts_ms = AGAIN_MS
        if before is not None and before.beside == beside:
            lasts_ms = min(2 * before.lasts_ms, AGAIN_MS_MAX)
        if refusal is not None:
            refusal = msgspec.structs.replace(refusal, at_us=self._parts.clock.now_us())
        until_ms = self._parts.clock.monotonic_ms() + lasts_ms
        self._pauses[uid] = _Pause(until_ms, lasts_ms, beside, refusal)
        self._publish(now)
        self._wakeup.wake()  # the turn of the next tree
