"""GET /v1/events: filtered events, page by page, or live as server-sent events.

A stream begins after `Last-Event-ID` or `after`, at `since`, or with the next event. The id of an event is its
position, so a client that lost the connection continues from there, at this replica or another. Comments in the
stream have the position up to which the log was examined; they set the id too.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec
from aiohttp import web
from msgspec.structs import replace

from extender.core.model.errors import BadInput, ExtenderError, PositionGone, TooManyQueries
from extender.core.model.ids import Position
from extender.http.responses.json_responses import ProblemDetails, answer, listed, next_page
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import NAME, ORDER, PATH_OR_NAME, TIME, Operation, Parameter
from extender.http.v1.query_parameters import LIMIT_MAX, POSITION_MAX, Api, Query, find_paths, whole
from extender.ports.log_ports import START
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.event_dto import EventLine, event_line
from extender.queries.log.event_filter import visible_queries
from extender.queries.log.event_stream import EventBatch, EventStream
from extender.queries.log.gang_history import events_page, gang_of_name
from extender.queries.log.parameter_validation import EVENT_TYPE_NAMES

READERS_MAX = 512  # the service opens half as many; one that it closed ends here within ten seconds
CHUNK_BYTES = 64 * 1024
LIMIT = 100  # events of a page, by default
FILTERS = (
    Parameter(name="type", about="Only events of this type", repeatable=True,
              schema={"type": "string", "enum": list(EVENT_TYPE_NAMES)}),
    Parameter(name="namespace", about="Only events about root groups of this namespace", schema=NAME),
    Parameter(name="gang", schema=PATH_OR_NAME,
              about="Only events about root groups of this namespace/name; a name alone is that in `namespace`, in default, or in the only namespace that has it"),
    Parameter(name="node", about="Only events that name this node", schema=NAME),
    Parameter(name="since", about="Only events recorded at this time or later (RFC 3339 with offset)",
              schema=TIME),
)  # fmt: skip
POSITION = {"type": "integer", "minimum": 0, "maximum": POSITION_MAX}
FOLLOW = Parameter(
    name="follow",
    about="Answer with server-sent events, without end unless limit is given; not together with until and order",
    schema={"type": "boolean"},
)
PARAMETERS = (
    *FILTERS,
    Parameter(name="until", about="Only events recorded at this time or before", schema=TIME),
    Parameter(name="after", schema=POSITION,
              about="Only events after this position; with order=newest, before it"),
    Parameter(name="limit", about="Maximum number of events; with follow the stream ends after so many, without it never",
              schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}),
    ORDER,
    FOLLOW,
    Parameter(name="Last-Event-ID", where="header", schema=POSITION,
              about="With follow: the position after which to continue; takes precedence over `after`"),
)  # fmt: skip
EVENTS = Operation(
    path="/v1/events",
    about="Events of the log, a page at a time (Link: next) or live",
    answer=list[EventLine],
    parameters=PARAMETERS,
    problems=(400, 404, 409, 503),
    streams=True,
    tagged=True,
)
_NOT_OF_STREAMS = ("until", "order")


@dataclass(frozen=True)
class EventApi(Api):
    """Handlers of /v1/events."""

    reader: EventQueries
    feed: EventStream

    @EVENTS.handler
    async def _events(self, request: web.Request, query: Query) -> web.StreamResponse:
        reader = visible_queries(self.reader, visibility_of(request))
        follow = query.pop("follow", False)
        await find_paths(query, gang=partial(gang_of_name, reader, expected=follow))
        event_filter = EventFilter(**query)
        last_id = _last_event_id(request)
        if follow:
            return await self._stream(request, event_filter, last_id)
        page = await events_page(reader, event_filter)
        pieces = await listed(map(event_line, page.events))
        link = next_page(request, page.events[-1].position) if page.more else ""
        return await answer(request, pieces, page.head, link=link)

    async def _stream(
        self, request: web.Request, event_filter: EventFilter, last_id: Position | None
    ) -> web.StreamResponse:
        for name in _NOT_OF_STREAMS:
            if name in request.query:
                raise BadInput(
                    f"query parameter {name}: not together with follow; a stream has new events, in their order, "
                    "and ends only after limit events"
                )
        left = event_filter.limit if "limit" in request.query else None
        event_filter = await self._begin(request, event_filter, last_id)
        if self.feed.readers >= READERS_MAX:
            msg = f"{READERS_MAX} streams are open here already; use another replica, or try again later"
            raise TooManyQueries(msg)
        headers = {
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "X-Log-Position": str(event_filter.after),
        }
        response = web.StreamResponse(headers=headers)
        response.content_type = "text/event-stream"
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        try:
            await response.write(_comment(event_filter.after))
            async with aclosing(self.feed.follow(event_filter, visibility_of(request))) as batches:
                async for batch in batches:
                    if left is not None and len(batch.events) >= left:
                        events = batch.events[:left]
                        for chunk in _chunks(EventBatch(events[-1][0].position, events)):
                            await response.write(chunk)
                        break
                    for chunk in _chunks(batch):
                        await response.write(chunk)
                    left = None if left is None else left - len(batch.events)
        except ConnectionError:
            return response  # the client has closed the connection; it knows its position
        except ExtenderError as fault:
            await response.write(_problem(fault))
        return response

    async def _begin(
        self, request: web.Request, event_filter: EventFilter, last_id: Position | None
    ) -> EventFilter:
        """Return the filter with the position after which the stream begins."""
        head = await self.feed.head()
        if last_id is not None:
            after = last_id
        elif "after" in request.query:
            after = event_filter.after
        elif event_filter.since_us is not None:
            after = START
        else:
            after = head
        if after > head:
            raise PositionGone(
                f"position {after}: the log ends at {head}; part of it was lost, or this is another log; "
                "read it from the beginning"
            )
        return replace(event_filter, after=after)


def _last_event_id(request: web.Request) -> Position | None:
    text = request.headers.get("Last-Event-ID")
    if text is None:
        return None
    return Position(whole(text, "header Last-Event-ID", most=POSITION_MAX))


def _chunks(batch: EventBatch) -> list[bytes]:
    """Return a batch as server-sent events, in chunks: a slow client is waited for between them."""
    chunks, chunk = [], b""
    for event, body in batch.events:
        chunk += b"id: %d\ndata: %b\n\n" % (event.position, body)
        if len(chunk) > CHUNK_BYTES:
            chunks.append(chunk)
            chunk = b""
    if not batch.events or batch.events[-1][0].position != batch.position:
        chunk += _comment(batch.position)
    return [*chunks, chunk] if chunk else chunks


def _comment(position: Position) -> bytes:
    """Return a comment with the position up to which the log was examined; it sets the id."""
    return b": as of position %d\nid: %d\n\n" % (position, position)


def _problem(fault: ExtenderError) -> bytes:
    details = ProblemDetails(title="The stream ends", status=409, detail=str(fault))
    return b"event: problem\ndata: %b\n\n" % msgspec.json.encode(details)
