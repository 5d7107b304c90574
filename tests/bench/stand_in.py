"""A stand-in for kube-apiserver and kube-scheduler that costs little: it only moves members from create to bound.

It answers over TLS what kube-apiserver answers, in the same sizes: whole pods with managedFields after a PATCH, watch
events in chunks. A member whose gate is removed is filtered on one kept connection, one after the other, as in the
scheduling cycle of kube-scheduler; each bind call is sent on its own task. With TLS the two verbs have connections of their
own, as they are two extenders in the configuration of kube-scheduler, each with the version of HTTP that the service
chooses. Of HTTP/1.1 two idle ones are kept (K04). Writes are answered after a pause, so that changes arrive
one by one as those of a real server do.

Note: it validates nothing and keeps no history, so it shows what the service costs and not whether it is right.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from extender.cli.certificates.certificate_folder import SERVER_NAME
from extender.listener_settings import HTTP1_SERVER_NAME
from tests.controlplane.objects import BIND, GATE, MEMBER
from tests.support.service.http2_client import Http2Client

Object = dict[str, Any]
NAMESPACE = "ours"
GROUP = "gang-extender.dev/v1alpha1"
CHUNKED_FROM = 2048  # bytes: net/http of Go knows the length of what fits into its buffer
OK = 200
SERVER_NAMES = {"filter": HTTP1_SERVER_NAME, "bind": SERVER_NAME}
IDLE_MAX = 2  # connections of kube-scheduler that stay open without a call
SERVED = {
    GROUP: ("podgroups", "compositepodgroups"),
    "scheduling.k8s.io/v1": ("priorityclasses",),
}


class Exchange(asyncio.Protocol):
    """HTTP/1.1 with Content-Length, as much as both directions need."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while True:
            end = self._rest.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._rest[:end]
            length = 0
            at = head.lower().find(b"content-length:")
            if at >= 0:
                length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._rest) < end + 4 + length:
                return
            body = self._rest[end + 4 : end + 4 + length]
            self._rest = self._rest[end + 4 + length :]
            self.received(head, body)

    def received(self, head: bytes, body: bytes) -> None:
        raise NotImplementedError


