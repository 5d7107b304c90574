"""Objects of a test cluster as plain dicts: nodes, pods, namespaces, priority classes.

Owns their smallest valid form on a control plane without kubelets and controllers; it sends
nothing. The surprise: a pod here never mounts a token, since no ServiceAccount exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

MEMBER = "gang-extender.dev/member"
BIND = "gang-extender.dev/bind"
GATE = "gang-extender.dev/admission"

# kind -> (plural, namespaced); what tests create. Others go through `kubectl`.
KINDS = {
    "AdmissionCheck": ("admissionchecks", False),
    "ClusterQueue": ("clusterqueues", False),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "ClusterTrainingRuntime": ("clustertrainingruntimes", False),
    "CompositePodGroup": ("compositepodgroups", True),
    "ConfigMap": ("configmaps", True),
    "CSINode": ("csinodes", False),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
    "DeviceClass": ("deviceclasses", False),
    "DisaggregatedSet": ("disaggregatedsets", True),
    "Event": ("events", True),
    "JAXJob": ("jaxjobs", True),
    "Job": ("jobs", True),
    "JobSet": ("jobsets", True),
    "LeaderWorkerSet": ("leaderworkersets", True),
    "LocalQueue": ("localqueues", True),
    "MPIJob": ("mpijobs", True),
    "MutatingAdmissionPolicy": ("mutatingadmissionpolicies", False),
    "MutatingAdmissionPolicyBinding": ("mutatingadmissionpolicybindings", False),
    "Namespace": ("namespaces", False),
    "Node": ("nodes", False),
    "PaddleJob": ("paddlejobs", True),
    "PersistentVolume": ("persistentvolumes", False),
    "PersistentVolumeClaim": ("persistentvolumeclaims", True),
    "Pod": ("pods", True),
    "PodClique": ("podcliques", True),
    "PodCliqueScalingGroup": ("podcliquescalinggroups", True),
    "PodCliqueSet": ("podcliquesets", True),
    "PodDisruptionBudget": ("poddisruptionbudgets", True),
    "PodGang": ("podgangs", True),
    "PodGroup": ("podgroups", True),
    "PriorityClass": ("priorityclasses", False),
    "PyTorchJob": ("pytorchjobs", True),
    "RayCluster": ("rayclusters", True),
    "ResourceClaim": ("resourceclaims", True),
    "ResourceClaimTemplate": ("resourceclaimtemplates", True),
    "ResourceFlavor": ("resourceflavors", False),
    "ResourceSlice": ("resourceslices", False),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "ServiceAccount": ("serviceaccounts", True),
    "StatefulSet": ("statefulsets", True),
    "StorageClass": ("storageclasses", False),
    "TFJob": ("tfjobs", True),
    "TrainJob": ("trainjobs", True),
    "TreeProfile": ("treeprofiles", False),
    "Workload": ("workloads", True),
    "WorkloadPriorityClass": ("workloadpriorityclasses", False),
    "XGBoostJob": ("xgboostjobs", True),
}

Object = dict[str, Any]


def path_of(thing: Mapping[str, Any], *, named: bool = False) -> str:
    """Return the API path of an object's collection or, `named`, of the object itself.

    Raises:
        KeyError: A kind that `KINDS` does not list.
    """
    version = thing["apiVersion"]
    plural, namespaced = KINDS[thing["kind"]]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    metadata = thing["metadata"]
    inside = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
    return f"{root}{inside}/{plural}" + (f"/{metadata['name']}" if named else "")


def a_namespace(name: str) -> Object:
    """Make a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def a_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    **allocatable: str,
) -> Object:
    """Make a Ready node of 8 CPUs, 32 GiB and 110 pods.

    Args:
        name: Also its hostname label.
        labels: Beside the hostname, such as zone and rack.
        taints: As in the API.
        unschedulable: Cordoned.
        allocatable: Overrides by resource, such as `cpu="64"`; names with a slash by `**{...}`.
    """
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"} | allocatable
    spec: Object = {"taints": [dict(taint) for taint in taints]} if taints else {}
    if unschedulable:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def a_pod(
    name: str,
    *,
    namespace: str = "default",
    requests: Mapping[str, str] | None = None,
    markers: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """Make a pending pod of 1 CPU with one container.

    Args:
        name: Its name.
        namespace: It must exist.
        requests: Instead of 1 CPU; an empty mapping asks for nothing.
        markers: Extended resources it asks for one of, such as `MEMBER` and `BIND`.
        metadata: Merged in: labels, annotations, finalizers.
        spec: Merged in: schedulerName, priorityClassName, schedulingGates, nodeSelector...
    """
    wanted = dict({"cpu": "1"} if requests is None else requests)
    # An extended resource needs limits equal to requests.
    limits = {k: v for k, v in wanted.items() if "/" in k} | dict.fromkeys(markers, "1")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.invalid/none",
                    "resources": {"requests": wanted | limits, "limits": limits},
                }
            ],
            **spec,
        },
    }


def a_priority_class(name: str, value: int, **more: Any) -> Object:
    """Make a priority class; `more` is preemptionPolicy, globalDefault and the like."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


def condition_of(thing: Mapping[str, Any], kind: str) -> Object | None:
    """Find a condition of an object by its type; None when it is not there."""
    found = (c for c in thing.get("status", {}).get("conditions", []) if c["type"] == kind)
    return next(found, None)


SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}


def amount_of(resource: str, written: str | int) -> int:
    """Read a quantity: CPU in thousandths, everything else in units, rounded up."""
    text = str(written)
    factor = next((f for suffix, f in SUFFIXES.items() if text.endswith(suffix)), None)
    number = Fraction(text.rstrip("KMGTkim")) * (factor or 1)
    if factor is None and text.endswith("m"):
        number /= 1000
    return math.ceil(number * 1000 if resource == "cpu" else number)


def requests_of(pod: Mapping[str, Any]) -> dict[str, int]:
    """Add up what the containers of a pod ask for, in the units of `amount_of`."""
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for key, written in container.get("resources", {}).get("requests", {}).items():
            found[key] = found.get(key, 0) + amount_of(key, written)
    return found
