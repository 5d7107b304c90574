"""The `preempt` vectors P01 to P13 and P16 as objects, and P14 and P15 as stories, on the real control plane.

What runs already is created first and the preemptor last: ordinary pods on their nodes, members of groups by way of
our own admission, with a selector for their node. Two things differ from the manifests of the vectors, because a real API server
wants them so: priorities are PriorityClasses (its admission refuses a bare number), and what a budget allows is written
to its status (there is no disruption controller).

P03 has a tree of two priorities. Kubernetes takes it, but no scheduler of trees admits it (H05), so its members are
created on their nodes, as if they had been bound before we came. We report of each that it runs outside an admission, which
is true; what stories check in the end (no drift) is therefore not checked of P03.

P14 and P15 are of the kind `life`: their steps are words, so they are written out here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from extender.control.admission.preemption_policy import AGAIN_MS
from extender.core.preempt.preemption_lifecycle import STUCK_AFTER_US
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.test_preemption import conditions, events_of_kind
from tests.support.planning.spec_vectors import by_id, of_kind
from tests.support.service.manifest_builders import (
    GROUP_LABEL,
    SLOT,
    a_group,
    a_node,
    a_pod,
    vector_objects,
)

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]
Object = dict[str, Any]
VECTORS = [vector["id"] for vector in of_kind("preempt")]
# on the older version: a pod alone, a whole unit, a budget, no victim, the cheaper of two places, a domain, a budget of a unit
SMOKE = ("P01", "P02", "P07", "P08", "P10", "P12", "P16")


def as_classes(things: Iterable[Object]) -> list[Object]:
    """Return the objects with PriorityClasses in front in place of bare priorities."""
    classes: dict[str, Object] = {}
    made = []
    for thing in things:
        spec = dict(thing.get("spec", {}))
        value = spec.pop("priority", None)
        policy = spec.pop("preemptionPolicy", "PreemptLowerPriority")
        if value is not None:
            name = f"p{value}-{policy.lower()}"
            spec["priorityClassName"] = name
            classes[name] = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": policy,
            }
        made.append({**thing, "spec": spec} if spec else thing)
    return [*classes.values(), *made]


TWO_PRIORITIES = "P03"


async def set_the_scene(story: Story, vector: Object) -> list[Object]:
    """Create what is there before; give the objects of the preemptor's tree."""
    things = as_classes(vector_objects(vector))
    # the tree's own objects are the last ones: its root is created behind everything that runs
    ours = [n for n, t in enumerate(things) if t["metadata"]["name"] == vector["tree"]["n"]][-1]
    await story.create(*(as_it_comes(vector, thing) for thing in things[:ours]))
    running = {about["p"].lower() for about in vector["run"]}
    await story.until(lambda: all_run(story, running))
    for budget in (t for t in things if t["kind"] == "PodDisruptionBudget"):
        name = budget["metadata"]["name"]
        path = f"/apis/policy/v1/namespaces/default/poddisruptionbudgets/{name}/status"
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        status = {"observedGeneration": 1, "disruptionsAllowed": 0, **counts}
        await story.api.patch(path, {"status": status})
    return things[ours:]


def as_it_comes(vector: Object, thing: Object) -> Object:
    """Let a member come to its node by its selector."""
    member = GROUP_LABEL in thing["metadata"].get("labels", {})
    if not member or vector["id"] == TWO_PRIORITIES:
        return thing
    spec = dict(thing["spec"])
    selector = {"kubernetes.io/hostname": spec.pop("nodeName")}
    return {**thing, "spec": {**spec, "nodeSelector": selector}}


@pytest.fixture(autouse=True)
async def no_budgets_left(story: Story) -> AsyncIterator[None]:
    """Delete what the sweep of stories does not."""
    yield
    await story.api.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets")


def units_of(vector: Object) -> dict[str, set[str]]:
    """Return unit -> the pods that go with it, of everything that runs in a vector."""
    found: dict[str, set[str]] = {}
    for about in vector["run"]:
        steps = [step.split("/") for step in about.get("path", "").split()]
        unit = next((name for name, mode in steps if mode == "a"), about["p"])
        found.setdefault(unit, set()).add(about["p"].lower())
    return found


async def play(story: Story, vector: Object) -> None:
    """Create a vector, and check who is deleted, who stays, and that the preemptor runs, or why there is no victim."""
    ours = await set_the_scene(story, vector)
    before = set(await story.bound())
    await story.create(*ours)
    units, mine = units_of(vector), {t["metadata"]["name"] for t in ours if t["kind"] == "Pod"}
    if vector["kep"] == "none":
        await check_no_victim(story, vector, before)
        return
    best = vector.get("best", ["a"])  # P11: the minimum needs no victim, its extra does later
    await story.until(lambda: all_run(story, mine))
    plan = await completed(story)
    taken = {unit["path"].rpartition("/")[2] for unit in plan["victims"]}
    if vector.get("any"):
        assert len(taken) == len(best)
        assert taken <= {unit.lower() for unit in units}
    else:
        assert taken == {unit.lower() for unit in best}
    victims = set().union(*(pods for unit, pods in units.items() if unit.lower() in taken))
    assert {p["pod"].rpartition("/")[2] for u in plan["victims"] for p in u["pods"]} == victims

    async def gone() -> bool:
        return set(await story.pods()) == before - victims | mine

    await story.until(gone)
    if vector["kep"] == "not-triggered":
        order = [f["type"] for f in await story.service.events()]
        assert order.index("GangScheduled") < order.index("PreemptionPlanned")


