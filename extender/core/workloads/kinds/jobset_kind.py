"""JobSet: a root gang over its ReplicatedJobs; below them a leaf per Job, or one for all Jobs of a single pod.

Source: jobset.x-k8s.io/v1alpha2 of JobSet v0.12.0. With `dependsOn` or the start-up order InOrder the controller makes
the Jobs of a later step when the earlier one is ready or complete, so a gang over all of them could never start: the
root is Basic then, and each step is a gang of its own.

The groups that JobSet makes itself from `spec.scheduling` are those of KEP-969 (keps/969-WAS-integration of JobSet, not
released): one PodGroup for the whole JobSet, or one for the ReplicatedJobs of each entry of `replicatedJobs`, or with
`job` one for each Job. A JobSet that starts in steps has one for each ReplicatedJob. There is no composite above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Required

from msgspec.structs import replace

from extender.core.model.pod_groups import CHILDREN_MAX
from extender.core.workloads.kinds.job_kind import INDEX_LABEL as PODJOB_INDEX_LABEL
from extender.core.workloads.kinds.job_kind import (
    JOB_FIELDS,
    all_at_once,
    job_problems,
    old_labels,
    pods_at_once,
    restart_policy,
)
from extender.core.workloads.kinds.job_kind import NAME_LABEL as JOB_NAME_LABEL
from extender.core.workloads.name_rules import LabelCondition, LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, Observed, Part, PartStep
from extender.core.workloads.tree_policy import (
    InvalidPolicy,
    TreePolicy,
    TreeRefusal,
    is_label_key,
    not_a_key,
    refusal_of,
)
from extender.core.workloads.workload_kind import (
    METADATA_FIELDS,
    PODS_MAX,
    RESOURCE_FIELDS,
    UID_PIECE,
    Notice,
    PodCount,
    RuntimePatch,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    has_condition,
    is_suspended,
    managed_by_other,
    number,
    scheduling_block,
    template_kept_out,
    template_label,
)
from extender.core.workloads.workload_object import EXCLUSIVE_ANNOTATION, LEAF_LABEL, WorkloadObject
from extender.core.workloads.workload_templates import TemplateUse, templated_roots

PREFIX = "jobset.sigs.k8s.io"
NAME_LABEL = f"{PREFIX}/jobset-name"
JOB_INDEX_LABEL = f"{PREFIX}/job-index"
MANAGER = "jobset.sigs.k8s.io/jobset-controller"
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"  # on the ReplicatedJobs of a TrainJob
INITIALIZERS = ("dataset-initializer", "model-initializer")

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"  # another way of the same
NAMESPACED_JOB = "alpha.jobset.sigs.k8s.io/namespaced-job"  # the label of such nodes
NO_SCHEDULE = "alpha.jobset.sigs.k8s.io/no-schedule"  # their taint

ReplicatedJob = Mapping[str, Any]
PER_JOB, PER_REPLICATED_JOB = "job", "replicated-job"  # values of LEAF_LABEL


def _parts(workload: WorkloadObject, policy: TreePolicy, observed: Observed) -> WorkloadParts:
    finished = {use.name: use.finished for use in observed.uses}
    jobs = [job for job in replicated_jobs(workload) if number(job, "replicas", 1) > 0]
    parts = {job["name"]: _part(workload, job, policy, finished) for job in jobs}
    notices = list(_notices(workload, jobs))
    steps = steps_of(workload, jobs)
    if policy.workload:
        named = {job["name"]: parts.get(job["name"]) for job in replicated_jobs(workload)}
        step_of = {job["name"]: at for at, step in enumerate(steps or ()) for job in step}
        use = TemplateUse(
            workload=workload,
            name=policy.workload,
            templates=observed.templates,
            parts=named,
            step_of=step_of,
            name_of=lambda template: group_name(workload, template),
        )
        roots = templated_roots(use)
        if steps is not None:
            roots = with_steps(workload, roots, parts)
        return WorkloadParts(roots=roots, notices=tuple(notices))
    root_name = group_name(workload)
    children, minimum = _children(workload, steps, parts, policy)
    if steps is not None and policy.gang == "all" and len(steps) > 1:
        text = (
            f"{workload} starts its ReplicatedJobs one after the other, so each step is a gang of its own; "
            "capacity for later steps is not reserved"
        )
        notices.append(Notice(reason="SequencedStart", message=text))
    if not children:
        return WorkloadParts(roots=(), notices=tuple(notices))
    single = len(replicated_jobs(workload)) == 1
    if single and not _needs_root(root_name, children[0], policy, observed):
        return WorkloadParts(roots=children, notices=tuple(notices))
    root = Composite(
        name=root_name, role="", children=children, minimum=minimum, one_by_one=is_one_by_one(jobs)
    )
    roots = (root,) if steps is None else with_steps(workload, (root,), parts)
    return WorkloadParts(roots=roots, notices=tuple(notices))


def _children(
    workload: WorkloadObject,
    steps: list[list[ReplicatedJob]] | None,
    parts: Mapping[str, Part | None],
    policy: TreePolicy,
) -> tuple[tuple[Part, ...], int]:
    """Return the parts below the root of a JobSet, and how many of them are placed together."""
    if steps is not None:
        return tuple(step_parts(workload, steps, parts, policy)), BASIC
    children = tuple(part for part in parts.values() if part is not None)
    return children, len(children) if policy.gang == "all" else BASIC


def _needs_root(name: str, only: Part, policy: TreePolicy, observed: Observed) -> bool:
    """Return whether a composite is above the only part of a JobSet.

    It is where a tree was made with it before, or where the leaf has a topology of its own besides that of the root.
    """
    was_made = ("CompositePodGroup", name) in ((g.kind, g.name) for g in observed.existing)
    both = bool(policy.root.topology and policy.leaf.topology)
    return was_made or (both and isinstance(only, Leaf) and only.most > 1)


def _part(
    workload: WorkloadObject, job: ReplicatedJob, policy: TreePolicy, finished: Mapping[str, int]
) -> Part | None:
    """Return the part of a ReplicatedJob; None when all its Jobs are finished."""
    spec = job_spec(job)
    name, replicas, most = job["name"], number(job, "replicas", 1), pods_at_once(spec)
    if most == 0:
        return None
    if _leaf_label(job) == PER_REPLICATED_JOB:
        gang = all_at_once(spec) and policy.gang != "per-job" and not is_initializer(job)
        first = pod_template(workload, job, 0)
        leaf = _leaf(group_name(workload, name), name, replicas * most, finished, first, gang=gang)
        if leaf is not None:
            leaf = replace(leaf, job_pods=most)
        if leaf is None or pod_template(workload, job, replicas - 1) == first:
            return leaf
        if replicas * most > PODS_MAX:
            text = (
                f"{replicas * most} pods with a node selector for each Job ({NODE_SELECTOR}), at most {PODS_MAX} are "
                "possible; make it several ReplicatedJobs"
            )
            raise _too_many(workload, name, text)
        templates = (pod_template(workload, job, index) for index in range(replicas))
        of_pods = tuple(template for template in templates for _ in range(most))
        return replace(leaf, leading=of_pods)
    gang = all_at_once(spec) and not is_initializer(job)
    if replicas > CHILDREN_MAX:
        text = (
            f"{replicas} Jobs would be {replicas} groups, at most {CHILDREN_MAX} are allowed; write the "
            f"label {LEAF_LABEL}: {PER_REPLICATED_JOB} into its pod template to make all its pods one group"
        )
        raise _too_many(workload, name, text)
    names = [group_name(workload, name, str(index)) for index in range(replicas)]
    leaves = [
        _leaf(leaf_name, "", most, finished, pod_template(workload, job, index), gang=gang)
        for index, leaf_name in enumerate(names)
    ]
    left = tuple(
        replace(leaf, job_pods=most, job_index=index)
        for index, leaf in enumerate(leaves)
        if leaf is not None
    )
    if not left:
        return None
    if replicas == 1:
        return replace(left[0], role=name)
    return Composite(
        name=group_name(workload, name),
        role=name,
        children=left,
        minimum=BASIC if policy.gang == "per-job" else len(left),
        most=replicas,
    )


def _too_many(workload: WorkloadObject, name: str, text: str) -> InvalidPolicy:
    field = f"spec.replicatedJobs[{name}].replicas"
    return InvalidPolicy(refusal_of(workload, "TooManyGroups", field, text))


def _leaf(
    name: str,
    role: str,
    most: int,
    finished: Mapping[str, int],
    template: Mapping[str, Any],
    *,
    gang: bool,
) -> Leaf | None:
    pods = most - finished.get(name, 0)
    if pods <= 0:
        return None
    minimum = pods if gang else BASIC
    return Leaf(name=name, role=role, pods=pods, most=most, minimum=minimum, template=template)


def _leaf_label(job: ReplicatedJob) -> str:
    """Return what one leaf holds, as the pods have it: the name rule goes by the same label."""
    return template_label(job_spec(job).get("template") or {}, LEAF_LABEL) or PER_JOB


def _stamped(job: ReplicatedJob) -> str:
    """Return the leaf label for the pod template of a ReplicatedJob; the twin of `leaf_label_cel`."""
    single = number(job_spec(job), "parallelism", 1) <= 1
    return PER_REPLICATED_JOB if single or number(job, "replicas", 1) > CHILDREN_MAX else PER_JOB


def _notices(workload: WorkloadObject, jobs: Iterable[ReplicatedJob]) -> Iterable[Notice]:
    for job in jobs:
        spec, subject = job_spec(job), f"{workload}: ReplicatedJob {job['name']}"
        if number(job, "replicas", 1) > CHILDREN_MAX and number(spec, "parallelism", 1) > 1:
            text = f"{job.get('replicas')} Jobs, more than {CHILDREN_MAX} groups: all its pods are one group"
            yield Notice(reason="CoarserLeaves", message=f"{subject} has {text}")
        counts = spec.get("parallelism"), spec.get("completions")
        if counts[0] is not None and counts[1] is None and _is_indexed(spec):
            text = (
                "has no completions: JobSet makes its Jobs Indexed, and Kubernetes refuses an Indexed Job without, so it has "
                f"no pods; set completions: {counts[0]}, or completionMode: NonIndexed"
            )
            yield Notice(reason="CompletionsMissing", message=f"{subject} {text}")
        if not all_at_once(spec):
            text = f"{number(spec, 'parallelism', 1)} at a time: they are placed one by one"
            message = f"{subject} runs {spec.get('completions')} pods, {text}"
            yield Notice(reason="NotAllAtOnce", message=message)


def _is_indexed(spec: Mapping[str, Any]) -> bool:
    """Return whether the Jobs are Indexed; JobSet's webhook makes them so where nothing is set."""
    return (spec.get("completionMode") or "Indexed") == "Indexed"


