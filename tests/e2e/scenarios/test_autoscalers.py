"""Autoscalers, played by the test: what they see of gangs that wait, and what they do to nodes.

An autoscaler looks for pods with PodScheduled=False, reason Unschedulable, and asks kube-scheduler's own filters,
without our extender, whether a node of a group would take them; a stock kube-scheduler stands for that here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controlplane.objects import condition_of
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.test_deleted_objects import planned
from tests.e2e.scenarios.test_ordinary_pods import GPU, PODS, Brake, count, ordinary, refused
from tests.support.service.manifest_builders import a_gang, a_node

pytestmark = [pytest.mark.e2e, pytest.mark.long]
MARKERS = {"gang-extender.dev/member": 1, "gang-extender.dev/bind": 1}
LEAVING = "ToBeDeletedByClusterAutoscaler"  # the taint that cluster-autoscaler sets before it deletes a node


async def reasons(story: Story, prefix: str) -> set[str]:
    """Return the reasons why some pods are not scheduled, as autoscalers read them."""
    found = set()
    for name, pod in (await story.pods()).items():
        condition = condition_of(pod, "PodScheduled") if name.startswith(prefix) else None
        if condition is not None and condition["status"] == "False":
            found.add(condition["reason"])
    return found


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(True, marks=pytest.mark.settings(unschedulable_gates="remove"), id="remove"),
        pytest.param(False, id="keep"),
    ],
)
async def test_a_gang_without_capacity_is_shown_to_autoscalers_where_that_is_set(
    story: Story, shown: bool
) -> None:
    """Only a complete gang is shown, whole; a node without markers is enough for it to run."""
    await story.create(a_node("n0", gpu=8))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    await story.create(*a_gang("absent", pods=1, minimum=2, requests=GPU))
    await story.until_event("GangUnschedulable", "default/g", outcome="impossible")
    await story.until_event("GangUnschedulable", "default/absent", outcome="waiting")
    wanted = {"Unschedulable" if shown else "SchedulingGated"}

    async def seen() -> bool:
        return await reasons(story, "g-") == wanted

    await story.until(seen)
    if shown:
        words = await refused(story, "g-0", "g-1")
        assert all("gang default/g: no capacity for its minimum" in w for w in words.values()), (
            words
        )
    assert await reasons(story, "absent-") == {"SchedulingGated"}
    await story.create(a_node("n1", gpu=8))  # the group grows; its nodes advertise no marker
    assert set((await story.until_bound(2, "g-")).values()) == {"n0", "n1"}
    await story.until_event("GangScheduled", "default/g")


async def test_what_an_autoscaler_makes_of_the_markers(story: Story) -> None:
    """Its simulation finds capacity only on nodes that advertise them, or when it is configured to ignore them."""
    ignored = {"name": "NodeResourcesFit", "args": {"ignoredResourceGroups": ["gang-extender.dev"]}}
    config = {
        "profiles": [
            {"schedulerName": "simulation"},
            {"schedulerName": "ignoring", "pluginConfig": [ignored]},
        ]
    }
    story.plane.start_scheduler(config, name="simulation", wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler, "simulation")

    def probe(name: str, scheduler: str, node: str) -> dict[str, Any]:
        there = {"kubernetes.io/hostname": node}
        return ordinary(name, {**GPU, **MARKERS}, schedulerName=scheduler, nodeSelector=there)

    try:
        await story.create(a_node("plain", gpu=8), a_node("ignored", gpu=8))
        await story.create(a_node("marked", gpu=8, **dict.fromkeys(MARKERS, 1000)))
        await story.create(
            probe("probe-plain", "simulation", "plain"),
            probe("probe-marked", "simulation", "marked"),
            probe("probe-ignored", "ignoring", "ignored"),
        )
        assert await story.until_bound(1, "probe-marked")
        assert await story.until_bound(1, "probe-ignored")
        words = await refused(story, "probe-plain")
        assert "Insufficient gang-extender.dev/member" in words["probe-plain"], words
    finally:
        await asyncio.to_thread(story.plane.stop_scheduler, "simulation")
    await story.api.delete(f"{PODS}/probe-marked", {"gracePeriodSeconds": 0})
    await story.create(*a_gang("g", pods=2, requests=GPU))
    assert set((await story.until_bound(2, "g-")).values()) == {"plain", "marked"}


async def test_an_autoscaler_removes_nodes_that_are_reserved(story: Story) -> None:
    """They look empty to it: tainted, then deleted. Each time the whole gang plans again elsewhere."""
    brake = Brake(story)
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(3)))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    first = planned((await count(story, "GangAdmitted", 1))[0])["g-0"]
    await story.kubectl("taint", "node", first, f"{LEAVING}=1:NoSchedule")
    released = (await count(story, "ReservationReleased", 1))[0]["data"]
    assert (released["reason"], len(released["pods"]), released["taken_by"]) == ("node-lost", 2, [])
    assert f"node {first} has a taint that the pod does not tolerate" in released["message"]
    await story.api.delete(f"/api/v1/nodes/{first}")
    brake.nominations = False  # nominated by now, and the next node goes without a warning
    second = planned((await count(story, "GangAdmitted", 2))[1])["g-0"]
    await story.api.delete(f"/api/v1/nodes/{second}")
    released = (await count(story, "ReservationReleased", 2))[1]["data"]
    assert (released["reason"], len(released["pods"])) == ("node-lost", 2)
    assert f"node {second} is gone" in released["message"]
    assert not await story.bound("g-")
    await story.create(a_node("n9", gpu=8))
    brake.gates = False
    bound = await story.until_bound(2, "g-")
    assert {first, second}.isdisjoint(bound.values())
    await story.until_event("GangScheduled", "default/g")
