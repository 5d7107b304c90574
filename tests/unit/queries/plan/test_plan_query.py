"""`gang-extender plan` on pods outside of all groups; trees are held against the vectors and the command's own tests."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cli.output.plan_text import slice_texts
from extender.core.model.ids import NodeName
from extender.queries.plan.plan_query import PlanInput, answer_plan_query, plan_warnings
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    Object,
    a_group,
    a_node,
    a_pod,
    a_world,
)


@pytest.mark.parametrize("where", ["pinned", "nominated"])
def test_a_lone_pod_is_not_in_its_own_way(where):
    """Capacity that is kept for a pod that comes to its node is kept from others, not from itself."""
    pods = (a_pod(name, requests={GPU: 4}) for name in ("first", "second"))
    cluster = FakeCluster(a_node("n0", gpu=4), *pods)
    cluster.change_pod("first", **{where: NodeName("n0")})
    found = answer_plan_query(cluster.seen, PlanInput(all_pending=True))
    assert {root.gang: root.verdict for root in found.gangs} == {
        "default/first": "placed",
        "default/second": "impossible",
    }


@pytest.mark.parametrize("priority", [0, 5])
def test_minima_of_one_priority_come_before_extra_members(priority):
    """The first gang gets what the second one leaves of four slots; one of higher priority does not leave it its minimum."""
    first = [a_group("a", gang=1, priority=priority), *_pods("a", 4, priority=priority)]
    world = a_world(
        a_node("n0", gpu=4), *first, a_group("b", gang=2, priority=0), *_pods("b", 3, priority=0)
    )
    answer = answer_plan_query(world.view, PlanInput(all_pending=True))
    placed = {gang.gang: len(gang.assignments) for gang in answer.gangs}
    unplaced = {gang.gang: len(gang.unplaced) for gang in answer.gangs}
    if priority:
        assert placed == {"default/a": 4, "default/b": 0}
        return
    assert [gang.verdict for gang in answer.gangs] == ["placed", "placed"]
    assert placed == {"default/a": 2, "default/b": 2}
    assert unplaced == {"default/a": 2, "default/b": 1}


def test_warnings_are_in_the_order_of_the_answers():
    """Whatever the order of the trees in memory, which is another one in each process."""
    names = [f"g{number}" for number in range(8)]
    groups = [a_group(name, whole=True) for name in names]
    pods = [pod for name in names for pod in _pods(name, 1)]
    world, question = a_world(a_node("n0", gpu=8), *groups, *pods), PlanInput(all_pending=True)
    warned = [text.split()[0] for text in plan_warnings(world.view, question) if "(E11)" in text]
    assert warned == [f"PodGroup/default/{name}" for name in names]


def test_extra_members_are_near_the_minimum():
    """The minimum of the first gang is placed again with its extra members, where the minimum of the second is not in the way."""
    racks = [a_node(f"{rack}{n}", {RACK: rack}, gpu=2) for rack in ("r", "s") for n in range(2)]
    gangs = [
        thing
        for name in ("a", "b")
        for thing in (a_group(name, gang=1, topo=RACK), *_pods(name, 4))
    ]
    answer = answer_plan_query(a_world(*racks, *gangs).view, PlanInput(all_pending=True))
    assert [
        (len(g.assignments), len({a.node[0] for a in g.assignments})) for g in answer.gangs
    ] == [(4, 1), (4, 1)]


def _pods(group: str, count: int, **spec: Any) -> list[Object]:
    return [a_pod(f"{group}-{n}", group, requests={GPU: 1}, **spec) for n in range(count)]


def test_a_tree_that_is_too_deep_is_named_with_all_its_levels():
    """All groups are there, so the answer need not stop at the first level that is too deep."""
    chain = [a_group("c0", gang=1, composite=True)]
    chain += [a_group(f"c{n}", gang=1, composite=True, parent=f"c{n - 1}") for n in range(1, 9)]
    world = a_world(*chain, a_group("deep", gang=1, parent="c8"), a_pod("p", "deep"))
    answer = answer_plan_query(world.view, PlanInput(groups=frozenset(world.view.groups)))
    (text,) = (text for gang in answer.gangs for text in gang.reasons if "the tree has" in text)
    assert text == "the tree has 10 levels at PodGroup/default/deep, at most 4 are allowed"


@pytest.mark.parametrize(("pods", "stated"), [(2, False), (4, True)])
def test_a_bound_of_a_wish_that_rests_on_evictions_has_them(pods, stated):
    """Another set of the same cost might give a better value: only the evictions that were chosen are known."""
    racks = [a_node(f"{rack}0", {RACK: rack}, gpu=2) for rack in ("r", "s", "t")]
    low = [a_pod(f"low-{n['metadata']['name']}", node=n["metadata"]["name"], requests={GPU: 2}) for n in racks]  # fmt: skip
    gang = a_group("g", gang=pods, priority=5, schedulingConstraints={"preferred": [RACK]})
    world = a_world(*racks, *low, gang, *_pods("g", pods, priority=5))
    (found,) = answer_plan_query(world.view, PlanInput(all_pending=True)).gangs
    assert (found.verdict, len(found.victims)) == ("placed", pods // 2)
    assert any("the best with these evictions" in text for text in found.reasons) is stated


@pytest.mark.parametrize(
    ("choice", "racks", "verdict", "text"),
    [
        ("Wait", 2, "impossible", ""),
        ("Widen", 2, "placed", "lostMembers Widen: no node of the domain takes the lost members (proved)"),
        ("Widen", 1, "impossible", "lostMembers Widen was tried in vain: the lost members have no place outside"),
    ],
)  # fmt: skip
def test_lost_members_of_a_running_gang_are_planned_as_their_group_asks(
    choice, racks, verdict, text
):
    """Two of four nodes of a rack are lost; the rack has none left."""
    constraints = {"topology": [{"key": RACK}], "lostMembers": choice}
    gang = a_group("g", gang=4, schedulingConstraints=constraints)
    bound = [a_pod(f"old-{n}", "g", node=f"r0-{n}", requests={GPU: 1}) for n in range(2)]
    nodes = [a_node(f"r{rack}-{n}", {RACK: f"r{rack}"}, gpu=1) for rack in range(racks) for n in range(2)]  # fmt: skip
    world = a_world(*nodes, gang, *bound, *_pods("g", 2))
    (answer,) = answer_plan_query(world.view, PlanInput(all_pending=True)).gangs
    assert answer.verdict == verdict
    assert [reason.startswith(text) for reason in answer.reasons if "lostMembers" in reason] == [True] * bool(text)  # fmt: skip
    assert {line.node[:2] for line in answer.assignments} == (
        {"r1"} if verdict == "placed" else set()
    )
    wishes = {(wish.key, wish.value, wish.best) for wish in answer.wishes}
    assert wishes == ({(RACK, 2, 2)} if verdict == "placed" else set())


@pytest.mark.parametrize(
    ("pods", "exclusive", "text"),
    [
        (3, {}, f'the best, {RACK}="", holds 2 (1 missing'),
        (3, {}, f'like r0 in {RACK}=""'),
        (2, {"exclusive": {"key": RACK}}, f'1 of 1 domain of {RACK} is taken ({RACK}=""); free: none'),
    ],
)  # fmt: skip
def test_a_domain_whose_value_is_empty_has_a_name_in_sentences(pods, exclusive, text):
    """A label may have an empty value, which is a domain as any other."""
    nodes = [a_node(f"r{n}", {RACK: ""}, gpu=1) for n in range(2)]
    other = a_group("other", gang=1, schedulingConstraints={"exclusive": {"key": RACK}})
    running = [other, a_pod("o", "other", node="r1")] if exclusive else []
    constraints = {"topology": [{"key": RACK}], **exclusive}
    gang = a_group("g", gang=pods, schedulingConstraints=constraints)
    world = a_world(*nodes, *running, gang, *_pods("g", pods))
    *_, answer = answer_plan_query(world.view, PlanInput(all_pending=True)).gangs
    assert text in "\n".join((*answer.reasons, *answer.help))


def test_slices_in_a_domain_whose_value_is_empty_have_its_name():
    """The name of the key alone would be read as no domain."""
    assert slice_texts({"g/slice-0": {RACK: ""}, "g/slice-1": {RACK: "r1"}}) == [
        f'g: slice 0 in {RACK}="", 1 in {RACK}=r1'
    ]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (4, "lostMembers GiveUp: no node of the domain takes the lost members (proved), so all pods of the gang are evicted, and it is placed anew: it fits as a whole without them"),
        (3, "lostMembers GiveUp was tried in vain: the whole gang has no other place without its own pods either, so it is not evicted (proved)"),
    ],
)  # fmt: skip
def test_a_gang_that_gives_its_domain_up_is_named(width, text):
    """Its lost members have no node: their pods are not placed, others are made when all of the gang is evicted."""
    constraints = {"topology": [{"key": RACK}], "lostMembers": "GiveUp"}
    gang = a_group("g", gang=4, schedulingConstraints=constraints)
    bound = [a_pod(f"old-{n}", "g", node=f"r0-{n}", requests={GPU: 1}) for n in range(2)]
    nodes = [a_node(f"r{rack}-{n}", {RACK: f"r{rack}"}, gpu=1) for rack in range(2) for n in range(width if rack else 2)]  # fmt: skip
    world = a_world(*nodes, gang, *bound, *_pods("g", 2))
    (answer,) = answer_plan_query(world.view, PlanInput(all_pending=True)).gangs
    assert (answer.verdict, answer.assignments) == ("impossible", ())
    assert [reason for reason in answer.reasons if "lostMembers" in reason] == [text]
    (kept,) = answer_plan_query(world.view, PlanInput(all_pending=True, preemption=False)).gangs
    assert not any("lostMembers" in reason for reason in kept.reasons)
