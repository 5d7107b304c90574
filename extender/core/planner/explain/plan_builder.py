"""Turn the counts of a solution into a plan: a node for each member, extra members, unplaced members and why."""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

import msgspec
import numpy as np
from msgspec import UNSET

from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted
from extender.core.planner.model.node_table import Ints, NodeTable
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem, given
from extender.core.planner.plan_types import (
    Assignment,
    Placement,
    Plan,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanRequest,
    SearchEffort,
    WishOutcome,
    WishValue,
    domain_keys,
    group_name,
    is_slice,
    object_key,
    waiting_reasons,
)
from extender.core.planner.solve.compactness import uncounted_preferences
from extender.core.planner.solve.domain_counts import CountedLevel, GroupPods
from extender.core.planner.solve.greedy_placement import Solution
from extender.core.planner.solve.solver_pipeline import Solved

# --- which member gets which of the seats that a search has chosen, so that neighbours by rank are near

# A search decides how many pods of each kind each node gets, and this module only who gets which of these seats. So it never
# changes how many pods are placed, nor any domain of a group; groups that are identical may exchange all of their seats. Members
# without ranks are not touched.

_DIGITS = re.compile(r"(\d+)")
EXACT_STEPS_MAX = 20_000  # of the search for the best order; about 20 ms


def is_ranked(leaf: PlanGroup) -> bool:
    """Return whether all waiting members of a leaf have ranks."""
    return bool(leaf.members) and UNSET not in [member.rank for member in leaf.members]


def rank_keys(
    request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup
) -> tuple[str, ...]:
    """Return the topology keys by which neighbours of a leaf shall be near, the widest first: the one with the fewest domains."""
    keys = set(request.levels or ())
    for group in problem.above(leaf):
        keys.update(group.source.topology, group.source.preferred or ())
    counts = {key: len(problem.node_table.label(key)[1]) for key in keys}
    return tuple(sorted(filter(counts.get, keys), key=lambda key: (counts[key], key)))


def domains_of(table: NodeTable, keys: Sequence[str], nodes: Ints) -> Ints:
    """Return the domains of some nodes, shape (keys + 1, nodes); a node without a label, and each node, is one of its own."""
    rows = (table.own_domains(key).domain[nodes] for key in keys)
    return np.stack([*rows, nodes]).astype(np.int64)


# --- the members of one leaf


@dataclass(slots=True)
class _Gap:
    """Neighbouring members without a seat, and the seats on both sides of them; -1: there is no member on this side."""

    first: int  # positions in the order of the ranks, both included
    last: int
    before: int  # columns of `_RankWalk.domains`
    after: int


# of the members up to one: its column, and how many seats of each kind are left per column
_State = tuple[int, tuple[int, ...]]


