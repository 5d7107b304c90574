"""A TrainJob in files is planned as the JobSet that Trainer makes of its runtime."""

from __future__ import annotations

import msgspec
import pytest

from extender.cluster.manifests.manifest_entries import filled_in_uid
from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.core.model.errors import BadInput
from extender.core.workloads.workload_object import TREE_LABEL
from tests.support.service.manifest_builders import RACK, a_fleet, a_manifest, an_object

TRAINER = "trainer.kubeflow.org/v1alpha1"
TOPOLOGY = "gang-extender.dev/topology"
UID = filled_in_uid(("JobSet", "", "default", "tune"), 0)


def a_runtime(kind="ClusterTrainingRuntime", namespace="", **pod):
    container = {"name": "node", "resources": {"requests": {"cpu": "1"}}}
    label = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    template = {"spec": {"template": {"spec": {"containers": [container], **pod}}}}
    jobs = [{"name": "node", "template": {"metadata": label, **template}}]
    spec = {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": jobs}}}
    return an_object(kind, "torch", TRAINER, namespace, spec=spec)


def a_trainjob(metadata=None, **spec):
    head = {"labels": {TREE_LABEL: "default"}, **(metadata or {})}
    body = {"runtimeRef": {"name": "torch"}, **spec}
    return an_object("TrainJob", "tune", TRAINER, metadata=head, spec=body)


def a_jobset_of_trainer(**metadata):
    owner = {"kind": "TrainJob", "name": "tune", "uid": "1", "controller": True}
    template = {"spec": {"containers": [{"name": "node"}]}}
    jobs = [
        {
            "name": "node",
            "template": {"spec": {"parallelism": 5, "completions": 5, "template": template}},
        }
    ]
    return an_object(
        "JobSet", "tune", "jobset.x-k8s.io/v1alpha2",
        metadata={"ownerReferences": [owner], **metadata}, spec={"replicatedJobs": jobs},
    )  # fmt: skip


def group_names(found):
    return [key.name for key in found.groups]


@pytest.mark.parametrize("where", ["cluster", "wanted"])
@pytest.mark.parametrize("kind", ["ClusterTrainingRuntime", "TrainingRuntime"])
def test_the_runtime_is_in_the_files(where, kind) -> None:
    """In --cluster or in -f; the annotations of the TrainJob count, and the pods have the resources of a node."""
    runtime = a_runtime(kind, "" if kind.startswith("Cluster") else "default")
    trainjob = a_trainjob(
        {"annotations": {TOPOLOGY: f"leaf={RACK}"}},
        runtimeRef={"name": "torch", "kind": kind},
        trainer={"numNodes": 3, "resourcesPerNode": {"requests": {"cpu": "4"}}},
    )
    cluster = [runtime] if where == "cluster" else []
    found = a_manifest(cluster, [trainjob] if cluster else [trainjob, runtime])
    assert group_names(found) == [f"tune-node-0-{UID[:8]}"]
    leaf = found.world.view.groups[found.groups[0]]
    assert (leaf.minimum, leaf.constraints.topology) == (3, (RACK,))
    pods = [found.world.view.pods[uid] for uid in found.pods]
    assert [dict(pod.shape.requests)["cpu"] for pod in pods] == [4000] * 3


def test_a_runtime_of_another_namespace_is_not_taken() -> None:
    trainjob = a_trainjob(runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    with pytest.raises(BadInput, match="TrainingRuntime/default/torch is not in the files"):
        a_manifest([a_runtime("TrainingRuntime", "other")], [trainjob])


def test_a_runtime_that_is_missing_is_named_with_the_command_that_prints_it() -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([], [a_trainjob()])
    assert str(caught.value) == (
        "object 1: TrainJob/default/tune: spec.runtimeRef: ClusterTrainingRuntime/torch is not in the files; add the output "
        "of `kubectl get clustertrainingruntime torch -o yaml`, or the JobSet that Trainer makes"
    )


def test_a_jobset_of_the_files_is_planned_as_it_is() -> None:
    found = a_manifest([], [a_runtime(), a_trainjob(), a_jobset_of_trainer()])
    assert (len(found.groups), len(found.pods)) == (1, 5)


def test_a_jobset_that_runs_keeps_its_groups() -> None:
    """The TrainJob is written anew over a saved cluster: names have the UID of the JobSet there."""
    running = a_jobset_of_trainer(uid="abcdef00-0000-4000-8000-000000000000")
    found = a_manifest([running, a_runtime()], [a_trainjob()])
    assert group_names(found) == ["tune-node-0-abcdef00"]
    assert len(found.pods) == 2


@pytest.mark.parametrize(
    ("spec", "status", "warning", "pods"),
    [
        ({"suspend": True}, {}, "JobSet/default/tune: is suspended; planned as if it were resumed", 2),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, {},
         "TrainJob/default/tune: spec.managedBy is 'kueue.x-k8s.io/multikueue', so another controller runs it; its pods are not planned", 0),
        ({}, {"conditions": [{"type": "Complete", "status": "True"}]},
         "TrainJob/default/tune: is finished or being deleted: it needs no pods any more", 0),
    ],
    ids=["suspended", "managed-by-other", "complete"],
)  # fmt: skip
def test_states(spec, status, warning, pods) -> None:
    found = a_manifest([a_runtime()], [{**a_trainjob(**spec), "status": status}])
    assert (list(found.warnings), len(found.pods)) == ([warning], pods)


@pytest.mark.parametrize(
    ("trainjob", "words"),
    [
        (a_trainjob(trainer={"numNodes": "four"}), "object 1: TrainJob/default/tune: spec.trainer.numNodes: "),
        (a_trainjob(runtimePatches=[{"manager": "x", "trainingRuntimeSpec": {"mlPolicy": {}}}]),
         "object 1: TrainJob/default/tune: spec.runtimePatches[0].trainingRuntimeSpec.mlPolicy: Trainer v2.3 cannot patch"),
        (a_trainjob(runtimePatches=[{"manager": "x", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
            {"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": ["gpu"]}}}}}]}}}}]),
         "object 1: JobSet/default/tune: pod template of node: Pod/tune-node-0-262db6df: spec.nodeSelector: "),
    ],
    ids=["number", "patch", "node-selector"],
)  # fmt: skip
def test_a_wrong_field_is_named(trainjob, words) -> None:
    with pytest.raises(BadInput) as caught:
        a_manifest([a_runtime()], [trainjob])
    assert str(caught.value).startswith(words)


async def test_a_question_with_copies_has_a_jobset_for_each_copy() -> None:
    """The runtime is shared by the copies; six nodes have three times two pods."""
    trainjob = a_trainjob(trainer={"resourcesPerNode": {"requests": {"cpu": "64"}}})
    body = {
        "cluster": a_fleet("1 rack x 6 nodes"),
        "workload": [a_runtime(), trainjob],
        "max_copies": True,
    }
    found = msgspec.json.decode(answer_plan_request(msgspec.json.encode(body)))
    assert found["copies"] == {"wanted": 0, "fit": 3, "proved": True, "limited": False}
    assert [one["workload"] for one in found["gangs"]][:2] == [
        "JobSet/default/tune",
        "JobSet/default/tune-2",
    ]
