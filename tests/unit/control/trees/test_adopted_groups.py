"""Groups that the controller of a workload makes: linked below their composite, never changed otherwise, not planned before."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster import types as api
from extender.control.trees.tree_controller import AdoptionHold, TreeController
from extender.core.log.events import GangAdmitted, TreeCompiled, TreeRefused, TreeRetired
from extender.core.model.errors import ClusterUnavailable
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import Stage, idle
from tests.support.service.manifest_builders import a_group, a_node, a_pod
from tests.support.waiting import eventually

TREE = "gang-extender.dev/tree"
TEMPLATE = "scheduling.k8s.io/group-template-name"
BUILT_IN = "scheduling.k8s.io/v1beta1"
ADOPT = KindPolicy(native_groups="Adopt")
PROFILE = TreeProfile(name="default", kinds={"Job": ADOPT, "JobSet": ADOPT})
TRAIN, FIT = "0123456789abcdef", "fedcba9876543210"
ROOT = "train-01234567"


def an_object(kind, version, name, uid, spec, **metadata: Any):
    metadata = {
        "name": name, "namespace": "default", "uid": uid, "generation": 1, "labels": {TREE: "default"},
        **metadata,
    }  # fmt: skip
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def a_job(name="fit", uid=FIT, parent="search", **metadata):
    annotations = {"gang-extender.dev/parent": parent} if parent else {}
    spec = {"parallelism": 2, "completions": 2, "scheduling": {"schedulingPolicy": {"gang": {}}}}
    return an_object("Job", "batch/v1", name, uid, spec, annotations=annotations, **metadata)


def a_jobset(**spec):
    """Return a JobSet whose controller makes a group for each of two ReplicatedJobs."""
    jobs = [
        {"name": name, "replicas": 1, "template": {"spec": {"parallelism": 2, "completions": 2}}}
        for name in ("driver", "worker")
    ]
    entries = [{"targetReplicatedJobs": [job["name"]]} for job in jobs]
    block = {"replicatedJobs": entries}
    spec = {"replicatedJobs": jobs, "scheduling": block, **spec}
    return an_object("JobSet", "jobset.x-k8s.io/v1alpha2", "train", TRAIN, spec)


def a_made_group(name, owner, workload, *, template="", kind="JobSet", gang=2):
    """Return a PodGroup as the controller of a workload makes it."""
    found = a_group(name, gang=gang, version=BUILT_IN)
    found["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": kind, "name": workload, "uid": owner, "controller": True}
    ]
    found["spec"]["workloadRef"] = {"workloadName": f"{workload}-hash", "templateName": template}
    return found


def a_group_of_train(template, owner=TRAIN):
    return a_made_group(f"pg-{template}", owner, "train", template=template)


def a_group_of_fit(name="pg-fit", owner=FIT, workload="fit"):
    return a_made_group(name, owner, workload, template=f"{workload}-pgt-0", kind="Job")


def a_search(minimum=2):
    """Return a composite of the user's."""
    return a_group("search", composite=True, gang=minimum, workload="search")


async def started(*objects, stage=None, profile=PROFILE):
    """Return a leading stage with workloads and their running controller."""
    stage = stage or Stage()
    workloads = FakeWorkloads(stage.cluster, *objects)
    workloads.put_profile(profile)
    await stage.lead()
    controller = TreeController(
        stage.cluster, workloads, stage.leader, stage.inputs, stage.settings
    )
    stage.start(controller.run())
    return stage, workloads


def parents(stage):
    return {key.name: group.parent for key, group in stage.cluster.seen.groups.items()}


def explanations(stage):
    """Return what pods that wait have in their conditions, by namespace and name."""
    return {path: text for verb, path, text in stage.cluster.calls if verb == "explain_waiting"}


BOTH = {ROOT: None, "pg-driver": ROOT, "pg-worker": ROOT}


async def test_groups_that_come_later_are_linked_below_the_composite():
    """The composite is there before them; a link is all that is written to a group, and the decisions are equal."""
    stage, workloads = await started(a_jobset())
    async with stage:
        await eventually(lambda: parents(stage) == {ROOT: None}, "composite")
        assert stage.cluster.group(ROOT).minimum == 2
        stage.cluster.add(a_group_of_train("worker"))
        await eventually(lambda: parents(stage).get("pg-worker") == ROOT, "first link")
        stage.cluster.add(a_group_of_train("driver"))
        await eventually(lambda: parents(stage) == BOTH, "both links")
        await idle()
        assert workloads.calls == [
            ("create", ROOT), ("link", "pg-worker"), ("link", "pg-driver"),
        ]  # fmt: skip
        counts = [len(event.adopted) for event in stage.event_data(TreeCompiled)]
        assert counts == [0, 1, 2]
        for event in stage.events():
            if isinstance(event.data, TreeCompiled):
                stored = await stage.inputs.load(event.data.input_digest)
                assert replay_decision(event.position, event.data, stored).same


