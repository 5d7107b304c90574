"""Capacity holds: capacity that is held, as it frees, for a tree that waits for long; against equal and lower priorities.

A hold has the amounts that the minimum of the tree needs on some nodes, and no more. For all others of its priority
and below it counts as used, also while other pods still use the same capacity: what they free goes to the tree.
The tree itself, and higher priorities, do not see it. It gives no capacity by itself: the tree is admitted like any
other when it fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from extender.core.log.reservation_state import CapacityHold, HeldOnNode, ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GangUid, NodeName
from extender.core.model.pods import EXEMPT_NAMESPACES, Pod


def parts_against(
    state: ReservationState, node: NodeName, *, priority: int, gang_uid: GangUid | str
) -> Iterator[HeldOnNode]:
    """Yield the parts of capacity holds on a node that a tree or pod must leave free.

    Args:
        state: The reservation state.
        node: The node.
        priority: Of the tree or pod; holds of lower priority are left out.
        gang_uid: Of the tree or pod; its own hold is left out.
    """
    for part in state.capacity_held_on.get(node, ()):
        if part.gang_uid != gang_uid and part.priority >= priority:
            yield part


def held_requests_against(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    gang_uid: GangUid | str,
) -> dict[str, int]:
    """Return the amounts of capacity holds that a tree or pod must leave free on a node, by resource; empty: none.

    A gang that lost a member there may replace it: what is held for the replacement is subtracted.

    Args:
        view: The cluster; a pod of a hold that is assigned already is left out, because the usage includes it.
        state: The reservation state.
        node: The node.
        priority: As in `parts_against`.
        gang_uid: As in `parts_against`.
    """
    amounts: dict[str, int] = {}
    for part in parts_against(state, node, priority=priority, gang_uid=gang_uid):
        for held in part.pods:
            pod = view.pods.get(held.uid)
            if pod is not None and pod.node is not None:
                continue
            for name, amount in held.requests.items():
                amounts[name] = amounts.get(name, 0) + amount
    if amounts:
        for hold in state.replacement_holds_on.get(node, {}).values():
            if hold.gang_uid == gang_uid:
                for name, amount in hold.requests.items():
                    if name in amounts:
                        amounts[name] -= amount
    return {name: amount for name, amount in amounts.items() if amount > 0}


def may_leave(pod: Pod) -> bool:
    """Return whether the capacity of an assigned pod counts as capacity that frees some time.

    Pods of the node itself and of Kubernetes stay: static pods, those that may run on this node only (DaemonSets), and
    those of namespaces that the service leaves alone.
    """
    return not (pod.static or pod.pinned is not None or pod.namespace in EXEMPT_NAMESPACES)


def nodes_of(hold: CapacityHold) -> tuple[NodeName, ...]:
    """Return the nodes of a hold, sorted."""
    return tuple(sorted({pod.node for pod in hold.pods}))
