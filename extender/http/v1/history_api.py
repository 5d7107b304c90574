"""Histories, decisions and preemptions under /v1, as the log has them."""

from __future__ import annotations

import msgspec
from aiohttp import web

from extender.core.model.errors import NotFound
from extender.core.model.ids import Position, RootUid
from extender.http.responses.json_responses import answer, listed, next_page
from extender.http.v1.openapi import (
    GANG_NAME,
    NAMESPACE,
    PATH,
    TEXT,
    TIME,
    Operation,
    Parameter,
)
from extender.http.v1.query_parameters import (
    LIMIT_MAX,
    POSITION_MAX,
    flag,
    gang_named,
    known,
    moment,
    number,
    path_in,
)
from extender.ports.protocols import DecisionInputs, EventFilter, EventQueries
from extender.queries.log.decision_details import Decision, decision_of
from extender.queries.log.event_dto import EventLine, line_of
from extender.queries.log.gang_history import HistoryLine, HistoryQuery, history
from extender.queries.log.parameter_validation import checked_text
from extender.queries.log.preemption_report import PreemptionLine, PreemptionQuery, preemptions


class DecisionAnswer(msgspec.Struct):
    """A decision of the planner."""

    fact: EventLine
    decision: Decision


WHOLE = {"type": "integer", "minimum": 0, "maximum": POSITION_MAX}
AFTER = Parameter(name="after", about="Only what stands behind this position", schema=WHOLE)
LIMIT = Parameter(
    name="limit",
    about="At most so many",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_MAX},
)
DECISIONS = Parameter(
    name="decisions",
    about="Also why and who, and the input and the alternatives of each decision",
    schema={"type": "boolean"},
)
GANG = (NAMESPACE, GANG_NAME)
ID = Parameter(
    name="id",
    where="path",
    about="Position of a decision, or the id of a plan (annotation gang-extender.dev/plan)",
    schema={**TEXT, "pattern": "^[^\\u0000/]+$"},
)
OPERATIONS = (
    Operation(
        path="/v1/gangs/{namespace}/{name}/history",
        about="Everything the log knows of a gang, also of one long gone, and what others did to it",
        answer=list[HistoryLine],
        parameters=(
            *GANG,
            Parameter(name="uid", about="Only the root group with this UID, of those that had the name",
                      schema=TEXT),
            DECISIONS,
            AFTER,
            LIMIT,
        ),
        problems=(400, 404, 503),
        tagged=True,
    ),
    Operation(
        path="/v1/decisions/{id}",
        about="A decision of the planner with its input and its alternatives",
        answer=DecisionAnswer,
        parameters=(ID,),
        problems=(400, 404, 503),
        tagged=True,
    ),
    Operation(
        path="/v1/preemptions",
        about="Who was preempted for whom, why, and what came of it",
        answer=list[PreemptionLine],
        parameters=(
            Parameter(name="victim", about="Only those that evict this pod or group", schema=PATH),
            Parameter(name="preemptor", about="Only those for this root group or pod", schema=PATH),
            Parameter(name="since", about="Only those planned at this time or later", schema=TIME),
            AFTER,
            LIMIT,
        ),
        tagged=True,
    ),
)  # fmt: skip


class HistoryApi:
    """Handlers: what the log alone can answer."""

    def __init__(self, reader: EventQueries, inputs: DecisionInputs) -> None:
        self._reader = reader
        self._inputs = inputs

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [
            web.get("/v1/gangs/{namespace}/{name}/history", self.history),
            web.get("/v1/decisions/{id}", self.decision),
            web.get("/v1/preemptions", self.preemptions),
        ]

    async def history(self, request: web.Request) -> web.StreamResponse:
        """Give the facts of a root, also of one long gone."""
        name = gang_named(request)
        query = known(request, {"uid", "decisions", "after", "limit"})
        asked = HistoryQuery(
            root=name,
            uid=RootUid(query["uid"]) if "uid" in query else None,
            after=Position(number(query, "after", 0, most=POSITION_MAX)),
            limit=number(query, "limit", LIMIT_MAX, least=1, most=LIMIT_MAX),
            decisions=flag(query, "decisions"),
        )
        told = await history(self._reader, self._inputs, asked)
        link = next_page(request, told.lines[-1].position) if told.more and told.lines else ""
        lines = told.lines if asked.decisions else map(HistoryLine.bare, told.lines)
        return await answer(request, await listed(lines), told.head, link=link)

    async def decision(self, request: web.Request) -> web.StreamResponse:
        """Give a decision by its position or the id of its plan."""
        known(request, ())
        name = checked_text(request.match_info["id"], "decision")
        wanted = EventFilter(plan=name, limit=1)
        if name.isascii() and name.isdigit():
            position = min(int(name[:20]), POSITION_MAX)
            wanted = EventFilter(after=Position(position - 1), limit=1) if position else wanted
        page = await self._reader.page(wanted)
        at = [e for e in page.events if wanted.plan or str(e.position) == name]
        if not at:
            raise NotFound(f"decision {name}: the log has no such position, and no such plan")
        told = await decision_of(at[0], self._inputs)
        if told is None:
            kind = type(at[0].fact).__name__
            raise NotFound(f"decision {name}: a {kind} is not a decision of the planner")
        body = msgspec.json.encode(DecisionAnswer(fact=line_of(at[0]), decision=told))
        return await answer(request, [body], page.head)

    async def preemptions(self, request: web.Request) -> web.StreamResponse:
        """Tell who preempted whom, by `victim`, `preemptor` (namespace/name) and `since`."""
        query = known(request, {"victim", "preemptor", "since", "after", "limit"})
        wanted = PreemptionQuery(
            victim=path_in(query, "victim"),
            preemptor=path_in(query, "preemptor"),
            since_us=moment(query, "since"),
            after=Position(number(query, "after", 0, most=POSITION_MAX)),
            limit=number(query, "limit", LIMIT_MAX, least=1, most=LIMIT_MAX),
        )
        told = await preemptions(self._reader, wanted)
        link = next_page(request, told.lines[-1].position) if told.more else ""
        return await answer(request, await listed(told.lines), told.head, link=link)
