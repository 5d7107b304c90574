"""The chart as an archive, the same bytes each time: sorted names, no times, no owners."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from deploy.packaging import manifests
from deploy.packaging.written import CHART


def packed() -> bytes:
    """Return the archive that `helm install` takes; .helmignore leaves the value sets of the tests out."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
            name = file.relative_to(CHART)
            if name.parts[0] == "ci" or name.parts[0].startswith("."):
                continue
            content = file.read_bytes()
            entry = tarfile.TarInfo(f"{manifests.NAME}/{name.as_posix()}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    outer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=outer, mtime=0) as compressed:
        compressed.write(inner.getvalue())
    return outer.getvalue()


def write(folder: Path) -> Path:
    """Write the archive into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{manifests.NAME}-{manifests.TAG}.tgz"
    file.write_bytes(packed())
    return file
