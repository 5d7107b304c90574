"""Objects that the real workload controllers made, as an API server stored them (tests/golden/controllers)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.tree_parts import LeafUse
from extender.core.workloads.workload_object import (
    LEAF_LABEL,
    TREE_LABEL,
    OwnerReference,
    WorkloadObject,
)

RECORDS = Path(__file__).parents[2] / "golden" / "controllers"
NAMES = sorted(str(path.relative_to(RECORDS)) for path in RECORDS.rglob("*.json"))


class Record(msgspec.Struct, frozen=True):
    """The objects of one recording."""

    items: tuple[dict[str, Any], ...]

    def of(self, kind: str, name: str | None = None) -> WorkloadObject:
        """Return the only object of a kind, or the one with a name."""
        (found,) = (one for one in self.workloads(kind) if name in (None, one.name))
        return found

    def workloads(self, *kinds: str) -> Iterator[WorkloadObject]:
        """Yield the objects of these kinds."""
        return (workload_of(one) for one in self.items if one["kind"] in kinds)

    def pods(self, **labels: str) -> list[Mapping[str, Any]]:
        """Return the pods."""
        return [one for one in self.items if one["kind"] == "Pod"]

    def roots(self) -> Iterator[WorkloadObject]:
        """Yield the workloads that are compiled: those that are no part of another one."""
        for workload in self.workloads(*(kind for kind, one in BY_KIND.items() if one.parts)):
            owner = workload.owner
            if owner is None or owner.kind not in BY_KIND[workload.kind].part_of:
                yield workload


def record(name: str) -> Record:
    """Return a recording by its path, such as `job/plain.json`."""
    return Record(tuple(msgspec.json.decode((RECORDS / name).read_bytes())["items"]))


def workload_of(found: Mapping[str, Any]) -> WorkloadObject:
    """Return the workload of an object."""
    metadata = found["metadata"]
    owner = next(
        (one for one in metadata.get("ownerReferences", ()) if one.get("controller")), None
    )
    return WorkloadObject(
        api_version=found["apiVersion"],
        kind=found["kind"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        owner=None
        if owner is None
        else OwnerReference(
            api_version=owner["apiVersion"],
            kind=owner["kind"],
            name=owner["name"],
            uid=owner["uid"],
        ),
        spec=found.get("spec", {}),
        status=found.get("status", {}),
    )


def labels_of(pod: Mapping[str, Any], leaf: str = "") -> dict[str, str]:
    """Return the labels that a recorded pod would have with a tree label in its template, and a leaf label."""
    labels = {**pod["metadata"]["labels"], TREE_LABEL: "default"}
    return {**labels, LEAF_LABEL: leaf} if leaf else labels


def uses_of(pods: list[Mapping[str, Any]], leaf: str = "") -> tuple[LeafUse, ...]:
    """Return the leaves that pods use, with all their labels."""
    labels = {
        name: all_labels
        for pod in pods
        if (name := leaf_of_pod(all_labels := labels_of(pod, leaf)))
    }
    counts = Counter(leaf_of_pod(labels_of(pod, leaf)) for pod in pods)
    return tuple(
        LeafUse(name=name, pods=counts[name], labels=labels[name]) for name in sorted(labels)
    )


def a_staged_runtime() -> dict[str, Any]:
    """Make the runtime of the record: two initializers, then the nodes of the trainer."""

    def step(name: str, after: Iterable[str] = ()) -> dict[str, Any]:
        container = {
            "name": name,
            "image": "registry.invalid/none",
            "resources": {"requests": {"cpu": "1"}},
            "volumeMounts": [{"name": "initializer", "mountPath": "/workspace"}],
        }
        pod = {
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "initializer", "emptyDir": {}}],
        }
        label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer" if after else name}
        job: dict[str, Any] = {
            "name": name,
            "template": {
                "metadata": {"labels": label},
                "spec": {"template": {"spec": pod}},
            },
        }
        if after:
            job["dependsOn"] = [{"name": one, "status": "Complete"} for one in after]
        return job

    first = ("dataset-initializer", "model-initializer")
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "stages", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {
                "spec": {"replicatedJobs": [*(step(one) for one in first), step("node", first)]}
            },
        },
    }


def as_placed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a JobSet without what a webhook of JobSet fills in, and what only a running container reads."""
    unread = {
        "groupName",
        "completionMode",
        "env",
        "ports",
        "image",
        "command",
        "network",
        "successPolicy",
    }
    defaults = {"restartPolicy": "OnFailure", "metadata": {}}
    defaults["startupPolicy"] = {"startupPolicyOrder": "AnyOrder"}

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key: read(one)
                for key, one in value.items()
                if key not in unread and not (key in defaults and defaults[key] == one)
            }
        return [read(one) for one in value] if isinstance(value, list) else value

    found = read(spec)
    assert isinstance(found, dict)
    return found
