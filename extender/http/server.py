"""The aiohttp application and its listener.

Idle connections are kept longer than the 90 s for which Go keeps them: the race of a server that
closes first shows up as EOF, and that as a SchedulerError on a pod (EXTENDER 1.1).
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from extender.http.audit import ReadApi
from extender.http.errors import problems
from extender.http.health import Probes
from extender.http.reports import ReportApi
from extender.http.scheduler import SchedulerVerbs
from extender.http.state import StateApi
from extender.settings import Settings

KEEPALIVE_S = 120.0


class Parts(msgspec.Struct, frozen=True):
    """The handlers."""

    verbs: SchedulerVerbs
    probes: Probes
    read_api: ReadApi
    state_api: StateApi | None = None
    reports: ReportApi | None = None


def application(parts: Parts, settings: Settings) -> web.Application:
    """Put all routes together."""
    app = web.Application(client_max_size=settings.body_max_bytes, middlewares=[problems])
    app.add_routes(parts.verbs.routes())
    app.add_routes(parts.probes.routes())
    app.add_routes(parts.read_api.routes())
    if parts.state_api is not None:
        app.add_routes(parts.state_api.routes())
    if parts.reports is not None:
        app.add_routes(parts.reports.routes())
    return app


async def listen(app: web.Application, settings: Settings) -> web.AppRunner:
    """Open the port.

    Raises:
        OSError: The port is taken or may not be opened.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=settings.grace_s,
        handler_cancellation=False,
    )
    await runner.setup()
    host, port = settings.host_port
    await web.TCPSite(runner, host, port, backlog=4096, reuse_address=True).start()
    return runner
