"""The history of a gang: its own facts, what others did to it, and the life of its name.

A name can be used again, a UID cannot: every life of a name is told, or one of them. Beside the facts of its own
stream there are the preemptions that chose it, its groups or its pods as victims, and what the log itself lost
meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.log.events import (
    AnyEventData,
    BindFailed,
    GangAdmitted,
    GangExtended,
    MemberLost,
    NodeVetoed,
    PodBound,
    PreemptionPlanned,
    RecordedEvent,
    VictimEvicted,
)
from extender.core.model.errors import NotFound
from extender.core.model.ids import Position, RootUid
from extender.ports.protocols import (
    START,
    DecisionInputs,
    EventFilter,
    EventQueries,
    GangIncarnation,
)
from extender.queries.log.decision_details import Decision, decision_of
from extender.queries.log.event_dto import EventLine, line_of, rfc3339
from extender.queries.log.event_filter import victims_of

LIMIT_MAX = 1000  # facts of one answer
MEMBERS_MAX = 10_000  # facts that say who the members were
NAMING = ("GangAdmitted", "GangExtended", "PodBound")
LOST: Mapping[str, tuple[str, str]] = {  # cause of a loss -> who, why
    "preempted": ("kube-scheduler", "preempted for a pod or group of higher priority"),
    "evicted": ("whoever evicts pods", "evicted: API, taint or pressure on the node"),
    "node-lost": ("the cluster", "its node is gone"),
    "refused-by-kubelet": ("kubelet", "refused by the kubelet"),
    "ended": ("the pod itself", "ended by itself"),
    "deleted": ("whoever deletes pods", "deleted"),
    "gone": ("unknown", "not where it was, and nobody could tell why"),
}


class HistoryLine(EventLine, frozen=True, kw_only=True):
    """A fact in the history of a gang; `gang` is another one where the fact is about what that one did to it.

    Beside the fields of every fact there are, with `decisions` only: why it happened and who did it, the fact
    that led to it, and what a decision rested on.
    """

    why: str | UnsetType = UNSET
    who: str | UnsetType = UNSET
    cause_position: Position | UnsetType | None = UNSET
    decision: Decision | UnsetType = UNSET  # where the fact is one

    def bare(self) -> HistoryLine:
        """Give the fields of every fact alone."""
        return msgspec.structs.replace(
            self, why=UNSET, who=UNSET, cause_position=UNSET, decision=UNSET
        )


class IncarnationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One root group that had the name."""

    uid: RootUid
    first: str  # time of its first fact, RFC 3339
    last: str
    first_position: Position
    last_position: Position
    facts: int


class GangHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a gang."""

    gang: str
    lives: tuple[IncarnationLine, ...]  # of the name, oldest first
    lines: tuple[HistoryLine, ...]
    head: Position  # end of the log that the answer knows
    more: bool  # cut off; go on behind the last line


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of which history; `root` or `uid`."""

    root: str = ""  # namespace/name: all its lives
    uid: RootUid | None = None  # this one only
    after: Position = START
    limit: int = LIMIT_MAX
    decisions: bool = False


async def history(reader: EventQueries, inputs: DecisionInputs, asked: HistoryQuery) -> GangHistory:
    """Tell the history of a gang, also of one long gone.

    Raises:
        NotFound: The log has never heard of it.
        StoreUnavailable: No answer.
    """
    lives = await reader.lives(asked.root, uid=asked.uid)
    if asked.uid is not None:
        chosen = [life for life in lives if life.uid == asked.uid]
    else:
        chosen = list(lives)
    if not chosen:
        raise NotFound(_unknown(asked, lives))
    mine = EventFilter(
        root=asked.root if asked.uid is None else "",
        root_uid=asked.uid,
        after=asked.after,
        limit=asked.limit,
    )
    first = min(life.first_position for life in chosen)
    events, head, more = await _merged(reader, mine, frozenset(life.uid for life in chosen), first)
    lines = []
    preemptors = _preemptors(events)
    for event in events:
        line = _line(event, preemptors)
        if asked.decisions:
            told = await decision_of(event, inputs)
            if told is not None:
                line = msgspec.structs.replace(line, decision=told)
        lines.append(line)
    return GangHistory(
        gang=chosen[0].root,
        lives=tuple(map(_life, lives)),
        lines=tuple(lines),
        head=head,
        more=more,
    )


