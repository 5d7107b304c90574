"""PodGroup, CompositePodGroup and Workload: our kinds and the built-in ones of every version."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from extender.cluster.types.common_types import (
    KubernetesObject,
    Named,
    Part,
    Present,
    Priority,
    StoredCondition,
)

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # minCount and minGroupCount: int32, at least 1


class GangPolicy(Part, frozen=True, kw_only=True):
    """All or nothing, from this many on; a leaf counts pods, a composite counts groups."""

    min_count: Count | None = None
    min_group_count: Count | None = None


class SchedulingPolicy(Part, frozen=True, kw_only=True):
    """Exactly one of the two."""

    basic: Present | None = None
    gang: GangPolicy | None = None


class TopologyEntry(Part, frozen=True, kw_only=True):
    """A level to stay within; three spellings of one field (SPEC X1)."""

    key: str = ""
    level: str = ""
    topology_key: str = ""


class SchedulingConstraints(Part, frozen=True, kw_only=True):
    """Where a group has to stay together."""

    topology: tuple[TopologyEntry, ...] = ()
    topology_constraints: tuple[TopologyEntry, ...] = ()  # an old spelling (SPEC X1)


class DisruptionMode(Part, frozen=True, kw_only=True):
    """At most one of the two; neither means single."""

    single: Present | None = None
    all: Present | None = None


class WorkloadRef(Part, frozen=True, kw_only=True):
    """The template that a group was made from."""

    workload_name: str = ""
    template_name: str = ""


class OldTemplateRef(Part, frozen=True, kw_only=True):
    """The same in Kubernetes 1.36 (SPEC X4)."""

    workload_name: str = ""
    pod_group_template_name: str = ""


class TemplateRef(Part, frozen=True, kw_only=True):
    """A union with one member."""

    workload: OldTemplateRef | None = None


class GroupSpec(Part, frozen=True, kw_only=True):
    """Policy and place of a group in its tree."""

    parent_composite_pod_group_name: str = ""
    workload_ref: WorkloadRef | None = None
    pod_group_template_ref: TemplateRef | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode | str | None = None
    priority_class_name: str = ""
    priority: Priority | None = None
    preemption_policy: str = ""
    resource_claims: tuple[Named, ...] = ()


class GroupStatus(Part, frozen=True, kw_only=True):
    """What is known of a group."""

    conditions: tuple[StoredCondition, ...] = ()


class PodGroup(KubernetesObject, frozen=True, kw_only=True):
    """A leaf."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class CompositePodGroup(KubernetesObject, frozen=True, kw_only=True):
    """A group of groups."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class Template(Part, frozen=True, kw_only=True):
    """A group that a controller is to make; with child templates it is a composite."""

    name: str = ""
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode | str | None = None
    priority_class_name: str = ""
    priority: Priority | None = None
    preemption_policy: str = ""
    resource_claims: tuple[Named, ...] = ()
    pod_group_templates: tuple[Template, ...] = ()
    composite_pod_group_templates: tuple[Template, ...] = ()


class WorkloadSpec(Part, frozen=True, kw_only=True):
    """Templates, of leaves or of composites."""

    pod_group_templates: tuple[Template, ...] = ()
    composite_pod_group_templates: tuple[Template, ...] = ()


class Workload(KubernetesObject, frozen=True, kw_only=True):
    """Templates of a tree; never consulted for a running group."""

    spec: WorkloadSpec = WorkloadSpec()
