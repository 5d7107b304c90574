"""Groups of pods, the trees they form, and the rules a tree must keep (SPEC A and B).

A tree is judged at runtime, in any order of creation: what is missing makes it *incomplete* (held,
B3 and B4), what breaks a rule makes the whole of it *invalid* (B6 to B10). Only a sound tree is
given to the planner. Groups are never changed here; a `Forest` is computed anew from what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from extender.core.ids import GroupKey, GroupKind, RootUid
from extender.core.losses import loss_text
from extender.core.pods import Pod

DEPTH_MAX = 4  # levels counting the leaf (KEP-6012; L22 makes it configurable)
CHILDREN_MAX = 512  # groups under one parent (B16)

PODS_DIFFER = "B9 pods"  # the groups are sound, some pod of theirs is not like the others

Source = Literal["builtin", "crd", "pod"]  # where a group is stored; "pod": a lone pod of `plan`
Mode = Literal["single", "all"]


class Group(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodGroup or CompositePodGroup as its API server stores it."""

    key: GroupKey
    uid: RootUid
    parent: str | None = None  # name of a CompositePodGroup in the same namespace
    workload: str | None = None  # name of the Workload it was made from
    template: str | None = None
    basic: bool = False
    minimum: int = 1  # minCount or minGroupCount; 1 when basic
    topology: tuple[str, ...] = ()
    mode: Mode = "single"
    priority: int = 0
    priority_class: str = ""
    preemption_policy: str = "PreemptLowerPriority"
    created_us: int = 0
    deleting: bool = False
    deleted_us: int = 0  # since when; whole seconds
    source: Source = "crd"
    lost: tuple[str, ...] = ()  # fields of its spec that it was written with and that were not kept
    resource_version: str = ""
    generation: int = 0  # of its spec
    api_version: str = ""  # where a status is written to
    conditions: tuple[
        tuple[str, str, str, str], ...
    ] = ()  # (type, status, reason, message) as stored
    warnings: tuple[str, ...] = ()  # what is odd about the object itself, accepted all the same


class Blueprint(msgspec.Struct, frozen=True, gc=False):
    """One template of a Workload, with the name of the template above it (empty at the top)."""

    name: str
    kind: GroupKind
    parent: str = ""


class Problem(msgspec.Struct, frozen=True, order=True, gc=False):
    """A broken rule, in words that change only with the facts."""

    rule: str  # B6, B7, ...
    text: str


