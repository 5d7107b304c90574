"""Workloads that cannot become a tree: users see why, with field and value, and what helps is what the text has."""

from __future__ import annotations

import json

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.waiting import create_priority_class
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import (
    RACK,
    a_jobset,
    a_leaderworkerset,
    a_replicated_job,
    groups,
    labelled_namespace,
    listed_trees,
    racks,
    until_event_about,
    until_groups,
    until_pods,
)
from tests.support.service.manifest_builders import a_node

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
LWS_PREFIX = "leaderworkerset.sigs.k8s.io"
REVISION = f"{LWS_PREFIX}/template-revision-hash"
JOBSET_PREFIX = "alpha.jobset.sigs.k8s.io"
LEAF = "gang-extender.dev/pod-group"
EXCLUSIVE = "gang-extender.dev/exclusive"


async def refused(story: Story, workload: Object, reason: str) -> str:
    """Wait until a workload is refused; check that its pods and the commands have the text, and return it.

    Args:
        story: Its cast.
        workload: As it is stored.
        reason: Why it is refused.
    """
    kind, path = workload["kind"], f"default/{workload['metadata']['name']}"
    event = await story.until_event("TreeRefused", reason=reason)
    text: str = event["data"]["message"]
    field: str = event["data"]["field"]
    assert event["data"]["workload"] == path
    assert text.startswith(f"{kind}/{path}: {field}: ")
    assert await until_event_about(story, workload, reason) == text

    async def on_all_pods() -> bool:
        pods = (await story.pods()).values()
        return bool(pods) and all(waits_because(pod) == text for pod in pods)

    await story.until(on_all_pods, every_s=0.1)
    assert not await story.bound()
    assert not await groups(story)
    (line,) = json.loads(await listed_trees(story, "-o", "json"))
    assert (line["workload"], line["kind"], line["outcome"]) == (path, kind, "refused")
    assert (line["reason"], line["message"], line["groups"]) == (reason, text, 0)
    table = "".join((await listed_trees(story)).split())  # a cell of several lines
    assert text.replace(" ", "") in table
    return text


def waits_because(pod: Object) -> str:
    """Return the text of the condition PodScheduled while it is False."""
    conditions = pod["status"].get("conditions", ())
    found = [
        one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"
    ]
    return str(found[0].get("message", "")) if found else ""


def leaves(pods: dict[str, Object]) -> dict[str, set[str]]:
    """Return the racks of the pods of each leaf."""
    found: dict[str, set[str]] = {}
    for pod in pods.values():
        rack = pod["spec"]["nodeName"].partition("-")[0]
        found.setdefault(pod["metadata"]["labels"][LEAF], set()).add(rack)
    return found


