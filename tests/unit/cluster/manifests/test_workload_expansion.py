"""A workload in a file becomes the groups that the service would make and the pods that its controller would make."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import complete, load
from extender.cluster.manifests.workload_expansion import with_template_labels
from extender.cluster.manifests.yaml_reader import Document
from extender.cluster.read.object_decoding import workload_of
from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.tree_compiler import CompileRequest, compile_tree
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.workload_object import GROUP_LABEL, LEAF_LABEL, TREE_LABEL
from tests.support.service.manifest_builders import (
    BLOCK,
    GPU,
    RACK,
    a_group,
    a_manifest,
    a_node,
    a_pod,
)
from tests.support.service.workload_builders import (
    a_job,
    a_jobset,
    a_namespace,
    a_profile,
    a_replicated_job,
    a_template,
    pods_by_group,
    the_tree,
)

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "deploy" / "examples"
CONTROLLERS = ROOT / "tests" / "golden" / "controllers"
RECORDED = sorted(CONTROLLERS.glob("job*/*.json"))
GANG = "gang-extender.dev/gang"
MIN = "gang-extender.dev/min"
TOPOLOGY = "gang-extender.dev/topology"


def stored(found):
    """Return groups and pods without the order of their creation."""
    view = found.world.view
    groups = {key: msgspec.structs.replace(one, created_us=0) for key, one in view.groups.items()}
    pods = {uid: msgspec.structs.replace(one, created_us=0) for uid, one in view.pods.items()}
    return groups, pods


# --- what a workload becomes


def test_a_topology_for_another_scheduler_is_a_warning() -> None:
    wish = {"kai.scheduler/topology-preferred-placement": "net/rack"}
    found = a_manifest([], [a_job(annotations=wish, parallelism=2, completions=2)])
    (warning,) = found.warnings
    assert "'net/rack' is for another scheduler and is not read; the same is" in warning


def test_the_jobset_of_the_examples() -> None:
    files = [str(EXAMPLES / name) for name in ("cluster.yaml", "jobset.yaml")]
    found = load(files[:1], files[1:])
    assert (found.warnings, found.refused) == ((), ())
    assert pods_by_group(found) == {
        "pretrain": (2, 0),
        "pretrain-driver": (1, 1),
        "pretrain-worker": (2, 0),
        "pretrain-worker-0": (4, 4),
        "pretrain-worker-1": (4, 4),
    }
    tree = the_tree(found)
    assert tree.root.constraints.topology == (BLOCK,)
    assert {
        group.constraints.topology for group in tree.groups if group.key.kind == "PodGroup"
    } == {
        (),
        (RACK,),
    }
    assert {group.disruption_mode for group in tree.groups} == {"all"}
    assert {group.priority for group in tree.groups} == {100}
    assert {pod.priority for pod in tree.pods} == {100}
    origins = {key.name: one for key, one in found.origins.items()}
    assert {one.workload for one in origins.values()} == {"JobSet/default/pretrain"}
    roles = {name.rpartition("-")[0]: one.role for name, one in origins.items()}
    assert roles == {
        "pretrain": "",
        "pretrain-driver": "driver",
        "pretrain-worker": "worker",
        "pretrain-worker-0": "",
        "pretrain-worker-1": "",
    }
    assert set(found.pods) == {pod.uid for pod in tree.pods}
    assert set(found.groups) == {group.key for group in tree.groups}


def test_pods_are_as_the_admission_policies_store_them() -> None:
    """Gate, scheduler and markers are those of train.yaml, which has its pods as the policy leaves them."""
    by_hand = next(
        thing
        for thing in yaml.safe_load_all((EXAMPLES / "train.yaml").read_text())
        if thing["kind"] == "Pod"
    )
    template = {
        "metadata": {"labels": {"app": "fit"}, "annotations": {"note": "kept"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "resources": {"requests": {"cpu": "64", GPU: "8"}, "limits": {GPU: "8"}},
                }
            ],
            "nodeSelector": {"pool": "gpu"},
        },
    }
    entries = entries_in(
        [Document(where="file", value=a_job(template=template, parallelism=2))], Role.WANTED
    )
    made = complete(entries).entries
    group, first, second = (entry.obj for entry in made)
    spec, limits = by_hand["spec"], by_hand["spec"]["containers"][0]["resources"]["limits"]
    uid = first.metadata.labels["controller-uid"]
    for number, pod in enumerate((first, second)):
        assert pod.metadata.name == f"{group.metadata.name}-{number}"
        assert pod.metadata.annotations == {"note": "kept"}
        assert pod.metadata.labels == {
            "app": "fit",
            "batch.kubernetes.io/job-name": "fit",
            "batch.kubernetes.io/controller-uid": uid,
            "job-name": "fit",
            "controller-uid": uid,
            TREE_LABEL: "default",
            GROUP_LABEL: group.metadata.name,
        }
        assert pod.spec.scheduler_name == spec["schedulerName"]
        assert [gate.name for gate in pod.spec.scheduling_gates] == [
            gate["name"] for gate in spec["schedulingGates"]
        ]
        assert pod.spec.containers[0].resources.limits == limits
        assert pod.spec.node_selector == {"pool": "gpu"}
    assert first.metadata.uid != second.metadata.uid
    assert all(entry.where == "file, Job/default/fit" for entry in made)


def test_a_pod_that_has_scheduler_gate_and_markers_keeps_them() -> None:
    marker = {"gang-extender.dev/member": "1"}
    template = {
        "spec": {
            "schedulerName": "mine",
            "schedulingGates": [{"name": "theirs"}, {"name": "gang-extender.dev/admission"}],
            "containers": [
                {"name": "main"},
                {"name": "side", "resources": {"limits": marker, "requests": marker}},
            ],
        }
    }
    entries = entries_in([Document(where="file", value=a_job(template=template))], Role.WANTED)
    spec = complete(entries).entries[1].obj.spec
    assert spec.scheduler_name == "mine"
    assert [gate.name for gate in spec.scheduling_gates] == [
        "theirs",
        "gang-extender.dev/admission",
    ]
    first, second = (one.resources for one in spec.containers)
    assert first.limits == first.requests == {"gang-extender.dev/bind": "1"}
    assert second.limits == second.requests == marker


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_pods_name_leaves_that_are_planned(path) -> None:
    """The objects of real controllers: each pod's leaf, computed from its labels, is a leaf of the planned tree."""
    objects = json.loads(path.read_text())["items"]
    root = next(
        one
        for one in objects
        if one["kind"] == path.parent.name.replace("jobset", "JobSet").replace("job", "Job")
    )
    root["metadata"]["labels"] = {**root["metadata"].get("labels", {}), TREE_LABEL: "default"}
    found = a_manifest([], [root])
    if root["spec"].get("scheduling"):
        assert not found.groups
        return
    entries = entries_in([Document(where="file", value=root)], Role.WANTED)
    workload = workload_of(next(iter(entries)).obj)
    kind = BY_KIND[workload.kind]
    stamped = with_template_labels(kind, workload, "default")
    request = CompileRequest(workload=stamped, profile=DEFAULT_PROFILE, profile_name="default")
    compiled = compile_tree(kind, request)
    assert {key.name for key in found.groups} == {one.name for one in compiled.groups}
    single = {
        job["name"]
        for job in workload.spec.get("replicatedJobs", ())
        if job["template"]["spec"]["parallelism"] == 1
    }
    leaves = {key.name for key in found.groups if key.kind == "PodGroup"}
    pods = [one for one in objects if one["kind"] == "Pod"]
    for pod in pods:
        labels = {TREE_LABEL: "default", **pod["metadata"]["labels"]}
        job = labels.get("jobset.sigs.k8s.io/replicatedjob-name")
        if job is not None:
            labels[LEAF_LABEL] = "replicated-job" if job in single else "job"
        assert leaf_of_pod(labels) in leaves


