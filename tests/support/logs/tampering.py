"""What the owner of the database can do to a log behind the back of the service, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from extender.store.connections import plain_url
from extender.store.log.event_codec import image as row_image
from extender.store.log.event_codec import link
from extender.store.log.log_reader import PAGE, chain_at, use_raw_json

ACTOR = 9  # its column in `PAGE`


@asynccontextmanager
async def as_owner(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Run a block in a transaction for which no trigger fires, as a superuser can."""
    connection = await asyncpg.connect(plain_url(url))
    try:
        await use_raw_json(connection)
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            yield connection
    finally:
        await connection.close()


async def tamper(url: str, *statements: str) -> None:
    """Run statements as the owner of the database, in one transaction."""
    async with as_owner(url) as connection:
        for statement in statements:
            await connection.execute(statement)


async def rewrite(url: str, position: int, *, actor: str = "someone") -> None:
    """Change the actor of one event, and compute the hashes of it and of all later events again."""
    async with as_owner(url) as connection:
        await connection.execute(
            "UPDATE gx.event SET actor = $2 WHERE position = $1", position, actor
        )
        await rehash(connection, position)


async def rehash(connection: asyncpg.Connection, position: int) -> None:
    """Compute the hashes from a position on again, so that the chain is unbroken."""
    previous = await chain_at(connection.fetch, position - 1)
    hashes = []
    for *row, _ in await connection.fetch(PAGE, position - 1, 2**62, 2**31):
        previous = link(previous, row_image(row))
        hashes.append((row[0], previous))
    await connection.executemany("UPDATE gx.event SET hash = $2 WHERE position = $1", hashes)
