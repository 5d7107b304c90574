"""A tree of higher priority on a full cluster: the service chooses, evicts and admits, and records each step."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from extender.control.admission.preemption_policy import PreemptionPolicy
from extender.control.binding.bind_barrier import UNSURE_MS
from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangUnschedulable,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    ReservationReleased,
    VictimGone,
)
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import PlanId
from extender.core.planner.plan_types import Refusal, SearchEffort
from extender.core.planner.preempt.victim_search import NoPreemption
from extender.core.verbs.preempt_verb import NodeCandidate
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_evictor import ONE, lows, preemptor_tree, runs
from tests.unit.core.support import folded

DONE = SearchEffort(nodes=1, exhausted=True)


async def leading(*objects, **rest):
    stage = Stage(*objects, **rest)
    await stage.lead()
    stage.start(stage.parts.evictor.run())
    return stage


async def settled(stage, passes=12):
    """Run passes with all that is beside them, until the log rests."""
    for _ in range(passes):
        await stage.one_pass()
        for _ in range(40):
            await _turn()


async def _turn():
    await asyncio.sleep(0)


async def test_the_cheapest_units_go_and_the_tree_runs():
    """Two racks full of low priority: the rack with the cheaper unit is cleared, the other is not touched."""
    nodes = [a_node(f"{rack}{n}", {RACK: rack}, gpu=1) for rack in ("a", "b") for n in range(2)]
    dear = [a_pod(f"dear-{n}", node=f"a{n}", requests=ONE, priority=5) for n in range(2)]
    hi, *members = preemptor_tree()
    hi["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    async with await leading(*nodes, *dear, *lows("b0", "b1"), hi, *members) as stage:
        stage.cluster.obeys = True
        await settled(stage)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [u.name for u in plan.victims] == ["PodGroup/default/low"]
        assert {p.group for u in plan.victims for p in u.pods} == {"low"}
        assert plan.cost["highest"] == 0
        assert plan.cost["units"] == 1
        assert any("Pod/default/dear-0" in a.units for a in plan.alternatives)
        assert plan.exhausted
        assert {a.node for a in plan.assignments} == {"b0", "b1"}
        assert {f.pod for f in stage.event_data(VictimGone)} == {"default/low-0", "default/low-1"}
        await runs(stage)
        assert len(stage.event_data(PreemptionCompleted)) == 1
        assert not stage.event_data(PreemptionCancelled)
        stored = await stage.inputs.load(plan.input_digest)
        assert stored is not None, "the decision can be replayed"


@pytest.mark.parametrize("off", ["setting", "policy", "equal"])
async def test_who_may_not_evict_waits(off):
    """preemption=False, preemptionPolicy Never, and equal priority never evict; the tree stays refused."""
    policy = {"preemptionPolicy": "Never"} if off == "policy" else {}
    hi, *members = preemptor_tree(priority=0 if off == "equal" else 10)
    for pod in members:
        pod["spec"] |= policy
    setting = {"preemption": False} if off == "setting" else {}
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    async with await leading(*nodes, *lows("n0", "n1"), hi, *members, **setting) as stage:
        await settled(stage)
        assert not stage.event_data(PreemptionPlanned)
        assert stage.root("hi").phase == "unschedulable"


async def test_a_refusal_has_the_reason_why_preemption_does_not_help():
    """The proof stands beside the reasons of the refusal, in the log and on the condition."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    vip = a_pod("vip", node="n1", requests=ONE, priority=50)
    low = a_pod("low", node="n0", requests=ONE, priority=1)
    async with await leading(*nodes, vip, low, *preemptor_tree()) as stage:
        await settled(stage)
        assert not stage.event_data(PreemptionPlanned)
        (refused,) = stage.event_data(GangUnschedulable)
        assert "yields 1 of 2" in refused.preemption_notes[0]
        assert refused.preemption_notes[1].startswith(
            "after that eviction: PodGroup default/hi needs 2 pods"
        )
        assert any("yields 1 of 2" in text for text in stage.root("hi").last_decision.reasons)


