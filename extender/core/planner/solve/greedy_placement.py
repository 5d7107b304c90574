"""Greedy search: place the minimum of a tree in a good order; `solver_pipeline` then adds extra members.

Tries the candidate domains of a group one after the other, and any M of N children, but never revises a
choice that succeeded; `cp_sat_placement` finds what this misses. Arithmetic over nodes is done by numpy on
whole domains.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import numpy as np

from extender.core.planner.model.interpod_constraints import ConstraintLedger
from extender.core.planner.model.node_table import Ints, count_fitting
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import UpperBounds
from extender.core.planner.plan_types import is_slice
from extender.core.planner.solve.compactness import (
    Compactness,
    DomainColumn,
    DomainKey,
    domain_scores,
    first_pods,
)

# --- the order in which candidates are tried
Strategy = Literal["compact", "full", "roomy", "tight", "listed"]

STRATEGIES: tuple[Strategy, ...] = ("compact", "full", "roomy", "tight", "listed")
"""`compact`: the orders of `compactness`; every member and child counts as required if all can fit. `full`: every member and child counts as required; the domain with the least free capacity. `roomy`: the domain
that holds most extra members. `tight`: the domain with the least free capacity. `listed`: as `tight`, with
children in stored order."""


Solution: TypeAlias = dict[int, dict[int, dict[int, int]]]
"""Leaf -> kind -> node -> new pods."""


ANY_KIND = -1


class SearchBudgetExceeded(Exception):
    """The search budget is used up; the caller keeps the best placement found so far."""


class SearchBudget:
    """The search nodes spent, and their limit."""

    __slots__ = ("limit", "nodes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nodes = 0

    def spend(self) -> None:
        """Count one search node.

        Raises:
            SearchBudgetExceeded: The limit is reached.
        """
        if self.nodes >= self.limit:
            raise SearchBudgetExceeded
        self.nodes += 1

    def charge(self, nodes: int) -> None:
        """Count search nodes where the search must not end."""
        self.nodes += nodes


class FreeCounts:
    """How many pods of a kind still fit in each domain; only nodes that changed since the last question are counted again."""

    def __init__(self, problem: PlacementProblem, free: Ints) -> None:
        self._problem = problem
        self._free = free
        self._asked: set[int] = set()  # kinds that were asked for before anything was placed
        self._fit: dict[int, Ints] = {}  # kind -> pods per node
        self._totals: dict[int, dict[DomainKey, tuple[Ints, Ints]]] = {}
        self._touched: list[Ints] = []
        self._read: dict[int, int] = {}  # kind -> how many of `_touched` its counts have

    def touch(self, nodes: Ints) -> None:
        """Note that the free capacity of some nodes has changed."""
        self._touched.append(nodes)

    def total(self, kind: int, key: DomainKey, domain: Ints) -> Ints:
        """Return how many pods of a kind fit in each domain; `ANY_KIND`: any of the tree, before one is placed.

        Args:
            key: A name for `domain`.
            domain: Per node; -1: none.
        """
        if kind == ANY_KIND or not self._touched:  # problems with the same nodes share it
            self._asked.add(kind)
            kinds = range(len(self._problem.kinds)) if kind == ANY_KIND else (kind,)
            return self._problem.pods().total_by(kinds, key, domain)
        fit = self._counted(kind)
        totals = self._totals.setdefault(kind, {})
        if key not in totals:
            inside = domain >= 0
            count = int(domain.max(initial=-1)) + 1
            sums = np.bincount(domain[inside], weights=fit[inside], minlength=count)
            totals[key] = (domain, sums.astype(np.int64))
        return totals[key][1]

    def _counted(self, kind: int) -> Ints:
        start, self._read[kind] = self._read.get(kind, 0), len(self._touched)
        fit = self._fit.get(kind)
        if fit is None and kind not in self._asked:
            fit = self._fit[kind] = self._count(kind, np.arange(self._problem.node_table.size))
            return fit
        if fit is None:
            fit = self._fit[kind] = self._problem.counts[kind].copy()
        if start < len(self._touched):
            touched = self._touched[start:]
            nodes = np.unique(np.concatenate(touched)) if touched[1:] else touched[0]
            more = self._count(kind, nodes) - fit[nodes]
            fit[nodes] += more
            for domain, sums in self._totals.get(kind, {}).values():
                placed = domain[nodes] >= 0
                np.add.at(sums, domain[nodes][placed], more[placed])
        return fit

    def _count(self, kind: int, nodes: Ints) -> Ints:
        fit = count_fitting(self._free[nodes], self._problem.requests[kind])
        return np.where(self._problem.allowed[kind][nodes], fit, 0)


class PartialPlacement:
    """A placement under construction; every step can be undone."""

    def __init__(
        self,
        problem: PlacementProblem,
        bounds: UpperBounds,
        strategy: Strategy,
        effort: SearchBudget,
        scores: Ints | None = None,
    ) -> None:
        """Begin with nothing placed; `scores`: of each node for each kind, by the soft rules of pods."""
        self.problem = problem
        self.bounds = bounds
        self.strategy = strategy
        self.effort = effort
        self.scores = scores
        self.free = problem.free.copy(order="K")
        self.total = 0
        self.domains: dict[int, int] = {}  # active group -> its domain
        self.trail: list[tuple[int, int, Ints, Ints]] = []  # leaf, kind, nodes, amounts
        self.claimed: set[str] = set(problem.in_use)
        self.ledger = ConstraintLedger(problem.rules, problem.kinds)
        self._domain_scores: dict[tuple[object, ...], Ints] = {}
        self._inside: dict[tuple[object, ...], Ints] = {}
        self.counts = FreeCounts(problem, self.free)
        self.preferred = _preferred_nodes(problem)
        self.compactness = Compactness(problem) if strategy == "compact" else None
        # every member and child counts as required
        self.whole = strategy == "full" or (
            strategy == "compact" and bounds.root >= sum(g.size for g in problem.groups if g.alive)
        )

    def solution(self) -> Solution:
        """Return the sum of the steps."""
        placed: Solution = {}
        for leaf, kind, nodes, amounts in self.trail:
            by_node = placed.setdefault(leaf, {}).setdefault(kind, {})
            for node, amount in zip(nodes.tolist(), amounts.tolist(), strict=True):
                by_node[node] = by_node.get(node, 0) + amount
        return placed

    # --- the minimum -------------------------------------------------------------------------------

    def place(self, group: CompiledGroup, outer: int) -> bool:
        """Place the minimum of a group inside a domain of its parent; return False, with nothing placed, if none is found.

        Raises:
            SearchBudgetExceeded: Whether it exists is not known.
        """
        for domain in self.candidates(group, outer):
            self.effort.spend()
            mark, domains = len(self.trail), dict(self.domains)
            self.domains[group.index] = domain
            if self._fill(group, domain) if group.leaf else self._children(group, domain):
                return True
            self.undo(mark)
            self.domains = domains
        return False

    def inside(self, group: CompiledGroup, outer: int) -> Ints:
        """Return the domains of a group inside a domain of its parent that the upper bounds allow."""
        best = self.bounds.best[group.index]
        parent = self.problem.groups[group.parent] if group.parent >= 0 else None
        keys = parent.level.keys if parent else ()
        asked = id(best), group.level.keys, keys, outer  # leaves that are alike share one array
        inside = self._inside.get(asked)
        if inside is None:
            inside = np.array([outer], dtype=np.int64)
            if group.level.keys != keys:
                inside = self.problem.node_table.inside(group.level.keys, keys, outer)
            inside = self._inside[asked] = inside[best[inside] >= 0]
        return self._left_by_others(group, inside) if group.exclusive else inside

    def _left_by_others(self, group: CompiledGroup, inside: Ints) -> Ints:
        """Return those of some domains that no other exclusive group has; one that bound members fix is always left."""
        if group.pinned >= 0:
            return inside
        groups = self.problem.exclusive
        chosen = groups.chosen_by_others(group, self.domains)
        left = [domain for domain in inside.tolist() if groups.value(group, domain) not in chosen]
        return np.array(left, dtype=np.int64)

    def candidates(self, group: CompiledGroup, outer: int) -> Iterator[int]:
        """Yield those domains in the order in which they are tried, without those that are full."""
        inside = self.inside(group, outer)
        if len(inside) > 1 and group.leaf:
            need = group.size if self.whole else group.least
            inside = inside[self._most(group, inside) >= need]
        if len(inside) <= 1:
            yield from inside.tolist()
            return
        columns = self._columns(group)
        # mostly the first one is enough, which is found without sorting all of them
        first = inside
        for column in columns:
            if len(first) > 1:
                values = column(first)
                first = first[values == values.min()]
        yield int(first[0])  # `inside` is ascending
        order = np.lexsort((inside, *(column(inside) for column in reversed(columns))))
        yield from inside[order[1:]].tolist()

    def _columns(self, group: CompiledGroup) -> list[DomainColumn]:
        """Return what the domains of a group are sorted by, the most important first."""
        columns: list[DomainColumn] = []
        if self.preferred:
            columns.append(lambda domains: -self._preferred_in(group, domains))
        scores: list[DomainColumn] = []
        if self.scores is not None:
            scores.append(lambda domains: -self._scores_in(group, domains))
        if self.compactness is not None:
            return columns + self.compactness.order_domains(group, self._capacity, scores)
        capacity = self._capacity(group, group.level.keys, group.level.domain).__getitem__
        if self.strategy == "roomy":
            return [*columns, lambda domains: -self._most(group, domains), *scores, capacity]
        return [*columns, *scores, capacity, lambda domains: -self._most(group, domains)]

    def _most(self, group: CompiledGroup, domains: Ints) -> Ints:
        """Return how many members of a leaf fit in each of some domains, of a composite the upper bound."""
        if not group.leaf:
            return self.bounds.best[group.index][domains]
        most = np.zeros(len(domains), dtype=np.int64)
        for kind, members in group.members.items():
            total = self.counts.total(kind, group.level.keys, group.level.domain)[domains]
            most += np.minimum(total, len(members))
        return most

    def _capacity(self, group: CompiledGroup, key: DomainKey, domain: Ints) -> Ints:
        """Return how many pods each domain can hold: of a leaf or a slice those of its kinds, of others all of the tree before any is placed."""
        kinds: Iterable[int] = group.members if group.leaf else (ANY_KIND,)
        if is_slice(group.source.key):
            kinds = self.problem.kinds_below(group)
        totals = [self.counts.total(kind, key, domain) for kind in kinds]
        if not totals:  # all members of the leaf are bound
            return np.zeros(int(domain.max(initial=-1)) + 1, dtype=np.int64)
        return functools.reduce(np.maximum, totals)

    def _children(self, group: CompiledGroup, domain: int) -> bool:
        """Place as many children as the group needs: those that need the fewest pods, the largest of these first.

        The required ones are always among them.
        """
        groups = self.problem.groups
        alive = [groups[c] for c in group.children if groups[c].alive]
        required = sum(1 for c in alive if c.required and not c.holds)
        need = max(group.minimum - sum(1 for c in alive if c.holds), required)
        if self.whole:
            need = sum(1 for c in alive if not c.holds)
        if need <= 0:
            return True
        choices = {c.index: len(self.inside(c, domain)) for c in alive if not c.holds}
        able = [c for c in alive if choices.get(c.index)]
        if len(able) < need or sum(c.required for c in able) < required:
            return False
        listed = self.strategy == "listed"
        able.sort(key=lambda c: (not c.required, 0 if listed else c.least, c.index))
        chosen = able[:need]
        if not listed:  # those that need the most pods first, then those with the fewest domains
            chosen.sort(key=lambda c: (-c.least, choices[c.index], c.index))
        failed: set[tuple[object, ...]] = set()
        for child in [*chosen, *able[need:]]:
            if failed and child.twin_key in failed and not child.required:
                continue
            if self.place(child, domain):
                need -= 1
                if not need:
                    return True
            elif child.required:
                return False
            elif child.leaf:
                failed.add(child.twin_key)
        return False

    # --- leaves ------------------------------------------------------------------------------------

    def _fill(self, leaf: CompiledGroup, domain: int) -> bool:
        """Place exactly the minimum of a leaf: its first members, else its smallest ones."""
        need = leaf.size if self.whole else leaf.least
        if not need:
            return True
        nodes = leaf.level.members(domain)
        if len(leaf.members) == 1:
            return self.put(leaf, next(iter(leaf.members)), nodes, need) == need
        mark = len(self.trail)
        for choice in _choices(self.problem, leaf, need):
            kinds = sorted(choice, key=lambda k: (-self.problem.weights[k], k))
            if all(self.put(leaf, k, nodes, choice[k]) == choice[k] for k in kinds):
                return True
            self.undo(mark)
            self.effort.charge(len(leaf.members))
        return self._gather(leaf, nodes, need)

    def _gather(self, leaf: CompiledGroup, nodes: Ints, need: int) -> bool:
        """Place the smallest members that fit, of any kind."""
        for kind in sorted(leaf.members, key=lambda k: (self.problem.weights[k], k)):
            need -= self.put(leaf, kind, nodes, min(need, len(leaf.members[kind])))
            if not need:
                return True
        return False

    def fits(self, kind: int, nodes: Ints) -> Ints:
        """Return how many pods of a kind still fit on each of some nodes."""
        claims = self.problem.claims[kind]
        if claims & self.claimed:
            return np.zeros(len(nodes), dtype=np.int64)
        fit = count_fitting(self.free[nodes], self.problem.requests[kind])
        fit = np.where(self.problem.allowed[kind][nodes], fit, 0)
        return self.ledger.limit(kind, nodes, fit)

    def put(self, leaf: CompiledGroup, kind: int, nodes: Ints, want: int) -> int:
        """Place up to `want` pods of a kind on some nodes; return how many were placed."""
        if want <= 0:
            return 0
        claims = self.problem.claims[kind]
        want = min(want, 1) if claims else want
        if self.ledger.is_dynamic(kind) and want > 1:
            return self._put_singly(leaf, kind, nodes, want)
        preferred = self.preferred.get((leaf.index, kind), {})
        if (
            self.compactness is not None
            and self.scores is None
            and not (leaf.level.keys or preferred or claims or self.ledger.is_dynamic(kind))
            and len(nodes) == self.problem.node_table.size
        ):
            nodes = self.compactness.narrowed(leaf, kind, want, self.counts.total)
        fit = self.fits(kind, nodes)
        amounts = np.zeros(len(nodes), dtype=np.int64)
        if preferred:
            amounts = first_pods(np.minimum(fit, [preferred.get(int(n), 0) for n in nodes]), want)
        left = want - int(amounts.sum())
        if left:
            order = np.arange(len(nodes))
            if len(nodes) > 1:
                order = self.order_nodes(leaf, kind, nodes, fit, amounts, left)
            amounts[order] += first_pods((fit - amounts)[order], left)
        used = np.flatnonzero(amounts)
        self.take(leaf.index, kind, nodes[used], amounts[used])
        return int(amounts.sum())

    def order_nodes(
        self, leaf: CompiledGroup, kind: int, nodes: Ints, fit: Ints, given: Ints, want: int
    ) -> Ints:
        """Return the order in which nodes get so many pods of a kind, by how many fit on each, beside those given already.

        Those of an earlier plan, those with the highest score, then those that fit the fewest: this keeps nodes with much free capacity
        for larger pods and for other trees.
        """
        scores = None if self.scores is None else self.scores[kind][nodes]
        if self.compactness is not None:
            return self.compactness.order_nodes(
                leaf, kind, nodes, fit - given, given=given, want=want, scores=scores
            )
        keys = [np.arange(len(nodes)), fit]
        if scores is not None:
            keys.append(-scores)
        if preferred := self.preferred.get((leaf.index, kind)):
            keys.append(np.array([int(n) not in preferred for n in nodes], dtype=np.int64))
        return np.lexsort(keys)

    def _put_singly(self, leaf: CompiledGroup, kind: int, nodes: Ints, want: int) -> int:
        """Place pods one by one, since each can change the allowed nodes of the next."""
        self.effort.charge(want - 1)
        for placed in range(want):
            nodes_left = nodes[self.fits(kind, nodes) > 0]
            if not self.put(leaf, kind, nodes_left, 1):
                return placed
        return want

    def take(self, leaf: int, kind: int, nodes: Ints, amounts: Ints) -> None:
        """Place pods, which must fit, as one step that can be undone."""
        if not len(nodes):
            return
        self.free[nodes] -= amounts[:, None] * self.problem.requests[kind]
        self.total += int(amounts.sum())
        self.claimed |= self.problem.claims[kind]
        self.ledger.note(kind, nodes, amounts)
        self.counts.touch(nodes)
        self.trail.append((leaf, kind, nodes, amounts))
        if self.compactness is not None:
            self.compactness.note(leaf, kind, nodes, amounts)

    def undo(self, mark: int) -> None:
        """Undo steps until only `mark` are left."""
        while len(self.trail) > mark:
            leaf, kind, nodes, amounts = self.trail.pop()
            self.free[nodes] += amounts[:, None] * self.problem.requests[kind]
            self.total -= int(amounts.sum())
            self.claimed -= self.problem.claims[kind]
            self.ledger.note(kind, nodes, -amounts)
            self.counts.touch(nodes)
            if self.compactness is not None:
                self.compactness.note(leaf, kind, nodes, -amounts)

    def _scores_in(self, group: CompiledGroup, domains: Ints) -> Ints:
        """Return for some domains of a group the largest sum of the scores of the members below it."""
        if self.scores is None:
            return np.zeros(len(domains), dtype=np.int64)
        pods: Counter[int] = Counter()
        for leaf in self.problem.below(group):
            pods.update({kind: len(members) for kind, members in leaf.members.items()})
        key = (group.level.keys, tuple(sorted(pods.items())))
        sums = self._domain_scores.get(key)
        if sums is None:
            sums = domain_scores(self.scores, self.problem.counts, group.level, pods)
            self._domain_scores[key] = sums
        return sums[domains]

    def _preferred_in(self, group: CompiledGroup, domains: Ints) -> Ints:
        """Return for some domains of a group the members below it whose node of an earlier plan is there."""
        if not self.preferred:
            return np.zeros(len(domains), dtype=np.int64)
        preferred = np.zeros(group.level.count, dtype=np.int64)
        below = {leaf.index for leaf in self.problem.below(group)}
        for (leaf, _), nodes in self.preferred.items():
            if leaf in below:
                for node, amount in nodes.items():
                    if group.level.domain[node] >= 0:
                        preferred[group.level.domain[node]] += amount
        return preferred[domains]


def _preferred_nodes(problem: PlacementProblem) -> dict[tuple[int, int], dict[int, int]]:
    """Return per leaf, kind and node the members whose node of an earlier plan it is."""
    preferred: dict[tuple[int, int], dict[int, int]] = {}
    for group in problem.groups:
        for kind, positions in group.members.items():
            for position in positions:
                name = group.source.members[position].prefer
                node = problem.node_table.index.get(name) if name is not None else None
                if node is not None:
                    by_node = preferred.setdefault((group.index, kind), {})
                    by_node[node] = by_node.get(node, 0) + 1
    return preferred


def _choices(problem: PlacementProblem, leaf: CompiledGroup, need: int) -> list[dict[int, int]]:
    """Return the choices of members for the minimum, as kind -> pods: the first in order, and the smallest."""
    kind_of = {p: k for k, positions in leaf.members.items() for p in positions}
    first = dict(Counter(kind_of[position] for position in sorted(kind_of)[:need]))
    smallest: dict[int, int] = {}
    left = need
    for kind in sorted(leaf.members, key=lambda k: (problem.weights[k], k)):
        amount = min(left, len(leaf.members[kind]))
        if amount:
            smallest[kind] = amount
            left -= amount
    return [first] if first == smallest else [first, smallest]
