"""Checks rules between pods without the planner: whether the pods can be bound in some order that keeps all rules."""

from __future__ import annotations

from collections import Counter

from extender.core.planner.plan_types import PlanNode, PlanRequest, PlanRule
from tests.support.planning.static_filters_checker import passes

Seat = tuple[int, PlanNode]  # shape and node of a placed pod


def broken_rules(request: PlanRequest, seats: list[Seat]) -> list[str]:
    """Return the rules that a finished placement breaks, in whatever order kube-scheduler binds it."""
    check = {"apart": _apart, "near": _near, "spread": _spread}
    return [text for rule in request.rules for text in check[rule.kind](request, rule, seats)]


def _apart(request: PlanRequest, rule: PlanRule, seats: list[Seat]) -> list[str]:
    key, there = rule.keys[0], dict(rule.there[0])
    bad = []
    for i, (shape, node) in enumerate(seats):
        value = node.labels.get(key)
        bound = shape in (rule.shapes or rule.about)
        if value is None or not bound:
            continue
        if there.get(value):
            bad.append(f"{node.name}: {key}={value} is taken")
        for j, (other, beside) in enumerate(seats):
            near = i != j and beside.labels.get(key) == value
            if rule.shapes and near and other in rule.about:
                bad.append(f"{node.name} and {beside.name} are both {key}={value}")
    return bad


def _near(request: PlanRequest, rule: PlanRule, seats: list[Seat]) -> list[str]:
    tables = [Counter(dict(there)) for there in rule.there]
    waiting = list(seats)

    def may(shape: int, node: PlanNode) -> bool:
        if shape not in rule.shapes:
            return True
        values = [node.labels.get(key) for key in rule.keys]
        if None in values:
            return False
        if all(table[value] for table, value in zip(tables, values, strict=True)):
            return True
        return shape in rule.about and not any(+table for table in tables)

    while waiting:
        seat = next((s for s in waiting if may(*s)), None)
        if seat is None:
            return [f"{node.name}: nothing near by {rule.keys}" for _, node in waiting]
        waiting.remove(seat)
        for table, key in zip(tables, rule.keys, strict=True):
            if seat[0] in rule.about and key in seat[1].labels:
                table[seat[1].labels[key]] += 1
    return []


def _spread(request: PlanRequest, rule: PlanRule, seats: list[Seat]) -> list[str]:
    key = rule.keys[0]
    keys = {r.keys[0] for r in request.rules if r.kind == "spread" and r.shapes == rule.shapes}
    bad = []
    for shape in rule.shapes:
        good = [
            n for n in request.nodes if keys <= n.labels.keys() and _counts(request, rule, shape, n)
        ]
        total = Counter({n.labels[key]: 0 for n in good})
        for name, amount in rule.there[0]:
            total.update({n.labels[key]: amount for n in good if n.name == name})
        total.update(n.labels[key] for s, n in seats if s in rule.about and n in good)
        least = min(total.values(), default=0) if len(total) >= rule.least_domains else 0
        for _, node in [s for s in seats if s[0] == shape]:
            if node not in good or total[node.labels[key]] > least + rule.skew:
                bad.append(f"{node.name}: skew of {key} over {rule.skew}: {dict(total)}")
    return bad


def _counts(request: PlanRequest, rule: PlanRule, shape: int, node: PlanNode) -> bool:
    made = request.shapes[shape]
    selects = passes(made, node, taints=False)
    tolerates = passes(made, node, labels=False, cordon=False)
    return (selects or not rule.honors_affinity) and (tolerates or not rule.honors_taints)
