"""What the control loop and the verbs share, so that neither imports the other: losses, members to retry, evictions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from immutables import Map

from extender.control.published.pass_result import PublishedPass
from extender.control.published.termination_reasons import TerminationReasons
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.log.capacity_claim import ClaimsOnNode
from extender.core.log.each_gang import EachGang
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NIL_GANG, NodeName, PodUid
from extender.core.preempt.preemption_lifecycle import EvictionContext
from extender.core.reconcile.cluster_reconciliation import PredictedLosses
from extender.core.reconcile.drift import ReconcileContext
from extender.ports.log_ports import Clock
from extender.runtime.periodic import ObjectFaults
from extender.settings import Settings


class LossPredictor:
    """Predicts what reconciliation will record about lost members; each instance caches the answer for one state."""

    def __init__(
        self,
        published: PublishedPass,
        answers: TerminationReasons,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._published = published
        self._answers = answers
        self._clock = clock
        self._settings = settings
        self._cache = PredictedLosses()
        # the loss of a gang that waits is not predicted: calls for other gangs are answered as usual
        self._faults: ObjectFaults[str] = ObjectFaults("reconciliation", clock.monotonic_ms)

    def context(self, cause: str = "") -> ReconcileContext:
        """Return what `Reconciliation` needs beside view and state to record lost members."""
        return ReconcileContext(
            actor=self._settings.identity,
            cause=cause,
            ends=self._answers.known,
            awaited=self._answers.awaited,
            now_us=self._clock.now_us(),
            replacement_hold_us=self._settings.replacement_ttl_s * 1_000_000,
        )

    def with_predicted_losses(self, view: ClusterView, state: ReservationState) -> ReservationState:
        """Return `state` with the replacement holds of members lost since the last pass (`PredictedLosses`).

        After a defect in what is common to all gangs it is `state` itself, in which the next pass records the losses.
        """
        observation = self._published.observation
        if not self._answers.awaited and view.members is observation.compared.members:
            return state  # in most steps: nothing was lost since the last pass
        gangs = EachGang(self._faults.attempt)
        now = msgspec.structs.replace(self.context(), gangs=gangs)

        def predict() -> ReservationState:
            return self._cache.of(view, state, observation.forest, observation.compared, now)

        return gangs.result(NIL_GANG, "predicted losses", predict) or state


class RefusedPod(msgspec.Struct):
    """A pod outside of gangs that got no node from filter, because capacity is held for gangs.

    Attributes:
        nodes: Those with claims that kube-scheduler offered, and filter refused.
        claims_on: The claims with which these nodes were last looked at.
        unseen_until_ms: How long it is expected from the informers, by the monotonic clock; 0: they have shown it.
    """

    nodes: frozenset[NodeName]
    claims_on: Map[NodeName, ClaimsOnNode]
    unseen_until_ms: int = 0


class LoopExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One instance per process; given to the control loop and to the verbs."""

    # the control loop writes, the verbs read
    published: PublishedPass
    committed_losses: LossPredictor  # for the committed state
    # returns what is known of victims beside the view, see `Evictor.eviction_context`
    eviction_context: Callable[[str, str, ClusterView, ReservationState], EvictionContext]
    # the verbs write, the control loop and the nominator read
    rejections: RejectionEvidence
    # members that filter refused before their plan or their stage, until they are nominated; in memory only: kube-scheduler keeps
    # the refusal in the status of the pod
    held_back: set[PodUid]
    # in memory only: after a restart kube-scheduler tries these pods again by itself, minutes later (K26)
    refused_pods: dict[PodUid, RefusedPod] = msgspec.field(default_factory=dict)
