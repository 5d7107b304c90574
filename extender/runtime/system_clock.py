"""The clocks of the machine, and unique ids; see `database_clock` for the time that the service goes by."""

from __future__ import annotations

import os
import time
import uuid

_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former only on Linux


class SystemClock:
    """The `Clock` port on the clocks of the machine."""

    def now_us(self) -> int:
        """Return the wall-clock time in microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def recording_us(self) -> int:
        """Return the same: a program that knows no database."""
        return self.now_us()

    def monotonic_us(self) -> int:
        """Return the time of a clock that never steps back and that counts while the machine is suspended, in microseconds."""
        return time.clock_gettime_ns(_BOOT_TIME) // 1000

    def monotonic_ms(self) -> int:
        """Return the time of a clock that never steps back, in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def thread_cpu_us(self) -> int:
        """Return the CPU time that the calling thread has used, in microseconds."""
        return time.thread_time_ns() // 1000

    def new_id(self) -> str:
        """Return a UUID version 7 (RFC 9562): 48 bits of milliseconds, then random bits, so that ids of one time are close in an index."""
        value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
        value = value & ~(0xF << 76) | 0x7 << 76
        value = value & ~(0x3 << 62) | 0x2 << 62
        return str(uuid.UUID(int=value))
