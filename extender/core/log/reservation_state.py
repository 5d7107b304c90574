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

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from immutables import Map

from extender.core.log import events as ev
from extender.core.log.capacity_claim import (
    NO_CLAIMS,
    CapacityClaim,
    ClaimKey,
    ClaimKind,
    ClaimsOnNode,
    planned_claims,
)
from extender.core.log.moves_state import PendingMoves
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.message_formatting import counted
from extender.core.model.object_identity import changed_keys
from extender.core.model.visibility import Visibility, is_hidden, name_for, namespace_of
from extender.core.workloads.native_groups import AdoptedGroup
from extender.core.workloads.tree_compiler import GroupSpec

# --- pending preemptions and their capacity claims

# A preemption is *pending* from `PreemptionPlanned` until it ended (`PreemptionCompleted`,
# `PreemptionCancelled`) and all victims of the units that were begun are gone. A unit is *begun* when one
# of its pods was evicted. A root has one preemption at a time, so a tree chooses no new victims while
# earlier ones terminate (E-2, P15).
#
# The capacity of the planned assignments is claimed for the preemptor from the plan on, also while victims still use
# it: for all other pods a node has the smaller of what is free now and what will be free when the victims are gone and
# the preemptor runs. A preemptor of higher priority can take the claim over (`core/preempt/preemption_lifecycle`).
# The claim ends with the admission of the preemptor, whose reservations then hold the capacity, or with the preemption.
# After a takeover on some nodes the claims of a tree on the other nodes stay until the begun victims are gone, because
# the tree is planned again then.

# For this time a preemptor does not evict a unit of the same name again, and a victim that is gone is remembered.
EVICTION_MEMORY_US: Final = 600_000_000
# Reasons after which the preemptor did not get the freed capacity.
FAILED_REASONS: Final = ("deletion-rejected", "node-rejected", "capacity-lost")
# Reasons of a cancelled preemption after which evictions were not in vain: others run there, or the preemptor runs elsewhere.
NOT_IN_VAIN: Final = ("taken-over", "no-longer-needed")
# A completed one was in vain when each member that was bound for it ran for less, see `PreemptorRun`.
RAN_BRIEFLY_US: Final = 60_000_000
# Values of `VictimGone.via` after which a unit counts as begun.
EVICTED_BY_EXTENDER: Final = ("deleted", "evicted", "unobserved")


class Victim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that is to be evicted and is not known to be gone."""

    unit: str  # Kind/namespace/name
    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of its leaf, empty outside of groups
    node: NodeName


class EvictedPod(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A victim that is gone, for the end of the member that it was, which may be recorded later."""

    preemptor: str  # Kind/namespace/name
    position: Position  # of the plan
    gone_us: int
    priority: int = 0  # of the preemptor
    pods: int = 0  # of the preemptor that the plan places; 0: not known


NO_PREEMPTOR: Final = EvictedPod("", Position(0), 0)


