"""A proxy that counts, delays, refuses, or pulls the plug at a chosen request.

Two stand in every story: one between kube-scheduler and our service, one between our service and
kube-apiserver. The first asks kube-scheduler for its certificate as our service does, and presents the same one to
our service: both legs are TLS. What a test wants to happen at the third Binding happens exactly there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from extender.cli.certificates.certificate_folder import CertificateFolder
from tests.support.certificates import client_context, server_context

Hook = Callable[[str, str], Awaitable[web.Response | None]]
DROPPED = ("Host", "Content-Length", "Transfer-Encoding", "Connection", "Accept-Encoding")


async def stop(runner: web.AppRunner) -> None:
    """Stop a server with its connections; the end of TLS waits for callers, which may be stopped, longer than the test runs."""
    transports = [caller.transport for caller in runner.server.connections] if runner.server else []
    await runner.cleanup()
    for transport in filter(None, transports):
        transport.abort()


class Proxy:
    """Forwards everything to one server; `before` may answer instead, `after` sees the status."""

    def __init__(
        self,
        target: str,
        ca_file: Path | None = None,
        certificates: CertificateFolder | None = None,
    ) -> None:
        """Prepare it; nothing listens yet.

        Args:
            target: URL of the server.
            ca_file: What the certificate of the server is checked with; callers speak plain HTTP.
            certificates: Of the service, for a proxy in front of its verbs, with TLS on both sides.
        """
        self.target = target.rstrip("/")
        self.url = ""
        self.seen: list[tuple[str, str]] = []
        self.open: list[str] = []  # paths of requests that the server has not answered yet
        self.before: Hook | None = None
        self.after: Callable[[str, str, int], Awaitable[None]] | None = None
        self._tls = ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
        self._listens: ssl.SSLContext | None = None
        if certificates is not None:
            self._tls, self._listens = client_context(certificates), server_context(certificates)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=0, force_close=False)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._forward)
        # A caller that hangs up must be seen to hang up by the server behind.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._listens)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if self._listens is None else 'https'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await stop(self._runner)
        if self._session is not None:
            await self._session.close()
        await asyncio.sleep(
            0
        )  # transports close in the next turn of the loop, which may be its last

    def count(self, method: str, ending: str) -> int:
        """Count the requests seen so far."""
        return sum(m == method and p.endswith(ending) for m, p in self.seen)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        method, path = request.method, request.path
        self.seen.append((method, path))
        if self.before is not None:
            instead = await self.before(method, path)
            if instead is not None:
                return instead
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k not in DROPPED}
        assert self._session is not None
        self.open.append(path)
        try:
            async with self._session.request(
                method,
                self.target + request.path_qs,
                data=body or None,
                headers=headers,
                allow_redirects=False,
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k not in DROPPED}
                reply = web.StreamResponse(status=answer.status, headers=kept)
                await reply.prepare(request)
                async for chunk in answer.content.iter_any():
                    await reply.write(chunk)
                if self.after is not None:
                    await self.after(method, path, answer.status)
                await reply.write_eof()
                return reply
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            self.open.remove(path)
