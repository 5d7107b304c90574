"""GET /v1/status: the state of the service itself; what only the leader has is fetched from it."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec.structs import replace
from prometheus_client import Counter, Gauge

from extender import __version__
from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import ReadinessCheck
from extender.core.model.errors import NotReady, StoreUnavailable
from extender.core.model.message_formatting import rfc3339
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import Api, Query
from extender.ports.log_ports import Clock, DatabaseUsage, EventLog, LeaseRecord, LogHead
from extender.ports.verification_ports import VerifiedLog
from extender.queries.state import service_status
from extender.runtime.cooperative_yield import Yielder
from extender.settings import Settings, without_secrets
from extender.telemetry import METRICS

STATUS = Operation(
    path="/v1/status",
    about="The state of the service: what is wrong, leader, log, database, verification, gangs by state",
    answer=service_status.ServiceStatus,
    problems=(400,),
)
LEADER_PATH = "/scheduler/status"
# Outcomes of calls of kube-scheduler that were not answered, as in the metric `extender_requests`.
NOT_ANSWERED = ("cannot-answer", "not-forwarded", "undecodable", "hung-up")


class StatusLog(EventLog, Protocol):
    """The log and its database; each call may raise StoreUnavailable."""

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
    counts: Callable[[Visibility], Awaitable[tuple[dict[str, int], service_status.WaitLine | None]]]
    ask_leader: Callable[[str], Awaitable[bytes]]  # raises NotReady


@dataclass(frozen=True)
class StatusApi(Api):
    """Handlers of /v1/status, and of what a leader gives its followers."""

    sources: StatusSources

    def replica_routes(self) -> list[web.RouteDef]:
        """Return the routes for other replicas."""
        return [web.get(LEADER_PATH, self.leader_part)]

    async def leader_part(self, _: web.Request) -> web.Response:
        """Return what only the leader has."""
        return at_position(msgspec.json.encode(self._own_part()), None)

    @STATUS.handler
    async def _status(self, request: web.Request, _: Query) -> web.Response:
        status = await self._collected(visibility_of(request))
        return at_position(msgspec.json.encode(status), status.log.head)

    async def _collected(self, readers: Visibility) -> service_status.ServiceStatus:
        sources = self.sources
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
        status = service_status.ServiceStatus(
            version=__version__,
            replica=settings.identity,
            role=leader.role,
            time=rfc3339(sources.clock.now_us()),
            started=rfc3339(sources.started_us),
            leader=_leader_line(held),
            leader_answers=part.leads,
            replicas=[*usage.replicas],
            checks=msgspec.convert(
                [*sources.checks()], list[service_status.CheckLine], from_attributes=True
            ),
            log=service_status.LogLine(
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
        return replace(status, problems=[*service_status.problems_of(status)])

    async def _part_of_leader(self) -> service_status.LeaderPart:
        """Return what only the leader has, of this replica or of the one that leads."""
        if self.sources.leader.leads():
            return self._own_part()
        try:
            body = await self.sources.ask_leader(LEADER_PATH)
            return msgspec.json.decode(body, type=service_status.LeaderPart)
        except (
            NotReady,
            msgspec.MsgspecError,
        ):  # `leads` is false, which is a problem of the status
            return service_status.LeaderPart(leads=False)

    def _own_part(self) -> service_status.LeaderPart:
        sources = self.sources
        leader = sources.leader
        if not leader.leads():
            return service_status.LeaderPart(leads=False)
        verified, published = sources.verified(), leader.history.anchors
        led_ms = sources.clock.monotonic_ms() - leader.lease.asked_ms
        return service_status.LeaderPart(
            leads=True,
            verification=None if verified is None else _verification_line(verified),
            anchor=service_status.AnchorLine(
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
        now_us = self.sources.clock.now_us()
        return rfc3339(now_us - int(ago_us)) if ago_us <= now_us - self.sources.started_us else ""


def _leader_line(held: LeaseRecord | None) -> service_status.LeaderLine | None:
    if held is None or held.expired or not held.holder:
        return None
    return service_status.LeaderLine(
        name=held.holder,
        address=held.address,
        epoch=held.epoch,
        renewed=rfc3339(held.renewed_us),
        ttl_s=held.ttl_ms / 1000,
    )


def _database_line(
    sources: StatusSources, usage: DatabaseUsage, error: str
) -> service_status.DatabaseLine:
    place, settings = sources.database_place, sources.settings
    if settings.database_url:
        return service_status.DatabaseLine(place=place, bytes=usage.bytes, error=error)
    disk = shutil.disk_usage(Path(settings.data_dir))
    return service_status.DatabaseLine(
        place=place,
        bytes=usage.bytes,
        disk_free_bytes=disk.free,
        disk_bytes=disk.total,
        error=error,
    )


def _verification_line(verified: VerifiedLog) -> service_status.VerificationLine:
    return service_status.VerificationLine(
        position=verified.result.position,
        time=rfc3339(verified.at_us),
        anchors=verified.anchors,
        finding_count=len(verified.findings),
        findings=msgspec.convert(
            verified.findings, list[service_status.FindingLine], from_attributes=True
        ),
        definitions=verified.result.definitions,
        privileged_roles=[*verified.result.privileged_roles],
    )


def _without_places(status: service_status.ServiceStatus) -> service_status.ServiceStatus:
    """Return a status for readers of some namespaces: without findings, settings, names of replicas and places."""
    leader, database, verified = status.leader, status.database, status.verification
    return replace(
        status,
        replica="that answers",
        replicas=[],
        settings={},
        leader=leader and replace(leader, name="replica", address="its address"),
        database=replace(database, place="of the log", error="no answer" if database.error else ""),
        verification=verified and replace(verified, findings=[], privileged_roles=[]),
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


def _certificates(clock: Clock) -> list[service_status.CertificateLine]:
    now_us = clock.now_us()
    return [
        service_status.CertificateLine(name, rfc3339(now_us + int(left_s * 1e6)))
        for name, left_s in _samples(METRICS.tls_certificate_expires_in_seconds).items()
    ]


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        name: without_secrets(name, value)
        for name, value in msgspec.structs.asdict(settings).items()
    }
