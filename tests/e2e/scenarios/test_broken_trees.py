"""Trees that break a rule, B3 to B10: held or refused, reported on every group and on the pods, admitted when corrected.

The H entries of vectors.yaml stand here, but H08 (test_deleted_objects.py) and H10 (test_dependencies.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from extender.core.reconcile.finalizer_rules import FINALIZER
from tests.controlplane.api import ApiError
from tests.controlplane.waiting import create_priority_class
from tests.e2e.scenarios.conftest import OURS, Story, member, real
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
CPU = {"cpu": "1"}
PODS = "/api/v1/namespaces/default/pods"
GROUPS = f"/apis/{OURS}/namespaces/default"


def nodes(count: int) -> list[dict[str, Any]]:
    return [a_node(f"n{i}", gpu=8) for i in range(count)]


async def condition(story: Story, kind: str, name: str) -> dict[str, Any]:
    """Read a group's own condition; empty when it has none."""
    path = f"/apis/{OURS}/namespaces/default/{kind.lower()}s/{name}"
    found = (await story.api.get(path)).get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == f"{kind}InitiallyScheduled"), {})


async def until_condition(story: Story, kind: str, name: str, reason: str, text: str) -> None:
    """Wait until a group has a condition with this reason."""

    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await condition(story, kind, name))
        return found.get("reason") == reason and text in found.get("message", "")

    await eventually(look, f"{kind} {name}: {reason}", every_s=0.2, state=lambda: found)


async def unwritten(story: Story, path: str) -> None:
    """Check that a group is not written while nothing changes: over whole passes of the service."""
    await until_protected(story, path)
    before = (await story.api.get(path))["metadata"]["resourceVersion"]

    async def the_same() -> bool:
        return (await story.api.get(path))["metadata"]["resourceVersion"] == before

    await story.stays(the_same, 25)  # two passes at least


async def until_event(story: Story, pod: str, text: str) -> None:
    """Wait until `kubectl describe pod` has this text."""

    async def look() -> bool:
        return any(text in line for line in await story.events_of(pod))

    await eventually(look, every_s=0.3)


async def until_protected(story: Story, path: str) -> None:
    """Wait until a group carries our finalizer."""

    async def look() -> bool:
        return FINALIZER in (await story.api.get(path))["metadata"].get("finalizers", [])

    await eventually(look)


async def until_gone(story: Story, path: str) -> None:
    """Wait until an object does not exist any more."""

    async def look() -> bool:
        try:
            await story.api.get(path)
        except ApiError as refused:
            return refused.status == 404
        return False

    await eventually(look)


async def later_than(story: Story, stamp: str) -> None:
    """Wait until the API server's clock is past a second; its timestamps have no more than that."""

    async def look() -> bool:
        probe = await story.api.post(PODS, real(a_pod("clock")), dryRun="All")
        return probe["metadata"]["creationTimestamp"] > stamp

    await eventually(look, every_s=0.2)


@pytest.mark.lived_in("long")
async def test_a_cycle_is_named_and_heals(story: Story) -> None:
    """H01: nothing of it is scheduled, every group is marked, the pod names the cycle; mended, it runs."""
    await story.create(
        *nodes(1),
        a_group("a", gang=1, composite=True, parent="b"),
        a_group("b", gang=1, composite=True, parent="a"),
        a_group("leaf", gang=1, parent="a"),
        member("p", "leaf", requests=GPU),
    )
    for kind, name in (
        ("CompositePodGroup", "a"),
        ("CompositePodGroup", "b"),
        ("PodGroup", "leaf"),
    ):
        await until_condition(story, kind, name, "Invalid", "cycle")
    await until_event(story, "p", "cycle")
    assert not await story.bound()
    await story.api.delete(f"{GROUPS}/compositepodgroups/b")  # `a` names it, and does not keep it
    await until_gone(story, f"{GROUPS}/compositepodgroups/b")
    await story.create(a_group("b", gang=1, composite=True))
    await story.until_bound(1)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_five_levels_are_too_many(story: Story) -> None:
    """H03: the whole tree is invalid, branches of legal depth too."""
    chain = ["root", "c1", "c2", "c3"]
    await story.create(*nodes(2))
    for name, parent in zip(chain, ["", *chain], strict=False):
        await story.create(a_group(name, gang=1, composite=True, parent=parent))
    await story.create(
        a_group("deep", gang=1, parent="c3"),
        a_group("flat", gang=1, parent="root"),
        member("d", "deep", requests=GPU),
        member("f", "flat", requests=GPU),
    )
    for kind, name in (("CompositePodGroup", "root"), ("PodGroup", "flat"), ("PodGroup", "deep")):
        await until_condition(story, kind, name, "Invalid", "5 levels")
    await until_event(story, "f", "5 levels")
    assert not await story.bound()
    assert (await story.until_event("GangInvalid", "default/root"))["data"]["problems"]


