"""How many streams of events are open, and whose: of a user, where the listener has authentication, else of an address.

A user has the same number of streams from one address as from many, and the users behind one proxy do not use up the
streams of one another. When the streams of all are used up, a new one takes the place of the oldest one of the
user or address that has the most: a client continues after the last event that it has, so nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from extender.http.responses.request_visibility import CALLER
from extender.http.scheduler.leader_proxy import connection_closed
from extender.telemetry import METRICS

STREAMS = "/v1/events"
STREAMS_MAX = 256


class TooManyStreams(Exception):
    """No further stream may be opened; the first argument is the label of the metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class StreamLimits:
    """Counts the open streams of all listeners.

    Args:
        most: Streams of one user or one address.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, list[web.Request]] = {}  # by user or address; each list by age

    @contextmanager
    def counted(self, request: web.Request) -> Iterator[None]:
        """Count a stream while the block runs.

        Raises:
            TooManyStreams: Its user or its address has too many, or all are used up evenly.
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
            raise TooManyStreams(reason, text)
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
            raise TooManyStreams("streams", text)
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
