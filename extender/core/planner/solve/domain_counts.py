"""In how many domains of a topology key a group is, its smallest share of these, and pairs of pods in different ones.

Of each: the value of a placement, a lower bound, and the complete search for fewer.

A node without the label is a domain of its own, and a group with a pod there is never whole: it counts as in two domains at
least. A group without pods counts as in one.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from extender.core.planner.model.node_table import FIT_MAX, Ints, NodeTable
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import UpperBounds
from extender.core.planner.solve.compactness import filled, numbered, sorted_stably
from extender.core.planner.solve.cp_sat_placement import PlacementModel
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.integer_program import Response
from extender.core.planner.solve.node_classes import make_node_classes

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import IntVar, LinearExpr

BROKEN = 2  # domains that a group with a pod on a node without the label has at least
PRICES = 3  # that are tried for one bound


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
        self._leaves: list[dict[int, dict[int, int]]] = []  # of which `_nodes` are
        self._nodes = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._domains: dict[str, int] = {}  # that these are in, by key
        self._pods: dict[str, Ints] = {}  # per domain, by key
        groups = problem.groups
        self.leaves = [g.index for g in problem.below(groups[index]) if g.leaf]
        bound = [b for leaf in self.leaves for b in groups[leaf].source.bound]
        rows = {b.node: problem.node_table.index.get(b.node) for b in bound}
        self.bound = len(bound)
        self.missing = sum(row is None for row in rows.values())  # nodes outside the cluster
        in_table = [row for b in bound if (row := rows[b.node]) is not None]
        self.bound_nodes = np.array(in_table, dtype=np.int64)
        self.size = sum(groups[leaf].size for leaf in self.leaves)
        self.kinds = sorted({k for leaf in self.leaves for k in groups[leaf].members})

    def nodes(self, solution: Solution) -> tuple[Ints, Ints]:
        """Return the nodes of the new pods, and how many are on each; a node may occur more than once."""
        leaves = [placed for leaf in self.leaves if (placed := solution.get(leaf))]
        if len(leaves) != len(self._leaves) or any(map(operator.is_not, leaves, self._leaves)):
            on_nodes = [nodes for placed in leaves for nodes in placed.values()]
            every = itertools.chain.from_iterable(on_nodes)
            amounts = itertools.chain.from_iterable(each.values() for each in on_nodes)
            nodes, pods = np.fromiter(every, np.int64), np.fromiter(amounts, np.int64)
            self._leaves, self._nodes, self._domains, self._pods = leaves, (nodes, pods), {}, {}
        return self._nodes

    def number(self, solution: Solution) -> int:
        """Return the number of its pods, bound ones counted."""
        return self.bound + int(self.nodes(solution)[1].sum())

    def per_domain(self, solution: Solution, level: CountedLevel) -> Ints:
        """Return the pods per domain of a level, bound ones counted."""
        nodes, pods = self.nodes(solution)
        if level.key not in self._pods:
            count = int(level.domain.max(initial=-1)) + 1
            new = np.bincount(level.domain[nodes], weights=pods, minlength=count)
            bound = np.bincount(level.domain[self.bound_nodes], minlength=count)
            self._pods[level.key] = new.astype(np.int64) + bound
        return self._pods[level.key]

    def smallest_share(self, solution: Solution, level: CountedLevel) -> int:
        """Return the pods in the domain with the fewest, of those that have some; all pods of a group that has no place."""
        shares = self.per_domain(solution, level)
        return int(shares[shares > 0].min(initial=self.bound + self.size))

    def domains(self, solution: Solution, level: CountedLevel) -> int:
        """Return in how many domains of a level the group is."""
        nodes, _ = self.nodes(solution)
        if level.key not in self._domains:
            used = {*level.domain[nodes].tolist(), *level.domain[self.bound_nodes].tolist()}
            broken = self.missing > 0 or max(used, default=-1) >= level.labelled
            number = max(len(used) + self.missing, BROKEN if broken else 1)
            self._domains[level.key] = number
        return self._domains[level.key]

    def fewest(
        self,
        problem: PlacementProblem,
        level: CountedLevel,
        least: int,
        limit: DomainCount | None = None,
        enough: int = FIT_MAX,
    ) -> int:
        """Return a lower bound on the domains, if at least so many new pods are placed: whole pods per node are counted.

        Args:
            limit: The domains of a narrower level that the group is in at most.
            enough: A bound that need not be bettered.
        """
        group = problem.groups[self.index]
        per_node = problem.pods().per_node(self.kinds)
        opened = np.unique(level.domain[self.bound_nodes])
        start = len(opened) + self.missing
        # all regions at once: a tree has up to 500 leaves, a level thousands of domains
        region = group.level.domain
        nodes = np.flatnonzero((region >= 0) & (per_node > 0))
        if group.pinned >= 0:
            nodes = nodes[region[nodes] == group.pinned]
        elif (closed := problem.exclusive.closed.get(group.index)) is not None:
            nodes = nodes[~closed[region[nodes]]]
        of, domain, capacity = numbered(region[nodes]), level.domain[nodes], per_node[nodes]
        if limit is not None:
            of, domain, capacity = merged(of, limit.level.domain[nodes], capacity, domain)
        needed = np.zeros(int(of.max(initial=-1)) + 1, dtype=np.int64)
        for option in by_price(of, domain, capacity, least, limit, opened):
            needed = np.maximum(needed, option.needed)
            if start + int(needed.min(initial=least)) >= enough:
                break
        return max(start + int(needed.min(initial=least)), 1)

    def largest(self, problem: PlacementProblem, level: CountedLevel) -> int:
        """Return how many of its pods the best single domain can hold, bound ones counted."""
        if not level.labelled:
            return 0
        totals = problem.pods().total_by(self.kinds, level.key, level.domain)[: level.labelled]
        bound = np.bincount(
            [d for d in level.domain[self.bound_nodes].tolist() if d < level.labelled],
            minlength=level.labelled,
        ).astype(np.int64)
        return int((np.minimum(totals, self.size) + bound).max())


def fewest_needed(of: Ints, capacity: Ints, pods: int, regions: int) -> Ints:
    """Return in how many domains of each region so many pods are at least; too many where it cannot hold them.

    Args:
        of: The region of each domain.

    >>> fewest_needed(np.array([0, 0, 1, 1]), np.array([2, 5, 4, 3]), 6, 2)
    array([2, 2])
    """
    width = int(capacity.max(initial=0)) + 1
    if regions * width > len(of) * 4:
        if regions == 1:
            sums = np.cumsum(np.sort(capacity)[::-1])
            enough = int(np.searchsorted(sums, pods)) + 1 if pods > 0 else 0
            return np.array([enough if enough <= len(sums) else FIT_MAX])
        order, amounts = filled(of, capacity, np.full(regions, pods, dtype=np.int64))
        needed = np.bincount(of[order[amounts > 0]], minlength=regions)
        needed[np.bincount(of, weights=capacity, minlength=regions) < pods] = FIT_MAX
        return needed
    # those with the same capacity at once, the largest first
    sizes = np.arange(width - 1, -1, -1)
    alike = np.bincount(of * width + capacity, minlength=regions * width)
    alike = alike.reshape(regions, width)[:, ::-1]
    sums = np.cumsum(alike * sizes, axis=1)
    rows, last = np.arange(regions), np.argmax(sums >= pods, axis=1)
    more = alike[rows, last]
    before = np.cumsum(alike, axis=1)[rows, last] - more
    rest = np.maximum(pods - sums[rows, last] + more * sizes[last], 0)
    needed = before - (-rest // np.maximum(sizes[last], 1))
    return np.where(sums[:, -1] < pods, FIT_MAX, needed)


def in_parts(fit: Ints, limit: DomainCount | None, pods: int) -> Ints:
    """Return how many pods nodes can have: none in a part that holds fewer than the largest others, as many as may be used, leave over.

    Args:
        fit: Per node.
        limit: How many parts may be used, if that is limited.
        pods: All of them.
    """
    if limit is None:
        return fit
    part = limit.level.domain
    totals = np.bincount(part, weights=fit).astype(np.int64)
    largest = np.sort(totals)[::-1][: max(limit.most - 1, 0)]
    return np.where(totals[part] >= pods - int(largest.sum()), fit, 0)


def merged(of: Ints, domain: Ints, capacity: Ints, outer: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the domains of each region: their region, the wider domain that they are in, and their capacity.

    Args:
        of: The region of each node.
        domain: Of each node.
        capacity: Of each node.
        outer: The wider domain of each node.
    """
    by, _, at = paired(of, domain)
    if by is of:  # each node is a domain
        return of, outer, capacity
    wider = np.zeros(len(by), dtype=np.int64)
    wider[at] = outer
    return by, wider, np.bincount(at, weights=capacity, minlength=len(by)).astype(np.int64)


