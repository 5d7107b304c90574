"""Keep a copy of one resource: list it, then watch its changes.

Owns resource versions, bookmarks, when to list again, and how fresh the copy is. It must not
interpret objects: changes go to a `Sink` in the order in which they happened, each object
once per version, deletions included.

Note: a list is applied only when all its pages are there. It is compared with the copy, so that an
object that was deleted while no watch was open is deleted from the copy too. After every error (410,
a truncated line, a resourceVersion that decreases) the resource is listed again; until then `doubt`
returns the reason.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from extender.cluster import types as api
from extender.cluster.connection.api_client import ApiResponse, ApiServer, Request
from extender.cluster.read import object_decoding
from extender.core.model.errors import BadInput, ClusterUnavailable
from extender.ports.log_ports import Clock
from extender.runtime.periodic import Changes, ObjectChanges, ObjectFaults, kept_running
from extender.runtime.wakeup import Wakeup
from extender.telemetry import METRICS

logger = logging.getLogger(__name__)

PAGE = 500  # objects per page, as client-go asks for
LIST_TIMEOUT_S = 60.0  # one page; an API server under load takes seconds for 500 pods
LIST_BUDGET_S = 90.0
# how long the API server keeps a watch open, at random so that they do not end at once
WATCH_S = (270, 330)
# Bookmarks come every minute, so a watch without data for longer than that is broken.
IDLE_S = 90.0
STALE_MS = 100_000
# a watch delivers a change within milliseconds; after this the resource is listed again
CATCH_UP_S = 0.2
REDISCOVER_S = 1.0  # discovery documents lag a little behind
SHORT_MS = 1000  # a watch that ends earlier counts as a failure
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 15.0
APPLY_SLICE = 250  # objects applied before other tasks run (80 ms)
LINE_MAX_BYTES = 32 * 1024 * 1024  # an object is at most 1.5 MiB in etcd


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """What is listed and watched."""

    name: str  # plural, as in the API path
    kind: type[api.Watched]
    api_version: str  # v1, scheduling.k8s.io/v1beta1, ...
    query: tuple[tuple[str, str], ...] = ()  # field selectors and the like
    # the kind that its objects get: items of a list have none; empty: what they have
    read_as: str = ""

    @property
    def path(self) -> str:
        """Return the path of the collection over all namespaces."""
        root = "/apis" if "/" in self.api_version else "/api"
        return f"{root}/{self.api_version}/{self.name}"

    @property
    def label(self) -> str:
        """Return the name in messages and metrics, such as `podgroups.scheduling.k8s.io`."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.name}.{group}" if group else self.name


class Sink(Protocol):
    """Receives the changes of one or more informers."""

    def upsert(self, api_object: Any) -> None:  # noqa: ANN401 -- one of the types of its resources
        """Add or replace an object."""

    def delete(self, api_object: Any) -> None:  # noqa: ANN401 -- one of the types of its resources
        """Remove an object; only its kind, group, name and UID are guaranteed to be set."""


class ResourceVersionExpired(Exception):
    """The known resourceVersion is too old to continue from, or unreliable: list again."""


class ResourceNotServed(Exception):
    """The resource is not served any more (its CRD was deleted): discover again."""


