"""The work queue does what a plain model of it does, one step after the other, and loses no key when it is stopped.

Time is that of an event loop whose clock the test moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.control.actuators.work_queue import Retry, RetryPolicy, WorkQueue
from extender.core.model.errors import CorruptLog
from extender.telemetry import METRICS
from tests.support.hypothesis_profile import examples

REPEAT = RetryPolicy(first_s=1.0, max_s=4.0, after_failure="repeat")
REST = RetryPolicy(first_s=1.0, max_s=4.0, after_failure="rest")
CONTINUE = RetryPolicy(first_s=1.0, max_s=4.0, after_failure="continue")
POLICIES = {policy.after_failure: policy for policy in (REPEAT, REST, CONTINUE)}
# Each step takes a little time, so that no two delays of whole and half seconds end together.
STEP_S = 0.001


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still unless the test moves it."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s


def on_manual_loop(test: Callable[[ManualLoop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(test(runner.get_loop()))


async def settle() -> None:
    """Run every task until it waits for time or for the test."""
    for _ in range(6):
        await asyncio.sleep(0)


class Driven:
    """A queue whose attempts end when the test ends them."""

    def __init__(self, policy: RetryPolicy, workers: int, **rest: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.queue: WorkQueue[str] = WorkQueue(
            "test", self._process, self._until_allowed, workers=workers, policy=policy, **rest
        )
        self.begun: list[tuple[float, str]] = []
        self.running: dict[str, asyncio.Future[Retry | None]] = {}
        self.task = asyncio.ensure_future(self.queue.run())

    async def _until_allowed(self) -> None:
        await self.allowed.wait()

    async def _process(self, key: str) -> Retry | None:
        assert key not in self.running, "two workers have one key"
        self.begun.append((self.loop.time(), key))
        self.running[key] = self.loop.create_future()
        try:
            return await self.running[key]
        finally:
            del self.running[key]

    async def end(self, key: str, retry: Retry | None = None) -> None:
        self.running[key].set_result(retry)
        await settle()

    async def stop(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task

    def keys(self) -> list[str]:
        """Return the keys in the order in which their attempts began."""
        return [key for _, key in self.begun]


class Model:
    """What the queue shall do: lists that are searched from end to end, and no task."""

    def __init__(self, policy: RetryPolicy, workers: int, now_s: float) -> None:
        self.policy, self.workers, self.now_s = policy, workers, now_s
        self.line: list[str] = []
        self.later: dict[str, tuple[float, bool]] = {}  # due, and whether that is a back-off
        # None while an attempt runs, else until when the worker waits
        self.taken: dict[str, float | None] = {}
        self.again: list[str] = []
        self.dropped: list[str] = []
        self.pauses: dict[str, float] = {}
        self.begun: list[tuple[float, str]] = []

    def running(self) -> set[str]:
        return {key for key, until_s in self.taken.items() if until_s is None}

    def add(self, key: str, delay_s: float = 0.0) -> None:
        self.dropped = [k for k in self.dropped if k != key]
        due_s, backs_off = self.later.get(key, (self.now_s + delay_s, False))
        if not backs_off:
            due_s = min(due_s, self.now_s + delay_s)
        self.later.pop(key, None)
        if due_s <= self.now_s:
            self._due(key)
        elif key not in (*self.line, *self.again):
            self.later[key] = (due_s, backs_off)
        self._start()

    def retain_only(self, keys: set[str]) -> None:
        self.line = [k for k in self.line if k in keys]
        self.again = [k for k in self.again if k in keys]
        self.later = {k: v for k, v in self.later.items() if k in keys}
        self.pauses = {k: v for k, v in self.pauses.items() if k in keys}
        self.dropped += [k for k in self.taken if k not in keys]

    def end(self, key: str, retry: Retry | None) -> None:
        if retry is None or key in self.dropped:
            self.pauses.pop(key, None)
            self._free(key)
        else:
            doubled_s = self.pauses.get(key, self.policy.first_s / 2) * 2
            self.pauses[key] = min(doubled_s, self.policy.max_s)
            until_s = self.now_s + max(self.pauses[key], retry.after_s)
            if self.policy.after_failure != "repeat":
                self.again = [k for k in self.again if k != key]
                self.later[key] = (until_s, True)
            self.taken[key] = until_s
            if self.policy.after_failure == "continue":
                self._free(key)
        self._start()

    def next_time_s(self) -> float | None:
        """Return when something happens by itself, None: never."""
        waits = [due_s for due_s, _ in self.later.values()]
        waits += [until_s for until_s in self.taken.values() if until_s is not None]
        return min(waits, default=None)

    def on_time(self) -> None:
        """Do what happens by itself now."""
        for key in [k for k, (due_s, _) in self.later.items() if due_s <= self.now_s]:
            del self.later[key]
            self._due(key)
        for key, until_s in list(self.taken.items()):
            if until_s is None or until_s > self.now_s:
                continue
            if self.policy.after_failure == "repeat" and key not in self.dropped:
                self._begin(key)
            else:
                self._free(key)
        self._start()

    def _due(self, key: str) -> None:
        line = self.again if key in self.taken else self.line
        if key not in line:
            line.append(key)

    def _free(self, key: str) -> None:
        del self.taken[key]
        self.dropped = [k for k in self.dropped if k != key]
        if key in self.again:
            self.again.remove(key)
            self._due(key)

    def _begin(self, key: str) -> None:
        self.again = [k for k in self.again if k != key]
        self.taken[key] = None
        self.begun.append((self.now_s, key))

    def _start(self) -> None:
        while self.line and len(self.taken) < self.workers:
            self._begin(self.line.pop(0))


keys = st.sampled_from("abcd")
steps = st.one_of(
    st.tuples(st.just("add"), keys),
    st.tuples(st.just("add_after"), keys, st.sampled_from([0.5, 2.0, 7.0])),
    st.tuples(st.just("end"), st.integers(0, 3), st.sampled_from([None, 0.0, 2.5, 9.0])),
    st.tuples(st.just("end"), st.integers(0, 3), st.just(0.0)),
    st.tuples(st.just("retain_only"), st.sets(keys)),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 3.0])),
)


async def advance(driven: Driven, model: Model, seconds: float) -> None:
    """Move both clocks, and stop at each time at which something happens in the model."""
    end_s = driven.loop.now_s + seconds
    while True:
        next_s = model.next_time_s()
        if next_s is None or next_s > end_s:
            break
        driven.loop.now_s = model.now_s = next_s
        model.on_time()
        await settle()
    driven.loop.now_s = model.now_s = end_s
    await settle()


async def take_step(driven: Driven, model: Model, step: tuple[Any, ...]) -> None:
    match step:
        case ("add", key):
            driven.queue.add(key)
            model.add(key)
        case ("add_after", key, delay_s):
            driven.queue.add_after(key, delay_s)
            model.add(key, delay_s)
        case ("retain_only", kept):
            driven.queue.retain_only(kept)
            model.retain_only(kept)
        case ("end", number, after_s) if driven.running:
            key = sorted(driven.running)[number % len(driven.running)]
            retry = None if after_s is None else Retry(after_s)
            model.end(key, retry)
            await driven.end(key, retry)
        case ("pass", seconds):
            await advance(driven, model, seconds)
    await settle()


def check_same(driven: Driven, model: Model) -> None:
    queue = driven.queue
    assert driven.begun == model.begun
    assert set(driven.running) == model.running()
    assert list(queue._ready) == model.line
    assert len(queue._ready) == len(model.line)
    assert queue.empty() is (not model.line)
    for key in "abcd":
        waits = key in model.line or key in model.later or key in model.again
        assert (key in queue) is waits, key
        assert queue.is_processing(key) is (key in model.taken), key


@examples(400, quick=25)
@given(
    how=st.sampled_from(sorted(POLICIES)),
    workers=st.integers(1, 3),
    wanted=st.lists(steps, min_size=10, max_size=40),
)
def test_it_does_what_the_model_does(how, workers, wanted):
    """Order, times of attempts, one worker per key, back-off and dropped keys, under any sequence of steps."""

    async def compare(loop: ManualLoop) -> None:
        driven = Driven(POLICIES[how], workers)
        model = Model(POLICIES[how], workers, loop.now_s)
        await settle()
        for step in wanted:
            await advance(driven, model, STEP_S)
            await take_step(driven, model, step)
            check_same(driven, model)
        await driven.stop()

    on_manual_loop(compare)


def test_a_key_that_is_added_meanwhile_is_processed_once_more():
    """Any number of additions during an attempt lead to one more attempt, and none at the same time."""

    async def run(_: ManualLoop) -> None:
        driven = Driven(REPEAT, 3)
        for _ in range(3):
            driven.queue.add("a")
        await settle()
        assert driven.keys() == ["a"]
        for _ in range(3):
            driven.queue.add("a")
        await settle()
        assert driven.keys() == ["a"]
        await driven.end("a")
        await driven.end("a")
        assert driven.keys() == ["a", "a"]
        assert not driven.running
        await driven.stop()

    on_manual_loop(run)


def test_a_key_that_is_due_needs_no_later_time():
    """A delay adds nothing to a key that waits already."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(REPEAT, 1)
        for key in "aab":
            driven.queue.add(key)
            await settle()
        for key in "ab":
            driven.queue.add_after(key, 5.0)
        for key in "aba":
            await driven.end(key)
        loop.now_s += 10.0
        await settle()
        assert driven.keys() == ["a", "b", "a"]
        await driven.stop()

    on_manual_loop(run)


