"""A control plane where the Job controller makes groups itself (KEP-5547), and a kind JobSet with `spec.scheduling`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.controllers.jobset_player import install_native_jobset
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.objects import path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.workloads import TREE, a_job, a_jobset
from tests.support.waiting import eventually

GATES = {"GenericWorkload": True, "WorkloadWithJob": True}
PROFILE = "adopting"


@pytest.fixture(scope="session")
def running_controllers(site: ControlPlane) -> Iterator[WorkloadControllers]:
    """kube-controller-manager with the gates of native groups, and no other controller."""
    install_native_jobset(site)
    with WorkloadControllers(site, (), gates=GATES) as running:
        yield running


@pytest.fixture
async def adopting(story: Story, tree_policies: None) -> AsyncIterator[str]:
    """A TreeProfile that adopts groups, known to a Job that names it."""
    kinds = [{"kind": kind, "nativeGroups": "Adopt"} for kind in ("Job", "JobSet")]
    path = f"/apis/{OURS}/treeprofiles"
    profile = {"apiVersion": OURS, "kind": "TreeProfile", "metadata": {"name": PROFILE}}
    await story.api.create(profile | {"spec": {"kinds": kinds}})
    probe = a_job("probe", 1)
    probe["spec"]["scheduling"] = {"schedulingPolicy": {"basic": {}}}
    made = await story.api.post("/apis/batch/v1/namespaces/default/jobs", probe, dryRun="All")
    assert "scheduling" in made["spec"], "the API server drops spec.scheduling"
    assert TREE not in made["spec"]["template"]["metadata"].get("labels", {})

    async def jobsets_are_stored() -> bool:
        """Return whether the policies know the kind, which is as new as this plane."""
        try:
            await story.api.post(
                path_of(a_jobset("probe", [])), a_jobset("probe", []), dryRun="All"
            )
        except ApiError:
            return False
        return True

    await eventually(jobsets_are_stored)
    yield PROFILE
    await story.api.delete(f"{path}/{PROFILE}")
