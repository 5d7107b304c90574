"""A higher-priority tree comes during a preemption: it goes elsewhere, or takes the claim over; no eviction is in vain."""

from __future__ import annotations

import asyncio

import pytest

from extender.core.log.events import (
    GangUnschedulable,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    ReservationReleased,
    VictimGone,
)
from extender.core.log.reservation_state import EVICTION_MEMORY_US
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.manifest_builders import a_group, a_node, a_pod
from tests.unit.control.actuators.test_evictor import ONE, evicted, lows, preemptor_tree, runs
from tests.unit.control.admission.test_preemption_policy import leading, settled

AGAIN_S = EVICTION_MEMORY_US // 1_000_000


async def making_capacity(*more):
    """Let `hi`, which runs in one zone only, evict `low` from n0 and n1: both are asked to go, none is gone."""
    nodes = [a_node(f"n{n}", {"zone": "a"}, gpu=1) for n in range(2)]
    hi, *members = preemptor_tree()
    for pod in members:
        pod["spec"]["nodeSelector"] = {"zone": "a"}
    stage = await leading(*nodes, *lows("n0", "n1"), hi, *members, *more)
    await settled(stage)
    assert sorted(evicted(stage)) == ["default/low-0", "default/low-1"]
    assert len(stage.event_data(PreemptionPlanned)) == 1
    return stage


def gone(stage, *names):
    for name in names:
        stage.cluster.delete_pod(name)


def later(stage, seconds):
    stage.clock.advance(seconds)
    stage.leader.lease.renew_from(stage.clock.ms)


async def test_who_fits_elsewhere_goes_elsewhere():
    """Capacity comes free beside that which is made: the higher tree takes it, and nothing is lost."""
    vip = a_pod("vip", node="n2", requests=ONE, priority=50)
    async with await making_capacity(a_node("n2", gpu=1), vip) as stage:
        gone(stage, "low-0", "vip")
        await settled(stage, 3)
        stage.cluster.add(*preemptor_tree(1, "over", priority=20))
        await settled(stage, 3)
        assert stage.where("over") == {"over-0": "n2"}
        gone(stage, "low-1")
        await settled(stage, 3)
        await runs(stage)
        await settled(stage, 2)
        assert len(stage.event_data(PreemptionCompleted)) == 1
        assert not stage.event_data(PreemptionCancelled)


@pytest.mark.parametrize("went", [(), ("low-0",), ("low-0", "low-1")], ids=["0", "1", "2"])
async def test_a_higher_tree_takes_the_capacity_over_and_no_more_victims_are_chosen(went):
    """However far it got: one append has both, the deletions are those of before, and the heir completes."""
    async with await making_capacity() as stage:
        gone(stage, *went)
        stage.cluster.add(*preemptor_tree(2, "over", priority=20))
        await settled(stage)
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.taken_over_by) == ("taken-over", "PodGroup/default/over")
        assert end.taken_over_by_uid == stage.cluster.group("over").uid
        assert end.units_spared == ()
        first, heir = stage.event_data(PreemptionPlanned)
        assert [s.gang for s in heir.superseded] == ["default/hi"]
        assert heir.superseded[0].plan == first.preemption
        assert {p.pod for p in heir.superseded[0].pods} == {"default/hi-0", "default/hi-1"}
        names = stage.names()
        assert names[names.index("PreemptionCancelled") + 1] == "PreemptionPlanned"
        gone(stage, *({"low-0", "low-1"} - set(went)))
        await settled(stage, 3)
        assert stage.where("over") == {"over-0": "n0", "over-1": "n1"}
        assert not stage.where("hi")
        await asyncio.gather(*(stage.bind(f"over-{n}") for n in range(2)))
        await settled(stage, 2)
        (done,) = stage.event_data(PreemptionCompleted)
        assert done.preemption == heir.preemption
        assert len(stage.cluster.did("evict")) == 2
        encoded = await stage.inputs.load(heir.input_digest)
        (event,) = (e for e in stage.events() if e.data == heir)
        assert replay_decision(event.position, heir, encoded).same


async def test_a_domain_is_emptied_and_no_other_gang_comes_into_it_meanwhile():
    """D20: `low` has one node of the zone and `hi` needs the zone alone; `late` would fit on the other node until `hi` is there."""
    nodes = [a_node(f"n{n}", {"zone": "a"}, gpu=1) for n in range(2)]
    hi, *members = preemptor_tree(1)
    hi["spec"]["schedulingConstraints"] = {"exclusive": {"key": "zone", "scope": "Cluster"}}
    async with await leading(*nodes, *lows("n0"), hi, *members) as stage:
        await settled(stage)
        assert evicted(stage) == ["default/low-0"]
        (planned,) = stage.event_data(PreemptionPlanned)
        stage.cluster.add(*preemptor_tree(1, "late", priority=5))
        await settled(stage, 3)
        gone(stage, "low-0")
        await settled(stage, 3)
        assert len(stage.where("hi")) == 1
        assert not stage.where("late")
        assert len(stage.event_data(PreemptionPlanned)) == 1
        encoded = await stage.inputs.load(planned.input_digest)
        (event,) = (e for e in stage.events() if e.data == planned)
        assert replay_decision(event.position, planned, encoded).same


