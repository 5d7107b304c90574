"""The form in which events leave the service, over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from extender.core.admit.gang_sentences import group_lines, short_text
from extender.core.log import events as log_events
from extender.core.log.control_plane_features import dropped_field_texts
from extender.core.log.reservation_state import STILL_ARRIVING
from extender.core.model.ids import GangUid, Position
from extender.core.model.message_formatting import counted, gpu_time_text, label_text, rfc3339

NAMED_MAX = 3  # units named in a summary; `data` has all of them
PAGE = 5_000  # events per query when all of them are read


LOST: Mapping[str, tuple[str, str]] = {  # cause of a loss -> actor, reason
    "preempted": ("kube-scheduler", "preempted for a pod or group of higher priority"),
    "evicted": (
        "a caller of the Eviction API, or the node",
        "evicted: API, taint or pressure on the node",
    ),
    "node-lost": ("the cluster", "its node is gone"),
    "rejected-by-kubelet": ("kubelet", "refused by the kubelet"),
    "ended": ("the pod itself", "ended by itself"),
    "deleted": ("a caller of the Kubernetes API", "deleted"),
    "unknown": ("unknown", "not where it was; the reason could not be found out"),
}


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the API shows it (docs/api.md)."""

    position: Position
    time: str  # RFC 3339, UTC, microseconds
    type: str
    stream_version: int  # place in the stream of its gang
    gang: str
    gang_uid: GangUid
    epoch: int
    actor: str
    cause: str
    summary: str
    data: Any  # one of `AnyEventData`, which `type` names; of a service it has no type


def event_line(event: log_events.RecordedEvent) -> EventLine:
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


def summary(data: log_events.AnyEventData) -> str:  # noqa: C901, PLR0911, PLR0912 -- one arm per event
    """Return a summary of an event in one line, for people."""
    match data:
        case log_events.GangObserved():
            return f"{data.kind} observed with {counted(data.groups, 'group')} and {counted(data.members, 'member')}"
        case log_events.GangAdmitted() | log_events.GangExtended():
            return _admitted(data)
        case log_events.GangUnschedulable():
            return f"{data.outcome}: {data.reasons[0] if data.reasons else 'no reason given'}"
        case log_events.GangInvalid():
            return f"invalid: {data.problems[0]}"
        case log_events.PodBound():
            return f"{data.pod} bound to {data.node}"
        case log_events.PodBindFailed():
            return f"{data.pod} not bound to {data.node}: {data.error}"
        case log_events.BindBarrierTimedOut():
            missing = f"{len(data.missing)} did not arrive"
            return (
                f"{counted(len(data.arrived), 'member')} waited {data.waited_ms / 1000:.1f} s at bind, "
                f"{missing if data.missing else 'and the rest of its minimum has no reservation'}; no member was bound"
                f"{STILL_ARRIVING if data.still_arriving else ''}"
            )
        case log_events.NodeRejected():
            return f"kube-scheduler rejected {data.node} for {data.pod}"
        case log_events.ReservationReleased():
            reservations = counted(len(data.pods), "reservation")
            return f"{reservations} released ({data.reason})" + (
                f": {data.message}" if data.message else ""
            )
        case log_events.GangScheduled():
            return f"minimum met, {counted(data.bound, 'member')} bound"
        case log_events.GangGroupsChanged():
            minima = ", ".join(f"{group.name} {group.minimum}" for group in data.groups)
            return f"minima of its groups: {minima}"
        case log_events.MemberTerminated():
            return f"{data.pod} terminated on {data.node} ({': '.join(filter(None, (data.cause, data.message)))})"
        case log_events.NodeTopologyChanged():
            return f"topology of {data.node} changed from {_pairs(data.before)} to {_pairs(data.after)}"
        case log_events.PreemptionPlanned():
            return _preemption(data)
        case log_events.VictimGone():
            return f"{data.pod} of {data.unit} gone from {data.node} ({data.via})"
        case log_events.PreemptionCompleted():
            return (
                f"preemption completed after {data.duration_ms / 1000:.1f} s: {counted(data.bound, 'member')} "
                f"bound, {counted(data.evicted, 'victim')} evicted"
            )
        case log_events.PreemptionCancelled():
            return _cancelled(data)
        case log_events.GangRemoved():
            return data.reason
        case log_events.CapacityHeld():
            nodes = counted(len({a.node for a in data.assignments}), "node")
            pods = counted(len(data.assignments), "pod")
            return f"capacity for {pods} is held on {nodes} as it frees, until {rfc3339(data.until_us)}; {data.fitting} would fit now"
        case log_events.CapacityHoldReleased():
            return f"capacity is not held any more ({data.reason})" + (
                f": {data.message}" if data.message else ""
            )
        case log_events.MovesPlanned():
            by = f", asked for by {data.by}" if data.by else ""
            text = f"{counted(len(data.moves), 'move')} to {data.question}{by}: "
            moves = (f"{m.pod} from {m.source} to {m.target}" for m in data.moves[:NAMED_MAX])
            return text + ", ".join(moves) + (" and more" if len(data.moves) > NAMED_MAX else "")
        case log_events.MoveCompleted():
            return f"{data.pod} was moved from {data.source} to {data.target} as {data.replacement} in {data.duration_ms / 1000:.1f} s"
        case log_events.MovesPaused():
            by = f" by {data.by}" if data.by else ""
            return f"moves are {'paused' if data.paused else 'resumed'}{by}"
        case log_events.MovesEnded():
            by = f" by {data.by}" if data.by else ""
            text = f"moves ended ({data.reason}{by}): {data.made} made, {data.left} left"
            return f"{text}; {data.message}" if data.message else text
        case log_events.CapacityMeasured():
            return _largest_free(data)
        case log_events.ControlPlaneFeaturesDetected():
            return _features(data)
        case log_events.TreeCompiled():
            return _tree(data)
        case log_events.TreeRefused():
            return f"no tree for {data.kind} {data.workload} ({data.reason}): {data.message}"
        case log_events.TreeRetired():
            return f"{data.kind} {data.workload} needs no groups any more ({data.reason})"
        case log_events.DriftDetected():
            return f"{data.kind}: {data.object} {data.message}"
        case log_events.ClockStepped():
            return f"the clock of the {data.clock} stepped by {data.step_ms / 1000:+.1f} s: {data.message}"
        case log_events.HistoryTruncated():
            return f"history lost ({data.evidence}): {data.message}"
        case log_events.LeaseAcquired():
            return f"lease acquired by {data.holder}" + (
                f" after {data.previous_holder}"
                if data.previous_holder and data.previous_holder != data.holder
                else ""
            )


