"""Work of questions in small slices, so that calls of kube-scheduler never wait for a whole answer.

All answers of a process share the slices: many questions at once get no more of the event loop than one.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

SLICE_S = 0.0004  # longest time an answer keeps the event loop at a stretch, about
REST_S = (
    0.002  # between two slices, of whatever answers; together they get a fifth of the loop at most
)


class Pace:
    """The pace of one answer. Ask for `breath` after each small piece of work."""

    _next_s: ClassVar[float] = 0.0  # when the next slice may begin
    _rest_s: ClassVar[float] = REST_S

    @classmethod
    def alone(cls) -> None:
        """Rest no longer than answers need to take turns: no call of kube-scheduler waits in this process."""
        cls._rest_s = 0.0

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def breath(self) -> None:
        """Give the loop away when the slice is used up, and wait for the next one."""
        now_s = time.perf_counter()
        if now_s - self._began_s >= SLICE_S:
            Pace._next_s = max(now_s, Pace._next_s) + Pace._rest_s
            await asyncio.sleep(Pace._next_s - now_s)
            self._began_s = time.perf_counter()
