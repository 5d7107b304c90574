"""LeaderWorkerSets that lose pods or change: what stays keeps its groups, what is made again is placed as a gang."""

from __future__ import annotations

import copy

import pytest

from tests.controlplane.api import ApiError, Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import Story
from tests.e2e.trees.workloads import (
    RACK,
    a_job,
    a_leaderworkerset,
    groups,
    racks,
    uids,
    until_event_about,
    until_groups,
    until_pods,
    until_running,
)

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

PODS = "/api/v1/namespaces/default/pods"
LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
TOPOLOGY = "gang-extender.dev/topology"
SLOW_S = 60  # of grace: a pod takes three seconds to go


def replica(pods: dict[str, Object], index: int) -> dict[str, str]:
    """Return the UIDs of the pods of a replica, by name."""
    leader = f"serve-{index}"
    return uids({n: p for n, p in pods.items() if n == leader or n.startswith(f"{leader}-")})


async def plans_of(story: Story) -> list[set[str]]:
    """Return the pods of each plan that adds to a gang which ran before."""
    extended = await story.service.events("GangExtended")
    return [{one["uid"] for one in event["data"]["assignments"]} for event in extended]


async def two_full_racks(story: Story) -> tuple[dict[str, Object], dict[str, str]]:
    """Let two replicas of three pods fill two racks, and a Job wait for capacity; return the pods and the groups."""
    await story.create(*racks("r0", "r1", nodes=3, cpu="1"))
    serve = a_leaderworkerset("serve", 2, 3, grace_s=SLOW_S)
    serve["metadata"]["annotations"] = {TOPOLOGY: f"leaf={RACK}"}
    await story.api.create(serve)
    await until_running(story, "serve-", 6, gone=frozenset())
    before, pods = uids(await until_groups(story, 2)), await story.pods()
    await story.api.create(a_job("competitor", 1))
    (leaf,) = set(await until_groups(story, 3)) - set(before)
    await until_pods(story, 7)
    await story.until_event("GangUnschedulable", f"default/{leaf}")
    return pods, before


async def until_replaced(story: Story, pods: dict[str, Object], before: dict[str, str]) -> set[str]:
    """Wait until replica 0 has pods anew, on the nodes of the old ones, while nothing else changes; return their UIDs.

    Args:
        story: Its cast.
        pods: Those before.
        before: The groups before.
    """
    old = replica(pods, 0)

    async def replaced() -> bool:
        assert not await story.bound("competitor-")
        now = await story.pods()
        return len(now) > len(pods) and not set(replica(now, 0).values()) & set(old.values())

    await story.until(replaced)
    fresh = await until_running(story, "serve-0", 3, gone=frozenset(old.values()))
    now = await story.pods()
    assert replica(now, 0).keys() == old.keys()
    assert replica(now, 1) == replica(pods, 1)
    assert not await story.bound("competitor-")
    made = uids(await groups(story))
    assert {name: made[name] for name in before} == before
    await story.check_events()
    await story.check_capacity()
    return fresh


