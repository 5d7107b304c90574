"""The state of the service itself, as `/v1/status` answers it and `gang-extender status` prints it, and what is wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from extender.core.model.message_formatting import bytes_text, counted, duration_text, parse_time

# As the alert rules of deploy/monitoring have them.
VERIFIED_WITHIN_S: Final = 3600.0
CERTIFICATE_LEFT_S: Final = 86_400.0
FAILURES_MAX: Final = 2  # passes of the control loop in a row
# The anchor of a log that grows is published every five seconds.
PUBLISHED_WITHIN_S: Final = 300.0
DISK_FREE_MIN: Final = 1 << 30  # bytes; a day of a busy log takes less
# kube-scheduler asks for a gated pod again at the latest five minutes after it was last moved.
CALLED_WITHIN_S: Final = 600.0
RELEASED: Final = ("admitted",)  # states of gangs whose pods kube-scheduler is to place now


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and what to do about it."""

    text: str
    help: str


class CheckLine(msgspec.Struct, frozen=True):
    """One readiness check of the replica that answers."""

    name: str
    ok: bool
    reason: str = ""  # of one that is passed: a remark


class LeaderLine(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of the lease."""

    name: str
    address: str
    epoch: int
    renewed: str  # RFC 3339, by the clock of the database
    ttl_s: float


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """The log, and how far the replica that answers has read it."""

    head: int  # position of the last event
    time: str  # of the last event, RFC 3339; empty: there is none
    read: int


class DatabaseLine(msgspec.Struct, frozen=True, kw_only=True):
    """The database of the log."""

    place: str  # user, host, port and name; of an embedded one its folder
    bytes: int = 0
    disk_free_bytes: int | None = None  # None: the disk is one of another machine
    disk_bytes: int | None = None
    error: str = ""  # why it does not answer


class FindingLine(msgspec.Struct):
    """One finding of a verification."""

    kind: str
    position: int
    object: str  # of the schema; empty: it is about a position of the log
    message: str
    advice: str
    weaker: dict[str, int]  # findings that follow from this one, or cannot be separated from it


class VerificationLine(msgspec.Struct, frozen=True, kw_only=True):
    """The last verification of the whole log by the leader."""

    position: int
    time: str  # when it ended, RFC 3339
    anchors: int  # that were compared
    finding_count: int
    findings: list[FindingLine]  # empty for readers who may not list all namespaces
    definitions: int  # of the schema that were compared; 0: it is of another version
    privileged_roles: list[str]  # login roles that can change what was compared; likewise


class AnchorLine(msgspec.Struct, frozen=True, kw_only=True):
    """The newest anchor that was published."""

    position: int
    time: str  # RFC 3339
    signed: bool


class WaitLine(msgspec.Struct, frozen=True, kw_only=True):
    """The gang that has waited longest."""

    gang: str
    state: str
    since: str  # RFC 3339


class CertificateLine(msgspec.Struct, frozen=True):
    """A certificate in use."""

    name: str  # server, client, client-ca
    ends: str  # RFC 3339


class LeaderPart(msgspec.Struct, frozen=True, kw_only=True):
    """What only the leader has."""

    leads: bool
    verification: VerificationLine | None = None
    anchor: AnchorLine | None = None
    scheduler_called: str = ""
    control_loop_failures: int = 0
    led_since: str = ""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the service."""

    version: str
    replica: str  # that answers; names and places are for readers who may list all namespaces
    role: str
    time: str  # of the answer; all times are RFC 3339, UTC
    started: str
    problems: list[Problem] = []
    leader: LeaderLine | None  # None: no replica holds the lease
    leader_answers: bool  # False: what only the leader has is not known
    replicas: list[str]  # that are connected to the database
    checks: list[CheckLine]
    log: LogLine
    database: DatabaseLine
    verification: VerificationLine | None  # None: no pass of this leader has ended
    anchor: AnchorLine | None  # None: none was published
    gangs: dict[str, int]  # by state, of the namespaces that the reader may list
    oldest_wait: WaitLine | None
    refused: dict[str, int]  # calls since `started`, by reason
    certificates: list[CertificateLine]
    scheduler_called: str  # the last call of kube-scheduler; empty: none since `started`
    control_loop_failures: int  # in a row
    led_since: str  # since when the leader leads; empty: not known
    settings: dict[str, Any] = {}  # without secrets; for readers who may list all namespaces


def problems_of(status: ServiceStatus) -> Iterator[Problem]:
    """Yield what is wrong, the most important first; each with what to do about it."""
    if status.database.error:
        yield Problem(
            f"database {status.database.place} does not answer: {status.database.error}",
            "nothing is admitted until it does: start it, or correct --database-url",
        )
    elif status.leader is None:
        yield Problem(
            "no replica leads: no gang is admitted",
            "if it stays so, read the log of a replica: `kubectl -n gang-extender logs deploy/gang-extender`",
        )
    elif not status.leader_answers:
        yield Problem(
            f"the leader {status.leader.name} does not answer this replica at {status.leader.address}",
            "if it has ended, another replica takes over when its lease ends; else check GANG_EXTENDER_ADVERTISE_URL of it",
        )
    for check in status.checks:
        if not check.ok:
            yield Problem(
                f"replica {status.replica} is not ready: {check.name}: {check.reason}",
                "docs/alerts/GangExtenderNotLeading.md has what each check needs",
            )
    yield from _log_problems(status)
    if status.control_loop_failures > FAILURES_MAX:
        yield Problem(
            f"the control loop has failed {status.control_loop_failures} times in a row",
            "the log of the leader has the error: docs/alerts/GangExtenderControlLoopFails.md",
        )
    released = sum(status.gangs.get(state, 0) for state in RELEASED)
    silent_s = _age_s(status, status.scheduler_called or status.led_since)
    if released and silent_s is not None and silent_s > CALLED_WITHIN_S:
        yield Problem(
            f"{counted(released, 'admitted gang')} and no call of kube-scheduler for {duration_text(silent_s)}",
            "check `extenders` in the configuration of kube-scheduler, its log, and schedulerName of the pods",
        )
    for certificate in status.certificates:
        age_s = _age_s(status, certificate.ends)
        if age_s is not None and age_s > -CERTIFICATE_LEFT_S:
            ends = "ended" if age_s >= 0 else "ends"
            yield Problem(
                f"certificate {certificate.name} {ends} at {certificate.ends[:19]}Z",
                "make a new CA: docs/runbook/certificates.md"
                if certificate.name == "client-ca"
                else "renew it, those of `gang-extender certs FOLDER` with --renew; the service reads the new file by itself",
            )
    free = status.database.disk_free_bytes
    if free is not None and free < DISK_FREE_MIN:
        yield Problem(
            f"database {status.database.place}: its disk has {bytes_text(free)} left",
            "free space, or delete the inputs of old decisions: gang-extender db prune --days 90",
        )


def _log_problems(status: ServiceStatus) -> Iterator[Problem]:
    """Yield what is wrong with the log and what proves it."""
    verified, anchor = status.verification, status.anchor
    if verified is not None and verified.finding_count:
        yield Problem(
            f"the log does not verify: {counted(verified.finding_count, 'finding')} up to position {verified.position}",
            "gang-extender verify lists each, with what to do; restart and migrate nothing before",
        )
    since = verified.time if verified is not None else status.led_since
    age_s = _age_s(status, since)
    if age_s is not None and age_s > VERIFIED_WITHIN_S:
        yield Problem(
            f"the whole log was not verified for {duration_text(age_s)}",
            "docs/alerts/GangExtenderVerificationStale.md",
        )
    if status.leader is None or not status.leader_answers or status.database.error:
        return
    published, age_s = anchor.position if anchor is not None else 0, _age_s(status, status.log.time)
    since_s = _age_s(status, anchor.time if anchor is not None else status.led_since)
    late = since_s is not None and since_s > PUBLISHED_WITHIN_S
    if published < status.log.head and late and age_s is not None and age_s > PUBLISHED_WITHIN_S:
        yield Problem(
            f"the end of the log was not published: the log ends at {status.log.head}, the last anchor is of {published}",
            "the log of the leader has the reason (`end of the log not published`): may it write ConfigMap gang-extender-log?",
        )


def _age_s(status: ServiceStatus, time: str) -> float | None:
    """Return how long before the answer a time was, in seconds, negative after it; None: the time is empty."""
    if not time:
        return None
    return (parse_time(status.time, "time") - parse_time(time, "time")) / 1_000_000
