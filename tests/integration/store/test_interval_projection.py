"""Any prefix of any log: the same state by the fold, by a checkpoint and the tail, and by SQL as of a position."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    MemberTerminated,
    PodBound,
    PreemptionCompleted,
    PreemptionPlanned,
    ReleasedPod,
    ReservationReleased,
    SupersededRecord,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import GangUid, PlanId, PodUid, Position
from extender.ports.log_ports import LogHead
from extender.snapshots.state_loader import load_historical_state, load_state, save_snapshot
from extender.store.connections import ConnectionPool, our_faults
from extender.store.log.event_codec import EMPTY_CHAIN, VERSIONS
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.hypothesis_profile import examples
from tests.support.logs.bulk_log import copy_events, forget_log, writing_connection
from tests.support.logs.postgres import fresh_database, run
from tests.support.logs.random_logs import NODES, ROOTS, event_after, histories, lean

pytestmark = pytest.mark.postgres

PLACEMENTS = """
SELECT kind, gang_uid, pod_uid, pod, pod_group, node, plan, priority, extra, resources::text AS resources,
       from_at_us
FROM gx.placement WHERE from_position <= $1 AND coalesce(to_position, $1 + 1) > $1
"""
ROOT_STATES = """
SELECT gang_uid, gang, kind, priority, state, phase, outcome, reasons, last_decision_position
FROM gx.gang_state WHERE from_position <= $1 AND coalesce(to_position, $1 + 1) > $1 AND state <> 'removed'
"""
PENDING = """
SELECT c.gang_uid, c.preemption, c.position, c.outcome IS NOT NULL AS ended, c.started_units, c.evicted,
       array_agg(v.pod_uid ORDER BY v.pod_uid) FILTER (WHERE v.status = 'terminating') AS victims
FROM gx.preemption c LEFT JOIN gx.victim v USING (position) WHERE c.pending GROUP BY c.position
"""
PREEMPTOR = "SELECT by_gang FROM gx.placement WHERE pod_uid = $1 AND to_position = $2"
# What this session has read of the placements and not reported yet: entries of their indexes, rows that were alive.
READ = """
SELECT sum(pg_stat_get_xact_tuples_returned(r))::integer AS entries,
       sum(pg_stat_get_xact_tuples_fetched(r))::integer AS alive
FROM (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = 'gx.placement'::regclass
      UNION ALL SELECT 'gx.placement'::regclass) AS one_of (r)
"""
OTHERS = """
INSERT INTO gx.placement (pod_uid, pod, gang_uid, gang, pod_group, node, kind, plan, from_position, from_at_us, to_position)
SELECT 'other-' || n, 'ns/other-' || n, 'root-' || n / 4, 'ns/root-' || n / 4, 'leaf', 'n' || n % 500, 'bound', '', 1, 1,
       CASE WHEN n % 10 > 0 THEN 2 END
