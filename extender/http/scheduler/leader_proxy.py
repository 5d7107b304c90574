"""Send a call of kube-scheduler on to the replica that leads, byte for byte, and its answer back.

A follower is as good an address as the leader: the lease names who leads, and what is forwarded says so in a
header with its age, so that the leader counts the time that was spent here and whoever does not lead answers
at once instead of forwarding again. A call waits here for a leader only where waiting helps: while the lease
changes hands, and at bind, which kube-scheduler runs beside everything else. Filter is in its one scheduling
cycle, so a leader that does not answer costs one call its deadline and the calls of the next second nothing.

The surprise: who hangs up here must be seen to hang up by the leader, or it binds a pod that kube-scheduler has
given up. So the connection of each open call is looked at, and the call behind it cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import aiohttp
import msgspec
from aiohttp import web

from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import HANDOVER_MS
from extender.http.scheduler import wire
from extender.settings import Settings
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

Verb = Literal["filter", "prioritize", "preempt", "bind"]
FORWARDED = "Gang-Extender-Forwarded"  # on a request: milliseconds it has waited with others
MISDIRECTED = "Gang-Extender-Not-Leading"  # on an answer: nothing was done, ask who leads
CONNECT_S = 0.5
SILENT_S = 1.0  # who did not answer is not asked again for so long, but for bind
LOOK_S = 0.05  # who hangs up is noticed within this time
HUNG_UP = 499


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str
    misdirected: bool


class LeaderProxy:
    """One session to whoever leads."""

    def __init__(self, leader: Leader, settings: Settings) -> None:
        self._leader = leader
        self._here = settings.holder
        self._filter_s = settings.filter_deadline_ms / 1000
        self._bind_s = settings.bind_timeout_s - min(2.0, settings.bind_timeout_s / 10)
        self._session: aiohttp.ClientSession | None = None
        self._silent: tuple[str, float, str] = ("", 0.0, "")  # address, until when, why
        self._asked: dict[asyncio.Task[_Answer], web.Request] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False
        self.open = 0  # calls that wait for an answer here

    def stop(self) -> None:
        """Answer everybody who waits here; kube-scheduler asks another replica next."""
        self._stopped = True
        for asking in self._asked:
            asking.cancel()

    def _is_stopped(self) -> bool:
        return self._stopped  # what changes while a call waits

    async def close(self) -> None:
        """Drop the connections."""
        if self._looking is not None:
            self._looking.cancel()
        if self._session is not None:
            await self._session.close()

    async def forward(self, verb: Verb, request: web.Request, body: bytes) -> web.Response | None:
        """Give the leader's answer, or an error that says why there is none; None when we lead by now."""
        if FORWARDED in request.headers:
            return self.sent_back(verb)
        self.open += 1
        try:
            return await self._until_answered(verb, request, body)
        finally:
            self.open -= 1

    def sent_back(self, verb: Verb) -> web.Response:
        """Tell another replica that nothing was done here; it asks whoever leads then."""
        why = f"{self._here} was asked as the leader and is not: {self._leader.doubt()}"
        return self._cannot(verb, why, {MISDIRECTED: self._here})

    async def _until_answered(
        self, verb: Verb, request: web.Request, body: bytes
    ) -> web.Response | None:
        began_s = _now_s()
        deadline_s = began_s + (self._bind_s if verb == "bind" else self._filter_s)
        while not gone(request):
            if self._leader.leads():
                return None
            address, trouble = self._leader_now(verb)
            if address and not self._stopped:
                try:
                    answer = await self._ask(
                        address, verb, request, body, began_s=began_s, deadline_s=deadline_s
                    )
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    trouble = self._no_answer(address, error)
                except asyncio.CancelledError:
                    if not (self._is_stopped() or gone(request)):
                        raise
                    trouble = "this replica is stopping"
                else:
                    if not answer.misdirected:
                        METRICS.calls.labels(verb, "forwarded").inc()
                        METRICS.call_seconds.labels(verb).observe(_now_s() - began_s)
                        return web.Response(
                            status=answer.status, body=answer.body, content_type=answer.content_type
                        )
                    trouble = f"{address} does not lead any more"
            over = self._is_stopped() or _now_s() + LOOK_S >= deadline_s
            if over or not self._worth_waiting(verb, address):
                return self._cannot(verb, trouble or "this replica is stopping")
            await asyncio.sleep(LOOK_S)
        METRICS.calls.labels(verb, "hung-up").inc()
        return web.Response(status=HUNG_UP)

    def _leader_now(self, verb: Verb) -> tuple[str, str]:
        """Give the address to ask, or why there is none."""
        held = self._leader.following.lease
        if held is None or held.expired or not held.address:
            return "", f"lease: nobody leads; this replica: {self._leader.doubt()}"
        silent, until_s, why = self._silent
        if verb != "bind" and silent == held.address and _now_s() < until_s:
            return "", why
        return held.address, ""

    def _worth_waiting(self, verb: Verb, asked: str) -> bool:
        """Say whether somebody who answers may be there in a moment."""
        if verb == "bind":
            return True
        free_ms = self._leader.following.free_ms()
        handed_over = asked and self._silent[0] != asked  # it answered: that it does not lead
        return bool(handed_over) or 0 < free_ms < HANDOVER_MS

    def _no_answer(self, address: str, error: Exception) -> str:
        held = self._leader.following.lease
        ttl_s = held.ttl_ms / 1000 if held is not None else 0
        why = (
            f"this replica follows {held.holder if held is not None else '?'} at {address}, which does not "
            f"answer ({type(error).__name__}: {str(error) or 'no answer in time'}); when it is gone another "
            f"takes over within {ttl_s:.0f} s, else see GANG_EXTENDER_ADVERTISE of that replica"
        )
        if self._silent[2] != why:
            log.warning("the leader does not answer", extra={"reason": why})
        self._silent = (address, _now_s() + SILENT_S, why)
        return why

    async def _ask(
        self, address: str, verb: Verb, request: web.Request, body: bytes, *, began_s: float, deadline_s: float
    ) -> _Answer:  # fmt: skip
        """Ask once; cancelled when the caller hangs up."""
        asking = asyncio.create_task(
            self._post(f"{address}/scheduler/{verb}", body, began_s, deadline_s),
            name=f"forward {verb}",
        )
        self._asked[asking] = request
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_after(), name="callers that hang up")
        try:
            return await asking
        finally:
            del self._asked[asking]
            asking.cancel()

    async def _post(self, url: str, body: bytes, began_s: float, deadline_s: float) -> _Answer:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        now_s = _now_s()
        left = aiohttp.ClientTimeout(total=max(LOOK_S, deadline_s - now_s), sock_connect=CONNECT_S)
        headers = {
            FORWARDED: str(int((now_s - began_s) * 1000)),
            "Content-Type": "application/json",
        }
        async with self._session.post(url, data=body, headers=headers, timeout=left) as reply:
            return _Answer(
                status=reply.status,
                body=await reply.read(),
                content_type=reply.content_type,
                misdirected=MISDIRECTED in reply.headers,
            )

    async def _look_after(self) -> None:
        while self._asked:
            await asyncio.sleep(LOOK_S)
            for asking, request in self._asked.items():
                if gone(request):
                    asking.cancel()

    def _cannot(self, verb: Verb, why: str, headers: dict[str, str] | None = None) -> web.Response:
        METRICS.calls.labels(verb, "not-forwarded").inc()
        log.info("call", extra={"verb": verb, "outcome": "not-forwarded", "error": why})
        return cannot_answer(verb, f"cannot answer now: {why}", headers)


def cannot_answer(verb: Verb, text: str, headers: dict[str, str] | None = None) -> web.Response:
    """Say so as each verb can (DESIGN 7)."""
    if verb == "preempt":
        return web.Response(status=503, text=f"{text}\n", headers=headers)
    answers: dict[str, object] = {
        "filter": wire.ExtenderFilterResult(error=text, node_names=[]),
        "prioritize": [],
        "bind": wire.ExtenderBindingResult(error=text),
    }
    body = wire.encode(answers[verb])
    return web.Response(body=body, content_type="application/json", headers=headers)


def waited_ms(request: web.Request) -> int:
    """Say how long a forwarded call has waited before it came here; 0 for one that was not forwarded."""
    return milliseconds(request, FORWARDED) or 0


def milliseconds(request: web.Request, header: str) -> int | None:
    """Read a header that is a time, a thousand seconds at most; None where there is none."""
    text = request.headers.get(header, "")
    return min(int(text), 10**6) if text.isascii() and text.isdigit() else None


def gone(request: web.Request) -> bool:
    """Say whether the caller has hung up."""
    return request.transport is None or request.transport.is_closing()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
