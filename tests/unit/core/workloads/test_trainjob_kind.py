"""TrainJob: its JobSet is the tree, with the annotations of the TrainJob."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.errors import BadInput
from extender.core.workloads.kind_table import BY_KIND, leaf_of_pod
from extender.core.workloads.kinds.jobset_kind import STEP_LABEL
from extender.core.workloads.kinds.trainjob_jobset import jobset_of, runtime_of
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from extender.core.workloads.workload_object import PATCH_MANAGER, TREE_LABEL
from tests.support.planning.controller_records import (
    a_staged_runtime,
    as_placed,
    labels_of,
    record,
    uses_of,
)
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


# --- the JobSet that Trainer makes


def a_runtime(*jobs, template=None, **spec):
    inner = {"spec": {"replicatedJobs": list(jobs)}, **(template or {})}
    return {"mlPolicy": {"numNodes": 2, "torch": {}}, "template": inner, **spec}


def a_job(name, step="", parallelism=None, **pod):
    spec = {"template": {"spec": {"containers": [{"name": "node"}], **pod}}}
    if parallelism is not None:
        spec["parallelism"] = parallelism
    labels = {"metadata": {"labels": {STEP_LABEL: step}}} if step else {}
    return {"name": name, "template": {**labels, "spec": spec}}


def a_trainjob(labels=None, **spec):
    found = workload("TrainJob", "tune", {"runtimeRef": {"name": "torch"}, **spec})
    return msgspec.structs.replace(found, labels=labels or {})


def a_patch(job=None, *, manager="example.com/team", **rest):
    template = {**({"spec": {"replicatedJobs": [job]}} if job else {}), **rest}
    return {"manager": manager, "trainingRuntimeSpec": {"template": template}}


def a_pod_patch(name="node", **pod):
    return a_patch({"name": name, "template": {"spec": {"template": {"spec": pod}}}})


def pods_of(made):
    return {
        job["name"]: job["template"]["spec"]["parallelism"]
        for job in made["spec"]["replicatedJobs"]
    }


def pod_spec_of(made, at=0):
    return made["spec"]["replicatedJobs"][at]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", ["initializers", "trainer"])
def test_the_jobset_is_that_of_the_real_controller(name):
    """Its runtime is that of the record; what else differs is set by webhooks of JobSet, or is read by the container."""
    found = record(f"trainjob/{name}.json")
    real = found.of("JobSet")
    made = jobset_of(found.of("TrainJob"), a_staged_runtime()["spec"])
    assert as_placed(made["spec"]) == as_placed(real.spec)
    (reference,) = made["metadata"]["ownerReferences"]
    (owner,) = (
        one["metadata"]["ownerReferences"] for one in found.items if one["kind"] == "JobSet"
    )
    assert [reference] == owner
    spec = msgspec.structs.replace(real, spec=made["spec"])
    assert compiled(spec, owner=found.of("TrainJob")) == compiled(real, owner=found.of("TrainJob"))


@pytest.mark.parametrize(
    ("policy", "jobs", "nodes", "expected"),
    [
        ({"numNodes": 3, "torch": {}}, [a_job("node", "trainer")], None, {"node": 3}),
        ({"torch": {}}, [a_job("node", "trainer", 7)], None, {"node": 1}),
        ({"numNodes": 3, "jax": {}}, [a_job("node", "trainer")], 5, {"node": 5}),
        (None, [a_job("node", "trainer", 7)], None, {"node": 7}),
        (None, [a_job("node", "trainer", 7)], 5, {"node": 5}),
        ({"numNodes": 3}, [a_job("other", "", 6), a_job("train", "trainer")], 5, {"other": 6, "train": 5}),
        ({"numNodes": 1, "mpi": {}}, [a_job("node"), a_job("launcher", "trainer")], 4, {"node": 4, "launcher": 1}),
        ({"numNodes": 1, "mpi": {"runLauncherAsNode": True}}, [a_job("node"), a_job("launcher", "trainer")], 4,
         {"node": 3, "launcher": 1}),
        ({"numNodes": 1, "mpi": {"runLauncherAsNode": True}}, [a_job("node"), a_job("launcher", "trainer")], 1,
         {"node": 1, "launcher": 1}),
    ],
    ids=["policy", "policy-without-number", "jax", "template", "plain", "other", "mpi", "launcher-is-node", "one-node"],
)  # fmt: skip
def test_the_number_of_nodes(policy, jobs, nodes, expected):
    trainer = {} if nodes is None else {"trainer": {"numNodes": nodes}}
    made = jobset_of(a_trainjob(**trainer), a_runtime(*jobs, mlPolicy=policy))
    assert pods_of(made) == expected


def test_resources_of_a_node_are_merged_into_its_container_only():
    node, side = (
        {"name": name, "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
        for name in ("node", "side")
    )
    runtime = a_runtime(a_job("node", "trainer", containers=[side, node]), a_job("other"))
    resources = {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "8"}}
    made = jobset_of(a_trainjob(trainer={"resourcesPerNode": resources}), runtime)
    assert pod_spec_of(made)["containers"] == [
        side,
        {
            "name": "node",
            "resources": {
                "requests": {"cpu": "4", "memory": "1Gi"},
                "limits": {"nvidia.com/gpu": "8"},
            },
        },
    ]
    assert pod_spec_of(made, 1)["containers"] == [{"name": "node"}]
    unset = jobset_of(
        a_trainjob(trainer={"resourcesPerNode": resources}), {**runtime, "mlPolicy": None}
    )
    assert pod_spec_of(unset)["containers"] == [side, node]  # Trainer v2.3 needs a policy for it


def test_patches_of_the_runtime_are_applied_in_their_order():
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    runtime = a_runtime(
        a_job("other"),
        a_job(
            "node",
            "trainer",
            nodeSelector={"pool": "old", "zone": "z"},
            tolerations=[{"key": "old"}],
            schedulingGates=[{"name": "one"}],
        ),
    )
    trainjob = a_trainjob(
        runtimePatches=[
            a_pod_patch(nodeSelector={"pool": "first"}, affinity={"nodeAffinity": required}),
            a_pod_patch(
                nodeSelector={"pool": "gpu"},
                tolerations=[{"key": "new"}],
                schedulingGates=[{"name": "two"}],
            ),
        ]
    )
    assert pod_spec_of(jobset_of(trainjob, runtime), 1) == {
        "containers": [{"name": "node"}],
        "nodeSelector": {"pool": "gpu", "zone": "z"},
        "affinity": {"nodeAffinity": required},
        "tolerations": [{"key": "new"}],
        "schedulingGates": [{"name": "one"}, {"name": "two"}],
    }
    assert "affinity" not in str(runtime)


@pytest.mark.parametrize(
    ("labels", "patches", "expected"),
    [
        ({}, [], "runtime"),
        ({TREE_LABEL: "mine"}, [], "mine"),
        ({TREE_LABEL: "mine"}, [a_patch(metadata={"labels": {TREE_LABEL: "patch"}})], "mine"),
        (
            {TREE_LABEL: "changed later"},
            [a_patch(manager=PATCH_MANAGER, metadata={"labels": {TREE_LABEL: "created"}})],
            "created",
        ),
    ],
    ids=["runtime", "label", "before-patches", "admitted"],
)
def test_the_label_of_the_jobset_is_that_of_admission(labels, patches, expected):
    runtime = a_runtime(
        a_job("node", "trainer"), template={"metadata": {"labels": {TREE_LABEL: "runtime"}}}
    )
    made = jobset_of(a_trainjob(labels, runtimePatches=patches), runtime)
    assert made["metadata"]["labels"] == {TREE_LABEL: expected}


def test_pods_with_a_coscheduling_group_are_left_to_it():
    runtime = a_runtime(a_job("node", "trainer"), podGroupPolicy={"coscheduling": {}})
    made = jobset_of(a_trainjob(), runtime)
    reason = BY_KIND["JobSet"].kept_out(workload("JobSet", "tune", made["spec"]))
    assert reason == "ReplicatedJob node: its pods name the group 'tune' themselves"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"runtimePatches": [a_pod_patch("nodes", nodeSelector={})]},
         r"^spec.runtimePatches\[0\].*replicatedJobs: the runtime has no ReplicatedJob 'nodes'; it has node$"),
        ({"runtimePatches": [a_pod_patch(priorityClassName="high")]},
         r"replicatedJobs\[0\].template.spec.template.spec.priorityClassName: Trainer v2.3 cannot patch this field, only affinity,"),
        ({"runtimePatches": [a_pod_patch(containers=[{"name": "main", "env": []}])]},
         r"ReplicatedJob node of the runtime has no container 'main' in containers; it has node$"),
        ({"podTemplateOverrides": [{}]}, r"^spec.podTemplateOverrides: Trainer v2.3 has no such field; use spec.runtimePatches$"),
    ],
    ids=["job", "field", "container", "old-field"],
)  # fmt: skip
def test_what_trainer_refuses_or_ignores_is_an_error(spec, words):
    with pytest.raises(BadInput, match=words):
        jobset_of(a_trainjob(**spec), a_runtime(a_job("node", "trainer")))


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ({"name": "t"}, "kubectl get clustertrainingruntime t -o yaml"),
        ({"name": "t", "kind": "TrainingRuntime"}, "kubectl get trainingruntime t -n team -o yaml"),
        ({}, "spec.runtimeRef.name: is missing; name a ClusterTrainingRuntime"),
        ({"name": "t", "kind": "Runtime"}, "spec.runtimeRef.kind: 'Runtime' is none of"),
        ({"name": "t", "apiGroup": "x.io"}, "spec.runtimeRef.apiGroup: 'x.io' is not"),
    ],
)
def test_which_runtime_a_trainjob_names(ref, expected):
    trainjob = workload("TrainJob", "tune", {"runtimeRef": ref})
    if expected.startswith("kubectl"):
        assert runtime_of(trainjob).command == expected
        return
    with pytest.raises(BadInput, match=expected):
        runtime_of(trainjob)
