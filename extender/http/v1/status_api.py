"""GET /v1/status: the state of the service itself; what only the leader has is fetched from it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from prometheus_client import Counter, Gauge

from extender import __version__
from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import ReadinessCheck
from extender.core.model.errors import NotReady, StoreUnavailable
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import Api, Query
from extender.ports.log_ports import Clock, DatabaseUsage, LeaseRecord, LogHead
from extender.ports.verification_ports import VerifiedLog
from extender.queries.log.event_dto import rfc3339
from extender.queries.state.service_status import (
    AnchorLine,
    CertificateLine,
    CheckLine,
    DatabaseLine,
    LeaderLine,
    LeaderPart,
    LogLine,
    ServiceStatus,
    VerificationLine,
    WaitLine,
    finding_lines,
    problems_of,
)
from extender.runtime.cooperative_yield import Yielder
from extender.settings import Settings, without_secrets
from extender.telemetry import METRICS

STATUS = Operation(
    path="/v1/status",
    about="The state of the service: what is wrong, leader, log, database, verification, gangs by state",
    answer=ServiceStatus,
    problems=(400,),
)
LEADER_PATH = "/scheduler/status"
# Outcomes of calls of kube-scheduler that were not answered, as in the metric `extender_requests`.
NOT_ANSWERED = ("cannot-answer", "not-forwarded", "undecodable", "hung-up")


class StatusLog(Protocol):
    """What is read of the log; each call may raise StoreUnavailable."""

    async def lease(self) -> LeaseRecord | None:
        """See `EventLog.lease`."""
        ...

    async def head(self) -> LogHead:
        """See `EventLog.head`."""
        ...

    async def usage(self) -> DatabaseUsage:
        """Return the size of the database, and the replicas that are connected to it."""
        ...


class StatusSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts of the status are from."""

    leader: Leader
    log: StatusLog
    clock: Clock
    started_us: int
    database_place: str  # for messages: without a password
    settings: Settings
    checks: Callable[[], Iterable[ReadinessCheck]]
    verified: Callable[[], VerifiedLog | None]  # by this replica
    counts: Callable[[Visibility], Awaitable[tuple[dict[str, int], WaitLine | None]]]
    ask_leader: Callable[[str], Awaitable[bytes]]  # raises NotReady


class StatusApi(Api):
    """Handlers of /v1/status, and of what a leader gives its followers."""

    def __init__(self, sources: StatusSources) -> None:
        self._sources = sources

    def replica_routes(self) -> list[web.RouteDef]:
        """Return the routes for other replicas."""
        return [web.get(LEADER_PATH, self.leader_part)]

    async def leader_part(self, _: web.Request) -> web.Response:
        """Return what only the leader has."""
        return at_position(msgspec.json.encode(self._own_part()), None)

    @STATUS.handler
    async def status(self, request: web.Request, _: Query) -> web.Response:
        """Return the state of the service."""
        status = await self._collected(visibility_of(request))
        return at_position(msgspec.json.encode(status), status.log.head)

    async def _collected(self, readers: Visibility) -> ServiceStatus:
        sources = self._sources
        leader, settings = sources.leader, sources.settings
        held, head, usage, error = None, LogHead(), DatabaseUsage(), ""
        try:
            held, head, usage = (
                await sources.log.lease(),
                await sources.log.head(),
                await sources.log.usage(),
            )
        except StoreUnavailable as fault:
            error = str(fault)
        part = await self._part_of_leader()
        states, oldest_wait = await sources.counts(readers)
        called = (part.scheduler_called, self._called())
        status = ServiceStatus(
            version=__version__,
            replica=settings.identity,
            role=leader.role,
            time=rfc3339(sources.clock.now_us()),
            started=rfc3339(sources.started_us),
            leader=_leader_line(held),
            leader_answers=part.leads,
            replicas=[*usage.replicas],
            checks=[CheckLine(check.name, check.ok, check.reason) for check in sources.checks()],
            log=LogLine(
                head=head.position,
                time=rfc3339(head.at_us) if head.position else "",
                read=leader.committed.position,
            ),
            database=_database_line(sources, usage, error),
            verification=part.verification,
            anchor=part.anchor,
            gangs=states,
            oldest_wait=oldest_wait,
            refused=_refused(),
            certificates=_certificates(sources.clock),
            scheduler_called=max(called),
            control_loop_failures=part.control_loop_failures,
            led_since=part.led_since,
            settings=_settings(settings),
        )
        if not readers.everything:
            status = _without_places(status)
        return msgspec.structs.replace(status, problems=[*problems_of(status)])

    async def _part_of_leader(self) -> LeaderPart:
        """Return what only the leader has, of this replica or of the one that leads."""
        if self._sources.leader.leads():
            return self._own_part()
        try:
            body = await self._sources.ask_leader(LEADER_PATH)
            return msgspec.json.decode(body, type=LeaderPart)
        except (
            NotReady,
            msgspec.MsgspecError,
        ):  # `leads` is false, which is a problem of the status
            return LeaderPart(leads=False)

    def _own_part(self) -> LeaderPart:
        sources = self._sources
        leader = sources.leader
        if not leader.leads():
            return LeaderPart(leads=False)
        verified, published = sources.verified(), leader.history.anchors
        led_ms = sources.clock.monotonic_ms() - leader.lease.asked_ms
        return LeaderPart(
            leads=True,
            verification=None if verified is None else _verification_line(verified),
            anchor=AnchorLine(
                position=published[-1].position,
                time=rfc3339(published[-1].at_us),
                signed=bool(published[-1].key),
            )
            if published
            else None,
            scheduler_called=self._called(),
            control_loop_failures=int(_samples(METRICS.control_loop_failures_in_a_row).get("", 0)),
            led_since=rfc3339(sources.clock.now_us() - led_ms * 1000),
        )

    def _called(self) -> str:
        """Return when kube-scheduler last called this replica; empty: not since it started."""
        ago_us = Yielder.since_last_call_s() * 1e6
        now_us = self._sources.clock.now_us()
        return rfc3339(now_us - int(ago_us)) if ago_us <= now_us - self._sources.started_us else ""


