"""Read the log in pages, and verify every row against its predecessor.

Owns the queries that read the log in order. Must not share a connection with the writer. Note: the next page
is fetched while the caller processes the current one, which halves the time of a fold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import asyncpg

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import AlteredEvent, CorruptLog, MissingEvent
from extender.ports.log_ports import LogPage
from extender.store.connections import one_connection, our_faults
from extender.store.log.event_codec import EMPTY_CHAIN, image, link, to_event

PAGE_EVENTS = 1000  # 5 ms of decoding; larger pages exceed the processor's caches and are slower

SETTINGS = {"jit": "off"}  # of reading sessions: the compilation takes longer than the query

HEAD = "SELECT position, hash, at_us FROM gx.event ORDER BY position DESC LIMIT 1"
CHAIN_AT = "SELECT hash FROM gx.event WHERE position = $1"
PAGE = """
SELECT position, event_id, epoch, at_us, type, schema_version, gang_uid, stream_version, gang, actor, cause, cause_position,
       payload, hash
FROM gx.event WHERE position > $1 AND position <= $2 ORDER BY position LIMIT $3
"""


Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]  # of a connection: a query and its values


@asynccontextmanager
async def reading_connection(url: str, *, name: str) -> AsyncIterator[asyncpg.Connection]:
    """Run a block with a separate connection for reading the log."""
    options = {"settings": SETTINGS, "command_timeout_s": 30.0}
    async with one_connection(url, name, name=name, **options) as connection:
        await use_raw_json(connection)
        yield connection


async def use_raw_json(connection: asyncpg.Connection) -> None:
    """Set a connection to return json as bytes, so that the hashed bytes are decoded."""
    await connection.set_type_codec(
        "json", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
    )


async def chain_at(fetch: Fetch, position: int) -> bytes:
    """Return the hash of the event at a position; zeros for position 0.

    Raises:
        CorruptLog: The log has no event at the position.
    """
    if position == 0:
        return EMPTY_CHAIN
    rows = await fetch(CHAIN_AT, position)
    if not rows:
        raise CorruptLog(f"position {position} is not in the log; part of its history is lost")
    chain: bytes = rows[0]["hash"]
    return chain


async def read_on_new_connection(
    url: str, *, after: int, until: int | None, page_events: int
) -> AsyncIterator[LogPage]:
    """Yield the pages of `read_pages`, on a separate connection."""
    async with reading_connection(url, name="read") as connection:
        pages = read_pages(connection.fetch, after=after, until=until, page_events=page_events)
        async with aclosing(pages):
            async for page in pages:
                yield page


async def read_pages(
    fetch: Fetch, *, after: int, until: int | None, page_events: int
) -> AsyncGenerator[LogPage]:
    """Yield pages up to the log head at the time of the call; see `EventLog.read`."""
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
            page = verify(rows, after=after, previous=previous)
            previous = page.chain
            if after + len(page) != last:
                raise MissingEvent(after + len(page) + 1)
            after = last
            yield page
    finally:
        fetching.cancel()
        await asyncio.wait([fetching])
        if not fetching.cancelled():
            fetching.exception()  # marks it as retrieved for asyncio


def verify(rows: Sequence[asyncpg.Record], *, after: int, previous: bytes) -> LogPage:
    """Decode rows, and verify that their positions have no gap and their hashes form a chain.

    Raises:
        CorruptLog: A position is missing or a hash is wrong; names the first such position.
    """
    events: list[RecordedEvent] = []
    for record in rows:
        *row, stored = record
        after += 1
        if row[0] != after:
            raise MissingEvent(after)
        previous = link(previous, image(row))
        if previous != stored:
            raise AlteredEvent(after)
        events.append(to_event(row))
    return LogPage(events, previous)