def test_what_an_api_server_fills_in_changes_nothing() -> None:
    """The defaults of batch/v1 and of the webhook of JobSet."""
    plain = a_jobset(a_replicated_job("driver"), a_replicated_job("worker", parallelism=3))
    full = a_jobset(
        a_replicated_job(
            "driver", 1, parallelism=1, completions=1, completionMode="Indexed", suspend=False
        ),
        a_replicated_job(
            "worker", 1, parallelism=3, completions=3, completionMode="Indexed", suspend=False
        ),
        suspend=False,
        startupPolicy={"startupPolicyOrder": "AnyOrder"},
        successPolicy={"operator": "All"},
        network={"enableDNSHostnames": True},
    )
    nulls = a_jobset(
        a_replicated_job("driver", parallelism=None, completions=None),
        a_replicated_job("worker", parallelism=3, completions=None),
        suspend=None,
        startupPolicy=None,
    )
    expected = stored(a_manifest([], [plain]))
    assert len(expected[1]) == 4
    assert stored(a_manifest([], [full])) == expected
    assert stored(a_manifest([], [nulls])) == expected
    one = a_job(template=a_template({GPU: 1}))
    more = a_job(
        template=a_template({GPU: 1}),
        parallelism=1,
        completions=1,
        completionMode="NonIndexed",
        backoffLimit=6,
    )
    assert stored(a_manifest([], [one])) == stored(a_manifest([], [more]))


