"""A `Workloads` in memory, beside a `FakeCluster`: it keeps workloads as the real store does, and writes groups into the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from extender.cluster.api_server.workload_informers import WorkloadStore
from extender.cluster.read.object_decoding import convert
from extender.cluster.types import WorkloadManifest
from extender.cluster.write.group_writer import manifest
from extender.core.model.cluster_view import without_group
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.trees.group_writes import frozen_differences
from extender.core.workloads.kind_table import KINDS
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_object import PARENT_ANNOTATION
from extender.ports.workload_ports import GroupLink, GroupManifest, WorkloadView
from extender.queries.state.gang_selection import ObjectLabels
from tests.support.service.fakes import FakeCluster, Stage
from tests.support.service.manifest_builders import a_manifest

Object = dict[str, Any]


class FakeWorkloads:
    """Carries out each call at once and records it; `fault(verb, name)` may return an exception to raise instead.

    Verbs are create, apply, link and delete; names are those of groups.
    """

    def __init__(self, cluster: FakeCluster, *objects: Object) -> None:
        self.cluster = cluster
        self.store = WorkloadStore()
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], Exception | None] = lambda verb, name: None
        self._changed = asyncio.Event()
        for name in (*(kind.kind for kind in KINDS), "TreeProfile"):
            self.store.set_synced(name, synced=True)
        self.put(*objects)

    def put(self, *objects: Object) -> None:
        """Create or change workloads."""
        for one in objects:
            self.store.upsert(convert(WorkloadManifest, one))
        self._wake()

    def remove(self, *objects: Object) -> None:
        """Delete workloads, and the groups that they own, as the garbage collector does."""
        for one in objects:
            uid = one["metadata"]["uid"]
            self.store.delete(convert(WorkloadManifest, one))
            for key, group in self.cluster.seen.groups.items():
                if group.owner_uid == uid:
                    self._delete(key)
        self._wake()

    def put_profile(self, profile: TreeProfile) -> None:
        """Create or change a profile."""
        self.store.put_profile(profile)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- the port

    def view(self) -> WorkloadView:
        """Return the view."""
        return self.store.view

    async def changed(self, revision: int) -> int:
        """Wait for a change."""
        while self.store.view.revision == revision:
            await self._changed.wait()
        return self.store.view.revision

    async def create_group(self, group: GroupManifest) -> None:
        """Create a group unless its name is taken."""
        await self._called("create", group.key)
        if group.key not in self.cluster.seen.groups:
            body = manifest(group)
            metadata: Any = body["metadata"]
            metadata["uid"] = f"{group.spec.name}-{len(self.calls)}"  # another one each time
            self.cluster.add(body)

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Change the minimum of a group; all else is immutable."""
        await self._called("apply", group.key)
        found = self.cluster.seen.groups.get(group.key)
        if found is None or found.uid != uid:
            raise ClusterUnavailable(f"{group.key} is gone")
        applied = msgspec.structs.replace(
            group.spec,
            parent=group.spec.parent or found.parent or "",
            topology=group.spec.topology or "".join(found.constraints.topology),
            priority_class=group.spec.priority_class or found.priority_class,
        )
        if fields := frozen_differences(applied, found):
            raise RequestRejected(f"{group.key}: {', '.join(fields)}: field is immutable")
        self.cluster.change_group(group.key.name, minimum=group.spec.minimum)

    async def link_group(self, link: GroupLink) -> None:
        """Write the parent of a group."""
        await self._called("link", link.key)
        found = self.cluster.seen.groups.get(link.key)
        if found is None or found.uid != link.uid:
            raise ClusterUnavailable(f"{link.key} is gone")
        for one in self.cluster.objects:
            if (one["kind"], one["metadata"]["name"]) == (link.key.kind, link.key.name):
                one["metadata"].setdefault("annotations", {})[PARENT_ANNOTATION] = link.parent
        read = a_manifest(self.cluster.objects).world.view.groups[link.key]
        self.cluster.change_group(link.key.name, parent=read.parent, workload=read.workload)

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group."""
        await self._called("delete", key)
        found = self.cluster.seen.groups.get(key)
        if found is None:
            return
        if found.uid != uid:
            raise ClusterUnavailable(f"{key}: the UID in the precondition does not match")
        self._delete(key)

    def _delete(self, key: GroupKey) -> None:
        self.cluster.objects = [
            one
            for one in self.cluster.objects
            if (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
            != (key.kind, key.namespace, key.name)
        ]
        self.cluster.seen = without_group(self.cluster.seen, key)
        self.cluster._notify()

    async def _called(self, verb: str, key: GroupKey) -> None:
        await asyncio.sleep(0)
        error = self.fault(verb, key.name)
        if error is not None:
            raise error
        self.calls.append((verb, str(msgspec.structs.asdict(key)["name"])))


def labels_of(stage: Stage, *objects: Object) -> ObjectLabels:
    """Return the labels of the groups of a stage and of these workloads."""
    return ObjectLabels(stage.cluster, FakeWorkloads(stage.cluster, *objects))
