"""kube-scheduler refuses what our model allows: learned, planned again, forgotten when the node changes.

Rules about pods of namespaces with a label, which no process here watches, stand for all that the planner
does not model; devices and volumes have stories of their own in test_devices_and_volumes.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.scenarios.conftest import Story
from tests.support.service.manifest_builders import a_gang, a_node, a_pod

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}


def away_from_noise() -> dict[str, Any]:
    """Return an affinity that the planner does not model."""
    term = {
        "labelSelector": {"matchLabels": {"app": "noisy"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def noisy(node: str) -> dict[str, Any]:
    return a_pod(f"noisy-{node}", node=node, metadata={"labels": {"app": "noisy"}})


@pytest.mark.full
async def test_a_refused_node_is_learned_and_the_gang_bound_elsewhere(story: Story) -> None:
    """n0 has capacity, kube-scheduler will not have a member there; the whole gang goes to the others."""
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(5)), noisy("n0"))
    await story.create(*a_gang("quiet", pods=4, requests=GPU, affinity=away_from_noise()))
    bound = await story.until_bound(4, prefix="quiet")
    assert sorted(bound.values()) == ["n1", "n2", "n3", "n4"]
    events = await story.check_events()
    rejections = [f["data"] for f in events if f["type"] == "NodeRejected"]
    assert {v["node"] for v in rejections} == {"n0"}
    released = [f["data"] for f in events if f["type"] == "ReservationReleased"]
    assert [r["reason"] for r in released] == ["node-rejected"] * len(rejections)
    assert len(rejections) <= 2, "learned once for all pods of one shape"


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_gang_that_every_node_refuses_reports_it_and_runs_when_it_can(story: Story) -> None:
    """Every node is refused: nothing is bound, the refusal rests on rejections, no loop; then nodes come.

    The end of the noise would not do: kube-scheduler is not woken by it where a rule names namespaces by labels.
    """
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(2)), noisy("n0"), noisy("n1"))
    # Both fit on one node, or the gang would be refused for want of capacity as soon as one node is out.
    half = {"nvidia.com/gpu": 4}
    await story.create(*a_gang("quiet", pods=2, requests=half, affinity=away_from_noise()))

    async def given() -> dict[str, Any] | None:
        for event in reversed(await story.service.events("GangUnschedulable")):
            if any("kube-scheduler refused n0, n1" in t for t in event["data"]["reasons"]):
                return event["data"]
        return None

    refused = await story.until(given, "refused for both nodes")
    assert refused["outcome"] == "unknown", "a rejection is no proof"
    (why,) = [text for text in refused["reasons"] if "refused n0, n1" in text]
    assert "pod anti-affinity over kubernetes.io/hostname" in why
    calls = story.verbs.count("POST", "/filter")
    await asyncio.sleep(5)
    assert story.verbs.count("POST", "/filter") - calls <= 4, "refused members spin"
    assert not await story.bound("quiet")
    await story.create(*(a_node(f"m{i}", gpu=8) for i in range(2)))
    assert set((await story.until_bound(2, prefix="quiet")).values()) <= {"m0", "m1"}
    await story.check_events()
