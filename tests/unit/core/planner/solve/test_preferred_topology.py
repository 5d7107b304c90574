"""Preferred topology: each claim of a plan against every placement of as many pods, and worked cases."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import SliceLevel, Taint
from extender.core.model.pods import PodShape, Toleration
from extender.core.planner.model.node_table import FIT_MAX, NodeTable
from extender.core.planner.plan_types import (
    Evictable,
    Plan,
    PlanBound,
    PlanExclusive,
    PlanGroup,
    PlanMember,
    PlanNear,
    PlanNode,
    PlanRequest,
    PlanUnit,
    PlanVictim,
    WishValue,
    satisfied_by_bound,
    with_slices,
)
from extender.core.planner.planning import plan, plan_at_once
from extender.core.planner.preempt.victim_search import PreemptionPlan, preempt
from extender.core.planner.solve import preferred_topology
from extender.core.planner.solve.cp_sat_placement import CpSatResult
from extender.core.planner.solve.domain_counts import fewest_needed, filled, most_pairs
from tests.support.hypothesis_profile import examples
from tests.support.planning import preemption_checker
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


def label_of(nodes):
    labels = {node.name: node.labels for node in nodes}
    return lambda name, key: labels.get(name, {}).get(key)


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
    balances = draw(st.booleans())
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
            balanced=True if wish is not UNSET and balances else UNSET,
            bound=tuple(
                PlanBound(pod=f"ns/b{number}-{i}", uid=PodUid(f"b{number}-{i}"), node=draw(st.sampled_from(names)))
                for i in range(bound)
            ),
        )  # fmt: skip

    leaves = [leaf(i) for i in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        levels = draw(st.sampled_from([(2, "host"), (2, "rack"), (3, "rack")]))
        leaves[0] = with_slices(leaves[0], [SliceLevel(levels[1], levels[0])], label_of(nodes))
    root = leaves[0]
    if len(leaves) > 1 or draw(st.booleans()):
        if len(leaves) == 3 and draw(st.booleans()):
            leaves = [group("inner", 0, *leaves[:2], minimum=draw(st.integers(1, 2)), preferred=draw(wishes)), leaves[2]]  # fmt: skip
        root = group(
            "root", 0, *leaves,
            minimum=draw(st.integers(1, len(leaves))), preferred=draw(wishes), topology=draw(required),
        )  # fmt: skip
    return request(root, *nodes, levels=draw(st.sampled_from([UNSET, ("rack", "zone")])))


@st.composite
def wishing_near(draw) -> PlanRequest:
    """Draw a tree of two to four leaves, some of which shall be near others, at any depth."""
    asked = draw(wishing())
    root = asked.root
    if root.key.kind == "PodGroup":
        partner = group("other", draw(st.integers(1, 3)), minimum=1)
        root = group("root", 0, root, partner, minimum=draw(st.integers(1, 2)))
    if len(root.groups) < 2:
        root = msgspec.structs.replace(root, groups=(*root.groups, group("other", 2, minimum=1)))
    first, last = root.groups[0], root.groups[-1]
    keys = draw(
        st.lists(st.sampled_from(["rack", "zone", "host"]), min_size=1, max_size=2, unique=True)
    )
    near = tuple(PlanNear(group=last.key, key=key) for key in keys)
    changed = [msgspec.structs.replace(first, near=near), *root.groups[1:]]
    if len(changed) > 2 and draw(st.booleans()):
        back = PlanNear(group=changed[1].key, key="rack")
        changed[-1] = msgspec.structs.replace(last, near=(back,))
    below = draw(
        st.sampled_from([(), (0,), (-1,), (0, -1)])
    )  # which stand below a group of their own
    if below:
        above = group("above", 0, *(changed.pop(i) for i in reversed(below)))
        changed.insert(0, above)
    minimum = min(root.minimum, len(changed))
    return msgspec.structs.replace(
        asked, root=msgspec.structs.replace(root, groups=tuple(changed), minimum=minimum)
    )


def combined(rng: random.Random) -> PlanRequest:
    """Return a tree whose groups ask for several things at once, on nodes that hardly hold it.

    That is ranks, several kinds in a leaf, slices, exclusive and required domains beside wishes of it and of the groups above.
    """

    def maybe(chance: float) -> bool:
        return rng.random() < chance

    racks = rng.randint(2, 4)
    nodes = []
    for i in range(rng.randint(3, 6)):
        rack = rng.randrange(racks)
        labels = {"rack": f"r{rack}", "zone": f"z{rack * 2 // racks if maybe(0.9) else 0}"}
        kept = {key: value for key, value in labels.items() if maybe(0.95)}
        nodes.append(node(f"n{i}", rng.choice((0, 1, 1, 2, 2, 3, 4)), **kept))
    # few pods: brute force tries every placement of them
    left = rng.randint(3, 7)
    ranked, mixed, alike, balanced = maybe(0.6), maybe(0.3), maybe(0.3), maybe(0.7)
    alone = rng.choice(("", "", "", "host", "rack"))
    wishes = (UNSET, ("rack",), ("rack", "zone"), ("zone",), ("host", "rack"), ("host", "zone"))
    size, wish = rng.randint(1, 3), rng.choice(wishes)

    def exclusive():
        taken = rng.choice(((), ("r0",), ("n0",)))
        return PlanExclusive(key=alone, taken=taken) if alone and maybe(0.6) else UNSET

    def leaf(name: str, most: int) -> PlanGroup:
        nonlocal left
        pods = min(left, size if alike else rng.randint(1, most))
        left -= pods
        count = 0 if alike or maybe(0.7) else rng.randint(1, 2)
        ranks = rng.sample(range(pods + count), pods + count)
        preferred = wish if alike else rng.choice(wishes)
        names = [NodeName("lost") if maybe(0.05) else n.name for n in nodes]
        plain = group(
            name, pods,
            minimum=rng.randint(1, max(pods + count, 1)),
            basic=maybe(0.1),
            topology=() if alike or maybe(0.8) else rng.choice((("rack",), ("zone",))),
            preferred=preferred,
            balanced=True if balanced and preferred is not UNSET else UNSET,
            exclusive=exclusive(),
            bound=tuple(
                PlanBound(pod=f"ns/{name}-b{i}", uid=PodUid(f"{name}-b{i}"), node=rng.choice(names), rank=ranks[i] if ranked else UNSET)
                for i in range(count)
            ),
        )  # fmt: skip
        members = tuple(
            msgspec.structs.replace(
                m,
                shape=int(mixed and maybe(0.4)),
                rank=ranks[count + i] if ranked else UNSET,
                prefer=rng.choice(names) if maybe(0.05) else None,
            )
            for i, m in enumerate(plain.members)
        )
        plain = msgspec.structs.replace(plain, members=members)
        if maybe(0.6):
            return plain
        count, key = rng.choice(((1, "host"), (2, "host"), (2, "rack"), (3, "rack"), (3, "zone")))
        inner = [SliceLevel("host", 1)] if maybe(0.1) and count > 1 and key != "host" else []
        return with_slices(plain, [SliceLevel(key, count), *inner], label_of(nodes))

    leaves = [leaf(f"g{i}", 4) for i in range(rng.randint(1, 4)) if left]
    root = leaves[0]
    if len(leaves) > 1 or maybe(0.2):
        children = leaves
        if len(leaves) > 2 and maybe(0.6):
            inner = group("inner", 0, *leaves[:2], minimum=rng.randint(1, 2), preferred=rng.choice(wishes), exclusive=exclusive())  # fmt: skip
            children = [inner, *leaves[2:]]
        names = [child.key for child in children]
        children = [
            msgspec.structs.replace(
                child,
                near=tuple(PlanNear(group=rng.choice([n for n in names if n != child.key]), key=rng.choice(("host", "rack", "zone"))) for _ in range(rng.randint(1, 2)))
                if len(names) > 1 and maybe(0.3)
                else UNSET,
            )
            for child in children
        ]  # fmt: skip
        root = group(
            "root", 0, *children,
            minimum=rng.randint(1, len(children)),
            required=(rng.choice(names).name,) if maybe(0.2) else UNSET,
            preferred=rng.choice(wishes),
            balanced=UNSET,
            topology=("zone",) if maybe(0.1) else (),
        )  # fmt: skip
    levels = rng.choice((UNSET, ("rack", "zone"), ("host", "rack", "zone")))
    closed = (PlanExclusive(key="rack", taken=("r1",)),) if maybe(0.1) else UNSET
    later = True if maybe(0.15) else UNSET
    return request(root, *nodes, levels=levels, closed=closed, extras_later=later)


def _checked(asked: PlanRequest, *, complete: bool = True) -> None:
    answer = plan(asked)
    if isinstance(answer, Plan):
        assert faults(asked, answer) == []
        assert wish_faults(asked, answer, complete=complete) == []


@examples(1000, quick=25, suppress_health_check=list(HealthCheck))
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
# one zone holds all, and so does one block of others
@example(
    request(
        group("root", 0, *(group(f"g{i}", n, shape=1) for i, n in enumerate((2, 1, 1))), preferred=("block", "zone")),
        node("n0", 2, block="b0"),
        node("n1", 2, zone="z0"),
        *(node(f"n{i}", 2, block="b0", zone="z0") for i in (2, 5, 6)),
    ),
    20,
)  # fmt: skip
def test_whatever_the_budget_no_wish_refuses_and_each_bound_holds(asked, budget):
    """A small budget can only make values worse, and bounds weaker."""
    few = plan(msgspec.structs.replace(asked, budget=budget))
    if isinstance(few, Plan) and few.search.exhausted:
        assert wish_faults(asked, few) == []


@examples(200, quick=20, suppress_health_check=list(HealthCheck))
@given(wishing())
def test_wishes_are_certified_after_evictions_and_add_no_victim(asked):
    """Each node is full with one pod of lower priority: no set is cheaper, and the wishes are followed best after it."""
    full = [n for n in asked.nodes if n.free["gpu"]]
    units = tuple(
        PlanUnit(
            name=f"Pod/ns/low-{n.name}", uid=f"low-{n.name}", kind="pod", priority=0,
            pods=(PlanVictim(pod=f"ns/low-{n.name}", uid=PodUid(f"low-{n.name}"), node=n.name, shape=number),),
        )
        for number, n in enumerate(full)
    )  # fmt: skip
    shapes = tuple(PodShape(requests=(("gpu", n.free["gpu"]),)) for n in full)
    taken = tuple(msgspec.structs.replace(n, free={**n.free, "gpu": 0}) for n in asked.nodes)
    crowded = msgspec.structs.replace(
        asked, nodes=taken, evictable=Evictable(priority=1, units=units, shapes=shapes)
    )
    made = preempt(crowded)
    if not isinstance(made, PreemptionPlan):
        return
    evicted = {pod.node for unit in made.victims for pod in unit.pods}
    extras = satisfied_by_bound(crowded.root)
    assert preemption_checker.faults(crowded, made, extras=extras) == []
    wanted = len(made.plan.assignments) if extras else 1
    if made.search.exhausted:  # so no wish adds a victim
        assert len(evicted) == preemption_checker.cheapest(crowded, wanted=wanted)[6]
    rows = [n if n.name in evicted else t for n, t in zip(asked.nodes, taken, strict=True)]
    after = msgspec.structs.replace(asked, nodes=tuple(rows))
    if made.plan.search.exhausted:
        assert wish_faults(after, made.plan) == []


@examples(300, suppress_health_check=list(HealthCheck))
@given(wishing(), st.sampled_from([1, 3, 20, 1000]))
def test_at_once_is_the_same_answer_or_none(asked, effort):
    """`plan_at_once` returns the bytes of `plan`, or none."""
    answer = plan_at_once(asked, NodeTable(asked.nodes), effort=effort)
    if not isinstance(answer, str):
        assert msgspec.json.encode(answer) == msgspec.json.encode(plan(asked))


def _value(answer: Plan, name: str) -> dict[str, tuple[int, int]]:
    wish = next(w for w in answer.wishes if w.group.name == name)
    return {v.key: (v.value, v.best) for v in wish.values}


def test_the_narrowest_level_that_holds_the_group_is_chosen():
    """Zone A is roomier, but in zone B one rack holds all four pods."""
    nodes = [node(f"a{i}", 3, rack=f"a{i}", zone="A") for i in range(4)]
    nodes += [node(f"b{i}", 2, rack="b", zone="B") for i in range(2)]
    answer = placed(request(group("g", 4, preferred=("rack", "zone")), *nodes))
    assert answer.wishes[0].values == (
        WishValue(key="rack", value=1, best=1),
        WishValue(key="zone", value=1, best=1),
    )
    assert {a.node for a in answer.assignments} == {"b0", "b1"}


def test_without_a_rack_that_holds_it_there_are_fewest_racks_in_one_zone():
    """Three racks of the whole cluster would hold seven pods as well; the zone that holds them needs three racks of its own."""
    nodes = [node("a0", 5, rack="a0", zone="A"), node("a1", 1, rack="a1", zone="A")]
    nodes += [node(f"b{i}", n, rack=f"b{i}", zone="B") for i, n in enumerate((3, 3, 2))]
    answer = placed(request(group("g", 7, preferred=("rack", "zone")), *nodes))
    assert _value(answer, "g") == {"rack": (3, 3), "zone": (1, 1)}
    assert (answer.wishes[0].pods, answer.wishes[0].largest) == (7, 5)


def test_as_many_identical_leaves_as_possible_are_whole():
    """Three racks hold one leaf each; the fourth leaf takes what is left in two."""
    leaves = [group(f"l{i}", 3, preferred=("rack",)) for i in range(4)]
    nodes = [node(f"n{i}", n, rack=f"r{i}") for i, n in enumerate((4, 4, 4))]
    answer = placed(request(group("t", 0, *leaves), *nodes))
    values = [w.values[0].value for w in answer.wishes]
    assert values == [1, 1, 1, 3]
    assert all(w.values[0].best == w.values[0].value for w in answer.wishes)


def test_an_outer_wish_comes_before_an_inner_one():
    """Rack b alone holds the tree, on two hosts; each leaf alone would be on one host of another rack."""
    nodes = [node("a0", 4, rack="a"), node("c0", 4, rack="c")]
    nodes += [node(f"b{i}", 3, rack="b") for i in range(3)]
    leaves = [group(f"l{i}", 4, preferred=("host",)) for i in range(2)]
    answer = placed(request(group("t", 0, *leaves, preferred=("rack",)), *nodes))
    assert _value(answer, "t") == {"rack": (1, 1)}
    assert [_value(answer, f"l{i}")["host"] for i in range(2)] == [(2, 2), (2, 2)]


def test_bound_members_count():
    """A bound member in rack a keeps the group there as far as rack a can hold it."""
    bound = (PlanBound(pod="ns/b", uid=PodUid("b"), node=NodeName("a0")),)
    nodes = [node("a0", 1, rack="a"), node("b0", 8, rack="b")]
    answer = placed(request(group("g", 3, minimum=1, preferred=("rack",), bound=bound), *nodes))
    assert _value(answer, "g") == {"rack": (2, 2)}
    assert answer.wishes[0].pods == 4


def test_a_wish_gives_way_to_more_pods():
    """Rack a holds three pods, both racks together four: four are placed."""
    nodes = [node("a0", 3, rack="a"), node("b0", 1, rack="b")]
    answer = placed(request(group("g", 4, minimum=1, preferred=("rack",)), *nodes))
    assert len(answer.assignments) == 4
    assert _value(answer, "g") == {"rack": (2, 2)}
    assert answer.wishes[0].largest == 3


@pytest.mark.parametrize("budget", [1, 5, 20, 100])
def test_a_budget_that_ends_first_leaves_a_bound_below_the_value(budget):
    """Two kinds of pods over racks that fit neither evenly: what was reached stands."""
    nodes = [node(f"n{i}", 2 + i % 3, rack=f"r{i % 5}", zone=f"z{i % 2}") for i in range(12)]
    leaves = [group("x", 7, preferred=("rack",)), group("y", 5, shape=1, preferred=("rack",))]
    asked = request(group("t", 0, *leaves, preferred=("rack", "zone")), *nodes, budget=budget)
    answer = plan(asked)
    if isinstance(answer, Plan):
        assert faults(asked, answer) == []
        assert all(v.best <= v.value for w in answer.wishes for v in w.values)


def test_pods_without_topology_go_to_the_fewest_nodes_of_the_fewest_domains():
    """Q2: one node of four that holds all, not one pod on each of the smallest."""
    sizes = {"n1": 1, "m1": 1, "n2": 2, "n4": 4}
    nodes = [node(name, size, rack=name) for name, size in sizes.items()]
    answer = placed(request(group("g", 4), *nodes))
    assert {a.node for a in answer.assignments} == {"n4"}


def test_a_gang_of_one_leaves_the_larger_free_rack_whole():
    """Q1: rack a has two free hosts; the pod goes to the only one of rack c."""
    nodes = [node("a1", 1, rack="a"), node("a2", 1, rack="a"), node("c1", 1, rack="c")]
    asked = request(group("g", 1, topology=("host",)), *nodes, levels=("host", "rack"))
    assert [a.node for a in placed(asked).assignments] == ["c1"]
    asked = request(group("g", 1), *nodes, levels=("host", "rack"))
    assert [a.node for a in placed(asked).assignments] == ["c1"]


def test_two_slices_share_a_host_that_holds_both():
    """Q3: the first slice does not take the tighter host, which cannot hold the second one too."""
    leaves = [group(f"s{i}", 2, topology=("host",)) for i in range(2)]
    answer = placed(request(group("t", 0, *leaves), node("n4", 4), node("n3", 3)))
    assert {a.node for a in answer.assignments} == {"n4"}


def test_the_largest_domains_come_first_and_the_tightest_last():
    """Racks of 6, 5, 4 and 3: eight pods take the first, and of the others the one that holds the rest."""
    nodes = [node(f"{r}{i}", 1, rack=r) for r, n in zip("abcd", (6, 5, 4, 2), strict=True) for i in range(n)]  # fmt: skip
    answer = placed(request(group("g", 8), *nodes, levels=("rack",)))
    racks = sorted(a.node[0] for a in answer.assignments)
    assert racks == ["a"] * 6 + ["d"] * 2


@pytest.mark.parametrize(
    ("racks", "pods", "preferred", "expected"),
    [
        ("aaabbbb", 4, ("host",), "b"),  # four hosts are the fewest, and rack b has as many
        ("aaabbbb", 4, ("nothing",), "b"),  # no node has the key
        ("aaaaccbbb", 6, ("rack",), "ab"),  # two racks are the fewest; a and b are in one zone
    ],
)
def test_a_wish_leaves_the_other_levels_as_few_as_without_it(racks, pods, preferred, expected):
    nodes = [node(f"{r}{i}", 1, rack=r, zone="y" if r == "c" else "z") for i, r in enumerate(racks)]
    asked = request(group("g", pods, preferred=preferred), *nodes, levels=("rack", "zone"))
    answer = plan(asked)
    assert faults(asked, answer) == []
    assert {a.node[0] for a in answer.assignments} == {*expected}


def test_a_lost_member_is_replaced_next_to_those_that_are_bound():
    """Both racks have one free host; the bound members are in rack b."""
    bound = tuple(
        PlanBound(pod=f"ns/b{i}", uid=PodUid(f"b{i}"), node=NodeName(f"b{i}")) for i in range(2)
    )
    nodes = [node("a0", 1, rack="a"), node("a1", 0, rack="a")]
    nodes += [node("b0", 0, rack="b"), node("b1", 0, rack="b"), node("b2", 1, rack="b")]
    answer = placed(request(group("g", 1, minimum=3, bound=bound), *nodes, levels=("rack",)))
    assert [a.node for a in answer.assignments] == ["b2"]


def test_inside_a_preferred_zone_there_are_fewest_racks():
    """The wish is about zones; inside its zone the group is compact by the keys of the cluster."""
    nodes = [node(f"a{i}", n, rack=f"a{i % 2}", zone="A") for i, n in enumerate((2, 1, 2, 1))]
    asked = request(group("g", 4, preferred=("zone",)), *nodes, levels=("host", "rack", "zone"))
    assert {a.node for a in placed(asked).assignments} == {"a0", "a2"}


def test_nothing_is_stated_of_a_key_that_no_node_has():
    """That one such domain is impossible would be true, and hide that the key is misspelt."""
    answer = placed(request(group("g", 2, preferred=("nowhere", "rack")), node("a", 2, rack="r")))
    assert [v.key for w in answer.wishes for v in w.values] == ["rack"]
    assert placed(request(group("g", 2, preferred=("nowhere",)), node("a", 2))).wishes == ()


def test_what_many_leaves_cost_stays_near_the_budget_of_their_wishes():
    """60 leaves that are no two alike, none of which is on one host: their bounds come without search once the budget is used up."""
    nodes = [node(f"n{i:03}", 1, rack=f"r{i // 3:02}") for i in range(300)]
    leaves = [
        group(f"l{i:02}", 3 + i % 2, minimum=1 + i % 3, preferred=("host", "rack"), bound=(bound,))
        for i in range(60)
        for bound in [PlanBound(pod=f"ns/b{i}", uid=PodUid(f"b{i}"), node=NodeName(f"n{i:03}"))]
    ]
    budget = 400
    asked = request(group("t", 0, *leaves), *nodes, budget=budget)
    answer = plan(asked)
    assert isinstance(answer, Plan)
    assert faults(asked, answer) == []
    assert all(v.best <= v.value for w in answer.wishes for v in w.values)
    assert answer.search.nodes <= budget + budget // preferred_topology.BUDGET_PART


@examples(1000, quick=25, suppress_health_check=list(HealthCheck))
@given(wishing_near())
def test_every_claim_about_nearness_holds_against_brute_force(asked):
    """Pairs of pods in different domains are the fewest where this is claimed, and each bound is at most the best."""
    _checked(asked)
    at_once = plan_at_once(asked, NodeTable(asked.nodes), effort=20_000)
    if isinstance(at_once, Plan):
        assert at_once == plan(asked)


@examples(1000, quick=25)
@given(st.integers(0, 2**32), st.sampled_from(["", "", "complete", "budget"]))
def test_every_claim_about_several_wishes_at_once_holds_against_brute_force(seed, limit):
    """With both searches, with the complete one alone after the first placement, and with a small budget."""
    rng = random.Random(seed)
    asked = combined(rng)
    with pytest.MonkeyPatch.context() as patch:
        if limit == "complete":
            patch.setattr(preferred_topology, "solve_quickly", lambda *args, **options: None)
        elif limit == "budget":
            asked = msgspec.structs.replace(asked, budget=rng.randint(1, 600))
        answer = plan(asked)
    if not isinstance(answer, Plan):
        return
    assert faults(asked, answer) == []
    if answer.search.exhausted:
        assert wish_faults(asked, answer) == []


def test_what_extra_members_cost_a_wish_is_not_proved_before_they_are_placed():
    """The extra member takes the rack that holds both of the others; while it waits, that is possible."""
    other = group("h", 2, shape=1, minimum=1, topology=())
    root = group("t", 0, group("g", 2, preferred=("rack",)), other)
    nodes = [node(f"{r}0", gpus, rack=r) for r, gpus in (("a", 2), ("b", 1), ("c", 1), ("d", 2))]
    asked = request(root, *nodes)
    assert _value(placed(asked), "g") == {"rack": (2, 2)}
    later = msgspec.structs.replace(asked, extras_later=True)
    assert _value(placed(later), "g") == {"rack": (2, 1)}


# --- balance and slices


def hosts(*racks: list[int]) -> list[PlanNode]:
    """Return nodes of so many GPUs, rack by rack."""
    return [
        node(f"r{r}h{h}", gpus, rack=f"r{r}") for r, rack in enumerate(racks) for h, gpus in enumerate(rack)
    ]  # fmt: skip


def pods_on(answer: Plan) -> dict[str, int]:
    return {**Counter(str(a.node) for a in answer.assignments)}


@pytest.mark.parametrize(
    ("racks", "pods", "shares", "certificate"),
    [  # the examples of Kueue's balanced placement
        ([[15], [15]], 25, {12, 13}, (0, 0)),
        ([[15, 13, 10]], 23, {11, 12}, (0, 0)),
        ([[20, 10], [15, 15]], 22, {11}, (0, 0)),
        ([[20, 10], [15, 15]], 20, {20}, None),  # one host has them all
        ([[10, 5], [5, 5, 5]], 15, {10, 5}, (2, 2)),  # two hosts come before equal shares
        ([[9, 1], [3, 3, 3]], 10, {9, 1}, (4, 4)),  # one rack comes before, too
    ],
)
def test_shares_are_as_equal_as_can_be(racks, pods, shares, certificate):
    wish = group("g", pods, preferred=("host", "rack"), balanced=True)
    answer = plan(request(wish, *hosts(*racks)))
    assert {*pods_on(answer).values()} == shares
    values = [(v.value, v.best) for w in answer.wishes if w.kind == "balanced" for v in w.values]
    assert values == ([certificate] if certificate else [])


def cut(pods: int, nodes: list[PlanNode], *levels: tuple[int, str], **fields) -> PlanGroup:
    slices = [SliceLevel(key, size) for size, key in levels]
    return with_slices(group("g", pods, **fields), slices, label_of(nodes))


def test_slices_use_few_domains_and_the_tightest_last():
    """As Kueue's best fit; whole slices count."""
    nodes = hosts([6, 5, 4, 3, 2])
    answer = plan(request(cut(12, nodes, (2, "host")), *nodes))
    assert pods_on(answer) == {"r0h0": 6, "r0h2": 4, "r0h4": 2}


