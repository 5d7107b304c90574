"""Reports under /v1/reports: the list, and their rows."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from extender.http.responses.error_responses import problem
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import NAME, PATH_OR_NAME, TIME, Operation, Parameter
from extender.http.v1.query_parameters import field, known, number, path_in
from extender.ports.log_ports import Clock
from extender.ports.query_ports import EventQueries
from extender.queries.log.event_dto import parse_time
from extender.queries.log.event_filter import visible_queries
from extender.queries.log.gang_history import gang_of_name
from extender.queries.log.parameter_validation import checked_name
from extender.queries.log.reports import (
    LIMIT,
    LIMIT_MAX,
    REPORTS,
    Report,
    ReportLine,
    ReportQueries,
    catalogue,
    check_report_query,
    report,
    unknown_report,
)

PARAMETERS = {"since", "until", "namespace", "gang", "limit"}


OPERATIONS = (
    Operation(
        path="/v1/reports",
        about="The list of reports, with a description and the meaning of their columns",
        answer=list[ReportLine],
        problems=(400,),
        positioned=False,
    ),
    Operation(
        path="/v1/reports/{name}",
        about="One report for a span of time; default: the last 24 hours",
        answer=Report,
        parameters=(
            Parameter(name="name", about="Name of a report of /v1/reports", schema={"type": "string", "enum": sorted(REPORTS)},
                      where="path"),
            Parameter(name="since", about="From this time on", schema=TIME),
            Parameter(name="until", about="Before this time", schema=TIME),
            Parameter(name="namespace", about="Only root groups of this namespace", schema=NAME),
            Parameter(name="gang", about="Only this root group: namespace/name; a name alone as in /v1/events", schema=PATH_OR_NAME),
            Parameter(name="limit", about="Maximum number of rows",
                      schema={"type": "integer", "minimum": 0, "maximum": LIMIT_MAX}),
        ),
        problems=(400, 404, 503),
    ),
)  # fmt: skip


class ReportApi:
    """Handlers of /v1/reports."""

    def __init__(self, reader: ReportQueries, events: EventQueries, clock: Clock) -> None:
        self._reader = reader
        self._events = events
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/reports", self.catalogue), web.get("/v1/reports/{name}", self.report)]

    async def catalogue(self, request: web.Request) -> web.Response:
        """Return the list of reports."""
        known(request, set())
        return _json(catalogue())

    async def report(self, request: web.Request) -> web.Response:
        """Return one report for the span from `since` to `until`; default: the last 24 hours."""
        name = request.match_info["name"]
        if name not in REPORTS:
            return problem(404, "Not found", unknown_report(name))
        query = known(request, PARAMETERS)
        if "namespace" in query:
            checked_name(query["namespace"], field("namespace"))
        events = visible_queries(self._events, visibility_of(request))
        gang = await path_in(query, "gang", partial(gang_of_name, events))
        report_query = check_report_query(
            name,
            now_us=self._clock.now_us(),
            since_us=parse_time(query["since"], "since") if "since" in query else None,
            until_us=parse_time(query["until"], "until") if "until" in query else None,
            namespace=query.get("namespace", ""),
            gang=gang,
            limit=number(query, "limit", LIMIT, most=LIMIT_MAX),
        )
        answer = await report(self._reader, events, report_query, visibility_of(request))
        return _json(answer, position=answer.position)


def _json(value: list[ReportLine] | Report, *, position: int | None = None) -> web.Response:
    return at_position(msgspec.json.encode(value), position)
