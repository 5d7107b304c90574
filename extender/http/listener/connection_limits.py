"""Connections that wait for a request are closed in time, and their number is limited, in all and per peer.

aiohttp limits the time between requests only. So each connection has a gate, an asyncio protocol in front of that of
aiohttp: it refuses the connection, or closes it when the headers of a request do not arrive in time. The middleware
of `request_limits` calls `begin` and `end` for each request. Usual calls of kube-scheduler are answered by the gate
itself, with `listener_access`; the protocol of aiohttp is made for the first other request, and has the connection from then on.

Note: bytes that arrive while a request is handled are not looked at. A connection with a part of a next request among
them is closed as one without requests is, by `keepalive_timeout_s`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, cast

from aiohttp import web

from extender.http.listener.http2_connection import Http2Connection, StreamTransport
from extender.http.listener.tls_contexts import HTTP2, ClientCertificate, certificate_of
from extender.http.responses.unsent_answers import LATE_S, BytesInFlight, PacedTransport
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

PART_S = 0.05  # so long the rest of a usual call may take; then aiohttp waits for it
LOOK_S = 0.02
FILES_KEPT = 256  # of the file descriptors of the process: database, API server, logs


def _answer(status: str, text: str, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n{more}Connection: close\r\n\r\n{text}"
    ).encode()


# -- requests that are exactly as kube-scheduler sends them ----------------------------------------

BEGIN: Final = b"POST /scheduler/"
HEAD_BYTES_MAX: Final = 4 * 1024
# of a request; a larger one is rare, and aiohttp counts its bytes as they arrive
BYTES_MAX: Final = 48 * 1024
DirectVerb = Literal["filter", "prioritize", "bind"]
VERBS: Final[dict[bytes, DirectVerb]] = {
    b"POST /scheduler/filter HTTP/1.1": "filter",
    b"POST /scheduler/prioritize HTTP/1.1": "prioritize",
    b"POST /scheduler/bind HTTP/1.1": "bind",
}
HEADERS: Final = frozenset(
    (b"host", b"user-agent", b"content-length", b"content-type", b"accept-encoding")
)


class DirectHead(NamedTuple):
    """The first line and the headers of a request."""

    verb: DirectVerb
    host: str
    size: int  # of its body, bytes


class DirectRequest(NamedTuple):
    """A request that has arrived as a whole."""

    head: DirectHead
    body: bytes


def complete_request(received: bytes) -> DirectRequest | Literal["incomplete"] | None:
    """Return the request that some bytes are; None if it is one for aiohttp."""
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        begins = received.startswith(BEGIN) or BEGIN.startswith(received)
        return "incomplete" if begins and len(received) < HEAD_BYTES_MAX else None
    head = direct_head(received[:end])
    if head is None:
        return None
    length = end + 4 + head.size
    if len(received) == length:
        return DirectRequest(head, received[end + 4 :])
    return "incomplete" if len(received) < length <= BYTES_MAX else None


@functools.lru_cache(maxsize=1024)  # one caller sends the same headers again and again
def direct_head(text: bytes) -> DirectHead | None:
    """Return the head of a request if it has only what kube-scheduler sends, each header once."""
    first, *lines = text.split(b"\r\n")
    verb = VERBS.get(first)
    if verb is None or text.count(b"\n") != len(lines) or text.count(b"\r") != len(lines):
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name not in HEADERS or name in headers or b"\0" in value:
            return None
        headers[name] = value.strip(b" \t")
    length, host = headers.get(b"content-length", b""), headers.get(b"host", b"")
    if not (length.isdigit() and len(length) <= len(str(BYTES_MAX)) and host.isascii()):
        return None
    if headers.get(b"content-type") != b"application/json":
        return None
    return DirectHead(verb, host.decode(), int(length))


class DirectResponse(NamedTuple):
    """The bytes of a response."""

    data: bytes
    closes: bool  # the connection is closed after it


# Returns the response, or the task that makes it; None if aiohttp answers the request. The last argument returns whether the
# caller has closed the connection.
DirectAnswer = Callable[
    [DirectRequest, ClientCertificate | None, Callable[[], bool]],
    DirectResponse | asyncio.Task[DirectResponse] | None,
]


# -- connections ------------------------------------------------------------------------------------


class ConnectionLimits:
    """Counts the connections of one listener.

    Args:
        listeners: How many there are; each gets the same part of the open files.
        in_flight: Counts answers that callers do not take; shared by all listeners.
    """

    def __init__(
        self, settings: Settings, listeners: int = 1, in_flight: BytesInFlight | None = None
    ) -> None:
        self.in_flight = in_flight or BytesInFlight()
        self.header_timeout_s = settings.header_timeout_s
        self.keepalive_timeout_s = settings.keepalive_timeout_s
        self.body_timeout_s = settings.body_timeout_s
        self._per_peer_max = settings.max_connections_per_peer
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max = max(1, min(settings.max_connections, (files - FILES_KEPT) // listeners))
        if self._max < settings.max_connections:
            log.warning(
                "fewer connections than the setting are possible: raise the limit of open files",
                extra={"connections": self._max, "open_files": files},
            )
        self._gates: dict[asyncio.BaseTransport, _Gate] = {}
        self._http2: dict[asyncio.BaseTransport, Http2Connection] = {}  # their streams have gates
        self._peers: Counter[str] = Counter()
        # answers usual calls; None: aiohttp answers all
        self.direct: DirectAnswer | None = None
        self.stopping = False

    def gated(self, protocol: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a factory of protocols that lets only some connections through to those of `protocol`."""
        return lambda: _Gate(self, protocol)

    async def stop(self, grace_s: float) -> None:
        """Close the connections that aiohttp does not have; open calls may take `grace_s`."""
        self.stopping = True
        deadline_s = asyncio.get_running_loop().time() + grace_s
        while True:
            connections: list[_Gate | Http2Connection] = [
                *self._gates.values(),
                *self._http2.values(),
            ]
            calling = [
                connection for connection in connections if connection.close_unless_calling()
            ]
            if not calling or asyncio.get_running_loop().time() >= deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        for connection in calling:
            connection.close()

    def admit(self, connection: _Gate | Http2Connection, transport: asyncio.Transport) -> str:
        """Count a new connection and return an empty string, or return why it is refused."""
        peer = _peer(transport)
        if len(self._gates) + len(self._http2) >= self._max:
            METRICS.http_requests_refused.labels("connections").inc()
            return f"{self._max} connections are open already; try again"
        if self._peers[peer] >= self._per_peer_max:
            METRICS.http_requests_refused.labels("connections-per-peer").inc()
            return (
                f"{self._per_peer_max} connections of {peer} are open already; close some of them"
            )
        if isinstance(connection, Http2Connection):
            self._http2[transport] = connection
        else:
            self._gates[transport] = connection
        self._peers[peer] += 1
        METRICS.http_connections.inc()
        return ""

    def release(self, transport: asyncio.Transport, peer: str) -> None:
        """Count a connection that was admitted no more."""
        if self._gates.pop(transport, None) is None:
            del self._http2[transport]
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        METRICS.http_connections.dec()

    def begin(self, transport: asyncio.BaseTransport | None, *, reads: bool) -> None:
        """Record that the headers of a request have arrived; `reads`: it is no call of kube-scheduler."""
        if transport is not None and (gate := self._gates.get(transport)) is not None:
            gate.begin(reads=reads)

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that the handler of a request has returned."""
        if transport is not None and (gate := self._gates.get(transport)) is not None:
            gate.end()

    def certificate(self, transport: asyncio.BaseTransport | None) -> ClientCertificate | None:
        """Return the client certificate of a connection; None: it has none."""
        gate = self._gates.get(transport) if transport is not None else None
        return gate.certificate if gate is not None else None

    def close_late(self, transport: asyncio.BaseTransport | None) -> None:
        """Answer 408 and close the connection of a request whose body does not arrive in time."""
        if transport is not None and (gate := self._gates.get(transport)) is not None:
            gate.time_out(f"the body is not complete after {self.body_timeout_s:g} s\n")


def close_after(response: web.StreamResponse) -> None:
    """Close the connection after a response that is being prepared."""
    response.force_close()
    # aiohttp has made the headers by now; without this one the caller would use the closed connection again
    response.headers["Connection"] = "close"


CONNECTIONS = web.AppKey("connections", ConnectionLimits)


class _Gate(asyncio.Protocol):
    """One connection."""

    def __init__(self, limits: ConnectionLimits, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._limits = limits
        self._make = protocol
        self._inner: asyncio.Protocol | None = None  # of aiohttp; None: not needed yet, or refused
        self._admitted = False
        self._transport: PacedTransport | StreamTransport | None = None
        self._paced: PacedTransport | None = None  # the same, of a connection of HTTP/1.1
        self._peer = ""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        # until the headers of a request have arrived, or the next request has begun
        self._deadline_s: float | None = None
        self._in_request = False
        self._part = False  # some bytes of its headers have arrived
        self._used = False  # a call was answered
        self._received = b""  # of a call that is not complete, or that has to wait
        self._rest_timer: asyncio.TimerHandle | None = None
        self._writing_paused = False
        self.certificate: ClientCertificate | None = None

    # -- protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = cast(asyncio.Transport, transport)
        if _speaks_http2(real):  # each of its streams has a gate
            protocol = Http2Connection(self._limits, self._limits.gated(self._make))
            real.set_protocol(protocol)
            protocol.connection_made(transport)
            return
        if isinstance(real, StreamTransport):
            self._transport = real
        else:
            self._paced = PacedTransport(real, self._limits.in_flight, self._hold)
            self._transport = self._paced
            if self._writing_paused:  # by the end of a TLS 1.2 handshake, which is sent now
                self._paced.pause()
        refused = self._limits.admit(self, self._transport)
        if refused:
            self._transport.write(
                _answer("503 Service Unavailable", f"{refused}\n", "Retry-After: 1\r\n")
            )
            self._transport.close()
            return
        self._admitted = True
        self._peer = _peer(self._transport)
        self.certificate = certificate_of(transport)
        self._wait(self._limits.header_timeout_s)
        if self._limits.direct is None:
            self._hand_over()

    def data_received(self, data: bytes) -> None:
        if not self._admitted:
            return
        if self._inner is None:
            self._receive(data)
            return
        if not self._in_request and not self._part:
            self._part = True
            self._wait(self._limits.header_timeout_s)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._paced is not None:
            self._paced.pause()
        else:
            self._hold(holds=True)

    def resume_writing(self) -> None:
        if self._paced is not None:
            self._paced.resume()
        else:
            self._hold(holds=False)

    def _hold(self, holds: bool) -> None:  # noqa: FBT001 -- as `PacedTransport` calls it
        """Let the one who writes wait while the caller does not take what was written."""
        self._writing_paused = holds
        if self._inner is None:
            if not holds:
                self._continue()
        elif holds:
            self._inner.pause_writing()
        else:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline_s = None
        if self._timer is not None:
            self._timer.cancel()
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        if self._paced is not None:
            self._paced.lose()
        if self._admitted and self._transport is not None:
            self._limits.release(self._transport, self._peer)
        if self._inner is not None:
            self._inner.connection_lost(exc)

    # -- usual calls ----------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        """Answer a usual call, wait for the rest of it, or hand the connection over to aiohttp."""
        self._received = self._received + data if self._received else data
        if self._in_request or self._writing_paused:
            if len(self._received) > BYTES_MAX and self._transport is not None:
                self._transport.pause_reading()
            return
        direct_request = complete_request(self._received)
        if direct_request == "incomplete":
            self._wait_for_rest()
            return
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        direct, transport = self._limits.direct, self._transport
        assert transport is not None
        begun = None
        if direct_request is not None and direct is not None and not self._limits.stopping:
            begun = direct(direct_request, self.certificate, transport.is_closing)
        if begun is None:
            self._hand_over()
            return
        self._received = b""
        if isinstance(begun, DirectResponse):
            self._respond(begun)
            return
        self.begin(reads=False)
        begun.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[DirectResponse]) -> None:
        self.end()
        if self._transport is None or self._transport.is_closing():
            return
        if task.cancelled():
            self._transport.close()
            return
        self._respond(task.result())
        self._continue()

    def _respond(self, response: DirectResponse) -> None:
        assert self._transport is not None
        self._part, self._used = False, True
        self._transport.unsent.reads = False
        self._transport.write(response.data)
        if response.closes or self._limits.stopping:
            self._transport.close()
            return
        self._wait(self._limits.keepalive_timeout_s)

    def _continue(self) -> None:
        """Look at what has arrived in the meantime."""
        if self._received and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._receive(b"")

    def _wait_for_rest(self) -> None:
        if not self._part:
            self._part = True
            self._wait(self._limits.header_timeout_s)
        if self._rest_timer is None:
            self._rest_timer = self._loop.call_later(PART_S, self._hand_over)

    def _hand_over(self) -> None:
        """Let aiohttp have the connection, and what has arrived on it."""
        self._rest_timer = None
        if self._transport is None or self._transport.is_closing():
            return
        received, self._received = self._received, b""
        self._inner = self._make()
        self._inner.connection_made(self._transport)
        if self._writing_paused:
            self._inner.pause_writing()
        if received:
            self.data_received(received)

    def close_unless_calling(self) -> bool:
        """Close a connection without an open call, or return true; those of aiohttp are left to it."""
        if self._inner is not None:
            return False
        if self._in_request:
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # -- requests -------------------------------------------------------------------------------

    def begin(self, *, reads: bool) -> None:
        assert self._transport is not None
        self._transport.unsent.reads = reads
        self._in_request, self._part = True, False
        self._deadline_s = None

    def end(self) -> None:
        self._in_request = False

    def time_out(self, text: str) -> None:
        assert self._transport is not None
        self._transport.write(_answer("408 Request Timeout", text))
        self._transport.close()

    # -- time -----------------------------------------------------------------------------------

    def _wait(self, within_s: float) -> None:
        """Set the deadline of the headers, or of the next request; one timer serves them, as long as they become later."""
        self._deadline_s = deadline_s = self._loop.time() + within_s
        if self._timer is not None:
            if self._timer_s <= deadline_s:
                return
            self._timer.cancel()
        self._start_timer(deadline_s)

    def _start_timer(self, at_s: float) -> None:
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline_s is None:
            return
        now_s, due_s = self._loop.time(), self._timer_s
        if now_s - due_s > LATE_S:
            self._deadline_s = max(self._deadline_s, now_s + LATE_S)
        if now_s < self._deadline_s:
            self._start_timer(self._deadline_s)
            return
        if self._used and not self._part:
            self.close()  # a kept connection without a next request
            return
        METRICS.http_requests_refused.labels("header-timeout").inc()
        if self._part:
            self.time_out(
                f"the headers are not complete after {self._limits.header_timeout_s:g} s\n"
            )
        else:
            self.close()  # a connection that was opened and not used


def _speaks_http2(transport: asyncio.Transport) -> bool:
    """Return whether the handshake has chosen HTTP/2; never for a stream of it."""
    if isinstance(transport, StreamTransport):
        return False
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return connection is not None and connection.selected_alpn_protocol() == HTTP2


def _peer(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return name[0] if isinstance(name, tuple) else ""
