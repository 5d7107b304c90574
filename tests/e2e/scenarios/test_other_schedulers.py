"""Others who bind into reserved capacity: a second kube-scheduler, spec.nodeName, DaemonSets, an autoscaler.

None of them sees what we hold. Each time the outcome is the same: noticed from the pod watch, recorded with who it
was, the tree planned again as a whole, nothing promised twice, no gang half placed by us.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.waiting import create_priority_class
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.test_deleted_objects import held_before_bind, planned
from tests.e2e.scenarios.test_ordinary_pods import (
    GPU,
    Brake,
    count,
    nominated,
    of_daemonset,
    ordinary,
)
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
OTHER = "other-scheduler"


@asynccontextmanager
async def a_second_scheduler(story: Story) -> AsyncIterator[None]:
    """Run a stock kube-scheduler without our extender, under another name, on the same nodes."""
    config = {"profiles": [{"schedulerName": OTHER}]}
    story.plane.start_scheduler(config, name=OTHER, wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler, OTHER)
    try:
        yield
    finally:
        await asyncio.to_thread(story.plane.stop_scheduler, OTHER)


def thief(name: str, node: str) -> dict[str, Any]:
    """Make a pod of the second scheduler that takes all devices of a node."""
    there = {"kubernetes.io/hostname": node}
    return ordinary(name, GPU, schedulerName=OTHER, nodeSelector=there)


def who(released: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the pods that took the capacity of a release: name, scheduler, how."""
    return [(t["pod"], t["scheduler"], t["via"]) for t in released["data"]["taken_by"]]


@pytest.mark.full
async def test_a_second_scheduler_binds_into_reserved_capacity(story: Story) -> None:
    """Before the nomination, after it, in the middle of the barrier, and when some of the gang are bound."""
    async with a_second_scheduler(story):
        await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8))
        brake = Brake(story)
        await story.create(*a_gang("g", pods=2, requests=GPU))
        await story.until_event("GangAdmitted", "default/g")

        # 1. In the log only; 2. nominated as well: the second scheduler looks at neither.
        for turn in (0, 1):
            rooms = await count(story, "GangAdmitted", turn + 1)
            node = planned(rooms[-1])["g-0"]
            if turn:
                brake.nominations = False
                await eventually(lambda: nominated(story))
            await story.create(thief(f"thief-{turn}", node))
            await story.until_bound(1, f"thief-{turn}")
            released = (await count(story, "ReservationReleased", turn + 1))[-1]
            assert (released["data"]["reason"], len(released["data"]["pods"])) == ("superseded", 2)
            assert who(released) == [(f"default/thief-{turn}", OTHER, "unaware")]
            assert f"(scheduler {OTHER}, priority 0)" in released["summary"]
            assert not await story.bound("g-")
            await story.create(a_node(f"n{turn + 2}", gpu=8))

        # 3. One member waits at the barrier, the other is on its way there.
        await count(story, "GangAdmitted", 3)
        async with held_before_bind(story, 2) as reached:
            brake.gates = False
            await reached()
            node = planned((await count(story, "GangAdmitted", 3))[-1])["g-0"]
            await story.create(thief("thief-2", node))
            await story.until_bound(1, "thief-2")
            released = (await count(story, "ReservationReleased", 3))[-1]
            assert who(released) == [("default/thief-2", OTHER, "unaware")]
            assert not await story.bound("g-")
        await story.create(a_node("n4", gpu=8))
        assert set((await story.until_bound(2, "g-")).values()).isdisjoint(
            (await story.bound("thief-")).values()
        )
        await story.until_event("GangScheduled", "default/g")

        # 4. Some of it are bound: only what was taken is given back, and the gang is completed.
        await story.create(*(a_node(f"m{i}", gpu=8) for i in range(3)))
        await _one_binding_fails(story, "h-2")
        await story.create(*a_gang("h", pods=3, requests=GPU))
        await story.until_bound(2, "h-")
        first = planned(await story.until_event("GangAdmitted", "default/h"))
        await story.create(thief("thief-3", first["h-2"]))
        await story.until_bound(1, "thief-3")
        released = (await count(story, "ReservationReleased", 4))[-1]
        assert [p["pod"] for p in released["data"]["pods"]] == ["default/h-2"]
        story.server.before = None
        await story.create(a_node("m3", gpu=8))
        bound = await story.until_bound(3, "h-")
        assert {n: bound[n] for n in ("h-0", "h-1")} == {n: first[n] for n in ("h-0", "h-1")}
        assert bound["h-2"] == "m3"
        await story.until_event("GangScheduled", "default/h")
    assert len(await story.service.events("ReservationReleased")) == 4, "no loop"
    lines = story.service.lines("reserved capacity was used")
    assert [line["scheduler"] for line in lines] == [OTHER] * 4
    assert all("taint" in line["advice"] for line in lines)


