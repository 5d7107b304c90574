"""A cluster in memory: objects, and the writes of the service to them, each of which is a record.

Owns the preconditions of the writes. A group that the service writes for a workload goes with its owner. Where records are kept is the part of its subclasses: a file beside manifests, or nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
from immutables import Map
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import (
    Ident,
    filled_in_uid,
    ident_of,
    with_metadata,
)
from extender.cluster.manifests.served import journal
from extender.cluster.manifests.workload_expansion import ServedWorkloads
from extender.cluster.manifests.workload_objects import owner_uid, stored_group
from extender.cluster.read.object_decoding import group_of, workload_of
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.write.group_writer import differing, manifest
from extender.core.log.events import GoneVia
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.object_identity import same_objects
from extender.core.model.pods import GATE, Pod, PodEnd
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.core.workloads.kind_table import KINDS
from extender.core.workloads.kinds.plain_pods_kind import PLAIN_PODS
from extender.core.workloads.workload_object import (
    PARENT_ANNOTATION,
    TEMPLATES_KIND,
    WorkloadObject,
)
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.ports.log_ports import Clock
from extender.ports.workload_ports import GroupLink, GroupManifest, WorkloadView
from extender.runtime.wakeup import Wakeup

logger = logging.getLogger(__name__)


class RecordedCluster(ABC):
    """The `Cluster` port on objects in memory, but for how they change and where the log head is published."""

    control_plane: Final = None  # there is neither kube-apiserver nor kube-scheduler
    admission_checks: Final = None  # Kueue reads neither files nor simulated objects

    def __init__(self, clock: Clock, max_children: int) -> None:
        self._clock = clock
        self._overlay = journal.JournalOverlay()
        self._world = ObjectStore(max_children=max_children)
        self.priority_classes = self._world.priorities.documents
        self.claims_named = self._world.claims_named
        self._objects: dict[Ident, api.Readable] = {}  # without the overlay
        self._invalid: set[Ident] = set()  # of `_objects`: not in the world as they are
        self._by_uid: dict[str, Ident] = {}  # of pods, groups and workloads
        self.workloads = ManifestWorkloads(self._world, self._overlay, self._write, clock)
        self._view_changed = Wakeup()
        self._woken_at = self._world.view.revision
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def access_reviews(self, *, api_server_tokens: bool) -> None:  # noqa: B027 -- it is complete
        """Return None: there are no rights of readers."""

    @abstractmethod
    async def _write(self, record: journal.Record) -> None:
        """Keep a record and apply it."""

    def _upsert(self, ident: Ident) -> None:
        """Apply an object of the manifests with the writes to it; it may have been deleted since."""
        if ident in self._objects:
            self._pass_on(ident, functools.partial(self._put, ident))

    def _pass_on(self, ident: Ident, change: Callable[[], None]) -> None:  # noqa: ARG002 -- for subclasses
        change()

    def _put(self, ident: Ident) -> None:
        obj = self._objects.get(ident)
        if obj is None:
            return
        self._invalid.discard(ident)
        try:
            self._world.upsert(journal.with_writes(obj, self._overlay))
        except BadInput as fault:
            self._invalid.add(ident)
            logger.warning("An object is left out", extra={"fault": str(fault)})

    def _refresh(self, uid: str) -> None:
        """Apply the writes to one object; a group of a workload may be new, or deleted."""
        group = self._overlay.groups.get(uid)
        owner = owner_uid(group) if group is not None else None
        if group is not None and (owner in self._by_uid or not owner):
            current = self._objects.get(ident_of(group), group)
            if current.metadata.uid == uid:
                self._objects[ident_of(group)], self._by_uid[uid] = group, ident_of(group)
        ident = self._by_uid.get(uid)
        if ident is None:
            return
        if uid not in self._overlay.where:
            del self._by_uid[uid]
            obj = self._objects.pop(ident)
            self._pass_on(ident, functools.partial(self._world.delete, obj))
            return
        self._upsert(ident)

    def _wake_waiting(self) -> None:
        if self.view().revision != self._woken_at:
            self._woken_at = self.view().revision
            self._view_changed.wake()

    def view(self) -> ClusterView:
        """Return the newest view."""
        return self._world.view

    def changed(self, revision: int) -> Awaitable[object]:
        """Wait until the view's revision differs from `revision`."""
        changes = self._view_changed
        return changes.wait(changes.revision if self.view().revision == revision else -1)

    async def explain_waiting(self, pod: PodRef, message: str) -> None:  # noqa: B027
        """Do nothing: the pods of files have no conditions."""

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Record a nominated node; None clears it.

        Raises:
            RequestRejected: The pod was deleted or recreated, or is bound.
        """
        async with self._lock(pod.uid):
            stored = self._pod(pod)
            if stored.node is not None:
                raise _refused(pod, f"is bound to {stored.node}")
            if stored.nominated != node:
                await self._write(journal.Nominated(node=node or "", **self._of(pod)))

    async def remove_gate(self, pod: PodRef) -> None:
        """Remove our scheduling gate from a pod, if it has it.

        Raises:
            RequestRejected: The pod was deleted or recreated.
        """
        async with self._lock(pod.uid):
            if GATE in self._pod(pod).gates:
                await self._write(journal.GateRemoved(**self._of(pod)))

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        """Record that a pod will be disrupted; see the port."""
        async with self._lock(pod.uid):
            self._pod(pod)
            await self._write(journal.MarkedDisrupted(message=message, **self._of(pod)))

    async def evict(self, pod: PodRef, via: GoneVia) -> None:  # noqa: ARG002 -- no budgets here
        """Record that a pod was deleted; without a kubelet it is removed at once."""
        async with self._lock(pod.uid):
            self._pod(pod)
            await self._write(journal.Evicted(**self._of(pod)))

    async def ending(self, pod: PodRef) -> PodEnd | None:
        """Return how a pod ended; None if it is in the view. The journal has the node of one that was removed."""
        if pod.uid in self._world.view.pods:
            return None
        end = self._world.view.ends.get(pod.uid, PodEnd("deleted"))
        return replace(end, node=end.node or self._overlay.node_of(pod.uid))

    async def bind(self, binding: Binding) -> None:
        """Bind a pod; a pod that is already bound to this node is a success.

        Raises:
            RequestRejected: The pod was deleted, recreated, is terminating, gated, or bound to another node.
        """
        pod, node = binding.pod, binding.node
        async with self._lock(pod.uid):
            stored = self._pod(pod)
            if stored.node is None:
                if stored.deleting:
                    raise _refused(pod, "is being deleted")
                if stored.gates:
                    raise _refused(pod, f"has scheduling gates: {', '.join(stored.gates)}")
                plan = binding.plan or ""
                await self._write(journal.Bound(node=node, plan=plan, **self._of(pod)))
                stored = self._pod(pod)  # another process may have bound it first
            if stored.node != node:
                raise _refused(pod, f"is bound to {stored.node}, not to {node}")

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        """Merge conditions into the status of a group; only those that differ are recorded.

        Raises:
            RequestRejected: The group was deleted or recreated.
        """
        async with self._lock(uid):
            current = self._world.view.groups.get(group)
            if current is None or current.uid != uid:
                raise RequestRejected(f"{group}: not found, or not the one with UID {uid}")
            if changed := differing(current.conditions, conditions):
                record = journal.Conditions(
                    at_us=self._clock.now_us(),
                    kind=group.kind,
                    source=current.source,
                    namespace=group.namespace,
                    name=group.name,
                    uid=uid,
                    conditions=tuple(changed),
                )
                await self._write(record)

    async def set_finalizers(self, change: FinalizerChange) -> None:
        """Reject the change: files have no finalizers.

        Raises:
            RequestRejected: Always.
        """
        raise RequestRejected(f"finalizers of {change.group}: a cluster of files has none")

    async def notice(self, notice: K8sEvent) -> None:
        """Record a Kubernetes Event; a failure is logged, not raised."""
        fields = msgspec.structs.asdict(notice)
        del fields["api_version"]
        record = journal.EventRecorded(at_us=self._clock.now_us(), **fields)
        try:
            await self._write(record)
        except ClusterUnavailable as fault:
            logger.warning("A Kubernetes Event is lost", extra={"fault": str(fault)})

    def _of(self, pod: PodRef) -> dict[str, Any]:
        """Return the fields that each record about a pod has."""
        name = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        return {"at_us": self._clock.now_us(), **name}

    def _lock(self, uid: str) -> asyncio.Lock:
        """Return the lock under which one object is read and changed."""
        return self._locks.setdefault(uid, asyncio.Lock())

    def _pod(self, ref: PodRef) -> Pod:
        pod = self._world.view.pods.get(PodUid(ref.uid))
        if pod is None or (pod.namespace, pod.name) != (ref.namespace, ref.name):
            raise _refused(ref, f"not found, or not the one with UID {ref.uid}")
        return pod


def _refused(pod: PodRef, reason: str) -> RequestRejected:
    return RequestRejected(f"Pod/{pod.namespace}/{pod.name}: {reason}")


K = TypeVar("K")
V = TypeVar("V")
_SYNCED: Final = frozenset({*(kind.kind for kind in KINDS), "TreeProfile", TEMPLATES_KIND})


class ManifestWorkloads:
    """The workloads of files, and the writes of their groups."""

    def __init__(
        self,
        world: ObjectStore,
        overlay: journal.JournalOverlay,
        write: Callable[[journal.Record], Awaitable[None]],
        clock: Clock,
    ) -> None:
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
            self._view = replace(view, revision=before.revision + 1)
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
            stored = stored_group(manifest(group))
            uid = filled_in_uid(ident_of(stored), self._overlay.gone.get(ident_of(stored), 0))
            now = datetime.fromtimestamp(self._clock.now_us() / 1_000_000, UTC)
            created = owner.metadata.creation_timestamp if owner else now
            await self._put(with_metadata(stored, uid=uid, creation_timestamp=created))

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Change a group that was written before; see the port."""
        created = self._written(group.key, uid).metadata.creation_timestamp
        stored = stored_group(manifest(group))
        await self._put(with_metadata(stored, uid=uid, creation_timestamp=created))

    async def link_group(self, link: GroupLink) -> None:
        """Reject it: a group that another controller made is in a file, and files are not changed.

        Raises:
            RequestRejected: Always; names the annotation to write into the file.
        """
        field = f"metadata.annotations[{PARENT_ANNOTATION}]"
        text = f"files are not changed; write {link.parent!r} there"
        raise RequestRejected(f"{link.key}: {field}: {text}")

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group that was written before; see the port."""
        if key in self._world.view.groups:
            stored = self._written(key, uid)
            await self._write(journal.DeletedObject.of(uid, ident_of(stored), self._clock.now_us()))

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
        leaf = isinstance(group, api.PodGroup)
        record: Any = journal.PodGroupWritten if leaf else journal.CompositeWritten
        at_us, (namespace, name), uid = self._clock.now_us(), group.key, group.metadata.uid
        await self._write(
            record(at_us=at_us, object=group, namespace=namespace, name=name, uid=uid)
        )


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
