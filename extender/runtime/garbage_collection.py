"""When the garbage collector looks at all objects, and free memory is given back: while kube-scheduler does not call.

A full collection stops the process for 60 to 90 ms with the objects of some thousand pods. CPython makes one whenever
their number has grown by a quarter, so in the middle of a burst of calls. Here it is made in quiet seconds. Between
two of them only young objects are looked at, and cycles of older objects wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from typing import Final

from extender.ports.log_ports import Clock
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS

QUIET_S: Final = 2.0  # since the last call of kube-scheduler
EVERY_MS: Final = 60_000  # at most so often
AT_LATEST_MS: Final = 600_000  # also while kube-scheduler calls
LOOK_S: Final = 1.0
# Containers that are alive before the youngest are looked at, and how often before those that have survived are. Most of
# what a call makes is freed without the collector: the longer it waits, the less it looks at; more would make longer pauses.
YOUNG: Final = 2_000
MIDDLE: Final = 5
NEVER: Final = 1_000_000_000  # collections of the middle generation before CPython makes a full one


def give_back_memory() -> None:
    """Give free memory back to the operating system; glibc keeps what lies below memory that is in use.

    It takes some milliseconds for each 100 MiB. Nothing is done where the C library has no such function.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class FullCollections:
    """Makes the full collections of this process.

    Args:
        since_last_call_s: Returns the seconds since the last call of kube-scheduler.
    """

    def __init__(self, clock: Clock, since_last_call_s: Callable[[], float]) -> None:
        self._clock = clock
        self._since_last_call_s = since_last_call_s
        self._last_ms = clock.monotonic_ms()

    def take_over(self) -> None:
        """Make the first one, and switch off those that CPython would make."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self._collect()
        gc.freeze()  # modules and what exists from the start are not looked at again

    async def run(self) -> None:
        """Make full collections at quiet times, until cancelled."""
        await PeriodicTask(name="garbage collection", work=self.look, every_s=LOOK_S).run()

    async def look(self) -> None:
        """Make a full collection if it is time for one."""
        past_ms = self._clock.monotonic_ms() - self._last_ms
        quiet = self._since_last_call_s() >= QUIET_S
        if past_ms >= AT_LATEST_MS or (quiet and past_ms >= EVERY_MS):
            self._collect()

    def _collect(self) -> None:
        began_ms = self._clock.monotonic_ms()
        gc.collect()
        give_back_memory()
        self._last_ms = self._clock.monotonic_ms()
        METRICS.full_collection_seconds.observe((self._last_ms - began_ms) / 1000)
