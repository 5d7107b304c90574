"""Which fields a built-in group was written with and lost, and that its tree is refused for it (E16)."""

from __future__ import annotations

import json

import pytest

from extender.cluster.read.object_decoding import APPLIED, WRITTEN, requested_fields
from extender.core.model.cluster_view import forest_of
from extender.core.model.pod_groups import composite_key, leaf_key
from tests.support.service.manifest_builders import OURS, RACK, a_group, a_pod, a_world

NATIVE = "scheduling.k8s.io/v1beta1"


def tree_of(*things, name="g", kind=leaf_key):
    return forest_of(a_world(*things).view).trees[kind("default", name)]


def noted(text):
    return {"annotations": {WRITTEN: text}}


def test_a_group_that_kept_what_it_was_written_with_is_sound():
    group = a_group("g", gang=2, topo=RACK, version=NATIVE, metadata=noted("schedulingConstraints"))
    assert tree_of(group).problems == ()


def test_a_lost_constraint_refuses_the_tree_and_names_all():
    group = a_group("g", gang=2, version=NATIVE, metadata=noted("schedulingConstraints"))
    (problem,) = tree_of(group).problems
    assert problem.rule == "E16"
    assert "PodGroup/default/g" in problem.message
    assert "spec.schedulingConstraints" in problem.message
    assert "TopologyAwareWorkloadScheduling" in problem.message


def test_what_follows_from_the_loss_is_not_reported():
    """Pods have the priority that the group lost: the group is to be mended, not the pods."""
    group = a_group("g", gang=1, version=NATIVE, metadata=noted("priorityClassName"))
    tree = tree_of(group, a_pod("p", "g", priority=7))
    assert [p.rule for p in tree.problems] == ["E16"]


def test_a_parent_by_annotation_replaces_the_field():
    annotations = {WRITTEN: "parentCompositePodGroupName", "gang-extender.dev/parent": "root"}
    leaf = a_group("g", gang=1, version=NATIVE, metadata={"annotations": annotations})
    root = a_group("root", gang=1, composite=True)
    assert tree_of(leaf, root, name="root", kind=composite_key).problems == ()


def test_a_lost_parent_refuses_the_group_that_it_makes_a_root():
    group = a_group("g", gang=1, version=NATIVE, metadata=noted("parentCompositePodGroupName"))
    assert [p.rule for p in tree_of(group).problems] == ["E16"]


def test_the_annotation_of_kubectl_apply_shows_it_too():
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
    }
    annotations = {APPLIED: json.dumps({"kind": "PodGroup", "spec": spec})}
    group = a_group("g", gang=2, version=NATIVE, metadata={"annotations": annotations})
    assert "schedulingConstraints" in tree_of(group).problems[0].message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec": 3}', '{"spec": null}', "nonsense"])
def test_an_unreadable_annotation_is_ignored(text):
    annotations = {APPLIED: text, WRITTEN: "weather,,"}
    group = a_group("g", gang=2, version=NATIVE, metadata={"annotations": annotations})
    assert tree_of(group).problems == ()


def test_our_own_kinds_lose_nothing():
    """A field that a CRD does not have is refused at its creation."""
    group = a_group("g", gang=2, version=OURS, metadata=noted("schedulingConstraints"))
    assert tree_of(group).problems == ()


def test_only_what_changes_a_placement_is_asked_for():
    """`single` is what a group without a mode is, and pods carry the policy of preemption themselves."""
    single = {
        "disruptionMode": {"single": {}},
        "preemptionPolicy": "Never",
        "schedulingConstraints": {},
    }
    assert requested_fields(single) == set()
    assert requested_fields({"disruptionMode": "Pod"}) == set()
    assert requested_fields({"disruptionMode": "PodGroup"}) == {"disruptionMode"}
    assert requested_fields({"disruptionMode": {"all": {}}}) == {"disruptionMode"}
