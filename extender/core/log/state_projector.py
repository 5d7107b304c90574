"""Makes the reservation state from the events of the log: only `StateProjector` changes it.

The SQL function `gx.project_event` does the same for the tables of intervals; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
from immutables import Map

from extender.core.log import events as ev
from extender.core.log.capacity_claim import NO_CLAIMS, CapacityClaim, ClaimKey, planned_claims
from extender.core.log.gang_phase import HOLDS_CAPACITY, PREEMPTING
from extender.core.log.moves_state import after_event
from extender.core.log.reservation_state import (
    EVICTED_BY_EXTENDER,
    EVICTION_MEMORY_US,
    FAILED_REASONS,
    NO_PREEMPTOR,
    BindFailure,
    BoundMember,
    CapacityHold,
    GangFields,
    GangState,
    LastDecision,
    MemberLoss,
    PendingPreemption,
    RejectionKey,
    RejectionState,
    Reservation,
    ReservationState,
    StateFields,
    UnusedHolds,
    WorkloadTree,
    cancelled_preemption,
    completed_preemption,
    evicted_pod,
    planned_preemption,
    preemption_summary,
    recently_gone,
    with_victim_gone,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import GangUid, NodeName, PodUid
from extender.core.model.pods import SUCCEEDED
from extender.core.model.visibility import namespace_of

if TYPE_CHECKING:
    from immutables import MapMutation

    _Open: TypeAlias = Callable[[Mapping[Any, Any]], MutableMapping[Any, Any]]
    _Close: TypeAlias = Callable[[MutableMapping[Any, Any]], Any]


# After this time without such a use `GangState.capacity_used_times` starts at one again.
CAPACITY_USE_MEMORY_US: Final = 600_000_000
_NAMED_MAX: Final = 5  # pods that are named of those that did not arrive at the bind barrier
_NO_NODES: Final[Map[NodeName, tuple[CapacityClaim, ...]]] = Map()
_UNKNOWN: Final[dict[str, int]] = {}  # requests of a pod that had no reservation
# Reasons of a release after which members are planned first on the nodes where they were.
_WITHOUT_BIND: Final = ("expired", "node-rejected")
NO_CAPACITY: Final = ("impossible", "unknown")  # outcomes of a tree that is complete
# Reasons of the end of a hold after which the next one of its namespace is delayed, ...
UNUSED_HOLD: Final = ("expired", "changed", "deleted")
# ... and of those that only count for later delays: a tree of higher priority of the same namespace may be the cause.
_COUNTED_HOLD: Final = (*UNUSED_HOLD, "superseded")
UNUSED_HOLD_MEMORY_US: Final = 86_400_000_000  # a day after the delay they do not count any more
HOLD_DELAY_MAX_US: Final = 86_400_000_000


def fold(state: ReservationState, events: Iterable[ev.RecordedEvent]) -> ReservationState:
    """Return the state after `events`; folding in several calls gives the same state as in one."""
    projector = StateProjector(state)
    projector.apply(events)
    return projector.close()


class _OpenGang(GangFields, eq=False):
    """A `GangState` while it changes: the same fields in the same order, with maps that can be changed."""

    reservations: MutableMapping[PodUid, Reservation] = msgspec.field(default_factory=dict)
    bound: MutableMapping[PodUid, BoundMember] = msgspec.field(default_factory=dict)
    lost_with_node: MutableMapping[PodUid, BoundMember] = msgspec.field(default_factory=dict)
    # Few: changed one by one.
    replacement_holds: Map[PodUid, CapacityClaim] = Map()
    previous_nodes: Map[PodUid, NodeName] = Map()
    topology: MutableMapping[NodeName, dict[str, str]] = msgspec.field(default_factory=dict)

    def close(self, closed: _Close) -> GangState:
        """Return the current state of the root. The root must not be used after that."""
        self.reservations = closed(self.reservations)
        self.bound = closed(self.bound)
        self.lost_with_node = closed(self.lost_with_node)
        self.topology = closed(self.topology)
        return GangState(*_values(self))


_values = attrgetter(*GangFields.__struct_fields__)
_state_values = attrgetter(*StateFields.__struct_fields__)


def _opened_gang(gang: GangState, opened: _Open) -> _OpenGang:
    root = _OpenGang(*_values(gang))
    root.reservations = opened(gang.reservations)
    root.bound = opened(gang.bound)
    root.lost_with_node = opened(gang.lost_with_node)
    root.replacement_holds = _persistent(gang.replacement_holds)
    root.previous_nodes = _persistent(gang.previous_nodes)
    root.topology = opened(gang.topology)
    return root


def _closed(opened: MutableMapping[Any, Any]) -> Map[Any, Any]:
    if isinstance(opened, dict):
        return Map(opened)
    return cast("MapMutation[Any, Any]", opened).finish()


def _plain(opened: MutableMapping[Any, Any]) -> Mapping[Any, Any]:
    return opened


def _persistent(mapping: Mapping[Any, Any]) -> Map[Any, Any]:
    return mapping if isinstance(mapping, Map) else Map(mapping)


class StateProjector:
    """A mutable copy of a state to which events are applied in place, several times faster than on immutable maps.

    The state that it was made from does not change. Do not use it after an exception or after `close`.

    Args:
        bulk: Convert all maps at once instead of only those that events touch; faster from about ten thousand
            events on.
        knows_ended: The state has the versions of streams that ended. Otherwise the first event of a stream that it
            does not know may have any.
        past: The result is only read: it has no versions of streams that ended, the indexes
            `claims_on` and `gang_of` are not kept, and the maps of roots are plain dicts.
    """

    __slots__ = (
        "_claims_before", "_gang_of", "_gang_of_before", "_known", "_knows_ended", "_now", "_open_nodes", "_opened", "_past",
        "_rejections", "_rejections_of", "_roots", "_stream_versions", "_trees", "_unsorted_rejections", "position",
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
        # What is small is changed here, one by one; the other maps are opened, and closed at the end.
        self._now = StateFields(*_state_values(state))
        opened: _Open = dict if bulk else cast("_Open", Map.mutate)
        self._trees = opened(state.trees)
        self._opened: _Open = dict if past else opened  # for maps of one root, or of one node
        # A root that is in `_roots` is missing here, or has its old state.
        self._known = opened(state.gangs)
        self._roots: dict[GangUid, _OpenGang] = {}  # those that events touched
        self._stream_versions = opened(state.stream_versions)
        self._claims_before = state.claims_on
        # By node: the claims on those that events touched.
        self._open_nodes: dict[NodeName, MutableMapping[ClaimKey, CapacityClaim]] = {}
        self._gang_of: MutableMapping[PodUid, GangUid] = {} if past else opened(state.gang_of)
        self._gang_of_before = None if past else state.gang_of  # None: it has changed
        self._rejections = opened(state.rejections)
        # By root: the keys of its rejections. Those of the state are added when the first root ends.
        self._rejections_of: dict[GangUid, set[RejectionKey]] = {}
        self._unsorted_rejections: Map[RejectionKey, RejectionState] | None = state.rejections

    def close(self) -> ReservationState:
        """Return the current state."""
        now, closed = self._now, _plain if self._past else _closed
        for uid, root in self._roots.items():
            self._known[uid] = root.close(closed)
        if self._open_nodes:
            nodes = self._claims_before.mutate()
            for node, claims in self._open_nodes.items():
                if claims:
                    nodes[node] = _closed(claims)
                else:
                    nodes.pop(node, None)
            now.claims_on = nodes.finish()
        if self._gang_of_before is None:  # else it stays the same object
            now.gang_of = _closed(self._gang_of)
        now.position = self.position
        now.gangs, now.stream_versions = _closed(self._known), _closed(self._stream_versions)
        now.rejections, now.trees = _closed(self._rejections), _closed(self._trees)
        return ReservationState(*_state_values(now))

    def apply(self, events: Iterable[ev.RecordedEvent]) -> None:
        """Apply events in order.

        Raises:
            CorruptLog: An event does not continue the log or its stream.
        """
        versions, apply, knows_ended = self._stream_versions, self._apply, self._knows_ended
        now = self._now
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
            now.epoch, now.at_us = event.epoch, event.at_us
            under_way = now.moves is not None
            apply(event)
            if under_way:
                self._follow_moves(event)

    def _apply(self, event: ev.RecordedEvent) -> None:  # noqa: C901, PLR0912, PLR0915 -- one arm per event, the frequent ones first
        match event.data:
            case ev.PodBound() as data:
                self._bind(event, data)
            case ev.GangAdmitted() | ev.GangExtended() as data:
                self._reserve(event, data)
            case ev.GangObserved() as data:
                root = self._root(event)
                root.kind, root.priority = data.kind, data.priority
            case ev.GangScheduled():
                root = self._root(event)
                root.phase = "scheduled"
                root.capacity_used_times = 0
                root.bind_failure = None
            case ev.MemberTerminated() as data:
                if self._exists(event.gang_uid):
                    self._lose_member(event, self._root(event), data)
            case ev.GangRemoved():
                self._complete(event)
            case ev.GangUnschedulable() as data:
                self._refuse(event, data)
            case ev.ReservationReleased() as data:
                self._release(event, data)
            case ev.GangInvalid() as data:
                root = self._root(event)
                root.refused_since_us = 0
                if root.phase not in HOLDS_CAPACITY:
                    root.phase = "invalid"
                root.last_decision = _decision(event, "invalid", data.problems)
            case ev.NodeRejected() as data:
                self._reject_node(event, data)
            case ev.GangGroupsChanged() as data:
                self._root(event).groups = data.groups
            case ev.NodeTopologyChanged() as data:
                root = self._root(event)
                labels = {key: data.after.get(key, "") for key in (*data.before, *data.after)}
                before = root.topology.get(data.node, {})
                root.topology[data.node] = dict.fromkeys(before, "") | labels
            case ev.PreemptionPlanned() as data:
                self._preempt(event, data)
            case ev.VictimGone() | ev.PreemptionCompleted() | ev.PreemptionCancelled() as data:
                self._follow_preemption(event, data)
            case ev.CapacityHeld() as data:
                self._hold_capacity(event, data)
            case ev.CapacityHoldReleased() as data:
                self._end_hold(event, data)
            case ev.HistoryTruncated():
                self._now.truncated_epoch = event.epoch
            case ev.ControlPlaneFeaturesDetected() as data:
                self._now.features = data
            case ev.TreeCompiled() | ev.TreeRefused() as data:
                self._trees[data.uid] = _tree(event, data, self._trees.get(data.uid))
            case ev.TreeRetired() as data:
                self._trees.pop(data.uid, None)
            case ev.BindBarrierTimedOut() | ev.PodBindFailed() as data:
                self._root(event).bind_failure = _bind_failure(event, data)
            case ev.MovesPlanned() if self._now.moves is None:
                self._follow_moves(event)
            case _:  # it changes no state, or `apply` follows the moves
                pass

    def _follow_moves(self, event: ev.RecordedEvent) -> None:
        before = self._now.moves
        self._now.moves = moves = after_event(before, event)
        if moves is not before:
            self._replace_claims(before.claims() if before else (), moves.claims() if moves else ())

    def _exists(self, uid: GangUid) -> bool:
        return uid in self._roots or uid in self._known

    def _root(self, event: ev.RecordedEvent) -> _OpenGang:
        """Return the root of an event to change it; an unknown root is created."""
        uid = event.gang_uid
        root = self._roots.get(uid)
        if root is None:
            existing = self._known.get(uid)
            if existing is None:
                existing = GangState(uid=uid, gang=event.gang, observed_us=event.at_us)
            root = self._roots[uid] = _opened_gang(existing, self._opened)
        return root

    def _claims_on(self, node: NodeName) -> MutableMapping[ClaimKey, CapacityClaim]:
        """Return the claims on a node to change them; not for a state that is only read."""
        claims = self._open_nodes.get(node)
        if claims is None:
            claims = self._opened(self._claims_before.get(node, NO_CLAIMS))
            self._open_nodes[node] = claims
        return claims

    def _replace_claims(
        self, before: Iterable[CapacityClaim], after: Iterable[CapacityClaim] = ()
    ) -> None:
        """Remove claims from the index, then add others."""
        if self._past:
            return
        for claim in before:
            del self._claims_on(claim.node)[claim.key]
        for claim in after:
            self._claims_on(claim.node)[claim.key] = claim

    def _reserve(self, event: ev.RecordedEvent, data: ev.GangAdmitted | ev.GangExtended) -> None:
        root = self._root(event)
        uid, at_us, plan, priority = event.gang_uid, event.at_us, data.plan, data.priority
        indexed = not self._past
        for reservation in planned_claims("reservation", plan, uid, data, at_us=at_us):
            root.reservations[reservation.uid] = reservation
            if indexed:
                self._claims_on(reservation.node)[reservation.key] = reservation
                self._assign(reservation.uid, uid)
        if root.previous_nodes:  # none are left after an admission
            reserved = {record.uid for record in data.assignments}
            left = root.previous_nodes.items() if isinstance(data, ev.GangExtended) else ()
            root.previous_nodes = Map({u: node for u, node in left if u not in reserved})
        self._use_holds(root, [(record.group, record.node) for record in data.assignments])
        for name, labels in data.topology.items():
            if labels:
                node = NodeName(name)
                root.topology[node] = dict.fromkeys(root.topology.get(node, {}), "") | labels
        root.plan, root.priority, root.groups = plan, priority, data.groups
        root.last_decision = None
        root.refused_since_us = 0
        if (preemption := self._now.preemptions.get(uid)) is not None:
            # the reservations of the preemptor replace its claims
            self._set_preemption(uid, msgspec.structs.replace(preemption, claims=Map()))
        if isinstance(data, ev.GangAdmitted):
            if root.phase != "scheduled":
                root.phase = "admitted"
            root.admitted_us = at_us
            root.kind = data.kind

    def _hold_capacity(self, event: ev.RecordedEvent, data: ev.CapacityHeld) -> None:
        """Add the hold of a root, in place of one before."""
        hold = CapacityHold(
            hold=data.hold, gang_uid=event.gang_uid, gang=event.gang, kind=data.kind, priority=data.priority,
            position=event.position, at_us=event.at_us, until_us=data.until_us, waiting_since_us=data.waiting_since_us,
            groups=data.groups,
            pods=tuple(planned_claims(
                "hold", data.hold, event.gang_uid, data, at_us=event.at_us, until_us=data.until_us
            )),
        )  # fmt: skip
        self._drop_capacity_hold(event.gang_uid)
        self._now.capacity_holds = self._now.capacity_holds.set(event.gang_uid, hold)
        self._replace_claims((), hold.pods)

    def _drop_capacity_hold(self, uid: GangUid) -> None:
        hold = self._now.capacity_holds.get(uid)
        if hold is not None:
            self._now.capacity_holds = self._now.capacity_holds.delete(uid)
            self._replace_claims(hold.pods)

    def _end_hold(self, event: ev.RecordedEvent, data: ev.CapacityHoldReleased) -> None:
        """Remove the hold of a root, unless it is another one; what it did not use delays the next one."""
        hold = self._now.capacity_holds.get(event.gang_uid)
        if hold is None or hold.hold != data.hold:
            return
        self._drop_capacity_hold(event.gang_uid)
        if data.reason not in _COUNTED_HOLD:
            return
        namespace, now_us = namespace_of(hold.gang), event.at_us
        recent = {n: u for n, u in self._now.unused_holds.items() if counts_as_unused(u, now_us)}
        delays = data.reason in UNUSED_HOLD
        unused = _with_unused(recent.get(namespace), hold, now_us, delays=delays)
        self._now.unused_holds = Map(recent | {namespace: unused})
        if delays and self._exists(event.gang_uid):
            self._root(event).no_hold_until_us = unused.until_us

    def _preempt(self, event: ev.RecordedEvent, data: ev.PreemptionPlanned) -> None:
        uid, extras = event.gang_uid, False
        self._now.evicted_pods = recently_gone(self._now.evicted_pods, event.at_us)
        if (before := self._now.preemptions.get(uid)) is not None:  # replaced: its victims end, too
            self._remember_gone(event, before, before.victims)
        if data.kind != "Pod":
            root = self._root(event)
            extras = root.phase == "scheduled"
            # the answer while its victims terminate (E-12)
            text = f"waits for its preemption to finish: {preemption_summary(data)}"
            root.last_decision = _decision(event, PREEMPTING, (text,))
        self._set_preemption(uid, planned_preemption(event, data, extras=extras))

    def _follow_preemption(
        self,
        event: ev.RecordedEvent,
        data: ev.VictimGone | ev.PreemptionCompleted | ev.PreemptionCancelled,
    ) -> None:
        """Apply an event of the preemption of a root; one of an unknown preemption is ignored."""
        uid = event.gang_uid
        before = self._now.preemptions.get(uid)
        if before is None:
            return
        match data:
            case ev.VictimGone():
                self._remember_gone(event, before, [data.uid] * (data.uid in before.victims))
                self._set_preemption(uid, with_victim_gone(event, before, data))
                if data.via in EVICTED_BY_EXTENDER:
                    self._remember(event, before, data.unit)
            case ev.PreemptionCompleted():
                self._set_preemption(uid, completed_preemption(before))
                if self._exists(uid):
                    self._root(event).failed_preemptions = 0
            case ev.PreemptionCancelled():
                partly = data.reason == "taken-over" and before.kind != "Pod"
                lost = data.taken_over_nodes if partly else None
                after = cancelled_preemption(before, data.units_in_progress, lost=lost)
                self._set_preemption(uid, after)
                if not self._exists(uid):
                    return
                root = self._root(event)
                if root.last_decision is not None and root.last_decision.outcome == PREEMPTING:
                    root.last_decision = None  # the next pass records a new answer
                if data.reason in FAILED_REASONS:
                    root.failed_preemptions += 1
                    root.failed_preemption_us = event.at_us

    def _remember_gone(
        self, event: ev.RecordedEvent, preemption: PendingPreemption, pods: Iterable[PodUid]
    ) -> None:
        """Record victims that leave the pending preemptions, until their end as members is recorded."""
        evicted = evicted_pod(event, preemption)
        for uid in pods:
            self._now.evicted_pods = self._now.evicted_pods.set(uid, evicted)

    def _remember(self, event: ev.RecordedEvent, preemption: PendingPreemption, unit: str) -> None:
        """Record a unit that a preemptor evicted: for a tree until it is deleted, for a pod while it is recent."""
        uid = event.gang_uid
        if preemption.kind == "Pod":
            oldest_us = event.at_us - EVICTION_MEMORY_US
            for other, taken in self._now.evicted_units.items():
                if not self._exists(other) and max(taken.values()) < oldest_us:
                    self._now.evicted_units = self._now.evicted_units.delete(other)
        elif not self._exists(uid):
            return
        self._now.evicted_units = self._now.evicted_units.set(
            uid, self._now.evicted_units.get(uid, Map()).set(unit, event.at_us)
        )

    def _set_preemption(self, uid: GangUid, after: PendingPreemption | None) -> None:
        before = self._now.preemptions.get(uid)
        if after is not None:
            self._now.preemptions = self._now.preemptions.set(uid, after)
        elif before is not None:
            self._now.preemptions = self._now.preemptions.delete(uid)
        old, new = before.claims if before else _NO_NODES, after.claims if after else _NO_NODES
        if old is not new:
            self._replace_claims(chain(*old.values()), chain(*new.values()))

    def _refuse(self, event: ev.RecordedEvent, data: ev.GangUnschedulable) -> None:
        root, reduced = self._root(event), data.preemption_notes_reduced
        root.last_decision = LastDecision(
            outcome=data.outcome,
            reasons=data.reasons + data.preemption_notes,
            position=event.position,
            at_us=event.at_us,
            help=data.help,
            when_empty=data.when_empty,
            reasons_when_empty=data.reasons_when_empty,
            reasons_reduced=(*data.reasons, *reduced) if reduced else (),
        )
        if data.outcome not in NO_CAPACITY:
            root.refused_since_us = 0
        elif not root.refused_since_us:
            root.refused_since_us = event.at_us
        if root.phase not in HOLDS_CAPACITY:
            root.phase = "waiting" if data.outcome == "waiting" else "unschedulable"

    def _bind(self, event: ev.RecordedEvent, data: ev.PodBound) -> None:
        root, uid, indexed = self._root(event), data.uid, not self._past
        reservation = root.reservations.pop(uid, None)
        lost = root.lost_with_node.pop(uid, None)
        before = reservation or lost or root.bound.get(uid)
        if indexed and reservation is not None:
            del self._claims_on(reservation.node)[reservation.key]
        root.bound[uid] = BoundMember(
            plan=data.plan,
            pod=data.pod,
            uid=uid,
            group=data.group,
            node=data.node,
            requests=before.requests if before is not None else _UNKNOWN,
        )
        if indexed:
            self._assign(uid, root.uid)
        failure = root.bind_failure
        if failure is not None and not failure.missing and failure.pods == (data.pod,):
            root.bind_failure = None
        if before is None:
            self._use_holds(root, [(data.group, data.node)])
        if root.succeeded:  # the new member follows one that succeeded
            left = root.succeeded.get(data.group, 0) - 1
            others = {leaf: n for leaf, n in root.succeeded.items() if leaf != data.group}
            root.succeeded = others | ({data.group: left} if left > 0 else {})

    def _release(self, event: ev.RecordedEvent, data: ev.ReservationReleased) -> None:
        """Remove reservations or replacement holds."""
        root = self._root(event)
        for pod in data.pods:
            if pod.uid in root.reservations:
                if data.reason in _WITHOUT_BIND:
                    node = root.reservations[pod.uid].node
                    root.previous_nodes = root.previous_nodes.set(pod.uid, node)
                self._replace_claims([root.reservations.pop(pod.uid)])
                if not self._past:
                    self._unassign(pod.uid, root.uid)
            elif pod.uid in root.replacement_holds:
                self._drop_hold(root, pod.uid)
        if data.taken_by:
            is_recent = event.at_us - root.capacity_used_us < CAPACITY_USE_MEMORY_US
            root.capacity_used_times = root.capacity_used_times + 1 if is_recent else 1
            root.capacity_used_us = event.at_us
        self._undo_if_empty(root)

    def _assign(self, uid: PodUid, gang_uid: GangUid) -> None:
        """Note which gang a pod belongs to; a member keeps it when it is bound."""
        if self._gang_of.get(uid) != gang_uid:
            self._gang_of[uid] = gang_uid
            self._gang_of_before = None

    def _unassign(self, uid: PodUid, gang_uid: GangUid) -> None:
        # in logs of older versions a pod can be a member of a gang that was made again, and of the one before
        if self._gang_of.get(uid) == gang_uid:
            del self._gang_of[uid]
            self._gang_of_before = None

    def _lose_member(
        self, event: ev.RecordedEvent, root: _OpenGang, data: ev.MemberTerminated
    ) -> None:
        uid, member = data.uid, root.bound.pop(data.uid, None)
        if member is None:
            return
        if (data.cause, data.message) == ("ended", SUCCEEDED):
            before = root.succeeded.get(member.group, 0)
            root.succeeded = root.succeeded | {member.group: before + 1}
        else:
            # by the newest preemption that the pod is or was a victim of
            preemptors = [
                evicted_pod(event, p) for p in self._now.preemptions.values() if uid in p.victims
            ]
            evicted = self._now.evicted_pods.get(uid, NO_PREEMPTOR)
            by = max((*preemptors, evicted), key=lambda preemptor: preemptor.position)
            root.last_loss = MemberLoss(
                pod=data.pod, uid=uid, node=data.node, cause=data.cause, message=data.message,
                position=event.position, at_us=event.at_us, preemptor=by.preemptor, preemption=by.position,
                preemptor_priority=by.priority, preemptor_pods=by.pods,
            )  # fmt: skip
        if uid in self._now.evicted_pods:
            self._now.evicted_pods = self._now.evicted_pods.delete(uid)
        if data.cause == "node-lost":
            root.lost_with_node[uid] = member
        elif data.held_until_us:
            hold = replacement_hold(member, root, at_us=event.at_us, until_us=data.held_until_us)
            root.replacement_holds = root.replacement_holds.set(uid, hold)
            self._replace_claims((), [hold])
        if not self._past:
            self._unassign(uid, root.uid)
        self._undo_if_empty(root)

    def _drop_hold(self, root: _OpenGang, uid: PodUid) -> None:
        self._replace_claims([root.replacement_holds[uid]])
        root.replacement_holds = root.replacement_holds.delete(uid)

    def _use_holds(self, root: _OpenGang, places: Iterable[tuple[str, NodeName]]) -> None:
        """Remove the replacement holds that new members of the leaf use: those on the same node first, then the oldest.

        Args:
            places: Leaf and node of each new member.
        """
        elsewhere: list[str] = []
        for group, node in places if root.replacement_holds else ():
            holds = root.replacement_holds.values()
            if same := [v for v in holds if (v.group, v.node) == (group, node)]:
                self._drop_hold(root, min(same, key=_hold_age).uid)
            else:
                elsewhere.append(group)
        for group in elsewhere:
            if others := [v for v in root.replacement_holds.values() if v.group == group]:
                self._drop_hold(root, min(others, key=_hold_age).uid)

    def _undo_if_empty(self, root: _OpenGang) -> None:
        """Undo the admission of a root that is not satisfied and has no reservations and no bound members left."""
        if root.phase == "admitted" and not root.reservations and not root.bound:
            root.phase = "observed"
            root.plan = None
            root.groups = ()
            root.topology = self._opened(Map())

    def _reject_node(self, event: ev.RecordedEvent, data: ev.NodeRejected) -> None:
        key = RejectionKey(event.gang_uid, data.uid, data.node)
        times = self._rejections[key].times + 1 if key in self._rejections else 1
        self._rejections[key] = RejectionState(
            data.by_shape, data.until_ms, event.at_us // 1000, times
        )
        self._rejections_of.setdefault(key.gang_uid, set()).add(key)

    def _complete(self, event: ev.RecordedEvent) -> None:
        root = self._root(event)
        if not self._past:
            reservations = _closed(root.reservations)
            for uid in (*reservations, *_closed(root.bound)):
                self._unassign(uid, root.uid)
            self._replace_claims((*reservations.values(), *root.replacement_holds.values()))
        preemption = self._now.preemptions.get(root.uid)
        if preemption is not None:  # if it has not ended, its end is in a lost part of the log
            self._set_preemption(root.uid, cancelled_preemption(preemption, ()))
        self._drop_capacity_hold(root.uid)
        if root.uid in self._now.evicted_units:
            self._now.evicted_units = self._now.evicted_units.delete(root.uid)
        if self._unsorted_rejections is not None:
            for key in self._unsorted_rejections:
                self._rejections_of.setdefault(key.gang_uid, set()).add(key)
            self._unsorted_rejections = None
        for key in self._rejections_of.pop(root.uid, ()):
            del self._rejections[key]
        del self._roots[root.uid]
        self._known.pop(root.uid, None)


def counts_as_unused(unused: UnusedHolds, now_us: int) -> bool:
    """Return whether unused holds of a namespace still delay it, or its next unused hold lets it wait for longer."""
    return now_us <= unused.until_us + UNUSED_HOLD_MEMORY_US


def _with_unused(
    before: UnusedHolds | None, hold: CapacityHold, now_us: int, *, delays: bool
) -> UnusedHolds:
    """Return the unused holds of a namespace with one more.

    The delay is as long as that one lasted, doubled for each longest duration of a hold that was not used before, and a
    day at most.
    """
    before = before or UnusedHolds(held_us=0, ended_us=0, until_us=now_us)
    lasted_us, longest_us = max(now_us - hold.at_us, 0), max(hold.until_us - hold.at_us, 1)
    held_us = before.held_us + lasted_us
    if not delays:
        return msgspec.structs.replace(before, held_us=held_us)
    delay_us = min(lasted_us << min(before.held_us // longest_us, 32), HOLD_DELAY_MAX_US)
    return UnusedHolds(held_us=held_us, ended_us=now_us, until_us=now_us + delay_us)


def replacement_hold(
    member: BoundMember, root: GangFields, *, at_us: int, until_us: int
) -> CapacityClaim:
    """Return what is kept for the replacement of a lost member of a root."""
    return CapacityClaim(
        kind="replacement", plan=member.plan, gang_uid=root.uid, pod=member.pod, uid=member.uid, group=member.group,
        node=member.node, requests=member.requests, priority=root.priority, at_us=at_us, until_us=until_us,
    )  # fmt: skip


def _hold_age(hold: CapacityClaim) -> tuple[int, str, PodUid]:
    return hold.at_us, hold.pod, hold.uid


def _decision(event: ev.RecordedEvent, outcome: str, reasons: tuple[str, ...]) -> LastDecision:
    return LastDecision(
        outcome=outcome, reasons=reasons, position=event.position, at_us=event.at_us
    )


def _bind_failure(
    event: ev.RecordedEvent, data: ev.BindBarrierTimedOut | ev.PodBindFailed
) -> BindFailure:
    """Return what kept members from being bound; pods of a large gang are left out."""
    position, at_us = event.position, event.at_us
    if isinstance(data, ev.PodBindFailed):
        return BindFailure(
            pods=(data.pod,), node=data.node, error=data.error, position=position, at_us=at_us
        )
    return BindFailure(
        pods=data.missing[:_NAMED_MAX],
        arrived=len(data.arrived),
        missing=len(data.missing),
        position=position,
        at_us=at_us,
        still_arriving=data.still_arriving,
    )


def _tree(
    event: ev.RecordedEvent, data: ev.TreeCompiled | ev.TreeRefused, before: WorkloadTree | None
) -> WorkloadTree:
    """Return the tree of a workload after an event; a refusal leaves the groups as they are."""
    refused = WorkloadTree(
        kind=data.kind,
        workload=data.workload,
        uid=data.uid,
        generation=data.generation,
        table_version=data.table_version,
        profile=data.profile,
        owner=before.owner if before else "",
        owner_uid=before.owner_uid if before else data.uid,
        outcome="refused",
        groups=before.groups if before else (),
        reason=data.reason,
        message=data.message,
        notices=(),
        position=event.position,
        at_us=event.at_us,
        suspended=before.suspended if before else False,
        adopted=before.adopted if before else (),
        resumed_us=before.resumed_us if before else 0,
    )
    if isinstance(data, ev.TreeRefused):
        return refused
    resumes = refused.suspended and not data.suspended
    return msgspec.structs.replace(
        refused,
        owner=data.owner,
        owner_uid=data.owner_uid or data.uid,
        outcome="basic" if data.basic else "compiled",
        groups=data.groups,
        notices=data.notices,
        suspended=data.suspended,
        adopted=data.adopted,
        resumed_us=event.at_us if resumes else refused.resumed_us,
    )
