"""Objects of workload controllers; their spec and status are read by the table of kinds (core/workloads)."""

from __future__ import annotations

from typing import Any

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
