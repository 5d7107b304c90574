"""What every `EventQueries` promises, the fake and the real one."""

from __future__ import annotations

import contextlib

import pytest

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangUnschedulable,
    LeaseAcquired,
    MemberTerminated,
    PodBindFailed,
    PodBound,
    PreemptionPlanned,
    ReleasedPod,
    SupersededRecord,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.model.errors import BadInput
from extender.core.model.ids import NIL_GANG, Position
from extender.ports.query_ports import EventFilter
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries, Script
from tests.support.logs.postgres import fresh_database, run

STORES = ("fake", pytest.param("postgres", marks=pytest.mark.postgres))
INDEXED = {"none indexed": 0, "some indexed": 3, "all indexed": 100}


@contextlib.contextmanager
def database(kind, request):
    """Yield the database of a fake, or the URL of a real one; no test changes what was written into it."""
    if kind == "fake":
        yield FakeDatabase()
        return
    server_url, template = map(request.getfixturevalue, ("postgres_url", "template_database"))
    with fresh_database(server_url, template=template) as url:
        yield url


@contextlib.asynccontextmanager
async def opened(place):
    """Yield the log and the queries of a database."""
    if isinstance(place, FakeDatabase):
        yield FakeEventLog(place), FakeEventQueries(place)
        return
    engine = reading_pool(place)
    async with PostgresEventLog(place) as log:
        yield log, PostgresEventQueries(engine)
    await engine.close()


@pytest.fixture(scope="module", params=STORES)
def rounds(request):
    with database(request.param, request) as place:
        run(write_rounds(place))
        yield place


async def write_rounds(place):
    """Position 1: the lease. Then rounds of: team-a/serve observed, team-b/train refused; the third serve is a new one.

    Recorded times are 1,000 for each round.
    """
    async with opened(place) as (log, _):
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        script = Script(grant)
        events = [script.next(LeaseAcquired(holder="a", address=""), gang="", uid=NIL_GANG)]
        for round_ in range(1, 5):
            at_us = round_ * 1000
            uid = "old" if round_ < 3 else "new"
            observed = GangObserved(kind="PodGroup")
            events.append(script.next(observed, gang="team-a/serve", uid=uid, at_us=at_us))
            refused = GangUnschedulable(outcome="unknown", reasons=("budget",))
            events.append(script.next(refused, gang="team-b/train", uid="train", at_us=at_us))
        await log.append(grant, events)


@pytest.fixture
async def store(rounds):
    async with opened(rounds) as both:
        yield both


@pytest.fixture
def reader(store):
    return store[1]


async def positions(reader, **wanted):
    return [event.position for event in await reader.events(EventFilter(**wanted))]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"gang": "team-a/serve"}, [2, 4, 6, 8]),
        ({"gang": "team-a/serve", "gang_uid": "new"}, [6, 8]),
        ({"gang_uid": NIL_GANG}, [1]),
        ({"namespace": "team-b"}, [3, 5, 7, 9]),
        ({"namespace": "team"}, []),
        ({"types": ("GangUnschedulable", "LeaseAcquired")}, [1, 3, 5, 7, 9]),
        ({"types": ("NoSuchEvent",)}, []),
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


async def test_events_come_whole(store, reader):
    log, _ = store
    everything = [event async for page in log.read() for event in page]
    assert list(await reader.events(EventFilter())) == everything


async def test_a_name_had_two_lives(reader):
    """A root that was deleted and made again is two roots, the older first."""
    old, new = await reader.incarnations("team-a/serve")
    assert (old.uid, old.first_position, old.last_position, old.events) == ("old", 2, 4, 2)
    assert (new.uid, new.first_us, new.last_us, new.events) == ("new", 3000, 4000, 2)
    assert {old.gang, new.gang} == {"team-a/serve"}
    assert tuple(await reader.incarnations("", uid="new")) == (new,)
    assert tuple(await reader.incarnations("team-a/other")) == ()
    assert tuple(await reader.incarnations("")) == ()
    assert tuple(await reader.incarnations("", uid=NIL_GANG)) == ()


# What events name


def victim(pod, node):
    return VictimPod(pod=f"ns/{pod}", uid=f"uid-{pod}", node=node)


SHAPES = ({"cpu": 1000},)


@pytest.fixture(scope="module", params=INDEXED)
def indexed(request):
    return INDEXED[request.param]


@pytest.fixture(scope="module", params=STORES)
def names(request, indexed):
    with database(request.param, request) as place:
        run(write_names(place, indexed))
        yield place


@pytest.fixture
async def naming(names):
    async with opened(names) as (_, reader):
        yield reader


