"""Reconcile: compare the cluster with the log, and append the differences as events, before anything is planned.

Warns the operator of reserved capacity that other pods took, and of trees that are released and admitted again without a change.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from extender.control.actuators.status_reporter import StatusReporter
from extender.control.admission.cluster_observer import Moment
from extender.control.admission.loop_parts import LoopParts
from extender.core.admit.node_rejections import decide_rejections
from extender.core.admit.readmission_backoff import ROUNDS_FREE, ReadmissionLoop
from extender.core.capacity.capacity_claims import expired_holds
from extender.core.holds.hold_planning import decide_hold_ends
from extender.core.log import events as ev
from extender.core.log.each_gang import EachGang
from extender.core.log.reservation_state import (
    GangState,
    Reservation,
    ReservationState,
    claims_of_kind,
    reservation_of,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NIL_GANG, GangUid, PlanId, PodUid
from extender.core.model.pod_groups import Forest
from extender.core.preempt.preemption_lifecycle import decide_evictions, takeovers_by_pods
from extender.core.reconcile.cluster_reconciliation import losses_without_cause
from extender.core.reconcile.drift import NominationDrift, ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from extender.runtime.periodic import ObjectFaults
from extender.runtime.stall_timer import IdleTimes
from extender.telemetry import METRICS

REASON = "ReadmissionLoopBackOff"


def report_loops(
    loops: Iterable[ReadmissionLoop], forest: Forest, reporter: StatusReporter, *, show_names: bool
) -> None:
    """Report loops: an ERROR log line and a Kubernetes Event on the root each time, and one count per loop."""
    reported = tuple(loops)
    roots = {tree.root.uid: tree.root for tree in forest.trees.values()} if reported else {}
    for loop in reported:
        advice = f"Report the output of `gang-extender history {loop.gang} --decisions`"
        if loop.rounds == ROUNDS_FREE + 1:
            METRICS.readmission_loops.inc()
        log.error(
            "a tree is released and admitted again although nothing changed",
            extra={
                "gang": loop.gang,
                "rounds": loop.rounds,
                "pause_ms": loop.pause_ms,
                "reason": loop.reason,
                "detail": loop.message,
                "advice": advice,
            },
        )
        if (root := roots.get(loop.gang_uid)) is not None:
            text = loop.message if show_names else loop.message_reduced or loop.message
            # what may be truncated is last
            message = (
                f"Back-off {loop.pause_ms // 1000} s: reservations were released {loop.rounds} times in a row although "
                "neither the pods and groups nor their nodes had changed. This is a defect of gang-extender. A change of "
                f"the pods, the groups or a node ends the back-off. {advice}. Last release ({loop.reason}): {text}"
            )
            reporter.warn(root, REASON, message)


log = logging.getLogger(__name__)

ADVICE: Final[dict[ev.CapacityUseReason, str]] = {
    "unaware": "its scheduler does not see reservations: taint the nodes of gangs against it, or give it a "
    "scope in which this extender is called (deploy/README.md, Other schedulers)",
    "higher-priority": "as it may; give gangs a priority above it to keep it out",
    "pinned": "as DaemonSets may; leave capacity for them, or give gangs a higher priority",
}


def warn_overcommit(drafts: Iterable[ev.NewEvent]) -> None:
    """Log and count each pod that took reserved capacity, by events that have been appended."""
    for draft in drafts:
        if not isinstance(draft.data, ev.ReservationReleased):
            continue
        for taking_pod in draft.data.taken_by:
            METRICS.reserved_capacity_used_by_others.labels(taking_pod.via).inc()
            log.warning(
                "reserved capacity was used",
                extra={
                    "gang": draft.gang,
                    "node": taking_pod.node,
                    "pod": taking_pod.pod,
                    "scheduler": taking_pod.scheduler,
                    "priority": taking_pod.priority,
                    "via": taking_pod.via,
                    "advice": ADVICE[taking_pod.via],
                },
            )


class Reconciler:
    """Brings the log to the state of the cluster."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._reasons = parts.termination_reasons
        self._rejections = parts.exchange.rejections
        self._idle: IdleTimes[GangUid] = IdleTimes(parts.clock)  # of unused reservations
        # by root: its reservations, the time of the newest, and their plans
        self._plans: dict[GangUid, tuple[Mapping[PodUid, Reservation], int, frozenset[PlanId]]] = {}
        self._comparison, self._terms = Reconciliation(), -1
        self._unwatched: Mapping[PodUid, Reservation] = {}  # see `ReconcileContext`
        self._nominations = NominationDrift()
        # a gang whose comparison raised an exception is compared again after a pause; the others are recorded meanwhile
        self._faults: ObjectFaults[str] = ObjectFaults("reconciliation", parts.clock.monotonic_ms)

    async def reconcile(self, moment: Moment) -> None:
        """Append what differs between cluster and log: bound, lost, released, evicted."""
        view, forest, state = moment.view, moment.forest, moment.pending
        self._reasons.retain(state)
        self._begin_term(view, state)
        gangs = EachGang(self._faults.attempt)
        now = msgspec.structs.replace(self._context(view, state), gangs=gangs)
        eviction_context = msgspec.structs.replace(
            self._parts.evictor.eviction_context(now.actor, now.cause, view, state), gangs=gangs
        )
        # before the comparison, which completes trees
        drafts = decide_hold_ends(
            view, state, forest, now, enabled=bool(self._parts.settings.hold_capacity_after_s)
        )
        drafts += decide_evictions(view, state, forest, eviction_context)
        drafts += self._differences(moment, now)
        decide = functools.partial(self._parts.mover.decide, view, forest, state, now.cause)
        drafts += gangs.decide(NIL_GANG, "moves", decide)
        drafts += takeovers_by_pods(view, state, drafts, eviction_context)
        self._parts.preemption_policy.allow_retry(drafts)
        await self._parts.appends.append([*drafts, *self._nominations.look(view, state, now)])
        warn_overcommit(drafts)
        self._back_off_released(moment, state, drafts)
        self._parts.exchange.published.mark_compared(view)

    async def record_rejections(self, moment: Moment) -> None:
        """Record node rejections whose evidence has lasted."""
        view, state = moment.view, moment.state
        placed, now_ms = functools.partial(self._placed, view), self._parts.clock.now_us() // 1000
        self._rejections.listen(view, state, placed, now_ms)
        refused = self._rejections.confirmed(view, state, now_ms)
        drafts = decide_rejections(
            view,
            state,
            [r for r in refused if not placed(r.uid)],
            self._parts.barriers.started(),
            actor=self._parts.settings.identity,
            now_ms=now_ms,
        )
        await self._parts.appends.append(drafts)
        self._back_off_released(moment, state, drafts)

    def _context(self, view: ClusterView, state: ReservationState) -> ReconcileContext:
        now = self._parts.pending_losses.context(f"cluster revision {view.revision}")
        return msgspec.structs.replace(
            now,
            started=self._parts.barriers.started(),
            binding=self._parts.barriers.binding(),
            maybe_bound=self._parts.barriers.maybe_bound(),
            posted=self._parts.barriers.posted(),
            unwatched=frozenset(self._unwatched),
            expired=self._expired(state),
            over=expired_holds(state, now.now_us),
        )

    def _begin_term(self, view: ClusterView, state: ReservationState) -> None:
        """When the state was loaded anew: compare everything, and note the members that no leader has watched since."""
        if self._terms == self._parts.leader.terms and not self._parts.leader.recovery_reason:
            return
        self._comparison, self._terms = Reconciliation(), self._parts.leader.terms
        self._unwatched = {
            reservation.uid: reservation
            for reservation in claims_of_kind(state, "reservation")
            if reservation.uid not in view.pods
        }

    def _differences(self, moment: Moment, now: ReconcileContext) -> list[ev.NewEvent]:
        """Return the events for what differs, and start to look up how members ended that the view does not have."""
        view, forest, state = moment.view, moment.forest, moment.pending
        self._unwatched = {u: r for u, r in self._unwatched.items() if reservation_of(state, u)}
        drafts = self._comparison.decide(view, state, forest, now)
        vanished: list[ev.MemberTerminated | Reservation] = [
            *self._unwatched.values(),
            *losses_without_cause(view, drafts),
        ]
        if self._reasons.look_up(vanished):
            now = msgspec.structs.replace(now, awaited=self._reasons.awaited)
            drafts = self._comparison.decide(view, state, forest, now)
        return drafts

    def _expired(self, state: ReservationState) -> frozenset[GangUid]:
        """Return the roots whose reservations have not been used for their lifetime: no member arrived or was bound."""
        expired: set[GangUid] = set()
        waiting: set[GangUid] = set()
        if next(claims_of_kind(state, "reservation"), None) is None:
            return frozenset(expired)
        longest_ms = self._parts.settings.reservation_ttl_s * 1000
        self._idle.begin_round(self._parts.leader.terms)

        def look_at(root: GangState) -> None:
            pending = state.preemptions.get(root.uid)
            newest_us, plans = self._last_plans(root)
            progress_us = max(newest_us, self._parts.barriers.progress_us(root.uid))
            if pending is not None:
                progress_us = max(progress_us, pending.progress_us)
            idle_ms = self._idle.idle_ms(root.uid, progress_us, (plans, len(root.bound)))
            if pending is not None and pending.victims:
                return  # recorded victims still terminate
            if idle_ms > longest_ms:
                expired.add(root.uid)

        for root in state.gangs.values():
            if root.reservations:
                waiting.add(root.uid)
                name = f"lifetime of the reservations of {root.gang}"
                self._faults.attempt(name, functools.partial(look_at, root))
        self._idle.retain(waiting)
        self._plans = {uid: plans for uid, plans in self._plans.items() if uid in waiting}
        return frozenset(expired)

    def _last_plans(self, root: GangState) -> tuple[int, frozenset[PlanId]]:
        """Return the time of the newest reservation of a root, and the plans of all."""
        held = root.reservations
        last_plans = self._plans.get(root.uid)
        if last_plans is None or last_plans[0] is not held:
            newest_us = max(r.at_us for r in held.values())
            plans = frozenset(r.plan for r in held.values())
            last_plans = self._plans[root.uid] = (held, newest_us, plans)
        return last_plans[1:]

    def _placed(self, view: ClusterView, uid: PodUid) -> bool:
        """Return whether kube-scheduler has accepted the node of a member, even if it refused it before."""
        pod = view.pods.get(uid)
        prebinding = pod is not None and self._parts.barriers.prebinding.in_progress(pod)
        return prebinding or self._parts.barriers.at_bind(uid)

    def _back_off_released(
        self, moment: Moment, state: ReservationState, drafts: Sequence[ev.NewEvent]
    ) -> None:
        """Back off from trees that are released and admitted again without a change; `state` is that before `drafts`."""
        now_ms, forest = self._parts.clock.monotonic_ms(), moment.forest
        loops = self._parts.readmissions.released(moment.view, state, forest, drafts, now_ms)
        show_names = self._parts.settings.show_names_across_namespaces
        report_loops(loops, forest, self._parts.reporter, show_names=show_names)
        self._parts.readmissions.keep(state)
