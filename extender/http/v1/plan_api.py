"""POST /v1/plan: whether trees fit, and where; POST /v1/moves: which moves make room. On the cluster of the request, or the live one.

POST /v1/moves/apply makes such moves, GET /v1/moves shows them, and POST /v1/moves/control pauses, resumes and stops them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiohttp import web
from msgspec.structs import replace

from extender.control.actuators.move_controller import MoveController
from extender.core.model.errors import BadInput, Forbidden
from extender.core.model.visibility import Visibility
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import CALLER, body_of, visibility_of
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import Api, Query
from extender.ports.log_ports import StateSource
from extender.queries.plan.moves_query import PlannedMoves, moves_under_way
from extender.queries.plan.plan_dto import (
    MovesAnswer,
    MovesQuestion,
    MovesUnderWay,
    PlanQuestion,
    PlanReply,
)
from extender.queries.plan.plan_service import PlanResult

BODY_MAX = 16 << 20


class MovesControl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of the moves that the service makes."""

    action: Literal["pause", "resume", "stop"]


PLAN = Operation(
    path="/v1/plan",
    method="post",
    about="Whether trees of pod groups fit, where, and which pods would be evicted: on the cluster of the request, "
    "or on the live cluster of the service; nothing is reserved",
    body=PlanQuestion,
    answer=PlanReply,
    problems=(400, 408, 413, 415, 503),
    positioned=False,
)
UNDER_WAY = Operation(
    path="/v1/moves",
    about="The moves that the service makes, and what is done now",
    answer=MovesUnderWay,
    problems=(400,),
)
APPLY = Operation(
    path="/v1/moves/apply",
    method="post",
    about="Make the fewest moves of members of running gangs that answer a question of POST /v1/moves about the live cluster, one after "
    "the other; a replica that does not lead asks the leader",
    body=MovesQuestion,
    answer=MovesAnswer,
    problems=(400, 408, 413, 415, 503),
    positioned=False,
)
CONTROL = Operation(
    path="/v1/moves/control",
    method="post",
    about="Pause, resume or stop the moves that the service makes",
    body=MovesControl,
    answer=MovesUnderWay,
    problems=(400, 404, 408, 413, 415, 503),
    positioned=False,
)
MOVES = Operation(
    path="/v1/moves",
    method="post",
    about="The fewest moves of running pods after which a tree fits, whole domains are free, or nodes are empty: on the "
    "cluster of the request, or on the live cluster of the service; nothing is moved",
    body=MovesQuestion,
    answer=MovesAnswer,
    problems=(400, 408, 413, 415, 503),
    positioned=False,
)


Answer = Callable[[bytes, Visibility], Awaitable[PlanResult]]
ToLeader = Callable[[web.Request, str], Awaitable[web.Response | None]]
# of the leader, for its followers
REPLICA_APPLY = "/scheduler/moves/apply"
REPLICA_CONTROL = "/scheduler/moves/control"


@dataclass(frozen=True)
class PlanApi(Api):
    """Handler of /v1/plan and /v1/moves."""

    plan_answer: Answer  # sends the body of a question to the planner
    moves_answer: Answer  # the same of a question about moves
    moves_to_apply: Answer  # the same of one whose moves are to be made; JSON of `PlannedMoves`
    mover: MoveController
    state: StateSource
    to_leader: ToLeader  # sends the body of a request to a path of the leader; its answer, None where this replica leads

    def replica_routes(self) -> list[web.RouteDef]:
        """Return the routes for other replicas."""
        return [
            web.post(REPLICA_APPLY, self._apply_here),
            web.post(REPLICA_CONTROL, self._control_here),
        ]

    @PLAN.handler
    async def _plan(self, request: web.Request, _: Query) -> web.Response:
        body = body_of(request)
        if not body:
            raise BadInput(
                'body is empty; expected {"workload": [...], "cluster": [...] (optional)}, lists of Kubernetes objects'
            )
        plan_answer = await self.plan_answer(body, visibility_of(request))
        return at_position(plan_answer.body, plan_answer.position)

    @MOVES.handler
    async def _moves(self, request: web.Request, _: Query) -> web.Response:
        answer = await self.moves_answer(_moves_question(request), visibility_of(request))
        return at_position(answer.body, answer.position)

    @UNDER_WAY.handler
    async def _show(self, request: web.Request, _: Query) -> web.Response:
        if not visibility_of(request).everything:
            raise Forbidden("moves have names of all namespaces; they are for callers who see all")
        return self._under_way()

    def _under_way(self) -> web.Response:
        state = self.state.committed
        body = msgspec.json.encode(moves_under_way(state.moves, self.mover.waits_for))
        return at_position(body, state.position)

    @APPLY.handler
    async def _apply(self, request: web.Request, _: Query) -> web.Response:
        answer = await self.to_leader(request, REPLICA_APPLY)
        return await self._apply_here(request) if answer is None else answer

    async def _apply_here(self, request: web.Request) -> web.Response:
        body = _moves_question(request)
        self.mover.require_none()
        given = await self.moves_to_apply(body, visibility_of(request))
        planned = msgspec.json.decode(given.body, type=PlannedMoves)
        answer = planned.answer
        if answer.moves:
            plan = await self.mover.begin(
                answer.question,
                answer.moves,
                planned.request,
                _user(request),
                proved=answer.least == len(answer.moves),
                tree=planned.tree,
            )
            answer = replace(answer, plan=plan)
        return at_position(msgspec.json.encode(answer), given.position)

    @CONTROL.handler
    async def _control(self, request: web.Request, _: Query) -> web.Response:
        answer = await self.to_leader(request, REPLICA_CONTROL)
        return await self._control_here(request) if answer is None else answer

    async def _control_here(self, request: web.Request) -> web.Response:
        try:
            action = msgspec.json.decode(body_of(request), type=MovesControl).action
        except msgspec.MsgspecError as error:
            raise BadInput(
                f'body: {error}; expected {{"action": "pause"}}, resume or stop'
            ) from error
        if action == "stop":
            await self.mover.stop(_user(request))
        else:
            await self.mover.pause(_user(request), paused=action == "pause")
        return self._under_way()


def _user(request: web.Request) -> str:
    """Return who sent a request; empty: the service authenticates no callers."""
    return request[CALLER].user if CALLER in request else ""


def _moves_question(request: web.Request) -> bytes:
    """Return the body of a question about moves; raises BadInput where there is none."""
    body = body_of(request)
    if not body:
        raise BadInput(
            'body is empty; expected {"free": "KEY=N"}, {"drain": [...]} or {"groups": [...]}'
        )
    return body
