"""Write the finalizers of our groups.

Owns one request. UID and resourceVersion are preconditions: the list of finalizers is written as a
whole, so it must be the list that was read, and a group that has just got a deletionTimestamp would
refuse a new one anyway. Only our own kinds: Kubernetes protects its own.
"""

from __future__ import annotations

import msgspec

from extender.cluster.connection.api_client import MERGE_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.write.group_status import PLURALS
from extender.cluster.write.pod_writer import fault_of
from extender.core.decisions.reconcile.finalizer_rules import FinalizerChange

PATH = "/apis/gang-extender.dev/v1alpha1/namespaces"


async def write_finalizers(server: ApiServer, wanted: FinalizerChange) -> None:
    """Replace the finalizers of a group; faults as the port says."""
    key, guard = wanted.group, wanted.guard
    body = {
        "metadata": {
            "uid": guard.uid,
            "resourceVersion": guard.resource_version,
            "finalizers": list(wanted.finalizers),
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
