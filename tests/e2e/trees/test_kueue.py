"""Kueue and the service on one cluster: quota first, then a place; and the AdmissionCheck that asks for the place first.

The objects are those of docs/how-to/kueue.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.controlplane.api import ApiError, Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.processes import Process
from tests.e2e.scenarios.conftest import DEPLOY, Story
from tests.e2e.trees.test_statefulset_trees import a_statefulset
from tests.e2e.trees.workloads import (
    a_jobset,
    a_leaderworkerset,
    a_replicated_job,
    a_template,
    groups,
    racks,
    until_groups,
)
from tests.support.page_commands import blocks
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("never"),
    pytest.mark.kubernetes("1.37"),
]

PAGE = "docs/how-to/kueue.md"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{QUEUES}/namespaces/default/workloads"
QUEUE = {"kueue.x-k8s.io/queue-name": "team-a"}
JOBS = "/apis/batch/v1/namespaces/default/jobs"
LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
SETS = "/apis/apps/v1/namespaces/default/statefulsets"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
STORED = (
    f"{QUEUES}/namespaces/default/localqueues",
    *(
        f"{QUEUES}/{plural}"
        for plural in (
            "clusterqueues",
            "resourceflavors",
            "admissionchecks",
            "workloadpriorityclasses",
        )
    ),
)
KUEUES_GATE = "kueue.x-k8s.io/admission"


def of_page(heading: str) -> list[Object]:
    """Return the objects of a section of the page."""
    return [one for block in blocks(PAGE, heading, "yaml") for one in yaml.safe_load_all(block)]


@pytest.fixture(scope="module")
def running_kueue(running_controllers: WorkloadControllers) -> Iterator[Process]:
    """Kueue beside the workload controllers, and what the service may do for its checks."""
    plane = running_controllers.plane
    with running_controllers.also("kueue") as process:
        role = f"--filename={DEPLOY / 'kueue' / 'admission-check.yaml'}"
        done = plane.kubectl("apply", "--server-side", role)
        assert done.returncode == 0, done.stderr
        yield process


@pytest.fixture
async def kueue(running_kueue: Process, controllers: WorkloadControllers) -> AsyncIterator[Process]:
    """Kueue, with no queue and no Workload of another story afterwards."""
    yield running_kueue
    async with controllers.plane.api() as api:
        pods = "/api/v1/namespaces/default/pods"

        async def gone() -> bool:
            left = 0
            # Workloads first: Kueue keeps the pods of a group until theirs has ended, and queues until none is in them.
            for path in (WORKLOADS, JOBS, JOBSETS, LWS, SETS, pods, *STORED):
                # no kubelet ends them any more
                await api.delete(path, {"gracePeriodSeconds": 0} if path == pods else None)
                left += len((await api.get(path))["items"])
            for pod in (await api.get(pods))["items"]:
                with contextlib.suppress(ApiError):  # it has gone by itself
                    await api.patch(
                        f"{pods}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}}
                    )
            return left == 0

        await eventually(gone, "no object of Kueue is left", every_s=0.2)


def a_queued_job(name: str, parallelism: int = 4, **annotations: str) -> Object:
    """Return the Job of the page under another name."""
    (job,) = of_page("Workload")
    job["metadata"]["name"] = name
    job["metadata"]["annotations"] |= {
        f"gang-extender.dev/{key}": value for key, value in annotations.items()
    }
    job["spec"] |= {"parallelism": parallelism, "completions": parallelism}
    return job


async def workload_of(story: Story, owner: str) -> Object | None:
    """Return Kueue's Workload of an object, or None."""
    for workload in (await story.api.get(WORKLOADS))["items"]:
        owners = workload["metadata"].get("ownerReferences", ())
        if any(reference["name"] == owner for reference in owners):
            return workload
    return None


async def has_condition(story: Story, owner: str, kind: str, status: str = "True") -> Any:
    """Return the condition of the Workload of an object if it has that status."""
    workload = await workload_of(story, owner) or {}
    conditions = workload.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == kind and c["status"] == status), None)


