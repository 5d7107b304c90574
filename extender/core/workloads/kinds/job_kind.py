"""Job: one leaf, a gang if all its pods run at once.

Source: batch/v1 of Kubernetes 1.37, pkg/controller/job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Required

from extender.core.workloads.name_rules import LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import BASIC, Leaf, Observed
from extender.core.workloads.tree_policy import TreePolicy, TreeRefusal, refusal_of
from extender.core.workloads.workload_kind import (
    TEMPLATE_FIELDS,
    UID_PIECE,
    Count,
    HeldWorkload,
    Notice,
    PodCount,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    has_condition,
    held_workload,
    is_suspended,
    managed_by_other,
    number,
    only_whole,
    required,
    scheduling_block,
    template_kept_out,
)
from extender.core.workloads.workload_object import WorkloadObject

NAME_LABEL = "batch.kubernetes.io/job-name"
UID_LABEL = "batch.kubernetes.io/controller-uid"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_OLD_LABELS = {"job-name": NAME_LABEL, "controller-uid": UID_LABEL}
MANAGER = "kubernetes.io/job-controller"


def _parts(workload: WorkloadObject, _policy: TreePolicy, _observed: Observed) -> WorkloadParts:
    spec = workload.spec
    most = pods_at_once(spec)
    pods = min(most, remaining_pods(workload))
    leaf = Leaf(
        name=joined_name(workload.name, f"-{workload.uid[:UID_PIECE]}"),
        role="job",
        pods=pods,
        most=most,
        minimum=max(1, pods) if all_at_once(spec) else BASIC,
        template=spec.get("template") or {},
    )
    return WorkloadParts(roots=(leaf,) if most else (), notices=tuple(_notices(workload)))


def _notices(workload: WorkloadObject) -> Iterator[Notice]:
    """Yield that a Job has no restartPolicy, as in files that are not finished."""
    pod = (workload.spec.get("template") or {}).get("spec") or {}
    if pod.get("containers") and not restart_policy(workload.spec):
        text = (
            f"{workload}: spec.template.spec.restartPolicy: is missing, and Kubernetes refuses such a Job; "
            "set Never or OnFailure; planned as if it had one"
        )
        yield Notice(reason="RestartPolicyMissing", message=text)


def restart_policy(job_spec: Mapping[str, Any]) -> str:
    """Return when the pods of a Job are restarted; an empty string where its template has none."""
    spec = (job_spec.get("template") or {}).get("spec") or {}
    return str(spec.get("restartPolicy") or "")


def pods_at_once(job_spec: Mapping[str, Any]) -> int:
    """Return how many pods of a Job run at once at most."""
    parallelism, completions = number(job_spec, "parallelism", 1), job_spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def all_at_once(job_spec: Mapping[str, Any]) -> bool:
    """Return whether all pods of a Job run at once."""
    completions = job_spec.get("completions")
    return completions is None or int(completions) <= number(job_spec, "parallelism", 1)


def remaining_pods(job: WorkloadObject) -> int:
    """Return how many pods a Job still has to run at once: 0 when it is finished.

    Without `completions`, no pod is made after the first one has succeeded: those that are active remain.
    """
    if finished(job):
        return 0
    parallelism, completions = number(job.spec, "parallelism", 1), job.spec.get("completions")
    succeeded = number(job.status, "succeeded", 0)
    if completions is None:
        return number(job.status, "active", 0) if succeeded else parallelism
    # At most min(parallelism, completions - succeeded) pods are active. So the minimum follows the remaining work:
    # otherwise the last pods would wait for pods that the Job never makes.
    left = int(completions) - succeeded - _indexes(job.status.get("failedIndexes") or "")
    return max(0, min(parallelism, left))


def _indexes(text: str) -> int:
    """Return how many indexes a list such as `1,3-5` has."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def finished(job: WorkloadObject) -> bool:
    """Return whether a Job is complete or has failed."""
    return has_condition(job, "Complete", "Failed")


def _kept_out(workload: WorkloadObject) -> str:
    return (
        scheduling_block(workload)
        or managed_by_other(workload, MANAGER)
        or template_kept_out(workload.spec.get("template") or {})
    )


