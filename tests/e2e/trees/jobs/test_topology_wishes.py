"""What workloads wish of topology, with real controllers and kube-scheduler: preferred levels, near, exclusive, rank order, lost members."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.workloads import RACK, TREE, a_job, a_jobset, a_replicated_job, groups, racks

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]
INDEX = "batch.kubernetes.io/job-completion-index"


async def racks_by_rank(story: Story, bound: dict[str, str]) -> list[str]:
    """Return the rack of each bound pod in the order of completion indexes."""
    pods = await story.pods()
    ranks = {int(pods[name]["metadata"]["labels"][INDEX]): node for name, node in bound.items()}
    return [ranks[rank].partition("-")[0] for rank in sorted(ranks)]


async def preference(story: Story) -> dict[str, Any]:
    """Return what the newest admission records of the preferred levels."""
    event = await story.until_event("GangAdmitted")
    (group,) = event["data"]["groups"]
    (wish,) = [wish for wish in group["wishes"] if wish["kind"] == "preferred"]
    return {name: wish[name] for name in ("key", "value", "best")}


async def test_a_preferred_rack_takes_the_whole_job(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The rack that holds it and keeps least; its lost member comes back there although another rack is free."""
    await story.create(*racks("r0"), *racks("r1", nodes=3))
    await story.api.create(a_job("train", 4, topology=f"leaf=~{RACK}"))
    bound = await story.until_bound(4, "train-")
    assert await racks_by_rank(story, bound) == ["r0"] * 4
    assert await preference(story) == {"key": RACK, "value": 1, "best": 1}

    lost = min(bound)
    await story.until_event("GangScheduled")
    await story.api.delete(f"/api/v1/namespaces/default/pods/{lost}")

    async def replaced() -> bool:
        return len(bound_now := await story.bound("train-")) == 4 and lost not in bound_now

    await story.until(replaced, "the lost member has a successor", every_s=0.1)
    assert await racks_by_rank(story, await story.bound("train-")) == ["r0"] * 4
    await story.check_events()


