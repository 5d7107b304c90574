"""Integer programs are those of `ortools.sat.python.cp_model`, whose methods have no other use of pandas.

It fails where another version of OR-tools moves or changes what `IntegerProgram` uses of `cp_model_helper`.
"""

from __future__ import annotations

import operator
import random
import subprocess
import sys
import textwrap

import pytest
from ortools.sat.python import cp_model

from extender.core.planner.solve.integer_program import STEPS_PER_UNIT, IntegerProgram

LIMIT = 2_000


class CpModelProgram:
    """The methods of `IntegerProgram`, by the documented ones of OR-tools."""

    def __init__(self):
        self.model = cp_model.CpModel()
        self.proto = self.model.proto
        self.sum, self.weighted_sum = cp_model.LinearExpr.sum, cp_model.LinearExpr.weighted_sum
        self.add_implication = self.model.add_implication
        self.add_multiplication_equality = self.model.add_multiplication_equality
        self.minimize, self.maximize = self.model.minimize, self.model.maximize
        self.add_hint = self.model.add_hint

    def new_int_var(self, low, high):
        return self.model.new_int_var(low, high, "")

    def new_bool_var(self):
        return self.model.new_bool_var("")

    def add(self, relation, only_if=None):
        constraint = self.model.add(relation)
        if only_if is not None:
            constraint.only_enforce_if(only_if)

    def solve(self):
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.linearization_level = 2
        solver.parameters.max_deterministic_time = LIMIT / STEPS_PER_UNIT
        return solver.solve(self.model), solver


def build(program, rng: random.Random) -> list:
    """Build a program with every kind of row that the planner has; return its variables."""
    flags = [program.new_bool_var() for _ in range(rng.randint(1, 5))]
    numbers = [program.new_int_var(rng.randint(-5, 0), rng.randint(1, 9)) for _ in range(6)]
    variables = flags + numbers

    def total():
        amounts = [rng.randint(-3, 4) for _ in variables]
        return rng.choice((
            lambda: program.weighted_sum(variables, amounts),
            lambda: program.sum(rng.sample(variables, 3)) - rng.randint(0, 5),
            lambda: sum(a * v for a, v in zip(amounts, variables, strict=True)) + rng.randint(0, 5),
            lambda: 3 * rng.choice(flags) - numbers[0] + numbers[0],
            lambda: program.sum([]) + rng.choice(numbers),
        ))()  # fmt: skip

    for _ in range(rng.randint(1, 6)):
        first, second = total(), rng.choice((total(), rng.randint(-20, 20)))
        relation = rng.choice((operator.le, operator.ge, operator.eq))(first, second)
        flag = rng.choice(flags)
        program.add(relation, rng.choice((None, flag, ~flag)))
    program.add_implication(rng.choice(flags), rng.choice(flags))
    product = program.new_int_var(-81, 81)
    program.add_multiplication_equality(product, rng.sample(numbers, 2))
    for _ in range(rng.randint(0, 2)):  # the last one counts
        rng.choice((program.minimize, program.maximize))(total() + product)
    for variable in rng.sample(variables, 2):
        program.add_hint(variable, rng.randint(0, 1))
    return [*variables, product]


@pytest.mark.parametrize("seed", range(60))
def test_a_program_and_its_solution_are_those_of_cp_model(seed):
    program, oracle = IntegerProgram(), CpModelProgram()
    variables = build(program, random.Random(seed))
    build(oracle, random.Random(seed))
    assert str(program.proto) == str(oracle.proto)
    response = program.solve(LIMIT)
    status, solver = oracle.solve()
    outcomes = {"best": cp_model.OPTIMAL, "found": cp_model.FEASIBLE, "none": cp_model.INFEASIBLE}
    assert outcomes.get(response.outcome, cp_model.UNKNOWN) == status
    assert response.steps == int(solver.deterministic_time * STEPS_PER_UNIT) + 1
    assert response.proto.best_objective_bound == solver.best_objective_bound
    if response.outcome in {"best", "found"}:
        values = [response.value(variable) for variable in variables]
        assert values == [solver.value(variable) for variable in variables]
        program.hint_all(response)
        assert list(program.proto.solution_hint.values) == values


def test_the_programs_of_all_outcomes_are_tried():
    responses = []
    for seed in range(60):
        program = IntegerProgram()
        build(program, random.Random(seed))
        responses.append(program.solve(LIMIT).outcome)
    assert {"best", "none"} <= set(responses)


def test_a_program_is_solved_without_pandas():
    script = """
        import sys
        from extender.core.planner.solve.integer_program import IntegerProgram
        program = IntegerProgram()
        count = program.new_int_var(0, 9)
        program.add(2 * count <= 9)
        program.maximize(count)
        print(program.solve(1_000).value(count), "pandas" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["4", "False"]
