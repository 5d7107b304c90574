"""Read-only queries of the log, on separate connections.

Owns the queries of audit. Must not write, and never shares a connection with the scheduling path. Queries have a
timeout, and rows are fetched and decoded a few at a time, so that the event loop is not blocked. Notes: times are
converted to positions first (recorded time never decreases along the log, so a span of time is a span of positions,
and one index serves both orders). The names in events are indexed after the appends, so events at the end of the log
that are not indexed yet are searched one by one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import asyncpg

from extender.core.log.events import RecordedEvent
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, Position
from extender.ports.query_ports import EventFilter, EventPage, GangIncarnation, PodPlacement
from extender.runtime.cooperative_yield import Yielder
from extender.store.connections import ConnectionPool
from extender.store.log.event_codec import Row, to_event

ASKING = "asking the log"
PLACEMENTS_MAX = 1_000  # of one pod
LIMIT_MAX = 10_000  # events per answer; the next page is requested with `after`
PAGE_BYTES_MAX = 8 << 20  # of payloads in a page
FETCHED = 32  # rows per round trip
SETTINGS = {
    "statement_timeout": "5s",
    "default_transaction_read_only": "on",
    "jit": "off",
    "plan_cache_mode": "force_custom_plan",  # a generic plan reads the log from its beginning for rare types
    "max_parallel_workers_per_gather": "0",  # a query uses one processor of the database, not three
}

# The payload is read as the text that was hashed.
_COLUMNS = ", ".join(
    "e.payload::text" if name == "payload" else f"e.{name}" for name in Row._fields
)
_ENDS = """
SELECT (SELECT coalesce(max(position), 0) FROM gx.event), (SELECT position FROM gx.event_reference_cursor WHERE id = 1)
"""
_INCARNATIONS = """
SELECT gang_uid AS uid, min(gang) AS gang, min(position) AS first_position, max(position) AS last_position,
       min(at_us) AS first_us, max(at_us) AS last_us, count(*) AS events