@pytest.mark.parametrize("killed_after", range(4))
async def test_a_kill_between_two_writes_ends_in_the_same_links(killed_after):
    stage = Stage(a_group_of_train("driver"), a_group_of_train("worker"))
    stage, workloads = await started(stage=stage)
    async with stage:
        done = 0

        def fault(verb, name):
            nonlocal done
            done += 1
            return ClusterUnavailable("killed") if done > killed_after else None

        workloads.fault = fault
        workloads.put(a_jobset())
        await eventually(
            lambda: len(workloads.calls) == min(killed_after, 3), "writes before the kill"
        )
        await eventually(lambda: stage.event_data(TreeCompiled), "event")
        await stage.stop_leading()
        second = Stage(
            database=stage.database, cluster=stage.cluster, clock=stage.clock, holder="second"
        )
        async with second:
            second, again = await started(a_jobset(), stage=second)
            await eventually(lambda: parents(second) == BOTH, "links")
            assert len(workloads.calls) + len(again.calls) == len(BOTH)
            assert len(second.event_data(TreeCompiled)) == 1


async def test_a_group_that_is_made_again_is_linked_again():
    """A suspended JobSet has no groups; its composite stays, and they come back under their old names."""
    stage, workloads = await started(
        a_jobset(), stage=Stage(a_group_of_train("driver"), a_group_of_train("worker"))
    )
    async with stage:
        await eventually(lambda: parents(stage) == BOTH, "links")
        workloads.put(a_jobset(suspend=True))
        stage.cluster.delete_group("pg-driver")
        stage.cluster.delete_group("pg-worker")
        await eventually(
            lambda: not stage.event_data(TreeCompiled)[-1].adopted, "event without groups"
        )
        assert parents(stage) == {ROOT: None}
        workloads.put(a_jobset())
        stage.cluster.add(a_group_of_train("driver"), a_group_of_train("worker"))
        await eventually(lambda: parents(stage) == BOTH, "links again")


async def test_composites_stay_while_groups_are_below_them():
    """A finished JobSet keeps its groups, so they keep their parent; the composite goes when they are gone."""
    stage, workloads = await started(
        a_jobset(), stage=Stage(a_group_of_train("driver"), a_group_of_train("worker"))
    )
    async with stage:
        await eventually(lambda: parents(stage) == BOTH, "links")
        done = a_jobset() | {"status": {"conditions": [{"type": "Completed", "status": "True"}]}}
        workloads.put(done)
        await idle()
        assert parents(stage) == BOTH
        assert not stage.event_data(TreeRetired)
        stage.cluster.delete_group("pg-driver")
        stage.cluster.delete_group("pg-worker")
        await eventually(lambda: not parents(stage), "composite gone")
        assert [event.reason for event in stage.event_data(TreeRetired)] == ["finished"]


async def test_groups_of_its_jobs_belong_to_the_jobset():
    """JobSet may leave the groups to the Job controller: then the Jobs own them."""
    owner = {
        "apiVersion": "v1",
        "kind": "JobSet",
        "name": "train",
        "uid": TRAIN,
        "controller": True,
    }
    child = an_object(
        "Job", "batch/v1", "train-worker-0", FIT, {}, labels={}, annotations={TEMPLATE: "worker"},
        ownerReferences=[owner],
    )  # fmt: skip
    groups = a_group_of_train("driver"), a_group_of_train("worker", FIT)
    stage, workloads = await started(a_jobset(), child, stage=Stage(*groups))
    async with stage:
        hold = AdoptionHold(workloads, stage.leader)
        assert hold(stage.cluster.group("pg-worker"))
        await eventually(lambda: parents(stage) == BOTH, "links")
        assert len(stage.event_data(TreeCompiled)) == 1


async def test_a_job_is_linked_below_a_composite_of_the_user():
    """One annotation; nothing of ours is made, and the group is not deleted with the tree."""
    stage, workloads = await started(a_job(), stage=Stage(a_search(), a_group_of_fit()))
    async with stage:
        await eventually(lambda: parents(stage)["pg-fit"] == "search", "link")
        assert workloads.calls == [("link", "pg-fit")]
        done = a_job() | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        workloads.put(done)
        await eventually(lambda: stage.event_data(TreeRetired), "end of the tree")
        await idle()
        assert workloads.calls == [("link", "pg-fit")]


