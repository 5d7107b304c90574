"""The quick way: place the minimum of a tree by a good order, then the extras, and see how far it got.

Tries every candidate domain of a group one after the other and any M of N children, but does not come
back to a choice that worked once; what this misses is left to `exact.py`. All arithmetic that is long
is done by numpy on whole domains.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from extender.core.planner.bounds import Bounds, pods_per_node
from extender.core.planner.capacity import Ints, count_fitting
from extender.core.planner.model import Group, Problem
from extender.core.planner.scoring import (
    Strategy,
    order_children,
    order_domains,
    order_nodes,
    weight,
)

Solution: TypeAlias = dict[int, dict[int, dict[int, int]]]
"""Leaf -> kind -> node -> new pods."""


MOVES_MAX = 12  # domains looked at when an incomplete leaf is moved


class BudgetEnded(Exception):
    """The budget of search nodes is used up; whoever catches it keeps the best plan found so far."""


class Effort:
    """Search nodes spent, against the budget."""

    __slots__ = ("limit", "nodes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nodes = 0

    def spend(self) -> None:
        """Count one search node.

        Raises:
            BudgetEnded: It was the last one.
        """
        if self.nodes >= self.limit:
            raise BudgetEnded
        self.nodes += 1


class Draft:
    """A placement in the making; every step can be undone."""

    def __init__(
        self, problem: Problem, bounds: Bounds, strategy: Strategy, effort: Effort
    ) -> None:
        self.problem = problem
        self.bounds = bounds
        self.strategy = strategy
        self.effort = effort
        self.free = problem.free.copy()
        self.total = 0
        self.domains: dict[int, int] = {}  # active group -> its domain
        self._trail: list[tuple[int, int, Ints, Ints]] = []  # leaf, kind, nodes, amounts
        self._claimed: set[str] = set()
        self._rooms: dict[tuple[str, ...], Ints] = {}
        self._liked = _liked(problem)

    def solution(self) -> Solution:
        """Sum the steps up."""
        placed: Solution = {}
        for leaf, kind, nodes, amounts in self._trail:
            there = placed.setdefault(leaf, {}).setdefault(kind, {})
            for node, amount in zip(nodes.tolist(), amounts.tolist(), strict=True):
                there[node] = there.get(node, 0) + amount
        return placed

    def minimum(self) -> bool:
        """Place the minimum of the whole tree.

        Raises:
            BudgetEnded: Nothing is known then.
        """
        return self._place(self.problem.groups[0], 0)

    # --- the minimum -------------------------------------------------------------------------------

    def _place(self, group: Group, outer: int) -> bool:
        """Place the minimum of a group inside a domain of its parent; undo all when it fails."""
        for domain in self._candidates(group, outer):
            self.effort.spend()
            mark, domains = len(self._trail), dict(self.domains)
            self.domains[group.index] = domain
            if self._fill(group, domain) if group.leaf else self._children(group, domain):
                return True
            self._undo(mark)
            self.domains = domains
        return False

    def _inside(self, group: Group, outer: int) -> Ints:
        """List the domains of a group inside a domain of its parent that bounds do not rule out."""
        best = self.bounds.best[group.index]
        parent = self.problem.groups[group.parent] if group.parent >= 0 else None
        keys = parent.level.keys if parent else ()
        if group.level.keys == keys:
            return np.array([outer] if best[outer] >= 0 else [], dtype=np.int64)
        up = self.problem.fleet.up(group.level.keys, keys)
        return np.flatnonzero((up == outer) & (best >= 0))

    def _candidates(self, group: Group, outer: int) -> list[int]:
        inside = self._inside(group, outer)
        listed: list[int] = inside.tolist()
        if len(listed) <= 1:
            return listed
        if group.leaf:
            most, room = self._leaf_room(group, inside)
            need = group.size if self.strategy == "full" else group.least
            kept = most >= need
            inside, most, room = inside[kept], most[kept], room[kept]
        else:
            most, room = self.bounds.best[group.index][inside], self._room(group)[inside]
        order = order_domains(self.strategy, most, room, self._liking(group)[inside])
        return [int(d) for d in inside[order]]

    def _leaf_room(self, group: Group, inside: Ints) -> tuple[Ints, Ints]:
        """Count what is left for a leaf in each of some domains: its own members, and pods at all."""
        most = np.zeros(len(inside), dtype=np.int64)
        room = np.zeros(len(inside), dtype=np.int64)
        allowed = self.problem.allowed
        for kind, members in group.members.items():
            fit = count_fitting(self.free, self.problem.requests[kind])
            total = group.level.total(np.where(allowed[kind], fit, 0))[inside]
            most += np.minimum(total, len(members))
            room = np.maximum(room, total)
        return most, room

    def _room(self, group: Group) -> Ints:
        """Count how many pods of the tree each domain could take while empty."""
        known = self._rooms.get(group.level.keys)
        if known is None:
            kinds = list(range(len(self.problem.kinds)))
            known = group.level.total(pods_per_node(self.problem, kinds, self.problem.counts))
            self._rooms[group.level.keys] = known
        return known

    def _children(self, group: Group, domain: int) -> bool:
        """Satisfy as many children as the group needs: the cheapest ones, the largest of these first."""
        groups = self.problem.groups
        alive = [groups[c] for c in group.children if groups[c].alive]
        need = group.minimum - sum(1 for c in alive if c.holds)
        if self.strategy == "full":
            need = sum(1 for c in alive if not c.holds)
        if need <= 0:
            return True
        choices = {c.index: len(self._inside(c, domain)) for c in alive if not c.holds}
        able = [c for c in alive if choices.get(c.index)]
        if len(able) < need:
            return False
        if self.strategy != "listed":
            able.sort(key=lambda c: (c.least, c.index))
        chosen = order_children(self.strategy, able[:need], [choices[c.index] for c in able[:need]])
        failed: set[tuple[object, ...]] = set()
        for child in [*chosen, *able[need:]]:
            if _likeness(child) in failed:
                continue
            if self._place(child, domain):
                need -= 1
                if not need:
                    return True
            elif child.leaf:
                failed.add(_likeness(child))
        return False

    # --- leaves ------------------------------------------------------------------------------------

    def _fill(self, leaf: Group, domain: int) -> bool:
        """Place exactly the minimum of a leaf: the first members in order, else the smallest ones."""
        need = leaf.size if self.strategy == "full" else leaf.least
        if not need:
            return True
        nodes = leaf.level.members(domain)
        if len(leaf.members) == 1:
            return self._put(leaf, next(iter(leaf.members)), nodes, need) == need
        mark = len(self._trail)
        for wanted in _choices(self.problem, leaf, need):
            kinds = sorted(wanted, key=lambda k: (-weight(self.problem, k), k))
            if all(self._put(leaf, k, nodes, wanted[k]) == wanted[k] for k in kinds):
                return True
            self._undo(mark)
        return self._gather(leaf, nodes, need)

    def _gather(self, leaf: Group, nodes: Ints, need: int) -> bool:
        """Take the smallest members that fit, whatever their kind."""
        for kind in sorted(leaf.members, key=lambda k: (weight(self.problem, k), k)):
            need -= self._put(leaf, kind, nodes, min(need, len(leaf.members[kind])))
            if not need:
                return True
        return False

    def _fits(self, kind: int, nodes: Ints) -> Ints:
        claims = self.problem.claims[kind]
        if claims & self._claimed:
            return np.zeros(len(nodes), dtype=np.int64)
        fit = count_fitting(self.free[nodes], self.problem.requests[kind])
        return np.where(self.problem.allowed[kind][nodes], fit, 0)

    def _put(self, leaf: Group, kind: int, nodes: Ints, want: int) -> int:
        """Place up to `want` pods of a kind on some nodes; give how many it were."""
        if want <= 0:
            return 0
        claims = self.problem.claims[kind]
        want = min(want, 1) if claims else want
        fit = self._fits(kind, nodes)
        liked = self._liked.get((leaf.index, kind), {})
        amounts = np.zeros(len(nodes), dtype=np.int64)
        if liked:
            amounts = np.minimum(fit, [liked.get(int(n), 0) for n in nodes])
            amounts = np.diff(np.minimum(np.cumsum(amounts), want), prepend=0)
        left = want - int(amounts.sum())
        if left:
            order = order_nodes(fit, set(liked), nodes)
            spare = (fit - amounts)[order]
            amounts[order] += np.diff(np.minimum(np.cumsum(spare), left), prepend=0)
        used = np.flatnonzero(amounts)
        self._take(leaf.index, kind, nodes[used], amounts[used])
        return int(amounts.sum())

    def _take(self, leaf: int, kind: int, nodes: Ints, amounts: Ints) -> None:
        if not len(nodes):
            return
        self.free[nodes] -= amounts[:, None] * self.problem.requests[kind]
        self.total += int(amounts.sum())
        self._claimed |= self.problem.claims[kind]
        self._trail.append((leaf, kind, nodes, amounts))

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            _, kind, nodes, amounts = self._trail.pop()
            self.free[nodes] += amounts[:, None] * self.problem.requests[kind]
            self.total -= int(amounts.sum())
            self._claimed -= self.problem.claims[kind]

    # --- extras ------------------------------------------------------------------------------------

    def extras(self) -> None:
        """Add what still fits: members of satisfied leaves in turn, and whole further children.

        Raises:
            BudgetEnded: What was placed so far stands.
        """
        active, idle = self._front(self.problem.groups[0], 0)
        if self.strategy == "tight":  # the other order, for the sake of variety
            self._adopt(active, idle)
            self._grow(active)
        else:
            self._grow(active)
            grown: list[Group] = []
            self._adopt(grown, idle)
            self._grow(grown)
            active += grown
        self._move(active)

    def _move(self, leaves: list[Group]) -> None:
        """Move leaves that are not complete to domains that hold more of them, one leaf at a time."""
        for leaf in leaves:
            here = self._amount(leaf)
            outer = self._outer(leaf)
            if here == leaf.size or outer is None or leaf.pinned >= 0:
                continue
            inside = self._inside(leaf, outer)
            if len(inside) < 2:  # noqa: PLR2004 -- nowhere else to go
                continue
            domain = self.domains[leaf.index]
            steps = self._remove(leaf)
            best, most = domain, here
            for other in self._candidates(leaf, outer)[:MOVES_MAX]:
                mark = len(self._trail)
                count = self._pour(leaf, other)
                self._undo(mark)
                if count > most:
                    best, most = other, count
                if most == leaf.size:
                    break
            self.domains[leaf.index] = best
            if best != domain:
                self._pour(leaf, best)
                continue
            for step in steps:
                self._take(*step)

    def _pour(self, leaf: Group, domain: int) -> int:
        """Place as many members of a leaf as go into a domain, the smallest kinds first; give the number."""
        nodes = leaf.level.members(domain)
        kinds = sorted(leaf.members, key=lambda k: (weight(self.problem, k), k))
        return sum(self._put(leaf, k, nodes, len(leaf.members[k])) for k in kinds)

    def _amount(self, leaf: Group) -> int:
        return sum(int(step[3].sum()) for step in self._trail if step[0] == leaf.index)

    def _outer(self, leaf: Group) -> int | None:
        """Give the domain of the parent of an active leaf that chose a domain of its own."""
        if leaf.parent < 0:
            return 0 if leaf.level.keys else None
        parent = self.problem.groups[leaf.parent]
        return None if parent.level.keys == leaf.level.keys else self.domains.get(leaf.parent)

    def _remove(self, leaf: Group) -> list[tuple[int, int, Ints, Ints]]:
        """Take a leaf out, whenever it was placed; give its steps."""
        steps = [step for step in self._trail if step[0] == leaf.index]
        others = [step for step in self._trail if step[0] != leaf.index]
        self._trail = list(steps)
        self._undo(0)
        self._trail = others
        return steps

    def _adopt(self, active: list[Group], idle: list[tuple[Group, int]]) -> None:
        """Place the minimum of further children; those that work bring their leaves and children."""
        while idle:
            child, domain = idle.pop(0)
            mark = len(self._trail)
            try:
                placed = self._place(child, domain)
            except BudgetEnded:
                self._undo(mark)  # no half children
                raise
            if placed:
                leaves, more = self._front(child, domain)
                active.extend(leaves)
                idle.extend(more)

    def _front(self, group: Group, outer: int) -> tuple[list[Group], list[tuple[Group, int]]]:
        """List satisfied leaves below an active group, and its children that are not active yet."""
        domain = self.domains.get(group.index)
        if domain is None:  # satisfied by bound members alone: they say where it is
            inside = self._inside(group, outer)
            if not len(inside):
                return [], []
            domain = int(inside[0])
            self.domains[group.index] = domain
        if group.leaf:
            return [group], []
        active: list[Group] = []
        idle: list[tuple[Group, int]] = []
        for c in group.children:
            child = self.problem.groups[c]
            if child.alive and (child.holds or child.index in self.domains):
                leaves, more = self._front(child, domain)
                active.extend(leaves)
                idle.extend(more)
            elif child.alive and len(self._inside(child, domain)):
                idle.append((child, domain))
        return active, idle

    def _grow(self, leaves: list[Group]) -> None:
        """Give the leaves further members, one each in turn, as long as any can take one."""
        turns = [t for t in (self._turn(leaf) for leaf in leaves) if t is not None]
        if len(turns) == 1:
            leaf, left = turns[0].leaf, turns[0].left
            for kind in sorted(left, key=lambda k: (weight(self.problem, k), k)):
                self._put(leaf, kind, turns[0].nodes, left[kind])
            return
        while turns:
            turns = [t for t in turns if t.step(self)]

    def _turn(self, leaf: Group) -> Turn | None:
        placed = dict.fromkeys(leaf.members, 0)
        for index, kind, _, amounts in self._trail:
            if index == leaf.index:
                placed[kind] += int(amounts.sum())
        left = {k: len(m) - placed[k] for k, m in leaf.members.items() if len(m) > placed[k]}
        if not left:
            return None
        return Turn(self, leaf, leaf.level.members(self.domains[leaf.index]), left)

    def _liking(self, group: Group) -> Ints:
        """Count per domain of a group the members below it that an earlier plan had put there."""
        liked = np.zeros(group.level.count, dtype=np.int64)
        for (leaf, _), nodes in self._liked.items():
            if _below(self.problem, leaf, group.index):
                for node, amount in nodes.items():
                    if group.level.domain[node] >= 0:
                        liked[group.level.domain[node]] += amount
        return liked


class Turn:
    """A leaf that grows by one member whenever it is its turn."""

    def __init__(self, draft: Draft, leaf: Group, nodes: Ints, left: dict[int, int]) -> None:
        self.leaf = leaf
        self.nodes = nodes
        self.left = left
        self._queue = sorted(left, key=lambda k: (weight(draft.problem, k), k))
        self._holes: list[int] | None = None

    def step(self, draft: Draft) -> bool:
        """Place one more member; False when none fits any more."""
        while self._queue:
            kind = self._queue[0]
            if self._holes is None:
                fit = draft._fits(kind, self.nodes)  # noqa: SLF001 -- a Turn is a part of its Draft
                liked = set(draft._liked.get((self.leaf.index, kind), {}))  # noqa: SLF001
                order = order_nodes(fit, liked, self.nodes)
                self._holes = self.nodes[order][fit[order] > 0].tolist()[::-1]
            request = draft.problem.requests[kind]
            while self._holes and self.left[kind]:
                node = self._holes[-1]
                if not draft.problem.claims[kind] & draft._claimed and bool(  # noqa: SLF001
                    (draft.free[node] >= request).all()
                ):
                    self.left[kind] -= 1
                    one = np.ones(1, dtype=np.int64)
                    draft._take(self.leaf.index, kind, np.array([node]), one)  # noqa: SLF001
                    return True
                self._holes.pop()
            self._queue.pop(0)
            self._holes = None
        return False


def _liked(problem: Problem) -> dict[tuple[int, int], dict[int, int]]:
    """Count per leaf, kind and node the members that an earlier plan had put there."""
    liked: dict[tuple[int, int], dict[int, int]] = {}
    for group in problem.groups:
        for kind, positions in group.members.items():
            for position in positions:
                name = group.source.members[position].prefer
                node = problem.fleet.index.get(name) if name is not None else None
                if node is not None:
                    there = liked.setdefault((group.index, kind), {})
                    there[node] = there.get(node, 0) + 1
    return liked


def _below(problem: Problem, index: int, ancestor: int) -> bool:
    while index >= 0:
        if index == ancestor:
            return True
        index = problem.groups[index].parent
    return False


def _likeness(group: Group) -> tuple[object, ...]:
    """Give what makes leaves under one parent interchangeable."""
    sizes = tuple(sorted((k, len(m)) for k, m in group.members.items()))
    return (group.level.keys, group.bound, group.minimum, group.pinned, sizes)


def _choices(problem: Problem, leaf: Group, need: int) -> list[dict[int, int]]:
    """Choose which members make the minimum: the first in order, or the smallest; kind -> pods."""
    kind_of = {p: k for k, positions in leaf.members.items() for p in positions}
    first: dict[int, int] = {}
    for position in sorted(kind_of)[:need]:
        first[kind_of[position]] = first.get(kind_of[position], 0) + 1
    smallest: dict[int, int] = {}
    left = need
    for kind in sorted(leaf.members, key=lambda k: (weight(problem, k), k)):
        amount = min(left, len(leaf.members[kind]))
        if amount:
            smallest[kind] = amount
            left -= amount
    return [first] if first == smallest else [first, smallest]
