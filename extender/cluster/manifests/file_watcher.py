"""Notice that manifests have changed, and read those again.

Owns looking at modification times and what was read before; it runs in the service's loop and reads
in a thread. It keeps nothing of the cluster but names.

The surprise: after the first time a file is read only when it has stayed the same for one look, so
that a file half written is not taken for a cluster that has lost half of its pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from extender.cluster.manifests.manifest_loader import (
    CompleteManifest,
    Entry,
    Ident,
    Memory,
    Role,
    build,
    complete,
    objects_in,
)
from extender.cluster.manifests.yaml_reader import files_of, read_file

logger = logging.getLogger(__name__)

_Mark = tuple[int, int, int]  # mtime in ns, size, inode
_Marks = dict[str, _Mark]  # by file, in the order in which the files count


class FileWatcher:
    """The manifests behind some paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._memory = Memory()
        self._stored: dict[str, tuple[_Mark, tuple[Entry, ...]]] = {}
        self._seen: _Marks | None = None  # at the last look
        self._read: _Marks | None = None  # at the last reading, good or bad

    async def changed(self, gone: Mapping[Ident, int]) -> CompleteManifest | None:
        """Read what has changed since the last time; None when nothing has, or it still changes.

        Args:
            gone: How often the object of each name has left, for the UIDs of those that come back.

        Raises:
            BadInput: The manifests cannot be used; they are not read again before they change.
            OSError: A file went away while it was looked at.
        """
        now = self._marks()
        before, self._seen = self._seen, now
        if now == self._read or before not in (None, now):
            return None
        self._read = now
        self._memory.incarnation = dict(gone)
        return await asyncio.to_thread(self._complete, now)

    def again(self) -> None:
        """Read everything at the next look, changed or not."""
        self._read = None

    def forget(self, left: Iterable[Ident]) -> None:
        """Give these objects a new creation time should they come back."""
        for ident in left:
            self._memory.created.pop(ident, None)

    def _marks(self) -> _Marks:
        marks = {}
        for name in files_of(self._paths):
            stat = Path(name).stat()
            marks[name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return marks

    def _complete(self, marks: _Marks) -> CompleteManifest:
        entries: list[Entry] = []
        for name, mark in marks.items():
            stored = self._stored.get(name)
            if stored is None or stored[0] != mark:
                documents = read_file(name)
                stored = mark, tuple(e for d in documents for e in objects_in(d, Role.CLUSTER))
                self._stored[name] = stored
            entries += stored[1]
        for name in self._stored.keys() - marks.keys():
            del self._stored[name]
        found = complete(entries, self._memory)
        for text in build(found).warnings:  # a fault shows here, before anything is changed
            logger.info("A manifest is odd", extra={"text": text})
        return found
