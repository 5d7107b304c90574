"""Requests and connections over the limits of docs/limits.md are refused before they cost anything."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import resource
import time
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvloop

from extender.http.listener.connection_limits import CONNECTIONS, ConnectionLimits
from extender.http.web.request_limits import FILTER_BYTES_MIN, FILTER_BYTES_PER_NODE, VALUES_MIN
from extender.http.web.server import listen
from extender.ports.access_ports import AccessRight
from extender.settings import Settings
from extender.telemetry import METRICS
from tests.integration.http.test_scheduler_verbs import Served, wire_pod
from tests.support.service.fake_access import FakeAccessReviews
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

MIB = 1024 * 1024


@asynccontextmanager
async def listening(**settings):
    """Serve as `serve` does, on a port of loopback; give the stage, and a function that opens a connection."""
    given = {"listen": "127.0.0.1:0"} | settings
    served = Served(a_node("n0", gpu=4), *a_gang("g", pods=2), **given)
    app = served.client.app
    await served.ready()
    runner = await listen(app, served.stage.settings)
    peers = []

    async def connect(**how):
        port = runner.addresses[0][1]
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port, **how)))
        return peers[-1]

    try:
        yield served, connect
    finally:
        for peer in peers:
            await peer.close()
        await runner.cleanup()
        await served.client.close()
        await served.forwarder.close()
        await served.stage.__aexit__()


class Peer:
    """One connection, of a client that sends what it wants."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self):
        """Return status, headers and body of one response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        return int(lines[0].split()[1]), headers, body.decode()

    async def rest(self):
        """Return what comes until the server closes the connection."""
        came = b""
        with suppress(ConnectionError):
            while piece := await self.reader.read(65536):
                came += piece
        return came + bytes(self.reader._buffer)  # what came before a reset counts

    async def ask(self, path, body=b"", **headers):
        await self.send(request(path, len(body), **headers) + body)
        return await self.answer()

    async def close(self):
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def request(path, length, method="POST", **headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    headers = {"Content_Type": "application/json"} | headers
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def refused(reason):
    return METRICS.http_requests_refused.labels(reason)._value.get()


@pytest.fixture
def counted():
    """Return a function: how often a reason was counted since the test began."""
    reasons = [
        "encoding",
        "malformed",
        "body-size",
        "body-values",
        "bytes-in-flight",
        "body-timeout",
        "header-timeout",
        "connections",
        "connections-per-peer",
        "streams-per-peer",
        "streams-per-user",
        "stream-replaced",
        "streams",
    ]
    before = {reason: refused(reason) for reason in reasons}
    return lambda reason: refused(reason) - before[reason]


# --- bodies ----------------------------------------------------------------------------------------


async def test_an_encoded_body_is_refused_unread(counted):
    """61 KB of gzip were 60 MiB in memory (review, H3): no request of ours is encoded."""
    body = gzip.compress(b" " * MIB)
    paths = ("/scheduler/filter", "/scheduler/bind", "/v1/plan", "/v1/gangs", "/elsewhere")
    encodings = ("gzip", "deflate", "br", "zstd", "identity, gzip", "GZIP")
    async with listening() as (_, connect):
        for path, encoding in itertools.product(paths, encodings):
            peer = await connect()
            status, headers, text = await peer.ask(path, body, Content_Encoding=encoding)
            assert (status, headers["Accept-Encoding"]) == (415, "identity")
            assert "Content-Encoding" in text
            assert await peer.rest() == b""
    assert counted("encoding") == len(paths) * len(encodings)


async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(counted):
    """The answer comes although not one byte of the body does; each path has a limit of its own."""
    sizes = {
        "/scheduler/filter": FILTER_BYTES_MIN + FILTER_BYTES_PER_NODE,
        "/scheduler/prioritize": FILTER_BYTES_MIN + FILTER_BYTES_PER_NODE,
        "/scheduler/preempt": 8 * MIB,
        "/scheduler/bind": 4096,
        "/v1/plan": 16 * MIB,
        "/v1/gangs": 4096,
    }
    async with listening() as (_, connect):
        for path, size in sizes.items():
            peer = await connect()
            await peer.send(request(path, size + 1))
            status, headers, text = await peer.answer()
            assert (status, headers["Connection"]) == (413, "close")
            assert f"at most {size} bytes" in text
    assert counted("body-size") == len(sizes)


async def test_a_chunked_body_is_read_up_to_its_limit_only(counted):
    """A body without a length is refused when it grows over the limit."""
    async with listening() as (_, connect):
        peer = await connect()
        head = b"POST /scheduler/bind HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        await peer.send(head + 5 * (b"400\r\n" + b" " * 0x400 + b"\r\n"))
        assert (await peer.answer())[0] == 413
    assert counted("body-size") == 1


async def test_names_are_counted_before_they_are_decoded(counted, monkeypatch):
    """2 MiB of node names would be half a million strings; a body of kube-scheduler has each node once."""
    async with listening() as (served, connect):
        decoded = []
        monkeypatch.setattr(
            "extender.http.scheduler.wire.decode_args", lambda body: decoded.append(len(body))
        )
        monkeypatch.setattr(
            "extender.http.scheduler.wire.decode_preemption", lambda body: decoded.append(len(body))
        )
        pod = json.dumps(wire_pod(served.stage, "g-0"))
        names = ",".join(['"n0"'] * (VALUES_MIN + 100))
        victims = ",".join(f'"{i}":{{}}' for i in range(VALUES_MIN + 100))
        bodies = {
            "filter": f'{{"Pod":{pod},"NodeNames":[{names}]}}',
            "prioritize": f'{{"Pod":{pod},"Nodes":{{"items":[{names}]}}}}',
            "preempt": f'{{"Pod":{pod},"NodeNameToMetaVictims":{{{victims}}}}}',
        }
        for verb, body in bodies.items():
            peer = await connect()
            status, _, text = await peer.ask(f"/scheduler/{verb}", body.encode())
            assert (status, "values" in text) == (413, True)
        assert decoded == []
    assert counted("body-values") == 3


async def test_whole_nodes_are_accepted_where_the_setting_is_for_them():
    """With nodeCacheCapable: false a body has all that kube-scheduler knows of the nodes."""
    async with listening(max_filter_body_bytes=4 * MIB) as (served, connect):
        labels = {f"label-{i}": "x" for i in range(40_000)}
        node = {"metadata": {"name": "n0", "labels": labels}}
        pod = wire_pod(served.stage, "g-0")
        body = json.dumps({"Pod": pod, "Nodes": {"items": [node]}, "NodeNames": None}).encode()
        peer = await connect()
        status, _, text = await peer.ask("/scheduler/filter", body)
        assert (status, json.loads(text)["Error"]) == (200, "")


async def test_bytes_in_flight_are_limited_over_all_requests(counted):
    """Halves of bodies fill the memory no further; a part is left to kube-scheduler; it is free again afterwards."""
    most = 200_000
    async with listening(max_body_bytes_in_flight=most) as (served, connect):
        half = request("/v1/plan", 90_000) + b" " * 80_000
        first, second = await connect(), await connect()
        await first.send(half)
        await eventually(lambda: METRICS.http_body_bytes_in_flight._value.get() == 80_000)
        await second.send(half)
        status, headers, text = await second.answer()
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "in flight" in text
        pod = wire_pod(served.stage, "g-0")
        args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0"]}
        third = await connect()
        assert (await third.ask("/scheduler/filter", json.dumps(args).encode()))[0] == 200
        await first.close()
        await eventually(lambda: METRICS.http_body_bytes_in_flight._value.get() == 0)
        fourth = await connect()
        await fourth.send(half)
        await fourth.send(b" " * 10_000)
        assert (await fourth.answer())[0] != 503
    assert counted("bytes-in-flight") == 1


async def test_twelve_calls_with_four_million_names_are_not_even_read(counted):
    """The review's 12 x 46 MB held the loop for 5 s: they are refused by their length, and other calls are answered."""
    async with listening() as (served, connect):
        body = b'{"Pod":{},"NodeNames":[' + b",".join([b'"node-name"'] * 400_000) + b"]}"
        peers = [await connect() for _ in range(12)]
        for peer in peers:
            await peer.send(request("/scheduler/filter", 46 * MIB) + body[: 256 * 1024])
        answers = await asyncio.gather(*(peer.answer() for peer in peers))
        assert {status for status, _, _ in answers} == {413}
        args = {"Pod": wire_pod(served.stage, "g-0"), "Nodes": None, "NodeNames": ["n0"]}
        other = await connect()
        assert (await other.ask("/scheduler/filter", json.dumps(args).encode()))[0] == 200
    assert counted("body-size") == 12


