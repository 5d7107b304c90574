"""Open database connections, and map exceptions of the driver to our faults.

Owns asyncpg's connect arguments. Must not contain queries. Note: every exception without a known SQLSTATE
becomes `StoreUnavailable`, even one that looks like a defect, because asyncpg raises internal errors when a
server dies in the middle of a message.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from extender.core.model.errors import (
    BadInput,
    ClockAhead,
    CorruptLog,
    DuplicateEvent,
    ExtenderError,
    Fenced,
    HeadMoved,
    InvariantBroken,
    LeaseHeld,
    SchemaOutdated,
    StoreUnavailable,
)
from extender.core.model.message_formatting import counted

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
POOL_SIZE = 3
# a connection in steady use is not asked: that would be one more round trip for each statement
ASKED_AFTER_S = 1.0

# SQLSTATEs of the gx.* functions, and of an outdated schema (undefined table, column, function, schema).
FAULTS: Mapping[str, type[ExtenderError]] = {
    "XE001": Fenced,
    "XE002": HeadMoved,
    "XE003": LeaseHeld,
    "XE004": InvariantBroken,
    "XE005": CorruptLog,
    "XE006": ClockAhead,
    "42P01": SchemaOutdated,
    "42703": SchemaOutdated,
    "42883": SchemaOutdated,
    "3F000": SchemaOutdated,
    # a number that no bigint is, a text with NUL
    "22000": BadInput,
    "22021": BadInput,
}
UNIQUE_VIOLATION = "23505"
UNIQUE_FAULTS: Mapping[str, type[ExtenderError]] = {
    "event_pkey": HeadMoved,
    "event_event_id_key": DuplicateEvent,
    "event_gang_uid_stream_version_key": InvariantBroken,
}

# With asynchronous commit, the default of some databases and roles, `append` would return before its commit is durable.
ENSURE_DURABLE = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""


def plain_url(url: str) -> str:
    """Return a database URL in the form that asyncpg reads.

    Args:
        url: `postgresql://…` or `postgresql+asyncpg://…`; a unix socket directory goes into the query as `host`.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise BadInput(
            "--database-url: cannot be read as a URL; expected postgresql://user@host/database"
        ) from error
    if parsed.drivername not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        raise BadInput(
            f"--database-url: is for {parsed.drivername!r}, not for PostgreSQL; expected postgresql://user@host/database"
        )
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)


def place_of(url: str) -> str:
    """Return user, host, port and database of a URL, for messages: without its password.

    >>> place_of("postgresql://alice:secret@db/gang?sslmode=require")
    'alice@db:5432/gang'
    """
    parsed = make_url(url)
    host = parsed.host or parsed.query.get("host", "localhost")
    return f"{parsed.username or ''}@{host}:{parsed.port or 5432}/{parsed.database or ''}".lstrip(
        "@"
    )


async def connect(
    url: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    command_timeout_s: float = COMMAND_TIMEOUT_S,
) -> asyncpg.Connection:
    """Return a new connection; raises the exceptions of asyncpg.

    Args:
        name: Purpose of the connection; shown in `pg_stat_activity`.
    """
    return await asyncpg.connect(
        plain_url(url),
        timeout=connect_timeout_s,
        command_timeout=command_timeout_s,
        server_settings={
            "application_name": f"gang-extender {name}",
            "timezone": "UTC",
            **(settings or {}),
        },
    )


@asynccontextmanager
async def one_connection(
    url: str,
    doing: str,
    **options: Any,  # noqa: ANN401 -- those of `connect`
) -> AsyncIterator[asyncpg.Connection]:
    """Run a block with a new connection, with our faults."""
    with our_faults(doing):
        connection = await connect(url, **options)
        try:
            yield connection
        finally:
            await close_quietly(connection)


def fault_of(error: BaseException, doing: str) -> ExtenderError:
    """Return the fault for an exception of a library or the operating system.

    Args:
        error: From asyncpg, SQLAlchemy (which wraps asyncpg's; migrations use it) or the operating system.
    """
    original = getattr(error, "orig", None)
    foreign = (getattr(original, "__cause__", None) or original or error) if original else error
    state = getattr(foreign, "sqlstate", None) or ""
    kind = FAULTS.get(state)
    if state == UNIQUE_VIOLATION:
        kind = UNIQUE_FAULTS.get(getattr(foreign, "constraint_name", None) or "")
    text = str(foreign).partition("\n")[0]
    if kind is SchemaOutdated:
        return SchemaOutdated(
            f"{text}: the schema is not the one of this version; if no older version made it, keep this database, copy it "
            "first: it was changed; else run `gang-extender db migrate`"
        )
    if kind is not None:
        return kind(f"{doing}: {text}" if kind is BadInput else text)
    if isinstance(foreign, TimeoutError) and not text:
        return StoreUnavailable(f"{doing}: the database did not answer in time")
    return StoreUnavailable(f"{doing}: {type(foreign).__name__}: {text}")