def paired(of: Ints, domain: Ints) -> tuple[Ints, Ints, Ints]:
    """Return region and number of each domain in a region, and the position of each node among these.

    Args:
        of: The region of each node.
        domain: Of each node.
    """
    width = int(domain.max(initial=-1)) + 1
    nodes = np.bincount(domain, minlength=width)
    if nodes.max(initial=0) <= 1:
        return of, domain, np.arange(len(of))
    region = np.zeros(width, dtype=np.int64)
    region[domain] = of
    if (region[domain] == of).all():  # no domain is in two regions
        domains = np.flatnonzero(nodes)
        return region[domains], domains, (np.cumsum(nodes > 0) - 1)[domain]
    pairs, at = np.unique(of * width + domain, return_inverse=True)
    return pairs // width, pairs % width, at.reshape(-1)


class DomainsNeeded(NamedTuple):
    """In how many domains of each region some pods are at least."""

    needed: Ints  # per region; all of the pods where it cannot hold them
    of: Ints  # the region of each domain
    domains: Ints
    capacity: Ints  # of each domain

    def largest_of(self, region: int) -> Ints:
        """Return the domains of a region in the order in which they hold most."""
        inside = np.flatnonzero(self.of == region)
        return self.domains[inside[sorted_stably(-self.capacity[inside])]]


