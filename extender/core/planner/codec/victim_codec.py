"""The units that can be evicted as canonical bytes, cut so that decisions share what did not change.

Pods are sorted by the priority of their unit, its name and their own, and cut by `cut`: one
pod more or less changes one part, and a preemptor of higher priority shares all parts of one of lower priority. A
part is self-contained: it has the shapes of its own pods, and refers to gangs and budgets by name. Indexes are
assigned when the parts are decoded, always the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    Evictable,
    PlanBudget,
    PlanDependent,
    PlanGang,
    PlanUnit,
    PlanVictim,
    UnitKind,
)

ROWS_PER_PART = 16  # on average; of pods 1.5 kB compressed, where a row in the database has an overhead of 0.15 kB
T = TypeVar("T")


def begins_part(name: str) -> bool:
    """Return whether a part begins with the row of this name. Must never change: stored inputs depend on it.

    >>> [begins_part(f"ns/pod-{n}") for n in range(20)].count(True)
    2
    """
    return zlib.crc32(name.encode()) % ROWS_PER_PART == 0


def cut(rows: Iterable[T], name_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut rows, in their order, into parts; no part is empty.

    >>> [len(run) for run in cut([f"ns/pod-{n}" for n in range(20)], str)]
    [13, 7]
    """
    run: list[T] = []
    for row in rows:
        if run and begins_part(name_of(row)):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


class VictimRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `PlanVictim` with names instead of indexes, except of shapes in its part and of rules of the request."""

    pod: str
    uid: PodUid
    node: NodeName
    shape: int  # index into the shapes of the part
    since_us: int
    budgets: tuple[str, ...]
    gang: str  # empty: none
    rules: tuple[int, ...]


class UnitRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A unit, or those of its pods that are in this part: the next part may have the rest."""

    name: str
    uid: str
    kind: UnitKind
    priority: int
    may_preempt: bool
    pods: tuple[VictimRow, ...]
    disruption_target: bool = False


# a new format of a part gets a new tag, and the old one stays readable: stored decisions have it
class UnitTable(msgspec.Struct, frozen=True, array_like=True, tag="units"):
    """Units of one priority."""

    shapes: tuple[PodShape, ...]
    rows: tuple[UnitRow, ...]


class TerminatingTable(msgspec.Struct, frozen=True, array_like=True, tag="terminating"):
    """Terminating pods."""

    shapes: tuple[PodShape, ...]
    rows: tuple[VictimRow, ...]


class DependentTable(msgspec.Struct, frozen=True, array_like=True, tag="dependents"):
    """Reservations that go with the eviction of units, each with the pods after whose eviction it does."""

    shapes: tuple[PodShape, ...]
    rows: tuple[tuple[tuple[VictimRow, ...], tuple[PodUid, ...]], ...]


class GangTable(msgspec.Struct, frozen=True, array_like=True, tag="gangs"):
    """Whole trees; `parent` is the distance to the row of the parent above, 0 for a root."""

    rows: tuple[PlanGang, ...]


class BudgetTable(msgspec.Struct, frozen=True, array_like=True, tag="budgets"):
    """PodDisruptionBudgets."""

    rows: tuple[PlanBudget, ...]


Part: TypeAlias = UnitTable | TerminatingTable | DependentTable | GangTable | BudgetTable

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[Part] = msgspec.json.Decoder(Part)


def to_parts(source: Evictable) -> Iterator[bytes]:
    """Encode everything but the head of an `Evictable` into parts.

    Raises:
        ValueError: Units, their pods, or the terminating pods are not sorted.
    """
    _check_order(source)
    for budgets in cut(sorted(source.budgets, key=lambda b: b.name), lambda b: b.name):
        yield _ENCODER.encode(BudgetTable(tuple(budgets)))
    for trees in cut(_trees(source.gangs), lambda tree: tree[0].name):
        yield _ENCODER.encode(GangTable(tuple(gang for tree in trees for gang in tree)))
    writer = _Writer(source)
    for priority in sorted({unit.priority for unit in source.units}):
        pods = [(u, p) for u in source.units if u.priority == priority for p in u.pods]
        for several in cut(pods, lambda pair: pair[1].pod):
            yield writer.units(several)
    for going in cut(source.going, lambda pod: pod.pod):
        yield writer.going(going)
    for dependents in cut(source.dependents or (), lambda each: each.pods[0].pod):
        yield writer.dependents(dependents)


