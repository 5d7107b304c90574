"""Labels on the pod templates of a workload: the Python twin of the admission policies that write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import LEAF_LABEL, TREE_LABEL, WorkloadObject

_LabelsFor = Callable[[Mapping[str, Any]], Mapping[str, str]]


def with_template_labels(
    kind: WorkloadKind, workload: WorkloadObject, profile: str
) -> WorkloadObject:
    """Return a workload whose pod templates have the tree label and the leaf label of its kind.

    A label that a template has already stays as it is, and a template that does not exist is not made.

    Args:
        workload: The workload; it is not changed.
        profile: The value of the tree label.
    """

    def labels(item: Mapping[str, Any]) -> Mapping[str, str]:
        added = {TREE_LABEL: profile}
        if kind.leaf_label is not None and (leaf := kind.leaf_label(item)):
            added[LEAF_LABEL] = leaf
        return added

    holder: Any = {"metadata": {"labels": dict(workload.labels)}, "spec": workload.spec}
    for path in kind.template_paths:
        holder = _labelled(holder, path.split("."), holder, labels)
    return msgspec.structs.replace(workload, spec=holder["spec"])


def _labelled(part: Any, steps: list[str], item: Any, labels: _LabelsFor) -> Any:  # noqa: ANN401 -- parts of an object
    """Return a part of an object with the labels on the templates below it.

    Args:
        part: The part; it is not changed.
        steps: The path of the templates below it.
        item: What has the templates: the innermost item of a list on the path, else the object.
        labels: Returns the labels for a template of an item.
    """
    if not isinstance(part, Mapping):
        return part
    if not steps:
        metadata = part.get("metadata") or {}
        own = metadata.get("labels") or {}
        return {**part, "metadata": {**metadata, "labels": {**labels(item), **own}}}
    name, is_list, _ = steps[0].partition("[]")
    below = part.get(name)
    if below is None:
        return part
    if is_list:
        changed = [_labelled(element, steps[1:], element, labels) for element in below]
    else:
        changed = _labelled(below, steps[1:], item, labels)
    return {**part, name: changed}
