"""Send JSON responses in pieces, so that a large one does not block the event loop, with log position and ETag.

The ETag is the hash of the body. It saves the transfer, not the query.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web
from yarl import URL

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
from extender.core.model.ids import Position
from extender.http.responses.unsent_answers import SentResponse
from extender.runtime.cooperative_yield import Yielder

AT_ONCE_BYTES = 64 * 1024  # a body up to this size is sent in one piece
# the turn of a query, in the query process
TURN = web.RequestKey("turn", contextlib.AsyncExitStack)


async def listed(items: Iterable[Any]) -> list[bytes]:
    """Return a JSON array in pieces, item by item."""
    pace = Yielder()
    pieces = [b"["]
    for item in items:
        if len(pieces) > 1:
            pieces.append(b",")
        pieces.append(msgspec.json.encode(item))
        await pace.yield_if_due()
    pieces.append(b"]")
    return pieces


def next_page(request: web.Request, after: Position) -> str:
    """Return the Link header of the page after a position."""
    url = URL.build(path=request.path, query=request.query).update_query(after=str(after))
    return f'<{url}>; rel="next"'


def not_modified(request: web.Request, tag: str) -> bool:
    """Return whether the client has the response with this ETag (If-None-Match)."""
    tags = request.headers.get("If-None-Match", "")
    return tags == "*" or tag in [part.strip().removeprefix("W/") for part in tags.split(",")]


def at_position(body: bytes, position: int | None) -> web.Response:
    """Return a response with a body of JSON and its log position; None: it has none."""
    headers = {} if position is None else {"X-Log-Position": str(position)}
    return SentResponse(body=body, content_type="application/json", headers=headers)


async def answer(
    request: web.Request, pieces: list[bytes], position: Position, *, link: str = ""
) -> web.StreamResponse:
    """Send a body with its log position and ETag, or 304 when the client has it."""
    digest, pace = hashlib.sha256(), Yielder()
    for piece in pieces:
        digest.update(piece)
        await pace.yield_if_due()
    if (turn := request.get(TURN)) is not None:
        await turn.aclose()  # other queries do not wait for a client that reads slowly
    tag = f'"{digest.hexdigest()[:32]}"'
    headers = {"X-Log-Position": str(position), "ETag": tag}
    if link:
        headers["Link"] = link
    if not_modified(request, tag):
        return web.Response(status=304, headers=headers)
    size = sum(map(len, pieces))
    if size <= AT_ONCE_BYTES or request.method == "HEAD":
        body = b"".join(pieces)
        return SentResponse(body=body, content_type="application/json", headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_type = "application/json"
    response.content_length = size
    await response.prepare(request)
    chunk, filled = [], 0
    for piece in pieces:
        chunk.append(piece)
        filled += len(piece)
        if filled >= AT_ONCE_BYTES:
            await response.write(b"".join(chunk))
            await pace.yield_if_due()
            chunk, filled = [], 0
    await response.write(b"".join(chunk))
    await response.write_eof()
    return response


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
