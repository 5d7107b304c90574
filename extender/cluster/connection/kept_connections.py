"""Kept HTTP/1.1 connections for the small writes of this service: one write to the socket and one future per request.

A session of aiohttp takes 0.2 to 0.3 ms of CPU for a request; four of five requests of this service are writes to pods
whose answer needs no more than its status. The module owns framing (Content-Length, chunked) and the reuse of connections;
timeouts, the number of connections, credentials and retries are those of `api_client`.

Note: a request is never sent twice. A kept connection that the server has just closed fails with ConnectionResetError.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import urlsplit

IDLE_S = 15.0  # a connection that was not used for longer is closed: a NAT may have forgotten it
HEAD_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 64 * 1024 * 1024
# plain numbers, because these are read for each response: a member of HTTPStatus is a lookup in Python code
FINAL_MIN = int(HTTPStatus.OK)
WITHOUT_BODY = (int(HTTPStatus.NO_CONTENT), int(HTTPStatus.NOT_MODIFIED))


class Answer(NamedTuple):
    """The response to one request."""

    status: int
    headers: dict[bytes, bytes]  # names in lower case; of several with one name, the last
    body: bytes


class MalformedAnswer(ConnectionError):
    """The server sent something that is not HTTP/1.1; the connection is closed."""


class KeptConnections:
    """The connections to one server.

    Args:
        url: http or https, with a port where it is not the usual one.
        server_hostname: The name that the certificate of the server must have; None: the host of the URL.
    """

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext | None,
        *,
        server_hostname: str | None,
        connect_timeout_s: float,
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._context = context if secure else None
        self._server_hostname = (server_hostname or self._host) if secure else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[tuple[float, _Connection]] = deque()  # the last used one at the end
        self._closed = False
        self._clock = asyncio.get_running_loop().time
        self.prefix = parts.path.rstrip("/").encode()
        default = parts.port in (None, 443 if secure else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.host = (host if default else f"{host}:{self._port}").encode()

    async def exchange(
        self, request: bytes, may_send: Callable[[], bool], *, until_s: float
    ) -> Answer:
        """Send a request and return its response.

        Args:
            may_send: Asked after waiting for a connection, in the turn of the event loop that writes to the socket.
            until_s: When the response must be there, by the clock of the event loop.

        Raises:
            ConnectionAbortedError: `may_send` returned false; nothing was sent.
            OSError: No connection, or it ended before the response did.
            TimeoutError: No connection or no response in time.
        """
        connection = self._take() or await self._connect(until_s)
        try:
            answer = await connection.exchange(request, may_send, until_s)
        except ConnectionAbortedError:  # not sent, or ended by the system with this error
            if connection.is_open:
                self._put_back(connection)
            raise
        except BaseException:  # also a cancellation: the response may still arrive
            connection.abort()
            raise
        if connection.reusable:
            self._put_back(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """Close the connections that are not in use at once, and the others when they have their answer."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].abort()

    def _take(self) -> _Connection | None:
        while self._idle:
            since_s, connection = self._idle.pop()
            if connection.is_open and self._clock() - since_s <= IDLE_S:
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: _Connection) -> None:
        if self._closed:
            connection.abort()
            return
        now_s = self._clock()
        self._idle.append((now_s, connection))
        while self._idle and now_s - self._idle[0][0] > IDLE_S:
            self._idle.popleft()[1].abort()

    async def _connect(self, until_s: float) -> _Connection:
        async with asyncio.timeout_at(min(self._clock() + self._connect_timeout_s, until_s)):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection,
                self._host,
                self._port,
                ssl=self._context,
                server_hostname=self._server_hostname,
            )
        return connection


