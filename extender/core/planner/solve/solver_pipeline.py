"""Find a placement of the tree, or prove that there is none: upper bounds, greedy search, then CP-SAT; then place extra members."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from extender.core.planner.model.node_table import Ints, NodeTable
from extender.core.planner.model.problem import (
    CompiledGroup,
    Options,
    PlacementProblem,
    compile_request,
)
from extender.core.planner.model.upper_bounds import UpperBounds, bound_all
from extender.core.planner.plan_types import PlanRequest, WishOutcome
from extender.core.planner.solve.compactness import node_scores
from extender.core.planner.solve.cp_sat_placement import solve_exactly
from extender.core.planner.solve.greedy_placement import (
    STRATEGIES,
    PartialPlacement,
    SearchBudget,
    SearchBudgetExceeded,
    Solution,
)

# --- extra members
MOVES_MAX = 12  # domains tried when an incomplete leaf is moved


class ExtraMembers:
    """Adds extra members to one partial placement."""

    def __init__(self, draft: PartialPlacement) -> None:
        self.draft = draft

    def add(self) -> None:
        """Add what still fits: members of satisfied leaves in turn, and further children with their minimum.

        Raises:
            SearchBudgetExceeded: The pods placed so far are valid.
        """
        active, idle = self._frontier(self.draft.problem.groups[0], 0)
        if self.draft.strategy == "tight":  # the other order, to try both
            self._add_children(active, idle)
            self._grow(active)
        else:
            self._grow(active)
            grown: list[CompiledGroup] = []
            self._add_children(grown, idle)
            self._grow(grown)
            active += grown
        self._move(active)

    def _move(self, leaves: list[CompiledGroup]) -> None:
        """Move incomplete leaves to domains that hold more of their members, one leaf at a time."""
        for leaf, left in self._incomplete(leaves):
            outer = self._outer(leaf)
            if outer is None or leaf.pinned >= 0:
                continue
            inside = self.draft.inside(leaf, outer)
            if len(inside) < 2:  # noqa: PLR2004 -- nowhere else to go
                continue
            every = {kind: len(members) for kind, members in leaf.members.items()}
            domain = self.draft.domains[leaf.index]
            steps = self._remove(leaf)
            best, most = domain, leaf.size - sum(left.values())
            for other in itertools.islice(self.draft.candidates(leaf, outer), MOVES_MAX):
                mark = len(self.draft.trail)
                count = self._fill(leaf, other, every)
                self.draft.undo(mark)
                if count > most:
                    best, most = other, count
                if most == leaf.size:
                    break
            self.draft.domains[leaf.index] = best
            if best != domain:
                self._fill(leaf, best, every)
                continue
            for step in steps:
                self.draft.take(*step)

    def _fill(self, leaf: CompiledGroup, domain: int, left: Mapping[int, int]) -> int:
        """Place as many of some members of a leaf as fit in a domain, given by kind; return the number."""
        nodes = leaf.level.members(domain)
        return sum(self.draft.put(leaf, k, nodes, left[k]) for k in self._smallest_first(left))

    def _smallest_first(self, kinds: Iterable[int]) -> list[int]:
        return sorted(kinds, key=lambda k: (self.draft.problem.weights[k], k))

    def _incomplete(
        self, leaves: list[CompiledGroup]
    ) -> list[tuple[CompiledGroup, dict[int, int]]]:
        """Return the leaves of which some members are not placed, with these by kind."""
        left = {g.index: {k: len(m) for k, m in g.members.items()} for g in leaves}
        for index, kind, _, amounts in self.draft.trail:
            if index in left:
                left[index][kind] -= int(amounts.sum())
        by_kind = [{k: n for k, n in left[leaf.index].items() if n} for leaf in leaves]
        return [pair for pair in zip(leaves, by_kind, strict=True) if pair[1]]

    def _outer(self, leaf: CompiledGroup) -> int | None:
        """Return the domain of the parent of a leaf that chooses its own domain, else None."""
        if leaf.parent < 0:
            return 0 if leaf.level.keys else None
        parent = self.draft.problem.groups[leaf.parent]
        return None if parent.level.keys == leaf.level.keys else self.draft.domains.get(leaf.parent)

    def _remove(self, leaf: CompiledGroup) -> list[tuple[int, int, Ints, Ints]]:
        """Undo all steps of a leaf, and return them."""
        steps = [step for step in self.draft.trail if step[0] == leaf.index]
        others = [step for step in self.draft.trail if step[0] != leaf.index]
        self.draft.trail = list(steps)
        self.draft.undo(0)
        self.draft.trail = others
        return steps

    def _add_children(
        self, active: list[CompiledGroup], idle: list[tuple[CompiledGroup, int]]
    ) -> None:
        """Place the minimum of further children; add their leaves to `active` and their children to `idle`."""
        while idle:
            child, domain = idle.pop(0)
            mark = len(self.draft.trail)
            try:
                placed = self.draft.place(child, domain)
            except SearchBudgetExceeded:
                self.draft.undo(mark)  # a child is placed with its minimum or not at all
                raise
            if placed:
                leaves, more = self._frontier(child, domain)
                active.extend(leaves)
                idle.extend(more)

    def _frontier(
        self, group: CompiledGroup, outer: int
    ) -> tuple[list[CompiledGroup], list[tuple[CompiledGroup, int]]]:
        """Return the placed leaves below a group, and its children that are not placed yet."""
        domain = self.draft.domains.get(group.index)
        if domain is None:  # bound members alone satisfy the group and fix its domain
            inside = self.draft.inside(group, outer)
            if not len(inside):
                return [], []
            domain = int(inside[0])
            self.draft.domains[group.index] = domain
        if group.leaf:
            return [group], []
        active: list[CompiledGroup] = []
        idle: list[tuple[CompiledGroup, int]] = []
        for c in group.children:
            child = self.draft.problem.groups[c]
            if child.alive and (child.holds or child.index in self.draft.domains):
                leaves, more = self._frontier(child, domain)
                active.extend(leaves)
                idle.extend(more)
            elif child.alive and len(self.draft.inside(child, domain)):
                idle.append((child, domain))
        return active, idle

    def _grow(self, leaves: list[CompiledGroup]) -> None:
        """Add further members to the leaves, one each in turn, as long as any fits."""
        incomplete = self._incomplete(leaves)
        if len(incomplete) == 1:
            ((leaf, left),) = incomplete
            self._fill(leaf, self.draft.domains[leaf.index], left)
            return
        turns = [self._turns(leaf, left) for leaf, left in incomplete]
        while turns:
            turns = [turn for turn in turns if next(turn, False)]

    def _turns(self, leaf: CompiledGroup, left: dict[int, int]) -> Iterator[bool]:
        """Place one more of some members of a leaf each time, given by kind; True, until none fits."""
        draft, nodes = self.draft, leaf.level.members(self.draft.domains[leaf.index])
        single, none = np.ones(1, dtype=np.int64), np.zeros(len(nodes), dtype=np.int64)
        for kind in self._smallest_first(left):
            while left[kind]:  # others may hold a member that those tried did not hold
                fit = draft.fits(kind, nodes)
                order = draft.order_nodes(leaf, kind, nodes, fit, none, left[kind])
                holes = nodes[order][fit[order] > 0]
                if not len(holes):
                    break
                for node in holes[:, None]:
                    while left[kind] and draft.fits(kind, node)[0]:
                        left[kind] -= 1
                        draft.take(leaf.index, kind, node, single)
                        yield True


GREEDY_PART = 4  # fraction of a budget for the greedy search


@dataclass(slots=True)
class Solved:
    """The result of a search."""

    problem: PlacementProblem
    bounds: UpperBounds
    solution: Solution | None  # None: no placement was found
    proved: bool  # no better placement exists, or none at all
    nodes: int  # search nodes spent
    wishes: tuple[WishOutcome, ...] = ()  # what the preferred topology keys of groups reached


def solve(
    request: PlanRequest,
    node_table: NodeTable,
    *,
    options: Options | None = None,
    maximise: bool = True,
    problem: PlacementProblem | None = None,
) -> Solved:
    """Solve a request whose root is admissible and whose problem has no violations.

    Args:
        maximise: False: place the minimum only; `proved` then does not cover extra members.
        problem: The request, compiled with these options; None compiles it.
    """
    if problem is None:
        problem = compile_request(request, node_table, options)
    bounds = bound_all(problem)
    if bounds.infeasible:
        return Solved(problem, bounds, None, proved=True, nodes=0)
    effort = SearchBudget(greedy_limit(request.budget))
    best = solve_quickly(problem, bounds, effort, maximise=maximise)
    if best is not None and (not maximise or best.total >= bounds.root):
        return Solved(problem, bounds, best.solution(), proved=True, nodes=effort.nodes)
    hint = best.solution() if best is not None else None
    nodes = effort.nodes
    if hint is None:  # first any placement of the minimum, or the proof that there is none
        first = solve_exactly(problem, bounds, limit=request.budget - nodes, better_than=None)
        nodes += first.steps
        if first.outcome in {"none", "unknown"} or not maximise:
            solution = first.solution if first.outcome == "found" else None
            return Solved(problem, bounds, solution, proved=first.outcome != "unknown", nodes=nodes)
        hint = first.solution
    if size(hint) >= bounds.root:
        return Solved(problem, bounds, hint, proved=True, nodes=nodes)
    more = solve_exactly(problem, bounds, limit=request.budget - nodes, better_than=hint)
    nodes += more.steps
    if more.outcome == "unknown":
        return Solved(problem, bounds, hint, proved=False, nodes=nodes)
    proved = more.outcome == "best" or size(more.solution) >= bounds.root
    # at an equal total keep the first placement: the greedy one, if there is one
    better = more.solution if size(more.solution) > size(hint) else hint
    return Solved(problem, bounds, better, proved=proved, nodes=nodes)


def greedy_limit(budget: int) -> int:
    """Return how many search nodes of a budget the greedy search may spend; the complete search has the rest."""
    return max(budget // GREEDY_PART, 1)


def solve_at_once(problem: PlacementProblem, bounds: UpperBounds, limit: int) -> Solved | None:
    """Return what `solve` returns if the greedy search alone reaches the upper bound, else None."""
    effort = SearchBudget(limit)
    best = solve_quickly(problem, bounds, effort, maximise=True)
    if best is None or best.total < bounds.root or effort.nodes >= limit:
        return None
    return Solved(problem, bounds, best.solution(), proved=True, nodes=effort.nodes)


def solve_quickly(
    problem: PlacementProblem,
    bounds: UpperBounds,
    effort: SearchBudget,
    *,
    maximise: bool,
    enough: int | None = None,
) -> PartialPlacement | None:
    """Return the placement of the greedy search with the most pods, of those of each strategy, or None, which proves nothing.

    `enough`: pods with which it ends, where fewer than the upper bound are.
    """
    best: PartialPlacement | None = None
    everything = sum(g.size for g in problem.groups if g.alive)
    if enough is None:
        enough = bounds.root if maximise else 0
    scores = None
    if maximise:
        scores = problem.scores.get(lambda: node_scores(problem), same=(problem.counts,))
    # a score never costs a pod: what is not placed in its order is tried without
    for given, strategy in itertools.product((scores, None)[scores is None :], STRATEGIES):
        if strategy == "compact" and not maximise:  # any placement of the minimum is enough
            continue
        if strategy == "full" and (not maximise or bounds.root < everything):
            continue
        draft = PartialPlacement(problem, bounds, strategy, effort, given)
        held = False
        try:
            held = draft.place(problem.groups[0], 0)
            if held and maximise:
                ExtraMembers(draft).add()
        except SearchBudgetExceeded:
            if not held:
                return best
        if held and (best is None or draft.total > best.total):
            best = draft
        if (best is not None and best.total >= enough) or effort.nodes >= effort.limit:
            return best
    return best


def size(solution: Solution) -> int:
    """Return the number of pods in a placement."""
    return sum(sum(nodes.values()) for kinds in solution.values() for nodes in kinds.values())
