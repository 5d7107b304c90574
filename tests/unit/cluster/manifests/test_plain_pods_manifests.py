"""Plain pods in a file: which of them are a gang, and what is refused."""

from __future__ import annotations

import pytest

from extender.core.workloads.workload_object import TREE_ANNOTATIONS
from tests.support.service.manifest_builders import a_manifest, a_node, a_pod

GROUP = "gang-extender.dev/group"
TOTAL = "gang-extender.dev/total"


def a_member(name, total="2", *, group="sweep", annotations=None, **spec):
    labels = {GROUP: group, TOTAL: total}
    return a_pod(name, metadata={"labels": labels, "annotations": annotations or {}}, **spec)


@pytest.mark.parametrize("key", TREE_ANNOTATIONS)
def test_annotations_of_workloads_are_refused(key):
    result = a_manifest([], [a_member("a"), a_member("b", annotations={key: "x"})])
    (refused,) = result.refused
    assert f"PlainPods/default/sweep: metadata.annotations[{key}]: is not read" in refused.text


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            (a_member("a"), a_member("b", "3")),
            "PlainPods/default/sweep: metadata.labels[gang-extender.dev/total]: its pods have '2' and '3'",
        ),
        (
            (a_member("a", group=""),),
            "PlainPods/default/: metadata.labels[gang-extender.dev/group]: is empty; write the name of the group",
        ),
    ],
    ids=["two totals", "no name"],
)
def test_the_pods_of_a_refused_group_are_not_planned(members, words):
    result = a_manifest([], [*members, a_pod("alone")])
    (refused,) = result.refused
    assert words in refused.text
    assert [pod.name for pod in result.world.view.pods.values()] == ["alone"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({GROUP: "sweep"}, "metadata.labels[gang-extender.dev/total]: is not set"),
        ({TOTAL: "2"}, "metadata.labels[gang-extender.dev/group]: is not set"),
    ],
)
def test_a_pod_with_one_of_the_two_labels_is_in_no_group(labels, words):
    result = a_manifest([], [a_pod("a", metadata={"labels": labels})])
    (warning,) = result.warnings
    assert warning == (
        f"Pod/default/a: {words}, so the pod is in no group; a pod of a group has both "
        "gang-extender.dev/group and gang-extender.dev/total"
    )


def test_a_pod_that_names_its_group_in_its_spec_is_in_it():
    spec = {"schedulingGroup": {"podGroupName": "sweep"}}
    assert not a_manifest([], [a_pod("a", metadata={"labels": {GROUP: "sweep"}}, **spec)]).warnings


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeName": "n1"}, "spec.nodeName: is 'n1', so the pod is in no group"),
        (
            {"schedulerName": "volcano"},
            "spec.schedulerName: is 'volcano', so the pod is in no group",
        ),
    ],
    ids=["bound", "another scheduler"],
)
def test_a_pod_that_the_leaf_policy_leaves_alone_is_in_no_group(spec, words):
    result = a_manifest([a_node("n1")], [a_member("a", **spec), a_member("b")])
    groups = {pod.name: pod.group and pod.group.name for pod in result.world.view.pods.values()}
    assert groups == {"a": None, "b": "sweep"}
    assert any(f"Pod/default/a: {words}" in text for text in result.warnings)


def test_more_pods_than_the_total_are_a_warning():
    result = a_manifest([], [a_member(name, "1") for name in "abc"])
    (warning,) = result.warnings
    assert warning == (
        "PlainPods/default/sweep: metadata.labels[gang-extender.dev/total]: 3 pods, but total 1: "
        "the others are not waited for; write 3 to start all of them together"
    )
    assert not a_manifest([], [a_member(name) for name in "ab"]).warnings
