"""Jobs of Kubeflow v1 and MPIJob: a root gang over their replica types, a leaf for each.

Source: kubeflow.org/v1 of training-operator v1.9.3, kubeflow.org/v2beta1 of mpi-operator v0.8.0. Their pods have the name of
the job and no UID of it, so the name of the kind is in those of the groups. The launcher of an MPIJob is the pod of a
Job, which has the labels of both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from extender.core.model.message_formatting import did_you_mean
from extender.core.workloads.name_rules import LabelCondition, LabelValue, NameRule, joined_name
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, PartStep
from extender.core.workloads.tree_policy import TreeRefusal, refusal_of
from extender.core.workloads.workload_kind import (
    TEMPLATE_FIELDS,
    Count,
    Notice,
    PodCount,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    has_condition,
    managed_by_other,
    number,
    only_whole,
    template_kept_out,
)
from extender.core.workloads.workload_object import WorkloadObject

PREFIX: Final = "training.kubeflow.org"
NAME_LABEL: Final = f"{PREFIX}/job-name"
OPERATOR_LABEL: Final = f"{PREFIX}/operator-name"
REPLICA_TYPE_LABEL: Final = f"{PREFIX}/replica-type"
ROLE_LABEL: Final = f"{PREFIX}/job-role"
REPLICA_INDEX_LABEL: Final = f"{PREFIX}/replica-index"
MANAGER_PATH: Final = ("runPolicy", "managedBy")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # DNS-1035, of a Service
_FIRST: Final = {"MPIJob": "Launcher", "PyTorchJob": "Master", "XGBoostJob": "Master"}  # one pod

# In workers of a PyTorchJob that has a master (`initContainerTemplate` in pkg/controller.v1/pytorch).
_WAITS_FOR_MASTER: Final[Mapping[str, Any]] = {
    "name": "init-pytorch",
    "resources": {
        "requests": {"cpu": "50m", "memory": "10Mi"},
        "limits": {"cpu": "100m", "memory": "20Mi"},
    },
}


class _Framework(msgspec.Struct, frozen=True, kw_only=True):
    """What one of these kinds has in its own way."""

    kind: str
    field: str  # of spec: the replica types
    roles: tuple[str, ...]  # the replica types, the first pods first
    operator: str  # value of OPERATOR_LABEL
    manager: str = "kubeflow.org/training-operator"
    version: str = "v1"
    role_label: str = REPLICA_TYPE_LABEL
    worker_default: int = 1  # replicas of workers that have no number
    elastic: bool = False  # has elasticPolicy
    container: str = ""  # that each template has, by this name

    @property
    def piece(self) -> str:
        """Return what is behind the name of the job in the names of its groups."""
        return f"-{self.kind.lower()}"

    def replicas(self, workload: WorkloadObject) -> dict[str, Mapping[str, Any]]:
        """Return what the workload has for each of the replica types, the first pods first."""
        types = workload.spec.get(self.field) or {}
        return {role: types[role] for role in self.roles if types.get(role) is not None}

    def pod_labels(
        self, _workload: WorkloadObject, labels: Mapping[str, str], leaf: Leaf, number_: int
    ) -> Mapping[str, str]:
        """Return the labels of a pod, with those that name the operator, the replica type and the number.

        Source:
            `createNewPod` of training-operator, `newWorker` and `newLauncherPodTemplate` of mpi-operator.
        """
        own = {**labels, OPERATOR_LABEL: self.operator, self.role_label: leaf.role}
        return own if leaf.role == "launcher" else {**own, REPLICA_INDEX_LABEL: str(number_)}

    def pod_name(self, workload: WorkloadObject, labels: Mapping[str, str]) -> str:
        """Return the name of a pod; empty for a launcher, which is the pod of a Job.

        Source:
            `GenGeneralName` of training-operator, `workerName` of mpi-operator.
        """
        index = labels.get(REPLICA_INDEX_LABEL)
        role = labels.get(self.role_label, "")
        return f"{workload.name}-{role}-{index}" if index is not None else ""

    def kept_out(self, workload: WorkloadObject) -> str:
        """Return why the pods of a workload are scheduled by something else, or an empty string."""
        for role, replicas in self.replicas(workload).items():
            if reason := template_kept_out(replicas.get("template") or {}):
                return f"{role}: {reason}"
        return managed_by_other(workload, self.manager, MANAGER_PATH)


def _leaves(framework: _Framework, workload: WorkloadObject) -> Iterator[Leaf]:
    statuses = workload.status.get("replicaStatuses") or {}
    for role, replicas in framework.replicas(workload).items():
        count = number(replicas, "replicas", framework.worker_default if role == "Worker" else 1)
        is_elastic = framework.elastic and role == "Worker"
        elastic = (workload.spec.get("elasticPolicy") or {}) if is_elastic else {}
        low = min(count, number(elastic, "minReplicas", count))
        most = max(count, number(elastic, "maxReplicas", count))
        if most == 0:
            continue
        # A pod that has succeeded is not made again: those that are left are waited for, and not the whole number.
        ended = number(statuses.get(role) or {}, "succeeded", 0)
        pods = max(0, count - ended)
        yield Leaf(
            name=joined_name(workload.name, f"{framework.piece}-{role.lower()}"),
            role=role.lower(),
            pods=pods,
            most=most,
            minimum=max(1, min(low, pods)),
            template=_template(framework, workload, role),
            one_by_one=low < most,
        )


def _template(framework: _Framework, workload: WorkloadObject, role: str) -> Mapping[str, Any]:
    """Return the pod template of a replica type, with the init container that the operator adds."""
    types = framework.replicas(workload)
    template: Mapping[str, Any] = types[role].get("template") or {}
    waits = framework.kind == "PyTorchJob" and role == "Worker" and "Master" in types
    if not waits or not template.get("spec"):
        return template
    pod = template["spec"]
    added = [*(pod.get("initContainers") or ()), _WAITS_FOR_MASTER]
    return {**template, "spec": {**pod, "initContainers": added}}


def _parts(framework: _Framework, workload: WorkloadObject) -> WorkloadParts:
    leaves = tuple(_leaves(framework, workload))
    if len(leaves) < 2:  # noqa: PLR2004 -- one leaf needs no root
        return WorkloadParts(roots=leaves)
    name = joined_name(workload.name, framework.piece)
    in_steps = workload.spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    if framework.kind != "MPIJob" or not in_steps:
        root = Composite(name=name, role="", children=leaves, minimum=len(leaves))
        return WorkloadParts(roots=(root,))
    launcher, workers = leaves
    steps = (
        PartStep(child=workers.name, name=workers.role, runs=(workers.name,)),
        PartStep(
            child=launcher.name,
            name=launcher.role,
            runs=(workers.name, launcher.name),
            after="the workers are ready",
        ),
    )
    root = Composite(name=name, role="", children=(workers, launcher), minimum=BASIC, steps=steps)
    text = (
        f"{workload} makes its launcher when its workers are ready, so each is a gang of its own; "
        "capacity for the launcher is not reserved"
    )
    return WorkloadParts(roots=(root,), notices=(Notice(reason="SequencedStart", message=text),))


def _refusals(framework: _Framework, workload: WorkloadObject) -> Iterator[TreeRefusal]:
    """Yield a refusal for what the operators refuse: the name, a replica type, its number, and a template without its container.

    Source:
        `ValidateMPIJob` of mpi-operator, `validatePyTorchReplicaSpecs` and `pkg/webhooks` of training-operator.
    """
    types, place = framework.replicas(workload), f"spec.{framework.field}"
    longest = workload.name
    if framework.kind == "MPIJob":
        longest += f"-worker-{max(0, number(types.get('Worker') or {}, 'replicas', 1) - 1)}"
    if _NAME.fullmatch(longest) is None:
        text = f"is no name of a Service, as {longest} must be one: a letter first, then a-z, 0-9 and -, 63 characters at most"
        yield refusal_of(workload, "InvalidField", "metadata.name", text)
    for role in workload.spec.get(framework.field) or {}:
        if role not in framework.roles:
            hint, expected = did_you_mean(role, framework.roles), ", ".join(framework.roles)
            text = f"is no replica type of a {framework.kind}{hint}; it has {expected}"
            yield refusal_of(workload, "InvalidField", f"{place}[{role}]", text)
    first = _FIRST.get(framework.kind, "")
    if framework.kind in {"MPIJob", "XGBoostJob"} and first not in types:
        text = f"is missing; each {framework.kind} has a {first.lower()}: add it with replicas: 1"
        yield refusal_of(workload, "InvalidField", f"{place}[{first}]", text)
    if types.keys() >= {"Chief", "Master"}:
        text = "is beside Chief; a TFJob has one of them"
        yield refusal_of(workload, "InvalidField", f"{place}[Master]", text)
    for role, replicas in types.items():
        count = number(replicas, "replicas", 1)
        if role == first and count != 1:
            text = f"is {count}, but the operator makes one {role.lower()} only: write 1"
            yield refusal_of(workload, "InvalidField", f"{place}[{role}].replicas", text)
        elif framework.kind == "MPIJob" and count < 1:
            text = f"is {count}; write 1 or more, or leave out the {role}"
            yield refusal_of(workload, "InvalidField", f"{place}[{role}].replicas", text)
    yield from _container_refusals(framework, workload)
    yield from only_whole(workload)


def _container_refusals(framework: _Framework, workload: WorkloadObject) -> Iterator[TreeRefusal]:
    for role, replicas in framework.replicas(workload).items():
        containers = ((replicas.get("template") or {}).get("spec") or {}).get("containers")
        field = f"spec.{framework.field}[{role}].template.spec.containers"
        names = [str(container.get("name", "")) for container in containers or ()]
        if containers and framework.container and framework.container not in names:
            text = f"none is named {framework.container}, as {framework.manager} requires; there are {', '.join(names)}"
            yield refusal_of(workload, "InvalidField", field, text)
        if not containers:
            text = f"is missing or empty, and the operator makes no pod without one; add it, or leave out the {role}"
            yield refusal_of(workload, "InvalidField", field, text)


def _kind(framework: _Framework) -> WorkloadKind:
    replica = {
        "replicas": PodCount,
        "restartPolicy": Literal["Always", "OnFailure", "Never", "ExitCode"],
        "template": TEMPLATE_FIELDS,
    }
    fields: dict[str, Any] = {
        framework.field: {"*": replica},
        "runPolicy": {"suspend": bool, "managedBy": str},
    }
    if framework.elastic:
        fields["elasticPolicy"] = {"minReplicas": PodCount, "maxReplicas": PodCount}
    if framework.kind == "MPIJob":
        fields["launcherCreationPolicy"] = Literal["AtStartup", "WaitForWorkersReady"]
        fields["slotsPerWorker"] = Count
    return WorkloadKind(
        kind=framework.kind,
        group="kubeflow.org",
        versions=(framework.version,),
        plural=f"{framework.kind.lower()}s",
        spec_type=fields_type(f"{framework.kind}Spec", fields),
        name_rules=(
            NameRule(
                when=(LabelCondition(key=OPERATOR_LABEL, value=framework.operator),),
                head=LabelValue(key=NAME_LABEL),
                rest=(f"{framework.piece}-", LabelValue(key=framework.role_label)),
            ),
        ),
        name_label=NAME_LABEL,
        pod_labels=framework.pod_labels,
        pod_name=framework.pod_name,
        template_paths=tuple(f"spec.{framework.field}.{role}.template" for role in framework.roles),
        manager=framework.manager,
        manager_path=MANAGER_PATH,
        parts=lambda workload, _, __: _parts(framework, workload),
        finished=lambda workload: has_condition(workload, "Succeeded", "Failed"),
        suspended=lambda workload: bool((workload.spec.get("runPolicy") or {}).get("suspend")),
        refusals=lambda workload: _refusals(framework, workload),
        kept_out=framework.kept_out,
    )


MPIJOB: Final = _kind(
    _Framework(
        kind="MPIJob",
        field="mpiReplicaSpecs",
        roles=("Launcher", "Worker"),
        operator="mpi-operator",
        manager="kubeflow.org/mpi-operator",
        version="v2beta1",
        role_label=ROLE_LABEL,
        worker_default=0,
    )
)
KUBEFLOW_JOBS: Final = tuple(
    _kind(
        _Framework(
            kind=kind,
            field=field,
            roles=roles,
            operator=f"{kind.lower()}-controller",
            elastic=kind in ("PyTorchJob", "PaddleJob"),
            container=container,
        )
    )
    for kind, container, field, roles in (
        ("PyTorchJob", "pytorch", "pytorchReplicaSpecs", ("Master", "Worker")),
        ("TFJob", "tensorflow", "tfReplicaSpecs", ("Chief", "Master", "PS", "Worker", "Evaluator")),
        ("XGBoostJob", "xgboost", "xgbReplicaSpecs", ("Master", "Worker")),
        ("PaddleJob", "paddle", "paddleReplicaSpecs", ("Master", "Worker")),
        ("JAXJob", "jax", "jaxReplicaSpecs", ("Worker",)),
    )
)
