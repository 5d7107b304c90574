"""C.1 and C.2 as tables."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    Refusal,
    admissible,
    satisfied_by_bound,
    waiting_reasons,
)
from extender.core.planner.planning import plan
from tests.support.planning import spec_vectors


def leaf(name: str, *, minimum: int = 1, basic: bool = False, pending: int = 0, bound: int = 0):
    return PlanGroup(
        key=GroupKey(namespace="ns", name=name, kind="PodGroup"),
        minimum=minimum,
        basic=basic,
        members=tuple(
            PlanMember(pod=f"ns/{name}{i}", uid=PodUid(f"{name}{i}"), shape=0)
            for i in range(pending)
        ),
        bound=tuple(
            PlanBound(pod=f"ns/{name}b{i}", uid=PodUid(f"{name}b{i}"), node=NodeName("n"))
            for i in range(bound)
        ),
    )


def composite(*children: PlanGroup, minimum: int = 1, basic: bool = False):
    return PlanGroup(
        key=GroupKey(namespace="ns", name="c", kind="CompositePodGroup"),
        minimum=minimum,
        basic=basic,
        groups=children,
    )


@pytest.mark.parametrize("row", [r for r in spec_vectors.by_id("T01")["rows"] if r[1] and not r[2]])
def test_status_of_a_tried_tree(row):
    """T01: M, S, U, UU -> status; S bound, U without capacity, UU without a node that their selector matches."""
    minimum, satisfied, _, unschedulable, unresolvable, expected = row
    every = [
        *(leaf(f"s{i}", bound=1) for i in range(satisfied)),
        *(leaf(f"u{i}", pending=1) for i in range(unschedulable)),
        *(
            msgspec.structs.replace(
                leaf(f"x{i}"), members=(PlanMember(pod=f"ns/x{i}", uid=PodUid(f"x{i}"), shape=1),)
            )
            for i in range(unresolvable)
        ),
    ]
    node = PlanNode(name=NodeName("n"), allocatable={"pods": 9}, free={"pods": 0})
    shapes = (PodShape(requests=()), PodShape(requests=(), node_selector=(("no", "such"),)))
    verdict = plan(
        PlanRequest(root=composite(*every, minimum=minimum), nodes=(node,), shapes=shapes)
    )
    status = verdict.status if isinstance(verdict, Refusal) else "Success"
    assert status == {"UU": "UnschedulableAndUnresolvable"}.get(expected, expected)


def _policy(text: str) -> dict:
    return {"basic": True} if text == "basic" else {"minimum": int(text.split()[1])}


@pytest.mark.parametrize("row", spec_vectors.by_id("T02")["rows"], ids=str)
def test_admission(row):
    """T02: members that exist against minCount, admissible children against minGroupCount."""
    if "leaf" in row:
        have = row["have"]
        parts = [] if isinstance(have, int) else [p.split() for p in have.split(", ")]
        pending = have if isinstance(have, int) else 0
        pending += sum(int(n) for n, word in parts if word in {"pending", "live"})
        bound = sum(int(n) for n, word in parts if word == "running")  # Succeeded: not a member
        group = leaf("g", pending=pending, bound=bound, **_policy(row["leaf"]))
    else:
        good, _, everything = row["admissible"].split()
        children = [leaf(f"g{i}", pending=int(i < int(good))) for i in range(int(everything))]
        group = composite(*children, **_policy(row["composite"]))
    assert admissible(group) is row["ok"]
    assert bool(waiting_reasons(group)) is not row["ok"]


def test_reasons_name_the_counts():
    """E17: "3 required, 2 present", and the children that are behind it."""
    lines = waiting_reasons(
        composite(leaf("a", minimum=3, pending=2), leaf("b", pending=1), minimum=2)
    )
    assert lines == [
        "waiting for child groups of CompositePodGroup ns/c: 2 required, 1 ready",
        "waiting for members of PodGroup ns/a: 3 required, 2 present",
    ]


def test_bound_members_hold_a_tree():
    """A tree is satisfied by bound members alone when enough of its children are."""
    full, half = leaf("a", minimum=2, bound=2), leaf("b", minimum=2, bound=1, pending=1)
    assert satisfied_by_bound(composite(full, half, minimum=1))
    assert not satisfied_by_bound(composite(full, half, minimum=2))


def test_a_required_child_counts_first_and_always():
    """L27: three children, required {decode}: any two with decode."""
    ready, gone = leaf("a", bound=1), leaf("decode", minimum=2, bound=1)
    group = msgspec.structs.replace(
        composite(ready, leaf("b", bound=1), gone, minimum=2), required=("decode",)
    )
    assert not admissible(group)
    assert not satisfied_by_bound(group)
    assert waiting_reasons(group)[0] == (
        "waiting for child groups of CompositePodGroup ns/c: 2 required, 2 ready, without decode, which its "
        "requiredGroups name"
    )
    whole = msgspec.structs.replace(group, groups=(ready, leaf("decode", bound=1)))
    assert admissible(whole)
    assert satisfied_by_bound(whole)
    assert not admissible(msgspec.structs.replace(whole, required=("decode", "absent")))
    basic = msgspec.structs.replace(group, basic=True)
    assert admissible(basic)


def test_a_required_name_that_no_child_has_is_compared_with_those_there():
    group = msgspec.structs.replace(composite(leaf("decode", bound=1)), required=("decod",))
    assert waiting_reasons(group)[0].endswith(
        "without decod, which its requiredGroups name; did you mean decode?"
    )
