"""Pods outside all gangs beside gangs, in each of the three scopes of deploy/kubernetes/scopes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.controlplane.objects import condition_of
from tests.controlplane.waiting import create_priority_class
from tests.e2e.scenarios.conftest import DEPLOY, Story, member
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
CPU = {"cpu": "1"}
PODS = "/api/v1/namespaces/default/pods"
OURS = "capacity is reserved for a gang of equal or higher priority"
SCOPES = ("marker-resource", "contended-resource", "everything")


def ordinary(name: str, requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Make a pod that names no group."""
    return member(name, "", requests=requests, **spec)


async def use_scope(story: Story, scope: str) -> None:
    """Restart kube-scheduler with another of our configurations."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    story.plane.start_scheduler(story.scheduler_config(f"scopes/{scope}"), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)


class Brake:
    """Holds back what our service does for the members of `g`: their nominations, or the lifting of their gate."""

    def __init__(self, story: Story) -> None:
        self.nominations = self.gates = True
        story.server.before = self._hold

    async def _hold(self, method: str, path: str) -> web.Response | None:
        if method != "PATCH" or "/pods/g-" not in path:
            return None
        held = self.nominations if path.endswith("/status") else self.gates
        return web.Response(status=503) if held else None


async def refused(story: Story, *pods: str) -> dict[str, str]:
    """Wait until kube-scheduler has tried some pods in vain, and give its words."""

    async def look() -> dict[str, str] | None:
        found = {}
        there = await story.pods()
        for name in pods:
            assert "nodeName" not in there[name]["spec"], f"{name} was bound"
            condition = condition_of(there[name], "PodScheduled")
            if condition is not None and condition["status"] == "False":
                found[name] = condition.get("message", "")
        return found if len(found) == len(pods) else None

    return await story.until(look)


async def drop(story: Story, *pods: str) -> None:
    for name in pods:
        await story.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})


async def count(story: Story, kind: str, many: int) -> list[dict[str, Any]]:
    """Wait until so many events of a kind are there."""

    async def look() -> list[dict[str, Any]] | None:
        found = await story.service.events(kind)
        return found if len(found) >= many else None

    return await story.until(look)


async def nominated(story: Story) -> bool:
    """Return whether both members of `g` have their node."""
    pods = await story.pods()
    return all(pods[f"g-{n}"]["status"].get("nominatedNodeName") for n in range(2))


def test_the_default_configuration_is_the_marker_scope() -> None:
    """The scope of the files in the runbook is the first scope."""
    first, second = (
        yaml.safe_load((DEPLOY / name).read_text())
        for name in ("scheduler-config.yaml", "scopes/marker-resource.yaml")
    )
    assert first == second


@pytest.mark.kubernetes("1.37", "1.36")
async def test_an_absent_gang_and_a_stopped_extender_hinder_no_ordinary_pod(story: Story) -> None:
    """Marker scope: ordinary pods never reach us; a gang that waits, and then our absence, change nothing."""
    gang = a_gang("absent", pods=7, minimum=8, requests=GPU)
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8), *gang)
    await story.until_event("GangUnschedulable")
    await story.create(*(ordinary(f"one-{n}", CPU) for n in range(20)), ordinary("gpu-1", GPU))
    await story.until_bound(20, "one-")
    await story.until_bound(1, "gpu-1")
    await asyncio.to_thread(story.service.stop)
    await story.create(*(ordinary(f"two-{n}", CPU) for n in range(20)), ordinary("gpu-2", GPU))
    await story.until_bound(20, "two-")
    await story.until_bound(1, "gpu-2")
    assert not await story.bound("absent")
    assert not [path for _, path in story.verbs.seen if "/scheduler/" in path]


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("scope", SCOPES)
async def test_reserved_capacity_in_every_scope(story: Story, scope: str) -> None:
    """Equal and lower priority never get reserved capacity (marker: once it is nominated); higher priority takes it, recorded."""
    await use_scope(story, scope)
    await create_priority_class(story.api, "low", -10)
    await create_priority_class(story.api, "high", 1000)
    brake = Brake(story)
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8))
    await story.create(*a_gang("absent", pods=1, minimum=2, requests=GPU))
    await story.create(*a_gang("g", pods=2, requests=GPU), ordinary("cpu", CPU))
    await story.until_bound(
        1, "cpu"
    )  # neither the absent gang nor the reserved capacity is in its way
    await story.until_event("GangAdmitted", "default/g")

    # 1. The capacity is in the log, kube-scheduler has no sign of it yet.
    rivals = [ordinary("equal", GPU), ordinary("lower", GPU, priorityClassName="low")]
    if scope == "marker-resource":
        await story.create(rivals[0])
        # never shown to us: the gang loses its capacity, as a whole
        await story.until_bound(1, "equal")
        released = await count(story, "ReservationReleased", 1)
        assert released[0]["data"]["reason"] == "superseded"
        assert len(released[0]["data"]["pods"]) == 2
        assert not await story.bound("g-")
        await drop(story, "equal")
        await count(story, "GangAdmitted", 2)
    else:
        await story.create(*rivals)
        words = await refused(story, "equal", "lower")
        assert all(OURS in text for text in words.values()), words
        await drop(story, "equal", "lower")

    # 2. It is nominated: kube-scheduler itself keeps it, in every scope.
    brake.nominations = False
    await eventually(lambda: nominated(story))
    await story.create(*rivals)
    await refused(story, "equal", "lower")
    await drop(story, "equal", "lower")
    releases = len(await story.service.events("ReservationReleased"))

    # 3. Higher priority takes it: recorded, and the tree goes elsewhere, whole.
    await story.create(a_node("n2", gpu=8))
    node = (await story.pods())["g-0"]["status"]["nominatedNodeName"]
    there = {"kubernetes.io/hostname": node}
    await story.create(ordinary("higher", GPU, priorityClassName="high", nodeSelector=there))
    assert await story.until_bound(1, "higher") == {"higher": node}
    released = await count(story, "ReservationReleased", releases + 1)
    assert released[-1]["data"]["reason"] == "superseded"
    assert "other pods took the capacity of default/g-0" in released[-1]["data"]["message"]
    assert not await story.bound("g-")
    brake.gates = False
    bound = await story.until_bound(2, "g-")
    assert set(bound.values()) == {"n0", "n1", "n2"} - {node}
    await story.until_event("GangScheduled", "default/g")
    assert sum(line["reserved"] for line in await story.service.get("/v1/gangs")) == 0
    await story.check_events()
    await story.check_capacity()

    # 4. Without the extender: who still gets a node is the price of the scope.
    await asyncio.to_thread(story.service.stop)
    await story.create(a_node("n3", gpu=8), ordinary("late-cpu", CPU), ordinary("late-gpu", GPU))
    free = {"marker-resource": {"late-cpu", "late-gpu"}, "contended-resource": {"late-cpu"}}
    served = free.get(scope, set())
    for name in sorted(served):
        await story.until_bound(1, name)
    if waiting := {"late-cpu", "late-gpu"} - served:
        await refused(story, *waiting)
    assert set(await story.bound("late-")) == served
    await story.service.start()
    await story.until_bound(2, "late-")
    asked = {line["pod"] for line in story.service.calls("filter")}
    assert ("default/late-gpu" in asked) == (scope != "marker-resource"), asked
    assert ("default/late-cpu" in asked) == (scope == "everything"), asked


def of_daemonset(name: str, node: str, requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Make a pod as the DaemonSet controller does: pinned to one node by name, tolerating its troubles."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    term = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    troubles = ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "unschedulable")
    return ordinary(
        name,
        requests,
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
        tolerations=[
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists"} for key in troubles
        ],
        **spec,
    )


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.lived_in("long")
async def test_capacity_that_is_reserved_and_not_nominated(story: Story, scope: str) -> None:
    """A pod of higher priority takes it, and so does a DaemonSet's; each time the whole tree plans again."""
    await use_scope(story, scope)
    await create_priority_class(story.api, "high", 1000)
    brake = Brake(story)
    await story.create(*(a_node(name, gpu=8) for name in ("n0", "n1")))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    await story.until_event("GangAdmitted", "default/g")

    # 1. Beside reserved capacity everything of a DaemonSet passes; no gang loses anything.
    await story.create(*(of_daemonset(f"log-{n}", n, CPU) for n in ("n0", "n1")))
    assert await story.until_bound(2, "log-") == {"log-n0": "n0", "log-n1": "n1"}
    assert not await story.service.events("ReservationReleased")

    # 2. Higher priority takes capacity that kube-scheduler does not know of.
    there = {"kubernetes.io/hostname": "n0"}
    await story.create(ordinary("higher", GPU, priorityClassName="high", nodeSelector=there))
    assert await story.until_bound(1, "higher") == {"higher": "n0"}
    released = await count(story, "ReservationReleased", 1)
    assert released[0]["data"]["reason"] == "superseded"
    assert {p["pod"] for p in released[0]["data"]["pods"]} == {"default/g-0", "default/g-1"}
    assert not [p for p in (await story.pods()).values() if p["status"].get("nominatedNodeName")]
    await story.create(a_node("n2", gpu=8))
    planned = (await count(story, "GangAdmitted", 2))[1]["data"]["assignments"]
    assert {a["node"] for a in planned} == {"n1", "n2"}

    # 3. A DaemonSet's pod has nowhere else to go: it passes, of whatever priority, and that is recorded.
    await story.create(of_daemonset("driver-n1", "n1", {"nvidia.com/gpu": 1}))
    await story.until_bound(1, "driver-")
    released = await count(story, "ReservationReleased", 2)
    assert released[1]["data"]["reason"] == "superseded"
    assert len(released[1]["data"]["pods"]) == 2, "nothing of it is bound: the whole tree"
    assert not await story.bound("g-")

    # 4. The tree ends up elsewhere, whole, and DaemonSets pass beside its nominations too.
    await story.create(a_node("n3", gpu=8))
    await count(story, "GangAdmitted", 3)
    brake.nominations = False
    await eventually(lambda: nominated(story))
    await story.create(*(of_daemonset(f"net-{n}", n, CPU) for n in ("n2", "n3")))
    assert await story.until_bound(2, "net-") == {"net-n2": "n2", "net-n3": "n3"}
    brake.gates = False
    assert set((await story.until_bound(2, "g-")).values()) == {"n2", "n3"}
    await story.until_event("GangScheduled", "default/g")
    await story.check_events()
    await story.check_capacity()
    asked = {line["pod"] for line in story.service.calls("filter")}
    assert ("default/driver-n1" in asked) == (scope != "marker-resource"), asked
    assert ("default/log-n0" in asked) == (scope == "everything"), asked
