"""Tree labels that came too late: pods get their leaf from the pod template, which is labelled when the workload is created."""

from __future__ import annotations

from collections.abc import Iterable

from extender.core.trees.tree_events import profile_name
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.workload_kind import Notice, WorkloadKind
from extender.core.workloads.workload_object import (
    OFF,
    PATCH_MANAGER,
    TREE_LABEL,
    WorkloadObject,
    pod_templates,
)


def unused_label(workload: WorkloadObject, owned: Iterable[WorkloadObject]) -> Notice | None:
    """Return a notice for a workload whose own tree label does not reach its pods; None: it does, or it has none.

    Args:
        owned: The workloads that it owns, those with a tree label.
    """
    kind = BY_KIND[workload.kind]
    if workload.labels.get(TREE_LABEL, OFF) in ("", OFF) or workload.deleting:
        return None
    if kind.finished(workload) or kind.kept_out(workload) or _reaches_pods(kind, workload, owned):
        return None
    text = (
        f"the label {TREE_LABEL} has no effect: the pods of {workload.kind} {workload.namespace}/{workload.name} do not "
        "get it. It was added after the workload was created, or the admission policy of the kind "
        "(deploy/kubernetes/workloads/tree-policies.yaml) was not installed then, or the workload had a field such as "
        "spec.scheduling, which keeps the label out, and kube-apiserver dropped it: create the workload again without"
    )
    return Notice(reason="LabelNotUsed", message=text)


def _reaches_pods(
    kind: WorkloadKind, workload: WorkloadObject, owned: Iterable[WorkloadObject]
) -> bool:
    owner = workload.owner
    if owner is not None and owner.kind in (*kind.part_of, *kind.policy_from):
        return True  # the label of its owner counts
    if kind.label_patch is not None:
        items = workload.spec.get(kind.label_patch.field) or ()
        if any(item.get(kind.label_patch.key) == PATCH_MANAGER for item in items):
            return True
        # the label may come from elsewhere; without a status its controller has not made anything yet
        return not workload.status or any(profile_name(BY_KIND[o.kind], o) for o in owned)
    return not kind.template_paths or any(
        TREE_LABEL in ((template.get("metadata") or {}).get("labels") or {})
        for template in pod_templates(kind.template_paths, workload.spec)
    )
