"""Ports to the event log and what lies beside it: lease, snapshots, decision inputs, read models, clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from extender.core.log.anchors import Anchor
from extender.core.log.events import RecordedEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.model.ids import Epoch, Position
from extender.core.planner.plan_types import DecisionInput


class Clock(Protocol):
    """The only source of time and of unique ids."""

    def now_us(self) -> int:
        """Return the time in microseconds since the Unix epoch; may step back, unless it is a `DatabaseClock`."""

    def recording_us(self) -> int:
        """Return the time for events recorded now, in microseconds since the Unix epoch: not ahead of the database's clock."""

    def monotonic_ms(self) -> int:
        """Return the time of a clock that never steps back, in milliseconds since an arbitrary start."""

    def thread_cpu_us(self) -> int:
        """Return the CPU time that the calling thread has used, in microseconds since an arbitrary start."""

    def new_id(self) -> str:
        """Return a fresh UUID (version 7) as text."""


class StateSource(Protocol):
    """The reservation state of this process, for queries, which must not depend on its writer."""

    @property
    def committed(self) -> ReservationState:
        """Return the fold of every durable event that this process has read or written."""


START = Position(0)  # before the first event


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log."""

    position: Position = Position(0)  # 0: the log is empty
    chain: bytes = bytes(32)  # hash of the last event; 32 zero bytes when empty
    at_us: int = 0


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write, as granted by the database."""

    epoch: Epoch
    lease: str  # random UUID: an epoch alone can be handed out twice by a promoted lagging standby
    head: LogHead
    previous_holder: str = ""
    # epoch in the lease row before; lower than one that we held: the row was replaced
    previous_epoch: Epoch = Epoch(0)
    timeline: str = ""  # WAL timeline of the database; changes when a standby is promoted


class LogMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A position that was in the log, with the hash or the id of the event there."""

    position: Position
    epoch: Epoch  # of the leader that recorded the mark
    chain: bytes = b""  # hash of the event at `position`; empty when not known
    event_id: str = ""  # id of that event; empty when not known


class LogPage(list[RecordedEvent]):
    """Consecutive events of the log, whose hashes were verified.

    Args:
        chain: Hash of the last one; of the position before them if there is none.
    """

    def __init__(self, events: Iterable[RecordedEvent], chain: bytes) -> None:
        super().__init__(events)
        self.chain = chain


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The lease row."""

    epoch: Epoch
    holder: str
    address: str  # where the holder answers HTTP
    renewed_us: int  # database time
    ttl_ms: int
    expired: bool  # by the clock of the database, which all replicas share


class DatabaseUsage(msgspec.Struct, frozen=True):
    """The size of the database of the log, and who uses it."""

    bytes: int = 0
    replicas: tuple[str, ...] = ()  # identities of the replicas that are connected to it


class LeaseRenewal(Protocol):
    """Renews the lease on a connection of its own; all calls come from one event loop, which may be of another thread."""

    async def open(self) -> None:
        """Connect if there is no connection."""

    async def renew(self, grant: LeaseGrant) -> None:
        """Prolong the lease, as `EventLog.renew` does.

        Raises:
            Fenced: Another process acquired the lease.
        """

    async def close(self) -> None:
        """Close the connection."""


