"""Write Kubernetes Events within rate limits.

Owns the limits: a repetition within six minutes is counted in the existing Event (a series), which is
written at most once a minute; a burst is at most 10 Events for one object; all objects together get ten
a second. What exceeds the limits is dropped and counted in a metric: the log and the conditions have the
same information.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

import msgspec

from extender.cluster.connection.api_client import (
    MERGE_PATCH,
    ApiResponse,
    ApiServer,
    Request,
    write_request,
)
from extender.cluster.write.pod_writer import rfc3339
from extender.core.model.errors import ClusterUnavailable
from extender.ports.cluster_ports import K8sEvent
from extender.ports.log_ports import Clock
from extender.ports.written_names import REPORTER
from extender.telemetry import METRICS

logger = logging.getLogger(__name__)

NOTE_MAX_BYTES = 1024
SERIES_MS = 6 * 60_000  # as client-go: a series ends after six minutes without a repetition
WRITE_SERIES_EVERY_MS = 60_000
REMEMBERED_MAX = 4096
BURST_ALL, REFILL_ALL_MS = 50, 100  # ten a second
BURST_ONE, REFILL_ONE_MS = 10, 60_000
PATH: Final = "/apis/events.k8s.io/v1/namespaces"


class _Bucket(msgspec.Struct):
    """A token bucket."""

    tokens: float
    at_ms: int

    def take(self, now_ms: int, burst: int, refill_ms: int) -> bool:
        """Take a token; return whether there was one."""
        self.tokens = min(burst, self.tokens + (now_ms - self.at_ms) / refill_ms)
        self.at_ms = now_ms
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class _Series(msgspec.Struct):
    """An Event that was written to the cluster, and how often it was repeated."""

    name: str
    count: int
    repeated_ms: int
    written_ms: int


class EventRecorder:
    """The only writer of Events."""

    def __init__(self, server: ApiServer, clock: Clock, *, instance: str) -> None:
        self._server = server
        self._clock = clock
        self._instance = instance[:128]
        self._written: OrderedDict[K8sEvent, _Series] = OrderedDict()
        self._objects: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(BURST_ALL, clock.monotonic_ms())

    async def record(self, notice: K8sEvent, api_version: str, related_version: str = "") -> None:
        """Write an Event, count it in an existing one, or drop it; a failed write is logged, not raised."""
        now_ms = self._clock.monotonic_ms()
        request = self._series(notice, now_ms)
        if request is None and notice not in self._written:
            request = self._new(notice, api_version, related_version, now_ms)
        if request is None:
            return
        try:
            await self._server.call(request)
        except (ClusterUnavailable, ApiResponse) as problem:
            METRICS.k8s_events_failed.inc()
            self._written.pop(notice, None)
            logger.warning(
                "Event not written",
                extra={"object": f"{notice.namespace}/{notice.name}", "reason": str(problem)},
            )

    def _series(self, notice: K8sEvent, now_ms: int) -> Request | None:
        """Count a repetition; return a request when the count is due to be written."""
        written = self._written.get(notice)
        if written is None:
            return None
        if now_ms - written.repeated_ms > SERIES_MS:
            del self._written[notice]
            return None
        written.count += 1
        written.repeated_ms = now_ms
        self._written.move_to_end(notice)
        if now_ms - written.written_ms < WRITE_SERIES_EVERY_MS:
            return None
        written.written_ms = now_ms
        at = rfc3339(self._clock.now_us(), micro=True)
        series = {"series": {"count": written.count, "lastObservedTime": at}}
        path = f"{PATH}/{notice.namespace}/events/{written.name}"
        return write_request("PATCH", path, series, MERGE_PATCH, tries_max=1)

    def _new(
        self, notice: K8sEvent, api_version: str, related_version: str, now_ms: int
    ) -> Request | None:
        bucket = self._objects.setdefault(notice.uid, _Bucket(BURST_ONE, now_ms))
        self._objects.move_to_end(notice.uid)
        _forget_oldest(self._objects)
        if not bucket.take(now_ms, BURST_ONE, REFILL_ONE_MS) or not self._all.take(
            now_ms, BURST_ALL, REFILL_ALL_MS
        ):
            METRICS.k8s_events_dropped.inc()
            return None
        name = f"{notice.name[:200].rstrip('-.')}.{self._clock.new_id()}"
        self._written[notice] = _Series(name, 1, now_ms, now_ms)
        _forget_oldest(self._written)
        event: dict[str, object] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": notice.namespace},
            "eventTime": rfc3339(self._clock.now_us(), micro=True),
            "reportingController": REPORTER,
            "reportingInstance": self._instance,
            "action": notice.action[:128],
            "reason": notice.reason[:128],
            "type": "Warning" if notice.warning else "Normal",
            "note": _cut(notice.message),
            "regarding": _reference(
                api_version, notice.kind, notice.namespace, notice.name, notice.uid
            ),
        }
        if notice.related is not None:
            event["related"] = _reference(related_version, *notice.related)
        return write_request("POST", f"{PATH}/{notice.namespace}/events", event, tries_max=1)


def _reference(*values: str) -> dict[str, str]:
    return dict(zip(("apiVersion", "kind", "namespace", "name", "uid"), values, strict=True))


def _cut(text: str) -> str:
    """Return the text cut to the length that an API server accepts, at a whole character."""
    encoded = text.encode()
    if len(encoded) <= NOTE_MAX_BYTES:
        return text
    return encoded[: NOTE_MAX_BYTES - 3].decode(errors="ignore") + "..."


def _forget_oldest(kept: OrderedDict[K8sEvent, _Series] | OrderedDict[str, _Bucket]) -> None:
    while len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
