"""Which right each route takes, in one table. A route that is not in it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class RouteRight(Enum):
    """What a caller needs for a route."""

    OPEN = "nothing: it shows no data of the cluster"
    CERTIFICATE = "a client certificate: the verbs, which the listener checks"
    IDENTITY = "a valid token"
    NAMESPACE = "get podgroups in the namespace of the path"
    ANY_NAMESPACE = "list podgroups in all namespaces, or in some: the answer shows those"
    ALL_NAMESPACES = "list podgroups in all namespaces: the answer names objects of all"
    PLAN = "create podgroups in all namespaces, or in those of the plan"
    METRICS = "get the path /metrics"


# By the path of the route, as the application has it.
RIGHTS: Final[Mapping[str, RouteRight]] = {
    "/": RouteRight.OPEN,
    "/livez": RouteRight.OPEN,
    "/readyz": RouteRight.OPEN,
    "/ui": RouteRight.OPEN,
    "/ui/{path}": RouteRight.OPEN,
    "/metrics": RouteRight.METRICS,
    "/scheduler/filter": RouteRight.CERTIFICATE,
    "/scheduler/prioritize": RouteRight.CERTIFICATE,
    "/scheduler/preempt": RouteRight.CERTIFICATE,
    "/scheduler/bind": RouteRight.CERTIFICATE,
    "/scheduler/status": RouteRight.CERTIFICATE,
    "/v1/decisions/{id}": RouteRight.ANY_NAMESPACE,
    "/v1/decisions/{id}/input": RouteRight.ALL_NAMESPACES,
    "/v1/events": RouteRight.ANY_NAMESPACE,
    "/v1/explain": RouteRight.ANY_NAMESPACE,
    "/v1/gangs": RouteRight.ANY_NAMESPACE,
    "/v1/gangs/{namespace}/{name}": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/explain": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/history": RouteRight.NAMESPACE,
    "/v1/gangs/{namespace}/{name}/tree": RouteRight.NAMESPACE,
    "/v1/moves": RouteRight.ALL_NAMESPACES,
    "/v1/nodes": RouteRight.ANY_NAMESPACE,
    "/v1/nodes/{name}": RouteRight.ANY_NAMESPACE,
    "/v1/openapi.json": RouteRight.IDENTITY,
    "/v1/plan": RouteRight.PLAN,
    "/v1/preemptions": RouteRight.ANY_NAMESPACE,
    "/v1/readiness": RouteRight.ANY_NAMESPACE,
    "/v1/reports": RouteRight.IDENTITY,
    "/v1/reports/{name}": RouteRight.ANY_NAMESPACE,
    "/v1/search": RouteRight.ANY_NAMESPACE,
    "/v1/state": RouteRight.ANY_NAMESPACE,
    "/v1/status": RouteRight.ANY_NAMESPACE,
    "/v1/trees": RouteRight.ANY_NAMESPACE,
}
