"""Two and three replicas on one PostgreSQL, with the Service in front: kills, rolling updates, and who may not lead.

The processes are real; the cluster is one of manifests that the replicas share, the demo's player has
kube-scheduler's part. A call that gets an error or no answer is a refused call, and its time is noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
import urllib.request
from collections import Counter

import aiohttp
import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from tests.acceptance import test_preemption_kills as preemption
from tests.acceptance.test_process_kills import POINTS, SIZE, at_bind, create, kill_at, play_until
from tests.support.service.manifest_builders import GPU, a_fleet, a_pod
from tests.support.service.replicas import LEASE_S, Replica, RoundRobin
from tests.support.waiting import WaitedInVain, eventually, patient

pytestmark = pytest.mark.postgres


class Group:
    """Some replicas of one Deployment."""

    def __init__(self, folder, database_url, count, **settings):
        self.folder = folder
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.data = folder / "shared"
        (self.manifests / "fleet.yaml").write_text(
            yaml.safe_dump_all(
                [*a_fleet("4 racks x 8 nodes", gpu=8), a_pod("alien", requests={GPU: 4})]
            )
        )
        self.replicas = [
            Replica(folder, database_url, self.manifests, f"r{n}", data="shared", **settings)
            for n in range(count)
        ]
        self.leader = self.replicas[0]

    def end(self):
        for replica in self.replicas:
            replica.end()

    def player(self):
        return Player(self.leader.url, self.manifests, self.data / "cluster.jsonl")

    async def until_led(self):
        """Wait until one leads and all others follow."""

        async def look():
            for replica in self.replicas:
                if await replica.leads():
                    self.leader = replica
                    return True
            return False

        await eventually(look, "a replica that leads", state=self.tails)

    async def until_ready(self):
        for replica in self.replicas:
            await replica.until("/readyz", 200)

    def tails(self):
        """Return the ends of the logs."""
        return [replica.tail() for replica in self.replicas]

    def get(self, path):
        with urllib.request.urlopen(self.leader.url + path) as reply:
            return json.load(reply)

    def events(self):
        found = []
        while page := self.get(f"/v1/events?limit=1000&after={len(found)}"):
            found += page
        return found

    def kill(self):
        self.killed_s = time.monotonic()
        self.leader.kill()


@pytest.fixture
def group(request, database_url, tmp_path):
    count, lease_s = request.param
    made = Group(tmp_path, database_url, count, lease_duration_s=lease_s)
    yield made
    made.end()


class Caller:
    """Asks filter for an ordinary pod, again and again, on kept connections."""

    def __init__(self, url, player):
        self.url = url
        pod = next(p for p in player.view.pods.values() if p.name == "alien")
        self.body = {
            "Pod": player._pod_json(pod),
            "Nodes": None,
            "NodeNames": sorted(player.view.nodes),
        }
        self.answered = 0
        self.refused = []  # when, and why

    async def run(self):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            while True:
                try:
                    async with (
                        patient("an answer to filter"),
                        session.post(f"{self.url}/scheduler/filter", json=self.body) as reply,
                    ):
                        error = (await reply.json())["Error"]
                except (aiohttp.ClientError, OSError, WaitedInVain) as fault:
                    error = repr(fault)
                if error:
                    self.refused.append((time.monotonic(), error))
                else:
                    self.answered += 1
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def calling(url, player, count=3):
    callers = [Caller(url, player) for _ in range(count)]
    tasks = [asyncio.create_task(caller.run()) for caller in callers]
    try:
        yield callers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def placed(player, pod):
    """Place a pod as kube-scheduler does, which tries again after an error."""
    return await eventually(lambda: player.place(pod), f"a node for {pod.path}", every_s=0.05)


def once(events):
    """Check what must hold of every log: no gap, each binding once, no drift but of victims that ran before their group was seen."""
    assert [f["position"] for f in events] == list(range(1, len(events) + 1))
    bound = Counter(f["data"]["uid"] for f in events if f["type"] == "PodBound")
    assert set(bound.values()) <= {1}
    drift = [f for f in events if f["type"] == "DriftDetected"]
    assert [f["summary"] for f in drift if "/low" not in f["data"]["object"]] == []
    return bound


async def sends_away(replica):
    """Wait until a replica that ends reports it: not ready, and no further call on this connection."""
    async with aiohttp.ClientSession() as session:

        async def refused():
            async with session.get(f"{replica.url}/readyz") as reply:
                assert reply.status != 503 or reply.headers["Connection"] == "close"
                return reply.status == 503

        await eventually(refused, f"{replica.holder} is not ready", every_s=0.0)


@pytest.mark.parametrize(
    "group",
    [(2, 10), pytest.param((3, 10), marks=pytest.mark.long)],
    indirect=True,
    ids=["two", "three"],
)
async def test_a_rolling_update_refuses_no_call(group):
    """Each replica ends and comes back while gangs are bound and ordinary pods filtered: no call is refused but in a hand-over."""
    await group.until_led()
    await group.until_ready()
    windows = []
    async with RoundRobin(group.replicas) as front:
        await eventually(lambda: len(front.ready) == len(group.replicas), "all ready")
        player = Player(front.url, group.manifests, group.data / "cluster.jsonl")
        async with calling(front.url, player) as callers:
            for number, replica in enumerate(group.replicas):
                name = f"gang{number}"
                create(group, name)
                held = await at_bind(group, player, name, SIZE // 2)
                assert not any(call.done() for call in held)
                began_s = time.monotonic()
                front.terminating.add(replica)
                ending = asyncio.create_task(replica.stopped())
                if group.leader is replica:
                    await eventually(lambda r=replica: r not in front.ready, "not ready")
                await sends_away(replica)
                await group.until_led()
                windows.append((began_s, time.monotonic()))
                others = [p for p in player.pending() if p.name.startswith(f"{name}-")][SIZE // 2 :]
                for pod in others:
                    held.append(asyncio.create_task(player.bind(pod, await placed(player, pod))))
                assert await asyncio.gather(*held) == [""] * SIZE, "calls went on elsewhere"
                assert await ending == 0, replica.log.read_text()[-3000:]
                replica.start()
                front.terminating.discard(replica)
                await replica.until("/readyz", 200)
                await eventually(lambda r=replica: r in front.ready, "in the Service")
        await player.close()
        refused = [(when, why) for c in callers for when, why in c.refused]
        assert set(front.given) == {r.holder for r in group.replicas}
    assert front.refused == []
    outside = [(when, why) for when, why in refused if not any(a <= when <= b for a, b in windows)]
    assert outside == []
    assert sum(c.answered for c in callers) > 0
    print(f"\n{sum(c.answered for c in callers)} answered, {len(refused)} refused in hand-overs")
    assert len(once(group.events())) == SIZE * len(group.replicas)


async def victims_of(group, player, number, point):
    """Have a gang preempt, and wait for a point of it."""
    preemption.write(group, f"full{number}", preemption.full_nodes(number))
    preemption.write(group, f"hi{number}", preemption.preemptor(number))
    await preemption.reached(group, point, number)
    group.kill()
    await player.close()


async def first_answer(group, killed):
    """Return the seconds from a kill to the first answer of another leader to a filter call."""
    body = Caller("", group.player()).body
    async with aiohttp.ClientSession() as session:

        async def answered():
            for replica in group.replicas:
                if replica is killed:
                    continue
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.post(f"{replica.url}/scheduler/filter", json=body) as reply:
                        if not (await reply.json())["Error"]:
                            return time.monotonic() - group.killed_s
            return None

        return await eventually(answered, "an answer to filter", every_s=0.01, state=group.tails)


KILLS = int(os.environ.get("GX_TEST_KILLS", "50"))  # fewer, to try it
ALL_POINTS = [("kill", point) for point in POINTS] + [("preempt", p) for p in preemption.POINTS]


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("group", [(3, LEASE_S)], indirect=True, ids=["three"])
async def test_the_gap_of_fifty_kills(group):
    """The leader is killed in every phase of admission, barrier and preemption; every gang is completed, and the gap is printed."""
    await group.until_led()
    gaps = {}
    for number in range(KILLS):
        kind, point = ALL_POINTS[number % len(ALL_POINTS)]
        await group.until_led()
        player, killed = group.player(), group.leader
        if kind == "kill":
            await kill_at(group, player, f"gang{number}", point)
        else:
            await victims_of(group, player, number, point)
        gaps.setdefault(point, []).append(await first_answer(group, killed))
        print(f"{number} {point}: {gaps[point][-1]:.2f} s", flush=True)
        await group.until_led()
        killed.start()
        await complete(group, f"gang{number}" if kind == "kill" else f"hi{number}")
        await killed.until("/readyz", 200)
    once(group.events())
    found = sorted(gap for some in gaps.values() for gap in some)
    print(
        f"lease {LEASE_S} s; {len(found)} kills: median {statistics.median(found):.2f} s, longest {found[-1]:.2f} s"
    )
    for point, some in gaps.items():
        print(f"  {point}: {', '.join(f'{gap:.2f}' for gap in some)}")


async def complete(group, name):
    """Schedule a gang to its end at the new leader."""
    player = group.player()
    try:
        await play_until(
            player,
            lambda: (
                group.get(f"/v1/gangs/default/{name}")["state"] == "scheduled"
                and not group.get(f"/v1/gangs/default/{name}")["reserved"]
            ),
            f"{name} bound",
        )
    finally:
        await player.close()
