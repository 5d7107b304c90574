"""Adopt the groups that the controller of a workload makes itself: composites above them are ours, the groups are not.

A workload with a scheduling block (`spec.scheduling`) gets flat PodGroups of its controller: of one Job (KEP-5547), of
a JobSet, its ReplicatedJobs or its Jobs (KEP-969), of each replica of a LeaderWorkerSet (KEP-666). Nothing of such a
group is changed but one annotation, which names the composite above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from immutables import Map

from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted
from extender.core.model.pod_groups import Group
from extender.core.workloads.tree_parts import Part, leaves_of
from extender.core.workloads.tree_policy import (
    InvalidPolicy,
    KindPolicy,
    TreePolicy,
    TreeProfile,
    refusal_of,
)
from extender.core.workloads.workload_kind import Notice, WorkloadKind, scheduling_block
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

_HASH = "(-[0-9a-z]{10})?"  # that a controller may add to the name of a template
_BLOCK = "spec.scheduling"


class NativeGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodGroup that the controller of a workload made."""

    name: str
    template: str = ""  # of the Workload that it was made from


class AdoptedGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A PodGroup of another controller that belongs to the tree of a workload."""

    name: str
    parent: str = ""  # the composite above it; empty: it is a root


class Composed(Protocol):
    """A group as the compiler made it."""

    @property
    def kind(self) -> str:
        """PodGroup or CompositePodGroup."""
        ...

    @property
    def name(self) -> str:
        """Its name; of a PodGroup here, the template of the group to adopt."""
        ...

    @property
    def parent(self) -> str:
        """The composite above it, or an empty string."""
        ...


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
    without_block = msgspec.structs.replace(workload, spec=own)
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
    for annotation in (*(MIN_ANNOTATION, NEAR_ANNOTATION, SLICES_ANNOTATION, WORKLOAD_ANNOTATION),):
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
    text = f"{value!r} is for groups that this service makes, but the groups are those of {_BLOCK}; set it there"
    field = f"metadata.annotations[{annotation}]"
    return InvalidPolicy(refusal_of(source, "InvalidAnnotation", field, text))


def adopted_groups(
    workload: WorkloadObject,
    composed: Sequence[Composed],
    native: Iterable[NativeGroup],
    parent: str,
) -> tuple[AdoptedGroup, ...]:
    """Return the groups of the controller with the composites above them, in the order of `native`.

    Args:
        composed: Its groups as the compiler made them, a PodGroup named as the template of the group to adopt; empty:
            each group of the controller is a root.
        parent: The composite of the user's above roots, or an empty string.

    Raises:
        InvalidPolicy: A group was made from a template that no part of the workload has.
    """
    if not composed:
        return tuple(AdoptedGroup(name=group.name, parent=parent) for group in native)
    above = {spec.name: spec.parent for spec in composed if spec.kind == "PodGroup"}
    adopted = []
    for group in native:
        template = _template_of(group, above)
        if template is None:
            text = (
                f"its controller made PodGroup {group.name} from the template {group.template!r}, but the groups of "
                f"{_BLOCK} are {', '.join(above)}; write nativeGroups: Ignore into the TreeProfile to leave them alone"
            )
            raise InvalidPolicy(refusal_of(workload, "UnknownNativeGroup", _BLOCK, text))
        adopted.append(AdoptedGroup(name=group.name, parent=above[template]))
    return tuple(adopted)


def _template_of(group: NativeGroup, templates: Mapping[str, str]) -> str | None:
    if group.template in templates:
        return group.template
    return next((n for n in templates if re.fullmatch(re.escape(n) + _HASH, group.template)), None)


def native_notices(
    workload: WorkloadObject,
    composed: Sequence[Composed],
    adopted: Sequence[AdoptedGroup],
    policy: KindPolicy,
) -> tuple[Notice, ...]:
    """Return what a user should know: groups that are not there yet, and topology that is not applied."""
    notices = []
    expected = sum(group.kind == "PodGroup" for group in composed) or 1
    if len(adopted) < expected:
        text = f"{workload}: {len(adopted)} of {counted(expected, 'group')} of its controller are there; the others are waited for"
        notices.append(Notice(reason="WaitingForGroups", message=text))
    dropped = ["topology.leaf"] if policy.leaf_topology or policy.leaf_preferred else []
    of_root = policy.root_topology or policy.root_preferred
    dropped += ["topology.root"] if of_root and not composed else []
    dropped += ["topology.slices"] if policy.slices else []
    dropped += ["exclusive.leaf"] if policy.leaf_exclusive else []
    dropped += ["exclusive.root"] if policy.root_exclusive and not composed else []
    dropped += ["near"] if policy.near else []
    if dropped:
        levels = " and ".join(dropped)
        text = f"{workload}: {levels} of the TreeProfile is not applied to groups of its controller; set it in {_BLOCK}"
        notices.append(Notice(reason="NativeGroupsKept", message=text))
    return tuple(notices)


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
            fresh = {}
            for uid, several in by_owner.items():
                now, before = tuple(sorted(several, key=_by_name)), self._by_owner.get(uid)
                fresh[uid] = before if before == now else now
            self._groups, self._by_owner = groups, fresh
        return self._by_owner


def is_native(group: Group) -> bool:
    """Return whether a group is a built-in PodGroup that a controller made."""
    return bool(group.source == "builtin" and group.owner_uid and group.key.kind == "PodGroup")


def native_groups_of(
    by_owner: Mapping[str, tuple[NativeGroup, ...]], owners: Iterable[str]
) -> tuple[NativeGroup, ...]:
    """Return the groups of a workload, sorted by name; `owners`: UIDs of the workload and of the objects that it owns."""
    owned = [group for uid in owners for group in by_owner.get(uid, ())]
    return tuple(sorted(owned, key=_by_name))


def _by_name(group: NativeGroup) -> str:
    return group.name
