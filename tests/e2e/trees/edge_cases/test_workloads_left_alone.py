"""Workloads that something else schedules, and workloads with the longest names: labels, leaves and groups agree."""

from __future__ import annotations

import pytest

from tests.controlplane.api import ApiError, Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story, member
from tests.e2e.trees.workloads import (
    TREE,
    a_job,
    a_jobset,
    a_leaderworkerset,
    a_replicated_job,
    events_about,
    groups,
    listed_trees,
    racks,
    until_event_about,
    until_groups,
)
from tests.support.service.manifest_builders import a_group

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

LEAF = "gang-extender.dev/pod-group"
BUILT_IN = "/apis/scheduling.k8s.io/v1alpha3/namespaces/default/podgroups"
NAME_MAX = 63


@pytest.mark.parametrize("how", [LEAF, "scheduling.x-k8s.io/pod-group", "schedulingGroup"])
async def test_a_job_that_something_else_schedules_is_left_alone(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    how: str,
) -> None:
    """No label in its template, no leaf, no group and no Event of ours; it runs."""
    await story.create(*racks("r0"))
    job = a_job("theirs", 2)
    template, own = job["spec"]["template"], {"mine"}
    if how == "schedulingGroup":
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        await story.api.post(BUILT_IN, {"metadata": {"name": "mine"}, "spec": spec})
        template["spec"]["schedulingGroup"] = {"podGroupName": "mine"}
        own = set()
    else:
        await story.create(a_group("mine", gang=2))
        template["metadata"] = {"labels": {how: "mine"}}
    stored = await left_alone(story, job)
    await story.until_bound(2, "theirs-")
    for name, pod in (await story.pods()).items():
        if name.startswith("theirs-"):
            assert pod["metadata"]["labels"].get(LEAF, "mine") == "mine"
    await nothing_of_ours(story, stored, own)
    await story.check_events()


@pytest.mark.full
async def test_a_scheduling_block_that_is_dropped_is_named(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Without the gate WorkloadWithJob the API server drops it after the policies have seen it: no tree, and an Event."""
    await story.create(*racks("r0"))
    job = a_job("theirs", 2)
    job["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    stored = await left_alone(story, job)
    assert "scheduling" not in stored["spec"]
    await story.until_bound(2, "theirs-")
    text = await until_event_about(story, stored, "LabelNotUsed")
    assert "spec.scheduling, which keeps the label out, and kube-apiserver dropped it" in text
    await nothing_of_ours(story, stored, set(), "LabelNotUsed")
    await story.check_events()


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_job_of_another_controller_is_left_alone(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """spec.managedBy: the Job controller makes no pods; one of the other controller is no member of a tree, and runs."""
    await story.create(*racks("r0"))
    job = a_job("theirs", 2)
    job["spec"]["managedBy"] = "example.com/other"
    stored = await left_alone(story, job)
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": "theirs", "controller": True,
        "uid": stored["metadata"]["uid"],
    }  # fmt: skip
    pod = member("theirs-0", "")
    pod["metadata"] |= {
        "ownerReferences": [owner],
        "labels": stored["spec"]["template"]["metadata"]["labels"],
    }
    await story.api.create(pod)
    await story.until_bound(1, "theirs-")
    assert LEAF not in (await story.pods())["theirs-0"]["metadata"]["labels"]
    await nothing_of_ours(story, stored, set())
    await story.check_events()


async def left_alone(story: Story, job: Object) -> Object:
    """Create a Job; return it as it is stored, without a tree label in its template."""
    stored: Object = await story.api.create(job)
    labels = stored["spec"]["template"]["metadata"]["labels"]
    assert TREE in stored["metadata"]["labels"]
    assert TREE not in labels
    return stored


async def nothing_of_ours(story: Story, theirs: Object, own: set[str], *reasons: str) -> None:
    """Check that the service has nothing about a Job, when it has compiled one that was created later.

    Args:
        story: Its cast.
        theirs: The Job.
        own: Groups that the user made.
        reasons: Of Events that it may have.
    """
    await story.api.create(a_job("later", 2))
    await story.until_bound(2, "later-")
    made = await until_groups(story, 1 + len(own))
    (leaf,) = set(made) - own
    assert leaf.startswith("later-")
    assert set(await events_about(story, theirs)) <= {"SuccessfulCreate", *reasons}
    compiled = await story.service.events("TreeCompiled", "TreeRefused", "TreeRetired")
    assert {event["data"]["workload"] for event in compiled} == {"default/later"}
    listed = await listed_trees(story)
    assert "default/later" in listed
    assert "default/theirs" not in listed


def a_long_job(name: str) -> Object:
    job = a_job(name, 2)
    job["spec"]["completionMode"] = "NonIndexed"
    return job


LONGEST = {
    "Job": a_long_job,
    "JobSet": lambda name: a_jobset(name, [a_replicated_job("worker", 2, 2)]),
    "LeaderWorkerSet": lambda name: a_leaderworkerset(name, 1, 2, startupPolicy="LeaderReady"),
}
# Its webhook takes more, but the name of a StatefulSet with `-0` and a hash of ten characters is the value of a label.
TAKEN_MAX = {"LeaderWorkerSet": NAME_MAX - len("-0-") - 10}


@pytest.mark.full
@pytest.mark.parametrize("kind", LONGEST)
async def test_the_longest_names_agree(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    kind: str,
) -> None:
    """Two workloads with the longest name that works: their leaves are cut, differ, and are bound."""
    await story.create(*racks("r0", "r1"))
    first = await longest(story, kind, "a", TAKEN_MAX.get(kind, NAME_MAX))
    second = await longest(story, kind, "b", len(first))
    assert len(first) == len(second) > 40
    count = 8 if kind == "JobSet" else 4
    await story.until_bound(count)
    pods = await story.pods()
    named = {pod["metadata"]["labels"][LEAF] for pod in pods.values()}
    found = {name for name, one in (await groups(story)).items() if one["kind"] == "PodGroup"}
    assert named == found
    assert len(named) == (2 if kind == "Job" else 4)
    assert max(map(len, named)) == NAME_MAX
    await story.check_events()


async def longest(story: Story, kind: str, letter: str, size: int) -> str:
    """Create a workload with the longest name of at most `size` characters that is accepted, and return the name.

    Names differ in the last letter; those of a LeaderWorkerSet, whose pods have no UID of it, in the first.
    """
    while True:
        rest = "w" * (size - 1)
        name = letter + rest if kind == "LeaderWorkerSet" else rest + letter
        try:
            await story.api.create(LONGEST[kind](name))
        except ApiError as refused:
            if "name" not in str(refused):
                raise
            size -= 1
        else:
            return name


@pytest.mark.full
async def test_names_that_are_cut_to_the_same_are_named(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Two LeaderWorkerSets of one template whose names differ in what is cut: an Event has what helps."""
    await story.create(*racks("r0", "r1"))
    common = "w" * (TAKEN_MAX["LeaderWorkerSet"] - 1)
    both = []
    for letter in "ab":
        both.append(await story.api.create(LONGEST["LeaderWorkerSet"](common + letter)))
        await story.until_bound(2 * len(both))

    async def named() -> list[str]:
        texts = [await events_about(story, one) for one in both]
        return [found["NameTaken"] for found in texts if "NameTaken" in found]

    (text,) = await story.until(named, every_s=0.1)
    assert "give one of the workloads another name" in text
    await story.check_events()
