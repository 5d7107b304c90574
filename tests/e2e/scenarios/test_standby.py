"""Warm standby on the real control plane: fifty kills, rolling updates, and replicas that PostgreSQL is cut from.

Two or three replicas under the shipped RBAC, each with its own way to PostgreSQL, behind the Service
(`scenarios/replicas.py`). A kill comes at a chosen request to kube-apiserver, call of kube-scheduler, or append to
the log; ordinary pods arrive all the while. What is printed is what was measured; nothing of it is asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.controlplane.api import ApiError
from tests.e2e.scenarios.conftest import OURS, Story, real
from tests.e2e.scenarios.replicas import Replica, Replicas, replicas
from tests.e2e.scenarios.test_preemption import classes, of_class
from tests.support.logs.database_proxy import DatabaseProxy
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_node, a_pod
from tests.support.waiting import eventually

LEASE_S = float(os.environ.get("GX_TEST_LEASE_S", "4"))
KILLS = int(os.environ.get("GX_TEST_KILLS", "50"))  # fewer, to try it
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3000),
    pytest.mark.lived_in("long"),
    pytest.mark.settings(lease_duration_s=str(LEASE_S)),
]
SIZE = 4
PODS = "/api/v1/namespaces/default/pods"
WAYS = pytest.StashKey[list[DatabaseProxy]]()


@pytest.fixture
async def database_url(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The story's own service gets the first of three ways to the database."""
    async with contextlib.AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(DatabaseProxy(database_url)) for _ in range(3)]
        request.node.stash[WAYS] = ways
        yield ways[0].url


@pytest.fixture
async def group(
    story: Story, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Replicas]:
    """Two replicas, or as many as the parameter has; kube-scheduler asks their Service."""
    async with _behind_a_service(story, tmp_path, request, proxied=True) as made:
        yield made


@pytest.fixture
async def watched(
    story: Story, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Replicas]:
    """The same, and only what the first one does passes the proxy in front of kube-apiserver."""
    async with _behind_a_service(story, tmp_path, request, proxied=False) as made:
        yield made


@contextlib.asynccontextmanager
async def _behind_a_service(
    story: Story, folder: Path, request: pytest.FixtureRequest, *, proxied: bool
) -> AsyncIterator[Replicas]:
    ways = request.node.stash[WAYS][: getattr(request, "param", 2)]
    lease = str(LEASE_S)
    async with replicas(story, ways, folder, proxied=proxied, lease_duration_s=lease) as made:
        await eventually(made.all[0].leads)
        story.verbs.target = made.front.url
        yield made


async def use_front(story: Story, front_url: str, scope: str) -> None:
    """Have kube-scheduler ask the Service itself, without the proxy in between."""
    await asyncio.to_thread(story.plane.stop_scheduler)
    story.plane.start_scheduler(story.scheduler_config(f"scopes/{scope}", front_url), wait=False)
    await asyncio.to_thread(story.plane.wait_for_scheduler)


class Passers:
    """Ordinary pods that come four times a second and leave when they are bound; how long each waited."""

    def __init__(self, story: Story) -> None:
        self.story = story
        # when it came (wall clock), seconds until bound
        self.waited: list[tuple[float, float]] = []
        self.waiting: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        await self.story.create(a_node("plain", cpu="64"))
        tasks = [asyncio.create_task(self._come()), asyncio.create_task(self._watch())]
        try:
            yield
        finally:
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)

            async def no_trees_wait() -> bool:
                return not self.waiting

            await eventually(no_trees_wait)
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _come(self) -> None:
        number = 0
        while True:
            name, number = f"passer-{number}", number + 1
            pod = a_pod(
                name, requests={"cpu": "10m"}, nodeSelector={"kubernetes.io/hostname": "plain"}
            )
            self.waiting[name] = time.time()
            await self.story.api.create(real(pod))
            await asyncio.sleep(0.25)

    async def _watch(self) -> None:
        async for kind, pod in self.story.api.watch(PODS):
            name = pod["metadata"]["name"]
            if (
                kind in ("ADDED", "MODIFIED")
                and name in self.waiting
                and pod["spec"].get("nodeName")
            ):
                came = self.waiting.pop(name)
                self.waited.append((came, time.time() - came))
                await self.story.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})


