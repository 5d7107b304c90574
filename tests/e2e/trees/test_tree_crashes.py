"""kill -9 between any two steps of a compile, a change and a retirement: nothing is lost and nothing is doubled.

The service is killed at each append and at each write of a group, before the API server has it and after, and started
again. What counts in the end is what an undisturbed run makes, and what a watch of the groups saw meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.controlplane.api import Object
from tests.controlplane.controllers.workload_controllers import WorkloadControllers
from tests.controlplane.kubelet import Kubelet
from tests.e2e.scenarios.conftest import OURS, Story
from tests.e2e.scenarios.test_outages import verified
from tests.e2e.trees.crashes import Crash, killed_at
from tests.e2e.trees.workloads import a_job, a_jobset, a_replicated_job, groups, racks
from tests.support.logs.database_proxy import DatabaseProxy

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("never")]

WAY = pytest.StashKey[DatabaseProxy]()
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = 5  # of each JobSet
GROUPS = 5


@pytest.fixture
async def database_url(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The service speaks to its database through a proxy."""
    async with DatabaseProxy(database_url) as way:
        request.node.stash[WAY] = way
        yield way.url


@pytest.fixture
def database(request: pytest.FixtureRequest, story: Story) -> DatabaseProxy:
    """The way of the service to its database."""
    way: DatabaseProxy = request.node.stash[WAY]
    return way


