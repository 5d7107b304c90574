"""The verification of the log beside the service: its slices and pauses, and what becomes of findings."""

from __future__ import annotations

import pytest

from extender.control.log.log_head_publisher import LogHeadPublisher
from extender.control.monitors import log_verifier
from extender.control.monitors.log_verifier import LogVerifier
from extender.core.log.events import DriftDetected
from extender.core.log.tampering import LogFinding
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.verification_ports import SliceResult
from extender.telemetry import METRICS
from tests.support.service.fakes import Stage
from tests.support.waiting import eventually

HOLE = LogFinding(kind="hole", position=9, message="no event is there")


class Slices:
    """Slices of passes over a log, each of which takes some seconds; the last of a pass has the findings."""

    def __init__(self, stage, count=1, took_s=0.0):
        self.stage, self.count, self.took_s = stage, count, took_s
        self.findings = ()
        self.definitions = 64
        self.fault = None
        self.privileged_roles = ()
        self.given = []  # the anchors that passes began with; None: it went on
        self.at = 0

    async def __call__(self, anchors, most):
        self.given.append(anchors)
        self.stage.clock.advance(self.took_s)
        self.stage.leader.lease.renew_from(self.stage.clock.ms)
        if self.fault is not None:
            raise self.fault
        self.at = 1 if anchors is not None else self.at + 1
        more = self.at < self.count
        position = Position(self.at * 100)
        findings = () if more else self.findings
        definitions = 0 if more else self.definitions
        return SliceResult(
            position=position,
            more=more,
            findings=findings,
            definitions=definitions,
            privileged_roles=() if more else self.privileged_roles,
        )


@pytest.fixture
async def stage():
    async with Stage() as made:
        await made.lead()
        await LogHeadPublisher(made.leader, made.log, made.cluster, made.clock).publish()
        yield made


def verifier_of(stage, slices):
    return LogVerifier(stage.leader, stage.cluster, slices, stage.clock)


def recorded(stage):
    return [(data.kind, data.object) for data in stage.event_data(DriftDetected)]


async def test_a_pass_goes_slice_by_slice_from_the_published_anchors(stage):
    slices = Slices(stage, count=3)
    verifier = verifier_of(stage, slices)
    assert [await verifier.look() for _ in range(4)] == [True, True, False, True]
    assert slices.given == [stage.cluster.anchors, None, None, stage.cluster.anchors]
    assert METRICS.log_verified_position._value.get() == 100
    assert verifier.last is not None
    assert (verifier.last.result.position, verifier.last.anchors) == (
        300,
        len(stage.cluster.anchors),
    )


async def test_a_pass_over_two_terms_begins_again(stage):
    """Its anchors are those of before; after a loss of history the log differs from them."""
    slices = Slices(stage, count=2)
    slices.findings = (HOLE,)
    verifier = verifier_of(stage, slices)
    assert await verifier.look()

    async def during(anchors, most):
        result = await slices(anchors, most)
        terms = stage.leader.terms
        stage.leader.lose("a test")
        await eventually(lambda: stage.leader.terms > terms and stage.leader.may_record())
        return result

    verifier._slice = during
    assert await verifier.look()
    assert recorded(stage) == []
    verifier._slice = slices
    assert [await verifier.look() for _ in range(2)] == [True, False]
    assert [anchors is None for anchors in slices.given] == [False, True, False, True]
    assert recorded(stage) == [("hole", "position 9")]


async def test_a_finding_is_recorded_once_and_shown_until_it_is_gone(stage):
    slices = Slices(stage)
    slices.findings = (HOLE,)
    verifier = verifier_of(stage, slices)
    for _ in range(3):
        await verifier.look()
        assert recorded(stage) == [("hole", "position 9")]
        assert METRICS.log_findings.labels("hole")._value.get() == 1
    (data,) = stage.event_data(DriftDetected)
    assert HOLE.message in data.message
    assert HOLE.advice in data.message
    slices.findings = ()
    await verifier.look()
    assert METRICS.log_findings.labels("hole")._value.get() == 0


async def test_several_objects_of_one_kind_are_recorded_each(stage):
    """What is about no position is recorded by its object."""
    slices = Slices(stage)
    slices.findings = tuple(
        LogFinding(kind="forged-definition", position=0, object=name, message="m")
        for name in ("view gx.v_event", "trigger gx.event.refuse_change")
    )
    verifier = verifier_of(stage, slices)
    await verifier.look()
    await verifier.look()
    assert recorded(stage) == [
        ("forged-definition", "view gx.v_event"),
        ("forged-definition", "trigger gx.event.refuse_change"),
    ]


async def test_definitions_that_are_not_compared_are_logged_once(stage, caplog):
    slices = Slices(stage, count=2)
    verifier = verifier_of(stage, slices)
    for definitions, lines in ((64, 0), (0, 1), (0, 1), (64, 1), (0, 2)):
        slices.definitions = definitions
        while await verifier.look():
            pass
        assert caplog.text.count("are not compared") == lines


async def test_roles_that_can_change_the_log_are_logged_when_there_are_new_ones(stage, caplog):
    """Those of the first pass as information, a new one later as a warning; one that is gone may come again."""
    caplog.set_level("INFO")
    slices = Slices(stage, count=1)
    verifier = verifier_of(stage, slices)
    first, second = "gang_migrator (member of gx_owner)", "alice (member of gx_owner)"
    for roles in ((first,), (first,), (second, first), (first,), (second, first)):
        slices.privileged_roles = roles
        await verifier.look()
    logged = [(r.levelname, r.may) for r in caplog.records if "login roles" in r.message]
    assert logged == [("INFO", [first]), ("WARNING", [second]), ("WARNING", [second])]


async def test_a_pass_that_fails_begins_again(stage):
    slices = Slices(stage, count=3)
    verifier = verifier_of(stage, slices)
    await verifier.look()
    slices.fault = StoreUnavailable("no answer")
    with pytest.raises(StoreUnavailable):
        await verifier.look()
    slices.fault = None
    await verifier.look()
    assert [anchors is not None for anchors in slices.given] == [True, False, True]


async def test_what_another_client_published_is_found_and_replaced(stage):
    """The ConfigMap was changed: a finding, and this service's anchors are published again."""
    mine = stage.cluster.anchors
    stage.cluster.anchors = ()
    await verifier_of(stage, Slices(stage)).look()
    assert stage.cluster.anchors == mine
    assert recorded(stage) == [("forged-anchor", f"position {mine[-1].position}")]


@pytest.mark.parametrize(
    ("took_s", "rest"),
    [(0.1, log_verifier.REST_MAX), (2.0, 40 / 6 - 1), (60.0, log_verifier.REST_MIN)],
)
async def test_pauses_keep_to_a_share_of_a_processor(stage, took_s, rest):
    """A tenth; up to a quarter where a pass would take more than a minute otherwise."""
    slices = Slices(stage, count=3, took_s=took_s)
    verifier = verifier_of(stage, slices)
    for _ in range(4):
        await verifier.look()
    assert verifier._pause_s == pytest.approx(rest * took_s)
