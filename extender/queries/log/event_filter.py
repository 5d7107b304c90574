"""Filters for events in memory, by the same rules as in SQL (`gx.references_of`), and the queries of a caller with rights in some namespaces.

Everything that is made of events (lists, histories, preemptions, decisions) reads through these queries, so names of other
namespaces are gone before an answer is made, and a filter with such a name finds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from extender.core.log import events as log_events
from extender.core.log.visible_events import ENDS, SHARED_TYPES, visible_event
from extender.core.model.ids import GangUid, NodeName, Position
from extender.core.model.visibility import Visibility, name_for, namespace_of
from extender.ports.query_ports import (
    EventFilter,
    EventPage,
    EventQueries,
    GangIncarnation,
    PodPlacement,
)
from extender.runtime.cooperative_yield import Yielder

NAME_MAX = 1024  # bytes; longer names are not indexed


def nodes_of(data: log_events.AnyEventData) -> frozenset[str]:
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


def references_of(data: log_events.AnyEventData) -> frozenset[tuple[str, str]]:
    """Return kind and name of what an event names, as `gx.references_of` does for its index."""
    names = {("node", name) for name in nodes_of(data)}
    names.update(("victim", uid) for uid in victims_of(data))
    names.add(("plan", plan_of(data)))
    plain = ((kind, name.replace("\0", "")) for kind, name in names)
    return frozenset((kind, name) for kind, name in plain if 0 < len(name.encode()) <= NAME_MAX)


def victims_of(data: log_events.AnyEventData) -> frozenset[str]:
    """Return the UIDs of the victims: units, their pods, and gangs that lose reservations."""
    if isinstance(data, log_events.VictimGone):
        return frozenset((data.uid,))
    if not isinstance(data, log_events.PreemptionPlanned):
        return frozenset()
    units = (unit.uid for unit in data.victims)
    pods = (pod.uid for unit in data.victims for pod in unit.pods)
    roots = (record.gang_uid for record in data.superseded)
    return frozenset((*units, *pods, *roots)) - {""}


def plan_of(data: log_events.AnyEventData) -> str:
    """Return the id of the plan that an event decided, or an empty string."""
    if isinstance(data, log_events.GangAdmitted | log_events.GangExtended):
        return data.plan
    return data.preemption if isinstance(data, log_events.PreemptionPlanned) else ""


def matches(event: log_events.RecordedEvent, query: EventFilter) -> bool:
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


EXAMINED = 1_000  # events of a further page, of which the caller may see few


@dataclass(frozen=True)
class VisibleQueries:
    """The `EventQueries` port for one caller."""

    reader: EventQueries
    readers: Visibility
    # preemptions with victims of the caller, whose ends are returned too
    plans: frozenset[str] = frozenset()

    async def page(self, query: EventFilter) -> EventPage:
        """See `EventQueries.page`."""
        visible: list[log_events.RecordedEvent] = []
        pace = Yielder()
        page_query = replace(
            query,
            namespaces=self.readers.namespaces,
            shared_types=SHARED_TYPES + (ENDS if self.plans else ()),
        )
        while True:
            page = await self.reader.page(page_query)
            for event in page.events:
                await pace.yield_if_due()
                shown = visible_event(event, self.readers, self.plans)
                if shown is None or not matches(shown, query):
                    continue
                if len(visible) == query.limit:
                    return EventPage(events=tuple(visible), head=page.head, more=True)
                visible.append(shown)
            if not page.more or len(visible) == query.limit:
                return EventPage(events=tuple(visible), head=page.head, more=page.more)
            page_query = replace(
                page_query, after=page.events[-1].position, limit=max(EXAMINED, query.limit)
            )

    async def events(self, query: EventFilter) -> Sequence[log_events.RecordedEvent]:
        """See `EventQueries.events`."""
        return (await self.page(query)).events

    async def incarnations(
        self, root: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        """See `EventQueries.incarnations`."""
        lives = await self.reader.incarnations(root, uid=uid)
        return tuple(life for life in lives if self.readers.sees(namespace_of(life.gang)))

    async def gangs_named(self, name: str) -> Sequence[str]:
        """See `EventQueries.gangs_named`."""
        gangs = await self.reader.gangs_named(name)
        return tuple(gang for gang in gangs if self.readers.sees(namespace_of(gang)))

    async def position_at(self, at_us: int) -> Position:
        """See `EventQueries.position_at`."""
        return await self.reader.position_at(at_us)

    async def has_namespace(self, namespace: str) -> bool:
        """See `EventQueries.has_namespace`."""
        return self.readers.sees(namespace) and await self.reader.has_namespace(namespace)

    async def has_node(self, node: NodeName) -> bool:
        """See `EventQueries.has_node`; nodes are the cluster's."""
        return await self.reader.has_node(node)

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """See `EventQueries.placements`."""
        if not self.readers.sees(namespace_of(pod)):
            return ()
        return tuple(
            replace(place, by_gang=name_for(self.readers, f"gang/{place.by_gang}"))
            if place.by_gang and not self.readers.sees(namespace_of(place.by_gang))
            else place
            for place in await self.reader.placements(pod)
        )


def visible_queries(reader: EventQueries, readers: Visibility) -> EventQueries:
    """Return the queries of the log for a caller."""
    return reader if readers.everything else VisibleQueries(reader, readers)


def with_plans(reader: EventQueries, plans: Collection[str]) -> EventQueries:
    """Return queries that also return the ends of preemptions whose plan the caller sees."""
    if not isinstance(reader, VisibleQueries):
        return reader
    return VisibleQueries(reader.reader, reader.readers, frozenset(plans))
