"""Search in the planner process where capacity could be held for a tree that has waited for long, and record the hold."""

from __future__ import annotations

import logging
from concurrent.futures.process import BrokenProcessPool
from typing import Final

import msgspec

from extender.control.loop.admission.current_requests import CurrentRequests, TreeRequest
from extender.control.loop.admission.event_context import new_event_context
from extender.control.loop.admission.tree_searches import TreeSearches, WantedSearch
from extender.control.loop.cluster_observer import Moment
from extender.control.loop.loop_parts import LoopParts
from extender.core.decisions.admit.hold_planning import HoldRequests, decide_hold
from extender.core.decisions.admit.plan_request import group_key_of
from extender.core.decisions.admit.verdict_events import still_holds
from extender.core.decisions.fairness.hold_turns import trees_to_hold_for
from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.ids import GangUid
from extender.core.planner.plan_types import Plan, PlanRequest
from extender.ports.log_ports import DecisionInput

log = logging.getLogger(__name__)

AGAIN_MS: Final = (
    60_000  # a tree for which no place was found is looked at again after this time, ...
)
AGAIN_MS_MAX: Final = 600_000  # ... doubled each time up to this
CHANGED_MS: Final = (
    2_000  # ... or after this time, if the cluster has changed too much during the search
)
LOOK_MS: Final = 1_000  # a hold becomes due by time: at least so often the gangs are looked at


class _Pause(msgspec.Struct, frozen=True):
    until_ms: int  # monotonic
    lasts_ms: int


class _Place(msgspec.Struct, frozen=True):
    """A plan on nodes that may free, with the request that it follows from."""

    request: PlanRequest
    plan: Plan
    encoded: DecisionInput


class CapacityHoldSearch:
    """Holds capacity for one tree after the other; what it remembers beside the log is only when to try again."""

    def __init__(self, parts: LoopParts, requests: CurrentRequests, searches: TreeSearches) -> None:
        self._searches = searches
        self._clock = parts.clock
        self._settings = parts.settings
        self._wakeup = parts.barriers.wakeup
        self._appends = parts.appends
        self._planner = parts.planner
        self._requests = requests
        self._pauses: dict[GangUid, _Pause] = {}
        self._looked: object = None  # gangs of which none had its turn, ...
        self._looked_ms = 0  # ... and when that was

    def want(self, now: Moment) -> None:
        """Let the tree whose turn it is wait for its search in the planner process, if there is one."""
        state, now_ms = now.pending, self._clock.monotonic_ms()
        if not self._settings.hold_capacity_after_s or self._is_settled(state, now_ms):
            return
        self._pauses = {uid: pause for uid, pause in self._pauses.items() if uid in state.gangs}
        for root in self._due(state):
            tree = now.forest.trees.get(group_key_of(root))
            if tree is None or tree.root.uid != root.uid or self._searches.is_wanted(root.uid):
                continue
            self._searches.want(WantedSearch(tree, "hold", answered=True, holds_up=False))
            return
        self._looked, self._looked_ms = state.gangs, now_ms

    def _is_settled(self, state: ReservationState, now_ms: int) -> bool:
        """Return whether a look at the same state shortly before found nothing; passes may be frequent."""
        return self._looked is state.gangs and now_ms - self._looked_ms < LOOK_MS

    def _due(self, state: ReservationState) -> tuple[GangState, ...]:
        now_ms = self._clock.monotonic_ms()
        return trees_to_hold_for(
            state,
            now_us=self._clock.now_us(),
            after_us=self._settings.hold_capacity_after_s * 1_000_000,
            paused={uid for uid, pause in self._pauses.items() if pause.until_ms > now_ms},
        )

    async def perform(self, wanted: WantedSearch, now: Moment) -> None:
        """Search where capacity could be held for a tree, and append the hold; in its turn.

        Args:
            wanted: The tree.
            now: When the turn began.

        Raises:
            NotLeading: The lease was lost meanwhile.
            StoreUnavailable: An append failed.
        """
        current = self._requests.about(now, wanted.tree)
        if current is None:
            return
        requests = self._requests.for_hold(current)
        try:
            place, now = await self._place(requests, now)
        except BrokenProcessPool:  # twice on the same input
            log.exception("planner process died", extra={"root": wanted.tree.root.key.path})
            place = None
        if place is None:
            self._pause(wanted.uid)
            return
        newest = self._requests.about(now, wanted.tree)
        if newest is None or not self._is_current(newest, place):
            until_ms = self._clock.monotonic_ms() + CHANGED_MS
            self._pauses[wanted.uid] = _Pause(until_ms, AGAIN_MS // 2)
            return
        # whatever ends the hold: at most one in this time, so that the log does not grow fast
        self._pauses[wanted.uid] = _Pause(self._clock.monotonic_ms() + AGAIN_MS, AGAIN_MS // 2)
        self._append(newest, place)
        await self._appends.flush()
        self._wakeup.wake()

    async def _place(self, requests: HoldRequests, now: Moment) -> tuple[_Place | None, Moment]:
        """Return the place for which the fewest pods must leave, and the moment of the last answer.

        None: it would not fit if all that may leave had left.
        """
        search, found = requests.search(), None
        request = next(search, None)
        while request is not None:
            place, now = await self._planned(request)
            found = place or found
            try:
                request = search.send(place is not None)
            except StopIteration:
                break
        return found, now

    async def _planned(self, request: PlanRequest) -> tuple[_Place | None, Moment]:
        encoded = self._planner.encode(request)
        verdict, _, now = await self._searches.away(self._planner.plan(encoded))
        if isinstance(verdict, Plan) and verdict.assignments:
            return _Place(request, verdict, encoded), now
        return None, now

    def _is_current(self, now: TreeRequest, place: _Place) -> bool:
        """Return whether the tree and the nodes of the plan are as they were planned; what runs there may have changed."""
        same_tree = (place.request.root, place.request.shapes) == (
            now.request.root,
            now.request.shapes,
        )
        if not same_tree:
            return False
        root = now.tree.root
        if all(gang.uid != root.uid for gang in self._due(now.now.pending)):
            return False
        return still_holds(place.request, place.plan, self._requests.for_hold(now).all_free())

    def _append(self, now: TreeRequest, place: _Place) -> None:
        view, state = now.now.view, now.now.pending
        cause = f"cluster revision {view.revision}"
        drafts = decide_hold(
            view,
            state,
            now.tree,
            place.request,
            place.plan,
            new_event_context(self._clock, self._settings, place.encoded.digest, cause),
            until_us=self._clock.now_us() + self._settings.hold_capacity_for_s * 1_000_000,
        )
        self._appends.append_nowait(drafts, place.encoded)

    def _pause(self, uid: GangUid) -> None:
        before = self._pauses.get(uid)
        lasts_ms = AGAIN_MS if before is None else min(2 * before.lasts_ms, AGAIN_MS_MAX)
        self._pauses[uid] = _Pause(self._clock.monotonic_ms() + lasts_ms, lasts_ms)
