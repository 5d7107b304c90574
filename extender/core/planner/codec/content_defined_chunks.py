"""Where lists of rows are cut into parts, so that decisions share the parts in which nothing changed.

A cut stands in front of every row whose name has a certain hash, so it depends on that row alone: a row more
or less alters the part that it is in and no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ROWS_PER_PART = (
    16  # on average; with pods 1.5 kB compressed, and a row in the database costs 0.15 kB
)
T = TypeVar("T")


def begins_part(name: str) -> bool:
    """Say whether a part begins with this row; the same on every machine and for ever.

    >>> [begins_part(f"ns/pod-{n}") for n in range(20)].count(True)
    2
    """
    return zlib.crc32(name.encode()) % ROWS_PER_PART == 0


def cut(rows: Iterable[T], name_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut rows, in their order, into runs; no run is empty.

    >>> [len(run) for run in cut([f"ns/pod-{n}" for n in range(20)], str)]
    [13, 7]
    """
    run: list[T] = []
    for row in rows:
        if run and begins_part(name_of(row)):
            yield run
            run = []
        run.append(row)
    if run:
        yield run
