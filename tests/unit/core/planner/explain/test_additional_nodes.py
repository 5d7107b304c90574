"""More nodes as a way out: for pods that need a node each, and for several leaves together; taken, the tree fits."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.explain.additional_nodes import HOSTNAME, _copy
from extender.core.planner.plan_types import (
    Plan,
    PlanExclusive,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Refusal,
)
from extender.core.planner.planning import plan

GPU = PodShape(requests=(("gpu", 4), ("pods", 1)))
PORT = PodShape(requests=(("gpu", 1), ("pods", 1)), host_ports=(HostPort("TCP", 80),))


def node(name: str, rack: str, free: int) -> PlanNode:
    return PlanNode(
        name=NodeName(name),
        labels={"rack": rack, HOSTNAME: name},
        allocatable={"gpu": 8, "pods": 110},
        free={"gpu": free, "pods": 110},
    )


def leaf(name: str, pods: int, shape: int) -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", name, "PodGroup"),
        minimum=pods,
        topology=("rack",),
        members=tuple(
            PlanMember(pod=f"ns/{name}-{n}", uid=PodUid(f"{name}-{n}"), shape=shape)
            for n in range(pods)
        ),
    )


def root(*leaves: PlanGroup) -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", "root", "CompositePodGroup"), minimum=len(leaves), groups=leaves
    )


@pytest.mark.parametrize(
    ("tree", "text", "added"),
    [
        (root(leaf("web", 3, 1)), "2 more empty nodes like n0 in r0", {"n0": 2}),
        (root(leaf("a", 2, 0), leaf("b", 4, 0)), "3 more empty nodes like n0 in r0", {"n0": 3}),
        (
            root(leaf("a", 5, 0), leaf("web", 3, 1)),
            "4 more empty nodes like n0 in r0",
            {"n0": 4},
        ),
    ],
    ids=["a host port each", "one rack for both", "different kinds"],
)
def test_the_nodes_that_are_named_suffice(tree, text, added) -> None:
    nodes = (node("n0", "r0", 4), node("n1", "r1", 0))
    request = PlanRequest(root=tree, nodes=nodes, shapes=(GPU, PORT))
    refused = plan(request)
    assert isinstance(refused, Refusal)
    found = [one for one in refused.relaxations if "more empty" in one]
    assert found
    named = {
        part.split(" like ")[1].split()[0]: int(part.split()[0]) for part in found[0].split(" and ")
    }
    by_name = {one.name: one for one in nodes}
    new = tuple(
        _copy(by_name[NodeName(name)], n, frozenset({HOSTNAME}))
        for name, count in named.items()
        for n in range(count)
    )
    assert isinstance(plan(msgspec.structs.replace(request, nodes=nodes + new)), Plan)
    assert (found[0], named) == (text, added)


def test_a_new_node_is_a_new_domain_where_each_node_is_one():
    """Other trees have both nodes alone; capacity is free there."""
    taken = PlanExclusive(key=HOSTNAME, taken=("n0", "n1"))
    root = msgspec.structs.replace(leaf("g", 1, 0), topology=(), exclusive=taken)
    fleet = (node("n0", "r0", 8), node("n1", "r1", 8))
    refusal = plan(PlanRequest(root=root, nodes=fleet, shapes=(GPU,)))
    assert isinstance(refusal, Refusal)
    assert "1 more empty node like n0" in refusal.relaxations