@pytest.mark.parametrize(
    ("racks", "levels", "pods", "expected"),
    [
        # three places of the first rack are of no use, and stay
        ([[4, 3], [2, 2], [2, 2]], [(4, "rack")], 8, {1: 4, 2: 4}),
        ([[4, 3], [2, 2], [2, 2]], [(4, "rack"), (2, "host")], 8, {1: 4, 2: 4}),
        # two of its places are on hosts that hold no pair
        ([[3, 3, 2], [2, 2, 2, 2, 1]], [(4, "rack"), (2, "host")], 8, {1: 8}),
        # its other hosts hold no slice
        ([[4, 3, 3, 3], [4, 4, 7]], [(4, "host")], 8, {1: 8}),
        # the smaller last slice has place beside the others
        ([[8], [10]], [(4, "host")], 10, {1: 10}),
        ([[4, 4], [4, 6]], [(4, "host")], 10, {1: 10}),
    ],
)
def test_a_domain_of_any_level_counts_with_whole_slices(racks, levels, pods, expected):
    nodes = hosts(*racks)
    asked = request(cut(pods, nodes, *levels), *nodes, levels=("rack",))
    answer = plan(asked)
    assert faults(asked, answer) == []
    assert Counter(int(a.node[1]) for a in answer.assignments) == expected


