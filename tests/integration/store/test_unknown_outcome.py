"""The database dies, hangs or drops connections: no caller hangs, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import asyncpg
import msgspec
import pytest

from extender.core.model.errors import StoreUnavailable
from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from extender.store.log import postgres_event_log
from extender.store.log.appender import Limits
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import FAST
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


async def take(log, holder="a", ttl_ms=60_000):
    return await log.take(holder=holder, address="", ttl_ms=ttl_ms)


async def everything(log):
    return [event async for page in log.read() for event in page]


async def take_until_it_works(log):
    while True:
        try:
            return await take(log)
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def resolve(log, events):
    """Do what a leader does after an unknown outcome; returns the fresh grant."""
    while True:
        try:
            grant = await take_until_it_works(log)
            found = await log.find([event.event_id for event in events])
            script = Script(grant)
            missing = [
                msgspec.structs.replace(
                    script.next(),
                    event_id=event.event_id,
                    gang_uid=event.gang_uid,
                    stream_version=event.stream_version,
                )
                for event in events
                if event.event_id not in found
            ]
            await log.append(grant, missing)
            return grant, script
        except StoreUnavailable:
            continue


async def terminate_all(url):
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


def connected(log):
    """Return whether a connection of this log does not know yet that it was cut."""
    kept = (*log._appender.connection._free, *log._connection._free)
    return any(not connection.is_closed() for connection, _ in kept)


async def test_a_connection_lost_while_idle_costs_nothing(database_url):
    """The next use notices and opens another; the grant is still good and no event is lost or doubled."""
    async with PostgresEventLog(database_url) as log:
        grant = await take(log)
        script = Script(grant)
        for _ in range(5):
            await log.append(grant, script.some(2))
            await log.head()
            await terminate_all(database_url)
            await eventually(lambda: not connected(log), "the end of the connections")
        await log.append(grant, script.some(1))
        assert (await log.head()).position == 11
        await log.renew(grant)


async def test_a_follower_survives_its_connection(database_url, monkeypatch):
    monkeypatch.setattr(postgres_event_log, "RECONNECT_S", (0.02,))
    async with PostgresEventLog(database_url) as log:
        grant = await take(log)
        script = Script(grant)
        seen = []

        async def follow():
            async for page in log.follow(after=0):
                seen.extend(event.position for event in page)

        following = asyncio.create_task(follow())
        for _ in range(3):
            await log.append(grant, script.some(2))
            await eventually(lambda: len(seen) == script.position, "followed")
            await terminate_all(database_url)
            await eventually(lambda: not connected(log), "the end of the connections")
        await log.append(grant, script.some(2))
        await eventually(lambda: len(seen) >= 8, "followed to the end")
        following.cancel()
        await asyncio.wait([following])
        assert seen == list(range(1, 9))


async def test_a_hanging_append_times_out_and_spends_the_grant(database_url):
    """Every caller gets an answer: those in flight, those queued, those who come later; then a take heals."""
    blocker = await asyncpg.connect(database_url)
    hurried = Limits(command_timeout_s=2.0, batch_events_max=2)
    async with PostgresEventLog(database_url) as log:
        grant = await take(log)
        script = Script(grant)
        await blocker.execute("BEGIN; LOCK TABLE gx.event IN SHARE MODE")
        calls = [script.some(2) for _ in range(10)]
        async with PostgresEventLog(database_url, limits=hurried) as writer:
            outcomes = await asyncio.gather(
                *(writer.append(grant, events) for events in calls), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
            with pytest.raises(StoreUnavailable, match="take the lease again"):
                await writer.append(grant, script.some(1))
        await blocker.execute("ROLLBACK")
        _, fresh = await resolve(log, [event for events in calls for event in events])
        await log.append(fresh.grant, fresh.some(1))
        assert (await log.head()).position == 21
    await blocker.close()


async def test_a_written_event_whose_answer_was_lost_is_found(database_url):
    """The append hangs in the server, the caller gives up, the server commits afterwards."""
    blocker = await asyncpg.connect(database_url)
    hurried = Limits(call_timeout_s=1.0)
    async with (
        PostgresEventLog(database_url) as log,
        PostgresEventLog(database_url, limits=hurried) as writer,
    ):
        grant = await take(log)
        events = Script(grant).some(3)
        await blocker.execute("BEGIN; LOCK TABLE gx.event IN SHARE MODE")
        with pytest.raises(StoreUnavailable):
            await writer.append(grant, events)
        await blocker.execute("ROLLBACK")
        grant = await take(log)
        assert await log.find([event.event_id for event in events]) == {
            e.event_id: e.position for e in events
        }
        assert grant.head.position == 3
    await blocker.close()


async def test_closing_answers_those_who_wait(database_url):
    blocker = await asyncpg.connect(database_url)
    log = PostgresEventLog(database_url)
    grant = await take(log)
    await blocker.execute("BEGIN; LOCK TABLE gx.event IN SHARE MODE")
    waiting = asyncio.create_task(log.append(grant, Script(grant).some(1)))
    await asyncio.sleep(0.05)
    await log.close()
    with pytest.raises(StoreUnavailable):
        await waiting
    with pytest.raises(StoreUnavailable):
        await log.append(grant, Script(grant).some(1))
    await blocker.close()


async def test_a_cancelled_caller_does_not_harm_the_others(database_url):
    """Whether its events are written is open; those behind it are written or refused, never left hanging."""
    async with PostgresEventLog(database_url) as log:
        grant = await take(log)
        script = Script(grant)
        calls = [asyncio.create_task(log.append(grant, script.some(2))) for _ in range(50)]
        await asyncio.sleep(0)
        calls[20].cancel()
        await asyncio.wait(calls)
        written = await everything(log)
        done = [call for call in calls[:20] if call.exception() is None]
        assert len(done) == 20
        assert len(written) >= 40
        grant = await take(log)
        await log.append(grant, Script(grant).some(1))


async def test_no_server_is_an_answer_too(tmp_path):
    log = PostgresEventLog(f"postgresql://absent@/nothing?host={tmp_path}")
    for asking in (take(log), log.head(), log.lease(), log.find([]), everything(log)):
        with pytest.raises(StoreUnavailable):
            await asking
    await log.close()


def kill_server(pid):
    """Kill a server with each of its processes at once.

    One that was started a moment ago must not be missed: it may wait for ever for a lock of a process that was killed, and the
    memory that they share keeps the next server from starting.
    """
    os.kill(pid, signal.SIGSTOP)  # it starts no process from now on
    while _state_and_parent(pid)[0] not in ("T", "X", "Z"):
        time.sleep(0.001)
    every_pid = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    children = [child for child in every_pid if _state_and_parent(child)[1] == pid]
    for process in (*children, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _state_and_parent(pid):
    """Return the state of a process as `ps` shows it, and the id of its parent; that of one that has ended is 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


