"""Which pods a PodDisruptionBudget protects."""

from __future__ import annotations

import pytest

from extender.core.budgets import PodDisruptionBudget
from extender.core.pods import Requirement


@pytest.mark.parametrize(
    ("requirement", "holds", "fails"),
    [
        (Requirement("app", "In", ("a", "b")), {"app": "b"}, {"app": "c"}),
        (Requirement("app", "NotIn", ("a",)), {}, {"app": "a"}),
        (Requirement("app", "Exists"), {"app": ""}, {}),
        (Requirement("app", "DoesNotExist"), {}, {"app": ""}),
    ],
    ids=lambda value: getattr(value, "operator", ""),
)
def test_expressions_hold_as_in_kubernetes(requirement, holds, fails) -> None:
    budget = PodDisruptionBudget(namespace="ns", name="b", selector=(requirement,))
    assert budget.protects("ns", holds)
    assert not budget.protects("ns", fails)
    assert not budget.protects("other", holds)


def test_no_selector_protects_nobody_and_an_empty_one_everybody() -> None:
    assert not PodDisruptionBudget(namespace="ns", name="b").protects("ns", {})
    assert PodDisruptionBudget(namespace="ns", name="b", selector=()).protects("ns", {})
