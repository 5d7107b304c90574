"""A database whose disk is full, or whose answers take two seconds: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from subprocess import PIPE
from urllib.parse import parse_qs, quote, urlsplit

import aiohttp
import pytest
import yaml

from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from tests.support.logs.postgres import FAST, make_roles
from tests.support.service import fork_server
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import LOOK_S, Replica
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.full]

SMALL = {"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}
DISK_MIB = 256
PER_FILE = 20
DELAY_S = 2.0
READY = b"Z\x00\x00\x00\x05"  # ReadyForQuery: the log-in is over


@contextlib.contextmanager
def small_disk():
    """Mount a file system of 256 MiB and yield its folder."""
    folder = Path(tempfile.mkdtemp(prefix="gxt-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "manifests"
    made.mkdir()
    (made / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet("20 nodes", gpu=512)))
    return made


def write_gangs(folder, name, count=PER_FILE):
    """Write a file of gangs of two pods."""
    gangs = [o for n in range(count) for o in a_gang(f"{name}-{n}", pods=2)]
    hidden = folder / f".{name}"
    hidden.write_text(yaml.safe_dump_all(gangs))
    hidden.rename(folder / f"{name}.yaml")


async def filter_error(replica):
    """Return what filter answers about a pod that it does not know."""
    pod = {"metadata": {"name": "x", "namespace": "default", "uid": "x"}, "spec": {}}
    async with aiohttp.ClientSession() as session:
        body = {"Pod": pod, "NodeNames": ["n0"]}
        async with session.post(f"{replica.url}/scheduler/filter", json=body) as reply:
            assert reply.status == 200
            return (await reply.json())["Error"]


async def until_filter_cannot_answer(replica):
    """Wait for the answer with the reason; a server that restarts again and again lets it be ready for moments."""

    async def refused():
        return (await filter_error(replica)).startswith("cannot answer now: ")

    await eventually(refused, "filter cannot answer", every_s=0.05, state=replica.tail)


def verified(replica):
    """Run `verify` on the database of a replica; return its exit code and what it printed."""
    command = fork_server.run(["verify"], replica.environ, PIPE, text=True)
    output, _ = command.communicate()
    return command.returncode, output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small disk")
@pytest.mark.parametrize("full", ["data", "wal"])
async def test_a_full_disk_stops_admissions_until_there_is_space(full, folder, tmp_path):
    """It is not ready and has the reason in its answers; no gang is lost or admitted twice, and the log verifies."""
    with small_disk() as disk:
        ballast = disk / "ballast"
        server = EmbeddedPostgres(disk, settings={**FAST, **SMALL})
        url = await server.start()
        try:
            await make_roles(url, url)
            await schema_migration.upgrade(url)
            replica = Replica(tmp_path, url, folder, "a", lease_duration_s=10)
            try:
                await replica.until_leads()
                left_kib = (
                    0 if full == "data" else 2048
                )  # of the WAL, whose next segment has no space
                count = await fill_until_not_ready(replica, folder, ballast, left_kib)
                await until_filter_cannot_answer(replica)
                ballast.unlink()
                await replica.until("/readyz", 200)
                admitted = await replica.until_events("?type=GangAdmitted&limit=1000", count)
                assert len({event["gang"] for event in admitted}) == len(admitted) == count
                done = await asyncio.to_thread(verified, replica)
                assert done[0] == 0, done
            finally:
                replica.end()
        finally:
            await server.stop()


async def fill_until_not_ready(replica, folder, ballast, left_kib):
    """Fill the disk, then create gangs until the service is not ready; return how many there are."""
    left = shutil.disk_usage(ballast.parent).free - left_kib * 1024
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while left > 0:
            file.write(bytes(min(65536, left)))
            file.flush()
            left -= 65536
    for number in range(40):
        write_gangs(folder, f"g{number}")
        count = (number + 1) * PER_FILE

        async def decided(count=count):
            if (await replica.probe("/readyz", LOOK_S))[0] == 503:
                return "not ready"
            status, found = await replica.probe("/v1/events?type=GangAdmitted&limit=1000", LOOK_S)
            return "admitted" if status == 200 and len(found) >= count else ""

        what = f"{count} admissions, or that it is not ready"
        if await eventually(decided, what, every_s=0.05, state=replica.tail) == "not ready":
            return count
    raise AssertionError("it was ready all the time")


class SlowRelay:
    """A server on a unix socket in front of PostgreSQL: after the log-in every answer takes `DELAY_S`."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._path, self._target = folder / ".s.PGSQL.5432", target
        self.slow = False
        self.delayed = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers += [writer, back]
        for work in (self._pipe(reader, back), self._answers(there, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pipe(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _answers(self, reader, writer):
        logged_in = False
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if logged_in and self.slow:
                    self.delayed += 1
                    await asyncio.sleep(DELAY_S)
                logged_in = logged_in or READY in data
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_round_trips_of_two_seconds_stop_admissions_until_they_are_faster(
    folder, database_url, tmp_path
):
    """A renewal needs several: the lease of 10 s runs out, and the answers have that reason. Nothing is lost by it."""
    sockets = Path(tempfile.mkdtemp(prefix="gxr-"))
    real = socket_of(database_url)
    async with SlowRelay(sockets, real) as relay:
        before, _, _ = database_url.partition("?")
        url = f"{before}?host={quote(str(sockets), safe='')}"
        replica = Replica(tmp_path, url, folder, "a", lease_duration_s=10)
        try:
            await replica.until_leads()
            write_gangs(folder, "fast", 2)
            await replica.until_events("?type=GangAdmitted", 2)
            relay.slow = True
            write_gangs(folder, "slow", 4)
            await until_filter_cannot_answer(replica)
            assert relay.delayed > 0
            relay.slow = False
            admitted = await replica.until_events("?type=GangAdmitted", 6)
            assert len({event["gang"] for event in admitted}) == len(admitted) == 6
            await replica.until("/readyz", 200)
            done = await asyncio.to_thread(verified, replica)
            assert done[0] == 0, done
        finally:
            replica.end()
    shutil.rmtree(sockets)


def socket_of(url):
    """Return the path of the unix socket of a database URL."""
    return Path(parse_qs(urlsplit(url).query)["host"][0]) / ".s.PGSQL.5432"
