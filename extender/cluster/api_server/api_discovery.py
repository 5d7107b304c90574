"""What an API server serves of what we read.

Owns the choice of versions: of the built-in groups the newest that we know, of ours the one we
define. It must not remember anything; who asks compares with what it heard before.
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

# Newest first; the first version that serves a kind counts. A version that is not named here is
# not read: its fields may mean something else.
VERSIONS: Final = {BUILTIN: ("v1beta1", "v1alpha3", "v1alpha2"), OURS: ("v1alpha1",)}
GROUP_KINDS: Final[dict[str, type[api.Readable]]] = {
    "podgroups": api.PodGroup,
    "compositepodgroups": api.CompositePodGroup,
}
# A pod that has ended takes no room; leaving this selection is a DELETED for a watcher.
RUNNING: Final = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
# Priority classes, volumes and claims come before what is read in their light.
ALWAYS: Final = (
    Resource(name="priorityclasses", kind=api.PriorityClass, api_version="scheduling.k8s.io/v1"),
    Resource(name="persistentvolumes", kind=api.PersistentVolume, api_version="v1"),
    Resource(name="persistentvolumeclaims", kind=api.PersistentVolumeClaim, api_version="v1"),
    Resource(name="poddisruptionbudgets", kind=api.PodDisruptionBudget, api_version="policy/v1"),
    Resource(name="nodes", kind=api.Node, api_version="v1"),
    Resource(name="pods", kind=api.Pod, api_version="v1", query=RUNNING),
)


class _Named(msgspec.Struct):
    name: str


class _ResourceList(msgspec.Struct):
    resources: tuple[_Named, ...] = ()


async def discover(server: ApiServer) -> tuple[Resource, ...]:
    """Ask which kinds of groups are served, and where.

    Returns:
        Everything to follow, `ALWAYS` included.

    Raises:
        ClusterUnavailable: No answer; what was known before still counts.
    """
    found = list(ALWAYS)
    for group, versions in VERSIONS.items():
        wanted = dict(GROUP_KINDS)
        for version in versions:
            api_version = f"{group}/{version}"
            for name in await served_resources(server, api_version):
                kind = wanted.pop(name, None)
                if kind is not None:
                    found.append(Resource(name=name, kind=kind, api_version=api_version))
    return tuple(found)


def serves_ours(found: tuple[Resource, ...]) -> bool:
    """Say whether all kinds that we define are served."""
    ours = {one.name for one in found if one.api_version.startswith(f"{OURS}/")}
    return ours >= set(GROUP_KINDS)


async def served_resources(server: ApiServer, api_version: str) -> tuple[str, ...]:
    """Name the resources of a version; none when it is not served."""
    try:
        body = await server.call(Request(method="GET", path=f"/apis/{api_version}"))
        return tuple(one.name for one in msgspec.json.decode(body, type=_ResourceList).resources)
    except ApiResponse as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            return ()
        raise ClusterUnavailable(f"discovery of {api_version}: {refusal}") from refusal
    except msgspec.DecodeError as problem:
        raise ClusterUnavailable(f"discovery of {api_version}: {problem}") from problem
