"""Runs queries in small time slices, so that calls of kube-scheduler never wait for a whole query.

All queries of a process share the slices: many queries together get no more of the event loop than one. There are
pauses between the slices only if kube-scheduler called within the last second.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import ClassVar

from extender.ports.log_ports import Clock

SLICE_S = 0.0004  # longest time for which a query keeps the event loop, about
REST_S = 0.002  # between two slices of any queries; all together get at most a fifth of the loop
SLICE_MS = 5  # a pass of the control loop yields to the event loop this often
RECENT_CALL_S = 1.0  # after so long without a call, kube-scheduler counts as not calling


class Yielder:
    """The time slices of one query. Await `yield_if_due` after each small piece of work."""

    _next_s: ClassVar[float] = 0.0  # when the next slice may begin
    _called_s: ClassVar[float] = -math.inf  # last known call of kube-scheduler

    @classmethod
    def record_call(cls, ago_s: float = 0.0) -> None:
        """Record a call of kube-scheduler to this process, or to the service whose queries this process answers."""
        cls._called_s = max(cls._called_s, time.perf_counter() - ago_s)

    @classmethod
    def since_last_call_s(cls) -> float:
        """Return the seconds since the last call of kube-scheduler; infinite if there was none."""
        return time.perf_counter() - cls._called_s

    @classmethod
    def has_recent_call(cls) -> bool:
        """Return whether kube-scheduler called within the last second."""
        return cls.since_last_call_s() < RECENT_CALL_S

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def yield_if_due(self) -> None:
        """Yield to the event loop if the slice is used up, and wait for the next slice."""
        now_s = time.perf_counter()
        if now_s - self._began_s >= SLICE_S:
            rest_s = REST_S if Yielder.has_recent_call() else 0.0
            Yielder._next_s = max(now_s, Yielder._next_s) + rest_s
            await asyncio.sleep(Yielder._next_s - now_s)
            self._began_s = time.perf_counter()


class SlicePace:
    """The time slices of one pass of the control loop. Await `yield_if_due` between pieces of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    async def yield_if_due(self) -> None:
        """Yield if the slice is over."""
        if self._clock.monotonic_ms() - self._began_ms >= SLICE_MS:
            await asyncio.sleep(0)
            self._began_ms = self._clock.monotonic_ms()
