"""A real API server with the admission policies of workload trees, and namespaces with and without a profile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from extender.core.workloads.kind_table import OBJECT_KINDS
from extender.core.workloads.workload_object import TREE_LABEL
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import a_pod
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import until_gates_are_free
from tests.e2e.trees.policies.workload_samples import a_workload, definitions, labels_in, path_to
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[4] / "deploy" / "kubernetes"
MANIFESTS = (
    "namespace.yaml",
    "crds.yaml",
    "rbac.yaml",
    "admission-policy.yaml",
    "group-limits.yaml",
    "confinement.yaml",
    "workloads/leaf-policy.yaml",
    "workloads/tree-policies.yaml",
)
KEPT = ("namespace.yaml", "crds.yaml")  # a definition that ends refuses objects for a while
# namespace -> its profile
NAMESPACES = {"trees-plain": None, "trees-labelled": "gold", "trees-off": "off"}
PLAIN, LABELLED, OFF_HERE = NAMESPACES
AT_ONCE = {"propagationPolicy": "Background"}  # a Job waits for a garbage collector otherwise


def apply(plane: ControlPlane, *manifests: str, selector: str = "") -> None:
    """Apply files of deploy/kubernetes."""
    flags = [part for name in manifests for part in ("-f", str(DEPLOY / name))]
    flags += ["-l", selector] if selector else []
    done = plane.kubectl("apply", "--server-side", "--force-conflicts", *flags)
    assert done.returncode == 0, done.stderr


def remove(plane: ControlPlane, *manifests: str) -> None:
    """Delete what is in files of deploy/kubernetes."""
    flags = [part for name in manifests for part in ("-f", str(DEPLOY / name))]
    done = plane.kubectl("delete", "--ignore-not-found", "--wait=false", *flags)
    assert done.returncode == 0, done.stderr


def apply_objects(plane: ControlPlane, *things: Object) -> None:
    """Apply objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)})
    done = plane.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr


async def dry_run(api: Api, path: str, thing: Object) -> Object:
    """Return what an object becomes on its way in; nothing is stored."""
    return await api.post(path, thing, dryRun="All")


async def works(api: Api) -> bool:
    """Return whether each policy is enforced: the API server loads each in its own time."""
    try:
        for kind in OBJECT_KINDS:
            for one in kind.labels_from:
                thing = a_workload(kind, LABELLED) | {"kind": one.kind}
                thing["apiVersion"] = f"{one.group}/{one.versions[0]}"
                found = await dry_run(api, path_to(one, LABELLED), thing)
                if TREE_LABEL not in found["metadata"].get("labels", {}):
                    return False
            if kind.template_paths:
                found = await dry_run(api, path_to(kind, LABELLED), a_workload(kind, LABELLED))
                if None in labels_in(kind, found, TREE_LABEL):
                    return False
        labels = {
            TREE_LABEL: "gold",
            "batch.kubernetes.io/job-name": "probe",
            "batch.kubernetes.io/controller-uid": "00000000-0000",
        }
        pods = f"/api/v1/namespaces/{PLAIN}/pods"
        leaf = await dry_run(
            api, pods, a_pod("probe", namespace=PLAIN, metadata={"labels": labels})
        )
        member = a_pod(
            "probe", namespace=PLAIN, metadata={"labels": {"gang-extender.dev/pod-group": "g"}}
        )
        held = await dry_run(api, pods, member)
    except ApiError:
        return False
    return "schedulingGates" in leaf["spec"] and "schedulingGates" in held["spec"]


@pytest.fixture(scope="module")
def policies(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with the policies; afterwards pods and Jobs are left alone again."""
    namespaces = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {TREE_LABEL: profile} if profile else {}},
        }
        for name, profile in NAMESPACES.items()
    ]
    apply_objects(plane, *namespaces, *definitions())
    apply(plane, *MANIFESTS)

    async def ready() -> None:
        async with plane.api() as api:
            await eventually(lambda: works(api))

    async def off() -> None:
        async with plane.api() as api:
            await eventually(lambda: left_alone(api))
            await until_gates_are_free(api)

    asyncio.run(ready())
    yield plane
    remove(plane, *(name for name in MANIFESTS if name not in KEPT))
    asyncio.run(off())


async def left_alone(api: Api) -> bool:
    """Return whether no policy of ours is enforced for pods: one may refuse what another one has not changed any more."""
    labels = {TREE_LABEL: "gold", "gang-extender.dev/pod-group": "g"}
    pod = a_pod("probe", namespace=PLAIN, metadata={"labels": labels})
    try:
        found = await dry_run(api, f"/api/v1/namespaces/{PLAIN}/pods", pod)
    except ApiError:
        return False
    return not found["spec"].get("schedulingGates")


@pytest.fixture
async def admission(policies: ControlPlane) -> AsyncIterator[Api]:
    """A client of the control plane with the policies, for requests that store nothing."""
    async with policies.api() as client:
        yield client


@pytest.fixture
async def cluster(admission: Api) -> AsyncIterator[Api]:
    """The same for what is stored; afterwards no workload and no pod is left."""
    yield admission
    kinds = [one for kind in OBJECT_KINDS for one in (kind, *kind.labels_from)]
    for namespace in NAMESPACES:
        await asyncio.gather(
            *(admission.delete(path_to(kind, namespace), AT_ONCE) for kind in kinds),
            admission.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0}),
        )
