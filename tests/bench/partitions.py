"""What the append would pay if the log were partitioned by position, with a table of keys beside it (design decisions: the log is one table).

A partitioned table can enforce neither the id of an event nor the version of its stream across partitions, so each
event costs a row of `event_key` as well. Both logs are of this version's functions, on one durable server.
"""

from __future__ import annotations

import gc
import statistics
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import uvloop

from extender.store import schema_migration
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.bench.figures import Figure, Scale
from tests.bench.store import Admissions, Timed, server, together
from tests.support.logs.postgres import fresh_database

SQL = Path(__file__).parents[2] / "migrations" / "sql" / "0001"
PARTITION = 2_000_000
SHAPE = f"""
ALTER TABLE gx.event RENAME TO event_flat;
CREATE TABLE gx.event (LIKE gx.event_flat INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (position);
ALTER TABLE gx.event ADD PRIMARY KEY (position);
CREATE INDEX ON gx.event (gang, position);
CREATE INDEX ON gx.event (type, position);
CREATE INDEX ON gx.event (at_us, position);
CREATE INDEX ON gx.event (split_part(gang, '/', 1), position);
CREATE TABLE gx.event_1 PARTITION OF gx.event FOR VALUES FROM (1) TO ({PARTITION});
CREATE TABLE gx.event_2 PARTITION OF gx.event FOR VALUES FROM ({PARTITION}) TO ({2 * PARTITION});
CREATE TABLE gx.event_3 PARTITION OF gx.event FOR VALUES FROM ({2 * PARTITION}) TO ({3 * PARTITION});
CREATE TABLE gx.event_key (
    event_id uuid PRIMARY KEY, position bigint NOT NULL, gang_uid text NOT NULL, stream_version integer NOT NULL,
    UNIQUE (gang_uid, stream_version)
);
"""
KEYS = {
    "append_one": "    INSERT INTO gx.event_key VALUES (p_event_id, p_first, p_gang_uid, p_stream_version);\n",
    "append": """    INSERT INTO gx.event_key SELECT u.event_id, p_first + u.n - 1, u.gang_uid, u.stream_version
    FROM unnest(p_event_id, p_gang_uid, p_stream_version) WITH ORDINALITY AS u (event_id, gang_uid, stream_version, n);
""",
}
NOTIFY = "    PERFORM pg_notify("


async def partition(url: str) -> None:
    """Turn the empty log of a migrated database into a partitioned one, and let the functions write its keys."""
    connection = await asyncpg.connect(url)
    await connection.execute(SHAPE)
    for name, keys in KEYS.items():
        text = (
            (SQL / f"{name}.sql")
            .read_text()
            .replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
        )
        assert text.count(NOTIFY) == 1
        await connection.execute(text.replace(NOTIFY, keys + NOTIFY))
    await connection.close()


def run(scale: Scale) -> list[Figure]:
    with server() as url, fresh_database(url) as flat, fresh_database(url) as cut:
        return uvloop.run(appending({"flat": flat, "cut": cut}, scale))


async def appending(urls: dict[str, str], scale: Scale) -> list[Figure]:
    for url in urls.values():
        await schema_migration.upgrade(url)
    await partition(urls["cut"])
    figures = []
    async with AsyncExitStack() as stack:
        sides = {}
        for name, url in urls.items():
            log = await stack.enter_async_context(PostgresEventLog(url))
            grant = await log.take(holder="bench", address="", ttl_ms=3_600_000)
            sides[name] = (log, grant, Admissions(grant))

        def appender(name: str):
            log, grant, made = sides[name]

            async def append(_: int) -> None:
                await log.append(grant, [made.next()])

            return append

        for producers, calls, again in ((1, 400, 5), (16, 6000, 1), (64, 12_000, 1)):
            count = calls // 10 if scale.quick else calls
            seen: dict[str, list[Timed]] = {}
            for _ in range(scale.rounds * again):
                for name in sides:
                    gc.collect()
                    seen.setdefault(name, []).append(
                        await together(producers, count, appender(name))
                    )
            figures.append(
                Figure(
                    bench="partitions",
                    what=f"append an admission of 4 pods to a partitioned log, {producers} at a time, p50",
                    unit="ms",
                    better="lower",
                    values=tuple(statistics.median(times) for times, _ in seen["cut"]),
                    baseline_name="the log as it is",
                    baseline=tuple(statistics.median(times) for times, _ in seen["flat"]),
                    target="1.1 x",
                )
            )
    return figures
