"""Wait for a condition. No wait knows how fast the machine is: it fails when nothing has progressed for long.

What counts is the time of the test, not that of the wall: the pytest process and all that it started (services,
databases, control planes) are looked at once per second. A second in which all of them were idle counts as one; where
they computed, or waited for a processor or a disk, the CPU seconds that they got count. So a wait in vain ends after
`PATIENCE_S` on an idle machine, and a busy machine makes each wait longer. What progresses (`state`) begins anew. The timeout of
the test (`pyproject.toml`) ends the rest.

What is waited for is in the report of a test that fails (`tests/support/failure_report.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

PATIENCE_S = 90.0  # what comes at all comes within seconds on an idle machine
LOOK_EVERY_S = 1.0  # at processes: it reads a file of each process of the machine
# Idle: a control plane (0.03), its service, and a test that asks both 50 times per second (0.2) use less of a processor.
BUSY_SHARE = 0.3
POLL_S = 0.02
POLL_FIRST_S = 0.001  # what is in memory comes at once; the pause doubles up to that of the wait

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_broken_off: list[str] = []


class WaitedInVain(AssertionError):
    """A condition did not come true, although all that could make it true had its time."""


def broken_off() -> list[str]:
    """Return what was waited for in waits that an error ended, also that of a timeout; the caller empties the list."""
    return _broken_off


class _Work(NamedTuple):
    """What the processes of this test have done and are about to do."""

    cpu_s: float
    """CPU seconds of this process and of those that it started, also indirectly."""
    runs: bool
    """Whether one of those that it started runs, or waits for a processor or a disk."""


def _work() -> _Work:
    """Read the processes of the machine; those that end meanwhile are left out."""
    parents: dict[int, int] = {}
    stats: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            stats[pid] = fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    own = os.getpid()

    def ours(pid: int) -> bool:
        while pid not in (own, 0, 1):
            pid = parents.get(pid, 0)
        return pid == own

    mine = [pid for pid in stats if ours(pid)]
    return _Work(
        cpu_s=sum(stats[pid][1] for pid in mine),
        runs=any(stats[pid][0] in "RD" for pid in mine if pid != own),
    )


class Patience:
    """How long something has been waited for, in the time of the test.

    Args:
        what: What is waited for, for the report.
        state: What progresses while it is waited for; each change of it begins anew, and the failure shows it.
        patience_s: After so many seconds the wait has failed.
    """

    def __init__(
        self, what: str, state: Callable[[], object] | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self.what = what
        self._state = state
        self._patience_s = patience_s
        self._last: object = None
        self._spent_s = 0.0
        self._looked_s = self._began_s = time.monotonic()
        self._work: _Work | None = None  # most waits are over before the first look at processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            _broken_off.append(self.what)

    def exhausted(self) -> bool:
        """Return whether it has been waited for too long; looks at the processes once per second."""
        now_s = time.monotonic()
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_EVERY_S:
            return False
        work, before = _work(), self._work
        self._looked_s, self._work = now_s, work
        if self._state is not None and (state := self._state()) != self._last:
            self._last, self._spent_s = state, 0.0
            return False
        if before is None:
            return False
        # the CPU seconds of processes that ended are not in the sum any more
        cpu_s = max(0.0, work.cpu_s - before.cpu_s)
        worked = work.runs or cpu_s > BUSY_SHARE * passed_s
        # of the time in which this process was stopped, little counts
        self._spent_s += min(cpu_s if worked else passed_s, 2 * LOOK_EVERY_S)
        return self._spent_s >= self._patience_s

    def failure(self, seen: object = None) -> WaitedInVain:
        """Return the error to raise; `seen` is what the condition was at the last look."""
        waited_s = time.monotonic() - self._began_s
        text = f"waited {waited_s:.0f} s for: {self.what}"
        if seen is not None and seen is not False:
            text += f"; the last look found {seen!r}"
        if self._state is not None:
            text += f"; meanwhile: {self._state()}"
        return WaitedInVain(text)


async def eventually(
    look: Callable[[], Any],
    what: str = "",
    *,
    every_s: float = POLL_S,
    state: Callable[[], object] | None = None,
    patience_s: float = PATIENCE_S,
) -> Any:
    """Look until what is seen is true, and return it.

    Args:
        look: The condition; it may be a coroutine function.
        what: What is waited for; empty: the name of the condition.
        every_s: Pause between two looks; the first ones are shorter.
        state: What progresses meanwhile, as for `Patience`.
        patience_s: After so many seconds, in the time of the test, the wait has failed.

    Raises:
        WaitedInVain: It did not come true; with what was seen last.
    """
    __tracebackhide__ = True
    pause_s = POLL_FIRST_S
    with Patience(what or _name(look), state, patience_s) as patience:
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
            if patience.exhausted():
                raise patience.failure(seen)
            await asyncio.sleep(pause_s := min(2 * pause_s, every_s))


def until(
    look: Callable[[], Any],
    what: str = "",
    *,
    every_s: float = POLL_S,
    state: Callable[[], object] | None = None,
    patience_s: float = PATIENCE_S,
) -> Any:
    """Do what `eventually` does, in a test without an event loop."""
    __tracebackhide__ = True
    pause_s = POLL_FIRST_S
    with Patience(what or _name(look), state, patience_s) as patience:
        while not (seen := look()):
            if patience.exhausted():
                raise patience.failure(seen)
            time.sleep(pause_s := min(2 * pause_s, every_s))
        return seen


@contextlib.asynccontextmanager
async def patient(what: str, patience_s: float = PATIENCE_S) -> AsyncIterator[None]:
    """Cancel the block when it has been waited for too long: for what is awaited and not looked at.

    Raises:
        WaitedInVain: The block was cancelled.
    """
    with Patience(what, patience_s=patience_s) as patience:

        async def watch(scope: asyncio.Timeout) -> None:
            while not patience.exhausted():
                await asyncio.sleep(LOOK_EVERY_S)
            scope.reschedule(asyncio.get_running_loop().time())

        try:
            async with asyncio.timeout(None) as scope:
                watching = asyncio.create_task(watch(scope))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise patience.failure() from error


async def answer_of(work: Awaitable[Any], what: str = "") -> Any:
    """Await something and return its result, as `patient` does."""
    async with patient(what or str(work)):
        return await work


def _name(look: Callable[[], Any]) -> str:
    """Return a text for a condition without one: its name and where it stands."""
    code = getattr(look, "__code__", None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(look, '__qualname__', repr(look))}{place}"
