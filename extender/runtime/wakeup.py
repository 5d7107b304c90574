"""Wake-ups that cannot be lost: a counter of changes, and tasks that wait until it increases.

A task reads the revision before it reads what may change, works, and then waits for another revision. A change
while it works increases the revision, so that the wait ends at once, for any number of tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

PRUNED_AT: Final = 16  # waits; those that ended by time or were cancelled are dropped then


class Wakeup:
    """A revision that only increases, for one event loop."""

    def __init__(self) -> None:
        self.revision = 0
        self._waits: list[asyncio.Future[int]] = []  # for the next change
        self._prune_at = PRUNED_AT

    def wake(self) -> None:
        """Record a change, and wake the tasks that wait."""
        self.revision += 1
        waits, self._waits = self._waits, []
        for wait in waits:
            if not wait.done():
                wait.set_result(self.revision)

    @property
    def waiting(self) -> int:
        """Return how many waits have not ended."""
        return sum(not wait.done() for wait in self._waits)

    def wait(self, after: int) -> asyncio.Future[int]:
        """Return a future that ends when the revision differs from `after`; it has ended if it does already.

        A future needs no task to be waited for beside others; see `first_of`.

        Args:
            after: The revision that the caller read before its work.

        Returns:
            A future with the revision after the change.
        """
        wait: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.revision != after:
            wait.set_result(self.revision)
            return wait
        if len(self._waits) >= self._prune_at:
            self._waits = [each for each in self._waits if not each.done()]
            self._prune_at = max(PRUNED_AT, 2 * len(self._waits))
        self._waits.append(wait)
        return wait


async def first_of(*waits: Awaitable[object], timeout_s: float) -> None:
    """Wait until one of some waits ends, or for a time; then cancel all of them, also if the caller is cancelled.

    Args:
        waits: Futures, or coroutines that can be cancelled at any time. The exception of one that failed is raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # a future has ended when it is cancelled, a task a turn of the loop later
        if running := [task for task in tasks if not task.done()]:
            await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()
