"""Server-sent events of GET /v1/events?follow, read as a browser reads them: back with the last id, at any replica.

Owns the connection: whom to ask next, when to give up. Must not look into the facts. The surprise: a service that
answers 503 or is silent is asked again for ever, but one that never answered at all is a wrong address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus

import aiohttp
import msgspec

from extender.core.model.errors import BadInput, PositionGone

CONNECT_S = 5.0
SILENCE_S = 30.0  # a service says something every ten seconds
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


class _Problem(msgspec.Struct):
    detail: str = ""


class _Broken(Exception):
    """The connection is lost, or was not made."""


class Stream:
    """The facts of a log, each once, whatever happens to the replicas that tell them."""

    def __init__(
        self,
        servers: Sequence[str],
        query: Sequence[tuple[str, str]],
        *,
        complain: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            servers: URLs; the next one is asked when one is lost.
            query: Parameters beside `follow`.
            complain: Told once when the connection is lost, and when it is there again.
        """
        self._servers = [server.rstrip("/") for server in servers]
        self._query = query
        self._complain = complain
        self._position = ""  # as in Last-Event-ID
        self._stopped = asyncio.Event()
        self._reading: asyncio.Task[bytes] | None = None

    def stop(self) -> None:
        """End `facts`."""
        self._stopped.set()
        if self._reading is not None:
            self._reading.cancel()

    async def facts(self) -> AsyncGenerator[bytes]:
        """Give the JSON of fact after fact, until stopped.

        Raises:
            BadInput: No service answers at the beginning, or one does not take the question.
            HistoryGone: The log does not reach any more where this stream was.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        turn, failures, lost = 0, 0, ""
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._stopped.is_set():
                server = self._servers[turn % len(self._servers)]
                try:
                    async with aclosing(self._once(session, server)) as bodies:
                        async for body in bodies:
                            if lost:
                                self._complain(f"connected to {server}")
                            failures, lost = 0, ""
                            if body:
                                yield body
                except _Broken as why:
                    turn += 1
                    failures += 1
                    if not self._position and failures >= len(self._servers):
                        raise BadInput(
                            f"{why}; is `gang-extender serve` running there? (--server URL)"
                        ) from why
                    if not lost:
                        self._complain(f"{why}; trying again")
                    lost = str(why)
                    await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        try:
            async with asyncio.timeout(min(PAUSE_FIRST_S * 2 ** min(failures, 10), PAUSE_MAX_S)):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def _once(self, session: aiohttp.ClientSession, server: str) -> AsyncGenerator[bytes]:
        """Read one connection until it breaks; gives nothing for each sign of life."""
        headers = {"Last-Event-ID": self._position} if self._position else {}
        query = [("follow", "true"), *self._query]
        try:
            async with session.get(f"{server}/v1/events", params=query, headers=headers) as reply:
                if reply.status != HTTPStatus.OK or reply.content_type != "text/event-stream":
                    raise _refused(server, reply.status, await reply.read())
                async for body in self._read(reply.content):
                    yield body
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _Broken(
                f"no answer from {server}: {str(error) or type(error).__name__}"
            ) from error
        if not self._stopped.is_set():
            raise _Broken(f"{server} ended the stream")

    async def _read(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        kind = data = b""
        async for line in self._lines(content):
            field, _, value = line.partition(b": ")
            if field == b"id":
                self._position = value.decode()
            elif field == b"event":
                kind = value
            elif field == b"data":
                data = value
            elif not line:
                if kind == b"problem":
                    raise PositionGone(_detail(data))
                yield data
                kind = data = b""

    async def _lines(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        """Cut what comes at its line ends; a fact is one line, of megabytes if it is about thousands of pods."""
        rest = b""
        while not self._stopped.is_set():
            self._reading = asyncio.create_task(content.readany())
            try:
                piece = await self._reading
            except asyncio.CancelledError:
                if self._stopped.is_set():
                    return
                raise
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line


def _detail(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Problem).detail
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace")


def _refused(server: str, status: int, body: bytes) -> Exception:
    if status == HTTPStatus.CONFLICT:
        return PositionGone(_detail(body))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _Broken(f"{server} answered {status}: {_detail(body)}")
    if status == HTTPStatus.BAD_REQUEST:
        return BadInput(_detail(body))
    return BadInput(
        f"{server}/v1/events answered {status}, not a stream; is it the right --server?"
    )
