"""An event loop in which time passes only while everything waits for it, and then at once: no timer knows the machine.

Nothing in it decides an order but the program: what would run in a thread runs in the loop at once, and takes no time.
`InLoopWorker` runs what the service runs in processes, and takes the time that its search nodes cost.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import uuid
from collections.abc import Callable
from random import Random
from typing import Final, TypeVar, TypeVarTuple

from extender.core.planner.plan_types import Plan, Refusal
from extender.core.planner.preempt.judgement import Judgement

TURN_S: Final = 1e-5  # of each turn of the loop, so that what runs all the time keeps nothing else from its time
# after the last change, within which the service has done what follows from it ...
SETTLED_S: Final = 1.1
# ... and the same while nothing waits for time: without what it does each second
SETTLED_IDLE_S: Final = 0.3
A_DAY_S: Final = 86_400.0
SEARCH_NODE_S: Final = 1e-4  # CPU time of a search node, about; see *search budget* in the glossary
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualSelector(selectors.DefaultSelector):
    """Passes over time that nothing outside of the loop uses."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready without waiting; time passes as if it had been waited for."""
        ready = super().select(0 if timeout else timeout)
        self.now_s += timeout if timeout and not ready else TURN_S
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock nearly stands while code runs, however long that takes, and jumps to the next timer when no code can run."""

    def __init__(self, selector: VirtualSelector | None = None) -> None:
        self.virtual = selector or VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        """Return the seconds that passed in this loop."""
        return self.virtual.now_s


class JumpingSelector(VirtualSelector):
    """Passes over the timers that only look at the clock, while nothing happens; asks for no file, because none is open.

    The service looks at the clock each second or more often. While nothing has happened for `SETTLED_S`, nothing can
    follow from that but what is due by time; then time goes on in one step to what the model does next, or by the rest that
    `may_rest_s` returns. A timer of the service that is passed over fires then, late. With an infinite rest nothing is due
    by time either, and `hold_timers` lets such a timer wait on after the step for as long as it did before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.may_rest_s: Callable[[], float] = lambda: 0.0
        self.hold_timers: Callable[[float], None] = lambda _: None
        self.active_s = 0.0  # when something happened last
        self._due: list[asyncio.TimerHandle] = []  # a heap: when the model does something

    def will_act(self, timer: asyncio.TimerHandle) -> None:
        """Let time stand at a moment at which the model does something, unless its timer is cancelled."""
        heapq.heappush(self._due, timer)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; see the class."""
        if timeout and self.now_s - self.active_s >= SETTLED_IDLE_S:
            timeout = self._step_s(timeout)
        self.now_s += timeout or TURN_S
        return []

    def _step_s(self, timeout: float) -> float:
        """Return by how much time goes on."""
        rest_s = self.may_rest_s()
        idle = math.isinf(rest_s)
        if not idle and self.now_s - self.active_s < SETTLED_S:
            return timeout
        while self._due and (self._due[0].cancelled() or self._due[0].when() <= self.now_s):
            heapq.heappop(self._due)
        step_s = min(rest_s, self._due[0].when() - self.now_s if self._due else A_DAY_S)
        if step_s <= timeout:
            return timeout
        if idle:
            self.hold_timers(step_s)
        return step_s


class SimulationLoop(VirtualTimeLoop):
    """A virtual loop in which threads decide no order: it has none."""

    def __init__(self) -> None:
        self.pace = JumpingSelector()
        self.pace.hold_timers = self._hold_timers
        super().__init__(self.pace)

    def _hold_timers(self, step_s: float) -> None:
        """Let the timers that are due within a step of time, and within a second, wait for as long after it."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined] # of asyncio
        until_s = self.time() + min(step_s, SETTLED_S)
        for timer in timers:
            if timer.when() < until_s:
                timer._when += step_s  # type: ignore[attr-defined] # noqa: SLF001 -- asyncio has no other way
        heapq.heapify(timers)

    def act_later(
        self, after_s: float, act: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.TimerHandle:
        """Do something of the model after some time; never late."""
        timer = self.call_later(after_s, act, *args)
        self.pace.will_act(timer)
        return timer

    async def rest(self, for_s: float) -> None:
        """Wait in the model for some time; never late."""
        over = asyncio.Event()
        timer = self.act_later(for_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    async def rest_until(self, at_s: float) -> None:
        """Wait in the model until a time; never late."""
        await self.rest(max(0.0, at_s - self.time()))

    def run_in_executor(self, _: object, work: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run a function now, in this thread; return a future that has its result."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 -- of the caller, who awaits the answer
            answer.set_exception(error)
        return answer


def simulation_loop() -> SimulationLoop:
    """Return the loop that runs, which is one of a simulation."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulationLoop), "a simulation runs in virtual time"
    return loop


class VirtualClock:
    """The `Clock` port on the time of a virtual loop.

    Args:
        began_us: Its time 0, in microseconds since the Unix epoch.
        seed: Of the ids.
    """

    def __init__(self, loop: VirtualTimeLoop, began_us: int, seed: int) -> None:
        self._loop = loop
        self._began_us = began_us
        self._chance = Random(f"ids {seed}")  # noqa: S311 -- ids, no secrets

    def now_us(self) -> int:
        """Return the time in microseconds since the Unix epoch."""
        return self._began_us + self.monotonic_us()

    def recording_us(self) -> int:
        """Return the same: the clock of the log in memory is this one."""
        return self.now_us()

    def monotonic_us(self) -> int:
        """Return the microseconds that passed in the loop."""
        return int(self._loop.time() * 1_000_000)

    def monotonic_ms(self) -> int:
        """Return the milliseconds that passed in the loop."""
        return int(self._loop.time() * 1_000)

    def thread_cpu_us(self) -> int:
        """Return the microseconds that passed in the loop: work that takes no time there costs nothing."""
        return self.monotonic_us()

    def new_id(self) -> str:
        """Return a UUID version 7 with the time of the loop."""
        value = (self.now_us() // 1_000) << 80 | self._chance.getrandbits(80)
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=value))


class InLoopWorker:
    """Runs functions of the planner in the event loop, one at a time; each takes the time of its search nodes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run a function after the calls before, and return its answer when its search would have ended."""
        async with self._turn:
            answer = work(*args)
            loop = simulation_loop()
            await loop.rest_until(loop.time() + _search_nodes(answer) * SEARCH_NODE_S)
        return answer

    def warm_up(self, work: Callable[[], object]) -> None:
        """Do nothing: what is needed is loaded when it is, and nothing waits for that in virtual time."""

    def stop(self) -> None:
        """Do nothing: there is no process."""


def _search_nodes(answer: object) -> int:
    verdict = answer.verdict if isinstance(answer, Judgement) else answer
    return verdict.search.nodes if isinstance(verdict, Plan | Refusal) else 0
