"""PodDisruptionBudgets: how many of the pods somebody protects may go at present."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extender.core.pods import Requirement


class PodDisruptionBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget as its controller last counted it."""

    namespace: str
    name: str
    selector: tuple[Requirement, ...] | None = (
        None  # all must hold; none of it: no pod is protected
    )
    allowed: int = 0  # status.disruptionsAllowed

    @property
    def path(self) -> str:
        """Give `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def protects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Say whether a pod is under this budget.

        Source:
            policy/v1: a missing selector matches no pod, an empty one every pod of the namespace.

        >>> budget = PodDisruptionBudget(namespace="ns", name="b", selector=())
        >>> budget.protects("ns", {}), budget.protects("other", {})
        (True, False)
        """
        if namespace != self.namespace or self.selector is None:
            return False
        return all(_holds(requirement, labels) for requirement in self.selector)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Evaluate an expression of a label selector: NotIn also holds where the label is missing."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case _:
            return value is None
