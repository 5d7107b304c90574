"""Jobs with the label: gangs, their minimum, and what becomes of them."""

from __future__ import annotations

import asyncio

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.workloads import (
    TREE,
    a_job,
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


JOBS = "/apis/batch/v1/namespaces/default/jobs"


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


@pytest.mark.full
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


@pytest.mark.full
async def test_the_groups_go_with_the_workload(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A deleted Job leaves no group; a Job of the same name becomes another leaf."""
    await story.create(*racks("r0"))
    await story.api.create(a_job("fit", 2))
    await story.until_bound(2, "fit-")
    first = set(await groups(story))
    await story.api.delete(f"{JOBS}/fit?propagationPolicy=Background")
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


@pytest.mark.full
async def test_the_last_pod_of_a_job_runs(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Completions 5, four at a time as a gang: when four are done, the fifth is placed alone."""
    await story.create(*racks("r0"))
    await story.api.create(a_job("fit", 4, 5, min="4"))
    first = await story.until_bound(4, "fit-")
    (leaf,) = await until_groups(story, 1)
    await until_running(story, "fit-", 4, gone=frozenset())
    await asyncio.gather(*(kubelet.succeed(name) for name in first))
    await story.until_bound(5, "fit-")

    async def lowered() -> bool:
        policy = (await groups(story))[leaf]["spec"]["schedulingPolicy"]
        return bool(policy == {"gang": {"minCount": 1}})

    await story.until(lowered, every_s=0.1)
    await story.check_events()


@pytest.mark.full
async def test_the_last_pod_of_a_job_runs_when_an_index_failed_for_good(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """An index without retries counts as done: the minimum follows, and the fifth pod is placed alone."""
    await story.create(*racks("r0"))
    job = a_job("fit", 4, 5, min="4")
    job["spec"] |= {"backoffLimitPerIndex": 0, "maxFailedIndexes": 3}
    del job["spec"]["backoffLimit"]
    await story.api.create(job)
    first = sorted(await story.until_bound(4, "fit-"))
    await until_running(story, "fit-", 4, gone=frozenset())
    await kubelet.fail(first[0])
    await asyncio.gather(*(kubelet.succeed(name) for name in first[1:]))
    await story.until_bound(5, "fit-")
    (last,) = set(await story.pods()) - set(first)
    await kubelet.succeed(last)
    await story.until_event("TreeRetired", reason="finished")
    await until_groups(story, 0)


@pytest.mark.full
async def test_a_suspended_job_keeps_its_leaf(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its pods go and nothing is held for it: another Job runs on its nodes. Resumed, it waits until all of it fits."""
    await story.create(*racks("r0"))
    await story.api.create(a_job("asleep", 4))
    await story.until_bound(4, "asleep-")
    first = await until_running(story, "asleep-", 4, gone=frozenset())
    before = uids(await groups(story))
    await story.api.patch(f"{JOBS}/asleep", {"spec": {"suspend": True}})
    await until_pods(story, 0)
    (leaf,) = before

    async def shown() -> dict[str, str]:
        lines = await story.service.get("/v1/gangs")
        return next(line for line in lines if line["gang"] == f"default/{leaf}")

    async def is_suspended() -> bool:
        return (await shown())["state"] == "suspended"

    await story.until(is_suspended)
    assert (await shown())["waiting_since"] == ""
    assert uids(await groups(story)) == before
    await story.api.create(a_job("other", 1))
    (guest,) = await story.until_bound(1, "other-")
    held = [
        f for f in await story.service.events("MemberTerminated") if f["data"].get("held_until_us")
    ]
    if held:  # the pods went before the suspension was known
        released = await story.until_event("ReservationReleased", reason="deleted")
        assert "no member of its gang runs any more" in released["data"]["message"]
    await story.api.patch(f"{JOBS}/asleep", {"spec": {"suspend": False}})
    await until_pods(story, 5)
    await story.until_event("GangUnschedulable", f"default/{leaf}", outcome="impossible")
    resumed = (await story.service.events("TreeCompiled"))[-1]
    assert "suspended" not in resumed["data"]
    assert (await shown())["waiting_since"] == resumed["time"]
    assert not await story.bound("asleep-")
    await until_running(story, "other-", 1, gone=frozenset())
    await kubelet.succeed(guest)
    await until_running(story, "asleep-", 4, gone=frozenset(first))
    assert (await groups(story))[leaf]["metadata"]["uid"] == before[leaf]
    await story.check_events()


@pytest.mark.full
async def test_a_job_from_before_the_label_stays_as_it_is(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A label that a running Job or its namespace gets later changes no pod, also none that is made afterwards."""
    await story.create(*racks("r0"))
    job = a_job("early", 2)
    del job["metadata"]["labels"]
    await story.api.create(job)
    first = await story.until_bound(2, "early-")
    running = await until_running(story, "early-", 2, gone=frozenset())
    label = {"metadata": {"labels": {TREE: "default"}}}
    await story.api.patch("/api/v1/namespaces/default", label)
    try:
        await story.api.patch(f"{JOBS}/early", label)
        await kubelet.fail(next(iter(first)))
        replaced = await until_running(story, "early-", 2, gone=frozenset())
        assert replaced - running
        for pod in (await story.pods()).values():
            assert "gang-extender.dev/pod-group" not in pod["metadata"]["labels"]
            assert "schedulingGates" not in pod["spec"]
        # the next Job of the namespace is compiled, so the service has seen the label by now
        late = a_job("late", 2)
        del late["metadata"]["labels"]
        await story.api.create(late)
        await story.until_bound(2, "late-")
    finally:
        await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: None}}})
    assert len(await until_groups(story, 1)) == 1
    (compiled,) = await story.service.events("TreeCompiled")
    assert compiled["data"]["workload"] == "default/late"
    described = " ".join((await story.kubectl("describe", "job", "early")).split())
    assert "LabelNotUsed" in described
    assert "create the workload again" in described
