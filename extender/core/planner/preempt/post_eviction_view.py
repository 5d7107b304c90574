"""A plan request after the eviction of some units: as a request, and as arrays for many sets of units.

`without` returns the request that is planned and recorded. `PostEvictionView` computes the same in numpy for
the search, which tries hundreds of sets.

Evicting more never takes a place from a member, with two exceptions: a pod affinity may need the pods that go, and a
topology spread measures every domain against the one with the fewest pods. Where such a rule counts units, each set
of units is judged with the counts that remain (`base`), and `full`, which leaves these rules out, is an upper bound.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pods import HostPort, PodShape
from extender.core.model.quantities import add_amounts
from extender.core.planner.model.interpod_constraints import SpreadDomains, compile_rules
from extender.core.planner.model.node_table import (
    ANY_ADDRESS,
    Bools,
    Ints,
    NodeTable,
    count_fitting,
    may_run,
    port_axes,
    port_request,
)
from extender.core.planner.model.problem import PlacementProblem, compile_request
from extender.core.planner.plan_types import (
    Evictable,
    PlanDependent,
    PlanDomain,
    PlanExclusive,
    PlanGroup,
    PlanNode,
    PlanRequest,
    PlanRule,
    PlanUnit,
    PlanVictim,
    map_groups,
    walk,
)
from extender.core.planner.solve.greedy_placement import Solution

BASES_MAX = 64  # problems that are kept, one for each combination of counted units that are evicted


def without(request: PlanRequest, evicted: Iterable[PlanVictim]) -> PlanRequest:
    """Return the request after some pods of its `evictable` are evicted; they and their units are removed from it."""
    source = request.evictable or Evictable(priority=0)
    pods = list(evicted)
    if not pods:
        return request
    left = {pod.uid for pod in pods}
    dependents, freed_after = _after(source, left)
    pods += freed_after
    staying = [p for p in _pods(source) if p.uid not in left]
    staying += [pod for dependent in dependents for pod in dependent.pods]
    by_node: dict[NodeName, list[PodShape]] = {}
    for pod in pods:
        by_node.setdefault(pod.node, []).append(source.shapes[pod.shape])
    unreserved: dict[NodeName, dict[str, int]] = {}
    reservations = [
        pod
        for unit in source.units
        for pod in (unit.pods if unit.kind == "reservation" else ())
        if pod.uid in left
    ]
    for pod in (*reservations, *freed_after):
        amounts = dict(source.shapes[pod.shape].requests)
        add_amounts(unreserved.setdefault(pod.node, {}), amounts)
    ports = {(p.node, port) for p in staying for port in source.shapes[p.shape].host_ports}
    held = {claim for p in staying for claim in source.shapes[p.shape].exclusive_claims}
    freed = {c for s in by_node.values() for shape in s for c in shape.exclusive_claims} - held
    if not isinstance(source.domains, UnsetType):
        request = _with_emptied(request, source.domains, left)
        source = request.evictable or source
    return msgspec.structs.replace(
        request,
        nodes=tuple(
            _with_freed(n, by_node[n.name], ports, unreserved.get(n.name, {}))
            if n.name in by_node
            else n
            for n in request.nodes
        ),
        claims_in_use=tuple(c for c in request.claims_in_use if c not in freed),
        rules=_without_counts(request, [(i, pod) for pod in pods for i in pod.rules]),
        evictable=msgspec.structs.replace(
            source,
            units=tuple(u for u in source.units if not any(p.uid in left for p in u.pods)),
            going=tuple(p for p in source.going if p.uid not in left),
            dependents=dependents or UNSET,
        ),
    )


def _after(
    source: Evictable, evicted: Collection[PodUid]
) -> tuple[tuple[PlanDependent, ...], list[PlanVictim]]:
    """Return the reservations that stay when some pods are evicted, with the pods after which they go, and those that go."""
    staying: list[PlanDependent] = []
    freed: list[PlanVictim] = []
    for dependent in source.dependents or ():
        after = tuple(uid for uid in dependent.after if uid not in evicted)
        if after:
            staying.append(PlanDependent(pods=dependent.pods, after=after))
        else:
            freed += dependent.pods
    return tuple(staying), freed


# --- exclusive domains that are emptied


def _with_emptied(
    request: PlanRequest, domains: Sequence[PlanDomain], evicted: Container[PodUid]
) -> PlanRequest:
    """Return the request without some pods in its exclusive domains; those that no other pod is in are open."""
    left = [(d, tuple(uid for uid in d.pods if uid not in evicted)) for d in domains]
    request = with_domains_open(request, [domain for domain, pods in left if not pods])
    rows = tuple(msgspec.structs.replace(d, pods=pods) for d, pods in left if pods)
    evictable = request.evictable or Evictable(priority=0)
    return msgspec.structs.replace(
        request, evictable=msgspec.structs.replace(evictable, domains=rows or UNSET)
    )


def with_domains_open(request: PlanRequest, domains: Iterable[PlanDomain]) -> PlanRequest:
    """Return the request in which others do not have some domains."""
    opened = {(domain.group, domain.key, domain.value) for domain in domains}
    if not opened:
        return request

    def rest(domain: PlanExclusive, group: GroupKey | None) -> PlanExclusive:
        values = (v for v in domain.taken if (group, domain.key, v) not in opened)
        return PlanExclusive(key=domain.key, taken=tuple(values))

    def with_rest(group: PlanGroup) -> PlanGroup:
        if isinstance(group.exclusive, UnsetType):
            return group
        return msgspec.structs.replace(group, exclusive=rest(group.exclusive, group.key))

    closed = request.closed
    if not isinstance(closed, UnsetType):
        closed = tuple(d for d in (rest(domain, None) for domain in closed) if d.taken) or UNSET
    return msgspec.structs.replace(request, root=map_groups(request.root, with_rest), closed=closed)


def with_domains_as_rules(request: PlanRequest) -> PlanRequest:
    """Replace each exclusive domain that can be emptied by an anti-affinity to the pods in it, so that units are judged as with other rules.

    Returns:
        The request, the same object if no domain can be emptied. Members that may be in other domains than others of their shape
        have a copy of it.
    """
    source = request.evictable or Evictable(priority=0)
    alike: dict[tuple[str, str, tuple[PodUid, ...]], set[GroupKey | None]] = {}
    emptiable = list(_emptiable(request))
    for domain in emptiable:
        alike.setdefault((domain.key, domain.value, domain.pods), set()).add(domain.group)
    if not alike:
        return request
    request, kept_out = _shapes_apart(request, list(alike.values()))
    rules = list(request.rules)
    counted: dict[PodUid, list[int]] = {}
    for (key, value, pods), shapes in zip(alike, kept_out, strict=True):
        for uid in pods:
            counted.setdefault(uid, []).append(len(rules))
        counts = (((value, len(pods)),),)
        rules.append(PlanRule(kind="apart", keys=(key,), shapes=shapes, about=(), there=counts))

    def with_rules(pod: PlanVictim) -> PlanVictim:
        more = counted.get(pod.uid)
        return msgspec.structs.replace(pod, rules=(*pod.rules, *more)) if more else pod

    evictable = msgspec.structs.replace(
        source,
        units=tuple(
            msgspec.structs.replace(u, pods=tuple(map(with_rules, u.pods))) for u in source.units
        ),
        going=tuple(map(with_rules, source.going)),
        dependents=tuple(
            msgspec.structs.replace(each, pods=tuple(map(with_rules, each.pods)))
            for each in source.dependents or ()
        )
        or UNSET,
        domains=UNSET,
    )
    request = with_domains_open(request, emptiable)
    return msgspec.structs.replace(request, rules=tuple(rules), evictable=evictable)


def _shapes_apart(
    request: PlanRequest, domains: Sequence[Collection[GroupKey | None]]
) -> tuple[PlanRequest, list[tuple[int, ...]]]:
    """Return the request with shapes that decide which domains keep a member out, and these shapes of each domain.

    Args:
        request: The request.
        domains: For each the groups that would have it alone; None: others have it, and no member may be there. A group with
            bound members keeps their domain whatever others have (D20).
    """
    numbers: dict[tuple[int, frozenset[int]], int] = {}
    copies: dict[int, list[int]] = {}
    shapes = list(request.shapes)
    everywhere = frozenset(i for i, groups in enumerate(domains) if None in groups)

    def number(shape: int, closed: frozenset[int]) -> int:
        if (shape, closed) not in numbers:
            numbers[shape, closed] = len(shapes) if shape in copies else shape
            if shape in copies:
                shapes.append(shapes[shape])
            copies.setdefault(shape, []).append(numbers[shape, closed])
        return numbers[shape, closed]

    def changed(group: PlanGroup, closed: frozenset[int]) -> PlanGroup:
        if not any(below.bound for below in walk(group)):
            closed |= {i for i, groups in enumerate(domains) if group.key in groups}
        return msgspec.structs.replace(
            group,
            groups=tuple(changed(child, closed) for child in group.groups),
            members=tuple(
                msgspec.structs.replace(m, shape=number(m.shape, closed)) for m in group.members
            ),
        )

    root = changed(request.root, everywhere)
    kept_out = [
        tuple(sorted(n for (_, closed), n in numbers.items() if i in closed))
        for i in range(len(domains))
    ]
    if len(shapes) == len(request.shapes):
        return request, kept_out

    def of(some: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(copy for shape in some for copy in copies.get(shape, (shape,))))

    preferences = request.preferences
    if not isinstance(preferences, UnsetType):
        preferences = tuple(msgspec.structs.replace(p, shapes=of(p.shapes)) for p in preferences)
    return msgspec.structs.replace(
        request,
        root=root,
        shapes=tuple(shapes),
        rejected_nodes=tuple(
            msgspec.structs.replace(r, shape=shape)
            for r in request.rejected_nodes
            for shape in ((None,) if r.shape is None else of((r.shape,)))
        ),
        rules=tuple(
            msgspec.structs.replace(r, shapes=of(r.shapes), about=of(r.about))
            for r in request.rules
        ),
        preferences=preferences,
    ), kept_out


def _emptiable(request: PlanRequest) -> Iterator[PlanDomain]:
    """Yield the domains that others have, and all of whose pods may go."""
    source = request.evictable or Evictable(priority=0)
    if isinstance(source.domains, UnsetType):
        return
    lower = (u for u in source.units if u.priority < source.priority)
    may_go = {p.uid for u in lower for p in u.pods}.union(p.uid for p in source.going)
    after = [d for d in source.dependents or () if may_go.issuperset(d.after)]
    may_go.update(pod.uid for dependent in after for pod in dependent.pods)
    closed = () if isinstance(request.closed, UnsetType) else request.closed
    taken: set[tuple[GroupKey | None, str, str]] = set()
    taken.update((None, domain.key, value) for domain in closed for value in domain.taken)
    for group in walk(request.root):
        if not isinstance(group.exclusive, UnsetType):
            taken.update((group.key, group.exclusive.key, v) for v in group.exclusive.taken)
    for domain in source.domains:
        if (domain.group, domain.key, domain.value) in taken and may_go.issuperset(domain.pods):
            yield domain


# --- rules that count pods


def _without_counts(
    request: PlanRequest, counted: Sequence[tuple[int, PlanVictim]]
) -> tuple[PlanRule, ...]:
    """Return the rules between pods without some pods in their counts, each given with the index of a rule that counts it."""
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
    rules = list(request.rules)
    for i, left in tables.items():
        counts = tuple(tuple(sorted((v, n) for v, n in t.items() if n > 0)) for t in left)
        rules[i] = msgspec.structs.replace(rules[i], there=counts)
    return tuple(rules)


def _pods(source: Evictable) -> Iterator[PlanVictim]:
    for unit in source.units:
        yield from unit.pods
    yield from source.going


def _with_freed(
    node: PlanNode,
    shapes: Sequence[PodShape],
    taken: Container[tuple[NodeName, HostPort]],
    unreserved: Mapping[str, int],
) -> PlanNode:
    """Return a node without pods of some shapes; `unreserved`: the part of it that was reserved, not used."""
    free = dict(node.free)
    for shape in shapes:
        for name, amount in shape.requests:
            if name in node.allocatable:
                free[name] = free.get(name, 0) + amount
    ports = {port for shape in shapes for port in shape.host_ports}
    kept = (p for p in node.host_ports if p not in ports or (node.name, p) in taken)
    reserved = {name: amount - unreserved.get(name, 0) for name, amount in node.reserved.items()}
    reserved = {name: amount for name, amount in reserved.items() if amount > 0}
    return msgspec.structs.replace(node, free=free, host_ports=tuple(kept), reserved=reserved)


def _is_spread(rule: SpreadDomains, kinds: list[int], solution: Solution) -> bool:
    """Return whether a placement keeps a topology spread."""
    total = rule.start.copy()
    used: set[int] = set()
    for by_kind in solution.values():
        for kind, nodes in by_kind.items():
            for node, amount in nodes.items() if kinds[kind] in rule.keepers else ():
                total[rule.domain[node]] += amount
                used.add(int(rule.domain[node]))
    return all(total[domain] <= rule.fewest(total) + rule.skew for domain in used)


class PostEvictionCapacity:
    """Free capacity of nodes and requests of pods on the axes of some shapes; free is negative where overcommitted."""

    def __init__(self, request: PlanRequest, shapes: Sequence[PodShape]) -> None:
        nodes = request.nodes
        self.names = sorted({r for s in shapes for r, v in s.requests if v > 0} | {"pods"})
        self.ports = port_axes(list(shapes))
        self.width = len(self.names) + len(self.ports)
        self.offered = np.zeros((len(nodes), len(self.names)), dtype=np.bool_)
        self.free = np.zeros((len(nodes), self.width), dtype=np.int64)
        for a, name in enumerate(self.names):
            self.offered[:, a] = [name in node.allocatable for node in nodes]
            self.free[:, a] = [node.free.get(name, 0) for node in nodes]
        self.free[:, : len(self.names)] *= self.offered
        first = len(self.names)
        self.free[:, first:] = 1
        for i, node in enumerate(nodes):
            if node.host_ports:
                self.free[i, first:] -= self._conflicts(node.host_ports)
        self._count_twice(request)

    def _count_twice(self, request: PlanRequest) -> None:
        """Subtract a port for every pod that uses it, not only for the first one on a node.

        `PlanNode.host_ports` lists a port once, however many pods use it. So the port is free when the last of the
        evictable or terminating pods that use it is evicted.
        """
        source = request.evictable or Evictable(priority=0)
        place = {node.name: i for i, node in enumerate(request.nodes)}
        used: set[tuple[NodeName, HostPort]] = set()
        dependents = (pod for each in source.dependents or () for pod in each.pods)
        for pod in (*_pods(source), *dependents) if self.ports else ():
            for port in source.shapes[pod.shape].host_ports:
                if (pod.node, port) in used and pod.node in place:
                    self.free[place[pod.node], len(self.names) :] -= self._conflicts((port,))
                used.add((pod.node, port))

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
        self,
        units: Sequence[Sequence[PlanVictim]],
        shapes: Sequence[PodShape],
        node_table: NodeTable,
    ) -> tuple[Ints, Ints, Ints]:
        """Return the capacity that units free: per row a unit, a node, and the amounts, shape (rows, axes)."""
        rows: dict[tuple[int, int], int] = {}  # by unit and node
        row_of_pod: list[int] = []
        shape_of_pod: list[int] = []
        for number, pods in enumerate(units):
            for pod in pods:
                place = node_table.index.get(pod.node)
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
    may hold the device for which other units are evicted (L34).
    """

    unit: int
    shapes: frozenset[int]
    nodes: Bools
    uncounted_resource: str = ""  # its name; empty: the barrier is certain


