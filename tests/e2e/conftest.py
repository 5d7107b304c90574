"""A real control plane per Kubernetes version, and a clean cluster on it per test.

Owns the fixtures of end-to-end tests. Where the programs are not built, tests are skipped with the
command to run; they fail instead when CI or GX_TEST_E2E=required demands that they run.
Mark a test with `@pytest.mark.kubernetes("1.37", "1.36")` to run it on more than the newest. Of the cases of a test (versions,
neighbours, parameters) the first runs daily and the others are `full`; all run daily with the mark `every_case`. What needs a
control plane with flags of its own is `full`, and all of it runs on the same day.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.controlplane.api import Api, ApiError
from tests.controlplane.build import find_binaries, find_etcd
from tests.controlplane.objects import GATE, a_pod, path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.recorder import Recorder
from tests.support.waiting import eventually

NEWEST = "1.37"
HERE = Path(__file__).parent
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# The programs of a control plane collect garbage less often, which is a fifth of what they compute, for 300 MB more.
os.environ.setdefault("GOGC", "300")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `full` what repeats the story of another case, and what starts a control plane for itself."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or not item.path.is_relative_to(HERE):
            continue
        if any(callspec.indices.values()) and item.get_closest_marker("every_case") is None:
            item.add_marker(pytest.mark.full)
        site = callspec.params.get("site", "")
        if "--" in site:
            item.add_marker(pytest.mark.full(site))


def versions_of(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    """Return the Kubernetes versions to run a test on."""
    marker = metafunc.definition.get_closest_marker("kubernetes")
    return (NEWEST,) if marker is None else marker.args


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "plane" in metafunc.fixturenames:
        metafunc.parametrize("plane", versions_of(metafunc), indirect=True, scope="session")


def require_programs(minor: str) -> None:
    """Skip the test, or fail it where it must run, when there is nothing to run."""
    if find_binaries(minor) is not None and find_etcd() is not None:
        return
    missing = f"Kubernetes {minor} is not built: python -m tests.controlplane.build {minor}"
    if os.environ.get("CI") == "true" or os.environ.get("GX_TEST_E2E") == "required":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane that serves the built-in groups; kube-scheduler is started by the test."""
    minor: str = request.param
    require_programs(minor)
    with ControlPlane(minor, tmp_path_factory.mktemp(f"plane-{minor}")) as running:
        yield running


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    """The test's own eyes and hands, as system:masters; afterwards the cluster is empty again."""
    async with plane.api() as client:
        yield client
        plane.stop_scheduler()
        await sweep(client)


@pytest.fixture
async def recorder(plane: ControlPlane) -> AsyncIterator[Recorder]:
    """An extender that records and lets everything pass."""
    async with plane.api() as client, Recorder(client) as server:
        yield server


async def until_gates_are_free(api: Api) -> None:
    """Wait until every user may remove our gate again: a policy that is deleted is enforced a moment longer."""
    pod = a_pod("gated", schedulingGates=[{"name": GATE}])
    path = path_of(await api.create(pod), named=True)

    async def removed() -> bool:
        try:
            await api.patch(path, {"spec": {"schedulingGates": None}}, dryRun="All")
        except ApiError:
            return False
        return True

    await eventually(removed)
    await api.delete(path, {"gracePeriodSeconds": 0})


async def delete_definitions(api: Api, *names: str) -> None:
    """Delete CustomResourceDefinitions and wait until they are gone."""
    for name in names:
        with contextlib.suppress(ApiError):  # it does not exist
            await api.delete(f"{DEFINITIONS}/{name}")

    async def gone() -> bool:
        existing = {item["metadata"]["name"] for item in (await api.get(DEFINITIONS))["items"]}
        for name in existing.intersection(names):
            await wake_finalizer(api, name)
        return existing.isdisjoint(names)

    await eventually(gone)


async def wake_finalizer(api: Api, definition: str) -> None:
    """Change an annotation of a definition that is being deleted.

    The first list of a kind that was never read gets 429. kube-apiserver then tries again from its cache; if that is older
    than its own last write, it gives up on the conflict and looks again after 5 minutes, or when the definition changes.
    """
    woken = {"metadata": {"annotations": {"tests.gang-extender.dev/woken": str(time.time_ns())}}}
    with contextlib.suppress(ApiError):  # it has gone, or has changed meanwhile
        await api.patch(f"{DEFINITIONS}/{definition}", woken)


async def sweep(api: Api) -> None:
    """Delete what a test made: pods of all namespaces at once, nodes, priority classes."""
    for item in (await api.get("/api/v1/namespaces"))["items"]:
        path = f"/api/v1/namespaces/{item['metadata']['name']}/pods"
        await api.delete(path, {"gracePeriodSeconds": 0})
    await api.delete("/api/v1/nodes")
    for item in (await api.get("/apis/scheduling.k8s.io/v1/priorityclasses"))["items"]:
        if not item["metadata"]["name"].startswith("system-"):
            await api.delete(
                f"/apis/scheduling.k8s.io/v1/priorityclasses/{item['metadata']['name']}"
            )
