"""A service that only makes the calls that each member needs: no planning, no barrier, no log, no refusals.

It watches the cluster and writes to it with the code of the product, and answers filter and bind with as little as
HTTP/1.1 needs. So it shows what the calls cost in Python before anything is decided; `quick` measures it beside the product.
Settings: GANG_EXTENDER_LISTEN (HOST:PORT) and KUBECONFIG.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import cast

import uvloop

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.control.actuators.nominator import NODES_ALL_OFFERED
from extender.core.decisions.admit.plan_request import GATE
from extender.core.model.cluster_view import ClusterView, changed_pods
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pods import Pod
from extender.http.scheduler.wire import (
    ExtenderBindingResult,
    ExtenderFilterResult,
    decode_args,
    decode_binding,
    encode,
    uid_of,
)
from extender.ports.cluster_ports import Binding, PodRef
from extender.runtime.system_clock import SystemClock
from tests.bench.stand_in import Exchange

PLAN = "01a21a17-e4c6-7eb5-8415-77e21516c684"  # an annotation of each bound member
WRITERS = 24  # as many calls to the API server at once as the service has


class Calls:
    """Gives each gated pod the next node, removes its gate, and binds it when kube-scheduler asks for that."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._nodes: dict[PodUid, NodeName] = {}
        self._numbers = itertools.count()
        self._gated: asyncio.Queue[Pod] = asyncio.Queue()

    async def run(self) -> None:
        """Follow the view until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write())
            before = ClusterView()
            while True:
                await self._cluster.changed(before.revision)
                view = self._cluster.view()
                names = sorted(view.nodes)
                for uid in changed_pods(before, view):
                    pod = view.pods.get(uid)
                    if pod is not None and GATE in pod.gates and uid not in self._nodes:
                        self._nodes[uid] = names[next(self._numbers) % len(names)]
                        self._gated.put_nowait(pod)
                before = view

    async def _write(self) -> None:
        while True:
            pod = await self._gated.get()
            ref = PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid)
            if len(self._cluster.view().nodes) > NODES_ALL_OFFERED:
                await self._cluster.nominate(ref, self._nodes[pod.uid])
            await self._cluster.remove_gate(ref)

    def filter(self, body: bytes) -> bytes:
        """Answer with the node of the pod."""
        node = self._nodes[uid_of(decode_args(body).pod)]
        return encode(ExtenderFilterResult(node_names=[node]))

    async def bind(self, body: bytes) -> bytes:
        """Post the Binding."""
        asked = decode_binding(body)
        pod = PodRef(namespace=asked.pod_namespace, name=asked.pod_name, uid=asked.pod_uid)
        await self._cluster.bind(Binding(pod=pod, node=asked.node, plan=PlanId(PLAN)))
        return encode(ExtenderBindingResult(error=""))


class _Connection(Exchange):
    """One connection of kube-scheduler, or of a probe."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls
        self._binding: asyncio.Task[None] | None = None

    def received(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /scheduler/filter "):
            self._send(self._calls.filter(body))
        elif head.startswith(b"POST /scheduler/bind "):
            self._binding = asyncio.create_task(self._bind(body))
        else:
            assert head.startswith(b"GET /readyz "), head
            self._send(b"{}")

    async def _bind(self, body: bytes) -> None:
        self._send(await self._calls.bind(body))

    def _send(self, body: bytes) -> None:
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )


async def main() -> None:
    """Serve until the process is ended."""
    cluster = await KubernetesCluster.connect(os.environ["KUBECONFIG"], clock=SystemClock())
    await cluster.start()
    await cluster.synced()
    calls = Calls(cluster)
    host, _, port = os.environ["GANG_EXTENDER_LISTEN"].rpartition(":")
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: cast(asyncio.Protocol, _Connection(calls)), host, int(port))
    await calls.run()


if __name__ == "__main__":
    uvloop.run(main())
