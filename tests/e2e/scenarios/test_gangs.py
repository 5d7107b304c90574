"""The five stories of the first slice: all or nothing, what vectors want, kill -9, two gangs, any order."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.api import ApiError
from tests.e2e.scenarios.conftest import Story, member
from tests.support.planning.spec_vectors import by_id
from tests.support.service.manifest_builders import a_gang, a_group, a_node, vector_objects
from tests.support.waiting import eventually

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}
# In an Event of this service, or in the words that kube-scheduler got.
NO_PLACE = re.compile("does not fit now|can never be placed|no capacity for its minimum")


def nodes(count: int) -> list[dict[str, Any]]:
    return [a_node(f"n{i}", gpu=8) for i in range(count)]


def gang(name: str, pods: int, **spec: Any) -> list[dict[str, Any]]:
    return a_gang(name, pods=pods, requests=GPU, **spec)


@pytest.mark.every_case
@pytest.mark.kubernetes("1.37", "1.36")
async def test_a_gang_binds_whole_or_not_at_all(story: Story) -> None:
    """One node short binds nothing, ever; when the node comes all bind without a change to a pod."""
    await story.create(*nodes(7), *gang("train", 8))
    await story.until_event("GangUnschedulable", "default/train", outcome="impossible")
    await story.stays(story.none_bound, 30)
    (*_, refused) = await story.service.events("GangUnschedulable")
    assert refused["data"]["outcome"] == "impossible"

    async def pod_has_event() -> bool:
        return any(map(NO_PLACE.search, await story.events_of("train-3")))

    await eventually(pod_has_event)
    assert not story.verbs.count("POST", "/bind")
    # how often kube-scheduler tries a member that was admitted follows from the changes beside it, not from us
    assert story.verbs.count("POST", "/filter") <= 2 * 8
    await story.create(a_node("n7", gpu=8))
    bound = await story.until_bound(8)
    assert len(set(bound.values())) == 8
    await story.until_event("GangScheduled", "default/train")
    await story.check_events()
    admitted = await story.until_event("GangAdmitted")
    assert {a["pod"]: a["node"] for a in admitted["data"]["assignments"]} == {
        f"default/{pod}": node for pod, node in bound.items()
    }
    pods = await story.pods()
    assert {p["metadata"]["annotations"]["gang-extender.dev/plan"] for p in pods.values()} == {
        admitted["data"]["plan"]
    }


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_members_without_the_gate_bind_too(story: Story) -> None:
    """Where the policy is not installed, refused members are woken by their nomination."""
    await story.kubectl("delete", "mutatingadmissionpolicybinding", "--all")
    await story.kubectl("delete", "validatingadmissionpolicybinding", "gang-extender-held")
    try:

        async def off() -> bool:
            try:
                made = await story.api.post(
                    "/api/v1/namespaces/default/pods", member("probe", "g"), dryRun="All"
                )
            except ApiError:  # each policy ends in its own time
                return False
            return not made["spec"].get("schedulingGates")

        await eventually(off)
        pods = [p for p in gang("bare", 4) if p["kind"] == "Pod"]
        for pod in pods:
            pod["spec"]["schedulerName"] = "gang-scheduler"
            markers = {"gang-extender.dev/member": 1, "gang-extender.dev/bind": 1}
            pod["spec"]["containers"][0]["resources"]["requests"] = {**GPU, **markers}
        await story.create(*nodes(3), gang("bare", 4)[0], *pods)

        async def refused() -> bool:
            lines = await story.events_of("bare-0")
            return any(map(NO_PLACE.search, lines))

        await eventually(refused)
        assert not await story.bound()
        await story.create(a_node("n3", gpu=8))
        await story.until_bound(4)
        await story.check_events()
    finally:
        from tests.e2e.scenarios.conftest import DEPLOY, _policy_works

        await story.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            str(DEPLOY / "admission-policy.yaml"),
        )
        await _policy_works(story.plane)


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("vector", ["V01", "V05", "V07", "V10", "V14"])
async def test_vectors_are_bound_as_they_want(story: Story, vector: str) -> None:
    """Trees that a greedy order would fail are bound exactly as in the vector."""
    entry = by_id(vector)
    await story.create(*vector_objects(entry))
    want = entry["want"]
    bound = await story.until_bound(sum(want.values()))

    async def no_more_bound() -> bool:
        return await story.bound() == bound

    await story.stays(no_more_bound)
    counts: dict[str, int] = {}
    for pod in bound:
        leaf = pod.rpartition("-")[0]
        counts[leaf] = counts.get(leaf, 0) + 1
    assert entry.get("any") or counts == {leaf.lower(): n for leaf, n in want.items()}
    await story.check_events()
    await story.check_capacity()


async def restart_when_dead(story: Story) -> None:
    await eventually(lambda: not story.service.running)
    await story.service.start()


async def finish(story: Story, count: int) -> None:
    """After the restart the gang is whole, in the capacity of its admission, and every event is there once."""
    bound = await story.until_bound(count)
    await story.until_event("GangScheduled")
    events = await story.check_events()
    await story.check_capacity()
    planned = {
        (a["uid"], a["node"])
        for f in events
        if f["type"] in ("GangAdmitted", "GangExtended")
        for a in f["data"]["assignments"]
    }
    pods = await story.pods()
    for name, node in bound.items():
        assert (pods[name]["metadata"]["uid"], node) in planned, "bound outside an admission"
    assert len([f for f in events if f["type"] == "GangAdmitted"]) == 1
    assert len([f for f in events if f["type"] == "PodBound"]) == count


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_killed_after_the_admission_and_before_the_first_bind(story: Story) -> None:
    """The reservations are in the log; the restarted service carries them out."""

    async def kill_at_first_nomination(method: str, path: str) -> web.Response | None:
        first_life = story.service.running and story.service.starts == 1
        if method == "PATCH" and "/pods/" in path and first_life:
            story.service.kill()
        return None

    story.server.before = kill_at_first_nomination
    await story.create(*nodes(8), *gang("train", 8))
    await restart_when_dead(story)
    await finish(story, 8)


@pytest.mark.full
async def test_killed_in_the_middle_of_the_barrier(story: Story) -> None:
    """Five of eight wait at bind; none is bound by the dead, all by the living."""
    arrived = 0

    async def kill_at_sixth_bind(method: str, path: str) -> web.Response | None:
        nonlocal arrived
        if path.endswith("/bind") and story.service.starts == 1:
            arrived += 1
            if arrived == 6:
                story.service.kill()
        return None

    story.verbs.before = kill_at_sixth_bind
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: not story.service.running)
    assert not await story.bound()
    await story.service.start()
    await finish(story, 8)


async def test_killed_between_two_binds(story: Story) -> None:
    """Three are bound when the service dies; the started gang is completed, no pod is bound twice."""
    begun = done = 0
    dead, restarting = asyncio.Event(), asyncio.Event()

    async def let_three_pass(method: str, path: str) -> web.Response | None:
        # What the killed process had written to its sockets arrives after its death.
        nonlocal begun
        if path.endswith("/binding") and not restarting.is_set():
            begun += 1
            if begun > 3:
                await dead.wait()
                return web.Response(status=503)
        return None

    async def kill_after_three(method: str, path: str, status: int) -> None:
        nonlocal done
        if path.endswith("/binding") and status == 201:
            done += 1
            if done == 3:
                story.service.kill()
                dead.set()

    story.server.before, story.server.after = let_three_pass, kill_after_three
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: not story.service.running)

    async def some_bound() -> bool:
        return len(await story.bound()) == 3

    await eventually(some_bound)
    restarting.set()
    await story.service.start()
    await finish(story, 8)


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("rounds", [4, 20])
async def test_two_gangs_that_fit_one_at_a_time(story: Story, rounds: int) -> None:
    """Created interleaved, one completes, the other waits with its reason, then takes over; again and again."""
    await story.create(*nodes(4))
    for round_ in range(rounds):
        one, two = gang(f"a{round_}", 4), gang(f"b{round_}", 4)
        for first, second in zip(one, two, strict=True):
            await story.create(first, second)
        bound = await story.until_bound(4)
        owners = {pod.rpartition("-")[0] for pod in bound}
        assert len(owners) == 1, f"round {round_}: half placed gangs {bound}"
        winner = owners.pop()
        loser = ({f"a{round_}", f"b{round_}"} - {winner}).pop()
        await story.until_event("GangUnschedulable", f"default/{loser}", outcome="impossible")
        if round_ == 0:

            async def pod_has_event(pod: str = f"{loser}-0") -> bool:
                lines = await story.events_of(pod)
                return any(map(NO_PLACE.search, lines))

            await eventually(pod_has_event)
        for pod in bound:
            await story.api.delete(f"/api/v1/namespaces/default/pods/{pod}")
        await story.until_bound(4, prefix=loser)
        for name in (winner, loser):
            for i in range(4):
                if name == loser:
                    await story.api.delete(f"/api/v1/namespaces/default/pods/{name}-{i}")
            await story.api.delete(
                f"/apis/gang-extender.dev/v1alpha1/namespaces/default/podgroups/{name}"
            )
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_any_order_of_creation_converges(story: Story) -> None:
    """Pods before groups, groups before their root: held with the reason on the pod, then scheduled."""
    tree = [
        a_group("serve", gang=2, composite=True),
        a_group("prefill", gang=2, parent="serve"),
        a_group("decode", gang=2, parent="serve"),
    ]
    pods = [
        member(f"{leaf}-{i}", leaf, requests=GPU)
        for leaf in ("prefill", "decode")
        for i in range(2)
    ]
    await story.create(*nodes(4), *pods)

    async def pod_has_event(pod: str, text: str) -> bool:
        return any(text in line for line in await story.events_of(pod))

    await eventually(lambda: pod_has_event("prefill-0", "PodGroup default/prefill does not exist"))
    await story.create(tree[1], tree[2])
    await eventually(lambda: pod_has_event("decode-1", "waits for its parent"))
    await story.stays(story.none_bound)
    await story.create(tree[0])
    await story.until_bound(4)
    await story.until_event("GangScheduled", "default/serve")
    await story.check_events()


@pytest.mark.kubernetes("1.37", "1.36")
async def test_built_in_groups_are_read_where_they_are_served(story: Story) -> None:
    """PodGroups of scheduling.k8s.io (and on 1.37 a composite above them), pods by spec.schedulingGroup."""
    newest = story.plane.minor == "1.37"
    things: list[dict[str, Any]] = []
    if newest:
        reference = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
        root = {
            "apiVersion": "scheduling.k8s.io/v1alpha3",
            "kind": "CompositePodGroup",
            "metadata": {"name": "pair", "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minGroupCount": 2}}, **reference},
        }
        things.append(root)
    for leaf in ("left", "right"):
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        version = "v1alpha2"
        if newest:
            version = "v1alpha3"
            spec |= {"parentCompositePodGroupName": "pair", **reference}
        meta = {"name": leaf, "namespace": "default"}
        things.append(
            {
                "apiVersion": f"scheduling.k8s.io/{version}",
                "kind": "PodGroup",
                "metadata": meta,
                "spec": spec,
            }
        )
    pods = [
        member(f"{leaf}-{i}", "", requests=GPU, schedulingGroup={"podGroupName": leaf})
        for leaf in ("left", "right")
        for i in range(2)
    ]
    try:
        for thing in things:
            plural = "compositepodgroups" if thing["kind"] == "CompositePodGroup" else "podgroups"
            path = f"/apis/{thing['apiVersion']}/namespaces/default/{plural}"
            await story.api.post(path, thing)
        await story.create(*nodes(3), *pods)
        if newest:
            await story.until_event("GangUnschedulable", "default/pair", outcome="impossible")
            assert not await story.bound()
        else:  # two gangs of their own: one of them fits
            await story.until_bound(2)
        await story.create(a_node("n3", gpu=8))
        await story.until_bound(4)
        await story.check_events()
        version = "v1alpha3" if newest else "v1alpha2"

        async def condition_is_true() -> bool:
            path = f"/apis/scheduling.k8s.io/{version}/namespaces/default/podgroups/left"
            status = (await story.api.get(path)).get("status", {})
            found = {c["type"]: c["status"] for c in status.get("conditions", [])}
            return found.get("PodGroupInitiallyScheduled") == "True"

        await eventually(condition_is_true)
    finally:
        await drop_built_in(story, things)


async def drop_built_in(story: Story, things: list[dict[str, Any]]) -> None:
    """Delete built-in groups; no controller here takes their finalizers away."""
    for thing in reversed(things):
        plural = "compositepodgroups" if thing["kind"] == "CompositePodGroup" else "podgroups"
        path = (
            f"/apis/{thing['apiVersion']}/namespaces/default/{plural}/{thing['metadata']['name']}"
        )
        await story.api.patch(path, {"metadata": {"finalizers": None}})
        await story.api.delete(path)