async def test_unbound_reservations_give_way_before_any_running_pod():
    """A lower tree that holds capacity and runs nowhere is superseded in the same append, and no pod is evicted."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1), a_node("n2", gpu=1)]
    running = a_pod("runs", node="n2", requests=ONE, priority=1)
    async with await leading(*nodes, running, *a_gang("early", pods=2, requests=ONE)) as stage:
        await settled(stage, 2)
        assert stage.where("early")
        stage.cluster.add(*preemptor_tree())
        await settled(stage)
        (released,) = stage.event_data(ReservationReleased)
        assert (released.reason, len(released.pods)) == ("superseded", 2)
        assert "PodGroup default/hi of priority 10" in released.message.replace(
            "/default/", " default/"
        )
        (plan,) = stage.event_data(PreemptionPlanned)
        assert not plan.victims
        assert [s.gang for s in plan.superseded] == ["default/early"]
        names = stage.names()
        assert names.index("ReservationReleased") + 1 == names.index("PreemptionPlanned")
        assert stage.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
        assert not stage.event_data(VictimGone)


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_gang_is_evicted_when_it_is_known_which_of_its_members_are_bound(carried_out):
    """The Binding of one member got no answer. Its reservation stays until the view shows the pod, or 15 s after the last try; no search spins."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    async with await leading(*nodes, *a_gang("low", pods=2, requests=ONE)) as stage:
        await settled(stage, 2)
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable("503") if (verb, name) == ("bind", "default/low-0") else None
        )
        calls = [stage.bind("low-0"), stage.bind("low-1")]
        assert await calls[1] == ""
        uid, where = stage.ref("low-0").uid, stage.where("low")["low-0"]
        await eventually(lambda: stage.barriers.maybe_bound() - stage.barriers.posted() == {uid})
        stage.cluster.add(*preemptor_tree())
        await settled(stage)
        assert not stage.event_data(PreemptionPlanned, ReservationReleased, GangUnschedulable)
        woken = stage.barriers.wakeup.revision
        await settled(stage)
        assert stage.barriers.wakeup.revision == woken
        if carried_out:
            stage.cluster.change_pod("low-0", node=where, phase="Running")
        else:
            # too late for another try as well, which would keep the reservation for 15 s more
            over_ms = max(UNSURE_MS, stage.settings.bind_post_within_ms)
            stage.clock.advance(over_ms / 1000 + 0.001)
            stage.leader.lease.until_ms = stage.clock.monotonic_ms() + 60_000
        await settled(stage)
        (planned,) = stage.event_data(PreemptionPlanned)
        victims = {pod.pod for unit in planned.victims for pod in unit.pods}
        released = {p.pod for e in stage.event_data(ReservationReleased) for p in e.pods}
        assert victims | released == {"default/low-0", "default/low-1"}
        assert ("default/low-0" in released) == (not carried_out)
        await asyncio.wait(calls)


async def test_two_preemptors_do_not_share_one_capacity():
    """While victims of one tree go, an equal one does not count on their capacity: it takes others, or waits."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(4)]
    units = [*lows("n0", "n1"), *lows("n2", "n3", group="more")]
    async with await leading(
        *nodes, *units, *preemptor_tree(), *preemptor_tree(name="too")
    ) as stage:
        await settled(stage)
        plans = stage.event_data(PreemptionPlanned)
        taken = [{u.name for u in plan.victims} for plan in plans]
        assert len(taken) == 2
        assert taken[0].isdisjoint(taken[1])
        for name in ("low-0", "low-1", "more-0", "more-1"):
            stage.cluster.delete_pod(name)
        await settled(stage, 3)
        assert len(stage.event_data(GangAdmitted)) == 2
        assert not stage.event_data(PreemptionCancelled)


async def test_pods_that_terminate_already_are_waited_for():
    """Their capacity comes free by itself: only what is missing is evicted, and the tree waits for both."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    units = [*lows("n0"), a_pod("going", node="n1", requests=ONE, priority=50)]
    async with await leading(*nodes, *units, *preemptor_tree()) as stage:
        stage.cluster.change_pod("going", deleting=True)
        await settled(stage)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [p.pod for p in plan.already_terminating] == ["default/going"]
        assert [u.name for u in plan.victims] == ["PodGroup/default/low"]
        stage.cluster.delete_pod("low-0")
        await settled(stage, 3)
        assert not stage.event_data(PreemptionCancelled, GangAdmitted)
        stage.cluster.delete_pod("going")
        await settled(stage, 3)
        assert stage.where("hi") == {"hi-0": "n0", "hi-1": "n1"}


