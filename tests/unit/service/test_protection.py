"""Finalizers are written inside the lease, once per version of a group, and again after a failure."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.decisions.protection import FINALIZER
from extender.core.errors import BindRefused, ClusterUnavailable
from extender.core.view import Guard, with_guard
from extender.service import protection
from extender.service.protection import Protector
from tests.builders import a_gang
from tests.fakes import Stage, idle, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "SETTLE_S", 0.001)
    monkeypatch.setattr(protection, "TICK_S", 0.01)


def guard(stage, name="g", **changes):
    """Let the cluster show a group as to its finalizer."""
    key = stage.cluster.group(name).key
    known = stage.cluster.seen.guards.get(key) or Guard(uid=stage.cluster.group(name).uid)
    changed = msgspec.structs.replace(known, **changes)
    stage.cluster.seen = with_guard(stage.cluster.seen, key, changed)
    stage.cluster._tell()


def written(stage):
    return [detail for _, detail in stage.cluster.did("set_finalizers")]


async def test_set_once_and_lifted_when_the_last_pod_goes():
    """The whole life of a group's finalizer."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        guard(stage)
        stage.start(Protector(stage.cluster, stage.leader).run())
        await until(lambda: written(stage) == [FINALIZER], "set")
        guard(stage, deleting=True, resource_version="2")
        await idle()
        assert written(stage) == [FINALIZER], "a pod still names it"
        stage.cluster.delete_pod("g-0")
        await until(lambda: written(stage) == [FINALIZER, ""], "lifted")


async def test_nothing_is_written_twice_for_one_version():
    """What the cluster has not shown yet is not written again."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        stage.cluster.shows_finalizers = False
        guard(stage)
        work = Protector(stage.cluster, stage.leader)
        for _ in range(3):
            await work.work()
        assert written(stage) == [FINALIZER]
        guard(stage, resource_version="2")  # somebody else wrote, and it is not there
        await work.work()
        assert written(stage) == [FINALIZER, FINALIZER]


async def test_only_inside_the_lease_and_from_a_view_that_counts():
    """A deposed replica writes nothing, nor one that does not see the cluster."""
    async with Stage(*a_gang("g", pods=1)) as stage:
        guard(stage)
        work = Protector(stage.cluster, stage.leader)
        stage.start(work.run())
        await idle()
        assert not written(stage)
        stage.cluster.doubted = "nothing heard for 20 s"
        await stage.lead()
        await idle()
        assert not written(stage)
        stage.cluster.doubted = ""
        await until(lambda: written(stage) == [FINALIZER], "set")


async def test_a_failure_is_tried_again_and_a_refusal_is_not():
    """A conflict or an outage passes; a group that is gone stays gone."""
    async with await Stage(*a_gang("g", pods=1)).lead() as stage:
        errors = [ClusterUnavailable("429"), ClusterUnavailable("conflict")]
        asked = []

        def fault(verb, name):
            asked.append((verb, name))
            return errors.pop(0) if errors else None

        stage.cluster.fault = fault
        guard(stage)
        stage.start(Protector(stage.cluster, stage.leader).run())
        await until(lambda: written(stage) == [FINALIZER], "set at last")
        assert len(asked) == 3
        stage.cluster.delete_pod("g-0")
        errors.append(BindRefused("gone"))
        guard(stage, deleting=True, resource_version="3")
        await until(lambda: len(asked) == 4, "asked once more")
        await idle()
        assert len(asked) == 4
