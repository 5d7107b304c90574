"""The entry point of preemption: `preempt` finds the units to evict for a refused tree, and its plan afterwards.

Pure, as `planning.py`: the same request gives the same bytes on any machine, and the search budget is counted
in search nodes. The request must carry `evictable`; everything that the decision depends on is in it.

The rules are E-1 to E-15 of docs/reference/groups.md. Only a tree that is refused as Unschedulable preempts, or that is kept out
of exclusive domains that can be emptied (D20); a tree whose minimum is bound preempts for its extra members. Only units of
strictly lower priority are evicted, as a whole, and no unit that could keep its place. A verdict *unknown* evicts no
pod. Reservations of lower-priority trees cost less than any running pod (E-10). Terminating pods count as evicted; if
their capacity is enough, no pod is evicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from extender.core.model.message_formatting import counted, join_names
from extender.core.model.visibility import Visibility, name_for
from extender.core.planner.explain.plan_builder import make_plan
from extender.core.planner.explain.refusal_causes import diagnose, domain_phrase, shortfall
from extender.core.planner.model.interpod_constraints import rule_text
from extender.core.planner.model.node_table import Bools, NodeTable
from extender.core.planner.model.problem import PlacementProblem, compile_request
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import (
    EVICTING,
    Evictable,
    Plan,
    PlanGroup,
    PlanRequest,
    PlanRule,
    PlanUnit,
    Refusal,
    SearchEffort,
    Verdict,
    satisfied_by_bound,
    threshold,
    walk,
    without_lacking_members,
)
from extender.core.planner.planning import plan, status_of
from extender.core.planner.preempt.min_cost_cp_sat import find_any, find_cheapest
from extender.core.planner.preempt.post_eviction_view import (
    NO_PRIORITY,
    PRIORITY_OFFSET,
    PostEvictionView,
    VictimCost,
    with_domains_as_rules,
    without,
)
from extender.core.planner.preempt.reprieve import Reprieve, VictimSet, VictimSets
from extender.core.planner.solve.greedy_placement import SearchBudget, Solution
from extender.core.planner.solve.preferred_topology import grant_preferred, has_wishes
from extender.core.planner.solve.solver_pipeline import Solved, size, solve


def _best(solved: Solved) -> tuple[int, int, str]:
    """Return how many elements the root has, how many could be placed one at a time, and the word for them."""
    root, groups = solved.problem.groups[0], solved.problem.groups
    if root.leaf:
        close = shortfall(solved.problem, root)
        most = close.holds if close is not None else root.bound
        return root.bound, most, f"pods{domain_phrase(root)}"
    children = [groups[c] for c in root.children if groups[c].alive]
    best = solved.bounds.best
    where = {domain_phrase(child) for child in children}
    word = f"child groups, each{min(where)}" if len(where) == 1 and all(where) else "child groups"
    held = sum(c.holds for c in children)
    return held, sum(c.holds or bool((best[c.index] >= 0).any()) for c in children), word


ALTERNATIVES_MAX = 8
BUDGETS = 10  # a search for victims may cost as many times the budget of a plan: to evict the wrong pods costs more
PROOF_SHARE = 300  # fraction of the remaining budget for the proof that no set is cheaper; the tree waits for it
NoPreemptionCause = Literal["not-triggered", "never", "comes-free", "impossible", "unknown"]


class VictimAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """A set of units that was considered and not chosen."""

    where: str  # its domain as key=value, or its nodes
    units: tuple[str, ...]
    cost: VictimCost | None  # None: evicting them is not enough
    reason: str  # why it was not chosen


class PreemptionPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The units to evict, and the plan for the time after their eviction.

    `plan` is a plan of `without(request, …)`. No victim can keep its place when the members that are not
    `extra` are placed as planned. `search.exhausted`: no set costs less, apart from the order by names.
    """

    victims: tuple[PlanUnit, ...]  # sorted by name; units of running pods
    superseded: tuple[PlanUnit, ...]  # sorted by name; units of reservations
    already_terminating: tuple[str, ...]  # terminating pods on nodes that the plan uses, sorted
    plan: Plan
    cost: VictimCost
    alternatives: tuple[VictimAlternative, ...]
    reasons: tuple[str, ...]  # for users
    search: SearchEffort
    # `reasons` for readers of the namespace of the tree only; empty: they name nothing of another namespace
    reduced: tuple[str, ...] = ()
    # by unit: why it is evicted although it would fit beside the plan (L34)
    doubts: dict[str, str] = {}


