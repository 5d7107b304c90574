"""The checker finds what it is there for: each fault that an explanation can have, put into a good one."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    AddedNodes,
    Conflict,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Refusal,
    Relaxation,
    SearchEffort,
)
from tests.support.refusals.refusal_checker import faults

replace = msgspec.structs.replace
KEY = GroupKey("ns", "train", "PodGroup")
OFFER = {"gpu": 4, "pods": 9}
REQUEST = PlanRequest(
    root=PlanGroup(
        key=KEY,
        minimum=5,
        topology=("rack",),
        members=tuple(PlanMember(pod=f"ns/p{i}", uid=PodUid(f"p{i}"), shape=0) for i in range(5)),
    ),
    nodes=tuple(
        PlanNode(name=NodeName(f"n{i}"), labels={"rack": f"r{i}"}, allocatable=OFFER, free=OFFER)
        for i in range(2)
    ),
    shapes=(PodShape(requests=(("gpu", 1), ("pods", 1))),),
)
MINIMUM = Conflict(kind="minCount", object=str(KEY), message="")
TOPOLOGY = Conflict(kind="topology", object=str(KEY), message="")
RESOURCES = Conflict(kind="resources", object=str(KEY), message="")
SELECTOR = Conflict(kind="selector", object=str(KEY), message="")
LOWER = Relaxation(kind="minCount", text="lower", groups=(KEY,), minimum=4)
NODES = Relaxation(
    kind="nodes", text="nodes", added=(AddedNodes(like=NodeName("n0"), count=1, own_labels=()),)
)
DROP = Relaxation(kind="topology", text="drop", groups=(KEY,))
GOOD = Refusal(
    outcome="impossible",
    status="Unschedulable",
    reasons=("",),
    search=SearchEffort(nodes=0, exhausted=True),
    conflict=(MINIMUM, TOPOLOGY, RESOURCES),
    changes=(LOWER, NODES, DROP),
)


def test_a_good_explanation_has_no_fault():
    """What follows is wrong because of the change that is made to this one."""
    assert faults(REQUEST, GOOD) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"conflict": ()}, "no conflict is named"),
        ({"conflict": (MINIMUM, TOPOLOGY)}, "holds together"),
        ({"conflict": (*GOOD.conflict, SELECTOR)}, "without need"),
        ({"conflict": (*GOOD.conflict, MINIMUM)}, "twice"),
        ({"changes": (replace(LOWER, minimum=5), NODES)}, "it does not fit after 'lower'"),
        ({"changes": (replace(LOWER, minimum=3), NODES)}, "4 would do"),
        ({"changes": (LOWER, DROP)}, "5 more nodes like n0 would do"),
        (
            {"changes": (replace(NODES, added=(replace(NODES.added[0], count=2),)),)},
            "1 like n0 would do",
        ),
        (
            {"changes": (replace(NODES, added=(replace(NODES.added[0], own_labels=("rack",)),)),)},
            "it does not fit after 'nodes'",
        ),
        (
            {"changes": (NODES, Relaxation(kind="selector", text="drop selectors"))},
            "it does not fit after 'drop selectors'",
        ),
    ],
)
def test_a_fault_is_found(change, text):
    """A conflict that is empty, not enough, or too large; a way out that does not help, or is too much, or is missing."""
    found = faults(REQUEST, replace(GOOD, **change))
    assert any(text in one for one in found), found


def test_a_tree_that_fits_is_a_fault():
    """A refusal of what can be placed."""
    roomy = replace(REQUEST, root=replace(REQUEST.root, minimum=4))
    assert faults(roomy, GOOD) == ["the tree fits"]
