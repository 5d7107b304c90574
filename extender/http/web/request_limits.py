"""What a request may cost before its handler is called: encoding, size and values of its body, time to send it.

The middleware reads the body, so that a handler never has one that is too large; it counts the bytes that have
arrived over all requests, not those that a header announces. Nothing is decompressed: kube-scheduler and the
command line send plain JSON.

Note: every further value of a JSON list or object needs a comma, so the commas of a body limit what decoding it
costs in time and memory. Answering preempt with 8,192 candidates takes about 15 ms of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from extender.http.listener.connection_limits import ConnectionLimits
from extender.http.responses.json_responses import Handler, problem
from extender.http.responses.request_visibility import BODY, CALLER
from extender.http.responses.unsent_answers import BytesInFlight
from extender.http.scheduler.leader_proxy import connection_closed
from extender.http.v1.plan_api import BODY_MAX as PLAN_BYTES_MAX
from extender.settings import Settings
from extender.telemetry import METRICS

BIND_BYTES_MAX = 4 * 1024  # names and a UID
OTHER_BYTES_MAX = 4 * 1024  # of requests that need no body
FILTER_BYTES_MIN = 2 * 1024 * 1024  # a pod has 1.5 MiB at most, the limit of etcd
FILTER_BYTES_PER_NODE = 300  # a name has 253 characters at most
PREEMPT_BYTES_MAX = 8 * 1024 * 1024
VALUES_MIN = 8_192  # of a pod, or of nodes and pods that the informers do not have yet
VALUES_PER_OBJECT = 2  # as many again may have been created just now
RETRY_AFTER_S = 1
PROBES = ("/livez", "/readyz")  # of the kubelet: answered always


class ClusterSize(msgspec.Struct, frozen=True):
    """How many nodes and pods the informers know."""

    nodes: int
    pods: int


class BodyLimit(msgspec.Struct, frozen=True):
    """Limits of the bodies of one path."""

    size: int  # bytes
    values: int | None = None  # further values of all lists and objects; None: not limited
    share: float = 1.0  # of the bytes in flight; the rest is left to kube-scheduler


class RequestRefused(Exception):
    """A request is refused before its handler is called."""

    def __init__(self, reason: str, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason  # label of the metric
        self.status = status
        self.title = title
        self.detail = detail

    def response(self, path: str) -> web.Response:
        """Return the response: text for kube-scheduler, else application/problem+json; the connection is closed."""
        METRICS.http_requests_refused.labels(self.reason).inc()
        if path.startswith("/scheduler/"):
            answer = web.Response(status=self.status, text=f"{self.detail}\n")
        else:
            answer = problem(self.status, self.title, self.detail)
        if self.status == web.HTTPServiceUnavailable.status_code:
            answer.headers["Retry-After"] = str(RETRY_AFTER_S)
        if self.reason == "encoding":
            answer.headers["Accept-Encoding"] = "identity"  # RFC 9110, 12.5.3
        answer.force_close()  # the rest of the body is not read
        return answer


class RequestLimits:
    """Applies the limits to every request of all listeners.

    Args:
        size: Returns how large the cluster is now.
        in_flight: Counts the bytes; shared with the connections, which count answers that are not taken.
    """

    def __init__(
        self,
        settings: Settings,
        size: Callable[[], ClusterSize],
        in_flight: BytesInFlight | None = None,
    ) -> None:
        self._settings = settings
        self._size = size
        self._in_flight = in_flight or BytesInFlight()
        self._streams = StreamLimits(settings.max_streams_per_peer)

    def middleware(
        self, connections: ConnectionLimits, check: Callable[[web.Request], None] | None
    ) -> Middleware:
        """Return the middleware of one listener.

        Args:
            connections: Is informed when a request begins and ends.
            check: Called before the body is read; raises RequestRefused for a caller who may not use the listener. None: all may.
        """

        @web.middleware
        async def within_limits(request: web.Request, handler: Handler) -> web.StreamResponse:
            held = 0
            reads = not request.path.startswith("/scheduler/")
            connections.begin(request.transport, reads=reads)
            try:
                if check is not None:
                    check(request)
                limit = self.of(request.path)
                if request.path not in PROBES:
                    # also of a request without a body: its answer may stay here
                    self._take(0, limit)
                with self._streams.counted(request) if is_stream(request) else nullcontext():
                    body = bytearray()
                    try:
                        await self._read(request, limit, body, connections)
                    finally:
                        held = len(body)
                    request[BODY] = bytes(body)
                    body.clear()
                    _check_values(request[BODY], limit)
                    return await handler(request)
            except RequestRefused as refused:
                return refused.response(request.path)
            finally:
                # aiohttp keeps the request until the next one of its connection
                request.pop(BODY, None)
                self._in_flight.hold(-held)
                connections.end(request.transport)

        return within_limits

    def accepts(self, path: str, body: bytes) -> bool:
        """Return whether a whole body is within the limits of its path, and of the bytes in flight."""
        limit = self.of(path)
        most = self._settings.max_body_bytes_in_flight * limit.share
        return (
            len(body) <= limit.size
            and self._counted(limit) + len(body) <= most
            and (limit.values is None or body.count(b",") <= limit.values)
        )

    @contextmanager
    def in_flight(self, count: int) -> Iterator[None]:
        """Count the bytes of a body while the block runs."""
        self._in_flight.hold(count)
        try:
            yield
        finally:
            self._in_flight.hold(-count)

    def of(self, path: str) -> BodyLimit:
        """Return the limits of the bodies of a path."""
        size = self._size()
        settings = self._settings
        most = settings.max_request_body_bytes
        match path:
            case "/scheduler/filter" | "/scheduler/prioritize":
                if settings.max_filter_body_bytes:
                    return BodyLimit(min(most, settings.max_filter_body_bytes))
                length = FILTER_BYTES_MIN + size.nodes * FILTER_BYTES_PER_NODE
                return BodyLimit(min(most, length), VALUES_MIN + VALUES_PER_OBJECT * size.nodes)
            case "/scheduler/preempt":
                if settings.max_preempt_body_bytes:
                    return BodyLimit(min(most, settings.max_preempt_body_bytes))
                values = VALUES_MIN + VALUES_PER_OBJECT * (size.nodes + size.pods)
                return BodyLimit(min(most, PREEMPT_BYTES_MAX), values)
            case "/scheduler/bind":
                return BodyLimit(min(most, BIND_BYTES_MAX))
            case "/v1/plan" | "/v1/moves" | "/v1/moves/apply" | "/scheduler/moves/apply":
                return BodyLimit(min(most, PLAN_BYTES_MAX), share=0.5)
            case _:
                return BodyLimit(min(most, OTHER_BYTES_MAX), share=0.5)

    async def _read(
        self, request: web.Request, limit: BodyLimit, body: bytearray, connections: ConnectionLimits
    ) -> None:
        """Append the body of a request to `body`, as it arrives."""
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() != "identity":
            text = f"Content-Encoding {encoding[:40]!r}: bodies of requests are accepted without encoding only"
            raise RequestRefused("encoding", 415, "Encoded body", text)
        length = request.content_length
        if length is not None and length > limit.size:
            raise _too_large(request, limit, f"{length} bytes")
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                async for piece in request.content.iter_any():
                    if len(body) + len(piece) > limit.size:
                        raise _too_large(request, limit, "more")
                    self._take(len(piece), limit)
                    body += piece
        except TimeoutError:
            connections.close_late(request.transport)
            text = f"the body is not complete after {self._settings.body_timeout_s:g} s"
            raise RequestRefused("body-timeout", 408, "Request timeout", text) from None

    def _take(self, count: int, limit: BodyLimit) -> None:
        most = self._settings.max_body_bytes_in_flight
        counted = self._counted(limit)
        if counted + count > most * limit.share:
            text = (
                f"{counted} bytes of bodies and of answers that were not read are in flight already, "
                f"at most {most} are accepted; try again"
            )
            raise RequestRefused("bytes-in-flight", 503, "Too many bytes in flight", text)
        self._in_flight.hold(count)

    def _counted(self, limit: BodyLimit) -> int:
        """Return the bytes that count against a limit; answers to others do not keep kube-scheduler from calling."""
        in_flight = self._in_flight
        return in_flight.calls if limit.share == 1.0 else in_flight.calls + in_flight.reads


def _too_large(request: web.Request, limit: BodyLimit, length: str) -> RequestRefused:
    text = f"{request.path}: the body has {length}, at most {limit.size} bytes are accepted"
    return RequestRefused("body-size", 413, "Content too large", text)


def _check_values(body: bytes, limit: BodyLimit) -> None:
    """Raise RequestRefused if a body has too many values; it is not decoded for that."""
    if limit.values is not None and (count := body.count(b",")) > limit.values:
        text = f"the body has {count} values, at most {limit.values} are accepted for a cluster of this size"
        raise RequestRefused("body-values", 413, "Content too large", text)


STREAMS = "/v1/events"
STREAMS_MAX = 256


class StreamLimits:
    """Counts the open streams of all listeners: those of a user, where there is authentication, else of an address.

    So the users behind one proxy do not use up the streams of one another. When those of all are used up, a new one
    takes the place of the oldest of the user or address that has the most; a client continues after its last event.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, list[web.Request]] = {}  # by user or address; each list by age

    @contextmanager
    def counted(self, request: web.Request) -> Iterator[None]:
        """Count a stream while the block runs.

        Raises:
            RequestRefused: Its user or its address has too many, or all are used up evenly.
        """
        holder, reason = _holder(request)
        # the handler of a stream notices only at its next write that the peer has closed the connection
        self._open = {
            name: alive
            for name, streams in self._open.items()
            if (alive := [stream for stream in streams if not connection_closed(stream)])
        }
        own = self._open.get(holder, [])
        if len(own) >= self._most:
            text = (
                f"{holder} has {self._most} streams of events open here already; close one of them"
            )
            raise RequestRefused(reason, 503, "Too many streams", text)
        if sum(map(len, self._open.values())) >= STREAMS_MAX:
            self._replace_oldest(len(own))
        self._open.setdefault(holder, []).append(request)
        try:
            yield
        finally:
            left = [stream for stream in self._open.pop(holder, ()) if stream is not request]
            if left:
                self._open[holder] = left

    def _replace_oldest(self, own: int) -> None:
        """Close the oldest stream of the holder with the most.

        Args:
            own: How many streams the caller has; nothing is closed for one that would have as many as the other then.
        """
        streams = max(self._open.values(), key=len)
        if len(streams) <= own + 1:
            text = f"{STREAMS_MAX} streams of events are open here already; use another replica, or try again later"
            raise RequestRefused("streams", 503, "Too many streams", text)
        METRICS.http_requests_refused.labels("stream-replaced").inc()
        transport = streams.pop(0).transport
        if transport is not None:
            transport.close()


def _holder(request: web.Request) -> tuple[str, str]:
    """Return whom a stream is counted for, and the label of the metric when that is too many."""
    if CALLER in request:
        return f"user {request[CALLER].user!r}", "streams-per-user"
    return request.remote or "", "streams-per-peer"


def is_stream(request: web.Request) -> bool:
    """Return whether a request asks for a stream of events, which has no end."""
    return request.path == STREAMS and request.method == "GET" and "follow" in request.query
