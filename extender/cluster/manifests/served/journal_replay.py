"""Fold the lines of `cluster.jsonl`, and apply the result to the objects of manifests."""

from __future__ import annotations

from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import ident_of
from extender.cluster.manifests.served.journal import (
    Bound,
    CompositeWritten,
    Conditions,
    DeletedObject,
    EventRecorded,
    Evicted,
    GateRemoved,
    MarkedDisrupted,
    Nominated,
    ObjectRecord,
    PodGroupWritten,
)
from extender.core.admit.plan_request import GATE
from extender.ports.cluster_ports import Condition
from extender.ports.written_names import DISRUPTION_TARGET, PLAN_ANNOTATION, PREEMPTED

# deleted pods of which the node is kept, for a leader that did not record their Binding
ENDED_KEPT: Final = 16_384


class JournalOverlay:
    """The fold of all lines so far, by UID."""

    def __init__(self) -> None:
        self.bound: dict[str, Bound] = {}
        self._ended_on: dict[str, str] = {}  # node of bound pods that were deleted, oldest first
        self.nominated: dict[str, str] = {}
        self.ungated: set[str] = set()
        self.disrupted: dict[str, str] = {}  # message of their DisruptionTarget
        self.evicted: set[str] = set()
        self.conditions: dict[str, dict[str, Condition]] = {}
        self.groups: dict[str, api.Group] = {}  # of workloads: those that the service wrote
        # UID -> kind, source, namespace, name
        self.where: dict[str, tuple[str, str, str, str]] = {}
        # how often an object of a name was deleted
        self.gone: dict[tuple[str, str, str, str], int] = {}

    def apply(self, record: ObjectRecord) -> bool:
        """Fold a line; return whether it changed the state of its object.

        Of several bindings of one pod only the first counts.
        """
        uid = record.uid
        match record:
            case Bound():
                if uid in self.bound:
                    return False
                self.bound[uid] = record
                self.nominated.pop(uid, None)
            case Nominated():
                if uid in self.bound:
                    return False
                self.nominated[uid] = record.node
            case GateRemoved():
                self.ungated.add(uid)
            case MarkedDisrupted():
                self.disrupted[uid] = record.message
            case Evicted():
                self.evicted.add(uid)
            case Conditions() | PodGroupWritten() | CompositeWritten():
                self._apply_to_group(record)
                return True
            case EventRecorded():
                return False
            case DeletedObject():
                return self._forget(record)
        self.where[uid] = ("Pod", "", record.namespace, record.name)
        return True

    def node_of(self, uid: str) -> str:
        """Return the node that a pod is or was bound to; empty: none, or it was deleted long ago."""
        bound = self.bound.get(uid)
        return bound.node if bound is not None else self._ended_on.get(uid, "")

    def _apply_to_group(self, record: Conditions | PodGroupWritten | CompositeWritten) -> None:
        uid = record.uid
        if isinstance(record, Conditions):
            conditions = self.conditions.setdefault(uid, {})
            conditions.update({condition.type: condition for condition in record.conditions})
            self.where[uid] = (record.kind, record.source, record.namespace, record.name)
            return
        self.groups[uid] = record.object
        self.where[uid] = ident_of(record.object)
        for owner in record.object.metadata.owner_references:
            self.where[owner.uid] = (owner.kind, "", record.namespace, owner.name)

    def _forget(self, record: DeletedObject) -> bool:
        ident = (record.kind, record.source, record.namespace, record.name)
        self.gone[ident] = self.gone.get(ident, 0) + 1
        self.ungated.discard(record.uid)
        self.evicted.discard(record.uid)
        if record.uid in self.bound:
            self._ended_on[record.uid] = self.bound[record.uid].node
            if len(self._ended_on) > ENDED_KEPT:
                del self._ended_on[next(iter(self._ended_on))]
        for table in (self.bound, self.nominated, self.disrupted, self.conditions, self.where):
            table.pop(record.uid, None)
        return self.groups.pop(record.uid, None) is not None


def with_writes(obj: api.Readable, overlay: JournalOverlay) -> api.Readable:
    """Return an object of the manifests with the writes to it applied."""
    if isinstance(obj, api.Pod):
        return _pod(obj, overlay)
    if isinstance(obj, api.PodGroup | api.CompositePodGroup):
        return _group(obj, overlay)
    return obj


def _group(group: api.Group, overlay: JournalOverlay) -> api.Group:
    conditions = overlay.conditions.get(group.metadata.uid)
    if conditions is None:
        return group
    stored = {c.type: c for c in group.status.conditions}
    stored |= {
        c.type: api.StoredCondition(
            type=c.type, status=c.status, reason=c.reason, message=c.message
        )
        for c in conditions.values()
    }
    status = msgspec.structs.replace(group.status, conditions=tuple(stored.values()))
    return msgspec.structs.replace(group, status=status)


def _pod(pod: api.Pod, overlay: JournalOverlay) -> api.Pod:
    uid = pod.metadata.uid
    spec, status, metadata = pod.spec, pod.status, pod.metadata
    if uid in overlay.ungated:
        gates = tuple(gate for gate in spec.scheduling_gates if gate.name != GATE)
        spec = msgspec.structs.replace(spec, scheduling_gates=gates)
    bound = overlay.bound.get(uid)
    if bound is not None and not spec.node_name:
        spec = msgspec.structs.replace(spec, node_name=bound.node)
        status = msgspec.structs.replace(
            status, nominated_node_name="", phase=_running(status.phase)
        )
        if bound.plan:
            annotations = {**metadata.annotations, PLAN_ANNOTATION: bound.plan}
            metadata = msgspec.structs.replace(metadata, annotations=annotations)
    elif uid in overlay.nominated and not spec.node_name:
        status = msgspec.structs.replace(status, nominated_node_name=overlay.nominated[uid])
    if uid in overlay.disrupted:
        condition = api.StoredCondition(
            type=DISRUPTION_TARGET, status="True", reason=PREEMPTED, message=overlay.disrupted[uid]
        )
        status = msgspec.structs.replace(status, conditions=(*status.conditions, condition))
    if uid in overlay.evicted:
        status = msgspec.structs.replace(status, phase="Failed")
    if spec is pod.spec and status is pod.status:
        return pod
    return msgspec.structs.replace(pod, spec=spec, status=status, metadata=metadata)


def _running(phase: str) -> str:
    return "Running" if phase in {"", "Pending"} else phase
