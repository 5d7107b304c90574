"""How much of a capacity hold is free already, and what holds of others take from a tree."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from extender.core.capacity.capacity_claims import held_back, may_leave, nodes_of
from extender.core.capacity.free_capacity import make_row, used_capacity_on
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.reservation_state import CapacityHold, ReservationState, reservations_on
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GangUid, NodeName
from extender.core.model.message_formatting import counted
from extender.core.model.pods import PodShape
from extender.core.model.quantities import add_amounts
from extender.core.model.visibility import namespace_of
from extender.core.planner.plan_types import PlanNode

HELD: Final = "free capacity is held for trees of equal or higher priority that have waited longer"

NOTHING_LEAVES: Final[Mapping[NodeName, Mapping[str, int]]] = MappingProxyType({})


class HoldProgress(msgspec.Struct, frozen=True, gc=False):
    """How many pods of a hold would fit now on the nodes where capacity is held for them."""

    fitting: int
    pods: int
    nodes: int

    def sentence(self) -> str:
        """Return it as text.

        >>> HoldProgress(24, 32, 4).sentence()
        'capacity is held for it on 4 nodes as it frees: 24 of 32 pods would fit now'
        """
        nodes = counted(self.nodes, "node")
        return f"capacity is held for it on {nodes} as it frees: {self.fitting} of {counted(self.pods, 'pod')} would fit now"


def hold_progress(view: ClusterView, state: ReservationState, hold: CapacityHold) -> HoldProgress:
    """Return the progress of a hold."""
    fitting = fitting_pods(view, state, hold.gang_uid, hold.pods, hold.priority)
    return HoldProgress(fitting, len(hold.pods), len(nodes_of(hold)))


def fitting_pods(
    view: ClusterView,
    state: ReservationState,
    gang_uid: GangUid,
    pods: Iterable[CapacityClaim],
    priority: int,
    leaving: Mapping[NodeName, Mapping[str, int]] = NOTHING_LEAVES,
) -> int:
    """Return how many of some pods of a tree fit now on the nodes that are planned for them.

    Args:
        leaving: By node: what counts as free, beside what is free now.
    """
    free: dict[NodeName, dict[str, int]] = {}
    fitting = 0
    for held in pods:
        node = view.nodes.get(held.node)
        if node is None:
            continue
        left = free.get(held.node)
        if left is None:
            taken = used_capacity_on(view, state, held.node, priority=priority, gang_uid=gang_uid)
            left = dict(make_row(node, view.usage.get(held.node, NOTHING), taken).free)
            add_amounts(left, leaving.get(held.node, {}))
            free[held.node] = left
        if all(left.get(name, 0) >= amount for name, amount in held.requests.items()):
            fitting += 1
            add_amounts(left, held.requests, -1)
    return fitting


def is_blocked_by_own_pods(view: ClusterView, state: ReservationState, hold: CapacityHold) -> bool:
    """Return whether the pods of a hold would all fit but for pods of their own namespace, of which none terminates yet."""
    namespace, leaving = namespace_of(hold.gang), {}
    for node in nodes_of(hold):
        own = [
            (pod, dict(pod.shape.requests))
            for pod in view.on_node.get(node, {}).values()
            if pod.namespace == namespace and may_leave(pod)
        ]
        for reservation in reservations_on(state, node).values():
            pod = view.pods.get(reservation.uid)
            if pod is not None and pod.node is None and pod.namespace == namespace:
                own.append((pod, dict(reservation.requests)))
        if any(pod.deleting for pod, _ in own):
            return False
        if own:
            leaving[node] = sum((Counter(requests) for _, requests in own), Counter[str]())
    if not leaving:
        return False
    tree = (hold.gang_uid, hold.pods, hold.priority)
    whole = len(hold.pods)
    return fitting_pods(view, state, *tree) < whole == fitting_pods(view, state, *tree, leaving)


def held_against(
    view: ClusterView,
    state: ReservationState,
    nodes: Sequence[PlanNode],
    shapes: Sequence[PodShape],
    *,
    priority: int,
    gang_uid: GangUid,
) -> str:
    """Return that a refused tree does not get free capacity because it is held for others; empty: it is not so.

    It is so where a pod of the tree would fit but for the hold. The text has no names, and no numbers that change often.

    Args:
        nodes: The nodes of its plan request, sorted by name.
    """
    for name in {name for hold in state.capacity_holds.values() for name in nodes_of(hold)}:
        held = held_back(view, state, name, priority=priority, gang_uid=gang_uid)
        place = bisect_left(nodes, name, key=lambda node: node.name) if held else len(nodes)
        if place == len(nodes) or nodes[place].name != name:
            continue
        if any(_is_kept_off(nodes[place], shape, held) for shape in shapes):
            return HELD
    return ""


def _is_kept_off(node: PlanNode, shape: PodShape, held: dict[str, int]) -> bool:
    """Return whether a pod would fit on a node but for what is held there."""
    asks = {name: amount for name, amount in shape.requests if amount > 0}
    fits = all(node.free.get(name, 0) >= amount for name, amount in asks.items())
    return not fits and all(
        node.free.get(name, 0) + held.get(name, 0) >= amount for name, amount in asks.items()
    )
