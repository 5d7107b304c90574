"""The gang scheduling requirement of Kubernetes AI conformance (KAR-0053), by its test plan, and what that leaves out.

`docs/explanation/conformance.md` has the requirement and what each of these tests shows of it.
"""

from __future__ import annotations

import itertools

import pytest

from extender.ports.written_names import REPORTER
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.trees.workloads import a_job, racks, until_pods, until_running
from tests.support.service.manifest_builders import a_gang

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37", "1.36"),
]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SLOTS = 4  # of racks("r0"): pods of one CPU on two nodes


async def until_refused(story: Story, gang: str, *texts: str) -> None:
    """Wait until the condition of the group and an Event of ours about a pod of it have these texts."""

    def has_all(messages: list[str]) -> bool:
        return any(all(text in message for text in texts) for message in messages)

    async def look() -> bool:
        groups = (await story.api.get(f"/apis/{OURS}/podgroups"))["items"]
        conditions = [
            condition["message"]
            for group in groups
            if group["metadata"]["name"].startswith(gang)
            for condition in group.get("status", {}).get("conditions", ())
            if condition["status"] == "False"
        ]
        events = (await story.api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
        notes = [
            event["note"]
            for event in events
            if event["regarding"]["kind"] == "Pod"
            and event["regarding"]["name"].startswith(gang)
            and event.get("reportingController") == REPORTER
        ]
        return has_all(conditions) and has_all(notes)

    await story.until(look, f"{gang} is refused: {texts}", every_s=0.1)


async def complete(story: Story, kubelet: Kubelet, job: str) -> None:
    """Let all pods of a Job end with success, and wait until the Job is complete."""
    for name in await story.bound(f"{job}-"):
        await kubelet.succeed(name)

    async def ended() -> bool:
        status = (await story.api.get(f"{JOBS}/{job}")).get("status", {})
        return any(c["type"] == "Complete" for c in status.get("conditions", ()))

    await story.until(ended, f"Job {job} is complete")


async def test_a_workload_that_fits_runs_as_a_whole_and_completes(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The positive case, and the cleanup: the next one of the same size gets what was released."""
    await story.create(*racks("r0"))
    for name in ("first", "second"):
        await story.api.create(a_job(name, SLOTS))
        await story.until_bound(SLOTS, f"{name}-")
        await until_running(story, f"{name}-", SLOTS, gone=frozenset())
        await complete(story, kubelet, name)
        await story.api.delete(f"{JOBS}/{name}", {"propagationPolicy": "Background"})
    await until_pods(story, 0)
    await story.check_events()


async def test_a_workload_that_does_not_fit_has_no_pod_with_a_node(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """The negative case: one slot short. The refusal is that of the gang, by name and number, and holds nothing that others need."""
    await story.create(*racks("r0"))
    await story.api.create(a_job("large", SLOTS + 1))
    await until_pods(story, SLOTS + 1)
    refused = await story.until_event("GangUnschedulable", outcome="impossible")
    counts = f"needs {SLOTS + 1} pods; the cluster holds {SLOTS} (1 missing: cpu)"
    await until_refused(story, "large", f"PodGroup {refused['gang']} ", counts)

    await story.api.create(a_job("small", SLOTS))
    await story.until_bound(SLOTS, "small-")
    await until_running(story, "small-", SLOTS, gone=frozenset())
    await story.stays(lambda: story.none_bound("large-"))

    await story.create(*racks("r1", nodes=1))
    await story.stays(lambda: story.none_bound("large-"))
    await complete(story, kubelet, "small")
    await story.until_bound(SLOTS + 1, "large-")
    await until_running(story, "large-", SLOTS + 1, gone=frozenset())
    await story.check_events()


@pytest.mark.every_case
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="before".join)
async def test_of_two_gangs_for_the_same_nodes_one_runs_as_a_whole(
    story: Story, kubelet: Kubelet, order: tuple[str, str]
) -> None:
    """Their pods come by turns, so that each could have a part of the nodes. When the one has ended the other one runs."""
    await story.create(*racks("r0"))
    gangs = [a_gang(name, pods=3, requests={"cpu": 1}) for name in order]
    await story.create(*itertools.chain.from_iterable(zip(*gangs, strict=True)))
    bound = await story.until_bound(3)
    await story.until_event("GangScheduled")
    await story.stays(lambda: all_in_one(story))
    (first,) = {name.partition("-")[0] for name in bound}
    (second,) = {*order} - {first}
    refused = await story.until_event("GangUnschedulable", f"default/{second}")
    assert f"PodGroup default/{second} needs 3 pods" in " ".join(refused["data"]["reasons"])
    for name in bound:
        await kubelet.succeed(name)
    await story.until_bound(3, f"{second}-")
    await until_running(story, f"{second}-", 3, gone=frozenset())
    await story.check_events()


async def all_in_one(story: Story) -> bool:
    """Return whether the bound pods are three of one gang."""
    bound = await story.bound()
    return len(bound) == 3 and len({name.partition("-")[0] for name in bound}) == 1
