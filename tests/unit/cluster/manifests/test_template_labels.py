"""Pod templates get the labels that the admission policies write, and nothing else changes."""

from __future__ import annotations

import copy

import msgspec
import pytest

from extender.cluster.manifests.workload_expansion import with_template_labels
from extender.core.workloads.kinds.job_kind import JOB
from extender.core.workloads.kinds.jobset_kind import JOBSET
from extender.core.workloads.kinds.leaderworkerset_kind import LEADERWORKERSET
from extender.core.workloads.workload_object import (
    LEAF_LABEL,
    TREE_LABEL,
    OwnerReference,
    WorkloadObject,
)


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


OURS = "gang-extender.dev/exclusive"
EVEN = {"replicatedJobs": [{**a_replicated_job({}, parallelism=2), "replicas": 2}]}
ONE_EACH = {"replicatedJobs": [{**a_replicated_job({}), "replicas": 2}]}
DRIVER = {"replicatedJobs": [a_replicated_job({}), *EVEN["replicatedJobs"]]}
SUBGROUPS = {"size": 4, "subGroupPolicy": {"subGroupSize": 2}}


@pytest.mark.parametrize(
    ("kind", "spec", "more", "expected"),
    [
        (JOBSET, EVEN, {}, "leaf=net/rack"),
        (JOBSET, DRIVER, {}, "leaf=net/rack"),
        (JOBSET, ONE_EACH, {}, ""),
        (JOBSET, {"replicatedJobs": [a_replicated_job({}), a_replicated_job({})]}, {}, ""),
        (JOBSET, EVEN, {"alpha.jobset.sigs.k8s.io/node-selector": "true"}, ""),
        (LEADERWORKERSET, {"leaderWorkerTemplate": {"size": 4}}, {}, "leaf=net/rack"),
        (LEADERWORKERSET, {"leaderWorkerTemplate": {"size": 4}}, {"gang-extender.dev/gang": "all"}, "leaf=net/rack"),
        (LEADERWORKERSET, {"leaderWorkerTemplate": {"size": 1}}, {}, "root=net/rack"),
        (LEADERWORKERSET, {"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderReady"}, {}, "root=net/rack"),
        (LEADERWORKERSET, {"leaderWorkerTemplate": SUBGROUPS}, {}, "root=net/rack"),
        (LEADERWORKERSET, {"leaderWorkerTemplate": SUBGROUPS}, {"gang-extender.dev/gang": "all"}, ""),
    ],
)  # fmt: skip
def test_an_exclusive_topology_becomes_ours_where_one_level_is_the_same(kind, spec, more, expected):
    """The twin in CEL is compared with this on an API server."""
    annotations = {kind.exclusive_annotation: "net/rack", **more}
    workload = msgspec.structs.replace(a_workload(kind, spec), annotations=annotations)
    ours = {OURS: expected, **more} if expected else annotations
    assert with_template_labels(kind, workload, "mine").annotations == ours
    assert workload.annotations == annotations


def test_an_exclusive_topology_stays_where_it_cannot_become_ours():
    """Ours is there already; what counts are annotations of an owner; it was stored without the policy; or it names no label."""
    annotations = {JOBSET.exclusive_annotation: "net/rack"}
    plain = msgspec.structs.replace(a_workload(JOBSET, EVEN), annotations=annotations)
    owner = OwnerReference(api_version="v1", kind="TrainJob", name="t", uid="t")
    stored = {"replicatedJobs": [a_replicated_job({"metadata": {"labels": {TREE_LABEL: "mine"}}})]}
    for changes in (
        {"annotations": {**annotations, OURS: "root=net/block"}},
        {"owner": owner},
        {"spec": stored},
        *(
            {"annotations": {JOBSET.exclusive_annotation: value}}
            for value in ("", " ", "net/rack,root=net/zone", "net/rack:Cluster", "a" * 254 + "/b")
        ),
    ):
        workload = msgspec.structs.replace(plain, **changes)
        assert with_template_labels(JOBSET, workload, "mine").annotations == workload.annotations