@pytest.mark.lived_in("long")
async def test_a_group_stays_until_nothing_needs_it(story: Story) -> None:
    """H06: bottom up, as its bound pods end or go and its children do; a child made meanwhile is refused (E15)."""
    await story.create(
        *nodes(2),
        a_group("root", gang=2, composite=True),
        a_group("done", gang=1, parent="root"),
        a_group("runs", gang=1, parent="root"),
        member("d", "done", requests=GPU),
        member("r", "runs", requests=GPU),
    )
    await story.until_bound(2)
    composites, leaves = (f"{GROUPS}/{kind}" for kind in ("compositepodgroups", "podgroups"))
    for path in (f"{composites}/root", f"{leaves}/done", f"{leaves}/runs"):
        await until_protected(story, path)
    await story.api.delete(f"{composites}/root")
    marked = (await story.api.get(f"{composites}/root"))["metadata"]["deletionTimestamp"]
    await later_than(story, marked)
    await story.create(a_group("late", gang=1, parent="root"), member("l", "late", requests=CPU))
    await until_condition(story, "PodGroup", "late", "Invalid", "was being deleted")
    await until_event(story, "l", "was being deleted")
    for name in ("done", "runs"):
        await story.api.delete(f"{leaves}/{name}")
    await story.api.patch(f"{PODS}/d/status", {"status": {"phase": "Succeeded"}})
    await until_gone(story, f"{leaves}/done")
    for path in (f"{composites}/root", f"{leaves}/runs"):
        assert FINALIZER in (await story.api.get(path))["metadata"]["finalizers"]
    await story.api.delete(f"{PODS}/r", {"gracePeriodSeconds": 0})
    await until_gone(story, f"{leaves}/runs")
    assert FINALIZER in (await story.api.get(f"{composites}/root"))["metadata"]["finalizers"]
    assert not (await story.pods())["l"]["spec"].get("nodeName")
    await story.api.delete(f"{leaves}/late")  # its pod was never bound, and waits without it
    await until_gone(story, f"{leaves}/late")
    await until_gone(story, f"{composites}/root")
    await until_event(
        story,
        "l",
        "PodGroup default/late does not exist; 1 pod names it and waits; create the group",
    )
    await story.until_event("GangRemoved", "default/root")
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_deleted_group_does_not_wait_for_pods_that_wait_for_it(story: Story) -> None:
    """It goes, its gated pods report what helps, and run in a group that is created again."""
    await story.create(
        a_group("g", gang=2), member("p", "g", requests=GPU), member("q", "g", requests=GPU)
    )
    await until_protected(story, f"{GROUPS}/podgroups/g")
    await story.api.delete(f"{GROUPS}/podgroups/g")
    await until_gone(story, f"{GROUPS}/podgroups/g")
    text = "PodGroup default/g does not exist; 2 pods name it and wait; create the group, again if it was deleted"
    await until_event(story, "p", text)
    await until_event(story, "q", text)
    assert not await story.bound()
    await story.create(*nodes(2), a_group("g", gang=2))
    await story.until_bound(2)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_two_workloads_in_one_tree(story: Story) -> None:
    """H04."""
    await story.create(
        *nodes(2),
        a_group("root", gang=2, composite=True),
        a_group("one", gang=1, parent="root"),
        a_group("two", gang=1, parent="root", workload="other"),
        member("x", "one", requests=GPU),
        member("y", "two", requests=GPU),
    )
    await until_condition(story, "PodGroup", "one", "Invalid", '"other"')
    await until_event(story, "x", "more than one Workload")
    assert not await story.bound()


