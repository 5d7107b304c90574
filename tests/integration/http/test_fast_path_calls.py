"""Usual calls of kube-scheduler are answered as aiohttp answers them, and everything else is left to aiohttp."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web_protocol

from extender.http.listener import connection_limits
from extender.http.listener.connection_limits import CONNECTIONS
from tests.integration.http.test_request_limits import Peer, listening, request
from tests.integration.http.test_scheduler_verbs import wire_pod
from tests.support.waiting import eventually

OTHER_HEADER = {"X_Other": "1"}  # aiohttp answers a request with one


@pytest.fixture
def handled_by_aiohttp(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that aiohttp has handled."""
    paths = []
    handle = web_protocol.RequestHandler._handle_request

    async def noted(self, request, *rest):
        paths.append(request.path)
        return await handle(self, request, *rest)

    monkeypatch.setattr(web_protocol.RequestHandler, "_handle_request", noted)
    return paths


def bodies(served) -> dict[str, tuple[str, bytes]]:
    """Return calls by name: verb and body."""
    pod = wire_pod(served.stage, "g-0")
    stranger = {**pod, "metadata": {**pod["metadata"], "uid": "unknown"}}
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0", "n1"]}
    whole = {"Pod": pod, "Nodes": {"items": [{"metadata": {"name": "n0"}}]}, "NodeNames": None}
    unknown = {"PodName": "x", "PodNamespace": "default", "PodUID": "x", "Node": "n0"}
    found = {
        "filter": ("filter", args),
        "filter of an unknown pod": ("filter", {**args, "Pod": stranger}),
        "filter with whole nodes": ("filter", whole),
        "filter of nothing": ("filter", {"Pod": 1}),
        "prioritize": ("prioritize", args),
        "prioritize of nothing": ("prioritize", []),
        "bind of an unknown pod": ("bind", unknown),
        "bind of nothing": ("bind", {}),
    }
    return {name: (verb, json.dumps(body).encode()) for name, (verb, body) in found.items()}


async def test_every_answer_is_that_of_aiohttp(handled_by_aiohttp) -> None:
    """Status, headers in their order, and body; only the date may differ."""
    async with listening() as (served, connect):
        for name, (verb, body) in bodies(served).items():
            path = f"/scheduler/{verb}"
            peer = await connect()
            direct = await peer.ask(path, body)
            assert handled_by_aiohttp == [], name
            by_aiohttp = await peer.ask(path, body, **OTHER_HEADER)
            assert handled_by_aiohttp == [path], name
            handled_by_aiohttp.clear()
            for answer in (direct, by_aiohttp):
                answer[1]["Date"] = ""
            assert direct == by_aiohttp, name
            assert list(direct[1]) == list(by_aiohttp[1]), name


HEAD = "POST /scheduler/filter HTTP/1.1"
USUAL = ["Host: localhost", "Content-Type: application/json"]
OTHERS = {
    "another header": [HEAD, *USUAL, "X-Other: 1"],
    "a header twice": [HEAD, *USUAL, "Host: localhost"],
    "no type": [HEAD, USUAL[0]],
    "another type": [HEAD, USUAL[0], "Content-Type: text/plain"],
    "an origin": [HEAD, *USUAL, "Origin: http://elsewhere"],
    "another host": [HEAD, "Host: elsewhere", USUAL[1]],
    "an expectation": [HEAD, *USUAL, "Expect: 100-continue"],
    "another version": ["POST /scheduler/filter HTTP/1.0", *USUAL],
    "another method": ["PUT /scheduler/filter HTTP/1.1", *USUAL],
    "a query": ["POST /scheduler/filter?x HTTP/1.1", *USUAL],
    "a line that goes on": [HEAD, *USUAL, "User-Agent: a\r\n b"],
    "a bare line feed": [HEAD, *USUAL, "User-Agent: a\nX-Other: 1"],
    "a space in front of a colon": [HEAD, USUAL[1], "Host : localhost"],
    "preempt": ["POST /scheduler/preempt HTTP/1.1", *USUAL],
}


@pytest.mark.parametrize("name", OTHERS)
async def test_an_unusual_request_is_left_to_aiohttp(name, handled_by_aiohttp) -> None:
    """It alone refuses and forwards."""
    async with listening() as (served, connect):
        _, body = bodies(served)["filter"]
        peer = await connect()
        head = "\r\n".join([*OTHERS[name], f"Content-Length: {len(body)}", "", ""])
        await peer.send(head.encode() + body)
        assert (await peer.reader.readline()).startswith(b"HTTP/1.")
    assert len(handled_by_aiohttp) == 1


async def test_a_call_in_pieces_is_answered_when_it_is_complete(
    handled_by_aiohttp, monkeypatch
) -> None:
    """Go writes a request of more than 4 KiB in several pieces."""
    async with listening() as (served, connect):
        verb, body = bodies(served)["filter"]
        whole = request(f"/scheduler/{verb}", len(body)) + body
        monkeypatch.setattr(connection_limits, "PART_S", 60.0)
        for cut in (1, 20, whole.index(b"\r\n\r\n") + 2, len(whole) - 1):
            peer = await connect()
            await peer.send(whole[:cut])
            await asyncio.sleep(0.005)
            await peer.send(whole[cut:])
            assert (await peer.answer())[0] == 200
        monkeypatch.setattr(connection_limits, "PART_S", 0.01)
        late = await connect()
        await late.send(whole[:-1])
        gates = served.client.app[CONNECTIONS]._gates
        await eventually(lambda: any(gate._inner for gate in gates.values()), "it to be aiohttp's")
        await late.send(whole[-1:])
        assert (await late.answer())[0] == 200
    assert handled_by_aiohttp == ["/scheduler/filter"], "what comes late is waited for by aiohttp"


