"""JobSets that are restarted, suspended, or made again: their trees stay, and nothing is placed in part."""

from __future__ import annotations

import pytest

from tests.controlplane.api import ApiError
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


async def test_a_jobset_that_restarts_keeps_its_groups(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A worker fails: all pods are made again, name the old leaves, and are bound as a whole."""
    await story.create(*racks("r0", "r1"))
    jobs = [a_replicated_job("driver", 1, 1), a_replicated_job("worker", 2, 3)]
    await story.api.create(a_jobset("train", jobs))
    await story.until_bound(7, "train-")
    first = await until_running(story, "train-", 7, gone=frozenset())
    before = uids(await until_groups(story, 5))
    await kubelet.fail(next(n for n in await story.pods() if n.startswith("train-worker-0-")))
    await until_running(story, "train-", 7, gone=frozenset(first))
    assert uids(await groups(story)) == before
    assert len(await story.service.events("TreeCompiled")) == 1
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_a_suspended_jobset_keeps_its_groups(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its pods go, and nothing is held for it; resumed, it is placed again as a whole."""
    await story.create(*racks("r0"))
    await story.api.create(a_jobset("asleep", [a_replicated_job("worker", 2, 2)]))
    await story.until_bound(4, "asleep-")
    first = await until_running(story, "asleep-", 4, gone=frozenset())
    before = uids(await groups(story))
    await story.api.patch(f"{JOBSETS}/asleep", {"spec": {"suspend": True}})
    await until_pods(story, 0)
    assert uids(await groups(story)) == before
    await story.api.patch(f"{JOBSETS}/asleep", {"spec": {"suspend": False}})
    await until_running(story, "asleep-", 4, gone=frozenset(first))
    assert uids(await groups(story)) == before


@pytest.mark.full
async def test_no_pod_of_a_new_attempt_is_bound_before_all_can_be(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The old driver terminates for seconds: workers of the new attempt exist and wait, and their nodes stay free for them."""
    await story.create(*racks("r0"))
    driver = a_replicated_job("driver", 1, 1)
    # 6 s here
    driver["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 120
    await story.api.create(a_jobset("train", [driver, a_replicated_job("worker", 1, 3)]))
    await story.until_bound(4, "train-")
    first = await until_running(story, "train-", 4, gone=frozenset())
    old = next(name for name in await story.pods() if name.startswith("train-driver-"))
    await story.api.create(a_job("competitor", 1))
    await until_pods(story, 5)
    await kubelet.fail(next(n for n in await story.pods() if n.startswith("train-worker-")))
    most = 0

    async def gone() -> bool:
        nonlocal most
        pods = await story.pods()
        if old not in pods:
            return True
        fresh = [
            pod for name, pod in pods.items()
            if name.startswith("train-") and pod["metadata"]["uid"] not in first
        ]  # fmt: skip
        most = max(most, len(fresh))
        assert not [pod for pod in fresh if pod["spec"].get("nodeName")]
        assert not await story.bound("competitor-")
        return False

    await story.until(gone)
    assert most == 3  # the new workers were there, beside the old driver
    await until_running(story, "train-", 4, gone=frozenset(first))
    assert not await story.bound("competitor-")
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_a_jobset_of_the_same_name_has_groups_of_its_own(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Deleted and created again at once: the old groups go, and the new tree is placed as a whole."""
    await story.create(*racks("r0"))
    jobs = [a_replicated_job("worker", 2, 2)]
    await story.api.create(a_jobset("train", jobs))
    await story.until_bound(4, "train-")
    before = set(await groups(story))
    await story.api.delete(f"{JOBSETS}/train?propagationPolicy=Background")

    async def created() -> bool:
        try:
            await story.api.create(a_jobset("train", jobs))
        except ApiError:
            return False
        return True

    await story.until(created, every_s=0.1)

    async def replaced() -> bool:
        found = set(await groups(story))
        return len(found) == len(before) and not found & before

    await story.until(replaced, every_s=0.1)
    await story.until_bound(4, "train-")
    await story.check_events()
