"""Static filters and host ports, rule by rule as kube-scheduler has them."""

from __future__ import annotations

import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    HostPort,
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    Toleration,
)
from extender.core.planner.model.node_table import NodeTable, may_run
from extender.core.planner.plan_types import (
    NodeRejection,
    Plan,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
)
from extender.core.planner.planning import plan
from tests.support.planning.plan_checker import faults

OFFER = {"pods": 10, "cpu": 4000}


def node(name: str, **fields) -> PlanNode:
    return PlanNode(**{"name": NodeName(name), "allocatable": OFFER, "free": OFFER, **fields})


def wants(
    *requirements: NodeSelectorRequirement, fields: tuple[NodeSelectorRequirement, ...] = ()
) -> PodShape:
    term = SelectorTerm(labels=requirements, fields=fields)
    return PodShape(requests=(("pods", 1),), selectors=(NodeSelector(terms=(term,)),))


def place(shapes: list[PodShape], nodes: list[PlanNode], minimum: int = 1, **fields):
    """Plan one leaf with a pod per shape; give node per pod, or the refusal."""
    distinct = tuple(dict.fromkeys(shapes))
    members = tuple(
        PlanMember(pod=f"ns/p{i}", uid=PodUid(f"p{i}"), shape=distinct.index(s))
        for i, s in enumerate(shapes)
    )
    root = PlanGroup(
        key=GroupKey(namespace="ns", name="g", kind="PodGroup"), minimum=minimum, members=members
    )
    request = PlanRequest(root=root, nodes=tuple(nodes), shapes=distinct, **fields)
    answer = plan(request)
    if isinstance(answer, Plan):
        assert faults(request, answer) == []
    return answer


LABELS = [
    (NodeSelectorRequirement("a", "In", ("x", "y")), [True, False, False]),
    (NodeSelectorRequirement("a", "In", ()), [False, False, False]),
    (NodeSelectorRequirement("a", "NotIn", ("x",)), [False, True, True]),
    (NodeSelectorRequirement("a", "NotIn", ()), [False, False, False]),
    (NodeSelectorRequirement("a", "Exists"), [True, True, False]),
    (NodeSelectorRequirement("a", "DoesNotExist"), [False, False, True]),
    (NodeSelectorRequirement("n", "Gt", ("9",)), [True, False, False]),
    (NodeSelectorRequirement("n", "Lt", ("10",)), [False, True, False]),
    (NodeSelectorRequirement("n", "Gt", ("nine",)), [False, False, False]),
    (NodeSelectorRequirement("a", "Gt", ("1",)), [False, False, False]),
]


@pytest.mark.parametrize(("requirement", "want"), LABELS)
def test_node_selector_terms(requirement, want):
    """Gt and Lt compare integers, not text; NotIn and DoesNotExist hold without the label."""
    nodes = (
        node("n0", labels={"a": "x", "n": "10"}),
        node("n1", labels={"a": "z", "n": "9"}),
        node("n2"),
    )
    assert may_run(NodeTable(nodes), wants(requirement)).tolist() == want


def test_terms_are_alternatives_and_empty_ones_match_nothing():
    """Terms OR, selectors AND, an empty term nothing, fields by name."""
    fleet = NodeTable((node("n0", labels={"a": "x"}), node("n1"), node("n2")))
    by_name = SelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "In", ("n1",)),))
    by_label = SelectorTerm(labels=(NodeSelectorRequirement("a", "Exists"),))
    either = NodeSelector(terms=(by_name, by_label, SelectorTerm()))
    other = NodeSelector(
        terms=(SelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "NotIn", ("n0",)),)),)
    )
    assert may_run(fleet, PodShape(selectors=(either,))).tolist() == [True, True, False]
    assert may_run(fleet, PodShape(selectors=(either, other))).tolist() == [False, True, False]
    assert not may_run(fleet, PodShape(selectors=(NodeSelector(terms=(SelectorTerm(),)),))).any()
    assert not may_run(fleet, PodShape(node_selector=(("a", "y"),))).any()


TOLERATIONS = [
    ((), False),
    ((Toleration(operator="Exists"),), True),
    ((Toleration(key="k", operator="Exists"),), True),
    ((Toleration(key="k", value="v"),), True),
    ((Toleration(key="k", value="w"),), False),
    ((Toleration(key="k", value="v", effect="NoExecute"),), False),
    ((Toleration(key="k", value="v", effect="NoSchedule"),), True),
]


@pytest.mark.parametrize(("tolerations", "want"), TOLERATIONS)
def test_taints(tolerations, want):
    """Key, value and effect must match; PreferNoSchedule keeps no pod away."""
    soft = Taint(key="s", effect="PreferNoSchedule")
    fleet = NodeTable(
        (node("n0", taints=(Taint(key="k", value="v"), soft)), node("n1", taints=(soft,)))
    )
    assert may_run(fleet, PodShape(tolerations=tolerations)).tolist() == [want, True]


def test_cordon():
    """A cordoned node takes only pods that tolerate the unschedulable taint."""
    fleet = NodeTable((node("n0", unschedulable=True),))
    key = "node.kubernetes.io/unschedulable"
    assert not may_run(fleet, PodShape()).any()
    assert may_run(fleet, PodShape(tolerations=(Toleration(key=key, operator="Exists"),))).all()