class PostEvictionView:
    """The compiled problem as a function of the units that are evicted; terminating pods are always gone."""

    def __init__(self, request: PlanRequest, node_table: NodeTable) -> None:
        source = request.evictable or Evictable(priority=0)
        self.source = source
        self.request = without(request, source.going)
        lower = [u for u in source.units if u.priority < source.priority]
        # rules that are not judged even while all units run; what they count stays
        self.unjudged = (
            compile_rules(self.request, node_table).unjudged if self.request.rules else {}
        )
        self.withheld = tuple(u for u in lower if self._rules_of(u.pods) & self.unjudged.keys())
        self.units: tuple[PlanUnit, ...] = tuple(u for u in lower if u not in self.withheld)
        # reservations that go only with several units together, with the numbers of these
        self.joint: list[tuple[Ints, tuple[PlanVictim, ...]]] = []
        self.uncounted: list[PlanDependent] = []  # reservations whose end is not judged
        # per unit the pods that go with it: its own, and reservations that depend on it alone
        self.leaving: list[tuple[PlanVictim, ...]] = [u.pods for u in self.units]
        if self.request.evictable is not None and self.request.evictable.dependents:
            self._add_dependents(self.request.evictable)
        # units that a near or spread rule counts
        self._counting = [i for i, pods in enumerate(self.leaving) if self._rules_of(pods)]
        self.counting = np.array(self._counting, dtype=np.int64)
        self._everything = without(self.request, (p for u in self.units for p in u.pods))
        self.node_table = node_table.renewed(self._everything.nodes)
        self.bound_request = self._bound_request()
        self.full: PlacementProblem = compile_request(self.bound_request, self.node_table)
        # rules that are not judged without some units, in the problems compiled until now
        self.unjudged_after: dict[int, str] = {}
        self._bases: dict[bytes, PlacementProblem] = {}
        self.capacity = PostEvictionCapacity(self.request, self.full.shapes)
        self.unit, self.node, self.back = self.capacity.freed_by(
            self.leaving, source.shapes, self.node_table
        )
        self.joint_rows = self.capacity.freed_by(
            [pods for _, pods in self.joint], source.shapes, self.node_table
        )
        self.claims = [
            frozenset(c for p in pods for c in source.shapes[p.shape].exclusive_claims)
            for pods in self.leaving
        ]
        self._freed = frozenset(self.request.claims_in_use) - self.full.in_use
        holders = [i for i, claims in enumerate(self.claims) if claims & self._freed]
        self.holders = np.array(holders, dtype=np.int64)  # units that hold a claim of a member

        self.barriers = list(self._barriers())

    def _add_dependents(self, source: Evictable) -> None:
        """Count each reservation that depends on one unit with that unit; those that depend on several are in `joint`."""
        unit_of = {pod.uid: i for i, unit in enumerate(self.units) for pod in unit.pods}
        withheld = {pod.uid for unit in self.withheld for pod in unit.pods}
        counted: list[PlanDependent] = []
        for dependent in source.dependents or ():
            units = sorted({unit_of.get(uid, -1) for uid in dependent.after})
            if units[0] >= 0 and len(units) == 1 and self._is_judged(dependent.pods):
                self.leaving[units[0]] += dependent.pods
            elif units[0] >= 0 and not any(self._holds_more(pod) for pod in dependent.pods):
                self.joint.append((np.array(units, dtype=np.int64), dependent.pods))
            else:
                if all(uid in unit_of or uid in withheld for uid in dependent.after):
                    self.uncounted.append(dependent)
                continue
            counted.append(dependent)
        evictable = msgspec.structs.replace(source, dependents=tuple(counted) or UNSET)
        self.request = msgspec.structs.replace(self.request, evictable=evictable)

    def _is_judged(self, pods: Iterable[PlanVictim]) -> bool:
        return not self._rules_of(pods) & self.unjudged.keys()

    def _holds_more(self, pod: PlanVictim) -> bool:
        """Return whether a pod keeps more from members than capacity."""
        claims = self.source.shapes[pod.shape].exclusive_claims
        return bool(pod.rules) or bool({*claims} & {*self.request.claims_in_use})

    @functools.cached_property
    def cost_model(self) -> CostModel:
        """Return the costs of its units."""
        return CostModel(self)

    # --- rules that count units -------------------------------------------------------------------

    def _rules_of(self, pods: Iterable[PlanVictim]) -> set[int]:
        """Return the near and spread rules that count one of some pods."""
        rules = self.request.rules
        return {i for p in pods for i in p.rules if rules[i].kind != "apart"}

    def counts_of(self, rule: int) -> dict[int, list[PlanVictim]]:
        """Return the pods that a rule counts, by unit."""
        pods = {i: [p for p in self.leaving[i] if rule in p.rules] for i in self._counting}
        return {i: counted for i, counted in pods.items() if counted}

    def _compiled(self, leaves: Callable[[int, int], bool]) -> PlacementProblem:
        """Compile what is left when all units are evicted, but for the counts of near and spread rules.

        Args:
            leaves: Whether a rule does not count a unit any more, both given by their numbers.
        """
        kinds = [rule.kind for rule in self.request.rules]
        counted = [
            (i, pod)
            for number, pods in enumerate(self.leaving)
            for pod in pods
            for i in pod.rules
            if kinds[i] == "apart" or leaves(i, number)
        ]
        rules = _without_counts(self.request, counted)
        request = msgspec.structs.replace(self._everything, rules=rules)
        problem = compile_request(request, self.node_table)
        for i in problem.rules.unjudged.keys() - self.unjudged.keys():
            # no unit is evicted for a placement that is not judged
            self.unjudged_after[i] = problem.rules.unjudged[i]
            keepers = self.request.rules[i].shapes
            problem.allowed[[shape in keepers for shape in problem.kinds]] = False
        return problem

    def _bound_request(self) -> PlanRequest:
        """Return what is left when all units are evicted, without the near and spread rules that count one."""
        if not len(self.counting):
            return self._everything
        counted = {i for number in self._counting for i in self._rules_of(self.leaving[number])}
        spreads = any(self.request.rules[i].kind == "spread" for i in counted)
        rules = tuple(
            rule
            for i, rule in enumerate(self._everything.rules)
            if i not in counted and not (spreads and rule.kind == "spread")
        )
        return msgspec.structs.replace(self._everything, rules=rules)

    def base(self, evicted: Bools) -> PlacementProblem:
        """Return the problem with the rules as they are when some units are evicted, and the capacity as if all were."""
        if not len(self.counting):
            return self.full
        key = evicted[self.counting].tobytes()
        problem = self._bases.pop(key, None)
        if problem is None:
            problem = self._compiled(lambda _, unit: bool(evicted[unit]))
        self._bases[key] = problem
        if len(self._bases) > BASES_MAX:
            del self._bases[next(iter(self._bases))]
        return problem

    def clearable(self, units: Bools) -> list[int]:
        """Return the near rules that count no pod any more when some units are evicted."""
        evicted = [self.units[i] for i in np.flatnonzero(units).tolist()]
        left = without(self.request, (p for u in evicted for p in u.pods))
        return [
            i
            for i, (before, after) in enumerate(zip(self.request.rules, left.rules, strict=True))
            if before.kind == "near" and any(before.there) and not any(after.there)
        ]

    def loosest(self, units: Bools, cleared: Collection[int]) -> PlacementProblem:
        """Return a problem as `base`, with near rules that count all pods, or none if they are in `cleared`."""
        near = [rule.kind == "near" for rule in self.request.rules]
        return self._compiled(lambda i, unit: i in cleared if near[i] else bool(units[unit]))

    def keeps_rules(self, evicted: Bools, solution: Solution) -> bool:
        """Return whether a placement keeps the near and spread rules when some units are evicted."""
        problem = self.base(evicted)
        placed: list[dict[int, int]] = [{} for _ in problem.groups]  # per group, pods by node
        for index, by_kind in solution.items():
            for kind, nodes in by_kind.items():
                if not problem.allowed[kind][list(nodes)].all():
                    return False
                for node, amount in nodes.items():
                    placed[index][node] = placed[index].get(node, 0) + amount
        for group in reversed(problem.groups):
            domains = {int(group.level.domain[node]) for node in placed[group.index]}
            if len(domains) > 1 or -1 in domains:
                return False
            if group.parent >= 0:
                placed[group.parent].update(dict.fromkeys(placed[group.index], 1))
        spreads = (rule for rule in problem.rules.dynamic if isinstance(rule, SpreadDomains))
        return all(_is_spread(rule, problem.kinds, solution) for rule in spreads)

    def _runs(self, unit: PlanUnit, pod: PlanVictim) -> bool:
        return unit.kind != "reservation" and pod in unit.pods

    def _barriers(self) -> Iterator[EvictionBarrier]:
        node_devices = [shape.node_devices for shape in self.request.shapes]
        if not any(node_devices) and not self.request.rules:
            return
        for number, unit in enumerate(self.units):
            for pod in self.leaving[number]:
                node = self.node_table.index.get(pod.node)
                if node is None:
                    continue
                doubts = self.source.shapes[pod.shape].node_devices if any(node_devices) else ()
                for resource in sorted(doubts if doubts and self._runs(unit, pod) else ()):
                    on_node = np.zeros(self.node_table.size, dtype=np.bool_)
                    on_node[node] = True
                    users = [i for i, words in enumerate(node_devices) if resource in words]
                    if users:
                        yield EvictionBarrier(number, frozenset(users), on_node, resource)
                for i in pod.rules:
                    rule = self.request.rules[i]
                    codes, _ = self.node_table.label(rule.keys[0])
                    if rule.kind == "apart" and codes[node] >= 0:
                        shapes = frozenset(rule.shapes or rule.about)
                        yield EvictionBarrier(number, shapes, codes == codes[node])

    @property
    def none_evicted(self) -> Bools:
        """Return the set in which no unit is evicted, shape (units,)."""
        return np.zeros(len(self.units), dtype=np.bool_)

    def free(self, evicted: Bools) -> Ints:
        """Return the free capacity, shape (nodes, axes of `capacity`); negative where overcommitted."""
        free = self.capacity.free.copy()
        rows = evicted[self.unit]
        np.add.at(free, self.node[rows], self.back[rows])
        if self.joint:
            goes = np.array([bool(evicted[units].all()) for units, _ in self.joint])
            joint, node, back = self.joint_rows
            np.add.at(free, node[goes[joint]], back[goes[joint]])
        return free

    def in_use(self, evicted: Bools) -> frozenset[str]:
        """Return the exclusive claims that no member can use while the other units run."""
        if not self._freed:
            return self.full.in_use
        held = {c for i in self.holders[~evicted[self.holders]] for c in self.claims[i]}
        return self.full.in_use | (self._freed & held)

    def problem(
        self,
        evicted: Bools,
        within: Bools | None = None,
        *,
        pessimistic: bool = True,
        base: PlacementProblem | None = None,
    ) -> PlacementProblem:
        """Return the compiled problem without some units.

        Args:
            within: Per node: where members may be placed; None: everywhere.
            pessimistic: Apply barriers that are only assumed, too.
            base: Has the rules; None: as they are without these units.
        """
        full, width = base or self.base(evicted), self.capacity.width
        free = full.free.copy()
        free[:, :width] = np.maximum(self.free(evicted), 0)
        allowed = full.allowed if within is None else full.allowed & within
        if self.barriers:
            allowed = allowed.copy()
            for barrier in self.barriers:
                if not evicted[barrier.unit] and (pessimistic or not barrier.uncounted_resource):
                    allowed[[s in barrier.shapes for s in full.kinds]] &= ~barrier.nodes
        in_use = self.in_use(evicted)
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
        touches = self.none_evicted
        touches[self.unit if within is None else self.unit[within[self.node]]] = True
        touches[self.holders] = True
        touches[self.counting] = True
        for barrier in self.barriers:
            touches[barrier.unit] |= within is None or bool((barrier.nodes & within).any())
        return touches


