"""POST /v1/plan: whether trees fit, and where; on the cluster of the request, or on the live cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from extender.core.model.errors import BadInput
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_body import body_of
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import known
from extender.queries.plan.plan_query import PlanQuestion, PlanReply
from extender.queries.plan.plan_service import PlanResult

BODY_MAX = 16 << 20
OPERATIONS = (
    Operation(
        path="/v1/plan",
        method="post",
        about="Whether trees of pod groups fit, where, and which pods would be evicted: on the cluster of the request, "
        "or on the live cluster of the service; nothing is reserved",
        body=PlanQuestion,
        answer=PlanReply,
        problems=(400, 408, 413, 415, 503),
        positioned=False,
    ),
)


class PlanApi:
    """Handler of /v1/plan.

    Args:
        plan: Answers a request body, outside the event loop.
    """

    def __init__(self, plan: Callable[[bytes, Visibility], Awaitable[PlanResult]]) -> None:
        self._plan = plan

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/v1/plan", self.plan)]

    async def plan(self, request: web.Request) -> web.Response:
        """Answer as `gang-extender plan` does."""
        known(request, ())
        body = body_of(request)
        if not body:
            raise BadInput(
                'body is empty; expected {"workload": [...], "cluster": [...] (optional)}, lists of Kubernetes objects'
            )
        plan_answer = await self._plan(body, visibility_of(request))
        return at_position(plan_answer.body, plan_answer.position)
