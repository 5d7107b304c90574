"""Thousands of groups that break the rules: the gang beside them is admitted, and each is reported once."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from extender.control.actuators import status_reporter
from extender.control.actuators.status_reporter import GROUPS_PER_RUN
from extender.control.admission.pending_trees import INVALID_PER_PASS
from extender.core.admit.tree_warnings import NodeLabels
from extender.core.log.events import GangAdmitted, GangInvalid, GangObserved
from extender.core.model.cluster_view import with_group, with_pod
from extender.core.model.ids import PodUid
from extender.core.model.pods import Pod, PodShape
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually
from tests.unit.core.model.test_hostile_groups import (
    SHAPES,
    Looked,
    leaf,
    orphans,
    roots,
    star_that_differs,
)

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
        await eventually(lambda: len(stage.cluster.did("set_conditions")) == 200, "written on each")
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
    inner = NodeLabels._distinct_pairs
    monkeypatch.setattr(
        NodeLabels, "_distinct_pairs", lambda *args: asked.append(args[1:]) or inner(*args)
    )
    stage = Stage(a_node("n0", {"rack": "r", "block": "b"}))
    labels = NodeLabels(stage.cluster.seen.nodes)
    for _ in range(5):
        assert labels.has("rack")
        assert not labels.has("zone")
        assert labels.nesting("rack", "block") == ""
    assert asked == [("rack", "block")]


# --- what thousands of broken trees cost the others ------------------------------------------------


def broken_pods(stage, namespace, count):
    """Let the cluster show invalid trees of two pods each, which differ in their priority."""
    for i in range(count):
        group = leaf(f"{namespace}-{i:05}", namespace=namespace, created_us=i)
        stage.cluster.seen = with_group(stage.cluster.seen, group)
        for priority in (0, 1):
            pod = Pod(
                uid=PodUid(f"{namespace}-{i}-{priority}"), namespace=namespace, name=f"p{i:05}-{priority}",
                shape=PodShape(), group=group.key, priority=priority,
            )  # fmt: skip
            stage.cluster.seen = with_pod(stage.cluster.seen, pod)
    stage.cluster._notify()


def invalid_by_namespace(stage):
    return Counter(
        event.gang.partition("/")[0]
        for event in stage.events()
        if isinstance(event.data, GangInvalid)
    )


async def test_broken_trees_without_pods_are_not_recorded():
    """20,000 of them cost 8.4 s and 40,000 events; nothing waits for them, and their conditions have the reason."""
    async with Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        create(stage, roots(300))
        await stage.settled()
        assert stage.event_data(GangInvalid) == []
        assert len(stage.event_data(GangObserved)) == 1
        assert len(stage.event_data(GangAdmitted)) == 1


async def test_a_pass_records_some_broken_trees_and_takes_turns_between_namespaces():
    """The namespace with three is done in the first pass, whatever the others have; all are recorded in the end."""
    async with Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        broken_pods(stage, "many", 3 * INVALID_PER_PASS)
        broken_pods(stage, "zoo", 3)
        await stage.one_pass()
        assert invalid_by_namespace(stage) == {"many": INVALID_PER_PASS - 3, "zoo": 3}
        assert len(stage.event_data(GangAdmitted)) == 1
        for _ in range(3):
            await stage.one_pass()
        assert invalid_by_namespace(stage) == {"many": 3 * INVALID_PER_PASS, "zoo": 3}


async def test_a_run_reports_some_groups_of_a_namespace_and_all_in_the_end():
    """The conditions of 1,200 groups that hang in the air are queued in turns; one of another namespace is first."""
    async with Stage(a_node("n0", gpu=8)) as stage:
        await stage.lead()
        create(stage, [*orphans(1_200), leaf("late", "missing", namespace="zoo")])
        await stage.one_pass()
        queued = Counter(job.group.namespace for job in stage.reporter._wrote)
        assert queued == {"a": GROUPS_PER_RUN, "zoo": 1}
        for _ in range(1_200 // GROUPS_PER_RUN):
            await stage.one_pass()
        assert len(stage.reporter._wrote) == 1_201


async def test_a_pass_calls_no_function_for_each_of_them():
    """A change beside 200 or 2,000 broken trees costs a pass the same number of Python calls."""
    calls = []
    for count in (200, 2_000):
        async with Stage(a_node("n0", gpu=8), *a_gang("g", pods=2)) as stage:
            await stage.lead()
            create(stage, roots(count))
            for _ in range(2_000 // GROUPS_PER_RUN + 2):
                await stage.one_pass()
            create(stage, [leaf("fresh")])
            with Looked() as looked:
                await stage.one_pass()
            calls.append(looked.calls)
    few, many = calls
    assert many < 1.2 * few
