"""Admissions are carried out once, inside the lease; reasons are reported on change only."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from extender.control.actuators import nominator
from extender.control.actuators.nominator import Nominator, Step, next_step
from extender.core.log.reservation_state import claims_of_kind
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.pods import GATE
from extender.core.verbs.filter_and_prioritize import COMMITTED_LAST
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.admission.test_request_builder import Life

LAPSE_S = 60
REFUSED = f"0/1 nodes are available: 1 gang default/g: {COMMITTED_LAST}."


def gated(name="g", pods=2, **rest):
    labels = {"labels": {"app": "first"}}
    return a_gang(name, pods=pods, schedulingGates=GATED, metadata=labels, **rest)


async def leading(*objects, **rest):
    nodes = (a_node(name, {"zone": "z"}, gpu=8) for name in ("n0", "n1"))
    stage = Stage(*nodes, *objects, **rest)
    await stage.lead()
    return stage


async def carried_out(stage, *names):
    await eventually(lambda: all(not stage.cluster.pod(n).gates for n in names), "gates lifted")


async def rest(stage):
    for _ in range(30):
        await asyncio.sleep(0)


async def test_nominate_first_then_lift_the_gate_once():
    """A member is nominated on its reserved node before its gate is lifted; neither is done twice."""
    async with await leading(*gated()) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0", "g-1")
        await stage.settled()
        where = stage.where("g")
        for name in ("g-0", "g-1"):
            mine = [
                (verb, detail)
                for verb, pod, detail in stage.cluster.calls
                if pod == f"default/{name}"
            ]
            assert mine[:2] == [("nominate", where[name]), ("remove_gate", "")]
        assert len(stage.cluster.did("nominate")) == len(stage.cluster.did("remove_gate")) == 2


async def test_in_a_small_cluster_only_late_members_are_nominated():
    """kube-scheduler offers every node to filter there; a member that is at bind by then costs one request less."""
    async with await leading(*gated(pods=3), nomination_delay_ms=30) as stage:
        at_bind = set()
        stage.parts.nominator._arrived = at_bind.__contains__
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        where = stage.where("g")
        at_bind.add(stage.cluster.pod("g-0").uid)
        stage.cluster.change_pod("g-1", node=where["g-1"])
        await eventually(lambda: stage.cluster.did("nominate"), "the late member nominated")
        await stage.settled()
        assert stage.cluster.did("nominate") == [("default/g-2", where["g-2"])]
        removed = [name for name, _ in stage.cluster.did("remove_gate")]
        assert {"default/g-0", "default/g-2"} <= set(removed)
        late = [verb for verb, name, _ in stage.cluster.calls if name == "default/g-2"]
        assert late.index("remove_gate") < late.index("nominate")


@pytest.mark.parametrize(
    "why", ["nodes", "another pod waits", "other gate", "nominated", "held back", "by field"]
)
async def test_a_member_that_would_not_be_found_is_nominated_first(why):
    """Where kube-scheduler may not offer the node, or the pod cannot be tried at once, nothing is saved."""
    more = [a_node(f"m{n}", gpu=0) for n in range(99)] if why == "nodes" else []
    if why == "another pod waits":
        more = [a_pod("other", requests={"cpu": "1000"})]
    async with await leading(*gated(pods=1), *more, nomination_delay_ms=30) as stage:
        await stage.one_pass()
        (reservation,) = stage.root("g").reservations.values()
        changes = {
            "other gate": {"gates": (GATE, "example.com/other")},
            "nominated": {"nominated": "elsewhere"},
            "held back": {"unschedulable": REFUSED},
            "by field": {"by_field": True},
        }
        if why in changes:
            stage.cluster.change_pod("g-0", **changes[why])
        stage.start(stage.parts.nominator.run())
        await eventually(lambda: stage.cluster.did("remove_gate"), "gate removed")
        verbs = [verb for verb, name, _ in stage.cluster.calls if name == "default/g-0"]
        assert verbs.index("nominate") < verbs.index("remove_gate")
        assert stage.cluster.did("nominate") == [("default/g-0", reservation.node)]


async def test_after_a_crash_a_member_without_gate_is_nominated():
    """kill -9 between the removal of the gate and the late nomination: the next leader writes it."""
    async with await leading(*gated(pods=1), nomination_delay_ms=60_000) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0")
        where = stage.where("g")
        assert stage.cluster.did("nominate") == []
        await stage.killed()
        async with Stage(
            database=stage.database,
            cluster=stage.cluster,
            clock=stage.clock,
            nomination_delay_ms=60_000,
        ) as again:
            await again.lead()
            again.start(again.parts.nominator.run())
            await again.one_pass()
            await eventually(lambda: again.cluster.did("nominate"), "nominated by the next leader")
            assert again.cluster.did("nominate") == [("default/g-0", where["g-0"])]
            assert len(again.cluster.did("remove_gate")) == 1


@pytest.mark.parametrize("by", ["this leader", "an earlier leader"])
async def test_a_member_that_filter_refused_without_a_plan_is_woken_when_it_has_one(by):
    """It has no gate and is nominated on the same node as before, so only a change makes kube-scheduler try it again (K26)."""
    group, *members = a_gang("g", pods=2)
    async with await leading(group, *members) as stage:
        await stage.one_pass()
        where = stage.where("g")
        for name, node in where.items():
            stage.cluster.change_pod(name, nominated=node)
        stage.cluster.delete_group("g")
        await stage.one_pass()
        again = {**group, "metadata": {**group["metadata"], "uid": "again"}}
        stage.cluster.add(again)
        refused = stage.extender_service.filter(stage.cluster.pod("g-0"), [where["g-0"]])
        assert refused.outcome == "refused"
        if by == "an earlier leader":
            message = f"0/2 nodes are available: 2 {refused.reason}."
            stage.cluster.change_pod("g-0", unschedulable=message)
            stage.parts.exchange.held_back.clear()
        await stage.one_pass()
        assert stage.where("g") == where, "the case: nothing but the UID of the group differs"
        stage.start(stage.parts.nominator.run())
        await eventually(lambda: stage.cluster.did("nominate"), "g-0 nominated anew")
        await stage.settled()
        assert stage.cluster.did("nominate") == [
            ("default/g-0", None),
            ("default/g-0", where["g-0"]),
        ]


async def test_a_late_nomination_that_fails_is_tried_again_without_the_gate():
    """The request for the gate is not repeated, although the view may still show it."""
    async with await leading(*gated(pods=1), nomination_delay_ms=1) as stage:
        faults = [ClusterUnavailable("503")]
        stage.cluster.fault = lambda verb, _: (
            faults.pop() if verb == "nominate" and faults else None
        )
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await eventually(lambda: stage.cluster.pod("g-0").nominated, "nominated")
        await stage.settled()
        assert len(stage.cluster.did("remove_gate")) == 1
        assert not faults


async def test_tree_after_tree_is_let_go():
    """Trees that were admitted in one pass do not wait for one another's members."""
    gangs = {name: [f"{name}-{n}" for n in range(6)] for name in ("a", "b", "c", "d")}
    objects = [thing for name in gangs for thing in a_gang(name, pods=6, schedulingGates=GATED)]
    nodes = [a_node(f"n{number}", gpu=4) for number in range(6)]  # every node holds several trees
    async with await leading(*nodes, *objects) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, *(name for names in gangs.values() for name in names))
        trees = [name.split("/")[1][0] for name, _ in stage.cluster.did("nominate")]
        assert sorted(trees, key=trees.index) == trees
        assert len(trees) == 24


