"""Turn the counts of a solution into a plan: a node for each member, extra members, unplaced members and why."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted
from extender.core.planner.explain.rank_order import (
    is_ranked,
    rank_outcomes,
    seats_by_rank,
    with_groups_in_order,
)
from extender.core.planner.model.node_scores import uncounted_preferences
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem, given
from extender.core.planner.plan_types import (
    Assignment,
    Placement,
    Plan,
    PlanGroup,
    PlanRequest,
    SearchEffort,
    WishOutcome,
    domain_keys,
    group_name,
    object_key,
    waiting_reasons,
)
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.solver_pipeline import Solved


def make_plan(request: PlanRequest, solved: Solved) -> Plan:
    """Return the plan for the solution of a search."""
    problem = solved.problem
    solution = with_groups_in_order(request, problem, solved.solution or {})
    needed = _needed(problem, solution)
    assignments: list[Assignment] = []
    unplaced: list[str] = []
    seats: dict[int, dict[int, int]] = {}  # leaf -> position -> node
    rows = problem.node_table.nodes
    for group in problem.groups:
        if not group.source.members:
            continue
        nodes = _seats(request, problem, group, solution.get(group.index, {}))
        seats[group.index] = nodes
        must = needed.get(group.index, 0)
        key = object_key(group.source.key)
        for position, member in enumerate(group.source.members):
            if (node := nodes.get(position)) is None:
                unplaced.append(member.pod)
                continue
            must -= 1
            assignments.append(
                Assignment(
                    pod=member.pod,
                    uid=member.uid,
                    group=key,
                    node=rows[node].name,
                    shape=member.shape,
                    extra=must < 0,
                )
            )
    return Plan(
        placements=_placements(problem, solution),
        assignments=tuple(sorted(assignments, key=attrgetter("pod"))),
        unplaced=tuple(sorted(unplaced)),
        search=SearchEffort(nodes=solved.nodes, exhausted=solved.proved),
        reasons=_left_out(problem, solution, solved),
        given=(
            *given(request, problem, limited=bool(unplaced)),
            *dict.fromkeys(uncounted_preferences(request)),
        ),
        wishes=(*solved.wishes, *rank_outcomes(request, problem, seats)),
    )


def without_extras(request: PlanRequest, planned: Plan) -> Plan:
    """Return a plan without its extra members: minima of other trees come before them.

    Nor has it the wishes of the groups that these members belong to, and the domains of those that have no other ones; the plan
    that places them has them.
    """
    later = {a.group for a in planned.assignments if a.extra}
    pods = [a.pod for a in planned.assignments if a.extra]
    kept = {a.uid for a in planned.assignments if not a.extra}
    touched: set[GroupKey] = set()
    with_pods: set[GroupKey] = set()

    def mark(group: PlanGroup) -> None:
        for child in group.groups:
            mark(child)
        below = {child.key for child in group.groups}
        if group.key in later or below & touched:
            touched.add(group.key)
        if group.bound or below & with_pods or any(m.uid in kept for m in group.members):
            with_pods.add(group.key)

    mark(request.root)
    text = f"{counted(len(pods), 'member')} beyond the minimum: planned after the minima of the other trees that wait"
    return msgspec.structs.replace(
        planned,
        placements=tuple(p for p in planned.placements if p.group in with_pods),
        assignments=tuple(a for a in planned.assignments if not a.extra),
        unplaced=tuple(sorted((*planned.unplaced, *pods))),
        reasons=(*planned.reasons, text) if pods else planned.reasons,
        wishes=tuple(
            _without_proof(wish) if pods else wish
            for wish in planned.wishes
            if not touched & {wish.group, wish.partner}
        ),
    )


def _without_proof(wish: WishOutcome) -> WishOutcome:
    """Return an outcome that claims no more than holds where fewer pods are placed."""
    if wish.kind == "rank":  # it is about the seats that the group has
        return wish
    least = 1 if wish.kind == "preferred" else 0
    values = [msgspec.structs.replace(v, best=min(v.best, least)) for v in wish.values]
    if wish.largest:  # no domain of the first key holds the group, whatever else is placed
        values[0] = msgspec.structs.replace(values[0], best=min(wish.values[0].best, 2))
    return msgspec.structs.replace(wish, values=tuple(values))


def _seats(
    request: PlanRequest,
    problem: PlacementProblem,
    leaf: CompiledGroup,
    placed: dict[int, dict[int, int]],
) -> dict[int, int]:
    """Assign the first members of each kind to its nodes: each to its node of an earlier plan where possible, then by rank."""
    seats: dict[int, int] = {}
    free: dict[int, dict[int, int]] = {}
    left: dict[int, list[int]] = {}
    members, index = leaf.source.members, problem.node_table.index
    for kind, nodes in placed.items():
        places = free[kind] = dict(nodes)
        others: list[int] = []
        for position in leaf.members[kind][: sum(nodes.values())]:
            preferred_node = members[position].prefer
            node = index.get(preferred_node) if preferred_node is not None else None
            if node is not None and places.get(node, 0) > 0:
                seats[position] = node
                places[node] -= 1
            else:
                others.append(position)
        if others:
            left[kind] = others
    if left and is_ranked(leaf.source):
        return seats | seats_by_rank(request, problem, leaf, given=seats, left=left, free=free)
    for kind, positions in left.items():
        rest = (n for n in sorted(free[kind]) for _ in range(free[kind][n]))
        seats.update(zip(positions, rest, strict=False))
    return seats


def _needed(problem: PlacementProblem, solution: Solution) -> dict[int, int]:
    """Return per leaf how many new pods belong to the minimum: the fewest that satisfy the root."""
    groups = problem.groups
    cost: list[int | None] = [None] * len(groups)
    for group in reversed(groups):
        if group.leaf:
            new = sum(sum(n.values()) for n in solution.get(group.index, {}).values())
            need = max(0, group.minimum - group.bound)
            cost[group.index] = need if new >= need else None
            continue
        if not group.alive:  # a required child may be absent, however many of the others hold
            continue
        costs = [c for i in _counted(group, groups, cost) if (c := cost[i]) is not None]
        if len(costs) >= group.minimum:
            cost[group.index] = sum(costs)
    needed: dict[int, int] = {}

    def choose(group: CompiledGroup) -> None:
        if group.leaf:
            needed[group.index] = max(0, group.minimum - group.bound)
            return
        for child in _counted(group, groups, cost):
            choose(groups[child])

    choose(groups[0])
    return needed


def _counted(
    group: CompiledGroup, groups: list[CompiledGroup], cost: list[int | None]
) -> list[int]:
    """Return the children that the minimum of a composite counts: the required ones, then those with the fewest new pods.

    None of them if a required one is not satisfied.
    """
    able = [(not groups[i].required, c, i) for i in group.children if (c := cost[i]) is not None]
    if sum(not optional for optional, _, _ in able) < sum(
        groups[i].required for i in group.children
    ):
        return []
    return [index for _, _, index in sorted(able)[: group.minimum]]


def _placements(problem: PlacementProblem, solution: Solution) -> tuple[Placement, ...]:
    """Return the domain of every constrained group that has a pod, new or bound."""
    groups = problem.groups
    some: list[int] = [-1] * len(groups)  # a node of some new pod below
    for group in reversed(groups):
        for nodes in solution.get(group.index, {}).values():
            some[group.index] = min(nodes)
        if group.parent >= 0 and some[group.index] >= 0:
            some[group.parent] = some[group.index]
    placements: list[Placement] = []
    for group in groups:
        keys = domain_keys(group.source)
        if not keys:
            continue
        domain = group.pinned
        if some[group.index] >= 0:
            domain = int(group.level.domain[some[group.index]])
        if domain >= 0:
            values = dict(zip(group.level.keys, group.level.values[domain], strict=True))
            chosen = tuple((k, values[k]) for k in keys)
            placements.append(Placement(group=group.source.key, domain=chosen))
    return tuple(placements)


def _left_out(problem: PlacementProblem, solution: Solution, solved: Solved) -> tuple[str, ...]:
    """Return per leaf the reason why members are not placed."""
    lines: list[str] = []
    for group in problem.groups:
        name = group_name(group.source.key)
        parent_alive = group.parent < 0 or problem.groups[group.parent].alive
        if not group.alive:
            if parent_alive:
                lines.extend(waiting_reasons(group.source))
            continue
        new = sum(sum(n.values()) for n in solution.get(group.index, {}).values())
        out = group.size - new
        if not out:
            continue
        reason = "no more fit" if solved.proved else "no place found within the budget"
        if group.source.basic:  # each for itself
            lines.append(f"{name}: {out} of {group.size} not placed: {reason}")
        elif new + group.bound >= group.minimum:
            lines.append(
                f"{name}: {out} beyond the minimum of {group.minimum} not placed: {reason}"
            )
        else:
            lines.append(
                f"{name}: none of {group.size} placed, {group.least} needed together: {reason}; "
                "the tree holds without it"
            )
    return tuple(lines)
