"""A real kube-scheduler calls an extender as deploy/ configures it, on every supported version.

Covered: which verbs come in which order, both modes of nodeCacheCapable, two entries on one server,
the pod really bound; all with kube-scheduler's own group scheduling on, then off.
Left to test_experiments.py: everything about how kube-scheduler decides.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.controlplane.api import Api
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.objects import BIND, MEMBER, a_node, a_pod, condition_of, path_of
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until_bound
from tests.e2e.recorder import Recorder, scheduler_config
from tests.e2e.test_experiments_native import SCHEDULER_GATES
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.every_case]

Gates = Mapping[str, bool]


@pytest.fixture(params=[True, False], ids=["native", "not-native"])
def gates(request: pytest.FixtureRequest, plane: ControlPlane) -> Gates:
    """The feature gates of kube-scheduler: its own group scheduling is on, then off."""
    return SCHEDULER_GATES[plane.minor] if request.param else {}


@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.parametrize("node_names", [True, False], ids=["names", "full-nodes"])
async def test_a_marked_pod_is_filtered_prioritized_and_bound_by_us(
    plane: ControlPlane, api: Api, recorder: Recorder, gates: Gates, node_names: bool
) -> None:
    """kube-scheduler asks filter, prioritize, bind once each, and the pod is where bind put it."""
    for name in ("n0", "n1", "n2"):
        await api.create(a_node(name))
    plane.start_scheduler(scheduler_config(recorder.url, node_names=node_names), gates=gates)
    pod = await api.create(a_pod("a", markers=(MEMBER, BIND)))

    bound = await wait_until_bound(api, pod)

    assert [call.verb for call in recorder.calls] == ["filter", "prioritize", "bind"]
    asked, scored, binding = recorder.calls
    assert asked.nodes == scored.nodes == ["n0", "n1", "n2"]
    assert (asked.body["NodeNames"] is None) is (not node_names)
    assert asked.body["Pod"]["metadata"]["uid"] == binding.body["PodUID"] == pod["metadata"]["uid"]
    assert binding.body["Node"] == bound["spec"]["nodeName"]
    assert bound["metadata"]["annotations"]["gang-extender.dev/reservation"] == "recorded"


@pytest.mark.kubernetes("1.37", "1.36")
async def test_an_unmarked_pod_never_reaches_the_extender(
    plane: ControlPlane, api: Api, recorder: Recorder, gates: Gates
) -> None:
    """Ordinary pods are scheduled and bound in-tree; an extender outage is none of theirs."""
    await api.create(a_node("n0"))
    plane.start_scheduler(scheduler_config(recorder.url), gates=gates)

    await wait_until_bound(api, await api.create(a_pod("ordinary")))

    assert recorder.calls == []


@pytest.mark.kubernetes("1.37", "1.36")
async def test_the_api_server_reports_its_version(plane: ControlPlane, api: Api) -> None:
    """The programs carry the stamp of their pins, so nothing else was built or found."""
    version = await api.get("/version")
    assert f"v{version['major']}.{version['minor']}" == f"v{plane.minor}"
    assert version["gitVersion"] == plane.binaries.name.rpartition("-")[0]


async def test_the_kubelet_starts_refuses_loses_and_ends_pods(
    plane: ControlPlane, api: Api, recorder: Recorder, gates: Gates
) -> None:
    """Bound pods run and become ready, a refused one fails, deletions are confirmed."""
    await api.create(a_node("n0"))
    plane.start_scheduler(scheduler_config(recorder.url), gates=gates)
    async with Kubelet(api, grace_factor=0.01) as kubelet:
        kubelet.refuse("refused")
        names = ("running", "refused", "lost", "ended")
        for name in names:
            await api.create(a_pod(name, terminationGracePeriodSeconds=30))

        async def phases() -> dict[str, str]:
            pods = (await api.get("/api/v1/namespaces/default/pods"))["items"]
            return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}

        wanted = dict.fromkeys(names, "Running") | {"refused": "Failed"}

        async def settled() -> bool:
            return await phases() == wanted

        await eventually(settled)
        running = await api.get("/api/v1/namespaces/default/pods/running")
        ready = condition_of(running, "Ready")
        assert ready is not None
        assert ready["status"] == "True"
        await kubelet.lose("lost")
        await api.delete("/api/v1/namespaces/default/pods/ended")

        async def gone() -> bool:
            return set(await phases()) == {"running", "refused"}

        await eventually(gone)


async def test_the_disruption_controller_counts_the_pods_that_the_kubelet_made_ready(
    plane: ControlPlane, api: Api, recorder: Recorder
) -> None:
    """A budget's status is real: with two of two healthy and one needed, one may go."""
    await api.create(a_node("n0"))
    plane.start_scheduler(scheduler_config(recorder.url))
    plane.start_controller_manager(["disruption-controller"])
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }
    await api.create(budget)
    for name in ("a", "b"):
        await api.create(a_pod(name, metadata={"labels": {"app": "a"}}))

    async def allowed() -> bool:
        found = await api.get(path_of(budget, named=True))
        return bool(found.get("status", {}).get("disruptionsAllowed") == 1)

    async with Kubelet(api):
        await eventually(allowed)
    await api.delete(path_of(budget, named=True))
    plane.stop_controller_manager()


async def test_kubectl_speaks_to_it_as_every_user(plane: ControlPlane, api: Api) -> None:
    """Apply and describe work; users have the rights of their names and no more."""
    applied = plane.kubectl(
        "apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: applied}}"
    )
    assert applied.stdout == "namespace/applied created\n", applied.stderr
    described = plane.kubectl("describe", "namespace", "applied")
    assert "Status:       Active" in described.stdout
    refused = plane.kubectl("get", "pods", user="extender")
    assert "system:serviceaccount:gang-extender:gang-extender" in refused.stderr
    assert refused.returncode == 1