class _RankWalk:
    """Gives seats to the members of one leaf: always the nearest seat to the side of a gap for which it is nearest.

    So a domain is left when it has no seat any more, which for members of one kind, on levels that are nested, is as rarely as
    possible; and a seat beside two members that have theirs is not taken by others who gain less from it.
    """

    def __init__(self, domains: Ints, free: Mapping[int, Ints], kinds: Sequence[int]) -> None:
        """Begin.

        Args:
            domains: See `domains_of`.
            free: Seats of each kind that are free, per column of `domains`.
            kinds: Of each member, in the order of the ranks.
        """
        self.domains = domains
        self.free = free
        self.kinds = kinds
        # a change on one level weighs more than two on every narrower one together
        self.weights = 3 ** np.arange(len(domains) - 1, -1, -1, dtype=np.int64)

    def run_exactly(self, seats: list[int]) -> bool:
        """Replace each -1 in `seats` by the order with the fewest changes, on the widest level first; False: there are too many."""
        kinds = {kind: at for at, kind in enumerate(self.free)}
        table = np.stack([*self.free.values()]).astype(int)
        columns = np.flatnonzero(table.any(axis=0)).tolist()
        left = tuple(table[:, columns].ravel().tolist())
        if math.prod(n + 1 for n in left) * len(columns) ** 2 > EXACT_STEPS_MAX:
            return False
        # a change on one level weighs more than all of them on every narrower one together
        weights = [(len(seats) + 1) ** at for at in reversed(range(len(self.domains)))]
        rows = self.domains.T.tolist()

        def distance(before: int, column: int) -> int:
            if before < 0:
                return 0
            pairs = zip(weights, rows[before], rows[column], strict=True)
            return sum(weight for weight, a, b in pairs if a != b)

        steps: list[tuple[int, dict[_State, tuple[int, _State]]]] = []
        costs: dict[_State, int] = {(-1, left): 0}
        vacant = [False, *(column < 0 for column in seats), False]
        for at, fixed in enumerate(seats):
            if not any(vacant[at : at + 3]):
                continue  # between two that have their seats
            step: dict[_State, tuple[int, _State]] = {}
            first = kinds[self.kinds[at]] * len(columns) if fixed < 0 else 0
            for state, cost in costs.items():
                last, free = state
                options = [(fixed, free)]
                if fixed < 0:
                    options = [
                        (column, (*free[:place], free[place] - 1, *free[place + 1 :]))
                        for place, column in enumerate(columns, first)
                        if free[place]
                    ]
                for option in options:
                    total = cost + distance(last, option[0])
                    if option not in step or total < step[option][0]:
                        step[option] = total, state
            steps.append((at, step))
            costs = {state: cost for state, (cost, _) in step.items()}
        state = min(costs, key=lambda each: (costs[each], each))
        for at, step in reversed(steps):
            seats[at] = state[0]
            state = step[state][1]
        return True

    def run(self, seats: list[int]) -> None:
        """Replace each -1 in `seats`, the columns of the members in the order of the ranks."""
        heap: list[tuple[int, int, int]] = []  # distance, number of the gap, and its side
        gaps: list[_Gap] = []
        for vacant, run in itertools.groupby(range(len(seats)), key=lambda at: seats[at] < 0):
            if vacant:
                listed = list(run)
                before = seats[listed[0] - 1] if listed[0] else -1
                after = seats[listed[-1] + 1] if listed[-1] + 1 < len(seats) else -1
                self._offer(heap, gaps, _Gap(listed[0], listed[-1], before, after), len(gaps))
        while heap:
            distance, number, side = heapq.heappop(heap)
            gap = gaps[number]
            if gap.first > gap.last:
                continue
            nearest, column = self._nearest(gap, side)
            if nearest > distance:  # its seat was taken meanwhile
                heapq.heappush(heap, (nearest, number, side))
                continue
            at = gap.last if side else gap.first
            seats[at] = column
            self.free[self.kinds[at]][column] -= 1
            rest = (
                _Gap(gap.first, at - 1, gap.before, column)
                if side
                else _Gap(at + 1, gap.last, column, gap.after)
            )
            self._offer(heap, gaps, rest, number)

    def _offer(
        self, heap: list[tuple[int, int, int]], gaps: list[_Gap], gap: _Gap, number: int
    ) -> None:
        if number == len(gaps):
            gaps.append(gap)
        gaps[number] = gap
        if gap.first > gap.last:
            return
        for side in (0, 1):
            # a side without a member is open: nothing is near to it
            if (gap.after if side else gap.before) >= 0 or (gap.after < 0 and not side):
                heapq.heappush(heap, (self._nearest(gap, side)[0], number, side))

    def _nearest(self, gap: _Gap, side: int) -> tuple[int, int]:
        """Return the distance and the column of the free seat that is nearest to a side of a gap; to both of a single member."""
        free = np.flatnonzero(self.free[self.kinds[gap.last if side else gap.first]])
        distance = np.zeros(len(free), dtype=np.int64)
        for end, counts in ((gap.before, not side), (gap.after, side)):
            if end >= 0 and (counts or gap.first == gap.last):
                distance += self.weights @ (self.domains[:, free] != self.domains[:, [end]])
        best = int(distance.argmin())
        return int(distance[best]), int(free[best])


