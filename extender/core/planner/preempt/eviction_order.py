"""An order of units to evict: nodes are emptied one after the other, for one leaf of the tree after the other.

Each next node is the one that costs least when the units before it are evicted: a group that runs on several nodes is
evicted once for all of them, and the pods of a gang that breaks anyway cost no further gang. A leaf that must be in one
domain takes the domain in which all its nodes together cost least. Rules between pods and the topology of composites
below the root are not considered: the caller checks afterwards whether the tree fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import add
from typing import TypeAlias

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.problem import CompiledGroup
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import NO_PRIORITY, CostModel, VictimCost
from extender.core.planner.preemption_types import PlanUnit

BILLS_MAX = 20_000  # costs of a node that are computed, in all

Price: TypeAlias = tuple[int, ...]
"""The fields of a cost that are numbers, in their order."""
Bill: TypeAlias = tuple[Price, tuple[int, ...]]
"""What one more pod on a node costs, and the units that are evicted there."""


@dataclass(slots=True)
class _Draft:
    """Nodes that are emptied for one leaf in one domain."""

    free: dict[int, list[int]] = field(default_factory=dict)  # of nodes that changed
    evicted: dict[int, None] = field(default_factory=dict)  # in the order of their eviction
    lost: dict[int, int] = field(default_factory=dict)  # members that leaves have lost in all


class EmptiedNodes:
    """The orders for one request, of which there is one for each domain of its root."""

    def __init__(
        self, eviction_view: PostEvictionView, cost_model: CostModel, prices: list[VictimCost]
    ) -> None:
        self._eviction_view = eviction_view
        self._cost_model = cost_model
        self._capacity: list[list[int]] = eviction_view.capacity.free.tolist()
        self._begin(None)
        self._prices = [_numbers(price) for price in prices]
        self._leaf = [_leaf_of(unit) for unit in eviction_view.units]
        spares = {leaf: cost_model.spare(leaf) for leaf in set(self._leaf) if leaf >= 0}
        self._spare = {leaf: spare for leaf, spare in spares.items() if spare is not None}
        self._nodes_of_leaf: dict[int, set[int]] = {}
        self._units: dict[int, list[tuple[int, list[int]]]] = {}  # per node, the cheapest first
        self._nodes: dict[int, list[tuple[int, list[int]]]] = {}
        place_of = np.empty(len(prices), dtype=np.int64)
        place_of[sorted(range(len(prices)), key=prices.__getitem__)] = np.arange(len(prices))
        rows = np.argsort(place_of[eviction_view.unit], kind="stable")
        for unit, node, back in zip(
            eviction_view.unit[rows].tolist(),
            eviction_view.node[rows].tolist(),
            eviction_view.back[rows].tolist(),
            strict=True,
        ):
            self._units.setdefault(node, []).append((unit, back))
            self._nodes.setdefault(unit, []).append((node, back))
            if self._leaf[unit] in self._spare:
                self._nodes_of_leaf.setdefault(self._leaf[unit], set()).add(node)

    def _begin(self, within: Bools | None) -> None:
        """Begin with nothing evicted."""
        self._within = within
        self._free = list(self._capacity)
        self._evicted: dict[int, None] = {}
        self._lost: dict[int, int] = {}  # members by leaf
        self._bills_left = BILLS_MAX
        # What the first pod on a node costs, by what it asks for, as long as neither the node nor a leaf there changes
        self._first_bills: dict[tuple[tuple[int, int], ...], dict[int, Bill | None]] = {}

    def units_in_order(self, min_pods: int, within: Bools | None) -> list[int]:
        """Return the units that are evicted, in their order.

        Args:
            min_pods: Smallest number of pods to place; 0: the minimum of the tree.
            within: Per node: where members may be placed; None: everywhere.
        """
        self._begin(within)
        problem = self._eviction_view.full
        leaves = [g for g in problem.groups if g.leaf and g.alive and g.members]
        weight = {g.index: max(problem.weights[k] for k in g.members) for g in leaves}
        for leaf in sorted(leaves, key=lambda g: (-weight[g.index], g.index)):
            pods = leaf.size if min_pods else leaf.least
            kind = max(leaf.members, key=lambda k: (problem.weights[k], -k))
            if pods and self._bills_left > 0:
                self._place(leaf, kind, pods)
        return list(self._evicted)

    def _place(self, leaf: CompiledGroup, kind: int, pods: int) -> None:
        """Evict for a leaf, in the domain where that costs least."""
        usable = self._eviction_view.full.allowed[kind]
        if self._within is not None:
            usable = usable & self._within
        asks = [
            (axis, ask)
            for axis, ask in enumerate(
                self._eviction_view.full.requests[kind][
                    : self._eviction_view.capacity.width
                ].tolist()
            )
            if ask
        ]
        best: tuple[VictimCost, int] | None = None
        drafts: list[_Draft] = []
        domains = [leaf.pinned] if leaf.pinned >= 0 else range(leaf.level.count)
        for domain in domains:
            nodes = leaf.level.members(domain)
            draft = self._emptied(nodes[usable[nodes]].tolist(), asks, pods)
            if draft is None:
                continue
            rank = (self._cost_model.cost([*self._evicted, *draft.evicted]), len(drafts))
            drafts.append(draft)
            best = rank if best is None else min(best, rank)
        if best is not None:
            draft = drafts[best[1]]
            self._evicted.update(draft.evicted)
            self._lost.update(draft.lost)
            changed = {*draft.free}.union(*(self._nodes_of_leaf[leaf] for leaf in draft.lost))
            for node in changed:
                for bills in self._first_bills.values():
                    bills.pop(node, None)
            for node, free in draft.free.items():
                self._free[node] = free

    def _emptied(
        self, nodes: Iterable[int], asks: list[tuple[int, int]], pods: int
    ) -> _Draft | None:
        """Empty nodes until so many pods fit; None: they do not, or it takes too long to find out."""
        draft = _Draft()
        first = self._first_bills.setdefault(tuple(asks), {})
        bills = {node: self._first_bill(node, asks, draft, first) for node in nodes}
        waiting = [(bill, node) for node, bill in bills.items() if bill is not None]
        heapq.heapify(waiting)
        while pods and waiting:
            bill, node = heapq.heappop(waiting)
            if bills[node] != bill:
                continue
            pods -= 1
            draft.evicted.update(dict.fromkeys(bill[1]))
            changed = {node}
            for unit in bill[1]:
                leaf = self._leaf[unit]
                if leaf in self._spare:
                    draft.lost[leaf] = draft.lost.get(leaf, self._lost.get(leaf, 0)) + 1
                    changed |= self._nodes_of_leaf[leaf]
                for other, back in self._nodes[unit]:
                    draft.free[other] = list(
                        map(add, draft.free.get(other, self._free[other]), back)
                    )
                    changed.add(other)
            left = list(draft.free.get(node, self._free[node]))
            for axis, ask in asks:
                left[axis] -= ask
            draft.free[node] = left
            for other in sorted(changed & bills.keys()):
                bills[other] = again = self._bill(other, asks, draft)
                if again is not None:
                    heapq.heappush(waiting, (again, other))
        return draft if not pods else None

    def _first_bill(
        self,
        node: int,
        asks: list[tuple[int, int]],
        draft: _Draft,
        bills: dict[int, Bill | None],
    ) -> Bill | None:
        """Return `_bill` of a draft with nothing in it; a known one counts against the limit as well."""
        if node in bills:
            self._bills_left -= 1
            return bills[node] if self._bills_left > 0 else None
        bill = self._bill(node, asks, draft)
        if self._bills_left > 0:
            bills[node] = bill
        return bill

    def _bill(self, node: int, asks: list[tuple[int, int]], draft: _Draft) -> Bill | None:
        """Return what one more pod on a node costs; None: it does not fit there, whatever is evicted."""
        self._bills_left -= 1
        if self._bills_left <= 0:
            return None
        free = draft.free.get(node) or self._free[node]
        missing = [(axis, ask - free[axis]) for axis, ask in asks if free[axis] < ask]
        chosen: list[int] = []
        prices: list[Price] = []
        lost: dict[int, int] = {}
        for unit, back in self._cheapest_first(node, draft) if missing else ():
            if unit in self._evicted or unit in draft.evicted:
                continue
            chosen.append(unit)
            prices.append(self._price(unit, draft, lost))
            missing = [(axis, left - back[axis]) for axis, left in missing if left > back[axis]]
            if not missing:
                break
        return None if missing else (_sum_of(prices), tuple(chosen))

    def _cheapest_first(self, node: int, draft: _Draft) -> list[tuple[int, list[int]]]:
        """Return the units of a node, those of broken gangs as if they were in none."""
        rows = self._units.get(node, [])
        if not draft.lost or not draft.lost.keys() & {self._leaf[unit] for unit, _ in rows}:
            return rows
        return sorted(rows, key=lambda row: self._price(row[0], draft, {}))

    def _price(self, unit: int, draft: _Draft, lost: dict[int, int]) -> Price:
        """Return what a unit costs more when others are evicted, and note that its leaf loses a member."""
        price = self._prices[unit]
        leaf = self._leaf[unit]
        spare = self._spare.get(leaf)
        if spare is None:
            return price
        before = lost.get(leaf, draft.lost.get(leaf, self._lost.get(leaf, 0)))
        lost[leaf] = before + 1
        return (*price[:2], int(before == spare), *price[3:])


_NOTHING: Price = (0, NO_PRIORITY, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _numbers(cost: VictimCost) -> Price:
    return (
        cost.violations,
        cost.highest,
        cost.broken,
        cost.cascades,
        cost.lost_min,
        cost.weight,
        cost.units,
        cost.pods,
        cost.age_s,
        cost.reserved,
        cost.reserved_pods,
    )


def _sum_of(prices: list[Price]) -> Price:
    """Return the sums of prices; of the second field the largest one."""
    if not prices:
        return _NOTHING
    violations, highest, *others = zip(*prices, strict=True)
    return (sum(violations), max(highest), *map(sum, others))


def _leaf_of(unit: PlanUnit) -> int:
    """Return the leaf that loses a member with a unit that is one pod; -1: none."""
    return unit.pods[0].gang if unit.has_cost and len(unit.pods) == 1 else -1
