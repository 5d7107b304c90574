"""Every report equals a plain computation over the events; nothing that is asked for becomes part of the question."""

from __future__ import annotations

import asyncio
import random
import re
from datetime import timedelta
from itertools import islice, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.log.events import (
    AssignmentRecord,
    CapacityMeasured,
    FreeDomainRecord,
    GangAdmitted,
    GangExtended,
    GangObserved,
    GangUnschedulable,
    GroupRecord,
    MemberTerminated,
    MoveCompleted,
    MoveRecord,
    MovesEnded,
    MovesPlanned,
    ReleasedPod,
    ReservationReleased,
    ReservedCapacityUser,
    TreeCompiled,
    TreeRetired,
)
from extender.core.log.gang_phase import TAKEN, UNDECIDED, WaitingGangs
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.workloads.native_groups import AdoptedGroup
from extender.core.workloads.tree_compiler import GroupSpec
from extender.queries.log.reports import EPOCH, REPORTS, ReportQuery
from extender.queries.state.gang_status import gang_status
from extender.store.queries.event_queries import reading_pool
from extender.store.queries.report_queries import PostgresReportQueries, query_of
from tests.bench.history import admission, history, write_history
from tests.integration.store.test_audit_questions import DOCUMENT, QUERY
from tests.support.hypothesis_profile import examples
from tests.support.logs.bulk_log import copy_events, forget_log, writing_connection
from tests.support.logs.postgres import fresh_database
from tests.support.logs.random_logs import ROOTS, event_after, histories
from tests.support.logs.reference_reports import PLAIN, ReportInputs, plainly

pytestmark = pytest.mark.postgres
START_US = 1_790_000_000_000_000
MINUTE_US = 60_000_000
LONG = "team-a/" + "x" * 245
NAMES = [
    "team-a/serve",
    "team-b/serve",
    "team-b/größe-☃",
    "team-a/'; DROP TABLE gx.event; --",
    LONG,
]
RACKS = {"n0": {"rack": "r0"}, "n1": {"rack": "r0"}, "n2": {"rack": "r'1"}}
GPU = "nvidia.com/gpu"
WHOLE = re.compile(r"Seq Scan on (event|placement|gang_state)")


@st.composite
def measured_histories(draw):
    """Make a history with names that are reused, times that stand still and leap, devices, racks and measurements."""
    names = {uid: draw(st.sampled_from(NAMES)) for uid in ROOTS}
    at_us, state, events = START_US, EMPTY, []
    for event in draw(histories()):
        if draw(st.integers(0, 4)) == 0:
            place = event_after(state, NIL_GANG, draw(_rooms(state.position)))
            events.append(msgspec.structs.replace(place, at_us=at_us))
            state = fold(state, [events[-1]])
        uid = draw(st.sampled_from(ROOTS))
        entry = draw(_setback(state.gangs.get(uid)))
        if entry is not None:
            place = event_after(state, uid, entry)
            events.append(msgspec.structs.replace(place, at_us=at_us, gang=names[uid]))
            state = fold(state, [events[-1]])
        at_us += draw(st.sampled_from([0, 0, 1, 17 * MINUTE_US, 3 * 60 * MINUTE_US + 7]))
        place = event_after(state, event.gang_uid, draw(_with_devices(event.data)))
        name = names.get(event.gang_uid, "")
        events.append(msgspec.structs.replace(place, at_us=at_us, gang=name))
        state = fold(state, [events[-1]])
    return events


def _setback(root):
    """Refuse a tree that waits, or take a member of one that runs: what reports are about."""
    if root is None or root.phase == "unschedulable":
        return st.none()
    if root.bound:
        lost = [
            MemberTerminated(pod=m.pod, uid=m.uid, node=m.node, cause="evicted")
            for m in root.bound.values()
        ]
        return st.sampled_from([None, *sorted(lost, key=lambda entry: entry.uid)])
    outcomes = ("impossible", "unknown", "waiting")
    return st.sampled_from(
        [GangUnschedulable(outcome=o, reasons=(f"it is {o}",)) for o in outcomes]
    )