@contextmanager
def our_faults(doing: str) -> Iterator[None]:
    """Raise the exceptions of a block as our faults; cancellation passes unchanged."""
    try:
        yield
    except (ExtenderError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        raise fault_of(error, doing) from error


async def close_quietly(connection: asyncpg.Connection) -> None:
    """Close a connection; terminate it if that fails or takes longer than a second."""
    try:
        await connection.close(timeout=1.0)
    except Exception:  # noqa: BLE001 - it is terminated after any failure
        connection.terminate()
    await asyncio.sleep(0)  # lets the transport finish closing


class ConnectionPool:
    """A few connections, each used by one block at a time: opened when they are needed, and kept.

    One is closed where the outcome of a statement is not known; the server is asked to cancel the statement.

    Args:
        prepare: Called with each new connection.
        single: There is one connection, and each block waits until those before it have ended; otherwise blocks have a timeout.
        options: Those of `connect`.
    """

    def __init__(
        self,
        url: str,
        prepare: Callable[[asyncpg.Connection], Awaitable[object]] | None = None,
        *,
        name: str,
        size: int = POOL_SIZE,
        single: bool = False,
        **options: Any,  # noqa: ANN401 -- those of `connect`
    ) -> None:
        plain_url(url)  # raises for a bad URL now, not at the first query
        self._name = name
        self._open = functools.partial(connect, url, name=name, **options)
        self._prepare = prepare
        self._single = single
        self._size = 1 if single else size
        self._slots = asyncio.Semaphore(self._size)
        self._free: list[tuple[asyncpg.Connection, float]] = []  # and when it was used last
        self._used: set[asyncpg.Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(self, doing: str) -> AsyncIterator[asyncpg.Connection]:
        """Run a block with a connection, with our faults; each statement commits by itself."""
        limit_s = None if self._single else CONNECT_TIMEOUT_S + 3 * COMMAND_TIMEOUT_S
        with our_faults(doing):
            async with asyncio.timeout(limit_s):
                is_free = self._single or not self._slots.locked()
                await (self._slots.acquire() if is_free else self._next_turn(doing))
                try:
                    connection = await self._next_connection()
                    try:
                        with our_faults(doing):
                            yield connection
                    except BaseException as error:
                        if isinstance(error, StoreUnavailable) or not isinstance(
                            error, ExtenderError
                        ):
                            self._drop(connection)
                        raise
                    finally:
                        if connection in self._used:
                            self._used.discard(connection)
                            self._free.append((connection, time.monotonic()))
                finally:
                    self._slots.release()

    @asynccontextmanager
    async def transaction(self, doing: str) -> AsyncIterator[asyncpg.Connection]:
        """Run a block in one transaction; otherwise as `use`, which takes half the CPU time for a statement."""
        async with self.use(doing) as connection, connection.transaction():
            yield connection

    async def value(self, doing: str, query: str, *values: object) -> Any:  # noqa: ANN401 -- of any type
        """Return the first column of the first row of a query; None: there is no row."""
        async with self.use(doing) as connection:
            return await connection.fetchval(query, *values)

    async def rows(self, doing: str, query: str, *values: object) -> list[asyncpg.Record]:
        """Return the rows of a query."""
        async with self.use(doing) as connection:
            return await connection.fetch(query, *values)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the connections, whatever they are doing."""
        for connection in [*self._used, *(connection for connection, _ in self._free)]:
            self._drop(connection)
        self._free.clear()
        await asyncio.gather(*self._closing)

    async def _next_turn(self, doing: str) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._slots.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{doing}: {counted(self._size, 'connection')} of `gang-extender {self._name}` to the database "
                f"{'is' if self._size == 1 else 'are all'} in use for {CONNECT_TIMEOUT_S:g} s; "
                "look for what they wait for in pg_stat_activity, and ask again"
            ) from error

    async def _next_connection(self) -> asyncpg.Connection:
        """Return the connection that was used last, or a new one.

        After `ASKED_AFTER_S` without use the server is asked for an answer first: a connection that a proxy or a firewall
        has forgotten looks open.
        """
        while self._free:
            connection, used_at = self._free.pop()
            self._used.add(connection)
            is_asked = not self._single and time.monotonic() - used_at > ASKED_AFTER_S
            if is_asked:
                try:
                    await self._or_drop(connection, connection.execute("SELECT 1"))
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    # those that were used before it would each be waited for, in vain where the network has forgotten them
                    while self._free:
                        self._drop(self._free.pop()[0])
            if connection in self._used and not connection.is_closed():
                return connection
            self._used.discard(connection)
        connection = await self._open()
        self._used.add(connection)
        if self._prepare is not None:
            await self._or_drop(connection, self._prepare(connection))
        return connection

    async def _or_drop(self, connection: asyncpg.Connection, request: Awaitable[object]) -> None:
        try:
            await request
        except BaseException:
            self._drop(connection)
            raise

    def _drop(self, connection: asyncpg.Connection) -> None:
        """Close a connection without waiting for that; the server is asked to cancel the statement that runs."""
        self._used.discard(connection)
        closing = asyncio.get_running_loop().create_task(close_quietly(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