def test_a_dropped_key_is_retried_only_if_it_was_added_again():
    """Dropped during its attempt, which fails: it is forgotten. Added again meanwhile: it is due after its back-off."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(CONTINUE, 2)
        for key in "ab":
            driven.queue.add(key)
        await settle()
        driven.queue.retain_only(set())
        driven.queue.add("b")
        for key in "ab":
            await driven.end(key, Retry())
        assert not driven.running
        loop.now_s += 10.0
        await settle()
        assert driven.keys() == ["a", "b", "b"]
        await driven.stop()

    on_manual_loop(run)


def test_back_off_is_per_key_and_ends_with_a_success():
    """Doubled up to its limit; Retry-After is never cut; the next failure after a success begins anew."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(CONTINUE, 1)
        model = Model(CONTINUE, 1, loop.now_s)
        pauses = []
        for after_s in (0.0, 0.0, 0.0, 0.0, 9.0, None, 0.0):
            if not driven.running:
                await take_step(driven, model, ("add", "a"))
            ended_s = loop.now_s
            await take_step(driven, model, ("end", 0, after_s))
            await take_step(driven, model, ("pass", 20.0))
            if driven.running:
                pauses.append(driven.begun[-1][0] - ended_s)
        assert pauses == [1.0, 2.0, 4.0, 4.0, 9.0, 1.0]
        await driven.stop()

    on_manual_loop(run)