class NoPreemption(msgspec.Struct, frozen=True, kw_only=True):
    """No pod is evicted.

    *not-triggered*: the tree does not need or may not use preemption now. *never*: its preemption policy forbids
    it. *comes-free*: the capacity of terminating pods is enough. *impossible*: proved that evictions are not enough.
    *unknown*: the search budget was used up before a set was found.
    """

    cause: NoPreemptionCause
    reasons: tuple[str, ...]
    search: SearchEffort
    # `reasons` for readers of the namespace of the tree only; empty: they name nothing of another namespace
    reduced: tuple[str, ...] = ()


PreemptionVerdict: TypeAlias = PreemptionPlan | NoPreemption


def preempt(
    request: PlanRequest, *, node_table: NodeTable | None = None, verdict: Verdict | None = None
) -> PreemptionVerdict:
    """Find the cheapest units whose eviction lets the minimum of a tree be placed.

    When bound members already satisfy the tree, evict for the largest number of extra members that can be placed
    (C.6 and E-2; with a Basic root only when none of them fits without evictions).

    Args:
        request: With `evictable`; without it there is nothing to evict.
        node_table: The node table of the same `request.nodes` object; it changes only the time taken.
        verdict: The result of `plan` for the same request; None computes it.
    """
    source = request.evictable or Evictable(priority=0)
    if node_table is None or node_table.nodes is not request.nodes:
        node_table = NodeTable(request.nodes)
    lacking = next((t for s in request.shapes for t in s.lacking), "")
    if lacking:
        # kube-scheduler rejects a member whose claim or volume does not exist on every node, whatever is evicted
        root = without_lacking_members(request.root, request.shapes)
        if root != request.root:
            request, verdict = msgspec.structs.replace(request, root=root), None
    bare = msgspec.structs.replace(request, evictable=None, explain=False)
    verdict = plan(bare, node_table=node_table) if verdict is None else verdict
    spent = verdict.search.nodes
    if isinstance(verdict, Plan):
        idle = _not_triggered_reason(bare, verdict, node_table)
    elif verdict.outcome == "waiting" and lacking:
        idle = f"no eviction can help: {lacking}"
    elif verdict.outcome != "impossible":
        idle = f"the refusal is no proof ({verdict.outcome}), so no pod is evicted for it"
    else:
        idle = ""
    if idle:
        return _none("not-triggered", idle, spent)
    if not source.may_preempt:  # it waits all the same for what terminates
        source = msgspec.structs.replace(source, units=())
        request = msgspec.structs.replace(request, evictable=source)
    decision = _decided(request, node_table, verdict)
    if isinstance(decision, PreemptionPlan) or decision.cause in {"comes-free", "not-triggered"}:
        return decision
    if source.only_awaits:
        text = "what terminates is not enough, and nothing is evicted for it"
        return _none("not-triggered", text, decision.search.nodes)
    if not source.may_preempt:
        text = "preemptionPolicy Never: it waits, and no pod is evicted"
        return _none("never", text, decision.search.nodes)
    return decision


def _decided(request: PlanRequest, node_table: NodeTable, verdict: Verdict) -> PreemptionVerdict:
    """Decide for a tree that may preempt; exclusive domains are emptied as by a rule between pods."""
    spent = verdict.search.nodes
    judged = with_domains_as_rules(request)
    final = isinstance(verdict, Refusal) and verdict.status != "Unschedulable"
    if final and (judged is request or status_of(judged, node_table) != "Unschedulable"):
        return _none("not-triggered", _no_lack_reason(request), spent)
    placed = len(verdict.assignments) if isinstance(verdict, Plan) else 0
    decision = _Decision(judged, node_table, spent).decide(placed, extras=isinstance(verdict, Plan))
    if judged is not request and isinstance(decision, PreemptionPlan):
        return _of_request(decision, request)
    return decision


