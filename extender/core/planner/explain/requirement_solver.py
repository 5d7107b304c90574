"""Solve a request with some of its requirements dropped or changed, within a number of solves and a part of its budget."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from extender.core.model.ids import GroupKey
from extender.core.planner.model.feasibility import admissible, satisfied_by_bound
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import Options, compile_request
from extender.core.planner.plan_types import (
    ConflictKind,
    ConflictPart,
    PlanGroup,
    PlanRequest,
)
from extender.core.planner.solve.solver_pipeline import solve

SOLVES_MIN = 48  # some milliseconds each on 5,000 nodes
SOLVES_MAX = 512
SOLVES_WORK = 250_000  # solves x nodes x groups, between both limits
PART_OF_BUDGET = 32  # one solve may spend this fraction of the budget of the request
TOTAL_PART = 4  # all solves for the conflict, or for the relaxations, may spend this fraction


class PlacementRequirement(msgspec.Struct, frozen=True):
    """A requirement that can be dropped."""

    kind: ConflictKind
    object: GroupKey
    message: str
    part: ConflictPart = ""


class RequirementSolver:
    """Solves changed requests, within a number of solves and of search nodes."""

    def __init__(self, request: PlanRequest, fleet: NodeTable) -> None:
        self.request = msgspec.structs.replace(
            request, budget=max(request.budget // PART_OF_BUDGET, 1)
        )
        self.fleet = fleet
        self.left = 0
        self.nodes = 0
        self.refill()

    def refill(self) -> None:
        """Reset both limits."""
        work = max(self.fleet.size * len(walk(self.request.root)), 1)
        self.left = min(max(SOLVES_WORK // work, SOLVES_MIN), SOLVES_MAX)
        self.nodes = self.request.budget * PART_OF_BUDGET // TOTAL_PART

    def fits(self, request: PlanRequest, fleet: NodeTable, options: Options) -> bool | None:
        """Return whether the minimum fits; None when a limit was reached first."""
        if self.left <= 0 or self.nodes < 0:
            return None
        self.left -= 1
        if not admissible(request.root):
            return False
        problem = compile_request(request, fleet, options)
        if problem.violations:
            return False
        if satisfied_by_bound(request.root):  # also where no node has the keys of its topology
            return True
        end = solve(request, fleet, options=options, maximise=False, problem=problem)
        self.nodes -= end.nodes
        return True if end.solution is not None else (False if end.proved else None)

    def without(self, dropped: set[PlacementRequirement]) -> bool | None:
        """Return whether the tree fits without some requirements; None when a limit was reached first."""
        kinds = {(r.kind, r.part) for r in dropped}
        options = Options(
            no_selectors=("selector", "") in kinds,
            no_rules=("selector", "podRules") in kinds,
            no_taints=("taint", "") in kinds,
            no_cordons=("taint", "cordons") in kinds,
            no_resources=("resources", "") in kinds,
            no_reservations=("reservation", "") in kinds,
        )
        edits = {(r.kind, r.object) for r in dropped}

        def loosen(group: PlanGroup) -> PlanGroup:
            if {("minCount", group.key), ("minGroupCount", group.key)} & edits:
                group = msgspec.structs.replace(group, basic=False, minimum=0)
            if ("topology", group.key) in edits:
                group = msgspec.structs.replace(group, topology=())
            return group

        root = map_groups(self.request.root, loosen)
        return self.fits(msgspec.structs.replace(self.request, root=root), self.fleet, options)


def map_groups(group: PlanGroup, change: Callable[[PlanGroup], PlanGroup]) -> PlanGroup:
    """Apply a change to every group of a tree."""
    children = tuple(map_groups(child, change) for child in group.groups)
    return change(msgspec.structs.replace(group, groups=children))


def walk(group: PlanGroup) -> list[PlanGroup]:
    """List the groups of a tree, parents first."""
    return [group, *(g for child in group.groups for g in walk(child))]
