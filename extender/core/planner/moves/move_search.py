"""The entry point of moves: `find_moves` finds the fewest moves that make room, or proves that none do.

Pure, as `planning.py`. Pods that must leave anyway are given the tightest nodes that can take them now, so their moves need no
order. Where this reaches the least number that is possible it is the answer; else an integer program decides, as long as
it is not too large (`PAIRS_MAX`), and `least` is the bound that is proved.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.node_table import Bools, Ints, NodeTable, may_run
from extender.core.planner.moves.move_types import (
    NO_SEARCH,
    Move,
    Mover,
    MovesOutcome,
    MovesPlan,
    MovesRequest,
)
from extender.core.planner.plan_types import (
    Evictable,
    Plan,
    PlanGroup,
    PlanRequest,
    PlanUnit,
    PlanVictim,
    Refusal,
    SearchEffort,
)
from extender.core.planner.planning import plan
from extender.core.planner.preempt.min_cost_cp_sat import EvictionModel
from extender.core.planner.preempt.post_eviction_view import (
    PostEvictionCapacity,
    PostEvictionView,
    without,
)
from extender.core.planner.preempt.victim_search import BUDGETS, NoPreemption, preempt
from extender.core.planner.solve.integer_program import ROWS_PER_STEP, IntegerProgram, Response

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import IntVar, LinearExpr


# --- the request compiled to arrays

_NO_TREE = PlanGroup(key=GroupKey("", "", "PodGroup"), basic=True)
WEIGHT_MAX = 1 << 60  # of the objective
Targets = dict[int, int]  # number of a mover -> index of its new node


@dataclass(slots=True, eq=False)
class MoveProblem:
    """A request as arrays; axes are resources and host ports."""

    request: MovesRequest
    base: PlanRequest  # with the movers as units that can be evicted
    node_table: NodeTable
    capacity: PostEvictionCapacity
    free: Ints  # (nodes, axes); negative where overcommitted
    asks: Ints  # (movers, axes): what a mover needs on its new node
    frees: Ints  # (movers, axes): what it leaves on its node
    at: Ints  # (movers,): its node
    allowed: Bools  # (movers, nodes): the static filters and its domains
    weights: list[int]  # by mover, see `_weights`

    def on(self, nodes: Iterable[int]) -> list[int]:
        """Return the movers on some nodes, ascending."""
        mask = np.zeros(self.node_table.size, dtype=np.bool_)
        mask[[*nodes]] = True
        numbers: list[int] = np.flatnonzero(mask[self.at]).tolist() if len(self.at) else []
        return numbers

    def price(self, movers: Iterable[int]) -> tuple[int, int]:
        """Return the number of some movers and the sum of their weights."""
        chosen = list(movers)
        return len(chosen), sum(self.weights[i] for i in chosen)

    def fits(self, free: Ints, mover: int, node: int) -> bool:
        """Return whether a mover fits on a node."""
        asks = self.asks[mover]
        return bool((free[node][asks > 0] >= asks[asks > 0]).all())

    def do(self, free: Ints, mover: int, target: int) -> None:
        """Change the free capacity by one move."""
        free[target] -= self.asks[mover]
        free[self.at[mover]] += self.frees[mover]


def compile_moves(request: MovesRequest) -> MoveProblem:
    """Return the problem of a request."""
    tree = request.tree or PlanRequest(root=_NO_TREE, nodes=request.nodes, shapes=())
    units = tuple(
        PlanUnit(
            name=f"Pod/{mover.pod}",
            uid=mover.uid,
            kind="pod",
            priority=0,
            may_preempt=False,
            pods=(PlanVictim(pod=mover.pod, uid=mover.uid, node=mover.node, shape=mover.shape),),
        )
        for mover in request.movers
    )
    # of equal priority and without gangs and budgets, the cheapest set is the one of the fewest pods
    evictable = Evictable(priority=1, units=units, shapes=request.shapes)
    base = msgspec.structs.replace(tree, evictable=evictable)
    table = NodeTable(request.nodes)
    capacity = PostEvictionCapacity(base, [*tree.shapes, *request.shapes])
    asks = _rows([capacity.requests(shape) for shape in request.shapes], capacity.width)
    frees = _rows([capacity.taken(shape) for shape in request.shapes], capacity.width)
    shape = np.array([m.shape for m in request.movers], dtype=np.int64)
    at = np.array([table.index[m.node] for m in request.movers], dtype=np.int64)
    frees_of = frees[shape]
    if len(at):
        frees_of[:, : len(capacity.names)] *= capacity.offered[at]
    return MoveProblem(
        request=request,
        base=base,
        node_table=table,
        capacity=capacity,
        free=capacity.free,
        asks=asks[shape],
        frees=frees_of,
        at=at,
        allowed=_allowed(request, table),
        weights=_weights(request.movers),
    )


def _weights(movers: Sequence[Mover]) -> list[int]:
    """Return the weight of each mover: its priority above the lowest in units of their common divisor, then the work it loses.

    Work counts in GPU-minutes; in larger steps where the solver could not add the numbers.
    """
    lowest = min((m.priority for m in movers), default=0)
    unit = math.gcd(*(m.priority - lowest for m in movers)) or 1
    ranks = [(m.priority - lowest) // unit for m in movers]
    largest = WEIGHT_MAX // (len(movers) + 1) ** 2 // (sum(ranks) + 1) - 2
    total = sum(m.lost_min for m in movers)
    step = -(-total // largest) if largest > 0 else total + 1
    lost = [m.lost_min // max(step, 1) for m in movers]
    above = sum(lost) + 1
    return [rank * above + steps for rank, steps in zip(ranks, lost, strict=True)]


def _rows(rows: Sequence[Ints], width: int) -> Ints:
    return np.stack(rows) if rows else np.zeros((0, width), dtype=np.int64)


def _allowed(request: MovesRequest, table: NodeTable) -> Bools:
    """Return per mover the nodes that it may have."""
    allowed = np.zeros((len(request.movers), table.size), dtype=np.bool_)
    open_to_all = np.array([n.name not in request.barred for n in request.nodes], dtype=np.bool_)
    rows: dict[tuple[int, tuple[tuple[str, str], ...]], Bools] = {}
    by_shape = [may_run(table, shape) & open_to_all for shape in request.shapes]
    for number, mover in enumerate(request.movers):
        key = (mover.shape, mover.within)
        if key not in rows:
            row = by_shape[mover.shape].copy()
            for label, value in mover.within:
                codes, values = table.label(label)
                row &= codes == values.index(value)
            rows[key] = row
        allowed[number] = rows[key]
        allowed[number, table.index[mover.node]] = False
    return allowed


def moves_of(problem: MoveProblem, order: Sequence[tuple[int, int]]) -> tuple[Move, ...]:
    """Return moves, given as movers and the indexes of their new nodes."""
    movers, nodes = problem.request.movers, problem.request.nodes
    return tuple(
        Move(
            pod=movers[i].pod,
            uid=movers[i].uid,
            group=movers[i].group,
            source=movers[i].node,
            target=nodes[node].name,
            priority=movers[i].priority,
            lost_min=movers[i].lost_min,
        )
        for i, node in order
    )


def tree_after(problem: MoveProblem, moves: Iterable[tuple[int, int]]) -> PlanRequest:
    """Return the request of the tree after some moves."""
    assert problem.base.evictable is not None
    units, moved = problem.base.evictable.units, list(moves)
    left = without(problem.base, (units[mover].pods[0] for mover, _ in moved))
    nodes = list(left.nodes)
    for mover, target in moved:
        shape, node = problem.request.shapes[problem.request.movers[mover].shape], nodes[target]
        free = {**node.free}
        add_amounts(free, {r: n for r, n in shape.requests if r in node.allocatable}, -1)
        ports = tuple(sorted({*node.host_ports, *shape.host_ports}))
        nodes[target] = msgspec.structs.replace(node, free=free, host_ports=ports)
    return msgspec.structs.replace(left, nodes=tuple(nodes), extras_later=True, evictable=None)


def moves_in_order(
    problem: MoveProblem, targets: Targets, limit: int
) -> list[tuple[int, int]] | None:
    """Return some moves in an order in which each has its place before the pod leaves.

    Args:
        limit: Steps that may be tried.

    Returns:
        None: there is no such order.

    Raises:
        OverLimit: The limit was reached first.
    """
    tries = itertools.count(1)

    def tried_next(free: Ints, left: frozenset[int]) -> Iterator[int]:
        if not left:
            return iter(())
        if next(tries) > limit:
            raise OverLimit
        ready = [i for i in sorted(left) if problem.fits(free, i, targets[i])]
        for i in ready:
            coming = [other for other in left if targets[other] == targets[i]]
            asks = problem.asks[coming].sum(axis=0)
            if (free[targets[i]][asks > 0] >= asks[asks > 0]).all():
                # one to a node that can take all that still come takes no place from any other: it is made first
                return iter([i])
        return iter(ready)

    free, left = problem.free.copy(), frozenset(targets)
    path: list[int] = []
    stuck: set[frozenset[int]] = set()  # what is left, and has no order
    steps = [(free, left, tried_next(free, left))]
    while steps:  # no recursion: there may be more than a thousand moves
        free, left, movers = steps[-1]
        if not left:
            return [(mover, targets[mover]) for mover in path]
        if (mover := next(movers, None)) is None:
            stuck.add(left)
            steps.pop()
            del path[-1:]
        elif (rest := left - {mover}) not in stuck:
            after = free.copy()
            problem.do(after, mover, targets[mover])
            path.append(mover)
            steps.append((after, rest, tried_next(after, rest)))
    return None


class OverLimit(Exception):
    """A search has used up its limit."""


# --- the fewest moves as an integer program: a boolean for each pod that moves, and for each node that it can have

# The order of the moves is no part of the program. Where a solution has no order in which each pod has its place before it
# leaves, it is excluded, and the program is solved again.

PAIRS_MAX = 60_000  # pods times nodes: a larger program is not built
ORDERS_MAX = 200  # solutions without an order that are excluded
ORDER_STEPS = 2_000  # of one search for an order


@dataclass(slots=True)
class ExactMoves:
    """The result of the program."""

    order: list[tuple[int, int]] | None  # None: no moves were found
    least: int  # no fewer moves lead there; of an infeasible program any number
    proved: bool  # the moves are the fewest and cheapest; without moves: none lead there
    steps: int
    chosen: tuple[int, ...] = ()  # the sets that are emptied


def _too_large(problem: MoveProblem, movers: Sequence[int]) -> bool:
    """Return whether a program of some pods has too many variables, or too large numbers for the solver."""
    weight = sum(problem.weights[i] for i in movers) + 1
    return (
        int(problem.allowed[movers].sum()) > PAIRS_MAX
        or weight * (len(movers) + 1) ** 2 > WEIGHT_MAX
    )


class _Movers:
    """The variables of the pods that may move."""

    def __init__(
        self,
        problem: MoveProblem,
        program: IntegerProgram,
        movers: Iterable[int],
        moved: Mapping[int, IntVar] | None = None,
    ) -> None:
        self.problem = problem
        self.program = program
        self.moved: dict[int, IntVar] = {}
        self.to: dict[int, dict[int, IntVar]] = {}
        self.coming: dict[int, list[tuple[int, IntVar]]] = {}
        self.leaving: dict[int, list[int]] = {}
        for i in movers:
            self.moved[i] = program.new_bool_var() if moved is None else moved[i]
            nodes: list[int] = np.flatnonzero(problem.allowed[i]).tolist()
            self.to[i] = {node: program.new_bool_var() for node in nodes}
            program.add(sum(self.to[i].values()) == self.moved[i])
            for node, variable in self.to[i].items():
                self.coming.setdefault(node, []).append((i, variable))
            self.leaving.setdefault(int(problem.at[i]), []).append(i)

    def limit_nodes(self, others: dict[int, list[tuple[Ints, IntVar]]]) -> None:
        """Limit what comes to a node, moved pods and others, to what is free there and what leaves.

        Args:
            others: By node, further pods with what each asks for.
        """
        problem = self.problem
        # elsewhere nothing changes, and the program of the tree has the limits
        for node in sorted(self.coming.keys() | (others.keys() & self.leaving.keys())):
            users = [(problem.asks[i], variable) for i, variable in self.coming.get(node, ())]
            users += others.get(node, [])
            leaving = self.leaving.get(node, ())
            for axis in range(problem.capacity.width):
                asking = [(int(asks[axis]), variable) for asks, variable in users if asks[axis]]
                if not asking:
                    continue
                free = int(problem.free[node, axis])
                taken = sum(amount * variable for amount, variable in asking)
                back = sum(int(problem.frees[i, axis]) * self.moved[i] for i in leaving)
                if free >= 0:
                    self.program.add(taken <= free + back)
                    continue
                used = self.program.new_bool_var()  # overcommitted: that counts only if a pod comes
                self.program.add(taken <= free + back, only_if=used)
                for _, variable in asking:
                    self.program.add(variable == 0, only_if=~used)

    @property
    def scale(self) -> int:
        """Return what one move counts in the objective: more than the weights of all together."""
        return sum(self.problem.weights[i] for i in self.moved) + 1

    def objective(self, asked: Iterable[int] = ()) -> LinearExpr:
        """Return the number of moves, and after it the sum of the priorities; before both how many of `asked` stay."""
        scale = self.scale
        most = scale * (len(self.moved) + 1)
        costs = [scale + self.problem.weights[i] for i in self.moved]
        cost = self.program.weighted_sum(list(self.moved.values()), costs)
        return cost + sum(most * (1 - self.moved[i]) for i in asked)

    def targets(self, response: Response) -> Targets:
        """Return the moves of a solution."""
        return {
            i: next(node for node, variable in nodes.items() if response.value(variable))
            for i, nodes in self.to.items()
            if response.value(self.moved[i])
        }

    def exclude(self, targets: Targets) -> None:
        """Exclude moves that have no order, as long as no further pod moves."""
        problem = self.problem
        # None of those that do not fit now is the first of them, unless another pod has left one of their nodes.
        full = {i: n for i, n in targets.items() if not problem.fits(problem.free, i, n)}
        helpers = {i for node in full.values() for i in self.leaving.get(node, ())} - full.keys()
        if full:
            self._not_all(full, helpers)
        self._not_all(targets, self.moved.keys() - targets.keys())

    def _not_all(self, targets: Targets, unless: Iterable[int]) -> None:
        chosen = [self.to[i][node] for i, node in targets.items()]
        self.program.add(sum(chosen) <= len(chosen) - 1 + sum(self.moved[i] for i in unless))

    def solve(self, limit: int, asked: Sequence[int] = ()) -> ExactMoves:
        """Minimise the objective, over moves that have an order.

        Args:
            asked: Movers of which as many as possible move; of these there is no bound.
        """
        budget = self.problem.request.budget
        # a larger one allows all, and may be no number of the solver
        if 0 < budget < len(self.moved):
            self.program.add(sum(self.moved.values()) <= budget)
        self.program.minimize(self.objective(asked))
        steps, least = len(self.program.proto.variables) // ROWS_PER_STEP, 0
        for _ in range(ORDERS_MAX):
            response = self.program.solve(limit - steps, linearization_level=1)
            outcome = response.outcome
            steps += response.steps
            if outcome == "none":
                return ExactMoves(None, least, proved=True, steps=steps)
            if outcome == "unknown":
                break
            if not asked:
                least = max(least, int(response.proto.best_objective_bound + 0.5) // self.scale)
            targets = self.targets(response)
            try:
                order = moves_in_order(self.problem, targets, ORDER_STEPS)
            except OverLimit:
                break
            if order is not None:
                return ExactMoves(order, least, proved=outcome == "best", steps=steps)
            self.exclude(targets)
            if steps >= limit:
                break
        return ExactMoves(None, least, proved=False, steps=steps)


def empty_exactly(
    problem: MoveProblem,
    movers: Sequence[int],
    sets: Sequence[Sequence[int]],
    count: int,
    limit: int,
) -> ExactMoves | None:
    """Find the fewest moves that empty some sets of nodes; None: the program would be too large, or the limit is used up.

    Args:
        sets: The nodes of each set; all pods on them are movers.
        count: How many of the sets; 0: all, as far as their pods have a place elsewhere.
    """
    if limit <= 0 or _too_large(problem, movers):
        return None
    program = IntegerProgram()
    pods = _Movers(problem, program, movers)
    emptied = (
        [program.new_bool_var() for _ in sets] if count else [program.new_int_var(1, 1)] * len(sets)
    )
    if count:
        program.add(sum(emptied) == count)
    asked: list[int] = []
    for nodes, empty in zip(sets, emptied, strict=True):
        on_nodes = [i for i in problem.on(nodes) if i in pods.moved]
        asked += on_nodes
        for i in on_nodes if count else ():
            program.add(pods.moved[i] >= empty)
        for _, variable in (pair for node in nodes for pair in pods.coming.get(node, ())):
            program.add(variable + empty <= 1)
    pods.limit_nodes({})
    solved = pods.solve(limit, () if count else sorted(set(asked)))
    if solved.order is not None:
        moved = {i for i, _ in solved.order}
        ends = {node for _, node in solved.order}
        solved.chosen = tuple(
            number
            for number, nodes in enumerate(sets)
            if moved.issuperset(problem.on(nodes)) and ends.isdisjoint(nodes)
        )
    return solved


class _TreeAndMoves(EvictionModel):
    """The program that places a tree, and gives each pod that leaves for it another node."""

    def __init__(self, problem: MoveProblem, view: PostEvictionView) -> None:
        self.moves = problem
        units = ~view.none_evicted
        super().__init__(view, view.problem(units), units, 0, frozenset())

    def _apart(self) -> Ints:
        """Return the nodes that a pod can be moved to."""
        return np.flatnonzero(self.moves.allowed.any(axis=0))

    def _node_capacities(self, users: dict[int, list[tuple[int, IntVar]]]) -> None:
        asks = [self.moves.capacity.requests(shape) for shape in self.problem.shapes]
        self.pods = _Movers(self.moves, self.program, sorted(self.evicted), self.evicted)
        self.pods.limit_nodes(
            {node: [(asks[kind], v) for kind, v in pairs] for node, pairs in users.items()}
        )


def make_room_exactly(problem: MoveProblem, limit: int) -> ExactMoves | None:
    """Find the fewest moves after which the tree fits; None: the program would be too large."""
    if _too_large(problem, range(len(problem.request.movers))):
        return None
    view = PostEvictionView(problem.base, problem.node_table)
    assert len(view.units) == len(problem.request.movers), "no rule between pods counts a mover"
    program = _TreeAndMoves(problem, view)
    if not program.build(limit):
        return None
    return program.pods.solve(limit)


# --- the search

CHOICES_MAX = 64  # choices of sets that are tried one after the other
ROUNDS_MAX = 8  # searches for pods to move, each without those that had no place in the one before


def find_moves(request: MovesRequest) -> MovesPlan:
    """Return the fewest moves that empty some nodes, or after which a tree fits."""
    problem = compile_moves(request)
    if request.tree is not None:
        return _make_room(problem)
    if request.count:
        return _free_sets(problem)
    return _drain(problem)


# --- nodes to empty ------------------------------------------------------------------------------


def relocate(
    problem: MoveProblem, movers: Iterable[int], closed: Bools, free: Ints
) -> tuple[Targets, list[int]]:
    """Give pods the tightest nodes that can take them now, the largest pods first; return these, and the pods that have none.

    `closed`: per node whether none comes there.
    """
    free = free.copy()
    largest = np.maximum(free.max(axis=0, initial=1), 1)
    targets: Targets = {}
    left = []
    share = {i: float((problem.asks[i] / largest).max()) for i in movers}
    for i in sorted(share, key=lambda i: (-share[i], int(problem.allowed[i].sum()), i)):
        asks = problem.asks[i]
        axes = asks > 0
        able = problem.allowed[i] & ~closed & (free[:, axes] >= asks[axes]).all(axis=1)
        nodes = np.flatnonzero(able)
        if not len(nodes):
            left.append(i)
            continue
        slack = ((free[nodes] - asks) / largest)[:, axes].sum(axis=1)
        node = int(nodes[int(np.argmin(slack))])
        free[node] -= asks
        targets[i] = node
    return targets, left


def _indexes(problem: MoveProblem) -> list[list[int]]:
    index = problem.node_table.index
    return [[index[name] for name in nodes] for nodes in problem.request.sets]


def _mask(problem: MoveProblem, sets: Iterable[Sequence[int]]) -> Bools:
    mask = np.zeros(problem.node_table.size, dtype=np.bool_)
    for nodes in sets:
        mask[list(nodes)] = True
    return mask


def _drain(problem: MoveProblem) -> MovesPlan:
    """Move as many pods as possible off all sets, with the fewest moves."""
    sets = _indexes(problem)
    closed = _mask(problem, sets)
    asked = problem.on(np.flatnonzero(closed).tolist())
    targets, left = relocate(problem, asked, closed, problem.free)
    proved, effort = not left, 0
    order = _by_set(problem, sets, targets)
    if left:
        limit = problem.request.search_budget
        movers: Sequence[int] = range(len(problem.request.movers))
        exact = empty_exactly(problem, movers, sets, 0, limit)
        proved = exact is not None and exact.proved
        if exact is None:  # too large with all pods: with those that are asked for
            exact = empty_exactly(problem, asked, sets, 0, limit)
        if exact is not None and exact.order is not None:
            effort = exact.steps
            moved = {i for i, _ in exact.order}
            if len(moved.intersection(asked)) >= len(targets):
                order = exact.order
                left = [i for i in asked if i not in moved]
    movers_of = problem.request.movers
    outcome: MovesOutcome = "moves" if order else "impossible" if proved else "unknown"
    if not asked:
        outcome = "fits"
    return MovesPlan(
        outcome=outcome,
        moves=moves_of(problem, order),
        least=len(order) if proved else len(asked) - len(left),
        cheapest=proved,
        emptied=tuple(range(len(sets))) if not left else (),
        unmoved=tuple(sorted(movers_of[i].pod for i in left)),
        search=SearchEffort(nodes=effort, exhausted=proved),
    )


def _by_set(
    problem: MoveProblem, sets: Sequence[Sequence[int]], targets: Targets
) -> list[tuple[int, int]]:
    """Return moves that need no order, set by set and node by node."""
    place = {node: (number, node) for number, nodes in enumerate(sets) for node in nodes}
    return sorted(targets.items(), key=lambda move: (place[int(problem.at[move[0]])], move[0]))


def _free_sets(problem: MoveProblem) -> MovesPlan:
    """Empty so many sets as are asked for, those with the fewest moves."""
    request, sets = problem.request, _indexes(problem)
    staying = {pod.node for pod in request.staying if not pod.on_every_node}
    possible = [number for number, nodes in enumerate(request.sets) if staying.isdisjoint(nodes)]
    if len(possible) < request.count:
        text = f"{counted(len(possible), 'domain')} of {len(sets)} can be emptied at all, {request.count} are asked for"
        return MovesPlan(outcome="impossible", reasons=(text,))
    on_set = {number: problem.on(sets[number]) for number in possible}
    possible.sort(key=lambda number: (problem.price(on_set[number]), number))
    costs = [problem.price(on_set[number]) for number in possible]
    least, _ = _sum(costs[: request.count])
    if request.budget and least > request.budget:
        return _over_budget(request, least, NO_SEARCH)
    if least == 0:
        return MovesPlan(
            outcome="fits", cheapest=True, emptied=tuple(sorted(possible[: request.count]))
        )
    best: MovesPlan | None = None
    bound = (1 << 31, 0)  # no choice that was passed over costs less
    effort = 0
    for cost, choice in _choices(costs, request.count):
        if request.budget and cost[0] > request.budget:
            break
        numbers = [possible[at] for at in choice]
        closed = _mask(problem, [sets[n] for n in numbers])
        movers = [i for n in numbers for i in on_set[n]]
        targets, left = relocate(problem, movers, closed, problem.free)
        order = _by_set(problem, sets, targets)
        if left:
            left_over = request.search_budget - effort
            chosen_sets = [sets[n] for n in numbers]
            exact = empty_exactly(problem, movers, chosen_sets, request.count, left_over)
            effort += exact.steps if exact is not None else 0
            if exact is None or exact.order is None:
                # where it has no moves of these pods alone, at least one more must move
                proved = exact is not None and exact.proved
                bound = min(bound, (cost[0] + 1, 0) if proved else cost)
                continue
            order = exact.order
        best = MovesPlan(
            outcome="moves",
            moves=moves_of(problem, order),
            least=min(bound, cost)[0],
            cheapest=cost <= bound,
            emptied=tuple(sorted(numbers)),
            search=SearchEffort(nodes=effort, exhausted=cost <= bound),
        )
        break
    if best is not None and best.search.exhausted:
        return best
    usable = [sets[number] for number in possible]
    exact = empty_exactly(
        problem, range(len(request.movers)), usable, request.count, request.search_budget
    )
    answer = _better(problem, best, exact, effort)
    if exact is not None and exact.order is not None and answer is not best:
        emptied = tuple(sorted(possible[at] for at in exact.chosen))
        answer = msgspec.structs.replace(answer, emptied=emptied)
    return msgspec.structs.replace(answer, least=max(answer.least, least))


def _over_budget(request: MovesRequest, least: int, search: SearchEffort) -> MovesPlan:
    text = f"at least {counted(least, 'move')} are needed, {request.budget} at most are allowed"
    return MovesPlan(outcome="impossible", least=least, reasons=(text,), search=search)


def _better(
    problem: MoveProblem, best: MovesPlan | None, exact: ExactMoves | None, effort: int
) -> MovesPlan:
    """Return the better of a plan and the answer of the program."""
    exact = exact or ExactMoves(None, 0, proved=False, steps=0)
    search = SearchEffort(nodes=effort + exact.steps, exhausted=exact.proved)
    if exact.order is not None and (best is None or len(exact.order) <= len(best.moves)):
        return MovesPlan(
            outcome="moves",
            moves=moves_of(problem, exact.order),
            least=len(exact.order) if exact.proved else exact.least,
            cheapest=exact.proved,
            search=search,
        )
    if best is not None:
        return msgspec.structs.replace(best, least=max(best.least, exact.least), search=search)
    budget = problem.request.budget
    outcome: MovesOutcome = "unknown"
    text = "no moves were found within the search budget; they may exist"
    if exact.proved:
        number = f"no {counted(budget, 'move')} or fewer" if budget else "no moves"
        outcome, text = "impossible", f"{number} of the pods that may be moved lead there"
    return MovesPlan(outcome=outcome, least=exact.least, reasons=(text,), search=search)


def _sum(costs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    parts = list(costs)
    return sum(count for count, _ in parts), sum(weight for _, weight in parts)


def _choices(
    costs: Sequence[tuple[int, int]], count: int
) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Yield choices of so many positions in ascending costs, the cheapest first, with their cost."""
    first = tuple(range(count))
    queue = [(_sum(costs[at] for at in first), first)]
    noted = {first}
    for _ in range(CHOICES_MAX):
        if not queue:
            return
        cost, choice = heapq.heappop(queue)
        yield cost, choice
        for place, at in enumerate(choice):
            after = (*choice[:place], at + 1, *choice[place + 1 :])
            if at + 1 < len(costs) and at + 1 not in choice and after not in noted:
                noted.add(after)
                heapq.heappush(queue, (_sum(costs[i] for i in after), after))


