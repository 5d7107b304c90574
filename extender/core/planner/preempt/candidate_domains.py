"""Domains in which a tree could be placed by evictions: a lower bound of the cost, and orders to try units in."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import add
from typing import TypeAlias

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.problem import CompiledGroup
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import PlanUnit
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import NO_PRIORITY, CostModel, VictimCost

# --- an order of units to evict: nodes are emptied one after the other, for one leaf of the tree after the other

# Each next node is the one that costs least when the units before it are evicted: a group that runs on several nodes is
# evicted once for all of them, and the pods of a gang that breaks anyway cost no further gang. A leaf that must be in one
# domain takes the domain in which all its nodes together cost least. Rules between pods and the topology of composites
# below the root are not considered: the caller checks afterwards whether the tree fits.

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
    """The order for one request and one domain of its root."""

    def __init__(
        self,
        eviction_view: PostEvictionView,
        cost_model: CostModel,
        prices: list[VictimCost],
        within: Bools | None,
    ) -> None:
        """Prepare the order.

        Args:
            within: Per node: where members may be placed; None: everywhere.
        """
        self._eviction_view = eviction_view
        self._cost_model = cost_model
        self._within = within
        self._free: list[list[int]] = eviction_view.capacity.free.tolist()
        self._evicted: dict[int, None] = {}
        self._lost: dict[int, int] = {}  # members by leaf
        self._bills_left = BILLS_MAX
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

    def units_in_order(self, min_pods: int) -> list[int]:
        """Return the units that are evicted, in their order.

        Args:
            min_pods: Smallest number of pods to place; 0: the minimum of the tree.
        """
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
            for node, free in draft.free.items():
                self._free[node] = free

    def _emptied(
        self, nodes: Iterable[int], asks: list[tuple[int, int]], pods: int
    ) -> _Draft | None:
        """Empty nodes until so many pods fit; None: they do not, or it takes too long to find out."""
        draft = _Draft()
        bills = {node: self._bill(node, asks, draft) for node in nodes}
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


# --- the domains

CLASSES_MAX = 64  # steps in which the lower bound of a domain is found


@dataclass(slots=True)
class CandidateDomain:
    """A domain in which the tree could be placed."""

    where: str  # key=value; empty: anywhere
    nodes: Bools | None  # None: everywhere
    units: list[int]  # that free something there, the cheapest first
    # lower bound of (violations, highest priority) of the cost of a set in this domain; None: evicting all is not enough
    least: tuple[int, int] | None = None


class CandidateDomains:
    """The candidate domains of the root of one request; the whole cluster if it has no topology constraint."""

    def __init__(
        self, eviction_view: PostEvictionView, cost_model: CostModel, *, min_pods: int
    ) -> None:
        self.eviction_view = eviction_view
        self.cost_model = cost_model
        self.min_pods = min_pods
        self.prices = [cost_model.alone(i) for i in range(len(eviction_view.units))]
        self.domains = list(self._list())
        self._bound(min_pods)

    def _list(self) -> Iterable[CandidateDomain]:
        root = self.eviction_view.full.groups[0]
        if not root.level.keys:
            yield self._place("", None)
            return
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for domain in domains:
            values = zip(root.level.keys, root.level.values[domain], strict=True)
            where = ", ".join(f"{key}={value}" for key, value in values)
            yield self._place(where, root.level.domain == domain)

    def _place(self, where: str, nodes: Bools | None) -> CandidateDomain:
        units: list[int] = np.flatnonzero(self.eviction_view.units_affecting(nodes)).tolist()
        return CandidateDomain(where, nodes, sorted(units, key=lambda i: self.prices[i]))

    def _cost_class(self, unit: int) -> tuple[int, int]:
        return (self.prices[unit].violations, self.prices[unit].highest)

    def _bound(self, min_pods: int) -> None:
        """Set `least` of each domain.

        A class is all units of equal violations and priority. The classes are evicted step by step from the cheapest on,
        until the upper bounds allow the tree in the domain. Every sufficient set needs a unit of the last step or a more
        expensive one, so it costs at least as much as the first class of that step.
        """
        root = self.eviction_view.full.groups[0]
        classes = sorted({self._cost_class(i) for i in range(len(self.prices))})
        step = -(-len(classes) // CLASSES_MAX)
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for first in range(0, len(classes), max(step, 1)):
            last = classes[min(first + step, len(classes)) - 1]
            evicted = np.array(
                [self._cost_class(i) <= last for i in range(len(self.prices))], dtype=np.bool_
            )
            bound = self.eviction_view.problem(evicted, base=self.eviction_view.full)
            best = bound_all(bound).best[0]
            for place, domain in zip(self.domains, domains, strict=True):
                if place.least is None and best[domain] >= min_pods:
                    place.least = classes[first]

    # --- in which order ----------------------------------------------------------------------------

    def rankings(self, place: CandidateDomain) -> list[list[int]]:
        """Return more orders in which the units of a domain can be tried, the first to evict first; none twice.

        First those that free the most capacity at equal cost; then orders that empty one node after the
        other, the cheapest node first; then those that no disruption budget protects; at last the same orders
        without units that near or spread rules count, since these rules may need them.
        """
        gain = self._gains(place)
        rank = self._node_ranks(place)
        guarded = [bool(self.cost_model.protected(u)) for u in self.eviction_view.units]

        def by(key: Callable[[int], tuple[object, ...]]) -> list[int]:
            return sorted(place.units, key=lambda i: (*key(i), self.prices[i]))

        orders = [
            by(lambda i: (*self._cost_class(i), -gain[i])),
            by(lambda i: (self.prices[i].violations, rank[i])),
            by(lambda i: (*self._cost_class(i), rank[i])),
        ]
        if any(guarded):
            orders.append(by(lambda i: (guarded[i], self.prices[i].highest, -gain[i])))
        counting = set(self.eviction_view.counting.tolist())
        if counting:
            orders += [[i for i in order if i not in counting] for order in (place.units, *orders)]
        distinct = [place.units]
        for order in orders:
            if order not in distinct:
                distinct.append(order)
        return distinct[1:]

    def _gains(self, place: CandidateDomain) -> list[int]:
        """Return the capacity that each unit frees in a domain: shares of the largest requests, in millionths."""
        eviction_view = self.eviction_view
        width = eviction_view.capacity.width
        asks = eviction_view.full.requests[:, :width].max(axis=0, initial=0)
        share = (eviction_view.back * 1_000_000 // np.maximum(asks, 1))[:, asks > 0]
        share = np.minimum(share, 1_000_000_000).sum(axis=1)
        if place.nodes is not None:
            share = np.where(place.nodes[eviction_view.node], share, 0)
        gains = np.zeros(len(eviction_view.units), dtype=np.int64)
        np.add.at(gains, eviction_view.unit, share)
        return [int(g) for g in gains]

    def _node_ranks(self, place: CandidateDomain) -> list[int]:
        """Rank units by the order in which `EmptiedNodes` evicts them; the others have the same rank, the last."""
        ranks = [len(self.eviction_view.units)] * len(self.eviction_view.units)
        emptied = EmptiedNodes(self.eviction_view, self.cost_model, self.prices, place.nodes)
        for position, unit in enumerate(emptied.units_in_order(self.min_pods)):
            ranks[unit] = position
        return ranks
