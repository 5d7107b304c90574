"""Cuts lists of rows into parts, so that decisions share the parts in which nothing changed.

A part begins with every row whose name has a certain hash. A cut therefore depends on one row alone, and
adding or removing a row changes only the part that the row is in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ROWS_PER_PART = 16  # on average; of pods 1.5 kB compressed, where a row in the database has an overhead of 0.15 kB
T = TypeVar("T")


def begins_part(name: str) -> bool:
    """Return whether a part begins with the row of this name. Must never change: stored inputs depend on it.

    >>> [begins_part(f"ns/pod-{n}") for n in range(20)].count(True)
    2
    """
    return zlib.crc32(name.encode()) % ROWS_PER_PART == 0


def cut(rows: Iterable[T], name_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut rows, in their order, into parts; no part is empty.

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
