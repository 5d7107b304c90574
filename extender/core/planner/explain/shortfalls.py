"""Reasons for a tree that does not fit: which group fails, its best domain, and what is missing there.

Reads the upper bounds of a finished search; solves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extender.core.model.wording import counted
from extender.core.planner.model.node_filters import selected, tolerated
from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import best_inside, capacity_of
from extender.core.planner.solve.solver_pipeline import Solved

LINES_MAX = 8


@dataclass(slots=True)
class Shortfall:
    """The domain where a leaf comes closest to its minimum."""

    leaf: CompiledGroup
    domain: int
    holds: int  # members it could have there, bound ones included
    # resources of which there is too little, each taken alone; empty: only together
    lacking: list[str]


def diagnose(solved: Solved) -> tuple[str, ...]:
    """Return the reasons why a tree that is proved impossible does not fit; those of leaves first, they are the most specific."""
    lines = _group(solved, solved.problem.groups[0])
    return tuple(lines[:LINES_MAX])


def name_of(group: CompiledGroup) -> str:
    """Return kind and path of a group."""
    return f"{group.source.key.kind} {group.source.key.path}"


def domain_phrase(group: CompiledGroup) -> str:
    """Return the words for the domain that all pods of a group must share, ` in one net/rack`, or an empty string."""
    return f" in one {' and '.join(group.level.keys)}" if group.level.keys else ""


def failing(solved: Solved) -> list[CompiledGroup]:
    """List the leaves that fit in no domain even alone."""
    return [
        g
        for g in solved.problem.groups
        if g.leaf and g.alive and not (solved.bounds.best[g.index] >= 0).any()
    ]


def shortfall(problem: PlacementProblem, leaf: CompiledGroup) -> Shortfall | None:
    """Find the domain in which a leaf comes closest to its minimum; None when it has no domain."""
    if not leaf.level.count:
        return None
    most = held_in(leaf, placeable(problem, leaf))
    if leaf.pinned >= 0:
        most[np.arange(leaf.level.count) != leaf.pinned] = -1
    domain = int(np.argmax(most))
    return Shortfall(leaf, domain, int(most[domain]), _lacking(problem, leaf, domain))


def placeable(problem: PlacementProblem, leaf: CompiledGroup) -> dict[int, Ints]:
    """Return how many of the waiting members of each kind could have a place in each domain, each kind taken alone."""
    return {
        kind: np.minimum(capacity_of(problem, leaf, kind, problem.counts), len(members))
        for kind, members in leaf.members.items()
    }


def held_in(leaf: CompiledGroup, here: dict[int, Ints]) -> Ints:
    """Return how many members a leaf could have in each domain, bound ones included; `here`: see `placeable`."""
    return sum(here.values(), np.full(leaf.level.count, leaf.bound, dtype=np.int64))


def _lacking(problem: PlacementProblem, leaf: CompiledGroup, domain: int) -> list[str]:
    """List the resources of which the domain has too little for the minimum, each taken alone."""
    nodes = leaf.level.members(domain)
    lacking: list[str] = []
    for axis, name in enumerate(problem.axes):
        fits = leaf.bound
        for kind, members in leaf.members.items():
            ask = int(problem.requests[kind, axis])
            there = nodes[problem.allowed[kind][nodes]]
            capacity = int((problem.free[there, axis] // ask).sum()) if ask else len(members)
            fits += min(capacity, len(members))
        if fits < leaf.minimum:
            lacking.append(name)
    return lacking


def _group(solved: Solved, group: CompiledGroup) -> list[str]:
    problem = solved.problem
    if group.leaf:
        return _leaf(problem, group)
    children = [problem.groups[c] for c in group.children if problem.groups[c].alive]
    bad = [c for c in children if not c.holds and not (solved.bounds.best[c.index] >= 0).any()]
    can = len(children) - len(bad)
    lines = [line for child in bad for line in _group(solved, child)]
    if can < group.minimum:
        lines.append(
            f"{name_of(group)} needs {group.minimum} of its {counted(len(group.children), 'child group')}; "
            f"at most {can} can be satisfied"
        )
        return lines
    return [*_together(solved, group, children), *lines]


def _together(solved: Solved, group: CompiledGroup, children: list[CompiledGroup]) -> list[str]:
    """Return the reasons for a group whose children fit one by one but not together."""
    problem = solved.problem
    if (solved.bounds.best[group.index] >= 0).any():
        deeper = [
            line
            for c in children
            if not c.leaf and group.minimum == len(children)
            for line in _group(solved, c)
            if not (solved.bounds.best[c.index] >= 0).any()
        ]
        return deeper or [
            f"{name_of(group)} needs {group.least} new pods at least; its child groups fit one by "
            f"one{domain_phrase(group)}, but every choice of domains and nodes for {group.minimum} of them "
            "was ruled out"
        ]
    able = np.zeros(group.level.count, dtype=np.int64)
    pods = np.zeros(group.level.count, dtype=np.int64)
    for child in children:
        here = best_inside(problem, child, group, solved.bounds.best[child.index])
        able += (here >= 0) | child.holds
        pods += np.where(here >= 0, np.minimum(here, child.least), 0)
    if not group.level.count:
        return [f"{name_of(group)}: no node has the label {' and '.join(group.level.keys)}"]
    best = int(np.lexsort((-pods, -able))[0])
    where = "/".join(group.level.values[best]) or "the cluster"
    if int(able[best]) < group.minimum:
        return [
            f"{name_of(group)} needs {group.minimum} of its child groups{domain_phrase(group)}; the best, "
            f"{where}, can hold {int(able[best])}",
            *_inside(solved, group, children, best),
        ]
    return [
        f"{name_of(group)} needs {group.least} new pods{domain_phrase(group)}; each child group fits alone "
        f"in {where}, but together they exceed its capacity"
    ]


def _inside(
    solved: Solved, group: CompiledGroup, children: list[CompiledGroup], domain: int
) -> list[str]:
    """Return, for each child that does not fit in the best domain, how many of its pods fit there."""
    lines: list[str] = []
    problem = solved.problem
    for child in children:
        here = best_inside(problem, child, group, solved.bounds.best[child.index])
        if here[domain] >= 0 or child.holds or not child.leaf:
            continue
        most = np.full(child.level.count, child.bound, dtype=np.int64)
        for kind, members in child.members.items():
            most += np.minimum(capacity_of(problem, child, kind, problem.counts), len(members))
        got = int(max(best_inside(problem, child, group, most)[domain], 0))
        lines.append(
            f"{name_of(child)} needs {counted(child.minimum, 'pod')}{domain_phrase(child)}; in "
            f"{'/'.join(group.level.values[domain])} at most {got} fit"
        )
    return lines


def _leaf(problem: PlacementProblem, leaf: CompiledGroup) -> list[str]:
    """Return the reasons for a leaf that fits in no domain."""
    close = shortfall(problem, leaf)
    need = f"{name_of(leaf)} needs {counted(leaf.minimum, 'pod')}{domain_phrase(leaf)}"
    if close is None:
        return [f"{need}; no node has the label {' and '.join(leaf.level.keys)}"]
    barred = _barred(problem, leaf)
    if barred:
        return [f"{need}; {barred}"]
    missing = leaf.minimum - close.holds
    what = ", ".join(close.lacking) or "no resource alone, but all together on one node"
    bound = f" ({leaf.bound} bound already)" if leaf.bound else ""
    if not leaf.level.keys:
        return [f"{need}; the cluster holds {close.holds}{bound} ({missing} missing: {what})"]
    where = "/".join(leaf.level.values[close.domain])
    best = (
        f"its bound members pin it to {where}, which" if leaf.pinned >= 0 else f"the best, {where},"
    )
    return [f"{need}; {best} holds {close.holds}{bound} ({missing} missing: {what})"]


def _kept_out(nodes: int, cordoned: int) -> str:
    """Return what keeps a pod off nodes that match its selector.

    Args:
        nodes: All of them.
        cordoned: Those with a cordon but no taint that it does not tolerate.
    """
    if cordoned == nodes:
        return f"{_the_nodes(nodes)} it could run on {'is' if nodes == 1 else 'are'} cordoned"
    if cordoned:
        return (
            f"of {_the_nodes(nodes)} it could run on {cordoned} are cordoned, and it does not tolerate the "
            "taints of the others"
        )
    return f"it does not tolerate the taints of {_the_nodes(nodes)} it could run on"


def _barred(problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return the static filter that rejects all nodes for all pods of a leaf, or an empty string."""
    if not leaf.members or any(problem.allowed[kind].any() for kind in leaf.members):
        return ""
    if not problem.fleet.size:
        return "there are no nodes"
    shape = problem.shapes[min(leaf.members)]
    matching = selected(problem.fleet, shape)
    if not matching.any():
        return f"none of {_the_nodes(problem.fleet.size)} matches its node selector"
    kept = matching & tolerated(problem.fleet, shape)
    if not kept.any():
        cordoned = int((matching & tolerated(problem.fleet, shape, cordons=False)).sum())
        return _kept_out(int(matching.sum()), cordoned)
    mask = problem.rules.masks.get(problem.kinds[min(leaf.members)])
    if mask is not None and not (kept & mask).any():
        rules = " and ".join(rule.text for rule in shape.rules) or "rules of the pods there"
        return f"{rules} keeps it off {_the_nodes(int(kept.sum()))} it could run on"
    return f"kube-scheduler refused {_the_nodes(int(kept.sum()))} it could run on"


def _the_nodes(count: int) -> str:
    return "the only node" if count == 1 else f"the {count} nodes"
