"""Plan one pending tree, and append the verdict: in this process if that is quick, else in the planner process.

A tree that needs the planner process waits there for its turn (`tree_searches`); a pass does not wait for it.
"""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool

import msgspec

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.lost_member_search import LostMemberSearch
from extender.control.admission.preemption_policy import (
    awaited_preemption,
    events_before_verdict,
    may_admit,
)
from extender.control.admission.preemption_search import CRASHED_MS, JudgedTree, PreemptionSearch
from extender.control.admission.refusal_explanations import RefusalExplanations
from extender.control.admission.request_builder import TreeRequest
from extender.control.admission.tree_searches import SearchWork, TreeSearches, WantedSearch
from extender.core.admit.native_gang_scheduling import bind_blockers
from extender.core.admit.verdict_events import (
    ComparedNodes,
    decide_invalid,
    decide_verdict,
    is_recorded,
    is_recorded_invalid,
    only_less,
    still_holds,
    would_be_refused,
)
from extender.core.capacity.capacity_claims import victims_are_gone
from extender.core.holds.hold_planning import held_against
from extender.core.log.events import NewEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import GangUid, GroupKey, Position
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Tree
from extender.core.planner.explain.plan_builder import without_extras
from extender.core.planner.plan_types import (
    COMPLETE,
    TERMINATES,
    DecisionInput,
    Plan,
    PlanRequest,
    Refusal,
    SearchEffort,
    Verdict,
)
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.judgement import Judgement
from extender.core.preempt.preemption_planning import is_being_evicted, leaves_being_evicted
from extender.core.reconcile.reservation_checks import retry_time_us
from extender.telemetry import METRICS

# A refusal that differs from the recorded one only in numbers is recorded after a pause, which doubles each time.
NUMBERS_FIRST_MS = 5_000
NUMBERS_MAX_MS = 600_000
PAUSE_PER_MS = 5  # a refused tree waits this many times as long as its plan took
HARD_MS = 5  # a tree whose quick plan failed and took so long is searched without another one
OVERTAKEN_MAX = 3  # searches whose plan did not hold any more, because others took the capacity


class AdmissionOutcome(enum.Enum):
    """What one attempt to admit a tree has led to."""

    INVALID_AS_BEFORE = "invalid, which is in the log already"
    PAUSED = "not tried: it is being deleted, or its pause has not ended"
    REFUSAL_HOLDS = "not planned: it would be refused as before"
    NOT_PENDING = "not tried: it has no members to place any more"
    BEING_EVICTED = "not planned: it is a victim itself"
    RECORDED = "events were appended, or only its member count has grown"
    AWAITS_VICTIMS = "planned, but the capacity that its victims free does not suffice yet"
    POSTPONED = "planned, but first a tree of higher priority may take over its capacity"
    TO_SEARCH = "its search in the planner process runs, or waits for its turn"
    TO_EXPLAIN = "refused, and its reasons or victims are searched in the planner process"
    HELD_UP = "it fits now, but a tree that comes first is searched"
    EXTRAS_LATER = "planned; its members beyond the minimum come after the minima of other trees"
    STILL_ARRIVES = "planned; it is new and incomplete, and its other members may be on their way"

    @property
    def stays_refused(self) -> bool:
        """Return whether the next attempt would lead to the same, unless the cluster or the state changes."""
        return self in (
            AdmissionOutcome.REFUSAL_HOLDS,
            AdmissionOutcome.PAUSED,
            AdmissionOutcome.INVALID_AS_BEFORE,
        )


class AdmissionProgress(msgspec.Struct):
    """What one pass has found so far about the trees that it tried."""

    now: Moment  # of the pass, with the state that its appends have led to
    postponed: list[Tree] = []
    minima_wait: bool = False  # trees of the same priority wait for their minimum, and come later
    extras_later: list[Tree] = []  # their members beyond the minimum are planned after these
    all_stay_refused: bool = True
    # Trees of lower priority are held up, and of the same priority if the search is of a tree that comes first.
    searched_priority: int | None = None
    holds_up_equals: bool = False


class _LongWork(msgspec.Struct, frozen=True):
    """What a tree waits for, and the request that showed it."""

    request: PlanRequest
    work: DeferredWork
    took_ms: int  # of the quick plan


