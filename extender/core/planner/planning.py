"""The entry point of the planner: `plan` turns a request into a plan or a refusal.

Pure: the same request gives the same bytes on any machine. The search budget is counted in search nodes
(domains tried, and the branches and conflicts of CP-SAT), never in time.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from extender.core.model.message_formatting import counted
from extender.core.planner.explain.plan_builder import make_plan, without_extras
from extender.core.planner.explain.refusal_causes import diagnose
from extender.core.planner.explain.relaxations import explain, explain_contradiction
from extender.core.planner.model.node_table import FIT_MAX, NodeTable
from extender.core.planner.model.problem import Options, compile_request, given
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import (
    GIVEN,
    SEARCH_BUDGET,
    SECONDS_OF_BUDGET,
    Feasibility,
    Plan,
    PlanExclusive,
    PlanGroup,
    PlanRequest,
    PlanRule,
    Refusal,
    SearchEffort,
    Verdict,
    WhenEmpty,
    admissible,
    map_groups,
    waiting_reasons,
)
from extender.core.planner.solve.preferred_topology import NotAtOnce, grant_preferred, has_wishes
from extender.core.planner.solve.solver_pipeline import Solved, greedy_limit, solve, solve_at_once

BUDGET_STEP: Final = 10  # the larger budget that an unknown refusal proposes, as a multiple
BUDGET_WHEN_EMPTY: Final = SEARCH_BUDGET // 8  # search nodes of the second plan
DeferredWork: TypeAlias = Literal["explain", "search"]


def plan(request: PlanRequest, *, node_table: NodeTable | None = None) -> Verdict:
    """Place a tree: its minimum first, then as many extra members as possible.

    Args:
        node_table: The node table of the same `request.nodes` object; None makes one.
            It changes the time taken, never the result.

    Returns:
        A plan (without assignments when bound members satisfy the root and no other member fits),
        or a refusal: *waiting*, *impossible* (proved) or *unknown* (search budget used up, or no plan
        without a node that kube-scheduler rejected).
    """
    if not admissible(request.root):
        return Refusal(
            outcome="waiting",
            status="Wait",
            reasons=tuple(waiting_reasons(request.root)),
            search=SearchEffort(nodes=0, exhausted=True),
        )
    if node_table is None or node_table.nodes is not request.nodes:
        node_table = NodeTable(request.nodes)
    problem = compile_request(request, node_table)
    if problem.violations:
        refusal = explain_contradiction(
            Refusal(
                outcome="impossible",
                status="UnschedulableAndUnresolvable",
                reasons=(),
                search=SearchEffort(nodes=0, exhausted=True),
            ),
            request,
            node_table,
            problem,
        )
        return compared_with_empty(refusal, request, node_table)
    solved = solve(request, node_table, problem=problem)
    if solved.solution is not None:
        planned = _best_plan(request, solved)
        return without_extras(request, planned) if request.extras_later else planned
    return _refuse(request, node_table, solved)


def plan_at_once(
    request: PlanRequest, node_table: NodeTable, *, effort: int
) -> Verdict | DeferredWork:
    """Return the result of `plan` when the greedy search finds it, else which work is left.

    Args:
        effort: Search nodes that may be spent, instead of the budget of the request.

    Returns:
        Exactly what `plan` returns: a greedy search within its budget takes the same steps with any
        budget. *explain*: it is proved that the tree does not fit, only the reasons are missing.
        *search*: only a longer search can decide.
    """
    if not admissible(request.root):
        return plan(request, node_table=node_table)
    problem = compile_request(request, node_table)
    if problem.violations:
        return plan(request, node_table=node_table)
    bounds = bound_all(problem)
    if bounds.infeasible:
        return "explain"
    solved = solve_at_once(problem, bounds, min(effort, greedy_limit(request.budget)))
    if solved is None:
        return "search"
    try:
        return _best_plan(request, solved, limit=effort - solved.nodes)
    except NotAtOnce:
        return "search"


def _best_plan(request: PlanRequest, solved: Solved, *, limit: int | None = None) -> Plan:
    """Return the plan of the best placement for a tree that fits. This is the order of its criteria: the first that differs decides.

    1. The minimum of every gang, then the most extra members, with all that is required: `solve` has decided these.
    2. Preferred levels, groups from the root to the leaves, and balanced shares; then nearness: `grant_preferred`.
    3. Few domains of the levels of the cluster; then what pods prefer; then few nodes, and the tightest domains: `Compactness`, the
       order in which both try domains and nodes. It proves nothing.
    4. Rank order, which no criterion above depends on: `make_plan` gives the chosen seats to members.

    Args:
        limit: Search nodes of a search that must end at once; None: a part of the budget of the request.

    Raises:
        NotAtOnce: With a limit, when it is not enough.
    """
    if has_wishes(request.root):
        solved = grant_preferred(request, solved, limit=limit)
    return make_plan(request, solved)


class EmptyClusterFit(msgspec.Struct, frozen=True):
    """Whether a tree would fit if no other pod ran."""

    fits: bool | None  # None: the budget was used up first
    reasons: tuple[str, ...] = ()  # why not


def fit_when_empty(request: PlanRequest, node_table: NodeTable, *, budget: int) -> EmptyClusterFit:
    """Return whether the minimum of a tree would fit if no other pod ran.

    Nodes are as they are: labels, taints, cordons and allocatable capacity. Rules between pods hold among its members.
    Those about other pods, node rejections and reservations are left out, so a tree that does not fit then is not helped by
    any change of other pods.

    Args:
        request: As for `plan`, without bound members: their own capacity would be counted as free.
        budget: Search nodes, instead of those of the request.
    """
    emptied = msgspec.structs.replace(
        request,
        root=map_groups(request.root, _alone),
        rules=tuple(map(_among_members, request.rules)),
        rejected_nodes=(),
        claims_in_use=(),
        closed=UNSET,
        budget=budget,
    )
    node_table = node_table.emptied()
    problem = compile_request(emptied, node_table)
    if problem.violations:
        return EmptyClusterFit(fits=False, reasons=tuple(problem.violations))
    solved = solve(emptied, node_table, problem=problem, maximise=False)
    if solved.solution is not None:
        return EmptyClusterFit(fits=True)
    if solved.proved:
        return EmptyClusterFit(fits=False, reasons=diagnose(emptied, solved))
    return EmptyClusterFit(fits=None)


def _alone(group: PlanGroup) -> PlanGroup:
    """Return a group of which no other tree or pod has a domain."""
    if isinstance(group.exclusive, UnsetType) or not group.exclusive.taken:
        return group
    return msgspec.structs.replace(group, exclusive=PlanExclusive(key=group.exclusive.key))


def _among_members(rule: PlanRule) -> PlanRule:
    """Return a rule that counts no placed pod; an affinity to other pods is left out."""
    counts: tuple[tuple[tuple[str, int], ...], ...] = tuple(() for _ in rule.there)
    keepers = () if _needs_others(rule) else rule.shapes
    return msgspec.structs.replace(
        rule, shapes=keepers, about=rule.about if keepers else (), there=counts
    )


def _needs_others(rule: PlanRule) -> bool:
    """Return whether a rule is an affinity to other pods alone: without them no member has a node."""
    return rule.kind == "near" and bool(rule.shapes) and not set(rule.about) & set(rule.shapes)


def _refuse(request: PlanRequest, node_table: NodeTable, solved: Solved) -> Refusal:
    """Return the refusal, after checking whether node rejections alone are the cause."""
    spent = SearchEffort(nodes=solved.nodes, exhausted=solved.proved)
    rests_on = given(request, solved.problem, limited=bool(request.rejected_nodes))
    status = status_of(request, node_table)
    refusal = Refusal(outcome="unknown", status=status, reasons=(), search=spent, given=rests_on)
    if not solved.proved:
        text = (
            f"{_name(request)}: no placement found within the budget of "
            f"{counted(request.budget, 'search node')}; it may still exist. {larger_budget(request.budget)}"
        )
        return msgspec.structs.replace(refusal, reasons=(text,))
    rejected_nodes = request.rejected_nodes
    if rejected_nodes:
        free = solve(request, node_table, options=Options(no_rejections=True), maximise=False)
        if free.solution is not None or not free.proved:
            text = f"{_name(request)}: {GIVEN} {rests_on[-1]}"
            if unseen := ", ".join(rests_on[:-1]):
                text += f"; the planner does not see: {unseen}"
            return msgspec.structs.replace(refusal, reasons=(text,))
        request = msgspec.structs.replace(request, rejected_nodes=())
        rests_on = given(request, solved.problem, limited=False)
        solved = free
    refusal = msgspec.structs.replace(refusal, outcome="impossible", given=rests_on)
    if not request.explain:
        return msgspec.structs.replace(refusal, reasons=diagnose(request, solved))
    refusal = explain(refusal, request, node_table, solved, rejected_nodes)
    return compared_with_empty(refusal, request, node_table)


def compared_with_empty(refusal: Refusal, request: PlanRequest, node_table: NodeTable) -> Refusal:
    """Return the refusal of an impossible tree, with whether it would fit if no other pod ran.

    It is not examined where the request asks for no explanation, or has bound members: their own capacity would be
    counted as free. Nor is it claimed of a tree that fits but for its affinity to other pods, which would not run then.
    """
    if not request.explain or has_bound(request.root):
        return refusal
    fit = fit_when_empty(request, node_table, budget=min(request.budget, BUDGET_WHEN_EMPTY))
    if fit.fits and any(map(_needs_others, request.rules)):
        return refusal
    words: dict[bool | None, WhenEmpty] = {True: "fits", False: "never", None: "unknown"}
    return msgspec.structs.replace(
        refusal, when_empty=words[fit.fits], reasons_when_empty=fit.reasons
    )


def has_bound(group: PlanGroup) -> bool:
    """Return whether a group or one below it has bound members."""
    return bool(group.bound) or any(map(has_bound, group.groups))


def status_of(request: PlanRequest, node_table: NodeTable) -> Feasibility:
    """Return whether preemption could help: whether static filters and domains alone allow a placement.

    Source:
        C.2: a pod that passes the static filters nowhere in the allowed set is UU, not U.
    """
    problem = compile_request(
        request, node_table, Options(no_rejections=True, no_resources=True, only_near=True)
    )
    anywhere = np.where(problem.allowed, FIT_MAX, 0).astype(np.int64)
    infeasible = bool(problem.violations) or bound_all(problem, anywhere).infeasible
    return "UnschedulableAndUnresolvable" if infeasible else "Unschedulable"


def larger_budget(budget: int) -> str:
    """Return how a search with a larger budget is made, and what it costs."""
    return (
        f"GANG_EXTENDER_SEARCH_BUDGET={budget * BUDGET_STEP} (--search-budget of serve and plan) makes the search "
        f"{BUDGET_STEP} times as long: up to {_seconds(budget * BUDGET_STEP)} of CPU time"
    )


def _seconds(budget: int) -> str:
    """Return the CPU time that so many search nodes take at most, roughly."""
    whole = max(round(budget * SECONDS_OF_BUDGET / SEARCH_BUDGET), 1)
    return f"about {whole} {'second' if whole == 1 else 'seconds'}"


def _name(request: PlanRequest) -> str:
    return f"{request.root.key.kind} {request.root.key.path}"
