"""Each of the twelve ways to tamper with a log is found: offline, in a running service, and after a restart."""

from __future__ import annotations

from typing import get_args

import pytest

from extender.core.log.tampering import ADVICE, TamperKind
from extender.queries.verification.log_verification import LogVerification
from extender.runtime.log_keys import NO_KEYS
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.log_evidence import PostgresLogEvidence
from tests.support.logs.tampered_log import TAMPERINGS, FilledLog

pytestmark = pytest.mark.postgres
POSITIONS = {"edited-row": 9, "hole": 9, "forged-snapshot": 10, "other-database": 1, "rewritten": 6}


@pytest.fixture
async def filled(database_url):
    return await FilledLog(database_url).fill()


async def verified(log, *, keys=None, anchors=None, step=7):
    """Return the verdict of a whole pass."""
    keys = log.keys if keys is None else keys
    evidence = PostgresLogEvidence(log.url, keys)
    async with PostgresEventLog(log.url) as events:
        anchors = log.anchors if anchors is None else anchors
        work = LogVerification(events, evidence, anchors, keys)
        while await work.step(step):
            pass
    await evidence.close()
    return work.verdict


def test_every_kind_has_a_way_and_an_advice():
    assert set(TAMPERINGS) == set(ADVICE) == set(get_args(TamperKind))


@pytest.mark.parametrize("step", [1, 7, 100_000])
async def test_an_untouched_log_verifies(filled, step):
    """In whatever steps: nothing is found, and everything was compared."""
    verdict = await verified(filled, step=step)
    assert verdict.findings == ()
    assert verdict.position == (await filled.head()).position
    assert (verdict.anchors, verdict.unsigned) == (3, 0)


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_offline_verification_finds_it(filled, kind):
    """Against the published anchors: kind, position, and what to do."""
    await TAMPERINGS[kind](filled)
    findings = (await verified(filled)).findings
    assert [finding.kind for finding in findings] == [kind]
    (found,) = findings
    assert found.advice == ADVICE[kind]
    if kind in POSITIONS:
        assert found.position == POSITIONS[kind]
    if kind == "missing-input":
        assert found.position == filled.decision


@pytest.mark.parametrize("kind", sorted(set(TAMPERINGS) - {"forged-anchor"}))
async def test_it_is_found_without_keys_too(filled, kind):
    """Anchors are then believed as they are; a forged one looks like a log that was rewritten."""
    await TAMPERINGS[kind](filled)
    verdict = await verified(filled, keys=NO_KEYS)
    assert [finding.kind for finding in verdict.findings] == [kind]
    assert verdict.unsigned == 3


async def test_a_forged_anchor_is_never_silent(filled):
    """Without keys it cannot be told from a rewritten log, and is reported as that."""
    await TAMPERINGS["forged-anchor"](filled)
    verdict = await verified(filled, keys=NO_KEYS)
    assert [finding.kind for finding in verdict.findings] == ["rewritten"]
