"""The Python package: source distribution and wheel, built in a copy of the commit's files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.release.source import Source, run


def build(source: Source, folder: Path, into: Path) -> dict[str, bytes]:
    """Return both by file name.

    Args:
        source: The commit, whose time every file gets.
        folder: Files of the commit.
        into: An empty folder.

    Raises:
        ReleaseError: The build failed.
    """
    run(
        *(sys.executable, "-m", "hatchling", "build", "-d", str(into)),
        name="hatchling build",
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(source.time_s)},
    )
    return {path.name: path.read_bytes() for path in sorted(into.iterdir())}
