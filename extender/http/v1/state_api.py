"""`/v1/state` and `/v1/nodes/{name}`: the state now and at any time of the past; `/v1/nodes` and the tree of a gang as they are now.

The answer for a position never changes, so its ETag is made from the hash of the log at that position, and
`X-Log-Position` is that position. `PastNodesApi` answers for a node from the log alone; `NodesApi` adds the node as
the cluster shows it now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from extender.core.model.ids import NodeName
from extender.http.responses.json_responses import answer
from extender.http.responses.request_visibility import visibility_of, visibility_tag
from extender.http.v1.openapi import GANG_NAME, MOMENT, NAME, NAMESPACE, PAIR, Operation, Parameter
from extender.http.v1.query_parameters import Api, Query, gang_named
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import StateSource
from extender.queries.log.parameter_validation import checked_text
from extender.queries.state import node_inventory
from extender.queries.state.gang_selection import GANG_STATES
from extender.queries.state.historical_state import HistoricalState, StateAt, StateDiff
from extender.queries.state.state_dto import NodeAt, Scope, scope_of

KNOWN = "Gang-Extender-Known"  # on a request: the node exists in the cluster, even if it is not in the log


class NodeAnswer(msgspec.Struct, kw_only=True):
    """A node in the state of the log, and for queries of the present also as the cluster shows it."""

    state: StateAt
    node: NodeAt | None  # None: no gang had anything there
    # None: the query is for the past, or the cluster has no such node
    live: node_inventory.NodeNow | None


class _AnswerFromLog(msgspec.Struct, kw_only=True):
    """The answer of `PastNodesApi`, to which `live` is added; `state` is not decoded."""

    state: msgspec.Raw
    node: NodeAt | None
    live: node_inventory.NodeNow | None


AT = Parameter(name="at", about="A time (RFC 3339) or a position of the log; default: the end of the log", schema=MOMENT)  # fmt: skip
STATE = Operation(
    path="/v1/state",
    about="Reservations, bound members and pending trees at a point in time; with `diff` the changes",
    answer=StateAt,
    otherwise=StateDiff,
    parameters=(
        AT,
        Parameter(name="diff", about="Another time or position, to compare with `at`", schema=MOMENT),
        Parameter(name="node", about="Only gangs on this node", schema=NAME),
        Parameter(name="domain", about="Only gangs in this topology domain, key=value", schema=PAIR),
        Parameter(name="namespace", about="Only root groups of this namespace", schema=NAME),
        Parameter(name="state", about="Only gangs in this state", schema={"type": "string", "enum": list(GANG_STATES)}, repeatable=True),
    ),
    problems=(400, 404, 503),
    tagged=True,
)  # fmt: skip
NODE = Operation(
    path="/v1/nodes/{name}",
    about="Reservations and bound members of a node at a point in time; for the present also the node as the cluster shows it",
    answer=NodeAnswer,
    parameters=(Parameter(name="name", about="Name of the node", schema=NAME, where="path"), AT),
    problems=(400, 404, 503),
    tagged=True,
)


@dataclass(frozen=True)
class StateApi(Api):
    """Handler of /v1/state."""

    as_of: HistoricalState

    @STATE.handler
    async def _state(self, request: web.Request, query: Query) -> web.Response:
        at, diff = query.pop("at", ""), query.pop("diff", "")
        scope, readers = scope_of(**query), visibility_of(request)
        if diff:
            difference = await self.as_of.difference(at, diff, scope, readers)
            return _answer(request, difference)
        return _answer(request, await self.as_of.state(at, scope, readers=readers))


@dataclass(frozen=True)
class PastNodesApi(Api):
    """Handler of a node, from the log alone."""

    as_of: HistoricalState

    @NODE.handler
    async def _node(self, request: web.Request, query: Query) -> web.Response:
        name = NodeName(request.match_info["name"])
        checked_text(name, "node")
        exists = KNOWN in request.headers
        state = await self.as_of.state(
            query.get("at", ""), Scope(node=name), exists=exists, readers=visibility_of(request)
        )
        node = next((n for n in state.nodes if n.node == name), None)
        return _answer(request, NodeAnswer(state=state, node=node, live=None))


@dataclass(frozen=True)
class NodesApi(Api):
    """Handler of a node as it is now."""

    cluster: Cluster
    # returns the answer of `PastNodesApi` to a request, with other headers
    past: Callable[[web.Request, Mapping[str, str]], Awaitable[web.Response]]

    @NODE.handler
    async def _node(self, request: web.Request, query: Query) -> web.Response:
        name = NodeName(request.match_info["name"])
        if "at" in query or name not in self.cluster.view().nodes:
            tag = request.headers.get("If-None-Match")
            return await self.past(request, {} if tag is None else {"If-None-Match": tag})
        answer = await self.past(request, {KNOWN: "true"})
        if answer.status != HTTPStatus.OK or not isinstance(answer.body, bytes):
            return answer
        extended = msgspec.json.decode(answer.body, type=_AnswerFromLog)
        extended.live = node_inventory.live_node(self.cluster.view(), name, extended.node)
        if extended.live is None:
            return answer
        return web.Response(
            body=msgspec.json.encode(extended),
            content_type="application/json",
            headers={"X-Log-Position": answer.headers["X-Log-Position"]},
        )


def _answer(request: web.Request, value: StateAt | StateDiff | NodeAnswer) -> web.Response:
    if isinstance(value, StateDiff):
        end, version = value.end, f"{value.begin.hash[:16]}-{value.end.hash[:16]}"
    else:
        moment = (value.state if isinstance(value, NodeAnswer) else value).as_of
        end, version = moment, moment.hash[:16]
    tag = f'"{version}{visibility_tag(visibility_of(request))}"'
    headers = {"X-Log-Position": str(end.position), "ETag": tag}
    if tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )


NODES = Operation(
    path="/v1/nodes",
    about="Nodes as the cluster shows them now: labels, capacity, and usage by members and by ordinary pods",
    answer=node_inventory.NodeInventoryReport,
    problems=(400,),
    tagged=True,
)
TREE = Operation(
    path="/v1/gangs/{namespace}/{name}/tree",
    about="The groups of a tree with their members as the cluster shows them now, admitted or not",
    answer=node_inventory.TreeNow,
    parameters=(NAMESPACE, GANG_NAME),
    problems=(400, 404),
    tagged=True,
)


@dataclass(frozen=True)
class LiveNodeApi(Api):
    """Handlers of /v1/nodes and of trees."""

    fleet: node_inventory.NodeInventory
    state: StateSource

    @NODES.handler
    async def _nodes(self, request: web.Request, _: Query) -> web.StreamResponse:
        pieces = await self.fleet.nodes()
        return await answer(request, pieces, self.state.committed.position)

    @TREE.handler
    async def _tree(self, request: web.Request, _: Query) -> web.StreamResponse:
        namespace, name = gang_named(request).split("/")
        if not visibility_of(request).sees(namespace):
            raise node_inventory.no_such_root(namespace, name)
        pieces = await self.fleet.tree(namespace, name)
        return await answer(request, pieces, self.state.committed.position)