@st.composite
def _rooms(draw, position):
    keys = {"": ["n0", "n1", ""], "rack": ["r0", "r'1", ""]}
    records = [
        FreeDomainRecord(
            resource=resource, key=key, domain=draw(st.sampled_from(domains)), nodes=1,
            free=draw(st.integers(0, 9)), total=9,
        )
        for resource in ("cpu", GPU)
        for key, domains in keys.items()
    ]  # fmt: skip
    known = max(0, position - draw(st.integers(0, 1)))
    return CapacityMeasured(as_of=Position(known), largest_free=tuple(records))


@st.composite
def _with_devices(draw, entry):
    if not isinstance(entry, GangAdmitted | GangExtended):
        return entry
    shapes = ({"cpu": 1500, "pods": 1}, {"cpu": 1000, GPU: 3, "pods": 1})
    assignments = [
        msgspec.structs.replace(a, shape=draw(st.integers(0, 1))) for a in entry.assignments
    ]
    return msgspec.structs.replace(
        entry, shapes=shapes, assignments=tuple(assignments), topology=RACKS,
        priority=draw(st.integers(0, 2)),
    )  # fmt: skip


@st.composite
def questions(draw, events):
    """Ask for a span that begins and ends at events, beside them, or outside of the log."""
    times = sorted({START_US - 5, *(e.at_us for e in events), START_US + 100 * 60 * MINUTE_US})
    some = st.sampled_from(times).flatmap(lambda t: st.sampled_from([t - 1, t, t + 1]))
    since_us, until_us = times[0], times[-1] + 1
    if draw(st.booleans()):
        since_us, until_us = sorted(draw(st.lists(some, min_size=2, max_size=2, unique=True)))
    namespace = gang = ""
    if draw(st.integers(0, 3)) == 0:
        namespace = draw(
            st.sampled_from(["team-a", "team-a", "team-b", "team", "%", "' OR true --"])
        )
    if draw(st.integers(0, 3)) == 0:
        gang = draw(st.sampled_from([*NAMES, "ns/u1", "'/'"]))
    return {"since_us": since_us, "until_us": until_us, "namespace": namespace, "gang": gang}


def comparable(rows):
    """Put rows into an order in which sums that differ by rounding stand at the same place."""
    exact = [tuple(v for v in row if not isinstance(v, float)) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: repr(exact[i]))
    floats = [[v for v in rows[i] if isinstance(v, float)] for i in order]
    return [exact[i] for i in order], floats


def same(found, expected):
    (ours, our_floats), (theirs, their_floats) = comparable(found), comparable(expected)
    assert ours == theirs
    for mine, other in zip(our_floats, their_floats, strict=True):
        assert mine == pytest.approx(other, abs=1e-6)


async def answer_reports(url, events, asked):
    connection = await writing_connection(url)
    engine = reading_pool(url)
    try:
        return await project_and_answer(connection, engine, events, asked)
    finally:
        await connection.close()
        await engine.close()


async def project_and_answer(connection, engine, events, asked):
    await forget_log(connection)
    await copy_events(connection, events)
    await connection.fetchval("SELECT gx.project($1, 100000)", len(events))
    reader = PostgresReportQueries(engine)
    return {one.name: await reader.rows(one) for one in asked}


@pytest.fixture(scope="module")
def answers(postgres_url, template_database):
    """Return `project_and_answer` with one connection and one engine for all examples, on a loop of their own."""
    loop = asyncio.new_event_loop()
    with fresh_database(postgres_url, template=template_database) as url:
        connection = loop.run_until_complete(writing_connection(url))
        engine = reading_pool(url)

        def call(events, asked):
            return loop.run_until_complete(project_and_answer(connection, engine, events, asked))

        yield call
        loop.run_until_complete(connection.close())
        loop.run_until_complete(engine.close())
    loop.close()


@examples(60)
@given(st.data())
def test_every_report_is_the_plain_computation(answers, data):
    """For any log a leader could have written, any span, namespace and gang."""
    events = data.draw(measured_histories())
    given_ = data.draw(questions(events))
    asked = [
        ReportQuery(
            name=name,
            limit=9999,
            **(given_ if kind.of_gangs else given_ | {"namespace": "", "gang": ""}),
        )
        for name, kind in REPORTS.items()
    ]
    found = answers(events, asked)
    for one in asked:
        same([tuple(row) for row in found[one.name].rows], plainly(events, one))
        assert found[one.name].head == found[one.name].projected == len(events)


