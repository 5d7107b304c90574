"""A rebuild of the interval tables makes the rows that the projection makes, and replaces all of them or none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from extender.core.model.errors import AlteredEvent
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import rebuild_projection
from tests.bench.history import write_history
from tests.support.hypothesis_profile import examples
from tests.support.logs.bulk_log import copy_events, forget_log, writing_connection
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import fresh_database, run
from tests.support.logs.random_logs import histories
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]
TABLES = ("placement", "gang_state", "preemption", "victim")
RELATIONS = (
    "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'gx'::regnamespace ORDER BY 1"
)


@pytest.fixture(scope="module")
def log_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        yield url


async def contents(connection):
    """Return every row of every table as its text; the units of a preemption are a set."""
    return {
        table: sorted(
            str([sorted(v) if k == "started_units" else v for k, v in row.items()])
            for row in await connection.fetch(f"SELECT * FROM gx.{table}")
        )
        for table in TABLES
    }


@examples(
    200, quick=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(histories(), st.integers(0, 25))
def test_rebuilt_tables_are_the_projected_ones(log_url, events, until):
    """From tables that follow any part of the log; afterwards the projection goes on from there."""
    until = min(until, len(events))

    async def compare():
        connection = await writing_connection(log_url)
        try:
            await forget_log(connection)
            await copy_events(connection, events)
            await connection.fetchval("SELECT gx.project($1, 100000)", until)
            relations = await connection.fetch(RELATIONS)
            assert await rebuild_projection(log_url) == len(events)
            assert await connection.fetch(RELATIONS) == relations
            rebuilt = await contents(connection)
            await connection.execute("SELECT gx.reset_projection()")
            await connection.fetchval("SELECT gx.project($1, 100000)", len(events))
            assert rebuilt == await contents(connection)
        finally:
            await connection.close()

    run(compare())


@asynccontextmanager
async def held(url, change):
    """Let every rebuild wait where it begins to change rows (DELETE or INSERT) of a table, until the block ends."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
    )
    await connection.execute(
        f"CREATE TRIGGER wait BEFORE {change} ON gx.gang_state EXECUTE FUNCTION public.wait()"
    )
    await connection.execute("SELECT pg_advisory_lock(1)")
    yield connection
    await connection.close()


async def until_it_waits(connection):
    """Wait until a rebuild waits in `held`."""
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await eventually(lambda: connection.fetchval(waiting), "the rebuild to change rows")


async def test_a_rebuild_killed_in_the_middle_leaves_the_old_tables(database_url):
    """Its old rows are deleted by then, and some new ones copied."""
    await write_history(database_url, 1_000)
    connection = await asyncpg.connect(database_url)
    await connection.fetchval("SELECT gx.project(300, 300)")
    before, relations = await contents(connection), await connection.fetch(RELATIONS)
    code = "import asyncio, sys; from extender.store.projections import rebuild_projection; asyncio.run(rebuild_projection(sys.argv[1]))"
    async with held(database_url, "INSERT") as holding:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, database_url, cwd=ROOT
        )
        await until_it_waits(holding)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    running = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gang-extender rebuild'"
    )

    async def ended():
        return not await connection.fetchval(running)

    await eventually(ended, "the end of its session")
    assert await contents(connection) == before
    assert await connection.fetch(RELATIONS) == relations
    assert await connection.fetchval("SELECT gx.project(600, 300)") == 600
    await connection.close()


async def test_events_appended_during_a_rebuild_are_projected_after_it(database_url):
    """The projection of the leader waits for the rebuild, and goes on where that ended."""
    await write_history(database_url, 1_000)
    connection = await writing_connection(database_url)
    end = await connection.fetchval("SELECT max(position) FROM gx.event")
    async with held(database_url, "INSERT") as holding:
        rebuilding = asyncio.create_task(rebuild_projection(database_url))
        await until_it_waits(holding)
        async with PostgresEventLog(database_url) as log:
            grant = await log.take(holder="a", address="", ttl_ms=60_000)
            await log.append(grant, Script(grant).some(50))
            newest = (await log.head()).position
        projecting = asyncio.create_task(
            connection.fetchval("SELECT gx.project($1, 100000)", newest)
        )
        await asyncio.sleep(0)
        assert await holding.fetchval("SELECT count(*) FROM gx.placement") == 0  # the old rows
        assert not projecting.done()
    assert await rebuilding in range(end, newest + 1)
    assert await projecting == newest
    followed = await contents(connection)
    await connection.execute("SELECT gx.reset_projection()")
    assert await connection.fetchval("SELECT gx.project($1, 100000)", newest) == newest
    assert await contents(connection) == followed
    await connection.close()


@pytest.mark.parametrize(
    ("projected", "altered"),
    [(300, 900), (1_000, 150)],
    ids=["later", "while-old-rows-are-deleted"],
)
async def test_a_log_that_is_not_whole_leaves_the_old_tables(database_url, projected, altered):
    await write_history(database_url, 1_000)
    connection = await asyncpg.connect(database_url)
    await connection.fetchval("SELECT gx.project($1, 100000)", projected)
    before = await contents(connection)
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "UPDATE gx.event SET actor = 'another' WHERE position = $1", altered
        )
    async with contextlib.AsyncExitStack() as block:
        if altered < projected:
            await block.enter_async_context(held(database_url, "DELETE"))
        with pytest.raises(AlteredEvent, match=str(altered)):
            await rebuild_projection(database_url)
    assert await contents(connection) == before
    assert await connection.fetchval("SELECT position FROM gx.projection") == projected
    await connection.close()
