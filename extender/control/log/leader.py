"""The lease and the one writer: take, replay, append, and know at every moment whether we may act.

Two states stand side by side: `acknowledged` is durable and the only one that answers are given
from; `speculative` includes what is on its way to the log, and new decisions are made on it. When
an append fails, the speculative state falls back to the acknowledged one, callers get the fault, and
the loops that decided decide again.

An append whose outcome is unknown is settled before anything else is written: the lease is taken
again (so that no ghost of the old statement can commit later), the events are looked up by id, and
those that are there are folded in.

A log that is not the one we knew (`history`) is folded as it is, and nothing is promised from it
before the admission loop has compared it with the cluster: `compared`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from extender.control.log.event_metadata import stamped
from extender.control.log.follower import Follower
from extender.control.log.history_guard import HistoryGuard
from extender.control.log.lease import Lease, LeaseIdentity
from extender.core.log.events import (
    AnyEventData,
    GangAdmitted,
    GangExtended,
    LeaseTaken,
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
from extender.core.model.ids import NIL_ROOT, Epoch
from extender.ports.protocols import Clock, EventLog, LeaseGrant, Snapshots
from extender.runtime.wakeup import Wakeup
from extender.snapshots.snapshot_writer import SnapshotWriter

log = logging.getLogger(__name__)

OUTSIDE_PAUSE_S = 0.5
LOOK_EVERY_S = 0.2  # a lease that was given back, or has run out, is taken within this time
OLDER_COPY = "the log is an older copy of the one we wrote"

Role = Literal["starting", "following", "leading", "settling", "stopped"]


class _Flight(msgspec.Struct, eq=False):
    """An append on its way."""

    events: tuple[RecordedEvent, ...]
    done: asyncio.Future[None]
    after: Callable[[], Awaitable[None]] | None  # must be done before this is sent
    sent: asyncio.Future[
        bool
    ]  # True: the next one may be sent; False: it would not continue the log


class Leader:
    """Holds the lease, stamps facts, appends them, folds them."""

    def __init__(
        self, event_log: EventLog, checkpoints: Snapshots, clock: Clock, identity: LeaseIdentity
    ) -> None:
        self._log = event_log
        self._clock = clock
        self._me = identity
        self._flights: list[_Flight] = []
        self._appends: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None] | asyncio.Task[Literal[True]]] = set()
        self._settling: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._saving = SnapshotWriter(
            event_log,
            checkpoints,
            clock,
            events=identity.checkpoint_events,
            ms=identity.checkpoint_ms,
        )
        self._deposed = asyncio.Event()
        self.wakeup = Wakeup()  # moves when the acknowledged state or what we may do changes
        self.role: Role = "starting"
        self.why_not = "starting"
        self.acknowledged: ReservationState = EMPTY
        self.speculative: ReservationState = EMPTY
        self.history = HistoryGuard(event_log)
        self.lease = Lease(event_log, clock, identity, self.history)
        self.following = Follower(event_log, checkpoints, self.history, clock)
        self.retiring = (
            False  # whether this process is about to end: it does not take the lease again
        )
        self.comparing = ""  # why nothing is promised although we lead, or the empty string
        self.on_append: Callable[[Sequence[RecordedEvent]], None] | None = None
        self.on_lost: Callable[[], None] | None = None

    # -- what others ask ---------------------------------------------------------------------

    def may_act(self) -> bool:
        """Say whether side effects are allowed now: the lease is ours for certain, and our memory is the log."""
        return self.role in ("leading", "settling") and self.lease.holds() and not self.comparing

    async def until_may_act(self) -> None:
        """Wait until side effects are allowed; the lease is timed, so there is nothing to be told by."""
        while not self.may_act():  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0.1)

    def may_record(self) -> bool:
        """Say whether facts can be appended now."""
        return self.role == "leading" and self.lease.holds()

    def leads(self) -> bool:
        """Say whether this process is the one that answers kube-scheduler, ready or not."""
        return self.lease.grant is not None and self.role in ("leading", "settling")

    def doubt(self) -> str:
        """Say why this process must not answer from its state, or the empty string."""
        if not self.leads():
            return f"not leading: {self.why_not}"
        return "" if self.lease.holds() else "the lease has run out"

    def compared(self, takes: int) -> None:
        """Hear that the log, as it was found at a take, was compared with the cluster: life goes on.

        Args:
            takes: The number of takes when the comparison began.
        """
        if self.comparing and takes == self.takes and self.history.untold is None:
            log.info(
                "compared with the cluster after a loss of history", extra={"epoch": self.epoch}
            )
            self.comparing = ""

    @property
    def epoch(self) -> Epoch:
        """Give the epoch of our grant, 0 without one."""
        return self.lease.epoch

    @property
    def takes(self) -> int:
        """Count how often the lease was taken; what was decided under an earlier take is decided anew."""
        return self.lease.takes

    # -- writing -----------------------------------------------------------------------------

    async def record(self, drafts: Sequence[NewEvent]) -> tuple[RecordedEvent, ...]:
        """Stamp facts, append them, fold them; durable and acknowledged on return.

        The facts must have been decided on `speculative` with no await in between.

        Raises:
            NotLeading: We do not hold the lease, or an unknown outcome is being settled.
            StoreUnavailable: Not written (settled), or we could not find out in time; decide again.
        """
        if not drafts:
            return ()
        return await self.record_soon(drafts)

    def record_soon(
        self, drafts: Sequence[NewEvent], after: Callable[[], Awaitable[None]] | None = None
    ) -> Awaitable[tuple[RecordedEvent, ...]]:
        """Stamp facts and fold them into `speculative` at once; what is given waits as `record` does.

        So the next decision can be made on them while they are on their way to the log.

        Args:
            drafts: At least one.
            after: Stores what has to be there before the facts; its failure is theirs.

        Raises:
            NotLeading: As `record`.
        """
        if not self.may_record() or self.lease.grant is None:
            raise NotLeading(
                self.why_not if self.lease.grant is None else f"{self.role}: cannot append"
            )
        promises = GangAdmitted | GangExtended | PreemptionPlanned
        if self.comparing and any(isinstance(d.fact, promises) for d in drafts):
            raise NotLeading(self.comparing)
        events = stamped(drafts, self.speculative, self.lease.grant.epoch, self._clock)
        self.speculative = fold(self.speculative, events)
        loop = asyncio.get_running_loop()
        flight = _Flight(events, loop.create_future(), after, loop.create_future())
        flight.done.add_done_callback(_heard)  # its caller may have given up before
        before = self._flights[-1].sent if self._flights else None
        self._flights.append(flight)
        # A task of its own: a caller that is cancelled must not leave its append unsettled.
        task = asyncio.create_task(self._append(self.lease.grant, flight, before), name="append")
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)
        return self._until_done(flight)

    async def _until_done(self, flight: _Flight) -> tuple[RecordedEvent, ...]:
        try:
            async with asyncio.timeout(self._me.ttl_ms / 1000):
                await asyncio.shield(flight.done)
        except TimeoutError:  # it is settled all the same, but callers have callers who wait
            msg = "the log has not answered for as long as a lease lasts; the outcome is unknown"
            raise StoreUnavailable(msg) from None
        return flight.events

    async def _append(
        self, grant: LeaseGrant, flight: _Flight, before: asyncio.Future[bool] | None
    ) -> None:
        try:
            if flight.after is not None:
                await flight.after()
            if (before is not None and not await before) or flight not in self._flights:
                return  # settled, or about to be, with the one before it
            flight.sent.set_result(True)
            await self._log.append(grant, flight.events)
        except ExtenderError as error:  # known not written or unknown: settling finds out which
            self._settle(error)
        else:
            try:
                self._acknowledge(flight)
            except CorruptLog as error:  # memory is not what the log says: fold it anew
                log.exception("memory does not continue the log")
                self._flights.append(flight)  # it was taken off; its caller must hear as well
                self._lost(str(error))
        finally:
            if not flight.sent.done():
                flight.sent.set_result(False)

    def remember(self, state: ReservationState) -> None:
        """Replace memory by a fold of the log; refused silently while appends are on their way.

        The next look finds the difference again, so nothing is lost by waiting.
        """
        if not self._flights and state.position == self.acknowledged.position:
            self.acknowledged = self.speculative = state
            self.wakeup.wake()

    def _acknowledge(self, flight: _Flight) -> None:
        """Fold an append that is durable; flights end in the order in which they began."""
        if flight not in self._flights:
            return  # settled meanwhile
        self._flights.remove(flight)
        self.acknowledged = fold(self.acknowledged, flight.events)
        self.history.acknowledged(flight.events[-1])
        if not flight.done.done():
            flight.done.set_result(None)
        if self.on_append is not None:
            self.on_append(flight.events)
        self.wakeup.wake()

    def _settle(self, error: Exception) -> None:
        """Begin to settle unknown outcomes, once for all appends on their way."""
        if self._settling is None or self._settling.done():
            log.warning(
                "append failed, settling",
                extra={"error": str(error), "flights": len(self._flights)},
            )
            self.role, self.why_not = "settling", str(error)
            self._settling = asyncio.create_task(self._settled(), name="settle appends")

    async def _settled(self) -> None:
        pause_s = 0.05
        while True:
            try:
                grant = await self.lease.take()
                ids = [e.event_id for f in self._flights for e in f.events]
                found = await self._log.find(ids)
                if not await self.history.intact():
                    self._lost(OLDER_COPY)
                    return
                self.lease.begin()
                break
            except (LeaseHeld, Fenced) as error:
                self._lost(str(error))
                return
            except StoreUnavailable as error:
                self.why_not = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
        self._resume(grant, set(found))

    def _resume(self, grant: LeaseGrant, found: set[str]) -> None:
        """Fold what is in the log, fail the rest, and go on under the new epoch."""
        for flight in list(self._flights):
            if all(e.event_id in found for e in flight.events):
                self._acknowledge(flight)
        failed, self._flights = self._flights, []
        self.speculative = self.acknowledged
        for flight in failed:
            if not flight.done.done():
                flight.done.set_exception(
                    StoreUnavailable("the append did not happen; decided anew")
                )
        if grant.head.position != self.acknowledged.position:
            self._lost(
                f"the log ends at position {grant.head.position}, our memory at {self.acknowledged.position}"
            )
            return
        self.role, self.why_not = "leading", ""
        # in a task of its own: when this append fails too, it must find no settlement under way
        self._announcing = asyncio.create_task(self._record_lease(grant), name="record lease")

    def _lost(self, why: str) -> None:
        log.warning("lease lost", extra={"reason": why, "epoch": self.epoch})
        self.lease.grant = None
        self.following.deposed()
        self._deposed.set()
        self.role, self.why_not = "following", why
        flights, self._flights = self._flights, []
        self.speculative = self.acknowledged
        for flight in flights:
            if not flight.done.done():
                flight.done.set_exception(NotLeading(why))
        if self.on_lost is not None:
            self.on_lost()
        self.wakeup.wake()

    # -- the lease ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until the lease can be had, then lead until it is lost; for ever.

        Raises:
            CorruptLog: The log cannot be folded; the process must stop.
        """
        while True:
            grant = await self._until_taken()
            try:
                await self._lead(grant)
            except (StoreUnavailable, LeaseHeld) as error:
                self._lost(str(error))
                await asyncio.sleep(min(self._pause_s, 0.5))

    @property
    def _pause_s(self) -> float:
        return min(self._me.ttl_ms / 5000, LOOK_EVERY_S)

    async def _until_taken(self) -> LeaseGrant:
        """Follow the log until the lease can be had."""
        following = asyncio.create_task(self.following.run(self._followed), name="follow the log")
        first = asyncio.create_task(self.following.loaded.wait(), name="first fold")
        try:
            if not self.following.loaded.is_set():  # for the first fold, not for the whole pause
                await asyncio.wait(
                    {following, first},
                    timeout=self._pause_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            else:
                await asyncio.wait({following}, timeout=self._pause_s)
            while (grant := await self._taken()) is None:
                await asyncio.wait({following}, timeout=self._pause_s)
                if following.done():
                    following.result()
            return grant
        finally:  # it folds no further; that its connection takes a while to close is no part of a take-over
            for task in (following, first):
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None] | asyncio.Task[Literal[True]]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.info("following ended", extra={"error": str(fault)})

    def _followed(self, state: ReservationState) -> None:
        self.acknowledged = self.speculative = state
        self.wakeup.wake()

    async def _taken(self) -> LeaseGrant | None:
        """Take the lease if nobody has it and this process is fit to lead; else say why not."""
        try:
            held = await self.following.look()
            if held is not None and not held.expired and held.holder != self._me.holder:
                self._follow(f"the lease is held by {held.holder} at {held.address}")
            elif self.retiring:
                self._follow("stopping")
            elif self.following.fault is not None:
                raise self.following.fault
            elif self.following.behind():  # how far changes all the time; errors must not
                self.why_not = "behind the log, see /readyz"
            else:
                grant = await self.lease.take()
                self.lease.begin()
                return grant
        except LeaseHeld as error:  # somebody was faster
            self._follow(str(error))
        except StoreUnavailable as error:
            self.why_not = str(error)
        return None

    def _follow(self, why: str) -> None:
        if self.why_not != why:
            log.info("following", extra={"reason": why})
        self.role, self.why_not = "following", why

    async def _lead(self, grant: LeaseGrant) -> None:
        started_ms = self._clock.monotonic_ms()
        self._deposed.clear()
        deposed = asyncio.create_task(self._deposed.wait(), name="deposed")
        renewing = asyncio.create_task(self._renew_for_ever(), name="renew lease")
        watching = asyncio.create_task(
            self.lease.watch(self._lapsed, self._pause_s), name="watch the lease"
        )
        try:
            grant = await self._looked_outside(grant)
            state = await self.following.until(grant.head)
            truncated = await self.history.compare(grant, state)
            if self.lease.grant is not grant:
                return  # lost meanwhile; what was found is kept
            if truncated is not None:
                self.comparing = f"history lost: {truncated.text}; comparing with the cluster"
            self.acknowledged = self.speculative = state
            self.role, self.why_not = "leading", ""
            await self._record_lease(grant)
            log.info(
                "leading",
                extra={
                    "epoch": grant.epoch,
                    "position": state.position,
                    "roots": len(state.roots),
                    "replay_ms": self._clock.monotonic_ms() - started_ms,
                },
            )
            while self.epoch and not renewing.done():
                await asyncio.wait(
                    {renewing, deposed}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                if self.epoch:
                    await self._saving.save_if_due(self.acknowledged)
            if renewing.done():
                renewing.result()
        finally:
            for task in (renewing, watching, deposed):
                task.cancel()

    def _lapsed(self) -> None:
        """Answer who waits here: somebody else may lead by now, also when the database cannot be asked from here."""
        log.warning("the lease has run out", extra={"epoch": self.epoch})
        if self.on_lost is not None:
            self.on_lost()
        self.wakeup.wake()

    async def _looked_outside(self, grant: LeaseGrant) -> LeaseGrant:
        """Read what was published of the log, for as long as it takes; a higher epoch may be needed then."""
        while self.lease.grant is grant:
            try:
                fresh = await self.history.look_outside(grant)
            except ClusterUnavailable as error:
                self.why_not = f"the published end of the log cannot be read: {error}"
                await asyncio.sleep(OUTSIDE_PAUSE_S)
            else:
                if fresh:
                    return grant
                grant = await self.lease.take()
                self.lease.begin()
                return grant
        return grant

    async def _record_lease(self, grant: LeaseGrant) -> None:
        facts: list[AnyEventData] = [
            LeaseTaken(
                holder=self._me.holder, address=self._me.address, previous=grant.previous_holder
            )
        ]
        if self.history.untold is not None:
            facts.append(self.history.untold)
        drafts = [
            NewEvent(root_uid=NIL_ROOT, root="", fact=f, actor=self._me.holder) for f in facts
        ]
        try:
            await self.record(drafts)
        except (NotLeading, StoreUnavailable) as error:
            log.warning("lease not recorded", extra={"error": str(error)})

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._me.ttl_ms / 3000)
            grant, asked_ms = self.lease.grant, self._clock.monotonic_ms()
            if grant is None:
                return
            if self.role == "settling":
                continue
            try:
                await self._log.renew(grant)
                intact = await self._still_our_log()
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
                self.lease.prolong(asked_ms)

    async def _still_our_log(self) -> bool:
        return self.role != "leading" or await self.history.intact()

    async def give_back(self) -> None:
        """Give the lease back, for good: whoever follows takes it at once. Appends on their way are waited for."""
        self.retiring = True
        if self.role == "leading":
            self.role, self.why_not = "settling", "stopping"  # nothing new is recorded
        if self._flights:
            await asyncio.wait({f.done for f in self._flights}, timeout=self._me.ttl_ms / 1000)
        grant, state = self.lease.grant, self.acknowledged
        if grant is None:
            return
        self._lost("stopping")
        try:
            await self._log.release(grant)
            await self._saving.save(state)
        except StoreUnavailable as error:
            log.warning("lease not released", extra={"error": str(error)})

    async def stop(self) -> None:
        """Give the lease back and end what runs beside `run`."""
        await self.give_back()
        self.role, self.why_not = "stopped", "stopping"
        for task in (self._settling, self._announcing):
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


def _heard(done: asyncio.Future[None]) -> None:
    """Take note of a fault that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
