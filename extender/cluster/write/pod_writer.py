"""What is done to pods: nominate, lift our gate, bind.

Owns the requests and what their refusals mean. Every one carries the UID of the pod as a
precondition, so that a pod that was deleted and made again under its name is never touched.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.connection.api_client import (
    JSON,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    ApiResponse,
    ApiServer,
    Request,
)
from extender.cluster.read import object_decoding
from extender.cluster.read.pod_conversion import PLAN_ANNOTATION
from extender.core.decisions.admit.plan_request import GATE
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected
from extender.core.model.ids import NodeName
from extender.ports.protocols import Binding, PodRef

logger = logging.getLogger(__name__)

# The words of an API server for a UID (or resourceVersion) that is not the given one; another 409
# means that it lost a race against other writers, and asking again helps.
PRECONDITION: Final = "Precondition failed"


def fault_of(what: str, refusal: ApiResponse) -> RequestRejected | ClusterUnavailable:
    """Say in our words what a refusal means: for good, or until somebody repairs something."""
    text = f"{what}: {refusal}"
    if refusal.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        logger.error(
            "the API server does not let us; see deploy/kubernetes/rbac.yaml", extra={"why": text}
        )
        return ClusterUnavailable(text)
    if refusal.status == HTTPStatus.CONFLICT and PRECONDITION not in refusal.message:
        return ClusterUnavailable(text)
    return RequestRejected(text)


def pod_path(pod: PodRef, subresource: str = "") -> str:
    """Give the path of a pod or of one of its subresources."""
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}{subresource}"


class PodWriter:
    """Effects on pods."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Write `status.nominatedNodeName`, None clears it; faults as the port says."""
        await self._patch(
            pod,
            "/status",
            MERGE_PATCH,
            {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}},
        )

    async def lift_gate(self, pod: PodRef) -> None:
        """Remove our gate by name; nothing happens when it is not there, and others stay."""
        gates = [{"$patch": "delete", "name": GATE}]
        await self._patch(
            pod,
            "",
            STRATEGIC_PATCH,
            {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates}},
        )

    async def bind(self, binding: Binding) -> None:
        """Post a Binding; a pod that is on this node already counts as bound by us."""
        pod = binding.pod
        metadata: dict[str, object] = {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
        }
        if binding.plan is not None:
            metadata["annotations"] = {PLAN_ANNOTATION: binding.plan}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        request = Request(
            method="POST",
            path=pod_path(pod, "/binding"),
            body=msgspec.json.encode(body),
            content_type=JSON,
            effect=True,
            tries_max=1,  # the barrier asks again whether it may still bind before each try
        )
        try:
            await self._server.call(request)
        except ApiResponse as refusal:
            if refusal.status != HTTPStatus.CONFLICT:
                raise fault_of(f"bind {pod.namespace}/{pod.name}", refusal) from refusal
            await self._look_after_conflict(binding, refusal)

    async def _look_after_conflict(self, binding: Binding, refusal: ApiResponse) -> None:
        """Find out what a 409 was about: also the second try of a Binding whose answer was lost."""
        found = await read_pod(self._server, binding.pod)
        what = f"bind {binding.pod.namespace}/{binding.pod.name} to {binding.node}"
        if found is None or found.metadata.uid != binding.pod.uid:
            raise RequestRejected(f"{what}: the pod is gone or was made again") from refusal
        node = found.spec.node_name
        if node == binding.node:
            return
        gates = [gate.name for gate in found.spec.scheduling_gates]
        if node:
            raise RequestRejected(f"{what}: it is bound to {node}") from refusal
        if gates or found.metadata.deletion_timestamp is not None:
            why = f"it is gated by {', '.join(gates)}" if gates else "it is being deleted"
            raise RequestRejected(f"{what}: {why}") from refusal
        raise ClusterUnavailable(f"{what}: {refusal}") from refusal

    async def _patch(self, pod: PodRef, subresource: str, content_type: str, body: object) -> None:
        await patch_pod(self._server, pod, subresource, content_type, body)


async def read_pod(server: ApiServer, pod: PodRef) -> api.Pod | None:
    """Give the pod that has the name now, also one that has ended; None where there is none.

    Raises:
        BindRefused: The API server does not take the question.
        ClusterUnavailable: No answer, or none that can be read.
    """
    try:
        body = await server.call(Request(method="GET", path=pod_path(pod)))
        return object_decoding.decode(api.Pod, body)
    except ApiResponse as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            return None
        raise fault_of(f"read {pod.namespace}/{pod.name}", refusal) from refusal
    except BadInput as problem:
        raise ClusterUnavailable(str(problem)) from problem


async def patch_pod(
    server: ApiServer, pod: PodRef, subresource: str, content_type: str, body: object
) -> None:
    """Patch a pod once; who asked looks whether it is still wanted before it asks again."""
    request = Request(
        method="PATCH",
        path=pod_path(pod, subresource),
        body=msgspec.json.encode(body),
        content_type=content_type,
        effect=True,
        tries_max=1,
    )
    try:
        await server.call(request)
    except ApiResponse as refusal:
        raise fault_of(f"patch pod {pod.namespace}/{pod.name}{subresource}", refusal) from refusal
