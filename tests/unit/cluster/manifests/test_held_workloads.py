"""A RayJob, RayService, RayCronJob or CronJob in files is the workload that its controller makes from it."""

from __future__ import annotations

from collections import Counter

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.tree_copies import TreeCopies
from extender.cluster.manifests.yaml_reader import Document
from extender.core.model.errors import BadInput
from tests.support.service.manifest_builders import a_manifest, an_object
from tests.support.service.workload_builders import DEFAULT

RAY = "ray.io/v1"
WITHOUT_LABEL = "is not set; planned as if it were default"


def a_template(cpu="1"):
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}


def a_cluster_spec(**group):
    worker = {"groupName": "g", "replicas": 2, "minReplicas": 2, "template": a_template(), **group}
    return {"headGroupSpec": {"template": a_template()}, "workerGroupSpecs": [worker]}


def a_holder(kind, name="train", labels=DEFAULT, **spec):
    version = "batch/v1" if kind == "CronJob" else RAY
    return an_object(kind, name, version, spec=spec, metadata={"labels": dict(labels)})


HOLDERS = {
    "RayJob": a_holder("RayJob", rayClusterSpec=a_cluster_spec()),
    "RayService": a_holder("RayService", rayClusterConfig=a_cluster_spec()),
    "RayCronJob": a_holder("RayCronJob", schedule="@daily", jobTemplate={"rayClusterSpec": a_cluster_spec()}),
    "CronJob": a_holder(
        "CronJob", labels={}, schedule="@daily",
        jobTemplate={"metadata": {"labels": dict(DEFAULT)}, "spec": {"parallelism": 3, "template": a_template()}},
    ),
}  # fmt: skip


def annotated(thing):
    return {
        **thing,
        "metadata": {**thing["metadata"], "annotations": {"gang-extender.dev/min": "job=2"}},
    }


def as_workload(kind):
    """Return the same workload, written by itself."""
    spec = {"parallelism": 3, "template": a_template()} if kind == "CronJob" else a_cluster_spec()
    made, version = ("Job", "batch/v1") if kind == "CronJob" else ("RayCluster", RAY)
    return an_object(made, "train", version, spec=spec, metadata={"labels": dict(DEFAULT)})


def entries(role, *things):
    documents = [Document(where=f"object {n}", value=thing) for n, thing in enumerate(things, 1)]
    return entries_in(documents, role)


def groups_of(found):
    return {key: (group.parent, group.minimum) for key, group in found.world.view.groups.items()}


@pytest.mark.parametrize("kind", HOLDERS)
def test_it_is_planned_as_its_workload(kind):
    found, alone = a_manifest([], [HOLDERS[kind]]), a_manifest([], [as_workload(kind)])
    assert groups_of(found) == groups_of(alone) != {}
    assert len(found.pods) == len(alone.pods) == 3
    assert {str(one.workload) for one in found.origins.values()} == {
        f"{'Job' if kind == 'CronJob' else 'RayCluster'}/default/train"
    }
    not_labelled = [text for text in found.warnings if WITHOUT_LABEL in text]
    assert bool(not_labelled) == (kind == "RayCronJob")  # no label reaches its RayCluster


@pytest.mark.parametrize("kind", sorted(HOLDERS.keys() - {"RayCronJob"}))
def test_a_served_cluster_has_its_workload_and_pods(kind):
    found = complete(entries(Role.CLUSTER, HOLDERS[kind]), serving=True)
    (workload,) = found.served.manifests
    assert (workload.kind, workload.metadata.name) == (as_workload(kind)["kind"], "train")
    assert len(build(found).world.view.pods) == 3


def test_the_workload_that_it_has_made_already_counts():
    """The output of kubectl has both."""
    made = as_workload("RayJob")
    made["metadata"] |= {"name": "train-x7f2a", "uid": "u1"}
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": RAY, "kind": "RayJob", "name": "train", "controller": True}
    ]
    found = a_manifest([], [HOLDERS["RayJob"], made])
    assert {one.workload for one in found.origins.values()} == {"RayCluster/default/train-x7f2a"}
    served = complete(entries(Role.CLUSTER, HOLDERS["RayJob"], made), serving=True)
    assert [one.metadata.name for one in served.served.manifests] == ["train-x7f2a"]


def test_copies_of_it_are_copies_of_its_workload():
    copies = TreeCopies(entries(Role.WANTED, HOLDERS["RayJob"]))
    assert Counter(group.key.name.split("-ray")[0] for group in copies.copy(2).groups) == {
        "train-2": 3
    }


