"""Processes in one virtual event loop: each can be stopped, killed at any await, and is otherwise as alive as the others.

Every callback of a process runs in a context that names it. A stopped process gets no callback until it continues; a
killed one never again. What it has sent to servers before is carried out all the same: servers run in no process.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from extender.simulation.virtual_time import SimulationLoop

T = TypeVar("T")


class Process:
    """Something that can be stopped and killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.backlog: list[asyncio.Handle] = []  # what it would do next
        self.dies_after = -1  # callbacks; negative: it lives on
        self.ended = asyncio.Event()


def _nothing() -> None:
    """Do nothing in place of a callback of a stopped process."""


_OF: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class ProcessLoop(SimulationLoop):
    """A virtual loop whose callbacks belong to processes."""

    def _turn_of(self, process: Process) -> bool:
        """Return whether a process may run its next callback now; it may die of it."""
        if process.dies_after >= 0:
            process.dies_after -= 1
            if process.dies_after < 0:
                self.kill(process)
        return not process.stopped

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        process = (context or contextvars.copy_context()).get(_OF)
        if process is None or self._turn_of(process):
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        process.backlog.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # fmt: skip
        context = context or contextvars.copy_context()
        process = context.get(_OF)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        timer: asyncio.TimerHandle

        def fire() -> None:
            if not process.stopped:
                callback(*args)
                return
            late = asyncio.Handle(run_unless_cancelled, (), self, context)
            process.backlog.append(late)

        def run_unless_cancelled() -> None:
            if not timer.cancelled():
                callback(*args)

        timer = super().call_at(when, fire, context=context)
        return timer

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:  # fmt: skip
        """Start a task in a process; None: in a server."""
        context = contextvars.copy_context()
        context.run(_OF.set, process)
        return self.create_task(work, name=name, context=context)

    def stop_process(self, process: Process) -> None:
        """Let a process do nothing from now on."""
        if process.stopped:
            return
        process.stopped = True
        ready = self._ready  # type: ignore[attr-defined]
        for index, handle in enumerate(ready):
            if handle._context.get(_OF) is process:
                process.backlog.append(handle)
                # the loop has counted what it runs in this turn
                ready[index] = asyncio.Handle(_nothing, (), self)

    def continue_process(self, process: Process) -> None:
        """Let a stopped process go on where it was."""
        if process.dead:
            return
        self._go_on(process)

    def _go_on(self, process: Process) -> None:
        process.stopped = False
        backlog, process.backlog = process.backlog, []
        self._ready.extend(handle for handle in backlog if not handle.cancelled())  # type: ignore[attr-defined]

    def kill(self, process: Process) -> None:
        """End a process at the await where each of its tasks is."""
        if process.dead:
            return
        process.dead, process.dies_after = True, -1
        self.stop_process(process)
        process.ended.set()

    def bury(self, processes: list[Process]) -> None:
        """After the end of everything: let all processes go on, so that their tasks can be cancelled."""
        for process in processes:
            process.dies_after = -1
            self._go_on(process)


def current_process() -> Process | None:
    """Return the process that runs this code; None: a server."""
    return _OF.get()


async def at_server(
    loop: ProcessLoop, work: Callable[[], Awaitable[T]], name: str = "request"
) -> T:
    """Let a server do something for a process, also when that process ends meanwhile."""

    async def done() -> T:
        return await work()

    return await asyncio.shield(loop.spawn(None, done(), name))