# -- fifty kills -------------------------------------------------------------------------------------


class Strike(msgspec.Struct, frozen=True):
    """A point at which the leader is killed; it counts what it sees on one of the four ways."""

    way: str  # "api", "verb", "sent" or "answered"
    what: str  # what is counted; events by type
    at: int = 1  # the how manieth
    preempts: bool = False


STRIKES = {
    "before the admission is appended": Strike("sent", "GangAdmitted"),
    "after the admission is appended": Strike("answered", "GangAdmitted"),
    "between nominations": Strike("api", "nomination", 2),
    "between gate lifts": Strike("api", "gate", 2),
    "barrier half full": Strike("verb", "bind", SIZE // 2 + 1),
    "between Bindings": Strike("api", "binding", 3),
    "before bindings are written down": Strike("sent", "PodBound"),
    "preemption: before the plan is appended": Strike("sent", "PreemptionPlanned", preempts=True),
    "preemption: planned": Strike("answered", "PreemptionPlanned", preempts=True),
    "preemption: nominated": Strike("api", "nomination", 2, preempts=True),
    "preemption: victims marked": Strike("api", "mark", 2, preempts=True),
    "preemption: between deletions": Strike("api", "deletion", 2, preempts=True),
    "preemption: victims going": Strike("api", "all deleted", SIZE, preempts=True),
    "preemption: victims seen to be gone": Strike("answered", "VictimGone", preempts=True),
    "preemption: capacity made, members let go": Strike("api", "gate", 2, preempts=True),
}


def kind_of(method: str, path: str) -> str:
    """Return the kind of a request that has an effect on a pod, or an empty string."""
    if method == "POST" and path.endswith("/binding"):
        return "binding"
    if method == "DELETE" and path.startswith(f"{PODS}/"):
        return "deletion"
    if method == "PATCH" and path.startswith(f"{PODS}/"):
        if not path.endswith("/status"):
            return "gate"
        return "mark" if path.startswith(f"{PODS}/low") else "nomination"
    return ""


class Killer:
    """Kills the leader at a strike: what it was about to send is not sent, and no answer reaches it."""

    def __init__(self, group: Replicas, strike: Strike) -> None:
        self._group = group
        self._strike = strike
        self._seen = 0
        self._asked: set[str] = set()
        self.struck = asyncio.Event()
        self.killed_s = 0.0  # wall clock
        self.position = 0

    @contextlib.contextmanager
    def armed(self) -> Any:
        story, way = self._group.story, self._group.leader.database
        story.server.before, story.server.after = self._request, self._answer
        story.verbs.before = self._call
        way.sent, way.answered = self._sent, self._answered
        try:
            yield
        finally:
            story.server.before = story.server.after = story.verbs.before = None
            way.sent = way.answered = None

    def _hit(self, way: str, what: str) -> bool:
        if self.struck.is_set():
            return False
        if (way, what) == (self._strike.way, self._strike.what):
            self._seen += 1
            if self._seen == self._strike.at:
                self.killed_s = self._group.kill_leader()
                self.struck.set()
        return self.struck.is_set()

    async def _request(self, method: str, path: str) -> web.Response | None:
        hit = self._hit("api", kind_of(method, path))
        return web.Response(status=503) if hit else None  # to whom it does not reach any more

    async def _answer(self, method: str, path: str, status: int) -> None:
        if kind_of(method, path) == "deletion" and status < 300:
            self._hit("api", "all deleted")

    async def _call(self, method: str, path: str) -> web.Response | None:
        self._hit("verb", path.rpartition("/")[2])
        return None

    async def _sent(self, name: str, data: bytes) -> bool:
        if name != "append":
            return False
        event = self._strike.what.encode()
        if self._strike.way == "sent" and event in data:
            return self._hit("sent", self._strike.what)
        if self._strike.way == "answered" and event in data:
            self._asked.add(name)
        return False

    async def _answered(self, name: str, _: bytes) -> bool:
        if name in self._asked:
            self._asked.discard(name)
            return self._hit("answered", self._strike.what)
        return False


async def provoke(story: Story, number: int, strike: Strike) -> str:
    """Create what leads to the strike; return the gang that must be bound in the end."""
    if not strike.preempts:
        await story.create(*a_gang(f"g{number}", pods=SIZE, requests={GPU: 8}))
        return f"g{number}"
    low = [a_pod(f"low{number}-{n}", node=f"n{n}", requests={GPU: 8}) for n in range(SIZE)]
    for pod in low:
        pod["metadata"]["finalizers"] = ["example.com/linger"]
    await story.create(*of_class(low, "low"))
    await story.create(
        *of_class(a_gang(f"hi{number}", pods=SIZE, requests={GPU: 8}, topo=RACK), "high")
    )
    return f"hi{number}"


async def linger_no_more(story: Story, number: int, *, after: Callable[[], bool]) -> None:
    """Play the victims' owner: lets go of those that are being deleted, once something holds."""
    while True:
        if after():
            for name, pod in (await story.pods()).items():
                if name.startswith(f"low{number}-") and pod["metadata"].get("deletionTimestamp"):
                    with contextlib.suppress(ApiError):
                        await story.api.patch(f"{PODS}/{name}", {"metadata": {"finalizers": None}})
        await asyncio.sleep(0.1)


async def clear(story: Story, name: str, number: int) -> None:
    """Take a gang that has run away again, so that the next one has its capacity."""
    for pod in await story.pods():
        if pod.startswith((f"{name}-", f"low{number}-")):
            await story.api.delete(f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
    await story.api.delete(f"/apis/{OURS}/namespaces/default/podgroups/{name}")
    await story.until_event("GangRemoved", f"default/{name}")


class Gap(msgspec.Struct, frozen=True):
    """What one kill cost, in seconds."""

    point: str
    lease: float  # last event of the old leader to the first of the new
    decision: float  # ... to the first of the new one that is about a gang
    killed: float  # kill to the first event of the new leader
    answers: float  # kill to the new leader's first pass, when filter is answered
    bound: float  # kill to the last member bound
    began: float  # wall clock of the kill


async def kill_once(group: Replicas, number: int, point: str) -> Gap:
    """Kill the leader at a point, have the gang completed by the next one, and start the dead one again."""
    story, strike = group.story, STRIKES[point]
    await group.until_led()
    killer, killed = Killer(group, strike), group.leader
    going = asyncio.create_task(
        linger_no_more(
            story, number, after=lambda: strike.what != "all deleted" or killer.struck.is_set()
        )
    )
    try:
        with killer.armed():
            name = await provoke(story, number, strike)
            await eventually(killer.struck.is_set)
            began_s = killer.killed_s
        await group.until_led()
        answers_s = time.time()
        assert group.leader is not killed
        await story.until_bound(SIZE, f"{name}-")
        bound_s = time.time()
        await story.until_event("GangScheduled", f"default/{name}")
        if strike.preempts:
            await story.until_event("PreemptionCompleted", f"default/{name}")
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
    events = await story.service.events()
    first = next(
        f
        for f in reversed(events)
        if f["type"] == "LeaseAcquired" and f["actor"] == group.leader.holder
    )
    last = events[first["position"] - 2]
    decided = next(f for f in events[first["position"] :] if f["gang"])
    await check_gang(story, events, name, strike)
    await killed.service.start()
    await clear(story, name, number)
    await group.until_ready()
    return Gap(
        point=point, lease=at(first) - at(last), decision=at(decided) - at(last), killed=at(first) - began_s,
        answers=answers_s - began_s, bound=bound_s - began_s, began=began_s,
    )  # fmt: skip


def at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


async def check_gang(story: Story, events: list[dict[str, Any]], name: str, strike: Strike) -> None:
    """Check a gang: nothing twice, no pod outside of an admission, and no victim but the planned ones."""
    mine = [f for f in events if f["gang"] == f"default/{name}"]
    planned = {
        (a["uid"], a["node"])
        for f in mine
        if f["type"] == "GangAdmitted"
        for a in f["data"]["assignments"]
    }
    bound = Counter((f["data"]["uid"], f["data"]["node"]) for f in mine if f["type"] == "PodBound")
    assert set(bound.values()) == {1}, f"{name}: a binding is recorded twice"
    assert len(bound) == SIZE
    assert set(bound) <= planned, f"{name}: bound outside of an admission"
    pods = await story.pods()
    runs = {
        p["metadata"]["uid"]: p["spec"]["nodeName"]
        for n, p in pods.items()
        if n.startswith(f"{name}-")
    }
    assert runs == dict(bound.keys())
    if not strike.preempts:
        assert [f["type"] for f in mine].count("GangAdmitted") == 1
        return
    (plan,) = [f["data"] for f in mine if f["type"] == "PreemptionPlanned"]
    victims = {p["uid"] for unit in plan["victims"] for p in unit["pods"]}
    gone = Counter(f["data"]["uid"] for f in mine if f["type"] == "VictimGone")
    assert gone == dict.fromkeys(victims, 1)
    assert not [f for f in mine if f["type"] == "PreemptionCancelled"]


def report_of(gaps: list[Gap], passers: Passers, scope: str) -> str:
    """Return what was measured, as lines of text."""
    lines = [f"scope {scope}, lease {LEASE_S:g} s, {len(gaps)} kills; seconds:"]
    for text, read in (
        ("last event of the old leader to the first of the new", lambda g: g.lease),
        ("last event of the old leader to the first about a gang", lambda g: g.decision),
        ("kill to the first event of the new leader", lambda g: g.killed),
        ("kill to its first answer", lambda g: g.answers),
        ("kill to the gang bound", lambda g: g.bound),
    ):
        found = sorted(map(read, gaps))
        within = sum(value <= LEASE_S + 2 for value in found)
        lines.append(
            f"  {text}: median {statistics.median(found):.2f}, p95 {found[int(len(found) * 0.95)]:.2f}, "
            f"max {found[-1]:.2f}, within lease + 2 s {within}/{len(found)}"
        )
    for point in STRIKES:
        some = [f"{g.lease:.2f}/{g.answers:.2f}" for g in gaps if g.point == point]
        lines.append(f"  {point}: {', '.join(some)} (events/answers)")
    spans = [(g.began, g.began + g.answers) for g in gaps]
    inside = sorted(w for came, w in passers.waited if any(a <= came <= b for a, b in spans))
    outside = sorted(w for came, w in passers.waited if not any(a <= came <= b for a, b in spans))
    for where, found in (("without a leader", inside), ("else", outside)):
        if found:
            lines.append(
                f"  {len(found)} ordinary pods that came {where}: median {statistics.median(found):.3f}, "
                f"p95 {found[int(len(found) * 0.95)]:.3f}, max {found[-1]:.3f}"
            )
    return "\n".join(lines)


@pytest.mark.long
@pytest.mark.parametrize("scope", ["marker-resource", "contended-resource", "everything"])
async def test_fifty_kills(story: Story, group: Replicas, scope: str) -> None:
    """The leader is killed at fifteen points of admission and preemption; every gang ends bound, once, as planned."""
    if scope != "marker-resource":
        await asyncio.to_thread(story.plane.stop_scheduler)
        story.plane.start_scheduler(story.scheduler_config(f"scopes/{scope}"), wait=False)
        await asyncio.to_thread(story.plane.wait_for_scheduler)
    await story.create(*classes(), *(a_node(f"n{i}", {RACK: "a"}, gpu=8) for i in range(SIZE)))
    gaps: list[Gap] = []
    passers = Passers(story)
    async with passers.passing():
        for number in range(KILLS):
            point = list(STRIKES)[number % len(STRIKES)]
            gaps.append(await kill_once(group, number, point))
            print(f"{number} {gaps[-1]}", flush=True)
    print(f"\n{report_of(gaps, passers, scope)}", flush=True)
    await story.check_events()


# -- rolling updates ---------------------------------------------------------------------------------


class Errors:
    """How many attempts of kube-scheduler ended with an error, by time; it knows of every call that was refused."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.seen: list[tuple[float, int]] = []

    async def _look(self) -> None:
        text = await asyncio.to_thread(self._story.plane.scheduler_metrics)
        lines = [x for x in text.splitlines() if x.startswith("scheduler_schedule_attempts_total")]
        count = sum(float(x.split()[-1]) for x in lines if 'result="error"' in x)
        self.seen.append((time.monotonic(), int(count)))

    @contextlib.asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        async def look_for_ever() -> None:
            while True:
                await self._look()
                await asyncio.sleep(0.3)

        await self._look()
        task = asyncio.create_task(look_for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._look()

    def outside(self, windows: list[tuple[float, float]]) -> int:
        """Count those between two looks that touch no window."""
        found = 0
        for (a, before), (b, after) in zip(self.seen, self.seen[1:], strict=False):
            if not any(begin <= b and a <= end for begin, end in windows):
                found += after - before
        return found

    def all(self) -> int:
        return self.seen[-1][1] - self.seen[0][1]


async def gangs_come(story: Story, done: list[str]) -> None:
    """One gang after the other is created, bound, and deleted, for ever."""
    while True:
        name = f"roll{len(done)}"
        await story.create(*a_gang(name, pods=SIZE, requests={GPU: 8}))
        await story.until_bound(SIZE, f"{name}-")
        for number in range(SIZE):
            await story.api.delete(f"{PODS}/{name}-{number}", {"gracePeriodSeconds": 0})
        await story.api.delete(f"/apis/{OURS}/namespaces/default/podgroups/{name}")
        done.append(name)


@pytest.mark.long
@pytest.mark.parametrize("group", [2, 3], indirect=True, ids=["two", "three"])
async def test_a_rolling_update_refuses_no_call(story: Story, group: Replicas) -> None:
    """Every pod is shown to us; each replica is replaced twice; kube-scheduler's own count of errors stays where it is."""
    await use_front(story, group.front.url, "everything")
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(SIZE)))
    windows: list[tuple[float, float]] = []
    passers, errors, done = Passers(story), Errors(story), []
    async with passers.passing(), errors.counted():
        coming = asyncio.create_task(gangs_come(story, done))
        try:
            for _ in range(2):
                for replica in group.all:
                    await group.rolled(replica, windows)
            before = len(done)
            await story.until(lambda: coming.done() or len(done) > before)
            assert not coming.done(), coming.result()
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
    handed = [f"{end - begin:.2f}" for begin, end in windows]
    waited = sorted(waited for _, waited in passers.waited)
    print(
        f"\n{len(group.all)} replicas, hand-overs (s) {', '.join(handed)}; {len(done)} gangs and "
        f"{len(waited)} ordinary pods, the slowest after {waited[-1]:.2f} s; connections refused "
        f"{len(group.front.refused)}; errors of kube-scheduler {errors.all()}, of these outside of hand-overs "
        f"{errors.outside(windows)}"
    )
    assert errors.outside(windows) == 0
    assert group.front.refused == []
    await story.check_events()