async def test_a_terminating_pod_that_does_not_go_is_not_waited_for_for_ever():
    """The plan counted on capacity that comes free by itself; when it does not, it is decided anew with what there is."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1), a_node("n2", gpu=1)]
    units = [*lows("n0"), a_pod("going", node="n1", requests=ONE, priority=50)]
    dear = a_pod("dear", node="n2", requests=ONE, priority=5)
    async with await leading(*nodes, *units, dear, *preemptor_tree()) as stage:
        stage.cluster.obeys = True
        stage.cluster.change_pod("going", deleting=True, deletes_us=stage.clock.now_us())
        await settled(stage)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [p.pod for p in plan.already_terminating] == ["default/going"]
        stage.later(11)
        await settled(stage, 3)
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.evicted) == ("capacity-lost", 1)
        assert "default/going is still there after its grace period" in end.message
        stage.later(6)
        await settled(stage)
        again = stage.event_data(PreemptionPlanned)[-1]
        assert [u.name for u in again.victims] == ["Pod/default/dear"]
        assert set(stage.where("hi").values()) == {"n0", "n2"}


async def test_an_evicted_unit_does_not_evict_its_evictor_and_is_not_taken_for_extras_again():
    """The gang that comes back under a new UID is lower: it waits; extras of `hi` spare it."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1), a_node("n2", gpu=1)]
    vip = a_pod("vip", node="n2", requests=ONE, priority=50)
    async with await leading(*nodes, vip, *lows("n0", "n1"), *preemptor_tree()) as stage:
        stage.cluster.obeys = True
        await settled(stage)
        await runs(stage)
        assert len(stage.event_data(PreemptionCompleted)) == 1
        stage.cluster.delete_group("low")
        again = a_group("low", gang=1, whole=True, priority=0)
        again["metadata"]["uid"] = "another"
        stage.cluster.add(again, a_pod("low-9", "low", requests=ONE, priority=0))
        await settled(stage)
        assert len(stage.event_data(PreemptionPlanned)) == 1
        stage.cluster.delete_pod("vip")
        await settled(stage, 3)
        assert stage.where("low") == {"low-9": "n2"}
        await stage.bind("low-9")
        await settled(stage, 2)
        stage.cluster.add(a_pod("hi-9", "hi", requests=ONE, priority=10))
        stage.later(6)
        await settled(stage)
        assert len(stage.event_data(PreemptionPlanned)) == 1, "its extras do not take it again"
        assert stage.cluster.pod("low-9").node == "n2"


@pytest.mark.parametrize("more", [False, True], ids=["alone", "beside one that fits nowhere"])
async def test_extras_may_preempt_what_they_did_not_before(more):
    """A satisfied tree asks for its further members, in a later pass (C.6).

    The answer about a later tree is not a reason of this one.
    """
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    low = a_pod("low", node="n1", requests=ONE, priority=0)
    hi, first, second = preemptor_tree()
    hi["spec"]["schedulingPolicy"] = {"gang": {"minCount": 1}}
    async with await leading(*nodes, low, hi, first, second) as stage:
        stage.cluster.obeys = True
        await settled(stage)
        assert not stage.event_data(PreemptionPlanned), "the minimum binds without preemption first"
        (bound,) = stage.where("hi")
        await stage.bind(bound)
        await settled(stage)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert len(plan.assignments) == 1
        (waits,) = stage.where("hi")
        if more:
            stage.cluster.add(a_pod("hi-2", "hi", requests=ONE, priority=10))
        await stage.bind(waits)
        await settled(stage, 3)
        assert len(stage.event_data(PreemptionCompleted)) == 1
        assert not stage.event_data(PreemptionCancelled)
        assert GPU in plan.shapes[0]


