"""Why a tree cannot be placed: a small set of requirements that conflict, and the cheapest relaxations.

Every statement is checked by a solve: a requirement is in the conflict only if dropping it (and those
dropped before) could make the rest satisfiable, and a relaxation is listed only after a solve found a
placement with it. Bounded by a number of solves and by a part of the search budget of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from extender.core.model.ids import GroupKey
from extender.core.planner.explain.more_nodes import more_nodes
from extender.core.planner.explain.shortfalls import diagnose
from extender.core.planner.model.feasibility import admissible, is_leaf, threshold
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import Options, compile_request
from extender.core.planner.plan_types import (
    Conflict,
    ConflictKind,
    PlanGroup,
    PlanNode,
    PlanRequest,
)
from extender.core.planner.solve.solver_pipeline import Solved, solve

SOLVES_MAX = 48  # some milliseconds each on 5,000 nodes
PART_OF_BUDGET = 32  # one solve may spend this fraction of the budget of the request
TOTAL_PART = 4  # all solves for the conflict, or for the relaxations, may spend this fraction
RELAXATIONS_MAX = 5


@dataclass(slots=True)
class RefusalExplanation:
    """The texts of a refusal."""

    reasons: tuple[str, ...]
    conflict: tuple[Conflict, ...] = ()
    relaxations: tuple[str, ...] = ()


class PlacementRequirement(msgspec.Struct, frozen=True):
    """A requirement that can be dropped."""

    kind: ConflictKind
    object: GroupKey
    message: str


class _Solver:
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
        self.left = SOLVES_MAX
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
        end = solve(request, fleet, options=options, maximise=False, problem=problem)
        self.nodes -= end.nodes
        return True if end.solution is not None else (False if end.proved else None)

    def without(self, dropped: set[PlacementRequirement]) -> bool | None:
        """Return whether the tree fits without some requirements; None when a limit was reached first."""
        kinds = {r.kind for r in dropped}
        options = Options(
            no_selectors="selector" in kinds,
            no_taints="taint" in kinds,
            no_resources="resources" in kinds,
            no_reservations="reservation" in kinds,
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


def explain(request: PlanRequest, fleet: NodeTable, solved: Solved) -> RefusalExplanation:
    """Return the reasons why a tree that is proved impossible does not fit, and what would make it fit."""
    solver = _Solver(request, fleet)
    rest = _conflict(solver, _requirements(request, fleet))
    conflict = tuple(Conflict(kind=r.kind, object=str(r.object), message=r.message) for r in rest)
    return RefusalExplanation(diagnose(solved), conflict, _relaxations(solver, solved, rest))


# --- the conflict ------------------------------------------------------------------------------------


def _requirements(request: PlanRequest, fleet: NodeTable) -> list[PlacementRequirement]:
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


def _conflict(
    solver: _Solver, requirements: list[PlacementRequirement]
) -> list[PlacementRequirement]:
    """Drop requirements as long as the rest still conflicts; halves first, so that many are dropped at once."""
    dropped: set[PlacementRequirement] = set()

    def filter_out(part: list[PlacementRequirement]) -> None:
        if not part:
            return
        if solver.without(dropped | set(part)) is False:
            dropped.update(part)
        elif len(part) > 1:
            half = len(part) // 2
            filter_out(part[:half])
            filter_out(part[half:])

    split = [r for r in requirements if r.kind in {"reservation", "taint", "selector"}]
    filter_out(split)
    for kind in ("minCount", "minGroupCount", "topology", "resources"):
        filter_out([r for r in requirements if r.kind == kind])
    return [r for r in requirements if r not in dropped]


# --- relaxations -------------------------------------------------------------------------------------


def _relaxations(
    solver: _Solver, solved: Solved, conflict: list[PlacementRequirement]
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


def _lower_minimum(solver: _Solver, conflict: list[PlacementRequirement]) -> list[str]:
    """Find, for one group at a time, the largest minimum with which the tree fits."""
    found: list[tuple[int, str]] = []
    for r in conflict:
        if r.kind not in {"minCount", "minGroupCount"} or len(found) >= RELAXATIONS_MAX:
            continue
        group = next(g for g in _walk(solver.request.root) if g.key == r.object)
        now = threshold(group)
        best, low, high = 0, 1, now - 1
        while low <= high:
            middle = (low + high) // 2
            if _with_minimum(solver, r.object, middle):
                best, low = middle, middle + 1
            else:
                high = middle - 1
        if best:
            text = f"{r.kind} {best} instead of {now} at {r.object.kind} {r.object.path}"
            found.append((now - best, text))
    return [text for _, text in sorted(found)]


def _with_minimum(solver: _Solver, key: GroupKey, minimum: int) -> bool:
    def lower(group: PlanGroup) -> PlanGroup:
        if group.key != key:
            return group
        return msgspec.structs.replace(group, minimum=minimum)

    root = map_groups(solver.request.root, lower)
    request = msgspec.structs.replace(solver.request, root=root)
    return solver.fits(request, solver.fleet, Options()) is True


def _walk(group: PlanGroup) -> list[PlanGroup]:
    return [group, *(g for child in group.groups for g in _walk(child))]
