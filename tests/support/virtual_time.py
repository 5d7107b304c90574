"""An event loop in which time passes only while everything waits for it, and then at once: no timer knows the machine."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

# Each turn of the loop takes so long, so that what runs all the time keeps nothing else from its time.
TURN_S = 1e-5


class _Selector(selectors.DefaultSelector):
    """Waits for files as ever, and passes over time that nothing outside of the loop uses."""

    now_s = 0.0
    at_work = 0  # what threads and processes do for the loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.at_work and timeout:  # their time is that of the wall
            began_s = time.monotonic()
            ready = super().select(timeout)
            self.now_s += min(timeout, time.monotonic() - began_s)
            return ready
        ready = super().select(0 if timeout else timeout)
        self.now_s += timeout if timeout and not ready else TURN_S
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock nearly stands while code runs, however long that takes, and jumps to the next timer when no code can run.

    Only while a thread or a process works for the loop, timers take their time on the wall.
    """

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the seconds that passed in this loop."""
        return self._virtual.now_s

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
