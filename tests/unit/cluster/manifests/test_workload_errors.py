"""A workload in a file that cannot be planned is refused, or an error, that names file, object, field and value."""

from __future__ import annotations

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.yaml_reader import Document
from extender.core.model.errors import BadInput
from extender.core.workloads.workload_object import TREE_LABEL
from tests.support.service.manifest_builders import RACK, a_manifest, an_object
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_namespace,
    a_profile,
    a_replicated_job,
    a_template,
)

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
GANG = "gang-extender.dev/gang"
MIN = "gang-extender.dev/min"
TOPOLOGY = "gang-extender.dev/topology"


def two_priorities():
    return a_jobset(
        a_replicated_job("driver", template=a_template(priorityClassName="low")),
        a_replicated_job("worker", template=a_template(priorityClassName="high")),
    )


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (a_job(labels={TREE_LABEL: "research"}),
         "Job/default/fit: metadata.labels[gang-extender.dev/tree]: no TreeProfile 'research'; create it"),
        (a_jobset(annotations={GANG: "some"}),
         "JobSet/default/train: metadata.annotations[gang-extender.dev/gang]: 'some' is none of all, per-replicated-job, per-job"),
        (a_jobset(annotations={TOPOLOGY: "root=not a key"}),
         "metadata.annotations[gang-extender.dev/topology]: root='not a key' is not the key of a node label"),
        (a_jobset(annotations={MIN: "worker=9"}),
         "metadata.annotations[gang-extender.dev/min]: worker=9 is more than the 2 groups that worker has"),
        (a_jobset(a_replicated_job("worker", 2, parallelism=1), annotations={EXCLUSIVE: RACK}),
         f"metadata.annotations[{EXCLUSIVE}]: '{RACK}': JobSet makes the other pods of a Job only when its first pod has a node, so no gang "
         "of them can start; use a required podAntiAffinity in the pod template of worker, whose Jobs are one group, instead"),
        (two_priorities(),
         "JobSet/default/train: priorityClassName: driver has 'low', worker has 'high', but all pods of one tree have one priority"),
    ],
    ids=["profile", "gang", "topology", "min", "exclusive", "priorities"],
)  # fmt: skip
def test_a_workload_that_cannot_be_compiled_is_refused_and_the_others_are_planned(
    workload, words
) -> None:
    found = a_manifest([], [workload, a_job("other")])
    assert [key.name.rpartition("-")[0] for key in found.groups] == ["other"]
    assert len(found.pods) == 1
    (refused,) = found.refused
    assert refused.text.startswith(f"object 1: {refused.label}: ")
    assert words in refused.text


def test_one_that_only_its_namespace_covers_gets_basic_leaves() -> None:
    space = a_namespace("default", tree="default")
    found = a_manifest([space], [a_jobset(labels={}, annotations={MIN: "worker=9"})])
    assert found.refused == ()
    view = found.world.view
    assert {
        (key.name.rpartition("-")[0], group.basic, len(view.members[key]))
        for key, group in view.groups.items()
    } == {("train-driver", True, 1), ("train-worker-0", True, 2), ("train-worker-1", True, 2)}
    (warning,) = found.warnings
    assert MIN in warning
    assert warning.endswith("its pods are placed one by one")


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (a_jobset(a_replicated_job("driver"), a_replicated_job("worker", "two")),
         r"JobSet/default/train: spec.replicatedJobs\[1\].replicas: expected a whole number from 0 to 100000, found \"two\""),
        (a_jobset(a_replicated_job("worker", -1)), r"spec.replicatedJobs\[0\].replicas: expected a whole number from 0 to 100000, found -1"),
        (a_jobset(a_replicated_job("worker", 2.5)), r"spec.replicatedJobs\[0\].replicas: expected a whole number from 0 to 100000, found 2.5"),
        (a_jobset(a_replicated_job("worker", parallelism=True)),
         r"spec.replicatedJobs\[0\].template.spec.parallelism: expected a whole number from 0 to 100000, found true"),
        (a_jobset({"replicas": 2}), r"spec.replicatedJobs\[0\].name: is missing; it is text"),
        (a_jobset(replicatedJobs={"worker": 2}), r"spec.replicatedJobs: expected a list, found \{"),
        (a_jobset({**a_replicated_job("worker"), "dependsOn": "driver"}),
         r"spec.replicatedJobs\[0\].dependsOn: expected a list, found \"driver\""),
        (a_jobset(suspend="yes"), r"spec.suspend: expected true or false, found \"yes\""),
        (a_jobset(annotations={MIN: 2}), r"metadata.annotations.*expected text, found 2"),
        (a_job(completions="4"), r"Job/default/fit: spec.completions: expected a whole number of at least 0, found \"4\""),
        (a_job(template="pod"), r"spec.template: expected an object, found \"pod\""),
        (a_job(template={"metadata": {"labels": {"a": 1}}, **a_template()}),
         r"spec.template.metadata.labels.*expected text, found 1"),
        (a_job(template={"spec": {"containers": {"name": "main"}}}),
         r"Job/default/fit: pod template of job: Pod/fit-\w+: spec.containers: expected a list, found \{"),
        (a_job(template=a_template({"cpu": "much"})),
         r", Job/default/fit: Pod/default/fit-\w+-0: spec.containers\[0\].resources.requests.*much"),
        (a_job(template=a_template(priorityClassName="none")),
         r", Job/default/fit: PodGroup/default/fit-\w+: spec.priorityClassName: no PriorityClass \"none\""),
        (an_object("Job", "", "batch/v1", spec={}), "Job: metadata.name: is missing"),
        (a_profile("p", {"kind": "Job", "gang": "some"}), r"TreeProfile/p: spec.kinds\[0\].gang: expected one of .*, found \"some\""),
    ],
    ids=range(17),
)  # fmt: skip
def test_what_an_api_server_would_refuse_names_file_object_field_and_value(workload, words) -> None:
    with pytest.raises(BadInput, match=r"^(2 problems:\s+)?file.*" + words):
        build(complete(entries_in([Document(where="file", value=workload)], Role.WANTED)))


