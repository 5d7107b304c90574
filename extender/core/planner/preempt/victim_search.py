"""Preemption's front door: which units have to go so that a refused tree finds room, and where it runs then.

Pure, as `search.py`: the same request gives the same bytes on any machine, and effort is counted in
search nodes. The request must carry `evictable`; everything the decision depends on is in it.

The rules are SPEC E and issue 5: only a tree that is refused as Unschedulable asks (a tree that holds
already may ask for its extras), only units of strictly lower priority go, whole, and none that could
stay where it runs; nobody is evicted where the verdict is *unknown*. Reservations of lower-priority
trees cost nothing beside any running pod (DESIGN 9.8); pods that terminate already are counted as
gone, and if that is enough, nobody is evicted. Members whose claims or volumes do not exist are not there for
it: kube-scheduler refuses them on every node, whoever goes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import numpy as np

from extender.core.planner.explain.best_partial_placement import how_far
from extender.core.planner.explain.plan_builder import make_plan, name_some
from extender.core.planner.explain.shortfalls import diagnose
from extender.core.planner.model.feasibility import holds_already, without_lacking
from extender.core.planner.model.node_table import Bools, NodeTable
from extender.core.planner.model.problem import compile_request
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.plan_types import EVICTING, Plan, PlanRequest, SearchEffort, Verdict
from extender.core.planner.planning import plan
from extender.core.planner.preempt.min_cost_cp_sat import find_cheapest
from extender.core.planner.preempt.post_eviction_view import PostEvictionView, without
from extender.core.planner.preempt.reprieve import Reprieve, VictimSet, VictimSets
from extender.core.planner.preempt.victim_cost import NOBODY, SHIFT, CostModel, VictimCost
from extender.core.planner.preemption_types import Evictable, PlanUnit
from extender.core.planner.solve.greedy_placement import SearchBudget, Solution
from extender.core.planner.solve.solver_pipeline import Solved, size, solve

ALTERNATIVES_MAX = 8
PROOF_SHARE = 10  # of what is left of the budget for the proof that no set is cheaper: the tree waits meanwhile
NoCause = Literal["not-triggered", "never", "comes-free", "impossible", "unknown"]


class VictimAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another set of units that was looked at."""

    where: str  # its domain as key=value, or the nodes that it clears
    units: tuple[str, ...]
    cost: VictimCost | None  # None: evicting them makes no room
    why: str  # why it was not chosen


class PreemptionPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Units that have to go, and the plan to use once they are gone.

    `plan` is a plan of `without(request, …)`; members that are not `extra` in it cannot be placed as
    planned with any of the victims back. `search.exhausted`: no set costs less, names apart.
    """

    victims: tuple[PlanUnit, ...]  # sorted by name; those that run
    superseded: tuple[PlanUnit, ...]  # sorted by name; reservations that are taken away
    awaits: tuple[str, ...]  # pods that terminate already on nodes that the plan uses, sorted
    plan: Plan
    cost: VictimCost
    alternatives: tuple[VictimAlternative, ...]
    reasons: tuple[str, ...]  # for people
    search: SearchEffort
    doubts: dict[str, str] = {}  # why a victim was not put back that has room, by name (SPEC L34)


class NoPreemption(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody is evicted.

    *not-triggered*: it is not this tree's turn to ask. *never*: its policy forbids it. *comes-free*: the
    room of pods that terminate already is enough. *impossible*: proved that it would not help.
    *unknown*: the budget ended before a set was found.
    """

    cause: NoCause
    reasons: tuple[str, ...]
    search: SearchEffort


Answer: TypeAlias = PreemptionPlan | NoPreemption


def preempt(
    request: PlanRequest, *, fleet: NodeTable | None = None, verdict: Verdict | None = None
) -> Answer:
    """Find the cheapest units whose removal lets the minimum of a tree be placed.

    Of a tree that holds already, with members that find no place, all extras that can be placed at most
    are made room for (SPEC C.6 and E-2: below a Basic root only if none finds a place by itself).

    Args:
        request: With `evictable`; without it there is nothing to evict.
        fleet: Made from the very same `request.nodes` object; it can change the time taken only.
        verdict: What `plan` said to the very same request, if that is known; saves asking again.
    """
    source = request.evictable or Evictable(priority=0)
    fleet = (
        fleet if fleet is not None and fleet.nodes is request.nodes else NodeTable(request.nodes)
    )
    lacking = next((t for s in request.shapes for t in s.lacking), "")
    if lacking:
        root = without_lacking(request.root, request.shapes)
        if root != request.root:
            request, verdict = msgspec.structs.replace(request, root=root), None
    bare = msgspec.structs.replace(request, evictable=None, explain=False)
    verdict = plan(bare, fleet=fleet) if verdict is None else verdict
    spent = verdict.search.nodes
    if isinstance(verdict, Plan):
        idle = _settled(bare, verdict, fleet)
    elif verdict.outcome == "waiting" and lacking:
        idle = f"no eviction can help: {lacking}"
    elif verdict.outcome != "impossible":
        idle = f"the refusal is no proof ({verdict.outcome}), so nobody is evicted for it"
    elif verdict.status != "Unschedulable":
        idle = "no eviction can help: what keeps it away is not room"
    else:
        idle = ""
    if idle:
        return _none("not-triggered", idle, spent)
    if not source.may_preempt:
        return _none("never", "preemptionPolicy Never: it waits, and nobody is evicted", spent)
    placed = len(verdict.assignments) if isinstance(verdict, Plan) else 0
    return _Decision(request, fleet, spent).decide(placed, extras=isinstance(verdict, Plan))


