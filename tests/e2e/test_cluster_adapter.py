"""The adapter on a real API server, with the rights of deploy/kubernetes/rbac.yaml and no others.

What an API server does when it misbehaves is played in tests/integration/cluster; here it is what
it really answers to preconditions, gates, bindings and conditions, and that a restart is survived.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.core.log.anchors import Anchor
from extender.core.log.control_plane_features import NAME, SchedulerGates, features_of
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import Epoch, GangUid, GroupKey, NodeName, PlanId, PodUid, Position
from extender.core.model.pod_groups import composite_key, leaf_key
from extender.core.model.pods import Pod
from extender.core.reconcile.finalizer_rules import FINALIZER, decide_protection
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.runtime.system_clock import SystemClock
from extender.telemetry import METRICS
from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import a_node, a_pod, path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.conftest import until_gates_are_free
from tests.support.waiting import answer_of, eventually

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
GATE = {"name": "gang-extender.dev/admission"}
OTHER = {"name": "example.com/quota"}
WAITS = Condition(
    type="PodGroupInitiallyScheduled", status="False", reason="Unschedulable", message=""
)
Object = dict[str, Any]

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]


@pytest.fixture(scope="module")
def confined(plane: ControlPlane) -> Iterator[None]:
    """The policies that confine our account; afterwards other tests may remove gates."""
    files = [str(KUBERNETES / f"{name}.yaml") for name in ("group-limits", "confinement")]
    flags = [part for file in files for part in ("-f", file)]
    applied = plane.kubectl("apply", "--server-side", *flags)
    assert applied.returncode == 0, applied.stderr
    yield
    deleted = plane.kubectl("delete", "--wait=false", *flags)
    assert deleted.returncode == 0, deleted.stderr

    async def until_off() -> None:
        async with plane.api() as api:
            await until_gates_are_free(api)

    asyncio.run(until_off())


@pytest.fixture
async def cluster(
    plane: ControlPlane, api: Api, confined: None
) -> AsyncIterator[KubernetesCluster]:
    """The adapter as the ServiceAccount of our Deployment, synced."""
    for name in ("namespace", "crds", "rbac"):
        applied = plane.kubectl("apply", "--server-side", "-f", str(KUBERNETES / f"{name}.yaml"))
        assert applied.returncode == 0, applied.stderr

    async def served() -> bool:
        found = await api.get("/apis")
        return any(group["name"] == "gang-extender.dev" for group in found["groups"])

    await eventually(served)
    kubeconfig = str(plane.kubeconfig("extender"))
    adapter = await KubernetesCluster.connect(kubeconfig, clock=SystemClock())
    await adapter.start()
    await answer_of(adapter.synced())
    yield adapter
    await adapter.stop()


async def seen(cluster: KubernetesCluster, name: str, **wanted: object) -> Pod:
    """Wait until the view shows a pod like that."""

    async def look() -> Pod | None:
        for pod in cluster.view().pods.values():
            if pod.name == name and all(getattr(pod, k) == v for k, v in wanted.items()):
                return pod
        return None

    found: Pod = await eventually(look)
    return found


def ref(pod: Pod, **other: Any) -> PodRef:
    return PodRef(**{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, **other})


async def test_a_member_goes_the_whole_way(cluster: KubernetesCluster, api: Api) -> None:
    """Nominated, its gate lifted, bound with the id of the plan; everything comes back in the view."""
    await api.create(a_node("n1"))
    await api.create(a_pod("p", schedulingGates=[OTHER, GATE]))
    pod = await seen(cluster, "p")
    assert pod.gates == ("example.com/quota", "gang-extender.dev/admission")
    await cluster.nominate(ref(pod), NodeName("n1"))
    await seen(cluster, "p", nominated="n1")
    await cluster.remove_gate(ref(pod))
    await cluster.remove_gate(ref(pod))
    await seen(cluster, "p", gates=("example.com/quota",))
    binding = Binding(pod=ref(pod), node=NodeName("n1"), plan=PlanId("plan-1"))
    with pytest.raises(RequestRejected, match=r"gated by example\.com/quota"):
        await cluster.bind(binding)
    await api.patch("/api/v1/namespaces/default/pods/p", {"spec": {"schedulingGates": None}})
    await cluster.bind(binding)
    await cluster.bind(binding)
    await seen(cluster, "p", node="n1", plan="plan-1", nominated=None)
    with pytest.raises(RequestRejected, match="bound to n1"):
        await cluster.bind(Binding(pod=ref(pod), node=NodeName("n2")))
    with pytest.raises(RequestRejected, match="already bound"):
        await cluster.nominate(ref(pod), NodeName("n2"))


@pytest.mark.full
async def test_another_pod_of_that_name_is_never_touched(
    cluster: KubernetesCluster, api: Api
) -> None:
    """UID preconditions hold for every effect, and what is gone is refused."""
    await api.create(a_pod("p", schedulingGates=[GATE]))
    pod = await seen(cluster, "p")
    for wrong in (ref(pod, uid=PodUid("another")), ref(pod, name="gone")):
        with pytest.raises(RequestRejected):
            await cluster.nominate(wrong, NodeName("n1"))
        with pytest.raises(RequestRejected):
            await cluster.remove_gate(wrong)
        with pytest.raises(RequestRejected):
            await cluster.bind(Binding(pod=wrong, node=NodeName("n1")))
    stored = await api.get("/api/v1/namespaces/default/pods/p")
    assert stored["spec"]["schedulingGates"] == [GATE]
    assert "nominatedNodeName" not in stored["status"]


async def test_a_pod_that_ends_is_forgotten(cluster: KubernetesCluster, api: Api) -> None:
    """It leaves the selection of the watch, which reports it as a deletion."""
    await api.create(a_pod("p"))
    pod = await seen(cluster, "p")
    await api.patch("/api/v1/namespaces/default/pods/p/status", {"status": {"phase": "Failed"}})

    async def gone() -> bool:
        return pod.uid not in cluster.view().pods

    await eventually(gone)


def group_of(version: str, kind: str, name: str) -> Object:
    gang = {"minCount": 1} if kind == "PodGroup" else {"minGroupCount": 1}
    spec: Object = {"schedulingPolicy": {"gang": gang}}
    if kind == "CompositePodGroup":
        spec["workloadRef"] = {"workloadName": "w", "templateName": "t"}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


async def test_conditions_stand_on_groups_of_every_source(
    plane: ControlPlane, cluster: KubernetesCluster, api: Api
) -> None:
    """Built in and ours: written once, the time moves with the status only, others stay."""
    builtin = {"1.36": "v1alpha2", "1.37": "v1beta1"}[plane.minor]
    things = [
        group_of(f"scheduling.k8s.io/{builtin}", "PodGroup", "native"),
        group_of("gang-extender.dev/v1alpha1", "PodGroup", "ours"),
        group_of("gang-extender.dev/v1alpha1", "CompositePodGroup", "tree"),
    ]
    if plane.minor == "1.37":
        things.append(group_of("scheduling.k8s.io/v1alpha3", "CompositePodGroup", "native-tree"))
    for thing in things:
        await api.create(thing)
        name, kind = thing["metadata"]["name"], thing["kind"]
        key: GroupKey = (leaf_key if kind == "PodGroup" else composite_key)("default", name)

        async def known(key: GroupKey = key) -> Any:
            return cluster.view().groups.get(key)

        group = await eventually(known)
        assert group.api_version == thing["apiVersion"]
        path = f"/apis/{group.api_version}/namespaces/default/{kind.lower()}s/{name}"
        await api.patch(
            f"{path}/status", {"status": {"conditions": [a_condition("Other", "True")]}}
        )
        await cluster.set_conditions(key, group.uid, [WAITS])
        first = (await api.get(path))["status"]["conditions"]
        assert [c["type"] for c in first] == ["Other", WAITS.type]
        await asyncio.sleep(1.1)  # the times are in whole seconds
        condition = Condition(
            type=WAITS.type, status="False", reason="Unschedulable", message="no place"
        )
        await cluster.set_conditions(key, group.uid, [condition])
        second = (await api.get(path))["status"]["conditions"]
        assert second[1]["message"] == "no place"
        assert second[1]["lastTransitionTime"] == first[1]["lastTransitionTime"]
        await cluster.notice(
            K8sEvent(
                kind=kind, namespace="default", name=name, uid=group.uid, reason="R", message="m"
            )
        )
        await api.delete(path)
    events = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
    about = {event["regarding"]["name"] for event in events if event["reason"] == "R"}
    assert about == {thing["metadata"]["name"] for thing in things}


async def test_finalizers_are_written_on_what_was_seen(
    cluster: KubernetesCluster, api: Api
) -> None:
    """Ours is added and taken off, others stay; another version or UID is never written."""
    thing = group_of("gang-extender.dev/v1alpha1", "PodGroup", "kept")
    thing["metadata"]["finalizers"] = ["example.com/mine"]
    await api.create(thing)
    path = path_of(thing, named=True)

    async def wanted() -> Any:
        return next((p for p in decide_protection(cluster.view()) if p.group.name == "kept"), None)

    async def stored() -> list[str]:
        return list((await api.get(path))["metadata"]["finalizers"])

    first = await eventually(wanted)
    other = msgspec.structs.replace(first.guard, uid=GangUid("another"))
    with pytest.raises((RequestRejected, ClusterUnavailable)):
        await cluster.set_finalizers(msgspec.structs.replace(first, guard=other))
    await cluster.set_finalizers(first)
    assert await stored() == ["example.com/mine", FINALIZER]
    with pytest.raises(ClusterUnavailable, match="modified"):
        await cluster.set_finalizers(first)
    await api.delete(path)
    second = await eventually(wanted)
    await cluster.set_finalizers(second)
    assert await stored() == ["example.com/mine"]
    await api.patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(RequestRejected, match="404"):
        await cluster.set_finalizers(second)


def a_condition(kind: str, status: str) -> Object:
    since = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": since,
        "reason": "R",
        "message": "",
    }


@pytest.mark.full
async def test_a_repeated_event_becomes_a_series(
    cluster: KubernetesCluster, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real API server takes the count."""
    monkeypatch.setattr("extender.cluster.write.event_recorder.WRITE_SERIES_EVERY_MS", 0)
    await api.create(a_pod("p"))
    pod = await seen(cluster, "p")
    notice = K8sEvent(
        kind="Pod", namespace="default", name="p", uid=pod.uid, reason="Repeats", message="m"
    )
    failed_before = METRICS.k8s_events_failed._value.get()
    for _ in range(3):
        await cluster.notice(notice)
    events = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
    (event,) = [event for event in events if event["reason"] == "Repeats"]
    assert event["series"]["count"] == 3
    assert METRICS.k8s_events_failed._value.get() == failed_before