# --- connections -----------------------------------------------------------------------------------

HALVES = {
    "nothing": b"",
    "a part of the first line": b"POST /sched",
    "a part of the headers": b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "a part of the body": request("/scheduler/filter", 1000) + b"{",
    "a part of a chunk": b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    "a part of the next request": b"GET /livez HT",
}


@pytest.mark.parametrize("half", HALVES)
async def test_a_request_that_does_not_arrive_is_closed(half, counted):
    """Whatever part of a request comes, the connection is closed after the time for the rest, with 408 if some came."""
    async with listening(header_timeout_s=0.3, body_timeout_s=0.3) as (_, connect):
        peer = await connect()
        if "next" in half:
            await peer.send(request("/livez", 0, "GET"))
            assert (await peer.answer())[0] == 200
        await peer.send(HALVES[half])
        found = await peer.rest()
        assert found.startswith(b"HTTP/1.1 408 ") == (half != "nothing")
    assert counted("header-timeout") + counted("body-timeout") == 1


def test_a_request_on_its_way_when_the_machine_is_stopped_is_answered():
    """The time for its headers has passed when both sides go on, and it comes a moment later."""

    async def story():
        async with listening(header_timeout_s=0.1) as (_, connect):
            peer = await connect()
            await eventually(lambda: METRICS.http_connections._value.get() == 1)
            time.sleep(0.6)
            await asyncio.sleep(0.01)
            await peer.send(request("/livez", 0, "GET"))
            assert (await peer.answer())[0] == 200

    uvloop.run(story())


