"""The types of a search for moves, and its request compiled to arrays.

A move evicts one pod, of which its controller makes a new one, which gets a node that was chosen before. Each pod is moved
at most once, and one after the other: the new pod runs before the next is evicted. So a gang lacks one member at most, and
may give one as long as it has more than its minimum. Of a gang with a required domain a member moves within that domain only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.model.node_filters import may_run
from extender.core.planner.model.node_table import Bools, Ints, NodeTable
from extender.core.planner.plan_types import (
    SEARCH_BUDGET,
    Evictable,
    Plan,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanUnit,
    PlanVictim,
    SearchEffort,
)
from extender.core.planner.preempt.post_eviction_view import PostEvictionCapacity

MovesOutcome = Literal["fits", "moves", "impossible", "unknown"]
_NO_TREE = PlanGroup(key=GroupKey("", "", "PodGroup"), basic=True)


class Mover(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running pod that may be moved."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    shape: int  # index into `MovesRequest.shapes`
    priority: int
    group: str = ""  # the leaf it is a member of, Kind/namespace/name; empty: none
    lost_min: int = 0  # GPU-minutes of work that its eviction loses
    within: tuple[tuple[str, str], ...] = ()  # labels that its new node must have


class StayingPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running pod that is not moved."""

    pod: str
    node: NodeName
    reason: str
    on_every_node: bool = False  # of a DaemonSet, or static: a node with no other pod is empty


class MovesRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that an answer depends on. Either `tree` is set, or `sets`."""

    nodes: tuple[PlanNode, ...]  # sorted by name; those of `tree`, if it is set
    shapes: tuple[PodShape, ...]
    movers: tuple[Mover, ...]  # sorted by pod
    staying: tuple[StayingPod, ...] = ()  # sorted by pod
    barred: frozenset[NodeName] = frozenset()  # nodes that no pod is moved to
    tree: PlanRequest | None = None  # whose minimum shall fit afterwards
    sets: tuple[tuple[NodeName, ...], ...] = ()  # nodes to empty, by domain
    count: int = 0  # how many of the sets; 0: all, as far as their pods have a place elsewhere
    budget: int = 0  # moves at most; 0: any number
    search_budget: int = SEARCH_BUDGET  # search nodes


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A move: the pod is evicted from a node, and its new pod gets the other, which can take it before."""

    pod: str
    uid: PodUid
    group: str  # the leaf it is a member of, Kind/namespace/name; empty: none
    source: NodeName = msgspec.field(name="from")
    target: NodeName = msgspec.field(name="to")
    priority: int
    lost_min: int = 0  # GPU-minutes of work since its start, or its last checkpoint


class MovesPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer.

    *fits*: no move is needed. *impossible*: proved that no moves lead there, or none within the budget. *unknown*: none were
    found within the search budget.
    """

    outcome: MovesOutcome
    moves: tuple[Move, ...] = ()  # in order
    least: int = 0  # proved: no fewer moves lead there
    # proved: of equally many moves none have a lower sum of priorities, and with the same none lose less work (see `_weights`)
    cheapest: bool = False
    emptied: tuple[int, ...] = ()  # indexes into the sets of the request
    plan: Plan | None = None  # of the tree, after the moves
    unmoved: tuple[str, ...] = ()  # pods on nodes to empty that have no place elsewhere
    reasons: tuple[str, ...] = ()
    search: SearchEffort = SearchEffort(nodes=0, exhausted=True)


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
    tree = problem.request.tree
    assert tree is not None
    ports: dict[int, list[HostPort]] = {}
    free: dict[int, dict[str, int]] = {}
    leaving: set[tuple[int, HostPort]] = set()
    nodes = list(tree.nodes)
    for mover, target in moves:
        shape = problem.request.shapes[problem.request.movers[mover].shape]
        source = int(problem.at[mover])
        for node, sign in ((source, 1), (target, -1)):
            amounts = free.setdefault(node, dict(nodes[node].free))
            for name, amount in shape.requests:
                if name in nodes[node].allocatable:
                    amounts[name] = amounts.get(name, 0) + sign * amount
        leaving |= {(source, port) for port in shape.host_ports}
        ports.setdefault(target, []).extend(shape.host_ports)
        ports.setdefault(source, [])
    for node, amounts in free.items():
        kept = {p for p in nodes[node].host_ports if (node, p) not in leaving}
        nodes[node] = msgspec.structs.replace(
            nodes[node],
            free=amounts,
            host_ports=tuple(sorted(kept | set(ports.get(node, ())))),
        )
    return msgspec.structs.replace(tree, nodes=tuple(nodes), extras_later=True, evictable=None)


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
    return _OrderSearch(problem, targets, limit).order()


class OverLimit(Exception):
    """A search has used up its limit."""


class _OrderSearch:
    def __init__(self, problem: MoveProblem, targets: Targets, limit: int) -> None:
        self.problem = problem
        self.targets = targets
        self.limit = limit
        self.stuck: set[frozenset[int]] = set()  # what is left, and has no order

    def order(self) -> list[tuple[int, int]] | None:
        """Return the moves in their order, None if they have none. No recursion: there may be more than a thousand."""
        free, left = self.problem.free.copy(), frozenset(self.targets)
        path: list[int] = []
        steps = [(free, left, iter(self._next(free, left)))]
        while steps:
            free, left, movers = steps[-1]
            if not left:
                return [(mover, self.targets[mover]) for mover in path]
            mover = next(movers, None)
            if mover is None:
                self.stuck.add(left)
                steps.pop()
                del path[-1:]
                continue
            rest = left - {mover}
            if rest not in self.stuck:
                after = free.copy()
                self.problem.do(after, mover, self.targets[mover])
                path.append(mover)
                steps.append((after, rest, iter(self._next(after, rest))))
        return None

    def _next(self, free: Ints, left: frozenset[int]) -> list[int]:
        """Return the movers of those that are left that are tried next."""
        if not left:
            return []
        self.limit -= 1
        if self.limit < 0:
            raise OverLimit
        ready = [i for i in sorted(left) if self.problem.fits(free, i, self.targets[i])]
        # one to a node that can take all that still come takes no place from any other: it is made first
        safe = next((i for i in ready if self._takes_all(free, left, self.targets[i])), None)
        return ready if safe is None else [safe]

    def _takes_all(self, free: Ints, left: Iterable[int], node: int) -> bool:
        coming = [i for i in left if self.targets[i] == node]
        asks = self.problem.asks[coming].sum(axis=0)
        return bool((free[node][asks > 0] >= asks[asks > 0]).all())
