"""Passes without a plan: how often refused trees are planned again, and what ends the stillness."""

from __future__ import annotations

import pytest

from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.unit.control.loop.test_control_loop import leading

SECOND = 1.0


def count_questions(stage):
    """Count the requests that are made of trees."""
    asked, inner = [], stage.parts.requests.about

    def counting(*args, **rest):
        asked.append(args[1].root.key.name)
        return inner(*args, **rest)

    stage.parts.requests.about = counting
    return asked


async def after_passes(stage, asked, seconds):
    """Run a pass per second, an ordinary pod taking capacity before each; the requests made meanwhile."""
    asked.clear()
    for _ in range(seconds):
        stage.clock.advance(SECOND)
        stage.cluster.add(a_pod(f"ordinary-{len(stage.cluster.seen.pods)}", node="n0", requests={}))
        await stage.one_pass()
    return len(asked)


async def test_refused_trees_are_asked_again_now_and_then_only():
    """Nothing ends by time: once in five seconds is enough for counts and the like."""
    async with await leading(a_node("n0", gpu=1), *a_gang("g", pods=2)) as stage:
        asked = count_questions(stage)
        await stage.settled()
        await stage.one_pass()
        assert await after_passes(stage, asked, 4) <= 1
        assert 1 <= await after_passes(stage, asked, 10) <= 3


@pytest.mark.parametrize("preemption", [True, False])
async def test_a_tree_that_may_evict_is_planned_more_often(preemption):
    """The back-off ends by time; a tree that may evict no pod has none."""
    fleet = (a_node("n0", gpu=1), a_pod("low", node="n0", requests={GPU: 1}, priority=-5))
    big = a_gang("g", pods=2, requests={GPU: 1})  # one too many even without the low one
    async with await leading(*fleet, *big, preemption=preemption) as stage:
        asked = count_questions(stage)
        await stage.settled()
        await stage.one_pass()
        often = await after_passes(stage, asked, 10)
        assert often >= 5 if preemption else often <= 3


async def test_capacity_ends_the_stillness_at_once():
    """A node that offers more is seen in the pass that sees the change."""
    async with await leading(a_node("n0", gpu=1), *a_gang("g", pods=2)) as stage:
        asked = count_questions(stage)
        await stage.settled()
        await stage.one_pass()
        asked.clear()
        stage.cluster.add(a_node("n1", gpu=1))
        await stage.one_pass()
        assert asked
        assert stage.root("g").phase == "admitted"
