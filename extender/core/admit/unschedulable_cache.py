"""Cache of refusals: a refused tree is not planned again until some node has gained capacity.

Less capacity, labels of unused nodes, reservations of other trees: most changes of a cluster cannot help a refused
tree, so it is not planned again for them (L39).
"""

from __future__ import annotations

import msgspec

from extender.core.model.ids import GangUid
from extender.core.planner.plan_types import PlanNode, PlanRequest


class UnschedulableCache:
    """The plan request of the last refusal of each pending tree."""

    def __init__(self) -> None:
        self._last: dict[GangUid, PlanRequest] = {}
        self._compared: dict[tuple[int, int], tuple[object, object, bool]] = {}

    def put(self, root: GangUid, request: PlanRequest) -> None:
        """Record the request of a refusal."""
        self._last[root] = request

    def keep(self, roots: set[GangUid]) -> None:
        """Remove the refusals of all other trees."""
        self._last = {uid: request for uid, request in self._last.items() if uid in roots}
        self._compared.clear()

    def holds(self, root: GangUid, now: PlanRequest) -> bool:
        """Return whether the planner would certainly refuse the request `now` again."""
        before = self._last.get(root)
        if before is None:
            return False
        same_tree = before.root is now.root and before.shapes is now.shapes
        if not same_tree and (before.root != now.root or before.shapes != now.shapes):
            return False
        if (before.budget, before.explain, before.rules) != (now.budget, now.explain, now.rules):
            return False
        if not set(before.rejected_nodes) <= set(now.rejected_nodes):
            return False
        if not set(before.claims_in_use) <= set(now.claims_in_use):
            return False
        return before.nodes is now.nodes or self._only_less(before.nodes, now.nodes)

    def _only_less(self, before: tuple[PlanNode, ...], now: tuple[PlanNode, ...]) -> bool:
        key = (id(before), id(now))
        entry = self._compared.get(key)
        # many trees were refused with the same nodes; the entry keeps both tuples, so that the ids stay valid
        if entry is None:
            entry = (before, now, only_less(before, now))
            self._compared[key] = entry
        return entry[2]


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
