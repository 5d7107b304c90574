"""The contract of the port `Workloads` on a real API server, under the roles that we ship.

The tests are those of tests/contract/test_workloads.py; only the place is another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.runtime.system_clock import SystemClock
from tests.contract.test_workloads import (  # noqa: F401 - pytest collects them here
    Object,
    test_a_change_wakes_who_waits_for_it,
    test_a_group_is_created_as_it_is_asked_for,
    test_a_group_is_deleted_by_its_uid,
    test_a_group_that_exists_is_not_changed_by_a_creation,
    test_an_apply_to_another_object_does_nothing,
    test_an_immutable_field_is_rejected,
    test_kinds_and_profiles_are_known,
    test_the_minimum_of_a_group_is_applied,
    test_what_has_the_label_is_in_the_view,
    test_what_is_owned_is_found_by_its_owner,
)
from tests.controlplane.api import Api
from tests.controlplane.objects import path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.scenarios.conftest import DEPLOY, OURS, sweep_groups
from tests.e2e.trees.conftest import clear_workloads
from tests.support.waiting import answer_of, eventually

pytestmark = pytest.mark.e2e

PROFILES = f"/apis/{OURS}/treeprofiles"


class Server:
    """A real API server and the adapter on it."""

    def __init__(self, cluster: KubernetesCluster, api: Api) -> None:
        self.cluster = cluster
        self.workloads = cluster.workloads
        self._api = api

    async def put(self, workload: Object) -> str:
        known = {one.name for one in self.workloads.view().objects.values()}
        name = workload["metadata"]["name"]
        if name in known:
            parallelism = {"parallelism": workload["spec"]["parallelism"]}
            stored = await self._api.patch(path_of(workload, named=True), {"spec": parallelism})
        else:
            stored = await self._api.create(workload)
        uid: str = stored["metadata"]["uid"]
        return uid

    async def remove(self, workload: Object) -> None:
        at_once = {"propagationPolicy": "Background"}
        await self._api.delete(path_of(workload, named=True), at_once)

    async def put_profile(self, profile: Object) -> None:
        await self._api.post(PROFILES, profile)

    async def put_group(self, group: Object) -> None:
        await self._api.create(group)


@pytest.fixture
async def place(site: ControlPlane) -> AsyncIterator[Server]:
    """The adapter as the ServiceAccount of our Deployment, synced; nothing is left of what a test made."""
    applied = site.kubectl("apply", "--server-side", "-f", str(DEPLOY / "workloads" / "rbac.yaml"))
    assert applied.returncode == 0, applied.stderr
    async with site.api() as api:
        kubeconfig = str(site.kubeconfig("extender"))
        adapter = await KubernetesCluster.connect(kubeconfig, clock=SystemClock())
        await adapter.start()
        try:
            await answer_of(adapter.synced())

            async def synced() -> bool:
                return {"Job", "TreeProfile"} <= adapter.workloads.view().synced

            await eventually(synced)
            yield Server(adapter, api)
        finally:
            await adapter.stop()
            await clear_workloads(api)
            await sweep_groups(api)
            await api.delete(PROFILES)
