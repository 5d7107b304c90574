"""`gang-extender plan` on pods outside of all groups; trees are held against the vectors and the command's own tests."""

from __future__ import annotations

import pytest

from extender.core.model.ids import NodeName
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod, a_world


@pytest.mark.parametrize("where", ["pinned", "nominated"])
def test_a_lone_pod_is_not_in_its_own_way(where):
    """Capacity that is kept for a pod that comes to its node is kept from others, not from itself."""
    pods = (a_pod(name, requests={GPU: 4}) for name in ("first", "second"))
    cluster = FakeCluster(a_node("n0", gpu=4), *pods)
    cluster.change_pod("first", **{where: NodeName("n0")})
    found = answer_plan_query(cluster.seen, PlanInput(all_pending=True))
    assert {root.gang: root.verdict for root in found.gangs} == {
        "default/first": "placed",
        "default/second": "impossible",
    }


def test_a_tree_that_is_too_deep_is_named_with_all_its_levels():
    """All groups are there, so the answer need not stop at the first level that is too deep."""
    chain = [a_group("c0", gang=1, composite=True)]
    chain += [a_group(f"c{n}", gang=1, composite=True, parent=f"c{n - 1}") for n in range(1, 9)]
    world = a_world(*chain, a_group("deep", gang=1, parent="c8"), a_pod("p", "deep"))
    answer = answer_plan_query(world.view, PlanInput(groups=frozenset(world.view.groups)))
    (text,) = (text for gang in answer.gangs for text in gang.reasons if "the tree has" in text)
    assert text == "the tree has 10 levels at PodGroup/default/deep, at most 4 are allowed"
