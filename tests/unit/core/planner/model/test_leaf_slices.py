"""Slices of a leaf: which pod is in which, what the minimum counts, and how they are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import SliceLevel
from extender.core.planner.plan_types import (
    RANK_STEP,
    PlanBound,
    PlanGroup,
    PlanMember,
    admissible,
    group_name,
    minimum_pods,
    object_key,
    slice_pods,
    threshold,
    with_slices,
)
from tests.support.hypothesis_profile import examples

KEY = GroupKey(namespace="ns", name="g", kind="PodGroup")
LABELS = {"a1": {"rack": "A"}, "a2": {"rack": "A"}, "b1": {"rack": "B"}}


def label(node: NodeName, key: str) -> str | None:
    return LABELS.get(node, {}).get(key)


def leaf(waiting, bound=(), *, minimum=None, basic=False) -> PlanGroup:
    """`waiting`: ranks, or names without one; `bound`: (rank or name, node)."""

    def name(each) -> dict:
        ranked = isinstance(each, int)
        return {"pod": f"ns/{each}", "uid": PodUid(str(each)), "rank": each if ranked else UNSET}

    members = tuple(PlanMember(shape=0, **name(each)) for each in waiting)
    there = tuple(PlanBound(node=NodeName(node), **name(each)) for each, node in bound)
    return PlanGroup(
        key=KEY,
        minimum=len(members) + len(there) if minimum is None else minimum,
        basic=basic,
        members=members,
        bound=there,
    )


def cut(group: PlanGroup, *levels: tuple[int, str]) -> PlanGroup:
    return with_slices(group, [SliceLevel(key, size) for size, key in levels], label)


def pods(group: PlanGroup) -> dict[str, list[str]]:
    return {
        part.key.name: [*(b.uid for b in part.bound), *(m.uid for m in part.members)]
        for part in group.groups
    }


def test_slices_follow_the_ranks():
    """Each in one domain of the key, all of them needed where the minimum is all pods."""
    answer = cut(leaf([5, 0, 1, 4, 3, 2]), (4, "rack"))
    assert pods(answer) == {"g/slice-0": ["0", "1", "3", "2"], "g/slice-1": ["5", "4"]}
    assert [(part.minimum, part.topology) for part in answer.groups] == [
        (4, ("rack",)),
        (2, ("rack",)),
    ]
    assert (answer.key, answer.minimum, answer.required) == (KEY, 2, UNSET)


@pytest.mark.parametrize(
    ("ranks", "slices"),
    [
        ([k * RANK_STEP + 3 for k in range(4)], [2, 2]),  # Jobs of a JobSet with one pod each
        (range(4), [2, 2]),  # the pods of one of its Jobs
        ([RANK_STEP + k for k in range(3)], [1, 2]),  # of Job 1 of several, of which it is left
        (
            [j * RANK_STEP + k for j in range(3) for k in range(3)],
            [2, 2, 2, 2, 1],
        ),  # of several Jobs
        ([0, RANK_STEP, RANK_STEP + 1], [1, 2]),  # a finished pod leaves its slice smaller
        ([0, 2, 3], [1, 2]),  # a finished pod leaves its slice smaller
    ],
)
def test_ranks_of_two_labels(ranks, slices):
    """What differs between the pods counts."""
    assert [len(part.members) for part in cut(leaf(ranks), (2, "rack")).groups] == slices


def test_pods_without_ranks_complete_the_slices_that_are_bound_in_a_domain():
    """Bound pods of one domain are together, and waiting ones go where most are missing last."""
    group = leaf(["d", "e", "f"], [("a", "a1"), ("b", "b1"), ("c", "a2")])
    assert list(pods(cut(group, (3, "rack"))).values()) == [["a", "c", "d"], ["b", "e", "f"]]


def test_levels_are_nested():
    """A slice of the larger size has those of the smaller one."""
    answer = cut(leaf(range(8)), (4, "rack"), (2, "host"))
    inner = answer.groups[1]
    assert pods(inner) == {"g/slice-1-2": ["4", "5"], "g/slice-1-3": ["6", "7"]}
    assert (inner.topology, inner.minimum, inner.groups[0].topology) == (("rack",), 2, ("host",))
    assert (minimum_pods(answer), slice_pods(answer), slice_pods(inner)) == (8, 4, 2)


def test_any_slices_count_where_the_minimum_is_a_whole_number_of_equal_ones():
    answer = cut(leaf(range(12), minimum=8), (4, "rack"))
    assert (answer.minimum, answer.required) == (2, UNSET)
    assert [part.minimum for part in answer.groups] == [4, 4, 4]


def test_else_the_first_ones_count():
    """Those with most bound pods before; what is beyond the minimum comes slice by slice."""
    answer = cut(leaf(range(10), minimum=6), (4, "rack"))
    assert (answer.minimum, answer.required) == (2, ("g/slice-0", "g/slice-1"))
    assert [part.minimum for part in answer.groups] == [4, 2, 2]
    answer = cut(leaf(range(6), [(6, "a1"), (7, "a1")], minimum=6), (4, "rack"))
    assert [part.minimum for part in answer.groups] == [2, 4]


def test_a_leaf_that_waits_for_members_is_not_cut():
    waiting = leaf(range(3), minimum=4)
    assert cut(waiting, (2, "rack")) is waiting
    assert not admissible(waiting)


def test_pods_of_a_basic_leaf_are_placed_one_by_one():
    answer = cut(leaf(range(4), minimum=1, basic=True), (2, "rack"))
    assert threshold(answer) == 1
    assert [part.minimum for part in answer.groups] == [1, 1]


def test_names():
    nested = GroupKey("ns", "g/slice-1-2", "PodGroup")
    assert group_name(nested) == "slice 1-2 of PodGroup ns/g"
    assert object_key(nested) == object_key(KEY) == KEY


@examples(200)
@given(
    st.lists(st.integers(0, 20), unique=True, max_size=8),
    st.lists(st.tuples(st.integers(21, 40), st.sampled_from([*LABELS, "gone"])), max_size=6),
    st.integers(1, 10),
    st.sampled_from([((2, "rack"),), ((3, "host"),), ((4, "rack"), (2, "host"))]),
    st.booleans(),
)
def test_no_pod_is_lost_and_the_minimum_is_never_lower(waiting, bound, minimum, levels, ranked):
    """Any choice of slices that holds has as many pods as the minimum of the leaf."""
    bound = [*{rank: (rank, node) for rank, node in bound}.values()]
    if not ranked:
        waiting = [f"w{each}" for each in waiting]
        bound = [(f"b{each}", node) for each, node in bound]
    group = leaf(waiting, bound, minimum=minimum)
    answer = cut(group, *levels)
    if not admissible(group):
        assert answer is group
        return
    assert admissible(answer)
    flat = [p for part in answer.groups for p in (part.groups or (part,))]
    uids = [pod.uid for part in flat for pod in (*part.bound, *part.members)]
    assert sorted(uids) == sorted(pod.uid for pod in (*group.bound, *group.members))
    assert minimum_pods(answer) >= minimum