def test_slices_of_slices_are_not_tried_in_racks_that_hold_no_more():
    """A search node for each slice and each pair in it: each rack holds one slice, and has place for some more pods."""
    nodes = hosts(*([2, 3, 2, 3, 2] for _ in range(40)))
    answer = plan(request(cut(40 * 8, nodes, (8, "rack"), (2, "host")), *nodes, levels=("rack",)))
    assert isinstance(answer, Plan)
    assert answer.search.nodes == 1 + 40 * (1 + 4)


def test_slices_of_balanced_groups_stay_whole():
    nodes = hosts([15], [15], [15, 15])
    wish = cut(25, nodes, (5, "host"), preferred=("host", "rack"), balanced=True)
    answer = plan(request(wish, *nodes))
    assert {*pods_on(answer).values()} == {10, 15}
    assert {a.group for a in answer.assignments} == {wish.key}


def test_each_slice_is_in_one_domain_of_its_level():
    """Four pods in a rack, each two of them on a host; the last slice has fewer."""
    nodes = hosts([2, 3, 1], [2, 2], [1])
    answer = plan(request(cut(9, nodes, (4, "rack"), (2, "host")), *nodes))
    assert faults(request(cut(9, nodes, (4, "rack"), (2, "host")), *nodes), answer) == []
    assert len(answer.assignments) == 9


