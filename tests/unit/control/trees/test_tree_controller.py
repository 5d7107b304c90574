"""Workloads become groups: recorded first, written afterwards, and the same again after a kill at any write."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from extender.control.trees.tree_controller import TreeController
from extender.core.log.events import TreeCompiled, TreeRefused, TreeRetired
from extender.core.model.errors import ClusterUnavailable, CorruptLog
from extender.core.model.nodes import NearGroup
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage, idle
from tests.support.waiting import eventually

TREE = "gang-extender.dev/tree"
UID = "0123456789abcdef"


def a_jobset(name="train", uid=UID, *, labels=None, annotations=None, workers=2, **spec: Any):
    """Return a JobSet of one driver and Jobs of four workers, with the labels that the policy stamps."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name, "namespace": "default", "uid": uid, "generation": 1,
            "labels": {TREE: "default"} if labels is None else labels, "annotations": annotations or {},
        },
        "spec": {
            "replicatedJobs": [
                replicated_job("driver", 1, 1, "replicated-job"), replicated_job("worker", workers, 4, "job"),
            ],
            **spec,
        },
    }  # fmt: skip


def replicated_job(name, replicas, parallelism, leaf):
    labels = {TREE: "default", "gang-extender.dev/leaf": leaf}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    job = {"parallelism": parallelism, "completions": parallelism, "template": pod}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def a_job_of(pods):
    pod = {"metadata": {"labels": {TREE: "default"}}, "spec": {"containers": []}}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "fit", "namespace": "default", "uid": UID, "labels": {TREE: "default"}},
        "spec": {"parallelism": pods, "completions": pods, "template": pod},
    }  # fmt: skip


def controller(stage, workloads):
    return TreeController(stage.cluster, workloads, stage.leader, stage.inputs, stage.settings)


async def started(*objects, stage=None, **settings):
    """Return a leading stage with workloads and their running controller."""
    stage = stage or Stage(**settings)
    workloads = FakeWorkloads(stage.cluster, *objects)
    await stage.lead()
    stage.start(controller(stage, workloads).run())
    return stage, workloads


def groups(stage):
    return {key.name: group for key, group in stage.cluster.seen.groups.items()}


NAMES = {
    "train-01234567", "train-driver-01234567", "train-worker-01234567",
    "train-worker-0-01234567", "train-worker-1-01234567",
}  # fmt: skip


async def test_a_jobset_becomes_its_groups():
    """One event, then the groups with the JobSet as owner; nothing more is written when nothing changes."""
    stage, workloads = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        (event,) = stage.event_data(TreeCompiled)
        assert {group.name for group in event.groups} == NAMES
        leaf = groups(stage)["train-worker-0-01234567"]
        assert (leaf.parent, leaf.minimum, leaf.disruption_mode) == (
            "train-worker-01234567", 4, "all",
        )  # fmt: skip
        assert leaf.owner_uid == UID
        calls = list(workloads.calls)
        workloads.put(a_jobset())
        await idle()
        assert workloads.calls == calls
        assert len(stage.event_data(TreeCompiled)) == 1


async def test_workloads_that_come_or_go_together_are_recorded_in_the_order_of_their_uids():
    """Not in that of a hash table, which follows the hash seed."""
    uids = [f"{number:016x}" for number in range(16, 28)]
    stage, workloads = await started(*(a_jobset(f"train-{uid}", uid) for uid in reversed(uids)))
    async with stage:
        await eventually(lambda: len(stage.event_data(TreeCompiled)) == len(uids), "events")
        assert [event.uid for event in stage.event_data(TreeCompiled)] == uids
        workloads.remove(*(a_jobset(f"train-{uid}", uid) for uid in uids))
        await eventually(lambda: len(stage.event_data(TreeRetired)) == len(uids), "events")
        assert [event.uid for event in stage.event_data(TreeRetired)] == uids


