"""Keep the workloads of a cluster and the TreeProfiles up to date, change by change.

Only workloads with a tree label are kept, and objects that have none of their own but may own such: a cluster has many
Jobs. The store does no I/O. A change that cannot be converted raises `BadInput` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec
from immutables import Map

from extender.cluster import types as api
from extender.cluster.read.workload_conversion import workload_of
from extender.core.workloads.admission_checks import (
    CONTROLLER,
    AdmissionCheck,
    Flavor,
    queued_workload,
)
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_object import (
    GROUP_TEMPLATE_ANNOTATION,
    TREE_LABEL,
    WorkloadObject,
    pod_templates,
)
from extender.ports.workload_ports import WorkloadView

T = TypeVar("T")
_NO_OBJECTS: Map[str, WorkloadObject] = Map()


class WorkloadStore:
    """The workloads and profiles of a cluster, and the view of them."""

    def __init__(self) -> None:
        self.view = WorkloadView()

    def upsert(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a workload."""
        before = self.view.objects.get(manifest.metadata.uid)
        if before is None and not is_covered(manifest):
            return
        workload = workload_of(manifest)
        owned = self.view.owned
        if before is not None and before.owner != workload.owner:
            owned = _without_owned(owned, before)
        if workload.owner is not None:
            siblings = owned.get(workload.owner.uid, _NO_OBJECTS)
            owned = owned.set(workload.owner.uid, siblings.set(workload.uid, workload))
        self._change(objects=self.view.objects.set(workload.uid, workload), owned=owned)

    def delete(self, uid: str) -> None:
        """Remove a workload."""
        before = self.view.objects.get(uid)
        if before is not None:
            self._remove(before)

    def put_profile(self, profile: TreeProfile) -> None:
        """Add or replace a profile."""
        self._change(profiles=self.view.profiles.set(profile.name, profile))

    def delete_profile(self, name: str) -> None:
        """Remove a profile."""
        if name in self.view.profiles:
            self._change(profiles=self.view.profiles.delete(name))

    def put_templates(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload; a built-in one comes before one of our API group."""
        workload = workload_of(manifest)
        key = (workload.namespace, workload.name)
        before = self.view.templates.get(key)
        if before is None or before.uid == workload.uid or _is_builtin(workload):
            self._change(templates=self.view.templates.set(key, workload))

    def delete_templates(self, manifest: api.WorkloadManifest) -> None:
        """Remove a Workload."""
        before = self.view.templates.get(manifest.key)
        if before is not None and before.uid == manifest.metadata.uid:
            self._change(templates=self.view.templates.delete(manifest.key))

    def put_check(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace an AdmissionCheck of Kueue; those of other controllers are left out."""
        metadata = manifest.metadata
        if manifest.spec.get("controllerName") != CONTROLLER or metadata.deletion_timestamp:
            self._change(checks=_without(self.view.checks, metadata.name))
            return
        active = any(
            condition["type"] == "Active"
            and condition["status"] == "True"
            and condition.get("observedGeneration") == metadata.generation
            for condition in manifest.status.get("conditions", ())
        )
        check = AdmissionCheck(
            name=metadata.name, uid=metadata.uid, generation=metadata.generation, active=active
        )
        self._change(checks=self.view.checks.set(metadata.name, check))

    def put_queued(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload of Kueue; those without quota or without checks are left out."""
        metadata = manifest.metadata
        queued = None
        if manifest.status.get("admissionChecks"):
            queued = queued_workload(workload_of(manifest), metadata.resource_version)
        without = _without(self.view.queued, metadata.uid)
        if queued is not None or without is not self.view.queued:
            self._change(queued=without if queued is None else without.set(queued.uid, queued))

    def put_flavor(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a ResourceFlavor."""
        flavor = msgspec.convert(manifest.spec, Flavor)
        self._change(flavors=self.view.flavors.set(manifest.metadata.name, flavor))

    def delete_of_kueue(self, manifest: api.WorkloadManifest) -> None:
        """Remove an object of Kueue."""
        view, metadata = self.view, manifest.metadata
        if manifest.kind.endswith("Workload"):
            self._change(queued=_without(view.queued, metadata.uid))
        elif manifest.kind.endswith("AdmissionCheck"):
            self._change(checks=_without(view.checks, metadata.name))
        else:
            self._change(flavors=_without(view.flavors, metadata.name))

    def set_served(self, kinds: AbstractSet[str]) -> None:
        """Set which kinds are read: those of them whose objects are not all known are pending."""
        pending = frozenset(kinds - self.view.synced)
        if pending != self.view.pending:
            self._change(pending=pending)

    def set_synced(self, kind: str, *, synced: bool) -> None:
        """Set whether all objects of a kind are known."""
        kinds = self.view.synced | {kind} if synced else self.view.synced - {kind}
        pending = self.view.pending - {kind} if synced else self.view.pending
        if (kinds, pending) != (self.view.synced, self.view.pending):
            self._change(synced=kinds, pending=pending)

    def set_absent(self, kinds: frozenset[str]) -> None:
        """Set the kinds that are not served in any version."""
        if kinds != self.view.absent:
            self._change(absent=kinds)

    def _remove(self, workload: WorkloadObject) -> None:
        self._change(
            objects=self.view.objects.delete(workload.uid),
            owned=_without_owned(self.view.owned, workload),
        )

    def _change(self, **fields: object) -> None:
        self.view = msgspec.structs.replace(self.view, revision=self.view.revision + 1, **fields)


def _without(objects: Map[str, T], key: str) -> Map[str, T]:
    return objects.delete(key) if key in objects else objects


def _without_owned(
    owned: Map[str, Map[str, WorkloadObject]], workload: WorkloadObject
) -> Map[str, Map[str, WorkloadObject]]:
    if workload.owner is None:
        return owned
    left = owned.get(workload.owner.uid, _NO_OBJECTS)
    if workload.uid in left:
        left = left.delete(workload.uid)
    return owned.set(workload.owner.uid, left) if left else owned.delete(workload.owner.uid)


def _is_builtin(workload: WorkloadObject) -> bool:
    return workload.api_version.startswith("scheduling.k8s.io/")


def is_covered(manifest: api.WorkloadManifest) -> bool:
    """Return whether a workload has a tree label, or owns objects that may have one."""
    kind = BY_KIND.get(manifest.kind)
    if kind is None:
        return False
    if TREE_LABEL in manifest.metadata.labels or kind.parts is None:
        return True
    if kind.part_of and GROUP_TEMPLATE_ANNOTATION in manifest.metadata.annotations:
        return True  # a group that it owns belongs to its own owner
    return any(
        TREE_LABEL in _labels(template)
        for template in pod_templates(kind.template_paths, manifest.spec)
    )


def _labels(template: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}
