"""Pods."""

from __future__ import annotations

from msgspec import field

from extender.cluster.types.common_types import (
    ClaimReference,
    KubernetesObject,
    Named,
    NodeSelectorTerm,
    Part,
    Present,
    Priority,
    RequiredNodes,
    Resources,
    SelectorRequirement,
    StoredCondition,
)
from extender.cluster.types.volume_types import ClaimSpec


class ResourceNeeds(Part, frozen=True, kw_only=True):
    """Requests and limits of a container or a pod."""

    requests: Resources = field(default_factory=dict)
    limits: Resources = field(default_factory=dict)
    claims: tuple[Named, ...] = ()


class ContainerPort(Part, frozen=True, kw_only=True):
    """A port of a container."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Part, frozen=True, kw_only=True):
    """A container; an init container with restartPolicy Always is a sidecar."""

    name: str = ""
    resources: ResourceNeeds = ResourceNeeds()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PreferredNodes(Part, frozen=True, kw_only=True):
    """A preferred term of node affinity."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Part, frozen=True, kw_only=True):
    """Node affinity."""

    required: RequiredNodes | None = field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredNodes, ...] = field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelector(Part, frozen=True, kw_only=True):
    """A selector of objects by label; an empty one selects every object."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class PodAffinityTerm(Part, frozen=True, kw_only=True):
    """A term about other pods; without a selector it selects no pod."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Part, frozen=True, kw_only=True):
    """A preferred term about other pods."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Part, frozen=True, kw_only=True):
    """Pod affinity or anti-affinity."""

    required: tuple[PodAffinityTerm, ...] = field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Part, frozen=True, kw_only=True):
    """The affinity of a pod."""

    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class PodToleration(Part, frozen=True, kw_only=True):
    """A toleration as stored; newer API servers have operators that compare numbers."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SpreadConstraint(Part, frozen=True, kw_only=True):
    """A topology spread constraint."""

    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    max_skew: int = 1
    min_domains: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class ClaimSource(Part, frozen=True, kw_only=True):
    """A reference to a PersistentVolumeClaim."""

    claim_name: str


class ClaimTemplate(Part, frozen=True, kw_only=True):
    """The claim of a generic ephemeral volume."""

    spec: ClaimSpec = ClaimSpec()


class EphemeralSource(Part, frozen=True, kw_only=True):
    """A volume with a claim that lives as long as its pod."""

    volume_claim_template: ClaimTemplate = ClaimTemplate()


class Volume(Part, frozen=True, kw_only=True):
    """A volume of a pod; `ephemeral` has a claim with the name `<pod>-<volume>`."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    iscsi: Present | None = None
    rbd: Present | None = None
    gce_persistent_disk: Present | None = None
    aws_elastic_block_store: Present | None = field(default=None, name="awsElasticBlockStore")


class SchedulingGroup(Part, frozen=True, kw_only=True):
    """The leaf group of a pod, Kubernetes 1.36 and later."""

    pod_group_name: str = ""


class PodSpec(Part, frozen=True, kw_only=True):
    """The spec of a pod."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: Priority | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity = Affinity()
    tolerations: tuple[PodToleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceNeeds = ResourceNeeds()
    overhead: Resources = field(default_factory=dict)
    runtime_class_name: str = ""
    host_network: bool = False
    scheduling_gates: tuple[Named, ...] = ()
    scheduling_group: SchedulingGroup = SchedulingGroup()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[ClaimReference, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()


class ContainerStatus(Part, frozen=True, kw_only=True):
    """The actual resources of a running container (in-place resize)."""

    name: str = ""
    resources: ResourceNeeds | None = None
    allocated_resources: Resources = field(default_factory=dict)


class PodStatus(Part, frozen=True, kw_only=True):
    """The status of a pod."""

    phase: str = ""
    reason: str = ""  # in CamelCase; set by the kubelet if it ended the pod
    message: str = ""  # for users; set together with the reason
    nominated_node_name: str = ""
    conditions: tuple[StoredCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: ResourceNeeds | None = None
    allocated_resources: Resources = field(default_factory=dict)


class Pod(KubernetesObject, frozen=True, kw_only=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
