"""Groups whose name something else has: a group that is going, one of another owner, one of another workload."""

from __future__ import annotations

import pytest

from extender.core.trees.leaves_in_use import LeafUses, WorkloadName
from extender.core.workloads.workload_object import MANAGED_BY
from tests.support.service.fakes import FakeCluster, Stage, idle
from tests.support.service.manifest_builders import a_pod
from tests.support.waiting import eventually
from tests.unit.control.trees.test_tree_controller import (
    NAMES,
    TREE,
    UID,
    a_jobset,
    groups,
    started,
)

LWS = "leaderworkerset.sigs.k8s.io"
COMMON = "w" * 49  # two names that differ behind it become one when they are cut


@pytest.mark.parametrize("ours", [True, False])
async def test_no_group_is_created_below_a_composite_that_is_going_or_of_another_owner(ours):
    """A composite that is being deleted stays while groups name it: both would wait for ever."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        name = "train-worker-01234567"
        composite = {
            "apiVersion": "gang-extender.dev/v1alpha1", "kind": "CompositePodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 2}}},
        }  # fmt: skip
        stage.cluster.add(composite)
        if ours:
            stage.cluster.change_group(name, deleting=True, owner_uid=UID, managed_by=MANAGED_BY)
        workloads.put(a_jobset())
        others = {"train-01234567", "train-driver-01234567"}
        await eventually(lambda: groups(stage).keys() == {name} | others, "the groups beside it")
        await idle()
        assert groups(stage).keys() == {name} | others
        workloads._delete(groups(stage)[name].key)
        await eventually(lambda: groups(stage).keys() == NAMES, "all groups")
        assert groups(stage)[name].owner_uid == UID


async def test_a_group_of_an_earlier_owner_that_is_being_deleted_is_named():
    """Its pods keep it; the Event has what helps, and the group is created when it is gone."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        leaf = {
            "apiVersion": "gang-extender.dev/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "train-driver-01234567", "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 7}}},
        }  # fmt: skip
        stage.cluster.add(leaf)
        stage.cluster.change_group("train-driver-01234567", deleting=True)
        workloads.put(a_jobset())
        (event,) = await eventually(
            lambda: [n for n in stage.cluster.notices if n.reason == "NameTaken"], "Event"
        )
        assert (
            "train-driver-01234567 was made for another object and is being deleted"
            in event.message
        )
        assert "the group of JobSet default/train is created then" in event.message
        workloads._delete(groups(stage)["train-driver-01234567"].key)
        await eventually(lambda: groups(stage).keys() == NAMES, "our own")


def a_leaderworkerset(letter):
    pod = {"metadata": {"labels": {TREE: "default", "gang-extender.dev/leaf": "role"}}, "spec": {}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {
            "name": COMMON + letter, "namespace": "default", "uid": f"uid-of-{letter}", "generation": 1,
            "labels": {TREE: "default"},
        },
        "spec": {
            "replicas": 1, "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": pod},
        },
    }  # fmt: skip


def a_leader(letter):
    labels = {
        f"{LWS}/name": COMMON + letter, f"{LWS}/template-revision-hash": "5d77b8dfd",
        f"{LWS}/worker-index": "0", "apps.kubernetes.io/pod-index": "0",
        TREE: "default", "gang-extender.dev/leaf": "role",
    }  # fmt: skip
    leaf = "w" * 44 + "-0-5d77b8dfd-leader"
    return a_pod(f"{COMMON}{letter}-0", leaf, metadata={"labels": labels})


def test_a_leaf_that_pods_of_two_workloads_name_is_used_by_both():
    cluster = FakeCluster(a_leader("a"), a_leader("b"))
    uses = LeafUses().of(cluster.seen.members)
    names = [WorkloadName("LeaderWorkerSet", "default", COMMON + letter) for letter in "ab"]
    assert sorted(uses, key=str) == names
    assert [uses[name][0].pods for name in names] == [1, 1]


async def test_two_workloads_whose_names_are_cut_to_the_same_are_not_one_in_silence():
    """One of the two has an Event that names the other one."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        stage.cluster.add(a_leader("a"), a_leader("b"))
        workloads.put(a_leaderworkerset("a"), a_leaderworkerset("b"))
        (event,) = await eventually(
            lambda: [n for n in stage.cluster.notices if n.reason == "NameTaken"], "Event"
        )
        assert "give one of the workloads another name" in event.message
        other = "b" if event.name.endswith("a") else "a"
        assert f"is the group of LeaderWorkerSet default/{COMMON}{other}" in event.message
