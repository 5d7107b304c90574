"""No wake-up is lost: one that comes while the control loop is in a pass leads to another pass at once."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.admission.cluster_observer import Moment
from extender.control.loop import control_loop
from extender.core.log.events import GangUnschedulable
from extender.runtime.wakeup import PRUNED_AT, Wakeup, first_of
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

NEVER_S = 3_600.0  # the tick of the loop where only a wake-up may lead to a pass


async def test_a_wait_for_an_older_revision_ends_at_once():
    """A change between reading the revision and waiting ends the wait without another change."""
    wakeup = Wakeup()
    before = wakeup.revision
    wakeup.wake()
    waiting = asyncio.ensure_future(wakeup.wait(before))
    await asyncio.sleep(0)
    assert waiting.done()
    assert waiting.result() == wakeup.revision != before


async def test_one_wake_up_ends_every_wait():
    """All tasks that wait go on, each with the same revision; a wait for the new one goes on waiting."""
    wakeup = Wakeup()
    waits = [asyncio.ensure_future(wakeup.wait(wakeup.revision)) for _ in range(3)]
    await asyncio.sleep(0)
    wakeup.wake()
    assert await asyncio.gather(*waits) == [wakeup.revision] * 3
    later = asyncio.ensure_future(wakeup.wait(wakeup.revision))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not later.done()
    wakeup.wake()
    assert await later == wakeup.revision


async def test_waits_that_are_cancelled_leave_nothing_behind():
    """A thousand waits that were cancelled keep no task, no waiter, and few futures."""
    wakeup, other = Wakeup(), Wakeup()
    tasks = asyncio.all_tasks()
    for _ in range(1000):
        revision = wakeup.revision
        wakeup.wake()
        await first_of(wakeup.wait(revision), other.wait(other.revision), timeout_s=NEVER_S)
    assert asyncio.all_tasks() == tasks
    assert (wakeup.waiting, other.waiting) == (0, 0)
    assert len(other._waits) <= PRUNED_AT


async def test_no_wait_outlives_a_caller_that_is_cancelled():
    """Cancelling the task that waits for several things ends all of its waits."""
    wakeup = Wakeup()
    tasks = asyncio.all_tasks()
    caller = asyncio.ensure_future(first_of(wakeup.wait(0), wakeup.wait(0), timeout_s=NEVER_S))
    await asyncio.sleep(0)
    assert wakeup.waiting == 2
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert asyncio.all_tasks() == tasks
    assert wakeup.waiting == 0


async def test_a_wait_that_fails_is_not_silent():
    """The fault of one of several waits is raised."""

    async def failing() -> None:
        raise OSError("the test fails it")

    with pytest.raises(OSError, match="the test fails it"):
        await first_of(Wakeup().wait(0), failing(), timeout_s=NEVER_S)


async def test_time_ends_a_wait():
    """Without any change the wait ends with its time, and raises nothing."""
    await first_of(Wakeup().wait(0), timeout_s=0.01)


def count_passes(stage: Stage, during=lambda number: None) -> list[int]:
    """Number the passes as they begin, and do something in the middle of each."""
    begun: list[int] = []
    inner = stage.control_loop._pending_trees.admit

    async def counted(now: Moment) -> None:
        begun.append(len(begun) + 1)
        during(len(begun))
        await inner(now)

    stage.control_loop._pending_trees.admit = counted
    stage.control_loop._pending_trees.nothing_to_admit = lambda now: False
    return begun


async def quiet(stage: Stage) -> None:
    """Run the control loop until it waits for a change."""
    stage.start(stage.control_loop.run())
    await eventually(lambda: stage.parts.exchange.published.result.number > 0, "the first pass")
    await eventually(lambda: stage.barriers.wakeup.waiting, "the loop to wait")


@pytest.mark.parametrize("source", ["barriers", "leader", "view"])
async def test_a_wake_up_during_a_pass_leads_to_another_pass(monkeypatch, source):
    """A change of barriers, state or view while a pass runs is followed by a pass without a tick."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    async with Stage(a_node("n0", gpu=1)) as stage:
        await stage.lead()
        wake = {
            "barriers": stage.barriers.wakeup.wake,
            "leader": stage.leader.wakeup.wake,
            "view": lambda: stage.cluster.add(a_node("n1", gpu=1)),
        }[source]
        await quiet(stage)
        begun = count_passes(stage, lambda number: wake() if number == 1 else None)
        stage.barriers.wakeup.wake()
        await eventually(lambda: len(begun) >= 2, "the pass after the one in which it was woken")


async def test_a_quiet_cluster_makes_no_passes(monkeypatch):
    """What a pass itself records leads to no further pass; what is appended beside it does. Then the loop waits."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    async with Stage(a_node("n0", gpu=1), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        begun = count_passes(stage)
        await quiet(stage)
        await eventually(lambda: bool(stage.event_data(GangUnschedulable)), "the refusal")
        await eventually(
            lambda: stage.barriers.wakeup.waiting and not stage.leader.appends.in_flight,
            "the loop to wait",
        )
        passes = len(begun)
        assert passes <= 2
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(begun) == passes


async def test_all_refusals_of_a_quiet_cluster_are_explained_at_once(monkeypatch):
    """Refusals that take longer than one pass has for them are explained by the passes that follow at once."""
    monkeypatch.setattr(control_loop, "TICK_S", NEVER_S)
    gangs = [thing for n in range(6) for thing in a_gang(f"g{n}", pods=2)]
    async with Stage(a_node("n0", gpu=1), *gangs) as stage:
        await stage.lead()
        inner = stage.parts.planner.plan

        async def slow(encoded):
            stage.clock.advance(0.15)
            stage.leader.lease.renew_from(stage.clock.ms)
            return await inner(encoded)

        stage.parts.planner.plan = slow
        stage.start(stage.control_loop.run())
        names = {f"default/g{n}" for n in range(6)}

        def explained() -> bool:
            return {
                e.gang for e in stage.events() if isinstance(e.data, GangUnschedulable)
            } == names

        await eventually(explained, "a reason for every tree")
