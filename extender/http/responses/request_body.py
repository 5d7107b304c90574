"""The body of a request as the limits of the server have read it (`http/web/request_limits`)."""

from __future__ import annotations

from aiohttp import web

BODY = web.RequestKey("body", bytes)


def body_of(request: web.Request) -> bytes:
    """Return the whole body of a request; it was read, within its limits, before the handler was called."""
    return request[BODY]
