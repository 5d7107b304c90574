"""The cheapest set of victims, found by one integer program together with the placement of the tree.

The model of `solve.cp_sat_placement` with a boolean per unit (evicted or not), and with the capacity that evicted
units free on their nodes. The parts of the cost are minimised one after the other; each is then a constraint.
Only units that a cheaper set than the one found first can have are in the model (`CostBounds`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extender.core.planner.model.interpod_constraints import SpreadDomains
from extender.core.planner.model.node_table import Bools, Ints
from extender.core.planner.model.problem import PlacementProblem
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.candidate_domains import Promising
from extender.core.planner.preempt.post_eviction_view import PostEvictionView, VictimCost
from extender.core.planner.solve.cp_sat_placement import PlacementModel
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.integer_program import ROWS_PER_STEP, Response
from extender.core.planner.solve.node_classes import NodeClass, make_node_classes
from extender.core.planner.solve.solver_pipeline import size

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import IntVar, LinearExpr

# Fraction of the budget for building the model: one that takes more is too large to be solved with the rest.
BUILD_SHARE = 2
REGIMES_MAX = 8
COEFFICIENT_MAX = 1 << 40  # in an objective that combines several parts of the cost


@dataclass(slots=True)
class CheapestVictims:
    """The result of the solver."""

    evicted: Bools | None  # None: none was found that costs less
    solution: Solution
    proved: bool  # no set costs less, apart from the order by names
    steps: int

    def note(self, other: CheapestVictims, *, is_better: bool) -> None:
        """Take over the set of another model, if it has one, and it is the first or better."""
        self.steps += other.steps
        self.proved &= other.proved
        if other.evicted is not None and (self.evicted is None or is_better):
            self.evicted, self.solution = other.evicted, other.solution


@dataclass(slots=True)
class _Part:
    """A part of the cost as a linear expression."""

    variables: list[IntVar]
    factors: list[int]
    most: int

    @property
    def void(self) -> bool:
        return not self.variables or self.most == 0


@dataclass(slots=True)
class _NearDomain:
    """Nodes on which pods of some shapes are near a counted pod only while one of some units runs."""

    shapes: Collection[int]
    nodes: Bools
    pods: dict[int, int]  # counted pods of each unit


def find_cheapest(
    eviction_view: PostEvictionView,
    promising: Promising,
    *,
    limit: int,
    min_pods: int,
    hint: tuple[Bools, Solution],
) -> CheapestVictims:
    """Find the cheapest set of units without which the tree can be placed.

    Args:
        min_pods: Smallest number of pods to place; 0: the minimum of the tree.
        hint: A set and a placement to start from.
    """
    if promising.proved:  # no unit that a cheaper set could have: there is nothing to solve
        return CheapestVictims(None, {}, proved=True, steps=0)
    best = CheapestVictims(None, {}, proved=True, steps=0)

    def price(candidate: CheapestVictims) -> VictimCost:
        evicted = candidate.evicted if candidate.evicted is not None else hint[0]
        return eviction_view.cost_model.cost([int(i) for i in np.flatnonzero(evicted)])

    for model, left in _models(eviction_view, promising.units, limit, min_pods, best):
        candidate = model.minimise(left, hint)
        best.note(candidate, is_better=price(candidate) < price(best))
    return best


def find_any(eviction_view: PostEvictionView, *, limit: int, maximise: bool) -> CheapestVictims:
    """Find any set of units without which the tree can be placed, whatever it costs.

    Args:
        maximise: Place as many pods as any set allows.

    Returns:
        A set and the placement. `proved`: no set allows more pods; without a set: none is enough.
    """
    units = ~eviction_view.none_evicted
    best = CheapestVictims(None, {}, proved=True, steps=0)
    for model, left in _models(eviction_view, units, limit, 0, best):
        candidate = model.place(left, maximise=maximise)
        best.note(candidate, is_better=size(candidate.solution) > size(best.solution))
        if best.evicted is not None and not maximise:
            break
    return best


def _models(
    eviction_view: PostEvictionView,
    units: Bools,
    limit: int,
    min_pods: int,
    answer: CheapestVictims,
) -> Iterator[tuple[EvictionModel, int]]:
    """Yield a model for each regime, and how many search nodes are left to solve it; note in `answer` what is not proved."""
    regimes = _regimes(eviction_view, units)
    if len(regimes) > REGIMES_MAX:
        regimes, answer.proved = regimes[:REGIMES_MAX], False
    for done, cleared in enumerate(regimes):
        share = (limit - answer.steps) // (len(regimes) - done)
        base = eviction_view.loosest(units, cleared) if len(eviction_view.counting) else None
        if base is not None and base.rules.unjudged.keys() - eviction_view.unjudged.keys():
            answer.proved = False
            continue
        problem = eviction_view.problem(units, base=base)
        if share <= 0 or _least_size(eviction_view, problem, units) > share // BUILD_SHARE:
            answer.proved = False
            continue
        model = EvictionModel(eviction_view, problem, units, min_pods, cleared)
        fits = model.build(share // BUILD_SHARE)
        built = model.program.built()
        answer.steps += min(built, share)
        if not fits:
            answer.proved = False
            continue
        yield model, share - built


def _regimes(eviction_view: PostEvictionView, units: Bools) -> list[frozenset[int]]:
    """Return the sets of near rules for each of which there is a model; the smallest sets come first.

    A pod affinity that selects its own pods holds anywhere once no placed pod is counted, and else only beside counted
    pods. These are different problems. The rules of a set count no pod any more, all others count some.
    """
    if not len(eviction_view.counting):
        return [frozenset()]
    clearable = eviction_view.clearable(units)
    sizes = range(len(clearable) + 1)
    return [frozenset(c) for n in sizes for c in itertools.combinations(clearable, n)]


class EvictionModel(PlacementModel):
    """The integer program of a tree and of the units that are evicted for it."""

    def __init__(
        self,
        eviction_view: PostEvictionView,
        problem: PlacementProblem,
        units: Bools,
        min_pods: int,
        cleared: frozenset[int],
    ) -> None:
        self.eviction_view = eviction_view
        self.cost_model = eviction_view.cost_model
        self.units = units  # that may be evicted, shape (units,)
        self.min_pods = min_pods
        self.cleared = cleared  # near rules that must count no pod any more
        self.barriers = [b for b in eviction_view.barriers if units[b.unit]]
        self.near = list(self._near_domains())
        self.rows: list[int] = np.flatnonzero(units[eviction_view.unit]).tolist()
        barred = [np.flatnonzero(barrier.nodes) for barrier in self.barriers]
        barred += [np.flatnonzero(domain.nodes) for domain in self.near]
        touched = np.unique(np.concatenate([eviction_view.node[self.rows], *barred, self._apart()]))
        super().__init__(problem, bound_all(problem), _cells(problem, touched))
        self.evicted = {i: self.program.new_bool_var() for i in np.flatnonzero(units).tolist()}

    def _apart(self) -> Ints:
        """Return further nodes that are not merged with equal ones."""
        return np.zeros(0, dtype=np.int64)

    def _near_domains(self) -> Iterator[_NearDomain]:
        """Yield the domains in which every counted pod of a near rule may go."""
        view = self.eviction_view
        for index, rule in enumerate(view.request.rules):
            judged = index not in self.cleared and index not in view.unjudged
            pods = view.counts_of(index) if rule.kind == "near" and judged else {}
            leaving = [(unit, pod) for unit in pods if self.units[unit] for pod in pods[unit]]
            for table, key in zip(rule.there, rule.keys, strict=True) if leaving else ():
                codes, values = view.node_table.label(key)
                by_value: dict[int, dict[int, int]] = {}
                for unit, pod in leaving:
                    code = int(codes[view.node_table.index[pod.node]])
                    counts = by_value.setdefault(code, {})
                    counts[unit] = counts.get(unit, 0) + 1
                pods_by_value = dict(table)
                for code, counts in by_value.items():
                    if code >= 0 and sum(counts.values()) >= pods_by_value.get(values[code], 0):
                        yield _NearDomain(rule.shapes, codes == code, counts)

    def build(self, limit: int) -> bool:
        """Build the model; return False if that costs more than a number of search nodes."""
        if not super().build(limit):
            return False
        users: dict[int, list[tuple[int, IntVar]]] = {}
        for _, kind, number, variable in self.placed():
            for node in self.cells[number].nodes if self.cells[number].slots is None else ():
                users.setdefault(node, []).append((kind, variable))
        self._node_capacities(users)
        if self.program.built() > limit:
            return False
        self._claims()
        self._barriers()
        self._nearness()
        if self.min_pods:
            self.program.add(self.all_placed() >= self.min_pods)
        return True

    def _node_capacities(self, users: dict[int, list[tuple[int, IntVar]]]) -> None:
        """Limit pods on a node to its free capacity plus what evicted units free."""
        eviction_view = self.eviction_view
        rows: dict[int, list[int]] = {}
        for row in self.rows:
            rows.setdefault(int(eviction_view.node[row]), []).append(row)
        for node, node_rows in rows.items():
            pods = users.get(node, [])
            for axis in range(eviction_view.capacity.width):
                asks = [int(self.problem.requests[k, axis]) for k, _ in pods]
                if not any(asks):
                    continue
                taken = self.program.weighted_sum([v for _, v in pods], asks)
                backs = [int(eviction_view.back[r, axis]) for r in node_rows]
                units = [self.evicted[int(eviction_view.unit[r])] for r in node_rows]
                back = self.program.weighted_sum(units, backs)
                free = int(eviction_view.capacity.free[node, axis])
                if free >= 0:
                    self.program.add(taken <= free + back)
                    continue
                # overcommitted: constrained only if a pod is placed here
                used = self.program.new_bool_var()
                self.program.add(taken <= free + back - free * (1 - used))
                self.program.add(taken <= max(free + sum(backs), 0) * used)

    def _claims(self) -> None:
        """Forbid pods with a claim as long as a unit that holds it is not evicted."""
        claims_of = [(i, self.eviction_view.claims[i]) for i in self.evicted]
        claims_of = [(i, claims) for i, claims in claims_of if claims]
        for _, kind, _, variable in self.placed():
            for unit, claims in claims_of:
                if claims & self.problem.claims[kind]:
                    self.program.add(variable <= self.evicted[unit])

    def _barriers(self) -> None:
        """Forbid pods on the nodes of a barrier as long as its unit is not evicted."""
        for barrier in self.barriers:
            for leaves, kind, cell, variable in self.placed():
                barred = self.problem.kinds[kind] in barrier.shapes
                if barred and barrier.nodes[self.cells[cell].nodes[0]]:
                    most = sum(g.size for g in leaves.twins)
                    self.program.add(variable <= most * self.evicted[barrier.unit])

    def _nearness(self) -> None:
        """Allow pods with an affinity only beside counted pods that stay, or let all of these go."""
        for rule in self.cleared:
            for unit in self.eviction_view.counts_of(rule):
                self.program.add(self.evicted[unit] == 1)
        every = sum(g.size for g in self.problem.groups)
        for place in self.near:
            allowed = self.program.new_bool_var()
            stay = [(1 - self.evicted[unit]) * pods for unit, pods in place.pods.items()]
            self.program.add(allowed <= self.program.sum(stay))
            pods = [
                variable
                for _, kind, cell, variable in self.placed()
                if self.problem.kinds[kind] in place.shapes
                and place.nodes[self.cells[cell].nodes[0]]
            ]
            self.program.add(self.program.sum(pods) <= every * allowed)

    def _starts(self, rule: SpreadDomains) -> tuple[Sequence[LinearExpr], int]:
        """Return the pods per domain that stay, before any member is placed, and their sum at most."""
        starts: list[LinearExpr] = rule.start.tolist()
        counted = int(rule.start.sum())
        for unit, pods in self.eviction_view.counts_of(rule.rule).items():
            for pod in pods if unit in self.evicted else ():
                domain = int(rule.domain[self.eviction_view.node_table.index[pod.node]])
                if domain >= 0:
                    starts[domain] += 1 - self.evicted[unit]
                    counted += 1
        return starts, counted

    # --- the cost ----------------------------------------------------------------------------------

    def _parts(self) -> list[_Part]:
        """Return the fields of `VictimCost` as linear expressions, in its order."""
        running = [i for i in self.evicted if self.eviction_view.units[i].has_cost]
        sums = zip(*(self.cost_model.sums[i] for i in self.evicted), strict=True)
        return [
            self._violations(running),
            self._highest(running),
            self._broken(running),
            *(self._sum(self.evicted, factors) for factors in sums),
        ]

    def _sum(self, chosen: Iterable[int], factors: Iterable[int]) -> _Part:
        pairs = [(self.evicted[i], f) for i, f in zip(chosen, factors, strict=True) if f]
        return _Part([v for v, _ in pairs], [f for _, f in pairs], sum(f for _, f in pairs))

    def _violations(self, running: list[int]) -> _Part:
        part = _Part([], [], 0)
        users: dict[int, list[tuple[int, int]]] = {}
        for i in running:
            for budget, pods in self.cost_model.protected(self.eviction_view.units[i]).items():
                users.setdefault(budget, []).append((i, pods))
        for budget, pairs in sorted(users.items()):
            allowed = max(self.cost_model.source.budgets[budget].allowed, 0)
            most = sum(pods for _, pods in pairs) - allowed
            if most <= 0:
                continue
            over = self.program.new_int_var(0, most)
            taken = self.program.weighted_sum(
                [self.evicted[i] for i, _ in pairs], [pods for _, pods in pairs]
            )
            self.program.add(over >= taken - allowed)
            part.variables.append(over)
            part.factors.append(1)
            part.most += most
        return part

    def _highest(self, running: list[int]) -> _Part:
        levels = sorted({self.eviction_view.units[i].priority for i in running})
        rank = {priority: n for n, priority in enumerate(levels, start=1)}
        top = self.program.new_int_var(0, len(levels))
        for i in running:
            self.program.add(top >= rank[self.eviction_view.units[i].priority] * self.evicted[i])
        return _Part([top], [1], len(levels))

    def _broken(self, running: list[int]) -> _Part:
        gangs = self.cost_model.source.gangs
        holds = self.cost_model.holding()
        # leaf -> unit and how many members it has there
        lost: dict[int, list[tuple[int, int]]] = {}
        for i in running:
            for leaf, members in self.cost_model.lost[i].items():
                lost.setdefault(leaf, []).append((i, members))
        fallen: dict[int, IntVar] = {}
        below_of: dict[int, list[int]] = {}
        for index, gang in enumerate(gangs):
            below_of.setdefault(gang.parent, []).append(index)
        part = self._sum(
            running, [int(self.eviction_view.units[i].is_whole_group) for i in running]
        )
        for index in range(len(gangs) - 1, -1, -1):
            gang = gangs[index]
            if not holds[index]:
                continue
            children = below_of.get(index, ())
            terms = [(fallen[c], 1) for c in children if c in fallen]
            terms += [(self.evicted[i], n) for i, n in lost.get(index, [])]
            spare = gang.running + sum(holds[c] for c in children) - gang.minimum
            most = sum(n for _, n in terms)
            required = [fallen[c] for c in children if c in fallen and gangs[c].required]
            if most <= spare and not required:
                continue
            fallen[index] = self.program.new_bool_var()
            away = self.program.weighted_sum([v for v, _ in terms], [n for _, n in terms])
            self.program.add(away <= spare + max(most - spare, 0) * fallen[index])
            for child in required:
                self.program.add_implication(child, fallen[index])
            if gang.counts:
                part.variables.append(fallen[index])
                part.factors.append(1)
                part.most += 1
        return part

    # --- solving -----------------------------------------------------------------------------------

    def minimise(self, limit: int, hint: tuple[Bools, Solution]) -> CheapestVictims:
        """Minimise the parts of the cost in order; several at once if their ranges fit into one objective."""
        self._hint(hint[1])
        for unit, variable in self.evicted.items():
            self.program.add_hint(variable, bool(hint[0][unit]))
        best = CheapestVictims(None, {}, proved=True, steps=0)
        for part in _joined([p for p in self._parts() if not p.void]):
            expression = self.program.weighted_sum(part.variables, part.factors)
            self.program.minimize(expression)
            response = self.program.solve(limit - best.steps)
            outcome = response.outcome
            best.steps += response.steps
            if outcome == "none" and len(self.eviction_view.counting):
                return best  # the set found first has its rules in another regime
            if outcome in {"best", "found"}:
                best.evicted, best.solution = self._evicted(response), self._read(response)
            if outcome != "best" or best.steps >= limit:
                best.proved = False
                return best
            self.program.add(expression <= round(response.proto.objective_value))
            self.program.hint_all(response)
        return best

    def place(self, limit: int, *, maximise: bool) -> CheapestVictims:
        """Find any set, or one that allows the most pods."""
        if maximise:
            self.program.maximize(self.all_placed())
        response = self.program.solve(limit)
        outcome, steps = response.outcome, response.steps
        if outcome in {"none", "unknown"}:
            return CheapestVictims(None, {}, proved=outcome == "none", steps=steps)
        proved = outcome == "best" or not maximise
        return CheapestVictims(
            self._evicted(response), self._read(response), proved=proved, steps=steps
        )

    def _evicted(self, response: Response) -> Bools:
        evicted = np.zeros_like(self.units)
        evicted[[i for i, v in self.evicted.items() if response.value(v)]] = True
        return evicted


def _least_size(view: PostEvictionView, problem: PlacementProblem, units: Bools) -> int:
    """Return what building the model costs at least, in search nodes: its units, pods on their nodes, and capacities there."""
    touched = np.unique(view.node[units[view.unit]])
    possible = problem.counts[:, touched] > 0
    axes = np.count_nonzero(problem.requests[:, : view.capacity.width].any(axis=0))
    nodes = np.count_nonzero(possible.any(axis=0))
    rows = np.count_nonzero(units) + np.count_nonzero(possible) + axes * nodes
    return int(rows) // ROWS_PER_STEP


def _cells(problem: PlacementProblem, touched: np.ndarray) -> list[NodeClass]:
    """Return each node with units as a class of its own, and merge the others."""
    apart = np.zeros(problem.node_table.size, dtype=np.bool_)
    apart[touched] = True
    merged = make_node_classes(
        dataclasses.replace(problem, counts=np.where(apart, 0, problem.counts))
    )
    singles = []
    for node in touched.tolist():
        kinds: list[int] = np.flatnonzero(problem.counts[:, node]).tolist()
        if kinds:
            singles.append(NodeClass(kinds, [node], None, problem.free[node].tolist()))
    return sorted([*merged, *singles], key=lambda c: c.nodes[0])


def _joined(parts: list[_Part]) -> list[_Part]:
    """Combine neighbouring parts whose ranges fit into one objective."""
    joined: list[_Part] = []
    for part in parts:
        if joined and (joined[-1].most + 1) * (part.most + 1) <= COEFFICIENT_MAX:
            before, scale = joined[-1], part.most + 1
            joined[-1] = _Part(
                before.variables + part.variables,
                [f * scale for f in before.factors] + part.factors,
                before.most * scale + part.most,
            )
        else:
            joined.append(part)
    return joined
