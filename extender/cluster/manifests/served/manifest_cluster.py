"""The `Cluster` port on a cluster that is read from files, for `serve --cluster PATH...`.

Manifests are never written, and are read again when they change. Writes to the cluster (bindings,
nominations, removed gates, conditions, groups of workloads, Kubernetes Events) go to one append-only file in the data directory,
`cluster.jsonl`, whose lines `journal` describes; so they survive a SIGKILL. This is for trying the
service out, not an API server: there is no admission (pods have the gates and markers of their
manifests) and no kubelet, and a bound pod counts as running until it is removed from the manifests or
its manifest has a phase that means it ended. Anchors of the log are published in a file beside the journal.

A program that simulates users and controllers writes manifests (best under another name, then renamed)
and reads `cluster.jsonl`. A pod that is removed from the manifests is deleted; one of the same name that
is added later is a new pod, unless both have the same UID. A removal and addition within two polls is
not detected if neither has a UID. Only the replica that leads records removals.

After the first reading, changed files are read only when two checks in a row find the same modification times: a partly written
file would look like a cluster with half of its pods deleted.

Note: when a manifest becomes invalid, the last valid state stays in use and a warning is logged; the view
is not ready only if the manifests were never valid.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import AnyEntry, Ident, Role, entries_in, ident_of
from extender.cluster.manifests.manifest_loader import (
    CompleteManifest,
    Memory,
    build,
    complete,
    in_feed_order,
)
from extender.cluster.manifests.served.journal import (
    FILE,
    DeletedObject,
    Journal,
    ManifestPaths,
    Record,
)
from extender.cluster.manifests.served.recorded_cluster import RecordedCluster
from extender.cluster.manifests.workload_objects import owner_uid
from extender.cluster.manifests.yaml_reader import STDIN, documents, files_of
from extender.cluster.read.object_decoding import source_of
from extender.cluster.write.log_head_configmap import read_anchors
from extender.core.log.anchors import Anchor, encode_anchors
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.core.model.pod_groups import CHILDREN_MAX, Source
from extender.ports.log_ports import Clock
from extender.runtime.periodic import ObjectChanges, ObjectFaults
from extender.runtime.wakeup import Wakeup
from extender.telemetry import METRICS


def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths without symbolic links, sorted, each once."""
    return tuple(sorted({str(Path(path).resolve()) for path in paths}))


def check_same_manifests(recorded: Sequence[str], given: Sequence[str], journal: Path) -> None:
    """Check that the objects of a journal can be in the given paths.

    They can if nothing is recorded, if paths were added, or if the other recorded paths do not exist any more (they
    were moved).

    Args:
        recorded: Paths that the journal was written for, see `absolute_paths`; may be empty.
    """
    others = [path for path in recorded if path not in given and Path(path).exists()]
    if others:
        raise BadInput(
            f"--cluster {' '.join(given)}: {journal} belongs to other manifests, {' '.join(others)}, whose objects would be "
            f"recorded as deleted; give these paths too, or another --data-dir than {journal.parent}"
        )


async def _published(path: Path) -> tuple[Anchor, ...]:
    """Return the published anchors; empty if none was published."""
    try:
        return read_anchors(await asyncio.to_thread(path.read_bytes), str(path))
    except FileNotFoundError:
        return ()
    except OSError as fault:
        raise ClusterUnavailable(f"{path}: {fault}") from fault


async def _publish(path: Path, anchors: Sequence[Anchor]) -> None:
    """Publish anchors; the file is replaced atomically."""
    new = path.with_suffix(".new")
    try:
        await asyncio.to_thread(new.write_bytes, msgspec.json.encode(encode_anchors(anchors)))
        new.replace(path)
    except OSError as fault:
        raise ClusterUnavailable(f"{path}: {fault}") from fault


logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
POLLS_UNTIL_READ: Final = 3  # one may be running; a change is read by the second poll after it
# applied before calls of kube-scheduler are answered again: about 4 ms
OBJECTS_PER_SLICE: Final = 50
COMPARED_PER_SLICE: Final = 1_000  # likewise, compared with those of the last reading

LOG_HEAD_FILE: Final = "log-end.json"  # the published log head, see `core.log.anchors`

_KINDS: Final[tuple[tuple[type[api.Readable], Source], ...]] = (
    (api.PriorityClass, "crd"),
    (api.StorageClass, "crd"),
    (api.PersistentVolume, "crd"),
    (api.PersistentVolumeClaim, "crd"),
    (api.Node, "crd"),
    (api.Workload, "crd"),
    (api.PodDisruptionBudget, "crd"),
    # parents first: children that wait for a parent join its tree all at once when it comes
    (api.CompositePodGroup, "builtin"),
    (api.CompositePodGroup, "crd"),
    (api.PodGroup, "builtin"),
    (api.PodGroup, "crd"),
    (api.Pod, "crd"),
)


def check_paths(paths: Sequence[str]) -> None:
    """Check the paths of manifests that are read again and again."""
    if STDIN in paths:
        raise BadInput("--cluster -: standard input cannot be re-read; give files or directories")
    for path in paths:
        if not path or not Path(path).exists():
            shown = path or '""'
            msg = f"--cluster {shown}: no such file or directory; make it first, it may be empty"
            raise BadInput(msg)


