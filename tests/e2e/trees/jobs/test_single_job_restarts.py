"""One Job of a JobSet is made again, by the failure policy RestartJob: only its leaf asks for its minimum again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import (
    a_job,
    a_jobset,
    a_replicated_job,
    groups,
    racks,
    uids,
    until_groups,
    until_pods,
    until_running,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


@pytest.fixture
def restart_job(running_controllers: WorkloadControllers) -> Iterator[None]:
    """The JobSet controller knows the action RestartJob, whose feature gate is off by default."""
    with running_controllers.feature_gates("jobset", RestartJob=True):
        yield


def _of_job(pods: dict[str, Object], index: int) -> dict[str, Object]:
    return {name: pod for name, pod in pods.items() if name.startswith(f"train-worker-{index}-")}


@pytest.mark.full
async def test_one_job_of_a_jobset_restarts_alone(
    restart_job: None,
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
) -> None:
    """The other Job runs on. The new pods are placed together in the capacity of the old ones, which no other Job gets."""
    await story.create(*racks("r0"))
    worker = a_replicated_job("worker", 2, 2)
    worker["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 40
    jobset = a_jobset("train", [worker])
    jobset["spec"]["failurePolicy"]["rules"] = [{"name": "alone", "action": "RestartJob"}]
    await story.api.create(jobset)
    await story.until_bound(4, "train-")
    await until_running(story, "train-", 4, gone=frozenset())
    before = uids(await until_groups(story, 3))
    first = await story.pods()
    old, others = uids(_of_job(first, 0)), uids(_of_job(first, 1))
    await story.api.create(a_job("competitor", 1))
    await until_pods(story, 5)
    (leaf,) = set(await until_groups(story, 4)) - set(before)
    await story.until_event("GangUnschedulable", f"default/{leaf}")
    failed, survivor = old
    await kubelet.fail(failed)
    # it terminates; the name of its Job is taken until then

    async def gone() -> bool:
        pods = await story.pods()
        if survivor not in pods:
            return True
        fresh = set(uids(_of_job(pods, 0)).values()) - set(old.values())
        assert not fresh & {pod["metadata"]["uid"] for pod in pods.values() if _is_bound(pod)}
        assert not await story.bound("competitor-")
        return False

    await story.until(gone)
    fresh = await until_running(story, "train-worker-0-", 2, gone=frozenset(old.values()))
    now = await story.pods()
    assert uids(_of_job(now, 1)) == others
    assert not await story.bound("competitor-")
    made = uids(await groups(story))
    assert {name: made[name] for name in before} == before
    together = [
        {one["uid"] for one in event["data"]["assignments"]}
        for event in await story.service.events("GangExtended")
    ]
    assert together == [fresh]  # one plan for both: none is bound before the minimum
    status = (await story.api.get(f"{JOBSETS}/train"))["status"]
    assert not status.get("restarts")
    assert len(await story.service.events("TreeCompiled")) == 2  # one for each workload
    await story.check_events()
    await story.check_capacity()


def _is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))
