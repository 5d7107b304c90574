"""Fields that an API server drops without a word while a feature gate of it is off (SPEC A.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BUILTIN: Final = "scheduling.k8s.io"
OURS: Final = "gang-extender.dev"
# Last word of a field -> feature gate of kube-apiserver that keeps it.
GATES: Final[Mapping[str, str]] = {
    "schedulingGroup": "GenericWorkload",
    "schedulingConstraints": "TopologyAwareWorkloadScheduling",
    "topology": "TopologyAwareWorkloadScheduling",  # of templates: 1.36 leaves the constraints, empty
    "parentCompositePodGroupName": "CompositePodGroup",
    "resourceClaims": "DRAWorkloadResourceClaims",
    "preemptionPolicy": "PodGroupPreemptionPolicy",
    # in 1.36 only; 1.37 keeps them always
    "disruptionMode": "WorkloadAwarePreemption",
    "priorityClassName": "WorkloadAwarePreemption",
}


def gate_of(field: str) -> str:
    """Name the feature gate of kube-apiserver that keeps a field, empty where we know none."""
    return GATES.get(field.rpartition(".")[2], "")


def loss_text(group: str, field: str) -> str:
    """Say that a group was written with a field that its API server did not keep, and what would help."""
    gate = gate_of(field)
    on = f"switch feature gate {gate} on in kube-apiserver" if gate else "upgrade kube-apiserver"
    return (
        f"{group} was created with spec.{field}, which kube-apiserver did not keep; {on} and create the group "
        f"again, or create it in {OURS}"
    )
