"""PodDisruptionBudgets."""

from __future__ import annotations

from extender.cluster.types.common_types import KubernetesObject, Part
from extender.cluster.types.pod_types import LabelSelector


class BudgetSpec(Part, frozen=True, kw_only=True):
    """How many pods must be available, or may be unavailable; a number or a percentage."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class BudgetStatus(Part, frozen=True, kw_only=True):
    """Written by the disruption controller; `disruptions_allowed` is missing before its first update."""

    disruptions_allowed: int | None = None


class PodDisruptionBudget(KubernetesObject, frozen=True, kw_only=True):
    """A budget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
