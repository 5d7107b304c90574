"""The real workload controllers on a real API server make what was recorded of them, and go through their lives.

Covered: Job, JobSet (steps, restart, suspension), LeaderWorkerSet, DisaggregatedSet, TrainJob, RayCluster, and Grove's
operator as it is played. What our service makes of them is for the other modules of this folder; the last test here
shows that it can run beside them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from extender.core.workloads.kinds.trainjob_jobset import jobset_of
from tests.controlplane.api import Api, Object
from tests.controlplane.controllers.grove_objects import GATE
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import path_of
from tests.controlplane.waiting import create_training_runtime
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.recorded import kinds_of, read_record, seen, shape_of, submitted
from tests.support.planning.controller_records import a_staged_runtime, as_placed, workload_of
from tests.support.service.manifest_builders import a_group, a_node
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

PODS = "/api/v1/namespaces/default/pods"
MADE = (
    "job/plain",
    "job/indexed",
    "jobset/any-order",
    "jobset/depends-on-first-step",
    "jobset/in-order-first-step",
    "lws/leader-created",
    "lws/leader-ready-leader-not-ready",
    "lws/disaggregated",
    "raycluster/multi-host",
)


async def becomes(api: Api, record: Iterable[Object]) -> None:
    """Wait until the cluster has what a record has."""
    record = list(record)
    wanted, kinds = shape_of(record), kinds_of(record)
    found: list[str] = []

    async def same() -> bool:
        found[:] = shape_of(await seen(api, kinds))
        return found == wanted

    await eventually(same, f"{wanted}", every_s=0.1, state=lambda: found)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    return await eventually(look, every_s=0.1)


async def pods_of(api: Api, prefix: str, phase: str = "") -> list[str]:
    """Return the names of the pods that are not being deleted."""
    return [
        pod["metadata"]["name"]
        for pod in (await api.get(PODS))["items"]
        if pod["metadata"]["name"].startswith(prefix)
        and phase in ("", pod["status"]["phase"])
        and "deletionTimestamp" not in pod["metadata"]
    ]


async def running(api: Api, prefix: str, count: int) -> list[str]:
    """Wait until so many pods run."""

    async def look() -> list[str] | None:
        names = await pods_of(api, prefix, "Running")
        return names if len(names) == count else None

    names: list[str] = await until(look)
    return names


@pytest.mark.parametrize("name", MADE)
async def test_a_controller_makes_what_was_recorded(
    controllers: WorkloadControllers, name: str
) -> None:
    """Objects, owners, labels, annotations and gates are those of the record."""
    record = read_record(name)
    async with controllers.plane.api() as api:
        await api.create(submitted(record))
        await becomes(api, record)


async def test_a_job_starts_no_more_pods_than_are_left_to_do(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """Of five completions, three at a time, three are done: two pods are left."""
    await cluster.create(submitted(read_record("job/plain")))
    for name in await running(cluster, "plain-", 3):
        await kubelet.succeed(name)
    await becomes(cluster, read_record("job/plain-three-done"))


async def test_a_pod_of_a_job_fails_before_it_is_gone(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """With podReplacementPolicy Failed a Job waits until a deleted pod is Failed, as the kubelet leaves it."""
    job = submitted(read_record("job/indexed"))
    job["spec"]["podReplacementPolicy"] = "Failed"
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 2
    path = path_of(await cluster.create(job), named=True)
    first, second = await running(cluster, "indexed-", 2)
    await cluster.delete(f"{PODS}/{first}")

    async def counted() -> bool:
        status = (await cluster.get(path))["status"]
        return bool(status.get("failed") == 1 and not status.get("terminating"))

    await until(counted)
    assert await pods_of(cluster, "indexed-", "Running") == [second]


async def test_the_second_step_of_a_jobset_comes_when_the_first_is_complete(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """DependsOn with status Complete."""
    record = read_record("jobset/depends-on-second-step")
    await cluster.create(submitted(record))
    (first,) = await running(cluster, "steps-initializer-", 1)
    await kubelet.succeed(first)
    await becomes(cluster, record)


@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_jobset_starts_anew_when_a_job_fails(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """All Jobs are made again, with the number of the attempt."""
    record = read_record("jobset/after-restart")
    await cluster.create(submitted(record))
    names = await running(cluster, "train-", 5)
    await kubelet.fail(next(name for name in names if name.startswith("train-worker-0-")))
    await becomes(cluster, record)


async def test_a_suspended_jobset_keeps_its_jobs_and_loses_its_pods(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """Suspend and resume."""
    resumed, suspended = read_record("jobset/resumed"), read_record("jobset/suspended")
    jobset = await cluster.create(submitted(resumed))
    path = path_of(jobset, named=True)
    await running(cluster, "asleep-", 4)
    await cluster.patch(path, {"spec": {"suspend": True}})

    async def asleep() -> bool:
        return not await pods_of(cluster, "asleep-")

    await until(asleep)
    await becomes(cluster, suspended)
    await cluster.patch(path, {"spec": {"suspend": False}})
    await becomes(cluster, resumed)


async def test_a_group_of_a_leaderworkerset_is_made_anew_when_a_container_restarts(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """All pods of the group are replaced under their old names; the other group runs on."""
    record = read_record("lws/leader-created")
    await cluster.create(submitted(record))
    await running(cluster, "serve-", 6)
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in await _pods(cluster)}
    await kubelet.restart("serve-0-1")

    async def anew() -> bool:
        now = {p["metadata"]["name"]: p["metadata"]["uid"] for p in await _pods(cluster)}
        changed = {name for name, uid in now.items() if before.get(name) != uid}
        return now.keys() == before.keys() and changed == {"serve-0", "serve-0-1", "serve-0-2"}

    await until(anew)
    await running(cluster, "serve-", 6)


async def test_the_workers_of_a_leaderworkerset_wait_for_a_ready_leader(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """startupPolicy LeaderReady: workers come when the leader runs."""
    await cluster.create(submitted(read_record("lws/leader-ready-leader-not-ready")))
    names = await running(cluster, "ready-", 3)
    assert sorted(names) == ["ready-0", "ready-0-1", "ready-0-2"]


async def test_a_trainjob_initializes_and_then_trains(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet
) -> None:
    """Both initializers come at once; the nodes of the trainer when they are complete."""
    record = read_record("trainjob/trainer")
    await create_training_runtime(cluster, a_staged_runtime())
    await cluster.create(submitted(record))
    await becomes(cluster, read_record("trainjob/initializers"))
    for name in await running(cluster, "tune-", 2):
        await kubelet.succeed(name)
    await becomes(cluster, record)


def an_mpi_runtime(name: str, *, launcher_is_node: bool) -> Object:
    """Make a runtime of a launcher and the nodes that it starts ranks on."""

    def step(job: str, after: str = "", **labels: str) -> Object:
        container = {
            "name": "node",
            "image": "registry.invalid/none",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        }
        pod = {"containers": [container], "nodeSelector": {"pool": "old", "zone": "z"}}
        template: Object = {"spec": {"template": {"spec": pod}}}
        if labels:
            template["metadata"] = {"labels": labels}
        depends = {"dependsOn": [{"name": after, "status": "Ready"}]} if after else {}
        return {"name": job, "template": template, **depends}

    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    policy = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "sshAuthMountPath": "/ssh"}
    policy |= {"runLauncherAsNode": launcher_is_node}
    jobs = [step("node"), step("launcher", "node", **label)]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "deepspeed"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "mpi": policy},
            "template": {
                "metadata": {"labels": {"from": "runtime"}},
                "spec": {"replicatedJobs": jobs},
            },
        },
    }


@pytest.mark.parametrize("launcher_is_node", [True, False])
async def test_the_jobset_of_a_plan_is_the_one_that_trainer_makes(
    controllers: WorkloadControllers, cluster: Api, *, launcher_is_node: bool
) -> None:
    """Nodes, resources of a node, and patches of node selector, affinity, tolerations, gates and labels, with MPI."""
    name = f"ranks-{launcher_is_node}".lower()
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    pod = {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "example.com/gate"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
    }
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"metadata": {"labels": {"from": "patch"}}, "spec": {"replicatedJobs": [job]}}
    resources = {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "8"}}
    trainjob = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "runtimeRef": {"name": name},
            "suspend": True,
            "trainer": {"numNodes": 4, "resourcesPerNode": resources},
            "runtimePatches": [
                {"manager": "example.com/team", "trainingRuntimeSpec": {"template": patch}}
            ],
        },
    }
    runtime = an_mpi_runtime(name, launcher_is_node=launcher_is_node)
    await create_training_runtime(cluster, runtime)
    created = await cluster.create(trainjob)

    async def jobset() -> Object | None:
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
        found = (await cluster.get(path))["items"]
        return next((one for one in found if one["metadata"]["name"] == name), None)

    real = await until(jobset)
    made = jobset_of(workload_of(created), runtime["spec"])
    assert _scheduled(made) == _scheduled(real)
    await cluster.delete(path_of(created, named=True))
    await cluster.delete(path_of(runtime, named=True))


def _scheduled(jobset: Object) -> Object:
    """Return what a plan reads of a JobSet; volumes of MPI are secrets and files."""
    spec = as_placed(jobset["spec"])
    for job in spec["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        pod.pop("volumes", None)
        for container in pod["containers"]:
            container.pop("volumeMounts", None)
    metadata = jobset["metadata"]
    owners = [one["name"] for one in metadata["ownerReferences"]]
    return {"labels": metadata.get("labels"), "owners": owners, "spec": spec}


# --- Grove


async def test_grove_makes_gangs_and_pods_as_recorded(
    controllers: WorkloadControllers, operator: None
) -> None:
    """PodGangs with references, initialized; Grove's gate is gone from the base gang only; scaling adds a gang."""
    async with controllers.plane.api() as api:
        record = read_record("grove/created")
        await api.create(submitted(record))
        await becomes(api, record)
        scaling = "/apis/grove.io/v1alpha1/namespaces/default/podcliquescalinggroups/serve-0-pd"
        await api.patch(scaling, {"spec": {"replicas": 3}})
        await becomes(api, read_record("grove/scaling-group-scaled-up"))
        (router,) = await pods_of(api, "serve-0-router-")
        await api.delete(f"{PODS}/{router}")
        await becomes(api, read_record("grove/pod-deleted-and-replaced"))
        assert router not in await pods_of(api, "serve-0-router-")