def only_awaiting(request: PlanRequest) -> PlanRequest:
    """Return a request that asks only whether terminating pods are enough: preemption is off, or nothing has a lower priority."""
    if request.evictable is None:
        return request
    awaited = msgspec.structs.replace(request.evictable, only_awaits=True, units=())
    return msgspec.structs.replace(request, evictable=awaited)


def may_trigger_preemption(request: PlanRequest, verdict: Verdict) -> bool:
    """Return whether evictions may matter to a tree; cheap. False: `preempt` is not triggered, and no way out evicts a unit.

    A tree that no eviction helps as it is may be helped by one together with another change.

    Args:
        request: What was planned; `evictable` is not read.
    """
    if isinstance(verdict, Plan):
        return bool(verdict.unplaced) and satisfied_by_bound(request.root)
    return verdict.outcome == "impossible"


def _not_triggered_reason(request: PlanRequest, verdict: Plan, node_table: NodeTable) -> str:
    """Return the reason why a tree that has a plan does not preempt, or an empty string when it does for extra members."""
    name = f"{request.root.key.kind} {request.root.key.path}"
    if not satisfied_by_bound(request.root):
        return f"{name} is placed without evictions; what is beyond its minimum may ask later"
    groups = compile_request(request, node_table).groups
    wanting = sum(g.size for g in groups if g.alive)
    if len(verdict.assignments) == wanting:
        return f"{name}: all that waits finds a place"
    if not verdict.search.exhausted:
        return f"{name}: more may fit by itself, the search was cut short"
    if request.root.basic and verdict.assignments:
        return f"{name} is basic: what fits is placed first"
    return ""


def _of_request(decision: PreemptionPlan, request: PlanRequest) -> PreemptionPlan:
    """Return a decision with the units and the shapes of members as they are in the request, not as they were judged."""
    assert request.evictable is not None
    units = {(unit.kind, unit.name, unit.uid): unit for unit in request.evictable.units}
    shapes = {m.uid: m.shape for group in walk(request.root) for m in group.members}
    assignments = tuple(
        msgspec.structs.replace(a, shape=shapes[a.uid]) for a in decision.plan.assignments
    )
    return msgspec.structs.replace(
        decision,
        plan=msgspec.structs.replace(decision.plan, assignments=assignments),
        victims=tuple(units[u.kind, u.name, u.uid] for u in decision.victims),
        superseded=tuple(units[u.kind, u.name, u.uid] for u in decision.superseded),
    )


def _no_lack_reason(request: PlanRequest) -> str:
    """Return why a tree that is not refused for lack of capacity does not preempt."""
    text = "no eviction can help: it is not refused for lack of capacity"
    if not isinstance(request.closed, UnsetType) or _keeps_out(request.root):
        text += ", and no exclusive domain has only what may be evicted"
    return text


def _keeps_out(group: PlanGroup) -> bool:
    """Return whether others have domains of which a group, or one below it, would have one alone."""
    own = group.exclusive
    return bool(own is not UNSET and own.taken) or any(map(_keeps_out, group.groups))


def _none(cause: NoPreemptionCause, text: str, nodes: int, *, proved: bool = True) -> NoPreemption:
    return NoPreemption(
        cause=cause, reasons=(text,), search=SearchEffort(nodes=nodes, exhausted=proved)
    )


@dataclasses.dataclass(slots=True)
class _Reach:
    """Units that are enough, if there are any."""

    evicted: Bools
    solution: Solution | None  # None: no set was found
    bound: Solved  # without all units, and without the rules that count one of them
    proved: bool  # without a solution: no set is enough; else none allows more pods

    @property
    def size(self) -> int:
        """Return the number of pods that it allows."""
        return size(self.solution) if self.solution is not None else 0


