"""TrainJob: its JobSet is the tree, with the annotations of the TrainJob."""

from __future__ import annotations

import pytest

from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from tests.support.planning.controller_records import labels_of, record, uses_of
from tests.support.planning.workload_builders import compiled, drawn, jobset, replicated, workload

LINES = [
    "+tune-00000000: basic",
    "  tune-dataset-initializer-0-00000000: basic",
    "  tune-model-initializer-0-00000000: basic",
    "  tune-node-0-00000000: gang 3, all",
]


def owner(**annotations):
    keys = {f"gang-extender.dev/{key}": value for key, value in annotations.items()}
    return workload("TrainJob", "tune", {}, annotations=keys)


@pytest.mark.parametrize("name", ["initializers", "trainer"])
def test_the_recorded_trainjob_is_initializers_and_a_gang_of_nodes(name):
    found = record(f"trainjob/{name}.json")
    result = compiled(found.of("JobSet"), *uses_of(found.pods()), owner=found.of("TrainJob"))
    assert drawn(result) == LINES
    leaves = {one.name for one in result.groups if one.kind == "PodGroup"}
    assert {leaf_of_pod(labels_of(one)) for one in found.pods()} <= leaves


def test_only_the_jobset_is_compiled_and_the_trainjob_is_its_owner():
    found = record("trainjob/trainer.json")
    assert [one.kind for one in found.roots()] == ["JobSet"]
    assert BY_KIND["TrainJob"].parts is None
    assert found.of("JobSet").owner.kind in BY_KIND["JobSet"].policy_from


def test_the_annotations_of_the_trainjob_count():
    found = record("trainjob/trainer.json").of("JobSet")
    lines = drawn(
        compiled(found, owner=owner(topology="root=net/block,leaf=net/rack", min="node=2"))
    )
    assert lines[0] == "+tune-00000000: basic, in net/block"
    assert lines[-1] == "  tune-node-0-00000000: gang 2, all, in net/rack"


def test_the_profile_of_trainjobs_counts():
    profile = TreeProfile(name="p", kinds={"TrainJob": KindPolicy(disruption_mode="single")})
    found = record("trainjob/trainer.json").of("JobSet")
    lines = drawn(compiled(found, owner=owner(), profile=profile, profile_name="p"))
    assert lines[-1] == "  tune-node-0-00000000: gang 3"


def test_trials_of_a_search_are_below_a_composite_of_the_user():
    result = compiled(jobset(replicated("node")), owner=owner(parent="search"))
    assert result.groups[0].parent == "search"


def test_an_error_names_the_trainjob():
    result = compiled(jobset(replicated("node")), owner=owner(gang="some"))
    assert result.refusal.message.startswith("TrainJob/team/tune: metadata.annotations[")


def test_several_jobs_of_the_trainer_step_are_one_gang():
    step = {
        "metadata": {
            "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "dataset-initializer"}
        }
    }
    data = replicated("data")
    data["template"] |= step
    after = [{"name": "data", "status": "Complete"}]
    jobs = [
        data,
        replicated("launcher", dependsOn=after),
        replicated("node", 1, 2, dependsOn=after),
    ]
    assert drawn(compiled(jobset(*jobs), owner=owner())) == [
        "+train-6f2f0f4a: basic",
        "  train-data-6f2f0f4a: basic",
        "  +train-step2-6f2f0f4a: gang 2, all",
        "    train-launcher-6f2f0f4a: gang 1, all",
        "    train-node-0-6f2f0f4a: gang 2, all",
    ]


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({}, {}, (False, False, "")),
        ({"suspend": True}, {}, (False, True, "")),
        ({}, {"conditions": [{"type": "Complete", "status": "True"}]}, (True, False, "")),
        ({}, {"conditions": [{"type": "Failed", "status": "True"}]}, (True, False, "")),
        ({"managedBy": "trainer.kubeflow.org/trainjob-controller"}, {}, (False, False, "")),
    ],
)
def test_states(spec, status, expected):
    kind, found = BY_KIND["TrainJob"], workload("TrainJob", "tune", spec, status=status)
    assert (kind.finished(found), kind.suspended(found), kind.kept_out(found)) == expected


def test_a_trainjob_of_another_controller_is_left_alone():
    found = workload("TrainJob", "tune", {"managedBy": "kueue.x-k8s.io/multikueue"})
    assert "'kueue.x-k8s.io/multikueue'" in BY_KIND["TrainJob"].kept_out(found)