async def test_reports_of_admissions_come_in_their_order_and_a_page_is_the_beginning(database_url):
    """Wherever the span begins, and over more events than are looked at at a time."""
    events = list(islice(history(pace_us=2_600_000, measured_every=100), 4000))
    await answer_reports(database_url, events, [])
    orders = {
        "queue-bypass": lambda row: (row[8], row[0], row[1]),
        "largest-free-used": lambda row: (row[9], row[2], row[3]),
    }
    plain, engine = ReportInputs(events), reading_pool(database_url)
    reader = PostgresReportQueries(engine)
    for (name, order), (begin, end) in product(
        orders.items(), [(0, 3999), (2999, 3600), (3511, 3512)]
    ):
        asked = ReportQuery(
            name=name, since_us=events[begin].at_us, until_us=events[end].at_us, limit=9999
        )
        every = sorted(PLAIN[name](plain, asked), key=order)
        for limit in (9999, 20):
            found = await reader.rows(msgspec.structs.replace(asked, limit=limit))
            assert [tuple(row) for row in found.rows] == every[: limit + 1]
        assert len(every) > 21 or end - begin == 1
    await engine.close()


async def test_moves_lose_work_for_the_gang_that_waited(database_url):
    """One row per namespace of the pods and of that gang, with the work that was planned; those of no gang have none."""
    state, events = EMPTY, []

    def add(uid, entry, gang=""):
        nonlocal state
        place = event_after(state, uid, entry)
        events.append(msgspec.structs.replace(place, at_us=START_US, gang=gang))
        state = fold(state, [events[-1]])

    gang, uid = "team-b/serve", GangUid("u1")
    add(uid, GangObserved(kind="PodGroup"), gang)
    for waiting in ("team-a/train", ""):
        moves = tuple(
            MoveRecord(
                pod=f"team-b/p{i}", uid=PodUid(f"p{i}"), group="leaf", gang=gang, gang_uid=uid, source=NodeName("n0"), target=NodeName("n1"),
                requests={}, priority=0, lost_min=lost_min,
            )
            for i, lost_min in enumerate((30, 90, 600))
        )  # fmt: skip
        add(
            NIL_GANG,
            MovesPlanned(plan=PlanId("m"), question="", by="", moves=moves, for_gang=waiting),
        )
        for number, move in enumerate(moves[:2], 1):
            made = MoveCompleted(
                plan=PlanId("m"), number=number, pod=move.pod, uid=move.uid, source=move.source, target=move.target,
                replacement="team-b/new", replacement_uid=PodUid("new"), duration_ms=1,
            )  # fmt: skip
            add(uid, made, gang)
        add(NIL_GANG, MovesEnded(plan=PlanId("m"), reason="stopped", made=2, left=1))
    asked = ReportQuery(name="lost-work", since_us=START_US, until_us=START_US + 1, limit=9)
    found = (await answer_reports(database_url, events, [asked]))["lost-work"].rows
    same([tuple(row) for row in found], plainly(events, asked))
    assert [tuple(row)[1:] for row in found] == [
        ("team-b", "", 0, 2, 2.0, 0, 0.0, 2),
        ("team-b", "team-a", 0, 2, 2.0, 0, 0.0, 2),
    ]
    theirs = msgspec.structs.replace(asked, namespace="team-a")
    found = (await answer_reports(database_url, events, [theirs]))["lost-work"].rows
    assert len(found) == 1


async def test_capacity_is_taken_in_domains_of_any_name(database_url):
    """Of names that are part of others, of none, and of such that JSON writes in another form."""
    racks = ["r1", "r10", "", 'a"b\\c', "größe", "r1.a"]
    nodes = {f"n{i}": {"rack": rack} for i, rack in enumerate(racks)}
    state, events = EMPTY, []
    for i, rack in enumerate(racks):
        places = {"rack": rack, "": f"n{i}"}
        rooms = tuple(
            FreeDomainRecord(resource=GPU, key=key, domain=domain, free=9, nodes=1, total=9)
            for key, domain in places.items()
        )
        measured = CapacityMeasured(as_of=Position(state.position), largest_free=rooms)
        events.append(event_after(state, NIL_GANG, measured))
        state = fold(state, [events[-1]])
        for j in range(len(racks)):
            entry = admission(random.Random(j), f"m{i}-{j}", pods=1, uid=f"{i}-{j}")
            record = msgspec.structs.replace(
                entry.assignments[0], node=NodeName(f"n{j}"), uid=PodUid(f"p{i}-{j}")
            )
            entry = msgspec.structs.replace(
                entry, assignments=(record,), topology={f"n{j}": nodes[f"n{j}"]}
            )
            events.append(event_after(state, GangUid(f"u{i}-{j}"), entry))
            state = fold(state, [events[-1]])
    asked = ReportQuery(name="largest-free-used", since_us=0, until_us=START_US, limit=9999)
    found = (await answer_reports(database_url, events, [asked]))["largest-free-used"].rows
    same([tuple(row) for row in found], plainly(events, asked))
    assert len(found) == 2 * len(racks)


