"""A control plane with our manifests and the real workload controllers; started when a test asks for it.

`controllers` gives the running controllers and deletes every workload when the test has ended; `kubelet` lets pods run,
finish and end; `operator` plays the operator of Grove. They compose with the `story` of tests/e2e/scenarios, which adds
our service and kube-scheduler on the same plane: name `story` before `controllers`, so that the workloads go before it.
Mark such a story `lived_in("never")`: neighbours have a kubelet of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.build import find_controllers
from tests.controlplane.controllers.grove_player import install_grove, playing_grove
from tests.controlplane.controllers.programs import DEFAULT_NAMES
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import GATE, KINDS, a_node, a_pod, path_of
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import until_admission_knows
from tests.e2e.conftest import NEWEST
from tests.e2e.scenarios.conftest import (  # noqa: F401 - pytest looks for fixtures and hooks here
    DEPLOY,
    certificates,
    lived_in,
    native_gangs,
    pytest_generate_tests,
    pytest_runtest_makereport,
    site,
    story,
)
from tests.e2e.trees.workloads import TREE, a_job
from tests.support.service.manifest_builders import GROUP_LABEL
from tests.support.waiting import eventually

# In the order of docs/workloads.md: no Job is stamped before its pods get their leaf.
# kube-apiserver learns of policies in the order in which they were made: while the last one works, all of them do.
WORKLOAD_MANIFESTS = ("rbac", "tree-policies", "leaf-policy")
# Those on top first: what is below goes with them. Without Pod, which is swept by force.
WORKLOADS = (
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("ray.io/v1", "RayCluster"),
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v1", "XGBoostJob"),
    ("kubeflow.org/v1", "PaddleJob"),
    ("kubeflow.org/v1", "JAXJob"),
    ("kubeflow.org/v1", "TFJob"),
    ("grove.io/v1alpha1", "PodCliqueSet"),
    ("grove.io/v1alpha1", "PodCliqueScalingGroup"),
    ("grove.io/v1alpha1", "PodClique"),
    ("scheduler.grove.io/v1alpha1", "PodGang"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
)
# Node labels by domain, as in Grove's ClusterTopology.
TOPOLOGY = {"block": "topology.example.com/block", "rack": "topology.example.com/rack"}
# A pod that terminates does so in a twentieth of its grace period.
GRACE_FACTOR = 0.05


@pytest.fixture(scope="session")
def running_controllers(site: ControlPlane) -> Iterator[WorkloadControllers]:  # noqa: F811
    """All workload controllers on the plane of our manifests, with the kinds of Grove; on an older one Job and JobSet."""
    names = DEFAULT_NAMES if site.minor == NEWEST else ("jobset",)
    if find_controllers(names) is None:
        missing = "the controllers are not built: python -m tests.controlplane.build controllers"
        if os.environ.get("CI") == "true" or os.environ.get("GX_TEST_E2E") == "required":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    if site.minor == NEWEST:
        install_grove(site)
    with WorkloadControllers(site, names) as running:
        yield running


@pytest.fixture
async def controllers(
    running_controllers: WorkloadControllers,
) -> AsyncIterator[WorkloadControllers]:
    """The running controllers; afterwards no workload is left in any namespace."""
    yield running_controllers
    async with running_controllers.plane.api() as client:
        await clear_workloads(client)


@pytest.fixture
async def kubelet(site: ControlPlane) -> AsyncIterator[Kubelet]:  # noqa: F811
    """The kubelets: pods that are bound run, and what is deleted ends soon."""
    async with (
        site.api() as client,
        Kubelet(client, grace_factor=GRACE_FACTOR, terminal=True) as playing,
    ):
        yield playing


@pytest.fixture
async def operator(controllers: WorkloadControllers) -> AsyncIterator[None]:
    """The operator of Grove, played; its domains are those of `TOPOLOGY`."""
    async with controllers.plane.api() as client, playing_grove(client, TOPOLOGY):
        yield


@pytest.fixture
async def cluster(site: ControlPlane) -> AsyncIterator[Api]:  # noqa: F811
    """Four nodes and a stock kube-scheduler, for a test without our service."""
    async with site.api() as client:
        for number in range(4):
            await client.create(a_node(f"n{number}", cpu="32", memory="64Gi"))
        site.start_scheduler({})
        yield client
        site.stop_scheduler()
        await client.delete("/api/v1/nodes")


async def clear_workloads(api: Api) -> None:
    """Delete all workloads and their pods in all namespaces, and wait until they are gone."""

    served = await served_versions(api)

    async def gone() -> bool:
        left = 0
        for version, kind in WORKLOADS:
            if version in served:
                left += await _delete_all(api, version, kind)
        return left + await _delete_all(api, "v1", "Pod") == 0

    await eventually(gone, every_s=0.1)


async def _delete_all(api: Api, version: str, kind: str) -> int:
    """Delete all objects of a kind, and return how many there were."""
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    plural = KINDS[kind][0]
    items: list[Object] = (await api.get(f"{root}/{plural}"))["items"]
    how: Object = {"propagationPolicy": "Background"}
    if kind == "Pod":
        how["gracePeriodSeconds"] = 0
    for namespace in {one["metadata"]["namespace"] for one in items}:
        with contextlib.suppress(ApiError):  # some of them have gone meanwhile
            await api.delete(f"{root}/namespaces/{namespace}/{plural}", how)
    return len(items)


@pytest.fixture(scope="session")
def tree_site(
    site: ControlPlane,  # noqa: F811
    running_controllers: WorkloadControllers,
) -> ControlPlane:
    """The plane with the manifests of deploy/kubernetes/workloads; the policies work."""
    for name in WORKLOAD_MANIFESTS:
        path = str(DEPLOY / "workloads" / f"{name}.yaml")
        done = site.kubectl("apply", "--server-side", "-f", path)
        assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
async def tree_policies(tree_site: ControlPlane) -> None:
    """The admission policies work, each of which kube-apiserver begins to call at a time of its own.

    A pod has its leaf and gate by the policy that was applied last, and admission knows the kinds of the definitions.
    """
    async with tree_site.api() as api:
        await until_jobs_become_trees(api)
        served = await served_versions(api)
        for version, kind in WORKLOADS:
            if version in served:
                probe = {
                    "apiVersion": version,
                    "kind": kind,
                    "metadata": {"name": "probe"},
                    "spec": {},
                }
                path = f"/apis/{version}/namespaces/default/{KINDS[kind][0]}"
                await until_admission_knows(api, path, probe)


async def until_jobs_become_trees(api: Api) -> None:
    """Wait until a Job is stamped and a pod of it gets its leaf and gate: two policies do so."""

    async def stamped() -> bool:
        probe = a_job("probe", 1)
        made = await api.post("/apis/batch/v1/namespaces/default/jobs", probe, dryRun="All")
        return TREE in made["spec"]["template"]["metadata"].get("labels", {})

    async def gated() -> bool:
        labels = {
            TREE: "Job",
            "batch.kubernetes.io/job-name": "probe",
            "batch.kubernetes.io/controller-uid": "00000000-0000",
        }
        probe = a_pod("probe", metadata={"labels": labels})
        made = await api.post(path_of(probe), probe, dryRun="All")
        gates = [gate["name"] for gate in made["spec"].get("schedulingGates", ())]
        return GROUP_LABEL in made["metadata"]["labels"] and GATE in gates

    await eventually(stamped)
    await eventually(gated)


async def served_versions(api: Api) -> set[str]:
    """Return the API versions that are served, such as "batch/v1"."""
    groups = (await api.get("/apis"))["groups"]
    return {"v1"} | {one["groupVersion"] for group in groups for one in group["versions"]}
