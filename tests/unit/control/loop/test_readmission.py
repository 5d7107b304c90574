"""A tree that is admitted keeps its reservations for as long as nothing changes, and a defect there is bounded."""

from __future__ import annotations

import logging

import pytest

from extender.control.loop.reconciler import REASON
from extender.core.log.events import GangAdmitted, GangExtended, ReservationReleased
from extender.core.log.reservation_state import reservations_on
from extender.core.model.nodes import Taint
from extender.core.reconcile import (
    cluster_reconciliation,
    reconciliation,
    reservation_checks,
)
from extender.telemetry import METRICS
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.core.reconcile.test_reservation_checks import pinned

FAULTS = ["node-lost", "superseded", "expired"]


def inject(monkeypatch, stage: Stage, fault: str, *, only: str = "") -> None:
    """Make the loop give back each reservation, or that of one pod, in every pass, although nothing has changed."""

    def hit(path: str) -> bool:
        return not only or path == f"default/{only}"

    if fault == "node-lost":

        def unfit(view, root, reservations):
            return {uid: "unfit, set by the test:" for uid, r in reservations.items() if hit(r.pod)}

        monkeypatch.setattr(cluster_reconciliation, "unfit_pods", unfit)
    elif fault == "superseded":

        def overtaken(view, state, name):
            held = reservations_on(state, name)
            return [uid for uid, r in held.items() if hit(r.pod)]

        for module in (reservation_checks, reconciliation):
            monkeypatch.setattr(module, "oversubscribed_on", overtaken)
    else:
        monkeypatch.setattr(
            stage.control_loop._reconciler,
            "_expired",
            lambda state: frozenset(uid for uid, root in state.gangs.items() if root.reservations),
        )


def loops_counted() -> float:
    return METRICS.registry.get_sample_value("gang_extender_readmission_loops_total")


def alarms(caplog) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.levelno == logging.ERROR and hasattr(r, "pause_ms")]


async def passes(stage: Stage, number: int, seconds: float = 1.0) -> None:
    """Let time pass with a pass in every so many seconds."""
    for _ in range(number):
        stage.later(seconds)
        await stage.one_pass()


@pytest.mark.parametrize("pods", [1, 2, 4])
async def test_a_gang_pinned_to_one_node_by_name_is_admitted_once(pods):
    """Members that select their node by its name (matchFields) are admitted once and never released."""
    gang = a_gang("g", pods=pods, affinity=pinned("n0"))
    async with Stage(a_node("n0", gpu=4), a_node("n1", gpu=4), *gang) as stage:
        await stage.lead()
        await stage.settled()
        stage.later(1)
        stage.cluster.add(a_node("n2", gpu=4))
        await stage.settled()
        assert len(stage.event_data(GangAdmitted)) == 1
        assert stage.event_data(ReservationReleased) == []
        assert stage.where("g") == {f"g-{n}": "n0" for n in range(pods)}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_loop_is_bounded_and_an_alarm_is_raised(monkeypatch, caplog, fault):
    """Whatever gives a tree back in every pass, rounds get rarer, and log, metric and Event report it."""
    gang = a_gang("g", pods=2, schedulingGates=GATED)
    async with Stage(a_node("n0", gpu=2), *gang) as stage:
        inject(monkeypatch, stage, fault)
        counted = loops_counted()
        await stage.lead()
        stage.start(stage.parts.nominator.run())  # our own writes are no change
        stage.start(stage.reporter.run())
        await passes(stage, 900)
        admitted = len(stage.event_data(GangAdmitted))
        # 4 at once, then after 1, 2, 4, ..., 256 s (511 s in all) and 300 s
        assert 10 <= admitted <= 14, f"{admitted} admissions in 15 minutes"
        assert loops_counted() == counted + 1
        pauses = [record.pause_ms for record in alarms(caplog)]
        assert pauses == [min(1000 << n, 300_000) for n in range(len(pauses))]
        assert len(pauses) == len(stage.event_data(ReservationReleased)) - 3
        assert alarms(caplog)[0].gang == "default/g"
        await eventually(
            lambda: any(n.reason == REASON for n in stage.cluster.notices), "the Event"
        )
        notice = next(n for n in stage.cluster.notices if n.reason == REASON)
        assert (notice.kind, notice.name, notice.warning) == ("PodGroup", "g", True)
        assert "released 4 times" in notice.message
        assert "gang-extender history default/g" in notice.message


@pytest.mark.parametrize("fault", FAULTS[:2])
async def test_a_loop_of_a_member_that_comes_later_is_bounded(monkeypatch, caplog, fault):
    """A member beyond the minimum that is given back in every pass is put off too; who is bound stays."""
    gang = a_gang("g", pods=3, minimum=2)
    async with Stage(a_node("n0", gpu=2), *gang) as stage:
        inject(monkeypatch, stage, fault, only="g-2")
        await stage.lead()
        await stage.settled()
        for name in ("g-0", "g-1"):
            stage.cluster.change_pod(name, node="n0", phase="Running")
        await stage.settled()
        stage.cluster.add(a_node("n1", gpu=1))
        await passes(stage, 300)
        assert len(stage.event_data(GangExtended)) <= 14
        assert alarms(caplog)
        assert len(stage.root("g").bound) == 2


