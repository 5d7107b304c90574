"""Questions answered by a process of their own: the same answers, and what happens when it is killed, held up or absent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.composition import ANSWERING
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import problems
from extender.http.responses.request_visibility import (
    VISIBILITY,
    decoded_visibility,
    encoded_visibility,
)
from extender.http.v1.event_api import EventApi
from extender.http.v1.history_api import HistoryApi, ReportApi
from extender.http.v1.state_api import NodesApi, StateApi
from extender.http.web import query_process
from extender.http.web.query_process import KEY, PATHS, VISIBLE, QueryProcess, QueryProcessOptions
from extender.queries.log.event_stream import EventStream
from extender.queries.state.historical_state import HistoricalState
from extender.query_main import PROCESS_NAME
from extender.runtime.system_clock import SystemClock
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots
from tests.bench.history import node_of, write_history
from tests.support.logs.postgres import fresh_database, run
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_fleet, a_node, a_pod
from tests.support.service.node_state import past_node
from tests.support.service.replicas import Replica
from tests.support.service.sse_reader import Reader
from tests.support.waiting import eventually

COMPARED_HEADERS = (
    "Content-Type",
    "ETag",
    "Link",
    "X-Log-Position",
    "Cache-Control",
)  # headers that are the handlers'
NODE = node_of(7)[0]
QUESTIONS = (
    "/v1/events?limit=1000",
    "/v1/events?limit=2&order=newest",
    "/v1/events?limit=2&type=GangAdmitted&type=PodBound",
    "/v1/events?since=yesterday",
    "/v1/events?limit=0",
    "/v1/state",
    "/v1/state?at=9&diff=3",
    "/v1/state?at=99999999",
    "/v1/reports",
    "/v1/reports/pending?since=2026-11-17T00:00:00Z&until=2026-11-18T00:00:00%2B00:00",
    "/v1/reports/none",
    "/v1/gangs/serve/model-0000007/history",
    "/v1/gangs/serve/model-0000007/history?decisions",
    "/v1/gangs/a%27b/%E2%98%83/history",
    "/v1/decisions/1",
    "/v1/decisions/a%2Fb",
    "/v1/preemptions",
    "/v1/preemptions?victim=a%20b/c&limit=3",
    f"/v1/nodes/{NODE}",
    f"/v1/nodes/{NODE}?at=900",
    "/v1/nodes/idle",
    "/v1/nodes/idle?at=900",
    "/v1/nodes/absent",
)
EVENTS = 2_000
MANY_NAMES = ("serve", *(f"a-namespace-with-a-long-name-{n:06}" for n in range(5_000)))
READER = "Test-Namespace"  # header of a reader who sees only this namespace


@pytest.fixture(scope="module")
def filled_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        run(write_history(url, EVENTS))
        yield url


def a_cluster():
    return FakeCluster(a_node("idle", gpu=8), a_pod("alone", requests={GPU: 3}, node="idle"))


@web.middleware
async def as_reader(request, handler):
    """Set what authorization sets: the namespace that the reader of a test sees."""
    if READER in request.headers:
        name = request.headers[READER]
        request[VISIBILITY] = Visibility.of(MANY_NAMES if name == "*many" else [name])
    return await handler(request)


@contextlib.asynccontextmanager
async def serving(*parts):
    app = web.Application(middlewares=[problems, as_reader])
    for part in parts:
        app.add_routes(part.routes())
    async with TestClient(TestServer(app)) as client:
        yield client


@contextlib.asynccontextmanager
async def apart(url, command=ANSWERING):
    """Serve with the process of the service; yield the client and the handlers."""
    handlers = QueryProcess(command, QueryProcessOptions(url, "INFO"))
    handlers.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_process, "PAUSE_FIRST_S", 0.05)
        patch.setattr(query_process, "PAUSE_MAX_S", 0.05)
        running = asyncio.create_task(handlers.run())
        try:
            async with serving(handlers, NodesApi(a_cluster(), handlers.fetch)) as client:
                yield client, handlers
                handlers.stop()
        finally:
            running.cancel()
            await handlers.close()


@contextlib.asynccontextmanager
async def here(url):
    """Serve the same handlers in this process."""
    engine = reading_pool(url)
    async with PostgresEventLog(url) as log:
        reader = PostgresEventQueries(engine)
        as_of = HistoricalState(log, PostgresSnapshots(engine), reader)
        async with serving(
            HistoryApi(reader, PostgresDecisionInputs(engine)), EventApi(reader, EventStream(log, reader)),
            StateApi(as_of), ReportApi(PostgresReportQueries(engine), reader, SystemClock()), NodesApi(a_cluster(), past_node(as_of)),
        ) as client:  # fmt: skip
            yield client
    await engine.close()


# Cases that leave a process behind share it, and its event loop.
shared = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(filled_url):
    """Client and handlers of a process."""
    async with apart(filled_url) as both:
        yield both


@pytest.fixture
def other(process):
    """Client of that process."""
    return process[0]


async def asked(client, path, method="GET", **headers):
    url = client.make_url("").join(aiohttp.client.URL(path, encoded=True))
    async with client.session.request(method, url, headers=headers) as reply:
        return (
            reply.status,
            {k: v for k, v in reply.headers.items() if k in COMPARED_HEADERS},
            await reply.read(),
        )


@shared
async def test_the_answers_are_those_of_the_handlers(other, filled_url):
    """Also faults, names that are escaped, answers in pieces, and what was answered before."""
    async with here(filled_url) as same:
        large = 0
        for path in QUESTIONS:
            expected, found = await asked(same, path), await asked(other, path)
            assert found == expected, path
            large = max(large, len(found[2]))
            _, headers, _ = found
            assert (await asked(other, path, "HEAD"))[0] == found[0], path
            if "ETag" in headers:
                known = {"If-None-Match": headers["ETag"]}
                assert (await asked(other, path, **known))[0] == 304, path
        assert large > 64 * 1024, "no answer goes in pieces"


@shared
async def test_a_node_now_has_what_the_cluster_shows(other):
    """Some nodes of the cluster were never named in the log."""
    async with other.get("/v1/nodes/idle") as reply:
        answer = await reply.json()
    assert answer["live"]["used"][GPU] == 3
    assert "ETag" not in reply.headers
    async with other.get("/v1/state?at=900") as reply:
        there = (await reply.json())["nodes"][0]["node"]
    async with other.get(f"/v1/nodes/{there}?at=900") as reply:
        assert (await reply.json())["live"] is None
        assert "ETag" in reply.headers


@shared
async def test_a_process_that_was_killed_is_started_again(process):
    client, handlers = process
    before = await asked(client, "/v1/events?limit=5")
    killed = handlers.pid
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: handlers.pid != killed, "another process")
    assert await asked(client, "/v1/events?limit=5") == before


@shared
async def test_a_question_that_dies_with_its_process_is_asked_again(process):
    client, handlers = process
    expected = await asked(client, "/v1/state?at=9")
    os.kill(handlers.pid, signal.SIGSTOP)
    asking = asyncio.create_task(asked(client, "/v1/state?at=9"))
    await asyncio.sleep(0.2)
    assert not asking.done()
    os.kill(handlers.pid, signal.SIGKILL)
    assert await asking == expected


@shared
async def test_a_stream_goes_on_where_it_was_after_a_kill(process):
    """No event is missed and none comes twice."""
    client, handlers = process
    reader, killed = Reader([str(client.make_url("")).rstrip("/")], "&after=0"), []

    def enough(reader):
        # most of them are not sent yet: a reader is sent some at a time
        if reader.events and not killed:
            killed.append(handlers.pid)
            os.kill(handlers.pid, signal.SIGKILL)
        return len(reader.events) >= EVENTS

    await reader.read(enough)
    assert reader.connections > 1
    assert reader.positions == list(range(1, EVENTS + 1))


EXITS_AT_ONCE = (sys.executable, "-c", "import sys; sys.exit(3)")


async def test_without_a_process_the_answer_is_503(filled_url, monkeypatch):
    monkeypatch.setattr(query_process, "SILENT_S", 0.3)
    async with apart(filled_url, EXITS_AT_ONCE) as (client, _):
        status, headers, body = await asked(client, "/v1/events")
        assert status == 503
        assert headers["Content-Type"].startswith("application/problem+json")
        assert b"the query process does not answer" in body
        assert b"try again in a moment" in body


@shared
async def test_every_path_has_a_handler_there(other):
    """A 404 of the other process would name its own path."""
    for path in PATHS:
        filled = path.format(namespace="ns", name="pending", id="x")
        _, _, body = await asked(other, filled)
        assert f"GET {filled}".encode() not in body


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answers(pid):
    """Return the query processes among the children of the service."""
    return [p for p in children(pid) if Path(f"/proc/{p}/comm").read_text().strip() == PROCESS_NAME]


def started(folder, url):
    """Start a service; return it when it leads and answers questions."""
    manifests = folder / "manifests"
    manifests.mkdir()
    listed = {"apiVersion": "v1", "kind": "List", "items": list(a_fleet("2 nodes", gpu=8))}
    (manifests / "all.json").write_text(json.dumps(listed))
    made = Replica(folder, url, manifests, "a", lease_duration_s=15)
    try:
        run(made.until_leads())
        run(made.until("/v1/events?limit=1", 200))
    except BaseException:
        made.end()
        raise
    return made


@pytest.fixture
def replica(tmp_path, database_url):
    """Yield a service that a test may end."""
    made = started(tmp_path, database_url)
    yield made
    made.end()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory, postgres_url, template_database):
    """Yield a service that tests leave running."""
    with fresh_database(postgres_url, template=template_database) as url:
        made = started(tmp_path_factory.mktemp("lasting"), url)
        yield made
        made.end()


async def test_no_process_is_left_behind(replica):
    """Neither by a kill nor by an end that was asked for."""
    ours = answers(replica.process.pid)
    assert ours
    replica.kill()
    await eventually(lambda: not any(Path(f"/proc/{p}").exists() for p in ours), "all ended")
    replica.start()
    await replica.until("/v1/events?limit=1", 200)
    ours = answers(replica.process.pid)
    await replica.stopped()
    assert not any(Path(f"/proc/{p}").exists() for p in ours)


async def test_calls_of_kube_scheduler_do_not_wait_for_questions(lasting):
    """Not even for one whose process is stopped."""
    stopped = answers(lasting.process.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    asking = asyncio.create_task(lasting.ask("/v1/events?limit=1"))
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {}}
    async with aiohttp.ClientSession() as session:
        body = {"Pod": pod, "NodeNames": ["node-0"]}
        async with session.post(f"{lasting.url}/scheduler/filter", json=body) as reply:
            assert reply.status == 200
            assert (await reply.json(content_type=None))["NodeNames"] == ["node-0"]
    assert not asking.done()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert (await asking)[0] == 200


async def test_an_asker_that_has_gone_when_its_stream_ends_is_no_fault(replica):
    async with aiohttp.ClientSession() as session:
        reply = await session.get(f"{replica.url}/v1/events?follow&after=0")
        await reply.content.readuntil(b"data")
        reply.close()  # the service writes nothing to it before the end
    await replica.stopped()
    assert '"level":"ERROR"' not in replica.log.read_text()


ANSWERED_BY_NAMESPACE = (
    "/v1/events?limit=50",
    "/v1/state?at=900",
    "/v1/events?limit=20&order=newest",
)


@shared
async def test_what_a_reader_sees_is_set_by_the_service_alone(other, filled_url):
    """The namespace of the reader goes to the process; headers of the same name from the client do not."""
    forged = {VISIBLE: encoded_visibility(Visibility.all()), KEY: "guessed"}
    async with here(filled_url) as same:
        for path in ANSWERED_BY_NAMESPACE:
            whole, reduced = (
                await asked(other, path),
                await asked(other, path, **{READER: "another"}),
            )
            assert whole != reduced, path
            assert reduced == await asked(same, path, **{READER: "another"}), path
            assert reduced == await asked(other, path, **{READER: "another"}, **forged), path
            assert whole == await asked(
                other, path, **{VISIBLE: encoded_visibility(Visibility.of([]))}
            )
        many = {READER: "serve"}
        assert (await asked(other, "/v1/gangs/serve/model-0000007/history", **many))[0] == 200
        many = {READER: "another"}
        assert (await asked(other, "/v1/gangs/serve/model-0000007/history", **many))[0] == 404


@shared
async def test_another_process_of_the_machine_gets_no_answer(process):
    """The socket is on loopback: without the key of this run a query is refused, whatever else it has."""
    client, handlers = process
    assert (await asked(client, "/v1/events?limit=1"))[0] == 200
    host, port = handlers._listening.getsockname()
    for headers in (
        {},
        {VISIBLE: encoded_visibility(Visibility.all())},
        {VISIBLE: encoded_visibility(Visibility.all()), KEY: ""},
        {VISIBLE: encoded_visibility(Visibility.all()), KEY: "guessed"},
    ):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}/v1/events?limit=1", headers=headers) as reply,
        ):
            assert reply.status == 403
            assert b"position" not in await reply.read()


@shared
async def test_a_reader_of_thousands_of_namespaces_is_answered(other):
    """The header of the visibility may be long."""
    encoded = encoded_visibility(Visibility.of(MANY_NAMES))
    assert len(encoded) > 100_000
    assert decoded_visibility(encoded) == Visibility.of(MANY_NAMES)
    assert (await asked(other, "/v1/events?limit=5", **{READER: "*many"}))[0] == 200
