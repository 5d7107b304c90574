"""The other ports of the store in memory, beside those of `extender.simulation.memory_log`, for tests that need no PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import msgspec

from extender.core.log.events import AnyEventData, GangObserved, RecordedEvent
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.errors import (
    StoreUnavailable,
)
from extender.core.model.ids import NIL_GANG, GangUid, NodeName, Position
from extender.ports.log_ports import (
    LeaseGrant,
)
from extender.ports.query_ports import EventFilter, EventPage, GangIncarnation, PodPlacement
from extender.queries.log.event_filter import matches
from extender.simulation.memory_log import MemoryDatabase as FakeDatabase
from extender.simulation.memory_log import MemoryDecisionInputs as FakeDecisionInputs
from extender.simulation.memory_log import MemoryEventLog as FakeEventLog
from extender.simulation.memory_log import MemorySnapshots as FakeSnapshots
from extender.store.log.event_codec import EMPTY_CHAIN, to_event

__all__ = ["FakeDatabase", "FakeDecisionInputs", "FakeEventLog", "FakeSnapshots"]


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
