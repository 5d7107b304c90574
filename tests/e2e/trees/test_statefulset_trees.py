"""StatefulSets with the label, with the real controller: a gang if all pods start at once."""

from __future__ import annotations

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

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]

SETS = "/apis/apps/v1/namespaces/default/statefulsets"


def a_statefulset(replicas: int, cpu: str = "1") -> Object:
    template: Object = a_template(cpu) | {"metadata": {"labels": {"app": "web"}}}
    template["spec"]["restartPolicy"] = "Always"
    return {
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default", "labels": {TREE: "default"}},
        "spec": {
            "replicas": replicas, "podManagementPolicy": "Parallel", "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}}, "template": template,
        },
    }  # fmt: skip


async def test_the_pods_of_a_statefulset_start_together_and_roll_one_by_one(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Four pods, capacity for two: nothing is bound. A new template replaces each pod in the same group; scaled to zero it goes."""
    await story.create(*racks("r0", nodes=1))
    await story.api.create(a_statefulset(4))
    await until_pods(story, 4)
    found = await until_groups(story, 1)
    assert found["web-sts"]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    await story.until_event("GangUnschedulable", "default/web-sts", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", "r2"))
    assert len(await story.until_bound(4, "web-")) == 4
    first = await until_running(story, "web-", 4, gone=frozenset())
    changed = a_statefulset(4, "500m")["spec"]["template"]
    await story.api.patch(f"{SETS}/web", {"spec": {"template": changed}})
    await until_running(story, "web-", 4, gone=frozenset(first))
    uid = found["web-sts"]["metadata"]["uid"]
    assert (await groups(story))["web-sts"]["metadata"]["uid"] == uid
    await story.api.patch(f"{SETS}/web", {"spec": {"replicas": 0}})
    await until_groups(story, 0)
    await story.check_events()
