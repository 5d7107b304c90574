"""The form in which events leave the service, over HTTP and on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

from extender.core.log.control_plane_features import dropped_field_texts
from extender.core.log.events import (
    AnyEventData,
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
from extender.core.model.errors import BadInput
from extender.core.model.ids import GangUid, Position

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- UTC; a naive value is faster to add to
_TWO = tuple(f"{number:02}" for number in range(60))
NAMED_MAX = 3  # units named in a summary; `data` has all of them
PAGE = 5_000  # events per query when all of them are read


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the API shows it (DESIGN 7)."""

    position: Position
    time: str  # RFC 3339, UTC, microseconds
    type: str
    stream_version: int  # stream version: place in the stream of its gang
    gang: str
    gang_uid: GangUid
    epoch: int
    actor: str
    cause: str
    summary: str
    data: AnyEventData


def event_line(event: RecordedEvent) -> EventLine:
    """Return an event as the API shows it."""
    return EventLine(
        position=event.position,
        time=rfc3339(event.at_us),
        type=type(event.data).__name__,
        stream_version=event.stream_version,
        gang=event.gang,
        gang_uid=event.gang_uid,
        epoch=event.epoch,
        actor=event.actor,
        cause=event.cause,
        summary=summary(event.data),
        data=event.data,
    )


def rfc3339(at_us: int) -> str:
    """Return microseconds since the epoch as RFC 3339 text in UTC.

    Faster than `datetime.isoformat`, because a state has thousands of times.

    >>> rfc3339(1_800_000_000_000_001)
    '2027-01-15T08:00:00.000001Z'
    """
    seconds, us = divmod(at_us, 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{_date(days)}T{_TWO[hours]}:{_TWO[minutes]}:{_TWO[seconds % 60]}.{us:06}Z"


@lru_cache(maxsize=1024)
def _date(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def parse_time(text: str, field: str) -> int:
    """Return an RFC 3339 time with an offset or Z as microseconds since the epoch.

    Raises:
        BadInput: The text is not a time, or has no offset.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        msg = f"{field}: {text!r} is not a time with offset, for example 2026-11-20T03:12:00Z"
        raise BadInput(msg)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // timedelta(microseconds=1)


def summary(fact: AnyEventData) -> str:  # noqa: C901, PLR0911, PLR0912 -- one arm per event
    """Return a summary of an event in one line, for people."""
    match fact:
        case GangObserved():
            return f"{fact.kind} seen with {_count(fact.groups, 'group')} and {_count(fact.members, 'member')}"
        case GangAdmitted() | GangExtended():
            return _admitted(fact)
        case GangUnschedulable():
            return f"{fact.outcome}: {fact.reasons[0] if fact.reasons else 'no reason given'}"
        case GangInvalid():
            return f"invalid: {fact.problems[0]}"
        case PodBound():
            return f"{fact.pod} bound to {fact.node}"
        case PodBindFailed():
            return f"{fact.pod} not bound to {fact.node}: {fact.error}"
        case BindBarrierTimedOut():
            return (
                f"{_count(len(fact.arrived), 'member')} waited {fact.waited_ms / 1000:.1f} s at bind, "
                f"{len(fact.missing)} did not come; no member was bound"
            )
        case NodeRejected():
            return f"kube-scheduler refused {fact.node} for {fact.pod}"
        case ReservationReleased():
            what = _count(len(fact.pods), "reservation")
            return f"{what} given back ({fact.reason})" + (
                f": {fact.message}" if fact.message else ""
            )
        case GangScheduled():
            return f"minimum met, {_count(fact.bound, 'member')} bound"
        case MemberTerminated():
            return f"{fact.pod} lost from {fact.node} ({': '.join(filter(None, (fact.cause, fact.message)))})"
        case NodeTopologyChanged():
            return f"topology of {fact.node} changed from {_pairs(fact.before)} to {_pairs(fact.after)}"
        case PreemptionPlanned():
            return _preemption(fact)
        case VictimGone():
            return f"{fact.pod} of {fact.unit} gone from {fact.node} ({fact.via})"
        case PreemptionCompleted():
            return (
                f"preemption completed after {fact.duration_ms / 1000:.1f} s: {_count(fact.bound, 'member')} "
                f"bound, {_count(fact.evicted, 'victim')} evicted"
            )
        case PreemptionCancelled():
            return _abandoned(fact)
        case GangRemoved():
            return fact.reason
        case CapacityMeasured():
            return _room(fact)
        case ControlPlaneFeaturesDetected():
            return _features(fact)
        case DriftDetected():
            return f"{fact.kind}: {fact.object} {fact.message}"
        case HistoryTruncated():
            return f"history lost ({fact.evidence}): {fact.message}"
        case LeaseAcquired():
            return f"lease taken by {fact.holder}" + (
                f" after {fact.previous_holder}"
                if fact.previous_holder and fact.previous_holder != fact.holder
                else ""
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _pairs(labels: dict[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "nothing"


def _admitted(fact: GangAdmitted | GangExtended) -> str:
    extras = sum(a.extra for a in fact.assignments)
    nodes = len({a.node for a in fact.assignments})
    text = f"{_count(len(fact.assignments), 'member')} placed on {_count(nodes, 'node')}"
    if extras:
        text += f" ({extras} beyond the minimum)"
    if fact.unplaced:
        text += f", {len(fact.unplaced)} without room"
    top = next((g for g in fact.groups if g.domain), None)
    if top is not None:
        text += f", {top.name} in {_pairs(top.domain)}"
    return text


def _preemption(fact: PreemptionPlanned) -> str:
    parts = []
    if fact.victims:
        pods = sum(len(unit.pods) for unit in fact.victims)
        names = ", ".join(f"{u.name} (priority {u.priority})" for u in fact.victims[:NAMED_MAX])
        more = " and more" if len(fact.victims) > NAMED_MAX else ""
        units = _count(len(fact.victims), "unit")
        parts.append(f"evicts {_count(pods, 'pod')} of {units}: {names}{more}")
    if fact.superseded:
        gangs = ", ".join(s.gang for s in fact.superseded[:NAMED_MAX])
        parts.append(f"supersedes unbound reservations of {gangs}")
    return "; ".join(parts)


def _abandoned(fact: PreemptionCancelled) -> str:
    text = f"preemption abandoned ({fact.reason}): {_count(fact.evicted, 'victim')} evicted"
    if fact.units_spared:
        text += f", {_count(len(fact.units_spared), 'unit')} spared"
    if fact.units_in_progress:
        text += f", {_count(len(fact.units_in_progress), 'unit')} begun and going whole"
    return text + (f": {fact.message}" if fact.message else "")


def _room(fact: CapacityMeasured) -> str:
    rooms = [
        f"{r.free} {r.resource} on one node"
        if not r.key
        else f"{r.free} in {r.key}={r.domain} ({_count(r.nodes, 'node')})"
        for r in fact.largest_free
    ]
    return "largest free room: " + (", ".join(rooms) or "no node takes pods")


def _features(fact: ControlPlaneFeaturesDetected) -> str:
    served = ", ".join(fact.served) or "no built-in groups"
    lost = ", ".join(dropped_field_texts(fact)) or "nothing"
    return (
        f"kube-apiserver serves {served} and drops {lost}; "
        f"group scheduling of kube-scheduler itself: {fact.native_group_scheduling}"
    )
