"""Publish the log head in a file beside the journal, as a ConfigMap does on a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from extender.cluster.write.log_head_configmap import published_form, read_mark
from extender.core.model.errors import ClusterUnavailable
from extender.ports.log_ports import LogMark


class LogHeadFile:
    """The file with the published log head."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def published(self) -> LogMark | None:
        """Return the published log head; None if none was published.

        Raises:
            ClusterUnavailable: The file exists but cannot be read.
        """
        try:
            body = await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise ClusterUnavailable(f"{self._path}: {fault}") from fault
        return read_mark(body, str(self._path))

    async def publish(self, mark: LogMark) -> None:
        """Publish the log head; the file is replaced atomically.

        Raises:
            ClusterUnavailable: The file cannot be written.
        """
        new = self._path.with_suffix(".new")
        try:
            await asyncio.to_thread(new.write_bytes, msgspec.json.encode(published_form(mark)))
            new.replace(self._path)
        except OSError as fault:
            raise ClusterUnavailable(f"{self._path}: {fault}") from fault
