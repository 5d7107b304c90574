"""`proxy`: a port of this machine that leads to the service with the token of the user, and the server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Final

import aiohttp
import typer
from aiohttp import web

from extender.cli.connection.service_client import Server, ServiceFinder, finder
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput
from extender.http.responses.error_responses import Handler, problem
from extender.http.web.listener_access import PlainCallers
from extender.http.web.request_limits import RequestRefused
from extender.listener_settings import Listener
from extender.settings import Settings

HOST: Final = "127.0.0.1"
PATHS: Final = ("/v1", "/ui", "/metrics", "/livez", "/readyz")
SENT: Final = ("Accept", "Content-Type", "If-None-Match", "Last-Event-ID")
NOT_RETURNED: Final = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding"})
BODY_MAX: Final = 16 << 20  # of a plan query, as the service accepts it
STOPPED_WITHIN_S: Final = 1.0


class LocalProxy:
    """Passes requests on.

    Args:
        finder: Finds the service and sends the token.
        server: As `ServiceFinder.find` takes it.
    """

    def __init__(self, finder: ServiceFinder, server: str | None) -> None:
        self._finder = finder
        self._server = server
        self._finding = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[int]:
        """Serve on a port of loopback while the block runs; yield the port.

        Args:
            port: The port; 0: any.

        Raises:
            BadInput: The port cannot be listened on.
        """
        callers = PlainCallers(Listener("port", HOST, port, "api", tls=False), Settings())

        @web.middleware
        async def of_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                callers.check(request)
            except RequestRefused as refused:
                return refused.response(request.path)
            return await handler(request)

        app = web.Application(middlewares=[of_this_machine], client_max_size=BODY_MAX)
        app.add_routes([web.get("/", self._page), web.post("/v1/plan", self._pass_on)])
        app.add_routes([web.get(path + "{rest:(/.*)?}", self._pass_on) for path in PATHS])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOPPED_WITHIN_S)
        await runner.setup()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
            self._session = session
            try:
                await web.TCPSite(runner, HOST, port).start()
                yield runner.addresses[0][1]
            except OSError as error:
                raise BadInput(f"--port {port}: {error.strerror or error}") from error
            finally:
                await runner.cleanup()

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "ui/"})

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Return the answer of the service, piece by piece."""
        assert self._session is not None
        headers = {name: request.headers[name] for name in SENT if name in request.headers}
        body = await request.read() if request.method == "POST" else None
        url = ""
        try:
            async with self._finding:  # one kubectl at a time
                url = await asyncio.to_thread(self._finder.find, self._server)
            address = url + request.raw_path
            async with self._finder.send(
                self._session, request.method, address, headers=headers, data=body, allow_redirects=False
            ) as reply:  # fmt: skip
                return await _returned(request, reply)
        except BadInput as error:
            return problem(502, "The service cannot be asked", str(error))
        except (aiohttp.ClientError, TimeoutError) as error:
            why = self._finder.no_answer(url, str(error) or type(error).__name__)
            return problem(502, "The service does not answer", why)


async def _returned(request: web.Request, reply: aiohttp.ClientResponse) -> web.StreamResponse:
    kept = {k: v for k, v in reply.headers.items() if k.lower() not in NOT_RETURNED}
    response = web.StreamResponse(status=reply.status, headers=kept)
    await response.prepare(request)
    if request.method != "HEAD":
        try:
            async for piece in reply.content.iter_any():
                await response.write(piece)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()  # so that the client sees that the answer is incomplete
        except ConnectionError:
            return response  # the client has closed the connection
    with contextlib.suppress(ConnectionError):
        await response.write_eof()
    return response


def proxy(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 to listen on; 0: any.")
    ] = 8889,
    server: Server = None,
) -> None:
    """Serve the page and the read API on a port of this machine, with your token. Every process of this machine can use it."""
    asyncio.run(_serve(port, server))


async def _serve(port: int, server: str | None) -> None:
    from extender.cli.proxy.proxy_command import HOST, LocalProxy

    url = await asyncio.to_thread(finder().find, server)  # an error now, not with the first request
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with LocalProxy(finder(), server).serving(port) as listening:
        print(f"http://{HOST}:{listening}/ui/")
        sys.stdout.flush()
        complain(f"leads to {url} until Ctrl-C, for every process of this machine")
        await stopping.wait()
