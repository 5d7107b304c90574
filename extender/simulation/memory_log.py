"""The log and what lies beside it, in memory: held to the same contract suites as the adapters of PostgreSQL.

`MemoryDatabase` is what replicas share, `MemoryEventLog` what one of them has. Faults are ordered by name:
`log.unavailable = True` raises StoreUnavailable from now on, `log.lose_next_answer()` writes and then raises it,
`log.lose_next_append()` raises it and does not write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, Final
from uuid import UUID

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import (
    ClockAhead,
    CorruptLog,
    DuplicateEvent,
    Fenced,
    HeadMoved,
    InvariantBroken,
    LeaseHeld,
    StoreUnavailable,
)
from extender.core.model.ids import Epoch, Position
from extender.core.planner.plan_types import DecisionInput
from extender.ports.log_ports import (
    START,
    DatabaseUsage,
    LeaseGrant,
    LeaseRecord,
    LogHead,
    LogMark,
    LogPage,
    Snapshot,
)
from extender.runtime.system_clock import SystemClock
from extender.store.log.appender import SPENT
from extender.store.log.event_codec import Row, chain, encode_event, to_event
from extender.store.snapshot_table import KEPT, OLD_SNAPSHOTS_MAX, SNAPSHOT_SPACING

_RANDOM_IDS: Final = SystemClock().new_id
COPIED: Final = (
    "rows", "ids", "versions", "epoch", "lease", "holder", "address", "renewed_us", "ttl_ms", "snapshots", "inputs",
    "projected",
)  # fmt: skip


class MemoryDatabase:
    """What several replicas share.

    Args:
        now_us: The clock of the database, in microseconds; without one, recorded times may be ahead of it.
        new_id: Returns a fresh id for a lease.
    """

    def __init__(
        self, now_us: Callable[[], int] | None = None, new_id: Callable[[], str] = _RANDOM_IDS
    ) -> None:
        self.now_us = now_us or (lambda: time.monotonic_ns() // 1000)
        self.new_id = new_id
        self.bounds_time = now_us is not None
        self.rows: list[tuple[Row, bytes]] = []  # (Row, hash)
        self.ids: set[UUID] = set()
        self.versions: set[tuple[str, int]] = set()
        self.epoch = 0
        self.timeline = "00000001"
        self.lease = ""
        self.holder = ""
        self.address = ""
        self.renewed_us: int | None = None
        self.ttl_ms = 0
        self.snapshots: dict[tuple[int, str], Snapshot] = {}
        self.inputs: dict[str, DecisionInput] = {}
        self.projected = 0
        self.appended = asyncio.Condition()

    def copy(self) -> dict[str, Any]:
        """Take a copy, as a backup does; the lease row is in it."""
        return {name: copy(getattr(self, name)) for name in COPIED}

    def restore(self, backup: dict[str, Any]) -> None:
        """Put a copy in place of what there is."""
        for name, value in backup.items():
            setattr(self, name, copy(value))

    @property
    def expired(self) -> bool:
        """Return whether the lease is free."""
        return self.renewed_us is None or self.now_us() >= self.renewed_us + self.ttl_ms * 1000

    @property
    def head(self) -> LogHead:
        """Return the end of the log."""
        if not self.rows:
            return LogHead()
        row, digest = self.rows[-1]
        return LogHead(position=Position(row.position), chain=digest, at_us=row.at_us)


class MemoryEventLog:
    """`EventLog` in memory."""

    def __init__(self, database: MemoryDatabase | None = None, *, page_events: int = 5000) -> None:
        self.database = database or MemoryDatabase()
        self.unavailable = False
        self._page_events = page_events
        self._lost: list[str] = []
        self._spent: set[str] = set()

    def lose_next_answer(self) -> None:
        """Let the next append be written and its answer get lost."""
        self._lost.append("answer")

    def lose_next_append(self) -> None:
        """Let the next append get lost on its way."""
        self._lost.append("append")

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _answering(self) -> MemoryDatabase:
        await asyncio.sleep(0)
        if self.unavailable:
            raise StoreUnavailable("the log in memory is set to be unavailable")
        return self.database

    async def take(self, *, holder: str, address: str, ttl_ms: int, above: int = 0) -> LeaseGrant:
        """See the port."""
        db = await self._answering()
        if db.holder != holder and not db.expired:
            raise LeaseHeld(f"the lease is held by {db.holder} at {db.address}")
        previous, before = db.holder, db.epoch
        db.epoch = max(db.epoch, above) + 1
        db.lease, db.holder, db.address = db.new_id(), holder, address
        db.renewed_us, db.ttl_ms = db.now_us(), ttl_ms
        return LeaseGrant(
            epoch=Epoch(db.epoch), lease=db.lease, head=db.head, previous_holder=previous,
            previous_epoch=Epoch(before), timeline=db.timeline,
        )  # fmt: skip

    async def renew(self, grant: LeaseGrant) -> None:
        """See the port."""
        db = await self._answering()
        self._fence(grant)
        db.renewed_us = db.now_us()

    async def release(self, grant: LeaseGrant) -> None:
        """See the port."""
        db = await self._answering()
        if (grant.epoch, grant.lease) == (db.epoch, db.lease):
            db.renewed_us, db.lease = None, db.new_id()

    async def lease(self) -> LeaseRecord | None:
        """See the port."""
        db = await self._answering()
        if db.epoch == 0:
            return None
        return LeaseRecord(
            epoch=Epoch(db.epoch),
            holder=db.holder,
            address=db.address,
            renewed_us=db.renewed_us or 0,
            ttl_ms=db.ttl_ms,
            expired=db.expired,
        )

    async def time_us(self) -> int:
        """See the port."""
        return (await self._answering()).now_us()

    async def usage(self) -> DatabaseUsage:
        """See the port."""
        db = await self._answering()
        return DatabaseUsage(bytes=0, replicas=(db.holder,) if db.holder else ())

    def _fence(self, grant: LeaseGrant) -> None:
        if (grant.epoch, grant.lease) != (self.database.epoch, self.database.lease):
            raise Fenced(f"epoch {grant.epoch} does not own the log any more")

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        """See the port."""
        if not events:
            return self.database.head.chain
        first, before = events[0].position, 0
        for offset, event in enumerate(events):
            if (
                event.position != first + offset
                or event.epoch != grant.epoch
                or event.at_us < before
            ):
                raise InvariantBroken(f"append: event at position {event.position} does not fit")
            before = event.at_us
        newest_us = max(self.database.now_us() + 2_000_000, self.database.head.at_us)
        if self.database.bounds_time and before > newest_us:
            raise ClockAhead(f"append: event at position {events[-1].position} is ahead")
        rows = [encode_event(event)[0] for event in events]
        try:
            last = await self._written(grant, rows)
        except StoreUnavailable:
            self._spent.add(grant.lease)
            raise
        async with self.database.appended:
            self.database.appended.notify_all()
        return last

    async def _written(self, grant: LeaseGrant, rows: Sequence[Row]) -> bytes:
        await self._answering()
        if grant.lease in self._spent:
            raise StoreUnavailable(SPENT)
        lost = self._lost.pop(0) if self._lost else ""
        if lost == "append":
            raise StoreUnavailable("the append was set to be lost")
        last = self._write(grant, rows)
        if lost == "answer":
            raise StoreUnavailable("the answer was set to be lost")
        return last

    def _write(self, grant: LeaseGrant, rows: Sequence[Row]) -> bytes:
        db = self.database
        self._fence(grant)
        if rows[0].position != db.head.position + 1:
            raise HeadMoved(f"the log ends at position {db.head.position}")
        if rows[0].at_us < db.head.at_us:
            raise InvariantBroken("recorded time falls")
        ids, versions = set(), set()
        for row in rows:
            if row.event_id in db.ids or row.event_id in ids:
                raise DuplicateEvent(f"{row.event_id} is in the log already")
            version = (row.gang_uid, row.stream_version)
            if version in db.versions or version in versions:
                raise InvariantBroken(
                    f"version {row.stream_version} of {row.gang_uid} is in the log already"
                )
            ids.add(row.event_id)
            versions.add(version)
        db.ids |= ids
        db.versions |= versions
        digest = db.head.chain
        for row in rows:
            digest = chain(digest, row)
            db.rows.append((row, digest))
        return digest

    async def holds(self, mark: LogMark) -> bool:
        """See the port."""
        db = await self._answering()
        if not 0 < mark.position <= len(db.rows):
            return mark.position == 0
        row, digest = db.rows[mark.position - 1]
        return mark.event_id in ("", str(row.event_id)) and mark.chain in (b"", digest)

    async def at(self, position: Position) -> LogHead | None:
        """See the port."""
        db = await self._answering()
        if not 0 < position <= len(db.rows):
            return LogHead() if position == 0 else None
        row, digest = db.rows[position - 1]
        return LogHead(position=position, chain=digest, at_us=row.at_us)

    async def find(self, event_ids: Sequence[str]) -> Mapping[str, Position]:
        """See the port."""
        db = await self._answering()
        looked_up = set(event_ids)
        return {
            str(row.event_id): Position(row.position)
            for row, _ in db.rows
            if str(row.event_id) in looked_up
        }

    async def head(self) -> LogHead:
        """Return the end of the log."""
        return (await self._answering()).head

    async def read(
        self, *, after: Position = START, until: Position | None = None
    ) -> AsyncIterator[LogPage]:
        """See the port."""
        db = await self._answering()
        if after > db.head.position:
            raise CorruptLog(f"position {after} is not in the log; part of its history is lost")
        end = db.head.position if until is None else min(until, db.head.position)
        while after < end:
            last = min(after + self._page_events, end)
            yield LogPage([to_event(row) for row, _ in db.rows[after:last]], db.rows[last - 1][1])
            after = Position(last)

    async def follow(self, *, after: Position) -> AsyncIterator[LogPage]:
        """See the port."""
        while True:
            async for page in self.read(after=after):
                after = page[-1].position
                yield page
            async with self.database.appended:
                if self.database.head.position == after:
                    await self.database.appended.wait()


class MemorySnapshots:
    """`Snapshots` in memory.

    Args:
        snapshot_spacing: Shortest stretch of the log for which one older checkpoint is kept.
        old_snapshots_max: Stretches at most.
    """

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        snapshot_spacing: int = SNAPSHOT_SPACING,
        old_snapshots_max: int = OLD_SNAPSHOTS_MAX,
    ) -> None:
        self.database = database or MemoryDatabase()
        self._snapshot_spacing = snapshot_spacing
        self._old_snapshots_max = old_snapshots_max

    async def save(self, snapshot: Snapshot, *others: Snapshot) -> None:
        """See the port."""
        saved = self.database.snapshots
        for each in (snapshot, *others):
            saved[each.position, each.codec] = each
        stretch = self._snapshot_spacing
        while snapshot.position > stretch * self._old_snapshots_max:
            stretch *= 2
        old_snapshots_max: dict[int, int] = {}
        for position, codec in sorted(saved):
            if codec == snapshot.codec:
                old_snapshots_max.setdefault(position // stretch, position)
        for key in list(saved):
            newer = sum(codec == key[1] and position > key[0] for position, codec in saved)
            if newer >= KEPT and (
                key[1] != snapshot.codec or key[0] not in old_snapshots_max.values()
            ):
                del saved[key]

    async def delete_all(self) -> None:
        """See the port."""
        self.database.snapshots.clear()

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        """See the port."""
        chains = {row.position: digest for row, digest in self.database.rows}
        for key in sorted(self.database.snapshots, reverse=True):
            snapshot = self.database.snapshots[key]
            if until is not None and snapshot.position > until:
                continue
            if snapshot.codec == codec and chains.get(snapshot.position) == snapshot.chain:
                return snapshot
        return None


class MemoryDecisionInputs:
    """`DecisionInputs` in memory."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()

    async def save(self, decision: DecisionInput) -> None:
        """See the port."""
        self.database.inputs.setdefault(decision.digest, decision)

    async def load(self, digest: str) -> DecisionInput | None:
        """See the port."""
        return self.database.inputs.get(digest)

    async def load_many(self, digests: Collection[str]) -> Mapping[str, DecisionInput]:
        """See the port."""
        stored = self.database.inputs
        return {digest: stored[digest] for digest in digests if digest in stored}
