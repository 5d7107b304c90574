"""Anchors: hashes of single positions of the log, as the service publishes them outside of the database.

An anchor proves what the log was up to its position, because each hash covers all events before it. Not all anchors are
kept: the newest, and of the older ones fewer and fewer, so that a rewritten part of the log can be narrowed down. An anchor
at a higher position than a later one is always kept: the log lost its end between them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

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
    at_us: int = 0  # when it was published
    key: str = ""  # id of the key that signed it; empty: not signed
    signature: bytes = b""  # Ed25519, of `signed_bytes`


class _Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """An anchor as it is published."""

    position: int
    epoch: int
    hash: str
    first: str = ""
    at_us: int = 0
    key: str = ""
    signature: str = ""


class PublishedData(msgspec.Struct, frozen=True):
    """The newest anchor, field by field, for people and for versions that published only this."""

    position: str
    epoch: str
    hash: str
    anchors: str = ""


SignatureState: TypeAlias = Literal["valid", "unsigned", "unknown key", "invalid"]
_ANCHORS = msgspec.json.Decoder(list[_Published])


def signed_bytes(anchor: Anchor) -> bytes:
    """Return the bytes that the signature of an anchor covers: all its other fields."""
    lines = (
        "gang-extender anchor 1",
        f"position {anchor.position}",
        f"epoch {anchor.epoch}",
        f"hash {anchor.chain.hex()}",
        f"first {anchor.first.hex()}",
        f"at {anchor.at_us}",
        f"key {anchor.key}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


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
    for index, (earlier, following) in enumerate(pairwise(every)):
        if earlier.position > following.position:  # the log lost its end here
            kept.update((index, index + 1))
    return tuple(every[index] for index in sorted(kept))[-ANCHORS_MAX:]


def sort_by_trust(
    anchors: Sequence[Anchor], check: Callable[[Anchor], SignatureState] | None
) -> tuple[tuple[Anchor, ...], tuple[tuple[Anchor, SignatureState], ...]]:
    """Return the anchors to believe, and those that were not published by the service, with the state of their signature.

    Args:
        anchors: In the order of their publication.
        check: Returns the state of a signature; None: there is no key, and all are believed.

    Anchors without a signature are believed when they are older than the first signed one.
    """
    if check is None:
        return tuple(anchors), ()
    trusted, others, signed_before = [], [], False
    for anchor in anchors:
        state = check(anchor)
        signed_before |= state == "valid"
        if state == "valid" or (state == "unsigned" and not signed_before):
            trusted.append(anchor)
        else:
            others.append((anchor, state))
    return tuple(trusted), tuple(others)


def encode_anchors(anchors: Sequence[Anchor]) -> dict[str, str]:
    """Return the data of a ConfigMap with anchors, of which there is at least one."""
    newest = _published(anchors[-1])
    every = [_published(anchor) for anchor in anchors]
    return {
        "position": str(newest.position),
        "epoch": str(newest.epoch),
        "hash": newest.hash,
        "anchors": msgspec.json.encode(every).decode(),
    }


def decode_anchors(body: bytes) -> tuple[Anchor, ...]:
    """Return the anchors in the JSON of a ConfigMap's data; empty for null.

    Where the single fields differ from the last anchor, they are a further one: a version that has no list wrote them.

    Raises:
        ValueError: It is not what `encode_anchors` makes.
    """
    published = msgspec.json.decode(body, type=PublishedData | None)
    if published is None:
        return ()
    newest = Anchor(
        position=Position(int(published.position)),
        epoch=Epoch(int(published.epoch)),
        chain=bytes.fromhex(published.hash),
    )
    every = [_anchor(anchor) for anchor in _ANCHORS.decode(published.anchors or "[]")]
    if not every or _mark(every[-1]) != _mark(newest):
        every.append(newest)
    return tuple(every)


def _mark(anchor: Anchor) -> tuple[int, int, bytes]:
    return anchor.position, anchor.epoch, anchor.chain


def _published(anchor: Anchor) -> _Published:
    return _Published(
        position=anchor.position,
        epoch=anchor.epoch,
        hash=anchor.chain.hex(),
        first=anchor.first.hex(),
        at_us=anchor.at_us,
        key=anchor.key,
        signature=base64.b64encode(anchor.signature).decode(),
    )


def _anchor(published: _Published) -> Anchor:
    return Anchor(
        position=Position(published.position),
        epoch=Epoch(published.epoch),
        chain=bytes.fromhex(published.hash),
        first=bytes.fromhex(published.first),
        at_us=published.at_us,
        key=published.key,
        signature=base64.b64decode(published.signature, validate=True),
    )
