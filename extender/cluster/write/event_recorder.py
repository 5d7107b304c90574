"""Kubernetes Events, few enough that nobody minds.

Owns the limits: what is said again within minutes is counted in the Event that is there (a
series), at most once a minute; one object gets a handful at once and all objects together ten a
second. What is over that is dropped and counted: the log and the conditions say it anyway.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final

import msgspec

from extender.cluster.connection.api_client import MERGE_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.write.group_status import rfc3339
from extender.core.model.errors import ClusterUnavailable
from extender.ports.protocols import Clock, K8sEvent
from extender.telemetry import METRICS

logger = logging.getLogger(__name__)

REPORTER: Final = "gang-extender.dev/extender"
NOTE_MAX_BYTES = 1024
SERIES_MS = 6 * 60_000  # as client-go: a series is over after six minutes of silence
WRITE_SERIES_EVERY_MS = 60_000
REMEMBERED_MAX = 4096
BURST_ALL, REFILL_ALL_MS = 50, 100  # ten a second
BURST_ONE, REFILL_ONE_MS = 10, 60_000
PATH: Final = "/apis/events.k8s.io/v1/namespaces"


class _Bucket(msgspec.Struct):
    """Tokens that come back one by one."""

    tokens: float
    at_ms: int

    def take(self, now_ms: int, burst: int, refill_ms: int) -> bool:
        """Take a token if there is one."""
        self.tokens = min(burst, self.tokens + (now_ms - self.at_ms) / refill_ms)
        self.at_ms = now_ms
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class _Said(msgspec.Struct):
    """An Event that stands in the cluster."""

    name: str
    count: int
    heard_ms: int
    written_ms: int


class EventRecorder:
    """The only writer of Events."""

    def __init__(self, server: ApiServer, clock: Clock, *, instance: str) -> None:
        self._server = server
        self._clock = clock
        self._instance = instance[:128]
        self._said: OrderedDict[K8sEvent, _Said] = OrderedDict()
        self._objects: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(BURST_ALL, clock.monotonic_ms())

    async def say(self, notice: K8sEvent, api_version: str, related_version: str = "") -> None:
        """Write an Event, count it in an older one, or drop it. Never raises for the cluster.

        Args:
            notice: What to say.
            api_version: Of the object it is about.
            related_version: Of the object that caused it.
        """
        now_ms = self._clock.monotonic_ms()
        request = self._series(notice, now_ms)
        if request is None and notice not in self._said:
            request = self._new(notice, api_version, related_version, now_ms)
        if request is None:
            return
        try:
            await self._server.call(request)
        except (ClusterUnavailable, ApiResponse) as problem:
            METRICS.events_failed.inc()
            self._said.pop(notice, None)
            logger.warning(
                "Event not written",
                extra={"object": f"{notice.namespace}/{notice.name}", "why": str(problem)},
            )

    def _series(self, notice: K8sEvent, now_ms: int) -> Request | None:
        """Count a repetition; a request when it is time to write the count down."""
        said = self._said.get(notice)
        if said is None:
            return None
        if now_ms - said.heard_ms > SERIES_MS:
            del self._said[notice]
            return None
        said.count += 1
        said.heard_ms = now_ms
        self._said.move_to_end(notice)
        if now_ms - said.written_ms < WRITE_SERIES_EVERY_MS:
            return None
        said.written_ms = now_ms
        at = rfc3339(self._clock.now_us(), micro=True)
        series = {"series": {"count": said.count, "lastObservedTime": at}}
        return _request("PATCH", f"{PATH}/{notice.namespace}/events/{said.name}", series)

    def _new(
        self, notice: K8sEvent, api_version: str, related_version: str, now_ms: int
    ) -> Request | None:
        bucket = self._objects.setdefault(notice.uid, _Bucket(BURST_ONE, now_ms))
        self._objects.move_to_end(notice.uid)
        _forget_oldest(self._objects)
        if not bucket.take(now_ms, BURST_ONE, REFILL_ONE_MS) or not self._all.take(
            now_ms, BURST_ALL, REFILL_ALL_MS
        ):
            METRICS.events_dropped.inc()
            return None
        name = f"{notice.name[:200].rstrip('-.')}.{self._clock.new_id()}"
        self._said[notice] = _Said(name, 1, now_ms, now_ms)
        _forget_oldest(self._said)
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
        return _request("POST", f"{PATH}/{notice.namespace}/events", event)


def _reference(api_version: str, kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "uid": uid,
    }


def _request(method: str, path: str, body: object) -> Request:
    encoded = msgspec.json.encode(body)
    if method == "PATCH":
        return Request(
            method="PATCH",
            path=path,
            body=encoded,
            content_type=MERGE_PATCH,
            effect=True,
            tries_max=1,
        )
    return Request(method="POST", path=path, body=encoded, effect=True, tries_max=1)


def _cut(text: str) -> str:
    """Cut to what an API server takes, at a whole character."""
    encoded = text.encode()
    if len(encoded) <= NOTE_MAX_BYTES:
        return text
    return encoded[: NOTE_MAX_BYTES - 3].decode(errors="ignore") + "..."


def _forget_oldest(kept: OrderedDict[K8sEvent, _Said] | OrderedDict[str, _Bucket]) -> None:
    while len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