def test_order_and_age_follow_the_file() -> None:
    """Parents before children before pods, in the place of the workload; one from a cluster keeps its age."""
    early, late = a_job("early"), a_job("late")
    found = a_manifest([], [early, a_pod("between"), late])
    view = found.world.view
    ages = {pod.name.partition("-")[0]: pod.created_us for pod in view.pods.values()}
    assert ages["early"] < ages["between"] < ages["late"]
    old = a_job("old", metadata={"creationTimestamp": "2020-01-01T00:00:00Z"})
    view = a_manifest([], [a_pod("between"), old]).world.view
    assert {group.created_us for group in view.groups.values()} == {1_577_836_800_000_000}


def test_a_uid_of_the_file_is_in_the_names() -> None:
    job = a_job(metadata={"uid": "0123456789abcdef"})
    assert [key.name for key in a_manifest([], [job]).groups] == ["fit-01234567"]
    again = a_manifest([job], [a_job(parallelism=2)])
    assert [key.name for key in again.groups] == ["fit-01234567"]
    assert len(again.pods) == 2


# --- labels, profiles, annotations


def test_without_the_label_the_default_is_planned_with_a_warning() -> None:
    found = a_manifest([], [a_job(labels={})])
    assert found.warnings == (
        "Job/default/fit: metadata.labels[gang-extender.dev/tree]: is not set; planned as if it were default",
    )
    assert stored(found)[0] == stored(a_manifest([], [a_job()]))[0]


def test_a_profile_and_a_namespace_decide() -> None:
    profile = a_profile(
        "research",
        {"kind": "JobSet", "gang": "per-replicated-job", "topology": {"leaf": RACK}, "disruptionMode": "single"},
        {"kind": "Job", "enabled": False},
    )  # fmt: skip
    space = a_namespace("default", tree="research")
    found = a_manifest([profile, space], [a_jobset(labels={})])
    assert found.warnings == ()
    tree = the_tree(found)
    assert (tree.root.basic, tree.root.disruption_mode) == (True, "single")
    assert {
        group.constraints.topology
        for group in tree.groups
        if len(tree.members.get(group.key, ())) > 1
    } == {(RACK,)}
    own = a_manifest([profile, space], [a_jobset()])
    assert not the_tree(own).root.basic
    disabled = a_manifest([profile, space], [a_job(labels={}, parallelism=2)])
    assert (disabled.groups, len(disabled.pods)) == ((), 2)
    assert (
        "TreeProfile 'research' does not enable the kind; its pods are planned as they are"
        in disabled.warnings[0]
    )


def test_off_is_planned_pod_by_pod() -> None:
    space = a_namespace("default", tree="default")
    found = a_manifest([space], [a_job(labels={TREE_LABEL: "off"}, parallelism=3)])
    assert (found.groups, len(found.pods)) == ((), 3)
    assert {pod.gates for pod in found.world.view.pods.values()} == {()}
    assert {pod.scheduler_name for pod in found.world.view.pods.values()} == {"default-scheduler"}
    (warning,) = found.warnings
    assert "metadata.labels[gang-extender.dev/tree]: is off, so no tree is made" in warning
    off = a_namespace("default", tree="off")
    assert a_manifest([off], [a_job(parallelism=3)]).groups


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (a_job(scheduling={"schedulingPolicy": {"gang": {}}}), "spec.scheduling is set"),
        (a_jobset(managedBy="kueue.x-k8s.io/multikueue"), "spec.managedBy is 'kueue.x-k8s.io/multikueue'"),
        (
            a_job(template={"metadata": {"labels": {GROUP_LABEL: "mine"}}, **a_template()}),
            "its pods name the group 'mine' themselves",
        ),
    ],
    ids=["scheduling", "managedBy", "group"],
)  # fmt: skip
def test_what_others_schedule_is_left_alone(workload, words) -> None:
    mine = a_group("mine", gang=1)
    found = a_manifest([mine], [workload])
    assert found.groups == ()
    assert len(found.pods) == (5 if workload["kind"] == "JobSet" else 1)
    (warning,) = found.warnings
    assert words in warning
    assert warning.endswith("its pods are planned as they are")


