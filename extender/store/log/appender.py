"""Append events to the log: one connection with one statement in flight; calls that arrive meanwhile form the next batch.

Owns the append connection and its queue. Must not decide what to do after a failure; the leader does. Notes:
there is no delay to fill a batch; batches form only while a statement is in flight. When a statement gets no
answer, its grant is *spent*: every queued or later call under it gets `StoreUnavailable` until the lease is
acquired again. Otherwise a later call could succeed although an earlier one of unknown outcome had failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import ExtenderError, InvariantBroken, StoreUnavailable
from extender.core.model.ids import Position
from extender.ports.log_ports import LeaseGrant
from extender.store.connections import ENSURE_DURABLE, ConnectionPool
from extender.store.log.event_codec import EMPTY_CHAIN, Row, encode_event, link

logger = logging.getLogger(__name__)

# A separate function for a single event: arrays of length one would take a quarter of the time of an append.
APPEND_ONE = (
    "SELECT gx.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
)
APPEND = "SELECT gx.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
OVERDUE = "appending: no answer in time"
SPENT = "the outcome of an earlier append is unknown; take the lease again"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and timeouts of appends."""

    batch_events_max: int = 512
    batch_bytes_max: int = 1 << 20  # of payload; a single larger call is written alone
    queue_events_max: int = 4096  # beyond it callers wait, first come, first served
    connect_timeout_s: float = 5.0
    command_timeout_s: float = 5.0  # above any healthy commit, below the lease
    call_timeout_s: float = 30.0  # upper limit of the time that a caller waits


class _Call:
    """One queued call of `append`."""

    __slots__ = ("chain", "done", "grant", "images", "rows", "size")

    def __init__(
        self, grant: LeaseGrant, events: Sequence[RecordedEvent], done: asyncio.Future[bytes]
    ) -> None:
        self.grant = grant
        encoded = [encode_event(event) for event in events]
        self.rows = [row for row, _ in encoded]
        self.images = [row_image for _, row_image in encoded]
        self.size = sum(map(len, self.images))
        self.done = done
        self.chain = EMPTY_CHAIN  # hash of its last event, once it was sent

    def settle(self, fault: ExtenderError | None) -> None:
        if self.done.done():  # the caller gave up
            return
        if fault is None:
            self.done.set_result(self.chain)
        else:
            self.done.set_exception(fault)