def seats_by_rank(
    request: PlanRequest,
    problem: PlacementProblem,
    leaf: CompiledGroup,
    *,
    given: Mapping[int, int],
    left: Mapping[int, Sequence[int]],
    free: Mapping[int, Mapping[int, int]],
) -> dict[int, int]:
    """Return the node of each member of a leaf that has none yet.

    Args:
        leaf: All of its members have ranks.
        given: Members that keep the node of an earlier plan: position in the leaf -> node.
        left: The other ones that are placed, by kind.
        free: As many seats for them: kind -> node -> pods.
    """
    source, table = leaf.source, problem.node_table
    bound = _bound_ranks(source, table)
    nodes = np.array(
        sorted({*given.values(), *(n for _, n in bound), *(n for k in free for n in free[k])}),
        dtype=np.int64,
    )
    domains = domains_of(table, rank_keys(request, problem, leaf), nodes)
    order = np.lexsort(domains[::-1])  # the widest level first
    nodes, domains = nodes[order], domains[:, order]
    column = {int(node): at for at, node in enumerate(nodes)}
    seats_of = {
        kind: np.array([free[kind].get(int(n), 0) for n in nodes], dtype=np.int64) for kind in left
    }
    in_order = len(left) == 1 and not given and not bound
    if in_order and is_nested(domains):  # the same result at once
        return _in_order(source, nodes, left, seats_of)
    # of equal ranks those first that have their seats
    entries = [(rank, 0, -1, -1, column[node]) for rank, node in bound]
    entries += [(_rank(source.members[p]), 1, p, -1, column[n]) for p, n in given.items()]
    entries += [(_rank(source.members[p]), 2, p, k, -1) for k, ps in left.items() for p in ps]
    entries.sort()
    seats = [entry[4] for entry in entries]
    walk = _RankWalk(domains, seats_of, [entry[3] for entry in entries])
    if not walk.run_exactly(seats):
        if in_order:
            return _in_order(source, nodes, left, seats_of)
        walk.run(seats)
    return {
        position: int(nodes[at])
        for (_, step, position, _, _), at in zip(entries, seats, strict=True)
        if step == 2  # noqa: PLR2004 -- had no seat
    }


def is_nested(domains: Ints) -> bool:
    """Return whether each domain is in one domain of each wider level.

    Args:
        domains: See `domains_of`; the columns in order.

    >>> is_nested(np.array([[0, 0, 1], [0, 1, 2]])), is_nested(np.array([[0, 0, 1], [0, 1, 0]]))
    (True, False)
    """
    changes = np.maximum.accumulate(domains[:, 1:] != domains[:, :-1], axis=0)
    return all(
        int(row.sum()) + 1 == len(np.unique(of_level))
        for row, of_level in zip(changes, domains, strict=True)
    )


def _in_order(
    leaf: PlanGroup,
    nodes: Ints,
    members: Mapping[int, Sequence[int]],
    seats: Mapping[int, Ints],
) -> dict[int, int]:
    """Return the node of each of some members of one kind: one node after the other."""
    ((kind, positions),) = members.items()
    ranks = _ranks(leaf.members)
    ordered = sorted(sorted(positions), key=ranks.__getitem__)
    return dict(zip(ordered, np.repeat(nodes, seats[kind]).tolist(), strict=True))


def _rank(member: PlanMember | PlanBound) -> int:
    return member.rank if member.rank is not UNSET else 0


def _ranks(members: Iterable[PlanMember]) -> list[int]:
    return [member.rank if member.rank is not UNSET else 0 for member in members]


def _bound_ranks(leaf: PlanGroup, table: NodeTable) -> list[tuple[int, int]]:
    """Return rank and node of the bound members that have a rank, and whose node is in the cluster."""
    return [
        (member.rank, table.index[member.node])
        for member in leaf.bound
        if member.rank is not UNSET and member.node in table.index
    ]


# --- identical groups


def with_groups_in_order(
    request: PlanRequest, problem: PlacementProblem, solution: Solution
) -> Solution:
    """Return a solution in which identical groups of one parent exchanged their seats, so that consecutive ones are near.

    All members below them have ranks, and none is bound.
    """
    if not any(is_ranked(group.source) for group in problem.groups):
        return solution
    order = _GroupOrder(request, problem, solution)
    for parent in problem.groups:
        order.arrange([problem.groups[child] for child in parent.children])
    return order.solution


