"""What the control loop and the verbs share, so that neither imports the other."""

from __future__ import annotations

from typing import Protocol

import msgspec

from extender.control.published.loss_predictor import LossPredictor
from extender.control.published.members_to_retry import HeldBackMembers
from extender.control.published.pass_result import PublishedPass
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.preempt.preemption_lifecycle import EvictionContext


class EvictionKnowledge(Protocol):
    """What is known of victims beside the view; it changes between passes, with each eviction that is requested."""

    def eviction_context(
        self, actor: str, cause: str, view: ClusterView, state: ReservationState
    ) -> EvictionContext:
        """Return what is known now of the victims in a state, after an update from the view."""
        ...


class LoopExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One instance per process; given to the control loop and to the verbs."""

    # the control loop writes, the verbs read
    published: PublishedPass
    committed_losses: LossPredictor  # for the committed state
    evictions: EvictionKnowledge
    # the verbs write, the control loop and the nominator read
    rejections: RejectionEvidence
    held_back: HeldBackMembers
