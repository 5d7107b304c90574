"""How long something has been without progress, by the monotonic clock.

The log has the recorded time of each progress. After a step of a clock, the difference to that time is wrong. So it
counts only when a progress is seen for the first time, and not beyond the round before, in which it was not there. In
the first round of a term there is no such bound: the time before it is computed from the recorded time.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import Generic, TypeVar

from extender.ports.log_ports import Clock

Key = TypeVar("Key", bound=Hashable)


class IdleTimes(Generic[Key]):
    """When each object last made progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._term = 0
        self._round_ms = 0  # when this round began
        self._newest_ms: int | None = None  # greatest age of a progress that is new in this round
        # the progress, and its monotonic time in ms
        self._entries: dict[Key, tuple[tuple[int, Hashable], int]] = {}

    def begin_round(self, term: int) -> None:
        """Begin to look at all objects.

        Args:
            term: How often this process acquired the lease.
        """
        now_ms = self._clock.monotonic_ms()
        self._newest_ms = now_ms - self._round_ms if term == self._term else None
        self._term, self._round_ms = term, now_ms

    def idle_ms(self, key: Key, progress_us: int, mark: Hashable = None) -> int:
        """Return the milliseconds since the last progress of an object.

        Args:
            progress_us: The recorded time of its last progress.
            mark: Differs after progress at the same recorded time, which stands still after a step of a clock.
        """
        now_ms = self._clock.monotonic_ms()
        entry = self._entries.get(key)
        if entry is None or entry[0] != (progress_us, mark):
            age_ms = max(self._clock.now_us() - progress_us, 0) // 1000
            if self._newest_ms is not None:
                age_ms = min(age_ms, self._newest_ms)
            entry = self._entries[key] = ((progress_us, mark), now_ms - age_ms)
        return now_ms - entry[1]

    def retain(self, keys: Container[Key]) -> None:
        """Forget all other objects."""
        self._entries = {key: entry for key, entry in self._entries.items() if key in keys}