async def test_a_failure_does_not_change_the_order_of_trees(monkeypatch):
    """The member whose nomination failed is nominated before any member of a later tree."""
    monkeypatch.setattr(nominator, "API_REQUESTS_MAX", 1)
    async with await leading(*gated("a"), *gated("b")) as stage:
        faults = [ClusterUnavailable("503")]
        stage.cluster.fault = lambda verb, _: (
            faults.pop() if verb == "nominate" and faults else None
        )
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "a-0", "a-1", "b-0", "b-1")
        names = [name for name, _ in stage.cluster.did("nominate")]
        assert names == [f"default/{name}" for name in ("a-0", "a-1", "b-0", "b-1")]


@pytest.mark.parametrize(
    ("pod", "rest", "step"),
    [
        ({}, {}, Step.RELEASE),
        ({}, {"late": True}, Step.WAIT),
        ({"node": "n0"}, {"late": True}, Step.NOTHING),
        ({"nominated": "right", "gates": ()}, {}, Step.NOTHING),
        ({"nominated": "right"}, {}, Step.RELEASE),
        ({"nominated": "wrong", "gates": ()}, {}, Step.RELEASE),
        ({"nominated": "right", "gates": ()}, {"late": True}, Step.WAIT),
        ({"nominated": "right", "gates": ()}, {"held_back": True}, Step.RELEASE),
        (
            {"nominated": "right", "gates": (), "unschedulable": REFUSED},
            {},
            Step.RELEASE,
        ),
        ({"by_field": True}, {"late": True}, Step.WAIT),
        ({"by_field": True}, {"late": True, "at_once": True}, Step.RELEASE),
        (
            {"by_field": True, "nominated": "right", "gates": ()},
            {"held_back": True, "at_once": True},
            Step.NOTHING,
        ),
        ({"by_field": False}, {"late": True, "at_once": True}, Step.WAIT),
        (None, {}, Step.RELEASE),
    ],
)
async def test_the_next_step_of_a_reservation(pod, rest, step):
    """What the view shows as done is not repeated, except for members that filter has held back."""
    async with await leading(*gated(pods=1)) as stage:
        await stage.one_pass()
        (reservation,) = stage.root("g").reservations.values()
        if pod is None:
            stage.cluster.delete_pod("g-0")
        else:
            nodes = {"right": reservation.node, "wrong": "elsewhere"}
            stage.cluster.change_pod(
                "g-0", **{**pod, "nominated": nodes.get(pod.get("nominated", ""))}
            )
        late, held_back = rest.get("late", False), rest.get("held_back", False)
        found = next_step(
            reservation,
            stage.cluster.seen,
            SimpleNamespace(must_wait=lambda _: late),
            {reservation.uid} if held_back else set(),
            at_once=rest.get("at_once", False),
        )
        assert found is step


