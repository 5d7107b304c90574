"""Beside kube-scheduler's own group scheduling no capacity is held that it would never let be used (K55)."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.admit.native_gang_scheduling import (
    bind_blockers,
    gates_to_remove,
    waits_for_all,
)
from extender.core.log.events import ControlPlaneFeaturesDetected
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import forest_of
from extender.core.model.pod_groups import composite_key, leaf_key
from extender.core.model.pods import GATE
from tests.support.service.manifest_builders import a_group, a_pod, a_world

NEW, OLD = "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"
FIELD = {"schedulingGroup": {"podGroupName": "g"}}
HELD = [{"name": GATE}]
FOREIGN = [{"name": GATE}, {"name": "kueue.x-k8s.io/admission"}]


def found(native="on", version=NEW):
    return ControlPlaneFeaturesDetected(
        served=(f"{version} PodGroup",),
        dropped_fields=(),
        untested=(),
        admission_policy="on",
        native_group_scheduling=native,
    )


def tree(*pods, version=NEW, **spec):
    group = a_group("g", version=version, **({"gang": 2} | spec))
    return forest_of(a_world(group, *pods).view).trees[leaf_key("default", "g")]


def by_field(name, **spec):
    return a_pod(name, **FIELD, **spec)


def test_a_gang_named_by_the_field_comes_to_bind():
    whole = tree(by_field("a", schedulingGates=HELD), by_field("b", schedulingGates=HELD))
    assert bind_blockers(whole, found()) == ()


@pytest.mark.parametrize("native", ["off", "unknown"])
def test_without_it_nothing_keeps_a_tree(native):
    """Also when it is not known: then it is taken to be off, as it is by default."""
    for features in (None, found(native)):
        assert (
            bind_blockers(
                tree(by_field("a"), by_field("b"), version="gang-extender.dev/v1alpha1"), features
            )
            == ()
        )
        assert not waits_for_all(features)


def test_our_group_is_unknown_to_kube_scheduler():
    (text,) = bind_blockers(
        tree(by_field("b"), by_field("a"), version="gang-extender.dev/v1alpha1"), found()
    )
    assert "Pod/default/a" in text
    assert "label gang-extender.dev/pod-group instead" in text
    labelled = tree(a_pod("a", "g"), a_pod("b", "g"), version="gang-extender.dev/v1alpha1")
    assert bind_blockers(labelled, found()) == ()


def test_pods_by_label_are_not_counted_by_kube_scheduler():
    (text,) = bind_blockers(tree(by_field("a"), a_pod("b", "g")), found())
    assert "1 of 2" in text
    assert bind_blockers(tree(by_field("a"), by_field("b"), a_pod("c", "g")), found()) == ()
    assert bind_blockers(tree(a_pod("a", "g"), a_pod("b", "g")), found()) == (), (
        "ordinary pods to it"
    )
    assert bind_blockers(tree(by_field("a"), a_pod("b", "g"), gang=None), found()) == (), "basic"


@pytest.mark.parametrize("child", ["leaf", "composite"])
@pytest.mark.parametrize(
    ("version", "native", "blocked"),
    [
        ("scheduling.k8s.io/v1beta1", "on", True),
        ("scheduling.k8s.io/v1alpha3", "on", False),  # 1.37 has no such rule
        ("scheduling.k8s.io/v1beta1", "off", False),
        ("gang-extender.dev/v1alpha1", "on", False),
    ],
)
def test_a_basic_child_of_a_gang_keeps_the_whole_tree_since_1_38(child, version, native, blocked):
    """kube-scheduler asks that of the trees whose pods it schedules as a group."""
    top = composite_key("default", "top")
    groups = [a_group("top", gang=1, composite=True, version=version)]
    if child == "composite":
        groups.append(a_group("g", gang=1, parent="middle", version=version))
        groups.append(a_group("middle", composite=True, parent="top", version=version))
    else:
        groups.append(a_group("g", parent="top", version=version))
    features = found(native, "scheduling.k8s.io/v1beta1")
    for pods, expected in (([by_field("a")], blocked), ([a_pod("a", "g")], False)):
        made = forest_of(a_world(*groups, *pods).view).trees[top]
        assert not made.problems
        reasons = [one for one in bind_blockers(made, features) if "is basic" in one]
        assert len(reasons) == int(expected)
        for text in reasons:
            assert "below CompositePodGroup/default/top" in text
            assert "with a gang policy, of which a minimum of 1 is enough" in text


def test_a_foreign_gate_keeps_the_whole_group_since_1_37():
    gated = tree(by_field("a"), by_field("b"), by_field("c", schedulingGates=FOREIGN))
    (text,) = bind_blockers(gated, found())
    assert "Pod/default/c is not held by scheduling gate kueue.x-k8s.io/admission any more" in text
    assert bind_blockers(gated, found(version=OLD)) == ()


def test_only_1_36_schedules_a_group_of_which_some_pods_are_gated():
    """An API server that serves the old version beside a newer one is a newer one."""
    both = msgspec.structs.replace(
        found(), served=(f"{OLD} PodGroup", "scheduling.k8s.io/v1 PodGroup")
    )
    assert waits_for_all(both)
    assert waits_for_all(found())
    assert not waits_for_all(found(version=OLD))


def test_no_gate_is_removed_before_the_tree_is_admitted():
    forest = forest_of(
        a_world(a_group("g", gang=1, version=NEW), by_field("a", schedulingGates=HELD)).view
    )
    assert list(gates_to_remove(ReservationState(features=found()), forest)) == []
