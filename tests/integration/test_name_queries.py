"""Questions about names as they come in life, over HTTP and on the command line, from a real database."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangUnschedulable,
    HistoryTruncated,
    MemberTerminated,
    PodBound,
    PreemptionPlanned,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.model.ids import NIL_GANG, Position
from extender.http.responses.json_responses import problems
from extender.http.v1.event_api import EventApi
from extender.http.v1.explain_api import ExplainApi
from extender.http.v1.gang_api import GangApi, TreeApi
from extender.http.v1.history_api import HistoryApi, ReportApi
from extender.http.v1.plan_api import PlanApi
from extender.http.v1.state_api import LiveNodeApi, NodesApi, StateApi
from extender.http.web.health import Probes
from extender.http.web.server import OPERATIONS, OpenApiRoute
from extender.queries.explain.explain_service import ExplainService
from extender.queries.log.event_dto import EventLine
from extender.queries.log.event_stream import EventStream
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.node_inventory import NodeInventory
from extender.runtime.system_clock import SystemClock
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.hypothesis_profile import daily
from tests.support.logs.fake_store import Script
from tests.support.service.command_line import run_command
from tests.support.service.fake_workloads import labels_of
from tests.support.service.fakes import Stage, status_api
from tests.support.service.live_plans import answered_here
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.service.node_state import past_explain, past_node

pytestmark = pytest.mark.postgres
LONG = "ä日" * 126 + "z"  # 253 characters, 631 bytes
INJECTIONS = (
    "'; DROP TABLE gx.event; --",
    "' OR '1'='1",
    '"; DROP SCHEMA gx CASCADE; --',
    "x') UNION SELECT version() --",
    "%27%20OR%201=1",
    "$1",
    ":name",
    "{0}",
    "%s",
    "\\'; SELECT pg_sleep(10); --",
    "1; SELECT pg_sleep(10)",
    "default/a' AND pg_sleep(10) IS NULL --",
)


def events_of(script):
    """Two lives of one name; the first loses a member to `ns/big`, and the log loses its end between them."""
    assignment = AssignmentRecord(pod="ns/job-0", uid="u-0", group="job", node="n1")
    victim = VictimPod(pod="ns/job-0", uid="u-0", node="n1", group="job")
    unit = VictimUnit(kind="PodGroup", path="ns/job", uid="g-1", priority=1, pods=(victim,))
    first = [
        GangObserved(kind="PodGroup"),
        GangAdmitted(plan="p1", kind="PodGroup", priority=1, groups=(), shapes=({},),
                     assignments=(assignment,)),
        PodBound(plan="p1", pod="ns/job-0", uid="u-0", node="n1"),
    ]  # fmt: skip
    by_big = [
        PreemptionPlanned(preemption="pre", kind="PodGroup", priority=9, cost={}, alternatives=(),
                          shapes=(), assignments=(), victims=(unit,)),
        VictimGone(preemption="pre", unit="PodGroup/ns/job", pod="ns/job-0", uid="u-0", node="n1",
                      via="deleted", requested_us=1, gone_us=2),
    ]  # fmt: skip
    lost = HistoryTruncated(
        evidence="memory", known_position=9, known_epoch=1, found_position=7, found_epoch=1
    )
    preempted = MemberTerminated(pod="ns/job-0", uid="u-0", node="n1", cause="preempted")
    yield from (script.next(event, gang="ns/job", uid="life-1") for event in first)
    yield from (script.next(event, gang="ns/big", uid="big") for event in by_big)
    yield script.next(preempted, gang="ns/job", uid="life-1")
    yield script.next(GangRemoved(reason="deleted"), gang="ns/job", uid="life-1")
    yield script.next(lost, gang="", uid=NIL_GANG)
    refused = GangUnschedulable(outcome="unknown", reasons=("'; DROP TABLE gx.event; --",))
    yield script.next(GangObserved(kind="PodGroup"), gang="ns/job", uid="life-2")
    yield script.next(refused, gang="ns/job", uid="life-2")
    elsewhere = MemberTerminated(pod=f"{LONG[:60]}/p", uid="u-9", node=LONG, cause="preempted")
    yield script.next(elsewhere, gang=f"{LONG[:60]}/{LONG}", uid="life-3")


@pytest.fixture
async def written(database_url):
    async with PostgresEventLog(database_url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=3_600_000)
        await log.append(grant, list(events_of(Script(grant))))
    return database_url


async def no_plan(_):
    raise AssertionError("not asked here")


@asynccontextmanager
async def served(url, *objects):
    """Serve all of /v1 on a database and a cluster; yield the server."""
    engine = reading_pool(url)
    async with Stage(*objects) as stage, PostgresEventLog(url) as log:
        reader = PostgresEventQueries(engine)
        feed = EventStream(log, reader)
        inputs = PostgresDecisionInputs(engine)
        as_of = HistoricalState(log, PostgresSnapshots(engine), reader)
        app = web.Application(middlewares=[problems])
        gangs = GangApi(reader, inputs, stage.leader, labels_of(stage))
        for part in (
            HistoryApi(reader, inputs),
            gangs,
            status_api(stage, log, gangs),
            TreeApi(stage.leader, labels_of(stage)),
            EventApi(reader, feed),
            StateApi(as_of),
            NodesApi(stage.cluster, past_node(as_of)),
            ReportApi(PostgresReportQueries(engine), reader, SystemClock()),
            PlanApi(no_plan, no_plan, no_plan, stage.parts.mover, stage.leader, answered_here),
            ExplainApi(
                ExplainService(stage.cluster, stage.leader, SystemClock(), no_plan),
                past_explain(as_of, reader),
            ),
            LiveNodeApi(NodeInventory(stage.cluster), stage.leader),
            OpenApiRoute(),
        ):
            app.add_routes(part.routes())
        app.add_routes(Probes(stage.extender_service, stage.leader).api_routes())
        routed = {route.resource.canonical for route in app.router.routes()}
        assert {operation.path for operation in OPERATIONS} <= routed
        server = TestServer(app)
        await server.start_server()
        yield server
        feed.stop()
        await server.close()
    await engine.close()


@asynccontextmanager
async def asking(url):
    """Serve all of /v1 on a database; yield a function that asks."""
    async with served(url) as server, aiohttp.ClientSession() as session:

        async def ask(path, **query):
            target = server.make_url(path).update_query(query)
            async with session.get(target) as reply:
                return reply.status, await reply.json(content_type=None)

        yield ask


# One request for every GET of /v1 that ends; about the events of `events_of` and a node and a gang that are there now.
EVERY_GET = {
    "/v1/gangs": "/v1/gangs?namespace=default",
    "/v1/trees": "/v1/trees?namespace=default",
    "/v1/gangs/{namespace}/{name}": "/v1/gangs/ns/job",
    "/v1/gangs/{namespace}/{name}/history": "/v1/gangs/ns/job/history?decisions=true",
    "/v1/gangs/{namespace}/{name}/explain": "/v1/gangs/ns/job/explain",
    "/v1/gangs/{namespace}/{name}/tree": "/v1/gangs/default/g/tree",
    "/v1/explain": "/v1/explain?name=nodes/n1&namespace=default",
    "/v1/search": "/v1/search?q=g",
    "/v1/events": "/v1/events?after=3&limit=1000",
    "/v1/preemptions": "/v1/preemptions?victim=ns/job-0",
    "/v1/decisions/{id}": "/v1/decisions/pre",
    "/v1/decisions/{id}/input": "/v1/decisions/1/input",
    "/v1/moves": "/v1/moves",
    "/v1/nodes": "/v1/nodes",
    "/v1/nodes/{name}": "/v1/nodes/n1",
    "/v1/state": "/v1/state?at=5",
    "/v1/readiness": "/v1/readiness",
    "/v1/status": "/v1/status",
    "/v1/reports": "/v1/reports",
    "/v1/reports/{name}": "/v1/reports/terminations?since=2020-01-01T00:00:00Z",
}


# the log has the gang, the cluster has not; and the decision was not made from a stored input
NOT_THERE = (
    *("/v1/gangs/ns/job", "/v1/gangs/ns/job/explain"),
    *("/v1/decisions/pre", "/v1/decisions/1/input"),
)


@pytest.mark.parametrize(
    ("readers", "connections"), [(8, 3), pytest.param(100, 20, marks=pytest.mark.full)]
)
async def test_many_readers_ask_everything_while_events_are_written(written, readers, connections):
    """Each answer is whole and has its position; no reader gets an older state than before, and none is refused.

    They share some connections: a request that waits 5 s for a connection to the database is refused, as it should be.
    """
    gets = {o.path for o in OPERATIONS if o.method == "get"}
    assert set(EVERY_GET) == gets, gets ^ set(EVERY_GET)
    objects = (a_node("n1", gpu=8), *a_gang("g", pods=1))
    counts = Counter()

    async def read(session, server, number):
        known = 0
        paths = [*EVERY_GET.values()] * 2
        for path in paths[number % len(EVERY_GET) :][: len(EVERY_GET)]:
            async with session.get(server.make_url(path)) as reply:
                answer = await reply.json()
                expected = 404 if path in NOT_THERE else 200
                assert reply.status == expected, (path, answer)
                counts[path.partition("?")[0]] += 1
                if path.startswith("/v1/events"):
                    head = int(reply.headers["X-Log-Position"])
                    assert [event["position"] for event in answer] == list(range(4, head + 1))
                    assert head >= known
                    known = head

    async with (
        PostgresEventLog(written) as log,
        served(written, *objects) as server,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            timeout=aiohttp.ClientTimeout(total=None),
        ) as session,
    ):
        grant = await log.take(holder="a", address="", ttl_ms=3_600_000)
        script = Script(grant)

        async def write():
            for n in range(100):
                await log.append(
                    grant,
                    [script.next(GangObserved(kind="PodGroup"), gang=f"ns/r{n}", uid=f"r{n}")],
                )
                await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            for number in range(readers):
                group.create_task(read(session, server, number))
    assert set(counts.values()) == {readers}
    assert await census(written) == 111


def command(url, *words):
    """Run the program on a database."""
    return run_command(*words, GANG_EXTENDER_DATABASE_URL=url, COLUMNS="300")


async def test_a_history_has_what_others_did_and_every_gang_of_the_name(written):
    async with asking(written) as ask:
        _, every = await ask("/v1/gangs/ns/job/history", decisions="true")
        assert [line["position"] for line in every] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        by_big = {4: "PreemptionPlanned", 5: "VictimGone"}
        assert {f["position"]: f["type"] for f in every if f["gang"] == "ns/big"} == by_big
        lost = every[5]
        assert (lost["caused_by"], lost["reason"]) == (
            "ns/big",
            "preempted by a recorded preemption",
        )
        _, first = await ask("/v1/gangs/ns/job/history", uid="life-1")
        assert [line["position"] for line in first] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert tuple(first[0]) == EventLine.__struct_fields__
        _, second = await ask("/v1/gangs/ns/job/history", uid="life-2")
        assert [line["position"] for line in second] == [9, 10]
        status, answer = await ask("/v1/gangs/ns/job/history", uid="life-9")
        assert (status, "life-1, life-2" in answer["detail"]) == (404, True)
        seen, after = [], 0
        while page := (await ask("/v1/gangs/ns/job/history", limit=3, after=after))[1]:
            seen += [line["position"] for line in page]
            after = seen[-1]
        assert seen == list(range(1, 11))
        # not done by a gang of ours: it is kube-scheduler's own
        name = urllib.parse.quote(f"{LONG[:60]}/{LONG}", safe="/")
        status, alone = await ask(f"/v1/gangs/{name}/history", decisions="true")
        assert (status, alone[0]["caused_by"]) == (200, "kube-scheduler")
        _, at_node = await ask("/v1/events", node=LONG)
        assert [f["position"] for f in at_node] == [11]
        _, decided = await ask("/v1/decisions/pre")
        assert "pre" in str(decided)


async def test_any_name_is_explained_as_it_was(written):
    """A group, its pod and its node, before, while and after they were in the log of a real database."""
    engine = ConnectionPool(written, name="project")
    assert await PostgresReadModels(engine).project(Position(11), max_events=100) == 11
    await engine.close()
    cases = {
        ("ns/job", 3): "PodGroup ns/job had its capacity reserved: 1 bound, 0 reserved",
        ("ns/job", 8): "PodGroup ns/job did not exist any more: it was removed at ",
        ("ns/job", 10): "PodGroup ns/job may have fitted or not: '; DROP TABLE gx.event; --",
        (
            "Pod/ns/job-0",
            1,
        ): "Pod ns/job-0 was not in the log yet: it had capacity reserved on n1 from",
        ("Pod/ns/job-0", 4): "Pod ns/job-0 ran on n1 and was to be evicted for PodGroup ns/big",
        ("Pod/ns/job-0", 6): "Pod ns/job-0 was lost on n1 at ",
        ("Pod/ns/job-0", 9): "Pod ns/job-0 was not there any more: it ran on n1 until ",
        ("Node/n1", 3): "Node n1 had 1 bound and 0 reserved members of 1 gang",
        ("Node/n1", 11): "Node n1 had no member, reservation or victim of a gang",
    }
    async with asking(written) as ask:
        for (name, at), text in cases.items():
            status, answer = await ask("/v1/explain", name=name, at=at)
            assert (status, answer["position"], answer["at"]) == (200, at, str(at)), answer
            assert f"position {at}: {text}" in answer["answer"]
        _, gone = await ask("/v1/explain", name="Pod/ns/job-0", at=9)
        assert "as a member of" not in gone["answer"]
        assert gone["answer"].endswith("for gang ns/job (evicted for ns/big)")
        status, answer = await ask("/v1/explain", name="ns/jobb", at=3)
        assert (status, "did you mean PodGroup ns/job" in answer["detail"]) == (404, True)
        status, answer = await ask("/v1/explain", name="ns/job", at=12)
        assert (status, "position 12 is not in the log" in answer["detail"]) == (400, True)


async def test_the_command_reports_that_a_name_was_used_again(written):
    result = command(written, "history", "ns/job")
    assert result.returncode == 0, result.stderr
    assert "ns/job was the name of 2 root groups" in result.stderr
    assert "life-1: 5 events" in result.stderr
    header, *lines = result.stdout.splitlines()
    assert header.split()[:2] == ["POSITION", "TIME"]
    assert len(lines) == 10
    assert "  ns/big  VictimGone  " in lines[4]
    assert "  ns/big  " in lines[5]
    alone = command(written, "history", "ns/job", "--uid", "life-2", "-o", "json")
    assert [f["position"] for f in json.loads(alone.stdout)] == [9, 10]
    assert alone.stderr == ""
    more = command(written, "events", "--limit", "2", "-o", "json")
    assert "--after 2 goes on" in more.stderr
    long_one = command(written, "events", "--node", LONG, "-o", "json")
    assert [f["position"] for f in json.loads(long_one.stdout)] == [11]
    for words, wrong in (
        (("--node", "a/b"), "--node"),
        (("--type", "Nothing"), "'Nothing'"),
        (("--gang", "a/b/c/d"), "'a/b/c/d'"),
        (("--follow", "--until", "10m"), "--until"),
        (("--node", "x" * 254), "253"),
    ):
        refused = command(written, "events", *words)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert wrong in refused.stderr


async def census(url):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT count(*) FROM gx.event")
    finally:
        await connection.close()


async def test_no_parameter_of_any_route_reaches_the_database_as_sql(written):
    """Every text in every parameter: an answer or a refusal in words, never a 5xx, and the log is what it was."""
    async with asking(written) as ask:
        _, everything = await ask("/v1/events")
        for operation in OPERATIONS:
            if operation.method != "get":
                continue
            for attempt in INJECTIONS:
                given = urllib.parse.quote(attempt, safe="")
                path = operation.path
                for parameter in operation.parameters:
                    if parameter.where == "path":
                        path = path.replace(f"{{{parameter.name}}}", given)
                status, _ = await ask(path)
                assert status in (200, 400, 404), (path, status)
                plain = path.replace(given, "ns") if "{" in operation.path else path
                for parameter in operation.parameters:
                    if parameter.where == "query" and parameter.name != "follow":
                        status, answer = await ask(plain, **{parameter.name: attempt})
                        assert status in (200, 400, 404), (plain, parameter.name, status, answer)
                        if status == 200 and operation.path == "/v1/events":
                            assert answer == [], (parameter.name, attempt)
        _, after = await ask("/v1/events")
        assert after == everything
    assert await census(written) == 11


async def test_no_word_of_any_command_reaches_the_database_as_sql(written):
    for attempt in INJECTIONS[:1]:
        for words in (
            ("history", attempt),
            ("history", "ns/job", "--uid", attempt),
            ("events", "--gang", attempt),
            ("events", "-n", attempt),
            ("events", "--node", attempt),
            ("events", "--type", attempt),
            ("preemptions", "--victim", attempt),
        ):
            result = command(written, *words)
            assert result.returncode in (0, 1, 2), result  # 1: the log knows no such thing
            assert "Traceback" not in result.stderr
    assert await census(written) == 11


EVERYWHERE = {"since": "2020-01-01T00:00:00Z"}
TWINS = "of this name it has team-b/twin, team-c/twin: give the namespace"


@pytest.fixture
async def several_namespaces(database_url):
    """`job`, and the group `rack` of its victim, are in one namespace other than `default`; `twin` is in two; `here` also in default."""
    async with PostgresEventLog(database_url) as log:
        grant = await log.take(holder="a", address="", ttl_ms=3_600_000)
        script = Script(grant)
        events = list(events_of(script))
        for number, gang in enumerate(
            ("team-b/twin", "team-c/twin", "default/here", "team-b/here")
        ):
            refused = GangUnschedulable(outcome="impossible", reasons=("no place",))
            for data in (GangObserved(kind="PodGroup"), refused):
                events.append(script.next(data, gang=gang, uid=f"several-{number}"))
        await log.append(grant, events)
    engine = ConnectionPool(database_url, name="project")
    projection = PostgresReadModels(engine)
    assert await projection.project(Position(len(events)), max_events=100) == len(events)
    await engine.close()
    return database_url


# Words of a command, and what it prints where the name is one; `{name}` is filled in, `{server}` empty or an option.
READERS = {
    "history": ("history", "{name}"),
    "events": ("events", "--gang", "{name}"),
    "report": ("report", "decisions", "--gang", "{name}", "--since", "2020-01-01T00:00:00Z"),
    "preemptor": ("preemptions", "--preemptor", "{name}"),
    "victim": ("preemptions", "--victim", "{name}"),
}
ONE = {"preemptor": ("big", "ns/big"), "victim": ("job-0", "ns/job-0")}


@pytest.mark.parametrize(
    ("reader", "door"),
    [
        *((reader, "database") for reader in READERS),
        *daily(2, [(reader, "service") for reader in sorted(READERS)]),
    ],
)
async def test_a_name_in_one_other_namespace_is_answered(several_namespaces, reader, door):
    """By every command as by `explain`: the same answer as with the namespace; a name in `default` is that one."""
    name, path = ONE.get(reader, ("job", "ns/job"))
    async with served(several_namespaces) as server:
        option = ("--server", str(server.make_url(""))) if door == "service" else ()

        async def run(name):
            words = [word.format(name=name) for word in READERS[reader]]
            return await asyncio.to_thread(
                command, several_namespaces, *words, "-o", "json", *option
            )

        alone, whole = await run(name), await run(path)
        assert (alone.returncode, alone.stderr) == (whole.returncode, whole.stderr)
        assert without_times(alone.stdout) == without_times(whole.stdout)
        assert without_times(alone.stdout) not in ([], "")
        kind = await run(f"{'Pod' if reader == 'victim' else 'PodGroup'}/{name}")
        assert without_times(kind.stdout) == without_times(whole.stdout)
        if reader != "victim":
            twin = await run("twin")
            assert (twin.returncode, twin.stdout) == (1, "")
            assert TWINS in twin.stderr
            assert without_times((await run("here")).stdout) == without_times(
                (await run("default/here")).stdout
            )
        absent = await run("absent")
        assert (absent.returncode, absent.stdout) == (1, "")
        assert "/absent: the log has no " in absent.stderr
        assert "lists" in absent.stderr


# a command, and what it prints to stderr because the log does not have what it names
UNKNOWN = {
    ("history", "ns/jobs"): "gang ns/jobs: the log has no such root group; names are NAMESPACE/NAME of the root, "
    "`gang-extender events` lists them; did you mean job?",
    ("events", "--gang", "ns/jobs"): "lists them; did you mean job?",
    ("events", "--gang", "jobs", "-n", "ns"): "gang ns/jobs: the log has no such root group",
    ("events", "--gang", "team-a/twin"): TWINS,
    ("events", "--node", "n9"): "node n9: the log has no event that names it; `gang-extender explain Node/n9` has",
    ("events", "-n", "nowhere"): "namespace nowhere: the log has no gang in it",
    ("report", "decisions", "--gang", "ns/jobs"): "did you mean job?",
    ("report", "terminations", "-n", "nowhere"): "namespace nowhere: the log has no gang in it",
    ("preemptions", "--preemptor", "ns/jobs"): "gang ns/jobs: the log has no such root group",
    ("preemptions", "--victim", "ns/jobs"): "victim ns/jobs: the log has no preemption of a pod or group of this name, no such "
    "gang, and no such member that was placed; `gang-extender preemptions` lists all",
    ("preemptions", "-n", "nowhere"): "namespace nowhere: the log has no gang in it",
    ("state", "-n", "nowhere"): "namespace nowhere: the log has no gang in it",
}  # fmt: skip
# what the log has, without a line that matches
NO_LINE = {
    ("history", "ns/big", "--after", "1000"): "No event about ns/big matches.",
    ("events", "--gang", "ns/job", "--type", "CapacityHeld"): "No events match.",
    ("events", "--gang", "ns/job", "-n", "team-b"): "No events match.",
    ("events", "--node", "n1", "--after", "1000"): "No events match.",
    ("events", "-n", "ns", "--type", "CapacityHeld"): "No events match.",
    ("report", "terminations", "--gang", "ns/big"): "No rows in this span.",
    ("report", "decisions", "-n", "team-b"): "No rows in this span.",
    ("preemptions", "--preemptor", "ns/job"): "No preemptions match.",
    ("preemptions", "--preemptor", "ns/big", "--state", "cancelled"): "No preemptions match.",
    ("preemptions", "--victim", "ns/big"): "No preemptions match.",
    ("preemptions", "--victim", "big"): "No preemptions match.",
    ("preemptions", "--victim", "ns/job-0", "--state", "cancelled"): "No preemptions match.",
    ("preemptions", "--victim", "ns/job-0", "--since", "2100-01-01T00:00:00Z"): "No preemptions match.",
    ("preemptions", "-n", "team-b"): "No preemptions match.",
}  # fmt: skip


@pytest.mark.parametrize("door", ["database", "service"])
async def test_an_unknown_name_is_an_error_and_a_known_one_without_a_line_is_not(
    several_namespaces, door
):
    """At every reader of the log, from the database and over /v1."""
    async with served(several_namespaces) as server:
        option = ("--server", str(server.make_url(""))) if door == "service" else ()

        async def run(words):
            return await asyncio.to_thread(command, several_namespaces, *words, *option)

        for words, text in UNKNOWN.items():
            unknown = await run(words)
            assert (unknown.returncode, unknown.stdout) == (1, ""), (words, unknown)
            assert text in " ".join(unknown.stderr.split()), (words, unknown.stderr)
        for words, text in NO_LINE.items():
            known = await run(words)
            assert known.returncode == 0, (words, known)
            assert text in known.stdout + known.stderr, (words, known)


def without_times(text):
    """Return a decoded answer without the span of a report, which ends now."""
    found = json.loads(text) if text else ""
    return (
        {name: found[name] for name in found if name != "until"}
        if isinstance(found, dict)
        else found
    )


async def test_a_history_names_the_other_namespaces_also_with_a_namespace(several_namespaces):
    """A given namespace is not left, in a command and over /v1."""
    given = command(several_namespaces, "history", "team-a/twin")
    assert (given.returncode, given.stdout) == (1, "")
    assert TWINS in given.stderr
    first = command(several_namespaces, "history", "here", "-n", "team-b", "-o", "json")
    assert {line["gang"] for line in json.loads(first.stdout)} == {"team-b/here"}
    for words in (("--gang", "ns/absent"), ("--gang", "team-a/twin")):
        report = command(several_namespaces, "report", "pending", *words)
        assert (report.returncode, report.stdout) == (1, ""), report
    async with asking(several_namespaces) as ask:
        for path, query in (
            ("/v1/gangs/team-a/twin/history", {}),
            ("/v1/events", {"gang": "twin"}),
            ("/v1/preemptions", {"preemptor": "twin"}),
            ("/v1/reports/pending", {"gang": "twin"}),
            ("/v1/reports/pending", {"gang": "team-a/twin"}),
        ):
            status, answer = await ask(path, **query)
            assert (status, TWINS in answer["detail"]) == (404, True), (path, answer)
        _, alone = await ask("/v1/events", gang="here", namespace="team-b")
        assert {event["gang"] for event in alone} == {"team-b/here"}
        _, rows = await ask("/v1/reports/pending", gang="job", **EVERYWHERE)
        assert {row["gang"] for row in rows["rows"]} == {"ns/job"}
