"""The Structs of the reservation state: gangs, members, claims on capacity, and node rejections.

`core/log/state_projector.py` makes the state from the events of the log. The state consists of immutable maps that
share structure, so the committed and the pending state exist side by side at no cost, and a failed append is undone
by dropping a reference.

A reservation is *held* from the admission until its pod is bound (`PodBound`) or it is released
(`ReservationReleased`). Bound members are kept until their root is deleted, because they fix the domains
of their groups and count towards the minimum, also when the API server is not available.
The table of states is in `extender/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
from immutables import Map

from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim, ClaimKind, ClaimsOnNode
from extender.core.log.events import (
    ControlPlaneFeaturesDetected,
    GroupRecord,
    MemberTerminationCause,
    NoticeRecord,
)
from extender.core.log.moves_state import PendingMoves
from extender.core.log.preemption_state import EvictedPod, PendingPreemption
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.message_formatting import counted
from extender.core.model.object_identity import changed_keys
from extender.core.model.visibility import namespace_of
from extender.core.workloads.native_groups import AdoptedGroup
from extender.core.workloads.tree_compiler import GroupSpec

Phase = Literal["observed", "waiting", "unschedulable", "invalid", "admitted", "scheduled"]
TreeOutcome = Literal["compiled", "basic", "refused"]
DerivedPhase = Literal["preempting", "degraded", "preempted", "completed"]
EffectivePhase = Phase | DerivedPhase
Reservation: TypeAlias = CapacityClaim  # of the kind "reservation"


class BoundMember(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A member that is bound to a node."""

    plan: PlanId
    pod: str
    uid: PodUid
    group: str
    node: NodeName
    requests: dict[str, int] = {}  # of its reservation; empty if it had none


