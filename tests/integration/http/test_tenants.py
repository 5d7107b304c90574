"""Each answer of /v1 for a caller with rights in one namespace has no name of another: every route, by its bytes.

The names of the other tenant have a marker. The same requests of a caller who sees everything find it, so the walk can
fail; a new route fails it until it is in `WALK`.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.core.log.events import GangUnschedulable, PreemptionPlanned
from extender.core.model.ids import Position
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import problems
from extender.http.responses.request_visibility import BODY, VISIBILITY
from extender.http.v1.event_api import EventApi
from extender.http.v1.explain_api import ExplainApi
from extender.http.v1.gang_api import GangApi, TreeApi
from extender.http.v1.history_api import HistoryApi, ReportApi
from extender.http.v1.plan_api import PlanApi
from extender.http.v1.state_api import LiveNodeApi, NodesApi, StateApi
from extender.http.web.access_middleware import RIGHTS, RouteRight
from extender.http.web.health import Probes
from extender.http.web.server import OPERATIONS, OpenApiRoute
from extender.queries.explain.explain_service import ExplainService
from extender.queries.log.event_stream import EventStream
from extender.queries.log.reports import REPORTS
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.node_inventory import NodeInventory
from extender.store.connections import ConnectionPool
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots
from tests.support.service.fake_workloads import labels_of
from tests.support.service.fakes import status_api
from tests.support.service.live_plans import answered_here, live_plans
from tests.support.service.manifest_builders import GPU, a_group, a_pod
from tests.support.service.node_state import past_explain, past_node
from tests.support.service.tenant_story import NODES, two_tenants_stage
from tests.support.service.two_tenants import FOREIGN, OWN

pytestmark = pytest.mark.postgres
NOWHERE = "zznowhere"  # a namespace that does not exist; as long as `FOREIGN` is not needed
CALLER = "Test-Caller"  # header: which visibility the request has
CALLERS = {"own": Visibility.of([OWN]), "all": Visibility.all(), "none": Visibility.of([])}
SPAN = "since=2020-01-01T00:00:00Z"
# For each GET: requests without a name of the foreign tenant. `{end}` is the last position.
WALK = {
    "/v1/gangs": ["", "?namespace={own}", "?state=scheduled&state=preempting&state=unschedulable&state=degraded"],
    "/v1/trees": ["", "?namespace={own}"],
    "/v1/gangs/{namespace}/{name}": ["/v1/gangs/{own}/{own}-{gang}"],
    "/v1/gangs/{namespace}/{name}/history": [
        "/v1/gangs/{own}/{own}-{gang}/history",
        "/v1/gangs/{own}/{own}-{gang}/history?decisions",
        "/v1/gangs/{own}/{own}-{gang}/history?limit=1&after=2",
        "/v1/gangs/{own}/{own}-{gang}/history?uid=nothing",
    ],
    "/v1/gangs/{namespace}/{name}/explain": ["/v1/gangs/{own}/{own}-{gang}/explain"],
    "/v1/gangs/{namespace}/{name}/tree": ["/v1/gangs/{own}/{own}-{gang}/tree"],
    "/v1/explain": [
        "?name={own}/{own}-{gang}",
        "?name={own}/{own}-{gang}&at={middle}",
        "?name={own}/{own}-{gang}&at={end}",
        "?name=Pod/{own}/{own}-{gang}-0",
        "?name=Pod/{own}/{own}-{gang}-0&at={middle}",
        "?name=Pod/{own}/{own}-{gang}-0&at={end}",
        "?name=Pod/{own}/{own}-lone",
        "?name=Node/{node}",
        "?name=Node/{node}&at={middle}",
        "?name=Node/{node}&at={end}",
        "?name=nothing-like-it",
        "?name=nothing-like-it&at={middle}",
    ],
    "/v1/search": ["?q=-low", "?q=pod&limit=200", "?q=zz&limit=200", "?q=/"],
    "/v1/events": [
        "",
        "?limit=1000",
        "?limit=1000&order=newest",
        "?limit=3",
        "?limit=1&after={middle}",
        "?node={node}&limit=1000",
        "?namespace={own}&limit=1000",
        "?gang={own}/{own}-{gang}",
        "?type=PreemptionPlanned&type=VictimGone",
        "?type=TreeCompiled&type=TreeRefused&type=TreeRetired",
        f"?{SPAN}&limit=1000",
    ],
    "/v1/preemptions": [
        "",
        "?order=newest",
        "?limit=1",
        "?namespace={own}",
        "?victim={own}/{own}-low",
        "?preemptor={own}/{own}-hi",
        "?state=pending&state=completed&state=cancelled",
    ],
    "/v1/decisions/{id}": ["/v1/decisions/{position}"],
    "/v1/decisions/{id}/input": ["/v1/decisions/{position}/input"],
    "/v1/nodes": [""],
    "/v1/nodes/{name}": ["/v1/nodes/{node}", "/v1/nodes/{node}?at={middle}", "/v1/nodes/nothing"],
    "/v1/state": [
        "",
        "?at={middle}",
        "?node={node}",
        "?namespace={own}",
        "?domain=topology.example.com/rack=r{node}",
        "?state=scheduled&state=preempting&state=unschedulable",
        "?diff={middle}",
        "?diff={middle}&node={node}",
    ],
    "/v1/moves": [""],
    "/v1/readiness": [""],
    "/v1/status": [""],
    "/v1/reports": [""],
    "/v1/reports/{name}": [f"/v1/reports/{{report}}?{SPAN}", f"/v1/reports/{{report}}?{SPAN}&limit=2"],
}  # fmt: skip
# Only for callers who see all namespaces.
FOR_ALL = {"/v1/decisions/{id}/input", "/v1/moves"}
# those of moves for callers who see all namespaces
POSTS = {"/v1/plan", "/v1/moves", "/v1/moves/apply", "/v1/moves/control"}
# of the leader for its followers: the same handlers with the same right
REPLICA_POSTS = {"/scheduler/moves/apply", "/scheduler/moves/control"}
# The answers of these name no tenant, for any caller.
NAMELESS = {"/v1/nodes", "/v1/readiness", "/v1/reports"}
# a gang of the own tenant that fits only when everything else is evicted
PLANNED = [
    a_group("planned", gang=6, namespace=OWN, priority=100_000),
    *(
        a_pod(f"planned-{n}", "planned", namespace=OWN, priority=100_000, requests={GPU: 1})
        for n in range(6)
    ),
]
PLANS = (
    {},
    {"all_pending": True},
    {"groups": [f"PodGroup/{OWN}/{OWN}-wait"]},
    {"groups": [f"PodGroup/{OWN}/{OWN}-hi"], "without": ["n0"]},
    {"groups": [f"PodGroup/{OWN}/{OWN}-nothing"]},
    {"workload": PLANNED},
)


@web.middleware
async def as_caller(request, handler):
    """Set what authorization sets, and read the body as the limits of the server do."""
    request[VISIBILITY] = CALLERS[request.headers[CALLER]]
    request[BODY] = await request.read()
    return await handler(request)


@pytest.fixture
async def served(database_url):
    """Serve all of /v1 on the log of the story in a real database; yield stage and client."""
    stage = await two_tenants_stage()
    async with stage, serving(stage, database_url) as client:
        yield stage, client


@asynccontextmanager
async def serving(stage, url):
    async with PostgresEventLog(url) as log:
        grant = await log.take(holder=f"{FOREIGN}-replica", address="", ttl_ms=3_600_000)
        await log.append(grant, stage.events())
    engine = ConnectionPool(url, name="project")
    end = len(stage.events())
    await PostgresReadModels(engine).project(Position(end), max_events=10_000)
    await engine.close()
    reading = reading_pool(url)
    async with PostgresEventLog(url) as log:
        reader = PostgresEventQueries(reading)
        feed = EventStream(log, reader)
        as_of = HistoricalState(log, PostgresSnapshots(reading), reader)
        plans = live_plans(stage)
        app = web.Application(middlewares=[problems, as_caller])
        gangs = GangApi(reader, stage.inputs, stage.leader, labels_of(stage))
        for part in (
            HistoryApi(reader, stage.inputs),
            gangs,
            status_api(stage, log, gangs),
            TreeApi(stage.leader, labels_of(stage)),
            EventApi(reader, feed),
            StateApi(as_of),
            NodesApi(stage.cluster, past_node(as_of)),
            ReportApi(PostgresReportQueries(reading), reader, stage.clock),
            PlanApi(
                plans.plan, plans.plan, plans.plan, stage.parts.mover, stage.leader, answered_here
            ),
            ExplainApi(
                ExplainService(stage.cluster, stage.leader, stage.clock, plans.plan_live),
                past_explain(as_of, reader),
            ),
            LiveNodeApi(NodeInventory(stage.cluster), stage.leader),
            OpenApiRoute(),
        ):
            app.add_routes(part.routes())
        app.add_routes(Probes(stage.extender_service, stage.leader).api_routes())
        routed = {route.resource.canonical for route in app.router.routes()}
        routed -= {"/v1/openapi.json", "/metrics"}
        assert routed == {operation.path for operation in OPERATIONS}
        async with TestClient(TestServer(app)) as client:
            yield client
            feed.stop()
    await reading.close()


def walk(stage):
    """Yield route and path of each request: every template with every gang, node, position and report."""
    end = len(stage.events())
    decisions = [
        e.position
        for e in stage.events()
        if isinstance(e.data, GangUnschedulable | PreemptionPlanned)
    ]
    for route, templates in WALK.items():
        for template in templates:
            text = template if template.startswith("/") else route + template
            for gang in ("low", "hi", "wait", "orphan") if "{gang}" in text else ("",):
                for node in NODES if "{node}" in text else ("",):
                    for position in decisions if "{position}" in text else ("",):
                        for report in REPORTS if "{report}" in text else ("",):
                            for middle in (end // 3, 2 * end // 3) if "{middle}" in text else ("",):
                                yield (
                                    route,
                                    text.format(
                                        own=OWN, gang=gang, node=node, position=position, report=report,
                                        middle=middle, end=end,
                                    ),
                                )  # fmt: skip


async def answered(client, caller, path, body=None):
    """Return the status, and the bytes of headers and body of an answer."""
    method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
    headers = {CALLER: caller, "Content-Type": "application/json"}
    async with client.request(method, path, data=data, headers=headers) as reply:
        return reply.status, f"{dict(reply.headers)}\n{await reply.text()}"


async def test_every_route_is_walked():
    """A new route of /v1 fails this test until the walk has it."""
    assert {o.path for o in OPERATIONS if o.method == "get"} == set(WALK)
    assert {o.path for o in OPERATIONS if o.method != "get"} == POSTS
    # the application refuses a route that is not in this table
    without_data = (RouteRight.OPEN, RouteRight.CERTIFICATE, RouteRight.METRICS)
    walked = {*WALK, *POSTS, *REPLICA_POSTS, "/v1/openapi.json"}
    assert {path for path, right in RIGHTS.items() if right not in without_data} == walked


async def test_no_answer_has_a_name_of_another_tenant(served):
    """Every route with every combination of its parameters; a caller who sees everything finds the names."""
    stage, client = served
    found, statuses, leaks = set(), {}, []
    for route, path in walk(stage):
        status, text = await answered(client, "own", path)
        assert status < 500, (path, text)
        if FOREIGN in text:
            where = text.index(FOREIGN)
            leaks.append((path, text[max(0, where - 200) : where + 100]))
        statuses.setdefault(route, set()).add(status)
        _, whole = await answered(client, "all", path)
        if FOREIGN in whole:
            found.add(route)
    assert not leaks, leaks[:5]
    assert found >= set(WALK) - NAMELESS - {
        "/v1/gangs/{namespace}/{name}/tree",  # a tree is in one namespace
        "/v1/moves",  # none are under way
    }
    assert {route for route, seen in statuses.items() if seen == {403}} == FOR_ALL
    assert all(200 in seen for route, seen in statuses.items() if route not in FOR_ALL), statuses


async def test_no_plan_has_a_name_of_another_tenant(served):
    """Plans on the live cluster evict pods of the other tenant: the answer has their kind, priority and number."""
    _, client = served
    found = 0
    for body in PLANS:
        status, text = await answered(client, "own", "/v1/plan", body)
        assert status < 500, text
        assert FOREIGN not in text, (body, text)
        _, whole = await answered(client, "all", "/v1/plan", body)
        found += FOREIGN in whole
    assert found >= 3


async def test_a_stream_has_no_name_of_another_tenant(served):
    """Server-sent events from the begin of the log, and those that arrive while the stream is open."""
    stage, client = served
    for caller, seen in (("own", False), ("all", True)):
        text = ""
        async with client.get("/v1/events?follow&after=0", headers={CALLER: caller}) as reply:
            while f"id: {len(stage.events())}\n" not in text:
                text += (await reply.content.readany()).decode()
        assert (FOREIGN in text) == seen
        assert OWN in text


GUESSES = (
    "/v1/gangs/{it}/{it}-low",
    "/v1/gangs/{it}/{it}-low/history",
    "/v1/gangs/{it}/{it}-low/explain",
    "/v1/gangs/{it}/{it}-low/tree",
    "/v1/gangs?namespace={it}",
    "/v1/trees?namespace={it}",
    "/v1/events?namespace={it}",
    "/v1/events?gang={it}/{it}-hi",
    "/v1/preemptions?preemptor={it}/{it}-hi",
    "/v1/preemptions?victim={it}/{it}-low",
    "/v1/preemptions?namespace={it}",
    "/v1/explain?name={it}/{it}-low",
    "/v1/explain?name=Pod/{it}/{it}-lone",
    "/v1/explain?name={it}/{it}-low&at=20",
    "/v1/explain?name=Pod/{it}/{it}-low-0&at=20",
    "/v1/search?q={it}",
    "/v1/state?namespace={it}",
    "/v1/reports/pending?namespace={it}&since=2020-01-01T00:00:00Z",
    "/v1/reports/preemption-pairs?namespace={it}&since=2020-01-01T00:00:00Z",
    "/v1/reports/preemption-pairs?gang={it}/{it}-hi&since=2020-01-01T00:00:00Z",
    "/v1/reports/terminations?gang={it}/{it}-low&since=2020-01-01T00:00:00Z",
)


async def test_a_guessed_name_is_answered_as_one_that_does_not_exist(served):
    """Status, headers and body for a name of the other tenant differ from those for no object in the name alone."""
    _, client = served
    for guess in GUESSES:
        there = await answered(client, "own", guess.format(it=FOREIGN))
        nowhere = await answered(client, "own", guess.format(it=NOWHERE))
        assert _same(there, FOREIGN) == _same(nowhere, NOWHERE), guess
    for question in (
        lambda it: {"groups": [f"PodGroup/{it}/{it}-low"]},
        lambda it: {"groups": [f"PodGroup/{it}/{it}-nothing"]},
    ):
        there = await answered(client, "own", "/v1/plan", question(FOREIGN))
        nowhere = await answered(client, "own", "/v1/plan", question(NOWHERE))
        assert _same(there, FOREIGN) == _same(nowhere, NOWHERE)


def _same(found, name):
    status, text = found
    lines = [
        part
        for part in text.split("', '")
        if not part.startswith(("ETag", "Content-Length", "Date"))
    ]
    return status, "\n".join(lines).replace(name, "it")


async def test_a_caller_without_any_namespace_sees_no_name(served):
    """Rights in no namespace: neither tenant is named, and nodes are still there."""
    stage, client = served
    for _, path in walk(stage):
        if OWN not in path:
            _, text = await answered(client, "none", path)
            assert FOREIGN not in text, path
            assert OWN not in text, path


async def test_what_explains_the_own_fate_is_there(served):
    """A victim gets kind, priority, size and position of its preemptor; a node the members of others by priority."""
    stage, client = served
    _, text = await answered(client, "own", "/v1/preemptions?victim=zzown/zzown-low")
    position = next(
        e.position
        for e in stage.events()
        if isinstance(e.data, PreemptionPlanned) and e.gang.startswith(FOREIGN)
    )
    assert f"a PodGroup of priority 1000 with 2 pods (log position {position})" in text
    _, text = await answered(client, "own", "/v1/state")
    state = json.loads(text.partition("\n")[2])
    others = [other for node in state["nodes"] for other in node["others"]]
    assert others
    assert {gang["gang"].partition("/")[0] for gang in state["gangs"]} == {OWN}
