"""What the files have beside a workload: profiles, namespaces, Workloads of users, runtimes, its owner, its pods and its groups."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Role
from extender.cluster.manifests.workload_objects import LabelsOfPod, PodLabels, leaf_uses
from extender.cluster.read.object_decoding import (
    BUILTIN_GROUP,
    key_of,
    source_of,
    without_nulls,
    workload_of,
)
from extender.cluster.read.pod_conversion import ended
from extender.cluster.read.tree_profile_conversion import profile_of
from extender.cluster.types import Namespace, TreeProfile
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey
from extender.core.model.pods import VolumeConstraints
from extender.core.trees.leaves_in_use import with_finished_pods
from extender.core.workloads.kind_table import kind_of_pod
from extender.core.workloads.kinds.trainjob_jobset import RuntimeName
from extender.core.workloads.tree_parts import ExistingGroup, Leaf, LeafUse
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.tree_policy import TreeProfile as Profile
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import WorkloadObject

_Name = tuple[str, str, str]  # kind, namespace, name


class LiveSources(msgspec.Struct, frozen=True, kw_only=True):
    """What is not in the files, but in the cluster of the service."""

    pods: tuple[PodLabels, ...] = ()  # that name a leaf
    profiles: tuple[Profile, ...] = ()
    claims: Mapping[tuple[str, str], VolumeConstraints] = {}  # of volumes, that pods may use


class WorkloadSources:
    """What the files have beside the workload that is looked at."""

    def __init__(self, entries: Sequence[AnyEntry], live: LiveSources) -> None:
        self.profiles = {profile.name: profile for profile in (DEFAULT_PROFILE, *live.profiles)}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.workloads: dict[_Name, WorkloadObject] = {}
        self.groups: dict[GroupKey, tuple[str, api.Group]] = {}
        self.templates: dict[tuple[str, str], WorkloadObject] = {}  # the Workloads of users
        self.jobs: dict[_Name, list[WorkloadObject]] = {}  # by the object that owns them
        self.made: dict[str, list[ExistingGroup]] = {}  # groups by the UID of their owner
        self.runtimes: dict[RuntimeName, Mapping[str, Any]] = {}  # `spec` of each
        # of Grove's topologies, by name: keys of node labels by domain
        self.topologies: dict[str, dict[str, str]] = {}
        self._wanted: set[_Name] = set()  # the workloads of -f
        self._pods = [*live.pods]
        for entry in entries:
            try:
                self._add(entry.where, entry.obj, entry.role)
            except BadInput as fault:
                raise BadInput(f"{entry.where}: {fault}") from fault
        self.uses = leaf_uses(self._pods)
        for workload in self.workloads.values():
            if workload.kind == "Job" and (owner := self.owner_of(workload)) is not None:
                self.jobs.setdefault(_name(owner), []).append(workload)

    def _add(self, where: str, obj: api.KubernetesObject, role: Role) -> None:
        match obj:
            case api.Pod() if not ended(obj) and obj.metadata.deletion_timestamp is None:
                self._pods.append((obj.metadata.namespace, obj.metadata.labels))
            case api.PodGroup() | api.CompositePodGroup() if source_of(obj) == "crd":
                self.groups[key_of(obj)] = (where, obj)
                if uid := owner_uid(obj):
                    self.made.setdefault(uid, []).append(_existing(obj))
            case api.WorkloadManifest():
                self.workloads[(obj.kind, *obj.key)] = workload_of(obj)
                if role is Role.WANTED:
                    self._wanted.add((obj.kind, *obj.key))
            case api.TrainingRuntime():
                namespace, name = obj.key
                key = RuntimeName(kind=type(obj).__name__, namespace=namespace, name=name)
                self.runtimes[key] = obj.spec
            case api.ClusterTopology():
                levels = {level.domain: level.key for level in obj.spec.levels}
                self.topologies[obj.metadata.name] = levels
            case api.Workload():
                if obj.key not in self.templates or obj.api_version.startswith(BUILTIN_GROUP):
                    self.templates[obj.key] = _templates_of(obj)
            case TreeProfile():
                self.profiles[obj.metadata.name] = profile_of(obj)
            case Namespace():
                self.namespaces[obj.metadata.name] = obj.metadata.labels
            case _:
                pass  # nothing in a tree depends on it

    def owner_of(self, workload: WorkloadObject) -> WorkloadObject | None:
        """Return the controlling owner of a workload, if the files have it."""
        owner = workload.owner
        if owner is None:
            return None
        return self.workloads.get((owner.kind, workload.namespace, owner.name))

    def owned_by(self, owner: WorkloadObject, kinds: Collection[str]) -> WorkloadObject | None:
        """Return the first workload of some kinds that has another one as controlling owner, or None."""
        for workload in self.workloads.values():
            controller = self.owner_of(workload) if workload.kind in kinds else None
            if controller is not None and _name(controller) == _name(owner):
                return workload
        return None

    def is_wanted(self, workload: WorkloadObject) -> bool:
        """Return whether a workload is one of -f."""
        return _name(workload) in self._wanted

    def uses_of(self, kind: WorkloadKind, workload: WorkloadObject) -> tuple[LeafUse, ...]:
        """Return the leaves that pods of a workload name; without pods those that they will name."""
        uses = self.uses.get(_name(workload), ())
        if not uses and kind.planned_uses is not None:
            uses = kind.planned_uses(workload)
        jobs = self.jobs.get(_name(workload), ())
        return with_finished_pods(uses, jobs) if jobs else uses

    def pods_of(self, workload: WorkloadObject) -> Mapping[str, int]:
        """Return how many pods of a workload there are, by leaf."""
        return {use.name: use.pods for use in self.uses.get(_name(workload), ())}

    def missing_numbers(
        self, kind: WorkloadKind, workload: WorkloadObject, leaf: Leaf, labels_of: LabelsOfPod
    ) -> Iterable[int]:
        """Return the numbers of the pods that a leaf has not yet.

        Args:
            labels_of: The labels of its pods by their numbers.
        """
        existing, pod_name = self.pods_of(workload).get(leaf.name, 0), kind.pod_name
        if pod_name is None or not existing:
            return range(existing, leaf.pods)
        taken = {
            pod_name(workload, labels)
            for namespace, labels in self._pods
            if namespace == workload.namespace
            and kind_of_pod(labels) is kind
            and kind.name_in(labels) == workload.name
        } - {""}
        free = (n for n in itertools.count() if pod_name(workload, labels_of(n)) not in taken)
        return tuple(itertools.islice(free, max(leaf.pods - existing, 0)))

    def existing_of(self, workload: WorkloadObject) -> tuple[ExistingGroup, ...]:
        """Return the groups that were made for a workload, in order of kind and name."""
        return tuple(
            sorted(self.made.get(workload.uid, ()), key=lambda group: (group.kind, group.name))
        )


def _name(workload: WorkloadObject) -> _Name:
    return (workload.kind, workload.namespace, workload.name)


def owner_uid(obj: api.KubernetesObject) -> str:
    """Return the UID of the controlling owner of an object, or an empty string."""
    return next((owner.uid for owner in obj.metadata.owner_references if owner.controller), "")


def _existing(group: api.Group) -> ExistingGroup:
    policy = group.spec.scheduling_policy
    gang = policy.gang if policy is not None else None
    minimum = (gang.min_count or gang.min_group_count) if gang is not None else None
    return ExistingGroup(
        kind=type(group).__name__,
        name=group.metadata.name,
        basic=gang is None,
        minimum=minimum or 1,
        required=gang.required_groups if gang is not None else (),
    )


def _templates_of(workload: api.Workload) -> WorkloadObject:
    spec = without_nulls(msgspec.to_builtins(workload.spec))
    assert isinstance(spec, dict)
    namespace, name = workload.key
    return WorkloadObject(
        api_version=workload.api_version,
        kind=workload.kind,
        namespace=namespace,
        name=name,
        uid=workload.metadata.uid,
        spec=spec,
    )
