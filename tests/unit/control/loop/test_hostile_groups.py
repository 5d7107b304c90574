"""Thousands of groups that break the rules: the gang beside them is admitted, and each is reported once."""

from __future__ import annotations

import msgspec
import pytest

from extender.control.actuators import status_reporter
from extender.core.decisions.admit import tree_warnings
from extender.core.decisions.admit.tree_warnings import NodeLabels
from extender.core.log.events import GangAdmitted, GangInvalid
from extender.core.model.cluster_view import with_group
from tests.support.service.fakes import Stage, until
from tests.support.service.manifest_builders import a_gang, a_node
from tests.unit.core.model.test_hostile_groups import SHAPES, roots, star_that_differs

COUNT = 1_500  # deeper than Python calls functions


def create(stage, groups) -> None:
    """Let the cluster show groups."""
    for group in groups:
        stage.cluster.seen = with_group(stage.cluster.seen, group)
    stage.cluster._notify()


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape is not roots])
async def test_a_gang_beside_them_is_admitted(shape, monkeypatch):
    """A chain as deep as its owner likes ends no pass; what is recorded and written of it is a few lines."""
    monkeypatch.setattr(status_reporter, "CONDITION_AFTER_S", 0.0)
    async with Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        create(stage, shape(COUNT))
        await stage.settled()
        assert [f.priority for f in stage.event_data(GangAdmitted)] == [0]
        for event in stage.event_data(GangInvalid):
            assert len(msgspec.json.encode(event)) < 6_000
        assert len(stage.event_data(GangInvalid)) <= 1


async def test_their_conditions_are_written_once():
    """What we write on one of them is no reason to look at the thousand others, nor to record anything."""
    async with Stage(a_node("n0", gpu=8)) as stage:
        await stage.lead()
        create(stage, star_that_differs(200))
        await stage.settled()
        recorded = len(stage.database.rows)
        stage.start(stage.reporter.run())
        stage.conditions_due()
        await until(lambda: len(stage.cluster.did("set_conditions")) == 200, "written on each", 30)
        await stage.settled()
        wanted = []
        inner = stage.reporter._condition
        stage.reporter._condition = lambda group, condition: (
            wanted.append(group.key) or inner(group, condition)
        )
        stage.cluster.change_group("g00007", generation=2)
        await stage.settled()
        assert [key.name for key in wanted] == ["g00007"]
        assert len(stage.cluster.did("set_conditions")) == 200
        assert len(stage.database.rows) == recorded


def test_nodes_are_looked_through_once_for_a_key(monkeypatch):
    """However many groups name it, above or below another."""
    asked = []
    inner = tree_warnings._nesting
    monkeypatch.setattr(
        tree_warnings, "_nesting", lambda *args: asked.append(args[:2]) or inner(*args)
    )
    stage = Stage(a_node("n0", {"rack": "r", "block": "b"}))
    labels = NodeLabels(stage.cluster.seen.nodes)
    for _ in range(5):
        assert labels.has("rack")
        assert not labels.has("zone")
        assert labels.nesting("rack", "block") == ""
    assert asked == [("rack", "block")]
