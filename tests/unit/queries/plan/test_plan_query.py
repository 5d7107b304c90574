"""`gang-extender plan` on pods outside of all groups; trees are held against the vectors and the command's own tests."""

from __future__ import annotations

import pytest

from extender.core.model.ids import NodeName
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_node, a_pod


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
