"""Checks a plan against its request, by rules implemented without the planner (C.1 to C.7, D1 to D15).

Imports nothing of the planner but its vocabulary. `faults` returns texts; a valid plan has none.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from extender.core.model.ids import GroupKey
from extender.core.planner.plan_types import Plan, PlanGroup, PlanNode, PlanRequest
from tests.support.planning.interpod_checker import broken_rules
from tests.support.planning.static_filters_checker import passes


def _leaves(g: PlanGroup) -> list[PlanGroup]:
    return [x for c in g.groups for x in _leaves(c)] if g.groups else [g]


def _walk(g: PlanGroup) -> list[PlanGroup]:
    return [g, *(x for c in g.groups for x in _walk(c))]


def _holds(g: PlanGroup, new: Counter) -> bool:
    least = 1 if g.basic else g.minimum
    if g.key.kind == "PodGroup" and not g.groups:
        return new[g.key] + len(g.bound) >= least
    held = {c.key: _holds(c, new) for c in g.groups}
    return sum(held.values()) >= least and all(
        any(key.name == name for key in held)
        and all(ok for key, ok in held.items() if key.name == name)
        for name in (() if g.basic else g.required or ())
    )


def _object(key: GroupKey) -> GroupKey:
    """Return the object that a leaf stands for: of the slice `train/slice-0` it is train."""
    return GroupKey(namespace=key.namespace, name=key.name.split("/")[0], kind=key.kind)


def clash(a, b) -> bool:
    return (a.protocol, a.port) == (b.protocol, b.port) and (
        a.ip == b.ip or "0.0.0.0" in {a.ip, b.ip}
    )


def is_closed(request: PlanRequest, node: PlanNode) -> bool:
    """Return whether a node is in a domain that an exclusive group of another tree has."""
    return any(node.labels.get(domains.key) in domains.taken for domains in request.closed or ())


def faults(request: PlanRequest, plan: Plan) -> list[str]:
    bad: list[str] = []
    nodes = {n.name: n for n in request.nodes}
    members = {m.uid: (leaf, m) for leaf in _leaves(request.root) for m in leaf.members}
    if len({a.uid for a in plan.assignments}) != len(plan.assignments):
        bad.append("a pod is placed twice")
    if list(plan.assignments) != sorted(plan.assignments, key=lambda a: a.pod):
        bad.append("assignments are not sorted by pod")
    out = sorted(
        m.pod for _, m in members.values() if m.uid not in {a.uid for a in plan.assignments}
    )
    if out != list(plan.unplaced):
        bad.append(f"unplaced is {plan.unplaced}, not {out}")
    rejected = {(v.node, v.uid, v.shape) for v in request.rejected_nodes}
    used: dict[str, Counter] = defaultdict(Counter)
    ports = {n.name: list(n.host_ports) for n in request.nodes}
    claims = Counter(request.claims_in_use)
    for a in plan.assignments:
        leaf, member = members.get(a.uid, (None, None))
        node = nodes.get(a.node)
        if (
            leaf is None
            or node is None
            or (a.group, a.pod, a.shape) != (_object(leaf.key), member.pod, member.shape)
        ):
            bad.append(f"{a.pod}: not a waiting member, or no such node")
            continue
        shape = request.shapes[a.shape]
        if is_closed(request, node):
            bad.append(f"{a.pod} is on {a.node}, in a domain that another tree has alone")
        if not passes(shape, node) or rejected & {(a.node, a.uid, None), (a.node, None, a.shape)}:
            bad.append(f"{a.pod} may not run on {a.node}")
        used[a.node].update(dict(shape.requests) | {"pods": 1})
        if any(clash(p, q) for p in shape.host_ports for q in ports[a.node]):
            bad.append(f"{a.pod}: port clash on {a.node}")
        ports[a.node].extend(shape.host_ports)
        claims.update(shape.exclusive_claims)
        if any(claims[c] > 1 for c in shape.exclusive_claims):
            bad.append(f"{a.pod}: exclusive claim used twice")
    seats = [(a.shape, nodes[a.node]) for a in plan.assignments if a.node in nodes]
    bad += broken_rules(request, seats)
    for name, sums in used.items():
        for resource, amount in sums.items():
            free = nodes[name].free.get(resource, 0) if resource in nodes[name].allocatable else 0
            if amount > 0 and amount > free:
                bad.append(f"{name}: {resource} {amount} of {free}")
    leaf_of = {uid: leaf.key for uid, (leaf, _) in members.items()}
    new = Counter(leaf_of[a.uid] for a in plan.assignments)
    must = Counter(leaf_of[a.uid] for a in plan.assignments if not a.extra)
    if not _holds(request.root, new):
        bad.append("the root does not hold")
    if not _holds(request.root, must):
        bad.append("the root does not hold without extras")
    for a in {leaf_of[a.uid] for a in plan.assignments if not a.extra}:
        if _holds(request.root, must - Counter({a: 1})):
            bad.append(f"{a}: more pods are marked as minimum than needed")
    where = {p.group: p.domain for p in plan.placements}
    for g in _walk(request.root):
        below = [leaf.key for leaf in _leaves(g)]
        fresh = [a.node for a in plan.assignments if leaf_of[a.uid] in below]
        held = [b.node for leaf in _leaves(g) for b in leaf.bound]
        if fresh and not _holds(g, new):
            bad.append(f"{g.key}: pods placed, minimum not met")
        topology = (*g.topology, *(k for k in _exclusive_keys(g) if k not in g.topology))
        if topology and (fresh or held):
            values = {
                tuple(nodes[n].labels.get(k) if n in nodes else None for k in topology)
                for n in fresh + held
            }
            if len(values) != 1 or None in next(iter(values)):
                bad.append(f"{g.key}: domains {values}")
            elif where.get(g.key) != tuple(zip(topology, next(iter(values)), strict=True)):
                bad.append(f"{g.key}: placement has {where.get(g.key)}, pods are in {values}")
        elif g.key in where:
            bad.append(f"{g.key}: has a placement but no pods or no constraint")
    fresh_nodes: dict = {leaf.key: [] for leaf in _leaves(request.root)}
    for a in plan.assignments:
        fresh_nodes[leaf_of[a.uid]].append(a.node)
    bad += shared_domains(request, fresh_nodes)
    return bad


def _exclusive_keys(g: PlanGroup) -> tuple[str, ...]:
    return (g.exclusive.key,) if g.exclusive else ()


def shared_domains(request: PlanRequest, new: dict) -> list[str]:
    """Return which exclusive groups have new pods where others are; `new`: the nodes of the new pods of each leaf.

    Bound members are where they are: a group with some stays in their domain, even if others are in it, and the groups below it
    share it with these others (D20), but not among each other.
    """
    labels = {n.name: n.labels for n in request.nodes}
    bad = []
    groups = [g for g in _walk(request.root) if g.exclusive]
    for g in groups:
        key = g.exclusive.key
        fresh = {labels[n].get(key) for leaf in _leaves(g) for n in new[leaf.key]}
        held = {labels.get(b.node, {}).get(key) for leaf in _leaves(g) for b in leaf.bound}
        if held or not fresh:
            continue
        if fresh & set(g.exclusive.taken):
            bad.append(f"{g.key}: is in {fresh}, which others have")
        above = [a for a in groups if a.exclusive.key == key and a is not g and g in _walk(a)]
        staying = [a for a in above if any(leaf.bound for leaf in _leaves(a))]
        for h in groups:
            if h.exclusive.key != key or h in _walk(g) or g in _walk(h):
                continue
            if any(h not in _walk(a) for a in staying):
                continue
            theirs = {labels[n].get(key) for leaf in _leaves(h) for n in new[leaf.key]}
            theirs |= {labels.get(b.node, {}).get(key) for leaf in _leaves(h) for b in leaf.bound}
            if fresh & theirs:
                bad.append(f"{g.key}: is in {fresh} with {h.key}")
    return bad
