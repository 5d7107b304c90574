"""Read-only queries of the log, on separate connections.

Owns the queries of audit. Must not write, and never shares a connection with the scheduling path. Queries have a
timeout, and rows are fetched and decoded a few at a time, so that the event loop is not blocked. Notes: times are
converted to positions first (recorded time never decreases along the log, so a span of time is a span of positions,
and one index serves both orders). The names in events are indexed after the appends, so events at the end of the log
that are not indexed yet are searched one by one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncResult

from extender.core.log.events import RecordedEvent
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, Position
from extender.ports.query_ports import EventFilter, EventPage, GangIncarnation, PodPlacement
from extender.runtime.cooperative_yield import Yielder
from extender.store.engine import create_engine, transaction
from extender.store.log.event_codec import Row, to_event
from extender.store.tables import EVENT, EVENT_REFERENCE, EVENT_REFERENCE_CURSOR, PLACEMENT

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

_COLUMNS = [EVENT.c[name] for name in Row._fields if name != "payload"]
_EVENTS = sa.select(*_COLUMNS, sa.cast(EVENT.c.payload, sa.Text).label("payload"))
_ENDS = sa.select(
    sa.select(sa.func.coalesce(sa.func.max(EVENT.c.position), 0)).scalar_subquery().label("head"),
    sa.select(EVENT_REFERENCE_CURSOR.c.position)
    .where(EVENT_REFERENCE_CURSOR.c.id == 1)
    .scalar_subquery()
    .label("indexed"),
)
# Each namespace by one step in its index, then each name in the other index: the log is not read.
_NAMED = sa.text("""
WITH RECURSIVE namespace (name) AS (
    SELECT min(split_part(e.gang, '/', 1)) FROM gx.event e WHERE split_part(e.gang, '/', 1) > ''
    UNION ALL
    SELECT (SELECT min(split_part(e.gang, '/', 1)) FROM gx.event e WHERE split_part(e.gang, '/', 1) > n.name)
    FROM namespace n WHERE n.name IS NOT NULL
)
SELECT n.name || '/' || :name AS gang FROM namespace n
WHERE EXISTS (SELECT FROM gx.event e WHERE e.gang = n.name || '/' || :name)
LIMIT :limit""").bindparams(sa.bindparam("name", type_=sa.Text))
_namespace = sa.func.split_part(EVENT.c.gang, sa.literal_column("'/'"), sa.literal_column("1"))


def create_reading_engine(url: str, *, pool_size: int = 2) -> AsyncEngine:
    """Return the connection pool for queries: read-only, at most five seconds a statement."""
    return create_engine(url, name="audit", settings=SETTINGS, pool_size=pool_size)


class PostgresEventQueries:
    """The `EventQueries` port on PostgreSQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

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
        async with transaction(self._engine, "asking the log") as connection:
            ends = (await connection.execute(_ENDS)).one()
            queries = (
                await _queries(connection, event_filter, ends.head, ends.indexed) if limit else ()
            )
            for query in queries:
                if more:
                    break
                # one more than the limit shows whether there is another page
                result = await connection.stream(query.limit(limit + 1 - len(events)))
                async for row in _each(result):
                    if len(events) == limit or (bytes_max is not None and size >= bytes_max):
                        more = True
                        break
                    await pace.yield_if_due()
                    events.append(to_event((*row[:-1], row.payload.encode())))
                    size += len(row.payload)
                await result.close()
        return EventPage(events=tuple(events), head=Position(ends.head), more=more)

    async def incarnations(
        self, root: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        """See `EventQueries.incarnations`. Returns the oldest, at most `LIMIT_MAX`."""
        if not root and uid is None:
            return ()
        whose = EVENT.c.gang == root if root else EVENT.c.gang_uid == uid
        first, count = sa.func.min(EVENT.c.position), sa.func.count()
        query = (
            sa.select(
                EVENT.c.gang_uid.label("uid"),
                sa.func.min(EVENT.c.gang).label("gang"),
                first.label("first_position"),
                sa.func.max(EVENT.c.position).label("last_position"),
                sa.func.min(EVENT.c.at_us).label("first_us"),
                sa.func.max(EVENT.c.at_us).label("last_us"),
                count.label("events"),
            )
            .where(whose, EVENT.c.gang_uid != NIL_GANG)
            .group_by(EVENT.c.gang_uid)
            .order_by(first)
            .limit(LIMIT_MAX)
        )
        return tuple(GangIncarnation(**row._asdict()) for row in await self._rows(query))

    async def gangs_named(self, name: str) -> Sequence[str]:
        """See `EventQueries.gangs_named`. Returns at most `LIMIT_MAX`."""
        async with transaction(self._engine, "asking the log") as connection:
            result = await connection.execute(_NAMED, {"name": name, "limit": LIMIT_MAX})
            return tuple(sorted(result.scalars()))

    async def position_at(self, at_us: int) -> Position:
        """See `EventQueries.position_at`."""
        query = (
            sa.select(EVENT.c.position)
            .where(EVENT.c.at_us <= at_us)
            .order_by(EVENT.c.at_us.desc(), EVENT.c.position.desc())
            .limit(1)
        )
        return next((Position(row.position) for row in await self._rows(query)), Position(0))

    async def database_bytes(self) -> int:
        """Return the size of the database, in bytes."""
        async with transaction(self._engine, "asking for the size of the database") as connection:
            size = sa.func.pg_database_size(sa.func.current_database())
            return int((await connection.execute(sa.select(size))).scalar_one())

    async def has_namespace(self, namespace: str) -> bool:
        """See `EventQueries.has_namespace`."""
        if not namespace:
            return False
        return await self._is_there(sa.select(EVENT.c.position).where(_namespace == namespace))

    async def has_node(self, node: NodeName) -> bool:
        """See `EventQueries.has_node`."""
        return await self._is_there(sa.select(PLACEMENT.c.node).where(PLACEMENT.c.node == node))

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """See `EventQueries.placements`. Returns the newest, at most `PLACEMENTS_MAX`."""
        query = (
            sa.select(*(PLACEMENT.c[name] for name in PodPlacement.__struct_fields__))
            .where(PLACEMENT.c.pod == pod)
            .order_by(PLACEMENT.c.from_position.desc())
            .limit(PLACEMENTS_MAX)
        )
        return tuple(PodPlacement(**row._asdict()) for row in await self._rows(query))

    async def _is_there(self, query: sa.Select[tuple[object, ...]]) -> bool:
        return bool(await self._rows(query.limit(1)))

    async def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        async with transaction(self._engine, "asking the log") as connection:
            rows: Sequence[sa.Row[Any]] = (await connection.execute(query)).all()
        return rows


Query = sa.Select[Any]


async def _queries(
    connection: AsyncConnection, event_filter: EventFilter, head: int, noted: int
) -> Sequence[Query]:
    """Return the queries whose concatenated results are the answer."""
    query = _EVENTS.where(*_conditions(event_filter), *await _span(connection, event_filter, head))
    order = sa.desc if event_filter.newest_first else sa.asc
    names = list(_names(event_filter))
    if not names:
        return (_in_pieces(query.order_by(order(EVENT.c.position))),)
    indexed, fresh = query.where(EVENT.c.position <= noted), query.where(EVENT.c.position > noted)
    for kind, values in names:
        if len(values) == 1:
            # A join: its index gives the order, so a page needs few rows.
            mention = EVENT_REFERENCE.alias()
            indexed = indexed.join(
                mention,
                (mention.c.kind == kind)
                & (mention.c.name == values[0])
                & (mention.c.position == EVENT.c.position),
            )
        else:
            positions = sa.select(EVENT_REFERENCE.c.position).where(
                EVENT_REFERENCE.c.kind == kind, EVENT_REFERENCE.c.name == _any(values)
            )
            indexed = indexed.where(EVENT.c.position.in_(positions))
        named = sa.func.gx.references_of(EVENT.c.type, EVENT.c.payload).table_valued("kind", "name")
        fresh = fresh.where(
            sa.exists().where(named.c.kind == kind, named.c.name == _any(values)).correlate(EVENT)
        )
    parts = (
        _in_pieces(indexed.order_by(order(EVENT.c.position))),
        _in_pieces(fresh.order_by(order(EVENT.c.position))),
    )
    return parts[::-1] if event_filter.newest_first else parts


def _in_pieces(query: Query) -> Query:
    return query.execution_options(yield_per=FETCHED)


def _any(values: Sequence[str]) -> sa.ColumnElement[Any]:
    return sa.any_(sa.cast(list(values), sa.ARRAY(sa.Text)))


def _names(event_filter: EventFilter) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the names that the events must contain, by kind."""
    if event_filter.node:
        yield "node", [event_filter.node]
    if event_filter.plan:
        yield "plan", [event_filter.plan]
    if event_filter.victims is not None:
        yield "victim", sorted(event_filter.victims)


def _conditions(event_filter: EventFilter) -> Iterator[sa.ColumnElement[bool]]:
    if event_filter.gang:
        yield EVENT.c.gang == event_filter.gang
    if event_filter.gang_uid is not None:
        yield EVENT.c.gang_uid == event_filter.gang_uid
    if event_filter.namespace:
        yield _namespace == event_filter.namespace
    if event_filter.namespaces is not None:
        yield sa.or_(
            _namespace.in_(sorted(event_filter.namespaces)),
            EVENT.c.type.in_(event_filter.shared_types),
        )
    if event_filter.types:
        yield EVENT.c.type.in_(event_filter.types)


async def _span(
    connection: AsyncConnection, event_filter: EventFilter, head: int
) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions on the position; it is at most that of the log head in the answer."""
    column = EVENT.c.position
    first, last = 0, head
    if event_filter.since_us is not None:
        earliest = await _first_position(connection, EVENT.c.at_us >= event_filter.since_us)
        first = head + 1 if earliest is None else earliest
    if event_filter.until_us is not None:
        behind = await _first_position(connection, EVENT.c.at_us > event_filter.until_us)
        last = min(last, head if behind is None else behind - 1)
    if event_filter.after and event_filter.newest_first:
        last = min(last, event_filter.after - 1)
    elif event_filter.after:
        first = max(first, event_filter.after + 1)
    return (column >= first, column <= last)


async def _first_position(
    connection: AsyncConnection, condition: sa.ColumnElement[bool]
) -> int | None:
    """Return the first position that fulfils a condition on the time, by the index on (at_us, position)."""
    query = (
        sa.select(EVENT.c.position)
        .where(condition)
        .order_by(EVENT.c.at_us, EVENT.c.position)
        .limit(1)
    )
    return (await connection.execute(query)).scalar_one_or_none()


async def _each(result: AsyncResult[Any]) -> AsyncIterator[sa.Row[Any]]:
    """Yield the rows of a result that is fetched in pieces; SQLAlchemy's iterator takes a third of the time of a page."""
    async for piece in result.partitions():
        for row in piece:
            yield row
