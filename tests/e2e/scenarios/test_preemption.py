"""Preemption by whole units on the real control plane: who goes, who stays, and a kill between any two steps.

Pods have no grace period and no kubelet, so a deletion is seen at once; where a story wants a victim that
lingers it gives it a finalizer. Where ordinary pods compete for the capacity, the contended-resource scope of
deploy/kubernetes/scopes shows them to us; in the marker scope nominations of gated members keep them out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import condition_of
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.test_ordinary_pods import use_scope
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
ONE = {GPU: 1}
HIGH, LOW = 1000, 10


def classes() -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": policy,
        }
        for name, value, policy in (
            ("high", HIGH, "PreemptLowerPriority"),
            ("low", LOW, "PreemptLowerPriority"),
            ("patient", HIGH, "Never"),  # as important, but it evicts no pod
        )
    ]


def racks(*names: str, nodes: int = 2) -> list[dict[str, Any]]:
    return [a_node(f"{rack}{n}", {RACK: rack}, gpu=1) for rack in names for n in range(nodes)]


def of_class(things: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    for thing in things:
        thing["spec"]["priorityClassName"] = name
    return things


def preemptor(pods: int = 2, **rest: Any) -> list[dict[str, Any]]:
    return of_class(a_gang("hi", pods=pods, requests=ONE, **rest), "high")


def singles(*nodes: str) -> list[dict[str, Any]]:
    """Running pods of low priority outside of all groups, one per node."""
    return of_class([a_pod(f"single-{n}", node=n, requests=ONE) for n in nodes], "low")


def whole(leaf_nodes: dict[str, list[str]]) -> list[dict[str, Any]]:
    """A composite that is disrupted as a whole: its leaves, and pods that select their nodes."""
    made = [a_group("unit", gang=len(leaf_nodes), composite=True, whole=True)]
    for leaf, nodes in leaf_nodes.items():
        made.append(a_group(leaf, gang=len(nodes), parent="unit", whole=True))  # B10
        made += [at(node, f"{leaf}-{n}", leaf) for n, node in enumerate(nodes)]
    return of_class(made, "low")


def at(node: str, name: str, group: str) -> dict[str, Any]:
    """Make a member that has to run on one node, so that the story knows where it does."""
    selector = {"kubernetes.io/hostname": node}
    return a_pod(name, group, requests=ONE, nodeSelector=selector)


async def events_of_kind(story: Story, kind: str) -> list[dict[str, Any]]:
    return [f["data"] for f in await story.service.events(kind)]


async def completed(story: Story) -> dict[str, Any]:
    await story.until_event("PreemptionCompleted")
    planned = await events_of_kind(story, "PreemptionPlanned")
    assert len(planned) == 1, await story.report()
    (plan,) = planned
    assert not await events_of_kind(story, "PreemptionCancelled")
    return plan


async def conditions(story: Story, kind: str, name: str) -> dict[str, dict[str, Any]]:
    path = f"/apis/gang-extender.dev/v1alpha1/namespaces/default/{kind}/{name}"
    found = await story.api.get(path)
    return {c["type"]: c for c in found.get("status", {}).get("conditions", [])}


# By hand there: a neighbour that terminates and never ends may make it plan twice, as it should (P15).
@pytest.mark.lived_in("long")
async def test_a_gang_that_needs_a_rack_clears_one(story: Story) -> None:
    """Two racks full of low pods: one rack is cleared, the other is not touched, and the gang runs in the first."""
    await story.create(*classes(), *racks("a", "b"), *singles("a0", "a1", "b0", "b1"))
    await story.create(*preemptor(topo=RACK))
    plan = await completed(story)
    victims = {p["pod"] for unit in plan["victims"] for p in unit["pods"]}
    bound = await story.until_bound(2, "hi")
    rack = {node[0] for node in bound.values()}
    assert len(rack) == 1
    assert victims == {f"default/single-{r}{n}" for r in rack for n in range(2)}
    assert len(await story.bound("single")) == 2
    gone = await events_of_kind(story, "VictimGone")
    assert {(f["pod"], f["via"]) for f in gone} == {(pod, "deleted") for pod in victims}
    events = (await story.api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
    path = "/apis/gang-extender.dev/v1alpha1/namespaces/default/podgroups/hi"
    uid = (await story.api.get(path))["metadata"]["uid"]  # events of earlier stories may come late
    preempted = [
        e for e in events if e["reason"] == "Preempted" and e.get("related", {}).get("uid") == uid
    ]
    assert {f"default/{e['regarding']['name']}" for e in preempted} == victims
    assert preempted[0]["related"]["name"] == "hi"
    assert f"PodGroup default/hi (priority {HIGH}) needs the capacity" in preempted[0]["note"]


@pytest.mark.full
async def test_victims_that_are_made_again_do_not_take_the_capacity_back(story: Story) -> None:
    """Marker scope: their controller is fast, our filter is not asked, and kube-scheduler keeps the capacity by nominations."""
    await story.create(*classes(), *racks("a"), *singles("a0", "a1"))

    async def made_again() -> None:
        for node in ("a0", "a1"):

            async def gone(name: str = f"single-{node}") -> bool:
                return name not in await story.pods()

            await eventually(gone, every_s=0.01)
            await story.create(*of_class([a_pod(f"again-{node}", requests=ONE)], "low"))

    controller = asyncio.create_task(made_again())
    await story.create(*preemptor())
    await story.until_bound(2, "hi")
    await controller
    await completed(story)
    assert await story.bound("again") == {}


@pytest.mark.full
@pytest.mark.lived_in("too")
async def test_a_composite_unit_goes_whole_across_racks(story: Story) -> None:
    """One rack is needed; the unit that runs there goes with its pods in the other rack, marked at every level."""
    finalizer = {"finalizers": ["example.com/linger"]}
    unit = whole({"left": ["a0", "a1"], "right": ["b0"]})
    for thing in unit:
        if thing["metadata"]["name"] == "right-0":
            thing["metadata"] |= finalizer  # so that there is time to look
    others = of_class([a_pod("keeps", node="b1", requests=ONE)], "high")
    await story.create(*classes(), *racks("a", "b"), *others, *unit)
    await story.until_bound(4)
    await story.until_event("GangScheduled", "default/unit")
    await story.create(*preemptor(topo=RACK))
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
        return len(await events_of_kind(story, "VictimGone")) == 3

    await story.until(all_gone)
    assert "keeps" in await story.bound()


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("step", ["planned", "first", "all", "admitted"])
async def test_a_kill_at_every_step(story: Story, step: str) -> None:
    """SIGKILL after the plan, the first deletion, the last one, and the admission: the same victims, the same capacity."""
    await use_scope(story, "contended-resource")
    await story.create(*classes(), *racks("a", "b"), *singles("b0", "b1"))
    members = [at(f"a{n}", f"unit-{n}", "unit") for n in range(2)]
    await story.create(*of_class([a_group("unit", gang=2, whole=True), *members], "low"))
    await story.until_bound(4)
    await story.until_event("GangScheduled", "default/unit")
    struck = asyncio.Event()
    asked = deleted = 0

    async def before(method: str, path: str) -> web.Response | None:
        nonlocal asked
        asked += method == "DELETE" and "/pods/" in path
        lets_go = method == "PATCH" and path.rpartition("/")[2] in {"hi-0", "hi-1"}  # the gate
        hit = {"planned": asked == 1, "first": asked == 2, "admitted": lets_go}.get(step, False)
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
    await story.create(*preemptor(topo=RACK))
    await eventually(struck.is_set)
    story.service.kill()
    story.server.before = story.server.after = None
    waiting = of_class([a_pod("late", requests=ONE)], "patient")
    await story.create(*waiting)  # wants the capacity that was made, while only the log guards it

    async def refused() -> bool:
        condition = condition_of((await story.pods())["late"], "PodScheduled")
        return condition is not None and condition["status"] == "False"

    await story.until(refused)
    await story.service.start()
    # kube-apiserver deletes a pod with two writes. A kill that takes back the request between them leaves a pod
    # that terminates for ever; on a node it is the kubelet that ends it.
    async with Kubelet(story.api, grace_factor=0.0):
        plan = await completed(story)
        bound = await story.until_bound(2, "hi")
    victims = {p["pod"] for u in plan["victims"] for p in u["pods"]}
    assert victims in (
        {"default/unit-0", "default/unit-1"},
        {"default/single-b0", "default/single-b1"},
    )
    gone = {f["pod"] for f in await events_of_kind(story, "VictimGone")}
    assert gone == victims
    assert {node[0] for node in bound.values()} == {"a" if "default/unit-0" in victims else "b"}
    assert "late" not in await story.bound()
    stay = {"single-b0", "single-b1", "unit-0", "unit-1"} - {v[8:] for v in victims}
    assert stay <= set(await story.bound())


@pytest.mark.full
async def test_a_victim_that_does_not_terminate_is_reported(story: Story) -> None:
    """A finalizer keeps a victim: the gang reports it, no other pod is evicted, and the gang runs as soon as the victim is gone."""
    low = singles("a0", "a1")
    low[0]["metadata"]["finalizers"] = ["example.com/linger"]
    await story.create(*classes(), *racks("a"), *low, *preemptor())

    async def group_has_message() -> bool:
        mine = await conditions(story, "podgroups", "hi")
        text = mine.get("PodGroupInitiallyScheduled", {}).get("message", "")
        return "pod default/single-a0 is still there after its grace period" in text

    await eventually(group_has_message)
    assert not await story.bound("hi")
    assert await story.service.metric("gang_extender_preemption_victims_stuck") == 1
    await story.api.patch(
        "/api/v1/namespaces/default/pods/single-a0", {"metadata": {"finalizers": None}}
    )
    await story.until_bound(2, "hi")
    await completed(story)


@pytest.mark.lived_in("too")
async def test_an_ordinary_pod_does_not_break_a_running_gang(story: Story) -> None:
    """kube-scheduler wants one member of a gang for a pod of higher priority: it gets the pod beside it instead."""
    await use_scope(story, "contended-resource")
    gang = [a_group("train", gang=2), *(at(f"a{n}", f"train-{n}", "train") for n in range(2))]
    await story.create(*classes(), *racks("a"), a_node("c0", gpu=1), *of_class(gang, "low"))
    await story.until_bound(2, "train")
    await story.until_event("GangScheduled", "default/train")
    await story.create(*singles("c0"))
    await story.create(*of_class([a_pod("vip", requests=ONE)], "high"))
    assert (await story.until_bound(1, "vip")) == {"vip": "c0"}
    assert len(await story.bound("train")) == 2
    assert "single-c0" not in await story.pods()
    assert not await events_of_kind(story, "PreemptionPlanned"), (
        "a pod alone is kube-scheduler's own affair"
    )


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_an_ordinary_pod_takes_a_whole_unit_where_that_is_all_there_is(story: Story) -> None:
    """The only victims belong to a unit: all of it goes, recorded first, also its pod on the other node."""
    await use_scope(story, "contended-resource")
    members = [at(f"a{n}", f"train-{n}", "train") for n in range(2)]
    gang = of_class([a_group("train", gang=2, whole=True), *members], "low")
    await story.create(*classes(), *racks("a"), *gang)
    await story.until_bound(2, "train")
    await story.until_event("GangScheduled", "default/train")
    await story.create(*of_class([a_pod("vip", requests=ONE)], "high"))
    await story.until_bound(1, "vip")
    plan = await completed(story)
    assert plan["kind"] == "Pod"
    assert {p["pod"] for p in plan["victims"][0]["pods"]} == {"default/train-0", "default/train-1"}

    async def all_gone() -> bool:
        return len(await events_of_kind(story, "VictimGone")) == 2

    await story.until(all_gone)
    assert not [name for name in await story.pods() if name.startswith("train")]
    (gang,) = await story.service.get("/v1/gangs")
    assert (gang["state"], gang["minimum_present"], gang["minimum_needed"]) == ("preempted", 0, 2)
    # Also when the end of the pod was recorded after that of the preemption.
    assert gang["last_loss"]["cause"] == "preempted"
    assert gang["last_loss"]["preemptor"] == "Pod/default/vip"
    assert gang["reasons"][0].startswith("preempted: ")
    (line,) = await story.service.get("/v1/preemptions?victim=default/train")
    assert "was evicted on" in line["explanation"]
    assert "for Pod default/vip (priority 1000)" in line["explanation"]


@pytest.mark.settings(eviction_method="eviction-api")
async def test_a_budget_holds_the_eviction_api_up(story: Story) -> None:
    """Eviction API: a budget that is spent answers 429; the gang reports it, and the eviction is tried again until the budget allows it."""
    low = singles("a0")
    low[0]["metadata"]["labels"] = {"app": "low"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "pdb", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}},
    }
    await story.create(*classes(), *racks("a", nodes=1), *low, budget)
    pods = "/api/v1/namespaces/default/pods"
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await story.api.patch(f"{pods}/single-a0/status", {"status": running})
    pdb = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/pdb"

    async def allow(number: int) -> None:
        status = {
            "observedGeneration": 1, "disruptionsAllowed": number, "currentHealthy": 1 + number,
            "desiredHealthy": 1, "expectedPods": 1 + number,
        }  # fmt: skip
        await story.api.patch(f"{pdb}/status", {"status": status})

    await allow(0)
    await story.create(*preemptor(1))
    plan = await story.until_event("PreemptionPlanned")
    assert plan["data"]["cost"]["violations"] == 1

    async def group_has_message() -> bool:
        mine = await conditions(story, "podgroups", "hi")
        text = mine.get("PodGroupInitiallyScheduled", {}).get("message", "")
        return "pod default/single-a0 cannot be deleted" in text and "disruption budget" in text

    await eventually(group_has_message)
    assert "single-a0" in await story.bound()
    await allow(1)
    await story.until_bound(1, "hi")
    await completed(story)
    assert {f["via"] for f in await events_of_kind(story, "VictimGone")} == {"evicted"}
    await story.api.delete(pdb)
