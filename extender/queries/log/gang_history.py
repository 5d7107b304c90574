"""The history of a gang: the events of its stream, preemptions of it, and losses of the log.

A name can be used again, a UID cannot: a history has all gangs of a name, or one of them. It has the events of
their streams, the preemptions that chose the gang, its groups or its pods as victims, and `HistoryTruncated`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from extender.core.log import events as log_events
from extender.core.model.errors import NotFound
from extender.core.model.ids import GangUid, Position
from extender.core.model.message_formatting import did_you_mean, join_names, rfc3339
from extender.ports.log_ports import START, DecisionInputs
from extender.ports.query_ports import EventFilter, EventPage, EventQueries, GangIncarnation
from extender.queries.log.decision_details import Decision, decision_of
from extender.queries.log.event_dto import LOST, EventLine, event_line, loss_reason
from extender.queries.log.event_filter import victims_of

LIMIT_MAX = 1000  # events of one answer
MEMBERS_MAX = 10_000  # events that are read to find the members
# newest gangs of a namespace whose names are compared with one that the log does not have
COMPARED_MAX = 500
NAMING = ("GangAdmitted", "GangExtended", "PodBound")


class HistoryLine(EventLine, frozen=True, kw_only=True):
    """An event in the history of a gang; of a preemption of this gang, `gang` is the preemptor.

    The fields that other events do not have are set with `decisions` only: the reason, the actor, the event that
    led to it, and the details of a decision.
    """

    reason: str | UnsetType = UNSET
    caused_by: str | UnsetType = UNSET
    cause_position: Position | UnsetType | None = UNSET
    decision: Decision | UnsetType = UNSET  # where the event is one

    def bare(self) -> HistoryLine:
        """Return the line without the fields that are for `decisions`."""
        return replace(self, reason=UNSET, caused_by=UNSET, cause_position=UNSET, decision=UNSET)


class IncarnationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One root group of this name."""

    uid: GangUid
    first: str  # time of its first event, RFC 3339
    last: str
    first_position: Position
    last_position: Position
    events: int


class GangHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The events about a gang, and the root groups that had its name."""

    gang: str
    lives: tuple[IncarnationLine, ...]  # root groups of this name, oldest first
    lines: tuple[HistoryLine, ...]
    head: Position  # end of the log when it was read
    more: bool  # there are more; continue after the last line


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for a history, by `root` or `uid`."""

    gang: str = ""  # namespace/name: all root groups of this name
    uid: GangUid | None = None  # this one only
    after: Position = START
    limit: int = LIMIT_MAX
    decisions: bool = False
    since_us: int | None = None  # recorded at or after this time
    until_us: int | None = None  # recorded at or before this time


async def history(reader: EventQueries, inputs: DecisionInputs, query: HistoryQuery) -> GangHistory:
    """Return the history of a gang, also of a deleted one.

    Raises:
        NotFound: The log has no event of it.
    """
    lives = await reader.incarnations(query.gang, uid=query.uid)
    if query.uid is not None:
        chosen = [life for life in lives if life.uid == query.uid]
    else:
        chosen = list(lives)
    if not chosen:
        raise NotFound(await _unknown(reader, query, lives))
    mine = EventFilter(
        gang=query.gang if query.uid is None else "",
        gang_uid=query.uid,
        after=query.after,
        limit=query.limit,
        since_us=query.since_us,
        until_us=query.until_us,
    )
    first = min(life.first_position for life in chosen)
    events, head, more = await _merged(reader, mine, frozenset(life.uid for life in chosen), first)
    lines = []
    preemptors = _preemptors(events)
    for event in events:
        line = _line(event, preemptors)
        if query.decisions:
            decision = await decision_of(event, inputs)
            if decision is not None:
                line = replace(line, decision=decision)
        lines.append(line)
    return GangHistory(
        gang=chosen[0].gang,
        lives=tuple(map(_life, lives)),
        lines=tuple(lines),
        head=head,
        more=more,
    )


async def gang_of_name(
    reader: EventQueries, name: str, namespace: str = "default", *, expected: bool = False
) -> str:
    """Return the `namespace/name` of the root group that a name means; empty: none is named.

    `namespace/name` is returned as it is. A name alone is that in `namespace`, if the log has it there; else that in the only other namespace that has it.

    Args:
        name: The name, or `namespace/name`.
        expected: Whether it is that in `namespace` if the log does not have it yet.

    Raises:
        NotFound: Several other namespaces have it, or none has and it is not expected.
    """
    if not name or "/" in name:
        return name
    paths, preferred = await reader.gangs_named(name), f"{namespace}/{name}"
    if not paths and not expected:
        await check_names(reader, gang=preferred)
    return chosen_path(paths, preferred, "gang") if paths else preferred


def chosen_path(paths: Collection[str], preferred: str, noun: str) -> str:
    """Return which of some `namespace/name` of one name is meant.

    Args:
        paths: Those that the log has; one or more.

    Raises:
        NotFound: There are several others.
    """
    if preferred in paths:
        return preferred
    if len(paths) == 1:
        return next(iter(paths))
    raise NotFound(f"{noun} {preferred}: {_elsewhere(sorted(paths))}")


async def events_page(reader: EventQueries, event_filter: EventFilter) -> EventPage:
    """Return a page of events.

    Raises:
        NotFound: It is empty, and the log does not have the gang, the namespace or the node of the filter.
    """
    page = await reader.page(event_filter)
    if not page.events:
        await check_names(
            reader, gang=event_filter.gang, namespace=event_filter.namespace, node=event_filter.node
        )
    return page


