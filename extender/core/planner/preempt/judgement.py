"""The verdict about a tree that may preempt: its plan, the units to evict for it, or a refusal with what would help.

A refusal is only *impossible* if no set of units is enough. A tree that only terminating pods keep out waits (E-2).
What would help is planned by the same rules as the verdict, so it may evict units, and then names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET

from extender.core.model.ids import NodeName
from extender.core.model.visibility import Visibility, name_for
from extender.core.planner.explain.additional_nodes import with_counts
from extender.core.planner.explain.relaxations import (
    evicting,
    explain,
    explain_contradiction,
    with_change,
)
from extender.core.planner.model.node_table import NodeTable
from extender.core.planner.model.problem import compile_request
from extender.core.planner.plan_types import (
    Evictable,
    NodeRejection,
    Plan,
    PlanRequest,
    PlanVictim,
    Refusal,
    Relaxation,
    Verdict,
    slice_pods,
    threshold,
    walk,
)
from extender.core.planner.planning import compared_with_empty, plan
from extender.core.planner.preempt.post_eviction_view import without
from extender.core.planner.preempt.victim_search import (
    NoPreemption,
    PreemptionPlan,
    PreemptionVerdict,
    may_trigger_preemption,
    preempt,
)
from extender.core.planner.solve.solver_pipeline import solve

BUDGET_PART = 8  # fraction of the budget of the request, for the victims of one change

LESS = " (a smaller change may do: that is not known)"
SOME_UNITS = "units of lower priority"
FREE = "the free capacity of their nodes"
FREE_OR_LOWER = "what is free on their nodes, or used by units of lower priority"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and what the search for victims has found."""

    verdict: Verdict
    preemption: PreemptionVerdict | None = None  # None: the request has nothing to evict

    @property
    def notes(self) -> tuple[str, ...]:
        """Return why preemption does not help; nothing where it was not considered, or the verdict has it already."""
        preemption = self.preemption
        if not isinstance(preemption, NoPreemption) or preemption.cause == "not-triggered":
            return ()
        stated = self.verdict.reasons[: len(preemption.reasons)] == preemption.reasons
        return () if stated else preemption.reasons

    @property
    def notes_reduced(self) -> tuple[str, ...]:
        """Return the notes without names of other namespaces; empty: there are none in them."""
        preemption = self.preemption
        return preemption.reduced if isinstance(preemption, NoPreemption) and self.notes else ()


def judge(
    request: PlanRequest, *, node_table: NodeTable | None = None, verdict: Verdict | None = None
) -> Judgement:
    """Plan a tree, and search units to evict if it is refused.

    Args:
        request: Without `evictable` this is `plan`.
        node_table: The node table of the same `request.nodes` object; it changes only the time taken.
        verdict: The result of `plan` for the same nodes and tree without an explanation; None computes it.
    """
    bare = msgspec.structs.replace(request, evictable=None)
    if node_table is None or node_table.nodes is not request.nodes:
        node_table = NodeTable(request.nodes)
    if request.evictable is None:
        return Judgement(verdict=plan(bare, node_table=node_table))
    if verdict is None:
        verdict = plan(msgspec.structs.replace(bare, explain=False), node_table=node_table)
    if not may_trigger_preemption(request, verdict):
        if bare.explain and isinstance(verdict, Refusal):
            verdict = plan(bare, node_table=node_table)
        return Judgement(verdict=verdict)
    preemption = preempt(request, node_table=node_table, verdict=verdict)
    if isinstance(preemption, PreemptionPlan) or isinstance(verdict, Plan):
        return Judgement(verdict=verdict, preemption=preemption)
    refusal = refused(verdict, preemption)
    if bare.explain and refusal.outcome != "waiting":
        refusal = _explained(request, node_table, refusal)
    return Judgement(verdict=refusal, preemption=preemption)


