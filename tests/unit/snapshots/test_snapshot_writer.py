"""When states are saved: often to look back from, less often whole, never one that the log has left behind."""

from __future__ import annotations

import asyncio

import pytest

from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import StoreUnavailable
from extender.snapshots.state_loader import FULL_CODEC, HISTORICAL_CODEC, SnapshotWriter
from extender.store.log.event_codec import chain, encode_event
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeSnapshots
from tests.support.logs.short_log import story
from tests.support.service.fakes import FakeClock

EVENTS, MS = 1, 60_000  # so a whole one is due after five events, or after a minute


class Growing:
    """A log that grows event by event, and a look after each of them."""

    def __init__(self):
        self.database, self.clock = FakeDatabase(), FakeClock()
        self.snapshots = FakeSnapshots(self.database, snapshot_spacing=1)
        log = FakeEventLog(self.database)
        self.saving = SnapshotWriter(log, self.snapshots, self.clock, events=EVENTS, ms=MS)
        self.story, self.state = iter(story()), EMPTY

    def write(self):
        event = next(self.story)
        row = encode_event(event)[0]
        self.database.rows.append((row, chain(self.database.head.chain, row)))
        self.state = fold(self.state, [event])

    async def look(self):
        await self.saving.save_if_due(self.state)

    def saved(self, codec):
        return [position for position, found in self.database.snapshots if found == codec]


@pytest.fixture
async def growing():
    """A log of five events, with the first whole state."""
    growing = Growing()
    for _ in range(5):
        growing.write()
    await growing.look()
    return growing


async def test_every_few_events_one_to_look_back_from(growing):
    for _ in range(4):
        growing.write()
        await growing.look()
        await growing.look()
    assert growing.saved(HISTORICAL_CODEC) == [5, 6, 7, 8, 9]
    assert growing.saved(FULL_CODEC) == [5]
    growing.write()
    await growing.look()
    assert growing.saved(FULL_CODEC) == [5, 10]


async def test_a_whole_one_after_a_while_if_anything_was_recorded(growing):
    growing.clock.ms += MS
    await growing.look()
    assert growing.saved(FULL_CODEC) == [5]
    growing.write()
    await growing.look()
    assert growing.saved(FULL_CODEC) == [5, 6]


async def test_discarding_also_deletes_the_one_that_is_being_saved(growing):
    """It was made of the state of before; the next look saves again."""
    growing.write()
    begun, go_on = asyncio.Event(), asyncio.Event()
    save = growing.snapshots.save

    async def slow(*snapshots):
        begun.set()
        await go_on.wait()
        await save(*snapshots)

    growing.snapshots.save = slow
    saving = asyncio.create_task(growing.look())
    await begun.wait()
    discarding = asyncio.create_task(growing.saving.discard())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(saving, discarding)
    assert growing.database.snapshots == {}
    await growing.look()
    assert growing.saved(FULL_CODEC) == [6]


async def test_the_next_look_finds_it_when_the_log_has_moved_on(growing):
    before = growing.state
    growing.write()
    await growing.saving.save_if_due(before)
    growing.state, after = before, growing.state
    await growing.look()
    assert growing.saved(HISTORICAL_CODEC) == [5]
    growing.state = after
    await growing.look()
    assert growing.saved(HISTORICAL_CODEC) == [5, 6]


async def test_a_store_that_is_away_is_asked_again(growing, monkeypatch, caplog):
    async def away(*_):
        raise StoreUnavailable("gone")

    growing.write()
    with monkeypatch.context() as patched:
        patched.setattr(growing.snapshots, "save", away)
        await growing.look()
    assert "snapshot not saved" in caplog.text
    await growing.look()
    assert growing.saved(HISTORICAL_CODEC) == [5, 6]
