"""`/v1/state` and `/v1/nodes/{name}`: the state as it is and as it was.

A moment of the past has one answer for ever, so answers carry an ETag of the log's hash there, and
`X-Log-Position` says as of which position they are. What the log says of a node is one handler's,
`PastNodesApi`; another, `NodesApi`, adds what the cluster shows of it now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web
from multidict import MultiMapping

from extender.core.model.ids import NodeName
from extender.http.v1.openapi import NAME, TEXT, Operation, Parameter
from extender.http.v1.query_parameters import field, known
from extender.ports.protocols import Cluster
from extender.queries.log.parameter_validation import checked_name, checked_text
from extender.queries.state.historical_state import HistoricalState, StateAt, StateDiff
from extender.queries.state.live_node import LiveNode, live_node
from extender.queries.state.state_dto import NodeAt, Scope, scope_of

PARAMETERS = {"at", "diff", "node", "domain", "namespace"}


KNOWN = "Gang-Extender-Known"  # on a question: the cluster has the node, whether the log heard of it or not


class NodeAnswer(msgspec.Struct, kw_only=True):
    """A node as gangs had it, and beside it what the cluster shows now when now is asked for."""

    state: StateAt
    node: NodeAt | None  # None: nothing of a gang was there
    live: LiveNode | None  # None: the past was asked for, or the cluster has no such node


class _Told(msgspec.Struct, kw_only=True):
    """The same as the log alone tells it, to be added to; what is not looked at stays as it came."""

    state: msgspec.Raw
    node: NodeAt | None
    live: LiveNode | None


AT = Parameter(
    name="at",
    about="A time (RFC 3339) or a position of the log; the end of the log unless said",
    schema=TEXT,
)
OPERATIONS = (
    Operation(
        path="/v1/state",
        about="Reservations, bound members and pending trees as they were; with `diff` what changed",
        answer=StateAt,
        otherwise=StateDiff,
        parameters=(
            AT,
            Parameter(name="diff", about="The other moment, to be compared with `at`", schema=TEXT),
            Parameter(name="node", about="Only what concerns this node", schema=NAME),
            Parameter(
                name="domain", about="Only what concerns this domain: key=value", schema=TEXT
            ),
            Parameter(name="namespace", about="Only root groups of this one", schema=NAME),
        ),
        problems=(400, 404, 503),
        tagged=True,
    ),
    Operation(
        path="/v1/nodes/{name}",
        about="What gangs have of a node, or had at a moment; now also what the cluster shows of it",
        answer=NodeAnswer,
        parameters=(
            Parameter(name="name", about="Name of the node", schema=NAME, where="path"),
            AT,
        ),
        problems=(400, 404, 503),
        tagged=True,
    ),
)


class StateApi:
    """Handler of the whole state, and of parts of it."""

    def __init__(self, as_of: HistoricalState) -> None:
        self._as_of = as_of

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [web.get("/v1/state", self.state)]

    async def state(self, request: web.Request) -> web.Response:
        """Give reservations, bound members and pending trees as they were at `at`; with `diff` what changed."""
        query = _checked(known(request, PARAMETERS))
        scope = _scope(query)
        if "diff" in query:
            difference = await self._as_of.difference(query.get("at", ""), query["diff"], scope)
            return _answer(request, difference)
        return _answer(request, await self._as_of.state(query.get("at", ""), scope))


class PastNodesApi:
    """Handler of a node: what the log alone can answer."""

    def __init__(self, as_of: HistoricalState) -> None:
        self._as_of = as_of

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [web.get("/v1/nodes/{name}", self.node)]

    async def node(self, request: web.Request) -> web.Response:
        """Give what gangs have of a node, or had at `at`."""
        query = _checked(known(request, {"at"}))
        name = NodeName(request.match_info["name"])
        checked_text(name, "node")
        there = KNOWN in request.headers
        state = await self._as_of.state(query.get("at", ""), Scope(node=name), known=there)
        node = next((n for n in state.nodes if n.node == name), None)
        return _answer(request, NodeAnswer(state=state, node=node, live=None))


class NodesApi:
    """Handler of a node as it is now.

    Args:
        cluster: What is there now.
        past: Gives the answer of `PastNodesApi` to the same question, with these headers in place of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        past: Callable[[web.Request, Mapping[str, str]], Awaitable[web.Response]],
    ) -> None:
        self._cluster = cluster
        self._past = past

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [web.get("/v1/nodes/{name}", self.node)]

    async def node(self, request: web.Request) -> web.Response:
        """Give what gangs have of a node, or had at `at`; now also what the cluster shows of it."""
        name = NodeName(request.match_info["name"])
        if "at" in request.query or name not in self._cluster.view().nodes:
            tag = request.headers.get("If-None-Match")
            return await self._past(request, {} if tag is None else {"If-None-Match": tag})
        answer = await self._past(request, {KNOWN: "true"})
        if answer.status != HTTPStatus.OK or not isinstance(answer.body, bytes):
            return answer
        told = msgspec.json.decode(answer.body, type=_Told)
        told.live = live_node(self._cluster.view(), name, told.node)
        if told.live is None:
            return answer
        return web.Response(
            body=msgspec.json.encode(told),
            content_type="application/json",
            headers={"X-Log-Position": answer.headers["X-Log-Position"]},
        )


def _checked(query: MultiMapping[str]) -> MultiMapping[str]:
    """Refuse what is given and is no moment, domain or name whatever the log holds."""
    for name in ("at", "diff", "domain"):
        if name in query:
            checked_text(query[name], field(name))
    for name in ("node", "namespace"):
        if name in query:
            checked_name(query[name], field(name))
    return query


def _scope(query: MultiMapping[str]) -> Scope:
    return scope_of(query.get("node", ""), query.get("domain", ""), query.get("namespace", ""))


def _answer(request: web.Request, value: StateAt | StateDiff | NodeAnswer) -> web.Response:
    if isinstance(value, StateDiff):
        end, tag = value.end, f'"{value.begin.hash[:16]}-{value.end.hash[:16]}"'
    else:
        moment = (value.state if isinstance(value, NodeAnswer) else value).as_of
        end, tag = moment, f'"{moment.hash[:16]}"'
    headers = {"X-Log-Position": str(end.position), "ETag": tag}
    if tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )
