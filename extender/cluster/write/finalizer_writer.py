"""Write the finalizers of groups of our API group.

Owns one request. UID and resourceVersion are preconditions: the list of finalizers is written as a
whole, so it must not have changed since it was read. An API server refuses a new finalizer on a group
with a deletionTimestamp. Built-in groups are protected by Kubernetes itself.
"""

from __future__ import annotations

import msgspec

from extender.cluster.connection.api_client import MERGE_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.write.group_status import PLURALS
from extender.cluster.write.pod_writer import fault_of
from extender.core.reconcile.finalizer_rules import FinalizerChange

PATH = "/apis/gang-extender.dev/v1alpha1/namespaces"


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
    request = Request(
        method="PATCH",
        path=f"{PATH}/{key.namespace}/{PLURALS[key.kind]}/{key.name}",
        body=msgspec.json.encode(body),
        content_type=MERGE_PATCH,
        effect=True,
    )
    try:
        await server.call(request)
    except ApiResponse as refusal:
        raise fault_of(f"finalizers of {key}", refusal) from refusal
