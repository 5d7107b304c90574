"""Convert objects of workload controllers to the values of the core."""

from __future__ import annotations

from extender.cluster import types as api
from extender.core.workloads.workload_object import OwnerReference, WorkloadObject


def workload_of(manifest: api.WorkloadManifest) -> WorkloadObject:
    """Return the workload of the core."""
    metadata = manifest.metadata
    owner = next(
        (reference for reference in metadata.owner_references if reference.controller), None
    )
    return WorkloadObject(
        api_version=manifest.api_version,
        kind=manifest.kind,
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
        spec=manifest.spec,
        status=manifest.status,
    )
