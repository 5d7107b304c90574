"""No member of a gang is bound before its whole minimum has reached bind; nothing is bound in vain."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.binding.bind_barrier import UNSURE_MS
from extender.core.log.events import (
    BindBarrierTimedOut,
    DriftDetected,
    MemberTerminated,
    PodBindFailed,
    PodBound,
    ReservationReleased,
)
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.pod_groups import composite_key
from extender.core.model.pods import GATE, PodEnd
from tests.support.service.fakes import Stage, check_state
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

SOON_S = 0.15  # a barrier's timer runs on the loop's clock


async def admitted(*objects, **settings):
    """A stage on which every tree of `objects` is admitted and nothing is bound."""
    stage = Stage(a_node("n0", gpu=8), a_node("n1", gpu=8), *objects, **settings)
    await stage.lead()
    await stage.one_pass()
    return stage


async def quiet():
    """Let every task that can run have run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_opens_exactly_when_the_minimum_is_there():
    """Three of four wait and nothing is posted; the fourth opens, all four are bound, each once."""
    async with await admitted(*a_gang("g", pods=4)) as stage:
        calls = [stage.bind(f"g-{n}") for n in range(3)]
        await quiet()
        assert stage.cluster.did("bind") == []
        assert not any(call.done() for call in calls)
        calls.append(stage.bind("g-3"))
        assert await asyncio.gather(*calls) == ["", "", "", ""]
        assert sorted(name for name, _ in stage.cluster.did("bind")) == [
            f"default/g-{n}" for n in range(4)
        ]
        await stage.settled()
        assert stage.names().count("PodBound") == 4
        assert stage.names().count("GangScheduled") == 1


async def test_the_plan_travels_with_the_binding():
    """Every Binding names its admission, its UID and the reserved node."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        plan, where = stage.root("g").plan, stage.where("g")
        await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))
        assert {(b.pod.name, b.pod.uid, b.node, b.plan) for b in stage.cluster.bindings} == {
            (name, stage.cluster.pod(name).uid, node, plan) for name, node in where.items()
        }


async def test_equal_calls_join():
    """A second call for the same pod gets the same answer from one Binding, and counts once."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        twins = [stage.bind("g-0"), stage.bind("g-0")]
        await quiet()
        assert stage.cluster.did("bind") == []
        assert await asyncio.gather(*twins, stage.bind("g-1")) == ["", "", ""]
        assert len(stage.cluster.did("bind")) == 2