def refused(verdict: Refusal, preemption: NoPreemption) -> Refusal:
    """Return a refusal after the search for victims: it proves nothing if that does not."""
    if preemption.cause == "comes-free":
        return awaiting(verdict, preemption)
    search = msgspec.structs.replace(
        verdict.search, exhausted=verdict.search.exhausted and preemption.cause != "unknown"
    )
    outcome = "unknown" if preemption.cause == "unknown" else verdict.outcome
    return msgspec.structs.replace(verdict, outcome=outcome, search=search)


def awaiting(verdict: Refusal, preemption: NoPreemption) -> Refusal:
    """Return that a tree waits for terminating pods; nothing else is needed."""
    return msgspec.structs.replace(
        verdict,
        outcome="waiting",
        status="Wait",
        reasons=(*preemption.reasons, *verdict.reasons),
        conflict=(),
        changes=(),
        when_empty="",
        reasons_when_empty=(),
    )


# --- what would help, with evictions


def _explained(request: PlanRequest, node_table: NodeTable, refusal: Refusal) -> Refusal:
    """Return a refusal with its conflict, and with what would help."""
    pods = list(_may_go(request))
    roomier = without(request, pods)
    roomier = msgspec.structs.replace(roomier, evictable=None, rejected_nodes=())
    table = node_table.renewed(roomier.nodes)
    explanation = _explanation(refusal, roomier, table, request.rejected_nodes) if pods else None
    if explanation is None:
        # no eviction changes anything, or it is not the capacity of units that decides
        alone = plan(msgspec.structs.replace(request, evictable=None), node_table=node_table)
        assert isinstance(alone, Refusal)
        changes = [_least(request, node_table, change, change) for change in alone.changes]
        return msgspec.structs.replace(
            refusal,
            conflict=alone.conflict,
            changes=_cheapest_first(changes),
            when_empty=alone.when_empty,
            reasons_when_empty=alone.reasons_when_empty,
        )
    refusal = compared_with_empty(refusal, request, node_table)
    source = request.evictable or Evictable(priority=0)
    usable = FREE_OR_LOWER if source.may_preempt and source.units else FREE
    conflict = (
        msgspec.structs.replace(c, message=c.message.replace(FREE, usable))
        for c in explanation.conflict
    )
    changes = [
        _least(request, node_table, change, planned)
        for change in explanation.changes
        if (planned := _planned(request, node_table, change)) is not None
    ]
    return msgspec.structs.replace(
        refusal, conflict=tuple(conflict), changes=_cheapest_first(changes)
    )


def _cheapest_first(changes: Iterable[Relaxation]) -> tuple[Relaxation, ...]:
    return tuple(sorted(changes, key=lambda change: bool(change.evicts)))


def _explanation(
    refusal: Refusal,
    roomier: PlanRequest,
    node_table: NodeTable,
    rejected_nodes: tuple[NodeRejection, ...],
) -> Refusal | None:
    """Return a refusal with why the tree does not fit without the pods that may go; None: that is not proved."""
    problem = compile_request(roomier, node_table)
    if problem.violations:
        return explain_contradiction(refusal, roomier, node_table, problem)
    solved = solve(roomier, node_table, problem=problem, maximise=False)
    if solved.solution is not None or not solved.proved:
        return None
    return explain(refusal, roomier, node_table, solved, rejected_nodes)


def _may_go(request: PlanRequest) -> Iterator[PlanVictim]:
    """Yield terminating pods, and those of units that leave every near and spread rule as it is when they go."""
    source = request.evictable or Evictable(priority=0)
    yield from source.going
    if not source.may_preempt:
        return
    counted = _counted_units(request)
    for unit in source.units:
        if unit.priority < source.priority and unit.name not in counted:
            yield from unit.pods


def _counted_units(request: PlanRequest) -> set[str]:
    """Return the names of the units that may go and that a near or spread rule counts."""
    source = request.evictable or Evictable(priority=0)
    kept = {i for i, rule in enumerate(request.rules) if rule.kind != "apart"}
    after = {
        uid
        for each in source.dependents or ()
        if any(kept.intersection(pod.rules) for pod in each.pods)
        for uid in each.after
    }
    return {
        unit.name
        for unit in source.units
        if source.may_preempt
        and unit.priority < source.priority
        and any(pod.uid in after or kept.intersection(pod.rules) for pod in unit.pods)
    }


