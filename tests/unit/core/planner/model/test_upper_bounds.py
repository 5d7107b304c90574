"""Groups that are alike are counted together: what fits one by one may not fit at once."""

from __future__ import annotations

import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import compile_request
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import PlanBound, PlanGroup, PlanMember, PlanNode, PlanRequest

SHAPES = (PodShape(requests=(("gpu", 1), ("pods", 1))),)


def nodes(*free: int, per_rack: int = 2) -> tuple[PlanNode, ...]:
    """Return nodes with so many free GPUs, a few to a rack, all in one zone."""
    return tuple(
        PlanNode(
            name=NodeName(f"n{n}"),
            labels={"zone": "z", "rack": f"r{n // per_rack}", "host": f"n{n}"},
            allocatable={"gpu": 8, "pods": 110},
            free={"gpu": gpus, "pods": 110},
        )
        for n, gpus in enumerate(free)
    )


def leaf(name: str, pods: int, topo: str = "host", *, bound: str = "") -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", name, "PodGroup"),
        minimum=pods + bool(bound),
        topology=(topo,),
        members=tuple(
            PlanMember(pod=f"ns/{name}-{i}", uid=PodUid(f"{name}-{i}"), shape=0)
            for i in range(pods)
        ),
        bound=(PlanBound(pod=f"ns/{name}-b", uid=PodUid(f"{name}-b"), node=NodeName(bound)),)
        if bound
        else (),
    )


def composite(name: str, *children: PlanGroup, topo: str, minimum: int = 0) -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", name, "CompositePodGroup"),
        minimum=minimum or len(children),
        topology=(topo,),
        groups=children,
    )


def infeasible(root: PlanGroup, fleet: tuple[PlanNode, ...]) -> bool:
    request = PlanRequest(root=root, nodes=fleet, shapes=SHAPES)
    problem = compile_request(request, NodeTable(fleet))
    assert not problem.violations
    return bound_all(problem).infeasible


@pytest.mark.parametrize(
    ("free", "impossible"),
    [
        ((4, 4, 4, 4), False),
        ((8, 4, 4, 0), False),  # one host takes two leaves
        ((4, 4, 4, 3), True),  # 15 GPUs, and 16 pods in leaves of four
        ((7, 7, 4, 0), True),
    ],
)
def test_four_leaves_of_four_pods_on_hosts(free, impossible) -> None:
    root = composite("root", *(leaf(f"l{n}", 4) for n in range(4)), topo="zone")
    assert infeasible(root, nodes(*free)) == impossible


@pytest.mark.parametrize(
    ("free", "impossible"), [((4, 4, 4, 4), False), ((4, 4, 8, 3), False), ((8, 4, 3, 3), True)]
)
def test_two_composites_in_racks(free, impossible) -> None:
    """Each needs two hosts of one rack: a rack with three free places takes one of them."""
    pairs = [composite(f"c{j}", leaf(f"a{j}", 4), leaf(f"b{j}", 4), topo="rack") for j in range(2)]
    assert infeasible(composite("root", *pairs, topo="zone"), nodes(*free)) == impossible


def test_a_minimum_below_all_children() -> None:
    leaves = [leaf(f"l{n}", 4) for n in range(5)]
    assert not infeasible(composite("root", *leaves, topo="zone", minimum=2), nodes(4, 4, 1, 1))
    assert infeasible(composite("root", *leaves, topo="zone", minimum=3), nodes(4, 4, 1, 1))


def test_groups_that_differ_are_counted_alone() -> None:
    """The bound stays a bound: of two sizes each may take the host, and only the search knows better."""
    root = composite("root", leaf("big", 4), leaf("small", 3), topo="zone")
    assert not infeasible(root, nodes(4, 3))
    assert not infeasible(root, nodes(8, 0))


def test_a_leaf_with_bound_members_is_counted_alone() -> None:
    """Its capacity is not that of the others: one of its pods has a place already."""
    leaves = [leaf("old", 3, bound="n0"), leaf("new", 4)]
    assert not infeasible(composite("root", *leaves, topo="zone"), nodes(3, 4))


def test_a_leaf_is_not_like_a_composite():
    """A leaf with one pod and a composite with one child have equal numbers in all else; both fit on one host."""
    inner = composite("inner", leaf("two", 2), topo="host")
    root = composite("root", leaf("one", 1), inner, topo="rack")
    assert not infeasible(root, nodes(3, 0))
    assert infeasible(root, nodes(2, 0))
