"""Orders in which domains, children and nodes are tried. An order never makes a placement invalid.

Integers only, and every tie is broken by position, so an order is the same on every machine.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from extender.core.planner.model.node_table import Ints
from extender.core.planner.model.problem import CompiledGroup

Strategy = Literal["compact", "full", "roomy", "tight", "listed"]

STRATEGIES: tuple[Strategy, ...] = ("compact", "full", "roomy", "tight", "listed")
"""`compact`: the orders of `compactness`; every member and child counts as required if all can fit. `full`: every member and child counts as required; the domain with the least free capacity. `roomy`: the domain
that holds most extra members. `tight`: the domain with the least free capacity. `listed`: as `tight`, with
children in stored order."""


def order_domains(
    strategy: Strategy, most: Ints, capacity: Ints, preferred: Ints, scores: Ints
) -> Ints:
    """Order candidate domains, best first.

    Args:
        most: Pods of the group that each domain can hold.
        capacity: Free capacity of each domain, in pods.
        preferred: Members whose node of an earlier plan is there.
    """
    position = np.arange(len(most))
    if strategy == "roomy":
        return np.lexsort((position, capacity, -scores, -most, -preferred))
    return np.lexsort((position, -most, capacity, -scores, -preferred))


def order_children(
    strategy: Strategy, children: list[CompiledGroup], choices: list[int]
) -> list[CompiledGroup]:
    """Order children for the minimum: those that need the most pods first, then fewest candidate domains.

    `choices`: the number of candidate domains of each child, in the same order.
    """
    if strategy == "listed":
        return children
    ranked = sorted(
        zip(children, choices, strict=True), key=lambda c: (-c[0].least, c[1], c[0].index)
    )
    return [child for child, _ in ranked]


def order_nodes(counts: Ints, preferred: set[int], nodes: Ints, scores: Ints | None) -> Ints:
    """Order nodes for identical pods: those of an earlier plan, those with the highest score, then those that fit the fewest.

    This keeps nodes with much free capacity for larger pods and for other trees. `scores`: by the soft rules of pods.
    """
    keys = [np.arange(len(nodes)), counts]
    if scores is not None:
        keys.append(-scores)
    if preferred:
        keys.append(np.array([int(n) not in preferred for n in nodes], dtype=np.int64))
    return np.lexsort(keys)
