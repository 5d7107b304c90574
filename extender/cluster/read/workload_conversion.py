"""Convert objects of workload controllers to the values of the core."""

from __future__ import annotations

from extender.cluster import types as api
from extender.core.workloads.workload_object import OwnerReference, WorkloadObject


def workload_of(found: api.WorkloadManifest) -> WorkloadObject:
    """Return the workload of the core."""
    metadata = found.metadata
    owner = next((one for one in metadata.owner_references if one.controller), None)
    return WorkloadObject(
        api_version=found.api_version,
        kind=found.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        deleting=metadata.deletion_timestamp is not None,
        labels=metadata.labels,
        annotations=metadata.annotations,
        owner=None
        if owner is None
        else OwnerReference(
            api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid
        ),
        spec=found.spec,
        status=found.status,
    )
