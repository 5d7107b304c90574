"""Anchors: hashes of single positions of the log, as the service publishes them outside of the database.

An anchor proves what the log was up to its position, because each hash covers all events before it. Not all anchors are
kept: the newest, and of the older ones fewer and fewer, so that a rewritten part of the log can be narrowed down. An anchor
at a higher position than a later one is always kept: the log lost its end between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from extender.core.model.ids import Epoch, Position

NEWEST_KEPT: Final = 16
ANCHORS_MAX: Final = 64  # some 20 kB


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The hash of one position as its leader published it outside of the database."""

    position: Position
    epoch: Epoch  # of the leader that published it
    chain: bytes  # hash of the event at `position`
    first: bytes = b""  # hash of the event at position 1, which other logs do not have


class _Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """An anchor as it is published."""

    position: int
    epoch: int
    hash: str
    first: str = ""


class PublishedData(msgspec.Struct, frozen=True):
    """The newest anchor, field by field, for people and for versions that published only this."""

    position: str
    epoch: str
    hash: str
    anchors: str = ""


_ANCHORS = msgspec.json.Decoder(list[_Published])


def with_anchor(anchors: Sequence[Anchor], new: Anchor) -> tuple[Anchor, ...]:
    """Return the anchors to publish after `new`: it is the last one, and of the others some are left out."""
    every = [*anchors, new]
    kept = set(range(max(0, len(every) - NEWEST_KEPT), len(every)))
    # of those at distances from 2^n to 2^(n + 1), the nearest and the farthest: each range always has one
    nearest: dict[int, int] = {}
    farthest: dict[int, int] = {}
    for index, anchor in enumerate(every):
        distance = abs(new.position - anchor.position).bit_length()
        farthest.setdefault(distance, index)
        nearest[distance] = index
    kept.update(nearest.values(), farthest.values())
    for index, (one, following) in enumerate(pairwise(every)):
        if one.position > following.position:  # the log lost its end here
            kept.update((index, index + 1))
    return tuple(every[index] for index in sorted(kept))[-ANCHORS_MAX:]


def encode_anchors(anchors: Sequence[Anchor]) -> dict[str, str]:
    """Return the data of a ConfigMap with anchors, of which there is at least one."""
    newest = anchors[-1]
    every = [_published(anchor) for anchor in anchors]
    return {
        "position": str(newest.position),
        "epoch": str(newest.epoch),
        "hash": newest.chain.hex(),
        "anchors": msgspec.json.encode(every).decode(),
    }


def decode_anchors(body: bytes) -> tuple[Anchor, ...]:
    """Return the anchors in the JSON of a ConfigMap's data; empty for null.

    Where the single fields differ from the last anchor, they are a further one: a version that has no list wrote them.

    Raises:
        ValueError: It is not what `encode_anchors` makes.
    """
    found = msgspec.json.decode(body, type=PublishedData | None)
    if found is None:
        return ()
    newest = Anchor(
        position=Position(int(found.position)),
        epoch=Epoch(int(found.epoch)),
        chain=bytes.fromhex(found.hash),
    )
    every = [_anchor(one) for one in _ANCHORS.decode(found.anchors or "[]")]
    if not every or _mark(every[-1]) != _mark(newest):
        every.append(newest)
    return tuple(every)


def _mark(anchor: Anchor) -> tuple[int, int, bytes]:
    return anchor.position, anchor.epoch, anchor.chain


def _published(anchor: Anchor) -> _Published:
    return _Published(anchor.position, anchor.epoch, anchor.chain.hex(), anchor.first.hex())


def _anchor(found: _Published) -> Anchor:
    return Anchor(
        position=Position(found.position),
        epoch=Epoch(found.epoch),
        chain=bytes.fromhex(found.hash),
        first=bytes.fromhex(found.first),
    )
