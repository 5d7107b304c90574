"""The ports of the store in memory, for tests that need no PostgreSQL; held to the same contract suites.

`FakeDatabase` is what replicas share, `FakeEventLog` what one of them has. Faults are ordered by name:
`log.unavailable = True` raises StoreUnavailable from now on, `log.lose_next_answer()` writes and then raises it,
`log.lose_next_append()` raises it and does not write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from uuid import uuid4

import msgspec

from extender.core.log.events import AnyEventData, GangObserved, RecordedEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
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
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, Position
from extender.ports.log_ports import (
    DatabaseUsage,
    DecisionInput,
    LeaseGrant,
    LeaseRecord,
    LogHead,
    LogMark,
    LogPage,
    Snapshot,
)
from extender.ports.query_ports import EventFilter, EventPage, GangIncarnation, PodPlacement
from extender.queries.log.event_filter import matches
from extender.store.log.event_codec import EMPTY_CHAIN, chain, encode_event, to_event
from extender.store.snapshot_table import KEPT, OLD_SNAPSHOTS_MAX, SNAPSHOT_SPACING

START = Position(0)
COPIED = (
    "rows", "ids", "versions", "epoch", "lease", "holder", "address", "renewed_us", "ttl_ms", "snapshots", "inputs",
    "projected",
)  # fmt: skip


class FakeDatabase:
    """What several replicas share.

    Args:
        now_us: The clock of the database, in microseconds; without one, recorded times may be ahead of it.
    """

    def __init__(self, now_us: Callable[[], int] | None = None) -> None:
        self.now_us = now_us or (lambda: time.monotonic_ns() // 1000)
        self.bounds_time = now_us is not None
        self.rows: list[tuple] = []  # (Row, hash)
        self.ids: set = set()
        self.versions: set = set()
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

    def copy(self) -> dict:
        """Take a copy, as a backup does; the lease row is in it."""
        return {name: copy(getattr(self, name)) for name in COPIED}

    def restore(self, backup: dict) -> None:
        """Put a copy in place of what there is."""
        for name, value in backup.items():
            setattr(self, name, copy(value))

    @property
    def expired(self) -> bool:
        return self.renewed_us is None or self.now_us() >= self.renewed_us + self.ttl_ms * 1000

    @property
    def head(self) -> LogHead:
        if not self.rows:
            return LogHead()
        row, digest = self.rows[-1]
        return LogHead(position=Position(row.position), chain=digest, at_us=row.at_us)


class FakeEventLog:
    """`EventLog` in memory.

    Args:
        database: Shared with the other replicas.
        page_events: Events per page.
    """

    def __init__(self, database: FakeDatabase | None = None, *, page_events: int = 5000) -> None:
        self.database = database or FakeDatabase()
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
        pass

    async def _answering(self) -> FakeDatabase:
        await asyncio.sleep(0)
        if self.unavailable:
            raise StoreUnavailable("the fake is set to be unavailable")
        return self.database

    async def take(self, *, holder: str, address: str, ttl_ms: int, above: int = 0) -> LeaseGrant:
        db = await self._answering()
        if db.holder != holder and not db.expired:
            raise LeaseHeld(f"the lease is held by {db.holder} at {db.address}")
        previous, before = db.holder, db.epoch
        db.epoch = max(db.epoch, above) + 1
        db.lease, db.holder, db.address = str(uuid4()), holder, address
        db.renewed_us, db.ttl_ms = db.now_us(), ttl_ms
        return LeaseGrant(
            epoch=Epoch(db.epoch), lease=db.lease, head=db.head, previous_holder=previous,
            previous_epoch=Epoch(before), timeline=db.timeline,
        )  # fmt: skip

    async def renew(self, grant: LeaseGrant) -> None:
        db = await self._answering()
        self._fence(grant)
        db.renewed_us = db.now_us()

    async def release(self, grant: LeaseGrant) -> None:
        db = await self._answering()
        if (grant.epoch, grant.lease) == (db.epoch, db.lease):
            db.renewed_us, db.lease = None, str(uuid4())

    async def lease(self) -> LeaseRecord | None:
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
        return (await self._answering()).now_us()

    async def usage(self) -> DatabaseUsage:
        db = await self._answering()
        return DatabaseUsage(bytes=0, replicas=(db.holder,) if db.holder else ())

    def _fence(self, grant: LeaseGrant) -> None:
        if (grant.epoch, grant.lease) != (self.database.epoch, self.database.lease):
            raise Fenced(f"epoch {grant.epoch} does not own the log any more")

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
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
            db = await self._answering()
            if grant.lease in self._spent:
                raise StoreUnavailable(
                    "the outcome of an earlier append is unknown; take the lease again"
                )
            lost = self._lost.pop(0) if self._lost else ""
            if lost == "append":
                raise StoreUnavailable("the fake lost the append")
            last = self._write(grant, rows)
            if lost == "answer":
                raise StoreUnavailable("the fake lost the answer")
        except StoreUnavailable:
            self._spent.add(grant.lease)
            raise
        async with db.appended:
            db.appended.notify_all()
        return last

    def _write(self, grant: LeaseGrant, rows: Sequence) -> bytes:
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
        db = await self._answering()
        if not 0 < mark.position <= len(db.rows):
            return mark.position == 0
        row, digest = db.rows[mark.position - 1]
        return mark.event_id in ("", str(row.event_id)) and mark.chain in (b"", digest)

    async def at(self, position: Position) -> LogHead | None:
        db = await self._answering()
        if not 0 < position <= len(db.rows):
            return LogHead() if position == 0 else None
        row, digest = db.rows[position - 1]
        return LogHead(position=position, chain=digest, at_us=row.at_us)

    async def find(self, event_ids: Sequence[str]) -> Mapping[str, Position]:
        db = await self._answering()
        wanted = set(event_ids)
        return {
            str(row.event_id): Position(row.position)
            for row, _ in db.rows
            if str(row.event_id) in wanted
        }

    async def head(self) -> LogHead:
        return (await self._answering()).head

    async def read(
        self, *, after: Position = START, until: Position | None = None
    ) -> AsyncIterator[LogPage]:
        db = await self._answering()
        if after > db.head.position:
            raise CorruptLog(f"position {after} is not in the log; part of its history is lost")
        end = db.head.position if until is None else min(until, db.head.position)
        while after < end:
            last = min(after + self._page_events, end)
            yield LogPage([to_event(row) for row, _ in db.rows[after:last]], db.rows[last - 1][1])
            after = Position(last)

    async def follow(self, *, after: Position) -> AsyncIterator[LogPage]:
        while True:
            async for page in self.read(after=after):
                after = page[-1].position
                yield page
            async with self.database.appended:
                if self.database.head.position == after:
                    await self.database.appended.wait()


class FakeSnapshots:
    """`Snapshots` in memory.

    Args:
        database: Shared with the other replicas.
        snapshot_spacing: Shortest stretch of the log for which one older checkpoint is kept.
        old_snapshots_max: Stretches at most.
    """

    def __init__(
        self,
        database: FakeDatabase | None = None,
        *,
        snapshot_spacing: int = SNAPSHOT_SPACING,
        old_snapshots_max: int = OLD_SNAPSHOTS_MAX,
    ) -> None:
        self.database = database or FakeDatabase()
        self._snapshot_spacing = snapshot_spacing
        self._old_snapshots_max = old_snapshots_max

    async def save(self, snapshot: Snapshot, *others: Snapshot) -> None:
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
        self.database.snapshots.clear()

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        chains = {row.position: digest for row, digest in self.database.rows}
        for key in sorted(self.database.snapshots, reverse=True):
            snapshot = self.database.snapshots[key]
            if until is not None and snapshot.position > until:
                continue
            if snapshot.codec == codec and chains.get(snapshot.position) == snapshot.chain:
                return snapshot
        return None


class FakeDecisionInputs:
    """`DecisionInputs` in memory."""

    def __init__(self, database: FakeDatabase | None = None) -> None:
        self.database = database or FakeDatabase()

    async def save(self, decision: DecisionInput) -> None:
        self.database.inputs.setdefault(decision.digest, decision)

    async def load(self, digest: str) -> DecisionInput | None:
        return self.database.inputs.get(digest)

    async def load_many(self, digests):
        return {
            name: self.database.inputs[name] for name in digests if name in self.database.inputs
        }


class FakeEventQueries:
    """`EventQueries` in memory."""

    def __init__(self, database: FakeDatabase | None = None) -> None:
        self.database = database or FakeDatabase()

    async def page(self, wanted: EventFilter) -> EventPage:
        def behind(event: RecordedEvent) -> bool:
            if not wanted.after:
                return True
            if wanted.newest_first:
                return event.position < wanted.after
            return event.position > wanted.after

        every = [to_event(row) for row, _ in self.database.rows]
        found = [event for event in every if behind(event) and matches(event, wanted)]
        if wanted.newest_first:
            found.reverse()
        limit = max(0, min(wanted.limit, 10_000))
        return EventPage(
            events=tuple(found[:limit]),
            head=self.database.head.position,
            more=bool(limit) and len(found) > limit,
        )

    async def events(self, wanted: EventFilter) -> Sequence[RecordedEvent]:
        return (await self.page(wanted)).events

    async def incarnations(
        self, gang: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        events = [to_event(row) for row, _ in self.database.rows]
        mine: dict[GangUid, list[RecordedEvent]] = {}
        for event in events:
            named = event.gang == gang if gang else event.gang_uid == uid
            if named and event.gang_uid != NIL_GANG:
                mine.setdefault(event.gang_uid, []).append(event)
        return tuple(
            GangIncarnation(
                uid=of,
                gang=found[0].gang,
                first_position=found[0].position,
                last_position=found[-1].position,
                first_us=found[0].at_us,
                last_us=found[-1].at_us,
                events=len(found),
            )
            for of, found in mine.items()
        )

    async def gangs_named(self, name: str) -> Sequence[str]:
        return sorted({row.gang for row, _ in self.database.rows if row.gang.endswith(f"/{name}")})

    async def position_at(self, at_us: int) -> Position:
        return Position(
            max((row.position for row, _ in self.database.rows if row.at_us <= at_us), default=0)
        )

    async def has_namespace(self, namespace: str) -> bool:
        return namespace != "" and any(
            row.gang.split("/")[0] == namespace for row, _ in self.database.rows
        )

    async def has_node(self, node: NodeName) -> bool:
        """Look at every state up to the projected position."""
        state = EMPTY
        for row, _ in self.database.rows[: self.database.projected]:
            state = fold(state, [to_event(row)])
            places = (*(r for g in state.gangs.values() for r in g.reservations.values()),
                      *(m for g in state.gangs.values() for m in g.bound.values()))  # fmt: skip
            if any(place.node == node for place in places):
                return True
        return False

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """Fold event by event up to the projected position."""
        state, found, open_ones = EMPTY, [], {}
        for row, _ in self.database.rows[: self.database.projected]:
            event = to_event(row)
            state = fold(state, [event])
            now = {
                (kind, one.uid): (root.gang, one.group, one.node)
                for root in state.gangs.values()
                for kind, members in (("reserved", root.reservations), ("bound", root.bound))
                for one in members.values()
                if one.pod == pod
            }
            for key in [key for key in open_ones if now.get(key) != open_ones[key][0]]:
                (gang, group, node), begin = open_ones.pop(key)
                found.append(
                    PodPlacement(
                        pod=pod, gang=gang, pod_group=group, node=node, kind=key[0],
                        from_position=begin.position, from_at_us=begin.at_us,
                        to_position=event.position, to_at_us=event.at_us,
                        end_type=type(event.data).__name__,
                        end_reason=getattr(event.data, "cause", getattr(event.data, "reason", None)),
                        by_gang=None,
                    )
                )  # fmt: skip
            open_ones |= {key: (place, event) for key, place in now.items() if key not in open_ones}
        for (kind, _), ((gang, group, node), begin) in open_ones.items():
            found.append(
                PodPlacement(
                    pod=pod, gang=gang, pod_group=group, node=node, kind=kind,
                    from_position=begin.position, from_at_us=begin.at_us,
                    to_position=None, to_at_us=None, end_type=None, end_reason=None, by_gang=None,
                )
            )  # fmt: skip
        return sorted(found, key=lambda one: -one.from_position)


class FakeIntervalProjection:
    """`IntervalProjection` in memory: how far it is, and nothing else."""

    def __init__(self, database: FakeDatabase | None = None) -> None:
        self.database = database or FakeDatabase()
        self.unavailable = False

    async def project(self, upto: Position, *, max_events: int) -> Position:
        done = await self.projected()
        end = min(upto, done + max_events, self.database.head.position)
        self.database.projected = max(done, end)
        return Position(self.database.projected)

    async def projected(self) -> Position:
        await asyncio.sleep(0)
        if self.unavailable:
            raise StoreUnavailable("the fake is set to be unavailable")
        return Position(self.database.projected)


class Script:
    """Makes events that continue a log: as a leader appends them, for tests of the store."""

    def __init__(self, grant: LeaseGrant) -> None:
        self.grant = grant
        self.position: int = grant.head.position
        self.at_us = grant.head.at_us
        self.versions: dict[str, int] = {}

    def next(
        self,
        data: AnyEventData | None = None,
        *,
        gang: str = "ns/root",
        uid: str = "",
        **changes: object,
    ) -> RecordedEvent:
        """Return the next event; each root of this script has versions from 1."""
        uid = uid or f"uid-of-{gang}-{self.grant.epoch}"
        self.position += 1
        self.at_us += 1
        self.versions[uid] = self.versions.get(uid, 0) + 1
        event = RecordedEvent(
            position=Position(self.position),
            event_id=str(uuid4()),
            epoch=self.grant.epoch,
            at_us=self.at_us,
            gang_uid=GangUid(uid),
            stream_version=self.versions[uid],
            gang=gang,
            actor="test",
            cause="",
            data=data or GangObserved(kind="PodGroup"),
        )
        return msgspec.structs.replace(event, **changes)

    def some(self, count: int, **given: object) -> list[RecordedEvent]:
        """Return the next events."""
        return [self.next(**given) for _ in range(count)]


assert len(EMPTY_CHAIN) == 32  # what Head() begins with as well
