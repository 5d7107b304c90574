"""The table: all workload kinds, those first whose pods also have the labels of a later one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from extender.core.workloads.kinds.disaggregatedset_kind import DISAGGREGATEDSET
from extender.core.workloads.kinds.job_kind import JOB
from extender.core.workloads.kinds.jobset_kind import JOBSET, TRAINJOB
from extender.core.workloads.kinds.kubeflow_kinds import KUBEFLOW_JOBS, MPIJOB
from extender.core.workloads.kinds.leaderworkerset_kind import LEADERWORKERSET
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS
from extender.core.workloads.kinds.podgang_kind import PODGANG
from extender.core.workloads.kinds.raycluster_kind import RAYCLUSTER
from extender.core.workloads.kinds.statefulset_kind import STATEFULSET
from extender.core.workloads.name_rules import NameRule, leaf_name
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import OFF, TREE_LABEL

KINDS: Final[tuple[WorkloadKind, ...]] = (
    JOBSET,
    MPIJOB,
    JOB,
    DISAGGREGATEDSET,
    LEADERWORKERSET,
    STATEFULSET,
    PODGANG,
    TRAINJOB,
    RAYCLUSTER,
    *KUBEFLOW_JOBS,
    PLAIN_PODS,
)
# Those of which an API server has objects.
OBJECT_KINDS: Final[tuple[WorkloadKind, ...]] = tuple(kind for kind in KINDS if kind.plural)
BY_KIND: Final[Mapping[str, WorkloadKind]] = {one.kind: one for one in KINDS}
NAME_RULES: Final[tuple[NameRule, ...]] = tuple(rule for one in KINDS for rule in one.name_rules)


def leaf_of_pod(labels: Mapping[str, str]) -> str:
    """Return the name of the leaf of a pod with these labels, or an empty string: it has no profile, or no kind fits."""
    return leaf_name(NAME_RULES, labels) if labels.get(TREE_LABEL, OFF) != OFF else ""


def kind_of_pod(labels: Mapping[str, str]) -> WorkloadKind | None:
    """Return the kind of workload that made a pod with these labels, or None."""
    return next(
        (
            kind
            for kind in KINDS
            if kind.name_label in labels and leaf_name(kind.name_rules, labels)
        ),
        None,
    )
