"""The time that the service goes by: the clock of the database, continued by the monotonic clock of this machine.

The wall clock of this machine is not used after the first answer of the database, so that its steps change nothing.
Each sample of the database's clock corrects drift. A difference of more than 2 s between two samples is a step of a
clock.

- The database's clock steps back: recorded times follow at once, because none may be ahead of it. The log keeps them
  from falling, so they stand still until its clock has caught up. `now_us` goes on, so that pauses and holds end.
- The database's clock steps ahead: both follow when it has stayed ahead for a minute. A clock that was wrong for a
  moment would put all later events of the log into the future.

Note: answers take time. The true difference of the clocks is between the two that result if the database read its clock
when the request was sent and when the answer came; only the part outside of that range is corrected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from extender.core.log.events import ClockStepped, SteppedClock
from extender.runtime.system_clock import SystemClock
from extender.telemetry import METRICS

STEP_US = 2_000_000  # more is a step, less is drift
BELIEVED_AFTER_US = 60_000_000  # a step ahead of the database's clock is followed after this time
STEPS_MAX = 8


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of all clocks, in microseconds."""

    sent_us: int  # monotonic, before the database was asked
    answered_us: int  # monotonic, when its answer was there
    wall_us: int  # wall clock of this machine at the same time
    database_us: int  # read by the database somewhere between


class DatabaseClock:
    """The `Clock` port by samples of the database's clock; by the wall clock of the machine before the first one."""

    def __init__(
        self, machine: SystemClock, read_database_us: Callable[[], Awaitable[int]]
    ) -> None:
        """Prepare; `sync` reads the database's clock."""
        self._machine = machine
        self.monotonic_ms, self.thread_cpu_us = machine.monotonic_ms, machine.thread_cpu_us
        self.new_id = machine.new_id
        self._read_database_us = read_database_us
        self._steps: deque[ClockStepped] = deque(maxlen=STEPS_MAX)
        # All differences are against the monotonic clock of the machine.
        self._recording: int | None = None  # of the database's clock
        self._now = 0  # of the time for everything else; the same, except after the database's clock stepped back
        self._wall = 0  # of the machine's wall clock, at the last sample
        # how far the database's clock is ahead, after a step that is not believed yet
        self._not_followed = 0
        self._stepped_us = 0  # when that step was seen

    def now_us(self) -> int:
        """Return the time in microseconds since the Unix epoch; it steps at most ahead, and back by drift only."""
        if self._recording is None:
            return self._machine.now_us()
        return self._machine.monotonic_us() + self._now

    def recording_us(self) -> int:
        """Return the time for events recorded now, in microseconds since the Unix epoch: not ahead of the database's clock."""
        if self._recording is None:
            return self._machine.now_us()
        return self._machine.monotonic_us() + self._recording

    async def sync(self) -> None:
        """Sample the database's clock once.

        Raises:
            StoreUnavailable: No answer; this clock goes on by itself.
        """
        sent_us = self._machine.monotonic_us()
        database_us = await self._read_database_us()
        answered_us, wall_us = self._machine.monotonic_us(), self._machine.now_us()
        self.observe(
            ClockSample(
                sent_us=sent_us, answered_us=answered_us, wall_us=wall_us, database_us=database_us
            )
        )
        METRICS.clock_offset_seconds.set((wall_us - database_us) / 1e6)

    def reach(self, recorded_us: int) -> None:
        """Bring `now_us` up to the newest time in the log, which is ahead after a step back of the database's clock."""
        if self._recording is not None:
            self._now = max(self._now, recorded_us - self._machine.monotonic_us())

    def take_steps(self) -> list[ClockStepped]:
        """Return the steps of clocks that were seen since the last call, the newest eight, oldest first."""
        steps = list(self._steps)
        self._steps.clear()
        return steps

    def observe(self, sample: ClockSample) -> None:
        """Correct this clock by a sample, and keep the steps that it shows for `take_steps`."""
        least = sample.database_us - sample.answered_us
        most = sample.database_us - sample.sent_us
        wall = sample.wall_us - sample.answered_us
        if self._recording is None:
            self._recording = self._now = least
        else:
            if abs(step := wall - self._wall) > STEP_US:
                self._add_step("service", step, "recorded times do not depend on it")
            self._correct(min(max(self._recording, least), most), sample.answered_us)
        self._wall = wall

    def _correct(self, measured: int, answered_us: int) -> None:
        assert self._recording is not None
        ahead = measured - self._recording
        step = ahead - self._not_followed
        if abs(step) > STEP_US:
            self._add_step("database", step, _effect(ahead))
            self._stepped_us = answered_us
        if ahead > STEP_US and answered_us - self._stepped_us < BELIEVED_AFTER_US:
            self._not_followed = ahead
            return
        self._not_followed = 0
        self._recording += ahead
        if abs(ahead) <= STEP_US:
            self._now += ahead
        self._now = max(self._now, self._recording)

    def _add_step(self, clock: SteppedClock, step_us: int, message: str) -> None:
        METRICS.clock_steps.labels(clock).inc()
        self._steps.append(ClockStepped(clock=clock, step_ms=step_us // 1000, message=message))


def _effect(ahead_us: int) -> str:
    if ahead_us > STEP_US:
        return (
            f"recorded times follow when it has stayed ahead for {BELIEVED_AFTER_US // 1_000_000} s"
        )
    if ahead_us < -STEP_US:
        return "recorded times stand still until it has caught up with the newest of them"
    return "it is where the recorded times are, which had not followed it"