async def test_kill_9_of_postgres_mid_append_loses_nothing_acknowledged():
    """Five kills of the whole server under twenty producers; each round is resolved as a leader would."""
    folder = Path(tempfile.mkdtemp(prefix="gxt-"))
    folder.chmod(0o755)
    chance = random.Random(1)
    acked, unknown = {}, 0
    async with EmbeddedPostgres(folder, settings=FAST) as server:
        await schema_migration.upgrade(server.url)
        log = PostgresEventLog(server.url)
        grant = await take(log)
        script = Script(grant)
        for _ in range(5):

            async def kill(pid=server.pid):
                await asyncio.sleep(chance.uniform(0.01, 0.1))
                kill_server(pid)

            killing = asyncio.create_task(kill())
            open_, batch = [], []
            # no caller hangs
            while not open_:
                batch = [script.some(2) for _ in range(20)]
                outcomes = await asyncio.gather(
                    *(log.append(grant, events) for events in batch), return_exceptions=True
                )
                for events, outcome in zip(batch, outcomes, strict=True):
                    if isinstance(outcome, bytes):
                        acked.update((event.event_id, event.position) for event in events)
                    else:
                        assert isinstance(outcome, StoreUnavailable)
                        open_ += events
            await killing
            unknown += len(open_)
            grant, script = await resolve(log, open_)
            acked.update(await log.find([event.event_id for event in open_]))
        events = await everything(log)
        await log.close()
    assert unknown > 0
    assert {event.event_id: event.position for event in events} == acked
    import shutil

    shutil.rmtree(folder)
