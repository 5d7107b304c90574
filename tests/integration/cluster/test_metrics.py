"""What the adapter could not read or write is on /metrics, counted by the real adapter on a misbehaving API server."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.http.web.health import Probes
from extender.ports.cluster_ports import K8sEvent
from tests.integration.cluster.fake_api import FakeApi, Fault, a_node, a_pod
from tests.support.service.fakes import Stage
from tests.support.waiting import eventually


async def scraped(cluster: KubernetesCluster) -> dict[tuple[str, str], float]:
    """Return the counters of the adapter as Prometheus reads them: by name and resource."""
    async with Stage(cluster=cluster) as stage:
        app = web.Application()
        app.add_routes(Probes(stage.extender_service, stage.leader).api_routes())
        async with TestClient(TestServer(app)) as client, client.get("/metrics") as reply:
            assert reply.status == 200
            text = await reply.text()
    return {
        (
            sample.name.removeprefix("gang_extender_"),
            sample.labels.get("resource", ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def a_notice(message: str, uid: str = "uid-pods-p") -> K8sEvent:
    return K8sEvent(
        kind="Pod", namespace="default", name="p", uid=uid, reason="FailedScheduling",
        message=message, warning=True,
    )  # fmt: skip


async def test_objects_that_cannot_be_read_are_counted_by_resource(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """In a list, in a watch, and by a value that no API server should have let in; each once, by resource."""
    listed = a_node("n0")
    listed["status"]["allocatable"]["cpu"] = {"not": "a quantity"}
    fake.put("nodes", listed)
    await cluster.start()
    await cluster.synced()
    await eventually(lambda: fake.watching("nodes") and fake.watching("pods"))
    before = await scraped(cluster)
    assert before["objects_unreadable_total", "nodes"] == 1
    watched = a_node("n1")
    watched["status"]["allocatable"]["cpu"] = {"not": "a quantity"}
    fake.put("nodes", watched)
    strange = a_pod("strange")
    strange["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "many"}}
    fake.put("pods", strange)
    fake.put("pods", a_pod("p"))
    fake.put("nodes", a_node("n2"))
    await eventually(
        lambda: set(cluster.view().nodes.keys()) == {"n2"} and len(cluster.view().pods) == 1
    )
    after = await scraped(cluster)
    assert after["objects_unreadable_total", "nodes"] == 2
    assert after["objects_unreadable_total", "pods"] == 1
    assert after["informer_lists_total", "nodes"] == 1


async def test_events_that_are_not_written_are_counted(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """Those that the API server refused, and apart from them those over the limits."""
    await cluster.start()
    await cluster.synced()
    assert (await scraped(cluster))["k8s_events_failed_total", ""] == 0
    fake.faults.append(
        Fault(lambda r: r.method == "POST" and r.path.endswith("/events"), status=500, times=2)
    )
    for number in range(4):
        await cluster.notice(a_notice(f"text {number}"))
    found = await scraped(cluster)
    assert found["k8s_events_failed_total", ""] == 2
    assert found["k8s_events_dropped_total", ""] == 0
    for number in range(20):
        await cluster.notice(a_notice(f"more {number}"))
    assert (await scraped(cluster))["k8s_events_dropped_total", ""] == 14  # ten of one object
