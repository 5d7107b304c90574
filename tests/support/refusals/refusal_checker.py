"""Checks a refusal against its request: the conflict is true and minimal, each way out works, and more nodes are named where they would do.

Imports nothing of the planner but its types. `faults` returns texts; a good refusal has none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec
from msgspec import UNSET

from extender.core.model.ids import NodeName
from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import (
    AddedNodes,
    Conflict,
    PlanGroup,
    PlanNode,
    PlanRequest,
    Refusal,
    Relaxation,
)
from tests.support.refusals.exhaustive_search import (
    Requirement,
    all_requirements,
    domain_keys,
    fits,
    is_leaf,
    minimum_kind,
    walk,
)

replace = msgspec.structs.replace
HOSTNAME = "kubernetes.io/hostname"
PARTS = {
    ("taint", "cordons"): "cordon",
    ("selector", "podRules"): "rules",
    ("selector", "volumes"): "volumes",
    ("exclusive", "otherTrees"): "otherTrees",
}


def faults(request: PlanRequest, refusal: Refusal) -> list[str]:
    """Return everything that is wrong with an *impossible* refusal that has an explanation."""
    request = replace(request, evictable=None)
    free = replace(request, rejected_nodes=())
    if fits(free):
        return ["the tree fits"]
    return [
        *_conflict_faults(free, refusal.conflict),
        *(text for change in refusal.changes for text in _change_faults(request, change)),
        *_unnamed_nodes(request, refusal),
    ]


# --- the conflict


def _requirement(conflict: Conflict) -> Requirement:
    if conflict.kind in {"minCount", "minGroupCount", "topology"} or (
        conflict.kind == "exclusive" and not conflict.part
    ):
        return conflict.kind, conflict.object
    return PARTS.get((conflict.kind, conflict.part), conflict.kind), ""


def _conflict_faults(request: PlanRequest, conflict: tuple[Conflict, ...]) -> Iterator[str]:
    every = all_requirements(request)
    named = frozenset(_requirement(one) for one in conflict)
    if not named:
        yield "no conflict is named"
        return
    if len(named) < len(conflict) or not named <= every:
        yield f"the conflict has a requirement twice, or one that the tree does not have: {sorted(named - every)}"
        return
    if fits(request, every - named):
        yield f"what the conflict names holds together: {sorted(named)}"
    for one in sorted(named):
        if not fits(request, every - named | {one}):
            yield f"the conflict names {one} without need: {sorted(named)}"
    for one in conflict:
        if one.kind == "topology" and not one.part:
            yield from _contradicting_bound(request, one)


def _contradicting_bound(request: PlanRequest, topology: Conflict) -> Iterator[str]:
    """Yield bound pods that are in no common domain of a group, if the message does not name two of them and the domains."""
    group = next(g for g in walk(request.root) if str(g.key) == topology.object)
    labels = {node.name: node.labels for node in request.nodes}
    where = {
        bound.pod: tuple(labels.get(bound.node, {}).get(key) for key in domain_keys(group))
        for leaf in walk(group)
        for bound in leaf.bound
    }
    if len(set(where.values())) <= 1 and not any(None in value for value in where.values()):
        return
    named = [pod for pod in where if pod in topology.message]
    unknown = [pod for pod in named if None in where[pod]]
    if not unknown and len({where[pod] for pod in named}) < 2:
        yield f"{topology.message!r} does not name the bound pods that contradict it: {where}"


# --- ways out


def changed(request: PlanRequest, change: Relaxation) -> PlanRequest:
    """Return the request with a change made."""
    match change.kind:
        case "minCount" | "minGroupCount":
            return replace(request, root=_with_minimum(request.root, str(change.groups[0]), change.minimum))  # fmt: skip
        case "topology":
            return replace(request, root=_without_topology(request.root, {str(g) for g in change.groups}))  # fmt: skip
        case "exclusive" if not change.groups:
            return replace(request, closed=UNSET)
        case "exclusive":
            return replace(request, root=_sharing(request.root, {str(g) for g in change.groups}))
        case "nodes":
            return replace(request, nodes=_with_added(request, change.added))
        case "reservation":
            return replace(request, nodes=tuple(_unreserved(n, change) for n in request.nodes))
        case "taint":
            return replace(request, nodes=tuple(_tolerated(n, change) for n in request.nodes))
        case "selector":
            return replace(request, shapes=tuple(map(_without_selectors, request.shapes)))
        case "volumes":
            return replace(request, shapes=tuple(map(_without_volumes, request.shapes)))
        case "podRules":
            rules = (r for i, r in enumerate(request.rules) if i not in change.rules)
            return replace(request, rules=tuple(rules))


def _without_selectors(shape: PodShape) -> PodShape:
    volumes = tuple(selector for selector in shape.selectors if selector.volume)
    return replace(shape, node_selector=(), selectors=volumes)


def _without_volumes(shape: PodShape) -> PodShape:
    return replace(shape, selectors=tuple(s for s in shape.selectors if not s.volume))


def _with_minimum(group: PlanGroup, key: str, minimum: int) -> PlanGroup:
    groups = tuple(_with_minimum(child, key, minimum) for child in group.groups)
    least = minimum if str(group.key) == key else group.minimum
    return replace(group, groups=groups, minimum=least)


def _without_topology(group: PlanGroup, keys: set[str]) -> PlanGroup:
    groups = tuple(_without_topology(child, keys) for child in group.groups)
    if str(group.key) in keys:
        group = replace(group, topology=(), exclusive=UNSET)
    return replace(group, groups=groups)


def _sharing(group: PlanGroup, keys: set[str]) -> PlanGroup:
    groups = tuple(_sharing(child, keys) for child in group.groups)
    if str(group.key) in keys:
        group = replace(group, topology=domain_keys(group), exclusive=UNSET)
    return replace(group, groups=groups)


def _unreserved(node: PlanNode, change: Relaxation) -> PlanNode:
    if node.name not in change.nodes:
        return node
    free = {r: amount + node.reserved.get(r, 0) for r, amount in node.free.items()}
    return replace(node, free=free, reserved={})


def _tolerated(node: PlanNode, change: Relaxation) -> PlanNode:
    return replace(
        node,
        taints=tuple(t for t in node.taints if t.key not in change.taints),
        unschedulable=node.unschedulable and node.name not in change.nodes,
    )


def _with_added(request: PlanRequest, added: tuple[AddedNodes, ...]) -> tuple[PlanNode, ...]:
    by_name = {node.name: node for node in request.nodes}
    own = _own_labels(request)
    return request.nodes + tuple(
        copy(by_name[one.like], number, own | {*one.own_labels}, {*one.common_labels})
        for one in added
        for number in range(one.count)
    )


def copy(node: PlanNode, number: int, own: set[str], common: Collection[str] = ()) -> PlanNode:
    """Return an empty node like another one, of some keys in a domain of its own, of some in one with all other new nodes."""
    name = f"{node.name}+{number}"
    labels = {k: f"{name}/{k}" if k in own else v for k, v in node.labels.items()}
    labels |= {k: f"new {k}" for k in common if k in labels}
    return PlanNode(
        name=NodeName(name),
        labels=labels,
        taints=node.taints,
        unschedulable=node.unschedulable,
        allocatable=node.allocatable,
        free=node.allocatable,
    )


def _change_faults(request: PlanRequest, change: Relaxation) -> Iterator[str]:
    if not fits(changed(request, change)):
        yield f"it does not fit after {change.text!r}"
    for text in _weaker(request, change):
        yield f"{change.text!r}: {text}"


def _weaker(request: PlanRequest, change: Relaxation) -> Iterator[str]:
    """Yield how less of the same change would do."""
    match change.kind:
        case "minCount" | "minGroupCount":
            (key,) = change.groups
            group = next(g for g in walk(request.root) if g.key == key)
            more = replace(change, minimum=change.minimum + 1)
            if change.kind != minimum_kind(group) or not change.minimum < group.minimum:
                yield "it is not lower"
            elif more.minimum < group.minimum and fits(changed(request, more)):
                yield f"{more.minimum} would do"
        case "nodes":
            for place, one in enumerate(change.added):
                fewer = replace(one, count=one.count - 1)
                rest = [fewer if i == place else other for i, other in enumerate(change.added)]
                if fits(changed(request, replace(change, added=tuple(rest)))):
                    yield f"{one.count - 1} like {one.like} would do"
        case "taint":
            for name in (*change.taints, *change.nodes):
                less = replace(
                    change,
                    taints=tuple(t for t in change.taints if t != name),
                    nodes=tuple(n for n in change.nodes if n != name),
                )
                if fits(changed(request, less)):
                    yield f"{name} is named without need"
        case "podRules" if len(change.rules) > 1:
            for rule in change.rules:
                rest = tuple(r for r in change.rules if r != rule)
                if fits(changed(request, replace(change, rules=rest))):
                    yield f"rule {rule} is named without need"
        case "reservation":
            for name in change.nodes:
                less = replace(change, nodes=tuple(n for n in change.nodes if n != name))
                if fits(changed(request, less)):
                    yield f"{name} is named without need"
        case "topology" | "exclusive" if len(change.groups) > 1:
            for group in change.groups:
                others = tuple(g for g in change.groups if g != group)
                if fits(changed(request, replace(change, groups=others))):
                    yield f"{group} is named without need"


# --- more nodes


def _own_labels(request: PlanRequest) -> set[str]:
    """Return the keys that identify a node: the hostname, and what is different on every node and no constraint of a tree."""
    asked = {key for group in walk(request.root) for key in domain_keys(group)}
    asked |= {domains.key for domains in request.closed or ()}
    asked |= {key for rule in request.rules if rule.kind == "near" for key in rule.keys}
    for shape in request.shapes:
        asked |= {key for key, _ in shape.node_selector}
        asked |= {label.key for s in shape.selectors for term in s.terms for label in term.labels}
    keys = {key for node in request.nodes for key in node.labels}
    own = set()
    for key in keys:
        values = Counter(node.labels[key] for node in request.nodes if key in node.labels)
        named = all(node.labels.get(key, node.name) == node.name for node in request.nodes)
        if key == HOSTNAME or named or (len(values) > 1 and values.most_common(1)[0][1] == 1 and key not in asked):  # fmt: skip
            own.add(key)
    return own


def _unnamed_nodes(request: PlanRequest, refusal: Refusal) -> Iterator[str]:
    """Yield nodes of which more would do, if the refusal names none."""
    if any(change.kind == "nodes" for change in refusal.changes):
        return
    waiting = sum(len(g.members) for g in walk(request.root) if is_leaf(g))
    needed = sum(
        max(0, (1 if g.basic else g.minimum) - len(g.bound))
        for g in walk(request.root)
        if is_leaf(g)
    )
    steady = not any(rule.kind != "apart" for rule in request.rules)
    most = min(waiting, needed) if steady else waiting
    for number in [most] if steady else range(1, most + 1):
        for like, new in itertools.product(_models(request.nodes), ((), *_new_domains(request))):
            added = (AddedNodes(like=like.name, count=number, own_labels=(), common_labels=new),)
            if fits(replace(request, nodes=_with_added(request, added))):
                yield f"{number} more nodes like {like.name} would do, in one new domain of {new}"
                return
    if steady:
        every = (AddedNodes(like=like.name, count=most, own_labels=()) for like in _models(request.nodes))  # fmt: skip
        if fits(replace(request, nodes=_with_added(request, tuple(every)))):
            yield f"{most} more nodes like each node would do"


def _new_domains(request: PlanRequest) -> Iterator[tuple[str, ...]]:
    """Yield a key whose domains may be closed, with the keys of constraints below it of which its domains have different values."""
    groups = list(walk(request.root))
    closed = {domains.key for domains in request.closed or ()}
    closed |= {group.exclusive.key for group in groups if group.exclusive}
    closed |= {key for rule in request.rules for key in rule.keys}
    names = {k for n in request.nodes for k in n.labels if all(other.labels.get(k, other.name) == other.name for other in request.nodes)}  # fmt: skip
    for key in sorted(closed - names):
        below = {k for g in groups for k in g.topology if k != key} - names
        pairs = {(n.labels.get(k), n.labels.get(key), k) for n in request.nodes for k in below}
        outer = Counter((value, k) for value, _, k in pairs if value is not None)
        nested = {k for k in below if all(n == 1 for (_, of), n in outer.items() if of == k)}
        yield (key,)
        if nested:
            yield tuple(sorted({key, *nested}))


def _models(nodes: tuple[PlanNode, ...]) -> list[PlanNode]:
    """Return nodes that differ in more than their name."""
    found = {}
    for node in nodes:
        key = (tuple(sorted((k, v) for k, v in node.labels.items() if v != node.name)), node.taints,
               node.unschedulable, tuple(sorted(node.allocatable.items())))  # fmt: skip
        found.setdefault(key, node)
    return list(found.values())