async def test_a_worker_dies_and_its_group_is_placed_again_as_a_gang(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """All pods of its group come again under their names; nothing else gets their capacity, the other group runs on."""
    pods, before = await two_full_racks(story)
    await kubelet.restart("serve-0-1")
    fresh = await until_replaced(story, pods, before)
    assert await plans_of(story) == [fresh]


@pytest.mark.full
async def test_a_leader_is_deleted_by_hand(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """While old workers terminate the new leader waits for the new ones; beside workers that still run it may be first."""
    pods, before = await two_full_racks(story)
    await story.api.delete(f"{PODS}/serve-0", {"gracePeriodSeconds": 0})
    fresh = await until_replaced(story, pods, before)
    leader = {replica(await story.pods(), 0)["serve-0"]}
    assert await plans_of(story) in ([fresh], [leader, fresh - leader])


@pytest.mark.full
async def test_the_size_of_the_groups_changes(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """It is a new revision: a group that has rolled is a larger gang, one behind the partition keeps pods, leaf and minimum."""
    await story.create(*racks("r0", "r1", nodes=3, cpu="1"))
    rolling = {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"partition": 1, "maxUnavailable": 1, "maxSurge": 0},
    }
    await story.api.create(a_leaderworkerset("serve", 2, 2, rolloutStrategy=rolling))
    first = await until_running(story, "serve-", 4, gone=frozenset())
    before, pods = await until_groups(story, 2), await story.pods()
    assert [minimum(one) for one in before.values()] == [2, 2]
    (stays,) = (name for name in before if name.startswith("serve-0-"))
    await story.api.patch(f"{LWS}/serve", {"spec": {"leaderWorkerTemplate": {"size": 3}}})
    await until_running(story, "serve-1", 3, gone=frozenset(first))
    now = await until_groups(story, 2)
    (larger,) = set(now) - {stays}
    assert minimum(now[larger]) == 3
    assert larger.startswith("serve-1-")
    assert larger not in before
    assert minimum(now[stays]) == 2
    assert now[stays]["metadata"]["uid"] == before[stays]["metadata"]["uid"]
    assert replica(await story.pods(), 0) == replica(pods, 0)
    partition = {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 0}}}
    await story.api.patch(f"{LWS}/serve", {"spec": partition})
    await until_running(story, "serve-", 6, gone=frozenset(first))

    async def rolled() -> bool:
        found = await groups(story)
        return stays not in found and [minimum(one) for one in found.values()] == [3, 3]

    await story.until(rolled, every_s=0.1)
    assert uids(await groups(story))[larger] == now[larger]["metadata"]["uid"]
    await story.check_events()
    await story.check_capacity()


@pytest.mark.full
async def test_the_leader_starts_first_and_its_workers_as_a_gang(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """startupPolicy LeaderReady: the leader runs alone; its two workers wait until both can be placed. An Event has why."""
    await story.create(*racks("r0", nodes=1))
    serve = await story.api.create(a_leaderworkerset("serve", 1, 3, startupPolicy="LeaderReady"))
    (leader,) = await story.until_bound(1, "serve-")
    assert leader == "serve-0"
    await until_pods(story, 3)
    made = await until_groups(story, 3)
    (root,) = [n for n, one in made.items() if one["kind"] == "CompositePodGroup"]
    policies = {
        name.removeprefix(root): one["spec"]["schedulingPolicy"] for name, one in made.items()
    }
    assert policies == {
        "": {"basic": {}}, "-leader": {"gang": {"minCount": 1}}, "-worker": {"gang": {"minCount": 2}},
    }  # fmt: skip
    await story.until_event("GangUnschedulable", f"default/{root}", outcome="impossible")
    assert set(await story.bound("serve-")) == {"serve-0"}
    text = await until_event_about(story, serve, "SequencedStart")
    assert "makes the workers of a replica when its leader is ready" in text
    assert "capacity for workers is not reserved" in text
    await story.create(*racks("r1", nodes=1))
    assert set(await story.until_bound(3, "serve-")) == {"serve-0", "serve-0-1", "serve-0-2"}
    await story.check_events()
    await story.check_capacity()


def minimum(group: Object) -> int:
    count: int = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
    return count


@pytest.mark.full
async def test_a_leaderworkerset_of_the_same_name_and_template_takes_the_names_of_its_groups(
    story: Story, tree_policies: None, controllers: WorkloadControllers, kubelet: Kubelet
) -> None:
    """Deleted and created again at once, while workers of the old one terminate: its groups are new, and it is placed."""
    await story.create(*racks("r0", nodes=3, cpu="1"))
    serve = a_leaderworkerset("serve", 1, 3, startupPolicy="LeaderReady")
    template = serve["spec"]["leaderWorkerTemplate"]
    template["leaderTemplate"] = copy.deepcopy(template["workerTemplate"])
    template["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] = SLOW_S
    await story.api.create(serve)
    first = await until_running(story, "serve-", 3, gone=frozenset())
    before = uids(await until_groups(story, 3))
    await story.api.delete(f"{LWS}/serve?propagationPolicy=Background")

    async def created() -> bool:
        try:
            await story.api.create(serve)
        except ApiError:
            return False
        return True

    await story.until(created, every_s=0.05)
    await until_running(story, "serve-", 3, gone=frozenset(first))
    now = uids(await until_groups(story, 3))
    assert now.keys() == before.keys()
    assert not set(now.values()) & set(before.values())
    await story.check_events()
    await story.check_capacity()