# -- PostgreSQL is cut from one replica ----------------------------------------------------------------


async def until_reason(replica: Replica, check: str, text: str) -> None:
    """Wait until /readyz fails, for this reason."""

    async def look() -> bool:
        status, _ = await replica.probe("/readyz")
        found = (await replica.checks()).get(check)
        return status == 503 and found is not None and not found["ok"] and text in found["reason"]

    await eventually(look)


async def until_ready(replica: Replica) -> None:
    await eventually(replica.service.ready)


def writes(story: Story, since: int) -> list[tuple[str, str]]:
    return [(m, p) for m, p in story.server.seen[since:] if m in ("POST", "PUT", "PATCH", "DELETE")]


@pytest.mark.parametrize(
    ("watched", "how"),
    [
        pytest.param(2, "silent", id="silent"),
        pytest.param(2, "refused", id="refused", marks=pytest.mark.long),
        pytest.param(3, "silent", id="silent-three", marks=pytest.mark.long),
    ],
    indirect=["watched"],
)
async def test_a_leader_is_cut_from_postgres(story: Story, watched: Replicas, how: str) -> None:
    """It promises nothing, its lease runs out, held calls are answered; the next one leads, and no ghost of it is written."""
    first = watched.all[0]
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(2 * SIZE)))
    arrived, obstacle = 0, True

    async def keep_the_last(method: str, path: str) -> web.Response | None:
        nonlocal arrived
        if not obstacle or not path.endswith("/bind"):
            return None
        arrived += 1
        if arrived < SIZE:
            return None
        return web.json_response({"Error": "kept back by the test"})

    story.verbs.before = keep_the_last
    await story.create(*a_gang("held", pods=SIZE, requests={GPU: 8}))
    await story.until(lambda: arrived >= SIZE)
    first.database.cut(how)
    # planned under a lease that still counts; its append may be on its way for long
    await story.create(*a_gang("ghost", pods=SIZE, requests={GPU: 8}))
    await until_reason(first, "lease", "the lease has run out")
    obstacle = False
    assert await watched.until_led() is not first
    seen = len(story.server.seen)
    await story.until_bound(2 * SIZE)
    await story.until_event("GangScheduled", "default/held")
    await story.until_event("GangScheduled", "default/ghost")
    first.database.mend()
    await until_ready(first)
    assert "lease" in await first.checks()
    assert f"held by {watched.leader.holder}" in (await first.checks())["lease"]["reason"]
    events = await story.check_events()
    assert writes(story, seen) == [], "the deposed leader wrote to the API server"
    taken = max(f["position"] for f in events if f["type"] == "LeaseAcquired")
    assert {f["actor"] for f in events if f["position"] >= taken} == {watched.leader.holder}
    for name in ("held", "ghost"):
        mine = [f["type"] for f in events if f["gang"] == f"default/{name}"]
        assert mine.count("GangAdmitted") == 1
        assert mine.count("PodBound") == SIZE