def test_order_stays_where_a_failed_key_is_repeated():
    """With *repeat* the key that failed is next, with the others it is behind those that are due."""

    async def order(policy: RetryPolicy, loop: ManualLoop) -> list[str]:
        driven = Driven(policy, 1)
        model = Model(policy, 1, loop.now_s)
        for key in "abc":
            await take_step(driven, model, ("add", key))
        for after_s in (0.0, None, None, None):
            await take_step(driven, model, ("end", 0, after_s))
            await take_step(driven, model, ("pass", 1.0))
        await driven.stop()
        return driven.keys()

    async def run(loop: ManualLoop) -> None:
        assert await order(REPEAT, loop) == ["a", "a", "b", "c"]
        assert await order(REST, loop) == ["a", "b", "c", "a"]
        assert await order(CONTINUE, loop) == ["a", "b", "c", "a"]

    on_manual_loop(run)


@pytest.mark.parametrize(("how", "tried"), [("repeat", 2), ("rest", 2), ("continue", 6)])
def test_few_keys_are_tried_while_nothing_answers(how, tried):
    """All attempts fail: two workers try two keys per back-off, unless the failures are those of single objects."""

    async def run(_: ManualLoop) -> None:
        driven = Driven(POLICIES[how], 2)
        for key in "abcdef":
            driven.queue.add(key)
        await settle()
        while driven.running:
            await driven.end(next(iter(driven.running)), Retry())
        assert len(driven.begun) == tried
        await driven.stop()

    on_manual_loop(run)


