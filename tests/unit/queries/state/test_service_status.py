"""What is wrong with a service, by its status."""

from __future__ import annotations

import msgspec
import pytest

from extender.queries.state.service_status import (
    AnchorLine,
    CertificateLine,
    CheckLine,
    DatabaseLine,
    LeaderLine,
    LogLine,
    ServiceStatus,
    VerificationLine,
    problems_of,
)

EARLY, NOW = "2026-11-20T03:00:00Z", "2026-11-20T12:00:00Z"
JUST_NOW = "2026-11-20T11:59:50Z"
VERIFIED = VerificationLine(
    position=40,
    time=JUST_NOW,
    anchors=2,
    finding_count=0,
    findings=[],
    definitions=64,
    privileged_roles=[],
)
HEALTHY = ServiceStatus(
    version="1",
    replica="b",
    role="following",
    time=NOW,
    started=EARLY,
    leader=LeaderLine(name="a", address="https://a", epoch=3, renewed=JUST_NOW, ttl_s=10),
    leader_answers=True,
    replicas=["a", "b"],
    checks=[CheckLine("lease", ok=True, reason="following: a leads")],
    log=LogLine(head=42, time=EARLY, read=42),
    database=DatabaseLine(place="db", bytes=1 << 30),
    verification=VERIFIED,
    anchor=AnchorLine(position=42, time=EARLY, signed=True),
    gangs={"scheduled": 3, "unschedulable": 2},
    oldest_wait=None,
    refused={"host": 3},
    certificates=[CertificateLine("server", "2027-01-01T00:00:00Z")],
    scheduler_called=EARLY,
    control_loop_failures=0,
    led_since=EARLY,
)
DOWN = DatabaseLine(place="db", error="connection refused")


def test_a_healthy_service_has_no_problem():
    """Gangs that wait, refused calls and a quiet kube-scheduler are none."""
    assert [*problems_of(HEALTHY)] == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"database": DOWN}, "database db does not answer: connection refused"),
        ({"leader": None}, "no replica leads: no gang is admitted"),
        ({"leader_answers": False}, "the leader a does not answer this replica at https://a"),
        ({"checks": [CheckLine("log", ok=False, reason="9 s behind")]}, "replica b is not ready: log: 9 s behind"),
        ({"verification": msgspec.structs.replace(VERIFIED, finding_count=2)}, "the log does not verify: 2 findings up to position 40"),
        ({"verification": msgspec.structs.replace(VERIFIED, time=EARLY)}, "the whole log was not verified for 9h"),
        ({"verification": None}, "the whole log was not verified for 9h"),
        ({"anchor": AnchorLine(position=41, time=EARLY, signed=True)}, "the end of the log was not published: the log ends at 42, the last anchor is of 41"),
        ({"anchor": None}, "the end of the log was not published: the log ends at 42, the last anchor is of 0"),
        ({"control_loop_failures": 3}, "the control loop has failed 3 times in a row"),
        ({"gangs": {"admitted": 2}}, "2 admitted gangs and no call of kube-scheduler for 9h"),
        ({"gangs": {"admitted": 1}, "scheduler_called": ""}, "1 admitted gang and no call of kube-scheduler for 9h"),
        ({"certificates": [CertificateLine("client", "2026-11-20T20:00:00Z")]}, "certificate client ends at 2026-11-20T20:00:00Z"),
        ({"certificates": [CertificateLine("client-ca", EARLY)]}, "certificate client-ca ended at 2026-11-20T03:00:00Z"),
        ({"certificates": [CertificateLine("client", EARLY)]}, "certificate client ended at 2026-11-20T03:00:00Z"),
        ({"database": DatabaseLine(place="/data", disk_free_bytes=9 << 20, disk_bytes=1 << 40)}, "database /data: its disk has 9.0 MiB left"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_do(changed, text):
    (problem,) = problems_of(msgspec.structs.replace(HEALTHY, **changed))
    assert problem.text == text
    assert problem.help


def test_what_to_do_about_a_certificate_helps():
    """`--renew` keeps the CA."""

    def help_for(name):
        status = msgspec.structs.replace(HEALTHY, certificates=[CertificateLine(name, EARLY)])
        return next(problems_of(status)).help

    assert "--renew" in help_for("server")
    assert help_for("client-ca") == "make a new CA: docs/runbook/certificates.md"


def test_the_cause_comes_first():
    """Without a database nothing is known of the leader and of what it does."""
    status = msgspec.structs.replace(
        HEALTHY, database=DOWN, leader=None, leader_answers=False, verification=None, anchor=None, led_since="",
        checks=[CheckLine("lease", ok=False, reason="no answer")],
    )  # fmt: skip
    texts = [problem.text for problem in problems_of(status)]
    assert texts == [
        "database db does not answer: connection refused",
        "replica b is not ready: lease: no answer",
    ]


def test_a_new_leader_has_time_to_verify_and_to_publish():
    status = msgspec.structs.replace(
        HEALTHY, verification=None, anchor=None, led_since=JUST_NOW, gangs={"admitted": 1}, scheduler_called=""
    )  # fmt: skip
    assert [*problems_of(status)] == []
