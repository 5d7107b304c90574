"""Archives that are the same bytes each time: sorted names, one time, no owners, two modes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping


def packed(
    files: Mapping[str, bytes], *, time_s: int, programs: frozenset[str] = frozenset()
) -> bytes:
    """Return a tar of files by name.

    Args:
        files: Contents.
        time_s: Of every file, in seconds of Unix.
        programs: Names of those that can be run.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), time_s
            entry.mode = 0o755 if name in programs else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def compressed(content: bytes) -> bytes:
    """Return it as gzip does, without name and time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()
