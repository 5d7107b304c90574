"""What a pass is not needed for at once: changes that carry out what is recorded, and members of groups that need more."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.loop import control_loop
from extender.control.loop.deferrable_changes import ChildGroups, are_expected
from extender.core.log.events import GangAdmitted, GangObserved, GangScheduled, PodBound
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName, PlanId
from extender.core.model.pod_groups import composite_key
from extender.core.model.pods import GATE
from tests.support.service.fakes import FakeCluster, Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import folded

NEVER_S = 3600.0


class Scene:
    """A gang of two, admitted, with an ordinary pod and another gang that is not, and needs three."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(
            a_node("n0", gpu=4),
            a_node("n1", gpu=4),
            *a_gang("g", pods=2, schedulingGates=[{"name": GATE}, {"name": "other/gate"}]),
            *a_gang("h", pods=1, minimum=3, schedulingGates=[{"name": GATE}]),
            a_pod("alone", requests={GPU: 1}),
        )
        self.state = admitted(EMPTY, self.cluster, "g", {"g-0": "n0", "g-1": "n1"})
        self.before = self.cluster.seen
        self.children = ChildGroups()

    def are_expected(self) -> bool:
        return are_expected(self.before, self.cluster.seen, self.state, self.children)


EXPECTED = {
    "nothing": {},
    "nominated": {"nominated": NodeName("n0")},
    "its gate removed": {"gates": ("other/gate",), "nominated": NodeName("n0")},
    "bound": {"node": NodeName("n0"), "assigned_us": 5, "gates": (), "plan": "plan-g"},
    "bound, with the labels of its zone": {
        "node": NodeName("n0"),
        "gates": (),
        "labels": {"gang-extender.dev/pod-group": "g", "topology.kubernetes.io/zone": "z0"},
    },
}


@pytest.mark.parametrize("change", EXPECTED.values(), ids=EXPECTED)
def test_a_member_that_goes_to_its_node_is_expected(change):
    """Nomination, removal of our gate, Binding; in this order, or seen together."""
    scene = Scene()
    if change.get("gates") == ():
        scene.cluster.change_pod("g-0", gates=(GATE,))
        scene.before = scene.cluster.seen
    scene.cluster.change_pod("g-0", resource_version="7", **change)
    assert scene.are_expected()


@pytest.mark.parametrize(
    ("pod", "change"),
    [
        ("g-0", {"node": NodeName("n1")}),
        ("g-0", {"nominated": NodeName("n1")}),
        ("g-0", {"node": NodeName("n0"), "plan": "another"}),
        ("g-0", {"gates": (GATE,)}),
        ("g-0", {"gates": (GATE, "other/gate", "third/gate")}),
        ("g-0", {"deleting": True}),
        ("g-0", {"unschedulable": "0/2 nodes are available"}),
        ("g-0", {"priority": 5}),
        ("g-0", {"labels": {"gang-extender.dev/pod-group": "g", "more": "x"}}),
        ("g-0", {"labels": {}, "node": NodeName("n0")}),
        ("h-0", {"nominated": NodeName("n0")}),
        ("alone", {"node": NodeName("n0")}),
    ],
)
def test_anything_else_of_a_pod_is_not(pod, change):
    """Another node, another gate, its end, a refusal, and whatever happens to pods without a reservation."""
    scene = Scene()
    scene.cluster.change_pod(pod, **change)
    assert not scene.are_expected()


def test_what_follows_of_a_member_that_is_recorded_as_bound_is_expected():
    """The pass has recorded it before the loop looks again; on another node it is not."""
    for node, expected in (("n0", True), ("n1", False)):
        scene = Scene()
        pod = scene.cluster.pod("g-0")
        bound = PodBound(plan=PlanId("plan-g"), pod="default/g-0", uid=pod.uid, node=NodeName("n0"))
        scene.state = folded(scene.state, (scene.cluster.group("g").uid, "default/g", bound))
        scene.cluster.change_pod("g-0", node=NodeName(node), resource_version="8")
        assert scene.are_expected() is expected


