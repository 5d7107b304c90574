"""Forward a call of kube-scheduler, or a request to make moves, to the leader unchanged, and return its answer.

kube-scheduler can call any replica; a follower finds the address of the leader in the lease. A forwarded call has a
header with its age, so that the leader counts the time that was spent here, and a replica that does not lead does not
forward it again. A call waits here for a leader only where waiting helps: while the lease changes its holder, and at
bind, which kube-scheduler runs in a goroutine of its own. Filter runs in the one scheduling cycle of kube-scheduler:
when the leader does not answer, one call waits until its deadline, and the calls of the next second fail at once.

Note: when kube-scheduler closes the connection of a call, the forwarded call must be cancelled, or the leader would
bind a pod for which kube-scheduler has given up. So the connections of open calls are checked at short intervals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import hdrs, web

from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import HANDOVER_MS
from extender.core.model.errors import NotReady, QueryUnavailable
from extender.http.listener.tls_contexts import TlsContexts
from extender.http.responses.request_visibility import body_of
from extender.http.scheduler import wire
from extender.http.scheduler.wire import JSON, Verb, VerbAnswer, VerbCall, text_answer
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

FORWARDED = "Gang-Extender-Forwarded"  # on a request: milliseconds since the first replica got it
# On a request with a client certificate: whether it is the certificate of a replica.
FROM_REPLICA = web.RequestKey("from-replica", bool)
# on an answer: this replica does not lead and did nothing
MISDIRECTED = "Gang-Extender-Not-Leading"
CONNECT_S = 0.5
FETCH_S = 2.0
PLAN_S = 75.0  # a plan takes a minute at most
PASSED_BACK = ("X-Log-Position", "Retry-After", "WWW-Authenticate")  # headers of an answer
SILENT_S = 1.0  # a leader that did not answer gets no calls for this time, except bind
LOOK_S = 0.05  # a closed connection of a caller is noticed within this time
HUNG_UP = 499


class LeaderProxy:
    """Forwards calls to the leader over one HTTP session."""

    def __init__(self, leader: Leader, settings: Settings, tls: TlsContexts | None = None) -> None:
        self._leader = leader
        self._tls = tls
        self._tls_name = settings.tls_server_name or None
        self._here = settings.identity
        self._filter_s = settings.filter_deadline_ms / 1000
        self._bind_s = settings.bind_timeout_s - min(2.0, settings.bind_timeout_s / 10)
        self._session: aiohttp.ClientSession | None = None
        self._silent: tuple[str, float, str] = ("", 0.0, "")  # address, until when, why
        self._tasks: dict[asyncio.Task[tuple[VerbAnswer, bool]], VerbCall] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False
        self.open = 0  # calls that wait here for an answer

    def stop(self) -> None:
        """Answer all calls that wait here; kube-scheduler calls another replica next."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def _is_stopped(self) -> bool:
        return self._stopped  # a method, because the value changes while a call waits

    async def close(self) -> None:
        """Close the connections."""
        if self._watching is not None:
            self._watching.cancel()
        if self._session is not None:
            await self._session.close()

    async def forward(self, call: VerbCall) -> VerbAnswer | None:
        """Return the answer of the leader or an error with the reason; None when this replica leads now."""
        if call.forwarded:
            return self.sent_back(call.verb)
        self.open += 1
        try:
            return await self._until_answered(call)
        finally:
            self.open -= 1

    def sent_back(self, verb: Verb) -> VerbAnswer:
        """Return the answer to another replica that this one does not lead and did nothing."""
        reason = f"{self._here} is not the leader: {self._leader.not_ready_reason()}"
        return self._cannot(verb, reason, {MISDIRECTED: self._here})

    async def fetch(self, path: str) -> bytes:
        """Return what the leader answers to GET of a path, which is not its error.

        Raises:
            NotReady: No replica leads, or the leader does not answer.
        """
        address, reason = self._leader_now(even_silent=True)
        if not address:
            raise NotReady(reason)
        try:
            reply = await self._exchange("GET", f"{address}{path}", FETCH_S)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotReady(self._no_answer(address, error)) from error
        if reply.status != HTTPStatus.OK:
            raise NotReady(f"{address}{path} answered {reply.status}")
        return reply.body

    async def pass_on(self, request: web.Request, path: str) -> web.Response | None:
        """Return what the leader answers to POST of the body of a request to a path; None where this replica leads.

        The token of the caller goes with it, so that the leader checks the right itself.

        Raises:
            QueryUnavailable: No replica leads, or the leader does not answer.
        """
        if self._leader.leads():
            return None
        address, reason = self._leader_now(even_silent=True)
        if not address:
            raise QueryUnavailable(f"{request.path} is answered by the leader. {reason}")
        headers = {"Content-Type": JSON}
        if hdrs.AUTHORIZATION in request.headers:
            headers[hdrs.AUTHORIZATION] = request.headers[hdrs.AUTHORIZATION]
        try:
            reply = await self._exchange(
                "POST", f"{address}{path}", PLAN_S, body_of(request), headers
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise QueryUnavailable(
                f"{request.path}: the leader at {address} gave no answer ({type(error).__name__}: {error}), and may have done "
                "what was asked; look at `gang-extender moves` before you ask again"
            ) from error
        return reply.response()

    async def _exchange(
        self,
        method: str,
        url: str,
        within_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> VerbAnswer:
        """Return the response to a request."""
        async with self._connections().request(
            method,
            url,
            timeout=aiohttp.ClientTimeout(total=within_s, sock_connect=CONNECT_S),
            data=body,
            headers=headers,
            **self._tls_options(),
        ) as reply:
            kept = {name: reply.headers[name] for name in PASSED_BACK if name in reply.headers}
            return VerbAnswer(await reply.read(), reply.status, reply.content_type, kept)

    async def _until_answered(self, call: VerbCall) -> VerbAnswer | None:
        verb, began_s = call.verb, _now_s()
        deadline_s = began_s + (self._bind_s if verb == "bind" else self._filter_s)
        while not call.closed():
            if self._leader.leads():
                return None
            address, reason = self._leader_now(even_silent=verb == "bind")
            if address and not self._stopped:
                try:
                    answer, misdirected = await self._send(address, call, began_s, deadline_s)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    reason = self._no_answer(address, error)
                except asyncio.CancelledError:
                    if not (self._is_stopped() or call.closed()):
                        raise
                    reason = "this replica is stopping"
                else:
                    if not misdirected:
                        METRICS.extender_requests.labels(verb, "forwarded").inc()
                        METRICS.extender_request_duration_seconds.labels(verb).observe(
                            _now_s() - began_s
                        )
                        return answer
                    reason = f"{address} does not lead any more"
            over = self._is_stopped() or _now_s() + LOOK_S >= deadline_s
            if over or not self._worth_waiting(verb, address):
                return self._cannot(verb, reason or "this replica is stopping")
            await asyncio.sleep(LOOK_S)
        METRICS.extender_requests.labels(verb, "hung-up").inc()
        return VerbAnswer(b"", HUNG_UP)

    def _leader_now(self, *, even_silent: bool) -> tuple[str, str]:
        """Return the address of the leader, or an empty string and the reason why there is none.

        Args:
            even_silent: Also of one that has just given no answer.
        """
        held = self._leader.follower.lease
        if held is None or held.expired or not held.address:
            return (
                "",
                f"lease: no replica holds it; this replica: {self._leader.not_ready_reason()}",
            )
        if self._lacks_tls(held.address):
            return (
                "",
                f"the leader {held.holder} is at {held.address}, which has no TLS; set it up there too",
            )
        silent, until_s, reason = self._silent
        if not even_silent and silent == held.address and _now_s() < until_s:
            return "", reason
        return held.address, ""

    def _worth_waiting(self, verb: Verb, address: str) -> bool:
        """Return whether a leader may answer soon."""
        held = self._leader.follower.lease
        if verb == "bind" and (held is None or held.expired or not self._lacks_tls(held.address)):
            return True
        lease_free_ms = self._leader.follower.lease_free_ms()
        handed_over = address and self._silent[0] != address  # it answered that it does not lead
        return bool(handed_over) or 0 < lease_free_ms < HANDOVER_MS

    def _lacks_tls(self, address: str) -> bool:
        """Return whether calls must not be sent to an address, as long as that leader has the lease."""
        return self._tls is not None and bool(address) and not address.startswith("https:")

    def _no_answer(self, address: str, error: Exception) -> str:
        held = self._leader.follower.lease
        ttl_s = held.ttl_ms / 1000 if held is not None else 0
        reason = (
            f"this replica follows {held.holder if held is not None else '?'} at {address}, which does not "
            f"answer ({type(error).__name__}: {str(error) or 'no answer in time'}); if it has ended, another "
            f"takes over within {ttl_s:.0f} s, else check GANG_EXTENDER_ADVERTISE_URL of that replica"
        )
        if self._silent[2] != reason:
            log.warning("the leader does not answer", extra={"reason": reason})
        self._silent = (address, _now_s() + SILENT_S, reason)
        return reason

    async def _send(
        self, address: str, call: VerbCall, began_s: float, deadline_s: float
    ) -> tuple[VerbAnswer, bool]:
        """Return the answer of one request, and whether that replica does not lead; it is cancelled when the caller closes its connection."""
        task = asyncio.create_task(
            self._post(f"{address}/scheduler/{call.verb}", call.body, began_s, deadline_s),
            name=f"forward {call.verb}",
        )
        self._tasks[task] = call
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._cancel_closed(), name="closed connections")
        try:
            return await task
        finally:
            del self._tasks[task]
            task.cancel()

    async def _post(
        self, url: str, body: bytes, began_s: float, deadline_s: float
    ) -> tuple[VerbAnswer, bool]:
        now_s = _now_s()
        left = aiohttp.ClientTimeout(total=max(LOOK_S, deadline_s - now_s), sock_connect=CONNECT_S)
        headers = {FORWARDED: str(int((now_s - began_s) * 1000)), "Content-Type": JSON}
        async with self._connections().post(
            url, data=body, headers=headers, timeout=left, **self._tls_options()
        ) as reply:
            answer = VerbAnswer(await reply.read(), reply.status, reply.content_type)
            return answer, MISDIRECTED in reply.headers

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls.forwarding, "server_hostname": self._tls_name}

    async def _cancel_closed(self) -> None:
        while self._tasks:
            await asyncio.sleep(LOOK_S)
            for task, call in self._tasks.items():
                if call.closed():
                    task.cancel()

    def _cannot(self, verb: Verb, reason: str, headers: dict[str, str] | None = None) -> VerbAnswer:
        METRICS.extender_requests.labels(verb, "not-forwarded").inc()
        log.debug("call", extra={"verb": verb, "outcome": "not-forwarded", "error": reason})
        return error_answer(verb, f"cannot answer now: {reason}", headers)


