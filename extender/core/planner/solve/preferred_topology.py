"""Preferred topology and nearness: of the placements with equally many pods, one that follows the wishes of groups best.

Criteria, the first that differs decides: groups from the root down, those of one depth in stored order, identical leaves of one
parent together. Of each: as many as possible in a single domain of the narrowest key, then of the next; then the fewest domains
of the narrowest key, then of the next; then, of a balanced group, the largest smallest share of a domain of the narrowest key.
What a group reached is kept while later ones are placed.

Then nearness, in the same order of groups: the fewest pairs of pods, one of each group, in different domains of a key.
Then few domains of the levels of the cluster around the narrowest key of a leaf. What a complete search has found is then put into
few domains of all these levels, the widest first.

"In a single domain of a key" is the same request with that key in the topology of the group. So bounds, greedy search and
CP-SAT decide it as any other request.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from extender.core.model.ids import GroupKey
from extender.core.planner.model.interpod_constraints import AntiAffinityDomains
from extender.core.planner.model.node_table import FIT_MAX, Ints, count_fitting
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem, with_keys
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import PlanGroup, PlanRequest, WishOutcome, WishValue
from extender.core.planner.solve.compactness import fewest_first, first_pods, numbered
from extender.core.planner.solve.direct_placement import (
    best_region,
    best_region_of_two,
    divided,
    divided_by_weight,
    equal_shares,
    placed_beside,
    tightest_for_shares,
)
from extender.core.planner.solve.domain_counts import (
    BROKEN,
    CountedLevel,
    DomainCount,
    DomainCountModel,
    GroupPods,
    PairCount,
    ShareCount,
    TopologyCount,
    in_parts,
)
from extender.core.planner.solve.greedy_placement import SearchBudget, Solution
from extender.core.planner.solve.solver_pipeline import Solved, size, solve_quickly

BUDGET_PART = 4  # fraction of the budget of a request that its wishes may spend in addition
# With more domains a complete search takes 20 to 100 times as long as all else at 5,000 nodes, and bettered no direct placement.
COMPLETE_DOMAINS = 64
COMPLETE_PART = 4  # fraction of what is left of it for one complete search
GROUPS_PER_STEP = 3  # groups that are compiled and bounded in the time of one search node
NODES_PER_STEP = 100  # nodes that are bounded in the time of one search node


class NotAtOnce(Exception):
    """A search that must end at once needs more than the greedy search within its limit."""


@dataclass(slots=True)
class _Wish:
    """A group with preferred keys, and what is proved about it."""

    group: CompiledGroup
    pods: GroupPods
    levels: list[CountedLevel]  # narrowest first
    whole: int = -1  # position of the narrowest key of which it is in one domain; -1: none
    best: list[int] = field(default_factory=list)  # per level, a lower bound
    share_best: int = 0  # a lower bound of the pods outside of its smallest share


class _Capacity(NamedTuple):
    """Where the pods of a group could be."""

    fit: Ints  # per node, how many pods
    region: Ints  # per node, the domain of which the group has one; -1: it cannot be there
    ask: Ints  # what each pod requests


@dataclass(slots=True)
class _NearWish:
    """Two groups of which few pairs of pods are to be in different domains of a key."""

    group: CompiledGroup
    partner: CompiledGroup
    count: PairCount
    best: int  # a lower bound


def has_wishes(group: PlanGroup) -> bool:
    """Return whether a group or one below it prefers topology keys, or to be near another one."""
    return bool(group.preferred or group.near) or any(map(has_wishes, group.groups))


def grant_preferred(request: PlanRequest, solved: Solved, *, limit: int | None = None) -> Solved:
    """Return a placement of as many pods that follows the wishes of groups, with what they reached in `wishes`.

    Args:
        limit: Search nodes of a search that must end at once; None: a part of the budget of the request.

    Raises:
        NotAtOnce: With a limit, when it is reached or another than the greedy search is needed.
    """
    search = _PreferredSearch(request, solved, limit)
    search.run()
    nodes, wishes = solved.nodes + search.spent, search.outcomes()
    return replace(solved, solution=search.solution, nodes=nodes, wishes=wishes)


class _PreferredSearch:
    """The search for one tree: the best placement so far, and what it must keep."""

    def __init__(self, request: PlanRequest, solved: Solved, limit: int | None) -> None:
        part = max(request.budget // BUDGET_PART, 1)
        self.problem, self.bounds = solved.problem, solved.bounds
        self._all_pods = sum(g.size for g in self.problem.groups if g.alive)
        self.solution: Solution = solved.solution or {}
        self.at_least = size(self.solution)
        self.at_once = limit is not None
        self.left = part if limit is None else min(part, limit)
        self.spent = 0
        self._levels: dict[str, CountedLevel] = {}
        self._nested: dict[tuple[str, str], bool] = {}
        self._pods: dict[int, GroupPods] = {}  # by group
        self.near = self._read_near()
        self.wishes = self._read_wishes()
        self.tight: dict[int, str] = {}  # group -> key of which it is in one domain
        self.counts: list[TopologyCount] = []  # limits that later steps keep
        self.keys = request.levels or ()
        self.searched = False  # by CP-SAT, which knows nothing of compactness
        self._tight: tuple[dict[int, str], PlacementProblem] | None = None
        self._impossible: set[frozenset[tuple[int, str]]] = set()

    def run(self) -> None:
        """Find the best placement, unit by unit."""
        units = self._units()
        narrowest = {w.group.index: w.levels[0].key for unit in units for w in unit}
        if len(narrowest) > 1 and not self._all_whole(units):
            self._attempt(narrowest, complete=False)
        for unit in units:
            self._settle(unit)
        for near in self.near:
            self._settle_near(near)
        for wish in self.wishes:
            self._gather_leaf(wish)
        if self.searched:
            self._gather()

    def outcomes(self) -> tuple[WishOutcome, ...]:
        """Return what the wishes reached, by group in stored order; those of groups without pods are left out."""
        preferred = [
            (w.group, outcome)
            for w in self.wishes
            if self._has_pods(w.pods)
            for outcome in (self._outcome(w), *self._balanced_outcome(w))
        ]
        near = [
            (w.group, self._near_outcome(w))
            for w in self.near
            if all(map(self._has_pods, w.count.groups))
        ]
        outcomes = sorted([*preferred, *near], key=lambda row: row[0].index)
        return tuple(outcome for _, outcome in outcomes if outcome.values)

    def _is_on_nodes(self, key: str) -> bool:
        """Return whether some node has a key; what is stated of a key that none has would sound as if another placement helped (W3)."""
        return bool(self.problem.node_table.label(key)[1])

    def _has_pods(self, pods: GroupPods) -> bool:
        return pods.number(self.solution) > 0

    # --- reading -----------------------------------------------------------------------------------

    def _level(self, key: str) -> CountedLevel:
        if key not in self._levels:
            self._levels[key] = CountedLevel.of(self.problem.node_table, key)
        return self._levels[key]

    def _inside(self, level: CountedLevel, other: CountedLevel) -> bool:
        """Return whether a group in one domain of a level is in one of another."""
        keys = level.key, other.key
        if keys not in self._nested:
            outer = self.problem.node_table.outer_domains(*keys)
            nested = outer is not None and bool((outer[: level.labelled] < other.labelled).all())
            self._nested[keys] = nested
        return self._nested[keys]

    def _read_wishes(self) -> list[_Wish]:
        return [
            _Wish(
                group,
                self._pods_of(group.index),
                [self._level(key) for key in keys],
                best=[1] * len(keys),
            )
            for group in self.problem.groups
            if (keys := group.source.preferred)
        ]

    def _read_near(self) -> list[_NearWish]:
        """Return the wishes to be near in the order in which they are decided."""
        groups = {group.source.key: group for group in self.problem.groups}
        wishes: list[_NearWish] = []
        for group in self.problem.groups:
            for near in group.source.near or ():
                if near.group not in groups:
                    continue  # it is left out of this request
                pair = (group, groups[near.group])
                left, right = (self._pods_of(each.index) for each in pair)
                level = self._level(near.key)
                count = PairCount((left, right), level, 0)
                fixed = left.bound * right.bound - sum(
                    int((level.domain[right.bound_nodes] == domain).sum())
                    for domain in level.domain[left.bound_nodes]
                )
                wishes.append(_NearWish(*pair, count, fixed))
        return sorted(wishes, key=lambda w: (len(self._path(w.group)), w.group.index))

    def _path(self, group: CompiledGroup) -> list[int]:
        """Return a group and those above it, the root first."""
        return [each.index for each in self.problem.above(group)][::-1]

    def _units(self) -> list[list[_Wish]]:
        """Return the wishes in the order in which they are decided, those of identical leaves of one parent together."""
        # leaves with different distances to others are not interchangeable
        alone = {group.index for w in self.near for group in (w.group, w.partner)}
        units: dict[tuple[object, ...], list[_Wish]] = {}
        for wish in sorted(self.wishes, key=lambda w: (len(self._path(w.group)), w.group.index)):
            index = wish.group.index
            key = (index,) if index in alone else _unit_key(wish.group)
            units.setdefault(key, []).append(wish)
        return list(units.values())

    def _pods_of(self, index: int) -> GroupPods:
        if index not in self._pods:
            self._pods[index] = GroupPods(self.problem, index)
        return self._pods[index]

    def _is_whole(self, wish: _Wish, level: CountedLevel) -> bool:
        return wish.pods.domains(self.solution, level) == 1

    def _all_whole(self, units: list[list[_Wish]]) -> bool:
        return all(self._is_whole(wish, wish.levels[0]) for unit in units for wish in unit)

    # --- deciding ----------------------------------------------------------------------------------

    def _settle(self, unit: list[_Wish]) -> None:
        """Find the best placement for identical groups, and keep what they reached."""
        remaining = unit
        for position, level in enumerate(unit[0].levels):
            number, proved = self._most_whole(remaining, level)
            for wish in remaining[:number]:
                wish.whole = position
                self.tight[wish.group.index] = level.key
            remaining = remaining[number:]
            for wish in remaining if proved else ():
                wish.best[position] = BROKEN
        for position in range(len(unit[0].levels)):
            self._fewest(unit, position)
        if unit[0].group.source.balanced:
            self._balance(unit)

    def _most_whole(self, unit: list[_Wish], level: CountedLevel) -> tuple[int, bool]:
        """Find of how many groups, the first ones of a unit, each can be in one domain; and whether no more is proved."""
        low = self._put_whole_first(unit, level)
        for wish in unit[low:]:
            if self.left > 0 and self._each_fits_alone({wish.group.index: level.key}):
                count = DomainCount((wish.pods,), level, 0)
                self._place_directly([wish.group], count, self._kept(), 1)
        low = self._put_whole_first(unit, level)
        high, proved = len(unit), True
        middle = high
        while low < high:
            answer = self._attempt(
                self.tight | {w.group.index: level.key for w in unit[:middle]}, complete=True
            )
            if answer is True:
                low = max(middle, self._put_whole_first(unit, level))
            else:
                high, proved = middle - 1, proved and answer is False
            middle = (low + high + 1) // 2
        return low, proved

    def _put_whole_first(self, unit: list[_Wish], level: CountedLevel) -> int:
        """Exchange the pods of identical groups so that those in one domain are the first ones; return their number."""
        whole = [self._is_whole(wish, level) for wish in unit]
        if len(unit) > 1 and any(whole):
            ordered = sorted(range(len(unit)), key=lambda i: not whole[i])
            old = [self.solution.get(wish.group.index) for wish in unit]
            for wish, source in zip(unit, ordered, strict=True):
                pods = old[source]
                if pods is not None:
                    self.solution[wish.group.index] = pods
                else:
                    self.solution.pop(wish.group.index, None)
        return sum(whole)

    def _fewest(self, unit: list[_Wish], position: int) -> None:
        """Find the fewest domains of a level that the groups of a unit are in together."""
        level = unit[0].levels[position]
        # others are in one domain of it
        wishes = [w for w in unit if w.whole < 0 or not self._inside(w.levels[w.whole], level)]
        if not wishes:
            return
        pods = tuple(wish.pods for wish in wishes)
        count = DomainCount(pods, level, 0)
        value = count.value(self.solution)
        if value > sum(wish.best[position] for wish in wishes):
            # without budget what holds without the limits of earlier groups is enough
            problem = self._kept() if self.left > 0 else self.problem
            # that these are in several domains is not proved, and what they reached by later criteria may be why
            undecided = {
                wish.group.index
                for wish in wishes
                if wish.best[position] < BROKEN and not 0 <= wish.whole < position
            }
            alone = problem
            if undecided & self.tight.keys():
                of_unit = {wish.group.index for wish in unit}
                others = {i: key for i, key in self.tight.items() if i not in of_unit}
                alone = self._tightened(others) if self.left > 0 else self.problem
            for wish in wishes:
                least = max(self.at_least - (self._all_pods - wish.pods.size), 0)
                limit, kept = self._limit(wish.group, level), problem
                if wish.group.index in undecided:
                    limit, kept = None, alone
                enough = wish.pods.domains(self.solution, level)
                fewest = wish.pods.fewest(kept, level, least, limit, enough)
                wish.best[position] = max(wish.best[position], fewest)
            settled = True
            for wish in wishes if self.left > 0 else ():
                if wish.pods.domains(self.solution, level) > wish.best[position]:
                    best, own = wish.best[position], replace(count, groups=(wish.pods,))
                    settled &= self._place_directly([wish.group], own, problem, best)
            bests = [wish.best[position] for wish in wishes]
            settled &= self._is_large(level)
            if count.value(self.solution) > sum(bests) and self.left > 0 and not settled:
                for wish, bound in zip(wishes, self._bettered(count, bests), strict=True):
                    if wish.group.index not in undecided:
                        wish.best[position] = bound
        self.counts.append(replace(count, most=count.value(self.solution)))

    def _bettered(self, count: TopologyCount, best: Sequence[int]) -> list[int]:
        """Search for less of a count than now with CP-SAT; return lower bounds of its groups, given with those that are proved already."""
        value, bound = self._lower(replace(count, most=count.value(self.solution)))
        if bound >= value:  # proved for all together, so for each
            parts = (replace(count, groups=(pods,)) for pods in count.groups)
            return [max(n, p.value(self.solution)) for n, p in zip(best, parts, strict=True)]
        return [max(best[0], bound)] if len(best) == 1 else list(best)

    def _lower(self, count: TopologyCount) -> tuple[int, int]:
        """Search for a count below its `most` with CP-SAT, beside what earlier groups keep; return what is reached, and a lower bound."""
        if self.at_once:
            raise NotAtOnce
        problem = self._kept()
        counts = [*self.counts, count]
        model = DomainCountModel(problem, bound_all(problem), counts, self.at_least)
        result = model.search(self._complete_limit(), self.solution, optimise=True)
        self._spend(result.steps)
        if result.outcome in {"best", "found"} and count.value(result.solution) < count.most:
            self._accept(result.solution)
            self.searched = True
        return count.value(self.solution), result.bound

    def _balance(self, unit: list[_Wish]) -> None:
        """Find a placement whose smallest shares are as large as can be, and keep what is reached."""
        level = unit[0].levels[0]
        wishes = [wish for wish in unit if wish.whole != 0]
        if not wishes:
            return
        for wish in wishes:
            self._share_equally(wish)
        count = ShareCount(tuple(wish.pods for wish in wishes), level, 0)
        if len(wishes) == 1 and not wishes[0].pods.missing:
            # no smallest share is above an equal one; a group that is broken may have one node for all of its pods
            every, fewest = wishes[0].pods.bound + wishes[0].pods.size, wishes[0].best[0]
            if fewest > BROKEN or bool((level.domain < level.labelled).all()):
                wishes[0].share_best = every - every // fewest
        best = [wish.share_best for wish in wishes]
        if count.value(self.solution) > sum(best) and self.left > 0:
            for wish, bound in zip(wishes, self._bettered(count, best), strict=True):
                wish.share_best = bound
        self.counts.append(replace(count, most=count.value(self.solution)))

    def _share_equally(self, wish: _Wish) -> None:
        """Take equal shares of as many domains for a leaf of one kind without bound pods, where these have place for them."""
        leaf, level = wish.group, wish.levels[0]
        placed = self.solution.get(leaf.index, {})
        if not leaf.leaf or leaf.bound or len(placed) != 1 or len(leaf.members) > 1:
            return
        ((kind, nodes),) = placed.items()
        shares = wish.pods.per_domain(self.solution, level)
        shares = shares[shares > 0]
        pods, equal = sum(nodes.values()), sum(nodes.values()) // len(shares)
        if shares.min() >= equal:
            return
        able = self._capacity_for(leaf, {leaf.index}, self._kept())
        if able is None:
            return
        fit = able.fit
        fit[able.region != able.region[next(iter(nodes))]] = 0
        for wider in wish.levels[1:]:  # in the same domains of these as now
            fit[~np.isin(wider.domain, wider.domain[list(nodes)])] = 0
        capacity = np.bincount(level.domain, weights=fit).astype(np.int64)
        chosen = tightest_for_shares(capacity, len(shares), pods)
        amounts: dict[int, int] = {}
        for domain, share in zip(
            chosen.tolist(), equal_shares(capacity[chosen], pods), strict=True
        ):
            inside = np.flatnonzero((level.domain == domain) & (fit > 0))
            unused = np.zeros(len(inside), dtype=np.bool_)
            left = share
            for at in fewest_first(fit[inside], unused, share).tolist():
                amounts[int(inside[at])] = min(left, int(fit[inside[at]]))
                left -= amounts[int(inside[at])]
        other = {**self.solution, leaf.index: {kind: amounts}}
        if len(chosen) and wish.pods.smallest_share(other, level) > shares.min():
            self._spend(self.problem.node_table.size // NODES_PER_STEP)
            if self._keeps(other):
                self.solution = other

    def _place_directly(
        self,
        groups: Sequence[CompiledGroup],
        count: DomainCount | PairCount,
        problem: PlacementProblem,
        enough: int,
    ) -> bool:
        """Place the pods of one or two groups anew where nothing but capacity decides; return whether it does.

        Of one group the placement is the one in the fewest domains, of two groups the one with most pairs of pods together: where all ask
        for the same, no other one is better. Of equally good ones it is one in a single domain of a wider key, the tightest. It stays as
        it was where that is worse for what is kept, or by the count of these groups.

        Args:
            count: Of these groups alone.
            problem: With the keys that groups keep.
            enough: Domains, or pairs apart, below which no placement is.
        """
        level = count.level
        leaves = {leaf for group in groups for leaf in self._pods_of(group.index).leaves}
        capacities = [
            capacity
            for group in groups
            if (capacity := self._capacity_for(group, leaves, problem)) is not None
        ]
        if len(capacities) < len(groups):
            return False
        self._spend(self.problem.node_table.size // NODES_PER_STEP)
        sizes = [self._pods_of(group.index).number(self.solution) for group in groups]
        alike = _alike(capacities)
        weights = [1] * len(capacities) if alike else self._weights(capacities, sizes)
        space = (capacity.fit * w for capacity, w in zip(capacities, weights, strict=True))
        fit = functools.reduce(np.maximum, space)
        region = capacities[0].region
        if len(capacities) > 1:
            region = region * (int(capacities[1].region.max(initial=0)) + 1) + capacities[1].region
            fit[(capacities[0].region < 0) | (capacities[1].region < 0)] = 0
        limit = self._limit(groups[0], level) if len(groups) == 1 else None
        need = [n * w for n, w in zip(sizes, weights, strict=True)]
        chosen = self._best_nodes(level, fit, region, need, limit, enough * math.prod(weights))
        together = len(chosen) > 0
        if not together:
            chosen = np.arange(len(fit))
            apart = self._placed_beside(groups, level, capacities, sizes, weights)
            if apart is None:
                return False
            divisions = apart
        elif alike:
            parts = level if limit is None else limit.level
            divisions = divided(parts.domain[chosen], fit[chosen], sizes)
        else:
            fits = [capacity.fit[chosen] for capacity in capacities]
            divisions = divided_by_weight(level.domain[chosen], fit[chosen], fits, sizes, weights)
        other = {**self.solution}
        for group, amounts in zip(groups, divisions, strict=False):
            left = amounts
            for leaf in self._pods_of(group.index).leaves:
                for kind, pods in self.solution.get(leaf, {}).items():
                    dealt = first_pods(left, sum(pods.values()))
                    left = left - dealt
                    used = np.flatnonzero(dealt)
                    used = used[np.argsort(chosen[used])]
                    on_nodes = zip(chosen[used].tolist(), dealt[used].tolist(), strict=True)
                    other[leaf] = {**other[leaf], kind: dict(on_nodes)}
        value = count.value(self.solution)
        kept = self._keeps(other) and (alike or self._has_capacity(other))
        if kept and count.value(other) <= value:
            self._accept(other)
        return kept or together

    def _placed_beside(
        self,
        groups: Sequence[CompiledGroup],
        level: CountedLevel,
        capacities: Sequence[_Capacity],
        sizes: Sequence[int],
        weights: Sequence[int],
    ) -> tuple[Ints, Ints] | None:
        """Return how many pods each node gets of two groups that no region holds together; None: neither is in one domain of the level."""
        pair = [*zip(groups, capacities, sizes, weights, strict=True)]
        if swapped := self._most_domains(groups[0], level) > 1:
            pair.reverse()
        if len(pair) == 1 or self._most_domains(pair[0][0], level) > 1:
            return None
        limits = [self._limit(group, level) for group, *_ in pair]
        seats = placed_beside(
            level.domain,
            [capacity.region for _, capacity, *_ in pair],
            [in_parts(c.fit, most, n) for (_, c, n, _), most in zip(pair, limits, strict=True)],
            [number for *_, number, _ in pair],
            [weight for *_, weight in pair],
            [(most.level if most else level).domain for most in limits],
        )
        return seats[::-1] if swapped and seats is not None else seats

    def _best_nodes(
        self,
        level: CountedLevel,
        fit: Ints,
        region: Ints,
        sizes: Sequence[int],
        limit: DomainCount | None,
        enough: int,
    ) -> Ints:
        """Return the nodes of the best region for one or two groups, by domain; none holds them: none.

        Args:
            region: Of each node; a domain of a wider key in it is preferred where it is as good.
        """
        nodes = np.flatnonzero(fit)
        candidates = [nodes]
        if len(sizes) == 1:
            # one with a pod on a node without the label is never whole
            labelled = nodes[level.domain[nodes] < level.labelled]
            nodes = labelled if int(fit[labelled].sum()) >= sizes[0] else nodes
            # first those that so few domains need
            few = in_parts(fit, DomainCount((), level, enough), sizes[0])[nodes] > 0
            candidates = [nodes[few], nodes]
        best, chosen = math.inf, nodes[:0]
        for nodes, outer in itertools.product(candidates, self._wider(level)):
            rows, of = nodes, outer[nodes]
            if of.min(initial=0) < 0:
                rows = nodes[of >= 0]
                of = outer[rows]
            if np.bincount(of, weights=fit[rows]).max(initial=0) < sum(sizes):
                continue
            domain, capacity = level.domain[rows], fit[rows]
            of = numbered(region[rows] * (int(of.max(initial=0)) + 1) + of)
            if len(sizes) > 1:
                cost, inside = best_region_of_two(of, domain, capacity, sizes)
            else:
                parts = domain if limit is None else limit.level.domain[rows]
                cost, inside = best_region(of, domain, capacity, sizes[0], limit, parts)
            if cost < best:
                best, chosen = cost, rows[inside]
            if best <= enough:
                break
        return chosen[np.argsort(level.domain[chosen], kind="stable")]

    def _is_large(self, level: CountedLevel) -> bool:
        """Return whether a complete search would hardly better a direct placement: a count of it has many domains."""
        levels = (level, *(count.level for count in self.counts))
        return max(each.labelled for each in levels) > COMPLETE_DOMAINS

    def _weights(self, capacities: Sequence[_Capacity], sizes: Sequence[int]) -> list[int]:
        """Return what a pod of each group takes of the resource that is scarcest, of those that both ask for; 1 where there is none."""
        asks = [capacity.ask for capacity in capacities]
        both = (asks[0] > 0) & (asks[1] > 0)
        if not both.any():
            return [1, 1]
        demand = sizes[0] * asks[0].astype(np.float64) + sizes[1] * asks[1]
        free = np.ascontiguousarray(self.problem.free)  # rounding follows the order of addition
        share = demand / np.maximum(free.sum(axis=0, dtype=np.float64), 1)
        axis = int(np.where(both, share, -1).argmax())
        step = math.gcd(int(asks[0][axis]), int(asks[1][axis]))
        return [int(ask[axis]) // step for ask in asks]

    def _has_capacity(self, solution: Solution) -> bool:
        """Return whether the nodes have the capacity that a placement needs."""
        return bool((self._left(solution, set())[1] >= 0).all())

    def _left(self, solution: Solution, without: AbstractSet[int]) -> tuple[Ints, Ints]:
        """Return the nodes of the pods of all other leaves, and what these pods leave free there."""
        amounts = np.zeros_like(self.problem.free)
        is_used = np.zeros(len(amounts), dtype=np.bool_)
        for index, by_kind in solution.items():
            for kind, pods_on in by_kind.items() if index not in without else ():
                nodes = np.fromiter(pods_on, np.int64, len(pods_on))
                pods = np.fromiter(pods_on.values(), np.int64, len(pods_on))
                amounts[nodes] += pods[:, None] * self.problem.requests[kind]
                is_used[nodes] = True
        used = np.flatnonzero(is_used)
        return used, self.problem.free[used] - amounts[used]

    def _limits_of(self, group: CompiledGroup) -> Iterator[DomainCount]:
        """Yield the limits of domains that are kept of a group alone."""
        for count in self.counts:
            if isinstance(count, DomainCount) and [p.index for p in count.groups] == [group.index]:
                yield count

    def _limit(self, group: CompiledGroup, level: CountedLevel) -> DomainCount | None:
        """Return the first of these of a narrower level, inside the domains of a level."""
        limits = (count for count in self._limits_of(group) if self._inside(count.level, level))
        return next(limits, None)

    def _wider(self, level: CountedLevel) -> Iterator[Ints]:
        """Yield the domains per node of each key of which a domain of a level is in one domain, the narrowest first; then one of all.

        Those of nodes without the label are -1.
        """
        keys = {*self.keys, *(near.count.level.key for near in self.near), *self._levels}
        levels = [self._level(key) for key in keys if key != level.key]
        levels.sort(key=lambda other: (-other.labelled, other.key))
        for other in levels:
            if self._inside(level, other):
                is_labelled = other.domain < other.labelled
                yield other.domain if is_labelled.all() else np.where(is_labelled, other.domain, -1)
        yield np.zeros(len(level.domain), dtype=np.int64)

    def _capacity_for(
        self, group: CompiledGroup, without: AbstractSet[int], problem: PlacementProblem
    ) -> _Capacity | None:
        """Return where the pods of a group could be beside those of other leaves.

        It stays in the domain of the group above it, an exclusive one in its own. None: some pods are bound, it depends on which of them
        is placed, or on more than capacity and the node.

        Args:
            without: Leaves whose pods are not counted.
            problem: With the keys that groups keep.
        """
        pods, own = self._pods_of(group.index), problem.groups[group.index].level
        nodes, _ = pods.nodes(self.solution)
        kinds = sorted({kind for leaf in pods.leaves for kind in self.solution.get(leaf, {})})
        requests, allowed = self.problem.requests, self.problem.allowed
        below = {i for leaf in pods.leaves for i in self._path(problem.groups[leaf])}
        below.difference_update(self._path(group))
        if (
            not len(nodes)
            or pods.bound
            or not all(map(self._is_plain, kinds))
            or any(problem.groups[i].level is not own or problem.groups[i].exclusive for i in below)
            or any((requests[kind] != requests[kinds[0]]).any() for kind in kinds[1:])
            or any((allowed[kind] != allowed[kinds[0]]).any() for kind in kinds[1:])
        ):
            return None
        fit = self.problem.counts[kinds[0]].copy()
        used, free = self._left(self.solution, without)
        fitting = count_fitting(free, requests[kinds[0]])
        fit[used] = fitting * allowed[kinds[0]][used]
        inside = own.domain >= 0
        mine = nodes[0]
        if group.exclusive:
            inside &= own.domain == own.domain[mine]
        elif group.parent >= 0:
            above = problem.groups[group.parent].level
            inside &= above.domain == above.domain[mine]
        region = own.domain
        if not inside.all():
            fit[~inside] = 0
            region = np.where(inside, region, -1)
        return _Capacity(fit, region, requests[kinds[0]])

    def _is_plain(self, kind: int) -> bool:
        """Return whether nothing but capacity and the node decides where a pod of a kind can be."""
        rules, shape = self.problem.rules, self.problem.kinds[kind]
        moving = (
            shape in rule.keepers
            or (isinstance(rule, AntiAffinityDomains) and shape in rule.others)
            for rule in rules.dynamic
        )
        return not (self.problem.claims[kind] or any(moving))

    def _gather_leaf(self, wish: _Wish) -> None:
        """Place a leaf in fewer domains of the levels of the cluster around its narrowest key, where what was reached holds there."""
        level, before = wish.levels[0], self.solution
        settled = {own.key for own in wish.levels}
        others = [self._level(key) for key in self.keys if key not in settled]
        around = [other for other in others if self._inside(level, other)]
        values = [wish.pods.domains(before, other) for other in around]
        if not wish.group.leaf or max(values, default=1) == 1 or self.left <= 0:
            return
        count = DomainCount((wish.pods,), level, wish.pods.domains(before, level))
        self._place_directly([wish.group], count, self._kept(), count.most)
        after = [wish.pods.domains(self.solution, other) for other in around]
        if after == values or any(map(operator.gt, after, values)):
            self.solution = before

    def _gather(self) -> None:
        """Put all pods into the fewest domains of the levels of the cluster, the widest first, beside what the wishes reached."""
        pods = GroupPods(self.problem, 0)
        levels = sorted(map(self._level, self.keys), key=lambda level: (level.labelled, level.key))
        for level in levels:
            value = pods.domains(self.solution, level)
            if (
                level.labelled
                and value > 1
                and self.left > 0
                and value > pods.fewest(self._kept(), level, self.at_least)
            ):
                value, _ = self._lower(DomainCount((pods,), level, value))
            self.counts.append(DomainCount((pods,), level, value))

    def _settle_near(self, wish: _NearWish) -> None:
        """Find a placement with the fewest pairs of pods in different domains, and keep what is reached."""
        level, pair = wish.count.level, (wish.group, wish.partner)
        value = wish.count.value(self.solution)
        # so all placements have these pods
        if value > wish.best and self.at_least == self._all_pods:
            most = [self._most_domains(group, level) for group in pair]
            limits = [self._limit(group, level) for group in pair]
            fewest = wish.count.fewest(self.problem, self.solution, most, limits)
            wish.best = max(wish.best, fewest)
        settled = False
        if value > wish.best == 0 and self._never_together(wish):
            # one pod in another domain has no pod of the other group beside it, or is one of several
            wish.best = min(group.number(self.solution) for group in wish.count.groups)
            settled = self._is_large(level)
        elif value > wish.best and self.left > 0:
            settled = self._place_directly(pair, wish.count, self._kept(), wish.best)
            settled &= self._is_large(level)
            value = wish.count.value(self.solution)
        if value > wish.best == 0:
            # all that is below the group above both in one domain: more than is asked for, and found without CP-SAT
            above = [a for a, b in zip(*map(self._path, pair), strict=False) if a == b][-1]
            held = self.tight.get(above)
            if held is None or self._inside(level, self._level(held)):
                self._attempt(self.tight | {above: level.key}, complete=False)
            value = wish.count.value(self.solution)
        if value > wish.best and self.at_once and not settled:
            raise NotAtOnce
        if value > wish.best and self.left > 0 and not settled:
            count = replace(wish.count, most=value)
            value, bound = self._lower(count)
            wish.best = max(wish.best, min(bound, value))
        self.counts.append(replace(wish.count, most=value))

    def _never_together(self, wish: _NearWish) -> bool:
        """Return whether no domain has all pods of both groups with as few pairs of them apart by a narrower key as is kept."""
        level, groups = wish.count.level, wish.count.groups
        of_both = {pods.index for pods in groups}
        limits = (
            count
            for count in self.counts
            if isinstance(count, PairCount)
            and {pods.index for pods in count.groups} == of_both
            and self._inside(count.level, level)
        )
        kept = next(limits, None)
        if kept is None or self.at_least < self._all_pods or any(pods.bound for pods in groups):
            return False
        fit = self.problem.pods().per_node(sorted({kind for pods in groups for kind in pods.kinds}))
        sizes = [pods.number(self.solution) for pods in groups]
        return best_region_of_two(level.domain, kept.level.domain, fit, sizes)[0] > kept.most

    def _most_domains(self, group: CompiledGroup, level: CountedLevel) -> int:
        """Return in how many domains of a level a group may be, by what is kept of it and of the groups above."""
        kept = (self.tight[index] for index in self._path(group) if index in self.tight)
        if any(self._inside(self._level(key), level) for key in (*group.level.keys, *kept)):
            return 1
        limits = (count.most for count in self._limits_of(group) if count.level is level)
        return min(limits, default=FIT_MAX)

    # --- placing -----------------------------------------------------------------------------------

    def _kept(self) -> PlacementProblem:
        """Return the problem with the keys of which groups stay in one domain."""
        if self._tight is None or self._tight[0] != self.tight:
            self._tight = {**self.tight}, self._tightened(self.tight)
        return self._tight[1]

    def _tightened(self, tight: Mapping[int, str]) -> PlacementProblem:
        self._spend(
            len(self.problem.groups) // GROUPS_PER_STEP
            + self.problem.node_table.size // NODES_PER_STEP
        )
        if not tight:
            return self.problem
        return with_keys(self.problem, tight)

    def _attempt(self, tight: Mapping[int, str], *, complete: bool) -> bool | None:
        """Place as many pods with some groups each in one domain; False: proved that none is possible, None: not known."""
        form = frozenset(tight.items())
        if form in self._impossible or not self._each_fits_alone(tight):
            return False
        if self.left <= 0:
            if self.at_once:
                raise NotAtOnce
            return None
        problem = self._tightened(tight)
        bounds = bound_all(problem) if not problem.violations else None
        if bounds is None or bounds.root < self.at_least:
            self._impossible.add(form)
            return False
        effort = SearchBudget(max(self.left // 2, 1))
        draft = solve_quickly(
            problem, bounds, effort, maximise=True, enough=min(bounds.root, self.at_least)
        )
        if self.at_once and effort.nodes >= effort.limit:
            raise NotAtOnce
        self._spend(effort.nodes)
        if draft is not None and self._keeps(solution := draft.solution()):
            self._accept(solution)
            return True
        if not complete:
            return None
        if self.at_once:
            raise NotAtOnce
        model = DomainCountModel(problem, bounds, self.counts, self.at_least)
        result = model.search(self._complete_limit(), None, optimise=False)
        self._spend(result.steps)
        if result.outcome == "none":
            self._impossible.add(form)
            return False
        if result.outcome == "unknown":
            return None
        self._accept(result.solution)
        self.searched = True
        return True

    def _each_fits_alone(self, tight: Mapping[int, str]) -> bool:
        """Return False where some domain is needed that is too small for its group alone: proved without bounds of the whole tree."""
        bounds = self.problem.pods()
        for index, key in tight.items():
            pods, level = self._pods_of(index), self._level(key)
            most = bounds.total_by(pods.kinds, key, level.domain)[: level.labelled]
            if most.max(initial=0) < self.at_least - (self._all_pods - pods.size):
                return False
        return True

    def _keeps(self, solution: Solution) -> bool:
        """Return whether a placement has enough pods, and keeps what earlier groups reached."""
        return size(solution) >= self.at_least and all(
            count.value(solution) <= count.most for count in self.counts
        )

    def _accept(self, solution: Solution) -> None:
        self.solution = solution
        self.at_least = max(self.at_least, size(solution))

    def _complete_limit(self) -> int:
        return max(self.left // COMPLETE_PART, 1) if self.left > 0 else 0

    def _spend(self, nodes: int) -> None:
        """Count search nodes.

        Raises:
            NotAtOnce: The search must end at once, and its limit is reached.
        """
        self.spent += nodes
        self.left -= nodes
        if self.at_once and self.left <= 0:
            raise NotAtOnce

    # --- the certificate ---------------------------------------------------------------------------

    def _outcome(self, wish: _Wish) -> WishOutcome:
        values = [wish.pods.domains(self.solution, level) for level in wish.levels]
        pods = wish.pods.number(self.solution)
        largest = 0
        if values[0] > 1:
            largest = wish.pods.largest(self.problem, wish.levels[0])
        return WishOutcome(
            kind="preferred",
            group=wish.group.source.key,
            values=tuple(
                WishValue(key=level.key, value=value, best=min(best, value))
                for level, value, best in zip(wish.levels, values, wish.best, strict=True)
                if self._is_on_nodes(level.key)
            ),
            pods=pods,
            largest=largest if largest < pods and self._is_on_nodes(wish.levels[0].key) else 0,
        )

    def _balanced_outcome(self, wish: _Wish) -> Iterator[WishOutcome]:
        """Yield how far the smallest share of a balanced group is below an equal one, if it is in several domains."""
        level = wish.levels[0]
        if not wish.group.source.balanced or not self._is_on_nodes(level.key):
            return
        shares = wish.pods.per_domain(self.solution, level)
        shares = shares[shares > 0]
        if len(shares) < 2:  # noqa: PLR2004 -- one share
            return
        pods = wish.pods.number(self.solution)
        equal = pods // wish.pods.domains(self.solution, level)
        value = equal - int(shares.min())
        largest = wish.pods.bound + wish.pods.size - wish.share_best  # that a smallest share can be
        best = min(max(equal - largest, 0), value)
        yield WishOutcome(
            kind="balanced",
            group=wish.group.source.key,
            values=(WishValue(key=level.key, value=value, best=best),),
            pods=pods,
        )

    def _near_outcome(self, wish: _NearWish) -> WishOutcome:
        key, value = wish.count.level.key, wish.count.value(self.solution)
        pods = wish.count.groups[0]
        return WishOutcome(
            kind="near",
            group=wish.group.source.key,
            values=(WishValue(key=key, value=value, best=min(wish.best, value)),)
            if self._is_on_nodes(key)
            else (),
            pods=pods.number(self.solution),
            partner=wish.partner.source.key,
        )


def _alike(capacities: Sequence[_Capacity]) -> bool:
    """Return whether pods of all groups ask for the same, and could be on the same nodes where the regions of both are."""
    first, last = capacities[0], capacities[-1]
    apart = (first.region < 0) | (last.region < 0)
    return bool((first.ask == last.ask).all() and ((first.fit == last.fit) | apart).all())


def _unit_key(group: CompiledGroup) -> tuple[object, ...]:
    """Return a key that is equal for interchangeable leaves of one parent, and for no other groups."""
    if not group.leaf or group.bound:
        return (group.index,)
    sizes = tuple(sorted((k, len(m)) for k, m in group.members.items()))
    # all that a leaf asks for, without its name and its members
    source = msgspec.structs.replace(
        group.source, key=GroupKey(namespace="", name="", kind="PodGroup"), members=(), near=UNSET
    )
    return (group.parent, group.required, sizes, source)
