"""Keep a copy of one resource: list it, then follow its changes.

Owns resource versions, bookmarks, when to list again, and how fresh the copy is. It must not
interpret objects: what it hears goes to a `Sink` in the order in which it happened, each object
once per version, deletions included.

The surprise: a list is applied only when all its pages are there, and against what was known
before, so that what vanished while nobody watched is deleted. Any doubt (410, a torn line, a
version that goes back) ends in a list, never in a guess; until then `doubt` says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Protocol

import msgspec

from extender.cluster import types as api
from extender.cluster.connection.api_client import ApiResponse, ApiServer, Request
from extender.cluster.read import object_decoding
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.ports.protocols import Clock
from extender.telemetry import METRICS

logger = logging.getLogger(__name__)

PAGE = 500  # objects per page, as client-go asks for
LIST_TIMEOUT_S = 60.0  # one page; an API server under load takes seconds for 500 pods
LIST_BUDGET_S = 90.0
WATCH_S = (
    270,
    330,
)  # how long the API server keeps a watch open, at random so that they do not end at once
# Bookmarks come every minute, so a stream that is silent for longer than that is dead.
IDLE_S = 90.0
STALE_MS = 100_000
SHORT_MS = 1000  # a watch that ends sooner counts as a failure
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 15.0
APPLY_SLICE = 250  # objects applied before others of the process get their turn (80 ms)
LINE_MAX_BYTES = 32 * 1024 * 1024  # an object is at most 1.5 MiB in etcd


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """What is listed and watched."""

    name: str  # plural, as people know it
    kind: type[api.Readable]
    api_version: str  # v1, scheduling.k8s.io/v1beta1, ...
    query: tuple[tuple[str, str], ...] = ()  # field selectors and the like

    @property
    def path(self) -> str:
        """Give the path of the collection over all namespaces."""
        root = "/apis" if "/" in self.api_version else "/api"
        return f"{root}/{self.api_version}/{self.name}"

    @property
    def label(self) -> str:
        """Give `podgroups.scheduling.k8s.io`, the name in messages and metrics."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.name}.{group}" if group else self.name


class Sink(Protocol):
    """Where changes go."""

    def upsert(self, found: api.Readable) -> None:
        """Take an object that is new or has changed."""
        ...

    def delete(self, found: api.Readable) -> None:
        """Forget an object; only its kind, group, name and UID are sure to be given."""
        ...


class ResourceVersionExpired(Exception):
    """The version we know is too old to continue from, or in doubt: list again."""


class ResourceNotServed(Exception):
    """The resource is not served any more (its CRD was deleted): discover again."""


