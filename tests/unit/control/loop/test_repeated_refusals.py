"""A refusal is recorded again when a reader would act on the change, not because a number in its text changed."""

from __future__ import annotations

import pytest

from extender.core.admit.verdict_events import is_recorded
from extender.core.log.events import GangUnschedulable
from extender.core.log.reservation_state import GangState, LastDecision
from extender.core.model.ids import GangUid, Position
from extender.core.planner.plan_types import Refusal, SearchEffort
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod

WHOLE = {GPU: 8}


def refusals(stage: Stage) -> list[GangUnschedulable]:
    return [
        data
        for event in stage.events()
        if isinstance(data := event.data, GangUnschedulable) and event.gang == "default/big"
    ]


@pytest.mark.parametrize("rounds", [90, pytest.param(360, marks=pytest.mark.full)])
async def test_an_hour_of_changing_numbers(rounds: int) -> None:
    """Others leave one node, or two other nodes, every ten seconds, and come back: each plan has another number, few are events.

    In each run it is a quarter of an hour.
    """
    nodes = [a_node(f"n{n}", gpu=8) for n in range(4)]
    others = [a_pod(f"other-{n}", node=f"n{n}", requests=WHOLE) for n in range(3)]
    async with Stage(*nodes, *others, *a_gang("big", pods=6, requests=WHOLE)) as stage:
        await stage.lead()
        await stage.settled()
        texts = set()
        for round_ in range(rounds):
            leaving = others[1:] if round_ % 2 else others[:1]
            for other in leaving:
                stage.cluster.delete_pod(other["metadata"]["name"])
            stage.later(10)
            await stage.settled()
            texts.add(stage.root("big").last_decision.reasons[0])
            stage.cluster.add(*leaving)
            await stage.settled()
        assert len(texts) == 2  # 2 and 3 nodes are free
        found = refusals(stage)
        assert 5 < len(found) < 20
        assert {data.outcome for data in found} == {"impossible"}


async def test_another_reason_is_recorded_at_once() -> None:
    """The last node is cordoned: that is not a number."""
    nodes = [a_node(f"n{n}", gpu=8) for n in range(2)]
    async with Stage(*nodes, *a_gang("big", pods=3, requests=WHOLE)) as stage:
        await stage.lead()
        await stage.settled()
        before = len(refusals(stage))
        stage.cluster.add(a_pod("other", node="n0", requests=WHOLE))
        await stage.settled()
        assert len(refusals(stage)) == before
        for name in ("n0", "n1"):
            stage.cluster.change_node(name, unschedulable=True)
        await stage.settled()
        assert len(refusals(stage)) > before


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("needs 8 pods; holds 5 (3 missing: gpu)", "needs 8 pods; holds 6 (2 missing: gpu)", True),
        ("the best, rack-1, holds 5", "the best, rack-2, holds 5", False),
        ("refused n1", "refused n2", False),
        ("example.com/a1: 3 required, 1 present", "example.com/a1: 3 required, 2 present", True),
        ("example.com/a1: 3 required", "example.com/a2: 3 required", False),
    ],
)
def test_numbers_are_words_of_their_own(before: str, now: str, same: bool) -> None:
    last = LastDecision(outcome="impossible", reasons=(before,), position=Position(1), at_us=1)
    root = GangState(uid=GangUid("u"), gang="ns/g", last_decision=last)
    refusal = Refusal(
        outcome="impossible",
        status="Unschedulable",
        reasons=(now,),
        search=SearchEffort(nodes=0, exhausted=True),
    )
    assert is_recorded(root, refusal, (), explained=True) == same
    assert not is_recorded(root, refusal, ("evicting would not help",), explained=True)
