"""A recording extender: answers the four verbs trivially and keeps every request.

Owns what kube-scheduler itself sends and does, without a line of ours in between. By default it lets
every node pass, scores nothing, agrees to preemption and binds at once; a test replaces the answer
of a verb by its own function.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import BIND, MEMBER
from tests.support.waiting import eventually

# Go keeps idle connections for 90 s; a server that closes earlier breaks a POST now and then.
KEEP_ALIVE_S = 120.0

Object = dict[str, Any]
Answer = Callable[[Object], Awaitable[Any]]


@dataclass(frozen=True)
class Call:
    """One request of kube-scheduler."""

    verb: str
    body: Object
    # Seconds of the monotonic clock.
    at_s: float
    headers: dict[str, str]

    @property
    def pod(self) -> str:
        """The name of the pod it is about."""
        name: str = (
            self.body["PodName"] if self.verb == "bind" else self.body["Pod"]["metadata"]["name"]
        )
        return name

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes offered, sorted, in either mode of nodeCacheCapable."""
        names = self.body.get("NodeNames")
        if names is None:
            items = (self.body.get("Nodes") or {}).get("items") or []
            names = [node["metadata"]["name"] for node in items]
        return sorted(names)


class Recorder:
    """An extender on a loopback port; an async context manager."""

    def __init__(self, api: Api) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Answer] = {
            "filter": self.pass_all,
            "prioritize": self.score_nothing,
            "preempt": self.agree,
            "bind": self.bind,
        }
        self.url = ""
        self._api = api
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{verb}", self._serve)
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=0.1
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    def of(self, verb: str, pod: str | None = None) -> list[Call]:
        """Return the calls of a verb so far, of one pod if wanted."""
        return [c for c in self.calls if c.verb == verb and (pod is None or c.pod == pod)]

    async def wait_for(self, verb: str, pod: str | None = None, *, count: int = 1) -> list[Call]:
        """Wait until a verb was called so often."""
        await eventually(
            lambda: len(self.of(verb, pod)) >= count,
            f"{count} x {verb} of {pod or 'any pod'}",
            state=lambda: [(call.verb, call.pod, len(call.nodes)) for call in self.calls],
        )
        return self.of(verb, pod)

    async def _serve(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        body = msgspec.json.decode(await request.read())
        self.calls.append(Call(verb, body, time.monotonic(), dict(request.headers)))
        answer = await self.answers[verb](body)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    # -- answers ---------------------------------------------------------------------------------

    async def pass_all(self, args: Object) -> Object:
        """Let every offered node pass."""
        return {"NodeNames": args["NodeNames"], "Nodes": args["Nodes"], "Error": ""}

    async def score_nothing(self, args: Object) -> list[Object]:
        """Give no score to any node."""
        return []

    async def agree(self, args: Object) -> Object:
        """Return the proposed victims as they came, by UID."""
        meta = args.get("NodeNameToMetaVictims")
        if meta is None:
            meta = {
                node: {
                    "Pods": [{"UID": pod["metadata"]["uid"]} for pod in victims["Pods"]],
                    "NumPDBViolations": victims.get("NumPDBViolations", 0),
                }
                for node, victims in args["NodeNameToVictims"].items()
            }
        return {"NodeNameToMetaVictims": meta}

    async def bind(self, args: Object) -> Object:
        """Bind at once, with the UID as precondition and our annotation."""
        return await self.bind_with(args, {"gang-extender.dev/reservation": "recorded"})

    async def bind_with(self, args: Object, annotations: dict[str, str]) -> Object:
        """POST the Binding; an API error becomes the answer's Error."""
        pod, namespace = args["PodName"], args["PodNamespace"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod,
                "namespace": namespace,
                "uid": args["PodUID"],
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": args["Node"]},
        }
        try:
            await self._api.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body)
        except ApiError as refused:
            return {"Error": str(refused)}
        return {"Error": ""}


def refuse(reason: str) -> Answer:
    """Make a filter answer that refuses every node for one reason, beyond preemption."""

    async def answer(args: Object) -> Object:
        return {
            "NodeNames": [],
            "FailedAndUnresolvableNodes": dict.fromkeys(args["NodeNames"], reason),
        }

    return answer


def scheduler_config(url: str, *, node_names: bool = True, **more: Any) -> Object:
    """Configure kube-scheduler as deploy/ does: two entries on one server.

    Args:
        url: Of the extender.
        node_names: nodeCacheCapable of both entries.
        more: Other fields of KubeSchedulerConfiguration.
    """
    common = {"urlPrefix": url, "nodeCacheCapable": node_names, "ignorable": False}
    return {
        "percentageOfNodesToScore": 100,
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {
                "schedulerName": "gang-scheduler",
                "plugins": {"multiPoint": {"disabled": [{"name": "DefaultPreemption"}]}},
            },
        ],
        "extenders": [
            {
                **common,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "weight": 1,
                "httpTimeout": "2s",
                "managedResources": [{"name": MEMBER, "ignoredByScheduler": True}],
            },
            {
                **common,
                "bindVerb": "bind",
                "httpTimeout": "60s",
                "managedResources": [{"name": BIND, "ignoredByScheduler": True}],
            },
        ],
    } | more
