"""Preemptions as the log has them: preemptor, victims, cost, alternatives, and outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from extender.core.log.events import (
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
)
from extender.core.model.ids import PlanId, Position
from extender.ports.log_ports import START
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.event_dto import PAGE, rfc3339
from extender.queries.log.preemption_line import (
    AlternativeLine,
    EvictedPodLine,
    PreemptionLine,
    UnitLine,
)
from extender.queries.log.preemption_paragraph import is_unit_of, preemption_paragraph

KINDS = tuple(
    data.__name__
    for data in (PreemptionPlanned, VictimGone, PreemptionCompleted, PreemptionCancelled)
)


class PreemptionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for preemptions; empty fields do not restrict it."""

    victim: str = ""  # namespace/name of a pod, or of the group of a unit
    preemptor: str = ""  # namespace/name
    namespace: str = ""  # of the preemptor, of a victim, or of a tree that lost reservations
    outcomes: frozenset[str] = frozenset()  # pending, completed, cancelled
    since_us: int | None = None  # planned at or after this time
    until_us: int | None = None  # planned at or before this time
    after: Position = START  # planned after this position
    limit: int = 1000


class Preemptions(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptions that match, oldest first."""

    lines: tuple[PreemptionLine, ...]
    head: Position  # end of the log when it was read
    more: bool  # there are more; continue after `last`
    last: Position  # position of the last preemption that was examined; that of the query if there is none


async def preemptions(reader: EventQueries, wanted: PreemptionQuery) -> Preemptions:
    """Return the preemptions that match, each with its outcome."""
    collector = _Collector(wanted)
    after = wanted.after
    while True:
        page = await reader.page(
            EventFilter(
                gang=wanted.preemptor,
                types=KINDS,
                since_us=wanted.since_us,
                after=after,
                limit=PAGE,
            )
        )
        for event in page.events:
            collector.add(event)
        if not page.more or collector.complete():
            break
        after = page.events[-1].position
    found = collector.lines.values()
    lines = tuple(one for one in found if not wanted.outcomes or one.outcome in wanted.outcomes)
    for line in lines:
        line.explanation = preemption_paragraph(line, wanted.victim)
    last = max((line.position for line in found), default=wanted.after)
    return Preemptions(lines=lines, head=page.head, more=collector.full, last=last)


def _about(line: PreemptionLine, wanted: PreemptionQuery) -> bool:
    """Return whether a preemption is of the requested victim, and has something of the requested namespace."""
    victim, victims = wanted.victim, line.victims
    units = any(is_unit_of(unit, victim) for unit in victims)
    if victim and not units and victim not in line.superseded:
        return False
    if not wanted.namespace:
        return True
    names = (line.preemptor, *(unit.unit for unit in victims))
    paths = (*(name.partition("/")[2] for name in names), *line.superseded)
    return any(path.startswith(f"{wanted.namespace}/") for path in paths)


class _Collector:
    """Collects preemptions from their events."""

    def __init__(self, wanted: PreemptionQuery) -> None:
        self._wanted = wanted
        self.lines: dict[PlanId, PreemptionLine] = {}
        self.full = False  # there are more preemptions than the limit

    def add(self, event: RecordedEvent) -> None:
        """Add an event; events come in order of position, those of other preemptions are ignored."""
        data = event.data
        if isinstance(data, PreemptionPlanned):
            line = _planned(event, data)
            until_us = self._wanted.until_us
            if until_us is not None and event.at_us > until_us:
                return
            if not _about(line, self._wanted):
                return
            if len(self.lines) < self._wanted.limit:
                self.lines[data.preemption] = line
            else:
                self.full = True
        elif isinstance(data, VictimGone | PreemptionCompleted | PreemptionCancelled):
            previous = self.lines.get(data.preemption)
            if previous is not None:
                _update(previous, event, data)

    def complete(self) -> bool:
        """Return whether later events cannot change the result."""
        return self.full and all(line.outcome == "completed" for line in self.lines.values())


def _planned(event: RecordedEvent, data: PreemptionPlanned) -> PreemptionLine:
    return PreemptionLine(
        preemption=data.preemption,
        position=event.position,
        planned=rfc3339(event.at_us),
        preemptor=f"{data.kind}/{event.gang}",
        preemptor_uid=event.gang_uid,
        priority=data.priority,
        victims=[
            UnitLine(
                unit=unit.name,
                priority=unit.priority,
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
        needed=_sum(data.shapes[a.shape] for a in data.assignments),
        proved=data.exhausted,
    )


def _sum(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in requests:
        total.update(one)
    return dict(sorted(total.items()))


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
