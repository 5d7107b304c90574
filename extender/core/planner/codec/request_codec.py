"""A plan request as canonical bytes, cut so that decisions share what did not change.

Nodes are assigned to fixed buckets by a hash of their name, and what rarely changes (labels, taints,
allocatable) is separate from what changes with every pod (free capacity). One pod more or less on a node
therefore changes one part of about forty rows; all other parts are stored already. The parts of the units that
can be evicted follow those of the nodes (`victim_codec`). Equal requests give equal bytes, on any machine.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Generator, Sequence

import msgspec
from msgspec import UNSET

from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.model.object_identity import same_objects
from extender.core.model.pods import HostPort
from extender.core.planner.codec.victim_codec import from_parts, to_parts, units_in
from extender.core.planner.plan_types import (
    DecisionInput,
    Evictable,
    PlanNode,
    PlanRequest,
    digest_of_hashes,
    walk,
)

BUCKETS = 128  # with 5,000 nodes 39 rows each, about 4 kB of free capacity and 8 kB of labels
PARTS = 2 * BUCKETS  # first the static rows of all buckets, then the free capacity


class StaticNodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What rarely changes about a node."""

    name: NodeName
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: dict[str, int]


class FreeCapacityRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What changes with every pod on a node."""

    name: NodeName
    free: dict[str, int]
    host_ports: tuple[HostPort, ...]
    reserved: (
        bool | dict[str, int]
    )  # False: nothing; True: of older inputs, an amount that is not known


class InputSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a stored input, in numbers."""

    nodes: int
    groups: int = 0  # of the tree
    waiting: int = 0  # members without a node
    bound: int = 0  # members with a node
    rejected_nodes: int = 0  # node rejections
    rules: int = 0  # rules between pods that concern a waiting member
    evictable: int = 0  # disruption units of lower priority
    evictable_pods: int = 0  # pods of these units
    budget: int = 0  # search nodes


_ENCODER = msgspec.json.Encoder(order="deterministic")
_HEAD = msgspec.json.Decoder(PlanRequest)
_FIXED = msgspec.json.Decoder(list[StaticNodeRow])
_CAPACITY = msgspec.json.Decoder(list[FreeCapacityRow])
_ROWS = msgspec.json.Decoder(list[msgspec.Raw])


def bucket_of(name: str) -> int:
    """Return the bucket of a node. Must never change: stored inputs depend on it.

    >>> bucket_of("node-a")
    43
    """
    return zlib.crc32(name.encode()) % BUCKETS


class Encoder:
    """Encodes one request after another; reuses the parts of nodes that did not change."""

    def __init__(self) -> None:
        self._nodes: tuple[PlanNode, ...] = ()
        self._buckets: list[list[int]] = []  # positions of the nodes of each bucket
        self._bucket: list[int] = []  # bucket of each position
        self._parts: list[bytes] = []
        self._hashes: list[bytes] = []

    def encode(self, request: PlanRequest) -> DecisionInput:
        """Encode a request.

        Raises:
            ValueError: The nodes are not sorted by name, or a name occurs twice; or units, their pods or
                terminating pods are not sorted.
        """
        if request.nodes is not self._nodes or not self._parts:
            self._take(request.nodes)
        source, bare, of_units = request.evictable, None, []
        if source is not None:
            bare, of_units = _bare(source), list(to_parts(source))
        head = _ENCODER.encode(msgspec.structs.replace(request, nodes=(), evictable=bare))
        hashes = (_sha256(head), *self._hashes, *map(_sha256, of_units))
        parts = (*self._parts, *of_units)
        return DecisionInput(digest=digest_of_hashes(hashes), head=head, parts=parts, hashes=hashes)

    def _take(self, nodes: tuple[PlanNode, ...]) -> None:
        before, self._nodes = self._nodes, ()  # after an error nothing is reused
        pairs = zip(before, nodes, strict=False)
        changed = [i for i, (a, b) in enumerate(pairs) if a is not b]
        same_names = len(before) == len(nodes) and all(
            before[i].name == nodes[i].name for i in changed
        )
        if not same_names or not self._parts:
            self._begin(nodes)
            stale = set(range(PARTS))
        else:
            stale = {BUCKETS + self._bucket[i] for i in changed}
            stale |= {self._bucket[i] for i in changed if _fixed(before[i]) != _fixed(nodes[i])}
        for part in stale:
            make = _fixed if part < BUCKETS else _capacity_row
            rows = [make(nodes[i]) for i in self._buckets[part % BUCKETS]]
            self._parts[part] = _ENCODER.encode(rows)
            self._hashes[part] = _sha256(self._parts[part])
        self._nodes = nodes

    def _begin(self, nodes: tuple[PlanNode, ...]) -> None:
        if any(a.name >= b.name for a, b in itertools.pairwise(nodes)):
            raise ValueError("nodes must be sorted by name, each name once")
        self._bucket = [bucket_of(n.name) for n in nodes]
        self._buckets = [[] for _ in range(BUCKETS)]
        for i, bucket in enumerate(self._bucket):
            self._buckets[bucket].append(i)
        self._parts, self._hashes = [b""] * PARTS, [b""] * PARTS


