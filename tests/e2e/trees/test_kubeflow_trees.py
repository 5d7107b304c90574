"""PyTorchJobs, TFJobs, MPIJobs and their siblings with the real controllers of Kubeflow: a gang over their replica types."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import (
    TREE,
    a_template,
    groups,
    racks,
    until_groups,
    until_pods,
    until_running,
)

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"


def a_kubeflow_job(kind: str, field: str, replicas: dict[str, int], **spec: Any) -> Object:
    """Make a job of Kubeflow with so many pods of each replica type."""
    template = a_template()
    template["spec"]["containers"][0]["name"] = {
        "PyTorchJob": "pytorch",
        "TFJob": "tensorflow",
        "XGBoostJob": "xgboost",
        "PaddleJob": "paddle",
        "JAXJob": "jax",
    }.get(kind, "main")
    del template["spec"]["restartPolicy"]  # that of the replica type counts
    return {
        "apiVersion": "kubeflow.org/v2beta1" if kind == "MPIJob" else "kubeflow.org/v1", "kind": kind,
        "metadata": {"name": "tune", "namespace": "default", "labels": {TREE: "default"}},
        "spec": {
            field: {
                role: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
                for role, count in replicas.items()
            },
            **spec,
        },
    }  # fmt: skip


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kind", "field", "replicas"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", {"Master": 1, "Worker": 3}),
        ("TFJob", "tfReplicaSpecs", {"Chief": 1, "PS": 1, "Worker": 2}),
        ("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 3}),
        pytest.param(
            "XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 3}, marks=pytest.mark.full
        ),
        pytest.param(
            "PaddleJob", "paddleReplicaSpecs", {"Master": 1, "Worker": 3}, marks=pytest.mark.full
        ),
        pytest.param("JAXJob", "jaxReplicaSpecs", {"Worker": 4}, marks=pytest.mark.full),
    ],
)
async def test_the_replica_types_of_a_job_start_together(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    kind: str,
    field: str,
    replicas: dict[str, int],
) -> None:
    """Four pods, capacity for two: nothing is bound; with another rack all of them are."""
    await story.create(*racks("r0", nodes=1))
    await story.api.create(a_kubeflow_job(kind, field, replicas))
    await until_pods(story, 4)
    leaves = {f"tune-{kind.lower()}-{role.lower()}": count for role, count in replicas.items()}
    alone = len(leaves) == 1  # one replica type is one leaf
    root = next(iter(leaves)) if alone else f"tune-{kind.lower()}"
    found = await until_groups(story, len({root, *leaves}))
    policies = {name: one["spec"]["schedulingPolicy"] for name, one in found.items()}
    expected = {name: {"gang": {"minCount": count}} for name, count in leaves.items()}
    above = {} if alone else {root: {"gang": {"minGroupCount": len(leaves)}}}
    assert policies == above | expected
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1))
    assert len(await story.until_bound(4, "tune-")) == 4
    await story.check_events()


@pytest.mark.full
async def test_a_pytorchjob_is_suspended_and_ends(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Suspended its pods go and its groups stay; when the master has succeeded and the workers are cleaned up, the groups go."""
    await story.create(*racks("r0", "r1"))
    cleaned = {"cleanPodPolicy": "Running"}
    replicas = {"Master": 1, "Worker": 3}
    job = a_kubeflow_job("PyTorchJob", "pytorchReplicaSpecs", replicas, runPolicy=cleaned)
    await story.api.create(job)
    first = await until_running(story, "tune-", 4, gone=frozenset())
    await story.api.patch(f"{JOBS}/tune", {"spec": {"runPolicy": {"suspend": True}}})
    await until_pods(story, 0)
    assert len(await groups(story)) == 3
    await story.api.patch(f"{JOBS}/tune", {"spec": {"runPolicy": {"suspend": False}}})
    await until_running(story, "tune-", 4, gone=frozenset(first))
    await kubelet.succeed("tune-master-0")
    await until_groups(story, 0)
    await story.check_events()


@pytest.mark.full
async def test_the_launcher_of_an_mpijob_comes_when_its_workers_are_ready(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Two steps: the workers are a gang of their own, and the launcher is placed after them."""
    await story.create(*racks("r0", nodes=1))
    spec = {"launcherCreationPolicy": "WaitForWorkersReady"}
    await story.api.create(
        a_kubeflow_job("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}, **spec)
    )
    assert len(await story.until_bound(2, "tune-worker-")) == 2
    await until_pods(story, 3)
    assert not await story.bound("tune-launcher")
    await story.create(*racks("r1", nodes=1))
    await story.until_bound(3, "tune-")
    await story.check_events()