class Informer:
    """The copy of one resource; `run` keeps it up to date."""

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        sink: Sink,
        *,
        clock: Clock,
        applied: Callable[[], None],
        chance: random.Random | None = None,
    ) -> None:
        """Start with an empty copy; `run` fills it.

        Args:
            applied: Called after every batch of changes.
        """
        self.resource = resource
        # whether the copy has been complete, and nothing is known to be wrong with it
        self.synced = False
        # called when the copy may not be used until it is synced again
        self.on_unsynced: Callable[[], None] = lambda: None
        self.trouble = "not listed yet"  # the last error
        self._server = server
        self._sink = sink
        self._clock = clock
        self._applied = applied
        self._chance = chance or random.Random()  # noqa: S311 -- jitter, not a secret
        # Name -> UID and version: whole objects would cost 50,000 pods a few hundred MiB.
        self._identities: dict[tuple[str, str], tuple[str, str]] = {}
        self._version = ""
        self._received_ms = 0
        self._failures = 0  # in a row; what the next pause depends on
        # The same of watches that ended soon or expired: the server is there, and failures before its answer do not count.
        self._short_watches = 0
        self._lists_begun = 0
        self._complete_list = 0  # the number of the last list that was applied
        self._moved = Wakeup()  # whenever the copy has reached a newer version
        self._watching: asyncio.Timeout | None = None  # while a watch is open, to end it
        self._faults: ObjectFaults[str] = ObjectFaults("cluster", clock.monotonic_ms)
        self._changes = ObjectChanges(clock.monotonic_ms)
        self._again: asyncio.TimerHandle | None = None

    def _lose(self, trouble: str) -> None:
        """Use the copy no more until it is listed again."""
        self.synced, self.trouble = False, trouble
        self.on_unsynced()

    @property
    def fresh_until_ms(self) -> int:
        """Return until when decisions may use a synced copy if nothing more is received."""
        return self._received_ms + STALE_MS

    def not_ready_reason(self, now_ms: int) -> str:
        """Return the reason why decisions must not use this copy, or an empty string."""
        if not self.synced:
            return f"{self.resource.label}: not synced: {self.trouble}"
        silent_ms = now_ms - self._received_ms
        if silent_ms > STALE_MS:
            return f"{self.resource.label}: no data for {silent_ms // 1000} s: {self.trouble}"
        return ""

    async def keep(self) -> None:
        """Keep the copy until the resource is not served any more; after a defect it is listed again, and not used until then."""
        label = self.resource.label
        try:
            while True:
                with self._faults.alone(label):
                    try:
                        await self.run()
                    except ResourceNotServed:
                        self._lose("not served any more")
                        return
                self._lose("a defect of this service, see the log")
                await asyncio.sleep(self._faults.pause_s(label))
        finally:
            if self._again is not None:
                self._again.cancel()

    async def run(self) -> None:
        """List and watch the resource until cancelled.

        Raises:
            ResourceNotServed: It is not served any more.
        """
        while True:
            try:
                if not self.synced:
                    await self._list()
                await self._watch_until_outdated()
            except ResourceVersionExpired as expiry:
                self._lose(str(expiry))
                self._note("copy may be wrong, listing again", str(expiry))
                self._failures = self._short_watches
                if self._failures:
                    await self._pause()
                self._short_watches += 1  # a list that is at once too old again must not spin
            except ClusterUnavailable as problem:
                self._note("API server unavailable", str(problem))
                await self._pause()
            except ApiResponse as refusal:
                if refusal.status == HTTPStatus.NOT_FOUND:
                    raise ResourceNotServed(self.resource.label) from refusal
                logger.warning(
                    "resource cannot be followed",
                    extra={"resource": self.resource.label, "reason": str(refusal)},
                )
                self.trouble = str(refusal)
                await self._pause()

    async def catch_up(self) -> None:
        """Return when the copy has everything that was stored before the call.

        A consistent read gives the version that the copy must reach. A resource that does not change does not reach
        it by its watch, so it is listed again.

        Raises:
            ClusterUnavailable: No answer, or the resource cannot be read.
        """
        begun = self._lists_begun
        try:
            target = (await self._page("", limit=1)).resource_version
        except (ApiResponse, ResourceVersionExpired) as refusal:
            raise ClusterUnavailable(f"{self.resource.label}: {refusal}") from refusal
        while not self._has_reached(target) and self._complete_list <= begun:
            revision = self._moved.revision
            try:
                async with asyncio.timeout(CATCH_UP_S):
                    await self._moved.wait(revision)
            except TimeoutError:
                if self.synced:
                    self._lose("listing again, to be sure of the newest state")
                    if self._watching is not None:
                        self._watching.reschedule(asyncio.get_running_loop().time())

    def _has_reached(self, target: str) -> bool:
        """Return whether the copy has a version, by number (comparable since 1.35)."""
        own = self._version
        return self.synced and own.isdigit() and target.isdigit() and int(own) >= int(target)

    def purge(self) -> None:
        """Delete every object of the copy: the resource is not served any more."""
        for key in list(self._identities):
            self._forget(key)
        self._lose(self.trouble)
        self._applied()

    def _note(self, message: str, reason: str) -> None:
        self.trouble = reason
        logger.info(message, extra={"resource": self.resource.label, "reason": reason})

    async def _pause(self) -> None:
        self._failures += 1
        base_s = min(PAUSE_FIRST_S * 2 ** min(self._failures - 1, 10), PAUSE_MAX_S)
        await asyncio.sleep(base_s * (0.5 + self._chance.random()))

    # --- list

    async def _list(self) -> None:
        """Read all pages, then make the copy equal to them."""
        items: dict[tuple[str, str], api.Watched] = {}
        bad: list[BadInput] = []
        token, version = "", ""
        self._lists_begun += 1
        number = self._lists_begun
        while True:
            page = await self._page(token)
            for item in page.items:
                items[item.key] = item
            bad += page.bad
            version, token = page.resource_version or version, page.continue_
            if not token:
                break
        for problem in bad:
            self._left_out(problem)
        if not version:
            raise ClusterUnavailable(f"list {self.resource.path}: no resourceVersion")
        await self._replace(items)
        self._changes.make_again()
        self._version = version
        self._mark_received()
        self.synced, self._complete_list = True, number
        METRICS.informer_lists.labels(self.resource.label).inc()
        self.trouble = ""
        self._applied()
        self._moved.wake()
        logger.info(
            "resource listed",
            extra={"resource": self.resource.label, "objects": len(items), "version": version},
        )

    async def _page(self, token: str, *, limit: int = PAGE) -> object_decoding.ObjectPage:
        query = {"limit": str(limit), **dict(self.resource.query)}
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

    async def _replace(self, items: dict[tuple[str, str], api.Watched]) -> None:
        """Apply a whole list; `synced` is false meanwhile, so no decision uses a partly applied list."""
        for key in [key for key in self._identities if key not in items]:
            self._forget(key)
        for count, item in enumerate(items.values(), start=1):
            self._take(item)
            if count % APPLY_SLICE == 0:
                await asyncio.sleep(0)

    def _take(self, item: api.Watched) -> None:
        """Pass an object to the sink unless this version of it is known."""
        identity = (item.metadata.uid, item.metadata.resource_version)
        before = self._identities.get(item.key)
        if before == identity:
            return
        if before is not None and before[0] != identity[0]:
            self._forget(item.key)  # deleted and recreated while no watch was open
        # An object that comes with a list may be one that the log has: without it, it would be recorded as gone.
        was_passed_on = before is not None and before[1] != ""
        may_wait = was_passed_on or self.synced
        # the next list passes it on again, until it was
        self._identities[item.key] = (item.metadata.uid, "")
        self._pass_on(item.key, functools.partial(self._upsert, item), may_wait=may_wait)
        self._identities[item.key] = identity

    def _upsert(self, item: api.Watched) -> None:
        try:
            self._sink.upsert(self._named(item))
        except BadInput as problem:
            self._left_out(problem)

    def _forget(self, key: tuple[str, str]) -> None:
        """Delete the object of a name; the sink gets only its identity."""
        uid, version = self._identities.pop(key)
        namespace, name = key
        metadata = api.ObjectMeta(namespace=namespace, name=name, uid=uid, resource_version=version)
        deleted = self.resource.kind(api_version=self.resource.api_version, metadata=metadata)
        self._pass_on(key, functools.partial(self._sink.delete, self._named(deleted)))

    def _named(self, item: api.Watched) -> api.Watched:
        kind = self.resource.read_as
        return msgspec.structs.replace(item, kind=kind) if kind else item

    def _pass_on(
        self, key: tuple[str, str], change: Callable[[], None], *, may_wait: bool = True
    ) -> None:
        """Change an object of the sink; after a defect with it, it stays as it is there for a pause."""
        name = f"{self.resource.label} {'/'.join(filter(None, key))}"
        self._changes.make(name, change, may_wait=may_wait)
        self._make_again_later()

    def _make_again_later(self) -> None:
        """Make the changes that wait when their pauses are over, also where nothing is received until then."""
        due_s = self._changes.next_s()
        if due_s is not None and self._again is None:
            self._again = asyncio.get_running_loop().call_later(due_s, self._make_again)

    def _make_again(self) -> None:
        self._again = None
        if self._changes.make_again():
            self._applied()
            self._moved.wake()
        self._make_again_later()

    # --- watch

    async def _watch_until_outdated(self) -> None:
        """Follow changes until the API server ends the stream, or `catch_up` needs a list."""
        end = asyncio.timeout(None)
        try:
            async with end:
                self._watching = end
                await self._watch()
        except TimeoutError:
            if not end.expired():
                raise
        finally:
            self._watching = None

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
            async with self._server.watch(self.resource.path, query, idle_s=IDLE_S) as pieces:
                self._mark_received()
                began_ms = self._received_ms
                self.trouble = ""
                self._failures = self._short_watches
                self._short_watches += 1  # until it has delivered something, or lasted
                try:
                    await self._follow_changes(pieces)
                finally:
                    is_short = self._clock.monotonic_ms() - began_ms < SHORT_MS
                    if not is_short:
                        self._failures = self._short_watches = 0
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.GONE:
                raise ResourceVersionExpired(str(refusal)) from refusal
            raise
        if is_short:
            await self._pause()  # limits the requests to a server that ends every watch at once

    async def _follow_changes(self, pieces: AsyncIterator[bytes]) -> None:
        async for lines in _whole_lines(pieces):
            self._mark_received()
            self._failures = self._short_watches = 0
            for line in lines:
                self._change(line)
            self._changes.make_again()
            self._applied()
            self._moved.wake()

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
            item = object_decoding.decode(self.resource.kind, change.object)
        except BadInput as problem:
            self._skip(change.object, problem)
            return
        self._move_on(item.metadata.resource_version)
        if change.type == "BOOKMARK":
            return
        if not item.api_version:
            item = msgspec.structs.replace(item, api_version=self.resource.api_version)
        if change.type == "DELETED":
            self._identities.pop(item.key, None)
            self._pass_on(item.key, functools.partial(self._sink.delete, self._named(item)))
        else:
            self._take(item)

    def _skip(self, raw: msgspec.Raw, problem: BadInput) -> None:
        """Skip an object that cannot be read; its previous version stays in the copy."""
        try:
            item = msgspec.json.decode(raw, type=api.KubernetesObject)
        except msgspec.DecodeError:
            raise ResourceVersionExpired(f"unreadable change: {problem}") from problem
        self._left_out(problem)
        self._move_on(item.metadata.resource_version)

    def _move_on(self, version: str) -> None:
        """Record the resourceVersion; those of one resource only grow (comparable since 1.35)."""
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
            extra={"resource": self.resource.label, "reason": str(problem)},
        )

    def _mark_received(self) -> None:
        self._received_ms = self._clock.monotonic_ms()


