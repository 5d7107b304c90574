"""A small set of requirements that cannot hold together: each is needed, dropping it could make the rest satisfiable."""

from __future__ import annotations

from extender.core.planner.explain.requirement_solver import (
    PlacementRequirement,
    RequirementSolver,
)
from extender.core.planner.model.feasibility import admissible, is_leaf, threshold
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.plan_types import PlanGroup, PlanRequest


def requirements_of(request: PlanRequest, fleet: NodeTable) -> list[PlacementRequirement]:
    """List what can be dropped, the least informative requirements first: these are dropped first."""
    root = request.root.key
    groups = _taking_part(request.root)
    used = {m.shape for g in groups for m in g.members}
    shapes = [request.shapes[s] for s in sorted(used)]
    out: list[PlacementRequirement] = []
    if any(n.reserved for n in request.nodes):
        names = [n.name for n in request.nodes if n.reserved]
        text = f"capacity on {len(names)} nodes is reserved for other trees"
        out.append(PlacementRequirement("reservation", root, text))
    if len(fleet.taints()[1]) > 1 or any(fleet.taints()[1]) or bool(fleet.cordoned().any()):
        out.append(PlacementRequirement("taint", root, "taints and cordons of nodes are respected"))
    if request.rules:
        text = "node selectors, required affinity and rules about other pods hold"
        out.append(PlacementRequirement("selector", root, text))
    elif any(s.node_selector or s.selectors for s in shapes):
        out.append(
            PlacementRequirement("selector", root, "node selectors and required affinity hold")
        )
    for group in groups:
        if is_leaf(group):
            text = f"at least {threshold(group)} pods together"
            out.append(PlacementRequirement("minCount", group.key, text))
    for group in reversed(groups):
        if not is_leaf(group):
            text = f"at least {threshold(group)} of {len(group.groups)} child groups together"
            out.append(PlacementRequirement("minGroupCount", group.key, text))
    for group in groups:
        if group.topology:
            text = f"all pods in one {' and '.join(group.topology)}"
            out.append(PlacementRequirement("topology", group.key, text))
    out.append(PlacementRequirement("resources", root, "pods fit the free capacity of their nodes"))
    return out


def _taking_part(group: PlanGroup) -> list[PlanGroup]:
    """List the admissible groups of a tree, parents first."""
    if not admissible(group):
        return []
    return [group, *(g for child in group.groups for g in _taking_part(child))]


def minimal_conflict(
    solver: RequirementSolver, requirements: list[PlacementRequirement]
) -> list[PlacementRequirement]:
    """Drop requirements as long as the rest still conflicts; halves first, so that many are dropped at once.

    If one of several interchangeable requirements is needed, all of them are: one solve settles them.
    """
    dropped: set[PlacementRequirement] = set()

    def filter_out(part: list[PlacementRequirement]) -> None:
        if not part or solver.exhausted:
            return
        if solver.without(dropped | set(part)) is False:
            dropped.update(part)
        elif len(part) > 1:
            alike = solver.most_alike(dropped, part)
            if len(alike) > 1 and solver.without({*dropped, alike[0]}):
                filter_out([r for r in part if r not in set(alike)])
                return
            half = len(part) // 2
            filter_out(part[:half])
            filter_out(part[half:])

    split = [r for r in requirements if r.kind in {"reservation", "taint", "selector"}]
    filter_out(split)
    for kind in ("minCount", "minGroupCount", "topology", "resources"):
        filter_out([r for r in requirements if r.kind == kind])
    return [r for r in requirements if r not in dropped]
