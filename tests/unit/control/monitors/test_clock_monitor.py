"""A step of a clock is recorded by the leader, moves no recorded time, and ends no reservation (H5 of the security review)."""

from __future__ import annotations

import pytest

from extender.control.monitors.clock_monitor import ClockMonitor
from extender.core.log.events import ClockStepped, GangAdmitted, ReservationReleased
from extender.core.model.message_formatting import rfc3339
from extender.queries.state.historical_state import HistoricalState
from extender.queries.state.state_dto import Scope
from extender.runtime.database_clock import DatabaseClock
from extender.telemetry import METRICS
from tests.support.logs.fake_store import (
    FakeDatabase,
    FakeEventLog,
    FakeEventQueries,
    FakeSnapshots,
)
from tests.support.service.fakes import FakeClock, Stage
from tests.support.service.manifest_builders import a_gang, a_node

HOUR_S = 3600
DAYS_400_S = 400 * 24 * HOUR_S
LEASE_MS = 10_000_000
TTL_S = 300


class Story:
    """A machine and a database whose clocks can be set, and a service between them."""

    def __init__(self) -> None:
        self.machine = FakeClock()
        self.database_ahead_us = 0  # of the true time
        self.true_us = self.machine.us
        self.database = FakeDatabase(lambda: self.true_us + self.database_ahead_us)
        self.stage, self.monitor = self._service()

    def _service(self, cluster=None):
        clock = DatabaseClock(self.machine, self._read)
        objects = () if cluster else (a_node("n0", gpu=2), *a_gang("g", pods=2))
        stage = Stage(
            *objects, clock=clock, database=self.database, cluster=cluster, ttl_ms=LEASE_MS,
            reservation_ttl_s=TTL_S,
        )  # fmt: skip
        return stage, ClockMonitor(stage.leader, clock)

    async def _read(self) -> int:
        return self.database.now_us()

    async def restart(self) -> None:
        """Kill the service and let another process begin on the same database and cluster."""
        await self.stage.killed()
        self.machine.ms = 77  # another process, maybe on another machine
        self.stage, self.monitor = self._service(self.stage.cluster)
        await self.stage.lead()

    async def later(self, seconds: int) -> None:
        """Let time go on, with a sample and a pass of the control loop each ten seconds."""
        for _ in range(seconds // 10):
            self.machine.advance(10)
            self.true_us += 10_000_000
            self.stage.leader.lease.renew_from(self.machine.ms)
            await self.monitor.look()
            await self.stage.settled()

    def steps(self):
        return [(s.clock, round(s.step_ms / 1000)) for s in self.stage.event_data(ClockStepped)]

    def released(self):
        return [r.reason for r in self.stage.event_data(ReservationReleased)]


@pytest.fixture
async def story():
    made = Story()
    await made.stage.lead()
    await made.monitor.look()
    await made.stage.settled()
    assert len(made.stage.event_data(GangAdmitted)) == 1
    yield made
    await made.stage.killed()


@pytest.mark.parametrize("step_s", [3 * HOUR_S, -3 * HOUR_S, DAYS_400_S, -DAYS_400_S])
async def test_a_step_of_the_machine_is_recorded_and_changes_nothing_else(story, step_s):
    """There and back: two events with right times, no reservation given back before its lifetime is over, then it is."""
    counted = METRICS.clock_steps.labels("service")._value.get()
    story.machine.us += step_s * 1_000_000
    await story.later(TTL_S // 2)
    assert story.steps() == [("service", step_s)]
    assert METRICS.clock_offset_seconds._value.get() == step_s
    story.machine.us -= step_s * 1_000_000
    await story.later(TTL_S // 2 - 10)
    assert story.steps() == [("service", step_s), ("service", -step_s)]
    assert METRICS.clock_steps.labels("service")._value.get() == counted + 2
    assert story.released() == []
    await story.later(30)
    assert story.released() == ["expired"]
    for event in story.stage.events():
        assert abs(event.at_us - story.true_us) <= (TTL_S + 60) * 1_000_000


@pytest.mark.parametrize("step_s", [DAYS_400_S, -DAYS_400_S])
async def test_the_state_of_a_moment_is_right_after_a_step_of_the_machine(story, step_s):
    """Two pods hold their capacity while the clock is wrong, and none after one was deleted: asked for by true times."""
    story.machine.us += step_s * 1_000_000
    await story.later(TTL_S // 2)
    held_us = story.true_us
    story.machine.us -= step_s * 1_000_000
    story.stage.cluster.delete_pod("g-0")
    await story.later(20)
    past = HistoricalState(
        FakeEventLog(story.database),
        FakeSnapshots(story.database),
        FakeEventQueries(story.database),
    )
    then, now = [await past.state(rfc3339(us), Scope()) for us in (held_us, story.true_us)]
    assert [found.totals.reserved for found in (then, now)] == [2, 0]


@pytest.mark.parametrize("ahead_s", [3 * HOUR_S, -3 * HOUR_S])
async def test_a_step_of_the_database_ends_no_reservation(story, ahead_s):
    """A lifetime is monotonic, although recorded times follow or stand still."""
    story.database_ahead_us = ahead_s * 1_000_000
    await story.later(TTL_S - 20)
    assert story.steps() == [("database", ahead_s)]
    assert story.released() == []
    await story.later(40)
    assert story.released() == ["expired"]


async def test_the_rest_of_a_lifetime_survives_a_restart(story):
    """By the database's time: 200 s before the restart, with another wall clock and another monotonic one after it."""
    await story.later(200)
    story.machine.us += DAYS_400_S * 1_000_000
    await story.restart()
    await story.later(TTL_S - 200 - 10)
    assert story.released() == []
    await story.later(30)
    assert story.released() == ["expired"]
    assert story.steps() == []


async def test_a_new_leader_records_that_the_log_is_ahead_of_the_clock(story):
    """The database's clock stepped back while no process led; appends go on, their times stand still."""
    story.database_ahead_us = -HOUR_S * 1_000_000
    newest_us = story.stage.events()[-1].at_us
    await story.restart()
    await story.monitor.look()
    await story.monitor.look()
    assert story.steps() == [("database", -HOUR_S)]
    assert {e.at_us for e in story.stage.events() if e.position > 3} == {newest_us}
    assert METRICS.recorded_time_ahead_seconds._value.get() == HOUR_S


async def test_a_follower_records_nothing(story, caplog):
    """It has no right to; its log line and its metric have the step."""
    follower = Stage(
        clock=DatabaseClock(FakeClock(), story._read), database=story.database, holder="other"
    )
    clock = follower.clock
    monitor = ClockMonitor(follower.leader, clock)
    await monitor.look()
    clock._machine.us += 3 * HOUR_S * 1_000_000
    await monitor.look()
    assert story.steps() == []
    assert "clock stepped" in caplog.text
