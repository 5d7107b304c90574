"""Read-only questions over the log, on connections of their own.

Owns the queries of audit. Must not write, and never shares a connection with the scheduling path; a question
that runs long is cut off. The surprise: times are turned into positions first. Recorded time never falls
along the log, so a span of time is a span of positions, and one index answers in both orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from extender.core.events import Event
from extender.core.ids import NIL_ROOT, NodeName, Position, RootUid
from extender.service.ports import AuditReader, EventFilter
from extender.store.codec import Row, to_event
from extender.store.engine import create_engine, transaction
from extender.store.tables import EVENT, PLACEMENT

LIMIT_MAX = 10_000  # events per answer; whoever wants more asks again with `after`
SETTINGS = {"statement_timeout": "5s", "default_transaction_read_only": "on", "jit": "off"}

_COLUMNS = [EVENT.c[name] for name in Row._fields if name != "payload"]
_EVENTS = sa.select(*_COLUMNS, sa.cast(EVENT.c.payload, sa.Text).label("payload"))
_namespace = sa.func.split_part(EVENT.c.root, sa.literal_column("'/'"), sa.literal_column("1"))


def create_reading_engine(url: str, *, pool_size: int = 2) -> AsyncEngine:
    """Give the pool for audit questions: read-only, five seconds a statement.

    Args:
        url: Database URL; of a replica, if there is one.
        pool_size: Questions answered at the same time.
    """
    return create_engine(url, name="audit", settings=SETTINGS, pool_size=pool_size)


class PostgresAuditReader:
    """The `AuditReader` port on PostgreSQL.

    Args:
        engine: From `create_reading_engine`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def events(self, wanted: EventFilter) -> Sequence[Event]:
        """See `AuditReader.events`.

        `after` is the position of the last fact of the page before, in either order: with `newest_first`
        the answer goes on below it (0: from the end), otherwise above it. Times are inclusive. At most
        `LIMIT_MAX` facts.

        Raises:
            CorruptLog: A fact this version does not know.
            StoreUnavailable: No answer, or it took too long.
        """
        async with transaction(self._engine, "asking the log") as connection:
            rows = (await connection.execute(await _query(connection, wanted))).all()
        return [to_event(_row(row)) for row in rows]

    async def roots_named(self, root: str) -> Sequence[RootUid]:
        """See `AuditReader.roots_named`.

        Raises:
            StoreUnavailable: No answer, or it took too long.
        """
        if not root:
            return ()
        query = (
            sa.select(EVENT.c.root_uid)
            .where(EVENT.c.root == root, EVENT.c.root_uid != NIL_ROOT)
            .group_by(EVENT.c.root_uid)
            .order_by(sa.func.min(EVENT.c.position))
        )
        async with transaction(self._engine, "asking the log") as connection:
            found = (await connection.execute(query)).scalars().all()
        return tuple(RootUid(uid) for uid in found)

    async def position_at(self, at_us: int) -> Position:
        """See `AuditReader.position_at`.

        Raises:
            StoreUnavailable: No answer, or it took too long.
        """
        query = (
            sa.select(EVENT.c.position)
            .where(EVENT.c.at_us <= at_us)
            .order_by(EVENT.c.at_us.desc(), EVENT.c.position.desc())
            .limit(1)
        )
        async with transaction(self._engine, "asking the log") as connection:
            found = (await connection.execute(query)).scalar_one_or_none()
        return Position(found or 0)

    async def has_namespace(self, namespace: str) -> bool:
        """See `AuditReader.has_namespace`.

        Raises:
            StoreUnavailable: No answer, or it took too long.
        """
        if not namespace:
            return False
        return await self._is_there(sa.select(EVENT.c.position).where(_namespace == namespace))

    async def has_node(self, node: NodeName) -> bool:
        """See `AuditReader.has_node`.

        Raises:
            StoreUnavailable: No answer, or it took too long.
        """
        return await self._is_there(sa.select(PLACEMENT.c.node).where(PLACEMENT.c.node == node))

    async def _is_there(self, query: sa.Select[tuple[object, ...]]) -> bool:
        async with transaction(self._engine, "asking the log") as connection:
            return (await connection.execute(query.limit(1))).first() is not None


async def _query(connection: AsyncConnection, wanted: EventFilter) -> sa.Select[tuple[object, ...]]:
    column = EVENT.c.position
    query = _EVENTS
    if wanted.root:
        query = query.where(EVENT.c.root == wanted.root)
    if wanted.root_uid is not None:
        query = query.where(EVENT.c.root_uid == wanted.root_uid)
    if wanted.namespace:
        query = query.where(_namespace == wanted.namespace)
    if wanted.types:
        query = query.where(EVENT.c.type.in_(wanted.types))
    if wanted.since_us is not None:
        first = await _first_position(connection, EVENT.c.at_us >= wanted.since_us)
        query = query.where(sa.false()) if first is None else query.where(column >= first)
    if wanted.until_us is not None:
        behind = await _first_position(connection, EVENT.c.at_us > wanted.until_us)
        if behind is not None:
            query = query.where(column < behind)
    if wanted.after:
        query = query.where(column < wanted.after if wanted.newest_first else column > wanted.after)
    order = column.desc() if wanted.newest_first else column
    return query.order_by(order).limit(max(0, min(wanted.limit, LIMIT_MAX)))


async def _first_position(
    connection: AsyncConnection, condition: sa.ColumnElement[bool]
) -> int | None:
    """Find the first event of a span of time by the index on (at_us, position)."""
    query = (
        sa.select(EVENT.c.position)
        .where(condition)
        .order_by(EVENT.c.at_us, EVENT.c.position)
        .limit(1)
    )
    return (await connection.execute(query)).scalar_one_or_none()


def _row(record: sa.Row[tuple[object, ...]]) -> Row:
    fields = record._asdict()
    fields["event_id"] = UUID(fields["event_id"])
    fields["payload"] = fields["payload"].encode()
    return Row(**fields)


if TYPE_CHECKING:

    def _fits(reader: PostgresAuditReader) -> AuditReader:
        return reader
