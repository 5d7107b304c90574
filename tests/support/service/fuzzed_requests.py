"""Requests that no client of ours would send: made from right ones by chance, the same for the same seed.

Owns what is wrong with a request and how it is written to a socket. Must not know what the answer should be.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

METHODS = ("GET", "POST", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "BREW")
NAMES = (
    "", "fits", "default/fits", "PodGroup/default/fits", "default", "n0", "alone", "1", "0", "-1", "9" * 400, "1e400", "NaN",
    "null", "true", "\x00", "a\x00b", "\n", "\r\nX: y", "..", "../../etc/passwd", "%", "%2f", "é", "日本", "\u202e", "🦊" * 40,
    "a" * 300, "a" * 5000, "' OR 1=1 --", "<script>", "{}", "[]", "*", "2026-11-20T03:12:00Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999999Z", "2026-13-40T99:99:99Z", "1h", "PT1H", "newest", "GangAdmitted", "pending",
)  # fmt: skip
NUMBERS = (0, -1, 1, 0.5, 1e308, -0.0, 2**31, 2**63, -(2**63) - 1, 10**30)
SPOILED = (
    b"", b"[" * 100_000, b"{" * 5000, b'{"a":' * 20_000, b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"null", b'"' + b"a" * 60_000 + b'"',
    b"1" * 20_000, b"1e99999", b"{}{}", b'{"Pod":{},"Pod":{}}', b'"\\ud800"', b"\x00" * 1000, b"-", b"nul",
)  # fmt: skip
# Of a part that is repeated: while the tests write a body, none of their connections is served.
REPEATED_BYTES_MAX = 16 * 1024 * 1024
TYPES = ("application/json",) * 12 + (
    "text/plain",
    "application/json; charset=utf-16",
    "",
    "*/*",
    "application/xml",
)


class Request(NamedTuple):
    """One request."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __str__(self) -> str:
        return f"{self.method} {self.target[:120]} {self.body[:200]!r}"


