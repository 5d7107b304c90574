"""Turn the workloads of files into groups and pods, as admission policies and controllers do on a cluster.

A workload is compiled by its entry in the table of kinds, exactly as the service does it; then each of its leaves gets the
pods that the controller of the workload would create. Pods of the workload that are in the files already are counted.

Note: a made pod has the labels of its template and those of its controller that do not count the pods. The pods of all steps of a workload are made; `queries.plan.plan_steps` has which of them run together.

For a service (`served_workloads`) templates are labelled and pods made, and no group: it compiles the workloads and writes the groups, as on a
cluster. The pods of a workload that no tree can be made from wait. Nothing runs its steps: only the pods of the first one are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import (
    AnyEntry,
    Entry,
    Ident,
    Role,
    SourceEntry,
    entries_in,
    filled_in_uid,
    with_metadata,
)
from extender.cluster.manifests.workload_objects import (
    LiveSources,
    WorkloadSources,
    check_number_of_pods,
    controller_labels,
    core_object,
    group_from,
    owner_uid,
    pods_of_leaf,
)
from extender.cluster.manifests.yaml_reader import Document
from extender.cluster.read.object_decoding import workload_of
from extender.cluster.read.unknown_fields import PREFIX
from extender.core.model.errors import BadInput, located, several, texts_of
from extender.core.model.ids import GroupKey
from extender.core.trees.tree_events import is_requested, profile_name
from extender.core.workloads.kind_table import BY_KIND, KINDS, kind_of_pod
from extender.core.workloads.kinds.plain_pods_kind import (
    NAME_LABEL,
    PLAIN_PODS,
    TOTAL_LABEL,
    is_plain,
    plain_workload,
)
from extender.core.workloads.kinds.podcliqueset_podgangs import PodGangs
from extender.core.workloads.kinds.trainjob_jobset import jobset_of
from extender.core.workloads.tree_compiler import (
    CompiledTree,
    CompileRequest,
    GroupSpec,
    adopts_groups,
    compile_tree,
    counted_parts,
    parts_of,
    workload_parts,
)
from extender.core.workloads.tree_parts import Composite, Leaf, Part, first_leaves, leaves_of
from extender.core.workloads.tree_policy import (
    DEFAULT_PROFILE,
    InvalidPolicy,
    TreeProfile,
    is_label_key,
    read_policy,
)
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    EXCLUSIVE_ANNOTATION,
    GROUP_LABEL,
    GROUP_LABELS,
    LEAF_LABEL,
    MIN_ANNOTATION,
    NAMESPACE,
    OFF,
    OTHER_SCHEDULERS,
    SOURCE_ANNOTATION,
    TREE_ANNOTATIONS,
    TREE_LABEL,
    WORKLOAD_ANNOTATION,
    WorkloadObject,
    has_tree_label,
    pod_templates,
)
from extender.queries.plan.plan_steps import GroupOrigin, RefusedWorkload

_TREE_FIELD = f"metadata.labels[{TREE_LABEL}]"
_ENDED = "is finished or being deleted: it needs no pods any more"


NO_LIVE_SOURCES = LiveSources()
NO_TEMPLATES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
_EXPANDED: Final = (api.WorkloadManifest, api.PodCliqueSet)


class Expansion(msgspec.Struct, kw_only=True):
    """What was made from workloads."""

    made: dict[Ident, tuple[Entry, ...]] = {}  # by workload: groups, parents first, then pods
    plain: list[Entry] = []  # groups of plain pods
    not_planned: set[Ident] = set()  # plain pods whose group is refused
    origins: dict[GroupKey, GroupOrigin] = {}
    refused: list[RefusedWorkload] = []  # of -f
    warnings: list[str] = []


def expand(entries: Sequence[AnyEntry], *, live: LiveSources = NO_LIVE_SOURCES) -> Expansion:
    """Return the groups and pods of all workloads of -f.

    Args:
        entries: All objects, each once; workloads have UIDs.

    Raises:
        BadInput: A workload cannot be read, or one of its groups belongs to another object.
    """
    expansion = Expansion()
    sources = [entry for entry in entries if isinstance(entry, SourceEntry)]
    if any(isinstance(entry.obj, _EXPANDED) for entry in sources):
        files = WorkloadSources(entries, live)
        faults: list[str] = []
        for entry in sources:
            if entry.role is Role.WANTED:
                try:
                    for workload_expansion in _expansions(entry, files, expansion):
                        workload_expansion.run()
                except BadInput as fault:
                    faults += texts_of(fault)
        if faults:
            raise several(tuple(faults))
    _expand_plain_pods(entries, live, expansion)
    return expansion


def _expand_plain_pods(
    entries: Sequence[AnyEntry], live: LiveSources, expansion: Expansion
) -> None:
    """Add the groups of the plain pods of -f; one that is in the files stays as it is."""
    pods: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.role is Role.WANTED and isinstance(entry.obj, api.Pod):
            metadata = entry.obj.metadata
            if is_plain(metadata.labels):
                key = (metadata.namespace, metadata.labels[GROUP_LABEL])
                pods.setdefault(key, []).append(entry)
            elif text := _not_a_member(entry.obj):
                expansion.warnings.append(f"Pod/{metadata.namespace}/{metadata.name}: {text}")
    if not pods:
        return
    files = WorkloadSources(entries, live)
    for (namespace, name), members in pods.items():
        if GroupKey(namespace, name, "PodGroup") in files.groups:
            continue
        labels = [entry.obj.metadata.labels for entry in members]
        annotations = {key for own in members for key in own.obj.metadata.annotations}
        profile = labels[0][TREE_LABEL]
        workload = plain_workload(
            namespace,
            name,
            profile,
            sorted({own[TOTAL_LABEL] for own in labels}),
            sorted({cast("api.Pod", entry.obj).spec.priority_class_name for entry in members}),
            sorted(annotations.intersection(TREE_ANNOTATIONS)),
        )
        of_name = files.profiles.get(profile)
        request = CompileRequest(workload=workload, profile=of_name, profile_name=profile)
        tree = compile_tree(PLAIN_PODS, request)
        if tree.outcome == "refused":
            assert tree.refusal is not None
            text = f"{members[0].where}: {tree.refusal.message}"
            expansion.refused.append(_refused(workload, text))
            expansion.not_planned.update(entry.ident for entry in members)
        elif len(members) > int(total := labels[0][TOTAL_LABEL]):
            text = (
                f"{len(members)} pods, but total {total}: the others are not waited for; "
                f"write {len(members)} to start all of them together"
            )
            expansion.warnings.append(f"{workload}: metadata.labels[{TOTAL_LABEL}]: {text}")
        for spec in tree.groups:
            created = members[0].obj.metadata.creation_timestamp
            group = with_metadata(group_from(spec), namespace=namespace, creation_timestamp=created)
            where = f"{members[0].where}, {workload}"
            expansion.plain.append(Entry(obj=group, where=where, role=Role.WANTED))
            expansion.origins[GroupKey(namespace, name, "PodGroup")] = GroupOrigin(
                str(workload), "pods", lowered_by=(f"label {TOTAL_LABEL}: ", " on all its pods")
            )


def _refused(of: WorkloadObject, text: str) -> RefusedWorkload:
    return RefusedWorkload(of.kind, of.namespace, of.name, text)


def _not_a_member(pod: api.Pod) -> str:
    """Return why a pod with labels of a plain group is in none, or an empty string; the leaf policy leaves it alone."""
    labels, spec = pod.metadata.labels, pod.spec
    own = [key for key in (NAME_LABEL, TOTAL_LABEL) if key in labels]
    if not own or labels.get(TREE_LABEL) == OFF or any(key in labels for key in GROUP_LABELS):
        return ""
    if kind_of_pod(labels) not in (None, PLAIN_PODS) or spec.scheduling_group.pod_group_name:
        return ""
    if len(own) == 1:
        missing = TOTAL_LABEL if NAME_LABEL in labels else NAME_LABEL
        field, state = f"metadata.labels[{missing}]", "is not set"
        advice = f"a pod of a group has both {NAME_LABEL} and {TOTAL_LABEL}"
    elif spec.node_name:
        field, state = "spec.nodeName", f"is {spec.node_name!r}"
        advice = "leave it out"
    elif spec.scheduler_name in OTHER_SCHEDULERS:
        field, state = "spec.schedulerName", f"is {spec.scheduler_name!r}"
        advice = "leave it out"
    else:
        return ""
    return f"{field}: {state}, so the pod is in no group; {advice}"


def _expansions(
    entry: SourceEntry, files: WorkloadSources, expansion: Expansion
) -> Iterator[_WorkloadExpansion]:
    """Yield the workload of an entry, or the PodGangs that Grove makes of it; those of -f stand for themselves."""
    obj = entry.obj
    if isinstance(obj, api.WorkloadManifest):
        yield _WorkloadExpansion(entry, obj, files, expansion)
    if not isinstance(obj, api.PodCliqueSet):
        return
    owner = core_object(obj, obj.spec)
    try:
        gangs = PodGangs(owner, files.topologies).gangs()
        manifests = [_made(gang.manifest, obj) for gang in gangs]
    except BadInput as fault:
        raise located(f"{entry.where}: {owner}", fault) from fault
    if not gangs:
        expansion.warnings.append(f"{owner}: spec.replicas: is 0 or not set, so it has no pods")
    for gang, podgang in zip(gangs, manifests, strict=True):
        existing = files.workloads.get(("PodGang", *podgang.key))
        if existing is None or not files.is_wanted(existing):
            manifest = podgang if existing is None else with_metadata(podgang, uid=existing.uid)
            yield _WorkloadExpansion(entry, manifest, files, expansion, gang.templates)


def _made(manifest: Mapping[str, Any], source: api.KubernetesObject) -> api.WorkloadManifest:
    """Return a workload that a controller makes from another object, as old as that."""
    document = Document(where=f"the {manifest['kind']} of {source.label}", value=dict(manifest))
    (entry,) = entries_in((document,), Role.WANTED)
    assert isinstance(entry.obj, api.WorkloadManifest), f"{entry.obj.label} is a workload"
    created = source.metadata.creation_timestamp
    uid = filled_in_uid(entry.ident, 0)
    return with_metadata(entry.obj, uid=uid, creation_timestamp=created)


class _FileWorkload(ABC):
    def __init__(
        self, entry: SourceEntry, manifest: api.WorkloadManifest, files: WorkloadSources
    ) -> None:
        self._entry = entry
        self._files = files
        self.manifest = manifest
        self._kind = BY_KIND[manifest.kind]
        self._owner = files.owner_of(workload_of(manifest))

    def run(self) -> None:
        """Do what the workload is there for; an error has its place."""
        try:
            self.expand()
        except BadInput as fault:
            raise located(self._entry.where, fault) from fault
        except (TypeError, ValueError, KeyError, AttributeError) as fault:
            text = f"a field has another type than in the API: {type(fault).__name__}: {fault}"
            raise BadInput(f"{self._entry.where}: {self.manifest.label}: {text}") from fault

    @abstractmethod
    def expand(self) -> None:
        """Do the same, without the place of the workload in errors."""

    def _source_of_policy(self, workload: WorkloadObject) -> WorkloadObject:
        owner = self._owner
        return owner if owner and owner.kind in self._kind.policy_from else workload

    def _request(
        self, workload: WorkloadObject, profile: str, *, requested: bool
    ) -> CompileRequest:
        source = self._source_of_policy(workload)
        template = source.annotations.get(WORKLOAD_ANNOTATION, "")
        return CompileRequest(
            workload=workload,
            owner=None if source is workload else source,
            profile=self._files.profiles.get(profile),
            profile_name=profile,
            requested=requested,
            uses=self._files.uses_of(self._kind, workload),
            existing=self._files.existing_of(workload),
            templates=self._files.templates.get((workload.namespace, template)),
        )

    def _pods_of(
        self, workload: WorkloadObject, leaves: Sequence[Leaf], *, members: bool
    ) -> Iterator[Entry]:
        """Yield the pods of leaves that the files do not have yet; `members`: see `pods_of_leaf`."""
        check_number_of_pods(workload, leaves)
        uses = self._files.uses_of(self._kind, workload)
        for leaf in leaves:
            labels = controller_labels(self._kind, workload, leaf, uses)
            numbers = self._files.missing_numbers(self._kind, workload, leaf, labels)
            for pod in pods_of_leaf(
                leaf, workload, numbers, labels, members=members, pod_name=self._kind.pod_name
            ):
                yield self._entry_of(pod)

    def _entry_of(self, obj: api.Group | api.Pod) -> Entry:
        """Return an entry in the place of the workload, as old as the workload is."""
        mine = self.manifest.metadata
        obj = with_metadata(
            obj, namespace=mine.namespace, creation_timestamp=mine.creation_timestamp
        )
        where = f"{self._entry.where}, {self.manifest.label}"
        return Entry(obj=obj, where=where, role=self._entry.role)


class _WorkloadExpansion(_FileWorkload):
    def __init__(
        self,
        entry: SourceEntry,
        manifest: api.WorkloadManifest,
        files: WorkloadSources,
        expansion: Expansion,
        templates: Mapping[str, Mapping[str, Any]] = NO_TEMPLATES,
    ) -> None:
        """Start; `templates`: of pods, by the role of their leaf, where the workload has none itself."""
        super().__init__(entry, manifest, files)
        self._templates = templates
        self._expansion = expansion
        self._workload = workload_of(manifest)

    def expand(self) -> None:
        """Add what the workload becomes, without its place in errors."""
        workload, kind = self._workload, self._kind
        if kind.is_part(workload) or kind.parts is None:
            self._expand_relatives()
            return
        label, requested = self._coverage()
        profile = self._files.profiles.get(label)
        if kind.finished(workload) or workload.deleting:
            self._warn(_ENDED)
        elif label == OFF:
            self._leave_alone(f"{_TREE_FIELD}: is off, so no tree is made")
        elif profile is not None and not profile.of(self._source_of_policy(workload).kind).enabled:
            self._leave_alone(f"TreeProfile {label!r} does not enable the kind")
        else:
            workload = with_template_labels(kind, workload, label)
            request = self._request(workload, label, requested=requested)
            if adopts_groups(kind, request):
                text = "the groups that its controller makes are not in the files"
                self._leave_alone(f"spec.scheduling: {text}")
            else:
                self._take(request, compile_tree(kind, request))

    def _take(self, request: CompileRequest, tree: CompiledTree) -> None:
        text = "" if tree.refusal is None else tree.refusal.message
        if tree.outcome == "kept-out":
            self._leave_alone(text.removeprefix(f"{self._workload}: "))
            return
        if tree.outcome == "refused":
            self._expansion.refused.append(_refused(self._workload, f"{self._entry.where}: {text}"))
            return
        if text:
            self._expansion.warnings.append(f"{text}; its pods are placed one by one")
        self._expansion.warnings.extend(  # the entry of the object has its fields that are not used
            notice.message for notice in tree.notices if notice.reason != "FieldNotUsed"
        )
        if self._kind.suspended(request.workload):
            self._warn("is suspended; planned as if it were resumed")
        roots = roots_of(self._kind, request)
        parts = {part.name: part for root in roots for part in parts_of(root)}
        origin = str(self._workload)
        lowered = {part.name for root in roots for part in counted_parts(root)}
        groups = [self._group(spec) for spec in tree.groups]
        for spec in tree.groups:
            key = GroupKey(self._workload.namespace, spec.name, spec.kind)
            part = parts.get(spec.name)
            steps = part.steps if isinstance(part, Composite) else ()
            role, apart = (part.role, part.apart) if part is not None else ("", ())
            by = self._lowered_by(role) if spec.name in lowered else ("", "")
            self._expansion.origins[key] = GroupOrigin(origin, role, steps, apart, by)
        leaves = [leaf for root in roots for leaf in leaves_of(root)]
        if not leaves:
            self._warn("needs no pods as it is, so nothing of it is planned")
        self._add((*groups, *self._pods(leaves, members=True)))

    def _lowered_by(self, role: str) -> tuple[str, str]:
        """Return the annotation for the minimum of a role, before and behind the number; empty: no object of a user has it."""
        on = self._entry.annotated
        if on is None and not isinstance(self._entry.obj, api.PodCliqueSet):
            on = f"on {self._source_of_policy(self._workload)}"
        return (f"annotation {MIN_ANNOTATION}: {role}=", f" {on}") if on else ("", "")

    # --- who decides

    def _expand_relatives(self) -> None:
        """Expand what the controller makes for a workload without pods of its own, where the files do not have it."""
        workload, owner = self._workload, self._workload.owner
        if owner is not None and self._kind.is_part(workload):
            if self._owner is None:
                text = f"is part of {owner.kind} {owner.name}; give that in its place"
                raise BadInput(f"{workload}: metadata.ownerReferences: {text}")
            return
        kinds = [kind.kind for kind in KINDS if workload.kind in kind.policy_from]
        jobset = self._files.owned_by(workload, kinds)
        if jobset is None or not self._files.is_wanted(jobset):
            self._expand_trainjob(jobset)

    def _expand_trainjob(self, existing: WorkloadObject | None) -> None:
        """Add what the JobSet of a TrainJob becomes; `existing`: the JobSet that exists already."""
        trainjob, kind = self._workload, self._kind
        if reason := kind.kept_out(trainjob):
            self._warn(f"{reason}; its pods are not planned")
            return
        if kind.finished(trainjob) or trainjob.deleting:
            self._warn(_ENDED)
            return
        try:
            jobset = jobset_of(trainjob, self._files.runtime(trainjob))
        except BadInput as fault:
            raise located(str(trainjob), fault) from fault
        manifest = _made(jobset, self.manifest)
        if existing is not None:
            manifest = with_metadata(manifest, uid=existing.uid)
        _WorkloadExpansion(self._entry, manifest, self._files, self._expansion).expand()

    def _coverage(self) -> tuple[str, bool]:
        """Return the value of the tree label that covers the workload, and whether it has the label itself."""
        source = self._source_of_policy(self._workload)
        label = self._workload.labels.get(TREE_LABEL) or source.labels.get(TREE_LABEL)
        if label:
            return label, is_requested(self._workload, source)
        if label := self._files.namespaces.get(self._workload.namespace, {}).get(TREE_LABEL):
            return label, False
        self._warn(f"{_TREE_FIELD}: is not set; planned as if it were {DEFAULT_PROFILE.name}")
        return DEFAULT_PROFILE.name, True

    # --- results

    def _leave_alone(self, reason: str) -> None:
        """Add the pods of a workload that no tree is made from, as its controller makes them."""
        self._warn(f"{reason}; its pods are planned as they are")
        uses = self._files.uses_of(self._kind, self._workload)
        plain = _plain(self._workload)
        request = CompileRequest(workload=plain, profile=None, profile_name="", uses=uses)
        leaves = [leaf for root in roots_of(self._kind, request) for leaf in leaves_of(root)]
        self._add(tuple(self._pods(leaves, members=False)))

    def _warn(self, text: str) -> None:
        self._expansion.warnings.append(f"{self._workload}: {text}")

    def _add(self, entries: tuple[Entry, ...]) -> None:
        before = self._expansion.made.get(self._entry.ident, ())
        self._expansion.made[self._entry.ident] = (*before, *entries)

    def _group(self, spec: GroupSpec) -> Entry:
        workload = self._workload
        existing = self._files.groups.get(GroupKey(workload.namespace, spec.name, spec.kind))
        if existing is not None and owner_uid(existing[1]) != workload.uid:
            text = f"{existing[1].label} of {existing[0]} has the name of one of its groups; rename or delete it"
            raise BadInput(f"{workload}: {text}")
        return self._entry_of(group_from(spec))

    def _pods(self, leaves: Iterable[Leaf], *, members: bool) -> Iterator[Entry]:
        existing = self._files.pods_of(self._workload)
        if not self._kind.template_paths and not self._templates:
            if not existing:
                self._warn("has no pod templates; give its pods in the files too")
            return
        with_templates = [
            replace(leaf, template=self._templates.get(leaf.role, leaf.template)) for leaf in leaves
        ]
        for leaf in with_templates:
            if not (leaf.template.get("spec") or {}).get("containers"):
                where = f"pod template of {leaf.role}" if leaf.role else "pod template"
                text = "is missing or empty; Kubernetes refuses such pods"
                self._warn(f"{where}: spec.containers: {text}")
        yield from self._pods_of(self._workload, with_templates, members=members)


def _plain(workload: WorkloadObject) -> WorkloadObject:
    """Return a workload without our annotations; those of its controller change its pods."""
    kept = {key: text for key, text in workload.annotations.items() if not key.startswith(PREFIX)}
    return replace(workload, annotations=kept)


def roots_of(kind: WorkloadKind, request: CompileRequest) -> tuple[Part, ...]:
    """Return the parts of a workload; those of the default policy where its own cannot be read."""
    source = request.owner or request.workload
    profile = request.profile or DEFAULT_PROFILE
    try:
        policy = read_policy(source, profile.of(source.kind))
    except InvalidPolicy:
        policy = read_policy(_plain(source), profile.of(source.kind))
    try:
        return workload_parts(kind, request, policy).roots
    except InvalidPolicy:  # the compiler has the refusal
        return ()


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


class _PlayedWorkload(_FileWorkload):
    def __init__(
        self, entry: SourceEntry, manifest: api.WorkloadManifest, files: WorkloadSources
    ) -> None:
        super().__init__(entry, manifest, files)
        self.ident = entry.ident
        self.pods: tuple[Entry, ...] = ()
        if self._owner is not None:  # its UID is that of the object in the files
            references = tuple(
                replace(owner, uid=self._owner.uid) if owner.controller else owner
                for owner in manifest.metadata.owner_references
            )
            self.manifest = with_metadata(manifest, owner_references=references)

    def expand(self) -> None:
        """Label the workload and make its pods."""
        workload, kind = workload_of(self.manifest), self._kind
        label = self._coverage(workload)
        if label in ("", OFF) or kind.parts is None or kind.kept_out(workload):
            return
        self.manifest = _labelled(kind, self.manifest, label)
        workload = workload_of(self.manifest)
        profile = profile_name(kind, workload)
        if kind.is_part(workload) or not profile or kind.finished(workload) or workload.deleting:
            return
        requested = is_requested(workload, self._source_of_policy(workload))
        request = self._request(workload, profile, requested=requested)
        compile_tree(kind, request)  # what its code cannot read is an error of the file
        if kind.template_paths and not kind.suspended(workload):
            roots = roots_of(kind, request)
            leaves = [leaf for root in roots for leaf in first_leaves(root)]
            self.pods = tuple(self._pods_of(workload, leaves, members=True))

    def _coverage(self, workload: WorkloadObject) -> str:
        """Return the value of the tree label that covers a workload; empty: none."""
        own = workload.labels.get(TREE_LABEL)
        of_owner = self._owner.labels.get(TREE_LABEL) if self._owner else None
        of_namespace = self._files.namespaces.get(workload.namespace, {}).get(TREE_LABEL)
        return own or of_owner or of_namespace or ""


def _labelled(
    kind: WorkloadKind, manifest: api.WorkloadManifest, label: str
) -> api.WorkloadManifest:
    """Return a workload as the admission policy stores it: its templates have the label, or without templates itself; and its exclusive domain."""
    workload = workload_of(manifest)
    if next(pod_templates(kind.template_paths, workload.spec), None) is not None:
        stamped = with_template_labels(kind, workload, label)
        manifest = with_metadata(manifest, annotations=dict(stamped.annotations))
        return replace(manifest, spec=stamped.spec)
    metadata = manifest.metadata
    if kind.template_paths or TREE_LABEL in metadata.labels:
        return manifest
    return with_metadata(
        manifest,
        labels={**metadata.labels, TREE_LABEL: label},
        annotations={**metadata.annotations, SOURCE_ANNOTATION: NAMESPACE},
    )


_LabelsFor = Callable[[Mapping[str, Any]], Mapping[str, str]]


def with_template_labels(
    kind: WorkloadKind, workload: WorkloadObject, profile: str
) -> WorkloadObject:
    """Return a workload whose pod templates have the tree label and the leaf label of its kind.

    A label that a template has already stays as it is, and a template that does not exist is not made. An exclusive topology
    as its controller has it becomes an EXCLUSIVE_ANNOTATION, unless a template has the tree label already.

    Args:
        workload: The workload; it is not changed.
        profile: The value of the tree label.
    """

    def labels(item: Mapping[str, Any]) -> Mapping[str, str]:
        added = {TREE_LABEL: profile}
        if kind.leaf_label is not None and (leaf := kind.leaf_label(item)):
            added[LEAF_LABEL] = leaf
        return added

    annotations = _with_own_domain(kind, workload)
    holder: Any = {"metadata": {"labels": dict(workload.labels)}, "spec": workload.spec}
    for path in kind.template_paths:
        holder = _with_labels(holder, path.split("."), holder, labels)
    return replace(workload, spec=holder["spec"], annotations=annotations)


def _with_own_domain(kind: WorkloadKind, workload: WorkloadObject) -> Mapping[str, str]:
    """Return the annotations of a workload, with that for an exclusive domain in place of the one of its controller."""
    theirs, annotations = kind.exclusive_annotation, workload.annotations
    key = annotations.get(theirs)
    if (
        not is_label_key(key or "")
        or kind.exclusive_level is None
        or EXCLUSIVE_ANNOTATION in annotations
        or kind.policy_owner(workload)
        or kind.is_part(workload)
        or has_tree_label(kind.template_paths, workload.spec)
    ):
        return annotations
    level = kind.exclusive_level(workload)
    if not level:
        return annotations
    rest = {name: value for name, value in annotations.items() if name != theirs}
    return {**rest, EXCLUSIVE_ANNOTATION: f"{level}={key}"}


def _with_labels(part: Any, steps: list[str], item: Any, labels: _LabelsFor) -> Any:  # noqa: ANN401 -- parts of an object
    """Return a part of an object with the labels on the templates below it.

    Args:
        part: The part; it is not changed.
        steps: The path of the templates below it.
        item: What has the templates: the innermost item of a list on the path, else the object.
        labels: Returns the labels for a template of an item.
    """
    if not isinstance(part, Mapping):
        return part
    if not steps:
        metadata = part.get("metadata") or {}
        own = metadata.get("labels") or {}
        return {**part, "metadata": {**metadata, "labels": {**labels(item), **own}}}
    name, is_list, _ = steps[0].partition("[]")
    below = part.get(name)
    if below is None:
        return part
    if is_list:
        changed = [_with_labels(element, steps[1:], element, labels) for element in below]
    else:
        changed = _with_labels(below, steps[1:], item, labels)
    return {**part, name: changed}
