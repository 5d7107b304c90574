"""The state of a node by the log, from the handler in this process instead of the query process."""

from __future__ import annotations

from extender.http.v1.state_api import PastNodesApi


def past_node(as_of):
    handler = PastNodesApi(as_of)

    async def ask(request, headers):
        return await handler.node(request.clone(headers=headers))

    return ask
