"""Soft rules of pods: the node with the highest score is taken, by a reading of kube-scheduler's scores that shares nothing."""

from __future__ import annotations

import math
import random
from collections import Counter

import msgspec
import pytest
from msgspec import UNSET

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    NodePreference,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    SoftRules,
    Toleration,
)
from extender.core.planner.codec.request_codec import decode, encode
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import (
    Plan,
    PlanGroup,
    PlanMember,
    PlanNode,
    PlanPreference,
    PlanRequest,
)
from extender.core.planner.planning import plan, plan_at_once
from tests.support.planning.plan_checker import faults

LABELS = ("disk", "zone", "rack")


def a_node(name: str, slots: int = 4, taints=(), **labels: str) -> PlanNode:
    capacity = {"slot": slots, "pods": 100}
    return PlanNode(
        name=NodeName(name),
        labels=labels,
        taints=tuple(taints),
        allocatable=capacity,
        free=capacity,
    )


def avoided(key: str) -> Taint:
    return Taint(key=key, effect="PreferNoSchedule")


def prefers(weight: int, key: str, *values: str) -> NodePreference:
    return NodePreference(weight, SelectorTerm((NodeSelectorRequirement(key, "In", values),)))


def a_request(nodes, *preferences, pods=1, topology=(), soft=None, **shape) -> PlanRequest:
    members = (
        PlanMember(pod=f"ns/g-{i:02}", uid=PodUid(f"g-{i:02}"), shape=0) for i in range(pods)
    )
    return PlanRequest(
        root=PlanGroup(
            key=GroupKey("ns", "g", "PodGroup"),
            minimum=pods,
            members=tuple(members),
            topology=topology,
        ),
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        shapes=(
            PodShape(
                requests=(("pods", 1), ("slot", 1)),
                soft=SoftRules(tuple(soft)) if soft else UNSET,
                **shape,
            ),
        ),
        preferences=preferences or UNSET,
    )


def placed(request: PlanRequest) -> Plan:
    result = plan(request)
    assert isinstance(result, Plan)
    assert faults(request, result) == []
    return result


def nodes_of(result: Plan) -> list[str]:
    return [assignment.node for assignment in result.assignments]


