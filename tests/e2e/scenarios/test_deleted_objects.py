"""Things vanish: members, groups, planned nodes and labels, before and after the bind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.scenarios.conftest import OURS, Story, member
from tests.support.service.manifest_builders import RACK, a_gang, a_group, a_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
PODS = "/api/v1/namespaces/default/pods"
GROUPS = f"/apis/{OURS}/namespaces/default"
Reached = Callable[[], Awaitable[None]]


def racks(text: str) -> list[dict[str, Any]]:
    """Make nodes of 8 GPUs from words such as "a0 a1 b0": the letter is the rack."""
    return [a_node(name, {RACK: name[0], "pool": "p"}, gpu=8) for name in text.split()]


@asynccontextmanager
async def held_before_bind(story: Story, pods: int) -> AsyncIterator[Reached]:
    """Let all but the last of so many members reach the barrier, and hold the last on its way.

    What it gives is to be awaited when they have been created. Afterwards nothing is held any more.
    """
    seen = 0
    go = asyncio.Event()

    async def hold(_: str, path: str) -> web.Response | None:
        nonlocal seen
        if path.endswith("/bind"):
            seen += 1
            if seen == pods:
                await go.wait()
        return None

    async def all_there() -> bool:
        return seen >= pods

    async def reached() -> None:
        await story.until(all_there)

    story.verbs.before = hold
    try:
        yield reached
    finally:
        story.verbs.before = None
        go.set()


async def gang_of(story: Story, name: str) -> dict[str, Any] | None:
    """Return a gang as GET /v1/gangs shows it."""
    lines = await story.service.get("/v1/gangs")
    return next((line for line in lines if line["gang"] == f"default/{name}"), None)


async def no_leak(story: Story) -> None:
    """Nothing is reserved but for pods that exist, wait, and are planned there (GET /v1/gangs)."""

    async def agrees() -> bool:
        pods = {f"default/{n}": p for n, p in (await story.pods()).items()}
        for line in await story.service.get("/v1/gangs"):
            about = await story.service.get(f"/v1/gangs/{line['gang']}")
            for entry in about["members"]:
                node = pods.get(entry["pod"], {"spec": {}})["spec"].get("nodeName")
                if entry["state"] == "reserved" and (entry["pod"] not in pods or node):
                    return False
                if entry["state"] == "bound" and node != entry["node"]:
                    return False
        return True

    await eventually(agrees)


async def reserved(story: Story) -> int:
    """Count all reservations."""
    return sum(line["reserved"] for line in await story.service.get("/v1/gangs"))


async def nothing_reserved(story: Story) -> None:
    """Wait until no pending plan holds capacity."""

    async def free() -> bool:
        return await reserved(story) == 0

    await eventually(free)


async def released(story: Story, why: str, gang: str = "") -> dict[str, Any]:
    """Wait for a release for this reason."""

    async def look() -> dict[str, Any] | None:
        found = [
            f
            for f in await story.service.events("ReservationReleased")
            if f["data"]["reason"] == why and gang in ("", f["gang"])
        ]
        return found[-1] if found else None

    return await story.until(look)


def planned(event: dict[str, Any]) -> dict[str, str]:
    return {a["pod"].partition("/")[2]: a["node"] for a in event["data"]["assignments"]}


def names(pods: Iterable[dict[str, Any]]) -> set[str]:
    return {pod["pod"].partition("/")[2] for pod in pods}


async def vanish(story: Story, node: str, how: str) -> None:
    """Make a node useless for the members of these stories."""
    path = f"/api/v1/nodes/{node}"
    if how == "deleted":
        await story.api.delete(path)
    elif how == "cordoned":
        await story.kubectl("cordon", node)
    elif how == "drained":
        # Pods that were terminating before are not waited for: one may never end.
        skip = "--skip-wait-for-delete-timeout=1"
        await story.kubectl("drain", node, "--ignore-daemonsets", "--force", skip)
    elif how == "tainted":
        await story.kubectl("taint", "node", node, "broken=yes:NoSchedule")
    elif how == "shrunk":
        await story.api.patch(
            f"{path}/status", {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}
        )
    else:
        await story.api.patch(path, {"metadata": {"labels": {"pool": None}}})


HOWS = {
    "deleted": "is gone",
    "cordoned": "was cordoned",
    "drained": "was cordoned",
    "tainted": "has a taint that the pod does not tolerate",
    "shrunk": "offers less than was reserved on it",
    "unlabelled": "is not one that the pod selects any more",
}


async def test_a_planned_node_goes_before_the_bind(story: Story) -> None:
    """Gone, cordoned, drained, tainted, shrunk or relabelled: the whole tree is released and planned elsewhere."""
    await story.create(*racks("a0 a1 a2 a3"))
    for number, (how, words) in enumerate(HOWS.items()):
        name = f"g{number}-{how}"
        async with held_before_bind(story, 3) as reached:
            await story.create(*a_gang(name, pods=3, requests=GPU, nodeSelector={"pool": "p"}))
            await reached()
            before = planned(await story.until_event("GangAdmitted", f"default/{name}"))
            lost = before[f"{name}-1"]
            await vanish(story, lost, how)
            event = await released(story, "node-lost", f"default/{name}")
            assert not await story.bound(name)
        assert f"node {lost} {words}: default/{name}-1" in event["data"]["message"]
        assert names(event["data"]["pods"]) == set(before), "the tree is released as a whole"
        bound = await story.until_bound(3, name)
        assert lost not in bound.values()
        await story.until_event("GangScheduled", f"default/{name}")
        await nothing_reserved(story)
        await story.api.delete(f"{GROUPS}/podgroups/{name}")
        await story.api.delete(PODS, {"gracePeriodSeconds": 0})
        if how != "deleted":
            await story.api.delete(f"/api/v1/nodes/{lost}")
        await story.create(*racks(lost))
    await story.check_events()


@pytest.mark.full
async def test_a_started_gang_loses_only_who_cannot_get_there(story: Story) -> None:
    """Two of three are bound when the third's node is cordoned: only that one is planned again, and bound."""
    blocked = True
    third = ""

    async def let_two_pass(method: str, path: str) -> web.Response | None:
        nonlocal third
        if method != "POST" or not path.endswith("/binding"):
            return None
        pod = path.split("/")[-2]
        posted.add(pod)
        if blocked and len(posted) == 3:
            third = third or pod
        return web.Response(status=503) if blocked and pod == third else None

    posted: set[str] = set()
    story.server.before = let_two_pass
    await story.create(*racks("a0 a1 a2 a3"), *a_gang("g", pods=3, requests=GPU))
    first = await story.until_bound(2)
    before = planned(await story.until_event("GangAdmitted"))

    async def stuck() -> bool:
        return bool(third)

    await eventually(stuck)
    await vanish(story, before[third], "cordoned")
    event = await released(story, "node-lost")
    assert names(event["data"]["pods"]) == {third}
    assert f"node {before[third]} was cordoned: default/{third}" in event["data"]["message"]
    blocked = False  # a Binding to the cordoned node that is still tried would get through now
    bound = await story.until_bound(3)
    spare = {"a0", "a1", "a2", "a3"} - set(before.values())
    assert {bound[third]} == spare, await story.report()
    assert {pod: bound[pod] for pod in first} == first
    await story.until_event("GangScheduled")
    await nothing_reserved(story)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_node_that_leaves_the_domain_takes_the_tree_with_it(story: Story) -> None:
    """A planned node is relabelled into another rack: recorded, and the tree goes to a whole rack."""
    await story.create(*racks("a0 a1 b0 b1"))
    async with held_before_bind(story, 2) as reached:
        await story.create(*a_gang("g", pods=2, requests=GPU, topo=RACK))
        await reached()
        before = planned(await story.until_event("GangAdmitted"))
        old = next(iter(before.values()))[0]
        lost = before["g-0"]
        await story.api.patch(f"/api/v1/nodes/{lost}", {"metadata": {"labels": {RACK: "c"}}})
        event = await released(story, "node-lost")
        assert not await story.bound()
    assert f"node {lost} is not in {RACK}={old} any more: default/g-0" in event["data"]["message"]
    bound = await story.until_bound(2)
    assert {node[0] for node in bound.values()} == {"a", "b"} - {old}
    changed = await story.until_event("NodeTopologyChanged")
    assert changed["data"] == {"node": lost, "before": {RACK: old}, "after": {RACK: "c"}}
    await nothing_reserved(story)
    events = await story.check_events()
    assert [f["type"] for f in events].count("NodeTopologyChanged") == 1


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_member_deleted_before_its_bind(story: Story) -> None:
    """The whole tree gives its capacity back and waits; with the member back it is planned again and bound."""
    await story.create(*racks("a0 a1 a2"))
    async with held_before_bind(story, 3) as reached:
        await story.create(*a_gang("g", pods=3, requests=GPU))
        await reached()
        await story.api.delete(f"{PODS}/g-1", {"gracePeriodSeconds": 0})
        event = await released(story, "deleted")
    assert names(event["data"]["pods"]) == {"g-0", "g-1", "g-2"}
    assert "deleted before it was bound: default/g-1" in event["data"]["message"]
    await story.until_event("GangUnschedulable", after=event["position"], outcome="waiting")
    await nothing_reserved(story)
    assert not await story.bound()
    await story.create(member("g-1", "g", requests=GPU))
    await story.until_bound(3)
    await story.until_event("GangScheduled")
    await nothing_reserved(story)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_groups_deleted_before_the_bind(story: Story) -> None:
    """A leaf, then the root, is deleted and made again: nothing is kept of the old plan, and all is bound at last."""
    root = a_group("serve", gang=2, composite=True)
    leaves = [a_group(name, gang=1, parent="serve") for name in ("left", "right")]
    pods = [member(f"{name}-0", name, requests=GPU) for name in ("left", "right")]
    await story.create(*racks("a0 a1"))
    async with held_before_bind(story, 2) as reached:
        await story.create(root, *leaves, *pods)
        await reached()
        await story.force(f"{GROUPS}/podgroups/right")
        event = await released(story, "deleted")
        await nothing_reserved(story)
    assert names(event["data"]["pods"]) == {"left-0", "right-0"}
    assert re.match("PodGroup default/right (was|is being) deleted:", event["data"]["message"])
    assert not await story.bound()
    await story.create(leaves[1])
    await story.until_bound(2)
    await nothing_reserved(story)
    await story.api.delete(PODS, {"gracePeriodSeconds": 0})
    async with held_before_bind(story, 2) as reached:
        await story.create(*pods)
        await reached()
        await story.force(f"{GROUPS}/compositepodgroups/serve")
        await story.until_event("GangRemoved")
        assert await gang_of(story, "serve") is None
        assert await reserved(story) == 0
    assert not await story.bound()
    await story.create(root)
    await story.until_bound(2)
    await nothing_reserved(story)
    await story.check_events()


