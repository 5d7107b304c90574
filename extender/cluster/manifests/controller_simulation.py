"""Act as admission policies and workload controllers for the workloads of files: label their templates, make their pods.

No group is made here: the service compiles the workloads and writes the groups, as on a cluster. So the pods of a
workload that no tree can be made from are there too, and wait.

Note: a made pod has the labels of its template and those of its controller that do not count the pods. Nothing runs the steps of a workload: the pods of the first one are made, and those of later ones never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Entry, Ident, SourceEntry
from extender.cluster.manifests.workload_expansion import roots_of
from extender.cluster.manifests.workload_objects import (
    LiveSources,
    WorkloadSources,
    check_number_of_pods,
    controller_labels,
    pods_of_leaf,
)
from extender.cluster.read.object_decoding import workload_of
from extender.core.model.errors import BadInput
from extender.core.trees.tree_events import is_requested, profile_name
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.template_labels import with_template_labels
from extender.core.workloads.tree_compiler import CompileRequest, compile_tree
from extender.core.workloads.tree_parts import first_leaves
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    NAMESPACE,
    OFF,
    SOURCE_ANNOTATION,
    TREE_LABEL,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
    pod_templates,
)


class ServedWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """The workloads of files as an API server stores them, and the pods of their controllers."""

    manifests: tuple[api.WorkloadManifest, ...] = ()
    profiles: Mapping[str, TreeProfile] = {}
    templates: Mapping[tuple[str, str], WorkloadObject] = {}  # Workloads of users
    pods: Mapping[Ident, tuple[Entry, ...]] = {}  # by workload


def served_workloads(entries: Sequence[AnyEntry]) -> ServedWorkloads:
    """Return what an API server, the admission policies and the controllers make of the workloads of files.

    Args:
        entries: All objects, each once; workloads have UIDs and creation times.
    """
    files = WorkloadSources(entries, LiveSources())
    played = [
        _PlayedWorkload(entry, entry.obj, files)
        for entry in entries
        if isinstance(entry, SourceEntry) and isinstance(entry.obj, api.WorkloadManifest)
    ]
    for workload in played:
        workload.run()
    return ServedWorkloads(
        manifests=tuple(workload.manifest for workload in played),
        profiles=files.profiles,
        templates=files.templates,
        pods={workload.ident: workload.pods for workload in played if workload.pods},
    )


class _PlayedWorkload:
    """One workload: its object as it is stored, and its pods."""

    def __init__(
        self, entry: SourceEntry, manifest: api.WorkloadManifest, files: WorkloadSources
    ) -> None:
        self.ident = entry.ident
        self.manifest = manifest
        self.pods: tuple[Entry, ...] = ()
        self._entry = entry
        self._files = files
        self._kind = BY_KIND[manifest.kind]
        self._owner = files.owner_of(workload_of(manifest))
        if self._owner is not None:
            self.manifest = _owned_by(self._owner, manifest)

    def run(self) -> None:
        """Label the workload and make its pods."""
        where = self._entry.where
        try:
            self._run()
        except BadInput as fault:
            raise BadInput(f"{where}: {fault}") from fault
        except (TypeError, ValueError, KeyError, AttributeError) as fault:
            text = f"a field has another type than in the API: {type(fault).__name__}: {fault}"
            raise BadInput(f"{where}: {self.manifest.label}: {text}") from fault

    def _run(self) -> None:
        workload, kind = workload_of(self.manifest), self._kind
        label = self._coverage(workload)
        if label in ("", OFF) or kind.parts is None or kind.kept_out(workload):
            return
        self.manifest = _labelled(kind, self.manifest, label)
        workload = workload_of(self.manifest)
        part = workload.owner is not None and workload.owner.kind in kind.part_of
        profile = profile_name(kind, workload)
        if part or not profile or kind.finished(workload) or workload.deleting:
            return
        source = self._policy_source(workload)
        request = CompileRequest(
            workload=workload,
            owner=None if source is workload else source,
            profile=self._files.profiles.get(profile),
            profile_name=profile,
            requested=is_requested(workload, source),
            uses=self._files.uses_of(kind, workload),
            existing=self._files.existing_of(workload),
            templates=self._files.templates.get(
                (workload.namespace, source.annotations.get(WORKLOAD_ANNOTATION, ""))
            ),
        )
        compile_tree(kind, request)  # what its code cannot read is an error of the file
        if kind.template_paths and not kind.suspended(workload):
            self.pods = tuple(self._pods(request))

    def _policy_source(self, workload: WorkloadObject) -> WorkloadObject:
        """Return the object whose annotations count."""
        owner = self._owner
        return owner if owner and owner.kind in self._kind.policy_from else workload

    def _coverage(self, workload: WorkloadObject) -> str:
        """Return the value of the tree label that covers a workload; empty: none."""
        own = workload.labels.get(TREE_LABEL)
        of_owner = self._owner.labels.get(TREE_LABEL) if self._owner else None
        of_namespace = self._files.namespaces.get(workload.namespace, {}).get(TREE_LABEL)
        return own or of_owner or of_namespace or ""

    def _pods(self, request: CompileRequest) -> Iterator[Entry]:
        workload, kind = request.workload, self._kind
        leaves = [leaf for root in roots_of(kind, request) for leaf in first_leaves(root)]
        check_number_of_pods(workload, leaves)
        for leaf in leaves:
            labels = controller_labels(kind, workload, leaf, request.uses)
            numbers = self._files.missing_numbers(kind, workload, leaf, labels)
            for pod in pods_of_leaf(
                leaf, workload, numbers, labels, members=True, pod_name=kind.pod_name
            ):
                yield self._entry_of(pod)

    def _entry_of(self, pod: api.Pod) -> Entry:
        """Return an entry in the place of the workload, as old as the workload is."""
        mine = self.manifest.metadata
        metadata = msgspec.structs.replace(
            pod.metadata, namespace=mine.namespace, creation_timestamp=mine.creation_timestamp
        )
        pod = msgspec.structs.replace(pod, metadata=metadata)
        where = f"{self._entry.where}, {self.manifest.label}"
        return Entry(obj=pod, where=where, role=self._entry.role)


def _labelled(
    kind: WorkloadKind, manifest: api.WorkloadManifest, label: str
) -> api.WorkloadManifest:
    """Return a workload as the admission policy stores it: its templates have the label, or without templates itself; and its exclusive domain."""
    workload = workload_of(manifest)
    if next(pod_templates(kind.template_paths, workload.spec), None) is not None:
        stamped = with_template_labels(kind, workload, label)
        metadata = msgspec.structs.replace(manifest.metadata, annotations=dict(stamped.annotations))
        return msgspec.structs.replace(manifest, spec=stamped.spec, metadata=metadata)
    metadata = manifest.metadata
    if kind.template_paths or TREE_LABEL in metadata.labels:
        return manifest
    metadata = msgspec.structs.replace(
        metadata,
        labels={**metadata.labels, TREE_LABEL: label},
        annotations={**metadata.annotations, SOURCE_ANNOTATION: NAMESPACE},
    )
    return msgspec.structs.replace(manifest, metadata=metadata)


def _owned_by(owner: WorkloadObject, manifest: api.WorkloadManifest) -> api.WorkloadManifest:
    """Return a workload whose controlling owner has the UID of the object in the files that it names."""
    metadata = manifest.metadata
    references = tuple(
        msgspec.structs.replace(reference, uid=owner.uid) if reference.controller else reference
        for reference in metadata.owner_references
    )
    metadata = msgspec.structs.replace(metadata, owner_references=references)
    return msgspec.structs.replace(manifest, metadata=metadata)
