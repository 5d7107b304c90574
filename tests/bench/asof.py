"""Looking back: the state as of any moment, the tables of intervals, and the plans of what is asked of the log.

On 1,000,000 events; with `ONLY=10,000,000` on so many (an hour, and 20 GB). Plans are printed; a plan that reads the
whole log ends the benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import asyncpg
import msgspec
import uvloop

from extender.control.monitors.read_model_projector import BATCH, project_all
from extender.core.model.ids import NodeName, Position
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.state_dto import Scope
from extender.snapshots.state_loader import backfill_snapshots
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PROJECTING, PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.snapshot_table import PostgresSnapshots
from tests.bench.figures import Figure, Scale
from tests.bench.history import node_of, write_history
from tests.bench.store import server
from tests.support.logs.postgres import fresh_database

T = TypeVar("T")
LONG = "10,000,000"
ASKED = 20  # moments in a round
AT = "gx.placement WHERE from_position <= $2 AND coalesce(to_position, 9223372036854775807) > $2"
PLANS = {
    "what was on a node at a position": (f"SELECT * FROM {AT} AND node = $1", ("node-00042.cluster.internal", "half")),
    "where a pod ever was": ("SELECT * FROM gx.placement WHERE pod = $1 ORDER BY from_position", ("serve/model-0000100-decode-1",)),
    "where a gang ever was": ("SELECT * FROM gx.placement WHERE gang = $1 ORDER BY from_position", ("serve/model-0000100",)),
    "how a gang stood": ("SELECT * FROM gx.gang_state WHERE gang = $1 ORDER BY from_position", ("serve/model-0000100",)),
    "whom a pod gave way to": ("SELECT * FROM gx.victim WHERE pod = $1 ORDER BY position", ("serve/a",)),
    "the position of a time": ("SELECT position FROM gx.event WHERE at_us <= $1 ORDER BY at_us DESC, position DESC LIMIT 1", ("half_us",)),
    "a namespace that was ever named": ("SELECT position FROM gx.event WHERE split_part(gang, '/', 1) = $1 LIMIT 1", ("absent",)),
    "the events to project": ("SELECT * FROM gx.event WHERE position > $1 AND position <= $1 + 500 ORDER BY position", ("half",)),
    "the checkpoint in front of a position": ("SELECT c.position FROM gx.snapshot c JOIN gx.event e ON e.position = c.position AND e.hash = c.chain WHERE c.codec = 'x' AND c.position <= $1 ORDER BY c.position DESC LIMIT 1", ("half",)),
}  # fmt: skip


def run(scale: Scale) -> list[Figure]:
    events = 10_000_000 if LONG in scale.only else 30_000 if scale.quick else 1_000_000
    with server() as url, fresh_database(url) as database:
        return uvloop.run(looking_back(database, events, scale.rounds))


async def looking_back(url: str, events: int, rounds: int) -> list[Figure]:
    await schema_migration.upgrade(url)
    await write_history(url, events)
    writing, reading = ConnectionPool(url, name="bench"), reading_pool(url)
    projecting = ConnectionPool(url, name="bench", settings=PROJECTING, size=1)
    seen: dict[str, list[float]] = {}
    try:
        async with PostgresEventLog(url) as log:
            snapshots, projection = (
                PostgresSnapshots(writing),
                PostgresReadModels(projecting),
            )
            end = (await log.head()).position
            before_end = Position(end - BATCH)
            await timed(seen, "project", project_all(projection, before_end))
            await timed(seen, "batch", projection.project(end, max_events=BATCH))
            every = snapshots.stretch(end)
            await timed(seen, "ladder", backfill_snapshots(log, snapshots, until=end, every=every))
            await analyze(url)
            past = PostgresSnapshots(reading)
            as_of = HistoricalState(log, past, PostgresEventQueries(reading))
            chance = random.Random(1)
            with frozen():
                for _ in range(rounds):
                    await ask(seen, as_of, chance, end)
            await nodes(url, seen, chance, end, rounds)
        await plans(url, end)
        sizes = await sizes_of(url)
    finally:
        await writing.close()
        await reading.close()
        await projecting.close()
    return figures(seen, f"{events:,} events", events, sizes)


async def timed(seen: dict[str, list[float]], what: str, work: Awaitable[T]) -> T:
    start = time.perf_counter()
    answer = await work
    seen.setdefault(what, []).append(time.perf_counter() - start)
    return answer  # it goes when the clock stands


@contextmanager
def frozen() -> Iterator[None]:
    """Keep what the benchmark made before from the garbage collector, as the service does with what it starts with."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def ask(
    seen: dict[str, list[float]], as_of: HistoricalState, chance: random.Random, end: int
) -> None:
    """Ask for moments all over the log, each time with nothing kept; then as a slider does, one after another."""
    for _ in range(ASKED):
        at = str(chance.randrange(1, end))
        await nothing_kept(as_of)
        state = await timed(seen, "state", as_of.state(at, Scope()))
        start = time.perf_counter()
        msgspec.json.encode(state)
        seen.setdefault("as JSON", []).append(seen["state"][-1] + time.perf_counter() - start)
        del state
        node = NodeName(node_of(chance.randrange(5000))[0])
        await nothing_kept(as_of)
        await timed(seen, "state of a node", as_of.state(at, Scope(node=node), exists=True))
        other = str(chance.randrange(1, end))
        await nothing_kept(as_of)
        await timed(seen, "difference", as_of.difference(at, other, Scope()))
    await nothing_kept(as_of)
    start_at = chance.randrange(1, end - 100 * ASKED)
    for step in range(ASKED):
        await timed(seen, "slider", as_of.state(str(start_at + 100 * step), Scope()))


