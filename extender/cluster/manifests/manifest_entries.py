"""Read documents of files into entries: one object each, with its place in the files.

Objects keep what they have; nothing is filled in but the namespace. What an API server would refuse is `BadInput`, with
file, document, object, field and value.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar, cast

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_validation import check
from extender.cluster.manifests.yaml_reader import Document, files_of, read_file
from extender.cluster.read.object_decoding import (
    BUILTIN_GROUP,
    OUR_GROUP,
    convert,
    named,
    source_of,
)
from extender.cluster.types.namespace_types import Namespace
from extender.cluster.types.tree_profile_types import TreeProfile
from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.workload_kind import WorkloadKind

NAMESPACE: Final = "default"
_UIDS: Final = uuid.uuid5(uuid.NAMESPACE_DNS, OUR_GROUP)
_CLUSTER_WIDE: Final = (
    api.Node,
    api.PersistentVolume,
    api.PriorityClass,
    Namespace,
    TreeProfile,
)
_GROUP_KINDS: Final = {"PodGroup", "CompositePodGroup", "Workload"}
_READ: Final[dict[str, frozenset[str]]] = {  # API group -> kinds that are read
    "": frozenset({"Node", "Pod", "PersistentVolume", "PersistentVolumeClaim"}),
    BUILTIN_GROUP: frozenset({"PriorityClass", *_GROUP_KINDS}),
    OUR_GROUP: frozenset(_GROUP_KINDS),
    "policy": frozenset({"PodDisruptionBudget"}),
}
_OLDEST: Final = (
    "Workload",
    f"{BUILTIN_GROUP}/v1alpha1",
)  # Kubernetes 1.35: same name, other meaning
_HARMLESS: Final = frozenset(  # allowed in -f; they do not affect where a pod fits
    {("storage.k8s.io", "StorageClass")}
)

Ident = tuple[str, str, str, str]  # kind, API group (of groups), namespace, name
Source = api.WorkloadManifest | TreeProfile | Namespace
T = TypeVar("T", bound=api.KubernetesObject)

_SOURCES: Final[dict[tuple[str, str], type[Source]]] = {
    ("", "Namespace"): Namespace,
    (OUR_GROUP, "TreeProfile"): TreeProfile,
}


class Role(Enum):
    """The purpose of a file."""

    CLUSTER = "--cluster"  # existing objects; unknown kinds are ignored
    WANTED = "-f"  # objects to plan; an unknown kind is an error


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One object and its place in the files."""

    thing: api.Readable
    where: str
    role: Role

    @property
    def ident(self) -> Ident:
        """Return the identity of the object."""
        return ident_of(self.thing)


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One object that groups and pods are made from, and its place in the files."""

    thing: Source
    where: str
    role: Role

    @property
    def ident(self) -> Ident:
        """Return the identity of the object."""
        thing = self.thing
        kind = thing.kind if isinstance(thing, api.WorkloadManifest) else type(thing).__name__
        return (kind, "", *thing.key)


AnyEntry = Entry | SourceEntry
SomeEntry = TypeVar("SomeEntry", bound=AnyEntry)


def read(paths: Sequence[str], role: Role) -> tuple[AnyEntry, ...]:
    """Return the objects of files, with nothing filled in.

    Raises:
        BadInput: An object cannot be read, or an API server would refuse it.
    """
    return entries_in((d for name in files_of(paths) for d in read_file(name)), role)


def entries_in(documents: Iterable[Document], role: Role) -> tuple[AnyEntry, ...]:
    """Return the objects of documents, and the items of lists one by one.

    Raises:
        BadInput: A document is not an object, or its kind is unknown in -f.
    """
    return tuple(
        entry
        for document in documents
        for entry in _objects(document.value, document.where, role, {})
    )


def _objects(
    value: object, where: str, role: Role, defaults: Mapping[str, object]
) -> Iterator[AnyEntry]:
    if not isinstance(value, dict):
        msg = f"{where}: not an object with apiVersion and kind"
        raise BadInput(msg)
    thing = {**defaults, **value}
    kind, version = thing.get("kind"), thing.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        field = "apiVersion" if isinstance(kind, str) else "kind"
        msg = f"{where}: {named('object', value)}: {field} is missing or not text"
        raise BadInput(msg)
    if kind.endswith("List") and "items" in thing:
        inside = (
            {} if kind == "List" else {"kind": kind.removesuffix("List"), "apiVersion": version}
        )
        items = thing["items"] or []
        if not isinstance(items, list):
            msg = f"{where}: {kind}: items: not a list"
            raise BadInput(msg)
        for n, item in enumerate(items, start=1):
            yield from _objects(item, f"{where}, item {n}", role, inside)
        return
    group = version.rpartition("/")[0]
    if kind in _READ.get(group, ()) and (kind, version) != _OLDEST:
        readable: type[api.Readable] = api.KINDS[kind]
        yield Entry(thing=_read_as(readable, thing, where), where=where, role=role)
    elif (source := _source_type(kind, group)) is not None:
        if issubclass(source, api.WorkloadManifest):
            _check_fields(BY_KIND[kind], thing, where)
        yield SourceEntry(thing=_read_as(source, thing, where), where=where, role=role)
    elif role is Role.WANTED and (group, kind) not in _HARMLESS:
        msg = f"{where}: {named(kind, thing)}: kind {kind} of {version} is not planned; give its pods and groups"
        raise BadInput(msg)


def _source_type(kind: str, group: str) -> type[Source] | None:
    """Return the type of a kind that groups and pods are made from, or None."""
    if kind in BY_KIND and BY_KIND[kind].group == group:
        return api.WorkloadManifest
    return _SOURCES.get((group, kind))


def _read_as(kind: type[T], thing: Mapping[str, object], where: str) -> T:
    try:
        found = convert(kind, thing)
        space = "" if isinstance(found, _CLUSTER_WIDE) else found.metadata.namespace or NAMESPACE
        found = with_metadata(found, namespace=space)
        if isinstance(found, api.Workload | api.PodGroup | api.CompositePodGroup):
            check(found)
    except BadInput as fault:
        msg = f"{where}: {fault}"
        raise BadInput(msg) from fault
    if not found.metadata.name:
        msg = f"{where}: {thing['kind']}: metadata.name: is missing"
        raise BadInput(msg)
    return found


def _check_fields(kind: WorkloadKind, thing: Mapping[str, object], where: str) -> None:
    """Raise BadInput if a field that the table entry of a kind reads has another type than in the API."""
    try:
        convert(_checked_type(kind.kind), thing)
    except BadInput as fault:
        msg = f"{where}: {fault}"
        raise BadInput(msg) from fault


@functools.cache
def _checked_type(kind: str) -> type[api.KubernetesObject]:
    """Return a type with the fields that the table entry of a kind reads; it is called as the kind, for messages."""
    spec = BY_KIND[kind].spec_type
    found = msgspec.defstruct(
        kind,
        [("spec", dict[str, Any] if spec is None else spec)],
        bases=(api.KubernetesObject,),
        frozen=True,
        kw_only=True,
    )
    return cast("type[api.KubernetesObject]", found)


def ident_of(thing: api.Readable) -> Ident:
    """Return the identity of an object; groups of the two API groups are different objects."""
    source = ""
    if isinstance(thing, api.PodGroup | api.CompositePodGroup):
        source = source_of(thing)
    return (type(thing).__name__, source, *thing.key)


def filled_in_uid(ident: Ident, times: int) -> str:
    """Return the UID of an object without one; `times`: how often an object of its name was deleted."""
    kind, group, *rest = ident
    name = "/".join((kind, *rest) if group != "builtin" else (kind, group, *rest))
    return str(uuid.uuid5(_UIDS, f"{name}#{times}" if times else name))


def with_metadata(thing: T, **changes: object) -> T:
    """Return an object with some fields of its metadata changed."""
    metadata = msgspec.structs.replace(thing.metadata, **changes)
    return msgspec.structs.replace(thing, metadata=metadata)
