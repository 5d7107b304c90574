"""Which groups to create, change and delete, so that the cluster has what the log has.

The writes follow from the committed state and the view alone, so a restart at any moment ends in the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec
from msgspec.structs import replace

from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.ids import GroupKey
from extender.core.model.object_identity import changed_keys
from extender.core.model.pod_groups import Group, leaf_key
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.workload_object import MANAGED_BY


class GroupWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One write: `spec` and `tree` of a group to create or apply, the UID of one to apply, link or delete.

    A link names the `parent` of a group that another controller made.
    """

    action: Literal["create", "apply", "link", "delete"]
    key: GroupKey
    spec: GroupSpec | None = None
    tree: WorkloadTree | None = None
    uid: str = ""
    parent: str = ""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A group that should exist, and the tree that it belongs to."""

    spec: GroupSpec
    tree: WorkloadTree


class WantedGroups:
    """The groups that trees have; only trees that changed are examined again."""

    def __init__(self) -> None:
        self._trees: Mapping[str, WorkloadTree] = {}
        self._by_key: dict[GroupKey, tuple[Wanted, ...]] = {}

    def update(self, trees: Mapping[str, WorkloadTree]) -> set[GroupKey]:
        """Take over the trees, by the UID of the workload, and return the keys of groups that may have changed."""
        before, self._trees = self._trees, trees
        changed: set[GroupKey] = set()
        for uid in sorted(changed_keys(before, trees)):
            old, new = _keys(before.get(uid)), _keys(trees.get(uid))
            for key in old.keys() | new.keys():
                self._replace(key, uid, new.get(key))
                changed.add(key)
        return changed

    def of(self, key: GroupKey) -> tuple[Wanted, ...]:
        """Return the wanted groups of a key: several, if workloads claim the same name."""
        return self._by_key.get(key, ())

    def get(self, key: GroupKey, group: Group | None) -> Wanted | None:
        """Return the wanted group of a key: that of the owner of the group that exists, else of the first that came."""
        candidates = self._by_key.get(key, ())
        mine = [
            candidate
            for candidate in candidates
            if group is not None and not is_taken(candidate, group)
        ]
        return next(iter((*mine, *candidates)), None)

    def _replace(self, key: GroupKey, uid: str, desired: Wanted | None) -> None:
        """Put the wanted group of a workload where its last one was, so that the first to come stays the first."""
        several = {group.tree.uid: group for group in self._by_key.get(key, ())}
        if desired is not None:
            several[uid] = desired
        else:
            several.pop(uid, None)
        if several:
            self._by_key[key] = tuple(several.values())
        else:
            self._by_key.pop(key, None)


def _keys(tree: WorkloadTree | None) -> dict[GroupKey, Wanted]:
    if tree is None:
        return {}
    namespace = tree.workload.partition("/")[0]
    return {GroupKey(namespace, s.name, s.kind): Wanted(s, tree) for s in tree.groups}


class Link(msgspec.Struct, frozen=True, gc=False):
    """The composite above a group that another controller made, and the tree that it belongs to."""

    parent: str
    tree: WorkloadTree


def wanted_links(trees: Iterable[WorkloadTree]) -> dict[GroupKey, Link]:
    """Return the adopted groups that have a composite above them, by key."""
    links: dict[GroupKey, Link] = {}
    for tree in trees:
        namespace = tree.workload.partition("/")[0]
        for leaf in tree.adopted:
            if leaf.parent:
                links.setdefault(leaf_key(namespace, leaf.name), Link(leaf.parent, tree))
    return links


def link_write(key: GroupKey, link: Link, group: Group | None) -> GroupWrite | None:
    """Return the write that hangs an adopted group below its composite, or None.

    A group that has a parent already keeps it, and one of our kinds is not adopted.
    """
    if group is None or group.deleting or group.parent is not None or group.source != "builtin":
        return None
    return GroupWrite(action="link", key=key, uid=group.uid, parent=link.parent)


def group_write(key: GroupKey, desired: Wanted | None, group: Group | None) -> GroupWrite | None:
    """Return the write that a group needs now, or None.

    A group that another client made is not changed. One that is being deleted is created again when it is gone.
    """
    if desired is None:
        if group is None or group.deleting or group.managed_by != MANAGED_BY:
            return None
        return GroupWrite(action="delete", key=key, uid=group.uid)
    if group is None:
        return GroupWrite(action="create", key=key, spec=desired.spec, tree=desired.tree)
    same = (group.minimum, group.required) == (desired.spec.minimum, desired.spec.required)
    if group.deleting or is_taken(desired, group) or same:
        return None
    return GroupWrite(action="apply", key=key, spec=desired.spec, tree=desired.tree, uid=group.uid)


def is_taken(desired: Wanted, group: Group) -> bool:
    """Return whether the name of a wanted group belongs to an object of another owner."""
    return group.owner_uid != desired.tree.owner_uid or group.managed_by != MANAGED_BY


def is_blocked(desired: Wanted, parent: Group | None, *, own: bool) -> bool:
    """Return whether a group cannot be created yet, because its parent is being deleted or belongs to another owner.

    A composite that is being deleted stays while groups name it, so a new group would keep it for ever.

    Args:
        parent: The group that has the name of its parent; None: there is none.
        own: The parent is a group of the same tree, and not a composite of the user's.
    """
    return parent is not None and (parent.deleting or (own and is_taken(desired, parent)))


def frozen_differences(spec: GroupSpec, group: Group) -> tuple[str, ...]:
    """Return the immutable fields in which a group differs from what its workload asks for now."""
    now, then = spec.constraints, group.constraints
    # a wish that the API server dropped, or that came with a later release, is no reason to make the workload again
    if not then.preferred:
        now = replace(now, preferred=(), balanced=False)
    if not then.near:
        now = replace(now, near=())
    now = replace(now, lost_members=then.lost_members)
    pairs = (
        ("parentCompositePodGroupName", spec.parent, group.parent or ""),
        ("schedulingPolicy", spec.basic, group.basic),
        ("schedulingConstraints", now, then),
        ("disruptionMode", spec.disruption_mode, group.disruption_mode),
        ("priorityClassName", spec.priority_class, group.priority_class),
    )
    return tuple(field for field, now, then in pairs if now != then)


def may_delete(group: Group, owners: AbstractSet[str]) -> bool:
    """Return whether a group that no tree has is deleted: one that this service made, of an owner that exists.

    Those of an owner that is gone are left to the garbage collector.

    Args:
        owners: UIDs of owners that exist, and whose workloads are recorded as they are now.
    """
    return group.managed_by == MANAGED_BY and group.owner_uid in owners
