"""The usual calls of kube-scheduler, answered without aiohttp: bytes of a request in, bytes of a response out.

aiohttp takes 0.2 ms of CPU for a call, and as much again for each connection, of which kube-scheduler opens one (over HTTP/2: a stream) for
almost every bind call (K04). So a request that is exactly as Go writes it and passes all checks is answered here.
Everything else is left to aiohttp and its middlewares, which alone refuse: another header, method or path, a request that
is over a limit, of a caller who may not call, or that comes while this replica is not ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from extender.http.listener.client_certificate import ClientCertificate
from extender.http.listener.fast_path_requests import DirectRequest, DirectResponse
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.scheduler.wire import VerbAnswer, VerbCall, text_answer
from extender.http.web.request_limits import RequestLimits

log = logging.getLogger(__name__)

REASONS: Final = {200: "OK", 400: "Bad Request", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class DirectCaller(NamedTuple):
    """A caller who may call."""

    last_call: bool = False  # the connection is closed after the response


# None: aiohttp decides about the request
DirectCheck = Callable[[ClientCertificate | None, str], DirectCaller | None]


class DirectCalls:
    """Answers the calls of one listener.

    Args:
        sends_away: Returns whether connections are closed after their responses.
    """

    def __init__(
        self,
        verbs: VerbHandlers,
        limits: RequestLimits,
        check: DirectCheck,
        sends_away: Callable[[], bool],
    ) -> None:
        self._verbs = verbs
        self._limits = limits
        self._check = check
        self._sends_away = sends_away

    def begin(
        self,
        request: DirectRequest,
        certificate: ClientCertificate | None,
        closed: Callable[[], bool],
    ) -> DirectResponse | asyncio.Task[DirectResponse] | None:
        """Return the response, the task that makes it, or None; see `DirectAnswers`."""
        head, body = request
        caller = self._check(certificate, head.host)
        if caller is None or self._sends_away() or not self._verbs.may_answer_at_once():
            return None
        if not self._limits.accepts(f"/scheduler/{head.verb}", body):
            return None
        if head.verb == "bind":
            call = VerbCall("bind", body, closed)
            return asyncio.create_task(self._finish(call, caller))
        try:
            answer = self._verbs.answer_at_once(head.verb, body)
        except Exception:  # noqa: BLE001 -- logged, and answered as aiohttp does
            return _failed(head.verb)
        return _response(answer, closes=caller.last_call)

    async def _finish(self, call: VerbCall, caller: DirectCaller) -> DirectResponse:
        try:
            with self._limits.in_flight(len(call.body)):
                answer = await self._verbs.answer(call)
        except Exception:  # noqa: BLE001 -- logged, and answered as aiohttp does
            return _failed(call.verb)
        return _response(answer, closes=caller.last_call or self._sends_away())


def _failed(verb: str) -> DirectResponse:
    log.error("a call failed unexpectedly", extra={"verb": verb}, exc_info=True)  # noqa: LOG014 -- called in a handler
    return _response(text_answer(500, "500 Internal Server Error"), closes=True)


def _response(answer: VerbAnswer, *, closes: bool) -> DirectResponse:
    """Return the bytes of an answer, with the headers that aiohttp sends."""
    more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    if closes:
        more += "Connection: close\r\n"
    head = (
        f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Unknown')}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n{more}\r\n"
    )
    return DirectResponse(head.encode() + answer.body, closes)
