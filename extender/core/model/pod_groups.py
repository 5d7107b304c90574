"""Groups of pods, the trees they form, and the rules a tree must keep (docs/reference/groups.md).

Groups may be created in any order. A tree with a missing part is *incomplete* and waits (B3 and B4);
a tree that breaks a rule is *invalid* as a whole (B6 to B10). Only a complete and valid tree is given
to the planner. Groups are never changed here; a `Forest` is computed from them.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, cast, get_args

import msgspec
from immutables import Map

from extender.core.model.dropped_fields import dropped_field_text
from extender.core.model.ids import GangUid, GroupKey, GroupKind, PodUid
from extender.core.model.message_formatting import counted
from extender.core.model.nodes import NearGroup, SchedulingConstraints
from extender.core.model.pods import GATE, Pod

DEPTH_MAX = 4  # levels counting the leaf (B7)
# groups under one parent (B16), by default; always of trees that are made from workloads
CHILDREN_MAX = 512
PROBLEMS_NAMED_MAX = 5  # texts per rule and tree; any number of groups may break the rule

# Rules whose breach is that of a chain of parents, which belongs to no tree.
INVALID_CHAINS = frozenset({"B6", "B7", "B16", "E15"})
# the groups are valid, but their pods differ in a field that they must share
PODS_DIFFER = "B9 pods"

Source = Literal["builtin", "crd", "pod"]  # where a group is stored; "pod": a lone pod of `plan`
Mode = Literal["single", "all"]


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodGroup or CompositePodGroup as its API server stores it."""

    key: GroupKey
    uid: GangUid
    parent: str | None = None  # name of a CompositePodGroup in the same namespace
    workload: str | None = None  # name of the Workload it was made from
    template: str | None = None
    basic: bool = False
    minimum: int = 1  # minCount or minGroupCount; 1 when basic
    required: tuple[str, ...] = ()  # of a composite: names of children that always count
    constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: Mode = "single"
    priority: int = 0
    priority_class: str = ""
    preemption_policy: str = "PreemptLowerPriority"
    created_us: int = 0
    deleting: bool = False
    deleted_us: int = 0  # its deletionTimestamp; whole seconds
    source: Source = "crd"
    lost: tuple[str, ...] = ()  # fields of its spec that the API server dropped
    resource_version: str = ""
    generation: int = 0  # metadata.generation
    api_version: str = ""  # to which a status is written
    owner_uid: str = ""  # of its controlling owner
    managed_by: str = ""  # label app.kubernetes.io/managed-by
    labels: Mapping[str, str] = {}
    # (type, status, reason, message) as stored
    conditions: tuple[tuple[str, str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()  # unusual settings of the object, which are accepted


class Blueprint(msgspec.Struct, frozen=True, gc=False):
    """One template of a Workload, with the name of the template above it (empty at the top)."""

    name: str
    kind: GroupKind
    parent: str = ""


class TreeProblem(msgspec.Struct, frozen=True, order=True, gc=False):
    """A broken rule; `text` changes only when the groups or pods change."""

    rule: str  # B6, B7, ...
    message: str


class Tree(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A root with all its descendants and members.

    `problems` non-empty: invalid, not scheduled.
    """

    root: Group
    groups: tuple[Group, ...]  # root first, then depth first in stored order
    children: Mapping[GroupKey, tuple[Group, ...]]
    members: Mapping[GroupKey, tuple[Pod, ...]]  # leaf -> pods that name it, by priority then age
    problems: tuple[TreeProblem, ...] = ()

    def partner(self, group: Group, near: NearGroup) -> Group | None:
        """Return the group that another one shall be near to; None: the tree has none of the name outside of its line of parents."""
        groups = [each for each in self.groups if each.key.name == near.group]
        line = {*self._line(group)}
        return next(
            (g for g in groups if g.key not in line and group.key not in self._line(g)), None
        )

    def partner_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the groups that another one can be near to."""
        line = {*self._line(group), *(below.key for below in self.below(group.key))}
        return tuple(each.key.name for each in self.groups if each.key not in line)

    def _line(self, group: Group) -> Iterator[GroupKey]:
        """Yield a group and those above it."""
        parents = {child.key: parent for parent, some in self.children.items() for child in some}
        key: GroupKey | None = group.key
        while key is not None:
            yield key
            key = parents.get(key)

    def below(self, key: GroupKey) -> Iterator[Group]:
        """Yield the groups below one of the tree, without it."""
        for child in self.children.get(key, ()):
            yield child
            yield from self.below(child.key)

    @property
    def has_members(self) -> bool:
        """Return whether any pod names one of the leaves."""
        return any(self.members.values())

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Return all pods of the tree, leaf by leaf."""
        return tuple(pod for group in self.groups for pod in self.members.get(group.key, ()))


class Orphan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group without a valid chain of parents to a root, and what is wrong with the chain (B3, B6)."""

    group: Group
    problem: TreeProblem


PodChange = tuple[Pod | None, Pod | None]  # a pod before and after a change
_Order = tuple[int, str, GroupKind]  # the order of the children of one parent


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """All trees of a cluster, and the groups that belong to no tree."""

    trees: Mapping[GroupKey, Tree]  # root key -> tree
    root_of: Mapping[GroupKey, GroupKey]  # any group of a tree -> its root
    orphans: Mapping[GroupKey, Orphan]
    populated: Mapping[GroupKey, Tree]  # those of the trees that have members
    # parent in a tree -> its children beyond the number that is allowed (B16); they are orphans
    surplus: Mapping[GroupKey, Sequence[_Order]] = {}
    # name of a parent -> the orphans that name it; it may exist or not
    waiting: Map[GroupKey, frozenset[GroupKey]] = Map()

    def tree_of(self, group: GroupKey | None) -> Tree | None:
        """Return the tree that a group belongs to; None: it belongs to none."""
        root = self.root_of.get(group) if group is not None else None
        return self.trees.get(root) if root is not None else None


def _stored_order(group: Group) -> _Order:
    return (group.created_us, group.key.name, group.key.kind)


def _member_order(pod: Pod) -> tuple[int, int, str, PodUid]:
    return (-pod.priority, pod.created_us, pod.name, pod.uid)


def composite_key(namespace: str, name: str) -> GroupKey:
    """Return the key of a CompositePodGroup."""
    return GroupKey(namespace, name, "CompositePodGroup")


def leaf_key(namespace: str, name: str) -> GroupKey:
    """Return the key of a PodGroup."""
    return GroupKey(namespace, name, "PodGroup")


def key_of_parent(group: Group) -> GroupKey | None:
    """Return the key of the CompositePodGroup that a group names as its parent, whether it exists or not; None: it names none."""
    return None if group.parent is None else composite_key(group.key.namespace, group.parent)


def kind_of(text: str) -> GroupKind:
    """Return `text` as a group kind.

    Raises:
        ValueError: `text` is not PodGroup or CompositePodGroup.
    """
    for kind in get_args(GroupKind):
        if kind == text:
            return cast("GroupKind", kind)
    raise ValueError(f"kind {text!r} is not a pod group")


class _Chain(msgspec.Struct, frozen=True, gc=False):
    """The end of the chain of parents of a group: its root, or the problem that breaks the chain."""

    root: GroupKey | None
    problem: TreeProblem | None


def _above(group: Group, groups: Mapping[GroupKey, Group]) -> Group | _Chain:
    """Return the parent of a group, or the end of its chain where it has none."""
    parent_key = key_of_parent(group)
    if parent_key is None:
        return _Chain(group.key, None)
    parent = groups.get(parent_key)
    if parent is None:
        text = f"{group.key} waits for its parent {parent_key}, which does not exist"
        return _Chain(None, TreeProblem("B3", text))
    if parent.deleting and group.created_us > parent.deleted_us:
        text = (
            f"{group.key} was created while its parent {parent_key} was being deleted; "
            "delete it, and create it again when the parent is there again"
        )
        return _Chain(None, TreeProblem("E15", text))
    return parent


def _cycle(keys: Sequence[GroupKey]) -> _Chain:
    """Return the problem of a cycle; the text names one of its groups."""
    text = (
        f"the parents of {min(keys)} form a cycle of {len(keys)}; "
        "delete one of its groups and create it again with another parent"
    )
    return _Chain(None, TreeProblem("B6", text))


_TOO_DEEP = _Chain(
    None,
    TreeProblem(
        "B7",
        f"more than {DEPTH_MAX} groups are above it, or its parents form a cycle; "
        f"a tree has at most {DEPTH_MAX} levels",
    ),
)


def _chains(some: Iterable[Group], groups: Mapping[GroupKey, Group]) -> Mapping[GroupKey, _Chain]:
    """Return the ends of the parent chains of some groups; each parent is looked up once.

    A chain is followed for one level more than a tree may have. So a tree that is too deep has one level too many,
    what is below belongs to no tree, and a change of a group concerns only groups that are a few levels below it,
    however long chains and cycles are.

    Returns:
        The ends of the chains of `some`; groups of one chain share the same object.
    """
    above: dict[GroupKey, Group | _Chain] = {}
    cycles: dict[GroupKey, _Chain] = {}
    ends: dict[GroupKey, _Chain] = {}
    for group in some:
        path, current = [group.key], group
        while True:
            up = above.get(current.key)
            if up is None:
                up = above[current.key] = _above(current, groups)
            if isinstance(up, _Chain):
                chain = up
            elif up.key in path:
                keys = path[path.index(up.key) :]
                chain = cycles.get(min(keys)) or cycles.setdefault(min(keys), _cycle(keys))
            elif len(path) > DEPTH_MAX:
                chain = _TOO_DEEP
            else:
                path.append(up.key)
                current = up
                continue
            break
        ends[group.key] = chain
    return ends


def build_forest(
    groups: Mapping[GroupKey, Group],
    members: Mapping[GroupKey, Iterable[Pod]],
    *,
    max_children: int = CHILDREN_MAX,
) -> Forest:
    """Return the forest of groups and pods, with the rules checked for each tree.

    Args:
        groups: All groups of the cluster. A group with a deletionTimestamp still belongs to its tree.
        members: Pods by the leaf they name, including leaves that do not exist.

    Returns:
        Trees by root, the root of every group, and groups without a valid chain to a root.

    Source:
        B1, B3, B6 to B10 (KEP-6012, KEP-4671, KEP-5710).
    """
    chains = _chains(groups.values(), groups)
    forest = _joined(groups, chains, lambda leaf: members.get(leaf, ()), max_children)
    waiting = _waiting_after(Map(), (), forest.orphans.values())
    return msgspec.structs.replace(forest, waiting=waiting)


def _joined(
    some: Mapping[GroupKey, Group],
    chains: Mapping[GroupKey, _Chain],
    pods_of: Callable[[GroupKey], Iterable[Pod]],
    max_children: int,
    outside: Mapping[GroupKey, Orphan] | None = None,
    rest: Mapping[GroupKey, Sequence[_Order]] | None = None,
) -> Forest:
    """Return the forest of some groups: whole trees, and orphans; its `waiting` is empty.

    Args:
        outside: The orphans that are not in `some`.
        rest: By parent, surplus children outside of `some`, which come after those in `some`.
    """
    by_gang: dict[GroupKey, list[Group]] = {}
    orphans: dict[GroupKey, Orphan] = {}
    children: dict[GroupKey, list[Group]] = {}
    rooted: list[Group] = []
    for key, group in some.items():
        chain = chains[key]
        if chain.root is None:
            assert chain.problem is not None
            orphans[key] = Orphan(group=group, problem=chain.problem)
            continue
        rooted.append(group)
        if (parent := key_of_parent(group)) is not None:
            children.setdefault(parent, []).append(group)
    surplus, dropped = _without_surplus(rooted, children, max_children, outside or {}, rest or {})
    orphans |= dropped
    root_of: dict[GroupKey, GroupKey] = {}
    for group in rooted:
        root_key = chains[group.key].root
        if root_key is not None and group.key not in dropped:
            root_of[group.key] = root_key
            by_gang.setdefault(root_key, []).append(group)
    trees = {}
    for root_key, groups in by_gang.items():
        kids = {
            group.key: tuple(sorted(children.get(group.key, ()), key=_stored_order))
            for group in groups
            if group.key.kind == "CompositePodGroup"
        }
        pods = {
            group.key: tuple(sorted(pods_of(group.key), key=_member_order))
            for group in groups
            if group.key.kind == "PodGroup"
        }
        trees[root_key] = _judged(some[root_key], kids, pods, surplus, max_children)
    populated = {key: tree for key, tree in trees.items() if tree.has_members}
    return Forest(
        trees=trees, root_of=root_of, orphans=orphans, populated=populated, surplus=surplus
    )


def _waiting_after(
    waiting: Map[GroupKey, frozenset[GroupKey]], removed: Iterable[Orphan], come: Iterable[Orphan]
) -> Map[GroupKey, frozenset[GroupKey]]:
    """Return the orphans by parent after some went and others came."""
    removed_by, come_by = _by_parent(removed), _by_parent(come)
    changed = waiting.mutate()
    for parent in removed_by.keys() | come_by.keys():
        keys = waiting.get(parent, frozenset()).difference(removed_by.get(parent, ()))
        keys = keys.union(come_by.get(parent, ()))
        if keys:
            changed[parent] = keys
        elif parent in waiting:
            del changed[parent]
    return changed.finish()


def _by_parent(orphans: Iterable[Orphan]) -> dict[GroupKey, list[GroupKey]]:
    by_parent: dict[GroupKey, list[GroupKey]] = {}
    for orphan in orphans:
        if (parent := key_of_parent(orphan.group)) is not None:
            by_parent.setdefault(parent, []).append(orphan.group.key)
    return by_parent


def _without_surplus(
    rooted: Iterable[Group],
    children: dict[GroupKey, list[Group]],
    max_children: int,
    outside: Mapping[GroupKey, Orphan],
    rest: Mapping[GroupKey, Sequence[_Order]],
) -> tuple[dict[GroupKey, Sequence[_Order]], dict[GroupKey, Orphan]]:
    """Remove from `children` those beyond the allowed number, and what is below them.

    A tree is invalid then (B16), but not larger than permitted: it is judged at each change of one of its groups.

    Returns:
        The surplus by parent, in stored order, of parents that stay; and the removed groups with their problem.
    """
    removed: dict[GroupKey, Orphan] = {}
    surplus: dict[GroupKey, Sequence[_Order]] = {}
    below: list[tuple[Group, TreeProblem]] = []
    if outside:
        for parent in [key for key in children if key in outside]:
            problem = outside[parent].problem
            below += [(kid, problem) for kid in children.pop(parent)]
    if rest or any(len(kids) > max_children for kids in children.values()):
        level = [group.key for group in rooted if group.parent is None]
        while level:
            parent = level.pop()
            kids = sorted(children.get(parent, ()), key=_stored_order)
            if len(kids) > max_children or parent in rest:
                kids, beyond = kids[:max_children], kids[max_children:]
                children[parent] = kids
                orders = [*map(_stored_order, beyond), *rest.get(parent, ())]
                surplus[parent] = tuple(sorted(orders))
                problem = surplus_problem(parent, max_children)
                below += [(kid, problem) for kid in beyond]
            level += [kid.key for kid in kids if kid.key.kind == "CompositePodGroup"]
    while below:
        group, problem = below.pop()
        removed[group.key] = Orphan(group=group, problem=problem)
        below += [(kid, problem) for kid in children.pop(group.key, ())]
    return surplus, removed


def surplus_problem(parent: GroupKey, max_children: int) -> TreeProblem:
    """Return the problem of a parent with too many children, which the children beyond the number share (B16)."""
    text = (
        f"{parent} has more than {counted(max_children, 'child group')}: raise --max-children of serve "
        "(GANG_EXTENDER_MAX_CHILDREN), or make several trees of it"
    )
    return TreeProblem("B16", text)


def same_position(before: Group, group: Group) -> bool:
    """Return whether a group has the same parent as before, and the same times of creation and deletion (E15)."""
    place = (before.parent, before.created_us, before.deleting, before.deleted_us)
    return place == (group.parent, group.created_us, group.deleting, group.deleted_us)


# The fields of a group that the rules of a tree read
_FIELDS_OF_RULES = operator.attrgetter(
    "workload", "priority", "priority_class", "preemption_policy", "disruption_mode", "basic", "lost"
)  # fmt: skip


def forest_with_updates(
    forest: Forest,
    groups: Mapping[GroupKey, Group],
    changed: Iterable[Group],
    members: Mapping[GroupKey, Iterable[Pod]],
    *,
    pods: Mapping[GroupKey, Sequence[PodChange]] | None = None,
    max_children: int = CHILDREN_MAX,
) -> Forest | None:
    """Return the forest after changes of a few groups; trees without a change stay the same objects.

    Args:
        forest: Made of the groups as they were before.
        groups: All groups as they are now; the same names as before.
        changed: Those of them that changed.
        members: By leaf, the pods of the leaves whose pods changed.
        pods: By leaf, those of the pods that changed; a tree that keeps the rules is then not judged as a whole.

    Returns:
        What `build_forest` returns, or None where a group was added, removed, or moved: use `forest_with_moves` then.
    """
    if len(groups) != len(forest.root_of) + len(forest.orphans):
        return None
    touched: dict[GroupKey, list[Group]] = {}
    waiting: dict[GroupKey, Orphan] = {}
    for group in changed:
        root_key = forest.root_of.get(group.key)
        if root_key is not None:
            touched.setdefault(root_key, []).append(group)
            continue
        orphan = forest.orphans.get(group.key)
        if orphan is None or not same_position(orphan.group, group):
            return None
        waiting[group.key] = Orphan(group=group, problem=orphan.problem)
    fresh: dict[GroupKey, set[GroupKey]] = {}
    for leaf in members:
        root_key = forest.root_of.get(leaf)
        if root_key is not None:  # else its group is missing or an orphan
            fresh.setdefault(root_key, set()).add(leaf)
    trees, populated = dict(forest.trees), dict(forest.populated)
    for root_key in touched.keys() | fresh.keys():
        tree = None
        if pods is not None and root_key not in touched:
            tree = _with_pods(trees[root_key], {leaf: pods[leaf] for leaf in fresh[root_key]})
        if tree is None:
            leaves = {leaf: members[leaf] for leaf in fresh.get(root_key, ())}
            tree = _renewed(
                trees[root_key], touched.get(root_key, ()), leaves, forest.surplus, max_children
            )
        if tree is None:
            return None
        trees[root_key] = tree
        if tree.has_members:
            populated[root_key] = tree
        else:
            populated.pop(root_key, None)
    orphans = {**forest.orphans, **waiting} if waiting else forest.orphans
    return msgspec.structs.replace(forest, trees=trees, orphans=orphans, populated=populated)


def _with_pods(tree: Tree, changes: Mapping[GroupKey, Sequence[PodChange]]) -> Tree | None:
    """Return a tree that keeps the rules after changes of pods; None where it has to be judged as a whole."""
    come = [new for pairs in changes.values() for _, new in pairs if new and not new.deleting]
    if tree.problems or any(_differs_from_root(tree.root, pod) for pod in come):
        return None
    if come:
        # all pods of the tree were alike before: one of them stands for all
        before = itertools.chain.from_iterable(tree.members.values())
        sample = next((pod for pod in before if not pod.deleting), come[0])
        if any(_differs(sample, pod) for pod in come):
            return None
    members = dict(tree.members)
    for leaf, pairs in changes.items():
        pods = list(members.get(leaf, ()))
        for old, new in pairs:
            if old is not None:
                place = bisect.bisect_left(pods, _member_order(old), key=_member_order)
                if place >= len(pods) or pods[place] is not old:
                    return None
                if new is not None and _member_order(new) == _member_order(old):
                    pods[place] = new
                    continue
                del pods[place]
            if new is not None:
                bisect.insort(pods, new, key=_member_order)
        members[leaf] = tuple(pods)
    return msgspec.structs.replace(tree, members=members)


def _differs_from_root(root: Group, pod: Pod) -> bool:
    """Return whether a pod has another priority than its tree, or another preemption policy than built-in groups."""
    if root.source == "builtin" and pod.preemption_policy != root.preemption_policy:
        return True
    return pod.priority != root.priority


def _differs(pod: Pod, other: Pod) -> bool:
    """Return whether two pods of a tree differ in a field that they must share, besides the priority."""
    mine = (pod.scheduler_name, pod.preemption_policy)
    return mine != (other.scheduler_name, other.preemption_policy)


def _renewed(
    tree: Tree,
    changed: Iterable[Group],
    members: Mapping[GroupKey, Iterable[Pod]],
    surplus: Collection[GroupKey],
    max_children: int,
) -> Tree | None:
    """Return a tree with some groups and members as they are now; None where a group moved."""
    now = {group.key: group for group in changed}
    olds = [group for group in tree.groups if group.key in now] if now else []
    if not all(same_position(old, now[old.key]) for old in olds):
        return None
    children = tree.children
    if now:
        children = dict(tree.children)
        for parent in children.keys() & {key_of_parent(old) for old in olds}:
            children[parent] = tuple(now.get(child.key, child) for child in children[parent])
    pods = dict(tree.members)
    for leaf, leaf_pods in members.items():
        pods[leaf] = tuple(sorted(leaf_pods, key=_member_order))
    root = now.get(tree.root.key, tree.root)
    if members or any(_FIELDS_OF_RULES(old) != _FIELDS_OF_RULES(now[old.key]) for old in olds):
        return _judged(root, children, pods, surplus, max_children)
    groups = tuple(now.get(group.key, group) for group in tree.groups)
    return msgspec.structs.replace(tree, root=root, groups=groups, children=children)


def forest_with_moves(
    forest: Forest,
    groups: Mapping[GroupKey, Group],
    moved: Collection[GroupKey],
    pods_of: Callable[[GroupKey], Iterable[Pod]],
    *,
    max_children: int = CHILDREN_MAX,
) -> Forest:
    """Return the forest after groups were added, removed, or moved; only the affected trees are built again.

    Args:
        forest: Made of the groups as they were before.
        groups: All groups as they are now.
        moved: The keys of groups that were added or removed, or have another parent.

    Returns:
        What `build_forest` returns, except that changes of groups outside `moved` are not applied.
    """
    if forest.surplus:
        forest, moved = _with_surplus_moves(forest, groups, moved, max_children)
    if not moved:
        return forest
    after = _with_trees_anew(forest, groups, moved, pods_of, max_children)
    if after is None:
        after = _with_trees_anew(forest, groups, moved, pods_of, max_children, whole=True)
        assert after is not None
    return after


def _with_surplus_moves(
    forest: Forest, groups: Mapping[GroupKey, Group], moved: Collection[GroupKey], max_children: int
) -> tuple[Forest, Collection[GroupKey]]:
    """Add and remove groups that are only surplus children before and after, which concerns no tree.

    Returns:
        The forest with these changes, and the other moved groups.
    """

    def is_last(parent: GroupKey, group: Group) -> bool:
        """Return whether a group comes after all children of a parent that are in its tree."""
        last = forest.trees[forest.root_of[parent]].children[parent][-1]
        return _stored_order(group) > _stored_order(last)

    hanging = bool(_hanging(forest.waiting, moved))
    removed: dict[GroupKey, set[_Order]] = {}
    come: dict[GroupKey, list[Group]] = {}
    others: list[GroupKey] = []
    for key in moved:
        group, orphan = groups.get(key), forest.orphans.get(key)
        place = _surplus_parent(forest, orphan.group) if orphan is not None else None
        is_surplus = place is not None and orphan is not None and orphan.problem.rule == "B16"
        parent = _surplus_parent(forest, group) if group is not None else None
        if (
            key in forest.root_of
            or (hanging and key.kind == "CompositePodGroup")
            or (orphan is not None and not is_surplus)
            or (group is not None and (parent is None or not is_last(parent, group)))
            or (group is not None and isinstance(_above(group, groups), _Chain))
        ):
            others.append(key)
            continue
        if orphan is not None and place is not None:
            removed.setdefault(place, set()).add(_stored_order(orphan.group))
        if group is not None and parent is not None:
            come.setdefault(parent, []).append(group)
    surplus, orphans = dict(forest.surplus), dict(forest.orphans)
    old: list[Orphan] = []
    new: list[Orphan] = []
    for parent in removed.keys() | come.keys():
        left = removed.get(parent, set())
        orders = [order for order in surplus[parent] if order not in left]
        orders += map(_stored_order, come.get(parent, ()))
        if not orders:  # the parent does not have too many children any more
            return forest, moved
        problem = surplus_problem(parent, max_children)
        orders.sort()
        surplus[parent] = tuple(orders)
        old += [orphans.pop(GroupKey(parent.namespace, name, kind)) for _, name, kind in left]
        new += [Orphan(group=group, problem=problem) for group in come.get(parent, ())]
    orphans |= {orphan.group.key: orphan for orphan in new}
    waiting = _waiting_after(forest.waiting, old, new)
    changed = msgspec.structs.replace(forest, surplus=surplus, orphans=orphans, waiting=waiting)
    return changed, others


def _surplus_parent(forest: Forest, group: Group) -> GroupKey | None:
    """Return the parent of a group if it has too many children."""
    parent = key_of_parent(group)
    return parent if parent in forest.surplus else None


def _with_trees_anew(
    forest: Forest,
    groups: Mapping[GroupKey, Group],
    moved: Collection[GroupKey],
    pods_of: Callable[[GroupKey], Iterable[Pod]],
    max_children: int,
    *,
    whole: bool = False,
) -> Forest | None:
    """Return the forest with the affected trees built again; None: call it again with `whole`.

    Without `whole` only as many surplus children of a parent are examined as can come into its tree.
    """
    loose = {key for key in moved if key not in forest.root_of}
    loose |= _hanging(forest.waiting, moved)
    cut = _affected_roots(forest, groups, moved, loose)
    for tree in [forest.trees[root_key] for root_key in cut]:
        if any(problem.rule == "B7" for problem in tree.problems):  # groups below it are orphans
            loose |= _hanging(forest.waiting, [group.key for group in tree.groups])
    rest: dict[GroupKey, Sequence[_Order]] = {}
    orphaned = {key for key in loose if key in forest.orphans}
    for parent in [key for key in forest.surplus if forest.root_of[key] in cut]:
        every = whole or parent in moved
        near, far = _divided(
            forest, parent, len(forest.surplus[parent] if every else moved), orphaned
        )
        loose |= {*near, *_hanging(forest.waiting, near)}
        if far:
            rest[parent] = far
    for root_key in cut:
        loose |= {group.key for group in forest.trees[root_key].groups}
    some = {key: groups[key] for key in loose if key in groups}
    trees, root_of, orphans = dict(forest.trees), dict(forest.root_of), dict(forest.orphans)
    populated, surplus = dict(forest.populated), dict(forest.surplus)
    for parent in [key for key in surplus if root_of[key] in cut]:
        del surplus[parent]
    for root_key in cut:
        del trees[root_key]
        populated.pop(root_key, None)
    removed: list[Orphan] = []
    for key in loose:
        root_of.pop(key, None)
        orphan = orphans.pop(key, None)
        if orphan is not None:
            removed.append(orphan)
    anew = _joined(some, _chains(some.values(), groups), pods_of, max_children, orphans, rest)
    if not rest.keys() <= anew.surplus.keys():
        return None  # a parent itself has gone from its tree
    trees.update(anew.trees)
    root_of.update(anew.root_of)
    orphans.update(anew.orphans)
    populated.update(anew.populated)
    surplus.update(anew.surplus)
    return Forest(
        trees=trees,
        root_of=root_of,
        orphans=orphans,
        populated=populated,
        surplus=surplus,
        waiting=_waiting_after(forest.waiting, removed, anew.orphans.values()),
    )


def _affected_roots(
    forest: Forest,
    groups: Mapping[GroupKey, Group],
    moved: Collection[GroupKey],
    loose: Collection[GroupKey],
) -> set[GroupKey]:
    """Return the roots of the trees to which groups belonged, or belong now, as children or as surplus children."""
    cut = {forest.root_of[key] for key in moved if key in forest.root_of}
    for key in {*loose, *moved}:  # also where a group hangs now that was in another tree before
        orphan = forest.orphans.get(key)
        for group in (groups.get(key), orphan.group if orphan is not None else None):
            parent = key_of_parent(group) if group is not None else None
            if parent is not None and parent in forest.root_of:
                cut.add(forest.root_of[parent])
    return cut


def _divided(
    forest: Forest, parent: GroupKey, count: int, loose: Collection[GroupKey]
) -> tuple[list[GroupKey], Sequence[_Order]]:
    """Return the surplus of a parent in two parts: the first `count` and those that are loose, and the others."""
    orders = forest.surplus[parent]
    near, far = list(orders[:count]), orders[count:]
    if far and loose:
        named = {(key.name, key.kind) for key in loose if key.namespace == parent.namespace}
        near += [order for order in far if order[1:] in named]
        far = [order for order in far if order[1:] not in named]
    return [GroupKey(parent.namespace, name, kind) for _, name, kind in near], far


def orphans_below(forest: Forest, keys: Collection[GroupKey]) -> set[GroupKey]:
    """Return the groups without a tree that have one of some groups above them, which may exist or not."""
    return _hanging(forest.waiting, [key for key in keys if key.kind == "CompositePodGroup"])


def _hanging(
    waiting: Mapping[GroupKey, frozenset[GroupKey]], moved: Collection[GroupKey]
) -> set[GroupKey]:
    """Return the orphans below some composites, as far as chains of parents are followed."""
    hanging: set[GroupKey] = set()
    level: Collection[GroupKey] = moved
    for _ in range(DEPTH_MAX + 1):
        level = {key for parent in level for key in waiting.get(parent, ())} - hanging
        hanging |= level
        if not level:
            break
    return hanging


def _judged(
    root: Group,
    children: Mapping[GroupKey, tuple[Group, ...]],
    members: Mapping[GroupKey, tuple[Pod, ...]],
    surplus: Collection[GroupKey],
    max_children: int,
) -> Tree:
    order: list[Group] = []
    depth_of: dict[GroupKey, int] = {}
    stack = [(root, 1)]
    while stack:
        group, depth = stack.pop()
        order.append(group)
        depth_of[group.key] = depth
        stack += [(child, depth + 1) for child in reversed(children.get(group.key, ()))]
    # a tree that is too large has no other problems: finding them would cost as much as the tree is large
    over = [key for key in sorted(children) if key in surplus] if surplus else []
    problems = [*_too_deep(depth_of), *(surplus_problem(key, max_children) for key in over)]
    if not problems:
        if len(order) > 1:
            problems += _unequal_groups(order)
        if text := _unequal_pods(root, order, members):
            problems.append(TreeProblem(PODS_DIFFER, text))
        problems += _broken_disruption(order, children)
    return Tree(
        root=root,
        groups=tuple(order),
        children=children,
        members=members,
        # a dropped field may be the cause of the other problems, so they are not reported with it
        problems=_some_of(_lost_fields(order) or sorted(set(problems))),
    )


def _some_of(problems: Sequence[TreeProblem]) -> tuple[TreeProblem, ...]:
    """Return the problems with at most PROBLEMS_NAMED_MAX texts per rule; they are stored, and written to each group.

    The number of further problems is left out, so that one more problem does not change the texts.
    """
    if len(problems) <= PROBLEMS_NAMED_MAX:
        return tuple(problems)
    limited: list[TreeProblem] = []
    for rule, several in itertools.groupby(problems, key=lambda p: p.rule):
        first = list(itertools.islice(several, PROBLEMS_NAMED_MAX + 1))
        limited += first[:PROBLEMS_NAMED_MAX]
        if len(first) > PROBLEMS_NAMED_MAX:
            limited.append(TreeProblem(rule, "more groups of the tree break the same rule"))
    return tuple(limited)


def _lost_fields(order: list[Group]) -> list[TreeProblem]:
    """Return a problem for each dropped field: to ignore a constraint is worse than an error (E16, X14)."""
    return [
        TreeProblem("E16", dropped_field_text(str(group.key), field))
        for group in sorted((g for g in order if g.lost), key=lambda g: g.key)[
            : PROBLEMS_NAMED_MAX + 1
        ]
        for field in group.lost
    ]


def _too_deep(depth_of: Mapping[GroupKey, int]) -> list[TreeProblem]:
    """Return the problem of a tree that is too deep.

    `_chains` ends below the first level that is too deep, so where that has a composite there may be more of them.
    """
    deepest = min(depth_of, key=lambda key: (-depth_of[key], key))
    depth = depth_of[deepest]
    if depth <= DEPTH_MAX:
        return []
    may_go_on = any(depth_of[key] == depth and key.kind == "CompositePodGroup" for key in depth_of)
    text = too_deep_text(f"at least {depth}" if may_go_on else str(depth), deepest)
    return [TreeProblem("B7", text)]


def too_deep_text(levels: str, deepest: GroupKey) -> str:
    """Return the text about a tree with too many levels."""
    return f"the tree has {levels} levels at {deepest}, at most {DEPTH_MAX} are allowed"


def _unequal_groups(order: list[Group]) -> Iterator[TreeProblem]:
    """Yield what the groups of one tree must share and do not.

    Of priorities the numbers are compared: two classes of one value are one priority. Of preemption policies those that hold:
    of the group itself, else of its priority class. Both as kube-scheduler 1.38 has it.
    """
    root = order[0]
    first = _first([group for group in order if group.workload is not None])
    if first is not None and (
        other := _first([g for g in order if g.workload not in (None, first.workload)])
    ):
        text = (
            f"groups of one tree reference more than one Workload: "
            f'{first.key} names "{first.workload}", {other.key} names "{other.workload}"'
        )
        yield TreeProblem("B8", text)
    if other := _first([group for group in order if group.priority != root.priority]):
        text = (
            f"all groups of one tree share one priority: {root.key} has {_priority_text(root)}, "
            f"{other.key} has {_priority_text(other)}; give all the same priorityClassName"
        )
        yield TreeProblem("B9", text)
    if other := _first([g for g in order if g.preemption_policy != root.preemption_policy]):
        text = (
            f"all groups of one tree share one preemptionPolicy: "
            f'{root.key} has "{root.preemption_policy}", {other.key} has "{other.preemption_policy}"; '
            "give all the same spec.preemptionPolicy, or a priority class that has it"
        )
        yield TreeProblem("B9", text)


def _first(groups: Iterable[Group]) -> Group | None:
    return min(groups, key=lambda group: group.key, default=None)


def _priority_text(group: Group) -> str:
    named = f' (class "{group.priority_class}")' if group.priority_class else ""
    return f"{group.priority}{named}"


def _unequal_pods(
    root: Group, order: list[Group], members: Mapping[GroupKey, tuple[Pod, ...]]
) -> str:
    """Return in which field pods differ that they must share, or an empty string; a terminating pod is not compared (B9, X15)."""
    pods = [p for g in order for p in members.get(g.key, ()) if not p.deleting]
    if other := _first_pod(pod for pod in pods if pod.priority != root.priority):
        return (
            f"Pod/{other.path} has priority {other.priority}, its tree {root.key} has {root.priority}; "
            "give both the same priorityClassName"
        )
    builtin = pods if root.source == "builtin" else ()
    # kube-apiserver sets both, from their priority classes
    if other := _first_pod(p for p in builtin if p.preemption_policy != root.preemption_policy):
        return (
            f'Pod/{other.path} has preemptionPolicy "{other.preemption_policy}", its tree {root.key} has '
            f'"{root.preemption_policy}"; give both the same priorityClassName'
        )
    fields: tuple[tuple[str, Callable[[Pod], str]], ...] = (
        ("schedulerName", lambda p: p.scheduler_name),
        ("preemptionPolicy", lambda p: p.preemption_policy),
    )
    for field, value_of in fields:
        first = _first_pod(pods)
        if first and (other := _first_pod(p for p in pods if value_of(p) != value_of(first))):
            return (
                f'all pods of one tree share one {field}: Pod/{first.path} has "{value_of(first)}", '
                f'Pod/{other.path} has "{value_of(other)}"'
            )
    return ""


def _first_pod(pods: Iterable[Pod]) -> Pod | None:
    return min(pods, key=lambda pod: pod.path, default=None)


def _broken_disruption(
    order: list[Group], children: Mapping[GroupKey, tuple[Group, ...]]
) -> list[TreeProblem]:
    return [
        TreeProblem(
            "B10", f"{child.key} is single under {group.key}, which is disrupted as a whole (all)"
        )
        for group in order
        if group.disruption_mode == "all"
        for child in children.get(group.key, ())
        if child.disruption_mode != "all"
    ]


def foreign_gates(tree: Tree) -> tuple[str, ...]:
    """Return the scheduling gates of others on waiting pods of a tree, sorted."""
    return tuple(
        sorted({g for pod in tree.pods if pod.node is None for g in pod.gates if g != GATE})
    )
