"""`/v1/state` and `/v1/nodes/{name}` over the wire: shapes, moments, faults, entity tags."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.http.responses.json_responses import problems
from extender.http.v1.state_api import NodesApi, StateApi
from extender.queries.state.historical_state import HistoricalState
from extender.store.log.event_codec import chain, encode_event
from tests.support.logs.fake_store import (
    FakeDatabase,
    FakeEventLog,
    FakeEventQueries,
    FakeSnapshots,
)
from tests.support.logs.short_log import at_us, story
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_node, a_pod
from tests.support.service.node_state import past_node


@pytest.fixture
async def client():
    """The story's log behind the API, on a cluster where n1 has capacity and an ordinary pod."""
    database = FakeDatabase(lambda: at_us(1000))
    for event in story():
        row = encode_event(event)[0]
        database.rows.append((row, chain(database.head.chain, row)))
    database.projected = len(database.rows)
    as_of = HistoricalState(
        FakeEventLog(database), FakeSnapshots(database), FakeEventQueries(database)
    )
    cluster = FakeCluster(
        a_node("n1", gpu=8), a_node("idle", gpu=4), a_pod("alone", requests={GPU: 3}, node="n1")
    )
    app = web.Application(middlewares=[problems])
    for part in (NodesApi(cluster, past_node(as_of)), StateApi(as_of)):
        app.add_routes(part.routes())
    async with TestClient(TestServer(app)) as made:
        yield made


async def get(client, path, status=200, **headers):
    async with client.get(path, headers=headers) as reply:
        assert reply.status == status, await reply.text()
        return await reply.json(content_type=None) if status != 304 else None, reply.headers


STATE = {
    "totals",
    "gangs",
    "nodes",
    "capacity_holds",
    "preemptions",
    "control_plane",
    "limitations",
    "as_of",
    "log",
    "scope",
}
GANG = {
    "gang", "uid", "kind", "priority", "state", "reserved", "bound", "outcome", "reasons", "last_decision_time",
    "last_decision_position", "observed", "admitted", "plan", "groups", "members", "workload",
    "minimum_present", "minimum_needed", "last_loss", "waiting_since", "help", "when_empty",
}  # fmt: skip
NODE = {
    "others",
    "node",
    "topology",
    "reserved",
    "bound",
    "preemption_claims",
    "replacement_holds",
    "capacity_holds",
    "move_claims",
    "pods",
}


async def test_exactly_the_stated_fields(client):
    found, headers = await get(client, "/v1/state?at=9")
    assert set(found) == STATE
    assert all(set(gang) == GANG for gang in found["gangs"])
    assert all(set(node) == NODE for node in found["nodes"])
    assert set(found["as_of"]) == {"requested", "position", "time", "hash"}
    assert headers["X-Log-Position"] == "9"


async def test_the_end_of_the_log_when_nothing_is_asked(client):
    found, headers = await get(client, "/v1/state")
    assert found["as_of"]["position"] == 14
    assert found["as_of"]["requested"] == ""
    assert headers["X-Log-Position"] == "14"


async def test_what_changed(client):
    found, _ = await get(client, "/v1/state?at=12&diff=6")
    assert set(found) == {"gangs", "members", "limitations", "from", "to", "log", "scope"}
    assert (found["from"]["position"], found["to"]["position"]) == (6, 12)


@pytest.mark.parametrize(
    ("query", "status", "expected"),
    [
        ("at=tomorrow", 400, "at: 'tomorrow' is not a time with offset"),
        ("at=99", 400, "the log ends at position 14"),
        ("at=3&diff=99", 400, "diff: position 99"),
        ("domain=rack", 400, "is not KEY=VALUE"),
        ("node=n1&domain=rack=r1", 400, "give only one of them"),
        ("node=n7", 404, "node n7"),
        ("namespace=absent", 404, "namespace absent"),
        ("namespace='%3B DROP TABLE gx.event%3B--", 404, "the log has no gang in it"),
        ("moment=3", 400, "query parameter moment: not known; there are at, diff, domain"),
        ("node=%00", 400, "NUL"),
    ],
)
async def test_faults_name_field_and_value(client, query, status, expected):
    found, headers = await get(client, f"/v1/state?{query}", status)
    assert expected in found["detail"]
    assert headers["Content-Type"].startswith("application/problem+json")


async def test_the_past_does_not_change(client):
    """An entity tag for a moment, another one for another moment."""
    _, headers = await get(client, "/v1/state?at=9")
    await get(client, "/v1/state?at=9", 304, **{"If-None-Match": headers["ETag"]})
    await get(client, "/v1/state?at=10", 200, **{"If-None-Match": headers["ETag"]})


async def test_a_node_now(client):
    """What the log knows, and beside it what only the cluster shows."""
    found, headers = await get(client, "/v1/nodes/n1")
    assert [p["pod"] for p in found["node"]["pods"]] == ["ns/h"]
    live = found["live"]
    assert (live["allocatable"][GPU], live["used"][GPU], live["free"][GPU]) == (8, 3, 3)
    assert (live["pods"], live["ordinary"]) == (1, 1)
    assert "ETag" not in headers
    found, _ = await get(client, "/v1/nodes/idle")
    assert found["node"] is None
    assert found["live"]["free"][GPU] == 4
    await get(client, "/v1/nodes/n7", 404)


async def test_a_node_then(client):
    found, headers = await get(client, "/v1/nodes/n1?at=4")
    assert found["live"] is None
    assert [p["pod"] for p in found["node"]["pods"]] == ["ns/a"]
    assert headers["X-Log-Position"] == "4"
    found, _ = await get(client, "/v1/nodes/n1?at=1")
    assert found["node"] is None
    await get(client, "/v1/nodes/idle?at=4", 404)
    await get(client, "/v1/nodes/n1?at=4&diff=5", 400)
