"""A seeded soak: random creations, deletions, scalings, cordons, relabellings and kills on a real control plane.

What must hold after every story (aftermath.py) must hold after every hundred operations too.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.e2e.scenarios.aftermath import check_aftermath
from tests.e2e.scenarios.conftest import OURS, Story, member
from tests.support.service.manifest_builders import a_group, a_node
from tests.support.waiting import eventually

NODES = 6
RACKS = ("r1", "r2", "r3")
GANGS_MAX = 6


class Soak:
    """One run of random operations."""

    def __init__(self, story: Story, seed: int) -> None:
        self.story = story
        self.chance = random.Random(seed)
        self.gangs: dict[str, list[str]] = {}  # gang -> its pods
        self.cordoned: set[str] = set()
        self.made = 0
        self.done: list[str] = []

    def a_node(self, number: int) -> dict[str, Any]:
        return a_node(f"n{number}", {"rack": RACKS[number % len(RACKS)]}, gpu=8)

    async def set_up(self) -> None:
        await self.story.create(*(self.a_node(n) for n in range(NODES)))

    async def step(self) -> None:
        """Do one thing, chosen by chance."""
        names = ["create"] * 6 + ["delete_gang"] * 3 + ["delete_pod"] * 2 + ["scale"] * 2
        names += ["cordon"] * 2 + ["relabel", "node", "kill", "mishap"]
        name = self.chance.choice(names)
        try:
            await getattr(self, name)()
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self.done.append(name)
        await asyncio.sleep(self.chance.choice((0, 0, 0.05, 0.3)))

    async def create(self) -> None:
        if len(self.gangs) >= GANGS_MAX:
            return
        self.made += 1
        name = f"g{self.made}"
        pods = self.chance.randint(1, 4)
        group = a_group(
            name, gang=self.chance.randint(1, pods), topo=self.chance.choice(("", "rack"))
        )
        things = [group, *(self.a_member(name, n) for n in range(pods))]
        self.chance.shuffle(things)
        self.gangs[name] = [f"{name}-{n}" for n in range(pods)]
        if self.story.neighbours is not None and self.chance.random() < 0.1:
            self.story.neighbours.kubelet.refuse(f"{name}-0")
        await self.story.create(*things)

    def a_member(self, gang: str, number: int) -> dict[str, Any]:
        return member(f"{gang}-{number}", gang, requests={"nvidia.com/gpu": 4})

    async def delete_gang(self) -> None:
        if self.gangs:
            name = self.chance.choice(sorted(self.gangs))
            for pod in self.gangs.pop(name):
                await self.forget(f"/api/v1/namespaces/default/pods/{pod}")
            await self.forget(f"/apis/{OURS}/namespaces/default/podgroups/{name}")

    async def delete_pod(self) -> None:
        pods = [(gang, pod) for gang, pods in sorted(self.gangs.items()) for pod in pods]
        if pods:
            gang, pod = self.chance.choice(pods)
            self.gangs[gang].remove(pod)
            await self.forget(f"/api/v1/namespaces/default/pods/{pod}")

    async def scale(self) -> None:
        if self.gangs:
            gang = self.chance.choice(sorted(self.gangs))
            self.made += 1
            self.gangs[gang].append(f"{gang}-x{self.made}")
            made = member(f"{gang}-x{self.made}", gang, requests={"nvidia.com/gpu": 4})
            await self.story.create(made)

    async def cordon(self) -> None:
        name = f"n{self.chance.randrange(NODES)}"
        value = name not in self.cordoned
        self.cordoned ^= {name}
        await self.story.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": value}})

    async def relabel(self) -> None:
        name = f"n{self.chance.randrange(NODES)}"
        labels = {"metadata": {"labels": {"rack": self.chance.choice(RACKS)}}}
        await self.story.api.patch(f"/api/v1/nodes/{name}", labels)

    async def node(self) -> None:
        """Lose a node with its pods, and get an empty one of its name."""
        number = self.chance.randrange(NODES)
        for name, pod in (await self.story.pods()).items():
            if pod["spec"].get("nodeName") == f"n{number}":
                await self.forget(f"/api/v1/namespaces/default/pods/{name}")
                for pods in self.gangs.values():
                    if name in pods:
                        pods.remove(name)
        await self.forget(f"/api/v1/nodes/n{number}")
        self.cordoned.discard(f"n{number}")
        await self.story.create(self.a_node(number))

    async def kill(self) -> None:
        self.story.service.kill()
        await self.story.service.start()

    async def forget(self, path: str) -> None:
        try:
            await self.story.api.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def mishap(self) -> None:
        """Let the kubelet lose a member (lived-in clusters only)."""
        pods = [(gang, pod) for gang, pods in sorted(self.gangs.items()) for pod in pods]
        if pods and self.story.neighbours is not None:
            gang, pod = self.chance.choice(pods)
            self.gangs[gang].remove(pod)
            await self.story.neighbours.kubelet.lose(pod)

    async def check(self) -> None:
        """Check everything that must hold in the end, and that no gang outlives its group."""
        await check_aftermath(self.story)

        async def forgotten() -> bool:
            lines = await self.story.service.get("/v1/gangs")
            return {line["gang"].partition("/")[2] for line in lines} <= set(self.gangs)

        await eventually(forgotten)


async def soak(story: Story, *, seed: int, operations: int) -> None:
    run = Soak(story, seed)
    await run.set_up()
    for number in range(operations):
        await run.step()
        if number % 100 == 99:
            await run.check()
    await run.check()
    kinds = [f["type"] for f in await story.service.events()]
    assert kinds.count("GangAdmitted") >= operations // 20, "the soak did not do much"
    assert kinds.count("PodBound") >= operations // 10


@pytest.mark.lived_in("long")
@pytest.mark.e2e
@pytest.mark.parametrize("seed", [1])
async def test_after_random_operations_nothing_leaks(story: Story, seed: int) -> None:
    """60 operations; `make long` does 500."""
    await soak(story, seed=seed, operations=60)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [11, 12])
async def test_long_soak(story: Story, seed: int) -> None:
    """500 operations, checked after every hundred; runs so far stand in tests/e2e/EXPERIMENTS.md."""
    await soak(story, seed=seed, operations=500)
