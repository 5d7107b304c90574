"""PodDisruptionBudgets: how many of the pods that a budget selects may be evicted now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from extender.core.model.pods import AboutPods, Pod


class PodDisruptionBudget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A budget with the status that its controller last wrote."""

    namespace: str
    name: str
    about: AboutPods | None = None  # pods of its namespace; None: it protects no pod
    allowed: int = 0  # status.disruptionsAllowed

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def protects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether this budget selects a pod.

        >>> budget = PodDisruptionBudget(namespace="ns", name="b", about=AboutPods(("ns",)))
        >>> budget.protects("ns", {}), budget.protects("other", {})
        (True, False)
        """
        return self.about is not None and self.about.match(namespace, labels)


class BudgetIndex:
    """The budgets of a view by namespace."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._of: dict[str, list[PodDisruptionBudget]] = {}
        for budget in sorted(budgets, key=lambda b: b.path):
            self._of.setdefault(budget.namespace, []).append(budget)

    def guarding(self, pod: Pod) -> list[PodDisruptionBudget]:
        """Return the budgets that select a pod, by name."""
        budgets = self._of.get(pod.namespace, ())
        return [budget for budget in budgets if budget.protects(pod.namespace, pod.labels)]
