"""A queue of keys for workers that bring objects to their desired state, with back-off per key.

It works as the rate-limited work queue of client-go. A key waits at most once and has at most one worker; a key that
is added while it is processed is processed once more. What is to be written for a key is looked up when its turn
comes, so that a key whose desired state changed often costs one request, and one that needs nothing any more costs none.

Keys are processed in the order in which they became due; where they have lanes, such as namespaces, the lanes take
turns, so that thousands of keys of one do not delay those of another. Only `RetryPolicy.after_failure` decides what a
failure does to that order. All methods are called on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Generic, Literal, TypeVar

import msgspec

from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.runtime.periodic import ObjectFaults

K = TypeVar("K", bound=Hashable)
# Timers of uvloop have whole milliseconds; a shorter one would end at once, again and again until the key is due.
TIMER_MIN_S = 0.001


class Retry(msgspec.Struct, frozen=True):
    """The result of processing a key that could not be processed now.

    `after_s`: Retry-After of the API server in seconds, 0 without one. The back-off is never shorter, whatever its limit.
    """

    after_s: float = 0.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a key waits after a failure, and what its worker does meanwhile.

    After a failure a worker can
    - *repeat* the key after its back-off, and process no other key before: the order of the keys stays, and while the
      API server is away no more keys are tried than there are workers;
    - *rest* during the back-off of the key, which is queued again behind the others: also few requests while the API
      server is away, but a key that always fails does not keep its worker from the others;
    - *continue* with the next key at once, where the failures are those of one object.
    After an exception, which is a defect, every worker continues, and the key waits for the pause of `ObjectFaults`.
    """

    # The back-off after the first failure; it is doubled with each further failure of the key, up to `max_s`.
    first_s: float
    max_s: float
    after_failure: Literal["repeat", "rest", "continue"]


class _Delay(msgspec.Struct, frozen=True):
    """When a key becomes due."""

    due_s: float
    timer: asyncio.TimerHandle
    is_back_off: bool  # `add` does not make the key due earlier


class _ReadyKeys(Generic[K]):
    """Keys in the order in which they were added, lane by lane; the lanes take turns."""

    def __init__(self, lane_of: Callable[[K], Hashable]) -> None:
        self._lane_of = lane_of
        self._lanes: OrderedDict[Hashable, OrderedDict[K, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return key in self._lanes.get(self._lane_of(key), ())

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._lanes.values())

    def add(self, key: K) -> None:
        """Add a key that is not in it, behind the others of its lane."""
        self._lanes.setdefault(self._lane_of(key), OrderedDict())[key] = None
        self._count += 1

    def remove(self, key: K) -> None:
        """Remove a key that is in it."""
        lane = self._lane_of(key)
        del self._lanes[lane][key]
        self._count -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]

    def pop(self) -> K:
        """Remove and return the first key of the lane whose turn it is."""
        lane, keys = self._lanes.popitem(last=False)
        key, _ = keys.popitem(last=False)
        self._count -= 1
        if keys:
            self._lanes[lane] = keys  # behind the other lanes
        return key


