"""Work of questions in small slices, so that calls of kube-scheduler never wait for a whole answer."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.0004  # longest time an answer keeps the event loop at a stretch, about
REST_S = 0.002  # and how long everybody else has it then; answers get a sixth of the loop at most


class Pace:
    """The pace of one answer. Ask for `breath` after each small piece of work."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a slice: the loop was somebody else's until now."""
        self._began_s = time.perf_counter()

    async def breath(self) -> None:
        """Give the loop away when the slice is used up."""
        if time.perf_counter() - self._began_s >= SLICE_S:
            await asyncio.sleep(REST_S)
            self.begin()
