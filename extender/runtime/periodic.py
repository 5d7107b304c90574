"""Work that is repeated for as long as the service runs, also after a defect.

`PeriodicTask`: every few seconds, and earlier when something has changed. `ObjectFaults`: a defect that shows with one
object does not keep the others; its exception is logged and counted, and the object waits. `ObjectChanges`: the same for
the changes to a copy of objects. `kept_running`: a loop that a defect has ended runs again. Only errors of the log and of
the lease concern more than that; they are raised (`OF_LOG_AND_LEASE`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from extender.core.model.errors import OF_LOG_AND_LEASE
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
FIRST_MS: Final = 1_000  # the pause of an object after its first fault; doubled each time ...
LAST_MS: Final = 60_000  # ... up to this
# objects of a copy with which a defect shows; with more it is one of the copy
LEFT_OUT_MAX: Final = 100
# objects whose pauses are remembered; beyond that the pauses that are over are forgotten
KEPT_MAX: Final = 1_000


class _Pause(msgspec.Struct, frozen=True):
    until_ms: int
    lasts_ms: int
    failures: int  # one after the other, without a success between them
    error: str  # the type of the last exception; its text may have names of objects


class _Alone(Generic[K]):
    """A block of work for one object."""

    def __init__(self, faults: ObjectFaults[K], key: K) -> None:
        self._faults = faults
        self._key = key

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self._faults.succeeded(self._key)
            return False
        if not isinstance(error, Exception) or _is_of_log_or_lease(error):
            return False
        if isinstance(error, self._faults.raised):
            return False
        self._faults.failed(self._key, error)
        return True


class ObjectFaults(Generic[K]):
    """The objects of one part of the service that wait because the work for them raised an exception."""

    def __init__(
        self,
        part: str,
        now_ms: Callable[[], int] | None = None,
        name_of: Callable[[K], str] = str,
        *,
        last_ms: int = LAST_MS,
        raised: type[Exception] | tuple[()] = (),
    ) -> None:
        """Prepare.

        Args:
            now_ms: Monotonic time in milliseconds; None: that of the event loop.
            raised: Errors that are no defect of this part, beside those of log and lease: its caller handles them.
        """
        self.raised = raised
        self._part = part
        self._last_ms = last_ms
        self._name_of = name_of
        self._now_ms = now_ms or _loop_time_ms
        self._pauses: dict[K, _Pause] = {}

    def __bool__(self) -> bool:
        """Return whether an object waits, or is tried again."""
        return bool(self._pauses)

    def waits(self, key: K) -> bool:
        """Return whether the pause of an object has not ended."""
        pause = self._pauses.get(key)
        return pause is not None and self._now_ms() < pause.until_ms

    def alone(self, key: K) -> _Alone[K]:
        """Return a block that works on one object, and ends without an exception if that work raises one."""
        return _Alone(self, key)

    def attempt(self, key: K, work: Callable[[], object]) -> bool:
        """Work on one object unless it waits; return whether that was done without a fault."""
        if self.waits(key):
            return False
        with self.alone(key):
            work()
            return True
        return False

    def pause_s(self, key: K) -> float:
        """Return how long the pause of an object lasts, in seconds from its last fault; 0 for one without."""
        pause = self._pauses.get(key)
        return 0.0 if pause is None else pause.lasts_ms / 1000

    def left_s(self, key: K) -> float:
        """Return how long an object still waits, in seconds; 0: it does not."""
        pause = self._pauses.get(key)
        return 0.0 if pause is None else max(0, pause.until_ms - self._now_ms()) / 1000

    def failing(self) -> list[tuple[K, int, str]]:
        """Return the objects whose last try failed: how often in a row, and the type of the last exception."""
        return [(key, pause.failures, pause.error) for key, pause in self._pauses.items()]

    def failed(self, key: K, error: Exception) -> None:
        """Log and count the exception of an object, and let the object wait."""
        before = self._pauses.get(key)
        pause_ms = FIRST_MS if before is None else min(2 * before.lasts_ms, self._last_ms)
        failures = 1 if before is None else before.failures + 1
        now_ms = self._now_ms()
        if len(self._pauses) >= KEPT_MAX:
            self._pauses = {k: p for k, p in self._pauses.items() if p.until_ms > now_ms}
        self._pauses[key] = _Pause(now_ms + pause_ms, pause_ms, failures, type(error).__name__)
        METRICS.object_faults.labels(self._part).inc()
        log.error(
            "a defect of this service; what it concerns is tried again after a pause",
            exc_info=error,
            extra={"part": self._part, "object": self._name_of(key), "pause_ms": pause_ms},
        )

    def succeeded(self, key: K) -> None:
        """Forget the faults of an object."""
        if self._pauses:
            self._pauses.pop(key, None)


class ObjectChanges:
    """Changes to a copy of objects. One with which a defect shows is made again after a pause, unless a newer one replaces it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._faults: ObjectFaults[str] = ObjectFaults("cluster", now_ms)
        self._again: dict[str, Callable[[], object]] = {}

    def make(self, name: str, change: Callable[[], object], *, may_wait: bool = True) -> None:
        """Make a change, or let it wait after a defect.

        Args:
            may_wait: False: its exception is raised, because the copy may not be used without the change. It is also
                raised while `LEFT_OUT_MAX` objects wait.
        """
        if name in self._again and self._faults.waits(name):
            self._again[name] = change
            return
        try:
            change()
        except Exception as defect:
            if not may_wait or len(self._again) >= LEFT_OUT_MAX:
                raise
            self._faults.failed(name, defect)
            self._again[name] = change
        else:
            if self._again.pop(name, None) is not None:
                self._faults.succeeded(name)

    def next_s(self) -> float | None:
        """Return in how many seconds the next change is due; None: none waits."""
        waits = [self._faults.left_s(name) for name in self._again]
        return min(waits) if waits else None

    def make_again(self) -> bool:
        """Make the changes whose pause is over; return whether there were any."""
        due = [name for name in self._again if not self._faults.waits(name)]
        for name in due:
            self.make(name, self._again[name])
        return bool(due)


