"""Wake-ups that cannot be lost: a counter that says how often something changed, and tasks that wait for it to move.

A task reads the revision before it looks at what may change, works, and then waits for another revision. A change
while it works moves the revision, so the wait ends at once, however many tasks wait and whenever they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Wakeup:
    """A revision that only grows, for one event loop."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()  # of the next move; each move has its own
        self.revision = 0
        self.waiting = 0  # so many tasks wait now

    def wake(self) -> None:
        """Record a change, and wake the tasks that wait."""
        self.revision += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def wait(self, after: int) -> int:
        """Wait until the revision differs from `after`; at once when it already does.

        Args:
            after: The revision that was read before the caller looked.

        Returns:
            The revision.
        """
        self.waiting += 1
        try:
            while self.revision == after:
                await self._moved.wait()
        finally:
            self.waiting -= 1
        return self.revision


async def first_of(*waits: Coroutine[object, object, object], timeout_s: float) -> None:
    """Return when one of some waits ends, or after a time. None of them runs on, also when the caller is cancelled.

    Args:
        waits: They must allow to be cancelled at any time. The fault of one that failed is raised.
        timeout_s: Seconds.
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
