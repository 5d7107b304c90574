"""Read documents of files into entries: one object each, with its place in the files.

Objects keep what they have; nothing is filled in but the namespace. What an API server would refuse is `BadInput`, with
file, document, object, field and value.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from sys import intern
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_validation import check, is_namespace
from extender.cluster.manifests.yaml_reader import (
    Document,
    JsonItem,
    Progress,
    documents,
    files_of,
    no_progress,
)
from extender.cluster.read.field_problems import field_problems, shown
from extender.cluster.read.object_decoding import (
    BUILTIN_GROUP,
    OUR_GROUP,
    convert,
    named,
    source_of,
    without_nulls,
)
from extender.cluster.read.unknown_fields import fields_not_read, is_unknown_name, unknown_names
from extender.core.model.errors import BadInput, several, texts_of
from extender.core.model.message_formatting import did_you_mean
from extender.core.workloads.fields.field_check import field_notes
from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.kinds.podcliqueset_podgangs import GROUP as GROVE_GROUP
from extender.core.workloads.kinds.podcliqueset_podgangs import PODCLIQUESET_SPEC
from extender.core.workloads.kinds.trainjob_jobset import GROUP as TRAINER_GROUP
from extender.core.workloads.workload_kind import (
    POD_FIELDS,
    HeldWorkload,
    WorkloadKind,
    fields_type,
)

NAMESPACE: Final = "default"
_encode = msgspec.msgpack.Encoder().encode
NODE_GROUP: Final = "node.k8s.io"
STORAGE_GROUP: Final = "storage.k8s.io"
# Kinds of the core group without pods; there are no others, so any other kind is misspelt
_CORE_BESIDE: Final = frozenset(
    ("ConfigMap", "Endpoints", "Event", "ResourceQuota", "Secret", "Service", "ServiceAccount")
)  # fmt: skip
_MAKES_PODS: Final = frozenset(  # kinds that make pods and are not planned, also where no container is written in them
    (group, kind)
    for group, kinds in {
        "apps": "Deployment DaemonSet ReplicaSet",
        "extensions": "Deployment DaemonSet ReplicaSet",
        "argoproj.io": "Workflow CronWorkflow Rollout",
        "batch.volcano.sh": "Job",
        "flink.apache.org": "FlinkDeployment FlinkSessionJob",
        "kubeflow.org": "Notebook",
        "nvidia.com": "DynamoGraphDeployment DynamoComponentDeployment",
        "apps.nvidia.com": "NIMService NIMPipeline",
        "serving.knative.dev": "Service Configuration Revision",
        "serving.kserve.io": "InferenceService LLMInferenceService InferenceGraph",
        "sparkoperator.k8s.io": "SparkApplication ScheduledSparkApplication SparkConnect",
        "tekton.dev": "TaskRun PipelineRun",
        "workload.codeflare.dev": "AppWrapper",
    }.items()
    for kind in kinds.split()
)
# What the topology of groups of other schedulers is here, by API group
_THEIR_TOPOLOGY: Final = {
    **dict.fromkeys(
        ("scheduling.volcano.sh", "batch.volcano.sh"),
        "networkTopology has tiers where groups here have keys of node labels, mode soft in schedulingConstraints.preferred "
        "(of a workload gang-extender.dev/topology: root=~KEY), mode hard in schedulingConstraints.topology (root=KEY)",
    ),
    "scheduling.run.ai": "topologyConstraint.preferredTopologyLevel is in schedulingConstraints.preferred here (of a workload "
    "gang-extender.dev/topology: root=~KEY), requiredTopologyLevel in schedulingConstraints.topology (root=KEY)",
}
_KUSTOMIZE: Final = "kustomize.config.k8s.io"
_KUSTOMIZED: Final = "; of a kustomization give the output of `kubectl kustomize`"
_NO_PODS: Final = frozenset(("", "apps", "autoscaling", "batch", "policy", "kueue.x-k8s.io"))
_POD_SPEC: Final = fields_type("PodSpec", POD_FIELDS)
GENERATED: Final = 5  # characters that the API server adds to a generateName
FAULTS_MAX: Final = 1_000  # a body of 16 MB may have millions of wrong objects
_UIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, OUR_GROUP)
_CLUSTER_WIDE: Final = (
    api.Node,
    api.PersistentVolume,
    api.PriorityClass,
    api.RuntimeClass,
    api.StorageClass,
    api.Namespace,
    api.TreeProfile,
    api.ClusterTopology,
    api.ClusterTrainingRuntime,
)
_GROUP_KINDS: Final = ("PodGroup", "CompositePodGroup", "Workload")
# Kubernetes 1.35: same name, other meaning
_OLDEST: Final = ("Workload", f"{BUILTIN_GROUP}/v1alpha1")
_FIELDS_KNOWN: Final = (
    api.WorkloadManifest,
    api.PodCliqueSet,
    api.TrainingRuntime,
    api.ClusterTrainingRuntime,
    api.Pod,
)

Ident = tuple[str, str, str, str]  # kind, API group (of groups), namespace, name
Source = (
    api.WorkloadManifest
    | api.TreeProfile
    | api.Namespace
    | api.TrainingRuntime
    | api.PodCliqueSet
    | api.ClusterTopology
    | api.LimitRange
    | api.RuntimeClass
    | api.OtherObject
)
T = TypeVar("T", bound=api.KubernetesObject)

# By API group and kind: the objects that are read, then those that they are made from; workloads are in KINDS.
_TYPES: Final[dict[tuple[str, str], type[api.Readable | Source]]] = {
    **{("", kind.__name__): kind for kind in (api.Node, api.Pod, api.PersistentVolume)},
    ("", "PersistentVolumeClaim"): api.PersistentVolumeClaim,
    (BUILTIN_GROUP, "PriorityClass"): api.PriorityClass,
    **{(group, k): api.KINDS[k] for group in (BUILTIN_GROUP, OUR_GROUP) for k in _GROUP_KINDS},
    ("policy", "PodDisruptionBudget"): api.PodDisruptionBudget,
    (STORAGE_GROUP, "StorageClass"): api.StorageClass,
    ("", "LimitRange"): api.LimitRange,
    ("", "Namespace"): api.Namespace,
    (NODE_GROUP, "RuntimeClass"): api.RuntimeClass,
    (OUR_GROUP, "TreeProfile"): api.TreeProfile,
    (TRAINER_GROUP, "ClusterTrainingRuntime"): api.ClusterTrainingRuntime,
    (TRAINER_GROUP, "TrainingRuntime"): api.TrainingRuntime,
    (GROVE_GROUP, "PodCliqueSet"): api.PodCliqueSet,
    (GROVE_GROUP, "ClusterTopology"): api.ClusterTopology,
    (GROVE_GROUP, "ClusterTopologyBinding"): api.ClusterTopologyBinding,
}
# API group of `_TYPES` -> its versions, newest first
_VERSIONS: Final[dict[str, tuple[str, ...]]] = {
    "": ("v1",),
    BUILTIN_GROUP: ("v1", "v1beta1", "v1alpha3", "v1alpha2"),
    **dict.fromkeys((OUR_GROUP, TRAINER_GROUP, GROVE_GROUP), ("v1alpha1",)),
    **dict.fromkeys(("policy", STORAGE_GROUP), ("v1", "v1beta1")),
    NODE_GROUP: ("v1",),
}
_VERSION: Final = re.compile(r"v(?P<major>\d+)((?P<stage>alpha|beta)(?P<minor>\d+))?")
_HOLDERS: Final = {(kind.group, holder): kind for kind in KINDS for holder in kind.holders}
_ALL_KINDS: Final = sorted(
    {*(kind for _, kind in _HOLDERS), *api.KINDS, *BY_KIND, *(kind for _, kind in _TYPES)}
)
_PLANNED: Final = sorted({"Pod", "PodGroup", "CompositePodGroup", "PodCliqueSet", *(kind for _, kind in _HOLDERS), *(kind.kind for kind in KINDS if kind.plural)})  # fmt: skip
_ALL_GROUPS: Final = sorted({*_VERSIONS, *(kind.group for kind in KINDS)} - {""})


class Role(Enum):
    """The purpose of a file."""

    CLUSTER = "--cluster"  # existing objects; unknown kinds are ignored
    WANTED = "-f"  # objects to plan; an unknown kind is an error


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One object and its place in the files."""

    obj: api.Readable
    where: str
    role: Role
    notes: tuple[str, ...] = ()  # what is unusual about it and accepted

    @property
    def ident(self) -> Ident:
        """Return the identity of the object."""
        return ident_of(self.obj)


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One object that groups and pods are made from, and its place in the files."""

    obj: Source
    where: str
    role: Role
    notes: tuple[str, ...] = ()
    holder: tuple[str, str, str] | None = None  # kind, namespace, name of what it is made from
    # of one that is made from another object: where there its annotations are; empty: nowhere
    annotated: str | None = None

    @property
    def ident(self) -> Ident:
        """Return the identity of the object."""
        obj = self.obj
        kind = obj.kind if isinstance(obj, api.WorkloadManifest) else type(obj).__name__
        other = f"{obj.api_version} {obj.kind}" if isinstance(obj, api.OtherObject) else ""
        return (kind, other, *obj.key)


AnyEntry = Entry | SourceEntry
SomeEntry = TypeVar("SomeEntry", bound=AnyEntry)


def read(paths: Sequence[str], role: Role) -> tuple[AnyEntry, ...]:
    """Return the objects of files, with nothing filled in.

    Raises:
        BadInput: Objects cannot be read, or an API server would refuse them; names all of them.
    """
    return read_all(((paths, role),))


def read_all(
    groups: Iterable[tuple[Sequence[str], Role]], progress: Progress = no_progress
) -> tuple[AnyEntry, ...]:
    """Return the objects of files of several roles, with nothing filled in.

    Args:
        progress: Called while a large list in YAML is read.

    Raises:
        BadInput: Objects cannot be read, or an API server would refuse them; names all of them.
    """
    entries: list[AnyEntry] = []
    faults: list[str] = []
    for paths, role in groups:
        for name in files_of(paths):
            try:
                entries += entries_in(documents(name, progress), role)
            except BadInput as fault:
                faults += texts_of(fault)
    if faults:
        raise several(tuple(faults))
    return tuple(entries)


def entries_in(documents: Iterable[Document | JsonItem], role: Role) -> tuple[AnyEntry, ...]:
    """Return the objects of documents, and the items of lists one by one.

    Raises:
        BadInput: A document is not an object, its kind is unknown in -f, or a field is wrong; names all such objects, or
            the first ones: after `FAULTS_MAX` no further object is read.
    """
    entries: list[AnyEntry] = []
    faults: list[str] = []
    directly = _DirectReader()
    for each in documents:
        if isinstance(each, JsonItem) and role is Role.CLUSTER:
            usual = directly.read(each)
            if usual is not None:
                entries.append(usual)
                continue
        document = each.document if isinstance(each, JsonItem) else each
        for obj, where in _objects(document.value, document.where, {}):
            try:
                entry = _entry(obj, where, role)
            except BadInput as fault:
                faults += texts_of(fault)
                if len(faults) >= FAULTS_MAX:
                    raise several(tuple(faults), complete=False) from fault
                continue
            if entry is not None:
                entries.append(entry)
    if faults:
        raise several(tuple(faults))
    return tuple(entries)


class _NodeSpecText(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: msgspec.Raw = msgspec.Raw(b"[]")


class _NodeStatusText(msgspec.Struct, frozen=True):
    allocatable: msgspec.Raw = msgspec.Raw(b"{}")
    capacity: msgspec.Raw = msgspec.Raw(b"{}")


class _NodeText(msgspec.Struct, frozen=True, rename="camel"):
    """A node of which the parts that nodes of a class share are not decoded."""

    api_version: str = ""
    kind: str = ""
    metadata: api.ObjectMeta = api.ObjectMeta()
    spec: _NodeSpecText = _NodeSpecText()
    status: _NodeStatusText = _NodeStatusText()


class _DirectReader:
    """Reads nodes and pods of a cluster without dicts in between; parts that are equal are one object.

    A cluster has many of them, and of `_read_as` these need few checks.
    """

    _NODE: Final = msgspec.json.Decoder(_NodeText)
    _POD: Final = msgspec.json.Decoder(api.Pod)

    def __init__(self) -> None:
        # whether the last item was one: the next one is probably of the same kind
        self._pods = False
        self._parts: dict[object, Any] = {}  # by what they are decoded from, or their bytes
        # labels and annotations that some object has together, all of them known
        self._usual_names: set[tuple[str, ...]] = set()

    def read(self, item: JsonItem) -> Entry | None:
        """Return the entry of an item; None: it is of another kind, or something about it is unusual."""
        try:
            obj = self._pod(item.text) if self._pods else self._node(item.text)
            if obj is None:
                self._pods = not self._pods
                obj = self._pod(item.text) if self._pods else self._node(item.text)
        except (msgspec.ValidationError, UnicodeDecodeError):
            return None
        if obj is None or obj.api_version != "v1" or not obj.metadata.name:
            return None
        metadata = obj.metadata
        if self._has_unknown_names(metadata):
            return None
        if isinstance(obj, api.Node):
            if metadata.namespace:
                return None
        elif not is_namespace(metadata.namespace) or any(v.ephemeral for v in obj.spec.volumes):
            return None
        if metadata.annotations:
            shared = self._parts.setdefault(_encode(metadata.annotations), metadata.annotations)
            msgspec.structs.force_setattr(metadata, "annotations", shared)
        labels = metadata.labels
        for key in labels:
            labels[key] = intern(labels[key])
        return Entry(obj=obj, where=item.where, role=Role.CLUSTER)

    def _pod(self, text: msgspec.Raw) -> api.Pod | None:
        pod = self._POD.decode(text)
        return pod if pod.kind == "Pod" else None

    def _node(self, text: msgspec.Raw) -> api.Node | None:
        node = self._NODE.decode(text)
        if node.kind != "Node":
            return None
        taints, status = bytes(node.spec.taints), node.status
        spec_key = (node.spec.unschedulable, taints)
        spec = self._parts.get(spec_key)
        if spec is None:
            decoded = msgspec.json.decode(taints, type=tuple[api.NodeTaint, ...])
            spec = api.NodeSpec(unschedulable=node.spec.unschedulable, taints=decoded)
            self._parts[spec_key] = spec
        status_key = b'{"allocatable":%b,"capacity":%b}' % (status.allocatable, status.capacity)
        if (shared := self._parts.get(status_key)) is None:
            shared = self._parts[status_key] = msgspec.json.decode(status_key, type=api.NodeStatus)
        metadata = node.metadata
        return api.Node(
            api_version=node.api_version, kind="Node", metadata=metadata, spec=spec, status=shared
        )

    def _has_unknown_names(self, metadata: api.ObjectMeta) -> bool:
        names = (*metadata.labels, "", *metadata.annotations)
        if names not in self._usual_names:
            fields = {"labels": metadata.labels, "annotations": metadata.annotations}
            if any(is_unknown_name(field, name) for field in fields for name in fields[field]):
                return True
            self._usual_names.add(names)
        return False


def _objects(
    value: object, where: str, defaults: Mapping[str, object]
) -> Iterator[tuple[object, str]]:
    """Yield what a document has, and the items of a list one by one, each with its place."""
    if not isinstance(value, dict):
        yield value, where
        return
    obj = {**defaults, **value}
    kind, items = obj.get("kind"), obj.get("items")
    items = [] if items is None else items
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list):
        yield obj, where
        return
    version = obj.get("apiVersion")
    inside = {} if kind == "List" else {"kind": kind.removesuffix("List"), "apiVersion": version}
    for n, item in enumerate(items, start=1):
        yield from _objects(item, f"{where}, item {n}", inside)


def _entry(obj: object, where: str, role: Role) -> AnyEntry | None:
    """Return the entry of an object; None: its kind affects nothing."""
    if not isinstance(obj, dict):
        raise BadInput(f"{where}: not an object with apiVersion and kind, found {shown(obj)}")
    kind, version = obj.get("kind"), obj.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        field = "apiVersion" if isinstance(kind, str) else "kind"
        hint = _KUSTOMIZED if "kustomization.y" in where else ""
        raise BadInput(f"{where}: {named('object', obj)}: {field} is missing or not text{hint}")
    if kind.endswith("List") and "items" in obj:
        raise BadInput(f"{where}: {kind}: items: expected a list, found {shown(obj['items'])}")
    group = _group_of(version)
    try:
        object_type = _TYPES.get((group, kind))
        if kind in BY_KIND and BY_KIND[kind].group == group and BY_KIND[kind].plural:
            object_type = api.WorkloadManifest
        if object_type is not None and (kind, version) != _OLDEST:
            return _read_entry(object_type, obj, where, role)
        if (of := _HOLDERS.get((group, kind))) is not None:
            return _held_entry(of, obj, where, role)
        _check_ignored(obj, kind, version, role)
        if role is Role.WANTED:
            return SourceEntry(obj=_other(_named(obj, where)), where=where, role=role)
    except BadInput as fault:
        name = named(kind, obj)
        texts = (t if t.startswith(name) else f"{name}: {t}" for t in texts_of(fault))
        raise several(tuple(f"{where}: {text}" for text in texts)) from fault
    return None


def _read_entry(
    object_type: type[api.Readable | Source], obj: Mapping[str, Any], where: str, role: Role
) -> AnyEntry:
    kind, is_workload = str(obj["kind"]), object_type is api.WorkloadManifest
    if kind in api.KINDS or (is_workload and role is Role.WANTED):
        _check_version(kind, str(obj["apiVersion"]))
    if is_workload:
        _check_fields(kind, BY_KIND[kind].spec_type, obj)
    elif object_type is api.PodCliqueSet:
        _check_fields(kind, PODCLIQUESET_SPEC, obj)
    decoded, notes = _read_as(object_type, obj, where, role)
    entry_type: Any = Entry if isinstance(decoded, api.Readable) else SourceEntry
    entry: AnyEntry = entry_type(obj=decoded, where=where, role=role, notes=notes)
    return entry


def _held_entry(
    kind: WorkloadKind, obj: Mapping[str, Any], where: str, role: Role
) -> SourceEntry | None:
    """Return the workload that the controller of an object makes from it; None in --cluster: it makes none."""
    holder = str(obj["kind"])
    _check_version(holder, str(obj["apiVersion"]))
    cleaned = without_nulls(_named(obj, where))
    assert isinstance(cleaned, dict), "an object stays one"
    obj = cleaned
    try:
        held = kind.holders[holder](obj)
        metadata = {**obj.get("metadata", {})}
    except (AttributeError, TypeError) as fault:
        raise BadInput(f"a field has another type than in the API: {fault}") from fault
    name = named(holder, obj)
    lost = _lost_metadata(kind, metadata, held)
    own = (*field_notes(holder, obj), *lost, held.note)
    notes = tuple(f"{name}: {note}" for note in own if str(note))
    if held.spec is None:
        other = SourceEntry(obj=_other(obj), where=where, role=role, notes=notes)
        return other if role is Role.WANTED else None
    manifest = {
        "apiVersion": obj["apiVersion"],
        "kind": kind.kind,
        "metadata": {
            **{field: metadata[field] for field in ("name", "namespace") if field in metadata},
            "labels": held.labels,
            "annotations": held.annotations,
        },
        "spec": held.spec,
    }
    _check_fields(kind.kind, kind.spec_type, manifest)
    workload, _ = _read_as(api.WorkloadManifest, manifest, where, role)
    owner = (holder, *workload.key)
    if role is Role.CLUSTER:
        notes = ()
    place = f"in {held.metadata_at} of" if held.metadata_at != "metadata" else "on"
    annotated = f"{place} {'/'.join(owner)}" if held.metadata_at else ""
    return SourceEntry(
        obj=workload, where=where, role=role, notes=notes, holder=owner, annotated=annotated
    )


def _lost_metadata(
    kind: WorkloadKind, metadata: Mapping[str, Any], held: HeldWorkload
) -> Iterator[str]:
    """Yield the labels and annotations of ours that an object has where its workload does not get them from."""
    if held.metadata_at == "metadata":
        return
    for field, own in (("labels", held.labels), ("annotations", held.annotations)):
        for key in metadata.get(field) or ():
            if key.startswith(f"{OUR_GROUP}/") and key not in own:
                advice = f"; write it to {held.metadata_at}.{field}" if held.metadata_at else ""
                yield f"metadata.{field}[{key}]: does not reach the {kind.kind}s{advice}"


def _check_version(kind: str, version: str) -> None:
    """Raise BadInput if an API group has a kind, and not in this version."""
    versions = _versions_of(kind)
    group = _group_of(version)
    same = [other for other in versions if _group_of(other) == group]
    if version not in versions and group != BUILTIN_GROUP:  # Kubernetes adds versions
        if _age(version) < min(map(_age, same)):
            text = f'"{version}" of {kind} is older than what is read; write {same[0]}, and the fields as it has them'
            raise BadInput(f"apiVersion: {text}")
        raise BadInput(f'apiVersion: there is no "{version}" of {kind}; did you mean {same[0]}?')


def _age(version: str) -> tuple[float, int, int]:
    """Return how new an API version is, larger for newer ones; the largest for what is no version.

    Source:
        The order of versions in CustomResourceDefinitions: v2, v1, v1beta1, v1alpha2, v1alpha1.
    """
    parsed = _VERSION.fullmatch(version.rpartition("/")[2])
    if parsed is None:
        return (math.inf, 0, 0)
    stages = ("alpha", "beta", None)
    return (stages.index(parsed["stage"]), int(parsed["major"]), int(parsed["minor"] or 0))


def _versions_of(kind: str) -> tuple[str, ...]:
    """Return the API versions of a kind that are read, newest first."""
    groups = [(group, _VERSIONS[group]) for group, name in _TYPES if name == kind]
    of_kind = [BY_KIND[kind]] if kind in BY_KIND else []
    holding = [of for (_, holder), of in _HOLDERS.items() if holder == kind]
    groups += [(of.group, of.versions) for of in (*of_kind, *holding)]
    versions = (f"{group}/{version}" for group, of_group in groups for version in of_group)
    return tuple(dict.fromkeys(version.removeprefix("/") for version in versions))


def _check_ignored(obj: Mapping[str, object], kind: str, version: str, role: Role) -> None:
    """Raise BadInput if the kind of an object is misspelt, or it is one of -f and has pods that are not planned."""
    group = _group_of(version)
    ours = f"{OUR_GROUP}/v1alpha1"
    near = bool(difflib.get_close_matches(version, (ours,), cutoff=0.85))
    if group == OUR_GROUP:
        names = [*_GROUP_KINDS, "TreeProfile"]
        hint = did_you_mean(kind, names) or f"; its kinds are {', '.join(sorted(names))}"
        raise BadInput(f'kind: {OUR_GROUP} has no kind "{kind}"{hint}')
    if near and ours in _versions_of(kind):
        raise BadInput(f'apiVersion: there is no "{version}" of {kind}; did you mean {ours}?')
    if role is Role.WANTED:
        if group == _KUSTOMIZE:
            raise BadInput(f"kind {kind} of {version} is no object of a cluster{_KUSTOMIZED}")
        versions = _versions_of(kind)
        # no released version has groups in v1
        read = ours if ours in versions else next(iter(versions), "")
        hint = f"; that of {read} is" if read else did_you_mean(kind, _kinds_of(group))
        makes_pods = (group, kind) in _MAKES_PODS or _has_pods(obj.get("spec"))
        if hint or makes_pods or (not group and kind not in _CORE_BESIDE):
            if makes_pods:
                hint += "; or give its pods and groups" if hint else "; give its pods and groups"
            if group in _THEIR_TOPOLOGY:
                hint += f"; its {_THEIR_TOPOLOGY[group]}"
            if "did you mean" not in hint:
                hint += f"; planned are {', '.join(_PLANNED)}"
            raise BadInput(f"kind {kind} of {version} is not planned{hint}")


def _kinds_of(group: str) -> list[str]:
    """Return the kinds of an API group that are read, or all where no kind of the group is: it may be misspelt too."""
    kinds = [kind for kind in _ALL_KINDS if group in map(_group_of, _versions_of(kind))]
    near = difflib.get_close_matches(group, _ALL_GROUPS, n=1, cutoff=0.85)
    return kinds or ([*_ALL_KINDS] if near else [])


def _group_of(version: str) -> str:
    return version.rpartition("/")[0]


def has_no_pods(obj: api.OtherObject) -> bool:
    """Return whether an object is of an API that is known here, so that it has no pods that are not planned."""
    group = _group_of(obj.api_version)
    builtin = group.endswith(".k8s.io") and not group.endswith(".x-k8s.io")
    return builtin or group in _NO_PODS or group in _ALL_GROUPS


def _has_pods(value: object) -> bool:
    """Return whether an object has containers somewhere: it makes pods."""
    if isinstance(value, Mapping):
        return bool(value.get("containers")) or any(map(_has_pods, value.values()))
    return isinstance(value, list) and any(map(_has_pods, value))


def _other(obj: Mapping[str, Any]) -> api.OtherObject:
    """Return an object of which only kind and name count."""
    given = obj.get("metadata")
    fields = given if isinstance(given, Mapping) else {}
    name, namespace = (str(fields.get(field) or "") for field in ("name", "namespace"))
    metadata = api.ObjectMeta(name=name, namespace=namespace)
    return api.OtherObject(
        api_version=str(obj["apiVersion"]), kind=str(obj["kind"]), metadata=metadata
    )


def _named(obj: Mapping[str, object], where: str) -> Mapping[str, object]:
    """Return an object with a name where it has a generateName, as the API server makes one; here by its place in the files."""
    metadata = obj.get("metadata")
    beginning = metadata.get("generateName") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or metadata.get("name") or not isinstance(beginning, str):
        return obj
    suffix = uuid.uuid5(_UIDS, where).hex[:GENERATED]
    return {**obj, "metadata": {**metadata, "name": f"{beginning}{suffix}"}}


def _read_as(
    kind: type[T], obj: Mapping[str, object], where: str, role: Role
) -> tuple[T, tuple[str, ...]]:
    """Return an object, and what is unusual about it."""
    wrong: list[str] = []
    unusual: list[str] = []
    metadata = obj.get("metadata")
    given = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    obj = _named(obj, where)
    namespaced = not issubclass(kind, _CLUSTER_WIDE)
    if namespaced and isinstance(given, str) and given and not is_namespace(given):
        text = "it has lower case letters, digits and -, 63 at most"
        wrong.append(f'metadata.namespace: "{given}" is not a valid name of a namespace; {text}')
    if namespaced and not given and isinstance(metadata, Mapping) and "namespace" in metadata:
        unusual.append(f'metadata.namespace: is empty; read as "{NAMESPACE}"')
    (wrong if role is Role.WANTED else unusual).extend(map(str, unknown_names(obj)))
    name = named(str(obj["kind"]), obj)
    try:
        if kind is api.Pod and role is Role.WANTED:
            _check_fields("Pod", _POD_SPEC, obj)
        decoded = convert(kind, obj)
    except BadInput as fault:
        raise several((*texts_of(fault), *(f"{name}: {text}" for text in wrong))) from fault
    decoded = with_metadata(decoded, namespace=(given or NAMESPACE) if namespaced else "")
    if not decoded.metadata.name:
        raise BadInput(f"{obj['kind']}: metadata.name: is missing")
    if kind in _FIELDS_KNOWN and (kind is not api.Pod or role is Role.WANTED):
        notes = tuple(field_notes(str(obj["kind"]), obj))
        unusual.extend(str(note) for note in notes if note.kind != "unused" or role is Role.WANTED)
        if kind is api.PodCliqueSet:  # of the others, the compiler refuses the tree
            wrong.extend(f"{note}; leave it out" for note in notes if note.kind == "constraint")
    ours = str(obj["apiVersion"]).startswith(f"{OUR_GROUP}/")
    if fields_not_read(kind) is not None:  # an API server of a later version may have more fields
        extra = field_problems(without_nulls(obj), kind, fields_not_read)
        (wrong if ours else unusual).extend(map(str, extra))
    if wrong:
        raise several(tuple(f"{name}: {text}" for text in wrong))
    if isinstance(decoded, api.Readable) and (kind is not api.Pod or role is Role.WANTED):
        check(decoded)
    return decoded, tuple(f"{name}: {text}" for text in unusual)


def _check_fields(kind: str, spec: type[msgspec.Struct] | None, obj: Mapping[str, object]) -> None:
    """Raise BadInput if a field of `spec` that is read has another type than in the API."""
    convert(_checked_type(kind, spec), obj)


@functools.cache
def _checked_type(kind: str, spec: type[msgspec.Struct] | None) -> type[api.KubernetesObject]:
    """Return a type with the fields of a kind that are read; it is called as the kind, for messages."""
    fields = [("spec", dict[str, Any] if spec is None else spec)]
    checked_type = msgspec.defstruct(
        kind, fields, bases=(api.KubernetesObject,), frozen=True, kw_only=True
    )
    return cast("type[api.KubernetesObject]", checked_type)


def ident_of(obj: api.Readable) -> Ident:
    """Return the identity of an object; groups of the two API groups are different objects."""
    source = source_of(obj) if isinstance(obj, api.Group) else ""
    return (type(obj).__name__, source, *obj.key)


def filled_in_uid(ident: Ident, times: int) -> str:
    """Return the UID of an object without one; `times`: how often an object of its name was deleted."""
    kind, group, *rest = ident
    name = "/".join((kind, *rest) if group != "builtin" else (kind, group, *rest))
    return str(uuid.uuid5(_UIDS, f"{name}#{times}" if times else name))


def with_metadata(obj: T, **changes: object) -> T:
    """Return an object with some fields of its metadata changed."""
    metadata = replace(obj.metadata, **changes)
    return replace(obj, metadata=metadata)
