"""How long a watch waits between two reads, so that the changes of a large gang are handled together.

Between two changes that come one by one, other programs use the processor and its caches, and every task that waits for a
change is woken: several changes that are read at once cost less.
"""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 50
CHANGES_MANY: Final = (
    25  # in a window: 500 in a second, as while a gang of hundreds of members is placed
)
PAUSE_MS: Final = 10


class WatchPace:
    """Counts the changes of one watch."""

    def __init__(self) -> None:
        self._began_ms = 0  # of the current window
        self._changes = 0  # in the current window
        self._changes_before = 0  # in the window before, if it has just ended

    def after_read(self, changes: int, now_ms: int) -> int:
        """Return how long to wait before the next read, in milliseconds; 0 while there are few changes.

        Args:
            changes: How many were read.
            now_ms: When, on a clock that does not go back.
        """
        since_ms = now_ms - self._began_ms
        if since_ms >= WINDOW_MS:
            self._changes_before = self._changes if since_ms < 2 * WINDOW_MS else 0
            self._began_ms, self._changes = now_ms, 0
        self._changes += changes
        return PAUSE_MS if max(self._changes, self._changes_before) >= CHANGES_MANY else 0