async def test_extras_of_a_started_gang_wait_until_its_minimum_is_bound_again():
    """A gang that lost its minimum does not preempt for more while the replacement only has a reservation (C.6, E-2)."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    low = a_pod("low", node="n1", requests=ONE, priority=0)
    hi, first, _ = preemptor_tree()
    hi["spec"]["schedulingPolicy"] = {"gang": {"minCount": 1}}
    async with await leading(*nodes, low, hi, first) as stage:
        stage.cluster.obeys = True
        await settled(stage)
        await stage.bind("hi-0")
        await settled(stage)
        assert stage.root("hi").phase == "scheduled"
        stage.cluster.delete_pod("hi-0")
        await settled(stage)
        again = [a_pod(f"hi-{n}", "hi", requests=ONE, priority=10) for n in (1, 2)]
        stage.cluster.add(*again)
        await settled(stage)
        assert not stage.event_data(PreemptionPlanned), "its minimum is reserved, not bound"
        (replaces,) = stage.where("hi")
        await stage.bind(replaces)
        await settled(stage)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [(a.node, a.extra) for a in plan.assignments] == [("n1", True)]


async def test_who_evicted_in_vain_waits_twice_as_long_each_time():
    """Capacity that others took as soon as it was made must not cost the next units at once."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    async with await leading(
        *nodes, *lows("n0", "n1"), *preemptor_tree(), preemption=False
    ) as stage:
        await stage.one_pass()
        trees = stage.parts.exchange.published.observation.forest.trees.values()
        tree = next(t for t in trees if t.root.key.name == "hi")
        asking, state = PreemptionPolicy(stage.clock, enabled=True), stage.leader.committed

        def planned_and(end):
            nonlocal state
            events = [planned(tree), end]
            state = folded(
                state,
                *((tree.root.uid, "default/hi", f) for f in events),
                at_us=stage.clock.now_us(),
            )

        def may():
            return asking.may_search(stage.cluster.seen, state, tree)

        lost = PreemptionCancelled(
            preemption=PlanId("p"),
            reason="capacity-lost",
            units_spared=(),
            units_in_progress=(),
            evicted=2,
        )
        assert may()
        for seconds in (5, 10, 20):
            planned_and(lost)
            stage.clock.advance(seconds - 1)
            assert not may()
            assert asking.searches_again_us(state) == {}, "no search began a pause"
            stage.clock.advance(1)
            assert may()
        planned_and(PreemptionCompleted(preemption=PlanId("p"), bound=2, evicted=2, duration_ms=1))
        planned_and(lost)
        stage.clock.advance(5)
        assert may(), "what was completed is no failure"
        for _ in range(100):
            planned_and(lost)
        stage.clock.advance(300)
        assert may(), "the back-off has a limit"


async def test_a_tree_that_is_refused_again_and_again_still_asks():
    """On a busy cluster something changes all the time: refusals do not put the next question off for ever."""
    async with await leading(
        a_node("n0", gpu=1), *lows("n0"), *preemptor_tree(), preemption=False
    ) as stage:
        await stage.one_pass()
        tree = next(
            t
            for t in stage.parts.exchange.published.observation.forest.trees.values()
            if t.root.key.name == "hi"
        )
        asking, state = PreemptionPolicy(stage.clock, enabled=True), stage.leader.committed
        refused = Refusal(
            outcome="impossible", status="Unschedulable", reasons=("no capacity",), search=DONE
        )
        for _ in range(5):
            asking.start_pause(state, tree.root.uid, refused)
            assert not asking.may_search(stage.cluster.seen, state, tree, complete=True)
            stage.clock.advance(1)
        assert asking.may_search(stage.cluster.seen, state, tree, complete=True)


