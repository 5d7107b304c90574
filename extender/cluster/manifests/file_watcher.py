"""Detect changed manifests and read them again.

Owns the modification times and the objects of unchanged files; checks run in the service's event loop,
reads in a thread.

Note: after the first read, changed files are read only when two checks in a row find the same
modification times. A partly written file would look like a cluster with half of its pods deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from extender.cluster.manifests.manifest_entries import AnyEntry, Ident, Role, objects_in
from extender.cluster.manifests.manifest_loader import CompleteManifest, Memory, build, complete
from extender.cluster.manifests.yaml_reader import files_of, read_file

logger = logging.getLogger(__name__)

_Mark = tuple[int, int, int]  # mtime in ns, size, inode
_Marks = dict[str, _Mark]  # by file, in the order in which the files count


class FileWatcher:
    """The manifests of some paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._memory = Memory()
        self._stored: dict[str, tuple[_Mark, tuple[AnyEntry, ...]]] = {}
        self._seen: _Marks | None = None  # at the last check
        self._read: _Marks | None = None  # at the last read, valid or not

    async def changed(self, gone: Mapping[Ident, int]) -> CompleteManifest | None:
        """Return the manifests if they have changed since the last read and are stable, else None.

        Args:
            gone: How often the object of each name was deleted, for the UIDs of recreated ones.

        Raises:
            BadInput: The manifests are invalid; they are not read again before they change.
            OSError: A file was removed while it was checked.
        """
        now = self._marks()
        before, self._seen = self._seen, now
        if now == self._read or before not in (None, now):
            return None
        self._read = now
        self._memory.incarnation = dict(gone)
        return await asyncio.to_thread(self._complete, now)

    def read_again(self) -> None:
        """Read the manifests again at the next check even if they have not changed."""
        self._read = None

    def forget(self, left: Iterable[Ident]) -> None:
        """Drop the creation times of these objects, so that recreated ones get new ones."""
        for ident in left:
            self._memory.created.pop(ident, None)

    def _marks(self) -> _Marks:
        marks = {}
        for name in files_of(self._paths):
            stat = Path(name).stat()
            marks[name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return marks

    def _complete(self, marks: _Marks) -> CompleteManifest:
        entries: list[AnyEntry] = []
        for name, mark in marks.items():
            stored = self._stored.get(name)
            if stored is None or stored[0] != mark:
                documents = read_file(name)
                stored = mark, tuple(e for d in documents for e in objects_in(d, Role.CLUSTER))
                self._stored[name] = stored
            entries += stored[1]
        for name in self._stored.keys() - marks.keys():
            del self._stored[name]
        found = complete(entries, self._memory, serving=True)
        for text in build(found).warnings:  # raises before any state is changed
            logger.info("A manifest has a warning", extra={"text": text})
        return found