class _Decision:
    """The state of one `preempt` call."""

    def __init__(self, request: PlanRequest, node_table: NodeTable, spent: int) -> None:
        self.request = request
        self.eviction_view = PostEvictionView(request, node_table)
        self.effort = SearchBudget(request.budget * BUDGETS)
        self.spent = spent  # by planning without evictions

    @property
    def nodes(self) -> int:
        return self.spent + self.effort.nodes

    def decide(self, placed: int, *, extras: bool) -> PreemptionVerdict:
        """Decide for a tree that may preempt.

        Args:
            placed: Members that have a node without any eviction.
            extras: Place as many pods as possible; False: only the minimum.
        """
        eviction_view, source = self.eviction_view, self.eviction_view.source
        free = placed
        waited: Solved | None = None
        if source.going:
            waited = self._solve(eviction_view.none_evicted, maximise=extras, pessimistic=False)
            if waited.solution is not None:
                free = size(waited.solution)
            elif not waited.proved:
                return self._not_found("whether pods that terminate already free enough capacity")
        reach = self._reach(maximise=extras)
        most = size(reach.solution) if reach.solution is not None else placed
        if waited is not None and free > placed and (not extras or most <= free):
            return _none("comes-free", self._awaited(waited), self.nodes)
        if reach.solution is not None and (not extras or most > free):
            return self._cheapest(reach.evicted, reach.solution, most if extras else 0)
        return self._refused(reach, free if extras else 0, extras=extras)

    def _awaited(self, solved: Solved) -> str:
        """Return which terminating pods a placement waits for, or all of them where it needs no node of one."""
        rows = solved.problem.node_table.nodes
        placed = (nodes for kinds in (solved.solution or {}).values() for nodes in kinds.values())
        used = {rows[node].name for nodes in placed for node in nodes}
        going = self.eviction_view.source.going
        awaited = [pod for pod in going if pod.node in used] or [*going]
        where = join_names(sorted({pod.node for pod in awaited}))
        verb, whose = ("terminates", "its") if len(awaited) == 1 else ("terminate", "their")
        pods = counted(len(awaited), "pod")
        return f"waiting for {pods} that {verb}, on {where}: {whose} capacity is enough, and no pod is evicted"

    def _refused(self, reach: _Reach, free: int, *, extras: bool) -> NoPreemption:
        """Return why no set of units is evicted: none is enough, or none that is was found or can be judged.

        Args:
            reach: What evictions were found to allow.
            free: Members that have a node without any eviction: what an eviction helps beyond these.
            extras: Evictions would be for extra members; False: for the minimum.
        """
        eviction_view, source = self.eviction_view, self.eviction_view.source
        unjudged = eviction_view.unjudged_after if not reach.proved else {}
        if not reach.proved and not unjudged:
            return self._not_found("which units to evict")
        if unjudged or self._withheld_may_help(free, extras=extras):
            return self._not_judged({**unjudged, **eviction_view.unjudged})
        if eviction_view.units and self._rejections_decide(free, extras=extras):
            nodes = join_names(sorted({r.node for r in self.request.rejected_nodes}))
            text = f"evicting units of lower priority may help, but kube-scheduler refused {nodes}"
            return self._none_helps(lambda _: text, cause="unknown")
        if eviction_view.units:
            return self._no_help(reach, extras=extras)
        subject = "no other unit" if source.spared else "no unit"
        text = f"{subject} of lower priority than {source.priority} that may be evicted runs or holds capacity"
        return self._none_helps(lambda _: text)

    def _not_judged(self, rules: dict[int, str]) -> NoPreemption:
        """Return that a rule counts units, or that reservations go with them, and that the time after is not judged."""
        lower = [*self.eviction_view.units, *self.eviction_view.withheld]
        if not rules:
            return self._none_helps(self._uncounted_text, cause="unknown")
        counted = [u for u in lower if any(i in rules for p in u.pods for i in p.rules)]
        texts = join_names([*dict.fromkeys(rules.values())])

        def text_for(readers: Visibility) -> str:
            names = join_names([_name_of(unit, readers) for unit in counted])
            return f"evicting {names} may help, but {texts} counts them, and is not judged for the time after"

        return self._none_helps(text_for, cause="unknown")

    def _uncounted_text(self, readers: Visibility) -> str:
        """Return that reservations go with units, and are not judged for the time after."""
        view = self.eviction_view
        after = {uid for dependent in view.uncounted for uid in dependent.after}
        lower = (*view.units, *view.withheld)
        units = [u for u in lower if any(pod.uid in after for pod in u.pods)]
        names = join_names([_name_of(unit, readers) for unit in units])
        return f"evicting {names} may help, but what their reservations leave is not judged for the time after"

    def _rejections_decide(self, free: int, *, extras: bool) -> bool:
        """Return whether evictions might be enough if kube-scheduler had rejected no node."""
        if not self.request.rejected_nodes:
            return False
        request = msgspec.structs.replace(self.request, rejected_nodes=())
        view = PostEvictionView(request, self.eviction_view.node_table)
        solved = self._solve(
            ~view.none_evicted, maximise=extras, eviction_view=view, base=view.full
        )
        return size(solved.solution or {}) > free or not solved.proved

    def _withheld_may_help(self, free: int, *, extras: bool) -> bool:
        """Return whether units that a rule not judged counts, or that reservations depend on, would free enough, rules between pods left out."""
        view = self.eviction_view
        if not view.withheld and not view.uncounted:
            return False
        lower = (*view.units, *view.withheld)
        evicted = (p for u in lower for p in u.pods)
        request = without(self.request, (*view.source.going, *evicted))
        apart = tuple(rule for rule in request.rules if rule.kind == "apart")
        request = msgspec.structs.replace(request, rules=apart, budget=self._share)
        solved = solve(request, view.node_table.renewed(request.nodes), maximise=extras)
        self._charge(solved.nodes)
        return size(solved.solution or {}) > free or not solved.proved

    def _reach(self, *, maximise: bool) -> _Reach:
        """Return a set of units that is enough, with as many pods as any set allows, or that there is none."""
        view = self.eviction_view
        every = ~view.none_evicted
        if not len(view.counting):
            solved = self._solve(every, maximise=maximise)
            return _Reach(every, solved.solution, solved, proved=solved.proved)
        bound = self._solve(every, maximise=maximise, base=view.full)
        if bound.solution is None and bound.proved:
            return _Reach(every, None, bound, proved=True)
        best = _Reach(every, None, bound, proved=False)
        plain = every.copy()
        plain[view.counting] = False
        for evicted in (every, plain):
            solved = self._solve(evicted, maximise=maximise)
            if solved.solution is not None and size(solved.solution) > best.size:
                best = _Reach(evicted, solved.solution, bound, proved=False)
            if best.size and (not maximise or best.size == size(bound.solution or {})):
                return dataclasses.replace(best, proved=bound.proved)
        exact = find_any(view, limit=self._share, maximise=maximise)
        self._charge(exact.steps)
        if exact.evicted is not None and size(exact.solution) > best.size:
            proved = exact.proved and not view.joint
            return _Reach(exact.evicted, exact.solution, bound, proved=proved)
        return dataclasses.replace(best, proved=exact.proved and not view.joint)

    def _solve(
        self,
        evicted: Bools,
        *,
        maximise: bool,
        eviction_view: PostEvictionView | None = None,
        pessimistic: bool = True,
        base: PlacementProblem | None = None,
    ) -> Solved:
        """Run the complete search with half of the remaining budget."""
        eviction_view = eviction_view or self.eviction_view
        request = msgspec.structs.replace(eviction_view.request, budget=self._share)
        problem = eviction_view.problem(evicted, pessimistic=pessimistic, base=base)
        solved = solve(request, eviction_view.node_table, problem=problem, maximise=maximise)
        self._charge(solved.nodes)
        return solved

    @property
    def _share(self) -> int:
        """Return the search nodes that one complete search may spend."""
        return (self.effort.limit - self.effort.nodes) // 2

    def _charge(self, nodes: int) -> None:
        self.effort.nodes = min(self.effort.nodes + nodes, self.effort.limit)

    # --- refusing ----------------------------------------------------------------------------------

    def _not_found(self, sought: str) -> NoPreemption:
        text = (
            f"not found within the budget of {counted(self.effort.limit, 'search node')} {sought}"
        )
        return _none("unknown", text, self.nodes, proved=False)

    def _no_help(self, reach: _Reach, *, extras: bool) -> NoPreemption:
        """Return that no set of units is enough: how much could be placed without all of them, and why not more."""
        if reach.bound.solution is not None and not extras:
            rules = self.eviction_view.request.rules
            texts = join_names([*dict.fromkeys(map(rule_text, self._counting_rules(rules)))])
            units = len(self.eviction_view.units)
            text = f"{EVICTING}none, some or all of the {units} lower-priority units keeps {texts}"
            return self._none_helps(lambda _: text)
        effect = "frees capacity for no further member"
        if not extras:
            most = "at most " if len(self.eviction_view.counting) else ""
            effect = f"yields {most}{self._best_partial(reach.bound)}"
        left = () if extras else diagnose(self.eviction_view.bound_request, reach.bound)
        more = tuple(f"after that eviction: {text}" for text in left)
        return self._none_helps(lambda readers: f"{self._all_units(readers)} {effect}", more)

    def _best_partial(self, all_evicted: Solved) -> str:
        """Return how many of the pods or child groups that the root needs could be placed together: two groups may need the same rack.

        Args:
            all_evicted: The proof that the tree does not fit when all units are evicted.
        """
        needed = threshold(all_evicted.problem.groups[0].source)
        held, alone, word = _best(all_evicted)
        most, proved = min(alone, needed - 1), True
        target = most
        while held < most:
            solved = self._with_minimum(target)
            if solved.solution is not None:
                held = target
            else:
                most, proved = target - 1, proved and solved.proved
            target = (held + most + 1) // 2
        return f"{held if proved else f'at least {held}'} of {needed} {word}"

    def _counting_rules(self, rules: tuple[PlanRule, ...]) -> Iterator[PlanRule]:
        """Yield the near and spread rules that count a unit."""
        view = self.eviction_view
        counted = {i for n in view.counting.tolist() for p in view.units[n].pods for i in p.rules}
        return (rules[i] for i in sorted(counted) if rules[i].kind != "apart")

    def _none_helps(
        self,
        text_for: Callable[[Visibility], str],
        more: tuple[str, ...] = (),
        *,
        cause: NoPreemptionCause = "impossible",
    ) -> NoPreemption:
        """Return that no unit is evicted, in words for all readers and for those of the namespace of the tree."""
        namespace = self.request.root.key.namespace
        reasons, reduced = (
            (text_for(readers), *self._spared_reasons(readers), *more)
            for readers in (Visibility.all(), Visibility.of((namespace,)))
        )
        return NoPreemption(
            cause=cause,
            reasons=reasons,
            search=SearchEffort(nodes=self.nodes, exhausted=cause == "impossible"),
            reduced=reduced if reduced != reasons else (),
        )

    def _all_units(self, readers: Visibility) -> str:
        """Return the words for the eviction of all units; a single one is named."""
        units = self.eviction_view.units
        if len(units) != 1:
            return f"{EVICTING}every lower-priority unit ({len(units)})"
        (unit,) = units
        name = _name_of(unit, readers)
        return f"{EVICTING}{name}, the only lower-priority unit,"

    def _spared_reasons(self, readers: Visibility) -> tuple[str, ...]:
        """Return a reason that names the units left out, or nothing."""
        names = [name_for(readers, name) for name in self.eviction_view.source.spared]
        return (
            (f"left alone, for it had them evicted before: {join_names(names)}",) if names else ()
        )

    def _with_minimum(self, minimum: int) -> Solved:
        """Place the tree with another minimum of its root when all units are evicted."""
        root = msgspec.structs.replace(self.request.root, minimum=minimum)
        request = msgspec.structs.replace(self.request, root=root)
        eviction_view = PostEvictionView(request, self.eviction_view.node_table)
        return self._solve(
            ~eviction_view.none_evicted,
            maximise=False,
            eviction_view=eviction_view,
            base=eviction_view.full,
        )

    # --- choosing ----------------------------------------------------------------------------------

    def _cheapest(self, evicted: Bools, first: Solution, min_pods: int) -> PreemptionVerdict:
        reprieve = Reprieve(self.eviction_view, self.effort, min_pods=min_pods)
        victim_sets = reprieve.search(evicted, first)
        best = victim_sets.best
        exact = find_cheapest(
            self.eviction_view,
            reprieve.promising(best),
            limit=(self.effort.limit - self.effort.nodes) // PROOF_SHARE,
            min_pods=min_pods,
            hint=(best.evicted, best.solution),
        )
        self._charge(exact.steps)
        # the bounds of the cost do not count what goes only with several units
        proved = exact.proved and not self.eviction_view.joint
        if exact.evicted is not None:
            evicted = reprieve.reprieve_units(exact.evicted, exact.solution)
            victim_set = VictimSet(evicted, exact.solution, reprieve.price(evicted), "")
            victim_sets.feasible.append(victim_set)
            if msgspec.structs.replace(victim_set.cost, names=()) < msgspec.structs.replace(
                best.cost, names=()
            ):
                best = victim_set
        best, answer = self._planned(best, reprieve, min_pods)
        victims = self._units(best.evicted, running=True)
        superseded = self._units(best.evicted, running=False)
        doubts = self._doubts(best, reprieve)
        used = {a.node for a in answer.assignments}
        source = self.eviction_view.source
        reasons, reduced = (
            _reasons(victims, superseded, doubts, readers)
            for readers in (Visibility.all(), Visibility.of((self.request.root.key.namespace,)))
        )
        return PreemptionPlan(
            victims=victims,
            doubts=doubts,
            superseded=superseded,
            already_terminating=tuple(p.pod for p in source.going if p.node in used),
            plan=answer,
            cost=best.cost,
            alternatives=self._alternatives(best, victim_sets),
            reasons=reasons,
            search=SearchEffort(nodes=self.nodes, exhausted=proved),
            reduced=reduced if reduced != reasons else (),
        )

    def _planned(
        self, best: VictimSet, reprieve: Reprieve, min_pods: int
    ) -> tuple[VictimSet, Plan]:
        """Plan the whole tree after the evictions, and reprieve units that this plan does not need.

        Repeated, because the new plan may place the minimum on other nodes. Extra members use only capacity
        that is left, so they need no unit. Wishes choose among placements after the evictions of the set that is left then,
        and only ever make it smaller.
        """
        wishes = False
        while True:
            solved = self._replanned(best, min_pods)
            if wishes:
                before = solved.nodes
                solved = grant_preferred(self.eviction_view.request, solved)
                self._charge(solved.nodes - before)
            pods = (p for u in self._units(best.evicted) for p in u.pods)
            tree_plan = make_plan(without(self.eviction_view.request, pods), solved)
            minimum = (solved.solution or {}) if min_pods else _minimum(tree_plan, solved)
            evicted = reprieve.reprieve_units(best.evicted, minimum)
            if not bool((evicted == best.evicted).all()):
                best = VictimSet(evicted, minimum, reprieve.price(evicted), best.where)
            elif wishes or not has_wishes(self.request.root):
                return best, tree_plan
            else:
                wishes = True

    def _replanned(self, best: VictimSet, min_pods: int) -> Solved:
        """Place as many pods as possible, at least as many as the set was chosen for."""
        solved = self._solve(best.evicted, maximise=True)
        if solved.solution is None or size(solved.solution) < max(min_pods, size(best.solution)):
            problem = self.eviction_view.problem(best.evicted)
            return Solved(problem, bound_all(problem), best.solution, proved=False, nodes=0)
        return solved

    def _units(self, evicted: Bools, *, running: bool | None = None) -> tuple[PlanUnit, ...]:
        chosen = [self.eviction_view.units[i] for i in np.flatnonzero(evicted)]
        units = (u for u in chosen if running is None or (u.kind != "reservation") == running)
        return tuple(sorted(units, key=lambda unit: unit.name))

    def _doubts(self, best: VictimSet, reprieve: Reprieve) -> dict[str, str]:
        """Return the victims that only a resource counted by kube-scheduler alone rules out, with the reason."""
        back = best.evicted & ~reprieve.reprieve_units(
            best.evicted, best.solution, pessimistic=False
        )
        resources = {
            self.eviction_view.units[barrier.unit].name: barrier.uncounted_resource
            for barrier in reprieve.barriers_against(best.solution)
            if back[barrier.unit]
        }
        return {
            name: f"it uses a {resources[name]} on a node of a member that uses one, "
            "and what is free of it only kube-scheduler knows"
            for name in sorted(resources)
        }

    def _alternatives(
        self, best: VictimSet, victim_sets: VictimSets
    ) -> tuple[VictimAlternative, ...]:
        """List the other sets that were considered, the cheapest first, then the domains without any."""
        listed: list[VictimAlternative] = []
        names_listed = {best.cost.names}
        for other in sorted(victim_sets.feasible, key=lambda c: (c.cost, not c.where)):
            if other.cost.names in names_listed or len(listed) >= ALTERNATIVES_MAX:
                continue
            names_listed.add(other.cost.names)
            where = other.where or self._nodes_of(other)
            reason = _not_chosen_reason(other.cost, best.cost)
            alternative = VictimAlternative(
                where=where, units=other.cost.names, cost=other.cost, reason=reason
            )
            listed.append(alternative)
        reason = "does not free enough capacity"
        for place in victim_sets.infeasible[: ALTERNATIVES_MAX - len(listed)]:
            names = tuple(sorted(self.eviction_view.units[i].name for i in place.units))
            alternative = VictimAlternative(
                where=place.where, units=names, cost=None, reason=reason
            )
            listed.append(alternative)
        return tuple(listed)

    def _nodes_of(self, victim_set: VictimSet) -> str:
        rows = victim_set.evicted[self.eviction_view.unit]
        nodes = np.unique(self.eviction_view.node[rows]).tolist()
        return "nodes " + join_names([self.eviction_view.node_table.nodes[n].name for n in nodes])