@pytest.mark.parametrize("killed_after", range(6))
async def test_a_kill_between_two_writes_loses_and_doubles_nothing(killed_after):
    """The log has the tree once, and the next leader writes the groups that are missing."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        done = 0

        def fault(verb, name):
            nonlocal done
            done += 1
            return ClusterUnavailable("killed") if done > killed_after else None

        workloads.fault = fault
        workloads.put(a_jobset())
        await eventually(
            lambda: len(workloads.calls) == min(killed_after, 5), "writes before the kill"
        )
        await eventually(lambda: stage.event_data(TreeCompiled), "event")
        await stage.stop_leading()
        second = Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock, holder="second"
        )
        async with second:
            again = FakeWorkloads(stage.cluster, a_jobset())
            await second.lead()
            second.start(controller(second, again).run())
            await eventually(lambda: groups(second).keys() == NAMES, "groups")
            assert len(workloads.calls) + len(again.calls) == len(NAMES)
            assert len(second.event_data(TreeCompiled)) == 1


async def test_a_leaf_that_was_deleted_by_hand_comes_back():
    """What the log has and the cluster lacks is created again, without another event."""
    stage, workloads = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        await idle()
        key = groups(stage)["train-worker-1-01234567"].key
        workloads._delete(key)
        await eventually(lambda: groups(stage).keys() == NAMES, "the leaf again")
        assert workloads.calls[-1] == ("create", key.name)
        assert len(stage.event_data(TreeCompiled)) == 1


async def test_a_refused_jobset_is_held_and_named():
    """The refusal is recorded, an Event is on the JobSet, no group is made; a mended one is compiled."""
    wrong = a_jobset(annotations={"gang-extender.dev/topology": "node=net/rack"})
    stage, workloads = await started(wrong)
    async with stage:
        await eventually(lambda: stage.cluster.notices, "Event")
        (event,) = stage.event_data(TreeRefused)
        assert event.field == "metadata.annotations[gang-extender.dev/topology]"
        notice = stage.cluster.notices[0]
        assert (notice.kind, notice.uid, notice.reason) == ("JobSet", UID, "InvalidAnnotation")
        assert notice.message == event.message
        assert not groups(stage)
        workloads.put(a_jobset())
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")


async def test_a_jobset_that_only_its_namespace_covers_runs_pod_by_pod():
    """It gets Basic leaves under the names that its pods have, and the same Event."""
    wrong = a_jobset(labels={}, annotations={"gang-extender.dev/gang": "some"})
    stage, _ = await started(wrong)
    async with stage:
        await eventually(lambda: len(groups(stage)) == 3, "leaves")
        assert all(group.basic and group.parent is None for group in groups(stage).values())
        (event,) = stage.event_data(TreeCompiled)
        assert event.basic
        assert event.reason == "InvalidAnnotation"
        await eventually(lambda: stage.cluster.notices, "Event")


async def test_what_is_finished_or_gone_is_retired():
    """The groups of a finished JobSet are deleted; those of a deleted one go with it."""
    stage, workloads = await started(a_jobset(), a_jobset("other", "fedcba9876543210"))
    async with stage:
        await eventually(lambda: len(groups(stage)) == 10, "groups")
        done = copy.deepcopy(a_jobset())
        done["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}
        workloads.put(done)
        await eventually(lambda: len(groups(stage)) == 5, "groups of the other")
        workloads.remove(a_jobset("other", "fedcba9876543210"))
        await eventually(lambda: len(stage.event_data(TreeRetired)) == 2, "events")
        assert [e.reason for e in stage.event_data(TreeRetired)] == ["finished", "deleted"]
        assert not groups(stage)


async def test_a_group_of_another_client_is_not_changed():
    """The name is taken: an Event names it, and the group is created when it is free."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        foreign = {
            "apiVersion": "gang-extender.dev/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": "train-driver-01234567", "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 7}}},
        }  # fmt: skip
        stage.cluster.add(foreign)
        workloads.put(a_jobset())
        await eventually(lambda: groups(stage).keys() == NAMES, "the other groups")
        await eventually(
            lambda: any(n.reason == "NameTaken" for n in stage.cluster.notices), "Event"
        )
        assert groups(stage)["train-driver-01234567"].minimum == 7
        workloads._delete(groups(stage)["train-driver-01234567"].key)
        await eventually(
            lambda: (
                groups(stage).get("train-driver-01234567")
                and groups(stage)["train-driver-01234567"].minimum == 1
            ),
            "our own",
        )


