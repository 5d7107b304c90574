"""Find a placement of the tree, or prove that there is none: upper bounds, greedy search, then CP-SAT."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from extender.core.planner.model.node_scores import node_scores
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import Options, PlacementProblem, compile_request
from extender.core.planner.model.upper_bounds import UpperBounds, bound_all
from extender.core.planner.plan_types import PlanRequest, WishOutcome
from extender.core.planner.solve.candidate_ordering import STRATEGIES
from extender.core.planner.solve.cp_sat_placement import solve_exactly
from extender.core.planner.solve.extra_members import ExtraMembers
from extender.core.planner.solve.greedy_placement import (
    PartialPlacement,
    SearchBudget,
    SearchBudgetExceeded,
    Solution,
)

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
    best = _quickly(problem, bounds, effort, maximise=maximise)
    if best is not None and (not maximise or best.total >= bounds.root):
        return Solved(problem, bounds, best.solution(), proved=True, nodes=effort.nodes)
    hint = best.solution() if best is not None else None
    nodes = effort.nodes
    if hint is None:  # first any placement of the minimum, or the proof that there is none
        first = solve_exactly(
            problem, bounds, limit=request.budget - nodes, hint=None, maximise=False
        )
        nodes += first.steps
        if first.outcome in {"none", "unknown"} or not maximise:
            solution = first.solution if first.outcome == "found" else None
            return Solved(problem, bounds, solution, proved=first.outcome != "unknown", nodes=nodes)
        hint = first.solution
    if size(hint) >= bounds.root:
        return Solved(problem, bounds, hint, proved=True, nodes=nodes)
    more = solve_exactly(problem, bounds, limit=request.budget - nodes, hint=hint, maximise=True)
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
    best = _quickly(problem, bounds, effort, maximise=True)
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
) -> Solution | None:
    """Return the placement of the greedy search, or None, which proves nothing.

    `enough`: pods with which it ends, where fewer than the upper bound are.
    """
    best = _quickly(problem, bounds, effort, maximise=maximise, enough=enough)
    return best.solution() if best is not None else None


def _quickly(
    problem: PlacementProblem,
    bounds: UpperBounds,
    effort: SearchBudget,
    *,
    maximise: bool,
    enough: int | None = None,
) -> PartialPlacement | None:
    """Try each strategy, and return the placement with the most pods."""
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
            held = draft.minimum()
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
    return sum(n for kinds in solution.values() for nodes in kinds.values() for n in nodes.values())