@pytest.mark.long
@pytest.mark.parametrize("how", ["silent", "refused", "lagging", "stopped"])
async def test_a_follower_that_is_behind_takes_nothing_over(
    story: Story, group: Replicas, how: str
) -> None:
    """Cut off, or with a log that it does not get to read: it reports it, leaves the lease alone, and leads once it is current."""
    first, second = group.all
    await story.create(*(a_node(f"n{i}", gpu=8) for i in range(2 * SIZE)))
    if how == "stopped":
        os.kill(second.service.pid, signal.SIGSTOP)
    elif how == "lagging":
        second.database.hold("follow")
    else:
        second.database.cut(how)
    await story.create(*a_gang("g", pods=SIZE, requests={GPU: 8}))
    await story.until_bound(SIZE, "g-")
    await story.until_event("GangScheduled", "default/g")
    events = await story.service.events()
    if how == "stopped":
        await asyncio.sleep(LEASE_S + 2)
        os.kill(second.service.pid, signal.SIGCONT)
        await until_ready(second)
        assert not await second.leads()
        await eventually(first.leads)
        group.kill_leader()
    else:
        behind = "it grows faster than it is read here" if how == "lagging" else "behind the log"
        await until_reason(second, "log", behind)
        group.kill_leader()
        ends_s = time.monotonic() + 2 * LEASE_S + 2
        while time.monotonic() < ends_s:
            assert not await second.leads()
            assert not (await second.checks())["log"]["ok"]
            if how == "lagging":  # it could: the database answers everything else
                assert len(await _log_of(second)) == len(events)
            await asyncio.sleep(0.2)
        second.database.mend()
        if how == "lagging":
            second.database.let_go("follow")
    await story.create(*a_gang("h", pods=SIZE, requests={GPU: 8}))
    assert await group.until_led() is second
    await story.until_bound(SIZE, "h-")
    later = (await story.check_events())[len(events) :]
    assert later[0]["type"] == "LeaseAcquired"
    assert {f["actor"] for f in later} == {second.holder}
    await first.service.start()


async def _log_of(replica: Replica) -> list[dict[str, Any]]:
    """Read the log by what a replica answers, whatever its memory has."""
    found: list[dict[str, Any]] = (await replica.ask("/v1/events?limit=1000"))[1]
    return found
