"""Read large lists, as `kubectl get nodes,pods -A` prints them, piece by piece: objects are few in memory at any time.

YAML is slow to read: 5,000 nodes and 50,000 pods are 245 MB, half a minute of CPU time, most of it in libyaml. So a
list is cut between its items, and all processors read the pieces. A text that is not as kubectl prints lists, or that
cannot be read in pieces, is read as a whole. JSON is read by msgspec in a few seconds.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, Self

import msgspec
import yaml

from extender.cluster.manifests.yaml_reader import (
    STDIN,
    Document,
    Value,
    body_of,
    documents_in,
    read_bytes,
)
from extender.core.model.errors import BadInput

LARGE: Final = 4 << 20  # bytes; a smaller file is read as a whole
PIECE: Final = 1 << 20
AHEAD: Final = 2  # pieces for each process that are read before they are needed
_HEAD: Final = re.compile(rb"apiVersion: v1\nitems:\n(?=- )")
_NEXT: Final = b"\n- "
_TAIL: Final = b"\nkind: List\n"

Progress = Callable[[str, int, int], None]  # name of the file, bytes that were read, bytes in all


class _RawList(msgspec.Struct):
    kind: str
    items: tuple[msgspec.Raw, ...]


def no_progress(_name: str, _done: int, _all: int) -> None:
    """Report no progress."""


def documents(name: str, progress: Progress = no_progress) -> Iterator[Document]:
    """Yield the documents of a file, or of standard input for `-`; of a large list its items.

    Args:
        name: The file.
        progress: Called while a large file is read.

    Raises:
        BadInput: The file cannot be read, or is neither YAML nor JSON.
    """
    body = body_of(name)
    shown = "standard input" if name == STDIN else name
    if len(body) < LARGE:
        yield from read_bytes(body, shown)
        return
    progress(shown, 0, len(body))
    found = _json_items(body) if body.lstrip()[:1] == b"{" else _yaml_items(body, shown, progress)
    number = 0
    try:
        for number, item in enumerate(found, start=1):
            yield Document(where=f"{shown}, document 1, item {number}", value=item)
    except (
        _NotInPieces
    ):  # the whole text has the place of what is wrong, or is right, as with aliases
        for document in read_bytes(body, shown):
            yield document if not number else _rest_of(document, number)
    progress(shown, len(body), len(body))


def _rest_of(document: Document, number: int) -> Document:
    """Return a list without its first items; they are counted on, so the place of the others is as in the file."""
    value = document.value
    if not isinstance(value, dict) or not isinstance(items := value.get("items"), list):
        return document
    empty: Value = {"apiVersion": "v1", "kind": "List", "items": []}
    return Document(
        where=document.where, value={**value, "items": [*[empty] * number, *items[number:]]}
    )


class _NotInPieces(Exception):
    """A text cannot be read piece by piece."""


def _json_items(body: bytes) -> Iterator[Value]:
    """Yield the items of a list in JSON.

    Raises:
        _NotInPieces: It is something else.
    """
    try:
        found = msgspec.json.decode(body, type=_RawList)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise _NotInPieces from fault
    if found.kind != "List":
        raise _NotInPieces
    for item in found.items:
        yield msgspec.json.decode(item)


def _yaml_items(body: bytes, name: str, progress: Progress) -> Iterator[Value]:
    """Yield the items of a list in YAML.

    Raises:
        _NotInPieces: It is something else, or a piece cannot be read alone.
    """
    head, end = _HEAD.match(body), body.rfind(_TAIL)
    if head is None or end < 0:
        raise _NotInPieces
    rest = decoded(b"apiVersion: v1" + body[end:])
    if not isinstance(rest, dict) or rest.get("kind") != "List" or "items" in rest:
        raise _NotInPieces
    start = head.end()
    with _Readers() as readers:
        while start < end or readers.waiting:
            while start < end and readers.free:
                cut = body.find(_NEXT, start + PIECE, end)
                cut = end if cut < 0 else cut + 1
                readers.add(body[start:cut], cut)
                start = cut
            items, upto = readers.next()
            yield from items
            progress(name, upto, len(body))


class _Readers:
    """Processes that read pieces, in order; with one processor this process reads them."""

    def __init__(self) -> None:
        processors = len(os.sched_getaffinity(0))
        self._pool = (
            ProcessPoolExecutor(processors, mp_context=get_context("spawn"))
            if processors > 1
            else None
        )
        self._most = processors * AHEAD
        self._pieces: deque[tuple[Future[bytes] | bytes, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def waiting(self) -> bool:
        """Return whether a piece was added and not returned yet."""
        return bool(self._pieces)

    @property
    def free(self) -> bool:
        """Return whether another piece may be added."""
        return len(self._pieces) < self._most

    def add(self, piece: bytes, end: int) -> None:
        """Add the next piece; `end` is returned with its items."""
        work = piece if self._pool is None else self._pool.submit(encoded_items, piece)
        self._pieces.append((work, end))

    def next(self) -> tuple[list[Value], int]:
        """Return the items of the oldest piece.

        Raises:
            _NotInPieces: It cannot be read alone.
        """
        work, end = self._pieces.popleft()
        body = work.result() if isinstance(work, Future) else encoded_items(work)
        if not body:
            raise _NotInPieces
        items: list[Value] = msgspec.json.decode(body)
        return items, end


def encoded_items(piece: bytes) -> bytes:
    """Return the items of a piece as JSON; empty if it is not a list of them. Called in another process."""
    found = decoded(piece)
    return msgspec.json.encode(found) if isinstance(found, list) else b""


def decoded(text: bytes) -> object:
    """Return the only document of a YAML text; None if it is no YAML, or has several."""
    try:
        (value,) = documents_in(text.decode(), "")
    except (yaml.YAMLError, BadInput, ValueError):
        return None
    return value
