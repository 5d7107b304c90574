"""Send JSON responses in pieces, so that a large one does not block the event loop, with log position and ETag.

The ETag is the hash of the body. It saves the transfer, not the query.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web
from yarl import URL

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
