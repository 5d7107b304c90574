"""/v1/nodes and the tree of a gang as the cluster shows them now; the past of both is in /v1/state."""

from __future__ import annotations

from aiohttp import web

from extender.http.responses.json_responses import answer
from extender.http.v1.openapi import GANG_NAME, NAMESPACE, Operation
from extender.http.v1.query_parameters import gang_named, known
from extender.ports.protocols import StateSource
from extender.queries.state.node_inventory import NodeInventory, NodeList, TreeNow

OPERATIONS = (
    Operation(
        path="/v1/nodes",
        about="Nodes as the cluster shows them now: labels, capacity, and what pods take, ordinary ones apart",
        answer=NodeList,
        problems=(400,),
        tagged=True,
    ),
    Operation(
        path="/v1/gangs/{namespace}/{name}/tree",
        about="The groups of a tree with their members as the cluster shows them now, admitted or not",
        answer=TreeNow,
        parameters=(NAMESPACE, GANG_NAME),
        problems=(400, 404),
        tagged=True,
    ),
)


class LiveNodeApi:
    """Handlers."""

    def __init__(self, fleet: NodeInventory, state: StateSource) -> None:
        self._fleet = fleet
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [
            web.get("/v1/nodes", self.nodes),
            web.get("/v1/gangs/{namespace}/{name}/tree", self.tree),
        ]

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """List nodes by name."""
        known(request, ())
        pieces = await self._fleet.nodes()
        return await answer(request, pieces, self._state.acknowledged.position)

    async def tree(self, request: web.Request) -> web.StreamResponse:
        """Give a tree."""
        known(request, ())
        namespace, _, name = gang_named(request).partition("/")
        pieces = await self._fleet.tree(namespace, name)
        return await answer(request, pieces, self._state.acknowledged.position)