class Informers:
    """One informer for each resource that is served, in a task that follows it.

    Attributes:
        of: The informers, by resource.
    """

    def __init__(self, subject: str) -> None:
        """Start without informers; `subject`: what a resource is, in log lines and names of tasks."""
        self.of: dict[Resource, Informer] = {}
        self._subject = subject
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._rediscover = Wakeup()
        # when a resource disappears: discover again
        self.changes = Changes(lambda: self._rediscover.revision, self._rediscover.wait)

    async def keep_only(self, served: Collection[Resource]) -> None:
        """Stop the informers of all other resources, and delete their objects; nothing is awaited after that."""
        removed = [resource for resource in self.of if resource not in served]
        await self._cancel(removed)
        message = f"{self._subject} is not served any more"
        for resource in removed:
            self.of.pop(resource).purge()
            logger.info(message, extra={"resource": resource.label})

    def follow(self, resource: Resource, make: Callable[[], Informer]) -> None:
        """Follow a resource, unless that is done already; `make`: makes its informer."""
        if resource not in self.of:
            self.of[resource] = make()
        if resource not in self._tasks or self._tasks[resource].done():  # briefly not served
            run = functools.partial(self._follow, self.of[resource])
            self._tasks[resource] = asyncio.get_running_loop().create_task(
                kept_running(resource.label, run), name=f"{self._subject} {resource.label}"
            )

    async def stop(self) -> None:
        """Stop all tasks; the objects stay."""
        await self._cancel([*self._tasks])

    async def _cancel(self, resources: Iterable[Resource]) -> None:
        tasks = [self._tasks.pop(resource) for resource in resources if resource in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, informer: Informer) -> None:
        """Keep the copy of a resource until it is not served any more; then discover again."""
        await informer.keep()
        await asyncio.sleep(REDISCOVER_S)
        asyncio.get_running_loop().call_soon(self._rediscover.wake)


async def _whole_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of a stream; a truncated last line is dropped."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_MAX_BYTES:
            raise ResourceVersionExpired(f"a line of more than {LINE_MAX_BYTES} bytes")
        if lines:
            yield [line for line in lines if line]
