"""The planner's front door: a request in, a plan or a refusal out.

Pure: the same request gives the same bytes on any machine. Effort is counted in search nodes (domains
tried, and the branches and conflicts of the complete solver), never in time.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import numpy as np

from extender.core.planner.explain.minimal_conflict import RefusalExplanation, explain
from extender.core.planner.explain.plan_builder import given, make_plan
from extender.core.planner.explain.shortfalls import diagnose
from extender.core.planner.model.feasibility import admissible, waiting_reasons
from extender.core.planner.model.node_table import FIT_MAX, NodeTable
from extender.core.planner.model.problem import Options, compile_request
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import (
    GIVEN,
    Feasibility,
    Plan,
    PlanRequest,
    Refusal,
    SearchEffort,
    Verdict,
)
from extender.core.planner.solve.solver_pipeline import Solved, solve, solve_at_once

Later: TypeAlias = Literal["explain", "search"]


def plan(request: PlanRequest, *, fleet: NodeTable | None = None) -> Verdict:
    """Place a tree: the minimum of every gang on the way to the root, then as many extras as possible.

    Args:
        request: Everything the decision depends on.
        fleet: Made from the very same `request.nodes` object by an earlier call; saves the conversion.
            It can change the time taken, never the answer.

    Returns:
        A plan (perhaps without assignments, when bound members satisfy the root and nothing more fits),
        or a refusal: *waiting*, *impossible* (proved) or *unknown* (budget, or vetoes in the way).
    """
    if not admissible(request.root):
        return Refusal(
            outcome="waiting",
            status="Wait",
            reasons=tuple(waiting_reasons(request.root)),
            search=SearchEffort(nodes=0, exhausted=True),
        )
    if fleet is None or fleet.nodes is not request.nodes:
        fleet = NodeTable(request.nodes)
    problem = compile_request(request, fleet)
    if problem.violations:
        return Refusal(
            outcome="impossible",
            status="UnschedulableAndUnresolvable",
            reasons=tuple(problem.violations),
            search=SearchEffort(nodes=0, exhausted=True),
        )
    solved = solve(request, fleet, problem=problem)
    if solved.solution is not None:
        return make_plan(request, solved)
    return _refuse(request, fleet, solved)


def plan_at_once(request: PlanRequest, fleet: NodeTable, *, effort: int) -> Verdict | Later:
    """Give the answer of `plan` where it comes quickly, else what it would take.

    Args:
        request: As for `plan`.
        fleet: Made from the very same `request.nodes` object.
        effort: Search nodes that may be spent; the budget of the request is not.

    Returns:
        Exactly what `plan` returns: a quick search that was not cut short does the same steps with
        any budget. *explain* where nothing can fit, which is proved, and only the reason has to be
        found; *search* where a longer search must tell.
    """
    if not admissible(request.root):
        return plan(request, fleet=fleet)
    problem = compile_request(request, fleet)
    if problem.violations:
        return plan(request, fleet=fleet)
    bounds = bound_all(problem)
    if bounds.hopeless:
        return "explain"
    solved = solve_at_once(problem, bounds, min(effort, request.budget))
    return make_plan(request, solved) if solved is not None else "search"


def _refuse(request: PlanRequest, fleet: NodeTable, solved: Solved) -> Refusal:
    """Word a refusal, and check that vetoes are not all there is to it."""
    spent = SearchEffort(nodes=solved.nodes, exhausted=solved.proved)
    rests_on = given(request, solved.problem, limited=bool(request.vetoes))
    status = _status(request, fleet)
    if not solved.proved:
        text = (
            f"{_name(request)}: no placement found within the budget of {request.budget} search "
            "nodes; it may still exist"
        )
        return Refusal(
            outcome="unknown", status=status, reasons=(text,), search=spent, given=rests_on
        )
    if request.vetoes:
        free = solve(request, fleet, options=Options(no_vetoes=True), maximise=False)
        if free.solution is not None or not free.proved:
            text = f"{_name(request)}: {GIVEN} {rests_on[-1]}"
            if unseen := ", ".join(rests_on[:-1]):
                text += f"; the planner does not see: {unseen}"
            return Refusal(
                outcome="unknown", status=status, reasons=(text,), search=spent, given=rests_on
            )
        request = msgspec.structs.replace(request, vetoes=())
        rests_on = given(request, solved.problem, limited=False)
        solved = free
    told = (
        explain(request, fleet, solved) if request.explain else RefusalExplanation(diagnose(solved))
    )
    return Refusal(
        outcome="impossible",
        status=status,
        reasons=told.reasons,
        search=spent,
        conflict=told.conflict,
        relaxations=told.relaxations,
        given=rests_on,
    )


def _status(request: PlanRequest, fleet: NodeTable) -> Feasibility:
    """Tell whether preemption could help: whether static filters and domains alone leave a way.

    Source:
        SPEC C.2: a pod that passes the static filters nowhere in the allowed set is UU, not U.
    """
    problem = compile_request(request, fleet, Options(no_vetoes=True, no_resources=True))
    anywhere = np.where(problem.allowed, FIT_MAX, 0).astype(np.int64)
    hopeless = bound_all(problem, anywhere).hopeless
    return "UnschedulableAndUnresolvable" if hopeless else "Unschedulable"


def _name(request: PlanRequest) -> str:
    return f"{request.root.key.kind} {request.root.key.path}"


__all__ = ["Later", "NodeTable", "Plan", "Refusal", "plan", "plan_at_once"]
