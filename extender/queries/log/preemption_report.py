"""Who was evicted for whom and why, when each was gone, and what came of it: told from the log alone."""

from __future__ import annotations

from typing import Literal

import msgspec

from extender.core.log.events import (
    AbandonReason,
    EvictionHow,
    PreemptionAbandoned,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimEvicted,
)
from extender.core.model.ids import PlanId, Position
from extender.ports.protocols import START, EventFilter, EventQueries
from extender.queries.log.event_dto import PAGE, rfc3339

KINDS = tuple(
    fact.__name__
    for fact in (PreemptionPlanned, VictimEvicted, PreemptionCompleted, PreemptionAbandoned)
)


class EvictedPodLine(msgspec.Struct, kw_only=True):
    """One pod that had to go."""

    pod: str
    node: str
    asked: str = ""  # RFC 3339; empty where nobody asked, or nobody knows
    gone: str = ""  # RFC 3339; empty while it is there, or when its unit was spared
    how: EvictionHow | Literal[""] = ""


class UnitLine(msgspec.Struct, kw_only=True):
    """A disruption unit that had to go."""

    unit: str  # Kind/namespace/name
    priority: int
    pods: list[EvictedPodLine]
    spared: bool = False  # the preemption ended before it began
    doubt: str = ""  # why it was not put back, although the room that is counted would allow it


class AlternativeLine(msgspec.Struct, kw_only=True):
    """A set that was looked at and not taken."""

    units: tuple[str, ...]
    cost: dict[str, int]
    why: str


class PreemptionLine(msgspec.Struct, kw_only=True):
    """One preemption from its plan to its end."""

    preemption: PlanId
    position: Position  # of the plan; `gang-extender replay` decides it again
    planned: str  # RFC 3339
    preemptor: str  # Kind/namespace/name
    preemptor_uid: str
    priority: int
    victims: list[UnitLine]
    superseded: list[str]  # trees of lower priority that gave reservations back, namespace/name
    cost: dict[str, int]
    alternatives: list[AlternativeLine]
    outcome: Literal["pending", "completed", "abandoned"] = "pending"
    why: AbandonReason | Literal[""] = ""
    text: str = ""
    by: str = ""  # Kind/namespace/name of who took the room over, where it was outranked
    ended: str = ""  # RFC 3339
    bound: int = 0  # members of the preemptor that ran when it was completed
    took_ms: int = 0  # from the plan to the running preemptor


class PreemptionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which preemptions are asked for; empty fields do not restrict."""

    victim: str = ""  # namespace/name of a pod, or of the group of a unit
    preemptor: str = ""  # namespace/name
    since_us: int | None = None  # planned at or after this time
    after: Position = START  # planned behind this position
    limit: int = 1000


class Preemptions(msgspec.Struct, frozen=True, kw_only=True):
    """Preemptions that match, oldest first."""

    lines: tuple[PreemptionLine, ...]
    head: Position  # end of the log that the answer knows
    more: bool  # cut off; ask again behind the position of the last line


async def preemptions(reader: EventQueries, wanted: PreemptionQuery) -> Preemptions:
    """Give preemptions that match, each with what came of it."""
    told = _Telling(wanted)
    after = wanted.after
    while True:
        page = await reader.page(
            EventFilter(
                root=wanted.preemptor,
                types=KINDS,
                since_us=wanted.since_us,
                after=after,
                limit=PAGE,
            )
        )
        for event in page.events:
            told.take(event)
        if not page.more or told.complete():
            break
        after = page.events[-1].position
    return Preemptions(lines=tuple(told.lines.values()), head=page.head, more=told.full)


def _about(line: PreemptionLine, victim: str) -> bool:
    if not victim:
        return True
    return any(
        unit.unit.partition("/")[2] == victim or any(pod.pod == victim for pod in unit.pods)
        for unit in line.victims
    )


class _Telling:
    """Preemptions while their facts are read."""

    def __init__(self, wanted: PreemptionQuery) -> None:
        self._wanted = wanted
        self.lines: dict[PlanId, PreemptionLine] = {}
        self.full = False  # there is one more than was asked for

    def take(self, event: RecordedEvent) -> None:
        """Take a fact in, in order of position; those of a plan that was not asked for are left out."""
        fact = event.fact
        if isinstance(fact, PreemptionPlanned):
            line = _planned(event, fact)
            if not _about(line, self._wanted.victim):
                return
            if len(self.lines) < self._wanted.limit:
                self.lines[fact.preemption] = line
            else:
                self.full = True
        elif isinstance(fact, VictimEvicted | PreemptionCompleted | PreemptionAbandoned):
            known = self.lines.get(fact.preemption)
            if known is not None:
                _follow(known, event, fact)

    def complete(self) -> bool:
        """Say whether nothing that follows can matter."""
        return self.full and all(line.outcome == "completed" for line in self.lines.values())


def _planned(event: RecordedEvent, fact: PreemptionPlanned) -> PreemptionLine:
    return PreemptionLine(
        preemption=fact.preemption,
        position=event.position,
        planned=rfc3339(event.at_us),
        preemptor=f"{fact.kind}/{event.root}",
        preemptor_uid=event.root_uid,
        priority=fact.priority,
        victims=[
            UnitLine(
                unit=unit.name,
                priority=unit.priority,
                doubt=unit.doubt,
                pods=[EvictedPodLine(pod=p.pod, node=p.node) for p in unit.pods],
            )
            for unit in fact.victims
        ],
        superseded=[record.gang for record in fact.superseded],
        cost=fact.cost,
        alternatives=[
            AlternativeLine(units=a.units, cost=a.cost, why=a.why) for a in fact.alternatives
        ],
    )


def _follow(
    line: PreemptionLine,
    event: RecordedEvent,
    fact: VictimEvicted | PreemptionCompleted | PreemptionAbandoned,
) -> None:
    match fact:
        case VictimEvicted():
            for unit in line.victims:
                for pod in unit.pods:
                    if unit.unit == fact.unit and pod.pod == fact.pod:
                        pod.how, pod.gone = fact.how, rfc3339(fact.gone_us)
                        pod.asked = rfc3339(fact.asked_us) if fact.asked_us else ""
        case PreemptionCompleted():
            line.outcome, line.ended = "completed", rfc3339(event.at_us)
            line.bound, line.took_ms = fact.bound, fact.took_ms
        case PreemptionAbandoned():
            line.outcome, line.ended = "abandoned", rfc3339(event.at_us)
            line.why, line.text, line.by = fact.why, fact.text, fact.by
            for unit in line.victims:
                unit.spared = unit.unit in fact.spared