async def test_quota_admits_one_job_after_the_other_and_each_is_placed_in_a_rack(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Quota for one Job of two: the first has a rack, the second none of its pods, until the first has ended."""
    await story.create(*racks("r0", "r1"), *of_page("Queue"))
    await story.create(a_queued_job("first"))
    bound = await story.until_bound(4, "first-")
    assert len({node.partition("-")[0] for node in bound.values()}) == 1
    await story.create(a_queued_job("second"))
    reserved = await story.until(lambda: has_condition(story, "second", "QuotaReserved", "False"))
    assert "insufficient unused quota" in reserved["message"]
    assert not [name for name in await story.pods() if name.startswith("second-")]
    for name in bound:
        await kubelet.succeed(name)
    await story.until_bound(4, "second-")
    await story.check_events()


@pytest.mark.full
async def test_the_pods_of_a_jobset_are_placed_after_quota(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """All Jobs of the JobSet are suspended until Kueue admits it; then it is a tree as without Kueue."""
    await story.create(*racks("r0", "r1"), *of_page("Queue"))
    jobset = a_jobset("train", [a_replicated_job("w", 2, 2)])
    jobset["metadata"]["labels"] |= QUEUE
    await story.create(jobset)
    assert len(await story.until_bound(4, "train-")) == 4
    await story.check_events()


@pytest.mark.full
@pytest.mark.parametrize("kueue_first", [True, False], ids=["Kueue first", "place first"])
async def test_both_gates_go_in_either_order(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet, kueue_first: bool
) -> None:
    """Plain pods have a gate of each. With Kueue's still there no pod is bound; without it the pods are placed.

    Kueue's goes first where quota is there and nodes are not; ours can only follow it, as pods with a gate of another
    controller are no members: with nodes and without quota none is placed.
    """
    queue = of_page("Queue")
    late = queue if not kueue_first else racks("r0")
    await story.create(*(racks("r0") if not kueue_first else queue))
    for number in range(3):
        metadata = {
            "name": f"sweep-{number}",
            "namespace": "default",
            "labels": {
                **QUEUE,
                "gang-extender.dev/tree": "default",
                "kueue.x-k8s.io/pod-group-name": "sweep",
            },
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
        }
        await story.api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **a_template()}
        )
    await until_groups(story, 1)

    async def gates() -> set[str]:
        return {
            gate["name"]
            for pod in (await story.pods()).values()
            for gate in pod["spec"].get("schedulingGates", ())
        }

    async def waits() -> bool:
        return (KUEUES_GATE not in await gates()) is kueue_first

    await story.until(waits, every_s=0.1)
    await story.stays(story.none_bound)
    await story.create(*late)
    assert len(await story.until_bound(3, "sweep-")) == 3
    assert not await gates()
    await story.check_events()


async def check_of(story: Story, owner: str) -> Object:
    """Return the check of the Workload of an object; {} before there is one."""
    workload = await workload_of(story, owner) or {}
    checks = workload.get("status", {}).get("admissionChecks", [{}])
    assert len(checks) == 1
    return checks[0]


async def until_check(story: Story, owner: str, state: str) -> Object:
    """Wait until the check of the Workload of an object has a state."""

    async def look() -> Object | None:
        check = await check_of(story, owner)
        return check if check.get("state") == state else None

    return await story.until(look, f"the check of {owner} is {state}", every_s=0.1)


async def with_check(story: Story) -> None:
    """Create flavor, queue and check of the page, and wait until the check is answered."""
    flavor, _, local = of_page("Queue")
    check, queue = of_page("Admission check")
    await story.create(flavor, check, queue, local)

    async def is_active() -> bool:
        stored = await story.api.get(f"{QUEUES}/admissionchecks/{check['metadata']['name']}")
        return any(c["type"] == "Active" for c in stored.get("status", {}).get("conditions", ()))

    await story.until(is_active, "the check is active", every_s=0.1)


@pytest.mark.settings(admission_check_retry_s="2")
async def test_the_check_waits_with_its_reason_until_it_fits(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Quota for both Jobs, and one rack: the second has the reason, gives its quota back, and runs after the first."""
    await story.create(*racks("r0"))
    await with_check(story)
    await story.create(a_queued_job("first"))
    bound = await story.until_bound(4, "first-")
    assert (await check_of(story, "first"))["message"].startswith("fits now")
    await story.create(a_queued_job("second"))
    evicted = await story.until(lambda: has_condition(story, "second", "Evicted"), every_s=0.1)
    assert evicted["reason"] == "AdmissionCheck"
    assert "does not fit now" in evicted["message"]
    assert not [name for name in await story.pods() if name.startswith("second-")]
    for name in bound:
        await kubelet.succeed(name)
    await until_check(story, "second", "Ready")
    await story.until_bound(4, "second-")
    await story.check_events()


@pytest.mark.full
async def test_the_check_rejects_what_never_fits(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """A Job of five in racks of four: Kueue deactivates its Workload, with our reason."""
    await story.create(*racks("r0", "r1"))
    await with_check(story)
    await story.create(a_queued_job("wide", 5))
    target = await story.until(lambda: has_condition(story, "wide", "Evicted"), every_s=0.1)
    assert "Rejected" in target["message"]
    assert "never fits, whatever else runs" in target["message"]

    async def is_deactivated() -> bool:
        return (await workload_of(story, "wide") or {})["spec"].get("active") is False

    await story.until(is_deactivated, every_s=0.1)
    assert not await story.bound()


@pytest.mark.parametrize("when", ["away", "before the answer", "after the answer"])
async def test_a_killed_service_answers_after_its_start(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet, when: str
) -> None:
    """Without the service the Workload keeps its quota and none of its pods runs; what was written once is not lost."""
    await story.create(*racks("r0"))
    await with_check(story)
    killed = asyncio.Event()

    def is_answer(method: str, path: str) -> bool:
        return method == "PATCH" and path.startswith(WORKLOADS) and not killed.is_set()

    def kill() -> None:
        story.service.kill()
        killed.set()

    async def before(method: str, path: str) -> web.Response | None:
        if when == "before the answer" and is_answer(method, path):
            kill()
            return web.Response(status=503)
        return None

    async def after(method: str, path: str, status: int) -> None:
        if when == "after the answer" and is_answer(method, path):
            assert status == 200
            kill()

    story.server.before, story.server.after = before, after
    if when == "away":
        kill()
    await story.create(a_queued_job("train"))
    await story.until(lambda: has_condition(story, "train", "QuotaReserved"), every_s=0.1)
    await killed.wait()
    if when != "after the answer":
        await until_check(story, "train", "Pending")  # Kueue writes it after the quota
        assert not await has_condition(story, "train", "Admitted")
        assert not [name for name in await story.pods() if name.startswith("train-")]
    await story.service.start()
    await until_check(story, "train", "Ready")
    assert len(await story.until_bound(4, "train-")) == 4
    await story.check_events()


@pytest.mark.full
async def test_a_stolen_token_changes_nothing_else_of_a_workload_of_kueue(
    story: Story, tree_policies: None, kueue: Process
) -> None:
    """RBAC lets the account of the service write their whole status; the admission policies only the state of checks."""
    await with_check(story)
    story.service.kill()
    await story.create(a_queued_job("train"))
    await until_check(story, "train", "Pending")
    workload = await workload_of(story, "train") or {}
    path = f"{WORKLOADS}/{workload['metadata']['name']}/status"
    check = f"{QUEUES}/admissionchecks/gang-places/status"
    admitted = {"type": "Admitted", "status": "True", "reason": "Mine", "message": ""}
    admitted["lastTransitionTime"] = "2026-11-29T12:00:00Z"
    attempts = {
        path: {"conditions": [admitted]},
        check: {"conditions": [admitted]},
    }
    async with story.plane.api("extender") as thief:
        for where, status in attempts.items():
            with pytest.raises(ApiError, match=r"the extender (changes|writes)"):
                await thief.patch(where, {"status": status})
        entry = (await check_of(story, "train")) | {"name": "another"}
        with pytest.raises(ApiError, match="adds and removes no AdmissionCheck"):
            await thief.patch(path, {"status": {"admissionChecks": [entry]}})


@pytest.mark.full
async def test_a_part_of_a_job_is_checked_by_two_checks_and_runs(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Quota for four of six pods, which are more than the rack holds."""
    await story.create(*racks("r0"))
    flavor, _, local = of_page("Queue")
    check, queue = of_page("Admission check")
    second = {**check, "metadata": {"name": "gang-places-too"}}
    queue["spec"]["admissionChecksStrategy"]["admissionChecks"].append(second["metadata"])
    (covered,) = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    covered["nominalQuota"] = "4"
    await story.create(flavor, check, second, queue, local)
    job = a_queued_job("part", 6)
    job["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] = "2"
    await story.create(job)
    assert len(await story.until_bound(4, "part-")) == 4
    checks = (await workload_of(story, "part") or {})["status"]["admissionChecks"]
    assert [each["state"] for each in checks] == ["Ready", "Ready"]
    await story.check_events()


@pytest.mark.full
async def test_the_replicas_of_a_leaderworkerset_are_placed_after_quota(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Kueue makes a Workload of each replica and gates its pods; each replica is a tree."""
    await story.create(*racks("r0", "r1"), *of_page("Queue"))
    serve = a_leaderworkerset("serve", 2, 2)
    serve["metadata"]["labels"] |= QUEUE
    await story.create(serve)
    assert len(await story.until_bound(4, "serve-")) == 4
    gates = [pod["spec"].get("schedulingGates") for pod in (await story.pods()).values()]
    assert not any(gates)
    await story.check_events()


@pytest.mark.full
async def test_the_pods_of_a_statefulset_are_placed_after_quota(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Kueue gates its pods as a group; they are one tree of the StatefulSet, and no second one of Kueue's labels."""
    await story.create(*racks("r0"))
    serve = a_statefulset(3)
    serve["metadata"]["labels"] |= QUEUE
    # the webhooks of these tests look at no other pods
    serve["spec"]["template"]["metadata"]["labels"] |= QUEUE
    await story.create(serve)
    await until_groups(story, 1)

    async def both_gates() -> bool:
        gates = [pod["spec"].get("schedulingGates", ()) for pod in (await story.pods()).values()]
        return len(gates) == 3 and all(KUEUES_GATE in {g["name"] for g in each} for each in gates)

    await story.until(both_gates, every_s=0.1)
    await story.stays(story.none_bound)
    await story.create(*of_page("Queue"))
    assert len(await story.until_bound(3, "web-")) == 3
    assert list(await groups(story)) == ["web-sts"]
    await story.check_events()


@pytest.mark.full
async def test_a_preemption_by_kueue_suspends_a_gang_and_places_another(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """Quota for one of two: the one with the higher priority runs in its place, and the other one after it."""
    flavor, queue, local = of_page("Queue")
    queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    classes = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
         "metadata": {"name": name}, "value": value}
        for name, value in (("low", 1), ("high", 1000))
    ]  # fmt: skip
    await story.create(*racks("r0"), flavor, queue, local, *classes)
    jobs = {name: a_queued_job(name) for name in ("low", "high")}
    for name, job in jobs.items():
        job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = name
    await story.create(jobs["low"])
    await story.until_bound(4, "low-")
    await story.create(jobs["high"])
    bound = await story.until_bound(4, "high-")
    assert (await has_condition(story, "low", "Evicted"))["reason"] == "Preempted"
    assert await story.none_bound("low-")
    for name in bound:
        await kubelet.succeed(name)
    await story.until_bound(4, "low-")
    await story.check_events()


@pytest.mark.full
async def test_a_flavor_with_taints_is_for_its_nodes(
    story: Story, tree_policies: None, kueue: Process, kubelet: Kubelet
) -> None:
    """The check counts the tainted nodes of the flavor and no others, and so do the pods that Kueue resumes."""
    tainted, plain = racks("r0"), racks("r1")
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    for node in tainted:
        node["metadata"]["labels"]["pool"] = "gpu"
        node.setdefault("spec", {})["taints"] = [taint]
    await story.create(*tainted, *plain)
    flavor, _, local = of_page("Queue")
    flavor["spec"] = {
        "nodeLabels": {"pool": "gpu"},
        "nodeTaints": [taint],
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    check, queue = of_page("Admission check")
    await story.create(flavor, check, queue, local, a_queued_job("train"))
    bound = await story.until_bound(4, "train-")
    assert {node.partition("-")[0] for node in bound.values()} == {"r0"}
    await until_check(story, "train", "Ready")
    await story.create(a_queued_job("next"))
    evicted = await story.until(lambda: has_condition(story, "next", "Evicted"), every_s=0.1)
    assert "does not fit now" in evicted["message"]
    await story.check_events()
