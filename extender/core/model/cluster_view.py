"""The cluster at one instant as the informers saw it, in persistent maps, so that a copy costs nothing.

`ClusterView` is immutable: the `with_...` functions return a new view that shares all but the
changed part. Two sums that every decision reads are updated with each change: the usage per node and
the pods by the leaf that they name. It does not contain reservations.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from immutables import Map

from extender.core.model.ids import GangUid, GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.object_identity import changed_keys
from extender.core.model.pod_groups import (
    CHILDREN_MAX,
    DEPTH_MAX,
    Blueprint,
    Forest,
    Group,
    PodChange,
    build_forest,
    composite_key,
    forest_with_moves,
    forest_with_updates,
    key_of_parent,
    orphans_below,
    same_position,
)
from extender.core.model.pods import HostPort, Pod, PodDisruptionBudget, PodEnd


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the pods assigned to one node use, including terminating pods (K72)."""

    requests: dict[str, int] = {}
    host_ports: tuple[HostPort, ...] = ()  # one entry per pod and port, so that each can be removed
    claims: tuple[str, ...] = ()  # ReadWriteOncePod claims in use


class Guard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Deletion and finalizers of one group object of our API group (B12), also of one that is not used."""

    uid: GangUid
    parent: str | None = None
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    resource_version: str = ""


_K = TypeVar("_K")


class ChangeLog(Generic[_K]):
    """The names of what changed, in order: views share one list, of which each sees the part up to its own end.

    It is no part of the value of a view: all logs are equal.
    """

    __slots__ = ("_end", "_names")

    def __init__(self) -> None:
        self._names: list[_K] = []
        self._end = 0

    def followed_by(self, *changed: _K) -> ChangeLog[_K]:
        """Return the log with further changes; a new log, if another view has continued this one, or it is long."""
        names, end = self._names, self._end
        if len(names) != end or end + len(changed) > CHANGES_KEPT:
            return ChangeLog()
        names.extend(changed)
        after: ChangeLog[_K] = ChangeLog()
        after._names, after._end = names, end + len(changed)
        return after

    def since(self, before: ChangeLog[_K]) -> Sequence[_K] | None:
        """Return what changed after another log, perhaps several times; None: it is not known."""
        if before._names is not self._names or before._end > self._end:
            return None
        return self._names[before._end : self._end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangeLog)

    __hash__ = None  # type: ignore[assignment]


GROUPS_AT_ONCE = 200  # added or removed groups whose trees are built in one slice: about 5 ms
CHANGES_AT_ONCE = 2_000  # changed groups that are looked at in one slice
CHANGES_KEPT = 50_000  # then a new log begins, and all objects are compared once
NOTHING = Usage()
NO_PODS: Final[Map[PodUid, Pod]] = Map()
_kind = operator.attrgetter("kind")
_T = TypeVar("_T")


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes, pods that have not ended, and groups."""

    nodes: Map[NodeName, Node] = Map()
    pods: Map[PodUid, Pod] = Map()
    groups: Map[GroupKey, Group] = Map()
    exclusive: Map[GroupKey, Group] = Map()  # those of the groups that have a domain alone
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
    # Forests, and what else follows a view, are made from the changes: groups, pods and nodes have no other way to change.
    group_log: ChangeLog[GroupKey] = msgspec.field(default_factory=ChangeLog)
    pod_log: ChangeLog[PodUid] = msgspec.field(default_factory=ChangeLog)
    node_log: ChangeLog[NodeName] = msgspec.field(default_factory=ChangeLog)
    guard_log: ChangeLog[GroupKey] = msgspec.field(default_factory=ChangeLog)
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
        ports = _added(ports, pod.shape.host_ports, sign)
    if pod.shape.exclusive_claims:
        claims = _added(claims, pod.shape.exclusive_claims, sign)
    return Usage(requests=requests, host_ports=ports, claims=claims)


def _added(have: tuple[_T, ...], change: tuple[_T, ...], sign: int) -> tuple[_T, ...]:
    if sign > 0:
        return have + change
    left = list(have)
    for item in change:
        left.remove(item)
    return tuple(left)


def _set(values: Map[_K, _T], key: _K, value: _T | None) -> Map[_K, _T]:
    """Set or, with None, remove a value."""
    return values.delete(key) if value is None else values.set(key, value)


