"""What one attempt to admit a tree leads to, one test for each outcome."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.admission.tree_admission import AdmissionOutcome, AdmissionProgress
from extender.control.admission.tree_searches import WantedSearch
from extender.core.log.events import (
    GangAdmitted,
    GangInvalid,
    GangObserved,
    GangUnschedulable,
    PreemptionPlanned,
)
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree

STAY_REFUSED = {
    AdmissionOutcome.INVALID_AS_BEFORE,
    AdmissionOutcome.PAUSED,
    AdmissionOutcome.REFUSAL_HOLDS,
}


async def attempt(stage: Stage, name: str, **rest):
    """Try to admit one tree as it is in the newest view; wait for its events."""
    now = stage.parts.observer.observe()
    tree = next(t for key, t in now.forest.trees.items() if key.name == name)
    progress = rest.pop("progress", None) or AdmissionProgress(now)
    progress.now = now
    outcome = await stage.control_loop._pending_trees._admission.admit(tree, progress, **rest)
    await stage.parts.appends.flush()
    return outcome, progress


@pytest.mark.parametrize("outcome", AdmissionOutcome, ids=lambda o: o.name)
def test_what_stays_refused_needs_a_change(outcome):
    """Only these outcomes let the next pass be skipped."""
    assert outcome.stays_refused is (outcome in STAY_REFUSED)


async def test_a_tree_that_fits_is_recorded_and_then_has_nothing_to_place():
    """The admission is in the log; a second attempt finds no member without a node."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.RECORDED
        assert len(stage.event_data(GangAdmitted)) == 1
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.NOT_PENDING


async def test_a_tree_without_a_plan_is_explained_later_and_its_refusal_holds():
    """The reasons are searched at the end of the pass; after that the tree is not planned again."""
    async with Stage(a_node("n0", gpu=1), *a_gang("g", pods=2), preemption=False) as stage:
        await stage.lead()
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        outcome, _ = await attempt(stage, "g")
        assert outcome is AdmissionOutcome.TO_EXPLAIN
        assert not stage.event_data(GangUnschedulable)
        await stage.one_pass()
        assert len(stage.event_data(GangUnschedulable)) == 1
        stage.later(60)
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.REFUSAL_HOLDS


async def test_a_long_plan_is_searched_and_a_refused_tree_pauses():
    """A tree that the planner process refused waits as long as its search was expensive."""
    async with Stage(a_node("n0", gpu=1), *a_gang("g", pods=2), preemption=False) as stage:
        await stage.lead()
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        stage.parts.planner.at_once = lambda request: "search"
        inner = stage.parts.planner.plan

        async def slow(encoded):
            stage.later(1)
            return await inner(encoded)

        stage.parts.planner.plan = slow
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.TO_SEARCH
        await stage.one_pass()
        assert len(stage.event_data(GangUnschedulable)) == 1
        stage.later(4)
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.PAUSED
        stage.later(2)
        assert (await attempt(stage, "g"))[0] is AdmissionOutcome.REFUSAL_HOLDS


