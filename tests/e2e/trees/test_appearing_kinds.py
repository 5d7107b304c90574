"""The definition of a kind comes and goes while the service runs: a line in its log, and no crash.

On a control plane of its own, because the other stories of this folder need the definitions all the time. There is no
JobSet controller: what is looked at are the groups, and the Jobs beside them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import ApiError, Object
from tests.controlplane.build import find_controllers
from tests.controlplane.controllers.kinds import create_kinds
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import DEFINITIONS, delete_definitions
from tests.e2e.scenarios.conftest import DEPLOY, Story
from tests.e2e.trees.conftest import (
    WORKLOAD_MANIFESTS,
    clear_workloads,
    until_jobs_become_trees,
)
from tests.e2e.trees.test_kueue import of_page
from tests.e2e.trees.workloads import (
    a_job,
    a_jobset,
    a_replicated_job,
    a_template,
    groups,
    racks,
    until_groups,
)
from tests.support.service import fork_server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37 --event-ttl=2h"),  # flags of its own: a plane of its own
]

JOBSETS = "jobsets.jobset.x-k8s.io"
CONTROLLERS = ("job-controller", "garbage-collector-controller")
SERVED, GONE = "workload kind is served", "workload kind is not served any more"


@pytest.fixture(autouse=True)
def discovery_is_soon() -> Iterator[None]:
    """The service looks for kinds every second, not every minute."""
    place = "cluster.api_server.workload_informers.DISCOVER_EVERY_S"
    with fork_server.shortened({place: 1.0}):
        yield


def definitions_of(name: str) -> list[Path]:
    """Return the files with the definitions of a controller; they are built with it."""
    found = find_controllers((name,))
    if found is None:
        missing = "the controllers are not built: python -m tests.controlplane.build controllers"
        if os.environ.get("CI") == "true" or os.environ.get("GX_TEST_E2E") == "required":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return sorted((found[name] / "manifests" / name / "crds").glob("*.yaml"))


@pytest.fixture
def definition() -> Path:
    """The file with the definition of JobSet."""
    (file,) = definitions_of("jobset")
    return file


@pytest.fixture
async def job_controllers(site: ControlPlane) -> AsyncIterator[None]:
    """Jobs get their pods, and what is owned goes with its owner; no other controller, and no JobSet.

    Afterwards no workload is left, also of a story that failed.
    """
    for name in WORKLOAD_MANIFESTS:
        path = str(DEPLOY / "workloads" / f"{name}.yaml")
        done = site.kubectl("apply", "--server-side", "-f", path)
        assert done.returncode == 0, done.stderr
    site.start_controller_manager(CONTROLLERS)
    yield
    async with site.api() as client:
        await clear_workloads(client)
    site.stop_controller_manager()


def lines_about(story: Story, message: str, resource: str) -> list[dict[str, Any]]:
    return [line for line in story.service.lines(message) if line["resource"] == resource]


async def create_definition(story: Story, definition: Path) -> None:
    """Create a definition; kube-controller-manager begins anew with it.

    Its garbage collector looks for new kinds every 30 s, and never deletes what an object of an unknown kind owned.
    """
    await asyncio.to_thread(create_kinds, story.plane, [definition])
    story.plane.stop_controller_manager()
    story.plane.start_controller_manager(CONTROLLERS)


async def created(story: Story, workload: Object) -> Object:
    """Create a workload as soon as the admission policies know its kind; they refuse it before, with 503."""

    async def look() -> Object | None:
        try:
            return await story.api.create(workload)
        except ApiError as refused:
            if refused.status != 503:
                raise
            return None

    made: Object = await story.until(look, every_s=0.2)
    return made


async def until_line(story: Story, message: str, count: int) -> None:
    async def logged() -> bool:
        return len(lines_about(story, message, JOBSETS)) == count

    await story.until(logged, every_s=0.1)


async def until_compiled(story: Story, workload: Object) -> None:
    """Wait for the event of a workload and for its five groups."""
    uid = workload["metadata"]["uid"]
    event = await story.until_event("TreeCompiled", uid=uid)
    wanted = {group["name"] for group in event["data"]["groups"]}
    assert len(wanted) == 5

    async def made() -> bool:
        return wanted <= set(await groups(story))

    await story.until(made, every_s=0.1)


async def a_job_is_placed(story: Story, name: str) -> None:
    await story.api.create(a_job(name, 2))
    await story.until_bound(2, f"{name}-")


def troubles(story: Story) -> list[str]:
    """Return the lines of the log above INFO that name JobSets."""
    lines = story.service.log.read_text().splitlines()
    levels = ('"level":"WARNING"', '"level":"ERROR"')
    return [line for line in lines if "jobset" in line and any(level in line for level in levels)]


def a_train() -> Object:
    jobs = [a_replicated_job("driver", 1, 1), a_replicated_job("worker", 2, 2)]
    return a_jobset("train", jobs)


async def test_the_definition_of_a_kind_comes_and_goes(
    job_controllers: None, definition: Path, story: Story
) -> None:
    """Absent: Jobs are placed. There: JobSets are compiled. Gone: their trees and groups go, Jobs stay."""
    await until_jobs_become_trees(story.api)
    await story.create(*racks("r0", cpu="40"))
    assert not lines_about(story, SERVED, JOBSETS)
    await a_job_is_placed(story, "first")

    await create_definition(story, definition)
    made = await created(story, a_train())
    await until_compiled(story, made)
    await until_line(story, SERVED, 1)
    await a_job_is_placed(story, "second")

    await delete_definitions(story.api, JOBSETS)
    await until_line(story, GONE, 1)
    await story.until_event("TreeRetired", uid=made["metadata"]["uid"], reason="deleted")
    await until_groups(story, 2)
    assert await story.service.ready()
    await a_job_is_placed(story, "third")
    assert not troubles(story)
    assert story.service.starts == 1
    assert story.service.running
    await clear_workloads(story.api)
    await until_groups(story, 0)
    await story.check_events()


async def test_the_definition_of_a_kind_goes_while_the_service_is_away(
    job_controllers: None, definition: Path, story: Story
) -> None:
    """What the log has of it is retired after the restart, and Jobs are placed."""
    await until_jobs_become_trees(story.api)
    await story.create(*racks("r0", cpu="40"))
    story.service.kill()
    await create_definition(story, definition)
    made = await created(story, a_train())
    await story.service.start()
    await until_compiled(story, made)
    story.service.kill()
    await delete_definitions(story.api, JOBSETS)
    await story.service.start()
    await story.until_event("TreeRetired", uid=made["metadata"]["uid"], reason="deleted")
    await until_groups(story, 0)
    await a_job_is_placed(story, "later")
    assert not troubles(story)
    await clear_workloads(story.api)
    await until_groups(story, 0)
    await story.check_events()


async def test_kueue_is_installed_while_the_service_runs(
    job_controllers: None, story: Story
) -> None:
    """With the role of the checks and without the kinds of Kueue it places Jobs; then it answers, without a restart.

    Kueue itself does not run: its Workload and the quota of that are written here.
    """
    await until_jobs_become_trees(story.api)
    await story.create(*racks("r0", cpu="40"))
    await a_job_is_placed(story, "first")
    role = f"--filename={DEPLOY / 'kueue' / 'admission-check.yaml'}"
    done = story.plane.kubectl("apply", "--server-side", role)
    assert done.returncode == 0, done.stderr
    await asyncio.to_thread(create_kinds, story.plane, definitions_of("kueue"))
    check, _ = of_page("Admission check")
    await story.api.create(check)
    version, name = check["apiVersion"], check["metadata"]["name"]
    checks = f"/apis/{version}/admissionchecks/{name}"

    async def is_active() -> bool:
        conditions = (await story.api.get(checks)).get("status", {}).get("conditions", [])
        return [(c["type"], c["status"]) for c in conditions] == [("Active", "True")]

    await story.until(is_active, every_s=0.1)
    metadata = {"name": "train", "namespace": "default"}
    template = a_template()
    spec = {"podSets": [{"name": "main", "count": 2, "template": template}], "queueName": "team-a"}
    workload = {"apiVersion": version, "kind": "Workload", "metadata": metadata, "spec": spec}
    await story.api.create(workload)
    path = f"/apis/{version}/namespaces/default/workloads/train"
    times = {"lastTransitionTime": "2026-11-30T00:00:00Z", "message": ""}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", **times}
    status = {
        "conditions": [reserved],
        "admissionChecks": [{"name": name, "state": "Pending", **times}],
        "admission": {
            "clusterQueue": "team-a",
            "podSetAssignments": [{"name": "main", "count": 2}],
        },
    }
    await story.api.patch(f"{path}/status", {"status": status})

    async def is_answered() -> bool:
        (answer,) = (await story.api.get(path))["status"]["admissionChecks"]
        return answer["state"] == "Ready" and answer["message"].startswith("fits now")

    await story.until(is_answered, every_s=0.1)
    await a_job_is_placed(story, "second")
    assert story.service.starts == 1
    plurals = [one["metadata"]["name"] for one in (await story.api.get(DEFINITIONS))["items"]]
    await delete_definitions(
        story.api, *(one for one in plurals if one.endswith(".kueue.x-k8s.io"))
    )
    await a_job_is_placed(story, "third")
    assert await story.service.ready()
    await clear_workloads(story.api)
    await until_groups(story, 0)
    await story.check_events()