def with_node(view: ClusterView, node: Node) -> ClusterView:
    """Add or replace a node."""
    return with_nodes(view, (node,))


def with_nodes(view: ClusterView, nodes: Iterable[Node]) -> ClusterView:
    """Add or replace nodes."""
    last = {node.name: node for node in nodes}
    changed = {name: node for name, node in last.items() if view.nodes.get(name) != node}
    return _with_nodes(view, view.nodes.update(changed), *changed) if changed else view


def without_node(view: ClusterView, name: NodeName) -> ClusterView:
    """Remove a node; pods on it stay until they are removed."""
    return _with_nodes(view, view.nodes.delete(name), name) if name in view.nodes else view


def _with_nodes(view: ClusterView, nodes: Map[NodeName, Node], *changed: NodeName) -> ClusterView:
    return msgspec.structs.replace(
        view,
        nodes=nodes,
        node_log=view.node_log.followed_by(*changed),
        generation=view.generation + len(changed),
        revision=view.revision + len(changed),
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
    group, exclusive = groups.get(key), view.exclusive
    if group is not None and group.constraints.exclusive is not None:
        exclusive = exclusive.set(key, group)
    elif key in exclusive:
        exclusive = exclusive.delete(key)
    return msgspec.structs.replace(
        view,
        groups=groups,
        exclusive=exclusive,
        group_log=view.group_log.followed_by(key),
        revision=view.revision + 1,
    )


def _with_value(
    view: ClusterView, field: str, key: object, value: object, **changes: object
) -> ClusterView:
    """Return the view with a value, or with None without it, in a map that nothing else follows from."""
    values: Map[object, object] = getattr(view, field)
    if values.get(key) == value:
        return view
    changes = {"revision": view.revision + 1, **changes, field: _set(values, key, value)}
    return msgspec.structs.replace(view, **changes)


def with_guard(view: ClusterView, key: GroupKey, guard: Guard | None) -> ClusterView:
    """Set or, with None, remove the guard of one of our group objects."""
    if view.guards.get(key) == guard:
        return view
    return _with_value(view, "guards", key, guard, guard_log=view.guard_log.followed_by(key))


def with_blueprints(
    view: ClusterView, workload: tuple[str, str], templates: tuple[Blueprint, ...] | None
) -> ClusterView:
    """Set or, with None, remove the templates of a Workload."""
    return _with_value(view, "blueprints", workload, templates)


def with_pdb(view: ClusterView, budget: PodDisruptionBudget) -> ClusterView:
    """Add or replace a PodDisruptionBudget."""
    return _with_value(view, "budgets", (budget.namespace, budget.name), budget)


def without_pdb(view: ClusterView, namespace: str, name: str) -> ClusterView:
    """Remove a PodDisruptionBudget."""
    return _with_value(view, "budgets", (namespace, name), None)


def with_pod(view: ClusterView, pod: Pod) -> ClusterView:
    """Add or replace a pod that has not ended."""
    before = view.pods.get(pod.uid)
    return view if before == pod else _with_changed_pod(view, pod.uid, before, pod)


def with_new_pods(view: ClusterView, pods: Iterable[Pod]) -> ClusterView:
    """Add pods that a view does not have; the same as `with_pod` for each of them, in less time."""
    added = {pod.uid: pod for pod in pods}
    if not added:
        return view
    by_leaf: defaultdict[GroupKey, dict[PodUid, Pod]] = defaultdict(dict)
    by_node: defaultdict[NodeName, dict[PodUid, Pod]] = defaultdict(dict)
    usage: dict[NodeName, Usage] = {}
    for uid, pod in added.items():
        if pod.group is not None:
            by_leaf[pod.group][uid] = pod
        if (node := pod.node) is not None:
            by_node[node][uid] = pod
            before = usage[node] if node in usage else view.usage.get(node, NOTHING)
            usage[node] = _take(before, pod, +1)
    changes: dict[str, object] = {
        name: getattr(view, name).update(pods_of)
        for name, belongs in _INDEXES.items()
        if (pods_of := {uid: pod for uid, pod in added.items() if belongs(pod)})
    }
    return msgspec.structs.replace(
        view,
        pods=view.pods.update(added),
        pod_log=view.pod_log.followed_by(*added),
        members=_filed_together(view.members, by_leaf),
        on_node=_filed_together(view.on_node, by_node),
        usage=view.usage.update(usage) if usage else view.usage,
        revision=view.revision + len(added),
        **changes,
    )


def _filed_together(
    files: Map[_K, Map[PodUid, Pod]], added: Mapping[_K, Mapping[PodUid, Pod]]
) -> Map[_K, Map[PodUid, Pod]]:
    filed = {key: files.get(key, NO_PODS).update(pods) for key, pods in added.items()}
    return files.update(filed) if filed else files


def without_pod(view: ClusterView, uid: PodUid) -> ClusterView:
    """Remove a pod that was deleted or has ended."""
    before = view.pods.get(uid)
    return view if before is None else _with_changed_pod(view, uid, before, None)


def without_pods(view: ClusterView, uids: Iterable[PodUid]) -> ClusterView:
    """Return the cluster without some pods."""
    for uid in uids:
        view = without_pod(view, uid)
    return view


def _with_changed_pod(
    view: ClusterView, uid: PodUid, before: Pod | None, pod: Pod | None
) -> ClusterView:
    """Return the view with a pod in place of what it had; None: it had, or has, none."""
    changes: dict[str, object] = {
        "pods": view.pods.delete(uid) if pod is None else view.pods.set(uid, pod),
        "pod_log": view.pod_log.followed_by(uid),
        "revision": view.revision + 1,
    }
    left = before.group if before is not None else None
    leaf = pod.group if pod is not None else None
    if left is not None or leaf is not None:
        changes["members"] = _filed(view.members, uid, left, leaf, pod)
    freed = before.node if before is not None else None
    node = pod.node if pod is not None else None
    if freed is not None or node is not None:
        on_node = changes["on_node"] = _filed(view.on_node, uid, freed, node, pod)
        changes["usage"] = _used(view.usage, before, pod, on_node)
    for name, belongs in _INDEXES.items():
        was = before is not None and belongs(before)
        if pod is not None and belongs(pod):
            changes[name] = getattr(view, name).set(uid, pod)
        elif was:
            changes[name] = getattr(view, name).delete(uid)
    return msgspec.structs.replace(view, **changes)


def _filed(
    files: Map[_K, Map[PodUid, Pod]],
    uid: PodUid,
    before: _K | None,
    now: _K | None,
    pod: Pod | None,
) -> Map[_K, Map[PodUid, Pod]]:
    """Return pods by a key, such as their node, after one of them has changed; None: it had, or has, no such key."""
    if before is not None and before != now:
        others = files[before].delete(uid)
        files = files.set(before, others) if others else files.delete(before)
    if now is not None and pod is not None:
        files = files.set(now, files.get(now, NO_PODS).set(uid, pod))
    return files


def _used(
    usage: Map[NodeName, Usage],
    before: Pod | None,
    pod: Pod | None,
    on_node: Map[NodeName, Map[PodUid, Pod]],
) -> Map[NodeName, Usage]:
    """Return the usage of the nodes after a pod has changed; `on_node` is as it is then."""
    if before is not None and before.node is not None:
        if pod is not None and pod.node == before.node and pod.shape == before.shape:
            return usage
        if before.node in on_node:
            usage = usage.set(before.node, _take(usage[before.node], before, -1))
        else:
            usage = usage.delete(before.node)
    if pod is not None and pod.node is not None:
        usage = usage.set(pod.node, _take(usage.get(pod.node, NOTHING), pod, +1))
    return usage


def _is_nominated(pod: Pod) -> bool:
    return pod.node is None and pod.nominated is not None


def _is_pinned(pod: Pod) -> bool:
    """Return whether an unassigned pod can be scheduled to one node only, as the pods of a DaemonSet."""
    return (
        pod.pinned is not None
        and pod.node is None
        and pod.nominated is None
        and pod.group is None
        and not (pod.gates or pod.deleting)
    )


def _keeps_off(pod: Pod) -> bool:
    return bool(pod.shape.rules) and pod.shape.has_anti_affinity


# Fields of a view with a part of the pods by UID, and which pods belong there
_INDEXES: Final = {"keeping_off": _keeps_off, "nominated": _is_nominated, "pinned": _is_pinned}


def with_end(view: ClusterView, uid: PodUid, end: PodEnd | None) -> ClusterView:
    """Set or, with None, remove the record how a pod ended.

    The revision does not change: the removal of the pod changes it, and removing the record affects no decision.
    """
    return _with_value(view, "ends", uid, end, revision=view.revision)


def groups_above(view: ClusterView, leaf: GroupKey | None) -> list[Group]:
    """Return a leaf and the existing groups above it, at most as many as a tree has levels (B7)."""
    path: list[Group] = []
    key = leaf
    while key is not None and len(path) < DEPTH_MAX:
        group = view.groups.get(key)
        if group is None or group in path:
            break
        path.append(group)
        key = key_of_parent(group)
    return path


def eviction_priority(pod: Pod, above: Sequence[Group]) -> int:
    """Return the priority by which a pod is a victim: of its groups, which is one in a valid tree; its own outside of them.

    Source:
        E-3.
    """
    return max((group.priority for group in above), default=pod.priority)


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
        stayed, moved = _group_changes(before, view, changed_groups(before, view))
    trees, pods_of = forest.trees, functools.partial(_pods_of, view)
    if moved:
        forest = forest_with_moves(
            forest, view.groups, moved, pods_of, max_children=view.max_children
        )
    pods: dict[GroupKey, list[PodChange]] = {}
    if before.members is not view.members:
        pods = pods_by_leaf(before, view)
        if forest.trees is not trees:  # a tree that was built again has the pods of now
            pods = {
                leaf: changes
                for leaf, changes in pods.items()
                if (root := forest.root_of.get(leaf)) and forest.trees[root] is trees.get(root)
            }
    members = {leaf: view.members.get(leaf, NO_PODS).values() for leaf in pods}
    updated = forest_with_updates(
        forest, view.groups, stayed, members, pods=pods, max_children=view.max_children
    )
    return updated or forest_of(view)


def pods_by_leaf(before: ClusterView, view: ClusterView) -> dict[GroupKey, list[PodChange]]:
    """Return by leaf the pods that differ between two views; of a pod that changed its leaf, one half in each."""
    by_leaf: dict[GroupKey, list[PodChange]] = {}
    for uid in changed_pods(before, view):
        old, new = before.pods.get(uid), view.pods.get(uid)
        if old is new:
            continue
        left = old.group if old is not None else None
        leaf = new.group if new is not None else None
        if left is not None and left != leaf:
            by_leaf.setdefault(left, []).append((old, None))
        if leaf is not None:
            by_leaf.setdefault(leaf, []).append((old if left == leaf else None, new))
    return by_leaf


def forest_steps(
    before: ClusterView, forest: Forest, view: ClusterView
) -> Iterator[tuple[ClusterView, Forest]]:
    """Yield views on the way from one to another, and their forests, where the places of many groups changed.

    Returns:
        Each view has the pods of `before` and up to GROUPS_AT_ONCE more of the changes of groups. Nothing where
        that is all; `forest_after` of the last one makes the rest. Groups that hang below a parent that comes
        or goes are taken out first and come again after it, so that they do not change their place all at once.
    """
    if before.groups is view.groups:
        return
    stayed, moved = yield from _group_changes_in_slices(before, forest, view)
    hanging = orphans_below(forest, moved)
    if len(moved | hanging) <= GROUPS_AT_ONCE:
        return
    yield before, forest
    pods_of = functools.partial(_pods_of, before)

    def step(part: Sequence[GroupKey], now: Map[GroupKey, Group]) -> None:
        nonlocal before, forest
        groups = before.groups.mutate()
        for key in part:
            group = now.get(key)
            if group is not None:
                groups[key] = group
            elif key in groups:
                del groups[key]
        # `before` keeps its own log of changes: only what changed since then may differ in the next forest
        before = msgspec.structs.replace(before, groups=groups.finish())
        forest = forest_with_moves(
            forest, before.groups, part, pods_of, max_children=view.max_children
        )

    removed = {key for key in moved if key not in view.groups}
    out = removed | hanging if len(hanging) > GROUPS_AT_ONCE else removed
    come = (moved | out) - removed
    for part in _parts(sorted(out, key=_kind, reverse=True)):
        step(part, Map())
        yield before, forest
    # in the order in which they are stored: a child beyond the allowed number then changes no tree
    by_name = sorted(come, key=operator.attrgetter("name"))
    yield before, forest
    by_age = [view.groups[key] for key in by_name]
    by_age.sort(key=operator.attrgetter("created_us"))
    yield before, forest
    # parents first: groups that wait for a parent join their tree all at once when it comes
    order = _parents_first([group.key for group in by_age], view.groups)
    while part := list(itertools.islice(order, GROUPS_AT_ONCE)):
        step(part, view.groups)
        yield before, forest
    if not stayed:
        yield msgspec.structs.replace(before, groups=view.groups, group_log=view.group_log), forest


def _parents_first(
    keys: Collection[GroupKey], groups: Mapping[GroupKey, Group]
) -> Iterator[GroupKey]:
    """Yield keys in an order in which a group comes after its parent: almost always in long chains, never in all of a cycle."""
    left = set(keys)
    for key in keys:
        path: list[GroupKey] = []
        current: GroupKey | None = key
        while current in left and len(path) < GROUPS_AT_ONCE:
            left.remove(current)
            path.append(current)
            parent = groups[current].parent
            current = None if parent is None else composite_key(current.namespace, parent)
        yield from reversed(path)


def _parts(keys: Sequence[GroupKey]) -> Sequence[Sequence[GroupKey]]:
    return [keys[start : start + GROUPS_AT_ONCE] for start in range(0, len(keys), GROUPS_AT_ONCE)]


def _group_changes_in_slices(
    before: ClusterView, forest: Forest, view: ClusterView
) -> Generator[tuple[ClusterView, Forest], None, tuple[bool, set[GroupKey]]]:
    """Return whether groups changed in place, and the keys of those that moved; yield what there is between the slices."""
    stayed, moved = False, set[GroupKey]()
    changed = tuple(changed_groups(before, view))
    if len(changed) > GROUPS_AT_ONCE:
        yield before, forest
    for start in range(0, len(changed), CHANGES_AT_ONCE):
        in_place, elsewhere = _group_changes(before, view, changed[start : start + CHANGES_AT_ONCE])
        stayed, moved = stayed or bool(in_place), moved | elsewhere
        if len(changed) > GROUPS_AT_ONCE:
            yield before, forest
    return stayed, moved


def _group_changes(
    before: ClusterView, view: ClusterView, changed: Iterable[GroupKey]
) -> tuple[list[Group], set[GroupKey]]:
    """Return the groups that changed in place, and the keys of those that were added, removed, or moved."""
    stayed: list[Group] = []
    moved: set[GroupKey] = set()
    for key in changed:
        old, group = before.groups.get(key), view.groups.get(key)
        if old is group:
            continue
        if old is not None and group is not None and same_position(old, group):
            stayed.append(group)
        else:
            moved.add(key)
    return stayed, moved


def changed_groups(before: ClusterView, view: ClusterView) -> set[GroupKey]:
    """Return the keys of all groups that may differ between two views."""
    return _changed(view.group_log.since(before.group_log), before.groups, view.groups)


def changed_pods(before: ClusterView, view: ClusterView) -> set[PodUid]:
    """Return the UIDs of all pods that may differ between two views."""
    return _changed(view.pod_log.since(before.pod_log), before.pods, view.pods)


def changed_nodes(before: ClusterView, view: ClusterView) -> set[NodeName]:
    """Return the names of all nodes that may differ between two views, apart from their pods."""
    return _changed(view.node_log.since(before.node_log), before.nodes, view.nodes)


def changed_guards(before: ClusterView, view: ClusterView) -> set[GroupKey]:
    """Return the keys of all guards that may differ between two views."""
    return _changed(view.guard_log.since(before.guard_log), before.guards, view.guards)


def _changed(logged: Sequence[_K] | None, olds: Map[_K, _T], news: Map[_K, _T]) -> set[_K]:
    """Return the keys of the known changes of a map, else of all values that are not the same object."""
    if olds is news:
        return set()
    if logged:
        return set(logged)
    return changed_keys(olds, news)


def _pods_of(view: ClusterView, leaf: GroupKey) -> tuple[Pod, ...]:
    return tuple(view.members.get(leaf, NO_PODS).values())
