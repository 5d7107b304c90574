"""RayCluster: a root gang over the head and the worker groups that have a minimum, all of which are required.

Source: ray.io/v1 of KubeRay v1.6.2. The autoscaler changes `replicas` between `minReplicas` and `maxReplicas`, so the
minimum counts, and other workers are extras. A replica of several hosts is a group of its own, known by a random name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Required

from msgspec.structs import replace

from extender.core.model.errors import BadInput
from extender.core.workloads.name_rules import LabelValue, NameRule, joined_name, split_name
from extender.core.workloads.tree_parts import BASIC, Composite, Leaf, LeafUse, Observed, Part
from extender.core.workloads.tree_policy import TreePolicy
from extender.core.workloads.workload_kind import (
    RESOURCE_FIELDS,
    TEMPLATE_FIELDS,
    Count,
    HeldWorkload,
    PodCount,
    WorkloadKind,
    WorkloadParts,
    fields_type,
    held_workload,
    is_suspended,
    managed_by_other,
    number,
    only_whole,
    required,
    template_kept_out,
)
from extender.core.workloads.workload_object import WorkloadObject

NAME_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
MANAGER = "ray.io/kuberay-operator"
REPLICA_LABEL = "ray.io/worker-group-replica-name"  # of workers with several hosts: <group>-xxxxx
HEAD = "headgroup"  # value of GROUP_LABEL on the head
_BETWEEN = "-ray-"  # a cluster a with a group b-c, and a cluster a-b with a group c, differ
_REPLICA = re.compile(rf"{_BETWEEN}(?P<replica>.+)")

# What KubeRay v1.6.2 adds to pods (`BuildAutoscalerContainer`, `DefaultWorkerPodTemplate`)
_AUTOSCALER: Mapping[str, Any] = {
    "name": "autoscaler",
    "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
}
_SUBMITTER: Mapping[str, Any] = {
    "name": "ray-job-submitter",
    "resources": {
        "requests": {"cpu": "500m", "memory": "200Mi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    },
}
_SUBMITTED = "the pod that submits the job is made when the RayCluster is ready, and is not planned"
_ENDED = ("Complete", "Failed")  # jobDeploymentStatus of a RayJob
_WAITS_FOR_HEAD: Mapping[str, Any] = {
    "name": "wait-gcs-ready",
    "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}},
}

WorkerGroup = Mapping[str, Any]


def _parts(workload: WorkloadObject, _policy: TreePolicy, observed: Observed) -> WorkloadParts:
    head = _head_template(workload)
    children: list[Part] = [_leaf(_name(workload, HEAD), "head", head, 1, 1, 1)]
    matches = (split_name(_REPLICA, workload.name, use.name) for use in observed.uses if use.pods)
    # what follows the name of the cluster in the leaves that have pods
    used = frozenset(match["replica"] for match in matches if match is not None)
    parts = (_worker_part(workload, group, used) for group in _worker_groups(workload))
    children += [part for part in parts if part is not None]
    gangs = tuple(part.name for part in children if part.minimum != BASIC)
    root = Composite(
        name=joined_name(workload.name, "-ray"),
        role="",
        children=tuple(children),
        minimum=len(gangs),
        required=gangs,  # workers of a group without a minimum do not stand in for the head
        one_by_one=True,
    )
    return WorkloadParts(roots=(root,))


def _head_template(workload: WorkloadObject) -> Mapping[str, Any]:
    """Return the template of the head, with the container of the autoscaler where it is enabled."""
    head = workload.spec.get("headGroupSpec") or {}
    if not workload.spec.get("enableInTreeAutoscaling"):
        return _with_labels(head)
    options = workload.spec.get("autoscalerOptions") or {}
    resources = options.get("resources")
    autoscaler = _AUTOSCALER if resources is None else {**_AUTOSCALER, "resources": resources}
    return _with_labels(head, "containers", autoscaler)


def _with_labels(
    group: Mapping[str, Any], field: str = "", container: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return the pod template of a group, with the labels of the group and a container that KubeRay adds."""
    template = group.get("template") or {}
    if not template.get("spec"):
        return template
    metadata, spec = template.get("metadata") or {}, template["spec"]
    labels = {**(metadata.get("labels") or {}), **(group.get("labels") or {})}
    if container is not None:
        spec = {**spec, field: [*(spec.get(field) or ()), container]}
    return {**template, "metadata": {**metadata, "labels": labels}, "spec": spec}


def _worker_groups(workload: WorkloadObject) -> tuple[WorkerGroup, ...]:
    return tuple(workload.spec.get("workerGroupSpecs") or ())


