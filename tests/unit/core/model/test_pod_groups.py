"""Trees are judged by B1 to B10, in words that name objects and both values."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.model.ids import GangUid, PodUid
from extender.core.model.pod_groups import (
    CHILDREN_MAX,
    Forest,
    Group,
    build_forest,
    composite_key,
    forest_with_updates,
    kind_of,
    leaf_key,
)
from extender.core.model.pods import Pod, PodShape
from tests.support.hypothesis_profile import examples

NS = "a"


def leaf(name: str, parent: str | None = None, **more) -> Group:
    return Group(key=leaf_key(NS, name), uid=GangUid(name), parent=parent, **more)


def composite(name: str, parent: str | None = None, **more) -> Group:
    return Group(key=composite_key(NS, name), uid=GangUid(name), parent=parent, **more)


def pod(name: str, group: str, **more) -> Pod:
    return Pod(
        uid=PodUid(name),
        namespace=NS,
        name=name,
        shape=PodShape(),
        group=leaf_key(NS, group),
        **more,
    )


def forest(*things: Group | Pod) -> Forest:
    groups = {thing.key: thing for thing in things if isinstance(thing, Group)}
    members: dict = {}
    for thing in things:
        if isinstance(thing, Pod):
            members.setdefault(thing.group, []).append(thing)
    return build_forest(groups, members)


def problems(*things: Group | Pod) -> list[tuple[str, str]]:
    (tree,) = forest(*things).trees.values()
    return [(problem.rule, problem.message) for problem in tree.problems]


def test_b1_the_unit_is_the_root_and_roots_of_one_workload_are_independent() -> None:
    found = forest(leaf("x", workload="w"), leaf("y", workload="w"), composite("r"), leaf("z", "r"))
    assert set(found.trees) == {leaf_key(NS, "x"), leaf_key(NS, "y"), composite_key(NS, "r")}
    assert found.root_of[leaf_key(NS, "z")] == composite_key(NS, "r")


def test_b2_any_order_of_creation_gives_the_same_forest() -> None:
    things = [
        composite("r"),
        composite("c", "r"),
        leaf("x", "c"),
        leaf("lost", "no-such-group"),
        pod("p", "x"),
    ]
    first = forest(*things)
    for seed in range(10):
        random.Random(seed).shuffle(things)
        assert forest(*things) == first


def test_b3_a_group_without_its_parent_waits_naming_it() -> None:
    found = forest(leaf("x", "r"), pod("p", "x"))
    assert not found.trees
    problem = found.orphans[leaf_key(NS, "x")].problem
    assert problem.rule == "B3"
    assert problem.message == (
        "PodGroup/a/x waits for its parent CompositePodGroup/a/r, which does not exist"
    )
    healed = forest(leaf("x", "r"), pod("p", "x"), composite("r"))
    assert not healed.orphans
    assert [p.name for p in healed.trees[composite_key(NS, "r")].pods] == ["p"]


def test_b4_a_pod_whose_group_is_not_there_is_in_no_tree() -> None:
    found = forest(leaf("x"), pod("p", "other"))
    assert [tree.pods for tree in found.trees.values()] == [()]


def test_b5_a_group_created_again_is_another_root() -> None:
    before, after = leaf("x"), Group(key=leaf_key(NS, "x"), uid=GangUid("new"), minimum=3)
    assert forest(before).trees[before.key].root.uid != forest(after).trees[after.key].root.uid


def test_b6_a_cycle_is_named_by_its_smallest_member_from_everywhere() -> None:
    things = [composite("b", "a"), composite("a", "b"), leaf("x", "a"), composite("self", "self")]
    texts = set()
    for seed in range(10):
        random.Random(seed).shuffle(things)
        found = forest(*things)
        assert not found.trees
        texts.add(
            tuple(
                sorted(
                    (str(k), o.problem.rule, o.problem.message) for k, o in found.orphans.items()
                )
            )
        )
    (all_of_them,) = texts
    by_name = {key: text for key, rule, text in all_of_them if rule == "B6"}
    assert by_name["PodGroup/a/x"] == by_name["CompositePodGroup/a/b"]
    assert "the parents of CompositePodGroup/a/a form a cycle of 2" in by_name["PodGroup/a/x"]
    assert "CompositePodGroup/a/self form a cycle of 1" in by_name["CompositePodGroup/a/self"]


def test_b7_a_branch_too_deep_spoils_the_legal_ones_too() -> None:
    """H03: root > c1 > c2 > c3 > leaf is five levels."""
    chain = [composite("r"), composite("c1", "r"), composite("c2", "c1"), composite("c3", "c2")]
    ((rule, text),) = problems(*chain, leaf("deep", "c3"), leaf("fine", "r"))
    assert rule == "B7"
    assert text == "the tree has 5 levels at PodGroup/a/deep, at most 4 are allowed"
    assert problems(*chain[:3], leaf("fine", "c2")) == []


def test_b7_more_levels_than_are_looked_at_are_not_named_as_if_they_were_all() -> None:
    chain = [
        composite("c0"),
        *(composite(f"c{n}", f"c{n - 1}") for n in range(1, 9)),
        leaf("deep", "c8"),
    ]
    ((rule, text),) = problems(*chain)
    assert rule == "B7"
    assert text == "the tree has at least 5 levels at CompositePodGroup/a/c4, at most 4 are allowed"


def test_b8_two_workloads_in_one_tree() -> None:
    """H04."""
    ((rule, text),) = problems(
        composite("r", workload="w1"), leaf("x", "r", workload="w1"), leaf("y", "r", workload="w2")
    )
    assert rule == "B8"
    for word in ("CompositePodGroup/a/r", '"w1"', "PodGroup/a/y", '"w2"'):
        assert word in text


def test_b9_groups_share_the_number_of_their_priority() -> None:
    """Kubernetes 1.38 compares the numbers: two classes of one value are one priority."""
    root = composite("r", priority=5, priority_class="prod")
    ((rule, text),) = problems(root, leaf("x", "r", priority=7))
    assert rule == "B9"
    assert 'CompositePodGroup/a/r has 5 (class "prod"), PodGroup/a/x has 7; give all' in text
    assert problems(root, leaf("x", "r", priority=5, priority_class="batch")) == []


def test_b9_groups_share_the_preemption_policy() -> None:
    """As Kubernetes 1.38 has it; a tree of one policy is valid whichever it is."""
    never = {"preemption_policy": "Never"}
    ((rule, text),) = problems(
        composite("r"), leaf("x", "r"), leaf("z", "r", **never), leaf("y", "r", **never)
    )
    assert rule == "B9"
    assert 'CompositePodGroup/a/r has "PreemptLowerPriority"' in text
    assert 'PodGroup/a/y has "Never"' in text
    assert "spec.preemptionPolicy" in text
    assert problems(composite("r", **never), leaf("x", "r", **never)) == []


def test_b9_a_preemption_policy_that_becomes_known_is_judged() -> None:
    """The class of a group may be read after the group: the tree is judged again."""
    before = {g.key: g for g in (composite("r"), leaf("x", "r"))}
    forest = build_forest(before, {})
    changed = leaf("x", "r", preemption_policy="Never")
    after = forest_with_updates(forest, before | {changed.key: changed}, [changed], {})
    assert after is not None
    (tree,) = after.trees.values()
    assert [problem.rule for problem in tree.problems] == ["B9"]


def test_b9_pods_share_the_preemption_policy_of_a_built_in_group() -> None:
    """kube-scheduler 1.38 refuses such a tree; a group of ours may be stricter than its pods, and evicts none then."""
    never = {"preemption_policy": "Never"}
    members = [pod("p0", "x"), pod("p1", "x")]
    ((rule, text),) = problems(leaf("x", source="builtin", **never), *members)
    assert rule == "B9 pods"
    assert 'Pod/a/p0 has preemptionPolicy "PreemptLowerPriority", its tree PodGroup/a/x' in text
    assert problems(leaf("x", source="builtin"), *members) == []
    assert problems(leaf("x", **never), *members) == []
    alone = leaf("x", source="builtin", **never)
    late = {alone.key: [members[0]]}
    after = forest_with_updates(
        build_forest({alone.key: alone}, {}), {alone.key: alone}, [], late,
        pods={alone.key: [(None, members[0])]},
    )  # fmt: skip
    assert after is not None
    assert after.trees[alone.key].problems[0].message == text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"priority": 7}, ["Pod/a/p99 has priority 7", "has 5", "priorityClassName"]),
        (
            {"scheduler_name": "other"},
            ["schedulerName", '"default-scheduler"', 'Pod/a/p99 has "other"'],
        ),
        ({"preemption_policy": "Never"}, ["preemptionPolicy", '"PreemptLowerPriority"', '"Never"']),
    ],
)
def test_b9_one_pod_of_a_hundred_that_differs_spoils_the_tree(change, words) -> None:
    """H05: both values are named; only the number of a pod's priority counts (X15)."""
    good = [pod(f"p{n}", "x", priority=5) for n in range(99)]
    odd = pod("p99", "x", **{"priority": 5, **change})
    ((rule, text),) = problems(leaf("x", priority=5, priority_class="prod"), *good, odd)
    assert rule == "B9 pods"
    for word in words:
        assert word in text
    going = pod("p99", "x", deleting=True, **{"priority": 5, **change})
    assert problems(leaf("x", priority=5, priority_class="prod"), *good, going) == []