def may_ask(request: PlanRequest, verdict: Verdict) -> bool:
    """Say quickly whether preemption is worth asking for; False means that `preempt` would not be triggered.

    Args:
        request: What was planned; `evictable` is not looked at.
        verdict: What `plan` said to it.
    """
    if isinstance(verdict, Plan):
        return bool(verdict.unplaced) and holds_already(request.root)
    return verdict.outcome == "impossible" and verdict.status == "Unschedulable"


def _settled(request: PlanRequest, verdict: Plan, fleet: NodeTable) -> str:
    """Say why a tree that can be placed does not ask; empty when it asks for its extras."""
    name = f"{request.root.key.kind} {request.root.key.path}"
    if not holds_already(request.root):
        return (
            f"{name} is placed without evicting anybody; what is beyond its minimum may ask later"
        )
    groups = compile_request(request, fleet).groups
    wanting = sum(g.size for g in groups if g.alive)
    if len(verdict.assignments) == wanting:
        return f"{name}: all that waits finds a place"
    if not verdict.search.exhausted:
        return f"{name}: more may fit by itself, the search was cut short"
    if request.root.basic and verdict.assignments:
        return f"{name} is basic: what fits is placed first"
    return ""


def _none(cause: NoCause, text: str, nodes: int, *more: str, proved: bool = True) -> NoPreemption:
    return NoPreemption(
        cause=cause, reasons=(text, *more), search=SearchEffort(nodes=nodes, exhausted=proved)
    )


