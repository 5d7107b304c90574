"""Integer programs for CP-SAT: variables, constraints, an objective and hints, and what the solver answers.

The methods are those of `ortools.sat.python.cp_model`, and make the same protocol buffers. That module loads pandas for methods that
nothing needs here: half a second of CPU time and 42 MB in each process that solves. So this one uses what that module is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import (
        BoundedLinearExpression,
        CpSolverResponse,
        IntVar,
        LinearExpr,
    )
    from ortools.sat.python.cp_model_helper import Literal as BoolVar

Relation: TypeAlias = "BoundedLinearExpression | bool"  # the stubs have a bool for each comparison
ROWS_PER_STEP = 6  # variables and constraints, built and presolved in the time of one search node
STEPS_PER_UNIT = 20_000  # search nodes for one unit of the deterministic time of the solver
UNBOUNDED = (-(1 << 63), (1 << 63) - 1)  # the ends of a domain that has none

SolveOutcome = Literal["best", "found", "none", "unknown"]
"""`best`: optimal. `found`: valid, perhaps not optimal. `none`: proved that no solution exists."""


class IntegerProgram:
    """A program to minimise or maximise; without an objective any solution is the best."""

    def __init__(self) -> None:
        # takes a twentieth of a second to load, so only what solves a program does
        from ortools.sat.python import cp_model_helper

        self._cp = cp_model_helper
        self.proto = cp_model_helper.CpModelProto()
        self.sum = cp_model_helper.LinearExpr.sum
        self.weighted_sum = cp_model_helper.LinearExpr.weighted_sum

    def built(self) -> int:
        """Return what building the program costs, in search nodes."""
        return (len(self.proto.variables) + len(self.proto.constraints)) // ROWS_PER_STEP

    def new_int_var(self, low: int, high: int) -> IntVar:
        """Return a new variable between two numbers, both included."""
        variable = self._cp.IntVar(self.proto)
        variable.proto.domain.extend((low, high))
        return variable

    def new_bool_var(self) -> IntVar:
        """Return a new variable that is 0 or 1."""
        return self.new_int_var(0, 1)

    def add(self, relation: Relation, only_if: BoolVar | None = None) -> None:
        """Add a linear constraint, given as a comparison of expressions; one with `only_if` holds where that is 1."""
        assert not isinstance(relation, bool), "a comparison of two numbers has no variable"
        constraint = self.proto.constraints.add()
        linear, offset = constraint.linear, relation.offset
        linear.vars.extend([variable.index for variable in relation.vars])
        linear.coeffs.extend(relation.coeffs)
        bounds = relation.bounds.flattened_intervals()
        linear.domain.extend([end if end in UNBOUNDED else end - offset for end in bounds])
        if only_if is not None:
            constraint.enforcement_literal.append(only_if.index)

    def add_implication(self, first: BoolVar, second: BoolVar) -> None:
        """Require a boolean where another is 1."""
        constraint = self.proto.constraints.add()
        constraint.enforcement_literal.append(first.index)
        constraint.bool_and.literals.append(second.index)

    def add_multiplication_equality(self, target: IntVar, factors: Sequence[IntVar]) -> None:
        """Require a variable to be the product of some others."""
        product = self.proto.constraints.add().int_prod
        for expression, variable in (
            (product.target, target),
            *((product.exprs.add(), factor) for factor in factors),
        ):
            expression.vars.append(variable.index)
            expression.coeffs.append(1)

    def minimize(self, expression: LinearExpr) -> None:
        """Replace the objective."""
        self._aim(expression, 1)

    def maximize(self, expression: LinearExpr) -> None:
        """Replace the objective."""
        self._aim(expression, -1)

    def _aim(self, expression: LinearExpr, sign: int) -> None:
        flat = self._cp.FlatIntExpr(expression)
        self.proto.clear_objective()
        objective = self.proto.objective
        objective.vars.extend([variable.index for variable in flat.vars])
        objective.coeffs.extend([sign * factor for factor in flat.coeffs])
        objective.scaling_factor, objective.offset = sign, sign * flat.offset

    def add_hint(self, variable: IntVar, value: int) -> None:
        """Let the search begin with a value of a variable."""
        self.proto.solution_hint.vars.append(variable.index)
        self.proto.solution_hint.values.append(value)

    def hint_all(self, response: Response) -> None:
        """Replace all hints by a solution."""
        self.proto.clear_solution_hint()
        self.proto.solution_hint.vars.extend(range(len(self.proto.variables)))
        self.proto.solution_hint.values.extend(response.proto.solution)

    def solve(self, limit: int, linearization_level: int = 2) -> Response:
        """Solve the program within so many search nodes.

        One worker, a fixed seed, and a limit counted in steps of the solver: a replay gives the same result.

        Args:
            linearization_level: 2: proofs of placements need the relaxation, 0.02 s instead of 10 s.
        """
        parameters = self._cp.SatParameters()
        parameters.num_workers = 1
        parameters.random_seed = 0
        parameters.linearization_level = linearization_level
        parameters.max_deterministic_time = max(limit / STEPS_PER_UNIT, 0.01)
        solver: Any = self._cp.SolveWrapper()  # no stub of `solve` has types
        solver.set_parameters(parameters)
        proto = solver.solve(self.proto)
        status = self._cp.CpSolverStatus
        outcomes: dict[Any, SolveOutcome] = {
            status.OPTIMAL: "best",
            status.FEASIBLE: "found",
            status.INFEASIBLE: "none",
        }
        return Response(outcomes.get(proto.status, "unknown"), proto)


@dataclass(frozen=True, slots=True)
class Response:
    """What the solver answered."""

    outcome: SolveOutcome
    proto: CpSolverResponse

    @property
    def steps(self) -> int:
        """Return the search nodes that the solver has spent, by its deterministic time."""
        return int(self.proto.deterministic_time * STEPS_PER_UNIT) + 1

    def value(self, variable: IntVar) -> int:
        """Return the value of a variable in the solution; there is one where the outcome is `best` or `found`."""
        value: int = self.proto.solution[variable.index]
        return value
