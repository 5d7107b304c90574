"""Reasons for a tree that does not fit: which group fails, its best domain, and what is missing there.

Reads the upper bounds of a finished search. How many pods of a leaf fit together, and what keeps the others out, is found by
small searches for this leaf alone (`leaf_causes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from extender.core.model.wording import counted, join_names
from extender.core.planner.explain.leaf_causes import NO_CAUSE, LeafCauses, volume_text
from extender.core.planner.model.node_filters import selected, tolerated, without_volumes
from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem
from extender.core.planner.model.upper_bounds import best_inside, capacity_of
from extender.core.planner.plan_types import PlanRequest
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


def diagnose(request: PlanRequest, solved: Solved) -> tuple[str, ...]:
    """Return the reasons why a tree that is proved impossible does not fit; those of leaves first, they are the most specific.

    Args:
        request: The tree, on the nodes of the search.
        solved: The proof.
    """
    return tuple(
        itertools.islice(_Reasons(request, solved).of(solved.problem.groups[0]), LINES_MAX)
    )


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


class _Reasons:
    """The reasons of one refusal."""

    def __init__(self, request: PlanRequest, solved: Solved) -> None:
        self._request = request
        self._solved = solved

    def of(self, group: CompiledGroup) -> Iterator[str]:
        """Yield the reasons why a group does not fit."""
        problem, best = self._solved.problem, self._solved.bounds.best
        if group.leaf:
            yield from _leaf(self._request, problem, group)
            return
        children = [problem.groups[c] for c in group.children if problem.groups[c].alive]
        bad = [c for c in children if not c.holds and not (best[c.index] >= 0).any()]
        can, needed = len(children) - len(bad), [c for c in bad if c.required]
        if can >= group.minimum and not needed:
            yield from self._together(group, children)
        for child in bad:
            yield from self.of(child)
        if needed:
            names = " and ".join(name_of(child) for child in needed)
            yield f"{name_of(group)} cannot be without {names}: its requiredGroups name it"
        elif can < group.minimum:
            yield (
                f"{name_of(group)} needs {group.minimum} of its {counted(len(group.children), 'child group')}; "
                f"at most {can} can be satisfied"
            )

    def _together(self, group: CompiledGroup, children: list[CompiledGroup]) -> Iterator[str]:
        """Yield the reasons for a group whose children fit one by one but not together."""
        problem, best = self._solved.problem, self._solved.bounds.best
        if (best[group.index] >= 0).any():
            deeper = [
                c
                for c in children
                if not c.leaf
                and (c.required or group.minimum == len(children))
                and not (best[c.index] >= 0).any()
            ]
            for child in deeper:
                yield from self.of(child)
            if not deeper:
                yield (
                    f"{name_of(group)} needs {group.least} new pods at least; its child groups fit one by "
                    f"one{domain_phrase(group)}, but every choice of domains and nodes for {group.minimum} of them "
                    "was ruled out"
                )
            return
        able = np.zeros(group.level.count, dtype=np.int64)
        pods = np.zeros(group.level.count, dtype=np.int64)
        required = np.zeros(group.level.count, dtype=np.int64)  # of them
        for child in children:
            here = best_inside(problem, child, group, best[child.index])
            able += (here >= 0) | child.holds
            required += ((here >= 0) | child.holds) & child.required
            pods += np.where(here >= 0, np.minimum(here, child.least), 0)
        if not group.level.count:
            yield f"{name_of(group)}: no node has the label {' and '.join(group.level.keys)}"
            return
        first = int(np.lexsort((-pods, -able, -required))[0])
        where = "/".join(group.level.values[first]) or "the cluster"
        if int(required[first]) < sum(child.required for child in children):
            lacking = [
                name_of(child)
                for child in children
                if child.required
                and not child.holds
                and best_inside(problem, child, group, best[child.index])[first] < 0
            ]
            yield (
                f"{name_of(group)} cannot be without {' and '.join(lacking)}{domain_phrase(group)}, which does not fit in "
                f"the best, {where}"
            )
            yield from _inside(self._solved, group, children, first)
            return
        if int(able[first]) < group.minimum:
            yield (
                f"{name_of(group)} needs {group.minimum} of its child groups{domain_phrase(group)}; the best, "
                f"{where}, can hold {int(able[first])}"
            )
            yield from _inside(self._solved, group, children, first)
            return
        yield (
            f"{name_of(group)} needs {group.least} new pods{domain_phrase(group)}; each child group fits alone "
            f"in {where}, but together they exceed its capacity"
        )


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


def _leaf(request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup) -> Iterator[str]:
    """Yield the reason for a leaf that fits in no domain."""
    close = shortfall(problem, leaf)
    need = f"{name_of(leaf)} needs {counted(leaf.minimum, 'pod')}{domain_phrase(leaf)}"
    if close is None:
        yield f"{need}; no node has the label {' and '.join(leaf.level.keys)}"
        return
    barred = _barred(problem, leaf)
    if barred:
        yield f"{need}; {barred}"
        return
    causes = LeafCauses(request, problem, leaf)
    joint = causes.joint()
    holds, domain = close.holds, close.domain
    if joint is not None:
        holds, domain = joint.holds, joint.domain if joint.domain >= 0 else close.domain
    most = "" if joint is not None else "at most "
    missing = f"{leaf.minimum - holds} missing" if holds < leaf.minimum else "not all together"
    what = causes.named() or ", ".join(close.lacking) or NO_CAUSE
    bound = f" ({leaf.bound} bound already)" if leaf.bound else ""
    if not leaf.level.keys:
        yield f"{need}; the cluster holds {most}{holds}{bound} ({missing}: {what})"
        return
    where = "/".join(leaf.level.values[domain])
    best = (
        f"its bound members pin it to {where}, which" if leaf.pinned >= 0 else f"the best, {where},"
    )
    yield f"{need}; {best} holds {most}{holds}{bound} ({missing}: {what}){_elsewhere(problem, leaf)}"


def _elsewhere(problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return in which other domains a pinned leaf would have place as a whole, or an empty string."""
    if leaf.pinned < 0 or len(leaf.members) != 1:
        return ""
    (kind,) = leaf.members
    most = capacity_of(problem, leaf, kind, problem.counts)
    free = [
        "/".join(leaf.level.values[domain])
        for domain in np.flatnonzero(most >= leaf.minimum).tolist()
        if domain != leaf.pinned
    ]
    if not free:
        return ""
    return f"; {join_names(free)} is free for all {leaf.minimum}, but none moves while a member is bound"


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
    if not matching.any() and selected(problem.fleet, without_volumes(shape)).any():
        return f"none of the {problem.fleet.size} nodes that it could run on has its {volume_text([shape])}"
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
