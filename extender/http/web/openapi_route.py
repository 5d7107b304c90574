"""GET /v1/openapi.json: the OpenAPI document of all operations under /v1."""

from __future__ import annotations

import msgspec
from aiohttp import web

from extender.http.v1 import (
    event_api,
    explain_api,
    gang_api,
    history_api,
    node_api,
    plan_api,
    report_api,
    state_api,
    tree_api,
)
from extender.http.v1.openapi import Operation, document
from extender.http.web import health

# Each module with routes under /v1 has a tuple OPERATIONS.
OPERATIONS: tuple[Operation, ...] = (
    *gang_api.OPERATIONS,
    *history_api.OPERATIONS,
    *event_api.OPERATIONS,
    *explain_api.OPERATIONS,
    *plan_api.OPERATIONS,
    *state_api.OPERATIONS,
    *report_api.OPERATIONS,
    *node_api.OPERATIONS,
    *tree_api.OPERATIONS,
    *health.OPERATIONS,
)


class OpenApiRoute:
    """Handler of /v1/openapi.json."""

    def __init__(self) -> None:
        self._body = msgspec.json.encode(document(OPERATIONS))

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/openapi.json", self.document)]

    async def document(self, _: web.Request) -> web.Response:
        """Return the OpenAPI document."""
        return web.Response(body=self._body, content_type="application/json")
