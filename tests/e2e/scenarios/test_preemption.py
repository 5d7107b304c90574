"""Preemption by whole units on the real control plane: who goes, who stays, and a kill between any two steps.

Pods have no grace period and no kubelet, so a deletion is seen at once; where a story wants a victim that
lingers it gives it a finalizer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.controlplane.waiting import eventually
from tests.e2e.scenarios.conftest import Story

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.lived_in("never")]
ONE = {GPU: 1}
HIGH, LOW = 1000, 10


def classes() -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in (("high", HIGH), ("low", LOW))
    ]


def racks(*names: str, nodes: int = 2) -> list[dict[str, Any]]:
    return [a_node(f"{rack}{n}", {RACK: rack}, gpu=1) for rack in names for n in range(nodes)]


def of_class(things: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    for thing in things:
        thing["spec"]["priorityClassName"] = name
    return things


def his(pods: int = 2, **rest: Any) -> list[dict[str, Any]]:
    return of_class(a_gang("hi", pods=pods, requests=ONE, **rest), "high")


def singles(*nodes: str) -> list[dict[str, Any]]:
    """Running pods of low priority outside of all groups, one per node."""
    return of_class([a_pod(f"single-{n}", node=n, requests=ONE) for n in nodes], "low")


def whole(leaf_nodes: dict[str, list[str]]) -> list[dict[str, Any]]:
    """A running composite that is disrupted as a whole: its leaves with their pods, bound already."""
    made = [a_group("unit", gang=len(leaf_nodes), composite=True, whole=True)]
    for leaf, nodes in leaf_nodes.items():
        made.append(a_group(leaf, gang=len(nodes), parent="unit"))
        made += [
            a_pod(f"{leaf}-{n}", leaf, node=node, requests=ONE) for n, node in enumerate(nodes)
        ]
    return of_class(made, "low")


async def facts(story: Story, kind: str) -> list[dict[str, Any]]:
    return [f["data"] for f in await story.service.facts(kind)]


async def completed(story: Story) -> dict[str, Any]:
    await story.until_fact("PreemptionCompleted", timeout_s=40)
    (plan,) = await facts(story, "PreemptionPlanned")
    assert not await facts(story, "PreemptionAbandoned")
    return plan


async def conditions(story: Story, kind: str, name: str) -> dict[str, dict[str, Any]]:
    path = f"/apis/gang-extender.dev/v1alpha1/namespaces/default/{kind}/{name}"
    found = await story.api.get(path)
    return {c["type"]: c for c in found.get("status", {}).get("conditions", [])}


async def test_a_gang_that_needs_a_rack_clears_one(story: Story) -> None:
    """Two racks full of low pods: one rack is cleared, the other is not touched, and the gang runs in the first."""
    await story.create(*classes(), *racks("a", "b"), *singles("a0", "a1", "b0", "b1"))
    await story.create(*his(topo=RACK))
    plan = await completed(story)
    victims = {p["pod"] for unit in plan["victims"] for p in unit["pods"]}
    bound = await story.until_bound(2, "hi")
    rack = {node[0] for node in bound.values()}
    assert len(rack) == 1
    assert victims == {f"default/single-{r}{n}" for r in rack for n in range(2)}
    assert len(await story.bound("single")) == 2
    gone = await facts(story, "VictimEvicted")
    assert {(f["pod"], f["how"]) for f in gone} == {(pod, "deleted") for pod in victims}
    events = (await story.api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
    told = [e for e in events if e["reason"] == "Preempted"]
    assert {f"default/{e['regarding']['name']}" for e in told} == victims
    assert told[0]["related"]["name"] == "hi"
    assert f"PodGroup default/hi (priority {HIGH}) needs the room" in told[0]["note"]


async def test_a_composite_unit_goes_whole_across_racks(story: Story) -> None:
    """One rack is needed; the unit that runs there goes with its pods in the other rack, marked at every level."""
    finalizer = {"finalizers": ["example.com/linger"]}
    unit = whole({"left": ["a0", "a1"], "right": ["b0"]})
    for thing in unit:
        if thing["metadata"]["name"] == "right-0":
            thing["metadata"] |= finalizer  # so that there is time to look
    others = of_class([a_pod("keeps", node="b1", requests=ONE)], "high")
    await story.create(*classes(), *racks("a", "b"), *unit, *others)
    await story.create(*his(topo=RACK))
    await story.until_bound(2, "hi")
    pod = (await story.pods())["right-0"]
    marks = {c["type"]: c for c in pod["status"]["conditions"]}
    assert marks["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
    assert pod["metadata"]["deletionTimestamp"]
    for kind, name in (
        ("compositepodgroups", "unit"),
        ("podgroups", "left"),
        ("podgroups", "right"),
    ):
        mark = (await conditions(story, kind, name))["DisruptionTarget"]
        assert (mark["status"], mark["reason"]) == ("True", "PreemptionByScheduler")
    await story.api.patch(
        "/api/v1/namespaces/default/pods/right-0", {"metadata": {"finalizers": None}}
    )
    plan = await completed(story)
    assert [u["kind"] for u in plan["victims"]] == ["CompositePodGroup"]
    assert {p["pod"] for p in plan["victims"][0]["pods"]} == {
        "default/left-0", "default/left-1", "default/right-0",
    }  # fmt: skip

    async def all_gone() -> bool:
        return len(await facts(story, "VictimEvicted")) == 3

    await eventually(all_gone, timeout_s=20)
    assert "keeps" in await story.bound()


@pytest.mark.parametrize("step", ["planned", "first", "all", "admitted"])
async def test_a_kill_at_every_step(story: Story, step: str) -> None:
    """SIGKILL after the plan, the first deletion, the last one, and the admission: the same victims, the same room."""
    await story.create(*classes(), *racks("a", "b"), *singles("b0", "b1"))
    unit = of_class(
        [a_group("unit", gang=2, whole=True)]
        + [a_pod(f"unit-{n}", "unit", node=f"a{n}", requests=ONE) for n in range(2)],
        "low",
    )
    await story.create(*unit)
    struck = asyncio.Event()
    deleted = 0

    async def before(method: str, path: str) -> web.Response | None:
        nominates = method == "PATCH" and path.endswith("/status") and "/pods/hi-" in path
        first_delete = method == "DELETE" and "/pods/" in path and not deleted
        second_delete = method == "DELETE" and "/pods/" in path and deleted == 1
        hit = {
            "planned": first_delete,
            "first": second_delete,
            "admitted": nominates,
        }.get(step, False)
        if hit and not struck.is_set():
            struck.set()
        return web.Response(status=503) if struck.is_set() else None

    async def after(method: str, path: str, status: int) -> None:
        nonlocal deleted
        if method == "DELETE" and "/pods/" in path and status == 200:
            deleted += 1
            if deleted == 2 and step == "all":
                struck.set()

    story.server.before, story.server.after = before, after
    await story.create(*his(topo=RACK))
    await asyncio.wait_for(struck.wait(), 60)
    story.service.kill()
    story.server.before = story.server.after = None
    waiting = of_class([a_pod("late", requests=ONE)], "high")
    await story.create(*waiting)  # wants the room that was made, while nobody guards it but the log
    await asyncio.sleep(1)
    await story.service.start()
    plan = await completed(story)
    victims = {p["pod"] for u in plan["victims"] for p in u["pods"]}
    bound = await story.until_bound(2, "hi")
    assert victims in (
        {"default/unit-0", "default/unit-1"},
        {"default/single-b0", "default/single-b1"},
    )
    gone = {f["pod"] for f in await facts(story, "VictimEvicted")}
    assert gone == victims
    assert {node[0] for node in bound.values()} == {"a" if "default/unit-0" in victims else "b"}
    stay = {"single-b0", "single-b1", "unit-0", "unit-1"} - {v[8:] for v in victims}
    assert stay <= set(await story.bound())


async def test_a_victim_that_does_not_go_is_told_of(story: Story) -> None:
    """A finalizer keeps a victim: the gang says so, nobody else is evicted, and it runs as soon as it goes."""
    low = singles("a0", "a1")
    low[0]["metadata"]["finalizers"] = ["example.com/linger"]
    await story.create(*classes(), *racks("a"), *low, *his())

    async def told() -> bool:
        mine = await conditions(story, "podgroups", "hi")
        text = mine.get("PodGroupInitiallyScheduled", {}).get("message", "")
        return "pod default/single-a0 is still there after its grace period" in text

    await eventually(told, timeout_s=40)
    assert not await story.bound("hi")
    assert await story.service.metric("gang_extender_preemption_victims_refusing") == 1
    await story.api.patch(
        "/api/v1/namespaces/default/pods/single-a0", {"metadata": {"finalizers": None}}
    )
    await story.until_bound(2, "hi")
    await completed(story)
