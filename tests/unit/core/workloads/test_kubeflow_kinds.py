"""Jobs of Kubeflow v1 and MPIJob: a gang over the replica types."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.workloads.kind_table import BY_KIND, kind_of_pod, leaf_of_pod
from tests.support.planning.workload_builders import compiled, drawn, template, workload

FIELDS = {
    "PyTorchJob": ("pytorchReplicaSpecs", ("Master", "Worker")),
    "TFJob": ("tfReplicaSpecs", ("Chief", "PS", "Worker")),
    "XGBoostJob": ("xgbReplicaSpecs", ("Master", "Worker")),
    "PaddleJob": ("paddleReplicaSpecs", ("Master", "Worker")),
    "MPIJob": ("mpiReplicaSpecs", ("Launcher", "Worker")),
}


CONTAINERS = ("pytorch", "tensorflow", "xgboost", "paddle", "jax")  # each operator wants one
TEMPLATE = {"metadata": {}, "spec": {"containers": [{"name": name} for name in CONTAINERS]}}


def job(kind="PyTorchJob", status=None, annotations=None, **roles):
    """Make a job with so many replicas of each type; a mapping is the whole entry, and other fields go into the spec."""
    field, types = FIELDS[kind]
    replicas = {
        name: {"template": TEMPLATE} | (value if isinstance(value, dict) else {"replicas": value})
        for name, value in roles.items()
        if name in types
    }
    spec = {field: replicas} | {name: value for name, value in roles.items() if name not in types}
    more = {"status": status} if status else {}
    return workload(kind, "tune", spec, annotations=annotations or {}, **more)


def named(name, made):
    return msgspec.structs.replace(made, name=name)


@pytest.mark.parametrize("kind", FIELDS)
def test_all_replica_types_are_one_gang(kind):
    _, types = FIELDS[kind]
    first = 2 if types[0] not in ("Launcher", "Master") else 1
    lines = drawn(compiled(job(kind, **dict.fromkeys(types, 2) | {types[0]: first})))
    piece = kind.lower()
    assert lines == [
        f"+tune-{piece}: gang {len(types)}, all",
        f"  tune-{piece}-{types[0].lower()}: gang {first}, all",
        *(f"  tune-{piece}-{name.lower()}: gang 2, all" for name in types[1:]),
    ]


def test_one_replica_type_needs_no_root():
    assert drawn(compiled(job(Worker=4))) == ["tune-pytorchjob-worker: gang 4, all"]


def test_replicas_have_the_defaults_of_the_operators():
    assert drawn(compiled(job(Worker={})))[0].endswith("gang 1, all")
    assert drawn(compiled(job("MPIJob", Launcher={}, Worker={}))) == [
        "tune-mpijob-launcher: gang 1, all"
    ]


def test_an_elastic_job_starts_with_its_least_number_of_workers():
    elastic = {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}}
    assert drawn(compiled(job(Worker=4, **elastic))) == ["tune-pytorchjob-worker: gang 2"]


def test_the_annotation_lowers_the_minimum_of_a_type():
    found = job(Master=1, Worker=8, annotations={"gang-extender.dev/min": "worker=6"})
    assert drawn(compiled(found))[-1] == "  tune-pytorchjob-worker: gang 6, all"


def test_the_minimum_follows_the_workers_that_have_succeeded():
    """The operator does not make them again: a pod that restarts would wait for ever."""
    status = {"replicaStatuses": {"Worker": {"active": 1, "succeeded": 3}}}
    assert drawn(compiled(job(Worker=4, status=status))) == ["tune-pytorchjob-worker: gang 1, all"]
    status = {"replicaStatuses": {"Worker": {"succeeded": 4}}}
    assert drawn(compiled(job(Worker=4, status=status))) == ["tune-pytorchjob-worker: gang 1, all"]


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
def test_a_job_that_has_ended_is_finished(ended):
    kind = BY_KIND["PyTorchJob"]
    assert not kind.finished(job(Worker=1))
    status = {"conditions": [{"type": ended, "status": "True"}]}
    assert kind.finished(job(Worker=1, status=status))


def test_a_suspended_job_keeps_its_pods_away():
    kind = BY_KIND["MPIJob"]
    assert not kind.suspended(job("MPIJob", Worker=1))
    assert kind.suspended(job("MPIJob", Worker=1, runPolicy={"suspend": True}))


def test_a_launcher_that_waits_for_its_workers_is_a_step():
    """A gang over both would never start: the launcher is made when the workers are ready."""
    result = compiled(
        job("MPIJob", Launcher=1, Worker=2, launcherCreationPolicy="WaitForWorkersReady")
    )
    assert drawn(result) == [
        "+tune-mpijob: basic",
        "  tune-mpijob-worker: gang 2, all",
        "  tune-mpijob-launcher: gang 1, all",
    ]
    assert [notice.reason for notice in result.notices] == ["SequencedStart"]


def test_a_replica_type_that_the_kind_does_not_have_is_refused_with_those_it_has():
    found = workload("PyTorchJob", "tune", {"pytorchReplicaSpecs": {"worker": {"replicas": 2}}})
    refusal = compiled(found).refusal
    assert refusal.reason == "InvalidField"
    assert "spec.pytorchReplicaSpecs[worker]" in refusal.message
    assert "Worker" in refusal.message


@pytest.mark.parametrize(
    ("invalid", "words"),
    [
        (job("MPIJob", Worker=2), "spec.mpiReplicaSpecs[Launcher]: is missing"),
        (job("MPIJob", Launcher=2, Worker=2), "spec.mpiReplicaSpecs[Launcher].replicas: is 2"),
        (job("MPIJob", Launcher=0, Worker=2), "spec.mpiReplicaSpecs[Launcher].replicas: is 0"),
        (job("MPIJob", Launcher=1, Worker=0), "spec.mpiReplicaSpecs[Worker].replicas: is 0"),
        (job(Master=2, Worker=3), "spec.pytorchReplicaSpecs[Master].replicas: is 2"),
        (
            job("XGBoostJob", Worker=2),
            "spec.xgbReplicaSpecs[Master]: is missing; each XGBoostJob has a master",
        ),
        (
            workload(
                "TFJob",
                "tune",
                {"tfReplicaSpecs": {role: {"template": TEMPLATE} for role in ("Chief", "Master")}},
            ),
            "spec.tfReplicaSpecs[Master]: is beside Chief",
        ),
        (
            job(Worker={"template": {"spec": {"containers": [{"name": "main"}, {"name": "log"}]}}}),
            "[Worker].template.spec.containers: none is named pytorch, as kubeflow.org/training-operator requires; there are main, log",
        ),
        (
            named("7b-tune", job(Worker=1)),
            "metadata.name: is no name of a Service, as 7b-tune must be one",
        ),
        (
            named("llama.ft", job("TFJob", Worker=1)),
            "metadata.name: is no name of a Service, as llama.ft must be one",
        ),
        (
            named("x" * 54, job("MPIJob", Launcher=1, Worker=12)),
            f"as {'x' * 54}-worker-11 must be one",
        ),
    ],
)
def test_what_the_operators_refuse_is_refused(invalid, words):
    refusal = compiled(invalid).refusal
    assert refusal.reason == "InvalidField"
    assert words in refusal.message


@pytest.mark.parametrize("none", [None, {}, {"spec": None}, {"spec": {"containers": []}}])
@pytest.mark.parametrize("kind", FIELDS)
def test_a_replica_type_without_containers_is_refused(kind, none):
    """Before anything else: what it lacks would be called another priority."""
    field, types = FIELDS[kind]
    asked = job(kind, **{types[0]: 1, "Worker": {"template": none}})
    refusal = compiled(asked).refusal
    assert refusal.field == f"spec.{field}[Worker].template.spec.containers"
    assert "is missing or empty" in refusal.message


def test_a_replica_type_that_is_null_is_none():
    """An API server does not store it."""
    asked = job(Worker=2)
    asked.spec["pytorchReplicaSpecs"]["Master"] = None
    assert drawn(compiled(asked)) == ["tune-pytorchjob-worker: gang 2, all"]


def test_a_role_in_capital_letters_gets_a_hint():
    asked = job(Master=1, Worker=4, annotations={"gang-extender.dev/min": "Worker=2"})
    message = compiled(asked).refusal.message
    assert "no role 'Worker'; there are master, worker; did you mean worker?" in message


def test_a_job_of_another_controller_or_scheduler_is_left_alone():
    kind = BY_KIND["PyTorchJob"]
    other = job(Worker=1, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert kind.kept_out(other).startswith("spec.runPolicy.managedBy is")
    grouped = job(Master=1, Worker={"template": template(**{"pod-group": "g"})})
    assert kind.kept_out(grouped) == "Worker: its pods name the group 'g' themselves"


def test_workers_with_a_master_have_the_init_container_of_the_operator():
    pod = {"spec": {"containers": [{"name": "pytorch"}]}}
    kind = BY_KIND["PyTorchJob"]

    def added(**roles):
        parts = kind.parts(job(**roles), None, None).roots
        leaves = parts[0].children if hasattr(parts[0], "children") else parts
        return {leaf.role: leaf.template["spec"].get("initContainers", []) for leaf in leaves}

    both = added(Master={"template": pod}, Worker={"template": pod})
    assert both["master"] == []
    assert [container["name"] for container in both["worker"]] == ["init-pytorch"]
    assert added(Worker={"template": pod}) == {"worker": []}


def test_the_launcher_is_a_pod_of_the_mpijob_although_a_job_makes_it():
    labels = {
        "gang-extender.dev/tree": "default",
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "tune",
        "training.kubeflow.org/job-role": "launcher",
        "batch.kubernetes.io/job-name": "tune-launcher",
        "batch.kubernetes.io/controller-uid": "6f2f0f4a-0000-4000-8000-000000000001",
    }
    assert kind_of_pod(labels) is BY_KIND["MPIJob"]
    assert leaf_of_pod(labels) == "tune-mpijob-launcher"


def test_jobs_of_one_name_and_two_kinds_have_different_groups():
    labels = {
        "gang-extender.dev/tree": "default",
        "training.kubeflow.org/job-name": "tune",
        "training.kubeflow.org/replica-type": "worker",
    }
    names = {
        leaf_of_pod(labels | {"training.kubeflow.org/operator-name": f"{kind}-controller"})
        for kind in ("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob")
    }
    assert len(names) == 5