async def test_an_invalid_tree_is_recorded_once():
    """The second attempt finds the same problems in the log."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        stage.cluster.change_pod("g-0", priority=3)
        outcomes = [(await attempt(stage, "g"))[0] for _ in range(2)]
        assert outcomes == [AdmissionOutcome.RECORDED, AdmissionOutcome.INVALID_AS_BEFORE]
        assert len(stage.event_data(GangInvalid)) == 1


async def preempting(*more):
    """Let `hi` preempt the pods of `low`, which do not terminate."""
    nodes = [a_node("n0", gpu=1), a_node("n1", gpu=1)]
    stage = Stage(*nodes, *lows("n0", "n1"), *preemptor_tree(), *more)
    await stage.lead()
    await stage.one_pass()
    assert len(stage.event_data(PreemptionPlanned)) == 1
    return stage


async def test_a_preemptor_awaits_its_victims():
    """While they terminate it is planned, and nothing is recorded."""
    async with await preempting() as stage:
        before = len(stage.events())
        outcome, progress = await attempt(stage, "hi")
        assert outcome is AdmissionOutcome.AWAITS_VICTIMS
        assert len(stage.events()) == before
        assert not progress.postponed


async def test_a_victim_is_not_planned():
    """Members of a unit that is being evicted get no place until the unit is gone."""
    async with await preempting() as stage:
        stage.cluster.add(a_node("n2", gpu=1), *a_gang("low", pods=3, minimum=2)[-1:])
        outcome, _ = await attempt(stage, "low")
        assert outcome is AdmissionOutcome.BEING_EVICTED


async def test_a_preemptor_that_fits_lets_a_higher_tree_preempt_first():
    """It is postponed while a refused tree of higher priority may take over, and admitted by the last attempt."""
    async with await preempting() as stage:
        nodes = [a_node(name, gpu=1) for name in ("n2", "n3")]
        stage.cluster.add(*nodes, *preemptor_tree(name="vip", priority=20))
        trees = stage.parts.observer.observe().forest.trees
        (vip,) = [t for k, t in trees.items() if k.name == "vip"]
        searches = stage.control_loop._pending_trees.searches
        searches.want(WantedSearch(vip, "explain", answered=False, holds_up=False))
        outcome, progress = await attempt(stage, "hi")
        assert outcome is AdmissionOutcome.POSTPONED
        assert [tree.root.key.name for tree in progress.postponed] == ["hi"]
        assert not stage.event_data(GangAdmitted)
        assert (await attempt(stage, "hi", last=True))[0] is AdmissionOutcome.RECORDED
        assert len(stage.event_data(GangAdmitted)) == 1


async def test_a_new_tree_is_not_recorded_as_waiting_while_its_members_are_created():
    """Its first event is the admission, when the last one is there; that it waited for a moment is no news."""
    group, *pods = a_gang("g", pods=2)
    async with Stage(a_node("n0", gpu=2), group, pods[0], arrival_ms=50) as stage:
        await stage.lead()
        await stage.one_pass()
        assert not stage.event_data(GangObserved, GangUnschedulable)
        stage.cluster.add(pods[1])
        await stage.one_pass()
        assert len(stage.event_data(GangAdmitted)) == 1
        assert not stage.event_data(GangUnschedulable)


async def test_a_tree_that_stays_incomplete_is_recorded_after_its_time_without_another_change():
    """The loop is woken for it, and the pass is not skipped."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)[:2], arrival_ms=50) as stage:
        await stage.lead()
        woken = stage.barriers.wakeup.revision
        await stage.one_pass()
        assert not stage.event_data(GangUnschedulable)
        await eventually(lambda: stage.barriers.wakeup.revision > woken, "the timer ends")
        stage.clock.advance(0.05)
        await stage.one_pass()
        (refused,) = stage.event_data(GangUnschedulable)
        assert refused.outcome == "waiting"


async def test_a_tree_that_was_admitted_within_its_time_needs_no_pass_at_the_end_of_it():
    """Else each new tree would cost a pass that finds nothing to do."""
    group, *pods = a_gang("g", pods=2)
    async with Stage(a_node("n0", gpu=2), group, pods[0], arrival_ms=20) as stage:
        await stage.lead()
        await stage.one_pass()
        stage.cluster.add(pods[1])
        await stage.one_pass()
        assert len(stage.event_data(GangAdmitted)) == 1
        woken = stage.barriers.wakeup.revision
        await asyncio.sleep(0.05)
        assert stage.barriers.wakeup.revision == woken


async def test_a_tree_that_the_log_has_is_recorded_at_once_when_it_loses_a_member():
    """Only trees that are new are waited for."""
    group, *pods = a_gang("g", pods=2)
    async with Stage(a_node("n0", gpu=1), group, *pods, arrival_ms=50, preemption=False) as stage:
        await stage.lead()
        await stage.one_pass()
        assert len(stage.event_data(GangUnschedulable)) == 1
        stage.cluster.delete_pod("g-1")
        await stage.one_pass()
        assert [refused.outcome for refused in stage.event_data(GangUnschedulable)][1:] == [
            "waiting"
        ]


async def test_exclusive_gangs_of_one_pass_share_no_domain():
    """Three gangs, two racks that could hold all of them: the third waits, and after a restart it still does."""
    nodes = [a_node(f"n{n}", {"net/rack": f"r{n}"}, gpu=8) for n in range(2)]
    exclusive = {"exclusive": {"key": "net/rack"}}
    gangs = [
        item
        for name in "abc"
        for item in (
            a_group(name, gang=2, schedulingConstraints=exclusive),
            *(a_pod(f"{name}-{n}", name) for n in range(2)),
        )
    ]
    async with Stage(*nodes, *gangs, preemption=False) as stage:
        await stage.lead()
        await stage.settled()
        racks = [set(stage.where(name).values()) for name in "ab"]
        assert sorted(map(sorted, racks)) == [["n0"], ["n1"]]
        assert len(stage.event_data(GangUnschedulable)) == 1
        assert stage.root("c") is None or stage.where("c") == {}
        await stage.stop_leading()
        async with Stage(
            database=stage.database, cluster=stage.cluster, holder="next", preemption=False
        ) as restarted:
            await restarted.lead()
            await restarted.settled()
            assert [set(restarted.where(name).values()) for name in "ab"] == racks
            assert restarted.root("c") is None or restarted.where("c") == {}
