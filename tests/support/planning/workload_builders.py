"""Workloads for tests, and trees as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_compiler import (
    CompiledTree,
    CompileRequest,
    GroupSpec,
    compile_tree,
)
from extender.core.workloads.tree_parts import ExistingGroup, LeafUse
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.workload_object import WorkloadObject

UID = "6f2f0f4a-0000-4000-8000-000000000001"


def workload(kind: str, name: str, spec: Mapping[str, Any], **more: Any) -> WorkloadObject:
    """Return a workload of the namespace `team`."""
    found = BY_KIND[kind]
    fields = {"uid": UID, "labels": {"gang-extender.dev/tree": "default"}} | more
    return WorkloadObject(
        api_version=f"{found.group}/{found.versions[0]}" if found.versions else "v1",
        kind=kind,
        namespace="team",
        name=name,
        spec=spec,
        **fields,
    )


def template(priority_class: str = "", **labels: str) -> dict[str, Any]:
    """Return a pod template."""
    spec = {"priorityClassName": priority_class} if priority_class else {}
    keys = {f"gang-extender.dev/{key}": value for key, value in labels.items()}
    return {"metadata": {"labels": keys}, "spec": spec}


def _held(pod_template: Mapping[str, Any], leaf: str) -> dict[str, Any]:
    """Return a pod template with a leaf label; empty: without a new one."""
    metadata = pod_template.get("metadata") or {}
    labels = {"gang-extender.dev/leaf": leaf} if leaf else {}
    return {**pod_template, "metadata": metadata | {"labels": metadata.get("labels", {}) | labels}}


def job(parallelism: int | None = None, **spec: Any) -> WorkloadObject:
    """Return a Job `fit`; `status` and `annotations` are those of the object."""
    more = {key: spec.pop(key) for key in ("status", "annotations") if key in spec}
    if parallelism is not None:
        spec["parallelism"] = parallelism
    return workload("Job", "fit", {"template": template()} | spec, **more)


def replicated(
    name: str, replicas: int = 1, parallelism: int = 1, leaf: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a ReplicatedJob whose pod template has the label that the policy writes, or `leaf`."""
    template_spec = {"parallelism": parallelism, "completions": parallelism} | more.pop("spec", {})
    item = {"name": name, "replicas": replicas, "template": {"spec": template_spec}} | more
    stamp = BY_KIND["JobSet"].leaf_label
    assert stamp is not None
    held = stamp(item) if leaf is None else leaf
    template_spec["template"] = _held(template_spec.get("template") or template(), held)
    return item


def jobset(*jobs: Mapping[str, Any], **more: Any) -> WorkloadObject:
    """Return a JobSet `train`; other fields of the spec are in `spec`."""
    spec = {"replicatedJobs": list(jobs)} | more.pop("spec", {})
    return workload("JobSet", more.pop("name", "train"), spec, **more)


def leader_worker(
    replicas: int | None = 2, size: int | None = 3, leaf: str | None = None, **template_: Any
) -> dict[str, Any]:
    """Return a LeaderWorkerSetSpec whose templates have the label that the policy writes, or `leaf`."""
    startup = {"startupPolicy": found} if (found := template_.pop("startup", None)) else {}
    both: dict[str, Any] = {"workerTemplate": template()} | template_
    spec: dict[str, Any] = {"leaderWorkerTemplate": both, **startup}
    if replicas is not None:
        spec["replicas"] = replicas
    if size is not None:
        both["size"] = size
    stamp = BY_KIND["LeaderWorkerSet"].leaf_label
    assert stamp is not None
    held = stamp({"spec": spec}) if leaf is None else leaf
    both["workerTemplate"] = _held(both["workerTemplate"], held)
    return spec


def lws(
    name: str = "serve", *, annotations: Mapping[str, str] | None = None, **spec: Any
) -> WorkloadObject:
    """Return a LeaderWorkerSet."""
    return workload("LeaderWorkerSet", name, leader_worker(**spec), annotations=annotations or {})


def use(name: str, pods: int = 1, **labels: str) -> LeafUse:
    """Return the use of a leaf."""
    return LeafUse(name=name, pods=pods, labels=labels)


def compiled(found: WorkloadObject, *uses: LeafUse, **request: Any) -> CompiledTree:
    """Return the result for a workload; other fields of the request by name."""
    fields = {"profile": DEFAULT_PROFILE, "profile_name": "default"} | request
    ordered = tuple(sorted(uses, key=lambda one: one.name))
    return compile_tree(BY_KIND[found.kind], CompileRequest(workload=found, uses=ordered, **fields))


def existing(result: CompiledTree) -> tuple[ExistingGroup, ...]:
    """Return the groups of a result as groups that exist."""
    return tuple(
        ExistingGroup(
            kind=one.kind,
            name=one.name,
            basic=one.basic,
            minimum=one.minimum,
            required=one.required,
        )
        for one in result.groups
    )


def drawn(result: CompiledTree) -> list[str]:
    """Return the groups as lines: indented below their parent, `+` in front of composites, then minimum and policy.

    An example is `  x-worker-0: gang 4, all, in net/block, ~net/rack`.
    """
    assert result.outcome in ("compiled", "basic"), result
    depth: dict[str, int] = {}
    lines = []
    for group in result.groups:
        level = depth.get(group.parent, 0)
        if group.kind == "CompositePodGroup":
            depth[group.name] = level + 1
        lines.append("  " * level + _line(group))
    return lines


def _line(group: GroupSpec) -> str:
    mark = "+" if group.kind == "CompositePodGroup" else ""
    words = [f"{mark}{group.name}: " + ("basic" if group.basic else f"gang {group.minimum}")]
    if group.disruption_mode == "all":
        words.append("all")
    if group.topology:
        words.append(f"in {group.topology}")
    if group.preferred:
        words.append(f"~{'~'.join(group.preferred)}")
    if group.priority_class:
        words.append(group.priority_class)
    return ", ".join(words)
