"""Rank order against brute force over all assignments of the members of a leaf to the seats of its plan."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import SliceLevel
from extender.core.model.pods import PodShape
from extender.core.planner.explain.plan_builder import with_groups_in_order
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import compile_request
from extender.core.planner.plan_types import (
    Plan,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanNear,
    PlanNode,
    PlanRequest,
    with_slices,
)
from extender.core.planner.planning import plan
from tests.support.planning.plan_checker import faults

LEVELS = ("rack", "block")


def a_node(name: str, rack: str, block: str, slots: int) -> PlanNode:
    capacity = {"slot": slots, "pods": 100}
    labels = {key: value for key, value in (("rack", rack), ("block", block)) if value}
    return PlanNode(name=NodeName(name), labels=labels, allocatable=capacity, free=capacity)


def a_leaf(name, ranks, *, bound=(), sizes=None, prefer=None, **fields) -> PlanGroup:
    """A leaf of members with these ranks, and of bound members as pairs of a rank and a node."""
    return PlanGroup(
        key=GroupKey("ns", name, "PodGroup"),
        members=tuple(
            PlanMember(
                pod=f"ns/{name}-{rank}",
                uid=PodUid(f"{name}-{rank}"),
                shape=(sizes or {}).get(rank, 0),
                rank=rank,
                prefer=(prefer or {}).get(rank),
            )
            for rank in ranks
        ),
        bound=tuple(
            PlanBound(
                pod=f"ns/{name}-{rank}",
                uid=PodUid(f"{name}-{rank}"),
                node=NodeName(node),
                rank=rank,
            )
            for rank, node in bound
        ),
        **{"minimum": len(ranks) + len(bound), **fields},
    )


def a_request(root, nodes, levels=LEVELS) -> PlanRequest:
    return PlanRequest(
        root=root,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        shapes=(
            PodShape(requests=(("pods", 1), ("slot", 1))),
            PodShape(requests=(("pods", 1), ("slot", 2))),
        ),
        levels=levels,
    )


def placed(request) -> Plan:
    result = plan(request)
    assert isinstance(result, Plan)
    assert faults(request, result) == []
    return result


def nodes_by_rank(result, leaf="g") -> list[str]:
    """The nodes of the new members of a leaf, in the order of the ranks."""
    listed = [a for a in result.assignments if a.group.name == leaf]
    return [a.node for a in sorted(listed, key=lambda a: int(a.pod.rpartition("-")[2]))]


def widest_first(request) -> list[str]:
    counts = {key: {node.labels.get(key, "") for node in request.nodes} - {""} for key in LEVELS}
    return sorted(filter(counts.get, LEVELS), key=lambda key: (len(counts[key]), key))


def changes(request, leaf, nodes) -> tuple[int, ...]:
    """Count the neighbours in different domains for each key, the widest first; `nodes` are those of the new members."""
    of = {node.name: node for node in request.nodes}
    order = sorted(
        [(b.rank, of[b.node]) for b in leaf.bound]
        + [(m.rank, of[n]) for m, n in zip(leaf.members, nodes, strict=True)],
        key=lambda pair: pair[0],
    )
    return tuple(
        sum(
            a.name != b.name and (key not in a.labels or a.labels[key] != b.labels.get(key))
            for (_, a), (_, b) in itertools.pairwise(order)
        )
        for key in widest_first(request)
    )


def fewest(request, leaf, nodes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first in order of all assignments to these nodes, and the fewest for each key alone."""
    shapes = [member.shape for member in leaf.members]
    free = sorted(zip(shapes, nodes, strict=True))
    every = {
        changes(request, leaf, [node for _, node in order])
        for order in set(itertools.permutations(free))
        if [shape for shape, _ in order] == shapes
    }
    return min(every), tuple(min(column) for column in zip(*every, strict=True))


def certificate(result, leaf="g") -> dict[str, tuple[int, int]]:
    (wish,) = (w for w in result.wishes if w.kind == "rank" and w.group.name == leaf)
    return {value.key: (value.value, value.best) for value in wish.values}


