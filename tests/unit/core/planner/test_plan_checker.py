"""The checker must reject what is wrong, or the tests that use it prove nothing."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.plan_types import (
    NodeRejection,
    Plan,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
)
from extender.core.planner.planning import plan
from tests.support.planning import spec_vectors
from tests.support.planning.plan_checker import faults

replace = msgspec.structs.replace


def key(name: str) -> GroupKey:
    return GroupKey(namespace="ns", name=name, kind="PodGroup")


def small() -> tuple[PlanRequest, Plan]:
    """Three pods with a port and a claim between two racks; one is an extra."""
    offer = {"pods": 4, "gpu": 2}
    nodes = tuple(
        PlanNode(
            name=NodeName(f"n{i}"), labels={"rack": f"r{i // 2}"}, allocatable=offer, free=offer
        )
        for i in range(4)
    )
    nodes = (*nodes[:3], replace(nodes[3], taints=(Taint(key="t"),)))
    shapes = (
        PodShape(requests=(("gpu", 1), ("pods", 1)), host_ports=(HostPort("TCP", 80),)),
        PodShape(requests=(("pods", 1),), exclusive_claims=("ns/c",)),
    )
    members = tuple(
        PlanMember(pod=f"ns/p{i}", uid=PodUid(f"p{i}"), shape=s) for i, s in enumerate((0, 0, 1))
    )
    root = PlanGroup(key=key("g"), minimum=2, topology=("rack",), members=members)
    request = PlanRequest(root=root, nodes=nodes, shapes=shapes)
    answer = plan(request)
    assert isinstance(answer, Plan)
    assert faults(request, answer) == []
    assert len(answer.assignments) == 3
    return request, answer


def change(answer: Plan, index: int, **fields) -> Plan:
    made = list(answer.assignments)
    made[index] = replace(made[index], **fields)
    return replace(answer, assignments=tuple(made))


CORRUPT = {
    "other rack": lambda r, p: (r, change(p, 0, node="n2")),
    "unknown node": lambda r, p: (r, change(p, 0, node="nowhere")),
    "port clash": lambda r, p: (r, change(p, 0, node=p.assignments[1].node)),
    "wrong group": lambda r, p: (r, change(p, 0, group=key("other"))),
    "wrong shape": lambda r, p: (r, change(p, 0, shape=1)),
    "pod twice": lambda r, p: (r, replace(p, assignments=(p.assignments[0], *p.assignments))),
    "pod forgotten": lambda r, p: (r, replace(p, assignments=p.assignments[:-1])),
    "not sorted": lambda r, p: (r, replace(p, assignments=p.assignments[::-1])),
    "below minimum": lambda r, p: (
        r,
        replace(p, assignments=p.assignments[:1], unplaced=("ns/p1", "ns/p2")),
    ),
    "no minimum without extras": lambda r, p: (r, change(p, 0, extra=True)),
    "no extras": lambda r, p: (
        r,
        replace(p, assignments=tuple(replace(a, extra=False) for a in p.assignments)),
    ),
    "wrong placement": lambda r, p: (
        r,
        replace(p, placements=(replace(p.placements[0], domain=(("rack", "r9"),)),)),
    ),
    "no placement": lambda r, p: (r, replace(p, placements=())),
    "claim in use": lambda r, p: (replace(r, claims_in_use=("ns/c",)), p),
    "node-rejected": lambda r, p: (
        replace(r, rejected_nodes=(NodeRejection(node=p.assignments[0].node, shape=0),)),
        p,
    ),
    "no capacity": lambda r, p: (
        replace(r, nodes=tuple(replace(n, free={"pods": 4, "gpu": 0}) for n in r.nodes)),
        p,
    ),
    "not offered": lambda r, p: (
        replace(r, nodes=tuple(replace(n, allocatable={"pods": 4}) for n in r.nodes)),
        p,
    ),
    "cordoned": lambda r, p: (
        replace(r, nodes=tuple(replace(n, unschedulable=True) for n in r.nodes)),
        p,
    ),
    "selector": lambda r, p: (
        replace(r, shapes=tuple(replace(s, node_selector=(("x", "y"),)) for s in r.shapes)),
        p,
    ),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_rejects(name):
    """Each single corruption of a good plan is noticed."""
    request, answer = CORRUPT[name](*small())
    assert faults(request, answer)


def test_rejects_half_a_child():
    """V17: a pod of a child that does not reach its minimum is noticed."""
    request = spec_vectors.request_of(spec_vectors.by_id("V17"))
    answer = plan(request)
    half = change(answer, 0, pod="ns/pg6-0", uid="pg6-0", group=key("pg6"))
    assert any("minimum not met" in f or "hold" in f for f in faults(request, half))
