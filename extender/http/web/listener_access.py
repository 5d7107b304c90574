"""Who may use a listener: decided for each request before its body is read.

With client certificates, by the names in the certificate. Without TLS no caller is known, but a web page that is open in
a browser on the same machine can be kept away: its requests have the header Origin, or the name of its own server in
Host (DNS rebinding), or a Content-Type that a browser sends without asking first.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from extender.http.listener.connection_limits import (
    ConnectionLimits,
    DirectRequest,
    DirectResponse,
    close_after,
)
from extender.http.listener.tls_contexts import ClientCertificate, TlsContexts
from extender.http.scheduler.leader_proxy import FROM_REPLICA
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.scheduler.wire import VerbAnswer, VerbCall, text_answer
from extender.http.web.request_limits import PROBES, RequestLimits, RequestRefused
from extender.listener_settings import SHOWN_MAX, Listener, foreign_host, foreign_origin, host_name
from extender.settings import LOOPBACK, Settings

log = logging.getLogger(__name__)

JSON = "application/json"
NAMES_LOGGED_MAX = 64
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 -- compared, not listened on

# on a request whose connection is closed after the response
LAST_CALL = web.RequestKey("last-call", bool)


def callers_of(
    listener: Listener, settings: Settings, connections: ConnectionLimits, tls: TlsContexts | None
) -> PlainCallers | CertifiedCallers | None:
    """Return what checks the callers of a listener; None: it has TLS and asks for no certificate, so all are accepted."""
    if tls is None:
        return PlainCallers(listener, settings)
    return CertifiedCallers(settings, connections, tls) if listener.asks_for_certificates else None


async def close_outdated(request: web.Request, response: web.StreamResponse) -> None:
    """Close a connection after its response when a new handshake is due; the caller loses no call by that."""
    if LAST_CALL in request:
        close_after(response)


class CertifiedCallers:
    """Callers of a listener that asks for client certificates.

    Args:
        connections: Has the certificate of each connection.
    """

    def __init__(self, settings: Settings, connections: ConnectionLimits, tls: TlsContexts) -> None:
        self._allowed = frozenset(settings.allowed_client_names)
        self._replicas = frozenset(settings.replica_client_names)
        self._connections = connections
        self._tls = tls
        self._logged: set[tuple[str, ...]] = set()

    def check(self, request: web.Request) -> None:
        """Accept a request of an allowed name, and note on it whether a replica sent it.

        Raises:
            RequestRefused: The certificate has another name, has ended, or is of a CA that is not trusted any more.
        """
        if request.path in PROBES:
            return
        certificate = self._connections.certificate(request.transport)
        if certificate is None:
            raise _refused("client-certificate", "this listener needs a client certificate")
        now_s = self._tls.now_s()
        if certificate.ends_s < now_s:
            raise _refused("client-certificate", f"the certificate of {_shown(certificate.names)} has ended; renew it")  # fmt: skip
        if not self._tls.trusts(certificate):
            text = f"the CA of the certificate of {_shown(certificate.names)} is not in --client-ca-file any more"
            raise _refused("client-certificate", text)
        if self._allowed.isdisjoint(certificate.names):
            self._log(certificate.names)
            text = (
                f"the client certificate is of {_shown(certificate.names)}, and --allowed-client-names has "
                f"{', '.join(sorted(self._allowed))}"
            )
            raise _refused("client-name", text)
        if certificate.is_due(now_s):
            request[LAST_CALL] = True
        request[FROM_REPLICA] = not self._replicas.isdisjoint(certificate.names)

    def closes_after(self, certificate: ClientCertificate | None, _host: str) -> bool | None:
        """Return for a caller whom `check` accepts whether the connection is closed after the response; None: `check` decides."""
        if certificate is None:
            return None
        now_s = self._tls.now_s()
        accepted = (
            certificate.ends_s >= now_s
            and self._tls.trusts(certificate)
            and not self._allowed.isdisjoint(certificate.names)
            and self._replicas.isdisjoint(certificate.names)
        )
        return certificate.is_due(now_s) if accepted else None

    def _log(self, names: tuple[str, ...]) -> None:
        if names not in self._logged and len(self._logged) < NAMES_LOGGED_MAX:
            self._logged.add(names)
            log.warning(
                "a client certificate with a name that is not allowed", extra={"names": names}
            )


class PlainCallers:
    """Callers of a listener without TLS.

    Args:
        settings: Under which names it is called.
    """

    def __init__(self, listener: Listener, settings: Settings) -> None:
        own = (listener.host, urlsplit(settings.advertise_url).hostname or "")
        names = (*LOOPBACK, *own, *settings.allowed_hosts)
        self._hosts = frozenset(name.lower().strip("[]") for name in names) - {*ANY_ADDRESS}
        self._any_address = listener.host in ANY_ADDRESS

    def check(self, request: web.Request) -> None:
        """Accept a request that is addressed to this service, of no foreign page, with JSON if it has a body.

        Raises:
            RequestRefused: It is another one.
        """
        headers = request.headers
        host = headers.get(hdrs.HOST, "")
        foreign = foreign_host(host, self._hosts)
        if (foreign and not self._is_called(host, request)) or request.raw_path[:1] != "/":
            text = f"{request.raw_path[:SHOWN_MAX]!r} is not a path of this service"
            raise _refused("host", f"{foreign}, or set --allowed-hosts" if foreign else text)
        if text := foreign_origin(headers.get(hdrs.ORIGIN), host):
            raise _refused("origin", text)
        if request.body_exists and request.content_type != JSON:
            text = f"Content-Type {request.content_type[:SHOWN_MAX]!r}: the body of a request must be {JSON}"
            raise RequestRefused("content-type", 415, "Not JSON", text)

    def closes_after(self, _: ClientCertificate | None, host: str) -> bool | None:
        """Return false for a request with this header Host, no Origin and JSON that `check` accepts; None: `check` decides."""
        return False if host_name(host) in self._hosts else None

    def _is_called(self, host: str, request: web.Request) -> bool:
        """Return whether a header Host has the address that was called, of a service on all addresses.

        An address as Host cannot be that of a page elsewhere.
        """
        if not self._any_address or request.transport is None:
            return False
        called = request.transport.get_extra_info("sockname")
        return isinstance(called, tuple) and _same_address(host_name(host), called[0])


def _same_address(address: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(address) == _unmapped(ipaddress.ip_address(other))
    except ValueError:
        return False


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address of one that a socket for both shows as ::ffff:10.0.0.1."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name[:SHOWN_MAX]) for name in names[:5]) or "no name (CN or DNS name)"


def _refused(reason: str, text: str) -> RequestRefused:
    return RequestRefused(reason, 403, "Forbidden", text)


REASONS: Final = {200: "OK", 400: "Bad Request", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class DirectCalls:
    """Answers the usual calls of kube-scheduler without aiohttp: bytes of a request in, bytes of a response out.

    aiohttp takes 0.2 ms of CPU for a call, and as much again for each connection, of which kube-scheduler opens one (over
    HTTP/2: a stream) for almost every bind call (K04). All that is not exactly as Go writes it, or fails a check, is left
    to aiohttp and its middlewares, which alone refuse.

    Args:
        sends_away: Returns whether connections are closed after their responses.
    """

    def __init__(
        self,
        verbs: VerbHandlers,
        limits: RequestLimits,
        callers: PlainCallers | CertifiedCallers,
        sends_away: Callable[[], bool],
    ) -> None:
        self._verbs = verbs
        self._limits = limits
        self._callers = callers
        self._sends_away = sends_away

    def begin(
        self,
        request: DirectRequest,
        certificate: ClientCertificate | None,
        closed: Callable[[], bool],
    ) -> DirectResponse | asyncio.Task[DirectResponse] | None:
        """Return the response, the task that makes it, or None; see `DirectAnswer`."""
        head, body = request
        closes = self._callers.closes_after(certificate, head.host)
        if closes is None or self._sends_away() or not self._verbs.may_answer_at_once():
            return None
        if not self._limits.accepts(f"/scheduler/{head.verb}", body):
            return None
        if head.verb == "bind":
            call = VerbCall("bind", body, closed)
            return asyncio.create_task(self._finish(call, closes=closes))
        try:
            answer = self._verbs.answer_at_once(head.verb, body)
        except Exception:  # noqa: BLE001 -- logged, and answered as aiohttp does
            return _failed(head.verb)
        return _response(answer, closes=closes)

    async def _finish(self, call: VerbCall, *, closes: bool) -> DirectResponse:
        try:
            with self._limits.in_flight(len(call.body)):
                answer = await self._verbs.answer(call)
        except Exception:  # noqa: BLE001 -- logged, and answered as aiohttp does
            return _failed(call.verb)
        return _response(answer, closes=closes or self._sends_away())


def _failed(verb: str) -> DirectResponse:
    log.error("a call failed unexpectedly", extra={"verb": verb}, exc_info=True)  # noqa: LOG014 -- called in a handler
    return _response(text_answer(500, "500 Internal Server Error"), closes=True)


def _response(answer: VerbAnswer, *, closes: bool) -> DirectResponse:
    """Return the bytes of an answer, with the headers that aiohttp sends."""
    more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    if closes:
        more += "Connection: close\r\n"
    head = (
        f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Unknown')}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n{more}\r\n"
    )
    return DirectResponse(head.encode() + answer.body, closes)
