"""Reports computed in plain Python from a list of events, to compare the SQL views with, and a fake `ReportQueries`.

Nothing here knows SQL. State intervals come from the fold of the core, one event at a time; everything
else is read from the events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec

from extender.core.log.events import (
    CapacityMeasured,
    GangAdmitted,
    GangExtended,
    GangInvalid,
    GangUnschedulable,
    MemberTerminated,
    MoveCompleted,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    VictimGone,
)
from extender.core.log.gang_phase import undecided_reason
from extender.core.log.reservation_state import EMPTY, GangState, Reservation, ReservationState
from extender.core.log.state_projector import fold
from extender.queries.log.reports import ReportQuery, ReportRows
from extender.store.log.event_codec import to_event
from tests.support.logs.fake_store import FakeDatabase

HOUR_US = 3_600_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PENDING = ("observed", "waiting", "unschedulable", "preempting", "invalid")
Row = tuple[Any, ...]


def moment(at_us: int | None) -> datetime | None:
    return None if at_us is None else EPOCH + timedelta(microseconds=at_us)


class Stretch(msgspec.Struct):
    """A root while it stood one way, or a reservation while it was held."""

    what: Any  # RootState, or Reservation
    state: str
    root: str
    gang_uid: str
    from_us: int
    from_position: int
    to_us: int | None = None
    to_position: int | None = None

    def overlaps(self, query: ReportQuery) -> bool:
        return self.from_us < query.until_us and (self.to_us is None or self.to_us > query.since_us)

    def seconds(self, query: ReportQuery) -> float:
        end = query.until_us if self.to_us is None else min(self.to_us, query.until_us)
        return (end - max(self.from_us, query.since_us)) / 1e6

    def stands(self, query: ReportQuery) -> bool:
        return self.to_us is None or self.to_us >= query.until_us


class VictimRecord(msgspec.Struct):
    """A victim of a preemption."""

    plan: RecordedEvent
    unit: Any
    uid: str
    status: str = "terminating"


class Lost(msgspec.Struct):
    """A bound member that went away."""

    event: RecordedEvent
    preemptor: str
    seconds: float | None


class ReportInputs:
    """The events and the intervals that reports are computed from."""

    def __init__(self, events: Iterable[RecordedEvent]) -> None:
        self.events = list(events)
        self.roots: list[Stretch] = []
        self.reserved: list[Stretch] = []
        self.bound: list[Stretch] = []
        self.victims: list[VictimRecord] = []
        self.terminations: list[Lost] = []
        self._open_roots: dict[str, tuple[Any, Stretch]] = {}
        self._open_reserved: dict[tuple[str, str], Stretch] = {}
        self._open_bound: dict[tuple[str, str], Stretch] = {}
        self._bound_since: dict[tuple[str, str], tuple[Any, int]] = {}
        state = EMPTY
        for event in self.events:
            after = fold(state, [event])
            self._follow_termination(event, state)
            self._follow_root(event, after.gangs.get(event.gang_uid))
            self._follow_pods(event, after.gangs.get(event.gang_uid))
            self._follow_victims(event, state, after)
            state = after

    def _follow_root(self, event: RecordedEvent, root: GangState | None) -> None:
        before = self._open_roots.get(event.gang_uid)
        key = None if root is None else _standing(root)
        if before is not None and before[0] == key:
            return
        if before is not None:
            before[1].to_us, before[1].to_position = event.at_us, event.position
            del self._open_roots[event.gang_uid]
        if root is not None:
            stretch = Stretch(root, shown(root), root.gang, root.uid, event.at_us, event.position)
            self.roots.append(stretch)
            self._open_roots[event.gang_uid] = key, stretch

    def _follow_pods(self, event: RecordedEvent, root: GangState | None) -> None:
        self._follow_members(event, root, "reserved", self.reserved, self._open_reserved)
        self._follow_members(event, root, "bound", self.bound, self._open_bound)
        for uid, member in (dict(root.bound) if root is not None else {}).items():
            known = self._bound_since.get((event.gang_uid, uid))
            if known is None or known[0] is not member:
                self._bound_since[event.gang_uid, uid] = member, event.at_us

    def _follow_members(
        self,
        event: RecordedEvent,
        root: GangState | None,
        state: str,
        stretches: list[Stretch],
        open_stretches: dict[tuple[str, str], Stretch],
    ) -> None:
        held: dict[str, Any] = {}
        if root is not None:
            held = dict(root.reservations if state == "reserved" else root.bound)
        for key, stretch in list(open_stretches.items()):
            if key[0] == event.gang_uid and held.get(key[1]) is not stretch.what:
                stretch.to_us, stretch.to_position = event.at_us, event.position
                del open_stretches[key]
        for uid, member in held.items():
            if (event.gang_uid, uid) not in open_stretches:
                stretch = Stretch(member, state, root.gang, root.uid, event.at_us, event.position)
                stretches.append(stretch)
                open_stretches[event.gang_uid, uid] = stretch

    def _follow_termination(self, event: RecordedEvent, before: ReservationState) -> None:
        data = event.data
        if not isinstance(data, MemberTerminated):
            return
        root = before.gangs.get(event.gang_uid)
        if root is None or data.uid not in root.bound:
            self.terminations.append(Lost(event, "", None))
            return
        evictions = [v for v in self.victims if v.uid == data.uid and v.status != "spared"]
        since = self._bound_since[event.gang_uid, data.uid][1]
        self.terminations.append(
            Lost(event, evictions[-1].plan.gang if evictions else "", (event.at_us - since) / 1e6)
        )

    def _follow_victims(
        self, event: RecordedEvent, before: ReservationState, after: ReservationState
    ) -> None:
        data, uid = event.data, event.gang_uid
        was, now = before.preemptions.get(uid), after.preemptions.get(uid)
        if isinstance(data, PreemptionPlanned):
            pods = {pod.uid: unit for unit in data.victims for pod in unit.pods}
            self.victims += [VictimRecord(event, unit, pod) for pod, unit in pods.items()]
            return
        if was is None:
            return
        left = set(now.victims) if now is not None else set()
        for victim in self.victims:
            if victim.plan.position == was.position and victim.uid in set(was.victims) - left:
                evicted = isinstance(data, VictimGone) and victim.uid == data.uid
                victim.status = "gone" if evicted else "spared"


def shown(root: GangState) -> str:
    preempting = root.last_decision is not None and root.last_decision.outcome == "preempting"
    return (
        "preempting" if preempting and root.phase not in ("admitted", "scheduled") else root.phase
    )


def _standing(root: GangState) -> Row:
    return (root.gang, root.kind, root.priority, root.phase, root.last_decision)


def _reason(root: GangState) -> str:
    if root.last_decision is not None and root.last_decision.reasons:
        return root.last_decision.reasons[0]
    return undecided_reason(root)


def _about(query: ReportQuery, *gangs: str) -> bool:
    return (not query.namespace or query.namespace in {g.partition("/")[0] for g in gangs}) and (
        not query.gang or query.gang in gangs
    )


def _within(query: ReportQuery, event: RecordedEvent) -> bool:
    return query.since_us <= event.at_us < query.until_us


def _pending(inputs: ReportInputs, query: ReportQuery) -> Iterator[Stretch]:
    for stretch in inputs.roots:
        waited = stretch.state in PENDING and stretch.to_us != stretch.from_us
        if waited and stretch.overlaps(query) and _about(query, stretch.root):
            yield stretch


def _last_end(stretches: Sequence[Stretch]) -> datetime | None:
    ends = [s.to_us for s in stretches]
    return None if None in ends else moment(max(end for end in ends if end is not None))


def pending(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    grouped = defaultdict(list)
    for s in _pending(inputs, query):
        grouped[s.root, s.gang_uid, s.state, _reason(s.what)].append(s)
    for key, some in grouped.items():
        since = moment(min(s.from_us for s in some))
        yield (*key, sum(s.seconds(query) for s in some), len(some), since, _last_end(some))


def pending_namespaces(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    grouped = defaultdict(list)
    for s in _pending(inputs, query):
        grouped[s.root.partition("/")[0], s.state].append(s)
    for key, some in grouped.items():
        took = [s.seconds(query) for s in some]
        standing = len({s.gang_uid for s in some if s.stands(query)})
        yield (*key, len({s.gang_uid for s in some}), standing, sum(took), max(took))


def passed_over(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    first = {}
    for event in inputs.events:
        first.setdefault(event.gang_uid, event.position)
    for s in inputs.roots:
        if s.state != "unschedulable" or not s.overlaps(query) or not _about(query, s.root):
            continue
        for event in inputs.events:
            data = event.data
            if not isinstance(data, GangAdmitted | GangExtended) or not _within(query, event):
                continue
            inside = s.from_position < event.position and (
                s.to_position is None or event.position < s.to_position
            )
            mine, theirs = s.what.priority, data.priority
            later = mine == theirs and first[event.gang_uid] > first[s.gang_uid]
            if inside and event.gang_uid != s.gang_uid and (theirs < mine or later):
                how = "lower priority" if theirs < mine else "later"
                yield (
                    s.root, s.gang_uid, mine, event.gang, theirs, how, len(data.assignments),
                    moment(event.at_us), event.position,
                )  # fmt: skip


def preemption_pairs(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    grouped = defaultdict(list)
    for v in inputs.victims:
        if _within(query, v.plan) and _about(query, v.plan.gang, v.unit.path):
            grouped[v.plan.gang, v.unit.path, v.unit.kind].append(v)
    for (preemptor, victim, kind), some in grouped.items():
        times = [v.plan.at_us for v in some]
        yield (
            preemptor, max(v.plan.data.priority for v in some), victim, kind,
            max(v.unit.priority for v in some), len({v.plan.data.preemption for v in some}), len(some),
            sum(v.status == "gone" for v in some), moment(min(times)), moment(max(times)),
        )  # fmt: skip


def lost_work(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    grouped = defaultdict(dict)  # by unit of a plan
    for v in inputs.victims:
        if (
            _within(query, v.plan)
            and _about(query, v.plan.gang, v.unit.path)
            and v.status == "gone"
        ):
            hour = moment(v.plan.at_us // 3_600_000_000 * 3_600_000_000)
            spaces = (v.unit.path.partition("/")[0], v.plan.gang.partition("/")[0])
            units = grouped[hour, *spaces]
            _, pods = units.get((v.plan.position, v.unit.name), (v, 0))
            units[v.plan.position, v.unit.name] = v, pods + 1
    moved = defaultdict(list)  # GPU-hours that each move loses
    for event in inputs.events:
        if not isinstance(event.data, MoveCompleted) or not _within(query, event):
            continue
        plan = next(e.data for e in inputs.events if e.position == event.cause_position)
        if _about(query, plan.for_gang, event.gang):
            hour = moment(event.at_us // 3_600_000_000 * 3_600_000_000)
            spaces = (event.gang.partition("/")[0], plan.for_gang.partition("/")[0])
            moved[hour, *spaces].append(plan.moves[event.data.number - 1].lost_min / 60)
    for key in grouped.keys() | moved.keys():
        units, lost = grouped.get(key, {}), moved.get(key, ())
        rows = [
            (v.plan.position, pods, v.unit.cost.get("lost_min", 0) / 60, _in_vain(inputs, v.plan))
            for v, pods in units.values()
        ]
        vain = [row for row in rows if row[3]]
        yield (
            *key, len({row[0] for row in rows}), sum(row[1] for row in rows) + len(lost), sum(row[2] for row in rows) + sum(lost),
            len({row[0] for row in vain}), sum((row[2] for row in vain), 0.0), len(lost),
        )  # fmt: skip


def _in_vain(inputs: ReportInputs, planned: RecordedEvent) -> bool:
    """Return whether no tree used what an eviction freed for a minute."""
    ends = (
        e for e in inputs.events if e.gang_uid == planned.gang_uid and e.position > planned.position
    )
    end = next(
        (
            e
            for e in ends
            if isinstance(e.data, PreemptionPlanned | PreemptionCompleted | PreemptionCancelled)
        ),
        None,
    )
    data = end.data if end is not None else None
    if isinstance(data, PreemptionCancelled):
        return data.reason not in {"taken-over", "no-longer-needed"}
    if not isinstance(data, PreemptionCompleted) or planned.data.kind == "Pod":
        return False
    spans = [
        s
        for s in inputs.bound
        if s.gang_uid == planned.gang_uid and planned.position < s.from_position < end.position
    ]
    briefly = (s.to_us is not None and s.to_us - s.from_us < 60_000_000 for s in spans)
    return bool(spans) and all(briefly)


def _measured(
    inputs: ReportInputs, query: ReportQuery
) -> Iterator[tuple[RecordedEvent, RecordedEvent | None]]:
    """Return the measurements of the span and the one that stood when it began, each with the next."""
    some = [e for e in inputs.events if isinstance(e.data, CapacityMeasured)]
    before = [e.at_us for e in some if e.at_us < query.since_us]
    begin = max(before, default=query.since_us)
    for event, after in pairwise([*some, None]):
        if begin <= event.at_us < query.until_us:
            yield event, after


def largest_free(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    for event, after in _measured(inputs, query):
        until = after.at_us if after is not None else None
        if until is None or until > query.since_us:
            for r in event.data.largest_free:
                yield (
                    moment(event.at_us), r.resource, r.key or "node", r.domain, r.free, r.nodes, r.total,
                    moment(until), event.position,
                )  # fmt: skip


def largest_free_used(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    for measured, after in _measured(inputs, query):
        for event in inputs.events:
            data = event.data
            if not isinstance(data, GangAdmitted | GangExtended) or not _about(query, event.gang):
                continue
            counted = measured.data.as_of < event.position and (
                after is None or event.position <= after.data.as_of
            )
            if not counted or not _within(query, event):
                continue
            for r in measured.data.largest_free:
                there = [
                    a
                    for a in data.assignments
                    if r.domain == (data.topology.get(a.node, {}).get(r.key) if r.key else a.node)
                ]
                taken = sum(data.shapes[a.shape].get(r.resource, 0) for a in there)
                if taken:
                    yield (
                        event.gang, event.gang_uid, r.resource, r.key or "node", r.domain, r.free, taken,
                        len(there), moment(event.at_us), event.position,
                    )  # fmt: skip


def usage(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    rows: list[Row] = []
    for n in range(97):
        at_us = query.since_us + (query.until_us - query.since_us) * n // 96
        amounts: dict[Row, float] = defaultdict(float, {("pending", "gangs"): 0})
        for s in [*inputs.roots, *inputs.reserved, *inputs.bound]:
            covers = s.from_us <= at_us and (s.to_us is None or at_us < s.to_us)
            if not covers or not _about(query, s.root):
                continue
            if s.state in PENDING:
                amounts["pending", "gangs"] += 1
            elif s.state in ("reserved", "bound"):
                for resource, amount in s.what.requests.items():
                    if "/" in resource or resource == "cpu":
                        amounts[s.state, resource] += amount
        for (state, resource), amount in amounts.items():
            if amount or state == "pending":
                units = amount / 1000 if resource == "cpu" else amount
                rows.append((moment(at_us), state, resource, float(units)))
    if any(amount for *_, amount in rows):
        yield from rows


def reserved(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    grouped: dict[Row, list[tuple[float, Stretch]]] = defaultdict(list)
    for s in inputs.reserved:
        held: Reservation = s.what
        if s.overlaps(query) and _about(query, s.root):
            for resource, amount in held.requests.items():
                if "/" in resource or resource == "cpu":
                    units = amount / 1000 if resource == "cpu" else amount
                    grouped[s.root, s.gang_uid, resource].append((units, s))
    for key, some in grouped.items():
        hours = sum(units * s.seconds(query) for units, s in some) / 3600
        longest = max(s.seconds(query) for _, s in some)
        yield (*key, hours, len(some), sum(s.stands(query) for _, s in some), longest)


def decisions(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    hours: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for event in inputs.events:
        data = event.data
        if not _within(query, event) or not _about(query, event.gang):
            continue
        counts = {}
        match data:
            case GangAdmitted() | GangExtended():
                what = "admitted" if isinstance(data, GangAdmitted) else "extended"
                counts = {what: 1, "pods": len(data.assignments)}
            case GangUnschedulable():
                counts = {data.outcome: 1}
            case GangInvalid():
                counts = {"invalid": 1}
        for what, count in counts.items():
            hours[event.at_us // HOUR_US][what] += count
    for hour, seen in hours.items():
        names = ("admitted", "extended", "pods", "impossible", "unknown", "waiting", "invalid")
        yield (moment(hour * HOUR_US), *(seen[name] for name in names))


def terminations(inputs: ReportInputs, query: ReportQuery) -> Iterator[Row]:
    for lost in inputs.terminations:
        event, data = lost.event, lost.event.data
        if _within(query, event) and _about(query, event.gang):
            yield (
                moment(event.at_us), event.gang, event.gang_uid, data.pod, data.node, data.cause,
                lost.preemptor, lost.seconds, event.position,
            )  # fmt: skip


PLAIN: dict[str, Callable[[ReportInputs, ReportQuery], Iterator[Row]]] = {
    "pending": pending,
    "pending-namespaces": pending_namespaces,
    "queue-bypass": passed_over,
    "preemption-pairs": preemption_pairs,
    "lost-work": lost_work,
    "largest-free": largest_free,
    "largest-free-used": largest_free_used,
    "usage": usage,
    "reserved": reserved,
    "decisions": decisions,
    "terminations": terminations,
}


def plainly(events: Iterable[RecordedEvent], query: ReportQuery) -> list[Row]:
    """Return the rows of a report, in no order."""
    return list(PLAIN[query.name](ReportInputs(events), query))


class FakeReportQueries:
    """`ReportQueries` on the database in memory."""

    def __init__(self, database: FakeDatabase) -> None:
        self.database = database

    async def rows(self, query: ReportQuery) -> ReportRows:
        events = [to_event(row) for row, _ in self.database.rows]
        head = self.database.head.position
        return ReportRows(rows=plainly(events, query)[: query.limit + 1], head=head, projected=head)
