"""The ReplicatedJobs of a JobSet, and which of them start together: `dependsOn` and the start-up order InOrder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from extender.core.workloads.kinds.job_kind import all_at_once
from extender.core.workloads.name_rules import joined_name
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, Part, PartStep
from extender.core.workloads.tree_policy import TreePolicy
from extender.core.workloads.workload_kind import UID_PIECE, template_label
from extender.core.workloads.workload_object import WorkloadObject

STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"  # on the ReplicatedJobs of a TrainJob
INITIALIZERS = ("dataset-initializer", "model-initializer")

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"  # another way of the same
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"  # the label of such nodes
NO_SCHEDULE = "alpha.jobset.sigs.k8s.io/no-schedule"  # their taint

ReplicatedJob = Mapping[str, Any]


def replicated_jobs(workload: WorkloadObject) -> tuple[ReplicatedJob, ...]:
    """Return the ReplicatedJobs of a JobSet, in their order."""
    return tuple(workload.spec.get("replicatedJobs") or ())


def group_name(workload: WorkloadObject, *parts: str) -> str:
    """Return the name of a group: of the JobSet, these parts, and a piece of its UID."""
    rest = "".join(f"-{part}" for part in (*parts, workload.uid[:UID_PIECE]))
    return joined_name(workload.name, rest)


def job_spec(job: ReplicatedJob) -> Mapping[str, Any]:
    """Return the spec of the Jobs of a ReplicatedJob."""
    return (job.get("template") or {}).get("spec") or {}


def pod_template(workload: WorkloadObject, job: ReplicatedJob, index: int) -> Mapping[str, Any]:
    """Return the pod template of one Job of a ReplicatedJob, with what JobSet adds for its placement.

    Source: `constructJob` of JobSet v0.12.0: with the annotations for exclusive placement by node selector, a Job runs on
    nodes that carry its name, and that have a taint against all other pods.
    """
    template: Mapping[str, Any] = job_spec(job).get("template") or {}
    own = ((job.get("template") or {}).get("metadata") or {}).get("annotations") or {}
    of_set = workload.annotations if EXCLUSIVE in workload.annotations else {}
    if not all(
        annotation in own or annotation in of_set for annotation in (EXCLUSIVE, NODE_SELECTOR)
    ):
        return template
    spec = template.get("spec") or {}
    name = f"{workload.namespace}_{workload.name}-{job['name']}-{index}"
    toleration = {"key": NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}
    added = {
        "nodeSelector": {**(spec.get("nodeSelector") or {}), NAMESPACED_JOB: name},
        "tolerations": [*(spec.get("tolerations") or ()), toleration],
    }
    return {**template, "spec": {**spec, **added}}


def is_initializer(job: ReplicatedJob) -> bool:
    """Return whether a ReplicatedJob of a TrainJob fetches what the trainer needs."""
    return template_label(job.get("template") or {}, STEP_LABEL) in INITIALIZERS


def is_one_by_one(jobs: Iterable[ReplicatedJob]) -> bool:
    """Return whether one of the ReplicatedJobs is no gang; it counts also when it is finished."""
    return any(is_initializer(job) or not all_at_once(job_spec(job)) for job in jobs)


def steps_of(
    workload: WorkloadObject, jobs: list[ReplicatedJob]
) -> list[list[ReplicatedJob]] | None:
    """Return the ReplicatedJobs that start together, step by step; None if all start at once."""
    order = (workload.spec.get("startupPolicy") or {}).get("startupPolicyOrder")
    if order == "InOrder":
        return [[job] for job in jobs]
    if not any(job.get("dependsOn") for job in jobs):
        return None
    steps: dict[frozenset[tuple[str, str]], list[ReplicatedJob]] = {}
    for job in jobs:
        after = job.get("dependsOn") or ()
        key = frozenset(
            (dependency.get("name", ""), dependency.get("status", "")) for dependency in after
        )
        steps.setdefault(key, []).append(job)
    return list(steps.values())


def step_parts(
    workload: WorkloadObject,
    steps: list[list[ReplicatedJob]],
    parts: Mapping[str, Part | None],
    policy: TreePolicy,
) -> Iterable[Part]:
    """Yield a part per step; ReplicatedJobs that start together are one gang, initializers are not."""
    for number_, step in enumerate(steps, start=1):
        of_step = [part for job in step if (part := parts[job["name"]]) is not None]
        alone = policy.gang != "all" or all(is_initializer(job) for job in step)
        if alone or len(step) == 1:
            yield from of_step
        elif of_step:  # also when only one of several is left: no group changes its parent
            yield Composite(
                name=group_name(workload, f"step{number_}"),
                role="",
                children=tuple(of_step),
                minimum=len(of_step),
                one_by_one=is_one_by_one(step),
            )


def with_steps(
    workload: WorkloadObject, roots: Iterable[Part], parts: Mapping[str, Part | None]
) -> tuple[Part, ...]:
    """Return the roots of a JobSet, in which each Basic composite has the order of its children.

    A later ReplicatedJob starts when an earlier one is complete, so that its pods have ended, or when it is ready: then
    it runs on beside the later one. Of several roots each has those that have ended before it, or start after its end.

    Args:
        parts: The parts of its ReplicatedJobs, by name; None: all its Jobs are finished.
    """
    job_of = {part.name: name for name, part in parts.items() if part is not None}
    conditions = _conditions(workload, job_of.values())
    ordered = [_with_steps(root, job_of, conditions) for root in roots]
    jobs = {root.name: _jobs_of(root, job_of) for root in ordered}
    before = {name: _ended(own, conditions) for name, own in jobs.items()}
    return tuple(
        msgspec.structs.replace(
            root,
            apart=tuple(
                name
                for name, below in jobs.items()
                if below <= before[root.name] or jobs[root.name] <= before[name]
            ),
        )
        for root in ordered
    )


# job -> the jobs that it waits for, and whether they have ended then
Conditions = Mapping[str, Mapping[str, bool]]


def _conditions(workload: WorkloadObject, names: Iterable[str]) -> Conditions:
    job_names = set(names)
    jobs = [job for job in replicated_jobs(workload) if job["name"] in job_names]
    if (workload.spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
        before = [None, *(str(job["name"]) for job in jobs)]
        return {
            job["name"]: {} if last is None else {last: False}
            for job, last in zip(jobs, before, strict=False)
        }
    return {
        job["name"]: {
            dependency["name"]: dependency.get("status") == "Complete"
            for dependency in job.get("dependsOn") or ()
            if dependency.get("name") in job_names
        }
        for job in jobs
    }


def _with_steps(part: Part, job_of: Mapping[str, str], conditions: Conditions) -> Part:
    if isinstance(part, Leaf) or part.name in job_of:
        return part
    children = tuple(_with_steps(child, job_of, conditions) for child in part.children)
    steps: tuple[PartStep, ...] = ()
    if part.minimum == BASIC:
        below = {child.name: _jobs_of(child, job_of) for child in children}
        steps = tuple(_steps(below, conditions, {job: name for name, job in job_of.items()}))
    if not any(step.after for step in steps):
        steps = ()
    return msgspec.structs.replace(part, children=children, steps=steps)


def _jobs_of(part: Part, job_of: Mapping[str, str]) -> frozenset[str]:
    if part.name in job_of:
        return frozenset({job_of[part.name]})
    if isinstance(part, Leaf):
        return frozenset()
    return frozenset[str]().union(*(_jobs_of(child, job_of) for child in part.children))


def _steps(
    jobs: Mapping[str, frozenset[str]], conditions: Conditions, name_of: Mapping[str, str]
) -> Iterable[PartStep]:
    """Yield the step of each child.

    Args:
        jobs: The ReplicatedJobs below each child.
        conditions: What each waits for.
        name_of: The name of the part of each.
    """
    for child, own in jobs.items():
        earlier, ended = _earlier(own, conditions), _ended(own, conditions)
        direct = {q: on for job in sorted(own) for q, on in conditions[job].items() if q not in own}
        beside = earlier - ended
        others = (
            (other,) if below <= beside else tuple(name_of[job] for job in sorted(below & beside))
            for other, below in jobs.items()
            if other != child and below
        )
        yield PartStep(
            child=child,
            name=" and ".join(sorted(own)),
            runs=(child, *(name for names in others for name in names)),
            after=" and ".join(
                f"{q} {'has ended' if complete else 'is ready'}" for q, complete in direct.items()
            ),
        )


def _ended(own: frozenset[str], conditions: Conditions) -> frozenset[str]:
    """Return the ReplicatedJobs that have ended before all of some have started."""
    started = own | _earlier(own, conditions)
    return frozenset(q for job in started for q, on in conditions[job].items() if on)


def _earlier(own: frozenset[str], conditions: Conditions) -> frozenset[str]:
    """Return the ReplicatedJobs that have started before all of some."""
    started: set[str] = set()
    waiting = set(own)
    while waiting:
        more = {q for job in waiting for q in conditions[job]} - started - own
        started |= more
        waiting = more
    return frozenset(started)
