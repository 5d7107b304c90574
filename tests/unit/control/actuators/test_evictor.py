"""Recorded preemptions are carried out, survive a kill at every step, and end by stated rules.

The choice of victims is ordered by the test (`order`); what the service does with it is looked at here.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from extender.core.log.events import (
    GangAdmitted,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    ReservationReleased,
    VictimGone,
)
from extender.core.log.reservation_state import claims_of
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.verbs.preempt_verb import NodeCandidate
from tests.support.planning.preemption_builders import order
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

ONE = {GPU: 1}


def lows(*nodes, group="low", whole=True):
    """Return a gang of priority 0 that has run for an hour, one GPU on each of the nodes."""
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2027-01-15T07:00:00Z",
    }
    status = {"conditions": [condition]}
    return [
        a_group(group, gang=len(nodes), whole=whole, priority=0),
        *(
            a_pod(f"{group}-{n}", group, node=node, requests=ONE, priority=0, status=status)
            for n, node in enumerate(nodes)
        ),
    ]


def preemptor_tree(pods=2, name="hi", priority=10):
    group, *members = a_gang(name, pods=pods, requests=ONE, priority=priority)
    group["spec"]["priority"] = priority
    return [group, *members]


async def full(*more, nodes=("n0", "n1"), evicting=True, first=(), **rest):
    """Lead on nodes of one GPU each, all taken by `low`, with `hi` waiting for the two of them."""
    own_nodes = [a_node(name, gpu=1) for name in nodes]
    stage = Stage(
        *own_nodes, *lows(*nodes), *first, *preemptor_tree(), *more, **{"preemption": False, **rest}
    )
    await stage.lead()
    await stage.one_pass()
    if evicting:
        stage.start(stage.parts.evictor.run())
    return stage


async def ordered(stage, victims=None, where=None, **plan):
    where = where or {"hi-0": "n0", "hi-1": "n1"}
    return await order(stage, "hi", where, victims or {"PodGroup/low": ["low-0", "low-1"]}, **plan)


def evicted(stage):
    return [name for name, _ in stage.cluster.did("evict")]


async def asked(stage, *names):
    """Run passes until the pods were asked to go."""
    for _ in range(50):
        await stage.one_pass()
        await rest()
        if {f"default/{n}" for n in names} <= set(evicted(stage)):
            return
    raise AssertionError(f"only {evicted(stage)} were asked to go")


async def rest():
    for _ in range(30):
        await asyncio.sleep(0)


async def runs(stage):
    """Let kube-scheduler bind the members of `hi` at their barrier."""
    calls = [stage.bind(f"hi-{n}") for n in range(2)]
    await asyncio.gather(*calls)
    await stage.settled()


async def test_from_the_plan_to_the_running_preemptor():
    """Marked, deleted, gone, admitted, bound: each is an event, and the preemptor gets the capacity that was made."""
    async with await full() as stage:
        plan = await ordered(stage)
        await asked(stage, "low-0", "low-1")
        verbs = [
            (verb, pod)
            for verb, pod, _ in stage.cluster.calls
            if verb in ("mark_disrupted", "evict")
        ]
        for name in ("default/low-0", "default/low-1"):
            assert verbs.index(("mark_disrupted", name)) < verbs.index(("evict", name))
        await stage.settled()
        assert not stage.event_data(VictimGone, GangAdmitted), (
            "they terminate, their capacity is taken"
        )
        assert all(pod.nominated is None for pod in stage.cluster.seen.pods.values())
        stage.clock.advance(3)
        stage.cluster.delete_pod("low-0")
        await stage.settled()
        assert not stage.event_data(GangAdmitted), "half of the capacity is not enough"
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        gone = stage.event_data(VictimGone)
        assert [(f.pod, f.via, f.unit) for f in gone] == [
            ("default/low-0", "deleted", "PodGroup/default/low"),
            ("default/low-1", "deleted", "PodGroup/default/low"),
        ]
        assert all(f.gone_us - f.requested_us >= 3_000_000 for f in gone)
        assert stage.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
        await runs(stage)
        (done,) = stage.event_data(PreemptionCompleted)
        assert (done.preemption, done.bound, done.evicted) == (plan.preemption, 2, 2)
        assert done.duration_ms >= 3_000
        assert not stage.leader.committed.preemptions
        assert not list(claims_of((), stage.leader.committed.preemptions.values(), ()))


async def test_what_people_see():
    """DisruptionTarget and an Event on victims, the condition on their group at every level, and why `hi` waits."""
    more = [
        a_group("top", gang=1, composite=True, whole=True, priority=0),
        a_group("mid", gang=1, parent="top", priority=0),
        a_pod("mid-0", "mid", node="n2", requests=ONE, priority=0),
        a_node("n2", gpu=1),
    ]
    async with await full(*more) as stage:
        stage.start(stage.reporter.run())
        victims = {"PodGroup/low": ["low-0", "low-1"], "CompositePodGroup/top": ["mid-0"]}
        await ordered(stage, victims)
        await asked(stage, "low-0", "low-1", "mid-0")
        text = "PodGroup default/hi (priority 10) needs the capacity of PodGroup/default/low (priority 0)"
        marked = dict(stage.cluster.did("mark_disrupted"))
        assert re.fullmatch(re.escape(text) + r"; lost: \S+ GPU-hours", marked["default/low-0"])
        notice = next(n for n in stage.cluster.notices if n.name == "low-0")
        assert (notice.reason, notice.action, notice.warning) == ("Preempted", "Preempting", False)
        assert notice.related == ("PodGroup", "default", "hi", stage.cluster.group("hi").uid)
        for name in ("low", "mid", "top"):
            conditions = {c[0]: c[1:3] for c in stage.cluster.group(name).conditions}
            assert conditions["DisruptionTarget"] == ("True", "PreemptionByScheduler"), name
        stage.conditions_due()
        waits = await eventually(
            lambda: next(
                (c for c in stage.cluster.group("hi").conditions if "preemption" in c[3]), None
            )
        )
        assert waits[1:3] == ("False", "Unschedulable")
        assert (
            "waits for victims of its preemption: 3 victims to go of CompositePodGroup" in waits[3]
        )


async def test_the_capacity_is_held_against_equals_from_the_plan_on():
    """Neither an older gang of the same priority nor an ordinary pod gets the capacity, before or after victims go."""
    single = a_pod("single", requests=ONE, priority=10)
    async with await full(single, first=preemptor_tree(name="rival")) as stage:
        await ordered(stage)
        assert (await protected(stage, "single")) == ["n0", "n1"]
        await asked(stage, "low-0", "low-1")
        stage.cluster.delete_pod("low-0")
        await stage.settled()
        assert (await protected(stage, "single")) == ["n0", "n1"]
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        assert stage.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
        assert stage.root("rival").phase == "unschedulable"
        assert (await protected(stage, "single")) == ["n0", "n1"]


async def protected(stage, name):
    decision = stage.extender_service.filter(stage.cluster.pod(name), ["n0", "n1"])
    assert decision.outcome == "protected"
    return list(decision.refused)


async def test_a_higher_priority_is_not_kept_out():
    """The hold is against lower and equal priorities: who is more important takes the capacity, and `hi` gives up."""
    async with await full(a_pod("vip", requests=ONE, priority=50)) as stage:
        stage.cluster.obeys = True
        await ordered(stage)
        vip = stage.cluster.pod("vip")
        assert stage.extender_service.filter(vip, ["n0", "n1"]).passed == ("n0", "n1")
        stage.cluster.change_pod("vip", nominated="n0")
        await asked(stage, "low-0", "low-1")
        stage.cluster.change_pod("vip", node="n0", nominated=None)
        await stage.settled()
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.units_spared, end.evicted) == ("taken-over", (), 2)
        assert (end.taken_over_by, end.taken_over_by_uid, end.taken_over_nodes) == (
            "Pod/default/vip",
            vip.uid,
            ("n0",),
        )
        assert stage.root("hi").phase == "unschedulable"
        assert not stage.leader.committed.preemptions


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_kill_between_any_two_steps_loses_nothing(gone):
    """Planned, one victim gone, all gone: after a restart the same victims, none beside them, and the capacity."""
    async with await full(
        *lows("n2", group="other"), a_node("n2", gpu=1), a_pod("single", requests=ONE, priority=10),
        evicting=gone > 0,
    ) as stage:  # fmt: skip
        await ordered(stage)
        if gone:
            await asked(stage, "low-0", "low-1")
            for n in range(gone):
                stage.cluster.delete_pod(f"low-{n}")
        await stage.killed()
        again = Stage(
            cluster=stage.cluster, database=stage.database, clock=stage.clock, preemption=False
        )
        async with again:
            await again.lead()
            again.start(again.parts.evictor.run())
            await again.one_pass()
            assert (await protected(again, "single")) == ["n0", "n1"]
            for n in range(gone, 2):
                if not gone:
                    await asked(again, f"low-{n}")
                again.cluster.delete_pod(f"low-{n}")
            await again.settled()
            assert set(evicted(again)) == {"default/low-0", "default/low-1"}
            hows = [f.via for f in again.event_data(VictimGone)]
            assert hows == ["unobserved"] * gone + ["deleted"] * (2 - gone)
            assert again.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
            await runs(again)
            assert (
                len(again.event_data(PreemptionPlanned))
                == len(again.event_data(PreemptionCompleted))
                == 1
            )


async def test_a_kill_after_the_admission_ends_as_it_would_have():
    """Admitted and killed: the members are bound after the restart, and the preemption is completed."""
    async with await full() as stage:
        stage.cluster.obeys = True
        await ordered(stage)
        await asked(stage, "low-0", "low-1")
        await stage.settled()
        assert stage.event_data(GangAdmitted)
        await stage.killed()
        again = Stage(
            cluster=stage.cluster, database=stage.database, clock=stage.clock, preemption=False
        )
        async with again:
            await again.lead()
            await again.settled()
            assert again.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
            await runs(again)
            assert len(again.event_data(PreemptionCompleted)) == 1


async def test_nothing_is_deleted_without_the_lease():
    """The lease is asked before each request: a deposed leader deletes no pod."""
    async with await full() as stage:
        await ordered(stage)
        stage.clock.advance(3600)
        assert not stage.leader.may_act()
        stage.parts.evictor.sync(stage.cluster.seen, stage.leader.committed)
        await rest()
        assert not evicted(stage)


async def test_a_bound_number_at_a_time():
    """However many victims there are, only a few requests are under way."""
    many = [a_node(f"m{n}", gpu=1) for n in range(40)]
    gang = lows(*(f"m{n}" for n in range(40)), group="many")
    async with await full(*many, *gang) as stage:
        stage.cluster.go.clear()
        await ordered(stage, {"PodGroup/many": [f"many-{n}" for n in range(40)]}, {"hi-0": "m0"})
        stage.parts.evictor.sync(stage.cluster.seen, stage.leader.committed)
        await rest()
        assert len(stage.parts.evictor._queue._ready) == 40 - 8
        stage.cluster.go.set()
        await asked(stage, *(f"many-{n}" for n in range(40)))
        assert len(evicted(stage)) == 40


async def test_victims_go_in_the_order_in_which_preemptions_were_planned():
    """An order by the hash of UIDs would be another one in each process."""
    numbers = range(6)
    objects = [a_node(f"n{n}", gpu=1) for n in numbers]
    for n in numbers:
        objects += (*lows(f"n{n}", group=f"low{n}"), *preemptor_tree(1, f"hi{n}"))
    async with Stage(*objects, preemption=False) as stage:
        await stage.lead()
        await stage.one_pass()
        for n in reversed(numbers):
            await order(stage, f"hi{n}", {f"hi{n}-0": f"n{n}"}, {f"PodGroup/low{n}": [f"low{n}-0"]})
        stage.start(stage.parts.evictor.run())
        names = [f"default/low{n}-0" for n in reversed(numbers)]
        await asked(stage, *(f"low{n}-0" for n in numbers))
        assert evicted(stage) == names


async def test_a_pass_does_not_repeat_a_deletion_that_is_being_requested():
    """The view may show a victim as running until after the answer: passes during the request add no other one."""
    async with await full() as stage:
        tries, answer = [], asyncio.Event()

        async def evict(pod, how):
            tries.append(pod.name)
            await answer.wait()

        stage.cluster.evict = evict
        await ordered(stage)
        for _ in range(3):
            stage.parts.evictor.sync(stage.cluster.seen, stage.leader.committed)
            await rest()
        answer.set()
        await rest()
        assert sorted(tries) == ["low-0", "low-1"]


async def test_a_victim_that_ends_by_itself_counts_as_gone():
    """No deletion is asked for what is gone; its capacity is free, and the log has `ended` for it."""
    async with await full(evicting=False) as stage:
        await ordered(stage)
        await stage.one_pass()
        stage.cluster.delete_pod("low-0")
        await stage.one_pass()
        stage.start(stage.parts.evictor.run())
        await asked(stage, "low-1")
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        assert [f.via for f in stage.event_data(VictimGone)] == ["ended", "deleted"]
        assert evicted(stage) == ["default/low-1"]
        assert stage.event_data(GangAdmitted)


async def test_a_better_offer_spares_what_was_not_begun():
    """Capacity appears elsewhere before a deletion was asked for: the tree is admitted there, and no pod is evicted."""
    async with await full(evicting=False) as stage:
        await ordered(stage)
        stage.cluster.add(a_node("n8", gpu=1), a_node("n9", gpu=1))
        await stage.settled()
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.units_spared, end.units_in_progress) == (
            "no-longer-needed", ("PodGroup/default/low",), (),
        )  # fmt: skip
        assert set(stage.where("hi").values()) == {"n8", "n9"}
        stage.start(stage.parts.evictor.run())
        await stage.settled()
        await rest()
        assert not evicted(stage)
        assert not stage.leader.committed.preemptions


async def test_a_better_offer_lets_a_begun_unit_go_whole():
    """Half a gang is of no use: of two units the one that was begun goes whole, the other stays."""
    more = [*lows("n2", "n3", group="other"), a_node("n2", gpu=1), a_node("n3", gpu=1)]
    async with await full(*more) as stage:
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable("not now") if verb == "evict" and name != "default/low-0" else None
        )
        victims = {"PodGroup/low": ["low-0", "low-1"], "PodGroup/other": ["other-0", "other-1"]}
        # the API server took the first deletion only; those of `other` never began
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable("not now")
            if (verb, name) == ("evict", "default/low-1") or "other" in name
            else None
        )
        await ordered(stage, victims)
        await asked(stage, "low-0")
        stage.cluster.add(a_node("n8", gpu=1), a_node("n9", gpu=1))
        await stage.settled()
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.units_spared, end.units_in_progress) == (
            "no-longer-needed", ("PodGroup/default/other",), ("PodGroup/default/low",),
        )  # fmt: skip
        stage.cluster.fault = lambda verb, name: None
        stage.later(5)
        await asked(stage, "low-1")
        for name in ("low-0", "low-1"):
            stage.cluster.delete_pod(name)
        await stage.settled()
        assert set(evicted(stage)) == {"default/low-0", "default/low-1"}
        assert [f.via for f in stage.event_data(VictimGone)] == ["deleted", "deleted"]
        assert not stage.leader.committed.preemptions


async def test_a_unit_that_kube_scheduler_began_goes_whole():
    """It evicts for a lone pod itself, and binds it before we have asked for a deletion: the rest of the gang goes too."""
    vip = a_pod("vip", requests=ONE, priority=100)
    own_nodes = [a_node(name, gpu=1) for name in ("n0", "n1")]
    async with Stage(*own_nodes, *lows("n0", "n1"), vip) as stage:
        await stage.lead()
        await stage.one_pass()
        offered = [NodeCandidate(node="n0", victims=(stage.cluster.pod("low-0").uid,))]
        await stage.extender_service.preempt(stage.cluster.pod("vip"), offered)
        stage.cluster.change_pod("low-0", disruption_target="PreemptionByScheduler")
        stage.cluster.delete_pod("low-0")
        stage.cluster.change_pod("vip", node="n0")
        await stage.one_pass()
        assert [f.via for f in stage.event_data(VictimGone)] == ["deleted"]
        assert stage.event_data(PreemptionCompleted)
        stage.start(stage.parts.evictor.run())
        await asked(stage, "low-1")
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        assert {f.pod for f in stage.event_data(VictimGone)} == {"default/low-0", "default/low-1"}
        assert not stage.leader.committed.preemptions


async def test_a_preemptor_deleted_half_way():
    """Its capacity is given back at once; what was not begun stays, what was begun goes whole."""
    more = [*lows("n2", group="other"), a_node("n2", gpu=1), a_pod("single", requests=ONE)]
    async with await full(*more) as stage:
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable("not now") if "other" in name else None
        )
        victims = {"PodGroup/low": ["low-0", "low-1"], "PodGroup/other": ["other-0"]}
        await ordered(stage, victims)
        await asked(stage, "low-0")
        for name in ("hi-0", "hi-1"):
            stage.cluster.delete_pod(name)
        stage.cluster.delete_group("hi")
        await stage.settled()
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.units_spared) == ("preemptor-deleted", ("PodGroup/default/other",))
        assert stage.names().index("PreemptionCancelled") < stage.names().index("GangRemoved")
        assert not list(claims_of((), stage.leader.committed.preemptions.values(), ()))
        stage.cluster.fault = lambda verb, name: None
        for name in ("low-0", "low-1"):
            stage.cluster.delete_pod(name)
        await stage.settled()
        assert not {name for name in evicted(stage) if "other" in name}
        assert not stage.leader.committed.preemptions


async def test_victims_that_do_not_go_are_reported_and_no_others_evicted():
    """A finalizer keeps one: the condition of `hi` and the metric name it; no other pod is deleted."""
    async with await full(*lows("n2", group="other"), a_node("n2", gpu=1)) as stage:
        stage.start(stage.reporter.run())
        stage.cluster.deletes_us = stage.clock.now_us()
        await ordered(stage)
        await asked(stage, "low-0", "low-1")
        stage.cluster.delete_pod("low-0")
        stage.later(3600)
        await stage.settled()
        stage.conditions_due()
        await eventually(
            lambda: any(
                "pod default/low-1 is still there after its grace period" in c[3]
                for c in stage.cluster.group("hi").conditions
            )
        )
        assert stage.parts.evictor.stall_reasons
        assert not stage.event_data(PreemptionCancelled), (
            "it terminates: the capacity is still coming"
        )
        assert set(evicted(stage)) == {"default/low-0", "default/low-1"}


async def test_a_deletion_that_is_refused_is_asked_again_and_given_up_in_the_end():
    """429 of a budget, or a webhook that forbids it: tried again with its Retry-After, reported, cancelled after the TTL."""
    async with await full(eviction_method="eviction-api") as stage:
        stage.start(stage.reporter.run())
        tries = []

        def refuses(verb, name):
            if verb != "evict":
                return None
            tries.append(name)
            if name.endswith("0"):
                text = "429: budget default/pdb allows no more"
                return ClusterUnavailable(text, retry_after_s=7, refused=True)
            return RequestRejected("400: a webhook denied the request")

        stage.cluster.fault = refuses
        await ordered(stage)
        await stage.one_pass()
        await rest()
        assert sorted(tries) == ["default/low-0", "default/low-1"]
        await stage.one_pass()
        await rest()
        assert len(tries) == 2, "not before its time"
        for _ in range(2):
            stage.later(31)
            await stage.one_pass()
            await rest()
        assert tries.count("default/low-0") >= 3
        assert "cannot be deleted: 429: budget" in str(stage.parts.evictor.stall_reasons)
        stage.later(301)
        await stage.settled()
        (end,) = stage.event_data(PreemptionCancelled)
        assert (end.reason, end.units_spared, end.units_in_progress) == (
            "deletion-rejected", ("PodGroup/default/low",), (),
        )  # fmt: skip
        assert not list(claims_of((), stage.leader.committed.preemptions.values(), ()))


async def test_eviction_goes_through_the_api_that_is_set():
    """GANG_EXTENDER_EVICTION_METHOD=eviction-api: the Eviction API, and the log has `evicted`."""
    async with await full(eviction_method="eviction-api") as stage:
        stage.cluster.obeys = True
        await ordered(stage)
        await asked(stage, "low-0", "low-1")
        await stage.settled()
        assert {how for _, how in stage.cluster.did("evict")} == {"evicted"}
        assert {f.via for f in stage.event_data(VictimGone)} == {"evicted"}


async def test_a_reservation_does_not_expire_while_victims_go():
    """Its time to live counts from progress and stands still while recorded victims are going."""
    more = [*lows("n2", group="far"), a_node("n2", gpu=1)]
    async with await full(*more) as stage:
        victims = {"PodGroup/low": ["low-0", "low-1"], "PodGroup/far": ["far-0"]}
        await ordered(stage, victims)
        await asked(stage, "low-0", "low-1", "far-0")
        stage.cluster.delete_pod("low-0")
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        assert stage.where("hi") == {"hi-0": "n0", "hi-1": "n1"}
        stage.later(1000)
        await stage.settled()
        assert stage.where("hi")
        stage.cluster.delete_pod("far-0")
        await stage.settled()
        assert not stage.event_data(ReservationReleased), "a victim that goes is progress"
        stage.later(1000)
        await stage.one_pass()
        assert [f.reason for f in stage.event_data(ReservationReleased)] == ["expired"]


async def test_capacity_of_a_victim_that_is_gone_is_no_better_offer():
    """One pod of a unit is gone and its capacity is enough: admitted there, the rest of the unit goes, completed."""
    async with await full() as stage:
        plan = await ordered(stage, where={"hi-0": "n0"})
        stage.cluster.change_group("hi", minimum=1)
        stage.cluster.delete_pod("hi-1")
        await asked(stage, "low-0", "low-1")
        stage.cluster.delete_pod("low-1")
        await stage.settled()
        assert stage.where("hi") == {"hi-0": "n1"}
        await stage.bind("hi-0")
        await stage.settled()
        assert not stage.event_data(PreemptionCancelled)
        (done,) = stage.event_data(PreemptionCompleted)
        assert (done.preemption, done.bound, done.evicted) == (plan.preemption, 1, 1)
        stage.cluster.delete_pod("low-0")
        await stage.settled()
        assert len(stage.event_data(VictimGone)) == 2
        assert not stage.leader.committed.preemptions
