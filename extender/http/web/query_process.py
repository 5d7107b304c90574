"""Answer queries of the log in a process of their own, so that calls of kube-scheduler do not wait for them.

The service alone knows what a caller may see, and that is in a header of each query (`VISIBLE`). Another process of the
machine reaches the socket too: a query without the key of this run (`KEY`) is refused.

`QueryProcess` is the side of the service: it keeps the query process running, forwards each query and returns the
answer piece by piece. The side of the query process is extender/query_main.py: an application whose
handlers have no state but the database.

Note: the listening socket belongs to the service and exists longer than a query process. A query that comes while
the query process starts waits in the backlog of the socket; if the process ends before it answers, the query is sent
once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from extender.core.model.errors import QueryUnavailable
from extender.http.responses.json_responses import TURN, Handler, problems
from extender.http.responses.request_visibility import (
    VISIBILITY,
    decoded_visibility,
    encoded_visibility,
    visibility_of,
)
from extender.http.responses.unsent_answers import SentResponse
from extender.http.scheduler.leader_proxy import milliseconds
from extender.http.web.server import KEEPALIVE_S, Routed
from extender.runtime.cooperative_yield import Yielder
from extender.runtime.worker_process import ForkedProcess

log = logging.getLogger(__name__)

PATHS = (
    "/v1/events",
    "/v1/state",
    "/v1/reports",
    "/v1/reports/{name}",
    "/v1/gangs/{namespace}/{name}/history",
    "/v1/decisions/{id}",
    "/v1/decisions/{id}/input",
    "/v1/preemptions",
)
CALLED = "Gang-Extender-Called"  # on a query: milliseconds since the last call of kube-scheduler, if it was recent
KEY = "Gang-Extender-Query-Key"  # on a query: shows that it is from the service
VISIBLE = "Gang-Extender-Visibility"  # on a query: what the caller may see
HEADER_MAX = 4 << 20  # bytes; a caller may see thousands of namespaces
# headers of a query that are forwarded: none of those above, which only the service sets
CARRIED = ("Accept", "If-None-Match", "Last-Event-ID")  # headers of a query that are forwarded
NOT_CARRIED = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)
WAITING = 512  # connections that may wait to be accepted
SILENT_S = 60.0  # a statement takes five seconds at most, and a stream sends something every ten
WHOLE_BYTES = 64 * 1024  # an answer up to this size is sent in one piece
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0  # before the query process is started again
STEADY_S = 60.0  # after a run of this length the pause begins with its first value
END_S = 2.0
REST_S_MAX = 0.5  # longest pause after a query; the next query waits for it


class QueryProcessOptions(msgspec.Struct, frozen=True):
    """Options of the query process, read from its standard input; the URL may have a password."""

    database_url: str
    log_level: str
    anchor_key_file: str = ""  # its keys authenticate snapshots
    log_format: str = ""
    # of one run
    service: int = 0  # process id of the service; the query process ends with it
    listening: int = 0  # file descriptor of the socket to accept on
    key: str = ""  # that each query has


class ForkedQueryProcess(NamedTuple):
    """The first query process, a fork of the service, and the socket that both have."""

    process: ForkedProcess
    listening: socket.socket


def fork_query_process(answer: Callable[[bytes], None]) -> ForkedQueryProcess:
    """Open the socket and fork the first query process, which waits for its options.

    Args:
        answer: The query process, see `extender/query_main.py`.
    """
    listening = open_socket()
    return ForkedQueryProcess(ForkedProcess(answer), listening)


def open_socket() -> socket.socket:
    """Open the socket of queries; they wait in its backlog for the query process."""
    return socket.create_server(("127.0.0.1", 0), backlog=WAITING)


class QueryProcess:
    """Handlers of `PATHS`.

    Args:
        options: Those that do not depend on the run.
        forked: The first query process; None: it is started by the command too.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: QueryProcessOptions,
        forked: ForkedQueryProcess | None = None,
    ) -> None:
        self._command = command
        self._options = options
        self._forked = forked.process if forked is not None else None
        self._listening = forked.listening if forked is not None else None
        self._session: aiohttp.ClientSession | None = None
        self._process: Process | ForkedProcess | None = None
        self._stopped = False
        self._key = secrets.token_urlsafe(32)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get(path, self.forward) for path in PATHS]

    @property
    def pid(self) -> int | None:
        """Return the id of the query process, or None while there is none."""
        return self._process.pid if self._process is not None else None

    def open(self) -> None:
        """Open the socket, if it is not open yet; queries wait in its backlog until `run` has started the process."""
        if self._listening is None:
            self._listening = open_socket()

    async def run(self) -> None:
        """Keep the query process running, until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_FIRST_S
        while True:
            began_s = loop.time()
            code = await (await self._start()).wait()
            if self._stopped:
                return
            if loop.time() - began_s > STEADY_S:
                pause_s = PAUSE_FIRST_S
            log.warning(
                "the query process has ended and is started again",
                extra={"exit": code, "in_s": pause_s},
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _start(self) -> Process | ForkedProcess:
        assert self._listening is not None, "not opened"
        number = self._listening.fileno()
        given = msgspec.json.encode(
            replace(self._options, service=os.getpid(), listening=number, key=self._key)
        )
        forked, self._forked = self._forked, None
        if forked is not None:
            self._process = forked
            with contextlib.suppress(OSError):  # it was killed, and another one is started
                forked.begin(given)
            return forked
        process = await create_subprocess_exec(
            *self._command, stdin=PIPE, pass_fds=(number,),
            start_new_session=True,  # Linux divides CPU time among sessions: queries get none of the share of the service
        )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        return process

    def stop(self) -> None:
        """Stop the query process; it answers open queries and ends its streams first."""
        self._stopped = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def close(self) -> None:
        """Wait until the query process has ended, kill it after `END_S`, and close session and socket."""
        self.stop()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._process.wait()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._session is not None:
            await self._session.close()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Return the answer of the query process, piece by piece.

        Raises:
            QueryUnavailable: The query process did not answer.
        """
        headers = {name: request.headers[name] for name in CARRIED if name in request.headers}
        async with self._send(request, request.method, headers) as reply:
            size = reply.content_length
            if size is not None and size <= WHOLE_BYTES and request.method != "HEAD":
                return await _whole(reply)
            response = web.StreamResponse(status=reply.status, headers=_kept(reply))
            response.content_length = size
            await response.prepare(request)
            if request.method != "HEAD":
                await _pass_on(reply, response, request)
            return response

    async def fetch(self, request: web.Request, headers: Mapping[str, str]) -> web.Response:
        """Return the answer of the query process in one piece.

        Raises:
            QueryUnavailable: The query process did not answer.
        """
        async with self._send(request, "GET", headers) as reply:
            return await _whole(reply)

    @contextlib.asynccontextmanager
    async def _send(
        self, request: web.Request, method: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a query, once more if the process ended before it answered."""
        if self._listening is None:
            raise QueryUnavailable("this replica is stopping; use another one")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENT_S),
                auto_decompress=False,
            )
        if Yielder.has_recent_call():
            headers = {**headers, CALLED: str(int(Yielder.since_last_call_s() * 1000))}
        headers = {**headers, KEY: self._key, VISIBLE: encoded_visibility(visibility_of(request))}
        host, port = self._listening.getsockname()
        url = URL(f"http://{host}:{port}{request.raw_path}", encoded=True)
        try:
            try:
                reply = await self._session.request(method, url, headers=headers)
            except aiohttp.ServerDisconnectedError:
                reply = await self._session.request(method, url, headers=headers)
        except (aiohttp.ClientError, OSError) as error:
            raise _unanswered(error) from error
        async with reply:
            yield reply


def _kept(reply: aiohttp.ClientResponse) -> CIMultiDict[str]:
    return CIMultiDict((k, v) for k, v in reply.headers.items() if k.lower() not in NOT_CARRIED)


async def _whole(reply: aiohttp.ClientResponse) -> web.Response:
    try:
        body = await reply.read()
    except (aiohttp.ClientError, OSError) as error:
        raise _unanswered(error) from error
    return SentResponse(status=reply.status, headers=_kept(reply), body=body)


async def _pass_on(
    reply: aiohttp.ClientResponse, response: web.StreamResponse, request: web.Request
) -> None:
    """Send an answer piece by piece; when it breaks off, abort the connection of the client too."""
    pieces = reply.content.iter_any()
    while True:
        try:
            piece = await anext(pieces)
        except StopAsyncIteration:
            break
        except (aiohttp.ClientError, OSError) as error:
            log.warning("an answer broke off", extra={"path": request.path, "error": str(error)})
            if request.transport is not None:
                request.transport.abort()  # so that the client sees that the answer is incomplete
            return
        try:
            await response.write(piece)
        except ConnectionError:
            return  # the client has closed the connection
    with contextlib.suppress(ConnectionError):  # likewise
        await response.write_eof()


def _unanswered(error: Exception) -> QueryUnavailable:
    reason = str(error) or type(error).__name__
    return QueryUnavailable(f"the query process does not answer: {reason}; try again in a moment")


class QueryTurns:
    """Limits the number of concurrent queries, and pauses after each while kube-scheduler calls.

    A query uses a processor for the database, then one for this process: one at a time keeps one processor busy.

    Args:
        rest: The pause after a query, as a multiple of its duration; 0: no pauses, because there are enough
            processors for queries and calls.
    """

    def __init__(self, at_once: int, rest: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._rest = rest

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a query may run; the next one may run after the pause."""
        loop = asyncio.get_running_loop()
        await self._free.acquire()
        began_s = loop.time()
        try:
            yield
        finally:
            rest = self._rest if Yielder.has_recent_call() else 0.0
            rest_s = min(REST_S_MAX, rest * (loop.time() - began_s))
            loop.call_later(rest_s, self._free.release)

    @web.middleware
    async def in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer of a handler in its turn; streams are not limited, because they have no end."""
        ago_ms = milliseconds(request, CALLED)
        if self._rest and ago_ms is not None:
            Yielder.record_call(ago_ms / 1000)
        if "follow" in request.query:
            return await handler(request)
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(self.turn())
            request[TURN] = turn
            return await handler(request)


def as_caller(key: str) -> Middleware:
    """Return a middleware that takes from the service what the caller of a query may see.

    A query that is not from the service, or does not have it, is refused.
    """

    @web.middleware
    async def seen_by_caller(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(KEY, "")
        if not key or not secrets.compare_digest(given.encode(), key.encode()):
            raise web.HTTPForbidden
        try:
            request[VISIBILITY] = decoded_visibility(request.headers.get(VISIBLE, ""))
        except ValueError as error:
            raise web.HTTPForbidden from error
        return await handler(request)

    return seen_by_caller


async def serve_queries(
    parts: Iterable[Routed],
    listening: socket.socket,
    turns: QueryTurns,
    before_end: Callable[[], None],
    key: str,
) -> None:
    """Answer queries on a socket until SIGTERM.

    Args:
        before_end: Called after SIGTERM; ends streams.
    """
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    app = web.Application(middlewares=[problems, as_caller(key), turns.in_turn])
    for part in parts:
        app.add_routes(part.routes())
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=2 * KEEPALIVE_S,
        shutdown_timeout=END_S / 2,
        max_field_size=HEADER_MAX,
    )
    await runner.setup()
    await web.SockSite(runner, listening).start()
    await stopping.wait()
    before_end()
    await runner.cleanup()
