"""Types of the fields that table entries read, for objects that no API server has checked.

A kind has such a type as `spec_type`. Fields that no entry reads are not listed.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

# that a plan makes of one workload; Kubernetes is made for 150,000 in a cluster
PODS_MAX: Final = 100_000
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PodCount = Annotated[int, msgspec.Meta(ge=0, le=PODS_MAX)]  # each one is a pod or a group at least
PodSize = Annotated[int, msgspec.Meta(ge=1, le=PODS_MAX)]


class ReadFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class: fields are in camelCase; null is a field that is not set."""


class LabelFields(ReadFields, frozen=True, kw_only=True):
    """The metadata of a template."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodFields(ReadFields, frozen=True, kw_only=True):
    """What no plan reads of the spec of a pod; the rest is checked as that of a pod."""

    restart_policy: Literal["Always", "Never", "OnFailure"] | None = None


class TemplateFields(ReadFields, frozen=True, kw_only=True):
    """A pod template."""

    metadata: LabelFields | None = None
    spec: PodFields | None = None


class PodFailureRuleFields(ReadFields, frozen=True, kw_only=True):
    """A rule of podFailurePolicy."""

    action: Literal["Count", "FailIndex", "FailJob", "Ignore"]


class PodFailureFields(ReadFields, frozen=True, kw_only=True):
    """What the end of a pod means for its Job."""

    rules: tuple[PodFailureRuleFields, ...] | None = None


class JobFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a Job."""

    parallelism: PodCount | None = None
    completions: Count | None = None
    completion_mode: Literal["Indexed", "NonIndexed"] | None = None
    backoff_limit: Count | None = None
    backoff_limit_per_index: Count | None = None
    max_failed_indexes: Count | None = None
    pod_failure_policy: PodFailureFields | None = None
    pod_replacement_policy: Literal["Failed", "TerminatingOrFailed"] | None = None
    success_policy: dict[str, Any] | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    scheduling: dict[str, Any] | None = None
    template: TemplateFields | None = None


class JobTemplateFields(ReadFields, frozen=True, kw_only=True):
    """The template of the Jobs of a ReplicatedJob."""

    metadata: LabelFields | None = None
    spec: JobFields | None = None


class DependencyFields(ReadFields, frozen=True, kw_only=True):
    """An entry of dependsOn."""

    name: str
    status: Literal["Ready", "Complete"]


class ReplicatedJobFields(ReadFields, frozen=True, kw_only=True):
    """An entry of replicatedJobs."""

    name: str
    replicas: PodCount | None = None
    template: JobTemplateFields | None = None
    depends_on: tuple[DependencyFields, ...] | None = None


class StartupFields(ReadFields, frozen=True, kw_only=True):
    """The order in which ReplicatedJobs start."""

    startup_policy_order: Literal["AnyOrder", "InOrder"] | None = None


class JobSetFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a JobSet."""

    replicated_jobs: tuple[ReplicatedJobFields, ...] | None = None
    startup_policy: StartupFields | None = None
    suspend: bool | None = None
    managed_by: str | None = None
    scheduling: dict[str, Any] | None = None


class SubgroupFields(ReadFields, frozen=True, kw_only=True):
    """The subGroupPolicy of a LeaderWorkerSet."""

    sub_group_size: PodSize | None = None
    sub_group_policy_type: Literal["LeaderWorker", "LeaderExcluded"] | None = None


class LeaderWorkerFields(ReadFields, frozen=True, kw_only=True):
    """The leaderWorkerTemplate of a LeaderWorkerSet."""

    size: PodSize | None = None
    leader_template: TemplateFields | None = None
    worker_template: TemplateFields | None = None
    sub_group_policy: SubgroupFields | None = None


class LeaderWorkerSetFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a LeaderWorkerSet, and of a role of a DisaggregatedSet."""

    replicas: PodCount | None = None
    startup_policy: Literal["LeaderCreated", "LeaderReady"] | None = None
    scheduling: dict[str, Any] | None = None
    leader_worker_template: LeaderWorkerFields | None = None


class RuntimeRefFields(ReadFields, frozen=True, kw_only=True):
    """The runtime that a TrainJob names."""

    name: str | None = None
    kind: str | None = None
    api_group: str | None = None


class ResourceFields(ReadFields, frozen=True, kw_only=True):
    """Resources of a container; the quantities are checked as those of a pod."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    claims: list[dict[str, Any]] | None = None


class TrainerFields(ReadFields, frozen=True, kw_only=True):
    """The trainer of a TrainJob."""

    num_nodes: PodCount | None = None
    resources_per_node: ResourceFields | None = None


class TrainJobFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a TrainJob."""

    runtime_ref: RuntimeRefFields | None = None
    trainer: TrainerFields | None = None
    runtime_patches: list[dict[str, Any]] | None = None
    suspend: bool | None = None
    managed_by: str | None = None


class PackFields(ReadFields, frozen=True, kw_only=True):
    """The domains that a topologyConstraint packs into."""

    required: str | None = None
    preferred: str | None = None


class ConstraintFields(ReadFields, frozen=True, kw_only=True):
    """The topologyConstraint of a part of a PodCliqueSet."""

    topology_name: str | None = None
    pack: PackFields | None = None
    pack_domain: str | None = None  # the older form of pack.required


class CliqueSpecFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a clique."""

    replicas: PodCount | None = None
    min_available: PodSize | None = None
    starts_after: tuple[str, ...] | None = None
    pod_spec: PodFields | None = None


class CliqueFields(LabelFields, frozen=True, kw_only=True):
    """An entry of cliques, which has the labels and annotations of its pods."""

    name: str
    spec: CliqueSpecFields | None = None
    topology_constraint: ConstraintFields | None = None


class ScalingGroupFields(ReadFields, frozen=True, kw_only=True):
    """An entry of podCliqueScalingGroups."""

    name: str
    clique_names: tuple[str, ...] | None = None
    replicas: PodCount | None = None
    min_available: PodSize | None = None
    topology_constraint: ConstraintFields | None = None


class CliqueTemplateFields(ReadFields, frozen=True, kw_only=True):
    """The template of a PodCliqueSet."""

    cliques: tuple[CliqueFields, ...] | None = None
    pod_clique_scaling_groups: tuple[ScalingGroupFields, ...] | None = None
    priority_class_name: str | None = None
    topology_constraint: ConstraintFields | None = None


class PodCliqueSetFields(ReadFields, frozen=True, kw_only=True):
    """The spec of a PodCliqueSet."""

    replicas: PodCount | None = None
    template: CliqueTemplateFields | None = None
