"""Return the reservation state at a time or position of the past, by folding the log up to it.

The fold begins at the nearest snapshot, or at a state that was requested shortly before, if that is nearer. It uses
connections of its own. One query is folded at a time, and the event loop runs between the pages of the log.
Note: recorded times never decrease along the log, even if the clock did, so a time always means the same position.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from extender.core.log.events import EventData, GangAdmitted, GangExtended, NodeTopologyChanged
from extender.core.log.reservation_state import ReservationState
from extender.core.log.visible_state import visible_state
from extender.core.model.errors import BadInput, NotFound
from extender.core.model.ids import Position
from extender.core.model.message_formatting import did_you_mean, parse_time, rfc3339
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.ports.log_ports import START, EventLog, LogHead, Snapshots
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.event_filter import visible_queries
from extender.queries.log.gang_history import check_names
from extender.queries.state.state_dto import Scope, StateDifference, StateReport
from extender.queries.state.state_report import build_state_report, compare, topology_of
from extender.snapshots.state_loader import fold_from, gc_paused, load_historical_state

KEPT = 2  # states in memory; a difference needs two. They may be large
KEPT_FOR_S = 60.0
NEAR_EVENTS = 5_000  # a snapshot is not much nearer, and would have to be read
DIGITS_MAX = 18
FIRST = Position(1)
LABELLED_MAX = 200  # newest events with labels of nodes that are searched for a domain
_WITH_TOPOLOGY: Final = ("GangAdmitted", "GangExtended", "NodeTopologyChanged")


class PointInTime(msgspec.Struct, frozen=True, kw_only=True):
    """A position of the log that was requested."""

    requested: str  # the time or position in the request; empty: the end of the log
    position: Position
    time: str  # of the event at that position, RFC 3339
    hash: str  # of the log up to there, hex; equal hashes mean equal logs


class LogEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log when the query was answered."""

    position: Position
    time: str


class StateAt(StateReport, frozen=True, kw_only=True, gc=False):
    """A state of the past, or a part of it."""

    as_of: PointInTime
    log: LogEnd
    scope: Scope


class StateDiff(StateDifference, frozen=True, kw_only=True, gc=False):
    """What changed between two points in time; `from` is the earlier one, whichever was named first."""

    begin: PointInTime = msgspec.field(name="from")
    end: PointInTime = msgspec.field(name="to")
    log: LogEnd
    scope: Scope


