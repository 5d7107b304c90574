"""The rows that the interval tables of the database must have, computed from events.

`gx.project_event` in migrations/sql does the same in the database. Reports are answered from its tables, which the owner of
the database can change; so they are compared with these rows (`queries/verification`). There is a branch here for each
branch there, and a test compares both for random logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from extender.core.log import events as ev
from extender.core.log.gang_phase import HOLDS_CAPACITY
from extender.core.log.reservation_state import EVICTED_BY_EXTENDER, preemption_summary


class PlacementRow(msgspec.Struct, eq=False, gc=False):
    """A row of `gx.placement`, in the order of its columns."""

    pod_uid: str
    pod: str
    gang_uid: str
    gang: str
    pod_group: str
    node: str
    kind: str
    plan: str
    priority: int | None
    extra: bool | None
    resources: Mapping[str, int] | None
    from_position: int
    from_at_us: int
    to_position: int | None = None
    to_at_us: int | None = None
    end_type: str | None = None
    end_reason: str | None = None
    by_gang: str | None = None
    by_position: int | None = None


_ENDS: Final = PlacementRow.__struct_fields__[-6:]  # None of a row that lasts


class GangRow(msgspec.Struct, eq=False, gc=False):
    """A row of `gx.gang_state`, in the order of its columns."""

    gang_uid: str
    gang: str
    kind: str = ""
    priority: int = 0
    state: str = ""
    phase: str = "observed"
    outcome: str | None = None
    reasons: tuple[str, ...] = ()
    last_decision_position: int | None = None
    from_position: int = 0
    from_at_us: int = 0
    to_position: int | None = None
    to_at_us: int | None = None


class VictimStatusRow(msgspec.Struct, eq=False, gc=False):
    """A row of `gx.victim`, in the order of its columns."""

    position: int
    pod_uid: str
    pod: str
    node: str
    unit: str
    unit_priority: int
    status: str = "terminating"
    via: str | None = None
    gone_position: int | None = None
    gone_at_us: int | None = None


class PreemptionRow(msgspec.Struct, eq=False):
    """A row of `gx.preemption`, in the order of its columns, and its victims."""

    position: int
    at_us: int
    preemption: str
    gang_uid: str
    gang: str
    kind: str
    priority: int
    started_units: set[str] = set()
    evicted: int = 0
    pending: bool = True
    outcome: str | None = None
    ended_position: int | None = None
    ended_at_us: int | None = None
    victims: list[VictimStatusRow] = []


IntervalRow = PlacementRow | GangRow | VictimStatusRow | PreemptionRow


def _text(text: str) -> str:
    """Return a text as the database stores it, which cannot store NUL."""
    return text.replace("\0", "\ufffd")


class IntervalRows:
    """Computes rows event by event; `completed` has those that no later event changes."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, list[PlacementRow]]] = {}  # by gang, then by pod
        self._holds: dict[str, list[PlacementRow]] = {}  # open replacement holds, by gang
        self._newest: dict[str, dict[str, PlacementRow]] = {}  # by gang, then by pod
        self._node_lost: dict[str, set[str]] = {}  # by gang: pods that were lost with a node
        self._superseded: dict[tuple[str, str, str], list[PlacementRow]] = {}
        self._gangs: dict[str, GangRow] = {}  # the open row of each gang
        self._pending: dict[str, PreemptionRow] = {}  # by gang
        self._victims: dict[str, list[tuple[PreemptionRow, VictimStatusRow]]] = {}  # by pod
        self.begun = {"placement": 0, "gang_state": 0, "preemption": 0, "victim": 0}
        # The caller takes these rows and clears the list. Besides open rows only the newest row of each pod of an existing
        # gang and the last state of each gang stay in memory, so memory does not grow with the log.
        self.completed: list[IntervalRow] = []

    def open_rows(self) -> Iterator[IntervalRow]:
        """Yield the rows that later events may change."""
        for pods in self._open.values():
            for rows in pods.values():
                yield from rows
        for rows in self._superseded.values():
            yield from rows
        yield from self._gangs.values()
        for preemption in self._pending.values():
            yield preemption
            yield from preemption.victims

    def apply(self, event: ev.RecordedEvent) -> None:  # noqa: C901, PLR0912, PLR0915 -- one arm per event, as in SQL
        """Apply the next event."""
        data, before = event.data, self._gangs.get(event.gang_uid)
        exists = before is not None and before.phase != "removed"
        row = _next_row(event, before if exists else None)
        match data:
            case ev.PodBound():
                self._bind(event, data)
                if exists:
                    return
            case ev.GangAdmitted() | ev.GangExtended():
                self._reserve(event, data)
                self._use_holds(event, [(_text(a.group), a.node) for a in data.assignments])
                row.priority = data.priority
                _decided(row, None, (), None)
                if isinstance(data, ev.GangAdmitted):
                    row.kind = _text(data.kind)
                    if row.phase != "scheduled":
                        row.phase = "admitted"
            case ev.GangObserved():
                row.kind, row.priority = _text(data.kind), data.priority
            case ev.GangScheduled():
                row.phase = "scheduled"
            case ev.MemberTerminated():
                lost = self._end(event, "bound", [data.uid], data.cause) if exists else []
                if not lost:
                    return
                if data.held_until_us and data.cause != "node-lost":
                    begin: dict[str, object] = dict.fromkeys(_ENDS) | {"kind": "replacement"}
                    begin |= {"from_position": event.position, "from_at_us": event.at_us}
                    for placement in lost:
                        hold = msgspec.structs.replace(placement, priority=row.priority, **begin)
                        self._begin(hold)
            case ev.ReservationReleased():
                pods = [pod.uid for pod in data.pods]
                for kind in ("reserved", "replacement"):
                    self._end(event, kind, pods, data.reason)
            case ev.GangRemoved():
                self._end(event, None, list(self._open.get(event.gang_uid, {})), data.reason)
                self._follow(event)
                row.phase = "removed"
                _decided(row, None, (), None)
            case ev.GangUnschedulable():
                reasons = (*data.reasons, *data.preemption_notes)
                _decided(row, _text(data.outcome), reasons, event.position)
                if row.phase not in HOLDS_CAPACITY:
                    row.phase = "waiting" if data.outcome == "waiting" else "unschedulable"
            case ev.GangInvalid():
                _decided(row, "invalid", data.problems, event.position)
                if row.phase not in HOLDS_CAPACITY:
                    row.phase = "invalid"
            case ev.NodeTopologyChanged() | ev.GangGroupsChanged():
                pass
            case ev.PreemptionPlanned():
                self._plan(event, data)
                if data.kind == "Pod":
                    return
                text = f"waits for its preemption to finish: {preemption_summary(data)}"
                _decided(row, "preempting", (text,), event.position)
            case ev.VictimGone() | ev.PreemptionCompleted() | ev.PreemptionCancelled():
                followed = self._follow(event)
                cancels = isinstance(data, ev.PreemptionCancelled) and row.outcome == "preempting"
                if not (followed and exists and cancels):
                    return
                _decided(row, None, (), None)
            case _:
                return
        if (
            isinstance(data, ev.MemberTerminated | ev.ReservationReleased)
            and row.phase == "admitted"
            and not self._holds_capacity(event.gang_uid)
        ):
            row.phase = "observed"
        self._state(row, before)

    # -- placements ---------------------------------------------------------------------------------

    def _begin(self, row: PlacementRow) -> None:
        self.begun["placement"] += 1
        self._open.setdefault(row.gang_uid, {}).setdefault(row.pod_uid, []).append(row)
        self._newest.setdefault(row.gang_uid, {})[row.pod_uid] = row
        if row.kind == "replacement":
            self._holds.setdefault(row.gang_uid, []).append(row)

    def _close(self, event: ev.RecordedEvent, row: PlacementRow, reason: str) -> None:
        row.to_position, row.to_at_us = event.position, event.at_us
        row.end_type, row.end_reason = type(event.data).__name__, _text(reason)
        pods = self._open[row.gang_uid]
        pods[row.pod_uid].remove(row)
        if not pods[row.pod_uid]:
            del pods[row.pod_uid]
        if row.kind == "replacement":
            self._holds[row.gang_uid].remove(row)
        if row.end_reason == "node-lost":
            self._node_lost.setdefault(row.gang_uid, set()).add(row.pod_uid)

    def _end(
        self, event: ev.RecordedEvent, kind: str | None, pods: Iterable[str], reason: str
    ) -> list[PlacementRow]:
        """End the open intervals of some pods, of one kind (None: any); return them."""
        ended = []
        for pod in map(_text, pods):
            for row in list(self._open.get(event.gang_uid, {}).get(pod, ())):
                if kind not in (None, row.kind):
                    continue
                self._close(event, row, reason)
                for preemption, victim in reversed(self._victims.get(row.pod_uid, ())):
                    if victim.status != "spared":
                        row.by_gang, row.by_position = preemption.gang, preemption.position
                        break
                ended.append(row)
                if row.end_reason == "superseded" and row.by_position is None:
                    key = (row.gang_uid, row.pod_uid, row.plan)
                    self._superseded.setdefault(key, []).append(row)
                else:
                    self.completed.append(row)
        return ended

    def _bind(self, event: ev.RecordedEvent, data: ev.PodBound) -> None:
        uid, gang = _text(data.uid), event.gang_uid
        rows = self._open.get(gang, {}).get(uid, [])
        returned = uid in self._node_lost.get(gang, ())
        if not returned and all(row.kind == "replacement" for row in rows):
            self._use_holds(event, [(_text(data.group), data.node)])
        rows = list(self._open.get(gang, {}).get(uid, ()))
        newest = self._newest.get(gang, {}).get(uid)
        held = next((row for row in rows if row.kind == "reserved"), newest)
        for kind, reason in (("reserved", "bound"), ("bound", "replaced")):
            for row in rows:
                if row.kind == kind:
                    self._close(event, row, reason)
                    self.completed.append(row)
        new = _placement(event, "bound", data, data.plan)
        if held is not None:
            new.priority, new.extra, new.resources = held.priority, held.extra, held.resources
        self._begin(new)

    def _reserve(self, event: ev.RecordedEvent, data: ev.GangAdmitted | ev.GangExtended) -> None:
        self._end(event, "reserved", [a.uid for a in data.assignments], "replaced")
        for assignment in {_text(a.uid): a for a in data.assignments}.values():
            new = _placement(event, "reserved", assignment, data.plan)
            new.priority, new.extra = data.priority, assignment.extra
            if assignment.shape < len(data.shapes):
                new.resources = data.shapes[assignment.shape]
            self._begin(new)

    def _use_holds(self, event: ev.RecordedEvent, members: list[tuple[str, str]]) -> None:
        """End the replacement holds that new members use: on the same node first, then the oldest."""
        if not self._holds.get(event.gang_uid):
            return
        elsewhere = [
            (group, node) for group, node in members if not self._use(event, group, _text(node))
        ]
        for group, _ in elsewhere:
            self._use(event, group, None)

    def _use(self, event: ev.RecordedEvent, group: str, node: str | None) -> bool:
        holds = [
            row
            for row in self._holds[event.gang_uid]
            if row.pod_group == group and node in (None, row.node)
        ]
        if not holds:
            return False
        oldest = min(
            holds, key=lambda row: (row.from_at_us, row.pod.encode(), row.pod_uid.encode())
        )
        return bool(self._end(event, "replacement", [oldest.pod_uid], "replaced"))

    def _holds_capacity(self, gang: str) -> bool:
        return any(
            row.kind != "replacement" for rows in self._open.get(gang, {}).values() for row in rows
        )

    # -- states of gangs ----------------------------------------------------------------------------

    def _state(self, row: GangRow, before: GangRow | None) -> None:
        preempting = row.outcome == "preempting" and row.phase not in HOLDS_CAPACITY
        row.state = "preempting" if preempting else row.phase
        if before is not None:
            if _standing(before) == _standing(row):
                return
            before.to_position, before.to_at_us = row.from_position, row.from_at_us
            self.completed.append(before)
        self.begun["gang_state"] += 1
        self._gangs[row.gang_uid] = row

    # -- preemptions --------------------------------------------------------------------------------

    def _plan(self, event: ev.RecordedEvent, data: ev.PreemptionPlanned) -> None:
        before = self._pending.pop(event.gang_uid, None)
        if before is not None:
            before.pending = False
            _ended(before, event, "replaced")
            self._complete(before)
        victims = {
            _text(pod.uid): VictimStatusRow(
                position=event.position,
                pod_uid=_text(pod.uid),
                pod=_text(pod.pod),
                node=_text(pod.node),
                unit=_text(unit.name),
                unit_priority=unit.priority,
            )
            for unit in data.victims
            for pod in unit.pods
        }
        row = PreemptionRow(
            position=event.position,
            at_us=event.at_us,
            preemption=_text(data.preemption),
            gang_uid=event.gang_uid,
            gang=event.gang,
            kind=_text(data.kind),
            priority=data.priority,
            victims=list(victims.values()),
        )
        self.begun["preemption"] += 1
        self.begun["victim"] += len(victims)
        self._pending[event.gang_uid] = row
        for victim in row.victims:
            self._victims.setdefault(victim.pod_uid, []).append((row, victim))
        for tree in data.superseded:
            for pod in tree.pods:
                key = (_text(tree.gang_uid), _text(pod.uid), _text(tree.plan))
                for gave in self._superseded.pop(key, ()):
                    gave.by_gang, gave.by_position = event.gang, event.position
                    self.completed.append(gave)

    def _follow(self, event: ev.RecordedEvent) -> bool:
        """Follow the pending preemption of a gang; return whether there is one."""
        row, data = self._pending.get(event.gang_uid), event.data
        if row is None:
            return False
        if isinstance(data, ev.VictimGone):
            uid = _text(data.uid)
            terminating = [v for v in row.victims if v.pod_uid == uid and v.status == "terminating"]
            if not terminating:
                return True
            for victim in terminating:
                victim.status, victim.via = "gone", data.via
                victim.gone_position, victim.gone_at_us = event.position, event.at_us
            row.evicted += 1
            if data.via in EVICTED_BY_EXTENDER:
                row.started_units.add(_text(data.unit))
        elif isinstance(data, ev.PreemptionCompleted):
            row.outcome = row.outcome or "completed"
        else:
            if isinstance(data, ev.PreemptionCancelled):
                row.started_units.update(map(_text, data.units_in_progress))
            for victim in row.victims:
                if victim.status == "terminating" and victim.unit not in row.started_units:
                    victim.status = "spared"
            reason = (
                data.reason if isinstance(data, ev.PreemptionCancelled) else "preemptor-deleted"
            )
            row.outcome = row.outcome or _text(reason)
        if row.outcome is not None:
            _ended(row, event, row.outcome)
            row.pending = any(victim.status == "terminating" for victim in row.victims)
            if not row.pending:
                del self._pending[event.gang_uid]
                self._complete(row)
        return True

    def _complete(self, row: PreemptionRow) -> None:
        self.completed.append(row)
        self.completed.extend(row.victims)


