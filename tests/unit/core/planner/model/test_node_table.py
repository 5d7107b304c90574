"""Columns, domains and counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.model.errors import InvariantBroken
from extender.core.model.ids import NodeName
from extender.core.planner.model.node_table import FIT_MAX, NodeTable, count_fitting
from extender.core.planner.plan_types import PlanNode
from extender.core.planner.solve.node_classes import _patterns


def fleet(*labels: dict[str, str]) -> NodeTable:
    return NodeTable(
        tuple(PlanNode(name=NodeName(f"n{i}"), labels=each) for i, each in enumerate(labels))
    )


def test_domains_are_values_within_the_outer_key():
    """D4: the same rack name in two zones is two domains below zone, one domain by itself."""
    f = fleet(
        {"z": "2", "r": "a"}, {"z": "1", "r": "a"}, {"r": "a"}, {"z": "1"}, {"z": "1", "r": "a"}
    )
    flat, nested = f.level(("r",)), f.level(("z", "r"))
    assert flat.values == [("a",)]
    assert flat.members(0).tolist() == [0, 1, 2, 4]
    assert nested.values == [("1", "a"), ("2", "a")]
    assert nested.domain.tolist() == [1, 0, -1, -1, 0]
    assert f.up(("z", "r"), ("z",)).tolist() == [0, 1]
    assert nested.total(np.arange(5)).tolist() == [5, 0]
    assert f.level(()).members(0).tolist() == [0, 1, 2, 3, 4]


def test_no_nodes_no_domains():
    """An empty fleet has no domain by a key."""
    assert fleet().level(("r",)).count == 0


def test_a_node_that_is_there_twice_is_refused():
    """One row per node: a name that is given twice is a defect of the caller, also in a renewed fleet."""
    one, two = PlanNode(name=NodeName("n0")), PlanNode(name=NodeName("n1"))
    with pytest.raises(InvariantBroken, match="more than one row of node n0"):
        NodeTable((one, two, one))
    with pytest.raises(InvariantBroken, match="more than one row of node n1"):
        NodeTable((one, two)).renewed((two, two))
    with pytest.raises(InvariantBroken, match="more than one row of node n0"):
        NodeTable((one, two)).renewed((one, two, one))


@pytest.mark.parametrize("label", ["a", "b", "0", None], ids=["as before", "last", "first", "none"])
def test_an_extended_table_is_that_of_all_nodes(label):
    """Columns that were computed before get the values of the new nodes, also where values get other numbers."""
    offer = {"gpu": 8}
    old = tuple(
        PlanNode(name=NodeName(f"n{i}"), labels={"r": r}, allocatable=offer, free={"gpu": i})
        for i, r in enumerate("aca")
    )
    labels = {"r": label} if label is not None else {}
    new = (PlanNode(name=NodeName("new"), labels=labels, allocatable=offer, free=offer),)
    short, whole = NodeTable(old), NodeTable(old + new)
    for table in (short, whole):
        table.free("gpu"), table.free("cpu"), table.level(("r",))
    longer = short.extended(new)
    assert longer.nodes == whole.nodes
    assert longer.index == whole.index
    assert longer.free("gpu").tolist() == [0, 1, 2, 8]
    assert longer.free("cpu").tolist() == [0, 0, 0, 0]
    assert longer.label("r")[0].tolist() == whole.label("r")[0].tolist()
    assert longer.level(("r",)).domain.tolist() == whole.level(("r",)).domain.tolist()
    with pytest.raises(InvariantBroken, match="more than one row of node n1"):
        short.extended(old[1:2])


def test_counts_are_cut_and_need_a_request():
    """Counts never overflow; a pod that asks for nothing is a fault of the caller."""
    assert count_fitting(np.array([[1 << 60]]), np.array([1])).tolist() == [FIT_MAX]
    with pytest.raises(ValueError, match="nothing"):
        count_fitting(np.array([[1]]), np.array([0]))


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=2),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=3),
    st.data(),
)
def test_patterns_cover_exactly_what_fits(capacity, asks, data):
    """A mix of pods fits a node exactly when some pattern holds at least as many of each kind."""
    most = data.draw(st.lists(st.integers(1, 4), min_size=len(asks), max_size=len(asks)))
    patterns = _patterns(capacity, [list(a) for a in asks], most)
    mix = [data.draw(st.integers(0, m)) for m in most]
    fits = all(
        sum(n * a[axis] for n, a in zip(mix, asks, strict=True)) <= capacity[axis]
        for axis in (0, 1)
    )
    if patterns:
        assert fits == any(all(n <= p for n, p in zip(mix, pat, strict=True)) for pat in patterns)