class Created:
    """The UIDs that each group has had since the watch began, by name."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.uids: dict[str, set[str]] = defaultdict(set)
        self.deleted: set[str] = set()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._watch(plural))
            for plural in ("podgroups", "compositepodgroups")
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in results), results

    async def _watch(self, plural: str) -> None:
        async for kind, group in self._story.api.watch(f"/apis/{OURS}/{plural}"):
            name = group["metadata"]["name"]
            self.uids[name].add(group["metadata"]["uid"])
            if kind == "DELETED":
                self.deleted.add(name)


def shape(found: dict[str, Object], workload: Object) -> dict[str, Object]:
    """Return the groups of a workload as they are but for its name and its UID."""
    name, uid = workload["metadata"]["name"], workload["metadata"]["uid"]

    def neutral(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: neutral(one) for key, one in value.items()}
        if isinstance(value, list):
            return [neutral(one) for one in value]
        if isinstance(value, str):
            return value.replace(uid, "UID").replace(uid[:8], "UID").replace(name, "NAME")
        return value

    return {
        neutral(key): neutral(
            {
                "kind": group["kind"],
                "labels": group["metadata"]["labels"],
                "owners": group["metadata"]["ownerReferences"],
                "spec": group["spec"],
            }
        )
        for key, group in found.items()
        if group["metadata"]["ownerReferences"][0]["uid"] == uid
    }


async def until_made(story: Story, workload: Object, count: int) -> dict[str, Object]:
    """Wait until a workload has so many groups; return their neutral shape."""

    async def look() -> list[dict[str, Object]]:
        found = shape(await groups(story), workload)
        return [found] if len(found) == count else []

    (found,) = await story.until(look, every_s=0.1)
    made: dict[str, Object] = found
    return made


async def recorded(story: Story, kind: str) -> Counter[str]:
    """Count the events of a type, by the UID of the workload."""
    return Counter(event["data"]["uid"] for event in await story.service.events(kind))


def train(name: str) -> Object:
    return a_jobset(name, [a_replicated_job("driver", 1, 1), a_replicated_job("worker", 2, 2)])


COMPILES = (
    Crash("POST", 3, executed=True),
    *(Crash("POST", k, executed=True) for k in (1, 2, 4, GROUPS)),
    *(Crash("POST", k) for k in range(1, GROUPS + 1)),
    Crash("sent", "TreeCompiled"),
    Crash("answered", "TreeCompiled"),
)


@pytest.mark.parametrize("crash", COMPILES, ids=str)
async def test_a_kill_between_any_two_writes_of_a_compile(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    database: DatabaseProxy,
    crash: Crash,
) -> None:
    """Before and after the append, before and after each of the five groups: each JobSet has its groups once, and runs."""
    await story.create(*racks("r0", cpu="40"))
    undisturbed = await story.api.create(train("calm"))
    wanted = await until_made(story, undisturbed, GROUPS)
    created = Created(story)
    async with created.watched():
        async with killed_at(story, database, crash):
            disturbed = await story.api.create(train("struck"))
        assert await until_made(story, disturbed, GROUPS) == wanted
        await story.until_bound(2 * PODS)
    assert len(created.uids) == 2 * GROUPS
    assert {name: uids for name, uids in created.uids.items() if len(uids) != 1} == {}
    assert not created.deleted
    assert shape(await groups(story), disturbed) == wanted
    uids = [workload["metadata"]["uid"] for workload in (undisturbed, disturbed)]
    assert await recorded(story, "TreeCompiled") == dict.fromkeys(uids, 1)
    await check_log(story, database)


CHANGES = (Crash("sent", "TreeCompiled"), Crash("answered", "TreeCompiled"),
           Crash("PATCH", 1), Crash("PATCH", 1, executed=True))  # fmt: skip


@pytest.mark.full
async def test_a_kill_while_a_minimum_is_changed(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    database: DatabaseProxy,
) -> None:
    """An elastic Job is made smaller again and again, with a kill at each step: one event for each generation."""
    await story.create(*racks("r0", cpu="40"))
    most = len(CHANGES) + 2
    job = await story.api.create(a_job("fit", most))
    await story.until_bound(most)
    (leaf,) = await groups(story)
    await until_protected(story, leaf)
    before = (await groups(story))[leaf]["metadata"]["uid"]
    for number, crash in enumerate(CHANGES, 1):
        size = most - number
        async with killed_at(story, database, crash):
            await story.api.patch(
                f"{JOBS}/fit", {"spec": {"parallelism": size, "completions": size}}
            )
        await until_policy(story, leaf, {"gang": {"minCount": size}})
    (group,) = (await groups(story)).values()
    assert group["metadata"]["uid"] == before
    events = await story.service.events("TreeCompiled")
    assert [event["data"]["uid"] for event in events] == [job["metadata"]["uid"]] * len(events)
    assert [event["data"]["generation"] for event in events] == list(range(1, len(CHANGES) + 2))
    await check_log(story, database)


async def until_policy(story: Story, leaf: str, policy: Object) -> None:
    async def applied() -> bool:
        return bool((await groups(story))[leaf]["spec"]["schedulingPolicy"] == policy)

    await story.until(applied, every_s=0.1)


async def until_protected(story: Story, leaf: str) -> None:
    """Wait until the finalizer is on a group, so that later patches are those of its tree."""

    async def protected() -> bool:
        return bool((await groups(story))[leaf]["metadata"].get("finalizers"))

    await story.until(protected, every_s=0.1)


RETIREMENTS = (
    Crash("sent", "TreeRetired"), Crash("answered", "TreeRetired"),
    Crash("DELETE", 1), Crash("DELETE", 1, executed=True), Crash("DELETE", 3),
    Crash("DELETE", GROUPS, executed=True), Crash("DELETE", 2),
)  # fmt: skip


@pytest.mark.full
async def test_a_kill_while_a_tree_is_retired(
    story: Story,
    tree_policies: None,
    controllers: WorkloadControllers,
    kubelet: Kubelet,
    database: DatabaseProxy,
) -> None:
    """JobSets fail, with a kill before and after the append, and between the deletions: all their groups go.

    The last one succeeds: its groups are not needed any more one by one, each by an event.
    """
    await story.create(*racks("r0", cpu="40"))
    made = []
    for number, crash in enumerate(RETIREMENTS):
        name = f"train{number}"
        asked = train(name)
        asked["spec"]["failurePolicy"] = {"maxRestarts": 0}
        workload = await story.api.create(asked)
        made.append(workload["metadata"]["uid"])
        pods = await story.until_bound(PODS, f"{name}-")
        await until_made(story, workload, GROUPS)
        await until_running(story, pods)
        succeeds = number == len(RETIREMENTS) - 1
        async with killed_at(story, database, crash):
            if succeeds:
                await asyncio.gather(*(kubelet.succeed(pod) for pod in pods))
            else:
                await kubelet.fail(next(iter(pods)))
        await until_made(story, workload, 0)
        await until_event_of(story, "TreeRetired", workload)
        state = (await story.api.get(f"{JOBSETS}/{name}"))["status"]["terminalState"]
        assert state == ("Completed" if succeeds else "Failed")
    assert await recorded(story, "TreeRetired") == dict.fromkeys(made, 1)
    await check_log(story, database)


async def until_event_of(story: Story, kind: str, workload: Object) -> None:
    await story.until_event(kind, uid=workload["metadata"]["uid"])


async def until_running(story: Story, names: dict[str, str]) -> None:
    async def run() -> bool:
        pods = await story.pods()
        return all(pods[name]["status"]["phase"] == "Running" for name in names)

    await story.until(run, every_s=0.1)


async def check_log(story: Story, database: DatabaseProxy) -> None:
    """Check what must hold of every log, that no tree is recorded twice as it was, and the chain of hashes."""
    last: dict[str, Object] = {}
    for event in await story.check_events():
        if event["type"] in ("TreeCompiled", "TreeRetired"):
            data = event["data"]
            now = {"type": event["type"], "groups": data.get("groups")}
            assert last.get(data["uid"]) != now, event
            last[data["uid"]] = now
    await story.check_capacity()
    await asyncio.to_thread(verified, database.url)
