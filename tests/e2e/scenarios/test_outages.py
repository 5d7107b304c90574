"""Postgres away, API server away, watches cut: nothing new is promised, nothing is lost, all completes.

The stories of this module have a PostgreSQL of their own, so that it can be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from extender.store import schema_migration
from extender.store.embedded.embedded_server import EmbeddedPostgres
from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.intercept import Intercept, cannot, intercept
from tests.e2e.scenarios.service import ROOT
from tests.support.logs.postgres import fresh_database, run, running_postgres
from tests.support.service.manifest_builders import a_gang, a_node
from tests.support.waiting import eventually

__all__ = ["intercept"]

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
GPU = {"nvidia.com/gpu": 8}
CALLS, LOOKS = 10, 5  # during an outage


def nodes(count: int) -> list[dict[str, Any]]:
    return [a_node(f"n{i}", gpu=8) for i in range(count)]


def gang(name: str, pods: int = 4, **spec: Any) -> list[dict[str, Any]]:
    return a_gang(name, pods=pods, requests=GPU, **spec)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server that tests of this module may stop."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database_url(own_postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database on it; `story` gets this one."""
    with fresh_database(own_postgres.url) as url:
        run(schema_migration.upgrade(url))
        yield url


class Outage:
    """Take a PostgreSQL away and bring it back, in one of three ways."""

    def __init__(self, server: EmbeddedPostgres, how: str) -> None:
        self._server = server
        self._how = how
        self._frozen: list[int] = []

    async def begin(self) -> None:
        assert self._server.pid is not None
        if self._how == "frozen":
            self._frozen = [self._server.pid, *children(self._server.pid)]
            for pid in self._frozen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        elif self._how == "stopped":
            await self._server._stop_server()
        else:
            os.kill(self._server.pid, signal.SIGKILL)

    async def end(self) -> None:
        if self._how == "frozen":
            for pid in reversed(self._frozen):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._frozen = []
            return
        if self._server._server is not None:
            await asyncio.to_thread(self._server._server.wait, 10)
        await self._server._run_until_ready()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