def error_answer(verb: Verb, text: str, headers: dict[str, str] | None = None) -> VerbAnswer:
    """Return the error response of a verb (K11)."""
    if verb == "preempt":
        return text_answer(503, text, headers)
    answers: dict[str, object] = {
        "filter": wire.ExtenderFilterResult(error=text, node_names=[]),
        "prioritize": [],
        "bind": wire.ExtenderBindingResult(error=text),
    }
    return VerbAnswer(wire.encode(answers[verb]), headers=headers or {})


def call_of(verb: Verb, request: web.Request) -> VerbCall:
    """Return the call that a request is."""
    # with client certificates, only a call that a replica sent counts as forwarded
    forwarded = FORWARDED in request.headers and request.get(FROM_REPLICA, True)
    return VerbCall(
        verb=verb,
        body=body_of(request),
        closed=lambda: connection_closed(request),
        forwarded=forwarded,
        waited_ms=(milliseconds(request, FORWARDED) or 0) if forwarded else 0,
    )


def milliseconds(request: web.Request, header: str) -> int | None:
    """Return a header in milliseconds, 1,000 seconds at most; None where there is none."""
    text = request.headers.get(header, "")
    return min(int(text), 10**6) if text.isascii() and text.isdigit() else None


def connection_closed(request: web.Request) -> bool:
    """Return whether the caller has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
