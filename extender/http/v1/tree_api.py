"""Trees of workloads under /v1 as they are now, from the state in memory."""

from __future__ import annotations

from aiohttp import web

from extender.http.responses.json_responses import answer, listed
from extender.http.v1.openapi import NAME, Operation, Parameter
from extender.http.v1.query_parameters import known, name_in
from extender.ports.log_ports import StateSource
from extender.queries.state.workload_trees import TreeAt, trees_at

OPERATIONS = (
    Operation(
        path="/v1/trees",
        about="Workloads (Job, JobSet, ...) with a tree label, by name: their root groups and states, or why no tree can be made; a replica that does not lead answers as far as it has followed the log",
        answer=list[TreeAt],
        parameters=(
            Parameter(name="namespace", about="Only workloads of this namespace", schema=NAME),
        ),
        problems=(400,),
        tagged=True,
    ),
)


class TreeApi:
    """Handler of /v1/trees."""

    def __init__(self, state: StateSource) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/trees", self.trees)]

    async def trees(self, request: web.Request) -> web.StreamResponse:
        """Return the trees of workloads, by namespace and name."""
        namespace = name_in(known(request, {"namespace"}), "namespace")
        state = self._state.committed
        pieces = await listed(trees_at(state, namespace))
        return await answer(request, pieces, state.position)