def by_price(
    of: Ints, domain: Ints, capacity: Ints, pods: int, limit: DomainCount | None, opened: Ints
) -> Iterator[DomainsNeeded]:
    """Yield bounds on the domains that some pods are in, each of which holds.

    Where no more than k parts of these domains may be used, each part costs a price p in pods: k parts hold p k pods at most, and what
    each of them holds beyond p. So the domains that hold most parts of more than p pods are the best.

    Args:
        of: The region of each part.
        domain: Of each part.
        capacity: Of each part.
        limit: How many parts may be used, if that is limited.
        opened: Domains that are used in any case, and not counted.
    """
    regions = int(of.max(initial=-1)) + 1
    by, domains, at = paired(of, domain)
    is_open = np.isin(domains, opened) if len(opened) else None
    values: list[int] = []
    if limit is not None:  # best is what the last part holds that is used, or a little less
        ascending = np.sort(capacity)
        last = len(ascending) - limit.most
        while last >= 0 and len(values) < PRICES:
            values.append(int(ascending[last]))
            last = int(np.searchsorted(ascending, values[-1])) - 1
    if 0 not in values:
        values.append(0)
    for price in values:
        beyond = np.maximum(capacity - price, 0) if price else capacity
        totals = beyond
        if by is not of:  # several parts are in one domain
            totals = np.bincount(at, weights=beyond, minlength=len(by)).astype(np.int64)
        left = max(pods - price * (limit.most if limit else 0), 0)
        if is_open is None:
            needed = fewest_needed(by, totals, left, regions)
            needed[needed == FIT_MAX] = pods
        else:
            order, amounts = filled(by, totals, np.full(regions, left, dtype=np.int64), is_open)
            counted = order[(amounts > 0) & ~is_open[order]]
            needed = np.bincount(by[counted], minlength=regions)
            needed[np.bincount(by, weights=totals, minlength=regions) < left] = pods
        yield DomainsNeeded(needed, by, domains, totals)