async def test_the_pods_of_a_scaled_gang_of_grove_wait_for_the_base_gang(
    controllers: WorkloadControllers, cluster: Api, kubelet: Kubelet, operator: None
) -> None:
    """When the base gang is scheduled, Grove's gate goes from the others, and all run."""
    await cluster.create(submitted(read_record("grove/created")))
    await running(cluster, "serve-0-", 9)
    assert not [p for p in await _pods(cluster) if p["spec"].get("schedulingGates")]


async def test_the_domains_of_grove_become_topology_keys_of_its_gangs(
    controllers: WorkloadControllers, operator: None
) -> None:
    """Base gang: the key of the set, and a group per replica of the scaling group; a scaled gang has that group's key."""
    workload = submitted(read_record("grove/created"))
    template = workload["spec"]["template"]
    template["topologyConstraint"] = {"packDomain": "block"}
    template["podCliqueScalingGroups"][0]["topologyConstraint"] = {"packDomain": "rack"}
    gangs = "/apis/scheduler.grove.io/v1alpha1/namespaces/default/podgangs"
    block, rack = (
        {"packConstraint": {"required": f"topology.example.com/{name}"}}
        for name in ("block", "rack")
    )
    async with controllers.plane.api() as api:
        await api.create(workload)

        async def both() -> dict[str, Object] | None:
            found = {
                one["metadata"]["name"]: one["spec"] for one in (await api.get(gangs))["items"]
            }
            return found if len(found) == 2 else None

        found = await until(both)
    base, scaled = found["serve-0"], found["serve-0-pd-0"]
    assert base["topologyConstraint"] == block
    (group,) = base["topologyConstraintGroupConfigs"]
    assert group["podGroupNames"] == ["serve-0-pd-0-prefill", "serve-0-pd-0-decode"]
    assert group["topologyConstraint"] == rack
    assert scaled["topologyConstraint"] == rack
    assert "topologyConstraintGroupConfigs" not in scaled