def test_slices_beyond_the_minimum_are_placed_whole_or_not():
    nodes = hosts([4, 2], [5])
    answer = plan(request(cut(12, nodes, (4, "host"), minimum=4), *nodes))
    assert pods_on(answer) == {"r0h0": 4, "r1h0": 4}
    assert answer.reasons == (
        "slice 2 of PodGroup ns/g: none of 4 placed, 4 needed together: no more fit; the tree holds without it",
    )


def test_a_lost_pod_is_replaced_in_the_domain_of_its_slice():
    nodes = hosts([4, 4], [4, 4])
    bound = tuple(
        PlanBound(pod=f"ns/b{rank}", uid=PodUid(f"b{rank}"), node=NodeName("r0h0" if rank < 4 else "r1h0"), rank=rank)
        for rank in (0, 1, 3, 4, 5, 6, 7)
    )  # fmt: skip
    lost = PlanMember(pod="ns/new", uid=PodUid("new"), shape=0, rank=2)
    free = [msgspec.structs.replace(n, free={"gpu": 1, "pods": 9}) for n in nodes]
    leaf = msgspec.structs.replace(group("g", minimum=8), members=(lost,), bound=bound)
    slices = with_slices(leaf, [SliceLevel("rack", 4)], label_of(nodes))
    assert pods_on(placed(request(slices, *free))).keys() < {"r0h0", "r0h1"}


