"""Preferred topology: each claim of a plan against every placement of as many pods, and worked cases."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Plan,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
)
from extender.core.planner.planning import plan, plan_at_once
from extender.core.planner.solve import preferred_topology
from tests.support.hypothesis_profile import examples
from tests.support.planning.plan_checker import faults
from tests.support.planning.wish_checker import wish_faults

SHAPES = (
    PodShape(requests=(("gpu", 1), ("pods", 1))),
    PodShape(requests=(("gpu", 2), ("pods", 1))),
)


def node(name: str, gpus: int, **labels: str) -> PlanNode:
    offer = {"gpu": gpus, "pods": 110}
    return PlanNode(
        name=NodeName(name), labels={"host": name, **labels}, allocatable=offer, free=offer
    )


def group(name: str, pods: int = 0, *children: PlanGroup, shape: int = 0, **fields) -> PlanGroup:
    kind = "CompositePodGroup" if children else "PodGroup"
    fields.setdefault("minimum", len(children) or pods)
    return PlanGroup(
        key=GroupKey(namespace="ns", name=name, kind=kind),
        members=tuple(
            PlanMember(pod=f"ns/{name}-{i}", uid=PodUid(f"{name}-{i}"), shape=shape)
            for i in range(pods)
        ),
        groups=children,
        **fields,
    )


def request(root: PlanGroup, *nodes: PlanNode, **fields) -> PlanRequest:
    fields.setdefault("shapes", SHAPES)
    return PlanRequest(root=root, nodes=tuple(sorted(nodes, key=lambda n: n.name)), **fields)


def placed(asked: PlanRequest) -> Plan:
    answer = plan(asked)
    assert isinstance(answer, Plan)
    assert faults(asked, answer) == []
    assert wish_faults(asked, answer) == []
    return answer


@st.composite
def wishing(draw) -> PlanRequest:
    """Draw a tree of one to three leaves with wishes, on two to six nodes of two levels."""
    nodes = []
    for i in range(draw(st.integers(2, 6))):
        labels = {}
        if draw(st.integers(0, 9)):
            labels["rack"] = draw(st.sampled_from("RSTU"))
        if draw(st.integers(0, 9)):
            # nested in most cases, so that a narrower key means something
            labels["zone"] = draw(st.sampled_from(["A", "B", {"R": "A", "S": "A"}.get(labels.get("rack"), "B")]))  # fmt: skip
        nodes.append(node(f"n{i}", draw(st.integers(0, 3)), **labels))
    wishes = st.sampled_from(
        [
            UNSET,
            ("rack",),
            ("rack",),
            ("rack", "zone"),
            ("rack", "zone"),
            ("zone",),
            ("host", "rack"),
        ]
    )
    required = st.sampled_from([(), (), (), ("zone",), ("rack",)])
    left = [draw(st.integers(1, 6))]
    same = draw(st.booleans())
    form = (draw(st.integers(1, 3)), draw(wishes), draw(st.integers(0, 1)))

    def leaf(number: int) -> PlanGroup:
        size, wish, shape = form if same else (draw(st.integers(0, 4)), draw(wishes), draw(st.integers(0, 1)))  # fmt: skip
        size = min(size, left[0])
        left[0] -= size
        bound = 0 if draw(st.integers(0, 4)) else draw(st.integers(1, 2))
        names = [n.name for n in nodes] + [NodeName("lost")] * (draw(st.integers(0, 9)) == 0)
        return group(
            f"g{number}",
            size,
            shape=shape,
            minimum=max(1, min(draw(st.integers(1, 3)), size + bound)),
            topology=draw(required) if not same else (),
            preferred=wish,
            bound=tuple(
                PlanBound(pod=f"ns/b{number}-{i}", uid=PodUid(f"b{number}-{i}"), node=draw(st.sampled_from(names)))
                for i in range(bound)
            ),
        )  # fmt: skip

    leaves = [leaf(i) for i in range(draw(st.integers(1, 3)))]
    root = leaves[0]
    if len(leaves) > 1 or draw(st.booleans()):
        if len(leaves) == 3 and draw(st.booleans()):
            leaves = [group("inner", 0, *leaves[:2], minimum=draw(st.integers(1, 2)), preferred=draw(wishes)), leaves[2]]  # fmt: skip
        root = group(
            "root", 0, *leaves,
            minimum=draw(st.integers(1, len(leaves))), preferred=draw(wishes), topology=draw(required),
        )  # fmt: skip
    return request(root, *nodes)


def _checked(asked: PlanRequest) -> None:
    answer = plan(asked)
    if isinstance(answer, Plan):
        assert faults(asked, answer) == []
        assert wish_faults(asked, answer) == []


@examples(1000, quick=40, suppress_health_check=list(HealthCheck))
@given(wishing())
def test_every_claim_holds_against_brute_force(asked):
    """Each value is the best possible where this is claimed, and each bound is at most the best."""
    _checked(asked)
    answer = plan(asked)
    if isinstance(answer, Plan):
        assert all(v.best == v.value for w in answer.wishes for v in w.values)


@examples(300, suppress_health_check=list(HealthCheck))
@given(wishing())
def test_the_complete_search_alone_makes_claims_that_hold(asked):
    """With the greedy search taken out, after the first placement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preferred_topology, "solve_quickly", lambda *args, **options: None)
        _checked(asked)


@examples(200, suppress_health_check=list(HealthCheck))
@given(wishing(), st.integers(1, 600))
def test_whatever_the_budget_no_wish_refuses_and_each_bound_holds(asked, budget):
    """A small budget can only make values worse, and bounds weaker."""
    few = plan(msgspec.structs.replace(asked, budget=budget))
    if isinstance(few, Plan) and few.search.exhausted:
        assert wish_faults(asked, few) == []


@examples(300, suppress_health_check=list(HealthCheck))
@given(wishing(), st.sampled_from([1, 3, 20, 1000]))
def test_at_once_is_the_same_answer_or_none(asked, effort):
    """`plan_at_once` returns the bytes of `plan`, or none."""
    answer = plan_at_once(asked, NodeTable(asked.nodes), effort=effort)
    if not isinstance(answer, str):
        assert msgspec.json.encode(answer) == msgspec.json.encode(plan(asked))