async def test_a_job_follows_its_remaining_work_downwards():
    """Completions 4 of parallelism 4, three succeeded: the minimum is lowered, on the same group."""
    job = a_job_of(4)
    stage, workloads = await started(job)
    async with stage:
        await eventually(lambda: "fit-01234567" in groups(stage), "group")
        uid = groups(stage)["fit-01234567"].uid
        workloads.put(job | {"status": {"succeeded": 3, "active": 1}})
        await eventually(lambda: groups(stage)["fit-01234567"].minimum == 1, "lowered")
        assert groups(stage)["fit-01234567"].uid == uid


async def test_an_unknown_profile_holds_until_it_exists():
    """A label value that no profile has is refused with its name; the profile mends it."""
    named = a_jobset()
    for job in named["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["metadata"]["labels"][TREE] = "racks"
    stage, workloads = await started(named)
    async with stage:
        await eventually(lambda: stage.event_data(TreeRefused), "refusal")
        assert "'racks'" in stage.event_data(TreeRefused)[0].message
        workloads.put_profile(
            TreeProfile(name="racks", kinds={"JobSet": KindPolicy(leaf_topology="net/rack")})
        )
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        assert groups(stage)["train-worker-0-01234567"].constraints.topology == ("net/rack",)
        assert groups(stage)["train-driver-01234567"].constraints.topology == ()


async def test_a_wish_to_be_near_is_written_and_stays_when_a_minimum_changes():
    """A field that cannot change is none of those that the service applies, so that kube-apiserver takes the minimum."""
    near = {"gang-extender.dev/near": "worker=driver~net/rack"}
    stage, workloads = await started(a_jobset(annotations=near))
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        expected = (NearGroup("train-driver-01234567", "net/rack"),)
        assert groups(stage)["train-worker-01234567"].constraints.near == expected
        other = {
            "gang-extender.dev/near": "driver=worker~net/block",
            "gang-extender.dev/min": "worker=1,driver=1",
        }
        workloads.put(a_jobset(annotations=other))
        await eventually(lambda: groups(stage)["train-worker-01234567"].minimum == 1, "minimum")
        assert groups(stage)["train-worker-01234567"].constraints.near == expected
        assert groups(stage)["train-driver-01234567"].constraints.near == ()


async def test_a_kind_that_a_profile_switches_off_runs_pod_by_pod():
    """Its pods have a leaf from the policy already, so there are Basic leaves for them."""
    stage, workloads = await started(stage=Stage())
    async with stage:
        workloads.put_profile(
            TreeProfile(name="default", kinds={"JobSet": KindPolicy(enabled=False)})
        )
        workloads.put(a_jobset())
        await eventually(lambda: len(groups(stage)) == 3, "leaves")
        assert all(group.basic for group in groups(stage).values())
        assert stage.event_data(TreeCompiled)[0].reason == "KindDisabled"


async def test_a_kind_that_is_switched_off_keeps_the_trees_that_exist():
    """Leaves keep their parents, so no composite is taken away; a leaf that is deleted comes back as it was."""
    stage, workloads = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        before = list(workloads.calls)
        workloads.put_profile(
            TreeProfile(name="default", kinds={"JobSet": KindPolicy(enabled=False)})
        )
        await idle()
        leaf = groups(stage)["train-worker-0-01234567"]
        workloads._delete(leaf.key)
        await eventually(lambda: groups(stage).keys() == NAMES, "the leaf again")
        again = groups(stage)[leaf.key.name]
        assert (again.parent, again.minimum, again.basic) == (leaf.parent, 4, False)
        assert workloads.calls == [*before, ("create", leaf.key.name)]
        assert len(stage.event_data(TreeCompiled)) == 1


async def test_the_trees_of_a_kind_that_is_not_served_any_more_are_retired():
    """Its definition went while nothing looked: there are no objects of it. One that is only switched off is kept."""
    stage, _ = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        await stage.stop_leading()
    second = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock, holder="second"
    )
    async with second:
        none = FakeWorkloads(stage.cluster)
        none.store.set_synced("JobSet", synced=False)
        await second.lead()
        trees = controller(second, none)
        await trees.look()
        assert not second.event_data(TreeRetired)
        none.store.set_absent(frozenset({"JobSet"}))
        await trees.look()
        (event,) = second.event_data(TreeRetired)
        assert (event.uid, event.reason) == (UID, "deleted")


