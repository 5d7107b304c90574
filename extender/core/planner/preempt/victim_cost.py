"""The cost of evicting a set of units: a total order over all sets, the cheapest first.

Every part of the cost only grows with the set, so a cheapest set is also minimal: no unit of it could stay.

The order is E-9 (docs/reference/groups.md).
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np

from extender.core.planner.model.node_filters import may_run
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import Evictable, PlanRequest, PlanUnit
from extender.core.planner.preempt.post_eviction_view import PostEvictionCapacity

NO_PRIORITY = -(2**31) - 1  # the highest priority of an empty set: below every priority
PRIORITY_OFFSET = 2**31  # makes every priority positive


class VictimCost(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The cost of a set of units; compared field by field, in this order.

    Source:
        E-8 and E-9.
    """

    violations: int = 0  # evictions beyond what PodDisruptionBudgets allow, summed over the budgets
    highest: int = NO_PRIORITY  # priority of the most important victim
    # Running gangs that lose all their work: groups that are evicted as a whole (disruption mode `all`), and gangs that fall
    # below their minimum. So of pods with equal priority single pods and extra members are evicted first, even if these are
    # more, and of two gangs the one with fewer pods. It comes after `highest`: only its priority makes a gang important.
    broken: int = 0
    cascades: int = 0  # units that would evict others when they are created again, see `_cascades`
    lost_min: int = 0  # GPU-minutes of work since the start or last checkpoint of the victims
    weight: int = 0  # sum over units of priority + 2^31
    units: int = 0
    pods: int = 0
    age_s: int = (
        0  # seconds of work of the victims beyond that of the youngest evictable pod, summed
    )
    # of units without `has_cost`: superseded reservations, and victims of another preemption
    reserved: int = 0  # sum of priority + 2^31
    reserved_pods: int = 0
    names: tuple[str, ...] = ()  # sorted; makes the order total

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return all but the names, in their order."""
        numbers: tuple[int, ...] = msgspec.structs.astuple(self)[:-1]
        return numbers


class CostModel:
    """The costs of the units of one request."""

    def __init__(
        self, request: PlanRequest, units: tuple[PlanUnit, ...], node_table: NodeTable
    ) -> None:
        """Compute what does not depend on the set.

        Args:
            request: Without its terminating pods.
            node_table: The node table, of nodes with the same labels and taints as those of the request.
        """
        self.source = request.evictable or Evictable(priority=0)
        self.units = units
        running = [p.since_us for u in units if u.kind != "reservation" for p in u.pods]
        self._youngest = max(running, default=0)
        self._ages_s = [self.age_s(u) for u in units]
        self.lost_min = [self.source.lost_min(u) for u in units]
        self._lost = [_members_lost(u) for u in units]  # by leaf
        self._have = self._satisfied({})
        self.cascades = _cascades(request, units, node_table)

    def age_s(self, unit: PlanUnit) -> int:
        """Return for how long the pods of a unit work beyond the youngest evictable pod, summed, in seconds."""
        return sum((self._youngest - p.since_us) // 1_000_000 for p in unit.pods)

    def protected(self, unit: PlanUnit) -> dict[int, int]:
        """Count the pods of a unit under each budget."""
        counts: dict[int, int] = {}
        for pod in unit.pods:
            for budget in pod.budgets:
                counts[budget] = counts.get(budget, 0) + 1
        return counts

    def cost(self, evicted: list[int]) -> VictimCost:
        """Return the cost of a set, given as positions in `units`."""
        chosen = [self.units[i] for i in evicted]
        running = [i for i in evicted if self.units[i].has_cost]
        victims = [self.units[i] for i in running]
        free = [u for u in chosen if not u.has_cost]
        return VictimCost(
            violations=self._violations(victims),
            highest=max((u.priority for u in victims), default=NO_PRIORITY),
            broken=sum(u.is_whole_group for u in victims) + self._fallen(running),
            cascades=sum(self.cascades[i] for i in evicted),
            lost_min=sum(self.lost_min[i] for i in running),
            weight=sum(u.priority + PRIORITY_OFFSET for u in victims),
            units=len(victims),
            pods=sum(len(u.pods) for u in victims),
            age_s=sum(self._ages_s[i] for i in running),
            reserved=sum(u.priority + PRIORITY_OFFSET for u in free),
            reserved_pods=sum(len(u.pods) for u in free),
            names=tuple(sorted(u.name for u in chosen)),
        )

    def alone(self, index: int) -> VictimCost:
        """Return the cost of one unit alone; the same as `cost`, in less time."""
        unit = self.units[index]
        weight = unit.priority + PRIORITY_OFFSET
        if not unit.has_cost:
            return VictimCost(reserved=weight, reserved_pods=len(unit.pods), names=(unit.name,))
        return VictimCost(
            violations=self._violations([unit]) if self.source.budgets else 0,
            highest=unit.priority,
            broken=unit.is_whole_group + (self._fallen([index]) if self._lost[index] else 0),
            cascades=self.cascades[index],
            lost_min=self.lost_min[index],
            weight=weight,
            units=1,
            pods=len(unit.pods),
            age_s=self._ages_s[index],
            names=(unit.name,),
        )

    def _violations(self, victims: list[PlanUnit]) -> int:
        taken: dict[int, int] = {}
        for unit in victims:
            for budget, pods in self.protected(unit).items():
                taken[budget] = taken.get(budget, 0) + pods
        budgets = self.source.budgets
        return sum(max(0, n - max(budgets[b].allowed, 0)) for b, n in taken.items())

    def _fallen(self, victims: list[int]) -> int:
        """Count the running gangs that fall below their minimum without these units."""
        gangs = self.source.gangs
        lost: dict[int, int] = {}  # by gang; of a leaf members, else children
        for unit in victims:
            for leaf, members in self._lost[unit].items():
                lost[leaf] = lost.get(leaf, 0) + members
        if not lost:
            return 0
        broken = [leaf for leaf, n in lost.items() if self._have[leaf] - n < gangs[leaf].minimum]
        if not broken:
            return 0
        fallen = 0
        waiting = [-i for i in broken]  # the last first: groups come before those below them
        heapq.heapify(waiting)
        while waiting:
            gang = gangs[at := -heapq.heappop(waiting)]
            if self._have[at] < gang.minimum or self._have[at] - lost[at] >= gang.minimum:
                continue
            fallen += gang.counts
            if gang.parent >= 0:
                if gang.parent not in lost:
                    heapq.heappush(waiting, -gang.parent)
                falls = self._have[gang.parent] if gang.required else 1
                lost[gang.parent] = lost.get(gang.parent, 0) + falls
        return fallen

    def _satisfied(self, lost: dict[int, int]) -> list[int]:
        """Return per group its running members and children that keep their minimum, when leaves lose members."""
        gangs = self.source.gangs
        have = [g.running - lost.get(i, 0) for i, g in enumerate(gangs)]
        for i in range(len(gangs) - 1, -1, -1):
            above = gangs[i].parent
            if above >= 0 and have[i] >= gangs[i].minimum:
                have[above] += 1
            elif above >= 0 and gangs[i].required:
                have[above] -= len(gangs)  # it has fewer children, so it is below its minimum
        return have

    def spare(self, leaf: int) -> int | None:
        """Return how many members a running gang can lose above its minimum; None where its fall does not count."""
        gang = self.source.gangs[leaf]
        spare = self._have[leaf] - gang.minimum
        return spare if gang.counts and spare >= 0 else None

    def holding(self, lost: dict[int, int]) -> list[bool]:
        """Return which groups keep their minimum when leaves lose some of their running members."""
        have = self._satisfied(lost) if lost else self._have
        return [n >= g.minimum for n, g in zip(have, self.source.gangs, strict=True)]


def _members_lost(unit: PlanUnit) -> dict[int, int]:
    """Count the pods of a unit by the leaf whose members they are."""
    counts: dict[int, int] = {}
    for pod in unit.pods:
        if pod.gang >= 0:
            counts[pod.gang] = counts.get(pod.gang, 0) + 1
    return counts


def _cascades(
    request: PlanRequest, units: tuple[PlanUnit, ...], node_table: NodeTable
) -> list[bool]:
    """Return per unit whether it would evict others when it is created again (L33).

    Only this one step is considered, and each unit by the cluster before any eviction: its policy lets it preempt, and some
    pod of it fits nowhere in the free capacity, but would fit on a node that its static filters accept if every evictable
    pod of strictly lower priority were evicted there.
    """
    shapes = (request.evictable or Evictable(priority=0)).shapes
    mine = [u for u in units if u.kind != "reservation"]
    if not mine or len({u.priority for u in mine}) == 1:
        return [False] * len(units)
    capacity = PostEvictionCapacity(request, shapes)
    unit, node, back = capacity.freed_by([u.pods for u in mine], shapes, node_table)
    priority = np.array([u.priority for u in mine], dtype=np.int64)
    requests = [capacity.requests(shape) for shape in shapes]
    may = [may_run(node_table, shape) for shape in shapes]

    def fits(shape: int, below: int) -> bool:
        free = capacity.free.copy()
        rows = priority[unit] < below
        np.add.at(free, node[rows], back[rows])
        axes = requests[shape] > 0
        return bool(((free[:, axes] >= requests[shape][axes]).all(axis=1) & may[shape]).any())

    cached: dict[tuple[int, int], bool] = {}

    def again(shape: int, own: int) -> bool:
        if (shape, own) not in cached:
            cached[shape, own] = not fits(shape, NO_PRIORITY) and fits(shape, own)
        return cached[shape, own]

    return [
        u.has_cost
        and u.may_preempt
        and any(again(s, u.priority) for s in {p.shape for p in u.pods})
        for u in units
    ]
