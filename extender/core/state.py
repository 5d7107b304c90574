"""Reservation state: the fold of the log. `evolve` is one step, `fold` many; nothing else changes it.

The state is persistent (immutable maps that share structure), so the acknowledged and the speculative
state stand side by side at no cost and a failed append is undone by dropping a reference.

A reservation is *held* from the admission until its pod is seen bound (`PodBound`) or it is given
back (`ReservationReleased`). Bound members are kept for as long as their root lives, because they
pin domains and count towards minima even when the cluster is not there to be asked.
The table of states is in `extender/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from immutables import Map

from extender.core.errors import CorruptLog
from extender.core.events import (
    AssignmentRecord,
    BarrierExpired,
    BindFailed,
    DriftFound,
    Event,
    GangAdmitted,
    GangExtended,
    GangRefused,
    GangSatisfied,
    GroupRecord,
    HistoryTruncated,
    LeaseTaken,
    MemberLost,
    NodeTopologyChanged,
    NodeVetoed,
    PodBound,
    ReservationReleased,
    RootCompleted,
    RootInvalid,
    RootObserved,
)
from extender.core.ids import Epoch, NodeName, PlanId, PodUid, Position, RootUid

Phase = Literal["observed", "waiting", "refused", "invalid", "admitted", "satisfied"]


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Room held on a node for one pod."""

    plan: PlanId
    root_uid: RootUid
    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of the leaf
    node: NodeName
    requests: dict[str, int]
    priority: int
    extra: bool
    at_us: int


class BoundMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that the cluster holds on a node."""

    plan: PlanId
    pod: str
    uid: PodUid
    group: str
    node: NodeName


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The last recorded reason why a root is pending."""

    outcome: str
    reasons: tuple[str, ...]
    position: Position
    at_us: int