FROM generate_series(1, 20000) n
"""


@pytest.fixture(scope="module")
def log_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        yield url


def states_of(events):
    """Return the state at every position, the empty one first."""
    states = [EMPTY]
    for event in events:
        states.append(fold(states[-1], [event]))
    return states


def rows_by_fold(state):
    """Return placements and roots as the rows of the tables have them."""
    placements = {
        ("reserved", root.uid, r.uid, r.pod, r.group, r.node, r.plan, r.priority, r.extra,
         tuple(sorted(r.requests.items())), r.at_us)
        for root in state.gangs.values() for r in root.reservations.values()
    } | {
        ("bound", root.uid, m.uid, m.pod, m.group, m.node, m.plan, tuple(sorted(m.requests.items())))
        for root in state.gangs.values() for m in root.bound.values()
    } | {
        ("replacement", root.uid, v.uid, v.pod, v.group, v.node, v.plan, v.priority,
         tuple(sorted(v.requests.items())), v.at_us)
        for root in state.gangs.values() for v in root.replacement_holds.values()
    }  # fmt: skip
    roots = set()
    for r in state.gangs.values():
        making_capacity = r.last_decision is not None and r.last_decision.outcome == "preempting"
        shown = (
            "preempting"
            if making_capacity and r.phase not in ("admitted", "scheduled")
            else r.phase
        )
        answer = (None, (), None)
        if r.last_decision is not None:
            answer = (r.last_decision.outcome, r.last_decision.reasons, r.last_decision.position)
        roots.add((r.uid, r.gang, r.kind, r.priority, shown, r.phase, *answer))
    return placements, roots


async def rows_by_sql(connection, position):
    placements = set()
    for row in await connection.fetch(PLACEMENTS, position):
        kind, *same, priority, extra, resources, at_us = row
        wanted = msgspec.json.decode(resources) if resources else {}
        needs = tuple(sorted(wanted.items()))
        rest = {
            "reserved": (priority, extra, needs, at_us),
            "replacement": (priority, needs, at_us),
            "bound": (needs,),
        }
        placements.add((kind, *same, *rest[kind]))
    roots = {
        (*row[:7], tuple(row["reasons"]), row["last_decision_position"])
        for row in await connection.fetch(ROOT_STATES, position)
    }
    return placements, roots


def pending_by_fold(state):
    return {
        (
            p.gang_uid,
            p.id,
            p.position,
            p.ended,
            p.started_units,
            p.evicted,
            tuple(sorted(p.victims)),
        )
        for p in state.preemptions.values()
    }


def losses_of(states):
    """Return every last loss of a gang in any of the states."""
    found = (root.last_loss for state in states for root in state.gangs.values())
    return {(loss.uid, loss.position): loss for loss in found if loss is not None}.values()


async def pending_by_sql(connection):
    return {
        (*row[:4], frozenset(row["started_units"]), row["evicted"], tuple(row["victims"] or ()))
        for row in await connection.fetch(PENDING)
    }


async def project_in_steps(connection, upto, step):
    """Project as the service does, a few events at a time; what is pending is compared on the way."""
    position = await connection.fetchval("SELECT position FROM gx.projection")
    while position < upto:
        position = await connection.fetchval("SELECT gx.project($1, $2)", upto, step)
        yield position


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories(), st.integers(1, 26), st.integers(0, 25), st.integers(0, 25))
def test_fold_checkpoint_and_sql_agree(log_url, events, step, saved, asked):
    """At every position, in whatever steps it was projected, and from whichever checkpoint it is loaded."""
    states = states_of(events)
    saved, asked = min(saved, len(events)), min(asked, len(events))

    async def compare():
        connection = await writing_connection(log_url)
        engine = ConnectionPool(log_url, name="test")
        try:
            await forget_log(connection)
            chain, _ = await copy_events(connection, events[:saved])
            if saved:
                head = LogHead(position=Position(saved), chain=chain, at_us=states[saved].at_us)
                await save_snapshot(PostgresSnapshots(engine), states[saved], head)
            await copy_events(connection, events[saved:], chain)
            async for position in project_in_steps(connection, len(events), step):
                assert await pending_by_sql(connection) == pending_by_fold(states[position])
            for position, state in enumerate(states):
                assert await rows_by_sql(connection, position) == rows_by_fold(state)
            for loss in losses_of(states):
                by = await connection.fetchval(PREEMPTOR, loss.uid, loss.position)
                assert (by or "") == loss.preemptor.partition("/")[2], loss
            async with PostgresEventLog(log_url, page_events=3) as log:
                found = {"snapshots": PostgresSnapshots(engine), "until": Position(asked)}
                loaded, past = (
                    await load_state(log, **found),
                    await load_historical_state(log, **found),
                )
            assert loaded == states[asked]
            assert lean(past) == lean(states[asked])
        finally:
            await engine.close()
            await connection.close()

    run(compare())


@pytest.fixture
async def projected(database_url):
    """Write events of the first root (or of one that is named with the event) and project them."""
    connection = await writing_connection(database_url)

    async def write(*entries):
        state, events = EMPTY, []
        for given_ in entries:
            uid, entry = given_ if isinstance(given_, tuple) else (ROOTS[0], given_)
            events.append(event_after(state, uid, entry))
            state = fold(state, [events[-1]])
        await copy_events(connection, events)
        assert await connection.fetchval("SELECT gx.project($1, 1000)", len(events)) == len(events)
        return connection

    yield write
    await connection.close()


def admitted(*pods, plan="plan"):
    return GangAdmitted(
        plan=PlanId(plan), kind="PodGroup", priority=3, groups=(),
        shapes=({"cpu": 1000}, {"nvidia.com/gpu": 2}),
        assignments=tuple(
            AssignmentRecord(pod=f"ns/{p}", uid=PodUid(p), group="leaf", node=NODES[0], shape=1)
            for p in pods
        ),
    )  # fmt: skip


def bound(pod, plan="plan"):
    return PodBound(
        plan=PlanId(plan), pod=f"ns/{pod}", uid=PodUid(pod), node=NODES[0], group="leaf"
    )


def taken(pod):
    """Return a preemption that evicts a pod of the first root."""
    unit = VictimUnit(
        kind="PodGroup", path="ns/low", uid="u", priority=0,
        pods=(VictimPod(pod=f"ns/{pod}", uid=PodUid(pod), node=NODES[0]),),
    )  # fmt: skip
    return PreemptionPlanned(
        preemption=PlanId("p"), kind="PodGroup", priority=9, victims=(unit,), cost={}, alternatives=(),
        shapes=(), assignments=(),
    )  # fmt: skip


async def test_how_an_interval_ended_and_by_whom(projected):
    """The end names its event, its reason, and the preemption behind it; devices stay known when bound."""
    connection = await projected(
        GangObserved(kind="PodGroup"),
        admitted("a", "b", "c"),
        bound("a"),
        bound("b"),
        (ROOTS[1], taken("a")),
        MemberTerminated(pod="ns/a", uid=PodUid("a"), node=NODES[0], cause="deleted"),
        MemberTerminated(pod="ns/b", uid=PodUid("b"), node=NODES[0], cause="node-lost"),
        GangRemoved(reason="deleted"),
    )
    rows = await connection.fetch(
        "SELECT pod_uid, kind, from_position, to_position, end_type, end_reason, by_gang, by_position, "
        "resources ->> 'nvidia.com/gpu' AS gpus FROM gx.placement ORDER BY pod_uid, from_position"
    )
    assert [tuple(row) for row in rows] == [
        ("a", "reserved", 2, 3, "PodBound", "bound", None, None, "2"),
        ("a", "bound", 3, 6, "MemberTerminated", "deleted", "ns/root-1", 5, "2"),
        ("b", "reserved", 2, 4, "PodBound", "bound", None, None, "2"),
        ("b", "bound", 4, 7, "MemberTerminated", "node-lost", None, None, "2"),
        ("c", "reserved", 2, 8, "GangRemoved", "deleted", None, None, "2"),
    ]


async def test_reservations_that_gave_way_name_the_preemptor(projected):
    """They were released in front of the plan that they gave way to."""
    pods = (ReleasedPod(pod="ns/a", uid=PodUid("a"), node=NODES[0]),)
    superseded = SupersededRecord(
        gang="ns/root-0", gang_uid=ROOTS[0], plan=PlanId("plan"), priority=0, pods=pods
    )
    connection = await projected(
        admitted("a"),
        ReservationReleased(plan=PlanId("plan"), reason="superseded", pods=pods),
        (ROOTS[1], msgspec.structs.replace(taken("x"), superseded=(superseded,))),
    )
    row = await connection.fetchrow("SELECT end_reason, by_gang, by_position FROM gx.placement")
    assert tuple(row) == ("superseded", "ns/root-1", 3)


async def test_victims_left_of_a_completed_preemption_are_spared_when_its_root_goes(projected):
    """As the fold has it; else the preemption would be pending for ever."""
    entries = (
        GangObserved(kind="PodGroup"),
        taken("x"),
        PreemptionCompleted(preemption=PlanId("p"), bound=1, evicted=0, duration_ms=1),
    )
    connection = await projected(*entries, GangRemoved(reason="deleted"))
    row = await connection.fetchrow("SELECT outcome, pending, ended_position FROM gx.preemption")
    assert tuple(row) == ("completed", False, 3)
    assert await connection.fetchval("SELECT status FROM gx.victim") == "spared"


async def test_texts_that_postgres_cannot_hold(projected):
    """A NUL inside of an event is a replacement character in the tables; it stops nothing."""
    connection = await projected(
        GangUnschedulable(outcome="impossible", reasons=("a\0b", "c\\u0000d"))
    )
    reasons = await connection.fetchval("SELECT reasons FROM gx.gang_state")
    assert reasons[0] == "a\ufffdb"


async def test_the_functions_know_every_event_as_it_is_written_now():
    """A new event, or a new version of one, needs its arm in project_event.sql."""
    folder = Path(__file__).parents[3] / "migrations" / "sql"
    text = max(folder.glob("*/project_event.sql")).read_text()
    known = text.split("shapes constant jsonb := '")[1].split("'")[0]
    assert msgspec.json.decode(known) == VERSIONS


async def test_a_event_of_the_future_is_not_guessed_at(projected, database_url):
    connection = await projected(GangObserved(kind="PodGroup"))
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("UPDATE gx.event SET schema_version = 9")
    await connection.execute("SELECT gx.reset_projection()")
    with (
        pytest.raises(CorruptLog, match="position 1: GangObserved version 9"),
        our_faults("projecting"),
    ):
        await connection.fetchval("SELECT gx.project(1, 1)")
    assert await connection.fetchval("SELECT position FROM gx.projection") == 0


def gang_of(pods):
    """Return the events of a gang in stages, all of whose members are lost and replaced before it ends."""
    return {
        "bound": [admitted(*pods), *map(bound, pods), GangScheduled(plan=PlanId("plan"), bound=1)],
        "lost": [
            MemberTerminated(
                pod=f"ns/{pod}", uid=PodUid(pod), node=NODES[0], cause="deleted", held_until_us=1
            )
            for pod in pods
        ],
        "replaced": [bound(f"{pod}-again") for pod in pods],
        "completed": [GangRemoved(reason="deleted")],
    }


@pytest.mark.parametrize("others", ["none", "many"])
async def test_what_is_read_grows_as_the_gang_and_not_as_its_square(database_url, others):
    """Beside nothing, by plans that were made when the tables were empty, and beside many whose numbers are known."""
    connection = await writing_connection(database_url)
    state, chain = EMPTY, EMPTY_CHAIN

    async def read_for(gang_uid, members):
        nonlocal state, chain
        read = {}
        for stage, entries in gang_of([f"{gang_uid}-{n}" for n in range(members)]).items():
            events = []
            for entry in entries:
                events.append(event_after(state, gang_uid, entry))
                state = fold(state, [events[-1]])
            chain, _ = await copy_events(connection, events, chain)
            async with connection.transaction():  # in which nothing is reported
                before = await connection.fetchrow(READ)
                await connection.execute("SELECT gx.project($1, 1000)", state.position)
                after = await connection.fetchrow(READ)
            read[stage] = [new - old for new, old in zip(after, before, strict=True)]
        return read

    try:
        if others == "many":
            await connection.execute(OTHERS)
            await connection.execute("VACUUM (ANALYZE) gx.placement")
        await read_for(GangUid("first"), 2)
        few = await read_for(GangUid("few"), 100)
        many = await read_for(GangUid("many"), 400)
    finally:
        await connection.close()
    for stage, (entries, alive) in few.items():
        assert alive >= 100, stage
        assert many[stage][1] < 6 * alive, stage
        if stage != "replaced":  # passes over the kept rooms that ended in its own transaction
            assert many[stage][0] < 6 * entries, stage
