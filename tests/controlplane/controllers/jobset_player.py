"""Play what JobSet makes of `spec.scheduling`: KEP-969 is not released, so its text is played (keps/969-WAS-integration).

One Workload; a PodGroup for each entry of `replicatedJobs`, or with `job` one for each Job, all owned by the JobSet;
Jobs whose pod templates name their group. The Jobs are run by the real Job controller. The kind takes any field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.controlplane.api import Api, Object
from tests.controlplane.controllers.kinds import create_kinds
from tests.controlplane.plane import ControlPlane

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
SCHEDULING = "scheduling.k8s.io/v1beta1"
TEMPLATE = "scheduling.k8s.io/group-template-name"
PREFIX = "jobset.sigs.k8s.io"


def install_native_jobset(plane: ControlPlane) -> None:
    """Create the kind JobSet with `spec.scheduling`, without its controller."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": free},
        "subresources": {"status": {}},
    }  # fmt: skip
    names = {"kind": "JobSet", "listKind": "JobSetList", "plural": "jobsets", "singular": "jobset"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"jobsets.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    file = plane.folder / "native-jobset.json"
    file.write_bytes(msgspec.json.encode(definition))
    create_kinds(plane, [file])


async def make_groups(api: Api, jobset: Object) -> list[str]:
    """Create Workload and PodGroups of a stored JobSet; return the names of the groups."""
    items = list(_items(jobset))
    workload = f"{jobset['metadata']['name']}-{_hash(jobset, 'JobSet')}"
    templates = [{"name": name, **_settings(entry, pods)} for name, entry, pods, _ in items]
    controller = {"apiGroup": GROUP, "kind": "JobSet", "name": jobset["metadata"]["name"]}
    await api.create({
        "apiVersion": SCHEDULING, "kind": "Workload", "metadata": _owned(jobset, workload),
        "spec": {"controllerRef": controller, "podGroupTemplates": templates},
    })  # fmt: skip
    for name, entry, pods, _ in items:
        ref = {"workloadName": workload, "templateName": name}
        await api.create({
            "apiVersion": SCHEDULING, "kind": "PodGroup", "metadata": _owned(jobset, _group(jobset, name)),
            "spec": {"workloadRef": ref, **_settings(entry, pods)},
        })  # fmt: skip
    return [_group(jobset, name) for name, *_ in items]


async def make_jobs(api: Api, jobset: Object) -> None:
    """Create the Jobs of a stored JobSet; their pods name the groups."""
    for item, _, _, jobs in _items(jobset):
        for name, index in jobs:
            replicated = _replicated_jobs(jobset)[name]
            spec = msgspec.json.decode(msgspec.json.encode(replicated["template"]["spec"]))
            group = {"podGroupName": _group(jobset, item)}
            spec["template"]["spec"] |= {"schedulingGroup": group}
            metadata = _owned(jobset, f"{jobset['metadata']['name']}-{name}-{index}")
            metadata["annotations"] = {TEMPLATE: item}
            metadata["labels"] = {f"{PREFIX}/jobset-name": jobset["metadata"]["name"]}
            await api.create(
                {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
            )


def _replicated_jobs(jobset: Object) -> dict[str, Object]:
    return {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}


def _items(jobset: Object) -> Iterator[tuple[str, Object, int, list[tuple[str, int]]]]:
    """Yield name, settings, number of pods, and the Jobs (ReplicatedJob, index) of each group."""
    found = _replicated_jobs(jobset)
    for entry in jobset["spec"]["scheduling"]["replicatedJobs"]:
        targets = entry["targetReplicatedJobs"]
        jobs = [(name, i) for name in targets for i in range(found[name]["replicas"])]
        pods = {name: found[name]["template"]["spec"]["parallelism"] for name in targets}
        if "job" in entry:
            for name, index in jobs:
                yield f"{name}-{index}", entry["job"], pods[name], [(name, index)]
        else:
            yield "-".join(targets), entry, sum(pods[name] for name, _ in jobs), jobs


def _settings(entry: Object, pods: int) -> Object:
    settings: Object = {"schedulingPolicy": {"gang": {"minCount": pods}}}
    if "disruptionMode" in entry:
        settings["disruptionMode"] = entry["disruptionMode"]
    return settings


def _owned(jobset: Object, name: str) -> dict[str, Any]:
    """Return the metadata of an object that the JobSet controls."""
    metadata = jobset["metadata"]
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "JobSet", "name": metadata["name"],
        "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {"name": name, "namespace": metadata["namespace"], "ownerReferences": [owner]}


def _group(jobset: Object, item: str) -> str:
    return f"{jobset['metadata']['name']}-{item}-{_hash(jobset, item)}"


def _hash(jobset: Object, item: str) -> str:
    metadata = jobset["metadata"]
    text = f"{metadata['namespace']}/{metadata['name']}/{item}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:10]
