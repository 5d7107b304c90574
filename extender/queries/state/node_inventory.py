"""The nodes and the trees of groups as the cluster shows them now.

Capacity, labels and usage by ordinary pods come from the view, because the log does not have them. Encoded nodes are
cached as long as node and pods are the same objects, so a second query encodes only what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from immutables import Map

from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.errors import NotFound
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node, Taint
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Group, composite_key, leaf_key
from extender.core.model.pods import Pod
from extender.core.model.quantities import add_amounts
from extender.ports.cluster_ports import Cluster
from extender.queries.state.state_dto import NodeAt
from extender.runtime.cooperative_yield import Yielder


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node now. Amounts in the units of requests: CPU in millicores, memory in bytes, the rest in units."""

    node: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    deleting: bool
    allocatable: dict[str, int]
    ordinary: dict[str, int]  # requests of its pods that name no group
    ordinary_pods: int
    members: dict[str, int]  # requests of its pods that name a group, also of terminating ones
    member_pods: int


class NodeInventoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes now."""

    not_current_reason: str  # why this may be wrong (not synced, stale); empty: it is current
    topology_keys: list[str]  # labels of nodes in topology constraints of groups, sorted
    nodes: list[NodeLine]  # by name


class MemberNow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that names a group of the tree."""

    pod: str  # namespace/name
    uid: str
    node: str  # empty: not bound
    nominated: str  # empty: not nominated
    gates: tuple[str, ...]  # scheduling gates
    deleting: bool


class GroupNow(msgspec.Struct, frozen=True, kw_only=True):
    """A group as its object is now."""

    name: str
    kind: str
    parent: str  # empty at the root
    basic: bool
    minimum: int  # pods of a PodGroup, groups of a CompositePodGroup; 1 when basic
    topology: tuple[str, ...]  # labels of its topology constraints, outer to inner
    disruption_mode: str  # single | all: which pods are evicted together
    deleting: bool
    members: list[MemberNow]  # of leaves


class TreeNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tree as the cluster shows it now, admitted or not."""

    gang: str  # namespace/name of the root
    not_current_reason: str  # as in `NodeInventoryReport`
    groups: list[GroupNow]  # root first, then depth first, by creation


class NodeInventory:
    """Answers queries about nodes and trees as they are now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lines: dict[NodeName, tuple[Node, Mapping[PodUid, Pod] | None, bytes]] = {}
        self._names: IdentityMemo[list[NodeName]] = IdentityMemo()

    async def nodes(self) -> list[bytes]:
        """Return a `NodeInventoryReport` as JSON, in pieces; gives the event loop back between nodes."""
        view, pace = self._cluster.view(), Yielder()
        keys = await _keys_in_use(view, pace)
        lines: dict[NodeName, tuple[Node, Mapping[PodUid, Pod] | None, bytes]] = {}
        head = msgspec.json.encode(
            NodeInventoryReport(
                not_current_reason=self._cluster.not_ready_reason(), topology_keys=keys, nodes=[]
            )
        )
        pieces = [head]
        for name in self._names.get(lambda: sorted(view.nodes), same=(view.nodes,)):
            node, pods = view.nodes[name], view.on_node.get(name)
            cached = self._lines.get(name)
            if cached is None or cached[0] is not node or cached[1] is not pods:
                cached = (node, pods, msgspec.json.encode(node_line(node, pods or {})))
            lines[name] = cached
            pieces += (b",", cached[2])
            await pace.yield_if_due()
        self._lines = lines
        return _closed(pieces)

    async def tree(self, namespace: str, name: str) -> list[bytes]:
        """Return a `TreeNow` as JSON, in pieces, by the name of its root.

        Raises:
            NotFound: The cluster has no such root group now.
        """
        view, pace = self._cluster.view(), Yielder()
        named = (composite_key(namespace, name), leaf_key(namespace, name))
        roots = [g for key in named if (g := view.groups.get(key)) is not None and not g.parent]
        if not roots:
            raise no_such_root(namespace, name)
        root = roots[0]  # a composite where both have the name
        children = await groups_by_parent(view, namespace, pace)
        head = TreeNow(
            gang=root.key.path, not_current_reason=self._cluster.not_ready_reason(), groups=[]
        )
        pieces = [msgspec.json.encode(head)]
        for group in groups_below(root, children):
            pieces += (b",", msgspec.json.encode(_group_now(group, view)))
            await pace.yield_if_due()
        return _closed(pieces)


