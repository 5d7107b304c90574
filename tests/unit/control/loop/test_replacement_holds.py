"""The capacity of a lost member is kept for its replacement, through crashes at every step, and ends in time."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.published import termination_reasons
from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    MemberTerminated,
    ReservationReleased,
)
from extender.core.model.ids import NodeName
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.support.waiting import eventually

TTL_S = 60
LEASE_MS = 3_600_000  # the clock of these stories makes long steps


async def settled(stage):
    """Let it come to rest, the answers of the API server included."""
    await stage.settled()
    await eventually(lambda: not stage.parts.termination_reasons.awaited, "how members ended")
    await stage.settled()


async def running():
    """A bound gang on the only two nodes, one GPU each, beside a gang that waits for one of them."""
    stage = Stage(
        a_node("n0", gpu=1),
        a_node("n1", gpu=1),
        *a_gang("g", pods=2),
        ttl_ms=LEASE_MS,
        replacement_ttl_s=TTL_S,
    )
    await stage.lead()
    await stage.one_pass()
    for name, node in stage.where("g").items():
        stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
    await settled(stage)
    stage.cluster.add(*a_gang("rival", pods=1))
    await settled(stage)
    assert stage.root("rival").phase == "unschedulable"
    return stage


async def taken_over(stage):
    """End the process, and let another begin on the same database and cluster."""
    await stage.killed()
    again = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock,
        replacement_ttl_s=TTL_S, ttl_ms=LEASE_MS,
    )  # fmt: skip
    await again.lead()
    await settled(again)
    return again


async def test_a_gang_is_planned_after_its_loss_is_recorded(monkeypatch):
    """While the API server is asked how a member ended, its gang is not refused for what is held for it."""
    stage = await running()
    answers, inner = asyncio.Event(), stage.cluster.ending

    async def ending(pod):
        await answers.wait()
        return await inner(pod)

    monkeypatch.setattr(stage.cluster, "ending", ending)
    monkeypatch.setattr(termination_reasons, "WAIT_S", 600)
    node = stage.cluster.pod("g-0").node
    stage.cluster.delete_pod("g-0")
    stage.cluster.add(a_pod("g-2", "g", requests={GPU: 1}))
    refusals = stage.names().count("GangUnschedulable")
    await stage.one_pass()
    assert stage.names().count("GangUnschedulable") == refusals
    assert stage.event_data(MemberTerminated) == []
    assert not stage.root("g").reservations
    answers.set()
    await settled(stage)
    assert stage.where("g") == {"g-2": node}
    assert not stage.root("g").replacement_holds
    assert stage.names().count("GangUnschedulable") == refusals
    assert len(stage.event_data(MemberTerminated)) == 1
    await stage.killed()


@pytest.mark.parametrize("crashes", [False, True])
async def test_only_the_replacement_gets_it(crashes):
    """Lost, held, replaced: with a kill -9 between any two of these; the rival stays refused all along."""
    stage = await running()

    async def step():
        nonlocal stage
        await settled(stage)
        if crashes:
            stage = await taken_over(stage)
        assert stage.root("rival").phase == "unschedulable"

    node = stage.cluster.pod("g-0").node
    stage.cluster.delete_pod("g-0")
    await step()
    (lost,) = stage.event_data(MemberTerminated)
    assert lost.held_until_us > stage.clock.now_us()
    stage.clock.advance(TTL_S - 1)
    await step()
    stage.cluster.add(a_pod("g-new", "g", requests={GPU: 1}))
    await step()
    assert stage.where("g") == {"g-new": node}
    assert not stage.root("g").replacement_holds
    stage.cluster.change_pod("g-new", node=node, phase="Running")
    await step()
    stage.clock.advance(2 * TTL_S)
    await step()
    assert stage.event_data(ReservationReleased) == []
    assert len(stage.event_data(GangExtended)) == 1
    await stage.killed()


@pytest.mark.parametrize("crashes", [False, True])
async def test_without_a_replacement_the_next_in_line_has_it_in_time(crashes):
    """The end is an event, and the pass that records it admits the rival."""
    stage = await running()
    stage.cluster.delete_pod("g-0")
    await settled(stage)
    stage.clock.advance(TTL_S)
    if crashes:
        stage = await taken_over(stage)
    await settled(stage)
    (released,) = stage.event_data(ReservationReleased)
    assert (released.reason, [p.pod for p in released.pods]) == ("expired", ["default/g-0"])
    assert stage.root("rival").phase == "admitted"
    assert len(stage.event_data(GangAdmitted)) == 2
    await stage.killed()


async def test_a_gang_that_goes_as_a_whole_holds_nothing():
    """Its last member goes, and the capacity is there at once."""
    stage = await running()
    for name in ("g-0", "g-1"):
        stage.cluster.delete_pod(name)
        await stage.one_pass()
    await settled(stage)
    assert stage.root("rival").phase == "admitted"
    await stage.killed()


async def test_the_capacity_is_held_from_the_moment_the_member_is_gone():
    """Before the pass that records the loss, and while the API server is asked how the pod ended."""
    stage = await running()
    stage.cluster.add(a_pod("alone", requests={GPU: 1}))
    node = NodeName(stage.cluster.pod("g-0").node)
    asked = asyncio.Event()

    async def ending(_ref):
        await asked.wait()

    stage.cluster.ending = ending
    stage.cluster.delete_pod("g-0")
    alone = stage.cluster.pod("alone")
    assert stage.extender_service.filter(alone, [node]).refused == (node,)
    await stage.one_pass()
    await stage.one_pass()
    assert stage.event_data(MemberTerminated) == []
    assert stage.extender_service.filter(alone, [node]).refused == (node,)
    assert stage.root("rival").phase == "unschedulable"
    asked.set()
    await eventually(lambda: not stage.parts.termination_reasons.awaited, "how members ended")
    await settled(stage)
    assert [f.held_until_us > 0 for f in stage.event_data(MemberTerminated)] == [True]
    assert stage.extender_service.filter(alone, [node]).refused == (node,)
    assert stage.root("rival").phase == "unschedulable"
    await stage.killed()


async def test_a_gang_that_goes_as_a_whole_gives_its_capacity_back_at_once():
    """Both are gone before any pass: no pod is refused in between, as kube-scheduler would put it into back-off."""
    stage = await running()
    stage.cluster.add(a_pod("alone", requests={GPU: 1}))
    node = NodeName(stage.cluster.pod("g-0").node)
    stage.cluster.delete_pod("g-1")
    stage.cluster.delete_pod("g-0")
    assert stage.extender_service.filter(stage.cluster.pod("alone"), [node]).passed == (node,)
    await stage.killed()