def test_groups_that_a_controller_makes_are_not_planned_from_a_file() -> None:
    """With nativeGroups: Adopt its leaves are groups that are not in the files."""
    profile = a_profile("mine", {"kind": "Job", "nativeGroups": "Adopt"})
    job = a_job(labels={TREE_LABEL: "mine"}, scheduling={"schedulingPolicy": {"gang": {}}})
    found = a_manifest([profile], [job])
    assert found.groups == ()
    (warning,) = found.warnings
    assert "the groups that its controller makes are not in the files" in warning


# --- what is there already


def test_pods_that_exist_are_not_made_again() -> None:
    whole = a_manifest([], [a_jobset()])
    uid = whole.groups[0].name.rpartition("-")[2]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/jobset-uid": f"{uid}-0",
        "jobset.sigs.k8s.io/replicatedjob-name": "worker",
        "jobset.sigs.k8s.io/job-index": "1",
        LEAF_LABEL: "job",
        TREE_LABEL: "default",
    }
    leaf = leaf_of_pod(labels)
    live = a_pod("train-worker-1-0-x7k2p", leaf, node="n0", metadata={"labels": labels})
    done = a_pod(
        "train-worker-1-1-ended", leaf, metadata={"labels": labels}, status={"phase": "Failed"}
    )
    found = a_manifest([a_node("n0"), live, done], [a_jobset()])
    members = {key.name: pods for key, pods in found.world.view.members.items()}
    assert {pod.name for pod in members[leaf].values()} == {"train-worker-1-0-x7k2p", f"{leaf}-1"}
    assert len(found.pods) == 4


def test_groups_that_were_made_before_keep_their_identity() -> None:
    job = a_job(parallelism=2, metadata={"uid": "0123456789abcdef"})
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "fit",
        "uid": "0123456789abcdef",
        "controller": True,
    }
    made = a_group("fit-01234567", gang=2, metadata={"uid": "theirs", "ownerReferences": [owner]})
    found = a_manifest([made], [job])
    (group,) = found.world.view.groups.values()
    assert (group.uid, group.minimum, found.groups) == ("theirs", 2, (group.key,))
    raised = a_manifest([made], [a_job(parallelism=5, metadata={"uid": "0123456789abcdef"})])
    assert next(iter(raised.world.view.groups.values())).minimum == 2  # pods for 5 do not run yet


def test_a_group_of_another_owner_is_an_error() -> None:
    job = a_job(metadata={"uid": "0123456789abcdef"})
    with pytest.raises(
        BadInput,
        match=r"^object 1: Job/default/fit: PodGroup/default/fit-01234567 of object 1 has the name of one of its groups; rename or delete it",
    ):
        a_manifest([a_group("fit-01234567", gang=2)], [job])


def test_parts_of_a_workload_are_planned_with_it() -> None:
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "train",
        "uid": "1",
        "controller": True,
    }
    job = a_job("train-driver-0", metadata={"ownerReferences": [owner]})
    both = a_manifest([], [a_jobset(), job])
    assert stored(both) == stored(a_manifest([], [a_jobset()]))
    with pytest.raises(
        BadInput,
        match=r"object 1: Job/default/train-driver-0: metadata.ownerReferences: is part of JobSet train; give that in its place",
    ):
        a_manifest([], [job])


def test_a_suspended_workload_is_planned_as_if_it_ran_and_a_finished_one_is_not() -> None:
    found = a_manifest([], [a_jobset(suspend=True)])
    assert len(found.pods) == 5
    assert found.warnings == ("JobSet/default/train: is suspended; planned as if it were resumed",)
    complete_ = {"conditions": [{"type": "Complete", "status": "True"}]}
    over = a_manifest([], [a_job(status=complete_)])
    assert (over.groups, over.pods) == ((), ())
    assert over.warnings == (
        "Job/default/fit: is finished or being deleted: it needs no pods any more",
    )


def test_notices_of_the_compiler_are_warnings() -> None:
    found = a_manifest([], [a_job(parallelism=2, completions=7), a_jobset(
        a_replicated_job("driver"), a_replicated_job("worker"), startupPolicy={"startupPolicyOrder": "InOrder"},
    )])  # fmt: skip
    (steps,) = found.warnings
    assert "JobSet/default/train starts its ReplicatedJobs one after the other" in steps
    assert pods_by_group(found)["fit"] == (0, 2)
    assert pods_by_group(found)["train"] == (0, 0)


def test_the_cluster_of_plan_has_no_pods_but_its_own() -> None:
    found = a_manifest([a_jobset(), a_job()])
    assert (found.groups, found.pods, stored(found)) == ((), (), ({}, {}))
    assert found.warnings == ()
