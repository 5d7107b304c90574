"""Greedy search for sets of victims: add the cheapest units until the tree fits, then reprieve units.

For every candidate domain the units there are ranked in several ways. Binary search finds the shortest prefix
of a ranking without which the tree fits. From it units are reprieved, the most expensive first, as long as the
tree can still be placed in any way; at last every unit that fits beside the placement that was found. Every set
in the result is valid, and has no unit that could keep its place. The search ends when a set is proved the cheapest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from extender.core.planner.model.node_table import Bools, Ints
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.candidate_domains import (
    CandidateDomain,
    CandidateDomains,
    CostBounds,
    Promising,
)
from extender.core.planner.preempt.post_eviction_view import (
    EvictionBarrier,
    PostEvictionView,
    VictimCost,
)
from extender.core.planner.solve.greedy_placement import (
    SearchBudget,
    SearchBudgetExceeded,
    Solution,
)
from extender.core.planner.solve.solver_pipeline import solve_quickly

SKETCHES_MAX = 64  # domains tried, those with the lowest bound of the cost
DOMAINS_MAX = 8  # domains searched thoroughly
PROBES_MAX = 1_600  # placements tried, in all domains together
PROBES_MIN = 12  # for one step


@dataclass(slots=True)
class VictimSet:
    """A valid set of victims, with the placement of the tree after their eviction."""

    evicted: Bools
    solution: Solution
    cost: VictimCost
    where: str  # the domain of the search; empty: anywhere


@dataclass(slots=True)
class VictimSets:
    """The sets that were found, and the domains without any."""

    feasible: list[VictimSet] = field(default_factory=list)
    # evicting all units there is not enough
    infeasible: list[CandidateDomain] = field(default_factory=list)

    @property
    def best(self) -> VictimSet:
        """Return the cheapest set."""
        return min(self.feasible, key=lambda c: c.cost)


class Reprieve:
    """Searches the sets of victims for one request."""

    def __init__(
        self, eviction_view: PostEvictionView, effort: SearchBudget, *, min_pods: int
    ) -> None:
        """Prepare the search; `min_pods`: smallest number of pods to place, 0: the minimum of the tree."""
        self.eviction_view = eviction_view
        self.effort = effort
        self.min_pods = min_pods
        self.probes = 0
        self.allowed = PROBES_MAX  # upper limit of `probes` for the current step
        self.places = CandidateDomains(eviction_view, min_pods=min_pods)
        self.prices = self.places.prices
        self._promising: dict[VictimCost, Promising] = {}
        self._bounds = CostBounds(self.places)
        order = np.argsort(eviction_view.unit, kind="stable")
        numbers = np.arange(len(eviction_view.units) + 1)
        cuts = np.searchsorted(eviction_view.unit[order], numbers).tolist()
        # per unit, into `eviction_view.back`
        self._rows = [order[a:b] for a, b in itertools.pairwise(cuts)]
        number, node, back = eviction_view.joint_rows
        # units, and what is free on which nodes when all of them are evicted
        self._joint = [
            (units, node[number == i], back[number == i])
            for i, (units, _) in enumerate(eviction_view.joint)
        ]

    def search(self, evicted: Bools, first: Solution) -> VictimSets:
        """Find sets of victims.

        Args:
            evicted: Units that are enough, per unit, shape (units,).
            first: A placement after their eviction, chosen without regard to the cost of victims.
        """
        victim_sets = VictimSets(infeasible=[p for p in self.places.domains if p.least is None])
        victim_sets.feasible.append(self._candidate(evicted, first, ""))
        promising_sets: list[tuple[VictimSet, CandidateDomain]] = []
        # those with the lowest bound of the cost first
        promising = [place for place in self.places.domains if place.least is not None]
        promising.sort(key=lambda place: (place.least, len(place.units)))
        promising = promising[:SKETCHES_MAX]
        for place in promising:
            if len(promising_sets) >= DOMAINS_MAX and self._costs_more(place, victim_sets):
                break  # and all others are at least as expensive
            self._allot_probes(2 * len(promising))
            head = self._shortest_prefix(place, place.units)
            if head is not None:
                promising_sets.append((head, place))
                victim_sets.feasible.append(head)
        if self.promising(victim_sets.best).proved:
            return victim_sets
        promising_sets.sort(key=lambda pair: pair[0].cost)
        promising_sets = [
            (h, p) for h, p in promising_sets[:DOMAINS_MAX] if not self._costs_more(p, victim_sets)
        ]
        for number, (head, place) in enumerate(promising_sets):
            orders = self.places.rankings(place)
            steps = (len(promising_sets) - number) * (len(orders) + 1)
            self._allot_probes(steps)
            victim_sets.feasible.append(self._reduce(head, place))
            reduced = {head.evicted.tobytes()}
            for done, order in enumerate(orders, start=1):
                self._allot_probes(steps - done)
                other = self._shortest_prefix(place, order)
                if other is not None and other.evicted.tobytes() not in reduced:
                    reduced.add(other.evicted.tobytes())
                    victim_sets.feasible.append(self._reduce(other, place))
        return victim_sets

    def promising(self, victim_set: VictimSet) -> Promising:
        """Return which units a set may have that costs less than a given set."""
        cost = victim_set.cost
        if cost not in self._promising:
            self._promising[cost] = self._bounds.promising(cost, victim_set.evicted)
        return self._promising[cost]

    def _costs_more(self, place: CandidateDomain, victim_sets: VictimSets) -> bool:
        """Return whether every set of a domain costs more than the best one known."""
        best = victim_sets.best.cost
        return place.least is None or place.least > (best.violations, best.highest)

    def _allot_probes(self, parts: int) -> None:
        """Set the limit of the next step: its part of the probes left, and `PROBES_MIN` at least."""
        left = PROBES_MAX - self.probes
        self.allowed = self.probes + min(left, max(left // parts, PROBES_MIN))

    # --- evicting ----------------------------------------------------------------------------------

    def _probe(self, evicted: Bools, place: CandidateDomain) -> Solution | None:
        """Return a placement of the tree without some units, or None if the greedy search finds none."""
        if self.probes >= self.allowed:
            return None
        self.probes += 1
        try:
            self.effort.spend()
        except SearchBudgetExceeded:
            self.probes = self.allowed = PROBES_MAX
            return None
        problem = self.eviction_view.problem(evicted, place.nodes)
        bounds = bound_all(problem)
        if bounds.infeasible or bounds.root < self.min_pods:
            return None
        draft = solve_quickly(problem, bounds, self.effort, maximise=self.min_pods > 0)
        return draft.solution() if draft is not None and draft.total >= self.min_pods else None

    def _shortest_prefix(self, place: CandidateDomain, order: list[int]) -> VictimSet | None:
        """Find a short sufficient prefix of an order by binary search; None if the whole order is not enough."""
        evicted = self.eviction_view.none_evicted
        evicted[order] = True
        solution = self._probe(evicted, place)
        if solution is None:
            return None
        best: tuple[Bools, Solution] = (evicted, solution)
        low, high = 0, len(order)
        while low < high:
            take = (low + high) // 2
            evicted = self.eviction_view.none_evicted
            evicted[order[:take]] = True
            solution = self._probe(evicted, place)
            if solution is None:
                low = take + 1
            else:
                best, high = (evicted, solution), take
        return self._candidate(*best, place.where)

    # --- reprieving --------------------------------------------------------------------------------

    def _candidate(self, evicted: Bools, solution: Solution, where: str) -> VictimSet:
        evicted = self.reprieve_units(evicted, solution)
        return VictimSet(evicted, solution, self.price(evicted), where)

    def price(self, evicted: Bools) -> VictimCost:
        """Return the cost of a set."""
        return self.eviction_view.cost_model.cost([int(i) for i in np.flatnonzero(evicted)])

    def _most_expensive_first(self, evicted: Bools) -> list[int]:
        chosen: list[int] = np.flatnonzero(evicted).tolist()
        return sorted(chosen, key=lambda i: self.prices[i], reverse=True)

    def _reduce(self, victim_set: VictimSet, place: CandidateDomain) -> VictimSet:
        """Reprieve units that another placement does not need, many at once where possible."""
        best: tuple[Bools, Solution] = (victim_set.evicted, victim_set.solution)

        def keep(part: list[int]) -> None:
            nonlocal best
            part = [i for i in part if best[0][i]]
            if not part or self.probes >= self.allowed:
                return
            evicted = best[0].copy()
            evicted[part] = False
            solution = self._probe(evicted, place)
            if solution is not None:
                best = (self.reprieve_units(evicted, solution), solution)
            elif len(part) > 1:
                half = len(part) // 2
                keep(part[:half])
                keep(part[half:])

        order = self._most_expensive_first(victim_set.evicted)
        half = (len(order) + 1) // 2
        keep(order[:half])
        keep(order[half:])
        return self._candidate(*best, place.where)

    def reprieve_units(
        self, evicted: Bools, solution: Solution, *, pessimistic: bool = True
    ) -> Bools:
        """Reprieve every unit that can keep its place beside a placement, the most expensive first.

        Args:
            pessimistic: Apply barriers that are only assumed, too (L34).

        Returns:
            The units that remain victims, shape (units,).
        """
        eviction_view = self.eviction_view
        problem, width = eviction_view.full, eviction_view.capacity.width
        used = np.zeros((eviction_view.node_table.size, width), dtype=np.int64)
        claims: set[str] = set()
        for kinds in solution.values():
            for kind, places in kinds.items():
                claims |= problem.claims[kind]
                for node, amount in places.items():
                    used[node] += amount * problem.requests[kind][:width]
        left = eviction_view.free(evicted) - used
        # the others share no node with a placed pod, nor a claim
        near = self.eviction_view.none_evicted
        busy: Bools = np.any(used > 0, axis=1)
        near[eviction_view.unit[busy[eviction_view.node]]] = True
        for units, nodes, _ in self._joint:
            near[units] |= bool(busy[nodes].any())
        near[eviction_view.holders] = True
        near[eviction_view.counting] = True
        barring = {
            barrier.unit
            for barrier in self.barriers_against(solution)
            if pessimistic or not barrier.uncounted_resource
        }
        near[list(barring)] = True
        kept = evicted & near
        counting = set(eviction_view.counting.tolist())
        again = True
        while again:
            again = False
            for unit in self._most_expensive_first(kept):
                nodes, back = self._used_again(unit, kept)
                short = (left[nodes] < back) & (used[nodes] > 0)
                claimed = eviction_view.claims[unit] & claims
                if unit in barring or bool(short.any()) or claimed:
                    continue
                kept[unit] = False
                if unit in counting:
                    if not eviction_view.keeps_rules(kept, solution):
                        kept[unit] = True
                        continue
                    again = True  # one that could not stay before may stay beside this one
                left[nodes] -= back  # there is one row per node
        return kept

    def _used_again(self, unit: int, evicted: Bools) -> tuple[Ints, Ints]:
        """Return the nodes, each once, and what a unit uses of them again if it stays, with the reservations that go only with all of several."""
        view, mine = self.eviction_view, self._rows[unit]
        nodes, back = view.node[mine], view.back[mine]
        for units, more, amounts in self._joint:
            if unit in units and evicted[units].all():
                every, place = np.unique(np.concatenate([nodes, more]), return_inverse=True)
                total = np.zeros((len(every), back.shape[1]), dtype=np.int64)
                np.add.at(total, place, np.concatenate([back, amounts]))
                nodes, back = every, total
        return nodes, back

    def barriers_against(self, solution: Solution) -> list[EvictionBarrier]:
        """Return the barriers against the node of a placed pod."""
        kinds = self.eviction_view.full.kinds
        placed: dict[int, set[int]] = {}
        for by_kind in solution.values():
            for kind, nodes in by_kind.items():
                placed.setdefault(kinds[kind], set()).update(nodes)
        return [
            barrier
            for barrier in self.eviction_view.barriers
            if any(barrier.nodes[sorted(placed[s])].any() for s in barrier.shapes & placed.keys())
        ]