def port(ip: str, number: int = 80, protocol: str = "TCP") -> PodShape:
    return PodShape(requests=(("pods", 1),), host_ports=(HostPort(protocol, number, ip),))


@pytest.mark.parametrize(
    ("shapes", "fit"),
    [
        ([port("0.0.0.0"), port("0.0.0.0")], 1),
        ([port("0.0.0.0"), port("10.0.0.1")], 1),
        ([port("10.0.0.1"), port("10.0.0.2")], 2),
        ([port("10.0.0.1"), port("10.0.0.1")], 1),
        ([port("0.0.0.0"), port("0.0.0.0", 81)], 2),
        ([port("0.0.0.0"), port("0.0.0.0", 80, "UDP")], 2),
        ([port("0.0.0.0"), port("10.0.0.1"), port("10.0.0.2")], 2),
    ],
)
def test_host_ports(shapes, fit):
    """Any address clashes with every address, of the same port and protocol only."""
    assert len(place(shapes, [node("n0")]).assignments) == fit


def test_host_ports_taken_by_others():
    """A port taken on one address leaves the other addresses, but not "any"."""
    taken = node("n0", host_ports=(HostPort("TCP", 80, "10.0.0.1"),))
    assert len(place([port("10.0.0.2")], [taken]).assignments) == 1
    assert place([port("10.0.0.1")], [taken]).outcome == "impossible"
    assert place([port("0.0.0.0")], [taken]).outcome == "impossible"


def test_exclusive_claim():
    """ReadWriteOncePod: one pod in the whole cluster, none when it is in use."""
    shape = PodShape(requests=(("pods", 1),), exclusive_claims=("ns/c",))
    nodes = [node("n0"), node("n1")]
    assert len(place([shape, shape], nodes).assignments) == 1
    assert place([shape, shape], nodes, minimum=2).outcome == "impossible"
    assert place([shape], nodes, claims_in_use=("ns/c",)).outcome == "impossible"
    other = PodShape(requests=(("pods", 1),))
    verdict = place([shape, other], nodes, claims_in_use=("ns/c",))
    assert [a.pod for a in verdict.assignments] == ["ns/p1"]


def test_resources():
    """Not named in allocatable: not offered. Zero: not asked for. Overcommitted: nothing fits."""
    gpu = PodShape(requests=(("gpu", 1), ("pods", 1)))
    assert place([gpu], [node("n0", free={"gpu": 5, "pods": 5})]).outcome == "impossible"
    zero = PodShape(requests=(("gpu", 0), ("pods", 1)))
    assert isinstance(place([zero], [node("n0")]), Plan)
    cpu = PodShape(requests=(("cpu", 1), ("pods", 1)))
    assert place([cpu], [node("n0", free={"cpu": -5, "pods": 5})]).outcome == "impossible"
    assert isinstance(place([zero], [node("n0", free={"cpu": -5, "pods": 5})]), Plan)
    bare = PodShape()  # a pod counts as a pod, whatever its shape requests
    assert place([bare], [node("n0", free={"pods": 0})]).outcome == "impossible"


def test_rejections_are_not_called_impossible():
    """Refused nodes may be refused wrongly: unknown, with the reason; without them impossible stands."""
    shape = PodShape(requests=(("cpu", 1000), ("pods", 1)))
    rejection = (NodeRejection(node=NodeName("n0"), shape=0),)
    verdict = place([shape], [node("n0")], rejected_nodes=rejection)
    assert verdict.outcome == "unknown"
    assert "kube-scheduler refused n0" in verdict.given[0]
    assert "given that" in verdict.reasons[0]
    large = PodShape(requests=(("cpu", 9000), ("pods", 1)))
    verdict = place([large], [node("n0")], rejected_nodes=rejection)
    assert verdict.outcome == "impossible"
    assert verdict.given == ()
    pod = (NodeRejection(node=NodeName("n0"), uid=PodUid("p0")),)
    verdict = place([shape, shape], [node("n0"), node("n1")], minimum=2, rejected_nodes=pod)
    assert next(a.node for a in verdict.assignments if a.pod == "ns/p0") == "n1"


def test_unmodelled_parts_are_named():
    """What the planner cannot see stands in `given`, and the plan is still made."""
    shape = PodShape(requests=(("pods", 1),), unmodelled=("volume ns/v is not bound yet",))
    assert place([shape], [node("n0")]).given == ("volume ns/v is not bound yet",)


def test_earlier_plan_is_kept():
    """Members go where an earlier plan had put them, if that still works."""
    shape = PodShape(requests=(("cpu", 1000), ("pods", 1)))
    nodes = tuple(node(f"n{i}", labels={"rack": f"r{i // 2}"}) for i in range(6))
    wishes = ["n5", "n4", "n5", None]
    members = tuple(
        PlanMember(pod=f"ns/p{i}", uid=PodUid(f"p{i}"), shape=0, prefer=w and NodeName(w))
        for i, w in enumerate(wishes)
    )
    root = PlanGroup(
        key=GroupKey(namespace="ns", name="g", kind="PodGroup"),
        minimum=3,
        topology=("rack",),
        members=members,
    )
    answer = plan(PlanRequest(root=root, nodes=nodes, shapes=(shape,)))
    assert [a.node for a in answer.assignments][:3] == ["n5", "n4", "n5"]
    assert answer.placements[0].domain == (("rack", "r2"),)
