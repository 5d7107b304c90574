"""Checks a preemption against its request, and finds the cheapest one by trying every set of units.

Imports nothing of the planner but its types. `faults` returns texts; a valid preemption has none.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Protocol

import msgspec
from msgspec import UNSET

from extender.core.model.ids import GroupKey
from extender.core.planner.plan_types import (
    Plan,
    PlanExclusive,
    PlanGroup,
    PlanRequest,
    PlanRule,
    PlanUnit,
    PlanVictim,
)
from tests.support.planning import plan_checker
from tests.support.planning.brute_force_planner import best_total
from tests.support.planning.interpod_checker import broken_rules

replace = msgspec.structs.replace


class Preemption(Protocol):
    """What is checked: the fields of a preemption plan."""

    victims: tuple[PlanUnit, ...]
    superseded: tuple[PlanUnit, ...]
    plan: Plan
    doubts: dict[str, str]


def roomier(request: PlanRequest, pods: list[PlanVictim]) -> PlanRequest:
    """Return the request without preemption, with the capacity of some pods free."""
    shapes = request.evictable.shapes
    nodes = []
    source = request.evictable
    gone = {p.uid for p in pods}
    held = [p for d in source.dependents or () for p in d.pods]
    pods = pods + [p for d in source.dependents or () if {*d.after} <= gone for p in d.pods]
    every = [p for u in source.units for p in u.pods] + list(source.going) + held
    stay = [p for p in every if p.uid not in {q.uid for q in pods}]
    for node in request.nodes:
        mine = [shapes[p.shape] for p in pods if p.node == node.name]
        free = Counter(node.free)
        for shape in mine:
            free.update({r: n for r, n in shape.requests if r in node.allocatable})
        ports = {port for shape in mine for port in shape.host_ports}
        ports -= {port for p in stay if p.node == node.name for port in shapes[p.shape].host_ports}
        left = tuple(p for p in node.host_ports if p not in ports)
        nodes.append(replace(node, free=dict(free), host_ports=left))
    held = {c for p in stay for c in shapes[p.shape].exclusive_claims}
    freed = {c for p in pods for c in shapes[p.shape].exclusive_claims} - held
    left = {p.uid for p in pods}
    emptied = {(d.group, d.key, d.value) for d in source.domains or () if {*d.pods} <= left}

    def rest(domain: PlanExclusive, group: GroupKey | None) -> PlanExclusive:
        values = [v for v in domain.taken if (group, domain.key, v) not in emptied]
        return replace(domain, taken=tuple(values))

    def freed_of(group: PlanGroup) -> PlanGroup:
        own = rest(group.exclusive, group.key) if group.exclusive else group.exclusive
        return replace(group, exclusive=own, groups=tuple(map(freed_of, group.groups)))

    return replace(
        request,
        root=freed_of(request.root),
        closed=tuple(rest(d, None) for d in request.closed or ()) or UNSET,
        nodes=tuple(nodes),
        claims_in_use=tuple(c for c in request.claims_in_use if c not in freed),
        rules=tuple(_less_counted(request, i, pods) for i in range(len(request.rules))),
        evictable=None,
    )


def _less_counted(request: PlanRequest, number: int, pods: list[PlanVictim]) -> PlanRule:
    rule = request.rules[number]
    nodes = {n.name: n for n in request.nodes}
    tables = [Counter(dict(t)) for t in rule.there]
    for pod in pods:
        for table, key in zip(tables, rule.keys if number in pod.rules else (), strict=False):
            table[pod.node if rule.kind == "spread" else nodes[pod.node].labels.get(key)] -= 1
    there = tuple(tuple(sorted((+table).items())) for table in tables)
    return replace(rule, there=there)


def eligible_units(request: PlanRequest) -> list[PlanUnit]:
    """Units of lower priority."""
    source = request.evictable
    return [u for u in source.units if u.priority < source.priority]


def most_placed(request: PlanRequest) -> int | None:
    """Return the most pods of the tree that can be placed, whatever set of units goes; None: not even the minimum."""
    eligible = eligible_units(request)
    counts = any(
        request.rules[i].kind != "apart" for u in eligible for p in u.pods for i in p.rules
    )
    sizes = range(len(eligible) + 1) if counts else [len(eligible)]
    totals = [
        best_total(
            roomier(request, [p for u in chosen for p in u.pods] + list(request.evictable.going))
        )
        for number in sizes
        for chosen in itertools.combinations(eligible, number)
    ]
    return max((total for total in totals if total is not None), default=None)


def faults(request: PlanRequest, made: Preemption, *, extras: bool = False) -> list[str]:
    """Return everything that is wrong; `extras`: the tree held already, and every assignment counts."""
    source = request.evictable
    units = [*made.victims, *made.superseded]
    bad = [f"{u.name} is not a unit of the request" for u in units if u not in source.units]
    bad += [f"{u.name} is not eligible" for u in units if u not in eligible_units(request)]
    bad += ["victims and superseded are mixed up"] * any(
        (u.kind == "reservation") != (u in made.superseded) for u in units
    )
    gone = [p for u in units for p in u.pods] + list(source.going)
    bad += plan_checker.faults(roomier(request, gone), made.plan)
    need = tuple(a for a in made.plan.assignments if extras or not a.extra)
    used = {a.node for a in need}
    taken = {c for a in need for c in request.shapes[a.shape].exclusive_claims}
    for unit in units:
        claims = {c for p in unit.pods for c in source.shapes[p.shape].exclusive_claims}
        domains = {uid for d in source.domains or () for uid in d.pods}
        barring = any(p.rules or p.uid in domains for p in unit.pods)
        own = {p.uid for p in unit.pods}
        after = [p for d in source.dependents or () if own & {*d.after} for p in d.pods]
        if not used & {p.node for p in (*unit.pods, *after)} and not claims & taken and not barring:
            bad.append(f"{unit.name} goes, but none of its nodes is used")
        staying = roomier(request, [p for p in gone if p not in unit.pods])
        doubted = in_doubt(request, unit, need)
        if fits(staying, need) and not doubted:
            bad.append(f"{unit.name} could stay where it runs")
        if (unit.name in made.doubts) != (fits(staying, need) and doubted):
            bad.append(f"{unit.name}: `doubts` of the plan is wrong")
    return bad


def in_doubt(request: PlanRequest, unit: PlanUnit, assignments) -> bool:
    """Return whether a unit and a pod that comes to one of its nodes both use devices of resource claims (L34)."""
    claiming = {a.node for a in assignments if _claims(request.shapes[a.shape])}
    shapes = request.evictable.shapes
    return any(p.node in claiming and _claims(shapes[p.shape]) for p in unit.pods)


def _claims(shape) -> bool:
    return any(text.startswith("resource claim ") for text in shape.unmodelled)


def fits(request: PlanRequest, assignments) -> bool:
    """Return whether pods fit on the nodes that they were given."""
    nodes = {n.name: n for n in request.nodes}
    capacity = {
        n.name: Counter({r: n.free.get(r, 0) for r in n.allocatable}) for n in request.nodes
    }
    ports = defaultdict(list, {n.name: list(n.host_ports) for n in request.nodes})
    for a in assignments:
        shape = request.shapes[a.shape]
        ask = {**{r: n for r, n in shape.requests if n > 0}, "pods": 1}
        if any(
            r not in nodes[a.node].allocatable or capacity[a.node][r] < n for r, n in ask.items()
        ):
            return False
        capacity[a.node].subtract(ask)
        if any(plan_checker.clash(p, q) for p in shape.host_ports for q in ports[a.node]):
            return False
        ports[a.node] += shape.host_ports
        if set(shape.exclusive_claims) & set(request.claims_in_use):
            return False
        if plan_checker.is_closed(request, nodes[a.node]):
            return False
    placed = {a.uid: a.node for a in assignments}
    where = {
        leaf.key: [placed[m.uid] for m in leaf.members if m.uid in placed]
        for leaf in plan_checker._leaves(request.root)
    }
    return not (
        plan_checker.shared_domains(request, where)
        or broken_rules(request, [(a.shape, nodes[a.node]) for a in assignments])
    )


# --- the cost of a set, computed without the planner


def price(request: PlanRequest, units: list[PlanUnit]) -> tuple[int, ...]:
    """E-9; lower is better."""
    source = request.evictable
    run = [u for u in units if u.kind != "reservation" and not u.disruption_target]
    free = [u for u in units if u not in run]
    pods = [p for u in run for p in u.pods]
    hits = Counter(b for p in pods for b in p.budgets)
    over = sum(max(0, n - max(0, source.budgets[b].allowed)) for b, n in hits.items())
    eligible = eligible_units(request)
    born = [p.since_us for u in eligible if u.kind != "reservation" for p in u.pods]
    age = sum((max(born) - p.since_us) // 10**6 for u in run for p in u.pods)
    before, after = _holding(source.gangs, []), _holding(source.gangs, pods)
    fallen = sum(
        g.counts and b and not a for g, b, a in zip(source.gangs, before, after, strict=True)
    )
    broken = fallen + sum(u.kind == "group" for u in run)
    return (
        over,
        max((u.priority for u in run), default=-(2**31) - 1),
        broken,
        sum(_evicts_again(request, u, eligible) for u in run),
        0 if source.now_min is UNSET else sum(_gpu_minutes(source, p) for p in pods),
        sum(u.priority + 2**31 for u in run),
        len(run),
        len(pods),
        age,
        sum(u.priority + 2**31 for u in free),
        sum(len(u.pods) for u in free),
    )


def _gpu_minutes(source, pod: PlanVictim) -> int:
    """The GPUs of a pod times the minutes that it has worked: from the minute in which its work began to that of the decision."""
    gpus = sum(
        n for name, n in source.shapes[pod.shape].requests if name in {"gpu", "nvidia.com/gpu"}
    )
    return gpus * max(source.now_min - pod.since_us // 60_000_000, 0)


def _holding(gangs, lost: list[PlanVictim]) -> list[bool]:
    def holds(i: int) -> bool:
        gone = sum(p.gang == i for p in lost)
        held = [(holds(c), g.required) for c, g in enumerate(gangs) if g.parent == i]
        kids = sum(ok for ok, _ in held)
        required = all(ok for ok, required in held if required)
        return gangs[i].running - gone + kids >= gangs[i].minimum and required

    return [holds(i) for i in range(len(gangs))]


def _evicts_again(request: PlanRequest, unit: PlanUnit, eligible: list[PlanUnit]) -> bool:
    source = request.evictable
    lower = [p for u in eligible if u.kind != "reservation" and u.priority < unit.priority for p in u.pods]  # fmt: skip
    return unit.may_preempt and any(
        not _somewhere(request, source.shapes[p.shape], list(source.going))
        and _somewhere(request, source.shapes[p.shape], [*source.going, *lower])
        for p in unit.pods
    )


def _somewhere(request: PlanRequest, shape, gone: list[PlanVictim]) -> bool:
    for node in roomier(request, gone).nodes:
        ask = {**{r: n for r, n in shape.requests if n > 0}, "pods": 1}
        capacity = all(r in node.allocatable and node.free.get(r, 0) >= n for r, n in ask.items())
        clash = any(plan_checker.clash(p, q) for p in shape.host_ports for q in node.host_ports)
        if capacity and not clash and plan_checker.passes(shape, node):
            return True
    return False


def cheapest(request: PlanRequest, *, wanted: int = 1) -> tuple[int, ...] | None:
    """Return the lowest price of any set that frees enough capacity for the tree; None when no set does.

    `wanted`: pods that must be placed at least.
    """
    source = request.evictable
    eligible = eligible_units(request)
    best = None
    for number in range(len(eligible) + 1):
        for chosen in itertools.combinations(eligible, number):
            cost = price(request, list(chosen))
            if best is not None and cost >= best:
                continue
            pods = [p for u in chosen for p in u.pods] + list(source.going)
            total = best_total(roomier(request, pods))
            if total is not None and total >= wanted:
                best = cost
    return best
