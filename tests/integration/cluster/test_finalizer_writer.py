"""A deleted group goes by the API server when nothing needs it: what is watched, decided, and written."""

from __future__ import annotations

import pytest

from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.control.actuators import finalizer_controller
from extender.control.actuators.finalizer_controller import FinalizerController
from extender.core.model.pod_groups import leaf_key
from extender.core.reconcile.finalizer_rules import FINALIZER
from tests.integration.cluster.fake_api import FakeApi, a_pod, a_pod_group
from tests.support.service.fakes import GATED, Stage
from tests.support.waiting import eventually

LABELS = {"gang-extender.dev/pod-group": "g"}
DELETED = "2026-01-01T00:00:00Z"


def a_member(name: str, **spec: object) -> dict:
    pod = a_pod(name, **spec)
    pod["metadata"]["labels"] = LABELS
    return pod


async def test_a_deleted_group_goes_when_its_last_bound_pod_has_ended(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods that were never bound do not keep it, and wait for a group of that name."""
    monkeypatch.setattr(finalizer_controller, "SETTLE_S", 0.001)
    monkeypatch.setattr(finalizer_controller, "TICK_S", 0.01)
    fake.groups["gang-extender.dev/v1alpha1"] = ["podgroups"]
    fake.put("pods", a_member("runs", nodeName="n1"))
    fake.put("pods", a_member("waits", schedulingGates=GATED))
    fake.put("podgroups", a_pod_group("g"))
    await cluster.start()
    await cluster.synced()
    async with await Stage().lead() as stage:
        stage.start(FinalizerController(cluster, stage.leader, stage.clock).run())
        group = fake.objects["podgroups"]["default", "g"]
        await eventually(lambda: group["metadata"].get("finalizers") == [FINALIZER])
        group["metadata"]["deletionTimestamp"] = DELETED
        fake.put("podgroups", group)
        key = leaf_key("default", "g")
        await eventually(lambda: cluster.view().guards[key].deleting)
        terminating = fake.objects["pods"]["default", "runs"]
        terminating["metadata"]["deletionTimestamp"] = DELETED
        fake.put("pods", terminating)
        await eventually(lambda: any(pod.deleting for pod in cluster.view().pods.values()))
        patches = fake.count("PATCH", "podgroups/g")
        assert ("default", "g") in fake.objects["podgroups"]
        assert patches == 1, "the finalizer was set, and is still on"
        fake.remove("pods", "runs", "default")
        await eventually(lambda: ("default", "g") not in fake.objects["podgroups"])
        await eventually(lambda: key not in cluster.view().groups)
        assert [pod.name for pod in cluster.view().members[key].values()] == ["waits"]