async def nothing_kept(as_of: HistoricalState) -> None:
    """Let go of states of questions before, and of the last answer, which the event loop holds for a turn."""
    as_of.forget()
    await asyncio.sleep(0)


async def nodes(
    url: str, seen: dict[str, list[float]], chance: random.Random, end: int, rounds: int
) -> None:
    connection = await asyncpg.connect(url)
    query = await connection.prepare(PLANS["what was on a node at a position"][0])
    for _ in range(ASKED * rounds):
        name, at = node_of(chance.randrange(5000))[0], chance.randrange(1, end)
        await timed(seen, "node by SQL", query.fetch(name, at))
    await connection.close()


async def analyze(url: str) -> None:
    connection = await asyncpg.connect(url)
    for table in ("placement", "gang_state", "checkpoint", "event"):
        await connection.execute(f"VACUUM (ANALYZE) gx.{table}", timeout=900)
    await connection.close()


async def plans(url: str, end: int) -> None:
    """Print the plan of each question, and refuse one that reads the log from one end to the other."""
    connection = await asyncpg.connect(url)
    half_us = await connection.fetchval("SELECT at_us FROM gx.event WHERE position = $1", end // 2)
    values = {"half": end // 2, "half_us": half_us}
    for what, (query, given) in PLANS.items():
        asked = [values.get(value, value) for value in given]
        rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}", *asked)
        text = "\n".join(f"    {row[0]}" for row in rows)
        print(f"{what}:\n{text}")
        assert "Seq Scan on event" not in text, what
        assert "Seq Scan on placement" not in text, what
    await connection.close()


async def sizes_of(url: str) -> str:
    """Return how large the tables are."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT relname, pg_total_relation_size(oid) / 1048576 AS mib FROM pg_class "
        "WHERE relnamespace = 'gx'::regnamespace AND relkind = 'r' ORDER BY 2 DESC LIMIT 4"
    )
    await connection.close()
    return ", ".join(f"{row['relname']} {row['mib']} MiB" for row in rows)


def figures(seen: dict[str, list[float]], note: str, events: int, sizes: str) -> list[Figure]:
    target = "1000 ms" if events > 1_000_000 else "100 ms"

    def ms(what: str, name: str, target: str = target) -> Figure:
        return Figure(
            bench="asof", what=f"{what}, {note}", unit="ms", better="lower",
            values=tuple(took * 1e3 for took in seen[name]), target=target,
        )  # fmt: skip

    return [
        ms("the whole state at any moment", "state"),
        ms("the whole state at any moment, as JSON", "as JSON"),
        ms("a node at any moment, folded", "state of a node"),
        ms("the difference between any two moments", "difference", ""),
        ms("the whole state 100 events on, as a slider asks", "slider"),
        ms("a node at any moment, by SQL", "node by SQL"),
        ms(f"project {BATCH} events", "batch", ""),
        Figure(
            bench="asof", what=f"project the log from nothing, {note}", unit="events/s", better="higher",
            values=tuple(events / took for took in seen["project"]), note=sizes,
        ),
        Figure(
            bench="asof", what=f"make the checkpoints to look back from, {note}", unit="s", better="lower",
            values=tuple(seen["ladder"]),
        ),
    ]  # fmt: skip
