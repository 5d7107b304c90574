"""What events name is indexed behind the appends, as SQL and Python agree, and no question reads the whole log."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    NodeTopologyChanged,
    PodBindFailed,
)
from extender.ports.query_ports import EventFilter
from extender.queries.log.event_filter import references_of
from extender.store.connections import ConnectionPool
from extender.store.log.event_codec import VERSIONS, decode_event_data
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from tests.bench.history import write_history
from tests.integration.store.test_event_codec import GOLDEN, Sample
from tests.support.hypothesis_profile import examples
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import execute, fresh_database, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


def golden_events():
    samples = [
        msgspec.json.decode(path.read_bytes(), type=Sample) for path in sorted(GOLDEN.glob("*"))
    ]
    return [
        decode_event_data(s.type, s.schema_version, s.payload.encode(), position=1)
        for s in samples
        if s.schema_version == VERSIONS[s.type]
    ]


async def mentions(url):
    connection = await asyncpg.connect(url)
    try:
        return {
            tuple(row)
            for row in await connection.fetch("SELECT position, kind, name FROM gx.event_reference")
        }
    finally:
        await connection.close()


def named(position, entry):
    return {(position, kind, name) for kind, name in references_of(entry)}


def odd_events():
    """A label and a resource that are called `node`, and a name that is too long for the index."""
    return [
        GangAdmitted(
            plan="p" * 1025,
            kind="PodGroup",
            priority=0,
            groups=(),
            shapes=({"node": 7, "cpu": 1},),
            assignments=(AssignmentRecord(pod="ns/a", uid="u", node="n1", group="ns/g", shape=0),),
            topology={"n1": {"node": "n1-of-label"}, "node": {"rack": "r1"}},
        ),
        NodeTopologyChanged(node="n2", before={"node": "old"}, after={}),
    ]


async def test_sql_and_python_agree_on_every_kind_of_event(database_url):
    events = [*golden_events(), *odd_events()]
    async with PostgresEventLog(database_url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        script = Script(grant)
        await log.append(grant, [script.next(entry) for entry in events])
    engine = ConnectionPool(database_url, name="test")
    noter = PostgresReadModels(engine)
    noted = [await noter.index(8) for _ in range(len(events) // 8 + 2)]
    assert noted == [8] * (len(events) // 8) + [len(events) % 8, 0]
    await engine.close()
    expected = set().union(*(named(n, entry) for n, entry in enumerate(events, start=1)))
    stored = {row for row in await mentions(database_url) if not row[2].startswith("{")}
    assert stored == expected
    assert {name for _, _, name in stored} >= {"7", "n1-of-label", "old"}
    assert {what for _, what, _ in expected} == {"node", "victim", "plan"}


@pytest.fixture(scope="module")
def sql_references_of(postgres_url, template_database):
    """Return the SQL function, on one connection for all examples."""
    loop = asyncio.new_event_loop()
    with fresh_database(postgres_url, template=template_database) as url:
        connection = loop.run_until_complete(asyncpg.connect(url))
        question = "SELECT kind, name FROM gx.references_of($1, $2::text::json)"

        def call(kind, payload):
            return loop.run_until_complete(connection.fetch(question, kind, payload))

        yield call
        loop.run_until_complete(connection.close())
    loop.close()


@given(st.text(st.sampled_from(list('\0\\u0a"{}')), max_size=12))
@examples(60)
def test_no_text_of_a_event_hides_its_node(sql_references_of, text):
    """jsonb refuses NUL characters: they are taken out, escaped backslashes before them stay what they are."""
    entry = PodBindFailed(plan="p", pod="ns/p", uid="u", node="n1", error=text)
    payload = msgspec.json.encode(entry).decode()
    assert [tuple(row) for row in sql_references_of("PodBindFailed", payload)] == [("node", "n1")]


@pytest.fixture(scope="module")
def long_url(postgres_url, template_database):
    """URL of a log of 8,000 events, with what they name."""

    async def fill(url):
        await write_history(url, 8_000)
        engine = ConnectionPool(url, name="test")
        noter = PostgresReadModels(engine)
        while await noter.index(10_000):
            pass
        await engine.close()
        await execute(url, "ANALYZE gx.event", "ANALYZE gx.event_reference")

    with fresh_database(postgres_url, template=template_database) as url:
        run(fill(url))
        yield url


async def test_no_question_reads_the_whole_log(long_url, monkeypatch):
    """Every filter on 8,000 events, as the server plans it: indexes only."""
    connection = await asyncpg.connect(long_url)
    node, root, uid = await connection.fetchrow(
        "SELECT m.name, e.gang, e.gang_uid FROM gx.event_reference m JOIN gx.event e USING (position) "
        "WHERE m.kind = 'node' AND m.position > 4000 ORDER BY m.position LIMIT 1"
    )
    at_us = await connection.fetchval("SELECT at_us FROM gx.event WHERE position = 5300")
    await connection.close()
    seen = []

    reading = reading_pool(long_url, size=1)
    async with reading.use("test") as connection:
        connection.add_query_logger(lambda record: seen.append((record.query, record.args)))
    cursor = asyncpg.Connection.cursor  # which no logger sees

    def recorded(connection, query, *values):
        seen.append((query, values))
        return cursor(connection, query, *values)

    monkeypatch.setattr(asyncpg.Connection, "cursor", recorded)
    reader = PostgresEventQueries(reading)
    for wanted in (
        EventFilter(),
        EventFilter(newest_first=True),
        EventFilter(gang=root),
        EventFilter(gang_uid=uid),
        EventFilter(namespace="serve"),
        EventFilter(types=("GangUnschedulable",)),
        EventFilter(types=("GangUnschedulable", "GangAdmitted"), namespace="serve"),
        EventFilter(since_us=at_us),
        EventFilter(since_us=at_us, until_us=at_us + 1_000_000),
        EventFilter(node=node),
        EventFilter(node=node, newest_first=True),
        EventFilter(node=node, types=("PodBound",), since_us=at_us),
        EventFilter(victims=frozenset({"absent", uid})),
        EventFilter(plan="none"),
    ):
        await reader.page(wanted)
    await reader.incarnations(root)
    await reader.incarnations("", uid=uid)
    await reading.close()
    seen = [entry for entry in seen if "gx." in entry[0]]  # not BEGIN and COMMIT
    assert len(seen) > 15
    connection = await asyncpg.connect(long_url)
    for statement, parameters in dict.fromkeys((s, tuple(map(repr, p))) for s, p in seen):
        values = next(p for s, p in seen if (s, tuple(map(repr, p))) == (statement, parameters))
        plan = "\n".join(r[0] for r in await connection.fetch("EXPLAIN " + statement, *values))
        assert "Seq Scan on event" not in plan, (statement, plan)
        assert "Seq Scan on event_reference" not in plan, (statement, plan)
    await connection.close()


async def test_a_question_that_is_asked_often_is_planned_for_what_it_asks(long_url):
    """PostgreSQL's plan for any values reads the log from its beginning for types that it has hardly any of."""
    reading = reading_pool(long_url, size=1)
    reader, wanted = (
        PostgresEventQueries(reading),
        EventFilter(types=("PreemptionPlanned", "PreemptionCompleted")),
    )
    before = await events_read(long_url)
    for _ in range(10):
        assert not (await reader.page(wanted)).events
    async with reading.use("test") as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
    await reading.close()
    assert await events_read(long_url) - before < 1_000


async def events_read(url):
    """Count the events that were read from the log, once all who read it have gone and reported it."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    connection = await asyncpg.connect(url)
    try:

        async def alone():
            return not await connection.fetchval(others)

        await eventually(alone, "the end of other sessions")
        return await connection.fetchval(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'gx.event'::regclass"
        )
    finally:
        await connection.close()