class _Decision:
    """One decision: what is spent, and what is known."""

    def __init__(self, request: PlanRequest, fleet: NodeTable, spent: int) -> None:
        self.request = request
        self.removal = PostEvictionView(request, fleet)
        self.tariff = CostModel(self.removal.request, self.removal.units, self.removal.fleet)
        self.effort = SearchBudget(request.budget)
        self.spent = spent  # by planning without evictions

    @property
    def nodes(self) -> int:
        return self.spent + self.effort.nodes

    def decide(self, placed: int, *, extras: bool) -> Answer:
        """Answer for a tree that may ask.

        Args:
            placed: Pods that find a place without any eviction.
            extras: The tree holds already: as many pods as possible are wanted, not the minimum.
        """
        removal, source = self.removal, self.removal.source
        free = placed
        if source.going:
            waited = self._solve(removal.nobody, maximise=extras, doubting=False)
            if waited.solution is not None:
                free = size(waited.solution)
            elif not waited.proved:
                return self._not_found("whether pods that terminate already make room")
        everybody = self._solve(~removal.nobody, maximise=extras)
        most = size(everybody.solution) if everybody.solution is not None else placed
        if free > placed and (not extras or most <= free):
            text = f"{len(source.going)} pods that terminate already make room; nobody has to go"
            if len(source.going) == 1:
                text = "1 pod that terminates already makes room; nobody has to go"
            return _none("comes-free", text, self.nodes)
        if not removal.units:
            what = "no other unit" if source.spared else "no unit"
            text = f"{what} of lower priority than {source.priority} runs or holds room"
            return _none("impossible", text, self.nodes, *self._spared())
        if everybody.solution is None or (extras and most <= free):
            if not everybody.proved:
                return self._not_found("whom to evict")
            return self._no_help(everybody, extras=extras)
        return self._cheapest(everybody.solution, most if extras else 0)

    def _solve(
        self,
        gone: Bools,
        *,
        maximise: bool,
        removal: PostEvictionView | None = None,
        doubting: bool = True,
    ) -> Solved:
        """Search completely, with half of what is left of the budget."""
        removal = removal or self.removal
        left = (self.effort.limit - self.effort.nodes) // 2
        request = msgspec.structs.replace(removal.request, budget=left)
        problem = removal.problem(gone, doubting=doubting)
        solved = solve(request, removal.fleet, problem=problem, maximise=maximise)
        self._charge(solved.nodes)
        return solved

    def _charge(self, nodes: int) -> None:
        self.effort.nodes = min(self.effort.nodes + nodes, self.effort.limit)

    # --- refusing ----------------------------------------------------------------------------------

    def _not_found(self, what: str) -> NoPreemption:
        text = f"not found within the budget of {self.request.budget} search nodes {what}"
        return _none("unknown", text, self.nodes, proved=False)

    def _no_help(self, everybody: Solved, *, extras: bool) -> NoPreemption:
        """Word that evicting everybody does not help: how far it would get, and why not further."""
        units = self.removal.units
        whom = f"{EVICTING}every lower-priority unit ({len(units)})"
        if len(units) == 1:
            whom = f"{EVICTING}{units[0].name}, the only lower-priority unit,"
        if extras:
            text = f"{whom} makes room for no further member"
            return _none("impossible", text, self.nodes, *self._spared())
        text = f"{whom} yields {how_far(everybody, self._with_minimum)}"
        return _none("impossible", text, self.nodes, *self._spared(), *diagnose(everybody))

    def _spared(self) -> tuple[str, ...]:
        """Name those who are left alone."""
        names = self.removal.source.spared
        return (
            (f"left alone, for it had them evicted before: {name_some(list(names))}",)
            if names
            else ()
        )

    def _with_minimum(self, minimum: int) -> Solved:
        """Place the tree with another minimum of its root when everybody is gone."""
        root = msgspec.structs.replace(self.request.root, minimum=minimum)
        request = msgspec.structs.replace(self.request, root=root)
        removal = PostEvictionView(request, self.removal.fleet)
        return self._solve(~removal.nobody, maximise=False, removal=removal)

    # --- choosing ----------------------------------------------------------------------------------

    def _cheapest(self, first: Solution, wanted: int) -> Answer:
        reprieve = Reprieve(self.removal, self.tariff, self.effort, wanted=wanted)
        made = reprieve.search(first)
        best = min(made.found, key=lambda c: c.cost)
        exact = find_cheapest(
            self.removal,
            self.tariff,
            limit=(self.effort.limit - self.effort.nodes) // PROOF_SHARE,
            wanted=wanted,
            hint=(best.gone, best.solution),
        )
        self._charge(exact.steps)
        if exact.gone is not None:
            gone = reprieve.put_back(exact.gone, exact.solution)
            found = VictimSet(gone, exact.solution, reprieve.price(gone), "")
            made.found.append(found)
            if msgspec.structs.replace(found.cost, names=()) < msgspec.structs.replace(
                best.cost, names=()
            ):
                best = found
        best, answer = self._planned(best, reprieve, wanted)
        victims = self._units(best.gone, running=True)
        superseded = self._units(best.gone, running=False)
        doubts = self._doubts(best, reprieve)
        used = {a.node for a in answer.assignments}
        source = self.removal.source
        return PreemptionPlan(
            victims=victims,
            doubts=doubts,
            superseded=superseded,
            awaits=tuple(p.pod for p in source.going if p.node in used),
            plan=answer,
            cost=best.cost,
            alternatives=self._alternatives(best, made),
            reasons=(*self._reasons(victims, superseded), *self._doubtful(doubts)),
            search=SearchEffort(nodes=self.nodes, exhausted=exact.proved),
        )

    def _planned(self, best: VictimSet, reprieve: Reprieve, wanted: int) -> tuple[VictimSet, Plan]:
        """Plan the tree in the room that is made, extras included, and put back whom that spares.

        The extras only use what is left, so they spare nobody; but the minimum may come to lie elsewhere.
        """
        while True:
            solved = self._replanned(best, wanted)
            pods = (p for u in self._units(best.gone) for p in u.pods)
            made = make_plan(without(self.removal.request, pods), solved)
            minimum = (solved.solution or {}) if wanted else _minimum(made, solved)
            gone = reprieve.put_back(best.gone, minimum)
            if bool((gone == best.gone).all()):
                return best, made
            best = VictimSet(gone, minimum, reprieve.price(gone), best.where)

    def _replanned(self, best: VictimSet, wanted: int) -> Solved:
        """Place as many pods as go, at least what the set was chosen for."""
        solved = self._solve(best.gone, maximise=True)
        if solved.solution is None or size(solved.solution) < max(wanted, size(best.solution)):
            problem = self.removal.problem(best.gone)
            return Solved(problem, bound_all(problem), best.solution, proved=False, nodes=0)
        return solved

    def _units(self, gone: Bools, *, running: bool | None = None) -> tuple[PlanUnit, ...]:
        chosen = [self.removal.units[i] for i in np.flatnonzero(gone)]
        return tuple(
            sorted(
                (u for u in chosen if running is None or (u.kind != "reservation") == running),
                key=lambda u: u.name,
            )
        )

    def _doubts(self, best: VictimSet, reprieve: Reprieve) -> dict[str, str]:
        """Say which victims go because of something that only kube-scheduler counts, and by nothing else."""
        back = best.gone & ~reprieve.put_back(best.gone, best.solution, doubting=False)
        bars = [bar for bar in reprieve.barring(best.solution) if back[bar.unit]]
        found = {self.removal.units[bar.unit].name: bar.doubt for bar in bars}
        return {
            name: f"it uses a {found[name]} on a node of a member that uses one, "
            "and what is free of it only kube-scheduler knows"
            for name in sorted(found)
        }

    # --- telling -----------------------------------------------------------------------------------

    def _reasons(
        self, victims: tuple[PlanUnit, ...], superseded: tuple[PlanUnit, ...]
    ) -> tuple[str, ...]:
        lines = []
        if victims:
            pods = sum(len(u.pods) for u in victims)
            names = name_some([u.name for u in victims])
            lines.append(f"makes room by evicting {names} ({_count(pods, 'pod')})")
        if superseded:
            names = name_some([u.name for u in superseded])
            lines.append(f"takes room reserved for {names}")
        return tuple(lines)

    def _doubtful(self, doubts: dict[str, str]) -> list[str]:
        return [f"{name} is not put back: {why}" for name, why in doubts.items()]

    def _alternatives(self, best: VictimSet, made: VictimSets) -> tuple[VictimAlternative, ...]:
        """List the other sets that were looked at, the cheapest first, and where there was nothing."""
        listed: list[VictimAlternative] = []
        seen = {best.cost.names}
        for other in sorted(made.found, key=lambda c: (c.cost, not c.where)):
            if other.cost.names in seen or len(listed) >= ALTERNATIVES_MAX:
                continue
            seen.add(other.cost.names)
            listed.append(
                VictimAlternative(
                    where=other.where or self._nodes_of(other),
                    units=other.cost.names,
                    cost=other.cost,
                    why=_dearer(other.cost, best.cost),
                )
            )
        for place in made.barren[: ALTERNATIVES_MAX - len(listed)]:
            names = tuple(sorted(self.removal.units[i].name for i in place.units))
            listed.append(
                VictimAlternative(
                    where=place.where, units=names, cost=None, why="does not make room"
                )
            )
        return tuple(listed)

    def _nodes_of(self, made: VictimSet) -> str:
        rows = made.gone[self.removal.unit]
        nodes = np.unique(self.removal.node[rows]).tolist()
        return "nodes " + name_some([self.removal.fleet.nodes[n].name for n in nodes])


