"""Requests to /v1 and /metrics are answered only with the right of their route (review, C2 d)."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.cluster.manifests.served.manifest_cluster import ManifestCluster
from extender.composition import Service, Store
from extender.core.model.visibility import Visibility
from extender.http.access.review_cache import NAMESPACES_MAX, ReviewCache
from extender.http.responses.json_responses import problems
from extender.http.responses.request_visibility import visibility_of
from extender.http.web import access_middleware
from extender.http.web.access_middleware import RIGHTS, AccessControl, RouteRight, refusal
from extender.http.web.server import OPERATIONS
from extender.ports.access_ports import AccessRight, Caller
from extender.queries.plan.moves_query import MovesInput, PlannedMoves, planned_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from extender.queries.plan.plan_service import PlanResult
from extender.store.projections import PostgresReadModels
from extender.store.queries.event_queries import PostgresEventQueries
from tests.integration.http.test_scheduler_verbs import Served
from tests.support.service.fake_access import FakeAccessReviews
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

TEAM = AccessRight("list", "default")
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "job", "controller": True}
READ = (TEAM, AccessRight("get", "default"))


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def reviews():
    return FakeAccessReviews()


@pytest.fixture
async def served(reviews):
    """The application with authentication, and a handler in place of each that needs a database."""
    gang = a_gang("g", pods=2)
    async with Served(a_node("n0", gpu=4), *gang, reviews=reviews) as made:
        yield await made.ready()


async def test_every_route_has_a_right():
    """A route of the application that is not in the table is refused; here it is named."""
    async with Stage() as stage:
        parts = dict.fromkeys(Store.__struct_fields__)  # no request comes, so nothing is read
        opened = Store(
            **parts | {"audit": PostgresEventQueries(None), "read_models": PostgresReadModels(None)}
        )
        service = Service(
            stage.settings,
            opened,
            ManifestCluster([], Path("/nowhere"), clock=stage.clock),
            stage.leader,
            stage.clock,
        )
        routes = {route.resource.canonical for app in service.apps for route in app.router.routes()}
    assert routes == set(RIGHTS)
    paths = {one.path for one in OPERATIONS} | {"/v1/openapi.json"}
    assert paths == {path for path in RIGHTS if path.startswith("/v1/")}
    free = {path for path, need in RIGHTS.items() if need in access_middleware.FREE}
    assert not any(path.startswith(("/v1", "/metrics")) for path in free)


async def test_without_a_token_there_is_no_data(served):
    """401 with the challenge of RFC 6750, for every route that shows data; the probes and the page are open."""
    for path, need in RIGHTS.items():
        url = path.replace("{", "").replace("}", "")
        posted = (RouteRight.PLAN, RouteRight.MOVE, RouteRight.CERTIFICATE)
        method = "POST" if need in posted else "GET"
        if need in access_middleware.FREE or not _is_served(served, path):
            continue
        for headers in ({}, {"Authorization": "Basic YTpi"}, bearer(""), bearer("invented")):
            async with served.client.request(method, url, headers=headers) as reply:
                body = await reply.json()
                assert reply.status == 401, (path, headers)
                challenge = 'Bearer realm="gang-extender"'
                error = ', error="invalid_token"' if headers else ""
                assert reply.headers["WWW-Authenticate"] == challenge + error
                assert "gang-extender" in body["detail"]
    for url in ("/livez", "/readyz", "/ui/", "/ui/app.js", "/"):
        async with served.client.get(url) as reply:
            assert reply.status == 200, url
    async with served.client.get("/v1/nothing") as reply:
        assert reply.status == 404


def _is_served(served, path):
    return any(route.resource.canonical == path for route in served.client.app.router.routes())


async def test_a_caller_needs_the_right_of_the_route(served, reviews):
    """403 names user, verb, resource and namespace, and the command that gives the right."""
    ann = reviews.add_user("ann", *READ)
    bob = reviews.add_user("bob")
    paths = ("/v1/gangs/default/g", "/v1/gangs?namespace=default", "/v1/gangs", "/v1/nodes")
    for path in paths:
        async with served.client.get(path, headers=bearer(ann)) as reply:
            assert reply.status == 200, path
    wanted = {
        "/v1/gangs/default/g": "get podgroups.gang-extender.dev in namespace default",
        "/v1/gangs?namespace=default": "list podgroups.gang-extender.dev in namespace default",
        "/v1/gangs": "list podgroups.gang-extender.dev in all namespaces",
        "/metrics": "get the path /metrics",
    }
    for path, right in wanted.items():
        async with served.client.get(path, headers=bearer(bob)) as reply:
            detail = (await reply.json())["detail"]
            assert reply.status == 403, path
            assert f"user 'bob' may not {right}" in detail
            kind = "clusterrolebinding" if path == "/metrics" else "rolebinding"
            assert f"kubectl create {kind} gang-extender-" in detail
            assert "--user=bob" in detail
    async with served.client.get("/v1/gangs/team-b/g", headers=bearer(ann)) as reply:
        assert reply.status == 403
        assert "--namespace=team-b" in (await reply.json())["detail"]


async def test_who_sees_all_and_who_may_read_metrics(served, reviews):
    """`list` without a namespace for all; a Prometheus needs the path alone."""
    auditor = reviews.add_user("auditor", AccessRight("list"), AccessRight("get"))
    prometheus = reviews.add_user("prometheus", AccessRight("get", path="/metrics"))
    for path in ("/v1/gangs", "/v1/gangs/default/g", "/v1/openapi.json"):
        async with served.client.get(path, headers=bearer(auditor)) as reply:
            assert reply.status == 200
    async with served.client.get("/metrics", headers=bearer(prometheus)) as reply:
        assert reply.status == 200
        assert 'gang_extender_http_access_total{outcome="allowed"}' in await reply.text()
    async with served.client.get("/metrics", headers=bearer(auditor)) as reply:
        assert reply.status == 403
    async with served.client.get("/v1/gangs", headers=bearer(prometheus)) as reply:
        assert reply.status == 403


async def test_a_plan_in_a_namespace_needs_the_right_to_create_there(reviews):
    """In all namespaces, or in those of the plan; another one in the body is refused by the worker that plans."""
    asked = []

    async def plan(body, readers):
        asked.append(readers)
        return PlanResult(b"{}")

    both = (AccessRight("create", "new"), AccessRight("list", "new"))
    tokens = {
        "operator": reviews.add_user("operator", AccessRight("create"), AccessRight("list")),
        "here": reviews.add_user("here", TEAM, AccessRight("create", "default")),
        "new": reviews.add_user("new", *both),
        "viewer": reviews.add_user("viewer", *READ),
    }
    wanted = {"metadata": {"namespace": "new", "name": "g"}, "kind": "PodGroup"}
    statuses = {}
    async with Served(
        a_node("n0", gpu=4), *a_gang("g", pods=2), reviews=reviews, plan=plan
    ) as served:
        for user, token in tokens.items():
            async with served.client.post(
                "/v1/plan", json={"workload": [wanted]}, headers=bearer(token)
            ) as reply:
                statuses[user] = reply.status
                detail = await reply.text()
    assert statuses == {"operator": 200, "here": 200, "new": 200, "viewer": 403}
    assert "gang-extender-operator" in detail
    assert asked == [Visibility.all(), Visibility.of({"default"}), Visibility.of({"new"})]


async def test_moves_take_the_right_to_list_in_all_namespaces(reviews):
    """Their answer names pods of all; who reads some namespaces gets 403."""

    async def plan(body, readers):
        return PlanResult(body)

    tokens = {
        "auditor": reviews.add_user("auditor", AccessRight("list")),
        "team": reviews.add_user("team", TEAM, AccessRight("create", "default")),
    }
    statuses = {}
    async with Served(a_node("n0", gpu=4), reviews=reviews, plan=plan) as served:
        for user, token in tokens.items():
            async with served.client.post(
                "/v1/moves", json={"drain": ["n0"]}, headers=bearer(token)
            ) as reply:
                statuses[user] = reply.status
    assert statuses == {"auditor": 200, "team": 403}


async def test_who_may_move_pods(reviews):
    """A right of its own beside `list` in all namespaces; the plan has the name of the user."""
    gang = [
        a_group("g", gang=1),
        *(
            a_pod(f"g-{n}", "g", metadata={"ownerReferences": [JOB]}, requests={GPU: 4})
            for n in range(2)
        ),
    ]

    async def plan(_body, _readers):
        state = served.stage.leader.committed
        question = MovesInput(
            plan=PlanInput(groups=frozenset(), pods=frozenset(), state=state),
            asked=MovesQuestion(drain=("n0",)),
            members_only=True,
        )
        answer, request = planned_moves(served.stage.cluster.view(), question)
        encoded = msgspec.json.encode(request, order="deterministic")
        return PlanResult(msgspec.json.encode(PlannedMoves(answer=answer, request=encoded)))

    both = (AccessRight("list"), AccessRight("post", path="/v1/moves/apply"))
    auditor = reviews.add_user("auditor", AccessRight("list"))
    path_only = reviews.add_user("path", both[1])
    ann = reviews.add_user("ann", *both)
    async with Served(*(a_node(f"n{n}", gpu=4) for n in range(2)), *gang, reviews=reviews, plan=plan) as served:  # fmt: skip
        await served.ready()
        for name, node in served.stage.where("g").items():
            served.stage.cluster.change_pod(name, node=node, phase="Running")
        await served.stage.settled()
        served.stage.cluster.add(a_node("n2", gpu=4))

        async def ask(path, body, token):
            async with served.client.post(path, json=body, headers=bearer(token)) as reply:
                return reply.status, await reply.json()

        for token in (auditor, path_only):
            for path, body in (
                ("/v1/moves/apply", {"drain": ["n0"]}),
                ("/v1/moves/control", {"action": "stop"}),
            ):
                status, problem = await ask(path, body, token)
                assert status == 403
                role = "mover" if token == auditor else "auditor"
                assert f"--clusterrole=gang-extender-{role}" in problem["detail"]
        assert (await ask("/v1/moves/control", {"action": "stop"}, ann))[0] == 404
        status, answer = await ask("/v1/moves/apply", {"drain": ["n0"]}, ann)
        assert (status, bool(answer["plan"]), len(answer["moves"])) == (200, True, 1)
        status, problem = await ask("/v1/moves/apply", {"drain": ["n0"]}, ann)
        assert (status, "gang-extender moves stop" in problem["detail"]) == (400, True)
        status, shown = await ask("/v1/moves/control", {"action": "pause"}, ann)
        assert (status, shown["by"], shown["paused"]) == (200, "ann", True)
        async with served.client.get("/v1/moves", headers=bearer(auditor)) as reply:
            assert (await reply.json()) == shown
        status, problem = await ask("/v1/moves/control", {"action": "end"}, ann)
        assert (status, "pause" in problem["detail"]) == (400, True)
        status, shown = await ask("/v1/moves/control", {"action": "stop"}, ann)
        assert (status, shown["plan"]) == (200, "")


async def test_an_api_server_that_does_not_answer(served, reviews):
    """503 with the reason and Retry-After; no answer from memory that is too old is given."""
    token = reviews.add_user("ann", *READ)
    reviews.down = "connection refused"
    async with served.client.get("/v1/gangs", headers=bearer(token)) as reply:
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "1"
        assert "connection refused" in (await reply.json())["detail"]
    async with served.client.get("/readyz") as reply:
        assert reply.status == 200


async def test_a_body_of_a_stranger_is_not_read(served):
    """The answer comes before a body that never arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
    writer.write(b"GET /v1/gangs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 401 ")


