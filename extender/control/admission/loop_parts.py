"""The objects that the steps of a pass work with; built once, and given to each step."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.control.actuators.evictor import Evictor
from extender.control.actuators.move_controller import MoveController
from extender.control.actuators.nominator import GateRemover, Nominator, PodWaker
from extender.control.actuators.status_reporter import StatusReporter
from extender.control.admission.cluster_observer import ClusterObserver
from extender.control.admission.planner_pool import PlannerPool
from extender.control.admission.preemption_policy import PreemptionPolicy
from extender.control.admission.request_builder import RequestBuilder
from extender.control.binding.bind_barrier import BindBarriers
from extender.control.log.leader import AppendBatch, Leader
from extender.control.published.pass_result import PublishedPass
from extender.control.published.shared_state import LoopExchange, LossPredictor, RefusedPod
from extender.control.published.termination_reasons import TerminationReasons
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.admit.readmission_backoff import Readmissions
from extender.core.admit.verdict_events import EventContext
from extender.core.model.ids import PlanId, PodUid
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import Clock, DecisionInputs
from extender.settings import Settings

# Between the first look at a new tree and the record that it waits for members: most are created one after the other.
MEMBER_ARRIVAL_MS: Final = 200


class LoopParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the control loop; the process starts and stops those with tasks or child processes."""

    cluster: Cluster
    leader: Leader
    clock: Clock
    settings: Settings
    exchange: LoopExchange
    observer: ClusterObserver
    pending_losses: LossPredictor  # for the pending state
    appends: AppendBatch
    barriers: BindBarriers
    # actuators
    nominator: Nominator
    evictor: Evictor
    mover: MoveController
    gate_remover: GateRemover
    pod_waker: PodWaker
    reporter: StatusReporter
    # planning
    planner: PlannerPool
    requests: RequestBuilder
    # what is remembered from pass to pass
    preemption_policy: PreemptionPolicy
    readmissions: Readmissions
    termination_reasons: TerminationReasons
    # A new tree whose members still come is recorded as waiting only after this time.
    arrival_ms: int = 0

    def event_context(self, digest: str, cause: str) -> EventContext:
        """Return the context of the events of a new plan; `digest`: of the decision input; empty: the decision has none."""
        return EventContext(
            plan=PlanId(self.clock.new_id()),
            digest=digest,
            actor=self.settings.identity,
            cause=cause,
            topology_keys=self.settings.topology_keys,
        )


def loop_parts(
    *,
    cluster: Cluster,
    leader: Leader,
    inputs: DecisionInputs,
    barriers: BindBarriers,
    reporter: StatusReporter,
    clock: Clock,
    settings: Settings,
) -> LoopParts:
    """Return the parts of one control loop; none of them has started anything yet."""
    published, reasons = PublishedPass(), TerminationReasons(cluster, barriers.wakeup.wake)
    evictor = Evictor(cluster, leader, clock, settings)
    held_back: set[PodUid] = set()
    refused_pods: dict[PodUid, RefusedPod] = {}
    rejections = RejectionEvidence()
    requests = RequestBuilder(settings, clock, rejections, barriers.started, barriers.maybe_bound)
    pending_losses = LossPredictor(published, reasons, clock, settings)
    return LoopParts(
        cluster=cluster,
        leader=leader,
        clock=clock,
        settings=settings,
        exchange=LoopExchange(
            published=published,
            committed_losses=LossPredictor(published, reasons, clock, settings),
            eviction_context=evictor.eviction_context,
            rejections=rejections,
            held_back=held_back,
            refused_pods=refused_pods,
        ),
        observer=ClusterObserver(cluster, leader, published, pending_losses),
        pending_losses=pending_losses,
        appends=AppendBatch(leader, inputs, clock),
        barriers=barriers,
        nominator=Nominator(
            cluster, leader, barriers.arrived, held_back, settings.nomination_delay_ms / 1000
        ),
        evictor=evictor,
        mover=MoveController(cluster, leader, inputs, clock, settings, published.forest_of),
        gate_remover=GateRemover(cluster, leader),
        pod_waker=PodWaker(cluster, leader, clock, refused_pods),
        reporter=reporter,
        planner=PlannerPool(),
        requests=requests,
        preemption_policy=PreemptionPolicy(clock, enabled=settings.preemption),
        readmissions=Readmissions(expires_ms=settings.reservation_ttl_s * 1000),
        termination_reasons=reasons,
    )
