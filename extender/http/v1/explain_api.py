"""GET /v1/explain: why an object is in its state, and what would help; GET /v1/search: objects by their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

from extender.core.model.errors import BadInput
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import MOMENT, NAME, TEXT, Operation, Parameter
from extender.http.v1.query_parameters import Api, Query, field
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.explanation import Explanation
from extender.queries.explain.name_lookup import (
    SEARCH_LIMIT,
    SEARCH_LIMIT_MAX,
    NameSearch,
    WantedName,
    parse_name,
)
from extender.queries.explain.past_explanation import PastExplanations
from extender.queries.log.parameter_validation import checked_text

WORDS_MAX = 600  # characters; a name with kind and namespace has 350 at most
EXPLAIN = Operation(
    path="/v1/explain",
    about="Why a group, pod, workload or node is in its state, and what would help; of a complete gang that waits, by planning it on the live cluster",
    answer=Explanation,
    parameters=(
        Parameter(name="name", about="NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME", schema=TEXT, required=True),
        Parameter(name="namespace", about="Namespace of a name without one; default: default", schema=NAME),
        Parameter(name="at", about="A time (RFC 3339) or a position of the log: explain from the log how it was then; default: now", schema=MOMENT),
    ),
    problems=(400, 404, 503),
)  # fmt: skip
SEARCH = Operation(
    path="/v1/search",
    about="Groups, workloads, pods and nodes whose kind and name contain every word of a text; the most likely first",
    answer=NameSearch,
    parameters=(
        Parameter(name="q", about="Words, in any case", schema=TEXT, required=True),
        Parameter(
            name="limit", about="Maximum number of objects", schema={"type": "integer", "minimum": 1, "maximum": SEARCH_LIMIT_MAX, "default": SEARCH_LIMIT}
        ),
    ),
    problems=(400,),
)  # fmt: skip


class PastExplainApi(Api):
    """Handler of /v1/explain with `at`, from the log alone."""

    def __init__(self, service: PastExplanations) -> None:
        self._service = service

    @EXPLAIN.handler
    async def explain(self, request: web.Request, query: Query) -> web.Response:
        """Return the explanation of one object as it was at `at`."""
        at = checked_text(query.get("at", ""), field("at"))
        checked_text(query.get("name", ""), field("name"))
        explanation = await self._service.explain(
            _requested_name(query), at, visibility_of(request)
        )
        return at_position(msgspec.json.encode(explanation), explanation.position)


class ExplainApi(Api):
    """Handlers of /v1/explain and /v1/search.

    Args:
        past: Returns the answer of `PastExplainApi` to a request, with other headers.
    """

    def __init__(
        self,
        service: ExplainService,
        past: Callable[[web.Request, Mapping[str, str]], Awaitable[web.Response]],
    ) -> None:
        self._service = service
        self._past = past

    @EXPLAIN.handler
    async def explain(self, request: web.Request, query: Query) -> web.Response:
        """Return the explanation of one object, now or at `at`."""
        name = _requested_name(query)
        if "at" in query:
            return await self._past(request, {})
        explanation = await self._service.explain(name, visibility_of(request))
        return at_position(msgspec.json.encode(explanation), explanation.position)

    @SEARCH.handler
    async def search(self, request: web.Request, query: Query) -> web.Response:
        """Return the objects whose names contain every word of `q`."""
        words = query.get("q", "").strip()
        if not words or len(words) > WORDS_MAX:
            raise BadInput(
                f"{field('q')}: has {len(words)} characters; write a part of a name, {WORDS_MAX} characters at most"
            )
        hits = await self._service.search(words, query["limit"], visibility_of(request))
        return at_position(msgspec.json.encode(hits), hits.position)


def _requested_name(query: Query) -> WantedName:
    """Return the name in a query."""
    if not query.get("name"):
        raise BadInput(
            f"{field('name')}: missing; write name=NAMESPACE/NAME, or KIND/NAMESPACE/NAME"
        )
    return parse_name(query["name"], query.get("namespace", "default"))