def _leader_line(held: LeaseRecord | None) -> LeaderLine | None:
    if held is None or held.expired or not held.holder:
        return None
    return LeaderLine(
        name=held.holder,
        address=held.address,
        epoch=held.epoch,
        renewed=rfc3339(held.renewed_us),
        ttl_s=held.ttl_ms / 1000,
    )


def _database_line(sources: StatusSources, usage: DatabaseUsage, error: str) -> DatabaseLine:
    place, settings = sources.database_place, sources.settings
    if settings.database_url:
        return DatabaseLine(place=place, bytes=usage.bytes, error=error)
    disk = shutil.disk_usage(Path(settings.data_dir))
    return DatabaseLine(
        place=place,
        bytes=usage.bytes,
        disk_free_bytes=disk.free,
        disk_bytes=disk.total,
        error=error,
    )


def _verification_line(verified: VerifiedLog) -> VerificationLine:
    return VerificationLine(
        position=verified.result.position,
        time=rfc3339(verified.at_us),
        anchors=verified.anchors,
        finding_count=len(verified.findings),
        findings=finding_lines(verified.findings),
        definitions=verified.result.definitions,
        privileged_roles=[*verified.result.privileged_roles],
    )


def _without_places(status: ServiceStatus) -> ServiceStatus:
    """Return a status for readers of some namespaces: without findings, settings, names of replicas and places."""
    leader, database, verified = status.leader, status.database, status.verification
    return msgspec.structs.replace(
        status,
        replica="that answers",
        replicas=[],
        settings={},
        leader=leader and msgspec.structs.replace(leader, name="replica", address="its address"),
        database=msgspec.structs.replace(
            database, place="of the log", error="no answer" if database.error else ""
        ),
        verification=verified
        and msgspec.structs.replace(verified, findings=[], privileged_roles=[]),
    )


def _samples(metric: Counter | Gauge) -> dict[str, float]:
    """Return the values of a metric by the value of its last label."""
    return {
        next(reversed([*sample.labels.values()]), ""): sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def _refused() -> dict[str, int]:
    """Return the calls that were refused or not answered since the start, by reason."""
    refused = {
        reason: int(count) for reason, count in _samples(METRICS.http_requests_refused).items()
    }
    for family in METRICS.extender_requests.collect():
        for sample in family.samples:
            outcome = sample.labels.get("outcome", "")
            if outcome in NOT_ANSWERED and sample.name.endswith("_total"):
                refused[outcome] = refused.get(outcome, 0) + int(sample.value)
    return {reason: count for reason, count in sorted(refused.items()) if count}


def _certificates(clock: Clock) -> list[CertificateLine]:
    now_us = clock.now_us()
    return [
        CertificateLine(name, rfc3339(now_us + int(left_s * 1e6)))
        for name, left_s in _samples(METRICS.tls_certificate_expires_in_seconds).items()
    ]


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        name: without_secrets(name, value)
        for name, value in msgspec.structs.asdict(settings).items()
    }
