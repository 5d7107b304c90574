"""Write the groups of workloads, and the conditions and finalizers of all groups.

A group of a workload is created with POST, which never changes a group of the same name that another client made;
afterwards its fields are applied by server-side apply under one field manager. Its controlling owner is the workload, so
that the garbage collector deletes it with the workload; that of plain pods has none, and is deleted here. UIDs are
preconditions of changes.

Conditions of other writers stay, ours are written only when they differ, and `lastTransitionTime` changes only with
`status`. A CRD has no strategic merge patch, so the whole list is written, for CRDs and built-in kinds alike, with the
resourceVersion of the list as a precondition. The object is read first only if its conditions are not completely known,
or another writer changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from extender.cluster.connection.api_client import (
    APPLY_PATCH,
    MERGE_PATCH,
    ApiResponse,
    ApiServer,
    Request,
    write_request,
)
from extender.cluster.read.object_decoding import API_VERSION, spec_body
from extender.cluster.write.pod_writer import MESSAGE_MAX, fault_of, rfc3339, send
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.core.workloads.kinds.plain_pods_kind import KIND as PLAIN
from extender.core.workloads.workload_object import MANAGED_BY, PARENT_ANNOTATION, TREE_LABEL
from extender.ports.cluster_ports import Condition
from extender.ports.log_ports import Clock
from extender.ports.workload_ports import GroupLink, GroupManifest
from extender.ports.written_names import MANAGED_BY_LABEL

PLURALS: Final = {"PodGroup": "podgroups", "CompositePodGroup": "compositepodgroups"}
TRIES_MAX = 4  # against other writers of the same status; there are few


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    last_transition_time: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int | msgspec.UnsetType = msgspec.UNSET


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    generation: int = 0


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Stored(msgspec.Struct):
    metadata: _Meta
    status: _Status | None = None

    def conditions(self) -> list[_Condition]:
        """Return the conditions, none if nothing is written yet."""
        return (self.status.conditions if self.status else None) or []

    def as_tuples(self) -> list[tuple[str, str, str, str]]:
        """Return type, status, reason and message of each condition."""
        return [(c.type, c.status, c.reason, c.message) for c in self.conditions()]


def differing(
    stored: Sequence[tuple[str, str, str, str]], desired: Sequence[Condition]
) -> list[Condition]:
    """Return the desired conditions that are not stored, or stored differently."""
    have = {entry[0]: entry[1:] for entry in stored}
    return [
        condition
        for condition in desired
        if have.get(condition.type) != (condition.status, condition.reason, condition.message)
    ]


class GroupStatusWriter:
    """Writes the conditions of groups."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._objects: dict[str, _Stored] = {}  # UID -> object of our last write or read

    async def set_conditions(self, group: Group, conditions: Sequence[Condition]) -> None:
        """Merge conditions into the status of a group as the view knows it.

        Raises:
            RequestRejected: The group was deleted or recreated.
        """
        cut = [msgspec.structs.replace(c, message=c.message[:MESSAGE_MAX]) for c in conditions]
        if not differing(group.conditions, cut) and self._has_seen_our_write(group):
            return
        path = _path(group.key, group.api_version)
        try:
            stored = self._last_stored(group)
            if stored is not None and not differing(stored.as_tuples(), cut):
                stored = None  # only a read of the object proves that nothing is to be written
            for _ in range(TRIES_MAX):
                stored = stored or await self._stored(Request(method="GET", path=path))
                if await self._merge(path, group, cut, stored):
                    return
                stored = None  # outdated
        except ApiResponse as refusal:
            raise fault_of(f"conditions of {group.key}", refusal) from refusal
        raise ClusterUnavailable(f"conditions of {group.key}: {TRIES_MAX} conflicts in a row")

    def forget(self, uids: set[str]) -> None:
        """Drop the known objects of groups that are not in `uids`."""
        for uid in self._objects.keys() - uids:
            del self._objects[uid]

    def _has_seen_our_write(self, group: Group) -> bool:
        """Return whether the view is at least as new as our last write; an older view proves nothing."""
        last = self._objects.get(group.uid)
        return last is None or not _newer(last.metadata.resource_version, group.resource_version)

    def _last_stored(self, group: Group) -> _Stored | None:
        """Return the object with its conditions, or None if it must be read; a stale one gives a conflict later."""
        last = self._objects.get(group.uid)
        if last is not None and not _newer(group.resource_version, last.metadata.resource_version):
            return last
        if group.conditions or not group.resource_version:
            return None  # a view has conditions without their times
        metadata = _Meta(
            uid=group.uid, resource_version=group.resource_version, generation=group.generation
        )
        return _Stored(metadata=metadata)

    async def _merge(
        self, path: str, group: Group, desired: Sequence[Condition], stored: _Stored
    ) -> bool:
        """Merge and write; return false if another writer has changed the object since."""
        if stored.metadata.uid != group.uid:
            raise RequestRejected(f"conditions of {group.key}: it was deleted and recreated")
        changed = differing(stored.as_tuples(), desired)
        if not changed:
            self._objects[group.uid] = stored
            return True
        body = {
            "metadata": {
                "uid": stored.metadata.uid,
                "resourceVersion": stored.metadata.resource_version,
            },
            "status": {"conditions": self._merged(stored, changed)},
        }
        try:
            written = await self._stored(
                write_request("PATCH", f"{path}/status", body, MERGE_PATCH)
            )
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.CONFLICT:
                return False
            raise
        self._objects[group.uid] = written
        return True

    async def _stored(self, request: Request) -> _Stored:
        body = await self._server.call(request)
        try:
            return msgspec.json.decode(body, type=_Stored)
        except msgspec.DecodeError as problem:
            raise ClusterUnavailable(f"{request.path}: {problem}") from problem

    def _merged(self, stored: _Stored, changed: Sequence[Condition]) -> list[_Condition]:
        """Return the stored conditions with the changed ones replaced in place and new ones at the end."""
        by_type = {condition.type: condition for condition in stored.conditions()}
        for condition in changed:
            before = by_type.get(condition.type)
            since = rfc3339(self._clock.now_us())
            if before is not None and before.status == condition.status:
                since = before.last_transition_time or since
            by_type[condition.type] = _Condition(
                type=condition.type,
                status=condition.status,
                last_transition_time=since,
                reason=condition.reason,
                message=condition.message,
                observed_generation=stored.metadata.generation or msgspec.UNSET,
            )
        return list(by_type.values())


