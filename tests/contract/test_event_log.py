"""What every `EventLog` promises, the fake and the real one."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from uuid import uuid4

import pytest

from extender.core.log.events import GangUnschedulable, LeaseAcquired
from extender.core.model.errors import (
    ClockAhead,
    CorruptLog,
    DuplicateEvent,
    Fenced,
    HeadMoved,
    InvariantBroken,
    LeaseHeld,
)
from extender.core.model.ids import NIL_GANG, Position
from extender.ports.log_ports import LogHead, LogMark
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, Script
from tests.support.waiting import eventually


@pytest.fixture
async def replica(store_url):
    """Makes one more replica on the same log."""
    made = []
    if store_url is None:
        database = FakeDatabase(lambda: time.time_ns() // 1000)
        make = lambda: FakeEventLog(database, page_events=7)
    else:
        make = lambda: PostgresEventLog(store_url, page_events=7)

    def one_more():
        made.append(make())
        return made[-1]

    yield one_more
    for log in made:
        await log.close()


@pytest.fixture
def log(replica):
    return replica()


async def take(log, holder="a", ttl_ms=60_000):
    return await log.take(holder=holder, address=f"{holder}:8888", ttl_ms=ttl_ms)


async def everything(log, **span):
    return [event async for page in log.read(**span) for event in page]


async def test_an_empty_log_has_no_head_and_no_leader(log):
    assert await log.head() == LogHead()
    assert await log.lease() is None
    assert await everything(log) == []


async def test_what_is_appended_is_read_back(log):
    """Every field comes back as it was given, in order, over several pages."""
    grant = await take(log)
    script = Script(grant)
    events = [script.next(LeaseAcquired(holder="a", address="a:8888"), gang="", uid=NIL_GANG)]
    events += [
        script.next(
            GangUnschedulable(
                outcome="impossible", reasons=('no capacity: "rack" \u0000 \U0001f600',)
            ),
            gang=f"ns/{number}",
            actor="extender",
            cause="filter of pod ns/pod-\u00e9",
            cause_position=Position(1),
        )
        for number in range(30)
    ]
    await log.append(grant, events[:1])
    await log.append(grant, events[1:])
    assert await everything(log) == events
    assert await everything(log, after=Position(10), until=Position(17)) == events[10:17]
    assert await everything(log, until=Position(99)) == events
    assert (await log.head()).position == 31
    assert (await log.head()).at_us == events[-1].at_us


async def test_an_empty_append_writes_nothing(log):
    await log.append(await take(log), [])
    assert await log.head() == LogHead()


async def test_concurrent_appends_keep_the_order_of_the_calls(log):
    """Positions were given out by the caller; batching must not shuffle them, nor choke on a full queue."""
    grant = await take(log)
    script = Script(grant)
    calls = [script.some(1 + number % 5) for number in range(2000)]
    await asyncio.gather(*(log.append(grant, events) for events in calls))
    assert await everything(log) == [event for events in calls for event in events]


async def test_a_lease_is_not_taken_from_a_living_holder(log, replica):
    await take(log, "a")
    with pytest.raises(LeaseHeld, match="a:8888"):
        await take(replica(), "b")


async def test_the_same_holder_need_not_wait(log, replica):
    """A restart after kill -9 goes on at once, in a new epoch."""
    first = await take(log, "a")
    again = await take(replica(), "a")
    assert again.epoch == first.epoch + 1
    assert again.lease != first.lease
    assert again.previous_holder == "a"
    with pytest.raises(Fenced):
        await log.append(first, Script(first).some(1))


async def test_an_epoch_is_above_all_that_the_caller_knows(log, replica):
    """`take` returns an epoch above `above` and above the lease row, which a restored database sets back."""
    first = await take(log, "a")
    assert (first.epoch, first.previous_epoch) == (1, 0)
    again = await log.take(holder="a", address="", ttl_ms=60_000, above=41)
    assert (again.epoch, again.previous_epoch) == (42, 1)
    assert again.timeline == first.timeline != ""
    lower = await log.take(holder="a", address="", ttl_ms=60_000, above=7)
    assert (lower.epoch, lower.previous_epoch) == (43, 42)
    await log.append(lower, Script(lower).some(1))


async def test_the_end_as_it_was_at_a_position(replica):
    """The head that was, with its hash and time; nothing behind the end."""
    log = replica()
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    script, heads = Script(grant), [await log.head()]
    for _ in range(3):
        await log.append(grant, script.some(1))
        heads.append(await log.head())
    assert [await log.at(Position(n)) for n in range(5)] == [*heads, None]


async def test_a_mark_is_held_or_not(log):
    """By the id of the event, by its hash, by both; a position that is not there holds nothing."""
    grant = await take(log)
    events = Script(grant).some(3)
    await log.append(grant, events)
    head = await log.head()

    def mark(position, **known):
        return LogMark(position=Position(position), epoch=grant.epoch, **known)

    assert await log.holds(mark(0))
    assert await log.holds(mark(2, event_id=events[1].event_id))
    assert await log.holds(mark(3, chain=head.chain))
    assert await log.holds(mark(3, chain=head.chain, event_id=events[2].event_id))
    assert not await log.holds(mark(3, chain=head.chain, event_id=events[1].event_id))
    assert not await log.holds(mark(2, chain=head.chain))
    assert not await log.holds(mark(2, event_id=events[2].event_id))
    assert not await log.holds(mark(4))


async def test_an_expired_lease_is_free(log, replica):
    first = await take(log, "a", ttl_ms=30)
    await asyncio.sleep(0.05)
    assert (await log.lease()).expired
    second = await take(replica(), "b")
    assert (second.epoch, second.previous_holder) == (first.epoch + 1, "a")
    record = await log.lease()
    assert (record.holder, record.address, record.ttl_ms, record.expired) == (
        "b",
        "b:8888",
        60_000,
        False,
    )


async def test_renewing_prolongs(log, replica):
    """Each renewal counts from its own time on, by the clock of the database."""
    grant = await take(log, "a")
    for _ in range(4):
        before = await log.lease()
        await asyncio.sleep(0.002)  # both clocks count microseconds
        await log.renew(grant)
        after = await log.lease()
        assert after.renewed_us > before.renewed_us
        assert not after.expired
    with pytest.raises(LeaseHeld):
        await take(replica(), "b")


async def test_released_means_free_and_over(log, replica):
    """After giving the lease back its holder can neither write nor renew, and releasing twice is fine."""
    grant = await take(log, "a")
    await log.release(grant)
    await log.release(grant)
    assert (await log.lease()).expired
    with pytest.raises(Fenced):
        await log.append(grant, Script(grant).some(1))
    with pytest.raises(Fenced):
        await log.renew(grant)
    assert (await take(replica(), "b")).epoch == grant.epoch + 1
    await log.release(grant)
    assert not (await log.lease()).expired


async def test_the_deposed_leader_is_fenced(log, replica):
    """Also when its events would fit the log, and when it only wants to renew."""
    old = await take(log, "a", ttl_ms=1)
    await asyncio.sleep(0.02)
    other = replica()
    new = await take(other, "b")
    with pytest.raises(Fenced):
        await log.append(old, Script(old).some(3))
    with pytest.raises(Fenced):
        await log.renew(old)
    await other.append(new, Script(new).some(2))
    with pytest.raises(Fenced):
        await log.append(old, Script(old).some(3))
    assert (await log.head()).position == 2


async def test_events_must_begin_at_the_head(log):
    grant = await take(log)
    await log.append(grant, Script(grant).some(3))
    with pytest.raises(HeadMoved):
        await log.append(grant, Script(grant).some(1))
    ahead = Script(grant)
    ahead.position = 7
    with pytest.raises(HeadMoved):
        await log.append(grant, ahead.some(1))
    assert (await log.head()).position == 3


async def test_an_id_is_written_once(log):
    """Appending again after a lost answer raises DuplicateEvent; `find` returns what is written already."""
    grant = await take(log)
    events = Script(grant).some(3)
    await log.append(grant, events)
    grant = await take(log)
    script = Script(grant)
    again = [script.next(event_id=event.event_id) for event in events[1:]]
    with pytest.raises(DuplicateEvent):
        await log.append(grant, again)
    unknown = str(uuid4())
    found = await log.find([event.event_id for event in events] + [unknown])
    assert found == {event.event_id: event.position for event in events}
    script = Script(grant)
    await log.append(grant, [script.next(event_id=unknown)])
    assert (await log.head()).position == 4


async def test_an_id_twice_in_one_call_is_refused(log):
    grant = await take(log)
    script = Script(grant)
    event = script.next()
    with pytest.raises(DuplicateEvent):
        await log.append(grant, [event, script.next(event_id=event.event_id)])
    assert await log.head() == LogHead()


async def test_only_the_bad_call_of_a_batch_fails(log):
    """Calls in front of a duplicate are written; those behind it do not fit the log any more."""
    grant = await take(log)
    first = Script(grant).some(2)
    await log.append(grant, first)
    script = Script(await take(log))
    script.versions = {first[0].gang_uid: 2}
    calls = [script.some(2), [script.next(event_id=first[0].event_id)], script.some(2)]
    outcomes = await asyncio.gather(
        *(log.append(script.grant, events) for events in calls), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [bytes, DuplicateEvent, HeadMoved]
    assert (await log.head()).position == 4


async def test_an_append_returns_the_hash_of_its_last_event(log):
    """Each call its own, also where they are written together; pages that are read have that of their last event, too."""
    script = Script(await take(log))
    calls = [script.some(2), script.some(1), script.some(3)]
    hashes = await asyncio.gather(*(log.append(script.grant, events) for events in calls))
    assert hashes == [(await log.at(events[-1].position)).chain for events in calls]
    assert [page.chain async for page in log.read()][-1] == hashes[-1]
    assert (await anext(log.follow(after=Position(0)))).chain == hashes[-1]


async def test_what_no_log_may_hold_is_refused(log):
    """A gap inside the call, another epoch, falling time, a version twice, text that cannot be stored."""
    grant = await take(log)
    await log.append(grant, [Script(grant).next(at_us=1_000)])
    grant = await take(log)

    def script():
        return Script(grant)

    bad = [
        [script().next(), script().next()],
        [script().next(epoch=grant.epoch + 1)],
        [script().next(at_us=999)],
        [script().next(), script().next(position=Position(7), stream_version=2, at_us=1_001)],
        [script().next(uid="uid-of-ns/root-1")],
        [script().next(cause="a\0b")],
        [script().next(event_id="no uuid")],
    ]
    for events in bad:
        with pytest.raises(InvariantBroken):
            await log.append(grant, events)
    await log.append(grant, script().some(1))
    assert (await log.head()).position == 2


async def test_a_read_behind_the_head_is_refused(log):
    """`read` after a position that the log does not have raises CorruptLog: a part of the log is lost."""
    grant = await take(log)
    await log.append(grant, Script(grant).some(3))
    assert await everything(log, after=Position(3)) == []
    with pytest.raises(CorruptLog, match="4"):
        await everything(log, after=Position(4))


async def test_followers_see_what_is_there_and_what_comes(log, replica):
    grant = await take(log)
    script = Script(grant)
    events = script.some(10)
    await log.append(grant, events)
    seen = []

    async def follow():
        async with aclosing(replica().follow(after=Position(2))) as pages:
            async for page in pages:
                seen.extend(page)
                if len(seen) == 20:
                    return

    following = asyncio.create_task(follow())
    await eventually(lambda: len(seen) >= 8, "what is there")
    for _ in range(12):
        more = script.some(1)
        events += more
        await log.append(grant, more)
    await following
    assert seen == events[2:]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_time_ahead_of_the_clock_of_the_database_is_refused(log, count):
    """More than 2 s, also at the end of a batch; nothing is written, and a right time is accepted afterwards."""
    grant = await take(log)
    ahead_us = await log.time_us() + 60_000_000
    script = Script(grant)
    with pytest.raises(ClockAhead):
        await log.append(grant, [*script.some(count - 1), script.next(at_us=ahead_us)])
    grant = await take(log)
    await log.append(grant, [Script(grant).next(at_us=await log.time_us() + 1_000_000)])
    assert (await log.head()).position == 1
