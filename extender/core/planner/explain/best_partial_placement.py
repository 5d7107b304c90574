"""How much of a tree could be placed if all units were evicted: "1 of 2 child groups, each in one rack"."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from extender.core.planner.explain.shortfalls import domain_phrase, shortfall
from extender.core.planner.model.feasibility import threshold
from extender.core.planner.solve.solver_pipeline import Solved

Search: TypeAlias = Callable[[int], Solved]  # for the same tree with another minimum of its root


def best_partial(all_evicted: Solved, search: Search) -> str:
    """Return how many of the pods or child groups that the root needs could be placed together.

    Args:
        all_evicted: The proof that the tree does not fit when all units are evicted.
        search: Solves the same with another minimum of the root; called a few times.
    """
    needed = threshold(all_evicted.problem.groups[0].source)
    held, alone, word = _best(all_evicted)
    got, proved = _at_once(held, min(alone, needed - 1), search)
    return f"{got if proved else f'at least {got}'} of {needed} {word}"


def _best(solved: Solved) -> tuple[int, int, str]:
    """Return how many elements the root has, how many could be placed one at a time, and the word for them."""
    root, groups = solved.problem.groups[0], solved.problem.groups
    if root.leaf:
        close = shortfall(solved.problem, root)
        most = close.holds if close is not None else root.bound
        return root.bound, most, f"pods{domain_phrase(root)}"
    children = [groups[c] for c in root.children if groups[c].alive]
    best = solved.bounds.best
    where = {domain_phrase(child) for child in children}
    word = f"child groups, each{min(where)}" if len(where) == 1 and all(where) else "child groups"
    held = sum(c.holds for c in children)
    return held, sum(c.holds or bool((best[c.index] >= 0).any()) for c in children), word


def _at_once(held: int, most: int, search: Search) -> tuple[int, bool]:
    """Find how many can be placed together: two groups may need the same rack.

    Args:
        held: Elements that bound members satisfy.
        most: An upper bound.

    Returns:
        The number, and whether it is proved to be the largest.
    """
    proved, target = True, most
    while held < most:
        solved = search(target)
        if solved.solution is not None:
            held = target
        else:
            most, proved = target - 1, proved and solved.proved
        target = (held + most + 1) // 2
    return held, proved
