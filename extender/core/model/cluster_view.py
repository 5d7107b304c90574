"""The cluster at one instant as the informers saw it, in persistent maps, so that a copy costs nothing.

`ClusterView` is immutable: the `with_...` functions return a new view that shares all but the
changed part. Two sums that every decision reads are updated with each change: the usage per node and
the pods by the leaf that they name. It does not contain reservations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from immutables import Map

from extender.core.model.disruption_budgets import PodDisruptionBudget
from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import (
    CHILDREN_MAX,
    DEPTH_MAX,
    Blueprint,
    Forest,
    Group,
    build_forest,
    composite_key,
    forest_with_moves,
    forest_with_updates,
    same_position,
)
from extender.core.model.pods import HostPort, Pod, PodEnd


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the pods assigned to one node use, including terminating pods (EXTENDER 7)."""

    requests: dict[str, int] = {}
    host_ports: tuple[HostPort, ...] = ()  # one entry per pod and port, so that each can be removed
    claims: tuple[str, ...] = ()  # ReadWriteOncePod claims in use


class Guard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Deletion and finalizers of one group object of our API group (SPEC B12), also of one that is not used."""

    uid: GangUid
    parent: str | None = None
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    resource_version: str = ""


class GroupChange(msgspec.Struct, frozen=True, gc=False):
    """A group that was added, replaced or removed, and the change before."""

    key: GroupKey
    before: GroupChange | None  # None: not known
    number: int  # of known changes up to this one


GROUPS_AT_ONCE = 500  # added or removed groups whose trees are built in one slice
CHANGES_KEPT = 1_000  # before all are compared again; also the depth of the chain of changes
NOTHING = Usage()
_T = TypeVar("_T")


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes, pods that have not ended, and groups."""

    nodes: Map[NodeName, Node] = Map()
    pods: Map[PodUid, Pod] = Map()
    groups: Map[GroupKey, Group] = Map()
    usage: Map[NodeName, Usage] = Map()
    members: Map[GroupKey, Map[PodUid, Pod]] = Map()  # pods by the leaf they name
    nominated: Map[PodUid, Pod] = Map()  # unassigned pods with a nominated node
    # unassigned, not nominated, not gated, and bound to one node by affinity
    pinned: Map[PodUid, Pod] = Map()
    on_node: Map[NodeName, Map[PodUid, Pod]] = Map()  # assigned pods
    keeping_off: Map[PodUid, Pod] = Map()  # pods with required anti-affinity, assigned or not
    blueprints: Map[tuple[str, str], tuple[Blueprint, ...]] = Map()  # Workload (namespace, name)
    guards: Map[GroupKey, Guard] = Map()  # only from an API server: manifests have no finalizers
    budgets: Map[tuple[str, str], PodDisruptionBudget] = Map()  # by namespace and name
    # how removed members ended, where the cluster reported it; entries are removed after a time
    ends: Map[PodUid, PodEnd] = Map()
    # the last change of `groups`; forests are made from the changes, so `groups` has no other way to change
    last_change: GroupChange | None = None
    max_children: int = CHILDREN_MAX  # groups that one parent may have
    generation: int = 0  # grows with each change of a node
    revision: int = 0  # grows with each change


def _take(usage: Usage, pod: Pod, sign: int) -> Usage:
    requests = dict(usage.requests)
    for name, amount in pod.shape.requests:
        total = requests.get(name, 0) + sign * amount
        if total:
            requests[name] = total
        else:
            requests.pop(name, None)
    ports, claims = usage.host_ports, usage.claims
    if pod.shape.host_ports:
        ports = _changed(ports, pod.shape.host_ports, sign)
    if pod.shape.exclusive_claims:
        claims = _changed(claims, pod.shape.exclusive_claims, sign)
    return Usage(requests=requests, host_ports=ports, claims=claims)


def _changed(have: tuple[_T, ...], change: tuple[_T, ...], sign: int) -> tuple[_T, ...]:
    if sign > 0:
        return have + change
    left = list(have)
    for item in change:
        left.remove(item)
    return tuple(left)


def with_node(view: ClusterView, node: Node) -> ClusterView:
    """Add or replace a node."""
    before = view.nodes.get(node.name)
    if before == node:
        return view
    return msgspec.structs.replace(
        view,
        nodes=view.nodes.set(node.name, node),
        generation=view.generation + 1,
        revision=view.revision + 1,
    )


def without_node(view: ClusterView, name: NodeName) -> ClusterView:
    """Remove a node; pods on it stay until they are removed."""
    if name not in view.nodes:
        return view
    return msgspec.structs.replace(
        view,
        nodes=view.nodes.delete(name),
        generation=view.generation + 1,
        revision=view.revision + 1,
    )


def with_group(view: ClusterView, group: Group) -> ClusterView:
    """Add or replace a group."""
    if view.groups.get(group.key) == group:
        return view
    return _with_groups(view, view.groups.set(group.key, group), group.key)


