"""Differences between cluster and log, planted one by one: an event, a metric, a line, and repair by events alone.

A client with all rights does what no client should: binds, re-nominates, removes gates, writes to the log.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from aiohttp import web

from extender.core.log.events import PodBound, RecordedEvent
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid, Position
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.controlplane.api import ApiError
from tests.controlplane.objects import GATE
from tests.e2e.scenarios.conftest import DEPLOY, Story, member
from tests.e2e.scenarios.intercept import Intercept, intercept
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

__all__ = ["intercept"]

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
GPU = {"nvidia.com/gpu": 8}
PODS = "/api/v1/namespaces/default/pods"
PLAN = "gang-extender.dev/plan"


class Held:
    """A gang of two with its capacity and its gates off, kept from the bind verb until `let_go`."""

    def __init__(self, story: Story, intercept: Intercept) -> None:
        self.story = story
        self._free = asyncio.Event()
        intercept.call = self._keep

    async def _keep(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        # an error would make kube-scheduler erase the nomination
        if request.path.endswith("/bind"):
            await self._free.wait()
        return None

    def let_go(self) -> None:
        self._free.set()

    async def admitted(self, name: str = "a", pods: int = 2) -> dict[str, str]:
        """Return pod -> node of the reservations, once all are nominated and let go."""
        await self.story.create(*a_gang(name, pods=pods, requests=GPU))
        entry = await self.story.until_event("GangAdmitted", f"default/{name}")
        where = {a["pod"].partition("/")[2]: a["node"] for a in entry["data"]["assignments"]}

        async def carried_out() -> bool:
            found = await self.story.pods()
            return all(
                found[pod]["status"].get("nominatedNodeName") == node
                and not found[pod]["spec"].get("schedulingGates")
                for pod, node in where.items()
            )

        await eventually(carried_out)
        return where


async def bind(story: Story, pod: str, node: str, plan: str = "") -> None:
    """Post a Binding with a foreign hand."""
    metadata: dict[str, Any] = {"name": pod}
    if plan:
        metadata["annotations"] = {PLAN: plan}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    await story.api.post(f"{PODS}/{pod}/binding", body)


async def drift_reported(story: Story, kind: str, *pods: str) -> list[dict[str, Any]]:
    """Wait for the events of a kind, exactly one per pod, with metric and line; return all events."""

    async def look() -> bool:
        return len(await of_kind(story, kind)) >= len(pods)

    await story.until(look)
    found = await of_kind(story, kind)
    assert sorted(f["data"]["object"] for f in found) == [f"Pod/default/{p}" for p in sorted(pods)]

    def lines() -> list[dict[str, Any]]:
        return [line for line in story.service.lines("drift") if line["kind"] == kind]

    async def counted_and_logged() -> bool:
        counted = await story.service.metric("gang_extender_drift_detected_total", kind)
        return counted >= len(pods) and len(lines()) >= len(pods)

    await story.until(counted_and_logged)
    assert await story.service.metric("gang_extender_drift_detected_total", kind) == len(pods)
    assert [line["level"] for line in lines()] == ["ERROR"] * len(pods)
    return await story.service.events()


async def of_kind(story: Story, kind: str) -> list[dict[str, Any]]:
    return [f for f in await story.service.events("DriftDetected") if f["data"]["kind"] == kind]


async def gang_of(story: Story, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await story.service.get(f"/v1/gangs/default/{name}")
    return found


async def whole(story: Story, name: str, pods: int) -> None:
    """Wait until what the service has of a gang is what the cluster has: all bound, each where it runs."""

    async def same() -> bool:
        gang, bound = await gang_of(story, name), await story.bound(f"{name}-")
        shown = {m["pod"].partition("/")[2]: m["node"] for m in gang["members"]}
        return len(bound) == pods and shown == bound and gang["bound"] == pods

    await eventually(same)
    await story.check_capacity()


async def looked(story: Story, name: str) -> None:
    """Wait until the service has seen what was done to pods before; they come in order."""
    huge = {"nvidia.com/gpu": 999}
    await story.create(*a_gang(name, pods=1, requests=huge))
    await story.until_event("GangUnschedulable", f"default/{name}", outcome="impossible")


def types_of(entries: list[dict[str, Any]], pod: str) -> list[str]:
    """Return the types of the events about one pod."""
    return [f["type"] for f in entries if f["data"].get("pod") == f"default/{pod}"]


async def nodes(story: Story, count: int) -> None:
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(count)))


async def test_a_foreign_hand_binds_a_member_elsewhere(intercept: Intercept, story: Story) -> None:
    """The member counts where it runs, its capacity is free again, the rest of the gang follows."""
    held = Held(story, intercept)
    await nodes(story, 3)
    where = await held.admitted()
    (free,) = {"n0", "n1", "n2"} - set(where.values())
    await bind(story, "a-0", free)
    entries = await drift_reported(story, "bound-elsewhere", "a-0")
    (bound,) = [f for f in entries if f["type"] == "PodBound"]
    assert bound["data"]["node"] == free
    held.let_go()
    await whole(story, "a", 2)
    await asyncio.to_thread(story.service.stop)


async def remove_gate(story: Story, pod: str) -> None:
    """Remove our gate without the service, which takes the policy for it to be switched off."""
    await story.kubectl("delete", "validatingadmissionpolicybinding", "gang-extender-gate")
    patch = {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}

    async def removed() -> bool:
        try:
            await story.api.patch(f"{PODS}/{pod}", patch, "strategic")
        except ApiError:  # the policy ends in its own time
            return False
        return True

    await story.until(removed)
    file = str(DEPLOY / "confinement.yaml")
    await story.kubectl("apply", "--server-side", "--force-conflicts", "-f", file)


@pytest.mark.full
async def test_a_foreign_hand_binds_what_was_never_admitted(story: Story) -> None:
    """Gate removed and bound by an administrator, as in the runbook, while the gang waits for a member."""
    await nodes(story, 2)
    await story.create(*a_gang("a", pods=2, requests=GPU)[:-1])
    await story.until_event("GangUnschedulable", "default/a")
    await remove_gate(story, "a-0")
    await bind(story, "a-0", "n1")
    entries = await drift_reported(story, "bound-outside-admission", "a-0")
    assert types_of(entries, "a-0") == ["PodBound"]
    (container,) = a_gang("a", pods=1, requests=GPU)[-1]["spec"]["containers"]
    await story.create(member("a-1", "a", containers=[container]))
    await whole(story, "a", 2)
    assert (await story.bound())["a-1"] == "n0", (
        "the capacity of the stranger's pod is not given twice"
    )
    await asyncio.to_thread(story.service.stop)


@pytest.mark.full
async def test_a_binding_names_an_unknown_plan(intercept: Intercept, story: Story) -> None:
    """On the very node of the reservation, so only the annotation shows it."""
    held = Held(story, intercept)
    await nodes(story, 2)
    where = await held.admitted()
    await bind(story, "a-0", where["a-0"], plan="00000000-0000-7000-8000-000000000000")
    await drift_reported(story, "bound-by-unknown-plan", "a-0")
    held.let_go()
    await whole(story, "a", 2)
    assert await story.bound() == where
    await asyncio.to_thread(story.service.stop)


@pytest.mark.full
@pytest.mark.parametrize("plant", ["elsewhere", "waiting"])
async def test_the_log_has_a_member_bound_where_it_is_not(
    story: Story, database_url: str, plant: str
) -> None:
    """A false event in the log, with a good hash: the cluster is right, and the log is corrected by events."""
    await nodes(story, 3)
    await story.create(*a_gang("a", pods=2, requests=GPU))
    await story.until_bound(2)
    await story.until_event("GangScheduled", "default/a")
    name = "a-0"
    if (
        plant == "waiting"
    ):  # another gang, which has no capacity: the log will have that one of it runs
        name = "b-0"
        await story.create(*a_gang("b", pods=2, requests=GPU))
        await story.until_event("GangUnschedulable", "default/b")
    pod = (await story.pods())[name]
    runs_on = pod["spec"].get("nodeName")
    (false,) = {"n0", "n1", "n2"} - set((await story.bound()).values())
    await asyncio.to_thread(story.service.stop)
    forged = await forge(database_url, pod, NodeName(false))
    await story.service.start()
    kind = "bound-elsewhere" if plant == "elsewhere" else "not-bound"
    entries = await drift_reported(story, kind, name)
    after = entries[forged:]
    lost = [f for f in after if f["type"] == "MemberTerminated"]
    assert [(f["data"]["pod"], f["data"]["node"]) for f in lost] == [(f"default/{name}", false)]
    again = [f["data"]["node"] for f in after if f["type"] == "PodBound"]
    assert again == ([runs_on] if plant == "elsewhere" else [])
    if plant == "elsewhere":
        await whole(story, "a", 2)
    else:
        await story.create(a_node("n4", gpu=8))
        await whole(story, "b", 2)
    await asyncio.to_thread(story.service.stop)


async def forge(url: str, pod: dict[str, Any], node: NodeName) -> int:
    """Append a PodBound that never happened, as a program would that has the writer's password.

    Returns:
        Its position.
    """
    async with PostgresEventLog(url) as log:
        events = [event async for page in log.read() for event in page]
        label = pod["metadata"]["labels"]["gang-extender.dev/pod-group"]
        mine = [e for e in events if e.gang == f"default/{label}"]
        grant = await log.take(holder="e2e", address="", ttl_ms=1000)
        entry = PodBound(
            plan=PlanId(""),
            pod=f"default/{pod['metadata']['name']}",
            uid=PodUid(pod["metadata"]["uid"]),
            node=node,
            group=label,
        )
        event = RecordedEvent(
            position=Position(grant.head.position + 1),
            event_id=str(uuid.uuid4()),
            epoch=grant.epoch,
            at_us=grant.head.at_us,
            gang_uid=GangUid(mine[-1].gang_uid),
            stream_version=mine[-1].stream_version + 1,
            gang=mine[-1].gang,
            actor="forger",
            cause="",
            data=entry,
        )
        await log.append(grant, [event])
        await log.release(grant)
        return int(event.position)


@pytest.mark.full
@pytest.mark.parametrize("how", ["erased", "altered"])
async def test_a_nomination_is_changed_by_a_foreign_hand(
    intercept: Intercept, story: Story, how: str
) -> None:
    """An altered nomination is reported once, an erased one never (kube-scheduler erases too); neither is written again.

    The reservation stands, and the member goes where its capacity is.
    """
    held = Held(story, intercept)
    await nodes(story, 3)
    where = await held.admitted()
    (free,) = {"n0", "n1", "n2"} - set(where.values())
    await looked(story, "before")
    body = {"status": {"nominatedNodeName": None if how == "erased" else free}}
    await story.api.patch(f"{PODS}/a-0/status", body, "merge")
    await looked(story, "after")
    await drift_reported(story, "nomination-altered", *(["a-0"] if how == "altered" else []))
    assert (await story.pods())["a-0"]["status"].get("nominatedNodeName") == (
        None if how == "erased" else free
    )
    held.let_go()
    await whole(story, "a", 2)
    assert await story.bound() == where
    entries = await story.service.events()
    assert [f["type"] for f in entries if f["gang"] == "default/a"].count("GangAdmitted") == 1
    assert len(await story.service.events("DriftDetected")) == int(how == "altered")
    await asyncio.to_thread(story.service.stop)


@pytest.mark.full
async def test_a_pod_is_made_again_under_its_name(intercept: Intercept, story: Story) -> None:
    """Life, not drift: the capacity of the one that is gone is given back by an event, the new one is another."""
    held = Held(story, intercept)
    await nodes(story, 2)
    await held.admitted()
    old = (await story.pods())["a-0"]["metadata"]["uid"]
    await story.api.delete(f"{PODS}/a-0", {"gracePeriodSeconds": 0})
    entry = await story.until_event("ReservationReleased", "default/a")
    assert entry["data"]["reason"] == "deleted"
    assert old in [p["uid"] for p in entry["data"]["pods"]]
    (container,) = a_gang("a", pods=1, requests=GPU)[-1]["spec"]["containers"]
    await story.create(member("a-0", "a", containers=[container]))
    held.let_go()
    await whole(story, "a", 2)
    entries = await story.check_events()
    assert old not in [f["data"]["uid"] for f in entries if f["type"] == "PodBound"]
    assert [f["type"] for f in entries].count("GangAdmitted") == 2
    assert [f["type"] for f in entries].count("ReservationReleased") == 1
