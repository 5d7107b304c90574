"""An exhaustive solver for tiny instances: every assignment of every pod, checked by the rules of `plan_checker`.

Imports nothing of the planner. Exponential: some 6 pods on 5 nodes.
"""

from __future__ import annotations

from collections import Counter

from extender.core.planner.plan_types import PlanGroup, PlanRequest
from tests.support.planning.interpod_checker import broken_rules
from tests.support.planning.plan_checker import (
    _holds,
    _leaves,
    _walk,
    clash,
    is_closed,
    shared_domains,
)
from tests.support.planning.static_filters_checker import passes


def best_total(request: PlanRequest) -> int | None:
    """Return the most pods that any legal placement holds; None when not even the minimum fits."""
    leaves = _leaves(request.root)
    pods = [(leaf, m) for leaf in leaves for m in leaf.members]
    nodes = request.nodes
    chains = _chains(request.root, ())
    shapes = request.shapes
    may = [
        [
            n
            for n, node in enumerate(nodes)
            if passes(shapes[m.shape], node)
            and not is_closed(request, node)
            and not any(
                v.node == node.name and (v.uid == m.uid or (v.uid is None and v.shape == m.shape))
                for v in request.rejected_nodes
            )
        ]
        for _, m in pods
    ]
    free = [
        {
            r: (n.free.get(r, 0) if r in n.allocatable else 0)
            for s in shapes
            for r in [*dict(s.requests), "pods"]
        }
        for n in nodes
    ]
    ports = [list(n.host_ports) for n in nodes]
    claims = Counter(request.claims_in_use)
    domains: dict = {}
    for leaf in leaves:
        for b in leaf.bound:
            node = next((n for n in nodes if n.name == b.node), None)
            for g in chains[leaf.key]:
                if topology := _keys(g):
                    value = tuple(node.labels.get(k) if node else None for k in topology)
                    if None in value or domains.setdefault(g.key, (value, 0))[0] != value:
                        return None
    domains = {k: (v, 1) for k, (v, _) in domains.items()}
    new: Counter = Counter()
    best: list[int | None] = [None]
    seats: list = []
    where: dict = {leaf.key: [] for leaf in leaves}

    def step(i: int, placed: int) -> None:
        if best[0] is not None and placed + len(pods) - i <= best[0]:
            return
        if i == len(pods):
            legal = _holds(request.root, new) and all(
                _holds(g, new)
                for g in _walk(request.root)
                if any(new[leaf.key] for leaf in _leaves(g))
            )
            legal = legal and not broken_rules(request, seats)
            legal = legal and not shared_domains(request, where)
            if legal:
                best[0] = placed
            return
        leaf, member = pods[i]
        shape = shapes[member.shape]
        ask = {**{r: q for r, q in shape.requests if q > 0}, "pods": 1}
        for n in may[i]:
            if any(free[n][r] < q for r, q in ask.items()):
                continue
            if any(clash(p, q) for p in shape.host_ports for q in ports[n]):
                continue
            if any(claims[c] for c in shape.exclusive_claims):
                continue
            values = [
                (g.key, tuple(nodes[n].labels.get(k) for k in _keys(g)))
                for g in chains[leaf.key]
                if _keys(g)
            ]
            if any(None in v or domains.get(k, (v, 0))[0] != v for k, v in values):
                continue
            for r, q in ask.items():
                free[n][r] -= q
            ports[n].extend(shape.host_ports)
            claims.update(shape.exclusive_claims)
            for k, v in values:
                domains[k] = (v, domains.get(k, (v, 0))[1] + 1)
            new[leaf.key] += 1
            seats.append((member.shape, nodes[n]))
            where[leaf.key].append(nodes[n].name)
            step(i + 1, placed + 1)
            where[leaf.key].pop()
            seats.pop()
            new[leaf.key] -= 1
            for k, v in values:
                if domains[k][1] == 1:
                    del domains[k]
                else:
                    domains[k] = (v, domains[k][1] - 1)
            claims.subtract(shape.exclusive_claims)
            if shape.host_ports:
                del ports[n][-len(shape.host_ports) :]
            for r, q in ask.items():
                free[n][r] += q
        step(i + 1, placed)

    step(0, 0)
    return best[0]


def _keys(g: PlanGroup) -> tuple[str, ...]:
    return (*g.topology, *([g.exclusive.key] if g.exclusive else []))


def _chains(g: PlanGroup, above: tuple[PlanGroup, ...]) -> dict:
    chain = (*above, g)
    if not g.groups:
        return {g.key: chain}
    return {k: v for c in g.groups for k, v in _chains(c, chain).items()}
