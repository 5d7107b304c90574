"""The only place that maps faults to HTTP: `Error` fields and 503 for kube-scheduler, problem+json under /v1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from extender.core.model.errors import (
    BadInput,
    ExtenderError,
    NotFound,
    PositionGone,
    QueryUnavailable,
    StoreUnavailable,
    TooManyQueries,
)


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """RFC 9457: what went wrong, for programs and people."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"


def problem(status: int, title: str, detail: str) -> web.Response:
    """Make an answer of type application/problem+json."""
    body = msgspec.json.encode(ProblemDetails(title=title, status=status, detail=detail))
    return web.Response(status=status, body=body, content_type="application/problem+json")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KNOWN: tuple[tuple[type[ExtenderError], int, str], ...] = (  # the first that fits
    (NotFound, 404, "Not found"),
    (PositionGone, 409, "Not in the log"),
    (BadInput, 400, "Bad input"),
    (StoreUnavailable, 503, "The event store does not answer"),
    (TooManyQueries, 503, "Too much is asked at once"),
    (QueryUnavailable, 503, "Questions are not answered now"),
)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn faults into answers; what is not ours becomes a 500 with a log line by aiohttp."""
    try:
        return await handler(request)
    except ExtenderError as error:
        for kind, status, title in KNOWN:
            if isinstance(error, kind):
                return problem(status, title, str(error))
        return problem(500, type(error).__name__, str(error))
    except web.HTTPException as error:
        if error.status < 400 or request.path.startswith("/scheduler/"):  # noqa: PLR2004 -- redirects
            raise
        return problem(error.status, error.reason, f"{request.method} {request.path}")