def _name(workload: WorkloadObject, part: str) -> str:
    return joined_name(workload.name, f"{_BETWEEN}{part}")


def _worker_part(workload: WorkloadObject, group: WorkerGroup, used: frozenset[str]) -> Part | None:
    """Return the part of a worker group; None: it has no workers."""
    name = str(group["groupName"])
    low, now, most = _counts(group)
    if most == 0:
        return None
    hosts = max(1, number(group, "numOfHosts", 1))
    template = _with_labels(group, "initContainers", _WAITS_FOR_HEAD)
    # without the feature RayMultiHostIndexing, no pod has the label of a replica
    if hosts == 1 or name in used:
        full = _name(workload, name)
        leaf = _leaf(full, name, template, now * hosts, most * hosts, low * hosts)
        return replace(leaf, one_by_one=True)
    replicas = tuple(
        _leaf(_name(workload, replica), "", template, hosts, hosts, hosts)
        for replica in sorted(used)
        if _group_of(replica) == name
    )
    return Composite(
        name=_name(workload, name),
        role=name,
        children=replicas,
        minimum=low or BASIC,
        most=max(most, len(replicas)),
        one_by_one=True,
    )


def _group_of(replica: str) -> str:
    return replica.rpartition("-")[0]


def _counts(group: WorkerGroup) -> tuple[int, int, int]:
    """Return the least, the wanted and the largest number of replicas, as KubeRay counts them."""
    if group.get("suspend"):
        return 0, 0, 0
    low = max(0, number(group, "minReplicas", 0))
    most = max(low, number(group, "maxReplicas", 2**31 - 1))
    return low, min(max(number(group, "replicas", 0), low), most), most


def _leaf(
    name: str, role: str, template: Mapping[str, Any], pods: int, most: int, minimum: int
) -> Leaf:
    return Leaf(
        name=name, role=role, pods=pods, most=most, minimum=minimum or BASIC, template=template
    )


def _planned_uses(workload: WorkloadObject) -> tuple[LeafUse, ...]:
    return tuple(
        LeafUse(name=_name(workload, f"{group['groupName']}-{index}"), pods=1)
        for group in _worker_groups(workload)
        if number(group, "numOfHosts", 1) > 1
        for index in range(_counts(group)[1])
    )


def _kept_out(workload: WorkloadObject) -> str:
    head = workload.spec.get("headGroupSpec") or {}
    for group in (head, *_worker_groups(workload)):
        if reason := template_kept_out(group.get("template") or {}):
            return f"group {group.get('groupName', HEAD)}: {reason}"
    return managed_by_other(workload, MANAGER)


# --- what makes a RayCluster


def _of_rayjob(rayjob: Mapping[str, Any], place: str = "spec") -> HeldWorkload:
    """Return the RayCluster that a RayJob makes, with the labels of the RayJob (`constructRayClusterForRayJob`).

    Args:
        rayjob: The object, or one with its spec.
        place: Where the spec is, for messages.
    """
    spec, metadata = required(rayjob, "spec"), rayjob.get("metadata") or {}
    if spec.get("clusterSelector"):
        text = "it runs on a RayCluster that exists, so it has no pods to plan"
        return HeldWorkload(spec=None, note=f"spec.clusterSelector: {text}")
    if (rayjob.get("status") or {}).get("jobDeploymentStatus") in _ENDED:
        return HeldWorkload(spec=None, note="is finished: it needs no pods any more")
    cluster = dict(required(rayjob, "spec", "rayClusterSpec"))
    if spec.get("suspend"):
        cluster["suspend"] = True
    if spec.get("managedBy"):
        cluster["managedBy"] = spec["managedBy"]
    mode, note = spec.get("submissionMode") or "K8sJobMode", ""
    if mode == "SidecarMode" and isinstance(cluster.get("headGroupSpec"), Mapping):
        head = cluster["headGroupSpec"]
        _check_sidecar(spec, head, place)
        template = _with_labels({"template": head.get("template") or {}}, "containers", _SUBMITTER)
        cluster["headGroupSpec"] = {**head, "template": template}
    elif mode == "K8sJobMode":
        # the pod of the submitting Job is no member
        note = _SUBMITTED
        if _restarts(spec.get("submitterPodTemplate"), f"{place}.submitterPodTemplate") is None:
            field = f"{place}.submitterPodTemplate.spec.restartPolicy"
            note = f"{field}: is missing, and Kubernetes refuses such a Job; set Never or OnFailure; {note}"
    metadata_at = "metadata" if place == "spec" else ""
    return held_workload(cluster, metadata, metadata_at=metadata_at, note=note)


