"""The input of the preempt verb as values and as bytes, so that its decision can be replayed.

The bytes are a head with the preemptor, and parts that decisions share (`planner/codec/victim_codec`):
offers, units and trees, each in the order of their names. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import msgspec

from extender.core.log.events import GroupRecord
from extender.core.model.ids import NodeName, PodUid
from extender.core.planner.codec.request_codec import InputSummary
from extender.core.planner.codec.victim_codec import cut
from extender.core.planner.plan_types import DecisionInput


class OfferedPod(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pod that would be evicted."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    group: str  # name of its leaf, empty outside of groups
    priority: int
    created_us: int
    lost_min: int = 0  # GPU-minutes of work that its eviction loses, at the minute of the call


class OfferedUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A disruption unit with a pod on an offered node: all of its pods would be evicted."""

    kind: str  # CompositePodGroup | PodGroup | Pod
    path: str  # namespace/name
    uid: str
    priority: int
    tree: str  # `OfferedTree.root` of the tree that loses these members; empty: of no tree
    pods: tuple[OfferedPod, ...]  # sorted by pod

    @property
    def name(self) -> str:
        """Return `Kind/namespace/name`."""
        return f"{self.kind}/{self.path}"


class OfferedTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree of which members would be evicted."""

    root: str  # Kind/namespace/name
    groups: tuple[GroupRecord, ...]  # root first
    running: dict[str, int]  # number of running members by the name of their leaf


class NodeOffer(msgspec.Struct, frozen=True, array_like=True):
    """A candidate of kube-scheduler, with the units of its victims."""

    node: NodeName
    violations: int  # of PodDisruptionBudgets, counted by kube-scheduler
    units: tuple[str, ...]  # by name, sorted
    left: dict[str, int] | None
    """What would be left for the pod of each requested resource, beside what is held there against it.

    None: nothing is held, kube-scheduler alone decides.
    """


class PreemptVerbInput(msgspec.Struct, frozen=True, kw_only=True):
    """All data that the choice of a node depends on."""

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


def encode(verb_input: PreemptVerbInput) -> DecisionInput:
    """Return an input encoded as head and parts."""
    head = _ENCODER.encode(msgspec.structs.replace(verb_input, offers=(), units=(), trees=()))
    return DecisionInput.of(head, tuple(map(_ENCODER.encode, _parts(verb_input))))


def _parts(verb_input: PreemptVerbInput) -> Iterator[_Part]:
    yield from (_Offers(tuple(rows)) for rows in cut(verb_input.offers, lambda o: o.node))
    yield from (_Units(tuple(rows)) for rows in cut(verb_input.units, lambda u: u.name))
    yield from (_Trees(tuple(rows)) for rows in cut(verb_input.trees, lambda t: t.root))


def decode(head: bytes, parts: Sequence[bytes]) -> PreemptVerbInput:
    """Return the input from head and parts; the inverse of `encode`.

    Raises:
        msgspec.ValidationError: The head or a part has another shape.
    """
    rows: dict[type, tuple[object, ...]] = {_Offers: (), _Units: (), _Trees: ()}
    for part in map(_PART.decode, parts):
        rows[type(part)] += part.rows
    offers, units, trees = rows.values()
    return msgspec.structs.replace(_HEAD.decode(head), offers=offers, units=units, trees=trees)


def summarize(head: bytes, parts: Sequence[bytes]) -> Generator[None, None, InputSummary]:
    """Return the number of offered nodes, and of units of lower priority on them, in an encoded input.

    Yields after each part, as `request_codec.summarize`, and returns the numbers at the end.

    Raises:
        msgspec.ValidationError: The head or a part has another shape.
    """
    verb_input = _HEAD.decode(head)
    nodes = evictable = pods = 0
    for part in map(_PART.decode, parts):
        if isinstance(part, _Offers):
            nodes += len(part.rows)
        elif isinstance(part, _Units):
            lower = [unit for unit in part.rows if unit.priority < verb_input.priority]
            evictable += len(lower)
            pods += sum(len(unit.pods) for unit in lower)
        yield
    return InputSummary(nodes=nodes, waiting=1, evictable=evictable, evictable_pods=pods)
