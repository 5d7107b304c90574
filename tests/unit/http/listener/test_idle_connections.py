"""Connections that nothing is sent on are closed in time, with bytes that pass in memory and time that is virtual."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from hyperframe.frame import PingFrame

from extender.http.listener.connection_limits import ConnectionLimits, DirectResponse
from extender.http.listener.http2_connection import LINGER_S
from extender.settings import Settings
from tests.support.service.http2_client import Http2Client

FILTER = "/scheduler/filter"
HEADER_S, KEEPALIVE_S = 10.0, 60.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CALL = (
    b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


class Handshake:
    """What a TLS connection has chosen."""

    def __init__(self, version):
        self.version = version

    def selected_alpn_protocol(self):
        return self.version


class Wire(asyncio.Transport):
    """A connection to the listener, and its other end: `reader`, `write`, `close`, `wait_closed`."""

    def __init__(self, limits, version):
        super().__init__({"ssl_object": Handshake(version), "peername": ("10.0.0.1", 5)})
        self._loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader()
        self.ended_s = None  # when the listener has closed it
        self._protocol = limits.gated(self._no_other_protocol)()
        self._protocol.connection_made(self)

    def _no_other_protocol(self):
        raise AssertionError("aiohttp is not needed")

    def set_protocol(self, protocol):
        self._protocol = protocol

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def is_closing(self):
        return self.ended_s is not None

    def write(self, data):
        assert self.ended_s is None
        self.reader.feed_data(bytes(data))

    def close(self):
        if self.ended_s is None:
            self.ended_s = self._loop.time()
            self.reader.feed_eof()
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def receive(self, data):
        """Let bytes of the caller arrive."""
        if data and self.ended_s is None:
            self._loop.call_soon(self._protocol.data_received, data)


class CallersEnd:
    """The writer of the caller."""

    def __init__(self, wire):
        self.write, self.close = wire.receive, wire.close

    async def wait_closed(self):
        pass


@pytest.fixture
async def limits():
    made = ConnectionLimits(Settings(header_timeout_s=HEADER_S, keepalive_timeout_s=KEEPALIVE_S))
    made.direct = lambda *_: DirectResponse(ANSWER, False)
    return made


@asynccontextmanager
async def http2(limits):
    """Open a connection of HTTP/2; yields it and its client."""
    wire = Wire(limits, "h2")
    client = Http2Client(wire.reader, CallersEnd(wire))
    try:
        await client.begin()
        yield wire, client
    finally:
        await client.close()


async def closed(client):
    """Wait until the listener has closed the connection, for longer than any of its times."""
    await asyncio.wait_for(client.ended.wait(), 2 * KEEPALIVE_S)


def about(seconds):
    return pytest.approx(seconds, abs=0.1)


async def test_an_unused_and_an_idle_connection_are_closed(limits):
    """One that sends no request after `header_timeout_s`, one between requests after `keepalive_timeout_s`, with GOAWAY."""
    loop = asyncio.get_running_loop()
    async with http2(limits) as (unused_wire, unused), http2(limits) as (idle_wire, idle):
        assert (await idle.ask(FILTER, {})).status == 200
        await closed(unused)
        assert unused.going_away.is_set()
        assert unused_wire.ended_s == about(HEADER_S + LINGER_S)
        await asyncio.sleep(KEEPALIVE_S / 2)
        assert (await idle.ask(FILTER, {})).status == 200
        used_s = loop.time()
        await closed(idle)
        assert idle.going_away.is_set()
        assert idle_wire.ended_s == about(used_s + KEEPALIVE_S + LINGER_S)


async def test_a_frame_in_two_pieces_does_not_end_an_idle_connection(limits):
    """Its rest comes in time; then the connection is idle as before. A frame without its rest ends it."""
    loop = asyncio.get_running_loop()
    ping = PingFrame(stream_id=0, opaque_data=b"12345678").serialize()
    async with http2(limits) as (wire, caller):
        assert (await caller.ask(FILTER, {})).status == 200
        wire.receive(ping[:5])
        await asyncio.sleep(HEADER_S / 2)
        wire.receive(ping[5:])
        await asyncio.sleep(2 * HEADER_S)
        assert not caller.going_away.is_set()
        assert (await caller.ask(FILTER, {})).status == 200
        wire.receive(ping[:5])
        began_s = loop.time()
        await closed(caller)
        assert wire.ended_s == about(began_s + HEADER_S + LINGER_S)


async def test_a_frame_in_two_pieces_does_not_prolong_an_idle_connection(limits):
    """The time of an idle connection goes on after it."""
    loop = asyncio.get_running_loop()
    ping = PingFrame(stream_id=0, opaque_data=b"12345678").serialize()
    async with http2(limits) as (wire, caller):
        assert (await caller.ask(FILTER, {})).status == 200
        used_s = loop.time()
        await asyncio.sleep(KEEPALIVE_S - HEADER_S)
        wire.receive(ping[:5])
        await asyncio.sleep(HEADER_S / 2)
        wire.receive(ping[5:])
        await closed(caller)
        assert wire.ended_s == about(used_s + KEEPALIVE_S + LINGER_S)


async def test_a_call_that_crosses_the_goaway_of_an_idle_connection_is_answered(limits):
    """kube-scheduler would not send it again: no frame shows that it was not handled."""
    async with http2(limits) as (_, caller):
        assert (await caller.ask(FILTER, {})).status == 200
        await asyncio.wait_for(caller.going_away.wait(), 2 * KEEPALIVE_S)
        assert (await caller.ask(FILTER, {})).status == 200
        await closed(caller)


async def test_a_kept_connection_of_http_1_1_is_closed_after_its_time(limits):
    """Without a next call, and nothing is sent in between; the time for headers does not end it."""
    loop = asyncio.get_running_loop()
    wire = Wire(limits, "http/1.1")
    for _ in range(2):
        wire.receive(CALL)
        assert await wire.reader.readexactly(len(ANSWER)) == ANSWER
        used_s = loop.time()
        await asyncio.sleep(2 * HEADER_S)
    assert await asyncio.wait_for(wire.reader.read(), 2 * KEEPALIVE_S) == b""
    assert wire.ended_s == about(used_s + KEEPALIVE_S)