@pytest.mark.parametrize(
    ("version", "kind", "spec", "words"),
    [
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": {"size": "3"}},
         r"spec.leaderWorkerTemplate.size: expected a whole number from 1 to 100000, found \"3\""),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": {"workerTemplate": []}},
         r"spec.leaderWorkerTemplate.workerTemplate: expected an object, found \[\]"),
        ("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": [{"name": "a", "spec": {"replicas": -1}}]},
         r"spec.roles\[0\].spec.replicas: expected a whole number from 0 to 100000, found -1"),
        ("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"groupName": "a", "minReplicas": "one"}]},
         r"spec.workerGroupSpecs\[0\].minReplicas: expected a whole number from 0 to 100000, found \"one\""),
        ("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"replicas": 1}]},
         r"spec.workerGroupSpecs\[0\].groupName: is missing; it is text"),
        ("apps/v1", "StatefulSet", {"ordinals": {"start": -1}},
         r"spec.ordinals.start: expected a whole number of at least 0, found -1"),
        ("kubeflow.org/v2beta1", "MPIJob", {"slotsPerWorker": -1},
         r"spec.slotsPerWorker: expected a whole number of at least 0, found -1"),
    ],
    ids=range(7),
)  # fmt: skip
def test_fields_of_the_other_kinds_have_types_too(version, kind, spec, words) -> None:
    with pytest.raises(BadInput, match=rf"^object 1: {kind}/default/w: {words}"):
        a_manifest([], [an_object(kind, "w", version, spec=spec)])


def test_a_trainjob_needs_its_runtime_or_its_jobset() -> None:
    """The owner gives label and annotations; alone it has no pods."""
    train = an_object(
        "TrainJob",
        "tune",
        "trainer.kubeflow.org/v1alpha1",
        metadata={"uid": "1", "labels": {TREE_LABEL: "default"}, "annotations": {GANG: "per-job"}},
        spec={"runtimeRef": {"name": "torch"}},
    )
    with pytest.raises(
        BadInput,
        match=r"^object 1: TrainJob/default/tune: spec.runtimeRef: ClusterTrainingRuntime/torch is not in the files; add",
    ):
        a_manifest([], [train])
    owner = {"kind": "TrainJob", "name": "tune", "uid": "1", "controller": True}
    jobset = a_jobset(name="tune", labels={}, metadata={"ownerReferences": [owner]})
    found = a_manifest([], [train, jobset])
    assert (found.warnings, len(found.pods)) == ((), 5)
    assert {
        group.basic for key, group in found.world.view.groups.items() if key.kind != "PodGroup"
    } == {True}


def test_a_wrong_profile_names_its_place() -> None:
    profile = a_profile("p", {"kind": "Deployment"})
    with pytest.raises(
        BadInput, match=r"^object 1: TreeProfile/p: spec.kinds\[0\].kind: 'Deployment' is none of"
    ):
        a_manifest([profile], [a_job()])


def test_a_status_of_another_type_is_an_error_too() -> None:
    with pytest.raises(
        BadInput,
        match=r"^object 1: Job/default/fit: a field has another type than in the API: .*'some'",
    ):
        a_manifest([], [a_job(parallelism=2, completions=2, status={"succeeded": "some"})])


def test_the_kind_of_another_group_is_not_planned() -> None:
    job = an_object("Job", "j", "batch.volcano.sh/v1alpha1", spec={})
    with pytest.raises(
        BadInput, match=r"Job/default/j: kind Job of batch.volcano.sh/v1alpha1 is not planned"
    ):
        a_manifest([], [job])
