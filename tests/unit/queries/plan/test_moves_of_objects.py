"""Moves in random small clusters of objects, against all sets and orders of moves on a model of the same cluster."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter

import pytest

from extender.cluster.manifests.plan_request_body import answer_moves_request
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import parse_time, rfc3339
from extender.core.model.pods import CHECKPOINT_ANNOTATION, RUNS_FOR, PodShape
from extender.core.planner.moves import move_search
from extender.core.planner.moves.move_search import compile_moves, moves_in_order
from extender.core.planner.moves.move_types import Mover, MovesRequest
from extender.core.planner.plan_types import PlanNode
from extender.queries.plan.moves_query import MovesInput, answer_moves, moves_input
from extender.queries.plan.plan_dto import MovesAnswer, MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from tests.support.hypothesis_profile import PROFILE
from tests.support.planning.moves_checker import Gang, Member, MoveModel
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, RACK, Object, a_group, a_node, a_pod

CLUSTERS = 1_000 if PROFILE == "full" else 30
PARTS = 5
NOW_US = 1_800_000_000_000_000 + 30_000_000  # in the middle of a minute
PLACE, FREE, DRAIN = "place", "free", "drain"


def owned(name: str, kind: str = "ReplicaSet") -> Object:
    """Return the metadata of a pod that a controller would make again."""
    owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": name, "controller": True}
    return {"ownerReferences": [owner]}


def _random_model(rng: random.Random, question: str) -> MoveModel:
    racks = {f"n{i}": f"r{i // 2}" for i in range(rng.randint(3, 5))}
    sizes = {node: rng.choice([2, 3, 4, 4]) for node in racks}
    model = MoveModel(racks=racks, sizes=sizes, pods={})
    if rng.random() < 0.2:
        model.cordoned.add(rng.choice(list(racks)))
    for number in range(rng.randint(2, 4)):
        size = rng.randint(1, 3)
        minimum = rng.randint(max(1, size - 2), size)
        gang = Gang(minimum, in_rack=rng.random() < 0.3, whole=rng.random() < 0.1)
        lone = rng.random() < 0.6
        rack = rng.choice(sorted(set(racks.values())))
        priority, stays = rng.choice([0, 0, 5]), rng.random() < 0.05
        for member in range(size):
            amount = rng.choice([1, 1, 2])
            left = model.free(model.start())
            nodes = [n for n in racks if left[n] >= amount]
            if not lone and gang.in_rack:
                nodes = [n for n in nodes if racks[n] == rack]
            if not nodes or len(model.pods) == 6:
                continue
            name = "" if lone else f"g{number}"
            model.pods[f"p{number}-{member}"] = Member(
                rng.choice(nodes), amount, name, priority, stays, minutes=rng.choice([0, 1, 5])
            )
            if name:
                model.gangs[name] = gang
    if question == PLACE:
        model.waiting = (rng.randint(1, 3), rng.choice([2, 3, 3, 4]), rng.random() < 0.5)
    elif question == FREE:
        model.racks_to_free = rng.choice([1, 1, 2])
    else:
        model.to_drain = tuple(rng.sample(sorted(racks), rng.choice([1, 1, 2])))
    return model


def _checkpointed(minutes: int) -> Object:
    """Return the metadata of a pod whose last checkpoint is so many minutes ago."""
    return {"annotations": {CHECKPOINT_ANNOTATION: rfc3339(NOW_US - minutes * 60_000_000)}}


def _objects(model: MoveModel) -> list[Object]:
    nodes = []
    for name, rack in model.racks.items():
        node = a_node(name, {RACK: rack}, gpu=model.sizes[name])
        if name in model.cordoned:
            node["spec"] = {"unschedulable": True}
        nodes.append(node)
    groups = [
        a_group(name, gang=gang.minimum, topo=RACK if gang.in_rack else "", whole=gang.whole)
        for name, gang in model.gangs.items()
    ]
    for group in groups:
        members = [p for p in model.pods.values() if p.gang == group["metadata"]["name"]]
        group["spec"]["priority"] = members[0].priority
    pods = [
        a_pod(
            name,
            pod.gang,
            node=pod.node,
            requests={GPU: pod.amount},
            metadata=_checkpointed(pod.minutes) | (owned(name) if not pod.stays else {}),
            priority=pod.priority,
        )
        for name, pod in model.pods.items()
    ]
    objects = [*nodes, *groups, *pods]
    if model.waiting is not None:
        count, amount, in_rack = model.waiting
        objects.append(a_group("train", gang=count, topo=RACK if in_rack else "", priority=3))
        for number in range(count):
            pod = a_pod(f"train-{number}", "train", requests={GPU: amount}, priority=3)
            objects.append(pod)
    return objects


def _ask(model: MoveModel, budget: int = 0) -> MovesAnswer:
    groups = frozenset({GroupKey("default", "train", "PodGroup")} if model.waiting else ())
    question = MovesInput(
        plan=PlanInput(groups=groups),
        asked=MovesQuestion(
            free=f"{RACK}={model.racks_to_free}" if model.racks_to_free else "",
            drain=model.to_drain,
            budget=budget,
        ),
        now_us=NOW_US,
    )
    return answer_moves(FakeCluster(*_objects(model)).view(), question)


def _steps(answer: MovesAnswer) -> list[tuple[str, str, str]]:
    return [(m.pod.removeprefix("default/"), m.source, m.target) for m in answer.moves]


def _check_drain(model: MoveModel, answer: MovesAnswer) -> None:
    where = model.replay(_steps(answer))
    best = min(
        (sum(n in model.to_drain for n in after.values()), cost) for cost, after in model.states()
    )
    left = {name for name, node in where.items() if node in model.to_drain}
    assert (len(left), len(answer.moves)) == (best[0], best[1][0])
    assert left == {pod.removeprefix("default/") for pod in answer.unmoved} | {
        line.pod.removeprefix("default/") for line in answer.stays
    }
    assert (answer.verdict in ("moves", "fits")) == (not left)
    broken = {
        name
        for name, gang in model.gangs.items()
        if (members := [n for n, p in model.pods.items() if p.gang == name])
        and len(members) >= gang.minimum > len([n for n in members if n not in left])
    }
    assert {line.gang for line in answer.breaks} == {f"PodGroup/default/{n}" for n in broken}


def _check_fewest(model: MoveModel, answer: MovesAnswer) -> None:
    best = next((cost for cost, where in model.states() if model.reached(where)), None)
    if best is None:
        assert answer.verdict == "impossible", answer
        return
    assert answer.verdict == ("moves" if best[0] else "fits"), (best, answer)
    assert model.reached(model.replay(_steps(answer)))
    assert answer.cheapest
    lowest = min((p.priority for p in model.pods.values() if model._can_ever(p)), default=0)
    price = sum(move.priority - lowest for move in answer.moves)
    assert (len(answer.moves), price, answer.lost_min) == best
    if best[0]:
        assert answer.least == best[0]
        enough = _ask(model, best[0])
        assert (enough.verdict, len(enough.moves)) == ("moves", best[0])
        if best[0] > 1:
            assert _ask(model, best[0] - 1).verdict == "impossible"


@pytest.mark.parametrize("question", [PLACE, FREE, DRAIN])
@pytest.mark.parametrize("part", range(PARTS))
def test_the_moves_are_the_fewest_of_all_sets_and_orders(question, part):
    """In an order that is allowed step by step; where no order exists, this is proved."""
    for number in range(CLUSTERS // PARTS):
        model = _random_model(random.Random(f"{question} {part} {number}"), question)
        answer = _ask(model)
        try:
            (_check_drain if question == DRAIN else _check_fewest)(model, answer)
        except AssertionError as error:
            raise AssertionError(f"{question} {part} {number}: {model}") from error


NODES = [a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=2) for i in range(4)]


def test_a_budget_may_be_larger_than_a_number_of_the_solver():
    model = MoveModel(racks={"n0": "r0", "n1": "r0"}, sizes={"n0": 2, "n1": 2}, pods={})
    model.pods = {f"p{i}": Member(f"n{i}", 1) for i in range(2)}
    model.waiting = (1, 2, False)
    assert _ask(model, 10**20).verdict == "moves"


def test_an_order_may_have_more_moves_than_the_interpreter_has_frames():
    nodes = tuple(
        PlanNode(name=name, labels={}, allocatable={"pods": 9_000}, free={"pods": free})
        for name, free in (("a", 0), ("b", 9_000))
    )
    movers = tuple(
        Mover(pod=f"p{i}", uid=f"u{i}", node="a", shape=0, priority=0)
        for i in range(sys.getrecursionlimit() + 1)
    )
    shape = PodShape(requests=(("pods", 1),))
    problem = compile_moves(MovesRequest(nodes=nodes, shapes=(shape,), movers=movers))
    targets = dict.fromkeys(range(len(movers)), 1)
    assert moves_in_order(problem, targets, len(movers)) == list(targets.items())


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([a_pod("t")], "for: 1 pod of no group; give the PodGroup"),
        ([a_group("leaf", gang=1, parent="top"), a_pod("t", "leaf")], "for PodGroup/default/leaf: .*top"),
    ],
)  # fmt: skip
def test_what_is_in_no_tree_is_named(objects, message):
    view = FakeCluster(*NODES, *objects).view()
    given = PlanInput(groups=frozenset(view.groups), pods=frozenset(view.pods))
    with pytest.raises(BadInput, match=message):
        answer_moves(view, MovesInput(plan=given))


def test_a_drain_has_no_budget():
    with pytest.raises(BadInput, match=r"budget 1: a drain moves all that can move"):
        answer_moves(
            FakeCluster(*NODES).view(),
            MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=("n0",), budget=1)),
        )


def test_domains_that_do_not_count_are_named():
    nodes = [{**node, "spec": {"unschedulable": True}} for node in NODES[2:]]
    answer = answer_moves(
        FakeCluster(*NODES[:2], *nodes).view(),
        MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{RACK}=2")),
    )
    assert answer.verdict == "impossible"
    assert answer.reasons == (
        "1 domain of 1 can be emptied at all, 2 are asked for",
        f"1 further domain with a cordoned node, or one that is not ready: {RACK}=r1",
    )


@pytest.mark.parametrize("question", [PLACE, FREE, DRAIN])
def test_without_the_program_bounds_and_orders_hold(question, monkeypatch):
    """As on clusters that are too large for it: what is claimed is true, though it may be less."""
    monkeypatch.setattr(move_search, "PAIRS_MAX", 0)
    outcomes = Counter()
    for number in range(CLUSTERS // 2):
        model = _random_model(random.Random(f"large {question} {number}"), question)
        answer = _ask(model)
        where = model.replay(_steps(answer))
        outcomes[answer.verdict] += 1
        if question == DRAIN:
            left = min(sum(n in model.to_drain for n in w.values()) for _, w in model.states())
            assert (answer.verdict == "impossible") <= (left > 0), (number, model, answer)
            assert (answer.verdict in ("moves", "fits")) <= (left == 0), (number, model, answer)
            continue
        best = next((cost for cost, after in model.states() if model.reached(after)), None)
        text = f"{question} {number}: {model} {answer}"
        if answer.verdict in ("moves", "fits"):
            assert model.reached(where), text
            assert answer.least <= best[0] <= len(answer.moves), text
            assert not answer.cheapest or (best[0] == len(answer.moves)), text
        elif answer.verdict == "impossible":
            assert best is None, text
    assert outcomes["moves"]


def test_the_trees_of_a_question_are_named_in_their_order():
    """Whatever the hashes of this process are."""
    names = [f"g{number}" for number in range(6)]
    view = FakeCluster(*NODES, *(a_group(name, gang=1) for name in reversed(names))).view()
    with pytest.raises(BadInput) as refused:
        answer_moves(view, MovesInput(plan=PlanInput(groups=frozenset(view.groups))))
    first = ", ".join(f"PodGroup/default/{name}" for name in names)
    assert str(refused.value) == f"for: 6 trees; name one at a time: {first}"


def test_names_that_are_left_out_are_counted_once():
    """Of more than a message has: nodes to drain, cordoned domains, labels of nodes, and trees."""
    labels = {f"l{i}": "x" for i in range(9)}
    nodes = [a_node(f"n{i}", {RACK: f"r{i}", **labels}, gpu=1) for i in range(9)]
    groups = [a_group(f"g{i}", gang=1) for i in range(9)]
    view = FakeCluster(*nodes, *groups).view()
    drained = answer_moves(
        view,
        MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=tuple(f"n{i}" for i in range(9)))),
    )
    assert drained.question == "drain n0, n1, n2, n3, n4, n5 and 3 more"
    with pytest.raises(BadInput, match=r"nodes have kubernetes.io/hostname, l0, .*l4 and 5 more$"):
        answer_moves(view, MovesInput(plan=PlanInput(), asked=MovesQuestion(free="x=1")))
    trees = PlanInput(groups=frozenset(view.groups))
    with pytest.raises(BadInput, match=r"9 trees; name one at a time: .*g5 and 3 more$"):
        answer_moves(view, MovesInput(plan=trees))
    for node in nodes:
        node["spec"] = {"unschedulable": True}
    closed = FakeCluster(*nodes).view()
    (reason,) = answer_moves(
        closed, MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{RACK}=1"))
    ).reasons[-1:]
    assert reason.endswith("r5 and 3 more")


def test_what_ends_in_time_need_not_move():
    """A gang of exactly its minimum: it breaks, but not by the time at which all its pods have ended."""
    start = {"metadata": owned("g") | {"creationTimestamp": "2026-12-01T00:00:00Z"}}
    hours = 3600
    pods = [
        a_pod(f"g-{i}", "g", node=f"n{i}", requests={GPU: 1}, **start, activeDeadlineSeconds=(i + 1) * hours)
        for i in range(2)
    ]  # fmt: skip
    view = FakeCluster(*NODES, a_group("g", gang=2), *pods).view()

    def asked(*, by="", nodes=("n0", "n1")):
        by_us = parse_time(by, "by") if by else 0
        return answer_moves(
            view, MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=nodes), by_us=by_us)
        )

    now = asked()
    assert (now.verdict, now.ends, now.begin_after) == ("impossible", (), "2026-12-01T02:00:00.000000Z")  # fmt: skip
    assert [line.gang for line in now.breaks] == ["PodGroup/default/g"]
    text = "nothing breaks when you begin after PodGroup/default/g has ended, at 2026-12-01T02:00:00.000000Z at the latest"
    assert now.reasons[-1] == text
    early = asked(
        by="2026-12-01T01:59:59Z", nodes=("n0",)
    )  # its own pod has ended then, the gang has not
    assert (early.verdict, early.ends) == ("impossible", ())
    assert early.breaks
    late = asked(by="2026-12-01T02:00:00Z")
    assert (late.verdict, late.stays, late.breaks) == ("fits", (), ())
    assert late.reasons == (text,)
    (line,) = late.ends
    assert (line.name, line.pods, line.ends) == ("PodGroup/default/g", 2, "2026-12-01T02:00:00.000000Z")  # fmt: skip


def test_an_end_that_has_passed_is_none_in_a_cluster_of_the_request():
    """The question over HTTP has no clock of the cluster; the time is that of the answer."""
    pod = a_pod("a", node="n0", requests={GPU: 1})
    pod["metadata"] |= {
        "annotations": {RUNS_FOR: "2h"},
        "creationTimestamp": "2020-01-01T00:00:00Z",
    }
    asked = {"cluster": [*NODES, pod], "drain": ["n0"], "by": "2100-01-01T00:00:00Z"}
    answer = json.loads(answer_moves_request(json.dumps(asked).encode()))
    assert ([line["pod"] for line in answer["stays"]], answer["ends"], answer["begin_after"]) == (
        ["default/a"],
        [],
        "",
    )


def test_nodes_whose_drain_is_announced_are_drained():
    """Named with what announces it; a taint of another kind announces nothing."""
    nodes = [a_node(f"n{i}", gpu=1) for i in range(4)]
    for node, key in zip(nodes, ("medik8s.io/drain", "team", ""), strict=False):
        node["spec"] = (
            {"taints": [{"key": key, "effect": "NoSchedule"}]} if key else {"unschedulable": True}
        )
    pods = [a_pod(f"p{i}", node=f"n{i}", requests={GPU: 1}, metadata=owned("p")) for i in range(3)]
    view = FakeCluster(*nodes, *pods).view()
    answer = answer_moves(view, MovesInput(plan=PlanInput(), asked=MovesQuestion(announced=True)))
    assert answer.question == "drain n0 (medik8s.io/drain), n2 (node.kubernetes.io/unschedulable)"
    assert [(move.source, move.target) for move in answer.moves] == [("n0", "n3")]
    assert answer.unmoved == ("default/p2",)
    named = answer_moves(
        view, MovesInput(plan=PlanInput(), asked=MovesQuestion(announced=True, drain=("n1", "n2")))
    )
    assert {move.source for move in named.moves} <= {"n0", "n1", "n2"}
    with pytest.raises(BadInput, match="announced: of 1 node none is cordoned"):
        answer_moves(
            FakeCluster(nodes[3]).view(),
            MovesInput(plan=PlanInput(), asked=MovesQuestion(announced=True)),
        )


def test_an_end_that_is_not_known_is_not_waited_for():
    """Of two pods that stay one has an end: there is no time after which nothing breaks."""
    ends = {RUNS_FOR: "2h-6h"}
    pods = [
        a_pod("a", node="n0", requests={GPU: 1}, metadata={"annotations": ends, "creationTimestamp": "2026-12-01T00:00:00Z"}),
        a_pod("b", node="n0", requests={GPU: 1}),
    ]  # fmt: skip
    view = FakeCluster(*NODES, *pods).view()
    by_us = parse_time("2026-12-01T06:00:00Z", "by")
    answer = answer_moves(
        view, MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=("n0",)), by_us=by_us)
    )
    assert [(line.name, line.ends) for line in answer.ends] == [("Pod/default/a", "2026-12-01T06:00:00.000000Z")]  # fmt: skip
    assert [pod.pod for pod in answer.stays] == ["default/b"]
    assert answer.begin_after == ""


def test_an_end_that_has_passed_and_one_of_a_pod_of_a_file_are_not_known():
    """The first pod runs on after the end that was promised; when the second one began is not known."""
    ends = owned("g") | {"annotations": {RUNS_FOR: "2h"}}
    overdue = {**ends, "creationTimestamp": "2026-12-01T00:00:00Z"}
    pods = [
        a_pod("a", node="n0", requests={GPU: 1}, metadata=overdue),
        a_pod("b", node="n1", requests={GPU: 1}, metadata={**ends, "creationTimestamp": "2000-01-01T00:00:07Z"}),
    ]  # fmt: skip
    view = FakeCluster(*NODES, *pods).view()
    now_us, by_us = (parse_time(f"2026-12-01T{hour}:00:00Z", "by") for hour in ("03", "06"))
    asked = MovesInput(
        plan=PlanInput(), asked=MovesQuestion(drain=("n0", "n1")), by_us=by_us, now_us=now_us
    )
    assert not answer_moves(view, asked).ends
    aged = MovesInput(
        plan=PlanInput(), asked=MovesQuestion(drain=("n1",), max_age_s=3600), now_us=now_us
    )
    assert not answer_moves(view, aged).stays  # its age is not known either


def test_a_time_that_has_passed_is_refused():
    asked = MovesInput(
        plan=PlanInput(), asked=MovesQuestion(drain=("n0",)), by_us=NOW_US, now_us=NOW_US
    )
    with pytest.raises(BadInput, match=r"by 2027-01-15T08:00:30.000000Z: is not after now"):
        answer_moves(FakeCluster(*NODES).view(), asked)


@pytest.mark.parametrize("by", ["1970-01-01T00:00:00Z", "1969-12-31T00:00:00Z"])
def test_the_begin_of_the_epoch_is_a_time(by):
    """Not the same as none."""
    question = moves_input(MovesQuestion(drain=("n0",), by=by), PlanInput(), NOW_US)
    with pytest.raises(BadInput, match="is not after now"):
        answer_moves(FakeCluster(*NODES).view(), question)


def test_a_time_is_for_a_drain():
    with pytest.raises(BadInput, match=r"by: .* it is for drain"):
        answer_moves(
            FakeCluster(*NODES).view(),
            MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{RACK}=1"), by_us=1),
        )


def test_a_nominated_pod_of_no_group_keeps_its_node():
    """kube-scheduler has evicted others for it, or is about to."""
    waiting = a_pod("n", requests={GPU: 1}, status={"nominatedNodeName": "n0"})
    view = FakeCluster(*NODES, waiting).view()
    both = answer_moves(view, MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{RACK}=2")))
    assert both.verdict == "impossible"
    single = answer_moves(view, MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{RACK}=1")))
    assert (single.verdict, single.emptied) == ("fits", (f"{RACK}=r1",))
    drained = answer_moves(view, MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=("n0",))))
    assert (drained.verdict, [pod.pod for pod in drained.stays]) == ("impossible", ["default/n"])


def test_no_moves_help_a_gang_that_lacks_members():
    pods = [a_pod(f"g-{i}", "g", requests={GPU: 1}) for i in range(2)]
    view = FakeCluster(*NODES, a_group("g", gang=3), *pods).view()
    groups = frozenset({GroupKey("default", "g", "PodGroup")})
    answer = answer_moves(view, MovesInput(plan=PlanInput(groups=groups)))
    assert answer.verdict == "impossible"
    assert answer.reasons == (
        "waiting for members of PodGroup default/g: 3 required, 2 present",
        "no moves help before its members and groups are there",
    )
