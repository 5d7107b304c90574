"""The unit of the bind barrier, and minima of trees (C.7)."""

from __future__ import annotations

import pytest

from extender.core.log.events import GroupRecord
from extender.core.log.gang_phase import barrier_unit, missing, satisfied
from tests.support.logs.random_logs import a_leaf


def _composite(name, minimum=1, parent="", *, basic=False):
    return GroupRecord(
        kind="CompositePodGroup", name=name, parent=parent, minimum=minimum, basic=basic
    )


GANG_OF_GANGS = (
    _composite("root", 2),
    a_leaf("a", 2, parent="root"),
    a_leaf("b", 3, parent="root"),
    a_leaf("c", 1, parent="root", basic=True),
)
BASIC_OF_GANGS = (
    _composite("root", basic=True),
    _composite("left", 2, "root"),
    a_leaf("l1", 2, parent="left"),
    a_leaf("l2", 2, parent="left"),
    a_leaf("right", 3, parent="root"),
    a_leaf("free", 1, parent="root", basic=True),
)
BASIC_CHAIN = (
    _composite("root", basic=True),
    _composite("mid", 1, "root", basic=True),
    a_leaf("leaf", 2, parent="mid"),
)


@pytest.mark.parametrize(
    ("groups", "leaf", "unit"),
    [
        ((a_leaf("only", 4),), "only", "only"),
        ((a_leaf("only", basic=True),), "only", "only"),
        (GANG_OF_GANGS, "a", "root"),
        (GANG_OF_GANGS, "c", "root"),
        (BASIC_OF_GANGS, "l1", "left"),
        (BASIC_OF_GANGS, "right", "right"),
        (BASIC_OF_GANGS, "free", "free"),
        (BASIC_CHAIN, "leaf", "leaf"),
    ],
)
def test_the_barrier_unit_is_the_first_gang_on_the_way_down(groups, leaf, unit):
    """A gang root waits as a whole; below Basic parents each child has a barrier of its own (C.7)."""
    assert barrier_unit(groups, leaf).name == unit


def test_a_leaf_outside_the_tree_has_no_unit():
    """Asking for an unknown leaf, or for a composite as a leaf, is a KeyError."""
    for name in ("absent", "root"):
        with pytest.raises(KeyError):
            barrier_unit(GANG_OF_GANGS, name)


@pytest.mark.parametrize(
    ("groups", "counts", "whole"),
    [
        ((), {}, False),
        ((a_leaf("only", 2),), {"only": 1}, False),
        ((a_leaf("only", 2),), {"only": 2}, True),
        (GANG_OF_GANGS, {"a": 2, "b": 2}, False),
        (GANG_OF_GANGS, {"a": 2, "b": 3}, True),
        (GANG_OF_GANGS, {"a": 2, "c": 1}, True),  # a Basic child counts from its first pod
        (GANG_OF_GANGS, {"a": 9, "b": 1}, False),  # many pods of one child are still one child
        (BASIC_OF_GANGS, {"l1": 2}, False),
        (BASIC_OF_GANGS, {"l1": 2, "l2": 2}, True),
        (BASIC_OF_GANGS, {"free": 1}, True),
        (BASIC_CHAIN, {"leaf": 1}, False),
        (BASIC_CHAIN, {"leaf": 2}, True),
    ],
)
def test_minima_add_up_level_by_level(groups, counts, whole):
    """Gang composites count satisfied children, Basic ones need one, leaves count pods (C.1, C.7)."""
    assert satisfied(groups, counts) is whole


def test_one_unit_of_a_basic_root_does_not_ask_its_siblings():
    """The minimum of a unit is that of the unit alone."""
    right = next(g for g in BASIC_OF_GANGS if g.name == "right")
    assert satisfied(BASIC_OF_GANGS, {"right": 3}, right)
    assert not satisfied(BASIC_OF_GANGS, {"l1": 2, "l2": 2, "right": 2}, right)


def test_a_required_child_is_never_replaced_by_another():
    """L27: workers alone do not meet the minimum; one that is not there lacks a pod at least."""
    root = GroupRecord(kind="CompositePodGroup", name="root", minimum=1, required=("head",))
    head, workers = a_leaf("head", 1, parent="root"), a_leaf("w", 1, parent="root", basic=True)
    assert not satisfied((root, head, workers), {"w": 3})
    assert satisfied((root, head, workers), {"head": 1})
    assert missing((root, workers), {"w": 3}) == 1
    two = GroupRecord(kind="CompositePodGroup", name="root", minimum=2, required=("head",))
    assert missing((two, head, workers), {}) == 2
    assert missing((two, head, workers), {"head": 1}) == 1
    assert satisfied((two, head, workers), {"head": 1, "w": 1})
