"""The only source of time and of unique ids."""

from __future__ import annotations

import secrets
import time
import uuid


class SystemClock:
    """The `Clock` port on the clocks of the machine."""

    def now_us(self) -> int:
        """Return the wall-clock time in microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Return the time of a clock that never steps back, in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def new_id(self) -> str:
        """Return a UUID version 7 (RFC 9562): 48 bits of milliseconds, then random bits, so that ids of one time are close in an index."""
        value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=value))
