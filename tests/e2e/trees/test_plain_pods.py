"""Plain pods with two labels, or those of a pod group of Kueue: a gang whose group the service makes and deletes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import TREE, a_template, racks, until_groups

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]

PODS = "/api/v1/namespaces/default/pods"
OURS = {"labels": {"gang-extender.dev/group": "sweep", "gang-extender.dev/total": "3"}}
KUEUES = {
    "labels": {TREE: "default", "kueue.x-k8s.io/pod-group-name": "sweep"},
    "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
}


def a_plain_pod(number: int, metadata: dict[str, Any], **spec: Any) -> Object:
    names = {"name": f"sweep-{number}", "namespace": "default"}
    pod = a_template()["spec"] | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": names | metadata, "spec": pod}


@pytest.mark.parametrize("metadata", [OURS, KUEUES], ids=["ours", "Kueue's"])
async def test_plain_pods_are_all_or_nothing_and_their_group_goes_with_the_last(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    metadata: dict[str, Any],
) -> None:
    """Three pods, capacity for two: none is bound, with another node all are; a pod that is replaced joins them."""
    await story.create(*racks("r0", nodes=1))
    for number in range(3):
        await story.api.create(a_plain_pod(number, metadata))
    found = await until_groups(story, 1)
    group = found["sweep"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert "ownerReferences" not in group["metadata"]
    await story.until_event("GangUnschedulable", "default/sweep", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1))
    assert len(await story.until_bound(3, "sweep-")) == 3
    await story.api.delete(f"{PODS}/sweep-0")
    await story.api.create(a_plain_pod(3, metadata))
    await story.until(lambda: _is_bound(story, "sweep-3"), every_s=0.1)
    assert (await until_groups(story, 1))["sweep"]["metadata"]["uid"] == group["metadata"]["uid"]
    for name in ("sweep-1", "sweep-2", "sweep-3"):
        await story.api.delete(f"{PODS}/{name}")
    await until_groups(story, 0)
    await story.check_events()


async def _is_bound(story: Story, name: str) -> bool:
    return name in await story.bound()


@pytest.mark.full
async def test_plain_pods_with_two_totals_wait_and_have_both_in_their_condition(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """No group is made; the pods have the text."""
    await story.create(*racks("r0"))
    other = {"labels": {**OURS["labels"], "gang-extender.dev/total": "2"}}
    await story.api.create(a_plain_pod(0, OURS))
    await story.api.create(a_plain_pod(1, other))

    async def explained() -> bool:
        texts = [
            condition.get("message", "")
            for pod in (await story.pods()).values()
            for condition in pod["status"].get("conditions", ())
        ]
        return sum("its pods have '2' and '3'" in text for text in texts) == 2

    await story.until(explained, every_s=0.1)
    assert not await story.bound()
