"""Objects of workload controllers; their spec and status are read by the table of kinds (core/workloads)."""

from __future__ import annotations

from typing import Any

import msgspec

from extender.cluster.types.common_types import KubernetesObject


class WorkloadManifest(KubernetesObject, frozen=True, kw_only=True):
    """An object of any workload kind."""

    spec: dict[str, Any] = {}  # noqa: RUF012 -- a field of a Struct
    status: dict[str, Any] = {}  # noqa: RUF012

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`, for messages."""
        parts = (self.kind or "Workload", self.metadata.namespace, self.metadata.name)
        return "/".join(part for part in parts if part)


class TrainingRuntime(KubernetesObject, frozen=True, kw_only=True):
    """What a TrainJob of Kubeflow Trainer is made from."""

    spec: dict[str, Any] = {}  # noqa: RUF012


class ClusterTrainingRuntime(TrainingRuntime, frozen=True, kw_only=True):
    """A runtime for the TrainJobs of all namespaces."""


class PodCliqueSet(KubernetesObject, frozen=True, kw_only=True):
    """What Grove's operator makes PodGangs and their pods from."""

    spec: dict[str, Any] = {}  # noqa: RUF012


class TopologyLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The node label of a domain."""

    domain: str
    key: str


class ClusterTopologySpec(msgspec.Struct, frozen=True, kw_only=True):
    """The domains that a PodCliqueSet may name."""

    levels: tuple[TopologyLevel, ...] = ()


class ClusterTopology(KubernetesObject, frozen=True, kw_only=True):
    """The topology of a cluster, as Grove's operator reads it."""

    spec: ClusterTopologySpec = ClusterTopologySpec()


class ClusterTopologyBinding(ClusterTopology, frozen=True, kw_only=True):
    """The same, as an operator with `topologyName` reads it."""


class OtherObject(KubernetesObject, frozen=True, kw_only=True):
    """An object beside a workload that has no pods and no groups."""