FROM gx.event WHERE {} = $1 AND gang_uid <> $2 GROUP BY gang_uid ORDER BY first_position LIMIT $3
"""
_POSITION_AT = (
    "SELECT position FROM gx.event WHERE at_us <= $1 ORDER BY at_us DESC, position DESC LIMIT 1"
)
_FIRST_POSITION = "SELECT position FROM gx.event WHERE at_us {} $1 ORDER BY at_us, position LIMIT 1"
_NAMESPACE = "split_part(e.gang, '/', 1)"
_HAS_NAMESPACE = f"SELECT EXISTS (SELECT FROM gx.event e WHERE {_NAMESPACE} = $1)"  # noqa: S608 -- our text
_HAS_NODE = "SELECT EXISTS (SELECT FROM gx.placement WHERE node = $1)"
_PLACEMENTS = f"""
SELECT {", ".join(PodPlacement.__struct_fields__)} FROM gx.placement WHERE pod = $1 ORDER BY from_position DESC LIMIT $2
"""  # noqa: S608 -- our names
# Each namespace by one step in its index, then each name in the other index: the log is not read.
_NAMED = """
WITH RECURSIVE namespace (name) AS (
    SELECT min(split_part(e.gang, '/', 1)) FROM gx.event e WHERE split_part(e.gang, '/', 1) > ''
    UNION ALL
    SELECT (SELECT min(split_part(e.gang, '/', 1)) FROM gx.event e WHERE split_part(e.gang, '/', 1) > n.name)
    FROM namespace n WHERE n.name IS NOT NULL
)
SELECT n.name || '/' || $1::text AS gang FROM namespace n
WHERE EXISTS (SELECT FROM gx.event e WHERE e.gang = n.name || '/' || $1::text)
LIMIT $2"""


def reading_pool(url: str, *, size: int = 2) -> ConnectionPool:
    """Return the connections for queries: read-only, at most five seconds a statement."""
    return ConnectionPool(url, name="audit", settings=SETTINGS, size=size)


class PostgresEventQueries:
    """The `EventQueries` port on PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def page(self, event_filter: EventFilter) -> EventPage:
        """See `EventQueries.page`.

        `after` is the position of the last event of the previous page, in either order: with `newest_first`
        the page continues below it (0: from the end), otherwise above it. Times are inclusive. A page has at
        most `LIMIT_MAX` events and about `PAGE_BYTES_MAX` bytes, at least one event.
        """
        return await self._page(event_filter, PAGE_BYTES_MAX)

    async def events(self, event_filter: EventFilter) -> Sequence[RecordedEvent]:
        """See `EventQueries.events`; as `page`, without a limit on the size."""
        return (await self._page(event_filter, None)).events

    async def _page(self, event_filter: EventFilter, bytes_max: int | None) -> EventPage:
        limit = max(0, min(event_filter.limit, LIMIT_MAX))
        events: list[RecordedEvent] = []
        size, more, pace = 0, False, Yielder()
        async with self._pool.transaction(ASKING) as connection:
            head, indexed = await connection.fetchrow(_ENDS)
            queries = await _queries(connection, event_filter, head, indexed) if limit else ()
            for query in queries:
                if more:
                    break
                # one more than the limit shows whether there is another page
                async for row in _rows(connection, query, limit + 1 - len(events)):
                    if len(events) == limit or (bytes_max is not None and size >= bytes_max):
                        more = True
                        break
                    await pace.yield_if_due()
                    *columns, payload = row
                    events.append(to_event((*columns, payload.encode())))
                    size += len(payload)
        return EventPage(events=tuple(events), head=Position(head), more=more)

    async def incarnations(
        self, root: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        """See `EventQueries.incarnations`. Returns the oldest, at most `LIMIT_MAX`."""
        if not root and uid is None:
            return ()
        query = _INCARNATIONS.format("gang" if root else "gang_uid")
        rows = await self._pool.rows(ASKING, query, root or uid, NIL_GANG, LIMIT_MAX)
        return tuple(GangIncarnation(**row) for row in rows)

    async def gangs_named(self, name: str) -> Sequence[str]:
        """See `EventQueries.gangs_named`. Returns at most `LIMIT_MAX`."""
        rows = await self._pool.rows(ASKING, _NAMED, name, LIMIT_MAX)
        return tuple(sorted(row[0] for row in rows))

    async def position_at(self, at_us: int) -> Position:
        """See `EventQueries.position_at`."""
        return Position(await self._pool.value(ASKING, _POSITION_AT, at_us) or 0)

    async def database_bytes(self) -> int:
        """Return the size of the database, in bytes."""
        return int(await self._pool.value(ASKING, "SELECT pg_database_size(current_database())"))

    async def has_namespace(self, namespace: str) -> bool:
        """See `EventQueries.has_namespace`."""
        return bool(namespace) and bool(await self._pool.value(ASKING, _HAS_NAMESPACE, namespace))

    async def has_node(self, node: NodeName) -> bool:
        """See `EventQueries.has_node`."""
        return bool(await self._pool.value(ASKING, _HAS_NODE, node))

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """See `EventQueries.placements`. Returns the newest, at most `PLACEMENTS_MAX`."""
        rows = await self._pool.rows(ASKING, _PLACEMENTS, pod, PLACEMENTS_MAX)
        return tuple(PodPlacement(**row) for row in rows)


# A condition in which `{}` stands for each of the values behind it; a query as SQL, and the values of its parameters.
_Condition: TypeAlias = tuple[Any, ...]
_Query: TypeAlias = tuple[str, list[object]]


def _query(conditions: Iterable[_Condition], order: str, *tables: str) -> _Query:
    """Return a query of events, in which a further parameter is the limit."""
    terms: list[str] = []
    values: list[object] = []
    for term, *given in conditions:
        values += given
        numbers = range(len(values) - len(given) + 1, len(values) + 1)
        terms.append(term.format(*(f"${number}" for number in numbers)))
    where, end = " AND ".join(terms), f"ORDER BY e.position {order} LIMIT ${len(values) + 1}"
    text = f"SELECT {_COLUMNS} FROM {', '.join(('gx.event e', *tables))} WHERE {where} {end}"  # noqa: S608 -- values are parameters
    return text, values


async def _queries(
    connection: asyncpg.Connection, event_filter: EventFilter, head: int, noted: int
) -> Sequence[_Query]:
    """Return the queries whose concatenated results are the answer."""
    conditions = (*_conditions(event_filter), await _span(connection, event_filter, head))
    order = "DESC" if event_filter.newest_first else "ASC"
    names = list(_names(event_filter))
    if not names:
        return (_query(conditions, order),)
    indexed: list[_Condition] = [*conditions, ("e.position <= {}", noted)]
    fresh: list[_Condition] = [*conditions, ("e.position > {}", noted)]
    tables = []
    for number, (kind, values) in enumerate(names):
        if len(values) == 1:
            # A join: its index gives the order, so a page needs few rows.
            tables.append(f"gx.event_reference m{number}")
            term = "{0}.kind = {{}} AND {0}.name = {{}} AND {0}.position = e.position"
            indexed.append((term.format(f"m{number}"), kind, values[0]))
        else:
            term = "e.position IN (SELECT position FROM gx.event_reference WHERE kind = {} AND name = ANY({}))"
            indexed.append((term, kind, values))
        term = "EXISTS (SELECT FROM gx.references_of(e.type, e.payload) r WHERE r.kind = {} AND r.name = ANY({}))"
        fresh.append((term, kind, values))
    parts = (_query(indexed, order, *tables), _query(fresh, order))
    return parts[::-1] if event_filter.newest_first else parts


def _names(event_filter: EventFilter) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names that the events must contain, by kind."""
    if event_filter.node:
        yield "node", [event_filter.node]
    if event_filter.plan:
        yield "plan", [event_filter.plan]
    if event_filter.victims is not None:
        yield "victim", sorted(event_filter.victims)


def _conditions(event_filter: EventFilter) -> Iterator[_Condition]:
    if event_filter.gang:
        yield "e.gang = {}", event_filter.gang
    if event_filter.gang_uid is not None:
        yield "e.gang_uid = {}", event_filter.gang_uid
    if event_filter.namespace:
        yield f"{_NAMESPACE} = {{}}", event_filter.namespace
    if event_filter.namespaces is not None:
        shown = sorted(event_filter.namespaces)
        yield f"({_NAMESPACE} = ANY({{}}) OR e.type = ANY({{}}))", shown, event_filter.shared_types
    if event_filter.types:
        yield "e.type = ANY({})", event_filter.types


async def _span(connection: asyncpg.Connection, event_filter: EventFilter, head: int) -> _Condition:
    """Return the condition on the position; it is at most that of the log head in the answer.

    A time becomes a position by the index on (at_us, position).
    """
    first, last = 0, head
    if event_filter.since_us is not None:
        since = await connection.fetchval(_FIRST_POSITION.format(">="), event_filter.since_us)
        first = head + 1 if since is None else since
    if event_filter.until_us is not None:
        behind = await connection.fetchval(_FIRST_POSITION.format(">"), event_filter.until_us)
        last = min(last, head if behind is None else behind - 1)
    if event_filter.after and event_filter.newest_first:
        last = min(last, event_filter.after - 1)
    elif event_filter.after:
        first = max(first, event_filter.after + 1)
    return "e.position >= {} AND e.position <= {}", first, last


async def _rows(
    connection: asyncpg.Connection, query: _Query, limit: int
) -> AsyncIterator[asyncpg.Record]:
    """Yield the rows of a query, which are fetched in pieces."""
    text, values = query
    cursor = await connection.cursor(text, *values, limit)
    while rows := await cursor.fetch(FETCHED):
        for row in rows:
            yield row
