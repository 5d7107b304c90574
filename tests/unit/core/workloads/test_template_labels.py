"""Pod templates get the labels that the admission policies write, and nothing else changes."""

from __future__ import annotations

import copy

import pytest

from extender.core.workloads.kinds.job_kind import JOB
from extender.core.workloads.kinds.jobset_kind import JOBSET
from extender.core.workloads.template_labels import with_template_labels
from extender.core.workloads.workload_object import LEAF_LABEL, TREE_LABEL, WorkloadObject


def a_workload(kind, spec):
    return WorkloadObject(
        api_version=f"{kind.group}/{kind.versions[0]}",
        kind=kind.kind,
        namespace="default",
        name="w",
        uid="u",
        spec=spec,
    )


def a_replicated_job(template, **spec):
    return {"name": "r", "template": {"spec": {"template": template, **spec}}}


def labels_of(kind, spec):
    """Return the labels of the templates of a JobSet after the policy."""
    found = with_template_labels(kind, a_workload(kind, spec), "mine").spec
    return [
        job["template"]["spec"]["template"]["metadata"]["labels"] for job in found["replicatedJobs"]
    ]


def test_each_template_of_a_list_gets_the_leaf_label_of_its_item():
    spec = {
        "replicatedJobs": [
            a_replicated_job({"spec": {}}),
            a_replicated_job({"metadata": {"labels": {"app": "a"}}}, parallelism=4),
            {**a_replicated_job({}, parallelism=4), "replicas": 513},
        ]
    }
    before = copy.deepcopy(spec)
    assert labels_of(JOBSET, spec) == [
        {TREE_LABEL: "mine", LEAF_LABEL: "replicated-job"},
        {TREE_LABEL: "mine", LEAF_LABEL: "job", "app": "a"},
        {TREE_LABEL: "mine", LEAF_LABEL: "replicated-job"},
    ]
    assert spec == before


def test_a_label_that_is_there_stays():
    own = {TREE_LABEL: "theirs", LEAF_LABEL: "replicated-job"}
    spec = {"replicatedJobs": [a_replicated_job({"metadata": {"labels": own}}, parallelism=4)]}
    assert labels_of(JOBSET, spec) == [own]


def test_a_kind_without_a_choice_gets_no_leaf_label():
    found = with_template_labels(JOB, a_workload(JOB, {"template": {"spec": {"a": 1}}}), "mine")
    assert found.spec == {
        "template": {"metadata": {"labels": {TREE_LABEL: "mine"}}, "spec": {"a": 1}}
    }


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (JOB, {}),
        (JOB, {"template": None}),
        (JOBSET, {}),
        (JOBSET, {"replicatedJobs": None}),
        (JOBSET, {"replicatedJobs": [{"name": "r"}]}),
    ],
)
def test_a_template_that_does_not_exist_is_not_made(kind, spec):
    workload = a_workload(kind, spec)
    assert with_template_labels(kind, workload, "mine") == workload