class ManifestCluster(RecordedCluster):
    """A cluster of manifests and the writes to it."""

    def __init__(
        self,
        paths: Sequence[str],
        data_dir: Path,
        *,
        clock: Clock,
        fence: Callable[[], bool] = lambda: True,
        poll_s: float = POLL_S,
        max_children: int = CHILDREN_MAX,
    ) -> None:
        """Check the paths; nothing is read before `start`.

        Args:
            paths: Files and directories; standard input is refused, it cannot be read again.
            data_dir: Directory of `cluster.jsonl`; created if it does not exist.
            fence: Returns whether this process may record what was removed from the files.
        """
        check_paths(paths)
        super().__init__(clock, max_children)
        self._watcher = FileWatcher(paths)
        self._fence = fence
        self._poll_s = poll_s
        self._journal = Journal(data_dir / FILE)
        self.published = functools.partial(_published, data_dir / LOG_HEAD_FILE)
        self.publish = functools.partial(_publish, data_dir / LOG_HEAD_FILE)
        self._paths = absolute_paths(paths)
        self._recorded_paths: tuple[str, ...] = ()  # by the newest line of the journal
        self._left: dict[str, Ident] = {}  # removed from the manifests, and not recorded yet
        self._was_valid = False
        self._faults: ObjectFaults[str] = ObjectFaults("cluster")
        self._changes = ObjectChanges(clock.monotonic_ms)
        self._fault = "the manifests were not read yet"
        self._ignored: Mapping[str, str] = {}  # files that are not valid, and why
        self._polling: asyncio.Task[None] | None = None
        self._polls = Wakeup()  # after each poll

    # --- life

    async def start(self) -> None:
        """Read the manifests and start to poll them.

        Invalid manifests do not prevent the start; `not_ready_reason` and `ignored_sources` have the faults until they are
        corrected.

        Raises:
            OSError: The data directory cannot be written.
            BadInput: The journal belongs to other manifests.
        """
        await self._journal.open()
        self._read_journal()
        if self._paths != self._recorded_paths:
            check_same_manifests(self._recorded_paths, self._paths, self._journal.path)
            await self._write(ManifestPaths(at_us=self._clock.now_us(), paths=self._paths))
        await self._poll_alone()
        self._polling = asyncio.create_task(self._poll_forever(), name="cluster-files")

    async def stop(self) -> None:
        """Stop the polling task and close the journal."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
            self._polling = None
        await self._journal.close()

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(max(self._poll_s, self._faults.pause_s("files")))
            await self._poll_alone()

    async def _poll_alone(self) -> None:
        """Poll; after a defect the next poll reads all files again."""
        with self._faults.alone("files"):
            await self._poll()
            return
        self._watcher.read_again()
        self._invalid |= self._objects.keys()
        if not self._was_valid:
            self._fault = "a defect of this service kept the manifests from being read, see the log"

    async def _poll(self) -> None:
        self._read_journal()
        await self._look()
        if self._changes.make_again():
            self._wake_waiting()
        await self._record_removals()
        self._polls.wake()

    # --- reading

    async def _look(self) -> None:
        """Read the manifests again if they have changed, and apply them."""
        try:
            files = await self._watcher.changed(self._overlay.gone)
            if files is None:
                return
            self._report_ignored(files.ignored)
            await self._take(files)
        except (BadInput, OSError) as fault:
            if not isinstance(fault, BadInput):
                self._watcher.read_again()
            if str(fault) != self._fault:
                data = {"fault": str(fault), "kept": self._was_valid}
                logger.warning("Manifests cannot be used", extra=data)
            self._fault = str(fault)
        else:
            self._was_valid, self._fault = True, ""

    def _report_ignored(self, ignored: Mapping[str, str]) -> None:
        """Log the files that are ignored from now on, and set the metric of each."""
        for name in self._ignored.keys() - ignored.keys():
            METRICS.manifest_files_ignored.remove(name)
        for name, fault in ignored.items():
            METRICS.manifest_files_ignored.labels(name).set(1)
            if self._ignored.get(name) != fault:
                logger.warning("A manifest file is ignored", extra={"file": name, "fault": fault})
        self._ignored = ignored

    async def _take(self, files: ManifestFiles) -> None:
        """Replace the objects of the cluster by those of the manifests; groups of workloads go with their owners.

        Only what changed is applied, `OBJECTS_PER_SLICE` at a time: calls of kube-scheduler come between.
        """
        objects = dict(files.objects)
        workloads: dict[str, Ident] = {
            manifest.metadata.uid: (manifest.kind, "", *manifest.key)
            for manifest in files.manifest.served.manifests
        }
        for group in self._overlay.groups.values():
            owner = owner_uid(group)
            if owner in workloads or not owner:  # that of plain pods has none
                objects.setdefault(ident_of(group), group)
        idents = self._left | self._overlay.where | self._by_uid
        by_uid = {**workloads, **files.by_uid}
        by_uid |= {
            uid: ident_of(group)
            for uid, group in self._overlay.groups.items()
            if objects.get(ident_of(group)) is group
        }
        left = {uid: idents[uid] for uid in idents.keys() - by_uid.keys()}
        if left and files.never_valid and not self._was_valid:
            kind, _, *name = next(iter(left.values()))
            text = f"recorded in {FILE} and is in no valid file; it may be in one that is not"
            fault = files.ignored[files.never_valid[0]]
            raise BadInput(f"{kind} {'/'.join(name)} is {text}: {fault}")
        before, self._objects = self._objects, objects
        self._by_uid, self._left = by_uid, left
        self._watcher.forget(self._left.values())
        await self._apply(before, objects)
        self.workloads.take(files.manifest.served)
        self._wake_waiting()

    async def _apply(
        self, before: Mapping[Ident, api.Readable], objects: Mapping[Ident, api.Readable]
    ) -> None:
        """Bring the world from some objects to others, kind by kind; writes may come between two slices."""
        changed: dict[tuple[type[api.Readable], Source], list[Ident]] = {}
        for number, (ident, obj) in enumerate(objects.items(), start=1):
            old = before.get(ident)
            if old is not obj and (old is None or old != obj or ident in self._invalid):
                changed.setdefault((type(obj), _source(obj)), []).append(ident)
            if number % COMPARED_PER_SLICE == 0:
                await asyncio.sleep(0)
        removed = sorted((before[ident] for ident in before.keys() - objects.keys()), key=ident_of)
        for kind in _KINDS:
            changes = [functools.partial(self._upsert, ident) for ident in changed.get(kind, ())]
            changes += [
                functools.partial(
                    self._pass_on, ident_of(obj), functools.partial(self._world.delete, obj)
                )
                for obj in removed
                if (type(obj), _source(obj)) == kind
            ]
            for number, change in enumerate(changes, start=1):
                change()
                if number % OBJECTS_PER_SLICE == 0:
                    self._wake_waiting()
                    await asyncio.sleep(0)

    def _pass_on(self, ident: Ident, change: Callable[[], None]) -> None:
        """Change an object of the world; after a defect with it, it stays as it is there for a pause."""
        kind, _, *name = ident
        self._changes.make(
            f"{kind} {'/'.join(filter(None, name))}", change, may_wait=self._was_valid
        )

    async def _record_removals(self) -> None:
        """Record what is in the manifests no more, if this process may; what is not recorded is tried again."""
        if not self._left or not self._fence() or self._paths != self._recorded_paths:
            return
        at_us, left = self._clock.now_us(), sorted(self._left.items())
        records = (DeletedObject.of(uid, ident, at_us) for uid, ident in left)
        try:
            await asyncio.gather(*map(self._write, records))
        except ClusterUnavailable as fault:
            logger.warning("Removals are not recorded yet", extra={"fault": str(fault)})

    def _read_journal(self) -> None:
        """Apply the lines that were added since the last call, by this or another process."""
        changed = set()
        for record in self._journal.unread():
            if isinstance(record, ManifestPaths):
                self._recorded_paths = record.paths
                continue
            if self._overlay.apply(record):
                changed.add(record.uid)
            if isinstance(record, DeletedObject):
                self._left.pop(record.uid, None)
                if record.uid in self._by_uid and record.uid not in changed:
                    self._watcher.read_again()  # another process did not find it: it has a new UID
        for uid in sorted(changed):
            self._refresh(uid)
        if changed:
            self._wake_waiting()

    async def _write(self, record: Record) -> None:
        await self._journal.append(record)
        self._read_journal()

    # --- the port

    def not_ready_reason(self) -> str:
        """Return the reason why decisions must not use the view, or an empty string.

        Manifests that were valid once and are not now are no reason.
        """
        return "" if self._was_valid else self._fault

    async def catch_up(self) -> None:
        """Return when the view has the files and the journal as they are now; see the port."""
        self._read_journal()
        complete = self._polls.revision
        while self._polls.revision < complete + POLLS_UNTIL_READ:
            await self._polls.wait(self._polls.revision)

    def ignored_sources(self) -> tuple[str, ...]:
        """Return the files that are ignored, and why."""
        return tuple(f"ignored file: {fault}" for fault in self._ignored.values())


def _source(obj: api.Readable) -> Source:
    return source_of(obj) if isinstance(obj, api.Group) else "crd"


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
        manifest, self._memory, warnings = choice.result(faults)
        self._valid = choice.used
        for text in warnings:
            logger.info("A manifest has a warning", extra={"text": text})
        objects = {entry.ident: entry.obj for entry in in_feed_order(manifest.entries)}
        return ManifestFiles(
            manifest=manifest,
            objects=objects,
            by_uid={
                obj.metadata.uid: ident
                for ident, obj in objects.items()
                if isinstance(obj, api.Pod | api.Group)
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


# content that is valid together, what is remembered of it, and warnings
_Built = tuple[CompleteManifest, Memory, tuple[str, ...]]


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
        return completed, memory, build(completed).warnings