async def put_off(monkeypatch, stage: Stage, caplog) -> int:
    """Run until gang g is put off for minutes; give the number of its admissions."""
    inject(monkeypatch, stage, "node-lost")
    await stage.lead()
    for _ in range(900):
        await passes(stage, 1)
        if alarms(caplog) and alarms(caplog)[-1].pause_ms >= 128_000:
            break
    admitted = len(stage.event_data(GangAdmitted))
    await passes(stage, 3)
    assert len(stage.event_data(GangAdmitted)) == admitted, "it is put off"
    return admitted


CHANGES = {
    "a label of its node": lambda c: c.change_node("n0", labels={"a": "b"}),
    "a taint of its node": lambda c: c.change_node(
        "n0", taints=(Taint(key="a", effect="PreferNoSchedule"),)
    ),
    "a pod of it": lambda c: c.add(a_pod("g-2", "g", requests={GPU: 1})),
    "a label of a pod": lambda c: c.change_pod("g-0", labels={"a": "b"}),
    "its group": lambda c: c.change_group("g", generation=2, minimum=1),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_concerns_the_tree_ends_the_back_off(monkeypatch, caplog, change):
    """After a change of its nodes, pods or groups a tree is admitted at once, and the count begins anew."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        before = await put_off(monkeypatch, stage, caplog)
        alarms_before = len(alarms(caplog))
        CHANGES[change](stage.cluster)
        for round_ in range(1, 5):
            await passes(stage, 1, 0.01)
            assert len(stage.event_data(GangAdmitted)) == before + round_
        assert len(alarms(caplog)) == alarms_before
        await passes(stage, 1, 0.01)
        assert [r.pause_ms for r in alarms(caplog)[alarms_before:]] == [1000]


async def test_another_node_lets_it_be_tried_once(monkeypatch, caplog):
    """A new node may help, so the tree is tried at once; where that is in vain, the pause is longer than before."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        before = await put_off(monkeypatch, stage, caplog)
        pause_ms = alarms(caplog)[-1].pause_ms
        stage.cluster.add(a_node("n1", gpu=1))
        await passes(stage, 5, 0.01)
        assert len(stage.event_data(GangAdmitted)) == before + 1
        assert alarms(caplog)[-1].pause_ms == 2 * pause_ms


async def test_once_the_fault_is_mended_the_tree_is_admitted_and_stays(monkeypatch, caplog):
    """The back-off ends by itself: the next try succeeds, and nothing is released any more."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        with monkeypatch.context() as patched:
            await put_off(patched, stage, caplog)
        released = len(stage.event_data(ReservationReleased))
        await passes(stage, 140)
        assert stage.where("g") == {"g-0": "n0", "g-1": "n0"}
        assert len(stage.event_data(ReservationReleased)) == released


async def test_nodes_that_come_and_go_put_nothing_off(caplog):
    """A gang that is moved ten times because its node was cordoned is planned again at once each time."""
    async with Stage(a_node("n0", gpu=2), a_node("n1", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.settled()
        for _ in range(10):
            used = set(stage.where("g").values())
            for name in ("n0", "n1"):
                stage.cluster.change_node(name, unschedulable=name in used)
            await passes(stage, 1, 0.01)
            assert stage.root("g").reservations
            assert not used & set(stage.where("g").values())
        assert len(stage.event_data(GangAdmitted)) == 11
        assert not alarms(caplog)


async def test_a_node_that_flaps_puts_nothing_off(caplog):
    """A gang whose only node is cordoned and uncordoned ten times is admitted in the pass that shows it open."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.settled()
        for _ in range(10):
            stage.cluster.change_node("n0", unschedulable=True)
            await passes(stage, 1, 0.01)
            assert not stage.root("g").reservations
            stage.cluster.change_node("n0", unschedulable=False)
            await passes(stage, 1, 0.01)
            assert stage.root("g").reservations
        assert not alarms(caplog)


async def test_reservations_that_expire_put_nothing_off(caplog):
    """A gang that kube-scheduler does not bind is planned again in the pass in which it expires, time after time."""
    gang = a_gang("g", pods=2)
    async with Stage(a_node("n0", gpu=2), *gang, reservation_ttl_s=5) as stage:
        await stage.lead()
        await stage.settled()
        for round_ in range(2, 12):
            await passes(stage, 1, 5.1)
            assert len(stage.event_data(GangAdmitted)) == round_
        assert not alarms(caplog)


async def test_capacity_that_others_take_has_its_own_pause_alone(caplog):
    """A gang whose capacity is taken again and again waits as `retry_time_us` has it, and raises no alarm."""
    async with Stage(a_node("n0", gpu=2), a_node("n1", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        await stage.settled()
        for number in range(6):
            node = next(iter(stage.where("g").values()))
            stage.cluster.add(a_pod(f"thief-{number}", node=node, requests={GPU: 2}))
            await passes(stage, 1, 0.01)
            stage.cluster.delete_pod(f"thief-{number}")
            await passes(stage, 1, 16)
            assert stage.root("g").reservations, number
        assert len(stage.event_data(ReservationReleased)) == 6
        assert not alarms(caplog)
