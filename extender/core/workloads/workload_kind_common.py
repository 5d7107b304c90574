"""What the table entries of several kinds have in common: conditions, refusals, and fields with defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from extender.core.model.errors import BadInput
from extender.core.workloads.tree_policy import TreeRefusal, refusal_of
from extender.core.workloads.workload_kind import MANAGER_PATH
from extender.core.workloads.workload_object import (
    GANG_ANNOTATION,
    GROUP_LABELS,
    OTHER_SCHEDULERS,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
)

UID_PIECE = 8  # characters of a UID in names: 32 bits, unique among workloads of one name


def has_condition(workload: WorkloadObject, *types: str) -> bool:
    """Return whether one of these conditions is True."""
    conditions = workload.status.get("conditions") or ()
    return any(
        condition.get("type") in types and condition.get("status") == "True"
        for condition in conditions
    )


def is_suspended(workload: WorkloadObject) -> bool:
    """Return `spec.suspend`."""
    return bool(workload.spec.get("suspend"))


def number(fields: Mapping[str, Any], name: str, default: int) -> int:
    """Return a field that is a number; `default` where it is not set."""
    value = fields.get(name)
    return default if value is None else int(value)


def template_label(template: Mapping[str, Any], key: str) -> str:
    """Return a label of a pod template, or an empty string."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    return str(labels.get(key, ""))


def template_kept_out(template: Mapping[str, Any]) -> str:
    """Return why the pods of a template are scheduled by something else, or an empty string."""
    spec = template.get("spec") or {}
    if spec.get("schedulingGroup"):
        return "its pods have spec.schedulingGroup, so the groups of another controller count"
    if (scheduler := spec.get("schedulerName")) in OTHER_SCHEDULERS:
        return f"its pods have schedulerName {scheduler!r}, so that scheduler places them"
    labels = (template.get("metadata") or {}).get("labels") or {}
    for key in GROUP_LABELS:
        if key in labels:
            return f"its pods name the group {labels[key]!r} themselves"
    return ""


def scheduling_block(workload: WorkloadObject) -> str:
    """Return why a workload with `spec.scheduling` is left alone, or an empty string."""
    if workload.spec.get("scheduling"):
        return "spec.scheduling is set, so its own controller makes the groups"
    return ""


def managed_by_other(
    workload: WorkloadObject, own: str, path: tuple[str, ...] = MANAGER_PATH
) -> str:
    """Return why a workload whose controller, the field at `path` of `spec`, is not `own` is left alone, or an empty string."""
    manager: Any = workload.spec
    for field in path:
        manager = (manager or {}).get(field)
    if manager and manager != own:
        return f"spec.{'.'.join(path)} is {manager!r}, so another controller runs it"
    return ""


def required(obj: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return an object inside another one.

    Raises:
        BadInput: It is missing, or no object.
    """
    value: Any = obj
    for at, field in enumerate(path, start=1):
        value = value.get(field)
        if not isinstance(value, Mapping):
            state = "is missing" if value is None else "is no object"
            raise BadInput(f"{'.'.join(path[:at])}: {state}")
    result: Mapping[str, Any] = value
    return result


def only_whole(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    """Yield the refusals of a kind that has no choice of gangs and no templates of a Workload."""
    mode = workload.annotations.get(GANG_ANNOTATION, "all")
    if mode != "all":
        text = f"{mode!r} is for a JobSet; a {workload.kind} has only all"
        field = f"metadata.annotations[{GANG_ANNOTATION}]"
        yield refusal_of(workload, "InvalidAnnotation", field, text)
    if WORKLOAD_ANNOTATION in workload.annotations:
        text = f"is for a JobSet; a {workload.kind} has no templates to map"
        field = f"metadata.annotations[{WORKLOAD_ANNOTATION}]"
        yield refusal_of(workload, "InvalidAnnotation", field, text)
