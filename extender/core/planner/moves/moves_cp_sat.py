"""The fewest moves as an integer program: a boolean for each pod that moves, and for each node that it can have.

The order of the moves is no part of the program. Where a solution has no order in which each pod has its place before it
leaves, it is excluded, and the program is solved again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.moves.move_problem import (
    WEIGHT_MAX,
    MoveProblem,
    OverLimit,
    Targets,
    moves_in_order,
)
from extender.core.planner.preempt.min_cost_cp_sat import EvictionModel
from extender.core.planner.preempt.post_eviction_view import CostModel, PostEvictionView
from extender.core.planner.solve.cp_sat_placement import ROWS_PER_STEP, STEPS_PER_UNIT, steps_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

PAIRS_MAX = 60_000  # pods times nodes: a larger program is not built
ORDERS_MAX = 200  # solutions without an order that are excluded
ORDER_STEPS = 2_000  # of one search for an order


@dataclass(slots=True)
class ExactMoves:
    """The result of the program."""

    order: list[tuple[int, int]] | None  # None: no moves were found
    least: int  # no fewer moves lead there; of an infeasible program any number
    proved: bool  # the moves are the fewest and cheapest; without moves: none lead there
    steps: int
    chosen: tuple[int, ...] = ()  # the sets that are emptied


def _too_large(problem: MoveProblem, movers: Sequence[int]) -> bool:
    """Return whether a program of some pods has too many variables, or too large numbers for the solver."""
    weight = sum(problem.weights[i] for i in movers) + 1
    return (
        int(problem.allowed[movers].sum()) > PAIRS_MAX
        or weight * (len(movers) + 1) ** 2 > WEIGHT_MAX
    )


class _Movers:
    """The variables of the pods that may move."""

    def __init__(
        self,
        problem: MoveProblem,
        model: cp_model.CpModel,
        movers: Iterable[int],
        moved: Mapping[int, cp_model.IntVar] | None = None,
    ) -> None:
        self.problem = problem
        self.model = model
        self.moved: dict[int, cp_model.IntVar] = {}
        self.to: dict[int, dict[int, cp_model.IntVar]] = {}
        self.coming: dict[int, list[tuple[int, cp_model.IntVar]]] = {}
        self.leaving: dict[int, list[int]] = {}
        for i in movers:
            self.moved[i] = model.new_bool_var("") if moved is None else moved[i]
            nodes: list[int] = np.flatnonzero(problem.allowed[i]).tolist()
            self.to[i] = {node: model.new_bool_var("") for node in nodes}
            model.add(sum(self.to[i].values()) == self.moved[i])
            for node, variable in self.to[i].items():
                self.coming.setdefault(node, []).append((i, variable))
            self.leaving.setdefault(int(problem.at[i]), []).append(i)

    def limit_nodes(self, others: dict[int, list[tuple[Ints, cp_model.IntVar]]]) -> None:
        """Limit what comes to a node, moved pods and others, to what is free there and what leaves.

        Args:
            others: By node, further pods with what each asks for.
        """
        problem = self.problem
        # elsewhere nothing changes, and the program of the tree has the limits
        for node in sorted(self.coming.keys() | (others.keys() & self.leaving.keys())):
            users = [(problem.asks[i], variable) for i, variable in self.coming.get(node, ())]
            users += others.get(node, [])
            leaving = self.leaving.get(node, ())
            for axis in range(problem.capacity.width):
                asking = [(int(asks[axis]), variable) for asks, variable in users if asks[axis]]
                if not asking:
                    continue
                free = int(problem.free[node, axis])
                taken = sum(amount * variable for amount, variable in asking)
                back = sum(int(problem.frees[i, axis]) * self.moved[i] for i in leaving)
                if free >= 0:
                    self.model.add(taken <= free + back)
                    continue
                used = self.model.new_bool_var("")  # overcommitted: that counts only if a pod comes
                self.model.add(taken <= free + back).only_enforce_if(used)
                for _, variable in asking:
                    self.model.add(variable == 0).only_enforce_if(~used)

    @property
    def scale(self) -> int:
        """Return what one move counts in the objective: more than the weights of all together."""
        return sum(self.problem.weights[i] for i in self.moved) + 1

    def objective(self, asked: Iterable[int] = ()) -> Any:  # noqa: ANN401 -- an expression of the solver
        """Return the number of moves, and after it the sum of the priorities; before both how many of `asked` stay."""
        scale = self.scale
        most = scale * (len(self.moved) + 1)
        cost = sum((scale + self.problem.weights[i]) * moved for i, moved in self.moved.items())
        return cost + sum(most * (1 - self.moved[i]) for i in asked)

    def targets(self, solver: cp_model.CpSolver) -> Targets:
        """Return the moves of a solution."""
        return {
            i: next(node for node, variable in nodes.items() if solver.boolean_value(variable))
            for i, nodes in self.to.items()
            if solver.boolean_value(self.moved[i])
        }

    def exclude(self, targets: Targets) -> None:
        """Exclude moves that have no order, as long as no further pod moves."""
        problem = self.problem
        # None of those that do not fit now is the first of them, unless another pod has left one of their nodes.
        full = {i: n for i, n in targets.items() if not problem.fits(problem.free, i, n)}
        helpers = {i for node in full.values() for i in self.leaving.get(node, ())} - full.keys()
        if full:
            self._not_all(full, helpers)
        self._not_all(targets, self.moved.keys() - targets.keys())

    def _not_all(self, targets: Targets, unless: Iterable[int]) -> None:
        chosen = [self.to[i][node] for i, node in targets.items()]
        self.model.add(sum(chosen) <= len(chosen) - 1 + sum(self.moved[i] for i in unless))

    def solve(self, cp: Any, limit: int, budget: int, asked: Sequence[int] = ()) -> ExactMoves:  # noqa: ANN401 -- the module
        """Minimise the objective, over moves that have an order.

        Args:
            budget: Moves at most; 0: any number.
            asked: Movers of which as many as possible move; of these there is no bound.
        """
        # a larger one allows all, and may be no number of the solver
        if 0 < budget < len(self.moved):
            self.model.add(sum(self.moved.values()) <= budget)
        self.model.minimize(self.objective(asked))
        steps, least = len(self.model.proto.variables) // ROWS_PER_STEP, 0
        for _ in range(ORDERS_MAX):
            solver = cp.CpSolver()
            solver.parameters.num_workers = 1
            solver.parameters.random_seed = 0
            solver.parameters.max_deterministic_time = max((limit - steps) / STEPS_PER_UNIT, 0.01)
            status = solver.solve(self.model)
            steps += steps_of(solver)
            if status == cp.INFEASIBLE:
                return ExactMoves(None, least, proved=True, steps=steps)
            if status not in {cp.OPTIMAL, cp.FEASIBLE}:
                break
            if not asked:
                least = max(least, int(solver.best_objective_bound + 0.5) // self.scale)
            targets = self.targets(solver)
            try:
                order = moves_in_order(self.problem, targets, ORDER_STEPS)
            except OverLimit:
                break
            if order is not None:
                return ExactMoves(order, least, proved=status == cp.OPTIMAL, steps=steps)
            self.exclude(targets)
            if steps >= limit:
                break
        return ExactMoves(None, least, proved=False, steps=steps)


def empty_exactly(
    problem: MoveProblem,
    movers: Sequence[int],
    sets: Sequence[Sequence[int]],
    count: int,
    limit: int,
) -> ExactMoves | None:
    """Find the fewest moves that empty some sets of nodes.

    Args:
        sets: The nodes of each set; all pods on them are movers.
        count: How many of the sets; 0: all, as far as their pods have a place elsewhere.

    Returns:
        None: the program would be too large, or the limit is used up.
    """
    from ortools.sat.python import cp_model

    if limit <= 0 or _too_large(problem, movers):
        return None
    model = cp_model.CpModel()
    pods = _Movers(problem, model, movers)
    emptied = [model.new_bool_var("") if count else model.new_constant(1) for _ in sets]
    if count:
        model.add(sum(emptied) == count)
    asked: list[int] = []
    for nodes, empty in zip(sets, emptied, strict=True):
        on_nodes = [i for i in problem.on(nodes) if i in pods.moved]
        asked += on_nodes
        for i in on_nodes if count else ():
            model.add(pods.moved[i] >= empty)
        for _, variable in (pair for node in nodes for pair in pods.coming.get(node, ())):
            model.add(variable + empty <= 1)
    pods.limit_nodes({})
    solved = pods.solve(
        cp_model, limit, problem.request.budget, () if count else sorted(set(asked))
    )
    if solved.order is not None:
        moved = {i for i, _ in solved.order}
        ends = {node for _, node in solved.order}
        solved.chosen = tuple(
            number
            for number, nodes in enumerate(sets)
            if moved.issuperset(problem.on(nodes)) and ends.isdisjoint(nodes)
        )
    return solved


class _TreeAndMoves(EvictionModel):
    """The program that places a tree, and gives each pod that leaves for it another node."""

    def __init__(self, problem: MoveProblem, view: PostEvictionView) -> None:
        self.moves = problem
        units = ~view.none_evicted
        cost = CostModel(view.request, view.units, view.node_table)
        super().__init__(view, view.problem(units), cost, units, 0, frozenset())

    def _apart(self) -> Ints:
        """Return the nodes that a pod can be moved to."""
        return np.flatnonzero(self.moves.allowed.any(axis=0))

    def _node_capacities(self, users: dict[int, list[tuple[int, cp_model.IntVar]]]) -> None:
        asks = [self.moves.capacity.requests(shape) for shape in self.problem.shapes]
        self.pods = _Movers(self.moves, self.model, sorted(self.evicted), self.evicted)
        self.pods.limit_nodes(
            {node: [(asks[kind], v) for kind, v in pairs] for node, pairs in users.items()}
        )


def make_room_exactly(problem: MoveProblem, limit: int) -> ExactMoves | None:
    """Find the fewest moves after which the tree fits.

    Returns:
        None: the program would be too large.
    """
    if _too_large(problem, range(len(problem.request.movers))):
        return None
    view = PostEvictionView(problem.base, problem.node_table)
    assert len(view.units) == len(problem.request.movers), "no rule between pods counts a mover"
    program = _TreeAndMoves(problem, view)
    if not program.build(limit):
        return None
    return program.pods.solve(program.cp, limit, problem.request.budget)
