"""GET /v1/explain: why an object is in its state, and what would help."""

from __future__ import annotations

import msgspec
from aiohttp import web

from extender.core.model.errors import BadInput
from extender.http.v1.openapi import NAME, TEXT, Operation, Parameter
from extender.http.v1.query_parameters import field, known
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.explanation import Explanation
from extender.queries.explain.name_lookup import parse_name
from extender.queries.log.parameter_validation import checked_name

OPERATIONS = (
    Operation(
        path="/v1/explain",
        about="Why a group, pod, workload or node is in its state, and what would help; of a complete gang that waits, by planning it on the live cluster",
        answer=Explanation,
        parameters=(
            Parameter(
                name="name",
                about="NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME",
                schema=TEXT,
                required=True,
            ),
            Parameter(
                name="namespace",
                about="Namespace of a name without one; default: default",
                schema=NAME,
            ),
        ),
        problems=(400, 404, 503),
    ),
)


class ExplainApi:
    """Handler of /v1/explain."""

    def __init__(self, service: ExplainService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/explain", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        """Return the explanation of one object."""
        query = known(request, {"name", "namespace"})
        if not query.get("name"):
            raise BadInput(
                f"{field('name')}: missing; write name=NAMESPACE/NAME, or KIND/NAMESPACE/NAME"
            )
        namespace = checked_name(query.get("namespace", "default"), field("namespace"))
        found = await self._service.explain(parse_name(query["name"], namespace))
        headers = {"X-Log-Position": str(found.position)}
        return web.Response(
            body=msgspec.json.encode(found), content_type="application/json", headers=headers
        )