async def test_a_changed_set_of_grove_changes_its_gang_in_place(
    controllers: WorkloadControllers, operator: None
) -> None:
    """A larger minimum of a clique is written into the PodGang that is there."""
    workload = submitted(read_record("grove/created"))
    gang = "/apis/scheduler.grove.io/v1alpha1/namespaces/default/podgangs/serve-0"
    async with controllers.plane.api() as api:
        await api.create(workload)
        await becomes(api, read_record("grove/created"))
        before = await api.get(gang)
        template = workload["spec"]["template"]
        template["cliques"][0]["spec"] |= {"replicas": 2, "minAvailable": 2}
        await api.patch(path_of(workload, named=True), {"spec": {"template": template}})

        async def changed() -> Object | None:
            now = await api.get(gang)
            router = now["spec"]["podgroups"][0]
            return now if router["minReplicas"] == len(router["podReferences"]) == 2 else None

        now = await until(changed)
    assert now["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_gate_of_ours_survives_that_of_grove(
    controllers: WorkloadControllers, operator: None
) -> None:
    """Grove takes off its own gate and no other."""
    workload = submitted(read_record("grove/created"))
    for clique in workload["spec"]["template"]["cliques"]:
        clique["spec"]["podSpec"]["schedulingGates"] = [{"name": "example.com/other"}]
    async with controllers.plane.api() as api:
        await api.create(workload)

        async def lifted() -> list[Object] | None:
            base = [
                p
                for p in await _pods(api)
                if "grove.io/base-podgang" not in p["metadata"]["labels"]
            ]
            gates = [[gate["name"] for gate in p["spec"]["schedulingGates"]] for p in base]
            return base if len(base) == 5 and not any(GATE in found for found in gates) else None

        for pod in await until(lifted):
            assert pod["spec"]["schedulingGates"] == [{"name": "example.com/other"}]


async def _pods(api: Api) -> list[Object]:
    items: list[Object] = (await api.get(PODS))["items"]
    return items


# --- beside our service


@pytest.mark.lived_in("never")
async def test_our_service_places_the_pods_of_a_job(
    story: Story, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """A Job whose template names a group is bound as that group, and completes."""
    job = submitted(read_record("job/indexed"))
    job["spec"] |= {"parallelism": 4, "completions": 4}
    job["spec"]["template"]["metadata"]["labels"] = {"gang-extender.dev/pod-group": "fit"}
    await story.create(a_node("n0"), a_group("fit", gang=4), job)
    for name in await story.until_bound(4, "indexed-"):
        await kubelet.succeed(name)

    async def complete() -> bool:
        status = (await story.api.get(path_of(job, named=True)))["status"]
        return any(one["type"] == "Complete" for one in status.get("conditions", ()))

    await story.until(complete)
