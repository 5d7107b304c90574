"""kube-scheduler in virtual time: what makes it try a pod again that no node has taken."""

from __future__ import annotations

import asyncio

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import Role, entries_in, with_metadata
from extender.cluster.manifests.yaml_reader import Document
from extender.core.verbs.filter_and_prioritize import FilterDecision
from extender.ports.cluster_ports import PodRef
from extender.simulation.kube_scheduler import KubeScheduler
from extender.simulation.simulated_cluster import SimulatedCluster
from extender.simulation.virtual_time import SimulationLoop, VirtualClock
from tests.support.service.manifest_builders import a_node, a_pod

SWEPT_S = 300.0
GPU_OF = {"cpu": "1", "nvidia.com/gpu": 1}


class AnyNode:
    """An extender that refuses nothing."""

    def filter(self, _, offered):
        return FilterDecision(outcome="passed", passed=tuple(offered))


def stored(cluster, body, uid) -> api.Readable:
    (entry,) = entries_in([Document(where="test", value=body)], Role.CLUSTER)
    created = with_metadata(entry.obj, uid=uid, creation_timestamp=cluster.now())
    cluster.put(created)
    return created


def test_a_nomination_that_goes_lets_pods_be_tried_again():
    """As after the deletion of an assigned pod; without it the pod waits for the sweep after 300 s."""
    loop = SimulationLoop()
    cluster = SimulatedCluster(VirtualClock(loop, 0, 1), 1)

    async def run() -> float:
        stored(cluster, a_node("n0", {}, gpu=1), "node-0")
        stored(
            cluster,
            a_pod("gated", requests=GPU_OF, schedulingGates=[{"name": "example.com/hold"}]),
            "gated",
        )
        stored(cluster, a_pod("waits", requests=GPU_OF), "waits")
        ref = PodRef(namespace="default", name="gated", uid="gated")
        await cluster.nominate(ref, "n0")
        task = asyncio.create_task(KubeScheduler(cluster, AnyNode(), 1).run())
        await loop.rest_until(20.0)  # tried in vain, and past its back-off
        assert cluster.pod("waits").node is None
        await cluster.nominate(ref, None)
        while cluster.pod("waits").node is None:
            await cluster.changed(cluster.view().revision)
        task.cancel()
        return loop.time()

    assert loop.run_until_complete(asyncio.wait_for(run(), 10 * SWEPT_S)) < SWEPT_S
    loop.close()
