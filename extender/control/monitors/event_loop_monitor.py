"""Watch the event loop, and renew the lease in a thread of its own while the loop is busy, for a bounded time.

A busy loop is no reason for another replica to take over: it would fold the log, list the cluster, and soon compute the
same. So while the loop does not run, this thread renews the lease on its own connection, for at most `STALL_MAX_MS`;
then it gives up, and the lease runs out. A stopped process (SIGSTOP) or a dead one renews nothing, because the thread
is part of it.

This is safe. Every write to the cluster and every append begins on the event loop, which checks the lease there. The
expiry only moves after the database has renewed the same grant, and counts from before that request. The thread never
renews a lease that has run out by the clock of this process.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from extender.control.log.leader_role import LeaderRole
from extender.core.model.errors import ExtenderError, Fenced
from extender.ports.log_ports import Clock, LeaseRenewal
from extender.runtime.periodic import kept_running
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

BEAT_S: Final = 0.2
STALL_MS: Final = 500  # without a beat: the loop is busy
STALL_MAX_MS: Final = 30_000  # a leader that is busy for longer gives the lease up
SHOWN_MS: Final = 60_000  # how long /readyz has the last stall
RENEWALS_PER_TERM: Final = 3


class EventLoopMonitor:
    """Beats on the event loop; a thread looks whether the beats come."""

    def __init__(
        self,
        leader: LeaderRole,
        connect: Callable[[], LeaseRenewal],
        clock: Clock,
        ttl_ms: int,
        *,
        stall_max_ms: int = STALL_MAX_MS,
    ) -> None:
        """Prepare; `run` starts.

        Args:
            connect: Returns a connection to the database for the thread; it is opened in the thread.
            stall_max_ms: How long the lease is renewed while the loop does not run.
        """
        self._leader = leader
        self._lease = leader.lease
        self._connect = connect
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._stall_max_ms = stall_max_ms
        self._stopping = threading.Event()
        self._beat_ms = clock.monotonic_ms()
        self._loop_thread = 0
        self._renewed_ms = 0  # only of the thread
        self._last_stall: tuple[int, int] = (0, 0)  # when it ended, and how long it was

    async def run(self) -> None:
        """Beat until cancelled; the thread ends then."""
        self._loop_thread = threading.get_ident()
        self._beat_ms = self._clock.monotonic_ms()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                now_ms = self._clock.monotonic_ms()
                late_ms = now_ms - self._beat_ms - int(BEAT_S * 1000)
                self._beat_ms = now_ms
                METRICS.event_loop_delay_seconds.observe(max(late_ms, 0) / 1000)
                if late_ms >= STALL_MS:
                    self._last_stall = (now_ms, late_ms)
                    log.warning("the event loop was busy", extra={"stalled_ms": late_ms})
        finally:
            self._stopping.set()

    def recent_stall(self) -> str:
        """Return the last stall of the last minute as text; empty: none."""
        ended_ms, stalled_ms = self._last_stall
        ago_ms = self._clock.monotonic_ms() - ended_ms
        if not stalled_ms or ago_ms > SHOWN_MS:
            return ""
        return f"the event loop was busy for {stalled_ms / 1000:.1f} s, {ago_ms // 1000} s ago"

    # -- the thread --------------------------------------------------------------------------------

    def _watch(self) -> None:
        asyncio.run(kept_running("lease thread", self._watch_beats))

    async def _watch_beats(self) -> None:
        renewal, stalled = self._connect(), False
        try:
            while not self._stopping.is_set():
                await asyncio.sleep(BEAT_S)
                stalled_ms = self._clock.monotonic_ms() - self._beat_ms
                if stalled_ms < STALL_MS:
                    stalled = False
                    if self._lease.grant is not None:
                        try:  # before it is needed; while the database does not answer, again with each beat
                            await renewal.open()
                        except ExtenderError as error:
                            log.debug(
                                "no connection to renew the lease", extra={"error": str(error)}
                            )
                    continue
                if not stalled:
                    stalled = True
                    self._log_stall(stalled_ms)
                await self._renew_if_due(renewal, stalled_ms)
        finally:
            await renewal.close()

    def _log_stall(self, stalled_ms: int) -> None:
        """Log where the event loop is, once for each stall."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 -- the documented way
        where = "".join(traceback.format_stack(frame, limit=8)).strip() if frame is not None else ""
        log.warning("the event loop is busy", extra={"stalled_ms": stalled_ms, "where": where})

    async def _renew_if_due(self, renewal: LeaseRenewal, stalled_ms: int) -> None:
        """Renew the lease once if it is held, a third of the term is over, and the stall is not too long."""
        grant, now_ms = self._lease.grant, self._clock.monotonic_ms()
        last_ms = max(self._renewed_ms, self._lease.renewed_ms)
        due = now_ms - last_ms >= self._ttl_ms // RENEWALS_PER_TERM
        leads = self._leader.role == "leading" and self._lease.holds()
        if grant is None or not leads or not due:
            return
        if stalled_ms > self._stall_max_ms:
            log.error("the event loop is busy for too long: the lease runs out", extra={"stalled_ms": stalled_ms})  # fmt: skip
            self._renewed_ms = now_ms  # renewed again after a third of the term
            return
        try:
            await renewal.renew(grant)
        except Fenced as error:
            self._lease.end(grant)
            log.warning("lease lost while the event loop is busy", extra={"error": str(error)})
        except ExtenderError as error:
            extra = {"error": str(error)}
            log.warning("lease not renewed while the event loop is busy", extra=extra)
        else:
            self._renewed_ms = now_ms
            self._lease.prolong(grant, now_ms)
            METRICS.lease_renewals_while_busy.inc()