async def test_a_member_with_a_spread_rule_is_released_in_its_turn():
    """Its next step is not its own: the spread of the members that are released together decides."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "first"}},
    }
    async with await leading(*gated(pods=1, topologySpreadConstraints=[spread])) as stage:
        await stage.one_pass()
        (reservation,) = stage.root("g").reservations.values()
        stages = SimpleNamespace(must_wait=lambda _: False)
        found = next_step(reservation, stage.cluster.seen, stages, set(), at_once=False)
        assert found is Step.RELEASE_IN_TURN


async def test_a_nomination_that_vanished_is_not_written_again():
    """kube-scheduler cleared it: evidence, not a cue."""
    async with await leading(*gated()) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0", "g-1")
        stage.cluster.change_pod("g-0", nominated=None)
        await stage.settled()
        await rest(stage)
        assert len(stage.cluster.did("nominate")) == 2
        assert stage.cluster.pod("g-0").nominated is None


async def test_stale_nominations_are_cleared_in_the_order_of_names():
    """They are cleared one after the other; an order by hash would be another one in each process."""
    names = [f"g-{n}" for n in range(8)]
    async with await leading(*gated(pods=8, minimum=9)) as stage:
        stage.start(stage.parts.nominator.run())
        for name in names:
            stage.cluster.change_pod(name, nominated="n0")
        await stage.one_pass()
        await eventually(lambda: len(stage.cluster.did("nominate")) == 8, "the removals")
        assert [name for name, _ in stage.cluster.did("nominate")] == [
            f"default/{n}" for n in names
        ]


async def test_the_nomination_of_a_member_that_terminates_is_cleared():
    """A finalizer keeps the object, and kube-scheduler counts its nomination until it is gone."""
    async with await leading(*gated(minimum=3)) as stage:
        stage.start(stage.parts.nominator.run())
        stage.cluster.change_pod("g-0", nominated="n0", deleting=True)
        await stage.one_pass()
        await eventually(lambda: stage.cluster.pod("g-0").nominated is None, "the removal")


async def test_a_restart_does_not_repeat_what_the_view_shows():
    """After kill -9 only what is missing is done: here one nomination and one gate."""
    async with await leading(*gated(pods=3)) as stage:
        await stage.one_pass()
        where = stage.where("g")
        stage.cluster.change_pod("g-0", nominated=where["g-0"], gates=())
        stage.cluster.change_pod("g-1", nominated=where["g-1"])
        await stage.killed()
        async with Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock
        ) as again:
            await again.lead()
            again.start(again.parts.nominator.run())
            await again.one_pass()
            await carried_out(again, "g-1", "g-2")
            assert again.cluster.did("nominate") == [("default/g-2", where["g-2"])]
            assert sorted(n for n, _ in again.cluster.did("remove_gate")) == [
                "default/g-1",
                "default/g-2",
            ]
            assert again.names().count("GangAdmitted") == 1


async def test_a_busy_api_server_is_asked_again():
    """ClusterUnavailable is retried until it works."""
    async with await leading(*gated(pods=1)) as stage:
        faults = [ClusterUnavailable("429"), ClusterUnavailable("503")]
        stage.cluster.fault = lambda verb, _: (
            faults.pop() if faults and verb in ("nominate", "remove_gate") else None
        )
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0")
        assert len(stage.cluster.did("nominate")) == 1
        assert faults == []


async def test_a_pod_that_is_gone_stops_no_other_pod():
    """BindRefused ends the work on that pod; the others get theirs."""
    async with await leading(*gated(pods=2)) as stage:
        stage.cluster.fault = lambda verb, name: (
            RequestRejected("gone") if (verb, name) == ("nominate", "default/g-0") else None
        )
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-1")
        assert stage.cluster.pod("g-0").gates == (GATE,)


async def test_nothing_happens_outside_the_lease():
    """No nomination and no gate while the lease has run out, and all of it when it is ours again."""
    async with await leading(*gated(pods=2)) as stage:
        await stage.one_pass()
        stage.clock.advance(LAPSE_S)
        stage.start(stage.parts.nominator.run())
        await looked_again(stage)
        assert stage.cluster.calls == []
        stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await carried_out(stage, "g-0", "g-1")


async def test_the_lease_is_checked_before_each_request():
    """When it runs out during the nomination, the gate is not lifted."""
    async with await leading(*gated(pods=1)) as stage:
        stage.cluster.go.clear()
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await rest(stage)
        stage.clock.advance(LAPSE_S)
        stage.cluster.go.set()
        await eventually(lambda: stage.cluster.did("nominate"), "the nomination that was under way")
        await looked_again(stage)
        assert stage.cluster.did("remove_gate") == []


async def test_a_reservation_given_back_meanwhile_is_not_carried_out():
    """Between nomination and gate the tree may be released: its member stays held."""
    async with await leading(*gated(pods=2)) as stage:
        stage.cluster.go.clear()
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await rest(stage)
        stage.cluster.delete_pod("g-1")
        await stage.one_pass()
        stage.cluster.go.set()
        await eventually(lambda: stage.cluster.did("nominate"), "the nomination that was under way")
        await rest(stage)
        assert stage.cluster.did("remove_gate") == []


# --- the reporter


async def looked_again(stage):
    """Wait until work waits for the lease, and wake it once although the lease has run out."""
    await eventually(lambda: stage.leader.lease.prolonged.waiting, "work that waits for the lease")
    stage.leader.lease.prolonged.wake()
    await rest(stage)


async def reported(stage):
    reporter = stage.reporter
    stage.conditions_due()
    await eventually(lambda: not reporter._jobs._delayed and reporter._jobs.empty(), "the reporter")
    await rest(stage)


NEVER = (
    "PodGroup default/g can never be placed on these nodes, also when no other pod runs: it needs 17 pods; the cluster "
    "holds 16 (1 missing: nvidia.com/gpu). What would help: minCount 16 instead of 17 at PodGroup default/g"
)


async def test_a_pending_gang_has_one_condition_until_it_changes():
    """The reason stands on the group, written once; passes that see nothing new write nothing."""
    async with await leading(*gated(pods=17)) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        await reported(stage)
        await stage.settled()
        await reported(stage)
        ((_, message),) = stage.cluster.did("set_conditions")
        (condition,) = stage.cluster.group("g").conditions
        assert condition[:3] == ("PodGroupInitiallyScheduled", "False", "NeverFits")
        assert condition[3] == message
        assert message == NEVER


async def test_conditions_are_written_by_themselves(monkeypatch):
    """Without a request: what differs for long enough is written."""
    monkeypatch.setattr("extender.control.actuators.status_reporter.CONDITION_AFTER_S", 0.01)
    async with await leading(*gated(pods=17)) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        await eventually(lambda: stage.cluster.did("set_conditions"), "the condition")


async def both_bound(stage):
    """Run the reporter, and bind the two members of a gang."""
    stage.start(stage.reporter.run())
    await stage.one_pass()
    await asyncio.gather(stage.bind("g-0"), stage.bind("g-1"))
    await stage.settled()


async def test_satisfied_is_terminal():
    """True once the minimum is bound, and never taken back, whatever happens to the members."""
    async with await leading(*a_gang("g", pods=2)) as stage:
        await both_bound(stage)
        await reported(stage)
        assert stage.cluster.group("g").conditions[0][:3] == (
            "PodGroupInitiallyScheduled",
            "True",
            "Scheduled",
        )
        written = len(stage.cluster.did("set_conditions"))
        stage.cluster.delete_pod("g-0")
        stage.cluster.add(a_pod("g-2", "g", requests={GPU: 99}))
        await stage.settled()
        await eventually(lambda: not stage.parts.termination_reasons.awaited, "how g-0 ended")
        await stage.settled()
        await reported(stage)
        condition = stage.cluster.group("g").conditions[0]
        assert condition[1:3] == ("True", "Scheduled")
        assert "the rest of PodGroup default/g waits: it needs 2 pods" in condition[3], (
            "the new member has a reason, and it stands there"
        )
        count = len(stage.cluster.did("set_conditions"))
        assert count > written
        await stage.settled()
        await reported(stage)
        assert len(stage.cluster.did("set_conditions")) == count


async def test_members_that_come_one_by_one_cost_one_condition():
    """A gang of 4 is placed before its earlier reasons are due: only the last condition is written."""
    async with await leading(a_group("g", gang=4), a_pod("g-0", "g")) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        for number in range(1, 4):
            stage.cluster.add(a_pod(f"g-{number}", "g"))
            stage.later(6)
            await stage.settled()
        await asyncio.gather(*(stage.bind(f"g-{n}") for n in range(4)))
        await stage.settled()
        await reported(stage)
        ((_, message),) = stage.cluster.did("set_conditions")
        assert message.startswith("4 members bound")


async def test_a_reason_that_passes_is_not_reported():
    """Back to what stands there already: nothing else is handed over, and the adapter writes no equal one."""
    async with await leading(*gated(pods=17)) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        await reported(stage)
        (first,) = stage.cluster.did("set_conditions")
        gates = stage.cluster.pod("g-0").gates
        stage.cluster.change_pod("g-0", gates=(*gates, "example.com/quota"))
        stage.later(6)
        await stage.settled()
        assert stage.reporter._jobs._delayed, "the gang lacks a member now"
        stage.cluster.change_pod("g-0", gates=gates)
        stage.later(6)
        await stage.settled()
        await reported(stage)
        assert set(stage.cluster.did("set_conditions")) == {first}


async def test_satisfied_is_not_taken_back_before_it_is_reported():
    """True is terminal from when it became so, not from when it was written."""
    async with await leading(*a_gang("g", pods=2)) as stage:
        await both_bound(stage)
        assert not stage.cluster.did("set_conditions")
        for number in range(2):
            stage.cluster.delete_pod(f"g-{number}")
        await stage.settled()
        await reported(stage)
        assert stage.cluster.group("g").conditions[0][:2] == ("PodGroupInitiallyScheduled", "True")


@pytest.mark.parametrize("how", [gated, a_gang], ids=["gated", "not gated"])
async def test_waiting_pods_get_an_event_with_the_reason(how):
    """A member without capacity gets an Event with the reason of its tree, once the reason has stood for a moment."""
    async with await leading(*how("g", pods=17)) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        stage.clock.advance(2)
        await stage.settled()
        await stage.settled()
        await reported(stage)
        sent = [n for n in stage.cluster.notices if n.kind == "Pod"]
        assert sorted(n.name for n in sent) == sorted(f"g-{n}" for n in range(17))
        assert {(n.reason, n.message) for n in sent} == {("FailedScheduling", NEVER)}


async def test_a_burst_of_reasons_takes_a_third_of_the_time(monkeypatch):
    """Each write takes 10 ms here, after all but the last one the reporter rests for 20."""
    rests: list[float] = []

    async def rested(seconds: float) -> None:
        rests.append(seconds)

    only = SimpleNamespace(
        Queue=asyncio.Queue, sleep=rested, get_running_loop=asyncio.get_running_loop
    )
    monkeypatch.setattr("extender.control.actuators.status_reporter.asyncio", only)
    gangs = [gang for n in range(5) for gang in gated(f"g{n}", pods=17)]
    async with await leading(*gangs) as stage:

        def slow(verb: str, _: str) -> None:
            if verb == "set_conditions":
                stage.clock.advance(0.010)

        stage.cluster.fault = slow
        await stage.settled()
        stage.conditions_due()
        stage.start(stage.reporter.run())
        await eventually(lambda: len(stage.cluster.did("set_conditions")) == 5, "all reported")
    assert rests == pytest.approx([0.020] * 4)


async def test_the_newest_reason_wins_over_a_late_retry():
    """A condition that could not be written is not written over a newer one afterwards."""
    async with await leading(*gated(pods=17)) as stage:
        faults = [ClusterUnavailable("503")]
        stage.cluster.fault = lambda verb, _: (
            faults.pop() if verb == "set_conditions" and faults else None
        )
        stage.cluster.go.clear()
        stage.start(stage.reporter.run())
        await stage.settled()
        stage.conditions_due()
        await rest(stage)
        for number in range(16):
            stage.cluster.delete_pod(f"g-{number}")
        stage.clock.advance(1)
        stage.leader.lease.renew_from(stage.clock.monotonic_ms())
        await stage.settled()
        wanted = (
            "PodGroup default/g waits for members of PodGroup default/g: 17 required, 1 present"
        )
        stage.cluster.go.set()
        await eventually(lambda: stage.cluster.did("set_conditions") and not faults, "a write")
        await eventually(stage.reporter._jobs.empty, "the write that failed is tried again")
        await reported(stage)
        assert stage.cluster.group("g").conditions[0][3] == wanted


async def test_an_invalid_tree_is_named_on_its_groups():
    """Reason Invalid, with the rule broken named in words."""
    async with await leading(*gated(pods=2)) as stage:
        stage.cluster.change_pod("g-0", priority=7)
        stage.start(stage.reporter.run())
        await stage.settled()
        await reported(stage)
        (condition,) = stage.cluster.group("g").conditions
        assert condition[1:3] == ("False", "SchedulerError")
        assert "Pod/default/g-0 has priority 7" in condition[3]


async def test_nothing_is_reported_outside_the_lease():
    """Conditions and Events wait for the lease like every other write."""
    async with await leading(*gated(pods=17)) as stage:
        await stage.settled()
        stage.clock.advance(LAPSE_S)
        stage.start(stage.reporter.run())
        stage.conditions_due()
        await looked_again(stage)
        assert stage.cluster.calls == []


async def test_gates_of_others_are_named():
    """The condition of a tree that waits for the scheduling gate of another controller names the gate."""
    async with await leading(*a_gang("g", pods=2, schedulingGates=[{"name": "kueue/x"}])) as stage:
        stage.start(stage.reporter.run())
        await stage.settled()
        await reported(stage)
        for group in [stage.cluster.group("g")]:
            assert all("kueue/x" in c[3] for c in group.conditions)


async def test_members_that_need_others_come_last():
    """Required pod affinity: nominated and let go when the rest of the tree is at bind, not before."""
    near = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "zone"}
    needs = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    second = a_pod("g-9", "g", requests={GPU: 1}, schedulingGates=GATED, affinity=needs)
    async with await leading(*gated(minimum=3), second) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0", "g-1")
        await stage.one_pass()
        await rest(stage)
        assert stage.cluster.pod("g-9").gates, "the others are not at bind yet"
        calls = [stage.bind("g-0")]
        await rest(stage)
        await stage.one_pass()
        await rest(stage)
        assert stage.cluster.pod("g-9").nominated is None, "one of two is not enough"
        calls.append(stage.bind("g-1"))
        await rest(stage)
        await stage.one_pass()
        await carried_out(stage, "g-9")
        calls.append(stage.bind("g-9"))
        assert await asyncio.gather(*calls) == ["", "", ""]


async def test_members_that_need_each_other_do_not_wait():
    """All of them have the rule: kube-scheduler lets the first one in by itself."""
    near = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "zone"}
    needs = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    async with await leading(*gated(affinity=needs)) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0", "g-1")


async def test_a_member_that_waits_for_others_keeps_its_old_nomination():
    """Taking it off would only wake kube-scheduler for a futile try."""
    near = {"labelSelector": {"matchLabels": {"app": "first"}}, "topologyKey": "zone"}
    needs = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    old = a_pod(
        "g-9", "g", requests={GPU: 1}, affinity=needs, status={"nominatedNodeName": "elsewhere"}
    )
    async with await leading(*gated(minimum=3), old) as stage:
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        await carried_out(stage, "g-0", "g-1")
        assert stage.cluster.pod("g-9").nominated == "elsewhere"


@pytest.mark.parametrize(("how", "left"), [("remove", ["w-0"]), ("keep", ["g-0", "g-1", "w-0"])])
async def test_gates_of_a_gang_without_capacity_are_removed_where_autoscalers_shall_see_it(
    how, left
):
    """Of a complete gang only, all of its members, each once, without a nomination."""
    gangs = (*gated(requests={GPU: 9}), *gated("w", pods=1, minimum=2))
    async with await leading(*gangs, unschedulable_gates=how) as stage:
        stage.start(stage.parts.nominator.run())
        stage.start(stage.parts.gate_remover.run())
        for _ in range(3):
            await stage.one_pass()
            await rest(stage)
        assert [n for n in ("g-0", "g-1", "w-0") if stage.cluster.pod(n).gates] == left
        assert len(stage.cluster.did("remove_gate")) == 3 - len(left)
        assert stage.cluster.did("nominate") == []
        if how == "remove":
            stage.cluster.add(a_node("n2", gpu=9), a_node("n3", gpu=9))
            await stage.one_pass()
            await eventually(lambda: len(stage.cluster.did("nominate")) == 2, "nominated")


async def test_the_removal_of_the_gate_of_a_refused_member_is_tried_again(monkeypatch):
    """An API server that is away is no reason to hide it for ever."""
    monkeypatch.setattr("extender.control.actuators.nominator.REMOVAL_PAUSE_S", 0.001)
    async with await leading(*gated(requests={GPU: 9}), unschedulable_gates="remove") as stage:
        faults = [ClusterUnavailable("away")]
        stage.cluster.fault = lambda verb, name: (
            faults.pop() if verb == "remove_gate" and faults else None
        )
        stage.start(stage.parts.nominator.run())
        stage.start(stage.parts.gate_remover.run())
        for _ in range(3):
            await stage.one_pass()
            await asyncio.sleep(0.01)
        await carried_out(stage, "g-0", "g-1")


def nominate_one(life):
    """Let a pod that is not bound be nominated at random, or not any more."""
    waiting = sorted(p.name for p in life.cluster.seen.pods.values() if p.node is None)
    if waiting:
        node = life.chance.choice(("n0", None))
        life.cluster.change_pod(life.chance.choice(waiting), nominated=node)


@pytest.mark.parametrize("seed", range(15))
async def test_what_is_due_is_found_from_what_has_changed(seed, monkeypatch):
    """The same as from a look at all reservations, and each is queued once; stages come at random."""
    life, queued = Life(seed), []
    chance, answers = random.Random(seed), {}

    def step(reservation, *_, **__):
        uid = reservation.uid
        return answers.setdefault(
            uid, chance.choice((Step.NOTHING, Step.RELEASE, *[Step.WAIT] * 6))
        )

    monkeypatch.setattr(nominator, "next_step", step)
    leader = SimpleNamespace(until_may_act=None)
    follows = Nominator(life.cluster, leader, lambda uid: False, set())
    monkeypatch.setattr(follows._queue, "add", queued.append)
    expected, due, waited, stales = {}, [], 0, 0
    for _ in range(150):
        life.step()
        nominate_one(life)
        answers.clear()
        follows.sync(life.cluster.seen, life.state)
        held = list(claims_of_kind(life.state, "reservation"))
        before, expected = expected, {}
        for r in held:
            known = before.get(r.uid) == r.plan
            if known or step(r) is not Step.WAIT:
                expected[r.uid] = r.plan
            if not known and step(r) is Step.RELEASE:
                due.append(r.uid)
        assert dict(follows.released) == expected
        assert follows.has_later_stages == (len(expected) < len(held))
        assert sorted(queued) == sorted(due)
        pods = life.cluster.seen.pods.values()
        reserved = {r.uid for r in held}
        stale = {p.uid for p in pods if p.nominated and not p.node and p.uid not in reserved}
        assert set(follows._clearing) == stale
        stales += len(stale)
        waited += follows.has_later_stages
    assert due
    assert waited
    assert stales
