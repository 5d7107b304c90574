"""A leader whose event loop is busy keeps its lease for a bounded time; one that is stopped or dead loses it."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extender.core.model.errors import LeaseHeld
from extender.store.log.postgres_event_log import PostgresEventLog

pytestmark = pytest.mark.postgres

TTL_MS = 1_000
# Leads as the service does; SIGUSR1 keeps its event loop busy for some terms of the lease. It prints each change.
LEADER = """
import asyncio, signal, sys, time
from extender.control.log.leader import Leader
from extender.control.log.lease import LeaseIdentity
from extender.control.monitors.event_loop_monitor import EventLoopMonitor
from extender.runtime.system_clock import SystemClock
from extender.store.log.lease_renewal import PostgresLeaseRenewal
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.core.log.events import GangRemoved, NewEvent
from extender.core.model.errors import NotLeading, StoreUnavailable
from tests.support.logs.fake_store import FakeDatabase, FakeSnapshots

class NoAnchor:
    async def published(self): return ()
    async def publish(self, anchors): pass

def busy(seconds):
    began = time.monotonic()
    while time.monotonic() - began < seconds:  # as a computation would: other threads get their turns
        sum(range(1000))

async def main(url, ttl_ms, busy_s, stall_max_ms):
    clock = SystemClock()
    identity = LeaseIdentity(holder="busy", address="http://busy", ttl_ms=ttl_ms)
    leader = Leader(PostgresEventLog(url), FakeSnapshots(FakeDatabase()), clock, identity)
    leader.history.anchor = NoAnchor()
    monitor = EventLoopMonitor(
        leader, lambda: PostgresLeaseRenewal(url), clock, ttl_ms, stall_max_ms=stall_max_ms
    )
    tasks = [asyncio.create_task(leader.run()), asyncio.create_task(monitor.run())]
    while not leader.may_record():
        await asyncio.sleep(0.01)
    def stall():
        print("busy", flush=True)
        busy(busy_s)
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

asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
"""


@asynccontextmanager
async def leading(url, *, busy_s=0.0, stall_max_ms=30_000):
    """Run a leader in a process of its own; yields it once it leads."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEADER, url, str(TTL_MS), str(busy_s), str(stall_max_ms),
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


async def taken(log, stop=lambda: False):
    """Try to take the lease as another replica does; return whether it was possible before `stop`."""
    while not stop():
        try:
            await log.take(holder="other", address="", ttl_ms=60_000)
        except LeaseHeld:
            await asyncio.sleep(0.02)
        else:
            return True
    return False


async def test_a_leader_with_a_busy_event_loop_keeps_its_lease(database_url):
    """For 5 terms of its lease another replica cannot take it; then the leader appends in the same epoch."""
    async with (
        leading(database_url, busy_s=5 * TTL_MS / 1000) as process,
        PostgresEventLog(database_url) as log,
    ):
        process.send_signal(signal.SIGUSR1)
        assert await line(process) == "busy"
        ended = asyncio.create_task(line(process))
        assert not await taken(log, ended.done)
        assert await ended == "may act 1"
        assert (await line(process)).startswith("the event loop was busy for ")
        assert await line(process) == "appended 1"


async def test_a_leader_that_is_busy_for_too_long_gives_the_lease_up(database_url):
    """After the limit the lease runs out. The busy leader knows: it may not act before it has asked the database."""
    async with (
        leading(database_url, busy_s=6, stall_max_ms=1_500) as process,
        PostgresEventLog(database_url) as log,
    ):
        process.send_signal(signal.SIGUSR1)
        assert await line(process) == "busy"
        ended = asyncio.create_task(line(process))
        assert await taken(log, ended.done)
        assert (await ended).startswith("may not act")
        assert (await line(process)).startswith("the event loop was busy for ")
        assert await line(process) == "refused"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "dead"])
async def test_a_leader_that_does_not_run_loses_the_lease(database_url, number):
    """Nothing renews for a process that the kernel does not run; after SIGCONT it may not act."""
    async with leading(database_url) as process, PostgresEventLog(database_url) as log:
        process.send_signal(number)
        assert await taken(log)
        if number == signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
            assert (await line(process)).startswith("the event loop was busy for ")
            assert await line(process) == "refused"