def most_pairs(pods: Ints, first: int) -> tuple[int, Ints]:
    """Return how many pairs of pods of two groups can be together, and how many of the first group each domain has then.

    With x of t pods of a domain there are x (t - x) pairs in it, and one more of the first group adds t - 2x - 1: less each time, so
    the largest gains are the best. Where the two groups may be up to c pods together in a domain, it is best to fill the largest
    domains first: of two domains that are used, either a pod of the first or one of the second group gains nothing less in the one
    with more pods than it has in the other.

    Args:
        pods: Of both groups, in each domain.
        first: Pods of the first group.

    >>> most_pairs(np.array([5, 3]), 4)
    (8, array([3, 1]))
    """
    at = np.repeat(np.arange(len(pods)), pods)
    have = np.arange(len(at)) - np.repeat(np.cumsum(pods) - pods, pods)
    gains = pods[at] - 2 * have - 1
    largest = np.argsort(-gains, kind="stable")[:first]
    return int(gains[largest].sum()), np.bincount(at[largest], minlength=len(pods))


@dataclass(frozen=True)
class _Count:
    """A number for some groups and a level; `most` is a limit that placements keep."""

    groups: tuple[GroupPods, ...]
    level: CountedLevel
    most: int


class DomainCount(_Count):
    """The domains of a level that some groups are in, summed."""

    def value(self, solution: Solution) -> int:
        """Return the sum for a placement."""
        return sum(group.domains(solution, self.level) for group in self.groups)