@pytest.mark.full
async def test_a_restart_of_the_api_server_is_survived(
    plane: ControlPlane, cluster: KubernetesCluster, api: Api
) -> None:
    """What changed around it is in the view afterwards, and the view is trusted again."""
    await api.create(a_node("before"))
    await eventually(lambda: _has(cluster, "before"))
    plane.apiserver.stop()
    plane.start_apiserver()
    async with plane.api() as fresh:  # the connections of the other one ended meanwhile
        await fresh.create(a_node("after"))
    await eventually(lambda: _has(cluster, "after"))
    await answer_of(cluster.synced())


@pytest.mark.full
async def test_a_frozen_api_server_is_doubted(
    plane: ControlPlane, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections stay open without answers: the view is not trusted for long."""
    monkeypatch.setattr("extender.cluster.api_server.kubernetes_cluster.SILENT_MS", 3000)

    async def doubted() -> str:
        return cluster.not_ready_reason()

    plane.apiserver.pause()
    try:
        assert "has not answered" in await eventually(doubted)
    finally:
        plane.apiserver.resume()
    await answer_of(cluster.synced())


async def _has(cluster: KubernetesCluster, node: str) -> bool:
    return NodeName(node) in cluster.view().nodes


async def test_the_end_of_the_log_is_published(cluster: KubernetesCluster, api: Api) -> None:
    """Created, replaced and read back with our rights; what another client has spoiled counts as nothing."""
    config_map = "/api/v1/namespaces/gang-extender/configmaps/gang-extender-log"
    await api.delete("/api/v1/namespaces/gang-extender/configmaps")
    assert await cluster.published() == ()
    anchors: tuple[Anchor, ...] = ()
    for position in (7, 3):
        chain = bytes([position]) * 32
        anchors += (Anchor(position=Position(position), epoch=Epoch(2), chain=chain),)
        await cluster.publish(anchors)
        assert await cluster.published() == anchors
    await api.patch(config_map, {"data": {"epoch": "none"}})
    assert await cluster.published() == ()
    await api.patch(config_map, {"data": None})
    assert await cluster.published() == ()
    await api.delete("/api/v1/namespaces/gang-extender/configmaps")


@pytest.mark.full
async def test_without_the_right_it_is_not_known_what_was_published(
    cluster: KubernetesCluster, plane: ControlPlane
) -> None:
    """An old rbac.yaml: unavailable, with the name of the file, and not "nothing was published"."""
    try:
        gone = plane.kubectl("delete", "-n", "gang-extender", "rolebinding", "gang-extender")
        assert gone.returncode == 0, gone.stderr

        async def refused() -> bool:
            try:
                await cluster.published()
            except ClusterUnavailable as error:
                return "configmaps" in str(error)
            return False

        await eventually(refused)
        with pytest.raises(ClusterUnavailable, match="configmaps"):
            await cluster.publish([Anchor(position=Position(1), epoch=Epoch(1), chain=bytes(32))])
    finally:
        plane.kubectl("apply", "--server-side", "-f", str(KUBERNETES / "rbac.yaml"))


@pytest.mark.full
async def test_full_objects_are_tried_and_never_made(
    plane: ControlPlane, api: Api, cluster: KubernetesCluster
) -> None:
    """Our rights suffice for the dry runs, and for nothing else there: an object that is meant is refused."""
    dry_runs = await cluster.dry_runs()
    assert [t.problem for t in dry_runs if t.kept is None] == []
    found = features_of(dry_runs, SchedulerGates({}), GATE["name"], None)
    gates = {(one.object.split()[-1], one.gate) for one in found.dropped_fields}
    assert ("PodGroup", "DRAWorkloadResourceClaims") in gates
    assert (("PodGroup", "TopologyAwareWorkloadScheduling") in gates) == (plane.minor == "1.36")
    assert "Pod" not in {kind for kind, _ in gates}
    pods = f"/api/v1/namespaces/{NAME}/pods"
    body = dict(next(t.sample.body for t in dry_runs if t.sample.plural == "pods"))
    async with plane.api("extender") as mine:

        async def refused() -> bool:  # the policy works a moment after it was applied
            try:
                await mine.post(pods, body)
            except ApiError as error:
                return "dry runs only" in str(error)
            await api.delete(f"{pods}/{NAME}", {"gracePeriodSeconds": 0})
            return False

        await eventually(refused)
    assert (await api.get(pods))["items"] == []