async def test_dead_callers_do_not_count():
    """A member whose caller has gone is not at the barrier; when it calls again, the gang goes."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        connected = [True]
        gone = stage.bind("g-0", alive=lambda: connected[0])
        await quiet()
        connected[0] = False
        held = stage.bind("g-1")
        await quiet()
        assert not held.done()
        assert stage.cluster.did("bind") == []
        again = stage.bind("g-0")
        assert await asyncio.gather(again, held) == ["", ""]
        assert await gone in ("", "the caller has gone"), "its answer goes nowhere, but it ends"


async def test_a_dead_caller_is_not_bound_behind_its_back():
    """An extra whose caller went away after the barrier opened is not posted."""
    async with await admitted(*a_gang("g", pods=2, minimum=1)) as stage:
        assert await stage.bind("g-0") == ""
        assert await stage.bind("g-1", alive=lambda: False) == "the caller has gone"
        assert [name for name, _ in stage.cluster.did("bind")] == ["default/g-0"]


async def test_the_deadline_binds_no_pod_and_is_recorded_first():
    """BindBarrierTimedOut and the release are durable before the error is answered; no pod was bound."""
    async with await admitted(*a_gang("g", pods=3), barrier_timeout_s=SOON_S) as stage:
        calls = [stage.bind("g-0"), stage.bind("g-1")]
        seen = []
        for call in calls:
            call.add_done_callback(lambda _: seen.append(stage.names()[-2:]))
        errors = await asyncio.gather(*calls)
        assert all("not all of its minimum reached bind" in error for error in errors)
        assert seen == [["BindBarrierTimedOut", "ReservationReleased"]] * 2
        (expired,) = stage.event_data(BindBarrierTimedOut)
        assert expired.arrived == ("default/g-0", "default/g-1")
        assert expired.missing == ("default/g-2",)
        assert not expired.still_arriving
        assert "still arriving" not in stage.root("g").bind_failure.sentence()
        (released,) = stage.event_data(ReservationReleased)
        assert (released.reason, len(released.pods)) == ("expired", 3)
        assert stage.cluster.did("bind") == []
        assert not stage.root("g").reservations


@pytest.fixture
async def pass_time(monkeypatch):
    """Return a coroutine that lets seconds pass for everything that waits for the clock of the event loop."""
    loop = asyncio.get_running_loop()
    real_s, passed_s = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real_s() + passed_s[0])

    async def passed(seconds):
        await quiet()
        passed_s[0] += seconds
        await quiet()

    return passed


async def test_calls_wait_while_members_arrive(pass_time):
    """The timeout is for the next member: three members that come 15 s apart are bound with a timeout of 20 s."""
    async with await admitted(*a_gang("g", pods=3)) as stage:
        assert stage.settings.barrier_timeout_s == 20
        calls = [stage.bind("g-0")]
        await pass_time(15)
        calls.append(stage.bind("g-1"))
        await pass_time(15)
        again = stage.bind("g-1")  # not another member
        await pass_time(4)
        assert stage.cluster.did("bind") == []
        assert await asyncio.gather(stage.bind("g-2"), again, *calls) == [""] * 4


async def test_a_second_call_of_a_member_is_not_waited_for(pass_time):
    """It lets the others wait no longer: the timeout counts from the latest member."""
    async with await admitted(*a_gang("g", pods=3)) as stage:
        calls = [stage.bind("g-0"), stage.bind("g-1")]
        await pass_time(15)
        calls.append(stage.bind("g-1"))
        await pass_time(6)
        assert all("not all of its minimum" in error for error in await asyncio.gather(*calls))


async def test_the_time_for_the_bindings_is_left_however_slowly_members_arrive(pass_time):
    """kube-scheduler gives a call up after its httpTimeout; the answer and the log name the settings to raise."""
    async with await admitted(*a_gang("g", pods=5)) as stage:
        assert stage.settings.barrier_limit_s == pytest.approx(45)
        calls = [stage.bind("g-0")]
        for name, after_s in (("g-1", 15), ("g-2", 15), ("g-3", 14)):
            await pass_time(after_s)
            calls.append(stage.bind(name))
        await pass_time(0.5)
        assert not any(call.done() for call in calls)
        await pass_time(0.6)
        errors = await asyncio.gather(*calls)
        assert all("GANG_EXTENDER_BIND_TIMEOUT_S" in error for error in errors)
        (expired,) = stage.event_data(BindBarrierTimedOut)
        assert expired.still_arriving
        assert expired.missing == ("default/g-4",)
        failure = stage.root("g").bind_failure.sentence()
        assert "were still arriving: raise httpTimeout of the bind entry" in failure


async def test_after_a_deadline_the_tree_is_planned_again():
    """The next pass admits it anew, and the old nominations do not stand in its way."""
    async with await admitted(*a_gang("g", pods=16), barrier_timeout_s=SOON_S) as stage:
        for name, node in stage.where("g").items():
            stage.cluster.change_pod(name, nominated=node)
        await stage.bind("g-0")
        assert not stage.root("g").reservations
        await stage.one_pass()
        assert len(stage.root("g").reservations) == 16
        assert stage.names().count("GangAdmitted") == 2


async def test_a_started_gang_is_completed():
    """A member bound already counts; a restart forgets the barrier but not what is bound."""
    stage = await admitted(*a_gang("g", pods=2))
    async with stage:
        stage.cluster.change_pod("g-0", node=stage.reserved_node("g-0"))
        await stage.settled()
        assert await stage.bind("g-1") == ""


async def test_a_deadline_of_a_started_gang_gives_nothing_back():
    """With a member bound the calls get their error, but capacity that completes the minimum is kept."""
    async with await admitted(*a_gang("g", pods=3), barrier_timeout_s=SOON_S) as stage:
        stage.cluster.change_pod("g-0", node=stage.reserved_node("g-0"))
        await stage.settled()
        assert "not all of its minimum" in await stage.bind("g-1")
        assert len(stage.event_data(BindBarrierTimedOut)) == 1
        assert stage.event_data(ReservationReleased) == []
        assert len(stage.root("g").reservations) == 2


async def test_a_deadline_of_a_started_gang_gives_back_what_cannot_complete_its_minimum():
    """What is bound and what is reserved are fewer than the minimum: no arrival opens the barrier, so the capacity is free."""
    async with await admitted(*a_gang("g", pods=3), barrier_timeout_s=SOON_S) as stage:
        stage.cluster.change_pod("g-0", node=stage.reserved_node("g-0"))
        await stage.settled()
        stage.cluster.delete_pod("g-2")
        await stage.one_pass()
        assert list(stage.where("g")) == ["g-1"]
        assert "not all of its minimum" in await stage.bind("g-1")
        (expired,) = stage.event_data(BindBarrierTimedOut)
        assert (expired.arrived, expired.missing) == (("default/g-1",), ())
        assert stage.root("g").bind_failure.sentence() == (
            "the bind barrier timed out: 1 member waited, and the rest of its minimum has no reservation"
        )
        released = stage.event_data(ReservationReleased)[-1]
        assert (released.reason, [p.pod for p in released.pods]) == ("expired", ["default/g-1"])
        assert stage.root("g").bound
        assert not stage.root("g").reservations


async def test_a_member_of_an_unrecorded_leaf_does_not_break_the_deadline():
    """A pod bound outside any admission, in a leaf the admission never saw, keeps no call waiting."""
    tree = [a_group("root", gang=1, composite=True), a_group("a", gang=2, parent="root"),
            a_pod("a-0", "a", requests={GPU: 1}), a_pod("a-1", "a", requests={GPU: 1})]  # fmt: skip
    async with await admitted(*tree, barrier_timeout_s=SOON_S) as stage:
        stage.cluster.add(a_group("new", gang=2, parent="root"), a_pod("new-0", "new", node="n0"))
        await stage.one_pass()
        assert len(stage.event_data(PodBound)) == 1
        error = await stage.bind("a-0")
        assert "not all of its minimum" in error


async def test_extras_pass_once_the_minimum_is_through():
    """Members beyond the minimum, and later ones, are bound as they come."""
    async with await admitted(*a_gang("g", pods=3, minimum=2)) as stage:
        assert await asyncio.gather(stage.bind("g-0"), stage.bind("g-1")) == ["", ""]
        assert await stage.bind("g-2") == ""
        await stage.settled()
        stage.cluster.add(a_pod("g-3", "g", requests={GPU: 1}))
        await stage.settled()
        assert await stage.bind("g-3") == ""


async def test_only_the_reserved_node_is_bound():
    """Another node is an error that names both; a pod without a reservation has to wait."""
    async with await admitted(
        *a_gang("g", pods=1), *a_gang("big", pods=1, requests={GPU: 99})
    ) as stage:
        node = stage.reserved_node("g-0")
        other = "n1" if node == "n0" else "n0"
        error = await stage.bind("g-0", other)
        assert (
            error
            == f"pod default/g-0 has its reservation on node {node}, not on {other}; nothing was bound"
        )
        assert "holds no reservation" in await stage.bind("big-0", "n0")
        assert stage.cluster.did("bind") == []


async def test_a_call_that_is_too_old_is_not_posted():
    """No Binding is posted near kube-scheduler's own timeout: it would forget the pod and bind it twice."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        old = stage.bind("g-0")
        await quiet()
        stage.clock.advance(stage.settings.bind_post_within_ms / 1000 + 0.001)
        stage.leader.lease.until_ms = stage.clock.monotonic_ms() + 1000
        assert await stage.bind("g-1") == ""
        assert await old == "too late: kube-scheduler is about to give this call up"
        assert [name for name, _ in stage.cluster.did("bind")] == ["default/g-1"]


