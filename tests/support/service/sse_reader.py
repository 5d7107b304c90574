"""A reader of server-sent events that behaves as a browser: it reconnects with the last id that it received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp


class Reader:
    """Reads a stream, at one URL after the other; keeps every event and the last id.

    Args:
        urls: Where to ask; after a broken connection the next one is asked.
        query: Further parameters.
        slow_s: Pause after every piece that was read.
        breaks_after: Events after which the connection is closed, for once each time.
    """

    def __init__(
        self, urls: Sequence[str], query: str = "", *, slow_s: float = 0, breaks_after: int = 0
    ) -> None:
        self.urls = urls
        self.query = query
        self.slow_s = slow_s
        self.breaks_after = breaks_after
        self.events: list[dict[str, Any]] = []
        self.last_id = ""
        self.connections = 0
        self.problems: list[dict[str, Any]] = []

    @property
    def positions(self) -> list[int]:
        return [data["position"] for data in self.events]

    async def read(self, enough: Callable[[Reader], bool]) -> None:
        """Read until it is enough; whatever breaks is tried again."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20
        ) as session:
            while not enough(self):
                url = self.urls[self.connections % len(self.urls)]
                self.connections += 1
                try:
                    await self._once(session, url, enough)
                except (aiohttp.ClientError, TimeoutError):
                    await asyncio.sleep(0.05)

    async def _once(
        self, session: aiohttp.ClientSession, url: str, enough: Callable[[Reader], bool]
    ) -> None:
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        address = f"{url}/v1/events?follow{self.query}"
        until = len(self.events) + self.breaks_after if self.breaks_after else None
        async with session.get(address, headers=headers) as reply:
            if reply.status == 503:
                await asyncio.sleep(0.05)
                return
            assert (reply.status, reply.content_type) == (200, "text/event-stream"), (
                await reply.text()
            )
            kind, data = "", ""
            async for raw in reply.content:
                line = raw.decode().removesuffix("\n")
                field, _, value = line.partition(": ")
                if field == "id":
                    self.last_id = value
                elif field == "event":
                    kind = value
                elif field == "data":
                    data = value
                elif not line and data:
                    (self.problems if kind == "problem" else self.events).append(json.loads(data))
                    kind, data = "", ""
                if not line:
                    if enough(self) or (until is not None and len(self.events) >= until):
                        return
                    if self.slow_s:
                        await asyncio.sleep(self.slow_s)