@pytest.mark.lived_in("long")
async def test_a_bound_member_is_lost_and_replaced_in_its_domain(story: Story) -> None:
    """MemberTerminated, the others untouched; the replacement goes to the pinned rack (H08) or waits (V26)."""
    await story.create(*racks("a0 a1 b0 b1"), *a_gang("g", pods=2, requests=GPU, topo=RACK))
    first = await story.until_bound(2)
    await story.until_event("GangScheduled")
    rack = first["g-0"][0]
    before = await story.pods()
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "g-0"}}
    await story.api.post(
        f"{PODS}/g-0/eviction", {**eviction, "deleteOptions": {"gracePeriodSeconds": 0}}
    )
    lost = await story.until_event("MemberTerminated")
    assert (lost["data"]["pod"], lost["data"]["cause"]) == ("default/g-0", "evicted")
    await story.create(member("g-2", "g", requests=GPU))
    bound = await story.until_bound(2)
    assert bound == {"g-1": first["g-1"], "g-2": first["g-0"]}, rack
    await no_leak(story)
    # the freed slot is taken by another pod: the minimum cannot be reached again
    refusal = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"}
    await story.api.patch(f"{PODS}/g-2/status", {"status": refusal})
    await eventually(lambda: _lost(story, 2))
    lost = (await story.service.events("MemberTerminated"))[-1]["data"]
    assert (lost["pod"], lost["cause"]) == ("default/g-2", "rejected-by-kubelet")
    assert lost["message"] == "UnexpectedAdmissionError: no such device"
    await story.api.delete(f"{PODS}/g-2", {"gracePeriodSeconds": 0})
    alien = member("alien", "", requests=GPU, nodeSelector={"kubernetes.io/hostname": first["g-0"]})
    await story.create(alien)
    await story.until_bound(2)
    await story.create(member("g-3", "g", requests=GPU))

    async def refused() -> bool:
        events = await story.service.events("GangUnschedulable")
        return bool(events) and events[-1]["data"]["outcome"] == "impossible"

    await eventually(refused)
    assert await reserved(story) == 0
    pods = await story.pods()
    assert "nodeName" not in pods["g-3"]["spec"]
    assert pods["g-1"]["metadata"]["uid"] == before["g-1"]["metadata"]["uid"]
    assert "deletionTimestamp" not in pods["g-1"]["metadata"]
    line = await gang_of(story, "g")
    assert line is not None
    assert (line["state"], line["bound"], line["reserved"]) == ("degraded", 1, 0)

    async def stays_scheduled() -> bool:
        # a condition is written half a second after it first differs
        group = await story.api.get(f"{GROUPS}/podgroups/g")
        found = {c["type"]: c["status"] for c in group.get("status", {}).get("conditions", ())}
        return found.get("PodGroupInitiallyScheduled") == "True"

    await eventually(stays_scheduled)
    await story.check_events()


