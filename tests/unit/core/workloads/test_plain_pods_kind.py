"""Plain pods with two labels: one gang, and what stands for it while there is no object of its name."""

from __future__ import annotations

import pytest
from immutables import Map

from extender.core.model.ids import PodUid
from extender.core.model.pod_groups import leaf_key
from extender.core.model.pods import Pod, PodShape
from extender.core.workloads.kinds.plain_pods_kind import (
    PlainPodGroups,
    is_plain,
    plain_workload,
    policy_labels,
)
from tests.support.planning.workload_builders import compiled, drawn

LABELS = {
    "gang-extender.dev/tree": "default",
    "gang-extender.dev/group": "sweep",
    "gang-extender.dev/total": "3",
    "gang-extender.dev/pod-group": "sweep",
}


def pods(*labels, group="sweep", **fields):
    """Make pods with these labels, by the leaf that they name."""
    members = {}
    for number, own in enumerate(labels):
        uid = PodUid(f"pod-{number}")
        members[uid] = Pod(
            uid=uid,
            namespace="team",
            name=f"w-{number}",
            shape=PodShape(),
            labels=LABELS | own,
            created_us=number,
            **fields,
        )
    return Map({leaf_key("team", group): Map(members)})


def group(totals=("3",), classes=("",)):
    return plain_workload("team", "sweep", "default", totals, classes)


def test_the_total_is_the_minimum():
    assert drawn(compiled(group())) == ["sweep: gang 3, all"]


def test_the_priority_is_that_of_the_pods():
    (spec,) = compiled(group(classes=("batch",))).groups
    assert spec.priority_class == "batch"


@pytest.mark.parametrize(
    ("workload", "reason", "text"),
    [
        (group(("3", "4")), "InvalidField", "its pods have '3' and '4'"),
        (group(("x",)), "InvalidField", "is 'x'; write how many pods the group has"),
        (group(("0",)), "InvalidField", "is '0'"),
        (group(classes=("a", "b")), "PrioritiesDiffer", "its pods have 'a' and 'b'"),
    ],
    ids=["two totals", "no number", "zero", "two priorities"],
)
def test_pods_that_do_not_fit_together_are_refused_with_both_values(workload, reason, text):
    refusal = compiled(workload).refusal
    assert (refusal.reason, text in refusal.message) == (reason, True)


def test_the_group_of_a_view_is_one_workload_that_stays_the_same_object():
    groups = PlainPodGroups()
    first = groups.of(pods({}, {}))
    (workload,) = first.values()
    assert (workload.name, workload.spec["totals"]) == ("sweep", ["3"])
    assert groups.of(pods({}, {}, {})) is first  # a pod more changes nothing of it
    (changed,) = groups.of(pods({}, {"gang-extender.dev/total": "4"})).values()
    assert changed.spec["totals"] == ["3", "4"]
    assert changed.uid == workload.uid


def test_annotations_of_workloads_are_refused_on_pods():
    key = "gang-extender.dev/topology"
    groups = PlainPodGroups()
    (workload,) = groups.of(pods({}, {}, tree_annotations=(key,))).values()
    refusal = compiled(workload).refusal
    assert (refusal.reason, refusal.field) == (
        "InvalidAnnotation",
        f"metadata.annotations[{key}]",
    )
    assert "make a TreeProfile for the kind PlainPods" in refusal.message


def test_without_pods_that_stay_there_is_no_group():
    groups = PlainPodGroups()
    assert groups.of(pods({}, {}, deleting=True)) == Map()
    assert groups.of(pods({"gang-extender.dev/pod-group": "other"}, group="other")) == Map()


def test_a_pod_that_names_a_group_without_a_total_waits_for_a_group_of_the_user():
    own = {key: value for key, value in LABELS.items() if not key.endswith("/total")}
    assert is_plain(LABELS)
    assert not is_plain(own)


@pytest.mark.parametrize(
    ("labels", "annotations", "added"),
    [
        ({"gang-extender.dev/group": "a.b", "gang-extender.dev/total": "2"}, {}, ("a-b", "2")),
        (
            {"gang-extender.dev/tree": "racks", "kueue.x-k8s.io/pod-group-name": "g"},
            {"kueue.x-k8s.io/pod-group-total-count": "5"},
            ("g", "5"),
        ),
        ({"kueue.x-k8s.io/pod-group-name": "g"}, {}, None),
        (
            {
                "gang-extender.dev/group": "g",
                "gang-extender.dev/total": "2",
                "gang-extender.dev/tree": "off",
            },
            {},
            None,
        ),
        ({"gang-extender.dev/group": "g"}, {}, None),
        ({"gang-extender.dev/tree": "default", "gang-extender.dev/pod-group": "g"}, {}, None),
    ],
    ids=["ours", "Kueue's", "Kueue's without a tree", "off", "one label", "a group of its own"],
)
def test_what_the_policy_adds(labels, annotations, added):
    result = policy_labels(labels, annotations)
    if added is None:
        assert result == {}
    else:
        assert (result["gang-extender.dev/pod-group"], result["gang-extender.dev/total"]) == added
        assert is_plain({**labels, **result})
