"""/v1/nodes, and the tree of a gang, as the cluster shows them now; /v1/state has their past."""

from __future__ import annotations

from aiohttp import web

from extender.http.responses.json_responses import answer
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import GANG_NAME, NAMESPACE, Operation
from extender.http.v1.query_parameters import gang_named, known
from extender.ports.log_ports import StateSource
from extender.queries.state.node_inventory import (
    NodeInventory,
    NodeInventoryReport,
    TreeNow,
    no_such_root,
)

OPERATIONS = (
    Operation(
        path="/v1/nodes",
        about="Nodes as the cluster shows them now: labels, capacity, and usage by members and by ordinary pods",
        answer=NodeInventoryReport,
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
    """Handlers of /v1/nodes and of trees."""

    def __init__(self, fleet: NodeInventory, state: StateSource) -> None:
        self._fleet = fleet
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/v1/nodes", self.nodes),
            web.get("/v1/gangs/{namespace}/{name}/tree", self.tree),
        ]

    async def nodes(self, request: web.Request) -> web.StreamResponse:
        """Return the nodes, by name."""
        known(request, ())
        pieces = await self._fleet.nodes()
        return await answer(request, pieces, self._state.committed.position)

    async def tree(self, request: web.Request) -> web.StreamResponse:
        """Return the tree of a gang."""
        known(request, ())
        namespace, _, name = gang_named(request).partition("/")
        if not visibility_of(request).sees(namespace):
            raise no_such_root(namespace, name)
        pieces = await self._fleet.tree(namespace, name)
        return await answer(request, pieces, self._state.committed.position)
