"""The control loop: who is planned, when, in which order, and what is left when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from extender.control.admission.planner_pool import PlannerPool
from extender.control.loop.control_loop import PassRests
from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    GangObserved,
    GangUnschedulable,
    ReservationReleased,
)
from extender.core.model.errors import ClusterUnavailable, NotLeading, StoreUnavailable
from extender.core.planner.planning import plan
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fakes import FakeCluster, Stage, idle
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.core.admit.test_verdict_events import Case


async def leading(*objects, **rest):
    stage = Stage(*objects, **rest)
    await stage.lead()
    return stage


def count_plans(stage):
    """Count the questions to the planner, by root."""
    asked, inner = [], stage.parts.planner.at_once

    def counting(request):
        asked.append(request.root.key.name)
        return inner(request)

    stage.parts.planner.at_once = counting
    return asked


async def test_an_unchanged_root_is_not_planned_again():
    """Only a change of its input makes a refused tree worth another look."""
    async with await leading(a_node("n0", gpu=1), *a_gang("g", pods=2)) as stage:
        asked = count_plans(stage)
        for _ in range(5):
            await stage.one_pass()
        assert asked == ["g"]
        stage.cluster.add(a_node("n1", gpu=1))
        stage.clock.advance(1)
        await stage.one_pass()
        assert asked == ["g", "g"]
        assert sorted(stage.where("g").values()) == ["n0", "n1"]
        await stage.one_pass()
        assert asked == ["g", "g"]


async def test_a_lower_minimum_is_a_reason_to_plan_a_refused_root_again():
    """minGroupCount of a waiting tree changes: the next pass admits it; a higher one releases nothing."""
    leaves = [
        thing
        for name in "abc"
        for thing in (
            a_group(name, gang=1, parent="root"),
            a_pod(f"{name}-0", name, requests={GPU: 1}),
        )
    ]
    fleet = (a_node("n0", gpu=1), a_node("n1", gpu=1))
    root = a_group("root", gang=3, composite=True)
    async with await leading(*fleet, root, *leaves) as stage:
        asked = count_plans(stage)
        await stage.settled()
        assert asked == ["root"]
        assert stage.where("root") == {}
        stage.cluster.change_group("root", minimum=2)
        await stage.settled()
        assert stage.root("root").phase == "admitted"
        held = stage.where("root")
        assert sorted(held.values()) == ["n0", "n1"]
        stage.cluster.change_group("root", minimum=3)
        stage.clock.advance(1)
        await stage.settled()
        assert stage.where("root") == held
        assert stage.event_data(ReservationReleased) == []


async def test_less_capacity_is_no_reason_to_plan_a_refused_root_again():
    """A pod that takes capacity cannot help; one that goes can (L39)."""
    fleet = (a_node("n0", gpu=2), a_node("n1", gpu=2))
    running = a_pod("before", node="n0", requests={GPU: 1})
    async with await leading(*fleet, running, *a_gang("g", pods=4)) as stage:
        asked = count_plans(stage)
        await stage.settled()
        assert asked == ["g"]
        stage.clock.advance(1)
        stage.cluster.add(a_pod("thief", node="n1", requests={GPU: 1}))
        await stage.settled()
        assert asked == ["g"], "there is only less capacity"
        stage.cluster.delete_pod("thief")
        stage.cluster.delete_pod("before")
        await stage.settled()
        assert asked == ["g", "g"]
        assert stage.root("g").phase == "admitted"


async def test_members_that_come_one_by_one_are_not_counted_aloud():
    """A thousand arrivals do not make a thousand events; the last count is recorded in the end."""
    group, *pods = a_gang("g", pods=9)
    async with await leading(a_node("n0", gpu=9), group) as stage:
        for pod in pods[:8]:
            stage.cluster.add(pod)
            await stage.settled()
        assert [f.reasons[0][-9:] for f in stage.event_data(GangUnschedulable)] == ["1 present"]
        stage.clock.advance(5)
        await stage.settled()
        assert [f.reasons[0][-9:] for f in stage.event_data(GangUnschedulable)] == [
            "1 present",
            "8 present",
        ]
        stage.cluster.add(pods[8])
        await stage.settled()
        assert stage.root("g").phase == "admitted", "but admission waits for nothing"


async def test_trees_of_one_pass_are_admitted_without_waiting_for_one_another():
    """Every decision rests on those before it, also while none of them is durable yet."""
    gangs = [thing for i in range(3) for thing in a_gang(f"g{i}", pods=2)]
    async with await leading(a_node("n0", gpu=4), *gangs) as stage:
        under_way = []
        inner = stage.log.append

        async def watched(grant, events):
            under_way.append(stage.leader.appends.in_flight)
            await inner(grant, events)

        stage.log.append = watched
        await stage.one_pass()
        assert max(under_way) == 2, "both admissions are on their way at once"
        assert [bool(stage.root(f"g{i}").reservations) for i in range(3)] == [True, True, False]


async def test_an_input_that_cannot_be_stored_keeps_its_decision_from_the_log():
    """No admission without its input; what was decided on top of it goes with it, and is decided anew."""
    gangs = [thing for i in range(2) for thing in a_gang(f"g{i}", pods=2)]
    async with await leading(a_node("n0", gpu=4), *gangs) as stage:
        inner, failed = stage.inputs.save, []

        async def failing(decision):
            if not failed:
                failed.append(decision.digest)
                raise StoreUnavailable("set by the test")
            await inner(decision)

        stage.inputs.save = failing
        with pytest.raises(StoreUnavailable):
            await stage.one_pass()
        assert stage.event_data(GangAdmitted) == []
        await eventually(stage.leader.may_record, "settled")
        await stage.settled()
        assert len(stage.event_data(GangAdmitted)) == 2
        assert len(stage.event_data(GangObserved)) == 2


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]], ids="".join)
async def test_two_gangs_that_fit_one_at_a_time(order):
    """Pods come interleaved: the older gang is admitted whole, the other refused whole, and admitted when the first goes."""
    first, second = order
    one, two = a_gang(first, pods=4), a_gang(second, pods=4)
    mixed = [one[0], two[0], *(pod for pair in zip(one[1:], two[1:], strict=True) for pod in pair)]
    async with await leading(a_node("n0", gpu=4)) as stage:
        for thing in mixed:
            stage.cluster.add(thing)
            await stage.one_pass()
        await stage.settled()
        assert len(stage.where(first)) == 4
        loser = stage.root(second)
        assert (loser.phase, len(loser.reservations)) == ("unschedulable", 0)
        assert "4 pods" in loser.last_decision.reasons[0]
        assert len(list(stage.event_data(GangAdmitted))) == 1
        for number in range(4):
            stage.cluster.delete_pod(f"{first}-{number}")
        stage.cluster.delete_group(first)
        stage.clock.advance(1)
        await stage.settled()
        assert len(stage.where(second)) == 4
        assert stage.root(first) is None


async def test_priority_goes_before_age():
    """The younger root of higher priority is planned first; equals by age."""
    async with await leading(a_node("n0", gpu=2)) as stage:
        for name, priority in (("old", 0), ("young", 0), ("urgent", 10)):
            stage.cluster.add(*a_gang(name, pods=1))
            stage.cluster.change_group(name, priority=priority)
            stage.cluster.change_pod(f"{name}-0", priority=priority)
        asked = count_plans(stage)
        await stage.one_pass()
        assert asked == ["urgent", "old", "young"]
        assert [bool(stage.root(name).reservations) for name in ("urgent", "old", "young")] == [
            True,
            True,
            False,
        ]


@pytest.mark.parametrize("priority", [0, 5])
async def test_minima_of_one_priority_come_before_extra_members(priority):
    """In one pass; extra members of higher priority do not wait for a minimum of lower priority."""
    pods = {"requests": {GPU: 1}, "priority": priority}
    first = [
        a_group("a", gang=1, priority=priority),
        *(a_pod(f"a-{n}", "a", **pods) for n in range(4)),
    ]
    second = [a_group("b", gang=2), *(a_pod(f"b-{n}", "b", requests={GPU: 1}) for n in range(3))]
    async with await leading(a_node("n0", gpu=4), *first, *second) as stage:
        await stage.one_pass()
        if priority:
            assert len(stage.where("a")) == 4
            assert stage.where("b") == {}
            return
        assert (len(stage.where("a")), len(stage.where("b"))) == (2, 2)
        assert len(stage.event_data(GangAdmitted)) == 2
        (extended,) = stage.event_data(GangExtended)
        assert [(a.extra, a.group) for a in extended.assignments] == [(True, "a")]
        for event in stage.events():
            if isinstance(event.data, GangAdmitted | GangExtended):
                stored = await stage.inputs.load(event.data.input_digest)
                assert replay_decision(event.position, event.data, stored).same


async def test_a_minimum_that_was_lost_comes_before_extra_members_too():
    """C.4: the gang has run before, so its phase alone does not show that it needs its minimum again."""
    first = [a_group("a", gang=1), a_pod("a-0", "a", requests={GPU: 1})]
    async with await leading(a_node("n0", gpu=2), *first, *a_gang("b", pods=1)) as stage:
        await stage.one_pass()
        for name in ("a-0", "b-0"):
            await stage.bind(name)
        await stage.settled()
        assert stage.root("b").phase == "scheduled"
        stage.cluster.delete_pod("b-0")
        await stage.settled()
        stage.cluster.add(
            a_pod("a-1", "a", requests={GPU: 1}), a_pod("b-1", "b", requests={GPU: 1})
        )
        await stage.one_pass()
        assert stage.where("b") == {"b-1": "n0"}
        assert stage.where("a") == {}


async def test_extra_members_do_not_wait_for_a_gang_that_does_not_fit():
    """Its minimum is refused in the same pass; what is free then is for the extra members of others."""
    gangs = [*a_gang("a", pods=3, minimum=1), *a_gang("huge", pods=9)]
    async with await leading(a_node("n0", gpu=4), *gangs) as stage:
        await stage.one_pass()
        assert len(stage.where("a")) == 3


async def test_waiting_for_the_log_does_not_count_as_work():
    """After a pass the loop rests in proportion to its work; a slow log must not make it rest longer."""
    async with await leading(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        append = stage.log.append

        async def slow_append(*given, **named):
            stage.clock.advance(0.1)
            return await append(*given, **named)

        stage.log.append = slow_append
        await stage.one_pass()
        assert len(stage.event_data(GangAdmitted)) == 1
        assert stage.parts.appends.cpu_us_while_waiting >= 100_000
        await stage.one_pass()
        assert stage.parts.appends.cpu_us_while_waiting == 0


async def test_an_unredeemed_reservation_expires():
    """After its time to live the whole tree is released and planned anew; an arrival at bind counts as progress."""
    async with await leading(
        a_node("n0", gpu=2), *a_gang("g", pods=2), reservation_ttl_s=300
    ) as stage:
        await stage.one_pass()
        held = stage.bind("g-0")
        stage.clock.advance(200)
        stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await asyncio.sleep(0)
        second = stage.bind("g-0")
        await eventually(
            lambda: stage.barriers.progress_us(stage.cluster.group("g").uid) == stage.clock.us,
            "an arrival",
        )
        stage.clock.advance(299)
        stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await stage.one_pass()
        assert stage.event_data(ReservationReleased) == []
        stage.clock.advance(2)
        stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await stage.one_pass()
        assert [f.reason for f in stage.event_data(ReservationReleased)] == ["expired"]
        assert len(stage.event_data(GangAdmitted)) == 2
        assert "was released" in await held
        assert "was released" in await second


@pytest.mark.parametrize("bound", [1, 2])
async def test_reservations_of_a_started_gang_of_which_no_member_arrives_expire(bound):
    """Those that its minimum waits for end, and are planned anew; those beyond a minimum that is bound stay."""
    async with await leading(
        a_node("n0", gpu=4), *a_gang("g", pods=4, minimum=2), reservation_ttl_s=300
    ) as stage:
        await stage.one_pass()
        for name in [f"g-{n}" for n in range(bound)]:
            stage.cluster.change_pod(name, node=stage.reserved_node(name), phase="Running")
        await stage.one_pass()
        for seconds in (299, 2):
            assert stage.event_data(ReservationReleased) == []
            stage.clock.advance(seconds)
            stage.leader.lease.renew_from(stage.clock.monotonic_ms())
            await stage.one_pass()
        released = stage.event_data(ReservationReleased)
        unused = [["default/g-1", "default/g-2", "default/g-3"]] if bound == 1 else []
        assert [[p.pod for p in f.pods] for f in released] == unused
        assert [f.reason for f in released] == ["expired"] * len(unused)
        await stage.one_pass()
        assert len(stage.event_data(GangExtended)) == len(unused)
        assert len(stage.root("g").reservations) == 4 - bound


async def test_a_crash_between_two_events_loses_nothing():
    """Kill after any pass and go on with another replica: one admission per tree, the same reservations."""
    async with await leading(
        a_node("n0", gpu=4), *a_gang("a", pods=2), *a_gang("b", pods=2)
    ) as stage:
        await stage.one_pass()
        before = {name: stage.where(name) for name in ("a", "b")}
        await stage.killed()
        async with Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock
        ) as again:
            await again.lead()
            await again.settled()
            assert {name: again.where(name) for name in ("a", "b")} == before
            assert again.names().count("GangAdmitted") == 2


async def test_a_lost_append_is_decided_anew():
    """The admission that did not reach the log is made again by the next pass, once."""
    async with await leading(a_node("n0", gpu=4), *a_gang("a", pods=2)) as stage:
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        stage.log.lose_next_append()
        with pytest.raises(StoreUnavailable):
            await stage.one_pass()
        await eventually(stage.leader.may_record, "leading again")
        await stage.settled()
        assert stage.names().count("GangAdmitted") == 1
        assert len(stage.where("a")) == 2


@pytest.mark.parametrize("loses", ["lose_next_append", "lose_next_answer"])
@pytest.mark.parametrize("waits_first", [False, True])
async def test_a_lost_refusal_is_decided_anew(waits_first, loses):
    """A refusal that did not reach the log is no reason not to plan the tree again: it would never be recorded."""
    group, *pods = a_gang("a", pods=2, requests={GPU: 4})
    first = [group, pods[0]] if waits_first else []
    async with await leading(a_node("n0", gpu=4), *first) as stage:
        await stage.settled()
        stage.cluster.add(*(pods[1:] if waits_first else [group, *pods]))
        await stage.control_loop._reconciler.reconcile(stage.parts.observer.observe())
        getattr(stage.log, loses)()
        with contextlib.suppress(NotLeading, StoreUnavailable):
            await stage.one_pass()
        await eventually(stage.leader.may_record, "leading again")
        await stage.settled()
        refusals = [
            data for data in stage.event_data(GangUnschedulable) if data.outcome == "impossible"
        ]
        assert len(refusals) == 1


async def test_every_decision_can_be_replayed():
    """The input of an admission and of a refusal is stored before the event, and gives the same answer."""
    async with await leading(
        a_node("n0", gpu=4), *a_gang("a", pods=3), *a_gang("b", pods=3)
    ) as stage:
        await stage.settled()
        events = [e for e in stage.events() if isinstance(e.data, GangAdmitted | GangUnschedulable)]
        assert {type(e.data) for e in events} == {GangAdmitted, GangUnschedulable}
        for event in events:
            stored = await stage.inputs.load(event.data.input_digest)
            assert replay_decision(event.position, event.data, stored).same


async def test_a_plan_that_the_world_overtook_is_not_recorded():
    """What changed while the planner thought is looked at before the answer is recorded."""
    async with await leading(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        inner = stage.parts.planner.plan
        stage.parts.planner.at_once = lambda request: "search"

        async def slow(encoded):
            verdict = await inner(encoded)
            if not stage.event_data(GangUnschedulable):
                stage.cluster.add(a_pod("thief", node="n0", requests={GPU: 1}))
            return verdict

        stage.parts.planner.plan = slow
        await stage.one_pass()
        assert stage.event_data(GangAdmitted) == []


async def test_an_invalid_tree_is_recorded_and_planned_when_mended():
    """GangInvalid once; after the repair the tree is admitted like any other."""
    async with await leading(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        stage.cluster.change_pod("g-0", priority=3)
        await stage.settled()
        assert stage.names().count("GangInvalid") == 1
        stage.cluster.change_pod("g-0", priority=0)
        await stage.settled()
        assert stage.root("g").phase == "admitted"


async def test_an_admitted_tree_that_turns_invalid_gives_its_capacity_back():
    """It is not scheduled any more, so it holds nothing; mended, it is admitted again."""
    async with await leading(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.settled()
        stage.cluster.change_pod("g-0", priority=3)
        await stage.settled()
        assert not stage.root("g").reservations
        stage.cluster.change_pod("g-0", priority=0)
        await stage.settled()
        assert len(stage.root("g").reservations) == 2


async def test_the_loop_waits_for_news_and_becomes_ready():
    """Ready after a whole pass under the current lease; not before, and not from an unsynced cluster."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        stage.cluster.doubted = "not synced"
        assert not any(c.ok for c in stage.extender_service.checks())
        await stage.lead()
        assert [c.ok for c in stage.extender_service.checks()] == [True, True, False, False]
        stage.start(stage.control_loop.run())
        await idle()
        assert stage.names() == ["LeaseAcquired"]
        stage.cluster.doubted = ""
        stage.cluster.add(a_node("n1", gpu=2))
        await eventually(lambda: all(c.ok for c in stage.extender_service.checks()), "ready")
        assert stage.names() == ["LeaseAcquired", "GangObserved", "GangAdmitted"]


