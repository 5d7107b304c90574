"""Several replicas of the service beside one control plane, each with its own way to PostgreSQL, behind one Service.

The first is the story's own. kube-scheduler reaches them as it would by the cluster IP of deploy/kubernetes/service.yaml:
TCP connections go in turn to those that are ready (tests/support/service/replicas.py). All speak to kube-apiserver through the
story's proxy, where a test can stop things at a chosen request.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.scenarios.conftest import Story
from tests.e2e.scenarios.service import STORY_SETTINGS, Service
from tests.support.logs.database_proxy import DatabaseProxy
from tests.support.service.replicas import PROBE_S, RoundRobin
from tests.support.waiting import eventually


class Replica:
    """One of them."""

    def __init__(self, service: Service, database: DatabaseProxy, holder: str) -> None:
        self.service = service
        self.database = database
        self.holder = holder
        self.url = service.url
        self.verbs_url = service.verbs_url

    async def ask(self, path: str, within_s: float | None = None) -> tuple[int, Any]:
        """Return the status and the body of an answer; no answer is a failure."""
        async with (
            self.service.session(within_s) as session,
            session.get(self.url + path) as reply,
        ):
            return reply.status, await reply.json(content_type=None)

    async def probe(self, path: str) -> tuple[int, Any]:
        """Ask as the kubelet does, which has little time; return status 0 when there is no answer."""
        try:
            return await self.ask(path, PROBE_S)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, None

    async def checks(self) -> dict[str, dict[str, Any]]:
        """Return the checks of readiness by name."""
        return _checks_of((await self.ask("/v1/readiness"))[1])

    async def leads(self) -> bool:
        """Return whether it holds the lease and has gone through the cluster since; not without an answer."""
        checks = _checks_of((await self.probe("/v1/readiness"))[1] or {})
        return "reconciled" in checks and checks["reconciled"]["ok"] and checks["lease"]["ok"]


def _checks_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in body.get("checks", [])}


class Replicas:
    """All replicas of a story."""

    def __init__(self, story: Story, found: list[Replica], front: RoundRobin) -> None:
        self.story = story
        self.all = found
        self.front = front
        self.leader = found[0]

    async def until_led(self) -> Replica:
        """Wait until one leads, and have the story ask that one."""

        async def look() -> Replica | None:
            running = [r for r in self.all if r.service.running]
            leads = await asyncio.gather(*(r.leads() for r in running))
            return next((r for r, yes in zip(running, leads, strict=True) if yes), None)

        self.leader = await eventually(look, every_s=0.02)
        self.story.service = self.leader.service
        return self.leader

    async def until_ready(self) -> None:
        """Wait until all are ready, and in the Service."""
        for replica in self.all:
            await eventually(replica.service.ready)

        async def look() -> bool:
            return len(self.front.ready) == len(self.all)

        await eventually(look)

    def kill_leader(self) -> float:
        """SIGKILL; return when (wall clock, seconds)."""
        self.leader.service.kill()
        return time.time()

    async def rolled(self, replica: Replica, windows: list[tuple[float, float]]) -> None:
        """Replace a pod as the Deployment does: endpoint away, SIGTERM, and the next one when that has gone.

        Args:
            replica: Which.
            windows: Gets the time in which no replica may lead (monotonic seconds).
        """
        began_s = time.monotonic()
        self.front.terminating.add(replica)
        ending = asyncio.create_task(asyncio.to_thread(replica.service.stop))
        if self.leader is replica:

            async def resigned() -> bool:
                return not await replica.leads()

            await eventually(resigned, every_s=0.02)
        await self.until_led()
        windows.append((began_s, time.monotonic()))
        await ending
        await replica.service.start()
        self.front.terminating.discard(replica)
        await self.until_ready()


@asynccontextmanager
async def replicas(
    story: Story,
    databases: list[DatabaseProxy],
    folder: Path,
    *,
    proxied: bool = True,
    **settings: str,
) -> AsyncIterator[Replicas]:
    """Run replicas beside the story's own service, which uses the first of these ways to the database.

    Args:
        story: Its service runs.
        databases: One way for each replica.
        folder: For logs.
        proxied: Whether all speak to kube-apiserver through the story's proxy; else only the first does.
        settings: Of the service; those of the story's first one are set by its marker.
    """
    async with AsyncExitStack() as stack:
        found = [Replica(story.service, databases[0], "e2e")]
        for number, database in enumerate(databases[1:], 1):
            place = folder / f"replica-{number}"
            place.mkdir()
            made = Service(
                story.plane, place, database.url, api_url=story.server.url if proxied else "",
                certificates=story.service.certificates, identity=f"replica-{number}",
                **(STORY_SETTINGS | settings),
            )  # fmt: skip
            made.starts = 1  # what is published is of this very log
            stack.push_async_callback(asyncio.to_thread, _end, made)
            await made.start()
            found.append(Replica(made, database, f"replica-{number}"))
        stack.callback(setattr, story, "service", story.service)
        front = await stack.enter_async_context(RoundRobin(found))
        group = Replicas(story, found, front)
        await group.until_ready()
        yield group
        if any(replica.service.running for replica in found):
            await group.until_led()
        story.service = found[0].service  # what must hold in the end is asked of the one that stays


def _end(service: Service) -> None:
    if service.running:
        os.kill(service.pid, signal.SIGCONT)
        service.stop()
