"""Publish anchors in a file beside the journal, as a ConfigMap does on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from extender.cluster.write.log_head_configmap import read_anchors
from extender.core.log.anchors import Anchor, encode_anchors
from extender.core.model.errors import ClusterUnavailable


class LogHeadFile:
    """The file with the published anchors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def published(self) -> tuple[Anchor, ...]:
        """Return the published anchors; empty if none was published.

        Raises:
            ClusterUnavailable: The file exists but cannot be read.
        """
        try:
            body = await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return ()
        except OSError as fault:
            raise ClusterUnavailable(f"{self._path}: {fault}") from fault
        return read_anchors(body, str(self._path))

    async def publish(self, anchors: Sequence[Anchor]) -> None:
        """Publish anchors; the file is replaced atomically.

        Raises:
            ClusterUnavailable: The file cannot be written.
        """
        new = self._path.with_suffix(".new")
        try:
            await asyncio.to_thread(new.write_bytes, msgspec.json.encode(encode_anchors(anchors)))
            new.replace(self._path)
        except OSError as fault:
            raise ClusterUnavailable(f"{self._path}: {fault}") from fault
