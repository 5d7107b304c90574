"""The append pipeline: add the metadata of each event, fold into the pending state, send in order, fold into the committed state.

It keeps two states. `committed`, the committed state, is durable, and all answers are given from it. `pending`, the
pending state, includes appends in flight, and new decisions are made on it. When an append fails, the pending state is
reset to the committed state, callers get the error, and the loops decide again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence

import msgspec

from extender.core.log.events import NewEvent, RecordedEvent
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.log.state_projector import fold
from extender.core.model.errors import CorruptLog, ExtenderError, StoreUnavailable
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import Clock, EventLog, LeaseGrant
from extender.runtime.periodic import ObjectFaults


def stamp_events(
    drafts: Sequence[NewEvent], state: ReservationState, epoch: Epoch, clock: Clock
) -> tuple[RecordedEvent, ...]:
    """Return the events that continue `state`; their times never decrease."""
    position, at_us = state.position, state.at_us
    versions: dict[str, int] = {}
    events = []
    for draft in drafts:
        position = Position(position + 1)
        at_us = max(at_us, clock.recording_us())
        version = versions.get(draft.gang_uid, state.stream_versions.get(draft.gang_uid, 0)) + 1
        versions[draft.gang_uid] = version
        events.append(
            RecordedEvent(
                position=position,
                event_id=clock.new_id(),
                epoch=epoch,
                at_us=at_us,
                stream_version=version,
                **msgspec.structs.asdict(draft),
            )
        )
    return tuple(events)


log = logging.getLogger(__name__)


class _InFlightAppend(msgspec.Struct, eq=False):
    """An append whose outcome is not known yet."""

    events: tuple[RecordedEvent, ...]
    base: ReservationState  # the pending state before `events`
    folded: ReservationState  # the same with `events`
    done: asyncio.Future[None]
    after: Callable[[], Awaitable[None]] | None  # runs before the events are sent
    # True: the next append may be sent; False: it would not continue the log.
    sent: asyncio.Future[bool]


class AppendPipeline:
    """The committed state, the pending state, and the appends between them."""

    def __init__(
        self,
        event_log: EventLog,
        clock: Clock,
        answer_within_s: float,
        *,
        on_commit: Callable[[Sequence[RecordedEvent], bytes, ReservationState], None],
        on_failure: Callable[[ExtenderError], None],
        on_mismatch: Callable[[CorruptLog], None],
    ) -> None:
        """Prepare, with empty states and nothing in flight.

        Args:
            answer_within_s: Seconds that a caller waits for its append.
            on_commit: Called with the events of an append, the hash of the last one and the committed state before them, after
                they have become part of the committed state. The hash is empty when the answer to the append was lost.
            on_failure: Called when an append failed, written or not; `settle` or `fail` must follow.
            on_mismatch: Called when a durable append does not continue the committed state; `fail` must follow.
        """
        self._log = event_log
        self._clock = clock
        self._answer_within_s = answer_within_s
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._on_mismatch = on_mismatch
        self._in_flight: dict[_InFlightAppend, None] = {}  # in the order of their start
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: ObjectFaults[str] = ObjectFaults("log", clock.monotonic_ms)
        self.committed: ReservationState = EMPTY
        self.pending: ReservationState = EMPTY

    @property
    def in_flight(self) -> int:
        """Return the number of appends whose outcome is not known yet."""
        return len(self._in_flight)

    def event_ids(self) -> list[str]:
        """Return the ids of all events in flight."""
        return [event.event_id for append in self._in_flight for event in append.events]

    def start(
        self,
        drafts: Sequence[NewEvent],
        grant: LeaseGrant,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> Awaitable[tuple[RecordedEvent, ...]]:
        """Fold drafts into the pending state now, and start to append them after the appends before them.

        Args:
            after: Runs before the events are sent; if it fails, the append fails.

        Returns:
            The events, once they are durable; awaiting it raises the error of `fail` or `settle`, and
            StoreUnavailable when there was no answer in time.
        """
        base = self.pending
        events = stamp_events(drafts, base, grant.epoch, self._clock)
        self.pending = fold(base, events)
        loop = asyncio.get_running_loop()
        append = _InFlightAppend(
            events, base, self.pending, loop.create_future(), after, loop.create_future()
        )
        append.done.add_done_callback(_retrieve_exception)  # its caller may have been cancelled
        before = next(reversed(self._in_flight)).sent if self._in_flight else None
        self._in_flight[append] = None
        # Its own task: a cancelled caller must not leave an append unsettled.
        task = asyncio.create_task(self._send(grant, append, before), name="append")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self._until_done(append)

    async def _until_done(self, append: _InFlightAppend) -> tuple[RecordedEvent, ...]:
        try:
            async with asyncio.timeout(self._answer_within_s):
                await asyncio.shield(append.done)
        except TimeoutError:  # the append is settled later, and the caller does not wait for that
            msg = "the log has not answered for as long as a lease lasts; the outcome is unknown"
            raise StoreUnavailable(msg) from None
        return append.events

    async def _send(
        self, grant: LeaseGrant, append: _InFlightAppend, before: asyncio.Future[bool] | None
    ) -> None:
        try:
            if append.after is not None:
                await append.after()
            if (before is not None and not await before) or append not in self._in_flight:
                return  # settled together with the append before it
            append.sent.set_result(True)
            chain = await self._log.append(grant, append.events)
        except ExtenderError as error:
            if append in self._in_flight:  # otherwise it was settled or failed meanwhile
                self._on_failure(error)
        except Exception as error:  # noqa: BLE001 -- logged and counted by `failed`
            self._faults.failed(_text_of(append), error)
            if append in self._in_flight:
                self._on_failure(StoreUnavailable("a defect kept the append from being sent"))
        else:
            try:
                self._commit(append, chain)
            except CorruptLog as error:
                log.exception("memory does not continue the log")
                self._on_mismatch(error)
            except Exception as error:  # noqa: BLE001 -- logged and counted by `failed`
                self._faults.failed(_text_of(append), error)  # and what is durable is loaded again
                self._on_mismatch(CorruptLog(f"a defect kept events from the state: {error!r}"))
        finally:
            if not append.sent.done():
                append.sent.set_result(False)

    def _commit(self, append: _InFlightAppend, chain: bytes) -> None:
        """Make a durable append part of the committed state; appends end in the order in which they began.

        Raises:
            CorruptLog: The events do not continue the committed state; the append stays in flight.
        """
        if append not in self._in_flight:
            return  # settled meanwhile
        # Folded when it was started: that result holds if it was started on this very object. Otherwise the events are
        # folded again, which checks that they continue the committed state.
        before = self.committed
        if append.base is before:
            self.committed = append.folded
        else:
            self.committed = fold(before, append.events)
        del self._in_flight[append]
        if not append.done.done():
            append.done.set_result(None)
        self._on_commit(append.events, chain, before)

    def settle(self, recorded: Container[str]) -> None:
        """Commit the appends in flight that are in the log, and fail the others with StoreUnavailable.

        Args:
            recorded: The ids of `event_ids` that are in the log.

        Raises:
            CorruptLog: An append that was found does not continue the committed state.
        """
        for append in list(self._in_flight):
            if all(event.event_id in recorded for event in append.events):
                self._commit(append, b"")
        self.fail(StoreUnavailable, "the append did not happen; decide again")

    def fail(self, error: type[ExtenderError], text: str) -> None:
        """Fail all appends in flight, and reset the pending state to the committed state."""
        failed, self._in_flight = self._in_flight, {}
        self.pending = self.committed
        for append in failed:
            if not append.done.done():
                append.done.set_exception(error(text))

    async def drain(self) -> None:
        """Wait until the appends that are in flight now have ended, at most as long as their callers wait."""
        if self._in_flight:
            await asyncio.wait({a.done for a in self._in_flight}, timeout=self._answer_within_s)

    def load(self, state: ReservationState) -> None:
        """Set both states to a fold of the log."""
        self.committed = self.pending = state

    def replace(self, state: ReservationState) -> bool:
        """Set both states to a fold of the log at the same position; return False while appends are in flight."""
        if self._in_flight or state.position != self.committed.position:
            return False
        self.load(state)
        return True


def _text_of(append: _InFlightAppend) -> str:
    first = append.events[0]
    return f"{type(first.data).__name__} of {first.gang or 'no gang'}"


def _retrieve_exception(done: asyncio.Future[None]) -> None:
    """Retrieve the exception of an append without a caller, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()