async def _lost(story: Story, count: int) -> bool:
    return len(await story.service.events("MemberTerminated")) == count


@pytest.mark.full
async def test_a_node_that_registers_again_brings_its_members_along(story: Story) -> None:
    """The Node of a running kubelet is deleted: members are lost with it, and bound again when it is back."""
    await story.create(*racks("a0 a1"), *a_gang("g", pods=2, requests=GPU))
    first = await story.until_bound(2)
    await story.until_event("GangScheduled")
    await story.api.delete(f"/api/v1/nodes/{first['g-0']}")
    lost = await story.until_event("MemberTerminated")
    assert (lost["data"]["pod"], lost["data"]["cause"]) == ("default/g-0", "node-lost")
    await story.create(*racks(first["g-0"]))

    async def back() -> bool:
        line = await gang_of(story, "g")
        return line is not None and line["bound"] == 2

    await eventually(back)
    last = (await story.service.events("PodBound"))[-1]
    assert last["position"] > lost["position"]
    assert (last["data"]["pod"], last["data"]["node"]) == ("default/g-0", first["g-0"])
    assert await story.bound() == first
    await story.check_events()


@pytest.mark.full
async def test_nodes_relabelled_after_the_bind(story: Story) -> None:
    """Bound members in two racks: nothing moves, nothing new is placed, with the reason; put right, it goes on."""
    await story.create(*racks("a0 a1 a2"), *a_gang("g", pods=2, requests=GPU, topo=RACK))
    first = await story.until_bound(2)
    await story.until_event("GangScheduled")
    moved = first["g-1"]
    await story.api.patch(f"/api/v1/nodes/{moved}", {"metadata": {"labels": {RACK: "z"}}})
    changed = await story.until_event("NodeTopologyChanged", "default/g")
    assert changed["data"] == {"node": moved, "before": {RACK: "a"}, "after": {RACK: "z"}}
    await story.create(member("g-2", "g", requests=GPU))

    async def refused_since() -> dict[str, Any] | None:
        events = await story.service.events("GangUnschedulable")
        return next((f for f in events if f["position"] > changed["position"]), None)

    refused = await eventually(refused_since)
    assert any(RACK in reason for reason in refused["data"]["reasons"]), refused
    assert await story.bound() == first
    assert await reserved(story) == 0

    line = await gang_of(story, "g")
    assert line is not None
    assert line["reasons"] == refused["data"]["reasons"]

    async def pod_has_event() -> bool:
        return any(
            "the rest of PodGroup default/g waits" in e for e in await story.events_of("g-2")
        )

    await eventually(pod_has_event)
    await story.api.patch(f"/api/v1/nodes/{moved}", {"metadata": {"labels": {RACK: "a"}}})
    bound = await story.until_bound(3)
    assert {k: v for k, v in bound.items() if k != "g-2"} == first
    events = await story.check_events()
    assert [f["type"] for f in events].count("NodeTopologyChanged") == 2
    await no_leak(story)
