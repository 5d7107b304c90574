"""PodDisruptionBudgets."""

from __future__ import annotations

from msgspec import field

from extender.cluster.api.common import KubernetesObject, Part, SelectorRequirement


class LabelSelector(Part, frozen=True, kw_only=True):
    """Labels that an object must have; without anything it selects all."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class BudgetSpec(Part, frozen=True, kw_only=True):
    """How many pods must stay, or may go; a number or a percentage."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class BudgetStatus(Part, frozen=True, kw_only=True):
    """What the disruption controller counted; `disruptions_allowed` is missing before it did."""

    disruptions_allowed: int | None = None


class PodDisruptionBudget(KubernetesObject, frozen=True, kw_only=True):
    """A budget."""

    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()