async def test_busy_api_servers_are_asked_again():
    """429 and 5xx are retried; the gang is bound in the end."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        faults = [ClusterUnavailable("429"), ClusterUnavailable("503")]
        stage.cluster.fault = lambda verb, name: (
            faults.pop() if verb == "bind" and name == "default/g-0" and faults else None
        )
        assert await asyncio.gather(stage.bind("g-0"), stage.bind("g-1")) == ["", ""]
        assert faults == []
        assert stage.event_data(PodBindFailed) == []


async def test_a_member_whose_binding_got_no_answer_may_be_bound_for_a_while():
    async with await admitted(*a_gang("g", pods=2)) as stage:
        stage.cluster.fault = lambda verb, name: (
            ClusterUnavailable("503") if (verb, name) == ("bind", "default/g-0") else None
        )
        calls = [stage.bind("g-0"), stage.bind("g-1")]
        assert await calls[1] == ""
        await eventually(lambda: len(stage.cluster.did("bind")) == 1)
        uid = stage.ref("g-0").uid
        await eventually(lambda: uid not in stage.barriers.binding())
        assert uid in stage.barriers.maybe_bound()
        stage.clock.advance(UNSURE_MS / 1000 + 0.001)
        assert uid not in stage.barriers.maybe_bound()
        await asyncio.wait(calls)


async def test_a_refused_binding_is_recorded():
    """A Binding refused for good is an event and an error; the others of the started gang go on."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        stage.cluster.fault = lambda verb, name: (
            RequestRejected("409 conflict") if (verb, name) == ("bind", "default/g-0") else None
        )
        assert await asyncio.gather(stage.bind("g-0"), stage.bind("g-1")) == ["409 conflict", ""]
        assert [(f.pod, f.error) for f in stage.event_data(PodBindFailed)] == [
            ("default/g-0", "409 conflict")
        ]