def _bare(source: Evictable) -> Evictable:
    return msgspec.structs.replace(
        source, units=(), shapes=(), gangs=(), budgets=(), going=(), dependents=UNSET
    )


def _sha256(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()


def _fixed(n: PlanNode) -> StaticNodeRow:
    return StaticNodeRow(n.name, n.labels, n.taints, n.unschedulable, n.allocatable)


def _capacity_row(n: PlanNode) -> FreeCapacityRow:
    return FreeCapacityRow(n.name, n.free, n.host_ports, n.reserved or False)


def encode(request: PlanRequest) -> DecisionInput:
    """Return the encoding of a single request; see `Encoder.encode`."""
    return Encoder().encode(request)


def digest_of(head: bytes, parts: Sequence[bytes]) -> str:
    """Return the hash over the hashes of head and parts, so that it depends on where the parts are cut."""
    return digest_of_hashes(map(_sha256, (head, *parts)))


class Decoder:
    """Decodes one request after another; parts with equal bytes give the same row objects."""

    def __init__(self) -> None:
        self._decoded: list[tuple[bytes, bytes, list[PlanNode]]] = [(b"", b"", [])] * BUCKETS
        self._nodes: tuple[PlanNode, ...] = ()

    def decode(self, head: bytes, parts: Sequence[bytes]) -> PlanRequest:
        """Return the request of which head and parts are the encoding.

        Raises:
            ValueError: Parts are missing or do not match.
            msgspec.ValidationError: A piece is not what it should be.
        """
        if len(parts) < PARTS:
            raise ValueError(f"{len(parts)} parts, at least {PARTS} expected")
        decoded = list(self._decoded)
        for bucket, (fixed, capacity, _) in enumerate(self._decoded):
            if (parts[bucket], parts[BUCKETS + bucket]) != (fixed, capacity):
                rows = _rows(bucket, parts[bucket], parts[BUCKETS + bucket])
                decoded[bucket] = (parts[bucket], parts[BUCKETS + bucket], rows)
        if not same_objects(decoded, self._decoded):
            every = [row for _, _, rows in decoded for row in rows]
            self._nodes = tuple(sorted(every, key=lambda n: n.name))
            self._decoded = decoded
        request = msgspec.structs.replace(_HEAD.decode(head), nodes=self._nodes)
        bare = request.evictable
        if bare is None:
            if len(parts) > PARTS:
                raise ValueError("parts about units beside a head that wants none")
            return request
        if bare != _bare(bare):
            raise ValueError("a head that has itself what belongs into the parts about units")
        return msgspec.structs.replace(request, evictable=from_parts(bare, parts[PARTS:]))


def _rows(bucket: int, fixed: bytes, capacity: bytes) -> list[PlanNode]:
    rows = []
    for f, r in zip(_FIXED.decode(fixed), _CAPACITY.decode(capacity), strict=True):
        if f.name != r.name:
            raise ValueError(f"bucket {bucket} names {f.name} in one half, {r.name} in the other")
        rows.append(
            PlanNode(
                name=f.name,
                labels=f.labels,
                taints=f.taints,
                unschedulable=f.unschedulable,
                allocatable=f.allocatable,
                free=r.free,
                host_ports=r.host_ports,
                # what an older input has no amounts of is named neither as a cause nor as a help
                reserved={} if isinstance(r.reserved, bool) else r.reserved,
            )
        )
    return rows


def decode(head: bytes, parts: Sequence[bytes]) -> PlanRequest:
    """Return a single decoded request; see `Decoder.decode`."""
    return Decoder().decode(head, parts)


def summarize(head: bytes, parts: Sequence[bytes]) -> Generator[None, None, InputSummary]:
    """Return the numbers of an encoded request without decoding all of it.

    A generator, because there are hundreds of parts: it yields after each of them, so that the caller can
    yield to the event loop.

    Raises:
        ValueError: Parts are missing.
        msgspec.ValidationError: A piece is not what it should be.
    """
    if len(parts) < PARTS:
        raise ValueError(f"{len(parts)} parts, at least {PARTS} expected")
    request = _HEAD.decode(head)
    nodes = 0
    for part in parts[:BUCKETS]:  # the other part of a bucket has the same nodes
        nodes += len(_ROWS.decode(part))
        yield
    source = request.evictable
    pods: dict[object, int] = {}  # of each unit
    for unit in source.units if source is not None else ():  # the first format has them in the head
        pods[unit.kind, unit.name, unit.uid] = len(unit.pods)
    for part in parts[PARTS:]:
        for unit_id, count in units_in(part):
            pods[unit_id] = pods.get(unit_id, 0) + count
        yield
    groups = walk(request.root)
    return InputSummary(
        nodes=nodes,
        groups=len(groups),
        waiting=sum(len(group.members) for group in groups),
        bound=sum(len(group.bound) for group in groups),
        rejected_nodes=len(request.rejected_nodes),
        rules=len(request.rules),
        evictable=len(pods),
        evictable_pods=sum(pods.values()),
        budget=request.budget,
    )
