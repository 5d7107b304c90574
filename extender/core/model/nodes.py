"""Nodes as the planner sees them, the levels of their topology, and what groups ask of them: constraints and wishes, of whatever source."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from extender.core.model.ids import NodeName
from extender.core.model.object_identity import changed_keys
from extender.core.model.pods import TaintEffect

# last words of topology keys, the widest first; words in one row are of one width
_PLACES = (
    ("region",),
    ("zone", "az", "failure-domain"),
    ("datacenter", "dc", "site", "building"),
    ("hall", "row"),
    ("superpod", "superblock", "spine"),
    ("block", "pod", "cell"),
    ("rack", "leaf", "switch", "tor", "cabinet"),
    ("host", "hostname", "node"),
)
WIDTH = {word: rank for rank, words in enumerate(_PLACES) for word in words}
# How a word of the last part of a label key ends that names a level: `gce-topology-subblock`, `rdma.hpc_island_id`,
# `network-node-layer-1`, `gpu.clique`. A single node is no level.
_LEVEL_WORDS = WIDTH.keys() - {*_PLACES[-1]} | {"subblock", "island", "layer", "clique"}
_STANDARD = "topology.kubernetes.io/"
# taints of a node whose kubelet does not answer, or reports that it is not ready
SILENT = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})
CORDON = "node.kubernetes.io/unschedulable"
SYSTEM_TAINTS = "node.kubernetes.io/"  # of kube-controller-manager
# Taints by which operators announce that they drain a node; docs/how-to/drain.md has the source of each.
DRAIN_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "medik8s.io/drain",
    "cloud.google.com/impending-node-termination",
    "baremetal.cluster.gke.io/maintenance",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
    CORDON,
)
_NO_NAME = re.compile(r"(?:[-_.](?:id|\d+))+$")


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint; only the effects NoSchedule and NoExecute exclude pods."""

    key: str
    value: str = ""
    effect: TaintEffect = "NoSchedule"


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node; `allocatable` in the units of `PodShape.requests`."""

    name: NodeName
    uid: str = ""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}
    deleting: bool = False


class _SchedulableNode(Protocol):
    @property
    def unschedulable(self) -> bool: ...

    @property
    def taints(self) -> tuple[Taint, ...]: ...


def takes_pods(row: _SchedulableNode) -> bool:
    """Return whether a node is neither cordoned nor marked as unfit by kube-controller-manager."""
    if not row.taints:
        return not row.unschedulable
    return not row.unschedulable and not any(
        taint.key.startswith(SYSTEM_TAINTS) and taint.effect != "PreferNoSchedule"
        for taint in row.taints
    )


def drain_announced(node: Node) -> str:
    """Return the taint by which the drain of a node is announced, that of a cordon also without it; empty: none is."""
    keys = {taint.key for taint in node.taints} | ({CORDON} if node.unschedulable else set())
    return next((key for key in DRAIN_TAINTS if key in keys), "")


def names_level(key: str) -> bool:
    """Return whether a label key names a level of the topology by the last word of its name."""
    word = _NO_NAME.sub("", key.rpartition("/")[2].lower())
    return word in _LEVEL_WORDS or re.split(r"[-_.]", word)[-1] in _LEVEL_WORDS


class TopologyLevels:
    """The levels of the nodes of a view; they are counted again only when the labels of nodes change."""

    def __init__(self) -> None:
        self._nodes: Mapping[NodeName, Node] = {}
        # with the same labels, and in one order for all of `_values`
        self._counted: Mapping[NodeName, Node] = {}
        self._named: frozenset[str] | None = None
        self._values: dict[str, list[str | None]] = {}
        self._levels: dict[frozenset[str], tuple[str, ...]] = {}

    def of(self, nodes: Mapping[NodeName, Node], keys: Collection[str] = ()) -> tuple[str, ...]:
        """Return the topology keys of nodes, narrowest first: that with most domains, then by name.

        Of keys that divide the nodes alike there is one, that of Kubernetes if it is among them, else the first by name. A
        key is left out that has each node in a domain of its own, or all in one.

        Args:
            nodes: All nodes of the view.
            keys: Label keys that are levels, beside those that `names_level`.
        """
        self._follow(nodes)
        if self._named is None:
            labels = {key for node in nodes.values() for key in node.labels}
            self._named = frozenset(filter(names_level, labels))
        chosen = self._named.union(keys)
        if chosen not in self._levels:
            self._levels[chosen] = self._ordered(chosen)
        return self._levels[chosen]

    def _follow(self, nodes: Mapping[NodeName, Node]) -> None:
        before, self._nodes = self._nodes, nodes
        if any(
            _labels_of(before.get(name)) != _labels_of(nodes.get(name))
            for name in changed_keys(before, nodes)
        ):
            self._counted, self._named = nodes, None
            self._values, self._levels = {}, {}

    def _ordered(self, keys: Collection[str]) -> tuple[str, ...]:
        counts: dict[str, int] = {}
        for key in sorted(keys, key=lambda key: (not key.startswith(_STANDARD), key)):
            if key not in self._values:
                self._values[key] = [node.labels.get(key) for node in self._counted.values()]
            values = self._values[key]
            with_label = len(values) - values.count(None)
            domains = len({*values} - {None})
            is_level = domains < with_label and len({*values}) > 1
            if is_level and not any(
                domains == count and _divide_alike(values, self._values[other])
                for other, count in counts.items()
            ):
                counts[key] = domains
        return tuple(sorted(counts, key=lambda key: (-counts[key], key)))


def _labels_of(node: Node | None) -> Mapping[str, str] | None:
    return node.labels if node is not None else None


def _divide_alike(values: list[str | None], others: list[str | None]) -> bool:
    pairs = {*zip(values, others, strict=True)}
    return len(pairs) == len({*values}) == len({*others})


PREFERRED_MAX = 4  # preferred topology keys of a group
NEAR_MAX = 4  # entries of `near` of a group
SLICES_MAX = 3  # levels of slices of a leaf
UNBALANCED = "is true without preferred, so there are no domains to balance; name preferred keys, or leave it out"

# Which other trees: those of the same TreeProfile (all without one, if it has none), of the same namespace, or all.
ExclusiveScope = Literal["Profile", "Namespace", "Cluster"]
# What becomes of a running gang when no node of the domain of a group can take its lost members (D26)
LostMembers = Literal["Wait", "Widen", "GiveUp"]


class ExclusiveDomain(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The topology key of which a group shares its domain with no other tree of a scope, nor with a group that asks for the same."""

    key: str
    scope: ExclusiveScope = "Profile"
    # pods that request it are not shared with either, whether they belong to a tree or not
    resource: str = ""


