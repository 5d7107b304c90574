"""The `Cluster` port on a cluster that is read from files, for `serve --cluster PATH...`.

Manifests are read-only and re-read when they change; what is done to the cluster (bindings,
nominations, lifted gates, conditions, notices) goes to one append-only file in the data directory,
`cluster.jsonl`, whose lines `records` describes. So this cluster outlives a SIGKILL. It is a
try-out, not an API server: no admission runs (pods come with or without gates and markers as they
are written), no kubelet starts anything, and a bound pod counts as running until it leaves the
manifests or its manifest says that it ended.

A program that plays users and controllers writes manifests (best under another name, then renamed)
and follows `cluster.jsonl`. A pod that leaves the manifests is deleted; one that comes back under
its name is another pod, unless both have one UID. Leaving and coming back within two polls goes
unnoticed when neither has a UID.

The surprise: a manifest that breaks keeps the last good state, with a warning and no doubt; only a
cluster that was never readable is doubted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.file_watcher import FileWatcher
from extender.cluster.manifests.journal import (
    FILE,
    Bound,
    Conditions,
    DeletedObject,
    EventRecorded,
    Evicted,
    GateLifted,
    Journal,
    MarkedDisrupted,
    Nominated,
    Record,
)
from extender.cluster.manifests.journal_overlay import JournalOverlay, done_to
from extender.cluster.manifests.manifest_loader import (
    CompleteManifest,
    Ident,
    in_feed_order,
)
from extender.cluster.manifests.yaml_reader import STDIN
from extender.cluster.read.object_decoding import source_of
from extender.cluster.read.object_store import ObjectStore
from extender.cluster.write.log_head_configmap import read_mark, written
from extender.core.decisions.admit.plan_request import GATE
from extender.core.decisions.reconcile.finalizer_rules import FinalizerChange
from extender.core.log.events import EvictionHow
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Source
from extender.core.model.pods import Pod, PodEnd
from extender.ports.protocols import Binding, Clock, Condition, K8sEvent, LogMark, PodRef
from extender.runtime.wakeup import Wakeup

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1  # a change is seen after at most two polls

ANCHOR: Final = "log-end.json"  # the published end of the log, see `PublishedLogHead`

_KINDS: Final[tuple[tuple[type[api.Readable], Source], ...]] = (
    (api.PriorityClass, "crd"),
    (api.PersistentVolume, "crd"),
    (api.PersistentVolumeClaim, "crd"),
    (api.Node, "crd"),
    (api.Workload, "crd"),
    (api.PodDisruptionBudget, "crd"),
    (api.PodGroup, "builtin"),
    (api.PodGroup, "crd"),
    (api.CompositePodGroup, "builtin"),
    (api.CompositePodGroup, "crd"),
    (api.Pod, "crd"),
)


class ManifestCluster:
    """A cluster of manifests, plus what was done to it."""

    def __init__(
        self, paths: Sequence[str], data_dir: Path, *, clock: Clock, poll_s: float = POLL_S
    ) -> None:
        """Prepare; nothing is read before `start`.

        Args:
            paths: Files and directories; standard input cannot be read again and is refused.
            data_dir: Where `cluster.jsonl` is; made when it does not exist.
            clock: For the time in each line.
            poll_s: Seconds between looks at the files.

        Raises:
            BadInput: A path is `-`, or does not exist. What is in it may come and go later.
        """
        if STDIN in paths:
            msg = "--cluster -: standard input cannot be re-read; give files or directories"
            raise BadInput(msg)
        for path in paths:
            if not Path(path).exists():
                msg = f"--cluster {path}: no such file or directory; make it first, it may be empty"
                raise BadInput(msg)
        self._reading = FileWatcher(paths)
        self._clock = clock
        self._poll_s = poll_s
        self._records = Journal(data_dir / FILE)
        self._anchor = data_dir / ANCHOR
        self._deeds = JournalOverlay()
        self._world = ObjectStore()
        self._things: dict[Ident, api.Readable] = {}  # as the manifests have them
        self._by_uid: dict[str, Ident] = {}
        self._was_good = False
        self._fault = "the manifests were not read yet"
        self._news = Wakeup()  # moves with the view
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._polling: asyncio.Task[None] | None = None

    control_plane: Final = None  # files have neither kube-apiserver nor kube-scheduler

    # --- life

    async def start(self) -> None:
        """Read what there is and begin to watch the files.

        Broken manifests do not stop the start; `doubt` says what is wrong until they are mended.

        Raises:
            OSError: The data directory cannot be written.
        """
        await self._records.open()
        self._catch_up()
        await self._look()
        self._polling = asyncio.create_task(self._poll_for_ever(), name="cluster-files")

    async def broken(self) -> None:
        """Wait for as long as the files are watched, and raise what ended the watch: a defect."""
        if self._polling is not None:
            await asyncio.shield(self._polling)

    async def stop(self) -> None:
        """End everything; nothing of it runs when this returns."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
            self._polling = None
        await self._records.close()

    async def _poll_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            self._catch_up()
            await self._look()

    # --- reading

    async def _look(self) -> None:
        """Read the manifests again if they have changed, and make the cluster what they say."""
        try:
            found = await self._reading.changed(self._deeds.gone)
            if found is None:
                return
            await self._take(found)
        except (BadInput, OSError, ClusterUnavailable) as fault:
            if not isinstance(fault, BadInput):
                self._reading.again()
            if str(fault) != self._fault:
                data = {"fault": str(fault), "kept": self._was_good}
                logger.warning("Manifests cannot be used", extra=data)
            self._fault = str(fault)
        else:
            self._was_good, self._fault = True, ""

    async def _take(self, found: CompleteManifest) -> None:
        """Make the cluster what was read."""
        things = {entry.ident: entry.thing for entry in in_feed_order(found.entries)}
        there = {thing.metadata.uid for thing in things.values()}
        known = self._deeds.where | self._by_uid
        left = {uid: ident for uid, ident in known.items() if uid not in there}
        at_us = self._clock.now_us()
        await asyncio.gather(
            *(self._write(_gone(uid, ident, at_us)) for uid, ident in sorted(left.items()))
        )
        self._reading.forget(left.values())
        self._things = things
        self._by_uid = {
            thing.metadata.uid: ident
            for ident, thing in things.items()
            if isinstance(thing, api.Pod | api.PodGroup | api.CompositePodGroup)
        }
        for kind, source in _KINDS:
            mine = [
                done_to(thing, self._deeds)
                for thing in things.values()
                if isinstance(thing, kind) and _source(thing) == source
            ]
            for fault in self._world.replace(kind, mine, source=source):
                logger.warning("An object is left out", extra={"fault": str(fault)})
        self._tell()

    def _catch_up(self) -> None:
        """Apply the lines that were written since the last time, by us or by another process."""
        changed = set()
        for record in self._records.unread():
            if self._deeds.apply(record):
                changed.add(record.uid)
        for uid in sorted(changed):
            ident = self._by_uid.get(uid)
            if ident is not None:
                self._world.upsert(done_to(self._things[ident], self._deeds))
        if changed:
            self._tell()

    async def _write(self, record: Record) -> None:
        await self._records.append(record)
        self._catch_up()

    def _tell(self) -> None:
        self._news.wake()

    # --- the port

    def view(self) -> ClusterView:
        """Give the newest snapshot."""
        return self._world.view

    def doubt(self) -> str:
        """Say why the view must not be decided from; a manifest that broke later is no reason."""
        if self._polling is not None and self._polling.done():
            return "the files are not watched any more"
        return "" if self._was_good else self._fault

    def priority_classes(self) -> tuple[bytes, ...]:
        """Give the PriorityClasses as JSON objects."""
        return self._world.priorities.documents()

    async def changed(self, revision: int) -> int:
        """Wait until the view's revision differs from `revision`; give the new one."""
        while self._world.view.revision == revision:
            await self._news.wait(self._news.revision)
        return self._world.view.revision

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Note a nominated node; None clears it.

        Raises:
            BindRefused: The pod is gone, was recreated or is bound.
            ClusterUnavailable: The file cannot be written.
        """
        async with self._lock(pod.uid):
            found = self._pod(pod)
            if found.node is not None:
                raise _refused(pod, f"is bound to {found.node}")
            if found.nominated != node:
                at = self._clock.now_us()
                await self._write(
                    Nominated(
                        at_us=at,
                        namespace=pod.namespace,
                        name=pod.name,
                        uid=pod.uid,
                        node=node or "",
                    )
                )

    async def lift_gate(self, pod: PodRef) -> None:
        """Take our scheduling gate off a pod; nothing happens when it is not there.

        Raises: as `nominate`.
        """
        async with self._lock(pod.uid):
            if GATE in self._pod(pod).gates:
                at = self._clock.now_us()
                await self._write(
                    GateLifted(at_us=at, namespace=pod.namespace, name=pod.name, uid=pod.uid)
                )

    async def doom(self, pod: PodRef, message: str) -> None:
        """Note that a pod is about to be disrupted; see the port."""
        async with self._lock(pod.uid):
            self._pod(pod)
            at, namespace, name = self._clock.now_us(), pod.namespace, pod.name
            await self._write(
                MarkedDisrupted(
                    at_us=at, namespace=namespace, name=name, uid=pod.uid, message=message
                )
            )

    async def evict(self, pod: PodRef, how: EvictionHow) -> None:  # noqa: ARG002 -- no budgets here
        """Note that a pod was deleted; it is gone at once, there is no kubelet to wait for."""
        async with self._lock(pod.uid):
            self._pod(pod)
            at, namespace, name = self._clock.now_us(), pod.namespace, pod.name
            await self._write(Evicted(at_us=at, namespace=namespace, name=name, uid=pod.uid))

    async def ending(self, pod: PodRef) -> PodEnd | None:
        """Say what became of a pod: what has ended and is still in the manifests is in the view."""
        if pod.uid in self._world.view.pods:
            return None
        return self._world.view.ends.get(pod.uid, PodEnd("deleted"))

    async def bind(self, binding: Binding) -> None:
        """Bind a pod. A pod already bound to this very node is a success.

        Raises:
            BindRefused: For good: gone, recreated, deleted, gated, or bound elsewhere.
            ClusterUnavailable: The file cannot be written.
        """
        pod, node = binding.pod, binding.node
        async with self._lock(pod.uid):
            found = self._pod(pod)
            if found.node is None:
                if found.deleting:
                    raise _refused(pod, "is being deleted")
                if found.gates:
                    raise _refused(pod, f"has scheduling gates: {', '.join(found.gates)}")
                await self._write(
                    Bound(
                        at_us=self._clock.now_us(),
                        namespace=pod.namespace,
                        name=pod.name,
                        uid=pod.uid,
                        node=node,
                        plan=binding.plan or "",
                    )
                )
                found = self._pod(pod)  # another process may have been faster
            if found.node != node:
                raise _refused(pod, f"is bound to {found.node}, not to {node}")

    async def published(self) -> LogMark | None:
        """Read the published end of the log.

        Raises:
            ClusterUnavailable: The file is there and cannot be read.
        """
        try:
            body = await asyncio.to_thread(self._anchor.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise ClusterUnavailable(f"{self._anchor}: {fault}") from fault
        return read_mark(body, str(self._anchor))

    async def publish(self, mark: LogMark) -> None:
        """Publish the end of the log in a file of its own, whole or not at all.

        Raises:
            ClusterUnavailable: The file cannot be written.
        """
        new = self._anchor.with_suffix(".new")
        try:
            await asyncio.to_thread(new.write_bytes, msgspec.json.encode(written(mark)))
            new.replace(self._anchor)
        except OSError as fault:
            raise ClusterUnavailable(f"{self._anchor}: {fault}") from fault

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        """Merge conditions into the status of a group, noting only those that differ.

        Raises: as `nominate`.
        """
        async with self._lock(uid):
            found = self._world.view.groups.get(group)
            if found is None or found.uid != uid:
                msg = f"{group}: not found, or not the one with UID {uid}"
                raise RequestRejected(msg)
            stored = {
                (kind, status, reason, text) for kind, status, reason, text in found.conditions
            }
            differing = tuple(
                c for c in conditions if (c.type, c.status, c.reason, c.message) not in stored
            )
            if differing:
                await self._write(
                    Conditions(
                        at_us=self._clock.now_us(),
                        kind=group.kind,
                        source=found.source,
                        namespace=group.namespace,
                        name=group.name,
                        uid=uid,
                        conditions=differing,
                    )
                )

    async def set_finalizers(self, wanted: FinalizerChange) -> None:
        """Refuse: what leaves the manifests is gone, no finalizer keeps it, and none is ever asked for.

        Raises:
            BindRefused: Always.
        """
        raise RequestRejected(f"finalizers of {wanted.group}: a cluster of files has none")

    async def notice(self, notice: K8sEvent) -> None:
        """Note a Kubernetes Event; a failure is logged, not raised."""
        record = EventRecorded(
            at_us=self._clock.now_us(),
            kind=notice.kind,
            namespace=notice.namespace,
            name=notice.name,
            uid=notice.uid,
            reason=notice.reason,
            message=notice.message,
            warning=notice.warning,
            action=notice.action,
            related=notice.related,
        )
        try:
            await self._write(record)
        except ClusterUnavailable as fault:
            logger.warning("A notice is lost", extra={"fault": str(fault)})

    # --- small things

    def _lock(self, uid: str) -> asyncio.Lock:
        """Give the lock under which one object is looked at and changed."""
        lock = self._locks.get(uid)
        if lock is None:
            lock = self._locks[uid] = asyncio.Lock()
        return lock

    def _pod(self, ref: PodRef) -> Pod:
        found = self._world.view.pods.get(PodUid(ref.uid))
        if found is None or (found.namespace, found.name) != (ref.namespace, ref.name):
            raise _refused(ref, f"not found, or not the one with UID {ref.uid}")
        return found


def _refused(pod: PodRef, why: str) -> RequestRejected:
    return RequestRejected(f"Pod/{pod.namespace}/{pod.name}: {why}")


def _gone(uid: str, ident: Ident, at_us: int) -> DeletedObject:
    kind, source, namespace, name = ident
    return DeletedObject(
        at_us=at_us, kind=kind, source=source, namespace=namespace, name=name, uid=uid
    )


def _source(thing: api.Readable) -> Source:
    return source_of(thing) if isinstance(thing, api.PodGroup | api.CompositePodGroup) else "crd"
