"""A receiver of notifications on loopback: it verifies each signature by itself, and answers as a test asks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from aiohttp import web

from deploy.demo.ports import free_port

KEYS = tuple(base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]


async def accept(_: dict[str, Any]) -> web.Response:
    """Answer that the notification was accepted."""
    return web.Response(status=204)


class EventReceiver:
    """A real server. It starts where `start` is called, on the same port each time."""

    def __init__(self, keys: Iterable[str] = KEYS) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hook/secret"
        self.keys = tuple(keys)
        self.answer: Answer = accept
        self.events: list[dict[str, Any]] = []  # all that came, accepted or not
        self.accepted: list[dict[str, Any]] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/hook/secret", self._receive)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        event: dict[str, Any] = json.loads(body)
        assert request.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
        assert request.headers["webhook-id"] == event["id"]
        signed = f"{event['id']}.{request.headers['webhook-timestamp']}.".encode() + body
        digests = [hmac.digest(base64.b64decode(key), signed, hashlib.sha256) for key in self.keys]
        expected = [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
        assert request.headers["webhook-signature"].split() == expected
        self.events.append(event)
        reply = await self.answer(event)
        if 200 <= reply.status < 300:
            self.accepted.append(event)
        return reply

    def ids(self) -> list[str]:
        """Return the ids of what was accepted, in order."""
        return [event["id"] for event in self.accepted]
