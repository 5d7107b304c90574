"""Nodes that are alike, merged for the complete search.

A node on which all pods that may run there ask for the same is a bag of equal slots, and bags in the
same domains add up exactly. Other nodes are kept one by one; of identical ones never more than there
are pods.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extender.core.planner.capacity import Ints, count_fitting
from extender.core.planner.model import Problem


@dataclass(slots=True)
class Cell:
    """One node, or a bag of slots on several nodes of the same domains."""

    kinds: list[int]  # that may run here
    nodes: list[int]
    slots: list[int] | None  # per node, pods of any of the kinds; None: look at `room`
    room: list[int]  # of the single node, per axis


def make_cells(problem: Problem) -> list[Cell]:
    """Merge the nodes on which some pod fits; ordered by their first node."""
    able = problem.counts > 0  # (kinds, nodes)
    useful = np.flatnonzero(able.any(axis=0))
    if not len(useful):
        return []
    _, like = np.unique(problem.requests, axis=0, return_inverse=True)
    like = like.reshape(-1)
    sets, which = np.unique(able[:, useful].T, axis=0, return_inverse=True)
    which = which.reshape(-1)
    atoms = _atoms(problem)[useful]
    cells: list[Cell] = []
    for number, row in enumerate(sets):
        kinds = np.flatnonzero(row).tolist()
        here = which == number
        nodes = useful[here]
        if len({int(like[k]) for k in kinds}) == 1:
            slots = count_fitting(problem.free[nodes], problem.requests[kinds[0]])
            cells.extend(_bags(kinds, nodes, atoms[here], slots))
        else:
            cells.extend(_singles(problem, kinds, nodes, atoms[here]))
    cells.sort(key=lambda c: c.nodes[0])
    return cells


def _atoms(problem: Problem) -> Ints:
    """Number the nodes by their domains on every level that a group uses."""
    levels = {g.level.keys: g.level.domain for g in problem.groups if g.alive and g.level.keys}
    if not levels:
        return np.zeros(problem.fleet.size, dtype=np.int64)
    _, atoms = np.unique(np.stack(list(levels.values()), axis=1), axis=0, return_inverse=True)
    return atoms.astype(np.int64).reshape(-1)


def _bags(kinds: list[int], nodes: Ints, atoms: Ints, slots: Ints) -> list[Cell]:
    order = np.lexsort((nodes, atoms))
    cuts = np.flatnonzero(np.diff(atoms[order])) + 1
    return [
        Cell(kinds, nodes[part].tolist(), slots[part].tolist(), [])
        for part in np.split(order, cuts)
    ]


def _singles(problem: Problem, kinds: list[int], nodes: Ints, atoms: Ints) -> list[Cell]:
    sizes = np.zeros(len(problem.kinds), dtype=np.int64)
    for group in problem.groups:
        for kind, members in group.members.items():
            sizes[kind] += len(members)
    demand = (problem.requests * sizes[:, None]).sum(axis=0)  # more room than this is never used
    room = np.minimum(problem.free[nodes], demand)
    pods = int(sizes[kinds].sum())
    seen: dict[tuple[int, ...], int] = {}
    cells: list[Cell] = []
    for node, atom, row in zip(nodes.tolist(), atoms.tolist(), room.tolist(), strict=True):
        key = (atom, *row)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= pods:
            cells.append(Cell(kinds, [node], None, row))
    return cells