class _Client(Exchange):
    """One connection of kube-scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: asyncio.Future[tuple[bytes, bytes]] | None = None

    def received(self, head: bytes, body: bytes) -> None:
        assert self.answer is not None
        self.answer.set_result((head, body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError("closed by the service"))

    async def call(self, request: bytes) -> bytes:
        self.answer = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(request)
        head, body = await self.answer
        assert b" 200 " in head.split(b"\r\n", 1)[0], (head, body)
        return body


class _Caller:
    """One extender in the configuration of kube-scheduler: the connections for one verb."""

    def __init__(self, verb: str, url: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._path = f"/scheduler/{verb}"
        self._context = context
        self._server_name = SERVER_NAMES[verb] if context is not None else None
        self._speaks_http2 = False  # once the service has chosen it
        self._idle: list[_Client] = []
        self._shared: list[Http2Client] = []
        self._opens = asyncio.Lock()

    async def call(self, body: bytes) -> bytes:
        """Return the body of the answer."""
        client = self._idle.pop() if self._idle else await self._connect()
        if client is None:
            answer = await (await self._shared_connection()).ask(self._path, body)
            assert answer.status == OK, answer
            return answer.body
        # as net/http of Go writes it
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"User-Agent: Go-http-client/1.1\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        answered = await client.call(head.encode() + body)
        if len(self._idle) < IDLE_MAX:
            self._idle.append(client)
        else:
            assert client.transport is not None
            client.transport.close()
        return answered

    async def _connect(self) -> _Client | None:
        """Return a connection of HTTP/1.1; None: the service has chosen HTTP/2."""
        if self._speaks_http2:
            return None
        transport, client = await asyncio.get_running_loop().create_connection(
            _Client, self._host, self._port, ssl=self._context, server_hostname=self._server_name
        )
        session = transport.get_extra_info("ssl_object")
        self._speaks_http2 = session is not None and session.selected_alpn_protocol() == "h2"
        if not self._speaks_http2:
            return client
        transport.close()
        return None

    async def _shared_connection(self) -> Http2Client:
        """Return a connection of HTTP/2 that takes another request, as Go does: a further one when the others are full."""
        async with self._opens:
            found = next(
                (one for one in self._shared if not one.full and not one.ended.is_set()), None
            )
            if found is None:
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._context, server_hostname=self._server_name
                )
                found = Http2Client(reader, writer)
                await found.begin()
                self._shared.append(found)
            return found


class Scheduler:
    """Filters members one by one and binds each on a task of its own."""

    def __init__(self, url: str, context: ssl.SSLContext | None, *, http2: bool = True) -> None:
        if context is not None and http2:
            context.set_alpn_protocols(["h2", "http/1.1"])
        self._filter, self._bind = (_Caller(verb, url, context) for verb in ("filter", "bind"))
        self._queue: asyncio.Queue[tuple[bytes, Object]] = asyncio.Queue()
        self._binds: set[asyncio.Task[None]] = set()
        self.filter_ms: list[float] = []

    def add(self, pod: Object, nodes: Sequence[str]) -> None:
        """Queue a member that may be scheduled on some nodes."""
        bare = {key: value for key, value in pod.items() if key not in ("kind", "apiVersion")}
        bare["metadata"] = {k: v for k, v in pod["metadata"].items() if k != "managedFields"}
        body = msgspec.json.encode({"Pod": bare, "Nodes": None, "NodeNames": nodes})
        self._queue.put_nowait((body, pod))

    async def run(self) -> None:
        while True:
            body, pod = await self._queue.get()
            began_s = time.perf_counter()
            answer = msgspec.json.decode(await self._filter.call(body))
            self.filter_ms.append((time.perf_counter() - began_s) * 1000)
            assert answer["NodeNames"], answer
            task = asyncio.create_task(self._bind_pod(pod, answer["NodeNames"][0]))
            self._binds.add(task)
            task.add_done_callback(self._binds.discard)

    async def _bind_pod(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        answer = msgspec.json.decode(await self._bind.call(msgspec.json.encode(body)))
        assert not answer["Error"], answer


class ApiServer:
    """The stand-in for kube-apiserver.

    Args:
        writes_per_s: How many writes it answers per second.
    """

    def __init__(self, writes_per_s: float) -> None:
        self.scheduler: Scheduler | None = None
        self.bound = 0
        self.calls: dict[str, int] = {}
        self.all_bound = asyncio.Event()
        self._wanted = 0
        self._version = 1000
        self._objects: dict[str, dict[str, Object]] = {}
        self._watches: dict[str, list[asyncio.Transport]] = {}
        self._every_s = 1 / writes_per_s
        self._writes: deque[tuple[_Server, bytes, bytes]] = deque()
        self._server: asyncio.Server | None = None
        self._writer: asyncio.Task[None] | None = None

    async def start(self, context: ssl.SSLContext) -> str:
        """Listen, and return the URL."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Server(self), "127.0.0.1", 0, ssl=context, backlog=1024
        )
        self._writer = asyncio.create_task(self._write())
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        assert self._server is not None
        assert self._writer is not None
        self._server.close()
        self._writer.cancel()

    # --- objects

    def put(self, plural: str, thing: Object) -> None:
        """Create or change an object and notify the watches."""
        stored, metadata = self._objects.setdefault(plural, {}), thing["metadata"]
        kind = "MODIFIED" if metadata["name"] in stored else "ADDED"
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault(
            "uid",
            f"{hash((plural, metadata['name'])) & (1 << 48) - 1:08x}-aaaa-4bbb-8ccc-{self._version:012x}",
        )
        metadata.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        stored[metadata["name"]] = thing
        line = msgspec.json.encode({"type": kind, "object": thing}) + b"\n"
        chunk = b"%x\r\n%b\r\n" % (len(line), line)
        for transport in self._watches.get(plural, ()):
            transport.write(chunk)

    async def create(self, pods: Iterable[Object], per_s: float) -> None:
        """Create pods at a rate."""
        began_s, made = time.monotonic(), list(pods)
        self._wanted += len(made)
        self.all_bound.clear()
        for number, pod in enumerate(made):
            pause_s = began_s + number / per_s - time.monotonic()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            self.put("pods", pod)

    # --- requests

    def answer(self, server: _Server, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        path, _, query = target.partition("?")
        if method in ("PATCH", "POST") and "/pods/" in path:
            self._writes.append((server, head, body))
            return
        if method in ("PATCH", "POST", "PUT"):
            server.send(200 if method == "PATCH" else 201, body)
            return
        parts = path.strip("/").split("/")
        plural = parts[-1]
        if path == "/readyz":
            server.send(200, b"ok")
        elif path == "/apis":
            groups = sorted({version.partition("/")[0] for version in SERVED})
            server.send_json(200, {"groups": [{"name": name} for name in groups]})
        elif parts[0] == "apis" and len(parts) == 3:
            names = SERVED.get("/".join(parts[1:]))
            found = {"resources": [{"name": name} for name in names or ()]}
            server.send_json(200 if names else 404, found)
        elif "watch=true" in query:
            server.start_watch()
            assert server.transport is not None
            self._watches.setdefault(plural, []).append(server.transport)
        elif "limit=" in query:
            version = "v1" if parts[0] == "api" else "/".join(parts[1:3])
            items = list(self._objects.get(plural, {}).values())
            metadata = {"resourceVersion": str(self._version)}
            server.send_json(200, {"apiVersion": version, "metadata": metadata, "items": items})
        else:
            server.send_json(404, {"kind": "Status", "reason": "NotFound", "message": path})

    async def _write(self) -> None:
        """Carry out the writes to pods at the rate of the server."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self._every_s, time.monotonic() - 0.002)
            pause_s = due_s - time.monotonic()
            if pause_s > 0.001 or not self._writes:
                await asyncio.sleep(max(pause_s, 0.001))
            if self._writes:
                self._carry_out(*self._writes.popleft())

    def _carry_out(self, server: _Server, head: bytes, body: bytes) -> None:
        parts = head.split(b" ", 2)[1].decode().strip("/").split("/")
        name, subresource = parts[5], parts[6] if len(parts) > 6 else ""
        what = subresource or "gate"
        self.calls[what] = self.calls.get(what, 0) + 1
        pod, change = self._objects["pods"][name], msgspec.json.decode(body)
        assert change["metadata"]["uid"] == pod["metadata"]["uid"]
        if subresource == "binding":
            pod["spec"]["nodeName"] = change["target"]["name"]
            pod["metadata"].setdefault("annotations", {}).update(change["metadata"]["annotations"])
            pod["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "True", "observedGeneration": 2,
                 "lastProbeTime": None, "lastTransitionTime": "2026-11-21T03:18:01Z"}
            ]  # fmt: skip
            self.bound += 1
            if self.bound >= self._wanted:
                self.all_bound.set()
            self.put("pods", pod)
            answer = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            }
            server.send_json(201, answer)
            return
        pod["status"] |= change.get("status", {})
        gates = change.get("spec", {}).get("schedulingGates")
        if gates:
            pod["spec"].pop("schedulingGates")
            pod["metadata"]["generation"] = 2
            pod["status"].pop("conditions", None)
        self.put("pods", pod)
        server.send_json(200, pod)
        if gates:
            assert self.scheduler is not None
            # kube-scheduler looks at the nominated node first, and only at that one where it fits
            nominated = pod["status"].get("nominatedNodeName")
            self.scheduler.add(pod, [nominated] if nominated else list(self._objects["nodes"]))


class _Server(Exchange):
    """One connection of the service."""

    def __init__(self, api: ApiServer) -> None:
        super().__init__()
        self._api = api

    def received(self, head: bytes, body: bytes) -> None:
        self._api.answer(self, head, body)

    def send_json(self, status: int, answer: Object) -> None:
        self.send(status, msgspec.json.encode(answer))

    def send(self, status: int, body: bytes) -> None:
        """Answer with the headers of kube-apiserver."""
        head = (
            f"HTTP/1.1 {status} OK\r\nAudit-Id: 2c1e4c6c-6f1f-4b2e-9a11-0f6f6c0e7a11\r\n"
            "Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
            "X-Kubernetes-Pf-Flowschema-Uid: 1f0d0bd5-3f1f-4a0e-8d6e-2b6f0c1d2e3f\r\n"
            "X-Kubernetes-Pf-Prioritylevel-Uid: 6c0e7a11-3f1f-4a0e-8d6e-2b6f0c1d2e3f\r\n"
            "Date: Sat, 21 Nov 2026 03:18:01 GMT\r\n"
        )
        if len(body) > CHUNKED_FROM:
            framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            framed = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(head.encode() + framed)

    def start_watch(self) -> None:
        assert self.transport is not None
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nAudit-Id: 2c1e4c6c-6f1f-4b2e-9a11-0f6f6c0e7a11\r\n"
            b"Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
            b"Date: Sat, 21 Nov 2026 03:18:01 GMT\r\nTransfer-Encoding: chunked\r\n\r\n"
        )


def a_member(name: str, group: str) -> Object:
    """Return a gated member as kube-apiserver stores it."""
    wanted = {"cpu": "1", MEMBER: "1", BIND: "1"}
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:gang-extender.dev/pod-group": {}}},
        "f:spec": {
            "f:automountServiceAccountToken": {},
            "f:containers": {
                'k:{"name":"main"}': {
                    ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                    "f:resources": {".": {}, "f:requests": {".": {}, "f:cpu": {}}},
                    "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
                }
            },
            "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {},
            "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {},
        },
    }  # fmt: skip
    managed = {
        "manager": "bench", "operation": "Update", "apiVersion": "v1",
        "time": "2026-11-21T03:18:01Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
    }  # fmt: skip
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generation": 1,
            "labels": {"gang-extender.dev/pod-group": group},
            "managedFields": [managed],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.invalid/none",
                    "resources": {"limits": {MEMBER: "1", BIND: "1"}, "requests": wanted},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "dnsPolicy": "ClusterFirst",
            "automountServiceAccountToken": False,
            "securityContext": {},
            "schedulerName": "gang-scheduler",
            "schedulingGates": [{"name": GATE}],
            "tolerations": [
                {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": 300}
                for what in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "observedGeneration": 1,
                 "lastProbeTime": None, "lastTransitionTime": None,
                 "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
            ],
            "qosClass": "Burstable",
        },
    }  # fmt: skip
