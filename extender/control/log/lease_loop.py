"""The lease loop: follow the log, acquire the lease, load the state, lead, renew, and follow again when it is lost.

A log that has lost events (`history_guard`) is loaded as it is. No admission and no preemption is appended to it
before the control loop has compared it with the cluster: `LeaderRole.end_recovery`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from extender.control.log.append_pipeline import AppendPipeline
from extender.control.log.follower import Follower
from extender.control.log.history_guard import OLDER_COPY, HistoryGuard
from extender.control.log.leader_role import LeaderRole, Lease, LeaseIdentity, SyncClock
from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import ClusterUnavailable, Fenced, LeaseHeld, StoreUnavailable
from extender.ports.log_ports import Clock, EventLog, LeaseGrant, Snapshots
from extender.runtime.periodic import ObjectFaults
from extender.snapshots.state_loader import SnapshotWriter

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2  # a lease that was released or has expired is acquired within this time
OUTSIDE_PAUSE_S = 0.5  # between two attempts to read the published log head
SNAPSHOT_LOOK_S = 1.0


class LeaseLoop(LeaderRole):
    """Acquires and keeps the lease for the whole life of the process."""

    appends: AppendPipeline

    def __init__(
        self,
        event_log: EventLog,
        snapshots: Snapshots,
        clock: Clock,
        identity: LeaseIdentity,
        sync_clock: SyncClock,
    ) -> None:
        history = HistoryGuard(event_log)
        super().__init__(Lease(event_log, clock, identity, history, sync_clock), history)
        self._log = event_log
        self._clock = clock
        self._identity = identity
        self._snapshots = SnapshotWriter(
            event_log,
            snapshots,
            clock,
            events=identity.checkpoint_events,
            ms=identity.checkpoint_ms,
        )
        self.follower = Follower(event_log, snapshots, history, clock)
        self._ending: set[asyncio.Task[None]] = set()  # that followed the log
        self._faults: ObjectFaults[str] = ObjectFaults("log", clock.monotonic_ms)

    async def run(self) -> None:
        """Follow until the lease is acquired, lead until it is lost, and repeat until cancelled.

        Raises:
            CorruptLog: The log cannot be folded; the process must stop.
        """
        while True:
            with self._following() as following:
                grant = await self._acquire(following)
            try:
                with self._keeping_lease() as renewing:
                    started_ms = self._clock.monotonic_ms()
                    grant = await self._check_published_head(grant)
                    if await self._load(grant):
                        await self._lead(grant, renewing, started_ms)
            except (StoreUnavailable, LeaseHeld) as error:
                self.lose(str(error))
                await asyncio.sleep(self._pause_s)

    @property
    def _pause_s(self) -> float:
        return min(self._identity.ttl_ms / 5000, LOOK_EVERY_S)

    # -- follow and acquire ---------------------------------------------------------------------

    @contextmanager
    def _following(self) -> Iterator[asyncio.Task[None]]:
        """Fold the log as it grows while the block runs."""
        task = asyncio.create_task(self.follower.run(self._on_fold), name="follow the log")
        try:
            yield task
        finally:  # the fold stops here; its connection closes later, without delaying the new leader
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._on_following_end)

    def _on_fold(self, state: ReservationState) -> None:
        self.appends.load(state)
        self.wakeup.wake()

    def _on_following_end(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.info("following ended", extra={"error": str(fault)})

    async def _acquire(self, following: asyncio.Task[None]) -> LeaseGrant:
        """Try to acquire the lease after the first fold of the log, and then after each pause."""
        await self._first_fold_or_pause(following)
        while (grant := await self._try_acquire()) is None:
            await asyncio.wait({following}, timeout=self._pause_s)
            if following.done():
                following.result()
        return grant

    async def _first_fold_or_pause(self, following: asyncio.Task[None]) -> None:
        """Wait for the first fold, but not longer than the pause; the whole pause if the log was followed before."""
        waits: set[asyncio.Task[None] | asyncio.Task[bool]] = {following}
        loaded = asyncio.create_task(self.follower.loaded.wait(), name="first fold")
        if not self.follower.loaded.is_set():
            waits.add(loaded)
        try:
            await asyncio.wait(waits, timeout=self._pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loaded.cancel()

    async def _try_acquire(self) -> LeaseGrant | None:
        """Acquire the lease if it is free and this process may lead; otherwise record the reason and return None."""
        try:
            held = await self.follower.read_lease()
            if held is not None and not held.expired and held.holder != self._identity.holder:
                self._follow(f"the lease is held by {held.holder} at {held.address}")
            elif self.draining:
                self._follow("stopping")
            elif self.follower.fault is not None:
                raise self.follower.fault
            elif self.follower.lag_reason():  # the lag changes all the time; error texts must not
                self.explain("behind the log, see /readyz")
            else:
                return await self._acquire_and_activate()
        except LeaseHeld as error:  # another process was faster
            self._follow(str(error))
        except StoreUnavailable as error:
            self.explain(str(error))
        return None

    async def _acquire_and_activate(self) -> LeaseGrant:
        grant = await self.lease.acquire()
        self.lease.activate()
        return grant

    def _follow(self, reason: str) -> None:
        if self.not_leading_reason != reason:
            log.info("following", extra={"reason": reason})
        self.become("following", reason)

    # -- load -----------------------------------------------------------------------------------

    async def _check_published_head(self, grant: LeaseGrant) -> LeaseGrant:
        """Read the published log head, until it succeeds; acquire the lease again if that shows a higher epoch."""
        while self.lease.grant is grant:
            try:
                fresh = await self.history.read_published(grant)
            except ClusterUnavailable as error:
                self.explain(f"the published end of the log cannot be read: {error}")
                await asyncio.sleep(OUTSIDE_PAUSE_S)
            else:
                return grant if fresh else await self._acquire_and_activate()
        return grant

    async def _load(self, grant: LeaseGrant) -> bool:
        """Load the fold of the log up to the grant; return False if the lease was lost meanwhile."""
        state = await self.follower.state_at(grant.head)
        truncated = await self.history.compare(grant, state)
        if self.lease.grant is not grant:
            return False  # `history` keeps what was found
        if truncated is not None:
            self.begin_recovery(f"history lost: {truncated.message}; comparing with the cluster")
        self.appends.load(state)
        return True

    # -- lead -----------------------------------------------------------------------------------

    async def _lead(self, grant: LeaseGrant, renewing: asyncio.Task[None], started_ms: int) -> None:
        """Lead with the loaded state, and save snapshots, until the lease is lost."""
        state = self.appends.committed
        self.become("leading", "")
        await self.record_lease(grant)
        log.info(
            "leading",
            extra={
                "epoch": grant.epoch,
                "position": state.position,
                "gangs": len(state.gangs),
                "replay_ms": self._clock.monotonic_ms() - started_ms,
            },
        )
        lost = asyncio.create_task(self.until_lost(), name="until the lease is lost")
        try:
            while not lost.done() and not renewing.done():
                await asyncio.wait(
                    {renewing, lost}, timeout=SNAPSHOT_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                if self.lease.grant is not None and not self._faults.waits("snapshot"):
                    with self._faults.alone("snapshot"):
                        await self._snapshots.save_if_due(self.appends.committed)
        finally:
            lost.cancel()
        if renewing.done():
            renewing.result()

    # -- renew and watch ------------------------------------------------------------------------

    @contextmanager
    def _keeping_lease(self) -> Iterator[asyncio.Task[None]]:
        """Renew the lease and watch its expiry while the block runs; return the task that renews."""
        renewing = asyncio.create_task(self._renew(), name="renew lease")
        watching = asyncio.create_task(
            self.lease.watch_expiry(self.on_lease_expired, self._pause_s), name="watch the lease"
        )
        try:
            yield renewing
        finally:
            renewing.cancel()
            watching.cancel()

    async def _renew(self) -> None:
        """Renew three times in each term until the lease is lost; the settlement acquires it itself."""
        while True:
            await asyncio.sleep(self._identity.ttl_ms / 3000)
            grant, asked_ms = self.lease.grant, self._clock.monotonic_ms()
            if grant is None:
                return
            if self.role == "settling":
                continue
            try:
                await self._log.renew(grant)
                intact = self.role != "leading" or await self.history.intact()
            except Fenced as error:
                if self.lease.grant is grant:  # not acquired again meanwhile
                    self.lose(str(error))
                    return
            except StoreUnavailable as error:
                log.warning("lease not renewed", extra={"error": str(error)})
            else:
                if self.lease.grant is not grant:
                    continue
                if not intact:
                    self.lose(OLDER_COPY)
                    return
                self.lease.renew_from(asked_ms)