class Tree(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A root with all its descendants and members.

    `problems` non-empty: invalid, never scheduled. `missing` non-empty: held until it is there.
    """

    root: Group
    groups: tuple[Group, ...]  # root first, then depth first in stored order
    children: Mapping[GroupKey, tuple[Group, ...]]
    members: Mapping[GroupKey, tuple[Pod, ...]]  # leaf -> pods that name it, by priority then age
    problems: tuple[Problem, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Give all pods of the tree, leaf by leaf."""
        return tuple(pod for group in self.groups for pod in self.members.get(group.key, ()))


class Orphan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group whose chain to a root is broken: held aside with what it waits for (B3, B6)."""

    group: Group
    problem: Problem


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """All trees of a cluster, and what hangs in the air."""

    trees: Mapping[GroupKey, Tree]  # root key -> tree
    root_of: Mapping[GroupKey, GroupKey]  # any group of a tree -> its root
    orphans: Mapping[GroupKey, Orphan]


def _stored_order(group: Group) -> tuple[int, str, str]:
    return (group.created_us, group.key.name, group.key.kind)


def _member_order(pod: Pod) -> tuple[int, int, str]:
    return (-pod.priority, pod.created_us, pod.name)


def composite_key(namespace: str, name: str) -> GroupKey:
    """Name a CompositePodGroup."""
    return GroupKey(namespace, name, "CompositePodGroup")


def leaf_key(namespace: str, name: str) -> GroupKey:
    """Name a PodGroup."""
    return GroupKey(namespace, name, "PodGroup")


def kind_of(text: str) -> GroupKind:
    """Read a group kind.

    Raises:
        ValueError: `text` is not PodGroup or CompositePodGroup.
    """
    if text == "PodGroup":
        return "PodGroup"
    if text == "CompositePodGroup":
        return "CompositePodGroup"
    msg = f"kind {text!r} is not a pod group"
    raise ValueError(msg)


class _Chain(msgspec.Struct, frozen=True):
    """The way from a group up: its root, or what broke on the way."""

    root: GroupKey | None
    depth: int  # levels from the group to the root, both counted
    problem: Problem | None


def _climb(group: Group, groups: Mapping[GroupKey, Group]) -> _Chain:
    """Follow parents up to the root, a missing parent, or a cycle."""
    seen: list[GroupKey] = [group.key]
    here = group
    while here.parent is not None:
        parent_key = composite_key(here.key.namespace, here.parent)
        if parent_key in seen:
            cycle = seen[seen.index(parent_key) :]
            smallest = min(cycle)
            text = (
                f"the parents of {smallest} form a cycle of {len(cycle)}; "
                "delete one of its groups and create it again with another parent"
            )
            return _Chain(None, len(seen), Problem("B6", text))
        parent = groups.get(parent_key)
        if parent is None:
            text = f"{here.key} waits for its parent {parent_key}, which does not exist"
            return _Chain(None, len(seen), Problem("B3", text))
        if parent.deleting and here.created_us > parent.deleted_us:
            text = (
                f"{here.key} was created while its parent {parent_key} was being deleted; "
                "delete it, and create it again when the parent is there again"
            )
            return _Chain(None, len(seen), Problem("E15", text))
        seen.append(parent_key)
        here = parent
    return _Chain(here.key, len(seen), None)


def build_forest(
    groups: Mapping[GroupKey, Group], members: Mapping[GroupKey, Iterable[Pod]]
) -> Forest:
    """Join groups and pods into trees and judge each tree.

    Args:
        groups: Every group there is. A group with a deletionTimestamp still belongs to its tree.
        members: Pods by the leaf they name, including leaves that do not exist.

    Returns:
        Trees by root, the root of every group, and groups without a way to a root.

    Source:
        SPEC B1, B3, B6 to B10 (KEP-6012, KEP-4671, KEP-5710).
    """
    chains = {key: _climb(group, groups) for key, group in groups.items()}
    by_root: dict[GroupKey, list[Group]] = {}
    orphans: dict[GroupKey, Orphan] = {}
    root_of: dict[GroupKey, GroupKey] = {}
    children: dict[GroupKey, list[Group]] = {}
    for key, group in groups.items():
        chain = chains[key]
        if chain.root is None:
            assert chain.problem is not None
            orphans[key] = Orphan(group=group, problem=chain.problem)
            continue
        root_of[key] = chain.root
        by_root.setdefault(chain.root, []).append(group)
        if group.parent is not None:
            parent = composite_key(key.namespace, group.parent)
            children.setdefault(parent, []).append(group)
    trees = {}
    for root_key, found in by_root.items():
        kids = {
            group.key: tuple(sorted(children.get(group.key, ()), key=_stored_order))
            for group in found
            if group.key.kind == "CompositePodGroup"
        }
        pods = {
            group.key: tuple(sorted(members.get(group.key, ()), key=_member_order))
            for group in found
            if group.key.kind == "PodGroup"
        }
        trees[root_key] = _judged(groups[root_key], kids, pods)
    return Forest(trees=trees, root_of=root_of, orphans=orphans)


def regrown(
    forest: Forest,
    groups: Mapping[GroupKey, Group],
    changed: Iterable[Group],
    members: Mapping[GroupKey, Iterable[Pod]],
) -> Forest | None:
    """Give the forest of a few changes; trees that none of them touches stay the same objects.

    Args:
        forest: Made of the groups as they were before.
        groups: Every group as it is now; the same names as before.
        changed: Those of them that are not what they were.
        members: By leaf, the pods of the leaves whose pods changed.

    Returns:
        What `build_forest` gives, or None where only that can tell: a group moved in its tree, or one
        that hangs in the air changed.
    """
    touched: dict[GroupKey, set[GroupKey]] = {}
    known: dict[GroupKey, Group] = {}
    for group in changed:
        root_key = forest.root_of.get(group.key)
        if root_key is None:
            return None
        if root_key not in touched:
            known |= {g.key: g for g in forest.trees[root_key].groups}
            touched[root_key] = set()
        before = known[group.key]
        place = (before.parent, before.created_us, before.deleted_us)  # E15 looks at the times
        if place != (group.parent, group.created_us, group.deleted_us):
            return None
    for leaf in members:
        root_key = forest.root_of.get(leaf)
        if (
            root_key is not None
        ):  # pods of a leaf that is missing or hangs in the air are in no tree
            touched.setdefault(root_key, set()).add(leaf)
    trees = dict(forest.trees)
    for root_key, leaves in touched.items():
        old = forest.trees[root_key]
        kids = {k: tuple(groups[c.key] for c in found) for k, found in old.children.items()}
        pods = {
            k: tuple(sorted(members[k], key=_member_order)) if k in leaves else found
            for k, found in old.members.items()
        }
        trees[root_key] = _judged(groups[root_key], kids, pods)
    return Forest(trees=trees, root_of=forest.root_of, orphans=forest.orphans)


def _judged(
    root: Group,
    children: Mapping[GroupKey, tuple[Group, ...]],
    members: Mapping[GroupKey, tuple[Pod, ...]],
) -> Tree:
    order: list[Group] = []
    depth_of: dict[GroupKey, int] = {root.key: 1}
    stack = [root]
    while stack:
        group = stack.pop()
        order.append(group)
        for child in reversed(children.get(group.key, ())):
            depth_of[child.key] = depth_of[group.key] + 1
            stack.append(child)
    problems: list[Problem] = []
    problems += _too_deep(depth_of)
    problems += _too_many_children(children)
    problems += _several_workloads(order)
    problems += _unequal_priorities(order)
    problems += _unequal_pods(root, order, members)
    problems += _broken_disruption(order, children)
    return Tree(
        root=root,
        groups=tuple(order),
        children=children,
        members=members,
        # what else is wrong may be wrong because of what was lost
        problems=tuple(_lost_fields(order) or sorted(set(problems))),
    )


def _lost_fields(order: list[Group]) -> list[Problem]:
    """A constraint that is lost is worse than an error (SPEC E16 and X14)."""
    return [
        Problem("E16", loss_text(str(group.key), field))
        for group in sorted(order, key=lambda g: g.key)
        for field in group.lost
    ]


def _too_deep(depth_of: Mapping[GroupKey, int]) -> list[Problem]:
    deepest = min(depth_of, key=lambda key: (-depth_of[key], key))
    if depth_of[deepest] <= DEPTH_MAX:
        return []
    text = f"the tree has {depth_of[deepest]} levels at {deepest}, at most {DEPTH_MAX} are allowed"
    return [Problem("B7", text)]


def _too_many_children(children: Mapping[GroupKey, tuple[Group, ...]]) -> list[Problem]:
    return [
        Problem("B16", f"{key} has {len(kids)} child groups, at most {CHILDREN_MAX} are allowed")
        for key, kids in sorted(children.items())
        if len(kids) > CHILDREN_MAX
    ]


def _several_workloads(order: list[Group]) -> list[Problem]:
    named = sorted((g for g in order if g.workload is not None), key=lambda g: g.key)
    for other in named[1:]:
        if other.workload != named[0].workload:
            text = (
                f"groups of one tree reference more than one Workload: "
                f'{named[0].key} names "{named[0].workload}", {other.key} names "{other.workload}"'
            )
            return [Problem("B8", text)]
    return []


def _unequal_priorities(order: list[Group]) -> list[Problem]:
    root = order[0]
    for other in sorted(order[1:], key=lambda g: g.key):
        if (other.priority, other.priority_class) != (root.priority, root.priority_class):
            text = (
                f"all groups of one tree share one priority and priority class: "
                f'{root.key} has {root.priority} ("{root.priority_class}"), '
                f'{other.key} has {other.priority} ("{other.priority_class}")'
            )
            return [Problem("B9", text)]
    return []


def _unequal_pods(
    root: Group, order: list[Group], members: Mapping[GroupKey, tuple[Pod, ...]]
) -> list[Problem]:
    """Compare what pods must share; a pod that is going counts no more (SPEC B9, X15)."""
    pods = sorted(
        (p for g in order for p in members.get(g.key, ()) if not p.deleting), key=lambda p: p.path
    )
    for pod in pods:
        if pod.priority != root.priority:
            text = (
                f"Pod/{pod.path} has priority {pod.priority}, its tree {root.key} has {root.priority}; "
                "give both the same priorityClassName"
            )
            return [Problem(PODS_DIFFER, text)]
    fields: tuple[tuple[str, Callable[[Pod], str]], ...] = (
        ("schedulerName", lambda p: p.scheduler_name),
        ("preemptionPolicy", lambda p: p.preemption_policy),
    )
    for field, value_of in fields:
        for pod in pods[1:]:
            if value_of(pod) != value_of(pods[0]):
                text = (
                    f'all pods of one tree share one {field}: Pod/{pods[0].path} has "{value_of(pods[0])}", '
                    f'Pod/{pod.path} has "{value_of(pod)}"'
                )
                return [Problem(PODS_DIFFER, text)]
    return []


def _broken_disruption(
    order: list[Group], children: Mapping[GroupKey, tuple[Group, ...]]
) -> list[Problem]:
    problems = []
    for group in order:
        if group.mode != "all":
            continue
        if group.key.kind == "PodGroup" and group.basic:
            text = f"{group.key} is disrupted as a whole (all), which needs a gang policy, but it is basic"
            problems.append(Problem("E11", text))
        problems += [
            Problem(
                "B10",
                f"{child.key} is single under {group.key}, which is disrupted as a whole (all)",
            )
            for child in children.get(group.key, ())
            if child.mode != "all"
        ]
    return problems
