"""Beyond the minimum: extra members, further children, and larger domains for incomplete leaves.

Changes a partial placement that has the minimum; every step keeps every minimum.
"""

from __future__ import annotations

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup
from extender.core.planner.solve.greedy_placement import PartialPlacement, SearchBudgetExceeded

MOVES_MAX = 12  # domains tried when an incomplete leaf is moved


class ExtraMembers:
    """Adds extra members to one partial placement."""

    def __init__(self, draft: PartialPlacement) -> None:
        self.draft = draft

    def add(self) -> None:
        """Add what still fits: members of satisfied leaves in turn, and further children with their minimum.

        Raises:
            SearchBudgetExceeded: The pods placed so far are valid.
        """
        active, idle = self._frontier(self.draft.problem.groups[0], 0)
        if self.draft.strategy == "tight":  # the other order, to try both
            self._add_children(active, idle)
            self._grow(active)
        else:
            self._grow(active)
            grown: list[CompiledGroup] = []
            self._add_children(grown, idle)
            self._grow(grown)
            active += grown
        self._move(active)

    def _move(self, leaves: list[CompiledGroup]) -> None:
        """Move incomplete leaves to domains that hold more of their members, one leaf at a time."""
        for leaf in leaves:
            held = self._amount(leaf)
            outer = self._outer(leaf)
            if held == leaf.size or outer is None or leaf.pinned >= 0:
                continue
            inside = self.draft.inside(leaf, outer)
            if len(inside) < 2:  # noqa: PLR2004 -- nowhere else to go
                continue
            domain = self.draft.domains[leaf.index]
            steps = self._remove(leaf)
            best, most = domain, held
            for other in self.draft.candidates(leaf, outer)[:MOVES_MAX]:
                mark = len(self.draft.trail)
                count = self._fill_domain(leaf, other)
                self.draft.undo(mark)
                if count > most:
                    best, most = other, count
                if most == leaf.size:
                    break
            self.draft.domains[leaf.index] = best
            if best != domain:
                self._fill_domain(leaf, best)
                continue
            for step in steps:
                self.draft.take(*step)

    def _fill_domain(self, leaf: CompiledGroup, domain: int) -> int:
        """Place as many members of a leaf as fit in a domain, the smallest kinds first; return the number."""
        nodes = leaf.level.members(domain)
        kinds = sorted(leaf.members, key=lambda k: (self.draft.problem.weights[k], k))
        return sum(self.draft.put(leaf, k, nodes, len(leaf.members[k])) for k in kinds)

    def _amount(self, leaf: CompiledGroup) -> int:
        return sum(int(step[3].sum()) for step in self.draft.trail if step[0] == leaf.index)

    def _outer(self, leaf: CompiledGroup) -> int | None:
        """Return the domain of the parent of a leaf that chooses its own domain, else None."""
        if leaf.parent < 0:
            return 0 if leaf.level.keys else None
        parent = self.draft.problem.groups[leaf.parent]
        return None if parent.level.keys == leaf.level.keys else self.draft.domains.get(leaf.parent)

    def _remove(self, leaf: CompiledGroup) -> list[tuple[int, int, Ints, Ints]]:
        """Undo all steps of a leaf, and return them."""
        steps = [step for step in self.draft.trail if step[0] == leaf.index]
        others = [step for step in self.draft.trail if step[0] != leaf.index]
        self.draft.trail = list(steps)
        self.draft.undo(0)
        self.draft.trail = others
        return steps

    def _add_children(
        self, active: list[CompiledGroup], idle: list[tuple[CompiledGroup, int]]
    ) -> None:
        """Place the minimum of further children; add their leaves to `active` and their children to `idle`."""
        while idle:
            child, domain = idle.pop(0)
            mark = len(self.draft.trail)
            try:
                placed = self.draft.place(child, domain)
            except SearchBudgetExceeded:
                self.draft.undo(mark)  # a child is placed with its minimum or not at all
                raise
            if placed:
                leaves, more = self._frontier(child, domain)
                active.extend(leaves)
                idle.extend(more)

    def _frontier(
        self, group: CompiledGroup, outer: int
    ) -> tuple[list[CompiledGroup], list[tuple[CompiledGroup, int]]]:
        """Return the placed leaves below a group, and its children that are not placed yet."""
        domain = self.draft.domains.get(group.index)
        if domain is None:  # bound members alone satisfy the group and fix its domain
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
                leaves, more = self._frontier(child, domain)
                active.extend(leaves)
                idle.extend(more)
            elif child.alive and len(self.draft.inside(child, domain)):
                idle.append((child, domain))
        return active, idle

    def _grow(self, leaves: list[CompiledGroup]) -> None:
        """Add further members to the leaves, one each in turn, as long as any fits."""
        turns = [t for t in (self._round_of(leaf) for leaf in leaves) if t is not None]
        if len(turns) == 1:
            leaf, left = turns[0].leaf, turns[0].left
            for kind in sorted(left, key=lambda k: (self.draft.problem.weights[k], k)):
                self.draft.put(leaf, kind, turns[0].nodes, left[kind])
            return
        while turns:
            turns = [t for t in turns if t.step(self.draft)]

    def _round_of(self, leaf: CompiledGroup) -> ExtraMembersRound | None:
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
    """A leaf that gets one extra member in each round."""

    def __init__(
        self, draft: PartialPlacement, leaf: CompiledGroup, nodes: Ints, left: dict[int, int]
    ) -> None:
        self.leaf = leaf
        self.nodes = nodes
        self.left = left
        self._queue = sorted(left, key=lambda k: (draft.problem.weights[k], k))
        self._holes: list[int] | None = None

    def step(self, draft: PartialPlacement) -> bool:
        """Place one more member; return False if none fits."""
        while self._queue:
            kind = self._queue[0]
            if self._holes is None:
                fit = draft.fits(kind, self.nodes)
                none = np.zeros(len(self.nodes), dtype=np.int64)
                order = draft.order_nodes(self.leaf, kind, self.nodes, fit, none, self.left[kind])
                self._holes = self.nodes[order][fit[order] > 0].tolist()[::-1]
                if not self._holes:
                    self._queue.pop(0)
                    self._holes = None
                    continue
            while self._holes and self.left[kind]:
                node = np.array([self._holes[-1]])
                if draft.fits(kind, node)[0]:
                    self.left[kind] -= 1
                    draft.take(self.leaf.index, kind, node, np.ones(1, dtype=np.int64))
                    return True
                self._holes.pop()
            if not self.left[kind]:
                self._queue.pop(0)
            self._holes = None  # others may still hold a member
        return False
