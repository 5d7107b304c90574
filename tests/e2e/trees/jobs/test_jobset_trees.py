"""JobSets with the label: their trees, steps and refusals."""

from __future__ import annotations

import asyncio

import pytest

from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import (
    RACK,
    TREE,
    a_job,
    a_jobset,
    a_replicated_job,
    groups,
    racks,
    until_groups,
    until_pods,
    until_running,
)

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]


JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


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


@pytest.mark.full
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


@pytest.mark.kubernetes("1.37", full=["1.36"])
async def test_a_jobset_with_exclusive_topology_has_a_rack_for_each_job(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """All pods are made at once, so it is placed as a whole: of a second one, for which one rack is left, no Job runs until there are two."""
    await story.create(*racks("r0", "r1", "r2"))

    async def created(name: str) -> None:
        jobset = a_jobset(name, [a_replicated_job("worker", 2, 2)])
        jobset["metadata"]["annotations"] = {EXCLUSIVE: RACK}
        stored = await story.api.create(jobset)
        annotations = stored["metadata"]["annotations"]
        assert annotations == {"gang-extender.dev/exclusive": f"leaf={RACK}"}

    def in_racks(where: dict[str, str]) -> dict[str, set[str]]:
        of_jobs: dict[str, set[str]] = {}
        for pod, node in where.items():
            of_jobs.setdefault(pod.rpartition("-worker-")[2][0], set()).add(node.partition("-")[0])
        return of_jobs

    await created("first")
    first = in_racks(await story.until_bound(4, "first-"))
    assert [len(used) for used in first.values()] == [1, 1]
    assert first["0"] != first["1"]
    await created("second")
    await story.until_event("GangUnschedulable", outcome="impossible")
    assert not await story.bound("second-")
    await story.create(*racks("r3"))
    second = in_racks(await story.until_bound(4, "second-"))
    assert {*second["0"], *second["1"]} == {"r0", "r1", "r2", "r3"} - first["0"] - first["1"]
    await story.check_events()


@pytest.mark.full
async def test_steps_of_a_jobset_are_placed_one_after_the_other(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The Jobs of the second step do not exist yet and hold nothing: another Job runs on their nodes. Then they are a gang."""
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
    await story.api.create(a_job("guest", 3))
    guests = await story.until_bound(3, "guest-")
    await until_running(story, "", 4, gone=frozenset())
    seen = (await story.service.events())[-1]["position"]
    await kubelet.succeed(first)
    await until_pods(story, 8)
    (second,) = [name for name in made if name.startswith("steps-second-")]
    step = f"default/{root['metadata']['name']}"
    await story.until_event("GangUnschedulable", step, after=seen, outcome="impossible")
    assert not await story.bound("steps-second-")
    await asyncio.gather(*(kubelet.succeed(name) for name in guests))
    assert len(await story.until_bound(4, "steps-second-")) == 4
    assert (await groups(story))[second]["metadata"]["uid"] == made[second]["metadata"]["uid"]
    await story.check_events()


@pytest.mark.full
async def test_steps_in_order_are_placed_one_after_the_other(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """InOrder: the second ReplicatedJob has no Job until the first one is ready, and is a gang when it comes."""
    await story.create(*racks("r0"))
    jobs = [a_replicated_job("first", 1, 2), a_replicated_job("second", 1, 2)]
    jobset = a_jobset("steps", jobs)
    jobset["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    kubelet.late_s = 1.0
    await story.api.create(jobset)
    await story.until_bound(2, "steps-first-")
    assert not [name for name in await story.pods() if name.startswith("steps-second-")]
    kubelet.late_s = 0.0
    made = await until_groups(story, 3)
    (root,) = [one for one in made.values() if one["kind"] == "CompositePodGroup"]
    assert root["spec"]["schedulingPolicy"] == {"basic": {}}
    assert len(await story.until_bound(2, "steps-second-")) == 2
    await story.check_events()


@pytest.mark.full
async def test_a_jobset_from_before_the_label_stays_as_it_is(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """It and its namespace get the label while it runs: no leaf, gate or group, also of Jobs that are made afterwards."""
    await story.create(*racks("r0"))
    jobset = a_jobset("early", [a_replicated_job("worker", 2, 1)])
    del jobset["metadata"]["labels"]
    await story.api.create(jobset)
    await story.until_bound(2, "early-")
    first = await until_running(story, "early-", 2, gone=frozenset())
    await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: "default"}}})
    try:
        await until_stamped(story)
        await story.api.patch(f"{JOBSETS}/early", {"metadata": {"labels": {TREE: "default"}}})
        await kubelet.fail(next(iter(await story.pods())))
        await until_running(story, "early-", 2, gone=frozenset(first))
    finally:
        await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: None}}})
    for pod in (await story.pods()).values():
        assert "gang-extender.dev/pod-group" not in pod["metadata"]["labels"]
        assert "schedulingGates" not in pod["spec"]
    assert not await groups(story)
    assert not await story.service.events("TreeCompiled")


async def until_stamped(story: Story) -> None:
    """Wait until the admission policies have seen the label of the namespace: a Job without one is stamped."""
    probe = a_job("probe", 1)
    del probe["metadata"]["labels"]

    async def stamped() -> bool:
        made = await story.api.post(JOBS, probe, dryRun="All")
        return TREE in made["spec"]["template"]["metadata"].get("labels", {})

    await story.until(stamped)