@pytest.mark.parametrize("name", ["g-0", "h-0", "alone"])
def test_a_pod_in_whose_status_nothing_counts_is_expected(name):
    """As of running pods, whose kubelets write it."""
    scene = Scene()
    scene.cluster.change_pod(name, resource_version="8")
    assert scene.are_expected()


def test_pods_that_go_are_not():
    """Members with a reservation, and those that wait."""
    for name in ("g-0", "h-0", "alone"):
        scene = Scene()
        scene.cluster.delete_pod(name)
        assert not scene.are_expected()


def a_waiting(name, group, **spec):
    return a_pod(name, group, requests={GPU: 1}, **({"schedulingGates": [{"name": GATE}]} | spec))


def test_members_that_come_are_until_their_group_has_enough():
    """Whether the log has the tree already or not."""
    for observed in (False, True):
        scene = Scene()
        if observed:
            group = scene.cluster.group("h")
            scene.state = folded(scene.state, (group.uid, "default/h", GangObserved(kind="PodGroup")))  # fmt: skip
        scene.cluster.add(a_waiting("h-1", "h"))
        assert scene.are_expected()
        scene.before = scene.cluster.seen
        scene.cluster.add(a_waiting("h-2", "h"))
        assert not scene.are_expected()


def test_members_that_come_are_until_their_tree_has_enough():
    """A leaf that is complete admits nothing while its tree needs another; one that no tree needs is not waited for."""
    scene = Scene()
    scene.cluster.add(
        a_group("top", gang=2, composite=True),
        a_group("row", gang=1, composite=True, parent="top"),
        *(a_group(f"row-{n}", gang=2, parent="row") for n in range(2)),
        a_group("side", gang=1, parent="top"),
        a_group("row-0", gang=1, namespace="elsewhere"),
    )
    came = []
    for name, group in (("a", "row-0"), ("b", "row-0"), ("c", "row-1"), ("d", "side")):
        scene.before = scene.cluster.seen
        scene.cluster.add(a_waiting(name, group))
        came.append(scene.are_expected())
    assert came == [True, True, True, False]
    scene.before = scene.cluster.seen
    scene.cluster.add(a_waiting("e", "row-1"))
    assert not scene.are_expected()


def test_groups_that_come_change_and_go_count_for_the_parent_that_they_name_now():
    """The index of children is made from the changes of the view alone."""
    scene = Scene()
    scene.cluster.add(a_group("top", gang=1, composite=True), a_group("row", gang=1, parent="top"))

    def children(parent: str) -> list[str]:
        key = composite_key("default", parent)
        return sorted(group.key.name for group in scene.children.of(key, scene.cluster.seen))

    assert children("top") == ["row"]
    scene.cluster.add(a_group("late", gang=1, parent="top"))
    scene.cluster.change_group("row", parent="other")
    assert (children("top"), children("other")) == (["late"], ["row"])
    scene.cluster.change_group("row", minimum=2)
    scene.cluster.delete_group("late")
    assert (children("top"), children("other")) == ([], ["row"])
    scene.cluster.change_group("row", parent=None)
    assert children("other") == []


def test_a_leaf_that_is_complete_is_not_waited_for_beside_a_group_without_a_minimum():
    """Such a group counts for its parent as it is, without members."""
    scene = Scene()
    scene.cluster.add(
        a_group("top", gang=2, composite=True),
        a_group("leaf", gang=1, parent="top"),
        a_group("basic", parent="top"),
    )
    scene.before = scene.cluster.seen
    scene.cluster.add(a_waiting("a", "leaf"))
    assert not scene.are_expected()


@pytest.mark.parametrize(
    "pod",
    [
        a_waiting("h-1", "h", schedulingGates=[]),  # kube-scheduler tries it
        a_waiting("h-1", "h", nodeName="n0"),
        a_waiting("x-0", "no-such-group"),
        a_pod("other", requests={GPU: 1}),
        a_waiting("g-2", "g"),
    ],
    ids=["ungated", "bound", "without its group", "ordinary", "of an admitted gang"],
)
def test_other_pods_that_come_are_not(pod):
    scene = Scene()
    scene.cluster.add(pod)
    assert not scene.are_expected()