async def test_nothing_is_tried_for_groups_whose_owner_is_not_known():
    """The role of a kind was removed, and a group by hand: it is written when the owner is known again."""
    stage, workloads = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        await stage.stop_leading()
    workloads._delete(groups(stage)["train-driver-01234567"].key)
    second = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock, holder="second"
    )
    async with second:
        none = FakeWorkloads(stage.cluster)
        none.store.set_synced("JobSet", synced=False)
        await second.lead()
        trees = controller(second, none)
        await trees.look()
        assert trees.groups._queue.empty()
        none.store.set_synced("JobSet", synced=True)
        none.put(a_jobset())
        await trees.look()
        assert not trees.groups._queue.empty()
        second.start(trees.run())
        await eventually(lambda: groups(second).keys() == NAMES, "the leaf again")
        assert none.calls == [("create", "train-driver-01234567")]


async def test_a_group_that_was_made_again_meanwhile_is_looked_at_again():
    """The write was for the other one: it fails, and the next look at the view finds what is to be written."""
    job = a_job_of(4)
    stage, workloads = await started(job)
    async with stage:
        await eventually(lambda: "fit-01234567" in groups(stage), "group")
        failures = [ClusterUnavailable("uid mismatch")]
        workloads.fault = lambda verb, name: (
            failures.pop() if verb == "apply" and failures else None
        )
        workloads.put(job | {"status": {"succeeded": 3, "active": 1}})
        await eventually(lambda: groups(stage)["fit-01234567"].minimum == 1, "lowered")
        assert not failures
        assert not any(notice.reason == "GroupRejected" for notice in stage.cluster.notices)


async def test_a_recorded_tree_is_compiled_again_from_its_input():
    """`decision replay`: equal; another table gives a difference, an altered input is noticed."""
    wrong = a_jobset("odd", "fedcba9876543210", annotations={"gang-extender.dev/min": "none"})
    stage, _ = await started(a_jobset(), wrong)
    async with stage:
        await eventually(
            lambda: stage.event_data(TreeCompiled) and stage.event_data(TreeRefused), "events"
        )
        for event in stage.events():
            if not isinstance(event.data, TreeCompiled | TreeRefused):
                continue
            stored = await stage.inputs.load(event.data.input_digest)
            result = replay_decision(event.position, event.data, stored)
            assert (result.same, result.differences) == (True, ())
            if isinstance(event.data, TreeCompiled):
                other = msgspec.structs.replace(event.data, groups=event.data.groups[:-1])
                result = replay_decision(event.position, other, stored)
                assert not result.same
                assert result.differences[0].startswith("groups: ")
            altered = msgspec.structs.replace(
                stored, head=stored.head.replace(b"driver", b"drover")
            )
            with pytest.raises(CorruptLog, match="does not have digest"):
                replay_decision(event.position, event.data, altered)


async def test_a_log_that_lost_its_trees_deletes_no_group():
    """An empty log beside a cluster with groups: the tree is recorded again, and the groups stay what they are."""
    stage, _ = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        before = {name: group.uid for name, group in groups(stage).items()}
        await stage.stop_leading()
    second = Stage(cluster=stage.cluster, holder="second")
    async with second:
        workloads = FakeWorkloads(stage.cluster, a_jobset())
        await second.lead()
        second.start(controller(second, workloads).run())
        await eventually(lambda: second.event_data(TreeCompiled), "event")
        await idle()
        assert {name: group.uid for name, group in groups(second).items()} == before
        assert not workloads.calls


async def test_groups_of_an_owner_that_is_not_known_are_left_alone():
    """A kind that was switched off: what it had made stays, also after its trees are lost."""
    stage, _ = await started(a_jobset())
    async with stage:
        await eventually(lambda: groups(stage).keys() == NAMES, "groups")
        await stage.stop_leading()
    second = Stage(cluster=stage.cluster, holder="second")
    async with second:
        none = FakeWorkloads(stage.cluster)
        none.store.set_synced("JobSet", synced=False)
        await second.lead()
        second.start(controller(second, none).run())
        other = a_jobset("other", "fedcba9876543210")
        none.put(other)
        await eventually(lambda: len(groups(second)) == 2 * len(NAMES), "groups of the other")
        assert groups(second).keys() >= NAMES
        assert not [name for verb, name in none.calls if verb == "delete"]
