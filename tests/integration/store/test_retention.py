"""Inputs of old decisions go, and nothing else: what stays can be read, also by a service that saves all the while."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import asyncpg
import pytest
from sqlalchemy import make_url

from extender.core.log.events import GangObserved, GangRemoved, GangUnschedulable
from extender.core.planner.plan_types import DecisionInput
from extender.store import schema_migration
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs, prune
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.log_evidence import PostgresLogEvidence
from tests.integration.test_name_queries import command
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import execute, fresh_database, make_roles, run
from tests.support.logs.tampering import tamper
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
SHARED = (b"node that never changes", b"another")


def an_input(name):
    parts = (*SHARED, f"node of {name}".encode())
    return DecisionInput(
        digest=hashlib.sha256(name.encode()).hexdigest(), head=name.encode(), parts=parts
    )


def refused(name):
    return GangUnschedulable(outcome="unknown", reasons=(name,), input_digest=an_input(name).digest)


async def decide(url, lives):
    """Write one decision per root, its input first; of `lives` the root stays. Gives the time of the last one."""
    engine = ConnectionPool(url, name="test")
    inputs = PostgresDecisionInputs(engine)
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        script = Script(grant)
        for name, stays in lives.items():
            await inputs.save(an_input(name))
            entries = [
                GangObserved(kind="PodGroup"),
                refused(name),
                *([] if stays else [GangRemoved(reason="x")]),
            ]
            events = [script.next(event, gang=f"ns/{name}", uid=name) for event in entries]
            await log.append(grant, events)
    return engine, inputs


async def projected(url):
    connection = await asyncpg.connect(url)
    end = await connection.fetchval("SELECT max(position) FROM gx.event")
    while await connection.fetchval("SELECT gx.project($1, 1000)", end) < end:
        pass
    await connection.close()


async def age(url, names, by=timedelta(days=40)):
    """Let inputs and their decisions be older; past the triggers, as only a superuser can."""
    digests = [an_input(name).digest for name in names]
    connection = await asyncpg.connect(url)
    await connection.execute("SET session_replication_role = replica")
    await connection.execute(
        "UPDATE gx.decision_input SET saved_at = saved_at - $1::interval WHERE digest = ANY($2)",
        by,
        digests,
    )
    await connection.execute(
        "UPDATE gx.event SET at_us = at_us - $1 WHERE gang_uid = ANY($2)",
        int(by.total_seconds() * 1e6),
        names,
    )
    await connection.close()


async def a_month_ago(url):
    connection = await asyncpg.connect(url)
    found = await connection.fetchval("SELECT now() - interval '30 days'")
    await connection.close()
    return found


async def there(inputs, *names):
    found = [await inputs.load(an_input(name).digest) for name in names]
    assert all(one is None or one.parts[:2] == SHARED for one in found)
    return [one is not None for one in found]


async def test_old_inputs_go_and_all_else_stays(database_url):
    """Not those of gangs that are still there, nor parts that others have; asking twice removes nothing more."""
    lives = {"old": False, "waits": True, "new": False}
    engine, inputs = await decide(database_url, lives)
    await projected(database_url)
    await age(database_url, ["old", "waits"])
    before = await a_month_ago(database_url)
    seen = await prune(database_url, before, dry_run=True)
    assert (seen.inputs, seen.parts) == (1, 2)  # its head and its node
    assert await there(inputs, *lives) == [True, True, True]
    done = await prune(database_url, before)
    assert done == seen
    assert (done.inputs_kept, done.parts_kept) == (2, 6)
    assert await there(inputs, *lives) == [False, True, True]
    again = await prune(database_url, before)
    assert (again.inputs, again.parts) == (0, 0)
    for table in ("decision_input", "decision_input_chunk", "pruning"):
        with pytest.raises(asyncpg.PostgresError) as caught:  # the triggers are there again
            await execute(database_url, f"DELETE FROM gx.{table}")
        assert caught.value.sqlstate == "55000"
    await engine.close()


async def test_the_latest_time_stays(database_url):
    """Up to which inputs were removed: an earlier `--before` afterwards takes nothing back."""
    engine, _ = await decide(database_url, {"old": False, "older": False})
    await projected(database_url)
    await age(database_url, ["old"], timedelta(days=40))
    before = await a_month_ago(database_url)
    assert (await prune(database_url, before)).inputs == 1
    await age(database_url, ["older"], timedelta(days=50))
    assert (await prune(database_url, before - timedelta(days=15))).inputs == 1
    evidence = PostgresLogEvidence(database_url)
    assert await evidence.pruned_before_us() == int(before.timestamp() * 1e6)
    await evidence.close()
    await engine.close()


async def test_a_schema_of_gx_owner_is_pruned_too(postgres_url, empty_database_url):
    """The other tests have one of the superuser, on a server that has gx_owner as well."""
    await make_roles(postgres_url, empty_database_url)
    await schema_migration.upgrade(empty_database_url)
    engine, _ = await decide(empty_database_url, {"old": False})
    await projected(empty_database_url)
    await age(empty_database_url, ["old"])
    done = await prune(empty_database_url, await a_month_ago(empty_database_url))
    assert (done.inputs, done.parts) == (1, 4)
    await engine.close()


async def test_a_service_that_runs_names_no_part_that_is_gone(database_url):
    """It remembers the numbers of parts: of the very input that was removed, and saves it again."""
    engine, inputs = await decide(database_url, {"old": False, "new": False})
    await projected(database_url)
    await age(database_url, ["old"])
    await prune(database_url, await a_month_ago(database_url))
    await inputs.save(an_input("old"))
    assert await there(inputs, "old", "new") == [True, True]
    await engine.close()


def test_a_restored_copy_that_is_pruned_has_another_generation(postgres_url, database_url):
    """A backup replaces the database of a service that learned of a removal, and other parts are removed from it."""

    async def decide_twice():
        engine, _ = await decide(database_url, {"old": False, "older": False})
        await engine.close()
        await projected(database_url)
        await age(database_url, ["old"], timedelta(days=40))
        await age(database_url, ["older"], timedelta(days=50))

    async def generation_after_pruning(url, before):
        assert (await prune(url, before)).inputs >= 1
        connection = await asyncpg.connect(url)
        generation = await connection.fetchval("SELECT generation FROM gx.pruning")
        await connection.close()
        return generation

    run(decide_twice())
    before = run(a_month_ago(database_url))
    with fresh_database(postgres_url, template=make_url(database_url).database) as restored:
        known = run(generation_after_pruning(database_url, before))
        assert run(generation_after_pruning(restored, before - timedelta(days=15))) != known


async def test_saving_goes_on_beside_it(database_url):
    """Inputs saved while parts are removed, of parts that no other input has at that moment, can all be read."""
    names = [f"g{n}" for n in range(40)]
    engine, inputs = await decide(database_url, dict.fromkeys(names, False))
    await projected(database_url)
    await age(database_url, names)
    before = await a_month_ago(database_url)

    async def save():
        for name in names:
            await inputs.save(an_input(f"again {name}"))
            await inputs.save(an_input(name))

    await asyncio.gather(save(), prune(database_url, before))
    again = [f"again {name}" for name in names]
    assert all(await there(inputs, *again))
    for name in names:  # gone, or there again; never half
        await inputs.load(an_input(name).digest)
    await engine.close()


def test_the_command(database_url):
    for words, code, expected in (
        (("--days", "30"), 0, "0 inputs and 0 parts"),
        (("--days", "30", "--dry-run", "-o", "json"), 0, '"inputs": 0'),
        ((), 2, "give either"),
        (("--days", "0"), 2, "--days"),
        (("--before", "yesterday"), 2, "--before"),
        (("--before", "2999-01-01T00:00:00Z"), 2, "future"),
    ):
        done = command(database_url, "db", "prune", *words)
        assert (done.returncode, expected in done.stdout + done.stderr) == (code, True), done


@pytest.mark.parametrize("others", [0, 3])
async def test_an_older_copy_of_the_database_has_none_of_the_remembered_parts(database_url, others):
    """A backup is restored while the service runs: what it saves again is complete, also where numbers were used anew."""
    engine = ConnectionPool(database_url, name="test")
    inputs = PostgresDecisionInputs(engine)
    await inputs.save(an_input("kept"))
    before = "SELECT setval(pg_get_serial_sequence('gx.decision_input_chunk', 'id'), max(id)) FROM gx.decision_input_chunk"
    await inputs.save(an_input("lost"))
    await tamper(
        database_url,
        f"DELETE FROM gx.decision_input WHERE digest = '{an_input('lost').digest}'",
        "DELETE FROM gx.decision_input_chunk WHERE id > 4",  # the head and the parts of the first
        before,
    )
    again = PostgresDecisionInputs(engine)
    for number in range(others):
        await again.save(an_input(f"other {number}"))
    await inputs.save(an_input("lost"))
    assert (await inputs.load(an_input("lost").digest)) is not None
    assert (await PostgresDecisionInputs(engine).load(an_input("lost").digest)).parts == an_input(
        "lost"
    ).parts
    await engine.close()


async def test_parts_that_are_removed_while_an_input_waits_for_the_lock_are_saved_again(
    database_url,
):
    """A save without new parts is one statement: it sees what the removal did that it waited for."""
    engine = ConnectionPool(database_url, name="test")
    inputs = PostgresDecisionInputs(engine)
    first = an_input("first")
    await inputs.save(first)
    await inputs.save(first)  # nothing was ever removed, and that is known now
    second = DecisionInput(digest=an_input("second").digest, head=first.head, parts=first.parts)
    connection = await asyncpg.connect(database_url)
    async with connection.transaction():
        await connection.execute(
            "LOCK TABLE gx.decision_input_chunk, gx.decision_input IN SHARE ROW EXCLUSIVE MODE"
        )
        saving = asyncio.create_task(inputs.save(second))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'gx.decision_input'::regclass"
        await eventually(lambda: connection.fetchval(waiting), "the saving to wait")
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("DELETE FROM gx.decision_input")
        await connection.execute("DELETE FROM gx.decision_input_chunk")
        await connection.execute("INSERT INTO gx.pruning VALUES (1, 0, gen_random_uuid())")
    await saving
    assert await PostgresDecisionInputs(engine).load(second.digest) == second
    await connection.close()
    await engine.close()


async def test_an_input_is_saved_over_a_connection_that_the_server_has_closed(database_url):
    """As after a restart of the server, without a failure that the control loop would see."""
    engine = ConnectionPool(database_url, name="test")
    inputs = PostgresDecisionInputs(engine)
    await inputs.save(an_input("first"))
    await execute(
        database_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gang-extender test'",
    )
    await inputs.save(an_input("second"))
    assert (await inputs.load(an_input("second").digest)) is not None
    await engine.close()