def compiled(suspended, *, message="", adopted=()):
    """A Job of namespace ns that is gang root-0, or whose controller made that group."""
    groups = () if adopted else (GroupSpec(kind="PodGroup", name="root-0"),)
    return TreeCompiled(
        kind="Job", workload="ns/job", uid="w", generation=1, table_version=1, profile="", groups=groups,
        adopted=adopted, suspended=suspended, message=message,
    )  # fmt: skip


@pytest.mark.parametrize("adopted", [(), (AdoptedGroup(name="root-0"),)], ids=["made", "adopted"])
async def test_the_time_in_which_the_workload_is_suspended_is_not_waited(database_url, adopted):
    """Of that gang alone, also while it is suspended still; a log without these events is read as before."""
    waits = GangUnschedulable(outcome="waiting", reasons=("needs 4 pods, 0 present",))
    story = [
        (0, NIL_GANG, compiled(suspended=True)),  # before it has a pod
        (9, NIL_GANG, compiled(suspended=False)),
        (10, ROOTS[0], GangObserved(kind="PodGroup")),
        (10, ROOTS[1], GangObserved(kind="PodGroup")),
        (10, ROOTS[0], waits),
        (10, ROOTS[1], waits),
        (20, NIL_GANG, compiled(suspended=True, message="a\0b", adopted=adopted)),
        (25, NIL_GANG, compiled(suspended=True, adopted=adopted)),  # another field has changed
        (30, ROOTS[0], GangUnschedulable(outcome="waiting", reasons=("the same, later",))),
        (50, NIL_GANG, compiled(suspended=False, adopted=adopted)),
        (60, NIL_GANG, compiled(suspended=True, adopted=adopted)),
        (70, NIL_GANG, TreeRetired(kind="Job", workload="ns/other", uid="o", reason="deleted")),
    ]
    state, events = EMPTY, []
    for minute, uid, data in story:
        at_us = START_US + minute * MINUTE_US
        events.append(msgspec.structs.replace(event_after(state, uid, data), at_us=at_us))
        state = fold(state, [events[-1]])
    span = {"since_us": START_US, "until_us": START_US + 96 * MINUTE_US, "limit": 9999}
    asked = [ReportQuery(name=name, **span) for name in ("pending", "pending-namespaces", "usage")]
    answered = await answer_reports(database_url, events, asked)
    waited = {(row[0], row[3]): (row[4] / 60, row[5]) for row in answered["pending"].rows}
    assert waited == {
        ("ns/root-1", "needs 4 pods, 0 present"): (86, 1),
        ("ns/root-0", "needs 4 pods, 0 present"): (10, 1),
        ("ns/root-0", "the same, later"): (10, 1),
    }
    assert [tuple(row)[2:] for row in answered["pending-namespaces"].rows] == [
        (2, 1, 106 * 60, 86 * 60)
    ]
    pending = {
        round((row[0] - EPOCH).total_seconds() - START_US / 1e6) // 60: row[3]
        for row in answered["usage"].rows
    }
    assert [pending[minute] for minute in (9, 10, 19, 20, 30, 49, 50, 59, 60, 96)] == [
        0, 2, 2, 1, 1, 1, 2, 2, 1, 1,
    ]  # fmt: skip
    before = [event for event in events if isinstance(event.data, GangObserved | GangUnschedulable)]
    events = [msgspec.structs.replace(e, position=Position(n)) for n, e in enumerate(before, 1)]
    answered = await answer_reports(database_url, events, asked)
    assert [tuple(row)[2:] for row in answered["pending-namespaces"].rows] == [
        (2, 2, 172 * 60, 86 * 60)
    ]


