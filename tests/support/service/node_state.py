"""The past of a node and of any object by the log, from the handlers in this process instead of the query process."""

from __future__ import annotations

from extender.http.v1.explain_api import PastExplainApi
from extender.http.v1.state_api import PastNodesApi
from extender.queries.explain.past_explanation import PastExplanations


def past_node(as_of):
    return _fetching(PastNodesApi(as_of))


def past_explain(as_of, reader):
    return _fetching(PastExplainApi(PastExplanations(as_of, reader)))


def _fetching(api):
    (route,) = api.routes()

    async def ask(request, headers):
        return await route.handler(request.clone(headers=headers))

    return ask