# --- a tree to place -----------------------------------------------------------------------------


def _make_room(problem: MoveProblem) -> MovesPlan:
    """Find the fewest moves after which the minimum of a tree fits."""
    tree = problem.request.tree
    assert tree is not None
    first = plan(msgspec.structs.replace(tree, evictable=None, explain=False, extras_later=True))
    effort = first.search.nodes
    if isinstance(first, Plan):
        return MovesPlan(outcome="fits", cheapest=True, plan=first, search=first.search)
    if first.outcome != "impossible" or first.status != "Unschedulable":
        if first.outcome == "waiting":
            text = "no moves help before its members and groups are there"
            reasons = (*first.reasons, text)
            return MovesPlan(outcome="impossible", reasons=reasons, search=first.search)
        proved: MovesOutcome = "impossible" if first.outcome == "impossible" else "unknown"
        return MovesPlan(outcome=proved, reasons=first.reasons, search=first.search)
    exact = make_room_exactly(problem, problem.request.search_budget)
    if exact is not None and (exact.proved or exact.order is not None):
        answer = _better(problem, None, exact, effort)
        return _with_plan(problem, answer, exact.order or [])
    least = exact.least if exact is not None else 0
    return _make_room_in_rounds(problem, effort, least)


def _with_plan(
    problem: MoveProblem, answer: MovesPlan, order: Sequence[tuple[int, int]]
) -> MovesPlan:
    """Return an answer with the plan of the tree after its moves; *unknown* where the planner does not find it."""
    if answer.outcome != "moves":
        return answer
    planned = plan(tree_after(problem, order))
    if isinstance(planned, Refusal):
        return MovesPlan(
            outcome="unknown", least=answer.least, reasons=planned.reasons, search=answer.search
        )
    return msgspec.structs.replace(answer, plan=planned)


