"""Kubernetes objects as they stand in the API, cut down to the fields that are used.

One Struct per object, decoded by msgspec, which skips everything that is not named here. Field
names are the API's (camelCase) by renaming; all versions of a kind share one Struct. Nothing is
interpreted here: `extender.cluster.parse` and `extender.cluster.shapes` make values of the core.

The surprise: these Structs have no `null`; `parse` drops nulls first where there are any, because
Go writes empty slices that way.
"""

from __future__ import annotations

from extender.cluster.api.budgets import PodDisruptionBudget
from extender.cluster.api.common import (
    KubernetesObject,
    NodeSelectorTerm,
    ObjectMeta,
    RequiredNodes,
    Resources,
    SelectorRequirement,
    StoredCondition,
)
from extender.cluster.api.groups import (
    CompositePodGroup,
    DisruptionMode,
    GroupSpec,
    PodGroup,
    SchedulingConstraints,
    SchedulingPolicy,
    Template,
    Workload,
    WorkloadSpec,
)
from extender.cluster.api.nodes import Node, PriorityClass
from extender.cluster.api.pods import (
    Container,
    ContainerStatus,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    PodSpec,
    ResourceNeeds,
)
from extender.cluster.api.volumes import PersistentVolume, PersistentVolumeClaim

Group = PodGroup | CompositePodGroup
Readable = (
    Node
    | Pod
    | PodGroup
    | CompositePodGroup
    | Workload
    | PersistentVolume
    | PersistentVolumeClaim
    | PriorityClass
    | PodDisruptionBudget
)
KINDS: dict[str, type[Readable]] = {
    kind.__name__: kind
    for kind in (
        Node,
        Pod,
        PodGroup,
        CompositePodGroup,
        Workload,
        PersistentVolume,
        PersistentVolumeClaim,
        PriorityClass,
        PodDisruptionBudget,
    )
}
__all__ = [
    "KINDS",
    "CompositePodGroup",
    "Container",
    "ContainerStatus",
    "DisruptionMode",
    "Group",
    "GroupSpec",
    "KubernetesObject",
    "LabelSelector",
    "Node",
    "NodeSelectorTerm",
    "ObjectMeta",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodAffinityTerm",
    "PodDisruptionBudget",
    "PodGroup",
    "PodSpec",
    "PriorityClass",
    "Readable",
    "RequiredNodes",
    "ResourceNeeds",
    "Resources",
    "SchedulingConstraints",
    "SchedulingPolicy",
    "SelectorRequirement",
    "StoredCondition",
    "Template",
    "Workload",
    "WorkloadSpec",
]
