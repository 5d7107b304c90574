"""The loop that projects, and the ladder of checkpoints that is made where it is missing."""

from __future__ import annotations

import asyncio

import pytest

from extender.control.monitors import read_model_projector
from extender.control.monitors.read_model_projector import ReadModelProjector, project_all
from extender.core.log.events import GangObserved, NewEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import GangUid, Position
from extender.snapshots.state_loader import (
    HISTORICAL_CODEC,
    backfill_snapshots,
    decode_historical,
    load_historical_state,
    load_state,
)
from tests.support.logs.fake_store import FakeIntervalProjection, FakeSnapshots
from tests.support.logs.random_logs import lean
from tests.support.service.fakes import Stage
from tests.support.waiting import eventually


class Watched(FakeIntervalProjection):
    """Remembers what was asked."""

    def __init__(self, database):
        super().__init__(database)
        self.asked = []

    async def project(self, upto, *, max_events):
        self.asked.append((upto, max_events))
        return await super().project(upto, max_events=max_events)


@pytest.fixture
async def stage(monkeypatch):
    monkeypatch.setattr(read_model_projector, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(read_model_projector, "BATCH", 4)
    async with Stage() as made:
        yield await made.lead()


async def record(stage, count):
    for number in range(count):
        name = f"r{stage.leader.committed.position}-{number}"
        event = GangObserved(kind="PodGroup")
        await stage.leader.append(
            [NewEvent(gang_uid=GangUid(name), gang=f"ns/{name}", data=event, actor="t")]
        )


async def test_everything_that_is_acknowledged_a_batch_at_a_time(stage):
    projection = Watched(stage.database)
    projector = ReadModelProjector(stage.leader, projection)
    await record(stage, 10)
    await projector.catch_up()
    assert projector.position == stage.database.projected == 11
    assert projection.asked == [(11, 4)] * 3
    await projector.catch_up()
    assert len(projection.asked) == 3, "nothing new, nothing asked"


async def test_what_fails_is_tried_again(stage):
    projection = FakeIntervalProjection(stage.database)
    projection.unavailable = True
    stage.start(ReadModelProjector(stage.leader, projection).run())
    await record(stage, 3)
    await asyncio.sleep(0.01)
    assert stage.database.projected == 0
    projection.unavailable = False
    await eventually(lambda: stage.database.projected == 4, "projected")


async def test_a_slow_database_is_asked_for_less(stage, monkeypatch):
    """After a failure half as many, and more again when it answers; the command likewise."""
    projection = Watched(stage.database)
    projection.unavailable = True
    projector = ReadModelProjector(stage.leader, projection)
    await record(stage, 10)
    stage.start(projector.run())
    await eventually(lambda: (11, 1) in projection.asked, "asked for one")
    projection.unavailable = False
    await eventually(lambda: stage.database.projected == 11, "projected")
    assert [most for _, most in projection.asked if most > 1][:2] == [4, 2]
    assert projection.asked[-1][1] == 4
    slow = Watched(stage.database)
    slow.unavailable = True
    monkeypatch.setattr(read_model_projector, "BULK", 20)
    with pytest.raises(StoreUnavailable):
        await project_all(slow, Position(11))
    assert [most for _, most in slow.asked] == [20, 5, 1]


async def test_only_who_leads_projects(stage):
    projector = ReadModelProjector(stage.leader, FakeIntervalProjection(stage.database))
    await stage.stop_leading()
    await projector.catch_up()
    assert stage.database.projected == 0


async def test_another_process_has_projected_already(stage):
    """The tables may be further than this process knows, by the command beside it."""
    await record(stage, 3)
    assert await project_all(FakeIntervalProjection(stage.database), Position(4)) == 4
    projector = ReadModelProjector(stage.leader, Watched(stage.database))
    await projector.catch_up()
    assert projector.position == 4


async def test_a_ladder_is_made_where_there_is_none(stage):
    """One checkpoint per stretch, each of them the fold; what is there is not made again."""
    await record(stage, 20)
    events = stage.events()
    snapshots = FakeSnapshots(stage.database, snapshot_spacing=4)
    asked = {"until": Position(len(events)), "every": 4}
    assert await backfill_snapshots(stage.log, snapshots, **asked) == 5
    for position in (4, 8, 12, 16, 20):
        found = await snapshots.newest(codec=HISTORICAL_CODEC, until=Position(position))
        assert found.position == position
        assert decode_historical(found.body) == lean(fold(EMPTY, events[:position]))
    assert await backfill_snapshots(stage.log, snapshots, **asked) == 0
    del stage.database.snapshots[8, HISTORICAL_CODEC]
    assert await backfill_snapshots(stage.log, snapshots, **asked) == 1
    past = await load_historical_state(stage.log, snapshots, until=Position(21))
    assert lean(past) == lean(stage.leader.committed)
    whole = await load_state(stage.log, snapshots, until=Position(21))
    assert whole == stage.leader.committed
