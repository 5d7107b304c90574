"""Questions that the log alone can answer go to a process of their own, so that no call of kube-scheduler waits for them.

`Apart` is the side of the service: it has the other process running, sends each question there and the answer back,
piece by piece. `answering` is the other side (extender/query_main.py): an application with handlers that know no state
but the database.

The surprise: the listening socket belongs to the service and outlives who accepts on it. A question that comes while
the other process starts waits in the socket's queue; one whose process dies before it answered is asked once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict
from yarl import URL

from extender.core.model.errors import QueryUnavailable
from extender.http.responses.error_responses import Handler, problems
from extender.http.responses.json_responses import TURN
from extender.http.scheduler.leader_proxy import milliseconds
from extender.http.web.server import KEEPALIVE_S, Routed
from extender.runtime.cooperative_yield import Yielder

log = logging.getLogger(__name__)

PATHS = (
    "/v1/events",
    "/v1/state",
    "/v1/reports",
    "/v1/reports/{name}",
    "/v1/gangs/{namespace}/{name}/history",
    "/v1/decisions/{id}",
    "/v1/preemptions",
)
CALLED = "Gang-Extender-Called"  # on a question: milliseconds since kube-scheduler's last call, if it calls now
CARRIED = ("Accept", "If-None-Match", "Last-Event-ID")  # of a question
NOT_CARRIED = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)
WAITING = 512  # connections that may wait to be accepted
SILENT_S = 60.0  # a statement takes five seconds at most, and a stream says something every ten
WHOLE_BYTES = 64 * 1024  # an answer up to this size is sent in one piece
WARM_S = 10.0  # after its start the service has other things to do, unless somebody asks
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0  # before the other process is started again
STEADY_S = 60.0  # one that ran for so long had not failed at once
END_S = 2.0
REST_S_MAX = 0.5  # after a question that took long; the next asker waits for it


class QueryProcessOptions(msgspec.Struct, frozen=True):
    """What the other process reads from its standard input; the URL may hold a password."""

    database_url: str
    log_level: str
    service: int  # process id; the other process ends with it
    listening: int  # file descriptor of the socket to accept on


class QueryProcess:
    """Handlers of `PATHS`.

    Args:
        command: Runs the other process.
        database_url: For the other process.
        log_level: For the other process.
    """

    def __init__(self, command: Sequence[str], database_url: str, log_level: str) -> None:
        self._command = command
        self._database_url = database_url
        self._log_level = log_level
        self._listening: socket.socket | None = None
        self._session: aiohttp.ClientSession | None = None
        self._process: Process | None = None
        self._wanted = asyncio.Event()
        self._stopped = False

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [web.get(path, self.forward) for path in PATHS]

    @property
    def pid(self) -> int | None:
        """Give the id of the process that answers; None while there is none."""
        return self._process.pid if self._process is not None else None

    def open(self) -> None:
        """Begin to take questions; they wait until `run` has a process for them."""
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=WAITING)

    async def run(self) -> None:
        """Have the other process running, for ever: from the first question on, or from soon after the start."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WARM_S):
                await self._wanted.wait()
        pause_s = PAUSE_FIRST_S
        while True:
            began_s = loop.time()
            code = await (await self._start()).wait()
            if self._stopped:
                return
            if loop.time() - began_s > STEADY_S:
                pause_s = PAUSE_FIRST_S
            log.warning(
                "the process that answers questions has ended, another is started",
                extra={"exit": code, "in_s": pause_s},
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _start(self) -> Process:
        assert self._listening is not None, "not opened"
        number = self._listening.fileno()
        given = QueryProcessOptions(self._database_url, self._log_level, os.getpid(), number)
        process = await create_subprocess_exec(
            *self._command, stdin=PIPE, pass_fds=(number,),
            start_new_session=True,  # Linux shares processors out among sessions: it shall not use our share up
        )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(given))
        process.stdin.close()
        return process

    def stop(self) -> None:
        """Have the other process end its streams, and itself; open questions are answered until then."""
        self._stopped = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def close(self) -> None:
        """Wait for its end, make it if need be, and free what it used."""
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
        """Give the other process's answer, piece by piece.

        Raises:
            Unanswered: There is none.
        """
        headers = {name: request.headers[name] for name in CARRIED if name in request.headers}
        async with self._asked(request, request.method, headers) as reply:
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
        """Give the other process's answer in one piece.

        Args:
            request: The question.
            headers: Sent in place of the asker's own.

        Raises:
            Unanswered: There is no answer.
        """
        async with self._asked(request, "GET", headers) as reply:
            return await _whole(reply)

    @contextlib.asynccontextmanager
    async def _asked(
        self, request: web.Request, method: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask, and ask once more when the process that was asked is not there any more."""
        if self._listening is None:
            raise QueryUnavailable("this replica is stopping; ask another one")
        self._wanted.set()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENT_S),
                auto_decompress=False,
            )
        if Yielder.calls():
            headers = {**headers, CALLED: str(int(Yielder.calm_s() * 1000))}
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
    return web.Response(status=reply.status, headers=_kept(reply), body=body)


async def _pass_on(
    reply: aiohttp.ClientResponse, response: web.StreamResponse, request: web.Request
) -> None:
    """Send an answer piece by piece; one that breaks off breaks off for the asker as well."""
    pieces = reply.content.iter_any()
    while True:
        try:
            piece = await anext(pieces)
        except StopAsyncIteration:
            break
        except (aiohttp.ClientError, OSError) as error:
            log.warning("an answer broke off", extra={"path": request.path, "error": str(error)})
            if request.transport is not None:
                request.transport.abort()  # no end of the answer: who reads it sees that it is cut
            return
        try:
            await response.write(piece)
        except ConnectionError:
            return  # the asker has gone
    with contextlib.suppress(ConnectionError):  # likewise
        await response.write_eof()


def _unanswered(error: Exception) -> QueryUnavailable:
    told = str(error) or type(error).__name__
    return QueryUnavailable(
        f"the process that answers questions does not: {told}; ask again in a moment"
    )


class QueryTurns:
    """Questions worked on at the same time, and the rest after each while kube-scheduler calls.

    What a question costs is the database's time, then ours: one at a time keeps one processor busy, not two.

    Args:
        at_once: So many.
        rest: So many times as long as a question was worked on, the next one waits; 0: calls and questions have
            processors of their own, and answers need no pace either.
    """

    def __init__(self, at_once: int, rest: float) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._rest = rest

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and give it back."""
        loop = asyncio.get_running_loop()
        await self._free.acquire()
        began_s = loop.time()
        try:
            yield
        finally:
            rest = self._rest if Yielder.calls() else 0.0
            rest_s = min(REST_S_MAX, rest * (loop.time() - began_s))
            loop.call_later(rest_s, self._free.release)

    def middleware(self) -> Middleware:
        """Give each question a turn; a stream, which has no end, needs none."""

        @web.middleware
        async def in_turn(request: web.Request, handler: Handler) -> web.StreamResponse:
            ago_ms = milliseconds(request, CALLED)
            if self._rest and ago_ms is not None:
                Yielder.called(ago_ms / 1000)
            if "follow" in request.query:
                return await handler(request)
            async with contextlib.AsyncExitStack() as turn:
                await turn.enter_async_context(self.turn())
                request[TURN] = turn
                return await handler(request)

        return in_turn


async def answering(
    parts: Iterable[Routed],
    listening: socket.socket,
    turns: QueryTurns,
    before_end: Callable[[], None],
) -> None:
    """Answer questions on a socket until SIGTERM.

    Args:
        parts: The handlers.
        listening: From the service.
        turns: When each question is worked on.
        before_end: Called first when the end is asked for; ends streams.
    """
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    app = web.Application(middlewares=[problems, turns.middleware()])
    for part in parts:
        app.add_routes(part.routes())
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=2 * KEEPALIVE_S, shutdown_timeout=END_S / 2
    )
    await runner.setup()
    await web.SockSite(runner, listening).start()
    await stopping.wait()
    before_end()
    await runner.cleanup()
