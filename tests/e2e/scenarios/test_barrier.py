"""The barrier on the real control plane: its deadline, a scheduler that dies, Bindings that are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.intercept import Intercept, cannot, intercept, pod_of
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

__all__ = ["intercept"]

pytestmark = pytest.mark.e2e
GPU = {"nvidia.com/gpu": 8}


def nodes(count: int) -> list[dict[str, Any]]:
    return [a_node(f"n{i}", gpu=8) for i in range(count)]


def gang(name: str, pods: int, **spec: Any) -> list[dict[str, Any]]:
    return a_gang(name, pods=pods, requests=GPU, **spec)


async def until_waiting(story: Story, count: int) -> None:
    """Wait until so many bind calls have come to the proxy."""

    async def look() -> bool:
        return story.verbs.count("POST", "/bind") >= count

    await eventually(look)


async def whole(story: Story, count: int) -> list[dict[str, Any]]:
    """Wait for the whole gang and check that every Binding is inside an admission, in capacity of its own."""
    bound = await story.until_bound(count)
    await story.until_event("GangScheduled")

    async def all_recorded() -> bool:
        return len(await story.service.events("PodBound")) == count

    await eventually(all_recorded)
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
    return events


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [f for f in events if f["type"] == kind]


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.settings(barrier_timeout_s="4")
@pytest.mark.parametrize("verb", ["bind", "filter"])
async def test_the_deadline_passes(intercept: Intercept, story: Story, verb: str) -> None:
    """One of eight is kept from bind: no pod is bound, all reservations are released and recorded, then it is admitted again."""
    obstacle = True

    async def keep_the_last(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        mine = request.path.endswith(verb) and pod_of(request.path, body) == "train-7"
        return cannot("kept back by the test") if mine and obstacle else None

    intercept.call = keep_the_last
    await story.create(*nodes(8), *gang("train", 8))
    # A busy machine may need more than one deadline until the seven are there together.
    missing = ["default/train-7"]
    expired = await story.until_event("BindBarrierTimedOut", "default/train", missing=missing)
    assert not await story.bound()
    obstacle = False
    assert expired["data"]["arrived"] == [f"default/train-{i}" for i in range(7)]
    assert expired["data"]["waited_ms"] >= 4000
    released = (await story.service.events())[expired["position"]]
    assert released["type"] == "ReservationReleased"
    assert released["data"]["reason"] == "expired"
    assert len(released["data"]["pods"]) == 8

    async def members_informed() -> bool:
        refused = [c for c in story.service.calls("bind") if c["outcome"] == "refused"]
        return len([c for c in refused if "no member was bound" in c["error"]]) >= 7

    await eventually(members_informed)
    events = await whole(story, 8)
    assert len(of(events, "GangAdmitted")) >= 2, "it was not planned again"
    first_bound = min(f["position"] for f in of(events, "PodBound"))
    assert first_bound > of(events, "ReservationReleased")[-1]["position"]


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.settings(barrier_timeout_s="5")
async def test_a_gang_may_take_longer_than_the_timeout_to_arrive(
    intercept: Intercept, story: Story
) -> None:
    """kube-scheduler brings a member every 2.5 s, so the fourth comes after 7.5 s: they wait for it, and all are bound."""

    async def one_after_the_other(
        request: web.Request, body: dict[str, Any]
    ) -> web.Response | None:
        if request.path.endswith("/bind"):
            await asyncio.sleep(2.5 * int(body["PodName"].rpartition("-")[2]))
        return None

    intercept.call = one_after_the_other
    await story.create(*nodes(4), *gang("train", 4))
    events = await whole(story, 4)
    assert not of(events, "BindBarrierTimedOut")
    assert len(of(events, "GangAdmitted")) == 1


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_calls_of_a_dead_scheduler_do_not_count(intercept: Intercept, story: Story) -> None:
    """Seven wait when kube-scheduler is killed; an eighth that comes alone opens nothing."""
    alone = True
    arrived: dict[str, dict[str, Any]] = {}

    async def keep_the_last(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if request.path.endswith("/bind"):
            arrived[pod_of(request.path, body)] = body
            if body["PodName"] == "train-7" and alone:
                await asyncio.Event().wait()  # until its caller hangs up
        return None

    intercept.call = keep_the_last
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: len(arrived) == 8)
    await eventually(lambda: open_binds(story) == 7)
    assert not await story.bound()
    story.plane.schedulers["scheduler"].kill()
    await eventually(lambda: not open_binds(story))
    async with story.service.session() as session:
        url = f"{story.service.verbs_url}/scheduler/bind"
        eighth = asyncio.create_task(session.post(url, json=arrived["train-7"]))
        await story.stays(story.none_bound, 20)
        assert not eighth.done()
        eighth.cancel()
        await asyncio.gather(eighth, return_exceptions=True)
    alone = False
    story.plane.schedulers["scheduler"].start()
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    events = await whole(story, 8)
    assert len(of(events, "GangAdmitted")) == 1
    assert not of(events, "BindBarrierTimedOut"), (
        "calls of the dead scheduler kept the deadline of the new one"
    )


@pytest.mark.lived_in("long")
@pytest.mark.parametrize("before_death", [0, 3])
async def test_calls_of_a_dead_scheduler_bind_nothing(
    intercept: Intercept, story: Story, before_death: int
) -> None:
    """kube-scheduler dies when the barrier is open and some are bound: its calls bind no other pod.

    When it dies before the first is bound, the gang has not started: the next scheduler's members
    wait for one another again.
    """
    begun = done = 0
    dead = asyncio.Event()
    alone = False
    again: set[str] = set()

    async def hold(method: str, path: str) -> web.Response | None:
        nonlocal begun
        if path.endswith("/binding") and not dead.is_set():
            begun += 1
            if begun > before_death:
                await dead.wait()
                return web.Response(status=503)
        return None

    async def count(method: str, path: str, status: int) -> None:
        nonlocal done
        done += path.endswith("/binding") and status == 201

    async def keep_the_last(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if alone and request.path.endswith("/bind"):
            again.add(body["PodName"])
            if len(again) == 8 - before_death and not before_death:
                again.discard(body["PodName"])
                return cannot("kept back by the test")
        return None

    story.server.before, story.server.after = hold, count
    intercept.call = keep_the_last
    await story.create(*nodes(8), *gang("train", 8))
    await eventually(lambda: begun == 8 and done == before_death)
    story.plane.schedulers["scheduler"].kill()
    await eventually(lambda: not open_binds(story))
    dead.set()
    alone = True

    async def no_more_bound() -> bool:
        return len(await story.bound()) == before_death

    await story.stays(no_more_bound, 15)
    story.plane.schedulers["scheduler"].start()
    await asyncio.to_thread(story.plane.wait_for_scheduler)
    if not before_death:
        await eventually(lambda: len(again) == 7)
        await story.stays(story.none_bound, 15)
    alone = False
    events = await whole(story, 8)
    assert len(of(events, "GangAdmitted")) == 1
    assert not of(events, "PodBindFailed")


def open_binds(story: Story) -> int:
    """Count the bind calls that our service holds; a hang-up has come to it when there are fewer."""
    return sum(path.endswith("/bind") for path in story.verbs.open)


async def test_bindings_refused_for_the_moment_are_posted_again(story: Story) -> None:
    """Three of ten get 429 or 500, one more often than a call of the client tries; the gang is bound all the same."""
    tries: dict[str, int] = {}

    async def refuse(method: str, path: str) -> web.Response | None:
        if not path.endswith("/binding"):
            return None
        pod = path.split("/")[-2]
        tries[pod] = tries.get(pod, 0) + 1
        if pod == "train-1" and tries[pod] == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        if pod == "train-4" and tries[pod] <= 3:
            return web.Response(status=429)
        if pod == "train-8" and tries[pod] <= 7:
            return web.Response(status=500)
        return None

    story.server.before = refuse
    await story.create(*nodes(10), *gang("train", 10))
    events = await whole(story, 10)
    assert not of(events, "PodBindFailed")
    assert len(of(events, "GangAdmitted")) == 1
    assert (tries["train-1"], tries["train-4"], tries["train-8"]) == (2, 4, 8)
    await eventually(lambda: not open_binds(story))  # a line is written with its answer
    outcomes = [c["outcome"] for c in story.service.calls("bind")]
    assert outcomes == ["bound"] * 10


STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}


@pytest.mark.full
@pytest.mark.lived_in("long")
@pytest.mark.settings(bind_timeout_s="24", barrier_timeout_s="15")
@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
async def test_a_refused_binding_stops_no_other_binding(
    story: Story, status: int, reason: str
) -> None:
    """One of ten is refused for good: that is recorded, nine are bound, the tenth follows when it can."""
    obstacle = True

    async def refuse(method: str, path: str) -> web.Response | None:
        if path.endswith("/train-3/binding") and obstacle:
            body = {**STATUS, "reason": reason, "message": "refused by the test", "code": status}
            return web.json_response(body, status=status)
        return None

    story.server.before = refuse
    await story.create(*nodes(10), *gang("train", 10))
    bound = await story.until_bound(9)
    assert "train-3" not in bound
    failed = await story.until_event("PodBindFailed", "default/train")
    assert failed["data"]["pod"] == "default/train-3"
    assert "refused by the test" in failed["data"]["error"]
    assert await story.bound() == bound
    obstacle = False
    events = await whole(story, 10)
    assert {f["data"]["pod"] for f in of(events, "PodBindFailed")} == {"default/train-3"}
    assert not of(events, "BindBarrierTimedOut")
    assert len(of(events, "GangAdmitted")) == 1
