"""The cheapest changes of a request with which its tree fits, each confirmed by a solve."""

from __future__ import annotations

import msgspec

from extender.core.planner.explain.more_nodes import more_nodes
from extender.core.planner.explain.requirement_solver import (
    PlacementRequirement,
    RequirementSolver,
)
from extender.core.planner.explain.tree_forms import GroupChange, walk
from extender.core.planner.model.feasibility import threshold
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import Options
from extender.core.planner.plan_types import PlanNode
from extender.core.planner.solve.solver_pipeline import Solved

RELAXATIONS_MAX = 5


def relaxations(
    solver: RequirementSolver, solved: Solved, conflict: list[PlacementRequirement]
) -> tuple[str, ...]:
    """Try the cheapest relaxations, and return those with which the tree fits."""
    solver.refill()
    found: list[str] = []
    found.extend(_lower_minimum(solver, conflict))

    def fits_with(new: tuple[PlanNode, ...]) -> bool:
        request = msgspec.structs.replace(solver.request, nodes=solver.request.nodes + new)
        return solver.fits(request, NodeTable(request.nodes), Options()) is True

    found.extend(more_nodes(solved, fits_with))
    words = {
        "reservation": "the capacity reserved for other trees becomes free",
        "taint": "tolerate the taints of the nodes, or uncordon them",
        "selector": "drop the rules about other pods, or the node selectors"
        if solver.request.rules
        else "drop the node selectors",
    }
    for r in conflict:
        if len(found) >= RELAXATIONS_MAX:
            break
        if r.kind in words and solver.without({r}):
            found.append(words[r.kind])
        if r.kind == "topology" and solver.without({r}):
            keys = r.message.removeprefix("all pods in one ")
            found.append(f"drop {keys} at {r.object.kind} {r.object.path}")
    return tuple(found[:RELAXATIONS_MAX])


def _lower_minimum(solver: RequirementSolver, conflict: list[PlacementRequirement]) -> list[str]:
    """Find, for one group at a time, the largest minimum with which the tree fits; of interchangeable groups for the first."""
    found: list[tuple[int, str]] = []
    tried: set[int] = set()
    groups = {group.key: group for group in walk(solver.request.root)}
    for r in conflict:
        if r.kind not in {"minCount", "minGroupCount"} or len(found) >= RELAXATIONS_MAX:
            continue
        form = solver.form({r.object: GroupChange(minimum=0)})
        if form in tried:
            continue
        tried.add(form)
        now = threshold(groups[r.object])
        best, low, high = 0, 1, now - 1
        while low <= high:
            middle = (low + high) // 2
            if solver.fits_with({r.object: GroupChange(minimum=middle)}):
                best, low = middle, middle + 1
            else:
                high = middle - 1
        if best:
            text = f"{r.kind} {best} instead of {now} at {r.object.kind} {r.object.path}"
            found.append((now - best, text))
    return [text for _, text in sorted(found)]