def _make_room_in_rounds(problem: MoveProblem, effort: int, least: int) -> MovesPlan:
    """Search the fewest pods without which the tree fits, and give them other nodes; leave out those that have none.

    The fewest pods of the first round are a bound: no fewer moves make room.
    """
    budget = problem.request.budget
    left_out: set[str] = set()
    best: tuple[MovesPlan, list[tuple[int, int]]] | None = None
    number_of = {mover.uid: i for i, mover in enumerate(problem.request.movers)}
    for turn in range(ROUNDS_MAX):
        if effort > problem.request.search_budget * BUDGETS:
            break
        source = problem.base.evictable or Evictable(priority=0)
        units = tuple(u for u in source.units if u.uid not in left_out)
        request = msgspec.structs.replace(
            problem.base, evictable=msgspec.structs.replace(source, units=units), explain=False
        )
        answer = preempt(request, node_table=problem.node_table)
        effort += answer.search.nodes
        if isinstance(answer, NoPreemption):
            if turn == 0:
                text = "the tree would not fit if all pods that may be moved were gone"
                if answer.cause == "impossible":
                    return MovesPlan(outcome="impossible", reasons=(text,), search=answer.search)
                return MovesPlan(outcome="unknown", reasons=answer.reasons, search=answer.search)
            break
        victims = [number_of[pod.uid] for unit in answer.victims for pod in unit.pods]
        if turn == 0 and answer.search.exhausted:
            least = max(least, len(victims))
            if budget and least > budget:
                return _over_budget(problem.request, least, answer.search)
        targets, homeless = relocate(
            problem, victims, _mask(problem, ()), _beside(problem, answer.plan, victims)
        )
        if not homeless:
            order = sorted(targets.items())
            proved = len(order) <= least
            moves = MovesPlan(
                outcome="moves",
                moves=moves_of(problem, order),
                least=least,
                search=SearchEffort(nodes=effort, exhausted=proved),
            )
            if (best is None or len(order) < len(best[1])) and not (budget and len(order) > budget):
                best = moves, order
            break
        left_out |= {problem.request.movers[i].uid for i in homeless}
    if best is None:
        return msgspec.structs.replace(_better(problem, None, None, effort), least=least)
    return _with_plan(problem, *best)


def _beside(problem: MoveProblem, planned: Plan, victims: Iterable[int]) -> Ints:
    """Return what is free for moved pods now and after the tree has its nodes."""
    after = problem.free.copy()
    shapes = problem.base.shapes
    for assignment in planned.assignments:
        if not assignment.extra:
            asks = problem.capacity.requests(shapes[assignment.shape])
            after[problem.node_table.index[assignment.node]] -= asks
    for i in victims:
        after[problem.at[i]] += problem.frees[i]
    return np.minimum(problem.free, after)
