"""PodGangs of Grove while they are filled, scaled, changed in place, or made again; and groups whose name is taken."""

from __future__ import annotations

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.grove_objects import GATE
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import path_of
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.recorded import read_record, submitted
from tests.e2e.trees.workloads import (
    TREE,
    groups,
    labelled_namespace,
    racks,
    uids,
    until_event_about,
    until_groups,
    until_pods,
    until_running,
)
from tests.support.service.manifest_builders import a_group

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

PODS = "/api/v1/namespaces/default/pods"
GANGS = "/apis/scheduler.grove.io/v1alpha1/namespaces/default/podgangs"
SCALING = "/apis/grove.io/v1alpha1/namespaces/default/podcliquescalinggroups"
HELD = "gang-extender.dev/admission"
BASE, SCALED = "serve-0", "serve-0-pd-0"


def a_podcliqueset() -> Object:
    """Make the set of the record: a router, and two replicas of two prefill and two decode; each pod needs one CPU."""
    made = submitted(read_record("grove/created"))
    for clique in made["spec"]["template"]["cliques"]:
        pod = clique["spec"]["podSpec"]
        pod["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        pod["terminationGracePeriodSeconds"] = 1
    return made


def gates(pods: dict[str, Object], gang: str) -> set[tuple[str, ...]]:
    """Return the sets of gates that pods of a PodGang have."""
    return {
        tuple(sorted(gate["name"] for gate in pod["spec"].get("schedulingGates", ())))
        for pod in pods.values()
        if pod["metadata"]["labels"]["grove.io/podgang"] == gang
    }


async def until_gates(story: Story, gang: str, *names: str) -> None:
    """Wait until all pods of a PodGang have exactly these gates."""

    async def look() -> bool:
        return gates(await story.pods(), gang) == {tuple(sorted(names))}

    await story.until(look, every_s=0.1)


def uid_of(thing: Object) -> str:
    uid: str = thing["metadata"]["uid"]
    return uid


@pytest.mark.full
async def test_an_empty_podgang_waits_to_be_filled(
    story: Story, tree_policies: None, controllers: WorkloadControllers
) -> None:
    """It has no groups and is not refused; when it has pod groups, it is a tree."""
    gang = {
        "apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang",
        "metadata": {"name": "late", "namespace": "default", "labels": {TREE: "default"}},
        "spec": {"podgroups": []},
    }  # fmt: skip
    await story.api.create(gang)
    empty = await story.until_event("TreeCompiled", workload="default/late")
    assert not empty["data"].get("groups")
    assert not await groups(story)
    filled = [{"name": name, "minReplicas": 2, "podReferences": []} for name in ("left", "right")]
    await story.api.patch(f"{GANGS}/late", {"spec": {"podgroups": filled}})
    made = await until_groups(story, 3)
    assert set(made) == {"late", "left", "right"}
    assert made["late"]["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    assert not await story.service.events("TreeRefused")
    await story.check_events()


async def test_the_gate_of_grove_and_ours_are_both_lifted(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    operator: None,
    kubelet: Kubelet,
) -> None:
    """Ours waits for capacity; Grove's of a scaled gang waits for the base gang, and nothing is held for that one before."""
    await story.create(*racks("r0", nodes=2))
    async with labelled_namespace(story):
        await story.api.create(a_podcliqueset())
        await until_groups(story, 7)
        await until_pods(story, 9)
        await until_gates(story, BASE, HELD)
        await until_gates(story, SCALED, GATE, HELD)
        await story.until_event("GangUnschedulable", f"default/{BASE}", outcome="impossible")
        assert not await story.bound()
        await story.create(*racks("r1", nodes=1))  # six places: five for the base gang
        assert len(await story.until_bound(5)) == 5
        await until_gates(story, SCALED, HELD)
        await story.until_event("GangUnschedulable", f"default/{SCALED}", outcome="impossible")
        assert len(await story.bound()) == 5
        await story.create(*racks("r2", nodes=2))
        await story.until_bound(9)
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_a_scaling_group_gets_a_replica_more(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    operator: None,
    kubelet: Kubelet,
) -> None:
    """It is a root of its own, placed as a whole; the gangs before keep groups and pods. Scaled down, it goes."""
    await story.create(*racks("r0", "r1", cpu="3"))  # twelve places: three are left
    async with labelled_namespace(story):
        await story.api.create(a_podcliqueset())
        await until_running(story, "serve-0-", 9, gone=frozenset())
        before, pods = uids(await until_groups(story, 7)), uids(await story.pods())
        await story.api.patch(f"{SCALING}/serve-0-pd", {"spec": {"replicas": 3}})
        made = await until_groups(story, 10)
        added = {one["metadata"]["name"] for one in read_record("grove/scaling-group-scaled-up")}
        assert "serve-0-pd-1" in added  # the PodGang; it holds replica 2
        assert set(made) - set(before) == {
            "serve-0-pd-1", "serve-0-pd-2-prefill", "serve-0-pd-2-decode",
        }  # fmt: skip
        assert "parentCompositePodGroupName" not in made["serve-0-pd-1"]["spec"]
        await until_pods(story, 13)
        await until_gates(story, "serve-0-pd-1", HELD)
        await story.until_event("GangUnschedulable", "default/serve-0-pd-1", outcome="impossible")
        assert len(await story.bound()) == 9
        await story.create(*racks("r2", nodes=1))
        await story.until_bound(13)
        assert before.items() <= uids(await groups(story)).items()
        assert pods.items() <= uids(await story.pods()).items()
        await story.api.patch(f"{SCALING}/serve-0-pd", {"spec": {"replicas": 2}})
        assert uids(await until_groups(story, 7)) == before
    await story.check_events()


@pytest.mark.full
async def test_a_podgang_that_gets_another_clique_keeps_its_tree(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    operator: None,
    kubelet: Kubelet,
) -> None:
    """ShapeChanged: what runs goes on, the new pod waits with the reason. Made again with its pods, it is a tree anew."""
    await story.create(*racks("r0", "r1", nodes=3))
    workload = a_podcliqueset()
    async with labelled_namespace(story):
        await story.api.create(workload)
        await until_running(story, "serve-0-", 9, gone=frozenset())
        before, pods = uids(await until_groups(story, 7)), uids(await story.pods())
        template = workload["spec"]["template"]
        router = template["cliques"][0]
        template["cliques"].append(router | {"name": "cache"})
        await story.api.patch(path_of(workload, named=True), {"spec": {"template": template}})
        text = await until_event_about(
            story, await story.api.get(f"{GANGS}/{BASE}"), "ShapeChanged"
        )
        assert "spec.podgroups: they are serve-0-cache, serve-0-pd-0-decode" in text
        assert "the tree was made for serve-0-pd-0-decode" in text
        (cache,) = set(await until_pods(story, 10)) - set(pods)

        async def explained() -> bool:
            conditions = (await story.pods())[cache]["status"].get("conditions", ())
            return any(one.get("message") == text for one in conditions)

        await story.until(explained, every_s=0.1)
        assert uids(await groups(story)) == before
        assert len(await story.bound()) == 9
        await until_running(story, "serve-0-", 9, gone=frozenset())
        old = await story.api.get(f"{GANGS}/{BASE}")
        await story.api.delete(f"{GANGS}/{BASE}")

        async def made_again() -> Object | None:
            found = (await story.api.get(GANGS))["items"]
            fresh = [one for one in found if one["metadata"]["name"] == BASE]
            return fresh[0] if fresh and uid_of(fresh[0]) != uid_of(old) else None

        refused = await story.until_event("TreeRefused", reason="ShapeChanged")
        await story.until_event("TreeCompiled", after=refused["position"])
        gang = await story.until(made_again)
        text = await until_event_about(story, gang, "NameTaken")
        assert "is being deleted, which ends with the last of its pods" in text
        for name, pod in (await story.pods()).items():  # one after the other, as in a roll-out
            if name in pods and pod["metadata"]["labels"]["grove.io/podgang"] == BASE:
                await story.api.delete(f"{PODS}/{name}")

                async def replaced(name: str = name) -> bool:
                    found = await story.pods()
                    return name not in found and len(found) == 10

                await story.until(replaced, every_s=0.1)

        async def again() -> bool:
            made = uids(await groups(story))
            return "serve-0-cache" in made and made.get(BASE, before[BASE]) != before[BASE]

        await story.until(again, every_s=0.1)
        await story.until_bound(10)
        now = uids(await until_groups(story, 8))
        stayed = {name for name in before if now[name] == before[name]}
        assert stayed == {SCALED, "serve-0-pd-1-prefill", "serve-0-pd-1-decode"}
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_a_group_whose_name_another_one_has_is_made_when_that_one_is_gone(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    operator: None,
    kubelet: Kubelet,
) -> None:
    """NameTaken: the group of another owner stays as it is; deleted, its place is taken, and the tree is placed."""
    await story.create(*racks("r0", "r1", nodes=3))
    await story.create(a_group("serve-0-router", gang=7))
    before = (await groups(story))["serve-0-router"]
    async with labelled_namespace(story):
        await story.api.create(a_podcliqueset())
        await until_pods(story, 9)
        gang = await story.api.get(f"{GANGS}/{BASE}")
        text = await until_event_about(story, gang, "NameTaken")
        assert "PodGroup/default/serve-0-router exists already" in text
        assert "delete it, or give the workload another name" in text
        made = await until_groups(story, 7)
        assert made["serve-0-router"]["spec"] == before["spec"]
        assert made["serve-0-router"]["metadata"].get("ownerReferences") is None
        await until_pods(story, 9)
        await story.api.delete(f"/apis/{OURS}/namespaces/default/podgroups/serve-0-router")
        await story.until_bound(9)
    made = await groups(story)
    assert made["serve-0-router"]["spec"]["parentCompositePodGroupName"] == BASE
    await story.check_events()
