"""The JobSet that Kubeflow Trainer makes from a TrainJob and its runtime, for a plan before the TrainJob is submitted.

Source: v2.3.0, `pkg/runtime/core/trainingruntime.go` (patches, resources), `pkg/runtime/framework/plugins` (number of nodes,
`jobset` for the rest). Images, commands, ports and variables of the trainer affect no placement and stay as in the runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from extender.core.model.errors import BadInput
from extender.core.workloads.kinds.jobset_kind import INITIALIZERS, STEP_LABEL
from extender.core.workloads.workload_kind import number, template_label
from extender.core.workloads.workload_object import (
    PATCH_MANAGER,
    TREE_LABEL,
    WorkloadObject,
    controller_reference,
)

GROUP = "trainer.kubeflow.org"
RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")  # the first one is the default
TRAINER = "trainer"  # value of STEP_LABEL
NODE = "node"  # the container of the trainer; with MPI also the ReplicatedJob that runs the ranks
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"

_Fields = Mapping[str, Any]  # of a patch: None, or the fields of what is in the field

_CONTAINER: _Fields = dict.fromkeys(("name", "env", "volumeMounts", "securityContext"))
_POD: _Fields = {
    **dict.fromkeys(
        (
            "serviceAccountName", "volumes", "imagePullSecrets", "securityContext", "nodeSelector", "affinity",
            "tolerations", "schedulingGates", "terminationGracePeriodSeconds",
        )
    ),
    "initContainers": _CONTAINER,
    "containers": _CONTAINER,
}  # fmt: skip
_TEMPLATE: _Fields = {"metadata": None, "spec": {"template": {"metadata": None, "spec": _POD}}}
_PATCH: _Fields = {
    "manager": None,
    "time": None,
    "trainingRuntimeSpec": {
        "template": {
            "metadata": None,
            "spec": {"replicatedJobs": {"name": None, "template": _TEMPLATE}},
        }
    },
}
_MERGE_KEYS = {  # lists that a strategic merge patch merges by a field of the items; it replaces others
    **dict.fromkeys(
        (
            "replicatedJobs", "containers", "initContainers", "env", "volumes", "imagePullSecrets", "schedulingGates",
            "claims",
        ),
        "name",
    ),
    "volumeMounts": "mountPath",
}  # fmt: skip


class RuntimeName(msgspec.Struct, frozen=True, kw_only=True):
    """Which runtime a TrainJob names."""

    kind: str  # one of RUNTIME_KINDS
    namespace: str  # empty: the kind has no namespaces
    name: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)

    @property
    def command(self) -> str:
        """Return the command that prints the runtime of a cluster."""
        space = f" -n {self.namespace}" if self.namespace else ""
        return f"kubectl get {self.kind.lower()} {self.name}{space} -o yaml"


def runtime_of(trainjob: WorkloadObject) -> RuntimeName:
    """Return which runtime a TrainJob names.

    Raises:
        BadInput: It names none, or one of a kind that Trainer does not have.
    """
    ref = trainjob.spec.get("runtimeRef") or {}
    name, kind = ref.get("name") or "", ref.get("kind") or RUNTIME_KINDS[0]
    if not name:
        raise BadInput("spec.runtimeRef.name: is missing; name a ClusterTrainingRuntime")
    if (group := ref.get("apiGroup") or GROUP) != GROUP:
        raise BadInput(f"spec.runtimeRef.apiGroup: {group!r} is not {GROUP}")
    if kind not in RUNTIME_KINDS:
        raise BadInput(f"spec.runtimeRef.kind: {kind!r} is none of {', '.join(RUNTIME_KINDS)}")
    namespace = "" if kind == RUNTIME_KINDS[0] else trainjob.namespace
    return RuntimeName(kind=kind, namespace=namespace, name=name)


def jobset_of(trainjob: WorkloadObject, runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JobSet that Trainer makes, without UID.

    Args:
        trainjob: The TrainJob; our admission policy writes its tree label into it as a patch.
        runtime: `spec` of its runtime.

    Raises:
        BadInput: Trainer would refuse the TrainJob, or ignore a field that is set.
    """
    _check_patches(trainjob, runtime)
    template = copy.deepcopy(dict(runtime.get("template") or {}))
    patches = [
        (entry.get("trainingRuntimeSpec") or {}).get("template") or {}
        for entry in (*(trainjob.spec.get("runtimePatches") or ()), *_label_patches(trainjob))
    ]
    metadata = template.get("metadata") or {}
    spec = template.get("spec") or {}
    for patch in patches:
        metadata = _merged(metadata, patch.get("metadata") or {})
        spec = _merged(spec, patch.get("spec") or {})
    jobs = spec.get("replicatedJobs") or []
    counts = _counts(trainjob, runtime, jobs)
    coscheduled = (runtime.get("podGroupPolicy") or {}).get("coscheduling") is not None
    for job, count in zip(jobs, counts, strict=True):
        _finish(trainjob, runtime, job, count)
        if coscheduled:
            pod, labels = job["template"]["spec"]["template"], {COSCHEDULING_LABEL: trainjob.name}
            pod["metadata"] = _merged(pod.get("metadata") or {}, {"labels": labels})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": trainjob.name,
            "namespace": trainjob.namespace,
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [controller_reference(trainjob)],
        },
        "spec": {**spec, "suspend": bool(trainjob.spec.get("suspend"))},
    }


