"""Kill the service at a chosen append to its log, or at a chosen write of a group.

The writes of groups go through the proxy in front of kube-apiserver one at a time, so that there is a kill after each
prefix of them: `Crash("POST", 3)` kills before the third one is forwarded, `Crash("POST", 3, executed=True)` when it was
executed and its answer has not reached the service. `Crash("sent", ...)` and `Crash("answered", ...)` are the same for
the append of an event.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from tests.e2e.scenarios.conftest import OURS, Story
from tests.support.logs.database_proxy import DatabaseProxy

GROUP = re.compile(rf"/apis/{re.escape(OURS)}/namespaces/[^/]+/(composite)?podgroups(/[^/]+)?")


class Crash(msgspec.Struct, frozen=True):
    """A point at which the service is killed: a method and its count, or a side of an append and the type of event."""

    what: str  # POST, PATCH or DELETE of a group; "sent" or "answered"
    at: int | str
    executed: bool = False

    def __str__(self) -> str:
        return f"{self.what} {self.at}{' executed' * self.executed}"


class CrashPoint:
    """Watches the service and kills it at the point; all that is on its way then is lost."""

    def __init__(self, story: Story, crash: Crash) -> None:
        self._service = story.service
        self._crash = crash
        self._turn = asyncio.Lock()
        self._begun = 0
        self._executed = 0
        self.effects: list[tuple[str, str]] = []  # groups that were created or deleted
        self._asked = False
        self.struck = asyncio.Event()

    def _strike(self) -> None:
        self._service.kill()
        self.struck.set()

    def _is_counted(self, method: str, path: str) -> bool:
        return method == self._crash.what and GROUP.fullmatch(path) is not None

    async def before(self, method: str, path: str) -> web.Response | None:
        """Let one counted request through at a time; kill instead of the chosen one."""
        if self._is_counted(method, path) and not self.struck.is_set():
            await self._turn.acquire()
            self._begun += 1
            if self._begun == self._crash.at and not self._crash.executed:
                self._strike()
        return web.Response(status=503) if self.struck.is_set() else None

    async def after(self, method: str, path: str, status: int) -> None:
        """Kill when the chosen one was executed; the end of its answer has not been sent."""
        if method in ("POST", "DELETE") and GROUP.fullmatch(path):
            self.effects.append((method, path))
        if not self._is_counted(method, path) or self.struck.is_set():
            return
        assert status < 300, (method, path, status)
        self._executed += 1
        if self._executed == self._crash.at and self._crash.executed:
            self._strike()
        self._turn.release()

    async def sent(self, name: str, data: bytes) -> bool:
        """Lose the chosen append, or remember it."""
        if self.struck.is_set():
            return True
        if name == "append" and str(self._crash.at).encode() in data:
            if self._crash.what == "sent":
                self._strike()
            self._asked = self._crash.what == "answered"
        return self.struck.is_set()

    async def answered(self, name: str, data: bytes) -> bool:
        """Lose the answer to the chosen append."""
        del data
        if self._asked and name == "append" and not self.struck.is_set():
            self._strike()
        return self.struck.is_set()


@asynccontextmanager
async def killed_at(story: Story, database: DatabaseProxy, crash: Crash) -> AsyncIterator[None]:
    """Kill the service at a point of what happens inside, and start it again.

    Args:
        story: Its service runs.
        database: The way of the service to its database.
        crash: The point; it must be reached.
    """
    point = CrashPoint(story, crash)
    story.server.before, story.server.after = point.before, point.after
    database.sent, database.answered = point.sent, point.answered
    try:
        yield
        await story.until(point.struck.is_set, f"{crash} is reached")
    finally:
        story.server.before = story.server.after = database.sent = database.answered = None
    assert not story.service.running
    if crash.what in ("sent", "answered"):
        assert not point.effects, f"{crash}: effects without their event: {point.effects}"
    await story.service.start()
