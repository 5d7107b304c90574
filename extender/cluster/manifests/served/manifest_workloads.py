"""The `Workloads` port on files: workloads are read from files, their groups are kept in the journal of the cluster.

A group that the service writes is a line of `cluster.jsonl`, so it survives a SIGKILL; groups that are in files are never
changed. It goes with its owner: that is the garbage collector's part, which `ManifestCluster` has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec
from immutables import Map

from extender.cluster import types as api
from extender.cluster.manifests.controller_simulation import ServedWorkloads
from extender.cluster.manifests.manifest_entries import filled_in_uid, ident_of, with_metadata
from extender.cluster.manifests.served.journal import (
    CompositeWritten,
    DeletedObject,
    PodGroupWritten,
    Record,
)
from extender.cluster.manifests.served.journal_replay import JournalOverlay
from extender.cluster.read.object_decoding import convert, group_of
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.read.workload_conversion import workload_of
from extender.cluster.write.tree_group_writer import manifest
from extender.core.model.errors import BadInput, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.object_identity import same_objects
from extender.core.workloads.kind_table import KINDS
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS
from extender.core.workloads.workload_object import (
    PARENT_ANNOTATION,
    TEMPLATES_KIND,
    WorkloadObject,
)
from extender.ports.log_ports import Clock
from extender.ports.workload_ports import GroupLink, GroupManifest, WorkloadView
from extender.runtime.wakeup import Wakeup

K = TypeVar("K")
V = TypeVar("V")
_SYNCED: Final = frozenset({*(kind.kind for kind in KINDS), "TreeProfile", TEMPLATES_KIND})


class ManifestWorkloads:
    """The workloads of files, and the writes of their groups."""

    def __init__(
        self,
        world: ObjectStore,
        overlay: JournalOverlay,
        write: Callable[[Record], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Start without workloads.

        Args:
            clock: For the time in each line.
        """
        self._world = world
        self._overlay = overlay
        self._write = write
        self._clock = clock
        self._manifests: dict[str, api.WorkloadManifest] = {}  # by UID
        self._view = WorkloadView()
        self._changed = Wakeup()

    def take(self, served: ServedWorkloads) -> None:
        """Replace the workloads by those of the files; one that did not change stays the same object."""
        manifests = {manifest.metadata.uid: manifest for manifest in served.manifests}
        before = self._view
        objects = {
            uid: before.objects[uid]
            if manifest == self._manifests.get(uid)
            else workload_of(manifest)
            for uid, manifest in manifests.items()
        }
        view = WorkloadView(
            objects=_kept(before.objects, objects),
            owned=_kept(before.owned, _owned(before, objects.values())),
            profiles=_kept(before.profiles, served.profiles),
            templates=_kept(before.templates, served.templates),
            synced=_SYNCED,
            revision=before.revision,
        )
        self._manifests = manifests
        if not same_objects(msgspec.structs.astuple(view), msgspec.structs.astuple(before)):
            self._view = msgspec.structs.replace(view, revision=before.revision + 1)
            self._changed.wake()

    # --- the port

    def view(self) -> WorkloadView:
        """Return the newest view."""
        return self._view

    def changed(self, revision: int) -> Awaitable[int]:
        """Wait until the revision of the view, which is that of its changes, differs from `revision`; return the new one."""
        return self._changed.wait(revision)

    async def create_group(self, group: GroupManifest) -> None:
        """Create a group; see the port."""
        if group.key not in self._world.view.groups:
            owner = self._manifests.get(group.owner_uid)
            if owner is None and group.owner_kind != PLAIN_PODS.kind:
                text = f"{group.owner_kind} {group.owner_name} is not in the files any more"
                raise RequestRejected(f"{group.key}: {text}")
            stored = _stored(group)
            ident = ident_of(stored)
            now = datetime.fromtimestamp(self._clock.now_us() / 1_000_000, UTC)
            await self._put(
                with_metadata(
                    stored,
                    uid=filled_in_uid(ident, self._overlay.gone.get(ident, 0)),
                    creation_timestamp=owner.metadata.creation_timestamp if owner else now,
                )
            )

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Change a group that was written before; see the port."""
        before = self._written(group.key, uid).metadata
        created = before.creation_timestamp
        await self._put(with_metadata(_stored(group), uid=uid, creation_timestamp=created))

    async def link_group(self, link: GroupLink) -> None:
        """Reject it: a group that another controller made is in a file, and files are not changed.

        Raises:
            RequestRejected: Always; names the annotation to write into the file.
        """
        field = f"metadata.annotations[{PARENT_ANNOTATION}]"
        raise RequestRejected(
            f"{link.key}: {field}: files are not changed; write {link.parent!r} there"
        )

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group that was written before; see the port."""
        if key in self._world.view.groups:
            stored = self._written(key, uid)
            await self._write(DeletedObject.of(uid, ident_of(stored), self._clock.now_us()))

    # --- details

    def _written(self, key: GroupKey, uid: str) -> api.Group:
        """Return a group of the journal; raise RequestRejected if it is none, or has another UID."""
        written = self._overlay.groups.get(uid)
        current = self._world.view.groups.get(key)
        if written is None or current is None or current.uid != uid:
            text = f"not found with UID {uid}, or it is in a file; change or remove it there"
            raise RequestRejected(f"{key}: {text}")
        return written

    async def _put(self, group: api.Group) -> None:
        try:
            group_of(group, self._world.priorities)
        except BadInput as fault:
            raise RequestRejected(str(fault)) from fault
        at_us, metadata = self._clock.now_us(), group.metadata
        where = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
        if isinstance(group, api.PodGroup):
            await self._write(PodGroupWritten(at_us=at_us, object=group, **where))
        else:
            await self._write(CompositeWritten(at_us=at_us, object=group, **where))


def _stored(group: GroupManifest) -> api.Group:
    if group.spec.kind == "PodGroup":
        return convert(api.PodGroup, manifest(group))
    return convert(api.CompositePodGroup, manifest(group))


def _owned(
    before: WorkloadView, objects: Iterable[WorkloadObject]
) -> Mapping[str, Map[str, WorkloadObject]]:
    """Return the workloads that have an owner, by its UID."""
    owned: dict[str, dict[str, WorkloadObject]] = {}
    for workload in objects:
        if workload.owner is not None:
            owned.setdefault(workload.owner.uid, {})[workload.uid] = workload
    return {uid: _kept(before.owned.get(uid, Map()), ones) for uid, ones in owned.items()}


def _kept(before: Map[K, V], now: Mapping[K, V]) -> Map[K, V]:
    """Return the map that was there before if nothing has changed."""
    fresh = Map(now)
    return before if before == fresh else fresh
