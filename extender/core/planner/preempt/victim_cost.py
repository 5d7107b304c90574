"""What it costs that a set of units goes: one order over all sets, the cheapest first.

Every part of the cost only grows with the set, so a cheapest set is also a smallest one: none of its
units can stay.

The order is that of SPEC E-9 with two parts put in after the highest priority, before the sum:

- `broken`: running gangs that lose more than their extras. A gang below its minimum has lost all its
  work, not the work of one pod; so of equally important pods extras go first, even if more of them go.
  It stands behind the highest priority, because a gang is not worth more than its priority says.
- `cascades`: units that would evict others in their turn once they are created again (SPEC L33). One
  step is looked ahead, and each unit is judged by the cluster as it is before anybody goes: its policy
  lets it preempt, some pod of it fits nowhere in the room that is free, but would fit on a node that
  its static filters pass if every evictable pod of strictly lower priority were gone from there.
"""

from __future__ import annotations

import msgspec
import numpy as np

from extender.core.planner.model.node_filters import may_run
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanRequest
from extender.core.planner.preempt.post_eviction_view import PostEvictionCapacity
from extender.core.planner.preemption_types import Evictable, PlanUnit, PlanVictim

NOBODY = -(2**31) - 1  # the highest priority among no victims: below every priority
SHIFT = 2**31  # makes every priority count as more than nothing


class VictimCost(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The cost of a set of units; compared field by field, in this order.

    Source:
        SPEC E-8 and E-9, issue 5.
    """

    violations: int = 0  # evictions beyond what PodDisruptionBudgets allow, summed over the budgets
    highest: int = NOBODY  # priority of the most important victim
    broken: int = 0  # running gangs that fall below their minimum
    cascades: int = 0  # units that would evict others in their turn
    weight: int = 0  # sum over units of priority + 2^31
    units: int = 0
    pods: int = 0
    age_s: int = (
        0  # seconds by which the victims are older than the youngest pod that could go, summed
    )
    # of what nobody loses more by: superseded reservations, and units that go for somebody else already
    reserved: int = 0  # sum of priority + 2^31
    reserved_pods: int = 0
    names: tuple[str, ...] = ()  # sorted; only makes the order complete


class CostModel:
    """The prices of the units of one request."""

    def __init__(self, request: PlanRequest, units: tuple[PlanUnit, ...], fleet: NodeTable) -> None:
        """Work out what does not depend on the set.

        Args:
            request: Without the pods that terminate already.
            units: Those that may go.
            fleet: Made from nodes with the labels and taints of the request's.
        """
        self.source = request.evictable or Evictable(priority=0)
        self.units = units
        running = [p.created_us for u in units if u.kind != "reservation" for p in u.pods]
        self._youngest = max(running, default=0)
        self.cascades = _cascades(request, units, fleet)

    def age_s(self, unit: PlanUnit) -> int:
        """Give what is lost with a unit beyond what would be lost with the youngest pods."""
        return sum((self._youngest - p.created_us) // 1_000_000 for p in unit.pods)

    def protected(self, unit: PlanUnit) -> dict[int, int]:
        """Count the pods of a unit under each budget."""
        counts: dict[int, int] = {}
        for pod in unit.pods:
            for budget in pod.budgets:
                counts[budget] = counts.get(budget, 0) + 1
        return counts

    def cost(self, gone: list[int]) -> VictimCost:
        """Price a set, given as positions of `units`."""
        chosen = [self.units[i] for i in gone]
        victims = [u for u in chosen if u.costs]
        free = [u for u in chosen if not u.costs]
        return VictimCost(
            violations=self._violations(victims),
            highest=max((u.priority for u in victims), default=NOBODY),
            broken=self._broken([p for u in victims for p in u.pods]),
            cascades=sum(self.cascades[i] for i in gone),
            weight=sum(u.priority + SHIFT for u in victims),
            units=len(victims),
            pods=sum(len(u.pods) for u in victims),
            age_s=sum(self.age_s(u) for u in victims),
            reserved=sum(u.priority + SHIFT for u in free),
            reserved_pods=sum(len(u.pods) for u in free),
            names=tuple(sorted(u.name for u in chosen)),
        )

    def alone(self, index: int) -> VictimCost:
        """Price one unit as if only that went."""
        return self.cost([index])

    def _violations(self, victims: list[PlanUnit]) -> int:
        taken: dict[int, int] = {}
        for unit in victims:
            for budget, pods in self.protected(unit).items():
                taken[budget] = taken.get(budget, 0) + pods
        budgets = self.source.budgets
        return sum(max(0, n - max(budgets[b].allowed, 0)) for b, n in taken.items())

    def _broken(self, pods: list[PlanVictim]) -> int:
        lost: dict[int, int] = {}
        for pod in pods:
            if pod.gang >= 0:
                lost[pod.gang] = lost.get(pod.gang, 0) + 1
        if not lost:
            return 0
        before, after = self.holding({}), self.holding(lost)
        counts = (g.counts for g in self.source.gangs)
        return sum(c and b and not a for c, b, a in zip(counts, before, after, strict=True))

    def holding(self, lost: dict[int, int]) -> list[bool]:
        """Tell which groups hold when leaves lose some of their running members."""
        gangs = self.source.gangs
        have = [g.running - lost.get(i, 0) for i, g in enumerate(gangs)]
        holds = [False] * len(gangs)
        for i in range(len(gangs) - 1, -1, -1):
            holds[i] = have[i] >= gangs[i].minimum
            if holds[i] and gangs[i].parent >= 0:
                have[gangs[i].parent] += 1
        return holds


def _cascades(request: PlanRequest, units: tuple[PlanUnit, ...], fleet: NodeTable) -> list[bool]:
    """Tell per unit whether it would evict others in its turn."""
    shapes = (request.evictable or Evictable(priority=0)).shapes
    mine = [u for u in units if u.kind != "reservation"]
    if not mine or len({u.priority for u in mine}) == 1:
        return [False] * len(units)
    room = PostEvictionCapacity(request, shapes)
    unit, node, back = room.given_back([u.pods for u in mine], shapes, fleet)
    priority = np.array([u.priority for u in mine], dtype=np.int64)
    asked = [room.asked(shape) for shape in shapes]
    may = [may_run(fleet, shape) for shape in shapes]

    def fits(shape: int, below: int) -> bool:
        free = room.free.copy()
        rows = priority[unit] < below
        np.add.at(free, node[rows], back[rows])
        axes = asked[shape] > 0
        return bool(((free[:, axes] >= asked[shape][axes]).all(axis=1) & may[shape]).any())

    known: dict[tuple[int, int], bool] = {}

    def again(shape: int, own: int) -> bool:
        if (shape, own) not in known:
            known[shape, own] = not fits(shape, NOBODY) and fits(shape, own)
        return known[shape, own]

    return [
        u.costs and u.may_preempt and any(again(s, u.priority) for s in {p.shape for p in u.pods})
        for u in units
    ]
