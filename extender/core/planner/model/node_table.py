"""Nodes as arrays: free capacity, labels, taints, domains, how many pods fit on each node, and the static filters: which nodes a pod may use.

Owns the only conversion of `PlanNode` objects to numpy. A `NodeTable` depends on nothing but the nodes, so
a caller that plans several trees makes it once and calls `renewed` when a few nodes have changed. Columns
are computed on first use.

Every filter is exactly that of kube-scheduler (K70, K71), and does not read free capacity. Host ports are resource axes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from extender.core.model.errors import InvariantBroken
from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.model.pods import (
    HostPort,
    NodeSelector,
    NodeSelectorRequirement,
    PodShape,
    SelectorTerm,
    Toleration,
)
from extender.core.planner.plan_types import PlanNode, with_reserved_free

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

FIT_MAX = 1 << 30  # counts are limited to this so that sums over many nodes cannot overflow
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- "any address" in Kubernetes, not a socket
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_INT64 = 1 << 63


class Level:
    """The domains of a list of label keys: nodes with equal values of every key share a domain.

    Domains are numbered in the order of their values (as text), outer key first.
    """

    __slots__ = ("_order", "_start", "count", "domain", "keys", "values")

    def __init__(self, keys: tuple[str, ...], domain: Ints, values: list[tuple[str, ...]]) -> None:
        self.keys = keys
        self.domain = domain  # per node, -1: lacks one of the keys, belongs to no domain
        self.values = values  # per domain, one text per key
        self.count = len(values)
        self._order: Ints | None = None
        self._start: Ints | None = None

    def members(self, domain: int) -> Ints:
        """Return the indexes of the nodes of a domain, ascending."""
        if self._order is None or self._start is None:
            self._order = np.argsort(self.domain, kind="stable").astype(np.int64)
            self._start = np.searchsorted(self.domain[self._order], np.arange(self.count + 1))
        return self._order[int(self._start[domain]) : int(self._start[domain + 1])]

    def total(self, per_node: Ints) -> Ints:
        """Return the sum of a per-node number over each domain, shape (domains,)."""
        if self.count == 1 and not self.keys:
            return np.array([int(per_node.sum())], dtype=np.int64)
        in_domain = self.domain >= 0
        # bincount adds in float64: exact, the sums stay below 2**53
        sums = np.bincount(
            self.domain[in_domain], weights=per_node[in_domain], minlength=self.count
        )
        return sums.astype(np.int64)


@dataclass(slots=True)
class _LabelColumns:
    """What was computed of the labels of nodes; tables of nodes with equal labels share it."""

    codes: dict[str, tuple[Ints, list[str]]] = field(default_factory=dict)
    levels: dict[tuple[str, ...], Level] = field(default_factory=dict)
    ups: dict[tuple[tuple[str, ...], tuple[str, ...]], Ints] = field(default_factory=dict)
    inside: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Ints]] = field(default_factory=dict)
    own: dict[str, Level] = field(default_factory=dict)
    outer: dict[tuple[str, str], Ints | None] = field(default_factory=dict)
    divides: dict[str, bool] = field(default_factory=dict)


class NodeTable:
    """A set of nodes as columns, one row per node; columns are computed on first use and kept."""

    def __init__(
        self, nodes: tuple[PlanNode, ...], *, index: dict[NodeName, int] | None = None
    ) -> None:
        """Create the table without columns.

        Args:
            nodes: Each node once: requirements on a node's name are matched with one row only.
            index: Node name -> position of exactly these names in this order; None computes it.

        Raises:
            InvariantBroken: A node occurs more than once.
        """
        self.nodes = nodes
        self.size = len(nodes)
        if index is not None:
            self.index = index
        elif len({node.name for node in nodes}) != self.size:
            name = next(node.name for i, node in enumerate(nodes) if self.index[node.name] != i)
            raise InvariantBroken(f"more than one row of node {name} in {self.size} rows of nodes")
        self.is_empty = False  # no pod is counted
        self._labels = _LabelColumns()
        self._offered: dict[str, Ints] = {}
        self._free: dict[str, Ints] = {}
        self._stacked: dict[Hashable, Ints] = {}
        self._taints: tuple[Ints, list[tuple[Taint, ...]]] | None = None
        self._cordoned: Bools | None = None
        self._reserved: Bools | None = None

    @cached_property
    def index(self) -> dict[NodeName, int]:
        """Return node name -> position; most searches ask for none."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def renewed(self, nodes: tuple[PlanNode, ...]) -> NodeTable:
        """Return the table of other nodes, with every column that is the same for both.

        Cheap when most of `nodes` are the same objects; correct in any case.
        """
        if nodes is self.nodes:
            return self
        if len(nodes) != self.size:
            return NodeTable(nodes)
        changed = [i for i, (a, b) in enumerate(zip(self.nodes, nodes, strict=True)) if a is not b]
        pairs = [(self.nodes[i], nodes[i]) for i in changed]
        if len(changed) > self.size // 4 or any(a.name != b.name for a, b in pairs):
            return NodeTable(nodes)
        fresh = NodeTable(nodes, index=self.index)
        if all(a.labels == b.labels for a, b in pairs):
            fresh._labels = self._labels
        if all(a.taints == b.taints for a, b in pairs):
            fresh._taints = self._taints
        if all(a.unschedulable == b.unschedulable for a, b in pairs):
            fresh._cordoned = self._cordoned
        if all(a.allocatable == b.allocatable for a, b in pairs):
            fresh._offered = self._offered
        for resource, column in self._free.items():
            renewed = column.copy()
            renewed[changed] = _free_on([node for _, node in pairs], resource)[0]
            fresh._free[resource] = renewed
        return fresh

    def emptied(self) -> NodeTable:
        """Return the table of these nodes as if no pod ran: all that they offer is free."""
        empty = NodeTable(self.nodes, index=self.index)
        empty.is_empty, empty._labels, empty._offered = True, self._labels, self._offered
        empty._taints, empty._cordoned = self._taints, self._cordoned
        return empty

    def extended(self, new: tuple[PlanNode, ...]) -> NodeTable:
        """Return the table of these nodes and of some new ones after them, without computing columns again where possible."""
        index = dict(self.index)
        index.update((node.name, self.size + i) for i, node in enumerate(new))
        if len(index) != self.size + len(new):
            return NodeTable(self.nodes + new)  # raises
        longer = NodeTable(self.nodes + new, index=index)
        for resource, column in self._free.items():
            longer._free[resource] = np.concatenate([column, _free_on(new, resource)[0]])
        for resource, column in self._offered.items():
            longer._offered[resource] = np.concatenate([column, _offered_by(new, resource)])
        if self._cordoned is not None:
            cordons = np.array([node.unschedulable for node in new], dtype=np.bool_)
            longer._cordoned = np.concatenate([self._cordoned, cordons])
        if self._taints is not None:
            numbers, lists = self._taints
            of_list = {taints: number for number, taints in enumerate(lists)}
            of_new = [of_list.setdefault(node.taints, len(of_list)) for node in new]
            joined = np.concatenate([numbers, np.array(of_new, dtype=np.int64)])
            longer._taints = (joined, list(of_list))
        for key, (codes, values) in self._labels.codes.items():
            number: dict[str | None, int] = {None: -1, **{v: i for i, v in enumerate(values)}}
            added = [node.labels.get(key) for node in new]
            if all(value in number for value in added):  # else the values get other numbers
                more = np.array([number[value] for value in added], dtype=np.int64)
                longer._labels.codes[key] = (np.concatenate([codes, more]), values)
        return longer

    def free(self, resource: str) -> Ints:
        """Return the free amount of a resource per node, never negative; 0 where `allocatable` does not name it."""
        if resource not in self._free and self.is_empty:
            self._free[resource] = np.maximum(self.offered(resource), 0)
        elif resource not in self._free:
            self._free[resource] = _free_on(self.nodes, resource)[0]
        return self._free[resource]

    def offered(self, resource: str) -> Ints:
        """Return the allocatable amount of a resource per node; 0 where `allocatable` does not name it."""
        if resource not in self._offered:
            self._offered[resource] = _offered_by(self.nodes, resource)
        return self._offered[resource]

    def stacked(self, names: tuple[str, ...], *, unreserved: bool = False) -> Ints:
        """Return the free amounts of some resources, shape (nodes, names); it is not changed.

        Args:
            unreserved: What is reserved for other trees is free, too.
        """
        if (names, unreserved) not in self._stacked:
            new = [name for name in names if name not in self._free and not self.is_empty]
            self._free.update(zip(new, _free_on(self.nodes if new else (), *new), strict=True))
            # each column is contiguous, since most operations read one
            columns = np.zeros((self.size, len(names)), dtype=np.int64, order="F")
            for at, name in enumerate(names):
                columns[:, at] = self.free(name)
                if unreserved:
                    columns[self.reserved(), at] = self._unreserved(name)
            columns.setflags(write=False)
            self._stacked[names, unreserved] = columns
        return self._stacked[names, unreserved]

    def _unreserved(self, resource: str) -> Ints:
        """Return what would be free on the nodes on which capacity is reserved for other trees."""
        nodes = (node for i, node in enumerate(self.nodes) if self.reserved()[i])
        return _free_on(list(map(with_reserved_free, nodes)), resource)[0]

    def label(self, key: str) -> tuple[Ints, list[str]]:
        """Return per node the number of its value (-1: no such label), and the values in order."""
        column = self._labels.codes.get(key)
        if column is None:
            first = defaultdict[str | None, int](count().__next__)  # in the order of the nodes
            codes = np.fromiter([first[n.labels.get(key)] for n in self.nodes], np.int64, self.size)
            values = sorted(v for v in first if v is not None)
            number: dict[str | None, int] = {None: -1, **{v: i for i, v in enumerate(values)}}
            sorted_number = np.array([number[v] for v in first], dtype=np.int64)
            column = self._labels.codes[key] = (sorted_number[codes], values)
        return column

    def own_domains(self, key: str) -> Level:
        """Return the domains of one key, in which a node without the label has one of its own: number of values + its row."""
        if key not in self._labels.own:
            codes, values = self.label(key)
            alone = len(values) + np.arange(self.size, dtype=np.int64)
            every: list[tuple[str, ...]] = [
                *((value,) for value in values),
                *((node.name,) for node in self.nodes),
            ]
            self._labels.own[key] = Level((key,), np.where(codes >= 0, codes, alone), every)
        return self._labels.own[key]

    def divides(self, key: str) -> bool:
        """Return whether some nodes have the same value of a key."""
        if key not in self._labels.divides:
            codes, values = self.label(key)
            self._labels.divides[key] = int((codes >= 0).sum()) > len(values)
        return self._labels.divides[key]

    def outer_domains(self, key: str, wider: str) -> Ints | None:
        """Return for each domain of one key (`own_domains`) that of a wider key which contains it; None: some are in several."""
        if (key, wider) not in self._labels.outer:
            inner, outer = self.own_domains(key).domain, self.own_domains(wider).domain
            of_inner = np.full(int(inner.max(initial=-1)) + 1, -1, dtype=np.int64)
            of_inner[inner] = outer
            nested = bool((of_inner[inner] == outer).all())
            self._labels.outer[key, wider] = of_inner if nested else None
        return self._labels.outer[key, wider]

    def level(self, keys: tuple[str, ...]) -> Level:
        """Return the domains of a list of keys; no keys: one domain with every node."""
        level = self._labels.levels.get(keys)
        if level is None:
            level = self._make_level(keys)
            self._labels.levels[keys] = level
        return level

    def up(self, keys: tuple[str, ...], prefix: tuple[str, ...]) -> Ints:
        """Return, for each domain of `keys`, the domain of `prefix` that contains it."""
        parents = self._labels.ups.get((keys, prefix))
        if parents is None:
            inner, outer = self.level(keys), self.level(prefix)
            parents = np.zeros(inner.count, dtype=np.int64)
            placed = inner.domain >= 0
            parents[inner.domain[placed]] = outer.domain[placed]
            self._labels.ups[keys, prefix] = parents
        return parents

    def inside(self, keys: tuple[str, ...], prefix: tuple[str, ...], outer: int) -> Ints:
        """Return the domains of `keys` that are in a domain of `prefix`, ascending."""
        domains = self._labels.inside.get((keys, prefix))
        if domains is None:
            parents = self.up(keys, prefix)
            order = np.argsort(parents, kind="stable")
            cuts = np.searchsorted(parents[order], np.arange(1, self.level(prefix).count))
            domains = self._labels.inside[keys, prefix] = np.split(order, cuts)
        return domains[outer]

    def _make_level(self, keys: tuple[str, ...]) -> Level:
        if not keys:
            return Level((), np.zeros(self.size, dtype=np.int64), [()])
        outer = self.level(keys[:-1])
        codes, values = self.label(keys[-1])
        width = max(len(values), 1)
        both = np.where((outer.domain >= 0) & (codes >= 0), outer.domain * width + codes, -1)
        kept, inverse = np.unique(both, return_inverse=True)
        domain = inverse.astype(np.int64).reshape(-1)
        if len(kept) and kept[0] == -1:
            kept, domain = kept[1:], domain - 1
        names = [(*outer.values[c // width], values[c % width]) for c in kept.tolist()]
        return Level(keys, domain, names)

    def taints(self) -> tuple[Ints, list[tuple[Taint, ...]]]:
        """Return per node the number of its taint list, and the distinct lists."""
        if self._taints is None:
            number = defaultdict[tuple[Taint, ...], int](count().__next__)
            codes = [number[n.taints] for n in self.nodes]
            self._taints = (np.fromiter(codes, np.int64, self.size), list(number))
        return self._taints

    def cordoned(self) -> Bools:
        """Return which nodes are marked unschedulable."""
        if self._cordoned is None:
            self._cordoned = np.fromiter([n.unschedulable for n in self.nodes], np.bool_, self.size)
        return self._cordoned

    def reserved(self) -> Bools:
        """Return of which nodes capacity is reserved for other trees."""
        if self._reserved is None:
            reserved = (bool(n.reserved) and not self.is_empty for n in self.nodes)
            self._reserved = np.fromiter(reserved, np.bool_, self.size)
        return self._reserved


class PodBounds:
    """How many pods of a mix of kinds fit on each node and in each domain, as long as nothing is placed; the arrays are not changed."""

    def __init__(self, free: Ints, requests: Ints, counts: Ints) -> None:
        """Begin; `counts`: pods of one kind that fit, shape (kinds, nodes)."""
        self._free = free
        self._requests = requests
        self._counts = counts
        self._per_node: dict[tuple[int, ...], Ints] = {}
        self._totals: dict[tuple[tuple[int, ...], tuple[str, ...] | str], Ints] = {}

    def per_node(self, kinds: Sequence[int]) -> Ints:
        """Return a bound per node on the pods of any mix of kinds; exact for equal requests."""
        mix = tuple(kinds)
        if mix not in self._per_node:
            self._per_node[mix] = self._bound(mix)
        return self._per_node[mix]

    def total(self, kinds: Sequence[int], level: Level) -> Ints:
        """Return that bound per domain of a level."""
        return self.total_by(kinds, level.keys, level.domain, level.count)

    def total_by(
        self, kinds: Sequence[int], key: tuple[str, ...] | str, domain: Ints, count: int = 0
    ) -> Ints:
        """Return that bound per domain.

        Args:
            key: A name for `domain`.
            domain: Per node; -1: none.
            count: Domains, at least; those after the last with a node may be left out.
        """
        mix = tuple(kinds)
        if (mix, key) not in self._totals:
            inside = domain >= 0
            pods = self.per_node(mix)[inside]
            # exact, as in `Level.total`
            sums = np.bincount(domain[inside], weights=pods, minlength=count)
            self._totals[mix, key] = sums.astype(np.int64)
        return self._totals[mix, key]

    def _bound(self, mix: tuple[int, ...]) -> Ints:
        if not mix:
            return np.zeros(len(self._free), dtype=np.int64)
        if len(mix) == 1:
            only: Ints = self._counts[mix[0]]
            return only
        kinds = list(mix)
        least = self._requests[kinds].min(axis=0)
        bound = np.full(len(self._free), FIT_MAX, dtype=np.int64)
        for axis in np.flatnonzero(least):
            bound = np.minimum(bound, self._free[:, axis] // int(least[axis]))
        bound = np.minimum(bound, self._counts[kinds].sum(axis=0))
        return np.where(self._counts[kinds].any(axis=0), bound, 0)


def _free_on(nodes: Sequence[PlanNode], *resources: str) -> list[Ints]:
    """Return a column of free amounts for each resource; each node is read once for all of them."""
    amounts = (n.free.get(r, 0) if r in n.allocatable else 0 for n in nodes for r in resources)
    by_node = np.fromiter(amounts, np.int64, len(nodes) * len(resources))
    return [*np.maximum(by_node.reshape(len(nodes), len(resources)).T, 0, order="C")]


def _offered_by(nodes: Sequence[PlanNode], resource: str) -> Ints:
    return np.fromiter((n.allocatable.get(resource, 0) for n in nodes), np.int64, len(nodes))


def count_fitting(free: Ints, request: Ints) -> Ints:
    """Count how many identical pods fit on each node, by resources alone.

    Args:
        free: Free capacity, shape (nodes, axes), never negative.
        request: Requests of one pod, shape (axes,), at least one of them positive.

    Returns:
        Pods that fit, shape (nodes,), at most `FIT_MAX`.

    Source:
        Integer arithmetic of kube-scheduler's NodeResourcesFit plugin.

    >>> count_fitting(np.array([[4000, 8], [1000, 8], [0, 8]]), np.array([500, 1]))
    array([8, 2, 0])
    """
    fit: Ints | None = None
    for axis in np.flatnonzero(request):
        ask = int(request[axis])
        column = free[:, axis] if ask == 1 else free[:, axis] // ask
        fit = column if fit is None else np.minimum(fit, column)
    if fit is None:
        raise ValueError("a pod requests nothing, not even `pods`")
    return np.minimum(fit, FIT_MAX)


def may_run(node_table: NodeTable, shape: PodShape) -> Bools:
    """Return per node whether the static filters let a pod of this shape pass.

    Source:
        Plugins NodeUnschedulable, NodeAffinity, TaintToleration.
    """
    return selected(node_table, shape) & tolerated(node_table, shape)


def selected(node_table: NodeTable, shape: PodShape) -> Bools:
    """Return per node whether nodeSelector and every required selector hold."""
    mask = np.ones(node_table.size, dtype=np.bool_)
    for key, value in shape.node_selector:
        mask &= _requirement(
            node_table, NodeSelectorRequirement(key=key, operator="In", values=(value,))
        )
    for selector in shape.selectors:
        mask &= _selector(node_table, selector)
    return mask


def without_selectors(shape: PodShape) -> PodShape:
    """Return a shape without its node selector and its required node affinity."""
    volumes = tuple(selector for selector in shape.selectors if selector.volume)
    return msgspec.structs.replace(shape, node_selector=(), selectors=volumes)


def without_volumes(shape: PodShape) -> PodShape:
    """Return a shape that is not tied to the nodes of its volumes."""
    own = tuple(selector for selector in shape.selectors if not selector.volume)
    return msgspec.structs.replace(shape, selectors=own)


def tolerated(
    node_table: NodeTable, shape: PodShape, *, taints: bool = True, cordons: bool = True
) -> Bools:
    """Return per node whether its taints and its cordon are tolerated; each can be left out."""
    codes, lists = node_table.taints() if taints else (np.zeros(0, dtype=np.int64), [])
    good = [
        all(t.effect == "PreferNoSchedule" or tolerates(shape.tolerations, t) for t in node_taints)
        for node_taints in lists
    ]
    mask = (
        np.array(good, dtype=np.bool_)[codes] if lists else np.ones(node_table.size, dtype=np.bool_)
    )
    if cordons and not tolerates(shape.tolerations, CORDON):
        mask &= ~node_table.cordoned()
    return mask


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Return whether one of the tolerations matches, as Toleration.ToleratesTaint does."""
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or t.value == taint.value)
        for t in tolerations
    )


def avoided_taints(node_table: NodeTable, shape: PodShape) -> Ints:
    """Return per node the number of its taints with PreferNoSchedule that are not tolerated."""
    codes, lists = node_table.taints()
    counts = [
        sum(t.effect == "PreferNoSchedule" and not tolerates(shape.tolerations, t) for t in taints)
        for taints in lists
    ]
    return np.array(counts, dtype=np.int64)[codes]


def _selector(node_table: NodeTable, selector: NodeSelector) -> Bools:
    mask = np.zeros(node_table.size, dtype=np.bool_)
    for term in selector.terms:
        mask |= matches(node_table, term)
    return mask


def matches(node_table: NodeTable, term: SelectorTerm) -> Bools:
    """Return per node whether all expressions of a term hold; an empty one matches no node."""
    mask = np.full(node_table.size, bool(term.labels or term.fields), dtype=np.bool_)
    for requirement in term.labels:
        mask &= _requirement(node_table, requirement)
    for requirement in term.fields:
        mask &= _field(node_table, requirement)
    return mask


def _field(node_table: NodeTable, requirement: NodeSelectorRequirement) -> Bools:
    """Match a field requirement; only metadata.name with In or NotIn exists."""
    mask = np.zeros(node_table.size, dtype=np.bool_)
    if requirement.key != "metadata.name" or requirement.operator not in {"In", "NotIn"}:
        return mask
    for name in requirement.values:
        position = node_table.index.get(NodeName(name))
        if position is not None:
            mask[position] = True
    return mask if requirement.operator == "In" else ~mask


def _requirement(node_table: NodeTable, requirement: NodeSelectorRequirement) -> Bools:
    """Match a label requirement once per distinct value, and return the result per node."""
    codes, values = node_table.label(requirement.key)
    present, absent = _matches(requirement, values)
    table = np.array([*present, absent], dtype=np.bool_)  # code -1 picks the last entry
    return table[codes]


def _matches(requirement: NodeSelectorRequirement, values: list[str]) -> tuple[list[bool], bool]:
    """Return for each value, and for a node without the label, whether the requirement matches."""
    listed = set(requirement.values)
    match requirement.operator:
        case "In":
            return [v in listed for v in values], False
        case "NotIn":
            # without values the expression is invalid and its term matches nothing
            return [bool(listed) and v not in listed for v in values], bool(listed)
        case "Exists":
            return [True] * len(values), False
        case "DoesNotExist":
            return [False] * len(values), True
        case "Gt" | "Lt":
            limit = _int64(requirement.values[0]) if len(requirement.values) == 1 else None
            greater = requirement.operator == "Gt"
            return [_beyond(_int64(v), limit, greater=greater) for v in values], False


def _int64(text: str) -> int | None:
    """Read an integer as Go's ParseInt(base 10, 64) does; None where that fails."""
    if not _INTEGER.match(text):
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


def _beyond(value: int | None, limit: int | None, *, greater: bool) -> bool:
    if value is None or limit is None:
        return False
    return value > limit if greater else value < limit


def port_axes(shapes: list[PodShape]) -> list[HostPort]:
    """List the axes for the host ports of some shapes, one per port and address.

    Each node has 1 of every axis. A port on any address requests the axis of every address, so that
    "w + c_i <= 1 for each address i" is equivalent to the pairwise check of kube-scheduler.
    """
    ports = {p for shape in shapes for p in shape.host_ports}
    any_address = {HostPort(protocol=p.protocol, port=p.port, ip=ANY_ADDRESS) for p in ports}
    return sorted(ports | any_address)


def port_request(shape: PodShape, axes: list[HostPort]) -> list[int]:
    """Return the request of a pod for each port axis: 0 or 1."""
    taken = [0] * len(axes)
    for port in shape.host_ports:
        for i, axis in enumerate(axes):
            same = (axis.protocol, axis.port) == (port.protocol, port.port)
            if same and port.ip in {axis.ip, ANY_ADDRESS}:
                taken[i] = 1
    return taken


def free_ports(node_table: NodeTable, axis: HostPort) -> Ints:
    """Return per node 1 if the axis is free, 0 if a port in use there conflicts with it."""
    capacity = np.ones(node_table.size, dtype=np.int64)
    for i, node in enumerate(() if node_table.is_empty else node_table.nodes):
        for port in node.host_ports:
            if (port.protocol, port.port) == (axis.protocol, axis.port) and (
                port.ip == axis.ip or ANY_ADDRESS in {port.ip, axis.ip}
            ):
                capacity[i] = 0
    return capacity
