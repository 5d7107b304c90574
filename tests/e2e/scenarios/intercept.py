"""See whole requests on their way through the proxies: bodies, queries, and watches to be cut.

A proxy's own hooks know method and path. What a test wants to happen to the calls of one pod, or to
watches only, is done here, without another pair of proxies.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.scenarios.proxy import Proxy

Look = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


class Intercept:
    """What happens to requests before a proxy forwards them."""

    def __init__(self) -> None:
        self.call: Look | None = None  # verbs of kube-scheduler, with their body
        self.watch: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
        self._watches: dict[int, web.Request] = {}

    def cut_watches(self) -> int:
        """Drop the connections of all watches that are open now."""
        open_now = [w for w in self._watches.values() if w.transport is not None]
        for request in open_now:
            assert request.transport is not None
            request.transport.abort()
        return len(open_now)

    async def see(self, request: web.Request) -> web.StreamResponse | None:
        """Answer instead of the server, or None."""
        if request.path.startswith("/scheduler/") and self.call is not None:
            return await self.call(request, json.loads(await request.read()))
        if "watch" in request.query and self.watch is not None:
            return await self.watch(request)
        return None


@pytest.fixture
def intercept(monkeypatch: pytest.MonkeyPatch) -> Intercept:
    """Look into the proxies of a story; name this fixture before `story`."""
    seen = Intercept()
    forward = Proxy._forward

    async def look_and_forward(proxy: Proxy, request: web.Request) -> web.StreamResponse:
        instead = await seen.see(request)
        if instead is not None:
            return instead
        if "watch" not in request.query:
            return await forward(proxy, request)
        seen._watches[id(request)] = request
        try:
            return await forward(proxy, request)
        finally:
            del seen._watches[id(request)]

    monkeypatch.setattr(Proxy, "_forward", look_and_forward)
    return seen


def pod_of(path: str, body: dict[str, Any]) -> str:
    """Return the pod that a call of kube-scheduler is about."""
    name: str = body["PodName"] if path.endswith("/bind") else body["Pod"]["metadata"]["name"]
    return name


def cannot(text: str) -> web.Response:
    """Answer a verb with an error, as a service that cannot answer now."""
    return web.json_response({"Error": text, "NodeNames": []})