async def check_names(
    reader: EventQueries, *, gang: str = "", namespace: str = "", node: str = ""
) -> None:
    """Do nothing if the log has what is named: for an answer without a line.

    Args:
        gang: namespace/name of a root group.

    Raises:
        NotFound: The log does not have one of them; with the gangs of the same name in other namespaces, or a similar one.
    """
    if gang and gang not in (others := await reader.gangs_named(gang.partition("/")[2])):
        raise NotFound(f"gang {gang}: {await _absent(reader, gang, others)}")
    if namespace and not await reader.has_namespace(namespace):
        raise NotFound(f"namespace {namespace}: the log has no gang in it")
    if node and not await reader.events(EventFilter(node=node, limit=1)):
        raise NotFound(
            f"node {node}: the log has no event that names it; `gang-extender explain Node/{node}` has the node as it is now"
        )


async def _absent(reader: EventQueries, path: str, others: Sequence[str]) -> str:
    """Return that the log does not have a root group, with what would help."""
    if others:
        return _elsewhere(others)
    namespace, _, name = path.partition("/")
    newest = EventFilter(
        namespace=namespace, types=("GangObserved",), newest_first=True, limit=COMPARED_MAX
    )
    names = {event.gang.partition("/")[2] for event in await reader.events(newest)}
    return (
        "the log has no such root group; names are NAMESPACE/NAME of the root, `gang-extender events` lists them"
        + did_you_mean(name, names)
    )


def _elsewhere(others: Sequence[str]) -> str:
    return f"the log has none there; of this name it has {join_names(others)}: give the namespace"


async def _unknown(
    reader: EventQueries, query: HistoryQuery, lives: Iterable[GangIncarnation]
) -> str:
    if query.gang and query.uid is not None and lives:
        uids = ", ".join(life.uid for life in lives)
        return f"gang {query.gang}: the log has it with UID {uids}, not {query.uid}"
    if not query.gang:
        return f"gang {query.uid}: the log has no root group with this UID"
    others = await reader.gangs_named(query.gang.partition("/")[2])
    return f"gang {query.gang}: {await _absent(reader, query.gang, others)}"


async def _merged(
    reader: EventQueries, mine: EventFilter, uids: frozenset[GangUid], first: Position
) -> tuple[list[log_events.RecordedEvent], Position, bool]:
    """Return the events of the gang and those of others about it, in order, none twice."""
    own = await reader.page(mine)
    members = await reader.page(
        replace(
            mine,
            after=START,
            types=NAMING,
            limit=MEMBERS_MAX,
            newest_first=True,
            since_us=None,
            until_us=None,
        )
    )
    named = frozenset((*uids, *(uid for event in members.events for uid in _uids(event.data))))
    every = replace(mine, gang="", gang_uid=None)
    others = (
        replace(every, victims=named),
        # the events that the log lost after its first event may have been about it
        replace(every, types=("HistoryTruncated",), after=Position(max(first, mine.after))),
    )
    pages = [own, *[await reader.page(other) for other in others]]
    complete_until = min(page.events[-1].position if page.more else page.head for page in pages)
    by_position = {
        e.position: e for page in pages for e in page.events if e.position <= complete_until
    }
    ordered = [by_position[position] for position in sorted(by_position)]
    more = any(page.more for page in pages) or len(ordered) > mine.limit
    return ordered[: mine.limit], own.head, more


def _uids(data: log_events.AnyEventData) -> Iterable[str]:
    if isinstance(data, log_events.PodBound):
        return (data.uid,)
    if isinstance(data, log_events.GangAdmitted | log_events.GangExtended):
        return (*(a.uid for a in data.assignments), *(g.uid for g in data.groups if g.uid))
    return ()


def _preemptors(events: Iterable[log_events.RecordedEvent]) -> Mapping[str, str]:
    """Return the preemptor of each victim, by UID of the victim."""
    return {
        uid: event.gang
        for event in events
        if isinstance(event.data, log_events.PreemptionPlanned | log_events.VictimGone)
        for uid in victims_of(event.data)
    }


def _line(event: log_events.RecordedEvent, preemptors: Mapping[str, str]) -> HistoryLine:
    fields = msgspec.structs.asdict(event_line(event))
    fields["caused_by"], fields["reason"] = _cause_and_reason(event, preemptors)
    return HistoryLine(**fields, cause_position=event.cause_position)


def _cause_and_reason(
    event: log_events.RecordedEvent, preemptors: Mapping[str, str]
) -> tuple[str, str]:
    data = event.data
    if isinstance(data, log_events.MemberTerminated):
        preemptor = preemptors.get(data.uid)
        if preemptor is not None:
            return preemptor, "preempted by a recorded preemption"
        return LOST[data.cause][0], loss_reason(data.cause, data.message)
    if isinstance(data, log_events.PreemptionPlanned | log_events.VictimGone):
        return event.gang, event.cause
    if isinstance(data, log_events.NodeRejected):
        return "kube-scheduler", event.cause
    if isinstance(data, log_events.PodBindFailed):
        return "kube-apiserver", event.cause
    return event.actor, event.cause


def _life(life: GangIncarnation) -> IncarnationLine:
    return IncarnationLine(
        uid=life.uid,
        first=rfc3339(life.first_us),
        last=rfc3339(life.last_us),
        first_position=life.first_position,
        last_position=life.last_position,
        events=life.events,
    )
