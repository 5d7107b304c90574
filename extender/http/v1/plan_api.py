"""POST /v1/plan: whether trees fit, and where; POST /v1/moves: which moves make room. On the cluster of the request, or the live one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from extender.core.model.errors import BadInput
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import body_of, visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import known
from extender.queries.plan.moves_query import MovesAnswer, MovesQuestion
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
    Operation(
        path="/v1/moves",
        method="post",
        about="The fewest moves of running pods after which a tree fits, whole domains are free, or nodes are empty: on the "
        "cluster of the request, or on the live cluster of the service; nothing is moved",
        body=MovesQuestion,
        answer=MovesAnswer,
        problems=(400, 408, 413, 415, 503),
        positioned=False,
    ),
)


Answer = Callable[[bytes, Visibility], Awaitable[PlanResult]]


class PlanApi:
    """Handler of /v1/plan and /v1/moves.

    Args:
        moves: The same of /v1/moves.
    """

    def __init__(self, plan: Answer, moves: Answer) -> None:
        self._plan = plan
        self._moves = moves

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/v1/plan", self.plan), web.post("/v1/moves", self.moves)]

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

    async def moves(self, request: web.Request) -> web.Response:
        """Answer as `gang-extender make-room` and `drain` do."""
        known(request, ())
        body = body_of(request)
        if not body:
            raise BadInput(
                'body is empty; expected {"free": "KEY=N"}, {"drain": [...]} or {"groups": [...]}'
            )
        answer = await self._moves(body, visibility_of(request))
        return at_position(answer.body, answer.position)
