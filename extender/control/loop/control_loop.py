"""The control loop: observe, reconcile, plan pending trees, append, actuate. No call of kube-scheduler waits for it.

One pass at a time. Pending trees are tried in order of priority, then age. A refused tree is planned again only
after some node has gained capacity. A plan is folded into the pending state at once, and its append is in flight
while the next tree is planned. A long search runs in the planner process; before its answer is appended, the
request is built again and compared. Each pass ends with one published result, which the verbs read. Searches go on
between passes and while they run.

A change wakes the loop within milliseconds, but for those that no member waits for: what the watches report of our own
writes, and members of groups that need more of them. They are handled together, `EXPECTED_CHANGES_MS` after the first, or
later where a pass takes long. What a pass appended itself is reconciled with the next change, a second later at the latest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import NamedTuple

from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.control.admission.pending_trees import PendingTrees
from extender.control.loop.deferrable_changes import ChildGroups, are_expected
from extender.control.loop.reconciler import Reconciler
from extender.control.published.pass_result import Observation
from extender.core.admit.native_gang_scheduling import gates_to_remove
from extender.core.admit.plan_request import is_refused, refused_members
from extender.core.fairness.search_turns import SearchTurn
from extender.core.holds.hold_planning import hold_progress_text
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import ClusterUnavailable, NotLeading, StoreUnavailable
from extender.core.model.pod_groups import Forest
from extender.core.model.pods import Pod
from extender.runtime.cooperative_yield import SlicePace
from extender.runtime.periodic import ObjectFaults
from extender.runtime.wakeup import first_of
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

# Changes come in bursts, and one pass handles several. The first one after a quiet time is handled at once: it may be the
# last member of a small tree.
SETTLE_MS = 2
QUIET_MS = 20
# After a pass the loop rests this many times as long as the pass computed, ...
REST_PER_PASS = 4
REST_MS_MAX = 200  # ... but not longer: filter and bind use the time between passes
# So much of the rest is due later: a few short passes follow one another at once, as when the members of a gang come.
REST_LATER_MS = 40
# Loading the solver takes a second of CPU time; a service that starts has other work.
SOLVER_AFTER_MS = 10_000
# So long after the first of them, changes are handled after which nothing can be admitted; see `deferrable_changes`. What a
# small tree has done is handled before the next tree comes, which would wait for it. A pass over a large gang takes
# longer, so it waits for more changes: so many times as long as the last pass.
EXPECTED_CHANGES_MS = 100
EXPECTED_PER_PASS = 75
EXPECTED_CHANGES_MS_MAX = 1_000
# After a long pass an unexpected change may wait so long: members of a large gang change hundreds of times a second
LOOK_EVERY_MS = 20
LONG_PASS_MS = 16
# A pass or a step that a defect ended is tried again after a pause of at most this length: all gangs wait for it, ...
PASS_AGAIN_MS_MAX = 5_000
# ... and after so many failures in a row the readiness checks name it
FAILURES_SHOWN = 3
TICK_S = 1.0  # reservations and node rejections end by time, without a change of the cluster


class _Revisions(NamedTuple):
    """What a pass depends on, as it was at one moment."""

    view: ClusterView
    state: int  # revision of the committed state and of the role
    wakeups: int


class ControlLoop:
    """Admits trees, preempts for them and reconciles the log with the cluster."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._published = parts.exchange.published
        self._wakeup = parts.barriers.wakeup
        # passes and their steps: with what is computed for all gangs together
        self._faults: ObjectFaults[str] = ObjectFaults(
            "control loop",
            parts.clock.monotonic_ms,
            last_ms=PASS_AGAIN_MS_MAX,
            raised=ClusterUnavailable,  # a view that cannot catch up: the pass is given up
        )
        self._note_faults: ObjectFaults[str] = ObjectFaults(
            "status reports", parts.clock.monotonic_ms
        )
        self._reconciler = Reconciler(parts)
        self._pending_trees = PendingTrees(parts)
        self._children = ChildGroups()
        self._terms = -1  # of the leadership in which the view has caught up
        self._warm = False  # whether the planner process has its solver
        self._made_ms = parts.clock.monotonic_ms()

    async def run(self) -> None:
        """Run a pass on each change of cluster or state, and at least every `TICK_S`; until cancelled."""
        try:
            await self._run_passes()
        finally:
            self._pending_trees.explanations.stop()
            self._pending_trees.searches.stop()

    async def _run_passes(self) -> None:
        rests = PassRests()
        while True:
            before, begun_us, took_ms = self._seen(), self._parts.clock.thread_cpu_us(), 0
            after = before
            may_record, is_done = False, False
            try:
                with self._faults.alone("pass"):
                    may_record = (
                        not self._parts.cluster.not_ready_reason()
                        and self._parts.leader.may_record()
                    )
                    if may_record:
                        await self.run_pass()
                        took_us = self._parts.clock.thread_cpu_us() - begun_us
                        took_ms = (took_us - self._parts.appends.cpu_us_while_waiting) // 1000
                        # each append wakes once; what others appended or woke meanwhile is beyond that
                        after = before._replace(state=before.state + self._parts.appends.committed)
                    is_done = True
                self._report_failures(may_record=may_record)
                if not is_done:
                    # what is committed is carried out, with the view and the trees that were observed last
                    if self._published.result.reconciled(self._parts.leader.terms):
                        self._actuate(self._published.observation)
                        self._published.release(self._parts.nominator.released)
                    await asyncio.sleep(self._faults.pause_s("pass"))
                elif may_record and not self._faults.waits("searches"):
                    with self._faults.alone("searches"):
                        await self.search(before)
                self._faults.attempt("solver", self._warm_up)
            except (NotLeading, StoreUnavailable, ClusterUnavailable) as error:
                log.warning("pass given up", extra={"error": str(error)})
                await asyncio.sleep(0.2)
            ended_ms = self._parts.clock.monotonic_ms()
            await self._next_change(before, after, took_ms)
            rested_ms = self._parts.clock.monotonic_ms() - ended_ms
            await asyncio.sleep(rests.after_pass(took_ms, rested_ms) / 1000)

    async def run_pass(self) -> None:
        """Reconcile, admit, actuate and publish the result, once."""
        async with self._pending_trees.searches.turn:
            await self._run_pass()

    async def search(self, before: _Revisions | None = None, *, within_s: float = TICK_S) -> None:
        """Run long searches until something changes after the revisions `before`, or none is left.

        Args:
            before: Of cluster, state and wake-ups; None: changes do not end it.
        """
        searches = self._pending_trees.searches
        changes = self._changes_after(before) if before is not None else ()
        await searches.go_on(
            changes, lambda: self._actuate(self._parts.observer.observe()), within_s
        )
        async with searches.turn:
            now = await self._pending_trees.admit_postponed()
            if now is not None:
                self._actuate(now)

    async def _run_pass(self) -> None:
        terms, pace = self._parts.leader.terms, SlicePace(self._parts.clock)
        self._parts.appends.begin()
        await self._catch_up(terms)
        await self._parts.observer.approach(pace)
        await pace.yield_if_due()  # calls of kube-scheduler come first between the steps
        begun = self._parts.observer.observe()  # the view and the trees of all steps
        await self._reconciler.reconcile(begun)
        await pace.yield_if_due()
        await self._step("rejected nodes", self._reconciler.record_rejections, begun)
        await pace.yield_if_due()
        # admit again after lost events: bound members are in the log again, reservations are not
        if self._parts.leader.recovery_reason:
            self._parts.barriers.sync(self._parts.leader.committed)
            self._parts.leader.end_recovery(terms)
        await self._step("admission", self._pending_trees.admit, begun)
        await self._step("capacity holds", self._pending_trees.hold_capacity, begun)
        await self._step("explanations", self._pending_trees.record_explanations, begun)
        await pace.yield_if_due()
        self._actuate(begun)
        self._published.end_pass(terms, self._parts.nominator.released)

    async def _step(
        self, name: str, work: Callable[[Moment], Awaitable[object]], begun: Moment
    ) -> None:
        """Do one step of a pass with the state as the steps before left it; a defect in it does not keep the others.

        Raises:
            NotLeading: The pass began in another term, whose state and cluster it has compared.
        """
        if self._parts.leader.terms != self._terms:
            raise NotLeading("the lease was lost during the pass, and acquired again")
        if not self._faults.waits(name):
            with self._faults.alone(name):
                await work(self._parts.observer.after_appends(begun))

    async def _catch_up(self, terms: int) -> None:
        """Wait until the view is as new as what the leader before has decided on, once in each term."""
        if terms == self._terms:
            return
        begun_ms = self._parts.clock.monotonic_ms()
        await self._parts.cluster.catch_up()
        self._terms = terms
        took_ms = self._parts.clock.monotonic_ms() - begun_ms
        log.info("the view has caught up with the cluster", extra={"took_ms": took_ms})

    def _report_failures(self, *, may_record: bool) -> None:
        """Publish which step fails again and again, for the readiness checks and the metric; none while no pass is due."""
        failing = self._faults.failing() if may_record else []
        METRICS.control_loop_failures_in_a_row.set(
            max((count for _, count, _ in failing), default=0)
        )
        self._published.failures = "; ".join(
            f"{step} has failed {count} times in a row ({error})"
            for step, count, error in failing
            if count >= FAILURES_SHOWN
        )

    def _actuate(self, now: Moment | Observation) -> None:
        """Queue the writes that follow from the committed state; a defect of one actuator does not keep the others."""
        view, forest, state = now.view, now.forest, self._parts.leader.committed
        attempt = self._faults.attempt
        # first: the nominator asks which members are at bind
        attempt("bind barriers", lambda: self._parts.barriers.sync(state))
        # before nominations
        attempt(
            "node rejections", lambda: self._parts.exchange.rejections.note_messages(view, state)
        )
        attempt("nominations", lambda: self._parts.nominator.sync(view, state))
        attempt("gate removal", lambda: self._parts.gate_remover.sync(self._gated(state, forest)))
        attempt("wake-ups", lambda: self._wake_refused_pods(view, state))
        attempt("evictions", lambda: self._parts.evictor.sync(view, state))
        attempt("moves", lambda: self._parts.mover.sync(view, forest, state))
        attempt("status reports", lambda: self._report(view, state, forest))

    def _wake_refused_pods(self, view: ClusterView, state: ReservationState) -> None:
        """Wake pods for which filter, which counts losses that are not recorded yet, would have a node now."""
        losses = self._parts.exchange.committed_losses
        self._parts.pod_waker.sync(view, losses.with_predicted_losses(view, state))

    def _gated(self, state: ReservationState, forest: Forest) -> Iterable[Pod]:
        """Return the members without a reservation whose gate is to be removed."""
        gated: Iterable[Pod] = gates_to_remove(state, forest)
        if self._parts.settings.unschedulable_gates == "remove":
            gated = chain(gated, refused_members(state, forest))
        return gated

    def _report(self, view: ClusterView, state: ReservationState, forest: Forest) -> None:
        # A refused tree is searched again with each change of the cluster; its condition would be written twice each time.
        notes = {
            uid: turn.kind_sentence()
            for uid, turn in self._published.turns.items()
            if not (isinstance(turn, SearchTurn) and is_refused(state.gangs.get(uid)))
        }
        for uid, refusal in self._published.unheld.items():
            notes.setdefault(uid, refusal.reason)
        for hold in state.capacity_holds.values():
            name = f"capacity hold of {hold.gang_uid}"
            if not self._note_faults.waits(name):
                with self._note_faults.alone(name):
                    notes[hold.gang_uid] = hold_progress_text(view, state, hold)
        self._parts.reporter.sync(view, state, forest, notes | self._parts.evictor.stall_reasons)

    def _warm_up(self) -> None:
        """Load the solver after the first pass, or on a follower once the log is loaded; not while the service starts."""
        if self._parts.clock.monotonic_ms() - self._made_ms < SOLVER_AFTER_MS:
            return
        follower = self._parts.leader.follower
        follows = self._parts.leader.role == "following" and follower.loaded.is_set()
        if not self._warm and (self._published.result.number or follows):
            self._warm = True
            self._parts.planner.warm()

    def _seen(self) -> _Revisions:
        """Return what a pass depends on; read before the pass, so that no change is missed."""
        return _Revisions(
            self._parts.cluster.view(), self._parts.leader.wakeup.revision, self._wakeup.revision
        )

    def _changes_after(self, before: _Revisions) -> tuple[Callable[[], Awaitable[object]], ...]:
        """Return functions whose waits end with a change after the revisions `before`."""
        return (
            lambda: self._parts.cluster.changed(before.view.revision),
            lambda: self._parts.leader.wakeup.wait(before.state),
            lambda: self._wakeup.wait(before.wakeups),
        )

    async def _next_change(self, before: _Revisions, after: _Revisions, took_ms: int) -> None:
        """Wait for a change, at most `TICK_S`; then for further ones while no member waits for what has changed.

        Args:
            before: Before the last pass.
            after: The same, with the state as the pass left it: what it appended itself needs another pass only where a
                preemption or a hold ends after what was recorded.
        """
        more_ms = max(EXPECTED_CHANGES_MS, took_ms * EXPECTED_PER_PASS)
        more_ms = min(more_ms, EXPECTED_CHANGES_MS_MAX)
        look_every_ms = LOOK_EVERY_MS if took_ms > LONG_PASS_MS else 0
        state = self._parts.leader.committed
        if not (state.preemptions or state.capacity_holds):
            before = before._replace(state=after.state)
        await first_of(*(change() for change in self._changes_after(before)), timeout_s=TICK_S)
        now = self._seen()
        if (now.state, now.wakeups) == (after.state, after.wakeups) and self._can_wait(
            before.view, now.view
        ):
            await first_of(
                self._unexpected_change(now.view, look_every_ms),
                self._parts.leader.wakeup.wait(after.state),
                self._wakeup.wait(after.wakeups),
                timeout_s=more_ms / 1000,
            )

    async def _unexpected_change(self, view: ClusterView, look_every_ms: int) -> None:
        """Wait for a change of the cluster after which a pass is needed at once; look at several changes together."""
        while True:
            await self._parts.cluster.changed(view.revision)
            if look_every_ms:
                await asyncio.sleep(look_every_ms / 1000)
            before, view = view, self._parts.cluster.view()
            if not self._can_wait(before, view):
                return

    def _can_wait(self, before: ClusterView, view: ClusterView) -> bool:
        """Return whether nothing can be admitted after what changed between two views, and nothing is to be written."""
        if self._parts.nominator.has_later_stages:
            return False
        state, answers = self._parts.leader.committed, list[bool]()
        self._faults.attempt(
            "expected changes",
            lambda: answers.append(are_expected(before, view, state, self._children)),
        )
        return answers == [True]


class PassRests:
    """How long the loop rests between passes; the same share of time over many passes, whatever their lengths."""

    def __init__(self) -> None:
        self._due_ms = 0  # rest that is due, part of it later

    def after_pass(self, took_ms: int, rested_ms: int) -> int:
        """Return how long to wait after a change before the next pass, in milliseconds.

        Args:
            took_ms: CPU time of the last pass, without its waits for the log: on a busy machine it takes longer than that,
                and the time that other programs had is no reason to rest.
            rested_ms: From the end of that pass to the change.
        """
        due_ms = min(self._due_ms + took_ms * REST_PER_PASS, REST_MS_MAX + REST_LATER_MS)
        due_ms = max(0, due_ms - rested_ms)
        settle_ms = SETTLE_MS if rested_ms < QUIET_MS else 0
        wait_ms = max(settle_ms, due_ms - REST_LATER_MS)
        self._due_ms = max(0, due_ms - wait_ms)
        return wait_ms
