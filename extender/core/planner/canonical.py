"""A request as bytes, cut so that decisions can share what did not change.

The nodes are spread over fixed buckets by a hash of their name, and what rarely changes (labels,
taints, allocatable) is kept apart from what changes with every pod (free room). One pod more or less
on a node therefore alters one part of some forty rows; everything else is stored already.
Equal requests give equal bytes, on any machine.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Sequence

import msgspec

from extender.core.ids import NodeName
from extender.core.nodes import Taint
from extender.core.planner.placement import PlanNode, PlanRequest
from extender.core.pods import HostPort

BUCKETS = 128  # 5,000 nodes: 39 rows each, some 4 kB of room and 8 kB of labels
PARTS = 2 * BUCKETS  # first the fixed halves of all buckets, then the room


class Fixed(msgspec.Struct, frozen=True, array_like=True):
    """What rarely changes about a node."""

    name: NodeName
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: dict[str, int]


class Room(msgspec.Struct, frozen=True, array_like=True):
    """What every pod changes about a node."""

    name: NodeName
    free: dict[str, int]
    host_ports: tuple[HostPort, ...]
    reserved: bool


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """A request in storable pieces."""

    head: bytes  # everything but the nodes
    parts: tuple[bytes, ...]  # `PARTS` of them, JSON arrays of rows sorted by name
    digest: str  # SHA-256 of the whole, hex


_ENCODER = msgspec.json.Encoder(order="deterministic")
_HEAD = msgspec.json.Decoder(PlanRequest)
_FIXED = msgspec.json.Decoder(list[Fixed])
_ROOM = msgspec.json.Decoder(list[Room])


def bucket_of(name: str) -> int:
    """Give the bucket of a node; the same on every machine and for ever.

    >>> bucket_of("node-a")
    43
    """
    return zlib.crc32(name.encode()) % BUCKETS


def encode(request: PlanRequest) -> Encoded:
    """Encode a request.

    Raises:
        ValueError: The nodes are not sorted by name, or a name occurs twice.
    """
    names = [n.name for n in request.nodes]
    if any(a >= b for a, b in itertools.pairwise(names)):
        raise ValueError("nodes must be sorted by name, each name once")
    fixed: list[list[Fixed]] = [[] for _ in range(BUCKETS)]
    room: list[list[Room]] = [[] for _ in range(BUCKETS)]
    for n in request.nodes:
        bucket = bucket_of(n.name)
        fixed[bucket].append(Fixed(n.name, n.labels, n.taints, n.unschedulable, n.allocatable))
        room[bucket].append(Room(n.name, n.free, n.host_ports, n.reserved))
    head = _ENCODER.encode(msgspec.structs.replace(request, nodes=()))
    parts = (
        *(_ENCODER.encode(rows) for rows in fixed),
        *(_ENCODER.encode(rows) for rows in room),
    )
    return Encoded(head=head, parts=parts, digest=digest_of(head, parts))


def digest_of(head: bytes, parts: Sequence[bytes]) -> str:
    """Hash the pieces one by one and then their hashes, so that no cut can be moved unnoticed."""
    whole = hashlib.sha256(hashlib.sha256(head).digest())
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def decode(head: bytes, parts: Sequence[bytes]) -> PlanRequest:
    """Put a request together again; `decode(e.head, e.parts)` equals what `e` was made from.

    Raises:
        ValueError: There are not `PARTS` parts, or both halves of a bucket do not name the same nodes.
        msgspec.ValidationError: A piece is not what it should be.
    """
    if len(parts) != PARTS:
        raise ValueError(f"{len(parts)} parts, {PARTS} expected")
    nodes: list[PlanNode] = []
    for bucket in range(BUCKETS):
        rooms = _ROOM.decode(parts[BUCKETS + bucket])
        for f, r in zip(_FIXED.decode(parts[bucket]), rooms, strict=True):
            if f.name != r.name:
                raise ValueError(
                    f"bucket {bucket} names {f.name} in one half, {r.name} in the other"
                )
            nodes.append(
                PlanNode(
                    name=f.name,
                    labels=f.labels,
                    taints=f.taints,
                    unschedulable=f.unschedulable,
                    allocatable=f.allocatable,
                    free=r.free,
                    host_ports=r.host_ports,
                    reserved=r.reserved,
                )
            )
    nodes.sort(key=lambda n: n.name)
    return msgspec.structs.replace(_HEAD.decode(head), nodes=tuple(nodes))
