"""Kubernetes objects as in the API, with only the fields that are used."""

from __future__ import annotations

from typing import get_args

from extender.cluster.types.common_types import (
    ClaimReference,
    KubernetesObject,
    NodeSelectorTerm,
    ObjectMeta,
    RequiredNodes,
    Resources,
    SelectorRequirement,
    StoredCondition,
)
from extender.cluster.types.disruption_budget_types import PodDisruptionBudget
from extender.cluster.types.group_types import (
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
from extender.cluster.types.node_types import LimitRange, Node, PriorityClass, RuntimeClass
from extender.cluster.types.pod_types import (
    Affinity,
    Container,
    ContainerStatus,
    LabelSelector,
    Pod,
    PodAffinityTerm,
    PodSpec,
    PodToleration,
    ResourceClaim,
    ResourceNeeds,
    WeightedPodAffinityTerm,
)
from extender.cluster.types.tree_profile_types import TreeProfile
from extender.cluster.types.volume_types import (
    ClaimSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from extender.cluster.types.workload_types import (
    ClusterTopology,
    ClusterTopologyBinding,
    ClusterTrainingRuntime,
    OtherObject,
    PodCliqueSet,
    TrainingRuntime,
    WorkloadManifest,
)

Group = PodGroup | CompositePodGroup
Readable = (
    Node
    | Pod
    | PodGroup
    | CompositePodGroup
    | Workload
    | PersistentVolume
    | PersistentVolumeClaim
    | ResourceClaim
    | StorageClass
    | PriorityClass
    | PodDisruptionBudget
)
Watched = Readable | WorkloadManifest | TreeProfile
KINDS: dict[str, type[Readable]] = {kind.__name__: kind for kind in get_args(Readable)}
__all__ = [
    "KINDS", "Affinity", "ClaimReference", "ClaimSpec", "ClusterTopology", "ClusterTopologyBinding",
    "ClusterTrainingRuntime", "CompositePodGroup", "Container", "ContainerStatus", "DisruptionMode", "Group",
    "GroupSpec", "KubernetesObject", "LabelSelector", "LimitRange", "Node", "NodeSelectorTerm", "ObjectMeta",
    "OtherObject", "PersistentVolume", "PersistentVolumeClaim", "Pod", "PodAffinityTerm", "PodCliqueSet",
    "PodDisruptionBudget", "PodGroup", "PodSpec", "PodToleration", "PriorityClass", "Readable", "RequiredNodes",
    "ResourceClaim", "ResourceNeeds", "Resources", "RuntimeClass", "SchedulingConstraints", "SchedulingPolicy", "SelectorRequirement",
    "StorageClass", "StoredCondition", "Template", "TrainingRuntime", "TreeProfile", "Watched",
    "WeightedPodAffinityTerm", "Workload", "WorkloadManifest", "WorkloadSpec",
]  # fmt: skip