class _GroupOrder:
    def __init__(self, request: PlanRequest, problem: PlacementProblem, solution: Solution) -> None:
        self._request, self._problem, self.solution = request, problem, solution
        self._partners = {near.group for g in problem.groups for near in g.source.near or ()}

    def arrange(self, groups: Sequence[CompiledGroup]) -> None:
        """Let the groups that are alike exchange their seats."""
        similar: dict[tuple[object, ...], list[CompiledGroup]] = {}
        for group in groups:
            similar.setdefault(
                (group.source.minimum, len(group.source.members), len(group.children)), []
            ).append(group)
        alike: dict[tuple[object, ...], list[CompiledGroup]] = {}
        # most groups have no other one of their size, and need no full comparison
        for group in itertools.chain.from_iterable(g for g in similar.values() if len(g) > 1):
            if (likeness := self._likeness(group)) is not None:
                alike.setdefault(likeness, []).append(group)
        table = self._problem.node_table
        for twins in alike.values():
            if len(twins) == 1:
                continue
            keys = rank_keys(self._request, self._problem, twins[0])
            twins.sort(key=lambda group: _natural(group.source.key.name))
            following = self._following(groups, twins[-1], keys)
            taken: list[tuple[list[tuple[int, ...]], list[dict[int, dict[int, int]]]]] = []
            for group in twins:
                placed = [self.solution[leaf.index] for leaf in self._leaves(group)]
                rows = domains_of(table, keys, _nodes_of(placed))
                if following is not None:  # at each level its domain comes last
                    rows = np.stack((rows == following, rows), axis=1).reshape(-1, rows.shape[1])
                taken.append((sorted(map(tuple, rows.T.tolist())), placed))
            taken.sort(key=itemgetter(0))
            moved = {
                leaf.index: placed
                for group, (_, seats) in zip(twins, taken, strict=True)
                for leaf, placed in zip(self._leaves(group), seats, strict=True)
            }
            self.solution = {**self.solution, **moved}

    def _following(
        self, groups: Sequence[CompiledGroup], last: CompiledGroup, keys: Sequence[str]
    ) -> Ints | None:
        """Return the domains of the first seat of the slice that comes after the last one of those that are alike, shape (keys + 1, 1)."""
        order = sorted(groups, key=lambda group: _natural(group.source.key.name))
        after = order[order.index(last) + 1 :]
        if not after or not is_slice(last.source.key):
            return None
        placed = (self.solution.get(leaf.index, {}) for leaf in self._leaves(after[0]))
        nodes = _nodes_of(placed)
        if not len(nodes):
            return None
        domains = domains_of(self._problem.node_table, keys, nodes)
        return domains[:, np.lexsort(domains[::-1])[:1]]

    def _leaves(self, group: CompiledGroup) -> list[CompiledGroup]:
        return [each for each in self._problem.below(group) if each.leaf]

    def _likeness(self, group: CompiledGroup) -> tuple[object, ...] | None:
        """Return a key that is equal for groups of which each may have the seats of the other; None: it may have no other ones.

        These are as many for the same kinds, in as many domains of the preferred keys and with the same shares of them, so that what
        is stated of these wishes stays true. What is stated of nearness is of the seats that a group has.
        """
        source = group.source
        below = [self._likeness(self._problem.groups[child]) for child in group.children]
        own = group.index in self.solution and is_ranked(source) and not source.bound
        if group.leaf and any(member.prefer is not None for member in source.members):
            own = False
        if source.near or source.key in self._partners or None in below or own != group.leaf:
            return None
        plain = msgspec.structs.replace(
            source, key=GroupKey("", "", "PodGroup"), members=(), groups=(), required=UNSET
        )
        sizes = tuple(sorted((kind, len(members)) for kind, members in group.members.items()))
        amounts = [self.solution[leaf.index] for leaf in self._leaves(group)]
        pods = tuple(
            tuple(sorted((kind, sum(nodes.values())) for kind, nodes in placed.items()))
            for placed in amounts
        )
        table, preferred = self._problem.node_table, source.preferred or ()
        counted_pods = GroupPods(self._problem, group.index)
        levels = [CountedLevel.of(table, key) for key in preferred]
        spread = tuple(counted_pods.domains(self.solution, level) for level in levels)
        if source.balanced:
            shares = counted_pods.per_domain(self.solution, levels[0])
            spread += tuple(sorted(shares[shares > 0].tolist()))
        return (group.required, group.level.keys, plain, sizes, pods, spread, *below)


