"""Readers of the feed: everything once, in order, whatever happens to them or to the log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from extender.core.log.events import GangObserved, PodBound
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.query_ports import EventFilter
from extender.queries.log import event_stream as feed_module
from extender.queries.log.event_stream import EventStream
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries, Script
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No rest for readers: time is not what is tested."""
    for name in ("REST_S", "RETRY_S", "SPREAD"):
        monkeypatch.setattr(feed_module, name, 1 if name == "SPREAD" else 0.001)


class Writer:
    """A log that grows."""

    def __init__(self):
        self.database = FakeDatabase()
        self.log = FakeEventLog(self.database)
        self.feed = EventStream(self.log, FakeEventQueries(self.database))

    async def begin(self):
        self.grant = await self.log.take(holder="a", address="", ttl_ms=60_000)
        self.script = Script(self.grant)
        return self

    async def write(self, count=1, data=None, **given):
        await self.log.append(self.grant, self.script.some(count, data=data, **given))


@pytest.fixture
async def writer():
    return await Writer().begin()


async def reading(writer, seen, wanted=None, limit=None):
    async with aclosing(writer.feed.follow(wanted or EventFilter())) as batches:
        async for batch in batches:
            seen += [event.position for event, _ in batch.events]
            if limit is not None and len(seen) >= limit:
                return


async def test_what_is_there_then_what_comes(writer):
    await writer.write(5)
    seen = []
    task = asyncio.create_task(reading(writer, seen, limit=20))
    await eventually(lambda: len(seen) == 5, "what was there")
    for _ in range(15):
        await writer.write()
        await asyncio.sleep(0)
    await task
    assert seen == list(range(1, 21))


async def test_a_reader_that_comes_back_goes_on_where_it_was(writer):
    """Cut off again and again at any place, nothing is missed and nothing comes twice."""
    seen = []
    for _ in range(10):
        await writer.write(7)
        after = Position(seen[-1] if seen else 0)
        await reading(writer, seen, EventFilter(after=after), limit=len(seen) + 5)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= 50


async def test_a_slow_reader_costs_no_memory(writer, monkeypatch):
    """It falls out of what is kept, and takes its pages from the database."""
    monkeypatch.setattr(feed_module, "BUFFER_EVENTS", 10)
    batches = writer.feed.follow(EventFilter())
    slow, fast = [], []
    task = asyncio.create_task(reading(writer, fast))  # without an end: it keeps the feed following
    await eventually(lambda: writer.feed._recent is not None, "following")
    kept = writer.feed._recent
    for _ in range(100):
        await writer.write(10)
        await asyncio.sleep(0)
        assert len(kept._events) <= 10
    await eventually(lambda: len(fast) == 1000 and kept.head == 1000, "the fast reader")
    assert kept.start == 990
    async with aclosing(batches):
        async for batch in batches:
            assert len(batch.events) <= feed_module.CATCH_UP_EVENTS
            slow += [event.position for event, _ in batch.events]
            if len(slow) == 1000:
                break
    task.cancel()
    assert slow == fast == list(range(1, 1001))


@pytest.mark.parametrize("kept_bytes", [1, 10**6])
async def test_filters_hold_for_what_is_kept_and_for_what_is_asked(writer, monkeypatch, kept_bytes):
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", kept_bytes)
    seen = []
    wanted = EventFilter(namespace="team-b", node="n1")
    task = asyncio.create_task(reading(writer, seen, wanted, limit=10))
    for _ in range(10):
        for root in ("team-a/x", "team-b/x"):
            for node in ("n1", "n2"):
                await writer.write(
                    data=PodBound(plan="p", pod=f"{root}-0", uid="u", node=node), gang=root
                )
                await asyncio.sleep(0)
    await task
    assert seen == [4 * n + 3 for n in range(10)]


async def test_a_reader_without_events_gets_the_position(writer, monkeypatch):
    """A reader for whom nothing comes gets the position up to which the log was looked through."""
    monkeypatch.setattr(feed_module, "SILENCE_S", 0.01)
    await writer.write(5)
    async with aclosing(writer.feed.follow(EventFilter(types=("GangUnschedulable",)))) as batches:
        async for batch in batches:
            assert batch.events == ()
            if batch.position == 5:
                break


async def test_an_outage_is_waited_for(writer):
    seen = []
    task = asyncio.create_task(reading(writer, seen, limit=6))
    await writer.write(3)
    await eventually(
        lambda: len(seen) == 3 and writer.feed._recent is not None, "the first, followed"
    )
    reader = writer.feed._reader
    page = reader.page

    asked = []

    async def no_answer(wanted):
        asked.append(wanted)
        raise StoreUnavailable("gone")

    reader.page = no_answer
    writer.feed._recent.start = Position(10**6)  # so that it has to ask
    await writer.write(2)
    await eventually(lambda: len(asked) > 2, "asked again")
    assert not task.done()
    reader.page = page
    await writer.write(1)
    await task
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_log_that_lost_its_end_sends_readers_away(writer):
    """And those who come afterwards are served again."""

    class Lost(FakeEventLog):
        async def follow(self, *, after):
            raise CorruptLog("position 3 is not the event it was")
            yield

    whole = writer.feed._log
    writer.feed._log = Lost(writer.database)
    await writer.write(3)
    with pytest.raises(CorruptLog):
        await reading(writer, [])
    writer.feed._log = whole
    seen = []
    await reading(writer, seen, limit=3)
    assert seen == [1, 2, 3]


async def test_the_log_is_not_followed_without_readers(writer):
    """The last reader takes the connection with it; a stop ends all readers."""
    seen = []
    await writer.write()
    await reading(writer, seen, limit=1)
    assert (writer.feed.readers, writer.feed._following) == (0, None)
    tasks = [asyncio.create_task(reading(writer, [])) for _ in range(3)]
    await eventually(lambda: writer.feed.readers == 3, "three readers")
    writer.feed.stop()
    await asyncio.gather(*tasks)
    assert writer.feed.readers == 0


async def test_a_clock_that_goes_backwards_changes_nothing(writer):
    """Positions order the events; recorded time never falls, whatever the clock shows."""
    seen = []
    task = asyncio.create_task(reading(writer, seen, EventFilter(since_us=50), limit=3))
    for at_us in (10, 50, 50, 60):
        await writer.write(at_us=at_us, data=GangObserved(kind="PodGroup"))
    await task
    assert seen == [2, 3, 4]