async def test_a_refused_binding_of_a_root_that_is_gone_is_answered_with_the_refusal():
    """The root is deleted while its Binding is under way: the caller gets the API server's words, and then the root ends."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        stage.cluster.go.clear()
        call = stage.bind("g-0")
        await quiet()
        stage.cluster.delete_group("g")
        await stage.one_pass()
        assert stage.root("g").reservations  # the Binding may be accepted yet
        stage.cluster.fault = lambda verb, name: (
            RequestRejected("404 not found") if verb == "bind" else None
        )
        stage.cluster.go.set()
        assert await call == "404 not found"
        await stage.one_pass()
        assert stage.root("g") is None


@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "refused"])
async def test_a_group_that_is_made_again_waits_for_the_binding_of_the_old_one(accepted):
    """Its pod belongs to one root at a time: it is not planned for the new one before the API server has answered."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        old = stage.root("g").uid
        stage.cluster.go.clear()
        call = stage.bind("g-0")
        await quiet()
        stage.cluster.delete_group("g")
        again = a_group("g", gang=1)
        again["metadata"]["uid"] = "g-again"
        stage.cluster.add(again)
        for _ in range(2):
            await stage.one_pass()
            check_state(stage.leader.committed)
        assert set(stage.leader.committed.gangs) == {old}
        stage.cluster.fault = lambda verb, name: (
            RequestRejected("404 not found") if verb == "bind" and not accepted else None
        )
        stage.cluster.go.set()
        assert await call == ("" if accepted else "404 not found")
        await stage.one_pass()
        await stage.one_pass()
        check_state(stage.leader.committed)
        (root,) = stage.leader.committed.gangs.values()
        assert root.uid == "g-again"
        assert root.phase == ("scheduled" if accepted else "admitted")