def test_a_refusal_of_slices_names_what_would_help():
    nodes = hosts([4, 3, 3])
    refusal = plan(request(cut(8, nodes, (4, "host")), *nodes))
    assert refusal.outcome == "impossible"
    assert refusal.reasons == (
        "PodGroup ns/g needs 2 of its 2 slices; the cluster holds 1 of them (1 missing: one host for each of 2 groups such as "
        "slice 0 of PodGroup ns/g, or gpu)",
    )
    assert refusal.relaxations == (
        "minCount 4 instead of 8 at PodGroup ns/g",
        "1 more empty node like r0h0",
        "drop the slices by host at PodGroup ns/g",
    )
    assert {c.object for c in refusal.conflict} == {"PodGroup/ns/g"}
    assert "at least 8 pods together, in 2 slices" in {c.message for c in refusal.conflict}


def test_bound_pods_of_a_slice_in_two_domains_are_named():
    nodes = hosts([4, 4])
    bound = tuple(
        PlanBound(pod=f"ns/b{n}", uid=PodUid(f"b{n}"), node=NodeName(f"r0h{n}"), rank=n) for n in (0, 1)
    )  # fmt: skip
    new = PlanMember(pod="ns/new", uid=PodUid("new"), shape=0, rank=2)
    leaf = msgspec.structs.replace(group("g", minimum=3), members=(new,), bound=bound)
    refusal = plan(request(with_slices(leaf, [SliceLevel("host", 4)], label_of(nodes)), *nodes))
    assert refusal.reasons[0].startswith(
        'slice 0 of PodGroup ns/g: bound members are in two domains of host: "r0h0" (ns/b0) and "r0h1" (ns/b1)'
    )
    assert refusal.conflict[0].message.startswith(
        "all pods of slice 0 of PodGroup ns/g in one host, but bound members are in two domains"
    )
    assert refusal.relaxations == ("drop the slices by host at PodGroup ns/g",)


