"""A large gang beside a stream of small gangs on a full cluster, with the real kube-scheduler: capacity is held for it."""

from __future__ import annotations

import pytest

from tests.controlplane.objects import a_namespace, condition_of
from tests.e2e.scenarios.conftest import OURS, Story, member
from tests.e2e.scenarios.test_ordinary_pods import use_scope
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod

# what neighbours use and free would be counted too
pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
GPU = {"nvidia.com/gpu": 8}
NODES = 3
OTHERS = "small-gangs"  # no capacity is held for a gang that only its own namespace blocks
PODS = f"/api/v1/namespaces/{OTHERS}/pods"
GROUPS = f"/apis/{OURS}/namespaces/{OTHERS}/podgroups"
WAITING = 2  # small gangs that always wait for the next free node


class Stream:
    """Small gangs that fill a node each; two wait at any time, and the oldest that runs ends when it is deleted."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.made = 0

    async def fill(self, waiting: int) -> list[str]:
        """Create gangs until all nodes are used and so many wait; return those that run, the oldest first."""
        while True:
            running = await self.running()
            if len(await self._alive()) >= NODES + waiting:
                return running
            self.made += 1
            name = f"small-{self.made:02}"
            await self.story.create(
                a_group(name, gang=1, namespace=OTHERS),
                a_pod(f"{name}-0", name, namespace=OTHERS, requests=GPU),
            )

    async def running(self) -> list[str]:
        """Return the small gangs that run, the oldest first."""
        pods = (await self.story.api.get(PODS))["items"]
        bound = [pod for pod in pods if pod["spec"].get("nodeName")]
        return sorted(pod["metadata"]["name"].removesuffix("-0") for pod in bound)

    async def _alive(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in (await self.story.api.get(PODS))["items"]]

    async def all_end(self) -> None:
        """Delete all small gangs: what ends a test cleans up does so in namespace default only."""
        for name in await self._alive():
            await self.ends(name.removesuffix("-0"))
        await self.story.until(self._none_is_left)

    async def _none_is_left(self) -> bool:
        return not (await self.story.api.get(GROUPS))["items"]

    async def ends(self, name: str) -> None:
        """Delete a small gang; its pod is gone at once."""
        await self.story.api.delete(f"{PODS}/{name}-0", {"gracePeriodSeconds": 0})
        await self.story.api.delete(f"{GROUPS}/{name}")


async def streaming(story: Story) -> Stream:
    """Return small gangs in a namespace of their own."""
    namespaces = (await story.api.get("/api/v1/namespaces"))["items"]
    if all(one["metadata"]["name"] != OTHERS for one in namespaces):
        await story.create(a_namespace(OTHERS))
    return Stream(story)


async def message_of(story: Story, name: str) -> str:
    """Return the message of the condition of a group."""
    group = await story.api.get(f"/apis/{OURS}/namespaces/default/podgroups/{name}")
    condition = condition_of(group, "PodGroupInitiallyScheduled")
    return condition.get("message", "") if condition is not None else ""


async def until_full(story: Story, stream: Stream, waiting: int = WAITING) -> list[str]:
    """Wait until small gangs run on all nodes and so many others wait."""

    async def look() -> list[str] | None:
        running = await stream.fill(waiting)
        return running if len(running) == NODES else None

    return await story.until(look, every_s=0.3)


@pytest.mark.full
@pytest.mark.settings(hold_capacity_after_s="0", preemption="false")
async def test_without_holds_small_gangs_pass_the_large_one(story: Story) -> None:
    """The control: what each small gang frees goes to the next one."""
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(NODES)))
    stream = await streaming(story)
    await until_full(story, stream)
    await story.create(*a_gang("large", pods=NODES, requests=GPU))
    await story.until_event("GangUnschedulable", "default/large")
    for _ in range(2 * NODES):
        running = await until_full(story, stream)
        await stream.ends(running[0])
    await until_full(story, stream)
    assert not await story.bound("large-")
    await story.check_events()
    await stream.all_end()


@pytest.mark.settings(
    hold_capacity_after_s="2", hold_capacity_max_percent="100", preemption="false"
)
async def test_capacity_is_held_for_a_large_gang_as_it_frees(story: Story) -> None:
    """Small gangs and ordinary pods are kept off what frees, the condition counts it, and the large gang runs at last."""
    await use_scope(story, "contended-resource")
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(NODES)))
    stream = await streaming(story)
    running = await until_full(story, stream, waiting=0)
    await story.create(*a_gang("large", pods=NODES, requests=GPU))
    held = await story.until_event("CapacityHeld", "default/large")
    assert sorted(a["node"] for a in held["data"]["assignments"]) == [f"n{i}" for i in range(NODES)]
    await until_full(story, stream)

    await stream.ends(running[0])
    await story.create(member("alone", "", requests=GPU))

    async def counted() -> bool:
        text = await message_of(story, "large")
        return f"1 of {NODES} pods would fit now" in text

    async def refused() -> bool:
        condition = condition_of((await story.pods())["alone"], "PodScheduled")
        return condition is not None and condition["status"] == "False"

    await story.until(counted)
    await story.until(refused)
    assert set(await stream.running()) == set(running[1:])
    for name in running[1:]:
        assert not await story.bound("large-")
        await stream.ends(name)
    bound = await story.until_bound(NODES, "large-")
    assert set(bound.values()) == {f"n{i}" for i in range(NODES)}
    assert not await story.bound("alone")
    ended = await story.until_event("CapacityHoldReleased", "default/large")
    assert ended["data"]["reason"] == "admitted"
    await story.check_events()
    await story.check_capacity()
    await stream.all_end()
