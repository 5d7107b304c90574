"""Keep the clock of the service at the database's clock: sample it once a second, and record steps as `ClockStepped`.

The leader also samples before each acquisition of the lease, see `control.log.lease`. A replica that follows reports the
steps of its clocks as metric and log line only.
"""

from __future__ import annotations

import logging

from extender.control.log.leader import Leader
from extender.core.log.events import ClockStepped
from extender.core.model.errors import NotLeading, StoreUnavailable
from extender.core.model.ids import Epoch
from extender.runtime.database_clock import STEP_US, DatabaseClock
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

EVERY_S = 1.0


class ClockMonitor:
    """Samples the database's clock, and appends what it shows."""

    def __init__(self, leader: Leader, clock: DatabaseClock) -> None:
        self._leader = leader
        self._clock = clock
        # the epoch whose first events were compared with the clock
        self._compared: Epoch | None = None
        self.run = PeriodicTask(
            name="clock_monitor",
            work=self.look,
            every_s=EVERY_S,
            expected=(NotLeading, StoreUnavailable),
            failure="the clock of the database was not read, or its step was not recorded",
        ).run

    async def look(self) -> None:
        """Sample once, and append the steps seen since the last append if this process leads."""
        await self._clock.sync()
        leader, clock = self._leader, self._clock
        newest_us = leader.committed.at_us
        ahead_us = newest_us - clock.recording_us()
        METRICS.recorded_time_ahead_seconds.set(max(ahead_us, 0) / 1e6)
        clock.reach(newest_us)
        if not leader.may_record():
            if not leader.leads():
                self._report(clock.take_steps())
            return
        steps = clock.take_steps()
        if self._compared != leader.epoch:
            self._compared = leader.epoch
            if ahead_us > STEP_US and not any(step.clock == "database" for step in steps):
                # it happened while no process led: the log has times that are still to come
                text = "the log has newer times; recorded times stand still until the clock has caught up"
                behind_ms = -ahead_us // 1000
                steps.append(ClockStepped(clock="database", step_ms=behind_ms, message=text))
        self._report(steps)
        await leader.append_own(*steps)

    def _report(self, steps: list[ClockStepped]) -> None:
        for step in steps:
            extra = {"clock": step.clock, "step_ms": step.step_ms, "detail": step.message}
            log.error("clock stepped", extra=extra)
