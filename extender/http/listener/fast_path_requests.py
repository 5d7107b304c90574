"""Requests that are exactly as kube-scheduler sends them; `listener_access` answers them without aiohttp."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from extender.http.listener.tls_contexts import ClientCertificate

BEGIN: Final = b"POST /scheduler/"
HEAD_BYTES_MAX: Final = 4 * 1024
# of a request; a larger one is rare, and aiohttp counts its bytes as they arrive
BYTES_MAX: Final = 48 * 1024
DirectVerb = Literal["filter", "prioritize", "bind"]
VERBS: Final[dict[bytes, DirectVerb]] = {
    b"POST /scheduler/filter HTTP/1.1": "filter",
    b"POST /scheduler/prioritize HTTP/1.1": "prioritize",
    b"POST /scheduler/bind HTTP/1.1": "bind",
}
HEADERS: Final = frozenset(
    (b"host", b"user-agent", b"content-length", b"content-type", b"accept-encoding")
)


class DirectHead(NamedTuple):
    """The first line and the headers of a request."""

    verb: DirectVerb
    host: str
    size: int  # of its body, bytes


class DirectRequest(NamedTuple):
    """A request that has arrived as a whole."""

    head: DirectHead
    body: bytes


def complete_request(received: bytes) -> DirectRequest | Literal["incomplete"] | None:
    """Return the request that some bytes are; None if it is one for aiohttp."""
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        begins = received.startswith(BEGIN) or BEGIN.startswith(received)
        return "incomplete" if begins and len(received) < HEAD_BYTES_MAX else None
    head = direct_head(received[:end])
    if head is None:
        return None
    length = end + 4 + head.size
    if len(received) == length:
        return DirectRequest(head, received[end + 4 :])
    return "incomplete" if len(received) < length <= BYTES_MAX else None


@functools.lru_cache(maxsize=1024)  # one caller sends the same headers again and again
def direct_head(text: bytes) -> DirectHead | None:
    """Return the head of a request if it has only what kube-scheduler sends, each header once."""
    first, *lines = text.split(b"\r\n")
    verb = VERBS.get(first)
    if verb is None or text.count(b"\n") != len(lines) or text.count(b"\r") != len(lines):
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name not in HEADERS or name in headers or b"\0" in value:
            return None
        headers[name] = value.strip(b" \t")
    length, host = headers.get(b"content-length", b""), headers.get(b"host", b"")
    if not (length.isdigit() and len(length) <= len(str(BYTES_MAX)) and host.isascii()):
        return None
    if headers.get(b"content-type") != b"application/json":
        return None
    return DirectHead(verb, host.decode(), int(length))


class DirectResponse(NamedTuple):
    """The bytes of a response."""

    data: bytes
    closes: bool  # the connection is closed after it


# Returns the response, or the task that makes it; None if aiohttp answers the request. The last argument returns whether the
# caller has closed the connection.
DirectAnswer = Callable[
    [DirectRequest, ClientCertificate | None, Callable[[], bool]],
    DirectResponse | asyncio.Task[DirectResponse] | None,
]