def _is_of_log_or_lease(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(OF_LOG_AND_LEASE) is not None
    return isinstance(error, OF_LOG_AND_LEASE)


def _loop_time_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


async def kept_running(name: str, run: Callable[[], Awaitable[object]]) -> None:
    """Run a loop until it returns or is cancelled; one that a defect has ended runs again after a pause."""
    faults: ObjectFaults[str] = ObjectFaults("service")
    while True:
        with faults.alone(name):
            await run()
            return
        await asyncio.sleep(faults.pause_s(name))


def count_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no task and no callback has handled, and count it unless it is one of a connection."""
    error = context.get("exception")
    if isinstance(error, Exception) and not isinstance(error, OSError):
        METRICS.object_faults.labels("service").inc()
    loop.default_exception_handler(context)


Seconds = float | Callable[[], float]


class Changes(NamedTuple):
    """What wakes a task early, see `Wakeup`."""

    revision: Callable[[], int]
    wait: Callable[[int], Awaitable[object]]


class PeriodicTask(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work, how often it is done, and after which errors it goes on."""

    name: str  # label of the metric
    work: Callable[[], Awaitable[object]]
    every_s: Seconds  # from the end of one run to the start of the next
    # tried again after them; errors of the log and of the lease end the task, all others are defects and counted
    expected: tuple[type[Exception], ...] = ()
    failure: str = ""  # log message for them
    retry_s: Seconds | None = None  # instead of `every_s` after a failure
    # asked before each run; the work waits while it is false
    condition: Callable[[], bool] = lambda: True
    changes: Changes | None = None  # the wait ends at a change after the start of the last run
    settle_s: float = 0.0  # added to each wait, because changes come in bursts

    async def run(self) -> None:
        """Do the work now and then again and again, until cancelled.

        A failure is logged when its text differs from that of the failure before. Each success is recorded in a metric
        with its time.
        """
        logged = ""
        faults: ObjectFaults[str] = ObjectFaults("periodic task")
        while True:
            revision = self.changes.revision() if self.changes is not None else 0
            pause = self.every_s
            with faults.alone(self.name):
                if self.condition():
                    try:
                        await self.work()
                    except self.expected as error:
                        pause = self.every_s if self.retry_s is None else self.retry_s
                        if str(error) != logged:
                            logged = str(error)
                            log.warning(self.failure, extra={"task": self.name, "error": logged})
                    else:
                        logged = ""
                        METRICS.periodic_task_last_success_timestamp_seconds.labels(
                            self.name
                        ).set_to_current_time()
            if faults.waits(self.name):
                await asyncio.sleep(faults.pause_s(self.name))  # a change does not end it
            else:
                await self._pause(revision, pause() if callable(pause) else pause)

    async def _pause(self, revision: int, pause_s: float) -> None:
        if self.changes is None:
            await asyncio.sleep(pause_s)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.changes.wait(revision)
        if self.settle_s:
            await asyncio.sleep(self.settle_s)