class WorkQueue(Generic[K]):
    """Keys that wait, and the workers that process them."""

    def __init__(
        self,
        name: str,
        process: Callable[[K], Awaitable[Retry | None]],
        until_allowed: Callable[[], Awaitable[None]],
        *,
        workers: int,
        policy: RetryPolicy,
        now_s: Callable[[], float] | None = None,
        lane_of: Callable[[K], Hashable] = lambda _: None,
    ) -> None:
        """Create an empty queue.

        Args:
            process: Writes what a key needs now; returns `Retry` for another attempt, or None when nothing is left to do.
            until_allowed: Waits until requests are allowed; awaited before each attempt, when a worker has taken the key.
            now_s: A clock for delays, in seconds; None: that of the event loop.
            lane_of: Returns the lane of a key; the default is one lane for all keys.
        """
        self._name = name
        self._process = process
        self._until_allowed = until_allowed
        self._workers = workers
        self._policy = policy
        self._now_s = now_s or (lambda: asyncio.get_running_loop().time())
        self._ready: _ReadyKeys[K] = _ReadyKeys(lane_of)  # wait for a worker
        self._idle: deque[asyncio.Future[None]] = deque()  # of workers that wait for a ready key
        self._delayed: dict[K, _Delay] = {}
        self._active: set[K] = set()  # have a worker
        self._again: set[K] = set()  # active, and due once more
        self._dropped: set[K] = set()  # active, and not to be retried
        self._pauses_s: dict[K, float] = {}  # the last back-off of keys that failed
        self._faults: ObjectFaults[K] = ObjectFaults(
            name,
            None,
            lambda key: self.name_of(key),  # noqa: PLW0108 -- it is set later
        )
        # returns the name of the object of a key, for the log
        self.name_of: Callable[[K], str] = str

    def add(self, key: K) -> None:
        """Make a key due now, or at the end of its back-off."""
        if key in self._delayed:
            self.add_after(key, 0.0)
        else:
            self._make_ready(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """Make a key due after a delay in seconds, unless it is due earlier or at the end of its back-off."""
        self._dropped.discard(key)
        now_s = self._now_s()
        due_s, delay = now_s + delay_s, self._delayed.get(key)
        if delay is not None:
            if delay.due_s > now_s and (delay.is_back_off or delay.due_s <= due_s):
                return
            due_s = min(due_s, delay.due_s)
            self._end_delay(key)
        if due_s <= now_s:
            self._make_ready(key)
        elif key not in self._ready and key not in self._again:
            self._delay(key, due_s, is_back_off=False)

    def retain_only(self, keys: AbstractSet[K]) -> None:
        """Drop every other key and its back-off; those that are being processed are not processed again."""
        for key in [key for key in self._ready if key not in keys]:
            self._ready.remove(key)
        for key in [key for key in self._delayed if key not in keys]:
            self._end_delay(key)
        for key in [key for key in self._pauses_s if key not in keys]:
            del self._pauses_s[key]
        self._again = {key for key in self._again if key in keys}
        self._dropped |= {key for key in self._active if key not in keys}

    def __contains__(self, key: K) -> bool:
        """Return whether a key waits, for a worker or for its time; also if it is being processed besides."""
        return key in self._ready or key in self._delayed or key in self._again

    def is_processing(self, key: K) -> bool:
        """Return whether a worker has taken a key."""
        return key in self._active

    def empty(self) -> bool:
        """Return whether no key waits for a worker."""
        return not self._ready

    async def run(self) -> None:
        """Process keys until cancelled; returns when every worker has ended.

        A key whose processing was cancelled is in the queue again, because the outcome of its request is unknown.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self._name} {number}")

    async def _work(self) -> None:
        while True:
            while not self._ready:
                await self._until_ready()
            key = self._ready.pop()
            self._active.add(key)
            try:
                repeat = True
                while repeat:
                    self._again.discard(key)
                    repeat = await self._process_alone(key)
            except asyncio.CancelledError:
                if key not in self._dropped and key not in self._delayed:
                    self._again.add(key)
                raise
            finally:
                self._finish(key)

    async def _process_alone(self, key: K) -> bool:
        """Process a key; return whether the worker processes it again now."""
        retry, is_processed = None, False
        with self._faults.alone(key):
            await self._until_allowed()
            retry, is_processed = await self._process(key), True
        if not is_processed:
            self._delay_again(key, self._faults.pause_s(key))
            return False
        if retry is None:
            if self._pauses_s:
                self._pauses_s.pop(key, None)
            return False
        return await self._back_off(key, retry)

    async def _until_ready(self) -> None:
        """Wait until a key has become ready; another worker may have taken it by then."""
        turn = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # The key for which this worker was woken is for another one.
                self._wake_worker()
            raise

    def _wake_worker(self) -> None:
        """Wake the worker that has waited longest."""
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                turn.set_result(None)
                break

    async def _back_off(self, key: K, retry: Retry) -> bool:
        """Do what follows a failure; return whether the worker processes the same key again now."""
        policy = self._policy
        if key in self._dropped:
            return False
        before_s = self._pauses_s.get(key)
        pause_s = policy.first_s if before_s is None else min(before_s * 2, policy.max_s)
        self._pauses_s[key] = pause_s
        pause_s = max(pause_s, retry.after_s)
        if policy.after_failure == "repeat":
            await asyncio.sleep(pause_s)
            return key not in self._dropped
        self._delay_again(key, pause_s)
        if policy.after_failure == "rest":
            await asyncio.sleep(pause_s)
        return False

    def _delay_again(self, key: K, pause_s: float) -> None:
        """Make a key due after its back-off; what was added meanwhile is due with it."""
        if key in self._dropped:
            return
        self._again.discard(key)
        if key in self._delayed:
            self._end_delay(key)
        self._delay(key, self._now_s() + pause_s, is_back_off=True)

    def _finish(self, key: K) -> None:
        """Record that a key has no worker any more, and queue it if it is due once more."""
        self._active.discard(key)
        self._dropped.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._make_ready(key)

    def _make_ready(self, key: K) -> None:
        if key in self._active:
            self._dropped.discard(key)
            self._again.add(key)
        elif key not in self._ready:
            self._ready.add(key)
            if self._idle:
                self._wake_worker()

    def _delay(self, key: K, due_s: float, *, is_back_off: bool) -> None:
        """Start the delay of a key that has none."""
        left_s = max(TIMER_MIN_S, due_s - self._now_s())
        timer = asyncio.get_running_loop().call_later(left_s, self._on_time, key)
        self._delayed[key] = _Delay(due_s, timer, is_back_off)

    def _end_delay(self, key: K) -> None:
        self._delayed.pop(key).timer.cancel()

    def _on_time(self, key: K) -> None:
        """Make a delayed key due, or wait again where the clock of the queue is behind that of the event loop."""
        delay = self._delayed.pop(key)
        if delay.due_s > self._now_s():
            self._delay(key, delay.due_s, is_back_off=delay.is_back_off)
        else:
            self._make_ready(key)


async def retried(
    write: Awaitable[object], log: logging.Logger, text: str, **extra: str
) -> Retry | None:
    """Await a write. Return `Retry` if the API server did not answer; a write that it rejects is not repeated."""
    try:
        await write
    except RequestRejected as error:
        log.info(text, extra={**extra, "error": str(error)})
    except ClusterUnavailable as error:
        log.warning("%s yet", text, extra={**extra, "error": str(error)})
        return Retry(error.retry_after_s)
    return None