def some_request(rng: random.Random, *, sizes: bool, bound: bool) -> PlanRequest:
    nodes = [
        a_node(
            f"n{i}", f"r{rack}" if rng.random() < 0.9 else "", f"b{rack // 2}", rng.randint(1, 4)
        )
        for i, rack in enumerate(rng.choices(range(4), k=rng.randint(2, 6)))
    ]
    count = rng.randint(2, min(6, sum(node.free["slot"] for node in nodes)))
    ranks = rng.sample(range(count), count)
    there = [
        (ranks.pop(), rng.choice(nodes).name)
        for _ in range(rng.randint(1, count - 1) if bound else 0)
    ]
    leaf = a_leaf(
        "g", ranks, bound=there, sizes={r: rng.randint(0, 1) for r in ranks if sizes}, minimum=1
    )
    return a_request(leaf, nodes)


@pytest.mark.parametrize("sizes", [False, True], ids=["one kind", "two kinds"])
@pytest.mark.parametrize("bound", [False, True], ids=["new", "replaced"])
def test_the_order_is_the_best_where_it_is_claimed(sizes, bound):
    """What is claimed to be possible is not above what is, and the order is the best."""
    rng = random.Random(f"{sizes} {bound}")
    tried = 0
    for _ in range(150):
        request = some_request(rng, sizes=sizes, bound=bound)
        result = plan(request)
        if not isinstance(result, Plan) or not result.wishes:
            continue
        leaf = request.root
        if result.unplaced:
            kept = tuple(m for m in leaf.members if m.pod not in result.unplaced)
            leaf = msgspec.structs.replace(leaf, members=kept)
        of = {a.pod: a.node for a in result.assignments}
        nodes = [of[member.pod] for member in leaf.members]
        reached = changes(request, leaf, nodes)
        optimum, alone = fewest(request, leaf, nodes)
        for key, value, least in zip(widest_first(request), reached, alone, strict=True):
            shown = certificate(result).get(key)
            assert shown is None or (shown[0] == value and shown[1] <= least)
            assert shown is not None or value == 0
        assert reached == optimum
        tried += 1
    assert tried > 120


def test_neighbours_share_nodes_racks_and_blocks():
    """Eight members whose order of age is not their order by rank: three changes of node, and one each of rack and block."""
    nodes = [a_node(f"n{i}", f"r{i % 2}", f"b{i % 2}", 2) for i in range(4)]
    result = placed(a_request(a_leaf("g", [3, 7, 1, 0, 5, 2, 6, 4]), nodes))
    assert nodes_by_rank(result) == ["n0", "n0", "n2", "n2", "n1", "n1", "n3", "n3"]
    assert certificate(result) == {"rack": (1, 1), "block": (1, 1)}


def test_levels_that_are_not_nested_are_searched():
    """Rack r2 has a node in each of two blocks: from the other rack into it, then into the other block."""
    places = {"n0": ("r2", "b0"), "n4": ("r3", "b0"), "n5": ("r2", "b1")}
    nodes = [a_node(name, *place, 1) for name, place in places.items()]
    result = placed(a_request(a_leaf("g", (0, 1, 2)), nodes))
    assert nodes_by_rank(result)[1] == "n0"
    assert certificate(result) == {"block": (1, 1), "rack": (1, 1)}


def test_a_replacement_goes_to_the_seat_beside_its_neighbours():
    """Two nodes of two racks are lost: each replacement is in the rack of the members before and after it."""
    there = [(0, "a0"), (2, "a0"), (3, "b0"), (5, "b0")]
    nodes = [
        a_node("a0", "ra", "x", 0),
        a_node("b0", "rb", "x", 0),
        a_node("a1", "ra", "x", 1),
        a_node("b1", "rb", "x", 1),
    ]
    result = placed(a_request(a_leaf("g", [4, 1], bound=there), nodes))
    assert nodes_by_rank(result) == ["a1", "b1"]
    assert certificate(result) == {"rack": (1, 1)}