# --- the planner's process


def _long_case():
    case = Case(*a_fleet("4 racks x 8 nodes", gpu=4), *a_gang("g", pods=100))
    return case.request()


class LaggingCluster(FakeCluster):
    """The same cluster as another replica sees it: the view stays as it is until `catch_up`."""

    def __init__(self, cluster):
        super().__init__()
        self.newest, self.caught_up = cluster, 0
        self.seen = cluster.seen

    async def catch_up(self):
        await super().catch_up()
        self.caught_up += 1
        self.seen = self.newest.seen


async def test_a_new_leader_whose_view_is_older_than_the_log_changes_nothing():
    """Members that the leader before saw bound, created and deleted are no drift to the next one."""
    fleet = (a_node("n0", gpu=4), a_node("n1", gpu=4))
    first = await leading(*fleet, *a_gang("g", pods=2), *a_gang("gone", pods=1))
    async with first:
        await first.settled()
        behind = LaggingCluster(first.cluster)
        for pod in ("g-0", "g-1", "gone-0"):
            first.cluster.change_pod(pod, node=first.reserved_node(pod), phase="Running")
        await first.settled()
        first.cluster.delete_pod("gone-0")
        first.cluster.delete_group("gone")
        first.cluster.add(*a_gang("late", pods=2))
        await first.settled()
        assert first.root("g").phase == "scheduled"
        assert first.root("late").phase == "admitted"
        recorded = first.names()
        await first.stop_leading()
        async with Stage(
            database=first.database, clock=first.clock, cluster=behind, holder="next"
        ) as second:
            await second.lead()
            behind.fault = lambda verb, _: ClusterUnavailable("503") if verb == "catch_up" else None
            with pytest.raises(ClusterUnavailable):
                await second.one_pass()
            behind.fault = lambda *_: None
            await second.settled()
            await second.one_pass()
            assert second.names() == [*recorded, "LeaseAcquired"]
            assert behind.caught_up == 1, "once in a term"


