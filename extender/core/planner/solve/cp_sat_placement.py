"""The complete search: the whole tree as one integer program, solved by CP-SAT.

Used when the greedy search found no placement, or fewer pods than the upper bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from extender.core.planner.model.interpod_constraints import AntiAffinityDomains, SpreadDomains
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import UpperBounds
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.integer_program import (
    ROWS_PER_STEP,
    IntegerProgram,
    Response,
    SolveOutcome,
)
from extender.core.planner.solve.node_classes import NodeClass, make_node_classes

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import IntVar, LinearExpr

EXTRAS_PART = 8  # fraction of the budget for extra members once the minimum is placed

Users: TypeAlias = "list[tuple[int, IntVar]]"  # kind and count of pods in a cell


@dataclass(slots=True)
class CpSatResult:
    """The result of the solver."""

    outcome: SolveOutcome
    solution: Solution
    steps: int  # search nodes: the size of the model, and the deterministic time of the solver
    bound: int = 0  # proved of a count that is minimised: no placement has less


@dataclass(slots=True)
class _Leaves:
    """Identical leaves under one parent, with the variables that they share.

    n leaves with the minimum m and k members each have n*m to n*k pods together. Assigning these to the leaves in turn
    gives each leaf at least its minimum.
    """

    like: CompiledGroup
    twins: list[CompiledGroup]
    taking_part: IntVar
    # domain -> leaves in it; empty: a composite above chooses the domain, or none
    by_domain: dict[int, IntVar]
    pods: dict[tuple[int, int], IntVar] = field(default_factory=dict)  # kind, cell


def solve_exactly(
    problem: PlacementProblem, bounds: UpperBounds, *, limit: int, better_than: Solution | None
) -> CpSatResult:
    """Find a placement of the tree with the most pods, or prove that there is none.

    Args:
        better_than: A placement to better, with a part of the limit; None: any placement of the minimum is enough.
    """
    if _least_rows(problem, bounds) // ROWS_PER_STEP >= limit:  # what `search` returns, at once
        return CpSatResult("unknown", {}, max(limit, 0))
    part = 1 if better_than is None else EXTRAS_PART
    return PlacementModel(problem, bounds).search(
        limit, better_than, optimise=better_than is not None, part=part
    )


def _least_rows(problem: PlacementProblem, bounds: UpperBounds) -> int:
    """Return how many variables and constraints the program has at least: those of the domains that its groups can choose."""
    rows = 0
    inside: set[int] = set()  # composites that choose a domain, and those below them
    counted: set[int] = set()  # parents of a leaf that is counted: others may share its variables
    for group in problem.groups:
        outer, own = group.parent in inside, _own_level(problem, group)
        if not group.leaf and (own or outer):
            inside.add(group.index)
        if own and group.alive and group.parent not in counted:
            # a variable, and with a choice above it a limit, and what it is limited to
            rows += int(np.count_nonzero(bounds.best[group.index] >= 0)) * (3 if outer else 1)
            counted.update([group.parent] if group.leaf else ())
    return rows


def _own_level(problem: PlacementProblem, group: CompiledGroup) -> bool:
    """Return whether a group chooses a domain of its own."""
    above = problem.groups[group.parent].level.keys if group.parent >= 0 else ()
    return group.level.keys != above or bool(group.exclusive)


class PlacementModel:
    """The integer program that places a tree; `preempt.min_cost_cp_sat` adds units to evict."""

    def __init__(
        self, problem: PlacementProblem, bounds: UpperBounds, cells: list[NodeClass] | None = None
    ) -> None:
        self.program = IntegerProgram()
        self.problem = problem
        self.bounds = bounds
        self.cells: list[NodeClass] = make_node_classes(problem) if cells is None else cells
        self.of_kind: dict[int, list[int]] = {}
        for number, cell in enumerate(self.cells):
            for kind in cell.kinds:
                self.of_kind.setdefault(kind, []).append(number)
        first = np.array([c.nodes[0] for c in self.cells], dtype=np.int64)
        self.where = {
            g.level.keys: g.level.domain[first].tolist() for g in problem.groups if g.alive
        }
        self.active: dict[int, IntVar] = {}  # composite -> takes part
        self.chosen: dict[int, dict[int, IntVar]] = {}  # composite -> domain -> chosen
        self.leaves: dict[int, _Leaves] = {}  # by the first of them
        self.picked: dict[int, list[IntVar]] = {}  # cell -> how often each pattern

    # --- building ----------------------------------------------------------------------------------

    def build(self, limit: int) -> bool:
        """Build the model; return False if that costs more than a number of search nodes."""
        for group in self.problem.groups:
            if group.alive and not group.leaf:
                self._composite(group)
        for twins in self._leaf_classes():
            self._leaf_class(twins)
            if self.program.built() > limit:
                return False
        for leaves in self.leaves.values():
            self._pods(leaves)
            if self.program.built() > limit:
                return False
        for group in self.problem.groups:
            if group.alive and not group.leaf:
                self._threshold(group)
        self._capacity()
        self._rules()
        self._exclusive_domains()
        self._floors()
        return True

    def _leaf_classes(self) -> Iterator[list[CompiledGroup]]:
        """Yield the leaves of the tree in classes of interchangeable leaves under one parent."""
        if self.problem.groups[0].leaf:
            yield [self.problem.groups[0]]
        for group in self.problem.groups:
            classes: dict[tuple[object, ...], list[CompiledGroup]] = {}
            for leaf in (self.problem.groups[c] for c in group.children if group.alive):
                if leaf.leaf and leaf.alive:
                    alone = leaf.index if leaf.bound else -1
                    classes.setdefault((alone, *leaf.twin_key), []).append(leaf)
            yield from classes.values()

    def _owner(self, group: CompiledGroup) -> int:
        """Return the nearest composite at or above `group` that chooses a domain; -1: none."""
        above = (each.index for each in self.problem.above(group))
        return next((index for index in above if index in self.chosen), -1)

    def _composite(self, group: CompiledGroup) -> None:
        active = self.program.new_bool_var()
        self.active[group.index] = active
        if group.parent < 0:
            self.program.add(active == 1)
        else:
            self.program.add_implication(active, self.active[group.parent])
        if not _own_level(self.problem, group):
            return
        self.chosen[group.index] = self._by_domain(group, active, 1)

    def _by_domain(self, group: CompiledGroup, taking_part: IntVar, size: int) -> dict[int, IntVar]:
        """Add how many of `size` groups like one are in each domain, inside those that are chosen above."""
        possible: list[int] = np.flatnonzero(self.bounds.best[group.index] >= 0).tolist()
        by_domain = {domain: self.program.new_int_var(0, size) for domain in possible}
        self.program.add(self.program.sum(list(by_domain.values())) == taking_part)
        owner = self._owner(self.problem.groups[group.parent]) if group.parent >= 0 else -1
        if owner >= 0:
            keys, chosen = self.problem.groups[owner].level.keys, self.chosen[owner]
            up = self.problem.node_table.up(group.level.keys, keys)
            for domain, variable in by_domain.items():
                never = self.program.new_int_var(0, 0)
                self.program.add(variable <= size * chosen.get(int(up[domain]), never))
        return by_domain

    def _leaf_class(self, twins: list[CompiledGroup]) -> None:
        like, size = twins[0], len(twins)
        part = self.program.new_int_var(0, size)
        if like.parent < 0:
            self.program.add(part == size)
        else:
            self.program.add(part <= size * self.active[like.parent])
        by_domain = self._by_domain(like, part, size) if _own_level(self.problem, like) else {}
        self.leaves[like.index] = _Leaves(like, twins, part, by_domain)

    def placed(self) -> Iterator[tuple[_Leaves, int, int, IntVar]]:
        """Yield the counts of pods: of which leaves, which kind, and in which cell."""
        for leaves in self.leaves.values():
            for (kind, cell), pods in leaves.pods.items():
                yield leaves, kind, cell, pods

    def all_placed(self) -> LinearExpr:
        """Return the number of all pods."""
        return self.program.sum([pods for *_, pods in self.placed()])

    def _pods(self, leaves: _Leaves) -> None:
        """Add the pod counts of identical leaves, limited to the chosen domains."""
        like, size = leaves.like, len(leaves.twins)
        where = self.where[like.level.keys]
        owner = -1 if leaves.by_domain else self._owner(like)
        if leaves.by_domain or _own_level(self.problem, like):
            gates = leaves.by_domain
        else:
            gates = self.chosen[owner] if owner >= 0 else {}
        free = owner < 0 and not _own_level(self.problem, like)
        for kind, members in like.members.items():
            groups: dict[int, list[IntVar]] = {}
            for cell in self.of_kind.get(kind, []):
                if not free and where[cell] not in gates:
                    continue
                most = min(len(members) * size, self._most(cell, kind))
                variable = self.program.new_int_var(0, most)
                leaves.pods[kind, cell] = variable
                groups.setdefault(-1 if free else where[cell], []).append(variable)
            for domain, pods in groups.items():
                total = self.program.sum(pods)
                if free or owner >= 0:
                    self.program.add(total <= len(members) * leaves.taking_part)
                if not free:
                    scale = len(members) * (size if owner >= 0 else 1)
                    self.program.add(total <= scale * gates[domain])
        self._least(leaves, where, gated=bool(leaves.by_domain))

    def _least(self, leaves: _Leaves, where: list[int], *, gated: bool) -> None:
        """Require the minimum of each leaf that takes part."""
        least = leaves.like.least
        if not least:
            return
        if not gated:
            everything = self.program.sum(list(leaves.pods.values()))
            self.program.add(everything >= least * leaves.taking_part)
            return
        inside: dict[int, list[IntVar]] = {d: [] for d in leaves.by_domain}
        for (_, cell), variable in leaves.pods.items():
            inside[where[cell]].append(variable)
        for domain, number in leaves.by_domain.items():
            self.program.add(self.program.sum(inside[domain]) >= least * number)

    def _most(self, cell: int, kind: int) -> int:
        place = self.cells[cell]
        if place.slots is not None:
            return sum(place.slots)
        return int(self.problem.counts[kind, place.nodes].sum())

    def _threshold(self, group: CompiledGroup) -> None:
        """Require the minimum of children of a composite that takes part."""
        terms: list[IntVar] = []
        sure, active = 0, self.active[group.index]
        for c in group.children:
            child = self.problem.groups[c]
            if child.alive and child.holds:
                sure += 1
            elif child.alive and not child.leaf:
                terms.append(self.active[c])
                if child.required:
                    self.program.add_implication(active, self.active[c])
            elif (leaves := self.leaves.get(c)) is not None:
                terms.append(leaves.taking_part)
                if child.required:
                    self.program.add(leaves.taking_part >= len(leaves.twins) * active)
        self.program.add(self.program.sum(terms) + sure >= group.minimum * active)

    def _capacity(self) -> None:
        """Limit pods to the capacity of every node class, and to one pod per exclusive claim."""
        users: list[Users] = [[] for _ in self.cells]
        claims: dict[str, list[IntVar]] = {}
        for _, kind, number, variable in self.placed():
            users[number].append((kind, variable))
            for claim in self.problem.claims[kind]:
                claims.setdefault(claim, []).append(variable)
        for cell, (place, pods) in enumerate(zip(self.cells, users, strict=True)):
            if place.patterns:
                self._patterns(cell, pods)
                continue
            if place.slots is not None:
                self.program.add(self.program.sum([v for _, v in pods]) <= sum(place.slots))
                continue
            for axis, capacity in enumerate(place.capacity):
                asks = [int(self.problem.requests[k, axis]) for k, _ in pods]
                if any(asks):
                    variables = [v for _, v in pods]
                    self.program.add(self.program.weighted_sum(variables, asks) <= capacity)
        for claim in sorted(claims):
            self.program.add(self.program.sum(claims[claim]) <= 1)

    def _patterns(self, cell: int, pods: Users) -> None:
        """Choose one pattern per node of a class; pods of a kind are limited to the sum of the patterns."""
        place = self.cells[cell]
        counts = [self.program.new_int_var(0, len(place.nodes)) for _ in place.patterns]
        self.picked[cell] = counts
        self.program.add(self.program.sum(counts) <= len(place.nodes))
        for position, kind in enumerate(place.kinds):
            offer = self.program.weighted_sum(counts, [p[position] for p in place.patterns])
            used = self.program.sum([v for k, v in pods if k == kind])
            self.program.add(used <= offer)

    def _rules(self) -> None:
        """Add the dynamic rules between pods."""
        all_members = sum(g.size for g in self.problem.groups)
        for rule in self.problem.rules.dynamic:
            keepers, others = self._users(rule)
            if isinstance(rule, SpreadDomains):
                self._spread(rule, keepers)
                continue
            for domain in keepers.keys() & others.keys() if not rule.alone else keepers.keys():
                first, second = keepers[domain], others.get(domain, [])
                keepers_allowed = self.program.new_bool_var()
                most = 1 if rule.alone else all_members
                self.program.add(self.program.sum(first) <= most * keepers_allowed)
                self.program.add(self.program.sum(second) <= all_members * (1 - keepers_allowed))

    def _spread(self, rule: SpreadDomains, keepers: dict[int, list[IntVar]]) -> None:
        """Limit every domain that gets a pod to the smallest count plus the skew."""
        starts, counted = self._starts(rule)
        most = counted + sum(g.size for g in self.problem.groups)
        fewest = self.program.new_int_var(0, 0 if rule.floor else most)
        for domain, start in enumerate(starts):
            pods = keepers.get(domain, [])
            total = self.program.sum(pods) + start
            if not rule.floor:
                self.program.add(fewest <= total)
            pods_allowed = self.program.new_bool_var()
            self.program.add(self.program.sum(pods) <= most * pods_allowed)
            self.program.add(total <= fewest + rule.skew + most * (1 - pods_allowed))

    def _starts(self, rule: SpreadDomains) -> tuple[Sequence[LinearExpr], int]:
        """Return the pods per domain before any member is placed, and their sum at most."""
        return rule.start.tolist(), int(rule.start.sum())

    def _users(
        self, rule: AntiAffinityDomains | SpreadDomains
    ) -> tuple[dict[int, list[IntVar]], dict[int, list[IntVar]]]:
        """Return per domain the pod counts of the keepers of a rule, and of the others."""
        keepers: dict[int, list[IntVar]] = {}
        others: dict[int, list[IntVar]] = {}
        for _, kind, cell, variable in self.placed():
            domain = int(rule.domain[self.cells[cell].nodes[0]])
            shape = self.problem.kinds[kind]
            if domain >= 0 and shape in rule.keepers:
                keepers.setdefault(domain, []).append(variable)
            elif domain >= 0 and isinstance(rule, AntiAffinityDomains) and shape in rule.others:
                others.setdefault(domain, []).append(variable)
        return keepers, others

    def _exclusive_domains(self) -> None:
        """Allow one exclusive group per value of its key, of those that are compared with each other."""
        for groups in self.problem.exclusive.sets:
            by_value: dict[str, list[IntVar]] = {}
            for group in groups:
                if group.pinned >= 0:  # the upper bounds exclude its domain for the others
                    continue
                leaves = self.leaves.get(group.index)  # of identical leaves the first counts all
                chosen = (
                    leaves.by_domain if leaves is not None else self.chosen.get(group.index, {})
                )
                for domain, variable in chosen.items():
                    value = self.problem.exclusive.value(group, domain)
                    by_value.setdefault(value, []).append(variable)
            for variables in by_value.values():
                self.program.add(self.program.sum(variables) <= 1)

    def _floors(self) -> None:
        """Limit per domain the sum of the minima of its leaves (redundant, but it shortens proofs)."""
        sums: dict[tuple[tuple[str, ...], int], list[tuple[int, IntVar]]] = {}
        for leaves in self.leaves.values():
            for domain, number in leaves.by_domain.items():
                key = (leaves.like.level.keys, domain)
                sums.setdefault(key, []).append((leaves.like.least, number))
        if not sums:
            return
        kinds = list(range(len(self.problem.kinds)))
        per_node = self.problem.pods().per_node(kinds)
        capacities = {keys: self.problem.node_table.level(keys).total(per_node) for keys, _ in sums}
        for (keys, domain), terms in sums.items():
            variables, sizes = [v for _, v in terms], [n for n, _ in terms]
            capacity = int(capacities[keys][domain])
            self.program.add(self.program.weighted_sum(variables, sizes) <= capacity)

    # --- solving -----------------------------------------------------------------------------------

    def search(
        self, limit: int, hint: Solution | None, *, optimise: bool, part: int = 1
    ) -> CpSatResult:
        """Build the model, solve it, and return the placement.

        Args:
            limit: Search nodes for both.
            optimise: False stops at the first placement.
            part: Fraction of what building leaves that solving may spend.
        """
        fits = limit > 0 and self.build(limit)
        built = self.program.built()
        if not fits or built >= limit:
            return CpSatResult("unknown", {}, max(min(built, limit), 0))
        self._aim(optimise=optimise)
        if hint is not None:
            self._hint(hint)
        response = self.program.solve(max((limit - built) // part, 1))
        outcome = response.outcome
        if outcome == "best" and not optimise:
            outcome = "found"
        solution = self._read(response) if outcome in {"best", "found"} else {}
        bound = self._bound(response) if optimise and outcome != "none" else 0
        return CpSatResult(outcome, solution, built + response.steps, bound)

    def _aim(self, *, optimise: bool) -> None:
        """Add the objective: most pods."""
        if optimise and any(leaves.pods for leaves in self.leaves.values()):
            self.program.add(self.all_placed() <= self.bounds.root)
            self.program.maximize(self.all_placed())

    def _bound(self, response: Response) -> int:  # noqa: ARG002 -- of other objectives
        return 0

    def _hint(self, hint: Solution) -> None:
        cell_of = {node: i for i, cell in enumerate(self.cells) for node in cell.nodes}
        for leaves in self.leaves.values():
            amounts: dict[tuple[int, int], int] = {}
            for twin in leaves.twins:
                for kind, nodes in hint.get(twin.index, {}).items():
                    for node, amount in nodes.items():
                        key = (kind, cell_of.get(node, -1))
                        amounts[key] = amounts.get(key, 0) + amount
            for pair, variable in leaves.pods.items():
                self.program.add_hint(variable, amounts.get(pair, 0))

    def _read(self, response: Response) -> Solution:
        seats = [self._seats(cell, response) for cell in range(len(self.cells))]
        solution: Solution = {}
        for leaves in self.leaves.values():
            where = self.where[leaves.like.level.keys]
            waiting = list(leaves.twins)
            numbers = (
                {d: response.value(v) for d, v in leaves.by_domain.items()}
                if leaves.by_domain
                else {-1: response.value(leaves.taking_part)}
            )
            for domain, number in numbers.items():
                twins, waiting = waiting[:number], waiting[number:]
                turn = 0
                for (kind, cell), variable in leaves.pods.items():
                    if domain >= 0 and where[cell] != domain:
                        continue
                    for _ in range(response.value(variable)):
                        node = _next(seats[cell][kind])
                        by_node = solution.setdefault(twins[turn].index, {}).setdefault(kind, {})
                        by_node[node] = by_node.get(node, 0) + 1
                        turn = (turn + 1) % len(twins)
        return solution

    def _seats(self, cell: int, response: Response) -> dict[int, list[list[int]]]:
        """Return per kind the nodes of a class and how many pods each takes; kinds that share slots share a list."""
        place = self.cells[cell]
        if place.slots is not None:
            bag = [[n, s] for n, s in zip(place.nodes, place.slots, strict=True)]
            return dict.fromkeys(place.kinds, bag)
        if not place.patterns:
            node = place.nodes[0]
            return {k: [[node, int(self.problem.counts[k, node])]] for k in place.kinds}
        seats: dict[int, list[list[int]]] = {k: [] for k in place.kinds}
        nodes = iter(place.nodes)
        for pattern, variable in zip(place.patterns, self.picked[cell], strict=True):
            for _ in range(response.value(variable)):
                node = next(nodes)
                for kind, amount in zip(place.kinds, pattern, strict=True):
                    seats[kind].append([node, amount])
        return seats


def _next(seats: list[list[int]]) -> int:
    """Remove one seat from the first node that has any, and return the node."""
    while seats[0][1] == 0:
        seats.pop(0)
    seats[0][1] -= 1
    return seats[0][0]
