"""Which versions of the built-in kinds are read, by what an API server serves; the shapes of each version decode alike."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from extender.cluster import types as api
from extender.cluster.api_server import api_discovery, kubernetes_cluster
from extender.cluster.api_server.api_discovery import dry_runs
from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.connection.api_client import ApiServer
from extender.cluster.read.object_decoding import blueprints_of, convert
from extender.core.admit.native_gang_scheduling import has_its_condition_written
from extender.core.log.control_plane_features import (
    NOT_CONFIGURED,
    PriorityOf,
    SchedulerGates,
    features_of,
)
from extender.core.model.pod_groups import Group, composite_key, leaf_key
from extender.ports.cluster_ports import Condition
from tests.integration.cluster.fake_api import FakeApi, Object
from tests.support.waiting import eventually

GOLDEN = Path(__file__).parents[2] / "golden" / "builtin_groups"
LEAVES, WORKLOADS, COMPOSITES = "podgroups", "workloads", "compositepodgroups"
CLASSES = "priorityclasses"
OLD, NEW = leaf_key("default", "serve"), leaf_key("default", "train-0")
ROOT = composite_key("default", "train")
# What the API servers of a cluster serve of scheduling.k8s.io, and the versions that are read of leaves and composites.
SERVED: dict[str, tuple[dict[str, list[str]], str, str]] = {
    "1.36 stock": ({"v1": [CLASSES]}, "", ""),
    "1.36 v1alpha2": ({"v1": [CLASSES], "v1alpha2": [LEAVES, WORKLOADS]}, "v1alpha2", ""),
    "1.37 stock": ({"v1": [CLASSES]}, "", ""),
    "1.37 v1beta1": ({"v1": [CLASSES], "v1beta1": [LEAVES, WORKLOADS]}, "v1beta1", ""),
    "1.37 v1alpha3": (
        {"v1": [CLASSES], "v1alpha3": [LEAVES, COMPOSITES, WORKLOADS]},
        "v1alpha3",
        "v1alpha3",
    ),
    "1.37 all": (
        {
            "v1": [CLASSES],
            "v1beta1": [LEAVES, WORKLOADS],
            "v1alpha3": [LEAVES, COMPOSITES, WORKLOADS],
        },
        "v1beta1",
        "v1alpha3",
    ),
    "1.38 stock": ({"v1": [CLASSES]}, "", ""),
    "1.38 v1beta1": (
        {"v1": [CLASSES], "v1beta1": [LEAVES, COMPOSITES, WORKLOADS]},
        "v1beta1",
        "v1beta1",
    ),
    "1.38 all": (
        {
            "v1": [CLASSES],
            "v1beta1": [LEAVES, COMPOSITES, WORKLOADS],
            "v1alpha3": [LEAVES, COMPOSITES, WORKLOADS],
        },
        "v1beta1",
        "v1beta1",
    ),
    "later, leaves in v1": (
        {"v1": [CLASSES, LEAVES, WORKLOADS], "v1beta1": [LEAVES, COMPOSITES, WORKLOADS]},
        "v1",
        "v1beta1",
    ),
    "later, composites in v1": (
        {"v1": [CLASSES, LEAVES, WORKLOADS, COMPOSITES], "v1beta1": [LEAVES, COMPOSITES]},
        "v1",
        "v1",
    ),
}


def serve(fake: FakeApi, cluster: str) -> None:
    """Let the fake API server serve what a cluster serves, subresources included."""
    for version in [one for one in fake.groups if one.startswith("scheduling.k8s.io/")]:
        del fake.groups[version]
    for version, plurals in SERVED[cluster][0].items():
        names = [*plurals, *(f"{one}/status" for one in plurals if one != CLASSES)]
        fake.groups[f"scheduling.k8s.io/{version}"] = names


def recorded(plural: str, version: str) -> list[Object]:
    """Return the objects of a recorded list, with the kind and version that the list has."""
    page = json.loads((GOLDEN / f"{plural}.{version}.json").read_text())
    kind = page["kind"].removesuffix("List")
    return [{"apiVersion": page["apiVersion"], "kind": kind, **one} for one in page["items"]]


def store(fake: FakeApi, version: str, composites: str = "") -> None:
    """Put the recorded groups into the fake API server."""
    for one in recorded(LEAVES, version):
        fake.put(LEAVES, one)
    for one in recorded(COMPOSITES, composites) if composites else ():
        fake.put(COMPOSITES, one)


def seen(group: Group) -> dict[str, Any]:
    """Return what a version must not change."""
    return {
        "basic": group.basic,
        "minimum": group.minimum,
        "topology": group.constraints.topology,
        "mode": group.disruption_mode,
        "priority": (group.priority, group.priority_class),
        "workload": (group.workload, group.template),
        "conditions": [one[1:] for one in group.conditions],
        "source": group.source,
        "lost": group.lost,
        "warnings": group.warnings,
    }


@pytest.mark.parametrize("name", SERVED)
async def test_each_kind_is_read_in_its_newest_version(fake: FakeApi, name: str) -> None:
    """Every set of versions that a cluster may serve; a kind that is in no known version is not read."""
    serve(fake, name)
    _, leaves, composites = SERVED[name]
    async with ApiServer(fake.configuration()) as server:
        found = await api_discovery.discover(server)
    expected = {(LEAVES, leaves), (COMPOSITES, composites)}
    assert {
        (one.name, one.api_version.removeprefix("scheduling.k8s.io/"))
        for one in found
        if one not in api_discovery.ALWAYS
    } == {one for one in expected if one[1]}


async def test_claims_of_devices_are_read_where_they_are_served(fake: FakeApi) -> None:
    """Before the pods that use them; a kube-apiserver without the group is no reason to wait."""
    fake.put("resourceclaims", {"metadata": {"name": "gpus", "namespace": "default"}})
    async with ApiServer(fake.configuration()) as server:
        assert await api_discovery.discover(server) == api_discovery.ALWAYS
        fake.groups[api_discovery.CLAIMS.api_version] = [api_discovery.CLAIMS.name]
        assert (await api_discovery.discover(server))[0] == api_discovery.CLAIMS


@pytest.mark.parametrize("name", SERVED)
async def test_dry_runs_try_what_is_served(fake: FakeApi, name: str) -> None:
    """Every served version of each kind is tried; the newest Kubernetes has group scheduling on unless a gate switches it off."""
    serve(fake, name)
    served, leaves, _ = SERVED[name]
    async with ApiServer(fake.configuration()) as server:
        answers = await dry_runs(server, lambda: PriorityOf("prod", "Never"))
    kinds = {LEAVES: "PodGroup", WORKLOADS: "Workload", COMPOSITES: "CompositePodGroup"}
    expected = {
        f"scheduling.k8s.io/{version} {kinds[one]}"
        for version, plurals in served.items()
        for one in plurals
        if one in kinds
    }
    unread = features_of(answers, SchedulerGates(None, NOT_CONFIGURED), "gate", None)
    assert set(unread.served) == expected
    assert (unread.dropped_fields, unread.untested) == ((), ())
    assert unread.native_group_scheduling == ("on" if leaves == "v1" else "unknown")
    off = features_of(answers, SchedulerGates({"GenericWorkload": False}), "gate", None)
    assert off.native_group_scheduling == "off"


@pytest.mark.parametrize("name", [one for one, (_, leaves, _) in SERVED.items() if leaves])
async def test_groups_are_read_and_written_in_the_version_that_was_read(
    fake: FakeApi, cluster: KubernetesCluster, name: str
) -> None:
    """The same recorded groups give the same values in every version, and a status goes where the group came from."""
    serve(fake, name)
    _, leaves, composites = SERVED[name]
    stored = "v1beta1" if composites == "v1" else composites
    store(fake, leaves, stored)
    await cluster.start()
    await cluster.synced()
    groups = cluster.view().groups
    assert set(groups.keys()) == {OLD, NEW} | ({ROOT} if composites else set())
    assert seen(groups[OLD]) | {"conditions": []} == {
        "basic": True,
        "minimum": 1,
        "topology": (),
        "mode": "single",
        "priority": (0, ""),
        "workload": (None, None),
        "conditions": [],
        "source": "builtin",
        "lost": (),
        "warnings": (),
    }
    train = seen(groups[NEW])
    assert train["conditions"] == [("False", "Unschedulable", "0/2 nodes fit")]
    assert train | {"conditions": []} == seen(groups[OLD]) | {
        "basic": False,
        "minimum": 4,
        "topology": ("topology.kubernetes.io/rack",),
        "mode": "all",
        "priority": (1000, "prod"),
        "workload": ("train", "leaf"),
        "conditions": [],
    }
    for key, version in ((NEW, leaves), (ROOT, composites)):
        if not version:
            continue
        group = groups[key]
        assert group.api_version == f"scheduling.k8s.io/{version}"
        condition = Condition(type="PlacementExplained", status="False", reason="R", message="m")
        await cluster.set_conditions(key, group.uid, [condition])
        written = fake.bodies[-1][0]
        assert written.startswith(f"/apis/scheduling.k8s.io/{version}/namespaces/default/")
        assert written.endswith(f"/{key.name}/status")
    if composites:  # which it writes itself since it has them in v1beta1
        assert has_its_condition_written(groups[ROOT]) == (composites != "v1alpha3")
    assert has_its_condition_written(groups[NEW])


async def test_an_upgrade_of_the_api_server_is_never_taken_for_deleted_groups(
    fake: FakeApi, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1.37 to a later version both kinds change their version at once: a view without the groups never counts as ready."""
    monkeypatch.setattr(kubernetes_cluster, "DISCOVER_EVERY_S", 3600.0)
    monkeypatch.setattr(kubernetes_cluster, "DISCOVER_MISSING_S", 3600.0)
    serve(fake, "1.37 all")
    store(fake, "v1beta1", "v1alpha3")
    await cluster.start()
    await cluster.synced()
    await eventually(lambda: fake.watching(LEAVES) and fake.watching(COMPOSITES))
    everything = {OLD, NEW, ROOT}
    assert set(cluster.view().groups.keys()) == everything
    wrong = []

    async def watch() -> None:
        """Look at every change of the view, as the control loop does."""
        while True:
            revision = cluster.view().revision
            if not cluster.not_ready_reason() and set(cluster.view().groups.keys()) != everything:
                wrong.append(revision)
            await cluster.changed(revision)

    looking = asyncio.create_task(watch())
    serve(fake, "later, leaves in v1")
    cluster._informers._rediscover.wake()
    versions = {NEW: "scheduling.k8s.io/v1", ROOT: "scheduling.k8s.io/v1beta1"}

    def upgraded() -> bool:
        groups = cluster.view().groups
        return all(key in groups and groups[key].api_version == v for key, v in versions.items())

    await eventually(upgraded)
    await cluster.synced()
    looking.cancel()
    assert wrong == []
    assert set(cluster.view().groups.keys()) == everything


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_a_workload_of_every_version_gives_the_same_templates(version: str) -> None:
    (thing,) = recorded(WORKLOADS, version)
    lines = blueprints_of(convert(api.Workload, thing))
    assert [(line.name, line.kind, line.parent) for line in lines] == [
        ("root", "CompositePodGroup", ""),
        ("leaf", "PodGroup", "root"),
    ]
