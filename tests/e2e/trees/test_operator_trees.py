"""Workloads of operators with their real controllers: TrainJob, RayCluster, DisaggregatedSet become trees and are placed."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.waiting import create_training_runtime
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.recorded import read_record, submitted
from tests.e2e.trees.workloads import (
    TREE,
    a_template,
    groups,
    racks,
    until_groups,
    until_pods,
    until_running,
)
from tests.support.planning.controller_records import a_staged_runtime

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
RAYCLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
SETS = "/apis/disaggregatedset.x-k8s.io/v1/namespaces/default/disaggregatedsets"
_numbers = count(1)  # a deleted runtime stays until no TrainJob uses it


def a_runtime(*steps: str) -> Object:
    """Make a runtime with these of the recorded steps."""
    runtime = a_staged_runtime()
    jobs = [
        {key: value for key, value in job.items() if key != "dependsOn" or len(steps) > 1}
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
        if job["name"] in steps
    ]
    runtime["metadata"]["name"] = f"runtime-{next(_numbers)}"
    runtime["spec"]["template"]["spec"]["replicatedJobs"] = jobs
    return runtime


def a_trainjob(name: str, runtime: Object, nodes: int, **annotations: str) -> Object:
    spec: Object = {
        "runtimeRef": {"name": runtime["metadata"]["name"]}, "trainer": {"numNodes": nodes},
    }  # fmt: skip
    if "dataset-initializer" in str(runtime):
        spec["initializer"] = {
            "dataset": {"storageUri": "hf://x"}, "model": {"storageUri": "hf://y"},
        }  # fmt: skip
    keys = {f"gang-extender.dev/{key}": value for key, value in annotations.items()}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {
            "name": name, "namespace": "default", "labels": {TREE: "default"}, "annotations": keys,
        },
        "spec": spec,
    }  # fmt: skip


@pytest.mark.parametrize("labelled", ["TrainJob", "Namespace", "ClusterTrainingRuntime"])
async def test_a_trainjob_initializes_and_then_trains_as_a_gang(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    labelled: str,
) -> None:
    """Its JobSet is compiled once, with the TrainJob as owner; the nodes of the trainer are all or nothing."""
    runtime = a_runtime("dataset-initializer", "model-initializer", "node")
    trainjob = a_trainjob("tune", runtime, 3)
    if labelled != "TrainJob":
        del trainjob["metadata"]["labels"]
    if labelled == "ClusterTrainingRuntime":
        runtime["spec"]["template"]["metadata"] = {"labels": {TREE: "default"}}
    namespace = {"metadata": {"labels": {TREE: "default" if labelled == "Namespace" else None}}}
    await story.api.patch("/api/v1/namespaces/default", namespace)
    await story.create(*racks("r0", nodes=1))
    await create_training_runtime(story.api, runtime)
    try:
        await story.api.create(trainjob)
        first = await story.until_bound(2, "tune-")
        made = await until_groups(story, 4)
        owners = {
            (o["kind"], o["name"]) for g in made.values() for o in g["metadata"]["ownerReferences"]
        }
        assert owners == {("TrainJob", "tune")}
        await until_running(story, "tune-", 2, gone=frozenset())
        for name in first:
            await kubelet.succeed(name)
        await until_pods(story, 5)
        (root,) = [n for n, one in made.items() if one["kind"] == "CompositePodGroup"]
        await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
        assert not await story.bound("tune-node-")
        await story.create(*racks("r1", nodes=1))
        assert len(await story.until_bound(3, "tune-node-")) == 3
        (compiled,) = {
            f["data"]["uid"]: f for f in await story.service.events("TreeCompiled")
        }.values()
        assert compiled["data"]["owner"] == "TrainJob/default/tune"
        await story.check_events()
    finally:
        await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: None}}})
        await story.api.delete(f"{RUNTIMES}/{runtime['metadata']['name']}")


@pytest.mark.full
async def test_a_trainjob_with_off_runs_without_a_tree(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """`off` on the TrainJob wins over the label of its namespace, and reaches its JobSet."""
    await story.create(*racks("r0", nodes=1))
    runtime = a_runtime("node")
    await create_training_runtime(story.api, runtime)
    await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: "default"}}})
    try:
        trainjob = a_trainjob("plain", runtime, 2)
        trainjob["metadata"]["labels"] = {TREE: "off"}
        await story.api.create(trainjob)
        await story.until_bound(2, "plain-")
        for pod in (await story.pods()).values():
            assert "gang-extender.dev/pod-group" not in pod["metadata"]["labels"]
        assert not await groups(story)
    finally:
        await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: None}}})
        await story.api.delete(f"{RUNTIMES}/{runtime['metadata']['name']}")


@pytest.mark.full
async def test_the_trials_of_a_search_are_one_tree(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Two TrainJobs name a gang composite of the user's as parent: both are placed, or none."""
    await story.create(*racks("r0", nodes=1))
    runtime = a_runtime("node")
    await create_training_runtime(story.api, runtime)
    await story.api.create({
        "apiVersion": OURS, "kind": "CompositePodGroup",
        "metadata": {"name": "search", "namespace": "default"},
        "spec": {
            "workloadRef": {"workloadName": "search", "templateName": "search"},
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        },
    })  # fmt: skip
    try:
        for name in ("trial-a", "trial-b"):
            await story.api.create(a_trainjob(name, runtime, 2, parent="search"))
        await until_pods(story, 4)
        made = await until_groups(story, 3)  # the search, and a leaf for each trial
        below = [
            n for n, g in made.items() if g["spec"].get("parentCompositePodGroupName") == "search"
        ]
        assert sorted(name.rpartition("-")[0] for name in below) == [
            "trial-a-node-0",
            "trial-b-node-0",
        ]
        await story.until_event("GangUnschedulable", "default/search", outcome="impossible")
        assert not await story.bound()
        await story.create(*racks("r1", nodes=1))
        assert len(await story.until_bound(4, "trial-")) == 4
        await story.check_events()
    finally:
        await story.api.delete(f"{RUNTIMES}/{runtime['metadata']['name']}")


