"""What a pass is not needed for at once: changes that carry out what is recorded."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.loop import control_loop
from extender.control.loop.expected_changes import are_expected
from extender.core.decisions.admit.plan_request import GATE
from extender.core.log.events import GangAdmitted, GangScheduled
from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName
from tests.support.service.fakes import FakeCluster, Stage, until
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.core.decisions.reconcile.test_cluster_reconciliation import admitted

NEVER_S = 3600.0


class Scene:
    """A gang of two, admitted, with an ordinary pod and another gang that is not."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(
            a_node("n0", gpu=4),
            a_node("n1", gpu=4),
            *a_gang("g", pods=2, schedulingGates=[{"name": GATE}, {"name": "other/gate"}]),
            *a_gang("h", pods=2),
            a_pod("alone", requests={GPU: 1}),
        )
        self.state = admitted(EMPTY, self.cluster, "g", {"g-0": "n0", "g-1": "n1"})
        self.before = self.cluster.seen

    def are_expected(self) -> bool:
        return are_expected(self.before, self.cluster.seen, self.state)


EXPECTED = {
    "nothing": {},
    "nominated": {"nominated": NodeName("n0")},
    "its gate removed": {"gates": ("other/gate",), "nominated": NodeName("n0")},
    "bound": {"node": NodeName("n0"), "assigned_us": 5, "gates": (), "plan": "plan-g"},
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
        ("h-0", {"nominated": NodeName("n0")}),
        ("alone", {"node": NodeName("n0")}),
    ],
)
def test_anything_else_of_a_pod_is_not(pod, change):
    """Another node, another gate, its end, a refusal, and whatever happens to pods without a reservation."""
    scene = Scene()
    scene.cluster.change_pod(pod, **change)
    assert not scene.are_expected()


def test_pods_that_come_and_go_are_not():
    """Also members with a reservation."""
    came, went = Scene(), Scene()
    came.cluster.add(a_pod("h-2", "h", requests={GPU: 1}))
    went.cluster.delete_pod("g-0")
    assert not came.are_expected()
    assert not went.are_expected()


def test_of_groups_only_the_status_is():
    """A condition that was written; not a group that comes, changes or goes."""
    scene = Scene()
    scene.cluster.change_group(
        "g", conditions=(("PodGroupScheduled", "True", "Scheduled", ""),), resource_version="9"
    )
    assert scene.are_expected()
    scene.cluster.change_group("g", minimum=1)
    assert not scene.are_expected()
    for change in (
        lambda cluster: cluster.add(a_group("new", gang=1)),
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
    await until(lambda: stage.event_data(GangAdmitted), "the admission", 30)
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
        await until(lambda: stage.barriers.wakeup.waiting, "the loop to wait", 30)
        assert stage.event_data(GangScheduled) == []
        stage.cluster.add(a_node("n1", gpu=2))
        await until(lambda: stage.event_data(GangScheduled), "the pass", 30)


async def test_they_do_not_wait_for_ever(monkeypatch):
    """Without any other change a pass follows."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await admit_and_bind(stage)
        await until(lambda: stage.event_data(GangScheduled), "the pass", 30)