def expected_scores(request: PlanRequest) -> dict[str, int]:
    """The sum of the four plugins for each node, one node after the other, in floating point as kube-scheduler has it."""
    shape = request.shapes[0]
    nodes = [node for node in request.nodes if node.free["slot"] > 0]
    total: Counter[str] = Counter({node.name: 0 for node in nodes})

    def add(weight: int, scores: dict[str, int]) -> None:
        for name, score in scores.items():
            total[name] += weight * score

    keys = {toleration.key for toleration in shape.tolerations}
    bad = {n.name: sum(taint.key not in keys for taint in n.taints) for n in nodes}
    worst = max(bad.values())
    add(3, {name: 100 - 100 * count // worst if worst else 100 for name, count in bad.items()})
    liked = {
        node.name: sum(
            wish.weight
            for wish in (shape.soft.nodes if shape.soft else ())
            if node.labels.get(wish.term.labels[0].key) in wish.term.labels[0].values
        )
        for node in nodes
    }
    most = max(liked.values())
    add(2, {name: 100 * sum_ // most if most else 0 for name, sum_ in liked.items()})
    near = {
        node.name: sum(
            (-1 if wish.kind == "apart" else 1)
            * wish.weight
            * dict(wish.there).get(node.labels.get(wish.key, ""), 0)
            for wish in request.preferences or ()
            if wish.kind != "spread"
        )
        for node in nodes
    }
    low, high = min(near.values()), max(near.values())
    add(
        2,
        {
            name: int(100 * (v - low) / (high - low)) if high > low else 0
            for name, v in near.items()
        },
    )
    spreads = [wish for wish in request.preferences or () if wish.kind == "spread"]
    able = [node for node in nodes if all(wish.key in node.labels for wish in spreads)]
    if spreads and able:
        raw = {}
        for node in able:
            score = 0.0
            for wish in spreads:
                value = node.labels[wish.key]
                same = [n.name for n in request.nodes if n.labels.get(wish.key) == value]
                count = sum(dict(wish.there).get(name, 0) for name in same)
                size = len({n.labels[wish.key] for n in able})
                score += count * math.log(size + 2) + wish.skew - 1
            raw[node.name] = math.floor(score + 0.5)
        low, high = min(raw.values()), max(raw.values())
        add(2, {name: 100 * (high + low - v) // high if high else 100 for name, v in raw.items()})
    return dict(total)


def some_request(rng: random.Random) -> PlanRequest:
    nodes = [
        a_node(
            f"n{i}",
            rng.randint(0, 3),
            taints=[avoided(key) for key in ("a", "b") if rng.random() < 0.3],
            **{key: f"{key}{rng.randint(0, 2)}" for key in LABELS if rng.random() < 0.8},
        )
        for i in range(rng.randint(2, 8))
    ]
    nodes.append(a_node("n9", 1))
    wishes = []
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(["near", "apart", "spread"])
        key = rng.choice(LABELS)
        names = [n.name for n in nodes] if kind == "spread" else [f"{key}{i}" for i in range(3)]
        wishes.append(
            PlanPreference(
                kind=kind,
                key=key,
                weight=1 if kind == "spread" else rng.randint(1, 100),
                shapes=(0,),
                there=tuple(
                    (name, rng.randint(1, 9)) for name in sorted(names) if rng.random() < 0.6
                ),
                skew=rng.randint(1, 3) if kind == "spread" else 1,
            )
        )
    soft = [
        prefers(rng.randint(1, 100), key, f"{key}{rng.randint(0, 2)}", f"{key}0")
        for key in rng.choices(LABELS, k=rng.randint(0, 3))
    ]
    tolerations = (Toleration(key="a", operator="Exists"),) if rng.random() < 0.3 else ()
    return a_request(nodes, *wishes, soft=soft, tolerations=tolerations)


def test_a_pod_gets_the_node_with_the_highest_score():
    """Over 300 requests of one pod: the score of its node is the highest there is, and of these nodes it has the least free."""
    rng = random.Random(45)
    differing = 0
    for _ in range(300):
        request = some_request(rng)
        (name,) = nodes_of(placed(request))
        scores = expected_scores(request)
        assert scores[name] == max(scores.values())
        best = [n for n in request.nodes if scores.get(n.name) == scores[name]]
        assert name == min(best, key=lambda node: (node.free["slot"], node.name)).name
        differing += len(set(scores.values())) > 1
    assert differing > 200


@pytest.mark.parametrize("topology", [(), ("rack",)], ids=["anywhere", "in one rack"])
def test_a_tainted_rack_is_the_last_choice(topology):
    """Two pods go to the rack whose nodes have no PreferNoSchedule, though the other one has less free capacity."""
    nodes = [
        a_node("n0", 2, [avoided("slow")], rack="r0"),
        a_node("n1", 8, rack="r1"),
    ]
    request = a_request(nodes, pods=2, topology=topology)
    assert nodes_of(placed(request)) == ["n1", "n1"]
    tolerant = a_request(
        nodes, pods=2, topology=topology, tolerations=(Toleration(operator="Exists"),)
    )
    assert nodes_of(placed(tolerant)) == ["n0", "n0"]


def test_a_score_never_costs_a_pod():
    """The preferred rack has place for three of four pods: all four are in the other one."""
    nodes = [a_node("n0", 3, disk="fast", rack="r0"), a_node("n1", 4, rack="r1")]
    request = a_request(nodes, pods=4, topology=("rack",), soft=[prefers(50, "disk", "fast")])
    assert nodes_of(placed(request)) == ["n1"] * 4
    fewer = msgspec.structs.replace(request.root, minimum=1)
    assert nodes_of(placed(msgspec.structs.replace(request, root=fewer))) == ["n1"] * 4


def test_what_is_not_counted_is_named_once():
    """Members that prefer to be apart from each other: the plan has that they are not counted for one another."""
    wish = PlanPreference(kind="apart", key="zone", weight=9, shapes=(0,), there=(), among=True)
    soft = SoftRules(
        unseen=("preferred pod affinity over rack of namespaces that a label selects",)
    )
    request = a_request([a_node("n0", zone="a"), a_node("n1", zone="b")], wish, wish, pods=2)
    shapes = (msgspec.structs.replace(request.shapes[0], soft=soft),)
    assert placed(msgspec.structs.replace(request, shapes=shapes)).given == (
        "preferred pod affinity over rack of namespaces that a label selects",
        "preferred pod anti-affinity over zone among its own members",
    )


def test_a_request_without_preferences_keeps_its_bytes():
    """Nothing about preferences is stored for a request without any; one with some is read back as it was, and planned alike."""
    plain = encode(a_request([a_node("n0")]))
    assert b"soft" not in plain.head
    assert b"preferences" not in plain.head
    request = some_request(random.Random(7))
    stored = encode(request)
    assert decode(stored.head, stored.parts) == request
    assert plan_at_once(request, NodeTable(request.nodes), effort=1000) == plan(request)
