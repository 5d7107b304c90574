"""Volumes and claims that kube-scheduler commits before bind, and the capacity of lost members (K35).

kube-scheduler's VolumeBinding and DynamicResources plugins commit, kube-controller-manager binds volumes and makes
claims of templates; the test publishes the devices as a driver would.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.objects import MEMBER
from tests.controlplane.plane import ControlPlane
from tests.e2e.scenarios.conftest import Story, real
from tests.e2e.scenarios.intercept import Intercept, cannot, intercept, pod_of
from tests.e2e.scenarios.test_devices_and_volumes import (
    DEVICE_CLASS,
    DRA,
    GPU,
    LOCAL,
    Object,
    claim,
    create_claiming,
    device_of,
    device_template,
    events_of,
    gang_with_disks,
    nodes,
    things,
    volume,
    with_disk,
)
from tests.support.service.manifest_builders import a_gang, a_node, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
__all__ = ["intercept"]

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
HOLD_S = 20  # a busy machine takes seconds from a loss to the Binding of the replacement


@pytest.fixture
def controllers(site: ControlPlane) -> Iterator[None]:
    """Volumes are bound, and claims made of templates; started here, in the main thread."""
    site.start_controller_manager(
        ("resourceclaim-controller", "persistentvolume-binder-controller")
    )
    yield
    site.stop_controller_manager()


def plans_of(events: list[Object], gang: str) -> list[dict[str, str]]:
    """Return pod -> node of every admission of a gang."""
    return [
        {a["pod"].partition("/")[2]: a["node"] for a in f["data"]["assignments"]}
        for f in events
        if f["type"] == "GangAdmitted" and f["gang"] == f"default/{gang}"
    ]


async def check_volumes(story: Story, bound: dict[str, str]) -> None:
    """Check that the claim of each pod is bound to the disk of its node."""
    for name, node in bound.items():
        assert (await story.api.get(f"{CLAIMS}/{name}"))["spec"]["volumeName"] == f"disk-{node}"


async def check_devices(story: Story, bound: dict[str, str]) -> None:
    """Check that each pod has its claim, with the device of its node, for itself alone."""
    pods = await story.pods()
    listed = (await story.api.get(f"/apis/{DRA}/namespaces/default/resourceclaims"))["items"]
    claims = {c["metadata"]["name"]: c["status"] for c in listed}
    assert len(claims) == len(bound)
    for name, node in bound.items():
        (mine,) = pods[name]["status"]["resourceClaimStatuses"]
        status = claims[mine["resourceClaimName"]]
        assert [r["pool"] for r in status["allocation"]["devices"]["results"]] == [node]
        assert [r["uid"] for r in status["reservedFor"]] == [pods[name]["metadata"]["uid"]]


@pytest.mark.full
@pytest.mark.settings(barrier_timeout_s="4")
async def test_gangs_end_consistent_after_an_expired_barrier(
    controllers: None, intercept: Intercept, story: Story
) -> None:
    """A gang with volumes and one with claims lose a barrier half way, what is committed pins them, and all run.

    Of `v` and `d` one member is never let through filter at first: the other has its volume, or its device, and waits
    at bind in vain. Of `m` one member without any never reaches bind: its volume is not bound meanwhile.
    """
    stuck = {"v-1", "d-1", "m-1"}

    async def lose(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        return cannot("lost on its way") if pod_of(request.path, body) in stuck else None

    intercept.call = lose
    await story.create(*nodes(8))
    names = [f"n{i}" for i in range(8)]
    disks = [volume(f"disk-{n}", n) for n in names]
    claims = [claim(n) for n in ("v-0", "v-1", "m-2")]
    devices = [DEVICE_CLASS, *(device_of(n) for n in names), device_template("device")]
    async with things(story, LOCAL, *disks, *claims, *devices):
        group, *plain = a_gang("m", pods=3, requests=GPU)
        mixed = [group, *plain[:2], with_disk(plain[2], "m-2")]
        await story.create(*gang_with_disks("v", 2), *mixed)
        await create_claiming(story, "d", 2)
        for gang in ("v", "d", "m"):
            await story.until_event("BindBarrierTimedOut", f"default/{gang}")
        assert await story.bound() == {}
        kept = (await story.api.get(f"{CLAIMS}/v-0"))["spec"]["volumeName"]
        assert kept, "it was committed before bind"
        assert not (await story.api.get(f"{CLAIMS}/m-2"))["spec"].get("volumeName")
        stuck.clear()
        bound = await story.until_bound(7)
        assert len(set(bound.values())) == 7, "one node each"
        await check_volumes(story, {n: bound[n] for n in ("v-0", "v-1", "m-2")})
        await check_devices(story, {n: bound[n] for n in ("d-0", "d-1")})
        assert kept == f"disk-{bound['v-0']}"
        events = await story.check_events()
        assert not events_of(events, "NodeRejected")
        for gang in ("v", "d", "m"):
            first, *later = plans_of(events, gang)
            assert later, gang
            assert all(plan == first for plan in later), (gang, first, later)
            assert first.items() <= bound.items(), gang


async def terminated(story: Story, name: str) -> Object:
    """Let a member terminate, as pods do; its capacity is held before it is free, so no scheduler is faster than our watch."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    await story.api.delete(path, {"gracePeriodSeconds": 2})
    lost = await story.until_event("MemberTerminated", "default/g", pod=f"default/{name}")
    await story.api.delete(path, {"gracePeriodSeconds": 0})
    return lost


@pytest.mark.full
@pytest.mark.settings(replacement_ttl_s=str(HOLD_S))
async def test_the_capacity_of_a_lost_member_is_held_for_its_replacement(story: Story) -> None:
    """Lost, replaced, lost again: a gang and a pod that wait get nothing before the time is over, nor by a kill -9."""
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8))
    await story.create(*a_gang("g", pods=2, requests=GPU))
    where = await story.until_bound(2, prefix="g-")
    await story.create(*a_gang("rival", pods=1, requests=GPU))
    # A pod outside of all groups that passes filter, as in a scope that has devices in it.
    alone = real(a_pod("alone", requests={**GPU, MEMBER: 1}))
    await story.api.create(alone)
    await story.until_event("GangUnschedulable", "default/rival")

    lost = await terminated(story, "g-0")
    assert lost["data"]["held_until_us"] > 0
    await story.create(a_pod("g-new", "g", requests=GPU))
    bound = await story.until_bound(2, prefix="g-")
    assert bound == {"g-1": where["g-1"], "g-new": where["g-0"]}
    assert not await story.bound("rival")
    assert not await story.bound("alone")

    lost = await terminated(story, "g-new")
    story.service.kill()
    await story.service.start()
    released = await story.until_event("ReservationReleased", "default/g", reason="expired")
    assert [p["pod"] for p in released["data"]["pods"]] == ["default/g-new"]
    ended_us = datetime.fromisoformat(released["time"]).timestamp() * 1e6
    assert ended_us >= lost["data"]["held_until_us"], "what was promised holds across the restart"

    async def taken() -> dict[str, str]:
        return {**await story.bound("rival"), **await story.bound("alone")}

    found = await story.until(taken)
    assert list(found.values()) == [where["g-0"]]
    held = [f for f in await story.check_events() if f["type"] == "GangAdmitted"]
    early = [
        f for f in held if f["gang"] == "default/rival" and f["position"] < released["position"]
    ]
    assert not early
