"""Kueue and the service on one cluster: quota first, then a place; and the AdmissionCheck that asks for the place first.

The objects are those of docs/how-to/kueue.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.processes import Process
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import a_jobset, a_replicated_job, a_template, racks, until_groups
from tests.support.page_commands import blocks

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37"),
]

PAGE = "docs/how-to/kueue.md"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{QUEUES}/namespaces/default/workloads"
QUEUE = {"kueue.x-k8s.io/queue-name": "team-a"}
KUEUES_GATE = "kueue.x-k8s.io/admission"


def of_page(heading: str) -> list[Object]:
    """Return the objects of a section of the page."""
    return [one for block in blocks(PAGE, heading, "yaml") for one in yaml.safe_load_all(block)]


@pytest.fixture(scope="session")
def running_kueue(running_controllers: WorkloadControllers) -> Iterator[Process]:
    """Kueue beside the workload controllers."""
    with running_controllers.also("kueue") as process:
        yield process


@pytest.fixture
async def kueue(running_kueue: Process, controllers: WorkloadControllers) -> AsyncIterator[Process]:
    """Kueue, with no queue and no Workload of another story afterwards."""
    yield running_kueue
    async with controllers.plane.api() as api:
        for path in (f"{QUEUES}/namespaces/default/localqueues", *_CLUSTER_WIDE):
            await api.delete(path)


_CLUSTER_WIDE = tuple(
    f"{QUEUES}/{plural}" for plural in ("clusterqueues", "resourceflavors", "admissionchecks")
)


def a_queued_job(name: str, parallelism: int = 4, **annotations: str) -> Object:
    """Return the Job of the page under another name."""
    (job,) = of_page("Workload")
    job["metadata"]["name"] = name
    job["metadata"]["annotations"] |= {
        f"gang-extender.dev/{key}": value for key, value in annotations.items()
    }
    job["spec"] |= {"parallelism": parallelism, "completions": parallelism}
    return job


async def workload_of(story: Story, owner: str) -> Object | None:
    """Return Kueue's Workload of an object, or None."""
    for workload in (await story.api.get(WORKLOADS))["items"]:
        owners = workload["metadata"].get("ownerReferences", ())
        if any(reference["name"] == owner for reference in owners):
            return workload
    return None


async def has_condition(story: Story, owner: str, kind: str, status: str = "True") -> Any:
    """Return the condition of the Workload of an object if it has that status."""
    workload = await workload_of(story, owner) or {}
    conditions = workload.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == kind and c["status"] == status), None)


async def test_quota_admits_one_job_after_the_other_and_each_is_placed_in_a_rack(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Quota for one Job of two: the first has a rack, the second none of its pods, until the first has ended."""
    await story.create(*racks("r0", "r1"), *of_page("Queue"))
    await story.create(a_queued_job("first"))
    bound = await story.until_bound(4, "first-")
    assert len({node.partition("-")[0] for node in bound.values()}) == 1
    await story.create(a_queued_job("second"))
    reserved = await story.until(lambda: has_condition(story, "second", "QuotaReserved", "False"))
    assert "insufficient unused quota" in reserved["message"]
    assert not [name for name in await story.pods() if name.startswith("second-")]
    for name in bound:
        await kubelet.succeed(name)
    await story.until_bound(4, "second-")
    await story.check_events()


async def test_the_pods_of_a_jobset_are_placed_after_quota(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """All Jobs of the JobSet are suspended until Kueue admits it; then it is a tree as without Kueue."""
    await story.create(*racks("r0", "r1"), *of_page("Queue"))
    jobset = a_jobset("train", [a_replicated_job("w", 2, 2)])
    jobset["metadata"]["labels"] |= QUEUE
    await story.create(jobset)
    assert len(await story.until_bound(4, "train-")) == 4
    await story.check_events()


@pytest.mark.parametrize("kueue_first", [True, False], ids=["Kueue first", "place first"])
async def test_both_gates_go_in_either_order(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet, kueue_first: bool
) -> None:
    """Plain pods have a gate of each. With Kueue's still there no pod is bound; without it the pods are placed.

    Kueue's goes first where quota is there and nodes are not; ours can only follow it, as pods with a gate of another
    controller are no members: with nodes and without quota none is placed.
    """
    queue = of_page("Queue")
    late = queue if not kueue_first else racks("r0")
    await story.create(*(racks("r0") if not kueue_first else queue))
    for number in range(3):
        metadata = {
            "name": f"sweep-{number}",
            "namespace": "default",
            "labels": {
                **QUEUE,
                "gang-extender.dev/tree": "default",
                "kueue.x-k8s.io/pod-group-name": "sweep",
            },
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
        }
        await story.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **a_template()}
        )
    await until_groups(story, 1)

    async def gates() -> set[str]:
        return {
            gate["name"]
            for pod in (await story.pods()).values()
            for gate in pod["spec"].get("schedulingGates", ())
        }

    async def waits() -> bool:
        return (KUEUES_GATE not in await gates()) is kueue_first

    await story.until(waits, every_s=0.1)
    await story.stays(story.none_bound)
    await story.create(*late)
    assert len(await story.until_bound(3, "sweep-")) == 3
    assert not await gates()
    await story.check_events()
