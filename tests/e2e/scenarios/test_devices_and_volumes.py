"""Devices (DRA) and volumes: learned where the planner cannot see them, known in advance where it can.

kube-scheduler's own plugins refuse, kube-controller-manager makes claims of templates and binds
volumes. In every story kube-scheduler asks at most twice per member and plan, so nothing loops.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.objects import path_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.scenarios.conftest import Story, real
from tests.support.service.manifest_builders import a_gang, a_node, a_pod, an_object

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
GPU = {"nvidia.com/gpu": 8}
DRA, STORAGE, CORE = "resource.k8s.io/v1", "storage.k8s.io/v1", "v1"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
PODS = "/api/v1/namespaces/default/pods"
CALLS_PER_PLAN = 2  # of kube-scheduler, per member: at most
Object = dict[str, Any]


@pytest.fixture
def controllers(site: ControlPlane) -> Iterator[None]:
    """Claims are made of templates, and volumes bound; started here, in the main thread."""
    site.start_controller_manager(
        ("resourceclaim-controller", "persistentvolume-binder-controller")
    )
    yield
    site.stop_controller_manager()


@asynccontextmanager
async def things(story: Story, *made: Object) -> AsyncIterator[None]:
    """Have objects for as long as a story lasts; no controller here removes the finalizers of Kubernetes."""
    try:
        await story.create(*made)
        yield
    finally:
        await story.api.delete(PODS, {"gracePeriodSeconds": 0})
        claims = (await story.api.get(f"/apis/{DRA}/namespaces/default/resourceclaims"))["items"]
        paths = [path_of(thing, named=True) for thing in reversed(made)]
        paths += [
            path_of({**one, "apiVersion": DRA, "kind": "ResourceClaim"}, named=True)
            for one in claims
        ]
        for path in dict.fromkeys(paths):
            with contextlib.suppress(ApiError):
                await story.api.delete(path)
                await story.api.patch(path, {"metadata": {"finalizers": None}})


def nodes(count: int) -> list[Object]:
    return [a_node(f"n{i}", gpu=8) for i in range(count)]


# --- devices ------------------------------------------------------------------------------------------

DEVICE_CLASS = an_object("DeviceClass", "accelerator", DRA, "", spec={})


def device_of(node: str) -> Object:
    """Make what a DRA driver publishes for its node: one device."""
    spec = {
        "driver": "accelerators.example.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "accelerator-0"}],
    }
    return an_object("ResourceSlice", f"{node}-accelerators", DRA, "", spec=spec)


def device_template(name: str) -> Object:
    request = {"name": "one", "exactly": {"deviceClassName": "accelerator"}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    return an_object("ResourceClaimTemplate", name, DRA, spec=spec)


async def create_claiming(story: Story, name: str, pods: int) -> None:
    """Create a gang of which every pod gets a device by a claim of its own, made from a template."""
    group, *members = a_gang(name, pods=pods, requests=GPU)
    await story.create(group)
    for pod in members:
        made = copy.deepcopy(real(pod))
        made["spec"]["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "device"}]
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "device"}]
        await story.api.create(made)


# --- volumes ------------------------------------------------------------------------------------------

LOCAL = an_object(
    "StorageClass", "local", STORAGE, "",
    provisioner="kubernetes.io/no-provisioner", volumeBindingMode="WaitForFirstConsumer",
)  # fmt: skip


def volume(name: str, node: str = "", *, claim: str = "", **source: Any) -> Object:
    """Make a volume, on one node or anywhere; bound to a claim if one is named."""
    spec: Object = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "local",
        **(source or {"local": {"path": "/disk"}}),
    }
    if node:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    if claim:
        spec["claimRef"] = {"namespace": "default", "name": claim}
    return an_object("PersistentVolume", name, CORE, "", spec=spec)


def claim(name: str, *, bound_to: str = "") -> Object:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if bound_to:
        spec["volumeName"] = bound_to
    metadata = {"annotations": BOUND} if bound_to else {}
    return an_object("PersistentVolumeClaim", name, CORE, spec=spec, metadata=metadata)


def with_disk(pod: Object, name: str) -> Object:
    made = copy.deepcopy(pod)
    made["spec"]["volumes"] = [{"name": "disk", "persistentVolumeClaim": {"claimName": name}}]
    return made


def gang_with_disks(name: str, pods: int) -> list[Object]:
    """Make a gang whose n-th pod uses the claim `<gang>-<n>`."""
    group, *members = a_gang(name, pods=pods, requests=GPU)
    return [group, *(with_disk(pod, pod["metadata"]["name"]) for pod in members)]


# --- what must hold in every story ----------------------------------------------------------------------


def events_of(events: list[Object], kind: str) -> list[Object]:
    return [f["data"] for f in events if f["type"] == kind]


async def check_learning(story: Story, good: set[str], bound: dict[str, str]) -> list[Object]:
    """Check that only bad nodes were rejected, none twice for a pod, none proposed again, and no loop."""
    events = await story.check_events()
    rejections = [(v["pod"], v["node"]) for v in events_of(events, "NodeRejected")]
    assert rejections, "the story has no refusal"
    assert len(rejections) == len(set(rejections)), rejections
    assert not {node for _, node in rejections} & good, rejections
    learned: set[tuple[str, str]] = set()
    plans = 0
    for event in events:
        if event["type"] == "NodeRejected":
            learned.add((event["data"]["pod"], event["data"]["node"]))
        elif event["type"] in ("GangAdmitted", "GangExtended"):
            plans += 1
            proposed = {(a["pod"], a["node"]) for a in event["data"]["assignments"]}
            assert not proposed & learned, (event["position"], proposed & learned)
    asked = [line["pod"] for line in story.service.calls("filter")]
    if story.neighbours is None:  # with any, every pod that comes to a node wakes a refused member
        for name in bound:
            assert asked.count(f"default/{name}") <= CALLS_PER_PLAN * plans, (name, plans)
    return events


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_nodes_without_the_device_are_learned(controllers: None, story: Story) -> None:
    """DRA: two of eight nodes have a device, the planner sees none; the second plan goes to those two."""
    await story.create(*nodes(8))
    made = (DEVICE_CLASS, device_of("n6"), device_of("n7"), device_template("device"))
    async with things(story, *made):
        await create_claiming(story, "d", 2)
        bound = await story.until_bound(2, prefix="d-")
        assert set(bound.values()) == {"n6", "n7"}
        events = await check_learning(story, {"n6", "n7"}, bound)
        assert len(events_of(events, "GangAdmitted")) <= 3, "what was offered instead is tried next"


@pytest.mark.full
async def test_rejections_hold_over_a_crash_and_end_with_a_change(
    controllers: None, story: Story
) -> None:
    """One node of three has a device, two are needed: refused by name; kill -9; a device comes, bound."""
    await story.create(*nodes(3))
    made = (DEVICE_CLASS, device_of("n2"), device_template("device"))
    async with things(story, *made):
        await create_claiming(story, "d", 2)

        async def refused() -> bool:
            found = await story.service.events("GangUnschedulable")
            return (
                bool(found) and "kube-scheduler refused n0, n1" in found[-1]["data"]["reasons"][0]
            )

        await story.until(refused)
        refusal = (await story.service.events("GangUnschedulable"))[-1]["data"]
        assert refusal["outcome"] == "unknown"
        assert "the planner does not see: resource claim device" in refusal["reasons"][0]
        before = len(await story.service.events())
        story.service.kill()
        await story.service.start()

        # Ready means that a whole pass has decided about everything there is.
        since = (await story.service.events())[before:]
        assert {f["type"] for f in since} == {"LeaseAcquired"}, since
        async with things(story, device_of("n1")):
            await story.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"driver": "ready"}}})
            bound = await story.until_bound(2, prefix="d-")
            assert set(bound.values()) == {"n1", "n2"}
            later = events_of((await story.check_events())[before:], "GangAdmitted")
            assert later
            assert {a["node"] for event in later for a in event["assignments"]} == {"n1", "n2"}


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.lived_in("long")
async def test_nodes_without_a_volume_are_learned(controllers: None, story: Story) -> None:
    """WaitForFirstConsumer: disks on two of six nodes; learned, and the claims are bound there."""
    await story.create(*nodes(6))
    disks = [volume(f"disk-{n}", n) for n in ("n4", "n5")]
    claims = [claim(f"v-{n}") for n in range(2)]
    async with things(story, LOCAL, *disks, *claims):
        await story.create(*gang_with_disks("v", 2))
        bound = await story.until_bound(2, prefix="v-")
        assert set(bound.values()) == {"n4", "n5"}
        await check_learning(story, {"n4", "n5"}, bound)
        for name, node in bound.items():
            path = f"/api/v1/namespaces/default/persistentvolumeclaims/{name}"
            assert (await story.api.get(path))["spec"]["volumeName"] == f"disk-{node}"


@pytest.mark.lived_in("long")
async def test_a_bound_volume_is_seen(story: Story) -> None:
    """The node of a bound volume is the only one ever proposed: one plan, no refusal, no rejection."""
    await story.create(*nodes(6))
    where = {"b-0": "n5", "b-1": "n2"}
    disks = [volume(f"disk-{node}", node, claim=name) for name, node in where.items()]
    claims = [claim(name, bound_to=f"disk-{node}") for name, node in where.items()]
    async with things(story, LOCAL, *disks, *claims):
        await story.create(*gang_with_disks("b", 2))
        assert await story.until_bound(2, prefix="b-") == where
        events = await story.check_events()
        assert len(events_of(events, "GangAdmitted")) == 1
        assert not events_of(events, "NodeRejected")
        assert {line["outcome"] for line in story.service.calls("filter")} == {"redeemed"}


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_a_full_csi_node_is_learned(story: Story) -> None:
    """n0 attaches one volume of the driver and has it: the planner cannot know, kube-scheduler does."""
    names = ["resident", "c-0", "c-1"]
    disks = [
        volume(f"csi-{name}", claim=name, csi={"driver": "csi.example.com", "volumeHandle": name})
        for name in names
    ]
    claims = [claim(name, bound_to=f"csi-{name}") for name in names]
    await story.create(*nodes(3))
    limits = [
        an_object(
            "CSINode", f"n{i}", STORAGE, "",
            spec={"drivers": [{"name": "csi.example.com", "nodeID": f"n{i}", "allocatable": {"count": 1}}]},
        )
        for i in range(3)
    ]  # fmt: skip
    async with things(story, LOCAL, *limits, *disks, *claims):
        await story.create(with_disk(a_pod("resident", node="n0"), "resident"))
        await story.create(*gang_with_disks("c", 2))
        bound = await story.until_bound(2, prefix="c-")
        assert set(bound.values()) == {"n1", "n2"}
        events = await check_learning(story, {"n1", "n2"}, bound)
        assert not any(v["by_shape"] for v in events_of(events, "NodeRejected")), (
            "volumes are a pod's own"
        )


@pytest.mark.full
@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_gang_waits_for_its_resource_claims_without_holding_nodes(
    controllers: None, story: Story
) -> None:
    """kube-scheduler does not try such pods, and writes nothing; another gang gets the nodes, then the template comes."""
    await story.create(*nodes(2))
    async with things(story, DEVICE_CLASS, device_of("n0"), device_of("n1")):
        await create_claiming(story, "d", 2)

        async def waits() -> bool:
            refusals = await story.service.events("GangUnschedulable")
            text = (
                'spec.resourceClaims "device" of pod d-0 has no ResourceClaim yet: '
                "create ResourceClaimTemplate default/device"
            )
            return any(text in f["data"]["reasons"][0] for f in refusals)

        await story.until(waits)
        await story.create(*a_gang("other", pods=2, requests=GPU))
        for name in await story.until_bound(2, prefix="other-"):
            await story.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        events = await story.service.events("GangAdmitted")
        assert not [f for f in events if f["gang"] == "default/d"]
        async with things(story, device_template("device")):
            bound = await story.until_bound(2, prefix="d-")
            assert set(bound.values()) == {"n0", "n1"}
            await story.check_events()


@pytest.mark.kubernetes("1.37", full=["1.36"])
async def test_a_gang_waits_for_its_claims_without_holding_nodes(story: Story) -> None:
    """kube-scheduler refuses a pod without its claim on every node, and asks no extender; so another gang gets the nodes.

    Then the claims come, and the gang is bound.
    """
    await story.create(*nodes(2))
    disks = [volume(f"disk-{n}", f"n{n}", claim=f"w-{n}") for n in range(2)]
    claims = [claim(f"w-{n}", bound_to=f"disk-{n}") for n in range(2)]
    async with things(story, LOCAL, *disks):
        await story.create(with_disk(a_pod("lone"), "absent"), *gang_with_disks("w", 2))

        async def refused() -> bool:
            conditions = (await story.api.get(f"{PODS}/lone"))["status"].get("conditions", [])
            return any(
                'persistentvolumeclaim "absent" not found' in c["message"] for c in conditions
            )

        async def waits() -> bool:
            refusals = await story.service.events("GangUnschedulable")
            text = "PersistentVolumeClaim default/w-0 of pod w-0 does not exist: create it"
            return any(text in f["data"]["reasons"][0] for f in refusals)

        await story.until(refused)
        await story.until(waits)
        assert not [f for f in story.service.calls("filter") if f["pod"] == "default/lone"]
        await story.create(*a_gang("other", pods=2, requests=GPU))
        bound = await story.until_bound(2, prefix="other-")
        assert set(bound.values()) == {"n0", "n1"}
        assert not [
            f for f in await story.service.events("GangAdmitted") if f["gang"] == "default/w"
        ]
        for name in bound:
            await story.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        await story.create(*claims)
        assert await story.until_bound(2, prefix="w-") == {"w-0": "n0", "w-1": "n1"}
        await story.check_events()