async def test_one_byte_after_the_other_does_not_keep_a_connection():
    """The time is for all headers together, not from one byte to the next."""
    async with listening(header_timeout_s=0.3) as (_, connect):
        peer = await connect()
        await peer.send(b"GET /livez HTTP/1.1\r\nX: ")
        reading = asyncio.create_task(peer.rest())
        while not reading.done():
            await peer.send(b"x")
            await asyncio.sleep(0.02)
        assert reading.result().startswith(b"HTTP/1.1 408 ")


@pytest.fixture
def many_files():
    """Let this process have the sockets of both sides: a plain user may have 1,024 files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
async def test_five_hundred_half_sent_requests_are_closed_and_others_answered(counted):
    """Headers or bodies that stay away cost their connections only (review, H6)."""
    async with listening(header_timeout_s=0.7, body_timeout_s=0.7) as (served, connect):
        peers = []
        parts = [half for name, half in HALVES.items() if "part" in name and "next" not in name]
        for number in range(500):
            peers.append(await connect())
            await peers[-1].send(parts[number % len(parts)])
        args = {"Pod": wire_pod(served.stage, "g-0"), "Nodes": None, "NodeNames": ["n0"]}
        body = json.dumps(args).encode()
        other = await connect()
        assert (await other.ask("/scheduler/filter", body))[0] == 200
        found = await asyncio.gather(*(peer.rest() for peer in peers))
        assert all(text.startswith(b"HTTP/1.1 408 ") for text in found)
        # a connection with requests is not one that waits for its headers
        assert (await other.ask("/scheduler/filter", body))[0] == 200
    assert counted("header-timeout") + counted("body-timeout") == 500
    assert METRICS.http_connections._value.get() == 0


async def test_a_connection_between_requests_stays_open():
    """kube-scheduler keeps its connections for 90 s; the time for headers begins with their first byte."""
    async with listening(header_timeout_s=0.1) as (_, connect):
        peer = await connect()
        for _ in range(2):
            await peer.send(request("/livez", 0, "GET"))
            assert (await peer.answer())[0] == 200
            await asyncio.sleep(0.2)
        await peer.send(request("/livez", 0, "GET"))
        assert (await peer.answer())[0] == 200


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_connections_per_peer": 3}, "connections-per-peer"), ({"max_connections": 3}, "connections")],
)  # fmt: skip
async def test_connections_are_limited_in_all_and_per_peer(settings, reason, counted):
    """One more gets a 503 and is closed; one that ends leaves its place."""
    async with listening(**settings) as (_, connect):
        peers = [await connect() for _ in range(3)]
        for peer in peers:
            await peer.send(request("/livez", 0, "GET"))
            assert (await peer.answer())[0] == 200
        more = await connect()
        status, headers, text = await more.answer()
        assert (status, headers["Retry-After"], headers["Connection"]) == (503, "1", "close")
        assert "3 connections" in text
        assert await more.rest() == b""
        await peers.pop().close()
        await eventually(lambda: METRICS.http_connections._value.get() == 2)
        peers.append(await connect())
        await peers[-1].send(request("/livez", 0, "GET"))
        assert (await peers[-1].answer())[0] == 200
    assert counted(reason) == 1


async def test_connections_leave_some_of_the_open_files(monkeypatch):
    """The limit of open files of the process is a limit of the connections too."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert ConnectionLimits(Settings())._max == 1024 - 256


async def open_stream(connect, **headers):
    """Return the status of a new stream, and its connection."""
    peer = await connect()
    await peer.send(request("/v1/events?follow", 0, "GET", **headers))
    line = await peer.reader.readline()
    return int(line.split()[1]), peer


async def test_a_user_has_some_streams_from_all_addresses(counted):
    """With authentication: many users behind one proxy have theirs each, and many addresses of one user count together."""
    reviews = FakeAccessReviews()
    ann, bob = (
        {"Authorization": f"Bearer {reviews.add_user(user, AccessRight('list'))}"}
        for user in ("ann", "bob")
    )
    async with listening(reviews=reviews, max_streams_per_peer=2) as (_, connect):
        there = partial(connect, local_addr=("127.0.0.2", 0))
        assert (await open_stream(connect, **ann))[0] == 200
        assert (await open_stream(there, **ann))[0] == 200
        for place in (connect, there):
            assert (await open_stream(place, **ann))[0] == 503
            assert (await open_stream(place, **bob))[0] == 200
    assert (counted("streams-per-user"), counted("streams-per-peer")) == (2, 0)


