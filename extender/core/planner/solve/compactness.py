"""Compactness: the orders of nodes and domains that use few of them, and leave large free domains whole.

At each level from the widest to the narrowest, and then among nodes: if a domain holds all that is left to place, the tightest
of those, but first one that the tree uses already; else the largest. Integers only, and every tie is broken by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import UnsetType

from extender.core.planner.model.node_scores import largest_sums
from extender.core.planner.model.node_table import Bools, Ints, Level
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem


class Compactness:
    """Of one partial placement: the nodes that each scope of the tree uses, and the pods that it still has to place.

    The scope of a group is the nearest group at or above it with preferred topology keys, whose domains are to be few; where
    there is none, it is the whole tree, by the topology keys of the cluster.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._scopes: list[list[int]] = []  # per group: its scopes, the nearest first
        self.used: dict[int, Ints] = {}  # scope -> its pods per node, bound ones counted
        self._left: dict[int, dict[int, int]] = {}  # scope -> kind -> pods to place
        self._domains: dict[tuple[str, ...], list[Ints]] = {}
        self._wider: dict[tuple[tuple[str, ...], int], list[Ints]] = {}
        for group in problem.groups:
            above = self._scopes[group.parent] if group.parent >= 0 else []
            own = group.parent < 0 or _keys(group)
            self._scopes.append([group.index, *above] if own else above)
        for group in problem.groups:
            if not group.leaf:
                continue
            bound = [problem.node_table.index.get(b.node) for b in group.source.bound]
            rows = np.array([row for row in bound if row is not None], dtype=np.int64)
            for scope in self._scopes[group.index]:
                if len(rows):
                    np.add.at(self._of(scope), rows, 1)
                left = self._left.setdefault(scope, {})
                for kind, members in group.members.items():
                    left[kind] = left.get(kind, 0) + len(members)

    def note(self, leaf: int, kind: int, nodes: Ints, amounts: Ints) -> None:
        """Count pods that are placed, or with negative amounts taken back."""
        total = int(amounts.sum())
        for scope in self._scopes[leaf]:
            self._of(scope)[nodes] += amounts
            self._left[scope][kind] -= total

    def order_nodes(
        self,
        leaf: CompiledGroup,
        kind: int,
        nodes: Ints,
        fit: Ints,
        *,
        given: Ints,
        want: int,
        scores: Ints | None,
    ) -> Ints:
        """Order nodes for pods of one kind of a leaf; those that are not needed come last.

        Args:
            leaf: Whose pods are placed.
            kind: Their kind.
            nodes: The nodes.
            fit: How many of them fit on each.
            given: How many each gets in any case, beside these.
            want: How many are placed.
            scores: Of the nodes, by the soft rules of pods; None: all are equal.
        """
        scope = self._scopes[leaf.index][0]
        left = max(want, self._left[scope][kind] - int(given.sum()))
        used = self._of(scope)[nodes] + given > 0
        domains = [domain[nodes] for domain in self._levels(scope)]
        parts: list[Ints] = []
        none = np.zeros(len(nodes), dtype=np.int64)
        rows = _Rows(fit, used, none if scores is None else scores)
        _arrange(np.flatnonzero(fit > 0), rows, domains, left, parts)
        rest = fit > 0
        for part in parts:
            rest[part] = False
        return np.concatenate([*parts, np.flatnonzero(rest)])

    def order_domains(
        self, group: CompiledGroup, inside: Ints, per_node: Ints, scores: Ints
    ) -> list[Ints]:
        """Return the columns by which domains of a group are sorted, the most important first.

        Args:
            group: The group that gets one of them.
            inside: The domains.
            per_node: How many pods of the group each node can hold.
            scores: Of the domains, by the soft rules of pods.
        """
        scope = self._scopes[group.parent if group.parent >= 0 else group.index][0]
        kinds = group.members if group.leaf else self._left[scope]
        left = sum(self._left[scope].get(kind, 0) for kind in kinds)
        used = (self._of(scope) > 0).astype(np.int64)
        first = _first_nodes(group.level, inside)
        fewest: list[Ints] = []
        tightest: list[Ints] = []
        for domain in [*self._wider_levels(group.level, scope), group.level.domain]:
            placed = domain >= 0
            totals = np.bincount(domain[placed], weights=per_node[placed]).astype(np.int64)
            opened = np.bincount(domain[placed], weights=used[placed]) > 0
            total, own = totals[domain[first]], opened[domain[first]]
            holds = total >= left
            fewest += [
                (~holds).astype(np.int64),
                (~own).astype(np.int64),
                np.where(holds, 0, -total),
            ]
            tightest.append(np.where(holds, total, 0))
        return [*fewest, -scores, *tightest]

    def _of(self, scope: int) -> Ints:
        if scope not in self.used:
            self.used[scope] = np.zeros(self._problem.node_table.size, dtype=np.int64)
        return self.used[scope]

    def _levels(self, scope: int) -> list[Ints]:
        """Return the domains of the keys of a scope per node, the widest first; a node without a label is one of its own."""
        keys = _keys(self._problem.groups[scope]) or self._problem.levels
        if keys not in self._domains:
            self._domains[keys] = [
                self._problem.node_table.own_domains(key)[0] for key in reversed(keys)
            ]
        return self._domains[keys]

    def _wider_levels(self, level: Level, scope: int) -> list[Ints]:
        """Return those levels of a scope of which each domain of `level` is in one domain."""
        if (level.keys, scope) not in self._wider:
            rows = np.flatnonzero(level.domain >= 0)
            inner = level.domain[rows]
            outer = np.zeros(level.count, dtype=np.int64)
            wider: list[Ints] = []
            for domain in self._levels(scope):
                outer[inner] = domain[rows]
                if (outer[inner] == domain[rows]).all():
                    wider.append(domain)
            self._wider[level.keys, scope] = wider
        return self._wider[level.keys, scope]


