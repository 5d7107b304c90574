"""In how many domains of a topology key a group is, its smallest share of these, and pairs of pods in different ones.

Of each: the value of a placement, a lower bound, and the complete search for fewer.

A node without the label is a domain of its own, and a group with a pod there is never whole: it counts as in two domains at
least. A group without pods counts as in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from extender.core.planner.model.node_table import Ints, NodeTable
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import UpperBounds
from extender.core.planner.solve.cp_sat_placement import PlacementModel, steps_of
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.node_classes import make_node_classes

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

BROKEN = 2  # domains that a group with a pod on a node without the label has at least
CountOutcome = Literal["best", "found", "none", "unknown"]


@dataclass(slots=True, frozen=True)
class CountedLevel:
    """The domains of one topology key, those of nodes without the label too."""

    key: str
    domain: Ints  # per node
    labelled: int  # domains from this number on are single nodes without the label

    @classmethod
    def of(cls, node_table: NodeTable, key: str) -> CountedLevel:
        """Return the level of a key."""
        return cls(key, node_table.own_domains(key).domain, len(node_table.label(key)[1]))


class GroupPods:
    """The pods of one group: those that are bound, and the leaves that others come from."""

    def __init__(self, problem: PlacementProblem, index: int) -> None:
        self.index = index
        groups = problem.groups
        below = {index}
        for group in groups[index + 1 :]:  # parents come before children
            if group.parent in below:
                below.add(group.index)
        self.leaves = [g.index for g in groups if g.index in below and g.leaf]
        bound = [b for leaf in self.leaves for b in groups[leaf].source.bound]
        rows = {b.node: problem.node_table.index.get(b.node) for b in bound}
        self.bound = len(bound)
        self.missing = sum(row is None for row in rows.values())  # nodes outside the cluster
        in_table = [row for b in bound if (row := rows[b.node]) is not None]
        self.bound_nodes = np.array(in_table, dtype=np.int64)
        self.size = sum(groups[leaf].size for leaf in self.leaves)
        self.kinds = sorted({k for leaf in self.leaves for k in groups[leaf].members})

    def placed(self, solution: Solution) -> dict[int, int]:
        """Return the new pods per node."""
        pods: dict[int, int] = {}
        for leaf in self.leaves:
            for nodes in solution.get(leaf, {}).values():
                for node, amount in nodes.items():
                    pods[node] = pods.get(node, 0) + amount
        return pods

    def per_domain(self, solution: Solution, level: CountedLevel) -> Counter[int]:
        """Return the pods per domain of a level, bound ones counted."""
        pods = Counter(level.domain[self.bound_nodes].tolist())
        placed = self.placed(solution)
        nodes = np.array([*placed], dtype=np.int64)
        for domain, amount in zip(level.domain[nodes].tolist(), placed.values(), strict=True):
            pods[domain] += amount
        return pods

    def smallest_share(self, solution: Solution, level: CountedLevel) -> int:
        """Return the pods in the domain with the fewest, of those that have some; all pods of a group that has no place."""
        shares = self.per_domain(solution, level).values()
        return min((pods for pods in shares if pods), default=self.bound + self.size)

    def domains(self, solution: Solution, level: CountedLevel) -> int:
        """Return in how many domains of a level the group is."""
        nodes = self.bound_nodes.tolist()
        for leaf in self.leaves:
            for placed in solution.get(leaf, {}).values():
                nodes.extend(placed)
        used = set(level.domain[nodes].tolist()) if nodes else set()
        broken = self.missing > 0 or max(used, default=-1) >= level.labelled
        return max(len(used) + self.missing, BROKEN if broken else 1)

    def fewest(
        self, problem: PlacementProblem, bounds: UpperBounds, level: CountedLevel, least: int
    ) -> int:
        """Return a lower bound on the domains, if at least so many new pods are placed: whole pods per node are counted."""
        group = problem.groups[self.index]
        per_node = problem.pods().per_node(self.kinds)
        opened = np.unique(level.domain[self.bound_nodes])
        start = len(opened) + self.missing
        # all regions at once: a tree has up to 500 leaves, a level thousands of domains
        region = group.level.domain
        fits = bounds.best[group.index] >= 0
        nodes = np.flatnonzero((region >= 0) & fits[region])
        most = int(level.domain.max(initial=0)) + 1
        pairs, pair = np.unique(region[nodes] * most + level.domain[nodes], return_inverse=True)
        totals = np.bincount(pair, weights=per_node[nodes]).astype(np.int64)
        regions, of = np.unique(pairs // most, return_inverse=True)
        is_open = np.isin(pairs % most, opened)
        left = np.full(len(regions), least, dtype=np.int64)
        np.subtract.at(left, of[is_open], totals[is_open])
        order = np.lexsort((-totals, of))
        order = order[~is_open[order]]
        # of each region, the pods that the domains before each one can hold, the largest first
        sums = np.cumsum(totals[order]) - totals[order]
        first = np.searchsorted(of[order], np.arange(len(regions)))
        before = sums - np.append(sums, 0)[first[of[order]]]
        needed = np.bincount(of[order[before < left[of[order]]]], minlength=len(regions))
        needed[np.bincount(of[order], weights=totals[order], minlength=len(regions)) < left] = least
        return max(start + int(needed.min(initial=least)), 1)

    def largest(self, problem: PlacementProblem, level: CountedLevel) -> int:
        """Return how many of its pods the best single domain can hold, bound ones counted."""
        if not level.labelled:
            return 0
        per_node = problem.pods().per_node(self.kinds)
        labelled = level.domain < level.labelled
        totals = np.bincount(
            level.domain[labelled], weights=per_node[labelled], minlength=level.labelled
        ).astype(np.int64)
        bound = np.bincount(
            [d for d in level.domain[self.bound_nodes].tolist() if d < level.labelled],
            minlength=level.labelled,
        ).astype(np.int64)
        return int((np.minimum(totals, self.size) + bound).max())


@dataclass(slots=True, frozen=True)
class DomainCount:
    """The domains of a level that some groups are in, summed; `most` is a limit that placements keep."""

    groups: tuple[GroupPods, ...]
    level: CountedLevel
    most: int

    def value(self, solution: Solution) -> int:
        """Return the sum for a placement."""
        return sum(group.domains(solution, self.level) for group in self.groups)


@dataclass(slots=True, frozen=True)
class PairCount:
    """The pairs of pods, one of each of two groups, in different domains of a level; `most` is a limit that placements keep.

    A node outside the cluster is in no domain: its pods are apart from all others.
    """

    groups: tuple[GroupPods, GroupPods]
    level: CountedLevel
    most: int

    def value(self, solution: Solution) -> int:
        """Return the pairs for a placement."""
        left, right = (group.per_domain(solution, self.level) for group in self.groups)
        sizes = [group.bound + sum(group.placed(solution).values()) for group in self.groups]
        return sizes[0] * sizes[1] - sum(pods * right.get(d, 0) for d, pods in left.items())

    def fewest(self, problem: PlacementProblem, solution: Solution) -> int:
        """Return a lower bound on the pairs, for placements that have as many pods of each group as this one.

        With t pods of both in each of k domains the pairs together are the sum of (t^2 - d^2) / 4, where d is the difference of
        the two groups there: no sum of t^2 is above that of the largest domains filled first, and none of d^2 is below D^2 / k.
        """
        if any(group.missing for group in self.groups):
            return 0
        sizes = [group.bound + sum(group.placed(solution).values()) for group in self.groups]
        total, difference = sum(sizes), sizes[0] - sizes[1]
        kinds = sorted({kind for group in self.groups for kind in group.kinds})
        capacity = np.bincount(self.level.domain, weights=problem.pods().per_node(kinds)).astype(
            np.int64
        )
        for group in self.groups:
            np.add.at(capacity, self.level.domain[group.bound_nodes], 1)
        capacity = np.sort(np.minimum(capacity[capacity > 0], total))[::-1]
        together = 0
        for used in range(1, min(len(capacity), total) + 1):
            spare = np.cumsum(capacity[:used] - 1)  # beside one pod in each
            if spare[-1] < total - used:
                continue
            pods = np.diff(np.minimum(spare, total - used), prepend=0) + 1
            squares = int((pods * pods).sum())
            if squares <= 4 * together:
                break  # more domains have less
            together = max(together, (squares * used - difference**2) // (4 * used))
        return sizes[0] * sizes[1] - together


@dataclass(slots=True, frozen=True)
class ShareCount:
    """The pods of some groups that are not in the smallest share of a domain of a level, summed; `most` is a limit that placements keep."""

    groups: tuple[GroupPods, ...]
    level: CountedLevel
    most: int

    def value(self, solution: Solution) -> int:
        """Return the sum for a placement."""
        return sum(
            group.bound + group.size - group.smallest_share(solution, self.level)
            for group in self.groups
        )


TopologyCount: TypeAlias = "DomainCount | PairCount | ShareCount"


@dataclass(slots=True)
class CountResult:
    """The result of the complete search, with a proved lower bound on the count that it minimises."""

    outcome: CountOutcome
    solution: Solution
    steps: int
    bound: int = 0


def solve_counts(
    problem: PlacementProblem,
    bounds: UpperBounds,
    counts: Sequence[TopologyCount],
    *,
    limit: int,
    at_least: int,
    hint: Solution | None,
    minimise: bool,
) -> CountResult:
    """Find a placement of at least so many pods within the limits of all counts, or prove that there is none.

    Args:
        counts: The limits to keep.
        at_least: New pods to place.
        minimise: Find the least value of the last count instead of any placement.
    """
    if limit <= 0:
        return CountResult("unknown", {}, 0)
    model = DomainCountModel(problem, bounds, counts)
    fits = model.build(limit)
    built = model.built()
    if not fits or built >= limit:
        return CountResult("unknown", {}, min(built, limit))
    result = model.run_counts(limit=limit - built, at_least=at_least, hint=hint, minimise=minimise)
    result.steps += built
    return result


class DomainCountModel(PlacementModel):
    """The integer program of a tree, with the domains that groups are in, and the pairs of pods in different ones."""

    def __init__(
        self, problem: PlacementProblem, bounds: UpperBounds, counts: Sequence[TopologyCount]
    ) -> None:
        cells = make_node_classes(problem, [count.level.domain for count in counts])
        super().__init__(problem, bounds, cells)
        self.counts = counts
        self.sums: list[cp_model.LinearExprT] = []  # per count
        # of equal shares those of the tightest domains: what each of these can hold, if it is used
        self.capacities: list[tuple[int, cp_model.IntVar]] = []

    def _leaf_classes(self) -> Iterator[list[CompiledGroup]]:
        """Yield the classes of leaves; one whose own domains are counted is alone."""
        alone = {group.index for count in self.counts for group in count.groups}
        for twins in super()._leaf_classes():
            others = [leaf for leaf in twins if leaf.index not in alone]
            if others:
                yield others
            yield from ([leaf] for leaf in twins if leaf.index in alone)

    def build(self, limit: int) -> bool:
        """Build the model; return False if that costs more than a number of search nodes."""
        if not super().build(limit):
            return False
        for count in self.counts:
            if isinstance(count, PairCount):
                total = self._pairs(count)
            elif isinstance(count, ShareCount):
                shares = [self._outside_smallest(group, count.level) for group in count.groups]
                total = self.cp.LinearExpr.sum(shares)
            else:
                numbers = [self._domains(group, count.level) for group in count.groups]
                total = self.cp.LinearExpr.sum(numbers)
            self.model.add(total <= count.most)
            self.sums.append(total)
        return True

    def _pairs(self, count: PairCount) -> cp_model.LinearExprT:
        """Return the pairs of pods of two groups in different domains of a level: all pairs, without those in each domain."""
        totals: list[cp_model.IntVar] = []
        amounts: list[dict[int, cp_model.IntVar]] = []
        for group in count.groups:
            pods = self._by_domain(group, count.level)
            bound = Counter(count.level.domain[group.bound_nodes].tolist())
            amounts.append({})
            for domain in sorted({*pods, *bound}):
                amount = self.model.new_int_var(0, bound[domain] + group.size, "")
                self.model.add(
                    amount == self.cp.LinearExpr.sum(pods.get(domain, [])) + bound[domain]
                )
                amounts[-1][domain] = amount
            total = self.model.new_int_var(0, group.bound + group.size, "")
            apart = group.bound - len(group.bound_nodes)  # on nodes outside the cluster
            self.model.add(total == self.cp.LinearExpr.sum(list(amounts[-1].values())) + apart)
            totals.append(total)
        sizes = [group.bound + group.size for group in count.groups]
        every = self.model.new_int_var(0, sizes[0] * sizes[1], "")
        self.model.add_multiplication_equality(every, totals)
        together: list[cp_model.IntVar] = []
        for domain, amount in amounts[0].items():
            if (other := amounts[1].get(domain)) is not None:
                pairs = self.model.new_int_var(0, sizes[0] * sizes[1], "")
                self.model.add_multiplication_equality(pairs, [amount, other])
                together.append(pairs)
        return every - self.cp.LinearExpr.sum(together)

    def _outside_smallest(self, group: GroupPods, level: CountedLevel) -> cp_model.LinearExprT:
        """Return the pods of a group that are not in its smallest share of a domain of a level."""
        every = group.bound + group.size
        smallest = self.model.new_int_var(0, every, "")
        pods = self._by_domain(group, level)
        bound = Counter(level.domain[group.bound_nodes].tolist())
        per_node = self.problem.pods().per_node(group.kinds)
        capacity = np.bincount(level.domain, weights=per_node).astype(np.int64)
        for domain in sorted({*pods, *bound}):
            placed = self.cp.LinearExpr.sum(pods.get(domain, []))
            if bound[domain]:
                self.model.add(smallest <= placed + bound[domain])
                continue
            used = self.model.new_bool_var("")
            self.capacities.append((int(capacity[domain]), used))
            self.model.add(placed <= group.size * used)
            self.model.add(smallest <= placed + every * (1 - used))
        return every - smallest

    def _by_domain(self, group: GroupPods, level: CountedLevel) -> dict[int, list[cp_model.IntVar]]:
        """Return the numbers of new pods of a group by domain of a level."""
        below = set(group.leaves)
        pods: dict[int, list[cp_model.IntVar]] = {}
        for leaves in self.leaves:
            if leaves.like.index in below:
                for (_, cell), variable in leaves.pods.items():
                    domain = int(level.domain[self.cells[cell].nodes[0]])
                    pods.setdefault(domain, []).append(variable)
        return pods

    def _domains(self, group: GroupPods, level: CountedLevel) -> cp_model.IntVar:
        """Return the number of domains of a level that a group is in."""
        pods = self._by_domain(group, level)
        opened = set(level.domain[group.bound_nodes].tolist())
        number = self.model.new_int_var(1, len(pods) + len(opened) + group.missing + BROKEN, "")
        used: list[cp_model.IntVar] = []
        for domain, variables in pods.items():
            if domain in opened:
                continue
            flag = self.model.new_bool_var("")
            self.model.add(self.cp.LinearExpr.sum(variables) <= group.size * flag)
            used.append(flag)
            if domain >= level.labelled:
                self.model.add(number >= BROKEN * flag)
        if group.missing or any(domain >= level.labelled for domain in opened):
            self.model.add(number >= BROKEN)
        self.model.add(number >= self.cp.LinearExpr.sum(used) + len(opened) + group.missing)
        return number

    def run_counts(
        self, *, limit: int, at_least: int, hint: Solution | None, minimise: bool
    ) -> CountResult:
        """Solve, and return the placement."""
        pods = [v for leaves in self.leaves for v in leaves.pods.values()]
        self.model.add(self.cp.LinearExpr.sum(pods) >= at_least)
        capacities = sum(capacity for capacity, _ in self.capacities)
        if minimise and self.capacities:
            tightest = self.cp.LinearExpr.sum(
                [capacity * used for capacity, used in self.capacities]
            )
            self.model.minimize(self.sums[-1] * (capacities + 1) + tightest)
        elif minimise:
            self.model.minimize(self.sums[-1])
        if hint is not None:
            self._hint(hint)
        solver = self.solver(limit)
        status = solver.solve(self.model)
        steps = steps_of(solver)
        # the bound of an integer is the next integer above what is proved for the relaxation
        bound = int(np.ceil(solver.best_objective_bound - 1e-6)) if minimise else 0
        bound = -(-(bound - capacities) // (capacities + 1))
        if status == self.cp.INFEASIBLE:
            return CountResult("none", {}, steps)
        if status not in {self.cp.OPTIMAL, self.cp.FEASIBLE}:
            return CountResult("unknown", {}, steps, max(bound, 0))
        outcome: CountOutcome = "best" if status == self.cp.OPTIMAL else "found"
        return CountResult(outcome, self._read(solver), steps, max(bound, 0))
