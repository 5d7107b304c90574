"""Write to pods: nominate, remove our scheduling gate, bind, mark as disrupted, evict; and read how they ended.

Owns the requests and the mapping of their errors to faults. Every request has the UID of the pod as a
precondition, so that a recreated pod of the same name is never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from extender.cluster import types as api
from extender.cluster.connection.api_client import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    ApiResponse,
    ApiServer,
    Request,
    write_request,
)
from extender.cluster.read import object_decoding
from extender.cluster.read.pod_conversion import (
    disruption_reason,
    end_of,
    end_of_terminating,
    ended,
)
from extender.core.log.events import GoneVia
from extender.core.model.errors import BadInput, ClusterUnavailable, RequestRejected
from extender.core.model.ids import NodeName
from extender.core.model.pods import GATE, PodEnd
from extender.ports.cluster_ports import Binding, PodRef
from extender.ports.log_ports import Clock
from extender.ports.written_names import (
    DISRUPTION_TARGET,
    GATED,
    PLAN_ANNOTATION,
    POD_SCHEDULED,
    PREEMPTED,
)

logger = logging.getLogger(__name__)

# Message of an API server for a UID (or resourceVersion) that does not match; any other 409
# is a conflict with another writer, and the same request may succeed later.
PRECONDITION: Final = "Precondition failed"


def fault_of(action: str, refusal: ApiResponse) -> RequestRejected | ClusterUnavailable:
    """Return the fault for an error response: `RequestRejected` is final, `ClusterUnavailable` may pass."""
    text = f"{action}: {refusal}"
    if refusal.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        logger.error(
            "the API server denied access; see deploy/kubernetes/rbac.yaml and confinement.yaml",
            extra={"reason": text},
        )
        return ClusterUnavailable(text, refused=True)
    if refusal.status == HTTPStatus.CONFLICT and PRECONDITION not in refusal.message:
        return ClusterUnavailable(text)
    return RequestRejected(text)


async def send(
    server: ApiServer,
    action: str,
    request: Request,
    fault: Callable[[str, ApiResponse], RequestRejected | ClusterUnavailable] = fault_of,
) -> bytes:
    """Send a request and return the body of its answer; an error response is raised as its fault."""
    try:
        return await server.call(request)
    except ApiResponse as refusal:
        raise fault(action, refusal) from refusal


def pod_path(pod: PodRef, subresource: str = "") -> str:
    """Return the path of a pod or of one of its subresources."""
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}{subresource}"


MESSAGE_MAX = 32768  # of a condition, in every version


def rfc3339(at_us: int, *, micro: bool = False) -> str:
    """Return an instant in the format of the Kubernetes API."""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


class PodWriter:
    """Writes to pods.

    Every method raises `RequestRejected` if the pod was deleted or recreated or the request is refused, and
    `ClusterUnavailable` if the caller may try again: a request has one try, because before another one the caller
    checks whether it is still wanted.
    """

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Write `status.nominatedNodeName`; None clears it."""
        await self._patch(pod, "/status", MERGE_PATCH, status={"nominatedNodeName": node})

    async def remove_gate(self, pod: PodRef) -> None:
        """Remove our scheduling gate, if the pod has it; other gates stay."""
        gates = [{"$patch": "delete", "name": GATE}]
        await self._patch(pod, "", STRATEGIC_PATCH, spec={"schedulingGates": gates})

    async def explain_waiting(self, pod: PodRef, message: str) -> None:
        """Write the message of the condition PodScheduled; its reason stays that of a gated pod."""
        condition = {"type": POD_SCHEDULED, "status": "False", "reason": GATED, "message": message}
        await self._patch(pod, "/status", STRATEGIC_PATCH, status={"conditions": [condition]})

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        """Write condition DisruptionTarget as kube-scheduler does; other conditions stay (merged by type)."""
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTED,
            "message": message[:MESSAGE_MAX],
            "lastTransitionTime": rfc3339(self._clock.now_us()),
        }
        await self._patch(pod, "/status", STRATEGIC_PATCH, status={"conditions": [condition]})

    async def bind(self, binding: Binding) -> None:
        """Post a Binding; a pod that is already on this node counts as bound."""
        pod = binding.pod
        metadata: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        if binding.plan is not None:
            metadata["annotations"] = {PLAN_ANNOTATION: binding.plan}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        try:
            await self._server.call(
                write_request("POST", pod_path(pod, "/binding"), body, tries_max=1)
            )
        except ApiResponse as refusal:
            if refusal.status != HTTPStatus.CONFLICT:
                raise fault_of(f"bind {pod.namespace}/{pod.name}", refusal) from refusal
            await self._look_after_conflict(binding, refusal)

    async def _look_after_conflict(self, binding: Binding, refusal: ApiResponse) -> None:
        """Read the pod after a 409; return if it is on the node, as after a Binding whose answer was lost."""
        current = await read_pod(self._server, binding.pod)
        action = f"bind {binding.pod.namespace}/{binding.pod.name} to {binding.node}"
        if current is None or current.metadata.uid != binding.pod.uid:
            raise RequestRejected(f"{action}: the pod was deleted or recreated") from refusal
        node = current.spec.node_name
        if node == binding.node:
            return
        gates = [gate.name for gate in current.spec.scheduling_gates]
        if node:
            raise RequestRejected(f"{action}: it is bound to {node}") from refusal
        if gates or current.metadata.deletion_timestamp is not None:
            reason = f"it is gated by {', '.join(gates)}" if gates else "it is being deleted"
            raise RequestRejected(f"{action}: {reason}") from refusal
        raise ClusterUnavailable(f"{action}: {refusal}") from refusal

    async def evict(self, pod: PodRef, via: GoneVia) -> None:
        """Delete a pod, or evict it by the Eviction API, with the grace period of its spec.

        Source:
            pkg/scheduler/util/utils.go (DeletePod), pkg/registry/core/pod/storage/eviction.go: 429 with
            Retry-After where a PodDisruptionBudget allows no more.
        """
        options = {"preconditions": {"uid": pod.uid}}
        if via == "evicted":
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": options,
            }
            request = write_request("POST", pod_path(pod, "/eviction"), eviction, tries_max=1)
        else:
            deletion = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
            request = write_request("DELETE", pod_path(pod), deletion, tries_max=1)
        await send(self._server, f"evict {pod.namespace}/{pod.name}", request)

    async def ending(self, pod: PodRef) -> PodEnd | None:
        """Return how a pod ended, or will end if it terminates; None if it does neither."""
        current = await read_pod(self._server, pod)
        if current is None or current.metadata.uid != pod.uid:
            return PodEnd("deleted")
        if ended(current):
            return end_of(current)
        if current.metadata.deletion_timestamp is not None:
            return end_of_terminating(disruption_reason(current), current.spec.node_name)
        return None

    async def _patch(
        self, pod: PodRef, subresource: str, content_type: str, **fields: object
    ) -> None:
        body = {"metadata": {"uid": pod.uid}, **fields}
        request = write_request(
            "PATCH", pod_path(pod, subresource), body, content_type, tries_max=1
        )
        await send(self._server, f"patch pod {pod.namespace}/{pod.name}{subresource}", request)


async def read_pod(server: ApiServer, pod: PodRef) -> api.Pod | None:
    """Return the pod that has the name now, even if it has ended, or None.

    Raises:
        RequestRejected: The API server refuses the request.
        ClusterUnavailable: No answer, or an unreadable one.
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