def test_no_attempt_begins_before_it_is_allowed():
    """A key that a worker has taken waits, also before an attempt that repeats a failed one."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(REPEAT, 1)
        driven.allowed.clear()
        driven.queue.add("a")
        await settle()
        assert driven.queue.is_processing("a")
        assert not driven.begun
        driven.allowed.set()
        await settle()
        assert driven.keys() == ["a"]
        driven.allowed.clear()
        await driven.end("a", Retry())
        loop.now_s += 10
        await settle()
        assert driven.keys() == ["a"]
        driven.allowed.set()
        await settle()
        assert driven.keys() == ["a", "a"]
        await driven.stop()

    on_manual_loop(run)


def test_a_clock_of_its_own_decides_when_back_off_ends():
    """Adding a key does not end its back-off early, and a key whose back-off is over by that clock is due at once when it is added."""

    async def run(loop: ManualLoop) -> None:
        clock_s = 0.0
        driven = Driven(CONTINUE, 1, now_s=lambda: clock_s)
        driven.queue.add("a")
        await settle()
        await driven.end("a", Retry())
        loop.now_s += 10
        driven.queue.add("a")
        await settle()
        assert driven.keys() == ["a"]
        assert "a" in driven.queue
        clock_s = 1.0
        driven.queue.add("a")
        await settle()
        assert driven.keys() == ["a", "a"]
        await driven.stop()

    on_manual_loop(run)


def test_a_stop_ends_all_workers_and_keeps_all_keys():
    """What was being processed is in the queue again, and the next run processes all of it."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(CONTINUE, 2)
        for key in "abc":
            driven.queue.add(key)
        driven.queue.add_after("d", 1.0)
        await settle()
        assert set(driven.running) == {"a", "b"}
        await driven.stop()
        assert not driven.running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not any(driven.queue.is_processing(key) for key in "abcd")
        assert all(key in driven.queue for key in "abcd")
        driven.begun.clear()
        driven.task = asyncio.ensure_future(driven.queue.run())
        loop.now_s += 1.0
        await settle()
        while driven.running:
            await driven.end(next(iter(driven.running)))
        assert sorted(driven.keys()) == ["a", "b", "c", "d"]
        await driven.stop()

    on_manual_loop(run)


@pytest.mark.parametrize("how", sorted(POLICIES))
def test_a_stop_during_back_off_keeps_the_key_once(how):
    """A worker that waits after a failure ends at once; the key is processed once by the next run."""

    async def run(loop: ManualLoop) -> None:
        driven = Driven(POLICIES[how], 1)
        driven.queue.add("a")
        await settle()
        await driven.end("a", Retry())
        await driven.stop()
        assert "a" in driven.queue
        driven.begun.clear()
        driven.task = asyncio.ensure_future(driven.queue.run())
        for seconds in (0.0, 1.0, 10.0):
            loop.now_s += seconds
            await settle()
            if driven.running:
                await driven.end("a")
        assert driven.keys() == ["a"]
        await driven.stop()

    on_manual_loop(run)


def test_the_key_of_a_cancelled_worker_goes_to_another_one():
    """A worker that is cancelled after it was woken, and before it runs, does not leave the key alone."""

    async def run(_: ManualLoop) -> None:
        driven = Driven(REPEAT, 1)
        first = asyncio.ensure_future(driven.queue._work())
        await settle()
        driven.queue.add("a")
        first.cancel()
        await settle()
        assert first.cancelled()
        assert driven.keys() == ["a"]
        await driven.stop()

    on_manual_loop(run)