def _restarts(template: object, path: str) -> str | None:
    """Return the restartPolicy of the template of a Job that KubeRay makes; None: the template has none.

    Raises:
        BadInput: Kubernetes refuses it.
    """
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping):
        return "Never"  # that of KubeRay's own template
    restart = spec.get("restartPolicy")
    if restart not in (None, "Never", "OnFailure"):
        text = f"is {restart!r}; the pod is that of a Job, which has Never or OnFailure"
        raise BadInput(f"{path}.spec.restartPolicy: {text}")
    return None if restart is None else str(restart)


def _check_sidecar(spec: Mapping[str, Any], head: Mapping[str, Any], place: str) -> None:
    """Raise BadInput if KubeRay refuses a RayJob whose submitter is a container of the head (`ValidateRayJobSpec`)."""
    if spec.get("submitterPodTemplate") is not None:
        text = "has no pod in submissionMode SidecarMode; remove one of the two"
        raise BadInput(f"{place}.submitterPodTemplate: {text}")
    restart = ((head.get("template") or {}).get("spec") or {}).get("restartPolicy")
    if restart not in (None, "Never"):
        text = f"is {restart!r}; with submissionMode SidecarMode it is Never: leave it out"
        where = f"{place}.rayClusterSpec.headGroupSpec.template.spec.restartPolicy"
        raise BadInput(f"{where}: {text}")


def _of_raycronjob(raycronjob: Mapping[str, Any]) -> HeldWorkload:
    """Return the RayCluster of the RayJob that a RayCronJob makes; no label reaches it."""
    spec = required(raycronjob, "spec", "jobTemplate")
    suspended = {"suspend": True} if raycronjob["spec"].get("suspend") else {}
    return _of_rayjob({"spec": {**spec, **suspended}}, "spec.jobTemplate")


def _of_rayservice(rayservice: Mapping[str, Any]) -> HeldWorkload:
    """Return the RayCluster that a RayService makes (`constructRayClusterForRayService`)."""
    spec = required(rayservice, "spec", "rayClusterConfig")
    return held_workload(spec, rayservice.get("metadata") or {})


def _pod_labels(
    _workload: WorkloadObject, labels: Mapping[str, str], leaf: Leaf, _number: int
) -> Mapping[str, str]:
    """Return the labels of a pod with those that name its cluster, its group and its part in it.

    Source:
        `labelPod` in ray-operator/controllers/ray/common/pod.go.
    """
    replica = labels.get(REPLICA_LABEL, "")
    group = labels.get(GROUP_LABEL) or (replica if leaf.role else _group_of(replica))
    node_type = "head" if group == HEAD else "worker"
    kept = {key: text for key, text in labels.items() if key != REPLICA_LABEL or not leaf.role}
    return {
        **kept,
        GROUP_LABEL: group,
        "ray.io/node-type": node_type,
        "ray.io/is-ray-node": "yes",
        "ray.io/identifier": f"{labels.get(NAME_LABEL, '')}-{node_type}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


_WORKER_GROUP_FIELDS: Mapping[str, Any] = {
    "groupName": Required[str],
    "replicas": PodCount,
    "minReplicas": PodCount,
    "maxReplicas": Count,
    "numOfHosts": PodCount,
    "suspend": bool,
    "labels": dict[str, str],
    "template": TEMPLATE_FIELDS,
}

RAYCLUSTER = WorkloadKind(
    kind="RayCluster",
    group="ray.io",
    versions=("v1",),
    plural="rayclusters",
    spec_type=fields_type(
        "RayClusterSpec",
        {
            "enableInTreeAutoscaling": bool,
            "autoscalerOptions": {"resources": RESOURCE_FIELDS},
            "headGroupSpec": {"labels": dict[str, str], "template": TEMPLATE_FIELDS},
            "workerGroupSpecs": [_WORKER_GROUP_FIELDS],
            "suspend": bool,
            "managedBy": str,
        },
    ),
    name_rules=tuple(
        NameRule(when=(), head=LabelValue(key=NAME_LABEL), rest=(_BETWEEN, LabelValue(key=key)))
        for key in (REPLICA_LABEL, GROUP_LABEL)
    ),
    name_label=NAME_LABEL,
    pod_labels=_pod_labels,
    template_paths=("spec.headGroupSpec.template", "spec.workerGroupSpecs[].template"),
    manager=MANAGER,
    holders={"RayJob": _of_rayjob, "RayService": _of_rayservice, "RayCronJob": _of_raycronjob},
    parts=_parts,
    planned_uses=_planned_uses,
    suspended=is_suspended,
    refusals=only_whole,
    kept_out=_kept_out,
)
