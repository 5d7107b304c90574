"""The queries of the log for a caller with rights in some namespaces: each event as the caller sees it.

Everything that is made of events (lists, histories, preemptions, decisions) reads through this port, so that names of
other namespaces are gone before an answer is made. Filters select by what the caller sees: a filter with a name of
another namespace finds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from extender.core.log.events import RecordedEvent
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
from extender.queries.log.event_filter import matches
from extender.runtime.cooperative_yield import Yielder

EXAMINED = 1_000  # events of a further page, of which the caller may see few


class VisibleQueries:
    """The `EventQueries` port for one caller.

    Args:
        plans: Preemptions with victims of the caller, whose ends are returned too.
    """

    def __init__(
        self, reader: EventQueries, readers: Visibility, plans: frozenset[str] = frozenset()
    ) -> None:
        self._reader = reader
        self._readers = readers
        self._plans = plans

    def with_plans(self, plans: Collection[str]) -> VisibleQueries:
        """Return the queries that also return the ends of some preemptions."""
        return VisibleQueries(self._reader, self._readers, frozenset(plans))

    async def page(self, query: EventFilter) -> EventPage:
        """See `EventQueries.page`."""
        visible: list[RecordedEvent] = []
        pace = Yielder()
        page_query = msgspec.structs.replace(
            query,
            namespaces=self._readers.namespaces,
            shared_types=SHARED_TYPES + (ENDS if self._plans else ()),
        )
        while True:
            page = await self._reader.page(page_query)
            for event in page.events:
                await pace.yield_if_due()
                shown = visible_event(event, self._readers, self._plans)
                if shown is None or not matches(shown, query):
                    continue
                if len(visible) == query.limit:
                    return EventPage(events=tuple(visible), head=page.head, more=True)
                visible.append(shown)
            if not page.more or len(visible) == query.limit:
                return EventPage(events=tuple(visible), head=page.head, more=page.more)
            page_query = msgspec.structs.replace(
                page_query, after=page.events[-1].position, limit=max(EXAMINED, query.limit)
            )

    async def events(self, query: EventFilter) -> Sequence[RecordedEvent]:
        """See `EventQueries.events`."""
        return (await self.page(query)).events

    async def incarnations(
        self, root: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        """See `EventQueries.incarnations`."""
        lives = await self._reader.incarnations(root, uid=uid)
        return tuple(life for life in lives if self._readers.sees(namespace_of(life.gang)))

    async def gangs_named(self, name: str) -> Sequence[str]:
        """See `EventQueries.gangs_named`."""
        gangs = await self._reader.gangs_named(name)
        return tuple(gang for gang in gangs if self._readers.sees(namespace_of(gang)))

    async def position_at(self, at_us: int) -> Position:
        """See `EventQueries.position_at`."""
        return await self._reader.position_at(at_us)

    async def has_namespace(self, namespace: str) -> bool:
        """See `EventQueries.has_namespace`."""
        return self._readers.sees(namespace) and await self._reader.has_namespace(namespace)

    async def has_node(self, node: NodeName) -> bool:
        """See `EventQueries.has_node`; nodes are the cluster's."""
        return await self._reader.has_node(node)

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """See `EventQueries.placements`."""
        if not self._readers.sees(namespace_of(pod)):
            return ()
        return tuple(
            msgspec.structs.replace(place, by_gang=name_for(self._readers, f"gang/{place.by_gang}"))
            if place.by_gang and not self._readers.sees(namespace_of(place.by_gang))
            else place
            for place in await self._reader.placements(pod)
        )


def visible_queries(reader: EventQueries, readers: Visibility) -> EventQueries:
    """Return the queries of the log for a caller."""
    return reader if readers.everything else VisibleQueries(reader, readers)


def with_plans(reader: EventQueries, plans: Collection[str]) -> EventQueries:
    """Return queries that also return the ends of preemptions whose plan the caller sees."""
    return reader.with_plans(plans) if isinstance(reader, VisibleQueries) else reader
