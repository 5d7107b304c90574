"""The nodes and the trees of groups as the cluster shows them now: what the log does not know.

The log holds what gangs had of nodes; capacity, labels and what ordinary pods take come from the view. Lines of
nodes are kept as bytes as long as node and pods are the same objects, so asking again costs what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from immutables import Map

from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import NotFound
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node, Taint
from extender.core.model.pod_groups import Group
from extender.core.model.pods import Pod
from extender.ports.protocols import Cluster
from extender.runtime.cooperative_yield import Yielder


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A node now. Amounts in the units of requests: CPU in millicores, memory in bytes, the rest in units."""

    node: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    deleting: bool
    allocatable: dict[str, int]
    ordinary: dict[str, int]  # requests of pods on it that name no group
    ordinary_pods: int
    members: dict[
        str, int
    ]  # requests of pods on it that name a group, those that terminate included
    member_pods: int


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes now."""

    doubt: str  # why this cannot be relied on (not synced, stale); empty: it can
    topology_keys: list[str]  # node labels that groups ask for now, by name
    nodes: list[NodeLine]  # by name


class MemberNow(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that names a group of the tree."""

    pod: str  # namespace/name
    uid: str
    node: str  # empty: not bound
    nominated: str  # empty: not nominated
    gates: tuple[str, ...]  # scheduling gates that hold it
    deleting: bool


class GroupNow(msgspec.Struct, frozen=True, kw_only=True):
    """A group as its object says now."""

    name: str
    kind: str
    parent: str  # empty at the root
    basic: bool
    minimum: int  # pods of a PodGroup, groups of a CompositePodGroup; 1 when basic
    topology: tuple[str, ...]  # node labels it asks to share, outer to inner
    mode: str  # single | all: what goes together under preemption
    deleting: bool
    members: list[MemberNow]  # of leaves


class TreeNow(msgspec.Struct, frozen=True, kw_only=True):
    """A tree as the cluster shows it now, admitted or not."""

    gang: str  # namespace/name of the root
    doubt: str  # as in `Nodes`
    groups: list[GroupNow]  # root first, then depth first, in stored order


class NodeInventory:
    """Answers about what is there now."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lines: dict[NodeName, tuple[Node, Mapping[PodUid, Pod] | None, bytes]] = {}
        self._sorted: tuple[Map[NodeName, Node], list[NodeName]] = (Map(), [])

    async def nodes(self) -> list[bytes]:
        """Give `Nodes` as JSON, in pieces; the event loop is never held for all of them."""
        view, pace = self._cluster.view(), Yielder()
        keys = await _keys_in_use(view, pace)
        lines: dict[NodeName, tuple[Node, Mapping[PodUid, Pod] | None, bytes]] = {}
        head = msgspec.json.encode(
            NodeList(doubt=self._cluster.doubt(), topology_keys=keys, nodes=[])
        )
        pieces = [head]
        for name in self._names(view):
            node, here = view.nodes[name], view.on_node.get(name)
            known = self._lines.get(name)
            if known is None or known[0] is not node or known[1] is not here:
                known = (node, here, msgspec.json.encode(node_line(node, here or {})))
            lines[name] = known
            pieces += (b",", known[2])
            await pace.breath()
        self._lines = lines
        return _closed(pieces)

    def _names(self, view: ClusterView) -> list[NodeName]:
        if self._sorted[0] is not view.nodes:
            self._sorted = (view.nodes, sorted(view.nodes))
        return self._sorted[1]

    async def tree(self, namespace: str, name: str) -> list[bytes]:
        """Give `TreeNow` as JSON, in pieces, by the name of its root.

        Raises:
            NotFound: The cluster shows no such root now.
        """
        view, pace = self._cluster.view(), Yielder()
        children: dict[str, list[Group]] = {}
        roots: list[Group] = []
        for group in view.groups.values():
            if group.key.namespace == namespace and group.parent is not None:
                children.setdefault(group.parent, []).append(group)
            elif group.key.namespace == namespace and group.key.name == name:
                roots.append(group)
            await pace.breath()
        if not roots:
            msg = f"gang {namespace}/{name}: the cluster shows no such root group now"
            raise NotFound(msg)
        root = min(roots, key=lambda group: group.key.kind)  # a composite where both have the name
        told = TreeNow(gang=root.key.path, doubt=self._cluster.doubt(), groups=[])
        pieces = [msgspec.json.encode(told)]
        for group in _below(root, children, set()):
            pieces += (b",", msgspec.json.encode(_group_now(group, view)))
            await pace.breath()
        return _closed(pieces)


def _closed(pieces: list[bytes]) -> list[bytes]:
    """Put items, each behind a comma, into the empty list at the end of an object that stands in front of them."""
    if len(pieces) > 1:
        pieces[0], pieces[1] = pieces[0].removesuffix(b"]}"), b""
        pieces.append(b"]}")
    return pieces


def node_line(node: Node, here: Mapping[PodUid, Pod]) -> NodeLine:
    """Sum up a node.

    Args:
        node: The node.
        here: Pods assigned to it that have not ended.
    """
    members = [pod for pod in here.values() if pod.group is not None]
    ordinary = [pod for pod in here.values() if pod.group is None]
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
        for name, amount in pod.shape.requests:
            total[name] = total.get(name, 0) + amount
    return total


async def _keys_in_use(view: ClusterView, pace: Yielder) -> list[str]:
    keys: set[str] = set()
    for group in view.groups.values():
        keys.update(group.topology)
        await pace.breath()
    return sorted(keys)


def _below(
    group: Group, children: Mapping[str, list[Group]], seen: set[GroupKey]
) -> Iterator[Group]:
    """Walk a tree depth first; a group that was met is not met again, so a cycle ends."""
    open_ones = [group]
    while open_ones:
        here = open_ones.pop()
        if here.key in seen:
            continue
        seen.add(here.key)
        yield here
        if here.key.kind == "CompositePodGroup":
            below = children.get(here.key.name, [])
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
        topology=group.topology,
        mode=group.mode,
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
