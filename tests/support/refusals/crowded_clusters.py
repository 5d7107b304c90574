"""Random small requests that are mostly refused: full, tainted and cordoned nodes, keys that no node has or that each node has alone."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
)
from extender.core.planner.plan_types import PlanGroup, PlanNode, PlanRequest
from tests.support.planning.random_trees import requests, ruled_requests

replace = msgspec.structs.replace
HOSTNAME = "kubernetes.io/hostname"
# zone and rack as they were, one node each, or on no node
TOPOLOGIES = [("zone",), ("rack",), ("host",), (HOSTNAME,), ("row",), ("zone", "host"), ("zone", "row")]  # fmt: skip


@st.composite
def refused_requests(draw, *, ruled: bool = False) -> PlanRequest:
    """Make a request with little capacity."""
    request = draw(ruled_requests() if ruled else requests())
    full = draw(st.booleans())
    apart = draw(st.integers(0, 3)) == 0
    nodes = tuple(_node(draw, node, number, full=full, apart=apart) for number, node in enumerate(request.nodes))  # fmt: skip
    root = _group(draw, request.root)
    shapes = tuple(_shape(draw, shape, nodes) for shape in request.shapes)
    return replace(request, root=root, nodes=nodes, shapes=shapes, explain=True)


def _shape(draw, shape: PodShape, nodes: tuple[PlanNode, ...]) -> PodShape:
    """Give some pods a volume that a few nodes, or no node, can use."""
    if draw(st.integers(0, 5)):
        return shape
    names = draw(st.sets(st.sampled_from([str(node.name) for node in nodes]), max_size=2))
    host = NodeSelectorRequirement(key=HOSTNAME, operator="In", values=(*sorted(names), "gone"))
    volume = NodeSelector(terms=(SelectorTerm(labels=(host,)),), volume=True)
    return replace(shape, selectors=(*shape.selectors, volume))


def _node(draw, node: PlanNode, number: int, *, full: bool, apart: bool) -> PlanNode:
    labels = {**node.labels, HOSTNAME: str(node.name)}
    if apart:
        labels["rack"] = f"r{number}"
    taints = node.taints
    if draw(st.integers(0, 4)) == 0:
        taints = (*taints, Taint(key="u", value=draw(st.sampled_from("ab"))))
    free = {**node.free, "gpu": min(node.free["gpu"], draw(st.integers(0, 1)))} if full else node.free  # fmt: skip
    cordoned = node.unschedulable or draw(st.integers(0, 4)) == 0
    return replace(node, labels=labels, taints=taints, free=free, unschedulable=cordoned)


def _group(draw, group: PlanGroup) -> PlanGroup:
    """Change topology constraints; leaves keep as many pods as they need."""
    topology = draw(st.sampled_from(TOPOLOGIES)) if draw(st.integers(0, 4)) == 0 else group.topology
    children = tuple(_group(draw, child) for child in group.groups)
    there = len(group.members) + len(group.bound) if group.key.kind == "PodGroup" else len(children)
    minimum = min(group.minimum, there) if draw(st.integers(0, 5)) and there else group.minimum
    return replace(group, topology=topology, groups=children, minimum=minimum)