class CapacityHold(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Capacity that is held, as it frees, for a tree that waits, against trees and pods of equal or lower priority."""

    hold: PlanId
    gang_uid: GangUid
    gang: str  # namespace/name
    kind: str
    priority: int
    position: Position
    at_us: int
    until_us: int
    waiting_since_us: int
    groups: tuple[GroupRecord, ...]
    pods: tuple[CapacityClaim, ...]


class UnusedHolds(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The capacity holds of one namespace that ended without an admission; they delay the next one."""

    held_us: int  # for how long, of all that count
    ended_us: int  # when the last one ended
    until_us: int  # before then no capacity is held for trees of the namespace


class LastDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last recorded reason why a root is pending."""

    outcome: str
    reasons: tuple[str, ...]
    position: Position
    at_us: int
    # As in `GangUnschedulable`.
    help: tuple[str, ...] = ()
    when_empty: str = ""
    reasons_when_empty: tuple[str, ...] = ()
    reasons_reduced: tuple[str, ...] = ()  # without names of other namespaces; empty: as `reasons`


class MemberLoss(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The end of a bound member that did not succeed."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    cause: MemberTerminationCause
    message: str  # of the status of the pod; may be empty
    position: Position
    at_us: int
    preemptor: str = ""  # Kind/namespace/name, if it was a victim of a recorded preemption
    preemption: Position = Position(0)  # position of the plan of that preemption
    preemptor_priority: int = 0
    preemptor_pods: int = 0  # pods that the plan places; 0: not known


STILL_ARRIVING = (
    "; members were still arriving: raise httpTimeout of the bind entry in the configuration of kube-scheduler, and "
    "GANG_EXTENDER_BIND_TIMEOUT_S with it"
)


class BindFailure(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Why members with reservations were not bound: the bind barrier timed out, or a Binding was refused."""

    # that did not arrive at the barrier, some of many; or the one of the Binding
    pods: tuple[str, ...]
    arrived: int = 0  # members that waited at the barrier
    missing: int = 0  # members that did not arrive; 0: a Binding was refused
    node: str = ""  # of the Binding
    error: str = ""  # of the API server
    position: Position
    at_us: int
    still_arriving: bool = False  # members still arrived when the barrier timed out

    def sentence(self) -> str:
        """Return it as text, without its time."""
        if not self.missing:
            return f"the Binding of {self.pods[0]} to {self.node} was refused: {self.error}"
        more = f" and {self.missing - len(self.pods)} more" if self.missing > len(self.pods) else ""
        return (
            f"the bind barrier timed out: {counted(self.arrived, 'member')} waited, {self.missing} did not arrive: "
            f"{', '.join(self.pods)}{more}{STILL_ARRIVING if self.still_arriving else ''}"
        )


class GangFields(msgspec.Struct):
    """The fields of the state of one root: `GangState` is frozen, the copy in `StateProjector` is mutable."""

    uid: GangUid
    gang: str  # namespace/name
    kind: str = ""
    priority: int = 0
    phase: Phase = "observed"
    plan: PlanId | None = None  # of the newest admission or extension
    groups: tuple[GroupRecord, ...] = ()
    reservations: Mapping[PodUid, Reservation] = Map()
    bound: Mapping[PodUid, BoundMember] = Map()
    # Members lost with their node, which may come back with them.
    lost_with_node: Mapping[PodUid, BoundMember] = Map()
    # By the UID of the lost member.
    replacement_holds: Mapping[PodUid, CapacityClaim] = Map()
    # Nodes of the members whose reservations expired or were rejected.
    previous_nodes: Mapping[PodUid, NodeName] = Map()
    # Labels of used nodes; "" for a missing label.
    topology: Mapping[NodeName, dict[str, str]] = Map()
    last_decision: LastDecision | None = None
    observed_us: int = 0
    admitted_us: int = 0
    failed_preemptions: int = 0  # since the last completed preemption
    failed_preemption_us: int = 0  # time of the last failed one
    # How often other pods used its reserved capacity, at short intervals.
    capacity_used_times: int = 0
    capacity_used_us: int = 0  # time of the last such use
    last_loss: MemberLoss | None = None
    # Members that succeeded and that no new member has followed, by leaf. Never changed in place.
    succeeded: dict[str, int] = {}
    refused_since_us: int = 0  # since when the tree is complete and has no place; 0: it is not so
    # after a hold of it that was not used; other trees of its namespace come first
    no_hold_until_us: int = 0
    bind_failure: BindFailure | None = None  # the last one since it was scheduled


# mypy rejects a frozen class below a mutable one for dataclasses; msgspec supports it.
class GangState(GangFields, frozen=True, array_like=True, gc=False):  # type: ignore[misc]
    """The state of one root. Its maps are persistent, or plain dicts in a state that is only read."""


class RejectionKey(msgspec.Struct, frozen=True):
    """Key of a node rejection: this pod (or pods of its shape) on this node."""

    gang_uid: GangUid
    uid: PodUid
    node: NodeName


class RejectionState(msgspec.Struct, frozen=True):
    """Scope and end of a node rejection."""

    by_shape: bool
    until_ms: int
    at_ms: int = 0
    # Number of rejections; a repeated one is not dropped at the first change of the node.
    times: int = 1


class WorkloadTree(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The last decision about the tree of one workload."""

    kind: str
    workload: str  # namespace/name
    uid: str
    generation: int
    table_version: int
    profile: str
    # Kind/namespace/name of the owner of the groups, if it is not the workload; else empty
    owner: str
    owner_uid: str  # of the owner of the groups
    outcome: TreeOutcome
    groups: tuple[GroupSpec, ...]  # that exist, or are being created
    reason: str  # of a refusal, or why the groups are Basic
    message: str
    notices: tuple[NoticeRecord, ...]
    position: Position
    at_us: int
    suspended: bool = False  # its controller keeps its pods away
    adopted: tuple[AdoptedGroup, ...] = ()  # groups of the workload's own controller
    resumed_us: int = 0  # when it was resumed last; 0: never


class ReservationState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of all events up to `position`."""

    position: Position = Position(0)
    epoch: Epoch = Epoch(0)
    at_us: int = 0
    gangs: Map[GangUid, GangState] = Map()
    stream_versions: Map[GangUid, int] = Map()  # version of the last event of each stream
    claims_on: Map[NodeName, ClaimsOnNode] = Map()  # all of `claims_of`
    gang_of: Map[PodUid, GangUid] = Map()  # pods held or bound
    rejections: Map[RejectionKey, RejectionState] = Map()
    preemptions: Map[GangUid, PendingPreemption] = Map()  # by the UID of the preemptor
    # By preemptor: the units that it evicted (Kind/namespace/name) and when; it does not evict them again soon.
    evicted_units: Map[GangUid, Map[str, int]] = Map()
    # Victims that are gone and whose end as members is not recorded yet; old ones are dropped with the next preemption.
    evicted_pods: Map[PodUid, EvictedPod] = Map()
    capacity_holds: Map[GangUid, CapacityHold] = Map()  # by the UID of the root; few
    unused_holds: Map[str, UnusedHolds] = Map()  # by namespace of the root
    moves: PendingMoves | None = None  # that are under way
    # Epoch of the newest HistoryTruncated: older losses are already recorded.
    truncated_epoch: Epoch = Epoch(0)
    features: ControlPlaneFeaturesDetected | None = None  # the last record
    trees: Map[str, WorkloadTree] = Map()  # by the UID of the workload


EMPTY = ReservationState()


def claims_of(
    gangs: Iterable[GangState],
    preemptions: Iterable[PendingPreemption],
    holds: Iterable[CapacityHold],
    moves: PendingMoves | None = None,
) -> Iterator[CapacityClaim]:
    """Yield the claims of all kinds."""
    for gang in gangs:
        yield from gang.reservations.values()
        yield from gang.replacement_holds.values()
    for preemption in preemptions:
        for claims in preemption.claims.values():
            yield from claims
    for hold in holds:
        yield from hold.pods
    if moves is not None:
        yield from moves.claims()


def reservations_on(state: ReservationState, node: NodeName) -> dict[PodUid, Reservation]:
    """Return the reservations on a node, by pod."""
    claims = state.claims_on.get(node, NO_CLAIMS).values()
    return {claim.uid: claim for claim in claims if claim.kind == "reservation"}


def claims_of_kind(state: ReservationState, kind: ClaimKind) -> Iterator[CapacityClaim]:
    """Yield the claims of one kind on all nodes."""
    for claims in state.claims_on.values():
        for claim in claims.values():
            if claim.kind == kind:
                yield claim


def reservation_of(state: ReservationState, uid: PodUid) -> Reservation | None:
    """Return the reservation of a pod, or None."""
    gang_uid = state.gang_of.get(uid)
    root = state.gangs.get(gang_uid) if gang_uid is not None else None
    return root.reservations.get(uid) if root is not None else None


class ChangedMembers:
    """Remembers pods and reservations of the last call."""

    def __init__(self) -> None:
        self._view = ClusterView()
        self._claims_on: Map[NodeName, ClaimsOnNode] = Map()

    def since_last(self, view: ClusterView, state: ReservationState) -> set[PodUid]:
        """Return the UIDs of all pods that, or whose reservations, may differ from those of the last call."""
        uids = changed_pods(self._view, view)
        for node in changed_keys(self._claims_on, state.claims_on):
            before = self._claims_on.get(node, NO_CLAIMS)
            claims = changed_keys(before, state.claims_on.get(node, NO_CLAIMS))
            uids |= {uid for kind, _, uid in claims if kind == "reservation"}
        self._view, self._claims_on = view, state.claims_on
        return uids


def no_hold_before_us(state: ReservationState, root: GangState) -> int:
    """Return until when no capacity is held for a tree because holds of its namespace were not used; 0: they all were."""
    unused = state.unused_holds.get(namespace_of(root.gang))
    return unused.until_us if unused is not None else 0
