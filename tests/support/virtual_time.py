"""The virtual event loop for tests, in which threads and processes take their time on the wall."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

from extender.simulation import virtual_time
from extender.simulation.virtual_time import VirtualSelector


class _Selector(VirtualSelector):
    """Waits for files as ever while threads and processes work."""

    at_work = 0  # what threads and processes do for the loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.at_work and timeout:  # their time is that of the wall
            began_s = time.monotonic()
            ready = selectors.DefaultSelector.select(self, timeout)
            self.now_s += min(timeout, time.monotonic() - began_s)
            return ready
        return super().select(timeout)


class VirtualTimeLoop(virtual_time.VirtualTimeLoop):
    """Only while a thread or a process works for the loop, timers take their time on the wall."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def at_work(self, answer: asyncio.Future[Any]) -> None:
        """Let time be that of the wall until a thread or a process has answered."""
        self._virtual.at_work += 1
        answer.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        self._virtual.at_work -= 1


def wrap_future(future: Any, *, loop: asyncio.AbstractEventLoop | None = None) -> Any:
    """Do what `asyncio.wrap_future` does, through which the loop waits for threads and processes."""
    loop = loop or asyncio.get_running_loop()
    answer = _wrap_future(future, loop=loop)
    if isinstance(loop, VirtualTimeLoop):
        loop.at_work(answer)
    return answer


_wrap_future = asyncio.wrap_future
