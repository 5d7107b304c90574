"""Explanations are true: a conflict clashes, and a way out works."""

from __future__ import annotations

import re

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    Plan,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Refusal,
    map_groups,
)
from extender.core.planner.planning import plan
from tests.support.planning import spec_vectors

replace = msgspec.structs.replace
REFUSED = [
    v
    for v in spec_vectors.of_kind("place")
    if v["want"] == "none" and v.get("st") != "Success"  # one that is satisfied already wants none
]


@pytest.mark.parametrize("vector", REFUSED, ids=[v["id"] for v in REFUSED])
def test_ways_out_of_worked_cases(vector):
    """Every lower minimum and every dropped constraint that is printed places the tree."""
    request = spec_vectors.request_of(vector)
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    for line in refusal.relaxations:
        lower = re.fullmatch(r"min\w+ (\d+) instead of \d+ at \w+ ns/(\S+)", line)
        drop = re.fullmatch(r"drop (\S+) at \w+ ns/(\S+)", line)

        def change(group, lower=lower, drop=drop):
            if lower and group.key.name == lower[2]:
                return replace(group, minimum=int(lower[1]))
            if drop and group.key.name == drop[2]:
                return replace(group, topology=())
            return group

        if lower or drop:
            eased = replace(request, root=map_groups(request.root, change))
            assert isinstance(plan(eased), Plan), line
    if vector["id"] != "V25":
        assert refusal.conflict
        assert refusal.relaxations


def rack_gang(pods: int, **fields) -> PlanRequest:
    offer = {"pods": 9, "gpu": 4}
    nodes = tuple(
        PlanNode(
            name=NodeName(f"n{i}"), labels={"rack": f"r{i // 2}"}, allocatable=offer, free=offer
        )
        for i in range(4)
    )
    root = PlanGroup(
        key=GroupKey(namespace="ns", name="train", kind="PodGroup"),
        minimum=pods,
        topology=("rack",),
        members=tuple(
            PlanMember(pod=f"ns/p{i}", uid=PodUid(f"p{i}"), shape=0) for i in range(pods)
        ),
    )
    shapes = (PodShape(requests=(("gpu", 1), ("pods", 1))),)
    return PlanRequest(**{"root": root, "nodes": nodes, "shapes": shapes, **fields})


def test_reason_has_the_numbers():
    """Group, need, domain, best domain, what is there, what is missing."""
    refusal = plan(rack_gang(10))
    assert refusal.reasons == (
        "PodGroup ns/train needs 10 pods in one rack; the best, r0, holds 8 (2 missing: gpu)",
    )
    assert [c.kind for c in refusal.conflict] == ["minCount", "topology", "resources"]
    assert refusal.relaxations == (
        "minCount 8 instead of 10 at PodGroup ns/train",
        "1 more empty node like n0 in r0",
        "drop rack at PodGroup ns/train",
    )


@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "host"])
def test_a_new_node_has_a_hostname_of_its_own(key):
    """No number of nodes helps a group that needs more than one node can hold; where one helps it is not `in n0`."""
    request = rack_gang(5)
    named = tuple(replace(n, labels={**n.labels, key: n.name}) for n in request.nodes)
    one_node = replace(request, nodes=named, root=replace(request.root, topology=(key,)))
    refusal = plan(one_node)
    assert refusal.relaxations == (
        "minCount 4 instead of 5 at PodGroup ns/train",
        f"drop {key} at PodGroup ns/train",
    )
    used = tuple(replace(n, free={"pods": 9, "gpu": 1}) for n in named)
    fits_empty = replace(request, nodes=used, root=replace(one_node.root, minimum=4))
    assert "1 more empty node like n0" in plan(fits_empty).relaxations


def test_taints_and_reservations_are_named():
    """When a taint or another tree's reservation is what stands in the way, it is in the conflict."""
    request = rack_gang(8)
    tainted = tuple(replace(n, taints=(Taint(key="t"),)) for n in request.nodes)
    refusal = plan(replace(request, nodes=tainted))
    assert "does not tolerate" in refusal.reasons[0]
    assert {c.kind for c in refusal.conflict} == {"minCount", "taint"}
    assert refusal.status == "UnschedulableAndUnresolvable"
    short = {"free": {"pods": 9, "gpu": 3}, "reserved": {"gpu": 1}}
    held = tuple(replace(n, **short) for n in request.nodes)
    refusal = plan(replace(request, nodes=held))
    assert "reservation" in {c.kind for c in refusal.conflict}
    assert any(
        "reserved for other trees or for moves on n0, n1" in text for text in refusal.relaxations
    )


def test_nodes_without_the_label():
    """Where a group has no domain at all, the reason names that."""
    request = rack_gang(2)
    bare = tuple(replace(n, labels={}) for n in request.nodes)
    refusal = plan(replace(request, nodes=bare))
    assert "no node has the label rack" in refusal.reasons[0]
    assert refusal.status == "UnschedulableAndUnresolvable"


def test_explaining_can_be_left_out():
    """The verdict and its reasons do not depend on it."""
    refusal, plain = plan(rack_gang(10)), plan(rack_gang(10, explain=False))
    assert plain.reasons == refusal.reasons
    assert plain.conflict == ()
    assert plain.relaxations == ()


def test_no_nodes_and_no_members():
    """An empty cluster is an answer, not a fault."""
    refusal = plan(rack_gang(2, nodes=()))
    assert refusal.outcome == "impossible"
