"""Find out which of the resources that the service reads an API server serves, and in which version; which fields it keeps, and which gates kube-scheduler has.

Owns the choice of versions: the newest known one of the built-in group, the only one of our group.
It keeps no state; the caller compares the result with the previous one.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from extender.cluster import types as api
from extender.cluster.api_server.informers import Resource
from extender.cluster.connection.api_client import ApiResponse, ApiServer, Request
from extender.core.log.control_plane_features import (
    NAME,
    NOT_CONFIGURED,
    DryRunResult,
    PriorityOf,
    Sample,
    SchedulerGates,
    samples,
)
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


class _Discovery(msgspec.Struct):
    """The answer about all groups, or about the resources of a version."""

    groups: tuple[_Named, ...] = ()
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
    return frozenset(group.name for group in (await _discovery(server, "API groups", "")).groups)


async def served_resources(server: ApiServer, api_version: str) -> tuple[str, ...]:
    """Return the plural names of the resources of a version, none when it is not served."""
    answer = await _discovery(server, api_version, f"/{api_version}")
    return tuple(resource.name for resource in answer.resources)


async def _discovery(server: ApiServer, subject: str, path: str) -> _Discovery:
    try:
        body = await server.call(Request(method="GET", path=f"/apis{path}"))
        return msgspec.json.decode(body, type=_Discovery)
    except (ApiResponse, msgspec.DecodeError) as problem:
        if path and isinstance(problem, ApiResponse) and problem.status == HTTPStatus.NOT_FOUND:
            return _Discovery()
        raise ClusterUnavailable(f"discovery of {subject}: {problem}") from problem


KINDS: Final = ("compositepodgroups", "podgroups", "workloads")
METRICS_TIMEOUT_S: Final = 5.0
METRICS_BYTES_MAX: Final = 32 * 1024 * 1024
TOKEN_OF_POD: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 -- a path
_ENABLED: Final = re.compile(
    r'^kubernetes_feature_enabled\{[^}]*\bname="(\w+)"[^}]*\} ([01])$', re.MULTILINE
)


async def dry_runs(
    server: ApiServer, priority: Callable[[], PriorityOf | None]
) -> tuple[DryRunResult, ...]:
    """Create, as a dry run, a full object of every served built-in kind and version, and a member (K60).

    Nothing is created, but this needs the right to create, in a namespace that holds nothing else.

    Raises:
        ClusterUnavailable: No answer; no result is known.
    """
    served = [
        (api_version, name)
        for version in VERSIONS[BUILTIN]
        for api_version in (f"{BUILTIN}/{version}",)
        for name in await served_resources(server, api_version)
        if name in KINDS
    ]
    return tuple([await _try(server, sample) for sample in samples(served, priority())])


async def _try(server: ApiServer, sample: Sample) -> DryRunResult:
    root = "/api/v1" if sample.api_version == "v1" else f"/apis/{sample.api_version}"
    request = Request(
        method="POST",
        path=f"{root}/namespaces/{NAME}/{sample.plural}",
        query={"dryRun": "All"},
        body=msgspec.json.encode(sample.body),
    )
    try:
        kept: dict[str, Any] = msgspec.json.decode(await server.call(request), type=dict)
    except ApiResponse as refusal:
        return DryRunResult(sample, None, str(refusal))
    except msgspec.DecodeError as problem:
        raise ClusterUnavailable(f"dry run of {sample.label}: {problem}") from problem
    return DryRunResult(sample, kept)


class SchedulerMetrics:
    """The metrics of one kube-scheduler."""

    def __init__(self, url: str = "", *, ca_file: str = "", token_file: str = "") -> None:
        """Keep the settings; the files are read for every request, because their content is rotated.

        Args:
            url: URL of the metrics; empty: no request is sent.
            ca_file: CA of the server's certificate; empty: the certificate is not verified, because kube-scheduler
                signs its own at its start. Settings allow that on this machine only.
            token_file: Bearer token; empty: the token of this pod's ServiceAccount.
        """
        self._url = url
        self._ca_file = ca_file
        self._token_file = token_file

    async def gates(self) -> SchedulerGates:
        """Return the feature gates, or the reason why they cannot be read; never raises."""
        if not self._url:
            return SchedulerGates(None, NOT_CONFIGURED)
        try:
            text = await self._page()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            return SchedulerGates(None, f"{self._url}: {_message_of(problem)}")
        gates = {name: value == "1" for name, value in _ENABLED.findall(text)}
        if not gates:
            return SchedulerGates(None, f"{self._url}: no kubernetes_feature_enabled there")
        return SchedulerGates(gates)

    async def _page(self) -> str:
        limits = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=limits) as session,
            session.get(
                self._url, headers=self._headers(), ssl=self._tls(), allow_redirects=False
            ) as reply,
        ):
            if reply.status != HTTPStatus.OK:
                raise ValueError(f"answered {reply.status} {reply.reason}")
            body = await reply.content.read(METRICS_BYTES_MAX)
            while not reply.content.at_eof() and len(body) < METRICS_BYTES_MAX:
                body += await reply.content.read(METRICS_BYTES_MAX - len(body))
            return body.decode()

    def _headers(self) -> dict[str, str]:
        file = Path(self._token_file or TOKEN_OF_POD)
        if not self._token_file and not file.exists():
            return {}
        return {"Authorization": f"Bearer {file.read_text(encoding='utf-8').strip()}"}

    def _tls(self) -> ssl.SSLContext:
        tls = ssl.create_default_context(cafile=self._ca_file or None)
        if not self._ca_file:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        return tls


def _message_of(problem: Exception) -> str:
    """Return a message without object addresses (aiohttp prints them), equal for equal problems."""
    if isinstance(problem, aiohttp.ClientConnectorError):
        return str(problem.os_error)
    return str(problem) or type(problem).__name__