def test_b10_single_under_all() -> None:
    """A05 at run time; all under single is legal."""
    ((rule, text),) = problems(
        composite("r", disruption_mode="all"), leaf("x", "r"), leaf("y", "r", disruption_mode="all")
    )
    assert rule == "B10"
    assert (
        text
        == "PodGroup/a/x is single under CompositePodGroup/a/r, which is disrupted as a whole (all)"
    )
    assert problems(composite("r"), leaf("y", "r", disruption_mode="all")) == []


def test_all_on_a_basic_leaf_is_valid() -> None:
    """Kubernetes 1.37 accepts it, and evicts its pods together; `collect_warnings` warns."""
    assert problems(leaf("x", disruption_mode="all", basic=True)) == []


def test_b16_too_many_children() -> None:
    kids = [leaf(f"k{n}", "r") for n in range(CHILDREN_MAX + 1)]
    ((rule, text),) = problems(composite("r"), *kids)
    assert rule == "B16"
    assert "has more than 512 child groups: raise --max-children" in text
    assert "--max-children" in text
    assert problems(composite("r"), *kids[1:]) == []


def test_stored_order_is_age_then_name_then_kind() -> None:
    """A leaf and a composite of one name and age still have one order."""
    things = [
        composite("r"),
        leaf("same", "r"),
        composite("same", "r"),
        leaf("old", "r", created_us=-1),
    ]
    orders = set()
    for seed in range(8):
        random.Random(seed).shuffle(things)
        orders.add(tuple(str(g.key) for g in forest(*things).trees[composite_key(NS, "r")].groups))
    assert orders == {
        ("CompositePodGroup/a/r", "PodGroup/a/old", "CompositePodGroup/a/same", "PodGroup/a/same")
    }


