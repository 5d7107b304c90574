"""What the benchmark of preemption counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.preemption import Case, running, spared, unit_of
from tests.bench.sides import NATIVE_TREES, OURS, Shape
from tests.controlplane.objects import a_pod

NODE_CAPACITY = {"n1": 4000, "n2": 4000}


def pod(name: str, node: str, cpu: str) -> dict[str, Any]:
    return a_pod(name, requests={"cpu": cpu}, nodeName=node)


def test_a_pod_alone_could_have_stayed_where_there_is_capacity() -> None:
    """Of two pods of 300m one fits beside 3,500m on a node of 4,000m."""
    gone = [pod("low-1", "n1", "300m"), pod("low-2", "n1", "300m"), pod("low-3", "n2", "600m")]
    stayed = [pod("g0-0", "n1", "3500m"), pod("g0-1", "n2", "3500m")]
    assert spared(gone, stayed, NODE_CAPACITY) == 1


def test_a_composite_could_have_stayed_only_as_a_whole() -> None:
    """One of its pods has no capacity, so none of them counts; another unit counts with all its pods."""
    gone = [pod("low1-0-0", "n1", "600m"), pod("low1-1-0", "n2", "600m")]
    gone += [pod("low2-0-0", "n2", "300m"), pod("low2-1-0", "n2", "300m")]
    assert spared(gone, [pod("g0-0", "n1", "3500m")], NODE_CAPACITY) == 4 - 2


@pytest.mark.parametrize("composites", [0, 4])
def test_both_sides_begin_alike(composites: int) -> None:
    """The same pods on the same nodes, as many on each, those of a unit on nodes of their own."""
    case = Case(
        nodes=6, preemptors=Shape(pods=6), cpu="3500m", composites=composites, pods=24, low_cpu="1"
    )
    ours, theirs = ([(p["metadata"]["name"], p["spec"]["nodeName"]) for p in running(side, case)]
                    for side in (OURS, NATIVE_TREES))  # fmt: skip
    assert ours == theirs
    nodes = [node for _, node in ours]
    assert {nodes.count(node) for node in nodes} == {4}
    units: dict[str, list[str]] = {}
    for name, node in ours:
        units.setdefault(unit_of(name), []).append(node)
    assert len(units) == (composites or 24)
    assert all(len(set(mine)) == len(mine) for mine in units.values())
