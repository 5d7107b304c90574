"""Kubernetes objects as in the API, with only the fields that are used: those of several kinds, then kind by kind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, field

from extender.core.model.nodes import ExclusiveScope, LostMembers
from extender.core.model.pods import Operator, TaintEffect
from extender.core.model.quantities import Written
from extender.core.workloads.tree_policy import Disruption, GangMode, NativeGroups, TopologySource

Resources = dict[str, Written]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Instant = Annotated[datetime, Meta(tz=True)]


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of all types: fields are in camelCase."""


class Whole(Part, frozen=True, kw_only=True):
    """Base class of types that have all fields of the API, but for those that `unknown_fields` names."""


class Present(Part, frozen=True, kw_only=True):
    """An object whose fields are not read, only whether it is set."""


class OwnerReference(Part, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Whole, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class KubernetesObject(Part, frozen=True, kw_only=True):
    """An object of the API; items of a list may lack `kind` and `apiVersion`."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name, which identify an object of its kind."""
        return (self.metadata.namespace, self.metadata.name)

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`, or `Kind/name`, for messages."""
        parts = (type(self).__name__, self.metadata.namespace, self.metadata.name)
        return "/".join(part for part in parts if part)


class StoredCondition(Part, frozen=True, kw_only=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None  # parsed only where needed: pods have five conditions


class Named(Part, frozen=True, kw_only=True):
    """A scheduling gate, or a claim that a container uses; only the name is read."""

    name: str


class ClaimReference(Named, frozen=True, kw_only=True):
    """A ResourceClaim of a pod or a group: one that exists, or one that is made from a template."""

    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SelectorRequirement(Part, frozen=True, kw_only=True):
    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    """Expressions that must all match."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class RequiredNodes(Part, frozen=True, kw_only=True):
    """Terms of which at least one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class VolumeNodeAffinity(Part, frozen=True, kw_only=True):
    """The nodes on which a volume can be used."""

    required: RequiredNodes | None = None


class CsiSource(Part, frozen=True, kw_only=True):
    """The CSI driver of a volume; it may limit the number of its volumes per node."""

    driver: str = ""


class PersistentVolumeSpec(Part, frozen=True, kw_only=True):
    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()
    storage_class_name: str = ""
    csi: CsiSource | None = None


class PersistentVolume(KubernetesObject, frozen=True, kw_only=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ClaimSpec(Whole, frozen=True, kw_only=True):
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()
    storage_class_name: str | None = None  # None: the default class; empty: only volumes that exist


class ClaimStatus(Part, frozen=True, kw_only=True):
    phase: str = ""  # Lost: it was bound, and its volume does not exist any more


class PersistentVolumeClaim(KubernetesObject, Whole, frozen=True, kw_only=True):
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class TopologyLabel(Whole, frozen=True, kw_only=True):
    key: str
    values: tuple[str, ...]


class TopologyTerm(Whole, frozen=True, kw_only=True):
    match_label_expressions: tuple[TopologyLabel, ...] = ()


class StorageClass(KubernetesObject, Whole, frozen=True, kw_only=True):
    """How volumes are made for claims: by whom, when, and for which nodes."""

    provisioner: str = ""
    volume_binding_mode: Literal["Immediate", "WaitForFirstConsumer"] = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()  # one must hold; none: every node


class ResourceNeeds(Part, frozen=True, kw_only=True):
    requests: Resources = field(default_factory=dict)
    limits: Resources = field(default_factory=dict)
    claims: tuple[Named, ...] = ()


class ContainerPort(Part, frozen=True, kw_only=True):
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
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Part, frozen=True, kw_only=True):
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
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Part, frozen=True, kw_only=True):
    required: tuple[PodAffinityTerm, ...] = field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Part, frozen=True, kw_only=True):
    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class PodToleration(Whole, frozen=True, kw_only=True):
    """A toleration as stored; newer API servers have operators that compare numbers."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SpreadConstraint(Part, frozen=True, kw_only=True):
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    max_skew: int = 1
    min_domains: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class ClaimSource(Part, frozen=True, kw_only=True):
    claim_name: str


class ClaimTemplate(Part, frozen=True, kw_only=True):
    spec: ClaimSpec = ClaimSpec()


class EphemeralSource(Part, frozen=True, kw_only=True):
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


class ResourceClaim(KubernetesObject, frozen=True, kw_only=True):
    """A claim of devices; what it claims is not read."""


class ContainerStatus(Part, frozen=True, kw_only=True):
    """The actual resources of a running container (in-place resize)."""

    name: str = ""
    resources: ResourceNeeds | None = None
    allocated_resources: Resources = field(default_factory=dict)


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""  # in CamelCase; set by the kubelet if it ended the pod
    message: str = ""  # for users; set together with the reason
    nominated_node_name: str = ""
    conditions: tuple[StoredCondition, ...] = ()
    resource_claim_statuses: tuple[
        ClaimReference, ...
    ] = ()  # of templates; without a claim: none is needed
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: ResourceNeeds | None = None
    allocated_resources: Resources = field(default_factory=dict)


class Pod(KubernetesObject, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeTaint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: TaintEffect


class NodeSpec(Part, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeStatus(Part, frozen=True, kw_only=True):
    capacity: Resources = field(default_factory=dict)
    allocatable: Resources = field(default_factory=dict)


class Node(KubernetesObject, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PriorityClass(KubernetesObject, frozen=True, kw_only=True):
    value: Priority = 0
    global_default: bool = False
    preemption_policy: Literal["PreemptLowerPriority", "Never"] = "PreemptLowerPriority"


class LimitRangeItem(Whole, frozen=True, kw_only=True):
    """Bounds of a namespace for each container, pod or claim, and what containers have where they set nothing."""

    type: str = ""
    default: Resources = field(default_factory=dict)
    default_request: Resources = field(default_factory=dict)
    min: Resources = field(default_factory=dict)
    max: Resources = field(default_factory=dict)
    max_limit_request_ratio: Resources = field(default_factory=dict)


class LimitRangeSpec(Whole, frozen=True, kw_only=True):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(KubernetesObject, Whole, frozen=True, kw_only=True):
    """Defaults and bounds of the containers of a namespace; admission adds and checks them."""

    spec: LimitRangeSpec = LimitRangeSpec()


class RuntimeOverhead(Whole, frozen=True, kw_only=True):
    """What a pod of a runtime class needs besides its containers."""

    pod_fixed: Resources = field(default_factory=dict)


class RuntimeScheduling(Whole, frozen=True, kw_only=True):
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[PodToleration, ...] = ()


class RuntimeClass(KubernetesObject, Whole, frozen=True, kw_only=True):
    """A container runtime; admission adds what it has to each pod that names it."""

    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None


Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]  # minCount and minGroupCount: int32, at least 1


class GangPolicy(Whole, frozen=True, kw_only=True):
    """The minimum that is placed together; a leaf counts pods, a composite counts groups."""

    min_count: Count | None = None
    min_group_count: Count | None = None
    required_groups: tuple[str, ...] = ()  # of our kind alone


class SchedulingPolicy(Whole, frozen=True, kw_only=True):
    """Exactly one of basic and gang."""

    basic: Present | None = None
    gang: GangPolicy | None = None


class TopologyEntry(Whole, frozen=True, kw_only=True):
    """The node label of a topology level; three spellings of one field (X1)."""

    key: str = ""
    level: str = ""
    topology_key: str = ""


class ExclusiveEntry(Whole, frozen=True, kw_only=True):
    """The node label of which a group has a domain alone, and among which trees."""

    key: str = ""
    scope: ExclusiveScope = "Profile"
    resource: str = ""


class NearEntry(Whole, frozen=True, kw_only=True):
    """Another group of the tree, and the node label of which both should have the same domain."""

    group: str = ""
    key: str = ""


class SliceEntry(Whole, frozen=True, kw_only=True):
    """A number of pods of a leaf, and the node label of which each so many are within one domain."""

    size: int = 0
    key: str = ""


class SchedulingConstraints(Whole, frozen=True, kw_only=True):
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
        for each in msgspec.structs.fields(self):
            value = getattr(self, each.name)
            if each.name not in {"topology", "topology_constraints"} and value != each.default:
                yield each.encode_name, value


class DisruptionMode(Whole, frozen=True, kw_only=True):
    """At most one of single and all; none means single."""

    single: Present | None = None
    all: Present | None = None


class WorkloadRef(Whole, frozen=True, kw_only=True):
    """The template from which a group was created."""

    workload_name: str = ""
    template_name: str = ""


class OldTemplateRef(Whole, frozen=True, kw_only=True):
    """`WorkloadRef` of Kubernetes 1.36 (X4)."""

    workload_name: str = ""
    pod_group_template_name: str = ""


class TemplateRef(Whole, frozen=True, kw_only=True):
    """The union around `OldTemplateRef`; it has one member."""

    workload: OldTemplateRef | None = None


class GroupSpec(Whole, frozen=True, kw_only=True):
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
    conditions: tuple[StoredCondition, ...] = ()


class PodGroup(KubernetesObject, Whole, frozen=True, kw_only=True):
    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class CompositePodGroup(KubernetesObject, Whole, frozen=True, kw_only=True):
    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()


class Template(Whole, frozen=True, kw_only=True):
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


class WorkloadSpec(Whole, frozen=True, kw_only=True):
    """The templates of a tree: either of leaves or of composites."""

    pod_group_templates: tuple[Template, ...] = ()
    composite_pod_group_templates: tuple[Template, ...] = ()


class Workload(KubernetesObject, Whole, frozen=True, kw_only=True):
    """The templates of a tree; not used for existing groups."""

    spec: WorkloadSpec = WorkloadSpec()


class WorkloadManifest(KubernetesObject, frozen=True, kw_only=True):
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`, for messages."""
        parts = (self.kind or "Workload", self.metadata.namespace, self.metadata.name)
        return "/".join(part for part in parts if part)


class TrainingRuntime(KubernetesObject, frozen=True, kw_only=True):
    """What a TrainJob of Kubeflow Trainer is made from."""

    spec: dict[str, Any] = {}


class ClusterTrainingRuntime(TrainingRuntime, frozen=True, kw_only=True):
    """A runtime for the TrainJobs of all namespaces."""


class PodCliqueSet(KubernetesObject, frozen=True, kw_only=True):
    """What Grove's operator makes PodGangs and their pods from."""

    spec: dict[str, Any] = {}


class TopologyLevel(msgspec.Struct, frozen=True, kw_only=True):
    domain: str
    key: str


class ClusterTopologySpec(msgspec.Struct, frozen=True, kw_only=True):
    levels: tuple[TopologyLevel, ...] = ()


class ClusterTopology(KubernetesObject, frozen=True, kw_only=True):
    """The topology of a cluster, as Grove's operator reads it."""

    spec: ClusterTopologySpec = ClusterTopologySpec()


class ClusterTopologyBinding(ClusterTopology, frozen=True, kw_only=True):
    """The same, as an operator with `topologyName` reads it."""


class OtherObject(KubernetesObject, frozen=True, kw_only=True):
    """An object beside a workload that has no pods and no groups."""


class ProfileTopology(Whole, frozen=True, kw_only=True):
    """Node labels of the domain of the whole tree, and of each leaf; preferred ones are narrowest first."""

    root: str = ""
    leaf: str = ""
    root_preferred: tuple[str, ...] = ()
    leaf_preferred: tuple[str, ...] = ()
    balanced: bool = False
    slices: tuple[SliceEntry, ...] = ()
    levels: tuple[str, ...] = ()
    read_from: tuple[TopologySource, ...] = ()


class ProfileExclusive(Whole, frozen=True, kw_only=True):
    """The domains that the whole tree, and each leaf, have alone."""

    root: ExclusiveEntry | None = None
    leaf: ExclusiveEntry | None = None


class ProfileNear(Whole, frozen=True, kw_only=True):
    """Two roles of a workload, and the node label of which both should have the same domain."""

    role: str = ""
    to: str = ""
    key: str = ""


class KindProfile(Whole, frozen=True, kw_only=True):
    kind: str
    enabled: bool = True
    gang: GangMode = "all"
    topology: ProfileTopology = ProfileTopology()
    exclusive: ProfileExclusive = ProfileExclusive()
    near: tuple[ProfileNear, ...] = ()
    lost_members: LostMembers = "Wait"
    disruption_mode: Disruption = "all"
    native_groups: NativeGroups = "Ignore"


class TreeProfileSpec(Whole, frozen=True, kw_only=True):
    """The kinds that do not have the defaults."""

    kinds: tuple[KindProfile, ...] = ()


class TreeProfile(KubernetesObject, Whole, frozen=True, kw_only=True):
    spec: TreeProfileSpec = TreeProfileSpec()


class BudgetSpec(Part, frozen=True, kw_only=True):
    """How many pods must be available, or may be unavailable; a number or a percentage."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class BudgetStatus(Part, frozen=True, kw_only=True):
    """Written by the disruption controller; `disruptions_allowed` is missing before its first update."""

    disruptions_allowed: int | None = None


class PodDisruptionBudget(KubernetesObject, frozen=True, kw_only=True):
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class Namespace(KubernetesObject, frozen=True, kw_only=True):
    """A namespace; only its metadata is read."""


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