class _Connection(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self) -> None:
        self.reusable = True
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._begin()

    def _begin(self) -> None:
        self._bytes = bytearray()
        self._status = 0  # 0: the headers have not arrived
        self._headers: dict[bytes, bytes] = {}
        self._length: int | None = None  # of the body; None: chunked, or until the end
        self._chunked = False
        self._at = 0  # chunked: where the next chunk begins
        self._pieces: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """Return whether a request can be sent."""
        return self.reusable and self._transport is not None and not self._transport.is_closing()

    async def exchange(
        self, request: bytes, may_send: Callable[[], bool], until_s: float
    ) -> Answer:
        """Send a request and return its response; see `KeptConnections.exchange`."""
        assert self._answer is None
        assert self._transport is not None
        self._begin()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        # a timer of its own: `asyncio.timeout` costs twice as much, for each write
        timer = loop.call_at(until_s, self._fail, TimeoutError("no response in time"))
        try:
            if not may_send():  # last of all: the process can be stopped between any two steps
                raise ConnectionAbortedError("not the leader any more, not sent")
            self._transport.write(request)
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def abort(self) -> None:
        """Close it at once, with nothing left to write: `close` of TLS waits for the server, which may be frozen."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # -- protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked for
            return
        self._bytes += data
        try:
            self._read()
        except ValueError as problem:
            self._fail(MalformedAnswer(f"malformed answer: {problem}"))
            self.abort()

    def eof_received(self) -> bool:
        self.reusable = False
        until_the_end = self._status and self._length is None and not self._chunked
        if until_the_end:
            self._finish(bytes(self._bytes))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._fail(
            exc
            if isinstance(exc, OSError)
            else ConnectionResetError("the server closed the connection")
        )

    # -- response -------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read what has arrived."""
        while not self._status:
            end = self._bytes.find(b"\r\n\r\n")
            if end < 0:
                if len(self._bytes) > HEAD_BYTES_MAX:
                    raise ValueError("no end of the headers")
                return
            self._read_head(bytes(self._bytes[:end]))
            del self._bytes[: end + 4]
        if len(self._bytes) > ANSWER_BYTES_MAX:
            raise ValueError("too many bytes")
        if self._chunked:
            self._read_chunks()
        elif self._length is not None and len(self._bytes) >= self._length:
            if len(self._bytes) > self._length:
                raise ValueError("bytes after the body")
            self._finish(bytes(self._bytes))

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"{first[:40]!r}")
        status = int(rest[:3])
        if status < FINAL_MIN:
            return  # 1xx: the response follows
        headers = self._headers
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        self._status = status
        self._chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        if status in WITHOUT_BODY:
            self._length, self._chunked = 0, False
        elif not self._chunked and b"content-length" in headers:
            self._length = _number(headers[b"content-length"], 10)
        if version != b"HTTP/1.1" or headers.get(b"connection", b"").lower() == b"close":
            self.reusable = False

    def _read_chunks(self) -> None:
        """Read the chunks that are there; the size of each is in hexadecimal digits before it."""
        received, at = self._bytes, self._at
        while (end := received.find(b"\r\n", at)) >= 0:
            size = _number(bytes(received[at:end]).partition(b";")[0].rstrip(), 16)
            begin = end + 2
            if not size:
                self._read_end(begin)
                return
            if len(received) < begin + size + 2:
                return
            self._pieces.append(bytes(received[begin : begin + size]))
            at = self._at = begin + size + 2

    def _read_end(self, begin: int) -> None:
        """Skip the trailers after the last chunk."""
        received = self._bytes
        if received[begin : begin + 2] == b"\r\n":
            end = begin + 2
        else:
            end = received.find(b"\r\n\r\n", begin) + 4
            if end < 4:  # noqa: PLR2004 -- not found
                return
        if len(received) > end:
            raise ValueError("bytes after the body")
        if len(received) == end:
            self._finish(b"".join(self._pieces))

    def _finish(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._status, self._headers, body))

    def _fail(self, problem: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(problem)


def _number(text: bytes, base: int) -> int:
    """Return a number of the framing."""
    if not text.isalnum():
        raise ValueError(f"length {text[:20]!r}")
    return int(text, base)