class Answer(NamedTuple):
    """What came back; status 0: the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class RequestFuzzer:
    """Makes requests by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def verbs(self, bodies: dict[str, Sequence[Any]]) -> Iterator[Request]:
        """Yield calls of kube-scheduler, made from right bodies of each verb."""
        while True:
            verb = self._random.choice([*bodies])
            right = bodies[self._random.choice([*bodies])] if self._odds(10) else bodies[verb]
            body = self._json(self._random.choice(right))
            path = verb if self._often() else self._path_value()
            yield self._with_body(f"/scheduler/{path}", body)

    def plans(self, bodies: Sequence[Any]) -> Iterator[Request]:
        """Yield questions to `POST /v1/plan`, made from right ones."""
        while True:
            yield self._with_body("/v1/plan", self._json(self._random.choice(bodies)))

    def routes(self, operations: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Request]:
        """Yield questions to routes: their paths with `{placeholders}`, and the names of their query parameters."""
        while True:
            path, parameters = self._random.choice(operations)
            for name in path.split("{")[1:]:
                path = path.replace("{" + name.split("}")[0] + "}", self._path_value(), 1)
            names = [p for p in parameters if self._odds(3)]
            names += [self._random.choice(NAMES)[:40]] if self._odds(8) else []
            query = "&".join(f"{quote(n)}={self._path_value()}" for n in names)
            method = "GET" if self._often() else self._random.choice(METHODS)
            yield Request(method, f"{path}?{query}" if query else path, self._headers())

    def _with_body(self, target: str, body: bytes) -> Request:
        method = "POST" if self._often() else self._random.choice(METHODS)
        kind = self._random.choice(TYPES)
        return Request(method, target, (*self._headers(), ("Content-Type", kind)), body)

    def _headers(self) -> tuple[tuple[str, str], ...]:
        found = []
        for name in (
            "If-None-Match",
            "Last-Event-ID",
            "Accept",
            "Gang-Extender-Forwarded",
            "Content-Encoding",
            "Range",
        ):
            if self._odds(25):
                value = self._random.choice(NAMES).encode("ascii", "replace").decode()
                found.append((name, "".join(c for c in value if c.isprintable())[:200]))
        return tuple(found)

    def _path_value(self) -> str:
        value = self._random.choice(NAMES)
        return (
            quote(value, safe="" if self._often() else "/.")
            if self._often()
            else value.encode("ascii", "ignore").decode().translate(dict.fromkeys(range(33)))
        )

    def _json(self, right: Any) -> bytes:
        if self._odds(8):
            return self._random.choice(SPOILED)
        changed = (
            right if self._odds(10) else self._changed(right, self._random.choice((1, 1, 2, 4)))
        )
        body = json.dumps(changed).encode()
        if self._odds(10):
            at = self._random.randrange(len(body) + 1)
            body = (
                body[:at]
                + self._random.choice((b"", b"\x00", b"\xff", b'"', b"}", b"1e999"))
                + body[at + 1 :]
            )
        return body

    def _changed(self, value: Any, times: int) -> Any:
        """Return a JSON value with some of its parts replaced, removed or repeated."""
        value = json.loads(json.dumps(value))
        for _ in range(times):
            holder, key = None, None
            part = value
            while (
                isinstance(part, (dict, list))
                and part
                and not (holder is not None and self._odds(4))
            ):
                holder = part
                key = (
                    self._random.choice([*part])
                    if isinstance(part, dict)
                    else self._random.randrange(len(part))
                )
                part = part[key]
            if holder is None:
                return self._any(0)
            if self._odds(5):
                del holder[key]
            elif self._odds(6) and isinstance(holder, list):
                times = self._random.choice((1, 300))
                holder.extend([part] * min(times, REPEATED_BYTES_MAX // len(json.dumps(part))))
            elif self._odds(60):
                holder[key] = self._large()
            else:
                holder[key] = self._any(0)
        return value

    def _any(self, depth: int) -> Any:
        kind = self._random.randrange(8 if depth < 4 else 5)
        if kind == 0:
            return self._random.choice(NUMBERS)
        if kind == 1:
            return self._random.choice((None, True, False))
        if kind <= 4:
            return self._random.choice(NAMES)
        if kind == 5:
            return [self._any(depth + 1) for _ in range(self._random.randrange(4))]
        return {
            self._random.choice(NAMES)[:50]: self._any(depth + 1)
            for _ in range(self._random.randrange(4))
        }

    def _large(self) -> Any:
        """Return a value that is large in one way or another; some are over the limits."""
        size = self._random.choice((7_000, 50_000, 1_000_000))
        match self._random.randrange(5):
            case 0:
                return "x" * size
            case 1:
                return [0] * (size // 2)
            case 2:
                return {f"k{number}": "" for number in range(size // 10)}
            case 3:
                return [{"kind": "Node", "metadata": {}}] * (size // 40)
            case _:
                return "namespace: a\n" * (size // 13)

    def _odds(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def _often(self) -> bool:
        return not self._odds(12)


async def send(host: str, port: int, request: Request) -> Answer:
    """Send a request on a connection of its own and return the answer; of a stream only its head."""
    head = [
        f"{request.method} {request.target} HTTP/1.1",
        f"Host: {host}:{port}",
        "Connection: close",
    ]
    head += [f"{name}: {value}" for name, value in request.headers]
    head += (
        [f"Content-Length: {len(request.body)}"] if request.body or request.method == "POST" else []
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write("\r\n".join([*head, "", ""]).encode("utf-8", "surrogatepass") + request.body)
        return await _answer(reader)
    except ConnectionError:
        return Answer(0, {}, b"")  # closed while the body was still being sent
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return Answer(0, {}, b"")
    first, *lines = raw.decode("latin-1").strip().split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    stream = headers.get("content-type", "").startswith("text/event-stream")
    body = b"" if stream else await reader.read()
    return Answer(int(first.split()[1]), headers, body)