class PendingPreemption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pending preemption; `units` and the victims of a unit are in the order of the plan."""

    id: PlanId
    gang_uid: GangUid  # of the preemptor; the UID of the pod if that is an unmanaged pod
    gang: str  # namespace/name
    kind: str  # CompositePodGroup | PodGroup | Pod
    priority: int
    position: Position  # of the plan
    epoch: Epoch  # under which it was planned
    at_us: int
    progress_us: int  # when the last victim was gone, or when it was planned
    units: tuple[str, ...]  # all planned units, Kind/namespace/name
    priorities: tuple[int, ...]  # of the units, in the same order
    victims: Map[PodUid, Victim]  # victims not known to be gone
    started_units: frozenset[str] = frozenset()  # units of which we evicted a pod, or may have
    evicted: int = 0  # victims that are gone
    claims: Map[NodeName, tuple[CapacityClaim, ...]] = Map()  # empty once admitted or ended
    # Pods that already terminated when it was planned.
    already_terminating: frozenset[PodUid] = frozenset()
    # Extra members that it was planned for, after the minimum of the preemptor was bound.
    extras: frozenset[PodUid] = frozenset()
    ended: bool = False  # completed or cancelled; only victims of begun units are left
    pods: int = 0  # of the preemptor that the plan places; 0: not known

    @property
    def gives_up(self) -> bool:
        """Return whether a gang evicts itself, to be placed anew (D26)."""
        return self.units == (f"{self.kind}/{self.gang}",)

    @property
    def preemptor(self) -> str:
        """Return `Kind/namespace/name` of the preemptor, or what stands for it where its name is hidden."""
        return self.gang if is_hidden(self.gang) else f"{self.kind}/{self.gang}"

    def preemptor_for(self, readers: Visibility) -> str:
        """Return the name of the preemptor, or what readers who do not see its namespace get instead of it."""
        return name_for(
            readers, self.preemptor, priority=self.priority, pods=self.pods, position=self.position
        )


class PreemptorRun(msgspec.Struct):
    """How long the members ran that were bound for a preemptor: event by event of its gang, from its plan on.

    These are the members that were bound until the preemption was completed; a gang that gives itself up has none. Each ran
    from its binding to its end, or to the end of its gang. The report *lost-work* computes the same in SQL.
    """

    preemption: PlanId
    completed: bool = False
    bound: bool = False  # there is such a member
    longest_us: int = 0  # that one of the members that have ended ran
    bound_us: dict[PodUid, int] = {}  # when the members were bound that still run

    def follow(self, event: ev.RecordedEvent) -> None:
        """Take the next event of the gang."""
        ended: list[PodUid] = []
        match event.data:
            case ev.PodBound() as data if not self.completed:
                self.bound = True
                self.bound_us[data.uid] = event.at_us
            case ev.PreemptionCompleted() as data if data.preemption == self.preemption:
                self.completed = True
            case ev.MemberTerminated() as data if data.uid in self.bound_us:
                ended = [data.uid]
            case ev.GangRemoved():
                ended = [*self.bound_us]
            case _:
                pass
        for uid in ended:
            self.longest_us = max(self.longest_us, event.at_us - self.bound_us.pop(uid))

    @property
    def was_brief(self) -> bool:
        """Return whether the preemption is completed, and each member has ended after less than a minute."""
        over = self.completed and self.bound and not self.bound_us
        return over and self.longest_us < RAN_BRIEFLY_US

    def lasts(self, now_us: int) -> bool:
        """Return whether a member runs, or ran, for a minute, or there is none."""
        running_us = max((now_us - at_us for at_us in self.bound_us.values()), default=0)
        longest_us = max(self.longest_us, running_us)
        return self.completed and (not self.bound or longest_us >= RAN_BRIEFLY_US)


def planned_preemption(
    event: ev.RecordedEvent, data: ev.PreemptionPlanned, *, extras: bool
) -> PendingPreemption:
    """Return the preemption that `PreemptionPlanned` starts."""
    claims: dict[NodeName, list[CapacityClaim]] = {}
    planned_for = planned_claims(
        "preemption", data.preemption, event.gang_uid, data, at_us=event.at_us
    )
    for claim in planned_for:
        claims.setdefault(claim.node, []).append(claim)
    victims = {
        pod.uid: Victim(unit=unit.name, pod=pod.pod, uid=pod.uid, group=pod.group, node=pod.node)
        for unit in data.victims
        for pod in unit.pods
    }
    return PendingPreemption(
        id=data.preemption,
        gang_uid=event.gang_uid,
        gang=event.gang,
        kind=data.kind,
        priority=data.priority,
        position=event.position,
        epoch=event.epoch,
        at_us=event.at_us,
        progress_us=event.at_us,
        units=tuple(unit.name for unit in data.victims),
        priorities=tuple(unit.priority for unit in data.victims),
        victims=Map(victims),
        claims=Map({node: tuple(on_node) for node, on_node in claims.items()}),
        already_terminating=frozenset(pod.uid for pod in data.already_terminating),
        extras=frozenset(a.uid for a in data.assignments) if extras else frozenset(),
        pods=len(data.assignments),
    )


def evicted_pod(event: ev.RecordedEvent, preemption: PendingPreemption) -> EvictedPod:
    """Return what is remembered of a victim whose `VictimGone` is the event."""
    return EvictedPod(
        f"{preemption.kind}/{preemption.gang}",
        preemption.position,
        event.at_us,
        preemption.priority,
        preemption.pods,
    )


def recently_gone(pods: Map[PodUid, EvictedPod], now_us: int) -> Map[PodUid, EvictedPod]:
    """Return the victims that are gone for less than `EVICTION_MEMORY_US`."""
    kept = {u: pod for u, pod in pods.items() if now_us - pod.gone_us < EVICTION_MEMORY_US}
    return pods if len(kept) == len(pods) else Map(kept)


def with_victim_gone(
    event: ev.RecordedEvent, before: PendingPreemption, data: ev.VictimGone
) -> PendingPreemption | None:
    """Return the preemption without a victim that is gone; None when it is over."""
    if data.uid not in before.victims:
        return before
    started_units = before.started_units
    if data.via in EVICTED_BY_EXTENDER:
        started_units |= {data.unit}
    after = msgspec.structs.replace(
        before,
        victims=before.victims.delete(data.uid),
        started_units=started_units,
        evicted=before.evicted + 1,
        progress_us=event.at_us,
    )
    return None if after.ended and not after.victims else after


def completed_preemption(before: PendingPreemption) -> PendingPreemption | None:
    """Return a completed preemption; the remaining victims are still evicted. None when there are none."""
    if not before.victims:
        return None
    return msgspec.structs.replace(before, ended=True, claims=Map())


def cancelled_preemption(
    before: PendingPreemption, finishing: Iterable[str], *, lost: Collection[NodeName] | None = None
) -> PendingPreemption | None:
    """Return a cancelled preemption without the units that were not begun; None when no victim is left.

    Args:
        finishing: Units that are evicted whole.
        lost: The nodes on which its claims end; None: all nodes.
    """
    units = frozenset(finishing) | before.started_units
    left = {uid: v for uid, v in before.victims.items() if v.unit in units}
    if not left:
        return None
    kept = {} if lost is None else {n: c for n, c in before.claims.items() if n not in lost}
    return msgspec.structs.replace(
        before, ended=True, claims=Map(kept), started_units=units, victims=Map(left)
    )


def preemption_summary(data: ev.PreemptionPlanned) -> str:
    """Return whose capacity a preemption uses, as text; the SQL function `gx.preempting_message` returns the same."""
    units = len(data.victims)
    pods = sum(len(unit.pods) for unit in data.victims)
    if units and not data.assignments:
        return f"evicts its own {counted(pods, 'pod')}, to be placed anew"
    parts = []
    if units:
        parts.append(
            f"{counted(pods, 'pod')} of {counted(units, 'disruption unit')} of lower priority"
        )
    if data.already_terminating:
        parts.append(f"{counted(len(data.already_terminating), 'pod')} on the way out")
    if data.superseded:
        parts.append(f"reservations of {counted(len(data.superseded), 'tree')} of lower priority")
    return f"uses the capacity of {', '.join(parts)}" if parts else "the capacity is free"


# --- the state

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
    groups: tuple[ev.GroupRecord, ...]
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
    cause: ev.MemberTerminationCause
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

    # that did not arrive at the barrier, some of many; or that of the Binding
    pods: tuple[str, ...]
    arrived: int = 0  # members that waited at the barrier
    missing: int = 0  # members with a reservation that did not arrive
    node: str = ""  # of the Binding that was refused; empty: the barrier timed out
    error: str = ""  # of the API server
    position: Position
    at_us: int
    still_arriving: bool = False  # members still arrived when the barrier timed out

    def sentence(self) -> str:
        """Return it as text, without its time."""
        if self.node:
            return f"the Binding of {self.pods[0]} to {self.node} was refused: {self.error}"
        waited = f"the bind barrier timed out: {counted(self.arrived, 'member')} waited, "
        if not self.missing:
            return f"{waited}and the rest of its minimum has no reservation"
        more = f" and {self.missing - len(self.pods)} more" if self.missing > len(self.pods) else ""
        return (
            f"{waited}{self.missing} did not arrive: "
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
    groups: tuple[ev.GroupRecord, ...] = ()
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
    notices: tuple[ev.NoticeRecord, ...]
    position: Position
    at_us: int
    suspended: bool = False  # its controller keeps its pods away
    adopted: tuple[AdoptedGroup, ...] = ()  # groups of the workload's own controller
    resumed_us: int = 0  # when it was resumed last; 0: never


class StateFields(msgspec.Struct):
    """The fields of `ReservationState`, which is frozen; those of `StateProjector` are mutable."""

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
    features: ev.ControlPlaneFeaturesDetected | None = None  # the last record
    trees: Map[str, WorkloadTree] = Map()  # by the UID of the workload


class ReservationState(StateFields, frozen=True):  # type: ignore[misc]  # as `GangState`
    """The fold of all events up to `position`."""


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


def claims_by_node(claims: Iterable[CapacityClaim]) -> Map[NodeName, ClaimsOnNode]:
    """Return the index of some claims."""
    index: dict[NodeName, dict[ClaimKey, CapacityClaim]] = {}
    for claim in claims:
        index.setdefault(claim.node, {})[claim.key] = claim
    return Map({node: Map(on_node) for node, on_node in index.items()})


def reservations_on(state: ReservationState, node: NodeName) -> dict[PodUid, Reservation]:
    """Return the reservations on a node, by pod."""
    claims = state.claims_on.get(node, NO_CLAIMS).values()
    return {claim.uid: claim for claim in claims if claim.kind == "reservation"}


def claims_of_kind(state: ReservationState, kind: ClaimKind) -> Iterator[CapacityClaim]:
    """Return the claims of one kind on all nodes."""
    on_nodes = state.claims_on.values()
    return (claim for claims in on_nodes for claim in claims.values() if claim.kind == kind)


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