def _nodes_of(seats: Iterable[Mapping[int, Mapping[int, int]]]) -> Ints:
    """Return the nodes of some leaves."""
    nodes = {node for placed in seats for kind in placed.values() for node in kind}
    return np.array(sorted(nodes), dtype=np.int64)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers by the numbers."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts)]


# --- the certificate


def rank_outcomes(
    request: PlanRequest, problem: PlacementProblem, seats: Mapping[int, Mapping[int, int]]
) -> Iterator[WishOutcome]:
    """Yield how many neighbours by rank of a leaf are in different domains, and the fewest that are possible on these nodes.

    Slices of a leaf have one order. Only keys by which there are some are named, or the narrowest one. Nothing for a leaf without
    keys or without neighbours, and where constraints on its domain leave none to be in another one.

    Args:
        seats: Leaf -> position in it -> node, of all leaves with waiting members.
    """
    table = problem.node_table
    parts: dict[GroupKey, list[CompiledGroup]] = {}
    for leaf in problem.groups:
        if leaf.leaf:
            parts.setdefault(object_key(leaf.source.key), []).append(leaf)
    for key, leaves in parts.items():
        waiting = [leaf.source for leaf in leaves if leaf.source.members]
        if not waiting or not all(map(is_ranked, waiting)):
            continue
        bound = sorted(row for leaf in leaves for row in _bound_ranks(leaf.source, table))
        keys = rank_keys(request, problem, leaves[0])[::-1]
        positions, rows = [-1] * len(bound), [row for _, row in bound]
        ranks = [rank for rank, _ in bound]
        for leaf in leaves:
            placed = seats.get(leaf.index, {})
            ranks += map(_ranks(leaf.source.members).__getitem__, placed)
            positions += placed
            rows += placed.values()
        if len(rows) == len(bound) or len(rows) < 2 or not keys:  # noqa: PLR2004 -- no neighbours
            continue
        # of equal ranks those that are bound come first
        order = np.lexsort(np.array((rows, positions, ranks), dtype=np.int64))
        nodes = np.array(rows, dtype=np.int64)[order]
        fixed = order < len(bound)
        values: list[WishValue] = []
        for level, row in zip(keys, domains_of(table, keys, nodes), strict=False):
            changes = int(np.count_nonzero(np.diff(row)))
            if changes or level == keys[0]:
                best = _fewest_changes(row, row[fixed])
                values.append(WishValue(key=level, value=changes, best=best))
        if len(values) > 1 and not values[0].value:
            del values[0]
        if values[0].value or not any(leaf.level.keys for leaf in leaves):
            yield WishOutcome(kind="rank", group=key, values=tuple(values), pods=len(rows))


def _fewest_changes(domains: Ints, fixed: Ints) -> int:
    """Return a lower bound of the changes along any order of some seats in which the fixed ones keep their order.

    Without the seats of one domain an order has at least one change less, whatever is taken out first: so each domain that no
    fixed seat is in adds one change to those between the fixed seats, or to none.
    """
    count = len(np.unique(domains))
    if not len(fixed):
        return count - 1
    return int(np.count_nonzero(np.diff(fixed))) + count - len(np.unique(fixed))


