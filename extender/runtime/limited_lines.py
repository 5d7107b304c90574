"""Log lines that others can cause as often as they like: one a minute for each cause, with the number of those left out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

EVERY_MS: Final = 60_000
CAUSES_MAX: Final = 100  # whose lines are counted apart; further ones share a count


def _monotonic_ms() -> int:
    return int(time.monotonic() * 1000)


class LimitedLines:
    """The warnings of one message.

    Args:
        log: Where they go.
        message: Of all of them.
        now_ms: Monotonic time in milliseconds.
    """

    def __init__(
        self, log: logging.Logger, message: str, now_ms: Callable[[], int] = _monotonic_ms
    ) -> None:
        self._log = log
        self._message = message
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}
        self._left_out: Counter[str] = Counter()

    def warn(self, cause: str, /, **extra: object) -> None:
        """Log a line, or count it if there was one with the same cause less than a minute ago."""
        if cause not in self._logged_ms and len(self._logged_ms) >= CAUSES_MAX:
            cause = "others"
        now_ms, last_ms = self._now_ms(), self._logged_ms.get(cause)
        if last_ms is not None and now_ms - last_ms < EVERY_MS:
            self._left_out[cause] += 1
            return
        self._logged_ms[cause] = now_ms
        left_out = self._left_out.pop(cause, 0)
        self._log.warning(self._message, extra={**extra, "more_since_last_line": left_out})
