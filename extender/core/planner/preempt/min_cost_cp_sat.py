"""The cheapest set of units that makes room, as one integer program with the placement of the tree.

The model of `exact.py`, with every unit a yes or no, and on the nodes where units run the room that
those leave which stay. The parts of the cost are minimised one after the other; each is then held.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extender.core.planner.model.node_table import Bools
from extender.core.planner.model.problem import PlacementProblem
from extender.core.planner.model.upper_bounds import bound_all
from extender.core.planner.preempt.post_eviction_view import PostEvictionView
from extender.core.planner.preempt.victim_cost import SHIFT, CostModel
from extender.core.planner.solve.cp_sat_placement import STEPS_PER_UNIT, PlacementModel
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.node_classes import NodeClass, make_cells

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

UNITS_MAX = 5_000  # beyond this the model takes longer than anybody waits
PAIRS_MAX = 30_000  # pairs of a kind of pod and a node where units run
COEFFICIENT_MAX = 1 << 40  # of an objective that joins several parts of the cost


@dataclass(slots=True)
class CheapestVictims:
    """What the solver came to."""

    gone: Bools | None  # None: nothing was found in time
    solution: Solution
    proved: bool  # no set costs less (names apart)
    steps: int


@dataclass(slots=True)
class _Part:
    """A part of the cost as a linear expression."""

    variables: list[cp_model.IntVar]
    factors: list[int]
    most: int

    @property
    def void(self) -> bool:
        return not self.variables or self.most == 0


def find_cheapest(
    removal: PostEvictionView,
    tariff: CostModel,
    *,
    limit: int,
    wanted: int,
    hint: tuple[Bools, Solution],
) -> CheapestVictims:
    """Find the cheapest set of units without which the tree can be placed.

    Args:
        removal: The problem.
        tariff: The prices.
        limit: Search nodes that may be spent.
        wanted: Pods that must be placed at least; 0 asks for the minimum of the tree.
        hint: A set and a placement to start from.
    """
    pairs = len(np.unique(removal.node)) * len(removal.full.kinds)
    if limit <= 0 or len(removal.units) > UNITS_MAX or pairs > PAIRS_MAX:
        return CheapestVictims(None, {}, proved=False, steps=0)
    model = _Model(removal, tariff, wanted)
    if not model.build():
        return CheapestVictims(None, {}, proved=False, steps=0)
    return model.minimise(limit, hint)


class _Model(PlacementModel):
    def __init__(self, removal: PostEvictionView, tariff: CostModel, wanted: int) -> None:
        self.removal = removal
        self.tariff = tariff
        self.wanted = wanted
        problem = removal.problem(~removal.nobody)
        barred = [np.flatnonzero(bar.nodes) for bar in removal.bars]
        self.touched = np.unique(np.concatenate([removal.node, *barred]))
        super().__init__(problem, bound_all(problem), _cells(problem, self.touched))
        self.gone = [self.model.new_bool_var("") for _ in removal.units]

    def build(self) -> bool:
        """Write the model down; False when it is too large."""
        if not super().build():
            return False
        users: dict[int, list[tuple[int, cp_model.IntVar]]] = {}
        for leaves in self.leaves:
            for (kind, number), variable in leaves.pods.items():
                for node in self.cells[number].nodes if self.cells[number].slots is None else ():
                    users.setdefault(node, []).append((kind, variable))
        self._rooms(users)
        self._claims()
        self._bars()
        if self.wanted:
            pods = [v for leaves in self.leaves for v in leaves.pods.values()]
            self.model.add(self.cp.LinearExpr.sum(pods) >= self.wanted)
        return True

    def _rooms(self, users: dict[int, list[tuple[int, cp_model.IntVar]]]) -> None:
        """Let pods on a node share what is free there with what units that go give back."""
        removal = self.removal
        rows: dict[int, list[int]] = {}
        for row, node in enumerate(removal.node.tolist()):
            rows.setdefault(node, []).append(row)
        for node, here in rows.items():
            pods = users.get(node, [])
            for axis in range(removal.room.width):
                asks = [int(self.problem.requests[k, axis]) for k, _ in pods]
                if not any(asks):
                    continue
                taken = self.cp.LinearExpr.weighted_sum([v for _, v in pods], asks)
                backs = [int(removal.back[r, axis]) for r in here]
                units = [self.gone[int(removal.unit[r])] for r in here]
                back = self.cp.LinearExpr.weighted_sum(units, backs)
                free = int(removal.room.free[node, axis])
                if free >= 0:
                    self.model.add(taken <= free + back)
                    continue
                used = self.model.new_bool_var("")  # overcommitted: only matters if it is used
                self.model.add(taken <= free + back - free * (1 - used))
                self.model.add(taken <= max(free + sum(backs), 0) * used)

    def _claims(self) -> None:
        """Let nobody have a claim before all units that hold it are gone."""
        for leaves in self.leaves:
            for (kind, _), variable in leaves.pods.items():
                for unit, claims in enumerate(self.removal.claims):
                    if claims & self.problem.claims[kind]:
                        self.model.add(variable <= self.gone[unit])

    def _bars(self) -> None:
        """Let nobody come where a unit keeps it off before that is gone."""
        for bar in self.removal.bars:
            for leaves in self.leaves:
                most = sum(g.size for g in leaves.twins)
                for (kind, cell), variable in leaves.pods.items():
                    barred = self.problem.kinds[kind] in bar.shapes
                    if barred and bar.nodes[self.cells[cell].nodes[0]]:
                        self.model.add(variable <= most * self.gone[bar.unit])

    # --- the cost ----------------------------------------------------------------------------------

    def _parts(self) -> list[_Part]:
        """Write the parts of `Cost` down, in its order."""
        units = self.removal.units
        running = [i for i, u in enumerate(units) if u.costs]
        free = [i for i, u in enumerate(units) if not u.costs]
        return [
            self._violations(running),
            self._highest(running),
            self._broken(running),
            self._sum(running, [int(self.tariff.cascades[i]) for i in running]),
            self._sum(running, [units[i].priority + SHIFT for i in running]),
            self._sum(running, [1] * len(running)),
            self._sum(running, [len(units[i].pods) for i in running]),
            self._sum(running, [self.tariff.age_s(units[i]) for i in running]),
            self._sum(free, [units[i].priority + SHIFT for i in free]),
            self._sum(free, [len(units[i].pods) for i in free]),
        ]

    def _sum(self, chosen: list[int], factors: list[int]) -> _Part:
        pairs = [(self.gone[i], f) for i, f in zip(chosen, factors, strict=True) if f]
        return _Part([v for v, _ in pairs], [f for _, f in pairs], sum(f for _, f in pairs))

    def _violations(self, running: list[int]) -> _Part:
        part = _Part([], [], 0)
        users: dict[int, list[tuple[int, int]]] = {}
        for i in running:
            for budget, pods in self.tariff.protected(self.removal.units[i]).items():
                users.setdefault(budget, []).append((i, pods))
        for budget, pairs in sorted(users.items()):
            allowed = max(self.tariff.source.budgets[budget].allowed, 0)
            most = sum(pods for _, pods in pairs) - allowed
            if most <= 0:
                continue
            over = self.model.new_int_var(0, most, "")
            taken = self.cp.LinearExpr.weighted_sum(
                [self.gone[i] for i, _ in pairs], [pods for _, pods in pairs]
            )
            self.model.add(over >= taken - allowed)
            part.variables.append(over)
            part.factors.append(1)
            part.most += most
        return part

    def _highest(self, running: list[int]) -> _Part:
        levels = sorted({self.removal.units[i].priority for i in running})
        rank = {priority: n for n, priority in enumerate(levels, start=1)}
        top = self.model.new_int_var(0, len(levels), "")
        for i in running:
            self.model.add(top >= rank[self.removal.units[i].priority] * self.gone[i])
        return _Part([top], [1], len(levels))

    def _broken(self, running: list[int]) -> _Part:
        gangs = self.tariff.source.gangs
        holds = self.tariff.holding({})
        lost: dict[int, list[tuple[int, int]]] = {}  # leaf -> unit and the members it takes
        for i in running:
            counts: dict[int, int] = {}
            for pod in self.removal.units[i].pods:
                if pod.gang >= 0:
                    counts[pod.gang] = counts.get(pod.gang, 0) + 1
            for leaf, members in counts.items():
                lost.setdefault(leaf, []).append((i, members))
        fallen: dict[int, cp_model.IntVar] = {}
        part = _Part([], [], 0)
        for index in range(len(gangs) - 1, -1, -1):
            gang = gangs[index]
            if not holds[index]:
                continue
            below = [
                (fallen[c], 1) for c in range(index + 1, len(gangs))
                if gangs[c].parent == index and c in fallen
            ]  # fmt: skip
            terms = below + [(self.gone[i], n) for i, n in lost.get(index, [])]
            children = sum(1 for c, g in enumerate(gangs) if g.parent == index and holds[c])
            spare = gang.running + children - gang.minimum
            most = sum(n for _, n in terms)
            if most <= spare:
                continue
            fallen[index] = self.model.new_bool_var("")
            away = self.cp.LinearExpr.weighted_sum([v for v, _ in terms], [n for _, n in terms])
            self.model.add(away <= spare + (most - spare) * fallen[index])
            if gang.counts:
                part.variables.append(fallen[index])
                part.factors.append(1)
                part.most += 1
        return part

    # --- solving -----------------------------------------------------------------------------------

    def minimise(self, limit: int, hint: tuple[Bools, Solution]) -> CheapestVictims:
        """Minimise the parts of the cost in turn; several at once where the numbers allow it."""
        self._hint(hint[1])
        for variable, value in zip(self.gone, hint[0].tolist(), strict=True):
            self.model.add_hint(variable, value)
        best = CheapestVictims(None, {}, proved=True, steps=0)
        for part in _joined([p for p in self._parts() if not p.void]):
            expression = self.cp.LinearExpr.weighted_sum(part.variables, part.factors)
            self.model.minimize(expression)
            solver = self._solver(limit - best.steps)
            status = solver.solve(self.model)
            best.steps += int(solver.num_branches) + int(solver.num_conflicts)
            if status not in {self.cp.OPTIMAL, self.cp.FEASIBLE}:
                best.proved = False
                return best
            best.gone = np.array([solver.boolean_value(v) for v in self.gone], dtype=np.bool_)
            best.solution = self._read(solver)
            if status != self.cp.OPTIMAL or best.steps >= limit:
                best.proved = False
                return best
            self.model.add(expression <= round(solver.objective_value))
            self._restart(solver)
        return best

    def _solver(self, limit: int) -> cp_model.CpSolver:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.linearization_level = 2
        solver.parameters.max_number_of_conflicts = max(limit, 1)
        solver.parameters.max_deterministic_time = max(limit / STEPS_PER_UNIT, 0.01)
        return solver

    def _restart(self, solver: cp_model.CpSolver) -> None:
        """Start the next part from what was found for this one."""
        self.model.clear_hints()
        for index in range(len(self.model.proto.variables)):
            variable = self.model.get_int_var_from_proto_index(index)
            self.model.add_hint(variable, solver.value(variable))


def _cells(problem: PlacementProblem, touched: np.ndarray) -> list[NodeClass]:
    """Keep the nodes where units run one by one; the others are merged as ever."""
    apart = np.zeros(problem.fleet.size, dtype=np.bool_)
    apart[touched] = True
    merged = make_cells(dataclasses.replace(problem, counts=np.where(apart, 0, problem.counts)))
    singles = []
    for node in touched.tolist():
        kinds: list[int] = np.flatnonzero(problem.counts[:, node]).tolist()
        if kinds:
            singles.append(NodeClass(kinds, [node], None, problem.free[node].tolist()))
    return sorted([*merged, *singles], key=lambda c: c.nodes[0])


def _joined(parts: list[_Part]) -> list[_Part]:
    """Join neighbours whose ranges fit into one objective."""
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
