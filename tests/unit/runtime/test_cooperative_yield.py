"""Answers rest between their slices while kube-scheduler calls, and only then."""

from __future__ import annotations

import asyncio
import math

import pytest

from extender.runtime import cooperative_yield
from extender.runtime.cooperative_yield import Yielder


@pytest.fixture
def rests(monkeypatch):
    """Collects for how long answers rest; every piece of work uses a slice up."""
    seen = []
    sleep = asyncio.sleep

    async def slept(delay_s):
        seen.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(cooperative_yield, "SLICE_S", 0.0)
    # the calm comes in no test by itself
    monkeypatch.setattr(cooperative_yield, "RECENT_CALL_S", 600.0)
    monkeypatch.setattr(cooperative_yield.asyncio, "sleep", slept)
    monkeypatch.setattr(Yielder, "_called_s", -math.inf)
    monkeypatch.setattr(Yielder, "_next_s", 0.0)
    return seen


async def work(pieces):
    pace = Yielder()
    for _ in range(pieces):
        await pace.yield_if_due()


async def test_without_scheduler_calls_there_are_no_rests(rests):
    await work(5)
    assert rests == [0.0] * 5
    assert Yielder.since_last_call_s() == math.inf


async def test_kube_scheduler_calls(rests):
    """Two answers share the slices: the second waits for the first one's rest, too."""
    Yielder.record_call()
    await work(1)
    await work(1)
    assert rests[0] == pytest.approx(cooperative_yield.REST_S)
    assert rests[1] > cooperative_yield.REST_S


async def test_it_has_called(rests):
    Yielder.record_call(cooperative_yield.RECENT_CALL_S + 0.1)
    await work(2)
    assert rests == [0.0] * 2


async def test_the_last_call_counts(rests):
    """News of an older one, that came later, changes nothing."""
    Yielder.record_call(0.1)
    Yielder.record_call(cooperative_yield.RECENT_CALL_S + 0.1)
    await work(1)
    assert rests == [pytest.approx(cooperative_yield.REST_S)]
