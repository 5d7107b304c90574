"""The event log: durable appends, replay of a million events, restart, the look for drift.

Runs on the server that tests run on (`tests/support/logs/postgres.py`), with fsync on.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeAlias

import asyncpg
import uvloop

from extender.control.log.leader import Leader, LeaseIdentity
from extender.control.monitors.state_verifier import StateVerifier
from extender.core.log.events import RecordedEvent
from extender.core.model.ids import Epoch, GangUid, Position
from extender.core.model.message_formatting import parse_time
from extender.ports.log_ports import LeaseGrant, LogHead, Snapshot
from extender.ports.query_ports import EventFilter
from extender.queries.log.event_dto import EventLine, event_line
from extender.queries.log.gang_history import HistoryQuery, history
from extender.runtime.system_clock import SystemClock
from extender.snapshots.state_loader import load_state, save_snapshot
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.event_codec import Row, encode_event
from extender.store.log.log_reader import PAGE, PAGE_EVENTS, reading_connection
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.snapshot_table import PostgresSnapshots
from tests.bench.figures import Figure, Scale
from tests.bench.history import admission, note_names, write_history
from tests.support.logs.bulk_log import COLUMNS
from tests.support.logs.postgres import fresh_database, running_postgres

TAIL = 10_000
BARE = f"INSERT INTO bare VALUES ({', '.join(f'${n + 1}' for n in range(len(COLUMNS)))})"
PLAIN = "bare INSERT + COMMIT, primary key only"
INDEXED = "bare INSERT + COMMIT, same indexes"
TARGETS = {
    (1, "p50"): "1.5 x",
    (16, "p50"): "1 ms",
    (16, "p99"): "5 ms",
    (64, ""): "20,000/s",
}
Timed: TypeAlias = tuple[list[float], float]  # milliseconds of each call, calls per second of all


class Nothing:
    """`Snapshots` without any."""

    async def save(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        return None


class Pulse:
    """Sees how long the event loop is held."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - before) * 1e3 - 1)


