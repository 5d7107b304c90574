"""Lower bounds of the cost of any set of victims: whether a set is proved to be the cheapest, and which units a cheaper one may have.

The bounds are those of a relaxation: the capacity that the tree needs in a domain is one sum per resource, whatever
nodes it is on. So many units must be evicted, at least, and so many gangs must break, as free that sum; and the
cheapest units that are as many cost no more than any sufficient set. Where units are of one size, as pods of an
accelerator often are, the bound is reached, and the integer program has nothing left to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from extender.core.planner.model.node_table import Bools, Ints, count_fitting
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.preempt.candidate_domains import CandidateDomain, CandidateDomains
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import CostModel, VictimCost

_LOST, _WEIGHT = 1, 2  # positions in a `Sum`
Sum: TypeAlias = tuple[int, ...]  # the parts of a cost that are sums over its units, in their order


@dataclass(slots=True)
class Promising:
    """The sets that may cost less than a set of victims that was found."""

    proved: bool  # no set costs less, apart from the order by names
    units: Bools  # no cheaper set has any other unit


class CostBounds:
    """Bounds for one request and one set of victims."""

    def __init__(
        self,
        eviction_view: PostEvictionView,
        cost_model: CostModel,
        places: CandidateDomains,
        *,
        min_pods: int,
    ) -> None:
        self._eviction_view = eviction_view
        self._cost_model = cost_model
        self._places = places
        self._sums = [_sum_of(price) for price in places.prices]
        width = eviction_view.capacity.width
        self._asks: Ints = least_asks(eviction_view.full, min_pods)[:width]
        free: Ints = np.maximum(eviction_view.capacity.free, 0)
        self._free = self._usable(free)
        most = self._usable(eviction_view.full.free[:, :width])
        # What is free and too small for a pod may be used when any unit of its node is evicted.
        rest = (free - self._free)[eviction_view.node] + eviction_view.back
        self._gains = np.minimum(rest, (most - self._free)[eviction_view.node])
        self._breaks = [self._broken_by(unit) for unit in range(len(eviction_view.units))]

    def promising(self, best: VictimCost, evicted: Bools) -> Promising:
        """Return which units a set may have that costs less than a given set."""
        figures = _figures(best)
        # a cost only grows with the set, so a set costs no less than each of its units alone
        able = np.array(
            [_figures(price) <= figures for price in self._places.prices], dtype=np.bool_
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
        least, best_sum = _added(cheapest), _sum_of(best)
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
        missing: Ints = np.maximum(self._asks - free.sum(axis=0), 0)
        return missing

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
    if min_pods:
        members = dict.fromkeys(range(len(problem.kinds)), 0)
        for group in problem.groups:
            for kind, positions in group.members.items():
                members[kind] += len(positions) if group.alive else 0
        return _smallest(problem, members, min_pods)
    least: dict[int, Ints] = {}
    for group in reversed(problem.groups):
        if group.alive and not group.holds:
            least[group.index] = _least_of(problem, group, least)
    nothing = np.zeros(problem.requests.shape[1], dtype=np.int64)
    return least.get(0, nothing)


def _least_of(problem: PlacementProblem, group: CompiledGroup, least: dict[int, Ints]) -> Ints:
    if group.leaf:
        members = {kind: len(positions) for kind, positions in group.members.items()}
        return _smallest(problem, members, group.least)
    alive = [c for c in group.children if problem.groups[c].alive]
    needed = group.minimum - sum(problem.groups[c].holds for c in alive)
    rows = [least[c] for c in alive if c in least]
    if needed <= 0 or not rows:
        return np.zeros(problem.requests.shape[1], dtype=np.int64)
    total: Ints = np.sort(np.stack(rows), axis=0)[:needed].sum(axis=0)
    return total


def _smallest(problem: PlacementProblem, members: dict[int, int], count: int) -> Ints:
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


def _figures(cost: VictimCost) -> Sum:
    """Return a cost without the names."""
    return (cost.violations, cost.highest, cost.broken, *_sum_of(cost))


def _sum_of(cost: VictimCost) -> Sum:
    return (
        cost.cascades,
        cost.lost_min,  # `_LOST`
        cost.weight,  # `_WEIGHT`
        cost.units,
        cost.pods,
        cost.age_s,
        cost.reserved,
        cost.reserved_pods,
    )


def _added(sums: list[Sum]) -> Sum:
    return tuple(map(sum, zip(*sums, strict=True))) if sums else (0,) * 8
