"""Workloads in files: leaders, templates of users, what has run, and the example of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.manifests.manifest_loader import load
from extender.core.admit.tree_warnings import NodeLabels, collect_warnings
from extender.core.model.nodes import SliceLevel
from extender.core.model.pod_groups import build_forest
from extender.core.workloads.kind_table import BY_KIND, OBJECT_KINDS
from extender.core.workloads.workload_object import GROUP_LABEL, LEAF_LABEL, TREE_LABEL
from tests.support.planning.controller_records import NAMES, record
from tests.support.service.manifest_builders import RACK, a_manifest, a_node, a_pod, an_object
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_replicated_job,
    a_template,
    pods_by_group,
    the_tree,
)

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "deploy" / "examples"
CONTROLLERS = ROOT / "tests" / "golden" / "controllers"


def lws_recorded(name):
    """Return the LeaderWorkerSet and the pods of a recording, which was made with our policy for pods."""
    objects = json.loads((CONTROLLERS / "lws" / f"{name}.json").read_text())["items"]
    return [one for one in objects if one["kind"] in ("LeaderWorkerSet", "Pod")]


def test_a_leader_has_its_own_template() -> None:
    (lws,) = yaml.safe_load_all((EXAMPLES / "lws.yaml").read_text())
    found = load([str(EXAMPLES / "cluster.yaml")], [str(EXAMPLES / "lws.yaml")])
    assert [key.name for key in found.groups] == ["chat-0-planned", "chat-1-planned"]
    pods = {
        pod.name: dict(pod.shape.requests)["cpu"]
        for pod in found.world.view.pods.values()
        if pod.group
    }
    assert pods == {
        f"chat-{replica}-{number}" if number else f"chat-{replica}": 64_000 if number else 32_000
        for replica in range(2)
        for number in range(lws["spec"]["leaderWorkerTemplate"]["size"])
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("lws/")])
def test_pods_have_the_names_of_the_controller(name: str) -> None:
    """Those of a recorded LeaderWorkerSet, by the labels that it has written."""
    recording = record(name)
    sets = {workload.name: workload for workload in recording.workloads("LeaderWorkerSet")}
    kind, named = BY_KIND["LeaderWorkerSet"], 0
    assert kind.pod_name is not None
    for pod in recording.pods():
        labels = pod["metadata"]["labels"]
        workload = sets[labels["leaderworkerset.sigs.k8s.io/name"]]
        assert kind.pod_name(workload, labels) == pod["metadata"]["name"]
        named += 1
    assert named


def planned_names(wanted: dict[str, Any]) -> list[str]:
    manifest = a_manifest([], [wanted])
    assert not manifest.refused
    return sorted(pod.name for pod in manifest.world.view.pods.values())


def test_pods_of_a_statefulset_have_its_name_and_their_ordinal() -> None:
    """From the first ordinal that it has; without those that exist."""
    template = a_template({"cpu": "1"}, schedulerName="gang-scheduler")
    spec = {"replicas": 3, "podManagementPolicy": "Parallel", "template": template}
    asked = an_object(
        "StatefulSet", "shards", "apps/v1", spec=spec, metadata={"labels": {TREE_LABEL: "default"}}
    )
    assert planned_names(asked) == ["shards-0", "shards-1", "shards-2"]
    labels = {
        "statefulset.kubernetes.io/pod-name": "shards-1", TREE_LABEL: "default", GROUP_LABEL: "shards-sts",
    }  # fmt: skip
    running = a_pod(
        "shards-1", node="n", metadata={"labels": labels}, schedulerName="gang-scheduler"
    )
    manifest = a_manifest([a_node("n"), running], [asked])
    names = sorted(pod.name for pod in manifest.world.view.pods.values())
    assert names == ["shards-0", "shards-1", "shards-2"]
    asked["spec"]["ordinals"] = {"start": 4}
    assert planned_names(asked) == ["shards-4", "shards-5", "shards-6"]


def test_pods_of_a_kubeflow_job_have_their_type_and_number() -> None:
    """The launcher of an MPIJob is the pod of a Job, which makes the end of its name up."""
    template = a_template({"cpu": "1"})
    template["spec"]["containers"][0]["name"] = "pytorch"

    def job(kind: str, version: str, field: str, **replicas: int) -> dict[str, Any]:
        types = {name: {"replicas": n, "template": template} for name, n in replicas.items()}
        return an_object(
            kind, "tune", f"kubeflow.org/{version}", spec={field: types}, metadata={"labels": {TREE_LABEL: "default"}},
        )  # fmt: skip

    asked = job("PyTorchJob", "v1", "pytorchReplicaSpecs", Master=1, Worker=2)
    assert planned_names(asked) == ["tune-master-0", "tune-worker-0", "tune-worker-1"]
    asked = job("MPIJob", "v2beta1", "mpiReplicaSpecs", Launcher=1, Worker=1)
    assert planned_names(asked) == ["tune-mpijob-launcher-0", "tune-worker-0"]


def test_the_replicas_of_live_pods_are_planned_and_not_others() -> None:
    """All pods of the recording are there: their revision is planned, and no pod is made."""
    things = lws_recorded("leader-created")
    for pod in things:
        if pod["kind"] == "Pod":
            pod["metadata"]["labels"][TREE_LABEL] = "default"
    found = a_manifest([], things)
    leaves = {pod["metadata"]["labels"][GROUP_LABEL] for pod in things if pod["kind"] == "Pod"}
    assert {key.name for key in found.groups} == leaves
    assert len(found.pods) == len(found.world.view.pods) == 6


def test_a_workload_of_the_user_gives_the_groups() -> None:
    """Its templates decide about the groups; without it the JobSet is refused, with a text that names it."""
    templates = an_object(
        "Workload",
        "mine",
        spec={
            "compositePodGroupTemplates": [
                {
                    "name": "all",
                    "schedulingPolicy": {"gang": {"minGroupCount": 2}},
                    "podGroupTemplates": [
                        {"name": "driver", "schedulingPolicy": {"gang": {"minCount": 1}}},
                        {
                            "name": "worker",
                            "schedulingPolicy": {"gang": {"minCount": 3}},
                            "schedulingConstraints": {"topology": [{"key": RACK}]},
                        },
                    ],
                }
            ]
        },
    )
    jobset = a_jobset(
        a_replicated_job("driver"),
        a_replicated_job("worker", parallelism=4, completions=4),
        annotations={"gang-extender.dev/workload": "mine"},
    )
    found = a_manifest([templates], [jobset])
    tree = the_tree(found)
    uid = tree.root.key.name.rpartition("-")[2]
    assert {
        (g.key.name.removesuffix(f"-{uid}"), g.minimum, g.constraints.topology, g.template)
        for g in tree.groups
    } == {
        ("train-all", 2, (), "all"),
        ("train-driver", 1, (), "driver"),
        ("train-worker-0", 3, (RACK,), "worker"),
    }
    (refused,) = a_manifest([], [jobset]).refused
    assert "Workload mine: does not exist in this namespace yet" in refused.text


def test_what_has_run_is_not_planned_again() -> None:
    """Pods of finished Jobs of a JobSet, and of a Job that is nearly done."""
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "train",
        "uid": "12345678",
        "controller": True,
    }
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/jobset-uid": "12345678-0",
        "jobset.sigs.k8s.io/replicatedjob-name": "worker",
        "jobset.sigs.k8s.io/job-index": "0",
        LEAF_LABEL: "job",
        TREE_LABEL: "default",
    }
    done = a_job(
        "train-worker-0",
        metadata={"ownerReferences": [owner]},
        template={"metadata": {"labels": labels}, **a_template()},
        parallelism=2,
        completions=2,
        status={"succeeded": 2, "conditions": [{"type": "Complete", "status": "True"}]},
    )
    found = a_manifest([], [a_jobset(metadata={"uid": "12345678-0"}), done])
    assert {name: pods for name, (_, pods) in pods_by_group(found).items() if pods} == {
        "train-driver": 1,
        "train-worker-1": 2,
    }
    nearly = a_job(parallelism=4, completions=10, completionMode="Indexed", status={"succeeded": 7})
    assert len(a_manifest([], [nearly]).pods) == 3


def test_a_label_that_came_from_the_namespace_is_no_request() -> None:
    """As `kubectl get` prints a workload that the admission policy labelled."""
    refused = {"gang-extender.dev/min": "worker=9"}
    from_namespace = {"gang-extender.dev/tree-from": "namespace", **refused}
    found = a_manifest([], [a_jobset(annotations=from_namespace)])
    assert found.refused == ()
    assert pods_by_group(found)["train-worker-0"] == (0, 2)


# --- examples


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("job", "Job"),
        ("jobset", "JobSet"),
        ("lws", "LeaderWorkerSet"),
        ("disaggregatedset", "DisaggregatedSet"),
        ("raycluster", "RayCluster"),
        ("pytorchjob", "PyTorchJob"),
        ("mpijob", "MPIJob"),
        ("statefulset", "StatefulSet"),
    ],
)
def test_an_example_has_the_label_and_no_group(name, kind) -> None:
    """Each manifest of a workload in deploy/examples becomes complete and valid trees, on the cluster there."""
    path = EXAMPLES / f"{name}.yaml"
    (thing,) = yaml.safe_load_all(path.read_text())
    assert thing["kind"] == kind
    assert thing["metadata"]["labels"] == {TREE_LABEL: "default"}
    found = load([str(EXAMPLES / "cluster.yaml")], [str(path)])
    assert (found.warnings, found.refused) == ((), ())
    view = found.world.view
    forest = build_forest(view.groups, {k: pods.values() for k, pods in view.members.items()})
    members = [pod.uid for tree in forest.trees.values() for pod in tree.pods]
    assert sorted(members) == sorted(found.pods)
    assert found.pods
    assert not forest.orphans
    assert not any(tree.problems for tree in forest.trees.values())


def test_the_example_of_slices_has_each_form() -> None:
    """The annotations of slices and of balance, and a group that is written by hand with two levels."""
    answer = load([str(EXAMPLES / "cluster.yaml")], [str(EXAMPLES / "slices.yaml")])
    assert (answer.warnings, answer.refused) == ((), ())
    view = answer.world.view
    rack = "topology.example.com/rack"
    forms = {
        g.key.name: (g.constraints.slices, g.constraints.balanced) for g in view.groups.values()
    }
    assert {name.partition("-")[0]: form for name, form in forms.items()} == {
        "pipeline": ((SliceLevel(rack, 4),), False),
        "allreduce": ((), True),
        "evaluate": ((SliceLevel(rack, 4), SliceLevel("kubernetes.io/hostname", 2)), False),
    }
    labels = NodeLabels(view.nodes)
    forest = build_forest(view.groups, {k: pods.values() for k, pods in view.members.items()})
    assert not any(collect_warnings(view, tree, labels) for tree in forest.trees.values())


def test_the_example_of_preferred_keys_has_each_form() -> None:
    """The annotation without and with a required key, and a group that is written by hand."""
    found = load([str(EXAMPLES / "cluster.yaml")], [str(EXAMPLES / "preferred.yaml")])
    assert (found.warnings, found.refused) == ((), ())
    view = found.world.view
    rack, block = "topology.example.com/rack", "topology.example.com/block"
    wishes = {
        group.key.name: (group.constraints.topology, group.constraints.preferred)
        for group in view.groups.values()
    }
    assert {name.partition("-")[0]: wish for name, wish in wishes.items()} == {
        "pretrain": ((), (rack, block)),
        "finetune": ((block,), (rack,)),
        "evaluate": ((), ("kubernetes.io/hostname", rack)),
    }
    labels = NodeLabels(view.nodes)
    forest = build_forest(view.groups, {k: pods.values() for k, pods in view.members.items()})
    assert not any(collect_warnings(view, tree, labels) for tree in forest.trees.values())


def test_each_kind_that_is_planned_from_its_file_has_an_example() -> None:
    """A PodGang has none: its pods are given too. That of a PyTorchJob stands for its siblings, which have another field."""
    kinds = {
        thing["kind"]
        for path in EXAMPLES.glob("*.yaml")
        for thing in yaml.safe_load_all(path.read_text())
    }
    assert {one.kind for one in OBJECT_KINDS} - kinds == {
        "PodGang",
        "TFJob",
        "XGBoostJob",
        "PaddleJob",
        "JAXJob",
    }


def test_the_example_of_a_trainjob_has_its_runtime() -> None:
    found = load([str(EXAMPLES / "cluster.yaml")], [str(EXAMPLES / "trainjob.yaml")])
    requests = {
        pod.name: dict(pod.shape.requests) for pod in found.world.view.pods.values() if pod.group
    }
    assert len(requests) == 4
    assert {(one["cpu"], one["nvidia.com/gpu"]) for one in requests.values()} == {(32_000, 8)}


@pytest.mark.parametrize("priority", ["", "prod"])
def test_a_podgang_without_its_pods_is_not_placed(tmp_path, priority) -> None:
    """It has no pod templates, so no pod is made for it, and what is missing is named."""
    spec = {"podgroups": [{"name": "serve-0-router", "minReplicas": 1, "podReferences": []}]}
    thing = {
        "apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang",
        "metadata": {"name": "serve-0", "namespace": "default", "labels": {TREE_LABEL: "default"}},
        "spec": spec | ({"priorityClassName": priority} if priority else {}),
    }  # fmt: skip
    file = tmp_path / "podgang.yaml"
    file.write_text(yaml.safe_dump(thing))
    found = load([str(EXAMPLES / "cluster.yaml")], [str(file)])
    assert not found.pods
    assert "has no pod templates; give its pods in the files too" in found.warnings[0]