def no_such_root(namespace: str, name: str) -> NotFound:
    """Return the error about a root group that the cluster does not have now, or that the caller does not see."""
    return NotFound(f"gang {namespace}/{name}: the cluster has no such root group now")


def _closed(pieces: list[bytes]) -> list[bytes]:
    """Return the pieces of an object whose last field is a list.

    The first piece is the object with an empty list; each further piece is an item after a comma.
    """
    if len(pieces) > 1:
        pieces[0], pieces[1] = pieces[0].removesuffix(b"]}"), b""
        pieces.append(b"]}")
    return pieces


def node_line(node: Node, pods: Mapping[PodUid, Pod]) -> NodeLine:
    """Return a node with the sums of the requests of its pods; `pods`: pods that are assigned to it and have not ended."""
    members = [pod for pod in pods.values() if pod.group is not None]
    ordinary = [pod for pod in pods.values() if pod.group is None]
    return NodeLine(
        node=node.name,
        labels=node.labels,
        taints=node.taints,
        unschedulable=node.unschedulable,
        deleting=node.deleting,
        allocatable=node.allocatable,
        ordinary=_requests(ordinary),
        ordinary_pods=len(ordinary),
        members=_requests(members),
        member_pods=len(members),
    )


def _requests(pods: Iterable[Pod]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod in pods:
        add_amounts(total, dict(pod.shape.requests))
    return total


async def _keys_in_use(view: ClusterView, pace: Yielder) -> list[str]:
    """Return the keys of topology constraints that nodes have: a misspelt key is no level of the cluster."""
    keys: set[str] = set()
    for group in view.groups.values():
        keys.update(group.constraints.topology_keys)
        await pace.yield_if_due()
    in_use: set[str] = set()
    for node in view.nodes.values() if keys else ():
        in_use.update(keys.intersection(node.labels))
        if len(in_use) == len(keys):
            break
        await pace.yield_if_due()
    return sorted(in_use)


async def groups_by_parent(
    view: ClusterView, namespace: str, pace: Yielder
) -> Mapping[str, list[Group]]:
    """Return the groups of a namespace that have a parent, by its name; gives the event loop back between groups."""
    children: dict[str, list[Group]] = {}
    for group in view.groups.values():
        if group.key.namespace == namespace and group.parent is not None:
            children.setdefault(group.parent, []).append(group)
        await pace.yield_if_due()
    return children


def groups_below(group: Group, children: Mapping[str, list[Group]]) -> Iterator[Group]:
    """Yield a group and those below it depth first, each once, so that a cycle ends; see `groups_by_parent`."""
    open_ones, visited = [group], set[GroupKey]()
    while open_ones:
        group = open_ones.pop()
        if group.key in visited:
            continue
        visited.add(group.key)
        yield group
        if group.key.kind == "CompositePodGroup":
            below = children.get(group.key.name, [])
            stored = sorted(below, key=lambda g: (g.created_us, g.key.name, g.key.kind))
            open_ones += reversed(stored)


def _group_now(group: Group, view: ClusterView) -> GroupNow:
    pods = view.members.get(group.key)
    return GroupNow(
        name=group.key.name,
        kind=group.key.kind,
        parent=group.parent or "",
        basic=group.basic,
        minimum=group.minimum,
        topology=group.constraints.topology,
        disruption_mode=group.disruption_mode,
        deleting=group.deleting,
        members=[
            MemberNow(
                pod=pod.path,
                uid=pod.uid,
                node=pod.node or "",
                nominated=pod.nominated or "",
                gates=pod.gates,
                deleting=pod.deleting,
            )
            for pod in sorted(pods.values() if pods is not None else (), key=lambda p: p.name)
        ],
    )


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
            add_amounts(taken, pod.requests)
    for other in had.others if had is not None else ():
        if other.state == "reserved":
            add_amounts(taken, other.requests)
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