def _keys(group: CompiledGroup) -> tuple[str, ...]:
    return () if isinstance(group.source.preferred, UnsetType) else group.source.preferred


def _first_nodes(level: Level, domains: Ints) -> Ints:
    rows = np.flatnonzero(level.domain >= 0)[::-1]
    first = np.zeros(level.count, dtype=np.int64)
    first[level.domain[rows]] = rows
    return first[domains]


class _Rows(NamedTuple):
    """Of each node: how many pods fit, whether it is used already, its score."""

    fit: Ints
    used: Bools
    scores: Ints


def _arrange(
    positions: Ints, rows: _Rows, levels: Sequence[Ints], left: int, parts: list[Ints]
) -> int:
    """Append the order of some positions to `parts`, level by level; return how many pods are left then."""
    if left <= 0 or not len(positions):
        return left
    if not levels:
        for score in np.unique(rows.scores[positions])[::-1]:
            equal = positions[rows.scores[positions] == score]
            none = np.zeros(len(equal), dtype=np.int64)
            parts.append(equal[fewest_first(rows.fit[equal], rows.used[equal], none, left)])
            left -= int(rows.fit[parts[-1]].sum())
            if left <= 0:
                break
        return left
    domain = levels[0][positions]
    if (domain == domain[0]).all():
        return _arrange(positions, rows, levels[1:], left, parts)
    totals = np.bincount(domain, weights=rows.fit[positions]).astype(np.int64)
    opened = np.bincount(domain, weights=rows.used[positions]) > 0
    sums = np.zeros(len(totals), dtype=np.int64)
    if rows.scores.any():
        sums = largest_sums(domain, rows.fit[positions], rows.scores[positions], left, len(totals))
    for chosen in fewest_first(totals, opened, sums, left).tolist():
        left = _arrange(positions[domain == chosen], rows, levels[1:], left, parts)
    return left


def fewest_first(totals: Ints, used: Bools, scores: Ints, left: int) -> Ints:
    """Return which domains to use for so many pods, in order.

    The used ones, then the largest; last, of those that hold the rest, the one with the highest score, the tightest of equal ones.

    >>> scores = np.zeros(4, dtype=np.int64)
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([False] * 4), scores, 8)
    array([1, 2])
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([False] * 4), np.array([0, 0, 0, 1]), 8)
    array([1, 3])
    >>> fewest_first(np.array([2, 5, 3, 4]), np.array([True, False, False, False]), scores, 2)
    array([0])
    """
    position = np.arange(len(totals))
    order = np.lexsort((position, -scores, -totals, ~used))
    order = order[totals[order] > 0]
    sums = np.cumsum(totals[order])
    taken = int(np.searchsorted(sums, left))
    if taken >= len(order):
        return order
    rest = left - (int(sums[taken - 1]) if taken else 0)
    others = order[taken:]
    others = others[totals[others] >= rest]
    last = others[np.lexsort((others, totals[others], -scores[others], ~used[others]))[:1]]
    return np.concatenate((order[:taken], last))