async def test_another_process_gives_the_same_answer():
    """Where the planner runs changes nothing but time."""
    request = _long_case()
    planner = PlannerPool()
    try:
        assert await planner.plan(planner.encode(request)) == plan(request)
        assert planner._worker.pid is not None
    finally:
        planner.stop()


async def test_a_killed_planner_process_is_replaced():
    """SIGKILL of the worker costs another try, not the answer."""
    request = _long_case()
    planner = PlannerPool()
    try:
        before = await planner.plan(planner.encode(request))
        worker = planner._worker.pid
        os.kill(worker, signal.SIGKILL)
        assert await planner.plan(planner.encode(request)) == before
        assert planner._worker.pid != worker
    finally:
        planner.stop()


@pytest.mark.parametrize(
    ("passes", "waits"),
    [
        # the first change after a quiet time is handled at once
        ([(0, 0), (0, 19), (0, 20)], [2, 2, 0]),
        ([(10, 0)], [2]),  # a short pass after a quiet time: the next one follows at once
        (
            [(4, 0)] * 6,
            [2, 2, 4, 16, 16, 16],
        ),  # what was left for later is used up: four times as long as they took
        ([(10, 0), (10, 40)], [2, 0]),
        ([(10, 0), (10, 500), (10, 0), (10, 0)], [2, 0, 2, 38]),
        ([(5_000, 0), (5_000, 0), (5_000, 150)], [200, 200, 50]),
    ],
)
def test_passes_rest_four_times_as_long_as_they_take(passes, waits):
    """The first ones of a burst do not wait; after that the rest is what it is in the long run, 200 ms at most."""
    rests = PassRests()
    assert [rests.after_pass(took, rested) for took, rested in passes] == waits


def test_passes_take_a_fifth_of_the_time_in_the_long_run():
    """Whatever their lengths are, up to 50 ms, from which on the longest rest is due."""
    for took in (1, 3, 8, 20, 50):
        rests = PassRests()
        waited = sum(rests.after_pass(took, 0) for _ in range(1000))
        assert waited == pytest.approx(1000 * took * 4, abs=40), took


async def test_a_pass_of_an_earlier_term_admits_nothing():
    """The lease is lost and acquired again while it reconciles: the first pass of the new term compares again."""
    async with await leading(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        reconciler = stage.control_loop._reconciler
        inner, terms = reconciler.reconcile, stage.leader.terms

        async def interrupted(moment):
            await inner(moment)
            stage.leader.lose("set by the test")
            await eventually(
                lambda: stage.leader.role == "leading" and stage.leader.terms > terms, "leading"
            )

        reconciler.reconcile = interrupted
        with pytest.raises(NotLeading, match="acquired again"):
            await stage.one_pass()
        assert not stage.event_data(GangAdmitted)
        reconciler.reconcile = inner
        await stage.settled()
        assert stage.event_data(GangAdmitted)