async def test_a_lost_lease_stops_the_posting():
    """Half of the gang is posted when the lease runs out: the rest is not, and the error has the reason."""
    async with await admitted(*a_gang("g", pods=2)) as stage:

        def fault(verb, name):
            if (verb, name) == ("bind", "default/g-1"):
                stage.clock.advance(60)
                return ClusterUnavailable("503")
            return None

        stage.cluster.fault = fault
        answers = await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))
        assert answers == ["", "cannot answer now: the lease has run out"]
        assert [name for name, _ in stage.cluster.did("bind")] == ["default/g-0"]


async def test_a_released_reservation_is_not_bound():
    """When the tree is released while its members wait their calls are answered, and nothing is posted."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        call = stage.bind("g-0")
        await quiet()
        stage.cluster.delete_pod("g-1")
        await stage.one_pass()
        assert "was released; it will be planned again" in await call
        assert stage.cluster.did("bind") == []


async def test_a_release_on_its_way_to_the_log_stops_the_posting():
    """Its capacity is being given to others already: the gang that becomes whole meanwhile is not bound there."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        durable = asyncio.Event()
        append = stage.log.append

        async def late(*args):
            await durable.wait()
            await append(*args)

        stage.log.append = late
        first = stage.bind("g-0")
        await quiet()
        stage.cluster.change_node(stage.where("g")["g-1"], unschedulable=True)
        passing = stage.start(stage.one_pass())
        await quiet()
        answer = await stage.bind("g-1")
        assert "was released; it will be planned again" in answer
        assert stage.cluster.did("bind") == []
        durable.set()
        await passing
        assert await first


async def test_capacity_is_not_given_back_while_a_binding_is_on_its_way():
    """The node is cordoned when the Binding has been sent: it may come through, so nothing is planned anew."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        stage.cluster.go.clear()
        call = stage.bind("g-0")
        await quiet()
        stage.cluster.change_node(stage.where("g")["g-0"], unschedulable=True)
        await stage.one_pass()
        assert stage.event_data(ReservationReleased) == []
        stage.cluster.go.set()
        assert await call == ""
        await stage.settled()
        assert stage.event_data(ReservationReleased, DriftDetected) == []
        assert stage.names().count("GangScheduled") == 1


@pytest.mark.parametrize(
    "error", [ClusterUnavailable("503"), RequestRejected("409 conflict")], ids=["busy", "refused"]
)
async def test_capacity_is_given_back_when_the_binding_did_not_get_through(error):
    """The same, and the API server refuses the binding: the member goes to the other node."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        stage.cluster.go.clear()
        call = stage.bind("g-0")
        await quiet()
        first = stage.where("g")["g-0"]
        stage.cluster.change_node(first, unschedulable=True)
        await stage.one_pass()
        stage.cluster.fault = lambda verb, name: error if verb == "bind" else None
        stage.cluster.go.set()
        await eventually(lambda: not stage.barriers.binding())
        await stage.one_pass()
        stage.cluster.fault = lambda verb, name: None
        assert await call
        assert [f.reason for f in stage.event_data(ReservationReleased)] == ["node-lost"]
        await stage.settled()
        assert stage.where("g")["g-0"] != first