async def test_a_raycluster_starts_as_a_whole(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Head, one small worker and two slices of two hosts at least; a further worker comes where it fits. Suspended, all go."""
    await story.create(*racks("r0", nodes=2))
    cluster = submitted(read_record("raycluster/multi-host"))
    cluster["metadata"]["labels"] = {TREE: "default"}
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        pod["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        pod |= {"terminationGracePeriodSeconds": 1}
    await story.api.create(cluster)
    await until_pods(story, 7)
    made = await until_groups(story, 6)
    (root,) = [n for n, one in made.items() if "parentCompositePodGroupName" not in one["spec"]]
    required = ["rc-ray-headgroup", "rc-ray-slice", "rc-ray-small"]
    assert made[root]["spec"]["schedulingPolicy"] == {
        "gang": {"minGroupCount": 3, "requiredGroups": required}
    }
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1))
    where = await story.until_bound(6, "rc-")
    assert len([name for name in where if name.startswith("rc-slice-")]) == 4
    await story.create(*racks("r2", nodes=1))
    await story.until_bound(7, "rc-")
    first = await until_running(story, "rc-", 7, gone=frozenset())
    await story.api.patch(f"{RAYCLUSTERS}/rc", {"spec": {"suspend": True}})
    await until_pods(story, 0)
    await story.api.patch(f"{RAYCLUSTERS}/rc", {"spec": {"suspend": False}})
    await until_running(story, "rc-", 7, gone=frozenset(first))
    await story.check_events()


@pytest.mark.full
async def test_workers_of_a_raycluster_wait_for_their_head(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Without a minimum of workers there is capacity for all of them and not for the head: nothing is bound before it has a node."""
    await story.create(*racks("r0", nodes=2))
    cluster = submitted(read_record("raycluster/multi-host"))
    cluster["metadata"]["labels"] = {TREE: "default"}
    spec = cluster["spec"]
    spec["workerGroupSpecs"] = [
        {**group, "minReplicas": 0} for group in spec["workerGroupSpecs"] if group["groupName"] == "small"
    ]  # fmt: skip
    for group, cpu in ((spec["headGroupSpec"], "4"), (spec["workerGroupSpecs"][0], "1")):
        group["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        group["template"]["spec"] |= {"terminationGracePeriodSeconds": 1}
    await story.api.create(cluster)
    await until_pods(story, 3)
    made = await until_groups(story, 3)
    (root,) = [n for n, one in made.items() if "parentCompositePodGroupName" not in one["spec"]]
    assert made[root]["spec"]["schedulingPolicy"] == {
        "gang": {"minGroupCount": 1, "requiredGroups": ["rc-ray-headgroup"]}
    }
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1, cpu="4"))
    await story.until_bound(3, "rc-")
    for minimum, required in ((1, ["rc-ray-headgroup", "rc-ray-small"]), (0, ["rc-ray-headgroup"])):
        workers = [{**spec["workerGroupSpecs"][0], "minReplicas": minimum}]
        await story.api.patch(f"{RAYCLUSTERS}/rc", {"spec": {"workerGroupSpecs": workers}})
        gang = {"minGroupCount": len(required), "requiredGroups": required}

        async def followed(gang: Object = gang) -> bool:
            policy = (await groups(story))[root]["spec"]["schedulingPolicy"]
            return bool(policy == {"gang": gang})

        await story.until(followed, every_s=0.1)
    await story.check_events()


def a_disaggregatedset(cpu: str = "1") -> Object:
    def role(name: str) -> Object:
        worker: Object = a_template(cpu) | {"metadata": {}}
        worker["spec"]["restartPolicy"] = "Always"
        spec: dict[str, Any] = {
            "replicas": 1,
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker},
        }
        return {"name": name, "spec": spec}

    return {
        "apiVersion": "disaggregatedset.x-k8s.io/v1", "kind": "DisaggregatedSet",
        "metadata": {"name": "pd", "namespace": "default", "labels": {TREE: "default"}},
        "spec": {"roles": [role("prefill"), role("decode")]},
    }  # fmt: skip


async def test_the_roles_of_a_disaggregatedset_start_together(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Capacity for one role alone: nothing is bound. A new revision is a tree of its own, and the old one goes."""
    await story.create(*racks("r0", nodes=1))
    await story.api.create(a_disaggregatedset())
    await until_pods(story, 4)
    made = await until_groups(story, 5)  # a root, the roles, a leaf for the replica of each
    (root,) = [n for n, one in made.items() if "parentCompositePodGroupName" not in one["spec"]]
    assert made[root]["spec"]["schedulingPolicy"] == {
        "gang": {"minGroupCount": 2, "requiredGroups": [f"{root}-decode", f"{root}-prefill"]}
    }
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", "r2"))
    assert len(await story.until_bound(4, "pd-")) == 4
    first = await until_running(story, "pd-", 4, gone=frozenset())
    await story.api.patch(f"{SETS}/pd", {"spec": a_disaggregatedset("500m")["spec"]})
    await until_running(story, "pd-", 4, gone=frozenset(first))

    async def replaced() -> bool:
        found = set(await groups(story))
        return len(found) == 5 and not found & set(made)

    await story.until(replaced, every_s=0.1)
    await story.check_events()
