"""The entry point of moves: `find_moves` finds the fewest moves that make room, or proves that none do.

Pure, as `planning.py`. Pods that must leave anyway are given the tightest nodes that can take them now, so their moves need no
order. Where this reaches the least number that is possible it is the answer; else an integer program decides, as long as
it is not too large (`moves_cp_sat.PAIRS_MAX`), and `least` is the bound that is proved.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from extender.core.model.message_formatting import counted
from extender.core.planner.model.node_table import Bools, Ints
from extender.core.planner.moves.move_problem import (
    MoveProblem,
    MovesOutcome,
    MovesPlan,
    MovesRequest,
    Targets,
    compile_moves,
    moves_of,
    tree_after,
)
from extender.core.planner.moves.moves_cp_sat import (
    ExactMoves,
    empty_exactly,
    make_room_exactly,
)
from extender.core.planner.plan_types import Plan, Refusal, SearchEffort
from extender.core.planner.planning import plan
from extender.core.planner.preempt.victim_search import BUDGETS, NoPreemption, preempt
from extender.core.planner.preemption_types import Evictable

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
    """Give pods the tightest nodes that can take them now, the largest pods first.

    Args:
        closed: Per node whether none comes there.

    Returns:
        The new nodes, and the pods that have none.
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
        text = f"at least {counted(least, 'move')} are needed, {request.budget} at most are allowed"
        return MovesPlan(outcome="impossible", least=least, reasons=(text,))
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


def _better(
    problem: MoveProblem, best: MovesPlan | None, exact: ExactMoves | None, effort: int
) -> MovesPlan:
    """Return the better of a plan and the answer of the program."""
    budget = problem.request.budget
    if exact is not None:
        effort += exact.steps
        search = SearchEffort(nodes=effort, exhausted=exact.proved)
        if exact.order is not None and (best is None or len(exact.order) <= len(best.moves)):
            return MovesPlan(
                outcome="moves",
                moves=moves_of(problem, exact.order),
                least=len(exact.order) if exact.proved else exact.least,
                cheapest=exact.proved,
                search=search,
            )
        if exact.order is None and exact.proved and best is None:
            text = "no moves of the pods that may be moved lead there"
            if budget:
                text = f"no {counted(budget, 'move')} or fewer of the pods that may be moved lead there"
            return MovesPlan(
                outcome="impossible", least=exact.least, reasons=(text,), search=search
            )
        if best is not None:
            return msgspec.structs.replace(best, least=max(best.least, exact.least), search=search)
    if best is not None:
        return best
    text = "no moves were found within the search budget; they may exist"
    search = SearchEffort(nodes=effort, exhausted=False)
    return MovesPlan(
        outcome="unknown", least=exact.least if exact else 0, reasons=(text,), search=search
    )


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
                text = f"at least {counted(least, 'move')} are needed, {budget} at most are allowed"
                return MovesPlan(
                    outcome="impossible", least=least, reasons=(text,), search=answer.search
                )
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