def _planned(request: PlanRequest, node_table: NodeTable, change: Relaxation) -> Relaxation | None:
    """Return a change with the units that must be evicted beside it; None: it does not help after all."""
    budget = max(request.budget // BUDGET_PART, 1)
    changed = with_change(msgspec.structs.replace(request, explain=False, budget=budget), change)
    if change.kind == "reservation":  # what is reserved there is free already
        changed = _without_reservations_on(changed, set(change.nodes))
    table = node_table.renewed(changed.nodes)
    verdict = plan(msgspec.structs.replace(changed, evictable=None), node_table=table)
    if isinstance(verdict, Plan):
        return change
    preemption = preempt(changed, node_table=table, verdict=verdict)
    if isinstance(preemption, PreemptionPlan):
        readers = Visibility.of((request.root.key.namespace,))
        names = tuple(
            name_for(readers, unit.name, priority=unit.priority, pods=len(unit.pods))
            for unit in (*preemption.victims, *preemption.superseded)
        )
        return _evicting(change, names) if names else change
    if preemption.cause == "comes-free":
        return change
    return _evicting(change, (SOME_UNITS,)) if preemption.cause == "unknown" else None


def _least(
    request: PlanRequest, node_table: NodeTable, change: Relaxation, planned: Relaxation
) -> Relaxation:
    """Return the least change of its kind that helps where units that rules count may go, too: it was found with all of these in place.

    Args:
        change: A lower minimum, or more nodes; others are returned as they are.
        planned: The same change with what is evicted then.
    """
    if not _counted_units(request):
        return planned
    unknown = False
    for place in range(max(len(change.added), 1)):
        smaller = list(_smaller(request, change, place))
        low, high = 0, len(smaller)
        while low < high:
            middle = (low + high) // 2
            answer = _planned(request, node_table, smaller[middle])
            unsure = answer is not None and answer.evicts == (SOME_UNITS,)
            unknown = unknown or unsure
            if answer is None or unsure:
                low = middle + 1
            else:
                planned, high = answer, middle
        change = smaller[high] if high < len(smaller) else change
    return msgspec.structs.replace(planned, text=planned.text + LESS) if unknown else planned


def _smaller(request: PlanRequest, change: Relaxation, place: int) -> Iterator[Relaxation]:
    """Yield smaller changes of the same kind, the smallest first."""
    if change.kind in {"minCount", "minGroupCount"}:
        group = next(g for g in walk(request.root) if g.key == change.groups[0])
        step = max(slice_pods(group), 1)
        for minimum in range((threshold(group) - 1) * step, change.minimum, -step):
            text = change.text.replace(f" {change.minimum} ", f" {minimum} ", 1)
            yield msgspec.structs.replace(change, minimum=minimum, text=text)
    elif change.kind == "nodes":
        counts = [added.count for added in change.added]
        for count in range(counts[place]):
            fewer = [*counts[:place], count, *counts[place + 1 :]]
            if any(fewer):
                yield with_counts(change, fewer)


def _evicting(change: Relaxation, names: tuple[str, ...]) -> Relaxation:
    names = tuple(sorted(names))
    return msgspec.structs.replace(change, text=evicting(change.text, names), evicts=names)


def _without_reservations_on(request: PlanRequest, nodes: set[NodeName]) -> PlanRequest:
    source = request.evictable or Evictable(priority=0)
    units = (
        msgspec.structs.replace(u, pods=tuple(p for p in u.pods if p.node not in nodes))
        if u.kind == "reservation"
        else u
        for u in source.units
    )
    dependents = (
        msgspec.structs.replace(d, pods=tuple(p for p in d.pods if p.node not in nodes))
        for d in source.dependents or ()
    )
    evictable = msgspec.structs.replace(
        source,
        units=tuple(u for u in units if u.pods),
        dependents=tuple(d for d in dependents if d.pods) or UNSET,
    )
    return msgspec.structs.replace(request, evictable=evictable)
