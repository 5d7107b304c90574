"""Trees of workloads under /v1 as they are now, from the state in memory."""

from __future__ import annotations

from aiohttp import web

from extender.http.responses.json_responses import answer, listed
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import selection_in, selection_parameters
from extender.ports.log_ports import StateSource
from extender.queries.state.gang_selection import TREE_STATES
from extender.queries.state.object_labels import ObjectLabels
from extender.queries.state.workload_trees import TreeAt, trees_at

OPERATIONS = (
    Operation(
        path="/v1/trees",
        about="Workloads (Job, JobSet, ...) with a tree label, by name: their root groups and states, or why no tree can be made; a replica that does not lead answers as far as it has followed the log",
        answer=list[TreeAt],
        parameters=selection_parameters(
            TREE_STATES,
            namespace="workloads",
            state="workloads with this outcome, or with a root group in this state",
            labels="of the workload",
        ),
        problems=(400,),
        tagged=True,
    ),
)


class TreeApi:
    """Handler of /v1/trees."""

    def __init__(self, state: StateSource, labels: ObjectLabels) -> None:
        self._state = state
        self._labels = labels

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/trees", self.trees)]

    async def trees(self, request: web.Request) -> web.StreamResponse:
        """Return the trees of workloads of a selection, by namespace and name."""
        selection = selection_in(request, TREE_STATES)
        state = self._state.committed
        pieces = await listed(trees_at(state, selection, self._labels, visibility_of(request)))
        return await answer(request, pieces, state.position)
