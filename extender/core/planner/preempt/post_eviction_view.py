"""A plan request after the eviction of some units: as a request, and as arrays for many sets of units.

`without` returns the request that is planned and recorded. `PostEvictionView` computes the same in numpy for
the search, which tries hundreds of sets.

Note: `PlanNode.host_ports` lists a port once, however many pods use it. A port is therefore free when the last
of the evictable or terminating pods that use it is gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from extender.core.model.ids import NodeName
from extender.core.model.pods import HostPort, PodShape
from extender.core.planner.model.node_filters import ANY_ADDRESS, port_axes, port_request
from extender.core.planner.model.node_table import Bools, Ints, NodeTable, count_fitting
from extender.core.planner.model.problem import PlacementProblem, compile_request
from extender.core.planner.plan_types import PlanNode, PlanRequest, PlanRule
from extender.core.planner.preemption_types import Evictable, PlanUnit, PlanVictim


def without(request: PlanRequest, gone: Iterable[PlanVictim]) -> PlanRequest:
    """Return the request after some pods of its `evictable` are gone; they and their units are removed from it."""
    source = request.evictable or Evictable(priority=0)
    pods = list(gone)
    if not pods:
        return request
    left = {pod.uid for pod in pods}
    staying = [p for p in _pods(source) if p.uid not in left]
    by_node: dict[NodeName, list[PodShape]] = {}
    for pod in pods:
        by_node.setdefault(pod.node, []).append(source.shapes[pod.shape])
    ports = {(p.node, port) for p in staying for port in source.shapes[p.shape].host_ports}
    held = {claim for p in staying for claim in source.shapes[p.shape].exclusive_claims}
    freed = {c for s in by_node.values() for shape in s for c in shape.exclusive_claims} - held
    return msgspec.structs.replace(
        request,
        nodes=tuple(
            _with_freed(n, by_node[n.name], ports) if n.name in by_node else n
            for n in request.nodes
        ),
        claims_in_use=tuple(c for c in request.claims_in_use if c not in freed),
        rules=_without_counts(request, pods),
        evictable=msgspec.structs.replace(
            source,
            units=tuple(u for u in source.units if not any(p.uid in left for p in u.pods)),
            going=tuple(p for p in source.going if p.uid not in left),
        ),
    )


def _without_counts(request: PlanRequest, gone: Sequence[PlanVictim]) -> tuple[PlanRule, ...]:
    """Return the rules between pods without the pods that are gone in their counts."""
    counted = [(i, pod) for pod in gone for i in pod.rules]
    if not counted:
        return request.rules
    nodes = {node.name: node for node in request.nodes}
    tables = {i: [dict(table) for table in request.rules[i].there] for i, _ in counted}
    for i, pod in counted:
        rule = request.rules[i]
        for table, key in zip(tables[i], rule.keys, strict=True):
            value = pod.node if rule.kind == "spread" else nodes[pod.node].labels.get(key)
            if value is not None and value in table:
                table[value] -= 1
    made = list(request.rules)
    for i, left in tables.items():
        there = tuple(tuple(sorted((v, n) for v, n in t.items() if n > 0)) for t in left)
        made[i] = msgspec.structs.replace(made[i], there=there)
    return tuple(made)


def _pods(source: Evictable) -> Iterator[PlanVictim]:
    for unit in source.units:
        yield from unit.pods
    yield from source.going


def _with_freed(
    node: PlanNode, shapes: Sequence[PodShape], taken: Container[tuple[NodeName, HostPort]]
) -> PlanNode:
    free = dict(node.free)
    for shape in shapes:
        for name, amount in shape.requests:
            if name in node.allocatable:
                free[name] = free.get(name, 0) + amount
    ports = {port for shape in shapes for port in shape.host_ports}
    kept = (p for p in node.host_ports if p not in ports or (node.name, p) in taken)
    return msgspec.structs.replace(node, free=free, host_ports=tuple(kept))


class PostEvictionCapacity:
    """Free capacity of nodes and requests of pods on the axes of some shapes; free is negative where overcommitted."""

    def __init__(self, request: PlanRequest, shapes: Sequence[PodShape]) -> None:
        nodes = request.nodes
        self.names = sorted({r for s in shapes for r, v in s.requests if v > 0} | {"pods"})
        self.ports = port_axes(list(shapes))
        self.width = len(self.names) + len(self.ports)
        self.offered = np.array(
            [[name in node.allocatable for name in self.names] for node in nodes], dtype=np.bool_
        ).reshape(len(nodes), len(self.names))
        self.free = np.zeros((len(nodes), self.width), dtype=np.int64)
        for i, node in enumerate(nodes):
            for a, name in enumerate(self.names):
                if self.offered[i, a]:
                    self.free[i, a] = node.free.get(name, 0)
        first = len(self.names)
        self.free[:, first:] = 1
        for i, node in enumerate(nodes):
            if node.host_ports:
                self.free[i, first:] -= self._conflicts(node.host_ports)
        self._count_twice(request)

    def _count_twice(self, request: PlanRequest) -> None:
        """Subtract a port for every pod that uses it, not only for the first one on a node."""
        source = request.evictable or Evictable(priority=0)
        place = {node.name: i for i, node in enumerate(request.nodes)}
        seen: set[tuple[NodeName, HostPort]] = set()
        for pod in _pods(source) if self.ports else ():
            for port in source.shapes[pod.shape].host_ports:
                if (pod.node, port) in seen and pod.node in place:
                    self.free[place[pod.node], len(self.names) :] -= self._conflicts((port,))
                seen.add((pod.node, port))

    def _conflicts(self, ports: Iterable[HostPort]) -> Ints:
        """Count per port axis the ports that conflict with it."""
        taken = np.zeros(len(self.ports), dtype=np.int64)
        for port in ports:
            for a, axis in enumerate(self.ports):
                same = (port.protocol, port.port) == (axis.protocol, axis.port)
                if same and (port.ip == axis.ip or ANY_ADDRESS in {port.ip, axis.ip}):
                    taken[a] += 1
        return taken

    def taken(self, shape: PodShape) -> Ints:
        """Return what a running pod uses of every axis, shape (axes,)."""
        asks = dict(shape.requests)
        amounts = [asks.get(name, 0) for name in self.names]
        return np.array([*amounts, *self._conflicts(shape.host_ports)], dtype=np.int64)

    def requests(self, shape: PodShape) -> Ints:
        """Return what a waiting pod requests of every axis, shape (axes,)."""
        asks = {**{r: v for r, v in shape.requests if v > 0}, "pods": 1}
        amounts = [asks.get(name, 0) for name in self.names]
        return np.array([*amounts, *port_request(shape, self.ports)], dtype=np.int64)

    def freed_by(
        self, units: Sequence[Sequence[PlanVictim]], shapes: Sequence[PodShape], fleet: NodeTable
    ) -> tuple[Ints, Ints, Ints]:
        """Return the capacity that units free: per row a unit, a node, and the amounts, shape (rows, axes)."""
        rows: dict[tuple[int, int], int] = {}  # by unit and node
        row_of_pod: list[int] = []
        shape_of_pod: list[int] = []
        for number, pods in enumerate(units):
            for pod in pods:
                place = fleet.index.get(pod.node)
                if place is not None:
                    row_of_pod.append(rows.setdefault((number, place), len(rows)))
                    shape_of_pod.append(pod.shape)
        unit = np.array([u for u, _ in rows], dtype=np.int64)
        node = np.array([n for _, n in rows], dtype=np.int64)
        capacity = np.zeros((len(rows), self.width), dtype=np.int64)
        if rows:
            per_shape = np.stack([self.taken(shape) for shape in shapes])
            np.add.at(capacity, row_of_pod, per_shape[shape_of_pod])
        capacity[:, : len(self.names)] *= self.offered[node]
        return unit, node, capacity


@dataclasses.dataclass(slots=True, frozen=True, eq=False)
class EvictionBarrier:
    """Members of some shapes cannot run on some nodes as long as a unit runs.

    With `uncounted_resource` this is assumed: both use a resource that only kube-scheduler counts, and the unit
    may hold the device for which other units are evicted (SPEC L34).
    """

    unit: int
    shapes: frozenset[int]
    nodes: Bools
    uncounted_resource: str = ""  # its name; empty: the barrier is certain


class PostEvictionView:
    """The compiled problem as a function of the units that are gone; terminating pods are always gone.

    A unit with a pod that a `near` or `spread` rule counts is never evicted: what the rule allows without
    it depends on the whole set.
    """

    def __init__(self, request: PlanRequest, fleet: NodeTable) -> None:
        source = request.evictable or Evictable(priority=0)
        self.source = source
        self.request = without(request, source.going)
        self.units: tuple[PlanUnit, ...] = tuple(
            u for u in source.units if u.priority < source.priority and not self._needed(u)
        )
        everything = without(self.request, (p for u in self.units for p in u.pods))
        self.fleet = fleet.renewed(everything.nodes)
        self.full: PlacementProblem = compile_request(everything, self.fleet)
        self.capacity = PostEvictionCapacity(self.request, self.full.shapes)
        self.unit, self.node, self.back = self.capacity.freed_by(
            [u.pods for u in self.units], source.shapes, self.fleet
        )
        self.claims = [
            frozenset(c for p in u.pods for c in source.shapes[p.shape].exclusive_claims)
            for u in self.units
        ]
        self._freed = frozenset(self.request.claims_in_use) - self.full.in_use
        holders = [i for i, claims in enumerate(self.claims) if claims & self._freed]
        self.holders = np.array(holders, dtype=np.int64)  # units that hold a claim of a member

        self.barriers = list(self._barriers())

    def _needed(self, unit: PlanUnit) -> bool:
        if not self.request.rules:
            return False
        return any(self.request.rules[i].kind != "apart" for p in unit.pods for i in p.rules)

    def _barriers(self) -> Iterator[EvictionBarrier]:
        node_devices = [shape.node_devices for shape in self.request.shapes]
        for number, unit in enumerate(self.units):
            for pod in unit.pods:
                node = self.fleet.index.get(pod.node)
                doubts = (
                    self.source.shapes[pod.shape].node_devices if any(node_devices) else frozenset()
                )
                for uncounted_resource in sorted(doubts if node is not None else ()):
                    here = np.zeros(self.fleet.size, dtype=np.bool_)
                    here[node] = True
                    alike = frozenset(
                        i for i, words in enumerate(node_devices) if uncounted_resource in words
                    )
                    if alike and unit.kind != "reservation":
                        yield EvictionBarrier(number, alike, here, uncounted_resource)
                for i in pod.rules if node is not None else ():
                    rule = self.request.rules[i]
                    codes, _ = self.fleet.label(rule.keys[0])
                    if node is not None and codes[node] >= 0:
                        shapes = frozenset(rule.shapes or rule.about)
                        yield EvictionBarrier(number, shapes, codes == codes[node])

    @property
    def none_gone(self) -> Bools:
        """Return the set in which no unit is gone, shape (units,)."""
        return np.zeros(len(self.units), dtype=np.bool_)

    def free(self, gone: Bools) -> Ints:
        """Return the free capacity, shape (nodes, axes of `capacity`); negative where overcommitted."""
        free = self.capacity.free.copy()
        rows = gone[self.unit]
        np.add.at(free, self.node[rows], self.back[rows])
        return free

    def in_use(self, gone: Bools) -> frozenset[str]:
        """Return the exclusive claims that no member can use while the other units run."""
        if not self._freed:
            return self.full.in_use
        held = {c for i in self.holders[~gone[self.holders]] for c in self.claims[i]}
        return self.full.in_use | (self._freed & held)

    def problem(
        self, gone: Bools, within: Bools | None = None, *, pessimistic: bool = True
    ) -> PlacementProblem:
        """Return the compiled problem without some units.

        Args:
            gone: Per unit, shape (units,).
            within: Per node: where members may be placed; None: everywhere.
            pessimistic: Apply barriers that are only assumed, too.
        """
        full, width = self.full, self.capacity.width
        free = full.free.copy()
        free[:, :width] = np.maximum(self.free(gone), 0)
        allowed = full.allowed if within is None else full.allowed & within
        if self.barriers:
            allowed = allowed.copy()
            for barrier in self.barriers:
                if not gone[barrier.unit] and (pessimistic or not barrier.uncounted_resource):
                    allowed[[s in barrier.shapes for s in full.kinds]] &= ~barrier.nodes
        in_use = self.in_use(gone)
        counts = np.zeros_like(full.counts)
        for k in range(len(full.kinds)):
            if full.claims[k] & in_use:
                continue
            counts[k] = np.where(allowed[k], count_fitting(free, full.requests[k]), 0)
            if full.claims[k]:
                counts[k] = np.minimum(counts[k], 1)
        return dataclasses.replace(full, free=free, allowed=allowed, counts=counts, in_use=in_use)

    def units_affecting(self, within: Bools | None) -> Bools:
        """Return which units free something on some nodes: capacity, a claim of a member, or a barrier."""
        touches = self.none_gone
        touches[self.unit if within is None else self.unit[within[self.node]]] = True
        touches[self.holders] = True
        for barrier in self.barriers:
            touches[barrier.unit] |= within is None or bool((barrier.nodes & within).any())
        return touches
