"""Workloads with the label alone: their real controllers make the pods, the shipped policies name the leaves, and our
service, under the RBAC that we ship, makes the groups and places each tree as one unit.
"""

from __future__ import annotations

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.workloads import (
    RACK,
    TREE,
    a_job,
    a_jobset,
    a_replicated_job,
    a_template,
    groups,
    racks,
    until_groups,
    until_pods,
)

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]


async def test_a_job_with_the_label_is_all_or_nothing(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Four pods, capacity for two: no pod is bound; with the other rack all four are."""
    await story.create(*racks("r0", nodes=1))
    await story.api.create(a_job("fit", 4))
    pods = await until_pods(story, 4)
    leaves = {pod["metadata"]["labels"]["gang-extender.dev/pod-group"] for pod in pods.values()}
    (leaf,) = leaves
    made = await until_groups(story, 1)
    assert made[leaf]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    (owner,) = made[leaf]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "fit", True)
    await story.until_event("GangUnschedulable", f"default/{leaf}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1))
    assert len(await story.until_bound(4, "fit-")) == 4
    await story.check_events()


async def test_a_jobset_with_the_label_becomes_a_tree(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A driver and two slices of two, each slice in one rack; the tree is placed as a whole."""
    await story.create(*racks("r0", "r1"))
    jobs = [a_replicated_job("driver", 1, 1), a_replicated_job("worker", 2, 3)]
    await story.api.create(a_jobset("train", jobs, topology=f"leaf={RACK}"))
    where = await story.until_bound(7, "train-")
    made = await until_groups(story, 5)
    kinds = {name: one["kind"] for name, one in made.items()}
    assert sorted(kinds.values()) == ["CompositePodGroup"] * 2 + ["PodGroup"] * 3
    for index in (0, 1):
        names = [name for name in where if name.startswith(f"train-worker-{index}-")]
        assert len({where[name].partition("-")[0] for name in names}) == 1
    (root,) = [
        name for name, one in made.items() if "parentCompositePodGroupName" not in one["spec"]
    ]
    await story.until_event("GangScheduled", f"default/{root}")
    await story.check_events()


async def test_a_refused_jobset_is_held_and_explained(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The Event on the JobSet and the condition of its pods have the field, the value and what to use instead."""
    await story.create(*racks("r0"))
    wrong = a_jobset("odd", [a_replicated_job("worker", 1, 2)], topology="row=net/rack")
    await story.api.create(wrong)
    await until_pods(story, 2)
    event = await story.until_event("TreeRefused")
    message = event["data"]["message"]
    assert "gang-extender.dev/topology" in message
    assert "'row'" in message

    async def explained() -> bool:
        conditions = [
            condition
            for pod in (await story.pods()).values()
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled"
        ]
        return len(conditions) == 2 and all(one["message"] == message for one in conditions)

    await story.until(explained, every_s=0.1)
    assert message[:60] in " ".join((await story.kubectl("describe", "jobset", "odd")).split())
    assert not await story.bound()


async def test_a_leaf_that_is_deleted_by_hand_comes_back(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its pods are gated and wait; the group is made again, and they are placed."""
    await story.create(*racks("r0", nodes=1))
    await story.api.create(a_job("fit", 4))
    (leaf,) = await until_groups(story, 1)
    await until_pods(story, 4)
    before = (await groups(story))[leaf]["metadata"]["uid"]
    await story.api.delete(f"/apis/{OURS}/namespaces/default/podgroups/{leaf}")

    async def again() -> bool:
        found = (await groups(story)).get(leaf)
        return found is not None and found["metadata"]["uid"] != before

    await story.until(again, every_s=0.1)
    await story.create(*racks("r1", nodes=1))
    assert len(await story.until_bound(4, "fit-")) == 4


async def test_the_groups_go_with_the_workload(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A deleted Job leaves no group; a Job of the same name becomes another leaf."""
    await story.create(*racks("r0"))
    await story.api.create(a_job("fit", 2))
    await story.until_bound(2, "fit-")
    first = set(await groups(story))
    await story.api.delete(
        "/apis/batch/v1/namespaces/default/jobs/fit?propagationPolicy=Background"
    )
    await until_groups(story, 0)
    await story.until_event("TreeRetired", reason="deleted")

    async def created() -> bool:
        try:
            await story.api.create(a_job("fit", 2))
        except ApiError:
            return False
        return True

    await story.until(created, every_s=0.2)
    assert not first & set(await until_groups(story, 1))
    await story.until_bound(2, "fit-")


async def test_steps_of_a_jobset_are_placed_one_after_the_other(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The Jobs of the second step do not exist yet and hold no pod; they are a gang when they come."""
    await story.create(*racks("r0"))
    jobs = [
        a_replicated_job("first", 1, 1),
        a_replicated_job("second", 1, 4, dependsOn=[{"name": "first", "status": "Complete"}]),
    ]
    await story.api.create(a_jobset("steps", jobs))
    (first,) = await story.until_bound(1, "steps-first-")
    made = await until_groups(story, 3)
    (root,) = [one for one in made.values() if one["kind"] == "CompositePodGroup"]
    assert root["spec"]["schedulingPolicy"] == {"basic": {}}

    async def finished() -> bool:
        await kubelet.succeed(first)
        return bool((await story.bound("steps-second-")) or len(await story.pods()) > 1)

    await story.until(finished, every_s=0.5)
    assert len(await story.until_bound(4, "steps-second-")) == 4
    await story.check_events()


async def test_replicas_of_a_leaderworkerset_are_trees(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Each replica of three is a gang in one rack; the leader's pods and the workers' name the same leaf."""
    await story.create(*racks("r0", "r1"))
    pods = {
        "size": 3, "workerTemplate": a_template() | {"metadata": {}},
        "restartPolicy": "RecreateGroupOnPodRestart",
    }  # fmt: skip
    pods["workerTemplate"]["spec"]["restartPolicy"] = "Always"
    await story.api.create({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve", "namespace": "default", "labels": {TREE: "default"},
            "annotations": {"gang-extender.dev/topology": f"leaf={RACK}"},
        },
        "spec": {"replicas": 2, "leaderWorkerTemplate": pods},
    })  # fmt: skip
    where = await story.until_bound(6, "serve-")
    for replica in (0, 1):
        names = [n for n in where if n == f"serve-{replica}" or n.startswith(f"serve-{replica}-")]
        assert len(names) == 3
        assert len({where[name].partition("-")[0] for name in names}) == 1
    assert len(await until_groups(story, 2)) == 2
    await story.check_events()
