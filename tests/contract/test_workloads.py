"""What every `Workloads` promises: here the fake; tests/e2e/trees/test_workload_port.py has the real one, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol
from uuid import uuid4

import msgspec
import pytest

from extender.cluster.read.object_decoding import convert, profile_of
from extender.cluster.types import TreeProfile
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.workload_object import MANAGED_BY
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import GroupManifest, Workloads
from tests.controlplane.waiting import eventually
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import FakeCluster

Object = dict[str, Any]
TREE = "gang-extender.dev/tree"
OURS = "gang-extender.dev/v1alpha1"
RACK = "net/rack"


class Place(Protocol):
    """A cluster, the port on it, and hands that are not the port's."""

    workloads: Workloads
    cluster: Cluster

    async def put(self, workload: Object) -> str:
        """Create or change a Job; return its UID."""
        ...

    async def remove(self, workload: Object) -> None:
        """Delete a Job."""
        ...

    async def put_profile(self, profile: Object) -> None:
        """Create a TreeProfile."""
        ...

    async def put_group(self, group: Object) -> None:
        """Create a group as another client."""
        ...


class Memory:
    """The fake."""

    def __init__(self) -> None:
        self.cluster: Any = FakeCluster()
        self.workloads: Any = FakeWorkloads(self.cluster)
        self._uids: dict[str, str] = {}

    async def put(self, workload: Object) -> str:
        uid = self._uids.setdefault(workload["metadata"]["name"], str(uuid4()))
        self.workloads.put({**workload, "metadata": {**workload["metadata"], "uid": uid}})
        return uid

    async def remove(self, workload: Object) -> None:
        uid = self._uids.pop(workload["metadata"]["name"])
        self.workloads.remove({"metadata": {"uid": uid}})

    async def put_profile(self, profile: Object) -> None:
        self.workloads.put_profile(profile_of(convert(TreeProfile, profile)))

    async def put_group(self, group: Object) -> None:
        self.cluster.add(group)


@pytest.fixture
async def place() -> Place:
    return Memory()


def a_job(name: str, *, labelled: bool = True, **metadata: Any) -> Object:
    container = {"name": "main", "image": "registry.invalid/none"}
    labels = {TREE: "default"} if labelled else {"app": "x"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": labels, **metadata},
        "spec": {
            "suspend": True,  # no pods are made
            "parallelism": 2,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def a_manifest(name: str = "leaf", owner: str = "u1", **fields: Any) -> GroupManifest:
    spec: dict[str, Any] = {
        "kind": "PodGroup", "parent": "root", "minimum": 4, "topology": RACK,
        "disruption_mode": "all",
    }  # fmt: skip
    return GroupManifest(
        namespace="default", spec=GroupSpec(name=name, **spec | fields), template_of="root",
        profile="default", owner_api_version="batch/v1", owner_kind="Job", owner_name="fit",
        owner_uid=owner,
    )  # fmt: skip


def with_minimum(group: GroupManifest, minimum: int) -> GroupManifest:
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, minimum=minimum))


async def until_known(place: Place, *names: str) -> None:
    """Wait until the view has exactly these workloads."""

    async def same() -> bool:
        return {one.name for one in place.workloads.view().objects.values()} == set(names)

    await eventually(same, every_s=0.01)


async def until_seen(place: Place, key: GroupKey, **fields: object) -> Group:
    """Wait until the cluster shows a group with these fields."""

    async def look() -> Group | None:
        group = place.cluster.view().groups.get(key)
        same = group is not None and all(getattr(group, k) == v for k, v in fields.items())
        return group if same else None

    found: Group = await eventually(look, every_s=0.01)
    return found


async def until_gone(place: Place, key: GroupKey) -> None:
    async def gone() -> bool:
        return key not in place.cluster.view().groups

    await eventually(gone, every_s=0.01)


async def owned_leaf(place: Place, **fields: Any) -> tuple[GroupManifest, Group]:
    """Create a Job and a leaf of it through the port; return the manifest and the group as it is seen."""
    owner = await place.put(a_job("fit"))
    wanted = a_manifest(owner=owner, **fields)
    await place.workloads.create_group(wanted)
    return wanted, await until_seen(place, wanted.key)


