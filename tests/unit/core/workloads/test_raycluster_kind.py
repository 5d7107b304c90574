"""RayCluster: a gang over the head and the worker groups with a minimum."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from tests.support.planning.controller_records import labels_of, record, uses_of
from tests.support.planning.workload_builders import compiled, drawn, template, use, workload


def group(name, low=1, replicas=None, most=None, **more):
    fields = {"groupName": name, "minReplicas": low, "replicas": replicas, "maxReplicas": most}
    return {key: value for key, value in fields.items() if value is not None} | more


def cluster(*groups, annotations=None, **spec):
    head = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": list(groups)}
    return workload("RayCluster", "rc", head | spec, annotations=annotations or {})


def test_the_recorded_cluster():
    found = record("raycluster/multi-host.json")
    result = compiled(found.of("RayCluster"), *uses_of(found.pods()))
    assert drawn(result) == [
        "+rc-ray: gang 3",
        "  rc-ray-headgroup: gang 1, all",
        "  rc-ray-small: gang 1",
        "  +rc-ray-slice: gang 2",
        "    rc-ray-slice-8t2vp: gang 2, all",
        "    rc-ray-slice-htv2r: gang 2, all",
    ]
    assert Counter(leaf_of_pod(labels_of(one)) for one in found.pods()) == {
        "rc-ray-headgroup": 1,
        "rc-ray-small": 2,  # one is an extra
        "rc-ray-slice-8t2vp": 2,
        "rc-ray-slice-htv2r": 2,
    }


@pytest.mark.parametrize(
    ("workers", "root", "leaf"),
    [
        (group("w", 2, 3, 5), "gang 2", "gang 2"),
        (group("w", 2, 1, 5), "gang 2", "gang 2"),
        (group("w", 0, 3, 5), "gang 1", "basic"),
        (group("w", 0), "gang 1", "basic"),
    ],
    ids=["extras", "fewer replicas than the minimum", "no minimum", "defaults"],
)
def test_worker_groups_with_a_minimum_count(workers, root, leaf):
    lines = drawn(compiled(cluster(workers)))
    assert lines == [f"+rc-ray: {root}", "  rc-ray-headgroup: gang 1, all", f"  rc-ray-w: {leaf}"]


@pytest.mark.parametrize("workers", [group("w", 2, suspend=True), group("w", 0, 0, 0)])
def test_a_worker_group_without_workers_is_no_part(workers):
    assert drawn(compiled(cluster(workers))) == [
        "+rc-ray: gang 1",
        "  rc-ray-headgroup: gang 1, all",
    ]


def test_the_annotation_raises_the_minimum_of_a_group_up_to_its_largest_size():
    found = cluster(group("w", 1, 3, 4), annotations={"gang-extender.dev/min": "w=3"})
    assert drawn(compiled(found))[-1] == "  rc-ray-w: gang 3"
    more = cluster(group("w", 1, 3, 4), annotations={"gang-extender.dev/min": "w=5"})
    assert "w=5 is more than the 4 pods that w has" in compiled(more).refusal.message


def test_a_replica_of_several_hosts_has_a_leaf_while_it_has_pods():
    found = cluster(group("s", 2, 2, 4, numOfHosts=2))
    assert drawn(compiled(found))[-1] == "  +rc-ray-s: gang 2"
    lines = drawn(compiled(found, use("rc-ray-s-abcde", 2), use("rc-ray-s-fghij", 0)))
    assert lines[-2:] == ["  +rc-ray-s: gang 2", "    rc-ray-s-abcde: gang 2, all"]


def test_without_names_of_replicas_a_group_of_several_hosts_is_one_leaf():
    found = cluster(group("s", 2, 2, 4, numOfHosts=2))
    assert drawn(compiled(found, use("rc-ray-s", 4)))[-1] == "  rc-ray-s: gang 4"


def test_groups_whose_names_begin_alike_keep_their_replicas_apart():
    found = cluster(group("s", 1, numOfHosts=2), group("s-x", 1, numOfHosts=2))
    lines = drawn(compiled(found, use("rc-ray-s-abcde", 2), use("rc-ray-s-x-fghij", 2)))
    assert lines[2:] == [
        "  +rc-ray-s: gang 1",
        "    rc-ray-s-abcde: gang 2, all",
        "  +rc-ray-s-x: gang 1",
        "    rc-ray-s-x-fghij: gang 2, all",
    ]


def test_two_clusters_with_names_that_join_alike_have_different_leaves():
    pods = [
        {"gang-extender.dev/tree": "default", "ray.io/cluster": cluster_, "ray.io/group": group_}
        for cluster_, group_ in (("a", "b-c"), ("a-b", "c"))
    ]
    assert len({leaf_of_pod(labels) for labels in pods}) == 2


def test_head_and_workers_of_two_priorities_are_refused():
    workers = group("w", template=template("high"))
    result = compiled(cluster(workers))
    assert result.refusal.reason == "PrioritiesDiffer"
    assert "head has '', w has 'high'" in result.refusal.message


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "another controller runs it"),
        (
            {"headGroupSpec": {"template": template(**{"pod-group": "g"})}},
            "group headgroup: its pods name the group 'g'",
        ),
    ],
)
def test_a_cluster_that_something_else_schedules_is_left_alone(spec, expected):
    result = compiled(cluster(**spec))
    assert result.outcome == "kept-out"
    assert expected in result.refusal.message


def test_a_suspended_cluster_keeps_its_groups():
    found = cluster(group("w"), suspend=True)
    assert BY_KIND["RayCluster"].suspended(found)
    assert not BY_KIND["RayCluster"].finished(found)
    assert len(compiled(found).groups) == 3


def test_a_group_whose_name_cannot_be_that_of_an_object_is_refused():
    result = compiled(cluster(group("GPU_workers")))
    assert result.refusal.reason == "InvalidName"
    assert "'rc-ray-GPU_workers'" in result.refusal.message


def test_planned_replicas_of_several_hosts():
    found = cluster(group("w", 1, 2), group("s", 1, 2, 4, numOfHosts=4))
    planned = BY_KIND["RayCluster"].planned_uses
    assert planned is not None
    lines = drawn(compiled(found, *planned(found)))
    assert lines[3:] == [
        "  +rc-ray-s: gang 1",
        "    rc-ray-s-0: gang 4, all",
        "    rc-ray-s-1: gang 4, all",
    ]


def test_head_and_worker_groups_with_a_minimum_are_required_and_others_are_not():
    """L27: workers of an optional group never stand in for the head, also in a group that is made later."""
    found = cluster(group("w", 0, 3, 5), group("g", 1, 2, 5), group("s", 0, 2, numOfHosts=2))
    root = compiled(found, use("rc-ray-s-abcde", 2)).groups[0]
    assert (root.minimum, root.required) == (2, ("rc-ray-g", "rc-ray-headgroup"))


@pytest.mark.parametrize(("minimum", "root", "leaf"), [("w=2", "gang 2", "gang 2"), ("g=2", "gang 2", "basic")])  # fmt: skip
def test_a_group_that_the_annotation_gives_a_minimum_is_required_too(minimum, root, leaf):
    found = cluster(group("w", 0, 3, 5), annotations={"gang-extender.dev/min": minimum})
    if minimum == "g=2":
        found = cluster(group("w", 0, 3), group("g", 1, 2), annotations={"gang-extender.dev/min": minimum})  # fmt: skip
    result = compiled(found)
    assert drawn(result)[0] == f"+rc-ray: {root}"
    assert drawn(result)[2] == f"  rc-ray-w: {leaf}"
    assert len(result.groups[0].required) == result.groups[0].minimum


def test_a_tree_below_a_composite_of_the_user_keeps_what_it_requires():
    found = cluster(group("w", 0, 3, 5), annotations={"gang-extender.dev/parent": "search"})
    root = compiled(found).groups[0]
    assert (root.parent, root.required) == ("search", ("rc-ray-headgroup",))