@pytest.mark.lived_in("long")
async def test_one_pod_of_another_priority_holds_the_tree(story: Story) -> None:
    """H05: held with both values; the pod replaced, the gang runs."""
    await create_priority_class(story.api, "odd", 7)
    pods = [p for p in a_gang("train", pods=3, requests=GPU) if p["kind"] == "Pod"]
    odd = member("train-odd", "train", requests=GPU, priorityClassName="odd")
    await story.create(*nodes(4), a_group("train", gang=4), *pods, odd)
    await until_condition(story, "PodGroup", "train", "SchedulerError", "has priority 7")
    await until_event(story, "train-0", "has priority 7")
    assert not await story.bound()
    await story.api.delete("/api/v1/namespaces/default/pods/train-odd")
    await story.create(member("train-even", "train", requests=GPU))
    await story.until_bound(4)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.parametrize(
    ("field", "spec", "words"),
    [
        ("schedulerName", {"schedulerName": "another"}, ('has "another"', 'has "gang-scheduler"')),
        (
            "preemptionPolicy",
            {"priorityClassName": "gentle"},
            ('has "Never"', 'has "PreemptLowerPriority"'),
        ),
    ],
)
@pytest.mark.lived_in("long")
async def test_one_pod_of_another_kind_holds_the_tree(
    story: Story, field: str, spec: dict[str, Any], words: tuple[str, str]
) -> None:
    """H05: another scheduler or preemption policy: held with both values, at every level; mended, it runs."""
    await create_priority_class(story.api, "gentle", 0, preemptionPolicy="Never")
    await story.create(
        *nodes(2),
        a_group("root", gang=2, composite=True),
        a_group("one", gang=1, parent="root"),
        a_group("two", gang=1, parent="root"),
        member("x", "one", requests=GPU),
        member("y", "two", requests=GPU, **spec),
    )
    for kind, name in (("CompositePodGroup", "root"), ("PodGroup", "one"), ("PodGroup", "two")):
        await until_condition(story, kind, name, "SchedulerError", f"share one {field}")
        message = (await condition(story, kind, name))["message"]
        assert all(word in message for word in words), message
    await until_event(story, "x", f"share one {field}")
    await unwritten(story, f"{GROUPS}/compositepodgroups/root")
    assert not await story.bound()
    await story.api.delete(f"{PODS}/y", {"gracePeriodSeconds": 0})
    await story.create(member("z", "two", requests=GPU))
    await story.until_bound(2)
    await until_condition(story, "CompositePodGroup", "root", "Scheduled", "minimum")
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.lived_in("long")
async def test_a_parent_that_comes_late(story: Story) -> None:
    """H02: leaf and pod are held aside and report what for; the root comes and they run, the pod untouched."""
    await story.create(
        *nodes(1), a_group("leaf", gang=1, parent="root"), member("p", "leaf", requests=GPU)
    )
    text = "waits for its parent CompositePodGroup/default/root, which does not exist"
    await until_condition(story, "PodGroup", "leaf", "Unschedulable", text)
    await until_event(story, "p", text)
    before = (await story.pods())["p"]["metadata"]
    await unwritten(story, f"{GROUPS}/podgroups/leaf")
    assert (await story.pods())["p"]["metadata"]["resourceVersion"] == before["resourceVersion"]
    await story.create(a_group("root", gang=1, composite=True))
    await story.until_bound(1)
    await until_condition(story, "PodGroup", "leaf", "Scheduled", "minimum")
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_group_that_comes_late(story: Story) -> None:
    """B4: the pod reports which group is missing; with the group it runs."""
    await story.create(*nodes(1), member("p", "leaf", requests=GPU))
    await until_event(story, "p", "PodGroup default/leaf does not exist; 1 pod names it and waits")
    await story.create(a_group("leaf", gang=1))
    await story.until_bound(1)
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_child_that_is_not_complete_holds_its_siblings(story: Story) -> None:
    """H07: two of three children are admissible, three are needed: no pod is even tried; then all at once."""
    sizes = {"one": 2, "two": 2, "three": 1}
    await story.create(
        *nodes(5),
        a_group("root", gang=3, composite=True),
        *(a_group(name, gang=size, parent="root") for name, size in sizes.items()),
        *(member(f"{n}-{i}", n, requests=GPU) for n, size in sizes.items() for i in range(size - (n == "two"))),
    )  # fmt: skip
    await until_condition(
        story, "CompositePodGroup", "root", "Unschedulable", "3 required, 2 ready"
    )
    await until_condition(story, "PodGroup", "two", "Unschedulable", "2 required, 1 present")
    await until_event(story, "one-0", "waits for child groups")
    assert not [f for f in await story.service.events() if f["type"] == "GangAdmitted"]
    assert not story.service.calls("filter"), "held by the gate: kube-scheduler never asks"
    await story.create(member("two-1", "two", requests=GPU))
    await story.until_bound(5)
    events = await story.check_events()
    assert len(one_of(events, "GangAdmitted")["assignments"]) == 5


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_pod_that_comes_while_its_tree_is_placed(story: Story) -> None:
    """H09: the decision on its way is not changed; the newcomer joins by a plan of its own."""
    barred = True

    async def bar(method: str, path: str) -> web.Response | None:
        return web.Response(status=503) if barred and path.endswith("/binding") else None

    story.server.before = bar
    await story.create(*nodes(4), *a_gang("train", pods=3, requests=GPU))
    first = (await story.until_event("GangAdmitted", "default/train"))["data"]
    await story.create(member("late", "train", requests=GPU))
    extended = (await story.until_event("GangExtended", "default/train"))["data"]
    assert [a["pod"] for a in extended["assignments"]] == ["default/late"]
    barred = False
    bound = await story.until_bound(4)
    assert {n: bound[n] for n in bound if n != "late"} == {
        a["pod"].partition("/")[2]: a["node"] for a in first["assignments"]
    }
    events = await story.check_events()
    one_of(events, "GangAdmitted")
    assert not [f for f in events if f["type"] == "ReservationReleased"]


