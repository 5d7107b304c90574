"""Convert PodDisruptionBudgets of the API to those of the core, and compute the status that files lack.

The disruption controller of a cluster writes into the status how many disruptions a budget allows. A budget
in a manifest has no status; for it the number is computed here from the pods of the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.read.interpod_terms import label_requirements
from extender.cluster.read.object_decoding import bad
from extender.cluster.read.pod_conversion import ended
from extender.core.model.pods import AboutPods, PodDisruptionBudget

_PERCENT: Final = re.compile(r"([0-9]{1,3})%")


def budget_of(budget: api.PodDisruptionBudget) -> PodDisruptionBudget:
    """Return the budget of the core; without a status it allows no disruption.

    Raises:
        BadInput: An expression of its selector is invalid; names the field.

    Source:
        policy/v1: a missing selector matches no pod, an empty one every pod of the namespace.
    """
    namespace, name = budget.key
    selector = budget.spec.selector
    for n, expression in enumerate(selector.match_expressions if selector is not None else ()):
        wants_values = expression.operator in {"In", "NotIn"}
        if expression.operator in {"Gt", "Lt"} or wants_values != bool(expression.values):
            field = f"spec.selector.matchExpressions[{n}]"
            raise bad(
                budget,
                field,
                f"{expression.key} {expression.operator} {list(expression.values)}: is not a valid expression",
            )
    about = None
    if selector is not None:
        about = AboutPods((namespace,), label_requirements(selector))
    return PodDisruptionBudget(
        namespace=namespace,
        name=name,
        about=about,
        allowed=max(budget.status.disruptions_allowed or 0, 0),
    )


def with_status(
    written: api.PodDisruptionBudget, pods: Iterable[api.Pod]
) -> api.PodDisruptionBudget:
    """Return the budget with the number of allowed disruptions in its status, computed if it was not set.

    Args:
        pods: All pods of the files; one that has a node and has not ended counts as healthy.

    Raises:
        BadInput: A bound is neither a number nor a percentage; names the field.

    Source:
        The disruption controller, with the number of existing pods as the expected count.
    """
    if written.status.disruptions_allowed is not None:
        return written
    budget = budget_of(written)
    mine = [
        p for p in pods if not ended(p) and budget.protects(p.metadata.namespace, p.metadata.labels)
    ]
    healthy = sum(1 for p in mine if p.spec.node_name and p.metadata.deletion_timestamp is None)
    if written.spec.max_unavailable is not None:
        desired_healthy = len(mine) - _scaled(
            written, "maxUnavailable", written.spec.max_unavailable, len(mine)
        )
    elif written.spec.min_available is not None:
        desired_healthy = _scaled(written, "minAvailable", written.spec.min_available, len(mine))
    else:
        desired_healthy = 0
    status = msgspec.structs.replace(
        written.status, disruptions_allowed=max(healthy - max(desired_healthy, 0), 0)
    )
    return msgspec.structs.replace(written, status=status)


def _scaled(budget: api.PodDisruptionBudget, field: str, bound: int | str, of: int) -> int:
    """Return a number, or a percentage of `of`, rounded up."""
    if isinstance(bound, int):
        return bound
    match = _PERCENT.fullmatch(bound)
    if match is None:
        raise bad(budget, f"spec.{field}", f'"{bound}" is neither a number nor a percentage')
    return -(-int(match[1]) * of // 100)
