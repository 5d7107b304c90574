"""Classes of equivalent nodes, for the complete search.

A node on which all allowed pods have equal requests is a number of equal slots, and slots of nodes in the
same domains can be added. On other nodes the *patterns* are listed if they are few: the maximal numbers of
pods of each kind that fit together. Nodes in the same domains with the same patterns are merged. Every other
node is a class of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from extender.core.planner.model.node_table import Ints, count_fitting
from extender.core.planner.model.problem import PlacementProblem


@dataclass(slots=True)
class NodeClass:
    """One node, or several nodes in the same domains with equal slots or equal patterns."""

    kinds: list[int]  # that may run here
    nodes: list[int]
    # per node, pods of any of the kinds; None: see `patterns` and `capacity`
    slots: list[int] | None
    capacity: list[int]  # free capacity of a single node, per axis
    # pods per kind; each node has one of these
    patterns: list[tuple[int, ...]] = field(default_factory=list)


PATTERNS_MAX = 40
STEPS_MAX = 2_000  # in the enumeration of the patterns of one node


def make_node_classes(problem: PlacementProblem, separate: Sequence[Ints] = ()) -> list[NodeClass]:
    """Return the classes of all nodes on which some pod fits, ordered by their first node.

    `separate`: further domains per node; a class is in one domain of each.
    """
    able = problem.counts > 0  # (kinds, nodes)
    useful = np.flatnonzero(able.any(axis=0))
    if not len(useful):
        return []
    _, like = np.unique(problem.requests, axis=0, return_inverse=True)
    like = like.reshape(-1)
    sets, which = np.unique(able[:, useful].T, axis=0, return_inverse=True)
    which = which.reshape(-1)
    atoms = _atoms(problem, separate)[useful]
    cells: list[NodeClass] = []
    for number, row in enumerate(sets):
        kinds = np.flatnonzero(row).tolist()
        alike = which == number
        nodes = useful[alike]
        if len({int(like[k]) for k in kinds}) == 1:
            slots = count_fitting(problem.free[nodes], problem.requests[kinds[0]])
            cells.extend(_slot_classes(kinds, nodes, atoms[alike], slots))
        else:
            cells.extend(_singles(problem, kinds, nodes, atoms[alike]))
    cells.sort(key=lambda c: c.nodes[0])
    return cells


def _atoms(problem: PlacementProblem, separate: Sequence[Ints]) -> Ints:
    """Number the nodes by their domains on every level that a group, or a rule between pods, uses."""
    levels = {g.level.keys: g.level.domain for g in problem.groups if g.alive and g.level.keys}
    domains = [*levels.values(), *(rule.domain for rule in problem.rules.dynamic), *separate]
    if not domains:
        return np.zeros(problem.node_table.size, dtype=np.int64)
    _, atoms = np.unique(np.stack(domains, axis=1), axis=0, return_inverse=True)
    return atoms.astype(np.int64).reshape(-1)


def _slot_classes(kinds: list[int], nodes: Ints, atoms: Ints, slots: Ints) -> list[NodeClass]:
    order = np.lexsort((nodes, atoms))
    cuts = np.flatnonzero(np.diff(atoms[order])) + 1
    return [
        NodeClass(kinds, nodes[part].tolist(), slots[part].tolist(), [])
        for part in np.split(order, cuts)
    ]


def _singles(
    problem: PlacementProblem, kinds: list[int], nodes: Ints, atoms: Ints
) -> list[NodeClass]:
    sizes = np.zeros(len(problem.kinds), dtype=np.int64)
    for group in problem.groups:
        for kind, members in group.members.items():
            sizes[kind] += len(members)
    # more capacity than this is never used
    demand = (problem.requests * sizes[:, None]).sum(axis=0)
    capacity = _usable(np.minimum(problem.free[nodes], demand), problem.requests[kinds])
    pods = int(sizes[kinds].sum())
    asks = problem.requests[kinds].tolist()
    most = sizes[kinds].tolist()
    patterns_by_row: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    merged: dict[tuple[int, tuple[tuple[int, ...], ...]], NodeClass] = {}
    row_counts: dict[tuple[int, ...], int] = {}
    cells: list[NodeClass] = []
    for node, atom, row in zip(nodes.tolist(), atoms.tolist(), capacity.tolist(), strict=True):
        if tuple(row) not in patterns_by_row:
            patterns_by_row[tuple(row)] = _patterns(row, asks, most)
        patterns = patterns_by_row[tuple(row)]
        if patterns:
            cell = merged.setdefault(
                (atom, tuple(patterns)), NodeClass(kinds, [], None, [], patterns=patterns)
            )
            if len(cell.nodes) < pods:
                cell.nodes.append(node)
            continue
        key = (atom, *row)
        # each node that is used has a pod, so of identical nodes as many are enough as there are pods
        row_counts[key] = row_counts.get(key, 0) + 1
        if row_counts[key] <= pods:
            cells.append(NodeClass(kinds, [node], None, row))
    return [*merged.values(), *cells]


def _usable(capacity: Ints, requests: Ints) -> Ints:
    """Return what pods with these requests can use of the capacity of each node, so that more nodes are equal."""
    step = np.maximum(np.gcd.reduce(requests, axis=0), 1)
    capacity = capacity - capacity % step
    least, most = requests.min(axis=0), requests.max(axis=0)
    bounds = [capacity[:, axis] // least[axis] for axis in np.flatnonzero(least)]
    pods = np.minimum.reduce(bounds)  # every pod needs one of `pods`
    usable: Ints = np.minimum(capacity, pods[:, None] * most)
    return usable


def _patterns(capacity: list[int], asks: list[list[int]], most: list[int]) -> list[tuple[int, ...]]:
    """Return the patterns of a node; empty if they are too many."""
    patterns: list[tuple[int, ...]] = []
    steps = 0

    def fits(left: list[int], ask: list[int]) -> int:
        return min((have // a for have, a in zip(left, ask, strict=True) if a), default=0)

    def fill(kind: int, left: list[int], counts: list[int]) -> bool:
        nonlocal steps
        steps += 1
        if steps > STEPS_MAX or len(patterns) > PATTERNS_MAX:
            return False
        if kind == len(asks):
            full = all(counts[k] >= most[k] or fits(left, ask) == 0 for k, ask in enumerate(asks))
            if full:
                patterns.append(tuple(counts))
            return True
        top = min(fits(left, asks[kind]), most[kind])
        for n in range(top, -1, -1):
            rest = [have - n * a for have, a in zip(left, asks[kind], strict=True)]
            if not fill(kind + 1, rest, [*counts, n]):
                return False
        return True

    return patterns if fill(0, capacity, []) and len(patterns) <= PATTERNS_MAX else []
