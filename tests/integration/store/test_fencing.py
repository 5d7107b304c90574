"""One writer, whatever happens: in-flight appends, wedged sessions, take-overs under load, two processes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import asyncpg
import pytest

from extender.core.model.errors import Fenced, HeadMoved, LeaseHeld, StoreUnavailable
from extender.store.log.appender import APPEND, _columns
from extender.store.log.event_codec import chain, encode_event
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import Script
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


async def take(log, holder="a", ttl_ms=60_000):
    return await log.take(holder=holder, address="", ttl_ms=ttl_ms)


async def everything(log):
    return [event async for page in log.read() for event in page]


async def begin_append(connection, grant, events):
    """Append on a raw connection and leave the transaction open, as a leader does that is stopped just then."""
    transaction = connection.transaction()
    await transaction.start()
    rows = [encode_event(event)[0] for event in events]
    hashes, previous = [], grant.head.chain
    for row in rows:
        previous = chain(previous, row)
        hashes.append(previous)
    await connection.fetchval(
        APPEND,
        grant.epoch,
        grant.lease,
        rows[0].position,
        grant.head.chain,
        *_columns(rows),
        hashes,
    )
    return transaction


@pytest.fixture
async def raw(database_url):
    connection = await asyncpg.connect(database_url)
    yield connection
    connection.terminate()
    await asyncio.sleep(0)


async def waits_for_a_lock(url):
    """Wait until a session of this database waits for another one."""
    other = await asyncpg.connect(url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    try:
        await eventually(lambda: other.fetchval(waiting), "a session that waits")
    finally:
        await other.close()


async def test_a_take_waits_for_an_append_in_flight_and_sees_it(database_url, raw):
    async with PostgresEventLog(database_url) as old, PostgresEventLog(database_url) as new:
        grant = await take(old, ttl_ms=1)
        await asyncio.sleep(0.02)
        transaction = await begin_append(raw, grant, Script(grant).some(2))
        taking = asyncio.create_task(take(new, "b"))
        await waits_for_a_lock(database_url)
        assert not taking.done()
        await transaction.commit()
        assert (await taking).head.position == 2
        with pytest.raises(Fenced):
            await old.append(grant, Script(grant).some(1))


async def test_a_wedged_leader_is_put_out_when_its_lease_is_over(database_url, raw):
    """Its open transaction is rolled back; the new leader begins where the log really ends."""
    async with PostgresEventLog(database_url) as old, PostgresEventLog(database_url) as new:
        grant = await take(old, ttl_ms=1)
        await asyncio.sleep(0.02)
        await begin_append(raw, grant, Script(grant).some(2))
        taken = await take(new, "b")
        assert taken.head.position == 0
        other = await asyncpg.connect(database_url)
        left = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"
        assert await other.fetchval(left, raw.get_server_pid()) == 0
        await other.close()
        await new.append(taken, Script(taken).some(1))


async def test_a_wedged_leader_with_a_valid_lease_is_left_alone(database_url, raw):
    """A candidate is refused at once and without touching the leader's session or waiting for its lock."""
    async with PostgresEventLog(database_url) as old, PostgresEventLog(database_url) as new:
        grant = await take(old)
        transaction = await begin_append(raw, grant, Script(grant).some(2))
        with pytest.raises(LeaseHeld):
            await take(new, "b")
        await transaction.commit()
        assert (await new.head()).position == 2


async def test_a_restarted_leader_puts_its_own_ghost_out(database_url, raw):
    """The same holder does not wait for its lease to run out, even if its old session hangs in an append."""
    async with PostgresEventLog(database_url) as new:
        grant = await take(new)
        await begin_append(raw, grant, Script(grant).some(2))
        assert (await take(new)).head.position == 0


async def hammer(log, grant, acked, stop):
    """Append from eight producers until the grant is worthless."""
    script = Script(grant)

    async def produce():
        while not stop.is_set():
            events = script.some(3)
            try:
                await log.append(grant, events)
            except (Fenced, HeadMoved, StoreUnavailable):
                return
            acked.update((event.event_id, event.position) for event in events)

    await asyncio.gather(*(produce() for _ in range(8)))


async def test_take_overs_under_load_lose_and_invent_nothing(database_url, raw):
    """Forty take-overs, every deposed leader hammering on, an auditor's snapshot open all the time."""
    auditor = await asyncpg.connect(database_url)
    await auditor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM gx.event")
    logs = [PostgresEventLog(database_url) for _ in range(3)]
    acked, stop, work = {}, asyncio.Event(), []
    epochs = []
    for turn in range(40):
        log = logs[turn % 3]
        grant = await take(log)
        epochs.append(grant.epoch)
        work.append(asyncio.create_task(hammer(log, grant, acked, stop)))
        enough = len(acked) + 6
        await eventually(lambda enough=enough: len(acked) >= enough, f"events of turn {turn}")
    stop.set()
    await asyncio.gather(*work)
    assert await auditor.fetchval("SELECT count(*) FROM gx.event") == 0
    auditor.terminate()
    events = await everything(logs[0])  # verifies gaps and the chain
    written = {event.event_id: event.position for event in events}
    assert len(events) > 100
    assert acked.items() <= written.items()
    assert epochs == list(range(epochs[0], epochs[0] + 40))
    in_order = [event.epoch for event in events]
    assert in_order == sorted(in_order)
    # The row that fences did not bloat, although nothing could be vacuumed.
    assert await raw.fetchval("SELECT pg_relation_size('gx.lease')") <= 32_768
    for log in logs:
        await log.close()


WRITER = """
import asyncio, sys
from extender.core.model.errors import Fenced, StoreUnavailable
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import Script

async def main(url):
    log = PostgresEventLog(url)
    grant = await log.take(holder="other process", address="", ttl_ms=300)
    script, last = Script(grant), 0
    print("leading", flush=True)
    try:
        while True:
            await log.append(grant, script.some(2))
            last = script.position
    except (Fenced, StoreUnavailable) as fault:
        print(type(fault).__name__, last, flush=True)
    await log.close()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_stopped_process_finds_itself_fenced(database_url):
    """SIGSTOP the leader, let its lease run out, take over, SIGCONT: it cannot write another event."""
    import signal

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITER,
        database_url,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "."},
    )
    try:
        async with PostgresEventLog(database_url) as log:
            assert await process.stdout.readline() == b"leading\n"

            async def position():
                return (await log.head()).position

            async def taken():
                with contextlib.suppress(LeaseHeld):
                    return await take(log, "us")

            await eventually(position, "its first event")
            process.send_signal(signal.SIGSTOP)
            grant = await eventually(taken, "the end of its lease")
            script = Script(grant)
            await log.append(grant, script.some(3))
            process.send_signal(signal.SIGCONT)
            words = (await process.stdout.readline()).decode().split()
            assert words[0] in {"Fenced", "StoreUnavailable"}
            assert int(words[1]) <= grant.head.position
            await log.append(grant, script.some(3))
            assert (await everything(log))[-1].position == grant.head.position + 6
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()
