"""Runs plan queries in a process of its own, one at a time, so that scheduling does not wait for them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from extender.core.model.errors import TooManyQueries
from extender.runtime.worker_process import NICE, WorkerProcess

WAITING_MAX = 4  # calls that may wait for the running one
TOO_LONG_S = 60  # wall-clock time for one call: the others wait for it
T = TypeVar("T")


class PlanQueryWorker:
    """A worker process with a limit of waiting calls, and of the time for one."""

    def __init__(self) -> None:
        self._process = WorkerProcess(nice=NICE)
        self._calls = 0

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function of a module in the process; its exceptions are raised here.

        Raises:
            TooManyQueries: Too many calls wait already, or the process died or took too long.
        """
        if self._calls > WAITING_MAX:
            raise TooManyQueries(f"{WAITING_MAX} plan queries wait already; try again later")
        self._calls += 1
        try:
            return await self._process.run(_limited, work, *args)
        except BrokenProcessPool as error:
            raise TooManyQueries(
                f"the process of plan queries died, or took more than {TOO_LONG_S} s; plan fewer trees, or with a "
                "smaller budget"
            ) from error
        finally:
            self._calls -= 1

    def stop(self) -> None:
        """Kill the process at once."""
        self._process.stop()


def _limited(work: Callable[..., T], *args: object) -> T:
    """Run a function in the worker process; the kernel kills the process after `TOO_LONG_S`."""
    signal.alarm(TOO_LONG_S)
    try:
        return work(*args)
    finally:
        signal.alarm(0)
