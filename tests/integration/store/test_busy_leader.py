"""A leader whose event loop is busy keeps its lease for a bounded time; one that is stopped loses it."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from extender.core.model.errors import LeaseHeld
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

TTL_MS = 2_000
# Leads as the service does. It prints each change. SIGUSR1 keeps its event loop busy until SIGUSR2: it computes, which
# leaves other threads little, or it sleeps, which costs nothing.
LEADER = """
import asyncio, signal, sys, time
from extender.control.log.leader import Leader
from extender.control.log.leader_role import LeaseIdentity
from extender.control.monitors.event_loop_monitor import EventLoopMonitor
from extender.runtime.system_clock import SystemClock
from extender.store.log.postgres_event_log import lease_renewal
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.core.log.events import GangRemoved, NewEvent
from extender.core.model.errors import NotLeading, StoreUnavailable
from tests.support.logs.fake_store import FakeDatabase, FakeSnapshots

class NoAnchor:
    async def published(self): return ()
    async def publish(self, anchors): pass

ended = []
signal.signal(signal.SIGUSR2, lambda *_: ended.append(True))

def busy(how):
    while not ended:
        sum(range(1000)) if how == "computes" else time.sleep(0.01)

async def main(url, ttl_ms, how, stall_max_ms):
    clock = SystemClock()
    identity = LeaseIdentity(holder="busy", address="http://busy", ttl_ms=ttl_ms)
    leader = Leader(PostgresEventLog(url), FakeSnapshots(FakeDatabase()), clock, identity)
    leader.history.anchor = NoAnchor()
    monitor = EventLoopMonitor(
        leader, lambda: lease_renewal(url), clock, ttl_ms, stall_max_ms=stall_max_ms
    )
    tasks = [asyncio.create_task(leader.run()), asyncio.create_task(monitor.run())]
    while not leader.may_record():
        await asyncio.sleep(0.01)
    def stall():
        print("busy", flush=True)
        busy(how)
        print("may act" if leader.may_act() else "may not act", leader.epoch, flush=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stall)
    await asyncio.sleep(0.5)
    print("leading", leader.epoch, flush=True)
    while True:
        await asyncio.sleep(0.05)
        if monitor.recent_stall():
            print(monitor.recent_stall(), flush=True)
            try:
                await leader.append([NewEvent(gang_uid="00000000-0000-4000-8000-000000000001", gang="ns/g",
                                              data=GangRemoved(reason="deleted"), actor="busy")])
                print("appended", leader.epoch, flush=True)
            except (NotLeading, StoreUnavailable) as error:
                print("refused", flush=True)
            return

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
"""


RENEWED = "SELECT renewed_at > $1::timestamptz + $2::int * interval '1 ms' FROM gx.lease"


@asynccontextmanager
async def leading(url, how="sleeps", stall_max_ms=600_000):
    """Run a leader in a process of its own; yields it once it leads."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEADER, url, str(TTL_MS), how, str(stall_max_ms),
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "."},
    )  # fmt: skip
    try:
        assert await line(process) == "leading 1"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()


async def line(process) -> str:
    """Return the next line that the leader prints."""
    return (await process.stdout.readline()).decode().strip()


async def taken(log):
    """Try to take the lease as another replica does; return whether it was possible."""
    try:
        await log.take(holder="other", address="", ttl_ms=60_000)
    except LeaseHeld:
        return False
    return True


async def test_a_leader_with_a_busy_event_loop_keeps_its_lease(database_url):
    """It is renewed beyond its term, and no other replica can take it; then the leader appends in the same epoch."""
    connection = await asyncpg.connect(database_url)
    async with leading(database_url, "computes") as process, PostgresEventLog(database_url) as log:
        process.send_signal(signal.SIGUSR1)
        assert await line(process) == "busy"
        began = await connection.fetchval("SELECT clock_timestamp()")

        async def is_renewed():
            assert not await taken(log)
            return await connection.fetchval(RENEWED, began, TTL_MS)

        await eventually(is_renewed, "a renewal after the end of the term")
        process.send_signal(signal.SIGUSR2)
        assert await line(process) == "may act 1"
        assert (await line(process)).startswith("the event loop was busy for ")
        assert await line(process) == "appended 1"
    await connection.close()


async def test_a_leader_that_is_busy_for_too_long_gives_the_lease_up(database_url):
    """After the limit the lease runs out. The busy leader knows: it may not act before it has asked the database."""
    async with (
        leading(database_url, stall_max_ms=TTL_MS // 2) as process,
        PostgresEventLog(database_url) as log,
    ):
        process.send_signal(signal.SIGUSR1)
        assert await line(process) == "busy"
        await eventually(lambda: taken(log), "the end of the lease")
        process.send_signal(signal.SIGUSR2)
        assert (await line(process)).startswith("may not act")
        assert (await line(process)).startswith("the event loop was busy for ")
        assert await line(process) == "refused"


async def test_a_leader_that_is_stopped_loses_the_lease(database_url):
    """Nothing renews for a process that the kernel does not run, as for one that is dead; after SIGCONT it may not act."""
    async with leading(database_url) as process, PostgresEventLog(database_url) as log:
        process.send_signal(signal.SIGSTOP)
        await eventually(lambda: taken(log), "the end of the lease")
        process.send_signal(signal.SIGCONT)
        assert (await line(process)).startswith("the event loop was busy for ")
        assert await line(process) == "refused"