async def test_a_tree_that_waited_for_members_asks_as_soon_as_it_is_complete():
    """The pause after a refusal is for trees that had a chance to ask; the last member may come a moment later."""
    async with await leading(
        a_node("n0", gpu=1), *lows("n0"), *preemptor_tree(), preemption=False
    ) as stage:
        await stage.one_pass()
        tree = next(
            t
            for t in stage.parts.exchange.published.observation.forest.trees.values()
            if t.root.key.name == "hi"
        )
        asking, state, view = (
            PreemptionPolicy(stage.clock, enabled=True),
            stage.leader.committed,
            stage.cluster.seen,
        )
        waits = Refusal(outcome="waiting", status="Wait", reasons=("1 of 2",), search=DONE)
        asking.start_pause(state, tree.root.uid, waits)
        assert not asking.may_search(view, state, tree), "it is not looked at again for nothing"
        assert asking.may_search(view, state, tree, complete=True)
        none = NoPreemption(cause="impossible", reasons=("no",), search=DONE)
        asking.answered(tree.root.uid, none, 1)
        assert not asking.may_search(view, state, tree, complete=True)


def planned(tree):
    """Return a plan without victims, on the node n0."""
    (pod, *_) = tree.pods
    assigned = AssignmentRecord(pod=pod.path, uid=pod.uid, group="hi", node="n0")
    return PreemptionPlanned(
        preemption=PlanId("p"), kind="PodGroup", priority=10, victims=(), cost={}, alternatives=(),
        shapes=({GPU: 1},), assignments=(assigned,),
    )  # fmt: skip


async def test_who_evicted_in_vain_waits_also_after_a_restart():
    """Killed right after capacity was lost, the service does not evict the next units at once when it is there again."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(4)]
    units = [*lows("n0", "n1"), *lows("n2", "n3", group="more")]
    stage = await leading(*nodes, *units, *preemptor_tree())
    async with stage:
        stage.cluster.obeys = True
        await stage.one_pass()
        await eventually(
            lambda: len(stage.cluster.did("evict")) == len(taken(stage)), "all are deleted"
        )
        # of the same priority, and bound by a scheduler without this extender
        others = (a_pod(f"other-{n}", node=n, requests=ONE, priority=10) for n in taken(stage))
        stage.cluster.add(*others)
        await stage.one_pass()
        assert [f.reason for f in stage.event_data(PreemptionCancelled)] == ["capacity-lost"]
        await stage.killed()
    stage.clock.advance(4)
    async with Stage(cluster=stage.cluster, database=stage.database, clock=stage.clock) as again:
        await again.lead()
        again.start(again.parts.evictor.run())
        await settled(again, 3)
        assert len(again.event_data(PreemptionPlanned)) == 1
        assert again.root("hi").phase == "unschedulable"
        again.clock.advance(5)  # from the refusal on, as for every tree
        await settled(again, 3)
        assert len(again.event_data(PreemptionPlanned)) == 2


def taken(stage):
    """Name the nodes on which victims of the first plan run."""
    plan = stage.event_data(PreemptionPlanned)[0]
    return [pod.node for unit in plan.victims for pod in unit.pods]


async def test_a_unit_goes_with_the_members_that_do_not_run_yet():
    """An extra that was admitted a moment before the gang is evicted does not come to run when the others are gone."""
    nodes = [a_node("n0", {"zone": "a"}, gpu=1), a_node("n1", gpu=1)]
    low = a_group("low", gang=1, whole=True, priority=0)
    first = a_pod("low-0", "low", node="n0", requests=ONE, priority=0)
    hi, member = preemptor_tree(pods=1)
    member["spec"]["nodeSelector"] = {"zone": "a"}
    async with await leading(*nodes, low, first) as stage:
        await settled(stage, 2)
        stage.cluster.add(a_pod("low-1", "low", requests=ONE, priority=0))
        await stage.one_pass()
        assert stage.where("low") == {"low-1": "n1"}
        stage.cluster.add(hi, member)
        await settled(stage, 3)
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [u.name for u in plan.victims] == ["PodGroup/default/low"]
        (released,) = stage.event_data(ReservationReleased)
        assert released.message == "its gang is evicted as a whole"
        assert await stage.bind("low-1", "n1"), "kube-scheduler is refused"
        await settled(stage, 3)
        assert not stage.where("low"), "nor is it planned again while the others go"
        stage.cluster.delete_pod("low-0")
        await settled(stage, 3)
        assert stage.where("hi") == {"hi-0": "n0"}


@pytest.mark.parametrize("binds", [False, True], ids=["held", "at bind"])
async def test_the_preempt_verb_takes_a_unit_with_the_members_that_do_not_run_yet(binds):
    """A lone pod takes a gang whole: what it holds beside its running members is given back in the same append.

    Not while one of them is being bound: then there is no victim, and kube-scheduler asks again.
    """
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    low = a_group("low", gang=1, whole=True, priority=0)
    first = a_pod("low-0", "low", node="n0", requests=ONE, priority=0)
    vip = a_pod("vip", requests=ONE, priority=100)
    async with await leading(*nodes, low, first) as stage:
        await settled(stage, 2)
        stage.cluster.add(a_pod("low-1", "low", requests=ONE, priority=0), vip)
        await stage.one_pass()
        assert stage.where("low") == {"low-1": "n1"}
        offered = [NodeCandidate(node="n0", victims=(stage.cluster.pod("low-0").uid,))]
        if binds:
            stage.cluster.go.clear()
            stage.bind("low-1")
            await eventually(stage.barriers.binding, "it is being bound")
            assert await stage.extender_service.preempt(stage.cluster.pod("vip"), offered) == ()
            assert not stage.event_data(PreemptionPlanned, ReservationReleased)
            stage.cluster.go.set()
            return
        (answer,) = await stage.extender_service.preempt(stage.cluster.pod("vip"), offered)
        assert answer.node == "n0"
        (released,) = stage.event_data(ReservationReleased)
        assert released.message == "its gang is evicted as a whole"
        assert [p.pod for p in released.pods] == ["default/low-1"]
        names = stage.names()
        assert names[names.index("ReservationReleased") + 1] == "PreemptionPlanned"
        assert await stage.bind("low-1", "n1"), "kube-scheduler is refused"
        await settled(stage, 3)
        assert not stage.where("low"), "nor is it planned again while the others go"


async def test_victims_of_a_pending_preemption_cost_nothing():
    """A unit that is evicted for one tree is taken for the next as well, before a cheaper one that could stay."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(3)]
    cheap = a_pod("cheap", node="n2", requests=ONE, priority=-5)
    first, member = preemptor_tree(1, "first")
    member["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n0"}
    async with Stage(*nodes, *lows("n0", "n1"), cheap, first, member) as stage:
        await stage.lead()
        await settled(stage)  # nothing is evicted yet, as where many have to go
        stage.cluster.add(*preemptor_tree(1, "second"))
        await settled(stage)
        stage.start(stage.parts.evictor.run())
        await settled(stage)
        one, other = stage.event_data(PreemptionPlanned)
        assert (
            [u.name for u in one.victims]
            == [u.name for u in other.victims]
            == ["PodGroup/default/low"]
        )
        for name in ("low-0", "low-1"):
            stage.cluster.delete_pod(name)
        await settled(stage)
        assert stage.where("first") == {"first-0": "n0"}
        assert stage.where("second") == {"second-0": "n1"}
        assert "cheap" not in [name for name, _ in stage.cluster.did("evict")]


