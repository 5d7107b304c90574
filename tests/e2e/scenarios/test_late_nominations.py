"""At most 100 nodes and no other pod that waits: gates are removed first, and only late members are nominated."""

from __future__ import annotations

import asyncio

import pytest

from tests.controlplane.objects import GATE
from tests.controlplane.waiting import create_priority_class
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.test_gangs import GPU, finish, gang, nodes
from tests.e2e.scenarios.test_ordinary_pods import ordinary
from tests.support.service.manifest_builders import a_gang
from tests.support.waiting import eventually

# neighbours have pods of their own that wait, and more nodes
pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
LATE_MS = "3000"


def writes(story: Story, name: str) -> list[str]:
    """Return what the service has written to a pod, in order."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    names = {path: "gate", f"{path}/status": "nomination"}
    return [
        names[where] for method, where in story.server.seen if method == "PATCH" and where in names
    ]


async def without_gates(story: Story) -> bool:
    pods = await story.pods()
    return bool(pods) and not any(
        {"name": GATE} in pod["spec"].get("schedulingGates", []) for pod in pods.values()
    )


async def nominations(story: Story) -> set[str]:
    pods = (await story.pods()).values()
    return {pod["status"].get("nominatedNodeName", "") for pod in pods}


@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.settings(nomination_delay_ms="20000")
async def test_a_gang_is_bound_as_planned_without_a_nomination(story: Story) -> None:
    """kube-scheduler offers each node to filter, which passes the reserved one."""
    await story.create(*nodes(9), *gang("train", 8))
    await finish(story, 8)
    for number in range(8):
        assert writes(story, f"train-{number}") == ["gate"]
    assert not await story.service.events("NodeRejected")


@pytest.mark.full
@pytest.mark.settings(nomination_delay_ms="200")
async def test_members_that_are_late_are_nominated_and_keep_their_nodes(story: Story) -> None:
    """kube-scheduler is away; a pod that is created meanwhile, which no filter sees, does not get their capacity."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    await story.create(*nodes(2), *a_gang("g", pods=2, requests=GPU))
    await eventually(lambda: without_gates(story))

    async def all_nominated() -> bool:
        return await nominations(story) == {"n0", "n1"}

    await eventually(all_nominated)
    assert writes(story, "g-0") == writes(story, "g-1") == ["gate", "nomination"]
    await story.create(ordinary("other", GPU))
    story.plane.start_scheduler(story.scheduler_config(), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    assert set((await story.until_bound(2, "g-")).values()) == {"n0", "n1"}
    assert not await story.bound("other")
    assert not await story.service.events("ReservationReleased")


@pytest.mark.full
@pytest.mark.settings(nomination_delay_ms="20000")
async def test_while_another_pod_waits_members_are_nominated_first(story: Story) -> None:
    """Only the nomination keeps it from their nodes in the scope of members."""
    await story.create(*nodes(2), ordinary("big", {"nvidia.com/gpu": 9}))
    await story.until(lambda: waits(story, "big"))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    await story.until_bound(2, "g-")
    assert writes(story, "g-0") == writes(story, "g-1") == ["nomination", "gate"]


async def waits(story: Story, name: str) -> bool:
    """Return whether kube-scheduler has tried a pod in vain."""
    pod = (await story.pods())[name]
    return any(c["type"] == "PodScheduled" for c in pod["status"].get("conditions", []))


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.settings(nomination_delay_ms=LATE_MS)
async def test_killed_between_gate_and_late_nomination(story: Story) -> None:
    """The next life finds members without gate and nomination, and nominates them."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: without_gates(story))
    story.service.kill()
    assert await nominations(story) == {""}
    await story.service.start()

    async def all_nominated() -> bool:
        return await nominations(story) == {f"n{number}" for number in range(8)}

    await eventually(all_nominated)
    story.plane.start_scheduler(story.scheduler_config(), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    await finish(story, 8)
    assert len(await story.service.events("GangAdmitted")) == 1


@pytest.mark.full
@pytest.mark.settings(nomination_delay_ms="20000")
async def test_a_gang_whose_capacity_was_taken_is_nominated_at_once_the_next_time(
    story: Story,
) -> None:
    """Scope of members: a pod that filter does not see comes before them. All or nothing holds, and the gang is let go once more."""
    await create_priority_class(story.api, "high", 1000)
    await asyncio.to_thread(story.plane.stop_scheduler)
    await story.create(*nodes(2), *a_gang("g", pods=2, requests=GPU))
    await eventually(lambda: without_gates(story))
    there = {"kubernetes.io/hostname": "n0"}
    await story.create(ordinary("thief", GPU, priorityClassName="high", nodeSelector=there))
    story.plane.start_scheduler(story.scheduler_config(), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    assert await story.until_bound(1, "thief") == {"thief": "n0"}
    released = await story.until_event("ReservationReleased")
    assert released["data"]["reason"] == "superseded"
    assert not await story.bound("g-")
    await story.create(*nodes(3)[2:])
    assert set((await story.until_bound(2, "g-")).values()) == {"n1", "n2"}
    assert writes(story, "g-0") == writes(story, "g-1") == ["gate", "nomination"]
    await story.check_capacity()


@pytest.mark.full
@pytest.mark.settings(nomination_delay_ms="20000")
async def test_a_node_that_vanishes_before_the_bind_takes_no_member_with_it(story: Story) -> None:
    """The member has no gate and no nomination, and nothing in its spec binds it to the lost node: it gets another."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: without_gates(story))
    (admitted,) = await story.service.events("GangAdmitted")
    lost = admitted["data"]["assignments"][0]["node"]
    await story.api.delete(f"/api/v1/nodes/{lost}")
    await story.create(*nodes(9)[8:])
    await story.until_event("GangAdmitted", after=admitted["position"])
    story.plane.start_scheduler(story.scheduler_config(), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    bound = await story.until_bound(8)
    assert set(bound.values()) == {f"n{number}" for number in range(9)} - {lost}
    await story.until_event("GangScheduled", "default/train")
    await story.check_capacity()
