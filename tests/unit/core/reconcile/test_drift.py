"""Each kind of difference between cluster and log is recorded once, and the state follows by events."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.core.log.events import DriftDetected, MemberTerminated, PodBound
from extender.core.model.cluster_view import with_node
from extender.core.model.ids import NodeName, PlanId
from extender.core.reconcile.drift import NominationDrift
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.service.manifest_builders import GPU, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import Scene, kinds
from tests.unit.core.support import ME


def drift(events):
    return [(f.kind, f.object) for f in events if isinstance(f, DriftDetected)]


def at_rest(scene):
    return scene.decide() == []


def test_bound_on_another_node_than_reserved():
    """The member runs where it runs; its capacity elsewhere is free."""
    scene = Scene(pods=2)
    scene.bind("g-0", node="n1")
    events = scene.decide()
    assert drift(events) == [("bound-elsewhere", "Pod/default/g-0")]
    assert {m.node for m in scene.root.bound.values()} == {"n1"}
    assert set(scene.state.claims_on) == {"n1"}
    assert at_rest(scene)


@pytest.mark.parametrize("reserved", [True, False], ids=["reserved", "not reserved"])
def test_bound_by_a_plan_that_holds_nothing_for_it(reserved):
    """The annotation of the Binding is not that of the reservation, or there is none at all."""
    scene = Scene(pods=2)
    name = "g-0"
    if not reserved:
        scene.cluster.add(a_pod("g-2", "g", requests={GPU: 1}))
        name = "g-2"
    scene.cluster.change_pod(name, node=NodeName("n0"), phase="Running", plan="strange")
    events = scene.decide()
    assert drift(events) == [("bound-by-unknown-plan", f"Pod/default/{name}")]
    (bound,) = [f for f in events if isinstance(f, PodBound)]
    assert bound.plan == ("plan-g" if reserved else "strange")
    assert at_rest(scene)


def test_bound_by_our_own_plan_is_no_drift():
    """The annotation is the one of the reservation, or kube-scheduler bound without any."""
    scene = Scene(pods=2)
    scene.bind("g-0")
    scene.cluster.change_pod("g-0", plan="plan-g")
    scene.bind("g-1")
    assert drift(scene.decide()) == []


def test_the_log_has_it_on_another_node():
    """Lost there and bound here, in this order; it counts once."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.change_pod("g-0", node=NodeName("n1"))
    events = scene.decide()
    assert kinds(events) == ["MemberTerminated", "PodBound", "DriftDetected"]
    assert drift(events) == [("bound-elsewhere", "Pod/default/g-0")]
    assert (events[0].node, events[1].node) == ("n0", "n1")
    assert len(scene.root.bound) == 2
    assert at_rest(scene)


def test_the_log_has_it_bound_and_the_cluster_has_not():
    """An API server that came back from an older copy: the member is lost and wants capacity again."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.change_pod("g-0", node=None, phase="Pending")
    events = scene.decide()
    assert kinds(events) == ["MemberTerminated", "DriftDetected"]
    assert drift(events) == [("not-bound", "Pod/default/g-0")]
    assert [m.pod for m in scene.root.bound.values()] == ["default/g-1"]
    assert at_rest(scene)


def test_elsewhere_on_a_node_that_is_gone_is_lost_once():
    """The node the log knows has vanished as well: one MemberTerminated, not two."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.change_pod("g-0", node=NodeName("n1"))
    scene.cluster.delete_node("n0")
    events = scene.decide()
    assert [f.pod for f in events if isinstance(f, MemberTerminated)] == ["default/g-0"]
    assert at_rest(scene)


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
def test_a_node_that_comes_back_brings_its_members_along(restarted):
    """The Node of a kubelet that lives is deleted: lost, then bound again under its plan; no drift."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    node = scene.cluster.seen.nodes[NodeName("n0")]
    scene.cluster.delete_node("n0")
    assert kinds(scene.decide()) == ["MemberTerminated"]
    assert at_rest(scene)
    if restarted:
        scene.state = decode_state(encode_state(scene.state))
    scene.cluster.seen = with_node(scene.cluster.seen, node)
    (back,) = scene.decide()
    assert isinstance(back, PodBound)
    assert (back.pod, back.node, back.plan) == ("default/g-0", "n0", "plan-g")
    assert not scene.root.lost_with_node
    assert at_rest(scene)


def test_who_comes_back_on_another_node_is_drift():
    """Its node is gone for good; no plan has it on the other node."""
    scene = Scene(pods=2)
    scene.bind("g-0", "g-1")
    scene.decide()
    scene.cluster.delete_node("n0")
    scene.decide()
    scene.cluster.change_pod("g-0", node=NodeName("n1"))
    assert drift(scene.decide()) == [("bound-outside-admission", "Pod/default/g-0")]


def test_a_nomination_that_was_shown_is_missed_once():
    """Before it was shown it is on its way; after that a missing nomination was changed by another client."""
    scene, watch = Scene(pods=2), NominationDrift()

    def look(nominated):
        scene.cluster.change_pod("g-0", nominated=nominated and NodeName(nominated))
        return drift([d.data for d in watch.look(scene.cluster.seen, scene.state, ME)])

    assert look("n1") == [], "of an earlier plan, or on its way"
    assert look("n0") == []
    assert look("n1") == [("nomination-altered", "Pod/default/g-0")]
    assert look("n1") == []
    assert look("n0") == []
    assert look(None) == [], "kube-scheduler erases it after a failed bind"


def test_a_nomination_of_an_earlier_plan_is_not_missed():
    """Planned again onto another node: what was shown belonged to the reservation before."""
    scene, watch = Scene(pods=2), NominationDrift()
    scene.cluster.change_pod("g-0", nominated=NodeName("n0"))
    watch.look(scene.cluster.seen, scene.state, ME)
    uid = scene.cluster.pod("g-0").uid
    moved = scene.root.reservations[uid]
    again = msgspec.structs.replace(moved, plan=PlanId("later"), node=NodeName("n1"))
    held = scene.state.claims_on.delete(NodeName("n0")).set(NodeName("n1"), Map({again.key: again}))
    state = msgspec.structs.replace(scene.state, claims_on=held)
    assert watch.look(scene.cluster.seen, state, ME) == []
    scene.bind("g-0")
    assert watch.look(scene.cluster.seen, scene.state, ME) == []