def test_groups_that_shall_be_near_share_a_domain():
    """A block that holds both is taken, though each alone would be tighter elsewhere."""
    prefill = group("prefill", 2, near=(PlanNear(group=GroupKey(namespace="ns", name="decode", kind="PodGroup"), key="block"),))  # fmt: skip
    decode = group("decode", 4)
    nodes = [node(f"{b}{i}", 1, block=b) for b, count in (("a", 2), ("b", 4), ("c", 7)) for i in range(count)]  # fmt: skip
    answer = placed(request(group("root", 0, prefill, decode), *nodes))
    assert [(w.kind, w.values, w.partner and w.partner.name) for w in answer.wishes] == [
        ("near", (WishValue(key="block", value=0, best=0),), "decode")
    ]


@pytest.mark.parametrize("together", [False, True])
def test_the_fewest_pairs_apart_are_proved_at_other_depths(together):
    """Where one group is below a group of its own, and where both are: the group above both is not the root then."""
    left = group("left", 2, near=near_to("right", "rack"))
    small, large = left.members
    left = msgspec.structs.replace(left, members=(small, msgspec.structs.replace(large, shape=1)))
    right = group("right", 1, shape=1)
    inner = group("inner", 0, left, right) if together else group("inner", 0, left)
    root = group("root", 0, group("alone", 1) if together else right, inner)
    answer = placed(request(root, node("a0", 4, rack="a"), node("b0", 4, rack="b")))
    assert [wish.values for wish in answer.wishes] == [(WishValue(key="rack", value=1, best=1),)]


def test_the_fewest_pairs_apart_are_proved_where_no_domain_holds_both():
    """Three and three pods in domains of four and two: the pairs apart are the fewest, with their proof."""
    left = group("left", 3, near=(PlanNear(group=GroupKey(namespace="ns", name="right", kind="PodGroup"), key="block"),))  # fmt: skip
    nodes = [node(f"{b}{i}", 1, block=b) for b, count in (("a", 4), ("b", 2)) for i in range(count)]
    answer = placed(request(group("root", 0, left, group("right", 3)), *nodes))
    assert answer.wishes[0].values == (WishValue(key="block", value=4, best=4),)