def test_members_by_priority_then_age() -> None:
    some = [pod("c", "x", created_us=1), pod("b", "x"), pod("a", "x", priority=1), pod("aa", "x")]
    assert [p.name for p in forest(leaf("x"), *some).trees[leaf_key(NS, "x")].pods] == [
        "a", "aa", "b", "c",
    ]  # fmt: skip


def test_kinds_are_a_closed_list() -> None:
    assert kind_of("PodGroup") == "PodGroup"
    assert kind_of("CompositePodGroup") == "CompositePodGroup"
    with pytest.raises(ValueError, match="'Job'"):
        kind_of("Job")


names = st.sampled_from("abcde")
any_group = st.builds(
    lambda make, name, parent, created: make(name, parent, created_us=created),
    st.sampled_from([leaf, composite]),
    names,
    st.none() | names,
    st.integers(0, 1),
)


@examples(200)
@given(st.lists(any_group, max_size=8, unique_by=lambda g: g.key), st.randoms())
def test_every_group_is_in_exactly_one_tree_or_waits(some, chance) -> None:
    """No group is lost or counted twice, and the order of creation does not matter."""
    found = forest(*some)
    in_trees = [group.key for tree in found.trees.values() for group in tree.groups]
    assert sorted([*in_trees, *found.orphans]) == sorted(group.key for group in some)
    assert set(found.root_of) == set(in_trees)
    chance.shuffle(some)
    assert forest(*some) == found


def test_e15_a_child_made_for_a_parent_that_is_being_deleted_stays_out() -> None:
    """Older children still belong to the tree; the problem of the new child names the remedy."""
    root = composite("r", deleting=True, deleted_us=5)
    found = forest(root, leaf("old", "r", created_us=5), leaf("new", "r", created_us=6))
    assert [g.key.name for g in found.trees[root.key].groups] == ["r", "old"]
    (orphan,) = found.orphans.values()
    assert (orphan.group.key.name, orphan.problem.rule) == ("new", "E15")
    assert (
        "PodGroup/a/new was created while its parent CompositePodGroup/a/r"
        in orphan.problem.message
    )


def test_e15_a_deletion_mark_seen_after_the_child_puts_the_child_out_all_the_same() -> None:
    """Two watches, two orders; the incremental forest must not keep what a whole one leaves out."""
    root, child = composite("r"), leaf("new", "r", created_us=6)
    before = forest(root, child)
    going = composite("r", deleting=True, deleted_us=5)
    groups = {going.key: going, child.key: child}
    assert forest_with_updates(before, groups, [going], {}) is None
    assert child.key in build_forest(groups, {}).orphans