class EventLog(Protocol):
    """The append-only log and the lease that guards it. One writer; gap-free positions from 1."""

    async def take(self, *, holder: str, address: str, ttl_ms: int, above: int = 0) -> LeaseGrant:
        """Acquire the lease if it is free, expired, or held by the same `holder`.

        The new epoch is higher than the one before, and than `above`: the highest epoch known from any source,
        because a restored older database would grant old epochs again.

        Raises:
            LeaseHeld: The lease of another holder has not expired.
        """

    async def renew(self, grant: LeaseGrant) -> None:
        """Prolong the lease.

        Raises:
            Fenced: Another process acquired the lease; stop leading.
            StoreUnavailable: Unknown outcome; the lease expires locally unless a later call succeeds.
        """

    async def release(self, grant: LeaseGrant) -> None:
        """Release the lease at a clean stop, so that the next holder need not wait. Never raises Fenced."""

    async def lease(self) -> LeaseRecord | None:
        """Return the lease row; None if the lease was never held."""

    async def time_us(self) -> int:
        """Return the time of the database's clock, in microseconds since the Unix epoch; it may step."""

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        """Write events at the end of the log, all or none, durable on return; return the hash of the last one.

        The hash was computed by this process, on that of the grant; it was not read back.

        `events` continue the log without a gap and carry `grant.epoch`; concurrent calls are batched
        in call order. After an unknown outcome the caller acquires a new grant and looks the events up by
        id (see `find`).

        Raises:
            Fenced: Another epoch or lease owns the log. Nothing was written; stop leading.
            HeadMoved: The log does not end where these events begin. Nothing was written.
            DuplicateEvent: An event id is in the log already. Nothing was written.
            ClockAhead: A recorded time is more than 2 s ahead of the database's clock. Nothing was written.
            InvariantBroken: The events are not valid in any log (gap inside the call, falling time). Nothing was written.
            StoreUnavailable: Unknown outcome for all events of the call.
        """

    async def find(self, event_ids: Sequence[str]) -> Mapping[str, Position]:
        """Return the positions of events by id; without those that are not in the log."""

    async def head(self) -> LogHead:
        """Return the head of the log."""

    async def at(self, position: Position) -> LogHead | None:
        """Return the head of the log as it was at a position; None if the log is shorter."""

    async def holds(self, mark: LogMark) -> bool:
        """Return whether the log matches a mark: the hash and the id of the event at its position."""

    def read(
        self, *, after: Position = START, until: Position | None = None
    ) -> AsyncIterator[LogPage]:
        """Read pages of events in order, verifying the hash chain on the way.

        Raises:
            CorruptLog: A gap, a broken hash chain, or an event type that this version does not know.
        """

    def follow(self, *, after: Position) -> AsyncIterator[LogPage]:
        """Read pages of events without end: existing ones, then new ones (notification and polling)."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A saved fold of the log up to a position."""

    position: Position
    chain: bytes  # hash of the event at `position`: a snapshot of another log is not used
    codec: str
    body: bytes


class Snapshots(Protocol):
    """Saved folds: the newest few for a start, and older ones at even distances for historical queries."""

    async def save(self, snapshot: Snapshot, *others: Snapshot) -> None:
        """Store snapshots of one position; delete older ones except the newest three of each codec.

        Of the codec of the first argument, one snapshot for each section of the log is kept, too. The length of a
        section grows with the log, so that the number of sections is limited.
        """

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        """Return the newest snapshot of a codec that is intact and belongs to this log, or None.

        Args:
            until: Highest position of the snapshot; None: no limit.
        """

    async def delete_all(self) -> None:
        """Delete the snapshots of all codecs, where one may not be a fold of the log."""


class DecisionInputs(Protocol):
    """Inputs of decisions, stored by digest beside the log."""

    async def save(self, decision: DecisionInput) -> None:
        """Store an input; storing the same input again changes nothing."""

    async def load(self, digest: str) -> DecisionInput | None:
        """Return the input with a digest, byte for byte as saved; None if there is none."""

    async def load_many(self, digests: Collection[str]) -> Mapping[str, DecisionInput]:
        """Return the inputs that are stored, by digest; a part that several have is read once, and is one object."""


class NotifiedUpTo(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where the receiver of notifications has been notified."""

    position: Position  # of events
    waited_us: int  # of gangs that wait: since when the last one has waited that was notified


class NotificationCursor(Protocol):
    """Where `NotifiedUpTo` is kept, for the next leader and after a restart."""

    async def read(self) -> NotifiedUpTo | None:
        """Return what was kept last; None: notifications were never switched on."""

    async def save(self, reached: NotifiedUpTo) -> None:
        """Keep it; neither of its values goes back."""


class IntervalProjection(Protocol):
    """The interval tables, made from the log: nodes of members, and states of roots, over time."""

    async def project(self, upto: Position, *, max_events: int) -> Position:
        """Project at most `max_events` further events, up to `upto`; return the projected position.

        Raises:
            CorruptLog: An event type that the functions of the database do not know.
        """


class PublishedAnchors(Protocol):
    """Where anchors are published: outside the database, so that an older or a rewritten database is detected."""

    async def published(self) -> tuple[Anchor, ...]:
        """Return the anchors in the order of their publication; empty if there is none."""

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        """Replace the published anchors; the last one is the end of the log."""