async def refused_by_a_vip(stage):
    """Let `hi` be refused because `vip` runs on one of two nodes; return the refusal."""
    await settled(stage, 4)
    assert not stage.event_data(PreemptionPlanned)
    return stage.event_data(GangUnschedulable)[-1]


def two_nodes_with_a_vip():
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    vip = a_pod("vip", node="n1", requests=ONE, priority=50)
    low = a_pod("low", node="n0", requests=ONE, priority=1)
    return [*nodes, vip, low, *preemptor_tree()]


async def test_capacity_that_the_search_did_not_count_ends_the_pause():
    """Case preemption-refused-stale: what stood in the way is gone, and evicting `low` is enough; no clock runs meanwhile."""
    async with await leading(*two_nodes_with_a_vip()) as stage:
        await refused_by_a_vip(stage)
        at_ms = stage.clock.monotonic_ms()
        stage.cluster.delete_pod("vip")
        await settled(stage, 4)
        assert stage.clock.monotonic_ms() - at_ms < 5_000
        (plan,) = stage.event_data(PreemptionPlanned)
        assert [unit.name for unit in plan.victims] == ["Pod/default/low"]


async def test_a_change_that_makes_no_capacity_does_not_end_the_pause():
    """A pod that the search counted as a victim goes, and one of equal priority comes: the search would find nothing new."""
    async with await leading(*two_nodes_with_a_vip()) as stage:
        refused = await refused_by_a_vip(stage)
        searches = len(stage.event_data(GangUnschedulable))
        stage.cluster.delete_pod("low")
        stage.cluster.add(a_pod("other", node="n0", requests=ONE, priority=10))
        await settled(stage, 2)
        assert len(stage.event_data(GangUnschedulable)) == searches
        assert stage.root("hi").last_decision.reasons[-1] == refused.preemption_notes[-1]


