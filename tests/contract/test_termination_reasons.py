"""What became of a pod that is not in the view any more: the same from files and from an API server."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import msgspec
import pytest

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.connection.api_client import ApiServer
from extender.cluster.manifests.served.manifest_cluster import ManifestCluster
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import PodUid
from extender.core.model.pods import PodEnd
from extender.ports.cluster_ports import PodRef
from extender.runtime.system_clock import SystemClock
from tests.integration.cluster.fake_api import FakeApi, Fault
from tests.support.service.manifest_builders import a_node, a_pod
from tests.support.waiting import eventually

POD = PodRef(namespace="default", name="p", uid=PodUid("uid-p"))
DISRUPTION_TARGET = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no such device"}


def the_pod(**status):
    return a_pod(
        "p", "g", node="n", metadata={"uid": POD.uid}, status={"phase": "Running", **status}
    )


class Files:
    """Manifests; read again when they change."""

    def __init__(self, folder):
        self.path = folder / "cluster.yaml"
        self.put(the_pod())
        self.cluster = ManifestCluster([str(self.path)], folder, clock=SystemClock(), poll_s=0.02)

    @asynccontextmanager
    async def running(self):
        await self.cluster.start()
        yield
        await self.cluster.stop()

    def put(self, pod):
        things = [a_node("n"), *([pod] if pod else [])]
        new = self.path.with_suffix(".new")
        new.write_bytes(b"\n---\n".join(msgspec.json.encode(thing) for thing in things))
        new.replace(self.path)


class Server:
    """An API server and the adapter on it."""

    def __init__(self, _):
        self.api = FakeApi()

    @asynccontextmanager
    async def running(self):
        async with self.api:
            self.put(the_pod())
            server = ApiServer(self.api.configuration(), chance=random.Random(7))
            self.cluster = KubernetesCluster(server, clock=SystemClock(), instance="test")
            await self.cluster.start()
            yield
            await self.cluster.stop()

    def put(self, pod):
        if pod:
            self.api.put("pods", pod)
        else:
            self.api.remove("pods", "p", "default")


@pytest.fixture(params=[Files, Server], ids=["files", "API server"])
async def place(request, tmp_path):
    made = request.param(tmp_path)
    async with made.running():
        await gone_from_view(made, False)
        yield made


async def gone_from_view(place, gone=True):
    await eventually(lambda: (POD.uid not in place.cluster.view().pods) is gone)


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        (None, PodEnd("deleted")),
        (
            the_pod(**REFUSED),
            PodEnd("rejected-by-kubelet", "UnexpectedAdmissionError: no such device", "n"),
        ),
        (the_pod(phase="Succeeded"), PodEnd("ended", "Succeeded", "n")),
        (
            the_pod(phase="Failed", conditions=[DISRUPTION_TARGET]),
            PodEnd("node-lost", "DeletionByPodGC", "n"),
        ),
    ],
    ids=["deleted", "refused", "succeeded", "collected"],
)
async def test_how_a_pod_ended(place, pod, end):
    """Also when it ended while it was not looked at: an API server keeps what has ended."""
    place.put(pod)
    await gone_from_view(place)
    assert await place.cluster.ending(POD) == end


async def test_a_pod_that_lives_has_no_end(place):
    assert await place.cluster.ending(POD) is None


async def test_the_name_was_used_again(place):
    """The pod with the UID in question is gone when another pod has its name now."""
    again = the_pod()
    again["metadata"]["uid"] = "another"
    place.put(again)
    await gone_from_view(place)
    assert await place.cluster.ending(POD) == PodEnd("deleted")


async def test_an_api_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("extender.cluster.connection.api_client.PAUSE_FIRST_S", 0.005)
    place = Server(tmp_path)
    async with place.running():
        place.api.faults.append(Fault(lambda r: r.path.endswith("/p"), status=503, times=9))
        with pytest.raises(ClusterUnavailable):
            await place.cluster.ending(POD)
