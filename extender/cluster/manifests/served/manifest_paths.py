"""Whether a journal belongs to the manifests of a service.

A second service with other manifests on the same data directory would find every object of the first one missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extender.core.model.errors import BadInput


def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths without symbolic links, sorted, each once."""
    return tuple(sorted({str(Path(path).resolve()) for path in paths}))


def check_same_manifests(recorded: Sequence[str], given: Sequence[str], journal: Path) -> None:
    """Check that the objects of a journal can be in the given paths.

    They can if nothing is recorded, if paths were added, or if the other recorded paths do not exist any more (they
    were moved).

    Args:
        recorded: Paths that the journal was written for, see `absolute_paths`; may be empty.
        given: Paths of this service.
        journal: For the message.

    Raises:
        BadInput: A recorded path exists and is not given.
    """
    others = [path for path in recorded if path not in given and Path(path).exists()]
    if others:
        raise BadInput(
            f"--cluster {' '.join(given)}: {journal} belongs to other manifests, {' '.join(others)}, whose objects would be "
            f"recorded as deleted; give these paths too, or another --data-dir than {journal.parent}"
        )