async def all_run(story: Story, names: set[str]) -> bool:
    return names <= set(await story.bound())


async def completed(story: Story) -> Object:
    await story.until_event("PreemptionCompleted")
    (plan,) = await events_of_kind(story, "PreemptionPlanned")
    assert not await events_of_kind(story, "PreemptionCancelled")
    return plan


# the reason of a group that may not evict, or that no eviction would help; P05: there is no rack at all
WHY_NO_VICTIM = {
    "P04": "missing",
    "P05": "no node has the label rack",
    "P08": "yields 1 of 2",
    "P13": "missing",
}


async def check_no_victim(story: Story, vector: Object, before: set[str]) -> None:
    """The refusal is on the group, with its reason, and no pod was evicted."""
    root = vector["tree"]["n"]

    async def refusal_shown() -> bool:
        mine = (await conditions(story, "podgroups", root)).get("PodGroupInitiallyScheduled", {})
        # before its last member came: waiting
        refused = (await events_of_kind(story, "GangUnschedulable"))[-1:]
        words = [w for f in refused for w in (*f["reasons"], *f["preemption_notes"])]
        why = WHY_NO_VICTIM[vector["id"]]
        return mine.get("status") == "False" and any(why in w for w in words)

    await story.until(refusal_shown)
    assert set(await story.bound()) == before
    assert not await events_of_kind(story, "PreemptionPlanned")


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("name", VECTORS)
async def test_a_vector_on_the_newest_version(story: Story, name: str) -> None:
    """P01 to P13 and P16: exactly those units are deleted that the vector wants, and the preemptor runs."""
    await play(story, by_id(name))
    if name == TWO_PRIORITIES:
        await asyncio.to_thread(story.service.stop)  # its drift is meant: see above


@pytest.mark.full
@pytest.mark.kubernetes("1.36")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SMOKE else pytest.mark.long) for n in VECTORS],
)
async def test_a_vector_on_the_older_version(story: Story, name: str) -> None:
    """All of them by hand; of the normal set what a smoke set needs: every kind of unit, budgets, a domain, and no victim."""
    await play(story, by_id(name))
    if name == TWO_PRIORITIES:
        await asyncio.to_thread(story.service.stop)


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.kubernetes("1.37", "1.36")
async def test_p14_a_later_child_evicts_in_its_own_zone_only(story: Story) -> None:
    """A tree runs in Z1: a third child gets the capacity of a low pod there; a fourth would need Z2, and evicts no pod."""
    one = {SLOT: 1}
    nodes = [a_node("z1", {"zone": "Z1"}, **{SLOT: 3}), a_node("z2", {"zone": "Z2"}, **{SLOT: 1})]
    low = [a_pod(f"low-{z}", node=z, requests=one, priority=1) for z in ("z1", "z2")]
    root = a_group("root", gang=2, composite=True, topo="zone", priority=10)

    def child(number: int) -> list[Object]:
        leaf = a_group(f"pg{number}", gang=1, parent="root", priority=10)
        return [leaf, a_pod(f"pg{number}-0", f"pg{number}", requests=one, priority=10)]

    scene = [*nodes, *low, root, *child(1), *child(2)]
    await story.create(*as_classes(scene))
    await story.until(lambda: all_run(story, {"pg1-0", "pg2-0"}))
    assert not await events_of_kind(story, "PreemptionPlanned")
    await story.create(*(t for t in as_classes(child(3)) if t["kind"] != "PriorityClass"))
    await story.until(lambda: all_run(story, {"pg3-0"}))
    await completed(story)
    assert "low-z1" not in await story.pods()
    await story.create(*(t for t in as_classes(child(4)) if t["kind"] != "PriorityClass"))

    async def refused() -> bool:
        last = (await events_of_kind(story, "GangUnschedulable"))[-1:]
        return any(
            "frees capacity for no further member" in w for f in last for w in f["preemption_notes"]
        )

    await story.until(refused)
    assert (await story.bound())["low-z2"] == "z2"
    assert len(await events_of_kind(story, "PreemptionPlanned")) == 1


# a finalizer: the victim terminates, and goes when the story wants it
LINGER = "example.com/linger"


