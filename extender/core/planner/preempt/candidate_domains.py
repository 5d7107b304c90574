"""Domains in which a tree could be placed by evictions: orders to try units in, and lower bounds of the cost."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import TypeAlias

import numpy as np

from extender.core.model.message_formatting import label_text
from extender.core.planner.model.node_table import Bools, Ints, count_fitting
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import PlanUnit
from extender.core.planner.preempt.post_eviction_view import PostEvictionView, VictimCost

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
    """The orders for one request, of which there is one for each domain of its root."""

    def __init__(self, places: CandidateDomains) -> None:
        eviction_view, prices = places.eviction_view, places.prices
        self._eviction_view = eviction_view
        cost_model = self._cost_model = eviction_view.cost_model
        self._capacity: list[list[int]] = eviction_view.capacity.free.tolist()
        self._begin(None)
        self._prices = [price.numbers for price in prices]
        self._leaf = [_leaf_of(unit) for unit in eviction_view.units]
        spares = {leaf: cost_model.spare(leaf) for leaf in set(self._leaf) if leaf >= 0}
        self._spare = {leaf: spare for leaf, spare in spares.items() if spare is not None}
        self._nodes_of_leaf: dict[int, set[int]] = {}
        self._units: dict[int, list[tuple[int, list[int]]]] = {}  # per node, the cheapest first
        self._nodes: dict[int, list[tuple[int, list[int]]]] = {}
        place_of = np.empty(len(prices), dtype=np.int64)
        place_of[sorted(range(len(prices)), key=prices.__getitem__)] = np.arange(len(prices))
        rows = np.argsort(place_of[eviction_view.unit], kind="stable")
        columns = eviction_view.unit, eviction_view.node, eviction_view.back
        for unit, node, back in zip(*(column[rows].tolist() for column in columns), strict=True):
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
        """Return the units in the order of their eviction.

        Args:
            min_pods: Pods to place at least; 0: the minimum of the tree.
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
        requests = self._eviction_view.full.requests[kind][: self._eviction_view.capacity.width]
        asks = [(axis, ask) for axis, ask in enumerate(requests.tolist()) if ask]
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
                    free = draft.free.get(other, self._free[other])
                    draft.free[other] = list(map(add, free, back))
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
        self, node: int, asks: list[tuple[int, int]], draft: _Draft, bills: dict[int, Bill | None]
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
        return None if missing else (_total(prices), tuple(chosen))

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