def _check_order(source: Evictable) -> None:
    names = [(unit.kind, unit.name, unit.uid) for unit in source.units]
    lists = [[pod.pod for pod in unit.pods] for unit in source.units]
    lists.append([pod.pod for pod in source.going])
    lists += [[pod.pod for pod in each.pods] for each in source.dependents or ()]
    lists.append([each.pods[0].pod for each in source.dependents or ()])
    if names != sorted(set(names)) or any(pods != sorted(pods) for pods in lists):
        raise ValueError("units must be sorted by kind, name and UID, each once, and pods by name")
    if not all(unit.pods for unit in source.units):
        raise ValueError("a unit without pods cannot be evicted")


def _trees(gangs: Sequence[PlanGang]) -> list[list[PlanGang]]:
    """Return the groups tree by tree, sorted by root, with parents given by distance."""
    roots: list[int] = []
    place: list[int] = []  # of each group in its tree
    trees: dict[int, list[PlanGang]] = {}
    for i, gang in enumerate(gangs):
        roots.append(i if gang.parent < 0 else roots[gang.parent])
        tree = trees.setdefault(roots[i], [])
        place.append(len(tree))
        distance = 0 if gang.parent < 0 else place[i] - place[gang.parent]
        tree.append(msgspec.structs.replace(gang, parent=distance))
    return sorted(trees.values(), key=lambda tree: tree[0].name)


class _Writer:
    """Encodes pods without the indexes of their `Evictable`."""

    def __init__(self, source: Evictable) -> None:
        self._shapes = source.shapes
        self._budgets = [budget.name for budget in source.budgets]
        self._gangs = [*(gang.name for gang in source.gangs), ""]  # -1: none

    def units(self, pods: Sequence[tuple[PlanUnit, PlanVictim]]) -> bytes:
        shapes: dict[int, int] = {}
        rows: list[UnitRow] = []
        for _, run in groupby(pods, key=lambda pair: id(pair[0])):
            of_unit = list(run)
            victims = tuple([self._row(pod, shapes) for _, pod in of_unit])
            u = of_unit[0][0]
            rows.append(
                UnitRow(
                    u.name, u.uid, u.kind, u.priority, u.may_preempt, victims, u.disruption_target
                )
            )
        return _ENCODER.encode(UnitTable(self._table(shapes), tuple(rows)))

    def going(self, pods: Sequence[PlanVictim]) -> bytes:
        shapes: dict[int, int] = {}
        rows = tuple(self._row(pod, shapes) for pod in pods)
        return _ENCODER.encode(TerminatingTable(self._table(shapes), rows))

    def dependents(self, dependents: Sequence[PlanDependent]) -> bytes:
        shapes: dict[int, int] = {}
        rows = tuple(
            (tuple([self._row(pod, shapes) for pod in each.pods]), each.after)
            for each in dependents
        )
        return _ENCODER.encode(DependentTable(self._table(shapes), rows))

    def _row(self, pod: PlanVictim, shapes: dict[int, int]) -> VictimRow:
        return VictimRow(
            pod.pod,
            pod.uid,
            pod.node,
            shapes.setdefault(pod.shape, len(shapes)),
            pod.since_us,
            tuple([self._budgets[i] for i in pod.budgets]) if pod.budgets else (),
            self._gangs[pod.gang],
            pod.rules,
        )

    def _table(self, shapes: Iterable[int]) -> tuple[PodShape, ...]:
        return tuple(self._shapes[i] for i in shapes)


