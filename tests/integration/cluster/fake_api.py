"""An API server that misbehaves on request: lists in pages, watches, patches, and every fault.

Owns just enough of the API for the adapter. Objects are dicts; every change gets the next
resourceVersion. What a real API server would validate is not validated here: tests/e2e does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import msgspec
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from extender.telemetry import METRICS

Object = dict[str, Any]
CORE = ("nodes", "pods", "persistentvolumes", "persistentvolumeclaims")
KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "podgroups": "PodGroup",
    "compositepodgroups": "CompositePodGroup",
}


class Fault:
    """Answer the next matching requests otherwise."""

    def __init__(
        self,
        matches: Callable[[web.Request], bool],
        *,
        status: int = 500,
        headers: dict[str, str] | None = None,
        body: bytes = b"{}",
        times: int = 1,
        drop_after: bool = False,
    ) -> None:
        self.matches = matches
        self.status = status
        self.headers = headers or {}
        self.body = body
        self.times = times
        self.drop_after = drop_after  # carry it out, then lose the answer


class FakeApi:
    """The server; use as an async context manager."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        self.history: dict[str, list[tuple[int, bytes]]] = {}
        self.compacted = 0  # watches from before this version get 410
        self.groups: dict[str, list[str]] = {
            "gang-extender.dev/v1alpha1": [],
            "scheduling.k8s.io/v1": ["priorityclasses"],
        }
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[tuple[str, Any]] = []
        self.silent = False
        self.page_size = 500
        self._streams: dict[str, list[asyncio.Queue[bytes | None]]] = {}
        self._runner: web.AppRunner | None = None
        self._awake = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._misbehave])
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cut_watches()
        assert self._runner is not None
        await self._runner.cleanup()

    def configuration(self) -> Configuration:
        return Configuration(host=self.url)

    # --- what tests do

    def put(self, plural: str, thing: Object) -> Object:
        """Create or change an object and notify the watchers."""
        metadata = thing.setdefault("metadata", {})
        key = (metadata.get("namespace", ""), metadata["name"])
        stored = self.objects.setdefault(plural, {})
        kind = "MODIFIED" if key in stored else "ADDED"
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        metadata.setdefault("uid", f"uid-{plural}-{metadata['name']}")
        stored[key] = thing
        self._notify(plural, kind, thing)
        return thing

    def remove(self, plural: str, name: str, namespace: str = "", *, notify: bool = True) -> None:
        """Delete an object; with `notify=False` as if it happened in compacted history."""
        thing = self.objects[plural].pop((namespace, name))
        self.version += 1
        gone = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(self.version)}}
        if notify:
            self._notify(plural, "DELETED", gone)

    def send(self, plural: str, line: bytes) -> None:
        """Put bytes into the open watches of a resource."""
        for stream in self._streams.get(plural, []):
            stream.put_nowait(line)

    def bookmark(self, plural: str, version: int) -> None:
        metadata = {"resourceVersion": str(version)}
        line = {"type": "BOOKMARK", "object": {"kind": KINDS.get(plural, ""), "metadata": metadata}}
        self.send(plural, msgspec.json.encode(line) + b"\n")

    def cut_watches(self, plural: str | None = None) -> None:
        """End open watches without an error; from here on nothing is sent into them."""
        for name, streams in self._streams.items():
            if plural in (None, name):
                while streams:
                    streams.pop().put_nowait(None)

    def watching(self, plural: str) -> int:
        return len(self._streams.get(plural, []))

    def count(self, method: str, part: str, **query: str) -> int:
        """Count calls whose path contains `part` and whose query contains `query`."""
        return sum(
            1
            for called, path, asked in self.calls
            if called == method and part in path and query.items() <= asked.items()
        )

    def _notify(self, plural: str, kind: str, thing: Object) -> None:
        line = msgspec.json.encode({"type": kind, "object": thing}) + b"\n"
        self.history.setdefault(plural, []).append((self.version, line))
        self.send(plural, line)

    # --- what it answers

    @web.middleware
    async def _misbehave(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append((request.method, request.path, dict(request.query)))
        if self.silent:
            await asyncio.sleep(3600)
        for fault in self.faults:
            if fault.times > 0 and fault.matches(request):
                fault.times -= 1
                if fault.drop_after:
                    await handler(request)
                    assert request.transport is not None
                    request.transport.abort()
                return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["readyz"]:
            return web.Response(text="ok")
        if parts[0] == "api":
            return await self._resource(request, "v1", parts[2:])
        if parts == ["apis"]:
            return web.json_response({"groups": [{"name": name} for name in self._group_names()]})
        version = "/".join(parts[1:3])
        if len(parts) == 3:
            return self._discovery(version)
        if version == "policy/v1":
            return await self._resource(request, version, parts[3:])
        if (
            version == "events.k8s.io/v1"
            or parts[3] in self.groups.get(version, [])
            or (parts[3] == "namespaces" and parts[5] in self.groups.get(version, []))
        ):
            return await self._resource(request, version, parts[3:])
        return failure(404, "NotFound", "no such resource")

    def _group_names(self) -> list[str]:
        return sorted({version.partition("/")[0] for version in self.groups})

    def _discovery(self, version: str) -> web.Response:
        if version not in self.groups:
            return failure(404, "NotFound", "no such group")
        return web.json_response({"resources": [{"name": name} for name in self.groups[version]]})

    async def _resource(
        self, request: web.Request, version: str, parts: list[str]
    ) -> web.StreamResponse:
        if parts[0] != "namespaces":
            if "watch" in request.query:
                return await self._watch(request, parts[0])
            return self._list(request, version, parts[0])
        namespace, plural = parts[1], parts[2]
        if request.method == "POST" and len(parts) == 3:
            body = await request.json()
            self.bodies.append((request.path, body))
            return web.json_response(body, status=201)
        thing = self.objects.get(plural, {}).get((namespace, parts[3]))
        if plural == "events":
            self.bodies.append((request.path, await request.json()))
            return web.json_response({})
        if thing is None:
            return failure(404, "NotFound", f"{plural} {parts[3]!r} not found")
        if request.method == "GET":
            return web.json_response(thing)
        body = await request.json()
        self.bodies.append((request.path, body))
        if request.method == "DELETE" or parts[-1] == "eviction":
            return self._delete(thing, body.get("deleteOptions", body))
        if request.method == "POST":
            return self._bind(thing, body)
        return self._patch(plural, thing, body)

    def _list(self, request: web.Request, version: str, plural: str) -> web.Response:
        items = [as_served(version, thing) for thing in self.objects.get(plural, {}).values()]
        start = int(request.query.get("continue", "0"))
        limit = min(int(request.query["limit"]), self.page_size)
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        page = {"apiVersion": version, "metadata": metadata, "items": items[start : start + limit]}
        return web.json_response(page)

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.compacted:
            return failure(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, line in self.history.get(plural, []):
            if version > since:
                queue.put_nowait(line)
        self._streams.setdefault(plural, []).append(queue)
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            if queue in self._streams[plural]:  # it was not cut
                self._streams[plural].remove(queue)
        return response

    def _bind(self, pod: Object, body: Object) -> web.Response:
        if pod["metadata"]["uid"] != body["metadata"]["uid"]:
            return failure(409, "Conflict", "Precondition failed: UID in precondition")
        if pod["spec"].get("nodeName"):
            return failure(409, "Conflict", "pod is already assigned to node")
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(
            body["metadata"].get("annotations", {})
        )
        self.put("pods", pod)
        return web.json_response({}, status=201)

    def _delete(self, pod: Object, options: Object) -> web.Response:
        metadata = pod["metadata"]
        if options.get("preconditions", {}).get("uid", metadata["uid"]) != metadata["uid"]:
            return failure(409, "Conflict", "Precondition failed: UID in precondition")
        self.remove("pods", metadata["name"], metadata["namespace"])
        return web.json_response({})

    def _patch(self, plural: str, thing: Object, body: Object) -> web.Response:
        wanted = body.get("metadata", {})
        stored = thing["metadata"]
        if wanted.get("uid", stored["uid"]) != stored["uid"]:
            return failure(422, "Invalid", "metadata.uid: field is immutable")
        if wanted.get("resourceVersion", stored["resourceVersion"]) != stored["resourceVersion"]:
            return failure(409, "Conflict", "the object has been modified")
        thing.setdefault("status", {}).update(body.get("status", {}))
        if "finalizers" in wanted:
            stored["finalizers"] = wanted["finalizers"]
            if stored.get("deletionTimestamp") and not wanted["finalizers"]:
                self.remove(plural, stored["name"], stored["namespace"])
                return web.json_response(thing)
        return web.json_response(self.put(plural, thing))


def as_served(version: str, thing: Object) -> Object:
    """Return an object in the version of a request, as its API server converts it; other fields stay."""
    stored = thing.get("apiVersion", "")
    if stored.partition("/")[0] != version.partition("/")[0]:
        return thing
    return {**thing, "apiVersion": version}


def failure(status: int, reason: str, message: str) -> web.Response:
    """Answer as an API server does."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message}
    return web.json_response(body, status=status)


def a_node(name: str) -> Object:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
    }


def a_pod(name: str, **spec: Any) -> Object:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"priority": 0, "containers": [container], **spec},
        "status": {"phase": "Pending"},
    }


def a_pod_group(name: str) -> Object:
    return {
        "apiVersion": "gang-extender.dev/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "generation": 1},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }


def counted(name: str, **labels: str) -> float:
    """Return the value of a counter of the adapter."""
    value = METRICS.registry.get_sample_value(f"gang_extender_{name}_total", labels)
    return value or 0.0
