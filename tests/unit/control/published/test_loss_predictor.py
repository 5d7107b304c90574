"""Replacement holds of losses that are not in the log yet, as the verbs see them between passes and during one."""

from __future__ import annotations

import msgspec
import pytest

from extender.control.published.pass_result import PublishedPass
from extender.control.published.shared_state import LossPredictor
from extender.core.log.reservation_state import claims_of_kind
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodEnd
from extender.core.reconcile import cluster_reconciliation
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node


class Answers(msgspec.Struct):
    """Answers of the API server that a test sets."""

    known: dict[PodUid, PodEnd | None] = {}
    awaited: frozenset[PodUid] = frozenset()


async def lost_member():
    """Run a gang of two, and delete one member that no pass has missed yet."""
    stage = Stage(a_node("n0", gpu=2), *a_gang("g", pods=2), replacement_ttl_s=60)
    await stage.lead()
    await stage.one_pass()
    for name, node in stage.where("g").items():
        stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
    await stage.settled()
    return stage, stage.cluster.pod("g-0").uid


def held(predictor, stage) -> set[str]:
    state = predictor.with_predicted_losses(stage.cluster.view(), stage.leader.committed)
    return {hold.pod for hold in claims_of_kind(state, "replacement")}


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_loss_is_predicted_until_it_is_compared_and_answered(awaited):
    """From the deletion to the pass that compares the log, and while the API server is asked."""
    stage, uid = await lost_member()
    async with stage:
        published, answers = PublishedPass(), Answers()
        published.observe(stage.cluster.view())
        published.mark_compared(stage.cluster.view())
        predictor = LossPredictor(published, answers, stage.clock, stage.settings)
        assert held(predictor, stage) == set()
        stage.cluster.delete_pod("g-0")
        assert held(predictor, stage) == {"default/g-0"}
        published.observe(stage.cluster.view())
        assert held(predictor, stage) == {"default/g-0"}, "an observation compares nothing"
        answers.awaited = frozenset({uid} if awaited else ())
        published.mark_compared(stage.cluster.view())
        assert held(predictor, stage) == ({"default/g-0"} if awaited else set())


async def test_a_defect_with_one_gang_is_no_error_of_a_call(monkeypatch, caplog):
    """Calls for other gangs read the same state: without the hold of that gang, and with a line in the log."""
    stage, _ = await lost_member()
    async with stage:
        stage.cluster.delete_pod("g-0")

        def broken(*arguments):
            raise ZeroDivisionError("the test fails it")

        monkeypatch.setattr(cluster_reconciliation, "losses_with_hold", broken)
        assert held(stage.parts.exchange.committed_losses, stage) == set()
    (line,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert (line.part, line.object) == ("reconciliation", "losses of default/g")


async def test_the_answers_are_those_of_now():
    """An answer that arrives between two passes is used at once."""
    async with Stage(holder="me", replacement_ttl_s=7) as stage:
        answers = Answers()
        predictor = LossPredictor(PublishedPass(), answers, stage.clock, stage.settings)
        assert predictor.context("why").cause == "why"
        answers.known = {PodUid("a"): None}
        answers.awaited = frozenset({PodUid("b")})
        stage.clock.advance(1)
        now = predictor.context()
        assert (now.ends, now.awaited) == (answers.known, answers.awaited)
        assert (now.actor, now.now_us, now.replacement_hold_us) == ("me", stage.clock.us, 7_000_000)


async def test_the_verbs_and_the_loop_predict_the_same():
    """The state of the verbs is the committed one, that of the control loop the pending one."""
    stage, _ = await lost_member()
    async with stage:
        stage.cluster.delete_pod("g-0")
        parts = stage.parts
        assert held(parts.exchange.committed_losses, stage) == {"default/g-0"}
        pending = parts.observer.observe().state
        assert [hold.pod for hold in claims_of_kind(pending, "replacement")] == ["default/g-0"]