async def test_what_has_the_label_is_in_the_view(place: Place) -> None:
    """With its UID and its fields; it changes and goes with the object, and another Job is not there."""
    await place.put(a_job("other", labelled=False))
    uid = await place.put(a_job("fit"))
    await until_known(place, "fit")
    (found,) = place.workloads.view().objects.values()
    assert (found.kind, found.api_version, found.uid) == ("Job", "batch/v1", uid)
    assert (found.namespace, found.spec["parallelism"], found.requested) == ("default", 2, True)
    changed = a_job("fit")
    changed["spec"]["parallelism"] = 3
    await place.put(changed)

    async def seen() -> bool:
        return place.workloads.view().objects[uid].spec["parallelism"] == 3

    await eventually(seen, every_s=0.01)
    await place.remove(changed)
    await until_known(place)


async def test_a_change_wakes_who_waits_for_it(place: Place) -> None:
    """The revision grows; one that is outdated already does not wait."""
    before = place.workloads.view().revision
    waiting = asyncio.ensure_future(place.workloads.changed(before))
    await place.put(a_job("fit"))
    now = await waiting
    assert now > before
    assert await place.workloads.changed(before) >= now


async def test_what_is_owned_is_found_by_its_owner(place: Place) -> None:
    """By the controlling owner's UID, until it goes."""
    uid = await place.put(a_job("fit"))
    reference = {
        "apiVersion": "batch/v1", "kind": "Job", "name": "fit", "uid": uid, "controller": True,
    }  # fmt: skip
    part = a_job("part", ownerReferences=[reference])
    await place.put(part)

    async def names() -> list[str]:
        return [one.name for one in place.workloads.view().owned.get(uid, {}).values()]

    async def owned() -> bool:
        return await names() == ["part"]

    async def alone() -> bool:
        return await names() == []

    await eventually(owned, every_s=0.01)
    await place.remove(part)
    await eventually(alone, every_s=0.01)


async def test_kinds_and_profiles_are_known(place: Place) -> None:
    """Kinds that are synced are named; a profile has what an operator wrote."""

    async def synced() -> bool:
        return {"Job", "TreeProfile"} <= place.workloads.view().synced

    await eventually(synced, every_s=0.01)
    kinds = [{"kind": "Job", "topology": {"leaf": RACK}}]
    await place.put_profile(
        {
            "apiVersion": OURS, "kind": "TreeProfile",
            "metadata": {"name": "racks"}, "spec": {"kinds": kinds},
        }
    )  # fmt: skip

    async def written() -> bool:
        return "racks" in place.workloads.view().profiles

    await eventually(written, every_s=0.01)
    assert place.workloads.view().profiles["racks"].of("Job").leaf_topology == RACK


async def test_a_group_is_created_as_it_is_asked_for(place: Place) -> None:
    """All its fields, its owner, and by whom it is managed; a Basic composite likewise."""
    wanted, group = await owned_leaf(place)
    spec = wanted.spec
    assert (group.parent, group.workload, group.template) == ("root", "root", spec.name)
    assert (group.basic, group.minimum, group.constraints.topology) == (False, 4, (RACK,))
    assert (group.disruption_mode, group.priority_class) == ("all", "")
    assert (group.owner_uid, group.managed_by) == (wanted.owner_uid, MANAGED_BY)
    assert group.uid
    root = a_manifest(
        "root", wanted.owner_uid, kind="CompositePodGroup", parent="", basic=True, minimum=1,
        topology="", disruption_mode="single",
    )  # fmt: skip
    await place.workloads.create_group(root)
    made = await until_seen(place, root.key)
    assert (made.parent, made.basic, made.disruption_mode) == (None, True, "single")