async def test_a_group_that_is_below_another_composite_stays_there():
    """The Event names both; nothing is written."""
    group = a_group_of_fit()
    group["metadata"]["annotations"] = {"gang-extender.dev/parent": "other"}
    stage, workloads = await started(a_job(), stage=Stage(a_search(), group))
    async with stage:
        await eventually(
            lambda: "ShapeChanged" in [one.reason for one in stage.cluster.notices], "Event"
        )
        (notice,) = [one for one in stage.cluster.notices if one.reason == "ShapeChanged"]
        assert "below other and not below search" in notice.message
        assert not workloads.calls


async def test_pods_of_a_refused_workload_have_the_reason():
    """What asked for adoption and cannot be compiled is held, as any workload that asked for a tree."""
    asked = a_job()
    asked["metadata"]["annotations"] = {"gang-extender.dev/min": "2"}
    gate = [{"name": "gang-extender.dev/admission"}]
    pod = a_pod("fit-0", "pg-fit", schedulingGates=gate)
    stage, workloads = await started(asked, stage=Stage(a_group_of_fit(), pod))
    async with stage:
        await eventually(lambda: stage.event_data(TreeRefused), "refusal")
        await eventually(lambda: explanations(stage), "condition of the pod")
        assert "gang-extender.dev/min" in explanations(stage)["default/fit-0"]
        assert AdoptionHold(workloads, stage.leader)(stage.cluster.group("pg-fit"))


async def test_two_jobs_below_one_composite_are_all_or_nothing():
    """Neither is planned alone before it is linked, though it is a tree of its own until then."""
    nodes = [a_node("n0", cpu=2)]
    pods = [a_pod(f"{job}-{n}", f"pg-{job}") for job in ("one", "two") for n in range(2)]
    groups = [a_group_of_fit(f"pg-{job}", job, job) for job in ("one", "two")]
    stage = Stage(*nodes, a_search(), *groups, *pods)
    workloads = FakeWorkloads(stage.cluster, *(a_job(job, job) for job in ("one", "two")))
    workloads.put_profile(PROFILE)
    stage.parts.requests.is_held = AdoptionHold(workloads, stage.leader)
    await stage.lead()
    async with stage:
        await stage.settled()
        assert not stage.event_data(GangAdmitted)
        controller = TreeController(
            stage.cluster, workloads, stage.leader, stage.inputs, stage.settings
        )
        stage.start(controller.run())
        await eventually(
            lambda: [parents(stage)[f"pg-{job}"] for job in ("one", "two")] == ["search"] * 2,
            "links",
        )
        await stage.settled()
        assert not stage.event_data(GangAdmitted)
        stage.cluster.add(a_node("n1", cpu=2))
        stage.later(1)
        await stage.settled()
        (admitted,) = stage.event_data(GangAdmitted)
        assert len(admitted.assignments) == 4


async def test_a_root_that_stays_one_is_planned_when_that_is_known():
    """Without a composite above it, the group is planned after the event, without another change of the cluster."""
    pods = [a_pod(f"fit-{n}", "pg-fit") for n in range(2)]
    stage = Stage(a_node("n0", cpu=2), a_group_of_fit(), *pods)
    workloads = FakeWorkloads(stage.cluster, a_job(parent=""))
    workloads.put_profile(PROFILE)
    stage.parts.requests.is_held = AdoptionHold(workloads, stage.leader)
    await stage.lead()
    async with stage:
        await stage.one_pass()
        assert not stage.event_data(GangAdmitted)
        controller = TreeController(
            stage.cluster, workloads, stage.leader, stage.inputs, stage.settings
        )
        stage.start(controller.run())
        await eventually(lambda: stage.event_data(TreeCompiled), "event")
        await stage.one_pass()
        assert stage.event_data(GangAdmitted)
        assert not workloads.calls


async def test_only_groups_that_may_be_adopted_are_held():
    """While Jobs or profiles are being listed the owner of a group may be among them; an unknown owner holds nothing."""
    stage, workloads = await started(stage=Stage(a_group_of_fit(), a_group("ours", gang=2)))
    async with stage:
        hold = AdoptionHold(workloads, stage.leader)
        group = stage.cluster.group("pg-fit")
        assert not hold(group)
        assert not hold(stage.cluster.group("ours"))
        workloads.store.set_synced("Job", synced=False)
        workloads.store.set_served(frozenset({"Job"}))
        assert hold(group)
        workloads.store.set_synced("Job", synced=True)
        workloads.store.delete(api.TreeProfile(metadata=api.ObjectMeta(name="default")))
        workloads.put(a_job())
        assert not hold(group)  # the built-in profile ignores it
        assert not AdoptionHold(None, stage.leader)(group)
