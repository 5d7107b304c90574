"""The workloads of a served cluster of files: labelled as by the admission policies, with the pods of their controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.cluster.manifests.manifest_entries import Role, entries_in, read
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.yaml_reader import Document
from extender.cluster.read.object_decoding import workload_of
from extender.core.model.errors import BadInput
from extender.core.trees.leaves_in_use import LeafUses, WorkloadName
from extender.core.trees.tree_events import compile_request, profile_name
from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.tree_compiler import compile_tree
from extender.core.workloads.workload_object import GROUP_LABEL, TREE_LABEL
from tests.support.service.manifest_builders import a_pod, an_object
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_namespace,
    a_profile,
    a_replicated_job,
    a_template,
)

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "deploy" / "examples"
GATE = "gang-extender.dev/admission"
WORKLOAD_FILES = ("job", "jobset", "lws", "disaggregatedset", "raycluster")


def served(*things):
    """Return the objects of files that are served."""
    documents = [Document(where=f"object {n}", value=thing) for n, thing in enumerate(things, 1)]
    return complete(entries_in(documents, Role.CLUSTER), serving=True)


def pods_of(found):
    return list(build(found).world.view.pods.values())


def stored(found):
    """Return the workloads by name."""
    return {one.metadata.name: workload_of(one) for one in found.served.manifests}


def compiled(found, workload):
    """Compile a workload as the service does: from the object, and the leaves that its pods name."""
    uses = LeafUses().of(build(found).world.view.members)
    kind = BY_KIND[workload.kind]
    request = compile_request(
        workload,
        owner=None,
        name=profile_name(kind, workload),
        profiles=found.served.profiles,
        uses=uses.get(WorkloadName(workload.kind, workload.namespace, workload.name), ()),
        before=None,
        templates=None,
    )
    return compile_tree(kind, request)


@pytest.mark.parametrize("name", WORKLOAD_FILES)
def test_pods_name_the_leaves_that_the_service_makes(name) -> None:
    """By the rule of the policy, from labels alone; and the compiler finds them by these labels."""
    files = [str(EXAMPLES / "cluster.yaml"), str(EXAMPLES / f"{name}.yaml")]
    found = complete(read(files, Role.CLUSTER), serving=True)
    (workload,) = stored(found).values()
    members = [pod for pod in pods_of(found) if pod.group]
    assert members
    for pod in members:
        assert pod.labels[GROUP_LABEL] == leaf_of_pod(pod.labels)
        assert pod.gates == (GATE,)
    tree = compiled(found, workload)
    assert tree.outcome == "compiled"
    leaves = {one.name for one in tree.groups if one.kind == "PodGroup"}
    assert {pod.labels[GROUP_LABEL] for pod in members} == leaves
    assert not build(found).world.view.groups


def test_an_exclusive_topology_is_stored_as_ours() -> None:
    """With all pods, as its controller makes them then; one with a template that was stored before keeps its own, and is refused."""
    theirs = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "net/rack"}
    labelled = {"metadata": {"labels": {TREE_LABEL: "default"}}, **a_template()}
    before = a_replicated_job("worker", 2, parallelism=2, template=labelled)
    found = served(
        a_jobset(a_replicated_job("worker", 2, parallelism=2), annotations=theirs),
        a_jobset(before, annotations=theirs, name="before"),
    )
    annotations = {name: workload.annotations for name, workload in stored(found).items()}
    assert annotations == {
        "train": {"gang-extender.dev/exclusive": "leaf=net/rack"},
        "before": theirs,
    }
    tree, refused = (compiled(found, workload) for workload in stored(found).values())
    keys = {group.exclusive.key for group in tree.groups if group.exclusive is not None}
    assert (tree.outcome, keys) == ("compiled", {"net/rack"})
    assert refused.refusal.reason == "ExclusiveTopology"
    assert sum(pod.name.startswith("train-") for pod in pods_of(found)) == 4


def test_only_workloads_with_a_label_have_pods() -> None:
    found = served(
        a_jobset(),
        a_job("plain", labels={}),
        a_job("off", labels={TREE_LABEL: "off"}),
        a_job("other", managedBy="example.com/other"),
        a_job("paused", suspend=True, parallelism=4),
        a_job("over", status={"conditions": [{"type": "Complete", "status": "True"}]}),
    )
    assert {pod.name.partition("-")[0] for pod in pods_of(found)} == {"train"}
    assert len(pods_of(found)) == 5
    profiles = {
        name: profile_name(BY_KIND[one.kind], one) for name, one in stored(found).items()
    }  # fmt: skip
    assert profiles == {
        "train": "default", "plain": "", "off": "", "other": "", "paused": "default", "over": "default",
    }  # fmt: skip
    assert found.warnings == ()


def test_the_label_of_a_namespace_covers_what_has_none() -> None:
    """It is in the pod templates, and the workload has not asked for a tree itself."""
    found = served(a_namespace("default", tree="mine"), a_profile("mine"), a_job(labels={}))
    (job,) = stored(found).values()
    assert profile_name(BY_KIND["Job"], job) == "mine"
    assert not job.requested
    assert len(pods_of(found)) == 1
    assert found.served.profiles.keys() == {"default", "mine"}
    spec = {"podgroups": [{"name": "pd-0-a", "minReplicas": 2}], "priorityClassName": "prod"}
    gang = an_object("PodGang", "pd-0", "scheduler.grove.io/v1alpha1", spec=spec)
    (labelled,) = stored(served(a_namespace("default", tree="mine"), gang)).values()
    assert profile_name(BY_KIND["PodGang"], labelled) == "mine"
    assert not labelled.requested
    assert pods_of(served(a_namespace("default", tree="mine"), gang)) == []  # they are PodCliques'


def test_pods_of_a_refused_workload_are_there_and_held() -> None:
    found = served(a_job(annotations={"gang-extender.dev/gang": "per-job"}, parallelism=2))
    (job,) = stored(found).values()
    assert compiled(found, job).outcome == "refused"
    assert [pod.gates for pod in pods_of(found)] == [(GATE,)] * 2


def test_pods_that_are_in_the_files_are_counted() -> None:
    whole = pods_of(served(a_jobset(a_replicated_job("worker", parallelism=3))))
    labels = dict(whole[0].labels)
    live = a_pod("train-worker-0-0-x7k2p", labels[GROUP_LABEL], metadata={"labels": labels})
    found = served(a_jobset(a_replicated_job("worker", parallelism=3)), live)
    assert len(pods_of(found)) == 3
    assert "train-worker-0-0-x7k2p" in {pod.name for pod in pods_of(found)}


def test_the_jobset_of_a_trainjob_has_its_label_and_its_uid() -> None:
    owner = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "tune",
        "uid": "of another cluster", "controller": True,
    }  # fmt: skip
    trainjob = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": "tune", "labels": {TREE_LABEL: "default"}}, "spec": {},
    }  # fmt: skip
    jobset = a_jobset(labels={}, metadata={"ownerReferences": [owner]})
    found = served(trainjob, jobset)
    by_name = stored(found)
    assert by_name["train"].owner.uid == by_name["tune"].uid
    assert profile_name(BY_KIND["JobSet"], by_name["train"]) == "default"
    assert len(pods_of(found)) == 5


def test_a_workload_and_its_pods_have_one_age() -> None:
    """Roots are placed in the order of the files, whatever comes of them later."""
    early, late = a_job("early"), a_job("late")
    found = served(early, a_pod("between"), late)
    ages = {pod.name.partition("-")[0]: pod.created_us for pod in pods_of(found)}
    assert ages["early"] < ages["between"] < ages["late"]
    workloads = {one.metadata.name: one.metadata for one in found.served.manifests}
    micros = {
        name: int(one.creation_timestamp.timestamp() * 1e6) for name, one in workloads.items()
    }
    assert micros == {"early": ages["early"], "late": ages["late"]}


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (a_job(status={"succeeded": "many"}, completions=2), "object 1: Job/default/fit: a field has another type"),
        (a_job(template=a_template(priorityClassName=7)), "priorityClassName"),
        (a_profile("mine", {"kind": "Pod"}), "'Pod' is none of"),
        (a_job(template=a_template({}, containers=[{"resources": {"requests": {"nvidia.com/gpu": 1}}}])), "limits: nvidia.com/gpu: is missing"),
        (a_job(template=a_template(resourceClaims=[{"name": "c"}])), '"c" names no claim'),
    ],
    ids=["status", "template", "profile", "device", "claim"],
)  # fmt: skip
def test_what_cannot_be_read_is_an_error_of_the_file(thing, words) -> None:
    with pytest.raises(BadInput, match=words):
        served(thing)


def test_what_admission_adds_is_in_served_pods_and_what_a_job_lacks_in_its_tree() -> None:
    template = a_template({})
    bounds = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "3"}}]}
    found = served(
        a_job(parallelism=2, template=template),
        an_object("LimitRange", "bounds", "v1", spec=bounds),
    )
    assert [dict(pod.shape.requests)["cpu"] for pod in pods_of(found)] == [3000, 3000]
    tree = compiled(found, stored(found)["fit"])
    assert [notice.reason for notice in tree.notices] == ["RestartPolicyMissing"]
    template["spec"]["restartPolicy"] = "Never"
    found = served(a_job(parallelism=2, template=template))
    assert compiled(found, stored(found)["fit"]).notices == ()


def test_only_the_pods_of_the_first_step_are_there() -> None:
    """As on a cluster: a later step comes when the first has ended or is ready, and nothing of a file does either."""
    first = a_replicated_job("init", parallelism=2)
    later = {**a_replicated_job("train", parallelism=2), "dependsOn": [{"name": "init", "status": "Complete"}]}  # fmt: skip
    assert {pod.name for pod in pods_of(served(a_jobset(first, later)))} == {
        f"{pod.labels[GROUP_LABEL]}-{number}"
        for pod in pods_of(served(a_jobset(first)))
        for number in (0, 1)
    }
    in_order = a_jobset(first, a_replicated_job("b"), startupPolicy={"startupPolicyOrder": "InOrder"})  # fmt: skip
    assert len(pods_of(served(in_order))) == 2
    workers = {"size": 3, "workerTemplate": a_template()}
    spec = {"startupPolicy": "LeaderReady", "replicas": 2, "leaderWorkerTemplate": workers}
    lws = an_object("LeaderWorkerSet", "l", "leaderworkerset.x-k8s.io/v1", metadata={"labels": {TREE_LABEL: "default"}}, spec=spec)  # fmt: skip
    leaders = pods_of(served(lws))
    assert len(leaders) == 2
    assert all(pod.labels[GROUP_LABEL].endswith("-leader") for pod in leaders)
