"""Work that is repeated for as long as the service runs: every few seconds, and earlier when something has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from extender.runtime.object_faults import ObjectFaults
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

Seconds = float | Callable[[], float]


class Changes(NamedTuple):
    """What wakes a task early, see `Wakeup`."""

    revision: Callable[[], int]
    wait: Callable[[int], Awaitable[object]]


class PeriodicTask(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work, how often it is done, and after which errors it goes on."""

    name: str  # label of the metric
    work: Callable[[], Awaitable[object]]
    every_s: Seconds  # from the end of one run to the start of the next
    # tried again after them; errors of the log and of the lease end the task, all others are defects and counted
    expected: tuple[type[Exception], ...] = ()
    failure: str = ""  # log message for them
    retry_s: Seconds | None = None  # instead of `every_s` after a failure
    # asked before each run; the work waits while it is false
    condition: Callable[[], bool] = lambda: True
    changes: Changes | None = None  # the wait ends at a change after the start of the last run
    settle_s: float = 0.0  # added to each wait, because changes come in bursts

    async def run(self) -> None:
        """Do the work now and then again and again, until cancelled.

        A failure is logged when its text differs from that of the failure before. Each success is recorded in a metric
        with its time.
        """
        logged = ""
        faults: ObjectFaults[str] = ObjectFaults("periodic task")
        while True:
            revision = self.changes.revision() if self.changes is not None else 0
            pause = self.every_s
            if self.condition():
                with faults.alone(self.name):
                    try:
                        await self.work()
                    except self.expected as error:
                        pause = self.every_s if self.retry_s is None else self.retry_s
                        if str(error) != logged:
                            logged = str(error)
                            log.warning(self.failure, extra={"task": self.name, "error": logged})
                    else:
                        logged = ""
                        METRICS.periodic_task_last_success_timestamp_seconds.labels(
                            self.name
                        ).set_to_current_time()
            if faults.waits(self.name):
                await asyncio.sleep(faults.pause_s(self.name))  # a change does not end it
            else:
                await self._pause(revision, pause() if callable(pause) else pause)

    async def _pause(self, revision: int, pause_s: float) -> None:
        if self.changes is None:
            await asyncio.sleep(pause_s)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.changes.wait(revision)
        if self.settle_s:
            await asyncio.sleep(self.settle_s)
