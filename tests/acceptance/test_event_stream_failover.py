"""Follow across kill -9 of leaders: real services, a real database, readers over HTTP and of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
import yaml

from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import Replica, RoundRobin
from tests.support.service.sse_reader import Reader
from tests.support.waiting import answer_of, eventually

pytestmark = pytest.mark.postgres


async def head_of(replica):
    """Return the end of the log as a replica sees it; it need not lead."""
    found = await replica.events("?order=newest&limit=1")
    return found[0]["position"] if found else 0


def add(manifests, name):
    hidden = manifests / f".{name}"
    hidden.write_text(yaml.safe_dump_all(a_gang(name, pods=2)))
    hidden.rename(manifests / f"{name}.yaml")


async def led(replicas):
    """Wait until one of them leads, and return it."""

    async def leader():
        leading = [replica for replica in replicas if await replica.leads()]
        return leading[0] if leading else None

    tails = lambda: [replica.tail() for replica in replicas]
    return await eventually(leader, "a replica that leads", every_s=0.05, state=tails)


@pytest.fixture
async def front():
    """A load balancer in front of the replicas."""
    async with RoundRobin([]) as balancer:
        yield balancer


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.full)])
async def test_streams_go_on_across_kills_of_leaders(database_url, tmp_path, front, kills):
    """Two services take turns, each killed while it leads. Streams of leader and follower, with and without
    filters, and the command, from the database and from the services, have every event once."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet("4 nodes", gpu=8)))
    replicas = [Replica(tmp_path, database_url, manifests, name) for name in ("first", "second")]
    following, front.replicas = [], list(replicas)
    try:
        await led(replicas)
        # a command whose first request gets no answer ends with an error, as it should
        await eventually(lambda: set(front.ready) == set(replicas), "both replicas to be ready")
        urls = [replica.url for replica in replicas]
        everything = [Reader(urls, "&after=0"), Reader(urls[::-1], "&after=0")]
        admitted = Reader(urls, "&after=0&type=GangAdmitted&type=LeaseAcquired")
        ends = []  # the position at which it is enough
        done = lambda reader: bool(ends) and int(reader.last_id or 0) >= ends[0]
        reading = [asyncio.create_task(r.read(done)) for r in (*everything, admitted)]
        environ = {**os.environ, "GANG_EXTENDER_DATABASE_URL": database_url}
        command = ["events", "--follow", "--after", "0", "-o", "json"]
        for source, options in (("database", []), ("services", ["--server", front.url])):
            errors = tmp_path / f"{source}.errors"
            show_log(errors)
            with (tmp_path / f"{source}.jsonl").open("wb") as output, errors.open("wb") as file:
                words = [*command, *options]
                following.append(fork_server.run(words, environ, output, errors=file))

        def followed(source):
            lines = (tmp_path / f"{source}.jsonl").read_bytes().split(b"\n")[:-1]
            return [json.loads(line) for line in lines]

        for source in ("database", "services"):
            await eventually(lambda s=source: followed(s), f"the first event from the {source}")
        for number in range(kills):
            leader = await led(replicas)
            add(manifests, f"gang{number}")
            other = next(r for r in replicas if r is not leader)
            await other.until_events(f"?gang=default/gang{number}")
            leader.process.send_signal(signal.SIGKILL)
            leader.process.wait()
            await led([other])
            name = leader.log.stem
            index = replicas.index(leader)
            replicas[index] = front.replicas[index] = Replica(
                tmp_path, database_url, manifests, name
            )
            # streams ask the old address or the new one: both are tried
            for reader in (*everything, admitted):
                reader.urls = [*reader.urls, replicas[index].url]
        last = await led(replicas)
        add(manifests, "last")
        await last.until_events("?gang=default/last&type=GangAdmitted")
        log = await last.events("?limit=1000")
        positions = [event["position"] for event in log]
        assert positions == list(range(1, len(log) + 1))
        ends.append(positions[-1])
        add(manifests, "more")  # a reader looks whether it is enough when it gets something
        await answer_of(asyncio.gather(*reading), "all events in all streams")
        kinds = [f["position"] for f in log if f["type"] in ("GangAdmitted", "LeaseAcquired")]
        for reader in everything:
            assert reader.positions[: len(positions)] == positions
            assert reader.events[: len(log)] == log
            assert reader.problems == []
        assert admitted.positions[: len(kinds)] == kinds
        assert len({f["epoch"] for f in log}) >= kills + 1
        assert any(reader.connections > 1 for reader in everything)

        for source in ("database", "services"):
            await eventually(lambda s=source: len(followed(s)) >= len(log), source)
            assert followed(source)[: len(log)] == log
        for process in following:
            process.send_signal(signal.SIGINT)
        for process, source in zip(following, ("database", "services"), strict=True):
            await eventually(lambda p=process: p.poll() is not None, f"{source} has ended")
            assert process.returncode == 0
    finally:
        for process in following:
            if process.poll() is None:
                process.kill()
                process.wait()
        for replica in replicas:
            replica.end()
