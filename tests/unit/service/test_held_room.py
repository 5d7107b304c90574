"""The room of a lost member is kept for its replacement, through crashes at every step, and ends in time."""

from __future__ import annotations

import pytest

from extender.core.events import GangAdmitted, GangExtended, MemberLost, ReservationReleased
from extender.core.ids import NodeName
from tests.builders import GPU, a_gang, a_node, a_pod
from tests.fakes import Stage

TTL_S = 60
LEASE_MS = 3_600_000  # the clock of these stories makes long steps


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
    await stage.settled()
    stage.cluster.add(*a_gang("rival", pods=1))
    await stage.settled()
    assert stage.root("rival").phase == "refused"
    return stage


async def taken_over(stage):
    """End the process, and let another begin on the same database and cluster."""
    await stage.killed()
    again = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock,
        replacement_ttl_s=TTL_S, ttl_ms=LEASE_MS,
    )  # fmt: skip
    await again.lead()
    await again.settled()
    return again


@pytest.mark.parametrize("crashes", [False, True])
async def test_the_replacement_gets_it_and_nobody_else(crashes):
    """Lost, held, replaced: with a kill -9 between any two of these; the rival stays refused all along."""
    stage = await running()

    async def step():
        nonlocal stage
        await stage.settled()
        if crashes:
            stage = await taken_over(stage)
        assert stage.root("rival").phase == "refused"

    node = stage.cluster.pod("g-0").node
    stage.cluster.delete_pod("g-0")
    await step()
    (lost,) = stage.facts(MemberLost)
    assert lost.room_until_us > stage.clock.now_us()
    stage.clock.advance(TTL_S - 1)
    await step()
    stage.cluster.add(a_pod("g-new", "g", requests={GPU: 1}))
    await step()
    assert stage.where("g") == {"g-new": node}
    assert not stage.root("g").vacant
    stage.cluster.change_pod("g-new", node=node, phase="Running")
    await step()
    stage.clock.advance(2 * TTL_S)
    await step()
    assert stage.facts(ReservationReleased) == []
    assert len(stage.facts(GangExtended)) == 1
    await stage.killed()


@pytest.mark.parametrize("crashes", [False, True])
async def test_without_a_replacement_the_next_in_line_has_it_in_time(crashes):
    """The end is a fact, and the pass that records it admits the rival."""
    stage = await running()
    stage.cluster.delete_pod("g-0")
    await stage.settled()
    stage.clock.advance(TTL_S)
    if crashes:
        stage = await taken_over(stage)
    await stage.settled()
    (released,) = stage.facts(ReservationReleased)
    assert (released.why, [p.pod for p in released.pods]) == ("expired", ["default/g-0"])
    assert stage.root("rival").phase == "admitted"
    assert len(stage.facts(GangAdmitted)) == 2
    await stage.killed()


async def test_a_gang_that_goes_as_a_whole_holds_nothing():
    """Its last member goes, and the room is there at once."""
    stage = await running()
    for name in ("g-0", "g-1"):
        stage.cluster.delete_pod(name)
        await stage.one_pass()
    await stage.settled()
    assert stage.root("rival").phase == "admitted"
    await stage.killed()
