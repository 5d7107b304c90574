"""The servers of a run: kube-apiserver with lists and watches as informers read them, and the database of the log.

The faults of a case set how both fail. What a process has sent is carried out also when it ends meanwhile.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, Self, TypeVar

import msgspec

from extender.cluster import types as api
from extender.cluster.api_server.informers import Resource
from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.connection.api_client import ApiResponse, Request
from extender.cluster.manifests.manifest_entries import with_metadata
from extender.cluster.read.object_store import ObjectStore
from extender.core.log.anchors import Anchor
from extender.core.log.events import GoneVia, RecordedEvent
from extender.core.model.errors import ClusterUnavailable, HeadMoved, StoreUnavailable
from extender.core.model.ids import GroupKey, NodeName, PodUid, Position
from extender.core.model.pods import PodEnd
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.ports.log_ports import START, LeaseGrant, LogPage
from extender.runtime.periodic import kept_running
from extender.runtime.wakeup import Wakeup
from extender.simulation.memory_log import MemoryDatabase, MemoryEventLog, MemorySnapshots
from extender.simulation.simulated_cluster import SimulatedCluster
from tests.support.faults.processes import Process, ProcessLoop, at_server

T = TypeVar("T")
OURS: Final = "gang-extender.dev/v1alpha1"
RESOURCES: Final = (
    Resource(name="nodes", kind=api.Node, api_version="v1"),
    Resource(name="podgroups", kind=api.PodGroup, api_version=OURS),
    Resource(name="compositepodgroups", kind=api.CompositePodGroup, api_version=OURS),
    Resource(name="pods", kind=api.Pod, api_version="v1"),
)
BY_PATH: Final = {resource.path: resource for resource in RESOURCES}
BOOKMARK_S: Final = 45.0
ANSWERS_S: Final = 0.002  # a request
LAG_S: Final = 0.010  # until a watch shows a change


class _Change(msgspec.Struct):
    version: int
    at_s: float
    type: str
    obj: api.Readable


class ApiModel(SimulatedCluster):
    """kube-apiserver: the objects, and what changed in which order."""

    def __init__(self, loop: ProcessLoop, clock: Any, seed: int, finalizer_s: float) -> None:
        super().__init__(clock, seed)
        self._finalizer_s = finalizer_s
        self.loop = loop
        self.version = 1
        self.freed_s = 0.0  # when capacity may have become free last
        self.changes: dict[type, list[_Change]] = {r.kind: [] for r in RESOURCES}
        self.stored_as: dict[type, dict[tuple[str, str], _Change]] = {r.kind: {} for r in RESOURCES}
        self.oldest = 0  # versions up to this one cannot be continued from
        self.moved = {resource.kind: Wakeup() for resource in RESOURCES}
        self.on_sending: Callable[[ServedCluster, str, str], None] = lambda *_: None
        self.on_failed: Callable[[str, str], None] = lambda *_: None
        self.on_change: Callable[[], None] = lambda: None
        upsert, delete = self._world.upsert, self._world.delete

        def journaled_upsert(obj: api.Readable) -> None:
            upsert(obj)
            self._record("MODIFIED", obj)

        def journaled_delete(obj: api.Readable) -> None:
            delete(obj)
            self._record("DELETED", obj)

        self._world.upsert, self._world.delete = journaled_upsert, journaled_delete  # type: ignore[method-assign]

    def _record(self, kind: str, obj: api.Readable) -> None:
        stored = self.stored_as.get(type(obj))
        if stored is None:
            return
        before = stored.get(obj.key)
        if kind == "DELETED" and before is None:
            return
        if before is not None and kind != "DELETED" and _same(before.obj, obj):
            return
        self.version += 1
        self.loop.pace.active_s = self.loop.time()
        if _frees(kind, obj):
            self.freed_s = self.loop.time()
        versioned = with_metadata(obj, resource_version=str(self.version))
        shown = "ADDED" if before is None else kind
        change = _Change(self.version, self.loop.time(), shown, versioned)
        self.changes[type(obj)].append(change)
        if kind == "DELETED":
            del stored[obj.key]
        else:
            stored[obj.key] = change
        self.moved[type(obj)].wake()

    def _wake_waiting(self) -> None:
        self._shown = self._world.view
        self.on_change()

    def delete_pod(self, uid: PodUid) -> None:
        """Delete a pod; one without a node stays until another controller removes its finalizer."""
        pod = self._world.view.pods.get(uid)
        if pod is None or pod.deleting or pod.node is not None or not self._finalizer_s:
            super().delete_pod(uid)
            return
        stored = self._objects[self._by_uid[uid]]
        self.put(with_metadata(stored, deletion_timestamp=self.now()))
        self._later(self._finalizer_s, self.remove, uid)

    def page(self, resource: Resource) -> bytes:
        """Return a list as kube-apiserver answers it."""
        items = [change.obj for change in self.stored_as[resource.kind].values()]
        return msgspec.json.encode(
            {"apiVersion": resource.api_version, "kind": f"{resource.kind.__name__}List",
             "metadata": {"resourceVersion": str(self.version)}, "items": items}
        )  # fmt: skip


def _frees(kind: str, obj: api.Readable) -> bool:
    """Return whether a change may give capacity to a tree: an end, or any change of a node."""
    ended = isinstance(obj, api.Pod) and obj.status.phase in ("Succeeded", "Failed")
    return kind == "DELETED" or ended or isinstance(obj, api.Node)


def _same(before: api.Readable, after: api.Readable) -> bool:
    return before == with_metadata(after, resource_version=before.metadata.resource_version)


class Channel:
    """How the watches of one process for one resource fail."""

    def __init__(self) -> None:
        self.late_until_s = 0.0
        self.late_s = 0.0
        self.orders: list[str] = []  # of the next changes: duplicate, swap, lose, lose deletion
        self.broken = Wakeup()
        self.refuses = 0  # watches that are answered with 410


class ApiConnection:
    """What the client of one process asks kube-apiserver; in place of `ApiServer`."""

    def __init__(self, model: ApiModel, faults: RequestFaults) -> None:
        self._model = model
        self._faults = faults
        self.channels = {resource.kind: Channel() for resource in RESOURCES}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def call(self, request: Request) -> bytes:
        """Return the answer to a list or a ping."""
        await self._model.loop.rest(ANSWERS_S + self._faults.slow_s())
        if self._faults.is_down():
            raise ClusterUnavailable(f"{request.path}: 503")
        resource = BY_PATH.get(request.path)
        return self._model.page(resource) if resource is not None else b"ok"

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], *, idle_s: float) -> AsyncIterator[AsyncIterator[bytes]]:  # fmt: skip
        """Open a watch."""
        del idle_s  # bookmarks come before
        resource = BY_PATH[path]
        channel = self.channels[resource.kind]
        await self._model.loop.rest(ANSWERS_S)
        if self._faults.is_down():
            raise ClusterUnavailable(f"watch {path}: 503")
        version = int(query["resourceVersion"])
        if channel.refuses or version < self._model.oldest:
            channel.refuses = max(0, channel.refuses - 1)
            raise ApiResponse(410, "Expired", "too old resource version")
        yield self._lines(resource, channel, version, float(query["timeoutSeconds"]))

    async def _lines(self, resource: Resource, channel: Channel, version: int, lasts_s: float) -> AsyncIterator[bytes]:  # fmt: skip
        loop, changes = self._model.loop, self._model.changes[resource.kind]
        ends_s, bookmark_s = loop.time() + lasts_s, loop.time() + BOOKMARK_S
        index = bisect.bisect_right(changes, version, key=lambda change: change.version)
        broken, moved = channel.broken.revision, self._model.moved[resource.kind]
        while loop.time() < ends_s:
            if channel.broken.revision != broken:
                raise ClusterUnavailable(f"watch {resource.name}: the connection was reset")
            if index >= len(changes):
                if loop.time() >= bookmark_s:
                    bookmark_s = loop.time() + BOOKMARK_S
                    empty = resource.kind(metadata=api.ObjectMeta(resource_version=str(max(version, 1))))  # fmt: skip
                    yield _line("BOOKMARK", empty)
                    continue
                waits = asyncio.ensure_future(moved.wait(moved.revision))
                breaks = asyncio.ensure_future(channel.broken.wait(broken))
                await asyncio.wait(
                    {waits, breaks},
                    timeout=max(0.001, min(ends_s, bookmark_s) - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                waits.cancel()
                breaks.cancel()
                continue
            change = changes[index]
            late_s = channel.late_s if loop.time() < channel.late_until_s else 0.0
            shows_s = change.at_s + LAG_S + late_s
            if shows_s > loop.time():
                await loop.rest_until(shows_s)
                continue
            index, version = index + 1, change.version
            order = channel.orders[0] if channel.orders else ""
            if order == "lose deletion" and change.type != "DELETED":
                order = ""  # it waits for one
            elif order:
                channel.orders.pop(0)
            if order.startswith(
                "lose"
            ):  # the connection breaks, and the version cannot be continued from
                channel.refuses += 1
                raise ClusterUnavailable(f"watch {resource.name}: the connection was reset")
            if order == "swap" and index < len(changes):
                yield _line(changes[index].type, changes[index].obj)
            yield _line(change.type, change.obj)
            if order == "duplicate":
                yield _line(change.type, change.obj)


def _line(kind: str, obj: api.Readable) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


class RequestFaults:
    """How requests to kube-apiserver fail at a time."""

    def __init__(self, loop: ProcessLoop, seed: int) -> None:
        self._loop = loop
        self._chance = Random(f"requests {seed}")
        self.fails_until_s = 0.0
        self.share = 0.0  # of the writes that fail
        self.down_until_s = 0.0
        self.slow_until_s = 0.0

    def is_down(self) -> bool:
        return self._loop.time() < self.down_until_s

    def slow_s(self) -> float:
        return self._chance.random() * 0.4 if self._loop.time() < self.slow_until_s else 0.0

    def of_write(self) -> str:
        """Return how the next write fails: not sent, sent without an answer, refused; empty: it does not."""
        if self.is_down():
            return "unsent"
        if self._loop.time() < self.fails_until_s and self._chance.random() < self.share:
            return self._chance.choice(["unsent", "unanswered", "refused"])
        return ""


class ServedCluster(KubernetesCluster):
    """The cluster adapter of one process: its informers are real, its writes go to the model."""

    def __init__(
        self, model: ApiModel, faults: RequestFaults, clock: Any, process: Process, seed: str,
        fence: Callable[[], bool], grant: Callable[[], LeaseGrant | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.process = process
        self.grant = grant
        self.connection = ApiConnection(model, faults)
        super().__init__(
            self.connection,  # type: ignore[arg-type]
            clock=clock,
            chance=Random(f"informers {seed}"),
            instance=process.name,
        )
        for name in vars(
            ServedCluster
        ):  # what the adapter binds to its parts, and this class has instead
            vars(self).pop(name, None)
        self._world = ObjectStore()  # without finalizers
        self.workloads = model.workloads  # type: ignore[assignment]
        self._model = model
        self._faults = faults
        self.fence = fence

    async def start(self) -> None:
        """Start what reads; workloads are read from the model."""
        self._answered_ms = self._clock.monotonic_ms()
        for task in self._periodic_tasks():
            loop = kept_running(task.name, task.run)
            self._background.append(asyncio.create_task(loop, name=f"cluster {task.name}"))

    async def _discover(self) -> None:
        await self._adjust(RESOURCES)
        self._discovered = True

    async def published(self) -> tuple[Anchor, ...]:
        """Read the published anchors."""
        await self._model.loop.rest(ANSWERS_S)
        if self._faults.is_down():
            raise ClusterUnavailable("anchors: 503")
        return await self._model.published()

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        """Publish anchors."""
        await self._send("publish", "", lambda: self._model.publish(anchors))

    async def _send(self, verb: str, uid: str, work: Callable[[], Awaitable[T]]) -> T:
        text = f"{verb} {uid}"
        if not self.fence():
            raise ClusterUnavailable(f"{text}: not the leader any more, not sent", refused=True)
        self._model.on_sending(self, verb, uid)
        fault, slow_s = self._faults.of_write(), self._faults.slow_s()
        if fault:
            self._model.on_failed(verb, uid)
        if fault in {"unsent", "refused"}:
            await self._model.loop.rest(ANSWERS_S)
            reason = "503" if fault == "unsent" else "409 Conflict, another writer was first"
            raise ClusterUnavailable(f"{text}: {reason}")

        async def slowly() -> T:
            if slow_s:
                await self._model.loop.rest(slow_s)
            return await work()

        answer = await at_server(self._model.loop, slowly, text)
        if fault == "unanswered":
            raise ClusterUnavailable(f"{text}: the connection was reset")
        return answer

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        await self._send("nominate", pod.uid, lambda: self._model.nominate(pod, node))

    async def remove_gate(self, pod: PodRef) -> None:
        await self._send("ungate", pod.uid, lambda: self._model.remove_gate(pod))

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        await self._send("mark", pod.uid, lambda: self._model.mark_disrupted(pod, message))

    async def evict(self, pod: PodRef, via: GoneVia) -> None:
        await self._send("evict", pod.uid, lambda: self._model.evict(pod, via))

    async def ending(self, pod: PodRef) -> PodEnd | None:
        await self._model.loop.rest(ANSWERS_S)
        if self._faults.is_down():
            raise ClusterUnavailable("ending: 503")
        return await self._model.ending(pod)

    async def explain_waiting(self, pod: PodRef, message: str) -> None:
        await self._send("explain", pod.uid, lambda: self._model.explain_waiting(pod, message))

    async def bind(self, binding: Binding) -> None:
        await self._send("bind", binding.pod.uid, lambda: self._model.bind(binding))

    async def set_conditions(self, group: GroupKey, uid: str, conditions: Sequence[Condition]) -> None:  # fmt: skip
        await self._send("status", uid, lambda: self._model.set_conditions(group, uid, conditions))  # fmt: skip

    async def notice(self, notice: K8sEvent) -> None:
        del notice  # nothing reads Events


class DatabaseModel:
    """The database of the log, as all processes share it."""

    def __init__(self, loop: ProcessLoop, clock: Any) -> None:
        self.loop = loop
        self.shared = MemoryDatabase(clock.now_us, clock.new_id)
        self.appended = Wakeup()
        self.down_until_s = 0.0
        self.slow_until_s = 0.0
        self.slow_s = 0.0
        self.lost: list[str] = []  # of the next appends: answer, append
        self.on_appending: Callable[[Sequence[RecordedEvent]], None] = lambda _: None
        self.on_appended: Callable[[], None] = lambda: None
        self.on_misfit: Callable[[LeaseGrant, Position], None] = lambda *_: None


class RemoteLog(MemoryEventLog):
    """The log as one process reaches it."""

    def __init__(self, database: DatabaseModel) -> None:
        super().__init__(database.shared)
        self._remote = database
        self.cut_until_s = 0.0  # until then this process alone does not reach the database
        self.late_until_s, self.late_s = 0.0, 0.0  # until then it follows the log late

    async def _answering(self) -> MemoryDatabase:
        remote = self._remote
        slow = remote.slow_s if remote.loop.time() < remote.slow_until_s else 0.0
        await remote.loop.rest(0.001 + slow)
        if remote.loop.time() < max(remote.down_until_s, self.cut_until_s):
            raise StoreUnavailable("the database does not answer")
        return remote.shared

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> bytes:
        """Append; the database goes on when the process ends."""
        self._remote.on_appending(events)
        if self._remote.lost:
            order = self._remote.lost.pop(0)
            (self.lose_next_answer if order == "answer" else self.lose_next_append)()

        async def written() -> bytes:
            before = len(self._remote.shared.rows)
            try:
                return await MemoryEventLog.append(self, grant, events)
            except HeadMoved:
                self._remote.on_misfit(grant, events[0].position)
                raise
            finally:
                if len(self._remote.shared.rows) > before:
                    self._remote.loop.pace.active_s = self._remote.loop.time()
                    self._remote.on_appended()

        chain = await at_server(self._remote.loop, written)
        self._remote.appended.wake()
        return chain

    async def take(self, **asked: Any) -> LeaseGrant:
        return await at_server(self._remote.loop, lambda: MemoryEventLog.take(self, **asked))

    async def renew(self, grant: LeaseGrant) -> None:
        await at_server(self._remote.loop, lambda: MemoryEventLog.renew(self, grant))

    async def follow(self, *, after: Position = START) -> AsyncIterator[LogPage]:
        """Yield pages as the log grows."""
        while True:
            revision = self._remote.appended.revision
            async for page in self.read(after=after):
                if self._remote.loop.time() < self.late_until_s:
                    await self._remote.loop.rest(self.late_s)
                after = page[-1].position
                yield page
            await self._remote.appended.wait(revision)


class RemoteSnapshots(MemorySnapshots):
    """Saved folds, which need the database too."""

    def __init__(self, database: DatabaseModel) -> None:
        super().__init__(database.shared)