async def _one_binding_fails(story: Story, pod: str) -> None:
    """Let the API server be away for the Binding of one pod."""

    async def away(method: str, path: str) -> web.Response | None:
        failing = method == "POST" and path.endswith(f"/pods/{pod}/binding")
        return web.Response(status=503) if failing else None

    story.server.before = away


@pytest.mark.long
async def test_who_names_the_node_itself(story: Story) -> None:
    """A pod made with spec.nodeName takes reserved capacity over and over; each time the whole gang plans again, later."""
    brake = Brake(story)
    brake.nominations = False
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    for turn in range(4):
        rooms = await count(story, "GangAdmitted", turn + 1)
        node = planned(rooms[-1])["g-0"]
        await story.create(ordinary(f"direct-{turn}", GPU, nodeName=node))
        released = (await count(story, "ReservationReleased", turn + 1))[-1]
        assert who(released) == [(f"default/direct-{turn}", "default-scheduler", "unaware")]
        assert len(released["data"]["pods"]) == 2
        await story.create(a_node(f"n{turn + 2}", gpu=8))
    again = await count(story, "GangAdmitted", 5)
    waits = await _seconds_between(story, again)
    assert waits[2] < waits[3], waits  # 2 s and 4 s, and what a pass takes
    brake.gates = False
    await story.until_bound(2, "g-")
    name = 'gang_extender_reserved_capacity_used_by_others_total{via="unaware"}'
    assert await story.service.metric(name) == 4
    await story.check_events()
    await story.check_capacity()


async def _seconds_between(story: Story, admitted: list[dict[str, Any]]) -> list[float]:
    """Return how long after each release the tree was planned again."""
    released = await story.service.events("ReservationReleased")
    return [
        (datetime.fromisoformat(a["time"]) - datetime.fromisoformat(r["time"])).total_seconds()
        for r, a in zip(released, admitted[1:], strict=True)
    ]


@pytest.mark.long
async def test_capacity_is_left_for_daemonsets_that_are_known_to_come(story: Story) -> None:
    """A pod that waits for its only node is planned for before it is there; one that does not fit holds nothing up."""
    await create_priority_class(story.api, "low", -10)
    half = {"nvidia.com/gpu": 4}
    await asyncio.to_thread(story.plane.schedulers["scheduler"].pause)
    try:
        await story.create(a_node("n0", gpu=8))
        await story.create(of_daemonset("driver", "n0", half))
        await story.create(of_daemonset("idle", "n0", half, priorityClassName="low"))
        await story.create(of_daemonset("giant", "n0", {"nvidia.com/gpu": 16}))
        await story.create(*a_gang("w", pods=1, requests=GPU), *a_gang("h", pods=1, requests=half))
        await story.until_event("GangUnschedulable", "default/w")
        await story.until_event("GangAdmitted", "default/h")
    finally:
        story.plane.schedulers["scheduler"].resume()
    await story.until_bound(1, "h-")
    assert await story.until_bound(1, "driver") == {"driver": "n0"}
    assert not await story.service.events("ReservationReleased")
    # Capacity of a DaemonSet unknown at the time is taken all the same; that is recorded.
    await create_priority_class(story.api, "high", 1000)
    Brake(story)
    await story.create(a_node("n1", gpu=8))
    await story.until_bound(1, "w-")
    await story.create(a_node("n2", gpu=8), *a_gang("g", pods=1, requests=GPU))
    await story.until_event("GangAdmitted", "default/g")
    await story.create(of_daemonset("net", "n2", half, priorityClassName="high"))
    await story.until_bound(1, "net")
    released = await story.until_event("ReservationReleased", reason="superseded")
    assert who(released) == [("default/net", "default-scheduler", "pinned")]
    story.server.before = None
    await story.create(a_node("n3", gpu=8))
    assert await story.until_bound(1, "g-") == {"g-0": "n3"}