def test_a_submitter_beside_the_head_needs_its_share():
    """SidecarMode adds a container to the head; the pod of K8sJobMode comes later, and is named; HTTPMode has none."""
    requests, notes = {}, {}
    for mode in ("SidecarMode", "K8sJobMode", "HTTPMode"):
        found = a_manifest(
            [], [a_holder("RayJob", submissionMode=mode, rayClusterSpec=a_cluster_spec())]
        )
        (head,) = (pod for pod in found.world.view.pods.values() if "headgroup" in pod.name)
        requests[mode] = dict(head.shape.requests)["cpu"]
        notes[mode] = sum("submits the job" in text for text in found.warnings)
    assert requests == {"SidecarMode": 1500, "K8sJobMode": 1000, "HTTPMode": 1000}
    assert notes == {"SidecarMode": 0, "K8sJobMode": 1, "HTTPMode": 0}


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (a_holder("RayJob", clusterSelector={"a": "b"}), "it runs on a RayCluster that exists, so it has no pods to plan"),
        (a_holder("RayJob", suspend=True, rayClusterSpec=a_cluster_spec()), "is suspended; planned as if it were resumed"),
        (a_holder("CronJob", schedule="@daily", jobTemplate={"spec": {"template": a_template()}}),
         "metadata.labels[gang-extender.dev/tree]: does not reach the Jobs; write it to spec.jobTemplate.metadata.labels"),
        (annotated(HOLDERS["CronJob"]), "metadata.annotations[gang-extender.dev/min]: does not reach the Jobs; write it to spec.jobTemplate.metadata.annotations"),
        (annotated(HOLDERS["RayCronJob"]), "RayCronJob/default/train: metadata.annotations[gang-extender.dev/min]: does not reach the RayClusters"),
        (a_holder("RayService", rayClusterConfig=a_cluster_spec(minReplica=2)),
         "RayService/default/train: spec.rayClusterConfig.workerGroupSpecs[0].minReplica: there is no such field in KubeRay v1.6.2, "
         "so it is not used; did you mean minReplicas?"),
    ],
    ids=["other cluster", "suspended", "label", "annotation", "of what has no place", "misspelt"],
)  # fmt: skip
def test_what_is_to_be_known_about_it_is_a_warning(thing, words):
    assert any(words in text for text in a_manifest([], [thing]).warnings)


def a_submitter(**spec):
    return {"spec": {**a_template()["spec"], **spec}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"submitterPodTemplate": a_submitter(restartPolicy="Always")},
         "submitterPodTemplate.spec.restartPolicy: is 'Always'; the pod is that of a Job, which has Never or OnFailure"),
        ({"submissionMode": "SidecarMode", "submitterPodTemplate": a_submitter(restartPolicy="Never")},
         "submitterPodTemplate: has no pod in submissionMode SidecarMode"),
        ({"submissionMode": "SidecarMode", "rayClusterSpec": {"headGroupSpec": {"template": a_submitter(restartPolicy="Always")}}},
         "rayClusterSpec.headGroupSpec.template.spec.restartPolicy: is 'Always'; with submissionMode SidecarMode it is Never"),
    ],
)  # fmt: skip
def test_a_submitter_that_is_refused_is_an_error(spec, words):
    body = {"rayClusterSpec": a_cluster_spec(), **spec}
    jobs = {
        "RayJob": ("spec.", body),
        "RayCronJob": ("spec.jobTemplate.", {"schedule": "@daily", "jobTemplate": body}),
    }
    for kind, (place, job) in jobs.items():
        with pytest.raises(BadInput) as caught:
            a_manifest([], [a_holder(kind, **job)])
        assert f"{kind}/default/train: {place}{words}" in str(caught.value)


@pytest.mark.parametrize("restart", ["Never", "OnFailure", None])
def test_a_submitter_without_a_restart_policy_is_a_warning(restart):
    template = a_submitter(**({} if restart is None else {"restartPolicy": restart}))
    job = a_holder("RayJob", rayClusterSpec=a_cluster_spec(), submitterPodTemplate=template)
    texts = [
        text
        for text in a_manifest([], [job]).warnings
        if "submitterPodTemplate.spec.restartPolicy: is missing" in text
    ]
    assert len(texts) == (restart is None)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (a_holder("RayJob"), "RayJob/default/train: spec.rayClusterSpec: is missing"),
        (a_holder("RayService", rayClusterConfig=a_cluster_spec(replicas="two")),
         'spec.workerGroupSpecs[0].replicas: expected a whole number from 0 to 100000, found "two"'),
        (a_holder("CronJob", schedule="@daily", jobTemplate=[]), "CronJob/default/train: spec.jobTemplate: is no object"),
        (HOLDERS["RayJob"] | {"apiVersion": "ray.io/v2"}, 'apiVersion: there is no "ray.io/v2" of RayJob'),
        (HOLDERS["RayJob"] | {"kind": "RayJobs"}, "did you mean RayJob?"),
    ],
    ids=["missing", "type", "no object", "version", "kind"],
)  # fmt: skip
def test_a_wrong_field_is_named(thing, words):
    with pytest.raises(BadInput) as caught:
        a_manifest([], [thing])
    assert words in str(caught.value)
