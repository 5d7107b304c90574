"""Reports on a log of 1,000,000 events and 30 days: what each takes for an hour, for a day, and for one gang.

Plans are printed; one that reads the whole log, or all of its intervals, ends the benchmark.
"""

from __future__ import annotations

import re
import time

import asyncpg
import uvloop

from extender.queries.log.reports import DAY_US, REPORTS, ReportQuery
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.queries.event_queries import reading_pool
from extender.store.queries.report_queries import PostgresReportQueries, query_of
from tests.bench.asof import analyze
from tests.bench.figures import Figure, Scale
from tests.bench.history import write_history
from tests.bench.store import server
from tests.support.logs.postgres import fresh_database

PACE_US = 2_600_000  # a million in 30 days
HOUR_US = DAY_US // 24
ASKED = 5  # times in a round
WHOLE = re.compile(r"Seq Scan on (event|placement|gang_state)\b")


def run(scale: Scale) -> list[Figure]:
    events = 4_000 if scale.quick else 1_000_000
    with server() as url, fresh_database(url) as database:
        return uvloop.run(reporting(database, events, scale.rounds))


async def reporting(url: str, events: int, rounds: int) -> list[Figure]:
    await schema_migration.upgrade(url)
    await write_history(url, events, pace_us=PACE_US, measured_every=500)
    reading = reading_pool(url)
    try:
        await project(url, events)
        await analyze(url)
        cases = await cases_of(reading, events)
        for asked in cases.values():
            await plan(reading, asked)
        reader = PostgresReportQueries(reading)
        seen: dict[str, list[float]] = {}
        for _ in range(rounds * ASKED):
            for what, asked in cases.items():
                start = time.perf_counter()
                await reader.rows(asked)
                seen.setdefault(what, []).append((time.perf_counter() - start) * 1e3)
    finally:
        await reading.close()
    return [
        Figure(
            bench="reports", what=what, unit="ms", better="lower", values=tuple(times), target="100 ms",
            note=f"{events:,} events",
        )
        for what, times in seen.items()
    ]  # fmt: skip


async def project(url: str, events: int) -> None:
    """Bring the intervals to the end of the log, however long that takes."""
    connection = await asyncpg.connect(url)
    try:
        while (
            await connection.fetchval("SELECT gx.project($1, 2000)", events, timeout=600) < events
        ):
            pass
    finally:
        await connection.close()


async def cases_of(engine: ConnectionPool, events: int) -> dict[str, ReportQuery]:
    """Return the questions: about the last hour and day, an hour of long ago, and a gang that lived in the last day.

    Who was passed over by whom in a day is a hundred thousand pairs here: the first page of them is asked for.
    """
    async with engine.use("looking for the end") as connection:
        end_us, middle_us, gang = await connection.fetchrow(
            "SELECT max(at_us) FILTER (WHERE position = $1), max(at_us) FILTER (WHERE position = $2), "
            "max(gang) FROM gx.event WHERE position IN ($1, $2) OR position > $1::bigint - 500",
            events,
            events // 2,
        )
    cases = {}
    for name, kind in REPORTS.items():
        hour = ReportQuery(name=name, since_us=end_us - HOUR_US, until_us=end_us)
        cases[f"{name}: the last hour"] = hour
        cases[f"{name}: the last day"] = ReportQuery(
            name=name, since_us=end_us - DAY_US, until_us=end_us
        )
        cases[f"{name}: an hour two weeks ago"] = ReportQuery(
            name=name, since_us=middle_us - HOUR_US, until_us=middle_us
        )
        if kind.of_gangs:
            cases[f"{name}: one gang, the last day"] = ReportQuery(
                name=name, since_us=end_us - DAY_US, until_us=end_us, gang=gang
            )
    return cases


async def plan(engine: ConnectionPool, asked: ReportQuery) -> None:
    """Print the plan of a question, and refuse one that reads everything."""
    text, values = query_of(asked)
    async with engine.use("explaining") as connection:
        plan = await connection.fetch(f"EXPLAIN (COSTS OFF) {text}", *values)
        lines = "\n".join(f"    {line[0]}" for line in plan)
    print(f"{asked.name}, {(asked.until_us - asked.since_us) // HOUR_US} h {asked.gang}:\n{lines}")
    assert not WHOLE.search(lines), asked
