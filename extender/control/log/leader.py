"""The leader: the only writer of the log, made of the lease loop, the append pipeline and the settlement.

The lease loop acquires, keeps and loses the lease (`lease_loop`). Under a lease, events go through the append pipeline
(`append_pipeline`). An append whose outcome is unknown is settled before anything else is written (`Settlement`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeAlias

from extender.control.log.append_pipeline import AppendPipeline
from extender.control.log.history_guard import OLDER_COPY
from extender.control.log.leader_role import LeaderRole, LeaseIdentity, SyncClock, keep_clock
from extender.control.log.lease_loop import LeaseLoop
from extender.core.log import events as ev
from extender.core.log.reservation_state import ReservationState
from extender.core.model.errors import ExtenderError, NotLeading, StoreUnavailable
from extender.core.model.ids import NIL_GANG
from extender.core.planner.plan_types import DecisionInput
from extender.ports.log_ports import Clock, DecisionInputs, EventLog, LeaseGrant, Snapshots
from extender.runtime.periodic import ObjectFaults

log = logging.getLogger(__name__)

AppendListener: TypeAlias = Callable[[Sequence[ev.RecordedEvent], ReservationState], None]


class Leader(LeaseLoop):
    """Appends events while this process holds the lease; knows the committed and the pending state in any role."""

    def __init__(
        self,
        event_log: EventLog,
        snapshots: Snapshots,
        clock: Clock,
        identity: LeaseIdentity,
        *,
        on_append: Callable[[Sequence[ev.RecordedEvent]], None] = lambda _: None,
        sync_clock: SyncClock = keep_clock,
    ) -> None:
        """Prepare; `run` starts.

        Args:
            sync_clock: Brings `clock` to the database's clock; called before each acquisition of the lease.
            on_append: Called with the events of each append of this process, once they are durable and folded.
        """
        super().__init__(event_log, snapshots, clock, identity, sync_clock)
        self._on_append = on_append
        self._append_listeners: list[AppendListener] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self.appends = AppendPipeline(
            event_log,
            clock,
            identity.ttl_ms / 1000,
            on_commit=self._on_commit,
            on_failure=lambda error: self.settlement.start(error),  # noqa: PLW0108 -- made below
            # the next acquisition loads the state again
            on_mismatch=lambda error: self.lose(str(error)),
        )
        self.settlement = Settlement(event_log, self.appends, self)

    @property
    def committed(self) -> ReservationState:
        """Return the committed state: the fold of every durable event that this process has read or written."""
        return self.appends.committed

    @property
    def pending_state(self) -> ReservationState:
        """Return the pending state: the committed state with the events in flight."""
        return self.appends.pending

    async def append(self, drafts: Sequence[ev.NewEvent]) -> tuple[ev.RecordedEvent, ...]:
        """Append drafts and wait until they are durable and part of the committed state.

        The drafts must have been decided on `pending_state` with no await in between.

        Raises:
            NotLeading: The lease is not held, or an unknown outcome is being settled.
            StoreUnavailable: Not written, or the outcome was not known in time; decide again.
        """
        return await self.append_nowait(drafts) if drafts else ()

    async def append_own(self, *data: ev.AnyEventData) -> tuple[ev.RecordedEvent, ...]:
        """Append events about no gang, in the name of this replica; raises as `append`."""
        actor = self._identity.holder
        return await self.append(
            [ev.NewEvent(gang_uid=NIL_GANG, gang="", data=each, actor=actor) for each in data]
        )

    def append_nowait(
        self, drafts: Sequence[ev.NewEvent], after: Callable[[], Awaitable[None]] | None = None
    ) -> Awaitable[tuple[ev.RecordedEvent, ...]]:
        """Fold drafts into `pending_state` now and start to append them.

        So the next decision can be made on them while the append is in flight.

        Args:
            after: Runs before the events are sent, to store what they refer to; if it fails, the append fails.

        Returns:
            The events, once they are durable; awaiting it raises NotLeading and StoreUnavailable like `append`.

        Raises:
            NotLeading: The lease is not held, or an unknown outcome is being settled.
        """
        if not self.may_record() or self.lease.grant is None:
            held = self.lease.grant is not None
            raise NotLeading(f"{self.role}: cannot append" if held else self.not_leading_reason)
        promises = ev.GangAdmitted | ev.GangExtended | ev.PreemptionPlanned | ev.MovesPlanned
        if self.recovery_reason and any(isinstance(d.data, promises) for d in drafts):
            raise NotLeading(self.recovery_reason)
        return self.appends.start(drafts, self.lease.grant, after)

    def _on_commit(
        self, events: Sequence[ev.RecordedEvent], chain: bytes, before: ReservationState
    ) -> None:
        self.history.observe_appended(events[-1], chain)
        with self._faults.alone("count of appended events"):
            self._on_append(events)
        for listener in self._append_listeners:
            with self._faults.alone("listener to appended events"):
                listener(events, before)
        self.wakeup.wake()

    async def record_lease(self, grant: LeaseGrant) -> None:
        """Append `LeaseAcquired`, and the loss of events that was found with this lease; a failure is logged."""
        events: list[ev.AnyEventData] = [
            ev.LeaseAcquired(
                holder=self._identity.holder,
                address=self._identity.address,
                previous_holder=grant.previous_holder,
            )
        ]
        if self.history.unrecorded is not None:
            events.append(self.history.unrecorded)
        try:
            await self.append_own(*events)
        except (NotLeading, StoreUnavailable) as error:
            log.warning("lease not recorded", extra={"error": str(error)})

    def replace_state(self, state: ReservationState) -> bool:
        """Replace the state by a fold of the log; return False, and do nothing, while appends are in flight."""
        if replaced := self.appends.replace(state):
            self.wakeup.wake()
        return replaced

    async def discard_snapshots(self) -> None:
        """Delete all snapshots, after a state that was not a fold of the log; later ones are made from the current state."""
        await self._snapshots.discard()

    def add_append_listener(self, listener: AppendListener) -> None:
        """Call `listener` with the events of each append of this process and the committed state before them."""
        self._append_listeners.append(listener)

    def add_lost_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time when the lease is lost, is released, or has expired by the clock of this process."""
        self._lost_listeners.append(listener)

    def lose(self, reason: str) -> None:
        """Stop leading: fail the appends in flight, let waiting calls be answered, and follow from now on."""
        log.warning("lease lost", extra={"reason": reason, "epoch": self.epoch})
        self._end_lease(reason)

    def _end_lease(self, reason: str) -> None:
        self.lease.grant = None
        self.follower.forget_lease()
        self.become("following", reason)
        self.settlement.stop()
        self.appends.fail(NotLeading, reason)
        self._notify_lost()

    def on_lease_expired(self) -> None:
        """Let waiting calls be answered: another process may lead now, even if the database cannot be reached from here."""
        log.warning("the lease has run out", extra={"epoch": self.epoch})
        self._notify_lost()
        self.wakeup.wake()

    def _notify_lost(self) -> None:
        for listener in self._lost_listeners:
            with self._faults.alone("loss of the lease"):
                listener()

    async def release_lease(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Release the lease for good, after the appends in flight; a follower can acquire it at once.

        Args:
            before: Runs while the lease is still held and nothing is appended any more; it must end soon.
        """
        self.draining = True
        if self.role == "leading":
            self.become("settling", "stopping")  # no new appends
        await self.appends.drain()
        if self.lease.grant is not None and before is not None:
            await before()
        grant, state = self.lease.grant, self.committed
        if grant is None:
            return
        log.info("releasing the lease", extra={"reason": "stopping", "epoch": self.epoch})
        self._end_lease("stopping")
        try:
            await self._log.release(grant)
            await self._snapshots.save(state)
        except StoreUnavailable as error:
            log.warning("lease not released", extra={"error": str(error)})

    async def stop(self) -> None:
        """Release the lease and end the tasks beside `run`."""
        await self.release_lease()
        self.become("stopped", "stopping")
        for task in self.settlement.tasks:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


_HAS_INPUT = (
    ev.GangAdmitted
    | ev.GangExtended
    | ev.GangUnschedulable
    | ev.PreemptionPlanned
    | ev.CapacityHeld
)


class AppendBatch:
    """Starts appends at the leader, each after its decision input, and waits for all of them."""

    def __init__(self, leader: Leader, inputs: DecisionInputs, clock: Clock) -> None:
        self._leader = leader
        self._inputs = inputs
        self._clock = clock
        self._appends: list[Awaitable[tuple[ev.RecordedEvent, ...]]] = []
        self.cpu_us_while_waiting = 0  # of other tasks, while this pass waited for the log
        self.committed = 0  # appends of this pass

    def begin(self) -> None:
        """Begin a pass."""
        self._appends, self.cpu_us_while_waiting, self.committed = [], 0, 0

    def append_nowait(
        self, drafts: Sequence[ev.NewEvent], encoded: DecisionInput | None = None
    ) -> ReservationState:
        """Fold drafts into the pending state now, and start to append them after their decision input.

        Returns:
            The pending state after that.
        """
        if not drafts:
            return self._leader.pending_state
        has_input = encoded and any(isinstance(d.data, _HAS_INPUT) for d in drafts)
        save = functools.partial(self._inputs.save, encoded) if encoded and has_input else None
        self._appends.append(self._leader.append_nowait(drafts, save))
        return self._leader.pending_state

    async def flush(self) -> None:
        """Wait until all appends of this pass have ended, then raise the first failure."""
        appends, self._appends = self._appends, []
        begun_us = self._clock.thread_cpu_us()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        self.cpu_us_while_waiting += self._clock.thread_cpu_us() - begun_us
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        self.committed += len(outcomes) - len(failures)
        if failures:
            raise failures[0]

    async def append(self, drafts: Sequence[ev.NewEvent]) -> None:
        """Append drafts and wait until they are durable."""
        begun_us = self._clock.thread_cpu_us()
        self.committed += bool(await self._leader.append(drafts))
        self.cpu_us_while_waiting += self._clock.thread_cpu_us() - begun_us


SETTLE_PAUSE_S = 0.05  # before the second attempt; doubled before each further one
SETTLE_PAUSE_S_MAX = 1.0


class Settlement:
    """Settles the appends in flight whose outcome is unknown, in a task of its own; at most one runs.

    The lease is acquired again, so that an old statement cannot commit later. Then the events are looked up by id: those
    in the log become part of the committed state, the others fail, and this process leads under the new epoch.
    """

    def __init__(self, event_log: EventLog, appends: AppendPipeline, leader: LeaderRole) -> None:
        self._log = event_log
        self._appends = appends
        self._leader = leader
        self._settling: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._faults: ObjectFaults[str] = ObjectFaults("log")

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that may still run: the settlement, and the record of its lease."""
        return [task for task in (self._settling, self._recording) if task is not None]

    def start(self, error: Exception) -> None:
        """Start to settle all appends in flight, unless that runs already."""
        if self._settling is not None and not self._settling.done():
            return
        log.warning(
            "append failed, settling",
            extra={"error": str(error), "in_flight": self._appends.in_flight},
        )
        self._leader.become("settling", str(error))
        self._settling = asyncio.create_task(self._settle(), name="settle appends")

    def stop(self) -> None:
        """End the settlement without an outcome, because the lease is lost; also from within the settlement."""
        if self._settling is not None and self._settling is not asyncio.current_task():
            self._settling.cancel()
            self._settling = None

    async def _settle(self) -> None:
        try:
            grant, recorded, chain = await self._look_up()
            self._appends.settle(recorded)
        except ExtenderError as error:
            self._leader.lose(str(error))
            return
        except Exception as error:  # noqa: BLE001 -- logged and counted by `failed`
            self._faults.failed("settlement", error)
            self._leader.lose(f"a defect ended the settlement of appends: {error!r}")
            return
        position = self._appends.committed.position
        if grant.head.position != position:
            self._leader.lose(
                f"the log ends at position {grant.head.position}, the state in memory at {position}"
            )
            return
        self._leader.history.confirm(grant.head, chain)
        self._leader.become("leading", "")
        # Its own task: if this append fails too, a new settlement must be able to start.
        self._recording = asyncio.create_task(self._record(grant), name="record lease")

    async def _record(self, grant: LeaseGrant) -> None:
        with self._faults.alone("lease event"):
            await self._leader.record_lease(grant)

    async def _look_up(self) -> tuple[LeaseGrant, Container[str], bytes]:
        """Acquire the lease and look the events up, until the log answers.

        Returns:
            The grant, the ids found, and the hash at the head of the log, computed from the last event known here.
        """
        pause_s = SETTLE_PAUSE_S
        while True:
            try:
                grant = await self._leader.lease.acquire()
                recorded = await self._log.find(self._appends.event_ids())
                if not await self._leader.history.intact():
                    raise NotLeading(OLDER_COPY)
                chain = await self._leader.history.verified_chain(grant.head)
            except StoreUnavailable as error:
                self._leader.explain(str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, SETTLE_PAUSE_S_MAX)
            else:
                self._leader.lease.activate()
                return grant, recorded, chain
