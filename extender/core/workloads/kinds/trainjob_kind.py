"""TrainJob: its JobSet is compiled, with the annotations of the TrainJob; the TrainJob owns the groups.

Source: trainer.kubeflow.org/v1alpha1 of Kubeflow Trainer v2.3.0. The pods have the labels of the JobSet, so it has neither
name rules nor templates of its own. Trainer copies no label of a TrainJob to its JobSet, only those of
`spec.runtimePatches`, where admission may add an entry.
"""

from __future__ import annotations

from extender.core.workloads.workload_fields import TrainJobFields
from extender.core.workloads.workload_kind import RuntimePatch, WorkloadKind
from extender.core.workloads.workload_kind_common import (
    has_condition,
    is_suspended,
    managed_by_other,
)

MANAGER = "trainer.kubeflow.org/trainjob-controller"

TRAINJOB = WorkloadKind(
    kind="TrainJob",
    group="trainer.kubeflow.org",
    versions=("v1alpha1",),
    plural="trainjobs",
    manager=MANAGER,
    label_patch=RuntimePatch(
        field="runtimePatches",
        key="manager",
        path=("trainingRuntimeSpec", "template", "metadata", "labels"),
    ),
    gang_modes=("all", "per-replicated-job", "per-job"),  # of its JobSet
    parts=None,
    spec_type=TrainJobFields,
    finished=lambda workload: has_condition(workload, "Complete", "Failed"),
    suspended=is_suspended,
    kept_out=lambda workload: managed_by_other(workload, MANAGER),
)