async def write_names(place, indexed):
    """Append positions 1 to 7, and index names up to a position."""
    assignment = AssignmentRecord(pod="ns/p", uid="uid-p", group="g", node="n1")
    entries = [
        PodBound(plan="plan-1", pod="ns/p", uid="uid-p", node="n1"),
        GangAdmitted(plan="plan-1", kind="PodGroup", priority=0, groups=(), shapes=SHAPES,
                     assignments=(assignment,), unplaced=("ns/q",)),
        MemberTerminated(pod="ns/p", uid="uid-p", node="n2", cause="unknown"),
        GangUnschedulable(outcome="unknown", reasons=("n1 is full \0 of \\u0000 it",)),
        PreemptionPlanned(
            preemption="plan-2", kind="PodGroup", priority=9, cost={}, alternatives=(), shapes=SHAPES,
            assignments=(assignment,),
            victims=(VictimUnit(kind="PodGroup", path="ns/v", uid="uid-v", priority=1,
                                pods=(victim("v-0", "n2"), victim("v-1", "n3"))),),
            superseded=(SupersededRecord(gang="ns/s", gang_uid="uid-s", plan="plan-0", priority=1,
                                         pods=(ReleasedPod(pod="ns/s-0", uid="uid-s-0", node="n4"),)),),
        ),
        VictimGone(preemption="plan-2", unit="PodGroup/ns/v", pod="ns/v-0", uid="uid-v-0", node="n2",
                      via="deleted", requested_us=0, gone_us=0),
        PodBindFailed(plan="plan-1", pod="ns/p", uid="uid-p", node="n1", error="a \0 of theirs \\\0"),
    ]  # fmt: skip
    async with opened(place) as (log, _):
        grant = await log.take(holder="a", address="", ttl_ms=60_000)
        script = Script(grant)
        await log.append(grant, [script.next(entry, gang="ns/g") for entry in entries])
    if isinstance(place, str):
        engine = ConnectionPool(place, name="test")
        assert await PostgresReadModels(engine).index(indexed or 1) > 0
        await engine.close()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"node": "n1"}, [1, 2, 5, 7]),
        ({"node": "n1", "newest_first": True}, [7, 5, 2, 1]),
        ({"node": "n1", "newest_first": True, "limit": 2, "after": Position(7)}, [5, 2]),
        ({"node": "n1", "limit": 3}, [1, 2, 5]),
        ({"node": "n1", "after": Position(2)}, [5, 7]),
        ({"node": "n1", "types": ("PodBound", "PodBindFailed")}, [1, 7]),
        ({"node": "n2"}, [3, 5, 6]),
        ({"node": "n4"}, [5]),
        ({"node": "n"}, []),
        ({"node": "uid-v"}, []),
        ({"victims": frozenset({"uid-v"})}, [5]),
        ({"victims": frozenset({"uid-v-0", "uid-s"})}, [5, 6]),
        ({"victims": frozenset({"uid-s-0", "uid-p", "n1"})}, []),
        ({"victims": frozenset()}, []),
        ({"plan": "plan-1"}, [2]),
        ({"plan": "plan-2"}, [5]),
        ({"plan": "plan-2", "node": "n4"}, [5]),
        ({"plan": "plan-0"}, []),
    ],
)
async def test_events_by_what_they_name(naming, wanted, expected):
    """Nodes, victims and plans, however much of the log is indexed; a NUL in a text hides nothing."""
    assert await positions(naming, **wanted) == expected


# Pages


async def test_a_page_has_the_head_and_whether_there_is_more(reader):
    page = await reader.page(EventFilter(limit=4))
    assert ([e.position for e in page.events], page.head, page.more) == ([1, 2, 3, 4], 9, True)
    page = await reader.page(EventFilter(after=Position(5), limit=4))
    assert ([e.position for e in page.events], page.head, page.more) == ([6, 7, 8, 9], 9, False)
    for nothing in (EventFilter(limit=0), EventFilter(after=Position(100)), EventFilter(node="n")):
        page = await reader.page(nothing)
        assert (page.events, page.head, page.more) == ((), 9, False)
    assert (await reader.page(EventFilter(after=Position(9), newest_first=True, limit=1))).more


@pytest.mark.parametrize(
    ("at_us", "position"), [(0, 0), (999, 1), (1000, 3), (2999, 5), (4000, 9), (10**18, 9)]
)
async def test_a_time_is_a_position(reader, at_us, position):
    """The last event up to then, also where several were recorded at once."""
    assert await reader.position_at(at_us) == position


async def test_namespaces_that_were_ever_named(reader):
    assert await reader.has_namespace("team-a")
    assert not await reader.has_namespace("team")
    assert not await reader.has_namespace("")


@pytest.mark.parametrize(
    ("name", "gangs"),
    [("serve", ["team-a/serve"]), ("train", ["team-b/train"]), ("team-a", []), ("rve", []), ("", [])],
)  # fmt: skip
async def test_gangs_of_a_name_in_any_namespace(reader, name, gangs):
    assert list(await reader.gangs_named(name)) == gangs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("after", 2**63 - 1),
        ("after", 2**70),
        ("gang", "team-a/ser\0ve"),
        ("node", "n\0"),
        ("plan", "\0"),
    ],
)
def test_what_no_log_can_have_is_refused_by_its_field(field, value):
    with pytest.raises(BadInput, match=f"^{field}: "):
        EventFilter(**{field: value})


@pytest.mark.postgres
async def test_a_text_that_postgresql_cannot_have_is_no_outage(database_url):
    async with opened(database_url) as (_, queries):
        assert (await queries.page(EventFilter(after=Position(2**63 - 2)))).events == ()
        with pytest.raises(BadInput, match="asking the log"):
            await queries.placements("team-a/\0")
        with pytest.raises(BadInput, match="asking the log"):
            await queries.position_at(2**63)