async def test_a_gang_that_the_log_gets_after_its_workload_was_suspended_does_not_wait(
    database_url,
):
    """Its last pods were seen as they went; without another change of the workload it waited in reports for ever."""
    waits = GangUnschedulable(outcome="waiting", reasons=("needs 4 pods, 0 present",))
    story = [
        (0, NIL_GANG, compiled(suspended=False)),
        (1, NIL_GANG, compiled(suspended=True)),
        (2, ROOTS[0], GangObserved(kind="PodGroup")),
        (2, ROOTS[0], waits),
        (2, ROOTS[1], GangObserved(kind="PodGroup")),
        (2, ROOTS[1], waits),
    ]
    state, events = EMPTY, []
    for minute, uid, data in story:
        at_us = START_US + minute * MINUTE_US
        events.append(msgspec.structs.replace(event_after(state, uid, data), at_us=at_us))
        state = fold(state, [events[-1]])
    span = {"since_us": START_US, "until_us": START_US + 12 * MINUTE_US, "limit": 9999}
    asked = [ReportQuery(name=name, **span) for name in ("pending", "pending-namespaces")]
    answered = await answer_reports(database_url, events, asked)
    assert [(row[0], row[4]) for row in answered["pending"].rows] == [("ns/root-1", 10 * 60)]
    assert [tuple(row)[2:4] for row in answered["pending-namespaces"].rows] == [(1, 1)]


@pytest.mark.parametrize("adopted", [(), (AdoptedGroup(name="root-0"),)], ids=["made", "adopted"])
async def test_a_gang_whose_name_was_that_of_a_suspended_workload_waits_when_that_is_gone(
    database_url, adopted
):
    """A PodGroup that a user has created under the name, without any other change of a workload."""
    waits = GangUnschedulable(outcome="waiting", reasons=("needs 4 pods, 0 present",))
    story = [
        (0, NIL_GANG, compiled(suspended=True, adopted=adopted)),
        (2, NIL_GANG, TreeRetired(kind="Job", workload="ns/job", uid="w", reason="deleted")),
        (2, ROOTS[0], GangObserved(kind="PodGroup")),
        (2, ROOTS[0], waits),
    ]
    state, events = EMPTY, []
    for minute, uid, data in story:
        at_us = START_US + minute * MINUTE_US
        events.append(msgspec.structs.replace(event_after(state, uid, data), at_us=at_us))
        state = fold(state, [events[-1]])
    assert [waiting.root.uid for waiting in WaitingGangs().of(state)] == [ROOTS[0]]
    span = {"since_us": START_US, "until_us": START_US + 12 * MINUTE_US, "limit": 9999}
    answered = await answer_reports(database_url, events, [ReportQuery(name="pending", **span)])
    assert [(row[0], row[4]) for row in answered["pending"].rows] == [("ns/root-0", 10 * 60)]


async def test_a_reason_that_postgres_cannot_hold_stops_no_report(database_url):
    """A NUL in a recorded sentence is reported as a replacement character."""
    entry = GangUnschedulable(outcome="unknown", reasons=("a\0b",))
    event = msgspec.structs.replace(event_after(EMPTY, ROOTS[0], entry), at_us=START_US)
    asked = ReportQuery(name="decisions", since_us=START_US, until_us=START_US + 1)
    found = await answer_reports(database_url, [event], [asked])
    assert [tuple(row)[5] for row in found["decisions"].rows] == [1]
    connection = await writing_connection(database_url)
    assert await connection.fetchval("SELECT reason FROM gx.v_decision") == "a\ufffdb"
    await connection.close()


async def test_times_of_views_are_those_of_the_events_to_the_microsecond(database_url):
    """They go through floating point on their way, so that an index can have them."""
    connection = await writing_connection(database_url)
    wrong = await connection.fetchval(
        "SELECT count(*) FROM generate_series(1, 200000) n, "
        "LATERAL (SELECT (n * 21474836483 + n % 1000003)::bigint AS at_us) a "
        "WHERE to_timestamp(at_us / 1e6::double precision) <> timestamptz 'epoch' + at_us * interval '1 microsecond'"
    )
    await connection.close()
    assert wrong == 0


