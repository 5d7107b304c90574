"""Groups that the controllers of workloads make are adopted: one annotation, and composites of ours above them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from extender.core.workloads.workload_object import GROUP_LABEL
from tests.controlplane.api import ApiError, Object
from tests.controlplane.controllers.jobset_player import SCHEDULING, make_groups, make_jobs
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import ROOT
from tests.e2e.trees.workloads import (
    TREE,
    a_job,
    a_jobset,
    a_replicated_job,
    groups,
    racks,
    until_groups,
    until_pods,
    until_running,
)
from tests.support.service.manifest_builders import a_group

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37 --feature-gates=WorkloadWithJob=true"),
]

PARENT = "gang-extender.dev/parent"
BUILT_IN = f"/apis/{SCHEDULING}/namespaces/default/podgroups"
WHOLE = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}


def a_native_job(name: str, profile: str, pods: int, parent: str = "") -> Object:
    """Return a Job whose controller makes a gang of its pods."""
    job = a_job(name, pods, **({"parent": parent} if parent else {}))
    job["metadata"]["labels"] = {TREE: profile}
    job["spec"]["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    return job


async def native_groups(story: Story) -> dict[str, Object]:
    """Return the built-in PodGroups by name."""
    return {one["metadata"]["name"]: one for one in (await story.api.get(BUILT_IN))["items"]}


def parent_of(group: Object) -> str:
    return str(group["metadata"].get("annotations", {}).get(PARENT, ""))


async def until_linked(story: Story, **expected: int) -> dict[str, Object]:
    """Wait until so many built-in groups are below each composite; return all built-in groups."""

    async def look() -> list[dict[str, Object]]:
        found = await native_groups(story)
        below: dict[str, int] = {}
        for group in found.values():
            below[parent_of(group)] = below.get(parent_of(group), 0) + 1
        return [found] if below == expected else []

    (found,) = await story.until(look, every_s=0.1)
    made: dict[str, Object] = found
    return made


def a_search(minimum: int) -> Object:
    """Return a composite of the user's."""
    return a_group("search", composite=True, gang=minimum, workload="search")


async def check_replay(story: Story, database_url: str) -> None:
    """Decide the last recorded tree with adopted groups again."""
    events = [
        one for one in await story.service.events("TreeCompiled") if one["data"].get("adopted")
    ]
    position = str(events[-1]["position"])
    command = [sys.executable, "-m", "extender", "decision", "replay", position]
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--database-url", database_url],
        check=False, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, "the same result" in done.stdout) == (0, True), done


@pytest.mark.native_gangs("both")
async def test_two_jobs_below_one_composite_are_all_or_nothing(
    story: Story,
    adopting: str,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    database_url: str,
) -> None:
    """Capacity for one of them and a half: no pod is bound; with another node all are, also after a kill."""
    await story.create(*racks("r0", nodes=1, cpu="3"))
    await story.create(a_search(2))
    for name in ("one", "two"):
        await story.api.create(a_native_job(name, adopting, 2, "search"))
    made = await until_linked(story, search=2)
    pods = await until_pods(story, 4)
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods.values()} == set(made)
    assert not [p for p in pods.values() if TREE in p["metadata"]["labels"]]
    for group in made.values():
        (owner,) = [one for one in group["metadata"]["ownerReferences"] if one.get("controller")]
        assert owner["kind"] == "Job"
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        assert "parentCompositePodGroupName" not in group["spec"]
    await story.until_event("GangUnschedulable", "default/search", outcome="impossible")
    assert not await story.bound()
    story.service.kill()
    await story.service.start()
    await story.create(*racks("r1", nodes=1, cpu="3"))
    assert len(await story.until_bound(4)) == 4
    assert set(await groups(story)) == {"search"}
    await check_replay(story, database_url)
    await story.check_events()


