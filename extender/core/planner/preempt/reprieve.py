"""Sets of units that make room, found quickly: take the cheapest ones until the tree fits, then put back.

For every candidate domain the units there are ranked in several ways. The shortest head of a ranking
that makes room is found by halving; from it units are put back, the dearest first, as long as the tree
can still be placed in some way, and finally every unit that could run on beside the very placement that
was found. All sets that come out are valid, and none has a unit that could stay where it is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.candidate_domains import CandidateDomain, CandidateDomains
from extender.core.planner.preempt.post_eviction_view import EvictionBarrier, PostEvictionView
from extender.core.planner.preempt.victim_cost import CostModel, VictimCost
from extender.core.planner.solve.greedy_placement import (
    SearchBudget,
    SearchBudgetExceeded,
    Solution,
)
from extender.core.planner.solve.solver_pipeline import size, solve_quickly

SKETCHES_MAX = 64  # domains looked at, those that are cheapest at best
DOMAINS_MAX = 8  # domains searched thoroughly
PROBES_MAX = 1_600  # placements tried over all domains
PROBES_MIN = 12  # for one step


@dataclass(slots=True)
class VictimSet:
    """A set of units that makes room, with the placement it makes room for."""

    gone: Bools
    solution: Solution
    cost: VictimCost
    where: str  # the domain it was looked for in; empty: anywhere


@dataclass(slots=True)
class VictimSets:
    """All that was found, and where nothing was."""

    found: list[VictimSet] = field(default_factory=list)
    barren: list[CandidateDomain] = field(
        default_factory=list
    )  # evicting everybody there makes no room


class Reprieve:
    """Searches one request."""

    def __init__(
        self, removal: PostEvictionView, tariff: CostModel, effort: SearchBudget, *, wanted: int
    ) -> None:
        """Begin.

        Args:
            removal: The problem.
            tariff: The prices.
            effort: Search nodes that may be spent.
            wanted: Pods that must be placed at least; 0 asks for the minimum of the tree.
        """
        self.removal = removal
        self.tariff = tariff
        self.effort = effort
        self.wanted = wanted
        self.probes = 0
        self.allowed = PROBES_MAX  # of them, up to now
        self.places = CandidateDomains(removal, tariff, wanted=wanted)
        self.prices = self.places.prices
        order = np.argsort(removal.unit, kind="stable")
        cuts = np.searchsorted(removal.unit[order], np.arange(len(removal.units) + 1)).tolist()
        self._rows = [
            order[a:b] for a, b in itertools.pairwise(cuts)
        ]  # per unit, into `removal.back`

    def search(self, first: Solution) -> VictimSets:
        """Find sets.

        Args:
            first: A placement for when all units are gone; chosen blind to victims, as kube-scheduler does.
        """
        everybody = ~self.removal.nobody
        made = VictimSets(barren=[p for p in self.places.found if p.least is None])
        made.found.append(self._candidate(everybody, first, ""))
        hopeful: list[tuple[VictimSet, CandidateDomain]] = []
        promising = self._promising()
        for place in promising:
            if len(hopeful) >= DOMAINS_MAX and self._dearer(place, made):
                break  # and so are all others
            self._allow(2 * len(promising))
            head = self._head(place, place.units)
            if head is not None:
                hopeful.append((head, place))
                made.found.append(head)
        hopeful.sort(key=lambda pair: pair[0].cost)
        hopeful = [(h, p) for h, p in hopeful[:DOMAINS_MAX] if not self._dearer(p, made)]
        for number, (head, place) in enumerate(hopeful):
            orders = self.places.rankings(place)
            steps = (len(hopeful) - number) * (len(orders) + 1)
            self._allow(steps)
            made.found.append(self._thin(head, place))
            for done, order in enumerate(orders, start=1):
                self._allow(steps - done)
                other = self._head(place, order)
                if other is not None:
                    made.found.append(self._thin(other, place))
        return made

    def _promising(self) -> list[CandidateDomain]:
        """List the domains that the bounds leave, those that are cheaper at best in front."""
        left = [place for place in self.places.found if place.least is not None]
        left.sort(key=lambda place: (place.least, len(place.units)))
        return left[:SKETCHES_MAX]

    def _dearer(self, place: CandidateDomain, made: VictimSets) -> bool:
        """Say whether no set of a domain can be as cheap as the best one known."""
        best = min(candidate.cost for candidate in made.found)
        return place.least is None or place.least > (best.violations, best.highest)

    def _allow(self, parts: int) -> None:
        """Let the next step make its part of the probes that are left, and a few in any case."""
        left = PROBES_MAX - self.probes
        self.allowed = self.probes + min(left, max(left // parts, PROBES_MIN))

    # --- taking ------------------------------------------------------------------------------------

    def _probe(self, gone: Bools, place: CandidateDomain) -> Solution | None:
        """Look quickly whether the tree can be placed when some units are gone."""
        if self.probes >= self.allowed:
            return None
        self.probes += 1
        try:
            self.effort.spend()
        except SearchBudgetExceeded:
            self.probes = self.allowed = PROBES_MAX
            return None
        problem = self.removal.problem(gone, place.nodes)
        bounds = bound_all(problem)
        if bounds.hopeless or bounds.root < self.wanted:
            return None
        found = solve_quickly(problem, bounds, self.effort, maximise=self.wanted > 0)
        return found if found is not None and size(found) >= self.wanted else None

    def _head(self, place: CandidateDomain, order: list[int]) -> VictimSet | None:
        """Find a short head of an order that makes room, by halving; None where the whole does not."""
        gone = self.removal.nobody
        gone[order] = True
        found = self._probe(gone, place)
        if found is None:
            return None
        best: tuple[Bools, Solution] = (gone, found)
        low, high = 0, len(order)
        while low < high:
            take = (low + high) // 2
            gone = self.removal.nobody
            gone[order[:take]] = True
            found = self._probe(gone, place)
            if found is None:
                low = take + 1
            else:
                best, high = (gone, found), take
        return self._candidate(*best, place.where)

    # --- putting back ------------------------------------------------------------------------------

    def _candidate(self, gone: Bools, solution: Solution, where: str) -> VictimSet:
        gone = self.put_back(gone, solution)
        return VictimSet(gone, solution, self.price(gone), where)

    def price(self, gone: Bools) -> VictimCost:
        """Price a set."""
        return self.tariff.cost([int(i) for i in np.flatnonzero(gone)])

    def _dearest_first(self, gone: Bools) -> list[int]:
        chosen: list[int] = np.flatnonzero(gone).tolist()
        return sorted(chosen, key=lambda i: self.prices[i], reverse=True)

    def _thin(self, made: VictimSet, place: CandidateDomain) -> VictimSet:
        """Put back what another placement does not need, many at once where that works."""
        best: tuple[Bools, Solution] = (made.gone, made.solution)

        def keep(part: list[int]) -> None:
            nonlocal best
            part = [i for i in part if best[0][i]]
            if not part or self.probes >= self.allowed:
                return
            gone = best[0].copy()
            gone[part] = False
            found = self._probe(gone, place)
            if found is not None:
                best = (self.put_back(gone, found), found)
            elif len(part) > 1:
                half = len(part) // 2
                keep(part[:half])
                keep(part[half:])

        order = self._dearest_first(made.gone)
        half = (len(order) + 1) // 2
        keep(order[:half])
        keep(order[half:])
        return self._candidate(*best, place.where)

    def put_back(self, gone: Bools, solution: Solution, *, doubting: bool = True) -> Bools:
        """Put back every unit that can run on where it does beside a placement, the dearest first.

        Args:
            gone: Per unit, shape (units,).
            solution: The placement.
            doubting: Whether a unit stays away that only may be in the way (SPEC L34).
        """
        removal = self.removal
        problem, width = removal.full, removal.room.width
        used = np.zeros((removal.fleet.size, width), dtype=np.int64)
        claims: set[str] = set()
        for kinds in solution.values():
            for kind, places in kinds.items():
                claims |= problem.claims[kind]
                for node, amount in places.items():
                    used[node] += amount * problem.requests[kind][:width]
        left = removal.free(gone) - used
        near = self.removal.nobody  # the others share no node with a placed pod, nor a claim
        busy: Bools = np.any(used > 0, axis=1)
        near[removal.unit[busy[removal.node]]] = True
        near[removal.holders] = True
        barring = self._barring(solution, doubting=doubting)
        near[list(barring)] = True
        kept = gone & near
        for unit in self._dearest_first(kept):
            mine = self._rows[unit]
            nodes, back = removal.node[mine], removal.back[mine]
            short = (left[nodes] < back) & (used[nodes] > 0)
            if unit in barring or bool(short.any()) or removal.claims[unit] & claims:
                continue
            left[nodes] -= back  # a unit has one row per node
            kept[unit] = False
        return kept

    def _barring(self, solution: Solution, *, doubting: bool) -> set[int]:
        """Name the units that keep a placed pod off its node."""
        bars = self.barring(solution)
        return {bar.unit for bar in bars if doubting or not bar.doubt}

    def barring(self, solution: Solution) -> list[EvictionBarrier]:
        """Give the bars that keep a placed pod off its node."""
        kinds = self.removal.full.kinds
        placed: dict[int, set[int]] = {}
        for by_kind in solution.values():
            for kind, nodes in by_kind.items():
                placed.setdefault(kinds[kind], set()).update(nodes)
        return [
            bar
            for bar in self.removal.bars
            if any(bar.nodes[sorted(placed[s])].any() for s in bar.shapes & placed.keys())
        ]