async def test_a_refusal_after_a_search_can_be_replayed_with_its_notes():
    """The input has what could be evicted, so that outcome, reasons, notes and help are made again."""
    async with await leading(*two_nodes_with_a_vip()) as stage:
        refused = await refused_by_a_vip(stage)
        stored = await stage.inputs.load(refused.input_digest)
        event = next(e for e in stage.events() if e.data == refused)
        assert refused.preemption_notes
        assert refused.help
        result = replay_decision(event.position, refused, stored)
        assert result.same, result.differences
        untrue = msgspec.structs.replace(refused, preemption_notes=("no unit runs",))
        assert not replay_decision(event.position, untrue, stored).same


async def test_what_an_older_search_found_is_marked_as_older():
    """Another refusal in the pause has the reason of the last search with the words that it is older."""
    async with await leading(*two_nodes_with_a_vip(), preemption=False) as stage:
        await stage.one_pass()
        tree = next(
            t
            for t in stage.parts.observer.observe().forest.trees.values()
            if t.root.key.name == "hi"
        )
        asking = PreemptionPolicy(stage.clock, enabled=True)
        found = NoPreemption(cause="impossible", reasons=("evicting a",), search=DONE)
        asking.answered(tree.root.uid, found, 1)
        assert asking.considered(tree.root.uid)[0] == (
            "when victims were last searched for it: evicting a",
        )


async def test_a_long_search_is_repeated_after_a_minute_at_the_latest():
    """Its pause has a limit, also where nothing changes."""
    async with await leading(*two_nodes_with_a_vip(), preemption=False) as stage:
        await stage.one_pass()
        tree = next(
            t
            for t in stage.parts.observer.observe().forest.trees.values()
            if t.root.key.name == "hi"
        )
        asking, state = PreemptionPolicy(stage.clock, enabled=True), stage.leader.committed
        none = NoPreemption(cause="impossible", reasons=("no",), search=DONE)
        asking.answered(tree.root.uid, none, 20_000)
        assert not asking.may_search(stage.cluster.seen, state, tree, complete=True)
        stage.clock.advance(60)
        assert asking.may_search(stage.cluster.seen, state, tree, complete=True)


async def test_a_pod_that_terminates_elsewhere_does_not_change_a_refusal():
    """Nothing has a lower priority, so no reason speaks of evictions, before and while a pod terminates."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1), a_node("of-others")]
    pods = [a_pod("stays", node="n0", requests=ONE, priority=50)]
    pods.append(a_pod("goes", node="of-others", priority=50))
    async with await leading(*nodes, *pods, *preemptor_tree()) as stage:
        await settled(stage, 4)
        (before,) = stage.event_data(GangUnschedulable)
        stage.cluster.change_pod("goes", deleting=True)
        stage.clock.advance(6)
        await settled(stage, 4)
        assert stage.event_data(GangUnschedulable) == [before]


async def test_a_tree_that_only_terminating_pods_keep_out_waits():
    """Peer case F2 in the service: nothing has a lower priority, and no nodes are to be bought for it."""
    going = a_pod("going", node="n1", requests=ONE, priority=50)
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    async with await leading(*nodes, going, *preemptor_tree()) as stage:
        stage.cluster.change_pod("going", deleting=True)
        await settled(stage, 4)
        (refused,) = stage.event_data(GangUnschedulable)
        assert (refused.outcome, refused.help) == ("waiting", ())
        assert refused.reasons[0].startswith("waiting for 1 pod that terminates, on n1")
        stage.cluster.delete_pod("going")
        await settled(stage, 4)
        assert stage.event_data(GangAdmitted)
