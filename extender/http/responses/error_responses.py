"""The only place that maps errors to HTTP: as application/problem+json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from extender.core.model.errors import (
    AccessUnknown,
    BadInput,
    ExtenderError,
    Forbidden,
    NotFound,
    PositionGone,
    QueryUnavailable,
    StoreUnavailable,
    TooManyQueries,
    Unauthenticated,
)


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """RFC 9457: an error for programs and people."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"


def problem(status: int, title: str, detail: str) -> web.Response:
    """Return a response of type application/problem+json."""
    body = msgspec.json.encode(ProblemDetails(title=title, status=status, detail=detail))
    return web.Response(status=status, body=body, content_type="application/problem+json")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KNOWN: tuple[tuple[type[ExtenderError], int, str], ...] = (  # the first match counts
    (NotFound, 404, "Not found"),
    (PositionGone, 409, "Not in the log"),
    (BadInput, 400, "Bad input"),
    (StoreUnavailable, 503, "The event store does not answer"),
    (TooManyQueries, 503, "Too many queries"),
    (QueryUnavailable, 503, "Queries are not answered now"),
    (Unauthenticated, 401, "A token is needed"),
    (Forbidden, 403, "Forbidden"),
    (AccessUnknown, 503, "Rights cannot be checked now"),
)
REALM = 'Bearer realm="gang-extender"'  # RFC 6750, 3


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into responses; aiohttp answers unexpected exceptions with 500 and logs them."""
    try:
        return await handler(request)
    except ExtenderError as error:
        for kind, status, title in KNOWN:
            if isinstance(error, kind):
                answer = problem(status, title, str(error))
                if kind is Unauthenticated:
                    given = "Authorization" in request.headers
                    answer.headers["WWW-Authenticate"] = (
                        f'{REALM}, error="invalid_token"' if given else REALM
                    )
                elif kind is AccessUnknown:
                    answer.headers["Retry-After"] = "1"
                return answer
        return problem(500, type(error).__name__, str(error))
    except web.HTTPException as error:
        if error.status < 400 or request.path.startswith("/scheduler/"):  # noqa: PLR2004 -- redirects
            raise
        detail = f"{request.method} {request.path}"
        if isinstance(error, web.HTTPNotFound):
            detail += (
                ": no such path; /ui/ is the page, /v1/openapi.json has the paths of the read API"
            )
        elif isinstance(error, web.HTTPMethodNotAllowed):
            detail += f": this path has {', '.join(sorted(error.allowed_methods))}"
        answer = problem(error.status, error.reason, detail)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
