"""Which pods a PodDisruptionBudget protects."""

from __future__ import annotations

from extender.core.model.pods import AboutPods, NodeSelectorRequirement, PodDisruptionBudget


def test_a_budget_protects_pods_of_its_namespace_by_labels() -> None:
    about = AboutPods(("ns",), (NodeSelectorRequirement("app", "In", ("a", "b")),))
    budget = PodDisruptionBudget(namespace="ns", name="b", about=about)
    assert budget.protects("ns", {"app": "b"})
    assert not budget.protects("ns", {"app": "c"})
    assert not budget.protects("other", {"app": "b"})


def test_no_selector_protects_no_pod_and_an_empty_one_all_pods() -> None:
    assert not PodDisruptionBudget(namespace="ns", name="b").protects("ns", {})
    assert PodDisruptionBudget(namespace="ns", name="b", about=AboutPods(("ns",))).protects(
        "ns", {}
    )
