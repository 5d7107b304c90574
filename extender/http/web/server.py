"""The aiohttp applications and their listeners, and the document of all operations under /v1.

Idle connections are kept longer than the 90 s for which Go keeps them: if the server closes first, a request can
fail with EOF, which kube-scheduler reports as a SchedulerError on a pod (K03).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Protocol, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from extender.core.model.errors import Forbidden, NotFound
from extender.http.access.review_cache import ReviewCache
from extender.http.listener.connection_limits import CONNECTIONS, ConnectionLimits
from extender.http.listener.tls_contexts import TlsContexts
from extender.http.responses.json_responses import Handler, not_modified, problems
from extender.http.responses.unsent_answers import BytesInFlight
from extender.http.scheduler.leader_proxy import FROM_REPLICA
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.v1 import (
    event_api,
    explain_api,
    gang_api,
    history_api,
    plan_api,
    state_api,
    status_api,
)
from extender.http.v1.openapi import Operation, document
from extender.http.web import health
from extender.http.web.access_middleware import AccessControl
from extender.http.web.health import Probes
from extender.http.web.listener_access import DirectCalls, callers_of, close_outdated
from extender.http.web.request_limits import ClusterSize, RequestLimits
from extender.listener_settings import Listener, http_url, listeners
from extender.ports.access_ports import AccessReviews
from extender.settings import Settings
from extender.telemetry import METRICS, LimitedLines

_MODULES = (gang_api, history_api, event_api, explain_api, plan_api, state_api, health, status_api)
OPERATIONS = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Operation)
)


@functools.cache
def _openapi() -> bytes:
    return msgspec.json.encode(document(OPERATIONS))


class OpenApiRoute:
    """Handler of /v1/openapi.json."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/openapi.json", self.document)]

    async def document(self, _: web.Request) -> web.Response:
        """Return the OpenAPI document."""
        return web.Response(body=_openapi(), content_type="application/json")


log = logging.getLogger(__name__)

TEXT_MAX = 200  # characters of an error about a request that is not HTTP; it quotes the request
KEEPALIVE_S = 120.0  # of the query process, whose only client is the service
LINGER_S = 1.0  # the rest of a refused body is read and dropped for so long, so that the client sees the response


class Routed(Protocol):
    """Handlers with routes."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""


class ApplicationParts(msgspec.Struct, frozen=True):
    """The handlers."""

    verbs: VerbHandlers
    probes: Probes
    questions: tuple[Routed, ...]  # everything under /v1
    end_streams: Callable[[], None]  # called when the server begins to stop
    cluster_size: Callable[[], ClusterSize]  # for the limits of bodies
    reviews: AccessReviews | None = None  # who may read; None: every client
    namespaces: Callable[[], Iterable[str]] = tuple  # those that have something to show
    replica_routes: Iterable[web.RouteDef] = ()  # what a leader answers to its followers


class Place(msgspec.Struct, frozen=True):
    """Where an application listens."""

    listener: Listener
    context: ssl.SSLContext | None  # None: without TLS


PLACE = web.AppKey("place", Place)


def applications(
    parts: ApplicationParts, settings: Settings, tls: TlsContexts | None = None
) -> tuple[web.Application, ...]:
    """Return one application for each listener, that of the verbs first."""
    in_flight = BytesInFlight()
    limits = RequestLimits(settings, parts.cluster_size, in_flight)
    all_listeners = listeners(settings)
    return tuple(
        _application(
            parts,
            settings,
            listener,
            limits,
            tls,
            ConnectionLimits(settings, len(all_listeners), in_flight),
        )
        for listener in all_listeners
    )


def _application(
    parts: ApplicationParts, settings: Settings, listener: Listener, limits: RequestLimits, tls: TlsContexts | None, connections: ConnectionLimits
) -> web.Application:  # fmt: skip
    callers = callers_of(listener, settings, connections, tls)
    checks: list[Middleware] = []
    inner: list[Middleware] = []
    if parts.reviews is not None:
        cache = ReviewCache(parts.reviews, time.monotonic)
        access = AccessControl(cache, parts.namespaces, connections)
        checks, inner = [access.middleware()], [access.after_body()]
    app = web.Application(
        middlewares=[
            problems,
            *checks,
            limits.middleware(connections, callers.check if callers else None),
            *inner,
        ]
    )
    app[CONNECTIONS] = connections
    context = None
    if tls is not None:
        context = tls.verbs if listener.asks_for_certificates else tls.api
    app[PLACE] = Place(listener, context)
    with_reasons = listener.shows_reasons and parts.reviews is None
    app.add_routes(parts.probes.routes(with_reasons=with_reasons))
    if listener.serves != "api":
        assert callers is not None, "a listener of verbs checks its callers"
        app.add_routes(parts.verbs.routes())
        for route in parts.replica_routes:
            app.router.add_route(route.method, route.path, _for_replicas(route.handler))
        connections.direct = DirectCalls(
            parts.verbs, limits, callers, parts.probes.sends_away
        ).begin

        async def end_calls(_: web.Application) -> None:
            await connections.stop(settings.shutdown_grace_s)

        app.on_shutdown.append(end_calls)
    if listener.serves != "verbs":
        for part in (*parts.questions, OpenApiRoute(), StaticPages()):
            app.add_routes(part.routes())
        app.add_routes(parts.probes.api_routes())

        async def end_streams(_: web.Application) -> None:
            parts.end_streams()

        app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(parts.probes.send_away)
    if listener.asks_for_certificates:
        app.on_response_prepare.append(close_outdated)
    return app


def _for_replicas(handler: Handler) -> Handler:
    """Return a handler that answers no client certificate but that of a replica."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not request.get(FROM_REPLICA, True):
            raise Forbidden(
                f"{request.path}: only replicas ask here, and the client certificate is of none of --replica-client-names; "
                "ask under /v1"
            )
        return await handler(request)

    return handle