def test_a_replacement_keeps_the_node_of_an_earlier_plan():
    """It keeps the node even where another order were better, and what is not reached is shown."""
    there = [(0, "a0"), (2, "a0"), (3, "b0"), (5, "b0")]
    nodes = [
        a_node("a0", "ra", "x", 0),
        a_node("b0", "rb", "x", 0),
        a_node("a1", "ra", "x", 1),
        a_node("b1", "rb", "x", 1),
    ]
    leaf = a_leaf("g", [1, 4], bound=there, prefer={1: NodeName("b1"), 4: NodeName("a1")})
    result = placed(a_request(leaf, nodes))
    assert nodes_by_rank(result) == ["b1", "a1"]
    assert certificate(result) == {"rack": (5, 1)}


def test_members_that_start_before_a_bound_one_fill_its_rack_from_its_side():
    """Ranks 0 to 3 are new and rank 4 runs in rack b: ranks 2 and 3 have the seats there."""
    nodes = [
        a_node("a0", "ra", "x", 2),
        a_node("b0", "rb", "x", 0),
        a_node("b1", "rb", "x", 2),
    ]
    result = placed(a_request(a_leaf("g", [0, 1, 2, 3], bound=[(4, "b0")]), nodes))
    assert nodes_by_rank(result) == ["a0", "a0", "b1", "b1"]
    assert certificate(result) == {"rack": (1, 1)}


def test_jobs_of_a_tree_follow_each_other_through_racks_and_blocks():
    """Twelve identical jobs, each in one rack, by the numbers in their names: job 10 comes after job 9, not after job 1."""
    nodes = [a_node(f"n{i:02}", f"r{i:02}", f"b{i % 3}", 2) for i in range(12)]
    jobs = [a_leaf(f"job-{i}", [0, 1], topology=("rack",)) for i in (0, 1, 10, 11, *range(2, 10))]
    root = PlanGroup(key=GroupKey("ns", "g", "CompositePodGroup"), minimum=12, groups=tuple(jobs))
    result = placed(a_request(root, nodes))
    of = {node.name: node for node in nodes}
    blocks = [of[nodes_by_rank(result, f"job-{i}")[0]].labels["block"] for i in range(12)]
    assert blocks == sorted(blocks)
    assert result.wishes == (), "each has to be in one rack"


def replicas(count, **fields) -> PlanGroup:
    """A tree of identical replicas of a leader and two workers, each replica in one rack."""
    groups = tuple(
        PlanGroup(
            key=GroupKey("ns", f"replica-{i}", "CompositePodGroup"),
            minimum=2,
            groups=(a_leaf(f"replica-{i}-leader", [0]), a_leaf(f"replica-{i}-workers", [1, 2])),
            topology=("rack",),
            **fields,
        )
        for i in range(count)
    )
    key = GroupKey("ns", "g", "CompositePodGroup")
    return PlanGroup(key=key, minimum=count, groups=groups)


def test_replicas_follow_each_other_through_blocks():
    """Groups of groups exchange all of their seats; every replica stays in one rack."""
    rng = random.Random(4)
    for _ in range(20):
        blocks = [f"b{rng.randrange(3)}" for _ in range(5)]
        nodes = [a_node(f"n{i}{j}", f"r{i}", blocks[i], 2) for i in range(5) for j in range(2)]
        result = placed(a_request(replicas(4), nodes))
        of = {node.name: node.labels for node in nodes}
        racks = [
            {of[n]["rack"] for part in ("leader", "workers") for n in nodes_by_rank(result, f"replica-{i}-{part}")}
            for i in range(4)
        ]  # fmt: skip
        assert all(len(each) == 1 for each in racks)
        order = [blocks[int(rack[1:])] for each in racks for rack in each]
        fewest = min(
            sum(a != b for a, b in itertools.pairwise(other))
            for other in itertools.permutations(order)
        )
        assert sum(a != b for a, b in itertools.pairwise(order)) == fewest