def test_what_a_complete_search_found_is_gathered_in_few_domains_of_the_cluster():
    """Two pods of five are outside of any one rack: they are in the block of the others, and not in another one with a free node."""
    prefill = group("prefill", 3, near=(PlanNear(group=GroupKey(namespace="ns", name="decode", kind="PodGroup"), key="rack"),))  # fmt: skip
    racks = {"a1": 4, "a2": 4, "b1": 1, "b2": 4, "b3": 4, "c1": 1}
    nodes = [node(f"{r}{i}", 1, rack=r, block=r[0]) for r, count in racks.items() for i in range(count)]  # fmt: skip
    root = group("root", 0, group("decode", 2), prefill)
    answer = plan(
        request(root, *nodes, levels=("block", "rack"))
    )  # too many placements for brute force
    assert answer.wishes[0].values == (WishValue(key="rack", value=2, best=2),)
    assert len({assignment.node[0] for assignment in answer.assignments}) == 1


# --- without the complete search


@examples(500, quick=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 6))
def test_no_division_of_two_groups_has_more_pairs_together(capacity, first, second):
    """The largest domains filled first, and each pod of the first group where it adds most, against every division."""
    if sum(capacity) < first + second:
        return

    def best(at: int, left: int, right: int) -> int:
        if at == len(capacity):
            return -1000 if left or right else 0
        return max(
            x * y + best(at + 1, left - x, right - y)
            for x in range(min(left, capacity[at]) + 1)
            for y in range(min(right, capacity[at] - x) + 1)
        )

    capacities = np.array(capacity)
    order, amounts = filled(np.zeros_like(capacities), capacities, np.array([first + second]))
    assert (amounts <= capacities[order]).all()
    together, of_first = most_pairs(amounts, first)
    assert together == int((of_first * (amounts - of_first)).sum()) == best(0, first, second)


@examples(500, quick=25)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=6),
    st.integers(0, 12),
    st.sampled_from([1, 100]),
)
def test_the_fewest_domains_of_each_region_are_counted(domains, pods, scale):
    """The largest first, region by region; also where the capacities are too different to be counted by size."""
    of, capacity = (np.array(column) for column in zip(*domains, strict=True))
    expected: list[int] = []
    for region in range(3):
        largest = sorted(capacity[of == region].tolist(), reverse=True)
        enough = (n for n in range(len(largest) + 1) if sum(largest[:n]) >= pods)
        expected.append(next(enough, FIT_MAX))
    needed = fewest_needed(of, capacity * scale, pods * scale, 3)
    assert needed.tolist() == expected


@examples(1000, quick=25, suppress_health_check=list(HealthCheck))
@given(st.one_of(wishing(), wishing_near()))
# both pods of g0 on n0 are a larger smallest share than one each on n0 and n3; only the complete search finds it
@example(
    request(
        group(
            "root",
            0,
            group("g0", 1, preferred=("rack",), balanced=True, bound=(PlanBound(pod="ns/b0-0", uid=PodUid("b0-0"), node=NodeName("n0")),)),
            group("g1", 1, preferred=("rack",), balanced=True),
            minimum=1,
        ),
        *(node(f"n{i}", gpus) for i, gpus in enumerate([1, 0, 0, 1])),
        node("n4", 0, rack="R"),
    )
)  # fmt: skip
# one zone is found first, which no rack is in; one rack holds all too
@example(
    request(
        group(
            "root",
            0,
            group("g0", 1),
            group("g1", 1, topology=("zone",), bound=(PlanBound(pod="ns/b1-0", uid=PodUid("b1-0"), node=NodeName("n2")),)),
            preferred=("rack", "zone"),
        ),
        node("n0", 1, zone="A"),
        node("n1", 2, rack="U"),
        node("n2", 1, rack="U", zone="A"),
    )
)  # fmt: skip
def test_every_claim_without_the_complete_search_holds_against_brute_force(asked):
    """Bounds and direct placements alone: what they prove is the best, and no bound is above it."""
    with pytest.MonkeyPatch.context() as patch:
        unknown = CpSatResult("unknown", {}, 0)
        model = preferred_topology.DomainCountModel
        patch.setattr(model, "search", lambda *args, **options: unknown)
        _checked(asked, complete=False)


