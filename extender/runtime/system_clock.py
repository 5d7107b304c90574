"""The only reader of time and maker of ids."""

from __future__ import annotations

import secrets
import time
import uuid


class SystemClock:
    """The Clock port on the machine's clocks."""

    def now_us(self) -> int:
        """Give the wall clock in microseconds since the epoch."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> int:
        """Give a clock that never steps back, in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def new_id(self) -> str:
        """Give a UUID version 7 (RFC 9562): 48 bits of milliseconds, then chance, so that ids index well."""
        value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=value))
