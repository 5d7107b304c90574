"""Applies events to the reservation state: only `StateProjector` changes it; `fold` applies events to a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
from immutables import Map

from extender.core.log import preemption_state
from extender.core.log.events import (
    BindBarrierTimedOut,
    CapacityMeasured,
    ControlPlaneFeaturesDetected,
    DriftDetected,
    GangAdmitted,
    GangExtended,
    GangInvalid,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    HistoryTruncated,
    LeaseAcquired,
    MemberTerminated,
    NodeRejected,
    NodeTopologyChanged,
    PodBindFailed,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReservationReleased,
    VictimGone,
)
from extender.core.log.gang_phase import _HOLDS_CAPACITY, PREEMPTING
from extender.core.log.preemption_state import PendingPreemption, preemption_summary
from extender.core.log.reservation_state import (
    BoundMember,
    GangState,
    LastDecision,
    Phase,
    RejectionKey,
    RejectionState,
    ReplacementHold,
    Reservation,
    ReservationState,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid

if TYPE_CHECKING:
    from immutables import MapMutation

    _Open: TypeAlias = Callable[[Mapping[Any, Any]], MutableMapping[Any, Any]]
    _Close: TypeAlias = Callable[[MutableMapping[Any, Any]], Mapping[Any, Any]]


def fold(state: ReservationState, events: Iterable[RecordedEvent]) -> ReservationState:
    """Return the state after `events`; folding in several calls gives the same state as in one."""
    folding = StateProjector(state)
    folding.apply(events)
    return folding.close()


class _OpenGang(msgspec.Struct, eq=False):
    """A `GangState` while it changes: the same fields in the same order."""

    uid: GangUid
    gang: str
    kind: str
    priority: int
    phase: Phase
    plan: PlanId | None
    groups: tuple[GroupRecord, ...]
    reservations: MutableMapping[PodUid, Reservation]
    bound: MutableMapping[PodUid, BoundMember]
    lost_with_node: MutableMapping[PodUid, BoundMember]
    replacement_holds: Map[PodUid, ReplacementHold]  # few: changed one by one
    previous_nodes: Map[PodUid, NodeName]
    topology: MutableMapping[NodeName, dict[str, str]]
    last_decision: LastDecision | None
    observed_us: int
    admitted_us: int
    failed_preemptions: int
    failed_preemption_us: int
    capacity_used_times: int
    capacity_used_us: int

    def close(self, closed: _Close) -> GangState:
        """Return the current state of the root."""
        return GangState(
            uid=self.uid, gang=self.gang, kind=self.kind, priority=self.priority, phase=self.phase,
            plan=self.plan, groups=self.groups, reservations=closed(self.reservations), bound=closed(self.bound),
            lost_with_node=closed(self.lost_with_node), replacement_holds=self.replacement_holds, previous_nodes=self.previous_nodes,
            topology=closed(self.topology), last_decision=self.last_decision,
            observed_us=self.observed_us, admitted_us=self.admitted_us,
            failed_preemptions=self.failed_preemptions, failed_preemption_us=self.failed_preemption_us, capacity_used_times=self.capacity_used_times, capacity_used_us=self.capacity_used_us,
        )  # fmt: skip


TAKEN_LATELY_US: Final = (
    600_000_000  # after this time without such a use the counter `taken` starts again
)


_PreemptionEvent: TypeAlias = (
    PreemptionPlanned | VictimGone | PreemptionCompleted | PreemptionCancelled
)


_UNKNOWN: Final[dict[str, int]] = {}  # requests of a pod that had no reservation


_WITHOUT_BIND: Final = (
    "expired",
    "node-rejected",
)  # after which members are planned where they were first


def _closed(opened: MutableMapping[Any, Any]) -> Map[Any, Any]:
    return (
        Map(opened) if isinstance(opened, dict) else cast("MapMutation[Any, Any]", opened).finish()
    )


def _plain(opened: MutableMapping[Any, Any]) -> Mapping[Any, Any]:
    return opened


def _persistent(known: Mapping[Any, Any]) -> Map[Any, Any]:
    return known if isinstance(known, Map) else Map(known)


class _DiscardingDict(dict[Any, Any]):
    """A replacement for an index that is not read: it discards every write."""

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __delitem__(self, key: object) -> None:
        pass


_DISCARD: Final = _DiscardingDict()


class StateProjector:
    """A mutable copy of a state to which events are applied in place, several times faster than on immutable maps.

    The state that it was made from does not change. Do not use it after an exception or after `close`.

    Args:
        state: The state to start from.
        bulk: Convert all maps at once instead of only those that events touch; faster from about ten thousand
            events on.
        knows_ended: The state has the versions of streams that ended. Otherwise the first event of a stream that it
            does not know may have any.
        past: The result is only read: it has no versions of streams that ended, the indexes `held_on` and `root_of`
            are not kept, and the maps of roots are plain dicts.
    """

    __slots__ = (
        "_at_us", "_claimed_on", "_claims_changed", "_epoch", "_features", "_held_before", "_held_on", "_known",
        "_knows_ended", "_opened", "_past", "_preemptions", "_root_of", "_roots", "_took", "_truncated_epoch", "_vacant_on", "_versions",
        "_vetoed", "_vetoes", "_vetoes_before", "position",
    )  # fmt: skip

    def __init__(
        self,
        state: ReservationState,
        *,
        bulk: bool = False,
        knows_ended: bool = True,
        past: bool = False,
    ) -> None:
        self.position = state.position
        self._knows_ended = knows_ended and not past
        self._past = past
        self._epoch = state.epoch
        self._at_us = state.at_us
        self._truncated_epoch = state.truncated_epoch
        self._features = state.features
        opened: _Open = dict if bulk else cast("_Open", Map.mutate)
        self._opened: _Open = dict if past else opened  # for maps of one root, or of one node
        self._known = opened(
            state.gangs
        )  # roots in `_roots` are missing here, or have their old state
        self._roots: dict[GangUid, _OpenGang] = {}  # touched
        self._versions = opened(state.versions)
        self._held_before = state.reservations_on
        self._held_on: dict[NodeName, MutableMapping[PodUid, Reservation]] = {}  # touched
        self._root_of = _DISCARD if past else opened(state.gang_of)
        self._vetoes = opened(state.rejections)
        self._preemptions = state.preemptions  # few: changed one by one
        self._vacant_on = state.replacement_holds_on  # few, too
        self._claimed_on = state.claimed_on
        self._claims_changed = False
        self._took = state.evicted_units
        self._vetoes_before: Map[RejectionKey, RejectionState] | None = (
            state.rejections
        )  # until sorted into:
        self._vetoed: dict[GangUid, set[RejectionKey]] = {}

    def close(self) -> ReservationState:
        """Return the current state."""
        known = self._known
        closed = _plain if self._past else _closed
        for uid, root in self._roots.items():
            known[uid] = root.close(closed)
        reservations_on = self._held_before
        if self._held_on:
            nodes = reservations_on.mutate()
            for node, here in self._held_on.items():
                if here:
                    nodes[node] = _closed(here)
                else:
                    nodes.pop(node, None)
            reservations_on = nodes.finish()
        if self._claims_changed:
            self._claimed_on = preemption_state.claimed_on(self._preemptions.values())
        return ReservationState(
            position=self.position,
            epoch=self._epoch,
            at_us=self._at_us,
            gangs=_closed(known),
            versions=_closed(self._versions),
            reservations_on=reservations_on,
            gang_of=_closed(self._root_of),
            rejections=_closed(self._vetoes),
            preemptions=self._preemptions,
            claimed_on=self._claimed_on,
            evicted_units=self._took,
            replacement_holds_on=self._vacant_on,
            truncated_epoch=self._truncated_epoch,
            features=self._features,
        )

    def apply(self, events: Iterable[RecordedEvent]) -> None:
        """Apply events in order.

        Raises:
            CorruptLog: An event does not continue the log or its stream.
        """
        versions, apply, knows_ended = self._versions, self._apply, self._knows_ended
        for event in events:
            uid = event.gang_uid
            version = versions.get(uid, 0 if knows_ended else event.stream_version - 1) + 1
            if event.position != self.position + 1 or event.stream_version != version:
                msg = (
                    f"event at position {event.position}, version {event.stream_version} of root {uid} does not "
                    f"continue the log at position {self.position}, version {version - 1}"
                )
                raise CorruptLog(msg)
            versions[uid] = version
            self.position = event.position
            self._epoch = event.epoch
            self._at_us = event.at_us
            apply(event)

    def _apply(self, event: RecordedEvent) -> None:  # noqa: C901, PLR0912 -- one arm per event, the frequent ones first
        match event.data:
            case PodBound() as fact:
                self._bind(event, fact)
            case GangAdmitted() | GangExtended() as fact:
                self._reserve(event, fact)
            case GangObserved() as fact:
                root = self._root(event)
                root.kind, root.priority = fact.kind, fact.priority
            case GangScheduled():
                root = self._root(event)
                root.phase, root.capacity_used_times = "scheduled", 0
            case MemberTerminated() as fact:
                if event.gang_uid in self._roots or event.gang_uid in self._known:
                    self._lose_member(event, self._root(event), fact)
            case GangRemoved():
                self._complete(event)
            case GangUnschedulable() as fact:
                self._refuse(event, fact)
            case ReservationReleased() as fact:
                self._release(event, fact)
            case GangInvalid() as fact:
                root = self._root(event)
                if root.phase not in _HOLDS_CAPACITY:
                    root.phase = "invalid"
                root.last_decision = LastDecision(
                    outcome="invalid",
                    reasons=fact.problems,
                    position=event.position,
                    at_us=event.at_us,
                )
            case NodeRejected() as fact:
                self._reject_node(event, fact)
            case NodeTopologyChanged() as fact:
                root = self._root(event)
                labels = {key: fact.after.get(key, "") for key in (*fact.before, *fact.after)}
                before = root.topology.get(fact.node, {})
                root.topology[fact.node] = dict.fromkeys(before, "") | labels
            case (
                PreemptionPlanned() | VictimGone() | PreemptionCompleted() | PreemptionCancelled()
            ) as fact:
                self._preempt(event, fact)
            case HistoryTruncated():
                self._truncated_epoch = event.epoch
            case ControlPlaneFeaturesDetected() as fact:
                self._features = fact
            case (
                BindBarrierTimedOut()
                | PodBindFailed()
                | DriftDetected()
                | LeaseAcquired()
                | CapacityMeasured()
            ):
                pass

    def _root(self, event: RecordedEvent) -> _OpenGang:
        """Return the root of an event to change it; an unknown root is created."""
        uid = event.gang_uid
        root = self._roots.get(uid)
        if root is None:
            known = self._known.get(uid)
            if known is None:
                known = GangState(uid=uid, gang=event.gang, observed_us=event.at_us)
            opened = self._opened
            root = self._roots[uid] = _OpenGang(
                known.uid, known.gang, known.kind, known.priority, known.phase, known.plan,
                known.groups, opened(known.reservations), opened(known.bound), opened(known.lost_with_node),
                _persistent(known.replacement_holds), _persistent(known.previous_nodes), opened(known.topology), known.last_decision,
                known.observed_us, known.admitted_us, known.failed_preemptions, known.failed_preemption_us, known.capacity_used_times, known.capacity_used_us,
            )  # fmt: skip
        return root

    def _reservations_on(self, node: NodeName) -> MutableMapping[PodUid, Reservation]:
        """Return the reservations on a node to change them."""
        if self._past:
            return _DISCARD
        here = self._held_on.get(node)
        if here is None:
            here = self._held_on[node] = self._opened(self._held_before.get(node, Map()))
        return here

    def _reserve(self, event: RecordedEvent, fact: GangAdmitted | GangExtended) -> None:
        root = self._root(event)
        uid, at_us, plan, priority = event.gang_uid, event.at_us, fact.plan, fact.priority
        for record in fact.assignments:
            reservation = Reservation(
                plan=plan,
                gang_uid=uid,
                pod=record.pod,
                uid=record.uid,
                group=record.group,
                node=record.node,
                requests=fact.shapes[record.shape],
                priority=priority,
                extra=record.extra,
                at_us=at_us,
            )
            root.reservations[record.uid] = reservation
            self._reservations_on(record.node)[record.uid] = reservation
            self._root_of[record.uid] = uid
        if root.previous_nodes:
            root.previous_nodes = (
                Map() if isinstance(fact, GangAdmitted) else _without(root.previous_nodes, fact)
            )
        self._use_holds(root, [(record.group, record.node) for record in fact.assignments])
        for name, labels in fact.topology.items():
            if labels:
                node = NodeName(name)
                root.topology[node] = dict.fromkeys(root.topology.get(node, {}), "") | labels
        root.plan = plan
        root.priority = priority
        root.groups = fact.groups
        root.last_decision = None
        if uid in self._preemptions:
            self._set_preemption(uid, preemption_state.admitted(self._preemptions[uid]))
        if isinstance(fact, GangAdmitted):
            if root.phase != "scheduled":
                root.phase = "admitted"
            root.admitted_us = at_us
            root.kind = fact.kind

    def _preempt(self, event: RecordedEvent, fact: _PreemptionEvent) -> None:
        """Apply an event of a preemption; events of an unknown preemption are ignored."""
        uid = event.gang_uid
        before = self._preemptions.get(uid)
        match fact:
            case PreemptionPlanned():
                extras = False
                if fact.kind != "Pod":
                    root = self._root(event)
                    extras = root.phase == "scheduled"
                    root.last_decision = _preempting(event, fact)
                self._set_preemption(uid, preemption_state.planned(event, fact, extras=extras))
            case VictimGone() if before is not None:
                self._set_preemption(uid, preemption_state.evicted(event, before, fact))
                if fact.via in preemption_state.EVICTED_BY_EXTENDER:
                    self._remember(event, before, fact.unit)
            case PreemptionCompleted() if before is not None:
                self._set_preemption(uid, preemption_state.completed(before))
                if uid in self._roots or uid in self._known:
                    self._root(event).failed_preemptions = 0
            case PreemptionCancelled() if before is not None:
                lost = (
                    fact.taken_over_nodes
                    if fact.reason == "taken-over" and before.kind != "Pod"
                    else None
                )
                self._set_preemption(
                    uid, preemption_state.abandoned(before, fact.units_in_progress, lost=lost)
                )
                if uid in self._roots or uid in self._known:
                    root = self._root(event)
                    if root.last_decision is not None and root.last_decision.outcome == PREEMPTING:
                        root.last_decision = None  # the next pass records a new answer
                    if fact.reason in preemption_state.FAILED_REASONS:
                        root.failed_preemptions, root.failed_preemption_us = (
                            root.failed_preemptions + 1,
                            event.at_us,
                        )
            case _:
                pass

    def _remember(self, event: RecordedEvent, preemption: PendingPreemption, unit: str) -> None:
        """Record a unit that a preemptor evicted: for a tree until it is deleted, for a pod while it is recent."""
        uid = event.gang_uid
        if preemption.kind == "Pod":
            oldest_us = event.at_us - preemption_state.EVICTION_MEMORY_US
            for other, taken in self._took.items():
                known = other in self._roots or other in self._known
                if not known and max(taken.values()) < oldest_us:
                    self._took = self._took.delete(other)
        elif uid not in self._roots and uid not in self._known:
            return
        self._took = self._took.set(uid, self._took.get(uid, Map()).set(unit, event.at_us))

    def _set_preemption(self, uid: GangUid, after: PendingPreemption | None) -> None:
        before = self._preemptions.get(uid)
        if after is not None:
            self._preemptions = self._preemptions.set(uid, after)
        elif before is not None:
            self._preemptions = self._preemptions.delete(uid)
        if (before.claims if before else None) != (after.claims if after else None):
            self._claims_changed = True

    def _refuse(self, event: RecordedEvent, fact: GangUnschedulable) -> None:
        root = self._root(event)
        root.last_decision = LastDecision(
            outcome=fact.outcome,
            reasons=fact.reasons + fact.preemption_notes,
            position=event.position,
            at_us=event.at_us,
        )
        if root.phase not in _HOLDS_CAPACITY:
            root.phase = "waiting" if fact.outcome == "waiting" else "unschedulable"

    def _bind(self, event: RecordedEvent, fact: PodBound) -> None:
        root, uid = self._root(event), fact.uid
        before = root.reservations.get(uid) or root.lost_with_node.get(uid) or root.bound.get(uid)
        if uid in root.reservations:
            self._drop_held(root, uid)
        root.lost_with_node.pop(uid, None)
        root.bound[uid] = BoundMember(
            plan=fact.plan,
            pod=fact.pod,
            uid=uid,
            group=fact.group,
            node=fact.node,
            requests=before.requests if before is not None else _UNKNOWN,
        )
        self._root_of[uid] = root.uid
        if before is None:
            self._use_holds(root, [(fact.group, fact.node)])

    def _release(self, event: RecordedEvent, fact: ReservationReleased) -> None:
        """Remove reservations or replacement holds."""
        root = self._root(event)
        for pod in fact.pods:
            if pod.uid in root.reservations:
                if fact.reason in _WITHOUT_BIND:
                    root.previous_nodes = root.previous_nodes.set(
                        pod.uid, root.reservations[pod.uid].node
                    )
                self._drop_held(root, pod.uid)
                del self._root_of[pod.uid]
            elif pod.uid in root.replacement_holds:
                self._drop_hold(root, pod.uid)
        if fact.taken_by:
            lately = event.at_us - root.capacity_used_us < TAKEN_LATELY_US
            root.capacity_used_times, root.capacity_used_us = (
                root.capacity_used_times * lately + 1,
                event.at_us,
            )
        self._undo_if_empty(root)

    def _drop_held(self, root: _OpenGang, uid: PodUid) -> None:
        del self._reservations_on(root.reservations.pop(uid).node)[uid]

    def _lose_member(self, event: RecordedEvent, root: _OpenGang, fact: MemberTerminated) -> None:
        if fact.uid in root.bound:
            member = root.bound.pop(fact.uid)
            if fact.cause == "node-lost":
                root.lost_with_node[fact.uid] = member
            elif fact.held_until_us:
                self._add_hold(root, member, event.at_us, fact.held_until_us)
            del self._root_of[fact.uid]
            self._undo_if_empty(root)

    def _add_hold(self, root: _OpenGang, member: BoundMember, at_us: int, until_us: int) -> None:
        """Add the replacement hold of a lost member."""
        hold = ReplacementHold(
            plan=member.plan, gang_uid=root.uid, pod=member.pod, uid=member.uid, group=member.group,
            node=member.node, requests=member.requests, priority=root.priority, at_us=at_us, until_us=until_us,
        )  # fmt: skip
        root.replacement_holds = root.replacement_holds.set(member.uid, hold)
        here = self._vacant_on.get(member.node, Map()).set(member.uid, hold)
        self._vacant_on = self._vacant_on.set(member.node, here)

    def _drop_hold(self, root: _OpenGang, uid: PodUid) -> None:
        node = root.replacement_holds[uid].node
        root.replacement_holds = root.replacement_holds.delete(uid)
        here = self._vacant_on[node].delete(uid)
        self._vacant_on = self._vacant_on.set(node, here) if here else self._vacant_on.delete(node)

    def _use_holds(self, root: _OpenGang, places: Iterable[tuple[str, NodeName]]) -> None:
        """Remove the replacement holds that new members of the leaf use: those on the same node first, then the oldest.

        Args:
            root: The root of the members.
            places: Leaf and node of each new member.
        """
        elsewhere: list[str] = []
        for group, node in places if root.replacement_holds else ():
            same = [
                v for v in root.replacement_holds.values() if (v.group, v.node) == (group, node)
            ]
            if same:
                self._drop_hold(root, min(same, key=_hold_age).uid)
            else:
                elsewhere.append(group)
        for group in elsewhere:
            others = [v for v in root.replacement_holds.values() if v.group == group]
            if others:
                self._drop_hold(root, min(others, key=_hold_age).uid)

    def _undo_if_empty(self, root: _OpenGang) -> None:
        """Undo the admission of a root that is not satisfied and has no reservations and no bound members left."""
        if root.phase == "admitted" and not root.reservations and not root.bound:
            root.phase, root.plan, root.groups = "observed", None, ()
            root.topology = self._opened(Map())

    def _reject_node(self, event: RecordedEvent, fact: NodeRejected) -> None:
        key = RejectionKey(event.gang_uid, fact.uid, fact.node)
        before = self._vetoes.get(key)
        times = before.times + 1 if before is not None else 1
        self._vetoes[key] = RejectionState(fact.by_shape, fact.until_ms, event.at_us // 1000, times)
        self._vetoed.setdefault(key.gang_uid, set()).add(key)

    def _complete(self, event: RecordedEvent) -> None:
        root = self._root(event)
        for uid, reservation in _closed(root.reservations).items():
            del self._reservations_on(reservation.node)[uid]
            del self._root_of[uid]
        for uid in _closed(root.bound):
            del self._root_of[uid]
        for uid in root.replacement_holds:
            self._drop_hold(root, uid)
        preemption = self._preemptions.get(root.uid)
        if preemption is not None:  # if it has not ended, its end is in a lost part of the log
            self._set_preemption(root.uid, preemption_state.abandoned(preemption, ()))
        if root.uid in self._took:
            self._took = self._took.delete(root.uid)
        if self._vetoes_before is not None:
            for key in self._vetoes_before:
                self._vetoed.setdefault(key.gang_uid, set()).add(key)
            self._vetoes_before = None
        for key in self._vetoed.pop(root.uid, ()):
            del self._vetoes[key]
        del self._roots[root.uid]
        self._known.pop(root.uid, None)


def _hold_age(hold: ReplacementHold) -> tuple[int, str, PodUid]:
    return hold.at_us, hold.pod, hold.uid


def _without(tried: Map[PodUid, NodeName], fact: GangExtended) -> Map[PodUid, NodeName]:
    """Return `tried` without the members that have a reservation again."""
    held = {record.uid for record in fact.assignments}
    return Map({uid: node for uid, node in tried.items() if uid not in held})


def _preempting(event: RecordedEvent, fact: PreemptionPlanned) -> LastDecision:
    """Return the answer of a root while its victims terminate (SPEC E-12)."""
    text = f"waits for its preemption to finish: {preemption_summary(fact)}"
    return LastDecision(
        outcome=PREEMPTING, reasons=(text,), position=event.position, at_us=event.at_us
    )
