"""Make copies of the trees of -f, as if their manifests had been written again under other names.

Of a workload the manifest is copied, before it becomes a tree. Of groups the whole tree is copied, also what only
--cluster has of it; its pods are pending in the copy. NAME becomes NAME-2, NAME-3, ...; a number under which
anything exists already is left out. All else (priority classes, claims, profiles) is shared by the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Role, SourceEntry, with_metadata
from extender.cluster.manifests.manifest_loader import Manifest, build, complete
from extender.cluster.manifests.workload_objects import LiveSources
from extender.cluster.read.object_decoding import key_of, parent_of
from extender.cluster.read.pod_conversion import ended, group_named
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import composite_key
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.workload_object import GROUP_LABELS
from extender.ports.written_names import PARENT_ANNOTATIONS
from extender.queries.plan.capacity_query import TreeCopy

Taken = tuple[str, str, str]  # kind, namespace and name
T = TypeVar("T", bound=api.KubernetesObject)
# beside the trees, these decide what a copy becomes
_CONTEXT = (
    api.PriorityClass,
    api.Workload,
    api.StorageClass,
    api.PersistentVolume,
    api.PersistentVolumeClaim,
)


class TreeCopies:
    """Makes the copies of the trees of -f one by one.

    Args:
        live: The cluster of the service, of a query without --cluster.
    """

    def __init__(
        self,
        entries: Sequence[AnyEntry],
        live: LiveSources | None = None,
        taken: Collection[Taken] = (),
    ) -> None:
        self._entries = entries
        live = live or LiveSources()
        self._live = LiveSources(profiles=live.profiles, claims=live.claims)
        self._taken = set(taken)
        self._context: list[AnyEntry] = []
        self._copied: tuple[AnyEntry, ...] = ()
        self._numbers: list[int] = []
        self._originals: tuple[GroupKey, ...] | None = None

    def _begin(self) -> tuple[GroupKey, ...]:
        """Look for what is copied; return its groups. A cluster has many objects, and most questions have no copies."""
        last = {entry.ident: entry for entry in self._entries}
        self._context = [
            replace(entry, role=Role.CLUSTER)
            for entry in last.values()
            if isinstance(entry, SourceEntry) or isinstance(entry.obj, _CONTEXT)
        ]
        self._copied = tuple(_wanted_trees(tuple(last.values())))
        self._taken.update(map(_name_of, last.values()))
        return self._built(None).groups

    def copy(self, number: int) -> TreeCopy:
        """Return a copy; the number of the first one is 2, because the trees themselves are number 1.

        Raises:
            BadInput: A kind of workload has no pod templates, so no pods can be made for a copy.
        """
        if self._originals is None:
            self._originals = self._begin()
        built = self._built(self._suffix(number))
        view = built.world.view
        return TreeCopy(
            groups=tuple(view.groups[key] for key in built.groups),
            pods=tuple(view.pods[uid] for uid in built.pods),
            order=built.order,
            origins=built.origins,
            refused=built.refused,
            original=dict(zip(built.groups, self._originals, strict=False)),
        )

    def _suffix(self, number: int) -> str:
        """Return `-N` of a copy: the numbers from 2 under which nothing exists."""
        start = self._numbers[-1] + 1 if self._numbers else 2
        names = [_name_of(entry) for entry in self._copied]
        for candidate in itertools.count(start):
            if len(self._numbers) >= number - 1:
                break
            new = ((kind, space, f"{name}-{candidate}") for kind, space, name in names)
            if self._taken.isdisjoint(new):
                self._numbers.append(candidate)
        return f"-{self._numbers[number - 2]}"

    def _built(self, suffix: str | None) -> Manifest:
        copied = self._copied
        if suffix is not None:
            copied = tuple(_Renaming(copied, suffix).entries())
        return build(complete((*self._context, *copied), live=self._live))


def _name_of(entry: AnyEntry) -> Taken:
    kind, _, namespace, name = entry.ident
    return (kind, namespace, name)


def _wanted_trees(entries: Sequence[AnyEntry]) -> Iterator[AnyEntry]:
    """Yield the workloads of -f, the groups and pods of the trees of -f, and the lone pods of -f."""
    owners: set[Taken] = set()
    to_plan = [entry for entry in entries if entry.role is Role.WANTED]
    for entry in to_plan:
        if isinstance(entry.obj, api.WorkloadManifest | api.PodCliqueSet):
            if isinstance(entry.obj, api.WorkloadManifest):
                _check_templates(entry.where, entry.obj)
            owners.add(_name_of(entry))
            yield entry
    root_of = _roots(entries)
    roots = {root_of.get(leaf) for entry in to_plan if (leaf := _group_of(entry)) is not None}
    for entry in entries:
        obj, leaf, (_, space, _) = entry.obj, _group_of(entry), _name_of(entry)
        names = {(owner.kind, space, owner.name) for owner in obj.metadata.owner_references}
        if isinstance(entry, SourceEntry) or not names.isdisjoint(owners):
            continue  # the copy of an owned one is made from the copy of its owner
        if leaf is None:
            lone = isinstance(obj, api.Pod) and not ended(obj)
            if lone and entry.role is Role.WANTED:
                yield entry
        elif leaf in root_of and root_of[leaf] in roots:
            yield replace(entry, role=Role.WANTED)


def _roots(entries: Sequence[AnyEntry]) -> dict[GroupKey, GroupKey]:
    """Return the highest existing group above each group."""
    parents: dict[GroupKey, GroupKey | None] = {}
    for entry in entries:
        obj = entry.obj
        if isinstance(obj, api.Group):
            key, parent = key_of(obj), parent_of(obj)
            parents[key] = composite_key(key.namespace, parent) if parent else None
    roots = {}
    for group in parents:
        key, visited = group, {group}
        while (above := parents.get(key)) in parents and above not in visited:
            assert above is not None
            visited.add(above)
            key = above
        roots[group] = key
    return roots


def _group_of(entry: AnyEntry) -> GroupKey | None:
    """Return the key of a group, or the leaf of a pod that has not ended."""
    obj = entry.obj
    if isinstance(obj, api.Group):
        return key_of(obj)
    return group_named(obj) if isinstance(obj, api.Pod) and not ended(obj) else None


def _check_templates(where: str, workload: api.WorkloadManifest) -> None:
    kind = BY_KIND[workload.kind]
    if kind.parts is not None and not kind.template_paths:
        text = "has no pod templates, so no pods can be made for copies of it; give copies of its groups and pods"
        raise BadInput(f"{where}: {workload.label}: {text}")


class _Renaming:
    def __init__(self, entries: Sequence[AnyEntry], suffix: str) -> None:
        self._entries = entries
        self._suffix = suffix
        objects = [entry.obj for entry in entries]
        self._groups = {key_of(obj) for obj in objects if isinstance(obj, api.Group)}
        self._workloads = {
            (obj.kind, *obj.key) for obj in objects if isinstance(obj, api.WorkloadManifest)
        }

    def entries(self) -> Iterator[AnyEntry]:
        """Yield the objects of the copy; they have no UID, as if they were created now."""
        for entry in self._entries:
            obj: api.KubernetesObject = entry.obj
            if isinstance(obj, api.Pod):
                obj = self._pod(obj)
            elif isinstance(obj, api.Group):
                obj = self._group(obj)
            yield replace(entry, obj=self._renamed(obj))

    def _renamed(self, obj: T) -> T:
        metadata = obj.metadata
        owners = (
            replace(owner, name=owner.name + self._suffix, uid="")
            if (owner.kind, metadata.namespace, owner.name) in self._workloads
            else owner
            for owner in metadata.owner_references
        )
        return with_metadata(
            obj,
            name=metadata.name + self._suffix,
            uid="",
            deletion_timestamp=None,
            owner_references=tuple(owners),
        )

    def _pod(self, pod: api.Pod) -> api.Pod:
        """Return a pod that is not assigned, in the copy of its leaf."""
        spec = replace(pod.spec, node_name="")
        labels = pod.metadata.labels
        if group_named(pod) in self._groups:
            field = spec.scheduling_group.pod_group_name
            if field:
                group = api.SchedulingGroup(pod_group_name=field + self._suffix)
                spec = replace(spec, scheduling_group=group)
            labels = self._with_suffix(labels, GROUP_LABELS)
        pod = with_metadata(pod, labels=labels)
        return replace(pod, spec=spec, status=api.PodStatus())

    def _group(self, group: api.Group) -> api.Group:
        """Return a group below the copy of its parent."""
        name = parent_of(group)
        if not name or composite_key(group.metadata.namespace, name) not in self._groups:
            return group
        if field := group.spec.parent_composite_pod_group_name:
            parent = field + self._suffix
            spec = replace(group.spec, parent_composite_pod_group_name=parent)
            return replace(group, spec=spec)
        annotations = self._with_suffix(group.metadata.annotations, PARENT_ANNOTATIONS)
        return with_metadata(group, annotations=annotations)

    def _with_suffix(self, texts: Mapping[str, str], keys: Collection[str]) -> dict[str, str]:
        return {
            key: text + self._suffix if text and key in keys else text
            for key, text in texts.items()
        }
