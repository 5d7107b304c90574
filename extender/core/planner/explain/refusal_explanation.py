"""Why a tree cannot be placed: a small set of requirements that conflict, and the cheapest relaxations.

Every statement is checked by a solve: a requirement is in the conflict only if dropping it (and those
dropped before) could make the rest satisfiable, and a relaxation is listed only after a solve found a
placement with it. Bounded by a number of solves and by a part of the search budget of the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from extender.core.planner.explain.minimal_conflict import minimal_conflict, requirements_of
from extender.core.planner.explain.relaxations import relaxations
from extender.core.planner.explain.requirement_solver import RequirementSolver
from extender.core.planner.explain.shortfalls import diagnose
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import Conflict, PlanRequest
from extender.core.planner.solve.solver_pipeline import Solved


@dataclass(slots=True)
class RefusalExplanation:
    """The texts of a refusal."""

    reasons: tuple[str, ...]
    conflict: tuple[Conflict, ...] = ()
    relaxations: tuple[str, ...] = ()


def explain(request: PlanRequest, fleet: NodeTable, solved: Solved) -> RefusalExplanation:
    """Return the reasons why a tree that is proved impossible does not fit, and what would make it fit."""
    solver = RequirementSolver(request, fleet)
    rest = minimal_conflict(solver, requirements_of(request, fleet))
    conflict = tuple(Conflict(kind=r.kind, object=str(r.object), message=r.message) for r in rest)
    return RefusalExplanation(diagnose(solved), conflict, relaxations(solver, solved, rest))
