"""PodGang of Grove: base and scaled gangs are roots of their own; a tree does not change its shape."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.core.workloads.kind_table import leaf_of_pod
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from tests.support.planning.controller_records import labels_of, record
from tests.support.planning.workload_builders import compiled, drawn, existing, workload

RECORDED = ["created", "scaling-group-scaled-up", "pod-deleted-and-replaced"]


def constraint(required="", preferred=""):
    pack = {"required": required, "preferred": preferred}
    return {
        "topologyConstraint": {
            "packConstraint": {key: value for key, value in pack.items() if value}
        }
    }


def podgang(*groups, **spec):
    more = {key: spec.pop(key) for key in ("labels", "annotations") if key in spec}
    items = [
        one
        if isinstance(one, dict)
        else {"name": one[0], "minReplicas": one[1], "podReferences": []}
        for one in groups
    ]
    return workload("PodGang", "serve-0", {"podgroups": items} | spec, **more)


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_pod_has_a_leaf_of_the_gang_that_it_names(name):
    found = record(f"grove/{name}.json")
    leaves = {
        one.name: {
            group.name: group.minimum for group in compiled(one).groups if group.kind == "PodGroup"
        }
        for one in found.workloads("PodGang")
    }
    counts: dict[str, Counter[str]] = {}
    for one in found.pods():
        labels = labels_of(one)
        counts.setdefault(labels["grove.io/podgang"], Counter())[leaf_of_pod(labels)] += 1
    assert leaves == counts


def test_base_and_scaled_gangs_are_separate_roots():
    base, scaled = (compiled(one) for one in record("grove/created.json").workloads("PodGang"))
    assert drawn(base) == [
        "+serve-0: gang 3, all",
        "  serve-0-router: gang 1, all",
        "  serve-0-pd-0-prefill: gang 2, all",
        "  serve-0-pd-0-decode: gang 2, all",
    ]
    assert drawn(scaled) == [
        "+serve-0-pd-0: gang 2, all",
        "  serve-0-pd-1-prefill: gang 2, all",
        "  serve-0-pd-1-decode: gang 2, all",
    ]


def test_an_empty_podgang_waits():
    """Edge case 6: it is made empty, then filled."""
    result = compiled(podgang())
    assert (result.outcome, result.groups, result.refusal) == ("compiled", (), None)


def test_references_to_pods_are_not_needed():
    filled = {
        "name": "a",
        "minReplicas": 2,
        "podReferences": [{"namespace": "team", "name": "x"}] * 3,
    }
    assert compiled(podgang(("a", 2))) == compiled(podgang(filled))


def test_a_topology_group_is_a_composite():
    found = podgang(
        ("a", 1),
        ("b", 2),
        {"name": "c", "minReplicas": 1} | constraint("kubernetes.io/hostname"),
        topologyConstraintGroupConfigs=[
            {"name": "serve-0-pd-0", "podGroupNames": ["c", "b"]} | constraint("net/rack"),
            {"name": "none", "podGroupNames": ["b", "missing"]},
        ],
        **constraint("net/block"),
    )
    assert drawn(compiled(found)) == [
        "+serve-0: gang 2, all, in net/block",
        "  +serve-0-serve-0-pd-0: gang 2, all, in net/rack",
        "    c: gang 1, all, in kubernetes.io/hostname",
        "    b: gang 2, all",
        "  a: gang 1, all",
    ]


def test_its_own_topology_comes_before_the_annotation():
    asked = {"gang-extender.dev/topology": "root=x,leaf=y"}
    found = podgang(("a", 2), {"name": "b", "minReplicas": 2} | constraint("z"), annotations=asked)
    assert drawn(compiled(found)) == [
        "+serve-0: gang 2, all, in x",
        "  a: gang 2, all, in y",
        "  b: gang 2, all, in z",
    ]


def test_preferred_topologies_are_preferred_keys():
    """Grove means the level that it names, then the wider ones: those of the profile after it."""
    group = {"name": "a", "minReplicas": 1} | constraint("net/block", "kubernetes.io/hostname")
    config = {"name": "c", "podGroupNames": ["a"]} | constraint("", "net/rack")
    found = podgang(group, topologyConstraintGroupConfigs=[config], **constraint("", "net/zone"))
    assert drawn(compiled(found)) == [
        "+serve-0: gang 1, all, ~net/zone",
        "  +serve-0-c: gang 1, all, ~net/rack",
        "    a: gang 1, all, in net/block, ~kubernetes.io/hostname",
    ]
    levels = ("kubernetes.io/hostname", "net/rack", "net/block", "net/zone", "net/region")
    profile = TreeProfile(name="p", kinds={"PodGang": KindPolicy(levels=levels)})
    assert drawn(compiled(found, profile=profile)) == [
        "+serve-0: gang 1, all, ~net/zone~net/region",
        "  +serve-0-c: gang 1, all, ~net/rack~net/block~net/zone~net/region",
        "    a: gang 1, all, in net/block, ~kubernetes.io/hostname~net/rack~net/block~net/zone",
    ]


def test_a_preferred_topology_that_is_no_label_key_is_dropped_with_a_notice():
    result = compiled(podgang({"name": "a", "minReplicas": 1} | constraint("net/rack", "a rack")))
    assert drawn(result)[1] == "  a: gang 1, all, in net/rack"
    (notice,) = result.notices
    assert notice.reason == "PreferredTopologyDropped"
    assert (
        "spec.podgroups[0].topologyConstraint.packConstraint.preferred: 'a rack' is not used"
        in notice.message
    )


def test_a_required_topology_that_is_no_label_key_is_refused():
    result = compiled(podgang(("a", 1), **constraint("not a key")))
    assert result.refusal.reason == "InvalidTopology"
    assert result.refusal.field == "spec.topologyConstraint.packConstraint.required"
    assert "'not a key'" in result.refusal.message


@pytest.mark.parametrize("requested", [True, False])
def test_a_shape_that_changes_in_place_is_refused(requested):
    """Edge case 6."""
    before = compiled(podgang(("a", 1), ("b", 1)))
    after = podgang(("a", 1), ("c", 1))
    result = compiled(after, existing=existing(before), requested=requested)
    assert (result.outcome, result.refusal.reason) == ("refused", "ShapeChanged")
    assert "they are a, c, but the tree was made for a, b" in result.refusal.message
    emptied = compiled(podgang(), existing=existing(before), requested=requested)
    assert "they are none, but the tree was made for a, b" in emptied.refusal.message


def test_another_minimum_is_no_other_shape():
    before = compiled(podgang(("a", 3)))
    assert drawn(compiled(podgang(("a", 2)), existing=existing(before)))[1] == "  a: gang 2, all"


def test_a_group_without_a_minimum_is_basic():
    assert drawn(compiled(podgang(("a", 0), ("b", 1))))[1:] == ["  a: basic", "  b: gang 1, all"]


def test_the_priority_class_of_the_podgang_is_that_of_its_groups():
    lines = drawn(compiled(podgang(("a", 1), priorityClassName="prod")))
    assert lines == ["+serve-0: gang 1, all, prod", "  a: gang 1, all, prod"]


@pytest.mark.parametrize(
    ("scheduler", "outcome"), [("kai-scheduler", "kept-out"), ("default-scheduler", "compiled")]
)
def test_a_podgang_that_another_scheduler_reads_is_left_alone(scheduler, outcome):
    result = compiled(podgang(("a", 1), labels={"grove.io/scheduler-name": scheduler}))
    assert result.outcome == outcome
