"""Upper bounds: per group and domain the largest number of new pods, or `NEVER` if it cannot be satisfied.

Each group is bounded as if it were alone, but for groups that are alike: those are counted together (`_Copies`). So
`NEVER` is a proof, and any other bound may be out of reach. Whole pods per node are counted, never sums of resources
(D8).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from extender.core.planner.model.node_table import FIT_MAX, Bools, Ints, PodBounds
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem

NEVER = -1  # the group cannot be satisfied in that domain


@dataclass(slots=True)
class UpperBounds:
    """Per group and domain of its level: the largest number of new pods below the group, or `NEVER`."""

    best: list[Ints]
    root: int  # the same for the whole tree in any domain
    # per composite and domain: the largest number of child groups that can fit at once; empty for a leaf
    together: list[Ints]

    @property
    def infeasible(self) -> bool:
        """Return whether the tree is proved impossible."""
        return self.root == NEVER


def bound_all(problem: PlacementProblem, counts: Ints | None = None) -> UpperBounds:
    """Compute the bounds from the leaves up."""
    pods = problem.pods(counts)
    groups = problem.groups
    best: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(groups)
    together = list(best)
    by_signature: dict[tuple[object, ...], Ints] = {}
    kinds: list[set[int]] = [set(g.members) for g in groups]
    copies = _Copies(problem, pods)
    for group in reversed(groups):
        if group.parent >= 0:
            kinds[group.parent] |= kinds[group.index]
        if not group.alive:
            result = np.full(group.level.count, NEVER, dtype=np.int64)
        elif group.leaf:
            sizes = tuple((k, len(m)) for k, m in group.members.items())
            signature = (group.level.keys, group.bound, group.minimum, sizes)
            if signature not in by_signature:
                by_signature[signature] = _leaf(problem, group, pods)
            result = by_signature[signature]
        else:
            result = _composite(problem, group, best, sorted(kinds[group.index]), pods)
            together[group.index], fits_required = copies.at_once(group, best)
            enough = (together[group.index] >= group.minimum) & fits_required
            result = np.where(enough, result, NEVER)
        if group.pinned >= 0:
            elsewhere = np.arange(group.level.count) != group.pinned
            result = np.where(elsewhere, NEVER, result)
        closed = problem.exclusive.closed.get(group.index)
        if closed is not None:
            result = np.where(closed, NEVER, result)
        best[group.index] = result
        copies.add(group)
    root = best[0]
    most = int(root.max()) if len(root) else NEVER
    return UpperBounds(best=best, root=most, together=together)


def capacity_of(
    problem: PlacementProblem, group: CompiledGroup, kind: int, pods: PodBounds
) -> Ints:
    """Count per domain how many pods of a kind fit, shape (domains,)."""
    total = pods.total((kind,), group.level)
    return np.minimum(total, 1) if problem.claims[kind] else total


def _leaf(problem: PlacementProblem, group: CompiledGroup, pods: PodBounds) -> Ints:
    most = np.zeros(group.level.count, dtype=np.int64)
    for kind, members in group.members.items():
        most += np.minimum(capacity_of(problem, group, kind, pods), len(members))
    if len(group.members) > 1:
        mix = sorted(group.members)
        most = np.minimum(most, pods.total(mix, group.level))
    return np.where(most + group.bound >= group.minimum, most, NEVER)


def best_inside(
    problem: PlacementProblem, child: CompiledGroup, parent: CompiledGroup, values: Ints
) -> Ints:
    """Return, for each domain of the parent, the largest value of a child's domains inside it."""
    if child.level is parent.level:
        return values
    out = np.full(parent.level.count, NEVER, dtype=np.int64)
    if len(values):
        np.maximum.at(out, problem.node_table.up(child.level.keys, parent.level.keys), values)
    return out


def _composite(
    problem: PlacementProblem,
    group: CompiledGroup,
    best: list[Ints],
    kinds: list[int],
    pods: PodBounds,
) -> Ints:
    alive = [problem.groups[c] for c in group.children if problem.groups[c].alive]
    if not alive:  # reached only with a relaxed minimum of 0
        return np.zeros(group.level.count, dtype=np.int64)
    shared: dict[tuple[object, ...], Ints] = {}  # leaves that are alike share one array
    for child in alive:
        if (key := (id(best[child.index]), child.level.keys)) not in shared:
            shared[key] = best_inside(problem, child, group, best[child.index])
    rows = np.stack([shared[id(best[c.index]), c.level.keys] for c in alive])
    can = rows >= 0
    holds = np.array([c.holds for c in alive], dtype=np.bool_)[:, None]
    required = np.array([c.required for c in alive], dtype=np.bool_)
    enough = (can | holds).sum(axis=0) >= group.minimum
    enough &= (can | holds)[required].all(axis=0)
    most = np.maximum(rows, 0).sum(axis=0)
    if kinds:
        capacity = pods.total(kinds, group.level)
        most = np.minimum(most, capacity)
        far = np.int64(FIT_MAX)
        least = np.array([0 if c.holds else c.least for c in alive], dtype=np.int64)[:, None]
        costs = np.where(can | holds, least, far)
        others = np.sort(costs[~required], axis=0)[: max(group.minimum - int(required.sum()), 0)]
        enough &= costs[required].sum(axis=0) + others.sum(axis=0) <= capacity
    return np.where(enough, most, NEVER)


