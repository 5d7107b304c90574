"""Compactness: the domains of a group without wishes, against every placement, and worked cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import (
    NodePreference,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    SoftRules,
)
from extender.core.planner.plan_types import Plan, PlanBound, PlanNode, PlanRequest
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.unit.core.planner.solve.test_preferred_topology import group, node, placed, request

LEVELS = ("rack", "block")


def cluster(*specs: str) -> list[PlanNode]:
    """Return nodes from texts `block rack node free`."""
    rows = (spec.split() for spec in specs)
    return [node(name, int(free), rack=rack, block=block) for block, rack, name, free in rows]


@st.composite
def groups(draw) -> PlanRequest:
    """One group that may prefer a rack, on up to eight nodes in five racks and three blocks."""
    blocks = draw(st.integers(1, 3))
    racks = draw(st.lists(st.integers(0, 4), min_size=2, max_size=8))
    frees = draw(st.lists(st.integers(0, 3), min_size=len(racks), max_size=len(racks)))
    nodes = [
        node(f"n{i}", free, rack=f"r{rack}", block=f"b{rack % blocks}")
        for i, (rack, free) in enumerate(zip(racks, frees, strict=True))
    ]
    pods = draw(st.integers(1, max(min(sum(frees), 6), 1)))
    preferred = draw(st.sampled_from([UNSET, ("rack",)]))
    return request(group("g", pods, preferred=preferred), *nodes, levels=LEVELS)


def _placements(free: tuple[int, ...], pods: int) -> Iterator[tuple[int, ...]]:
    for amounts in itertools.product(*(range(min(f, pods) + 1) for f in free)):
        if sum(amounts) == pods:
            yield amounts


def _compactness(asked: PlanRequest, amounts: tuple[int, ...]) -> list[int]:
    """Return what is compared, the most important first; the smaller, the better."""
    used = [n for n, amount in zip(asked.nodes, amounts, strict=True) if amount]
    counts, free = {}, {}
    for key in LEVELS:
        domains = {n.labels[key] for n in used}
        counts[key] = len(domains)
        free[key] = sum(n.free["gpu"] for n in asked.nodes if n.labels[key] in domains)
    order = LEVELS if asked.root.preferred else LEVELS[::-1]
    fewest = [counts[key] for key in order]
    if counts["rack"] > 1:  # the sets of several racks are compared by bounds
        return fewest
    return [*fewest, len(used), *(free[key] for key in LEVELS[::-1])]


@examples(1500, quick=100)
@given(groups())
def test_no_placement_is_more_compact(asked):
    answer = plan(asked)
    pods = len(asked.root.members)
    every = list(_placements(tuple(n.free["gpu"] for n in asked.nodes), pods))
    assert isinstance(answer, Plan) == bool(every)
    if every:
        nodes = [a.node for a in answer.assignments]
        mine = tuple(nodes.count(n.name) for n in asked.nodes)
        assert _compactness(asked, mine) == min(_compactness(asked, other) for other in every)


@pytest.mark.parametrize(
    ("specs", "pods", "expected"),
    [
        # the tighter block has two racks for it, the other one node
        (["b0 r0 n0 1", "b0 r1 n1 1", "b1 r2 n2 3"], 2, "n2"),
        # the tighter rack has two nodes for it
        (["b0 r0 n0 1", "b0 r0 n1 1", "b0 r1 n2 3", "b0 r1 n3 3"], 2, "n2"),
        # two blocks are needed: not the largest, whose racks are small
        (["b0 r0 n0 2", "b0 r1 n1 1", "b1 r2 n2 2", "b2 r3 n3 2"], 4, "n2 n3"),
    ],
)
def test_few_racks_and_nodes_come_before_tightness(specs, pods, expected):
    answer = placed(request(group("g", pods), *cluster(*specs), levels=LEVELS))
    assert {a.node for a in answer.assignments} == set(expected.split())


def test_a_preferred_rack_is_in_the_tightest_block():
    nodes = cluster("b0 r0 n0 2", "b0 r1 n1 3", "b1 r2 n2 2")
    answer = placed(request(group("g", 2, preferred=("rack",)), *nodes, levels=LEVELS))
    assert {a.node for a in answer.assignments} == {"n2"}


def test_a_replacement_opens_no_node_beside_one_of_its_tree():
    """b2 is in the tighter block; a1 runs a member and has free capacity."""
    bound = tuple(
        PlanBound(pod=f"ns/{name}", uid=PodUid(name), node=NodeName(name)) for name in ("a1", "b1")
    )
    nodes = cluster("a r0 a1 7", "b r1 b1 0", "b r2 b2 2")
    answer = placed(request(group("g", 1, minimum=3, bound=bound), *nodes, levels=LEVELS))
    assert [a.node for a in answer.assignments] == ["a1"]


def prefers(key: str, value: str) -> PodShape:
    """Return a pod of one GPU that prefers a label."""
    term = SelectorTerm(labels=(NodeSelectorRequirement(key, "In", (value,)),))
    soft = SoftRules(nodes=(NodePreference(weight=1, term=term),))
    return PodShape(requests=(("gpu", 1), ("pods", 1)), soft=soft)


@pytest.mark.parametrize("preferred", [UNSET, ("zone",)])
def test_a_block_that_is_full_on_one_node_stays_used(preferred):
    """n0 and n7 score alike; n7 is in the block of the first leaf, whose node is full."""
    nodes = cluster("b0 r0 n0 1", "b1 r1 n1 1", "b1 r1 n7 1")
    leaves = [group(name, 1, preferred=preferred) for name in "ab"]
    asked = request(group("t", 0, *leaves), *nodes, levels=LEVELS, shapes=(prefers("host", "n1"),))
    assert [a.node for a in placed(asked).assignments] == ["n1", "n7"]


def test_few_domains_come_before_scores_where_each_node_is_one():
    """Both fit on n1 alone; n0 is preferred and holds one."""
    nodes = cluster("b0 r0 n0 1", "b0 r1 n1 2")
    asked = request(group("g", 2), *nodes, levels=("host", "rack"), shapes=(prefers("host", "n0"),))
    assert [a.node for a in placed(asked).assignments] == ["n1", "n1"]
