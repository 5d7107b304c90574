"""The checkers of plans, refusals and victims share no code with the planner: only the types of its requests and results."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CHECKERS = (
    "tests/support/planning/brute_force_planner.py",
    "tests/support/planning/interpod_checker.py",
    "tests/support/planning/moves_checker.py",
    "tests/support/planning/plan_checker.py",
    "tests/support/planning/preemption_checker.py",
    "tests/support/planning/static_filters_checker.py",
    "tests/support/planning/wish_checker.py",
    "tests/support/refusals/exhaustive_search.py",
    "tests/support/refusals/refusal_checker.py",
)
TYPES = {"extender.core.planner.plan_types"}


def imported(path: str) -> set[str]:
    """Return the names of all modules that a file imports, anywhere in it."""
    modules = set()
    for part in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(part, ast.Import):
            modules |= {name.name for name in part.names}
        elif isinstance(part, ast.ImportFrom):
            base = part.module or ""
            modules |= {base, *(f"{base}.{name.name}" for name in part.names)}
    return modules


@pytest.mark.parametrize("path", CHECKERS)
def test_a_checker_imports_only_types_of_the_planner(path):
    """And of the tests only other checkers; of the rest of the service only values."""
    checkers = {name.removesuffix(".py").replace("/", ".") for name in CHECKERS}
    for module in imported(path):
        if module.startswith("extender.core.planner"):
            known = [name for name in TYPES if module == name or module.startswith(f"{name}.")]
            assert known, f"{path} imports {module}"
        elif module.startswith("extender"):
            assert module.startswith("extender.core.model"), f"{path} imports {module}"
        elif module.startswith("tests"):
            package = any(name.startswith(f"{module}.") for name in checkers)
            known = [name for name in checkers if module == name or module.startswith(f"{name}.")]
            assert package or known, f"{path} imports {module}"
