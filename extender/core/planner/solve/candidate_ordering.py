"""Orders of preference: which domain, which child, which node is tried first. Never a reason to fail.

Integers only, and every tie ends in a position, so an order is the same on every machine.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup, PlacementProblem

Strategy = Literal["full", "roomy", "tight", "listed"]

STRATEGIES: tuple[Strategy, ...] = ("full", "roomy", "tight", "listed")
"""`full`: as if every member and child were demanded, in the tightest domains. `roomy`: the domain that holds most extras, then the tightest. `tight`: the domain with the least room
left over. `listed`: as tight, children in stored order."""


def order_domains(strategy: Strategy, most: Ints, room: Ints, liked: Ints) -> Ints:
    """Order candidate domains, best first.

    Args:
        strategy: See `STRATEGIES`.
        most: Pods of the group that could come to lie in each domain.
        room: All the room there, in pods.
        liked: Members that an earlier plan had put there.
    """
    position = np.arange(len(most))
    if strategy == "roomy":
        return np.lexsort((position, room, -most, -liked))
    return np.lexsort((position, -most, room, -liked))


def order_children(
    strategy: Strategy, children: list[CompiledGroup], choices: list[int]
) -> list[CompiledGroup]:
    """Order children for the minimum: fewest choices of domain first, then the largest.

    `choices` counts the candidate domains of each child, in the same order.
    """
    if strategy == "listed":
        return children
    ranked = sorted(
        zip(children, choices, strict=True), key=lambda c: (-c[0].least, c[1], c[0].index)
    )
    return [child for child, _ in ranked]


def order_nodes(counts: Ints, liked: set[int], nodes: Ints) -> Ints:
    """Order nodes for identical pods: those of an earlier plan, then the smallest holes first.

    Filling small holes keeps the large ones for larger pods and for other trees.
    """
    position = np.arange(len(nodes))
    if not liked:
        return np.lexsort((position, counts))
    cold = np.array([int(n) not in liked for n in nodes], dtype=np.int64)
    return np.lexsort((position, counts, cold))


def weight(problem: PlacementProblem, kind: int) -> int:
    """Weigh a kind: the sum of its shares of the largest node, in millionths."""
    if not len(problem.free):
        return 0
    largest = problem.free.max(axis=0)
    request = problem.requests[kind]
    return sum(int(r) * 1_000_000 // max(int(m), 1) for r, m in zip(request, largest, strict=True))
