"""The service goes by the database's clock: steps of a clock are known, drift is corrected, and no recorded time is ahead."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.control.log.append_pipeline import stamp_events
from extender.core.log.events import DriftDetected, NewEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.ids import NIL_GANG, Epoch
from extender.runtime.database_clock import STEP_US, DatabaseClock
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeClock

HOUR_S = 3600
DAYS_400_S = 400 * 24 * HOUR_S
START_US = 1_800_000_000_000_000
DRAFT = NewEvent(
    gang_uid=NIL_GANG, gang="", data=DriftDetected(kind="k", object="o", message="m"), actor="me"
)


class Clocks:
    """A machine and a database with settable clocks, the clock made of them, and the log that it stamps."""

    def __init__(self) -> None:
        self.machine = FakeClock()
        self.database_us = START_US
        self.answer_ms = 0  # how long the database takes to answer; it reads its clock half way
        self.clock = DatabaseClock(self.machine, self._read)
        self.state = EMPTY
        self.recorded: list[int] = []

    async def _read(self) -> int:
        self.advance(self.answer_ms / 2000)
        read_us = self.database_us
        self.advance(self.answer_ms / 2000)
        return read_us

    def advance(self, seconds: float, *, database_rate: float = 1.0) -> None:
        """Let real time go on; the database's clock may be slower or faster."""
        self.machine.advance(seconds)
        self.database_us += int(seconds * 1_000_000 * database_rate)

    async def run(self, seconds: int, *, database_rate: float = 1.0) -> None:
        """Record an event each second, and sample as the service does."""
        for _ in range(seconds):
            self.advance(1, database_rate=database_rate)
            await self.clock.sync()
            self.record()

    def record(self) -> int:
        events = stamp_events([DRAFT], self.state, Epoch(1), self.clock)
        self.state = fold(self.state, events)
        self.recorded.append(events[0].at_us)
        return events[0].at_us

    def steps(self) -> list[tuple[str, int]]:
        """Return the steps since the last call, in seconds."""
        return [(s.clock, round(s.step_ms / 1000)) for s in self.clock.take_steps()]


@pytest.fixture
async def clocks():
    made = Clocks()
    await made.clock.sync()
    return made


async def test_before_the_first_sample_it_is_the_clock_of_the_machine():
    """A clock without a database, as while the service starts."""
    made = Clocks()
    assert made.clock.now_us() == made.clock.recording_us() == made.machine.now_us()


@pytest.mark.parametrize("step_s", [3 * HOUR_S, -3 * HOUR_S, DAYS_400_S, -DAYS_400_S])
async def test_a_step_of_the_machine_changes_no_recorded_time(clocks, step_s):
    """H5 of the security review: ahead and right again; each is seen once."""
    clocks.machine.us += step_s * 1_000_000
    assert abs(clocks.record() - clocks.database_us) <= STEP_US
    await clocks.run(5)
    assert clocks.steps() == [("service", step_s)]
    assert clocks.recorded[-1] == clocks.database_us
    clocks.machine.us -= step_s * 1_000_000
    await clocks.run(5)
    assert clocks.steps() == [("service", -step_s)]
    assert clocks.recorded[-1] == clocks.database_us
    assert clocks.clock.now_us() == clocks.database_us


async def test_a_wrong_clock_at_the_start_changes_no_recorded_time():
    """The machine is 400 days ahead before the service knows any database."""
    made = Clocks()
    made.machine.us += DAYS_400_S * 1_000_000
    await made.clock.sync()
    assert made.record() == made.database_us
    assert made.steps() == []


@pytest.mark.parametrize("rate", [0.9995, 1.0005])
async def test_slow_drift_is_followed_and_is_no_step(clocks, rate):
    """A monotonic clock that is 500 ppm off, for three hours."""
    await clocks.run(3 * HOUR_S, database_rate=rate)
    assert abs(clocks.recorded[-1] - clocks.database_us) <= 1000
    assert clocks.steps() == []


async def test_a_short_step_of_the_database_ahead_is_not_followed(clocks):
    """For less than a minute: the log has none of it, and its end is seen too."""
    clocks.database_us += DAYS_400_S * 1_000_000
    await clocks.run(30)
    clocks.database_us -= DAYS_400_S * 1_000_000
    await clocks.run(5)
    assert clocks.steps() == [("database", DAYS_400_S), ("database", -DAYS_400_S)]
    assert max(clocks.recorded) == clocks.database_us


async def test_a_lasting_step_of_the_database_ahead_is_followed_after_a_minute(clocks):
    """Then recorded times and all others are those of the database."""
    clocks.database_us += 3 * HOUR_S * 1_000_000
    await clocks.run(59)
    assert clocks.recorded[-1] == clocks.database_us - 3 * HOUR_S * 1_000_000
    await clocks.run(5)
    assert clocks.recorded[-1] == clocks.database_us == clocks.clock.now_us()
    assert clocks.steps() == [("database", 3 * HOUR_S)]


async def test_a_step_of_the_database_back_stops_recorded_times_until_it_has_caught_up(clocks):
    """Pauses and holds go on meanwhile: `now_us` does not wait."""
    before_us = clocks.record()
    clocks.database_us -= 100 * 1_000_000
    await clocks.run(50)
    assert set(clocks.recorded) == {before_us}
    assert clocks.clock.now_us() == before_us + 50 * 1_000_000
    assert clocks.steps() == [("database", -100)]
    await clocks.run(60)
    assert clocks.recorded[-1] == clocks.database_us == before_us + 10 * 1_000_000


async def test_a_log_that_is_ahead_brings_the_time_of_pauses_up_to_it(clocks):
    """After a restart: the newest event is an hour ahead of the database's clock."""
    ahead_us = clocks.database_us + HOUR_S * 1_000_000
    clocks.clock.reach(ahead_us)
    assert clocks.clock.now_us() == ahead_us
    assert clocks.clock.recording_us() == clocks.database_us


async def test_slow_answers_move_nothing(clocks):
    """An answer that takes 1.9 s leaves the clock where exact answers had put it."""
    clocks.answer_ms = 1900
    await clocks.run(100)
    assert clocks.recorded[-1] == clocks.database_us
    assert clocks.steps() == []


def apply(clocks: Clocks, kind: str, seconds: float) -> None:
    """Step one clock."""
    if kind == "machine":
        clocks.machine.us += int(seconds * 1_000_000)
    elif kind == "database ahead":
        clocks.database_us += int(abs(seconds) * 1_000_000)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["machine", "machine", "database ahead"]),
        st.one_of(st.floats(-DAYS_400_S, DAYS_400_S), st.floats(-3, 3)),
        st.integers(1, 70),  # seconds until the next
        st.sampled_from([1.0, 0.9995, 1.0005]),
        st.sampled_from([0, 1, 300]),  # ms that an answer takes
    ),
    max_size=12,
)


@examples(400)
@given(STEPS)
async def test_recorded_times_never_fall_and_are_never_ahead(steps: Iterable[tuple]):
    """Whatever the clocks do but a step back of the database: monotone, at most 2 s ahead, and behind for a minute at most."""
    clocks = Clocks()
    await clocks.clock.sync()
    for kind, seconds, lasts, rate, answer_ms in steps:
        apply(clocks, kind, seconds)
        clocks.answer_ms = answer_ms
        for _ in range(lasts):
            clocks.advance(1, database_rate=rate)
            await clocks.clock.sync()
            assert clocks.record() <= clocks.database_us + STEP_US
    assert clocks.recorded == sorted(clocks.recorded)
    await clocks.run(62)
    assert clocks.recorded[-1] >= clocks.database_us - STEP_US