@pytest.mark.full
async def test_a_preferred_rack_that_is_too_small_refuses_nothing(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """As few racks as possible, with the proof, and neighbours by index in one rack."""
    await story.create(*racks("r0", "r1", "r2"), *racks("r3", nodes=1))
    await story.api.create(a_job("train", 7, topology=f"leaf=~{RACK}"))
    bound = await story.until_bound(7, "train-")
    assert await preference(story) == {"key": RACK, "value": 2, "best": 2}
    order = await racks_by_rank(story, bound)
    assert len(set(order)) == 2
    assert sum(before != after for before, after in itertools.pairwise(order)) == 1
    await story.check_events()


@pytest.mark.full
async def test_each_slice_of_a_job_keeps_its_rack(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """By completion index; a lost member comes back to the rack of its slice although another one has more place."""
    await story.create(*racks("r0", "r1"))
    await story.api.create(a_job("train", 6, slices=f"3@{RACK}"))
    bound = await story.until_bound(6, "train-")
    order = await racks_by_rank(story, bound)
    assert [len({*order[:3]}), len({*order[3:]}), len({*order})] == [1, 1, 2]

    await story.create(*racks("r2", nodes=4))
    lost = next(name for name, node in bound.items() if node.startswith(f"{order[4]}-"))
    await story.until_event("GangScheduled")
    await story.api.delete(f"/api/v1/namespaces/default/pods/{lost}")

    async def replaced() -> bool:
        return len(bound_now := await story.bound("train-")) == 6 and lost not in bound_now

    await story.until(replaced, "the lost member has a successor", every_s=0.1)
    assert await racks_by_rank(story, await story.bound("train-")) == order
    await story.check_events()


@pytest.mark.full
async def test_a_slice_of_kueue_has_several_jobs_of_a_jobset(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Two Jobs each are in one rack, where the TreeProfile reads it, though three would fit into the first."""
    await story.create(*racks("r0", nodes=3), *racks("r1"))
    profile = {"apiVersion": OURS, "kind": "TreeProfile", "metadata": {"name": "kueue"}}
    kinds = [{"kind": "JobSet", "topology": {"readFrom": ["Kueue"]}}]
    await story.api.create(profile | {"spec": {"kinds": kinds}})
    worker = a_replicated_job("worker", 4, 2)
    slices = {"required-topology": RACK, "size": "4"}
    worker["template"]["spec"]["template"]["metadata"] = {
        "annotations": {f"kueue.x-k8s.io/podset-slice-{key}": value for key, value in slices.items()}
    }  # fmt: skip
    jobset = a_jobset("train", [worker])
    jobset["metadata"]["labels"] = {TREE: "kueue"}
    await story.api.create(jobset)
    bound = await story.until_bound(8, "train-")
    of_jobs: dict[str, set[str]] = {}
    for pod, node in bound.items():
        job = pod.rpartition("-worker-")[2][0]
        of_jobs.setdefault(job, set()).add(node.partition("-")[0])
    assert of_jobs["0"] == of_jobs["1"]
    assert of_jobs["2"] == of_jobs["3"]
    assert len(of_jobs["0"] | of_jobs["2"]) == sum(map(len, (of_jobs["0"], of_jobs["2"]))) == 2
    await story.check_events()
    await story.api.delete(f"/apis/{OURS}/treeprofiles/kueue")


@pytest.mark.full
async def test_an_exclusive_rack_is_shared_with_no_other_job(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Each of two Jobs has a rack alone though one holds both; the third waits with their names, and gets the rack of one that ends."""
    await story.create(*racks("r0", "r1"))
    for name in ("a", "b"):
        await story.api.create(a_job(name, 2, exclusive=f"leaf={RACK}"))
    first = await story.until_bound(2, "a-")
    second = await story.until_bound(2, "b-")
    of_first, of_second = (
        {node.partition("-")[0] for node in bound.values()} for bound in (first, second)
    )
    assert sorted([*of_first, *of_second]) == ["r0", "r1"]

    await story.api.create(a_job("late", 2, exclusive=f"leaf={RACK}"))
    refused = await story.until_event("GangUnschedulable", outcome="impossible")
    assert f"2 of 2 domains of {RACK} are taken (r0, r1); free: none" in " ".join(
        refused["data"]["reasons"]
    )
    await story.api.delete(
        "/apis/batch/v1/namespaces/default/jobs/a", {"propagationPolicy": "Background"}
    )
    third = await story.until_bound(2, "late-")
    assert {node.partition("-")[0] for node in third.values()} == of_first
    await story.check_events()


@pytest.mark.full
async def test_roles_of_a_jobset_are_near_each_other(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Each has a rack for itself that is filled exactly; the wish takes both to the one that holds all."""
    await story.create(*racks("r0", nodes=1), *racks("r1"), *racks("r2", nodes=1))
    jobs = [a_replicated_job(name, 1, 2) for name in ("decode", "prefill")]
    near = f"prefill=decode~{RACK}"
    await story.api.create(a_jobset("serve", jobs, topology=f"leaf={RACK}", near=near))
    bound = await story.until_bound(4, "serve-")
    assert {node.partition("-")[0] for node in bound.values()} == {"r1"}
    event = await story.until_event("GangAdmitted")
    wishes = {
        group["name"]: wish
        for group in event["data"]["groups"]
        for wish in group.get("wishes", ())
        if wish["kind"] == "near"
    }
    ((name, wish),) = wishes.items()
    made = await groups(story)
    constraints = made[name]["spec"]["schedulingConstraints"]
    assert constraints["near"] == [{"group": wish["partner"], "key": RACK}]
    assert wish["partner"] != name
    assert wish["partner"] in made
    assert (wish["key"], wish["value"], wish["best"]) == (RACK, 0, 0)
    await story.check_events()


async def lose_a_node(story: Story, bound: dict[str, str]) -> str:
    """Delete a node with the pod on it; return its name."""
    node = min(bound.values())
    await story.kubectl("delete", "node", node)
    for pod in (pod for pod, where in bound.items() if where == node):
        await story.api.delete(f"/api/v1/namespaces/default/pods/{pod}")
    return node


@pytest.mark.full
@pytest.mark.parametrize("choice", ["Widen", "GiveUp"])
async def test_lost_members_leave_a_rack_without_nodes(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    choice: str,
) -> None:
    """The rack had two nodes and has one: the refusal proves it, then the lost pod goes elsewhere, or both do.

    One pod a node: the Job controller waits 10 s after a failed pod, and twice as long after each further one.
    """
    await story.create(*racks("r0", cpu="1"))
    job = a_job("train", 2, topology=f"leaf={RACK}", **{"lost-members": choice})
    await story.api.create(job)
    bound = await story.until_bound(2, "train-")
    await story.until_event("GangScheduled")
    await story.create(*racks("r1", cpu="1"))
    lost = await lose_a_node(story, bound)
    survivors = {pod for pod, node in bound.items() if node != lost}

    async def complete() -> dict[str, str] | None:
        where = await story.bound("train-")
        return where if len(where) == 2 and lost not in where.values() else None

    where = await story.until(complete, "the gang is complete again", every_s=0.1)
    proof = (await story.until_event("GangUnschedulable", outcome="impossible"))["position"]
    order = await racks_by_rank(story, where)
    if choice == "Widen":
        assert survivors < set(where)
        assert sorted(order) == ["r0", "r1"]
        extended = await story.until_event("GangExtended")
        (wish,) = [
            each for each in extended["data"]["groups"][0]["wishes"] if each["kind"] == "preferred"
        ]
        assert (wish["key"], wish["value"], wish["best"]) == (RACK, 2, 2)
        assert extended["position"] > proof
        assert not await story.service.events("PreemptionPlanned")
    else:
        assert survivors.isdisjoint(where)
        assert order == ["r1"] * 2
        planned = await story.until_event("PreemptionPlanned")
        assert {
            pod["pod"].partition("/")[2] for pod in planned["data"]["victims"][0]["pods"]
        } == survivors
        assert planned["position"] > proof
        await story.until_event("PreemptionCompleted")
    await story.check_events()