async def test_a_group_that_exists_is_not_changed_by_a_creation(place: Place) -> None:
    """Also one of another client: a creation only creates."""
    wanted, group = await owned_leaf(place)
    await place.workloads.create_group(with_minimum(wanted, 2))
    foreign = {
        "apiVersion": OURS, "kind": "PodGroup",
        "metadata": {"name": "taken", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 7}}},
    }  # fmt: skip
    await place.put_group(foreign)
    taken = a_manifest("taken", wanted.owner_uid)
    await until_seen(place, taken.key)
    await place.workloads.create_group(taken)
    last = a_manifest("last", wanted.owner_uid)
    await place.workloads.create_group(last)
    await until_seen(place, last.key)  # what was done before has been seen too
    now = place.cluster.view().groups
    assert (now[wanted.key].uid, now[wanted.key].minimum) == (group.uid, 4)
    assert (now[taken.key].minimum, now[taken.key].managed_by) == (7, "")


async def test_the_minimum_of_a_group_is_applied(place: Place) -> None:
    """To the group with the UID, in both directions, and again without effect; what is left out stays."""
    wanted, group = await owned_leaf(place)
    for minimum in (3, 3, 5):
        await place.workloads.apply_group(with_minimum(wanted, minimum), group.uid)
        found = await until_seen(place, wanted.key, minimum=minimum)
        assert found.uid == group.uid
        assert found.owner_uid == wanted.owner_uid
    spec = msgspec.structs.replace(wanted.spec, minimum=2, topology="", parent="")
    await place.workloads.apply_group(msgspec.structs.replace(wanted, spec=spec), group.uid)
    found = await until_seen(place, wanted.key, minimum=2)
    assert (found.constraints.topology, found.parent) == ((RACK,), "root")


async def test_an_apply_to_another_object_does_nothing(place: Place) -> None:
    """One of another UID stays as it is; one that is gone is not created: the caller looks again."""
    wanted, group = await owned_leaf(place)
    with pytest.raises(ClusterUnavailable):
        await place.workloads.apply_group(with_minimum(wanted, 3), str(uuid4()))
    with pytest.raises(ClusterUnavailable):
        await place.workloads.apply_group(a_manifest("gone", wanted.owner_uid), str(uuid4()))
    last = a_manifest("last", wanted.owner_uid)
    await place.workloads.create_group(last)
    await until_seen(place, last.key)
    now = place.cluster.view().groups
    assert (now[wanted.key].uid, now[wanted.key].minimum) == (group.uid, 4)
    assert GroupKey("default", "gone", "PodGroup") not in now


@pytest.mark.parametrize(
    "frozen",
    [{"topology": "net/block"}, {"disruption_mode": "single"}, {"basic": True},
     {"parent": "other"}, {"priority_class": "system-node-critical"}],
    ids=["topology", "disruption mode", "policy", "parent", "priority class"],
)  # fmt: skip
async def test_an_immutable_field_is_rejected(place: Place, frozen: dict[str, Any]) -> None:
    """Nothing of the group changes then, the minimum neither."""
    wanted, group = await owned_leaf(place)
    other = msgspec.structs.replace(wanted.spec, **frozen)
    if other.basic:
        other = msgspec.structs.replace(other, disruption_mode="single", minimum=1)
    else:
        other = msgspec.structs.replace(other, minimum=3)
    with pytest.raises(RequestRejected):
        await place.workloads.apply_group(msgspec.structs.replace(wanted, spec=other), group.uid)
    last = a_manifest("last", wanted.owner_uid)
    await place.workloads.create_group(last)
    await until_seen(place, last.key)
    now = place.cluster.view().groups[wanted.key]
    assert (now.minimum, now.constraints.topology, now.parent) == (4, (RACK,), "root")


async def test_a_group_is_deleted_by_its_uid(place: Place) -> None:
    """Another one of its name is not; one that is gone is gone."""
    wanted, group = await owned_leaf(place)
    with pytest.raises(ClusterUnavailable):
        await place.workloads.delete_group(wanted.key, str(uuid4()))
    assert (await until_seen(place, wanted.key)).uid == group.uid
    await place.workloads.delete_group(wanted.key, group.uid)
    await until_gone(place, wanted.key)
    await place.workloads.delete_group(wanted.key, group.uid)
    await place.workloads.create_group(wanted)
    assert (await until_seen(place, wanted.key)).uid != group.uid
