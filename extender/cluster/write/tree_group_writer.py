"""Create, change and delete the groups of workloads, and link groups of other controllers.

A group is created with POST, which never changes a group of the same name that another client made; afterwards its
fields are applied by server-side apply under one field manager. Its controlling owner is the workload, so that the
garbage collector deletes it with the workload; that of plain pods has none, and is deleted here. UIDs are preconditions of changes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from extender.cluster.connection.api_client import (
    APPLY_PATCH,
    JSON,
    ApiResponse,
    ApiServer,
    Method,
    Request,
)
from extender.cluster.read.object_decoding import constraints_body
from extender.cluster.write.group_status import PLURALS
from extender.cluster.write.pod_writer import fault_of
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.workloads.kinds.plain_pods_kind import KIND as PLAIN
from extender.core.workloads.workload_object import MANAGED_BY, PARENT_ANNOTATION, TREE_LABEL
from extender.ports.workload_ports import GroupLink, GroupManifest
from extender.ports.written_names import MANAGED_BY_LABEL

API_VERSION: Final = "gang-extender.dev/v1alpha1"


class TreeGroupWriter:
    """Writes the groups of workloads."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def create_group(self, group: GroupManifest) -> None:
        """Create a group; see the port."""
        try:
            await self._call("POST", _collection(group.key), manifest(group), JSON)
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.CONFLICT and refusal.reason == "AlreadyExists":
                return  # by an earlier attempt, or by another client: the informer will show it
            raise fault_of(f"create {group.key}", refusal) from refusal

    async def apply_group(self, group: GroupManifest, uid: str) -> None:
        """Apply the fields of a group; see the port."""
        body = manifest(group)
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        metadata["uid"] = uid
        try:
            await self._call(
                "PATCH",
                _path(group.key),
                body,
                APPLY_PATCH,
                {"fieldManager": MANAGED_BY, "force": "true"},
            )
        except ApiResponse as refusal:
            raise _fault_of(f"apply {group.key}", refusal) from refusal

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
        path = _path(key, link.api_version)
        try:
            await self._call("PATCH", path, body, APPLY_PATCH, {"fieldManager": MANAGED_BY})
        except ApiResponse as refusal:
            raise _fault_of(f"link {key} to {link.parent}", refusal) from refusal

    async def delete_group(self, key: GroupKey, uid: str) -> None:
        """Delete a group; see the port."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._call("DELETE", _path(key), body, JSON)
        except ApiResponse as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise _fault_of(f"delete {key}", refusal) from refusal

    async def _call(
        self,
        method: Method,
        path: str,
        body: object,
        content_type: str,
        query: dict[str, str] | None = None,
    ) -> None:
        request = Request(
            method=method,
            path=path,
            query=query or ({"fieldManager": MANAGED_BY} if method == "POST" else {}),
            body=msgspec.json.encode(body),
            content_type=content_type,
            effect=True,
        )
        await self._server.call(request)


def manifest(group: GroupManifest) -> dict[str, object]:
    """Return a group as the API server stores it, with the fields that this service owns."""
    spec = group.spec
    policy: dict[str, object] = {"basic": {}}
    if not spec.basic:
        field = "minCount" if spec.kind == "PodGroup" else "minGroupCount"
        gang: dict[str, object] = {field: spec.minimum}
        if spec.required or group.clears_required:
            gang["requiredGroups"] = list(spec.required)
        policy = {"gang": gang}
    body: dict[str, object] = {
        "schedulingPolicy": policy,
        "disruptionMode": {spec.disruption_mode: {}},
    }
    if spec.parent:
        body["parentCompositePodGroupName"] = spec.parent
    if spec.parent or spec.kind == "CompositePodGroup":  # required there, as in the built-in kinds
        body["workloadRef"] = {
            "workloadName": spec.workload or group.template_of,
            "templateName": spec.template or spec.name,
        }
    if constraints := constraints_body(spec.constraints):
        body["schedulingConstraints"] = constraints
    if spec.priority_class:
        body["priorityClassName"] = spec.priority_class
    return {
        "apiVersion": API_VERSION,
        "kind": spec.kind,
        "metadata": {
            "name": spec.name,
            "namespace": group.namespace,
            "labels": {TREE_LABEL: group.profile, MANAGED_BY_LABEL: MANAGED_BY},
            **({} if group.owner_kind == PLAIN else {"ownerReferences": [_owner(group)]}),
        },
        "spec": body,
    }


def _owner(group: GroupManifest) -> dict[str, object]:
    return {
        "apiVersion": group.owner_api_version,
        "kind": group.owner_kind,
        "name": group.owner_name,
        "uid": group.owner_uid,
        "controller": True,
        "blockOwnerDeletion": False,
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


def _collection(key: GroupKey, api_version: str = API_VERSION) -> str:
    return f"/apis/{api_version}/namespaces/{key.namespace}/{PLURALS[key.kind]}"


def _path(key: GroupKey, api_version: str = API_VERSION) -> str:
    return f"{_collection(key, api_version)}/{key.name}"
