"""Find out which fields kube-apiserver keeps of full objects, and which feature gates kube-scheduler has.

Owns the two requests (K60); `core/log/control_plane_features` interprets the answers. The first is a
server-side dry run: it creates nothing, but needs the right to create, in a namespace that holds nothing else.
The second reads the metrics of kube-scheduler, which has its own certificate.
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

from extender.cluster.api_server.api_discovery import VERSIONS, served_resources
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
from extender.core.model.dropped_fields import BUILTIN
from extender.core.model.errors import ClusterUnavailable

KINDS: Final = ("compositepodgroups", "podgroups", "workloads")
METRICS_TIMEOUT_S: Final = 5.0
METRICS_BYTES_MAX: Final = 32 * 1024 * 1024
TOKEN_OF_POD: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 -- a path
_ENABLED: Final = re.compile(
    r'^kubernetes_feature_enabled\{[^}]*\bname="(\w+)"[^}]*\} ([01])$', re.MULTILINE
)


class DryRunProber:
    """Dry runs on one API server."""

    def __init__(self, server: ApiServer, priority: Callable[[], PriorityOf | None]) -> None:
        """Keep the connection.

        Args:
            priority: Returns a priority class that groups may have.
        """
        self._server = server
        self._priority = priority

    async def dry_runs(self) -> tuple[DryRunResult, ...]:
        """Create, as a dry run, a full object of every served built-in kind and version, and a member.

        Raises:
            ClusterUnavailable: No answer; no result is known.
        """
        served = [
            (api_version, name)
            for version in VERSIONS[BUILTIN]
            for api_version in (f"{BUILTIN}/{version}",)
            for name in await served_resources(self._server, api_version)
            if name in KINDS
        ]
        return tuple([await self._try(sample) for sample in samples(served, self._priority())])

    async def _try(self, sample: Sample) -> DryRunResult:
        root = "/api/v1" if sample.api_version == "v1" else f"/apis/{sample.api_version}"
        request = Request(
            method="POST",
            path=f"{root}/namespaces/{NAME}/{sample.plural}",
            query={"dryRun": "All"},
            body=msgspec.json.encode(sample.body),
        )
        try:
            kept: dict[str, Any] = msgspec.json.decode(await self._server.call(request), type=dict)
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