def _total(prices: list[Price]) -> Price:
    """Return the sums of prices; of the second field the largest one."""
    if not prices:
        return VictimCost().numbers
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

    def __init__(self, eviction_view: PostEvictionView, *, min_pods: int) -> None:
        self.eviction_view = eviction_view
        cost_model = self.cost_model = eviction_view.cost_model
        self.min_pods = min_pods
        self.prices = [cost_model.alone(i) for i in range(len(eviction_view.units))]
        self._emptied: EmptiedNodes | None = None
        self.domains = list(self._list())
        self._bound()

    def _list(self) -> Iterable[CandidateDomain]:
        root = self.eviction_view.full.groups[0]
        if not root.level.keys:
            yield self._place("", None)
            return
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for domain in domains:
            values = zip(root.level.keys, root.level.values[domain], strict=True)
            where = ", ".join(label_text(*label) for label in values)
            yield self._place(where, root.level.domain == domain)

    def _place(self, where: str, nodes: Bools | None) -> CandidateDomain:
        units: list[int] = np.flatnonzero(self.eviction_view.units_affecting(nodes)).tolist()
        return CandidateDomain(where, nodes, sorted(units, key=lambda i: self.prices[i]))

    def _cost_class(self, unit: int) -> tuple[int, int]:
        return (self.prices[unit].violations, self.prices[unit].highest)

    def _bound(self) -> None:
        """Set `least` of each domain.

        A class is all units of equal violations and priority. The classes are evicted step by step from the cheapest on,
        until the upper bounds allow the tree in the domain. Every sufficient set needs a unit of the last step or a more
        expensive one, so it costs at least as much as the first class of that step.
        """
        root = self.eviction_view.full.groups[0]
        of_units = [self._cost_class(i) for i in range(len(self.prices))]
        classes = sorted({*of_units})
        rank = {cost_class: number for number, cost_class in enumerate(classes)}
        ranks = np.array([rank[cost_class] for cost_class in of_units], dtype=np.int64)
        step = -(-len(classes) // CLASSES_MAX)
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for first in range(0, len(classes), max(step, 1)):
            evicted = ranks < first + step
            bound = self.eviction_view.problem(evicted, base=self.eviction_view.full)
            best = bound_all(bound).best[0]
            for place, domain in zip(self.domains, domains, strict=True):
                if place.least is None and best[domain] >= self.min_pods:
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
        if self._emptied is None:
            self._emptied = EmptiedNodes(self)
        for position, unit in enumerate(self._emptied.units_in_order(self.min_pods, place.nodes)):
            ranks[unit] = position
        return ranks


# --- lower bounds of the cost of any set: whether a set is proved to be the cheapest, and which units a cheaper one may have

# The bounds are those of a relaxation: the capacity that the tree needs in a domain is one sum per resource, whatever
# nodes it is on. So many units must be evicted, at least, and so many gangs must break, as free that sum; and the
# cheapest units that are as many cost no more than any sufficient set. Where units are of one size, as pods of an
# accelerator often are, the bound is reached, and the integer program has nothing left to find.

_SUMS = 3  # position in the numbers of a cost, from which on they are sums
_LOST, _WEIGHT = 1, 2  # positions in a `Sum`: GPU-minutes lost, and the sum of the priorities
Sum: TypeAlias = tuple[int, ...]  # the parts of a cost that are sums over its units, in their order


@dataclass(slots=True)
class Promising:
    """The sets that may cost less than a set of victims that was found."""

    proved: bool  # no set costs less, apart from the order by names
    units: Bools  # no cheaper set has any other unit


class CostBounds:
    """Bounds for one request and one set of victims."""

    def __init__(self, places: CandidateDomains) -> None:
        eviction_view = self._eviction_view = places.eviction_view
        self._cost_model = places.cost_model
        self._places = places
        self._sums = places.cost_model.sums
        width = eviction_view.capacity.width
        self._asks: Ints = least_asks(eviction_view.full, places.min_pods)[:width]
        free: Ints = np.maximum(eviction_view.capacity.free, 0)
        self._free = self._usable(free)
        most = self._usable(eviction_view.full.free[:, :width])
        # What is free and too small for a pod may be used when any unit of its node is evicted.
        rest = (free - self._free)[eviction_view.node] + eviction_view.back
        self._gains = np.minimum(rest, (most - self._free)[eviction_view.node])
        self._breaks = [self._broken_by(unit) for unit in range(len(eviction_view.units))]

    def promising(self, best: VictimCost, evicted: Bools) -> Promising:
        """Return which units a set may have that costs less than a given set."""
        # a cost only grows with the set, so a set costs no less than each of its units alone
        able = np.array(
            [price.numbers <= best.numbers for price in self._places.prices], dtype=np.bool_
        )
        kept = self._eviction_view.none_evicted
        proved = True
        for place in self._places.domains:
            open_units = self._open_units(place, able, best)
            if open_units is not None:
                proved = False
                kept[open_units] = True
        return Promising(proved, kept | evicted)

    def _open_units(
        self, place: CandidateDomain, able: Bools, best: VictimCost
    ) -> list[int] | None:
        """Return the units of cheaper sets that a domain may have; None: it has no cheaper set."""
        if place.least is None or place.least > (best.violations, best.highest):
            return None
        units = [i for i in place.units if able[i]]
        if place.least < (best.violations, best.highest):
            return units
        freed, missing = self._freed(place, units), self._missing(place)
        count = _fewest(np.sort(freed, axis=0)[::-1], missing)
        broken = self._fewest_broken(units, freed, missing)
        if count is None or broken is None or broken > best.broken:
            return None
        if broken < best.broken:
            return units
        cheapest = sorted(self._sums[i] for i in units)[:count]
        least, best_sum = _added(cheapest), best.numbers[_SUMS:]
        if least >= best_sum or self._each_part(units, freed, missing, count) >= best_sum:
            return None
        if not count:
            return units
        others = _added(cheapest[:-1])
        enough = self._large_enough(units, freed, missing, best)
        return [
            i
            for i, large in zip(units, enough.tolist(), strict=True)
            if large and _added([others, self._sums[i]]) <= best_sum
        ]

    def _each_part(self, units: list[int], freed: Ints, missing: Ints, count: int) -> Sum:
        """Return a lower bound of each part of the cost by itself: units of unequal size may lose less than the fewest do."""
        lost = [self._sums[i][_LOST] for i in units]
        if not any(lost):
            return ()
        parts = zip(*(self._sums[i] for i in units), strict=True)
        bound = [sum(sorted(part)[:count]) for part in parts]
        for axis in np.flatnonzero(missing).tolist():
            amounts = freed[:, axis].tolist()
            bound[_LOST] = max(bound[_LOST], _least_lost(lost, amounts, int(missing[axis])))
        return tuple(bound)

    def _large_enough(
        self, units: list[int], freed: Ints, missing: Ints, best: VictimCost
    ) -> Bools:
        """Return which units free enough to be in a set that breaks as many gangs, and costs as much, as a known one.

        Such a set has at most so many units of each sort. The others free no more than the largest ones do; then the
        unit itself must free what is missing.
        """
        large = np.ones(len(units), dtype=np.bool_)
        whole = np.array([self._breaks[i][1] >= 0 for i in units], dtype=np.bool_)
        sorts = [(whole, best.broken)]
        for part, most in ((_LOST, best.lost_min), (_WEIGHT, best.weight)):
            if best.cascades or (part == _WEIGHT and best.lost_min):
                break  # a set that has less of an earlier part may have more of this one
            amounts = [self._sums[i][part] for i in units]
            if any(amounts):
                least = min(amount for amount in amounts if amount)
                sorts.append((np.array(amounts, dtype=np.int64) > 0, most // least))
        for limited, most in sorts:
            others = freed[~limited].sum(axis=0)
            if most:
                top = np.sort(freed[limited], axis=0)[::-1][: most - 1]
                others = others + top.sum(axis=0)
            large &= ~limited | (freed + others >= missing).all(axis=1)
        return large

    def _usable(self, free: Ints) -> Ints:
        """Return how much of each resource pods of the tree can use of what is free, at most, shape (nodes, axes)."""
        problem = self._eviction_view.full
        requests = problem.requests[:, : free.shape[1]]
        taken = np.zeros_like(free)
        for kind, asks in enumerate(requests):
            fit = np.where(problem.allowed[kind], count_fitting(free, asks), 0)
            taken += fit[:, None] * asks
        step = np.maximum(np.gcd.reduce(requests, axis=0), 1)
        usable: Ints = np.minimum(taken, free - free % step)
        return usable

    def _missing(self, place: CandidateDomain) -> Ints:
        """Return what is missing of each resource in a domain without evictions, never negative, shape (axes,)."""
        free = self._free if place.nodes is None else self._free[place.nodes]
        return np.asarray(np.maximum(self._asks - free.sum(axis=0), 0))

    def _freed(self, place: CandidateDomain, units: list[int]) -> Ints:
        """Return what units free of each resource on the nodes of a domain, at most, shape (units, axes)."""
        view = self._eviction_view
        freed = np.zeros((len(view.units), view.capacity.width), dtype=np.int64)
        rows = slice(None) if place.nodes is None else place.nodes[view.node]
        np.add.at(freed, view.unit[rows], self._gains[rows])
        chosen: Ints = freed[units]
        return chosen

    def _broken_by(self, unit: int) -> tuple[int, int]:
        """Return what an eviction may break: (-1, unit) a whole group, (leaf, -1) a gang, (-1, -1) nothing for sure."""
        source = self._eviction_view.units[unit]
        if not source.has_cost:
            return (-1, -1)
        if source.is_whole_group:
            return (-1, unit)
        leaf = source.pods[0].gang if len(source.pods) == 1 else -1
        counts = leaf >= 0 and self._cost_model.spare(leaf) is not None
        return (leaf if counts else -1, -1)

    def _fewest_broken(self, units: list[int], freed: Ints, missing: Ints) -> int | None:
        """Return how many gangs must break, at least; None: no set is enough."""
        by_gang: dict[tuple[int, int], list[int]] = {}
        for position, unit in enumerate(units):
            by_gang.setdefault(self._breaks[unit], []).append(position)
        unbroken = np.zeros(freed.shape[1], dtype=np.int64)
        broken = []
        for (leaf, whole), positions in by_gang.items():
            rows = freed[positions]
            spare = 0
            if whole < 0:
                spare = len(rows) if leaf < 0 else self._cost_model.spare(leaf) or 0
            kept = np.sort(rows, axis=0)[::-1][:spare].sum(axis=0)
            unbroken += kept
            broken.append(rows.sum(axis=0) - kept)
        more = np.sort(np.array(broken, dtype=np.int64).reshape(-1, freed.shape[1]), axis=0)[::-1]
        return _fewest(more, np.maximum(missing - unbroken, 0))


def _least_lost(lost: list[int], amounts: list[int], missing: int) -> int:
    """Return what any set of units that frees so much of a resource loses, at least.

    With any price of the resource a set loses no less than the price of what is missing, but for units that free more than
    they lose at this price. The price is that of the unit with which the units that lose least for what they free are enough.
    """
    rows = [(n, a) for n, a in zip(lost, amounts, strict=True) if a]
    rows.sort(key=lambda row: row[0] / row[1])
    left, last = missing, (0, 1)
    for last in rows:
        left -= last[1]
        if left <= 0:
            break
    price, per = last
    gain = price * missing - sum(max(price * a - per * n, 0) for n, a in rows)
    return -(-gain // per)


def least_asks(problem: PlacementProblem, min_pods: int) -> Ints:
    """Return what any valid placement requests of each resource, at least, shape (axes,).

    Args:
        min_pods: Smallest number of pods to place; 0: the minimum of the tree.
    """
    width = problem.requests.shape[1]
    if min_pods:
        every: Counter[int] = Counter()
        for group in problem.groups:
            if group.alive:
                every.update({kind: len(members) for kind, members in group.members.items()})
        return _smallest(problem, every, min_pods)
    least: dict[int, Ints] = {}
    for group in reversed(problem.groups):
        if not group.alive or group.holds:
            continue
        if group.leaf:
            members = {kind: len(positions) for kind, positions in group.members.items()}
            least[group.index] = _smallest(problem, members, group.least)
            continue
        alive = [c for c in group.children if problem.groups[c].alive]
        needed = max(group.minimum - sum(problem.groups[c].holds for c in alive), 0)
        rows = np.array([least[c] for c in alive if c in least], dtype=np.int64)
        least[group.index] = np.sort(rows.reshape(-1, width), axis=0)[:needed].sum(axis=0)
    return least.get(0, np.zeros(width, dtype=np.int64))


def _smallest(problem: PlacementProblem, members: Mapping[int, int], count: int) -> Ints:
    """Return per axis the sum of the smallest requests of so many members."""
    kinds = sorted(members)
    total = np.zeros(problem.requests.shape[1], dtype=np.int64)
    for axis in range(len(total)):
        left = count
        for ask, number in sorted((int(problem.requests[k, axis]), members[k]) for k in kinds):
            total[axis] += ask * min(left, number)
            left -= min(left, number)
    return total


def _fewest(sorted_rows: Ints, missing: Ints) -> int | None:
    """Return how many rows free what is missing on each axis, the largest first; None: all of them do not."""
    most = 0
    for axis in np.flatnonzero(missing):
        sums = np.cumsum(sorted_rows[:, axis])
        count = int(np.searchsorted(sums, missing[axis])) + 1
        if count > len(sums):
            return None
        most = max(most, count)
    return most


def _added(sums: list[Sum]) -> Sum:
    return tuple(map(sum, zip(*sums, strict=True))) if sums else (0,) * 8
