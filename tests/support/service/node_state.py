"""A node by the log, asked of the handler itself instead of the process that has it in the service."""

from __future__ import annotations

from extender.http.v1.state_api import PastNodesApi


def past_node(as_of):
    handler = PastNodesApi(as_of)

    async def ask(request, headers):
        return await handler.node(request.clone(headers=headers))

    return ask
