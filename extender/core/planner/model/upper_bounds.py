"""Upper bounds: per group and domain the largest number of new pods, or `NEVER` if it cannot be satisfied.

Each group is bounded as if it were alone, so `NEVER` is a proof, and any other bound may be out of reach.
Whole pods per node are counted, never sums of resources (SPEC D8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extender.core.planner.model.node_table import FIT_MAX, Ints
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem

NEVER = -1  # the group cannot be satisfied in that domain


@dataclass(slots=True)
class UpperBounds:
    """Per group and domain of its level: the largest number of new pods below the group, or `NEVER`."""

    best: list[Ints]
    root: int  # the same for the whole tree in any domain

    @property
    def infeasible(self) -> bool:
        """Return whether the tree is proved impossible."""
        return self.root == NEVER


def pods_per_node(problem: PlacementProblem, kinds: list[int], counts: Ints) -> Ints:
    """Return a bound per node on the pods of any mix of kinds; exact for equal requests."""
    if not kinds:
        return np.zeros(problem.fleet.size, dtype=np.int64)
    if len(kinds) == 1:
        only: Ints = counts[kinds[0]]
        return only
    least = problem.requests[kinds].min(axis=0)
    bound = np.full(problem.fleet.size, FIT_MAX, dtype=np.int64)
    for axis in np.flatnonzero(least):
        bound = np.minimum(bound, problem.free[:, axis] // int(least[axis]))
    bound = np.minimum(bound, counts[kinds].sum(axis=0))
    return np.where(counts[kinds].any(axis=0), bound, 0)


def bound_all(problem: PlacementProblem, counts: Ints | None = None) -> UpperBounds:
    """Compute the bounds from the leaves up.

    Args:
        problem: The compiled request.
        counts: Pods per kind and node, shape (kinds, nodes); those of the problem by default.
    """
    table = problem.counts if counts is None else counts
    groups = problem.groups
    best: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(groups)
    known: dict[tuple[object, ...], Ints] = {}
    kinds: list[set[int]] = [set(g.members) for g in groups]
    for group in reversed(groups):
        if group.parent >= 0:
            kinds[group.parent] |= kinds[group.index]
        if not group.alive:
            result = np.full(group.level.count, NEVER, dtype=np.int64)
        elif group.leaf:
            sizes = tuple((k, len(m)) for k, m in group.members.items())
            signature = (group.level.keys, group.bound, group.minimum, sizes)
            if signature not in known:
                known[signature] = _leaf(problem, group, table)
            result = known[signature]
        else:
            result = _composite(problem, group, best, sorted(kinds[group.index]), table)
        if group.pinned >= 0:
            elsewhere = np.arange(group.level.count) != group.pinned
            result = np.where(elsewhere, NEVER, result)
        best[group.index] = result
    root = best[0]
    return UpperBounds(best=best, root=int(root.max()) if len(root) else NEVER)


def capacity_of(problem: PlacementProblem, group: CompiledGroup, kind: int, counts: Ints) -> Ints:
    """Count per domain how many pods of a kind fit, shape (domains,)."""
    total = group.level.total(counts[kind])
    return np.minimum(total, 1) if problem.claims[kind] else total


def _leaf(problem: PlacementProblem, group: CompiledGroup, counts: Ints) -> Ints:
    most = np.zeros(group.level.count, dtype=np.int64)
    for kind, members in group.members.items():
        most += np.minimum(capacity_of(problem, group, kind, counts), len(members))
    if len(group.members) > 1:
        per_node = pods_per_node(problem, sorted(group.members), counts)
        most = np.minimum(most, group.level.total(per_node))
    return np.where(most + group.bound >= group.minimum, most, NEVER)


def best_inside(
    problem: PlacementProblem, child: CompiledGroup, parent: CompiledGroup, values: Ints
) -> Ints:
    """Return, for each domain of the parent, the largest value of a child's domains inside it."""
    if child.level is parent.level:
        return values
    out = np.full(parent.level.count, NEVER, dtype=np.int64)
    if len(values):
        np.maximum.at(out, problem.fleet.up(child.level.keys, parent.level.keys), values)
    return out


def _composite(
    problem: PlacementProblem,
    group: CompiledGroup,
    best: list[Ints],
    kinds: list[int],
    counts: Ints,
) -> Ints:
    alive = [problem.groups[c] for c in group.children if problem.groups[c].alive]
    if not alive:  # reached only with a relaxed minimum of 0
        return np.zeros(group.level.count, dtype=np.int64)
    rows = np.stack([best_inside(problem, c, group, best[c.index]) for c in alive])
    can = rows >= 0
    holds = np.array([c.holds for c in alive], dtype=np.bool_)[:, None]
    enough = (can | holds).sum(axis=0) >= group.minimum
    most = np.maximum(rows, 0).sum(axis=0)
    if kinds:
        capacity = group.level.total(pods_per_node(problem, kinds, counts))
        most = np.minimum(most, capacity)
        far = np.int64(FIT_MAX)
        least = np.array([0 if c.holds else c.least for c in alive], dtype=np.int64)[:, None]
        costs = np.sort(np.where(can | holds, least, far), axis=0)[: group.minimum]
        enough &= costs.sum(axis=0) <= capacity
    return np.where(enough, most, NEVER)
