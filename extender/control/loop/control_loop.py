"""The control loop: observe, reconcile, plan pending trees, append, actuate. No call of kube-scheduler waits for it.

One pass at a time. Pending trees are tried in order of priority, then age. A refused tree is planned again only
after some node has gained capacity. A plan is folded into the pending state at once, and its append is in flight
while the next tree is planned. A long search runs in the planner process; before its answer is appended, the
request is built again and compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import chain

import msgspec

from extender.control.actuators.evictor import Evictor
from extender.control.actuators.gate_remover import GateRemover
from extender.control.actuators.nominator import Nominator
from extender.control.actuators.status_reporter import StatusReporter
from extender.control.binding.bind_barrier import BindBarriers
from extender.control.log.append_batch import AppendBatch
from extender.control.log.leader import Leader
from extender.control.loop.idle_pass_filter import IdlePassFilter
from extender.control.loop.overcommit_warnings import warn_overcommit
from extender.control.loop.planner_pool import PlannerPool
from extender.control.loop.preemption_policy import (
    PreemptionPolicy,
    awaited_preemption,
    events_before_verdict,
    may_admit,
    may_lead_to_preemption,
)
from extender.control.loop.readmission_alarm import report_loops
from extender.control.loop.request_builder import RequestBuilder
from extender.control.loop.termination_reasons import TerminationReasons
from extender.core.decisions.admit.native_gang_scheduling import bind_blockers, gates_to_remove
from extender.core.decisions.admit.node_rejections import RejectionEvidence, decide_rejections
from extender.core.decisions.admit.plan_request import refused_members
from extender.core.decisions.admit.readmission_backoff import Readmissions
from extender.core.decisions.admit.unschedulable_cache import UnschedulableCache
from extender.core.decisions.admit.verdict_events import (
    EventContext,
    decide_invalid,
    decide_verdict,
    is_recorded_invalid,
    only_counts_more,
    still_holds,
)
from extender.core.decisions.capacity.capacity_claims import victims_are_gone
from extender.core.decisions.capacity.replacement_holds import expired_holds
from extender.core.decisions.preempt.disruption_units import EvictableContext
from extender.core.decisions.preempt.preemption_lifecycle import decide_evictions
from extender.core.decisions.preempt.preemption_planning import (
    decide_preemption,
    preemption_still_holds,
)
from extender.core.decisions.preempt.preemption_takeover import takeovers_by_plan, takeovers_by_pods
from extender.core.decisions.preempt.unbound_gang_members import (
    is_being_evicted,
    leaves_being_evicted,
    unbound_reservations,
)
from extender.core.decisions.reconcile.cluster_reconciliation import (
    SettledCheck,
    decide_reconcile,
    losses_without_cause,
)
from extender.core.decisions.reconcile.drift import NominationDrift, ReconcileContext
from extender.core.decisions.reconcile.overcommit_attribution import retry_time_us
from extender.core.decisions.reconcile.predicted_replacements import PredictedLosses
from extender.core.log.events import (
    NewEvent,
)
from extender.core.log.reservation_state import Reservation, ReservationState
from extender.core.model.cluster_view import ClusterView, forest_after
from extender.core.model.errors import ClusterUnavailable, NotLeading, StoreUnavailable
from extender.core.model.ids import GroupKey, NodeName, PlanId, PodUid, RootUid
from extender.core.model.pod_groups import Forest, Tree
from extender.core.model.pods import Pod
from extender.core.planner.plan_types import Plan, PlanRequest, Refusal, SearchEffort, Verdict
from extender.core.planner.planning import DeferredWork
from extender.core.planner.preempt.victim_search import NoPreemption
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import Clock, DecisionInput, DecisionInputs
from extender.runtime.wakeup import first_of
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

SETTLE_MS = 2  # changes come in bursts; one pass handles a burst
# After a pass the loop rests this many times as long as the pass took, without its waits for the log, ...
REST_PER_PASS = 4
REST_MS_MAX = 200  # ... but not longer: filter and bind use the time between passes
SLICE_MS = 10  # a pass yields to the event loop this often
EXPLAIN_MS = 200  # of a pass for explaining refusals; the next pass explains the others
TICK_S = 1.0  # reservations and node rejections end by time, without a change of the cluster
COUNTS_MS = 5_000  # the member count of a waiting tree is recorded this often
PAUSE_PER_MS = 5  # a refused tree waits this many times as long as its plan took
CRASHED_MS = 60_000  # a tree whose plan crashed the planner process twice waits so long
EMPTY_FOREST = Forest(trees={}, root_of={}, orphans={})


class ControlLoop:
    """Admits trees, preempts for them and reconciles the log with the cluster."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        leader: Leader,
        inputs: DecisionInputs,
        barriers: BindBarriers,
        reporter: StatusReporter,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._recording = AppendBatch(leader, inputs, clock)
        self._barriers = barriers
        self._wakeup = barriers.wakeup
        self._reporter = reporter
        self._clock = clock
        self._settings = settings
        self.nominator = Nominator(cluster, leader, barriers.arrived)
        self.evictor = Evictor(cluster, leader, clock, settings)
        self.gate_remover = GateRemover(cluster, leader)
        self.planner = PlannerPool()
        self._warm = False  # whether the planner process was started
        self.forest: Forest = EMPTY_FOREST
        self.passes = 0
        self.reconciled_terms = 0  # `Leader.terms` of the last complete pass
        self._forest_of = ClusterView()  # the view that `forest` was made from
        self._questions = RequestBuilder(settings.search_budget)
        self._idle_filter = IdlePassFilter(self._questions.rows)
        self._rejection_evidence = RejectionEvidence()
        self._settled = SettledCheck()
        self._nominations = NominationDrift()
        self.termination_reasons = TerminationReasons(cluster, barriers.wakeup.wake)
        self._refused = UnschedulableCache()
        self._preemption_policy = PreemptionPolicy(clock, wanted=settings.preemption)
        self._readmissions = Readmissions(expires_ms=settings.reservation_ttl_s * 1000)
        self._not_before: dict[RootUid, int] = {}  # monotonic, in milliseconds
        self._answered_ms: dict[RootUid, int] = {}  # when a verdict on a tree was last recorded
        self._compared = ClusterView()  # the view that was last compared with the log
        self._predicted_pending, self._predicted_committed = PredictedLosses(), PredictedLosses()
        self._leaving: Mapping[GroupKey, int] = {}
        self._leaving_of: tuple[object, object] = (
            None,
            None,
        )  # the view and the preemptions of `_leaving`
        self._to_explain: list[GroupKey] = []  # refused in this pass, without reasons yet
        self._after_higher: list[
            Tree
        ] = []  # admitted at the end of this pass, unless a takeover gets their capacity

    def ready(self) -> bool:
        """Return whether a complete pass has run since the lease was acquired."""
        return self.reconciled_terms == self._leader.terms and self.passes > 0

    async def run(self) -> None:
        """Run a pass on each change of cluster or state, and at least every `TICK_S`; until cancelled."""
        while True:
            seen = self._seen()
            terms, begun_ms = self._leader.terms, self._clock.monotonic_ms()
            try:
                if not self._cluster.not_ready_reason() and self._leader.may_record():
                    await self.run_pass()
                    self.passes += 1
                    self.reconciled_terms = terms
                self._warm_up()
            except (NotLeading, StoreUnavailable, ClusterUnavailable) as error:
                log.warning("pass given up", extra={"error": str(error)})
                await asyncio.sleep(0.2)
            ended_ms = self._clock.monotonic_ms()
            took_ms = ended_ms - begun_ms - self._recording.waited_ms
            await self._next_change(seen)
            rested_ms = self._clock.monotonic_ms() - ended_ms
            await asyncio.sleep(rest_ms(took_ms, rested_ms) / 1000)

    def _warm_up(self) -> None:
        """Start the planner process after the first pass, or on a follower once the log is loaded."""
        follows = self._leader.role == "following" and self._leader.follower.loaded.is_set()
        if not self._warm and (self.passes or follows):
            self._warm = True
            self.planner.warm()

    def _seen(self) -> tuple[int, int, int]:
        """Return the revisions that a pass depends on; read before the pass, so that no change is missed."""
        view, state = self._cluster.view().revision, self._leader.wakeup.revision
        return view, state, self._wakeup.revision

    async def _next_change(self, seen: tuple[int, int, int]) -> None:
        """Wait for a change after the revisions `seen`, at most `TICK_S`."""
        view, state, woken = seen
        await first_of(
            self._cluster.changed(view),
            self._leader.wakeup.wait(state),
            self._wakeup.wait(woken),
            timeout_s=TICK_S,
        )

    async def run_pass(self) -> None:
        """Reconcile, admit and queue writes, once."""
        terms = self._leader.terms
        self._recording.begin()
        await self._reconcile()
        if self._leader.recovery_reason:  # bound members are in the log again, reservations are not
            self._barriers.sync(self._leader.committed)
            self._leader.end_recovery(terms)
        self._to_explain, self._after_higher = [], []
        if not self._still():
            await self._admit_all()
        view, state = self._cluster.view(), self._leader.committed
        self._barriers.sync(state)  # first: the nominator asks which members are at bind
        self._rejection_evidence.note_messages(view, state)  # before nominations
        self.nominator.sync(view, state)
        held: Iterable[Pod] = gates_to_remove(state, self.forest)
        if self._settings.unschedulable_gates == "remove":
            held = chain(held, refused_members(state, self.forest))
        self.gate_remover.sync(held)
        self.evictor.sync(view, state)
        self._reporter.sync(view, state, self.forest, self.evictor.stall_reasons)

    def _still(self) -> bool:
        """Return whether no pending tree can be admitted, as in the last pass."""
        view, state = self._refresh()
        hints, now_ms = self._rejection_evidence.hints(view), self._clock.monotonic_ms()

        def by_time(priority: int, since_ms: int) -> bool:
            paused = self._readmissions.ends_after(since_ms) or any(
                until_ms > since_ms for until_ms in self._not_before.values()
            )
            return (
                paused
                or bool(state.vetoes)
                or self._preemption_policy.lower_priority_exists(view, state, priority)
            )

        return self._idle_filter.nothing_to_admit(
            view, state, self.forest, hints, now_ms, by_time=by_time
        )

    async def _admit_all(self) -> None:
        """Try to admit every pending tree, then explain refusals."""
        self._idle_filter.end_pass(None)
        view, state = self._refresh()
        hints = self._rejection_evidence.hints(view)
        pending = tuple(self._questions.pending(state, self.forest, hints))
        self._retain([tree for tree, _ in pending])
        parts = (part for _, part in pending if part is not None)
        before = self._idle_filter.begin_pass(
            view, state, self.forest, parts, hints, self._clock.monotonic_ms()
        )
        refused = True
        try:
            slice_ms = self._clock.monotonic_ms()
            for seen, _ in pending:
                tree = self.forest.trees.get(seen.root.key)
                if tree is not None and not await self._admit(tree):
                    refused = False
                if self._clock.monotonic_ms() - slice_ms >= SLICE_MS:
                    await asyncio.sleep(0)
                    slice_ms = self._clock.monotonic_ms()
        finally:
            await self._recording.flush()
        await self._explain()
        postponed, self._after_higher = self._after_higher, []
        for tree in postponed:
            await self._admit(tree, last=True)
        await self._recording.flush()
        self._idle_filter.end_pass(before if refused else None)

    def _refresh(self) -> tuple[ClusterView, ReservationState]:
        view = self._cluster.view()
        self.forest = forest_after(self._forest_of, self.forest, view)
        self._forest_of = view
        pending_state = self._leader.pending_state
        predicted = self._predicted_pending.of(
            view, pending_state, self.forest, self._compared, self._reconcile_context()
        )
        return view, predicted

    def with_predicted_losses(self, view: ClusterView, state: ReservationState) -> ReservationState:
        """Return `state` with the replacement holds of members lost since the last pass (`PredictedLosses`)."""
        return self._predicted_committed.of(
            view, state, self.forest, self._compared, self._reconcile_context()
        )

    def _reconcile_context(self, cause: str = "") -> ReconcileContext:
        """Return what `decide_reconcile` needs beside view and state to record lost members."""
        return ReconcileContext(
            actor=self._settings.identity,
            cause=cause,
            ends=self.termination_reasons.known,
            awaited=self.termination_reasons.awaited,
            now_us=self._clock.now_us(),
            room_held_us=self._settings.replacement_ttl_s * 1_000_000,
        )

    async def _reconcile(self) -> None:
        self._refresh()
        view, state = self._forest_of, self._leader.pending_state
        self.termination_reasons.retain(state)
        now = self._reconcile_context(f"cluster revision {view.revision}")
        now = msgspec.structs.replace(
            now,
            started=self._barriers.started(),
            binding=self._barriers.binding(),
            posted=self._barriers.posted(),
            expired=self._expired(state),
            over=expired_holds(state, now.now_us),
        )
        known = self.evictor.eviction_context(now.actor, now.cause, view)
        drafts = decide_evictions(
            view, state, self.forest, known
        )  # before `decide_reconcile` completes trees
        if not self._settled.stands(view, state, self.forest, now):
            found = decide_reconcile(view, state, self.forest, now)
            if self.termination_reasons.look_up(losses_without_cause(view, found)):
                now = msgspec.structs.replace(now, awaited=self.termination_reasons.awaited)
                found = decide_reconcile(view, state, self.forest, now)
            if not found:
                self._settled.reached(view, state, self.forest, now)
            drafts += found
        drafts += takeovers_by_pods(view, state, drafts, known)
        self._preemption_policy.allow_retry(drafts)
        await self._recording.append([*drafts, *self._nominations.look(view, state, now)])
        warn_overcommit(drafts)
        self._back_off_released(view, state, drafts)
        self._compared = view
        await self._record_rejections()

    def suspect_rejection(self, reservation: Reservation, offered: Sequence[NodeName]) -> None:
        """Record that a filter call offered a member other nodes than its own, which may be a rejection."""
        now_ms = self._clock.now_us() // 1000
        self._rejection_evidence.suspect(self._cluster.view(), reservation, now_ms, offered=offered)

    def clear_suspicion(self, uid: PodUid) -> None:
        """Record that a filter call offered a member its node."""
        self._rejection_evidence.clear(uid)

    async def _record_rejections(self) -> None:
        """Record node rejections whose evidence has lasted (DESIGN 2.7)."""
        view, state = self._refresh()
        now_ms = self._clock.now_us() // 1000
        self._rejection_evidence.listen(view, state, self._placed, now_ms)
        refused = self._rejection_evidence.confirmed(view, state, now_ms)
        drafts = decide_rejections(
            view,
            state,
            [r for r in refused if not self._placed(r.uid)],
            self._barriers.started(),
            actor=self._settings.identity,
            now_ms=now_ms,
        )
        await self._recording.append(drafts)
        self._back_off_released(view, state, drafts)

    def _back_off_released(
        self, view: ClusterView, state: ReservationState, drafts: Sequence[NewEvent]
    ) -> None:
        """Back off from trees that are released and admitted again without a change; `state` is that before `drafts`."""
        now_ms = self._clock.monotonic_ms()
        loops = self._readmissions.released(view, state, self.forest, drafts, now_ms)
        report_loops(loops, self.forest, self._reporter)
        self._readmissions.keep(self._leader.pending_state)

    def _placed(self, uid: PodUid) -> bool:
        """Return whether kube-scheduler has accepted the node of a member, even if it refused it before."""
        pod = self._cluster.view().pods.get(uid)
        prebinding = pod is not None and self._barriers.prebinding.in_progress(pod)
        return prebinding or self._barriers.at_bind(uid)

    def _expired(self, state: ReservationState) -> frozenset[RootUid]:
        found: set[RootUid] = set()
        if not state.held_on:
            return frozenset(found)
        oldest_us = self._clock.now_us() - self._settings.reservation_ttl_s * 1_000_000
        for root in state.roots.values():
            pending = state.preemptions.get(root.uid)
            if pending is not None and pending.victims:
                continue  # recorded victims still terminate
            if root.held and not root.bound:
                progress_us = max(r.at_us for r in root.held.values())
                progress_us = max(progress_us, self._barriers.progress_us(root.uid))
                if pending is not None:
                    progress_us = max(progress_us, pending.progress_us)
                if progress_us < oldest_us:
                    found.add(root.uid)
        return frozenset(found)

    def _retain(self, pending: Sequence[Tree]) -> None:
        """Forget all trees that are not pending any more."""
        wanted = {tree.root.uid for tree in pending}
        self._refused.keep(wanted)
        self._preemption_policy.retain(wanted)
        self._questions.retain({tree.root.uid for tree in self.forest.trees.values()}, wanted)
        self._not_before = {uid: t for uid, t in self._not_before.items() if uid in wanted}
        self._answered_ms = {uid: t for uid, t in self._answered_ms.items() if uid in wanted}

    def _event_context(self, digest: str, cause: str) -> EventContext:
        return EventContext(
            plan=PlanId(self._clock.new_id()),
            digest=digest,
            actor=self._settings.identity,
            cause=cause,
            topology_keys=self._settings.topology_keys,
        )

    async def _admit(self, tree: Tree, *, last: bool = False) -> bool:
        """Try to admit one tree; return True if it stays refused as before.

        Args:
            tree: As it was when the pass began.
            last: Whether possible takeovers of its capacity have been decided.
        """
        if tree.problems:
            if is_recorded_invalid(self._leader.pending_state, tree):
                return True
            context = self._event_context("", "tree changed")
            self._recording.append_nowait(decide_invalid(self._leader.pending_state, tree, context))
            return False
        if tree.root.deleting or self._paused(tree):
            return True
        current, request = self._request(tree)
        if current is None or request is None or self._refused_at_bind(current, request):
            return False
        view, uid = self._cluster.view(), tree.root.uid
        pending = awaited_preemption(self._leader.pending_state, uid)
        if self._refused.holds(uid, request):
            again = self._preemption_policy.may_search(view, self._leader.pending_state, current)
            if not (again if pending is None else victims_are_gone(view, pending)):
                return True
        if is_being_evicted(self._leaves_of_victims(view), current):
            return False
        started_ms = self._clock.monotonic_ms()
        answer = self.planner.at_once(request)
        if not may_admit(view, pending, answer):
            self._refused.put(uid, request)  # planned again when a node has gained capacity
        elif pending is not None and not last and self._higher_priority_waits(tree.root.priority):
            self._after_higher.append(
                tree
            )  # a takeover would release it right after its gates are removed
        elif answer == "search":
            await (
                self._recording.flush()
            )  # a search takes time; earlier decisions become durable first
            await self._search(current, request)
        elif answer == "explain" or self._may_preempt(current, request, answer):
            self._to_explain.append(tree.root.key)
        else:
            METRICS.planned(answer, self._clock.monotonic_ms() - started_ms)
            self._record_verdict(current, request, answer, self.planner.encode(request))
        return False

    def _refused_at_bind(self, tree: Tree, request: PlanRequest) -> bool:
        """Record a refusal, and return True, if kube-scheduler itself would never let the tree reach bind."""
        state = self._leader.pending_state
        root = state.roots.get(tree.root.uid)
        if root is not None and (root.held or root.bound):
            return False
        reasons = bind_blockers(tree, state.features)
        if not reasons:
            return False
        nothing = SearchEffort(nodes=0, exhausted=True)
        refusal = Refusal(outcome="waiting", status="Wait", reasons=reasons, search=nothing)
        context = self._event_context("", "group scheduling of kube-scheduler")
        self._recording.append_nowait(decide_verdict(state, tree, request, refusal, context))
        return True

    def _higher_priority_waits(self, priority: int) -> bool:
        """Return whether a refused tree of higher priority may preempt at the end of this pass."""
        trees = (self.forest.trees.get(key) for key in self._to_explain)
        return any(tree is not None and tree.root.priority > priority for tree in trees)

    def _leaves_of_victims(self, view: ClusterView) -> Mapping[GroupKey, int]:
        """Return the leaves of units that are being evicted."""
        state = self._leader.pending_state
        known_view, known_preemptions = self._leaving_of
        if known_view is not view or known_preemptions is not state.preemptions:
            self._leaving = leaves_being_evicted(view, state)
            self._leaving_of = (view, state.preemptions)
        return self._leaving

    def _may_preempt(
        self, tree: Tree, request: PlanRequest, verdict: Verdict | DeferredWork
    ) -> bool:
        """Return whether to search for victims after this answer: no member can be placed without them."""
        if isinstance(verdict, Plan) and verdict.assignments:
            return False  # members that fit are admitted first; the next pass may preempt for the others
        view, state = self._cluster.view(), self._leader.pending_state
        return may_lead_to_preemption(request, verdict) and self._preemption_policy.may_search(
            view, state, tree, complete=True
        )

    def _record_verdict(
        self, tree: Tree, request: PlanRequest, verdict: Verdict, encoded: DecisionInput
    ) -> None:
        """Append the events of a verdict whose request is still current."""
        uid, now_ms = tree.root.uid, self._clock.monotonic_ms()
        answered_ms = self._answered_ms.get(uid, -COUNTS_MS)
        if now_ms - answered_ms < COUNTS_MS and only_counts_more(
            self._leader.pending_state.roots.get(uid), verdict
        ):
            return  # members still arrive; a pass after `COUNTS_MS` records their number
        self._answered_ms[uid] = now_ms
        view = self._cluster.view()
        context = self._event_context(encoded.digest, f"cluster revision {view.revision}")
        drafts: list[NewEvent] = []
        pending = awaited_preemption(self._leader.pending_state, uid)
        if pending is not None:
            known = self.evictor.eviction_context(context.actor, context.cause, view)
            drafts = events_before_verdict(view, pending, verdict, known)
        drafts += decide_verdict(
            self._leader.pending_state,
            tree,
            request,
            verdict,
            context,
            self._preemption_policy.considered(uid),
        )
        self._recording.append_nowait(drafts, encoded)
        if isinstance(verdict, Plan) and verdict.assignments:
            where = {a.uid: a.node for a in verdict.assignments}
            self._readmissions.admitted(view, self._leader.pending_state, tree, where, now_ms)
        else:
            self._refused.put(uid, request)
            self._preemption_policy.start_pause(self._leader.pending_state, uid, verdict)

    def _paused(self, tree: Tree) -> bool:
        """Return whether a tree waits: after a failure, after other pods took its capacity often, or in a loop.

        Source: `retry_time_us` and `core/decisions/admit/readmission_backoff`.
        """
        uid = tree.root.uid
        if self._clock.monotonic_ms() < self._not_before.get(uid, 0):
            return True
        root = self._leader.pending_state.roots.get(uid)
        pause_us = retry_time_us(root) - self._clock.now_us() if root is not None else 0
        if pause_us <= 0:
            return self._readmissions.defers(self._cluster.view(), tree, self._clock.monotonic_ms())
        self._not_before[uid] = self._clock.monotonic_ms() + pause_us // 1000 + 1
        return True

    async def _explain(self) -> None:
        """Search the reasons of refused trees, or victims for them, for about `EXPLAIN_MS`."""
        began_ms = self._clock.monotonic_ms()
        # trees without recorded reasons first
        state = self._leader.pending_state
        for key in sorted(self._to_explain, key=lambda k: self._answered(state, k)):
            tree = self.forest.trees.get(key)
            if tree is None:
                continue
            if self._clock.monotonic_ms() - began_ms > EXPLAIN_MS:
                self._wakeup.wake()  # the next pass, which starts at once, explains the others
                break
            current, request = self._request(tree)
            if current is None or request is None:
                continue
            if not self._may_preempt(current, request, "explain") or not await self._preempt(
                current, request, None
            ):
                await self._search(current, request)
        await self._recording.flush()

    def _answered(self, state: ReservationState, key: GroupKey) -> bool:
        tree = self.forest.trees.get(key)
        root = state.roots.get(tree.root.uid) if tree is not None else None
        return root is not None and root.answer is not None

    async def _search(self, tree: Tree, request: PlanRequest) -> None:
        """Plan a tree in the planner process, and append the answer if the request is still current."""
        uid = tree.root.uid
        encoded = self.planner.encode(request)
        started_ms = self._clock.monotonic_ms()
        try:
            verdict = await self.planner.plan(encoded)
        except BrokenProcessPool:  # twice on the same input
            log.exception("planner process died", extra={"root": tree.root.key.path})
            self._not_before[uid] = self._clock.monotonic_ms() + CRASHED_MS
            return
        took_ms = self._clock.monotonic_ms() - started_ms
        METRICS.planned(verdict, took_ms)
        current, now = self._request(tree)
        if current is None or now is None:
            return
        placed = isinstance(verdict, Plan) and bool(verdict.assignments)
        if placed and now != request and not still_holds(request, verdict, now):  # type: ignore[arg-type]
            self._wakeup.wake()  # the cluster has changed: the next pass plans again
            return
        if self._may_preempt(current, request, verdict) and await self._preempt(
            current, request, verdict
        ):
            return
        self._record_verdict(current, request, verdict, encoded)
        if not placed:
            self._not_before[uid] = self._clock.monotonic_ms() + PAUSE_PER_MS * took_ms

    async def _preempt(self, tree: Tree, request: PlanRequest, verdict: Verdict | None) -> bool:
        """Search victims in the planner process and append the preemption; return False if there are none."""
        uid = tree.root.uid
        asked = self._preemption_request(tree, request)
        encoded = self.planner.encode(asked)
        started_ms = self._clock.monotonic_ms()
        try:
            answer = await self.planner.preempt(encoded, verdict)
        except BrokenProcessPool:
            log.exception("planner process died", extra={"root": tree.root.key.path})
            self._preemption_policy.answered(uid, None, CRASHED_MS)
            return False
        took_ms = self._clock.monotonic_ms() - started_ms
        METRICS.preemption_answered(answer, took_ms)
        if isinstance(answer, NoPreemption):
            self._preemption_policy.answered(uid, answer, took_ms)
            return False
        current, now = self._request(tree)
        view, state = self._cluster.view(), self._leader.pending_state
        if current is None or now is None:
            return True
        if not self._preemption_policy.may_search(view, state, current, complete=True):
            return True
        if not preemption_still_holds(asked, answer, self._preemption_request(current, now)):
            self._wakeup.wake()  # the cluster has changed: the next pass searches again
            return True
        units = [unit.name for unit in answer.victims]
        held = unbound_reservations(view, state, self.forest, units)
        if not self._barriers.binding().isdisjoint(r.uid for r in held):
            self._wakeup.wake()  # a member of a victim is being bound: the next pass evicts it with its unit
            return True
        context = self._event_context(encoded.digest, f"cluster revision {view.revision}")
        known = self.evictor.eviction_context(context.actor, context.cause, view)
        *first, planned = decide_preemption(
            view, state, self.forest, current, asked, answer, context
        )
        drafts = [*first, *takeovers_by_plan(view, state, planned, known), planned]
        self._preemption_policy.answered(uid, None, took_ms)
        self._preemption_policy.allow_retry(drafts)
        self._recording.append_nowait(drafts, encoded)
        await self._recording.flush()
        self._wakeup.wake()  # the next pass starts the deletions, or admits if there are none
        return True

    def _preemption_request(self, tree: Tree, request: PlanRequest) -> PlanRequest:
        view, state = self._cluster.view(), self._leader.pending_state
        return self._questions.with_evictable(
            view,
            state,
            self.forest,
            tree,
            request,
            hints=self._rejection_evidence.hints(view),
            moment=EvictableContext(
                releasing=self._barriers.started(), now_us=self._clock.now_us()
            ),
        )

    def _request(self, tree: Tree) -> tuple[Tree | None, PlanRequest | None]:
        """Return a tree and its plan request as they are now, or None twice if there is nothing to plan."""
        view, state = self._refresh()
        current = self.forest.trees.get(tree.root.key)
        if current is None or current.problems or current.root.uid != tree.root.uid:
            return None, None
        hints, now_ms = self._rejection_evidence.hints(view), self._clock.now_us() // 1000
        request = self._questions.about(view, state, current, hints, now_ms)
        return (current, request) if request is not None else (None, None)


def rest_ms(took_ms: int, rested_ms: int) -> int:
    """Return how long to wait after a change before the next pass, in milliseconds.

    Args:
        took_ms: How long the last pass took, without its waits for the log.
        rested_ms: From the end of that pass to the change.
    """
    return max(SETTLE_MS, min(took_ms * REST_PER_PASS, REST_MS_MAX) - rested_ms)
