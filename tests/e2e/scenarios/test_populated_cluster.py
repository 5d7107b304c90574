"""The lived-in cluster itself, and what a kubelet that misbehaves does to a gang on it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controlplane.livedin import NAMESPACE
from tests.controlplane.objects import amount_of, requests_of
from tests.e2e.scenarios.conftest import Story, member
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("only")]
GPU = {"nvidia.com/gpu": 8}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def used_on(pods: list[dict[str, Any]], node: str, *, passing: bool) -> dict[str, int]:
    """Add up what pods that have not ended take on a node, those that only pass by too or not."""
    used: dict[str, int] = {}
    for pod in pods:
        newcomer = pod["metadata"]["labels"]["app"] == "newcomer"
        ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        if pod["spec"].get("nodeName") == node and not ended and (passing or not newcomer):
            for key, amount in {**requests_of(pod), "pods": 1}.items():
                used[key] = used.get(key, 0) + amount
    return used


@pytest.mark.full
async def test_it_is_lived_in_and_the_capacity_of_a_test_is_free(story: Story) -> None:
    """With any neighbours, a test's node offers what the test wrote; the rest is as tests/controlplane/livedin.py has it."""
    neighbours = story.neighbours
    assert neighbours is not None
    names = [f"n{i}" for i in range(12)]  # each full by chance: six were all alike once
    await story.create(*(a_node(name, {"rack": name}, gpu=8) for name in names))

    async def daemons() -> list[dict[str, Any]] | None:
        pods: list[dict[str, Any]] = (await story.api.get(PODS))["items"]
        mine = [p for p in pods if p["metadata"]["labels"]["app"] == "daemon"]
        there = {p["spec"].get("nodeName") for p in mine}
        return pods if there >= set(names) else None

    pods = await eventually(daemons)
    nodes = {n["metadata"]["name"]: n for n in (await story.api.get("/api/v1/nodes"))["items"]}
    full = []
    for name in names:
        capacity = nodes[name]["status"]["allocatable"]
        used = used_on(pods, name, passing=False)
        free = {key: amount_of(key, capacity[key]) - used.get(key, 0) for key in capacity}
        assert free == {"cpu": 64_000, "memory": 256 * 2**30, "pods": 110, "nvidia.com/gpu": 8}
        full.append(used["cpu"] / amount_of("cpu", capacity["cpu"]))
        assert used["nvidia.com/gpu"], "devices are in use as well"
    assert min(full) >= 0.29, full
    assert max(full) <= 0.96, full
    assert max(full) - min(full) > 0.1, full
    closed = [
        n for n in nodes.values() if n["spec"].get("unschedulable") or n["spec"].get("taints")
    ]
    assert any(n["metadata"]["labels"].get("rack") for n in closed), "nothing tempts"
    assert {n["spec"].get("unschedulable", False) for n in closed} == {True, False}
    assert len({p["spec"]["priority"] for p in pods}) == 3
    assert [p for p in pods if "deletionTimestamp" in p["metadata"]]

    seen: set[str] = set()

    async def everything() -> bool:
        """Newcomers of every kind run, end, are refused, go; volumes are in use."""
        for pod in (await story.api.get(PODS))["items"]:
            labels = pod["metadata"]["labels"]
            if labels["app"] == "newcomer" and pod["spec"].get("nodeName"):
                seen.add(labels["kind"])
                seen.add(pod["status"]["phase"])
        return seen >= {"plain", "devices", "volume", "Running", "Failed", "Succeeded", "Pending"}

    await eventually(everything)
    before = neighbours.came

    async def more_came() -> bool:
        return neighbours.came >= before + 20

    await eventually(more_came)
    assert not neighbours.missed


@pytest.mark.full
async def test_the_kubelet_refuses_one_member_and_loses_another(story: Story) -> None:
    """Both are recorded as lost, their capacity goes to the replacements, the others stay where they are."""
    neighbours = story.neighbours
    assert neighbours is not None
    neighbours.kubelet.refuse("train-1", reason="OutOfnvidia.com/gpu")
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(4)))
    await story.create(*a_gang("train", pods=4, requests=GPU))
    first = await story.until_bound(4)
    await neighbours.kubelet.lose("train-2")

    async def lost() -> bool:
        events = await story.service.events("MemberTerminated")
        return {f["data"]["pod"] for f in events} == {"default/train-1", "default/train-2"}

    await eventually(lost)
    await story.create(member("train-4", "train", requests=GPU))
    await story.create(member("train-5", "train", requests=GPU))
    bound = await story.until_bound(5)  # and the refused one, which keeps its node in vain
    assert {bound["train-4"], bound["train-5"]} == {first["train-1"], first["train-2"]}
    assert {name: bound[name] for name in ("train-0", "train-3")} == {
        name: first[name] for name in ("train-0", "train-3")
    }
    await story.until_event("GangScheduled", "default/train")
