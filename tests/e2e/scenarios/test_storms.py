"""No storms: waiting members cause no calls and writes, and only members that have a place are released.

kube-scheduler's own group scheduling is on and the gangs are built-in groups whose pods name them by the field. One story runs a second time without it, with groups of our kind.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.scenarios.aftermath import BUILT_IN
from tests.e2e.scenarios.conftest import Story, member
from tests.e2e.scenarios.intercept import Intercept, cannot, intercept, pod_of
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

__all__ = ["intercept"]

# Calls and writes are counted here, and neighbours have some of their own.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.lived_in("long"),
    pytest.mark.native_gangs,
]
GPU = {"nvidia.com/gpu": 8}
WRITES = ("POST", "PATCH", "PUT", "DELETE")


class Calls:
    """Counts filter calls per member, and may answer some instead of the service."""

    def __init__(self, intercept: Intercept) -> None:
        self.filtered: Counter[str] = Counter()
        self.kept_back = ""  # the pod whose filter calls fail
        intercept.call = self._see

    async def _see(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if request.path.endswith("/filter"):
            pod = pod_of(request.path, body)
            if pod == self.kept_back:
                return cannot("kept back by the test")
            self.filtered[pod] += 1
        return None

    async def check(self, story: Story, *gangs: str) -> None:
        """Check that no pod was filtered more than twice for each plan that has a place for it."""
        plans: Counter[str] = Counter()
        for event in await story.service.events("GangAdmitted", "GangExtended"):
            plans.update(a["pod"].partition("/")[2] for a in event["data"]["assignments"])
        over = {p: (n, plans[p]) for p, n in self.filtered.items() if n > 2 * plans[p]}
        assert not over, f"pod: (filter calls, plans) {over}\n{await story.report()}"
        for gang in gangs:
            assert any(pod.startswith(gang) for pod in self.filtered), f"{gang} was never filtered"


def nodes(count: int, **labels: str) -> list[dict[str, Any]]:
    return [a_node(f"n{i}", labels, gpu=8) for i in range(count)]


def gang(
    story: Story, name: str, pods: int, *, minimum: int = 0, topo: str = "", **spec: Any
) -> list[dict[str, Any]]:
    """Make a gang: built in where kube-scheduler schedules groups itself, else of our kind."""
    spec.setdefault("requests", GPU)
    if not story.native:
        return a_gang(name, pods=pods, minimum=minimum or None, topo=topo, **spec)
    version = BUILT_IN[story.plane.minor]
    group = a_group(name, gang=minimum or pods, topo=topo, version=version)
    return [group, *(named(f"{name}-{n}", name, **spec) for n in range(pods))]


def named(name: str, group: str, **spec: Any) -> dict[str, Any]:
    """Make a pod that names a built-in group by the field."""
    return a_pod(name, schedulingGroup={"podGroupName": group}, **spec)


# The planner does not see which namespaces these are.
AWAY_FROM_NOISE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"app": "noisy"}},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}


def noisy(name: str, node: str) -> dict[str, Any]:
    """Make a pod on a node that members with `AWAY_FROM_NOISE` cannot use."""
    labels = {"labels": {"app": "noisy"}}
    return member(name, "", nodeName=node, requests={"cpu": "1"}, metadata=labels)


def writes(story: Story) -> list[tuple[str, str]]:
    """Return what our service has written about pods and groups so far.

    The end of the log is published beside that, once in five seconds at most, however many trees wait.
    """
    return [
        (method, path)
        for method, path in story.server.seen
        if method in WRITES and not path.endswith("/gang-extender-log")
    ]


async def until_refused(story: Story, *gangs: str) -> None:
    """Wait until trees are refused and explained, which happens later and beside, and until everything about it is written."""

    async def trees_refused() -> bool:
        rows = {row["gang"]: row for row in await story.service.get("/v1/gangs")}
        refusals = await story.service.events("GangUnschedulable")
        explained = {event["gang"] for event in refusals if event["data"].get("when_empty")}
        return explained >= {f"default/{name}" for name in gangs} and all(
            (row := rows.get(f"default/{name}")) is not None
            and row["state"] == "unschedulable"
            and row["outcome"] == "impossible"
            for name in gangs
        )

    await eventually(trees_refused)
    await until_quiet(story)


async def until_quiet(story: Story, looks: int = 15) -> None:
    """Wait until our service, which answers meanwhile, has written nothing to the API server for so many looks."""
    before, quiet = -1, 0

    async def rests() -> bool:
        nonlocal before, quiet
        await story.service.get("/v1/gangs")
        now = len(writes(story))
        before, quiet = now, quiet + 1 if now == before else 0
        return quiet >= looks

    await story.until(rests, "our service writes nothing", every_s=0.2)


@pytest.mark.native_gangs("both")
async def test_two_filter_calls_at_most_per_member_and_plan(
    intercept: Intercept, story: Story
) -> None:
    """Three gangs in turn, one of them extended later: kube-scheduler asks at most twice for each plan."""
    calls = Calls(intercept)
    await story.create(*nodes(60), *gang(story, "a", 30))
    await story.until_bound(30, "a-")
    await story.create(*gang(story, "b", 20, minimum=10))
    await story.until_bound(20, "b-")
    await story.create(*gang(story, "c", 12))  # ten nodes are left
    await until_refused(story, "c")
    await story.create(a_node("n60", gpu=8), a_node("n61", gpu=8))
    await story.until_bound(12, "c-")
    more = named if story.native else member
    await story.create(a_node("n62", gpu=8), more("a-30", "a", requests=GPU))
    await story.until_bound(31, "a-")
    await calls.check(story, "a-", "b-", "c-")
    await story.check_events()


@pytest.mark.full
@pytest.mark.lived_in("never")  # a refused member is asked again for every pod that comes to a node
async def test_a_rejected_plan_counts_for_itself(intercept: Intercept, story: Story) -> None:
    """kube-scheduler refuses two of the nodes: the tree is planned again, with two calls for each plan."""
    calls = Calls(intercept)
    loud = [noisy(f"noisy-{n}", f"n{n}") for n in range(2)]
    await story.create(*nodes(18), *loud)
    await story.create(*gang(story, "quiet", 16, affinity=AWAY_FROM_NOISE))
    bound = await story.until_bound(16, "quiet-")
    assert not {"n0", "n1"} & set(bound.values())
    assert await story.service.events("NodeRejected"), (
        "nothing was rejected: the story proves nothing"
    )
    await calls.check(story, "quiet-")


@pytest.mark.full
@pytest.mark.lived_in("never")
async def test_calls_for_other_racks_are_no_evidence(story: Story) -> None:
    """kube-scheduler tries a group in every rack: only the node that it refuses in the planned one is avoided.

    Four of the five nodes of one rack can be used, and the other racks are too small, so that nothing would fit
    without a node that was suspected wrongly.
    """
    sizes = {"a": 5, "b": 3, "c": 3}
    fleet = [
        a_node(f"{r}{n}", {"rack": r}, gpu=8) for r, size in sizes.items() for n in range(size)
    ]
    await story.create(*fleet, noisy("noisy", "a3"))
    await story.create(*gang(story, "quiet", 4, topo="rack", affinity=AWAY_FROM_NOISE))
    bound = await story.until_bound(4, "quiet-")
    assert sorted(bound.values()) == ["a0", "a1", "a2", "a4"]
    rejected = await story.service.events("NodeRejected")
    assert [event["data"]["node"] for event in rejected] == ["a3"]


@pytest.mark.full
@pytest.mark.settings(barrier_timeout_s="4")
async def test_an_expired_plan_counts_for_itself(intercept: Intercept, story: Story) -> None:
    """One of twelve does not come: after the barrier's deadline all are planned and asked for again.

    The group is of our kind in both modes: kube-scheduler itself lets no member of a built-in group come to bind alone.
    """
    calls = Calls(intercept)
    calls.kept_back = "late-11"
    await story.create(*nodes(12), *a_gang("late", pods=12, requests=GPU))
    await story.until_event("BindBarrierTimedOut", "default/late")
    calls.kept_back = ""
    await story.until_bound(12, "late-")
    assert len(await story.service.events("GangAdmitted")) >= 2
    await calls.check(story, "late-")


async def test_members_that_wait_cost_nothing(story: Story) -> None:
    """300 held members of gangs without capacity: no call of kube-scheduler, and after a while no write of ours.

    Nor do ordinary pods that come and go wake a member.
    """
    names = [f"w{n}" for n in range(30)]
    await story.create(*nodes(9))
    for name in names:
        await story.create(*gang(story, name, 10))
    await until_refused(story, *names)
    assert not story.verbs.count("POST", "/filter")
    before = len(writes(story))
    await story.create(*(member(f"o-{n}", "", requests={"cpu": "1"}) for n in range(30)))
    await story.until_bound(30, "o-")
    for number in range(30):
        path = f"/api/v1/namespaces/default/pods/o-{number}"
        await story.api.delete(path, {"gracePeriodSeconds": 0})
    await until_quiet(story)
    assert writes(story)[before:] == []
    assert not story.verbs.count("POST", "/filter")
    assert not story.verbs.count("POST", "/bind")
    assert not await story.bound("w")


@pytest.mark.full
async def test_a_freed_slot_wakes_the_tree_that_lacks_it_and_no_other(
    intercept: Intercept, story: Story
) -> None:
    """Three trees wait, each for devices that only one rack has; a freed one wakes that rack's tree (L39)."""
    calls = Calls(intercept)
    racks = ("a", "b", "c")
    device = {rack: {f"example.com/{rack}": 8} for rack in racks}
    fleet = [a_node(f"{r}{n}", {"rack": r}, **device[r]) for r in racks for n in range(4)]
    blockers = [member(f"block-{r}", "", nodeName=f"{r}0", requests=device[r]) for r in racks]
    await story.create(*fleet, *blockers)
    for rack in racks:
        await story.create(*gang(story, f"t{rack}", 4, topo="rack", requests=device[rack]))
    trees = tuple(f"t{rack}" for rack in racks)
    await until_refused(story, *trees)
    assert not calls.filtered
    before = len(writes(story))
    await story.api.delete("/api/v1/namespaces/default/pods/block-b", {"gracePeriodSeconds": 0})
    bound = await story.until_bound(4, "tb-")
    assert {node[0] for node in bound.values()} == {"b"}
    await until_quiet(story)
    touched = writes(story)[before:]
    others = [w for w in touched if any(f"/{t}" in w[1] for t in ("ta", "tc"))]
    refusals = [(f["gang"], f["data"]) for f in await story.service.events("GangUnschedulable")]
    assert others == [], f"trees that cannot go were touched: {refusals}"
    assert {pod[:2] for pod in calls.filtered} == {"tb"}
    await calls.check(story, "tb-")
    pods = await story.pods()
    for name, pod in pods.items():
        if name.startswith(("ta-", "tc-")):
            assert pod["spec"]["schedulingGates"]
            assert not pod["status"].get("nominatedNodeName")
    await story.check_events()