async def p15_begins(story: Story) -> None:
    """Two low pods on n1 and n2 terminate for a gang of two; those on n3 and n4 are dearer.

    The first step of P15: victims get DisruptionTarget, preemptor pods nominatedNodeName, and the tree is not in a queue
    of kube-scheduler, because its gate is on.
    """
    one = {SLOT: 1}
    nodes = [a_node(f"n{n}", **{SLOT: 1}) for n in range(1, 5)]
    stay = {"metadata": {"finalizers": [LINGER]}}
    cheap = [a_pod(f"a{n}", node=f"n{n}", requests=one, priority=1, **stay) for n in (1, 2)]
    dear = [a_pod(f"b{n}", node=f"n{n}", requests=one, priority=2) for n in (3, 4)]
    gang = [a_group("hi", gang=2, priority=10)]
    gang += [a_pod(f"hi-{n}", "hi", requests=one, priority=10) for n in range(2)]
    await story.create(*as_classes([*nodes, *cheap, *dear]))
    await story.until(partial(grace_periods_over, story))
    await story.create(*as_classes(gang))

    async def decided() -> bool:
        pods = await story.pods()
        marks = [
            {c["type"]: c.get("reason") for c in pods[name]["status"].get("conditions", ())}
            for name in ("a1", "a2")
        ]
        marked = all(mark.get("DisruptionTarget") == "PreemptionByScheduler" for mark in marks)
        going = all("deletionTimestamp" in pods[name]["metadata"] for name in ("a1", "a2"))
        return marked and going and nominated(pods) == {"n1", "n2"}

    await story.until(decided)
    pods = await story.pods()
    assert all(pods[f"hi-{n}"]["spec"]["schedulingGates"] for n in range(2))


async def grace_periods_over(story: Story) -> bool:
    """Return whether all terminating pods count as pods that stay: their grace period is over for good.

    Until then their capacity is expected to come free, and a plan may count on it.
    """
    late = datetime.now(UTC) - timedelta(microseconds=STUCK_AFTER_US) - timedelta(seconds=2)
    pods = (await story.api.get("/api/v1/pods"))["items"]
    ends = [p["metadata"].get("deletionTimestamp") for p in pods if p["metadata"].get("finalizers")]
    return all(datetime.fromisoformat(end) < late for end in ends if end)


def nominated(pods: dict[str, Object]) -> set[str]:
    """Return the nodes that members of the preemptor are nominated to."""
    named = {pods[f"hi-{n}"]["status"].get("nominatedNodeName") for n in range(2)}
    return {node for node in named if node}


async def let_go(story: Story, *names: str) -> None:
    for name in names:
        path = f"/api/v1/namespaces/default/pods/{name}"
        await story.api.patch(path, {"metadata": {"finalizers": None}})


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.kubernetes("1.37", "1.36")
async def test_p15_a_retry_may_go_elsewhere_but_chooses_no_new_victims(story: Story) -> None:
    """While victims terminate the tree is planned again and evicts no other pod; capacity on a new node is taken at once."""
    await p15_begins(story)
    # each is a change that wakes the tree: it is planned again, and waits on
    for number in range(5):
        await story.create(a_node(f"small-{number}", **{SLOT: 0}))
        await asyncio.sleep(0.5)
    assert len(await events_of_kind(story, "PreemptionPlanned")) == 1
    assert set(await story.bound()) == {"a1", "a2", "b3", "b4"}
    await story.create(a_node("new", **{SLOT: 2}))
    await story.until(lambda: all_run(story, {"hi-0", "hi-1"}))
    assert set((await story.bound("hi")).values()) == {"new"}
    (ended,) = await events_of_kind(story, "PreemptionCancelled")
    assert ended["reason"] == "no-longer-needed"
    assert sorted(ended["units_in_progress"]) == ["Pod/default/a1", "Pod/default/a2"]
    await let_go(story, "a1", "a2")

    async def gone() -> bool:
        return {f["pod"] for f in await events_of_kind(story, "VictimGone")} == {
            "default/a1",
            "default/a2",
        }

    await story.until(gone)
    assert set(await story.bound()) == {"b3", "b4", "hi-0", "hi-1"}
    assert len(await events_of_kind(story, "PreemptionPlanned")) == 1


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_p15_capacity_that_is_lost_ends_the_nominations_and_it_backs_off(
    story: Story,
) -> None:
    """Its victims are gone and a node is closed meanwhile: no nomination stays, and only later it takes one pod more."""
    await p15_begins(story)
    await story.api.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    await let_go(story, "a1", "a2")
    lost = await story.until_event("PreemptionCancelled")
    assert lost["data"]["reason"] == "capacity-lost"

    async def cleared() -> bool:
        return not nominated(await story.pods())

    await story.until(cleared)
    await story.until(lambda: all_run(story, {"hi-0", "hi-1"}))
    await story.until_event("PreemptionCompleted")
    first, second = await story.service.events("PreemptionPlanned")
    assert [len(plan["data"]["victims"]) for plan in (first, second)] == [2, 1]
    waited = datetime.fromisoformat(second["time"]) - datetime.fromisoformat(lost["time"])
    # counted from the decision, a moment before its event is written
    assert waited >= timedelta(milliseconds=AGAIN_MS) * 0.8
    left = set(await story.bound())
    assert len(left & {"b3", "b4"}) == 1