class _RequestLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs about requests: of one that is not HTTP, one line without a traceback, at most once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self._malformed = LimitedLines(log, "a request is not HTTP")

    def exception(
        self,
        msg: object,
        *args: object,
        exc_info: Any = True,  # noqa: ANN401 -- as in logging
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Log an exception that a request has led to."""
        # the caller has gone in the middle of its request
        if isinstance(exc_info, ConnectionError):
            self.debug(msg, *args)
            return
        if isinstance(exc_info, HttpProcessingError):
            METRICS.http_requests_refused.labels("malformed").inc()
            peer = str(args[0]) if args else ""
            text = " ".join(exc_info.message.split())[:TEXT_MAX]
            self._malformed.warn(peer, peer=peer, error=text)
            return
        super().exception(msg, *args, exc_info=exc_info, **more)


class _GatedRunner(web.AppRunner):
    """A runner whose sites accept connections through the gates of `ConnectionLimits`."""

    @property
    def server(self) -> Any:  # noqa: ANN401 -- sites use it as a factory of protocols and nothing else
        """Return the factory of protocols of the sites."""
        server = super().server
        return None if server is None else self.app[CONNECTIONS].gated(server)


class _Site(web.BaseSite):
    """An address to listen on; unlike `web.TCPSite` it also limits the time for a TLS handshake."""

    def __init__(self, runner: web.AppRunner, place: Place, handshake_timeout_s: float) -> None:
        super().__init__(runner, ssl_context=place.context, backlog=4096)
        self._place = place
        self._handshake_timeout_s = handshake_timeout_s

    @property
    def name(self) -> str:
        """Return the URL."""
        listener = self._place.listener
        return http_url(listener.host, listener.port, tls=listener.tls)

    async def start(self) -> None:
        """Listen."""
        await super().start()
        factory = self._runner.server
        assert factory is not None
        self._server = await asyncio.get_running_loop().create_server(
            cast(Callable[[], asyncio.Protocol], factory),
            self._place.listener.host,
            self._place.listener.port,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._handshake_timeout_s if self._ssl_context else None,
            backlog=self._backlog,
            reuse_address=True,
        )


async def listen(app: web.Application, settings: Settings) -> web.AppRunner:
    """Listen on the address of an application and return the runner.

    Raises:
        OSError: The port is in use, or opening it is not permitted; `filename` is the address.
    """
    runner = _GatedRunner(
        app,
        access_log=None,
        logger=_RequestLog(),
        auto_decompress=False,
        keepalive_timeout=settings.keepalive_timeout_s,
        lingering_time=LINGER_S,
        shutdown_timeout=settings.shutdown_grace_s,
        handler_cancellation=False,
    )
    await runner.setup()
    place = app[PLACE]
    try:
        await _Site(runner, place, settings.header_timeout_s).start()
    except OSError as error:
        await runner.cleanup()
        raise OSError(error.errno, error.strerror, place.listener.address) from error
    return runner


CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
VERSIONED = "vendor/"  # names in this folder have a version in them
START_PAGE = "index.html"


class StaticFile(msgspec.Struct, frozen=True):
    """A file of the page, ready to send."""

    body: bytes
    content_type: str
    tag: str
    caching: str


def pages() -> dict[str, StaticFile]:
    """Return the files of the page, by their path below /ui/."""
    return {
        path: StaticFile(
            body=body,
            content_type=CONTENT_TYPES["." + path.rpartition(".")[2]],
            tag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            caching="max-age=31536000, immutable" if path.startswith(VERSIONED) else "no-cache",
        )
        for path, body in _files(resources.files("extender.http") / "pages", "")
    }


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    files: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            files += _files(entry, f"{prefix}{entry.name}/")
        else:
            files.append((prefix + entry.name, entry.read_bytes()))
    return files


class StaticPages:
    """Handlers of /ui/, the page of the package, which uses only /v1 of this service.

    All files are read at the start, so a response reads no disk. Those with a version in their name never change; browsers
    validate the others each time and mostly get a 304.
    """

    def __init__(self) -> None:
        self._pages = pages()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/", self.start),
            web.get("/ui", self.moved),
            web.get("/ui/{path:.*}", self.page),
        ]

    async def start(self, _: web.Request) -> web.Response:
        """Return a redirect from / to the page; temporary, because / may get a page of its own."""
        return web.Response(status=302, headers={"Location": "ui/"})

    async def moved(self, _: web.Request) -> web.Response:
        """Return a redirect to the page; relative, so that it works behind a proxy."""
        return web.Response(status=308, headers={"Location": "ui/"})

    async def page(self, request: web.Request) -> web.Response:
        """Return a file of the page.

        Raises:
            NotFound: There is no such file.
        """
        path = request.match_info["path"] or START_PAGE
        page = self._pages.get(path)
        if page is None:
            raise NotFound(f"/ui/{path[:80]}: there is no such page; begin at /ui/")
        headers = {
            "Cache-Control": page.caching,
            "Content-Security-Policy": POLICY,
            "ETag": page.tag,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if not_modified(request, page.tag):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=page.body, content_type=page.content_type, charset="utf-8", headers=headers
        )
