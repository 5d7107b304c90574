"""How far a tree would get that does not fit although everybody went: "1 of 2 child groups, each in one rack"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from extender.core.planner.explain.shortfalls import one_of, shortfall
from extender.core.planner.model.feasibility import threshold
from extender.core.planner.solve.solver_pipeline import Solved

Search: TypeAlias = Callable[[int], Solved]  # for the same tree with another minimum of its root


def how_far(everybody: Solved, search: Search) -> str:
    """Word how many of what the root needs could be had.

    Args:
        everybody: Why the tree does not fit with everybody gone; proved.
        search: Solves the same with another minimum of the root; asked a few times.
    """
    needed = threshold(everybody.problem.groups[0].source)
    held, alone, what = _best(everybody)
    got, proved = _at_once(held, min(alone, needed - 1), search)
    return f"{got if proved else f'at least {got}'} of {needed} {what}"


def _best(solved: Solved) -> tuple[int, int, str]:
    """Say how many of what the root needs it has, how many could be had, each taken alone, and of what."""
    root, groups = solved.problem.groups[0], solved.problem.groups
    if root.leaf:
        close = shortfall(solved.problem, root)
        most = close.holds if close is not None else root.bound
        return root.bound, most, f"pods{one_of(root)}"
    children = [groups[c] for c in root.children if groups[c].alive]
    best = solved.bounds.best
    where = {one_of(child) for child in children}
    what = f"child groups, each{min(where)}" if len(where) == 1 and all(where) else "child groups"
    held = sum(c.holds for c in children)
    return held, sum(c.holds or bool((best[c.index] >= 0).any()) for c in children), what


def _at_once(held: int, most: int, search: Search) -> tuple[int, bool]:
    """Find how many can be had together: two groups may want the same rack.

    Args:
        held: What the root has by bound members.
        most: It is known that more cannot be had.
        search: As above.

    Returns:
        The number, and whether it is proved that no more can be had.
    """
    proved, asked = True, most
    while held < most:
        solved = search(asked)
        if solved.solution is not None:
            held = asked
        else:
            most, proved = asked - 1, proved and solved.proved
        asked = (held + most + 1) // 2
    return held, proved