def _minimum(made: Plan, solved: Solved) -> Solution:
    """Give the part of a plan that is no extra, as a placement."""
    kind_of = {
        group.source.members[position].uid: (group.index, kind)
        for group in solved.problem.groups
        for kind, positions in group.members.items()
        for position in positions
    }
    least: Solution = {}
    for assignment in made.assignments:
        if assignment.extra:
            continue
        group, kind = kind_of[assignment.uid]
        node = solved.problem.fleet.index[assignment.node]
        there = least.setdefault(group, {}).setdefault(kind, {})
        there[node] = there.get(node, 0) + 1
    return least


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_WORDS = {
    "violations": "evictions that disruption budgets forbid",
    "highest": "as highest priority of a victim",
    "broken": "running gangs broken",
    "cascades": "victims that would evict others in turn",
    "weight": "as sum of their priorities",
    "units": "units",
    "pods": "pods",
    "age_s": "seconds of work lost more",
}


def _dearer(other: VictimCost, best: VictimCost) -> str:
    """Say in which part a set first differs from the chosen one."""
    for field, words in _WORDS.items():
        mine, theirs = getattr(best, field), getattr(other, field)
        if mine == theirs:
            continue
        if field == "weight":
            if other.units > best.units:
                return f"costs more: {other.units} units instead of {best.units}"
            mine, theirs = mine - best.units * SHIFT, theirs - other.units * SHIFT
        instead = "nobody" if mine == NOBODY else mine
        return f"costs more: {theirs} instead of {instead} {words}"
    if (other.reserved, other.reserved_pods) != (best.reserved, best.reserved_pods):
        return "costs more: takes reservations of more trees, or of more important ones"
    return "costs the same"