# --- the cost of evicting a set of units: a total order over all sets, the cheapest first

# Every part of the cost only grows with the set, so a cheapest set is also minimal: no unit of it could stay.
#
# The order is E-9 (docs/reference/groups.md).

NO_PRIORITY = -(2**31) - 1  # the highest priority of an empty set: below every priority
PRIORITY_OFFSET = 2**31  # makes every priority positive


class VictimCost(msgspec.Struct, frozen=True, order=True):
    """The cost of a set of units; compared field by field, in this order.

    Source:
        E-8 and E-9.
    """

    violations: int = 0  # evictions beyond what PodDisruptionBudgets allow, summed over the budgets
    highest: int = NO_PRIORITY  # priority of the most important victim
    # Running gangs that lose all their work: groups that are evicted as a whole (disruption mode `all`), and gangs that fall
    # below their minimum. So of pods with equal priority single pods and extra members are evicted first, even if these are
    # more, and of two gangs the one with fewer pods. It comes after `highest`: only its priority makes a gang important.
    broken: int = 0
    cascades: int = 0  # units that would evict others when they are created again, see `_cascades`
    lost_min: int = 0  # GPU-minutes of work since the start or last checkpoint of the victims
    weight: int = 0  # sum over units of priority + 2^31
    units: int = 0
    pods: int = 0
    # seconds of work of the victims beyond that of the youngest evictable pod, summed
    age_s: int = 0
    # of units without `has_cost`: superseded reservations, and victims of another preemption
    reserved: int = 0  # sum of priority + 2^31
    reserved_pods: int = 0
    names: tuple[str, ...] = ()  # sorted; makes the order total

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return all but the names, in their order."""
        numbers: tuple[int, ...] = msgspec.structs.astuple(self)[:-1]
        return numbers


def unit_cost(priority: int, pods: Sized, lost_min: int = 0) -> dict[str, int]:
    """Return the parts of the cost of one unit that its record has, by name."""
    cost = {"weight": priority + PRIORITY_OFFSET, "pods": len(pods)}
    return cost | {"lost_min": lost_min} if lost_min else cost


class CostModel:
    """The costs of the units of one request."""

    def __init__(self, view: PostEvictionView) -> None:
        """Compute what does not depend on the set."""
        self.source, self.units = view.request.evictable or Evictable(priority=0), view.units
        units = self.units
        running = [p.since_us for u in units if u.kind != "reservation" for p in u.pods]
        cascades = _cascades(view)
        youngest_us = max(running, default=0)
        # per unit the parts of the cost that are sums, as `VictimCost` has them after `broken`
        self.sums = [
            self._sums(unit, youngest_us, cascades=cascade)
            for unit, cascade in zip(units, cascades, strict=True)
        ]
        # per unit the pods by the leaf whose members they are
        self.lost = [_tally([pod.gang for pod in u.pods if pod.gang >= 0]) for u in units]
        self._have = self._satisfied()

    def _sums(self, unit: PlanUnit, youngest_us: int, *, cascades: bool) -> tuple[int, ...]:
        weight, pods = unit.priority + PRIORITY_OFFSET, len(unit.pods)
        if not unit.has_cost:
            return (0, 0, 0, 0, 0, 0, weight, pods)
        age_s = sum((youngest_us - p.since_us) // 1_000_000 for p in unit.pods)
        return (int(cascades), self.source.lost_min(unit), weight, 1, pods, age_s, 0, 0)

    def protected(self, unit: PlanUnit) -> dict[int, int]:
        """Count the pods of a unit under each budget."""
        return _tally([budget for pod in unit.pods for budget in pod.budgets])

    def cost(self, evicted: list[int]) -> VictimCost:
        """Return the cost of a set, given as positions in `units`."""
        chosen = [self.units[i] for i in evicted]
        running = [i for i in evicted if self.units[i].has_cost]
        victims = [self.units[i] for i in running]
        violations = self._violations(victims) if self.source.budgets else 0
        highest = max([unit.priority for unit in victims], default=NO_PRIORITY)
        broken = sum([unit.kind == "group" for unit in victims]) + self._fallen(running)
        sums = map(sum, zip(*[self.sums[i] for i in evicted], strict=True))
        names = tuple(sorted([unit.name for unit in chosen]))
        return _cost((violations, highest, broken), sums, names)

    def alone(self, index: int) -> VictimCost:
        """Return the cost of one unit alone; the same as `cost`, in less time."""
        unit = self.units[index]
        violations, highest, broken = 0, NO_PRIORITY, 0
        if unit.has_cost:
            violations = self._violations([unit]) if self.source.budgets else 0
            highest = unit.priority
            broken = (unit.kind == "group") + (self._fallen([index]) if self.lost[index] else 0)
        return _cost((violations, highest, broken), self.sums[index], (unit.name,))

    def _violations(self, victims: list[PlanUnit]) -> int:
        taken: dict[int, int] = {}
        for unit in victims:
            for budget, pods in self.protected(unit).items():
                taken[budget] = taken.get(budget, 0) + pods
        budgets = self.source.budgets
        return sum(max(0, n - max(budgets[b].allowed, 0)) for b, n in taken.items())

    def _fallen(self, victims: list[int]) -> int:
        """Count the running gangs that fall below their minimum without these units."""
        gangs = self.source.gangs
        lost: dict[int, int] = {}  # by gang; of a leaf members, else children
        for unit in victims:
            for leaf, members in self.lost[unit].items():
                lost[leaf] = lost.get(leaf, 0) + members
        if not lost:
            return 0
        broken = [leaf for leaf, n in lost.items() if self._have[leaf] - n < gangs[leaf].minimum]
        if not broken:
            return 0
        fallen = 0
        waiting = [-i for i in broken]  # the last first: groups come before those below them
        heapq.heapify(waiting)
        while waiting:
            gang = gangs[at := -heapq.heappop(waiting)]
            if self._have[at] < gang.minimum or self._have[at] - lost[at] >= gang.minimum:
                continue
            fallen += gang.counts
            if gang.parent >= 0:
                if gang.parent not in lost:
                    heapq.heappush(waiting, -gang.parent)
                falls = self._have[gang.parent] if gang.required else 1
                lost[gang.parent] = lost.get(gang.parent, 0) + falls
        return fallen

    def _satisfied(self) -> list[int]:
        """Return per group its running members, and children that have their minimum."""
        gangs = self.source.gangs
        have = [gang.running for gang in gangs]
        for i in range(len(gangs) - 1, -1, -1):
            above = gangs[i].parent
            if above >= 0 and have[i] >= gangs[i].minimum:
                have[above] += 1
            elif above >= 0 and gangs[i].required:
                have[above] -= len(gangs)  # it has fewer children, so it is below its minimum
        return have

    def spare(self, leaf: int) -> int | None:
        """Return how many members a running gang can lose above its minimum; None where its fall does not count."""
        gang = self.source.gangs[leaf]
        spare = self._have[leaf] - gang.minimum
        return spare if gang.counts and spare >= 0 else None

    def holding(self) -> list[bool]:
        """Return which groups have their minimum now."""
        return [n >= g.minimum for n, g in zip(self._have, self.source.gangs, strict=True)]


def _cost(first: tuple[int, int, int], sums: Iterable[int], names: tuple[str, ...]) -> VictimCost:
    cost = VictimCost(*first, *sums)  # type: ignore[arg-type]  # its fields between `broken` and `names`
    return msgspec.structs.replace(cost, names=names)


def _tally(numbers: Iterable[int]) -> dict[int, int]:
    """Return how often each number occurs; of the few of one unit in less time than a Counter."""
    counts: dict[int, int] = {}
    for number in numbers:
        counts[number] = counts.get(number, 0) + 1
    return counts


def _cascades(view: PostEvictionView) -> list[bool]:
    """Return per unit whether it would evict others when it is created again (L33).

    Only this one step is considered, and each unit by the cluster before any eviction: its policy lets it preempt, and some
    pod of it fits nowhere in the free capacity, but would fit on a node that its static filters accept if every evictable
    pod of strictly lower priority were evicted there.
    """
    request, units, node_table = view.request, view.units, view.node_table
    shapes = (request.evictable or Evictable(priority=0)).shapes
    mine = [u for u in units if u.kind != "reservation"]
    if not mine or len({u.priority for u in mine}) == 1:
        return [False] * len(units)
    capacity = PostEvictionCapacity(request, shapes)
    unit, node, back = capacity.freed_by([u.pods for u in mine], shapes, node_table)
    priority = np.array([u.priority for u in mine], dtype=np.int64)
    requests = [capacity.requests(shape) for shape in shapes]
    may = [may_run(node_table, shape) for shape in shapes]

    def fits(shape: int, below: int) -> bool:
        free = capacity.free.copy()
        rows = priority[unit] < below
        np.add.at(free, node[rows], back[rows])
        axes = requests[shape] > 0
        return bool(((free[:, axes] >= requests[shape][axes]).all(axis=1) & may[shape]).any())

    cached: dict[tuple[int, int], bool] = {}

    def again(shape: int, own: int) -> bool:
        if (shape, own) not in cached:
            cached[shape, own] = not fits(shape, NO_PRIORITY) and fits(shape, own)
        return cached[shape, own]

    return [
        u.has_cost
        and u.may_preempt
        and any(again(s, u.priority) for s in {p.shape for p in u.pods})
        for u in units
    ]
