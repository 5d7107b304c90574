"""A lifetime ends after its monotonic time, whatever the clocks do; after a restart its rest follows from recorded times."""

from __future__ import annotations

import pytest

from extender.runtime.stall_timer import IdleTimes
from tests.support.service.fakes import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def idle(clock):
    made: IdleTimes[str] = IdleTimes(clock)
    made.begin_round(1)
    return made


def test_the_first_round_of_a_term_counts_from_the_recorded_time(clock, idle):
    """What happened under the process before it."""
    assert idle.idle_ms("a", clock.now_us() - 100_000_000) == 100_000
    assert idle.idle_ms("b", clock.now_us() + 100_000_000) == 0


@pytest.mark.parametrize("step_s", [10_800, -10_800, 400 * 86_400, -400 * 86_400])
def test_steps_of_the_clock_are_no_time(clock, idle, step_s):
    """Only the monotonic clock makes anything older."""
    recorded_us = clock.now_us()
    idle.idle_ms("a", recorded_us)
    clock.us += step_s * 1_000_000
    clock.advance(5)
    idle.begin_round(1)
    assert idle.idle_ms("a", recorded_us) == 5_000


def test_what_is_new_is_not_older_than_the_round_before(clock, idle):
    """Its recorded time stands still, because the database's clock stepped back by three hours."""
    still_us = clock.now_us() - 10_800_000_000
    clock.advance(2)
    idle.begin_round(1)
    assert idle.idle_ms("a", still_us) == 2_000
    clock.advance(3)
    idle.begin_round(1)
    assert idle.idle_ms("a", still_us) == 5_000


def test_progress_begins_anew_and_what_is_gone_is_forgotten(clock, idle):
    """A later recorded time of the same object."""
    idle.idle_ms("a", clock.now_us() - 50_000_000)
    clock.advance(10)
    idle.begin_round(1)
    assert idle.idle_ms("a", clock.now_us() - 1_000_000) == 1_000
    idle.retain(())
    idle.begin_round(2)
    assert idle.idle_ms("a", clock.now_us() - 70_000_000) == 70_000


def test_progress_at_a_time_that_stands_still_is_seen_by_its_mark(clock, idle):
    """Planned again at the same recorded time."""
    recorded_us = clock.now_us()
    idle.idle_ms("a", recorded_us, "plan 1")
    clock.advance(300)
    idle.begin_round(1)
    assert idle.idle_ms("a", recorded_us, "plan 1") == 300_000
    clock.advance(1)
    idle.begin_round(1)
    assert idle.idle_ms("a", recorded_us, "plan 2") == 1_000
