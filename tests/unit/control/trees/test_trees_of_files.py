"""Workloads in files go the way of those on a cluster: compiled and recorded by the leader, then written as groups."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import yaml

from extender.cluster.manifests.served.manifest_cluster import ManifestCluster
from extender.control.trees.tree_controller import TreeController
from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import TreeCompiled, TreeRefused, TreeRetired
from extender.core.log.reservation_state import EMPTY
from extender.core.model.pod_groups import build_forest, composite_key
from extender.core.planner.planning import plan
from extender.queries.log.decision_replay import replay_decision
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import a_node, a_pod, an_object
from tests.support.service.workload_builders import (
    DEFAULT,
    a_job,
    a_jobset,
    a_profile,
    a_template,
)
from tests.support.waiting import eventually

GANG = "gang-extender.dev/gang"


@pytest.fixture
def served(tmp_path):
    """Return a leading stage with a cluster of files and the running tree controller, and a function that writes them."""
    folder = tmp_path / "manifests"
    folder.mkdir()

    def write(*things):
        fresh = tmp_path / "work.new"
        fresh.write_text(yaml.safe_dump_all(things))
        fresh.rename(folder / "work.yaml")

    @asynccontextmanager
    async def start(*things, after=None):
        if things:
            write(*things)
        stage = (
            Stage(database=after.database, clock=after.clock, holder="second") if after else Stage()
        )
        cluster = ManifestCluster([str(folder)], tmp_path / "data", clock=stage.clock, poll_s=0.01)
        stage.cluster = stage.leader.history.anchor = cluster
        await cluster.start()
        try:
            async with stage:
                await stage.lead()
                controller = TreeController(
                    cluster, cluster.workloads, stage.leader, stage.inputs, stage.settings
                )
                stage.start(controller.run())
                yield stage, write
        finally:
            await cluster.stop()

    return start


def groups(stage):
    return stage.cluster.view().groups


def trees(stage):
    """Return what came of each workload, by its path."""
    return {one.workload: one.outcome for one in stage.leader.committed.trees.values()}


async def test_a_workload_in_a_file_becomes_a_tree_and_goes_with_the_file(served):
    async with served(a_jobset()) as (stage, write):
        await eventually(lambda: len(groups(stage)) == 5, "groups")
        (event,) = stage.event_data(TreeCompiled)
        assert {one.name for one in event.groups} == {key.name for key in groups(stage)}
        view = stage.cluster.view()
        forest = build_forest(view.groups, {k: v.values() for k, v in view.members.items()})
        (tree,) = forest.trees.values()
        assert (tree.problems, len(tree.pods), forest.orphans) == ((), 5, {})
        (recorded,) = (one for one in stage.events() if isinstance(one.data, TreeCompiled))
        stored = await stage.inputs.load(event.input_digest)
        assert replay_decision(recorded.position, event, stored).same
        write()
        await eventually(lambda: stage.event_data(TreeRetired), "end of the tree")
        await eventually(lambda: not groups(stage), "end of the groups")
        assert trees(stage) == {}


async def test_a_changed_file_changes_the_tree(served):
    """A gang grows when its pods exist, and a workload that is finished needs no groups."""
    async with served(a_job(parallelism=2)) as (stage, write):
        await eventually(
            lambda: [one.minimum for one in groups(stage).values()] == [2], "group of 2"
        )
        write(a_job(parallelism=4))
        await eventually(
            lambda: [one.minimum for one in groups(stage).values()] == [4], "group of 4"
        )
        write(a_job(status={"conditions": [{"type": "Complete", "status": "True"}]}))
        await eventually(lambda: not groups(stage), "no groups")
        (retired,) = stage.event_data(TreeRetired)
        assert retired.reason == "finished"


async def test_a_refused_workload_waits_until_its_file_is_mended(served):
    async with served(a_job(annotations={GANG: "per-job"})) as (stage, write):
        await eventually(lambda: trees(stage) == {"default/fit": "refused"}, "refusal")
        (refused,) = stage.event_data(TreeRefused)
        assert (refused.reason, "'per-job'" in refused.message) == ("InvalidAnnotation", True)
        (pod,) = stage.cluster.view().pods.values()
        assert pod.gates
        assert not groups(stage)
        write(a_job())
        await eventually(lambda: trees(stage) == {"default/fit": "compiled"}, "tree")
        await eventually(lambda: len(groups(stage)) == 1, "group")


async def test_a_profile_in_a_file_counts(served):
    job = a_job(labels={"gang-extender.dev/tree": "calm"})
    async with served(job) as (stage, write):
        await eventually(lambda: trees(stage) == {"default/fit": "refused"}, "refusal")
        write(job, a_profile("calm", {"kind": "Job", "enabled": False}))
        await eventually(lambda: trees(stage) == {"default/fit": "basic"}, "Basic leaf")
        await eventually(lambda: [one.basic for one in groups(stage).values()] == [True], "group")


async def test_a_restart_finds_the_groups_that_were_written(served):
    async with served(a_jobset()) as (stage, _):
        await eventually(lambda: len(groups(stage)) == 5, "groups")
        before, first = groups(stage), stage
        await stage.stop_leading()
    async with served(after=first) as (stage, write):
        assert groups(stage) == before
        write(a_jobset(), a_job())
        await eventually(lambda: len(groups(stage)) == 6, "groups of the second workload")
        assert {key: one.uid for key, one in groups(stage).items() if key in before} == {
            key: one.uid for key, one in before.items()
        }
        assert len(stage.event_data(TreeCompiled)) == 2


def a_raycluster(minimum: int, head: int):
    """Make a RayCluster with a worker group of two, and the CPUs of its head."""
    spec = {
        "headGroupSpec": {"template": a_template({"cpu": head})},
        "workerGroupSpecs": [
            {"groupName": "g", "replicas": 2, "minReplicas": minimum, "template": a_template()}
        ],
    }
    return an_object("RayCluster", "c", "ray.io/v1", metadata={"labels": dict(DEFAULT)}, spec=spec)


async def test_the_required_groups_follow_the_workload_and_hold_back_its_workers(served):
    """The head fits nowhere, so its workers get no plan either; a minimum of workers that comes later is required too."""
    nodes = [a_node(name, cpu=4) for name in ("n0", "n1")]
    async with served(*nodes, a_raycluster(0, 9)) as (stage, write):
        await eventually(lambda: len(groups(stage)) == 3, "groups")
        root = composite_key("default", "c-ray")
        assert groups(stage)[root].required == ("c-ray-headgroup",)
        (tree,) = build_forest(groups(stage), {k: v.values() for k, v in stage.cluster.view().members.items()}).trees.values()  # fmt: skip
        assert len(tree.pods) == 3
        part = TreeParts().of(tree, None)
        request = plan_request(stage.cluster.view(), EMPTY, part, rows=NodeRowCache(), budget=1_000)
        assert plan(request).outcome == "impossible"
        write(*nodes, a_raycluster(1, 2))
        await eventually(lambda: groups(stage)[root].minimum == 2, "the new minimum")
        assert groups(stage)[root].required == ("c-ray-g", "c-ray-headgroup")


def a_plain_pod(number: int, total: str = "2"):
    """Make a pod of the plain group `sweep`."""
    labels = {"gang-extender.dev/group": "sweep", "gang-extender.dev/total": total}
    return an_object(
        "Pod", f"w-{number}", "v1", metadata={"labels": labels}, spec=a_template()["spec"]
    )


async def test_plain_pods_with_two_labels_become_a_gang_that_goes_with_the_last_of_them(served):
    """No object owns the group: it is there while a pod is, also after a restart, and is deleted by the service."""
    async with served(a_plain_pod(0)) as (stage, write):
        await eventually(lambda: len(groups(stage)) == 1, "group")
        ((key, group),) = groups(stage).items()
        assert (key.name, group.minimum, group.basic) == ("sweep", 2, False)
        assert trees(stage) == {"default/sweep": "compiled"}
        write(a_plain_pod(0), a_plain_pod(1))
        await eventually(lambda: len(stage.cluster.view().members.get(key, {})) == 2, "members")
        before, first = groups(stage), stage
        await stage.stop_leading()
    async with served(after=first) as (stage, write):
        assert groups(stage) == before
        write(a_plain_pod(1))
        await eventually(lambda: len(stage.cluster.view().members.get(key, {})) == 1, "one pod")
        assert groups(stage) == before
        write()
        await eventually(lambda: stage.event_data(TreeRetired), "end of the tree")
        await eventually(lambda: not groups(stage), "end of the group")


async def test_plain_pods_with_two_totals_are_refused_until_they_agree(served):
    async with served(a_plain_pod(0), a_plain_pod(1, "3")) as (stage, write):
        await eventually(lambda: trees(stage) == {"default/sweep": "refused"}, "refusal")
        (refused,) = stage.event_data(TreeRefused)
        assert "its pods have '2' and '3'" in refused.message
        assert not groups(stage)
        write(a_plain_pod(0, "3"), a_plain_pod(1, "3"))
        await eventually(lambda: [one.minimum for one in groups(stage).values()] == [3], "group")


async def test_plain_pods_with_an_annotation_of_workloads_are_refused(served):
    labels = {"gang-extender.dev/group": "sweep", "gang-extender.dev/total": "1"}
    annotations = {"gang-extender.dev/topology": "leaf=net/rack"}
    pod = a_pod("sweep-0", metadata={"labels": labels, "annotations": annotations})
    async with served(pod) as (stage, _):
        await eventually(lambda: trees(stage), "a tree")
        (event,) = stage.event_data(TreeRefused)
        assert "metadata.annotations[gang-extender.dev/topology]: is not read" in event.message
        assert not groups(stage)