async def timed(work: Awaitable[object]) -> tuple[float, float]:
    """Return the seconds that work takes and the milliseconds for which it held the loop at most."""
    pulse = Pulse()
    beating = asyncio.create_task(pulse.beat())
    await asyncio.sleep(0.01)
    pulse.longest_ms, start = 0.0, time.perf_counter()
    try:
        await work
        took = time.perf_counter() - start
        await asyncio.sleep(0.005)  # the beat that was held up
        return took, pulse.longest_ms
    finally:
        beating.cancel()


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of the server to measure on: durable, unlike that of the tests."""
    given = os.environ.get("GX_TEST_DATABASE_URL")
    if given:
        yield given
        return
    pg_bin = os.environ.get("GX_TEST_PG_BIN")
    durable = {"fsync": "on", "full_page_writes": "on", "max_wal_size": "4GB"}
    durable |= {"max_connections": "100"}
    with running_postgres(pg_bin=Path(pg_bin) if pg_bin else None, **durable) as running:
        yield running.url


def run(scale: Scale) -> list[Figure]:
    figures = []
    with server() as url:
        with fresh_database(url) as database:
            figures += uvloop.run(appending(database, scale))
        with fresh_database(url) as database:
            figures += uvloop.run(reading(database, scale))
    return figures


# Appending


class Admissions:
    """Makes admissions of 4 pods, each of a new root, at the next position."""

    def __init__(self, grant: LeaseGrant) -> None:
        self._chance = random.Random(1)
        self._clock = SystemClock()
        self._epoch = grant.epoch
        self._position = grant.head.position
        self._events = [admission(self._chance, f"model-{n}") for n in range(100)]

    def next(self) -> RecordedEvent:
        self._position = Position(self._position + 1)
        return RecordedEvent(
            position=self._position, event_id=self._clock.new_id(), epoch=Epoch(self._epoch),
            at_us=1_800_000_000_000_000 + self._position,
            gang_uid=GangUid(f"{self._position:032x}"), stream_version=1, gang="serve/model",
            actor="gang-extender-0", cause="pass", data=self._events[self._position % 100],
        )  # fmt: skip


async def together(producers: int, count: int, once: Callable[[int], Awaitable[None]]) -> Timed:
    """Return the sorted milliseconds of each call and the calls per second of all."""
    took: list[float] = []

    async def produce(number: int) -> None:
        for _ in range(count // producers):
            start = time.perf_counter()
            await once(number)
            took.append((time.perf_counter() - start) * 1e3)

    start = time.perf_counter()
    await asyncio.gather(*(produce(number) for number in range(producers)))
    return sorted(took), len(took) / (time.perf_counter() - start)


async def appending(url: str, scale: Scale) -> list[Figure]:
    await schema_migration.upgrade(url)
    bare = [await asyncpg.connect(url) for _ in range(64)]
    await bare[0].execute(
        "CREATE TABLE bare (LIKE gx.event); ALTER TABLE bare ADD PRIMARY KEY (position); "
        "CREATE TABLE indexed (LIKE gx.event INCLUDING ALL)"
    )
    inserts = [await connection.prepare(BARE) for connection in bare]
    indexed = await bare[0].prepare(BARE.replace(" bare ", " indexed "))
    figures = []
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="bench", address="", ttl_ms=3_600_000)
        ours, theirs = Admissions(grant), Admissions(grant)

        async def append(_: int) -> None:
            await log.append(grant, [ours.next()])

        async def insert(number: int) -> None:
            await inserts[number].fetch(*rows.pop())

        async def insert_indexed(_: int) -> None:
            await indexed.fetch(*rows.pop())

        # one at a time the calls are few and the rounds many: both sides see the same noise
        for producers, calls, again in ((1, 200, 5), (16, 8000, 1), (64, 16_000, 1)):
            count = calls // 10 if scale.quick else calls
            sides = {PLAIN: insert, INDEXED: insert_indexed} if producers == 1 else {PLAIN: insert}
            seen: dict[str, list[Timed]] = {}
            for _ in range(scale.rounds * again):
                rows = [values(encode_event(theirs.next())[0]) for _ in range(count * len(sides))]
                for name, once in {"": append, **sides}.items():
                    gc.collect()
                    seen.setdefault(name, []).append(await together(producers, count, once))
            figures += append_figures(producers, seen[""], seen[PLAIN], PLAIN)
            if INDEXED in seen:
                figures += append_figures(producers, seen[""], seen[INDEXED], INDEXED)[:1]
    for connection in bare:
        await connection.close()
    return figures


def values(row: Row) -> tuple[object, ...]:
    return (*row[:-1], row.payload.decode(), bytes(32))


def append_figures(
    producers: int, ours: list[Timed], theirs: list[Timed], baseline: str
) -> list[Figure]:
    beside = ", beside an equal table" if baseline == INDEXED else ""

    def figure(what: str, pick: Callable[[list[float]], float]) -> Figure:
        return Figure(
            bench="store",
            what=f"append an admission of 4 pods, {producers} at a time, {what}{beside}",
            unit="ms",
            better="lower",
            values=tuple(pick(times) for times, _ in ours),
            baseline_name=baseline,
            baseline=tuple(pick(times) for times, _ in theirs),
            target=TARGETS.get((producers, what), ""),
        )

    return [
        figure("p50", statistics.median),
        figure("p99", lambda times: times[len(times) * 99 // 100]),
        Figure(
            bench="store",
            what=f"append an admission of 4 pods, {producers} at a time",
            unit="/s",
            better="higher",
            values=tuple(rate for _, rate in ours),
            baseline_name=baseline,
            baseline=tuple(rate for _, rate in theirs),
            target=TARGETS.get((producers, ""), ""),
        ),
    ]


# Reading


@asynccontextmanager
async def quiet_gc():
    """Measure the baseline as replay runs: without looks for garbage."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def bare_read(url: str, end: int) -> None:
    """Read the rows as replay does, the next page on its way, and do nothing with them."""
    async with reading_connection(url, name="bench") as connection, quiet_gc():
        fetching = asyncio.ensure_future(connection.fetch(PAGE, 0, end, PAGE_EVENTS))
        for after in range(PAGE_EVENTS, end + PAGE_EVENTS, PAGE_EVENTS):
            rows = await fetching
            if after < end:
                fetching = asyncio.ensure_future(connection.fetch(PAGE, after, end, PAGE_EVENTS))
            assert len(rows) == min(PAGE_EVENTS, end - after + PAGE_EVENTS)


async def verify(log: PostgresEventLog, end: int) -> None:
    """Walk as `gang-extender verify` does."""
    seen = 0
    async for page in log.read(until=Position(end)):
        seen += len(page)
    assert seen == end


def leader(log: PostgresEventLog, snapshots: PostgresSnapshots | Nothing) -> Leader:
    never = 1 << 60
    me = LeaseIdentity(
        holder="bench", address="", ttl_ms=60_000, checkpoint_events=never, checkpoint_ms=never
    )
    return Leader(log, snapshots, SystemClock(), me)


async def restart(url: str, snapshots: PostgresSnapshots | Nothing) -> None:
    """Go the leader's whole way: connect, take, load, fold, record the lease."""
    async with PostgresEventLog(url) as log:
        leading = leader(log, snapshots)
        running = asyncio.create_task(leading.run())
        try:
            while not (leading.role == "leading" and leading.committed.epoch == leading.epoch):
                assert not running.done(), running.result()
                changed = asyncio.ensure_future(leading.wakeup.wait(leading.wakeup.revision))
                await asyncio.wait({running, changed}, timeout=0.01, return_when="FIRST_COMPLETED")
                changed.cancel()
        finally:
            running.cancel()