def _unknown(asked: HistoryQuery, lives: Iterable[GangIncarnation]) -> str:
    names = "; names are namespace/name of the root (see `gang-extender events`)"
    if asked.root and asked.uid is not None and lives:
        known = ", ".join(life.uid for life in lives)
        return f"gang {asked.root}: the log knows it by UID {known}, not {asked.uid}"
    return f"gang {asked.root or asked.uid}: the log knows no such root group{names}"


async def _merged(
    reader: EventQueries, mine: EventFilter, uids: frozenset[RootUid], first: Position
) -> tuple[list[RecordedEvent], Position, bool]:
    """Read its own facts and those of others about it, in order, none twice."""
    own = await reader.page(mine)
    members = await reader.page(
        msgspec.structs.replace(
            mine, after=START, types=NAMING, limit=MEMBERS_MAX, newest_first=True
        )
    )
    named = frozenset((*uids, *(uid for event in members.events for uid in _uids(event.fact))))
    others = (
        EventFilter(victims=named, after=mine.after, limit=mine.limit),
        # what was lost behind its first fact may have been about it
        EventFilter(
            types=("HistoryTruncated",), after=Position(max(first, mine.after)), limit=mine.limit
        ),
    )
    pages = [own, *[await reader.page(other) for other in others]]
    known = min(page.events[-1].position if page.more else page.head for page in pages)
    found = {e.position: e for page in pages for e in page.events if e.position <= known}
    ordered = [found[position] for position in sorted(found)]
    more = any(page.more for page in pages) or len(ordered) > mine.limit
    return ordered[: mine.limit], own.head, more


def _uids(fact: AnyEventData) -> Iterable[str]:
    if isinstance(fact, PodBound):
        return (fact.uid,)
    if isinstance(fact, GangAdmitted | GangExtended):
        return (*(a.uid for a in fact.assignments), *(g.uid for g in fact.groups if g.uid))
    return ()


def _preemptors(events: Iterable[RecordedEvent]) -> Mapping[str, str]:
    """Give by UID of a victim for whom it had to go."""
    return {
        uid: event.root
        for event in events
        if isinstance(event.fact, PreemptionPlanned | VictimEvicted)
        for uid in victims_of(event.fact)
    }


def _line(event: RecordedEvent, preemptors: Mapping[str, str]) -> HistoryLine:
    fields = {name: getattr(line_of(event), name) for name in EventLine.__struct_fields__}
    who, why = _who_and_why(event, preemptors)
    return HistoryLine(**fields, why=why, who=who, cause_position=event.cause_position)


def _who_and_why(event: RecordedEvent, preemptors: Mapping[str, str]) -> tuple[str, str]:
    fact = event.fact
    if isinstance(fact, MemberLost):
        preemptor = preemptors.get(fact.uid)
        if preemptor is not None:
            return preemptor, "preempted by a recorded preemption"
        who, why = LOST[fact.cause]
        return who, f"{why} ({fact.text})" if fact.text else why
    if isinstance(fact, PreemptionPlanned | VictimEvicted):
        return event.root, event.cause
    if isinstance(fact, NodeVetoed):
        return "kube-scheduler", event.cause
    if isinstance(fact, BindFailed):
        return "kube-apiserver", event.cause
    return event.actor, event.cause


def _life(life: GangIncarnation) -> IncarnationLine:
    return IncarnationLine(
        uid=life.uid,
        first=rfc3339(life.first_us),
        last=rfc3339(life.last_us),
        first_position=life.first_position,
        last_position=life.last_position,
        facts=life.facts,
    )
