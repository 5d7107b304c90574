"""Beyond the minimum: more members, whole further children, and roomier domains for those that lack.

Works on a draft that already holds the minimum; whatever it does keeps every minimum.
"""

from __future__ import annotations

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup
from extender.core.planner.solve.candidate_ordering import order_nodes, weight
from extender.core.planner.solve.greedy_placement import PartialPlacement, SearchBudgetExceeded

MOVES_MAX = 12  # domains looked at when an incomplete leaf is moved


class ExtraMembers:
    """Grows one draft."""

    def __init__(self, draft: PartialPlacement) -> None:
        self.draft = draft

    def add(self) -> None:
        """Add what still fits: members of satisfied leaves in turn, and whole further children.

        Raises:
            BudgetEnded: What was placed so far stands.
        """
        active, idle = self._front(self.draft.problem.groups[0], 0)
        if self.draft.strategy == "tight":  # the other order, for the sake of variety
            self._adopt(active, idle)
            self._grow(active)
        else:
            self._grow(active)
            grown: list[CompiledGroup] = []
            self._adopt(grown, idle)
            self._grow(grown)
            active += grown
        self._move(active)

    def _move(self, leaves: list[CompiledGroup]) -> None:
        """Move leaves that are not complete to domains that hold more of them, one leaf at a time."""
        for leaf in leaves:
            here = self._amount(leaf)
            outer = self._outer(leaf)
            if here == leaf.size or outer is None or leaf.pinned >= 0:
                continue
            inside = self.draft.inside(leaf, outer)
            if len(inside) < 2:  # noqa: PLR2004 -- nowhere else to go
                continue
            domain = self.draft.domains[leaf.index]
            steps = self._remove(leaf)
            best, most = domain, here
            for other in self.draft.candidates(leaf, outer)[:MOVES_MAX]:
                mark = len(self.draft.trail)
                count = self._pour(leaf, other)
                self.draft.undo(mark)
                if count > most:
                    best, most = other, count
                if most == leaf.size:
                    break
            self.draft.domains[leaf.index] = best
            if best != domain:
                self._pour(leaf, best)
                continue
            for step in steps:
                self.draft.take(*step)

    def _pour(self, leaf: CompiledGroup, domain: int) -> int:
        """Place as many members of a leaf as go into a domain, the smallest kinds first; give the number."""
        nodes = leaf.level.members(domain)
        kinds = sorted(leaf.members, key=lambda k: (weight(self.draft.problem, k), k))
        return sum(self.draft.put(leaf, k, nodes, len(leaf.members[k])) for k in kinds)

    def _amount(self, leaf: CompiledGroup) -> int:
        return sum(int(step[3].sum()) for step in self.draft.trail if step[0] == leaf.index)

    def _outer(self, leaf: CompiledGroup) -> int | None:
        """Give the domain of the parent of an active leaf that chose a domain of its own."""
        if leaf.parent < 0:
            return 0 if leaf.level.keys else None
        parent = self.draft.problem.groups[leaf.parent]
        return None if parent.level.keys == leaf.level.keys else self.draft.domains.get(leaf.parent)

    def _remove(self, leaf: CompiledGroup) -> list[tuple[int, int, Ints, Ints]]:
        """Take a leaf out, whenever it was placed; give its steps."""
        steps = [step for step in self.draft.trail if step[0] == leaf.index]
        others = [step for step in self.draft.trail if step[0] != leaf.index]
        self.draft.trail = list(steps)
        self.draft.undo(0)
        self.draft.trail = others
        return steps

    def _adopt(self, active: list[CompiledGroup], idle: list[tuple[CompiledGroup, int]]) -> None:
        """Place the minimum of further children; those that work bring their leaves and children."""
        while idle:
            child, domain = idle.pop(0)
            mark = len(self.draft.trail)
            try:
                placed = self.draft.place(child, domain)
            except SearchBudgetExceeded:
                self.draft.undo(mark)  # no half children
                raise
            if placed:
                leaves, more = self._front(child, domain)
                active.extend(leaves)
                idle.extend(more)

    def _front(
        self, group: CompiledGroup, outer: int
    ) -> tuple[list[CompiledGroup], list[tuple[CompiledGroup, int]]]:
        """List satisfied leaves below an active group, and its children that are not active yet."""
        domain = self.draft.domains.get(group.index)
        if domain is None:  # satisfied by bound members alone: they say where it is
            inside = self.draft.inside(group, outer)
            if not len(inside):
                return [], []
            domain = int(inside[0])
            self.draft.domains[group.index] = domain
        if group.leaf:
            return [group], []
        active: list[CompiledGroup] = []
        idle: list[tuple[CompiledGroup, int]] = []
        for c in group.children:
            child = self.draft.problem.groups[c]
            if child.alive and (child.holds or child.index in self.draft.domains):
                leaves, more = self._front(child, domain)
                active.extend(leaves)
                idle.extend(more)
            elif child.alive and len(self.draft.inside(child, domain)):
                idle.append((child, domain))
        return active, idle

    def _grow(self, leaves: list[CompiledGroup]) -> None:
        """Give the leaves further members, one each in turn, as long as any can take one."""
        turns = [t for t in (self._turn(leaf) for leaf in leaves) if t is not None]
        if len(turns) == 1:
            leaf, left = turns[0].leaf, turns[0].left
            for kind in sorted(left, key=lambda k: (weight(self.draft.problem, k), k)):
                self.draft.put(leaf, kind, turns[0].nodes, left[kind])
            return
        while turns:
            turns = [t for t in turns if t.step(self.draft)]

    def _turn(self, leaf: CompiledGroup) -> ExtraMembersRound | None:
        placed = dict.fromkeys(leaf.members, 0)
        for index, kind, _, amounts in self.draft.trail:
            if index == leaf.index:
                placed[kind] += int(amounts.sum())
        left = {k: len(m) - placed[k] for k, m in leaf.members.items() if len(m) > placed[k]}
        if not left:
            return None
        return ExtraMembersRound(
            self.draft, leaf, leaf.level.members(self.draft.domains[leaf.index]), left
        )


class ExtraMembersRound:
    """A leaf that grows by one member whenever it is its turn."""

    def __init__(
        self, draft: PartialPlacement, leaf: CompiledGroup, nodes: Ints, left: dict[int, int]
    ) -> None:
        self.leaf = leaf
        self.nodes = nodes
        self.left = left
        self._queue = sorted(left, key=lambda k: (weight(draft.problem, k), k))
        self._holes: list[int] | None = None

    def step(self, draft: PartialPlacement) -> bool:
        """Place one more member; False when none fits any more."""
        while self._queue:
            kind = self._queue[0]
            if self._holes is None:
                fit = draft.fits(kind, self.nodes)
                liked = set(draft.liked.get((self.leaf.index, kind), {}))
                order = order_nodes(fit, liked, self.nodes)
                self._holes = self.nodes[order][fit[order] > 0].tolist()[::-1]
            while self._holes and self.left[kind]:
                node = np.array([self._holes[-1]])
                if draft.fits(kind, node)[0]:
                    self.left[kind] -= 1
                    draft.take(self.leaf.index, kind, node, np.ones(1, dtype=np.int64))
                    return True
                self._holes.pop()
            self._queue.pop(0)
            self._holes = None
        return False
