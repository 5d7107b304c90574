"""A JobSet is moved off a rack pod by pod, by the real controllers, and by a service that is killed between two moves."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from extender.control.actuators.move_controller import POLICY
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.scenarios.service import ROOT
from tests.e2e.trees.workloads import RACK, TREE, a_jobset, a_replicated_job, racks, until_running
from tests.support.service.manifest_builders import a_group, a_node, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

PODS, MINIMUM = 4, 3
# gangs of a workload are disrupted as a whole, unless its profile has another mode
PROFILE = "movable"


@pytest.fixture
async def movable(story: Story) -> AsyncIterator[str]:
    """A TreeProfile whose gangs give single pods."""
    spec = {"kinds": [{"kind": "JobSet", "disruptionMode": "single"}]}
    profile = {"apiVersion": OURS, "kind": "TreeProfile", "metadata": {"name": PROFILE}}
    await story.api.create(profile | {"spec": spec})
    yield PROFILE
    await story.api.delete(f"/apis/{OURS}/treeprofiles/{PROFILE}")


class Running:
    """How many pods of a JobSet ran in each state that a watch has shown."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._pods: set[str] = set()
        self.fewest = PODS

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch while the block runs, from when all pods were shown on."""
        all_run = asyncio.Event()
        task = asyncio.create_task(self._watch(all_run))
        try:
            await self._story.until(all_run.is_set, "the watch shows all pods")
            yield
        finally:
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result

    async def _watch(self, all_run: asyncio.Event) -> None:
        async for kind, pod in self._story.api.watch("/api/v1/namespaces/default/pods"):
            metadata = pod["metadata"]
            runs = kind != "DELETED" and "deletionTimestamp" not in metadata
            if runs and pod["spec"].get("nodeName"):
                self._pods.add(metadata["uid"])
            else:
                self._pods.discard(metadata["uid"])
            if len(self._pods) == PODS:
                all_run.set()
            if all_run.is_set():
                self.fewest = min(self.fewest, len(self._pods))


async def command(story: Story, *words: str) -> str:
    """Return what a command prints about the service."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "extender", *words, "--server", story.service.url],
        cwd=ROOT, capture_output=True, text=True, check=False, env=story.service.command_environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    printed: str = done.stdout
    return printed


async def running_jobset(story: Story, profile: str) -> set[str]:
    """Create a JobSet with a profile; return the UIDs of its pods when all run."""
    job = a_replicated_job("worker", PODS, 1)
    job["template"]["spec"]["backoffLimit"] = 6  # an eviction is a failure of its pod
    jobset = a_jobset("train", [job], min=str(MINIMUM))
    jobset["metadata"]["labels"] = {TREE: profile}
    await story.api.create(jobset)
    await story.until_bound(PODS, "train-")
    uids = await until_running(story, "train-", PODS, gone=frozenset())
    await story.until_event("GangScheduled")
    return uids


async def test_a_jobset_leaves_a_rack_pod_by_pod(
    story: Story,
    tree_policies: None,
    movable: str,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
) -> None:
    """With `drain --apply` under the rights that we ship; never fewer than its minimum, each pod once, also with kill -9."""
    await story.create(*racks("r0"))
    before = await running_jobset(story, movable)
    await story.create(*racks("r1"))
    running = Running(story)
    async with running.watched():
        printed = await command(story, "drain", f"{RACK}=r0", "--apply")
        assert "the service makes these moves now" in printed
        await story.until_event("MoveCompleted")
        story.service.kill()
        await story.service.start()
        await story.until_event("MovesEnded")
    assert running.fewest == MINIMUM
    after = await until_running(story, "train-", PODS, gone=frozenset(before))
    assert len(after) == PODS
    assert {node.rpartition("-")[0] for node in (await story.bound("train-")).values()} == {"r1"}
    completed = await story.service.events("MoveCompleted")
    assert [entry["data"]["number"] for entry in completed] == list(range(1, PODS + 1))
    assert {entry["data"]["uid"] for entry in completed} == before
    (end,) = await story.service.events("MovesEnded")
    assert end["data"]["reason"] == "completed"
    assert "no moves are under way" in await command(story, "moves")
    (planned,) = await story.service.events("MovesPlanned")
    await command(story, "decision", "replay", str(planned["position"]))
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
@pytest.mark.settings(
    moves_after_s="2", moves_at_most="2", hold_capacity_after_s="0", preemption="false"
)
async def test_members_are_moved_by_policy_for_a_gang_that_waits(
    story: Story,
    tree_policies: None,
    movable: str,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
) -> None:
    """Its pod needs half of the node on which all members run; two have a place elsewhere. Planned and moved once, also with kill -9."""
    await story.create(a_node("n0", cpu="4"))
    before = await running_jobset(story, movable)
    running = Running(story)
    async with running.watched():
        await story.create(
            *(a_node(f"n{i}", cpu="1") for i in (1, 2)),
            a_group("big", gang=1),
            a_pod("big-0", "big", requests={"cpu": 2}),
        )
        for step in ("MovesPlanned", "MoveCompleted"):
            await story.until_event(step)
            story.service.kill()
            await story.service.start()
        await story.until_event("MovesEnded")
        await story.until_bound(1, "big-")
    assert running.fewest == MINIMUM
    assert (await story.bound("big-")) == {"big-0": "n0"}
    (planned,) = await story.service.events("MovesPlanned")
    data = planned["data"]
    assert (data["by"], data["for_gang"], len(data["moves"])) == (POLICY, "default/big", 2)
    completed = await story.service.events("MoveCompleted")
    assert [entry["data"]["number"] for entry in completed] == [1, 2]
    (end,) = await story.service.events("MovesEnded")
    assert end["data"]["reason"] in ("completed", "no-longer-needed")
    after = await until_running(story, "train-", PODS, gone=frozenset())
    assert len(after & before) == PODS - 2
    await command(story, "decision", "replay", str(planned["position"]))
    await story.check_events()
    await story.check_capacity()
