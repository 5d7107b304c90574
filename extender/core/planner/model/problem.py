"""A plan request compiled for the search: kinds of pods, groups with domains, free capacity as a matrix.

Pods of one *kind* are interchangeable: equal shape and equal node rejections of their own. A group that is
not admissible has `alive` False and gets no new pods (C.5), but its bound members still fix domains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, or_

import msgspec
import numpy as np
from msgspec import UnsetType

from extender.core.model.ids import GroupKey, NodeName
from extender.core.model.message_formatting import join_names
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pods import PodShape
from extender.core.planner.model.interpod_constraints import InterpodConstraints, compile_rules
from extender.core.planner.model.node_table import (
    FIT_MAX,
    Bools,
    Ints,
    Level,
    NodeTable,
    PodBounds,
    count_fitting,
    free_ports,
    port_axes,
    port_request,
    selected,
    tolerated,
    without_volumes,
)
from extender.core.planner.plan_types import (
    Changes,
    PlanBound,
    PlanGroup,
    PlanMember,
    PlanPreference,
    PlanRequest,
    admissible,
    changed_tree,
    domain_keys,
    group_name,
    is_leaf,
    is_required,
    satisfied_by_bound,
    threshold,
)

NOTHING_NEW = "; nothing new is placed"  # end of a violation, which the conflict does not repeat


@dataclass(slots=True)
class CompiledGroup:
    """A group of the tree, compiled."""

    index: int
    source: PlanGroup
    parent: int  # -1 for the root
    leaf: bool
    minimum: int
    level: Level  # domains by all keys on the path from the root
    bound: int  # bound members of a leaf
    alive: bool  # admissible, as are all its ancestors
    holds: bool  # bound members alone satisfy it
    required: bool = False  # its parent cannot do without it
    children: list[int] = field(default_factory=list)
    # kind -> positions in source.members
    members: dict[int, list[int]] = field(default_factory=dict)
    size: int = 0  # waiting members
    pinned: int = -1  # domain of `level` that bound members fix; -1: none
    exclusive: str = ""  # key of which its domain has no other such group
    least: int = 0  # fewest new pods that can satisfy it

    @property
    def twin_key(self) -> tuple[object, ...]:
        """Return a key that is equal for interchangeable leaves under one parent."""
        sizes = tuple(sorted((k, len(m)) for k, m in self.members.items()))
        place = self.level.keys, self.pinned, self.source.exclusive
        return (*place, self.bound, self.minimum, self.required, sizes)


class ExclusiveGroups:
    """The groups that share no domain of a key with another one, and the domains that they cannot have.

    Groups one above the other are in one domain. So it is enough to compare those with the same exclusive group above.
    """

    def __init__(self, groups: Sequence[CompiledGroup] = ()) -> None:
        """Read the groups, whose domains are pinned already."""
        # group -> those it is compared with, and itself
        self._beside: dict[int, list[CompiledGroup]] = {}
        # group that no bound member pins -> the domains that others have
        self.closed: dict[int, Bools] = {}
        self.sets: list[list[CompiledGroup]] = []  # those compared with each other
        by_outer: dict[tuple[str, int], list[CompiledGroup]] = {}
        for group in groups:
            if group.exclusive:
                by_outer.setdefault((group.exclusive, _outer(groups, group)), []).append(group)
        arrays: dict[tuple[tuple[str, ...], str, frozenset[str]], Bools] = {}
        for alike in by_outer.values():
            self.sets.append(alike)
            pinned = {self.value(g, g.pinned) for g in alike if g.pinned >= 0}
            for group in alike:
                self._beside[group.index] = alike
                if group.pinned < 0:
                    values = frozenset(pinned.union(_taken(group)))
                    key = (group.level.keys, group.exclusive, values)
                    if key not in arrays:
                        arrays[key] = self._with_value(group, values)
                    self.closed[group.index] = arrays[key]

    def value(self, group: CompiledGroup, domain: int) -> str:
        """Return the value that a domain of a group has of its exclusive key."""
        return group.level.values[domain][group.level.keys.index(group.exclusive)]

    def chosen_by_others(self, group: CompiledGroup, domains: Mapping[int, int]) -> set[str]:
        """Return the values that other groups have chosen; `domains`: of the groups that are placed."""
        return {
            self.value(other, domains[other.index])
            for other in self._beside[group.index]
            if other is not group and other.index in domains
        }

    def _with_value(self, group: CompiledGroup, values: frozenset[str]) -> Bools:
        place = group.level.keys.index(group.exclusive)
        return np.array([value[place] in values for value in group.level.values], dtype=np.bool_)


def _outer(groups: Sequence[CompiledGroup], group: CompiledGroup) -> int:
    """Return the nearest group above with the same exclusive key; -1: none."""
    index = group.parent
    while index >= 0 and groups[index].exclusive != group.exclusive:
        index = groups[index].parent
    return index


def _taken(group: CompiledGroup) -> tuple[str, ...]:
    source = group.source.exclusive
    return () if isinstance(source, UnsetType) else source.taken


@dataclass(slots=True)
class PlacementProblem:
    """Everything that a search reads; nothing in it changes during a search."""

    node_table: NodeTable
    groups: list[CompiledGroup]  # parents before children, stored order
    kinds: list[int]  # kind -> index of its shape
    shapes: list[PodShape]  # per kind
    requests: Ints  # (kinds, axes)
    free: Ints  # (nodes, axes)
    allowed: Bools  # (kinds, nodes): static filters and node rejections
    claims: list[frozenset[str]]  # per kind, claims that only one pod in the cluster may use
    in_use: frozenset[str]  # claims that a running pod uses
    axes: list[str]
    counts: Ints  # (kinds, nodes): pods of one kind that fit when no other pod is placed
    violations: list[str]  # reasons why the bound members are in no common domain
    rules: InterpodConstraints  # between pods
    # per kind: its requests as shares of the largest free amounts, summed, in millionths
    weights: list[int]
    violated: list[GroupKey] = field(default_factory=list)  # the groups of `violations`
    levels: tuple[str, ...] = ()  # topology keys for groups without wishes, narrowest first
    preferences: tuple[PlanPreference, ...] = ()
    exclusive: ExclusiveGroups = field(default_factory=ExclusiveGroups)
    # `node_scores` of the `counts` for which they were last asked for; problems that differ only in their groups share it
    scores: IdentityMemo[Ints | None] = field(default_factory=IdentityMemo)
    _pods: IdentityMemo[PodBounds] = field(default_factory=IdentityMemo)

    def above(self, group: CompiledGroup) -> Iterator[CompiledGroup]:
        """Yield a group and those above it, the root last."""
        yield group
        while group.parent >= 0:
            group = self.groups[group.parent]
            yield group

    def below(self, group: CompiledGroup) -> Iterator[CompiledGroup]:
        """Yield a group and all below it, parents first."""
        yield group
        for index in group.children:
            yield from self.below(self.groups[index])

    def kinds_below(self, group: CompiledGroup) -> list[int]:
        """Return the kinds of the waiting members of a group, and of those below it, ascending."""
        return sorted({kind for each in self.below(group) for kind in each.members})

    def pods(self, counts: Ints | None = None) -> PodBounds:
        """Return how many pods fit where, as long as none is placed; `counts`: instead of those of the problem."""
        table = self.counts if counts is None else counts
        return self._pods.get(
            lambda: PodBounds(self.free, self.requests, table),
            same=(self.free, self.requests, table),
        )


@dataclass(slots=True, frozen=True)
class Options:
    """Requirements to leave out, for explanations."""

    no_rejections: bool = False
    no_selectors: bool = False  # nor required node affinity
    no_volumes: bool = False  # where volumes are
    no_taints: bool = False
    no_cordons: bool = False
    no_rules: bool = False  # between pods
    no_resources: bool = False  # nor host ports, nor claims that one pod may use
    no_reservations: bool = False
    no_closed: bool = False  # domains that exclusive groups of other trees have
    no_pod_limit: bool = False  # how many pods a node may run
    only_near: bool = False  # without rules that evicting other pods could satisfy (C.2)

    def __or__(self, other: Options) -> Options:
        """Return both."""
        return Options(*map(or_, _values_of(self), _values_of(other)))


# of all fields; `dataclasses.astuple` copies each value, and an explanation joins options a hundred times
_values_of = attrgetter(*(each.name for each in fields(Options)))


@dataclass(slots=True, frozen=True)
class LeftOut:
    """Requirements that an explanation leaves out of a request."""

    options: Options = Options()
    groups: Changes = field(default_factory=dict)
    of_shapes: tuple[Callable[[PodShape], PodShape], ...] = ()  # each changes every shape
    rules: frozenset[int] = frozenset()  # between pods, by their indexes, which the others keep

    def __or__(self, other: LeftOut) -> LeftOut:
        """Return both."""
        groups = {**self.groups}
        for key, change in other.groups.items():
            groups[key] = groups[key] | change if key in groups else change
        options, of_shapes = self.options | other.options, self.of_shapes + other.of_shapes
        return LeftOut(options, groups, of_shapes, self.rules | other.rules)

    def of(self, request: PlanRequest) -> PlanRequest:
        """Return a request without them, but for the options; what does not change is the same object."""
        if self.groups:
            root = changed_tree(request.root, self.groups)
            request = msgspec.structs.replace(request, root=root)
        for change in self.of_shapes:
            shapes = tuple(map(change, request.shapes))
            request = msgspec.structs.replace(request, shapes=shapes)
        if self.rules:
            rules = tuple(
                msgspec.structs.replace(rule, shapes=(), about=()) if i in self.rules else rule
                for i, rule in enumerate(request.rules)
            )
            request = msgspec.structs.replace(request, rules=rules)
        return request


def compile_request(
    request: PlanRequest,
    node_table: NodeTable,
    options: Options | None = None,
    *,
    compiled: PlacementProblem | None = None,
) -> PlacementProblem:
    """Compile a request; cheap if the columns of `node_table` are computed already.

    Args:
        compiled: A request that was compiled without node rejections and rules: its groups and kinds are used again where
            they are the same, which saves most of the time for a large tree.
    """
    options = options or Options()
    rules = InterpodConstraints()
    if not options.no_rules:
        rules = compile_rules(request, node_table, strict=not options.only_near)
    if compiled is not None and shares_groups(request, node_table, compiled):
        groups, kinds = compiled.groups, compiled.kinds
        rejected = [frozenset[int]()] * len(kinds)
    else:
        groups, kinds, rejected = _groups(request, node_table, options, rules)
    shapes = [request.shapes[shape] for shape in kinds]
    axes, requests, free = _free_capacity(node_table, shapes, options)
    if rules.axes:
        axes, requests, free = _with_rules(rules, kinds, axes, requests, free)
    allowed = np.zeros((len(kinds), node_table.size), dtype=np.bool_)
    counts = np.zeros((len(kinds), node_table.size), dtype=np.int64)
    claims = [frozenset(() if options.no_resources else shape.exclusive_claims) for shape in shapes]
    in_use = frozenset(request.claims_in_use)
    opened = None if options.no_closed else open_nodes(request, node_table)
    for k, shape in enumerate(shapes):
        allowed[k] = _static(node_table, shape, options)
        if kinds[k] in rules.masks:
            allowed[k] &= rules.masks[kinds[k]]
        if opened is not None:
            allowed[k] &= opened
        allowed[k][sorted(rejected[k])] = False
        counts[k] = np.where(allowed[k], count_fitting(free, requests[k]), 0)
        if claims[k]:
            counts[k] = 0 if claims[k] & in_use else np.minimum(counts[k], 1)
    problem = PlacementProblem(
        node_table,
        groups,
        kinds,
        shapes,
        requests,
        free,
        allowed,
        claims,
        in_use,
        axes,
        counts,
        [],
        rules,
        _weights(requests, free),
        levels=request.levels or (),
        preferences=request.preferences or (),
    )
    _pin(problem)
    return problem


def with_keys(problem: PlacementProblem, keys: Mapping[int, str]) -> PlacementProblem:
    """Return the same problem, in which some groups must be in one domain of a further key."""
    groups: list[CompiledGroup] = []
    for group in problem.groups:
        above = groups[group.parent].level.keys if group.parent >= 0 else ()
        source, own = group.source, group.level.keys
        if (key := keys.get(group.index)) is not None:
            source = msgspec.structs.replace(source, topology=(*source.topology, key))
            own = (*own, key)
        own = tuple(k for k in dict.fromkeys(own) if k not in above)
        level = problem.node_table.level((*above, *own))
        groups.append(replace(group, source=source, level=level, pinned=-1))
    other = replace(problem, groups=groups, violations=[], violated=[])
    _pin(other)
    return other


def shares_groups(request: PlanRequest, node_table: NodeTable, compiled: PlacementProblem) -> bool:
    """Return whether the groups and kinds of a compiled request are those of another one."""
    return (
        request.root is compiled.groups[0].source
        and node_table is compiled.node_table
        and not request.rejected_nodes
        and not request.rules  # their keys are part of the levels of groups
    )


def _weights(requests: Ints, free: Ints) -> list[int]:
    if not len(free):
        return [0] * len(requests)
    largest = [max(int(most), 1) for most in free.max(axis=0)]
    return [
        sum(int(r) * 1_000_000 // most for r, most in zip(request, largest, strict=True))
        for request in requests
    ]


def open_nodes(request: PlanRequest, node_table: NodeTable) -> Bools | None:
    """Return which nodes are in no domain that an exclusive group of another tree has; None: all."""
    if isinstance(request.closed, UnsetType):
        return None
    opened = np.ones(node_table.size, dtype=np.bool_)
    for domains in request.closed:
        numbers, values = node_table.label(domains.key)
        opened &= ~np.isin(numbers, [values.index(v) for v in domains.taken if v in values])
    return opened


def _static(node_table: NodeTable, shape: PodShape, options: Options) -> Bools:
    if options.no_selectors:
        volumes = tuple(selector for selector in shape.selectors if selector.volume)
        shape = PodShape(tolerations=shape.tolerations, selectors=volumes)
    if options.no_volumes:
        shape = without_volumes(shape)
    kept = tolerated(
        node_table, shape, taints=not options.no_taints, cordons=not options.no_cordons
    )
    return selected(node_table, shape) & kept


def _groups(
    request: PlanRequest, node_table: NodeTable, options: Options, rules: InterpodConstraints
) -> tuple[list[CompiledGroup], list[int], list[frozenset[int]]]:
    """Return the compiled groups, the shape of each kind, and the rejected nodes of each kind."""
    of_shape, of_pod = _rejected(request, node_table, options)
    groups: list[CompiledGroup] = []
    number: dict[tuple[int, frozenset[int]], int] = {}
    none: frozenset[int] = frozenset()

    def kind_of(member: PlanMember) -> int:
        own = frozenset(of_pod.get(member.uid, ())) if of_pod else none
        return number.setdefault((member.shape, own), len(number))

    def walk(source: PlanGroup, parent: int, *, keys: tuple[str, ...], alive: bool) -> None:
        of = groups[parent].source if parent >= 0 else None
        shared = domain_keys(source)
        if rules.keys:
            shared = (*shared, *rules.keys.get(source.key, ()))
        if shared:
            keys += tuple(k for k in dict.fromkeys(shared) if k not in keys)
        group = CompiledGroup(
            index=len(groups),
            source=source,
            parent=parent,
            leaf=is_leaf(source),
            minimum=threshold(source),
            level=node_table.level(keys),
            bound=len(source.bound),
            alive=alive and admissible(source),
            holds=satisfied_by_bound(source),
            required=of is not None and is_required(source, of),
            exclusive="" if isinstance(source.exclusive, UnsetType) else source.exclusive.key,
        )
        groups.append(group)
        if parent >= 0:
            groups[parent].children.append(group.index)
        shapes = {member.shape for member in source.members} if group.alive else set[int]()
        if group.leaf and len(shapes) == 1 and not of_pod:
            group.members[kind_of(source.members[0])] = list(range(len(source.members)))
        elif group.leaf and group.alive:
            by_shape: dict[int, list[int]] = {}
            for position, member in enumerate(source.members):
                positions = by_shape.get(member.shape)
                if positions is None or of_pod:  # of a shape, those with rejections are other kinds
                    positions = group.members.setdefault(kind_of(member), [])
                    by_shape[member.shape] = positions
                positions.append(position)
        group.size = sum(map(len, group.members.values()))
        for child in source.groups:
            walk(child, group.index, keys=keys, alive=group.alive)

    walk(request.root, -1, keys=(), alive=True)
    for group in reversed(groups):
        group.least = _least(group, groups)
    rejected = [own | frozenset(of_shape.get(shape, ())) for shape, own in number]
    return groups, [shape for shape, _ in number], rejected


def _rejected(
    request: PlanRequest, node_table: NodeTable, options: Options
) -> tuple[dict[int, set[int]], dict[str, set[int]]]:
    """Return the rejected nodes of shapes, and those of single pods by their UIDs."""
    of_shape: dict[int, set[int]] = {}
    of_pod: dict[str, set[int]] = {}
    for rejection in () if options.no_rejections else request.rejected_nodes:
        node = node_table.index.get(rejection.node)
        if node is None:
            continue
        if rejection.uid is not None:
            of_pod.setdefault(rejection.uid, set()).add(node)
        elif rejection.shape is not None:
            of_shape.setdefault(rejection.shape, set()).add(node)
    return of_shape, of_pod


def _least(group: CompiledGroup, groups: list[CompiledGroup]) -> int:
    """Count the fewest new pods that satisfy a group."""
    if group.leaf:
        return max(0, group.minimum - group.bound)
    alive = [groups[c] for c in group.children if groups[c].alive]
    alive.sort(key=lambda child: (not child.required, child.least))
    return sum(child.least for child in alive[: group.minimum])


def _free_capacity(
    node_table: NodeTable, shapes: list[PodShape], options: Options
) -> tuple[list[str], Ints, Ints]:
    """Return the axes (requested resources, `pods`, host ports per address), requests and free capacity."""
    per_shape = [{**{r: v for r, v in s.requests if v > 0}, "pods": 1} for s in shapes]
    names = sorted({r for a in per_shape for r in a} | {"pods"})
    ports = port_axes(shapes)
    rows = [
        [a.get(r, 0) for r in names] + port_request(s, ports)
        for a, s in zip(per_shape, shapes, strict=True)
    ]
    requests = np.array(rows, dtype=np.int64).reshape(len(shapes), len(names) + len(ports))
    unlimited = FIT_MAX << 20
    if options.no_resources:
        free = np.full((node_table.size, len(names) + len(ports)), unlimited, dtype=np.int64)
    else:
        free = node_table.stacked(tuple(names), unreserved=options.no_reservations)
        if ports:
            free = np.column_stack([free, *(free_ports(node_table, port) for port in ports)])
        if options.no_pod_limit:
            free = free.copy()
            free[:, names.index("pods")] = unlimited
    axes = names + [f"host port {p.port}/{p.protocol}" for p in ports]
    return axes, requests, free


def _with_rules(
    rules: InterpodConstraints, kinds: list[int], axes: list[str], requests: Ints, free: Ints
) -> tuple[list[str], Ints, Ints]:
    """Add an axis for every `ExclusionAxis`."""
    for axis in rules.axes:
        takes = [axis.take if s in axis.keepers else int(s in axis.others) for s in kinds]
        axes = [*axes, axis.name]
        requests = np.column_stack([requests, np.array(takes, dtype=np.int64)])
        free = np.column_stack([free, axis.capacity])
    return axes, requests, free


def _pin(problem: PlacementProblem) -> None:
    """Set the domain that bound members fix for each constrained group, and list violations."""
    groups, node_table = problem.groups, problem.node_table
    below: list[list[PlanBound]] = [list(g.source.bound) for g in groups]
    for group in reversed(groups):
        if group.parent >= 0:
            below[group.parent].extend(below[group.index])
    for group in groups:
        if not group.level.keys or not below[group.index]:
            continue
        if domain_keys(group.source):
            text = _violation(group, below[group.index], node_table)
            if text:
                problem.violations.append(text)
                problem.violated.append(group.source.key)
                continue
        node = node_table.index.get(NodeName(below[group.index][0].node))
        if node is not None:
            group.pinned = int(group.level.domain[node])
    if any(group.exclusive for group in groups):
        problem.exclusive = ExclusiveGroups(groups)


def _violation(group: CompiledGroup, bound: list[PlanBound], node_table: NodeTable) -> str:
    """Return the reason why the bound members of a group are in no common domain, or an empty string."""
    name = group_name(group.source.key)
    for key in domain_keys(group.source):
        first: tuple[str, str] | None = None  # a value, and a pod that is in its domain
        for b in bound:
            node = node_table.index.get(b.node)
            value = node_table.nodes[node].labels.get(key) if node is not None else None
            if value is None:
                why = f"which has no label {key}"
                if node is None:
                    why = f"which is not in the cluster, so its domain of {key} is not known"
                return f"{name}: member {b.pod} is bound to node {b.node}, {why}{NOTHING_NEW}"
            first = first or (value, b.pod)
            if first[0] != value:
                return (
                    f'{name}: bound members are in two domains of {key}: "{first[0]}" ({first[1]}) '
                    f'and "{value}" ({b.pod}){NOTHING_NEW}'
                )
    return ""


def given(request: PlanRequest, problem: PlacementProblem, *, limited: bool) -> tuple[str, ...]:
    """List the conditions that a result depends on and the planner does not model.

    Node rejections only if `limited`: they may have kept members from a node.
    """
    used = sorted({problem.kinds[k] for g in problem.groups for k in g.members})
    lines = dict.fromkeys(text for s in used for text in request.shapes[s].unmodelled)
    unjudged = problem.rules.unjudged.items()
    lines |= {
        text: None for i, text in unjudged if not set(used).isdisjoint(request.rules[i].shapes)
    }
    if limited and request.rejected_nodes:
        names = sorted({v.node for v in request.rejected_nodes})
        lines[f"kube-scheduler refused {join_names(names)}"] = None
    return tuple(lines)