def without_complete_search(asked: PlanRequest) -> Plan:
    """Return the plan of a request whose wishes are decided without CP-SAT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(preferred_topology, "DomainCountModel")
        return plan(asked)


def near_to(name: str, *keys: str) -> tuple[PlanNear, ...]:
    key = GroupKey(namespace="ns", name=name, kind="PodGroup")
    return tuple(PlanNear(group=key, key=each) for each in keys)


def test_two_large_groups_are_divided_over_racks_in_one_zone_with_proof():
    """Racks of 12, in zone A only two: 9 and 21 pods need three, with as equal differences between the groups as can be."""
    nodes = [
        node(f"{zone}{rack}{host}", 4, rack=f"{zone}{rack}", zone=zone)
        for zone, racks in (("A", 2), ("B", 5), ("C", 3))
        for rack in range(racks)
        for host in range(3)
    ]
    left = group("left", 9, near=near_to("right", "rack", "zone"))
    answer = without_complete_search(request(group("t", 0, left, group("right", 21)), *nodes))
    assert [w.values for w in answer.wishes] == [
        (WishValue(key="rack", value=120, best=120),),
        (WishValue(key="zone", value=0, best=0),),
    ]
    assert {a.node[0] for a in answer.assignments} == {"C"}  # the tightest that has them


def test_the_rack_with_the_fewest_hosts_is_taken_though_another_one_is_tighter():
    nodes = hosts([2] * 4, [4, 4, 1, 1, 1], [3, 3, 3])
    asked = request(group("g", 8, preferred=("host", "rack")), *nodes)
    answer = without_complete_search(asked)
    assert pods_on(answer) == {"r1h0": 4, "r1h1": 4}
    assert _value(answer, "g") == {"host": (2, 2), "rack": (1, 1)}


def test_a_group_that_fills_its_rack_has_no_pod_of_the_other_one_beside_it():
    """That follows from capacity, and from the racks that the other group may have."""
    nodes = hosts([4, 4], [4, 4], [4, 3])
    left = group("left", 7, preferred=("rack",), near=near_to("right", "rack"))
    right = group("right", 6, shape=1, preferred=("rack",))
    answer = without_complete_search(request(group("t", 0, left, right), *nodes))
    assert next(w for w in answer.wishes if w.kind == "near").values == (
        WishValue(key="rack", value=42, best=42),
    )


@pytest.mark.parametrize(("pods", "value", "best"), [(6, 36, 36), (4, 24, 23)])
def test_in_many_racks_two_shapes_have_a_direct_placement_with_its_gap(pods, value, best):
    """Racks of 7 GPUs for 9 pods of one and some of two; there is no complete search over 70 racks.

    Three and two pods in each of three racks are 18 pairs together, as many as if pods could be divided.
    """
    nodes = hosts(*([4, 3] for _ in range(70)))
    left = group("left", 9, near=near_to("right", "rack"))
    asked = request(group("t", 0, left, group("right", pods, shape=1)), *nodes)
    answer = without_complete_search(asked)
    assert faults(asked, answer) == []
    assert answer.wishes[0].values == (WishValue(key="rack", value=value, best=best),)


@pytest.mark.parametrize("pods", [1, 4])
def test_two_groups_that_ask_for_one_resource_alike_need_not_have_the_same_nodes(pods):
    """Pods of both shapes count as one pod of a node; one needs CPU and the other one GPUs, or only one tolerates the taint."""

    def of(name: str, cpu: int, gpus: int, *taints: Taint) -> PlanNode:
        offer = {"cpu": cpu, "gpu": gpus, "pods": 110}
        return msgspec.structs.replace(
            node(name, 0, rack=name), allocatable=offer, free=offer, taints=taints
        )

    left = group("left", pods, near=near_to("right", "rack"))
    root = group("t", 0, left, group("right", pods, shape=1))
    shapes = tuple(PodShape(requests=((name, 1), ("pods", 1))) for name in ("cpu", "gpu"))
    asked = request(root, of("a", 8, 0), of("b", 0, 8), shapes=shapes)
    assert faults(asked, plan(asked)) == []
    tolerant = PodShape(
        requests=shapes[1].requests,
        tolerations=(Toleration(key="x", operator="Exists", value="", effect="NoSchedule"),),
    )
    nodes = of("a", 0, 2 * pods, Taint("x")), of("b", 0, pods)
    asked = request(root, *nodes, shapes=(shapes[1], tolerant))
    assert faults(asked, plan(asked)) == []


@pytest.mark.parametrize("swapped", [False, True])
def test_two_groups_that_no_region_holds_together_are_placed_directly(swapped):
    """The right group is in one host, and the rack with the other one has not enough for the left group beside it."""
    nodes = hosts([5, 3], [4], [3], *([1] for _ in range(67)))
    left = group("left", 5, near=UNSET if swapped else near_to("right", "rack"))
    right = group(
        "right", 4, preferred=("host",), near=near_to("left", "rack") if swapped else UNSET
    )
    asked = request(group("t", 0, left, right), *nodes)
    answer = without_complete_search(asked)
    assert faults(asked, answer) == []
    near = next(w for w in answer.wishes if w.kind == "near")
    assert near.values == (WishValue(key="rack", value=4, best=4),)


def test_of_few_hosts_only_those_count_that_hold_enough():
    """The right group needs both hosts of four; beside the left one, which is in one rack, are only smaller ones: no pair is together."""
    nodes = hosts([3, 3, 1, 1], [4], [4], *([1] for _ in range(67)))
    left = group("left", 6, preferred=("rack",), near=near_to("right", "rack"))
    right = group("right", 8, preferred=("host",))
    answer = without_complete_search(request(group("t", 0, left, right), *nodes))
    near = next(w for w in answer.wishes if w.kind == "near")
    assert near.values == (WishValue(key="rack", value=48, best=48),)


def test_two_groups_are_in_several_zones_where_that_is_needed_to_be_near_by_rack():
    """The two racks of six are in different zones: a pod in another zone than the other group has all of its pods apart."""
    nodes = hosts([3, 3], [3, 3], *([1] for _ in range(68)))
    nodes = [
        msgspec.structs.replace(
            n, labels={**n.labels, "zone": "AB"[int(n.labels["rack"].removeprefix("r")) % 2]}
        )
        for n in nodes
    ]
    left = group("left", 5, near=near_to("right", "rack", "zone"))
    answer = without_complete_search(request(group("t", 0, left, group("right", 7)), *nodes))
    assert [w.values[0] for w in answer.wishes] == [
        WishValue(key="rack", value=18, best=18),
        WishValue(key="zone", value=18, best=5),
    ]


def test_what_has_no_direct_placement_is_searched_for_in_many_racks_too():
    """The left group fills its host, so no host has both; one rack has a host for each."""
    nodes = hosts([4], [2], [4, 4, 3], *([1] for _ in range(67)))
    left = group("left", 4, preferred=("host",), near=near_to("right", "rack"))
    answer = without_complete_search(request(group("t", 0, left, group("right", 2)), *nodes))
    near = next(w for w in answer.wishes if w.kind == "near")
    assert near.values == (WishValue(key="rack", value=0, best=0),)