@pytest.mark.kubernetes(
    "1.37 --max-mutating-requests-inflight=20 --max-requests-inflight=20",
    # Without priority and fairness no request queues: what is over four at once gets 429 there and then.
    "1.37 --enable-priority-and-fairness=false --max-mutating-requests-inflight=4",
)
@pytest.mark.settings(barrier_timeout_s="40")  # how slow it becomes depends on what else runs here
async def test_a_busy_api_server_makes_it_slower_and_loses_nothing(
    story: Story, request: pytest.FixtureRequest
) -> None:
    """300 members through an API server that takes few requests at once (K61)."""
    refused: Counter[str] = Counter()

    async def look(method: str, path: str, status: int) -> None:
        if status == 429:
            refused[f"{method} {path.rpartition('/')[2]}"] += 1

    story.server.after = look
    await story.create(*nodes(38), *gang(story, "big", 300, requests={"nvidia.com/gpu": 1}))
    await story.until_bound(300, "big-")
    await story.until_event("GangScheduled", "default/big")

    async def all_recorded() -> bool:
        return len(await story.service.events("PodBound")) == 300

    await eventually(all_recorded)
    events = await story.check_events()
    kinds = Counter(f["type"] for f in events)
    assert kinds["GangAdmitted"] == 1, "it was planned more than once"
    assert not kinds["PodBindFailed"]
    assert not kinds["BindBarrierTimedOut"]
    assert not kinds["ReservationReleased"]
    await story.check_capacity()
    if "fairness=false" in request.node.callspec.params["site"]:
        assert refused, "no request was refused: the story proves nothing"
