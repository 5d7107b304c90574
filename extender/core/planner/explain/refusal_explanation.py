"""Why a tree cannot be placed: a small set of requirements that conflict, and the cheapest relaxations.

Every statement is checked by a solve: a requirement is in the conflict only if dropping it (and those
dropped before) could make the rest satisfiable, and a relaxation is listed only after a solve found a
placement with it. Where bound members are in no common domain, the conflict is the constraint that they contradict.
The search is bounded by a number of solves and by a part of the search budget of the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from extender.core.planner.explain.minimal_conflict import (
    minimal_conflict,
    requirements_of,
    topology_text,
)
from extender.core.planner.explain.relaxation_solver import RequirementSolver
from extender.core.planner.explain.relaxations import relaxations, without_topology
from extender.core.planner.explain.shortfalls import diagnose
from extender.core.planner.explain.tree_variants import walk
from extender.core.planner.model.leaf_slices import group_name, object_key
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import PlacementProblem
from extender.core.planner.plan_types import (
    Conflict,
    NodeRejection,
    PlanRequest,
    Relaxation,
)
from extender.core.planner.solve.solver_pipeline import Solved

NOTHING_NEW = "; nothing new is placed"  # end of the reason, which the conflict does not repeat


def contradicted_topology(problem: PlacementProblem) -> Conflict:
    """Return the topology constraint of the first group whose bound members contradict it, with these members and their domains."""
    text, key = problem.violations[0], problem.violated[0]
    group = next(g.source for g in problem.groups if g.source.key == key)
    bound = text.removeprefix(f"{group_name(key)}: ").removesuffix(NOTHING_NEW)
    return Conflict(
        kind="topology", object=str(object_key(key)), message=f"{topology_text(group)}, but {bound}"
    )


def without_contradicted_topology(
    request: PlanRequest, node_table: NodeTable, problem: PlacementProblem
) -> tuple[Relaxation, ...]:
    """Return that the contradicted constraints are dropped, if the tree fits then."""
    dropped = set(problem.violated)
    groups = [group for group in walk(request.root) if group.key in dropped]
    relaxation = without_topology(RequirementSolver(request, node_table), groups)
    return (relaxation,) if relaxation is not None else ()


@dataclass(slots=True)
class RefusalExplanation:
    """The texts of a refusal."""

    reasons: tuple[str, ...]
    conflict: tuple[Conflict, ...] = ()
    changes: tuple[Relaxation, ...] = ()


def explain(
    request: PlanRequest,
    node_table: NodeTable,
    solved: Solved,
    rejected_nodes: tuple[NodeRejection, ...] = (),
) -> RefusalExplanation:
    """Return the reasons why a tree that is proved impossible does not fit, and what would make it fit.

    Args:
        rejected_nodes: Node rejections in spite of which a change must make the tree fit.
    """
    solver = RequirementSolver(request, node_table)
    rest = minimal_conflict(solver, requirements_of(request, node_table))
    conflict = tuple(
        Conflict(kind=r.kind, object=str(object_key(r.object)), message=r.message, part=r.part)
        for r in rest
    )
    changes = relaxations(solver, solved, rest, rejected_nodes)
    return RefusalExplanation(diagnose(request, solved), conflict, changes)


def explain_contradiction(
    request: PlanRequest, node_table: NodeTable, problem: PlacementProblem
) -> RefusalExplanation:
    """Return the explanation of a tree whose bound members are in no common domain."""
    reasons = tuple(problem.violations)
    if not request.explain:
        return RefusalExplanation(reasons)
    changes = without_contradicted_topology(request, node_table, problem)
    return RefusalExplanation(reasons, (contradicted_topology(problem),), changes)