class Appender:
    """The queue and its writer task; see the module."""

    def __init__(self, url: str, limits: Limits, name: str) -> None:
        self._limits = limits
        self.connection = ConnectionPool(
            url,
            lambda connection: connection.execute(ENSURE_DURABLE),
            name=name,
            single=True,
            # Otherwise the server plans every call again, because it prefers custom plans for short arrays.
            settings={"plan_cache_mode": "force_generic_plan"},
            connect_timeout_s=limits.connect_timeout_s,
            command_timeout_s=limits.command_timeout_s,
        )
        self._gate = asyncio.Lock()  # fair: keeps the order of calls when the queue is full
        self._calls: deque[_Call] = deque()
        self._queued_events = 0
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._lease = ""  # the lease of `_tail_chain`
        self._tail_chain = EMPTY_CHAIN
        self._spent_leases: deque[str] = deque(maxlen=16)
        self._closed = False

    # Calls

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        """Queue events and wait for their commit; see `EventLog.append`."""
        if not events:
            return self._tail_chain if grant.lease == self._lease else grant.head.chain
        _check(grant, events)
        loop = asyncio.get_running_loop()
        call = _Call(grant, events, loop.create_future())
        deadline = loop.time() + self._limits.call_timeout_s
        if self._gate.locked() or self._queued_events >= self._limits.queue_events_max:
            await self._wait_for_queue(grant, deadline)
        self._enqueue(call)
        overdue = loop.call_at(deadline, self._overdue, call)
        try:
            return await call.done
        finally:
            overdue.cancel()

    async def _wait_for_queue(self, grant: LeaseGrant, deadline: float) -> None:
        """Wait until the queue is no longer full, first come, first served."""
        try:
            async with asyncio.timeout_at(deadline), self._gate:
                while self._queued_events >= self._limits.queue_events_max:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            self._spend(grant.lease)
            raise StoreUnavailable(OVERDUE) from None

    def _overdue(self, call: _Call) -> None:
        self._spend(call.grant.lease)
        call.settle(StoreUnavailable(OVERDUE))

    def _enqueue(self, call: _Call) -> None:
        if self._closed:
            raise StoreUnavailable("the log is closed")
        if call.grant.lease in self._spent_leases:
            raise StoreUnavailable(SPENT)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="append-to-log")
        self._calls.append(call)
        self._queued_events += len(call.rows)
        self._arrived.set()

    # The writer

    async def _write(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            try:
                await self._settle(batch)
            except BaseException as error:
                # Cancellation (close) or a defect of this class: no caller may wait forever.
                fault = StoreUnavailable(f"appending: {type(error).__name__}: {error}")
                self._fail(batch, fault)
                if not isinstance(error, Exception):
                    raise
                logger.exception("writer failed")

    def _next_batch(self) -> list[_Call]:
        """Remove from the queue calls of consecutive positions under one grant, up to the limits; return them."""
        batch: list[_Call] = []
        events = size = 0
        while self._calls:
            call = self._calls[0]
            if batch and (
                events + len(call.rows) > self._limits.batch_events_max
                or size + call.size > self._limits.batch_bytes_max
                or call.grant.lease != batch[0].grant.lease
                or call.rows[0].position != batch[-1].rows[-1].position + 1
            ):
                break
            self._calls.popleft()
            self._queued_events -= len(call.rows)
            if call.done.done():  # cancelled before it was sent; its successor begins a new batch
                if batch:
                    break
                continue
            batch.append(call)
            events += len(call.rows)
            size += call.size
        self._drained.set()
        return batch

    async def _settle(self, batch: list[_Call]) -> None:
        fault = await self._send(batch)
        # Nothing was written by a batch that was refused. Each call is sent alone, so that it gets its own result.
        alone = len(batch) > 1 and fault is not None and not isinstance(fault, StoreUnavailable)
        for number, call in enumerate(batch):
            if alone:
                fault = await self._send([call])
            if isinstance(fault, StoreUnavailable):
                self._fail(batch[number:], fault)
                return
            call.settle(fault)

    async def _send(self, batch: list[_Call]) -> ExtenderError | None:
        """Write a batch in one statement; return the fault, or None."""
        grant = batch[0].grant
        if grant.lease in self._spent_leases:
            return StoreUnavailable(SPENT)
        if grant.lease != self._lease:
            self._lease = grant.lease
            self._tail_chain = grant.head.chain
        rows = [row for call in batch for row in call.rows]
        previous = head = self._tail_chain
        hashes = []
        for call in batch:
            for row_image in call.images:
                previous = link(previous, row_image)
                hashes.append(previous)
            call.chain = previous
        if len(rows) == 1:
            statement, given = APPEND_ONE, (*_values(rows[0]), previous)
        else:
            statement, given = APPEND, (*_columns(rows), hashes)
        try:
            async with self.connection.use("appending") as connection:
                await connection.fetchval(
                    statement, grant.epoch, grant.lease, rows[0].position, head, *given
                )
        except ExtenderError as fault:
            return fault
        self._tail_chain = previous
        return None

    # Failure and end

    def _fail(self, batch: list[_Call], fault: ExtenderError) -> None:
        """Settle the batch, and all queued calls under its grant, with `StoreUnavailable`: the outcome is unknown."""
        lease = batch[0].grant.lease
        self._spend(lease)
        behind = [call for call in self._calls if call.grant.lease == lease]
        self._calls = deque(call for call in self._calls if call.grant.lease != lease)
        self._queued_events = sum(len(call.rows) for call in self._calls)
        self._drained.set()
        for call in (*batch, *behind):
            call.settle(StoreUnavailable(str(fault)))

    def _spend(self, lease: str) -> None:
        if lease not in self._spent_leases:
            self._spent_leases.append(lease)

    async def close(self) -> None:
        """Stop writing; waiting callers get `StoreUnavailable`."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
            self._writer = None
        while self._calls:
            self._calls.popleft().settle(StoreUnavailable("the log is closed"))
        await self.connection.close()


def _values(row: Row) -> tuple[object, ...]:
    """Return a row as the arguments of `gx.append_one` after the first four."""
    _, event_id, _, *rest, payload = row
    return (event_id, *rest, payload.decode())


def _columns(rows: Sequence[Row]) -> list[list[object]]:
    """Return rows as the array arguments of `gx.append` after the first four."""
    return [list(column) for column in zip(*map(_values, rows), strict=True)]


def _check(grant: LeaseGrant, events: Sequence[RecordedEvent]) -> None:
    """Raise InvariantBroken for events that the log would refuse, before they can fail a whole batch."""
    position: Position = events[0].position
    before = 0
    for event in events:
        if event.position != position:
            raise InvariantBroken(f"append: position {event.position} follows {position - 1}")
        if event.epoch != grant.epoch:
            raise InvariantBroken(
                f"append: event of epoch {event.epoch} under a grant of epoch {grant.epoch}"
            )
        if event.at_us < before:
            raise InvariantBroken(f"append: recorded time falls at position {event.position}")
        position = Position(position + 1)
        before = event.at_us