@pytest.mark.parametrize("how", POLICIES)
def test_a_defect_with_one_key_keeps_no_worker_from_the_others(how, caplog):
    """It is logged with the key and counted, the key is due again after 1 s and then 2 s, and the others are processed."""

    async def run(loop: ManualLoop) -> None:
        done: list[tuple[float, str]] = []

        async def broken(key: str) -> Retry | None:
            done.append((round(loop.now_s - 100.0), key))
            if key == "bad" and len(done) < 5:
                raise LookupError("the test fails it")
            return None

        async def at_once() -> None:
            return

        queue: WorkQueue[str] = WorkQueue(
            "nominations", broken, at_once, workers=1, policy=POLICIES[how]
        )
        task = asyncio.ensure_future(queue.run())
        for key in ("bad", "a", "b"):
            queue.add(key)
        await settle()
        assert done == [(0, "bad"), (0, "a"), (0, "b")]
        for _ in range(3):
            loop.now_s += 1.0
            queue.add("bad")  # does not end the pause
            await settle()
        assert done[3:5] == [(1, "bad"), (3, "bad")]
        task.cancel()
        await asyncio.wait({task})

    faults = METRICS.object_faults.labels("nominations")
    before = faults._value.get()
    on_manual_loop(run)
    assert faults._value.get() == before + 2
    logged = [r for r in caplog.records if getattr(r, "object", "") == "bad"]
    assert [(r.levelname, r.pause_ms) for r in logged] == [("ERROR", 1000), ("ERROR", 2000)]
    assert all(r.exc_info for r in logged)


def test_an_error_of_the_log_ends_the_run():
    """It concerns all keys: it is raised, and every worker has ended."""

    async def run(_: ManualLoop) -> None:
        async def broken(key: str) -> Retry | None:
            raise CorruptLog(f"the test fails {key}")

        async def at_once() -> None:
            return

        queue: WorkQueue[str] = WorkQueue("test", broken, at_once, workers=3, policy=REPEAT)
        queue.add("a")
        with pytest.raises(ExceptionGroup) as caught:
            await queue.run()
        assert caught.group_contains(CorruptLog, match="the test fails a")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    on_manual_loop(run)


def test_a_timer_that_is_early_does_not_end_again_and_again():
    """The clock of the queue is behind that of the event loop by less than a timer can measure."""

    async def run(loop: ManualLoop) -> None:
        behind_s, reads = 0.0, []

        def clock_s() -> float:
            reads.append(loop.now_s - behind_s)
            return reads[-1]

        driven = Driven(CONTINUE, 1, now_s=clock_s)
        driven.queue.add_after("a", 1.0)
        behind_s = 1e-10
        loop.now_s += 1.0
        for _ in range(20):
            await settle()
        assert not driven.begun
        assert len(reads) < 10
        loop.now_s += 0.002
        await settle()
        assert driven.keys() == ["a"]
        await driven.stop()

    on_manual_loop(run)


def test_lanes_take_turns() -> None:
    """The two keys of one lane are processed beside the first keys of another, however many those are."""

    async def scenario(_: ManualLoop) -> None:
        driven = Driven(REPEAT, 1, lane_of=lambda key: key[0])
        for number in range(1_000):
            driven.queue.add(f"a{number}")
        driven.queue.add("b0")
        driven.queue.add("b1")
        assert len(driven.queue._ready) == 1_002
        await settle()
        for key in ("a0", "b0", "a1", "b1", "a2"):
            assert list(driven.running) == [key]
            await driven.end(key)
        driven.queue.retain_only({"a7", "a3", "c0"})
        await driven.end("a3")
        assert list(driven.running) == ["a7"]
        await driven.end("a7")
        assert driven.queue.empty()
        driven.task.cancel()

    on_manual_loop(scenario)
