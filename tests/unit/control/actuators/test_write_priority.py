"""Finalizers and conditions of groups give way to members that are being placed, and only for a moment."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.actuators import write_priority
from extender.control.actuators.finalizer_controller import FinalizerController
from extender.control.actuators.write_priority import FRESH_MS, PlacementPriority
from extender.core.reconcile.finalizer_rules import FINALIZER
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_group, a_node
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_finalizer_controller import guard, written


async def admitted_stage() -> Stage:
    """Return a stage with a gang of two that is admitted and not bound."""
    stage = Stage(a_node("n0", gpu=2), *a_gang("g", pods=2))
    await stage.lead()
    await stage.one_pass()
    assert stage.where("g")
    return stage


async def test_a_reservation_is_fresh_for_a_moment():
    """Its age counts, not its end: members that wait for something else hold nothing back."""
    async with await admitted_stage() as stage:
        priority = PlacementPriority(stage.leader, stage.clock)
        assert priority._are_being_placed()
        stage.clock.advance(FRESH_MS / 1000)
        assert not priority._are_being_placed()
        assert not PlacementPriority(Stage().leader, stage.clock)._are_being_placed()


async def test_a_finalizer_waits_until_the_members_are_bound(monkeypatch):
    """It is written at once when they are."""
    monkeypatch.setattr(write_priority, "GIVE_WAY_S", 3600.0)
    async with await admitted_stage() as stage:
        guard(stage)
        stage.start(FinalizerController(stage.cluster, stage.leader, stage.clock).run())
        await eventually(lambda: stage.cluster.seen.guards, "the view")
        for _ in range(50):
            await asyncio.sleep(0)
        assert written(stage) == []
        for uid, held in stage.root("g").reservations.items():
            name = stage.cluster.seen.pods[uid].name
            stage.cluster.change_pod(name, node=held.node, plan=held.plan)
        await stage.one_pass()
        await eventually(lambda: written(stage) == [FINALIZER], "set")


async def test_one_that_is_removed_does_not_wait(monkeypatch):
    """The user waits for the end of the group."""
    monkeypatch.setattr(write_priority, "GIVE_WAY_S", 3600.0)
    async with await admitted_stage() as stage:
        stage.cluster.add(a_group("h", gang=1))
        guard(stage, name="h", deleting=True, finalizers=(FINALIZER,))
        work = FinalizerController(stage.cluster, stage.leader, stage.clock)
        await asyncio.wait_for(work.work(), 30)
        assert written(stage) == [""]


@pytest.mark.parametrize("later_ms", [0, FRESH_MS])
async def test_nothing_waits_longer_than_its_time(later_ms):
    """While members are placed one after another for hours, and behind members that are not placed."""
    async with await admitted_stage() as stage:
        stage.clock.advance(later_ms / 1000)
        await asyncio.wait_for(PlacementPriority(stage.leader, stage.clock).give_way(), 30)


async def test_a_new_tree_is_fresh_after_older_ones_were_not():
    """Reservations that were found to be old are not examined again; new ones are."""
    async with await admitted_stage() as stage:
        priority = PlacementPriority(stage.leader, stage.clock)
        stage.clock.advance(FRESH_MS / 1000)
        await asyncio.wait_for(priority.give_way(), 30)
        stage.cluster.add(a_node("n1", gpu=2), *a_gang("h", pods=2))
        await stage.one_pass()
        waits = asyncio.create_task(priority.give_way())
        await asyncio.sleep(0)
        assert not waits.done()
        await waits
