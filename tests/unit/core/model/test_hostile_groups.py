"""Parent graphs of any shape cost what their number costs, and are judged as one group after the other would be.

A user with the right to create groups may make cycles, chains, stars and orphans without limit (B6, B7).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from extender.core.model import cluster_view as view_module
from extender.core.model.cluster_view import (
    GROUPS_AT_ONCE,
    ClusterView,
    forest_after,
    forest_of,
    forest_steps,
    groups_above,
    with_group,
    with_pod,
    without_group,
    without_pod,
)
from extender.core.model.ids import GangUid, GroupKey, PodUid
from extender.core.model.pod_groups import (
    CHILDREN_MAX,
    DEPTH_MAX,
    PROBLEMS_NAMED_MAX,
    Forest,
    Group,
    Orphan,
    build_forest,
    composite_key,
    leaf_key,
)
from extender.core.model.pods import Pod, PodShape
from tests.support.hypothesis_profile import daily, examples

NS = "a"


def composite(name: str, parent: str | None = None, namespace: str = NS, **more) -> Group:
    return Group(key=composite_key(namespace, name), uid=GangUid(name), parent=parent, **more)


def leaf(name: str, parent: str | None = None, namespace: str = NS, **more) -> Group:
    return Group(key=leaf_key(namespace, name), uid=GangUid(name), parent=parent, **more)


def by_key(*groups: Group) -> dict[GroupKey, Group]:
    return {group.key: group for group in groups}


# --- the shapes ----------------------------------------------------------------------------------


def cycle(count: int) -> list[Group]:
    return [composite(f"g{i:05}", f"g{(i + 1) % count:05}") for i in range(count)]


def chain(count: int) -> list[Group]:
    return [composite(f"g{i:05}", f"g{i - 1:05}" if i else None) for i in range(count)]


def chain_of_orphans(count: int) -> list[Group]:
    return [composite(f"g{i:05}", f"g{i - 1:05}" if i else "missing") for i in range(count)]


def star(count: int) -> list[Group]:
    return [composite("root"), *(leaf(f"g{i:05}", "root") for i in range(count - 1))]


def star_that_differs(count: int) -> list[Group]:
    """Every leaf breaks a rule of its own: single and basic, of another priority, Workload and so on."""
    root = composite("root", disruption_mode="all", priority=5, workload="w")
    made = (
        leaf(
            f"g{i:05}",
            "root",
            priority=i + 6,
            workload=f"w{i}",
            basic=True,
            disruption_mode=("single", "all")[i % 2],
        )
        for i in range(count - 1)
    )
    return [root, *made]


def orphans(count: int) -> list[Group]:
    return [leaf(f"g{i:05}", "missing") for i in range(count)]


def selves(count: int) -> list[Group]:
    return [composite(f"g{i:05}", f"g{i:05}") for i in range(count)]


def tail_of_a_cycle(count: int) -> list[Group]:
    """Half a cycle, half a chain that ends in it."""
    half = count // 2
    return [
        *cycle(half),
        *(composite(f"h{i:05}", f"h{i - 1:05}" if i else "g00000") for i in range(count - half)),
    ]


def roots(count: int) -> list[Group]:
    return [leaf(f"g{i:05}", disruption_mode="all", basic=True) for i in range(count)]


SHAPES = [
    cycle,
    chain,
    chain_of_orphans,
    star,
    star_that_differs,
    orphans,
    selves,
    tail_of_a_cycle,
    roots,
]
BESIDE = [shape for shape in SHAPES if shape not in (star, chain, cycle)]


class Counted(Mapping[GroupKey, Group]):
    """Counts how often a group is looked up."""

    def __init__(self, groups: Mapping[GroupKey, Group]) -> None:
        self.groups = groups
        self.looked = 0

    def __getitem__(self, key: GroupKey) -> Group:
        self.looked += 1
        return self.groups[key]

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self.groups)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [300, 3_000])
def test_each_group_is_looked_up_a_few_times(shape, count) -> None:
    """Ten times the groups are ten times the look-ups, whatever refers to what."""
    groups = Counted(by_key(*shape(count)))
    forest = build_forest(groups, {})
    assert groups.looked <= 4 * count
    in_trees = sum(len(tree.groups) for tree in forest.trees.values())
    assert in_trees + len(forest.orphans) == count


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_do_not_grow_with_the_number_of_groups(shape) -> None:
    """What is stored of a tree that breaks rules, and written on each of its groups, stays a few lines."""
    forest = build_forest(by_key(*shape(2_000)), {})
    for tree in forest.trees.values():
        assert len(tree.problems) <= 4 * (PROBLEMS_NAMED_MAX + 1)
        assert sum(len(problem.message) for problem in tree.problems) < 4_000
    for orphan in forest.orphans.values():
        assert len(orphan.problem.message) < 400


def test_a_rule_that_many_groups_break_names_some_and_counts_the_rest() -> None:
    """The words do not change while more of the same come, or each would be another event."""
    texts = set()
    for count in (PROBLEMS_NAMED_MAX + 1, 40, 400):
        root = composite("root", disruption_mode="all")
        kids = [leaf(f"g{i:05}", "root") for i in range(count)]
        (tree,) = build_forest(by_key(root, *kids), {}).trees.values()
        texts.add(tuple((p.rule, p.message) for p in tree.problems))
    ((*named, more),) = texts
    assert [text for _, text in named] == [
        f"PodGroup/a/g{i:05} is single under CompositePodGroup/a/root, which is disrupted as a whole (all)"
        for i in range(PROBLEMS_NAMED_MAX)
    ]
    assert more == ("B10", "more groups of the tree break the same rule")


def test_the_groups_of_a_cycle_share_one_problem() -> None:
    """It is one text, not one for each of thousands; of what waits for one missing group, there is one for its levels."""
    found = build_forest(by_key(*tail_of_a_cycle(600)), {})
    assert len({id(orphan.problem) for orphan in found.orphans.values()}) == 1
    found = build_forest(by_key(*cycle(DEPTH_MAX)), {})
    assert len({id(orphan.problem) for orphan in found.orphans.values()}) == 1
    found = build_forest(by_key(*chain_of_orphans(600)), {})
    assert Counter(orphan.problem.rule for orphan in found.orphans.values()) == {
        "B3": DEPTH_MAX + 1,
        "B7": 600 - DEPTH_MAX - 1,
    }
    assert len({id(orphan.problem) for orphan in found.orphans.values()}) == 2


# --- the rules, one group after the other ----------------------------------------------------------


def referred(groups: Mapping[GroupKey, Group], start: Group) -> tuple[GroupKey | None, str, str]:
    """Follow parents from one group up: its root, or the rule and the group at which the way breaks."""
    line = [start]
    while len(line) <= DEPTH_MAX + 1:
        here = line[-1]
        if here.parent is None:
            return here.key, "", ""
        parent = groups.get(composite_key(here.key.namespace, here.parent))
        if parent is None:
            return None, "B3", str(here.key)
        if parent.deleting and here.created_us > parent.deleted_us:
            return None, "E15", str(here.key)
        if parent in line:
            members = [group.key for group in line[line.index(parent) :]]
            return None, "B6", f"{min(members)} form a cycle of {len(members)};"
        line.append(parent)
    return None, "B7", f"more than {DEPTH_MAX} groups"


names = st.sampled_from("abcdefgh")
any_group = st.builds(
    lambda make, *args: make(
        args[0], args[1], args[2], created_us=args[3], deleting=args[4], deleted_us=args[5] * args[4], disruption_mode=args[6],
        resource_version=args[7],
    ),
    st.sampled_from([leaf, composite, composite]), names, st.none() | names, st.sampled_from(["a", "b"]),
    st.integers(0, 2), st.booleans(), st.integers(1, 2), st.sampled_from(["single", "all"]), st.sampled_from("12"),
)  # fmt: skip


def check(forest: Forest, groups: Mapping[GroupKey, Group]) -> None:
    """Compare a forest with the walk from each group up to its root."""
    placed = {g.key: key for key, tree in forest.trees.items() for g in tree.groups}
    assert placed == forest.root_of
    for key, group in groups.items():
        root, rule, text = referred(groups, group)
        assert forest.root_of.get(key) == root
        if root is None:
            assert forest.orphans[key].problem.rule == rule
            assert text in forest.orphans[key].problem.message
            assert forest.orphans[key].group == group
        else:
            assert key not in forest.orphans
    assert len(placed) + len(forest.orphans) == len(groups)
    for tree in forest.trees.values():
        assert any(p.rule == "B7" for p in tree.problems) == (
            depth(tree.root.key, groups) > DEPTH_MAX
        )


def level(groups: Mapping[GroupKey, Group], group: Group) -> int:
    """Return the number of groups from a group with a root up to its root."""
    found, here = 1, group
    while here.parent is not None:
        found, here = found + 1, groups[composite_key(here.key.namespace, here.parent)]
    return found


def depth(root: GroupKey, groups: Mapping[GroupKey, Group]) -> int:
    deepest = 0
    for group in groups.values():
        if referred(groups, group)[0] == root:
            deepest = max(deepest, level(groups, group))
    return deepest


@examples(3_000, quick=150)
@given(st.lists(any_group, max_size=14, unique_by=lambda g: g.key))
def test_any_graph_of_parents_is_what_each_group_finds_on_its_way_up(some) -> None:
    """Cycles, chains, orphans, groups that name themselves, parents that are missing or going, two namespaces."""
    check(build_forest(by_key(*some), {}), by_key(*some))


pods = st.builds(
    lambda name, group, node: Pod(
        uid=PodUid(name), namespace=NS, name=name, shape=PodShape(), group=leaf_key(NS, group), node=node
    ),
    names, names, st.none() | st.just("n"),
)  # fmt: skip
steps = st.lists(
    st.one_of(any_group, any_group, pods, st.builds(composite_key, st.just(NS), names), names),
    max_size=30,
)


@examples(2_000, quick=100)
@given(steps, st.integers(1, 4), st.sampled_from([1, 2, CHILDREN_MAX]))
def test_a_forest_after_any_change_is_the_forest_made_anew(found, at_once, max_children) -> None:
    """Groups come, go and move, alone or several between two looks, also more than a parent may have."""
    before = view = ClusterView(max_children=max_children)
    forest = forest_of(view)
    for number, change in enumerate(found):
        if isinstance(change, Group):
            view = with_group(view, change)
        elif isinstance(change, Pod):
            view = with_pod(view, change)
        elif isinstance(change, GroupKey):
            view = without_group(view, change)
        else:
            view = without_pod(view, PodUid(change))
        if number % at_once == 0:
            forest = forest_after(before, forest, view)
            assert forest == forest_of(view)
            if max_children == CHILDREN_MAX:
                check(forest, dict(view.groups.items()))
            before = view


@pytest.mark.parametrize("seed", daily(2, range(8)))
def test_more_children_than_a_parent_may_have_after_any_change(seed) -> None:
    """Parents with a surplus: children come, go, move and change places with those beyond the number (B16)."""
    rng = random.Random(seed)
    surplus = 0
    for _ in range(25):
        before = view = ClusterView(max_children=rng.choice([1, 2, 3]))
        forest = forest_of(view)
        for _ in range(40):
            for _ in range(rng.choice([1, 1, 2, 5])):
                view = _crowd(view, rng)
            forest = forest_after(before, forest, view)
            assert forest == forest_of(view)
            for tree in forest.trees.values():
                assert all(len(kids) <= view.max_children for kids in tree.children.values())
            surplus += bool(forest.surplus)
            before = view
    assert surplus > 20


def _crowd(view: ClusterView, rng: random.Random) -> ClusterView:
    """Change one group or pod; most groups are children of a few parents."""
    dice, created_us = rng.random(), rng.randint(0, 3)
    if dice < 0.25 and view.groups:
        return without_group(view, rng.choice(sorted(view.groups, key=str)))
    if dice < 0.45:
        name, parent = rng.choice("rabcde"), rng.choice([None, "r", "r", "a", "b"])
        deleting = rng.random() < 0.1
        return with_group(
            view, composite(name, parent, created_us=created_us, deleting=deleting, deleted_us=1)
        )
    name = f"l{rng.randint(0, 9)}"
    if dice < 0.9:
        version = str(rng.randint(0, 2))
        return with_group(
            view,
            leaf(name, rng.choice("rrabcd"), created_us=created_us, resource_version=version),
        )
    pod = Pod(
        uid=PodUid(f"p{rng.randint(0, 5)}"), namespace=NS, name="p", shape=PodShape(), group=leaf_key(NS, name)
    )  # fmt: skip
    return with_pod(view, pod)


def stepped(before: ClusterView, after: ClusterView) -> list[tuple[ClusterView, Forest]]:
    """Return the views on the way from one to another; each has the forest of its view, and the last is at the end."""
    forest = forest_of(before)
    steps = list(forest_steps(before, forest, after))
    here, last = before, forest
    for view, found in steps:
        if view.groups is not here.groups:
            assert found == forest_of(view)
        olds, news = here.groups, view.groups
        changed = {k for k in olds if news.get(k) is not olds[k]} | {
            k for k in news if k not in olds
        }
        assert len(changed) <= GROUPS_AT_ONCE
        here, last = view, found
    assert here.groups is after.groups
    assert forest_after(here, last, after) == forest_of(after)
    return steps


@pytest.mark.parametrize(
    "shape", daily(3, [chain, lambda count: star(count)[::-1], cycle, star, *BESIDE])
)
def test_many_groups_are_reached_in_steps(shape) -> None:
    """Each step adds or removes a part, has the forest of its view, and nothing is left after the last."""
    view = seen(shape(2_200))
    for before, after in ((ClusterView(), view), (view, ClusterView())):
        assert len(stepped(before, after)) >= 2_200 // GROUPS_AT_ONCE
    assert list(forest_steps(view, forest_of(view), with_group(view, leaf("fresh")))) == []


def test_a_parent_that_comes_after_its_children_or_goes_before_them_is_reached_in_steps() -> None:
    """One changed group is one change, and concerns all that hang below it: they do not change their place at once."""
    root, *leaves = star(2_200)
    without = seen(leaves)
    assert len(stepped(without, with_group(without, root))) >= 2 * 2_200 // GROUPS_AT_ONCE
    crowded = seen([root, *leaves])
    assert len(stepped(crowded, without_group(crowded, root.key))) >= 2_200 // GROUPS_AT_ONCE


@pytest.mark.parametrize("shape", daily(3, [star, chain, cycle, *BESIDE]))
def test_a_step_costs_what_its_part_costs(shape) -> None:
    """Of twice as many groups, the most expensive step calls as many Python functions as before."""
    worst = []
    for count in (2_000, 4_000):
        before, after = ClusterView(), seen(shape(count))
        forest, calls = forest_of(before), []
        steps = forest_steps(before, forest, after)
        next(steps), next(steps)  # those look at what changed
        while True:
            with Looked() as looked:
                step = next(steps, None)
            if step is None:
                break
            calls.append(looked.calls)
        worst.append(max(calls))
    assert worst[1] < 1.3 * worst[0]


# --- one change among many -------------------------------------------------------------------------


def seen(groups: list[Group]) -> ClusterView:
    return ClusterView(groups=Map(by_key(*groups)))


CHANGES = {
    "another is created": lambda view, _: with_group(view, leaf("fresh")),
    "another is created below a tree": lambda view, _: with_group(view, leaf("fresh", "mine")),
    "another waits for a missing one": lambda view, _: with_group(view, leaf("fresh", "absent")),
    "one is deleted": lambda view, _: without_group(view, composite_key(NS, "mine")),
    "one gets a status": lambda view, _: with_group(view, composite("mine", resource_version="2")),
    "one that hangs in the air gets a status": lambda view, shape: with_group(
        view, msgspec.structs.replace(shape[-1], resource_version="2")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", [cycle, chain, orphans, selves, roots, tail_of_a_cycle])
def test_a_change_of_one_group_leaves_the_others_alone(shape, change, monkeypatch) -> None:
    """Nothing is joined from the beginning; what the change does not concern stays the same objects."""
    made = shape(400)
    before = seen([*made, composite("mine"), leaf("mine-leaf", "mine")])
    forest = forest_of(before)
    view = CHANGES[change](before, made)
    anew = forest_of(view)
    monkeypatch.setattr(view_module, "build_forest", None)  # not asked
    after = forest_after(before, forest, view)
    assert after == anew
    moved = {k for k, tree in after.trees.items() if forest.trees.get(k) is not tree}
    moved |= {k for k, orphan in after.orphans.items() if forest.orphans.get(k) is not orphan}
    assert len(moved) <= 2


def test_a_root_that_gets_a_parent_moves_into_its_tree() -> None:
    """An annotation names the parent of a group that was a tree of its own; both trees are seen as they are now."""
    before = seen([leaf("alone"), composite("mine"), leaf("mine-leaf", "mine")])
    forest = forest_of(before)
    view = with_group(before, leaf("alone", "mine"))
    after = forest_after(before, forest, view)
    assert after == forest_of(view)
    assert [group.key.name for group in after.trees[composite_key(NS, "mine")].groups] == [
        "mine", "alone", "mine-leaf",
    ]  # fmt: skip


def test_the_reason_of_a_group_that_waits_stays_the_same_object() -> None:
    """A status that we wrote on it is no news about its parents."""
    made = cycle(5)
    before = seen(made)
    forest = forest_of(before)
    changed = msgspec.structs.replace(made[2], resource_version="2")
    after = forest_after(before, forest, with_group(before, changed))
    assert after.orphans[changed.key] == Orphan(
        group=changed, problem=forest.orphans[changed.key].problem
    )
    assert after.orphans[changed.key].problem is forest.orphans[changed.key].problem


def test_a_tree_with_too_many_children_is_judged_by_what_it_is() -> None:
    """Status written on its groups does not judge it again: its problems stay the same objects."""
    made = star(CHILDREN_MAX + 100)
    before = seen(made)
    forest = forest_of(before)
    changed = msgspec.structs.replace(made[7], resource_version="2")
    after = forest_after(before, forest, with_group(before, changed))
    (old,), (new,) = forest.trees.values(), after.trees.values()
    assert after == forest_of(with_group(before, changed))
    assert new.problems is old.problems
    assert new.members is old.members


@pytest.mark.parametrize("shape", [cycle, chain, selves])
def test_the_groups_above_a_pod_are_no_more_than_a_tree_may_have(shape) -> None:
    """It is asked for each leaf with pods that run; deeper is invalid."""
    made = shape(600)
    view = seen([*made, leaf("low", made[-1].key.name)])
    above = groups_above(view, leaf_key(NS, "low"))
    assert above[0].key == leaf_key(NS, "low")
    assert len(above) == (2 if shape is selves else DEPTH_MAX)


def test_a_chain_of_any_length_is_a_tree_of_one_level_too_many() -> None:
    """What is below belongs to no tree, with one text; so a group more at the end is no change of the tree."""
    made = chain(600)
    before = seen(made)
    forest = forest_of(before)
    (tree,) = forest.trees.values()
    assert len(tree.groups) == DEPTH_MAX + 1
    assert [problem.rule for problem in tree.problems] == ["B7"]
    assert len({id(orphan.problem) for orphan in forest.orphans.values()}) == 1
    view = with_group(before, leaf("fresh", made[-1].key.name))
    after = forest_after(before, forest, view)
    assert after == forest_of(view)
    assert after.trees[tree.root.key] is tree
    assert after.orphans[leaf_key(NS, "fresh")].problem.rule == "B7"


def test_what_was_too_deep_joins_the_tree_that_became_shorter() -> None:
    """A group in the middle becomes a root: a tree, and another with the groups that were too deep before."""
    made = chain(2 * DEPTH_MAX + 3)
    before = seen(made)
    forest = forest_of(before)
    view = with_group(before, composite(made[DEPTH_MAX].key.name))
    after = forest_after(before, forest, view)
    assert after == forest_of(view)
    assert sorted(len(tree.groups) for tree in after.trees.values()) == [DEPTH_MAX, DEPTH_MAX + 1]
    assert after.orphans


@pytest.mark.parametrize("kept", [1, 3, 1_000])
def test_changes_are_found_however_many_are_known(kept, monkeypatch) -> None:
    """Where the chain of changes ends before the last look, all groups are compared."""
    monkeypatch.setattr(view_module, "CHANGES_KEPT", kept)
    before = view = seen([*cycle(20), composite("mine")])
    forest = forest_of(view)
    for number in range(12):
        view = with_group(view, leaf(f"new-{number}", "mine"))
        if number % 3 == 0:
            view = without_group(view, leaf_key(NS, f"new-{number // 2}"))
        if number % 4 == 3:
            forest = forest_after(before, forest, view)
            assert forest == forest_of(view)
            before = view


class Looked:
    """Counts the calls of Python functions while a block runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self):
        sys.setprofile(lambda _frame, event, _arg: self._count(event))
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _count(self, event: str) -> None:
        self.calls += event == "call"


@pytest.mark.parametrize("shape", [cycle, chain, chain_of_orphans, orphans, selves, roots])
def test_one_more_group_costs_no_call_per_group(shape) -> None:
    """Beside 200 or 2,000 of them the same Python functions are called: what depends on the number is a copy."""
    calls = []
    for count in (200, 2_000):
        made = shape(count)
        before = with_group(seen(made), leaf("other"))
        forest = forest_of(before)
        last = made[-1].key
        parent = last.name if last.kind == "CompositePodGroup" else None
        view = with_group(before, composite("fresh", parent))
        with Looked() as looked:
            forest_after(before, forest, view)
        calls.append(looked.calls)
    few, many = calls
    assert many < 1.5 * few