async def test_an_exclusive_topology_of_a_leaderworkerset_becomes_ours(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its controller would make the workers when the leader has a node; with ours in its place all are made, and placed as gangs."""
    await story.create(*racks("r0", "r1"))
    serve = a_leaderworkerset("serve", 2, 4)
    serve["metadata"]["annotations"] = {f"{LWS_PREFIX}/exclusive-topology": RACK}
    stored = await story.api.create(serve)
    assert stored["metadata"]["annotations"] == {EXCLUSIVE: f"leaf={RACK}"}
    await story.until_bound(8, "serve-")
    assert sorted(leaves(await story.pods()).values(), key=min) == [{"r0"}, {"r1"}]
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_exclusive_subgroups_of_a_leaderworkerset_are_placed(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its workers are made at once, so it is a gang: each subgroup has a rack of its own, or none of the replica has."""
    await story.create(*racks("r0", "r1", "r2"))
    serve = a_leaderworkerset("serve", 2, 4)
    serve["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] = {"subGroupSize": 2}
    serve["metadata"]["annotations"] = {f"{LWS_PREFIX}/subgroup-exclusive-topology": RACK}
    await story.api.create(serve)
    pods = await until_pods(story, 8)
    (revision,) = {pod["metadata"]["labels"][REVISION] for pod in pods.values()}
    await story.until_bound(4)
    waits = 1 if "serve-0" in await story.bound() else 0
    root = f"default/serve-{waits}-{revision}"
    await story.until_event("GangUnschedulable", root, outcome="impossible")
    assert len(await story.bound()) == 4
    await story.create(*racks("r3"))
    await story.until_bound(8)
    assert sorted(leaves(await story.pods()).values(), key=min) == [{"r0"}, {"r1"}, {"r2"}, {"r3"}]
    await story.check_events()


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_an_exclusive_topology_of_a_jobset_is_refused(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Of one ReplicatedJob: only the first pod of each Job is made, and it waits. With JobSet's node selector all are made, and placed."""
    jobs = [f"default_train-worker-{index}" for index in (0, 1)]
    for number, job in enumerate(jobs):
        labels = {RACK: f"r{number}", f"{JOBSET_PREFIX}/namespaced-job": job}
        await story.create(a_node(f"r{number}-0", labels, cpu="2"))
    train = a_jobset("train", [a_replicated_job("worker", 2, 2)])
    annotations = {f"{JOBSET_PREFIX}/exclusive-topology": RACK}
    template = train["spec"]["replicatedJobs"][0]["template"]
    template["metadata"] = {"annotations": annotations}
    stored = await story.api.create(train)
    await until_pods(story, 2)
    text = await refused(story, stored, "ExclusiveTopology")
    place = "spec.replicatedJobs[0].template.metadata.annotations"
    assert f"{place}[{JOBSET_PREFIX}/exclusive-topology]: '{RACK}'" in text
    assert f"use {EXCLUSIVE}: leaf={RACK} instead, or add {JOBSET_PREFIX}/node-selector" in text
    await story.api.delete(f"{JOBSETS}/train?propagationPolicy=Foreground")
    await story.until_event("TreeRetired", reason="deleted")

    async def gone() -> bool:
        return not (await story.api.get(JOBSETS))["items"] and not await story.pods()

    await story.until(gone, every_s=0.1)
    template["metadata"] = {"annotations": annotations | {f"{JOBSET_PREFIX}/node-selector": "true"}}
    await story.api.create(train)
    where = await story.until_bound(4, "train-")
    assert all(node == f"r{name.split('-')[2]}-0" for name, node in where.items())
    made = await until_groups(story, 3)
    assert sum(one["kind"] == "PodGroup" for one in made.values()) == 2
    await story.check_events()


@pytest.mark.kubernetes("1.37", "1.36")
async def test_two_priorities_in_one_tree_are_refused(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The text has both; a JobSet for each of them is placed."""
    await create_priority_class(story.api, "high", 1000)
    await create_priority_class(story.api, "low", 10)
    await story.create(*racks("r0", nodes=1))
    jobs = {name: a_replicated_job(f"of-{name}", 1, 1) for name in ("high", "low")}
    for name, job in jobs.items():
        job["template"]["spec"]["template"]["spec"]["priorityClassName"] = name
    stored = await story.api.create(a_jobset("train", list(jobs.values())))
    await until_pods(story, 2)
    text = await refused(story, stored, "PrioritiesDiffer")
    assert "of-high has 'high', of-low has 'low'" in text
    assert text.endswith("give them the same priorityClassName, or make a JobSet of each")
    await story.api.delete(f"{JOBSETS}/train?propagationPolicy=Background")
    for name, job in jobs.items():
        await story.api.create(a_jobset(f"train-{name}", [job]))
    await story.until_bound(2, "train-")
    assert json.loads(await listed_trees(story, "-o", "json", "-n", "other")) == []
    await story.check_events()


@pytest.mark.full
async def test_what_only_its_namespace_covers_has_its_domain_alone(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The annotation of LeaderWorkerSet becomes a domain of ours: its members wait until all of them fit into one rack."""
    await story.create(*racks("r0", nodes=2, cpu="1"))
    serve = a_leaderworkerset("serve", 1, 3)
    del serve["metadata"]["labels"]
    serve["metadata"]["annotations"] = {f"{LWS_PREFIX}/exclusive-topology": RACK}
    async with labelled_namespace(story):
        stored = await story.api.create(serve)
        assert f"{LWS_PREFIX}/exclusive-topology" not in stored["metadata"]["annotations"]
        (made,) = (await until_groups(story, 1)).values()
        assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        await story.until(lambda: story.service.events("GangUnschedulable"))
        await story.create(*racks("r0", nodes=3, cpu="1")[2:])
        await story.until_bound(3, "serve-")
    await story.check_events()


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_more_jobs_than_groups_are_coarser_leaves(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """600 Jobs of two pods after a first step: one group for all of them, and an Event with the reason."""
    await story.create(*racks("r0", nodes=1))
    many = a_replicated_job("many", 600, 2, dependsOn=[{"name": "first", "status": "Complete"}])
    stored = await story.api.create(a_jobset("train", [a_replicated_job("first", 1, 1), many]))
    text = await until_event_about(story, stored, "CoarserLeaves")
    assert (
        "ReplicatedJob many has 600 Jobs, more than 512 groups: all its pods are one group" in text
    )
    made = await until_groups(story, 3)
    (leaf,) = (one for name, one in made.items() if name.startswith("train-many-"))
    assert leaf["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1200}}
    await story.until_bound(1, "train-first-")
    assert "CoarserLeaves" in await listed_trees(story, "-o", "json")