def without_group(view: ClusterView, key: GroupKey) -> ClusterView:
    """Remove a group."""
    if key not in view.groups:
        return view
    return _with_groups(view, view.groups.delete(key), key)


def _with_groups(view: ClusterView, groups: Map[GroupKey, Group], key: GroupKey) -> ClusterView:
    last = view.last_change
    if last is None or last.number >= CHANGES_KEPT:
        change = GroupChange(key, None, 1)
    else:
        change = GroupChange(key, last, last.number + 1)
    return msgspec.structs.replace(
        view, groups=groups, last_change=change, revision=view.revision + 1
    )


def with_guard(view: ClusterView, key: GroupKey, guard: Guard | None) -> ClusterView:
    """Set or, with None, remove the guard of one of our group objects."""
    if view.guards.get(key) == guard:
        return view
    changed = view.guards.delete(key) if guard is None else view.guards.set(key, guard)
    return msgspec.structs.replace(view, guards=changed, revision=view.revision + 1)


def with_blueprints(
    view: ClusterView, workload: tuple[str, str], templates: tuple[Blueprint, ...] | None
) -> ClusterView:
    """Set or, with None, remove the templates of a Workload."""
    if view.blueprints.get(workload) == templates:
        return view
    known = view.blueprints
    changed = known.delete(workload) if templates is None else known.set(workload, templates)
    return msgspec.structs.replace(view, blueprints=changed, revision=view.revision + 1)


def with_pdb(view: ClusterView, budget: PodDisruptionBudget) -> ClusterView:
    """Add or replace a PodDisruptionBudget."""
    name = (budget.namespace, budget.name)
    if view.budgets.get(name) == budget:
        return view
    changed = view.budgets.set(name, budget)
    return msgspec.structs.replace(view, budgets=changed, revision=view.revision + 1)


def without_pdb(view: ClusterView, namespace: str, name: str) -> ClusterView:
    """Remove a PodDisruptionBudget."""
    if (namespace, name) not in view.budgets:
        return view
    changed = view.budgets.delete((namespace, name))
    return msgspec.structs.replace(view, budgets=changed, revision=view.revision + 1)


def with_pod(view: ClusterView, pod: Pod) -> ClusterView:
    """Add or replace a pod that has not ended."""
    if view.pods.get(pod.uid) == pod:
        return view
    view = without_pod(view, pod.uid)
    changes: dict[str, object] = {
        "pods": view.pods.set(pod.uid, pod),
        "revision": view.revision + 1,
    }
    if pod.group is not None:
        mates = view.members.get(pod.group, Map())
        changes["members"] = view.members.set(pod.group, mates.set(pod.uid, pod))
    if pod.shape.has_anti_affinity:
        changes["keeping_off"] = view.keeping_off.set(pod.uid, pod)
    if pod.node is not None:
        here = view.on_node.get(pod.node, Map())
        changes["on_node"] = view.on_node.set(pod.node, here.set(pod.uid, pod))
        usage = _take(view.usage.get(pod.node, NOTHING), pod, +1)
        changes["usage"] = view.usage.set(pod.node, usage)
    elif pod.nominated is not None:
        changes["nominated"] = view.nominated.set(pod.uid, pod)
    elif _comes(pod):
        changes["pinned"] = view.pinned.set(pod.uid, pod)
    return msgspec.structs.replace(view, **changes)


def _comes(pod: Pod) -> bool:
    """Return whether an unassigned pod can be scheduled to one node only, as the pods of a DaemonSet."""
    return pod.pinned is not None and pod.group is None and not (pod.gates or pod.deleting)


def without_pod(view: ClusterView, uid: PodUid) -> ClusterView:
    """Remove a pod that was deleted or has ended."""
    pod = view.pods.get(uid)
    if pod is None:
        return view
    changes: dict[str, object] = {"pods": view.pods.delete(uid), "revision": view.revision + 1}
    if pod.group is not None:
        mates = view.members[pod.group].delete(uid)
        members = view.members.set(pod.group, mates) if mates else view.members.delete(pod.group)
        changes["members"] = members
    if pod.shape.has_anti_affinity:
        changes["keeping_off"] = view.keeping_off.delete(uid)
    if pod.node is not None:
        here = view.on_node[pod.node].delete(uid)
        empty = not here
        changes["on_node"] = (
            view.on_node.delete(pod.node) if empty else view.on_node.set(pod.node, here)
        )
        usage = _take(view.usage[pod.node], pod, -1)
        changes["usage"] = view.usage.delete(pod.node) if empty else view.usage.set(pod.node, usage)
    elif pod.nominated is not None:
        changes["nominated"] = view.nominated.delete(uid)
    elif _comes(pod):
        changes["pinned"] = view.pinned.delete(uid)
    return msgspec.structs.replace(view, **changes)


