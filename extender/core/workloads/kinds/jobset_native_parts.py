"""The groups that JobSet makes itself from `spec.scheduling`, and the composites that are missing above them.

Source: KEP-969 (keps/969-WAS-integration of JobSet, not released): one PodGroup for the whole JobSet, or one for the
ReplicatedJobs of each entry of `replicatedJobs`, or with `job` one for each Job. A JobSet that starts in steps has one
for each ReplicatedJob. There is no composite above them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.core.workloads.kinds.job_kind import pods_at_once
from extender.core.workloads.kinds.jobset_steps import (
    ReplicatedJob,
    group_name,
    job_spec,
    replicated_jobs,
    step_parts,
    steps_of,
)
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, Part
from extender.core.workloads.tree_policy import TreePolicy
from extender.core.workloads.workload_kind_common import number
from extender.core.workloads.workload_object import WorkloadObject

Settings = Mapping[str, Any]  # schedulingPolicy, disruptionMode and others of one level


def native_parts(workload: WorkloadObject, policy: TreePolicy) -> tuple[Part, ...]:
    """Return the parts of a JobSet; a leaf is named as the template of its PodGroup. Empty: one group is all of it."""
    block = workload.spec.get("scheduling") or {}
    jobs = {job["name"]: job for job in replicated_jobs(workload) if number(job, "replicas", 1) > 0}
    steps = steps_of(workload, list(jobs.values()))
    entries = block.get("replicatedJobs") or ()
    if not entries and steps is None:
        return ()
    parts: dict[str, Part | None] = dict.fromkeys(jobs)
    left = dict(jobs)
    for entry in entries:
        targets = [left.pop(n) for n in entry.get("targetReplicatedJobs") or () if n in left]
        if targets:
            parts[targets[0]["name"]] = _part_of_entry(workload, entry, targets, policy)
    for name, job in left.items():
        parts[name] = _leaf(name, name, [job], block)
    if steps is None:
        children = tuple(part for part in parts.values() if part is not None)
        minimum = len(children) if policy.gang == "all" else BASIC
    else:
        children, minimum = tuple(step_parts(workload, steps, parts, policy)), BASIC
    if not children:
        return ()
    name = group_name(workload)
    return (Composite(name=name, role="", children=children, minimum=minimum),)


def _part_of_entry(
    workload: WorkloadObject, entry: Settings, targets: list[ReplicatedJob], policy: TreePolicy
) -> Part:
    first = targets[0]
    name, of_job = str(first["name"]), entry.get("job")
    if of_job is None:
        joined = "-".join(str(job["name"]) for job in targets)
        return _leaf(joined, joined, targets, entry)
    leaves = tuple(
        _leaf(f"{name}-{index}", "", [first], of_job)
        for index in range(number(first, "replicas", 1))
    )
    if len(leaves) == 1:
        return leaves[0]
    minimum = BASIC if policy.gang == "per-job" else len(leaves)
    return Composite(name=group_name(workload, name), role=name, children=leaves, minimum=minimum)


def _leaf(template: str, role: str, jobs: list[ReplicatedJob], settings: Settings) -> Leaf:
    """Return the leaf of a group; its own minimum and topology are its controller's."""
    specs = [job_spec(job) for job in jobs]
    templates = [spec.get("template") or {} for spec in specs]
    pods = sum(
        number(job, "replicas", 1) * pods_at_once(spec)
        for job, spec in zip(jobs, specs, strict=True)
    )
    return Leaf(
        name=template,
        role=role,
        pods=pods,
        most=max(pods, len(jobs)),
        minimum=BASIC if (settings.get("schedulingPolicy") or {}).get("basic") is not None else 1,
        template=templates[0],
        leading=tuple(templates[1:]),
        one_by_one="all" not in (settings.get("disruptionMode") or {}),
    )
