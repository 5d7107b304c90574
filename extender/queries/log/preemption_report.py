"""Preemptions as the log has them: preemptor, victims, cost, alternatives, and outcome; and in sentences that a victim can be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from extender.core.log.events import (
    GangRemoved,
    MemberTerminated,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
)
from extender.core.log.reservation_state import NOT_IN_VAIN, RAN_BRIEFLY_US, PreemptorRun
from extender.core.model.errors import NotFound
from extender.core.model.ids import GangUid, PlanId, Position
from extender.core.model.message_formatting import (
    amounts_text,
    counted,
    gpu_time_text,
    join_names,
    parse_time,
    rfc3339,
    spaced,
)
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import is_hidden, namespace_of
from extender.ports.log_ports import START
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.event_dto import PAGE
from extender.queries.log.event_filter import with_plans
from extender.queries.log.gang_history import check_names, chosen_path
from extender.queries.log.preemption_dto import (
    AlternativeLine,
    EvictedPodLine,
    PreemptionLine,
    UnitLine,
)

PLANS_MAX = 1_000_000  # that are read to find a victim by its name
PLANS = (PreemptionPlanned.__name__,)
MEMBER_EVENTS_MAX = 10_000  # of a preemptor, that are read to learn how long it ran
_NO_VICTIM = "the log has no preemption of a pod or group of this name"
_ALL = "`gang-extender preemptions` lists all"
ENDS = tuple(data.__name__ for data in (VictimGone, PreemptionCompleted, PreemptionCancelled))


class PreemptionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for preemptions; empty fields do not restrict it."""

    victim: str = ""  # namespace/name of a pod, or of the group of a unit
    preemptor: str = ""  # namespace/name
    namespace: str = ""  # of the preemptor, of a victim, or of a tree that lost reservations
    states: tuple[str, ...] = ()  # outcomes: pending, completed, cancelled
    since_us: int | None = None  # planned at or after this time
    until_us: int | None = None  # planned at or before this time
    # planned after this position; with `newest_first` before it (0: from the end)
    after: Position = START
    limit: int = 1000
    newest_first: bool = False


