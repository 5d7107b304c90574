"""Whether a refusal holds: a refused tree is not planned again until some node has gained capacity.

Less capacity, labels of unused nodes, reservations of other trees: most changes of a cluster cannot help a refused
tree, so it is not planned again for them (L39).
"""

from __future__ import annotations

import msgspec

from extender.core.planner.plan_types import PlanNode, PlanRequest


class ComparedNodes:
    """The results of `only_less` by the identity of both sides: many trees were refused with the same nodes."""

    def __init__(self) -> None:
        # with both tuples, so that the ids stay valid
        self._compared: dict[tuple[int, int], tuple[object, object, bool]] = {}

    def clear(self) -> None:
        """Drop all results."""
        self._compared.clear()

    def only_less(self, before: tuple[PlanNode, ...], now: tuple[PlanNode, ...]) -> bool:
        """Return the result of `only_less`."""
        key = (id(before), id(now))
        entry = self._compared.get(key)
        if entry is None:
            entry = self._compared[key] = (before, now, only_less(before, now))
        return entry[2]


def would_be_refused(refused: PlanRequest, now: PlanRequest, compared: ComparedNodes) -> bool:
    """Return whether the planner, which refused one request, would certainly refuse another one of the same tree."""
    same_tree = refused.root is now.root and refused.shapes is now.shapes
    if not same_tree and (refused.root != now.root or refused.shapes != now.shapes):
        return False
    if (refused.budget, refused.explain, refused.rules) != (now.budget, now.explain, now.rules):
        return False
    if refused.closed != now.closed:
        return False
    if not set(refused.rejected_nodes) <= set(now.rejected_nodes):
        return False
    if not set(refused.claims_in_use) <= set(now.claims_in_use):
        return False
    return refused.nodes is now.nodes or compared.only_less(refused.nodes, now.nodes)


def only_less(before: tuple[PlanNode, ...], now: tuple[PlanNode, ...]) -> bool:
    """Return whether no node has gained capacity, and no node was added or removed.

    A removed node cannot help a tree either, but it changes the texts of refusals, so it counts as a change.
    """
    if len(before) != len(now):
        return False
    return all(a is b or _less(a, b) for a, b in zip(before, now, strict=True))


def _less(before: PlanNode, now: PlanNode) -> bool:
    same = msgspec.structs.replace(
        now, free=before.free, host_ports=before.host_ports, reserved=before.reserved
    )
    return (
        same == before
        and set(before.host_ports) <= set(now.host_ports)
        and all(now.free.get(name, 0) <= amount for name, amount in before.free.items())
        and now.free.keys() <= before.free.keys()
    )