async def test_a_bound_member_that_vanishes_unseen_gives_its_capacity_back():
    """Bound and deleted before the informers show either: no reservation is kept for it."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        before = stage.cluster.pod("g-0")
        assert await stage.bind("g-0") == ""
        stage.cluster.change_pod("g-0", node=None, phase=before.phase)  # not seen yet
        await stage.one_pass()
        assert stage.event_data(ReservationReleased) == []
        stage.cluster.delete_pod("g-0")
        await stage.one_pass()
        await eventually(lambda: not stage.parts.termination_reasons.awaited, "what became of it")
        await stage.one_pass()
        assert [type(f) for f in stage.event_data(PodBound, MemberTerminated)] == [
            PodBound,
            MemberTerminated,
        ]
        assert stage.event_data(ReservationReleased) == []
        assert not stage.root("g").reservations


async def test_a_barrier_whose_bound_members_are_lost_waits_for_the_minimum_again():
    """One of two is bound, the other Binding fails, and the bound one is lost: its replacement does not go alone."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        refusal = RequestRejected("409 conflict")
        stage.cluster.fault = lambda verb, name: (
            refusal if (verb, name) == ("bind", "default/g-1") else None
        )
        assert sorted(await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))) == [
            "",
            "409 conflict",
        ]
        stage.cluster.fault = lambda verb, name: None
        await stage.settled()
        stage.cluster.delete_pod("g-0")
        stage.cluster.add(a_pod("g-0", "g", requests={GPU: 1}, uid="again"))
        await stage.settled()
        assert len(stage.event_data(MemberTerminated)) == 1
        assert set(stage.where("g")) == {"g-0", "g-1"}
        held = stage.bind("g-0")
        await quiet()
        assert not held.done()
        assert await asyncio.gather(held, stage.bind("g-1")) == ["", ""]


async def test_a_member_that_has_succeeded_counts_for_the_barrier():
    """One of two is bound and ends well before the other Binding is tried again: the minimum has arrived."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        refusal = RequestRejected("409 conflict")
        stage.cluster.fault = lambda verb, name: (
            refusal if (verb, name) == ("bind", "default/g-1") else None
        )
        await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))
        stage.cluster.fault = lambda verb, name: None
        await stage.settled()
        stage.cluster.end_pod("g-0", PodEnd("ended", "Succeeded", "n0"))
        await stage.settled()
        await stage.one_pass()  # the API server was asked how it ended
        assert stage.root("g").succeeded == {"g": 1}
        assert await stage.bind("g-1") == ""


BASIC = [
    a_group("root", composite=True),
    a_group("left", gang=2, parent="root"),
    a_group("right", gang=2, parent="root"),
    *(a_pod(f"left-{n}", "left", requests={GPU: 1}) for n in range(2)),
    *(a_pod(f"right-{n}", "right", requests={GPU: 1}) for n in range(2)),
]


async def test_below_a_basic_root_each_child_has_its_own_barrier():
    """One child goes when it is whole; it waits for no sibling and opens no sibling's barrier."""
    async with await admitted(*BASIC) as stage:
        waiting = stage.bind("right-0")
        await quiet()
        assert await asyncio.gather(stage.bind("left-0"), stage.bind("left-1")) == ["", ""]
        await stage.settled()
        assert not waiting.done()
        assert await stage.bind("right-1") == ""
        assert await waiting == ""


async def test_a_leaf_named_like_its_root_has_its_own_barrier():
    """Kinds have names of their own: PodGroup serve below CompositePodGroup serve waits for its own minimum."""
    objects = [
        a_group("serve", composite=True),
        a_group("serve", gang=2, parent="serve"),
        a_group("other", gang=1, parent="serve"),
        *(a_pod(f"serve-{n}", "serve", requests={GPU: 1}) for n in range(2)),
        a_pod("other-0", "other", requests={GPU: 1}),
    ]
    async with await admitted(*objects) as stage:
        assert await stage.bind("other-0") == ""
        await stage.settled()
        assert composite_key("default", "serve") in stage.cluster.seen.groups
        held = stage.bind("serve-0")
        await quiet()
        assert not held.done()
        assert await asyncio.gather(held, stage.bind("serve-1")) == ["", ""]


async def test_a_gang_root_waits_for_all_its_children():
    """The unit of a gang root is the root: its first child does not go alone."""
    tree = [a_group("root", gang=2, composite=True), *BASIC[1:]]
    async with await admitted(*tree) as stage:
        calls = [stage.bind(name) for name in ("left-0", "left-1", "right-0")]
        await quiet()
        assert stage.cluster.did("bind") == []
        assert await asyncio.gather(*calls, stage.bind("right-1")) == [""] * 4


