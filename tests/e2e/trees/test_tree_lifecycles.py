"""What becomes of trees while their workloads go on: work that runs out, restarts, suspension, roll-outs, scaling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.recorded import read_record, submitted
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

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"


async def until_running(story: Story, prefix: str, count: int, *, gone: frozenset[str]) -> set[str]:
    """Wait until so many pods run that are not in `gone` and do not terminate; return their UIDs."""

    async def look() -> set[str] | None:
        found = {
            pod["metadata"]["uid"]
            for name, pod in (await story.pods()).items()
            if name.startswith(prefix)
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        } - gone
        return found if len(found) == count else None

    found: set[str] = await story.until(look, every_s=0.1)
    return found


def uids(found: dict[str, Object]) -> dict[str, str]:
    return {name: one["metadata"]["uid"] for name, one in found.items()}


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


async def test_a_jobset_with_exclusive_topology_is_refused(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Its controller makes the other pods when the first one has a node: the text names the annotation instead."""
    await story.create(*racks("r0"))
    jobset = a_jobset("exclusive", [a_replicated_job("worker", 2, 2)])
    jobset["metadata"]["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}
    await story.api.create(jobset)
    event = await story.until_event("TreeRefused")
    assert event["data"]["reason"] == "ExclusiveTopology"
    assert f"gang-extender.dev/topology: leaf={RACK}" in event["data"]["message"]
    assert not await groups(story)
    assert not await story.bound()


def a_leaderworkerset(replicas: int, **spec: Any) -> Object:
    worker = a_template() | {"metadata": {}}
    worker["spec"]["restartPolicy"] = "Always"
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "namespace": "default", "labels": {TREE: "default"}},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": 2, "workerTemplate": worker,
                "restartPolicy": "RecreateGroupOnPodRestart",
            },
            **spec,
        },
    }  # fmt: skip


async def test_a_leaderworkerset_is_scaled_up_down_and_to_zero(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A replica more is a leaf more; a replica less takes its leaf with it; at zero there is none."""
    await story.create(*racks("r0", "r1"))
    await story.api.create(a_leaderworkerset(1))
    await story.until_bound(2, "serve-")
    first = uids(await until_groups(story, 1))
    await story.api.patch(f"{LWS}/serve", {"spec": {"replicas": 3}})
    await story.until_bound(6, "serve-")
    assert first.items() <= uids(await until_groups(story, 3)).items()
    await story.api.patch(f"{LWS}/serve", {"spec": {"replicas": 1}})
    assert uids(await until_groups(story, 1)) == first
    await story.api.patch(f"{LWS}/serve", {"spec": {"replicas": 0}})
    await until_groups(story, 0)


async def test_two_revisions_of_a_leaderworkerset_have_leaves_of_their_own(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A roll-out with surge: an index beyond the replicas, then only leaves of the new revision are left."""
    await story.create(*racks("r0", "r1"))
    rolling = {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0},
    }
    await story.api.create(a_leaderworkerset(2, rolloutStrategy=rolling))
    await story.until_bound(4, "serve-")
    first = await until_running(story, "serve-", 4, gone=frozenset())
    before = set(await until_groups(story, 2))
    template = a_leaderworkerset(2)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500m"
    current = await story.api.get(f"{LWS}/serve")
    stored = current["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    stored["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500m"
    await story.api.patch(
        f"{LWS}/serve", {"spec": {"leaderWorkerTemplate": {"workerTemplate": stored}}}
    )
    await until_running(story, "serve-", 4, gone=frozenset(first))

    async def replaced() -> bool:
        now = set(await groups(story))
        return len(now) == 2 and not now & before

    await story.until(replaced, every_s=0.1)
    await story.check_events()


async def test_gangs_of_grove_are_trees(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    operator: None,
    kubelet: Kubelet,
) -> None:
    """Base and scaled gang are separate roots; both gates go, and all pods are bound."""
    await story.create(*racks("r0", "r1", nodes=4))
    record = submitted(read_record("grove/created"))
    await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: "default"}}})
    try:
        await story.api.create(record)
        await story.until_bound(9, "serve-0-")
    finally:
        await story.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {TREE: None}}})
    made = await groups(story)
    roots = {n for n, one in made.items() if "parentCompositePodGroupName" not in one["spec"]}
    assert roots == {"serve-0", "serve-0-pd-0"}
    assert {n for n, one in made.items() if one["kind"] == "PodGroup"} == {
        "serve-0-router", "serve-0-pd-0-prefill", "serve-0-pd-0-decode",
        "serve-0-pd-1-prefill", "serve-0-pd-1-decode",
    }  # fmt: skip