def test_a_member_that_replaces_one_of_an_admitted_gang_is_not():
    """Though its group has fewer than it needs."""
    scene = Scene()
    for name in ("g-0", "g-1"):
        scene.cluster.delete_pod(name)
    scene.before = scene.cluster.seen
    scene.cluster.add(a_waiting("g-2", "g"))
    assert not scene.are_expected()


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (a_group("new", gang=1), True),
        (a_group("new"), False),  # without a minimum it counts for its parent as it is
        (a_group("new", gang=1, composite=True), True),
        (a_group("new", composite=True), False),
        (a_group("late", gang=1), False),  # its pod was there before
    ],
    ids=["gang", "basic", "composite", "basic composite", "with a member"],
)
def test_a_gang_without_members_is(group, expected):
    """It can only be admitted with its members, which are still to come."""
    scene = Scene()
    scene.cluster.add(a_pod("early", "late", schedulingGates=[{"name": GATE}]))
    scene.before = scene.cluster.seen
    scene.cluster.add(group)
    assert scene.are_expected() is expected


def test_a_parent_that_comes_after_its_groups_is_until_enough_of_them_have_members():
    """The resources are watched one beside the other, so it may be seen last."""
    scene = Scene()
    scene.cluster.add(
        *(a_group(f"row-{n}", gang=1, parent="top") for n in range(2)), a_waiting("a", "row-0")
    )
    scene.before = scene.cluster.seen
    scene.cluster.add(a_group("top", gang=2, composite=True))
    assert scene.are_expected()
    scene.cluster.delete_group("top")
    scene.cluster.add(a_waiting("b", "row-1"))
    scene.before = scene.cluster.seen
    scene.cluster.add(a_group("top", gang=2, composite=True))
    assert not scene.are_expected()


def test_of_known_groups_only_the_status_is():
    """A condition that was written; not a group that changes or goes, nor one that comes with a member."""
    scene = Scene()
    scene.cluster.change_group(
        "g", conditions=(("PodGroupScheduled", "True", "Scheduled", ""),), resource_version="9"
    )
    assert scene.are_expected()
    scene.cluster.change_group("g", minimum=1)
    assert not scene.are_expected()
    for change in (
        lambda cluster: cluster.add(a_group("new", gang=1), a_pod("new-0", "new")),
        lambda cluster: cluster.delete_group("g"),
    ):
        scene = Scene()
        change(scene.cluster)
        assert not scene.are_expected()


def test_nodes_are_not():
    """A node that is cordoned, and one that comes."""
    cordoned, came = Scene(), Scene()
    cordoned.cluster.change_node("n0", unschedulable=True)
    came.cluster.add(a_node("n2", gpu=4))
    assert not cordoned.are_expected()
    assert not came.are_expected()


async def admit_and_bind(stage: Stage) -> None:
    """Run the loop until the gang is admitted; then its members are bound."""
    await stage.lead()
    stage.start(stage.control_loop.run())
    await eventually(lambda: stage.event_data(GangAdmitted), "the admission")
    for uid, held in stage.root("g").reservations.items():
        pod = stage.cluster.seen.pods[uid]
        stage.cluster.change_pod(pod.name, node=held.node, plan=held.plan)


async def test_the_loop_waits_for_more_of_them_but_not_with_anything_else(monkeypatch):
    """Members that are bound wait for the next pass; a node that comes, for which a gang may wait, takes them along."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    monkeypatch.setattr(control_loop, "EXPECTED_CHANGES_MS", NEVER_S * 1000)
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await admit_and_bind(stage)
        for _ in range(50):
            await asyncio.sleep(0)
        await eventually(lambda: stage.barriers.wakeup.waiting, "the loop to wait")
        assert stage.event_data(GangScheduled) == []
        stage.cluster.add(a_node("n1", gpu=2))
        await eventually(lambda: stage.event_data(GangScheduled), "the pass")


async def test_they_do_not_wait_for_ever(monkeypatch):
    """Without any other change a pass follows."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await admit_and_bind(stage)
        await eventually(lambda: stage.event_data(GangScheduled), "the pass")