class _PendingTree(msgspec.Struct, eq=False):
    """What is remembered about a pending tree beside the log; times are monotonic, in milliseconds."""

    not_before_ms: int = 0  # the end of its pause
    arrives_until_ms: int | None = None  # new and incomplete until then
    refused: PlanRequest | None = None  # the request of the last refusal
    held_note: str = ""  # `_held_note` of that refusal
    # position of the decision in the log when it was kept: its append may fail
    decided_at: Position | None = None
    long: _LongWork | None = None
    overtaken: int = 0  # searches in a row whose plan did not hold any more
    recorded_ms: int | None = None  # when a verdict was last recorded, ...
    numbers_pause_ms: int = 0  # ... and how long after it one with other numbers is not
    explained: bool = True  # whether the last refusal is recorded with its conflict
    judged: bool = False  # whether the last refusal follows from a search for victims


class TreeAdmission:
    """Tries to admit one tree at a time, and remembers when each may be tried again."""

    def __init__(
        self,
        parts: LoopParts,
        preemptions: PreemptionSearch,
        searches: TreeSearches,
        lost: LostMemberSearch,
    ) -> None:
        self._parts = parts
        self._wakeup = parts.barriers.wakeup
        self._policy = parts.preemption_policy
        self._searches = searches
        self._preemptions = preemptions
        self.explanations = RefusalExplanations(parts)
        self._lost = lost
        self._trees: defaultdict[GangUid, _PendingTree] = defaultdict(_PendingTree)
        self._compared = ComparedNodes()
        self._victims: IdentityMemo[Mapping[GroupKey, int]] = IdentityMemo()
        self._notes: IdentityMemo[dict[tuple[object, ...], str]] = IdentityMemo()

    async def admit(
        self, tree: Tree, progress: AdmissionProgress, *, last: bool = False
    ) -> AdmissionOutcome:
        """Try to admit one tree.

        Args:
            progress: Of this pass, as it is now; the tree is added to it if it must be looked at again.
            last: Whether possible takeovers of its capacity have been decided.
        """
        outcome = self._invalid(tree, progress) or self._waits(tree, progress)
        if outcome is not None:
            return outcome
        current = self._parts.requests.about(progress.now, tree)
        if current is None:
            return AdmissionOutcome.NOT_PENDING
        return (
            self._refused_at_bind(current)
            or self._refusal_holds(current)
            or self._being_evicted(current)
            or await self._plan(current, progress, last=last)
        )

    async def search(self, tree_request: TreeRequest) -> None:
        """Plan a tree in the planner process, and append the answer if the request is still current; in its turn.

        A refusal whose explanation takes long is recorded with the reasons that the proof gives; `record_explanations`
        records it again when it is explained.
        """
        uid, request = tree_request.tree.root.uid, tree_request.request
        later = self._parts.planner.explains_later(request)
        # the search for victims explains the refusal
        plain = later or self._preemptions.may_follow(tree_request, "search")
        encoded = self._parts.planner.encode(
            msgspec.structs.replace(request, explain=False) if plain else request
        )
        try:
            verdict, took_ms, moment = await self._searches.away(self._parts.planner.plan(encoded))
        except BrokenProcessPool:
            self._trees[uid].not_before_ms = self._parts.clock.monotonic_ms() + CRASHED_MS
            return
        METRICS.planned(verdict, took_ms)
        now = self._parts.requests.about(moment, tree_request.tree)
        if now is None:
            return
        answered = TreeRequest(now.tree, request, moment)
        if isinstance(verdict, Plan) and verdict.assignments:
            self._parts.requests.backoff.placed(uid)
            if now.request == request or still_holds(request, verdict, now.request):
                self._trees[uid].overtaken = 0
                self._record_verdict(answered, verdict, encoded)
            else:
                # the cluster has changed: the next pass plans again
                self._trees[uid].overtaken += 1
                self._wakeup.wake()
            return
        if self._is_late(now, request, verdict):
            # its victims go, or are gone since: the next pass plans it on what they free
            self._wakeup.wake()
            return
        if self._preemptions.may_follow(answered, verdict):
            judged_tree = await self._preemptions.preempt(
                answered, verdict if plain else None, explain=not later
            )
            if judged_tree is None:
                return
            self.record_judged(answered, judged_tree, took_ms, explained=not later)
            return
        if plain and not later and isinstance(verdict, Refusal):
            encoded, verdict, moment = await self._searches.planned(request)
            now = self._parts.requests.about(moment, tree_request.tree)
            if now is None:
                return
            answered = TreeRequest(now.tree, request, moment)
        self._record_verdict(answered, verdict, encoded, explained=not later)
        self._pause(uid, request, verdict, took_ms)
        if later and isinstance(verdict, Refusal) and verdict.outcome == "impossible":
            self.explanations.start(answered, request)

    def record_judged(
        self, tree_request: TreeRequest, judged_tree: JudgedTree, took_ms: int, *, explained: bool
    ) -> None:
        """Append a refusal after a search for victims, if its tree is still pending, with what that has found.

        Args:
            judged_tree: The judgement of the same request with what could be evicted.
            explained: Whether the refusal has its explanation; else it is explained later.
        """
        uid, verdict = tree_request.tree.root.uid, judged_tree.judged.verdict
        now = self._parts.requests.about(judged_tree.now, tree_request.tree)
        if now is None:
            return
        answered = TreeRequest(now.tree, tree_request.request, judged_tree.now)
        self._record_verdict(
            answered, verdict, judged_tree.encoded, explained=explained, judged=judged_tree.judged
        )
        self._pause(uid, tree_request.request, verdict, took_ms)
        if not explained and isinstance(verdict, Refusal) and verdict.outcome == "impossible":
            self.explanations.start(answered, judged_tree.request)

    def _pause(self, uid: GangUid, request: PlanRequest, verdict: Verdict, took_ms: int) -> None:
        pause_ms = self._parts.requests.backoff.answered(uid, request, verdict, took_ms)
        pause_ms = max(pause_ms, PAUSE_PER_MS * took_ms)
        self._trees[uid].not_before_ms = self._parts.clock.monotonic_ms() + pause_ms

    def _is_late(self, now: TreeRequest, request: PlanRequest, verdict: Verdict) -> bool:
        """Return whether a refusal must not end a preemption that was planned, or got capacity, during the search."""
        view, uid = now.now.view, now.tree.root.uid
        pending = awaited_preemption(now.now.pending, uid)
        if pending is None:
            return False
        return not may_admit(view, pending, verdict) or not (
            now.request.nodes is request.nodes or only_less(request.nodes, now.request.nodes)
        )

    async def perform(self, search: WantedSearch, now: Moment) -> None:
        """Search or explain a tree as it is now, if it is still pending; in its turn."""
        self._trees[search.uid].long = None
        current = self._parts.requests.about(now, search.tree)
        if current is None:
            return
        if search.work == "lost":
            if self._would_be_refused(current) and self._lost_members_may_be_placed(current):
                await self._lost.perform(search, current)
        elif search.work == "search" or not self._preemptions.may_follow(current, "explain"):
            await self.search(current)
        else:
            later = self._parts.planner.explains_later(current.request)
            judged_tree = await self._preemptions.preempt(current, None, explain=not later)
            if judged_tree is not None:
                self.record_judged(current, judged_tree, 0, explained=not later)
        await self._parts.appends.flush()

    def record_explanations(self, moment: Moment) -> None:
        """Append the refusals that were explained since the last pass, of trees that are the same and refused as then.

        Capacity may have changed: on a busy cluster it always does, and the event names the input that it follows from.
        """
        for explained in self.explanations.take():
            refused, verdict = explained.tree_request, explained.judged.verdict
            now = self._parts.requests.about(moment, refused.tree)
            if now is None or not isinstance(verdict, Refusal):
                continue
            root = moment.pending.gangs.get(now.tree.root.uid)
            answered = TreeRequest(now.tree, refused.request, moment)
            considered = (*self._held_for_others(answered, verdict), *explained.judged.notes)
            if now.asks_as(refused.request) and is_recorded(
                root, verdict, considered, explained=False
            ):
                self._record_verdict(answered, verdict, explained.encoded, judged=explained.judged)

    def record_invalid(self, now: Moment, trees: Iterable[Tree]) -> None:
        """Append the problems of invalid trees that the log does not have, all at once."""
        state, context = now.pending, self._parts.event_context("", "tree changed")
        self._parts.appends.append_nowait(
            [draft for tree in trees for draft in decide_invalid(state, tree, context)]
        )

    def planned_again_us(self) -> Mapping[GangUid, int]:
        """Return when each tree that pauses is planned again, in microseconds since the epoch."""
        now_ms, now_us = self._parts.clock.monotonic_ms(), self._parts.clock.now_us()
        return {
            uid: now_us + (pending.not_before_ms - now_ms) * 1000
            for uid, pending in self._trees.items()
            if pending.not_before_ms > now_ms
        }

    def paused_after(self, since_ms: int) -> bool:
        """Return whether a pause ends after a time (monotonic, in milliseconds), or has ended since."""
        return any(pending.not_before_ms > since_ms for pending in self._trees.values())

    def retain(self, roots: set[GangUid]) -> None:
        """Forget all other trees."""
        self.explanations.retain(roots)
        self._lost.retain(roots)
        self._compared.clear()
        for uid in self._trees.keys() - roots:
            del self._trees[uid]

    # -- before the plan -------------------------------------------------------------------------

    def _invalid(self, tree: Tree, progress: AdmissionProgress) -> AdmissionOutcome | None:
        """Record the problems of an invalid tree."""
        if not tree.problems:
            return None
        if is_recorded_invalid(progress.now.pending, tree):
            return AdmissionOutcome.INVALID_AS_BEFORE
        self.record_invalid(progress.now, [tree])
        return AdmissionOutcome.RECORDED

    def _waits(self, tree: Tree, progress: AdmissionProgress) -> AdmissionOutcome | None:
        """Return what a tree waits for before it is looked at, or None."""
        if tree.root.deleting or self._paused(progress.now, tree):
            return AdmissionOutcome.PAUSED
        running = self._searches.running(tree.root.uid)
        if running is not None and running.work != "hold":
            if running.holds_up:
                self._hold_up(tree, progress)
            return AdmissionOutcome.TO_SEARCH
        return None

    def _paused(self, now: Moment, tree: Tree) -> bool:
        """Return whether a tree waits: after a failure, after other pods took its capacity often, or in a loop.

        Source: `retry_time_us` and `core/admit/readmission_backoff`.
        """
        pending = self._trees[tree.root.uid]
        if self._parts.clock.monotonic_ms() < pending.not_before_ms:
            return True
        root = now.pending.gangs.get(tree.root.uid)
        pause_us = retry_time_us(root) - self._parts.clock.now_us() if root is not None else 0
        if pause_us <= 0:
            return self._parts.readmissions.defers(now.view, tree, self._parts.clock.monotonic_ms())
        pending.not_before_ms = self._parts.clock.monotonic_ms() + pause_us // 1000 + 1
        return True

    def _refused_at_bind(self, tree_request: TreeRequest) -> AdmissionOutcome | None:
        """Record a refusal if kube-scheduler itself would never let the tree reach bind."""
        state = tree_request.now.pending
        root = state.gangs.get(tree_request.tree.root.uid)
        if root is not None and (root.reservations or root.bound):
            return None
        reasons = bind_blockers(tree_request.tree, state.features)
        if not reasons:
            return None
        self._append_waiting(tree_request, reasons, "group scheduling of kube-scheduler")
        return AdmissionOutcome.RECORDED

    def _refusal_holds(self, tree_request: TreeRequest) -> AdmissionOutcome | None:
        """Return `REFUSAL_HOLDS` if the planner would refuse the tree again, and nothing else can help it now."""
        if not self._would_be_refused(tree_request):
            return None
        if not self._lost_members_may_be_placed(tree_request):
            return AdmissionOutcome.REFUSAL_HOLDS
        self._want(tree_request, "lost", holds_up=False)
        return AdmissionOutcome.TO_SEARCH

    def _would_be_refused(self, tree_request: TreeRequest) -> bool:
        """Return whether the planner would refuse a tree again, and no preemption can help it now."""
        view, state = tree_request.now.view, tree_request.now.pending
        uid = tree_request.tree.root.uid
        refused = self._trees[uid].refused
        if refused is None or not would_be_refused(refused, tree_request.request, self._compared):
            return False
        if self._trees[uid].held_note != self._held_note(tree_request):
            return False  # the same answer, but another reason
        if self._trees[uid].decided_at != _decided_at(state, uid):
            return False  # its append failed, or another leader has decided since
        preemption = awaited_preemption(state, uid)
        if preemption is None:
            return not self._policy.may_search(view, state, tree_request.tree)
        return not victims_are_gone(view, preemption)

    def _lost_members_may_be_placed(self, tree_request: TreeRequest) -> bool:
        """Return whether lost members of a tree that would be refused again may be placed in another way (D26)."""
        return (
            self._lost.may_help(tree_request, self._compared)
            and self._being_evicted(tree_request) is None
        )

    def _being_evicted(self, tree_request: TreeRequest) -> AdmissionOutcome | None:
        """Return `BEING_EVICTED` if the tree is a victim itself."""
        view, state = tree_request.now.view, tree_request.now.pending
        leaves = self._victims.get(
            lambda: leaves_being_evicted(view, state), same=(view, state.preemptions)
        )
        is_victim = is_being_evicted(leaves, tree_request.tree)
        return AdmissionOutcome.BEING_EVICTED if is_victim else None

    # -- the plan --------------------------------------------------------------------------------

    async def _plan(
        self, tree_request: TreeRequest, progress: AdmissionProgress, *, last: bool
    ) -> AdmissionOutcome:
        root, request = tree_request.tree.root, tree_request.request
        # by the search of a tree that comes first
        held_up = progress.searched_priority is not None and (
            root.priority < progress.searched_priority or progress.holds_up_equals
        )
        pending = awaited_preemption(tree_request.now.pending, root.uid)
        started_ms = self._parts.clock.monotonic_ms()
        answer = self._plan_at_once(root.uid, request)
        if answer in ("search", "explain") or (isinstance(answer, Plan) and held_up):
            self._record_complete(tree_request)
        if not may_admit(tree_request.now.view, pending, answer):
            # planned again when a node has gained capacity
            self._keep_refusal(tree_request)
            return AdmissionOutcome.AWAITS_VICTIMS
        if pending is not None and not last and self._searches.waits_above(root.priority):
            # a takeover would release it right after its gates are removed
            progress.postponed.append(tree_request.tree)
            return AdmissionOutcome.POSTPONED
        if answer == "search":
            holds_up = not self._parts.requests.backoff.repeated(
                root.uid
            ) and self._searches.may_hold_up(root.key.namespace)
            if holds_up:
                self._hold_up(tree_request.tree, progress)
            self._want(tree_request, answer, holds_up=holds_up)
            return AdmissionOutcome.TO_SEARCH
        if answer == "explain" or self._preemptions.may_follow(tree_request, answer):
            self._want(tree_request, "explain", holds_up=False)
            return AdmissionOutcome.TO_EXPLAIN
        if isinstance(answer, Plan) and answer.assignments and held_up:
            return AdmissionOutcome.HELD_UP
        extras = isinstance(answer, Plan) and any(a.extra for a in answer.assignments)
        if progress.minima_wait and isinstance(answer, Plan) and extras:
            progress.extras_later.append(tree_request.tree)
            request = msgspec.structs.replace(request, extras_later=True)
            answer = without_extras(request, answer)
            if not answer.assignments:
                return AdmissionOutcome.EXTRAS_LATER
            tree_request = msgspec.structs.replace(tree_request, request=request)
        METRICS.planned(answer, self._parts.clock.monotonic_ms() - started_ms)
        if self._still_arrives(tree_request, answer):
            return AdmissionOutcome.STILL_ARRIVES
        self._record_verdict(tree_request, answer, self._parts.planner.encode(request))
        return AdmissionOutcome.RECORDED

    def _record_complete(self, tree_request: TreeRequest) -> None:
        """Record that a tree has the members that it was waiting for, where its verdict comes later."""
        root = tree_request.now.pending.gangs.get(tree_request.tree.root.uid)
        decision = root.last_decision if root is not None else None
        if decision is not None and decision.outcome == "waiting":
            first = next(iter(decision.reasons), "")
            if first != COMPLETE and TERMINATES not in first:
                self._append_waiting(tree_request, (COMPLETE,), "its members are complete")

    def _append_waiting(
        self, tree_request: TreeRequest, reasons: tuple[str, ...], cause: str
    ) -> None:
        """Append what a tree waits for before it is planned."""
        nothing = SearchEffort(nodes=0, exhausted=True)
        refusal = Refusal(outcome="waiting", status="Wait", reasons=reasons, search=nothing)
        state, context = tree_request.now.pending, self._parts.event_context("", cause)
        self._parts.appends.append_nowait(
            decide_verdict(state, tree_request.tree, tree_request.request, refusal, context)
        )

    def _still_arrives(self, tree_request: TreeRequest, verdict: Verdict) -> bool:
        """Return whether a tree is new and waits for members; it is looked at again when its time is over.

        Pods of a gang are created one after the other within milliseconds. That some of them are not there yet is no news:
        to record it, with its input, would delay the admission, which follows at once.
        """
        if not isinstance(verdict, Refusal) or verdict.outcome != "waiting":
            return False
        uid = tree_request.tree.root.uid
        if not self._parts.arrival_ms or uid in tree_request.now.pending.gangs:
            return False
        now_ms = self._parts.clock.monotonic_ms()
        pending = self._trees[uid]
        if pending.arrives_until_ms is None:
            pending.arrives_until_ms = now_ms + self._parts.arrival_ms
            later_s = (self._parts.arrival_ms + 1) / 1000
            asyncio.get_running_loop().call_later(later_s, self._end_arrival, uid)
        return now_ms < pending.arrives_until_ms

    def _end_arrival(self, uid: GangUid) -> None:
        """Have a tree recorded that still waits for members; most have been admitted by now."""
        if uid in self._trees and self._trees[uid].arrives_until_ms is not None:
            self._wakeup.wake()

    def _plan_at_once(self, uid: GangUid, request: PlanRequest) -> Verdict | DeferredWork:
        """Plan a tree in this process, or return the work that it waits for already.

        A quick plan that failed is not repeated while no node gains capacity, and never if it took long: it would keep
        the event loop in each pass, for the sake of one tree.
        """
        pending = self._trees[uid]
        if (long := pending.long) is not None:
            same_tree = long.request.root is request.root and long.request.shapes == request.shapes
            hard = same_tree and long.work == "search" and long.took_ms >= HARD_MS
            if hard or would_be_refused(long.request, request, self._compared):
                return long.work
        started_ms = self._parts.clock.monotonic_ms()
        answer, pending.long = self._parts.planner.at_once(request), None
        if isinstance(answer, str):
            pending.long = _LongWork(request, answer, self._parts.clock.monotonic_ms() - started_ms)
        return answer

    def _hold_up(self, tree: Tree, progress: AdmissionProgress) -> None:
        """Let trees of lower priority wait for the search of a tree.

        Trees of the same priority pass it, unless it holds capacity, or its plans failed because others passed it.
        """
        uid, state = tree.root.uid, progress.now.pending
        root = state.gangs.get(uid)
        holds = root is not None and bool(root.reservations or root.bound)
        progress.searched_priority = tree.root.priority
        progress.holds_up_equals |= (
            holds or uid in state.preemptions or self._trees[uid].overtaken >= OVERTAKEN_MAX
        )

    def _want(self, tree_request: TreeRequest, work: SearchWork, *, holds_up: bool) -> None:
        tree = tree_request.tree
        root = tree_request.now.pending.gangs.get(tree.root.uid)
        answered = root is not None and root.last_decision is not None
        self._searches.want(WantedSearch(tree, work, answered, holds_up))

    # -- the verdict -----------------------------------------------------------------------------

    def _keep_refusal(
        self, tree_request: TreeRequest, after: ReservationState | None = None
    ) -> None:
        """Keep a refusal that holds while the pending state has its record; `after` is the state with it."""
        uid = tree_request.tree.root.uid
        pending = self._trees[uid]
        pending.refused, pending.held_note = tree_request.request, self._held_note(tree_request)
        pending.decided_at = _decided_at(after or tree_request.now.pending, uid)

    def _held_note(self, tree_request: TreeRequest) -> str:
        """Return the result of `held_against` for a tree; the same for all trees of the same shapes and priority."""
        view, state = tree_request.now.view, tree_request.now.pending
        if not state.capacity_holds and state.moves is None:
            return ""
        root, request = tree_request.tree.root, tree_request.request
        of_own_hold = root.uid if root.uid in state.capacity_holds else ""
        notes = self._notes.get(dict, same=(request.nodes, state.capacity_holds, state.moves))
        key = (root.priority, of_own_hold, request.shapes)
        if key not in notes:
            notes[key] = held_against(
                view,
                state,
                request.nodes,
                request.shapes,
                priority=root.priority,
                gang_uid=root.uid,
            )
        return notes[key]

    def _held_for_others(self, tree_request: TreeRequest, verdict: Verdict) -> tuple[str, ...]:
        """Return that a refused tree does not get free capacity because it is held for others; empty: it is not so."""
        if isinstance(verdict, Refusal) and verdict.outcome == "waiting":
            return ()
        text = self._held_note(tree_request)
        return (text,) if text else ()

    def _is_judged_later(self, state: ReservationState, uid: GangUid, verdict: Verdict) -> bool:
        """Return whether a refusal is not recorded because victims will be searched for it when a pause is over.

        What is recorded has been judged with victims. Without them the refusal would have other reasons and other ways out,
        and those of the last search would be repeated as if they were of now.
        """
        root = state.gangs.get(uid)
        if not isinstance(verdict, Refusal) or verdict.outcome != "impossible":
            return False
        answered = root is not None and root.last_decision is not None
        return answered and self._trees[uid].judged and self._policy.pauses(uid)

    def _record_verdict(
        self,
        tree_request: TreeRequest,
        verdict: Verdict,
        encoded: DecisionInput,
        *,
        explained: bool = True,
        judged: Judgement | None = None,
    ) -> None:
        """Append the events of a verdict whose request is still current.

        Args:
            explained: Whether a refusal has its explanation; else it is not recorded again for the lack of it.
            judged: The search for victims that the verdict follows from; None: it follows from none.
        """
        uid, now_ms = tree_request.tree.root.uid, self._parts.clock.monotonic_ms()
        tree = self._trees[uid]
        tree.arrives_until_ms = None
        state, view = tree_request.now.pending, tree_request.now.view
        pending = awaited_preemption(state, uid)
        if judged is None and pending is None and self._is_judged_later(state, uid, verdict):
            self._keep_refusal(tree_request)
            return
        tree.judged = judged is not None
        note = self._held_for_others(tree_request, verdict)
        # why the capacity of others is not for it; of a search before this verdict the reasons are marked as older
        notes, reduced = self._policy.considered(uid)
        if judged is not None:
            notes, reduced = judged.notes, judged.notes_reduced
        considered = (*note, *notes)
        root = state.gangs.get(uid)
        as_recorded = is_recorded(root, verdict, considered, explained=True)
        last_ms = tree.recorded_ms
        waits = as_recorded and last_ms is not None and now_ms - last_ms < tree.numbers_pause_ms
        waits |= not explained and is_recorded(root, verdict, considered, explained=False)
        if waits and isinstance(verdict, Refusal) and verdict.outcome == "waiting":
            return  # members still arrive; a pass after the pause records their number
        after = state
        if not waits or pending is not None:
            context = msgspec.structs.replace(
                self._parts.event_context(encoded.digest, f"cluster revision {view.revision}"),
                # without names of other namespaces; empty: there are none in it
                notes_reduced=(*note, *reduced) if reduced else (),
            )
            drafts: list[NewEvent] = []
            if pending is not None:
                eviction_context = self._parts.evictor.eviction_context(
                    context.actor, context.cause, view, state
                )
                drafts = events_before_verdict(view, pending, verdict, eviction_context)
            drafts += decide_verdict(
                state, tree_request.tree, tree_request.request, verdict, context, considered,
                again=explained and not tree.explained,
            )  # fmt: skip
            tree.explained = explained
            after = self._parts.appends.append_nowait(drafts, encoded)
            if drafts or last_ms is None:
                tree.recorded_ms, pause_ms = now_ms, NUMBERS_FIRST_MS
                if as_recorded and last_ms is not None:
                    pause_ms = min(2 * tree.numbers_pause_ms, NUMBERS_MAX_MS)
                tree.numbers_pause_ms = pause_ms
        if isinstance(verdict, Plan) and verdict.assignments:
            where = {a.uid: a.node for a in verdict.assignments}
            self._parts.readmissions.admitted(view, after, tree_request.tree, where, now_ms)
        else:
            self._keep_refusal(tree_request, after)
            self._policy.start_pause(after, uid, verdict)


def _decided_at(state: ReservationState, uid: GangUid) -> Position | None:
    root = state.gangs.get(uid)
    decision = root.last_decision if root is not None else None
    return decision.position if decision is not None else None
