"""Histories, decisions, preemptions and reports under /v1, from the log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import web

from extender.core.model.errors import Forbidden, NotFound
from extender.core.model.ids import Position
from extender.http.responses.json_responses import answer, at_position, listed, next_page, problem
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1 import openapi
from extender.http.v1.query_parameters import (
    LIMIT_MAX,
    POSITION_MAX,
    Api,
    Query,
    find_paths,
    gang_named,
    whole,
)
from extender.ports.log_ports import Clock, DecisionInputs
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log import decision_details, reports
from extender.queries.log.event_dto import EventLine, event_line
from extender.queries.log.event_filter import visible_queries
from extender.queries.log.gang_history import HistoryLine, HistoryQuery, gang_of_name, history
from extender.queries.log.parameter_validation import checked_text
from extender.queries.log.preemption_dto import OUTCOMES, PreemptionLine
from extender.queries.log.preemption_report import PreemptionQuery, preemptions, victim_of_name
from extender.queries.log.reports import (
    REPORTS,
    Report,
    ReportLine,
    ReportQueries,
    catalogue,
    check_report_query,
    report,
    unknown_report,
)


class DecisionAnswer(msgspec.Struct):
    """A decision of the planner."""

    event: EventLine
    decision: decision_details.Decision


WHOLE = {"type": "integer", "minimum": 0, "maximum": POSITION_MAX}
AFTER = openapi.Parameter(name="after", about="Only entries after this position", schema=WHOLE)
LIMIT = openapi.Parameter(
    name="limit",
    about="Maximum number of entries",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_MAX},
)
DECISIONS = openapi.Parameter(
    name="decisions",
    about="Add the reason, the actor, and input and alternatives of each decision",
    schema={"type": "boolean"},
)
GANG = (openapi.NAMESPACE, openapi.GANG_NAME)
ID = openapi.Parameter(
    name="id",
    where="path",
    about="Position of a decision, or the id of a plan (annotation gang-extender.dev/plan)",
    schema={**openapi.TEXT, "pattern": "^[^\\u0000/]+$"},
)
HISTORY = openapi.Operation(
    path="/v1/gangs/{namespace}/{name}/history",
    about="All events about a gang, also about a deleted one, and preemptions of it",
    answer=list[HistoryLine],
    parameters=(
        *GANG,
        openapi.Parameter(name="uid", about="Only the root group with this UID, if the name was reused",
                  schema=openapi.TEXT),
        DECISIONS,
        openapi.Parameter(name="since", about="Only events recorded at this time or later (RFC 3339 with offset)", schema=openapi.TIME),
        openapi.Parameter(name="until", about="Only events recorded at this time or before", schema=openapi.TIME),
        AFTER,
        LIMIT,
    ),
    problems=(400, 404, 503),
    tagged=True,
)  # fmt: skip
DECISION = openapi.Operation(
    path="/v1/decisions/{id}",
    about="A decision of the planner with its input and its alternatives",
    answer=DecisionAnswer,
    parameters=(ID,),
    problems=(400, 404, 503),
    tagged=True,
)
DECISION_INPUT = openapi.Operation(
    path="/v1/decisions/{id}/input",
    about="A decision with its stored input, to be planned again elsewhere (gang-extender decision replay)",
    answer=decision_details.StoredDecision,
    parameters=(
        openapi.Parameter(name="id", where="path", about="Position of a decision", schema={"type": "integer", "minimum": 1, "maximum": POSITION_MAX}),
    ),
    problems=(400, 404, 503),
    tagged=True,
)  # fmt: skip
PREEMPTIONS = openapi.Operation(
    path="/v1/preemptions",
    about="Preemptions with preemptor, victims, reason and outcome",
    answer=list[PreemptionLine],
    parameters=(
        openapi.Parameter(name="victim", about="Only preemptions of this pod or group, by namespace/name; a name alone as in /v1/events", schema=openapi.PATH_OR_NAME),
        openapi.Parameter(name="preemptor", about="Only preemptions for this root group or pod, likewise", schema=openapi.PATH_OR_NAME),
        openapi.Parameter(name="namespace", schema=openapi.NAME,
                  about="Only preemptions with a preemptor or victim, or released reservations, in this namespace"),
        openapi.Parameter(name="state", about="Only preemptions with this outcome", repeatable=True,
                  schema={"type": "string", "enum": list(OUTCOMES)}),
        openapi.Parameter(name="since", about="Only preemptions that were planned at this time or later", schema=openapi.TIME),
        openapi.Parameter(name="until", about="Only preemptions that were planned at this time or before", schema=openapi.TIME),
        openapi.Parameter(name="after", about="Only preemptions that were planned after this position; with order=newest, before it", schema=WHOLE),
        openapi.ORDER,
        LIMIT,
    ),
    problems=(400, 404, 503),
    tagged=True,
)  # fmt: skip


@dataclass(frozen=True)
class HistoryApi(Api):
    """Handlers of the routes that need only the log."""

    reader: EventQueries
    inputs: DecisionInputs

    def _seen_by(self, request: web.Request) -> EventQueries:
        return visible_queries(self.reader, visibility_of(request))

    @HISTORY.handler
    async def _history(self, request: web.Request, query: Query) -> web.StreamResponse:
        history_query = HistoryQuery(gang=gang_named(request), **query)
        page = await history(self._seen_by(request), self.inputs, history_query)
        link = next_page(request, page.lines[-1].position) if page.more and page.lines else ""
        lines = page.lines if history_query.decisions else map(HistoryLine.bare, page.lines)
        return await answer(request, await listed(lines), page.head, link=link)

    @DECISION.handler
    async def _decision(self, request: web.Request, _: Query) -> web.StreamResponse:
        name = checked_text(request.match_info["id"], "decision")
        event_filter = EventFilter(plan=name, limit=1)
        if name.isascii() and name.isdigit():
            position = min(int(name[:20]), POSITION_MAX)
            event_filter = (
                EventFilter(after=Position(position - 1), limit=1) if position else event_filter
            )
        page = await self._seen_by(request).page(event_filter)
        at = [e for e in page.events if event_filter.plan or str(e.position) == name]
        if not at:
            raise NotFound(f"decision {name}: the log has no such position, and no such plan")
        decision = await decision_details.decision_of(at[0], self.inputs)
        if decision is None:
            kind = type(at[0].data).__name__
            raise NotFound(f"decision {name}: a {kind} is not a decision of the planner")
        body = msgspec.json.encode(DecisionAnswer(event=event_line(at[0]), decision=decision))
        return await answer(request, [body], page.head)

    @DECISION_INPUT.handler
    async def _input(self, request: web.Request, _: Query) -> web.StreamResponse:
        if not visibility_of(request).everything:
            raise Forbidden(
                "inputs of decisions name objects of all namespaces, and not all of them may be listed"
            )
        text = request.match_info["id"]
        position = Position(whole(text, "decision", least=1, most=POSITION_MAX))
        decision = await decision_details.decision_with_input(self.reader, self.inputs, position)
        body = msgspec.json.encode(decision_details.stored_decision(decision))
        return await answer(request, [body], decision.head)

    @PREEMPTIONS.handler
    async def _preemptions(self, request: web.Request, query: Query) -> web.StreamResponse:
        reader = self._seen_by(request)
        await find_paths(
            query, victim=partial(victim_of_name, reader), preemptor=partial(gang_of_name, reader)
        )
        page = await preemptions(reader, PreemptionQuery(**query))
        link = next_page(request, page.last) if page.more else ""
        return await answer(request, await listed(page.lines), page.head, link=link)


CATALOGUE = openapi.Operation(
    path="/v1/reports",
    about="The list of reports, with a description and the meaning of their columns",
    answer=list[ReportLine],
    problems=(400,),
    positioned=False,
)
REPORT = openapi.Operation(
    path="/v1/reports/{name}",
    about="One report for a span of time; default: the last 24 hours",
    answer=Report,
    parameters=(
        openapi.Parameter(name="name", about="Name of a report of /v1/reports", schema={"type": "string", "enum": sorted(REPORTS)},
                  where="path"),
        openapi.Parameter(name="since", about="From this time on", schema=openapi.TIME),
        openapi.Parameter(name="until", about="Before this time", schema=openapi.TIME),
        openapi.Parameter(name="namespace", about="Only root groups of this namespace", schema=openapi.NAME),
        openapi.Parameter(name="gang", about="Only this root group: namespace/name; a name alone as in /v1/events", schema=openapi.PATH_OR_NAME),
        openapi.Parameter(name="limit", about="Maximum number of rows",
                  schema={"type": "integer", "minimum": 0, "maximum": reports.LIMIT_MAX}),
    ),
    problems=(400, 404, 503),
)  # fmt: skip


@dataclass(frozen=True)
class ReportApi(Api):
    """Handlers of /v1/reports."""

    reader: ReportQueries
    events: EventQueries
    clock: Clock

    @CATALOGUE.handler
    async def _catalogue(self, _request: web.Request, _: Query) -> web.Response:
        return _json(catalogue())

    @REPORT.handler
    async def _report(self, request: web.Request, query: Query) -> web.Response:
        name = request.match_info["name"]
        if name not in REPORTS:
            return problem(404, "Not found", unknown_report(name))
        events = visible_queries(self.events, visibility_of(request))
        await find_paths(query, gang=partial(gang_of_name, events))
        report_query = check_report_query(name, now_us=self.clock.now_us(), **query)
        answer = await report(self.reader, events, report_query, visibility_of(request))
        return _json(answer, position=answer.position)


def _json(value: list[ReportLine] | Report, *, position: int | None = None) -> web.Response:
    return at_position(msgspec.json.encode(value), position)