def _name_of(unit: PlanUnit, readers: Visibility) -> str:
    return name_for(readers, unit.name, priority=unit.priority, pods=len(unit.pods))


def _reasons(
    victims: tuple[PlanUnit, ...],
    superseded: tuple[PlanUnit, ...],
    doubts: dict[str, str],
    readers: Visibility,
) -> tuple[str, ...]:
    named = {unit.name: _name_of(unit, readers) for unit in victims}
    lines = []
    if victims:
        pods = counted(sum(len(u.pods) for u in victims), "pod")
        names = join_names([_name_of(u, readers) for u in victims])
        lines.append(f"frees capacity by evicting {names} ({pods})")
    if superseded:
        names = join_names([_name_of(u, readers) for u in superseded])
        lines.append(f"uses capacity reserved for {names}")
    lines += [f"{named[name]} is not put back: {reason}" for name, reason in doubts.items()]
    return tuple(lines)


def _minimum(tree_plan: Plan, solved: Solved) -> Solution:
    """Return the assignments of a plan that are not extra, as a placement."""
    kind_of = {
        group.source.members[position].uid: (group.index, kind)
        for group in solved.problem.groups
        for kind, positions in group.members.items()
        for position in positions
    }
    least: Solution = {}
    for assignment in tree_plan.assignments:
        if assignment.extra:
            continue
        group, kind = kind_of[assignment.uid]
        node = solved.problem.node_table.index[assignment.node]
        by_node = least.setdefault(group, {}).setdefault(kind, {})
        by_node[node] = by_node.get(node, 0) + 1
    return least


_WORDS = {
    "violations": "evictions that disruption budgets forbid",
    "highest": "as highest priority of a victim",
    "broken": "running gangs broken",
    "cascades": "victims that would evict others in turn",
    "lost_min": "GPU-minutes of work lost",
    "weight": "as sum of their priorities",
    "units": "units",
    "pods": "pods",
    "age_s": "seconds of work lost more",
}


def _not_chosen_reason(other: VictimCost, best: VictimCost) -> str:
    """Return the reason why a set was not chosen: the first field in which the costs differ."""
    for field, words in _WORDS.items():
        mine, theirs = getattr(best, field), getattr(other, field)
        if mine == theirs:
            continue
        if field == "weight":
            if other.units > best.units:
                return f"costs more: {counted(other.units, 'unit')} instead of {best.units}"
            mine -= best.units * PRIORITY_OFFSET
            theirs -= other.units * PRIORITY_OFFSET
        instead = "none" if mine == NO_PRIORITY else mine
        return f"costs more: {theirs} instead of {instead} {words}"
    if (other.reserved, other.reserved_pods) != (best.reserved, best.reserved_pods):
        return "costs more: takes reservations of more trees, or of more important ones"
    return "costs the same"
