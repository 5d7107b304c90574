"""What the preempt verb chooses among, as values and as bytes, so that its decision can be made again.

The bytes are a head, which tells of the pod that asks, and parts that decisions share (`planner/cuts`):
offers, units and trees, each in the order of their names. Nothing here decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from extender.core.log.events import GroupRecord
from extender.core.model.ids import NodeName, PodUid
from extender.core.planner.codec.content_defined_chunks import cut
from extender.core.planner.codec.request_codec import EncodedRequest, InputSummary, digest_of


class OfferedPod(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pod that would go."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    group: str  # name of its leaf, empty outside of groups
    priority: int
    created_us: int


class OfferedUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A disruption unit with a pod on some node that is offered: all of it would go."""

    kind: str  # CompositePodGroup | PodGroup | Pod
    path: str  # namespace/name
    uid: str
    priority: int
    tree: str  # of `OfferedTree.root`, whose running members these are; empty: of none
    pods: tuple[OfferedPod, ...]  # sorted by pod

    @property
    def name(self) -> str:
        """Give `Kind/namespace/name`."""
        return f"{self.kind}/{self.path}"


class OfferedTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree that would lose members."""

    root: str  # Kind/namespace/name
    groups: tuple[GroupRecord, ...]  # root first
    running: dict[str, int]  # members that run now, by the name of their leaf


class NodeOffer(msgspec.Struct, frozen=True, array_like=True):
    """A node of kube-scheduler's, with the units that its victims belong to."""

    node: NodeName
    violations: int  # of PodDisruptionBudgets, as kube-scheduler has counted
    units: tuple[str, ...]  # by name, sorted
    left: dict[str, int] | None
    """What there would be for the pod of each resource that it asks for, beside all that is held there against it.

    None: nothing is held, kube-scheduler alone judges.
    """


class PreemptVerbInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the choice of a node depends on."""

    pod: str  # namespace/name of the preemptor
    uid: PodUid
    priority: int
    requests: dict[str, int]
    offers: tuple[NodeOffer, ...] = ()  # sorted by node
    units: tuple[OfferedUnit, ...] = ()  # sorted by name
    trees: tuple[OfferedTree, ...] = ()  # sorted by root


class _Offers(msgspec.Struct, frozen=True, array_like=True, tag="offers"):
    rows: tuple[NodeOffer, ...]


class _Units(msgspec.Struct, frozen=True, array_like=True, tag="offered-units"):
    rows: tuple[OfferedUnit, ...]


class _Trees(msgspec.Struct, frozen=True, array_like=True, tag="offered-trees"):
    rows: tuple[OfferedTree, ...]


_Part: TypeAlias = _Offers | _Units | _Trees

_ENCODER = msgspec.json.Encoder(order="deterministic")
_HEAD = msgspec.json.Decoder(PreemptVerbInput)
_PART: msgspec.json.Decoder[_Part] = msgspec.json.Decoder(_Part)


def encode(question: PreemptVerbInput) -> EncodedRequest:
    """Encode a question in storable pieces."""
    head = _ENCODER.encode(msgspec.structs.replace(question, offers=(), units=(), trees=()))
    parts = tuple(map(_ENCODER.encode, _parts(question)))
    return EncodedRequest(
        head=head,
        parts=parts,
        hashes=tuple(hashlib.sha256(piece).digest() for piece in (head, *parts)),
        digest=digest_of(head, parts),
    )


def _parts(question: PreemptVerbInput) -> Iterator[_Part]:
    yield from (_Offers(tuple(rows)) for rows in cut(question.offers, lambda o: o.node))
    yield from (_Units(tuple(rows)) for rows in cut(question.units, lambda u: u.name))
    yield from (_Trees(tuple(rows)) for rows in cut(question.trees, lambda t: t.root))


def decode(head: bytes, parts: Sequence[bytes]) -> PreemptVerbInput:
    """Put a question together again; `decode(e.head, e.parts)` equals what `e` was made from.

    Raises:
        msgspec.ValidationError: A piece is not what it should be.
    """
    offers: list[NodeOffer] = []
    units: list[OfferedUnit] = []
    trees: list[OfferedTree] = []
    for part in map(_PART.decode, parts):
        match part:
            case _Offers():
                offers += part.rows
            case _Units():
                units += part.rows
            case _Trees():
                trees += part.rows
    return msgspec.structs.replace(
        _HEAD.decode(head), offers=tuple(offers), units=tuple(units), trees=tuple(trees)
    )


def summarize(head: bytes, parts: Sequence[bytes]) -> Generator[None, None, InputSummary]:
    """Count what is in an encoded question: the nodes offered, and the units of lower priority on them.

    Yields after each part, as `canonical.summarize`, and returns the numbers.

    Raises:
        msgspec.ValidationError: A piece is not what it should be.
    """
    question = _HEAD.decode(head)
    nodes = evictable = pods = 0
    for part in map(_PART.decode, parts):
        match part:
            case _Offers():
                nodes += len(part.rows)
            case _Units():
                lower = [unit for unit in part.rows if unit.priority < question.priority]
                evictable += len(lower)
                pods += sum(len(unit.pods) for unit in lower)
            case _Trees():
                pass
        yield
    return InputSummary(nodes=nodes, waiting=1, evictable=evictable, evictable_pods=pods)