class RootState(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of one root."""

    uid: RootUid
    root: str  # namespace/name
    kind: str = ""
    priority: int = 0
    phase: Phase = "observed"
    plan: PlanId | None = None  # of the newest admission or extension
    groups: tuple[GroupRecord, ...] = ()
    held: Map[PodUid, Reservation] = Map()
    bound: Map[PodUid, BoundMember] = Map()
    topology: Map[NodeName, dict[str, str]] = Map()  # labels of used nodes; "" where it has none
    answer: Answer | None = None
    observed_us: int = 0
    admitted_us: int = 0


class VetoKey(msgspec.Struct, frozen=True):
    """What a veto is about: this pod (or its equals) on this node."""

    root_uid: RootUid
    uid: PodUid
    node: NodeName


class VetoState(msgspec.Struct, frozen=True):
    """How a veto holds."""

    by_shape: bool
    until_ms: int
    at_ms: int = 0
    times: int = 1  # how often it was learned; a repeated one is not forgotten at the first change


class ReservationState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the log amounts to up to `position`."""

    position: Position = Position(0)
    epoch: Epoch = Epoch(0)
    at_us: int = 0
    roots: Map[RootUid, RootState] = Map()
    versions: Map[RootUid, int] = Map()  # stream -> version of its last fact
    held_on: Map[NodeName, Map[PodUid, Reservation]] = Map()
    root_of: Map[PodUid, RootUid] = Map()  # pods held or bound
    vetoes: Map[VetoKey, VetoState] = Map()
    truncated_epoch: Epoch = Epoch(
        0
    )  # of the newest HistoryTruncated: what is older was compared then


EMPTY = ReservationState()


def fold(state: ReservationState, events: Iterable[Event]) -> ReservationState:
    """Apply events in order; folding in pieces gives the same state as folding at once."""
    for event in events:
        state = evolve(state, event)
    return state


def evolve(state: ReservationState, event: Event) -> ReservationState:
    """Apply one event.

    Raises:
        CorruptLog: The event does not continue the log or its stream.
    """
    version = state.versions.get(event.root_uid, 0) + 1
    if event.position != state.position + 1 or event.version != version:
        msg = (
            f"event at position {event.position}, version {event.version} of root {event.root_uid} does not "
            f"continue the log at position {state.position}, version {version - 1}"
        )
        raise CorruptLog(msg)
    state = msgspec.structs.replace(
        state,
        position=event.position,
        epoch=event.epoch,
        at_us=event.at_us,
        versions=state.versions.set(event.root_uid, version),
    )
    return _apply(state, event)


def _apply(state: ReservationState, event: Event) -> ReservationState:  # noqa: C901, PLR0911, PLR0912 -- one arm per fact
    match event.fact:
        case RootObserved() as fact:
            root = _root(state, event)
            return _put(
                state, msgspec.structs.replace(root, kind=fact.kind, priority=fact.priority)
            )
        case GangAdmitted() | GangExtended() as fact:
            return _reserve(state, event, fact)
        case GangRefused() as fact:
            return _refused(state, event, fact)
        case RootInvalid() as fact:
            answer = Answer(
                outcome="invalid",
                reasons=fact.problems,
                position=event.position,
                at_us=event.at_us,
            )
            root = _root(state, event)
            beyond = root.phase in ("admitted", "satisfied")  # what holds room keeps its phase
            phase: Phase = root.phase if beyond else "invalid"
            return _put(state, msgspec.structs.replace(root, phase=phase, answer=answer))
        case PodBound() as fact:
            return _bound(state, event, fact)
        case ReservationReleased() as fact:
            return _released(state, event, fact)
        case GangSatisfied():
            root = msgspec.structs.replace(_root(state, event), phase="satisfied")
            return _put(state, root)
        case MemberLost() as fact:
            root = _root(state, event)
            if fact.uid not in root.bound:
                return state
            root = msgspec.structs.replace(root, bound=root.bound.delete(fact.uid))
            state = msgspec.structs.replace(state, root_of=state.root_of.delete(fact.uid))
            return _put(state, _emptied(root))
        case NodeVetoed() as fact:
            key = VetoKey(event.root_uid, fact.uid, fact.node)
            before = state.vetoes.get(key)
            times = before.times + 1 if before is not None else 1
            veto = VetoState(fact.by_shape, fact.until_ms, event.at_us // 1000, times)
            return msgspec.structs.replace(state, vetoes=state.vetoes.set(key, veto))
        case RootCompleted():
            return _completed(state, event)
        case NodeTopologyChanged() as fact:
            root = _root(state, event)
            labels = {key: fact.after.get(key, "") for key in (*fact.before, *fact.after)}
            labels = dict.fromkeys(root.topology.get(fact.node, {}), "") | labels
            root = msgspec.structs.replace(root, topology=root.topology.set(fact.node, labels))
            return _put(state, root)
        case HistoryTruncated():
            return msgspec.structs.replace(state, truncated_epoch=event.epoch)
        case BarrierExpired() | BindFailed() | DriftFound() | LeaseTaken():
            return state


def _root(state: ReservationState, event: Event) -> RootState:
    known = state.roots.get(event.root_uid)
    if known is not None:
        return known
    return RootState(uid=event.root_uid, root=event.root, observed_us=event.at_us)


def _put(state: ReservationState, root: RootState) -> ReservationState:
    return msgspec.structs.replace(state, roots=state.roots.set(root.uid, root))


def _reserve(
    state: ReservationState, event: Event, fact: GangAdmitted | GangExtended
) -> ReservationState:
    root = _root(state, event)
    held, held_on, root_of = root.held, state.held_on, state.root_of
    for record in fact.assignments:
        reservation = _reservation(event, fact, record)
        held = held.set(record.uid, reservation)
        here = held_on.get(record.node, Map())
        held_on = held_on.set(record.node, here.set(record.uid, reservation))
        root_of = root_of.set(record.uid, root.uid)
    topology = root.topology
    for node, labels in fact.topology.items():
        if labels:
            topology = topology.set(
                NodeName(node), dict.fromkeys(topology.get(NodeName(node), {}), "") | labels
            )
    admitted = isinstance(fact, GangAdmitted)
    root = msgspec.structs.replace(
        root,
        held=held,
        topology=topology,
        plan=fact.plan,
        priority=fact.priority,
        groups=fact.groups,
        answer=None,
        phase="admitted" if admitted and root.phase != "satisfied" else root.phase,
        admitted_us=event.at_us if admitted else root.admitted_us,
        kind=fact.kind if isinstance(fact, GangAdmitted) else root.kind,
    )
    return _put(msgspec.structs.replace(state, held_on=held_on, root_of=root_of), root)


def _reservation(
    event: Event, fact: GangAdmitted | GangExtended, record: AssignmentRecord
) -> Reservation:
    return Reservation(
        plan=fact.plan,
        root_uid=event.root_uid,
        pod=record.pod,
        uid=record.uid,
        group=record.group,
        node=record.node,
        requests=fact.shapes[record.shape],
        priority=fact.priority,
        extra=record.extra,
        at_us=event.at_us,
    )


def _refused(state: ReservationState, event: Event, fact: GangRefused) -> ReservationState:
    root = _root(state, event)
    answer = Answer(
        outcome=fact.outcome, reasons=fact.reasons, position=event.position, at_us=event.at_us
    )
    phase: Phase = root.phase
    if phase not in ("admitted", "satisfied"):
        phase = "waiting" if fact.outcome == "waiting" else "refused"
    return _put(state, msgspec.structs.replace(root, phase=phase, answer=answer))


def _drop_held(
    state: ReservationState, root: RootState, uid: PodUid
) -> tuple[ReservationState, RootState]:
    reservation = root.held[uid]
    here = state.held_on[reservation.node].delete(uid)
    held_on = (
        state.held_on.set(reservation.node, here)
        if here
        else state.held_on.delete(reservation.node)
    )
    root = msgspec.structs.replace(root, held=root.held.delete(uid))
    return msgspec.structs.replace(state, held_on=held_on), root


def _bound(state: ReservationState, event: Event, fact: PodBound) -> ReservationState:
    root = _root(state, event)
    if fact.uid in root.held:
        state, root = _drop_held(state, root, fact.uid)
    member = BoundMember(
        plan=fact.plan, pod=fact.pod, uid=fact.uid, group=fact.group, node=fact.node
    )
    root = msgspec.structs.replace(root, bound=root.bound.set(fact.uid, member))
    state = msgspec.structs.replace(state, root_of=state.root_of.set(fact.uid, root.uid))
    return _put(state, root)


def _released(state: ReservationState, event: Event, fact: ReservationReleased) -> ReservationState:
    root = _root(state, event)
    for pod in fact.pods:
        if pod.uid in root.held:
            state, root = _drop_held(state, root, pod.uid)
            state = msgspec.structs.replace(state, root_of=state.root_of.delete(pod.uid))
    return _put(state, _emptied(root))


def _emptied(root: RootState) -> RootState:
    """Undo the admission of a root that was not satisfied yet and has nothing left of it."""
    if root.held or root.bound or root.phase != "admitted":
        return root
    return msgspec.structs.replace(root, phase="observed", plan=None, groups=(), topology=Map())


def _completed(state: ReservationState, event: Event) -> ReservationState:
    root = _root(state, event)
    root_of = state.root_of
    for uid in list(root.held):
        state, root = _drop_held(state, root, uid)
        root_of = root_of.delete(uid)
    for uid in root.bound:
        root_of = root_of.delete(uid)
    vetoes = state.vetoes
    for key in state.vetoes:
        if key.root_uid == root.uid:
            vetoes = vetoes.delete(key)
    roots = state.roots.delete(root.uid) if root.uid in state.roots else state.roots
    return msgspec.structs.replace(state, roots=roots, root_of=root_of, vetoes=vetoes)


def barrier_unit(groups: tuple[GroupRecord, ...], leaf: str) -> GroupRecord:
    """Give the group whose minimum a member of `leaf` must wait for at bind.

    That is the root, unless it is basic: below a Basic parent each satisfied child has its own
    barrier (DESIGN 2.6), so the first gang on the way down is the unit; a basic leaf is its own.

    Raises:
        KeyError: `leaf` is not in the tree.
    """
    composites = {g.name: g for g in groups if g.kind == "CompositePodGroup"}
    unit = next((g for g in groups if g.kind == "PodGroup" and g.name == leaf), None)
    if unit is None:
        raise KeyError(leaf)
    here, way = unit, [unit]
    while here.parent:
        here = composites[here.parent]
        way.append(here)
    for group in reversed(way):
        if not group.basic:
            return group
    return unit


def satisfied(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> bool:
    """Say whether pods per leaf meet the minimum of a group and of all it needs below it; see `missing`."""
    return bool(groups) and missing(groups, counts, unit) == 0


def missing(
    groups: tuple[GroupRecord, ...], counts: Mapping[str, int], unit: GroupRecord | None = None
) -> int:
    """Give how many pods more, at least, the minimum of a group and of all it needs below it takes.

    Args:
        groups: The tree as recorded, root first; not empty.
        counts: Leaf name -> pods that count (bound, or arrived at bind).
        unit: The group that is asked about; the root when None.

    Source:
        SPEC C.1 and C.2 with R = 0: a gang composite needs `minimum` satisfied children.
    """
    children: dict[str, list[GroupRecord]] = {}
    for group in groups[1:]:
        children.setdefault(group.parent, []).append(group)

    def lacks(group: GroupRecord) -> int:
        if group.kind == "PodGroup":
            return max(group.minimum - counts.get(group.name, 0), 0)
        below = sorted(lacks(child) for child in children.get(group.name, ()))
        if len(below) < group.minimum:
            return sum(below) + group.minimum - len(below)  # a child that is not there needs a pod
        return sum(below[: group.minimum])

    return lacks(unit if unit is not None else groups[0])