# --- ReplicatedJobs, and which of them start together: `dependsOn` and the start-up order InOrder


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


def job_annotations(job: ReplicatedJob) -> Mapping[str, str]:
    """Return the annotations of the Jobs of a ReplicatedJob."""
    return ((job.get("template") or {}).get("metadata") or {}).get("annotations") or {}


def pod_template(workload: WorkloadObject, job: ReplicatedJob, index: int) -> Mapping[str, Any]:
    """Return the pod template of one Job of a ReplicatedJob, with what JobSet adds for its placement.

    Source: `constructJob` of JobSet v0.12.0: with the annotations for exclusive placement by node selector, a Job runs on
    nodes that carry its name, and that have a taint against all other pods.
    """
    template: Mapping[str, Any] = job_spec(job).get("template") or {}
    of_set = workload.annotations if EXCLUSIVE in workload.annotations else {}
    if not {EXCLUSIVE, NODE_SELECTOR} <= {*job_annotations(job), *of_set}:
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
        after = ((on.get("name", ""), on.get("status", "")) for on in job.get("dependsOn") or ())
        steps.setdefault(frozenset(after), []).append(job)
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
        replace(
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
        before: list[dict[str, bool]] = [{}, *({str(job["name"]): False} for job in jobs)]
        return {job["name"]: last for job, last in zip(jobs, before, strict=False)}
    return {
        job["name"]: {
            on["name"]: on.get("status") == "Complete"
            for on in job.get("dependsOn") or ()
            if on.get("name") in job_names
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
    return replace(part, children=children, steps=steps)


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


# --- refusals


def _refusals(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    yield from _exclusive_topology(workload)
    yield from _impossible_order(workload)
    # Kubernetes refuses the Jobs of a ReplicatedJob, so that JobSet never makes them
    for index, job in enumerate(replicated_jobs(workload)):
        spec = job_spec(job)
        restart = restart_policy(spec) or "OnFailure"  # as the webhook of JobSet sets it
        for field, text in job_problems(spec, indexed=_is_indexed(spec), restart=restart):
            path = f"spec.replicatedJobs[{index}].template.spec.{field}"
            yield refusal_of(workload, "InvalidField", path, text)


def _impossible_order(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    """Yield a refusal where a ReplicatedJob waits for one that does not start before it.

    The webhook of JobSet refuses all of these but a ReplicatedJob that waits for itself, which has no pods ever.
    """
    in_order = (workload.spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    before: list[str] = []
    for index, job in enumerate(replicated_jobs(workload)):
        field = f"spec.replicatedJobs[{index}].dependsOn"
        for dependency in job.get("dependsOn") or ():
            text = ""
            if in_order:
                text = "cannot be combined with startupPolicyOrder InOrder; remove one of the two"
            elif dependency.get("name") not in before:
                earlier = f", which are {', '.join(before)}" if before else ", and there are none"
                text = f"{dependency.get('name')!r} is not one of the ReplicatedJobs listed before {job['name']}{earlier}"
            if text:
                yield refusal_of(workload, "InvalidField", field, text)
        before.append(job["name"])


def _exclusive_level(workload: WorkloadObject) -> str:
    """Return the level of our annotation that gives each Job a domain alone; empty: none does, or all pods are there at once."""
    if NODE_SELECTOR in workload.annotations or _in_one_leaf(workload) or _of_one_pod(workload):
        return ""
    return "leaf"


def _of_one_pod(workload: WorkloadObject) -> bool:
    """Return whether no Job has more than one pod, so that no leaf gets a domain; the twin of `_OF_ONE_POD_CEL`."""
    return all(number(job_spec(job), "parallelism", 1) <= 1 for job in replicated_jobs(workload))


def _in_one_leaf(workload: WorkloadObject) -> list[str]:
    """Return the names of the ReplicatedJobs of which one leaf has the pods of several Jobs; the twin of `_IN_ONE_LEAF_CEL`."""
    return [
        job["name"]
        for job in replicated_jobs(workload)
        if number(job, "replicas", 1) > 1
        and (template_label(job_spec(job).get("template") or {}, LEAF_LABEL) or _stamped(job))
        == PER_REPLICATED_JOB
    ]


def _exclusive_topology(workload: WorkloadObject) -> Iterable[TreeRefusal]:
    """Yield a refusal where the webhook of JobSet rejects all pods but the first of a Job until that one has a node.

    The admission policy replaces the annotation of a JobSet where `_exclusive_level` has a level.
    """
    of_jobs = (
        (f"spec.replicatedJobs[{index}].template.metadata", job_annotations(job))
        for index, job in enumerate(replicated_jobs(workload))
    )
    for place, own in (("metadata", workload.annotations), *of_jobs):
        key = own.get(EXCLUSIVE)
        if key and NODE_SELECTOR not in own:
            field = f"{place}.annotations[{EXCLUSIVE}]"
            instead = f"{EXCLUSIVE_ANNOTATION}: leaf={key}"
            if several := _in_one_leaf(workload):
                instead = f"a required podAntiAffinity in the pod template of {', '.join(several)}, whose Jobs are one group,"
            text = (
                f"{key!r}: JobSet makes the other pods of a Job only when its first pod has a "
                f"node, so no gang of them can start; use {instead} instead, or add {NODE_SELECTOR}"
            )
            if not is_label_key(key):
                text = not_a_key(key)
            elif not several and _of_one_pod(workload):
                text = (
                    f"{key!r}: only Jobs with more than one pod get a domain alone, and each Job has one pod; use a "
                    f"required podAntiAffinity in the pod templates instead, or add {NODE_SELECTOR}"
                )
            yield refusal_of(workload, "ExclusiveTopology", field, text)


def _kept_out(workload: WorkloadObject) -> str:
    for job in replicated_jobs(workload):
        if reason := template_kept_out(job_spec(job).get("template") or {}):
            return f"ReplicatedJob {job.get('name')}: {reason}"
    return scheduling_block(workload) or managed_by_other(workload, MANAGER)


_UID = ("-", LabelValue(key=f"{PREFIX}/jobset-uid", first=UID_PIECE))
_REPLICATED_JOB = ("-", LabelValue(key=f"{PREFIX}/replicatedjob-name"))


def _pod_labels(
    workload: WorkloadObject, labels: Mapping[str, str], leaf: Leaf, number_: int
) -> Mapping[str, str]:
    """Return the labels of a pod with those of its Job.

    Without the name of the Job where a leaf has the pods of several, and without the index of the pod in it once some
    have ended.
    """
    keys = (NAME_LABEL, f"{PREFIX}/replicatedjob-name", JOB_INDEX_LABEL)
    parts = [labels.get(key) for key in keys]
    job = {JOB_NAME_LABEL: "-".join(map(str, parts))} if all(parts) else {}
    specs = (job_spec(j) for j in replicated_jobs(workload) if j["name"] == parts[1])
    spec = next(specs, {})
    at_once = pods_at_once(spec)
    index = {}
    if at_once and _is_indexed(spec) and leaf.pods == leaf.most:
        index = {PODJOB_INDEX_LABEL: str(number_ % at_once)}
    return {**labels, **job, **index, **old_labels(job)}


def _native_parts(workload: WorkloadObject, policy: TreePolicy) -> tuple[Part, ...]:
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
        parts[name] = _native_leaf(name, name, [job], block)
    children, minimum = _children(workload, steps, parts, policy)
    if not children:
        return ()
    return (Composite(name=group_name(workload), role="", children=children, minimum=minimum),)


def _part_of_entry(
    workload: WorkloadObject,
    entry: Mapping[str, Any],
    targets: list[ReplicatedJob],
    policy: TreePolicy,
) -> Part:
    first = targets[0]
    name, of_job = str(first["name"]), entry.get("job")
    if of_job is None:
        joined = "-".join(str(job["name"]) for job in targets)
        return _native_leaf(joined, joined, targets, entry)
    leaves = tuple(
        _native_leaf(f"{name}-{index}", "", [first], of_job)
        for index in range(number(first, "replicas", 1))
    )
    if len(leaves) == 1:
        return leaves[0]
    minimum = BASIC if policy.gang == "per-job" else len(leaves)
    return Composite(name=group_name(workload, name), role=name, children=leaves, minimum=minimum)


def _native_leaf(
    template: str, role: str, jobs: list[ReplicatedJob], settings: Mapping[str, Any]
) -> Leaf:
    """Return the leaf of a group; its own minimum and topology are its controller's."""
    templates = [job_spec(job).get("template") or {} for job in jobs]
    pods = sum(number(job, "replicas", 1) * pods_at_once(job_spec(job)) for job in jobs)
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


_LEAF_LABEL_CEL = (
    "(!has(item.template.spec.parallelism) || item.template.spec.parallelism <= 1"
    f" || (has(item.replicas) && item.replicas > {CHILDREN_MAX})) ? '{PER_REPLICATED_JOB}' : '{PER_JOB}'"
)
_OF_ONE_POD_CEL = (
    "!variables.templates.exists(t,"
    " has(t.item.template.spec.parallelism) && t.item.template.spec.parallelism > 1)"
)
_IN_ONE_LEAF_CEL = (
    f"variables.templates.exists(t, has(t.item.replicas) && t.item.replicas > 1 && ('{LEAF_LABEL}' in t.labels && t.labels['{LEAF_LABEL}'] != ''"
    f" ? t.labels['{LEAF_LABEL}'] == '{PER_REPLICATED_JOB}'"
    f" : [t.item].exists(item, ({_LEAF_LABEL_CEL}) == '{PER_REPLICATED_JOB}')))"
)


_REPLICATED_JOB_FIELDS: Mapping[str, Any] = {
    "name": Required[str],
    "replicas": PodCount,
    "template": {"metadata": METADATA_FIELDS, "spec": JOB_FIELDS},
    "dependsOn": [{"name": Required[str], "status": Required[Literal["Ready", "Complete"]]}],
}

JOBSET = WorkloadKind(
    kind="JobSet",
    group="jobset.x-k8s.io",
    versions=("v1alpha2",),
    plural="jobsets",
    spec_type=fields_type(
        "JobSetSpec",
        {
            "replicatedJobs": [_REPLICATED_JOB_FIELDS],
            "startupPolicy": {"startupPolicyOrder": Literal["AnyOrder", "InOrder"]},
            "suspend": bool,
            "managedBy": str,
            "scheduling": dict[str, Any],
        },
    ),
    name_rules=(
        NameRule(
            when=(LabelCondition(key=LEAF_LABEL, value=PER_REPLICATED_JOB),),
            head=LabelValue(key=NAME_LABEL),
            rest=(*_REPLICATED_JOB, *_UID),
        ),
        NameRule(
            when=(),
            head=LabelValue(key=NAME_LABEL),
            rest=(*_REPLICATED_JOB, "-", LabelValue(key=JOB_INDEX_LABEL), *_UID),
        ),
    ),
    name_label=NAME_LABEL,
    uid_label=f"{PREFIX}/jobset-uid",
    pod_labels=_pod_labels,
    template_paths=("spec.replicatedJobs[].template.spec.template",),
    leaf_label=_stamped,
    leaf_label_cel=_LEAF_LABEL_CEL,
    exclusive_annotation=EXCLUSIVE,
    exclusive_level=_exclusive_level,
    exclusive_level_cel=f"'{NODE_SELECTOR}' in variables.annotations || {_OF_ONE_POD_CEL} || {_IN_ONE_LEAF_CEL} ? '' : 'leaf'",
    policy_from=("TrainJob",),
    manager=MANAGER,
    gang_modes=("all", "per-replicated-job", "per-job"),
    parts=_parts,
    finished=lambda workload: has_condition(workload, "Completed", "Failed"),
    suspended=is_suspended,
    refusals=_refusals,
    kept_out=_kept_out,
    native_parts=_native_parts,
)


# --- TrainJob: its JobSet is compiled, with its annotations; it owns the groups


TRAINJOB_MANAGER = "trainer.kubeflow.org/trainjob-controller"


TRAINJOB = WorkloadKind(
    kind="TrainJob",
    group="trainer.kubeflow.org",
    versions=("v1alpha1",),
    plural="trainjobs",
    manager=TRAINJOB_MANAGER,
    label_patch=RuntimePatch(
        field="runtimePatches",
        key="manager",
        path=("trainingRuntimeSpec", "template", "metadata", "labels"),
    ),
    gang_modes=("all", "per-replicated-job", "per-job"),  # of its JobSet
    parts=None,
    spec_type=fields_type(
        "TrainJobSpec",
        {
            "runtimeRef": {"name": str, "kind": str, "apiGroup": str},
            "trainer": {"numNodes": PodCount, "resourcesPerNode": RESOURCE_FIELDS},
            "runtimePatches": list[dict[str, Any]],
            "suspend": bool,
            "managedBy": str,
        },
    ),
    finished=lambda workload: has_condition(workload, "Complete", "Failed"),
    suspended=is_suspended,
    kept_out=lambda workload: managed_by_other(workload, TRAINJOB_MANAGER),
)