def one_of(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [f["data"] for f in events if f["type"] == kind]
    return found


@pytest.mark.full
async def test_min_count_may_change_while_it_waits(story: Story) -> None:
    """minCount above the members waits and reports it; lowered, the gang is bound; nothing is rewritten meanwhile."""
    await story.create(*nodes(3), *a_gang("train", pods=3, minimum=5, requests=GPU))
    await until_condition(story, "PodGroup", "train", "Unschedulable", "5 required, 3 present")
    await until_event(story, "train-0", "waits for members")
    path = f"/apis/{OURS}/namespaces/default/podgroups/train"
    await unwritten(story, path)
    spec = {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    await story.api.patch(path, spec)
    await story.until_bound(3)
    await until_condition(story, "PodGroup", "train", "Scheduled", "minimum")
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_recreated_group_is_another_group(story: Story) -> None:
    """B5: the plan ends with the old UID; the new group's policy counts."""
    await story.create(*nodes(1), *a_gang("train", pods=2, requests=GPU))
    await story.until_event("GangUnschedulable", "default/train", outcome="impossible")
    path = f"/apis/{OURS}/namespaces/default/podgroups/train"
    await story.force(path)
    await story.create(a_group("train", gang=1))
    await story.until_bound(1)
    events = await story.check_events()
    assert len({f["gang_uid"] for f in events if f["gang"] == "default/train"}) == 2
    assert [f["type"] for f in events].count("GangRemoved") == 1
