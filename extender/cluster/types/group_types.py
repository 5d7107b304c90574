"""PodGroup, CompositePodGroup and Workload: our kinds and the built-in ones of every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from extender.cluster.types.common_types import (
    ClaimReference,
    KubernetesObject,
    Part,
    Present,
    Priority,
    StoredCondition,
)
from extender.core.model.scheduling_constraints import ExclusiveScope, LostMembers

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # minCount and minGroupCount: int32, at least 1


class GangPolicy(Part, frozen=True, kw_only=True):
    """The minimum that is placed together; a leaf counts pods, a composite counts groups."""

    min_count: Count | None = None
    min_group_count: Count | None = None
    required_groups: tuple[str, ...] = ()  # of our kind alone


class SchedulingPolicy(Part, frozen=True, kw_only=True):
    """Exactly one of basic and gang."""

    basic: Present | None = None
    gang: GangPolicy | None = None


class TopologyEntry(Part, frozen=True, kw_only=True):
    """The node label of a topology level; three spellings of one field (X1)."""

    key: str = ""
    level: str = ""
    topology_key: str = ""


class ExclusiveEntry(Part, frozen=True, kw_only=True):
    """The node label of which a group has a domain alone, and among which trees."""

    key: str = ""
    scope: ExclusiveScope = "Profile"
    resource: str = ""


class NearEntry(Part, frozen=True, kw_only=True):
    """Another group of the tree, and the node label of which both should have the same domain."""

    group: str = ""
    key: str = ""


class SliceEntry(Part, frozen=True, kw_only=True):
    """A number of pods of a leaf, and the node label of which each so many are within one domain."""

    size: int = 0
    key: str = ""


class SchedulingConstraints(Part, frozen=True, kw_only=True):
    """The topology levels of which a group must, or should, be within one domain."""

    topology: tuple[TopologyEntry, ...] = ()
    topology_constraints: tuple[TopologyEntry, ...] = ()  # an old spelling (X1)
    preferred: tuple[str, ...] = ()  # narrowest first; of our kinds alone
    exclusive: ExclusiveEntry | None = None  # of our kinds alone
    balanced: bool = False  # of our kinds alone
    near: tuple[NearEntry, ...] = ()  # of our kinds alone
    slices: tuple[SliceEntry, ...] = ()  # of our PodGroup alone
    lost_members: LostMembers = "Wait"  # the same

    def of_our_kinds(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each constraint that is set and that built-in groups do not have."""
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name not in {"topology", "topology_constraints"} and value != field.default:
                yield field.encode_name, value


class DisruptionMode(Part, frozen=True, kw_only=True):
    """At most one of single and all; none means single."""

    single: Present | None = None
    all: Present | None = None


class WorkloadRef(Part, frozen=True, kw_only=True):
    """The template from which a group was created."""

    workload_name: str = ""
    template_name: str = ""


class OldTemplateRef(Part, frozen=True, kw_only=True):
    """`WorkloadRef` of Kubernetes 1.36 (X4)."""

    workload_name: str = ""
    pod_group_template_name: str = ""


class TemplateRef(Part, frozen=True, kw_only=True):
    """The union around `OldTemplateRef`; it has one member."""

    workload: OldTemplateRef | None = None


class GroupSpec(Part, frozen=True, kw_only=True):
    """The spec of a group: its parent and its policies."""

    parent_composite_pod_group_name: str = ""
    workload_ref: WorkloadRef | None = None
    pod_group_template_ref: TemplateRef | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode | str | None = None
    priority_class_name: str = ""
    priority: Priority | None = None
    preemption_policy: str = ""
    resource_claims: tuple[ClaimReference, ...] = ()


class GroupStatus(Part, frozen=True, kw_only=True):
    """The status of a group."""

    conditions: tuple[StoredCondition, ...] = ()


class PodGroup(KubernetesObject, frozen=True, kw_only=True):
    """A group of pods."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class CompositePodGroup(KubernetesObject, frozen=True, kw_only=True):
    """A group of groups."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class Template(Part, frozen=True, kw_only=True):
    """A template of a group; with child templates it is a composite."""

    name: str = ""
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode | str | None = None
    priority_class_name: str = ""
    priority: Priority | None = None
    preemption_policy: str = ""
    resource_claims: tuple[ClaimReference, ...] = ()
    pod_group_templates: tuple[Template, ...] = ()
    composite_pod_group_templates: tuple[Template, ...] = ()


class WorkloadSpec(Part, frozen=True, kw_only=True):
    """The templates of a tree: either of leaves or of composites."""

    pod_group_templates: tuple[Template, ...] = ()
    composite_pod_group_templates: tuple[Template, ...] = ()


class Workload(KubernetesObject, frozen=True, kw_only=True):
    """The templates of a tree; not used for existing groups."""

    spec: WorkloadSpec = WorkloadSpec()
