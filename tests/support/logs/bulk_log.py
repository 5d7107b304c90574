"""Write a whole log into a database without a lease: for benches and for tests of queries."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from extender.core.log.events import RecordedEvent
from extender.store.log.event_codec import EMPTY_CHAIN, encode_event, link

COLUMNS = (
    "position", "event_id", "epoch", "at_us", "type", "schema_version", "gang_uid", "stream_version", "gang", "actor",
    "cause", "cause_position", "payload", "hash",
)  # fmt: skip


async def writing_connection(url: str) -> asyncpg.Connection:
    """Open a connection for `copy_events`; the caller closes it."""
    connection = await asyncpg.connect(url)
    await connection.set_type_codec(
        "json", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
    )
    return connection


async def copy_events(
    connection: asyncpg.Connection, events: Sequence[RecordedEvent], previous: bytes = EMPTY_CHAIN
) -> tuple[bytes, int]:
    """Write events behind those that are there, chained to `previous`.

    Returns:
        The hash of the last one, and the bytes of all payloads.
    """
    records, size = [], 0
    for event in events:
        row, image = encode_event(event)
        previous = link(previous, image)
        size += len(row.payload)
        records.append((*row, previous))
    await connection.copy_records_to_table(
        "event", schema_name="gx", records=records, columns=COLUMNS
    )
    return previous, size


async def forget_log(connection: asyncpg.Connection) -> None:
    """Empty the log and everything made from it, past the triggers; only a superuser can."""
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("TRUNCATE gx.event, gx.snapshot; SELECT gx.reset_projection()")
