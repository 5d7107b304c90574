"""Wake-ups that cannot be lost: a counter of changes, and tasks that wait until it increases.

A task reads the revision before it reads what may change, works, and then waits for another revision. A change
while it works increases the revision, so that the wait ends at once, for any number of tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Wakeup:
    """A revision that only increases, for one event loop."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()  # of the next change; each change has its own
        self.revision = 0
        self.waiting = 0  # number of tasks in `wait`

    def wake(self) -> None:
        """Record a change, and wake the tasks that wait."""
        self.revision += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def wait(self, after: int) -> int:
        """Wait until the revision differs from `after`; return at once if it does already.

        Args:
            after: The revision that the caller read before its work.

        Returns:
            The current revision.
        """
        self.waiting += 1
        try:
            while self.revision == after:
                await self._moved.wait()
        finally:
            self.waiting -= 1
        return self.revision


async def first_of(*waits: Coroutine[object, object, object], timeout_s: float) -> None:
    """Wait until one of some coroutines ends, or for a time; then cancel all of them, also if the caller is cancelled.

    Args:
        waits: Coroutines that can be cancelled at any time. The exception of one that failed is raised.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
