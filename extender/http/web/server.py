"""The aiohttp application and its listener.

Idle connections are kept longer than the 90 s for which Go keeps them: if the server closes first, a request can
fail with EOF, which kube-scheduler reports as a SchedulerError on a pod (EXTENDER 1.1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.http.access.review_cache import ReviewCache
from extender.http.responses.error_responses import problems
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.v1.openapi_route import OpenApiRoute
from extender.http.web.access_control import AccessControl
from extender.http.web.connection_limits import CONNECTIONS, ConnectionLimits
from extender.http.web.health import Probes
from extender.http.web.request_limits import ClusterSize, RequestLimits
from extender.http.web.ui import StaticPages
from extender.ports.access_ports import AccessReviews
from extender.settings import Settings

KEEPALIVE_S = 120.0  # of the query process, whose only client is the service
LINGER_S = 1.0  # the rest of a refused body is read and dropped for so long, so that the client sees the response


class Routed(Protocol):
    """Handlers with routes."""

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        ...


class ApplicationParts(msgspec.Struct, frozen=True):
    """The handlers."""

    verbs: VerbHandlers
    probes: Probes
    questions: tuple[Routed, ...]  # everything under /v1
    end_streams: Callable[[], None]  # called when the server begins to stop
    cluster_size: Callable[[], ClusterSize]  # for the limits of bodies
    reviews: AccessReviews | None = None  # who may read; None: every client
    namespaces: Callable[[], Iterable[str]] = tuple  # those that have something to show


def application(parts: ApplicationParts, settings: Settings) -> web.Application:
    """Return the application with all routes."""
    connections = ConnectionLimits(settings)
    limits = RequestLimits(settings, parts.cluster_size, connections)
    checks: list[Middleware] = []
    if parts.reviews is not None:
        cache = ReviewCache(parts.reviews, time.monotonic)
        checks = [AccessControl(cache, parts.namespaces, connections).middleware()]
    app = web.Application(middlewares=[problems, *checks, limits.middleware()])
    app[CONNECTIONS] = connections
    app.add_routes(parts.verbs.routes())
    app.add_routes(parts.probes.routes())
    for part in (*parts.questions, OpenApiRoute(), StaticPages()):
        app.add_routes(part.routes())

    async def end_streams(_: web.Application) -> None:
        parts.end_streams()

    app.on_shutdown.append(end_streams)
    app.on_response_prepare.append(parts.probes.send_away)
    return app


class _GatedRunner(web.AppRunner):
    """A runner whose sites accept connections through the gates of `ConnectionLimits`."""

    @property
    def server(self) -> Any:  # noqa: ANN401 -- sites use it as a factory of protocols and nothing else
        """Return the factory of protocols of the sites."""
        server = super().server
        return None if server is None else self.app[CONNECTIONS].gated(server)


async def listen(app: web.Application, settings: Settings) -> web.AppRunner:
    """Listen on the port and return the runner.

    Raises:
        OSError: The port is in use, or opening it is not permitted.
    """
    runner = _GatedRunner(
        app,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=settings.keepalive_timeout_s,
        lingering_time=LINGER_S,
        shutdown_timeout=settings.shutdown_grace_s,
        handler_cancellation=False,
    )
    await runner.setup()
    host, port = settings.host_port
    await web.TCPSite(runner, host, port, backlog=4096, reuse_address=True).start()
    return runner