def test_replicas_that_are_near_a_group_keep_their_seats():
    """What is stated of nearness is of the seats that a group has."""
    nodes = [a_node(f"n{i}", f"r{i}", f"b{i % 2}", 3) for i in range(4)]
    root = replicas(3)
    for near in ((), (PlanNear(group=root.groups[1].key, key="rack"),)):
        first = msgspec.structs.replace(root.groups[0], near=near or msgspec.UNSET)
        tree = msgspec.structs.replace(root, groups=(first, *root.groups[1:]))
        problem = compile_request(a_request(tree, nodes), NodeTable(nodes))
        leader, worker = (next(iter(problem.groups[i].members)) for i in (2, 3))
        solution = {}
        for replica, node in enumerate((3, 0, 2)):
            solution[2 + 3 * replica] = {leader: {node: 1}}
            solution[3 + 3 * replica] = {worker: {node: 2}}
        moved = with_groups_in_order(a_request(tree, nodes), problem, solution)
        where = [next(iter(moved[2 + 3 * replica][leader])) for replica in range(3)]
        assert where == ([3, 0, 2] if near else [0, 2, 3])


def test_jobs_that_prefer_one_rack_keep_what_each_has_reached():
    """One of two jobs is in one rack, the other one in two: they do not exchange their seats."""
    nodes = [a_node("n0", "r0", "", 2), a_node("n1", "r1", "", 4), a_node("n2", "r2", "", 2)]
    jobs = [a_leaf(f"job-{i}", range(4), preferred=("rack",)) for i in range(2)]
    root = PlanGroup(key=GroupKey("ns", "g", "CompositePodGroup"), minimum=2, groups=tuple(jobs))
    request = a_request(root, nodes)
    problem = compile_request(request, NodeTable(request.nodes))
    kind = next(iter(problem.groups[1].members))
    solution = {1: {kind: {1: 4}}, 2: {kind: {0: 2, 2: 2}}}
    assert with_groups_in_order(request, problem, solution) == solution
    alike = {1: {kind: {1: 4}}, 2: {kind: {0: 4}}}
    assert with_groups_in_order(request, problem, alike) == {1: alike[2], 2: alike[1]}


def test_a_job_on_a_node_without_the_label_keeps_what_is_stated_of_it():
    """It is in no rack, the other job is in one: their certificates are not exchanged."""
    nodes = [a_node("n1", "", "b0", 1), a_node("n2", "r1", "b1", 1), a_node("n3", "r2", "b1", 0)]
    jobs = [a_leaf(f"job-{i}", [0], preferred=("rack",)) for i in range(2)]
    root = PlanGroup(key=GroupKey("ns", "g", "CompositePodGroup"), minimum=2, groups=tuple(jobs))
    request = a_request(root, nodes)
    result = placed(request)
    values = {wish.group.name: wish.values[0].value for wish in result.wishes}
    assert {values[a.group.name]: a.node for a in result.assignments} == {1: "n2", 2: "n1"}


def test_members_without_ranks_have_the_order_of_their_age():
    """Nothing is changed, nor claimed, for a leaf of which one member has no rank."""
    nodes = [a_node(f"n{i}", f"r{i % 2}", "", 2) for i in range(2)]
    leaf = a_leaf("g", [3, 2, 1, 0])
    first, *rest = leaf.members
    plain = msgspec.structs.replace(first, rank=msgspec.UNSET)
    result = placed(a_request(msgspec.structs.replace(leaf, members=(plain, *rest)), nodes))
    assert nodes_by_rank(result) == ["n1", "n1", "n0", "n0"]
    assert result.wishes == ()


@pytest.mark.parametrize("racks", [2, 3, 4])
def test_whole_slices_follow_each_other_to_the_smaller_last_one(racks):
    """Slices of three and a last one of one pod: that in its rack comes before it, with as few changes of rack as possible."""
    nodes = [a_node(f"n{i}", f"r{i}", "", 4) for i in range(racks)]
    of = {node.name: node.labels for node in nodes}
    leaf = a_leaf("g", range(3 * racks + 1))
    gang = with_slices(leaf, [SliceLevel("rack", 3)], lambda name, key: of[name].get(key))
    along = [of[node]["rack"] for node in nodes_by_rank(placed(a_request(gang, nodes)))]
    slices = [along[i : i + 3] for i in range(0, 3 * racks, 3)]

    def changed(order) -> int:
        ranked = [*itertools.chain.from_iterable(order), along[-1]]
        return sum(a != b for a, b in itertools.pairwise(ranked))

    assert changed(slices) == min(map(changed, itertools.permutations(slices)))