async def test_what_was_evicted_once_is_left_alone_when_it_comes_back():
    """`hi` lost its capacity; `low` runs elsewhere: `hi` spares it, with that reason, and evicts it ten minutes later."""
    vip = a_pod("vip", node="n2", requests=ONE, priority=50)
    away = a_pod("away", node="n3", requests=ONE, priority=50)
    more = [a_node(f"n{n}", {"zone": "a"}, gpu=1) for n in (2, 3)]
    async with await making_capacity(*more, vip, away) as stage:
        stage.cluster.add(*preemptor_tree(2, "over", priority=20))
        await settled(stage)
        gone(stage, "low-0", "low-1")
        stage.cluster.delete_group("low")
        await settled(stage, 3)
        await asyncio.gather(*(stage.bind(f"over-{n}") for n in range(2)))
        await settled(stage, 2)
        again = a_group("low", gang=1, whole=True, priority=0)
        again["metadata"]["uid"] = "another"
        stage.cluster.add(again, a_pod("low-9", "low", requests=ONE, priority=0))
        gone(stage, "vip")
        await settled(stage, 3)
        assert stage.where("low") == {"low-9": "n2"}
        await stage.bind("low-9")
        gone(stage, "away")
        await settled(stage, 2)
        later(stage, 6)
        await settled(stage)
        assert len(stage.event_data(PreemptionPlanned)) == 2
        considered = [f.preemption_notes for f in stage.event_data(GangUnschedulable)][-1]
        assert any("left alone" in text and "PodGroup/default/low" in text for text in considered)
        later(stage, AGAIN_S)
        await settled(stage)
        assert len(stage.event_data(PreemptionPlanned)) == 3
        assert "default/low-9" in evicted(stage)


async def test_a_reservation_that_was_evicted_for_is_taken_over_by_a_record():
    """`hi` was admitted and does not run yet: who takes its reservations answers for its victims as well."""
    async with await making_capacity() as stage:
        gone(stage, "low-0", "low-1")
        await settled(stage, 3)
        assert len(stage.where("hi")) == 2
        stage.cluster.add(*preemptor_tree(2, "over", priority=20))
        await settled(stage, 3)
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.taken_over_by) == ("taken-over", "PodGroup/default/over")
        (released,) = stage.event_data(ReservationReleased)
        assert (released.reason, len(released.pods)) == ("superseded", 2)
        assert set(stage.where("over").values()) == {"n0", "n1"}


async def test_an_ordinary_pod_passes_where_capacity_is_made_only_if_it_has_nowhere_else_to_go():
    """Filter keeps it away from the capacity while another node is offered; alone it passes, and the loss of the claim is recorded."""
    async with await making_capacity(a_node("n2", gpu=1)) as stage:
        gone(stage, "low-0", "low-1")
        pod = a_pod("alone", requests=ONE, priority=20)
        stage.cluster.add(pod)
        known = stage.cluster.pod("alone")
        before = stage.extender_service.filter(known, ["n0", "n2"])
        assert before.passed == ("n2",)
        assert "freed for one" in before.reason
        assert stage.extender_service.filter(known, ["n0"]).passed == ("n0",)
        stage.cluster.change_pod("alone", node="n0")
        await settled(stage)
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.taken_over_by, end.taken_over_nodes) == (
            "taken-over",
            "Pod/default/alone",
            ("n0",),
        )
        assert end.taken_over_by_uid == known.uid
        assert not stage.where("hi"), "n2 is in another zone"
        assert stage.root("hi").last_decision.outcome != "preempting"


async def test_the_preemption_of_an_evicted_preemptor_is_cancelled():
    """`hi` runs and makes capacity for an extra; the higher tree takes `hi` whole: the unit that was not begun is spared."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    low = a_pod("low", node="n1", requests=ONE, priority=0)
    group, first, second = preemptor_tree()
    group["spec"]["schedulingPolicy"] = {"gang": {"minCount": 1}}
    group["spec"]["disruptionMode"] = a_group("x", whole=True)["spec"]["disruptionMode"]
    async with await leading(*nodes, low, group, first, second) as stage:
        await settled(stage)
        (bound,) = stage.where("hi")
        await stage.bind(bound)
        await settled(stage)
        assert len(stage.event_data(PreemptionPlanned)) == 1, "for the extra"
        stage.cluster.add(*preemptor_tree(2, "over", priority=20))
        await settled(stage)
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.taken_over_by) == ("taken-over", "PodGroup/default/over")
        assert "evicts it" in end.message
        heir = stage.event_data(PreemptionPlanned)[-1]
        assert "PodGroup/default/hi" in {u.name for u in heir.victims}


async def test_what_is_left_of_the_capacity_stays_held_while_victims_go():
    """`over` takes one of two nodes: until `low` has gone the other is kept for `hi` against those below it."""
    async with await making_capacity() as stage:
        stage.cluster.add(*preemptor_tree(1, "over", priority=20))
        await settled(stage)
        (end,) = stage.event_data(PreemptionCancelled)
        (lost,) = end.taken_over_nodes
        (left,) = {"n0", "n1"} - {lost}
        gone(stage, "low-0" if left == "n0" else "low-1")
        await settled(stage, 2)
        stage.cluster.add(a_pod("below", requests=ONE, priority=5))
        assert stage.extender_service.filter(stage.cluster.pod("below"), [left]).passed == ()
        gone(stage, "low-1" if left == "n0" else "low-0")
        await settled(stage, 2)
        pending = stage.leader.committed.preemptions.values()
        assert not any(preemption.claims for preemption in pending)
        assert [f.preemption for f in stage.event_data(VictimGone)].count(
            stage.event_data(PreemptionPlanned)[0].preemption
        ) == 2
