"""A small workload of each kind as a user submits it, and CustomResourceDefinitions that take any of its fields.

The definitions stand for those of other projects where a test is about our admission policies alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from extender.core.workloads.kind_table import OBJECT_KINDS
from extender.core.workloads.workload_kind import ObjectKind, WorkloadKind

Object = dict[str, Any]
BUILT_IN = ("apps", "batch")


def a_template(**spec: Any) -> Object:
    """Make a pod template without metadata."""
    container = {"name": "main", "image": "registry.invalid/none"}
    return {"spec": {"restartPolicy": "Never", "containers": [container], **spec}}


def _a_replicated_job(name: str, replicas: int, parallelism: int) -> Object:
    spec = {"parallelism": parallelism, "completions": parallelism, "template": a_template()}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def _replicas(size: int, **more: Any) -> Object:
    return {
        "replicas": 2,
        "leaderWorkerTemplate": {
            "size": size,
            "leaderTemplate": a_template(),
            "workerTemplate": a_template(),
            **more,
        },
    }


_SPECS: dict[str, Object] = {
    "Job": {"parallelism": 2, "completions": 2, "template": a_template()},
    "StatefulSet": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "a"}},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": a_template()["spec"] | {"restartPolicy": "Always"},
        },
    },
    "JobSet": {
        "replicatedJobs": [
            _a_replicated_job("driver", 1, 1),
            _a_replicated_job("worker", 2, 4),
            _a_replicated_job("many", 600, 2),
        ]
    },
    "LeaderWorkerSet": _replicas(3) | {"startupPolicy": "LeaderReady"},
    "DisaggregatedSet": {
        "roles": [
            {"name": "prefill", "spec": _replicas(2)},
            {"name": "decode", "spec": _replicas(4, subGroupPolicy={"subGroupSize": 2})},
        ]
    },
    "RayCluster": {
        "headGroupSpec": {"template": a_template()},
        "workerGroupSpecs": [
            {"groupName": "small", "replicas": 2, "template": a_template()},
            {"groupName": "slice", "replicas": 2, "numOfHosts": 2, "template": a_template()},
        ],
    },
    **{
        kind: {field: {role: {"replicas": 2, "template": a_template()} for role in roles}}
        for kind, field, roles in (
            ("MPIJob", "mpiReplicaSpecs", ("Launcher", "Worker")),
            ("PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker")),
            ("TFJob", "tfReplicaSpecs", ("Chief", "PS", "Worker", "Evaluator")),
            ("XGBoostJob", "xgbReplicaSpecs", ("Master", "Worker")),
            ("PaddleJob", "paddleReplicaSpecs", ("Master", "Worker")),
            ("JAXJob", "jaxReplicaSpecs", ("Worker",)),
        )
    },
    "PodGang": {"podgroups": []},
    "TrainJob": {"runtimeRef": {"name": "torch-distributed"}},
}


def a_workload(kind: WorkloadKind, namespace: str, name: str = "w", **metadata: Any) -> Object:
    """Make a workload of a kind; it has no labels."""
    return {
        "apiVersion": f"{kind.group}/{kind.versions[0]}",
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": copy.deepcopy(_SPECS[kind.kind]),
    }


def path_to(kind: WorkloadKind | ObjectKind, namespace: str, name: str = "") -> str:
    """Return the API path of a collection or, with a name, of an object."""
    path = f"/apis/{kind.group}/{kind.versions[0]}/namespaces/{namespace}/{kind.plural}"
    return f"{path}/{name}" if name else path


def templates_of(kind: WorkloadKind, workload: Object) -> Iterator[tuple[Object, Object]]:
    """Yield each pod template with what has it: the item of the list, or the workload."""
    for path in kind.template_paths:
        head, _, tail = path.partition("[]")
        found = _field(workload, head)
        items = [workload] if not tail else found or ()
        for item in items:
            template = _field(item, tail.removeprefix(".")) if tail else found
            if template is not None:
                yield template, item


def _field(thing: Object, path: str) -> Any:
    for name in path.split("."):
        if thing is None:
            return None
        thing = thing.get(name)  # type: ignore[assignment]
    return thing


def labels_in(kind: WorkloadKind, workload: Object, key: str) -> list[str | None]:
    """Return the value of a label in each pod template."""
    return [
        template.get("metadata", {}).get("labels", {}).get(key)
        for template, _ in templates_of(kind, workload)
    ]


def definitions() -> list[Object]:
    """Return a definition of each kind of the table that is not built in, and of those that pods get labels from."""
    kinds = [
        ObjectKind(kind=one.kind, group=one.group, versions=one.versions, plural=one.plural)
        for one in OBJECT_KINDS
        if one.group not in BUILT_IN
    ]
    return [
        _definition(one)
        for one in (*kinds, *(more for one in OBJECT_KINDS for more in one.labels_from))
    ]


def _definition(kind: ObjectKind) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {
        "name": kind.versions[0],
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # kube-apiserver asks for it in groups of the Kubernetes project
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [version],
        },
    }
