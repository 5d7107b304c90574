"""Connections: how a database URL becomes one, and how a driver's exception becomes one of our faults.

Owns everything that knows asyncpg's connect arguments. Must not hold queries. The surprise: any exception
that is not known by its SQLSTATE is `StoreUnavailable`, also those that look like defects, because asyncpg
raises internal errors when a server dies in the middle of a message and a caller must hear of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import asyncpg
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from extender.core.model.errors import (
    BadInput,
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

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
POOL_SIZE = 3

# What gx.* functions raise, and what an outdated schema looks like (undefined table, column, function, schema).
FAULTS: Mapping[str, type[ExtenderError]] = {
    "XE001": Fenced,
    "XE002": HeadMoved,
    "XE003": LeaseHeld,
    "XE004": InvariantBroken,
    "XE005": CorruptLog,
    "42P01": SchemaOutdated,
    "42703": SchemaOutdated,
    "42883": SchemaOutdated,
    "3F000": SchemaOutdated,
}
UNIQUE_VIOLATION = "23505"
UNIQUE_FAULTS: Mapping[str, type[ExtenderError]] = {
    "event_pkey": HeadMoved,
    "event_event_id_key": DuplicateEvent,
    "event_root_uid_version_key": InvariantBroken,
}

# A database or role that defaults to asynchronous commit would make "durable on return" a lie.
ENSURE_DURABLE = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""


def plain_url(url: str) -> str:
    """Turn a database URL into the form asyncpg reads.

    Args:
        url: `postgresql://…` or `postgresql+asyncpg://…`; a unix socket directory goes into the query as `host`.

    Raises:
        BadInput: It is not a URL of PostgreSQL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise BadInput(
            "the database URL cannot be read; expected postgresql://user@host/database"
        ) from error
    if parsed.drivername not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        raise BadInput(f"the database URL is for {parsed.drivername!r}, not for PostgreSQL")
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)


async def connect(
    url: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    command_timeout_s: float = COMMAND_TIMEOUT_S,
) -> asyncpg.Connection:
    """Open one connection; raises what asyncpg raises.

    Args:
        url: See `plain_url`.
        name: What the connection is for; shown in `pg_stat_activity`.
        settings: Session settings, by the server's names.
        connect_timeout_s: Limit on the whole handshake.
        command_timeout_s: Limit on each later command.
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


def create_engine(
    url: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    pool_size: int = POOL_SIZE,
    command_timeout_s: float = COMMAND_TIMEOUT_S,
) -> AsyncEngine:
    """Give a small pool for SQLAlchemy Core; it opens nothing before the first query.

    Args:
        url: See `plain_url`.
        name: What the pool is for; shown in `pg_stat_activity`.
        settings: Session settings, by the server's names.
        pool_size: Connections at most.
        command_timeout_s: Limit on each command.
    """
    plain_url(url)  # a bad URL is refused here, not at the first query

    async def open_one() -> asyncpg.Connection:
        return await connect(url, name=name, settings=settings, command_timeout_s=command_timeout_s)

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=open_one,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
    )


def fault_of(error: BaseException, doing: str) -> ExtenderError:
    """Name a foreign exception as one of our faults.

    Args:
        error: From asyncpg, SQLAlchemy (which wraps asyncpg's) or the operating system.
        doing: What was being done, for the message.
    """
    original = getattr(error, "orig", None)
    foreign = (getattr(original, "__cause__", None) or original or error) if original else error
    state = getattr(foreign, "sqlstate", None) or ""
    kind = FAULTS.get(state)
    if state == UNIQUE_VIOLATION:
        kind = UNIQUE_FAULTS.get(getattr(foreign, "constraint_name", None) or "")
    text = str(foreign).partition("\n")[0]
    if kind is SchemaOutdated:
        return SchemaOutdated(f"{text}; run `gang-extender migrate`")
    if kind is not None:
        return kind(text)
    return StoreUnavailable(f"{doing}: {type(foreign).__name__}: {text}")


@contextmanager
def our_faults(doing: str) -> Iterator[None]:
    """Let nothing but our own faults (and cancellation) out of a block.

    Args:
        doing: What the block does, for the message.
    """
    try:
        yield
    except (ExtenderError, asyncio.CancelledError, GeneratorExit):
        raise
    except Exception as error:
        raise fault_of(error, doing) from error


@asynccontextmanager
async def transaction(engine: AsyncEngine, doing: str) -> AsyncIterator[AsyncConnection]:
    """Run a block in one transaction of the engine, with our faults and no endless wait.

    Args:
        engine: From `create_engine`.
        doing: What the block does, for the message.
    """
    with our_faults(doing):
        async with (
            asyncio.timeout(CONNECT_TIMEOUT_S + 3 * COMMAND_TIMEOUT_S),
            engine.begin() as connection,
        ):
            yield connection
