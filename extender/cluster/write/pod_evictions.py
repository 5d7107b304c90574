"""Mark pods as disrupted, delete or evict them, and read how a pod ended.

Owns the requests and the mapping of their errors to faults; every write has the UID of the pod as a precondition.
"""

from __future__ import annotations

import msgspec

from extender.cluster.connection.api_client import (
    JSON,
    STRATEGIC_PATCH,
    ApiResponse,
    ApiServer,
    Method,
    Request,
)
from extender.cluster.read.pod_conversion import (
    disruption_reason,
    end_of,
    end_of_terminating,
    ended,
)
from extender.cluster.write.group_status import MESSAGE_MAX, rfc3339
from extender.cluster.write.pod_writer import fault_of, patch_pod, pod_path, read_pod
from extender.core.log.events import GoneVia
from extender.core.model.pods import PodEnd
from extender.ports.cluster_ports import PodRef
from extender.ports.log_ports import Clock
from extender.ports.written_names import DISRUPTION_TARGET, PREEMPTED


class PodEvictions:
    """Writes to victims of preemption."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def mark_disrupted(self, pod: PodRef, message: str) -> None:
        """Write condition DisruptionTarget as kube-scheduler does; other conditions stay (merged by type)."""
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTED,
            "message": message[:MESSAGE_MAX],
            "lastTransitionTime": rfc3339(self._clock.now_us()),
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        await patch_pod(self._server, pod, "/status", STRATEGIC_PATCH, body)

    async def evict(self, pod: PodRef, via: GoneVia) -> None:
        """Delete a pod, or evict it by the Eviction API, with the grace period of its spec.

        Source:
            pkg/scheduler/util/utils.go (DeletePod), pkg/registry/core/pod/storage/eviction.go: 429 with
            Retry-After where a PodDisruptionBudget allows no more.
        """
        options = {"preconditions": {"uid": pod.uid}}
        if via == "evicted":
            method: Method = "POST"
            path = pod_path(pod, "/eviction")
            body: dict[str, object] = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": options,
            }
        else:
            method, path = "DELETE", pod_path(pod)
            body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        request = Request(
            method=method,
            path=path,
            body=msgspec.json.encode(body),
            content_type=JSON,
            effect=True,
            tries_max=1,  # before another try the caller checks whether it is still wanted
        )
        try:
            await self._server.call(request)
        except ApiResponse as refusal:
            raise fault_of(f"evict {pod.namespace}/{pod.name}", refusal) from refusal

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
