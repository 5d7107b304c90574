"""The loop of the unit tests passes over time that only it waits for, and leaves threads theirs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


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