class PairCount(_Count):
    """The pairs of pods, one of each of two groups, in different domains of a level.

    A node outside the cluster is in no domain: its pods are apart from all others.
    """

    def value(self, solution: Solution) -> int:
        """Return the pairs for a placement."""
        left, right = (group.per_domain(solution, self.level) for group in self.groups)
        return math.prod(group.number(solution) for group in self.groups) - int(left @ right)

    def fewest(
        self,
        problem: PlacementProblem,
        solution: Solution,
        most: Sequence[int] = (FIT_MAX, FIT_MAX),
        limits: Sequence[DomainCount | None] = (None, None),
    ) -> int:
        """Return a lower bound on the pairs, for placements that have as many pods of each group as this one.

        No placement has more pairs together than the one that fills the domains with most capacity first (`most_pairs`).

        Args:
            most: In how many domains each group is at most.
            limits: The domains of a narrower level that each group is in at most.
        """
        if any(group.missing for group in self.groups):
            return 0
        sizes = [group.number(solution) for group in self.groups]
        kinds = sorted({kind for group in self.groups for kind in group.kinds})
        capacity = np.bincount(self.level.domain, weights=problem.pods().per_node(kinds)).astype(
            np.int64
        )
        for group in self.groups:
            np.add.at(capacity, self.level.domain[group.bound_nodes], 1)
        every = np.array([sum(sizes)], dtype=np.int64)
        _, amounts = filled(np.zeros(len(capacity), dtype=np.int64), capacity, every)
        together, _ = most_pairs(amounts[amounts > 0], sizes[0])
        if not any(group.bound for group in self.groups):
            together = min(together, *self._by_resource(problem, sizes, together))
        for whole in (0, 1):
            if most[whole] == 1 and not any(group.bound for group in self.groups):
                beside = self._beside(problem, whole, sizes, most[1 - whole], limits)
                together = min(together, sizes[whole] * beside)
        return sizes[0] * sizes[1] - together

    def _by_resource(
        self, problem: PlacementProblem, sizes: Sequence[int], most: int
    ) -> Iterator[int]:
        """Yield how many pairs can be together by each resource of which pods of the groups request different amounts; at least `most`.

        As if pods could be divided: with amounts t of both groups in each of k domains, the pairs together are the sum of (t^2 - d^2) / 4,
        where d is the difference of the two groups there: no sum of t^2 is above that of the largest domains filled first, and none of
        d^2 is below D^2 / k.
        """
        yield most
        kinds = [group.kinds for group in self.groups]
        usable = problem.pods().per_node(sorted({*kinds[0], *kinds[1]})) > 0
        for axis in range(problem.requests.shape[1]):
            asks = [int(problem.requests[each, axis].min()) for each in kinds]
            if not all(asks) or asks[0] == asks[1]:
                continue
            free = np.where(usable, problem.free[:, axis], 0)
            capacity = np.bincount(self.level.domain, weights=free).astype(np.int64)
            need = [n * ask for n, ask in zip(sizes, asks, strict=True)]
            every = np.array([sum(need)], dtype=np.int64)
            _, filled_first = filled(np.zeros(len(capacity), dtype=np.int64), capacity, every)
            amounts = filled_first[filled_first > 0].tolist()
            squares = sum(amount * amount for amount in amounts)
            used = max(len(amounts), 1)
            yield (squares * used - (need[0] - need[1]) ** 2) // (4 * used * asks[0] * asks[1])

    def _beside(
        self,
        problem: PlacementProblem,
        whole: int,
        sizes: Sequence[int],
        most: int,
        limits: Sequence[DomainCount | None],
    ) -> int:
        """Return how many pods of the other group can be in the domain that has all pods of one; `most`: its domains at most."""
        of_whole, other = self.groups[whole].kinds, self.groups[1 - whole].kinds
        pods = sizes[1 - whole]
        own, per_node = (
            in_parts(problem.pods().per_node(self.groups[at].kinds), limits[at], sizes[at])
            for at in (whole, 1 - whole)
        )
        alone = np.bincount(self.level.domain, weights=per_node).astype(np.int64)
        holds = np.bincount(self.level.domain, weights=own) >= sizes[whole]
        left = np.where(holds, alone, 0)
        usable = (per_node > 0) | (own > 0)
        for axis in range(problem.requests.shape[1]):
            ask = int(problem.requests[other, axis].min())
            if ask:
                free = np.where(usable, problem.free[:, axis], 0)
                total = np.bincount(self.level.domain, weights=free).astype(np.int64)
                taken = sizes[whole] * int(problem.requests[of_whole, axis].min())
                left = np.minimum(left, (total - taken) // ask)
        # of the domains beside it, those with most capacity
        largest = np.sort(alone)[::-1]
        rest = int(largest[: most - 1].sum())
        return int(np.clip(np.where(left + rest >= pods, left, 0), 0, pods).max(initial=0))


class ShareCount(_Count):
    """The pods of some groups that are not in the smallest share of a domain of a level, summed."""

    def value(self, solution: Solution) -> int:
        """Return the sum for a placement."""
        return sum(
            group.bound + group.size - group.smallest_share(solution, self.level)
            for group in self.groups
        )


TopologyCount: TypeAlias = "DomainCount | PairCount | ShareCount"


class DomainCountModel(PlacementModel):
    """The integer program of a tree, with the domains that groups are in, and the pairs of pods in different ones.

    `search` finds the least value of the last count, or any placement, within the limits of all counts.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        bounds: UpperBounds,
        counts: Sequence[TopologyCount],
        at_least: int,
    ) -> None:
        """Begin; `at_least`: new pods to place."""
        cells = make_node_classes(problem, [count.level.domain for count in counts])
        super().__init__(problem, bounds, cells)
        self.counts = counts
        self.at_least = at_least
        self.sums: list[LinearExpr] = []  # per count
        # of equal shares those of the tightest domains: what each of these can hold, if it is used
        self.capacities: list[tuple[int, IntVar]] = []

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
                total = self.program.sum(shares)
            else:
                numbers = [self._domains(group, count.level) for group in count.groups]
                total = self.program.sum(numbers)
            self.program.add(total <= count.most)
            self.sums.append(total)
        return True

    def _pairs(self, count: PairCount) -> LinearExpr:
        """Return the pairs of pods of two groups in different domains of a level: all pairs, without those in each domain."""
        totals: list[IntVar] = []
        amounts: list[dict[int, IntVar]] = []
        for group in count.groups:
            pods = self._of_group(group, count.level)
            bound = Counter(count.level.domain[group.bound_nodes].tolist())
            amounts.append({})
            for domain in sorted({*pods, *bound}):
                amount = self.program.new_int_var(0, bound[domain] + group.size)
                self.program.add(amount == self.program.sum(pods.get(domain, [])) + bound[domain])
                amounts[-1][domain] = amount
            total = self.program.new_int_var(0, group.bound + group.size)
            apart = group.bound - len(group.bound_nodes)  # on nodes outside the cluster
            self.program.add(total == self.program.sum(list(amounts[-1].values())) + apart)
            totals.append(total)
        sizes = [group.bound + group.size for group in count.groups]
        every = self.program.new_int_var(0, sizes[0] * sizes[1])
        self.program.add_multiplication_equality(every, totals)
        together: list[IntVar] = []
        for domain, amount in amounts[0].items():
            if (other := amounts[1].get(domain)) is not None:
                pairs = self.program.new_int_var(0, sizes[0] * sizes[1])
                self.program.add_multiplication_equality(pairs, [amount, other])
                together.append(pairs)
        return every - self.program.sum(together)

    def _outside_smallest(self, group: GroupPods, level: CountedLevel) -> LinearExpr:
        """Return the pods of a group that are not in its smallest share of a domain of a level."""
        every = group.bound + group.size
        smallest = self.program.new_int_var(0, every)
        pods = self._of_group(group, level)
        bound = Counter(level.domain[group.bound_nodes].tolist())
        per_node = self.problem.pods().per_node(group.kinds)
        capacity = np.bincount(level.domain, weights=per_node).astype(np.int64)
        for domain in sorted({*pods, *bound}):
            placed = self.program.sum(pods.get(domain, []))
            if bound[domain]:
                self.program.add(smallest <= placed + bound[domain])
                continue
            used = self.program.new_bool_var()
            self.capacities.append((int(capacity[domain]), used))
            self.program.add(placed <= group.size * used)
            self.program.add(smallest <= placed + every * (1 - used))
        return every - smallest

    def _of_group(self, group: GroupPods, level: CountedLevel) -> dict[int, list[IntVar]]:
        """Return the numbers of new pods of a group by domain of a level."""
        below = set(group.leaves)
        pods: dict[int, list[IntVar]] = {}
        for leaves, _, cell, variable in self.placed():
            if leaves.like.index in below:
                domain = int(level.domain[self.cells[cell].nodes[0]])
                pods.setdefault(domain, []).append(variable)
        return pods

    def _domains(self, group: GroupPods, level: CountedLevel) -> IntVar:
        """Return the number of domains of a level that a group is in."""
        pods = self._of_group(group, level)
        opened = set(level.domain[group.bound_nodes].tolist())
        number = self.program.new_int_var(1, len(pods) + len(opened) + group.missing + BROKEN)
        used: list[IntVar] = []
        for domain, variables in pods.items():
            if domain in opened:
                continue
            flag = self.program.new_bool_var()
            self.program.add(self.program.sum(variables) <= group.size * flag)
            used.append(flag)
            if domain >= level.labelled:
                self.program.add(number >= BROKEN * flag)
        if group.missing or any(domain >= level.labelled for domain in opened):
            self.program.add(number >= BROKEN)
        self.program.add(number >= self.program.sum(used) + len(opened) + group.missing)
        return number

    def _aim(self, *, optimise: bool) -> None:
        """Add the objective: the least of the last count; of equal shares those of the tightest domains."""
        self.program.add(self.all_placed() >= self.at_least)
        if optimise:
            tightest = self.program.sum([most * used for most, used in self.capacities])
            self.program.minimize(self.sums[-1] * self._scale + tightest)

    @property
    def _scale(self) -> int:
        """Return what the last count counts in the objective: more than all capacities together."""
        return sum(capacity for capacity, _ in self.capacities) + 1

    def _bound(self, response: Response) -> int:
        # the bound of an integer is the next integer above what is proved for the relaxation
        bound = int(np.ceil(response.proto.best_objective_bound - 1e-6))
        return max(-(-(bound - self._scale + 1) // self._scale), 0)
