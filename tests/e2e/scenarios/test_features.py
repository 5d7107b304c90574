"""Feature gates of others: fields that kube-apiserver drops, and kube-scheduler's own group scheduling (K50 to K60).

Asked of the real programs: what the probe finds of them, and what becomes of trees. kube-apiserver 1.36 as the site
runs it has GenericWorkload alone, so its PodGroups lose most fields.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.scenarios.conftest import Story, member, real
from tests.support.service.manifest_builders import RACK, a_group, a_node, a_pod

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
VERSIONS = {"1.36": "scheduling.k8s.io/v1alpha2", "1.37": "scheduling.k8s.io/v1alpha3"}
USUAL = "PodGroupInitiallyScheduled"
THEIRS = {"1.36": "PodGroupScheduled", "1.37": USUAL}  # what kube-scheduler itself writes
EXPLAINED = "PlacementExplained"
# Feature gates of kube-apiserver that the site switches on, off again.
NO_TREES = "TopologyAwareWorkloadScheduling=false,CompositePodGroup=false"
NOTHING = f"GenericWorkload=false,{NO_TREES}"
Object = dict[str, Any]


def nodes(first: int, count: int) -> list[Object]:
    return [a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=8) for i in range(first, first + count)]


def members(group: str, count: int, **spec: Any) -> list[Object]:
    """Make pods that name a group by the field, as controllers of 1.36 and later do."""
    field = {"schedulingGroup": {"podGroupName": group}}
    return [a_pod(f"{group}-{n}", requests=GPU, **field, **spec) for n in range(count)]


def gang(story: Story, name: str, pods: int, minimum: int = 0, **more: Any) -> list[Object]:
    """Make a built-in group and its pods."""
    version = VERSIONS[story.plane.minor]
    return [a_group(name, gang=minimum or pods, version=version, **more), *members(name, pods)]


async def group_of(story: Story, name: str) -> Object:
    version = VERSIONS[story.plane.minor]
    found: Object = await story.api.get(f"/apis/{version}/namespaces/default/podgroups/{name}")
    return found


async def conditions_of(story: Story, name: str) -> dict[str, Object]:
    group = await group_of(story, name)
    return {c["type"]: c for c in group.get("status", {}).get("conditions", [])}


async def until_condition(story: Story, name: str, type_: str, words: str) -> None:
    async def shown() -> bool:
        return words in (await conditions_of(story, name)).get(type_, {}).get("message", "")

    await story.until(shown)


def lost(event: Object) -> set[tuple[str, str, str]]:
    """Return kind, field and gate of everything that is lost."""
    return {
        (x["object"].split()[-1], x["field"], x["gate"]) for x in event["data"]["dropped_fields"]
    }


@pytest.mark.full
@pytest.mark.kubernetes("1.36")
@pytest.mark.lived_in("long")
async def test_a_tree_that_lost_a_constraint_is_refused(story: Story) -> None:
    """Gates off in kube-apiserver: the event names what is lost, and no gang is placed without its constraint."""
    found = await story.until_event("ControlPlaneFeaturesDetected", admission_policy="on")
    assert found["data"]["served"] == [
        f"{VERSIONS['1.36']} PodGroup",
        f"{VERSIONS['1.36']} Workload",
    ]
    assert found["data"]["untested"] == []
    here = {(field, gate) for kind, field, gate in lost(found) if kind == "PodGroup"}
    assert {
        ("spec.schedulingConstraints", "TopologyAwareWorkloadScheduling"),
        ("spec.disruptionMode", "WorkloadAwarePreemption"),
        ("spec.resourceClaims", "DRAWorkloadResourceClaims"),
    } <= here
    ready = await story.service.get("/v1/readiness")
    (check,) = [c for c in ready["checks"] if c["name"] == "cluster"]
    assert "kube-apiserver drops" in check["reason"]

    await story.create(*nodes(0, 4), *gang(story, "lost", 2, topo=RACK))
    invalid = await story.until_event("GangInvalid", "default/lost")
    (problem,) = invalid["data"]["problems"]
    assert "PodGroup/default/lost was created with spec.schedulingConstraints" in problem
    assert "switch feature gate TopologyAwareWorkloadScheduling on in kube-apiserver" in problem
    await until_condition(story, "lost", USUAL, "spec.schedulingConstraints")

    # Who asks for nothing that is lost is placed, and so is the same tree in our kinds.
    await story.create(*gang(story, "plain", 2))
    await story.until_bound(2, "plain")
    await story.create(a_group("ours", gang=2, topo=RACK))
    await story.create(*(member(f"ours-{n}", "ours", requests=GPU) for n in range(2)))
    places = await story.until_bound(2, "ours")
    assert len({int(node[1:]) // 2 for node in places.values()}) == 1
    assert not await story.bound("lost")
    await story.check_events()


@pytest.mark.long
@pytest.mark.kubernetes(f"1.37 --feature-gates={NO_TREES}")
@pytest.mark.lived_in("never")
async def test_a_parent_that_was_lost_and_one_that_was_annotated(story: Story) -> None:
    """CompositePodGroup off in kube-apiserver: a leaf that lost its parent is not placed as a root of its own."""
    found = await story.until_event("ControlPlaneFeaturesDetected", admission_policy="on")
    parent = ("PodGroup", "spec.parentCompositePodGroupName", "CompositePodGroup")
    assert parent in lost(found)
    version = VERSIONS["1.37"]
    above = {"annotations": {"gang-extender.dev/parent": "root"}}
    await story.create(
        *nodes(0, 4),
        a_group("orphan", gang=2, parent="root", version=version),
        *members("orphan", 2),
        a_group("root", gang=1, composite=True),
        a_group("child", gang=2, parent="root", version=version, metadata=above),
        *members("child", 2),
    )
    invalid = await story.until_event("GangInvalid", "default/orphan")
    assert "switch feature gate CompositePodGroup on" in invalid["data"]["problems"][0]
    await story.until_bound(2, "child")
    await story.until_event("GangScheduled", "default/root")
    assert not await story.bound("orphan")
    await story.check_events()


@pytest.mark.long
@pytest.mark.kubernetes(f"1.37 --feature-gates={NOTHING}")
@pytest.mark.lived_in("never")
async def test_without_any_gate_our_kinds_work_with_the_field(story: Story) -> None:
    """GenericWorkload off, as by default: the field is dropped, its name is kept as our label, the gang is placed."""
    found = await story.until_event("ControlPlaneFeaturesDetected", admission_policy="on")
    assert found["data"]["served"] == []
    assert lost(found) == {("Pod", "spec.schedulingGroup", "GenericWorkload")}
    await story.create(*nodes(0, 2), a_group("ours", gang=2, topo=RACK), *members("ours", 2))
    await story.until_bound(2, "ours")
    await story.check_events()


@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.native_gangs
@pytest.mark.lived_in("long")
async def test_beside_the_group_scheduling_of_kube_scheduler(story: Story) -> None:
    """Native scheduling on: our plans decide, its cycles carry them out, and each condition has one writer."""
    found = await story.until_event("ControlPlaneFeaturesDetected", native_group_scheduling="on")
    assert "GenericWorkload=true" in found["data"]["message"]
    await story.create(*nodes(0, 3), *gang(story, "train", 5, 4))
    await until_condition(story, "train", EXPLAINED, "it needs 4 pods")
    assert not await story.bound()
    await story.create(*nodes(3, 1))  # capacity for the minimum, none for the fifth
    await story.until_bound(4, "train")
    await story.until_event("GangScheduled", "default/train")
    await until_condition(story, "train", EXPLAINED, "the minimum of the tree is met")

    await story.create(*nodes(4, 1))
    await story.until_bound(5, "train")
    theirs = THEIRS[story.plane.minor]

    async def shown() -> bool:  # not before: 1.37 may leave that to its next success
        return (await conditions_of(story, "train")).get(theirs, {}).get("status") == "True"

    await story.until(shown)
    assert writers(await group_of(story, "train")) == {
        theirs: {"kube-scheduler"},
        EXPLAINED: {"gang-extender"},
    }
    await kept_from_bind(story)
    await story.check_events()


async def kept_from_bind(story: Story) -> None:
    """Trees that kube-scheduler would keep from bind for ever hold no capacity, and report why."""
    await story.create(*nodes(5, 4), a_group("ours", gang=2), *members("ours", 2))
    refused = await story.until_event("GangUnschedulable", "default/ours")
    (reason,) = refused["data"]["reasons"]
    assert "name the group by label gang-extender.dev/pod-group instead" in reason
    await story.create(a_group("mixed", gang=2, version=VERSIONS[story.plane.minor]))
    by_label = real(member("mixed-label", "mixed", requests=GPU))
    await story.create(*members("mixed", 1), by_label)
    await until_condition(story, "mixed", EXPLAINED, "1 of 2; create the others with that field")
    assert not await story.bound("ours")
    assert not await story.bound("mixed")
    assert not [
        f for f in await story.service.events("GangAdmitted") if f["gang"] != "default/train"
    ]
    for pod in ("ours-0", "ours-1", "mixed-0", "mixed-label"):
        await story.api.delete(f"/api/v1/namespaces/default/pods/{pod}", {"gracePeriodSeconds": 0})


def writers(group: Object) -> dict[str, set[str]]:
    """Return who wrote which condition, as the API server has it."""
    found: dict[str, set[str]] = {}
    for entry in group["metadata"]["managedFields"]:
        status = entry["fieldsV1"].get("f:status", {})
        for key in status.get("f:conditions", {}):
            if key.startswith("k:"):
                found.setdefault(json.loads(key[2:])["type"], set()).add(entry["manager"])
    return found
