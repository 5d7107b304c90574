"""A node as the cluster shows it now, for answers that have its state in the log beside it."""

from __future__ import annotations

import msgspec
from immutables import Map

from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import NodeName
from extender.queries.state.state_dto import NodeAt


class NodeNow(msgspec.Struct, frozen=True, kw_only=True):
    """A node now. Amounts in the units of requests: CPU in millicores, memory in bytes, the rest in units."""

    labels: dict[str, str]
    unschedulable: bool
    deleting: bool
    allocatable: dict[str, int]
    used: dict[str, int]  # by all pods on it, also ordinary and terminating ones
    free: dict[str, int]  # allocatable minus used minus reserved for pods that are not there yet
    pods: int
    ordinary: int  # unmanaged pods among them


def live_node(view: ClusterView, name: NodeName, had: NodeAt | None) -> NodeNow | None:
    """Return a node as the view shows it, or None when the view does not have it."""
    node = view.nodes.get(name)
    if node is None:
        return None
    on_it = view.on_node.get(name, Map())
    used = view.usage.get(name, NOTHING).requests
    taken = dict(used)
    for pod in had.pods if had is not None else ():
        if pod.state == "reserved" and pod.uid not in on_it:
            for resource, amount in pod.requests.items():
                taken[resource] = taken.get(resource, 0) + amount
    for other in had.others if had is not None else ():
        if other.state == "reserved":
            for resource, amount in other.requests.items():
                taken[resource] = taken.get(resource, 0) + amount
    return NodeNow(
        labels=node.labels,
        unschedulable=node.unschedulable,
        deleting=node.deleting,
        allocatable=node.allocatable,
        used=used,
        free={key: amount - taken.get(key, 0) for key, amount in node.allocatable.items()},
        pods=len(on_it),
        ordinary=sum(pod.group is None for pod in on_it.values()),
    )