def _placement(
    event: ev.RecordedEvent, kind: str, pod: ev.PodBound | ev.AssignmentRecord, plan: str
) -> PlacementRow:
    """Return the row that an event begins for a pod, as far as pod and event have it."""
    return PlacementRow(
        pod_uid=_text(pod.uid), pod=_text(pod.pod), gang_uid=event.gang_uid, gang=event.gang, pod_group=_text(pod.group),
        node=_text(pod.node), kind=kind, plan=_text(plan), priority=None, extra=None, resources=None, from_position=event.position, from_at_us=event.at_us,
    )  # fmt: skip


def _next_row(event: ev.RecordedEvent, before: GangRow | None) -> GangRow:
    """Return the next row of a gang, to be changed: as before, or that of a new gang."""
    before = before or GangRow(gang_uid=event.gang_uid, gang=event.gang)
    return msgspec.structs.replace(before, from_position=event.position, from_at_us=event.at_us)


def _decided(
    row: GangRow, outcome: str | None, reasons: Iterable[str], position: int | None
) -> None:
    row.outcome, row.reasons = outcome, tuple(map(_text, reasons))
    row.last_decision_position = position


def _standing(row: GangRow) -> tuple[object, ...]:
    return (
        row.gang, row.kind, row.priority, row.state, row.phase, row.outcome, row.reasons,
        row.last_decision_position,
    )  # fmt: skip


def _ended(row: PreemptionRow, event: ev.RecordedEvent, outcome: str) -> None:
    row.outcome = row.outcome or outcome
    if row.ended_position is None:
        row.ended_position, row.ended_at_us = event.position, event.at_us
