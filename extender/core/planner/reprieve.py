"""Sets of units that make room, found quickly: take the cheapest ones until the tree fits, then put back.

For every candidate domain the units there are ranked in several ways. The shortest head of a ranking
that makes room is found by halving; from it units are put back, the dearest first, as long as the tree
can still be placed in some way, and finally every unit that could run on beside the very placement that
was found. All sets that come out are valid, and none has a unit that could stay where it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from extender.core.planner.bounds import bound_all
from extender.core.planner.capacity import Bools
from extender.core.planner.construct import BudgetEnded, Effort, Solution
from extender.core.planner.disruption import Cost, Tariff
from extender.core.planner.removal import Removal
from extender.core.planner.solve import size, solve_quickly

DOMAINS_MAX = 8  # domains searched thoroughly, the most promising ones
PROBES_MAX = 600  # placements tried for the rankings and for putting back, over all domains


@dataclass(slots=True)
class Candidate:
    """A set of units that makes room, with the placement it makes room for."""

    gone: Bools
    solution: Solution
    cost: Cost
    where: str  # the domain it was looked for in; empty: anywhere


@dataclass(slots=True)
class Place:
    """A domain that the tree could come to lie in."""

    where: str
    nodes: Bools | None  # None: everywhere
    units: list[int]  # that can make room there
    order: list[int] = field(default_factory=list)  # of `units`, the cheapest first


@dataclass(slots=True)
class Candidates:
    """All that was found, and where nothing was."""

    found: list[Candidate] = field(default_factory=list)
    barren: list[Place] = field(default_factory=list)  # evicting everybody there makes no room


class Reprieve:
    """Searches one request."""

    def __init__(self, removal: Removal, tariff: Tariff, effort: Effort, *, wanted: int) -> None:
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
        self.prices = [tariff.alone(i) for i in range(len(removal.units))]
        order = np.argsort(removal.unit, kind="stable")
        cuts = np.searchsorted(removal.unit[order], np.arange(len(removal.units) + 1)).tolist()
        self._rows = [
            order[a:b] for a, b in itertools.pairwise(cuts)
        ]  # per unit, into `removal.back`

    def search(self, first: Solution) -> Candidates:
        """Find sets.

        Args:
            first: A placement for when all units are gone; chosen blind to victims, as kube-scheduler does.
        """
        everybody = ~self.removal.nobody
        made = Candidates()
        made.found.append(self._candidate(everybody, first, ""))
        hopeful: list[tuple[Candidate, Place]] = []
        for place in self._places():
            head = self._head(place, place.order)
            if head is not None:
                hopeful.append((head, place))
                made.found.append(head)
            elif self._barren(place):
                made.barren.append(place)
        hopeful.sort(key=lambda pair: pair[0].cost)
        for head, place in hopeful[:DOMAINS_MAX]:
            made.found.append(self._thin(head, place))
            for order in self._rankings(place):
                other = self._head(place, order)
                if other is not None:
                    made.found.append(self._thin(other, place))
        return made

    # --- where -------------------------------------------------------------------------------------

    def _places(self) -> Iterable[Place]:
        """List the domains of the root, or everywhere if it asks for none."""
        root = self.removal.full.groups[0]
        if not root.level.keys:
            yield self._place("", None)
            return
        domains = [root.pinned] if root.pinned >= 0 else range(root.level.count)
        for domain in domains:
            values = zip(root.level.keys, root.level.values[domain], strict=True)
            where = ", ".join(f"{key}={value}" for key, value in values)
            yield self._place(where, root.level.domain == domain)

    def _place(self, where: str, nodes: Bools | None) -> Place:
        units: list[int] = np.flatnonzero(self.removal.touching(nodes)).tolist()
        return Place(where, nodes, units, sorted(units, key=lambda i: self.prices[i]))

    def _barren(self, place: Place) -> bool:
        gone = self.removal.nobody
        gone[place.units] = True
        return bound_all(self.removal.problem(gone, place.nodes)).hopeless

    # --- in which order ----------------------------------------------------------------------------

    def _rankings(self, place: Place) -> Iterable[list[int]]:
        """Give further orders of the units of a place, the ones to go first in front.

        At equal priority: those that give back the most room; those that empty one node after the
        other, the cheapest node first; and those that no budget protects at all.
        """
        gain = self._gains(place)
        rank = self._node_ranks(place)
        guarded = [bool(self.tariff.protected(u)) for u in self.removal.units]

        def by(key: Callable[[int], tuple[object, ...]]) -> list[int]:
            return sorted(place.units, key=lambda i: (*key(i), self.prices[i]))

        def worth(i: int) -> tuple[int, int]:
            return (self.prices[i].violations, self.prices[i].highest)

        yield by(lambda i: (*worth(i), -gain[i]))
        yield by(lambda i: (self.prices[i].violations, rank[i]))
        yield by(lambda i: (*worth(i), rank[i]))
        if any(guarded):
            yield by(lambda i: (guarded[i], self.prices[i].highest, -gain[i]))

    def _gains(self, place: Place) -> list[int]:
        """Weigh the room that each unit gives back in a place: shares of the largest requests, in millionths."""
        removal = self.removal
        width = removal.room.width
        asks = removal.full.requests[:, :width].max(axis=0, initial=0)
        share = (removal.back * 1_000_000 // np.maximum(asks, 1))[:, asks > 0]
        share = np.minimum(share, 1_000_000_000).sum(axis=1)
        if place.nodes is not None:
            share = np.where(place.nodes[removal.node], share, 0)
        gains = np.zeros(len(removal.units), dtype=np.int64)
        np.add.at(gains, removal.unit, share)
        return [int(g) for g in gains]

    def _node_ranks(self, place: Place) -> list[int]:
        """Rank units by the cheapest node that they help to clear for one more pod of the largest kind."""
        removal = self.removal
        problem = removal.full
        far = removal.fleet.size
        ranks = [far] * len(removal.units)
        if not problem.kinds:
            return ranks
        heaviest = int(np.argmax([int(r.sum()) for r in problem.requests]))
        ask = problem.requests[heaviest][: removal.room.width]
        usable = problem.allowed[heaviest]
        if place.nodes is not None:
            usable = usable & place.nodes
        rows: dict[int, list[int]] = {}
        for row, node in enumerate(removal.node.tolist()):
            if usable[node]:
                rows.setdefault(node, []).append(row)
        bills: list[tuple[Cost, int, list[int]]] = []
        for node, here in rows.items():
            free = removal.room.free[node].copy()
            chosen: list[int] = []
            for row in sorted(here, key=lambda r: self.prices[int(removal.unit[r])]):
                if bool((free >= ask)[ask > 0].all()):
                    break
                free = free + removal.back[row]
                chosen.append(int(removal.unit[row]))
            if chosen and bool((free >= ask)[ask > 0].all()):
                bills.append((self.tariff.cost(chosen), node, chosen))
        for position, (_, _, chosen) in enumerate(sorted(bills)):
            for unit in chosen:
                ranks[unit] = min(ranks[unit], position)
        return ranks

    # --- taking ------------------------------------------------------------------------------------

    def _probe(self, gone: Bools, place: Place) -> Solution | None:
        """Look quickly whether the tree can be placed when some units are gone."""
        if self.probes >= PROBES_MAX:
            return None
        self.probes += 1
        try:
            self.effort.spend()
        except BudgetEnded:
            self.probes = PROBES_MAX
            return None
        problem = self.removal.problem(gone, place.nodes)
        bounds = bound_all(problem)
        if bounds.hopeless or bounds.root < self.wanted:
            return None
        found = solve_quickly(problem, bounds, self.effort, maximise=self.wanted > 0)
        return found if found is not None and size(found) >= self.wanted else None

    def _head(self, place: Place, order: list[int]) -> Candidate | None:
        """Find a short head of an order that makes room, by halving; None where the whole does not."""
        gone = self.removal.nobody
        gone[order] = True
        found = self._probe(gone, place)
        if found is None:
            return None
        best = (gone, found)
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

    def _candidate(self, gone: Bools, solution: Solution, where: str) -> Candidate:
        gone = self.put_back(gone, solution)
        return Candidate(gone, solution, self.price(gone), where)

    def price(self, gone: Bools) -> Cost:
        """Price a set."""
        return self.tariff.cost([int(i) for i in np.flatnonzero(gone)])

    def _dearest_first(self, gone: Bools) -> list[int]:
        chosen: list[int] = np.flatnonzero(gone).tolist()
        return sorted(chosen, key=lambda i: self.prices[i], reverse=True)

    def _thin(self, made: Candidate, place: Place) -> Candidate:
        """Put back what another placement does not need, many at once where that works."""
        best = (made.gone, made.solution)

        def keep(part: list[int]) -> None:
            nonlocal best
            part = [i for i in part if best[0][i]]
            if not part or self.probes >= PROBES_MAX:
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

    def put_back(self, gone: Bools, solution: Solution) -> Bools:
        """Put back every unit that can run on where it does beside a placement, the dearest first."""
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
        kept = gone.copy()
        for unit in self._dearest_first(gone):
            mine = self._rows[unit]
            nodes, back = removal.node[mine], removal.back[mine]
            short = (left[nodes] < back) & (used[nodes] > 0)
            if bool(short.any()) or removal.claims[unit] & claims:
                continue
            left[nodes] -= back  # a unit has one row per node
            kept[unit] = False
        return kept