def _pairs(labels: dict[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "nothing"


def _admitted(data: log_events.GangAdmitted | log_events.GangExtended) -> str:
    extras = sum(a.extra for a in data.assignments)
    nodes = len({a.node for a in data.assignments})
    text = f"{counted(len(data.assignments), 'member')} placed on {counted(nodes, 'node')}"
    if extras:
        text += f" ({extras} beyond the minimum)"
    if data.unplaced:
        text += f", {len(data.unplaced)} without capacity"
    top = next((g for g in data.groups if g.domain), None)
    if top is not None:
        text += f", {top.name} in {_pairs(top.domain)}"
    wishes = short_text(group_lines(data.groups))
    return f"{text}; {wishes}" if wishes else text


def _preemption(data: log_events.PreemptionPlanned) -> str:
    parts = []
    if data.victims:
        pods = sum(len(unit.pods) for unit in data.victims)
        names = ", ".join(f"{u.name} (priority {u.priority})" for u in data.victims[:NAMED_MAX])
        more = " and more" if len(data.victims) > NAMED_MAX else ""
        units = counted(len(data.victims), "unit")
        parts.append(f"evicts {counted(pods, 'pod')} of {units}: {names}{more}")
    if lost_min := sum(unit.cost.get("lost_min", 0) for unit in data.victims):
        parts.append(f"lost: {gpu_time_text(lost_min)}")
    if data.superseded:
        gangs = ", ".join(s.gang for s in data.superseded[:NAMED_MAX])
        parts.append(f"supersedes unbound reservations of {gangs}")
    return "; ".join(parts)


def _cancelled(data: log_events.PreemptionCancelled) -> str:
    text = f"preemption cancelled ({data.reason}): {counted(data.evicted, 'victim')} evicted"
    if data.units_spared:
        text += f", {counted(len(data.units_spared), 'unit')} spared"
    if data.units_in_progress:
        text += f", {counted(len(data.units_in_progress), 'unit')} begun and evicted completely"
    return text + (f": {data.message}" if data.message else "")


def _tree(data: log_events.TreeCompiled) -> str:
    roots = [group.name for group in data.groups if not group.parent]
    names = ", ".join(roots[:NAMED_MAX]) + (" and more" if len(roots) > NAMED_MAX else "")
    count = len(data.groups) + len(data.adopted)
    text = f"{data.kind} {data.workload} becomes {counted(count, 'group')}"
    text += f", {len(data.adopted)} of its own controller," if data.adopted else ""
    text += f" below {names}" if roots else ""
    text = text.removesuffix(",")
    return text + (f", each for itself ({data.reason}): {data.message}" if data.basic else "")


def _largest_free(data: log_events.CapacityMeasured) -> str:
    domains = [
        f"{r.free} {r.resource} on one node"
        if not r.key
        else f"{r.free} in {label_text(r.key, r.domain)} ({counted(r.nodes, 'node')})"
        for r in data.largest_free
    ]
    return "largest free capacity: " + (", ".join(domains) or "no node accepts pods")


def _features(data: log_events.ControlPlaneFeaturesDetected) -> str:
    served = ", ".join(data.served) or "no built-in groups"
    dropped = ", ".join(dropped_field_texts(data)) or "nothing"
    return (
        f"kube-apiserver serves {served} and drops {dropped}; "
        f"group scheduling of kube-scheduler itself: {data.native_group_scheduling}"
    )


def loss_reason(cause: log_events.MemberTerminationCause, message: str) -> str:
    """Return why a member that was no victim of a recorded preemption ended, with its own message if it has one."""
    _, reason = LOST[cause]
    return f"{reason} ({message})" if message else reason
