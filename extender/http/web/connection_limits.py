"""Connections that wait for a request are closed in time, and their number is limited, in all and per peer.

aiohttp limits the time between requests only. So each connection has a gate, an asyncio protocol in front of that of
aiohttp: it refuses the connection, or closes it when the headers of a request do not arrive in time. The middleware
of `request_limits` calls `begin` and `end` for each request.

Note: bytes that arrive while a request is handled are not looked at. A connection with a part of a next request among
them is closed as one without requests is, by `keepalive_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Callable
from typing import cast

from aiohttp import web

from extender.http.tls.client_certificate import ClientCertificate, certificate_of
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

FILES_KEPT = 256  # of the file descriptors of the process: database, API server, logs


def _answer(status: str, text: str, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n{more}Connection: close\r\n\r\n{text}"
    ).encode()


class ConnectionLimits:
    """Counts the connections of one listener.

    Args:
        settings: Numbers and times.
        listeners: How many there are; each gets the same part of the open files.
    """

    def __init__(self, settings: Settings, listeners: int = 1) -> None:
        self.header_timeout_s = settings.header_timeout_s
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
        self._peers: Counter[str] = Counter()

    def gated(self, protocol: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a factory of protocols that lets only some connections through to those of `protocol`."""
        return lambda: _Gate(self, protocol)

    def admit(self, gate: _Gate, transport: asyncio.Transport) -> str:
        """Count a new connection and return an empty string, or return why it is refused."""
        peer = _peer(transport)
        if len(self._gates) >= self._max:
            METRICS.http_requests_refused.labels("connections").inc()
            return f"{self._max} connections are open already; try again"
        if self._peers[peer] >= self._per_peer_max:
            METRICS.http_requests_refused.labels("connections-per-peer").inc()
            return (
                f"{self._per_peer_max} connections of {peer} are open already; close some of them"
            )
        self._gates[transport] = gate
        self._peers[peer] += 1
        METRICS.http_connections.inc()
        return ""

    def release(self, transport: asyncio.Transport, peer: str) -> None:
        """Count a connection that was admitted no more."""
        del self._gates[transport]
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        METRICS.http_connections.dec()

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that the headers of a request have arrived."""
        if transport is not None and (gate := self._gates.get(transport)) is not None:
            gate.begin()

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
        self._inner: asyncio.Protocol | None = None  # None: refused
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s: float | None = None  # until the headers of a request have arrived
        self._in_request = False
        self._part = False  # some bytes of its headers have arrived
        self.certificate: ClientCertificate | None = None

    # -- protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        refused = self._limits.admit(self, self._transport)
        if refused:
            self._transport.write(
                _answer("503 Service Unavailable", f"{refused}\n", "Retry-After: 1\r\n")
            )
            self._transport.close()
            return
        self._peer = _peer(self._transport)
        self.certificate = certificate_of(transport)
        self._wait()
        self._inner = self._make()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if not self._in_request and not self._part:
            self._part = True
            self._wait()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline_s = None
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None and self._transport is not None:
            self._limits.release(self._transport, self._peer)
            self._inner.connection_lost(exc)

    # -- requests -------------------------------------------------------------------------------

    def begin(self) -> None:
        self._in_request, self._part = True, False
        self._deadline_s = None

    def end(self) -> None:
        self._in_request = False

    def time_out(self, text: str) -> None:
        assert self._transport is not None
        self._transport.write(_answer("408 Request Timeout", text))
        self._transport.close()

    # -- time -----------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Set the deadline of the headers; one timer serves all deadlines, because each is later than the last."""
        self._deadline_s = self._loop.time() + self._limits.header_timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline_s is None:
            return
        if self._loop.time() < self._deadline_s:
            self._timer = self._loop.call_at(self._deadline_s, self._look)
            return
        METRICS.http_requests_refused.labels("header-timeout").inc()
        if self._part:
            self.time_out(
                f"the headers are not complete after {self._limits.header_timeout_s:g} s\n"
            )
        elif self._transport is not None:
            self._transport.close()  # a connection that was opened and not used


def _peer(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return name[0] if isinstance(name, tuple) else ""
