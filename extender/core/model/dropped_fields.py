"""Fields that an API server drops without an error while one of its feature gates is off (A.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BUILTIN: Final = "scheduling.k8s.io"
OURS: Final = "gang-extender.dev"
# Last part of a field path -> feature gate of kube-apiserver without which the field is dropped.
GATES: Final[Mapping[str, str]] = {
    "schedulingGroup": "GenericWorkload",
    "schedulingConstraints": "TopologyAwareWorkloadScheduling",
    "topology": "TopologyAwareWorkloadScheduling",  # in templates: 1.36 keeps schedulingConstraints, but empty
    "parentCompositePodGroupName": "CompositePodGroup",
    "resourceClaims": "DRAWorkloadResourceClaims",
    "preemptionPolicy": "PodGroupPreemptionPolicy",
    # 1.36 only; 1.37 always keeps the next two
    "disruptionMode": "WorkloadAwarePreemption",
    "priorityClassName": "WorkloadAwarePreemption",
}


def gate_of(field: str) -> str:
    """Return the feature gate of kube-apiserver without which a field is dropped, or an empty string if none is known."""
    return GATES.get(field.rpartition(".")[2], "")


def dropped_field_text(group: str, field: str) -> str:
    """Return the message that the API server dropped a field of a group, with what the user can do."""
    gate = gate_of(field)
    on = f"switch feature gate {gate} on in kube-apiserver" if gate else "upgrade kube-apiserver"
    return (
        f"{group} was created with spec.{field}, which kube-apiserver did not keep; {on} and create the group "
        f"again, or create it in {OURS}"
    )