def make_plan(request: PlanRequest, solved: Solved) -> Plan:
    """Return the plan for the solution of a search."""
    problem = solved.problem
    solution = with_groups_in_order(request, problem, solved.solution or {})
    needed = _needed(problem, solution)
    assignments: list[Assignment] = []
    unplaced: list[str] = []
    seats: dict[int, dict[int, int]] = {}  # leaf -> position -> node
    rows = problem.node_table.nodes
    for group in problem.groups:
        if not group.source.members:
            continue
        nodes = _seats(request, problem, group, solution.get(group.index, {}))
        seats[group.index] = nodes
        must = needed.get(group.index, 0)
        key = object_key(group.source.key)
        for position, member in enumerate(group.source.members):
            if (node := nodes.get(position)) is None:
                unplaced.append(member.pod)
                continue
            must -= 1
            assignments.append(
                Assignment(
                    pod=member.pod,
                    uid=member.uid,
                    group=key,
                    node=rows[node].name,
                    shape=member.shape,
                    extra=must < 0,
                )
            )
    return Plan(
        placements=_placements(problem, solution),
        assignments=tuple(sorted(assignments, key=attrgetter("pod"))),
        unplaced=tuple(sorted(unplaced)),
        search=SearchEffort(nodes=solved.nodes, exhausted=solved.proved),
        reasons=_left_out(problem, solution, solved),
        given=(
            *given(request, problem, limited=bool(unplaced)),
            *dict.fromkeys(uncounted_preferences(request)),
        ),
        wishes=(*solved.wishes, *rank_outcomes(request, problem, seats)),
    )


def without_extras(request: PlanRequest, planned: Plan) -> Plan:
    """Return a plan without its extra members: minima of other trees come before them.

    Nor has it the wishes of the groups that these members belong to, and the domains of those that have no other ones; the plan
    that places them has them.
    """
    later = {a.group for a in planned.assignments if a.extra}
    pods = [a.pod for a in planned.assignments if a.extra]
    kept = {a.uid for a in planned.assignments if not a.extra}
    touched: set[GroupKey] = set()
    with_pods: set[GroupKey] = set()

    def mark(group: PlanGroup) -> None:
        for child in group.groups:
            mark(child)
        below = {child.key for child in group.groups}
        if group.key in later or below & touched:
            touched.add(group.key)
        if group.bound or below & with_pods or any(m.uid in kept for m in group.members):
            with_pods.add(group.key)

    mark(request.root)
    text = f"{counted(len(pods), 'member')} beyond the minimum: planned after the minima of the other trees that wait"
    return msgspec.structs.replace(
        planned,
        placements=tuple(p for p in planned.placements if p.group in with_pods),
        assignments=tuple(a for a in planned.assignments if not a.extra),
        unplaced=tuple(sorted((*planned.unplaced, *pods))),
        reasons=(*planned.reasons, text) if pods else planned.reasons,
        wishes=tuple(
            _without_proof(wish) if pods else wish
            for wish in planned.wishes
            if not touched & {wish.group, wish.partner}
        ),
    )


def _without_proof(wish: WishOutcome) -> WishOutcome:
    """Return an outcome that claims no more than holds where fewer pods are placed."""
    if wish.kind == "rank":  # it is about the seats that the group has
        return wish
    least = 1 if wish.kind == "preferred" else 0
    values = [msgspec.structs.replace(v, best=min(v.best, least)) for v in wish.values]
    if wish.largest:  # no domain of the first key holds the group, whatever else is placed
        values[0] = msgspec.structs.replace(values[0], best=min(wish.values[0].best, 2))
    return msgspec.structs.replace(wish, values=tuple(values))


def _seats(
    request: PlanRequest,
    problem: PlacementProblem,
    leaf: CompiledGroup,
    placed: dict[int, dict[int, int]],
) -> dict[int, int]:
    """Assign the first members of each kind to its nodes: each to its node of an earlier plan where possible, then by rank."""
    seats: dict[int, int] = {}
    free: dict[int, dict[int, int]] = {}
    left: dict[int, list[int]] = {}
    members, index = leaf.source.members, problem.node_table.index
    for kind, nodes in placed.items():
        places = free[kind] = dict(nodes)
        others: list[int] = []
        for position in leaf.members[kind][: sum(nodes.values())]:
            preferred_node = members[position].prefer
            node = index.get(preferred_node) if preferred_node is not None else None
            if node is not None and places.get(node, 0) > 0:
                seats[position] = node
                places[node] -= 1
            else:
                others.append(position)
        if others:
            left[kind] = others
    if left and is_ranked(leaf.source):
        return seats | seats_by_rank(request, problem, leaf, given=seats, left=left, free=free)
    for kind, positions in left.items():
        rest = (n for n in sorted(free[kind]) for _ in range(free[kind][n]))
        seats.update(zip(positions, rest, strict=False))
    return seats