class Watchman:
    """Asks the probes and, as kube-scheduler would, filter and bind, all the time; remembers answers."""

    def __init__(self, story: Story, pod: dict[str, Any] | None = None) -> None:
        self._story = story
        self._pod = pod
        self.ready: list[tuple[float, int, str]] = []  # when asked, status, reasons
        self.live: list[int] = []
        self.filters: list[dict[str, Any]] = []
        self.binds: list[str] = []  # their errors
        self.failures: list[str] = []

    @contextlib.asynccontextmanager
    async def on_duty(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (self._probe(), self._call(), self._bind())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not self.failures, self.failures

    async def _for_ever(self, work: Any) -> None:
        async with self._story.service.session() as session:
            while True:
                try:
                    await work(session)
                except aiohttp.ClientError as error:
                    self.failures.append(f"{work.__name__}: {error!r}")
                await asyncio.sleep(0.2)

    async def _probe(self) -> None:
        async def ask(session: aiohttp.ClientSession) -> None:
            asked = time.monotonic()
            async with session.get(f"{self._story.service.url}/readyz") as reply:
                status = reply.status
            async with session.get(f"{self._story.service.url}/v1/readiness") as reply:
                self.ready.append((asked, status, await reply.text()))
            async with session.get(f"{self._story.service.url}/livez") as reply:
                self.live.append(reply.status)

        await self._for_ever(ask)

    async def _call(self) -> None:
        async def ask(session: aiohttp.ClientSession) -> None:
            body = {"Pod": self._pod, "NodeNames": [f"n{i}" for i in range(24)]}
            async with session.post(
                f"{self._story.service.verbs_url}/scheduler/filter", json=body
            ) as reply:
                self.filters.append(await reply.json())

        if self._pod is not None:
            await self._for_ever(ask)

    async def _bind(self) -> None:
        async def ask(session: aiohttp.ClientSession) -> None:
            assert self._pod is not None
            meta = self._pod["metadata"]
            body = {
                "PodName": meta["name"],
                "PodNamespace": "default",
                "PodUID": meta["uid"],
                "Node": "n0",
            }
            async with session.post(
                f"{self._story.service.verbs_url}/scheduler/bind", json=body
            ) as reply:
                self.binds.append((await reply.json())["Error"])

        if self._pod is not None:
            await self._for_ever(ask)


async def all_whole(story: Story, names: list[str], pods: int = 4) -> list[dict[str, Any]]:
    """Wait until all gangs are whole; every admission, every Binding and every satisfaction is there once."""
    await story.until_bound(len(names) * pods)

    async def recorded() -> bool:
        satisfied = {f["gang"] for f in await story.service.events("GangScheduled")}
        return satisfied >= {f"default/{name}" for name in names}

    await eventually(recorded)
    events = await story.check_events()
    await story.check_capacity()
    for name in names:
        mine = [f["type"] for f in events if f["gang"] == f"default/{name}"]
        # an outage that outlasts the barrier's deadline is a reason to plan again, nothing else is
        assert mine.count("GangAdmitted") == 1 + mine.count("BindBarrierTimedOut"), (name, mine)
        assert mine.count("PodBound") == pods, (name, mine)
        assert mine.count("GangScheduled") == 1, (name, mine)
    return events


def verified(database_url: str) -> None:
    """Run `gang-extender verify` on the log: chain, positions, folds."""
    done = subprocess.run(
        [sys.executable, "-m", "extender", "verify", "--database-url", database_url],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def postgres_goes_away(
    story: Story, server: EmbeddedPostgres, url: str, how: str, *, seconds: float, lease_s: float
) -> None:
    """Take PostgreSQL away in the middle of admissions, for so many seconds at least.

    It stays away until calls were answered all the same, and until the lease has run out.
    """
    outage = Outage(server, how)
    first_nomination = asyncio.Event()

    async def notice(method: str, path: str) -> web.Response | None:
        if method == "PATCH" and "/pods/" in path:
            first_nomination.set()
        return None

    story.server.before = notice
    before, during = ["a", "b", "c"], ["d", "e", "f"]
    await story.create(*nodes(24))
    await story.create(*(thing for name in before for thing in gang(name)))
    await eventually(first_nomination.is_set)  # in the middle of admissions
    await outage.begin()
    began = time.monotonic()
    try:
        await story.create(*(thing for name in during for thing in gang(name)))
        pod = (await story.pods())["d-0"]
        watchman = Watchman(story, pod)

        def late() -> list[int]:
            """Return the statuses of readiness after the end of the lease."""
            return [status for when, status, _ in watchman.ready if when > began + lease_s + 0.5]

        async def enough() -> bool:
            pods = await story.pods()
            for name in during:  # an admission that is not in the log has no effect
                for i in range(4):
                    assert not pods[f"{name}-{i}"]["spec"].get("nodeName")
                    assert not pods[f"{name}-{i}"]["status"].get("nominatedNodeName")
                    assert pods[f"{name}-{i}"]["spec"].get("schedulingGates")
            # none that came before or during the outage waits for the database
            answered = not any(path.endswith("/filter") for path in story.verbs.open)
            calls = min(len(watchman.filters), len(watchman.binds))
            over = time.monotonic() > began + seconds
            return over and answered and calls >= CALLS and len(late()) >= LOOKS

        async with watchman.on_duty():
            await story.until(enough, "calls are answered without the database", every_s=0.3)
    finally:
        await outage.end()
    assert set(watchman.live) == {200}
    for answer in watchman.filters:
        assert not answer["NodeNames"], f"a node was promised: {answer}"
        assert answer["Error"] or answer["FailedAndUnresolvableNodes"], answer
    for error in watchman.binds:
        assert error, "bind accepted a member without a reservation"
    assert set(late()) == {503}, "ready without a lease"
    assert "the lease has run out" in watchman.ready[-1][2], watchman.ready[-1]

    await eventually(story.service.ready)
    await all_whole(story, before + during)
    await asyncio.to_thread(story.service.stop)
    verified(url)


@pytest.mark.settings(lease_duration_s="4")
@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_postgres_goes_away(
    story: Story, own_postgres: EmbeddedPostgres, database_url: str, how: str
) -> None:
    """In the middle of admissions: what is not in the log is not promised; everything completes after."""
    await postgres_goes_away(story, own_postgres, database_url, how, seconds=0, lease_s=4)


@pytest.mark.long
@pytest.mark.parametrize("how", ["frozen", "stopped", "killed"])
async def test_postgres_goes_away_for_20_s(
    story: Story, own_postgres: EmbeddedPostgres, database_url: str, how: str
) -> None:
    """The same with the lease of the defaults."""
    await postgres_goes_away(story, own_postgres, database_url, how, seconds=20, lease_s=10)


@pytest.mark.full
@pytest.mark.settings(barrier_timeout_s="5")  # the lease outlives it
async def test_the_barrier_ends_while_postgres_is_frozen(
    intercept: Intercept, story: Story, own_postgres: EmbeddedPostgres
) -> None:
    """Its deadline cannot be recorded: the calls are answered all the same, no pod is bound."""
    arrived: set[str] = set()
    obstacle = True

    async def keep_the_last(request: web.Request, body: dict[str, Any]) -> web.Response | None:
        if not obstacle or not request.path.endswith("/bind"):
            return None
        if body["PodName"] == "a-3":
            return cannot("kept back by the test")
        arrived.add(body["PodName"])
        return None

    def answered() -> int:
        return len({c["pod"] for c in story.service.calls("bind") if c["outcome"] == "refused"})

    intercept.call = keep_the_last
    await story.create(*nodes(4), *gang("a"))
    await eventually(lambda: len(arrived) == 3)
    outage = Outage(own_postgres, "frozen")
    await outage.begin()
    try:
        await eventually(lambda: answered() == 3)
        assert not await story.bound()
    finally:
        obstacle = False
        await outage.end()
    await story.until_bound(4)
    await story.until_event("GangScheduled")
    await story.check_events()
    await story.check_capacity()


async def apiserver_goes_away(story: Story, how: str) -> None:
    """Take the API server away when the first gang is being bound, until readiness reports it."""
    plane = story.plane
    first_binding = asyncio.Event()

    async def notice(method: str, path: str) -> web.Response | None:
        if path.endswith("/binding"):
            first_binding.set()
        return None

    names = ["a", "b", "c"]
    await story.create(*nodes(12))
    await story.create(*(thing for name in names for thing in gang(name)))
    story.server.before = notice
    await eventually(first_binding.is_set)
    if how == "frozen":
        plane.apiserver.pause()
    else:
        await asyncio.to_thread(plane.apiserver.kill)
    watchman = Watchman(story)
    try:

        def unready() -> bool:
            reported = "the API server has not answered for"
            return (
                bool(watchman.ready)
                and watchman.ready[-1][1] == 503
                and reported in watchman.ready[-1][2]
            )

        async with watchman.on_duty():
            await eventually(unready, "readiness reports it")
    finally:
        if how == "frozen":
            plane.apiserver.resume()
        else:
            plane.start_apiserver(wait=False)
        await asyncio.to_thread(plane.wait_for_apiserver)
    assert story.service.running, "the service ended"
    assert story.service.starts == 1
    assert set(watchman.live) == {200}
    status, body = watchman.ready[-1][1:]
    assert status == 503, body
    await eventually(story.service.ready)
    await all_whole(story, names)


async def test_the_apiserver_is_killed_and_started_again(story: Story) -> None:
    """No crash; readiness reports it when the caches are too old; all gangs complete after."""
    await apiserver_goes_away(story, "killed")


@pytest.mark.long
async def test_the_apiserver_freezes(story: Story) -> None:
    """The same with connections that stay open and silent."""
    await apiserver_goes_away(story, "frozen")


@pytest.mark.full
async def test_watches_are_cut_again_and_again(intercept: Intercept, story: Story) -> None:
    """Gangs complete and deletions are seen while no watch lives for long."""
    cuts = 0

    async def cut() -> None:
        nonlocal cuts
        while True:
            cuts += intercept.cut_watches()
            await asyncio.sleep(0.4)

    await story.create(*nodes(8), *gang("a"), *gang("b"))
    scissors = asyncio.create_task(cut())
    try:
        await story.until_bound(8)
        await capacity_goes_on(story)
        await eventually(lambda: cuts >= 20)
    finally:
        scissors.cancel()
    await all_whole(story, ["b", "c"])
    await same_as_the_cluster(story)


@pytest.mark.full
@pytest.mark.parametrize("flavour", ["status", "item"])
async def test_watches_are_too_old(intercept: Intercept, story: Story, flavour: str) -> None:
    """410 Gone, as an answer or as an item of the stream: listed again, and nothing is missed."""
    gone = 0
    broken = True

    async def too_old(request: web.Request) -> web.StreamResponse | None:
        nonlocal gone
        if not broken:
            return None
        gone += 1
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": 410,
            "reason": "Expired",
            "message": "too old resource version",
        }
        if flavour == "status":
            return web.json_response(status, status=410)
        return web.json_response({"type": "ERROR", "object": status})

    await story.create(*nodes(8), *gang("a"), *gang("b"))
    await story.until_bound(8)
    intercept.watch = too_old
    intercept.cut_watches()
    deleted = asyncio.create_task(capacity_goes_on(story, wait=False))
    await eventually(lambda: gone >= 10)
    await deleted
    broken = False
    await all_whole(story, ["b", "c"])
    await same_as_the_cluster(story)


async def capacity_goes_on(story: Story, *, wait: bool = True) -> None:
    """Gang `a` is deleted; `c` needs its capacity."""
    await story.create(*gang("c"))
    for i in range(4):
        await story.api.delete(f"/api/v1/namespaces/default/pods/a-{i}")
    await story.api.delete("/apis/gang-extender.dev/v1alpha1/namespaces/default/podgroups/a")
    if wait:
        await story.until_bound(4, prefix="c-")


async def same_as_the_cluster(story: Story) -> None:
    """What is bound for the service is what is bound for the API server."""
    bound = await story.bound()

    async def gangs() -> bool:
        events = await story.service.events("MemberTerminated", "GangRemoved")
        return {f["gang"] for f in events} >= {"default/a"}

    await eventually(gangs)
    now = {
        f["data"]["pod"].partition("/")[2]: f["data"]["node"]
        for f in await story.service.events("PodBound")
    }
    assert {pod: node for pod, node in now.items() if not pod.startswith("a-")} == bound