def job_problems(
    spec: Mapping[str, Any], *, indexed: bool, restart: str
) -> Iterator[tuple[str, str]]:
    """Yield what kube-apiserver refuses in the spec of a Job: the field below it, and the text.

    Args:
        restart: The restartPolicy of its pods; empty: not set.

    Source:
        ValidateJobSpec in pkg/apis/batch/validation of Kubernetes 1.37.
    """
    policy = spec.get("podFailurePolicy")
    if restart not in ("", "Never", "OnFailure"):
        text = f"is {restart!r}; pods of a Job have Never or OnFailure"
        yield "template.spec.restartPolicy", text
    if policy and restart == "OnFailure":
        text = "needs restartPolicy Never, and it is OnFailure; change one of the two"
        yield "podFailurePolicy", text
    if policy and spec.get("podReplacementPolicy") == "TerminatingOrFailed":
        text = (
            "is TerminatingOrFailed; with podFailurePolicy it is Failed, which is the default then"
        )
        yield "podReplacementPolicy", text
    of_indexes = ("backoffLimitPerIndex", "successPolicy")
    for field in () if indexed else (each for each in of_indexes if spec.get(each) is not None):
        yield (
            field,
            "is for Indexed Jobs; set completionMode Indexed with completions, or remove it",
        )
    per_index, failed = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if failed is not None and per_index is None:
        yield "maxFailedIndexes", "needs backoffLimitPerIndex; set it, or remove maxFailedIndexes"
    if failed is not None and failed > number(spec, "completions", failed):
        text = f"is {failed}, more than completions, which is {spec['completions']}"
        yield "maxFailedIndexes", text
    actions = [rule.get("action") for rule in (policy or {}).get("rules") or ()]
    if "FailIndex" in actions and per_index is None:
        where = f"podFailurePolicy.rules[{actions.index('FailIndex')}].action"
        yield where, "is FailIndex, which needs backoffLimitPerIndex; set it, or take FailJob"


def _refusals(workload: WorkloadObject) -> Iterator[TreeRefusal]:
    """Yield a refusal for what Kubernetes refuses in a Job, also in files and in a CronJob."""
    yield from only_whole(workload)
    spec = workload.spec
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        text = f"is missing; with completionMode Indexed set it, to {number(spec, 'parallelism', 1)} for pods that run at once"
        yield refusal_of(workload, "InvalidField", "spec.completions", text)
    for field, text in job_problems(spec, indexed=indexed, restart=restart_policy(spec)):
        yield refusal_of(workload, "InvalidField", f"spec.{field}", text)


def _of_cronjob(cronjob: Mapping[str, Any]) -> HeldWorkload:
    """Return the Job that a CronJob makes when its time has come: labels of the CronJob itself do not reach it."""
    template = required(cronjob, "spec", "jobTemplate")
    metadata, spec = template.get("metadata") or {}, required(template, "spec")
    suspended = {"suspend": True} if cronjob["spec"].get("suspend") else {}
    return held_workload({**spec, **suspended}, metadata, metadata_at="spec.jobTemplate.metadata")


def old_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of Job and UID under their names without a prefix, which the Job controller still writes."""
    return {old: labels[key] for old, key in _OLD_LABELS.items() if key in labels}


def _pod_labels(
    workload: WorkloadObject, labels: Mapping[str, str], _leaf: Leaf, number_: int
) -> Mapping[str, str]:
    """Return the labels of a pod; with its index while none of them has ended, after which it is another one."""
    indexed = workload.spec.get("completionMode") == "Indexed"
    ended = number(workload.status, "succeeded", 0) or number(workload.status, "failed", 0)
    index = {INDEX_LABEL: str(number_)} if indexed and not ended else {}
    return {**labels, **index, **old_labels(labels)}


JOB_FIELDS: Mapping[str, Any] = {
    "parallelism": PodCount,
    "completions": Count,
    "completionMode": Literal["Indexed", "NonIndexed"],
    "backoffLimit": Count,
    "backoffLimitPerIndex": Count,
    "maxFailedIndexes": Count,
    "podFailurePolicy": {
        "rules": [{"action": Required[Literal["Count", "FailIndex", "FailJob", "Ignore"]]}]
    },
    "podReplacementPolicy": Literal["Failed", "TerminatingOrFailed"],
    "successPolicy": dict[str, Any],
    "suspend": bool,
    "managedBy": str,
    "scheduling": dict[str, Any],
    "template": TEMPLATE_FIELDS,
}

JOB = WorkloadKind(
    kind="Job",
    group="batch",
    versions=("v1",),
    plural="jobs",
    spec_type=fields_type("JobSpec", JOB_FIELDS),
    name_rules=(
        NameRule(
            when=(),
            head=LabelValue(key=NAME_LABEL),
            rest=("-", LabelValue(key=UID_LABEL, first=UID_PIECE)),
        ),
    ),
    name_label=NAME_LABEL,
    uid_label=UID_LABEL,
    pod_labels=_pod_labels,
    template_paths=("spec.template",),
    part_of=("JobSet", "MPIJob"),
    manager=MANAGER,
    holders={"CronJob": _of_cronjob},
    parts=_parts,
    finished=finished,
    suspended=is_suspended,
    refusals=_refusals,
    kept_out=_kept_out,
    native_parts=lambda _, __: (),
)