async def test_no_question_reads_the_whole_log(database_url):
    """No sequential scan of the log or of its intervals: each report, with and without a gang, and each query of QUESTIONS.md."""
    events = 8000
    await write_history(database_url, events, pace_us=2_600_000, measured_every=100)
    connection = await writing_connection(database_url)
    await connection.fetchval("SELECT gx.project($1, 100000)", events)
    await connection.execute("ANALYZE gx.event, gx.placement, gx.gang_state")
    until_us = await connection.fetchval(
        "SELECT at_us FROM gx.event WHERE position = $1", events // 2
    )
    engine = reading_pool(database_url)
    for name, kind in REPORTS.items():
        for gang in ("", "serve/model-0000007") if kind.of_gangs else ("",):
            asked = ReportQuery(
                name=name, since_us=until_us - 5 * MINUTE_US, until_us=until_us, gang=gang
            )
            text, values = query_of(asked)
            async with engine.use("explaining") as connected:
                lines = await connected.fetch(f"EXPLAIN {text}", *values)
                plan = "\n".join(line[0] for line in lines)
            assert not WHOLE.search(plan), f"{name}\n{plan}"
            assert "gang_state_state_idx" not in plan, "from the first on that was ever refused"
    await engine.close()
    since, until = (
        (EPOCH + timedelta(microseconds=at_us)).isoformat()
        for at_us in (until_us - 5 * MINUTE_US, until_us)
    )
    for query, _ in QUERY.findall(DOCUMENT.read_text()):
        here = re.sub(r"2026-11-17( 08:00Z)?(?=')", since, query)
        here = re.sub(r"2026-11-18|2026-11-17 09:00Z", until, here)
        assert "2026-11-1" not in here
        here = here.replace("team-a/train", "serve/model-0000007")
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {here}"))
        assert not WHOLE.search(plan), f"{here}\n{plan}"
    await connection.close()


def released(uid, *, taken):
    user = ReservedCapacityUser(
        pod="ns/other", uid=PodUid("o"), node=NodeName("n0"), scheduler="", priority=0, via="unaware"
    )  # fmt: skip
    pod = ReleasedPod(pod=f"ns/{uid}-0", uid=PodUid(f"{uid}-0"), node=NodeName("n0"))
    reason, users = ("superseded", (user,)) if taken else ("node-lost", ())
    return ReservationReleased(plan=PlanId("plan"), reason=reason, pods=(pod,), taken_by=users)


def admitted(uid):
    pod = AssignmentRecord(
        pod=f"ns/{uid}-0", uid=PodUid(f"{uid}-0"), group="leaf", node=NodeName("n0")
    )
    group = GroupRecord(kind="PodGroup", name="leaf", minimum=1, parent="")
    return GangAdmitted(
        plan=PlanId("plan"), kind="PodGroup", priority=0, groups=(group,), shapes=({"cpu": 1},), assignments=(pod,)
    )  # fmt: skip


async def test_a_gang_without_a_decision_has_the_same_reason_as_in_lists(database_url):
    """Its capacity was taken, was not taken this time, and it was only observed."""
    stories = {
        "a": [GangObserved(kind="PodGroup"), admitted("a"), released("a", taken=True)],
        "b": [GangObserved(kind="PodGroup"), admitted("b"), released("b", taken=True), admitted("b"), released("b", taken=False)],
        "c": [GangObserved(kind="PodGroup")],
    }  # fmt: skip
    state, events, at_us = EMPTY, [], START_US
    for uid, entries in stories.items():
        for entry in entries:
            at_us += MINUTE_US
            event = event_after(state, GangUid(uid), entry)
            events.append(msgspec.structs.replace(event, at_us=at_us, gang=f"ns/{uid}"))
            state = fold(state, [events[-1]])
    asked = ReportQuery(name="pending", since_us=at_us + 1, until_us=at_us + MINUTE_US)
    found = (await answer_reports(database_url, events, [asked]))["pending"]
    reasons = {row[0]: row[3] for row in found.rows}
    assert reasons == {"ns/a": TAKEN, "ns/b": UNDECIDED, "ns/c": UNDECIDED}
    assert reasons == {root.gang: gang_status(root).reasons[0] for root in state.gangs.values()}
