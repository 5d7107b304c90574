"""Publish anchors in a ConfigMap, which the service may write and the administrator of the database may not.

Owns that one object, `gang-extender-log` in our namespace, and its format. It must not judge what it
reads. Note: an unreadable object counts as nothing published and is logged as an error, so that it does
not prevent the start of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from extender.cluster.connection.api_client import (
    MERGE_PATCH,
    ApiResponse,
    ApiServer,
    Request,
    write_request,
)
from extender.cluster.write.pod_writer import fault_of
from extender.core.log.anchors import Anchor, decode_anchors, encode_anchors
from extender.core.model.errors import ClusterUnavailable
from extender.ports.written_names import LOG_HEAD_CONFIGMAP as NAME
from extender.ports.written_names import NAMESPACE

logger = logging.getLogger(__name__)

OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
WHAT: Final = "the end of the log in ConfigMap"


class _ConfigMap(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"null")


def read_anchors(body: bytes, where: str) -> tuple[Anchor, ...]:
    """Return the anchors of published data; empty if there are none, or if they cannot be read (logged as an error)."""
    try:
        return decode_anchors(body)
    except ValueError as problem:  # msgspec's errors are ValueErrors
        logger.error(  # noqa: TRY400 -- the message names the problem
            "the published end of the log is not readable and is not compared",
            extra={"where": where, "reason": str(problem)},
        )
        return ()


def own_namespace() -> str:
    """Return the namespace of this pod, or outside of a cluster that of deploy/."""
    try:
        return OWN_NAMESPACE.read_text(encoding="utf-8").strip() or NAMESPACE
    except OSError:
        return NAMESPACE


class LogHeadConfigMap:
    """Reads and writes the ConfigMap."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._folder = f"/api/v1/namespaces/{own_namespace()}/configmaps"

    async def published(self) -> tuple[Anchor, ...]:
        """Return the published anchors; see the port."""
        path = f"{self._folder}/{NAME}"
        try:
            body = await self._server.call(Request(method="GET", path=path))
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.NOT_FOUND:
                return ()
            raise self._fault(refusal) from refusal
        try:
            config_map = msgspec.json.decode(body, type=_ConfigMap)
        except msgspec.MsgspecError as problem:
            raise ClusterUnavailable(f"{WHAT} {path}: {problem}") from problem
        return read_anchors(bytes(config_map.data), path)

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        """Replace the published anchors; see the port."""
        data = {"data": encode_anchors(anchors)}
        try:
            try:
                path = f"{self._folder}/{NAME}"
                await self._server.call(write_request("PATCH", path, data, MERGE_PATCH))
            except ApiResponse as refusal:
                if refusal.status != HTTPStatus.NOT_FOUND:
                    raise
                whole = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": NAME,
                        "labels": {"app.kubernetes.io/name": "gang-extender"},
                    },
                    **data,
                }
                await self._server.call(write_request("POST", self._folder, whole))
        except ApiResponse as refusal:
            raise self._fault(refusal) from refusal

    def _fault(self, refusal: ApiResponse) -> ClusterUnavailable:
        fault = fault_of(f"{WHAT} {self._folder}/{NAME}", refusal)
        return fault if isinstance(fault, ClusterUnavailable) else ClusterUnavailable(str(fault))
