"""What follows the log in the database: interval tables, the index of the names in events, the position of the notifications.

Functions of the database fold the log into the interval tables; of two concurrent calls the second waits and continues where the
first ended, so two leaders in succession, or a command beside the service, are safe. `rebuild_projection` fills these tables again from the
whole log, several times faster than `gx.project` does event by event. Its rows are those of `core/log/interval_row_projection`, which a test compares with the projection of the database; they are copied in bulk.
Owns the only code beside `gx.project` that writes these tables: as a member of gx_owner, in one transaction. Until it
is committed, readers see the old rows and `gx.project` waits; a process that is killed before that leaves the old rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from operator import attrgetter
from typing import Any, Final, Self

import asyncpg
import msgspec

from extender.core.log.interval_row_projection import (
    IntervalRow,
    IntervalRows,
    PlacementRow,
    PreemptionRow,
)
from extender.core.model.errors import BadInput
from extender.core.model.ids import Position
from extender.ports.log_ports import START, NotifiedUpTo
from extender.snapshots.state_loader import gc_paused
from extender.store.connections import ConnectionPool, one_connection
from extender.store.decision_inputs import BECOME_OWNER
from extender.store.log.log_reader import read_pages, reading_connection
from extender.store.tables import COLUMNS, INTERVAL_TABLES

ROWS_AT_ONCE: Final = 20_000  # some 10 MB; a COPY takes a tenth of a second
# Some 2 ms, after which the event loop sends what the database waits for
EVENTS_AT_ONCE: Final = 100
LOCK: Final = "SELECT position FROM gx.projection WHERE id = 1 FOR UPDATE"
DONE: Final = "UPDATE gx.projection SET position = $1, at_us = $2, projected_at = clock_timestamp() WHERE id = 1"
_VALUES: Final = {kind: attrgetter(*names) for kind, names in COLUMNS.items()}
RESOURCES: Final = COLUMNS[PlacementRow].index("resources")
STARTED_UNITS: Final = COLUMNS[PreemptionRow].index("started_units")


async def rebuild_projection(url: str) -> Position:
    """Replace the content of the interval tables by that of the log up to its end; return that position.

    Args:
        url: Database URL of a member of gx_owner (as for `db migrate`).

    Raises:
        CorruptLog: The log is not whole; the tables stay as they were.
        StoreUnavailable: No answer; the tables stay as they were.
    """
    options = {"name": "rebuild", "settings": PROJECTING, "command_timeout_s": 3600.0}
    async with one_connection(url, "rebuilding the interval tables", **options) as connection:
        try:
            async with connection.transaction():
                await connection.execute(BECOME_OWNER)
                await connection.fetchval(LOCK)
                with gc_paused():  # which takes a quarter of the time
                    async with _Copies(connection) as copies:
                        return await _fill(url, copies)
        except asyncpg.InsufficientPrivilegeError as error:
            raise BadInput(
                f"the database role may not rebuild the interval tables: {error}; use that of `db migrate`"
            ) from error


async def _fill(url: str, copies: _Copies) -> Position:
    rows, position, at_us = IntervalRows(), START, 0
    async with reading_connection(url, name="rebuild") as reading:
        pages = read_pages(reading.fetch, after=0, until=None, page_events=EVENTS_AT_ONCE)
        async with aclosing(pages):
            async for page in pages:
                for event in page:
                    rows.apply(event)
                    position, at_us = event.position, event.at_us
                if len(rows.completed) >= ROWS_AT_ONCE:
                    await copies.begin(rows.completed)
                    rows.completed = []
    await copies.begin([*rows.completed, *rows.open_rows()])
    await copies.end(position, at_us)
    return position


class _Copies:
    """Deletes the rows of the tables, and copies others into them, one batch at a time, while the next one is computed."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._running = asyncio.create_task(self._delete())
        self._encoded: dict[int, tuple[object, str]] = {}  # by identity; keeps the object alive

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End what still runs after a failure, so that the connection can roll back."""
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.exception()  # marks it as retrieved for asyncio; `begin` and `end` raise it

    async def begin(self, rows: Iterable[IntervalRow]) -> None:
        """Copy rows after those of the batch before."""
        values: dict[type, list[tuple[Any, ...]]] = {kind: [] for kind in INTERVAL_TABLES}
        for row in rows:
            values[type(row)].append(_VALUES[type(row)](row))
        values[PlacementRow] = [self._placement(row_values) for row_values in values[PlacementRow]]
        values[PreemptionRow] = [_preemption(row_values) for row_values in values[PreemptionRow]]
        await self._running
        self._running = asyncio.create_task(self._copy(values))

    async def end(self, position: Position, at_us: int) -> None:
        """Wait for the last batch, and record how far the tables are."""
        await self._running
        await self._connection.execute(DONE, position, at_us)

    async def _delete(self) -> None:
        for table in INTERVAL_TABLES.values():
            await self._connection.execute(f"DELETE FROM gx.{table.name}")  # noqa: S608 -- our names

    async def _copy(self, values: Mapping[type, list[tuple[Any, ...]]]) -> None:
        for kind, table in INTERVAL_TABLES.items():
            if values[kind]:
                await self._connection.copy_records_to_table(
                    table.name, schema_name="gx", columns=COLUMNS[kind], records=values[kind]
                )

    def _placement(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        resources = values[RESOURCES]
        if resources is None:
            return values
        cached = self._encoded.get(id(resources))
        if cached is None or cached[0] is not resources:
            if len(self._encoded) >= ROWS_AT_ONCE:
                self._encoded.clear()
            cached = (resources, msgspec.json.encode(resources).decode())
            self._encoded[id(resources)] = cached
        return (*values[:RESOURCES], cached[1], *values[RESOURCES + 1 :])


def _preemption(values: tuple[Any, ...]) -> tuple[Any, ...]:
    units = sorted(values[STARTED_UNITS])
    return (*values[:STARTED_UNITS], units, *values[STARTED_UNITS + 1 :])


# A projection lost in a crash is made again, so its commits need not be durable.
PROJECTING = {"synchronous_commit": "off"}
PROJECTION_TIMEOUT_S = 30.0  # a batch takes a fraction of a second on an idle machine
_PROJECT = "SELECT gx.project($1, $2)"
_INDEX = "SELECT gx.index_references($1)"
_NOTIFIED = "SELECT position, waited_us FROM gx.notification_cursor WHERE id = 1"
_NOTE_NOTIFIED = "SELECT gx.note_notified($1, $2)"


class PostgresReadModels:
    """The ports `IntervalProjection` and `NotificationCursor`, and the index of the names in events, on PostgreSQL.

    Args:
        pool: A separate writing one with `PROJECTING`, so that it does not compete with others for connections.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def project(self, upto: Position, *, max_events: int) -> Position:
        """See `IntervalProjection.project`."""
        return Position(await self._pool.value("projecting the log", _PROJECT, upto, max_events))

    async def index(self, most: int) -> int:
        """Index what the next events name, at most `most`; return how many were read. Raises StoreUnavailable: try again."""
        return int(await self._pool.value("indexing the names in events", _INDEX, most))

    async def read(self) -> NotifiedUpTo | None:
        """See `NotificationCursor.read`."""
        rows = await self._pool.rows("reading what was notified", _NOTIFIED)
        return NotifiedUpTo(**rows[0]) if rows else None

    async def save(self, reached: NotifiedUpTo) -> None:
        """See `NotificationCursor.save`."""
        doing = "noting what was notified"
        await self._pool.value(doing, _NOTE_NOTIFIED, reached.position, reached.waited_us)
