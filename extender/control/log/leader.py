"""The leader: it holds the lease, loads the state, appends events, and knows whether this process may act.

It keeps two states. `committed`, the committed state, is durable, and all answers are given from it.
`pending_state`, the pending state, includes appends in flight, and new decisions are made on it. When an append
fails, the pending state is reset to the committed state, callers get the error, and the loops decide again.

An append whose outcome is unknown is settled before anything else is written: the lease is acquired again, so
that the old statement cannot commit later, the events are looked up by id, and those found are folded in.

A log that has lost events (`history_guard`) is folded as it is. No admission and no preemption is appended to it
before the control loop has compared it with the cluster: `end_recovery`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from extender.control.log.event_metadata import stamp_events
from extender.control.log.follower import Follower
from extender.control.log.history_guard import HistoryGuard
from extender.control.log.lease import Lease, LeaseIdentity
from extender.core.log.events import (
    AnyEventData,
    GangAdmitted,
    GangExtended,
    LeaseAcquired,
    NewEvent,
    PreemptionPlanned,
    RecordedEvent,
)
from extender.core.log.reservation_state import EMPTY, ReservationState, fold
from extender.core.model.errors import (
    ClusterUnavailable,
    CorruptLog,
    ExtenderError,
    Fenced,
    LeaseHeld,
    NotLeading,
    StoreUnavailable,
)
from extender.core.model.ids import NIL_GANG, Epoch
from extender.ports.log_ports import Clock, EventLog, LeaseGrant, Snapshots
from extender.runtime.wakeup import Wakeup
from extender.snapshots.snapshot_writer import SnapshotWriter

log = logging.getLogger(__name__)

OUTSIDE_PAUSE_S = 0.5
LOOK_EVERY_S = 0.2  # a lease that was released or has expired is acquired within this time
OLDER_COPY = "the log is an older copy of the one that this process wrote"

Role = Literal["starting", "following", "leading", "settling", "stopped"]


class _InFlightAppend(msgspec.Struct, eq=False):
    """An append whose outcome is not known yet."""

    events: tuple[RecordedEvent, ...]
    done: asyncio.Future[None]
    after: Callable[[], Awaitable[None]] | None  # runs before the events are sent
    sent: asyncio.Future[
        bool
    ]  # True: the next one may be sent; False: it would not continue the log


class Leader:
    """Holds the lease, and appends and folds events."""

    def __init__(
        self, event_log: EventLog, snapshots: Snapshots, clock: Clock, identity: LeaseIdentity
    ) -> None:
        self._log = event_log
        self._clock = clock
        self._identity = identity
        self._flights: list[_InFlightAppend] = []
        self._appends: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None] | asyncio.Task[Literal[True]]] = set()
        self._settling: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._snapshots = SnapshotWriter(
            event_log,
            snapshots,
            clock,
            events=identity.checkpoint_events,
            ms=identity.checkpoint_ms,
        )
        self._stepped_down = asyncio.Event()
        self.wakeup = Wakeup()  # changes with the committed state and with the role
        self.role: Role = "starting"
        self.not_leading_reason = "starting"
        self.committed: ReservationState = EMPTY
        self.pending_state: ReservationState = EMPTY
        self.history = HistoryGuard(event_log)
        self.lease = Lease(event_log, clock, identity, self.history)
        self.follower = Follower(event_log, snapshots, self.history, clock)
        self.draining = False  # this process ends soon: it does not acquire the lease again
        self.recovery_reason = ""  # why no admission is appended while leading, or an empty string
        self.on_append: Callable[[Sequence[RecordedEvent]], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    # -- queries ------------------------------------------------------------------------------

    def may_act(self) -> bool:
        """Return whether writes to the cluster are allowed now: the lease is held, and the state is that of the log."""
        return (
            self.role in ("leading", "settling") and self.lease.holds() and not self.recovery_reason
        )

    async def until_may_act(self) -> None:
        """Wait until `may_act`. It polls, because the lease expires by time."""
        while not self.may_act():  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0.1)

    def may_record(self) -> bool:
        """Return whether events can be appended now."""
        return self.role == "leading" and self.lease.holds()

    def leads(self) -> bool:
        """Return whether this process is the one that answers kube-scheduler, ready or not."""
        return self.lease.grant is not None and self.role in ("leading", "settling")

    def not_ready_reason(self) -> str:
        """Return the reason why this process must not answer from its state, or an empty string."""
        if not self.leads():
            return f"not leading: {self.not_leading_reason}"
        return "" if self.lease.holds() else "the lease has run out"

    def end_recovery(self, terms: int) -> None:
        """End the recovery from a loss of events: the log has been compared with the cluster.

        Args:
            terms: The value of `terms` when the comparison began; after another acquisition nothing ends.
        """
        if self.recovery_reason and terms == self.terms and self.history.unrecorded is None:
            log.info(
                "compared with the cluster after a loss of history", extra={"epoch": self.epoch}
            )
            self.recovery_reason = ""

    @property
    def epoch(self) -> Epoch:
        """Return the epoch of the grant, 0 without one."""
        return self.lease.epoch

    @property
    def terms(self) -> int:
        """Return how often the lease was acquired; a pass under an earlier acquisition does not make this one ready."""
        return self.lease.terms

    # -- writing -----------------------------------------------------------------------------

    async def append(self, drafts: Sequence[NewEvent]) -> tuple[RecordedEvent, ...]:
        """Append drafts and wait until they are durable and part of the committed state.

        The drafts must have been decided on `pending_state` with no await in between.

        Raises:
            NotLeading: The lease is not held, or an unknown outcome is being settled.
            StoreUnavailable: Not written, or the outcome was not known in time; decide again.
        """
        if not drafts:
            return ()
        return await self.append_nowait(drafts)

    def append_nowait(
        self, drafts: Sequence[NewEvent], after: Callable[[], Awaitable[None]] | None = None
    ) -> Awaitable[tuple[RecordedEvent, ...]]:
        """Fold drafts into `pending_state` now and start to append them.

        So the next decision can be made on them while the append is in flight.

        Args:
            drafts: At least one.
            after: Runs before the events are sent, to store what they refer to; if it fails, the append fails.

        Returns:
            The events, once they are durable; awaiting it raises NotLeading and StoreUnavailable like `append`.

        Raises:
            NotLeading: The lease is not held, or an unknown outcome is being settled.
        """
        if not self.may_record() or self.lease.grant is None:
            raise NotLeading(
                self.not_leading_reason
                if self.lease.grant is None
                else f"{self.role}: cannot append"
            )
        promises = GangAdmitted | GangExtended | PreemptionPlanned
        if self.recovery_reason and any(isinstance(d.data, promises) for d in drafts):
            raise NotLeading(self.recovery_reason)
        events = stamp_events(drafts, self.pending_state, self.lease.grant.epoch, self._clock)
        self.pending_state = fold(self.pending_state, events)
        loop = asyncio.get_running_loop()
        append = _InFlightAppend(events, loop.create_future(), after, loop.create_future())
        append.done.add_done_callback(_retrieve_exception)  # its caller may have been cancelled
        before = self._flights[-1].sent if self._flights else None
        self._flights.append(append)
        # Its own task: a cancelled caller must not leave an append unsettled.
        task = asyncio.create_task(self._append(self.lease.grant, append, before), name="append")
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)
        return self._until_done(append)

    async def _until_done(self, append: _InFlightAppend) -> tuple[RecordedEvent, ...]:
        try:
            async with asyncio.timeout(self._identity.ttl_ms / 1000):
                await asyncio.shield(append.done)
        except TimeoutError:  # the append is settled later, and the caller does not wait for that
            msg = "the log has not answered for as long as a lease lasts; the outcome is unknown"
            raise StoreUnavailable(msg) from None
        return append.events

    async def _append(
        self, grant: LeaseGrant, append: _InFlightAppend, before: asyncio.Future[bool] | None
    ) -> None:
        try:
            if append.after is not None:
                await append.after()
            if (before is not None and not await before) or append not in self._flights:
                return  # settled together with the append before it
            append.sent.set_result(True)
            await self._log.append(grant, append.events)
        except ExtenderError as error:  # written or not: settling finds out
            self._settle(error)
        else:
            try:
                self._commit(append)
            except CorruptLog as error:  # the state differs from the log: load it again
                log.exception("memory does not continue the log")
                self._flights.append(
                    append
                )  # `_commit` removed it, and its caller must get the error
                self._lost(str(error))
        finally:
            if not append.sent.done():
                append.sent.set_result(False)

    def replace_state(self, state: ReservationState) -> None:
        """Replace the state by a fold of the log, or do nothing while appends are in flight.

        The next verification finds the difference again.
        """
        if not self._flights and state.position == self.committed.position:
            self.committed = self.pending_state = state
            self.wakeup.wake()

    def _commit(self, append: _InFlightAppend) -> None:
        """Fold a durable append into the committed state; appends end in the order in which they began."""
        if append not in self._flights:
            return  # settled meanwhile
        self._flights.remove(append)
        self.committed = fold(self.committed, append.events)
        self.history.observe_committed(append.events[-1])
        if not append.done.done():
            append.done.set_result(None)
        if self.on_append is not None:
            self.on_append(append.events)
        self.wakeup.wake()

    def _settle(self, error: Exception) -> None:
        """Start to settle all appends in flight, unless that runs already."""
        if self._settling is None or self._settling.done():
            log.warning(
                "append failed, settling",
                extra={"error": str(error), "flights": len(self._flights)},
            )
            self.role, self.not_leading_reason = "settling", str(error)
            self._settling = asyncio.create_task(self._settle_appends(), name="settle appends")

    async def _settle_appends(self) -> None:
        pause_s = 0.05
        while True:
            try:
                grant = await self.lease.acquire()
                ids = [e.event_id for f in self._flights for e in f.events]
                found = await self._log.find(ids)
                if not await self.history.intact():
                    self._lost(OLDER_COPY)
                    return
                self.lease.activate()
                break
            except (LeaseHeld, Fenced) as error:
                self._lost(str(error))
                return
            except StoreUnavailable as error:
                self.not_leading_reason = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
        self._resume(grant, set(found))

    def _resume(self, grant: LeaseGrant, found: set[str]) -> None:
        """Fold the appends found in the log, fail the others, and lead under the new epoch."""
        for append in list(self._flights):
            if all(e.event_id in found for e in append.events):
                self._commit(append)
        failed, self._flights = self._flights, []
        self.pending_state = self.committed
        for append in failed:
            if not append.done.done():
                append.done.set_exception(
                    StoreUnavailable("the append did not happen; decide again")
                )
        if grant.head.position != self.committed.position:
            self._lost(
                f"the log ends at position {grant.head.position}, the state in memory at {self.committed.position}"
            )
            return
        self.role, self.not_leading_reason = "leading", ""
        # its own task: if this append fails too, a new settlement must be able to start
        self._announcing = asyncio.create_task(self._record_lease(grant), name="record lease")

    def _lost(self, why: str) -> None:
        log.warning("lease lost", extra={"reason": why, "epoch": self.epoch})
        self.lease.grant = None
        self.follower.forget_lease()
        self._stepped_down.set()
        self.role, self.not_leading_reason = "following", why
        flights, self._flights = self._flights, []
        self.pending_state = self.committed
        for append in flights:
            if not append.done.done():
                append.done.set_exception(NotLeading(why))
        if self.on_lost is not None:
            self.on_lost()
        self.wakeup.wake()

    # -- the lease ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until the lease is acquired, lead until it is lost, and repeat until cancelled.

        Raises:
            CorruptLog: The log cannot be folded; the process must stop.
        """
        while True:
            grant = await self._acquire()
            try:
                await self._lead(grant)
            except (StoreUnavailable, LeaseHeld) as error:
                self._lost(str(error))
                await asyncio.sleep(min(self._pause_s, 0.5))

    @property
    def _pause_s(self) -> float:
        return min(self._identity.ttl_ms / 5000, LOOK_EVERY_S)

    async def _acquire(self) -> LeaseGrant:
        """Follow the log until the lease is acquired."""
        following = asyncio.create_task(
            self.follower.run(self._on_follower_fold), name="follow the log"
        )
        first = asyncio.create_task(self.follower.loaded.wait(), name="first fold")
        try:
            if (
                not self.follower.loaded.is_set()
            ):  # waits for the first fold, not for the whole pause
                await asyncio.wait(
                    {following, first},
                    timeout=self._pause_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            else:
                await asyncio.wait({following}, timeout=self._pause_s)
            while (grant := await self._try_acquire()) is None:
                await asyncio.wait({following}, timeout=self._pause_s)
                if following.done():
                    following.result()
            return grant
        finally:  # the fold stops here; its connection closes later, without delaying the new leader
            for task in (following, first):
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None] | asyncio.Task[Literal[True]]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.info("following ended", extra={"error": str(fault)})

    def _on_follower_fold(self, state: ReservationState) -> None:
        self.committed = self.pending_state = state
        self.wakeup.wake()

    async def _try_acquire(self) -> LeaseGrant | None:
        """Acquire the lease if it is free and this process may lead; else set `not_leading_reason` and return None."""
        try:
            held = await self.follower.read_lease()
            if held is not None and not held.expired and held.holder != self._identity.holder:
                self._become_follower(f"the lease is held by {held.holder} at {held.address}")
            elif self.draining:
                self._become_follower("stopping")
            elif self.follower.fault is not None:
                raise self.follower.fault
            elif self.follower.lag_reason():  # the lag changes all the time; error texts must not
                self.not_leading_reason = "behind the log, see /readyz"
            else:
                grant = await self.lease.acquire()
                self.lease.activate()
                return grant
        except LeaseHeld as error:  # another process was faster
            self._become_follower(str(error))
        except StoreUnavailable as error:
            self.not_leading_reason = str(error)
        return None

    def _become_follower(self, why: str) -> None:
        if self.not_leading_reason != why:
            log.info("following", extra={"reason": why})
        self.role, self.not_leading_reason = "following", why

    async def _lead(self, grant: LeaseGrant) -> None:
        started_ms = self._clock.monotonic_ms()
        self._stepped_down.clear()
        stepped_down = asyncio.create_task(self._stepped_down.wait(), name="step down")
        renewing = asyncio.create_task(self._renew_for_ever(), name="renew lease")
        watching = asyncio.create_task(
            self.lease.watch_expiry(self._on_lease_expired, self._pause_s), name="watch the lease"
        )
        try:
            grant = await self._check_published_head(grant)
            state = await self.follower.state_at(grant.head)
            truncated = await self.history.compare(grant, state)
            if self.lease.grant is not grant:
                return  # lost meanwhile; `history` keeps what was found
            if truncated is not None:
                self.recovery_reason = f"history lost: {truncated.message}; comparing with the cluster"
            self.committed = self.pending_state = state
            self.role, self.not_leading_reason = "leading", ""
            await self._record_lease(grant)
            log.info(
                "leading",
                extra={
                    "epoch": grant.epoch,
                    "position": state.position,
                    "roots": len(state.gangs),
                    "replay_ms": self._clock.monotonic_ms() - started_ms,
                },
            )
            while self.epoch and not renewing.done():
                await asyncio.wait(
                    {renewing, stepped_down}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                if self.epoch:
                    await self._snapshots.save_if_due(self.committed)
            if renewing.done():
                renewing.result()
        finally:
            for task in (renewing, watching, stepped_down):
                task.cancel()

    def _on_lease_expired(self) -> None:
        """Let waiting calls be answered: another process may lead now, even if the database cannot be reached from here."""
        log.warning("the lease has run out", extra={"epoch": self.epoch})
        if self.on_lost is not None:
            self.on_lost()
        self.wakeup.wake()

    async def _check_published_head(self, grant: LeaseGrant) -> LeaseGrant:
        """Read the published log head, until it succeeds; acquire the lease again if that shows a higher epoch."""
        while self.lease.grant is grant:
            try:
                fresh = await self.history.read_published(grant)
            except ClusterUnavailable as error:
                self.not_leading_reason = f"the published end of the log cannot be read: {error}"
                await asyncio.sleep(OUTSIDE_PAUSE_S)
            else:
                if fresh:
                    return grant
                grant = await self.lease.acquire()
                self.lease.activate()
                return grant
        return grant

    async def _record_lease(self, grant: LeaseGrant) -> None:
        facts: list[AnyEventData] = [
            LeaseAcquired(
                holder=self._identity.holder,
                address=self._identity.address,
                previous_holder=grant.previous_holder,
            )
        ]
        if self.history.unrecorded is not None:
            facts.append(self.history.unrecorded)
        drafts = [
            NewEvent(gang_uid=NIL_GANG, gang="", data=f, actor=self._identity.holder) for f in facts
        ]
        try:
            await self.append(drafts)
        except (NotLeading, StoreUnavailable) as error:
            log.warning("lease not recorded", extra={"error": str(error)})

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._identity.ttl_ms / 3000)
            grant, asked_ms = self.lease.grant, self._clock.monotonic_ms()
            if grant is None:
                return
            if self.role == "settling":
                continue
            try:
                await self._log.renew(grant)
                intact = await self._log_is_intact()
            except Fenced as error:
                if self.lease.grant is grant:  # not taken again meanwhile
                    self._lost(str(error))
                    return
            except StoreUnavailable as error:
                log.warning("lease not renewed", extra={"error": str(error)})
            else:
                if self.lease.grant is not grant:
                    continue
                if not intact:
                    self._lost(OLDER_COPY)
                    return
                self.lease.renew_from(asked_ms)

    async def _log_is_intact(self) -> bool:
        return self.role != "leading" or await self.history.intact()

    async def release_lease(self) -> None:
        """Release the lease for good, after the appends in flight; a follower can acquire it at once."""
        self.draining = True
        if self.role == "leading":
            self.role, self.not_leading_reason = "settling", "stopping"  # no new appends
        if self._flights:
            await asyncio.wait(
                {f.done for f in self._flights}, timeout=self._identity.ttl_ms / 1000
            )
        grant, state = self.lease.grant, self.committed
        if grant is None:
            return
        self._lost("stopping")
        try:
            await self._log.release(grant)
            await self._snapshots.save(state)
        except StoreUnavailable as error:
            log.warning("lease not released", extra={"error": str(error)})

    async def stop(self) -> None:
        """Release the lease and end the tasks beside `run`."""
        await self.release_lease()
        self.role, self.not_leading_reason = "stopped", "stopping"
        for task in (self._settling, self._announcing):
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Retrieve the exception of an append without a caller, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
