"""Answers that callers do not take: their bytes count, and a write that makes no progress is ended.

What an operating system takes at once is sent at once. The rest is kept here, not in the buffers of the event loop, which
have no limit: it is counted in `BytesInFlight`, handed over piece by piece, and dropped with its connection or stream when
less than `PROGRESS_BYTES` of it were taken within `STALL_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from extender.runtime.garbage_collection import give_back_memory
from extender.telemetry import METRICS

STALL_S: Final = 10.0
# a caller who takes less in `STALL_S` holds memory, and reads nothing
PROGRESS_BYTES: Final = 16 * 1024
PIECE_BYTES: Final = 64 * 1024  # that the event loop gets at a time
# A timer that is this late: the process did not run, and what was taken meanwhile has not been seen.
LATE_S: Final = 0.25
# After so many bytes were in flight, free memory is given back, so long after most of them are gone.
GIVE_BACK_BYTES: Final = 16 * 1024 * 1024
GIVE_BACK_AFTER_S: Final = 2.0
# Beyond it the one who writes is asked to wait.
HIGH_BYTES: Final = 64 * 1024


class BytesInFlight:
    """Bytes of bodies whose requests are open, and of answers that were not taken yet."""

    def __init__(self) -> None:
        self._most = 0  # since free memory was last given back
        self._giving: asyncio.TimerHandle | None = None
        self.calls = 0  # bodies of all requests, and answers to calls of kube-scheduler
        self.reads = 0  # answers to all others: they do not keep kube-scheduler from calling

    def hold(self, count: int, *, reads: bool = False) -> None:
        """Count so many bytes more, or fewer."""
        if reads:
            self.reads += count
        else:
            self.calls += count
        total = self.calls + self.reads
        METRICS.http_body_bytes_in_flight.set(total)
        self._most = max(self._most, total)
        if self._most >= GIVE_BACK_BYTES and total < self._most // 4 and self._giving is None:
            self._giving = asyncio.get_running_loop().call_later(GIVE_BACK_AFTER_S, self._give_back)

    def _give_back(self) -> None:
        """Give back what many large bodies and answers have left free."""
        self._giving, self._most = None, self.calls + self.reads
        give_back_memory()


class UnsentBytes:
    """The bytes of one connection or stream that are not sent yet.

    Args:
        stalled: Called when they make no progress.
    """

    def __init__(self, in_flight: BytesInFlight, stalled: Callable[[], None]) -> None:
        self.reads = False  # of an answer to another request than a call of kube-scheduler
        self._in_flight = in_flight
        self._stalled = stalled
        self._data = bytearray()
        self._held = 0  # bytes that are counted
        self._counts_as_reads = False
        self._taken = 0  # since the timer began
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes behind the others; `settle` follows, when some have been taken or not."""
        self._data += data

    def take(self, count: int) -> bytes:
        """Remove and return the first bytes, which are being sent."""
        data = bytes(self._data[:count])
        del self._data[:count]
        self._taken += len(data)
        return data

    def settle(self, *, waits: bool = False) -> None:
        """Count what is left, and look for progress while something is, or `waits` elsewhere for the caller."""
        if not self._held:
            self._counts_as_reads = self.reads
        if len(self._data) != self._held:
            self._in_flight.hold(len(self._data) - self._held, reads=self._counts_as_reads)
            self._held = len(self._data)
        if not self._data and not waits:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._taken = 0
            self._timer = asyncio.get_running_loop().call_later(STALL_S, self._look)

    def drop(self) -> None:
        """Remove all of them."""
        self._data = bytearray()
        self.settle()

    def _look(self) -> None:
        assert self._timer is not None
        late_s = asyncio.get_running_loop().time() - self._timer.when()
        self._timer = None
        if self._taken < PROGRESS_BYTES and late_s < LATE_S:
            METRICS.http_requests_refused.labels("answer-not-read").inc()
            self._stalled()
        else:
            self.settle(waits=True)


class SentResponse(web.Response):
    """A response that drops its body when it is written: aiohttp keeps the last one of a connection until its next request."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body."""
        try:
            await super().write_eof(data)
        finally:
            self._body = None


class PacedTransport(asyncio.Transport):
    """A connection that takes no more bytes than its caller does; for the protocol above it, it is the transport.

    It has what aiohttp calls of one, and no more.

    Args:
        transport: That of the event loop. Its protocol passes `pause_writing` and `resume_writing` on to `pause` and `resume`.
        in_flight: Counts what is not sent yet.
        hold: Called with whether the protocol above has to wait, when that changes.
    """

    def __init__(
        self, transport: asyncio.Transport, in_flight: BytesInFlight, hold: Callable[[bool], None]
    ) -> None:
        super().__init__()
        self.unsent = UnsentBytes(in_flight, self.abort)
        self._transport = transport
        self._hold = hold
        self._paused = False
        self._holds = False
        self._closes = False
        # What the operating system does not take is noticed at once; with 0, transports of TLS would pause without a byte.
        transport.set_write_buffer_limits(high=1, low=0)

    def pause(self) -> None:
        """Keep what comes from now on: the event loop has bytes that the caller has not taken."""
        self._paused = True
        self.unsent.settle(waits=True)
        self._update()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._send()

    def lose(self) -> None:
        """Drop what is unsent: the connection has ended."""
        self.unsent.drop()

    # -- transport ------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 -- as in asyncio
        """Return what the transport of the event loop knows."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self._closes or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Take no data."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take data again."""
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep them until the caller takes those before them."""
        if self.is_closing():
            return
        if not self._paused and not len(self.unsent) and len(data) <= PIECE_BYTES:
            self._transport.write(data)
            return
        self.unsent.add(data)
        self._send()

    def close(self) -> None:
        """End the connection; what was written is sent before."""
        if not len(self.unsent) and not self._paused:
            self._transport.close()
        elif not self._closes:
            self._closes = True
            self._transport.pause_reading()

    def abort(self) -> None:
        """End the connection at once."""
        self.unsent.drop()
        self._transport.abort()

    def _send(self) -> None:
        while len(self.unsent) and not self._paused:
            self._transport.write(self.unsent.take(PIECE_BYTES))  # may pause
        self.unsent.settle(waits=self._paused)
        if self._closes and not len(self.unsent) and not self._paused:
            self._transport.close()
        self._update()

    def _update(self) -> None:
        holds = self._paused or len(self.unsent) > HIGH_BYTES
        if holds != self._holds:
            self._holds = holds
            self._hold(holds)
