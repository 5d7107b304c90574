"""More nodes as a way out: for pods that need a node each, and for several leaves together; taken, the tree fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import (
    HostPort,
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
)
from extender.core.planner.explain.additional_nodes import HOSTNAME, _copy, with_added
from extender.core.planner.plan_types import (
    Plan,
    PlanExclusive,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanRequest,
    PlanRule,
    Refusal,
)
from extender.core.planner.planning import plan

GPU = PodShape(requests=(("gpu", 4), ("pods", 1)))
PORT = PodShape(requests=(("gpu", 1), ("pods", 1)), host_ports=(HostPort("TCP", 80),))


def node(name: str, rack: str, free: int) -> PlanNode:
    return PlanNode(
        name=NodeName(name),
        labels={"rack": rack, HOSTNAME: name},
        allocatable={"gpu": 8, "pods": 110},
        free={"gpu": free, "pods": 110},
    )


def leaf(name: str, pods: int, shape: int) -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", name, "PodGroup"),
        minimum=pods,
        topology=("rack",),
        members=tuple(
            PlanMember(pod=f"ns/{name}-{n}", uid=PodUid(f"{name}-{n}"), shape=shape)
            for n in range(pods)
        ),
    )


def root(*leaves: PlanGroup) -> PlanGroup:
    return PlanGroup(
        key=GroupKey("ns", "root", "CompositePodGroup"), minimum=len(leaves), groups=leaves
    )


@pytest.mark.parametrize(
    ("tree", "text", "added"),
    [
        (root(leaf("web", 3, 1)), "2 more empty nodes like n0 in r0", {"n0": 2}),
        (root(leaf("a", 2, 0), leaf("b", 4, 0)), "3 more empty nodes like n0 in r0", {"n0": 3}),
        (
            root(leaf("a", 5, 0), leaf("web", 3, 1)),
            "4 more empty nodes like n0 in r0",
            {"n0": 4},
        ),
    ],
    ids=["a host port each", "one rack for both", "different kinds"],
)
def test_the_nodes_that_are_named_suffice(tree, text, added) -> None:
    nodes = (node("n0", "r0", 4), node("n1", "r1", 0))
    request = PlanRequest(root=tree, nodes=nodes, shapes=(GPU, PORT))
    refused = plan(request)
    assert isinstance(refused, Refusal)
    found = [one for one in refused.relaxations if "more empty" in one]
    assert found
    named = {
        part.split(" like ")[1].split()[0]: int(part.split()[0]) for part in found[0].split(" and ")
    }
    by_name = {one.name: one for one in nodes}
    new = tuple(
        _copy(by_name[NodeName(name)], n, frozenset({HOSTNAME}))
        for name, count in named.items()
        for n in range(count)
    )
    assert isinstance(plan(msgspec.structs.replace(request, nodes=nodes + new)), Plan)
    assert (found[0], named) == (text, added)


def test_a_new_node_is_a_new_domain_where_each_node_is_one():
    """Other trees have both nodes alone; capacity is free there."""
    taken = PlanExclusive(key=HOSTNAME, taken=("n0", "n1"))
    root = msgspec.structs.replace(leaf("g", 1, 0), topology=(), exclusive=taken)
    fleet = (node("n0", "r0", 8), node("n1", "r1", 8))
    refusal = plan(PlanRequest(root=root, nodes=fleet, shapes=(GPU,)))
    assert isinstance(refusal, Refusal)
    assert "1 more empty node like n0" in refusal.relaxations


def fewest_more_nodes(request: PlanRequest) -> int | None:
    """Return with how many nodes like one that there is, in its rack, each in a rack of its own or all in a new one, a tree fits: by trying all."""
    bare = msgspec.structs.replace(request, explain=False)
    places: tuple[dict[str, str], ...] = (
        {},
        {"rack": "own"},
        {"rack": "new"},
        {"rack": "new", "zone": "new"},
    )
    for count, like in itertools.product((1, 2, 3), request.nodes):
        for place in places:
            new = tuple(at_place(like, number, place) for number in range(count))
            if isinstance(plan(msgspec.structs.replace(bare, nodes=request.nodes + new)), Plan):
                return count
    return None


def at_place(like: PlanNode, number: int, place: dict[str, str]) -> PlanNode:
    """Return an empty node like one that there is, in its domains but for some: one of its own, or the one new domain."""
    name = f"{like.name}+{number}"
    labels = {key: name if place[key] == "own" else "new" for key in place if key in like.labels}
    return msgspec.structs.replace(
        like,
        name=NodeName(name),
        labels={**like.labels, HOSTNAME: name, **labels},
        free=like.allocatable,
    )


def a_rule(kind: str, racks: Sequence[str], *, about: bool = False) -> PlanRule:
    """Return a rule over racks about one pod in each of some."""
    there = tuple((rack, 1) for rack in sorted(racks))
    return PlanRule(kind=kind, keys=("rack",), shapes=(0,), about=(0,) if about else (), there=(there,))  # fmt: skip


def a_gang(pods: int, *, topology: bool, exclusive: Sequence[str] = ()) -> PlanGroup:
    gang = msgspec.structs.replace(leaf("g", pods, 0), topology=("rack",) if topology else ())
    if not exclusive:
        return gang
    return msgspec.structs.replace(gang, exclusive=PlanExclusive(key="rack", taken=tuple(exclusive)))  # fmt: skip


@pytest.mark.parametrize("topology", [False, True], ids=["anywhere", "in one rack"])
@pytest.mark.parametrize(
    ("pods", "racks", "free", "rules", "exclusive"),
    [
        (1, 2, {"r1": 8}, [a_rule("near", ["r0"])], ()),
        (2, 2, {"r1": 4}, [a_rule("near", ["r0"], about=True)], ()),
        (2, 12, {"r3": 8}, [a_rule("near", ["r11"])], ()),
        (1, 2, {}, [a_rule("apart", ["r0", "r1"])], ()),
        (2, 3, {"r2": 4}, [a_rule("apart", ["r0", "r1"])], ()),
        (1, 2, {"r0": 8}, [], ("r0", "r1")),
    ],
    ids=[
        "an affinity to a full rack", "an affinity, among its own as well", "one of twelve racks", "all racks closed",
        "a third rack that is too small", "exclusive",
    ],
)  # fmt: skip
def test_more_nodes_are_named_where_rules_count_the_same_domains(
    topology, pods, racks, free, rules, exclusive
):
    """As few as help, in a rack that there is or in a new one, compared with all of them."""
    fleet = tuple(node(f"n{i}", f"r{i}", free.get(f"r{i}", 0)) for i in range(racks))
    request = PlanRequest(
        root=a_gang(pods, topology=topology, exclusive=exclusive), nodes=fleet, shapes=(GPU,), rules=tuple(rules)
    )  # fmt: skip
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    (change,) = (change for change in refusal.changes if change.kind == "nodes")
    assert sum(added.count for added in change.added) == fewest_more_nodes(request)
    extended = msgspec.structs.replace(request, nodes=with_added(fleet, change.added))
    assert isinstance(plan(extended), Plan)


SLOT = "example.com/slot"


@pytest.mark.parametrize("affinity", [False, True], ids=["nodeSelector", "required affinity"])
def test_more_nodes_are_named_where_each_node_has_another_value_of_a_selected_key(affinity):
    """A new node like n1 has its label, so the pods may run there."""
    term = SelectorTerm(labels=(NodeSelectorRequirement(SLOT, "In", ("s1", "s7")),))
    asking = {"selectors": (NodeSelector(terms=(term,)),)} if affinity else {"node_selector": ((SLOT, "s1"),)}  # fmt: skip
    shape = msgspec.structs.replace(GPU, **asking)
    fleet = tuple(
        msgspec.structs.replace(each, labels={**each.labels, SLOT: f"s{number}"})
        for number, each in enumerate((node("n0", "r0", 8), node("n1", "r0", 4)))
    )
    request = PlanRequest(root=a_gang(3, topology=False), nodes=fleet, shapes=(shape,))
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    (change,) = (change for change in refusal.changes if change.kind == "nodes")
    assert change.text == f"1 more empty node like n1, with {SLOT}=s1"
    assert sum(added.count for added in change.added) == fewest_more_nodes(request)
    extended = msgspec.structs.replace(request, nodes=with_added(fleet, change.added))
    assert isinstance(plan(extended), Plan)


def in_zone(zone: str, *nodes: PlanNode) -> tuple[PlanNode, ...]:
    return tuple(
        msgspec.structs.replace(each, labels={**each.labels, "zone": zone}) for each in nodes
    )


@pytest.mark.parametrize(
    ("pods", "topology", "asked", "text"),
    [
        (5, ("rack",), {"exclusive": "rack"}, "3 more empty nodes like n0 in one new rack"),
        (4, ("rack",), {"closed": "rack"}, "2 more empty nodes like n0 in one new rack"),
        (3, ("rack",), {"rules": "apart"}, "2 more empty nodes like n0 in one new rack"),
        (3, ("zone", "rack"), {"closed": "rack"}, "2 more empty nodes like n0 in one new rack of z0"),
        (3, ("zone", "rack"), {"closed": "zone"}, "2 more empty nodes like n0 in one new rack of one new zone"),
        (3, ("rack",), {"closed": "zone"}, "2 more empty nodes like n0 in one new rack of one new zone"),
        (2, ("rack",), {"closed": "rack"}, "1 more empty node like n0, with its own rack"),
        (3, (), {"closed": "rack"}, "2 more empty nodes like n0, each with its own rack"),
    ],
    ids=["exclusive", "other trees", "anti-affinity", "inside a zone", "a new zone", "a rack of a new zone", "one node", "anywhere"],
)  # fmt: skip
def test_several_new_nodes_in_one_new_domain(pods, topology, asked, text):
    """Every domain of a required level is closed: a new one is named with as few nodes as it takes, compared with all."""
    fleet = (
        *in_zone("z0", node("n0", "r0", 8), node("n1", "r1", 8)),
        *in_zone("z1", node("n2", "r2", 8)),
    )
    taken = {"rack": ("r0", "r1", "r2"), "zone": ("z0", "z1")}
    root = msgspec.structs.replace(a_gang(pods, topology=True), topology=topology)
    fields: dict[str, object] = {}
    if key := asked.get("exclusive"):
        root = msgspec.structs.replace(root, exclusive=PlanExclusive(key=key, taken=taken[key]))
    if key := asked.get("closed"):
        fields["closed"] = (PlanExclusive(key=key, taken=taken[key]),)
    if kind := asked.get("rules"):
        fields["rules"] = (a_rule(kind, taken["rack"]),)
    request = PlanRequest(root=root, nodes=fleet, shapes=(GPU,), **fields)
    refusal = plan(request)
    assert isinstance(refusal, Refusal)
    (change,) = (change for change in refusal.changes if change.kind == "nodes")
    assert change.text == text
    assert sum(added.count for added in change.added) == fewest_more_nodes(request)
    extended = msgspec.structs.replace(request, nodes=with_added(fleet, change.added))
    assert isinstance(plan(extended), Plan)