def _label_patches(trainjob: WorkloadObject) -> Iterable[Mapping[str, Any]]:
    """Yield the patch that our admission policy adds when a TrainJob with the label is created."""
    label = trainjob.labels.get(TREE_LABEL)
    patches = trainjob.spec.get("runtimePatches") or ()
    if label is not None and all(patch.get("manager") != PATCH_MANAGER for patch in patches):
        template = {"metadata": {"labels": {TREE_LABEL: label}}}
        yield {"manager": PATCH_MANAGER, "trainingRuntimeSpec": {"template": template}}


def _counts(
    trainjob: WorkloadObject, runtime: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
) -> list[int]:
    policy, nodes = runtime.get("mlPolicy"), (trainjob.spec.get("trainer") or {}).get("numNodes")
    mpi = (policy or {}).get("mpi")
    counts, of_nodes = [], None
    for at, job in enumerate(jobs):
        trains = _step(job) == TRAINER
        count = number((job.get("template") or {}).get("spec") or {}, "parallelism", 1)
        if trains and policy is not None:
            count = number(policy, "numNodes", 1)
        if of_nodes is None and (trains if mpi is None else job.get("name") == NODE):
            of_nodes = at
        counts.append(max(count, 1))
    if nodes is not None and of_nodes is not None:
        first = _launcher_is_node(runtime)
        counts[of_nodes] = max(nodes - 1, 1) if first else nodes
    return counts


def _finish(
    trainjob: WorkloadObject, runtime: Mapping[str, Any], job: dict[str, Any], count: int
) -> None:
    step = _step(job)
    spec = job.setdefault("template", {}).setdefault("spec", {})
    spec |= {"parallelism": count, "completions": count}
    job["replicas"] = 1 if step == TRAINER or step in INITIALIZERS else number(job, "replicas", 1)
    resources = (trainjob.spec.get("trainer") or {}).get("resourcesPerNode")
    trains = step == TRAINER and runtime.get("mlPolicy") is not None
    if not resources or not (trains or (_launcher_is_node(runtime) and job.get("name") == NODE)):
        return
    for container in _containers(job, "containers"):
        if container.get("name") == NODE:
            container["resources"] = _merged(container.get("resources") or {}, resources)
            return


def _launcher_is_node(runtime: Mapping[str, Any]) -> bool:
    """Return whether the launcher of MPI counts as one of the nodes."""
    mpi = (runtime.get("mlPolicy") or {}).get("mpi") or {}
    return bool(mpi.get("runLauncherAsNode"))


def _step(job: Mapping[str, Any]) -> str:
    return template_label(job.get("template") or {}, STEP_LABEL)


def _containers(job: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    pod = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
    return (pod.get("spec") or {}).get(field) or []


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for field, value in patch.items():
        old = merged.get(field)
        if value is None:
            continue  # the API server drops it
        if isinstance(value, Mapping):
            merged[field] = _merged(old or {}, value)
        elif isinstance(value, list) and (key := _MERGE_KEYS.get(field)):
            merged[field] = _merged_items(old or [], value, key)
        else:
            merged[field] = value
    return merged


def _merged_items(
    base: list[Mapping[str, Any]], patch: list[Mapping[str, Any]], key: str
) -> list[dict[str, Any]]:
    merged = {element.get(key): dict(element) for element in base}
    for item in patch:
        merged[item.get(key)] = _merged(merged.get(item.get(key), {}), item)
    return list(merged.values())


# --- refusals


def _check_patches(trainjob: WorkloadObject, runtime: Mapping[str, Any]) -> None:
    """Raise BadInput for a patch that Trainer refuses, or whose field the API server drops."""
    for field in ("podTemplateOverrides", "podSpecOverrides"):
        if trainjob.spec.get(field):
            raise BadInput(f"spec.{field}: Trainer v2.3 has no such field; use spec.runtimePatches")
    spec = (runtime.get("template") or {}).get("spec") or {}
    jobs = {job.get("name"): job for job in spec.get("replicatedJobs") or ()}
    for at, patch in enumerate(trainjob.spec.get("runtimePatches") or ()):
        place = f"spec.runtimePatches[{at}]"
        _check_fields(patch, _PATCH, place)
        template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        for job in (template.get("spec") or {}).get("replicatedJobs") or ():
            name = job.get("name")
            if name not in jobs:
                job_names = ", ".join(map(str, jobs))
                text = f"the runtime has no ReplicatedJob {name!r}; it has {job_names}"
                raise BadInput(f"{place}.trainingRuntimeSpec.template.spec.replicatedJobs: {text}")
            for field in ("initContainers", "containers"):
                names = [container.get("name") for container in _containers(jobs[name], field)]
                for container in _containers(job, field):
                    if container.get("name") not in names:
                        text = (
                            f"ReplicatedJob {name} of the runtime has no container "
                            f"{container.get('name')!r} in {field}; it has {', '.join(map(str, names)) or 'none'}"
                        )
                        raise BadInput(f"{place}.trainingRuntimeSpec.template.spec: {text}")


def _check_fields(value: object, fields: _Fields, place: str) -> None:
    if isinstance(value, list):
        for at, item in enumerate(value):
            _check_fields(item, fields, f"{place}[{at}]")
    elif isinstance(value, Mapping):
        for field, inner in value.items():
            if field not in fields:
                text = f"Trainer v2.3 cannot patch this field, only {', '.join(sorted(fields))}; set it in the runtime"
                raise BadInput(f"{place}.{field}: {text}")
            if fields[field] is not None:
                _check_fields(inner, fields[field], f"{place}.{field}")
