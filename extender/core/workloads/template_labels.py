"""What the admission policies write into a workload, in Python: labels on its pod templates, and its exclusive domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from extender.core.workloads.tree_policy import is_label_key
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    LEAF_LABEL,
    TREE_LABEL,
    WorkloadObject,
    pod_templates,
)

_LabelsFor = Callable[[Mapping[str, Any]], Mapping[str, str]]


def with_template_labels(
    kind: WorkloadKind, workload: WorkloadObject, profile: str
) -> WorkloadObject:
    """Return a workload whose pod templates have the tree label and the leaf label of its kind.

    A label that a template has already stays as it is, and a template that does not exist is not made. An exclusive topology
    as its controller has it becomes an EXCLUSIVE_ANNOTATION, unless a template has the tree label already.

    Args:
        workload: The workload; it is not changed.
        profile: The value of the tree label.
    """

    def labels(item: Mapping[str, Any]) -> Mapping[str, str]:
        added = {TREE_LABEL: profile}
        if kind.leaf_label is not None and (leaf := kind.leaf_label(item)):
            added[LEAF_LABEL] = leaf
        return added

    annotations = _with_own_domain(kind, workload)
    holder: Any = {"metadata": {"labels": dict(workload.labels)}, "spec": workload.spec}
    for path in kind.template_paths:
        holder = _labelled(holder, path.split("."), holder, labels)
    return msgspec.structs.replace(workload, spec=holder["spec"], annotations=annotations)


def _with_own_domain(kind: WorkloadKind, workload: WorkloadObject) -> Mapping[str, str]:
    """Return the annotations of a workload, with that for an exclusive domain in place of the one of its controller."""
    theirs, annotations = kind.exclusive_annotation, workload.annotations
    key = annotations.get(theirs)
    owner = workload.owner.kind if workload.owner is not None else ""
    if (
        not is_label_key(key or "")
        or kind.exclusive_level is None
        or EXCLUSIVE_ANNOTATION in annotations
        or owner in (*kind.policy_from, *kind.part_of)
        or any(
            TREE_LABEL in ((template.get("metadata") or {}).get("labels") or {})
            for template in pod_templates(kind.template_paths, workload.spec)
        )
    ):
        return annotations
    level = kind.exclusive_level(workload)
    if not level:
        return annotations
    rest = {name: value for name, value in annotations.items() if name != theirs}
    return {**rest, EXCLUSIVE_ANNOTATION: f"{level}={key}"}


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