class Informer:
    """One resource, followed for ever by `run`."""

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        sink: Sink,
        *,
        clock: Clock,
        applied: Callable[[], None],
        chance: random.Random | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Prepare.

        Args:
            server: Whom to ask.
            resource: What to follow.
            sink: Where changes go.
            clock: For freshness.
            applied: Called after every batch of changes.
            chance: Source of jitter, for tests.
            idle_s: Silence after which a watch is opened anew.
        """
        self.resource = resource
        self.synced = False
        self.trouble = "not listed yet"  # last thing that went wrong
        self._server = server
        self._sink = sink
        self._clock = clock
        self._applied = applied
        self._chance = chance or random.Random()  # noqa: S311 -- jitter, not a secret
        self._idle_s = idle_s
        # Name -> UID and version: whole objects would cost 50,000 pods a few hundred MiB.
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._version = ""
        self._heard_ms = 0
        self._failures = 0

    def doubt(self, now_ms: int) -> str:
        """Say why this copy must not be decided from, or the empty string."""
        if not self.synced:
            return f"{self.resource.label}: not synced: {self.trouble}"
        silent_ms = now_ms - self._heard_ms
        if silent_ms > STALE_MS:
            return f"{self.resource.label}: nothing heard for {silent_ms // 1000} s: {self.trouble}"
        return ""

    async def run(self) -> None:
        """Follow the resource until cancelled.

        Raises:
            Vanished: It is not served any more.
        """
        while True:
            try:
                if not self.synced:
                    await self._list()
                await self._watch()
            except ResourceVersionExpired as why:
                self.synced = False
                self._note("copy in doubt, listing again", str(why))
                if self._failures:
                    await self._pause()
                self._failures += 1  # a list that is at once too old again must not spin
            except ClusterUnavailable as problem:
                self._note("API server unavailable", str(problem))
                await self._pause()
            except ApiResponse as refusal:
                if refusal.status == HTTPStatus.NOT_FOUND:
                    raise ResourceNotServed(self.resource.label) from refusal
                logger.warning(
                    "resource cannot be followed",
                    extra={"resource": self.resource.label, "why": str(refusal)},
                )
                self.trouble = str(refusal)
                await self._pause()

    def purge(self) -> None:
        """Delete all that is known: the resource is gone."""
        for key in list(self._known):
            self._forget(key)
        self.synced = False
        self._applied()

    def _note(self, message: str, why: str) -> None:
        self.trouble = why
        logger.info(message, extra={"resource": self.resource.label, "why": why})

    async def _pause(self) -> None:
        self._failures += 1
        base_s = min(PAUSE_FIRST_S * 2 ** min(self._failures - 1, 10), PAUSE_MAX_S)
        await asyncio.sleep(base_s * (0.5 + self._chance.random()))

    # --- list

    async def _list(self) -> None:
        """Read all pages, then make the copy equal to them."""
        found: dict[tuple[str, str], api.Readable] = {}
        bad: list[BadInput] = []
        token, version = "", ""
        while True:
            page = await self._page(token)
            for item in page.items:
                found[item.key] = item
            bad += page.bad
            version, token = page.resource_version or version, page.continue_
            if not token:
                break
        for problem in bad:
            self._left_out(problem)
        if not version:
            raise ClusterUnavailable(f"list {self.resource.path}: no resourceVersion")
        await self._replace(found)
        self._version = version
        self._hear()
        self.synced = True
        METRICS.informer_lists.labels(self.resource.label).inc()
        self.trouble = ""
        self._applied()
        logger.info(
            "resource listed",
            extra={"resource": self.resource.label, "objects": len(found), "version": version},
        )

    async def _page(self, token: str) -> object_decoding.ObjectPage:
        query = {"limit": str(PAGE), **dict(self.resource.query)}
        if token:
            query["continue"] = token
        request = Request(
            method="GET",
            path=self.resource.path,
            query=query,
            timeout_s=LIST_TIMEOUT_S,
            budget_s=LIST_BUDGET_S,
        )
        try:
            return object_decoding.decode_page(self.resource.kind, await self._server.call(request))
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.GONE:  # the list was too slow for its own pages
                raise ResourceVersionExpired(str(refusal)) from refusal
            raise
        except BadInput as problem:
            raise ClusterUnavailable(str(problem)) from problem

    async def _replace(self, found: dict[tuple[str, str], api.Readable]) -> None:
        """Apply a whole list; `synced` is false meanwhile, so nobody decides from the middle."""
        for key in [key for key in self._known if key not in found]:
            self._forget(key)
        for count, item in enumerate(found.values(), start=1):
            self._take(item)
            if count % APPLY_SLICE == 0:
                await asyncio.sleep(0)

    def _take(self, item: api.Readable) -> None:
        """Pass an object on unless this version of it is known."""
        identity = (item.metadata.uid, item.metadata.resource_version)
        before = self._known.get(item.key)
        if before == identity:
            return
        if before is not None and before[0] != identity[0]:
            self._forget(item.key)  # deleted and made again while nobody watched
        self._known[item.key] = identity
        try:
            self._sink.upsert(item)
        except BadInput as problem:
            self._left_out(problem)

    def _forget(self, key: tuple[str, str]) -> None:
        """Delete what was known under a name, given by no more than its identity."""
        uid, version = self._known.pop(key)
        namespace, name = key
        metadata = api.ObjectMeta(namespace=namespace, name=name, uid=uid, resource_version=version)
        self._sink.delete(
            self.resource.kind(api_version=self.resource.api_version, metadata=metadata)
        )

    # --- watch

    async def _watch(self) -> None:
        """Follow changes until the API server ends the stream."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._chance.randint(*WATCH_S)),
            **dict(self.resource.query),
        }
        try:
            async with self._server.watch(self.resource.path, query, idle_s=self._idle_s) as pieces:
                self._hear()
                began_ms = self._heard_ms
                self.trouble = ""
                async for lines in _whole_lines(pieces):
                    self._hear()
                    self._failures = 0
                    for line in lines:
                        self._change(line)
                    self._applied()
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.GONE:
                raise ResourceVersionExpired(str(refusal)) from refusal
            raise
        if self._clock.monotonic_ms() - began_ms < SHORT_MS:
            await self._pause()  # a server that ends every watch at once must not be hammered

    def _change(self, line: bytes) -> None:
        try:
            change = object_decoding.decode_watch(line)
        except BadInput as problem:
            raise ResourceVersionExpired(str(problem)) from problem
        if change.type == "ERROR":
            raise ResourceVersionExpired(bytes(change.object)[:300].decode(errors="replace"))
        if change.type not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            raise ResourceVersionExpired(f"unknown change {change.type!r}")
        try:
            found = object_decoding.decode(self.resource.kind, change.object)
        except BadInput as problem:
            self._skip(change.object, problem)
            return
        self._move_on(found.metadata.resource_version)
        if change.type == "BOOKMARK":
            return
        if not found.api_version:
            found = msgspec.structs.replace(found, api_version=self.resource.api_version)
        if change.type == "DELETED":
            self._known.pop(found.key, None)
            self._sink.delete(found)
        else:
            self._take(found)

    def _skip(self, raw: msgspec.Raw, problem: BadInput) -> None:
        """Step over an object that cannot be read; what was known of it before stays."""
        try:
            found = msgspec.json.decode(raw, type=api.KubernetesObject)
        except msgspec.DecodeError:
            raise ResourceVersionExpired(f"unreadable change: {problem}") from problem
        self._left_out(problem)
        self._move_on(found.metadata.resource_version)

    def _move_on(self, version: str) -> None:
        """Remember how far we are; versions of one resource only grow (comparable since 1.35)."""
        if not version:
            raise ResourceVersionExpired("a change without a resourceVersion")
        if version.isdigit() and self._version.isdigit() and int(version) < int(self._version):
            raise ResourceVersionExpired(
                f"resourceVersion went back from {self._version} to {version}"
            )
        self._version = version

    def _left_out(self, problem: BadInput) -> None:
        METRICS.objects_unreadable.labels(self.resource.label).inc()
        logger.error(
            "object cannot be read and is left out",
            extra={"resource": self.resource.label, "why": str(problem)},
        )

    def _hear(self) -> None:
        self._heard_ms = self._clock.monotonic_ms()


async def _whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Cut a stream at its line ends; what is left when it ends is a torn line and is dropped."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_MAX_BYTES:
            raise ResourceVersionExpired(f"a line of more than {LINE_MAX_BYTES} bytes")
        if lines:
            yield [line for line in lines if line]
