"""The cluster of a simulation: an API server whose objects are in memory, watches that are late, and kubelets.

Writes of the service go through `RecordedCluster`; here they take time, and what they change is seen later. A pod that is
deleted terminates for its grace period, and uses its capacity until then. A kubelet starts what is bound to its node.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import Ident, ident_of, with_metadata
from extender.cluster.manifests.served.journal import (
    Bound,
    CompositeWritten,
    Conditions,
    DeletedObject,
    EventRecorded,
    ManifestPaths,
    PodGroupWritten,
    Record,
)
from extender.cluster.manifests.served.recorded_cluster import RecordedCluster
from extender.cluster.manifests.workload_expansion import ServedWorkloads
from extender.cluster.types import NodeTaint
from extender.core.log.anchors import Anchor
from extender.core.log.events import GoneVia
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import RequestRejected
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pod_groups import CHILDREN_MAX
from extender.core.model.pods import Pod
from extender.ports.cluster_ports import PodRef
from extender.ports.log_ports import Clock
from extender.simulation.virtual_time import simulation_loop

WRITE_S: Final = 0.004  # of a request to the API server, on average
LAG_S: Final = 0.010  # until a watch shows the first of some changes, on average
STARTS_WITHIN_S: Final = (1.0, 4.0)  # after its Binding a pod runs
FAILED_TAINTS: Final = tuple(  # of the node lifecycle controller
    NodeTaint(key="node.kubernetes.io/unreachable", effect=effect)
    for effect in ("NoSchedule", "NoExecute")
)
LOST_WITH_NODE: Final = api.StoredCondition(
    type="DisruptionTarget", status="True", reason="DeletionByPodGC"
)
GRACE_S: Final = (
    1.0,
    30.0,
)  # a deleted pod that runs needs so long to end; the API's default is at most 30 s


class SimulatedCluster(RecordedCluster):
    """The cluster port, and what users, controllers and machines do to the cluster.

    Attributes:
        on_running: Called with the UID of a pod that has started.
        on_gone: Called with a pod that is gone without having ended by itself.
    """

    def __init__(self, clock: Clock, seed: int, *, max_children: int = CHILDREN_MAX) -> None:
        """Start without objects; `seed`: of how long requests, watches and kubelets take."""
        super().__init__(clock, max_children)
        self._seed = seed
        self._written: dict[str, int] = {}  # requests, by UID
        self._shown = self._world.view
        self._is_to_be_shown = False
        self._anchors: tuple[Anchor, ...] = ()
        self._nodes: dict[str, Ident] = {}
        self._away_until_s: dict[str, float] = {}  # nodes that have failed
        self._served: list[str] = []  # UIDs of the workloads
        self.on_running: Callable[[PodUid], None] = lambda _: None
        self.on_bound: Callable[[Pod], None] = lambda _: None
        self.on_gone: Callable[[Pod], None] = lambda _: None

    # --- the port

    async def start(self) -> None:
        """Do nothing: objects come one by one."""

    async def stop(self) -> None:
        """Do nothing: there is no connection."""

    def view(self) -> ClusterView:
        """Return the view as the watches have shown it."""
        return self._shown

    def not_ready_reason(self) -> str:
        """Return an empty string: the view is complete from the start."""
        return ""

    async def catch_up(self) -> None:
        """Return when the view shows all that is stored."""
        stored = self._world.view.revision
        while self._shown.revision < stored:
            await self.changed(self._shown.revision)

    def ignored_sources(self) -> tuple[str, ...]:
        """Return nothing: there are no files."""
        return ()

    async def published(self) -> tuple[Anchor, ...]:
        """Return the published anchors."""
        return self._anchors

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        """Publish anchors."""
        self._anchors = tuple(anchors)

    async def evict(self, pod: PodRef, via: GoneVia) -> None:  # noqa: ARG002 -- no budgets here
        """Let a pod terminate; see the port."""
        async with self._lock(pod.uid):
            self._pod(pod)
            await self._request(pod.uid)
            self._pod(pod)
            self.delete_pod(pod.uid)

    async def _write(self, record: Record) -> None:
        await self._request("" if isinstance(record, ManifestPaths) else record.uid)
        if isinstance(record, ManifestPaths | EventRecorded | Conditions):
            return  # no model reads Events and conditions, so the watches do not show them either
        is_new = isinstance(record, PodGroupWritten | CompositeWritten)
        if record.uid not in self._by_uid and not is_new:
            text = (
                f"{record.namespace}/{record.name}: not found, or not the one with UID {record.uid}"
            )
            raise RequestRejected(text)
        self._store(record)
        if isinstance(record, Bound):
            uid = PodUid(record.uid)
            self.on_bound(self.pod(uid))
            self._later(self._between(STARTS_WITHIN_S, f"start {uid}"), self._start_pod, uid)

    # --- what users, controllers and machines do

    def pod(self, uid: PodUid) -> Pod:
        """Return a pod as it is stored now.

        Raises:
            KeyError: It is gone.
        """
        return self._world.view.pods[uid]

    def stored(self) -> ClusterView:
        """Return the view of what is stored now, which the watches may not have shown yet."""
        return self._world.view

    def put(self, *objects: api.Readable) -> None:
        """Create or replace objects; they have UIDs and creation times."""
        for new in objects:
            ident = ident_of(new)
            self._objects[ident], self._by_uid[new.metadata.uid] = new, ident
            if isinstance(new, api.Node):
                self._nodes[new.metadata.name] = ident
            self._upsert(ident)
        self._wake_waiting()

    def serve(self, served: ServedWorkloads) -> None:
        """Replace the workloads."""
        for uid in self._served:
            self._by_uid.pop(uid, None)
        self._served = [manifest.metadata.uid for manifest in served.manifests]
        for manifest in served.manifests:
            self._by_uid[manifest.metadata.uid] = (manifest.kind, "", *manifest.key)
        self.workloads.take(served)

    def remove(self, uid: str) -> None:
        """Remove an object at once; nothing happens if it is gone."""
        ident = self._by_uid.get(uid)
        if ident is None:
            return
        self._written.pop(uid, None)
        pod = self._world.view.pods.get(PodUid(uid))
        kind, source, namespace, name = ident
        self._store(
            DeletedObject(
                at_us=self._clock.now_us(),
                kind=kind,
                source=source,
                namespace=namespace,
                name=name,
                uid=uid,
            )
        )
        if pod is not None:
            self.on_gone(pod)

    def delete_pod(self, uid: PodUid) -> None:
        """Delete a pod as the API server does: it terminates if it is bound, else it is gone at once."""
        pod = self._world.view.pods.get(uid)
        if pod is None or pod.deleting:
            return
        if pod.node is None:
            self.remove(uid)
            return
        grace_s = self._between(GRACE_S, f"end {uid}")
        until = self.now() + timedelta(seconds=int(GRACE_S[1]))
        stored = self._objects[self._by_uid[uid]]
        self.put(with_metadata(stored, deletion_timestamp=until))
        self._later(grace_s, self.remove, uid)

    def fail_node(self, name: str, for_s: float) -> None:
        """Let a node be unreachable for some seconds; its pods are gone at once, as with a forced deletion."""
        ends_s = simulation_loop().time() + for_s
        self._away_until_s[name] = max(ends_s, self._away_until_s.get(name, 0.0))
        self._taint(name, FAILED_TAINTS)
        for uid in sorted(self._world.view.on_node.get(NodeName(name), ())):
            pod = self._objects[self._by_uid[uid]]
            assert isinstance(pod, api.Pod), f"{pod.label} is a pod"
            status = msgspec.structs.replace(pod.status, conditions=(LOST_WITH_NODE,))
            until = pod.metadata.deletion_timestamp or self.now()
            lost = msgspec.structs.replace(pod, status=status)
            self.put(with_metadata(lost, deletion_timestamp=until))
            self.remove(uid)
        simulation_loop().act_later(for_s, self._repair_node, name)

    def _repair_node(self, name: str) -> None:
        if simulation_loop().time() >= self._away_until_s[name]:
            self._taint(name, ())

    def _taint(self, name: str, taints: tuple[NodeTaint, ...]) -> None:
        """Replace the taints of failures of a node."""
        node = self._objects[self._nodes[name]]
        assert isinstance(node, api.Node), f"{name} is a node"
        others = tuple(taint for taint in node.spec.taints if taint not in FAILED_TAINTS)
        spec = msgspec.structs.replace(node.spec, taints=(*others, *taints))
        self.put(msgspec.structs.replace(node, spec=spec))

    def succeed(self, uid: PodUid) -> None:
        """Let a pod end with success."""
        stored = self._objects[self._by_uid[uid]]
        assert isinstance(stored, api.Pod), f"{stored.label} is a pod"
        status = msgspec.structs.replace(stored.status, phase="Succeeded")
        node = self._world.view.pods[uid].node or ""
        spec = msgspec.structs.replace(stored.spec, node_name=node)
        self.put(msgspec.structs.replace(stored, status=status, spec=spec))

    def groups_owned_by(self, uid: str) -> list[str]:
        """Return the UIDs of the groups that the service made for a workload."""
        return [
            group.metadata.uid
            for group in self._overlay.groups.values()
            if any(owner.uid == uid for owner in group.metadata.owner_references)
        ]

    def incarnations(self) -> dict[tuple[str, str, str, str], int]:
        """Return how often an object of each identity was deleted; the same dictionary each time."""
        return self._overlay.gone

    def now(self) -> datetime:
        """Return the time as objects have it, in whole seconds."""
        return datetime.fromtimestamp(self._clock.now_us() // 1_000_000, UTC)

    # --- details

    def _store(self, record: Record) -> None:
        assert not isinstance(record, ManifestPaths), "there are no files"
        self._overlay.apply(record)
        self._refresh(record.uid)
        self._wake_waiting()

    def _start_pod(self, uid: PodUid) -> None:
        pod = self._world.view.pods.get(uid)
        if pod is not None and not pod.deleting:
            self.on_running(uid)

    async def _request(self, uid: str) -> None:
        """Wait for the API server, by the object and how often it was written: orders of other writes change nothing."""
        count = self._written[uid] = self._written.get(uid, 0) + 1
        await simulation_loop().rest((0.5 + self._share(f"{uid} {count}")) * WRITE_S)

    def _between(self, bounds: tuple[float, float], text: str) -> float:
        least, most = bounds
        return least + (most - least) * self._share(text)

    def _share(self, text: str) -> float:
        """Return a number from 0 to 1 that looks like chance."""
        return zlib.crc32(f"{self._seed} {text}".encode()) / 2**32

    def _wake_waiting(self) -> None:
        """Let the watches show what is stored after their lag, together with what is stored until then."""
        loop = simulation_loop()
        loop.pace.active_s = loop.time()
        if self._world.view.revision != self._shown.revision and not self._is_to_be_shown:
            self._is_to_be_shown = True
            lag_s = (0.5 + self._share(f"view {self._world.view.revision}")) * LAG_S
            loop.call_later(lag_s, self._show)

    def _show(self) -> None:
        loop = simulation_loop()
        self._is_to_be_shown = False
        self._shown, loop.pace.active_s = self._world.view, loop.time()
        self._view_changed.wake()

    def _later(self, after_s: float, act: Callable[[PodUid], None], uid: PodUid) -> None:
        simulation_loop().act_later(after_s, act, uid)
