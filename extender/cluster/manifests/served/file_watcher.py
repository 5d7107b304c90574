"""Detect changed manifests and read them again.

Owns the modification times, the objects of unchanged files, and those of the last valid content of each file; checks run
in the service's event loop, reads in a thread.

Note: after the first read, changed files are read only when two checks in a row find the same
modification times. A partly written file would look like a cluster with half of its pods deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Ident, Role, entries_in
from extender.cluster.manifests.manifest_loader import (
    CompleteManifest,
    Memory,
    build,
    complete,
    in_feed_order,
)
from extender.cluster.manifests.yaml_reader import documents, files_of
from extender.core.model.errors import BadInput
from extender.telemetry import METRICS

logger = logging.getLogger(__name__)

_Mark = tuple[int, int, int]  # mtime in ns, size, inode
_Marks = dict[str, _Mark]  # by file, in the order in which the files count
_Entries = tuple[AnyEntry, ...]

KEPT: Final = "its last valid content stays in use"
LEFT_OUT: Final = "its objects are not there"


class ManifestFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files as they are now: the objects of the valid ones, and why others are ignored."""

    manifest: CompleteManifest
    objects: Mapping[Ident, api.Readable] = {}  # those of `manifest`, referenced kinds first
    by_uid: Mapping[str, Ident] = {}  # the pods and groups among them
    ignored: Mapping[str, str] = {}  # file -> what is wrong with it, and what is used in its place
    # ignored files that were not valid since this process started
    never_valid: tuple[str, ...] = ()


class FileWatcher:
    """The manifests of some paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._memory = Memory()
        self._stored: dict[str, tuple[_Mark, _Entries | BadInput]] = {}
        self._valid: dict[str, _Entries] = {}  # the content in use, by file
        self._seen: _Marks | None = None  # at the last check
        self._read: _Marks | None = None  # at the last read, valid or not

    async def changed(self, deletions: Mapping[Ident, int]) -> ManifestFiles | None:
        """Return the manifests if they have changed since the last read and are stable, else None.

        A file that is not valid, alone or beside the others, is ignored: its last valid content stays in use.

        Args:
            deletions: How often the object of each name was deleted, for the UIDs of recreated ones.

        Raises:
            BadInput: No file is valid, or the last valid content is not valid any more without a file that was removed;
                the manifests are not read again before they change.
            OSError: A file was removed while it was checked.
        """
        now = self._marks()
        before, self._seen = self._seen, now
        if now == self._read or before not in (None, now):
            return None
        self._read = now
        self._memory.incarnation = dict(deletions)
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

    def _complete(self, marks: _Marks) -> ManifestFiles:
        faults: dict[str, BadInput] = {}
        content: dict[str, _Entries] = {}
        for name, mark in marks.items():
            stored = self._stored.get(name)
            if stored is None or stored[0] != mark:
                stored = self._stored[name] = mark, _content(name)
            if isinstance(stored[1], BadInput):
                faults[name] = stored[1]
            else:
                content[name] = stored[1]
        for name in self._stored.keys() - marks.keys():
            del self._stored[name]
        last = {name: self._valid[name] for name in marks if name in self._valid}
        choice = _Choice(tuple(marks), last, self._memory)
        choice.add(content)
        faults |= choice.faults
        built = choice.result(faults)
        self._valid, self._memory = choice.used, built.memory
        for text in built.warnings:
            logger.info("A manifest has a warning", extra={"text": text})
        objects = {entry.ident: entry.obj for entry in in_feed_order(built.manifest.entries)}
        return ManifestFiles(
            manifest=built.manifest,
            objects=objects,
            by_uid={
                obj.metadata.uid: ident
                for ident, obj in objects.items()
                if isinstance(obj, api.Pod | api.PodGroup | api.CompositePodGroup)
            },
            ignored={
                name: f"{faults[name]}; {KEPT if name in choice.used else LEFT_OUT}"
                for name in marks
                if name in faults
            },
            never_valid=tuple(name for name in marks if name in faults and name not in choice.used),
        )


def _content(name: str) -> _Entries | BadInput:
    """Return the objects of a file, or why it cannot be read."""
    try:
        return entries_in(documents(name), Role.CLUSTER)
    except Exception as fault:  # noqa: BLE001 -- logged and counted by `_fault_of`
        return _fault_of(name, fault)


def _fault_of(name: str, error: Exception) -> BadInput:
    """Return why a file is ignored; a defect is one of its objects, as far as the other files go."""
    if isinstance(error, BadInput):
        return error
    METRICS.object_faults.labels("cluster").inc()
    logger.error(
        "a defect of this service concerns one file", exc_info=error, extra={"object": name}
    )
    return BadInput(f"a defect of this service, see its log: {type(error).__name__}: {error}")


class _Built(msgspec.Struct, frozen=True, kw_only=True):
    """Content that is valid together."""

    manifest: CompleteManifest
    memory: Memory
    warnings: tuple[str, ...]


class _Choice:
    """Chooses the files whose new content is valid beside the content in use.

    Attributes:
        used: The content that is valid together, by file.
        faults: Why the new content of the other files is not used.
    """

    def __init__(self, order: Sequence[str], used: dict[str, _Entries], memory: Memory) -> None:
        self._order = order
        self._memory = memory
        self._built: _Built | None = None
        self.used = used
        self.faults: dict[str, BadInput] = {}

    def add(self, content: Mapping[str, _Entries]) -> None:
        """Use the new content of as many files as are valid together; a file may need objects of another one."""
        left = [name for name in self._order if name in content]
        while left:
            self.faults = {}
            self._add(left, content)
            if len(self.faults) == len(left) or not self.faults:
                return
            left = [name for name in left if name in self.faults]

    def _add(self, names: list[str], content: Mapping[str, _Entries]) -> None:
        try:
            with_these = self.used | {name: content[name] for name in names}
            self._built = self._build(with_these)
        except Exception as fault:  # noqa: BLE001 -- logged and counted by `_fault_of`
            if len(names) == 1:
                self.faults[names[0]] = _fault_of(names[0], fault)
                return
            half = len(names) // 2
            self._add(names[:half], content)
            self._add(names[half:], content)
        else:
            self.used = with_these

    def result(self, faults: Mapping[str, BadInput]) -> _Built:
        """Return the objects of the files in use.

        Raises:
            BadInput: No file is valid, or what is in use is not valid without a file that was removed.
        """
        if not self.used and faults:
            raise next(iter(faults.values()))
        return self._built or self._build(self.used)

    def _build(self, used: Mapping[str, _Entries]) -> _Built:
        memory = Memory(created=dict(self._memory.created), incarnation=self._memory.incarnation)
        completed = complete(
            [entry for name in self._order if name in used for entry in used[name]],
            memory,
            serving=True,
        )
        return _Built(manifest=completed, memory=memory, warnings=build(completed).warnings)