class HistoricalState:
    """Answers queries about states of the past; `event_log`: the log to read; not the instance that the leader appends with."""

    def __init__(self, event_log: EventLog, snapshots: Snapshots, reader: EventQueries) -> None:
        self._log = event_log
        self._snapshots = snapshots
        self._reader = reader
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[Position, tuple[bytes, ReservationState]] = OrderedDict()
        self._forgetting: asyncio.TimerHandle | None = None

    async def state(
        self, at: str, scope: Scope, *, exists: bool = False, readers: Visibility = EVERYTHING
    ) -> StateAt:
        """Return the state at a time or position.

        Args:
            at: Time (RFC 3339 with offset) or position; empty: the end of the log.
            exists: Whether the node or namespace is known to exist, so that an empty answer is not an error.

        Raises:
            NotFound: The log has no event about the node or the namespace, or no node of the domain.
        """
        end = await self._end()
        moment = await self._moment(at, "at", end)
        with gc_paused():
            state = await self.folded(moment)
            pictured = await asyncio.to_thread(build_state_report, state, scope, readers)
        if not (exists or pictured.gangs or pictured.preemptions):
            await self._check_in_log(scope, readers, state)
        fields = msgspec.structs.asdict(pictured)
        return StateAt(as_of=moment, log=_log_end(end), scope=scope, **fields)

    async def state_at(
        self, at: str, readers: Visibility = EVERYTHING
    ) -> tuple[PointInTime, ReservationState]:
        """Return the whole state at a time or position, for reading only; `at`: time (RFC 3339 with offset) or position; empty: the end of the log."""
        moment = await self._moment(at, "at", await self._end())
        with gc_paused():
            state = await self.folded(moment)
            return moment, await asyncio.to_thread(visible_state, state, readers)

    async def difference(
        self, at: str, other: str, scope: Scope, readers: Visibility = EVERYTHING
    ) -> StateDiff:
        """Return what changed between two points in time, each named as for `state`.

        Raises:
            NotFound: The log has no event about the node or the namespace, or no node of the domain.
        """
        end = await self._end()
        moments = [await self._moment(at, "at", end), await self._moment(other, "diff", end)]
        begin, last = sorted(moments, key=lambda moment: moment.position)
        with gc_paused():
            before, after = await self.folded(begin), await self.folded(last)
            compared = await asyncio.to_thread(compare, before, after, scope, readers)
        if not compared.gangs:
            await self._check_in_log(scope, readers, before, after)
        fields = msgspec.structs.asdict(compared)
        return StateDiff(begin=begin, end=last, log=_log_end(end), scope=scope, **fields)

    async def folded(self, moment: PointInTime) -> ReservationState:
        """Return the state at a position of the log, for reading only; see `load_historical_state`.

        Raises:
            CorruptLog: The log is damaged.
        """
        chain = bytes.fromhex(moment.hash)
        async with self._turn:
            kept = self._kept.get(moment.position)
            if kept is not None and kept[0] == chain:
                self._kept.move_to_end(moment.position)
                return kept[1]
            state = await self._fold(moment.position)
            self._keep(moment.position, chain, state)
            return state

    async def _fold(self, position: Position) -> ReservationState:
        """Return the fold up to a position, from the nearest state in memory, snapshot, or the begin."""
        near = max((p for p in self._kept if p < position), default=START)
        if near and position - near <= NEAR_EVENTS:
            chain, state = self._kept[near]
            head = await self._log.at(near)
            if head is not None and head.chain == chain:
                return await fold_from(state, self._log, until=position, past=True)
            del self._kept[near]  # the log was replaced since then, by an older copy
        return await load_historical_state(self._log, self._snapshots, until=position)

    def _keep(self, position: Position, chain: bytes, state: ReservationState) -> None:
        self._kept[position] = (chain, state)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT_FOR_S, self.forget)

    def forget(self) -> None:
        """Drop the states in memory."""
        self._kept.clear()
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None

    async def _end(self) -> LogHead:
        end = await self._log.head()
        if end.position == START:
            raise BadInput("the log is empty: nothing has been recorded yet")
        return end

    async def _moment(self, text: str, field: str, end: LogHead) -> PointInTime:
        if not text:
            return _moment(text, end)
        if text.isascii() and text.isdigit():
            return _moment(text, await self._at_position(text, field, end))
        try:
            at_us = parse_time(text, field)
        except BadInput as error:
            raise BadInput(f"{error}, nor a position") from error
        if at_us > end.at_us and at_us > await self._log.time_us():
            raise BadInput(f"{field}: {text} is in the future; {_ends(end)}")
        position = await self._reader.position_at(at_us)
        if position == START:
            first = await self._log.at(FIRST)
            began = f"; the log begins at {rfc3339(first.at_us)}" if first is not None else ""
            raise BadInput(f"{field}: nothing had been recorded by {text}{began}")
        head = await self._log.at(position)
        return _moment(text, head if head is not None else end)

    async def _at_position(self, text: str, field: str, end: LogHead) -> LogHead:
        position = Position(int(text)) if len(text) <= DIGITS_MAX else None
        if position is None or position > end.position:
            raise BadInput(f"{field}: position {text[:40]} is not in the log; {_ends(end)}")
        head = await self._log.at(position) if position else None
        if head is None:
            raise BadInput(f"{field}: position {text} is not in the log; positions begin at 1")
        return head

    async def _check_in_log(
        self, scope: Scope, readers: Visibility, *states: ReservationState
    ) -> None:
        """Raise NotFound when the log has nothing of the namespace, node or domain of a query, whose states are these."""
        reader = visible_queries(self._reader, readers)
        await check_names(reader, namespace=scope.namespace)
        if scope.node and not await reader.has_node(scope.node):
            raise NotFound(
                f"node {scope.node}: the log has no member that was reserved or bound there; "
                "ordinary pods are not in the log"
            )
        for key, value in scope.domain.items():
            await self._check_domain(key, value, states)

    async def _check_domain(self, key: str, value: str, states: Iterable[ReservationState]) -> None:
        """Raise NotFound when neither these states nor the newest records have a node with a label."""
        newest = EventFilter(types=_WITH_TOPOLOGY, newest_first=True, limit=LABELLED_MAX)
        recorded = itertools.chain(
            (labels for state in states for labels in topology_of(state).values()),
            *(_recorded_labels(event.data) for event in await self._reader.events(newest)),
        )
        labels = {pair for node in recorded for pair in node.items()}
        if (key, value) in labels:
            return
        values = {text for name, text in labels if name == key and text}
        missing = f"the value {value!r} of this label" if values else "this label"
        near = did_you_mean(value, values) if values else did_you_mean(key, {k for k, _ in labels})
        raise NotFound(
            f"domain {key}={value}: the log has no node with {missing}; of nodes with members it has the topology keys of "
            f"their trees and those of GANG_EXTENDER_TOPOLOGY_KEYS{near}"
        )


def _recorded_labels(data: EventData) -> Iterable[Mapping[str, str]]:
    """Return the topology labels of each node that an event recorded; of a change the former and the new ones."""
    if isinstance(data, NodeTopologyChanged):
        return (data.before, data.after)
    return data.topology.values() if isinstance(data, GangAdmitted | GangExtended) else ()


def _moment(text: str, head: LogHead) -> PointInTime:
    return PointInTime(
        requested=text, position=head.position, time=rfc3339(head.at_us), hash=head.chain.hex()
    )


def _log_end(end: LogHead) -> LogEnd:
    return LogEnd(position=end.position, time=rfc3339(end.at_us))


def _ends(end: LogHead) -> str:
    return f"the log ends at position {end.position}, {rfc3339(end.at_us)}"
