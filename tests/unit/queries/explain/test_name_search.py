"""Search by a part of any name: every kind, the likely ones first, and a limited answer."""

from __future__ import annotations

import pytest

from extender.queries.explain.name_lookup import search_names
from extender.runtime.cooperative_yield import Yielder
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node


async def searched(stage, text, limit=50):
    await stage.lead()
    await stage.settled()
    view, state = stage.cluster.view(), stage.leader.committed
    return await search_names(view, state, text, limit, Yielder())


def labels(found):
    return [f"{one.kind}/{one.name}" for one in found.found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", ["PodGroup/default/train", "Pod/default/train-0", "Pod/default/train-1",
                   "Node/train-node", "PodGroup/default/my-train", "Pod/default/my-train-0"]),
        ("TRAIN-1", ["Pod/default/train-1"]),
        ("podgroup train", ["PodGroup/default/train", "PodGroup/default/my-train"]),
        ("Pod/default/train-1", ["Pod/default/train-1"]),
        ("ode/tra", ["Node/train-node"]),
        ("default/my", ["PodGroup/default/my-train", "Pod/default/my-train-0"]),
        ("absent", []),
        ("train absent", []),
    ],
)  # fmt: skip
async def test_the_words_of_a_text_are_found_in_kinds_and_names(text, expected):
    objects = (
        a_node("train-node", gpu=8),
        *a_gang("train", pods=2),
        *a_gang("my-train", pods=1),
    )
    async with Stage(*objects) as stage:
        found = await searched(stage, text)
        assert labels(found) == expected
        assert not found.more
        assert found.position == stage.leader.committed.position


async def test_an_answer_is_limited_and_keeps_the_likely_ones():
    """Of more matches than are kept at a time, the first of all of them remain."""
    nodes = [a_node(f"rack-{n:03}") for n in range(100)] + [a_node("x-rack"), a_node("rack")]
    async with Stage(*nodes) as stage:
        found = await searched(stage, "rack", limit=3)
        assert labels(found) == ["Node/rack", "Node/rack-000", "Node/rack-001"]
        assert found.more
        assert not (await searched(stage, "rack", limit=102)).more
        assert (await searched(stage, "rack", limit=101)).more