async def test_a_job_alone_is_placed_by_the_group_of_its_controller(
    story: Story, adopting: str, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """No composite is missing: nothing is written, and the pods run."""
    await story.create(*racks("r0", nodes=1, cpu="4"))
    await story.api.create(a_native_job("alone", adopting, 2))
    assert len(await story.until_bound(2, "alone-")) == 2
    (group,) = (await native_groups(story)).values()
    assert parent_of(group) == ""
    assert not await groups(story)
    event = await story.until_event("TreeCompiled", workload="default/alone")
    assert [one["name"] for one in event["data"]["adopted"]] == [group["metadata"]["name"]]
    await story.check_events()


async def test_a_jobset_gets_the_composites_above_its_groups(
    story: Story,
    adopting: str,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    database_url: str,
) -> None:
    """A driver and two slices: no slice is placed without the others, and nothing is left of a deleted JobSet."""
    await story.create(*racks("r0", nodes=1, cpu="4"))
    jobs = [a_replicated_job("driver", 1, 1), a_replicated_job("worker", 2, 2)]
    jobset = a_jobset("train", jobs)
    jobset["metadata"]["labels"] = {TREE: adopting}
    entries = [
        {"targetReplicatedJobs": ["driver"], **WHOLE},
        {"targetReplicatedJobs": ["worker"], "job": WHOLE},
    ]
    jobset["spec"]["scheduling"] = {"replicatedJobs": entries}
    stored = await story.api.create(jobset)
    uid = stored["metadata"]["uid"][:8]
    root, workers = f"train-{uid}", f"train-worker-{uid}"
    composites = await until_groups(story, 2)
    assert set(composites) == {root, workers}
    assert composites[workers]["spec"]["parentCompositePodGroupName"] == root
    for composite in composites.values():
        assert composite["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
        assert composite["spec"]["disruptionMode"] == {"all": {}}
    names = await make_groups(story.api, stored)
    await make_jobs(story.api, stored)
    assert set(await until_linked(story, **{root: 1, workers: 2})) == set(names)
    await until_pods(story, 5)
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1, cpu="4"))
    assert len(await story.until_bound(5, "train-")) == 5
    await check_replay(story, database_url)
    how = {"propagationPolicy": "Background"}
    await story.api.delete("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/train", how)
    await until_groups(story, 0)
    await until_linked(story)
    await story.check_events()


async def test_a_job_without_a_block_keeps_its_gang(
    story: Story, adopting: str, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The Job controller makes a basic group for it too; its pods name our leaf, and are all or nothing."""
    await story.create(*racks("r0", nodes=1, cpu="2"))
    await story.api.create(a_job("fit", 4))
    pods = await until_pods(story, 4)
    (leaf,) = await until_groups(story, 1)
    assert {pod["metadata"]["labels"][GROUP_LABEL] for pod in pods.values()} == {leaf}
    assert not [pod for pod in pods.values() if "schedulingGroup" in pod["spec"]]
    assert await native_groups(story)
    await story.until_event("GangUnschedulable", f"default/{leaf}", outcome="impossible")
    assert not await story.bound()
    await story.create(*racks("r1", nodes=1, cpu="2"))
    assert len(await story.until_bound(4, "fit-")) == 4
    await story.check_events()


async def test_the_minimum_of_a_native_job_is_not_lowered(
    story: Story, adopting: str, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The Job controller of 1.37 leaves it at parallelism: the last pod of three waits, and the reason is in the log."""
    await story.create(*racks("r0", nodes=1, cpu="4"))
    job = a_native_job("fit", adopting, 2)
    job["spec"]["completions"] = 3
    await story.api.create(job)
    first = await story.until_bound(2, "fit-")
    await until_running(story, "fit-", 2, gone=frozenset())
    await asyncio.gather(*(kubelet.succeed(name) for name in first))
    event = await story.until_event("GangUnschedulable", outcome="waiting")
    assert "2 required, 1 present" in event["summary"]
    (group,) = (await native_groups(story)).values()
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert await story.bound() == first


async def test_only_metadata_and_the_minimum_of_a_built_in_group_may_change(
    story: Story, adopting: str, controllers: WorkloadControllers
) -> None:
    """What an adoption can be: an annotation. The parent in the spec is immutable, and the minimum is not ours."""
    await story.api.create(a_group("flat", gang=2, version=SCHEDULING))
    path = f"{BUILT_IN}/flat"

    async def changed(**spec: Any) -> str:
        try:
            await story.api.patch(path, {"spec": spec})
        except ApiError as error:
            return str(error)
        return ""

    assert "immutable" in await changed(disruptionMode={"all": {}})
    assert "immutable" in await changed(schedulingConstraints={"topology": [{"key": "net/rack"}]})
    assert await changed(schedulingPolicy={"gang": {"minCount": 1}}) == ""
    before = (await native_groups(story))["flat"]["spec"]
    await story.api.patch(path, {"metadata": {"annotations": {PARENT: "above"}}})
    after = (await native_groups(story))["flat"]
    assert (parent_of(after), after["spec"]) == ("above", before)