def _needed(problem: PlacementProblem, solution: Solution) -> dict[int, int]:
    """Return per leaf how many new pods belong to the minimum: the fewest that satisfy the root."""
    groups = problem.groups
    cost: list[int | None] = [None] * len(groups)
    for group in reversed(groups):
        if group.leaf:
            new = sum(sum(n.values()) for n in solution.get(group.index, {}).values())
            need = max(0, group.minimum - group.bound)
            cost[group.index] = need if new >= need else None
            continue
        if not group.alive:  # a required child may be absent, however many of the others hold
            continue
        costs = [c for i in _counted(group, groups, cost) if (c := cost[i]) is not None]
        if len(costs) >= group.minimum:
            cost[group.index] = sum(costs)
    needed: dict[int, int] = {}

    def choose(group: CompiledGroup) -> None:
        if group.leaf:
            needed[group.index] = max(0, group.minimum - group.bound)
            return
        for child in _counted(group, groups, cost):
            choose(groups[child])

    choose(groups[0])
    return needed


def _counted(
    group: CompiledGroup, groups: list[CompiledGroup], cost: list[int | None]
) -> list[int]:
    """Return the children that the minimum of a composite counts: the required ones, then those with the fewest new pods.

    None of them if a required one is not satisfied.
    """
    able = [(not groups[i].required, c, i) for i in group.children if (c := cost[i]) is not None]
    if sum(not optional for optional, _, _ in able) < sum(
        groups[i].required for i in group.children
    ):
        return []
    return [index for _, _, index in sorted(able)[: group.minimum]]


def _placements(problem: PlacementProblem, solution: Solution) -> tuple[Placement, ...]:
    """Return the domain of every constrained group that has a pod, new or bound."""
    groups = problem.groups
    some: list[int] = [-1] * len(groups)  # a node of some new pod below
    for group in reversed(groups):
        for nodes in solution.get(group.index, {}).values():
            some[group.index] = min(nodes)
        if group.parent >= 0 and some[group.index] >= 0:
            some[group.parent] = some[group.index]
    placements: list[Placement] = []
    for group in groups:
        keys = domain_keys(group.source)
        if not keys:
            continue
        domain = group.pinned
        if some[group.index] >= 0:
            domain = int(group.level.domain[some[group.index]])
        if domain >= 0:
            values = dict(zip(group.level.keys, group.level.values[domain], strict=True))
            chosen = tuple((k, values[k]) for k in keys)
            placements.append(Placement(group=group.source.key, domain=chosen))
    return tuple(placements)


def _left_out(problem: PlacementProblem, solution: Solution, solved: Solved) -> tuple[str, ...]:
    """Return per leaf the reason why members are not placed."""
    lines: list[str] = []
    for group in problem.groups:
        name = group_name(group.source.key)
        parent_alive = group.parent < 0 or problem.groups[group.parent].alive
        if not group.alive:
            if parent_alive:
                lines.extend(waiting_reasons(group.source))
            continue
        new = sum(sum(n.values()) for n in solution.get(group.index, {}).values())
        out = group.size - new
        if not out:
            continue
        reason = "no more fit" if solved.proved else "no place found within the budget"
        if group.source.basic:  # each for itself
            lines.append(f"{name}: {out} of {group.size} not placed: {reason}")
        elif new + group.bound >= group.minimum:
            lines.append(
                f"{name}: {out} beyond the minimum of {group.minimum} not placed: {reason}"
            )
        else:
            lines.append(
                f"{name}: none of {group.size} placed, {group.least} needed together: {reason}; "
                "the tree holds without it"
            )
    return tuple(lines)