class Plain:
    """The middleware around one handler for all paths, which returns what the caller sees."""

    def __init__(self, reviews, *, namespaces=("default", "team-b"), recheck_s=0.01):
        class Quiet:
            def begin(self, transport, *, reads=True):
                pass

            end = begin

        cache = ReviewCache(reviews, time.monotonic)
        control = AccessControl(cache, lambda: namespaces, Quiet(), recheck_s=recheck_s)
        self.app = web.Application(middlewares=[problems, control.middleware()])
        self.app.router.add_get("/v1/events", self.events)
        self.app.router.add_get("/v1/gangs/{namespace}/{name}", self.events)
        self.app.router.add_get("/v1/forgotten", self.events)
        self.ended = asyncio.Event()

    async def events(self, request):
        if "follow" not in request.query:
            seen = visibility_of(request)
            return web.json_response({"all": seen.everything, "some": sorted(seen.namespaces)})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return response


@pytest.fixture
async def client_of():
    clients = []

    async def make(app):
        clients.append(TestClient(TestServer(app)))
        await clients[-1].start_server()
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def plain(reviews, client_of):
    return await client_of(Plain(reviews).app)


async def test_what_a_caller_sees(plain, reviews):
    """All; the namespaces with the right to list; and the one that the request names."""
    auditor = reviews.add_user("auditor", AccessRight("list"))
    ann = reviews.add_user("ann", *READ, AccessRight("list", "empty"))
    getter = reviews.add_user("getter", AccessRight("get", "team-b"))

    async def seen(path, token):
        async with plain.get(path, headers=bearer(token)) as reply:
            return (await reply.json()) if reply.status == 200 else reply.status

    assert await seen("/v1/events", auditor) == {"all": True, "some": []}
    assert await seen("/v1/events", ann) == {"all": False, "some": ["default"]}
    both = {"all": False, "some": ["default", "empty"]}
    assert await seen("/v1/events?namespace=empty", ann) == both
    assert await seen("/v1/events?namespace=team-b", ann) == 403
    assert await seen("/v1/events?namespace=No%20name", ann) == {"all": False, "some": ["default"]}
    assert await seen("/v1/gangs/team-b/g", getter) == {"all": False, "some": ["team-b"]}
    assert await seen("/v1/events", getter) == 403


