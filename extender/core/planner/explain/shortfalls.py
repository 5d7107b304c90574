"""Reasons for a tree that does not fit: which group fails, its best domain, and what is missing there.

Reads the upper bounds of a finished search. How many pods or child groups fit together, and what keeps the others out, is
found by small searches for this group alone (`refusal_causes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from extender.core.model.message_formatting import counted, join_names
from extender.core.planner.explain.refusal_causes import (
    NOT_SEARCHED,
    ROOT_KEEPS,
    TOGETHER,
    CausesBudget,
    GroupCauses,
    JointCount,
    groups_below,
    volume_text,
)
from extender.core.planner.model.node_filters import selected, tolerated, without_volumes
from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem, open_nodes
from extender.core.planner.model.upper_bounds import best_inside, capacity_of
from extender.core.planner.plan_types import PlanRequest, group_name, is_slice, parts_word
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
    """Return the reasons why a tree that is proved impossible does not fit; those of leaves first, they are the most specific."""
    reasons = _Reasons(request, solved)
    root = solved.problem.groups[0]
    if root.leaf:
        return tuple(reasons.of(root))
    last = reasons.of_tree(root)
    return (*itertools.islice(reasons.below(root), LINES_MAX - 1), last)


def name_of(group: CompiledGroup) -> str:
    """Return kind and path of a group."""
    return group_name(group.source.key)


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
    if (closed := problem.exclusive.closed.get(leaf.index)) is not None:
        most[closed] = -1
    domain = int(np.argmax(most))
    return Shortfall(leaf, domain, int(most[domain]), _lacking(problem, leaf, domain))


def placeable(problem: PlacementProblem, leaf: CompiledGroup) -> dict[int, Ints]:
    """Return how many of the waiting members of each kind could have a place in each domain, each kind taken alone."""
    return {
        kind: np.minimum(capacity_of(problem, leaf, kind, problem.pods()), len(members))
        for kind, members in leaf.members.items()
    }


def held_in(leaf: CompiledGroup, by_kind: dict[int, Ints]) -> Ints:
    """Return how many members a leaf could have in each domain, bound ones included; `by_kind`: see `placeable`."""
    return sum(by_kind.values(), np.full(leaf.level.count, leaf.bound, dtype=np.int64))


def _lacking(problem: PlacementProblem, leaf: CompiledGroup, domain: int) -> list[str]:
    """List the resources of which the domain has too little for the minimum, each taken alone."""
    nodes = leaf.level.members(domain)
    lacking: list[str] = []
    for axis, name in enumerate(problem.axes):
        fits = leaf.bound
        for kind, members in leaf.members.items():
            ask = int(problem.requests[kind, axis])
            usable = nodes[problem.allowed[kind][nodes]]
            capacity = int((problem.free[usable, axis] // ask).sum()) if ask else len(members)
            fits += min(capacity, len(members))
        if fits < leaf.minimum:
            lacking.append(name)
    return lacking


class _Reasons:
    """The reasons of one refusal."""

    def __init__(self, request: PlanRequest, solved: Solved) -> None:
        self._request = request
        self._solved = solved
        self._budget = CausesBudget()

    def of_tree(self, root: CompiledGroup) -> str:
        """Return the reason of a composite root; called first, it may spend most of the budget."""
        with self._budget.kept_for_others(ROOT_KEEPS):
            return self.together(root)

    def of(self, group: CompiledGroup) -> Iterator[str]:
        """Yield the reasons why a group does not fit, those of the groups below it first."""
        if group.leaf:
            yield from _leaf(self._request, self._solved.problem, group, self._budget)
            return
        yield from self.below(group)
        yield self.together(group)

    def below(self, group: CompiledGroup) -> Iterator[str]:
        """Yield the reasons of the child groups that fit nowhere, even one by one."""
        best = self._solved.bounds.best
        for child in self._children(group):
            if not child.holds and not (best[child.index] >= 0).any():
                yield from self.of(child)
                if is_slice(child.source.key):
                    break  # the others have the same reason

    def together(self, group: CompiledGroup) -> str:
        """Return how many child groups of a composite fit together, and what keeps the others out."""
        problem = self._solved.problem
        children = self._children(group)
        total = len(group.children)
        need = f"{name_of(group)} needs {group.minimum} of its {counted(total, parts_word(group.source.key))}"
        if names := [child.source.key.name for child in children if child.required]:
            need += f", {join_names(names)} among them"
        need += domain_phrase(group)
        if not group.level.count:
            return f"{need}; no node has the label {' and '.join(group.level.keys)}"
        bounded, domain = self._best(group, children)
        causes = GroupCauses(self._request, problem, group, self._budget)
        joint = causes.joint(bounded) or JointCount(min(bounded, group.minimum), -1, exact=False)
        holds = joint.holds
        if joint.domain >= 0:
            domain = joint.domain
        most = "" if joint.exact else "at most "
        missing = _missing(group.minimum - holds, exact=joint.exact)
        reasons = causes.named() or ", ".join(self._short(group, domain)) or NOT_SEARCHED
        own = next((child for child in children if child.exclusive), group)
        return (
            f"{need}; {_place(group, domain)} holds {most}{holds} of them ({missing}: {reasons})"
            f"{_closed(problem, own)}"
        )

    def _children(self, group: CompiledGroup) -> list[CompiledGroup]:
        groups = self._solved.problem.groups
        return [groups[i] for i in group.children if groups[i].alive]

    def _best(self, group: CompiledGroup, children: list[CompiledGroup]) -> tuple[int, int]:
        """Return how many child groups the best domain has place for at most, and this domain."""
        problem, best = self._solved.problem, self._solved.bounds.best
        able = np.zeros(group.level.count, dtype=np.int64)
        for child in children:
            able += (best_inside(problem, child, group, best[child.index]) >= 0) | child.holds
        able = np.minimum(able, self._solved.bounds.together[group.index])
        if group.pinned >= 0:
            return int(able[group.pinned]), group.pinned
        first = int(np.argmax(able))
        return int(able[first]), first

    def _short(self, group: CompiledGroup, domain: int) -> list[str]:
        """List the resources of which a domain has too little for the fewest pods of a composite, each taken alone."""
        problem = self._solved.problem
        kinds = sorted({k for g in groups_below(problem, group) for k in g.members})
        if not kinds:
            return []
        nodes = group.level.members(domain)
        nodes = nodes[problem.allowed[kinds][:, nodes].any(axis=0)]
        least = problem.requests[kinds].min(axis=0)
        return [
            name
            for axis, name in enumerate(problem.axes)
            if least[axis]
            and int((problem.free[nodes, axis] // int(least[axis])).sum()) < group.least
        ]


def _missing(count: int, *, exact: bool) -> str:
    """Return the words for what is missing where a group comes closest; `exact` False: it may be more."""
    if count <= 0:
        return "not all together"
    return f"{count} missing" if exact else f"at least {count} missing"


def _place(group: CompiledGroup, domain: int) -> str:
    """Return the words for the domain that is meant."""
    if not group.level.keys:
        return "the cluster"
    where = "/".join(group.level.values[domain])
    if group.pinned >= 0:
        return f"its bound members pin it to {where}, which"
    return f"the best, {where},"


def _leaf(
    request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup, budget: CausesBudget
) -> Iterator[str]:
    """Yield the reason for a leaf that fits in no domain."""
    close = shortfall(problem, leaf)
    need = f"{name_of(leaf)} needs {counted(leaf.minimum, 'pod')}{domain_phrase(leaf)}"
    if close is None:
        yield f"{need}; no node has the label {' and '.join(leaf.level.keys)}"
        return
    closed = problem.exclusive.closed.get(leaf.index)
    if closed is not None and closed.all():
        yield f"{need}{_closed(problem, leaf)}"
        return
    barred = _barred(request, problem, leaf)
    causes = GroupCauses(request, problem, leaf, budget)
    if barred:
        # what bars all nodes need not be all that keeps the pods out
        more = causes.named() if problem.node_table.size else ""
        missing = (
            f" ({_missing(leaf.minimum - leaf.bound, exact=True)}: {more})"
            if TOGETHER in more
            else ""
        )
        yield f"{need}; {barred}{missing}"
        return
    joint = causes.joint(leaf.minimum)
    holds, domain = close.holds, close.domain
    if joint is not None:
        holds, domain = joint.holds, joint.domain if joint.domain >= 0 else close.domain
    most = "" if joint is not None else "at most "
    missing = _missing(leaf.minimum - holds, exact=joint is not None)
    reasons = causes.named() or ", ".join(close.lacking) or NOT_SEARCHED
    bound = f" ({leaf.bound} bound already)" if leaf.bound else ""
    yield (
        f"{need}; {_place(leaf, domain)} holds {most}{holds}{bound} ({missing}: {reasons})"
        f"{_closed(problem, leaf)}{_elsewhere(problem, leaf)}"
    )


def _closed(problem: PlacementProblem, group: CompiledGroup) -> str:
    """Return which domains of its exclusive key others have, and which are left to a group, or an empty string."""
    closed = problem.exclusive.closed.get(group.index)
    if closed is None or not closed.any():
        return ""
    values = {problem.exclusive.value(group, d): bool(shut) for d, shut in enumerate(closed)}
    taken = sorted(value for value, shut in values.items() if shut)
    left = sorted(value for value, shut in values.items() if not shut)
    verb = "is" if len(taken) == 1 else "are"
    return (
        f"; {len(taken)} of {counted(len(values), 'domain')} of {group.exclusive} {verb} taken "
        f"({join_names(taken)}); free: {join_names(left) if left else 'none'}"
    )


def _elsewhere(problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return in which other domains a pinned leaf would have place as a whole, or an empty string."""
    if leaf.pinned < 0 or len(leaf.members) != 1:
        return ""
    (kind,) = leaf.members
    most = capacity_of(problem, leaf, kind, problem.pods())
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
        cordoned: Those with a cordon but no taint that it does not tolerate.
    """
    verb = "is" if cordoned == 1 else "are"
    if cordoned == nodes:
        return f"{_the_nodes(nodes)} it could run on {verb} cordoned"
    if cordoned:
        return (
            f"of {_the_nodes(nodes)} it could run on {cordoned} {verb} cordoned, and it does not tolerate the "
            "taints of the others"
        )
    return f"it does not tolerate the taints of {_the_nodes(nodes)} it could run on"


def _barred(request: PlanRequest, problem: PlacementProblem, leaf: CompiledGroup) -> str:
    """Return the static filter that rejects all nodes for all pods of a leaf, or an empty string."""
    if not leaf.members or any(problem.allowed[kind].any() for kind in leaf.members):
        return ""
    if not problem.node_table.size:
        return "there are no nodes"
    shape, opened = problem.shapes[min(leaf.members)], open_nodes(request, problem.node_table)
    matching = selected(problem.node_table, shape)
    if not matching.any() and selected(problem.node_table, without_volumes(shape)).any():
        return f"none of the {problem.node_table.size} nodes that it could run on has its {volume_text([shape])}"
    if not matching.any():
        return f"none of {_the_nodes(problem.node_table.size)} matches its node selector"
    kept = matching & tolerated(problem.node_table, shape)
    if kept.any() and opened is not None and not (kept & opened).any():
        count = _the_nodes(int(kept.sum()))
        return f"exclusive groups of other trees keep it off {count} it could run on"
    if not kept.any():
        cordoned = int((matching & tolerated(problem.node_table, shape, cordons=False)).sum())
        return _kept_out(int(matching.sum()), cordoned)
    mask = problem.rules.masks.get(problem.kinds[min(leaf.members)])
    if mask is not None and not (kept & mask).any():
        rules = " and ".join(rule.text for rule in shape.rules) or "rules of the pods there"
        keep = "keeps" if len(shape.rules) == 1 else "keep"
        return f"{rules} {keep} it off {_the_nodes(int(kept.sum()))} it could run on"
    return f"kube-scheduler refused {_the_nodes(int(kept.sum()))} it could run on"


def _the_nodes(count: int) -> str:
    return "the only node" if count == 1 else f"the {count} nodes"
