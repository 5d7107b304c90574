"""An event as a reader with rights in some namespaces sees it.

The event keeps its type. Of objects of other namespaces only what explains the state of objects of the reader is
left: kind, priority, size, and the position of the event. The texts of an event are those that were recorded without
names. An event that explains nothing about the namespaces of the reader is not shown. What is not listed here is
hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from extender.core.log import events as ev
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.visibility import Visibility, name_for, namespace_of

ACTOR: Final = "gang-extender"  # in place of the name of a replica
# Events of other streams than those of the own gangs that a reader may see; see `_of_others` and `_of_no_gang`.
_OF_CLUSTER: Final = (
    ev.CapacityMeasured,
    ev.ControlPlaneFeaturesDetected,
    ev.ClockStepped,
    ev.HistoryTruncated,
)
_OF_WORKLOADS: Final = (ev.TreeCompiled, ev.TreeRefused, ev.TreeRetired)
_OF_PREEMPTIONS: Final = (ev.PreemptionPlanned, ev.VictimGone)
# Events of an own gang that are shown whole: they have names of its own namespace, and nodes.
_OF_OWN_GANG: Final = (
    ev.GangObserved, ev.GangAdmitted, ev.GangExtended, ev.GangInvalid, ev.PodBound, ev.PodBindFailed,
    ev.BindBarrierTimedOut, ev.NodeRejected, ev.GangScheduled, ev.GangGroupsChanged,
    ev.MemberTerminated, ev.NodeTopologyChanged, ev.PreemptionCompleted, ev.GangRemoved,
    ev.DriftDetected, ev.CapacityHeld, ev.CapacityHoldReleased, ev.MoveCompleted,
)  # fmt: skip
SHARED_TYPES: Final = tuple(
    data.__name__ for data in (*_OF_PREEMPTIONS, *_OF_CLUSTER, *_OF_WORKLOADS)
)
ENDS: Final = (ev.PreemptionCompleted.__name__, ev.PreemptionCancelled.__name__)


def visible_event(
    event: ev.RecordedEvent, readers: Visibility, plans: Iterable[str] = ()
) -> ev.RecordedEvent | None:
    """Return an event as readers see it; None: they do not see it.

    Args:
        plans: Preemptions with victims of the reader: their ends are shown too.
    """
    if readers.everything:
        return event
    own = readers.sees(namespace_of(event.gang))
    if own:
        data = _of_own_gang(event, readers)
    elif event.gang:
        data = _of_others(event, readers, plans)
    else:
        data = _of_no_gang(event.data, readers)
    if data is None:
        return None
    shown = msgspec.structs.replace(event, data=data, actor=ACTOR, cause="", event_id="")
    if own or not event.gang:
        return shown
    name = name_for(readers, f"gang/{event.gang}")
    if isinstance(event.data, ev.PreemptionPlanned):
        name = preemptor_name(event, event.data, readers)
    return msgspec.structs.replace(shown, gang=name, gang_uid=NIL_GANG, stream_version=0)


def preemptor_name(event: ev.RecordedEvent, data: ev.PreemptionPlanned, readers: Visibility) -> str:
    """Return the name of the preemptor of a plan, or what readers who do not see its namespace get instead of it."""
    name, pods = f"{data.kind}/{event.gang}", len(data.assignments)
    return name_for(readers, name, priority=data.priority, pods=pods, position=event.position)


def _of_own_gang(event: ev.RecordedEvent, readers: Visibility) -> ev.AnyEventData | None:
    """Return the data of an event of a gang that the readers see."""
    match event.data:
        case ev.GangUnschedulable() as data:
            return msgspec.structs.replace(
                data,
                preemption_notes=data.preemption_notes_reduced or data.preemption_notes,
                preemption_notes_reduced=(),
            )
        case ev.ReservationReleased() as data:
            return _released(data, readers)
        case ev.PreemptionPlanned() as data:
            return _own_plan(data, readers)
        case ev.VictimGone() as data:
            return _own_victim_gone(data, readers)
        case ev.PreemptionCancelled() as data:
            return _cancelled(data, readers)
        case data:
            return data if isinstance(data, _OF_OWN_GANG) else _of_no_gang(data, readers)


def _of_others(
    event: ev.RecordedEvent, readers: Visibility, plans: Iterable[str]
) -> ev.AnyEventData | None:
    """Return the data of an event of a gang of another namespace, if it is about objects that the readers see."""
    match event.data:
        case ev.PreemptionPlanned() as data:
            return _others_plan(data, readers)
        case ev.VictimGone() as data:
            return data if _sees(readers, data.pod) else None
        case ev.PreemptionCompleted() as data:
            return data if data.preemption in plans else None
        case ev.PreemptionCancelled() as data:
            return _others_end(data, readers) if data.preemption in plans else None
        case _:
            return None


def _of_no_gang(data: ev.AnyEventData, readers: Visibility) -> ev.AnyEventData | None:
    """Return the data of an event about no gang: about the cluster, or about a workload that the readers see."""
    if isinstance(data, _OF_WORKLOADS):
        return data if _sees(readers, data.workload) else None
    return data if isinstance(data, _OF_CLUSTER) else None


def _sees(readers: Visibility, name: str) -> bool:
    return readers.sees(namespace_of(name))


def _released(data: ev.ReservationReleased, readers: Visibility) -> ev.ReservationReleased:
    hidden = any(not _sees(readers, user.pod) for user in data.taken_by)
    message = data.message_reduced or ("" if hidden else data.message)
    return msgspec.structs.replace(
        data,
        message=message,
        message_reduced="",
        taken_by=tuple(_user(user, readers) for user in data.taken_by),
    )


def _user(user: ev.ReservedCapacityUser, readers: Visibility) -> ev.ReservedCapacityUser:
    if _sees(readers, user.pod):
        return user
    name = name_for(readers, f"Pod/{user.pod}", priority=user.priority)
    return msgspec.structs.replace(user, pod=name, uid=PodUid(""), scheduler="")


def _own_plan(data: ev.PreemptionPlanned, readers: Visibility) -> ev.PreemptionPlanned:
    """Return the plan of a preemptor that the readers see: of victims elsewhere kind, priority and number of pods."""
    return msgspec.structs.replace(
        data,
        victims=tuple(_unit(unit, readers) for unit in data.victims),
        superseded=tuple(_superseded(record, readers) for record in data.superseded),
        alternatives=tuple(
            msgspec.structs.replace(record, units=tuple(name_for(readers, u) for u in record.units))
            for record in data.alternatives
        ),
        already_terminating=tuple(_victim_pod(pod, readers) for pod in data.already_terminating),
    )


def _others_plan(data: ev.PreemptionPlanned, readers: Visibility) -> ev.PreemptionPlanned | None:
    """Return the plan of a preemptor elsewhere, with the victims that the readers see; None: there are none."""
    victims = tuple(unit for unit in data.victims if _sees(readers, unit.path))
    superseded = tuple(record for record in data.superseded if _sees(readers, record.gang))
    if not victims and not superseded:
        return None
    return msgspec.structs.replace(
        data,
        victims=victims,
        superseded=superseded,
        alternatives=(),
        assignments=tuple(_place(record) for record in data.assignments),
        already_terminating=(),
        input_digest="",
        search_nodes=0,
    )


def _place(record: ev.AssignmentRecord) -> ev.AssignmentRecord:
    """Return a place of a preemptor elsewhere: its requests count, its pod and its node are not shown."""
    return ev.AssignmentRecord(
        pod="", uid=PodUid(""), group="", node=NodeName(""), shape=record.shape, extra=record.extra
    )


def _unit(unit: ev.VictimUnit, readers: Visibility) -> ev.VictimUnit:
    if _sees(readers, unit.path):
        return unit
    name = name_for(readers, unit.name, priority=unit.priority, pods=len(unit.pods))
    pods = tuple(_victim_pod(pod, readers) for pod in unit.pods)
    return msgspec.structs.replace(unit, path=name, uid="", pods=pods)


def _victim_pod(pod: ev.VictimPod, readers: Visibility) -> ev.VictimPod:
    if _sees(readers, pod.pod):
        return pod
    return ev.VictimPod(pod="", uid=PodUid(""), node=NodeName(""))


def _superseded(record: ev.SupersededRecord, readers: Visibility) -> ev.SupersededRecord:
    if _sees(readers, record.gang):
        return record
    return ev.SupersededRecord(
        gang=name_for(
            readers, f"tree/{record.gang}", priority=record.priority, pods=len(record.pods)
        ),
        gang_uid=NIL_GANG,
        plan=PlanId(""),
        priority=record.priority,
        pods=tuple(ev.ReleasedPod(pod="", uid=PodUid(""), node=NodeName("")) for _ in record.pods),
    )


def _own_victim_gone(data: ev.VictimGone, readers: Visibility) -> ev.VictimGone:
    if _sees(readers, data.pod):
        return data
    return msgspec.structs.replace(
        data,
        unit=name_for(readers, data.unit),
        pod=name_for(readers, f"Pod/{data.pod}"),
        uid=PodUid(""),
    )


def _cancelled(data: ev.PreemptionCancelled, readers: Visibility) -> ev.PreemptionCancelled:
    successor = name_for(readers, data.taken_over_by) if data.taken_over_by else ""
    hidden = successor != data.taken_over_by
    return msgspec.structs.replace(
        data,
        units_spared=tuple(name_for(readers, unit) for unit in data.units_spared),
        units_in_progress=tuple(name_for(readers, unit) for unit in data.units_in_progress),
        message=data.message_reduced or ("" if hidden else data.message),
        message_reduced="",
        taken_over_by=successor,
        taken_over_by_uid="" if hidden else data.taken_over_by_uid,
    )


def _others_end(data: ev.PreemptionCancelled, readers: Visibility) -> ev.PreemptionCancelled:
    """Return the end of a preemption elsewhere: its reason, and which units of the readers it spares."""
    return msgspec.structs.replace(
        _cancelled(data, readers),
        units_spared=tuple(unit for unit in data.units_spared if _sees(readers, unit)),
        units_in_progress=tuple(unit for unit in data.units_in_progress if _sees(readers, unit)),
        message="",
        taken_over_nodes=(),
    )


def hidden_uid(position: Position) -> GangUid:
    """Return what stands for the UID of a preemptor that the readers do not see."""
    return GangUid(f"preemption-{position}")
