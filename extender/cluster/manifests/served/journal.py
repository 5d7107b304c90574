"""The writes to a manifest cluster: one append-only file of JSON lines, `cluster.jsonl`.

Owns the format of the lines, reads and durably writes them, and applies their fold to the objects. Manifests are never written; a binding exists only here.

Each line is an object with `type` and `at_us` (microseconds since the epoch):

    {"type":"manifests","at_us":1,"paths":["/home/me/cluster"]}
    {"type":"nominated","at_us":1,"namespace":"default","name":"p-0","uid":"...","node":"n1"}
    {"type":"gate-removed","at_us":2,"namespace":"default","name":"p-0","uid":"..."}
    {"type":"bound","at_us":3,"namespace":"default","name":"p-0","uid":"...","node":"n1","plan":"..."}
    {"type":"conditions","at_us":4,"kind":"PodGroup","source":"crd","namespace":"default","name":"p",
     "uid":"...","conditions":[{"type":"...","status":"True","reason":"...","message":"..."}]}
    {"type":"event","at_us":5,"kind":"Pod","namespace":"default","name":"p-0","uid":"...",
     "reason":"...","message":"...","warning":false,"action":"Scheduling"}
    {"type":"disruption-target","at_us":6,"namespace":"default","name":"p-0","uid":"...","message":"..."}
    {"type":"evicted","at_us":7,"namespace":"default","name":"p-0","uid":"..."}
    {"type":"deleted","at_us":8,"kind":"Pod","source":"","namespace":"default","name":"p-0","uid":"..."}
    {"type":"pod-group","at_us":9,"namespace":"default","name":"p","uid":"...","object":{...}}
    {"type":"composite-pod-group","at_us":9,"namespace":"default","name":"p","uid":"...","object":{...}}

`manifests`: the paths that the objects of the next lines were read from; the newest line counts.
`evicted`: the pod is removed at once, because there is no kubelet, though its manifest may still
exist. `deleted`: the object was removed from the manifests, or is a group that the service deleted; an object of its name
that is added later is a new one, with a new UID unless the manifest has one. `pod-group` and `composite-pod-group`: the
service created or changed a group of a workload. Readers may follow the file while it grows: only lines that
end in a newline are complete, and unknown types must be skipped.

Note: a line truncated by a crash is closed with a newline at the next start and then skipped; it
was never acknowledged. Several processes may append; of two bindings of a pod the first counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import ident_of
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.core.model.pods import GATE
from extender.ports.cluster_ports import Condition
from extender.ports.written_names import DISRUPTION_TARGET, PLAN_ANNOTATION, PREEMPTED

logger = logging.getLogger(__name__)

FILE: Final = "cluster.jsonl"
READ_BYTES: Final = 1 << 20  # per read; more for a longer line
LINE_MAX_BYTES: Final = 32 << 20  # as of a watch: an object is at most 1.5 MiB in etcd


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    at_us: int
    namespace: str
    name: str
    uid: str


class ManifestPaths(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="manifests"):
    """The absolute paths that a service reads its cluster from, sorted."""

    at_us: int
    paths: tuple[str, ...]


class Nominated(_Line, frozen=True, kw_only=True, tag="nominated"):
    """A pod was nominated to a node, or its nomination was cleared."""

    node: str


class GateRemoved(_Line, frozen=True, kw_only=True, tag="gate-removed"):
    """Our scheduling gate was removed from a pod."""


class Bound(_Line, frozen=True, kw_only=True, tag="bound"):
    """A pod was bound."""

    node: str
    plan: str = ""


class MarkedDisrupted(_Line, frozen=True, kw_only=True, tag="disruption-target"):
    """A pod got the condition DisruptionTarget."""

    message: str


class Evicted(_Line, frozen=True, kw_only=True, tag="evicted"):
    """A pod was deleted or evicted."""


class Conditions(_Line, frozen=True, kw_only=True, tag="conditions"):
    """Conditions of a group changed; contains only those that did."""

    kind: str
    source: str = ""
    conditions: tuple[Condition, ...]


class EventRecorded(_Line, frozen=True, kw_only=True, tag="event"):
    """A Kubernetes Event was recorded."""

    kind: str
    reason: str
    message: str
    warning: bool = False
    action: str = "Scheduling"
    related: tuple[str, str, str, str] | None = None  # kind, namespace, name, UID


class PodGroupWritten(_Line, frozen=True, kw_only=True, tag="pod-group"):
    """A leaf of a workload was created or changed; the object as it is stored."""

    object: api.PodGroup


class CompositeWritten(_Line, frozen=True, kw_only=True, tag="composite-pod-group"):
    """A composite of a workload was created or changed; the object as it is stored."""

    object: api.CompositePodGroup


class DeletedObject(_Line, frozen=True, kw_only=True, tag="deleted"):
    """An object was removed from the manifests, or a group was deleted."""

    kind: str
    source: str = ""

    @classmethod
    def of(cls, uid: str, ident: tuple[str, str, str, str], at_us: int) -> Self:
        """Return the record of an object with kind, source, namespace and name."""
        kind, source, namespace, name = ident
        return cls(at_us=at_us, kind=kind, source=source, namespace=namespace, name=name, uid=uid)


_Waiting = tuple[bytes, asyncio.Future[None]]
ObjectRecord = (
    Nominated
    | GateRemoved
    | Bound
    | MarkedDisrupted
    | Evicted
    | Conditions
    | EventRecorded
    | PodGroupWritten
    | CompositeWritten
    | DeletedObject
)
Record = ManifestPaths | ObjectRecord


class Journal:
    """The file, open for reading and appending."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._file = -1
        self._read_up_to = 0
        self._line = 0
        self._decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
        self._queue: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the file and end a truncated last line with a newline.

        Raises:
            OSError: The directory cannot be written.
        """
        await asyncio.to_thread(self._open)
        self._writer = asyncio.create_task(self._write_forever(), name="cluster-records")

    async def close(self) -> None:
        """Write the waiting lines, then close the file."""
        if self._writer is not None:
            self._queue.put_nowait(None)
            await self._writer
            self._writer = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def unread(self) -> Iterator[Record]:
        """Yield the complete lines of all writers that were not yielded before.

        Raises:
            BadInput: A line is longer than `LINE_MAX_BYTES`; the lines behind it cannot be read.
        """
        size = READ_BYTES
        while True:
            body = os.pread(self._file, size, self._read_up_to)
            whole = body.rfind(b"\n") + 1
            if not whole and len(body) < size:
                return  # end of the file, or an incomplete last line
            if not whole:
                if size >= LINE_MAX_BYTES:
                    limit = f"{LINE_MAX_BYTES >> 20} MiB"
                    raise BadInput(f"{self.path}: line {self._line + 1} is longer than {limit}")
                size = min(2 * size, LINE_MAX_BYTES)
                continue
            size = READ_BYTES
            self._read_up_to += whole
            for line in body[: whole - 1].split(b"\n"):
                self._line += 1
                try:
                    yield self._decoder.decode(line)
                except msgspec.DecodeError as fault:
                    where = {"path": str(self.path), "line": self._line, "fault": str(fault)}
                    if line:
                        logger.warning("A line of the cluster file is skipped", extra=where)

    async def append(self, record: Record) -> None:
        """Write a line; it is durable on return.

        Raises:
            ClusterUnavailable: The write failed; the line may have been written nevertheless.
        """
        if self._writer is None or self._writer.done():
            raise ClusterUnavailable(f"{self.path} is not open")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((msgspec.json.encode(record) + b"\n", written))
        await written

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._flush(b"\n")
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _flush(self, body: bytes) -> None:
        while body:
            body = body[os.write(self._file, body) :]
        os.fsync(self._file)

    async def _write_forever(self) -> None:
        """Write the lines queued during the last write with one fsync; None in the queue ends the loop."""
        going = True
        while going:
            items = [await self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get_nowait())
            batch = [item for item in items if item is not None]
            going = len(batch) == len(items)
            fault: ClusterUnavailable | None = None
            try:
                await asyncio.to_thread(self._flush, b"".join(line for line, _ in batch))
            except Exception as raised:  # no caller may wait for ever
                if not isinstance(raised, OSError):
                    logger.exception("a defect kept lines from being written")
                fault = ClusterUnavailable(f"{self.path}: {raised}")
            for _, written in batch:
                if written.cancelled():
                    continue
                if fault is None:
                    written.set_result(None)
                else:
                    written.set_exception(fault)


# deleted pods of which the node is kept, for a leader that did not record their Binding
ENDED_KEPT: Final = 16_384


class _Writes(msgspec.Struct):
    bound: Bound | None = None
    nominated: str | None = None
    ungated: bool = False
    disrupted: str | None = None  # message of its DisruptionTarget
    evicted: bool = False
    conditions: dict[str, Condition] = {}  # by type


class JournalOverlay:
    """The fold of all lines so far, by UID."""

    def __init__(self) -> None:
        self.of: dict[str, _Writes] = {}
        self._ended_on: dict[str, str] = {}  # node of bound pods that were deleted, oldest first
        self.groups: dict[str, api.Group] = {}  # of workloads: those that the service wrote
        # UID -> kind, source, namespace, name
        self.where: dict[str, tuple[str, str, str, str]] = {}
        # how often an object of a name was deleted
        self.gone: dict[tuple[str, str, str, str], int] = {}

    def apply(self, record: ObjectRecord) -> bool:
        """Fold a line; return whether it changed the state of its object.

        Of several bindings of one pod only the first counts.
        """
        if isinstance(record, EventRecorded):
            return False
        if isinstance(record, DeletedObject):
            return self._forget(record)
        if isinstance(record, PodGroupWritten | CompositeWritten):
            self.groups[record.uid] = record.object
            self.where[record.uid] = ident_of(record.object)
            for owner in record.object.metadata.owner_references:
                self.where[owner.uid] = (owner.kind, "", record.namespace, owner.name)
            return True
        kind, source = "Pod", ""
        writes = self.of.setdefault(record.uid, _Writes())
        match record:
            case Bound() | Nominated() if writes.bound is not None:
                return False
            case Bound():
                writes.bound, writes.nominated = record, None
            case Nominated():
                writes.nominated = record.node
            case GateRemoved():
                writes.ungated = True
            case MarkedDisrupted():
                writes.disrupted = record.message
            case Evicted():
                writes.evicted = True
            case Conditions():
                writes.conditions |= {c.type: c for c in record.conditions}
                kind, source = record.kind, record.source
        self.where[record.uid] = (kind, source, record.namespace, record.name)
        return True

    def node_of(self, uid: str) -> str:
        """Return the node that a pod is or was bound to; empty: none, or it was deleted long ago."""
        writes = self.of.get(uid)
        bound = writes.bound if writes is not None else None
        return bound.node if bound is not None else self._ended_on.get(uid, "")

    def _forget(self, record: DeletedObject) -> bool:
        ident = (record.kind, record.source, record.namespace, record.name)
        self.gone[ident] = self.gone.get(ident, 0) + 1
        writes = self.of.pop(record.uid, None)
        if writes is not None and writes.bound is not None:
            self._ended_on[record.uid] = writes.bound.node
            if len(self._ended_on) > ENDED_KEPT:
                del self._ended_on[next(iter(self._ended_on))]
        self.where.pop(record.uid, None)
        return self.groups.pop(record.uid, None) is not None


def with_writes(obj: api.Readable, overlay: JournalOverlay) -> api.Readable:
    """Return an object of the manifests with the writes to it applied."""
    writes = overlay.of.get(obj.metadata.uid)
    if writes is not None and isinstance(obj, api.Pod):
        return _pod(obj, writes)
    if writes is not None and isinstance(obj, api.Group):
        stored = {c.type: c for c in obj.status.conditions}
        for type_, condition in writes.conditions.items():
            stored[type_] = msgspec.convert(condition, api.StoredCondition, from_attributes=True)
        status = replace(obj.status, conditions=tuple(stored.values()))
        return replace(obj, status=status)
    return obj


def _pod(pod: api.Pod, writes: _Writes) -> api.Pod:
    spec, status, metadata = pod.spec, pod.status, pod.metadata
    if writes.ungated:
        gates = tuple(gate for gate in spec.scheduling_gates if gate.name != GATE)
        spec = replace(spec, scheduling_gates=gates)
    bound = writes.bound
    if bound is not None and not spec.node_name:
        spec = replace(spec, node_name=bound.node)
        phase = "Running" if status.phase in {"", "Pending"} else status.phase
        status = replace(status, nominated_node_name="", phase=phase)
        if bound.plan:
            annotations = {**metadata.annotations, PLAN_ANNOTATION: bound.plan}
            metadata = replace(metadata, annotations=annotations)
    elif writes.nominated is not None and not spec.node_name:
        status = replace(status, nominated_node_name=writes.nominated)
    if writes.disrupted is not None or writes.evicted:
        reason = PREEMPTED if writes.disrupted is not None else "EvictionByEvictionAPI"
        condition = api.StoredCondition(
            type=DISRUPTION_TARGET, status="True", reason=reason, message=writes.disrupted or ""
        )
        status = replace(status, conditions=(*status.conditions, condition))
    if writes.evicted:
        status = replace(status, phase="Failed")
    return replace(pod, spec=spec, status=status, metadata=metadata)
