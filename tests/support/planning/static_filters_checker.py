"""The static filters for one pod and one node, implemented without the planner."""

from __future__ import annotations

from extender.core.model.pods import PodShape
from extender.core.planner.plan_types import PlanNode


def _number(text: str) -> int | None:
    try:
        return int(text) if text.lstrip("+-").isdigit() and text.isascii() else None
    except ValueError:
        return None


def _expression(r, value: str | None) -> bool:
    if r.operator == "In":
        return value in r.values
    if r.operator == "NotIn":
        return bool(r.values) and value not in r.values
    if r.operator in {"Exists", "DoesNotExist"}:
        return (value is not None) == (r.operator == "Exists")
    a, b = _number(value or ""), _number(r.values[0])
    return a is not None and b is not None and (a > b if r.operator == "Gt" else a < b)


def passes(
    shape: PodShape,
    node: PlanNode,
    *,
    labels: bool = True,
    taints: bool = True,
    cordon: bool = True,
) -> bool:
    """Return whether a node passes the static filters for one pod; each filter can be left out."""
    if labels and not _selects(shape, node):
        return False
    return not taints or _tolerates(shape, node, cordon=cordon)


def _selects(shape: PodShape, node: PlanNode) -> bool:
    if any(node.labels.get(k) != v for k, v in shape.node_selector):
        return False
    for selector in shape.selectors:
        if not any(
            (t.labels or t.fields)
            and all(_expression(r, node.labels.get(r.key)) for r in t.labels)
            and all(_expression(r, node.name) for r in t.fields)
            for t in selector.terms
        ):
            return False
    return True


def _tolerates(shape: PodShape, node: PlanNode, *, cordon: bool) -> bool:
    taints = [(t.key, t.value, t.effect) for t in node.taints if t.effect != "PreferNoSchedule"]
    if cordon and node.unschedulable:
        taints.append(("node.kubernetes.io/unschedulable", "", "NoSchedule"))
    return all(
        any(
            t.effect in {"", effect}
            and t.key in {"", key}
            and (t.operator == "Exists" or t.value == value)
            for t in shape.tolerations
        )
        for key, value, effect in taints
    )
