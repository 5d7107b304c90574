"""Which groups to create, change and delete, so that the cluster has what the log has.

The writes follow from the committed state and the view alone, so a restart at any moment ends in the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.workloads.tree_compiler import GroupSpec

MANAGED_BY = "gang-extender-trees"  # label app.kubernetes.io/managed-by, and the field manager


class GroupWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One write: `spec` and `tree` of a group to create or apply, the UID of one to apply or delete."""

    action: Literal["create", "apply", "delete"]
    key: GroupKey
    spec: GroupSpec | None = None
    tree: WorkloadTree | None = None
    uid: str = ""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """A group that should exist, and the tree that it belongs to."""

    spec: GroupSpec
    tree: WorkloadTree


def wanted_groups(trees: Iterable[WorkloadTree]) -> dict[GroupKey, Wanted]:
    """Return all groups that the trees have, by key; parents come before their children."""
    found: dict[GroupKey, Wanted] = {}
    for tree in trees:
        namespace = tree.workload.partition("/")[0]
        for spec in tree.groups:
            found.setdefault(GroupKey(namespace, spec.name, spec.kind), Wanted(spec, tree))
    return found


def contested_groups(
    trees: Iterable[WorkloadTree], wanted: Mapping[GroupKey, Wanted]
) -> Iterator[tuple[WorkloadTree, GroupKey]]:
    """Yield the trees with a group that is wanted for another tree, because both have one name for it, and the group."""
    for tree in trees:
        namespace = tree.workload.partition("/")[0]
        for spec in tree.groups:
            key = GroupKey(namespace, spec.name, spec.kind)
            if wanted[key].tree is not tree:
                yield tree, key


def group_write(key: GroupKey, wanted: Wanted | None, group: Group | None) -> GroupWrite | None:
    """Return the write that a group needs now, or None.

    A group that another client made is not changed. One that is being deleted is created again when it is gone.
    """
    if wanted is None:
        if group is None or group.deleting or group.managed_by != MANAGED_BY:
            return None
        return GroupWrite(action="delete", key=key, uid=group.uid)
    if group is None:
        return GroupWrite(action="create", key=key, spec=wanted.spec, tree=wanted.tree)
    if group.deleting or is_taken(wanted, group) or group.minimum == wanted.spec.minimum:
        return None
    return GroupWrite(action="apply", key=key, spec=wanted.spec, tree=wanted.tree, uid=group.uid)


def is_taken(wanted: Wanted, group: Group) -> bool:
    """Return whether the name of a wanted group belongs to an object of another owner."""
    return group.owner_uid != wanted.tree.owner_uid or group.managed_by != MANAGED_BY


def is_blocked(parent: Group | None, above: Wanted | None) -> bool:
    """Return whether a group cannot be created yet, because its parent is being deleted or belongs to another owner.

    A composite that is being deleted stays while groups name it, so a new group would keep it for ever.

    Args:
        parent: The group that has the name of the parent; None: there is none.
        above: The parent as it is wanted; None: it is no group of a workload.
    """
    if parent is None:
        return False
    return parent.deleting or (above is not None and is_taken(above, parent))


def frozen_differences(wanted: Wanted, group: Group) -> tuple[str, ...]:
    """Return the immutable fields in which a group differs from what its workload asks for now."""
    spec = wanted.spec
    topology = (spec.topology,) if spec.topology else ()
    pairs = (
        ("parentCompositePodGroupName", spec.parent, group.parent or ""),
        ("schedulingPolicy", spec.basic, group.basic),
        ("schedulingConstraints", topology, group.topology),
        ("disruptionMode", spec.disruption_mode, group.disruption_mode),
        ("priorityClassName", spec.priority_class, group.priority_class),
    )
    return tuple(field for field, now, then in pairs if now != then)


def superfluous(
    groups: Mapping[GroupKey, Group],
    wanted: Mapping[GroupKey, Wanted],
    owners: AbstractSet[str],
) -> Iterator[GroupKey]:
    """Yield the groups that this service made and that no tree has any more.

    Those of an owner that is gone are left to the garbage collector.

    Args:
        groups: All groups of the cluster.
        wanted: All groups that trees have.
        owners: UIDs of owners that exist, and whose workloads are recorded as they are now.
    """
    for key, group in groups.items():
        if key not in wanted and group.managed_by == MANAGED_BY and group.owner_uid in owners:
            yield key
