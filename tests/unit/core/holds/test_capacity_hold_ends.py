"""Each reason for which a capacity hold ends, from the state that it needs and from nothing else."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.admit.verdict_events import decide_verdict
from extender.core.holds.hold_planning import decide_hold_ends
from extender.core.log.each_gang import EachGang
from extender.core.log.events import CapacityHoldReleased
from extender.core.model.cluster_view import without_node
from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.planner.planning import plan
from extender.core.reconcile.drift import ReconcileContext
from tests.support.service.fakes import forest_of
from tests.support.service.manifest_builders import GPU, a_node, a_pod
from tests.unit.core.holds.test_hold_planning import Simulation


def held(pods=2, **tree) -> Simulation:
    """Return a cluster in which both nodes are busy and held for the gang `large`."""
    simulation = Simulation(*(a_node(name, gpu=2) for name in ("n0", "n1")))
    for name in ("n0", "n1"):
        simulation.cluster.add(a_pod(f"job-{name}", node=name, requests={GPU: 2}, namespace="jobs"))
    simulation.add("large", pods, gpu=2, **tree)
    for _ in range(12):
        simulation.one_pass()
    (hold,) = simulation.state.capacity_holds.values()
    assert {pod.node for pod in hold.pods} == {"n0", "n1"}
    return simulation


def ends(simulation, *, enabled=True, after_us=0) -> list[CapacityHoldReleased]:
    forest = forest_of(simulation.view)
    now = ReconcileContext(actor="test", cause="", now_us=simulation.now_us + after_us)
    drafts = decide_hold_ends(simulation.view, simulation.state, forest, now, enabled=enabled)
    return [draft.data for draft in drafts]


def test_it_stays_while_nothing_changes():
    """Also when a part of the capacity is free already, and to the last microsecond of its time."""
    simulation = held()
    (hold,) = simulation.state.capacity_holds.values()
    simulation.cluster.delete_pod("jobs/job-n0")
    assert ends(simulation) == []
    left_us = hold.until_us - simulation.now_us
    assert ends(simulation, after_us=left_us - 1) == []
    (ended,) = ends(simulation, after_us=left_us)
    assert (ended.reason, ended.hold) == ("expired", hold.hold)


def test_it_ends_when_holds_are_switched_off():
    (ended,) = ends(held(), enabled=False)
    assert ended.reason == "disabled"


def remove(simulation):
    simulation.remove("large")


def end_root(simulation):
    simulation.cluster.change_group("large", deleting=True)


def raise_priority(simulation):
    for pod in ("large-0", "large-1"):
        simulation.cluster.change_pod(pod, priority=7)
    simulation.cluster.change_group("large", priority=7)


def lose_member(simulation):
    simulation.cluster.delete_pod("large-1")


def ask_for_less(simulation):
    pod = next(p for p in simulation.view.pods.values() if p.name == "large-0")
    shape = msgspec.structs.replace(pod.shape, requests=((GPU, 1),))
    simulation.cluster.change_pod("large-0", shape=shape)


def bind_elsewhere(simulation):
    simulation.cluster.add(a_node("n2", gpu=2))
    simulation.cluster.change_pod("large-0", node=NodeName("n2"))


def lose_node(simulation):
    simulation.cluster.seen = without_node(simulation.view, NodeName("n1"))


def cordon(simulation):
    simulation.cluster.change_node("n1", unschedulable=True)


def taint(simulation):
    simulation.cluster.change_node("n1", taints=(Taint(key="broken", effect="NoSchedule"),))


def stay(simulation):
    simulation.cluster.add(a_pod("static", node="n0", requests={GPU: 1}, namespace="kube-system"))


def stay_where_it_is(simulation):
    """A pod that stays, and leaves enough: no reason to end."""
    simulation.cluster.add(
        a_pod("small", node="n0", requests={"cpu": "1m"}, namespace="kube-system")
    )


@pytest.mark.parametrize(
    ("change", "reason", "names"),
    [
        (remove, "deleted", "root group"),
        (end_root, "deleted", "root group"),
        (raise_priority, "changed", "priority is 7"),
        (lose_member, "changed", "1 of 2 pods"),
        (ask_for_less, "changed", "1 of 2 pods"),
        (bind_elsewhere, "changed", "1 of 2 pods"),
        (lose_node, "node-lost", "n1"),
        (cordon, "node-lost", "n1 was cordoned"),
        (taint, "node-lost", "n1"),
        (stay, "superseded", "1 node"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_it_ends_with_a_reason(change, reason, names):
    simulation = held()
    change(simulation)
    (ended,) = ends(simulation)
    assert ended.reason == reason
    assert names in ended.message


def test_a_pod_that_stays_and_leaves_enough_ends_nothing():
    simulation = held()
    stay_where_it_is(simulation)
    assert ends(simulation) == []


def test_a_reservation_of_higher_priority_there_ends_it():
    """One of the same priority does not: it is kept off before."""
    simulation = held()
    for name in ("n0", "n1"):
        simulation.cluster.delete_pod(f"jobs/job-{name}")
    simulation.add("first", 2, gpu=2, priority=9, namespace="other")
    tree = simulation.tree("first")
    _, request, _ = simulation.request(tree)
    verdict = plan(msgspec.structs.replace(request, explain=False))
    simulation.fold(decide_verdict(simulation.state, tree, request, verdict, simulation.recipe()))
    assert simulation.root("first").reservations
    (ended,) = ends(simulation)
    assert ended.reason == "superseded"
    assert "2 nodes" in ended.message


def test_a_gang_that_is_left_out_keeps_its_hold():
    """The caller attempts each gang; nothing is recorded of one whose work was not done."""
    simulation = held()
    forest = forest_of(simulation.view)
    names = []

    def attempt(name, work):
        names.append(name)
        return False

    gangs = EachGang(attempt)
    now = ReconcileContext(actor="test", cause="", now_us=simulation.now_us, gangs=gangs)
    drafts = decide_hold_ends(simulation.view, simulation.state, forest, now, enabled=False)
    (hold,) = simulation.state.capacity_holds.values()
    assert (drafts, gangs.left_out) == ([], {hold.gang_uid})
    assert names == ["capacity hold of default/large"]