async def test_the_streams_of_all_are_shared_evenly(counted, monkeypatch):
    """When all are used up, who has few gets the oldest one of the user with the most; who has as many already gets none."""
    monkeypatch.setattr("extender.http.web.request_limits.STREAMS_MAX", 4)
    reviews = FakeAccessReviews()
    ann, bob, eve = (
        {"Authorization": f"Bearer {reviews.add_user(user, AccessRight('list'))}"}
        for user in ("ann", "bob", "eve")
    )
    async with listening(reviews=reviews) as (_, connect):
        (_, oldest), *_ = [await open_stream(connect, **ann) for _ in range(4)]
        assert (await open_stream(connect, **ann))[0] == 503
        assert (await open_stream(connect, **bob))[0] == 200
        await oldest.rest()  # it was closed
        assert (await open_stream(connect, **bob))[0] == 200
        assert (await open_stream(connect, **bob))[0] == 503
        assert (await open_stream(connect, **eve))[0] == 200
    assert (counted("stream-replaced"), counted("streams")) == (3, 2)


async def test_one_peer_has_some_streams_only(counted):
    """The streams of one address leave those of others; a closed one leaves its place."""
    async with listening(max_streams_per_peer=2) as (_, connect):
        streams = [await connect() for _ in range(2)]
        for stream in streams:
            await stream.send(request("/v1/events?follow", 0, "GET"))
            assert b" 200 OK" in await stream.reader.readline()
        more = await connect()
        await more.send(request("/v1/events?follow=true", 0, "GET"))
        status, headers, text = await more.answer()
        assert (status, headers["Retry-After"]) == (503, "1")
        assert json.loads(text)["title"] == "Too many streams"
        await streams.pop().close()
        await more.close()
        await eventually(lambda: METRICS.http_connections._value.get() == 1)
        more = await connect()
        await more.send(request("/v1/events?follow=true", 0, "GET"))
        assert b" 200 OK" in await more.reader.readline()
    assert counted("streams-per-peer") == 1


async def test_malformed_requests_and_usual_calls_leave_few_lines(counted, caplog):
    """What is not HTTP: one line a minute without a traceback, as of bodies that cannot be decoded; of calls none."""
    caplog.set_level("INFO")
    async with listening() as (served, connect):
        caplog.clear()  # a start logs how many files may be open
        for sent in (b"POST /scheduler/filter HTTP/1.1\r\nhost: 127.0.0.1\r\nbad header\r\n\r\n", b"\x16\x03\x01 nonsense\r\n\r\n") * 20:  # fmt: skip
            peer = await connect()
            peer.writer.write(sent)
            assert b" 400 " in await peer.reader.readline()
        peer = await connect()
        call = {"Pod": wire_pod(served.stage, "g-0"), "NodeNames": ["n0"]}
        for body, expected in ((json.dumps(call).encode(), 200), (b"[]", 400)) * 20:
            assert (await peer.ask("/scheduler/filter", body))[0] == expected
    assert counted("malformed") >= 20
    logged = [r for r in caplog.records if r.name.startswith(("extender.http", "aiohttp"))]
    assert {(r.levelname, r.message) for r in logged} <= {
        ("WARNING", "a request is not HTTP"),
        ("WARNING", "undecodable body"),
    }
    assert len(logged) <= 2
    assert not any(r.exc_info for r in logged)


async def test_a_request_without_a_body_waits_while_answers_are_not_taken():
    """Its answer may stay here as well. Calls of kube-scheduler and probes are answered meanwhile."""
    async with listening() as (served, connect):
        most = served.stage.settings.max_body_bytes_in_flight
        in_flight = served.client.app[CONNECTIONS].in_flight

        async def status(path, method="GET"):
            peer = await connect()
            body = (
                json.dumps({"Pod": wire_pod(served.stage, "g-0"), "NodeNames": ["n0"]})
                if method == "POST"
                else ""
            )
            await peer.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())  # fmt: skip
            return (await peer.answer())[0]

        paths = [("/v1/gangs",), ("/metrics",), ("/livez",), ("/scheduler/filter", "POST")]
        usual = [await status(*path) for path in paths]
        assert usual == [200] * 4
        in_flight.hold(most // 2 + 1, reads=True)
        assert [await status(*path) for path in paths] == [503, 503, 200, 200]
        in_flight.hold(-most // 2 - 1, reads=True)
        assert [await status(*path) for path in paths] == usual