def _newer(version: str, other: str) -> bool:
    """Return whether a resourceVersion is newer than another, or not comparable with it."""
    if not version.isdigit() or not other.isdigit():
        return version != other
    return int(version) > int(other)


async def write_finalizers(server: ApiServer, change: FinalizerChange) -> None:
    """Replace the finalizers of a group.

    Raises:
        RequestRejected: The group was deleted or recreated, or the request is invalid.
        ClusterUnavailable: No answer, not allowed, or the group has changed since; try again later.
    """
    key, guard = change.group, change.guard
    body = {
        "metadata": {
            "uid": guard.uid,
            "resourceVersion": guard.resource_version,
            "finalizers": list(change.finalizers),
        }
    }
    request = write_request("PATCH", _path(key), body, MERGE_PATCH)
    await send(server, f"finalizers of {key}", request)


class TreeGroupWriter:
    """Writes the groups of workloads."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def create_group(self, group: GroupManifest) -> None:
        """Create a group; see the port."""
        path = _path(group.key).rpartition("/")[0]
        query = {"fieldManager": MANAGED_BY}
        try:
            await self._server.call(write_request("POST", path, manifest(group), query=query))
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.CONFLICT and refusal.reason == "AlreadyExists":
                return  # by an earlier attempt, or by another client: the informer will show it
            raise fault_of(f"create {group.key}", refusal) from refusal

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Apply the fields of a group; see the port."""
        body = manifest(group)
        body["metadata"]["uid"] = uid
        query = {"fieldManager": MANAGED_BY, "force": "true"}
        request = write_request("PATCH", _path(group.key), body, APPLY_PATCH, query=query)
        await send(self._server, f"apply {group.key}", request, _fault_of)

    async def link_group(self, link: GroupLink) -> None:
        """Annotate a group with its parent; see the port. Not forced: the annotation of another client stays."""
        key = link.key
        body = {
            "apiVersion": link.api_version,
            "kind": key.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "uid": link.uid,
                "annotations": {PARENT_ANNOTATION: link.parent},
            },
        }
        path, query = _path(key, link.api_version), {"fieldManager": MANAGED_BY}
        request = write_request("PATCH", path, body, APPLY_PATCH, query=query)
        await send(self._server, f"link {key} to {link.parent}", request, _fault_of)

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group; see the port."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._server.call(write_request("DELETE", _path(key), body))
        except ApiResponse as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise _fault_of(f"delete {key}", refusal) from refusal


def manifest(group: GroupManifest) -> dict[str, Any]:
    """Return a group as the API server stores it, with the fields that this service owns."""
    spec = group.spec
    body = spec_body(spec, clears_required=group.clears_required)
    if spec.parent:
        body["parentCompositePodGroupName"] = spec.parent
    if spec.parent or spec.kind == "CompositePodGroup":  # required there, as in the built-in kinds
        body["workloadRef"] = {
            "workloadName": spec.workload or group.template_of,
            "templateName": spec.template or spec.name,
        }
    owner = {
        "apiVersion": group.owner_api_version,
        "kind": group.owner_kind,
        "name": group.owner_name,
        "uid": group.owner_uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": spec.kind,
        "metadata": {
            "name": spec.name,
            "namespace": group.namespace,
            "labels": {TREE_LABEL: group.profile, MANAGED_BY_LABEL: MANAGED_BY},
            **({} if group.owner_kind == PLAIN else {"ownerReferences": [owner]}),
        },
        "spec": body,
    }


def _fault_of(action: str, refusal: ApiResponse) -> RequestRejected | ClusterUnavailable:
    """Return the fault for an error response; a group that is gone or was made again is for the next look at the view.

    Sources: an apply with a UID gets 409 from the registry without an object, 422 from validation with another one; a
    delete with another UID gets 409.
    """
    is_other = refusal.status == HTTPStatus.CONFLICT or (
        refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid:" in refusal.message
    )
    return ClusterUnavailable(f"{action}: {refusal}") if is_other else fault_of(action, refusal)


def _path(key: GroupKey, api_version: str = API_VERSION) -> str:
    return f"/apis/{api_version}/namespaces/{key.namespace}/{PLURALS[key.kind]}/{key.name}"
