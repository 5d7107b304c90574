"""A value that is made from files, and made again when they change.

Kubernetes replaces the files of a Secret by changing a symbolic link, other programs move new files over old ones or
write into them. So files are compared by inode, size and time of change of what the path leads to, and new ones are
read only when two looks found the same: a certificate may be replaced a moment before its key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from extender.core.model.errors import BadInput
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[tuple[int, ...], ...]  # one entry per file; empty for a file that is not there


class ReloadedFiles(Generic[T]):
    """What a function makes from files.

    Args:
        name: Label of the metric.
        paths: The files.
        load: Reads them.

    Raises:
        BadInput: The files cannot be used. Later failures keep the last value and are logged.
    """

    def __init__(self, name: str, paths: Sequence[str], load: Callable[[], T]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self._load = load
        self._used = self._last_stamp = self._stamp()
        self._refused: Stamp | None = None
        self.current = load()

    def look(self) -> None:
        """Compare the files with those in use, and use new ones if they are usable and have come to rest."""
        stamp = self._stamp()
        came_to_rest, self._last_stamp = stamp == self._last_stamp, stamp
        if not came_to_rest or stamp in (self._used, self._refused):
            return
        try:
            loaded = self._load()
        except BadInput as error:
            if self._stamp() == stamp:
                self._refused = stamp
                METRICS.tls_reloads.labels(self._name, "failed").inc()
                log.error(  # noqa: TRY400 -- the text has all of it
                    "new certificates are not usable; the old ones stay in use",
                    extra={"files": self._paths, "error": str(error)},
                )
            return
        if self._stamp() == stamp:
            self.current, self._used, self._refused = loaded, stamp, None
            METRICS.tls_reloads.labels(self._name, "loaded").inc()
            log.info("new certificates are in use", extra={"files": self._paths})

    def _stamp(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = Path(path).stat()
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
