"""Adopt the groups that the controller of a workload makes itself: composites above them are ours, the groups are not.

A workload with a scheduling block (`spec.scheduling`) gets flat PodGroups of its controller: of one Job (KEP-5547), of
a JobSet, its ReplicatedJobs or its Jobs (KEP-969), of each replica of a LeaderWorkerSet (KEP-666). Nothing of such a
group is changed but one annotation, which names the composite above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import msgspec
from immutables import Map
from msgspec.structs import replace

from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.workloads.tree_parts import Part, leaves_of
from extender.core.workloads.tree_policy import (
    InvalidPolicy,
    TreePolicy,
    TreeProfile,
    invalid_annotation,
)
from extender.core.workloads.workload_kind import WorkloadKind, scheduling_block
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    MIN_ANNOTATION,
    NEAR_ANNOTATION,
    SLICES_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    TREE_LABEL,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
)

SCHEDULING_BLOCK = "spec.scheduling"


class NativeGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodGroup that the controller of a workload made."""

    name: str
    template: str = ""  # of the Workload that it was made from


class AdoptedGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A PodGroup of another controller that belongs to the tree of a workload."""

    name: str
    parent: str = ""  # the composite above it; empty: it is a root


def has_native_groups(kind: WorkloadKind, workload: WorkloadObject) -> bool:
    """Return whether the controller of a workload that has a tree label itself makes the groups.

    The label of a namespace is not enough: it reaches workloads by their pod templates, and these stay as they are.
    """
    block = kind.native_parts is not None and scheduling_block(workload)
    return bool(block) and TREE_LABEL in workload.labels


def adopts(kind: WorkloadKind, workload: WorkloadObject, profile: TreeProfile | None) -> bool:
    """Return whether the groups that the controller of a workload makes are adopted.

    Args:
        profile: That its label names; None: it does not exist.
    """
    if profile is None or not has_native_groups(kind, workload):
        return False
    policy = profile.of(kind.kind)
    own = {name: value for name, value in workload.spec.items() if name != "scheduling"}
    without_block = replace(workload, spec=own)
    return policy.enabled and policy.native_groups == "Adopt" and not kind.kept_out(without_block)


def native_roots(
    kind: WorkloadKind, workload: WorkloadObject, source: WorkloadObject, policy: TreePolicy
) -> tuple[Part, ...]:
    """Return the parts above and at the groups of the controller; empty: each of its groups is a root.

    Args:
        workload: A workload whose groups are adopted.
        source: Whose annotations count.

    Raises:
        InvalidPolicy: An annotation asks for what only the controller of the workload can do.
    """
    assert kind.native_parts is not None, f"{kind.kind} has no scheduling block"
    for annotation in (MIN_ANNOTATION, NEAR_ANNOTATION, SLICES_ANNOTATION, WORKLOAD_ANNOTATION):
        if annotation in source.annotations:
            raise _not_ours(source, annotation, source.annotations[annotation])
    roots = kind.native_parts(workload, policy)
    if sum(len(leaves_of(root)) for root in roots) == 1:
        roots = ()  # one group is the whole workload: no composite is missing
    for annotation in (TOPOLOGY_ANNOTATION, EXCLUSIVE_ANNOTATION):
        for entry in source.annotations.get(annotation, "").split(","):
            level = entry.partition("=")[0].strip()
            if level == "leaf" or (level == "root" and not roots):
                raise _not_ours(source, annotation, entry.strip())
    return roots


def _not_ours(source: WorkloadObject, annotation: str, value: str) -> InvalidPolicy:
    text = f"{value!r} is for groups that this service makes, but the groups are those of {SCHEDULING_BLOCK}; set it there"
    return invalid_annotation(source, annotation, text)


# --- which groups controllers made, by the workload


class NativeOwners:
    """The built-in PodGroups by their controlling owner; computed again only when the groups have changed."""

    def __init__(self) -> None:
        self._groups: Map[GroupKey, Group] | None = None
        self._by_owner: dict[str, tuple[NativeGroup, ...]] = {}

    def of(self, groups: Map[GroupKey, Group]) -> Mapping[str, tuple[NativeGroup, ...]]:
        """Return the groups by the UID of their owner, sorted by name; what did not change is the same object.

        Groups that are being deleted are left out.
        """
        if groups is not self._groups:
            by_owner: dict[str, list[NativeGroup]] = {}
            for key, group in groups.items():
                if is_native(group) and not group.deleting:
                    native = NativeGroup(name=key.name, template=group.template or "")
                    by_owner.setdefault(group.owner_uid, []).append(native)
            fresh = {
                uid: tuple(sorted(several, key=attrgetter("name")))
                for uid, several in by_owner.items()
            }
            before = self._by_owner
            kept = {uid: before[uid] for uid, now in fresh.items() if before.get(uid) == now}
            self._groups, self._by_owner = groups, fresh | kept
        return self._by_owner


def is_native(group: Group) -> bool:
    """Return whether a group is a built-in PodGroup that a controller made."""
    return bool(group.source == "builtin" and group.owner_uid and group.key.kind == "PodGroup")


def native_groups_of(
    by_owner: Mapping[str, tuple[NativeGroup, ...]], owners: Iterable[str]
) -> tuple[NativeGroup, ...]:
    """Return the groups of a workload, sorted by name; `owners`: UIDs of the workload and of the objects that it owns."""
    owned = [group for uid in owners for group in by_owner.get(uid, ())]
    return tuple(sorted(owned, key=attrgetter("name")))
