"""Client for the server-sent events of GET /v1/events?follow: reconnects with the last id, to any replica.

Does not decode the events. Note: it retries for ever when a service answers 503 or is silent, but fails when no
service has ever answered, because then the address is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus

import aiohttp
import msgspec

from extender.cli.connection.service_client import ServiceFinder, command_session
from extender.core.model.errors import BadInput, PositionGone

CONNECT_S = 5.0
SILENCE_S = 30.0  # a service sends something every ten seconds
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


class _Problem(msgspec.Struct):
    detail: str = ""


class _Broken(Exception):
    """The connection was lost, or could not be opened."""


class Stream:
    """The events of a log, each once, from any of several replicas."""

    def __init__(
        self,
        servers: Sequence[str | None],
        query: Sequence[tuple[str, str]],
        finder: ServiceFinder,
        *,
        complain: Callable[[str], None],
    ) -> None:
        """Store the arguments.

        Args:
            servers: As `ServiceFinder.find` takes them; when one is lost, the next one is used.
            query: Parameters besides `follow`.
            finder: Finds each of them, again after it was lost.
            complain: Called once when the connection is lost, and when it is restored.
        """
        self._servers = servers
        self._query = query
        self._finder = finder
        self._complain = complain
        self._position = ""  # as in Last-Event-ID
        self._stopped = asyncio.Event()
        self._reading: asyncio.Task[bytes] | None = None

    def stop(self) -> None:
        """End `events`."""
        self._stopped.set()
        if self._reading is not None:
            self._reading.cancel()

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the JSON of each event, until `stop`.

        Raises:
            BadInput: No service answers at the beginning, or one rejects the query.
            PositionGone: The log ends before the position of this stream.
        """
        for server in self._servers:  # one that cannot be right is an error at the beginning
            self._finder.find(server)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        turn, failures, lost = 0, 0, ""
        async with command_session(timeout) as session:
            while not self._stopped.is_set():
                try:
                    url = self._url_of(self._servers[turn % len(self._servers)])
                    async with aclosing(self._once(session, url)) as bodies:
                        async for body in bodies:
                            if lost:
                                self._complain(f"connected to {url}")
                            failures, lost = 0, ""
                            if body:
                                yield body
                except _Broken as error:
                    turn += 1
                    failures += 1
                    if not self._position and failures >= len(self._servers):
                        raise BadInput(str(error)) from error
                    if not lost:
                        self._complain(f"{error}; trying again")
                    lost = str(error)
                    await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        try:
            async with asyncio.timeout(min(PAUSE_FIRST_S * 2 ** min(failures, 10), PAUSE_MAX_S)):
                await self._stopped.wait()
        except TimeoutError:
            return

    def _url_of(self, server: str | None) -> str:
        try:
            return self._finder.find(server)
        except BadInput as error:  # the port could not be forwarded again
            raise _Broken(str(error)) from error

    async def _once(self, session: aiohttp.ClientSession, url: str) -> AsyncGenerator[bytes]:
        """Yield the events of one connection until it breaks; empty bytes for other data."""
        headers = {"Last-Event-ID": self._position} if self._position else {}
        query = [("follow", "true"), *self._query]
        try:
            address = f"{url}/v1/events"
            async with self._finder.send(
                session, "GET", address, params=query, headers=headers
            ) as reply:
                if reply.status != HTTPStatus.OK or reply.content_type != "text/event-stream":
                    raise _refused(url, reply.status, await reply.read())
                async for body in self._read(reply.content):
                    yield body
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise _Broken(self._finder.no_answer(url, why)) from error
        if not self._stopped.is_set():
            raise _Broken(f"{url} ended the stream")

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
        """Yield lines; an event is one line, of megabytes if it has thousands of pods."""
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
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return BadInput(_detail(body))
    return BadInput(
        f"{server}/v1/events answered {status}, not a stream; is it the right --server?"
    )