def from_parts(head: Evictable, parts: Iterable[bytes]) -> Evictable:
    """Return the `Evictable` of a head and parts.

    Gangs are in the order of trees, sorted by root, budgets by name, shapes by first use.

    Args:
        head: The fields that are in no part.

    Raises:
        ValueError: A pod names a gang, a budget or a shape that is not there.
        msgspec.ValidationError: The bytes are not a part.
    """
    reader = _Reader()
    pieces: list[tuple[UnitRow, tuple[PodShape, ...]]] = []
    going: list[TerminatingTable] = []
    dependents: list[DependentTable] = []
    for part in map(_DECODER.decode, parts):
        match part:
            case BudgetTable():
                reader.budgets += part.rows
            case GangTable():
                reader.add_gangs(part.rows)
            case UnitTable():
                pieces += ((row, part.shapes) for row in part.rows)
            case TerminatingTable():
                going.append(part)
            case DependentTable():
                dependents.append(part)
    reader.number()
    pieces.sort(key=_unit_of)  # stable: rows of one unit keep their order
    units = tuple(reader.unit(list(rows)) for _, rows in groupby(pieces, key=_unit_of))
    return msgspec.structs.replace(
        head,
        units=units,
        going=tuple(reader.victim(row, part.shapes) for part in going for row in part.rows),
        dependents=tuple(
            PlanDependent(
                pods=tuple([reader.victim(row, part.shapes) for row in rows]), after=after
            )
            for part in dependents
            for rows, after in part.rows
        )
        or UNSET,
        shapes=tuple(reader.shapes),
        gangs=tuple(reader.gangs),
        budgets=tuple(reader.budgets),
    )


def units_in(part: bytes) -> list[tuple[tuple[str, str, str], int]]:
    """Return the units in a part, by kind, name and UID, each with the number of its pods in this part.

    Empty for a part without units. The next part may have more pods of the last unit.

    Raises:
        msgspec.ValidationError: The bytes are not a part.
    """
    table = _DECODER.decode(part)
    if not isinstance(table, UnitTable):
        return []
    return [((row.kind, row.name, row.uid), len(row.pods)) for row in table.rows]


def _unit_of(piece: tuple[UnitRow, tuple[PodShape, ...]]) -> tuple[str, str, str]:
    return piece[0].kind, piece[0].name, piece[0].uid


class _Reader:
    """Assigns indexes to the names in the rows."""

    def __init__(self) -> None:
        self.budgets: list[PlanBudget] = []
        self.gangs: list[PlanGang] = []
        self.shapes: dict[PodShape, int] = {}
        self._budget_of: Mapping[str, int] = {}
        self._gang_of: Mapping[str, int] = {}

    def add_gangs(self, rows: Iterable[PlanGang]) -> None:
        for gang in rows:
            parent = len(self.gangs) - gang.parent if gang.parent else -1
            self.gangs.append(msgspec.structs.replace(gang, parent=parent))

    def number(self) -> None:
        self._budget_of = {budget.name: i for i, budget in enumerate(self.budgets)}
        self._gang_of = {"": -1, **{gang.name: i for i, gang in enumerate(self.gangs)}}

    def unit(self, pieces: Sequence[tuple[UnitRow, tuple[PodShape, ...]]]) -> PlanUnit:
        row = pieces[0][0]
        return PlanUnit(
            name=row.name,
            uid=row.uid,
            kind=row.kind,
            priority=row.priority,
            may_preempt=row.may_preempt,
            disruption_target=row.disruption_target,
            pods=tuple([self.victim(pod, shapes) for r, shapes in pieces for pod in r.pods]),
        )

    def victim(self, row: VictimRow, shapes: Sequence[PodShape]) -> PlanVictim:
        try:
            return PlanVictim(
                pod=row.pod,
                uid=row.uid,
                node=row.node,
                shape=self.shapes.setdefault(shapes[row.shape], len(self.shapes)),
                since_us=row.since_us,
                budgets=tuple([self._budget_of[name] for name in row.budgets]),
                gang=self._gang_of[row.gang],
                rules=row.rules,
            )
        except LookupError as error:
            raise ValueError(f"pod {row.pod} names {error}, which is in no part") from error