async def test_a_request_that_names_a_namespace_is_answered_in_any_cluster(reviews, client_of):
    """Also where there are too many namespaces to review each; of the others it has nothing, and no sweep runs for it."""
    ann = reviews.add_user("ann", *READ)
    names = ["default", *(f"n{number}" for number in range(NAMESPACES_MAX))]
    client = await client_of(Plain(reviews, namespaces=names).app)
    for path in ("/v1/events?namespace=default", "/v1/gangs/default/g"):
        async with client.get(path, headers=bearer(ann)) as reply:
            assert (await reply.json()) == {"all": False, "some": ["default"]}
    assert len(reviews.asked) < 10
    async with client.get("/v1/events", headers=bearer(ann)) as reply:
        assert reply.status == 403
        assert "query parameter namespace" in await reply.text()


async def test_a_route_without_an_entry_is_refused(plain, reviews):
    """Also not an auditor."""
    token = reviews.add_user("auditor", AccessRight("list"))
    async with plain.get("/v1/forgotten", headers=bearer(token)) as reply:
        assert reply.status == 403


async def test_a_stream_ends_with_the_right(reviews, client_of, monkeypatch):
    """Within the time for which answers are kept; what stays allowed goes on."""
    monkeypatch.setattr("extender.http.access.review_cache.POSITIVE_S", 0.05)
    plain = Plain(reviews)
    client = await client_of(plain.app)
    token = reviews.add_user("ann", *READ)
    async with client.get("/v1/events?follow=true", headers=bearer(token)) as reply:
        assert await reply.content.readany() == b"begun"
        asked = len(reviews.asked)
        await eventually(lambda: len(reviews.asked) > asked + 6, "rights are checked again")
        assert not plain.ended.is_set()
        reviews.rights.clear()
        await plain.ended.wait()
        with pytest.raises(Exception, match=r"not completed|closed|payload"):
            await reply.content.read()
    async with client.get("/v1/events?follow=true", headers=bearer(token)) as reply:
        assert reply.status == 403