def with_end(view: ClusterView, uid: PodUid, end: PodEnd | None) -> ClusterView:
    """Set or, with None, remove the record how a pod ended.

    The revision does not change: the removal of the pod changes it, and removing the record affects no decision.
    """
    if view.ends.get(uid) == end:
        return view
    changed = view.ends.delete(uid) if end is None else view.ends.set(uid, end)
    return msgspec.structs.replace(view, ends=changed)


def groups_above(view: ClusterView, leaf: GroupKey | None) -> list[Group]:
    """Return a leaf and the existing groups above it, at most as many as a tree has levels (SPEC B7)."""
    found: list[Group] = []
    key = leaf
    while key is not None and len(found) < DEPTH_MAX:
        group = view.groups.get(key)
        if group is None or group in found:
            break
        found.append(group)
        key = composite_key(key.namespace, group.parent) if group.parent is not None else None
    return found


def forest_of(view: ClusterView) -> Forest:
    """Return the forest of the groups and pods of a view."""
    members = {leaf: tuple(pods.values()) for leaf, pods in view.members.items()}
    return build_forest(view.groups, members, max_children=view.max_children)


def forest_after(before: ClusterView, forest: Forest, view: ClusterView) -> Forest:
    """Return `forest_of(view)`, made from the forest of an earlier view; only changed trees are built again."""
    if before.groups is view.groups and before.members is view.members:
        return forest
    stayed: list[Group] = []
    moved: set[GroupKey] = set()
    if before.groups is not view.groups:
        stayed, moved = _group_changes(before, view)
    if moved:
        forest = forest_with_moves(
            forest,
            view.groups,
            moved,
            lambda leaf: _pods_of(view, leaf),
            max_children=view.max_children,
        )
    leaves: set[GroupKey] = set()
    if before.members is not view.members:
        leaves = {k for k, pods in view.members.items() if before.members.get(k) is not pods}
        leaves |= {leaf for leaf in before.members if leaf not in view.members}
    members = {leaf: _pods_of(view, leaf) for leaf in leaves}
    updated = forest_with_updates(
        forest, view.groups, stayed, members, max_children=view.max_children
    )
    return updated or forest_of(view)


def forest_steps(
    before: ClusterView, forest: Forest, view: ClusterView
) -> Iterator[tuple[ClusterView, Forest]]:
    """Yield views on the way from one to another, and their forests, where many groups were added or removed.

    Args:
        before: An earlier view.
        forest: Its forest.
        view: A later one.

    Returns:
        Each view has the pods of `before` and up to GROUPS_AT_ONCE more of the changes of groups. Nothing where
        that is about all; `forest_after` of the last one makes the rest.
    """
    if abs(len(view.groups) - len(before.groups)) <= GROUPS_AT_ONCE:
        return
    _, moved = _group_changes(before, view)
    # parents first: groups that wait for a parent join their tree all at once when it comes
    keys = sorted(moved, key=lambda key: key.kind)
    for start in range(0, len(keys) - GROUPS_AT_ONCE, GROUPS_AT_ONCE):
        part = keys[start : start + GROUPS_AT_ONCE]
        groups = before.groups.mutate()
        for key in part:
            group = view.groups.get(key)
            if group is not None:
                groups[key] = group
            else:
                del groups[key]
        before = msgspec.structs.replace(before, groups=groups.finish(), last_change=None)
        pods_of = functools.partial(_pods_of, before)
        forest = forest_with_moves(
            forest, before.groups, part, pods_of, max_children=view.max_children
        )
        yield before, forest


def _group_changes(before: ClusterView, view: ClusterView) -> tuple[list[Group], set[GroupKey]]:
    """Return the groups that changed in place, and the keys of those that were added, removed, or moved."""
    stayed: list[Group] = []
    moved: set[GroupKey] = set()
    for key in _changed_keys(before, view):
        old, group = before.groups.get(key), view.groups.get(key)
        if old is group:
            continue
        if old is not None and group is not None and same_position(old, group):
            stayed.append(group)
        else:
            moved.add(key)
    return stayed, moved


def _changed_keys(before: ClusterView, view: ClusterView) -> Iterable[GroupKey]:
    """Return the keys of all groups that may differ: those of the known changes between two views, else all."""
    found: set[GroupKey] = set()
    change = view.last_change
    while change is not None and change is not before.last_change:
        found.add(change.key)
        change = change.before
    if change is not None and found:
        return found
    olds, news = before.groups, view.groups
    found = {key for key, group in news.items() if olds.get(key) is not group}
    if len(news) - sum(key not in olds for key in found) != len(olds):
        found |= {key for key in olds if key not in news}
    return found


def _pods_of(view: ClusterView, leaf: GroupKey) -> tuple[Pod, ...]:
    pods = view.members.get(leaf)
    return () if pods is None else tuple(pods.values())
