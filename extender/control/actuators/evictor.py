"""Execute preemptions from the log: mark victims with DisruptionTarget, then delete them, a bounded number at a time.

The plan is durable before the first request. The control loop records the results (`preemption_lifecycle`) from what
`Evictor.eviction_context` returns.

Nothing here must survive a restart. Victims that do not terminate are then deleted again, by UID, which changes nothing
for those whose deletion was requested before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.control.log.leader import Leader
from extender.core.log.events import GoneVia
from extender.core.log.reservation_state import PendingPreemption, ReservationState, Victim
from extender.core.model.cluster_view import ClusterView, groups_above
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GangUid, PlanId, PodUid
from extender.core.model.message_formatting import gpu_time_text
from extender.core.model.pod_groups import Group
from extender.core.model.visibility import Visibility, is_hidden, namespace_of, readers_of
from extender.core.preempt.disruption_units import lost_work_min
from extender.core.preempt.preemption_lifecycle import (
    EVICTION_BY_REASON,
    EvictionContext,
    EvictionRequest,
    is_to_be_evicted,
    stuck_victims,
    stuck_victims_text,
    victims_to_evict,
)
from extender.ports.cluster_ports import Cluster, Condition, K8sEvent, PodRef
from extender.ports.log_ports import Clock
from extender.ports.written_names import DISRUPTION_TARGET, PREEMPTED
from extender.runtime.periodic import ObjectFaults
from extender.runtime.stall_timer import IdleTimes
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

WORKERS: Final = 8  # parallel deletions: a third of the connections that an account may use (K61)
# A deletion that was refused, by a PodDisruptionBudget or an admission webhook, does not delay other deletions.
RETRIES: Final = RetryPolicy(first_s=2.0, max_s=30.0, after_failure="continue")
VIA: Final[Mapping[Literal["delete", "eviction-api"], GoneVia]] = {
    "delete": "deleted",
    "eviction-api": "evicted",
}


_EvictionJob: TypeAlias = tuple[PendingPreemption, Victim]  # as planned: a victim to delete


class Evictor:
    """Deletes victims; only `MoveController` evicts other pods."""

    def __init__(self, cluster: Cluster, leader: Leader, clock: Clock, settings: Settings) -> None:
        self._cluster = cluster
        self._leader = leader
        self._clock = clock
        self._settings = settings
        self._queue = WorkQueue(
            "evictions",
            self._process,
            leader.until_may_act,
            workers=WORKERS,
            policy=RETRIES,
            now_s=lambda: clock.monotonic_ms() / 1000,
        )
        self._queue.name_of = lambda uid: self._jobs[uid][1].pod if uid in self._jobs else uid
        self.run = self._queue.run
        self._faults: ObjectFaults[str] = ObjectFaults("evictions", clock.monotonic_ms)
        self._jobs: dict[PodUid, _EvictionJob] = {}  # deletions that were due in the last pass
        self._requested: dict[PodUid, EvictionRequest] = {}
        self._idle: IdleTimes[PlanId] = IdleTimes(clock)  # of pending preemptions
        self._observed: set[PodUid] = set()
        # pods on the claimed nodes when it was first seen
        self._present: dict[PlanId, frozenset[PodUid]] = {}
        self._refusals: dict[PodUid, str] = {}  # errors of the last requests
        self._marked: set[tuple[PlanId, str]] = set()  # groups with DisruptionTarget, by UID
        self.stall_reasons: dict[GangUid, str] = {}  # by root: why its victims are not deleted

    # -- for the control loop --------------------------------------------------------------------

    def eviction_context(
        self, actor: str, cause: str, view: ClusterView, state: ReservationState
    ) -> EvictionContext:
        """Return what the evictor has observed and requested, beside what the view shows, after an update from the view."""
        self._observe(view, state)
        self._idle.begin_round(self._leader.terms)
        pending = state.preemptions.values()
        return EvictionContext(
            actor=actor,
            cause=cause,
            epoch=self._leader.epoch,
            now_us=self._clock.now_us(),
            requested=self._requested,
            observed=frozenset(self._observed),
            present=self._present,
            idle_us={
                p.id: self._idle.idle_ms(p.id, p.progress_us, len(p.victims)) * 1000
                for p in pending
            },
            stalled_us=self._settings.reservation_ttl_s * 1_000_000,
        )

    def _observe(self, view: ClusterView, state: ReservationState) -> None:
        """Record which victims run, which terminate by this service, also from before a restart, and their neighbours."""
        for preemption in state.preemptions.values():
            if preemption.claims and preemption.id not in self._present:
                neighbours = (
                    uid for node in preemption.claims for uid in view.on_node.get(node, ())
                )
                self._present[preemption.id] = frozenset(neighbours)
            for uid in preemption.victims:
                pod = view.pods.get(uid)
                if pod is None or uid in self._requested:
                    continue
                if pod.deleting and pod.disruption_target in EVICTION_BY_REASON:
                    self._requested[uid] = EvictionRequest(
                        via=EVICTION_BY_REASON[pod.disruption_target], at_us=0
                    )
                else:
                    self._observed.add(uid)

    def sync(self, view: ClusterView, state: ReservationState) -> None:
        """Queue the deletions that are due by the committed state, and forget ended preemptions."""
        self._forget(state)
        context = self.eviction_context("", "", view, state)
        self._jobs = {}
        # as planned: the map's order differs in each process
        for preemption in sorted(state.preemptions.values(), key=lambda p: p.position):
            if self._faults.waits(preemption.gang):
                continue
            with self._faults.alone(preemption.gang):
                for victim in victims_to_evict(view, preemption, context):
                    self._jobs.setdefault(victim.uid, (preemption, victim))
        for uid in self._jobs:
            # What is being requested may not be in the view yet.
            if not self._queue.is_processing(uid):
                self._queue.add(uid)
        self._report(view, state)

    def _forget(self, state: ReservationState) -> None:
        victims = {uid for p in state.preemptions.values() for uid in p.victims}
        ids = {p.id for p in state.preemptions.values()}
        self._requested = {
            uid: request for uid, request in self._requested.items() if uid in victims
        }
        self._refusals = {uid: reason for uid, reason in self._refusals.items() if uid in victims}
        self._queue.retain_only(victims)
        self._observed &= victims
        self._idle.retain(ids)
        self._present = {id_: pods for id_, pods in self._present.items() if id_ in ids}
        self._marked = {key for key in self._marked if key[0] in ids}

    def _report(self, view: ClusterView, state: ReservationState) -> None:
        before, self.stall_reasons, stuck = self.stall_reasons, {}, 0
        for preemption in state.preemptions.values():
            name = f"report of {preemption.gang}"
            if not self._faults.waits(name):
                with self._faults.alone(name):
                    stuck += self._report_stuck(view, preemption, before)
        METRICS.preemption_victims_stuck.set(stuck)
        METRICS.preemptions_pending.set(len(state.preemptions))

    def _report_stuck(
        self, view: ClusterView, preemption: PendingPreemption, before: Mapping[GangUid, str]
    ) -> int:
        """Note why victims of a preemption are not deleted; return how many. `before`: the reasons of the last report."""
        uid = preemption.gang_uid
        victims = stuck_victims(view, preemption, self._refusals, self._clock.now_us())
        if victims:
            readers = self._readers_of(preemption.gang)
            text = self.stall_reasons[uid] = stuck_victims_text(victims, preemption, readers)
            if before.get(uid) != text:
                words = stuck_victims_text(victims, preemption)
                log.warning("victims are not deleted", extra={"preemptor": uid, "reason": words})
        return len(victims)

    # -- the work ----------------------------------------------------------------------------------

    async def _process(self, uid: PodUid) -> Retry | None:
        job = self._jobs.get(uid)
        if job is not None:
            try:
                await self._evict(job)
            except (RequestRejected, ClusterUnavailable) as error:
                self._refusals[uid] = str(error)
                log.info("victim not deleted", extra={"pod": job[1].pod, "error": str(error)})
                return Retry(error.retry_after_s if isinstance(error, ClusterUnavailable) else 0.0)
        self._refusals.pop(uid, None)
        return None

    async def _evict(self, job: _EvictionJob) -> None:
        _, victim = job
        pod = PodRef.at(victim.pod, victim.uid)
        preemption = await self._wait_and_recheck(job)
        if preemption is None:
            return
        readers = self._readers_of(victim.pod)
        text = _message(preemption, victim, readers)
        await self._mark_groups(job, text)
        text += self._lost(victim)
        if await self._wait_and_recheck(job) is None:
            return
        await self._cluster.mark_disrupted(pod, text)
        if await self._wait_and_recheck(job) is None:
            return
        # The unit counts as started before the request, because the answer may get lost, and because the informer may
        # see the pod gone before the answer arrives.
        via = VIA[self._settings.eviction_method]
        self._requested[victim.uid] = EvictionRequest(via=via, at_us=self._clock.now_us())
        try:
            await self._cluster.evict(pod, via)
        except (RequestRejected, ClusterUnavailable) as error:
            if isinstance(error, RequestRejected) or error.refused:
                self._requested.pop(victim.uid, None)
            raise
        by_namespace, _, by_name = preemption.gang.partition("/")
        related = (preemption.kind, by_namespace, by_name, preemption.gang_uid)
        shown = related if readers.sees(by_namespace) else None
        await self._cluster.notice(
            K8sEvent.about(pod, text, reason="Preempted", action="Preempting", related=shown)
        )

    def _lost(self, victim: Victim) -> str:
        """Return what the eviction of a pod loses, as the end of a text; empty: it uses no GPU, or does not run."""
        pod = self._cluster.view().pods.get(victim.uid)
        lost_min = lost_work_min(pod, self._clock.now_us()) if pod is not None else 0
        return f"; lost: {gpu_time_text(lost_min)}" if lost_min else ""

    def _readers_of(self, path: str) -> Visibility:
        """Return what the readers of an object, by `namespace/name`, see of other namespaces."""
        return readers_of(
            namespace_of(path), show_names=self._settings.show_names_across_namespaces
        )

    async def _wait_and_recheck(self, job: _EvictionJob) -> PendingPreemption | None:
        """Wait until this process may act; return the preemption if the deletion is still due, or None."""
        await self._leader.until_may_act()
        # also in the pending state: the append of the end of a preemption stops the next unit before it is durable
        durable = self._still_due(self._leader.committed, job)
        return durable if durable and self._still_due(self._leader.pending_state, job) else None

    def _still_due(self, state: ReservationState, job: _EvictionJob) -> PendingPreemption | None:
        planned, victim = job
        preemption = state.preemptions.get(planned.gang_uid)
        if preemption is None or preemption.id != planned.id:
            return None
        if self._cluster.not_ready_reason():
            return None  # a pass on a current view queues it again
        context = EvictionContext(
            actor="", cause="", epoch=self._leader.epoch, now_us=0, requested=self._requested
        )
        is_due = is_to_be_evicted(self._cluster.view(), preemption, victim.uid, context)
        return preemption if is_due else None

    async def _mark_groups(self, job: _EvictionJob, text: str) -> None:
        """Write DisruptionTarget on the groups of a unit, from the leaf of this victim up to the unit."""
        planned, victim = job
        for group in _groups_of(self._cluster.view(), victim):
            if (planned.id, group.uid) in self._marked:
                continue
            self._marked.add((planned.id, group.uid))
            condition = Condition(
                type=DISRUPTION_TARGET, status="True", reason=PREEMPTED, message=text
            )
            try:
                await self._cluster.set_conditions(group.key, group.uid, [condition])
            except RequestRejected as error:  # deleted or recreated
                log.info("group not marked", extra={"group": str(group.key), "error": str(error)})
            except ClusterUnavailable:
                self._marked.discard((planned.id, group.uid))
                raise


def _groups_of(view: ClusterView, victim: Victim) -> list[Group]:
    """Return the groups of a unit above one of its pods, leaf first; none if the pod is the unit."""
    pod = view.pods.get(victim.uid)
    above = groups_above(view, pod.group) if pod is not None else []
    names = [str(group.key) for group in above]
    # a tree that has changed since the plan may lack the unit: then no group of it is marked
    return above[: names.index(victim.unit) + 1] if victim.unit in names else []


def _message(preemption: PendingPreemption, victim: Victim, readers: Visibility) -> str:
    if preemption.gives_up:
        return f"{preemption.kind} {preemption.gang} is evicted to be placed anew: no node of its domain can take its lost members"
    unit = preemption.units.index(victim.unit)
    by = preemption.preemptor_for(readers)
    if not is_hidden(by):
        by = f"{preemption.kind} {preemption.gang} (priority {preemption.priority})"
    return f"{by} needs the capacity of {victim.unit} (priority {preemption.priorities[unit]})"