async def test_two_calls_at_once_are_answered_in_their_order(handled_by_aiohttp) -> None:
    """No call may be lost or overtake another on its connection."""
    async with listening() as (served, connect):
        verb, body = bodies(served)["filter"]
        other_verb, other = bodies(served)["prioritize"]
        peer = await connect()
        calls = [
            request(f"/scheduler/{v}", len(b)) + b for v, b in ((verb, body), (other_verb, other))
        ]
        await peer.send(b"".join(calls))
        assert "NodeNames" in (await peer.answer())[2]
        assert "Score" in (await peer.answer())[2]


def bind_call(served, name: str) -> bytes:
    ref = served.stage.ref(name)
    args = {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid,
            "Node": served.stage.reserved_node(name)}  # fmt: skip
    body = json.dumps(args).encode()
    return request("/scheduler/bind", len(body)) + body


def waiting(served) -> int:
    return sum(len(one.arrivals) for one in served.stage.barriers._barriers.values())


async def test_members_wait_at_the_barrier_and_are_bound(handled_by_aiohttp) -> None:
    """Each on its connection; what comes behind a call is answered after it."""
    async with listening() as (served, connect):
        verb, body = bodies(served)["filter"]
        first, second = await connect(), await connect()
        await first.send(bind_call(served, "g-0"))
        await eventually(lambda: waiting(served) == 1, "the call at the barrier")
        await first.send(request(f"/scheduler/{verb}", len(body)) + body)
        gates = served.client.app[CONNECTIONS]._gates
        await eventually(lambda: any(gate._received for gate in gates.values()), "the next call")
        assert handled_by_aiohttp == []
        await second.send(bind_call(served, "g-1"))
        for peer in (first, second):
            status, _, text = await peer.answer()
            assert (status, json.loads(text)) == (200, {"Error": ""})
        assert "NodeNames" in (await first.answer())[2]
    assert handled_by_aiohttp == []


async def test_a_caller_who_hangs_up_does_not_wait(handled_by_aiohttp) -> None:
    """Else a pod would be bound for which kube-scheduler has given up."""
    async with listening() as (served, connect):
        peer = await connect()
        await peer.send(bind_call(served, "g-0"))
        await eventually(lambda: waiting(served) == 1, "the call at the barrier")
        (barrier,) = served.stage.barriers._barriers.values()
        (arrival,) = barrier.arrivals.values()
        assert arrival.alive()
        await peer.close()
        await eventually(lambda: not arrival.alive(), "the service to know")
    assert handled_by_aiohttp == []


async def test_a_part_of_a_next_call_is_closed_in_time() -> None:
    """The time for headers counts on a connection that has been used, too."""
    async with listening(keepalive_timeout_s=60, header_timeout_s=0.3) as (served, connect):
        verb, body = bodies(served)["filter"]
        peer = await connect()
        assert (await peer.ask(f"/scheduler/{verb}", body))[0] == 200
        await peer.send(b"POST /scheduler/filter HTTP/1.1\r\nHost: loc")
        assert (await peer.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_replica_that_is_not_ready_leaves_calls_to_aiohttp(handled_by_aiohttp) -> None:
    """There they are forwarded, or refused, and the connection is closed."""
    async with listening(filter_deadline_ms=200) as (served, connect):
        verb, body = bodies(served)["filter"]
        peer = await connect()
        assert (await peer.ask(f"/scheduler/{verb}", body))[0] == 200
        assert handled_by_aiohttp == []
        await served.stage.leader.release_lease()
        _, headers, text = await peer.ask(f"/scheduler/{verb}", body)
        assert headers["Connection"] == "close"
        assert "cannot answer now" in json.loads(text)["Error"]
    assert handled_by_aiohttp == ["/scheduler/filter"]


async def test_a_bind_call_whose_lease_ends_is_answered_and_its_connection_closed() -> None:
    """By the next leader, or as here, where there is none, by an error."""
    async with listening() as (served, connect):
        peer = await connect()
        await peer.send(bind_call(served, "g-0"))
        await eventually(lambda: waiting(served) == 1, "the call at the barrier")
        served.forwarder._bind_s = 0.3  # so long it waits for a next leader
        await served.stage.leader.release_lease()
        _, headers, text = await peer.answer()
        assert json.loads(text)["Error"]
        assert headers["Connection"] == "close"
        assert await peer.rest() == b""


async def test_an_unexpected_error_is_a_500(monkeypatch, caplog) -> None:
    """It is logged, and the connection is closed."""
    async with listening() as (served, connect):
        verb, body = bodies(served)["filter"]

        def fail(*_: object) -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(served.stage.extender_service, "filter", fail)
        peer = await connect()
        status, headers, _ = await peer.ask(f"/scheduler/{verb}", body)
        assert (status, headers["Connection"]) == (500, "close")
    assert "a defect" in caplog.text


async def test_a_stop_closes_idle_connections_and_answers_open_calls() -> None:
    """An open bind call has the grace time."""
    peers: list[Peer] = []
    async with listening(shutdown_grace_s=5.0) as (served, connect):
        verb, body = bodies(served)["filter"]
        idle, calling = await connect(), await connect()
        peers += [idle, calling]
        assert (await idle.ask(f"/scheduler/{verb}", body))[0] == 200
        await calling.send(bind_call(served, "g-0"))
        await eventually(lambda: waiting(served) == 1, "the call at the barrier")
        connections = served.client.app[CONNECTIONS]
        stop = asyncio.create_task(connections.stop(5.0))
        assert await idle.rest() == b""
        assert not stop.done()
        await served.stage.barriers.stop()
        status, _, text = await calling.answer()
        assert (status, bool(json.loads(text)["Error"])) == (200, True)
        assert await calling.rest() == b""
        await stop
