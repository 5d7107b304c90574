"""Find out which of the resources that the service reads an API server serves, and in which version.

Owns the choice of versions: the newest known one of the built-in group, the only one of our group.
It keeps no state; the caller compares the result with the previous one.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.api_server.informers import Resource
from extender.cluster.connection.api_client import ApiResponse, ApiServer, Request
from extender.core.model.dropped_fields import BUILTIN, OURS
from extender.core.model.errors import ClusterUnavailable

# Newest first; a kind is read in the first version that serves it. A version that is not listed is
# not read: its fields may have another meaning. `v1` has PriorityClass in every Kubernetes version; no
# version up to 1.38 has groups in it.
VERSIONS: Final = {BUILTIN: ("v1", "v1beta1", "v1alpha3", "v1alpha2"), OURS: ("v1alpha1",)}
GROUP_KINDS: Final[dict[str, type[api.Readable]]] = {
    "podgroups": api.PodGroup,
    "compositepodgroups": api.CompositePodGroup,
}
# A pod that has ended uses no capacity; a watch reports a pod that leaves this selection as DELETED.
RUNNING: Final = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
# Priority classes, volumes and claims come before the nodes and pods that refer to them.
ALWAYS: Final = (
    Resource(name="priorityclasses", kind=api.PriorityClass, api_version="scheduling.k8s.io/v1"),
    Resource(name="persistentvolumes", kind=api.PersistentVolume, api_version="v1"),
    Resource(name="persistentvolumeclaims", kind=api.PersistentVolumeClaim, api_version="v1"),
    Resource(name="poddisruptionbudgets", kind=api.PodDisruptionBudget, api_version="policy/v1"),
    Resource(name="nodes", kind=api.Node, api_version="v1"),
    Resource(name="pods", kind=api.Pod, api_version="v1", query=RUNNING),
)


# Of devices, since Kubernetes 1.34; before the pods that refer to them.
CLAIMS: Final = Resource(
    name="resourceclaims", kind=api.ResourceClaim, api_version="resource.k8s.io/v1"
)


class _Named(msgspec.Struct):
    name: str


class _GroupList(msgspec.Struct):
    groups: tuple[_Named, ...] = ()


class _ResourceList(msgspec.Struct):
    resources: tuple[_Named, ...] = ()


async def discover(server: ApiServer) -> tuple[Resource, ...]:
    """Return the resources to watch: `ALWAYS`, and of claims of devices and the kinds of groups those that are served.

    Raises:
        ClusterUnavailable: No answer; the previous result stays valid.
    """
    claims = (CLAIMS,) if CLAIMS.name in await served_resources(server, CLAIMS.api_version) else ()
    served = [*claims, *ALWAYS]
    for group, versions in VERSIONS.items():
        remaining = dict(GROUP_KINDS)
        for version in versions:
            api_version = f"{group}/{version}"
            for name in await served_resources(server, api_version):
                kind = remaining.pop(name, None)
                if kind is not None:
                    served.append(Resource(name=name, kind=kind, api_version=api_version))
    return tuple(served)


def serves_our_group(served: tuple[Resource, ...]) -> bool:
    """Return whether all kinds of our API group are served."""
    ours = {resource.name for resource in served if resource.api_version.startswith(f"{OURS}/")}
    return ours >= set(GROUP_KINDS)


async def served_groups(server: ApiServer) -> frozenset[str]:
    """Return the names of all API groups that are served.

    Raises:
        ClusterUnavailable: No answer; the previous result stays valid.
    """
    try:
        body = await server.call(Request(method="GET", path="/apis"))
        return frozenset(group.name for group in msgspec.json.decode(body, type=_GroupList).groups)
    except (ApiResponse, msgspec.DecodeError) as problem:
        raise ClusterUnavailable(f"discovery of API groups: {problem}") from problem


async def served_resources(server: ApiServer, api_version: str) -> tuple[str, ...]:
    """Return the plural names of the resources of a version, none when it is not served."""
    try:
        body = await server.call(Request(method="GET", path=f"/apis/{api_version}"))
        return tuple(
            resource.name for resource in msgspec.json.decode(body, type=_ResourceList).resources
        )
    except ApiResponse as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            return ()
        raise ClusterUnavailable(f"discovery of {api_version}: {refusal}") from refusal
    except msgspec.DecodeError as problem:
        raise ClusterUnavailable(f"discovery of {api_version}: {problem}") from problem
