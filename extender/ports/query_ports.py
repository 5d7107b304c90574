"""Ports of read-only questions to the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from extender.core.log.events import RecordedEvent
from extender.core.model.errors import BadInput
from extender.core.model.ids import GangUid, NodeName, Position

POSITION_END: Final = 2**63 - 1  # the positions that a log can have are below it


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events a query selects; empty fields do not restrict it."""

    gang: str = ""  # namespace/name
    gang_uid: GangUid | None = None
    namespace: str = ""
    # only events of these namespaces, and those of `shared_types`; None: of all
    namespaces: frozenset[str] | None = None
    shared_types: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    node: str = ""  # events that name this node in any field
    victims: frozenset[str] | None = None  # events by which one of these UIDs is evicted
    plan: str = ""  # id of a plan: the event that decided it
    after: Position = Position(0)
    limit: int = 1000
    newest_first: bool = False

    def __post_init__(self) -> None:
        """Check what PostgreSQL compares with.

        Raises:
            BadInput: `after` is beyond every log, or a text has a NUL character.
        """
        if self.after >= POSITION_END:
            raise BadInput(f"after: {self.after} is beyond every log; use one below {POSITION_END}")
        for field in ("gang", "gang_uid", "namespace", "node", "plan"):
            if "\0" in (getattr(self, field) or ""):
                text = f"{field}: {getattr(self, field)!r} contains a NUL character"
                raise BadInput(f"{text}, which no name has; leave it out")


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the result of a query."""

    events: tuple[RecordedEvent, ...]
    head: Position  # head of the log for this page: the query covers everything up to here, unless `more`
    more: bool  # there may be more: query again after the last event


class GangIncarnation(msgspec.Struct, frozen=True, kw_only=True):
    """One root group that had a name, identified by its UID."""

    uid: GangUid
    gang: str  # namespace/name
    first_position: Position
    last_position: Position
    first_us: int
    last_us: int
    events: int


class PodPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A time during which a member had a reservation, ran on a node, or left its capacity for its replacement."""

    pod: str  # namespace/name
    gang: str  # namespace/name
    pod_group: str
    node: str
    kind: str  # reserved | bound | replacement
    from_position: Position
    from_at_us: int
    to_position: Position | None  # None: it lasts
    to_at_us: int | None
    end_type: str | None  # event that ended it
    end_reason: str | None  # of that event; of `MemberTerminated` the cause
    by_gang: str | None  # namespace/name of the preemptor that it was a victim of


class EventQueries(Protocol):
    """Read-only queries over the log; never on the connection of the scheduling path."""

    async def page(self, event_filter: EventFilter) -> EventPage:
        """Return events that match, in order of position (or newest first), and the head for which this holds.

        Ends at `limit` or at a size in bytes, whichever comes first.
        """

    async def events(self, event_filter: EventFilter) -> Sequence[RecordedEvent]:
        """Return the events that match, in order of position (or newest first); at most `limit`."""

    async def incarnations(
        self, root: str, *, uid: GangUid | None = None
    ) -> Sequence[GangIncarnation]:
        """Return the root groups that had this `namespace/name`, oldest first; without a name, the one with the UID."""

    async def gangs_named(self, name: str) -> Sequence[str]:
        """Return `namespace/name` of the root groups, and pods that preempted, of this name in any namespace, sorted."""

    async def position_at(self, at_us: int) -> Position:
        """Return the position of the last event recorded up to a time; 0 if there is none."""

    async def has_namespace(self, namespace: str) -> bool:
        """Return whether the log has an event of any root in this namespace."""

    async def has_node(self, node: NodeName) -> bool:
        """Return whether any member had a reservation or ran on this node, up to the projected position."""

    async def placements(self, pod: str) -> Sequence[PodPlacement]:
        """Return where a pod, by namespace/name, was reserved or ran, up to the projected position, newest first."""
