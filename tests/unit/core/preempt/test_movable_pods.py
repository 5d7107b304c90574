"""Which running pods may be moved, and where their new pods may go; the others stay with a reason."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.core.log.events import GroupRecord
from extender.core.log.reservation_state import EMPTY, GangState, Reservation
from extender.core.model.cluster_view import forest_of
from extender.core.preempt.disruption_units import as_admitted
from extender.core.preempt.movable_pods import (
    MoveLimits,
    broken_gangs,
    movable_pods,
)
from extender.queries.plan.moves_query import MovesInput, answer_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_group,
    a_node,
    a_pod,
    an_object,
)

NODES = [a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=4) for i in range(4)]
MANY = {"labels": {"app": "a"}}
NEAR = {
    "labelSelector": {"matchLabels": {"app": "a"}},
    "topologyKey": "kubernetes.io/hostname",
}


def owned(kind="ReplicaSet", **metadata):
    owner = {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o", "controller": True}
    return {"ownerReferences": [owner], **metadata}


def a_budget(name, allowed):
    return an_object(
        "PodDisruptionBudget",
        name,
        "policy/v1",
        spec={"selector": {"matchLabels": {"app": "a"}}},
        status={"disruptionsAllowed": allowed},
    )


def running(name="p", group="", node="n0", metadata=None, **spec):
    return a_pod(name, group, node=node, requests={GPU: 1}, metadata=metadata or owned(), **spec)


def apart(name="other", **metadata):
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}
    return running(name, node="n1", metadata=owned(**metadata), affinity=rule)


def parted(*objects, **limits):
    view = FakeCluster(*NODES, *objects).view()
    return movable_pods(view, EMPTY, forest_of(view), limits=MoveLimits(**limits))


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([running(metadata={"labels": {}})], "no controller would make it again"),
        ([running(metadata=owned("DaemonSet"))], "of a DaemonSet"),
        ([running(metadata=owned("Node"))], "static: its kubelet runs it"),
        ([running(metadata=owned(labels={"gang-extender.dev/move": "never"}))], "label gang-extender.dev/move: never"),
        ([running(priority=7)], "priority 7 is above 5"),
        ([running(metadata=owned(**MANY)), a_budget("b", 0)], "PodDisruptionBudget default/b allows no disruption"),
        ([running(metadata=owned(**MANY)), a_budget("b", 1), a_budget("c", 1)], "the Eviction API evicts no pod of several PodDisruptionBudgets: default/b and default/c"),
        ([running(metadata=owned(**MANY)), apart()], "pod anti-affinity over kubernetes.io/hostname of default/other selects it, which is not judged for a move"),
        ([running(group="g"), a_group("g", gang=1)], "PodGroup/default/g runs with 1 pod, and its minimum is 1"),
        ([running(group="g"), running("q", "g"), a_group("g", gang=1, whole=True)], "PodGroup/default/g is disrupted as a whole"),
        ([running(group="g", priority=3), a_group("g", gang=1)], "PodGroup/default/g is not valid: Pod/default/p has priority 3, its tree PodGroup/default/g has 0; give both the same priorityClassName"),
        ([running(group="absent")], "PodGroup/default/absent does not exist, or is in no tree"),
    ],
)  # fmt: skip
def test_a_pod_stays(objects, reason):
    (stays,) = [s for s in parted(*objects, max_priority=5).staying if s.pod == "default/p"]
    assert stays.reason == reason


def test_of_pods_with_one_rule_the_last_by_name_is_the_reason():
    """Whatever their order in memory, which is another one in each process."""
    others = [apart(f"other-{number}") for number in range(8)]
    (stays,) = [s for s in parted(running(metadata=owned(**MANY)), *others).staying if s.pod == "default/p"]  # fmt: skip
    assert " of default/other-7 selects it" in stays.reason


def test_what_may_be_moved_keeps_its_required_domain():
    """As long as another pod of the group runs; a budget that allows one disruption allows moves one after the other."""
    pods = parted(
        a_group("g", gang=1, topo=RACK),
        running("a", "g", metadata=owned(**MANY)),
        running("b", "g", node="n1", metadata=owned(**MANY)),
        running("lone", node="n3"),
        a_budget("b", 1),
    )
    assert {m.pod: m.within for m in pods.movers} == {
        "default/a": ((RACK, "r0"),),
        "default/b": ((RACK, "r0"),),
        "default/lone": (),
    }
    assert pods.staying == ()


ALONE = {"schedulingConstraints": {"exclusive": {"key": RACK, "scope": "Cluster"}}}


def test_no_pod_is_moved_into_an_exclusive_domain_that_is_only_reserved():
    view = FakeCluster(*NODES, a_group("x", gang=1, **ALONE), a_pod("w", "x")).view()
    (tree,) = forest_of(view).trees.values()
    (pod,) = tree.pods
    held = Reservation(
        kind="reservation", plan="plan", gang_uid=tree.root.uid, pod=pod.path, uid=pod.uid, group="x",
        node="n2", requests={}, priority=0, extra=False, at_us=0,
    )  # fmt: skip
    gang = GangState(uid=tree.root.uid, gang="default/x", reservations={pod.uid: held})
    state = msgspec.structs.replace(EMPTY, gangs=Map({tree.root.uid: gang}))
    assert movable_pods(view, state, forest_of(view)).barred == {"n2", "n3"}


def test_pods_that_an_exclusive_gang_must_not_meet_stay():
    """The search does not judge which domain they leave, and it must not move them into that of the gang."""
    pods = [running("a", "g"), running("b", "g", node="n2"), running("lone")]
    waiting = [a_group("x", gang=1, **ALONE), a_pod("w", "x", requests={GPU: 4})]
    view = FakeCluster(*NODES, a_group("g", gang=1), *pods, *waiting).view()
    forest = forest_of(view)
    tree = next(t for t in forest.trees.values() if t.root.key.name == "x")
    parting = movable_pods(view, EMPTY, forest, tree=tree)
    assert [m.pod for m in parting.movers] == ["default/lone"]
    assert {s.reason for s in parting.staying} == {
        "PodGroup/default/x shares its exclusive domain with no such pod, which is not judged for a move"
    }


def test_a_leaf_below_its_parent():
    """A basic leaf may lose its last pod only if the groups above keep their minimum without it."""
    leaves = [a_group(name, parent="top") for name in ("x", "y")]
    pods = [running(name, name) for name in ("x", "y")]
    top = a_group("top", composite=True, gang=2)
    stays = parted(top, *leaves, *pods).staying
    assert {s.reason for s in stays} == {
        "CompositePodGroup/default/top runs with 2 groups, and its minimum is 2"
    }
    enough = parted(a_group("top", composite=True, gang=1), *leaves, *pods)
    assert len(enough.movers) == 2


def test_a_gang_that_breaks_breaks_what_needs_it():
    view = FakeCluster(
        *NODES,
        a_group("top", composite=True, gang=1),
        a_group("g", gang=2, parent="top"),
        running("a", "g"),
        running("b", "g"),
    ).view()
    (tree,) = forest_of(view).trees.values()
    uid = next(pod.uid for pod in view.pods.values() if pod.name == "a")
    broken = [(str(group.key), *counts) for group, *counts in broken_gangs(tree, {uid})]
    assert broken == [("CompositePodGroup/default/top", 1, 0), ("PodGroup/default/g", 2, 1)]


def test_a_gang_without_a_child_that_it_requires_is_broken_already():
    cluster = FakeCluster(
        *NODES,
        a_group("top", composite=True, gang=1),
        *(a_group(name, gang=1, parent="top") for name in "xyz"),
        *(running(name, name) for name in "xyz"),
    )
    cluster.change_group("top", required=("x",))

    def broken(name):
        (tree,) = forest_of(cluster.view()).trees.values()
        return [str(group.key) for group, *_ in broken_gangs(tree, {cluster.pod(name).uid})]

    assert broken("y") == ["PodGroup/default/y"]
    assert broken("x") == ["CompositePodGroup/default/top", "PodGroup/default/x"]
    cluster.delete_pod("x")
    assert broken("y") == ["PodGroup/default/y"]


@pytest.mark.parametrize("since", [{"required": ("new",)}, {"minimum": 3}])
def test_what_a_gang_needs_since_it_was_admitted_does_not_make_it_broken_already(since):
    """As for victims: it runs as admitted, and to take its last pod breaks it."""
    cluster = FakeCluster(
        *NODES,
        a_group("top", composite=True, gang=1),
        a_group("x", gang=1, parent="top"),
        running("x", "x"),
    )
    (tree,) = forest_of(cluster.view()).trees.values()
    cluster.change_group("top", **since)
    groups = tuple(GroupRecord(kind=g.key.kind, name=g.key.name) for g in tree.groups)
    gang = GangState(uid=tree.root.uid, gang="default/top", groups=groups)
    state = msgspec.structs.replace(EMPTY, gangs=Map({tree.root.uid: gang}))
    (tree,) = forest_of(cluster.view()).trees.values()
    broken = broken_gangs(as_admitted(tree, state), {cluster.pod("x").uid})
    assert [str(group.key) for group, *_ in broken] == [
        "CompositePodGroup/default/top",
        "PodGroup/default/x",
    ]


def drained(*objects):
    nodes = [a_node(f"n{i}", gpu=size) for i, size in enumerate((2, 2, 1))]
    question = MovesInput(plan=PlanInput(), asked=MovesQuestion(drain=("n0",)))
    return answer_moves(FakeCluster(*nodes, *objects).view(), question)


def test_a_further_pod_moves_first():
    """Its node can take the other only then."""
    two = a_pod("two", node="n0", requests={GPU: 2}, metadata=owned())
    blocking = a_pod("one", node="n1", requests={GPU: 1}, metadata=owned())
    answer = drained(two, blocking)
    assert [(m.pod, m.source, m.target) for m in answer.moves] == [
        ("default/one", "n1", "n2"),
        ("default/two", "n0", "n1"),
    ]
    assert (answer.verdict, answer.least, answer.cheapest) == ("moves", 2, True)


def test_two_pods_cannot_change_places():
    """Neither has its place before it leaves, and no third place is free: proved."""
    full = a_pod("two", node="n0", requests={GPU: 2}, metadata=owned())
    other = a_pod("other", node="n1", requests={GPU: 2}, metadata=owned())
    answer = drained(full, other)
    assert (answer.verdict, answer.unmoved, answer.proved) == ("impossible", ("default/two",), True)