class _Copies:
    """How many groups that are alike fit at once: ten leaves of four pods need ten hosts, not one host ten times.

    Two groups are alike when their levels, minima, kinds of pods and children are, and nothing of them is bound. Groups
    that are not alike are counted as if the others were not there.
    """

    def __init__(self, problem: PlacementProblem, pods: PodBounds) -> None:
        self._problem = problem
        self._pods = pods
        self._signature: dict[int, int] = {}  # number of it, by index of the group
        self._number: dict[tuple[object, ...], int] = {}
        self._fit: dict[int, Ints] = {}  # number -> how many fit, per domain of its level

    def add(self, group: CompiledGroup) -> None:
        """Count how many groups like this one fit in each of its domains; its children were added before."""
        if not group.alive or group.pinned >= 0 or group.bound or group.holds:
            return
        parts: (
            tuple[tuple[int, int], ...] | None
        )  # pods of each kind, or children of each signature
        if group.leaf:
            parts = tuple((k, len(m)) for k, m in sorted(group.members.items()))
        elif (parts := self._classes(group)) is None:
            return
        closed = self._problem.exclusive.closed.get(group.index)
        signature = (
            group.leaf, group.level.keys, group.exclusive, group.minimum, parts,
            b"" if closed is None else closed.tobytes(),
        )  # fmt: skip
        number = self._number.setdefault(signature, len(self._number))
        self._signature[group.index] = number
        if number not in self._fit:
            fit = self._fitting(group)
            if group.exclusive:  # a domain counts for one of them, and for none if others have it
                fit = np.where(self._problem.exclusive.closed[group.index], 0, np.minimum(fit, 1))
            self._fit[number] = fit

    def at_once(self, group: CompiledGroup, best: list[Ints]) -> tuple[Ints, Bools]:
        """Return per domain how many children can fit at once at most, those that are alike counted together.

        And whether the required ones of each kind of them can.
        """
        fitting = np.zeros(group.level.count, dtype=np.int64)
        all_required = np.ones(group.level.count, dtype=np.bool_)
        alike: dict[int, list[CompiledGroup]] = {}
        for index in group.children:
            child = self._problem.groups[index]
            number = self._signature.get(index)
            if not child.alive:
                continue
            if number is not None:
                alike.setdefault(number, []).append(child)
            else:
                inside = best_inside(self._problem, child, group, best[index])
                fitting += (inside >= 0) | child.holds
        for number, children in alike.items():
            fit = self._inside(children[0], group, self._fit[number])
            fitting += np.minimum(fit, len(children))
            all_required &= fit >= sum(child.required for child in children)
        return fitting, all_required

    def _classes(self, group: CompiledGroup) -> tuple[tuple[int, int], ...] | None:
        """Return how many children of each signature a composite has; None if one has bound members."""
        alive = [i for i in group.children if self._problem.groups[i].alive]
        if any(i not in self._signature for i in alive):
            return None
        return tuple(sorted(Counter(self._signature[i] for i in alive).items()))

    def _fitting(self, group: CompiledGroup) -> Ints:
        """Return how many groups like this one fit in each of its domains, by what they need at least."""
        total = np.zeros(group.level.count, dtype=np.int64)
        if group.minimum <= 0:
            return total + FIT_MAX
        if group.leaf:
            total += self._pods.total(sorted(group.members), group.level)
        children = {self._signature[i]: i for i in group.children if i in self._signature}
        for number, index in children.items():
            total += self._inside(self._problem.groups[index], group, self._fit[number])
        return np.minimum(total // group.minimum, FIT_MAX)

    def _inside(self, child: CompiledGroup, parent: CompiledGroup, fit: Ints) -> Ints:
        """Return, for each domain of the parent, the sum over the domains of a child inside it."""
        if child.level is parent.level:
            return fit
        out = np.zeros(parent.level.count, dtype=np.int64)
        if len(fit):
            np.add.at(out, self._problem.node_table.up(child.level.keys, parent.level.keys), fit)
        return np.minimum(out, FIT_MAX)
