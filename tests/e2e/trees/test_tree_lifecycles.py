"""What becomes of trees while their workloads go on: work that runs out, restarts, suspension, roll-outs, scaling."""

from __future__ import annotations

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
    a_template,
    groups,
    racks,
    uids,
    until_groups,
    until_running,
)

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"


async def test_replicas_of_a_leaderworkerset_are_trees(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Each replica of three is a gang in one rack; the leader's pods and the workers' name the same leaf."""
    await story.create(*racks("r0", "r1"))
    pods = {
        "size": 3, "workerTemplate": a_template() | {"metadata": {}},
        "restartPolicy": "RecreateGroupOnPodRestart",
    }  # fmt: skip
    pods["workerTemplate"]["spec"]["restartPolicy"] = "Always"
    await story.api.create({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "serve", "namespace": "default", "labels": {TREE: "default"},
            "annotations": {"gang-extender.dev/topology": f"leaf={RACK}"},
        },
        "spec": {"replicas": 2, "leaderWorkerTemplate": pods},
    })  # fmt: skip
    where = await story.until_bound(6, "serve-")
    for replica in (0, 1):
        names = [n for n in where if n == f"serve-{replica}" or n.startswith(f"serve-{replica}-")]
        assert len(names) == 3
        assert len({where[name].partition("-")[0] for name in names}) == 1
    assert len(await until_groups(story, 2)) == 2
    await story.check_events()


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


@pytest.mark.full
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


@pytest.mark.full
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
