"""/metrics is written in slices: scrapes at the same time do not add up to one long turn of the event loop."""

import asyncio

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from extender.http.web.health import exposition
from extender.runtime import cooperative_yield

FAMILIES = 41


def a_registry():
    """Return a registry with histograms of some label values, and an empty counter."""
    registry = CollectorRegistry()
    for number in range(FAMILIES - 1):
        histogram = Histogram(f"duration_{number}", "Some \\ text\n", ["verb"], registry=registry)
        for verb in ("filter", "bi\nd"):
            histogram.labels(verb).observe(number)
    Counter("requests", "None yet.", ["outcome"], registry=registry)
    return registry


async def test_the_slices_are_the_whole_text():
    """What is written in slices is what the library writes at once, also without any family."""
    registry = a_registry()
    assert await exposition(registry) == generate_latest(registry)
    assert await exposition(CollectorRegistry()) == b""


async def test_others_are_answered_between_slices(monkeypatch):
    """The event loop turns after each slice: here, after each family."""
    monkeypatch.setattr(cooperative_yield, "SLICE_S", 0.0)
    registry, turns = a_registry(), 0
    writing = asyncio.create_task(exposition(registry))
    while not writing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > FAMILIES