async def test_two_gangs_do_not_open_each_other():
    """Interleaved calls of two gangs: each opens by its own members only."""
    async with await admitted(*a_gang("a", pods=2), *a_gang("b", pods=2)) as stage:
        held = [stage.bind("a-0"), stage.bind("b-0")]
        await quiet()
        assert await stage.bind("a-1") == ""
        assert await held[0] == ""
        assert not held[1].done()


async def test_stopping_answers_every_call():
    """A clean stop leaves no call without an answer."""
    async with await admitted(*a_gang("g", pods=2)) as stage:
        call = stage.bind("g-0")
        await quiet()
        await stage.barriers.stop()
        assert await call == "cannot answer now: stopping"


async def test_pods_outside_all_groups_are_not_bound():
    """The configuration of kube-scheduler does not send them; the refusal has what would help."""
    async with await admitted(a_pod("alone")) as stage:
        ref = stage.ref("alone")
        error = await stage.extender_service.bind(ref, "n0", lambda: True)
        assert "names no group, so kube-scheduler binds it: remove the resource" in error
        assert stage.cluster.did("bind") == []


async def test_an_unready_service_binds_nothing():
    """Not leading, or not synced: an error with the reason; an unseen pod likewise."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        stage.cluster.doubted = "no news for 40 s"
        assert await stage.bind("g-0") == "cannot answer now: cluster: no news for 40 s"
        stage.cluster.doubted = ""
        ref = stage.ref("g-0")
        stage.cluster.delete_pod("g-0")
        error = await stage.extender_service.bind(ref, "n0", lambda: True)
        assert error == "cannot answer now: pod default/g-0 has not been seen yet"


@pytest.mark.parametrize("gates", [(), (GATE,)])
async def test_barriers_are_forgotten_with_their_roots(gates):
    """After a root is gone nothing of it is kept here."""
    async with await admitted(*a_gang("g", pods=1)) as stage:
        assert await stage.bind("g-0") == ""
        assert stage.barriers.started() == {stage.cluster.group("g").uid}
        stage.cluster.delete_group("g")
        stage.cluster.delete_pod("g-0")
        for _ in range(2):  # how it ended is looked up, then the root ends
            await stage.settled()
        assert stage.barriers.started() == frozenset()
        assert stage.barriers._progress_us == {}


async def test_it_stays_shut_when_others_are_seen_in_the_capacity():
    """No pass has noticed yet: the last member comes, no pod is bound, and the next pass answers every call."""
    async with await admitted(*a_gang("g", pods=2, requests={GPU: 8})) as stage:
        calls = [stage.bind("g-0")]
        await quiet()
        stage.cluster.add(a_pod("alien", node=stage.reserved_node("g-1"), requests={GPU: 8}))
        calls.append(stage.bind("g-1"))
        await quiet()
        assert not any(call.done() for call in calls)
        await stage.one_pass()
        assert all("was released" in text for text in await asyncio.gather(*calls))
        assert stage.cluster.did("bind") == []
        (event,) = stage.event_data(ReservationReleased)
        assert (event.reason, len(event.pods)) == ("superseded", 2)


async def test_who_is_too_late_for_its_capacity_is_not_bound_into_it():
    """The gang has started; a member whose capacity is taken before its Binding is sent gets an error."""
    async with await admitted(*a_gang("g", pods=3, minimum=2, requests={GPU: 4})) as stage:
        assert await asyncio.gather(stage.bind("g-0"), stage.bind("g-1")) == ["", ""]
        stage.cluster.add(a_pod("alien", node=stage.reserved_node("g-2"), requests={GPU: 8}))
        assert "other pods took the reserved capacity of pod default/g-2" in await stage.bind("g-2")
        assert sorted(n for n, _ in stage.cluster.did("bind")) == ["default/g-0", "default/g-1"]
        await stage.one_pass()
        (event,) = stage.event_data(ReservationReleased)
        assert (event.reason, [p.pod for p in event.pods]) == ("superseded", ["default/g-2"])
