"""What every `AuditReader` promises, the fake and the real one."""

from __future__ import annotations

import pytest

from extender.core.events import GangRefused, LeaseTaken, RootObserved
from extender.core.ids import NIL_ROOT, Position
from extender.service.ports import EventFilter
from extender.store.audit_reader import PostgresAuditReader, create_reading_engine
from extender.store.event_log import PostgresEventLog
from tests.fakes_store import FakeAuditReader, FakeDatabase, FakeEventLog, Script


@pytest.fixture
async def store(store_url):
    if store_url is None:
        database = FakeDatabase()
        yield FakeEventLog(database), FakeAuditReader(database)
        return
    engine = create_reading_engine(store_url)
    async with PostgresEventLog(store_url) as log:
        yield log, PostgresAuditReader(engine)
    await engine.dispose()


@pytest.fixture
async def reader(store):
    """Position 1: the lease. Then rounds of: team-a/serve observed, team-b/train refused; the third serve is a new one.

    Recorded times are 1,000 for each round.
    """
    log, reader = store
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    script = Script(grant)
    events = [script.next(LeaseTaken(holder="a", address=""), root="", uid=NIL_ROOT)]
    for round_ in range(1, 5):
        at_us = round_ * 1000
        uid = "old" if round_ < 3 else "new"
        events.append(
            script.next(RootObserved(kind="PodGroup"), root="team-a/serve", uid=uid, at_us=at_us)
        )
        refused = GangRefused(outcome="unknown", reasons=("budget",))
        events.append(script.next(refused, root="team-b/train", uid="train", at_us=at_us))
    await log.append(grant, events)
    return reader


async def positions(reader, **wanted):
    return [event.position for event in await reader.events(EventFilter(**wanted))]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"root": "team-a/serve"}, [2, 4, 6, 8]),
        ({"root": "team-a/serve", "root_uid": "new"}, [6, 8]),
        ({"root_uid": NIL_ROOT}, [1]),
        ({"namespace": "team-b"}, [3, 5, 7, 9]),
        ({"namespace": "team"}, []),
        ({"types": ("GangRefused", "LeaseTaken")}, [1, 3, 5, 7, 9]),
        ({"types": ("NoSuchFact",)}, []),
        ({"since_us": 2000}, [4, 5, 6, 7, 8, 9]),
        ({"since_us": 2001, "until_us": 3000}, [6, 7]),
        ({"until_us": 0}, []),
        ({"since_us": 4001}, []),
        ({"after": Position(7)}, [8, 9]),
        ({"limit": 2}, [1, 2]),
        ({"limit": 0}, []),
        ({"limit": 3, "newest_first": True}, [9, 8, 7]),
        ({"limit": 3, "newest_first": True, "after": Position(7)}, [6, 5, 4]),
        ({"namespace": "team-b", "until_us": 3000, "newest_first": True, "limit": 2}, [7, 5]),
    ],
)
async def test_filters(reader, wanted, expected):
    assert await positions(reader, **wanted) == expected


async def test_facts_come_whole(store, reader):
    log, _ = store
    everything = [event async for page in log.read() for event in page]
    assert list(await reader.events(EventFilter())) == everything


async def test_a_name_had_two_lives(reader):
    """A root that was deleted and made again is two roots, the older first."""
    assert tuple(await reader.roots_named("team-a/serve")) == ("old", "new")
    assert tuple(await reader.roots_named("team-a/other")) == ()
    assert tuple(await reader.roots_named("")) == ()


@pytest.mark.parametrize(
    ("at_us", "position"), [(0, 0), (999, 1), (1000, 3), (2999, 5), (4000, 9), (10**18, 9)]
)
async def test_a_time_is_a_position(reader, at_us, position):
    """The last fact up to then, also where several were recorded at once."""
    assert await reader.position_at(at_us) == position


async def test_namespaces_that_were_ever_named(reader):
    assert await reader.has_namespace("team-a")
    assert not await reader.has_namespace("team")
    assert not await reader.has_namespace("")
