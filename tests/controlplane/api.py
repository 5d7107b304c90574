"""Speak to an API server with plain dicts, for the set-up and the assertions of tests.

Owns one small REST client: no models, no cache, no retries but after 429. What the service under test uses is
`extender/cluster`; a test that looks through other eyes finds more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from tests.controlplane.objects import path_of
from tests.support.waiting import Patience

# Connections of one client; more at once get 429 from API priority and fairness (K61).
CONNECTIONS_MAX = 24
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}

Object = dict[str, Any]


class ApiError(Exception):
    """The API server answered with an error; the message carries its own words."""

    def __init__(self, method: str, path: str, status: int, body: bytes) -> None:
        try:
            answer = msgspec.json.decode(body)
            self.reason = str(answer.get("reason", ""))
            text = str(answer.get("message", answer))
        except (msgspec.DecodeError, AttributeError):
            self.reason, text = "", body.decode(errors="replace")
        self.status = status
        super().__init__(f"{method} {path}: {status} {self.reason}: {text[:500]}")


class Api:
    """One user's connection to one API server; use it as an async context manager."""

    # An API server that was killed answers 429 for custom resources while it is only starting.
    again: frozenset[str] = frozenset({"GET", "DELETE"})

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        self._url = url
        self._token = token
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=CONNECTIONS_MAX),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **query: str) -> Object:
        """Read an object, a list or any document of the API server."""
        return await self._call("GET", path, query=query)

    async def post(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Create by POST to a collection or a subresource."""
        return await self._call("POST", path, body=body, query=query)

    async def put(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Replace an object or a subresource."""
        return await self._call("PUT", path, body=body, query=query)

    async def patch(self, path: str, body: Any, kind: str = "merge", **query: str) -> Object:
        """Patch an object or a subresource; `kind` is a key of `PATCH_TYPES`."""
        return await self._call("PATCH", path, body=body, query=query, content=PATCH_TYPES[kind])

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Object:
        """Delete an object or, given a collection, all that is in it."""
        return await self._call("DELETE", path, body=body)

    async def create(self, thing: Mapping[str, Any]) -> Object:
        """Create an object of a kind that `objects.path_of` knows."""
        return await self.post(path_of(thing), thing)

    async def watch(self, path: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Follow a collection: yield ("ADDED" | "MODIFIED" | "DELETED" | ..., object).

        It lists first and begins with an ADDED for everything there is. (A bare watch would do the
        same, but with Debian's etcd 3.4 it sends nothing until the collection changes: that etcd
        cannot be asked how far it is.) It ends when the API server ends it, and raises ClientError
        when the connection is lost.

        Raises:
            ApiError: The server refused, or sent an ERROR item (410: begin again).
        """
        listed = await self.get(path, **query)
        for thing in listed["items"]:
            yield "ADDED", thing
        parameters = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
        session = self._open_session()
        async with session.get(f"{self._url}{path}", params=parameters | query) as response:
            if response.status != 200:
                raise ApiError("WATCH", path, response.status, await response.read())
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    item = msgspec.json.decode(line)
                    if item["type"] == "ERROR":
                        status = int(item["object"].get("code", 500))
                        raise ApiError("WATCH", path, status, msgspec.json.encode(item["object"]))
                    yield item["type"], item["object"]

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use `async with`"
        return self._session

    async def _call(self, method: str, path: str, **rest: Any) -> Object:
        """Send a request; those of `again` once more after a 429, which means that nothing was done."""
        patience = Patience(f"{method} {path} is not answered 429")
        while True:
            try:
                return await self._call_once(method, path, **rest)
            except ApiError as refused:
                if refused.status != 429 or method not in self.again or patience.exhausted():
                    raise
            await asyncio.sleep(0.1)

    async def _call_once(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        async with self._open_session().request(
            method,
            f"{self._url}{path}",
            params=query,
            data=None if body is None else msgspec.json.encode(body),
            headers={"Content-Type": content},
        ) as response:
            answer = await response.read()
            if response.status >= 400:
                raise ApiError(method, path, response.status, answer)
            return msgspec.json.decode(answer) if answer else {}
