"""Filters for events in memory, by the same rules as in SQL (`gx.references_of`)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from extender.core.log.events import (
    AnyEventData,
    GangAdmitted,
    GangExtended,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
)
from extender.ports.query_ports import EventFilter

NAME_MAX = 1024  # bytes; longer names are not indexed


def nodes_of(data: AnyEventData) -> frozenset[str]:
    """Return the nodes that an event names, in any of its fields."""
    return frozenset(_nodes(data))


def _nodes(value: object) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            inner = getattr(value, field)
            if field == "node":
                if inner:
                    yield inner
            else:
                yield from _nodes(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _nodes(inner)
    elif isinstance(value, dict):  # labels, resources: `node` may be one of their names
        for key, inner in value.items():
            if key == "node" and not isinstance(inner, dict):
                yield str(inner)
            yield from _nodes(inner)


def references_of(data: AnyEventData) -> frozenset[tuple[str, str]]:
    """Return kind and name of what an event names, as `gx.references_of` does for its index."""
    names = {("node", name) for name in nodes_of(data)}
    names.update(("victim", uid) for uid in victims_of(data))
    names.add(("plan", plan_of(data)))
    plain = ((kind, name.replace("\0", "")) for kind, name in names)
    return frozenset((kind, name) for kind, name in plain if 0 < len(name.encode()) <= NAME_MAX)


def victims_of(data: AnyEventData) -> frozenset[str]:
    """Return the UIDs of the victims: units, their pods, and gangs that lose reservations."""
    if isinstance(data, VictimGone):
        return frozenset((data.uid,))
    if not isinstance(data, PreemptionPlanned):
        return frozenset()
    units = (unit.uid for unit in data.victims)
    pods = (pod.uid for unit in data.victims for pod in unit.pods)
    roots = (record.gang_uid for record in data.superseded)
    return frozenset((*units, *pods, *roots)) - {""}


def plan_of(data: AnyEventData) -> str:
    """Return the id of the plan that an event decided, or an empty string."""
    if isinstance(data, GangAdmitted | GangExtended):
        return data.plan
    return data.preemption if isinstance(data, PreemptionPlanned) else ""


def matches(event: RecordedEvent, query: EventFilter) -> bool:
    """Return whether an event passes a filter; `after`, `limit` and the order are ignored."""
    return (
        (not query.gang or event.gang == query.gang)
        and (query.gang_uid is None or event.gang_uid == query.gang_uid)
        and (not query.namespace or event.gang.partition("/")[0] == query.namespace)
        and (
            query.namespaces is None
            or event.gang.partition("/")[0] in query.namespaces
            or type(event.data).__name__ in query.shared_types
        )
        and (not query.types or type(event.data).__name__ in query.types)
        and (query.since_us is None or event.at_us >= query.since_us)
        and (query.until_us is None or event.at_us <= query.until_us)
        and (not query.plan or plan_of(event.data) == query.plan)
        and (not query.node or query.node in nodes_of(event.data))
        and (query.victims is None or not query.victims.isdisjoint(victims_of(event.data)))
    )