class NearGroup(msgspec.Struct, frozen=True, gc=False):
    """A wish: as few pairs of pods as possible, one of a group and one of this one, in different domains of a key."""

    group: str  # name of a group of the same tree
    key: str


class SliceLevel(msgspec.Struct, frozen=True, gc=False):
    """So many pods of a leaf each in one domain of a key."""

    key: str
    size: int


class SchedulingConstraints(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """What a group asks of the nodes of its pods, named as in the API; `preferred`, `balanced` and `near` are wishes, which refuse no placement."""

    topology: tuple[str, ...] = ()  # node labels of which it is in one domain; our kinds have one
    # node labels of which it should be in one domain, narrowest first
    preferred: tuple[str, ...] = ()
    balanced: bool = False  # shares of its preferred domains are as equal as can be
    slices: tuple[SliceLevel, ...] = ()  # of a leaf, the largest first
    exclusive: ExclusiveDomain | None = None
    near: tuple[NearGroup, ...] = ()
    lost_members: LostMembers = "Wait"

    @property
    def topology_keys(self) -> tuple[str, ...]:
        """Return the node labels that it names."""
        near = (entry.key for entry in self.near)
        slices = (entry.key for entry in self.slices)
        return (*self.domain_keys, *self.preferred, *near, *slices)

    @property
    def domain_keys(self) -> tuple[str, ...]:
        """Return the node labels of which the group must be in one domain."""
        exclusive = (self.exclusive.key,) if self.exclusive is not None else ()
        return tuple(dict.fromkeys((*self.topology, *exclusive)))


def by_size(levels: Iterable[SliceLevel]) -> tuple[SliceLevel, ...]:
    """Return the levels of slices, the largest first."""
    return tuple(sorted(levels, key=lambda level: -level.size))


def slices_problem(levels: Sequence[SliceLevel]) -> str:
    """Return what is wrong with the levels of slices, and what would help; empty: nothing."""
    if len(levels) > SLICES_MAX:
        return f"{len(levels)} levels, at most {SLICES_MAX} are possible; leave some out"
    for level in levels:
        if not level.key:
            return "an entry has no key; name a node label, such as net/rack"
        if level.size < 1:
            return (
                f"the size of {level.key} is {level.size}; write a number of at least 1, such as 4"
            )
    if len({level.key for level in levels}) < len(levels):
        return f"{', '.join(level.key for level in levels)}: a key is there twice; name each once"
    for outer, inner in itertools.pairwise(by_size(levels)):
        if outer.size % inner.size or outer.size == inner.size:
            return (
                f"{outer.size} of {outer.key} is no larger multiple of {inner.size} of {inner.key}; "
                f"write a multiple, such as {(outer.size // inner.size + 1) * inner.size}"
            )
    return ""
