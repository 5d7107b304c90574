"""Work of questions in small slices, so that calls of kube-scheduler never wait for a whole answer.

All answers of a process share the slices: many questions at once get no more of the event loop than one. Nobody rests
while kube-scheduler does not call: it calls for seconds on end, or not at all.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import ClassVar

SLICE_S = 0.0004  # longest time an answer keeps the event loop at a stretch, about
REST_S = (
    0.002  # between two slices, of whatever answers; together they get a fifth of the loop at most
)
CALM_S = 1.0  # who has not called for so long does not call now


class Yielder:
    """The pace of one answer. Ask for `breath` after each small piece of work."""

    _next_s: ClassVar[float] = 0.0  # when the next slice may begin
    _called_s: ClassVar[float] = -math.inf  # when kube-scheduler called last, as far as known here

    @classmethod
    def called(cls, ago_s: float = 0.0) -> None:
        """Hear that kube-scheduler called, here or at the service whose questions are answered here."""
        cls._called_s = max(cls._called_s, time.perf_counter() - ago_s)

    @classmethod
    def calm_s(cls) -> float:
        """Give how long kube-scheduler has not called; infinite where it never did."""
        return time.perf_counter() - cls._called_s

    @classmethod
    def calls(cls) -> bool:
        """Say whether kube-scheduler calls now."""
        return cls.calm_s() < CALM_S

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def breath(self) -> None:
        """Give the loop away when the slice is used up, and wait for the next one."""
        now_s = time.perf_counter()
        if now_s - self._began_s >= SLICE_S:
            rest_s = REST_S if Yielder.calls() else 0.0
            Yielder._next_s = max(now_s, Yielder._next_s) + rest_s
            await asyncio.sleep(Yielder._next_s - now_s)
            self._began_s = time.perf_counter()
