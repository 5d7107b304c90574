"""The reading end of the log: pages in order, every row checked against the one in front of it.

Owns the queries of replay. Must not share a connection with the writer. The surprise: the next page is
fetched while the caller works on the last one, which halves a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import asyncpg

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import CorruptLog
from extender.store.engine import connect, our_faults
from extender.store.log.appender import close_quietly
from extender.store.log.event_codec import EMPTY_CHAIN, image, link, to_event

PAGE_EVENTS = (
    1000  # 5 ms of decoding; larger ones fall out of the processor's caches and are slower
)

SETTINGS = {"jit": "off"}  # of a session that reads pages: compiling takes longer than the query

HEAD = "SELECT position, hash, at_us FROM gx.event ORDER BY position DESC LIMIT 1"
CHAIN_AT = "SELECT hash FROM gx.event WHERE position = $1"
PAGE = """
SELECT position, event_id, epoch, at_us, type, ver, root_uid, version, root, actor, cause, cause_position,
       payload, hash
FROM gx.event WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3
"""


class Fetch(Protocol):
    """Runs a query and gives its rows; a connection's `fetch`, or what borrows one for each query."""

    def __call__(self, query: str, *values: object) -> Awaitable[list[asyncpg.Record]]: ...  # noqa: D102


@asynccontextmanager
async def reading_connection(url: str, *, name: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a connection of its own for a walk through the log, and close it.

    Args:
        url: Database URL.
        name: What the walk is for.
    """
    with our_faults(f"{name}: connecting"):
        connection = await connect(url, name=name, settings=SETTINGS, command_timeout_s=30.0)
    try:
        with our_faults(name):
            await read_payloads(connection)
        yield connection
    finally:
        await close_quietly(connection)


async def read_payloads(connection: asyncpg.Connection) -> None:
    """Make a connection give json as its bytes: what was hashed is what is decoded."""
    await connection.set_type_codec(
        "json", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
    )


async def chain_at(fetch: Fetch, position: int) -> bytes:
    """Give the hash of the event at a position, which must exist; zeros for position 0.

    Raises:
        CorruptLog: The log does not reach that far.
    """
    if position == 0:
        return EMPTY_CHAIN
    found = await fetch(CHAIN_AT, position)
    if not found:
        raise CorruptLog(f"position {position} is not in the log; part of its history is lost")
    chain: bytes = found[0]["hash"]
    return chain


async def read_apart(
    url: str, *, after: int, until: int | None, page_events: int
) -> AsyncIterator[Sequence[RecordedEvent]]:
    """Read pages as `read_pages` does, on a connection of its own."""
    async with reading_connection(url, name="read") as connection:
        pages = read_pages(connection.fetch, after=after, until=until, page_events=page_events)
        async with aclosing(pages):
            async for page in pages:
                yield page


async def read_pages(
    fetch: Fetch, *, after: int, until: int | None, page_events: int
) -> AsyncGenerator[Sequence[RecordedEvent]]:
    """Read pages up to the head as it is at the start; see `EventLog.read`."""
    with our_faults("reading the log"):
        previous = await chain_at(fetch, after)
        heads = await fetch(HEAD)
    end = heads[0]["position"] if heads else 0
    if until is not None:
        end = min(end, until)
    fetching = asyncio.ensure_future(fetch(PAGE, after, end, page_events))
    try:
        while after < end:
            with our_faults("reading the log"):
                rows = await fetching
            last = min(after + page_events, end)
            if last < end:
                fetching = asyncio.ensure_future(fetch(PAGE, last, end, page_events))
            page, previous = verify(rows, after=after, previous=previous)
            if after + len(page) != last:
                raise CorruptLog(f"position {after + len(page) + 1} is missing")
            after = last
            yield page
    finally:
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled():
            fetching.exception()  # looked at, so that nobody warns about it


async def next_page(
    connection: asyncpg.Connection, *, after: int, previous: bytes, page_events: int
) -> tuple[Sequence[RecordedEvent], bytes]:
    """Read what stands behind a position: at most a page, empty at the head.

    Returns:
        The events, and the hash of the last one.
    """
    rows = await connection.fetch(PAGE, after, 2**62, page_events)
    return verify(rows, after=after, previous=previous)


def verify(
    rows: Sequence[asyncpg.Record], *, after: int, previous: bytes
) -> tuple[list[RecordedEvent], bytes]:
    """Decode rows and check that they follow each other without a gap and chain up.

    Args:
        rows: As `PAGE` gives them.
        after: Position in front of the first row.
        previous: Hash in front of the first row.

    Returns:
        The events, and the hash of the last one.

    Raises:
        CorruptLog: Names the first position that is wrong.
    """
    events: list[RecordedEvent] = []
    for record in rows:
        *row, stored = record
        after += 1
        if row[0] != after:
            raise CorruptLog(f"position {after} is missing")
        previous = link(previous, image(row))
        if previous != stored:
            raise CorruptLog(
                f"position {after}: the hash does not match; the row or its predecessor was altered"
            )
        events.append(to_event(row))
    return events, previous