class Preemptions(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptions that match, in the order of the query."""

    lines: tuple[PreemptionLine, ...]
    head: Position  # end of the log when it was read
    more: bool  # there are more; continue after `last`
    last: Position  # position of the last preemption that was examined; that of the query if there is none


async def preemptions(reader: EventQueries, query: PreemptionQuery) -> Preemptions:
    """Return the preemptions that match, each with its outcome.

    Raises:
        NotFound: There are none, and the log does not have the preemptor, the victim or the namespace.
    """
    lines, head, more = await _plans(reader, query)
    if lines:
        await _add_outcomes(reader, query, lines)
        for line in lines:
            line.in_vain = await _in_vain(reader, line)
    else:
        await _check_names(reader, query)
    last = lines[-1].position if lines else query.after
    reported = tuple(line for line in lines if not query.states or line.outcome in query.states)
    for line in reported:
        line.explanation = preemption_paragraph(line, query.victim)
    return Preemptions(lines=reported, head=head, more=more, last=last)


async def victim_of_name(reader: EventQueries, name: str, namespace: str = "default") -> str:
    """Return the `namespace/name` of the victim that a name without a namespace means; as `gang_of_name`.

    A gang that was no victim is meant where no victim has the name.

    Raises:
        NotFound: Neither a victim nor a gang has this name, or those of several other namespaces have it.
    """
    lines, _, _ = await _plans(reader, PreemptionQuery(limit=PLANS_MAX))
    paths = {path for line in lines for path in _victim_paths(line) if path.endswith(f"/{name}")}
    paths = paths or set(await reader.gangs_named(name))
    if not paths:
        raise NotFound(f"victim {namespace}/{name}: {_NO_VICTIM} in any namespace; {_ALL}")
    return chosen_path(paths, f"{namespace}/{name}", "victim")


async def _check_names(reader: EventQueries, query: PreemptionQuery) -> None:
    """Do nothing if the log has what a query names that no preemption matches."""
    await check_names(reader, gang=query.preemptor)
    victim, namespace = query.victim, query.namespace
    if victim and not (
        victim in await reader.gangs_named(victim.partition("/")[2])
        or await reader.placements(victim)
        or (await _plans(reader, PreemptionQuery(victim=victim, limit=1)))[0]
    ):
        raise NotFound(
            f"victim {victim}: {_NO_VICTIM}, no such gang, and no such member that was placed; {_ALL}"
        )
    if namespace and not (await _plans(reader, PreemptionQuery(namespace=namespace, limit=1)))[0]:
        await check_names(reader, namespace=namespace)


def _victim_paths(line: PreemptionLine) -> Iterator[str]:
    """Yield the `namespace/name` by which a victim can be named, see `is_unit_of`."""
    yield from line.superseded
    for unit in line.victims:
        yield unit.unit.partition("/")[2]
        for pod in unit.pods:
            yield pod.pod
            yield f"{namespace_of(pod.pod)}/{pod.group}"


async def _plans(
    reader: EventQueries, query: PreemptionQuery
) -> tuple[list[PreemptionLine], Position, bool]:
    """Return the lines without outcomes, the head of the log, and whether there are more lines."""
    lines: list[PreemptionLine] = []
    page_query = EventFilter(
        gang=query.preemptor,
        types=PLANS,
        since_us=query.since_us,
        until_us=query.until_us,
        after=query.after,
        limit=PAGE,
        newest_first=query.newest_first,
    )
    while True:
        page = await reader.page(page_query)
        for event in page.events:
            if isinstance(event.data, PreemptionPlanned):
                line = _planned(event, event.data)
                if not _about(line, query):
                    continue
                if len(lines) == query.limit:
                    return lines, page.head, True
                lines.append(line)
        if not page.more:
            return lines, page.head, False
        page_query = replace(page_query, after=page.events[-1].position)


async def _add_outcomes(
    reader: EventQueries, query: PreemptionQuery, lines: Sequence[PreemptionLine]
) -> None:
    """Add to the lines what became of them: events behind the first plan, until no event can change a line."""
    open_lines: dict[PlanId, PreemptionLine] = {line.preemption: line for line in lines}
    reader = with_plans(reader, open_lines)
    page_query = EventFilter(
        gang=query.preemptor, types=ENDS, after=min(line.position for line in lines), limit=PAGE
    )
    while open_lines:
        page = await reader.page(page_query)
        for event in page.events:
            if isinstance(event.data, VictimGone | PreemptionCompleted | PreemptionCancelled):
                line = open_lines.get(event.data.preemption)
                if line is None:
                    continue
                _update(line, event, event.data)
                all_gone = all(pod.gone for unit in line.victims for pod in unit.pods)
                if line.outcome == "completed" and all_gone:
                    del open_lines[line.preemption]
        if not page.more:
            return
        page_query = replace(page_query, after=page.events[-1].position)


async def _in_vain(reader: EventQueries, line: PreemptionLine) -> str:
    """Return what became of a preemptor that did not run for a minute after pods were evicted; empty: it did, or it is not known."""
    if not any(pod.gone for unit in line.victims for pod in unit.pods):
        return ""
    if line.outcome == "cancelled":
        return "" if line.reason in NOT_IN_VAIN else "the preemptor never ran"
    if line.outcome != "completed" or line.preemptor.startswith("Pod/"):
        return ""
    ended_us = parse_time(line.ended, "ended")
    young = EventFilter(
        gang_uid=GangUid(line.preemptor_uid),
        types=(MemberTerminated.__name__, GangRemoved.__name__),
        after=line.position,
        until_us=ended_us + RAN_BRIEFLY_US - 1,
        limit=1,
    )
    if not await reader.events(young):
        return ""
    run = PreemptorRun(line.preemption)
    types = (*young.types, PodBound.__name__, PreemptionCompleted.__name__)
    followed = replace(young, types=types, limit=MEMBER_EVENTS_MAX)
    for event in await reader.events(followed):
        run.follow(event)
    return f"the preemptor ran for {run.longest_us / 1e6:.0f} s" if run.was_brief else ""


def _about(line: PreemptionLine, query: PreemptionQuery) -> bool:
    """Return whether a preemption is of the requested victim, and has something of the requested namespace."""
    victim, victims = query.victim, line.victims
    units = any(is_unit_of(unit, victim) for unit in victims)
    if victim and not units and victim not in line.superseded:
        return False
    if not query.namespace:
        return True
    names = (line.preemptor, *(unit.unit for unit in victims))
    paths = (*(name.partition("/")[2] for name in names), *line.superseded)
    return any(path.startswith(f"{query.namespace}/") for path in paths)


def _planned(event: RecordedEvent, data: PreemptionPlanned) -> PreemptionLine:
    needed: dict[str, int] = {}
    for assignment in data.assignments:
        add_amounts(needed, data.shapes[assignment.shape])
    return PreemptionLine(
        preemption=data.preemption,
        position=event.position,
        planned=rfc3339(event.at_us),
        preemptor=event.gang if is_hidden(event.gang) else f"{data.kind}/{event.gang}",
        preemptor_uid=event.gang_uid,
        priority=data.priority,
        victims=[
            UnitLine(
                unit=unit.name,
                priority=unit.priority,
                lost_min=unit.cost.get("lost_min", 0),
                not_reprieved_reason=unit.not_reprieved_reason,
                pods=[EvictedPodLine(pod=p.pod, node=p.node, group=p.group) for p in unit.pods],
            )
            for unit in data.victims
        ],
        superseded=[record.gang for record in data.superseded],
        cost=data.cost,
        alternatives=[
            AlternativeLine(units=a.units, cost=a.cost, reason=a.reason) for a in data.alternatives
        ],
        placed=len(data.assignments),
        needed=dict(sorted(needed.items())),
        proved=data.exhausted,
    )


def _update(
    line: PreemptionLine,
    event: RecordedEvent,
    data: VictimGone | PreemptionCompleted | PreemptionCancelled,
) -> None:
    match data:
        case VictimGone():
            for unit in line.victims:
                for pod in unit.pods:
                    if unit.unit == data.unit and pod.pod == data.pod:
                        pod.via, pod.gone = data.via, rfc3339(data.gone_us)
                        pod.requested = rfc3339(data.requested_us) if data.requested_us else ""
        case PreemptionCompleted():
            line.outcome, line.ended = "completed", rfc3339(event.at_us)
            line.bound, line.duration_ms = data.bound, data.duration_ms
        case PreemptionCancelled():
            line.outcome, line.ended = "cancelled", rfc3339(event.at_us)
            line.reason, line.message, line.taken_over_by = (
                data.reason,
                data.message,
                data.taken_over_by,
            )
            for unit in line.victims:
                unit.spared = unit.unit in data.units_spared


OTHERS_MAX = 3  # alternatives, and other units, that are named


def preemption_paragraph(line: PreemptionLine, victim: str = "") -> str:
    """Return what happened, without internal weights, as one paragraph.

    Args:
        victim: namespace/name of a pod, a group or a unit whose owner asks; empty: all victims.
    """
    units = [unit for unit in line.victims if not victim or is_unit_of(unit, victim)]
    sentences = [_who(line, unit) for unit in units]
    if not units:
        sentences = [_released(line, victim)]
    sentences.append(_needed(line))
    if units:
        sentences += _why(line, units)
        sentences.append(_others(line, units))
        sentences += _alternatives(line)
    sentences.append(_end(line))
    return " ".join(text for text in sentences if text)


def is_unit_of(unit: UnitLine, victim: str) -> bool:
    """Return whether a unit is, or contains, what `victim` names: a pod, a leaf, or the group of the unit."""
    return unit.unit.partition("/")[2] == victim or any(
        victim in (pod.pod, f"{pod.pod.partition('/')[0]}/{pod.group}") for pod in unit.pods
    )


def _who(line: PreemptionLine, unit: UnitLine) -> str:
    name = _at_begin(_with_priority(unit.unit, unit.priority))
    preemptor = _with_priority(line.preemptor, line.priority)
    if unit.spared:
        return (
            f"{name} was chosen for eviction on {_time(line.planned)} for {preemptor}"
            ", and was spared: the preemption ended before its eviction began."
        )
    pods = ""
    if not (_is_pod(unit) or is_hidden(unit.unit)):
        pods = f", with {counted(len(unit.pods), 'pod')},"
    return f"{name}{pods} was evicted on {_time(line.planned)} for {preemptor}."


def _is_pod(unit: UnitLine) -> bool:
    return unit.unit.startswith(("Pod/", "a Pod "))


def _with_priority(name: str, priority: int) -> str:
    """Return a name with its priority; what stands for a hidden name has it already."""
    return name if is_hidden(name) else f"{spaced(name)} (priority {priority})"


def _at_begin(text: str) -> str:
    return text[:1].upper() + text[1:]


def _released(line: PreemptionLine, victim: str) -> str:
    name = victim or ", ".join(line.superseded)
    return (
        f"No pod of {name} was evicted: reservations for pods that did not run yet were released on "
        f"{_time(line.planned)} for {_with_priority(line.preemptor, line.priority)}."
        if name
        else f"On {_time(line.planned)} {_with_priority(line.preemptor, line.priority)} was planned without evictions."
    )


def _needed(line: PreemptionLine) -> str:
    if not line.placed:
        return ""
    amounts = amounts_text(line.needed)
    requests = f" with {amounts} in all" if amounts else ""
    pods = counted(line.placed, "pod")
    name = _at_begin(spaced(line.preemptor))
    return f"{name} needed a place for {pods}{requests}, and found none without evictions."


def _why(line: PreemptionLine, units: list[UnitLine]) -> Iterable[str]:
    if all(unit.priority < line.priority for unit in units):
        yield f"Its priority is higher: {line.priority} instead of {max(u.priority for u in units)}."
    members = Counter(pod.group for unit in units if _is_pod(unit) for pod in unit.pods[:1])
    for unit in units:
        if not _is_pod(unit):
            yield f"{_at_begin(spaced(unit.unit))} has the disruption mode *all*, so it is evicted as a whole or not at all."
    for group, count in members.items():
        if group:
            who = "The pod is a member" if count == 1 else f"{count} pods are members"
            yield f"{who} of PodGroup {group}, whose disruption mode *single* lets one pod be evicted."
    if lost_min := sum(unit.lost_min for unit in units if not unit.spared):
        yield f"Lost: {gpu_time_text(lost_min)}, since the start or the last checkpoint."
    if line.proved:
        yield "No set of victims with a lower cost exists: the search was complete."
    else:
        yield "No set of victims with a lower cost was found before the search budget was used up."


def _others(line: PreemptionLine, units: list[UnitLine]) -> str:
    others = [spaced(unit.unit) for unit in line.victims if unit not in units]
    if not others:
        return ""
    return f"{_at_begin(join_names(others, OTHERS_MAX))} {'was' if len(others) == 1 else 'were'} chosen too."


def _alternatives(line: PreemptionLine) -> Iterable[str]:
    if not line.alternatives:
        return
    texts = [
        f"{join_names([spaced(unit) for unit in other.units], OTHERS_MAX)} ({other.reason})"
        for other in line.alternatives[:OTHERS_MAX]
    ]
    more = len(line.alternatives) - OTHERS_MAX
    rest = f"; and {more} more" if more > 0 else ""
    yield f"Examined and not taken: {'; '.join(texts)}{rest}."


def _end(line: PreemptionLine) -> str:
    name = spaced(line.preemptor)
    if line.outcome == "completed":
        return (
            f"The preemption was completed after {line.duration_ms / 1000:.1f} s: "
            f"{counted(line.bound, 'pod')} of {name} {'is' if line.bound == 1 else 'are'} bound"
            f"{f'. It was in vain: {line.in_vain}' if line.in_vain else ''}."
        )
    if line.outcome == "cancelled":
        detail = f": {line.message}" if line.message else ""
        detail += f"; in vain: {line.in_vain}" if line.in_vain else ""
        taken = f" by {spaced(line.taken_over_by)}" if line.taken_over_by else ""
        return (
            f"The preemption was cancelled on {_time(line.ended)} ({line.reason}{taken}){detail}."
        )
    return "The preemption has not ended yet."


def _time(text: str) -> str:
    """Return an RFC 3339 time in UTC as text.

    >>> _time("2026-11-24T03:12:05.123456Z")
    '2026-11-24 at 03:12:05 UTC'
    """
    return f"{text[:10]} at {text[11:19]} UTC"
