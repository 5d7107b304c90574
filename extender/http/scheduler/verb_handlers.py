"""The four verbs over HTTP: decode, call the service, encode, count; one log line per call at level DEBUG.

A body that does not decode is a 400. "Cannot answer now" goes into the `Error` field of filter and
bind; prioritize then has no opinion (`[]`), and preempt, which has no such field, is a 503.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import msgspec
from aiohttp import web
from prometheus_client import Counter, Histogram

from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import ExtenderService
from extender.core.model.errors import BadInput, NotReady
from extender.core.model.ids import NodeName
from extender.core.model.pods import Pod
from extender.core.verbs.preempt_verb import NodeCandidate
from extender.http.responses.json_responses import Handler
from extender.http.scheduler import wire
from extender.http.scheduler.leader_proxy import LeaderProxy, call_of, error_answer
from extender.http.scheduler.wire import Verb, VerbAnswer, VerbCall, text_answer
from extender.ports.cluster_ports import PodRef
from extender.runtime.cooperative_yield import Yielder
from extender.telemetry import METRICS, LimitedLines

log = logging.getLogger(__name__)

TAKE_OVER_S = 1.0  # how long calls wait for the first pass of a new leader before they fail
UNDECODABLE_BODIES = LimitedLines(log, "undecodable body")
PodReader = Callable[[bytes], Pod]
# of msgspec: deep nesting raises RecursionError, broken UTF-8 in raw bytes UnicodeDecodeError
UNDECODABLE = (msgspec.MsgspecError, BadInput, RecursionError, UnicodeDecodeError)


class VerbHandlers:
    """Handlers of /scheduler/*."""

    def __init__(
        self,
        scheduling: ExtenderService,
        leader: Leader,
        read_pod: PodReader,
        forwarder: LeaderProxy,
    ) -> None:
        self._scheduling = scheduling
        self._leader = leader
        self._forwarder = forwarder
        self._read_pod = read_pod

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the verbs; another path is a 404, another method a 405."""
        return [web.post(f"/scheduler/{verb}", self._handler(verb)) for verb in get_args(Verb)]

    def _handler(self, verb: Verb) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            return (await self.answer(call_of(verb, request))).response()

        return handle

    async def answer(self, call: VerbCall) -> VerbAnswer:
        """Return the answer to a call, from this replica or from the leader.

        That to bind may take as long as the bind barrier, and continue at the next leader.
        """
        started = time.perf_counter()
        if call.verb == "bind":
            return await self._bind(call, started)
        if (answer := await self._from_leader(call)) is not None:
            return answer
        match call.verb:
            case "filter":
                return self._filter(call.body, started)
            case "prioritize":
                return self._prioritize(call.body, started)
            case "preempt":
                return await self._preempt(call.body, started)

    def may_answer_at_once(self) -> bool:
        """Return whether this replica leads and is ready: filter and prioritize then wait for nothing."""
        return self._scheduling.ready()

    def answer_at_once(self, verb: Literal["filter", "prioritize"], body: bytes) -> VerbAnswer:
        """Return the answer to a call while `may_answer_at_once`."""
        started = time.perf_counter()
        Yielder.record_call()
        if verb == "filter":
            return self._filter(body, started)
        return self._prioritize(body, started)

    async def _from_leader(self, call: VerbCall) -> VerbAnswer | None:
        """Return the answer of the leader, or None when this replica leads."""
        Yielder.record_call()
        while not self._leader.leads():
            answer = await self._forwarder.forward(call)
            if answer is not None:
                return answer
        if self._scheduling.reconciling():
            await self._scheduling.until_reconciled(TAKE_OVER_S)
        return None

    def _filter(self, body: bytes, started: float) -> VerbAnswer:
        try:
            args, pod, offered = self._read_args(body)
        except UNDECODABLE as error:
            return _bad("filter", error)
        try:
            decision = self._scheduling.filter(pod, offered)
        except NotReady as error:
            self._line("filter", "cannot-answer", started, pod, offered=len(offered), left=0)
            return error_answer("filter", str(error))
        failed = dict.fromkeys(decision.refused, decision.reason)
        result = wire.filter_result(args, set(decision.passed), failed)
        outcome, left = decision.outcome, len(decision.passed)
        self._line("filter", outcome, started, pod, offered=len(offered), left=left)
        return VerbAnswer(wire.encode(result))

    def _prioritize(self, body: bytes, started: float) -> VerbAnswer:
        try:
            _, pod, offered = self._read_args(body)
        except UNDECODABLE as error:
            return _bad("prioritize", error)
        scores = self._scheduling.prioritize(pod, offered)
        answers = [wire.HostPriority(host=name, score=score) for name, score in scores]
        outcome = "scored" if scores else "no-opinion"
        self._line("prioritize", outcome, started, pod, offered=len(offered), left=len(answers))
        return VerbAnswer(wire.encode(answers))

    def _read_args(self, body: bytes) -> tuple[wire.ExtenderArgs, Pod, list[NodeName]]:
        args = wire.decode_args(body)
        return args, self._pod(args.pod), wire.offered_names(args)

    def _pod(self, body: msgspec.Raw) -> Pod:
        """Return the pod of a call as the informers know it; an unknown pod is read from the call."""
        observed = self._scheduling.known_pod(wire.uid_of(body))
        return observed if observed is not None else self._read_pod(bytes(body))

    async def _preempt(self, body: bytes, started: float) -> VerbAnswer:
        try:
            args = wire.decode_preemption(body)
            pod = self._pod(args.pod)
        except UNDECODABLE as error:
            return _bad("preempt", error)
        candidates = _candidates(args)
        try:
            chosen = await self._scheduling.preempt(pod, candidates)
        except NotReady as error:
            self._line("preempt", "cannot-answer", started, pod, offered=0, left=0)
            return error_answer("preempt", str(error))
        outcome = "passed" if chosen or not candidates else "refused"
        self._line("preempt", outcome, started, pod, offered=len(candidates), left=len(chosen))
        return VerbAnswer(wire.preemption_result(_meta_victims(chosen)))

    async def _bind(self, call: VerbCall, started: float) -> VerbAnswer:
        while True:
            if (answer := await self._from_leader(call)) is not None:
                return answer
            try:
                args = wire.decode_binding(call.body)
            except UNDECODABLE as error:
                return _bad("bind", error)
            ref = PodRef(namespace=args.pod_namespace, name=args.pod_name, uid=args.pod_uid)
            age_ms = call.waited_ms + int((time.perf_counter() - started) * 1000)
            refusal = await self._scheduling.bind(
                ref, args.node, lambda: not call.closed(), age_ms=age_ms
            )
            if refusal and self._leader.not_ready_reason() and call.forwarded:
                return self._forwarder.sent_back("bind")
            if not refusal or self._leader.leads():
                return self._bound(ref, args.node, refusal, started)

    def _bound(self, ref: PodRef, node: NodeName, refusal: str, started: float) -> VerbAnswer:
        outcome = "refused" if refusal else "bound"
        seconds = _count("bind", outcome, started)
        if log.isEnabledFor(logging.DEBUG):
            pod = f"{ref.namespace}/{ref.name}"
            about = {"pod": pod, "pod_uid": ref.uid, "node": node, "error": refusal}
            self._log("bind", outcome, seconds, about)
        if not refusal:
            return BOUND
        return VerbAnswer(wire.encode(wire.ExtenderBindingResult(error=refusal)))

    def _line(
        self, verb: Verb, outcome: str, started: float, pod: Pod, *, offered: int, left: int
    ) -> None:
        seconds = _count(verb, outcome, started)
        if log.isEnabledFor(logging.DEBUG):
            group = str(pod.group) if pod.group is not None else ""
            about = {"pod": pod.path, "pod_uid": pod.uid, "group": group}
            self._log(
                verb, outcome, seconds, {**about, "nodes_offered": offered, "nodes_left": left}
            )

    def _log(self, verb: Verb, outcome: str, seconds: float, about: Mapping[str, object]) -> None:
        where = {"epoch": self._leader.epoch, "position": self._leader.committed.position}
        call = {"verb": verb, "outcome": outcome, **about, **where}
        log.debug("call", extra={**call, "total_ms": round(seconds * 1000, 3)})


BOUND = VerbAnswer(wire.encode(wire.ExtenderBindingResult(error="")))


@functools.cache
def _counter(verb: Verb, outcome: str) -> Counter:
    return METRICS.extender_requests.labels(verb, outcome)


@functools.cache
def _duration(verb: Verb) -> Histogram:
    return METRICS.extender_request_duration_seconds.labels(verb)


def _count(verb: Verb, outcome: str, started: float) -> float:
    """Count a call and return how long it took, in seconds."""
    seconds = time.perf_counter() - started
    _counter(verb, outcome).inc()
    _duration(verb).observe(seconds)
    return seconds


def _candidates(args: wire.ExtenderPreemptionArgs) -> list[NodeCandidate]:
    """Return the candidates with UIDs of victims; without nodes that have none: kube-scheduler panics on them."""
    metas = args.node_name_to_meta_victims or {}
    offered = {name: ([pod.uid for pod in v.pods or ()], v.num_pdb_violations) for name, v in metas.items()}  # fmt: skip
    for name, victims in (args.node_name_to_victims or {}).items():
        uids = [pod.metadata.uid for pod in victims.pods or ()]
        offered[name] = uids, victims.num_pdb_violations
    return [
        NodeCandidate(node=name, victims=tuple(uids), violations=violations)
        for name, (uids, violations) in offered.items()
        if uids
    ]


def _meta_victims(chosen: Sequence[NodeCandidate]) -> dict[NodeName, wire.MetaVictims]:
    return {
        c.node: wire.MetaVictims([wire.MetaPod(uid) for uid in c.victims], c.violations)
        for c in chosen
    }


def _bad(verb: Verb, error: Exception) -> VerbAnswer:
    _counter(verb, "undecodable").inc()
    UNDECODABLE_BODIES.warn(verb, verb=verb, error=str(error))
    return text_answer(400, f"{verb}: {error}")