async def test_a_stream_lives_through_a_short_outage(reviews, client_of, monkeypatch):
    """It ends when it is not known for too long whether the right is still there."""
    monkeypatch.setattr("extender.http.access.review_cache.POSITIVE_S", 0.0)
    plain = Plain(reviews)
    client = await client_of(plain.app)
    token = reviews.add_user("ann", *READ)
    async with client.get("/v1/events?follow=true", headers=bearer(token)) as reply:
        assert await reply.content.readany() == b"begun"
        reviews.down = "restarting"
        asked = len(reviews.asked)
        await eventually(lambda: len(reviews.asked) > asked + 3, "rights are checked again")
        assert not plain.ended.is_set()
        monkeypatch.setattr(access_middleware, "STREAM_UNKNOWN_S", 0.0)
        await plain.ended.wait()


def test_the_command_is_one_that_a_shell_takes():
    """Whatever the name of the user is; accounts have a flag of their own."""
    text = refusal(Caller(user="a b';rm -rf /"), AccessRight("list", "x"), "gang-extender-viewer")
    words = shlex.split(text.partition("with: ")[2])
    assert words[-2:] == ["--user=a b';rm -rf /", "--namespace=x"]
    assert words[3] == "gang-extender-viewer-a-b-rm-rf"
    account = Caller(user="system:serviceaccount:default:robot")
    text = refusal(account, AccessRight("get", path="/metrics"), "gang-extender-operator")
    assert "kubectl create clusterrolebinding " in text
    assert text.endswith("--serviceaccount=default:robot")
