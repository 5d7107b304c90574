"""The explanation where bound members are in no common domain: which constraint they contradict, and what to drop."""

from __future__ import annotations

from extender.core.planner.explain.minimal_conflict import topology_text
from extender.core.planner.explain.relaxations import without_topology
from extender.core.planner.explain.requirement_solver import RequirementSolver
from extender.core.planner.explain.tree_forms import walk
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import PlacementProblem
from extender.core.planner.plan_types import Conflict, PlanRequest, Relaxation

NOTHING_NEW = "; nothing new is placed"  # end of the reason, which the conflict does not repeat


def contradicted_topology(problem: PlacementProblem) -> Conflict:
    """Return the topology constraint of the first group whose bound members contradict it, with these members and their domains."""
    text, key = problem.violations[0], problem.violated[0]
    group = next(g.source for g in problem.groups if g.source.key == key)
    bound = text.removeprefix(f"{key.kind} {key.path}: ").removesuffix(NOTHING_NEW)
    return Conflict(
        kind="topology", object=str(key), message=f"{topology_text(group)}, but {bound}"
    )


def without_contradicted_topology(
    request: PlanRequest, fleet: NodeTable, problem: PlacementProblem
) -> tuple[Relaxation, ...]:
    """Return that the contradicted constraints are dropped, if the tree fits then."""
    dropped = set(problem.violated)
    groups = [group for group in walk(request.root) if group.key in dropped]
    found = without_topology(RequirementSolver(request, fleet), groups)
    return (found,) if found is not None else ()
