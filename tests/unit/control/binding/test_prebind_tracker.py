"""Volumes and claims are committed before bind: who needs some passes filter last, and has arrived with that."""

from __future__ import annotations

import asyncio

import pytest

from extender.core.log.events import BindBarrierTimedOut, ReservationReleased
from extender.core.verbs.filter_and_prioritize import COMMITTED_LAST
from tests.support.service.fakes import GATED, Stage, idle
from tests.support.service.manifest_builders import a_gang, a_node, a_pod
from tests.support.waiting import eventually

CLAIM = {"resourceClaims": [{"name": "device", "resourceClaimName": "mine"}]}
DISK = {"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "late"}}]}
LATE = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "late", "namespace": "default"},
    "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "wait"},
}  # fmt: skip
SOON_S = 0.15


async def leading(*objects, **settings):
    """Admit a gang `g` of two plain members and those given."""
    group, *plain = a_gang("g", pods=2, minimum=3, schedulingGates=GATED)
    stage = Stage(
        a_node("n0", gpu=8), a_node("n1", gpu=8), LATE, group, *plain, *objects, **settings
    )
    await stage.lead()
    stage.start(stage.parts.nominator.run())
    await stage.one_pass()
    return stage


def offer(stage, name):
    """Call filter as kube-scheduler does for a nominated pod."""
    return stage.extender_service.filter(stage.cluster.pod(name), [stage.reserved_node(name)])


async def ungated(stage, *names):
    await eventually(lambda: all(not stage.cluster.pod(n).gates for n in names), "gates lifted")


@pytest.mark.parametrize("needs", [CLAIM, DISK], ids=["resource claim", "volume"])
async def test_who_commits_is_let_go_when_the_others_have_come(needs):
    """Its gate is lifted when the rest is at bind; that kube-scheduler offers it its node opens the barrier."""
    late = a_pod("g-late", "g", schedulingGates=GATED, **needs)
    async with await leading(late) as stage:
        await ungated(stage, "g-0", "g-1")
        await stage.settled()
        assert stage.cluster.pod("g-late").gates
        calls = [stage.bind("g-0"), stage.bind("g-1")]
        await asyncio.sleep(0)
        await stage.settled()
        await ungated(stage, "g-late")
        await idle()
        assert stage.cluster.did("bind") == []
        assert offer(stage, "g-late").outcome == "redeemed"
        assert await asyncio.gather(*calls) == ["", ""]
        assert await stage.bind("g-late") == ""


async def test_without_a_gate_it_is_held_back_and_woken():
    """Filter refuses its node in constant words until its turn; then its nomination changes, which wakes it."""
    late = a_pod("g-late", "g", **CLAIM)
    async with await leading(late) as stage:
        node = stage.reserved_node("g-late")
        stage.cluster.change_pod("g-late", nominated=node)  # as an earlier plan had it
        await stage.settled()
        first = offer(stage, "g-late")
        assert (first.outcome, first.refused) == ("held-back", (node,))
        assert first.reason == f"gang default/g: {COMMITTED_LAST}"
        assert offer(stage, "g-late") == first
        calls = [stage.bind("g-0"), stage.bind("g-1")]
        await asyncio.sleep(0)
        await stage.settled()

        def mine():
            return [d for n, d in stage.cluster.did("nominate") if n == "default/g-late"]

        await eventually(lambda: mine() == [None, node], "woken")
        assert offer(stage, "g-late").outcome == "redeemed"
        assert await asyncio.gather(*calls) == ["", ""]


async def test_who_leads_next_wakes_whom_the_last_one_held_back():
    """kill -9 while a member sleeps: its condition shows that filter held it back."""
    late = a_pod("g-late", "g", **CLAIM)
    async with await leading(late) as stage:
        node = stage.reserved_node("g-late")
        message = f"0/2 nodes are available: 2 {offer(stage, 'g-late').reason}."
        stage.cluster.change_pod("g-late", nominated=node, unschedulable=message)
        await stage.killed()
        async with Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock
        ) as again:
            await again.lead()
            again.start(again.parts.nominator.run())
            await again.one_pass()
            assert offer(again, "g-late").outcome == "held-back"
            calls = [again.bind("g-0"), again.bind("g-1")]
            await asyncio.sleep(0)
            await again.settled()
            await eventually(
                lambda: ("default/g-late", node) in again.cluster.did("nominate"), "woken"
            )
            assert offer(again, "g-late").outcome == "redeemed"
            assert await asyncio.gather(*calls) == ["", ""]


async def test_a_gang_of_claims_only_is_released_at_once():
    """All commit: all gates are removed at once, and the first at bind waits only until the last is offered its node."""
    group, *members = a_gang("c", pods=3, schedulingGates=GATED, **CLAIM)
    async with await leading(group, *members, ttl_ms=3_600_000) as stage:
        await ungated(stage, "c-0", "c-1", "c-2")
        for name in ("c-0", "c-1"):
            assert offer(stage, name).outcome == "redeemed"
        call = stage.bind("c-0")
        await idle()
        assert not call.done()
        offer(stage, "c-2")
        assert await call == ""
        assert await asyncio.gather(stage.bind("c-1"), stage.bind("c-2")) == ["", ""]


async def test_an_offer_counts_no_longer_than_a_call_would_wait():
    """Nothing shows that kube-scheduler has died; and what it does not offer any more does not count either."""
    group, *members = a_gang("c", pods=2, schedulingGates=GATED, **CLAIM)
    async with await leading(group, *members, ttl_ms=3_600_000) as stage:
        await ungated(stage, "c-0", "c-1")
        offer(stage, "c-0")
        stage.clock.advance(stage.settings.barrier_limit_s)
        call = stage.bind("c-1")
        await idle()
        assert not call.done()
        offer(stage, "c-0")
        assert await call == ""
    async with await leading(group, *members, ttl_ms=3_600_000) as stage:
        await ungated(stage, "c-0", "c-1")
        offer(stage, "c-0")
        other = next(n for n in ("n0", "n1", "n2") if n != stage.reserved_node("c-0"))
        stage.extender_service.filter(stage.cluster.pod("c-0"), [other])
        call = stage.bind("c-1")
        await idle()
        assert not call.done()


async def test_after_an_expired_barrier_every_member_is_planned_where_it_was():
    """What was committed pins members to their nodes; that follows from the log, also for who leads next."""
    late = a_pod("g-late", "g", schedulingGates=GATED, **CLAIM)
    async with await leading(late, barrier_timeout_s=SOON_S) as stage:
        where = stage.where("g")
        await ungated(stage, "g-0", "g-1")
        assert "not all of its minimum" in await stage.bind("g-0")
        (expired,) = stage.event_data(BindBarrierTimedOut)
        assert expired.missing == ("default/g-1", "default/g-late")
        assert [f.reason for f in stage.event_data(ReservationReleased)] == ["expired"]
        assert {p.split("/")[1]: n for p, n in tried(stage).items()} == where
        for name in where:
            # as kube-scheduler does after a failed bind
            stage.cluster.change_pod(name, nominated=None)
        stage.cluster.add(a_node("a-better", gpu=8))
        await stage.killed()
        async with Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock
        ) as again:
            await again.lead()
            await again.one_pass()
            assert again.where("g") == where
            assert not tried(again)


def tried(stage):
    paths = {p.uid: p.path for p in stage.cluster.seen.pods.values()}
    return {paths[uid]: node for uid, node in stage.root("g").previous_nodes.items()}
