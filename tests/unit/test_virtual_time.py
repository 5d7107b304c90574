"""The loop of the unit tests passes over time that only it waits for, and leaves threads theirs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from extender.core.planner.plan_types import Refusal, SearchEffort
from extender.simulation.virtual_time import SEARCH_NODE_S, SETTLED_S, InLoopWorker, SimulationLoop

NODES = 25_000  # a search of 2.5 s


async def an_hour():
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(3600, over.set)
    await over.wait()


async def test_an_hour_passes_at_once():
    """Timers end in their order."""
    ended = []
    for delay_s in (3600, 1, 60):
        asyncio.get_running_loop().call_later(delay_s, ended.append, delay_s)
    await an_hour()
    assert ended == [1, 60, 3600]
    assert 3600 <= asyncio.get_running_loop().time() < 3601


@pytest.mark.parametrize("by_loop", [True, False])
async def test_no_timeout_overtakes_a_thread(by_loop):
    """Whichever way the loop waits for it; afterwards time is virtual again."""
    go = threading.Event()
    asyncio.get_running_loop().call_later(0.01, go.set)
    with ThreadPoolExecutor(1) as threads:
        async with asyncio.timeout(3600):
            answer = (
                asyncio.to_thread(go.wait)
                if by_loop
                else asyncio.wrap_future(threads.submit(go.wait))
            )
            assert await answer
    await an_hour()
    assert asyncio.get_running_loop().time() < 3 * 3600


def test_a_search_ends_in_its_time_though_nothing_else_happens():
    """While nothing happens time goes on in large steps, but not past what takes its time."""
    loop = SimulationLoop()
    loop.pace.may_rest_s = lambda: 30.0
    effort = SearchEffort(nodes=NODES, exhausted=False)
    refusal = Refusal(outcome="unknown", status="Unschedulable", reasons=(), search=effort)

    async def search() -> None:
        began_s = loop.time()
        assert await InLoopWorker().run(lambda: refusal) is refusal
        assert loop.time() - began_s == pytest.approx(NODES * SEARCH_NODE_S, abs=0.01)

    loop.run_until_complete(search())
    loop.close()


def in_quiet(work) -> float:
    """Return the seconds that something took, in a loop in which nothing has happened for a while."""
    loop = SimulationLoop()
    loop.pace.may_rest_s = lambda: 30.0

    async def run() -> float:
        await loop.rest(2 * SETTLED_S)
        began_s = loop.time()
        await work(loop)
        return loop.time() - began_s

    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


async def cancelled_timer(loop):
    loop.act_later(5.0, lambda: None).cancel()


async def cancelled_rest(loop):
    task = asyncio.create_task(loop.rest(5.0))
    await asyncio.sleep(0)
    task.cancel()


@pytest.mark.parametrize("cancelled", [cancelled_timer, cancelled_rest])
def test_time_does_not_stand_at_what_the_model_does_no_more(cancelled):
    """A timer of the service that is passed over fires at the end of the step."""

    async def look(loop):
        await cancelled(loop)
        await asyncio.sleep(0.05)

    assert in_quiet(look) == pytest.approx(30.0, abs=0.01)