async def reading(url: str, scale: Scale) -> list[Figure]:
    events, rounds = (30_000, scale.rounds) if scale.quick else (1_000_000, min(scale.rounds, 3))
    await schema_migration.upgrade(url)
    size = await write_history(url, events)
    note = f"{events:,} events of {size // events} B"
    engine = ConnectionPool(url, name="bench")
    snapshots = PostgresSnapshots(engine)
    seen: dict[str, list[tuple[float, float]]] = {}
    async with PostgresEventLog(url) as log:
        kept = Position(events - TAIL)
        state = await load_state(log, Nothing(), until=kept)
        connection = await asyncpg.connect(url)
        digest = await connection.fetchval("SELECT hash FROM gx.event WHERE position = $1", kept)
        await connection.close()
        await save_snapshot(snapshots, state, LogHead(position=kept, chain=digest))
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "bare": lambda: bare_read(url, events),
            "verify": lambda: verify(log, events),
            "replay": lambda: load_state(log, Nothing(), until=Position(events)),
            "anew": lambda: restart(url, Nothing()),
            "tail": lambda: restart(url, snapshots),
        }
        for _ in range(rounds):
            for name, work in works.items():
                gc.collect()
                seen.setdefault(name, []).append(await timed(work()))
        watched = leader(log, snapshots)
        watched.appends.load(await load_state(log, snapshots, until=(await log.head()).position))
        watch = StateVerifier(watched, log, snapshots)
        for _ in range(rounds):
            seen.setdefault("look", []).append(await timed(watch.look()))
    await engine.close()
    await note_names(url)
    asked = await questions(url, events, rounds)
    bare = tuple(events / took for took, _ in seen["bare"])

    def rate(what: str, name: str, target: str) -> Figure:
        return Figure(
            bench="store", what=what, unit="events/s", better="higher",
            values=tuple(events / took for took, _ in seen[name]),
            baseline_name="rows read, not decoded", baseline=bare, target=target, note=note,
        )  # fmt: skip

    def time_of(what: str, name: str, target: str = "") -> Figure:
        return Figure(
            bench="store", what=what, unit="s", better="lower",
            values=tuple(took for took, _ in seen[name]),
            target=target, note=note,
        )  # fmt: skip

    def hold(what: str, name: str) -> Figure:
        return Figure(
            bench="store", what=f"{what}, event loop held at most", unit="ms", better="lower",
            values=tuple(held for _, held in seen[name]), note=note,
        )  # fmt: skip

    return [
        rate("verify the chain", "verify", "200,000/s"),
        rate("replay from nothing", "replay", "100,000/s"),
        time_of("restart from nothing to leading", "anew", "10 s"),
        time_of(f"restart from a checkpoint and {TAIL:,} events", "tail", "2 s"),
        time_of(f"look for drift, {TAIL:,} events", "look"),
        hold("replay", "replay"),
        hold("look for drift", "look"),
        *(
            Figure(
                bench="store", what=f"audit: {what}", unit="ms", better="lower", values=times,
                target="100 ms", note=note,
            )
            for what, times in asked.items()
        ),
    ]  # fmt: skip


async def questions(url: str, events: int, rounds: int) -> dict[str, tuple[float, ...]]:
    """Run the queries of auditors, as HTTP and command line do; return the milliseconds of each call."""
    engine = reading_pool(url)
    reader = PostgresEventQueries(engine)
    inputs = PostgresDecisionInputs(engine)

    async def entries(one: EventFilter) -> list[EventLine]:
        return [event_line(event) for event in await reader.events(one)]

    # by the history's own clock: what the restarts have added is of today
    last = (await entries(EventFilter(after=Position(events - 1), limit=1)))[0]
    until_us = parse_time(last.time, "end")
    minutes = {"since_us": until_us - 300_000_000, "until_us": until_us}
    half = Position(events // 2)
    wanted = {
        "the last 100 events": EventFilter(newest_first=True, limit=100),
        "100 events from the middle": EventFilter(after=half, limit=100),
        "1,000 refusals": EventFilter(types=("GangUnschedulable",), limit=1000),
        "a type without events": EventFilter(types=("HistoryTruncated",)),
        "1,000 events of a namespace": EventFilter(namespace="serve", limit=1000),
        "a namespace without events": EventFilter(namespace="absent"),
        "1,000 admissions of five minutes": EventFilter(
            types=("GangAdmitted",), limit=1000, **minutes
        ),
    }
    works: dict[str, Callable[[int], Awaitable[object]]] = {
        what: lambda _, one=one: entries(one) for what, one in wanted.items()
    }
    works["whole history of a gang, by name"] = lambda n: history(
        reader, inputs, HistoryQuery(gang=f"serve/model-{n:07}")
    )
    seen: dict[str, list[float]] = {}
    for number in range(rounds * 10):
        for what, ask in works.items():
            start = time.perf_counter()
            await ask(number * 37 % (events // 50))
            seen.setdefault(what, []).append((time.perf_counter() - start) * 1e3)
    await engine.close()
    return {what: tuple(times) for what, times in seen.items()}
