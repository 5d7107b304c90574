"""GET /v1/explain: why an object is in its state, and what would help; GET /v1/search: objects by their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from extender.core.model.errors import BadInput
from extender.http.responses.json_responses import at_position
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import MOMENT, NAME, TEXT, Operation, Parameter
from extender.http.v1.query_parameters import Api, Query, field
from extender.queries.explain import name_lookup
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.explanation import Explanation
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
    answer=name_lookup.NameSearch,
    parameters=(
        Parameter(name="q", about="Words, in any case", schema=TEXT, required=True),
        Parameter(name="limit", about="Maximum number of objects", schema={
            "type": "integer", "minimum": 1, "maximum": name_lookup.SEARCH_LIMIT_MAX, "default": name_lookup.SEARCH_LIMIT}),
    ),
    problems=(400,),
)  # fmt: skip


@dataclass(frozen=True)
class PastExplainApi(Api):
    """Handler of /v1/explain with `at`, from the log alone."""

    service: PastExplanations

    @EXPLAIN.handler
    async def _explain(self, request: web.Request, query: Query) -> web.Response:
        at = checked_text(query.get("at", ""), field("at"))
        checked_text(query.get("name", ""), field("name"))
        explanation = await self.service.explain(_requested_name(query), at, visibility_of(request))
        return at_position(msgspec.json.encode(explanation), explanation.position)


@dataclass(frozen=True)
class ExplainApi(Api):
    """Handlers of /v1/explain and /v1/search."""

    service: ExplainService
    # returns the answer of `PastExplainApi` to a request, with other headers
    past: Callable[[web.Request, Mapping[str, str]], Awaitable[web.Response]]

    @EXPLAIN.handler
    async def _explain(self, request: web.Request, query: Query) -> web.Response:
        name = _requested_name(query)
        if "at" in query:
            return await self.past(request, {})
        explanation = await self.service.explain(name, visibility_of(request))
        return at_position(msgspec.json.encode(explanation), explanation.position)

    @SEARCH.handler
    async def _search(self, request: web.Request, query: Query) -> web.Response:
        words = query.get("q", "").strip()
        if not words or len(words) > WORDS_MAX:
            raise BadInput(
                f"{field('q')}: has {len(words)} characters; write a part of a name, {WORDS_MAX} characters at most"
            )
        hits = await self.service.search(words, query["limit"], visibility_of(request))
        return at_position(msgspec.json.encode(hits), hits.position)


def _requested_name(query: Query) -> name_lookup.WantedName:
    if not query.get("name"):
        raise BadInput(
            f"{field('name')}: missing; write name=NAMESPACE/NAME, or KIND/NAMESPACE/NAME"
        )
    return name_lookup.parse_name(query["name"], query.get("namespace", "default"))
